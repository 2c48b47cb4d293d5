//! Charts of a run and of a sweep, as SVG and as PNG.
//!
//! A chart is laid out once, into a [`scene`] of shapes whose text is measured with the font that
//! travels along; the scene is then drawn through a plotters backend. Nothing depends on the
//! machine: no system font, no system library, and logarithms from `libm`, so the bytes of a
//! chart are a function of its records.
//!
//! ```
//! use reports::plot::{SweepView, sweep_charts};
//!
//! let sweep = SweepView { scenario: "rolling-update", seed: 7, axes: &[], points: &[] };
//! for chart in sweep_charts(&sweep) {
//!     assert!(chart.svg()?.starts_with("<svg"));
//! }
//! # Ok::<(), reports::plot::Error>(())
//! ```

mod axis;
mod bars;
mod causes;
mod font;
mod heat;
mod lines;
mod matrix;
mod scene;
mod sheet;
mod style;
mod sweep;
mod timeline;
mod windows;

use std::borrow::Cow;
use std::convert::Infallible;

use plotters::prelude::{BitMapBackend, SVGBackend};

use sim_core::proxy::matrix::{Matrix, PortMatrix};

use crate::collect::RunRecords;
use crate::stats::PointSummary;
use scene::{SCALE, Scene};

pub(crate) use axis::number;
pub(crate) use sweep::{Spread, label_of, mean_and_spread, with_half_width};
pub use timeline::bin_width;

/// Returns a count, thousands grouped.
pub(crate) fn number_whole(n: u64) -> String {
    axis::grouped(&n.to_string())
}

/// Pixels of the PNG for each unit of the SVG: twice as dense, for sharp text on today's screens.
const PNG_DENSITY: u32 = 2;

/// A chart could not be drawn.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A plotters backend failed.
    #[error("cannot draw the chart: {0}")]
    Draw(String),
    /// The PNG could not be encoded.
    #[error("cannot encode the chart as PNG")]
    Png(#[from] png::EncodingError),
}

impl From<Infallible> for Error {
    fn from(never: Infallible) -> Error {
        match never {}
    }
}

/// What a sweep's charts show.
#[derive(Clone, Copy, Debug)]
pub struct SweepView<'a> {
    /// The scenario's name.
    pub scenario: &'a str,
    /// The user's seed.
    pub seed: u64,
    /// The swept parameters, in the order of every point's `parameters`.
    pub axes: &'a [Axis],
    /// The points, in order.
    pub points: &'a [PointSummary],
}

/// A swept parameter, as charts name it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Axis {
    /// The path in the scenario.
    pub path: String,
    /// What stands at the axis and in titles: `propagation delay`. No unit where the values are
    /// written with theirs; else it follows a comma: `preStop sleep, seconds`.
    pub title: String,
}

impl Axis {
    /// Names an axis after its path: in words for the paths that most sweeps are about, else by
    /// the path itself, or the last parts of a long one.
    pub fn from_path(path: &str) -> Axis {
        Axis { path: path.to_owned(), title: sweep::words(path) }
    }

    /// Names axes after their paths, by whole paths where short names would be the same.
    pub fn from_paths<'p>(paths: impl IntoIterator<Item = &'p str>) -> Vec<Axis> {
        let mut axes: Vec<Axis> = paths.into_iter().map(Axis::from_path).collect();
        let titles: Vec<String> = axes.iter().map(|axis| axis.title.clone()).collect();
        for axis in &mut axes {
            if titles.iter().filter(|&title| *title == axis.title).count() > 1 {
                axis.title.clone_from(&axis.path);
            }
        }
        axes
    }
}

/// What a run's charts show.
#[derive(Clone, Copy, Debug)]
pub struct RunView<'a> {
    /// The scenario's name.
    pub scenario: &'a str,
    /// The user's seed.
    pub seed: u64,
    /// The replication.
    pub run: u64,
    /// The records.
    pub records: &'a RunRecords,
}

/// A chart, laid out.
#[derive(Clone, Debug)]
pub struct Chart {
    name: Cow<'static, str>,
    scene: Scene,
}

impl Chart {
    /// Returns the stem of the chart's file name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the question that the chart answers.
    pub fn title(&self) -> &str {
        &self.scene.title
    }

    /// Draws the chart as an SVG document.
    pub fn svg(&self) -> Result<String, Error> {
        let mut svg = String::new();
        let (width, height) = self.scene.size();
        self.scene.draw(&mut SVGBackend::with_string(&mut svg, (width * SCALE, height * SCALE)))?;
        // The backend has whole coordinates only: the scene is drawn large and shown small.
        let large = format!("width=\"{}\" height=\"{}\"", width * SCALE, height * SCALE);
        Ok(svg.replacen(&large, &format!("width=\"{width}\" height=\"{height}\""), 1))
    }

    /// Draws the chart as a PNG file, two pixels for each unit of the SVG.
    pub fn png(&self) -> Result<Vec<u8>, Error> {
        let (width, height) = self.scene.size();
        let (large_width, large_height) = (width * SCALE, height * SCALE);
        let mut large = vec![255; (large_width * large_height * 3) as usize];
        self.scene
            .draw(&mut BitMapBackend::with_buffer(&mut large, (large_width, large_height)))?;
        let (width, height) = (width * PNG_DENSITY, height * PNG_DENSITY);
        let pixels = shrink(&large, width, height, SCALE / PNG_DENSITY);
        let mut out = Vec::new();
        let mut encoder = png::Encoder::new(&mut out, width, height);
        encoder.set_color(png::ColorType::Rgb);
        encoder.set_depth(png::BitDepth::Eight);
        let per_metre = 3780 * PNG_DENSITY; // 96 dpi
        encoder.set_pixel_dims(Some(png::PixelDimensions {
            xppu: per_metre,
            yppu: per_metre,
            unit: png::Unit::Meter,
        }));
        let mut writer = encoder.write_header()?;
        writer.write_image_data(&pixels)?;
        writer.finish()?;
        Ok(out)
    }
}

/// Averages squares of `factor` by `factor` pixels: the backend draws polygons without smoothing.
fn shrink(large: &[u8], width: u32, height: u32, factor: u32) -> Vec<u8> {
    let (width, factor) = (width as usize, factor as usize);
    let stride = width * factor * 3;
    let count = (factor * factor) as u32;
    let mut out = Vec::with_capacity(width * height as usize * 3);
    for y in 0..height as usize {
        for x in 0..width {
            for channel in 0..3 {
                let mut sum = count / 2;
                for row in 0..factor {
                    let at = (y * factor + row) * stride + x * factor * 3 + channel;
                    for column in 0..factor {
                        sum += u32::from(large[at + column * 3]);
                    }
                }
                out.push((sum / count) as u8);
            }
        }
    }
    out
}

/// Lays out the charts of a sweep: what is lost along its main axis, the same as a heat map if
/// there is a second axis, the time until the last node has a change, what a sync takes where
/// proxies sync, rules passed where the number of Services varies, and losses by cause.
pub fn sweep_charts(sweep: &SweepView<'_>) -> Vec<Chart> {
    let scenes = [
        ("loss", Some(sweep::loss(sweep))),
        ("loss_heat", heat::heat(sweep)),
        ("last_node", sweep::last_node(sweep)),
        ("sync", sweep::sync(sweep)),
        ("passed", sweep::passed(sweep)),
        ("loss_by_cause", Some(causes::causes(sweep))),
    ];
    let chart = |(name, scene): (&'static str, Option<Scene>)| {
        scene.map(|scene| Chart { name: name.into(), scene })
    };
    scenes.into_iter().filter_map(chart).collect()
}

/// Lays out who reaches what of one service port.
pub fn matrix_chart(matrix: &Matrix, part: &PortMatrix) -> Chart {
    let name = part.port.name.to_string().replace(['/', ':'], "-");
    let name = format!("matrix-{name}-{}", part.port.name.protocol);
    Chart { name: name.into(), scene: matrix::scene(matrix, part) }
}

/// Lays out the charts of a run: its timeline, if there is detail, and its windows.
pub fn run_charts(run: &RunView<'_>) -> Vec<Chart> {
    let scenes = [("timeline", timeline::timeline(run)), ("windows", Some(windows::windows(run)))];
    let chart = |(name, scene): (&'static str, Option<Scene>)| {
        scene.map(|scene| Chart { name: name.into(), scene })
    };
    scenes.into_iter().filter_map(chart).collect()
}

#[cfg(test)]
mod tests;
