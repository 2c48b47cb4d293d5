//! Nodes.

use std::collections::BTreeMap;
use std::net::IpAddr;

use netfilter_model::Prefix;
use netfilter_model::tuple::Family;

/// A node.
#[derive(Clone, Debug, PartialEq)]
pub struct Node {
    /// Its name.
    pub name: String,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
    /// Its addresses, as in the status.
    pub addresses: Vec<(NodeAddress, IpAddr)>,
    /// The ranges of its Pods, at most one of each family.
    pub pod_cidrs: Vec<Prefix>,
}

/// What kind an address of a node is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeAddress {
    /// Inside the cluster.
    InternalIp,
    /// From outside.
    ExternalIp,
}

impl Node {
    /// Returns the zone, `topology.kubernetes.io/zone`.
    pub fn zone(&self) -> Option<&str> {
        self.labels.get("topology.kubernetes.io/zone").map(String::as_str)
    }

    /// Returns the address that a proxy takes for the node's own: an internal one before an
    /// external one.
    ///
    /// Kubernetes: pkg/util/node/node.go, GetNodeHostIPs.
    pub fn host_ip(&self, family: Family) -> Option<IpAddr> {
        let of_kind = |kind| {
            let mut all = self.addresses.iter();
            all.find(|(is, address)| *is == kind && Family::of(*address) == family)
        };
        let found = of_kind(NodeAddress::InternalIp).or_else(|| of_kind(NodeAddress::ExternalIp));
        found.map(|(_, address)| *address)
    }

    /// Returns the range of its Pods.
    pub fn pod_cidr(&self, family: Family) -> Option<&Prefix> {
        self.pod_cidrs.iter().find(|range| Family::of(range.address()) == family)
    }
}
