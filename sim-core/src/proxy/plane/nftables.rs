//! nftables mode: for each service port a table that holds it alone.
//!
//! Packets find a Service's chains by looking up address, protocol and port in maps, whatever
//! other Services there are. So what a packet to one Service meets on a node is what it meets in
//! a table with this Service alone, and that is kept once for each version.

use std::collections::BTreeMap;

use netfilter_model::Prefix;
use netfilter_model::hook::{Hook, Table};
use netfilter_model::netns::Netns;
use netfilter_model::nft::{self, Problem, Ruleset};
use netfilter_model::packet::Packet;
use netfilter_model::rule::{Chain, ChainId, Rules, SlotHit, SlotId};

use super::plain::{self, Plain};
use super::{PlaneError, RuleCounts, anywhere, state};
use crate::ids::{NodeId, ServicePortId};
use crate::kube::object::KubeProxyConfiguration;
use crate::proxy::nftables;
use crate::proxy::profile::Profile;
use crate::proxy::state::State;
use crate::time::SimTime;

/// What nodes hold without Services.
#[derive(Debug)]
pub(super) struct Nftables {
    /// flannel's rules, which are of x_tables.
    pub(super) plain: Plain,
    without_services: Ruleset,
    /// Rules without Services.
    pub(super) fixed: u64,
    /// What each node's sets hold of service ports whose clients stay with their endpoints, but for
    /// the port whose sets its namespace has.
    sets: BTreeMap<(NodeId, ServicePortId), nft::State>,
    /// The service port whose sets a node's namespace has.
    shown: BTreeMap<NodeId, ServicePortId>,
}

impl Nftables {
    pub(super) fn new(
        pods: &Prefix,
        config: &KubeProxyConfiguration,
        profile: Profile,
    ) -> Result<Nftables, PlaneError> {
        let state = state(config, profile, anywhere());
        let table = nftables::Nftables::of(&state);
        Ok(Nftables {
            plain: Plain::new(pods, 1 << config.nftables.masquerade_bit)?,
            fixed: table.counts().rules as u64,
            without_services: table.into_ruleset()?,
            sets: BTreeMap::new(),
            shown: BTreeMap::new(),
        })
    }

    /// Lets a node's namespace have the sets of a service port.
    pub(super) fn show(&mut self, node: NodeId, port: ServicePortId, netns: &mut Netns) {
        let before = self.shown.insert(node, port);
        if before == Some(port) {
            return;
        }
        let sets = self.sets.remove(&(node, port)).unwrap_or_default();
        let others = netns.nft_exchanged(sets);
        // What was there before the first has no sets that change.
        if let Some(before) = before {
            self.sets.insert((node, before), others);
        }
    }

    /// Notes that a node's table of a service port became another at `live`: sets that are in both
    /// keep what they hold.
    pub(super) fn replaced(
        &mut self,
        (node, port): (NodeId, ServicePortId),
        rules: &Ruleset,
        live: SimTime,
        netns: &mut Netns,
    ) {
        if self.shown.get(&node) == Some(&port) {
            netns.nft_replaced(rules, live);
        } else if let Some(sets) = self.sets.get_mut(&(node, port)) {
            sets.replaced(rules, live);
        }
    }

    /// Forgets what a node's sets hold.
    pub(super) fn forget_clients(&mut self, node: NodeId, netns: &mut Netns) {
        netns.nft_exchanged(nft::State::default());
        self.shown.remove(&node);
        self.sets.retain(|(of, _), _| *of != node);
    }

    pub(super) fn without_services(&self) -> &Ruleset {
        &self.without_services
    }

    /// Returns the table of a proxy that knows one service port, and how many rules that is more
    /// than without.
    pub(super) fn make(&self, state: &State) -> Result<(Ruleset, RuleCounts), Problem> {
        let table = nftables::Nftables::of(state);
        let rules = (table.counts().rules as u64).saturating_sub(self.fixed);
        Ok((table.into_ruleset()?, RuleCounts { filter: 0, nat: rules }))
    }
}

/// What one node holds at one time for one packet.
#[derive(Clone, Copy, Debug)]
pub struct NodeRules<'a> {
    pub(super) plain: plain::NodeRules<'a>,
    pub(super) rules: &'a Ruleset,
}

impl Rules for NodeRules<'_> {
    #[inline]
    fn base(&self, table: Table, hook: Hook) -> Option<&Chain> {
        self.plain.base(table, hook)
    }

    #[inline]
    fn chain(&self, table: Table, id: ChainId) -> &Chain {
        self.plain.chain(table, id)
    }

    #[inline]
    fn slot(&self, table: Table, slot: SlotId, packet: &Packet, from: u32) -> SlotHit<'_> {
        self.plain.slot(table, slot, packet, from)
    }

    #[inline]
    fn tracks(&self) -> bool {
        true
    }

    #[inline]
    fn nft(&self) -> Option<&Ruleset> {
        Some(self.rules)
    }
}
