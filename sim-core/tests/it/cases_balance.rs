//! Published reports about how connections are shared out among endpoints.

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use netfilter_model::exact::{Limits, explore};
use netfilter_model::host::{Draws, Env};
use netfilter_model::netns::{Netns, Outcome};
use netfilter_model::packet::{Packet, TcpFlags};
use netfilter_model::rule::{Ruleset, iptables_save};
use netfilter_model::time::SimTime;
use netfilter_model::traverse::Lookup;
use netfilter_model::tuple::{Family, Protocol, Tuple};
use serde_json::json;
use sim_core::config::Law;
use sim_core::engine::rng::Seed;
use sim_core::ids::NodeId;
use sim_core::kube::manifest::Manifest;
use sim_core::net::plan::{AddressPlan, CNI0};
use sim_core::proxy::iptables::Proxier;
use sim_core::proxy::profile::Profile;
use sim_core::proxy::state::Objects;

use crate::support::cluster;

const VIP: Ipv4Addr = Ipv4Addr::new(172, 20, 0, 9);

/// Returns the rules of iptables mode of a Service whose endpoints are 10.0.1.1 to `count`.
fn rules(count: u8) -> Ruleset {
    let endpoints = (1..=count)
        .map(|last| json!({ "addresses": [format!("10.0.1.{last}")], "nodeName": "n2" }));
    let items = json!({ "apiVersion": "v1", "kind": "List", "items": [
        { "apiVersion": "v1", "kind": "Service", "metadata": { "name": "a" },
          "spec": { "clusterIP": VIP, "ports": [{ "port": 80 }] } },
        { "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
          "metadata": { "name": "a-x", "labels": { "kubernetes.io/service-name": "a" } },
          "addressType": "IPv4", "ports": [{ "name": "", "port": 8080 }],
          "endpoints": endpoints.collect::<Vec<_>>() },
    ] });
    let mut objects = Objects::default();
    for manifest in Manifest::for_proxies(&items).expect("valid objects") {
        objects.add(manifest.object);
    }
    let state = objects.state("n1", Family::V4, Profile::V1_30);
    Proxier::new(&state).expect("rules").to_ruleset().expect("valid rules")
}

/// Returns the last number of the endpoint's address that a new connection goes to, on a node
/// whose tables are new.
fn first(rules: &Ruleset, lookup: Lookup, port: u16, draws: &mut impl Draws) -> u8 {
    let config = cluster(2, 1, Law::Constant(Duration::ZERO));
    let plan = AddressPlan::new(&config.cluster);
    let host = plan.host(NodeId::FIRST);
    let tuple = Tuple::v4(Protocol::TCP, [10, 0, 0, 9].into(), port, VIP, 80);
    let mut netns = Netns::default();
    netns.set_lookup(lookup);
    let mut env = Env { now: SimTime::ZERO, host: &host, rules, draws };
    match netns.receive(Packet::tcp(1, tuple, TcpFlags::SYN), CNI0, &mut env) {
        Outcome::Sent(out) => match out.packet.tuple.dst() {
            IpAddr::V4(to) => to.octets()[3],
            IpAddr::V6(to) => panic!("to {to}"),
        },
        other => panic!("{other:?}"),
    }
}

/// Returns how many of `flows` new connections each of `count` endpoints gets.
fn sampled(count: u8, flows: u64, name: &str) -> Vec<u32> {
    let rules = rules(count);
    let stream = Seed::new(1, 0).stream(name);
    let mut got = vec![0; usize::from(count)];
    for flow in 0..flows {
        let mut draws = |ordinal: u32| stream.draw(flow, 0, 0, ordinal);
        got[usize::from(first(&rules, Lookup::default(), 40_000, &mut draws)) - 1] += 1;
    }
    got
}

/// Returns Pearson's statistic against equal shares.
fn chi_squared(got: &[u32]) -> f64 {
    let mean = f64::from(got.iter().sum::<u32>()) / got.len() as f64;
    got.iter().map(|&got| (f64::from(got) - mean).powi(2) / mean).sum()
}

/// Case C53: "the probabilities are not equal". The rules' are 1/5, 1/4, 1/3, 1/2 and 1, of what
/// the rules before them left; each endpoint's is 1/5. A few connections are uneven all the same.
#[test]
fn c53_unequal_rules_are_equal_shares() {
    let rules = rules(5);
    let saved = iptables_save(&rules);
    let written: Vec<f64> = saved
        .lines()
        .filter_map(|line| line.split_once("--probability ")?.1.split_once(' '))
        .map(|(number, _)| number.parse().expect("a number"))
        .collect();
    assert_eq!(written.len(), 4, "the last rule has none: {saved}");
    for (written, of) in written.iter().zip([5.0, 4.0, 3.0, 2.0]) {
        assert!((written - 1.0 / of).abs() < 1e-9, "{written} for 1/{of}");
    }
    let found =
        explore(Limits::default(), |script| first(&rules, Lookup::RuleByRule, 40_000, script));
    let mut shares = [0.0; 5];
    for way in &found.main.ways {
        shares[usize::from(way.outcome) - 1] += way.probability.to_f64();
    }
    // The kernel compares 31 bits.
    for share in shares {
        assert!((share - 0.2).abs() < 1e-9, "{shares:?}");
    }
    // All five get one of five connections: in 5! of 5⁵ ways.
    let all = 120.0 * shares.iter().product::<f64>();
    assert!((1.0 - all - 0.9616).abs() < 1e-8, "{}", 1.0 - all);
    // And so it is in samples of five: 1,000 of them, within 4.9 standard deviations of 0.00608.
    let stream = Seed::new(1, 0).stream("five");
    let uneven = (0..1000_u64).filter(|sample| {
        let mut got = [false; 5];
        for flow in 0..5 {
            let mut draws = |ordinal: u32| stream.draw(*sample, flow, 0, ordinal);
            got[usize::from(first(&rules, Lookup::default(), 40_000, &mut draws)) - 1] = true;
        }
        got.contains(&false)
    });
    let uneven = uneven.count();
    assert!((uneven as f64 - 961.6).abs() < 30.0, "{uneven} of 1,000");
    // 50 and 3,000 connections; χ² with 4 and 2 degrees of freedom, 99.9 %.
    let fifty = sampled(5, 50, "fifty");
    assert!(chi_squared(&fifty) < 18.47, "{fifty:?}");
    let many = sampled(3, 3000, "many");
    assert!(chi_squared(&many) < 13.82, "{many:?}");
}

/// Case C56, the other side: rules of iptables have no first endpoint, so the first connections of
/// 1,000 nodes are shared out as any.
#[test]
fn c56_random_rules_begin_anywhere() {
    let got = sampled(3, 1000, "nodes");
    assert_eq!(got.iter().sum::<u32>(), 1000);
    // χ², 2 degrees of freedom, 99.9 %.
    assert!(chi_squared(&got) < 13.82, "{got:?}");
}
