//! What happened to the requests that a sweep lost.

use sim_core::record::Cause;

use super::SweepView;
use super::axis::number;
use super::bars::{self, Bar, Bars};
use super::scene::Scene;
use super::style::{Paint, cause_paint};
use super::sweep::{
    caption, causes_by_weight, label_over, loss_axis, loss_sentence, point_label, values,
};

/// Points that get a bar each; of more, bars show the mean over all but the main parameter.
const MOST_POINTS: usize = 24;

/// At most so many causes are told apart.
const MOST_CAUSES: usize = 5;

const OTHER: Paint = Paint::rgb(190, 190, 190);

pub(super) fn causes(sweep: &SweepView<'_>) -> Scene {
    let mut rows: Vec<(String, [f64; Cause::ALL.len()])> = Vec::new();
    let mut over = "";
    match loss_axis(sweep) {
        Some(x) if sweep.points.len() > MOST_POINTS => {
            over = " Bars are means over the other parameters.";
            for value in values(sweep, x) {
                let here: Vec<_> = sweep
                    .points
                    .iter()
                    .filter(|p| p.parameters[x].display == value.display)
                    .filter_map(|p| Some((label_over(sweep, p, &[x]), p.lost_by_cause?)))
                    .collect();
                if let Some((label, _)) = here.first() {
                    let mean = |c: usize| {
                        here.iter().map(|(_, by)| by[c]).sum::<f64>() / here.len() as f64
                    };
                    rows.push((label.clone(), std::array::from_fn(mean)));
                }
            }
        }
        _ => {
            for point in sweep.points {
                rows.extend(point.lost_by_cause.map(|by| (point_label(sweep, point), by)));
            }
        }
    }
    let weight = |c: usize| rows.iter().map(|r| r.1[c]).sum::<f64>();
    let causes = causes_by_weight(weight);
    let weights = std::array::from_fn(weight);
    let sentence = if causes.is_empty() {
        loss_sentence(sweep)
    } else {
        let points = if rows.len() > 1 { "Over all points " } else { "" };
        format!("{points}{}.{over}", crate::summary::shares(&weights))
    };
    let bars = rows.iter().map(|(label, by)| {
        let shown = causes.iter().take(MOST_CAUSES);
        let mut segments: Vec<_> =
            shown.map(|&(i, c)| (by[i], cause_paint(c), c.to_string())).collect();
        let rest: f64 = causes.iter().skip(MOST_CAUSES).map(|&(i, _)| by[i]).sum();
        segments.push((rest, OTHER, "other".to_owned()));
        Bar { label: label.clone(), segments, interval: None, end: number(by.iter().sum()) }
    });
    bars::bars(&Bars {
        title: "What happens to the attempts that are lost?".to_owned(),
        sentence,
        caption: caption(sweep, ""),
        x_title: "lost attempts per deletion window, by cause".to_owned(),
        bars: bars.collect(),
        nothing: "no deletion window was opened",
    })
}
