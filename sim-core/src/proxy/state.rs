//! What the proxies are told: the cluster's objects, and a node's part of them.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use netfilter_model::Prefix;
use netfilter_model::tuple::Family;

use super::endpoint::{Categorized, Endpoint, Locality, categorize};
use super::profile::Profile;
use super::service::ServicePort;
use crate::config::ObjectName;
use crate::kube::object::{
    DetectLocal, EndpointSlice, KubeProxyConfiguration, Node, Object, Service, of_family,
};

/// The objects of a cluster that proxies watch.
#[derive(Clone, Debug, Default)]
pub struct Objects {
    /// Services by name.
    pub services: BTreeMap<ObjectName, Service>,
    /// EndpointSlices by their Service's name, then by their own.
    pub slices: BTreeMap<ObjectName, BTreeMap<String, EndpointSlice>>,
    /// Nodes by name.
    pub nodes: BTreeMap<String, Node>,
    /// kube-proxy's configuration.
    pub config: Option<KubeProxyConfiguration>,
}

/// What a proxy of one family on one node works from.
#[derive(Clone, Debug)]
pub struct State {
    /// The family.
    pub family: Family,
    /// The node.
    pub node: NodeInfo,
    /// The configuration.
    pub config: KubeProxyConfiguration,
    /// Which version's rules hold.
    pub profile: Profile,
    /// Service ports with all their endpoints, in order of name and protocol.
    pub ports: Vec<(ServicePort, Vec<Endpoint>)>,
}

/// A node as its proxy sees it.
#[derive(Clone, Debug, PartialEq)]
pub struct NodeInfo {
    /// Its name.
    pub name: String,
    /// Its zone.
    pub zone: Option<String>,
    /// The address that the proxy takes for the node's own.
    pub host_ip: IpAddr,
    /// All its addresses of the proxy's family, that of the loopback device included.
    pub addresses: Vec<IpAddr>,
    /// The range of its Pods.
    pub pod_cidr: Option<Prefix>,
}

/// How a proxy tells that a packet comes from a Pod of the cluster or of the node.
///
/// Kubernetes: pkg/proxy/util/localdetector.go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LocalDetector {
    /// By its source.
    Source(Prefix),
    /// By its device, with a final `+` for all whose names begin so.
    Device(String),
}

impl Objects {
    /// Adds an object, in place of one of its kind and name.
    pub fn add(&mut self, object: Object) {
        match object {
            Object::Service(service) => {
                self.services.insert(service.name.clone(), *service);
            }
            Object::EndpointSlice(slice) => {
                if let Some(service) = &slice.service {
                    let namespace = slice.name.namespace.clone();
                    let service = ObjectName { namespace, name: service.clone() };
                    let of_service = self.slices.entry(service).or_default();
                    of_service.insert(slice.name.name.clone(), *slice);
                }
            }
            Object::Node(node) => {
                self.nodes.insert(node.name.clone(), *node);
            }
            Object::KubeProxyConfiguration(config) => self.config = Some(*config),
            Object::Other { .. } => {}
        }
    }

    /// Returns the slices of a Service, in order of their names.
    pub fn slices_of(&self, service: &ObjectName) -> impl Iterator<Item = &EndpointSlice> + Clone {
        self.slices.get(service).into_iter().flat_map(BTreeMap::values)
    }

    /// Returns what a proxy works from on a node. An unknown node has no addresses and no zone:
    /// its proxy takes the loopback address for its own, as kube-proxy does.
    pub fn state(&self, node: &str, family: Family, profile: Profile) -> State {
        let config = self.config.clone().unwrap_or_default();
        let node = NodeInfo::of(node, self.nodes.get(node), &config, family);
        let mut state = State { family, node, config, profile, ports: Vec::new() };
        for service in self.services.values() {
            state.ports.extend(state.ports_of(service, self.slices_of(&service.name)));
        }
        state.ports.sort_by(|(a, _), (b, _)| a.name.cmp(&b.name));
        state
    }
}

impl State {
    /// Returns the ports of a Service with their endpoints, as this proxy sees them.
    pub fn ports_of<'s>(
        &self,
        service: &Service,
        slices: impl Iterator<Item = &'s EndpointSlice> + Clone,
    ) -> Vec<(ServicePort, Vec<Endpoint>)> {
        let with_endpoints = |port: ServicePort| {
            let slices = slices.clone();
            let endpoints = Endpoint::of(slices, &port.name, self.family, self.locality());
            (port, endpoints)
        };
        ServicePort::of(service, self.family).into_iter().map(with_endpoints).collect()
    }

    /// Returns where the proxy runs.
    pub fn locality(&self) -> Locality<'_> {
        Locality { node: &self.node.name, zone: self.node.zone.as_deref(), profile: self.profile }
    }

    /// Returns which endpoints the packets for a service port go to.
    pub fn categorize<'a>(&self, port: &ServicePort, endpoints: &'a [Endpoint]) -> Categorized<'a> {
        categorize(endpoints, port, self.locality())
    }

    /// Returns how many endpoints all service ports have, usable or not.
    pub fn endpoint_count(&self) -> usize {
        self.ports.iter().map(|(_, endpoints)| endpoints.len()).sum()
    }

    /// Returns how the proxy tells its own Pods' traffic, if it does.
    ///
    /// Kubernetes: cmd/kube-proxy/app/server_linux.go, getLocalDetector: without a range of the
    /// family there is no detector.
    pub fn local_detector(&self) -> Option<LocalDetector> {
        match &self.config.detect_local {
            DetectLocal::ClusterCidr => {
                self.config.cluster_cidr(self.family).cloned().map(LocalDetector::Source)
            }
            DetectLocal::NodeCidr => self.node.pod_cidr.clone().map(LocalDetector::Source),
            DetectLocal::BridgeInterface(name) => Some(LocalDetector::Device(name.clone())),
            DetectLocal::InterfaceNamePrefix(prefix) => {
                Some(LocalDetector::Device(format!("{prefix}+")))
            }
        }
    }
}

impl NodeInfo {
    fn of(
        name: &str,
        node: Option<&Node>,
        config: &KubeProxyConfiguration,
        family: Family,
    ) -> NodeInfo {
        let loopback = match family {
            Family::V4 => IpAddr::V4(Ipv4Addr::LOCALHOST),
            Family::V6 => IpAddr::V6(Ipv6Addr::LOCALHOST),
        };
        let bound = config.bind_address.filter(|&address| Family::of(address) == family);
        let own = || node.and_then(|node| node.host_ip(family));
        let all = node.map(|node| node.addresses.iter().map(|(_, address)| *address).collect());
        let all: Vec<IpAddr> = all.unwrap_or_default();
        let zone = node.and_then(Node::zone).filter(|zone| !zone.is_empty());
        NodeInfo {
            name: config.hostname_override.clone().unwrap_or_else(|| name.to_owned()),
            zone: zone.map(str::to_owned),
            host_ip: bound.or_else(own).unwrap_or(loopback),
            addresses: std::iter::once(loopback).chain(of_family(&all, family)).collect(),
            pod_cidr: node.and_then(|node| node.pod_cidr(family)).cloned(),
        }
    }
}

#[cfg(test)]
mod tests;
