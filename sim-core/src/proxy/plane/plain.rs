//! A node that holds no rules for Services: flannel's alone.

use netfilter_model::Prefix;
use netfilter_model::hook::{Hook, Table};
use netfilter_model::packet::Packet;
use netfilter_model::rule::{
    Base, Chain, ChainId, Rules, RulesetBuilder, SlotHit, SlotId, ValidationError,
};

use super::{DataPlane, flannel};
use crate::ids::NodeId;

/// flannel's rules.
#[derive(Debug)]
pub(super) struct Plain {
    pub(super) base: Base,
    /// Where those about a node's own Pods go.
    pub(super) local: SlotId,
}

impl Plain {
    /// `mark` is the bit by which proxies ask for masquerading: flannel leaves such packets alone.
    pub(super) fn new(pods: &Prefix, mark: u32) -> Result<Plain, ValidationError> {
        let mut builder = RulesetBuilder::new();
        let local = flannel::common(&mut builder, pods, mark);
        Ok(Plain { base: builder.build_base()?, local })
    }
}

/// The rules of one node.
#[derive(Clone, Copy, Debug)]
pub struct NodeRules<'a> {
    pub(super) plane: &'a DataPlane,
    pub(super) plain: &'a Plain,
    pub(super) node: NodeId,
}

impl Rules for NodeRules<'_> {
    #[inline]
    fn base(&self, table: Table, hook: Hook) -> Option<&Chain> {
        self.plain.base.builtin(table, hook)
    }

    #[inline]
    fn chain(&self, table: Table, id: ChainId) -> &Chain {
        self.plain.base.chain(table, id)
    }

    fn slot(&self, _: Table, slot: SlotId, _: &Packet, from: u32) -> SlotHit<'_> {
        if slot == self.plain.local {
            return self.plane.flannel(self.node, from);
        }
        SlotHit { rules: &[], before: 0, total: 0 }
    }

    #[inline]
    fn tracks(&self) -> bool {
        true
    }
}
