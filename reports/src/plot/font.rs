//! The font of all charts: Ubuntu Light, from `epaint_default_fonts` (Ubuntu Font Licence).
//!
//! Glyphs are placed here and not by plotters, which cuts each to a whole pixel and drops the
//! space before it.

use std::convert::Infallible;
use std::sync::LazyLock;

use ab_glyph::{Font, FontRef, GlyphId, Point, PxScale, ScaleFont};
use plotters_backend::text_anchor::{HPos, Pos, VPos};
use plotters_backend::{BackendColor, BackendCoord, BackendTextStyle, FontFamily};

use super::scene::Anchor;
use super::style::Paint;

static FONT: LazyLock<FontRef<'static>> = LazyLock::new(|| {
    FontRef::try_from_slice(epaint_default_fonts::UBUNTU_LIGHT).expect("a font that can be read")
});

/// What an SVG asks its viewer for; the first that the viewer has is used.
const FAMILY: &str = "Ubuntu, 'Segoe UI', 'Helvetica Neue', Arial, sans-serif";

/// How much wider than ours a viewer's font may be. Layout leaves this room.
pub(super) const SLACK: f64 = 1.14;

/// Height of an x, in ems; text is anchored at its middle, as the SVG backend does.
const X_HEIGHT: f64 = 0.52;

fn scale(em: f64) -> PxScale {
    let units = f64::from(FONT.units_per_em().expect("a scalable font"));
    PxScale::from((em * f64::from(FONT.height_unscaled()) / units) as f32)
}

/// Returns the width that layout should leave for `text`.
pub(super) fn width(text: &str, em: f64) -> f64 {
    advance(text, em) * SLACK
}

fn advance(text: &str, em: f64) -> f64 {
    let font = FONT.as_scaled(scale(em));
    let mut previous: Option<GlyphId> = None;
    let mut x = 0.0;
    for c in text.chars() {
        let glyph = font.glyph_id(c);
        x += previous.map_or(0.0, |p| font.kern(p, glyph)) + font.h_advance(glyph);
        previous = Some(glyph);
    }
    f64::from(x)
}

/// Returns `text`, or as much of its beginning and end as fits into `room`.
pub(super) fn elide(text: &str, em: f64, room: f64) -> String {
    if width(text, em) <= room {
        return text.to_owned();
    }
    let chars: Vec<char> = text.chars().collect();
    let keep = |keep: usize| -> String {
        // Pods of one Deployment differ at their ends, so the end is worth more.
        let (head, tail) = (keep / 2, keep - keep / 2);
        let parts = chars[..head].iter().chain(['…'].iter());
        parts.chain(&chars[chars.len() - tail..]).collect()
    };
    let (mut fits, mut too_long) = (0, chars.len());
    while too_long - fits > 1 {
        let middle = usize::midpoint(fits, too_long);
        if width(&keep(middle), em) <= room {
            fits = middle;
        } else {
            too_long = middle;
        }
    }
    keep(fits)
}

/// Breaks `text` at spaces into lines that fit into `room`; at most `lines`, the last one elided.
pub(super) fn wrap(text: &str, em: f64, room: f64, lines: usize) -> Vec<String> {
    let mut out: Vec<String> = Vec::new();
    let mut words = crate::summary::words(text).into_iter();
    while let Some(word) = words.next() {
        let line = out.last().map(|line| format!("{line} {word}"));
        match line {
            Some(line) if width(&line, em) <= room => *out.last_mut().expect("a line") = line,
            _ if out.len() == lines => {
                let last = out.last_mut().expect("a line");
                let rest: Vec<String> = std::iter::once(word).chain(words.by_ref()).collect();
                *last = format!("{last} {}", rest.join(" "));
            }
            _ => out.push(word),
        }
    }
    out.iter().map(|line| elide(line, em, room)).collect()
}

/// A line of text as a backend draws it.
pub(super) struct Line {
    pub(super) em: f64,
    pub(super) paint: Paint,
    pub(super) anchor: Anchor,
}

impl Line {
    fn height(&self) -> i32 {
        2 * (self.em.ceil() as i32)
    }
}

impl BackendTextStyle for Line {
    type FontError = Infallible;

    fn color(&self) -> BackendColor {
        self.paint.into()
    }

    fn size(&self) -> f64 {
        // The SVG backend divides by this to get ems; keep the quotient free of rounding dust.
        let size = self.em * 1.24;
        [size, size.next_up(), size.next_down()]
            .into_iter()
            .find(|size| size / 1.24 == self.em)
            .unwrap_or(size)
    }

    fn anchor(&self) -> Pos {
        let horizontal = match self.anchor {
            Anchor::Start => HPos::Left,
            Anchor::Middle => HPos::Center,
            Anchor::End => HPos::Right,
        };
        Pos::new(horizontal, VPos::Center)
    }

    fn family(&self) -> FontFamily<'_> {
        FontFamily::Name(FAMILY)
    }

    fn layout_box(&self, text: &str) -> Result<(BackendCoord, BackendCoord), Infallible> {
        Ok(((0, 0), (advance(text, self.em).round() as i32, self.height())))
    }

    fn draw<E, DrawFunc: FnMut(i32, i32, BackendColor) -> Result<(), E>>(
        &self,
        text: &str,
        (left, top): BackendCoord,
        mut draw: DrawFunc,
    ) -> Result<Result<(), E>, Infallible> {
        let scale = scale(self.em);
        let font = FONT.as_scaled(scale);
        let baseline = (f64::from(self.height()) / 2.0 + self.em * X_HEIGHT / 2.0) as f32;
        let mut previous: Option<GlyphId> = None;
        let mut x = 0.0;
        for c in text.chars() {
            let id = font.glyph_id(c);
            x += previous.map_or(0.0, |p| font.kern(p, id));
            previous = Some(id);
            let at = Point { x, y: baseline };
            x += font.h_advance(id);
            let Some(outline) = FONT.outline_glyph(id.with_scale_and_position(scale, at)) else {
                continue;
            };
            let bounds = outline.px_bounds();
            let mut result = Ok(());
            outline.draw(|dx, dy, coverage| {
                if result.is_ok() && coverage > 0.0 {
                    let mut color = self.color();
                    color.alpha *= f64::from(coverage.min(1.0));
                    result = draw(
                        left + bounds.min.x as i32 + dx as i32,
                        top + bounds.min.y as i32 + dy as i32,
                        color,
                    );
                }
            });
            if result.is_err() {
                return Ok(result);
            }
        }
        Ok(Ok(()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn has_every_sign_that_charts_use() {
        for c in "azAZ09 ±×·–—−…%≤≥<>()[],.:;?/_'\"µ".chars() {
            assert_ne!(FONT.glyph_id(c), GlyphId(0), "no glyph for {c:?}");
        }
    }

    #[test]
    fn long_text_is_cut_in_the_middle_and_wrapped_at_spaces() {
        let pod = "shop-7d9c5b8f6d-with-a-long-name-abcde";
        let short = elide(pod, 12.0, 100.0);
        assert!(short.starts_with("shop") && short.ends_with("abcde") && short.contains('…'));
        assert!(width(&short, 12.0) <= 100.0);
        assert_eq!(elide("pod", 12.0, 100.0), "pod");
        let lines = wrap("one two three four five six seven", 12.0, 60.0, 2);
        assert_eq!(lines.len(), 2);
        assert!(lines.iter().all(|line| width(line, 12.0) <= 60.0), "{lines:?}");
        assert!(lines[1].ends_with('n'));
    }
}
