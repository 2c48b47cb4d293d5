//! A run over time: attempts, losses by cause and stale nodes, in panels that share the axis.

use std::time::Duration;

use sim_core::record::Cause;
use sim_core::time::SimTime;

use super::RunView;
use super::axis::Scale;
use super::font;
use super::number_whole;
use super::scene::{Anchor, Point, Scene};
use super::sheet::{self, Area};
use super::style::{FAINT, INK, Paint, SHADE, SMALL, cause_paint};
use super::sweep::causes_by_weight;
use crate::collect::{RunRecords, TimelineBin};

/// More bins than this are merged for the drawing.
const MOST_BINS: usize = 400;

/// At most so many causes are told apart.
const MOST_CAUSES: usize = 5;

const OTHER: Paint = Paint::rgb(190, 190, 190);

/// Draws a run's timeline, if it was recorded.
pub(super) fn timeline(view: &RunView<'_>) -> Option<Scene> {
    let records = view.records;
    let bins = merged(&records.timeline);
    let (first, last) = (bins.first()?, bins.last()?);
    let width = crate::summary::duration(first.end.saturating_since(first.start));
    let title = "When are attempts lost, and how many nodes are stale then?";
    let (mut scene, mut area) =
        sheet::sheet(title, &sentence(records), &caption(view), sheet::HEIGHT);
    area.bottom -= 50.0;

    let causes =
        causes_by_weight(|c| bins.iter().map(|b| b.lost.get(Cause::ALL[c])).sum::<u64>() as f64);
    let attempts = bins.iter().map(|b| b.attempts).max().unwrap_or(0) as f64;
    let lost = bins.iter().map(|b| b.lost.total()).max().unwrap_or(0) as f64;
    let stale = bins.iter().map(|b| b.stale_nodes).max().unwrap_or(0) as f64;
    let titles = [
        format!("attempts, per {width}"),
        format!("those of them that were lost, per {width}"),
        "nodes with a rule for a Pod that has stopped accepting".to_owned(),
    ];
    let maxima = [attempts, lost, stale];
    let room = maxima
        .iter()
        .map(|&m| sheet::label_room(&Scale::from_zero(m, 3, (0.0, 1.0)).ticks(3)))
        .fold(0.0, f64::max);
    area.left += room;
    let gap = 38.0;
    let high = (area.bottom - area.top - 3.0 * gap) / 3.0;
    let end = last.end.max(first.end);
    let x = Scale::linear((0.0, end.as_secs_f64()), (area.left, area.right));
    let spans = union(records, end);
    let mut panel = area;
    for (i, (title, max)) in titles.iter().zip(maxima).enumerate() {
        panel.top = area.top + gap * (i as f64 + 1.0) + high * i as f64;
        panel.bottom = panel.top + high;
        for &(from, until) in &spans {
            let (from, until) = (x.at(from), x.at(until));
            scene.rect((from, panel.top), (until.max(from + 1.0), panel.bottom), SHADE);
        }
        let y = Scale::from_zero(max, 3, (panel.bottom, panel.top));
        let ticks = if max == 0.0 { 1 } else { 3 };
        sheet::vertical_axis(&mut scene, &panel, &y, ticks, title);
        match i {
            0 => steps(&mut scene, whole(&bins, records), |b| b.attempts as f64, &x, &y, FAINT),
            1 => stacked(&mut scene, &bins, &causes, &x, &y),
            _ => steps(&mut scene, &bins, |b| b.stale_nodes as f64, &x, &y, FAINT),
        }
        if i == 1 {
            cause_key(&mut scene, &panel, &causes, &bins, title);
        }
        if max == 0.0 {
            let nothing = ["no attempt", "no attempt was lost", "no node was stale"][i];
            scene.text(panel.centre(), nothing, 17.0, FAINT, Anchor::Middle);
        }
        sheet::horizontal_axis(&mut scene, &panel, &[], "");
    }
    if !spans.is_empty() {
        shade_key(&mut scene, &area, area.top + gap - 18.0);
    }
    sheet::horizontal_axis(&mut scene, &panel, &x.ticks(10), "simulated time, seconds");
    Some(scene)
}

fn sentence(records: &RunRecords) -> String {
    let lost = records.run.inside.lost.total() + records.run.outside.lost.total();
    let attempts = records.run.inside.attempts + records.run.outside.attempts;
    let windows = match records.windows.len() {
        0 => "any deletion window".to_owned(),
        1 => "the only deletion window".to_owned(),
        n => format!("the {n} deletion windows"),
    };
    if lost == 0 {
        let attempts = number_whole(attempts);
        return match records.windows.len() {
            0 => format!("None of {attempts} attempts was lost, and no deletion window opened."),
            _ => format!("None of {attempts} attempts was lost, in {windows} or outside."),
        };
    }
    let outside = records.run.outside.lost.total();
    let outside = match outside {
        0 => "none of them outside".to_owned(),
        n => format!("{} of them outside", number_whole(n)),
    };
    format!(
        "{} of {} attempts {} lost, {outside} {windows}.",
        number_whole(lost),
        number_whole(attempts),
        if lost == 1 { "was" } else { "were" },
    )
}

pub(super) fn caption(view: &RunView<'_>) -> String {
    format!("scenario {} · seed {} · replication {}", view.scenario, view.seed, view.run)
}

/// Returns the bins without the last one, if the run ended in its middle: few attempts in a part
/// of a bin look like a drop.
fn whole<'b>(bins: &'b [TimelineBin], records: &RunRecords) -> &'b [TimelineBin] {
    match bins {
        [first, .., last] => {
            let width = |bin: &TimelineBin| bin.end.saturating_since(bin.start);
            let is_part = last.end > records.run.end || width(last) < width(first);
            &bins[..bins.len() - usize::from(is_part)]
        }
        _ => bins,
    }
}

/// Joins neighbouring bins until they can be seen.
fn merged(bins: &[TimelineBin]) -> Vec<TimelineBin> {
    let every = bins.len().div_ceil(MOST_BINS).max(1);
    bins.chunks(every)
        .map(|chunk| {
            let mut bin = chunk[0].clone();
            for next in &chunk[1..] {
                bin.end = next.end;
                bin.attempts += next.attempts;
                bin.lost.merge(&next.lost);
                bin.stale_nodes = bin.stale_nodes.max(next.stale_nodes);
            }
            bin
        })
        .collect()
}

/// Returns the times, in seconds, at which some window was open.
fn union(records: &RunRecords, end: SimTime) -> Vec<Point> {
    let mut spans: Vec<Point> = records
        .windows
        .iter()
        .map(|w| (w.opened.as_secs_f64(), w.closed.unwrap_or(end).as_secs_f64()))
        .collect();
    spans.sort_by(|a, b| a.0.total_cmp(&b.0));
    let mut union: Vec<Point> = Vec::new();
    for span in spans {
        match union.last_mut() {
            Some(last) if span.0 <= last.1 => last.1 = last.1.max(span.1),
            _ => union.push(span),
        }
    }
    union
}

fn steps(
    scene: &mut Scene,
    bins: &[TimelineBin],
    of: impl Fn(&TimelineBin) -> f64,
    x: &Scale,
    y: &Scale,
    paint: Paint,
) {
    let mut line = Vec::new();
    for bin in bins {
        let height = y.at(of(bin));
        line.push((x.at(bin.start.as_secs_f64()), height));
        line.push((x.at(bin.end.as_secs_f64()), height));
    }
    line.dedup();
    if let (Some(first), Some(last)) = (line.first(), line.last()) {
        let floor = [(last.0, y.at(0.0)), (first.0, y.at(0.0))];
        let area: Vec<Point> = line.iter().copied().chain(floor).collect();
        scene.polygon(&area, paint.alpha(0.16));
    }
    scene.line(&line, paint, 1.5);
}

fn stacked(
    scene: &mut Scene,
    bins: &[TimelineBin],
    causes: &[(usize, Cause)],
    x: &Scale,
    y: &Scale,
) {
    for bin in bins.iter().filter(|b| b.lost.total() > 0) {
        let (left, right) = (x.at(bin.start.as_secs_f64()), x.at(bin.end.as_secs_f64()));
        let right = if right - left > 4.0 { right - 1.0 } else { right };
        let mut from = 0;
        for (rank, &(_, cause)) in causes.iter().enumerate() {
            let paint = if rank < MOST_CAUSES { cause_paint(cause) } else { OTHER };
            let until = from + bin.lost.get(cause);
            if until > from {
                let (top, bottom) = (y.at(until as f64), y.at(from as f64));
                scene.rect((left, top), (right.max(left + 0.75), bottom), paint);
            }
            from = until;
        }
    }
}

/// Names the causes beside the panel's title, with what each lost.
fn cause_key(
    scene: &mut Scene,
    panel: &Area,
    causes: &[(usize, Cause)],
    bins: &[TimelineBin],
    title: &str,
) {
    let lost = |cause: Cause| bins.iter().map(|b| b.lost.get(cause)).sum::<u64>();
    let mut entries: Vec<(Paint, String)> = causes
        .iter()
        .take(MOST_CAUSES)
        .map(|&(_, c)| (cause_paint(c), format!("{c} {}", number_whole(lost(c)))))
        .collect();
    let rest: u64 = causes.iter().skip(MOST_CAUSES).map(|&(_, c)| lost(c)).sum();
    if rest > 0 {
        entries.push((OTHER, format!("other {}", number_whole(rest))));
    }
    let width: f64 =
        entries.iter().map(|(_, name)| 32.0 + font::width(name, SMALL)).sum::<f64>() - 14.0;
    let least = 28.0 + font::width(title, super::style::TEXT) + 16.0;
    let left = (panel.right - width).max(least);
    super::bars::key(scene, left, panel.top - 18.0, panel.right + 1.0, &entries);
}

fn shade_key(scene: &mut Scene, area: &Area, y: f64) {
    let name = "a deletion window is open";
    let left = area.right - font::width(name, SMALL) - 16.0;
    scene.rect((left, y - 5.5), (left + 11.0, y + 5.5), SHADE);
    scene.text((left + 16.0, y), name, SMALL, INK, Anchor::Start);
}

/// Returns a bin width for a run of this length that gives a readable timeline: a round one, at
/// most 300 bins.
pub fn bin_width(run: Duration) -> Duration {
    let least = run.as_nanos().div_ceil(300).max(1);
    let mut unit: u128 = 1;
    loop {
        for digit in [1, 2, 5] {
            if unit * digit >= least {
                return Duration::from_nanos(u64::try_from(unit * digit).unwrap_or(u64::MAX));
            }
        }
        unit *= 10;
    }
}
