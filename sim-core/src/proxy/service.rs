//! Service ports as a proxy of one family is told of them.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use netfilter_model::Prefix;
use netfilter_model::tuple::{Family, Protocol};

use crate::config::ObjectName;
use crate::kube::object::{Service, ServiceType, TrafficPolicy, of_family};

/// What identifies a service port.
///
/// The order is that of the text `namespace/name:port`, then of the protocol's name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServicePortName {
    /// The Service.
    pub service: ObjectName,
    /// The port's name; empty if it has none.
    pub port: String,
    /// The protocol.
    pub protocol: Protocol,
    /// `namespace/name:port`, without the colon if the port has no name.
    pub text: Arc<str>,
}

/// One port of a Service, with what is of the proxy's family.
///
/// Kubernetes: pkg/proxy/serviceport.go, BaseServicePortInfo.
#[derive(Clone, Debug, PartialEq)]
pub struct ServicePort {
    /// What identifies it.
    pub name: ServicePortName,
    /// The Service's virtual address.
    pub cluster_ip: IpAddr,
    /// The port at that address.
    pub port: u16,
    /// The port at the nodes.
    pub node_port: Option<u16>,
    /// `externalIPs`.
    pub external_ips: Vec<IpAddr>,
    /// The load balancer's addresses that nodes catch.
    pub load_balancer_vips: Vec<IpAddr>,
    /// Sources that those addresses accept; empty accepts all.
    pub load_balancer_source_ranges: Vec<Prefix>,
    /// Seconds for which a client stays with its endpoint.
    pub affinity: Option<u32>,
    /// The port at which the node tells load balancers whether it has endpoints.
    pub health_check_node_port: Option<u16>,
    /// Traffic to the ClusterIP stays on its node.
    pub internal_local: bool,
    /// Traffic from outside stays on the node that it comes to.
    pub external_local: bool,
    /// The Service asks for topology hints by annotation.
    pub hints_annotated: bool,
}

impl ServicePortName {
    /// Returns the identity of a service port.
    pub fn new(service: &ObjectName, port: Option<&str>, protocol: Protocol) -> ServicePortName {
        let text = super::names::service_port(service, port.filter(|port| !port.is_empty()));
        ServicePortName {
            service: service.clone(),
            port: port.unwrap_or_default().to_owned(),
            protocol,
            text: text.into(),
        }
    }

    fn key(&self) -> (&str, &str) {
        (&self.text, self.protocol.name().unwrap_or_default())
    }
}

impl PartialOrd for ServicePortName {
    fn partial_cmp(&self, other: &ServicePortName) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for ServicePortName {
    fn cmp(&self, other: &ServicePortName) -> std::cmp::Ordering {
        self.key().cmp(&other.key())
    }
}

impl fmt::Display for ServicePortName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl ServicePort {
    /// Returns the ports of `service` that a proxy of `family` serves, in the Service's order.
    /// A headless Service, an ExternalName and one without an address of the family have none.
    ///
    /// Kubernetes: pkg/proxy/servicechangetracker.go, serviceToServiceMap; serviceport.go,
    /// newBaseServiceInfo; util/utils.go, ShouldSkipService.
    pub fn of(service: &Service, family: Family) -> Vec<ServicePort> {
        if service.kind == ServiceType::ExternalName || service.headless {
            return Vec::new();
        }
        let Some(cluster_ip) = service.cluster_ip(family) else {
            return Vec::new();
        };
        let external_local = service.external_traffic_policy == TrafficPolicy::Local
            && service.is_externally_accessible();
        let health_checked = service.kind == ServiceType::LoadBalancer && external_local;
        let vips = service.ingress.iter().filter(|ingress| !ingress.proxy);
        let vips = vips.filter_map(|ingress| ingress.ip);
        let vips: Vec<IpAddr> = vips.filter(|&ip| Family::of(ip) == family).collect();
        let ranges = service.load_balancer_source_ranges.iter();
        let ranges: Vec<Prefix> =
            ranges.filter(|range| Family::of(range.address()) == family).cloned().collect();
        let port = |port: &crate::kube::object::ServicePort| ServicePort {
            name: ServicePortName::new(&service.name, port.name.as_deref(), port.protocol),
            cluster_ip,
            port: port.port,
            node_port: port.node_port,
            external_ips: of_family(&service.external_ips, family).collect(),
            load_balancer_vips: vips.clone(),
            load_balancer_source_ranges: ranges.clone(),
            affinity: service.affinity.map(|timeout| timeout.as_secs() as u32),
            health_check_node_port: service.health_check_node_port.filter(|_| health_checked),
            internal_local: service.internal_traffic_policy == TrafficPolicy::Local,
            external_local,
            hints_annotated: asks_for_hints(service),
        };
        service.ports.iter().map(port).collect()
    }

    /// Returns a port of a Service that has a ClusterIP and nothing else.
    pub fn cluster_ip_only(name: ServicePortName, cluster_ip: IpAddr, port: u16) -> ServicePort {
        ServicePort {
            name,
            cluster_ip,
            port,
            node_port: None,
            external_ips: Vec::new(),
            load_balancer_vips: Vec::new(),
            load_balancer_source_ranges: Vec::new(),
            affinity: None,
            health_check_node_port: None,
            internal_local: false,
            external_local: false,
            hints_annotated: false,
        }
    }

    /// Returns whether packets from outside the cluster can be meant for it.
    pub fn is_externally_accessible(&self) -> bool {
        self.node_port.is_some()
            || !self.load_balancer_vips.is_empty()
            || !self.external_ips.is_empty()
    }

    /// Returns whether some packets for it may go to endpoints of other nodes. Under an external
    /// policy `Local`, those of the cluster's own Pods do.
    pub fn uses_cluster_endpoints(&self) -> bool {
        !self.internal_local || self.is_externally_accessible()
    }

    /// Returns whether some packets for it may go to endpoints of the node only.
    pub fn uses_local_endpoints(&self) -> bool {
        self.internal_local || (self.external_local && self.is_externally_accessible())
    }
}

/// Returns whether an annotation lets hints count.
///
/// Kubernetes: pkg/proxy/topology.go, canUseTopology: any value but none and `disabled`.
fn asks_for_hints(service: &Service) -> bool {
    let older = service.annotations.get("service.kubernetes.io/topology-aware-hints");
    let newer = service.annotations.get("service.kubernetes.io/topology-mode");
    let value = older.or(newer).map_or("", String::as_str);
    !matches!(value, "" | "disabled" | "Disabled")
}
