//! Endpoints as a proxy on one node is told of them, and which of them packets may go to.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use netfilter_model::tuple::Family;

use super::profile::Profile;
use super::service::{ServicePort, ServicePortName};
use crate::kube::object::{AddressType, EndpointSlice};

/// One endpoint of a service port, as seen from a node.
///
/// Kubernetes: pkg/proxy/endpoint.go, BaseEndpointInfo.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// Its address.
    pub addr: IpAddr,
    /// Its port.
    pub port: u16,
    /// `address:port`, with brackets around an IPv6 address, as the slice writes it.
    pub text: Arc<str>,
    /// It takes new connections.
    pub ready: bool,
    /// It answers.
    pub serving: bool,
    /// Its Pod is being deleted.
    pub terminating: bool,
    /// It is on the proxy's node.
    pub local: bool,
    /// Zones that should use it.
    pub zone_hints: Arc<[Arc<str>]>,
    /// Nodes that should use it.
    pub node_hints: Arc<[Arc<str>]>,
    /// What rules for it name as their origin's item.
    pub item: u32,
}

/// The node that a proxy runs on, as far as the choice of endpoints depends on it.
#[derive(Clone, Copy, Debug)]
pub struct Locality<'a> {
    /// Its name.
    pub node: &'a str,
    /// Its zone.
    pub zone: Option<&'a str>,
    /// Which version's rules hold.
    pub profile: Profile,
}

/// The endpoints that the packets for a service port go to, each list in order of the text
/// `address:port`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Categorized<'a> {
    /// For traffic under the policy `Cluster`.
    pub cluster: Vec<&'a Endpoint>,
    /// For traffic under the policy `Local`.
    pub local: Vec<&'a Endpoint>,
    /// All of both.
    pub reachable: Vec<&'a Endpoint>,
    /// Whether there is an endpoint on any node that could be used.
    pub any: bool,
}

impl Endpoint {
    /// Returns the address as the slice writes it.
    pub fn addr_text(&self) -> &str {
        let (address, _) = self.text.rsplit_once(':').unwrap_or((&self.text, ""));
        address.trim_start_matches('[').trim_end_matches(']')
    }

    /// Returns whether it can be used where no endpoint is ready (KEP-1669).
    pub fn is_fallback(&self) -> bool {
        self.serving && self.terminating
    }

    /// Returns the endpoints of a service port among the slices of its Service, each address and
    /// port once, in order of the text `address:port`. Their items count them.
    ///
    /// Kubernetes: pkg/proxy/endpointslicecache.go, endpointInfoByServicePort, addEndpoints.
    pub fn of<'s>(
        slices: impl IntoIterator<Item = &'s EndpointSlice>,
        port: &ServicePortName,
        family: Family,
        locality: Locality<'_>,
    ) -> Vec<Endpoint> {
        let mut found: BTreeMap<Arc<str>, Endpoint> = BTreeMap::new();
        for slice in slices {
            if slice.address_type != AddressType::Ip(family) {
                continue;
            }
            let of_port = slice.ports.iter().filter(|slice_port| {
                slice_port.name == port.port && slice_port.protocol == port.protocol
            });
            for number in of_port.filter_map(|port| port.port) {
                for endpoint in &slice.endpoints {
                    let text = match family {
                        Family::V4 => format!("{}:{number}", endpoint.text),
                        Family::V6 => format!("[{}]:{number}", endpoint.text),
                    };
                    let endpoint = Endpoint {
                        addr: endpoint.address,
                        port: number,
                        text: text.into(),
                        ready: endpoint.ready,
                        serving: endpoint.serving,
                        terminating: endpoint.terminating,
                        local: endpoint.node.as_deref() == Some(locality.node),
                        zone_hints: endpoint.zone_hints.clone(),
                        node_hints: endpoint.node_hints.clone(),
                        item: 0,
                    };
                    let wins = if locality.profile.prefers_live_duplicate() {
                        !endpoint.terminating
                    } else {
                        endpoint.local
                    };
                    if wins || !found.contains_key(&endpoint.text) {
                        found.insert(endpoint.text.clone(), endpoint);
                    }
                }
            }
        }
        let numbered = (0..).zip(found.into_values());
        numbered.map(|(item, endpoint)| Endpoint { item, ..endpoint }).collect()
    }
}

/// Returns which of `endpoints`, in order, the packets for `port` go to on a node.
///
/// Kubernetes: pkg/proxy/topology.go, CategorizeEndpoints.
pub fn categorize<'a>(
    endpoints: &'a [Endpoint],
    port: &ServicePort,
    locality: Locality<'_>,
) -> Categorized<'a> {
    let list = |wanted: &dyn Fn(&Endpoint) -> bool| -> Vec<&'a Endpoint> {
        endpoints.iter().filter(|endpoint| wanted(endpoint)).collect()
    };
    let mut chosen = Categorized::default();
    let mut hints = Hints::None;
    if port.uses_cluster_endpoints() {
        hints = Hints::of(endpoints, port, locality);
        chosen.cluster = list(&|endpoint| endpoint.ready && hints.admit(endpoint, locality));
        if chosen.cluster.is_empty() {
            chosen.cluster = list(&Endpoint::is_fallback);
        }
        chosen.any = !chosen.cluster.is_empty();
    }
    if !port.uses_local_endpoints() {
        chosen.reachable = chosen.cluster.clone();
        return chosen;
    }
    chosen.any |= endpoints.iter().any(|endpoint| endpoint.ready || endpoint.is_fallback());
    chosen.local = list(&|endpoint| endpoint.local && endpoint.ready);
    let falls_back = chosen.local.is_empty();
    if falls_back {
        chosen.local = list(&|endpoint| endpoint.local && endpoint.is_fallback());
    }
    chosen.reachable = if !port.uses_cluster_endpoints() {
        chosen.local.clone()
    } else if hints == Hints::None && (!falls_back || chosen.local.is_empty()) {
        // All ready endpoints are in `cluster`, so `local` adds nothing.
        chosen.cluster.clone()
    } else {
        // kube-proxy's order is random here.
        union(endpoints, &chosen.cluster, &chosen.local)
    };
    chosen
}

/// Returns the endpoints that are in either of two lists, both in the order of `endpoints`.
fn union<'a>(
    endpoints: &'a [Endpoint],
    one: &[&'a Endpoint],
    other: &[&'a Endpoint],
) -> Vec<&'a Endpoint> {
    let (mut one, mut other) = (one.iter().peekable(), other.iter().peekable());
    let mut is_in = |endpoint: &&Endpoint| {
        let is_next = |next: &&&Endpoint| std::ptr::eq::<Endpoint>(**next, *endpoint);
        let in_one = one.next_if(is_next).is_some();
        other.next_if(is_next).is_some() || in_one
    };
    endpoints.iter().filter(|endpoint| is_in(endpoint)).collect()
}

/// Which hints of a service port's endpoints count on a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Hints {
    None,
    Zone,
    Node,
}

impl Hints {
    /// Hints count if every ready endpoint has them and one of them is for this node.
    ///
    /// Kubernetes: pkg/proxy/topology.go, topologyModeFromHints; before 1.33, canUseTopology.
    fn of(endpoints: &[Endpoint], port: &ServicePort, locality: Locality<'_>) -> Hints {
        if locality.profile.hints_need_annotation() && !port.hints_annotated {
            return Hints::None;
        }
        let usable = |mode: Hints| {
            let mut any = false;
            endpoints.iter().filter(|endpoint| endpoint.ready).all(|endpoint| {
                any |= mode.admit(endpoint, locality);
                !mode.hints(endpoint).is_empty()
            }) && any
        };
        if locality.profile.has_node_hints() && usable(Hints::Node) {
            Hints::Node
        } else if locality.zone.is_some() && usable(Hints::Zone) {
            Hints::Zone
        } else {
            Hints::None
        }
    }

    fn hints(self, endpoint: &Endpoint) -> &[Arc<str>] {
        match self {
            Hints::None => &[],
            Hints::Zone => &endpoint.zone_hints,
            Hints::Node => &endpoint.node_hints,
        }
    }

    fn admit(self, endpoint: &Endpoint, locality: Locality<'_>) -> bool {
        let wanted = match self {
            Hints::None => return true,
            Hints::Zone => locality.zone.unwrap_or_default(),
            Hints::Node => locality.node,
        };
        self.hints(endpoint).iter().any(|hint| **hint == *wanted)
    }
}

#[cfg(test)]
mod tests;
