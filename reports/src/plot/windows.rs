//! The deletion windows of a run, a bar each, all beginning at their deletion.

use std::time::Duration;

use sim_core::record::Window;
use sim_core::time::SimTime;

use super::RunView;
use super::axis::Scale;
use super::font;
use super::number_whole;
use super::scene::{Anchor, Scene};
use super::sheet;
use super::style::{BLUE, FAINT, GREEN, INK, Marker, ORANGE, Paint, SMALL, TEXT, VERMILLION};
use super::timeline::caption;

/// More windows than this are not read; those that lost most are drawn.
const MOST: usize = 40;

const OPEN: Paint = Paint::rgb(214, 222, 230);

pub(super) fn windows(view: &RunView<'_>) -> Scene {
    let records = view.records;
    let mut rows: Vec<&Window> = records.windows.iter().collect();
    let mut sentence = sentence(&records.windows);
    if rows.len() > MOST {
        rows.sort_by_key(|w| std::cmp::Reverse(w.lost.total()));
        rows.truncate(MOST);
        rows.sort_by_key(|w| w.window);
        sentence.push_str(&format!(
            " Drawn are the {MOST} windows of {} that lost most.",
            records.windows.len()
        ));
    }
    let height = sheet::height_for(rows.len());
    let title = "How long do nodes still send to each Pod that is gone, and what is lost?";
    let (mut scene, mut area) = sheet::sheet(title, &sentence, &caption(view), height);
    area.bottom -= 50.0;
    if rows.is_empty() {
        scene.text(area.centre(), "no deletion window was opened", 20.0, FAINT, Anchor::Middle);
        return scene;
    }
    key(&mut scene, area.left, area.top + 8.0);
    area.top += 30.0;

    let names: Vec<(String, String)> = rows.iter().map(|w| names(w, &records.windows)).collect();
    let when_room = names.iter().map(|n| font::width(&n.1, SMALL)).fold(0.0, f64::max);
    let name_room = names.iter().map(|n| font::width(&n.0, TEXT)).fold(0.0, f64::max).min(230.0);
    let ends: Vec<String> = rows.iter().map(|w| end_text(w)).collect();
    let end_room = ends.iter().map(|e| font::width(e, TEXT)).fold(0.0, f64::max).min(250.0);
    let when_right = area.left + name_room + 12.0 + when_room;
    area.left = when_right + 14.0;
    area.right -= end_room + 14.0;
    let until = |w: &Window| w.closed.unwrap_or(records.run.end.max(w.opened));
    let since = |w: &Window, at: SimTime| at.saturating_since(w.opened).as_secs_f64();
    // A window that never closed reaches beyond the axis rather than crowding out the others.
    let closed = rows.iter().any(|w| w.closed.is_some());
    let end = |w: &Window| {
        if closed { w.closed.unwrap_or(w.opened) } else { until(w) }
    };
    let longest = rows.iter().map(|w| since(w, latest(w, end(w)))).fold(0.0, f64::max);
    let x = Scale::from_zero(longest, 6, (area.left, area.right));
    let pitch = ((area.bottom - area.top - 6.0) / rows.len() as f64).min(60.0);
    area.bottom = area.top + pitch * rows.len() as f64 + 6.0;
    let ticks = x.ticks(6);
    sheet::vertical_grid(&mut scene, &area, &ticks);
    sheet::horizontal_axis(&mut scene, &area, &ticks, "since the Pod's deletion, seconds");

    let thick = (pitch * 0.55).min(20.0);
    for (i, window) in rows.iter().enumerate() {
        let y = area.top + pitch * (i as f64 + 0.5);
        let name = font::elide(&names[i].0, TEXT, name_room);
        scene.text((when_right - when_room - 12.0, y), &name, TEXT, INK, Anchor::End);
        scene.text((when_right, y), &names[i].1, SMALL, FAINT, Anchor::End);
        let place = |at: SimTime| x.at(since(window, at));
        let end = place(until(window));
        scene.rect((x.at(0.0), y - thick / 2.0), (end, y + thick / 2.0), OPEN);
        if let Some(stopped) = window.stopped_accepting {
            let right = window.last_node.unwrap_or(until(window));
            if right > stopped {
                let (left, right) = (place(stopped), place(right));
                scene.rect((left, y - thick / 2.0), (right, y + thick / 2.0), ORANGE.alpha(0.75));
            }
        }
        let size = (thick * 0.36).clamp(3.0, 5.0);
        for (at, marker, paint) in marks(window) {
            scene.marker((place(at), y), marker, size, paint);
        }
        let mut right = end.max(place(latest(window, window.opened)) + size);
        if window.closed.is_none() {
            scene.text((end + 3.0, y), "…", TEXT, INK, Anchor::Start);
            right = right.max(end + 14.0);
        }
        let text = font::elide(&ends[i], TEXT, end_room);
        sheet::end_text(&mut scene, (right + 7.0, y), &text);
    }
    scene
}

fn marks(window: &Window) -> impl Iterator<Item = (SimTime, Marker, Paint)> {
    let mark = |at: Option<SimTime>, marker, paint| at.map(|at| (at, marker, paint));
    [
        mark(window.endpoints_changed, Marker::Diamond, BLUE),
        mark(window.last_node, Marker::Circle, GREEN),
        mark(window.stopped_accepting, Marker::Cross, VERMILLION),
    ]
    .into_iter()
    .flatten()
}

fn latest(window: &Window, least: SimTime) -> SimTime {
    marks(window).map(|m| m.0).fold(least, SimTime::max)
}

fn sentence(windows: &[Window]) -> String {
    let lost: u64 = windows.iter().map(|w| w.lost.total()).sum();
    let stale = windows.iter().filter_map(|w| w.stale_max_s).fold(0.0, f64::max);
    let until = |s: f64| Duration::try_from_secs_f64(s).map(crate::summary::duration);
    let longest = match until(stale) {
        Ok(longest) if stale > 0.0 => {
            format!("some node's rules named a Pod that was gone for up to {longest}")
        }
        _ => "no node's rules named a Pod that was gone".to_owned(),
    };
    let windows = match windows.len() {
        0 => return String::new(),
        1 => "the only window".to_owned(),
        n => format!("{n} windows"),
    };
    let lost = match lost {
        0 => "No attempt was lost".to_owned(),
        1 => "1 attempt was lost".to_owned(),
        n => format!("{} attempts were lost", number_whole(n)),
    };
    format!("{lost} in {windows}; {longest}.")
}

/// Returns the Pod (and the Service, if there are several) and when it was deleted.
fn names(window: &Window, all: &[Window]) -> (String, String) {
    let several = all.iter().any(|w| w.service != all[0].service);
    let name = if several {
        format!("{} ({})", window.pod, window.service)
    } else {
        window.pod.to_string()
    };
    (name, format!("at {:.1} s", window.opened.as_secs_f64()))
}

fn end_text(window: &Window) -> String {
    let lost = window.lost.total();
    let open = if window.closed.is_none() { ", not closed" } else { "" };
    format!("{} lost{open}", number_whole(lost))
}

fn key(scene: &mut Scene, left: f64, y: f64) {
    let mut x = left;
    let name = |scene: &mut Scene, x: &mut f64, text: &str| {
        scene.text((*x + 17.0, y), text, SMALL, INK, Anchor::Start);
        *x += 17.0 + font::width(text, SMALL) + 16.0;
    };
    for (marker, paint, text) in [
        (Marker::Diamond, BLUE, "endpoints changed"),
        (Marker::Cross, VERMILLION, "stopped accepting"),
        (Marker::Circle, GREEN, "last node has the change"),
    ] {
        scene.marker((x + 6.0, y), marker, 4.5, paint);
        name(scene, &mut x, text);
    }
    for (paint, text) in
        [(ORANGE.alpha(0.75), "a node's rules name a Pod that is gone"), (OPEN, "window open")]
    {
        scene.rect((x, y - 5.5), (x + 12.0, y + 5.5), paint);
        name(scene, &mut x, text);
    }
}
