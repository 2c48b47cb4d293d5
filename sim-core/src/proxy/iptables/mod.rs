//! kube-proxy's iptables mode.
//!
//! ```text
//!                   Settings ─Common::new─▶ what does not depend on Services ─┐
//! a port's endpoints ─backends─▶ Common::fragment ─▶ what one port adds ──────┴─▶ rules
//! ```
//!
//! [`Proxier`] is a node's whole ruleset from its proxy's state, as one value: it runs packets,
//! prints as `iptables-save` does and as what kube-proxy feeds to `iptables-restore`, and counts.
//! [`Iptables`] is the simulator's view of the same parts: ClusterIP Services of TCP, with
//! flannel's rules around them, shared by thousands of nodes.
//!
//! Kubernetes: pkg/proxy/iptables/proxier.go, syncProxyRules.

pub mod common;
mod flannel;
pub mod generate;
mod proxier;
mod restore;

pub use proxier::{Proxier, RulesError, Sync};

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::Duration;

use netfilter_model::Prefix;
use netfilter_model::hook::{Hook, Table};
use netfilter_model::packet::Packet;
use netfilter_model::rule::{
    Chain, ChainId, Fragment, FragmentId, Rule, Rules, Ruleset, SlotHit, SlotId, ValidationError,
};
use netfilter_model::tuple::{Addresses, Family, Protocol};

use self::common::{Common, Detector, NodePorts, Settings};
use self::generate::{Backend, Backends, EndpointText, PortText, Shares};
use super::service::{ServicePort, ServicePortName};
use crate::config::{ClusterConfig, Ipv4Cidr, ObjectName, ProxyConfig};
use crate::ids::{Id, IdVec, NodeId, ServiceId, ServicePortId};
use crate::kube::endpoint_slice::{Endpoint, ServiceEndpoints};
use crate::propagation::{History, Version};
use crate::record::Name;
use crate::time::SimTime;

/// Above this many endpoints in all, the rules of single endpoints carry no comments.
///
/// Kubernetes: pkg/proxy/iptables/proxier.go, largeClusterEndpointsThreshold.
pub const LARGE_CLUSTER_ENDPOINTS: usize = 1000;

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
    common: Common,
    /// Where flannel's rules about a node's own Pods go.
    flannel_local: SlotId,
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
    shares: Shares,
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
    port: ServicePort,
    text: PortText,
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
        let settings = Settings {
            family: Family::V4,
            mark: 1 << proxy.masquerade_bit,
            masquerade_all: proxy.masquerade_all,
            detector: Some(Detector::Source(cluster_cidr.clone())),
            node_ports: NodePorts::Local,
            localhost_node_ports: true,
            drop_invalid: true,
            canaries: false,
            host_ip: IpAddr::V4(Ipv4Addr::LOCALHOST), // without source ranges, no rule names it
        };
        let (mut builder, slots) = Common::builder(&settings);
        let flannel_local = flannel::common(&mut builder, &cluster_cidr, settings.mark);
        let common = Common { settings, base: builder.build_base()?, slots };
        let of_node = |range| flannel::of_node(&cluster_cidr, &prefix(range));
        let mut rules = Iptables {
            common,
            flannel_local,
            services: IdVec::new(),
            ports: IdVec::new(),
            by_target: Vec::new(),
            varying: Vec::new(),
            endpoints: services.iter().map(|service| count(&service.endpoints)).sum(),
            local: node_ranges.map(of_node).collect(),
            texts: BTreeMap::new(),
            shares: Shares::default(),
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
            let name = ServicePortName::new(&service.name, name.as_deref(), Protocol::TCP);
            let port = self.ports.push(Port {
                service: id,
                index,
                text: PortText::new(name.text.clone(), name.protocol),
                name: (*name.text).into(),
                port: ServicePort::cluster_ip_only(name, service.cluster_ip.into(), *number),
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
            self.shares.extend_to(endpoints.len());
            for &Endpoint { addr, port, .. } in endpoints.iter() {
                let text = &self.ports[id].text;
                self.texts.entry((id, addr, port)).or_insert_with(|| {
                    EndpointText::new(text, Protocol::TCP, &format!("{addr}:{port}"))
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
        let backend = |&Endpoint { pod, addr, port }: &Endpoint| Backend {
            addr: IpAddr::V4(addr),
            port,
            item: pod.index() as u32,
            cluster: true,
            local: false,
            text: &self.texts[&(id, addr, port)],
        };
        let list: Vec<Backend<'_>> = endpoints.iter().map(backend).collect();
        let backends = Backends {
            list: &list,
            any: !list.is_empty(),
            comments: self.endpoints <= LARGE_CLUSTER_ENDPOINTS,
        };
        let fragment = FragmentId(id.index() as u32 + 1);
        self.common.fragment(fragment, &port.port, &port.text, backends, &self.shares)
    }
}

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
        let count = if slot == self.rules.common.slots.services { below - empty } else { empty };
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
        let mut local = rules.common.base.fragment(FragmentId(u32::MAX));
        for rule in &rules.local[self.node.index()] {
            local.contribute(rules.flannel_local, rule.clone());
        }
        fragments.push(Arc::new(local.build()?));
        Ruleset::assemble(&rules.common.base, &fragments)
    }
}

impl Rules for NodeRules<'_> {
    #[inline]
    fn base(&self, table: Table, hook: Hook) -> Option<&Chain> {
        self.rules.common.base.builtin(table, hook)
    }

    #[inline]
    fn chain(&self, table: Table, id: ChainId) -> &Chain {
        if id.fragment == FragmentId::BASE {
            return self.rules.common.base.chain(table, id);
        }
        let port = ServicePortId::from_index(id.fragment.0 as usize - 1);
        self.port(port).fragment.chain(table, id)
    }

    fn slot(&self, _: Table, slot: SlotId, packet: &Packet, from: u32) -> SlotHit<'_> {
        let slots = &self.rules.common.slots;
        if slot == self.rules.flannel_local {
            let rules = &self.rules.local[self.node.index()];
            let from = (from as usize).min(rules.len());
            return SlotHit { rules: &rules[from..], before: from as u32, total: 3 };
        }
        if slot != slots.services && slot != slots.refusals {
            return SlotHit { rules: &[], before: 0, total: 0 };
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

fn prefix(cidr: Ipv4Cidr) -> Prefix {
    Prefix::new(IpAddr::V4(cidr.base()), cidr.prefix_len())
}
