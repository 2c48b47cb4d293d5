//! Services.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use netfilter_model::Prefix;
use netfilter_model::tuple::{Family, Protocol};

use super::of_family;
use crate::config::ObjectName;
pub use crate::config::TargetPort;

/// A Service.
///
/// Kubernetes: staging/src/k8s.io/api/core/v1/types.go, ServiceSpec.
#[derive(Clone, Debug, PartialEq)]
pub struct Service {
    /// Namespace and name.
    pub name: ObjectName,
    /// Labels of the Service itself.
    pub labels: BTreeMap<String, String>,
    /// Annotations.
    pub annotations: BTreeMap<String, String>,
    /// How far it is exposed.
    pub kind: ServiceType,
    /// Labels that its Pods must have; empty for a Service without selector.
    pub selector: BTreeMap<String, String>,
    /// Its virtual addresses, at most one of each family; none if it is headless, an ExternalName,
    /// or not allocated yet.
    pub cluster_ips: Vec<IpAddr>,
    /// `clusterIP: None`.
    pub headless: bool,
    /// Its ports.
    pub ports: Vec<ServicePort>,
    /// `externalIPs`.
    pub external_ips: Vec<IpAddr>,
    /// Where traffic to the ClusterIP goes.
    pub internal_traffic_policy: TrafficPolicy,
    /// Where traffic from outside goes; `Cluster` for a Service that has none.
    pub external_traffic_policy: TrafficPolicy,
    /// How long a client stays with its endpoint, under `sessionAffinity: ClientIP`.
    pub affinity: Option<Duration>,
    /// Sources that the load balancer's addresses accept; empty accepts all.
    pub load_balancer_source_ranges: Vec<Prefix>,
    /// `allocateLoadBalancerNodePorts`.
    pub allocate_load_balancer_node_ports: bool,
    /// The port at which a node tells a load balancer whether it has endpoints.
    pub health_check_node_port: Option<u16>,
    /// Addresses of the load balancer, from the status.
    pub ingress: Vec<Ingress>,
    /// Which endpoints the slice controller is asked to prefer. Proxies see its hints only.
    pub traffic_distribution: Option<TrafficDistribution>,
    /// Endpoints are ready whatever their Pods are.
    pub publish_not_ready_addresses: bool,
    /// The name that an ExternalName stands for.
    pub external_name: Option<String>,
}

/// `spec.type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServiceType {
    /// Inside the cluster only.
    ClusterIp,
    /// And at a port of each node.
    NodePort,
    /// And at the addresses of a load balancer.
    LoadBalancer,
    /// A DNS alias.
    ExternalName,
}

/// One port of a Service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServicePort {
    /// Its name; the only port may have none.
    pub name: Option<String>,
    /// TCP, UDP or SCTP.
    pub protocol: Protocol,
    /// The port at the Service's addresses.
    pub port: u16,
    /// The port of the Pods. Proxies do not read it: slices hold the number.
    pub target: TargetPort,
    /// The port at the nodes.
    pub node_port: Option<u16>,
}

/// `internalTrafficPolicy` and `externalTrafficPolicy`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TrafficPolicy {
    /// To all endpoints.
    #[default]
    Cluster,
    /// To endpoints of the same node only.
    Local,
}

/// An address of a load balancer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ingress {
    /// The address; a load balancer known by name alone has none.
    pub ip: Option<IpAddr>,
    /// Its name.
    pub hostname: Option<String>,
    /// `ipMode: Proxy`: packets arrive at a node's own address, so nodes do not catch this one.
    pub proxy: bool,
}

/// `trafficDistribution` (KEP-4444, KEP-3015).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TrafficDistribution {
    /// `PreferSameZone`, formerly `PreferClose`.
    PreferSameZone,
    /// `PreferSameNode`.
    PreferSameNode,
}

impl Service {
    /// Returns the virtual address of a family.
    pub fn cluster_ip(&self, family: Family) -> Option<IpAddr> {
        of_family(&self.cluster_ips, family).next()
    }

    /// Returns whether traffic from outside the cluster can be meant for it.
    ///
    /// Kubernetes: pkg/api/v1/service/util.go, ExternallyAccessible.
    pub fn is_externally_accessible(&self) -> bool {
        match self.kind {
            ServiceType::LoadBalancer | ServiceType::NodePort => true,
            ServiceType::ClusterIp => !self.external_ips.is_empty(),
            ServiceType::ExternalName => false,
        }
    }
}
