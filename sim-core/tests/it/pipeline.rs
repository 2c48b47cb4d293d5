//! Propagation through watches and syncs.

use std::time::Duration;

use netfilter_model::rule::iptables_save;
use sim_core::config::*;
use sim_core::engine::rng::Seed;
use sim_core::ids::{Id, NodeId};
use sim_core::proxy::profile::Profile;
use sim_core::proxy::sync::cost::{Backend, Rules, SyncCost, Work};
use sim_core::record::{Cause, Syncs};
use sim_core::time::SimTime;
use sim_core::world::World;

use crate::support::{
    Records, assert_within, cluster, mean_and_error, ms, rollout, run, secs, shop,
};

fn at(millis: u64) -> SimTime {
    SimTime::from_nanos(millis * 1_000_000)
}

/// A pipeline in which the watch takes `watch` and syncs cost nothing.
fn pipeline(watch: Law) -> Pipeline {
    Pipeline {
        watch,
        nodes: Default::default(),
        min_sync_period: None,
        sync_period: None,
        iptables_backend: IptablesBackend::Nft,
        cost: SyncCostConfig { scale: 0.0, ..SyncCostConfig::default() },
        failure: 0.0,
        contender: None,
        others: OtherServices::default(),
    }
}

/// A sync takes 400 ms: 200 until the restore, 100 for table filter, 100 for nat.
fn slow() -> SyncCostConfig {
    let zero = Some(Duration::ZERO);
    SyncCostConfig {
        base: Some(ms(400)),
        ensure: zero,
        per_service: zero,
        per_rule_made: zero,
        per_rule_written: zero,
        per_rule_held: zero,
        per_rule_listed: zero,
        ..SyncCostConfig::default()
    }
}

fn config(nodes: u32, replicas: u32, pipeline: Pipeline) -> Config {
    let mut config = cluster(nodes, replicas, Law::Constant(Duration::ZERO));
    config.proxy.profile = 34;
    config.propagation = Propagation::Pipeline(Box::new(pipeline));
    config
}

fn syncs(records: &Records) -> Syncs {
    records.run().syncs.expect("proxies sync")
}

fn delete(at: u64) -> EventSpec {
    EventSpec { at: ms(at), action: Action::DeletePod { deployment: shop(), count: 1 } }
}

/// Changes further apart than the least time between syncs, which cost nothing: all that is left
/// is the watch.
#[test]
fn without_waits_and_costs_a_pipeline_is_a_delay() {
    let law = Law::Constant(ms(300));
    let mut drawn = cluster(10, 5, law.clone());
    drawn.kubelet.start = Law::Constant(ms(1700));
    drawn.events = vec![delete(500), delete(8000)];
    let mut piped = drawn.clone();
    piped.propagation = Propagation::Pipeline(Box::new(pipeline(law)));
    let (drawn, piped) = (run(&drawn, 1, 0), run(&piped, 1, 0));
    assert!(drawn.losses.len() > 50, "{}", drawn.losses.len());
    assert_eq!(drawn.losses, piped.losses);
    assert_eq!(drawn.windows, piped.windows);
    assert!(drawn.run().syncs.is_none());
    // One for each change and node: two Pods go, two come.
    assert_eq!(syncs(&piped), Syncs { syncs: 40, ..Syncs::default() });
}

#[test]
fn stages_of_a_change() {
    let mut piped = pipeline(Law::Constant(ms(50)));
    piped.cost = slow();
    let records = run(&config(3, 5, piped), 1, 0);
    // The Pod goes at 500 ms; its replacement is ready 100 ms later, and waits: told at 650 ms,
    // the sync that runs ends at 950, the next may start a second later.
    let first = records.live.iter().filter(|live| live.change == 1);
    for live in first {
        let stages = live.stages.unwrap();
        assert_eq!((stages.informed, stages.sync_start), (at(550), at(550)));
        assert_eq!((stages.filter_live, live.live), (at(850), at(950)));
    }
    let second: Vec<_> = records.live.iter().filter(|live| live.change == 2).collect();
    assert_eq!(second.len(), 3);
    for live in second {
        let stages = live.stages.unwrap();
        assert_eq!((stages.informed, stages.sync_start, live.live), (at(650), at(1950), at(2350)));
    }
    let expected = Syncs { syncs: 6, busy: 6 * ms(400), ..Syncs::default() };
    assert_eq!(syncs(&records), expected);
}

/// Up to 1.33, a second sync follows the first.
#[test]
fn the_profile_decides_how_long_the_second_change_waits() {
    let mut piped = pipeline(Law::Constant(ms(50)));
    piped.cost = slow();
    let mut config = config(2, 5, piped);
    config.proxy.profile = 33;
    let records = run(&config, 1, 0);
    let second = records.live.iter().filter(|live| live.change == 2);
    assert!(second.clone().count() == 2);
    second.for_each(|live| assert_eq!(live.live, at(950 + 400)));
}

fn other_services(config: &mut Config, count: u32, replicas: u32) {
    let mut deployment = config.deployments[0].clone();
    deployment.name.name = "other".into();
    deployment.replicas = replicas;
    deployment.template.labels = [("app".to_owned(), "other".to_owned())].into();
    let labels = deployment.template.labels.clone();
    config.deployments.push(deployment);
    for index in 0..count {
        let mut service = config.services[0].clone();
        service.name.name = format!("other-{index}");
        service.selector = labels.clone();
        config.services.push(service);
    }
}

#[test]
fn an_unrelated_service_changes_nothing_while_syncs_cost_nothing() {
    let mut base = config(20, 5, pipeline(Law::Exponential { mean: ms(400) }));
    base.kubelet.start = Law::Uniform { min: ms(500), max: ms(2000) };
    rollout(&mut base);
    let mut more = base.clone();
    other_services(&mut more, 30, 10);
    let (before, after) = (run(&base, 1, 0), run(&more, 1, 0));
    assert!(before.losses.len() > 100, "{}", before.losses.len());
    assert_eq!(before.losses, after.losses);
    assert_eq!(syncs(&before), syncs(&after));
}

/// What a sync of one changed Service costs where there are S others of ten endpoints.
fn expected(backend: Backend, services: u64) -> Duration {
    let (held, written) = match backend {
        // A dispatch rule, one for masquerading, three for each endpoint.
        Backend::IptablesLegacy | Backend::IptablesNft => {
            (32 * services, services) // nat, of the unchanged ones
        }
        _ => (22 * services, 0),
    };
    let nat = |nat| Rules { filter: 0, nat };
    let work = |held, written, services| Work {
        services,
        held: nat(held),
        written: nat(written),
        lists: false,
        full: false,
    };
    let cost = SyncCost::of(backend);
    let mut with = work(held, written, services);
    // In a large cluster, the first sync lists what there is.
    with.lists = backend.commits_by_table();
    cost.phases(backend, &with).total() - cost.phases(backend, &work(0, 0, 0)).total()
}

/// Seconds in syncs grow with the number of Services, as the cost of what is held and written
/// says, and the last node hears later by as much.
#[test]
fn the_cost_of_a_sync_grows_with_the_services() {
    for (mode, backend, iptables_backend) in [
        (ProxyMode::Iptables, Backend::IptablesLegacy, IptablesBackend::Legacy),
        (ProxyMode::Iptables, Backend::IptablesNft, IptablesBackend::Nft),
        (ProxyMode::Nftables, Backend::Nftables, IptablesBackend::Nft),
    ] {
        let measure = |services: u32| {
            let mut piped = pipeline(Law::Constant(ms(50)));
            piped.cost.scale = 1.0;
            piped.iptables_backend = iptables_backend;
            let mut config = config(3, 5, piped);
            config.proxy.mode = mode;
            config.proxy.profile = 33;
            config.events = vec![EventSpec {
                at: ms(500),
                action: Action::Scale { deployment: shop(), replicas: 4 },
            }];
            other_services(&mut config, services, 10);
            let records = run(&config, 1, 0);
            let total = syncs(&records);
            assert_eq!(total.syncs, 3, "one change");
            let late = records.windows[0].last_node.unwrap() - records.windows[0].opened;
            (total.busy / 3, late)
        };
        let (alone, early) = measure(0);
        let mut before = Duration::ZERO;
        for services in [10, 100, 400] {
            let (busy, late) = measure(services);
            let more = busy - alone;
            let wanted = expected(backend, u64::from(services));
            let error = more.as_secs_f64() / wanted.as_secs_f64() - 1.0;
            assert!(error.abs() < 0.01, "{backend:?} {services}: {more:?}, expected {wanted:?}");
            assert_eq!(late - early, more, "{backend:?} {services}");
            assert!(more > before);
            before = more;
        }
    }
}

/// KUBE-SERVICES is one rule after the other: a packet to the last of them passes all others, and so
/// does every first packet on its endpoint's node. Maps and tables are looked up in one step.
#[test]
fn s0_25_a_first_packet_passes_the_rules_of_other_services_in_iptables_mode_alone() {
    for mode in [
        ProxyMode::Iptables,
        ProxyMode::Nftables,
        ProxyMode::Ipvs(IpvsScheduler::Rr),
        ProxyMode::Ebpf(Selection::Random),
    ] {
        let with = |others| {
            let mut config = config(3, 5, pipeline(Law::Constant(ms(50))));
            config.proxy.mode = mode;
            config.duration = Some(secs(2.0));
            other_services(&mut config, others, 2);
            config
        };
        // Rules before the Service's own in the chain that all Services share.
        let before = |others| {
            let world = World::new(&with(others), &Seed::new(1, 0)).unwrap();
            let rules = world.rules().to_ruleset(NodeId::from_index(0), SimTime::ZERO).unwrap();
            let text = iptables_save(&rules);
            let shared = text.lines().filter(|line| line.starts_with("-A KUBE-SERVICES "));
            shared.take_while(|line| !line.contains("default/shop")).count() as f64
        };
        let passed = |others| {
            let records = run(&with(others), 1, 0);
            let run = records.run();
            // An endpoint's node walks the chain too, and finds nothing in it for a Pod's address.
            let shared = matches!(mode, ProxyMode::Iptables).then_some(f64::from(others));
            let elsewhere = shared.unwrap_or_default() * run.mean_hops().unwrap();
            (run.mean_rules_passed().expect("connections"), before(others) + elsewhere)
        };
        let (none, thirty) = (passed(0), passed(30));
        let (more, wanted) = (thirty.0 - none.0, thirty.1 - none.1);
        // Which endpoint is chosen, and so how many of the Service's rules are passed, differs.
        assert!((more - wanted).abs() < 0.3, "{mode:?} {more}, not {wanted}");
        assert_eq!(wanted > 0.0, mode == ProxyMode::Iptables, "{mode:?}");
    }
}

/// Services that are only counted cost what real ones cost, in every mode that syncs, and the
/// last node hears as late; so do modes differ the more, the more Services there are.
#[test]
fn services_that_are_only_counted_cost_what_real_ones_do() {
    let mut totals = Vec::new();
    for mode in [
        ProxyMode::Iptables,
        ProxyMode::Nftables,
        ProxyMode::Ipvs(IpvsScheduler::Rr),
        ProxyMode::Ebpf(Selection::Random),
    ] {
        let measure = |real: u32, counted: u32| {
            let mut piped = pipeline(Law::Constant(ms(50)));
            piped.cost.scale = 1.0;
            piped.others = OtherServices { count: counted, endpoints: 10 };
            let mut config = config(3, 5, piped);
            config.proxy.mode = mode;
            config.events = vec![EventSpec {
                at: ms(500),
                action: Action::Scale { deployment: shop(), replicas: 4 },
            }];
            other_services(&mut config, real, 10);
            let records = run(&config, 1, 0);
            let late = records.windows[0].last_node.unwrap() - records.windows[0].opened;
            (syncs(&records), late)
        };
        assert_eq!(measure(90, 0), measure(0, 90), "{mode:?}");
        assert_eq!(measure(90, 0), measure(30, 60), "{mode:?}");
        let busy = |counted| measure(0, counted).0.busy;
        totals.push([0, 1_000, 10_000].map(busy));
    }
    let [iptables, nftables, ipvs, ebpf] = totals[..] else { unreachable!("four modes") };
    // iptables mode reads all chains and writes all dispatch rules, IPVS is asked for all that it
    // has, nftables takes what has changed but looks at all that there is, maps take the change.
    for (slow, fast) in [(iptables, nftables), (iptables, ebpf), (ipvs, ebpf), (nftables, ebpf)] {
        assert!(slow[1] > fast[1] && slow[2] > fast[2], "{totals:?}");
        assert!(slow[2] - fast[2] > slow[1] - fast[1], "the difference grows: {totals:?}");
    }
    assert_eq!(ebpf[0], ebpf[2], "{totals:?}");
}

/// The rules that costs are counted from are those of the generators.
#[test]
fn rules_are_counted_as_they_are_made() {
    for (mode, minor, per_service, per_endpoint) in [
        (ProxyMode::Iptables, 34, 2, 3),
        (ProxyMode::Nftables, 34, 2, 2),
        (ProxyMode::Nftables, 36, 1, 0),
    ] {
        let mut config = config(3, 5, pipeline(Law::Constant(ms(1))));
        config.proxy.mode = mode;
        config.proxy.profile = minor;
        other_services(&mut config, 20, 10);
        let world = World::new(&config, &Seed::new(1, 0)).unwrap();
        let tally = world.rules().tally();
        assert_eq!((tally.services, tally.endpoints), (21, 205));
        let rules = 21 * per_service + 205 * per_endpoint;
        assert_eq!(tally.held, Rules { filter: 0, nat: rules }, "{mode:?} 1.{minor}");
        if mode == ProxyMode::Iptables {
            let node = sim_core::ids::NodeId::FIRST;
            let all = world.rules().to_ruleset(node, SimTime::ZERO).unwrap();
            let flannel = 6 + 2; // its rules in nat and in filter, jumps aside
            let fixed = world.rules().fixed_rules();
            let table = netfilter_model::hook::Table::Nat;
            let found = all.rule_count(table) as u64;
            assert!(found.abs_diff(fixed.nat + tally.held.nat) <= flannel, "{found}");
            assert_eq!(tally.shared.nat, 21, "a partial sync writes the dispatch of all");
        }
    }
}

/// Losses agree with what a run's own times lead to expect, however the times came about.
#[test]
fn losses_are_those_that_stale_rules_lead_to_expect() {
    let mut piped = pipeline(Law::Exponential { mean: ms(200) });
    piped.cost = slow();
    piped.failure = 0.1;
    piped.sync_period = Some(secs(2.0));
    let mut config = config(10, 5, piped);
    config.kubelet.start = Law::Uniform { min: ms(500), max: ms(2000) };
    config.clients[0].rate_per_s = 200.0;
    rollout(&mut config);
    let mut failed = 0;
    let differences: Vec<f64> = (0..20)
        .map(|replication| {
            let records = run(&config, 1, replication);
            failed += syncs(&records).failed;
            records.stale() - records.run().expected_lost.unwrap()
        })
        .collect();
    assert!(failed > 10, "{failed}");
    // 3.88 is the 0.9995 quantile of Student's t at 19 degrees of freedom.
    assert_within("losses less their expectation", mean_and_error(&differences), 0.0, 3.88);
}

/// From none to some endpoints: table filter rejects no more, nat does not rewrite yet.
#[test]
fn between_filter_and_nat_a_new_service_has_no_rule() {
    let mut piped = pipeline(Law::Constant(ms(50)));
    piped.cost = slow();
    let mut config = config(2, 0, piped);
    config.clients[0].arrivals = Arrivals::Constant;
    config.events =
        vec![EventSpec { at: ms(500), action: Action::Scale { deployment: shop(), replicas: 1 } }];
    config.duration = Some(ms(3000));
    let records = run(&config, 1, 0);
    // The Pod runs at 600 ms, proxies know at 650, filter says so at 950 and nat at 1,050.
    let of = |cause| records.losses.iter().filter(move |loss| loss.cause == cause);
    let last_reject = of(Cause::Rejected).map(|loss| loss.sent).max().unwrap();
    assert!(last_reject < at(950) && last_reject > at(940), "{last_reject}");
    assert!(of(Cause::NoRule).all(|loss| loss.sent >= at(949) && loss.sent < at(1050)));
    let between = of(Cause::NoRule).count();
    assert!((95..=101).contains(&between), "{between} of 1,000 a second for 100 ms");
}

/// A restarted proxy: its rules stay as they are until it has listed everything and synced in
/// full.
#[test]
fn a_restarted_proxy_holds_old_rules_until_its_first_sync() {
    let mut piped = pipeline(Law::Constant(ms(50)));
    piped.cost = slow();
    let mut config = config(3, 5, piped);
    let restart = Action::RestartProxy { node: 1, takes: secs(3.0) };
    config.events = vec![EventSpec { at: ms(400), action: restart }, delete(500)];
    let records = run(&config, 1, 0);
    let live = |node: &str, change| {
        let is =
            |live: &&sim_core::record::Propagation| &*live.node == node && live.change == change;
        records.live.iter().find(is).unwrap().live
    };
    assert_eq!([live("node-0", 1), live("node-2", 1)], [at(950), at(950)]);
    // Listed at 3.4 s, with the replacement that came meanwhile.
    assert_eq!([live("node-1", 1), live("node-1", 2)], [at(3800), at(3800)]);
    assert_eq!(syncs(&records), Syncs { syncs: 5, full: 1, busy: 5 * ms(400), ..Syncs::default() });
    // Nothing was refused for want of rules: only the stale endpoint loses.
    let kinds = [Cause::Refused, Cause::Reset, Cause::Blackholed, Cause::Unreachable];
    assert!(records.losses.iter().all(|loss| kinds.contains(&loss.cause)));
    let late = records.losses.iter().filter(|loss| loss.sent > at(1000));
    assert!(late.clone().count() > 50 && late.clone().all(|loss| &*loss.node == "node-1"));
}

/// Another program removes a node's rules: its clients find none until the canary is missed.
#[test]
fn flushed_rules_are_missed_within_a_sync_period() {
    let mut piped = pipeline(Law::Constant(ms(50)));
    piped.sync_period = Some(secs(6.0));
    let mut config = config(3, 5, piped);
    config.events = vec![EventSpec { at: ms(1000), action: Action::FlushRules { node: 2 } }];
    let records = run(&config, 1, 0);
    let lost: Vec<_> = records.losses.iter().collect();
    assert!(lost.iter().all(|loss| loss.cause == Cause::NoRule && &*loss.node == "node-2"));
    let (first, last) = (lost[0].sent, lost[lost.len() - 1].sent);
    let gap = (last - first).as_secs_f64();
    assert!(first < at(1100) && gap < 6.0, "{first} to {last}");
    // A third of 1,000 a second.
    let expected = gap * 1000.0 / 3.0;
    assert!((lost.len() as f64 - expected).abs() < 4.0 * expected.sqrt(), "{} lost", lost.len());
    assert_eq!((syncs(&records).syncs, syncs(&records).full), (1, 1));
}

/// A proxy that is busy takes all changes that came meanwhile at once.
#[test]
fn changes_that_come_during_a_sync_are_taken_together() {
    let mut piped = pipeline(Law::Constant(ms(10)));
    piped.cost = slow();
    let mut config = config(2, 10, piped);
    config.events = (0..3)
        .map(|k| {
            let action = Action::Scale { deployment: shop(), replicas: 9 - k };
            EventSpec { at: ms(500 + 50 * u64::from(k)), action }
        })
        .collect();
    let records = run(&config, 1, 0);
    let lives = records.live.iter().filter(|live| &*live.node == "node-0").map(|live| live.live);
    assert_eq!(lives.collect::<Vec<_>>(), [at(910), at(2310), at(2310)]);
}

/// A program holds the xtables lock: nodes with iptables-legacy wait for it.
#[test]
fn the_lock_is_waited_for() {
    let mut piped = pipeline(Law::Constant(ms(50)));
    piped.cost = slow();
    piped.iptables_backend = IptablesBackend::Legacy;
    piped.contender = Some(ContenderConfig { every: secs(10.0), holds: secs(4.0) });
    let mut config = config(40, 5, piped);
    rollout(&mut config);
    let total = syncs(&run(&config, 1, 0));
    assert!(total.lock_wait > secs(10.0) && total.failed == 0, "{total:?}");
    assert_eq!(total.busy - total.lock_wait, total.syncs as u32 * ms(400));
}

#[test]
fn simultaneous_events_in_another_order_change_nothing() {
    let mut piped = pipeline(Law::LogNormal { median_s: 0.02, sigma: 1.0 });
    piped.cost = slow();
    piped.failure = 0.05;
    let mut config = config(12, 6, piped);
    config.kubelet.start = Law::Exponential { mean: ms(700) };
    rollout(&mut config);
    let plain = run(&config, 3, 1);
    for ties in 1..4 {
        let mut shuffled = Records::default();
        sim_core::run_with_shuffled_ties(&config, 3, 1, ties, &mut shuffled).unwrap();
        assert_eq!(plain.windows, shuffled.windows);
        assert_eq!(plain.run().syncs, shuffled.run().syncs);
    }
    assert_eq!(plain, run(&config, 3, 1));
}

#[test]
fn settings_follow_the_mode() {
    let config = config(1, 1, pipeline(Law::Constant(ms(1))));
    let Propagation::Pipeline(piped) = &config.propagation else { unreachable!() };
    let settings = sim_core::proxy::sync::nodes::settings(&config.proxy, piped);
    assert_eq!(settings.backend, Backend::IptablesNft);
    assert_eq!(settings.effective_min_sync_period(), secs(1.0));
    assert_eq!(settings.profile, Profile::from_minor(34).unwrap());
}
