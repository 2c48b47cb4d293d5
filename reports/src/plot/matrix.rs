//! Who reaches what of one service port: a tile for each client and target, coloured by what the
//! client sees.

use std::net::IpAddr;

use sim_core::proxy::matrix::{Cell, Client, Matrix, Mode, PortMatrix, Target, Verdict};

use super::font;
use super::scene::{Anchor, Point, Scene};
use super::sheet::sheet;
use super::style::{FAINT, INK, Paint, SMALL, TEXT};
use crate::matrix::{
    client_title, clients, groups, heading, legend, lines, place, target_title, targets,
};

const HEAD: f64 = 26.0;
const LINE: f64 = 17.0;
const LABELS: f64 = 172.0;
const GAP: f64 = 3.0;
const PADDING: f64 = 12.0;
/// Endpoints that the legend names.
const NAMED_MAX: usize = 8;

/// A tile is pale where all is well, so that what is not stands out; the word is in it, too.
fn paint(verdict: Verdict) -> Paint {
    match verdict {
        Verdict::Ok => Paint::rgb(214, 236, 226),
        Verdict::Refused | Verdict::Reset => Paint::rgb(250, 212, 176),
        Verdict::HostUnreachable => Paint::rgb(233, 207, 223),
        Verdict::Timeout => Paint::rgb(166, 200, 228),
        Verdict::Unknown => Paint::rgb(226, 226, 226),
    }
}

/// A tile: what agrees in some modes, and what is written in it.
struct Tile {
    paint: Paint,
    texts: Vec<String>,
}

/// Returns the tiles of a client and target, one below the other.
fn tiles(part: &PortMatrix, client: Client, target: (Target, IpAddr)) -> Vec<Tile> {
    let groups = groups(part, client, target);
    let alone = groups.len() == 1;
    let tile = |(modes, cell): (Vec<Mode>, &Cell)| {
        let mut texts = lines(part, cell);
        if !alone {
            let names: Vec<&str> = modes.iter().map(|mode| mode.name()).collect();
            texts[0] = format!("{}: {}", names.join(", "), texts[0]);
        }
        // The worst that can happen.
        let worst = cell.outcomes.iter().map(|outcome| outcome.verdict).max();
        Tile { paint: paint(worst.unwrap_or(Verdict::Unknown)), texts }
    };
    groups.into_iter().map(tile).collect()
}

fn height_of(tiles: &[Tile]) -> f64 {
    tiles.iter().map(|tile| LINE * tile.texts.len() as f64 + PADDING).sum()
}

/// Lays out the chart.
pub(super) fn scene(matrix: &Matrix, part: &PortMatrix) -> Scene {
    let clients = clients(part);
    let rows: Vec<_> = targets(part)
        .into_iter()
        .map(|(target, to, port)| {
            let tiles: Vec<Vec<Tile>> =
                clients.iter().map(|client| tiles(part, *client, (target, to))).collect();
            let most = tiles.iter().map(|tiles| height_of(tiles)).fold(0.0, f64::max);
            (target, place(to, port), tiles, most.max(2.0 * LINE + PADDING))
        })
        .collect();
    let legend = legend(part);
    let named = legend.len().min(NAMED_MAX);
    let rest = legend.len() - named;
    let below = LINE * (named.div_ceil(2) + usize::from(rest > 0)) as f64;
    let inner = HEAD + rows.iter().map(|row| row.3).sum::<f64>() + below;
    let mut modes: Vec<Mode> = part.cells.iter().map(|cell| cell.mode).collect();
    modes.sort_unstable();
    modes.dedup();
    let modes: Vec<&str> = modes.into_iter().map(Mode::name).collect();
    let title = format!("Who reaches {}?", part.port.name);
    let sentence = format!("{}. The node is {}.", heading(part), matrix.world.node);
    let caption = format!(
        "{}: a tile without a name holds for all. from own: the endpoint sees the client's own \
         address",
        modes.join(", ")
    );
    let height = 136 + inner.ceil() as u32;
    let (mut scene, area) = sheet(&title, &sentence, &caption, height);
    let wide = (area.right - area.left - LABELS) / clients.len().max(1) as f64;
    for (at, client) in clients.iter().enumerate() {
        let x = area.left + LABELS + wide * (at as f64 + 0.5);
        scene.text((x, area.top + 10.0), client_title(*client), TEXT, INK, Anchor::Middle);
    }
    let mut y = area.top + HEAD;
    for (target, place, columns, height) in rows {
        let middle = y + height / 2.0;
        let label = target_title(target);
        scene.text((area.left, middle - 8.0), label, TEXT, INK, Anchor::Start);
        let place = font::elide(&place, SMALL, LABELS - 8.0);
        scene.text((area.left, middle + 10.0), &place, SMALL, FAINT, Anchor::Start);
        for (at, tiles) in columns.into_iter().enumerate() {
            let left = area.left + LABELS + wide * at as f64;
            if tiles.is_empty() {
                scene.text((left + wide / 2.0, middle), "–", TEXT, FAINT, Anchor::Middle);
            }
            draw(&mut scene, (left, y), (wide, height), tiles);
        }
        y += height;
    }
    y += 14.0;
    for pair in legend[..named].chunks(2) {
        for (at, text) in pair.iter().enumerate() {
            let half = (area.right - area.left) / 2.0;
            let text = font::elide(text, SMALL, half - 12.0);
            let x = area.left + half * at as f64;
            scene.text((x, y), &text, SMALL, FAINT, Anchor::Start);
        }
        y += LINE;
    }
    if rest > 0 {
        scene.text((area.left, y), &format!("and {rest} more"), SMALL, FAINT, Anchor::Start);
    }
    scene
}

/// Draws tiles one below the other, which share the height by how much is written in them.
fn draw(scene: &mut Scene, (left, top): Point, (wide, height): Point, tiles: Vec<Tile>) {
    let needed = height_of(&tiles);
    let mut y = top;
    for Tile { paint, texts } in tiles {
        let own = height * (LINE * texts.len() as f64 + PADDING) / needed;
        let half = GAP / 2.0;
        scene.rect((left + half, y + half), (left + wide - half, y + own - half), paint);
        let first = y + own / 2.0 - LINE * (texts.len() as f64 - 1.0) / 2.0;
        for (line, text) in texts.iter().enumerate() {
            let em = if line == 0 { TEXT } else { SMALL };
            let text = font::elide(text, em, wide - 10.0);
            let at = (left + wide / 2.0, first + LINE * line as f64);
            scene.text(at, &text, em, INK, Anchor::Middle);
        }
        y += own;
    }
}
