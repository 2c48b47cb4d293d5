//! kube-proxy's nftables mode: one table of a family, complete.
//!
//! ```text
//!  nat-prerouting ─▶ services ─@service-ips, @service-nodeports─┬─▶ service-… ─┬─▶ endpoint-…
//!  nat-output     ─┘                                            ├─▶ local-…   ─┘   (DNAT)
//!                                                               └─▶ external-… ─▶ either
//! ```
//!
//! [`Nftables::of`] makes it from what the proxy is told. The value is what packets run through,
//! what prints as `nft list ruleset` does, and what is counted; [`Nftables::restore`] prints it as
//! kube-proxy hands it to `nft -f`.
//!
//! Kubernetes: pkg/proxy/nftables/proxier.go, setupNFTables and syncProxyRules. From 1.36 on,
//! chains that choose endpoints rewrite at once, what loops back to a Pod is known from a set, and
//! the filter chains stand elsewhere ([`Profile::squashes_nftables`]).
//!
//! [`Profile::squashes_nftables`]: super::profile::Profile::squashes_nftables

mod fixed;
mod names;
mod part;
mod plan;
mod restore;
mod write;

use std::collections::BTreeMap;
use std::net::IpAddr;

use netfilter_model::nft::{Problem, Ruleset, SetData, Table};

use super::state::State;
use crate::kube::object::NodePortAddresses;
use netfilter_model::tuple::Family;

/// What a proxy of one family keeps in nftables.
#[derive(Clone, Debug, PartialEq)]
pub struct Nftables {
    table: Table,
    /// Rules whose value does not tell how they were spelled, by chain and place: nft joins
    /// ranges that touch.
    spelled: BTreeMap<(u32, u32), String>,
}

/// How much a table holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Chains, base chains included.
    pub chains: usize,
    /// Rules.
    pub rules: usize,
    /// Named sets.
    pub sets: usize,
    /// Named maps.
    pub maps: usize,
    /// Elements of named sets and maps.
    pub elements: usize,
}

impl Nftables {
    /// Returns what a proxy keeps in nftables after a full sync.
    pub fn of(state: &State) -> Nftables {
        write::write(state, &plan::Plan::of(state))
    }

    /// Returns the table.
    pub fn table(&self) -> &Table {
        &self.table
    }

    /// Returns the table as a ruleset that packets can be run through.
    ///
    /// # Errors
    ///
    /// If the kernel would refuse it.
    pub fn ruleset(&self) -> Result<Ruleset, Problem> {
        Ruleset::try_new(vec![self.table.clone()])
    }

    /// Returns the same without keeping the value that prints as input.
    ///
    /// # Errors
    ///
    /// As [`Nftables::ruleset`].
    pub fn into_ruleset(self) -> Result<Ruleset, Problem> {
        Ruleset::try_new(vec![self.table])
    }

    /// Returns how much there is of everything.
    pub fn counts(&self) -> Counts {
        let Table { sets, chains, .. } = &self.table;
        let plain = sets.iter().filter(|set| set.data == SetData::None).count();
        Counts {
            chains: chains.len(),
            rules: chains.iter().map(|chain| chain.rules.len()).sum(),
            sets: plain,
            maps: sets.len() - plain,
            elements: sets.iter().map(|set| set.elements().len()).sum(),
        }
    }
}

/// Returns the node's addresses that accept NodePort traffic, or `None` if all its addresses do
/// but loopback ones.
///
/// Kubernetes: pkg/proxy/util/nodeport_addresses.go, NewNodePortAddresses, GetNodeIPs.
pub(super) fn node_port_ips(state: &State) -> Option<Vec<IpAddr>> {
    let NodePortAddresses::Ranges(ranges) = &state.config.node_port_addresses else {
        return Some(vec![state.node.host_ip]);
    };
    let ranges = ranges.iter().filter(|range| Family::of(range.address()) == state.family);
    let ranges: Vec<_> = ranges.collect();
    if ranges.is_empty() || ranges.iter().any(|range| range.is_empty()) {
        return None;
    }
    let accepted = |address: &&IpAddr| {
        !address.is_loopback() && ranges.iter().any(|range| range.contains(**address))
    };
    Some(state.node.addresses.iter().filter(accepted).copied().collect())
}

#[cfg(test)]
mod tests;
