//! kube-proxy's iptables mode for ClusterIP Services, with flannel's rules around it.
//!
//! Kubernetes: pkg/proxy/iptables/proxier.go, syncProxyRules.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::Duration;

use netfilter_model::Prefix;
use netfilter_model::hook::{Hook, Table};
use netfilter_model::packet::Packet;
use netfilter_model::rule::{
    AddrType, Base, Chain, ChainId, CtStates, Fragment, FragmentId, Match, Nat, NatFlags, NatRange,
    Origin, Probability, RejectWith, Rule, Rules, Ruleset, RulesetBuilder, SlotHit, SlotId, Target,
    ValidationError,
};
use netfilter_model::tuple::{Addresses, Protocol};

use super::names;
use crate::config::{ClusterConfig, Ipv4Cidr, ObjectName, ProxyConfig};
use crate::ids::{Id, IdVec, NodeId, ServiceId, ServicePortId};
use crate::kube::endpoint_slice::{Endpoint, ServiceEndpoints};
use crate::propagation::{History, Version};
use crate::record::Name;
use crate::time::SimTime;

/// Above this many endpoints in all, the rules of single endpoints carry no comments.
///
/// Kubernetes: pkg/proxy/iptables/proxier.go, largeClusterEndpointsThreshold.
const LARGE_CLUSTER_ENDPOINTS: usize = 1000;

/// A Service as the proxy is told of it.
#[derive(Clone, Debug)]
pub struct ProxiedService {
    /// Its name.
    pub name: ObjectName,
    /// Its virtual address.
    pub cluster_ip: Ipv4Addr,
    /// Its ports, with their names.
    pub ports: Vec<(Option<String>, u16)>,
    /// Its endpoints at the start.
    pub endpoints: ServiceEndpoints,
}

/// The rules of all nodes.
#[derive(Debug)]
pub struct Iptables {
    base: Base,
    slots: Slots,
    cluster_cidr: Prefix,
    masquerade_all: bool,
    services: IdVec<ServiceId, ServiceState>,
    ports: IdVec<ServicePortId, Port>,
    /// Service ports by address and port, sorted.
    by_target: Vec<((u32, u16), ServicePortId)>,
    /// Service ports that were without endpoints at some time.
    varying: Vec<ServicePortId>,
    endpoints: usize,
    /// flannel's rules about a node's own Pods.
    local: Vec<[Rule; 3]>,
    /// Texts of endpoints, which outlive many versions.
    texts: BTreeMap<(ServicePortId, Ipv4Addr, u16), EndpointText>,
    /// The probabilities 1/n, by n.
    shares: Vec<Probability>,
}

/// What the rules of an endpoint say, hashed and formatted once.
#[derive(Clone, Debug)]
struct EndpointText {
    chain: Arc<str>,
    pick: Arc<str>,
}

#[derive(Debug)]
struct ServiceState {
    history: History<ServiceRules>,
    ports: Vec<ServicePortId>,
}

/// One service port.
#[derive(Debug)]
struct Port {
    service: ServiceId,
    /// Its place in the Service's list.
    index: usize,
    name: Name,
    chain: Arc<str>,
    target: (Ipv4Addr, u16),
}

/// One version of a Service: its ports' endpoints and rules.
#[derive(Debug)]
pub struct ServiceRules {
    ports: Vec<PortRules>,
}

#[derive(Debug)]
struct PortRules {
    endpoints: Arc<[Endpoint]>,
    fragment: Arc<Fragment>,
}

#[derive(Clone, Copy, Debug)]
struct Slots {
    nat_services: SlotId,
    filter_services: SlotId,
    flannel_local: SlotId,
}

impl ServiceRules {
    /// Returns the endpoints of the port at `index`.
    pub fn endpoints(&self, index: usize) -> &[Endpoint] {
        &self.ports[index].endpoints
    }

    /// Returns the endpoints of all ports.
    pub fn all(&self) -> impl Iterator<Item = &Endpoint> {
        self.ports.iter().flat_map(|port| port.endpoints.iter())
    }

    /// Returns whether `pod` is an endpoint of some port.
    pub fn names(&self, pod: crate::ids::PodId) -> bool {
        self.ports.iter().any(|port| port.endpoints.iter().any(|endpoint| endpoint.pod == pod))
    }
}

impl Iptables {
    /// Returns the rules for `services`, the same on all nodes.
    ///
    /// # Errors
    ///
    /// If the rules would be refused by the kernel; that is a bug.
    pub fn new(
        cluster: &ClusterConfig,
        proxy: &ProxyConfig,
        node_ranges: impl Iterator<Item = Ipv4Cidr>,
        services: Vec<ProxiedService>,
    ) -> Result<Iptables, ValidationError> {
        let cluster_cidr = prefix(cluster.pod_cidr);
        let (base, slots) = base(&cluster_cidr, 1 << proxy.masquerade_bit)?;
        let local = node_ranges.map(|range| flannel_local(&cluster_cidr, &prefix(range))).collect();
        let mut rules = Iptables {
            base,
            slots,
            cluster_cidr,
            masquerade_all: proxy.masquerade_all,
            services: IdVec::new(),
            ports: IdVec::new(),
            by_target: Vec::new(),
            varying: Vec::new(),
            endpoints: services.iter().map(|service| count(&service.endpoints)).sum(),
            local,
            texts: BTreeMap::new(),
            shares: vec![Probability::ALWAYS],
        };
        for service in services {
            rules.add_service(service)?;
        }
        rules.by_target.sort_unstable();
        Ok(rules)
    }

    fn add_service(&mut self, service: ProxiedService) -> Result<(), ValidationError> {
        let id = ServiceId::from_index(self.services.len());
        let mut ports = Vec::new();
        for (index, (name, number)) in service.ports.iter().enumerate() {
            let name = names::service_port(&service.name, name.as_deref());
            let port = self.ports.push(Port {
                service: id,
                index,
                chain: names::service_chain(&name).into(),
                name: name.into(),
                target: (service.cluster_ip, *number),
            });
            self.by_target.push(((service.cluster_ip.to_bits(), *number), port));
            ports.push(port);
        }
        self.prepare(&ports, &service.endpoints);
        let rules = self.rules(&ports, &service.endpoints)?;
        self.note_varying(&ports, &rules);
        self.services.push(ServiceState { history: History::new(rules), ports });
        Ok(())
    }

    /// Commits a change of `service` at `now`; it goes live on node i after the i-th lag.
    ///
    /// # Errors
    ///
    /// If the rules would be refused by the kernel; that is a bug.
    pub fn commit(
        &mut self,
        service: ServiceId,
        endpoints: &ServiceEndpoints,
        now: SimTime,
        lags: impl Iterator<Item = Duration>,
    ) -> Result<&Version<ServiceRules>, ValidationError> {
        let old = self.services[service].history.newest().content.ports.iter();
        self.endpoints += count(endpoints);
        self.endpoints -= old.map(|port| port.endpoints.len()).sum::<usize>();
        let ports = self.services[service].ports.clone();
        self.prepare(&ports, endpoints);
        let rules = self.rules(&ports, endpoints)?;
        self.note_varying(&ports, &rules);
        Ok(self.services[service].history.commit(now, rules, lags))
    }

    /// Returns the versions of `service`.
    pub fn history(&self, service: ServiceId) -> &History<ServiceRules> {
        &self.services[service].history
    }

    /// Forgets versions of `service` that no node has had since `time`.
    pub fn forget_before(&mut self, service: ServiceId, time: SimTime) {
        self.services[service].history.forget_before(time);
    }

    /// Returns when the last node has, or will have, all that is committed.
    pub fn last_live(&self) -> SimTime {
        let last = |state: &ServiceState| state.history.newest().last_live;
        self.services.iter().map(|(_, state)| last(state)).max().unwrap_or(SimTime::ZERO)
    }

    /// Returns the name of a service port, given by an origin's owner.
    pub fn port_name(&self, port: ServicePortId) -> &Name {
        &self.ports[port].name
    }

    /// Returns the service port at an address and port.
    pub fn port_at(&self, target: (Ipv4Addr, u16)) -> Option<(ServicePortId, ServiceId, usize)> {
        let id = self.find(target.0.to_bits(), target.1)?;
        Some((id, self.ports[id].service, self.ports[id].index))
    }

    /// Returns the rules of `node` at `now`.
    #[inline]
    pub fn at(&self, node: NodeId, now: SimTime) -> NodeRules<'_> {
        NodeRules { rules: self, node, now }
    }

    fn find(&self, addr: u32, port: u16) -> Option<ServicePortId> {
        let index = self.by_target.binary_search_by_key(&(addr, port), |entry| entry.0).ok()?;
        Some(self.by_target[index].1)
    }

    fn note_varying(&mut self, ports: &[ServicePortId], rules: &ServiceRules) {
        for (&port, rules) in ports.iter().zip(&rules.ports) {
            if rules.endpoints.is_empty()
                && let Err(at) = self.varying.binary_search(&port)
            {
                self.varying.insert(at, port);
            }
        }
    }

    /// Makes sure that the texts of all endpoints are there.
    fn prepare(&mut self, ports: &[ServicePortId], endpoints: &ServiceEndpoints) {
        for (&id, endpoints) in ports.iter().zip(endpoints) {
            while self.shares.len() <= endpoints.len() {
                self.shares.push(Probability::one_of(self.shares.len() as u32));
            }
            for &Endpoint { addr, port, .. } in endpoints.iter() {
                let name = &self.ports[id].name;
                self.texts.entry((id, addr, port)).or_insert_with(|| EndpointText {
                    chain: names::endpoint_chain(name, addr, port).into(),
                    pick: format!("{name} -> {addr}:{port}").into(),
                });
            }
        }
    }

    fn rules(
        &self,
        ports: &[ServicePortId],
        endpoints: &ServiceEndpoints,
    ) -> Result<ServiceRules, ValidationError> {
        let rules = |(&port, endpoints): (&ServicePortId, &Arc<[Endpoint]>)| {
            let fragment = Arc::new(self.fragment(port, endpoints)?);
            Ok(PortRules { endpoints: endpoints.clone(), fragment })
        };
        let ports = ports.iter().zip(endpoints).map(rules).collect::<Result<_, _>>()?;
        Ok(ServiceRules { ports })
    }

    /// Returns what a service port adds to the rules of a node.
    fn fragment(
        &self,
        id: ServicePortId,
        endpoints: &[Endpoint],
    ) -> Result<Fragment, ValidationError> {
        let port = &self.ports[id];
        let owner = id.index() as u32;
        let rule = || Rule::new(Origin { owner, item: 0 });
        let (vip, number) = port.target;
        let to_vip = |rule: Rule, comment: &str| {
            let comment = format!("{} {comment}", port.name);
            rule.destination(host(vip)).comment(comment).dport(Protocol::TCP, number)
        };
        let mut fragment = self.base.fragment(FragmentId(owner + 1));
        if endpoints.is_empty() {
            let reject = to_vip(rule(), "has no endpoints").then(REJECT);
            fragment.contribute(self.slots.filter_services, reject);
            return fragment.build();
        }
        let service_chain = fragment.chain(Table::Nat, port.chain.clone());
        let dispatch = to_vip(rule(), "cluster IP").then(Target::Jump(service_chain));
        fragment.contribute(self.slots.nat_services, dispatch);
        let masquerade = to_vip(rule(), "cluster IP").then(Target::Jump(MARK_MASQ));
        let masquerade = if self.masquerade_all {
            masquerade
        } else {
            masquerade.not_source(self.cluster_cidr.clone())
        };
        fragment.append(Table::Nat, service_chain, masquerade);
        let comments = self.endpoints <= LARGE_CLUSTER_ENDPOINTS;
        for (index, endpoint) in endpoints.iter().enumerate() {
            let left = endpoints.len() - index;
            let Endpoint { pod, addr, port: target } = *endpoint;
            let EndpointText { chain, pick } = &self.texts[&(id, addr, target)];
            let chain = fragment.chain(Table::Nat, chain.clone());
            let rule = || Rule::new(Origin { owner, item: pod.index() as u32 });
            let comment = |rule: Rule, text: &Arc<str>| {
                if comments { rule.comment(text.clone()) } else { rule }
            };
            let pick = comment(rule(), pick);
            let pick = if left > 1 { pick.random(self.shares[left]) } else { pick };
            fragment.append(Table::Nat, service_chain, pick.then(Target::Jump(chain)));
            let hairpin = comment(rule(), &port.name).source(host(addr));
            fragment.append(Table::Nat, chain, hairpin.then(Target::Jump(MARK_MASQ)));
            let tcp = Match::Tcp { sport: None, dport: None, flags: None, option: None };
            let to = Nat::Dnat(NatRange::to(IpAddr::V4(addr), target));
            let dnat = comment(rule(), &port.name).protocol(Protocol::TCP).with(tcp);
            fragment.append(Table::Nat, chain, dnat.then(Target::Nat(to)));
        }
        fragment.build()
    }
}

const REJECT: Target = Target::Reject(RejectWith::DEFAULT);

/// KUBE-MARK-MASQ: the first user chain of nat, after the four built-in ones.
const MARK_MASQ: ChainId = ChainId { fragment: FragmentId::BASE, index: 4 };

/// The rules of one node at one time.
#[derive(Clone, Copy, Debug)]
pub struct NodeRules<'a> {
    rules: &'a Iptables,
    node: NodeId,
    now: SimTime,
}

impl<'a> NodeRules<'a> {
    fn port(&self, id: ServicePortId) -> &'a PortRules {
        let port = &self.rules.ports[id];
        let history = &self.rules.services[port.service].history;
        &history.at(self.node, self.now).content.ports[port.index]
    }

    /// Returns how many of the ports below `below` contribute to `slot`.
    fn contributions(&self, slot: SlotId, below: usize) -> u32 {
        let varying = self.rules.varying.iter().take_while(|port| port.index() < below);
        let empty = varying.filter(|&&port| self.port(port).endpoints.is_empty()).count();
        let count = if slot == self.rules.slots.nat_services { below - empty } else { empty };
        count as u32
    }

    /// Returns the whole ruleset, for rendering and comparison.
    ///
    /// # Errors
    ///
    /// If the rules would be refused by the kernel; that is a bug.
    pub fn to_ruleset(&self) -> Result<Ruleset, ValidationError> {
        let rules = self.rules;
        let mut fragments: Vec<Arc<Fragment>> =
            rules.ports.ids().map(|port| self.port(port).fragment.clone()).collect();
        let mut local = rules.base.fragment(FragmentId(u32::MAX));
        for rule in &rules.local[self.node.index()] {
            local.contribute(rules.slots.flannel_local, rule.clone());
        }
        fragments.push(Arc::new(local.build()?));
        Ruleset::assemble(&rules.base, &fragments)
    }
}

impl Rules for NodeRules<'_> {
    #[inline]
    fn base(&self, table: Table, hook: Hook) -> Option<&Chain> {
        self.rules.base.builtin(table, hook)
    }

    #[inline]
    fn chain(&self, table: Table, id: ChainId) -> &Chain {
        if id.fragment == FragmentId::BASE {
            return self.rules.base.chain(table, id);
        }
        let port = ServicePortId::from_index(id.fragment.0 as usize - 1);
        self.port(port).fragment.chain(table, id)
    }

    fn slot(&self, _: Table, slot: SlotId, packet: &Packet, from: u32) -> SlotHit<'_> {
        if slot == self.rules.slots.flannel_local {
            let rules = &self.rules.local[self.node.index()];
            let from = (from as usize).min(rules.len());
            return SlotHit { rules: &rules[from..], before: from as u32, total: 3 };
        }
        let total = self.contributions(slot, self.rules.ports.len());
        let none = SlotHit { rules: &[], before: total, total };
        let Addresses::V4 { dst, .. } = packet.tuple.addresses() else {
            return none;
        };
        if packet.tuple.protocol != Protocol::TCP {
            return none;
        }
        let Some(id) = self.rules.find(dst.to_bits(), packet.tuple.dst_part) else {
            return none;
        };
        let rules = self.port(id).fragment.contribution(slot);
        let before = self.contributions(slot, id.index());
        if rules.is_empty() || before < from {
            return none;
        }
        SlotHit { rules, before, total }
    }

    #[inline]
    fn tracks(&self) -> bool {
        true
    }
}

fn count(endpoints: &ServiceEndpoints) -> usize {
    endpoints.iter().map(|port| port.len()).sum()
}

fn host(addr: Ipv4Addr) -> Prefix {
    Prefix::host(IpAddr::V4(addr))
}

fn prefix(cidr: Ipv4Cidr) -> Prefix {
    Prefix::new(IpAddr::V4(cidr.base()), cidr.prefix_len())
}

/// Returns what all nodes have: kube-proxy's chains without Services, and flannel's.
fn base(cluster: &Prefix, mark: u32) -> Result<(Base, Slots), ValidationError> {
    let mut rules = RulesetBuilder::new();
    rules.load(Table::Nat);
    let mark_masq = rules.chain(Table::Nat, "KUBE-MARK-MASQ");
    assert_eq!(mark_masq, MARK_MASQ, "KUBE-MARK-MASQ follows the built-in chains");
    let rule = || Rule::new(Origin { owner: u32::MAX, item: 0 });
    rules.append(Table::Nat, mark_masq, rule().then(Target::or_mark(mark)));
    let nat_services = nat(&mut rules, mark);
    let filter_services = filter(&mut rules, mark);
    let flannel_local = flannel(&mut rules, cluster, mark);
    let slots = Slots { nat_services, filter_services, flannel_local };
    Ok((rules.build_base()?, slots))
}

fn nat(rules: &mut RulesetBuilder, mark: u32) -> SlotId {
    let rule = || Rule::new(Origin { owner: u32::MAX, item: 0 });
    let services = rules.chain(Table::Nat, "KUBE-SERVICES");
    let nodeports = rules.chain(Table::Nat, "KUBE-NODEPORTS");
    let postrouting = rules.chain(Table::Nat, "KUBE-POSTROUTING");
    for hook in [Hook::Prerouting, Hook::Output] {
        let builtin = rules.builtin(Table::Nat, hook);
        let portals = rule().comment("kubernetes service portals").then(Target::Jump(services));
        rules.append(Table::Nat, builtin, portals);
    }
    let builtin = rules.builtin(Table::Nat, Hook::Postrouting);
    let jump = rule().comment("kubernetes postrouting rules").then(Target::Jump(postrouting));
    rules.append(Table::Nat, builtin, jump);
    for rule in [
        rule().not_mark(mark, mark).then(Target::Return),
        rule().then(Target::xor_mark(mark)),
        rule()
            .comment("kubernetes service traffic requiring SNAT")
            .then(Target::Nat(Nat::Masquerade(random_fully()))),
    ] {
        rules.append(Table::Nat, postrouting, rule);
    }
    let slot = rules.slot(Table::Nat, services);
    let last = "kubernetes service nodeports; NOTE: this must be the last rule in this chain";
    let last = rule().comment(last).dst_type(AddrType::Local).then(Target::Jump(nodeports));
    rules.append(Table::Nat, services, last);
    slot
}

fn filter(rules: &mut RulesetBuilder, mark: u32) -> SlotId {
    let rule = || Rule::new(Origin { owner: u32::MAX, item: 0 });
    let [services, external, forward, nodeports, lb, firewall] = [
        "KUBE-SERVICES",
        "KUBE-EXTERNAL-SERVICES",
        "KUBE-FORWARD",
        "KUBE-NODEPORTS",
        "KUBE-PROXY-FIREWALL",
        "KUBE-FIREWALL",
    ]
    .map(|name| rules.chain(Table::Filter, name));
    let new = |comment: &str, chain| {
        rule().ctstate(CtStates::NEW).comment(comment).then(Target::Jump(chain))
    };
    let lb = new("kubernetes load balancer firewall", lb);
    let external = new("kubernetes externally-visible service portals", external);
    let portals = new("kubernetes service portals", services);
    let firewall_jump = rule().then(Target::Jump(firewall));
    let health = rule().comment("kubernetes health check service ports");
    let health = health.then(Target::Jump(nodeports));
    let forwarding = rule().comment("kubernetes forwarding rules").then(Target::Jump(forward));
    let jumps = [
        (Hook::Input, vec![firewall_jump.clone(), lb.clone(), health, external.clone()]),
        (Hook::Forward, vec![lb.clone(), forwarding, portals.clone(), external]),
        (Hook::Output, vec![firewall_jump, lb, portals]),
    ];
    for (hook, jumps) in jumps {
        let builtin = rules.builtin(Table::Filter, hook);
        for jump in jumps {
            rules.append(Table::Filter, builtin, jump);
        }
    }
    let established = CtStates::RELATED | CtStates::ESTABLISHED;
    for rule in [
        rule().ctstate(CtStates::INVALID).then(Target::Drop),
        rule().comment("kubernetes forwarding rules").mark(mark, mark).then(Target::Accept),
        rule()
            .comment("kubernetes forwarding conntrack rule")
            .ctstate(established)
            .then(Target::Accept),
    ] {
        rules.append(Table::Filter, forward, rule);
    }
    let loopback = Prefix::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 8);
    let states = established | CtStates::DNAT;
    let martian = rule()
        .destination(loopback.clone())
        .not_source(loopback)
        .comment("block incoming localnet connections")
        .with(Match::CtState { states, invert: true })
        .then(Target::Drop);
    rules.append(Table::Filter, firewall, martian);
    rules.slot(Table::Filter, services)
}

/// flannel's rules, after kube-proxy's.
fn flannel(rules: &mut RulesetBuilder, cluster: &Prefix, mark: u32) -> SlotId {
    let rule = || Rule::new(Origin { owner: u32::MAX, item: 1 });
    let postrouting = rules.chain(Table::Nat, "FLANNEL-POSTRTG");
    let builtin = rules.builtin(Table::Nat, Hook::Postrouting);
    let jump = rule().comment("flanneld masq").then(Target::Jump(postrouting));
    rules.append(Table::Nat, builtin, jump);
    let masq = |rule: Rule| rule.comment("flanneld masq");
    let marked = masq(rule().mark(mark, mark)).then(Target::Return);
    rules.append(Table::Nat, postrouting, marked);
    let slot = rules.slot(Table::Nat, postrouting);
    let multicast = Prefix::new(IpAddr::V4(Ipv4Addr::new(224, 0, 0, 0)), 4);
    for from_to in [
        rule().source(cluster.clone()).with(Match::Destination { prefix: multicast, invert: true }),
        rule().not_source(cluster.clone()).destination(cluster.clone()),
    ] {
        let masquerade = Target::Nat(Nat::Masquerade(random_fully()));
        rules.append(Table::Nat, postrouting, masq(from_to).then(masquerade));
    }
    let forward = rules.chain(Table::Filter, "FLANNEL-FWD");
    let builtin = rules.builtin(Table::Filter, Hook::Forward);
    let comment = "flanneld forward";
    let jump = rule().comment(comment).then(Target::Jump(forward));
    rules.append(Table::Filter, builtin, jump);
    for side in [rule().source(cluster.clone()), rule().destination(cluster.clone())] {
        rules.append(Table::Filter, forward, side.comment(comment).then(Target::Accept));
    }
    slot
}

/// flannel's rules about a node's own Pods: their traffic inside the cluster keeps its source.
fn flannel_local(cluster: &Prefix, node: &Prefix) -> [Rule; 3] {
    let rule = || Rule::new(Origin { owner: u32::MAX, item: 1 });
    [
        rule().source(node.clone()).destination(cluster.clone()),
        rule().source(cluster.clone()).destination(node.clone()),
        rule().not_source(cluster.clone()).destination(node.clone()),
    ]
    .map(|rule| rule.comment("flanneld masq").then(Target::Return))
}

fn random_fully() -> NatRange {
    let flags = NatFlags { random_fully: true, ..NatFlags::default() };
    NatRange::keep().with_flags(flags)
}
