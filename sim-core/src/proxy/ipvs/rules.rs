//! The iptables rules: which of them there are depends on which sets hold something, and on
//! nothing else.
//!
//! Kubernetes: pkg/proxy/ipvs/proxier.go, writeIptablesRules, ipsetWithIptablesChain,
//! iptablesJumpChain.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use netfilter_model::Prefix;
use netfilter_model::hook::{Hook, Table};
use netfilter_model::rule::{
    AddrType, AddrTypeMatch, AddrTypes, ChainId, CtStates, FragmentId, IpvsMatch, Match, Nat,
    NatRange, PhysdevMatch, RejectWith, Rule, Ruleset, RulesetBuilder, SetMatch, SetSide, SlotId,
    Target, ValidationError,
};
use netfilter_model::tuple::{Family, Protocol};

use super::sets::{Entries, IpSet};
use crate::proxy::iptables::common::{NOBODY, Settings, random_fully};

/// A chain of kube-proxy's, in the order in which they are declared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum RuleChain {
    Services,
    Postrouting,
    NodePort,
    LoadBalancer,
    MarkMasq,
    Forward,
    HealthChecks,
    ProxyFirewall,
    SourceRanges,
    Filter,
    OutFilter,
}

impl RuleChain {
    pub(super) const ALL: [RuleChain; 11] = [
        RuleChain::Services,
        RuleChain::Postrouting,
        RuleChain::NodePort,
        RuleChain::LoadBalancer,
        RuleChain::MarkMasq,
        RuleChain::Forward,
        RuleChain::HealthChecks,
        RuleChain::ProxyFirewall,
        RuleChain::SourceRanges,
        RuleChain::Filter,
        RuleChain::OutFilter,
    ];

    pub(super) const fn table(self) -> Table {
        match self {
            RuleChain::Services
            | RuleChain::Postrouting
            | RuleChain::NodePort
            | RuleChain::LoadBalancer
            | RuleChain::MarkMasq => Table::Nat,
            _ => Table::Filter,
        }
    }

    pub(super) const fn name(self) -> &'static str {
        match self {
            RuleChain::Services => "KUBE-SERVICES",
            RuleChain::Postrouting => "KUBE-POSTROUTING",
            RuleChain::NodePort | RuleChain::HealthChecks => "KUBE-NODE-PORT",
            RuleChain::LoadBalancer => "KUBE-LOAD-BALANCER",
            RuleChain::MarkMasq => "KUBE-MARK-MASQ",
            RuleChain::Forward => "KUBE-FORWARD",
            RuleChain::ProxyFirewall => "KUBE-PROXY-FIREWALL",
            RuleChain::SourceRanges => "KUBE-SOURCE-RANGES-FIREWALL",
            RuleChain::Filter => "KUBE-IPVS-FILTER",
            RuleChain::OutFilter => "KUBE-IPVS-OUT-FILTER",
        }
    }

    /// Returns the chain's place among its table's user chains, behind the built-in ones: ids are
    /// given in the order in which chains are made, see [`ruleset`].
    fn id(self) -> ChainId {
        let builtin = match self.table() {
            Table::Nat => BUILTIN_NAT.len(),
            _ => BUILTIN_FILTER.len(),
        };
        let before = RuleChain::ALL.iter().take_while(|chain| **chain != self);
        let before = before.filter(|chain| chain.table() == self.table()).count();
        let index = (builtin + before) as u32;
        ChainId { fragment: FragmentId::BASE, index }
    }

    /// Returns the chain that a jump of a table leads to.
    pub(super) fn of(table: Table, id: ChainId) -> Option<RuleChain> {
        RuleChain::ALL.into_iter().find(|chain| chain.table() == table && chain.id() == id)
    }

    fn jump(self) -> Target {
        Target::Jump(self.id())
    }
}

const BUILTIN_NAT: [Hook; 4] = [Hook::Prerouting, Hook::Input, Hook::Output, Hook::Postrouting];
const BUILTIN_FILTER: [Hook; 3] = [Hook::Input, Hook::Forward, Hook::Output];

/// Jumps from the built-in chains: each is put at the head, so the last one stands first.
const JUMPS: [(Table, Hook, RuleChain, &str); 9] = [
    (Table::Nat, Hook::Output, RuleChain::Services, "kubernetes service portals"),
    (Table::Nat, Hook::Prerouting, RuleChain::Services, "kubernetes service portals"),
    (Table::Nat, Hook::Postrouting, RuleChain::Postrouting, "kubernetes postrouting rules"),
    (Table::Filter, Hook::Forward, RuleChain::Forward, "kubernetes forwarding rules"),
    (Table::Filter, Hook::Input, RuleChain::HealthChecks, "kubernetes health check rules"),
    (Table::Filter, Hook::Input, RuleChain::ProxyFirewall, "kube-proxy firewall rules"),
    (Table::Filter, Hook::Forward, RuleChain::ProxyFirewall, "kube-proxy firewall rules"),
    (Table::Filter, Hook::Input, RuleChain::Filter, "kubernetes ipvs access filter"),
    (Table::Filter, Hook::Output, RuleChain::OutFilter, "kubernetes ipvs access filter"),
];

const DST: &[SetSide] = &[SetSide::Destination];
const DST_DST: &[SetSide] = &[SetSide::Destination, SetSide::Destination];
const DST_DST_SRC: &[SetSide] = &[SetSide::Destination, SetSide::Destination, SetSide::Source];

/// Writes rules, one after the other.
struct Writer<'a> {
    settings: &'a Settings,
    sets: &'a BTreeMap<IpSet, Entries>,
    rules: Vec<(RuleChain, Rule)>,
}

/// Returns the rules of all chains, in the order in which they are written. `refused` are the load
/// balancers' addresses that the node may not use.
pub(super) fn rules(
    settings: &Settings,
    sets: &BTreeMap<IpSet, Entries>,
    refused: &[(IpAddr, Protocol, u16)],
) -> Vec<(RuleChain, Rule)> {
    let mut writer = Writer { settings, sets, rules: Vec::new() };
    let loopback = match settings.family {
        Family::V4 => Prefix::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 8),
        Family::V6 => Prefix::host(IpAddr::V6(Ipv6Addr::LOCALHOST)),
    };
    writer.add(RuleChain::Services, rule().source(loopback).then(Target::Return));
    writer.of_sets();
    writer.cluster_ips();
    writer.external_ips();
    writer.rest(refused);
    writer.rules
}

fn rule() -> Rule {
    Rule::new(NOBODY)
}

impl Writer<'_> {
    fn add(&mut self, chain: RuleChain, rule: Rule) {
        self.rules.push((chain, rule));
    }

    fn holds_some(&self, set: IpSet) -> bool {
        self.sets.get(&set).is_some_and(|entries| !entries.is_empty())
    }

    fn in_set(&self, rule: Rule, set: IpSet, sides: &[SetSide]) -> Rule {
        let name = set.name(self.settings.family).into();
        rule.with(Match::Set(Box::new(SetMatch {
            name,
            sides: sides.to_vec(),
            return_nomatch: false,
            counters: None,
            invert: false,
        })))
    }

    /// Rules that are written for each set that holds something.
    fn of_sets(&mut self) {
        use RuleChain::{LoadBalancer, MarkMasq, NodePort, Postrouting, ProxyFirewall, Services};
        let masquerade = || Target::Nat(Nat::Masquerade(NatRange::keep()));
        let (tcp, udp, sctp) = (Some(Protocol::TCP), Some(Protocol::UDP), Some(Protocol::SCTP));
        let masq = || MarkMasq.jump();
        for (set, chain, target, sides, protocol) in [
            (IpSet::LoopBack, Postrouting, masquerade(), DST_DST_SRC, None),
            (IpSet::LoadBalancer, Services, LoadBalancer.jump(), DST_DST, None),
            (IpSet::LoadBalancerLocal, LoadBalancer, Target::Return, DST_DST, None),
            (IpSet::NodePortLocalTcp, NodePort, Target::Return, DST, tcp),
            (IpSet::NodePortTcp, NodePort, masq(), DST, tcp),
            (IpSet::NodePortLocalUdp, NodePort, Target::Return, DST, udp),
            (IpSet::NodePortUdp, NodePort, masq(), DST, udp),
            (IpSet::NodePortLocalSctp, NodePort, Target::Return, DST_DST, sctp),
            (IpSet::NodePortSctp, NodePort, masq(), DST_DST, sctp),
            (IpSet::LoadBalancerFw, ProxyFirewall, RuleChain::SourceRanges.jump(), DST_DST, None),
            (
                IpSet::LoadBalancerSourceCidr,
                RuleChain::SourceRanges,
                Target::Return,
                DST_DST_SRC,
                None,
            ),
            (
                IpSet::LoadBalancerSourceIp,
                RuleChain::SourceRanges,
                Target::Return,
                DST_DST_SRC,
                None,
            ),
        ] {
            if self.holds_some(set) {
                let of_protocol = match protocol {
                    Some(protocol) => rule().protocol(protocol),
                    None => rule(),
                };
                let asked = self.in_set(of_protocol.comment(set.comment()), set, sides);
                self.add(chain, asked.then(target));
            }
        }
    }

    /// What is masqueraded of the traffic to ClusterIPs. Without a way to tell Pods, it is what
    /// the node sends itself: the device's addresses make it use a Service's as its source.
    fn cluster_ips(&mut self) {
        let set = IpSet::ClusterIp;
        if !self.holds_some(set) {
            return;
        }
        let asked = rule().comment(set.comment());
        let asked = match &self.settings.detector {
            _ if self.settings.masquerade_all => self.in_set(asked, set, DST_DST),
            Some(detector) => detector.ask(self.in_set(asked, set, DST_DST), false),
            None => self.in_set(asked, set, &[SetSide::Source, SetSide::Destination]),
        };
        self.add(RuleChain::Services, asked.then(RuleChain::MarkMasq.jump()));
    }

    fn external_ips(&mut self) {
        for (set, masquerades) in [(IpSet::ExternalIp, true), (IpSet::ExternalIpLocal, false)] {
            if !self.holds_some(set) {
                continue;
            }
            let asked = self.in_set(rule().comment(set.comment()), set, DST_DST);
            if masquerades {
                self.add(RuleChain::Services, asked.clone().then(RuleChain::MarkMasq.jump()));
            }
            // From neither a Pod at a bridge nor the node itself.
            let not_in = PhysdevMatch { is_in: Some(false), ..PhysdevMatch::default() };
            let not_local =
                AddrTypeMatch { types: AddrTypes::of(&[AddrType::Local]), invert: true };
            let from_outside = asked
                .clone()
                .with(Match::Physdev(Box::new(not_in)))
                .with(Match::AddrType { src: Some(not_local), dst: None, limit: None });
            self.add(RuleChain::Services, from_outside.then(Target::Accept));
            let local = asked.dst_type(AddrType::Local).then(Target::Accept);
            self.add(RuleChain::Services, local);
        }
    }

    fn rest(&mut self, refused: &[(IpAddr, Protocol, u16)]) {
        let mark = self.settings.mark;
        let to_node = rule().dst_type(AddrType::Local).then(RuleChain::NodePort.jump());
        self.add(RuleChain::Services, to_node);
        self.add(RuleChain::LoadBalancer, rule().then(RuleChain::MarkMasq.jump()));
        self.add(RuleChain::SourceRanges, rule().then(Target::Drop));
        for (address, protocol, port) in refused {
            self.add(RuleChain::OutFilter, refusal(*address, *protocol, *port));
        }
        for set in [IpSet::ClusterIp, IpSet::LoadBalancer] {
            if self.holds_some(set) {
                let asked = self.in_set(rule(), set, DST_DST);
                self.add(RuleChain::Services, asked.then(Target::Accept));
            }
        }
        let forwarded = rule().comment("kubernetes forwarding rules").mark(mark, mark);
        self.add(RuleChain::Forward, forwarded.then(Target::Accept));
        let established = rule().comment("kubernetes forwarding conntrack rule");
        let established = established.ctstate(CtStates::RELATED | CtStates::ESTABLISHED);
        self.add(RuleChain::Forward, established.then(Target::Accept));
        let health = IpSet::HealthCheckNodePort;
        let asked = self.in_set(rule().comment(health.comment()), health, DST);
        self.add(RuleChain::HealthChecks, asked.then(Target::Accept));
        for set in [
            IpSet::LoadBalancer,
            IpSet::ClusterIp,
            IpSet::ExternalIp,
            IpSet::ExternalIpLocal,
            health,
        ] {
            let sides = if set == health { DST } else { DST_DST };
            let asked = self.in_set(rule(), set, sides);
            self.add(RuleChain::Filter, asked.then(Target::Return));
        }
        let other = self.in_set(rule().ctstate(CtStates::NEW), IpSet::IpvsIps, DST);
        self.add(RuleChain::Filter, other.then(Target::Reject(RejectWith::DEFAULT)));
        let unmarked = rule().not_mark(mark, mark).then(Target::Return);
        self.add(RuleChain::Postrouting, unmarked);
        self.add(RuleChain::Postrouting, rule().then(Target::xor_mark(mark)));
        let masquerade = rule().comment("kubernetes service traffic requiring SNAT");
        let masquerade = masquerade.then(Target::Nat(Nat::Masquerade(random_fully())));
        self.add(RuleChain::Postrouting, masquerade);
        self.add(RuleChain::MarkMasq, rule().then(Target::or_mark(mark)));
    }
}

/// Drops what the node sends to a load balancer's address from that very address, which is what
/// it takes for its source.
fn refusal(address: IpAddr, protocol: Protocol, port: u16) -> Rule {
    let prefix = Prefix::host(address);
    let asked = IpvsMatch { protocol, address: prefix.clone(), port };
    rule().source(prefix).with(Match::Ipvs(Box::new(asked))).then(Target::Drop)
}

/// Returns the rules as a ruleset, with the jumps from the built-in chains.
pub(super) fn ruleset(
    family: Family,
    rules: &[(RuleChain, Rule)],
) -> Result<Ruleset, ValidationError> {
    let mut builder = chains(family);
    append(&mut builder, rules);
    builder.build()
}

/// Returns the same for others' rules to be added, and a slot in front of those of
/// KUBE-POSTROUTING.
pub(super) fn builder(family: Family, rules: &[(RuleChain, Rule)]) -> (RulesetBuilder, SlotId) {
    let mut builder = chains(family);
    let slot = builder.slot(Table::Nat, RuleChain::Postrouting.id());
    append(&mut builder, rules);
    (builder, slot)
}

fn append(builder: &mut RulesetBuilder, rules: &[(RuleChain, Rule)]) {
    for (chain, rule) in rules {
        builder.append(chain.table(), chain.id(), rule.clone());
    }
}

/// Returns chains without rules, and the jumps to them.
fn chains(family: Family) -> RulesetBuilder {
    let mut builder = RulesetBuilder::new();
    builder.family(family);
    builder.load(Table::Nat);
    builder.load(Table::Filter);
    for chain in RuleChain::ALL {
        let id = builder.chain(chain.table(), chain.name());
        assert_eq!(id, chain.id(), "user chains are numbered behind the built-in ones");
    }
    for (table, hook, chain, comment) in JUMPS.into_iter().rev() {
        let builtin = builder.builtin(table, hook);
        builder.append(table, builtin, rule().comment(comment).then(chain.jump()));
    }
    builder
}
