//! Horizontal bars: a row for each point, stacked by kind.

use super::axis::Scale;
use super::font;
use super::scene::{Anchor, Scene};
use super::sheet;
use super::style::{FAINT, INK, Paint, SMALL, TEXT, WHITE};

/// A row.
#[derive(Clone, Debug)]
pub(super) struct Bar {
    pub(super) label: String,
    /// Length, colour and name of each part, from the left; the same parts in every row.
    pub(super) segments: Vec<(f64, Paint, String)>,
    /// The interval of the whole length.
    pub(super) interval: Option<(f64, f64)>,
    /// What is written at its end.
    pub(super) end: String,
}

impl Bar {
    fn length(&self) -> f64 {
        self.segments.iter().map(|s| s.0).sum()
    }
}

#[derive(Clone, Debug)]
pub(super) struct Bars {
    pub(super) title: String,
    pub(super) sentence: String,
    pub(super) caption: String,
    pub(super) x_title: String,
    pub(super) bars: Vec<Bar>,
    /// What is said where there is no row.
    pub(super) nothing: &'static str,
}

/// More rows than this are not read; the longest are drawn.
const MOST: usize = 40;

pub(super) fn bars(chart: &Bars) -> Scene {
    let mut rows: Vec<&Bar> = chart.bars.iter().collect();
    let mut sentence = chart.sentence.clone();
    if rows.len() > MOST {
        let mut lengths: Vec<f64> = rows.iter().map(|b| b.length()).collect();
        lengths.sort_by(|a, b| b.total_cmp(a));
        let least = lengths[MOST - 1];
        rows.retain(|b| b.length() >= least);
        rows.truncate(MOST);
        sentence.push_str(&format!(" The {MOST} largest of {} are drawn.", chart.bars.len()));
    }
    let height = sheet::height_for(rows.len());
    let (mut scene, mut area) = sheet::sheet(&chart.title, &sentence, &chart.caption, height);
    area.bottom -= 50.0;
    if rows.is_empty() {
        scene.text(area.centre(), chart.nothing, 20.0, FAINT, Anchor::Middle);
        return scene;
    }
    area.top += 10.0;

    let label_room = rows.iter().map(|b| font::width(&b.label, TEXT)).fold(0.0, f64::max);
    let label_room = label_room.min(300.0);
    let end_room = rows.iter().map(|b| font::width(&b.end, TEXT)).fold(0.0, f64::max);
    area.left += label_room + 12.0;
    area.right -= end_room + 14.0;
    let longest = |b: &&Bar| b.interval.map_or(b.length(), |i| i.1.max(b.length()));
    let max = rows.iter().map(longest).fold(0.0, f64::max);
    let scale = Scale::from_zero(max, 6, (area.left, area.right));

    let kinds = kinds(&rows);
    if !kinds.is_empty() {
        key(&mut scene, area.left, area.top, area.right, &kinds);
        area.top += 28.0;
    }
    let ticks = scale.ticks(6);
    let pitch = ((area.bottom - area.top - 6.0) / rows.len() as f64).min(46.0);
    let top = area.top;
    area.bottom = top + pitch * rows.len() as f64 + 6.0;
    sheet::vertical_grid(&mut scene, &area, &ticks);
    sheet::horizontal_axis(&mut scene, &area, &ticks, &chart.x_title);
    let thick = (pitch * 0.72).min(26.0);
    for (i, row) in rows.iter().enumerate() {
        let y = top + pitch * (i as f64 + 0.5);
        let label = font::elide(&row.label, TEXT, label_room);
        scene.text((area.left - 10.0, y), &label, TEXT, INK, Anchor::End);
        let mut from = 0.0;
        for (length, paint, _) in &row.segments {
            let (left, right) = (scale.at(from), scale.at(from + length));
            from += length;
            if *length <= 0.0 {
                continue;
            }
            scene.rect((left, y - thick / 2.0), (right, y + thick / 2.0), *paint);
            if right - left > 3.0 && row.segments.len() > 1 {
                scene.rect((right - 1.0, y - thick / 2.0), (right, y + thick / 2.0), WHITE);
            }
        }
        let mut end = scale.at(from);
        if let Some((low, high)) = row.interval {
            let (low, high) = (scale.at(low), scale.at(high));
            if high - low > 2.0 {
                scene.line(&[(low, y), (high, y)], INK, 1.25);
                for at in [low, high] {
                    scene.line(&[(at, y - 4.0), (at, y + 4.0)], INK, 1.25);
                }
            }
            end = end.max(high);
        }
        sheet::end_text(&mut scene, (end + 8.0, y), &row.end);
    }
    scene
}

/// Returns the kinds that there are, in the order of the stack.
fn kinds(rows: &[&Bar]) -> Vec<(Paint, String)> {
    let mut kinds: Vec<(Paint, String)> = Vec::new();
    let Some(first) = rows.first() else {
        return kinds;
    };
    for (i, (_, paint, name)) in first.segments.iter().enumerate() {
        let is_there = rows.iter().any(|row| row.segments.get(i).is_some_and(|s| s.0 > 0.0));
        if is_there && !name.is_empty() {
            kinds.push((*paint, name.clone()));
        }
    }
    kinds
}

/// Draws coloured squares and their names in a row.
pub(super) fn key(scene: &mut Scene, left: f64, y: f64, right: f64, entries: &[(Paint, String)]) {
    let mut x = left;
    for (paint, name) in entries {
        let end = x + 18.0 + font::width(name, SMALL);
        if end > right {
            scene.text((x, y), "…", SMALL, FAINT, Anchor::Start);
            return;
        }
        scene.rect((x, y - 5.5), (x + 11.0, y + 5.5), *paint);
        scene.text((x + 16.0, y), name, SMALL, INK, Anchor::Start);
        x = end + 14.0;
    }
}
