//! iptables mode: a fragment of rules for each service port, and views of them.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};

use netfilter_model::Prefix;
use netfilter_model::hook::{Hook, Table};
use netfilter_model::packet::Packet;
use netfilter_model::rule::{
    Chain, ChainId, Fragment, FragmentId, Rules, SlotHit, SlotId, ValidationError,
};
use netfilter_model::tuple::{Addresses, Family, Protocol};

use super::{DataPlane, Made, ProxiedService, RuleCounts, count, flannel};
use crate::config::ProxyConfig;
use crate::ids::{Id, IdVec, NodeId, ServicePortId};
use crate::kube::endpoint_slice::Endpoint;
use crate::proxy::iptables::LARGE_CLUSTER_ENDPOINTS;
use crate::proxy::iptables::common::{Common, Detector, NodePorts, Settings};
use crate::proxy::iptables::generate::{Backend, Backends, EndpointText, PortText, Shares};
use crate::proxy::service::ServicePort;
use crate::time::SimTime;

/// What rules of service ports are made with.
#[derive(Debug)]
pub(super) struct Iptables {
    pub(super) common: Common,
    /// Where flannel's rules about a node's own Pods go, where there are such.
    pub(super) flannel_local: Option<SlotId>,
    /// Service ports that were without endpoints at some time.
    varying: Vec<ServicePortId>,
    endpoints: usize,
    /// Texts of service ports.
    ports: IdVec<ServicePortId, PortText>,
    /// Texts of endpoints, which outlive many versions.
    texts: BTreeMap<(ServicePortId, Ipv4Addr, u16), EndpointText>,
    shares: Shares,
}

impl Iptables {
    /// Returns the rules of nodes, with flannel's around them; or, without, of a machine that all
    /// packets to Services pass: then it masquerades them, for the answers to come back to it.
    pub(super) fn new(
        pods: &Prefix,
        proxy: &ProxyConfig,
        with_flannel: bool,
        services: &[ProxiedService],
    ) -> Result<Iptables, ValidationError> {
        let settings = Settings {
            family: Family::V4,
            mark: 1 << proxy.masquerade_bit,
            masquerade_all: proxy.masquerade_all || !with_flannel,
            detector: Some(Detector::Source(pods.clone())),
            node_ports: NodePorts::Local,
            localhost_node_ports: true,
            drop_invalid: true,
            canaries: false,
            host_ip: IpAddr::V4(Ipv4Addr::LOCALHOST), // without source ranges, no rule names it
        };
        let (mut builder, slots) = Common::builder(&settings);
        let flannel_local =
            with_flannel.then(|| flannel::common(&mut builder, pods, settings.mark));
        Ok(Iptables {
            common: Common { settings, base: builder.build_base()?, slots },
            flannel_local,
            varying: Vec::new(),
            endpoints: services.iter().map(|service| count(&service.endpoints)).sum(),
            ports: IdVec::new(),
            texts: BTreeMap::new(),
            shares: Shares::default(),
        })
    }

    /// Notes that a Service has another number of endpoints.
    pub(super) fn recount(&mut self, old: usize, new: usize) {
        self.endpoints = self.endpoints + new - old;
    }

    /// Returns the chain of an endpoint, by whose name clients are remembered.
    pub(super) fn chain_of(&self, id: ServicePortId, endpoint: &Endpoint) -> Option<&str> {
        Some(&self.texts.get(&(id, endpoint.addr, endpoint.port))?.chain)
    }

    /// Returns how many rules a service port adds, and how many of those every sync writes.
    pub(super) fn counts(&self, fragment: &Fragment) -> (RuleCounts, RuleCounts) {
        let of = |table| fragment.rule_count(&self.common.base, table) as u64;
        let held = RuleCounts { filter: of(Table::Filter), nat: of(Table::Nat) };
        let slots = &self.common.slots;
        let shared = RuleCounts {
            filter: held.filter,
            nat: fragment.contribution(slots.services).len() as u64,
        };
        (held, shared)
    }

    /// Returns what a service port adds to the rules of a node. Ports come in the order of their
    /// ids the first time.
    pub(super) fn make(
        &mut self,
        id: ServicePortId,
        port: &ServicePort,
        endpoints: &[Endpoint],
    ) -> Result<Fragment, ValidationError> {
        if id.index() == self.ports.len() {
            self.ports.push(PortText::new(port.name.text.clone(), port.name.protocol));
        }
        if endpoints.is_empty()
            && let Err(at) = self.varying.binary_search(&id)
        {
            self.varying.insert(at, id);
        }
        let port_text = &self.ports[id];
        self.shares.extend_to(endpoints.len());
        for &Endpoint { addr, port, .. } in endpoints {
            self.texts.entry((id, addr, port)).or_insert_with(|| {
                EndpointText::new(port_text, Protocol::TCP, &format!("{addr}:{port}"))
            });
        }
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
        self.common.fragment(fragment, port, port_text, backends, &self.shares)
    }
}

/// The rules of one node at one time.
#[derive(Clone, Copy, Debug)]
pub struct NodeRules<'a> {
    pub(super) plane: &'a DataPlane,
    pub(super) mode: &'a Iptables,
    pub(super) node: NodeId,
    pub(super) now: SimTime,
}

impl<'a> NodeRules<'a> {
    #[inline]
    fn fragment(&self, table: Table, id: ServicePortId) -> &'a Fragment {
        let held = match table {
            Table::Filter => self.plane.filtered(id, self.node, self.now),
            _ => self.plane.held(id, self.node, self.now),
        };
        match &held.made {
            Made::Fragment(fragment) => fragment,
            _ => unreachable!("iptables mode makes fragments"),
        }
    }

    /// Returns how many of the ports below `below` contribute to `slot`.
    fn contributions(&self, slot: SlotId, below: usize) -> u32 {
        let varying = self.mode.varying.iter().take_while(|port| port.index() < below);
        let in_nat = slot == self.mode.common.slots.services;
        let is_empty = |port: &&ServicePortId| {
            let held = if in_nat { DataPlane::held } else { DataPlane::filtered };
            held(self.plane, **port, self.node, self.now).endpoints.is_empty()
        };
        let empty = varying.filter(is_empty).count();
        let count = if in_nat { below - empty } else { empty };
        count as u32
    }
}

impl Rules for NodeRules<'_> {
    #[inline]
    fn base(&self, table: Table, hook: Hook) -> Option<&Chain> {
        self.mode.common.base.builtin(table, hook)
    }

    #[inline]
    fn chain(&self, table: Table, id: ChainId) -> &Chain {
        if id.fragment == FragmentId::BASE {
            return self.mode.common.base.chain(table, id);
        }
        let port = ServicePortId::from_index(id.fragment.0 as usize - 1);
        self.fragment(table, port).chain(table, id)
    }

    fn slot(&self, table: Table, slot: SlotId, packet: &Packet, from: u32) -> SlotHit<'_> {
        let slots = &self.mode.common.slots;
        if Some(slot) == self.mode.flannel_local {
            return self.plane.flannel(self.node, from);
        }
        let known = slot == slots.services || slot == slots.refusals;
        if !known || self.plane.is_flushed(self.node, self.now) {
            return SlotHit { rules: &[], before: 0, total: 0 };
        }
        let total = self.contributions(slot, self.plane.ports.len());
        let none = SlotHit { rules: &[], before: total, total };
        let Addresses::V4 { dst, .. } = packet.tuple.addresses() else {
            return none;
        };
        if packet.tuple.protocol != Protocol::TCP {
            return none;
        }
        let Some(id) = self.plane.find(dst.to_bits(), packet.tuple.dst_part) else {
            return none;
        };
        let rules = self.fragment(table, id).contribution(slot);
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
