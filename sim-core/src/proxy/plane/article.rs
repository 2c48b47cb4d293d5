//! A proxy as introductions draw it: a list of addresses for each Service, taken in turns.
//!
//! The one place for these simplifications: endpoints in the order of their Pods' names, one
//! counter for each node and Service that never starts anew, and no rule at all for a Service
//! without endpoints. What the rest of the model has of delays, Pods and packets it keeps.

use std::collections::BTreeMap;
use std::net::IpAddr;

use netfilter_model::Prefix;
use netfilter_model::hook::{Hook, Table};
use netfilter_model::packet::Packet;
use netfilter_model::rule::{
    Base, Chain, ChainId, Nat, NatRange, Origin, Rule, Rules, RulesetBuilder, SlotHit, SlotId,
    Target, ValidationError,
};
use netfilter_model::tuple::{Addresses, Protocol};

use super::{DataPlane, Made, flannel};
use crate::ids::{Id, NodeId, ServicePortId};
use crate::kube::endpoint_slice::Endpoint;
use crate::proxy::service::ServicePort;
use crate::time::SimTime;

/// What nodes hold.
#[derive(Debug)]
pub(super) struct Article {
    pub(super) base: Base,
    pub(super) flannel_local: SlotId,
    pub(super) rules: SlotId,
    /// How many packets a node has sent to a Service.
    turns: BTreeMap<(NodeId, ServicePortId), u64>,
}

impl Article {
    pub(super) fn new(pods: &Prefix, mark: u32) -> Result<Article, ValidationError> {
        let mut builder = RulesetBuilder::new();
        builder.load(Table::Nat);
        let chain = builder.chain(Table::Nat, "SERVICES");
        let prerouting = builder.builtin(Table::Nat, Hook::Prerouting);
        let jump = Rule::new(Origin { owner: u32::MAX, item: 0 }).then(Target::Jump(chain));
        builder.append(Table::Nat, prerouting, jump);
        let rules = builder.slot(Table::Nat, chain);
        let flannel_local = flannel::common(&mut builder, pods, mark);
        let base = builder.build_base()?;
        Ok(Article { base, flannel_local, rules, turns: BTreeMap::new() })
    }

    /// Returns a rule for each endpoint, of which a packet meets the one whose turn it is.
    pub(super) fn make(id: ServicePortId, port: &ServicePort, endpoints: &[Endpoint]) -> Vec<Rule> {
        let rule = |endpoint: &Endpoint| {
            let origin = Origin { owner: id.index() as u32, item: endpoint.pod.index() as u32 };
            let to = NatRange::to(IpAddr::V4(endpoint.addr), endpoint.port);
            Rule::new(origin)
                .destination(Prefix::host(port.cluster_ip))
                .dport(Protocol::TCP, port.port)
                .then(Target::Nat(Nat::Dnat(to)))
        };
        endpoints.iter().map(rule).collect()
    }

    /// Notes that a node has sent a packet to a Service.
    pub(super) fn count(&mut self, node: NodeId, port: ServicePortId) {
        *self.turns.entry((node, port)).or_default() += 1;
    }
}

/// The rules of one node at one time.
#[derive(Clone, Copy, Debug)]
pub struct NodeRules<'a> {
    pub(super) plane: &'a DataPlane,
    pub(super) mode: &'a Article,
    pub(super) node: NodeId,
    pub(super) now: SimTime,
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
        let none = SlotHit { rules: &[], before: 0, total: 0 };
        if slot != self.mode.rules || from > 0 || packet.tuple.protocol != Protocol::TCP {
            return none;
        }
        let Addresses::V4 { dst, .. } = packet.tuple.addresses() else {
            return none;
        };
        let Some(port) = self.plane.find(dst.to_bits(), packet.tuple.dst_part) else {
            return none;
        };
        let Made::Turns(rules) = &self.plane.held(port, self.node, self.now).made else {
            return none;
        };
        if rules.is_empty() {
            return none;
        }
        let turn = self.mode.turns.get(&(self.node, port)).copied().unwrap_or(0);
        let at = (turn % rules.len() as u64) as usize;
        SlotHit { rules: &rules[at..=at], before: 0, total: 1 }
    }

    #[inline]
    fn tracks(&self) -> bool {
        true
    }
}
