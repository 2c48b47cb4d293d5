//! How many rules Services and endpoints cost in each mode: whoever changes a generator sees the
//! growth. Tests are named after the rows of the checklist that ask for them.

use std::net::{IpAddr, Ipv4Addr};

use netfilter_model::hook::Table;
use netfilter_model::rule::iptables_save;
use netfilter_model::tuple::{Family, Protocol};
use sim_core::config::ObjectName;
use sim_core::proxy::endpoint::Endpoint;
use sim_core::proxy::iptables::Proxier;
use sim_core::proxy::nftables::Nftables;
use sim_core::proxy::profile::Profile;
use sim_core::proxy::service::{ServicePort, ServicePortName};
use sim_core::proxy::state::{Objects, State};

use crate::lab::{Lab, Tool, skip};

/// `services` Services with `endpoints` endpoints each, in a cluster with a range for Pods.
fn cluster(services: u32, endpoints: u32, profile: Profile) -> State {
    let mut state = Objects::default().state("n1", Family::V4, profile);
    state.config.cluster_cidrs.push(netfilter_model::Prefix::new([10, 0, 0, 0].into(), 8));
    for k in 0..services {
        let service = ObjectName { namespace: "default".into(), name: format!("s{k:05}") };
        let name = ServicePortName::new(&service, Some("http"), Protocol::TCP);
        let vip = IpAddr::V4(Ipv4Addr::from_bits(0xac10_0000 + k));
        let endpoint = |e: u32| {
            let addr = Ipv4Addr::from_bits(0x0a00_0001 + k * endpoints + e);
            Endpoint {
                addr: addr.into(),
                port: 8080,
                text: format!("{addr}:8080").into(),
                ready: true,
                serving: true,
                terminating: false,
                local: false,
                zone_hints: [].into(),
                node_hints: [].into(),
                item: e,
            }
        };
        let port = ServicePort::cluster_ip_only(name, vip, 80);
        state.ports.push((port, (0..endpoints).map(endpoint).collect()));
    }
    state
}

fn iptables(services: u32, endpoints: u32) -> Proxier {
    Proxier::new(&cluster(services, endpoints, Profile::V1_30)).expect("rules")
}

/// Returns DNAT rules, all rules of table nat, and chains of Services and endpoints.
fn counted(text: &str) -> (usize, usize, usize) {
    let nat = text.split("*nat").nth(1).unwrap_or_default().split("COMMIT").next();
    let lines = || nat.unwrap_or_default().lines();
    let own = |line: &&str| line.starts_with(":KUBE-SVC-") || line.starts_with(":KUBE-SEP-");
    (
        lines().filter(|line| line.contains("-j DNAT")).count(),
        lines().filter(|line| line.starts_with("-A")).count(),
        lines().filter(own).count(),
    )
}

#[test]
fn s0_19_rules_of_a_node_are_the_sum_over_its_backends() {
    let mut state = cluster(40, 3, Profile::V1_30);
    for (at, (_, endpoints)) in state.ports.iter_mut().enumerate() {
        endpoints.truncate(at % 4);
    }
    let backends: usize = state.ports.iter().map(|(_, endpoints)| endpoints.len()).sum();
    let text = iptables_save(&Proxier::new(&state).expect("rules").to_ruleset().unwrap());
    assert_eq!(counted(&text).0, backends);
    let nft = Nftables::of(&state).restore();
    assert_eq!(nft.lines().filter(|line| line.contains(" dnat to ")).count(), backends);
}

/// The kernel that loads them agrees.
#[test]
fn s0_20_a_thousand_services_of_ten_endpoints_are_ten_thousand_rules() {
    let text = iptables_save(&iptables(1000, 10).to_ruleset().unwrap());
    let expected = (10_000, 8 + 32 * 1000, 11_000);
    assert_eq!(counted(&text), expected);
    let lab = match Lab::try_new(Tool::Legacy) {
        Ok(lab) => lab,
        Err(reason) => return skip("a thousand Services in the kernel", &reason),
    };
    lab.restore(Tool::Legacy, &text).expect("it loads");
    let kept = lab.save(Tool::Legacy, "nat").expect("it prints");
    assert_eq!(counted(&kept), expected);
}

/// What every Service and every endpoint adds, in each mode; both grow as the product.
#[test]
fn s0_25_rules_grow_with_services_times_endpoints() {
    let none = iptables(0, 0).rule_count(Table::Nat);
    for (services, endpoints) in [(1, 1), (10, 1), (10, 10), (100, 10), (100, 30)] {
        let (s, e) = (services as usize, endpoints as usize);
        let rules = iptables(services, endpoints).rule_count(Table::Nat) - none;
        assert_eq!(rules, s * (2 + 3 * e), "iptables {s} x {e}");
        let counts = |services, endpoints, profile| {
            Nftables::of(&cluster(services, endpoints, profile)).counts()
        };
        let (v1_30, current) = (Profile::V1_30, Profile::CURRENT);
        let old = counts(services, endpoints, v1_30).rules - counts(0, 0, v1_30).rules;
        assert_eq!(old, s * (2 + 2 * e), "nftables {s} x {e}");
        let new = counts(services, endpoints, current).rules - counts(0, 0, current).rules;
        assert_eq!(new, s, "nftables of 1.36 {s} x {e}");
    }
}
