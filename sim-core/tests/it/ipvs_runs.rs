//! Clusters whose nodes have virtual servers of IPVS.

use std::time::Duration;

use sim_core::config::*;
use sim_core::record::{Cause, Symptom};

use crate::support::{Records, cluster, ms, rollout, run, secs};

const fn ipvs(scheduler: IpvsScheduler) -> ProxyMode {
    ProxyMode::Ipvs(scheduler)
}

/// Returns a rollout of 10 Pods on 20 nodes, deletions two seconds apart, lags of 300 ms in mean.
fn config(mode: ProxyMode) -> Config {
    let mut config = cluster(20, 10, Law::Exponential { mean: ms(300) });
    config.deployments[0].min_ready = ms(2000);
    config.proxy.mode = mode;
    rollout(&mut config);
    config
}

/// A Pod connects to the Service's address and is answered, however endpoints are chosen.
#[test]
fn a_service_answers_under_every_scheduler() {
    let mut config = cluster(3, 4, Law::Constant(Duration::ZERO));
    config.events.clear();
    config.duration = Some(secs(2.0));
    for scheduler in IpvsScheduler::ALL {
        config.proxy.mode = ipvs(scheduler);
        let records = run(&config, 1, 0);
        let run = records.run();
        assert!(run.requests > 1000, "{}", run.requests);
        assert_eq!((run.requests_lost, run.outside.misdelivered), (0, 0), "{scheduler:?}");
        assert_eq!(run.accepted, run.requests - run.requests_unfinished, "{scheduler:?}");
    }
}

/// Each of 10 endpoints has a tenth of what a node sends while it does not know that one is gone,
/// in turn as at random. In turn the number is steadier, but most of the spread is that of lags.
#[test]
fn round_robin_loses_rate_times_mean_lag_as_rules_do() {
    let modes = [ipvs(IpvsScheduler::Rr), ProxyMode::Iptables];
    let [turns, rules] = modes.map(|mode| {
        let config = config(mode);
        (0..6).map(|replication| run(&config, 1, replication)).collect::<Vec<Records>>()
    });
    assert!(turns.iter().all(|turns| turns.run().expected_lost.is_none()), "nothing is drawn");
    let lost = |records: &Records| records.lost() as f64;
    let pairs = turns.iter().zip(&rules);
    let differences: Vec<f64> = pairs.map(|(turns, rules)| lost(turns) - lost(rules)).collect();
    let mean = differences.iter().sum::<f64>() / 6.0;
    let square = |value: &f64| (value - mean).powi(2);
    let error = (differences.iter().map(square).sum::<f64>() / 5.0 / 6.0).sqrt();
    // Student's t, 5 degrees of freedom, 99.9 % two-sided.
    assert!(mean.abs() < 6.869 * error, "{mean} ± {error}");
    let lost = turns.iter().map(lost).sum::<f64>() / 6.0;
    // 300 in mean; most of the spread is that of 20 × 10 lags.
    assert!((lost - 300.0).abs() < 100.0, "{lost}");
}

#[test]
fn a_run_is_repeated_to_the_byte() {
    let mut config = cluster(4, 4, Law::Exponential { mean: ms(300) });
    for scheduler in [IpvsScheduler::Rr, IpvsScheduler::Lc, IpvsScheduler::Mh] {
        config.proxy.mode = ipvs(scheduler);
        assert_eq!(run(&config, 3, 0), run(&config, 3, 0), "{scheduler:?}");
    }
}

/// A virtual server without real ones answers for itself, over ICMP.
#[test]
fn without_an_endpoint_the_node_refuses() {
    let mut config = cluster(3, 1, Law::Constant(Duration::ZERO));
    config.proxy.mode = ipvs(IpvsScheduler::Rr);
    config.deployments[0].replicas = 0;
    config.events.clear();
    config.duration = Some(secs(1.0));
    config.clients[0].timeout = ms(200);
    let records = run(&config, 1, 0);
    assert_eq!(
        records.run().requests_lost,
        records.run().requests - records.run().requests_unfinished
    );
    assert!(records.run().requests_lost > 500);
    let told = records.losses.iter().filter(|loss| loss.symptom == Symptom::Refused).count();
    assert!(told > 0, "as many as the limit of ICMP errors lets through");
    for loss in &records.losses {
        assert_eq!(loss.cause, Cause::Rejected);
    }
}

/// Nobody dials a dead endpoint's address again once its node knows: real servers without weight
/// keep connections and get no others.
#[test]
fn without_lag_only_what_was_under_way_is_lost() {
    let mut config = config(ipvs(IpvsScheduler::Lc));
    config.propagation =
        Propagation::Delay { law: Law::Constant(Duration::ZERO), nodes: Default::default() };
    let records = run(&config, 1, 0);
    for loss in &records.losses {
        assert_eq!(loss.cause, Cause::Reset, "{loss:?}");
        let rule = loss.rule.as_deref().unwrap();
        assert!(rule.starts_with("-t 172.20.") && rule.ends_with(":8080"), "{rule}");
    }
}
