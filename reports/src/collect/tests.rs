use sim_core::record::{Cause, Counts, Ended, OpenedBy, Symptom};

use super::*;

fn at(s: f64) -> SimTime {
    SimTime::from_nanos((s * 1e9).round() as u64)
}

fn window(number: u32, changed: Option<f64>, stopped: Option<f64>) -> Window {
    Window {
        window: number,
        opened_by: OpenedBy::Delete,
        service: "default/shop:http".into(),
        pod: format!("shop-{number}").into(),
        node: "node-1".into(),
        opened: at(1.0),
        endpoints_changed: changed.map(at),
        stopped_accepting: stopped.map(at),
        ip_released: None,
        first_node: None,
        last_node: None,
        closed: None,
        stale_mean_s: None,
        stale_max_s: None,
        attempts: 0,
        attempts_to_pod: 0,
        lost: LostByCause::default(),
        misdelivered: 0,
        lost_first_stale: None,
        expected_lost: None,
    }
}

fn propagation(change: u32, node: &str, changed: f64, live: f64) -> Propagation {
    Propagation {
        service: "default/shop:http".into(),
        change,
        node: node.into(),
        endpoints_changed: at(changed),
        live: at(live),
        stages: None,
    }
}

fn loss(request: u64, sent: f64) -> Loss {
    Loss {
        request,
        attempt: 0,
        sent: at(sent),
        ended: at(sent),
        client: "front".into(),
        client_pod: "front-0".into(),
        node: "node-1".into(),
        service: "default/shop:http".into(),
        rule: None,
        endpoint: None,
        cause: Cause::Refused,
        symptom: Symptom::Refused,
        window: None,
        stale_for: None,
    }
}

fn run(end: f64) -> Run {
    Run {
        ended: Ended::Complete,
        end: at(end),
        events: 0,
        packets: 0,
        requests: 0,
        requests_lost: 0,
        requests_unfinished: 0,
        inside: Counts::default(),
        outside: Counts::default(),
        unfinished: 0,
        windows: 0,
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
    }
}

fn stale(windows: Vec<Window>, propagations: Vec<Propagation>) -> Vec<u64> {
    let mut collector = Collector::new(Detail::Timeline(Duration::from_secs(1)));
    windows.into_iter().for_each(|w| collector.window(w));
    propagations.into_iter().for_each(|p| collector.propagation(p));
    collector.run(run(6.0));
    collector.into_records().timeline.iter().map(|b| b.stale_nodes).collect()
}

#[test]
fn a_node_is_stale_from_the_stop_until_its_rules_are_live() {
    let stale = stale(
        vec![window(0, Some(1.0), Some(2.0))],
        vec![propagation(1, "a", 1.0, 1.5), propagation(1, "b", 1.0, 4.0)],
    );
    assert_eq!(stale, [0, 0, 1, 1, 0, 0]);
}

#[test]
fn a_node_that_is_stale_for_two_windows_counts_once() {
    let stale = stale(
        vec![window(0, Some(1.0), Some(1.0)), window(1, Some(2.0), Some(2.0))],
        vec![
            propagation(1, "a", 1.0, 4.0),
            propagation(2, "a", 2.0, 5.0),
            propagation(1, "b", 1.0, 1.0),
            propagation(2, "b", 2.0, 3.0),
        ],
    );
    assert_eq!(stale, [0, 1, 2, 1, 1, 0]);
}

#[test]
fn a_change_that_was_never_written_leaves_all_nodes_stale() {
    let stale = stale(
        vec![window(0, None, Some(2.0))],
        vec![propagation(1, "a", 0.0, 0.5), propagation(1, "b", 0.0, 1.0)],
    );
    assert_eq!(stale, [0, 0, 2, 2, 2, 2]);
}

#[test]
fn bins_count_attempts_and_losses_by_when_they_were_sent() {
    let mut collector = Collector::new(Detail::Timeline(Duration::from_millis(500)));
    for sent in [0.0, 0.499_999_999, 0.5, 1.0] {
        collector.attempt(at(sent));
    }
    collector.loss(loss(2, 1.0));
    collector.loss(loss(1, 0.5));
    collector.run(run(1.0));
    let records = collector.into_records();
    let counts: Vec<_> = records.timeline.iter().map(|b| (b.attempts, b.lost.total())).collect();
    assert_eq!(counts, [(2, 0), (1, 1), (1, 1)]);
    assert_eq!(records.losses[0].request, 1);
    assert_eq!(records.timeline[1].start, at(0.5));
    assert_eq!(records.timeline[1].end, at(1.0));
}

#[test]
fn without_detail_only_windows_and_totals_are_kept() {
    let mut collector = Collector::new(Detail::Off);
    assert!(!collector.wants_detail());
    collector.attempt(at(1.0));
    collector.loss(loss(1, 0.5));
    collector.propagation(propagation(1, "a", 0.0, 0.5));
    collector.window(window(1, None, None));
    collector.window(window(0, None, None));
    collector.run(run(1.0));
    let records = collector.into_records();
    let windows: Vec<u32> = records.windows.iter().map(|w| w.window).collect();
    assert_eq!(windows, [0, 1]);
    assert!(records.losses.is_empty() && records.propagation.is_empty());
    assert!(records.timeline.is_empty());
}
