//! Simulated losses and lags against closed forms.
//!
//! Seeds are fixed, so a test either always passes or always fails. Tolerances are intervals of
//! Student's t at the stated level.

use std::time::Duration;

use sim_core::config::*;
use sim_core::record::Cause;

use crate::support::{
    Records, assert_within, cluster, mean, mean_and_error, means, ms, rollout, run, secs, shop,
};

/// Student's t, 11 degrees of freedom, 99.9 % two-sided: 12 replications.
const T_12: f64 = 4.437;

/// Returns a rollout of 10 Pods on 100 nodes whose deletions are `min_ready` and more apart.
fn spaced_rollout(law: Law, min_ready: Duration) -> Config {
    let mut config = cluster(100, 10, law);
    config.deployments[0].min_ready = min_ready;
    rollout(&mut config);
    config
}

#[test]
fn v1_every_node_hears_one_second_late() {
    let config = spaced_rollout(Law::Constant(ms(1000)), ms(2000));
    assert_within("V1", mean(&config, 12, |run| run.stale()), 1000.0, T_12);
    let records = run(&config, 1, 0);
    assert_eq!(records.windows.len(), 10);
    for window in &records.windows {
        assert_eq!(window.stale_mean_s, Some(1.0));
        assert_eq!(window.last_node.unwrap() - window.opened, ms(1000));
    }
}

#[test]
fn v2_a_pre_stop_sleep_cuts_the_uniform_tail() {
    let law = Law::Uniform { min: ms(200), max: ms(2200) };
    let mut config = spaced_rollout(law, ms(4600));
    for (pre_stop, expected) in [(0, 1200.0), (1200, 250.0)] {
        config.deployments[0].template.pre_stop = Some(ms(pre_stop));
        assert_within("V2", mean(&config, 12, |run| run.stale()), expected, T_12);
    }
    config.deployments[0].template.pre_stop = Some(ms(2200));
    assert_eq!(run(&config, 1, 0).stale(), 0.0);
}

#[test]
fn v3_one_stuck_node_loses_alone() {
    let mut config = spaced_rollout(Law::Constant(ms(500)), secs(12.5));
    let Propagation::Delay { nodes, .. } = &mut config.propagation else { unreachable!() };
    nodes.insert(17, Law::Constant(secs(12.0)));
    config.deployments[0].template.pre_stop = Some(secs(5.0));
    assert_within("V3", mean(&config, 12, |run| run.stale()), 70.0, T_12);
    let records = run(&config, 1, 0);
    let stale = records.losses.iter().filter(|loss| loss.stale_for.is_some());
    assert!(stale.map(|loss| &*loss.node).all(|node| node == "node-17"));
}

#[test]
fn v4_a_process_that_ignores_sigterm_loses_nothing_new_until_it_is_killed() {
    let mut config = cluster(100, 10, Law::Uniform { min: secs(0.0), max: secs(29.0) });
    let template = &mut config.deployments[0].template;
    template.application.on_sigterm = OnSigterm::Ignore;
    template.application.service_time = Law::Constant(ms(200));
    assert_eq!(run(&config, 1, 0).lost(), 0, "all nodes hear within the grace period");

    // Nobody hears in time: what is in service at SIGKILL is reset, 100/s for 0.2 s (and the
    // handshake, 0.2 ms of it), and then new connections are refused for 10 s.
    config.propagation =
        Propagation::Delay { law: Law::Constant(secs(40.0)), nodes: Default::default() };
    let resets = |run: &Records| {
        let mut lost = run.run().inside.lost;
        lost.merge(&run.run().outside.lost);
        lost.get(Cause::Reset) as f64
    };
    let [resets, new] = means(&config, 12, [&resets, &Records::stale]);
    assert_within("V4, in flight", resets, 20.02, T_12);
    assert_within("V4, new", new, 1000.0, T_12);
}

#[test]
fn a_rolling_update_loses_rate_times_mean_lag_whatever_its_size() {
    for replicas in [2, 10, 50] {
        let mut config = cluster(20, replicas, Law::Exponential { mean: ms(200) });
        config.deployments[0].min_ready = secs(4.0);
        config.kubelet.start = Law::Constant(secs(4.0));
        rollout(&mut config);
        let lost = mean(&config, 10, |run| run.stale());
        assert_within(&format!("{replicas} replicas"), lost, 1000.0 * 0.2, 4.0);
    }
}

#[test]
fn losses_agree_with_their_expectation_under_the_default_strategy() {
    let mut config = cluster(50, 10, Law::Exponential { mean: ms(300) });
    config.deployments[0].strategy = Strategy::RollingUpdate {
        max_surge: IntOrPercent::Percent(25),
        max_unavailable: IntOrPercent::Percent(25),
    };
    config.kubelet = KubeletConfig {
        notice: Law::Exponential { mean: ms(100) },
        start: Law::Uniform { min: ms(500), max: ms(2000) },
        teardown: Law::Uniform { min: ms(100), max: ms(2000) },
    };
    rollout(&mut config);
    let excess = |run: &Records| run.stale() - run.run().expected_lost.unwrap();
    assert_within("lost − expected", mean(&config, 40, excess), 0.0, 4.0);
}

#[test]
fn loss_falls_exponentially_with_the_pre_stop_sleep() {
    // E[(D − p)⁺] = m·exp(−p/m).
    let mut config = spaced_rollout(Law::Exponential { mean: ms(400) }, secs(6.0));
    for factor in [0.0, 1.0, 2.0] {
        config.deployments[0].template.pre_stop = Some(secs(0.4 * factor));
        let expected = 400.0 * f64::exp(-factor);
        let what = format!("preStop of {factor} means");
        assert_within(&what, mean(&config, 12, |run| run.stale()), expected, T_12);
    }
}

/// Returns the mean time until the last node, over deletions that are far apart.
fn last_node(nodes: u32, law: Law, replications: u32) -> (f64, f64) {
    let mut config = cluster(nodes, 1, law);
    config.clients[0].rate_per_s = 1.0;
    config.events = (0..4)
        .map(|k| EventSpec {
            at: secs(1.0 + 60.0 * f64::from(k)),
            action: Action::DeletePod { deployment: shop(), count: 1 },
        })
        .collect();
    let mut lags = Vec::new();
    for replication in 0..replications {
        let records = run(&config, 1, replication);
        assert_eq!(records.windows.len(), 4);
        lags.extend(records.windows.iter().map(|window| {
            (window.last_node.unwrap() - window.endpoints_changed.unwrap()).as_secs_f64()
        }));
    }
    mean_and_error(&lags)
}

#[test]
fn the_last_of_n_nodes_under_an_exponential_is_a_harmonic_number_of_means_late() {
    for nodes in [10u32, 100, 1000, 5000] {
        let law = Law::Exponential { mean: ms(500) };
        let harmonic: f64 = (1..=nodes).map(|k| 1.0 / f64::from(k)).sum();
        let replications = if nodes < 1000 { 25 } else { 10 };
        let what = format!("last of {nodes}");
        // 40 lags and more: 99.99 % of a t distribution with 39 degrees of freedom.
        assert_within(&what, last_node(nodes, law, replications), 0.5 * harmonic, 4.28);
    }
}

#[test]
fn the_last_of_n_nodes_under_another_law_is_the_integral_of_its_tail() {
    let law = Law::Gamma { shape: 2.0, scale_s: 0.25 };
    for nodes in [10u32, 1000] {
        // ∫ (1 − F(t)^N) dt by Simpson's rule up to 20 s, where the tail is below 1e-30.
        let steps = 20_000;
        let width = 20.0 / f64::from(steps);
        let tail = |k: i32| 1.0 - law.cdf(f64::from(k) * width).powf(f64::from(nodes));
        let sum: f64 = (0..=steps)
            .map(|k| {
                tail(k) * if k == 0 || k == steps { 1.0 } else { 2.0 + 2.0 * f64::from(k % 2) }
            })
            .sum();
        let expected = sum * width / 3.0;
        let measured = last_node(nodes, law.clone(), 20);
        assert_within(&format!("last of {nodes}"), measured, expected, 4.0);
    }
}
