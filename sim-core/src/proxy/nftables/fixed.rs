//! What does not depend on Services: base chains, the chains that they call, sets and maps.

use netfilter_model::hook::Hook;
use netfilter_model::nft::{
    Base, Chain, Element, Kind, Op, Rule, Set, SetData, Statement, Type, Verdict,
};
use netfilter_model::packet::IcmpError;
use netfilter_model::rule::{Policy, RejectWith};

use super::part::{
    self, Words, commented, fixed_origin, in_set, jump, l4proto, mark_bit, masquerade, or_mark,
    state_new, status_dnat, th_dport, value, vmap, xor_mark,
};
use super::write::Places;
use crate::proxy::state::State;

pub(super) const CLUSTER_IPS: &str = "cluster-ips";
pub(super) const NODEPORT_IPS: &str = "nodeport-ips";
pub(super) const HAIRPIN: &str = "hairpin-connections";
pub(super) const FIREWALL_IPS: &str = "firewall-ips";
pub(super) const NO_ENDPOINT_NODEPORTS: &str = "no-endpoint-nodeports";
pub(super) const NO_ENDPOINT_SERVICES: &str = "no-endpoint-services";
pub(super) const SERVICE_IPS: &str = "service-ips";
pub(super) const SERVICE_NODEPORTS: &str = "service-nodeports";
pub(super) const MARK: &str = "mark-for-masquerade";
pub(super) const REJECT: &str = "reject-chain";

const FIREWALL_CHECK: &str = "firewall-check";
const SERVICE_CHECK: &str = "service-endpoints-check";
const NODEPORT_CHECK: &str = "nodeport-endpoints-check";
const CLUSTER_IPS_CHECK: &str = "cluster-ips-check";

/// A base chain: its name, type, hook and priority, and the chains that it calls.
type BaseRow = (&'static str, Kind, Hook, i32, &'static [&'static str]);

/// Filters look at new connections only; before the translation they see what a packet was sent
/// to, behind it what is left of that.
const BASES: [BaseRow; 8] = [
    ("filter-forward", Kind::Filter, Hook::Forward, -110, &[SERVICE_CHECK, CLUSTER_IPS_CHECK]),
    ("filter-input", Kind::Filter, Hook::Input, -110, &[NODEPORT_CHECK, SERVICE_CHECK]),
    ("filter-output", Kind::Filter, Hook::Output, -110, &[SERVICE_CHECK, FIREWALL_CHECK]),
    ("filter-output-post-dnat", Kind::Filter, Hook::Output, -90, &[CLUSTER_IPS_CHECK]),
    ("filter-prerouting", Kind::Filter, Hook::Prerouting, -110, &[FIREWALL_CHECK]),
    ("nat-output", Kind::Nat, Hook::Output, -100, &["services"]),
    ("nat-postrouting", Kind::Nat, Hook::Postrouting, 100, &["masquerading"]),
    ("nat-prerouting", Kind::Nat, Hook::Prerouting, -100, &["services"]),
];

/// The same from 1.36 on.
const SQUASHED_BASES: [BaseRow; 8] = [
    ("filter-forward", Kind::Filter, Hook::Forward, 0, &[SERVICE_CHECK, CLUSTER_IPS_CHECK]),
    ("filter-input", Kind::Filter, Hook::Input, 0, &[NODEPORT_CHECK, SERVICE_CHECK]),
    ("filter-output", Kind::Filter, Hook::Output, 0, &[SERVICE_CHECK, CLUSTER_IPS_CHECK]),
    ("filter-output-pre-dnat", Kind::Filter, Hook::Output, -110, &[FIREWALL_CHECK]),
    ("filter-prerouting-pre-dnat", Kind::Filter, Hook::Prerouting, -110, &[FIREWALL_CHECK]),
    ("nat-output", Kind::Nat, Hook::Output, -100, &["services"]),
    ("nat-postrouting", Kind::Nat, Hook::Postrouting, 100, &["masquerading"]),
    ("nat-prerouting", Kind::Nat, Hook::Prerouting, -100, &["services"]),
];

const HELPERS: [&str; 8] = [
    CLUSTER_IPS_CHECK,
    FIREWALL_CHECK,
    MARK,
    "masquerading",
    NODEPORT_CHECK,
    REJECT,
    SERVICE_CHECK,
    "services",
];

fn bases(state: &State) -> &'static [BaseRow; 8] {
    if state.profile.squashes_nftables() { &SQUASHED_BASES } else { &BASES }
}

/// Returns the names of the chains.
pub(super) fn chain_names(state: &State) -> impl Iterator<Item = &'static str> {
    bases(state).iter().map(|row| row.0).chain(HELPERS)
}

/// Returns sets and maps, without elements.
pub(super) fn sets(state: &State) -> Vec<Set> {
    let address = Words(state.family).of_address();
    let (proto, port) = (Type::InetProto, Type::InetService);
    let set = |name: &str, key: &[Type], data: SetData, comment: &str| {
        let mut set = Set::new(name, key, data);
        set.comment = Some(comment.into());
        set
    };
    let by_ip: &[Type] = &[address, proto, port];
    let by_port: &[Type] = &[proto, port];
    let none = SetData::None;
    let mut sets = vec![set(CLUSTER_IPS, &[address], none, "Active ClusterIPs")];
    if super::node_port_ips(state).is_some() {
        let comment = "IPs that accept NodePort traffic";
        sets.push(set(NODEPORT_IPS, &[address], SetData::None, comment));
    }
    if state.profile.squashes_nftables() {
        let key = [address, address, proto, port];
        sets.push(set(HAIRPIN, &key, SetData::None, "service hairpin connections"));
    }
    sets.extend(
        [
            (FIREWALL_IPS, by_ip, "destinations that are subject to LoadBalancerSourceRanges"),
            (
                NO_ENDPOINT_NODEPORTS,
                by_port,
                "vmap to drop or reject packets to service nodeports with no endpoints",
            ),
            (
                NO_ENDPOINT_SERVICES,
                by_ip,
                "vmap to drop or reject packets to services with no endpoints",
            ),
            (SERVICE_IPS, by_ip, "ClusterIP, ExternalIP and LoadBalancer IP traffic"),
            (SERVICE_NODEPORTS, by_port, "NodePort traffic"),
        ]
        .map(|(name, key, comment)| set(name, key, SetData::Verdict, comment)),
    );
    sets
}

/// Returns the elements of the set of addresses that accept NodePort traffic, in order.
pub(super) fn node_port_elements(state: &State) -> impl Iterator<Item = Element> {
    let addresses = super::node_port_ips(state).unwrap_or_default();
    addresses.into_iter().map(|address| Element::of([value(address)]))
}

/// Returns the chains of which the names are known beforehand, filled.
pub(super) fn chains(state: &State, places: &Places) -> Vec<Chain> {
    let base = |row: &BaseRow| {
        let (name, kind, hook, priority, calls) = row;
        let calls = calls.iter().map(|to| {
            let jump = jump(places.fixed(to));
            let is_filter = *kind == Kind::Filter;
            part::rule(fixed_origin(), if is_filter { vec![state_new(), jump] } else { vec![jump] })
        });
        Chain {
            name: (*name).into(),
            comment: None,
            base: Some(Base {
                kind: *kind,
                hook: Some(*hook),
                hook_name: hook_name(*hook).into(),
                devices: Vec::new(),
                priority: *priority,
                policy: Policy::Accept,
            }),
            rules: calls.collect(),
        }
    };
    let helper = |name: &str| Chain {
        name: name.into(),
        comment: (name == REJECT)
            .then(|| "helper for @no-endpoint-services / @no-endpoint-nodeports".into()),
        base: None,
        rules: helper_rules(state, places, name),
    };
    bases(state).iter().map(base).chain(HELPERS.iter().map(|name| helper(name))).collect()
}

fn hook_name(hook: Hook) -> &'static str {
    match hook {
        Hook::Prerouting => "prerouting",
        Hook::Input => "input",
        Hook::Forward => "forward",
        Hook::Output => "output",
        Hook::Postrouting => "postrouting",
    }
}

fn helper_rules(state: &State, places: &Places, name: &str) -> Vec<Rule> {
    let words = Words(state.family);
    let rule = |statements| part::rule(fixed_origin(), statements);
    let bit = 1_u32.checked_shl(state.config.nftables.masquerade_bit.into()).unwrap_or(0);
    let squashed = state.profile.squashes_nftables();
    let reject = Statement::Reject(RejectWith::Icmp(IcmpError::PortUnreachable), None);
    let by_service = |map: &str| rule(vec![vmap(words.service_key(), places.set(map))]);
    let by_node_port = |mut matches: Vec<Statement>, map: &str| {
        matches.push(vmap(vec![l4proto(), th_dport()], places.set(map)));
        rule(matches)
    };
    let node_ports = super::node_port_ips(state).is_some();
    let to_node = || in_set(vec![words.daddr()], places.set(NODEPORT_IPS));
    match name {
        CLUSTER_IPS_CHECK => {
            let rejects = vec![in_set(vec![words.daddr()], places.set(CLUSTER_IPS)), reject];
            vec![commented("Reject traffic to invalid ports of ClusterIPs", rule(rejects))]
        }
        FIREWALL_CHECK => vec![by_service(FIREWALL_IPS)],
        SERVICE_CHECK => vec![by_service(NO_ENDPOINT_SERVICES)],
        NODEPORT_CHECK => {
            let matches = if node_ports { vec![to_node()] } else { vec![words.not_to_loopback()] };
            vec![by_node_port(matches, NO_ENDPOINT_NODEPORTS)]
        }
        MARK => vec![rule(vec![or_mark(bit)])],
        REJECT => vec![rule(vec![reject])],
        "masquerading" if squashed => {
            let key = vec![words.saddr(), words.daddr(), l4proto(), th_dport()];
            let hairpin = in_set(key, places.set(HAIRPIN));
            vec![
                rule(vec![mark_bit(bit, Op::Ne), xor_mark(bit), masquerade()]),
                rule(vec![status_dnat(), hairpin, masquerade()]),
            ]
        }
        "masquerading" => {
            vec![
                rule(vec![mark_bit(bit, Op::Eq), Statement::Verdict(Verdict::Return)]),
                rule(vec![xor_mark(bit)]),
                rule(vec![masquerade()]),
            ]
        }
        _ => {
            let mut rules = Vec::new();
            if squashed && let Some(matches) = outside(state) {
                let mut statements = vec![in_set(vec![words.daddr()], places.set(CLUSTER_IPS))];
                statements.extend(matches);
                statements.push(or_mark(bit));
                let comment = "masquerade clusterIP traffic from outside cluster";
                rules.push(commented(comment, rule(statements)));
            }
            rules.push(by_service(SERVICE_IPS));
            let matches = if node_ports {
                vec![to_node()]
            } else {
                vec![part::fib_local(false), words.not_to_loopback()]
            };
            rules.push(by_node_port(matches, SERVICE_NODEPORTS));
            rules
        }
    }
}

/// Returns the match of packets to ClusterIPs that are masqueraded, if any are.
pub(super) fn outside(state: &State) -> Option<Option<Statement>> {
    if state.config.nftables.masquerade_all {
        return Some(None);
    }
    let by_name = state.profile.matches_device_names();
    let detector = state.local_detector()?;
    Some(Some(Words(state.family).local(&detector, Op::Ne, by_name)))
}
