//! What all charts have: a title, a sentence, a caption, axes.

use super::axis::{Scale, Tick};
use super::font;
use super::scene::{Anchor, Point, Scene};
use super::style::{AXIS, FAINT, GRID, INK, SMALL, SUBTITLE, TEXT, TITLE, WHITE};

pub(super) const WIDTH: u32 = 960;
pub(super) const HEIGHT: u32 = 600;
const MARGIN: f64 = 28.0;

/// A rectangle of the drawing.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Area {
    pub(super) left: f64,
    pub(super) top: f64,
    pub(super) right: f64,
    pub(super) bottom: f64,
}

impl Area {
    pub(super) fn centre(&self) -> Point {
        (f64::midpoint(self.left, self.right), f64::midpoint(self.top, self.bottom))
    }
}

/// Returns the height of a chart with a row for each of `rows` things.
pub(super) fn height_for(rows: usize) -> u32 {
    let rows = u32::try_from(rows).unwrap_or(u32::MAX / 64);
    (230 + 46 * rows).min(HEIGHT.max(230 + 19 * rows))
}

/// Starts a chart: title and sentence at the top, caption at the bottom. Returns the area that is
/// left between them.
pub(super) fn sheet(title: &str, sentence: &str, caption: &str, height: u32) -> (Scene, Area) {
    let mut scene = Scene::new(title, WIDTH, height);
    let room = f64::from(WIDTH) - 2.0 * MARGIN;
    let mut y = 32.0;
    for line in font::wrap(title, TITLE, room, 2) {
        scene.text((MARGIN, y), &line, TITLE, INK, Anchor::Start);
        y += 27.0;
    }
    for line in font::wrap(sentence, SUBTITLE, room, 2) {
        scene.text((MARGIN, y), &line, SUBTITLE, FAINT, Anchor::Start);
        y += 20.0;
    }
    let bottom = f64::from(height) - 18.0;
    let caption = font::elide(caption, SMALL, room);
    scene.text((MARGIN, bottom), &caption, SMALL, FAINT, Anchor::Start);
    let area = Area {
        left: MARGIN,
        top: y + 8.0,
        right: f64::from(WIDTH) - MARGIN,
        bottom: bottom - 20.0,
    };
    (scene, area)
}

/// Returns the room that the labels of a vertical axis need.
pub(super) fn label_room(ticks: &[Tick]) -> f64 {
    ticks.iter().map(|t| font::width(&t.label, TEXT)).fold(0.0, f64::max) + 10.0
}

/// Draws a vertical axis: a grid line and a label at each tick, and the title above.
pub(super) fn vertical_axis(
    scene: &mut Scene,
    area: &Area,
    scale: &Scale,
    count: usize,
    title: &str,
) {
    for tick in scale.ticks(count) {
        scene.line(&[(area.left, tick.at), (area.right, tick.at)], GRID, 1.0);
        scene.text((area.left - 8.0, tick.at), &tick.label, TEXT, FAINT, Anchor::End);
    }
    scene.text((MARGIN, area.top - 18.0), title, TEXT, INK, Anchor::Start);
}

/// Draws a horizontal axis: a label at each tick that has room for one, the title below.
pub(super) fn horizontal_axis(scene: &mut Scene, area: &Area, ticks: &[Tick], title: &str) {
    scene.line(&[(area.left, area.bottom), (area.right, area.bottom)], AXIS, 1.0);
    let shown = without_overlap(ticks);
    for tick in ticks {
        scene.line(&[(tick.at, area.bottom), (tick.at, area.bottom + 4.0)], AXIS, 1.0);
    }
    for tick in shown {
        scene.text((label_at(tick), area.bottom + 16.0), &tick.label, TEXT, FAINT, Anchor::Middle);
    }
    let middle = f64::midpoint(area.left, area.right);
    scene.text((middle, area.bottom + 37.0), title, TEXT, INK, Anchor::Middle);
}

/// Writes what a bar comes to, beside its end; grid lines make room.
pub(super) fn end_text(scene: &mut Scene, (x, y): Point, text: &str) {
    let width = font::width(text, TEXT);
    scene.rect((x - 2.0, y - 8.0), (x + width, y + 8.0), WHITE);
    scene.text((x, y), text, TEXT, INK, Anchor::Start);
}

/// Draws faint vertical lines at ticks.
pub(super) fn vertical_grid(scene: &mut Scene, area: &Area, ticks: &[Tick]) {
    for tick in ticks {
        scene.line(&[(tick.at, area.top), (tick.at, area.bottom)], GRID, 1.0);
    }
}

/// Returns the ticks whose labels do not touch: the last one always, then from the first on.
fn without_overlap(ticks: &[Tick]) -> Vec<&Tick> {
    let half = |t: &Tick| label_half(t) + 4.0;
    let mut ticks: Vec<&Tick> = ticks.iter().collect();
    ticks.sort_by(|a, b| a.at.total_cmp(&b.at));
    let Some(last) = ticks.pop() else {
        return Vec::new();
    };
    let mut shown: Vec<&Tick> = Vec::new();
    for tick in ticks {
        let clear =
            shown.last().is_none_or(|s| label_at(s) + half(s) < label_at(tick) - half(tick));
        if clear && label_at(tick) + half(tick) < label_at(last) - half(last) {
            shown.push(tick);
        }
    }
    shown.push(last);
    shown
}

fn label_half(tick: &Tick) -> f64 {
    font::width(&tick.label, TEXT) / 2.0
}

/// Returns where a label has its middle: at its tick, but within the chart.
fn label_at(tick: &Tick) -> f64 {
    let half = label_half(tick) + 4.0;
    tick.at.min(f64::from(WIDTH) - half).max(half)
}

/// Moves labels apart: returns their heights, at least `gap` from each other and within
/// `top..bottom` where that is possible, in the order of `wanted`.
pub(super) fn spread(wanted: &[f64], gap: f64, top: f64, bottom: f64) -> Vec<f64> {
    let mut order: Vec<usize> = (0..wanted.len()).collect();
    order.sort_by(|&a, &b| wanted[a].total_cmp(&wanted[b]));
    // What is nearly level keeps its order.
    for level in order.chunk_by_mut(|&a, &b| wanted[b] - wanted[a] < gap / 2.0) {
        level.sort_unstable();
    }
    let mut placed = vec![0.0; wanted.len()];
    let mut least = top;
    for &i in &order {
        placed[i] = wanted[i].max(least);
        least = placed[i] + gap;
    }
    let mut most = bottom;
    for &i in order.iter().rev() {
        placed[i] = placed[i].min(most);
        most = placed[i] - gap;
    }
    placed
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_spread() {
        assert_eq!(spread(&[10.0, 10.0, 50.0], 15.0, 0.0, 100.0), [10.0, 25.0, 50.0]);
        assert_eq!(spread(&[98.0, 99.0], 15.0, 0.0, 100.0), [85.0, 100.0]);
        assert_eq!(spread(&[52.0, 50.0, 51.0], 15.0, 0.0, 100.0), [52.0, 67.0, 82.0]);
        assert_eq!(spread(&[], 15.0, 0.0, 100.0), Vec::<f64>::new());
    }

    #[test]
    fn crowded_ticks_keep_first_and_last() {
        let ticks: Vec<Tick> =
            (0..100).map(|i| Tick { at: f64::from(i), label: i.to_string() }).collect();
        let shown = without_overlap(&ticks);
        assert_eq!(shown.first().unwrap().label, "0");
        assert_eq!(shown.last().unwrap().label, "99");
        assert!(shown.len() < 10);
    }
}
