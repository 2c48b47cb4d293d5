//! Clients that stay with their endpoints: `sessionAffinity: ClientIP` in every data plane.

use std::collections::BTreeMap;
use std::time::Duration;

use sim_core::config::*;
use sim_core::record::{Cause, Loss};

use crate::support::{
    Records, assert_within, cluster, mean, mean_and_error, ms, rollout, run, secs, shop,
};

/// Student's t, 11 degrees of freedom, 99.9 % two-sided: 12 replications.
const T_12: f64 = 4.437;

const CENTRAL: ProxyMode =
    ProxyMode::Central(LoadBalancer { per_packet: Duration::ZERO, queue: 1000 });

/// The modes in which each node chooses at random whenever it chooses, with the profile.
const RANDOM: [(ProxyMode, u16); 4] = [
    (ProxyMode::Iptables, 30),
    (ProxyMode::Nftables, 30),
    (ProxyMode::Nftables, 36),
    (ProxyMode::Ebpf(Selection::Random), 30),
];

const MAGLEV: (ProxyMode, u16) = (ProxyMode::Ebpf(Selection::Maglev), 30);
const IPVS: (ProxyMode, u16) = (ProxyMode::Ipvs(IpvsScheduler::Rr), 30);
const USERSPACE: (ProxyMode, u16) = (ProxyMode::Userspace, 30);

/// A time that never comes.
const NEVER: f64 = 1e6;

/// Returns one node with `clients` Pods that each connect every `every` seconds, and a Service of
/// `replicas` Pods with affinity for `timeout` seconds. Of Pods that are deleted nobody ever hears,
/// and they refuse for ever: a lost attempt tells where it went.
fn callers(clients: usize, every: f64, replicas: u32, timeout: f64) -> Config {
    let mut config = cluster(1, replicas, Law::Constant(secs(NEVER)));
    config.services[0].affinity = Some(secs(timeout));
    config.kubelet.start = Law::Constant(secs(NEVER));
    config.kubelet.teardown = Law::Constant(secs(NEVER));
    let group = config.clients.remove(0);
    config.clients = (0..clients)
        .map(|k| ClientSpec {
            name: format!("client-{k:03}"),
            rate_per_s: 1.0 / every,
            arrivals: Arrivals::Constant,
            ..group.clone()
        })
        .collect();
    config.events.clear();
    config
}

fn delete(config: &mut Config, at: f64, count: u32) {
    let action = Action::DeletePod { deployment: shop(), count };
    config.events.push(EventSpec { at: secs(at), action });
}

fn in_mode(config: &Config, (mode, profile): (ProxyMode, u16)) -> Config {
    let mut config = config.clone();
    (config.proxy.mode, config.proxy.profile) = (mode, profile);
    config
}

/// Returns each client's lost attempts in order.
fn by_client(records: &Records) -> BTreeMap<&str, Vec<&Loss>> {
    let mut clients: BTreeMap<&str, Vec<&Loss>> = BTreeMap::new();
    for loss in &records.losses {
        clients.entry(&loss.client).or_default().push(loss);
    }
    clients
}

/// Asserts that so many successes in `trials` of probability `p` are nothing unusual: within five
/// standard deviations.
#[track_caller]
fn assert_binomial(what: &str, successes: usize, trials: usize, p: f64) {
    let (mean, deviation) = (trials as f64 * p, (trials as f64 * p * (1.0 - p)).sqrt());
    let off = (successes as f64 - mean).abs();
    assert!(off <= 5.0 * deviation, "{what}: {successes} of {trials}, expected {mean}");
}

/// Returns how many of 21 clients' attempts each client lost which lost any, 20 calls being made
/// after one of two Pods died.
fn lost_of_twenty(mode: (ProxyMode, u16), every: f64, timeout: f64) -> Vec<usize> {
    let mut config = callers(21, every, 2, timeout);
    delete(&mut config, 2.0 * every, 1);
    config.duration = Some(secs(22.0 * every));
    let records = run(&in_mode(&config, mode), 1, 0);
    assert_eq!(records.attempts.len(), 21 * 22);
    by_client(&records).values().map(|losses| losses.len()).collect()
}

/// Case C49: who calls again within the timeout stays with its endpoint for ever, dead or not,
/// since each call renews the time; who calls later chooses anew each time, one of two.
#[test]
fn c49_retries_within_the_timeout_keep_a_client_at_a_dead_endpoint() {
    for mode in RANDOM {
        let what = format!("{mode:?}");
        let stuck = lost_of_twenty(mode, 3.0, 10.0);
        assert!(stuck.iter().all(|lost| *lost == 20), "{what}: {stuck:?}");
        assert_binomial(&what, stuck.len(), 21, 0.5);
        let moving = lost_of_twenty(mode, 13.0, 10.0);
        assert_binomial(&what, moving.iter().sum(), 21 * 20, 0.5);
        assert!(moving.iter().all(|lost| *lost < 20), "{what}: {moving:?}");
    }
}

/// A Maglev table is looked up without the source port if there is affinity: the choice is the
/// same however long ago the last was.
#[test]
fn c49_a_maglev_table_gives_a_client_the_same_endpoint_for_ever() {
    for every in [3.0, 13.0, 150.0] {
        let stuck = lost_of_twenty(MAGLEV, every, 10.0);
        assert!(stuck.iter().all(|lost| *lost == 20), "{every}: {stuck:?}");
        assert_binomial("clients", stuck.len(), 21, 0.5);
    }
}

/// In turn, 21 clients meet two real servers alternately. A template stays as long as one of its
/// connections is left, a minute at a time, so that more than the timeout of 10 s has to pass; a
/// closed connection has 120 s in TIME_WAIT.
#[test]
fn c49_templates_of_ipvs_outlive_their_timeout_by_their_connections() {
    for every in [3.0, 13.0] {
        let stuck = lost_of_twenty(IPVS, every, 10.0);
        assert!(stuck.iter().all(|lost| *lost == 20), "{every}: {stuck:?}");
        assert!((10..=11).contains(&stuck.len()), "{every}: {stuck:?}");
    }
    let moving = lost_of_twenty(IPVS, 200.0, 10.0);
    assert_eq!(moving, [10; 21]);
}

/// A dial that fails lets the client go on to the next endpoint, and it stays there.
#[test]
fn c49_a_process_that_dials_again_leaves_a_dead_endpoint() {
    for every in [3.0, 13.0] {
        assert!(lost_of_twenty(USERSPACE, every, 10.0).is_empty());
    }
}

/// flannel masquerades what goes to a load balancer outside of the Pods' network: all Pods of a
/// node are one client to it.
#[test]
fn a_load_balancer_takes_the_pods_of_a_node_for_one_client() {
    let stuck = lost_of_twenty((CENTRAL, 30), 3.0, 10.0);
    assert!(stuck.is_empty() || stuck == [20; 21], "{stuck:?}");
    let mut lost = 0;
    for replication in 0..20 {
        let mut config = callers(1, 13.0, 2, 10.0);
        delete(&mut config, 26.0, 1);
        config.duration = Some(secs(22.0 * 13.0));
        lost += run(&in_mode(&config, (CENTRAL, 30)), 1, replication).losses.len();
    }
    assert_binomial("one that calls late", lost, 20 * 20, 0.5);
}

/// Two Services on one node, half of the clients calling each: what is remembered of one is not
/// lost by packets to the other.
#[test]
fn services_on_one_node_remember_their_own_clients() {
    for mode in RANDOM.into_iter().chain([MAGLEV, IPVS]) {
        let mut config = callers(20, 3.0, 4, 10.0);
        let mut other = config.services[0].clone();
        other.name.name = "other".into();
        config.services.push(other);
        for (at, client) in config.clients.iter_mut().enumerate().filter(|(at, _)| at % 2 == 1) {
            client.service.name = "other".into();
            client.rate_per_s *= if at % 4 == 1 { 1.0 } else { 0.5 };
        }
        delete(&mut config, 6.0, 4);
        config.duration = Some(secs(66.0));
        let records = run(&in_mode(&config, mode), 1, 0);
        for (client, losses) in by_client(&records) {
            assert!(losses.len() >= 10, "{mode:?}: {client} {}", losses.len());
            let same = losses.iter().all(|loss| loss.endpoint == losses[0].endpoint);
            assert!(same, "{mode:?}: {client} moved");
        }
    }
}

/// Returns how often clients changed their endpoint from one call to the next, of how many pairs.
fn changes(config: &Config, mode: (ProxyMode, u16)) -> (usize, usize) {
    let records = run(&in_mode(config, mode), 1, 0);
    let mut counts = (0, 0);
    for losses in by_client(&records).values() {
        let changed = losses.windows(2).filter(|pair| pair[0].endpoint != pair[1].endpoint);
        counts = (counts.0 + changed.count(), counts.1 + losses.len() - 1);
    }
    counts
}

/// Case C52: seconds taken for minutes. A client that calls every ten minutes changes its endpoint
/// 144·(1 − 1/E) times a day under 180 s, and never under 10,800 s.
#[test]
fn c52_180_seconds_are_not_180_minutes() {
    let day = |timeout| {
        let mut config = callers(30, 600.0, 4, timeout);
        delete(&mut config, 0.0, 4);
        config.duration = Some(secs(86_400.0));
        config
    };
    for mode in RANDOM {
        let (changed, pairs) = changes(&day(180.0), mode);
        assert_eq!(pairs, 30 * 143);
        assert_binomial(&format!("{mode:?}"), changed, pairs, 0.75);
        assert_eq!(changes(&day(10_800.0), mode), (0, 30 * 143), "{mode:?}");
    }
    // In turn, the 30th client after one gets the real server two places further on.
    assert_eq!(changes(&day(180.0), IPVS), (30 * 143, 30 * 143));
    assert_eq!(changes(&day(10_800.0), IPVS), (0, 30 * 143));
}

/// The lists of `recent` hold 100 addresses each. Of 240 clients that call in turn, some 120 share
/// an endpoint: each is forgotten before it calls again. Sets of nftables have room for all.
#[test]
fn a_list_of_recent_remembers_a_hundred_clients() {
    let many = |clients| {
        let mut config = callers(clients, 60.0, 2, 10_800.0);
        (config.cluster.max_pods, config.cluster.node_prefix_len) = (500, 20);
        delete(&mut config, 0.0, 2);
        config.duration = Some(secs(1200.0));
        config
    };
    let (changed, pairs) = changes(&many(240), RANDOM[0]);
    assert_binomial("iptables", changed, pairs, 0.5);
    assert_eq!(changes(&many(90), RANDOM[0]), (0, 90 * 19));
    assert_eq!(changes(&many(240), RANDOM[1]), (0, 240 * 19));
}

/// Returns how many clients are with the Pod that was replaced first, after a rolling update of two
/// Pods, and how many there are: each is there again after `gap` seconds, and the second goes 30 s
/// later. Everybody calls once a minute.
///
/// All nodes hear of all changes 70 s late, so that the final deletion of both leaves each client a
/// call that tells where it is.
fn first_replaced(mode: (ProxyMode, u16), gap: f64, replications: u32) -> (usize, usize) {
    let mut config = callers(90, 60.0, 2, 10_800.0);
    config.propagation =
        Propagation::Delay { law: Law::Constant(secs(70.0)), nodes: Default::default() };
    config.kubelet.teardown = Law::Constant(secs(5.0));
    config.kubelet.start = Law::Constant(secs(gap - 5.0));
    config.deployments[0].min_ready = secs(30.0);
    rollout(&mut config);
    config.events[0].at = secs(65.0);
    // Long after the last has heard of the roll.
    let last = 1000.0;
    delete(&mut config, last, 2);
    config.duration = Some(secs(last + 62.0));
    let (mut first, mut all) = (0, 0);
    for replication in 0..replications {
        let records = run(&in_mode(&config, mode), 1, replication);
        assert_eq!(records.windows.len(), 4, "two that were replaced, two in the end");
        let during = |loss: &&Loss| (last..last + 60.0).contains(&loss.sent.as_secs_f64());
        let probes = records.losses.iter().filter(during);
        let probes: Vec<_> = probes.filter_map(|loss| loss.endpoint.clone()).collect();
        assert_eq!(probes.len(), 90, "{mode:?}");
        // Addresses are given one after the other.
        let lowest = probes.iter().min().expect("there are some");
        all += probes.len();
        first += probes.iter().filter(|at| *at == lowest).count();
    }
    (first, all)
}

/// Case C51: after a rolling update, who was there longest has the clients.
///
/// If a Pod takes longer to come than clients to call, all of the first Pod's clients go to the
/// second, and all of the second's to the first's successor: everybody, for as long as they call.
///
/// If it comes after 15 s, a quarter of the first's clients call while there is only one other Pod.
/// Half of the rest choose the successor. The second Pod goes 45 s after the first: those that have
/// not called in between, a quarter, find only the successor. Of the first's clients it gets
/// 30/60 · 1/2 + 15/60 so, and half of those that went to the second; of the second's clients 15/60
/// as its only endpoint and half of the rest: (0.75 + 0.625) / 2 in all.
#[test]
fn c51_after_a_rolling_update_the_pod_that_was_there_longest_has_the_clients() {
    for mode in RANDOM {
        let everybody = first_replaced(mode, 65.0, 1);
        assert_eq!(everybody, (90, 90), "{mode:?}");
        let (first, all) = first_replaced(mode, 15.0, 11);
        assert_binomial(&format!("{mode:?}"), first, all, 0.6875);
    }
}

/// Returns a rollout of 10 Pods on 100 nodes with a client Pod each, 200 connections a second, lags
/// of 300 ms in mean. A Pod comes when all have heard that its predecessor is gone.
fn spaced(affinity: bool) -> Config {
    let mut config = cluster(100, 10, Law::Exponential { mean: ms(300) });
    config.clients[0].rate_per_s = 200.0;
    config.services[0].affinity = affinity.then(|| secs(10_800.0));
    config.kubelet.start = Law::Constant(secs(3.0));
    config.deployments[0].min_ready = secs(2.0);
    rollout(&mut config);
    config.events[0].at = secs(4.0);
    config
}

fn lost(records: &Records) -> f64 {
    records.lost() as f64
}

/// A rolling update loses more with affinity, by a factor that grows from 3/2 at two Pods to e − 1.
///
/// Mechanism: of a Pod that goes, the clients choose anew while its successor is not there yet, so
/// that those which are still to go get their clients, and nobody goes back. A Pod's share before
/// the k-th deletion is s₁ = 1/E, sₖ₊₁ = sₖ·(1 + 1/(E−1)); each deletion loses λ·m·sₖ. Without
/// affinity sₖ is 1/E each time. The sum is λ·m·(E−1)/E·((E/(E−1))ᴱ − 1).
#[test]
fn a_rolling_update_loses_more_since_clients_gather_on_those_that_are_still_to_go() {
    let pods = 10f64;
    let gathered = (pods - 1.0) / pods * ((pods / (pods - 1.0)).powf(pods) - 1.0);
    assert!((gathered - 1.681).abs() < 0.001);
    for mode in [RANDOM[0], RANDOM[1], RANDOM[3], (CENTRAL, 30)] {
        let what = format!("{mode:?}");
        let sticky = mean(&in_mode(&spaced(true), mode), 12, lost);
        assert_within(&what, sticky, 60.0 * gathered, T_12);
        if mode == RANDOM[0] {
            let plain = mean(&in_mode(&spaced(false), mode), 12, lost);
            assert_within("without", plain, 60.0, T_12);
            assert!(sticky.0 > plain.0 + 5.0 * (sticky.1 + plain.1), "{sticky:?} {plain:?}");
        }
    }
    // The process's other dials save all that meet a closed port.
    let dialed = run(&in_mode(&spaced(true), USERSPACE), 1, 0);
    assert!(dialed.losses.iter().all(|loss| loss.cause == Cause::Reset), "what was in flight");
    assert!(dialed.lost() < 5, "{}", dialed.lost());
}

/// One deletion loses the same in mean, λ·m/E, and spreads much wider.
///
/// Mechanism: the clients of a node are all with the Pod, or none. With one client a node and a lag
/// that is exponential, a = λ·m/N: a node loses a/E in mean and (a + 2a²)/E in mean square, while
/// without affinity the count is Poisson for given lags, of variance N·(a/E + (a/E)²).
#[test]
fn a_deletion_loses_the_same_in_mean_and_varies_more() {
    let losses = |affinity: bool| -> Vec<f64> {
        let mut config = cluster(20, 10, Law::Exponential { mean: ms(300) });
        config.services[0].affinity = affinity.then(|| secs(10_800.0));
        (0..60).map(|replication| lost(&run(&config, 1, replication))).collect()
    };
    let (nodes, pods, a) = (20.0, 10.0, 1000.0 * 0.3 / 20.0);
    let variances = [
        nodes * ((a + 2.0 * a * a) / pods - (a / pods) * (a / pods)),
        nodes * (a / pods + (a / pods) * (a / pods)),
    ];
    for (affinity, expected) in [true, false].into_iter().zip(variances) {
        let losses = losses(affinity);
        let (mean, error) = mean_and_error(&losses);
        // Student's t, 59 degrees of freedom, 99.9 % two-sided.
        assert_within("mean", (mean, error), 30.0, 3.463);
        let variance = error * error * 60.0;
        assert!((0.4..2.5).contains(&(variance / expected)), "{affinity}: {variance} {expected}");
    }
    assert!(variances[0] > 10.0 * variances[1]);
}

/// Retries save requests that choose anew, and none of a client that stays.
///
/// For a constant lag L and r retries, each b after the last, a request to the dead Pod is lost if
/// its last attempt is sent within L: λ/E·(L − r·b) with affinity, a share E⁻ʳ of it without.
#[test]
fn retries_do_not_save_a_client_that_stays() {
    let lost = |affinity: bool| {
        let mut config = cluster(200, 10, Law::Constant(secs(1.0)));
        config.services[0].affinity = affinity.then(|| secs(10_800.0));
        (config.clients[0].retries, config.clients[0].retry_backoff) = (2, ms(100));
        // Every client has called by then.
        config.events[0].at = secs(3.0);
        config.kubelet.teardown = Law::Constant(secs(5.0));
        mean(&config, 12, |records| records.run().requests_lost as f64)
    };
    assert_within("with affinity", lost(true), 100.0 * 0.8, T_12);
    assert_within("without", lost(false), 100.0 * 0.8 / 100.0, T_12);
}

/// The first client of every node gets the same real server: nodes take turns by themselves, and
/// all begin at one place.
#[test]
fn ipvs_sends_the_first_client_of_every_node_to_one_real_server() {
    let mut config = callers(1, 1.0, 4, 10_800.0);
    config.cluster.nodes = 10;
    config.clients[0].rate_per_s = 10.0;
    delete(&mut config, 0.0, 4);
    config.duration = Some(secs(20.0));
    let endpoints = |mode| {
        let records = run(&in_mode(&config, mode), 1, 0);
        let mut endpoints: Vec<_> =
            records.losses.iter().filter_map(|loss| loss.endpoint.clone()).collect();
        endpoints.sort();
        endpoints.dedup();
        endpoints.len()
    };
    assert_eq!(endpoints(IPVS), 1);
    assert!(endpoints(RANDOM[0]) > 1);
}

/// What is lost to rules alone no longer follows from when they went live: of a Service with
/// affinity nothing is expected, of another one beside it still.
#[test]
fn windows_of_a_service_with_affinity_have_no_expectation() {
    let mut config = cluster(5, 4, Law::Exponential { mean: ms(300) });
    let mut other = config.services[0].clone();
    other.name.name = "other".into();
    config.services.push(other);
    config.services[0].affinity = Some(secs(60.0));
    let mut client = config.clients[0].clone();
    (client.name, client.service.name) = ("back".into(), "other".into());
    config.clients.push(client);
    rollout(&mut config);
    let records = run(&config, 1, 0);
    assert_eq!(records.windows.len(), 8);
    for window in &records.windows {
        let is_other = &*window.service == "default/other";
        assert_eq!(window.expected_lost.is_some(), is_other, "{}", window.service);
        assert_eq!(window.lost_first_stale.is_some(), is_other, "{}", window.service);
    }
    assert_eq!((records.run().expected_lost, records.run().lost_first_stale), (None, None));
    // Nobody calls it: all that is lost is of the other.
    config.clients.remove(0);
    assert!(run(&config, 1, 0).run().expected_lost.is_some());
}

#[test]
fn a_run_with_affinity_is_repeated_to_the_byte() {
    let mut config = cluster(4, 4, Law::Exponential { mean: ms(300) });
    config.services[0].affinity = Some(secs(2.0));
    rollout(&mut config);
    for mode in RANDOM.into_iter().chain([MAGLEV, IPVS, USERSPACE, (CENTRAL, 30)]) {
        let config = in_mode(&config, mode);
        assert_eq!(run(&config, 3, 0), run(&config, 3, 0), "{mode:?}");
    }
}
