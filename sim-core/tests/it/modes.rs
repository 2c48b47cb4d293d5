//! One cluster, one seed, the data plane swapped: who loses alike, who does not, and why.

use std::time::Duration;

use sim_core::config::*;
use sim_core::record::{Cause, Symptom};

use crate::support::{Records, assert_within, cluster, means, ms, rollout, run, secs};

/// Student's t, 5 degrees of freedom, 99.9 % two-sided: 6 replications.
const T_6: f64 = 6.869;

/// Returns a rollout of 10 Pods on 20 nodes, deletions two seconds apart, lags of 300 ms in mean.
fn config(mode: ProxyMode, profile: u16) -> Config {
    let mut config = cluster(20, 10, Law::Exponential { mean: ms(300) });
    config.deployments[0].min_ready = ms(2000);
    config.proxy.mode = mode;
    config.proxy.profile = profile;
    rollout(&mut config);
    config
}

#[test]
fn modes_that_choose_at_random_lose_rate_times_mean_lag() {
    for (mode, profile) in
        [(ProxyMode::Iptables, 30), (ProxyMode::Nftables, 30), (ProxyMode::Nftables, 36)]
    {
        let config = config(mode, profile);
        let expected = |run: &Records| run.stale() - run.run().expected_lost.unwrap();
        let [stale, difference] = means(&config, 6, [&Records::stale, &expected]);
        let what = format!("{mode:?} of 1.{profile}");
        assert_within(&what, stale, 300.0, T_6);
        assert_within(&what, difference, 0.0, T_6);
        let records = run(&config, 1, 0);
        assert_eq!(records.lost(), records.stale() as u64, "{what}: nothing else is lost");
        let gone = [Cause::Refused, Cause::Unreachable, Cause::Blackholed];
        assert!(records.losses.iter().all(|loss| gone.contains(&loss.cause)), "{what}");
    }
}

/// The process dials another endpoint when one refuses, so a stale list costs time, not requests.
#[test]
fn a_process_that_dials_again_loses_no_refused_connection() {
    let records = run(&config(ProxyMode::Userspace, 30), 1, 0);
    assert_eq!(records.lost(), 0);
    assert_eq!(records.windows.len(), 10);
    let run = records.run();
    assert!(run.requests > 10_000, "{}", run.requests);
    assert_eq!((run.lost_first_stale, run.expected_lost), (None, None), "there is no closed form");
    let chosen: u64 = records.windows.iter().map(|window| window.attempts_to_pod).sum();
    assert!(chosen > 0, "windows know which attempts the process sent to their Pods");
}

/// An address that nobody has any more takes a whole dial: 250 ms for the first.
#[test]
fn a_dial_into_nothing_takes_its_timeout_and_then_another_endpoint_is_dialed() {
    let mut config = config(ProxyMode::Userspace, 30);
    // Nobody hears in time, and the address is gone at once.
    config.propagation =
        Propagation::Delay { law: Law::Constant(secs(1.0)), nodes: Default::default() };
    config.kubelet.teardown = Law::Constant(Duration::ZERO);
    // While a dial waits, others take their turns: one in ten second dials meets the same endpoint
    // again, and one in a hundred third ones, for which a second is too short.
    let records = run(&config, 1, 0);
    let thrice = records.losses.iter().filter(|loss| loss.cause == Cause::Blackholed).count();
    assert!((1..30).contains(&thrice), "{thrice}");
    config.clients[0].timeout = ms(200);
    let records = run(&config, 1, 0);
    // Turns are even: a tenth of a second's requests for each Pod that is gone.
    let lost = records.lost() as f64;
    assert!((lost - 1000.0).abs() < 5.0 * 1000f64.sqrt(), "{lost}");
    for loss in &records.losses {
        assert_eq!((loss.cause, loss.symptom), (Cause::Blackholed, Symptom::Timeout));
    }
}

#[test]
fn a_service_without_endpoints_is_closed_on_by_the_process_and_refused_by_rules() {
    for (mode, cause, symptom) in [
        (ProxyMode::Iptables, Cause::Rejected, Symptom::Refused),
        (ProxyMode::Nftables, Cause::Rejected, Symptom::Refused),
        (ProxyMode::Userspace, Cause::Reset, Symptom::Reset),
    ] {
        let mut config = cluster(3, 1, Law::Constant(Duration::ZERO));
        config.proxy.mode = mode;
        config.deployments[0].replicas = 0;
        config.events.clear();
        config.duration = Some(secs(1.0));
        let records = run(&config, 1, 0);
        // The kernel sends each Pod six ICMP errors and then one a second; a process has no limit.
        let at_least = if mode == ProxyMode::Userspace { 900 } else { 18 };
        assert!(records.lost() >= at_least, "{mode:?} {}", records.lost());
        for loss in &records.losses {
            assert_eq!((loss.cause, loss.symptom), (cause, symptom), "{mode:?}");
        }
    }
}

const BALANCER: LoadBalancer = LoadBalancer { per_packet: Duration::ZERO, queue: 1000 };

/// One copy of the rules is late once, for everybody; the same mean is lost, and each window's
/// loss follows from one lag instead of twenty.
#[test]
fn a_central_load_balancer_loses_rate_times_its_own_lag() {
    let config = config(ProxyMode::Central(BALANCER), 30);
    let difference = |run: &Records| run.stale() - run.run().expected_lost.unwrap();
    let [stale, difference] = means(&config, 6, [&Records::stale, &difference]);
    assert_within("stale", stale, 300.0, T_6);
    assert_within("stale less expected", difference, 0.0, T_6);
}

/// To the load balancer, and on to the endpoint; without, straight to it, unless it is on the
/// client's own node, as one in twenty is.
#[test]
fn s0_46_packets_pass_a_load_balancer_or_go_straight() {
    let hops = |mode| run(&config(mode, 30), 1, 0).run().mean_hops().unwrap();
    assert_eq!(hops(ProxyMode::Central(BALANCER)), 2.0);
    let direct = hops(ProxyMode::Iptables);
    assert!((direct - 0.95).abs() < 0.01, "{direct}");
}

/// A change is told to one machine, or to all.
#[test]
fn s0_49_a_change_is_one_update_or_as_many_as_there_are_nodes() {
    let central = run(&config(ProxyMode::Central(BALANCER), 30), 1, 0);
    let direct = run(&config(ProxyMode::Iptables, 30), 1, 0);
    assert_eq!((central.run().holders, direct.run().holders), (1, 20));
    assert!(central.run().updates >= 20, "ten Pods are replaced");
    assert_eq!(direct.run().updates, 20 * central.run().updates);
}

/// Offered more than it can do, the load balancer is a queue that overflows; rules on every
/// node have no such place.
#[test]
fn s0_47_a_central_load_balancer_clogs_when_more_is_offered_than_it_can_do() {
    // A request is ten packets, five each way; the load balancer passes all of them.
    let lost = |capacity: f64| {
        let per_packet = secs(1.0 / capacity);
        let mut config = config(ProxyMode::Central(LoadBalancer { per_packet, queue: 100 }), 30);
        config.events.clear();
        config.duration = Some(secs(5.0));
        let records = run(&config, 1, 0);
        assert!(records.losses.iter().all(|loss| loss.cause == Cause::Link), "{capacity}");
        records.lost() as f64 / records.attempts.len() as f64
    };
    assert_eq!(lost(20_000.0), 0.0);
    let clogged = lost(5_000.0);
    assert!((0.3..0.9).contains(&clogged), "{clogged}");
}

/// All of it fails at once; a node takes its own share of endpoints with it.
#[test]
fn s0_48_a_failed_load_balancer_loses_everything_and_a_failed_node_its_share() {
    let lost = |mode, machine| {
        let mut config = config(mode, 30);
        let action = Action::Fail { machine, lasting: Some(secs(2.0)) };
        config.events = vec![EventSpec { at: secs(1.0), action }];
        config.clients[0].timeout = ms(500);
        config.duration = Some(secs(5.0));
        let records = run(&config, 1, 0);
        let (from, until) = (1.0, 2.4);
        let during = |at: f64| (from..until).contains(&at);
        let attempts = records.attempts.iter().filter(|at| during(at.as_secs_f64())).count();
        let lost = records.losses.iter().filter(|loss| during(loss.sent.as_secs_f64())).count();
        let after = records.losses.iter().filter(|loss| loss.sent.as_secs_f64() > 3.0).count();
        assert_eq!(after, 0, "{machine:?}: all is well once it is back");
        (lost as f64 / attempts as f64, attempts as f64)
    };
    let (share, _) = lost(ProxyMode::Central(BALANCER), Machine::LoadBalancer);
    assert_eq!(share, 1.0);
    // The first of twenty nodes with one of ten endpoints.
    let (share, attempts) = lost(ProxyMode::Iptables, Machine::Node(0));
    let expected: f64 = 0.1;
    let error = (expected * (1.0 - expected) / attempts).sqrt();
    assert!((share - expected).abs() < 4.0 * error, "{share}");
}

/// Returns three Pods of one Service on two nodes, with a packet to it every 100 ms.
fn article(tick: Duration) -> Config {
    let mut config = cluster(2, 3, Law::Constant(ms(1500)));
    config.proxy.mode = ProxyMode::Article(tick);
    config.clients[0].rate_per_s = 10.0;
    config.clients[0].arrivals = Arrivals::Constant;
    config.events.clear();
    config.duration = Some(secs(3.0));
    config
}

/// Returns, for each of two nodes, when it sent and which of three Pods, in order of names, its rule
/// chose. The Pods refuse from 1.0 s on, so every attempt tells where it went.
fn turns() -> Vec<Vec<(f64, usize)>> {
    let mut config = article(Duration::ZERO);
    config.deployments[0].template.readiness = None;
    config.events = vec![EventSpec {
        at: secs(1.0),
        action: Action::DeletePod { deployment: crate::support::shop(), count: 3 },
    }];
    config.propagation =
        Propagation::Delay { law: Law::Constant(secs(60.0)), nodes: Default::default() };
    config.kubelet.start = Law::Constant(secs(60.0));
    config.duration = Some(secs(4.0));
    let records = run(&config, 1, 0);
    let mut names: Vec<&str> = records.windows.iter().map(|window| &*window.pod).collect();
    names.sort_unstable();
    assert_eq!(names.len(), 3);
    let mut by_node = std::collections::BTreeMap::<&str, Vec<(f64, usize)>>::new();
    for loss in &records.losses {
        let window = &records.windows[loss.window.expect("its window is open") as usize];
        let at = names.iter().position(|name| **name == *window.pod).unwrap();
        by_node.entry(&loss.node).or_default().push((loss.sent.as_secs_f64(), at));
    }
    let nodes: Vec<_> = by_node.into_values().collect();
    assert_eq!(nodes.len(), 2);
    assert!(nodes.iter().all(|chosen| chosen.len() > 5), "{nodes:?}");
    nodes
}

/// After a Pod comes the next one by name, whatever their addresses or ages.
#[test]
fn s0_10_endpoints_stand_in_order_of_their_pods_names() {
    for chosen in turns() {
        let after = |one: usize| chosen.windows(2).filter(move |pair| pair[0].1 == one);
        for one in 0..3 {
            assert!(after(one).count() > 1);
            assert!(after(one).all(|pair| pair[1].1 == (one + 1) % 3), "{chosen:?}");
        }
    }
}

/// Pods are chosen 0, 1, 2, 0, 1, … by every node.
#[test]
fn s0_21_endpoints_are_chosen_in_turn() {
    for chosen in turns() {
        let first = chosen[0].1;
        let wanted = (0..chosen.len()).map(|turn| (first + turn) % 3);
        assert!(chosen.iter().map(|&(_, pod)| pod).eq(wanted), "{chosen:?}");
    }
}

/// Each node counts for itself: after different numbers of packets, two nodes that send at about
/// the same time send to different Pods.
#[test]
fn s0_23_nodes_drift_apart() {
    let nodes = turns();
    let next = |node: usize, at: f64| nodes[node].iter().find(|&&(sent, _)| sent > at);
    let mut apart = 0;
    for tick in 10..35 {
        let at = f64::from(tick) / 10.0;
        if let (Some((_, one)), Some((_, other))) = (next(0, at), next(1, at)) {
            apart += u32::from(one != other);
        }
    }
    assert!(apart > 0, "{nodes:?}");
}

/// Where a node has no rule for a Service, its packets leave by the default route: nobody has them.
#[test]
fn s0_22_without_a_rule_packets_go_nowhere() {
    let mut config = article(Duration::ZERO);
    config.deployments[0].replicas = 0;
    config.clients[0].timeout = ms(500);
    let records = run(&config, 1, 0);
    assert!(records.losses.len() > 10);
    assert!(records.losses.iter().all(|loss| loss.cause == Cause::NoRule), "{:?}", records.losses);
}

/// What nodes choose by themselves is spread evenly in sum: at random as a fair sample is, in turn
/// more evenly than any sample.
#[test]
fn s0_24_what_counts_is_the_spread_over_all_nodes() {
    let p = |mode| {
        let balance = run(&config(mode, 30), 1, 0).run().balance.expect("thousands of choices");
        // About as many as versions times endpoints.
        assert!(balance.freedom > 90, "{mode:?} {balance:?}");
        // Wilson and Hilferty: the cube root of χ² over its degrees is nearly normal.
        let freedom = balance.freedom as f64;
        let variance = 2.0 / (9.0 * freedom);
        ((balance.chi2 / freedom).cbrt() - (1.0 - variance)) / variance.sqrt()
    };
    for mode in [ProxyMode::Iptables, ProxyMode::Nftables, ProxyMode::Ebpf(Selection::Random)] {
        let deviation = p(mode);
        assert!(deviation.abs() < 3.5, "{mode:?} {deviation}");
    }
    let turns = p(ProxyMode::Ipvs(IpvsScheduler::Rr));
    assert!(turns < -5.0, "{turns}");
}

/// The same cluster and seed with virtual servers: as much is lost, and no packet passes a rule for
/// each Service.
#[test]
fn s0_26_ipvs_loses_alike_and_looks_up_flat() {
    let with = |mode, others| {
        let mut config = config(mode, 30);
        config.propagation = Propagation::Pipeline(Box::new(Pipeline {
            watch: Law::Exponential { mean: ms(300) },
            nodes: Default::default(),
            min_sync_period: None,
            sync_period: None,
            iptables_backend: IptablesBackend::Nft,
            cost: SyncCostConfig { scale: 0.0, ..SyncCostConfig::default() },
            failure: 0.0,
            contender: None,
            others: OtherServices { count: others, endpoints: 10 },
        }));
        config
    };
    let passed = |mode, others| run(&with(mode, others), 1, 0).run().mean_rules_passed().unwrap();
    let ipvs = ProxyMode::Ipvs(IpvsScheduler::Rr);
    assert_eq!(passed(ipvs, 0), passed(ipvs, 1_000));
    // Half of them on the client's node, and all on that of the endpoint, one in twenty being both.
    let more = passed(ProxyMode::Iptables, 1_000) - passed(ProxyMode::Iptables, 0);
    assert!((more - 500.0 - 950.0).abs() < 10.0, "{more}");
    let lost = |mode| {
        let [lost] = means(&config(mode, 30), 6, [&|run: &Records| run.lost() as f64]);
        lost
    };
    let (ipvs, iptables) = (lost(ipvs), lost(ProxyMode::Iptables));
    let error = (ipvs.1.powi(2) + iptables.1.powi(2)).sqrt();
    assert!((ipvs.0 - iptables.0).abs() < T_6 * error, "{ipvs:?} {iptables:?}");
}

/// A change of 1.0 s with a delay of 1.5 ticks is known at tick 3.
#[test]
fn s0_27_a_logical_clock_delivers_at_whole_ticks() {
    for (tick, live) in [(Duration::ZERO, 2.5), (secs(1.0), 3.0)] {
        let mut config = article(tick);
        let scale = |at, replicas| EventSpec {
            at: secs(at),
            action: Action::Scale { deployment: crate::support::shop(), replicas },
        };
        config.events = vec![scale(1.0, 0), scale(4.5, 1)];
        config.duration = Some(secs(5.0));
        config.clients[0].timeout = ms(500);
        let records = run(&config, 1, 0);
        for window in &records.windows {
            assert_eq!(window.last_node.unwrap().as_secs_f64(), live);
        }
        let after = records.losses.iter().filter(|loss| loss.sent.as_secs_f64() > live);
        assert!(after.clone().count() > 5);
        assert!(after.clone().all(|loss| loss.cause == Cause::NoRule), "{tick:?}");
        let before = records.losses.iter().filter(|loss| loss.sent.as_secs_f64() < live);
        assert!(before.clone().count() > 5);
        assert!(before.clone().all(|loss| loss.cause != Cause::NoRule), "{tick:?}");
    }
}

/// With the last endpoint the rule goes, so packets find none; kube-proxy puts a refusal in its
/// place.
#[test]
fn s0_28_the_rule_of_a_service_without_endpoints_is_gone() {
    for (mode, cause) in [
        (ProxyMode::Article(Duration::ZERO), Cause::NoRule),
        (ProxyMode::Iptables, Cause::Rejected),
    ] {
        let mut config = article(Duration::ZERO);
        config.proxy.mode = mode;
        config.clients[0].timeout = ms(500);
        let scale = |at, replicas| EventSpec {
            at: secs(at),
            action: Action::Scale { deployment: crate::support::shop(), replicas },
        };
        config.events = vec![scale(1.0, 0), scale(4.5, 1)];
        config.duration = Some(secs(5.0));
        let records = run(&config, 1, 0);
        let after = || records.losses.iter().filter(|loss| loss.sent.as_secs_f64() > 2.5);
        assert!(after().count() > 5, "{mode:?}");
        assert!(after().all(|loss| loss.cause == cause), "{mode:?} {:?}", records.losses);
    }
}
