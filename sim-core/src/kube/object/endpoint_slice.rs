//! EndpointSlices.

use std::net::IpAddr;
use std::sync::Arc;

use netfilter_model::tuple::{Family, Protocol};

use crate::config::ObjectName;

/// A part of the endpoints of a Service, of one address type.
///
/// Kubernetes: staging/src/k8s.io/api/discovery/v1/types.go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndpointSlice {
    /// Namespace and name.
    pub name: ObjectName,
    /// The Service, by the label `kubernetes.io/service-name`; a slice without it is nobody's.
    pub service: Option<String>,
    /// What the addresses are.
    pub address_type: AddressType,
    /// Ports of every endpoint.
    pub ports: Vec<EndpointPort>,
    /// The endpoints.
    pub endpoints: Vec<Endpoint>,
}

/// What the addresses of a slice are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AddressType {
    /// Addresses of a family.
    Ip(Family),
    /// Names, which proxies ignore.
    Fqdn,
}

/// A port of a slice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndpointPort {
    /// The name of the Service's port; empty if that has none.
    pub name: String,
    /// TCP, UDP or SCTP.
    pub protocol: Protocol,
    /// The number; without one, the slice stands for all ports, which proxies ignore.
    pub port: Option<u16>,
}

/// One endpoint of a slice, with the conditions' defaults.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// Its address; proxies use the first of several.
    pub address: IpAddr,
    /// The address as it is written: kube-proxy names an IPv6 endpoint by what the slice says, be
    /// it the shortest form or not.
    pub text: Arc<str>,
    /// It takes new connections: ready, unless it says no.
    pub ready: bool,
    /// It answers, terminating or not: serving, unless it says no.
    pub serving: bool,
    /// Its Pod is being deleted.
    pub terminating: bool,
    /// The node.
    pub node: Option<Arc<str>>,
    /// The node's zone.
    pub zone: Option<Arc<str>>,
    /// Zones that should use it (`hints.forZones`).
    pub zone_hints: Arc<[Arc<str>]>,
    /// Nodes that should use it (`hints.forNodes`).
    pub node_hints: Arc<[Arc<str>]>,
    /// The name of its Pod.
    pub pod: Option<Arc<str>>,
}
