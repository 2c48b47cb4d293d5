//! userspace mode: rules that lead to the node's process, and the process's turns.

use std::collections::BTreeMap;

use netfilter_model::Prefix;
use netfilter_model::hook::{Hook, Table};
use netfilter_model::packet::Packet;
use netfilter_model::rule::{
    Base, Chain, ChainId, Origin, Rule, Rules, SlotHit, SlotId, ValidationError,
};
use netfilter_model::tuple::{Addresses, Protocol};

use super::{DataPlane, flannel};
use crate::ids::{Id, IdVec, NodeId, ServicePortId};
use crate::kube::endpoint_slice::Endpoint;
use crate::proxy::service::ServicePort;
use crate::proxy::userspace::{self, RoundRobin, Slots, Sticky};

/// What nodes hold.
#[derive(Debug)]
pub(super) struct Userspace {
    pub(super) base: Base,
    pub(super) flannel_local: SlotId,
    slots: Slots,
    /// The rule of each service port for packets of Pods.
    portals: IdVec<ServicePortId, Vec<Rule>>,
    /// Where each node's process is in the endpoints of a service port.
    turns: BTreeMap<(NodeId, ServicePortId), RoundRobin<Endpoint>>,
}

impl Userspace {
    pub(super) fn new(pods: &Prefix, mark: u32) -> Result<Userspace, ValidationError> {
        let (mut builder, slots) = userspace::builder();
        let flannel_local = flannel::common(&mut builder, pods, mark);
        Ok(Userspace {
            base: builder.build_base()?,
            flannel_local,
            slots,
            portals: IdVec::new(),
            turns: BTreeMap::new(),
        })
    }

    /// Adds the rule of a service port. Beyond 12,001 of them, the process has no port left.
    pub(super) fn add(&mut self, port: &ServicePort) {
        let index = self.portals.len();
        let origin = Origin { owner: index as u32, item: 0 };
        let rules = userspace::process_port(index).map(|process_port| {
            // The node's address is named in rules for its own packets, of which there are none.
            userspace::rules_of(port, &self.slots, origin, process_port, port.cluster_ip)
        });
        let container =
            rules.into_iter().flatten().filter(|(slot, _)| *slot == self.slots.container);
        self.portals.push(container.map(|(_, rule)| rule).collect());
    }

    /// Returns the endpoint whose turn it is on a node.
    pub(super) fn next(
        &mut self,
        node: NodeId,
        port: ServicePortId,
        endpoints: &[Endpoint],
        sticky: Option<Sticky>,
        draw: impl Fn(u32) -> u64,
    ) -> Option<Endpoint> {
        let turns = self.turns.entry((node, port)).or_default();
        turns.update(endpoints, draw);
        match sticky {
            Some(sticky) => turns.stay(sticky),
            None => turns.take_turn(),
        }
    }

    /// Has a node's process forget clients of endpoints that are not among these.
    pub(super) fn keep_clients(&mut self, node: NodeId, port: ServicePortId, to: &[Endpoint]) {
        if let Some(turns) = self.turns.get_mut(&(node, port)) {
            turns.keep_clients(|of| {
                let is_it = |new: &&Endpoint| (new.addr, new.port) == (of.addr, of.port);
                to.iter().find(is_it).copied()
            });
        }
    }

    /// Returns the rules of all service ports, with where they go, as node `node` has them.
    pub(super) fn rules(&self) -> impl Iterator<Item = (SlotId, &Rule)> {
        let rules = self.portals.iter().flat_map(|(_, rules)| rules);
        rules.map(|rule| (self.slots.container, rule))
    }
}

/// The rules of one node.
#[derive(Clone, Copy, Debug)]
pub struct NodeRules<'a> {
    pub(super) plane: &'a DataPlane,
    pub(super) mode: &'a Userspace,
    pub(super) node: NodeId,
}

impl Rules for NodeRules<'_> {
    #[inline]
    fn base(&self, table: Table, hook: Hook) -> Option<&Chain> {
        self.mode.base.builtin(table, hook)
    }

    #[inline]
    fn chain(&self, table: Table, id: ChainId) -> &Chain {
        self.mode.base.chain(table, id)
    }

    fn slot(&self, _: Table, slot: SlotId, packet: &Packet, from: u32) -> SlotHit<'_> {
        if slot == self.mode.flannel_local {
            return self.plane.flannel(self.node, from);
        }
        if slot != self.mode.slots.container {
            return SlotHit { rules: &[], before: 0, total: 0 };
        }
        // A rule each, but for ports beyond what the process can serve, which are the last.
        let total = self.mode.portals.len() as u32;
        let none = SlotHit { rules: &[], before: total, total };
        let Addresses::V4 { dst, .. } = packet.tuple.addresses() else {
            return none;
        };
        if packet.tuple.protocol != Protocol::TCP {
            return none;
        }
        match self.plane.find(dst.to_bits(), packet.tuple.dst_part) {
            Some(port) if port.index() as u32 >= from => {
                SlotHit { rules: &self.mode.portals[port], before: port.index() as u32, total }
            }
            _ => none,
        }
    }

    #[inline]
    fn tracks(&self) -> bool {
        true
    }
}
