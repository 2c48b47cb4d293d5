//! Services, as far as the simulator runs them.

use std::net::IpAddr;

use k8s_openapi::api::core::v1 as core;
use netfilter_model::tuple::Protocol;

use super::{Findings, Object, Path, object};
use crate::config::{ServicePortSpec, ServiceSpec};
use crate::kube::object::{Service, ServiceType, TrafficDistribution, TrafficPolicy};

pub(super) fn read_service(service: core::Service, findings: &mut Findings) -> Option<Object> {
    let service = object::service::read(service, findings)?;
    let at = Path::of("spec");
    let ignored = Object::Ignored { kind: "Service".to_owned(), name: service.name.clone() };
    match service.kind {
        ServiceType::ClusterIp => {}
        ServiceType::NodePort => findings.not_modelled(
            at.key("type"),
            "NodePort traffic is not modelled yet",
            "the Service's ClusterIP is; clients reach it there",
        ),
        ServiceType::LoadBalancer => findings.not_modelled(
            at.key("type"),
            "load balancers and NodePort traffic are not modelled yet",
            "the Service's ClusterIP is; clients reach it there",
        ),
        ServiceType::ExternalName => {
            findings.not_modelled(
                at.key("type"),
                format!("ExternalName Service {} is ignored", service.name),
                "it is a DNS alias and has no rules on any node",
            );
            return Some(ignored);
        }
    }
    if service.headless {
        findings.not_modelled(
            at.key("clusterIP"),
            format!("headless Service {} is ignored", service.name),
            "it has no ClusterIP and no rules on any node; its clients resolve Pods by DNS, which \
             is not modelled yet",
        );
        return Some(ignored);
    }
    let ipv4 = service.cluster_ips.iter().find_map(|address| match address {
        IpAddr::V4(address) => Some(*address),
        IpAddr::V6(_) => None,
    });
    if ipv4.is_none() && !service.cluster_ips.is_empty() {
        findings.error(
            at.key("clusterIP"),
            format!("{:?} is not an IPv4 address", service.cluster_ips[0].to_string()),
            "leave it out to have one allocated, or give one of the Service range",
        );
    }
    warn_unmodelled(&service, &at, findings);
    let ports = ports(&service, &at.key("ports"), findings);
    if ports.is_empty() && findings.errors.is_empty() {
        return Some(ignored); // only UDP or SCTP; said above
    }
    let Service { name, selector, affinity, .. } = service;
    Some(Object::Service(ServiceSpec { name, cluster_ip: ipv4, selector, ports, affinity }))
}

/// Warns of fields that change where packets go and that the simulator does not follow.
fn warn_unmodelled(service: &Service, at: &Path, findings: &mut Findings) {
    if service.internal_traffic_policy == TrafficPolicy::Local {
        findings.not_modelled(
            at.key("internalTrafficPolicy"),
            "internalTrafficPolicy Local is not modelled yet",
            "traffic is spread over all endpoints here, as under Cluster",
        );
    }
    if service.publish_not_ready_addresses {
        findings.not_modelled(
            at.key("publishNotReadyAddresses"),
            "publishNotReadyAddresses is not modelled yet",
            "only ready endpoints are used here",
        );
    }
    if let Some(preference) = service.traffic_distribution {
        let preference = match preference {
            TrafficDistribution::PreferSameZone => "PreferSameZone",
            TrafficDistribution::PreferSameNode => "PreferSameNode",
        };
        findings.not_modelled(
            at.key("trafficDistribution"),
            format!("trafficDistribution {preference} is not modelled yet"),
            "traffic is spread over all endpoints here",
        );
    }
    if !service.external_ips.is_empty() {
        findings.not_modelled(
            at.key("externalIPs"),
            "externalIPs are not modelled yet",
            "the Service's ClusterIP is; clients reach it there",
        );
    }
}

fn ports(service: &Service, at: &Path, findings: &mut Findings) -> Vec<ServicePortSpec> {
    let mut specs = Vec::new();
    for (index, port) in service.ports.iter().enumerate() {
        if port.protocol == Protocol::TCP {
            specs.push(ServicePortSpec {
                name: port.name.clone(),
                port: port.port,
                target: port.target.clone(),
            });
        } else {
            let protocol = port.protocol.to_string().to_uppercase();
            findings.not_modelled(
                at.index(index),
                format!("port {}/{protocol} is ignored", port.port),
                "only TCP is modelled so far",
            );
        }
    }
    specs
}
