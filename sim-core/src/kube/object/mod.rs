//! Objects as the API server holds them, with its defaults filled in: what service proxies are
//! told. `kube::manifest` reads them.

mod endpoint_slice;
mod kube_proxy;
mod node;
mod service;

pub use endpoint_slice::{AddressType, Endpoint, EndpointPort, EndpointSlice};
pub use kube_proxy::{
    ConntrackSettings, DetectLocal, IpvsSettings, KubeProxyConfiguration, NodePortAddresses,
    ProxyMode, SyncSettings,
};
pub use node::{Node, NodeAddress};
pub use service::{
    Ingress, Service, ServicePort, ServiceType, TargetPort, TrafficDistribution, TrafficPolicy,
};

use std::net::IpAddr;

use crate::config::ObjectName;

/// The address families of the network.
pub use netfilter_model::tuple::Family;

/// An object of a kind that service proxies know.
#[derive(Clone, Debug, PartialEq)]
pub enum Object {
    /// A Service.
    Service(Box<Service>),
    /// A part of a Service's endpoints.
    EndpointSlice(Box<EndpointSlice>),
    /// A node.
    Node(Box<Node>),
    /// kube-proxy's configuration.
    KubeProxyConfiguration(Box<KubeProxyConfiguration>),
    /// An object of another kind.
    Other {
        /// The kind.
        kind: String,
        /// Namespace and name.
        name: ObjectName,
    },
}

/// Returns the addresses of one family, in order.
pub fn of_family(addresses: &[IpAddr], family: Family) -> impl Iterator<Item = IpAddr> {
    addresses.iter().copied().filter(move |&address| Family::of(address) == family)
}
