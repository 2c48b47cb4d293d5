//! Which parameter of a sweep lies on which axis, and the charts along one.

use sim_core::record::Cause;

use super::axis::{mean_and_half, number};
use super::bars::{self, Bar, Bars};
use super::lines::{self, LinePoint, Lines, Mode, Series};
use super::scene::Scene;
use super::style::{BLUE, SERIES};
use super::{Axis, SweepView};
use crate::stats::{Interval, Parameter, PointSummary};

/// What the ends of some long paths are called, and their unit where values are written without.
const NAMES: [(&str, &str, &str); 5] = [
    ("otherServices.count", "other Services", ""),
    ("lifecycle.preStop.sleep.seconds", "preStop sleep", "seconds"),
    ("terminationGracePeriodSeconds", "termination grace period", "seconds"),
    ("minReadySeconds", "minReadySeconds", ""),
    ("spec.replicas", "replicas", ""),
];

/// Longer paths are named by their last parts.
const LONGEST_TITLE: usize = 28;

/// Names the parameters that most sweeps are about.
pub(super) fn words(path: &str) -> String {
    if is_nodes(path) {
        return "nodes".to_owned();
    }
    if let Some(rest) = path.strip_prefix("propagation.delay") {
        return match rest.trim_start_matches('.').replace('.', " ") {
            law if law.is_empty() => "propagation delay".to_owned(),
            law => format!("propagation delay ({law})"),
        };
    }
    let is_end =
        |end: &str| path.strip_suffix(end).is_some_and(|p| p.is_empty() || p.ends_with('.'));
    match NAMES.into_iter().find(|&(end, ..)| is_end(end)) {
        Some((_, name, "")) => name.to_owned(),
        Some((_, name, unit)) => format!("{name}, {unit}"),
        None => last_parts(path).to_owned(),
    }
}

fn last_parts(path: &str) -> &str {
    if path.chars().count() <= LONGEST_TITLE {
        return path;
    }
    let starts = path.match_indices('.').map(|(at, _)| &path[at + 1..]);
    let mut parts: Vec<&str> = starts.filter(|part| !part.is_empty()).collect();
    let fits = parts.iter().position(|part| part.chars().count() <= LONGEST_TITLE);
    match fits {
        Some(first) => parts.swap_remove(first),
        None => parts.last().copied().unwrap_or(path),
    }
}

/// Splits an axis's title into its name and its unit.
fn name_and_unit(axis: &Axis) -> (&str, Option<&str>) {
    match axis.title.split_once(", ") {
        Some((name, unit)) => (name, Some(unit)),
        None => (&axis.title, None),
    }
}

fn is_nodes(path: &str) -> bool {
    path == "cluster.nodes"
}

fn is_delay(path: &str) -> bool {
    path.starts_with("propagation.") && !is_services(path)
}

fn is_services(path: &str) -> bool {
    path.contains(".otherServices.")
}

/// Returns a value as a label: `300ms`, `100 nodes`, `ipvs`, `preStop sleep 3 s`.
pub(super) fn value_label(axis: &Axis, parameter: &Parameter) -> String {
    if is_nodes(&axis.path) {
        let noun = if parameter.display == "1" { "node" } else { "nodes" };
        return format!("{} {noun}", parameter.display);
    }
    // Both say of themselves what they are.
    if is_delay(&axis.path) || axis.path == "proxy.mode" {
        return parameter.display.clone();
    }
    match name_and_unit(axis) {
        (name, Some("seconds")) => format!("{name} {} s", parameter.display),
        (name, Some(unit)) => format!("{name} {} {unit}", parameter.display),
        (name, None) => format!("{name} {}", parameter.display),
    }
}

/// Returns a point's label over all axes.
pub(crate) fn label_of(axes: &[Axis], point: &PointSummary) -> String {
    let labels: Vec<String> =
        axes.iter().zip(&point.parameters).map(|(a, p)| value_label(a, p)).collect();
    labels.join(", ")
}

/// Returns a point's label over some of the axes.
pub(super) fn label_over(sweep: &SweepView<'_>, point: &PointSummary, axes: &[usize]) -> String {
    let labels: Vec<String> =
        axes.iter().map(|&a| value_label(&sweep.axes[a], &point.parameters[a])).collect();
    labels.join(", ")
}

/// Returns a point's label; `this scenario` where nothing is swept.
pub(super) fn point_label(sweep: &SweepView<'_>, point: &PointSummary) -> String {
    let label = label_of(sweep.axes, point);
    if label.is_empty() { "this scenario".to_owned() } else { label }
}

/// Returns the distinct values of an axis, numbers in ascending order, others in the order of
/// the points.
pub(super) fn values(sweep: &SweepView<'_>, axis: usize) -> Vec<Parameter> {
    let mut values: Vec<Parameter> = Vec::new();
    for point in sweep.points {
        let value = &point.parameters[axis];
        if !values.iter().any(|v| v.display == value.display) {
            values.push(value.clone());
        }
    }
    if values.iter().all(|v| v.value.is_some()) {
        values.sort_by(|a, b| a.value.unwrap_or(0.0).total_cmp(&b.value.unwrap_or(0.0)));
    }
    values
}

fn is_numeric(sweep: &SweepView<'_>, axis: usize) -> bool {
    let values: Option<Vec<f64>> = values(sweep, axis).iter().map(|v| v.value).collect();
    values.is_some_and(|v| {
        // Two ways to write one number have one place on an axis.
        v.len() > 1 && v.iter().all(|x| x.is_finite()) && v.windows(2).all(|w| w[0] < w[1])
    })
}

/// Returns the axis to lie along: the first numeric one that `preferred` likes, else the first
/// numeric one that is not about nodes, else any numeric one.
pub(super) fn along(sweep: &SweepView<'_>, preferred: fn(&str) -> bool) -> Option<usize> {
    let numeric: Vec<usize> = (0..sweep.axes.len()).filter(|&a| is_numeric(sweep, a)).collect();
    let find = |wanted: &dyn Fn(&str) -> bool| {
        numeric.iter().copied().find(|&a| wanted(&sweep.axes[a].path))
    };
    find(&preferred).or_else(|| find(&|path| !is_nodes(path))).or(numeric.first().copied())
}

/// The axis that losses are shown along.
pub(super) fn loss_axis(sweep: &SweepView<'_>) -> Option<usize> {
    along(sweep, is_delay)
}

pub(super) fn caption(sweep: &SweepView<'_>, rest: &str) -> String {
    let counts = sweep.points.iter().map(|p| p.replications);
    let replications = match (counts.clone().min(), counts.max()) {
        (Some(1), Some(1)) => " · 1 replication of each point".to_owned(),
        (Some(a), Some(b)) if a == b => format!(" · {a} replications of each point"),
        (Some(a), Some(b)) => format!(" · {a} to {b} replications of each point"),
        _ => String::new(),
    };
    let rest = if rest.is_empty() { String::new() } else { format!(" · {rest}") };
    format!("scenario {} · seed {}{replications}{rest}", sweep.scenario, sweep.seed)
}

/// Returns the sentence that says the range of a measure over the points.
fn range(
    sweep: &SweepView<'_>,
    of: impl Fn(&PointSummary) -> Option<f64>,
    (unit, again): (&str, &str),
) -> Option<String> {
    let values: Vec<(f64, &PointSummary)> =
        sweep.points.iter().filter_map(|p| Some((of(p)?, p))).collect();
    let least = values.iter().min_by(|a, b| a.0.total_cmp(&b.0))?;
    let most = values.iter().max_by(|a, b| a.0.total_cmp(&b.0))?;
    if values.len() == 1 {
        let label = point_label(sweep, most.1);
        return Some(format!("{}{unit} ({label}).", number(most.0)));
    }
    // What is written alike is alike to the reader.
    if number(least.0) == number(most.0) {
        return Some(format!("{}{unit} at every point.", number(most.0)));
    }
    Some(format!(
        "From {}{unit} ({}) to {}{again} ({}).",
        number(least.0),
        point_label(sweep, least.1),
        number(most.0),
        point_label(sweep, most.1),
    ))
}

/// Returns the sentence that answers what is lost.
pub(super) fn loss_sentence(sweep: &SweepView<'_>) -> String {
    let mean = |p: &PointSummary| p.lost_per_window.map(|i| i.mean);
    let known: Vec<f64> = sweep.points.iter().filter_map(mean).collect();
    if known.is_empty() {
        return "No deletion window was opened.".to_owned();
    }
    if known.iter().all(|&m| m == 0.0) {
        return match sweep.points.len() {
            1 => "No attempt was lost.".to_owned(),
            n => format!("No attempt was lost at any of the {n} points."),
        };
    }
    range(sweep, mean, (" lost attempts", "")).unwrap_or_default()
}

/// Draws loss along an axis: a line for each combination of the other parameters.
pub(super) fn loss(sweep: &SweepView<'_>) -> Scene {
    let mean = |p: &PointSummary| p.lost_per_window;
    let Some(x) = loss_axis(sweep) else {
        let bars = sweep.points.iter().filter_map(|point| {
            let interval = mean(point)?;
            Some(Bar {
                label: point_label(sweep, point),
                segments: vec![(interval.mean, BLUE, String::new())],
                interval: interval.ci95,
                end: with_half_width(&interval),
            })
        });
        return bars::bars(&Bars {
            title: "How many attempts does one Pod deletion lose?".to_owned(),
            sentence: loss_sentence(sweep),
            caption: caption(sweep, "whisker: 95 % interval of the mean"),
            x_title: "lost attempts per deletion window".to_owned(),
            bars: bars.collect(),
            nothing: "no deletion window was opened",
        });
    };
    let axis = &sweep.axes[x];
    let how = if is_delay(&axis.path) {
        "as rules arrive later".to_owned()
    } else if is_nodes(&axis.path) {
        "as the cluster grows".to_owned()
    } else {
        format!("as {} grows", name_and_unit(axis).0)
    };
    let mut sentence = loss_sentence(sweep);
    if let Some(what) = what_hardly_matters(sweep, x) {
        sentence.push_str(&format!(" {what}."));
    }
    let all_zero = sweep.points.iter().filter_map(mean).all(|i| i.mean == 0.0);
    along_lines(
        sweep,
        x,
        &mean,
        Lines {
            title: format!("How many attempts does one Pod deletion lose {how}?"),
            sentence,
            caption: caption(sweep, "band: 95 % interval of the mean"),
            x_title: axis.title.clone(),
            y_title: "lost attempts per deletion window".to_owned(),
            mode: Mode::Bands,
            note: all_zero.then(|| "no attempt was lost".to_owned()),
            xs: Vec::new(),
            series: Vec::new(),
        },
    )
}

/// At least so many replications, and means within this share of each other, before a chart says
/// that a parameter hardly matters: wide intervals always overlap.
const REPLICATIONS_TO_COINCIDE: usize = 3;
const COINCIDE: f64 = 0.2;

/// Returns what hardly matters if all lines along `x` coincide: at each value the intervals
/// overlap, and the means are near each other.
fn what_hardly_matters(sweep: &SweepView<'_>, x: usize) -> Option<String> {
    let others: Vec<usize> =
        (0..sweep.axes.len()).filter(|&a| a != x && values(sweep, a).len() > 1).collect();
    let mut lost = 0.0;
    for value in values(sweep, x) {
        let here: Vec<Interval> = sweep
            .points
            .iter()
            .filter(|p| p.parameters[x].display == value.display)
            .map(|p| p.lost_per_window)
            .collect::<Option<_>>()?;
        let ends: Vec<(f64, f64)> = here.iter().map(|i| i.ci95).collect::<Option<_>>()?;
        let highest_low = ends.iter().map(|e| e.0).fold(f64::NEG_INFINITY, f64::max);
        let lowest_high = ends.iter().map(|e| e.1).fold(f64::INFINITY, f64::min);
        let means = || here.iter().map(|i| i.mean);
        let (least, most) = (means().fold(f64::INFINITY, f64::min), means().fold(0.0, f64::max));
        let enough = here.iter().all(|i| i.n >= REPLICATIONS_TO_COINCIDE);
        if !enough || highest_low > lowest_high || most - least > COINCIDE * most {
            return None;
        }
        lost += most;
    }
    match others[..] {
        _ if lost == 0.0 => None,
        [] => None,
        [other] if is_nodes(&sweep.axes[other].path) => {
            Some("The number of nodes hardly matters".to_owned())
        }
        [other] => {
            Some(format!("The value of {} hardly matters", name_and_unit(&sweep.axes[other]).0))
        }
        _ => Some("The other parameters hardly matter".to_owned()),
    }
}

/// Draws the time until the last node has a change along the node count, beside its closed form.
pub(super) fn last_node(sweep: &SweepView<'_>) -> Option<Scene> {
    let lag = |p: &PointSummary| p.last_node_lag_s;
    let mut sentence = range(sweep, |p| lag(p).map(|i| i.mean), (" s", " s"))?;
    let closed = sweep.points.iter().any(|p| p.last_node_lag_closed_form_s.is_some());
    let title = "How long until the last node has heard of a change?";
    let Some(x) = along(sweep, is_nodes) else {
        let bars = sweep.points.iter().filter_map(|point| {
            let interval = lag(point)?;
            Some(Bar {
                label: point_label(sweep, point),
                segments: vec![(interval.mean, BLUE, String::new())],
                interval: interval.ci95,
                end: format!("{} s", with_half_width(&interval)),
            })
        });
        return Some(bars::bars(&Bars {
            title: title.to_owned(),
            sentence,
            caption: caption(sweep, "whisker: 95 % interval of the mean"),
            x_title: "from the EndpointSlice write until the last node's rules are live, seconds"
                .to_owned(),
            bars: bars.collect(),
            nothing: "no change reached every node",
        }));
    };
    if closed {
        sentence.push_str(" Points are measured, lines are the closed form");
        let above = |p: &PointSummary| {
            let low = lag(p)?.ci95?.0;
            Some(low > p.last_node_lag_closed_form_s?)
        };
        sentence.push_str(match sweep.points.iter().any(|p| above(p) == Some(true)) {
            true => "; points lie above it where a change waits for an earlier one.",
            false => ".",
        });
    }
    Some(along_lines(
        sweep,
        x,
        &lag,
        Lines {
            title: title.to_owned(),
            sentence,
            caption: caption(sweep, "whisker: 95 % interval of the mean"),
            x_title: sweep.axes[x].title.clone(),
            y_title: "from the EndpointSlice write until the last node's rules are live, seconds"
                .to_owned(),
            mode: if closed { Mode::ClosedForm } else { Mode::Whiskers },
            note: None,
            xs: Vec::new(),
            series: Vec::new(),
        },
    ))
}

/// Draws how long a sync takes along the number of Services, or whatever else makes it long.
pub(super) fn sync(sweep: &SweepView<'_>) -> Option<Scene> {
    let chart = Upkeep {
        title: "How long does a sync of the proxy take?",
        measure: "from the start of a sync until its rules are live, seconds",
        unit: " s",
        nothing: "no proxy synced",
    };
    chart.draw(sweep, &|point| point.sync_s)
}

/// Draws how many rules a connection's first packet passes, where the number of Services varies.
pub(super) fn passed(sweep: &SweepView<'_>) -> Option<Scene> {
    sweep.axes.iter().find(|axis| is_services(&axis.path))?;
    let chart = Upkeep {
        title: "How many rules does the first packet of a connection pass?",
        measure: "rules passed one after the other, on all machines",
        unit: " rules",
        nothing: "no connection was taken",
    };
    chart.draw(sweep, &|point| point.rules)
}

/// A chart of what Services take besides lost attempts.
struct Upkeep {
    title: &'static str,
    measure: &'static str,
    unit: &'static str,
    nothing: &'static str,
}

impl Upkeep {
    fn draw(
        &self,
        sweep: &SweepView<'_>,
        of: &dyn Fn(&PointSummary) -> Option<Interval>,
    ) -> Option<Scene> {
        let sentence = range(sweep, |p| of(p).map(|i| i.mean), (self.unit, self.unit))?;
        let caption = caption(sweep, "whisker: 95 % interval of the mean");
        let Some(x) = along(sweep, is_services) else {
            let bars = sweep.points.iter().filter_map(|point| {
                let interval = of(point)?;
                Some(Bar {
                    label: point_label(sweep, point),
                    segments: vec![(interval.mean, BLUE, String::new())],
                    interval: interval.ci95,
                    end: format!("{}{}", with_half_width(&interval), self.unit),
                })
            });
            return Some(bars::bars(&Bars {
                title: self.title.to_owned(),
                sentence,
                caption,
                x_title: self.measure.to_owned(),
                bars: bars.collect(),
                nothing: self.nothing,
            }));
        };
        let lines = Lines {
            title: self.title.to_owned(),
            sentence,
            caption,
            x_title: sweep.axes[x].title.clone(),
            y_title: self.measure.to_owned(),
            mode: Mode::Whiskers,
            note: None,
            xs: Vec::new(),
            series: Vec::new(),
        };
        Some(along_lines(sweep, x, of, lines))
    }
}

/// Returns `78.3 ± 2.1`, `3.0 (0 to 22.9)` where the interval would reach below 0, or the mean
/// alone without an interval.
pub(crate) fn with_half_width(interval: &Interval) -> String {
    match mean_and_spread(interval) {
        (mean, Some(Spread::Half(half))) => format!("{mean} ± {half}"),
        (mean, Some(Spread::FromZero(high))) => format!("{mean} (0 to {high})"),
        (mean, None) => mean,
    }
}

/// How the interval of a mean is written.
pub(crate) enum Spread {
    /// Half its width.
    Half(String),
    /// Its upper end; the lower one is below 0, where nothing that is counted can be.
    FromZero(String),
}

/// Returns a mean and its interval as text.
pub(crate) fn mean_and_spread(interval: &Interval) -> (String, Option<Spread>) {
    match interval.half_width() {
        Some(half) if half > 0.0 && half > interval.mean => {
            let (mean, _) = mean_and_half(interval.mean, half);
            let (high, _) = mean_and_half(interval.mean + half, half);
            (mean, Some(Spread::FromZero(high)))
        }
        Some(half) if interval.mean > 0.0 => {
            let (mean, half) = mean_and_half(interval.mean, half);
            (mean, Some(Spread::Half(half)))
        }
        _ => (number(interval.mean), None),
    }
}

fn along_lines(
    sweep: &SweepView<'_>,
    x: usize,
    of: &dyn Fn(&PointSummary) -> Option<Interval>,
    mut chart: Lines,
) -> Scene {
    let others: Vec<usize> =
        (0..sweep.axes.len()).filter(|&a| a != x && values(sweep, a).len() > 1).collect();
    for value in values(sweep, x) {
        chart.xs.push((value.value.expect("a numeric axis"), value.display));
    }
    let mut points: Vec<&PointSummary> = sweep.points.iter().collect();
    points.sort_by(|a, b| {
        let key = |p: &PointSummary, axis: usize| p.parameters[axis].value.unwrap_or(0.0);
        let by = others.iter().map(|&axis| key(a, axis).total_cmp(&key(b, axis)));
        by.chain([key(a, x).total_cmp(&key(b, x))])
            .find(|o| o.is_ne())
            .unwrap_or(std::cmp::Ordering::Equal)
    });
    for point in points {
        let label = label_over(sweep, point, &others);
        let at = point.parameters[x].value.expect("a numeric axis");
        let known = chart.series.iter().position(|s| s.label == label);
        let index = known.unwrap_or_else(|| {
            chart.series.push(Series { label, points: Vec::new(), closed_form: Vec::new() });
            chart.series.len() - 1
        });
        let series = &mut chart.series[index];
        if let Some(i) = of(point) {
            series.points.push(LinePoint { x: at, mean: i.mean, interval: i.ci95 });
        }
        if chart.mode == Mode::ClosedForm {
            let closed = point.last_node_lag_closed_form_s;
            series.closed_form.extend(closed.map(|y| (at, y)));
        }
    }
    chart.series.retain(|s| !s.points.is_empty());
    let all = chart.series.len();
    if all > SERIES.len() {
        let last = SERIES.len() - 1;
        chart.series = (0..=last).map(|i| chart.series[i * (all - 1) / last].clone()).collect();
        chart.sentence.push_str(&format!(" {} of {all} lines are drawn.", SERIES.len()));
    }
    lines::lines(&chart)
}

/// Returns the causes that lost anything, the most frequent first.
pub(super) fn causes_by_weight(of: impl Fn(usize) -> f64) -> Vec<(usize, Cause)> {
    let mut causes: Vec<(usize, Cause)> =
        Cause::ALL.into_iter().enumerate().filter(|&(i, _)| of(i) > 0.0).collect();
    causes.sort_by(|a, b| of(b.0).total_cmp(&of(a.0)));
    causes
}
