//! Small records made by hand.

use std::time::Duration;

use reports::collect::{Collector, Detail, RunRecords};
use reports::plot::Axis;
use reports::stats::{Parameter, PointSummary, Replication, Upkeep};
use sim_core::record::{
    Balance, Cause, Counts, Ended, Loss, LostByCause, OpenedBy, Propagation, Recorder, Run,
    Symptom, Window,
};
use sim_core::time::SimTime;

pub(crate) fn nanos(nanos: u64) -> SimTime {
    SimTime::from_nanos(nanos)
}

pub(crate) fn millis(millis: u64) -> SimTime {
    nanos(millis * 1_000_000)
}

pub(crate) fn lost(parts: &[(Cause, u64)]) -> LostByCause {
    let mut lost = LostByCause::default();
    for &(cause, n) in parts {
        (0..n).for_each(|_| lost.add(cause));
    }
    lost
}

pub(crate) fn window(number: u32) -> Window {
    let opened = 10_000 + 3_000 * u64::from(number);
    Window {
        window: number,
        opened_by: OpenedBy::Rollout,
        service: "default/shop:http".into(),
        pod: format!("shop-7d9c5b8f6d-{}", ["x2k4p", "9wq7z", "m5t8v"][number as usize % 3]).into(),
        node: format!("node-{}", number % 3).into(),
        opened: millis(opened),
        endpoints_changed: Some(millis(opened + 20)),
        stopped_accepting: Some(millis(opened + 150)),
        ip_released: Some(nanos((opened + 200) * 1_000_000 + 1)),
        first_node: Some(millis(opened + 80)),
        last_node: Some(millis(opened + 1_650)),
        closed: Some(millis(opened + 1_700)),
        stale_mean_s: Some(0.1 + 0.2),
        stale_max_s: Some(1.5),
        attempts: 1_700,
        attempts_to_pod: 96,
        lost: lost(&[(Cause::Refused, 20 + u64::from(number)), (Cause::Blackholed, 3)]),
        misdelivered: 0,
        lost_first_stale: Some(23),
        expected_lost: Some(22.75),
    }
}

/// A window that saw nothing and never closed.
pub(crate) fn empty_window(number: u32) -> Window {
    Window {
        endpoints_changed: None,
        stopped_accepting: None,
        ip_released: None,
        first_node: None,
        last_node: None,
        closed: None,
        stale_mean_s: None,
        stale_max_s: None,
        attempts: 0,
        attempts_to_pod: 0,
        lost: LostByCause::default(),
        lost_first_stale: None,
        expected_lost: None,
        ..window(number)
    }
}

pub(crate) fn run(windows: &[Window]) -> Run {
    let mut lost = LostByCause::default();
    windows.iter().for_each(|w| lost.merge(&w.lost));
    Run {
        ended: Ended::Complete,
        end: millis(20_500),
        events: 123_456,
        packets: 98_765,
        requests: 20_480,
        requests_lost: lost.total(),
        requests_unfinished: 0,
        inside: Counts { attempts: 5_100, lost, misdelivered: 0 },
        outside: Counts { attempts: 15_380, ..Counts::default() },
        unfinished: 0,
        windows: windows.len() as u64,
        lost_first_stale: windows.iter().map(|w| w.lost_first_stale).sum(),
        expected_lost: windows.iter().map(|w| w.expected_lost).sum(),
        fingerprint: 0x00d1_ce5e_ed00_cafe,
        holders: 20,
        updates: 40,
        accepted: 1000,
        hops: 950,
        rules_passed: 0.0,
        syncs: None,
        balance: Some(Balance { chi2: 10.0, freedom: 9 }),
    }
}

pub(crate) fn loss(request: u64, window: u32) -> Loss {
    let sent = 10_200 + 3_000 * u64::from(window) + 40 * request;
    Loss {
        request,
        attempt: 0,
        sent: millis(sent),
        ended: nanos(sent * 1_000_000 + 450_000),
        client: "front".into(),
        client_pod: "front-0".into(),
        node: "node-2".into(),
        service: "default/shop:http".into(),
        rule: Some("KUBE-SVC-7ZQ4XN3PBWTL2K5M 2".into()),
        endpoint: Some("10.244.1.7:8080".into()),
        cause: if request < 3 { Cause::Refused } else { Cause::Blackholed },
        symptom: if request < 3 { Symptom::Refused } else { Symptom::Timeout },
        window: Some(window),
        stale_for: Some(Duration::from_millis(50)),
    }
}

pub(crate) fn propagation(change: u32, node: u32) -> Propagation {
    let changed = 10_020 + 3_000 * u64::from(change - 1);
    Propagation {
        service: "default/shop:http".into(),
        change,
        node: format!("node-{node}").into(),
        endpoints_changed: millis(changed),
        live: millis(changed + 60 + 785 * u64::from(node)),
        stages: None,
    }
}

pub(crate) fn records(windows: Vec<Window>, detail: Detail) -> RunRecords {
    let mut collector = Collector::new(detail);
    for i in 0..2_050 {
        collector.attempt(millis(i * 10));
    }
    for window in &windows {
        (0..5).for_each(|request| collector.loss(loss(request, window.window)));
        (0..3).for_each(|node| collector.propagation(propagation(window.window + 1, node)));
    }
    let run = run(&windows);
    windows.into_iter().for_each(|w| collector.window(w));
    collector.run(run);
    collector.into_records()
}

pub(crate) const DELAY: &str = "propagation.delay.exponential.mean";
pub(crate) const NODES: &str = "cluster.nodes";

pub(crate) fn parameter(path: &str, display: &str, value: Option<f64>) -> Parameter {
    Parameter { path: path.to_owned(), display: display.to_owned(), value }
}

/// A point whose loss grows with `size`, over so many replications.
pub(crate) fn point(
    index: usize,
    parameters: Vec<Parameter>,
    size: u64,
    runs: u64,
) -> PointSummary {
    let replications: Vec<Replication> = (0..runs)
        .map(|r| {
            let lost_of_windows = vec![size, size + size * (r % 3), 2 * size];
            let lost: u64 = lost_of_windows.iter().sum();
            let mut lost_by_cause = [0; Cause::ALL.len()];
            lost_by_cause[Cause::Refused as usize] = lost - lost / 4;
            lost_by_cause[Cause::Blackholed as usize] = lost / 4;
            Replication {
                lost_of_windows,
                lost_by_cause,
                lost,
                attempts_inside: 10_000,
                lost_inside: lost,
                stale_max_s: Some(size as f64 / 10.0),
                last_node_lag_s: Some((size + r) as f64 / 8.0),
                expected_lost: Some(size as f64 * 1.5),
                lost_first_stale: Some(size as f64 * 1.5),
                upkeep: Upkeep {
                    holders: 10.0,
                    updates: 20.0,
                    hops: Some(1.0),
                    rules: Some(40.0 + r as f64),
                    sync_s: Some((size + r) as f64 / 100.0),
                },
            }
        })
        .collect();
    PointSummary::new(index, parameters, &replications, Some((size as f64 + 1.0) / 8.0))
}

/// A grid of delays and node counts.
pub(crate) fn grid(
    delays: &[(&str, f64)],
    nodes: &[u64],
    size: impl Fn(f64, u64) -> u64,
    runs: u64,
) -> (Vec<Axis>, Vec<PointSummary>) {
    let mut points = Vec::new();
    for &(text, delay) in delays {
        for &n in nodes {
            let parameters = vec![
                parameter(DELAY, text, Some(delay)),
                parameter(NODES, &n.to_string(), Some(n as f64)),
            ];
            points.push(point(points.len(), parameters, size(delay, n), runs));
        }
    }
    (vec![Axis::from_path(DELAY), Axis::from_path(NODES)], points)
}

pub(crate) fn usual_grid() -> (Vec<Axis>, Vec<PointSummary>) {
    let delays = [("100ms", 0.1), ("300ms", 0.3), ("1s", 1.0), ("3s", 3.0)];
    let size = |delay: f64, nodes: u64| (delay * 20.0) as u64 + nodes.ilog10() as u64;
    grid(&delays, &[10, 100, 1_000], size, 4)
}
