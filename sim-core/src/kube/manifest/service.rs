//! Services.

use std::collections::BTreeSet;
use std::net::Ipv4Addr;

use k8s_openapi::api::core::v1 as core;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use super::name::{
    DNS_1035_LABEL, DNS_LABEL, PORT_NAME, check_labels, is_dns_1035_label, is_dns_label,
    is_port_name, port_number, read_name,
};
use super::{Findings, Object, Path};
use crate::config::{ServicePortSpec, ServiceSpec, TargetPort};

pub(super) fn read_service(service: core::Service, findings: &mut Findings) -> Option<Object> {
    let name = read_name(&service.metadata, is_dns_1035_label, DNS_1035_LABEL, findings);
    let Some(spec) = service.spec else {
        findings.missing(Path::default(), "spec");
        return None;
    };
    let at = Path::of("spec");
    let ignored = Object::Ignored { kind: "Service".to_owned(), name: name.clone() };
    let kind = spec.type_.as_deref().unwrap_or("ClusterIP");
    match kind {
        "ClusterIP" => {}
        "NodePort" => findings.not_modelled(
            at.key("type"),
            "NodePort traffic is not modelled yet",
            "the Service's ClusterIP is; clients reach it there",
        ),
        "LoadBalancer" => findings.not_modelled(
            at.key("type"),
            "load balancers and NodePort traffic are not modelled yet",
            "the Service's ClusterIP is; clients reach it there",
        ),
        "ExternalName" => {
            findings.not_modelled(
                at.key("type"),
                format!("ExternalName Service {} is ignored", name.name),
                "it is a DNS alias and has no rules on any node",
            );
            return Some(ignored);
        }
        other => findings.error(
            at.key("type"),
            format!("unknown Service type {other:?}"),
            "known are ClusterIP, NodePort, LoadBalancer and ExternalName",
        ),
    }
    if spec.cluster_ip.as_deref() == Some("None") {
        findings.not_modelled(
            at.key("clusterIP"),
            format!("headless Service {} is ignored", name.name),
            "it has no ClusterIP and no rules on any node; its clients resolve Pods by DNS, which \
             is not modelled yet",
        );
        return Some(ignored);
    }
    let cluster_ip = match spec.cluster_ip.as_deref() {
        None | Some("") => None,
        Some(text) => match text.parse::<Ipv4Addr>() {
            Ok(address) => Some(address),
            Err(_) => {
                findings.error(
                    at.key("clusterIP"),
                    format!("{text:?} is not an IPv4 address"),
                    "leave it out to have one allocated, or give one of the Service range",
                );
                None
            }
        },
    };
    warn_unmodelled_service(&spec, &at, findings);
    check_labels(spec.selector.as_ref(), &at.key("selector"), findings);
    let ports = read_service_ports(spec.ports.as_deref().unwrap_or_default(), &at, findings);
    if ports.is_empty() && findings.errors.is_empty() {
        return Some(ignored); // only UDP or SCTP; said above
    }
    Some(Object::Service(ServiceSpec {
        name,
        cluster_ip,
        selector: spec.selector.unwrap_or_default(),
        ports,
    }))
}

/// Warns of fields that change where packets go and that the model does not follow.
fn warn_unmodelled_service(spec: &core::ServiceSpec, at: &Path, findings: &mut Findings) {
    if spec.session_affinity.as_deref() == Some("ClientIP") {
        findings.not_modelled(
            at.key("sessionAffinity"),
            "session affinity is not modelled yet",
            "every connection chooses its endpoint anew here; with affinity, a client that \
             sticks to a deleted Pod loses more",
        );
    }
    if spec.internal_traffic_policy.as_deref() == Some("Local") {
        findings.not_modelled(
            at.key("internalTrafficPolicy"),
            "internalTrafficPolicy Local is not modelled yet",
            "traffic is spread over all endpoints here, as under Cluster",
        );
    }
    if spec.publish_not_ready_addresses == Some(true) {
        findings.not_modelled(
            at.key("publishNotReadyAddresses"),
            "publishNotReadyAddresses is not modelled yet",
            "only ready endpoints are used here",
        );
    }
    if let Some(preference) = &spec.traffic_distribution {
        findings.not_modelled(
            at.key("trafficDistribution"),
            format!("trafficDistribution {preference} is not modelled yet"),
            "traffic is spread over all endpoints here",
        );
    }
    if spec.external_ips.as_ref().is_some_and(|ips| !ips.is_empty()) {
        findings.not_modelled(
            at.key("externalIPs"),
            "externalIPs are not modelled yet",
            "the Service's ClusterIP is; clients reach it there",
        );
    }
}

fn read_service_ports(
    ports: &[core::ServicePort],
    at: &Path,
    findings: &mut Findings,
) -> Vec<ServicePortSpec> {
    if ports.is_empty() {
        findings.missing(at.clone(), "ports");
    }
    let at = at.key("ports");
    let mut names = BTreeSet::new();
    let mut numbers = BTreeSet::new();
    let mut specs = Vec::new();
    for (index, port) in ports.iter().enumerate() {
        let at = at.index(index);
        let protocol = port.protocol.as_deref().unwrap_or("TCP");
        if !["TCP", "UDP", "SCTP"].contains(&protocol) {
            findings.error(
                at.key("protocol"),
                format!("unknown protocol {protocol:?}"),
                "known are TCP, UDP and SCTP",
            );
        }
        match &port.name {
            None if ports.len() > 1 => findings.coded(
                "missing-field",
                at.clone(),
                "a port without a name",
                "a Service with more than one port names each of them",
            ),
            None => {}
            Some(name) if !is_dns_label(name) => findings.error(
                at.key("name"),
                format!("{name:?} is not a valid port name"),
                DNS_LABEL,
            ),
            Some(name) if !names.insert(name.as_str()) => findings.error(
                at.key("name"),
                format!("port name {name:?} is used twice"),
                "port names are unique within a Service",
            ),
            Some(_) => {}
        }
        let Some(number) = port_number(port.port, at.key("port"), findings) else {
            continue;
        };
        if !numbers.insert((protocol, number)) {
            findings.error(
                at.key("port"),
                format!("port {number}/{protocol} is used twice"),
                "protocol and port are unique within a Service",
            );
        }
        let target_at = at.key("targetPort");
        let target = match &port.target_port {
            None => Some(TargetPort::Number(number)),
            Some(IntOrString::Int(0)) => Some(TargetPort::Number(number)),
            Some(IntOrString::Int(target)) => {
                port_number(*target, target_at, findings).map(TargetPort::Number)
            }
            Some(IntOrString::String(name)) => {
                if !is_port_name(name) {
                    let message = format!("{name:?} is not a valid port name");
                    findings.error(target_at, message, PORT_NAME);
                }
                Some(TargetPort::Name(name.clone()))
            }
        };
        if protocol != "TCP" {
            findings.not_modelled(
                at,
                format!("port {number}/{protocol} is ignored"),
                "only TCP is modelled so far",
            );
            continue;
        }
        specs.extend(target.map(|target| ServicePortSpec {
            name: port.name.clone(),
            port: number,
            target,
        }));
    }
    specs
}
