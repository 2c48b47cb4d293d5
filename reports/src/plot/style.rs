//! Colours, dashes and sizes.
//!
//! The colours are Okabe and Ito's, which readers with any of the common colour-vision
//! deficiencies tell apart; series differ in dash and marker as well.

use plotters_backend::{BackendColor, BackendStyle};
use sim_core::record::Cause;

/// A colour and its opacity.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Paint {
    pub(super) rgb: (u8, u8, u8),
    pub(super) alpha: f64,
}

impl Paint {
    pub(super) const fn rgb(r: u8, g: u8, b: u8) -> Paint {
        Paint { rgb: (r, g, b), alpha: 1.0 }
    }

    pub(super) const fn alpha(self, alpha: f64) -> Paint {
        Paint { alpha, ..self }
    }

    /// Whether dark text is easier to read on it than light text.
    pub(super) fn is_light(self) -> bool {
        let (r, g, b) = self.rgb;
        299 * u32::from(r) + 587 * u32::from(g) + 114 * u32::from(b) > 128_000
    }

    /// Returns ink that can be read on it.
    pub(super) fn ink_on(self) -> Paint {
        if self.is_light() { INK } else { WHITE }
    }
}

impl From<Paint> for BackendColor {
    fn from(paint: Paint) -> BackendColor {
        BackendColor { alpha: paint.alpha, rgb: paint.rgb }
    }
}

/// A paint and a width, as backends want them.
pub(super) struct Pen {
    pub(super) paint: Paint,
    pub(super) width: u32,
}

impl BackendStyle for Pen {
    fn color(&self) -> BackendColor {
        self.paint.into()
    }

    fn stroke_width(&self) -> u32 {
        self.width
    }
}

pub(super) const WHITE: Paint = Paint::rgb(255, 255, 255);
pub(super) const INK: Paint = Paint::rgb(20, 20, 20);
pub(super) const FAINT: Paint = Paint::rgb(85, 85, 85);
pub(super) const GRID: Paint = Paint::rgb(226, 226, 226);
pub(super) const AXIS: Paint = Paint::rgb(140, 140, 140);
pub(super) const SHADE: Paint = Paint::rgb(240, 236, 222);

pub(super) const BLUE: Paint = Paint::rgb(0, 114, 178);
pub(super) const VERMILLION: Paint = Paint::rgb(213, 94, 0);
pub(super) const GREEN: Paint = Paint::rgb(0, 158, 115);
pub(super) const PURPLE: Paint = Paint::rgb(204, 121, 167);
pub(super) const ORANGE: Paint = Paint::rgb(230, 159, 0);
pub(super) const SKY: Paint = Paint::rgb(86, 180, 233);
pub(super) const YELLOW: Paint = Paint::rgb(240, 228, 66);

/// Ems of text.
pub(super) const TITLE: f64 = 21.0;
pub(super) const SUBTITLE: f64 = 15.0;
pub(super) const TEXT: f64 = 14.0;
pub(super) const SMALL: f64 = 12.5;

/// At most five series are told apart.
pub(super) const SERIES: [Look; 5] = [
    Look { paint: BLUE, dash: &[], marker: Marker::Circle },
    Look { paint: VERMILLION, dash: &[9.0, 4.0], marker: Marker::Square },
    Look { paint: GREEN, dash: &[2.5, 3.5], marker: Marker::Triangle },
    Look { paint: PURPLE, dash: &[10.0, 3.5, 2.5, 3.5], marker: Marker::Diamond },
    Look { paint: INK, dash: &[5.0, 3.0], marker: Marker::Cross },
];

/// How a series looks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Look {
    pub(super) paint: Paint,
    /// Lengths drawn and left out, in turn; empty for a solid line.
    pub(super) dash: &'static [f64],
    pub(super) marker: Marker,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Marker {
    Circle,
    Square,
    Triangle,
    Diamond,
    Cross,
}

/// Returns the colour of losses to `cause`, the same in all charts.
pub(super) fn cause_paint(cause: Cause) -> Paint {
    match cause {
        Cause::Refused => VERMILLION,
        Cause::Reset => ORANGE,
        Cause::Unreachable => PURPLE,
        Cause::Blackholed => BLUE,
        Cause::Rejected => GREEN,
        Cause::Dropped => SKY,
        Cause::NoRule => YELLOW,
        Cause::Conntrack => Paint::rgb(70, 70, 70),
        Cause::Link => Paint::rgb(150, 150, 150),
        Cause::Server => Paint::rgb(120, 80, 30),
    }
}
