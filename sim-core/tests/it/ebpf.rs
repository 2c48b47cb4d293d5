//! Clusters without kube-proxy: sockets are translated when they connect.

use std::time::Duration;

use sim_core::config::*;
use sim_core::record::{Cause, Symptom};

use crate::support::{Records, cluster, ms, rollout, run, secs};

/// Student's t, 5 degrees of freedom, 99.9 % two-sided: 6 replications.
const T_6: f64 = 6.869;

const EBPF: ProxyMode = ProxyMode::Ebpf(Selection::Random);
const MAGLEV: ProxyMode = ProxyMode::Ebpf(Selection::Maglev);

/// Returns a rollout of 10 Pods on 20 nodes, deletions two seconds apart, lags of 300 ms in mean.
fn config(mode: ProxyMode) -> Config {
    let mut config = cluster(20, 10, Law::Exponential { mean: ms(300) });
    config.deployments[0].min_ready = ms(2000);
    config.proxy.mode = mode;
    rollout(&mut config);
    config
}

/// The same arrivals meet the same lags, and the choice is uniform over what the node knows when
/// the attempt begins, of a socket's or of a packet's: only which endpoint each draws differs.
#[test]
fn translated_sockets_lose_rate_times_mean_lag_as_rules_do() {
    let both = [EBPF, ProxyMode::Iptables];
    let [sockets, rules] = both.map(|mode| {
        let config = config(mode);
        (0..6).map(|replication| run(&config, 1, replication)).collect::<Vec<Records>>()
    });
    let check = |what: &str, expected: f64, value: &dyn Fn(usize) -> f64| {
        let values: Vec<f64> = (0..6).map(value).collect();
        let mean = values.iter().sum::<f64>() / 6.0;
        let square = |value: &f64| (value - mean).powi(2);
        let error = (values.iter().map(square).sum::<f64>() / 5.0 / 6.0).sqrt();
        assert!((mean - expected).abs() < T_6 * error, "{what}: {mean} ± {error}");
    };
    check("rate × mean lag", 300.0, &|k| sockets[k].stale());
    let expected = |k: usize| sockets[k].run().expected_lost.unwrap();
    check("closed form", 0.0, &|k| sockets[k].stale() - expected(k));
    check("iptables", 0.0, &|k| sockets[k].stale() - rules[k].stale());
    let gone = [Cause::Refused, Cause::Unreachable, Cause::Blackholed];
    for (sockets, rules) in sockets.iter().zip(&rules) {
        // The same arrivals, until the last attempt to the last Pod has ended.
        let (some, others) = (sockets.run().requests, rules.run().requests);
        assert!(some.abs_diff(others) < others / 50, "{some} {others}");
        // Nothing else is lost but what was on its way as a Pod stopped accepting.
        let stopped = |at: u32| sockets.windows[at as usize].stopped_accepting.unwrap();
        let on_its_way = sockets.losses.iter().filter(|loss| loss.stale_for.is_none());
        for loss in on_its_way.clone() {
            let stopped = stopped(loss.window.expect("a Pod that goes"));
            assert!(loss.sent < stopped && stopped - loss.sent < ms(1), "{loss:?}");
        }
        assert_eq!(sockets.lost(), sockets.stale() as u64 + on_its_way.count() as u64);
        for loss in &sockets.losses {
            assert!(gone.contains(&loss.cause) || loss.stale_for.is_none(), "{loss:?}");
            let entry = loss.rule.as_deref().unwrap();
            assert!(entry.starts_with("172.20.") && entry.ends_with(":80/TCP"), "{entry}");
        }
    }
}

/// A Pod connects to the Service's address and is answered, by every Pod behind it.
#[test]
fn s3_28_a_service_still_answers() {
    let mut config = cluster(3, 4, Law::Constant(Duration::ZERO));
    config.events.clear();
    config.duration = Some(secs(2.0));
    for mode in [EBPF, MAGLEV] {
        config.proxy.mode = mode;
        let records = run(&config, 1, 0);
        let run = records.run();
        assert!(run.requests > 1000, "{}", run.requests);
        assert_eq!((run.requests_lost, run.outside.misdelivered), (0, 0), "{mode:?}");
        assert_eq!(run.accepted, run.requests - run.requests_unfinished, "{mode:?}");
    }
}

/// The call fails at once with EHOSTUNREACH, and no limit of ICMP errors applies.
#[test]
fn without_an_endpoint_a_socket_does_not_connect() {
    let mut config = cluster(3, 1, Law::Constant(Duration::ZERO));
    config.proxy.mode = EBPF;
    config.deployments[0].replicas = 0;
    config.events.clear();
    config.duration = Some(secs(1.0));
    let records = run(&config, 1, 0);
    let run = records.run();
    assert_eq!(run.requests_lost, run.requests);
    assert_eq!(run.packets, 0, "no packet is sent");
    for loss in &records.losses {
        assert_eq!((loss.cause, loss.symptom), (Cause::Rejected, Symptom::HostUnreachable));
        assert_eq!(loss.sent, loss.ended);
    }
}

/// Nobody hears of a Pod's end for half a second, its address is gone at once, and clients wait for
/// longer than it takes the node to give the address up.
fn patient(mode: ProxyMode) -> Records {
    let mut config = config(mode);
    config.propagation =
        Propagation::Delay { law: Law::Constant(ms(500)), nodes: Default::default() };
    config.kubelet.teardown = Law::Constant(Duration::ZERO);
    config.clients[0].timeout = secs(8.0);
    run(&config, 1, 0)
}

/// A SYN that is sent again goes where the socket was translated to, though the node has learnt
/// better; a packet is translated anew once its backend is gone.
#[test]
fn a_socket_keeps_its_endpoint_and_a_packet_does_not() {
    // Those that a Pod was serving when it ended are reset.
    let of_dead = |records: &Records| {
        let dead = records.losses.iter().filter(|loss| loss.cause != Cause::Reset);
        dead.map(|loss| (loss.cause, loss.symptom)).collect::<Vec<_>>()
    };
    let sockets = of_dead(&patient(EBPF));
    // 100 requests a second for each of 10 Pods, for half a second.
    assert!((sockets.len() as f64 - 500.0).abs() < 5.0 * 500f64.sqrt(), "{}", sockets.len());
    for met in &sockets {
        assert_eq!(*met, (Cause::Unreachable, Symptom::HostUnreachable));
    }
    let packets = patient(MAGLEV);
    assert_eq!(of_dead(&packets), [], "the second SYN, after one second, reaches another Pod");
    assert!(packets.run().requests > 10_000);
}

#[test]
fn packets_by_maglev_lose_about_as_many() {
    let config = config(MAGLEV);
    let records: Vec<Records> = (0..3).map(|replication| run(&config, 1, replication)).collect();
    for records in &records {
        // 300 in mean; most of the spread is that of 20 × 10 lags.
        assert!((records.lost() as f64 - 300.0).abs() < 150.0, "{}", records.lost());
        assert_eq!(records.run().expected_lost, None, "flows are not drawn");
        for loss in &records.losses {
            let gone = [Cause::Refused, Cause::Blackholed, Cause::Reset];
            assert!(gone.contains(&loss.cause), "a node's error names the backend: {loss:?}");
        }
    }
}

#[test]
fn without_an_endpoint_packets_are_refused() {
    let mut config = cluster(3, 1, Law::Constant(Duration::ZERO));
    config.proxy.mode = MAGLEV;
    config.deployments[0].replicas = 0;
    config.events.clear();
    config.duration = Some(secs(1.0));
    let records = run(&config, 1, 0);
    assert_eq!(records.run().requests_lost, records.run().requests);
    for loss in &records.losses {
        assert_eq!((loss.cause, loss.symptom), (Cause::Rejected, Symptom::Refused));
    }
}
