use super::*;
use crate::stats::{Parameter, Replication, Upkeep};
use sim_core::record::{Cause, Counts, Ended, LostByCause, OpenedBy, Run, Window};
use sim_core::time::SimTime;

use crate::collect::TimelineBin;

/// Holds that all text lies within the chart, and that no two texts touch.
fn check(charts: &[Chart]) {
    for chart in charts {
        let (width, height) = chart.scene.size();
        let boxes = chart.scene.text_boxes();
        for (text, area) in &boxes {
            assert!(
                area.left >= 0.0
                    && area.top >= 0.0
                    && area.right <= f64::from(width)
                    && area.bottom <= f64::from(height),
                "{}: {text:?} is cut off: {area:?}",
                chart.name
            );
        }
        for (i, (text, a)) in boxes.iter().enumerate() {
            for (other, b) in &boxes[..i] {
                assert!(
                    a.right <= b.left
                        || b.right <= a.left
                        || a.bottom <= b.top
                        || b.bottom <= a.top,
                    "{}: {text:?} {a:?} and {other:?} {b:?} overlap",
                    chart.name
                );
            }
        }
        chart.svg().unwrap();
    }
}

fn point(parameters: Vec<Parameter>, lost: &[u64], lag: Option<f64>) -> PointSummary {
    let replications: Vec<Replication> = lost
        .iter()
        .map(|&lost| Replication {
            lost_of_windows: vec![lost],
            lost_by_cause: std::array::from_fn(|i| lost / (1 << i.min(60))),
            lost,
            attempts_inside: 1_000,
            lost_inside: lost,
            stale_max_s: lag,
            last_node_lag_s: lag,
            expected_lost: None,
            lost_first_stale: None,
            upkeep: Upkeep::default(),
        })
        .collect();
    PointSummary::new(0, parameters, &replications, lag)
}

fn parameter(path: &str, display: &str, value: Option<f64>) -> Parameter {
    Parameter { path: path.to_owned(), display: display.to_owned(), value }
}

fn sweep(paths: &[&str], points: &[PointSummary]) {
    let axes: Vec<Axis> = paths.iter().map(|p| Axis::from_path(p)).collect();
    let long = "a-name-".repeat(60);
    for scenario in ["s", &long] {
        check(&sweep_charts(&SweepView { scenario, seed: u64::MAX, axes: &axes, points }));
    }
}

#[test]
fn charts_of_extreme_sweeps_are_legible() {
    let losses: [&[u64]; 8] = [
        &[],
        &[0],
        &[0, 0, 0],
        &[1],
        &[7, 9, 8],
        &[0, 1_000_000],
        &[u64::from(u32::MAX); 3],
        &[1, 2, 3, 4, 5, 6, 7, 8, 9, 10],
    ];
    for lost in losses {
        for lag in [None, Some(0.0), Some(0.3), Some(1e9)] {
            sweep(&[], &[point(vec![], lost, lag)]);
            for columns in [1, 4, 30] {
                for rows in [1, 7, 30] {
                    let mut points = Vec::new();
                    for c in 0..columns {
                        for r in 0..rows {
                            let delay = f64::from(c) * 0.1;
                            let nodes = f64::from(1 + r * r * r);
                            points.push(point(
                                vec![
                                    parameter(
                                        "propagation.delay.exponential.mean",
                                        &format!("{}ms", c * 100),
                                        Some(delay),
                                    ),
                                    parameter("cluster.nodes", &nodes.to_string(), Some(nodes)),
                                ],
                                lost,
                                lag.map(|lag| lag * nodes),
                            ));
                        }
                    }
                    sweep(&["propagation.delay.exponential.mean", "cluster.nodes"], &points);
                }
            }
        }
    }
}

#[test]
fn charts_of_sweeps_over_words_are_legible() {
    let long = "a-very-long-value-".repeat(12);
    for count in [1, 2, 5, 41, 100] {
        let names: Vec<String> = (0..count).map(|i| format!("{long}{i}")).collect();
        let words = |name: &str| parameter("proxy.some.deeply.nested.path.of.a.mode", name, None);
        let one: Vec<PointSummary> =
            names.iter().map(|n| point(vec![words(n)], &[5, 6], Some(1.0))).collect();
        sweep(&["proxy.some.deeply.nested.path.of.a.mode"], &one);
        let three: Vec<PointSummary> = names
            .iter()
            .enumerate()
            .flat_map(|(i, n)| {
                let wait = |s: f64| parameter("preStop", &format!("{s}s"), Some(s));
                let scale = parameter("scale", &i.to_string(), Some(i as f64));
                [0.0, 1.0].map(|s| point(vec![words(n), wait(s), scale.clone()], &[5, 6], None))
            })
            .collect();
        sweep(&["proxy.some.deeply.nested.path.of.a.mode", "preStop", "scale"], &three);
    }
}

#[test]
fn one_number_written_in_two_ways_is_no_axis() {
    let delay = |text: &str| parameter("propagation.delay", text, Some(1.0));
    let points =
        [point(vec![delay("1s")], &[1, 2], None), point(vec![delay("1000ms")], &[3, 4], None)];
    sweep(&["propagation.delay"], &points);
}

#[test]
fn every_cause_has_a_colour_of_its_own() {
    for (i, a) in Cause::ALL.into_iter().enumerate() {
        for &b in &Cause::ALL[..i] {
            assert_ne!(style::cause_paint(a), style::cause_paint(b), "{a} and {b}");
        }
    }
}

/// A run of `count` windows, each `every` and as long; a bin for each, and some more.
fn run(count: u32, every_ns: u64, lost: u64, name: &str, closes: fn(u32) -> bool) -> RunRecords {
    let mut by_cause = LostByCause::default();
    for i in 0..lost {
        by_cause.add(Cause::ALL[(i % 10) as usize]);
    }
    let at = |i: u32, part: u64| SimTime::from_nanos(u64::from(i) * every_ns + every_ns / 8 * part);
    let windows = (0..count).map(|i| {
        let closes = closes(i);
        Window {
            window: i,
            opened_by: OpenedBy::Scale,
            service: format!("{name}-{}", i % 2).into(),
            pod: format!("{name}-{i}").into(),
            node: name.into(),
            opened: at(i, 0),
            endpoints_changed: (i % 5 > 0).then(|| at(i, 1)),
            stopped_accepting: (i % 3 > 0).then(|| at(i, 2)),
            ip_released: None,
            first_node: None,
            last_node: closes.then(|| at(i, 7)),
            closed: closes.then(|| at(i, 8)),
            stale_mean_s: None,
            stale_max_s: closes.then_some(every_ns as f64 / 1e9),
            attempts: u64::from(u32::MAX),
            attempts_to_pod: 0,
            lost: by_cause,
            misdelivered: 0,
            lost_first_stale: None,
            expected_lost: None,
        }
    });
    let windows: Vec<Window> = windows.collect();
    let bins = (0..count.max(1) * 4).map(|i| TimelineBin {
        start: SimTime::from_nanos(u64::from(i) * (every_ns / 4)),
        end: SimTime::from_nanos((u64::from(i) + 1) * (every_ns / 4)),
        attempts: lost,
        lost: by_cause,
        stale_nodes: lost,
    });
    let counts = Counts { attempts: u64::from(u32::MAX), lost: by_cause, misdelivered: 0 };
    let run = Run {
        ended: Ended::Duration,
        end: at(count + 1, 0),
        events: 0,
        packets: 0,
        requests: 0,
        requests_lost: 0,
        requests_unfinished: 0,
        inside: counts,
        outside: counts,
        unfinished: 0,
        windows: u64::from(count),
        lost_first_stale: None,
        expected_lost: None,
        fingerprint: 0,
        holders: 0,
        updates: 0,
        accepted: 0,
        hops: 0,
        rules_passed: 0.0,
        syncs: None,
        balance: None,
    };
    let timeline = bins.collect();
    RunRecords { run, windows, losses: Vec::new(), propagation: Vec::new(), timeline }
}

#[test]
fn charts_of_extreme_runs_are_legible() {
    let long = "a-name-".repeat(40);
    for count in [0, 1, 2, 13, 40, 41, 400] {
        for every_ns in [8, 80_000, 3_000_000_000, 30_000_000_000_000] {
            for lost in [0, 1, 10, 100_000] {
                for closes in [|_| true, |_| false, |i| i % 3 == 0] {
                    let name = if count == 13 { &long } else { "shop-7d9c5b8f6d" };
                    let records = run(count, every_ns, lost, name, closes);
                    let view = RunView { scenario: name, seed: 7, run: 0, records: &records };
                    check(&run_charts(&view));
                }
            }
        }
    }
}

#[test]
fn axes_have_short_titles() {
    for (path, title) in [
        ("cluster.nodes", "nodes"),
        ("propagation.delay", "propagation delay"),
        ("propagation.delay.exponential.mean", "propagation delay (exponential mean)"),
        (
            "objects.Deployment/a.spec.template.spec.containers.a.lifecycle.preStop.sleep.seconds",
            "preStop sleep, seconds",
        ),
        ("objects.Deployment/shop.spec.replicas", "replicas"),
        ("clients.front.rate", "clients.front.rate"),
        ("proxy.some.deeply.nested.path.of.a.mode", "deeply.nested.path.of.a.mode"),
        ("a-part-that-is-longer-than-a-title.b", "b"),
        ("..", ".."),
        ("", ""),
    ] {
        assert_eq!(Axis::from_path(path).title, title, "{path}");
    }
    let twice = ["objects.Deployment/a.spec.replicas", "objects.Deployment/b.spec.replicas"];
    let titles: Vec<String> = Axis::from_paths(twice).into_iter().map(|a| a.title).collect();
    assert_eq!(titles, twice);
}

#[test]
fn an_interval_does_not_reach_below_zero() {
    let text =
        |values: &[f64]| sweep::with_half_width(&crate::stats::Interval::of(values).unwrap());
    assert_eq!(text(&[2.0, 5.0]), "3.5 (0 to 22.6)");
    assert_eq!(text(&[20.0, 21.0, 30.0]), "23.7 ± 13.7");
    assert_eq!(text(&[0.0, 0.0]), "0");
    assert_eq!(text(&[3.0]), "3.00");
}

#[test]
fn a_chart_says_what_its_lines_show() {
    let paths = ["propagation.delay.constant", "cluster.nodes"];
    let axes = Axis::from_paths(paths);
    let texts = |lost: &dyn Fn(u64) -> Vec<u64>, closed: f64| -> String {
        let mut points = Vec::new();
        for delay in [1_u64, 3] {
            for nodes in [10_u64, 1_000] {
                let parameters = vec![
                    parameter(paths[0], &format!("{delay}s"), Some(delay as f64)),
                    parameter(paths[1], &nodes.to_string(), Some(nodes as f64)),
                ];
                let mut point = point(parameters, &lost(nodes), Some(2.0));
                point.last_node_lag_closed_form_s = Some(closed);
                points.push(point);
            }
        }
        let view = SweepView { scenario: "s", seed: 1, axes: &axes, points: &points };
        let charts = sweep_charts(&view);
        let texts = charts.iter().flat_map(|chart| chart.scene.text_boxes());
        texts.map(|(text, _)| text.to_string() + " ").collect()
    };
    let coincide = texts(&|nodes| vec![90, 100, 110 + nodes / 1_000], 2.0);
    assert!(coincide.contains("The number of nodes hardly matters."), "{coincide}");
    assert!(coincide.contains("lines are the closed form."), "{coincide}");
    let apart = texts(&|nodes| vec![nodes, nodes + 1, nodes + 2], 1.0);
    assert!(!apart.contains("hardly matters"), "{apart}");
    assert!(apart.contains("above it where a change waits for an earlier one."), "{apart}");
    let few = texts(&|_| vec![90, 110], 2.0);
    assert!(!few.contains("hardly matters"), "{few}");
}
