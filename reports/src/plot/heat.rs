//! Loss over two parameters, the numbers in the cells.

use super::SweepView;
use super::font;
use super::scene::{Anchor, Point, Scene};
use super::sheet;
use super::style::{FAINT, INK, Paint, TEXT};
use super::sweep::{
    Spread, caption, label_over, loss_axis, loss_sentence, mean_and_spread, values,
};
use crate::stats::{Interval, PointSummary};

/// More cells than this in a row or a column have no room for numbers.
const MOST: usize = 24;

/// Draws a heat map, if two parameters vary.
pub(super) fn heat(sweep: &SweepView<'_>) -> Option<Scene> {
    let varied: Vec<usize> =
        (0..sweep.axes.len()).filter(|&a| values(sweep, a).len() > 1).collect();
    if varied.len() < 2 {
        return None;
    }
    let x = loss_axis(sweep).unwrap_or(varied[0]);
    let others: Vec<usize> = varied.into_iter().filter(|&a| a != x).collect();
    let columns = values(sweep, x);
    let mut rows: Vec<String> = Vec::new();
    for value in values(sweep, others[0]) {
        for point in
            sweep.points.iter().filter(|p| p.parameters[others[0]].display == value.display)
        {
            let label = label_over(sweep, point, &others);
            if !rows.contains(&label) {
                rows.push(label);
            }
        }
    }
    let mut sentence = loss_sentence(sweep);
    sentence.push_str(" Cells hold the mean and its 95 % interval.");
    let all = rows.len();
    if all > MOST {
        rows.truncate(MOST);
        sentence.push_str(&format!(" {MOST} of {all} rows are drawn."));
    }
    let title = "How many attempts does one Pod deletion lose, and where does it get bad?";
    let (mut scene, mut area) = sheet::sheet(title, &sentence, &caption(sweep, ""), sheet::HEIGHT);
    let label_room = rows.iter().map(|r| font::width(r, TEXT)).fold(0.0, f64::max).min(260.0);
    area.left += label_room + 12.0;
    area.top += 4.0;
    area.bottom -= 50.0;
    let wide = (area.right - area.left) / columns.len() as f64;
    let high = (area.bottom - area.top) / rows.len() as f64;

    let find = |column: &str, row: &str| -> Option<Interval> {
        let here = |p: &&PointSummary| {
            p.parameters[x].display == column && label_over(sweep, p, &others) == row
        };
        sweep.points.iter().find(here)?.lost_per_window
    };
    let known = || sweep.points.iter().filter_map(|p| p.lost_per_window.as_ref());
    let writing = Writing::of(known(), wide, high);
    let max = known().map(|i| i.mean).fold(0.0, f64::max);
    for (r, row) in rows.iter().enumerate() {
        // The first value lies at the bottom, as on an axis.
        let bottom = area.bottom - high * r as f64;
        let middle = bottom - high / 2.0;
        let label = font::elide(row, TEXT, label_room);
        scene.text((area.left - 10.0, middle), &label, TEXT, INK, Anchor::End);
        for (c, column) in columns.iter().enumerate() {
            let left = area.left + wide * c as f64;
            let cell = find(&column.display, row);
            let paint = cell.map_or(Paint::rgb(255, 255, 255), |i| shade(i.mean, max));
            let gap = if wide.min(high) > 12.0 { 1.0 } else { 0.0 };
            scene.rect((left + gap, bottom - high + gap), (left + wide - gap, bottom - gap), paint);
            let at = (left + wide / 2.0, middle);
            writing.draw(&mut scene, at, cell, paint);
        }
    }
    let ticks: Vec<super::axis::Tick> = columns
        .iter()
        .enumerate()
        .map(|(c, v)| super::axis::Tick {
            at: area.left + wide * (c as f64 + 0.5),
            label: font::elide(&v.display, TEXT, (wide - 8.0).max(60.0)),
        })
        .collect();
    sheet::horizontal_axis(&mut scene, &area, &ticks, &sweep.axes[x].title);
    Some(scene)
}

/// Returns a cell's mean and interval as text.
fn texts(interval: &Interval) -> (String, Option<String>) {
    let (mean, spread) = mean_and_spread(interval);
    let spread = spread.map(|spread| match spread {
        Spread::Half(half) => format!("± {half}"),
        Spread::FromZero(high) => format!("0 to {high}"),
    });
    (mean, spread)
}

/// How all cells are written: larger text in some would say that they matter more.
#[derive(Clone, Copy)]
struct Writing {
    /// The mean's size, if it fits at all; else the colour has to do.
    em: Option<f64>,
    halves: bool,
}

impl Writing {
    fn of<'a>(cells: impl Iterator<Item = &'a Interval>, wide: f64, high: f64) -> Writing {
        let widest = |all: &[String], em: f64| {
            all.iter().map(|text| font::width(text, em)).fold(0.0, f64::max)
        };
        let (means, halves): (Vec<String>, Vec<Option<String>>) = cells.map(texts).unzip();
        let halves: Vec<String> = halves.into_iter().flatten().collect();
        let room = wide * 0.86;
        let fits = |em: &f64| widest(&means, *em) < room && em * 1.3 < high;
        Writing {
            em: [22.0, 18.0, 15.0, 12.0, 10.0].into_iter().find(fits),
            halves: high > 42.0 && widest(&halves, TEXT) < room,
        }
    }

    fn draw(self, scene: &mut Scene, (x, y): Point, cell: Option<Interval>, paint: Paint) {
        let Some(interval) = cell else {
            scene.text((x, y), "–", TEXT, FAINT, Anchor::Middle);
            return;
        };
        let Some(em) = self.em else {
            return;
        };
        let ink = paint.ink_on();
        let (mean, half) = texts(&interval);
        match half.filter(|_| self.halves) {
            Some(half) => {
                scene.text((x, y - 9.0), &mean, em, ink, Anchor::Middle);
                scene.text((x, y + 12.0), &half, TEXT, ink, Anchor::Middle);
            }
            None => scene.text((x, y), &mean, em, ink, Anchor::Middle),
        }
    }
}

/// From white at 0 through blue to nearly black: lightness alone tells more from less. By the
/// square root, so that small losses are not all white.
fn shade(value: f64, max: f64) -> Paint {
    let share = if max > 0.0 { (value / max).clamp(0.0, 1.0).sqrt() } else { 0.0 };
    let stops = [(247, 249, 252), (158, 202, 225), (33, 113, 181), (8, 38, 84)];
    let at = share * (stops.len() - 1) as f64;
    let below = (at.floor() as usize).min(stops.len() - 2);
    let part = at - below as f64;
    let mix = |a: i32, b: i32| (f64::from(a) + part * f64::from(b - a)).round() as u8;
    let (a, b) = (stops[below], stops[below + 1]);
    Paint::rgb(mix(a.0, b.0), mix(a.1, b.1), mix(a.2, b.2))
}
