//! A measure along a numeric axis, a line for each series, labelled at its end.

use super::axis::{Scale, Tick};
use super::font;
use super::scene::{Anchor, Point, Scene};
use super::sheet::{self, Area};
use super::style::{AXIS, FAINT, Look, SERIES, TEXT};

/// How means and intervals are drawn.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Mode {
    /// Lines through the means, intervals as bands.
    Bands,
    /// Lines through the means, intervals as whiskers.
    Whiskers,
    /// Lines for the closed form, the means beside them with whiskers.
    ClosedForm,
}

#[derive(Clone, Debug)]
pub(super) struct LinePoint {
    pub(super) x: f64,
    pub(super) mean: f64,
    pub(super) interval: Option<(f64, f64)>,
}

#[derive(Clone, Debug)]
pub(super) struct Series {
    pub(super) label: String,
    /// In ascending order of x.
    pub(super) points: Vec<LinePoint>,
    pub(super) closed_form: Vec<Point>,
}

#[derive(Clone, Debug)]
pub(super) struct Lines {
    pub(super) title: String,
    pub(super) sentence: String,
    pub(super) caption: String,
    pub(super) x_title: String,
    pub(super) y_title: String,
    pub(super) mode: Mode,
    /// What stands in the middle of a chart without anything to see.
    pub(super) note: Option<String>,
    /// The values on the axis, ascending, and how they are written.
    pub(super) xs: Vec<(f64, String)>,
    /// At most as many as there are looks.
    pub(super) series: Vec<Series>,
}

/// A range that spans more than this is drawn on a logarithmic scale.
const LOG_SPAN: f64 = 10.0;

pub(super) fn lines(chart: &Lines) -> Scene {
    let (mut scene, mut area) =
        sheet::sheet(&chart.title, &chart.sentence, &chart.caption, sheet::HEIGHT);
    area.top += 30.0;
    area.bottom -= 50.0;
    let label_room = chart.series.iter().map(|s| font::width(&s.label, TEXT)).fold(0.0, f64::max);
    let label_room = label_room.min(230.0);
    area.right -= label_room + if label_room > 0.0 { 34.0 } else { 12.0 };

    let (first, last) = (chart.xs[0].0, chart.xs[chart.xs.len() - 1].0);
    let x_is_log = first > 0.0 && last / first > LOG_SPAN;
    let y = y_scale(chart, x_is_log, &area);
    area.left += sheet::label_room(&y.ticks(5));
    let inner = (area.left + 14.0, area.right - 14.0);
    let x = if x_is_log {
        Scale::log((first, last), inner)
    } else {
        Scale::linear((first, last), inner)
    };

    let log = |is: bool| if is { ", log scale" } else { "" };
    let y_title = format!("{}{}", chart.y_title, log(y.is_log()));
    sheet::vertical_axis(&mut scene, &area, &y, 5, &y_title);
    let ticks: Vec<Tick> =
        chart.xs.iter().map(|(v, label)| Tick { at: x.at(*v), label: label.clone() }).collect();
    sheet::vertical_grid(&mut scene, &area, &ticks);
    let x_title = format!("{}{}", chart.x_title, log(x_is_log));
    sheet::horizontal_axis(&mut scene, &area, &ticks, &x_title);

    // Series that coincide are still seen when each stands a little beside its place.
    let near = ticks.windows(2).map(|t| t[1].at - t[0].at).fold(f64::INFINITY, f64::min);
    let beside = if near > 50.0 && chart.mode != Mode::ClosedForm { 5.0 } else { 0.0 };
    let middle = (chart.series.len() as f64 - 1.0) / 2.0;
    let looks = || {
        chart.series.iter().zip(SERIES).enumerate().map(|(i, (series, look))| {
            let x = x.moved((i as f64 - middle) * beside);
            (series, look, x)
        })
    };
    for (series, look, x) in looks() {
        intervals(&mut scene, chart.mode, series, look, &x, &y);
    }
    for (series, look, x) in looks() {
        means(&mut scene, chart.mode, series, look, &x, &y);
    }
    let ends: Vec<Point> = looks()
        .map(|(s, _, x)| {
            s.points.last().map_or((area.right, area.bottom), |p| (x.at(p.x), y.at(p.mean)))
        })
        .collect();
    end_labels(&mut scene, chart, &area, label_room, &ends);
    if let Some(note) = &chart.note {
        scene.text(area.centre(), note, 20.0, FAINT, Anchor::Middle);
    }
    scene
}

fn y_scale(chart: &Lines, x_is_log: bool, area: &Area) -> Scale {
    let points = || chart.series.iter().flat_map(|s| &s.points);
    let closed = || chart.series.iter().flat_map(|s| &s.closed_form).map(|c| c.1);
    let highest = points().map(|p| p.interval.map_or(p.mean, |i| i.1.max(p.mean)));
    let max = highest.chain(closed()).fold(0.0, f64::max);
    let min = points().map(|p| p.mean).chain(closed()).fold(f64::INFINITY, f64::min);
    let span = (area.bottom, area.top);
    // Where both scales are logarithmic, proportional growth is a straight line.
    if x_is_log && min > 0.0 && max / min > LOG_SPAN {
        let low = points().filter_map(|p| p.interval).map(|i| i.0).filter(|&low| low > 0.0);
        return Scale::log((low.fold(min, f64::min).max(min / 2.0) * 0.9, max * 1.1), span);
    }
    Scale::from_zero(max, 5, span)
}

fn intervals(scene: &mut Scene, mode: Mode, series: &Series, look: Look, x: &Scale, y: &Scale) {
    let known: Vec<(&LinePoint, (f64, f64))> =
        series.points.iter().filter_map(|p| Some((p, p.interval?))).collect();
    if mode == Mode::Bands && known.len() > 1 && known.len() == series.points.len() {
        let high = known.iter().map(|(p, i)| (x.at(p.x), y.at(i.1)));
        let low = known.iter().rev().map(|(p, i)| (x.at(p.x), y.at(i.0)));
        scene.polygon(&high.chain(low).collect::<Vec<_>>(), look.paint.alpha(0.12));
        return;
    }
    for (point, (low, high)) in known {
        let (at, low, high) = (x.at(point.x), y.at(low), y.at(high));
        if low - high < 2.0 {
            continue; // the marker is larger
        }
        scene.line(&[(at, low), (at, high)], look.paint, 1.5);
        for end in [low, high] {
            scene.line(&[(at - 4.0, end), (at + 4.0, end)], look.paint, 1.5);
        }
    }
}

fn means(scene: &mut Scene, mode: Mode, series: &Series, look: Look, x: &Scale, y: &Scale) {
    let means: Vec<Point> = series.points.iter().map(|p| (x.at(p.x), y.at(p.mean))).collect();
    if mode == Mode::ClosedForm {
        let line: Vec<Point> =
            series.closed_form.iter().map(|&(at, value)| (x.at(at), y.at(value))).collect();
        scene.dashed(&line, look.paint, 1.75, look.dash);
    } else {
        scene.dashed(&means, look.paint, 2.25, look.dash);
    }
    for &mean in &means {
        scene.marker(mean, look.marker, 4.5, look.paint);
    }
}

fn end_labels(scene: &mut Scene, chart: &Lines, area: &Area, room: f64, ends: &[Point]) {
    let wanted: Vec<f64> = ends.iter().map(|e| e.1).collect();
    let placed = sheet::spread(&wanted, 18.0, area.top, area.bottom);
    for (((series, look), end), at) in chart.series.iter().zip(SERIES).zip(ends).zip(placed) {
        if series.label.is_empty() {
            continue;
        }
        let left = area.right + 26.0;
        let edge = area.right - 1.0;
        let from = if end.0 > edge - 60.0 { edge } else { end.0 + 7.0 };
        if (end.1 - at).abs() > 3.0 || from < edge {
            scene.line(&[(from, end.1), (left - 16.0, at)], AXIS, 0.75);
        }
        scene.marker((left - 9.0, at), look.marker, 4.0, look.paint);
        let label = font::elide(&series.label, TEXT, room);
        scene.text((left, at), &label, TEXT, super::style::INK, Anchor::Start);
    }
}
