//! Services.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::Duration;

use k8s_openapi::api::core::v1 as core;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use netfilter_model::tuple::Family;

use super::super::name::{
    DNS_1035_LABEL, DNS_LABEL, PORT_NAME, check_labels, is_dns_1035_label, is_dns_label,
    is_port_name, port_number, read_name,
};
use super::super::{Findings, Path};
use super::{address, protocol, range};
use crate::kube::object::{
    Ingress, Service, ServicePort, ServiceType, TargetPort, TrafficDistribution, TrafficPolicy,
};

/// The default of `sessionAffinityConfig.clientIP.timeoutSeconds`, and its most.
const AFFINITY_S: (u32, u32) = (10_800, 86_400);

pub(in super::super) fn read(service: core::Service, findings: &mut Findings) -> Option<Service> {
    let name = read_name(&service.metadata, is_dns_1035_label, DNS_1035_LABEL, findings);
    let Some(spec) = service.spec else {
        findings.missing(Path::default(), "spec");
        return None;
    };
    let at = Path::of("spec");
    let kind = match spec.type_.as_deref().unwrap_or("ClusterIP") {
        "ClusterIP" => ServiceType::ClusterIp,
        "NodePort" => ServiceType::NodePort,
        "LoadBalancer" => ServiceType::LoadBalancer,
        "ExternalName" => ServiceType::ExternalName,
        other => {
            findings.error(
                at.key("type"),
                format!("unknown Service type {other:?}"),
                "known are ClusterIP, NodePort, LoadBalancer and ExternalName",
            );
            ServiceType::ClusterIp
        }
    };
    check_labels(spec.selector.as_ref(), &at.key("selector"), findings);
    let headless = spec.cluster_ip.as_deref() == Some("None");
    let cluster_ips = cluster_ips(&spec, &at, findings);
    let ports = ports(kind, spec.ports.as_deref().unwrap_or_default(), &at, findings);
    let external_ips = spec.external_ips.as_deref().unwrap_or_default().iter().enumerate();
    let external_ips = external_ips
        .filter_map(|(index, text)| address(text, at.key("externalIPs").index(index), findings));
    let external_ips = external_ips.collect();
    let ranges = spec.load_balancer_source_ranges.as_deref().unwrap_or_default();
    let ranges = ranges.iter().enumerate().filter_map(|(index, text)| {
        range(text, at.key("loadBalancerSourceRanges").index(index), findings)
    });
    let ranges = ranges.collect();
    let health = spec.health_check_node_port.filter(|&port| port != 0);
    Some(Service {
        name,
        labels: service.metadata.labels.unwrap_or_default(),
        annotations: service.metadata.annotations.unwrap_or_default(),
        kind,
        cluster_ips,
        headless,
        ports,
        external_ips,
        internal_traffic_policy: policy(
            spec.internal_traffic_policy.as_deref(),
            at.key("internalTrafficPolicy"),
            findings,
        ),
        external_traffic_policy: policy(
            spec.external_traffic_policy.as_deref(),
            at.key("externalTrafficPolicy"),
            findings,
        ),
        affinity: affinity(&spec, &at, findings),
        load_balancer_source_ranges: ranges,
        allocate_load_balancer_node_ports: spec.allocate_load_balancer_node_ports != Some(false),
        health_check_node_port: health
            .and_then(|port| port_number(port, at.key("healthCheckNodePort"), findings)),
        ingress: ingress(service.status.as_ref(), findings),
        traffic_distribution: distribution(&spec, &at, findings),
        publish_not_ready_addresses: spec.publish_not_ready_addresses == Some(true),
        external_name: spec.external_name,
        selector: spec.selector.unwrap_or_default(),
    })
}

fn cluster_ips(spec: &core::ServiceSpec, at: &Path, findings: &mut Findings) -> Vec<IpAddr> {
    let single = spec.cluster_ip.as_deref().filter(|text| !text.is_empty());
    let several = spec.cluster_ips.as_deref().unwrap_or_default();
    if let (Some(single), Some(first)) = (single, several.first())
        && single != first
    {
        findings.error(
            at.key("clusterIPs").index(0),
            format!("the first of the clusterIPs is {first}, but the clusterIP is {single}"),
            "they must be the same",
        );
    }
    let texts: Vec<(&str, Path)> = if several.is_empty() {
        single.map(|text| (text, at.key("clusterIP"))).into_iter().collect()
    } else {
        let all = several.iter().enumerate();
        all.map(|(index, text)| (text.as_str(), at.key("clusterIPs").index(index))).collect()
    };
    let mut addresses: Vec<IpAddr> = Vec::new();
    for (text, place) in texts {
        if text == "None" {
            continue;
        }
        let Some(found) = address(text, place.clone(), findings) else {
            continue;
        };
        if addresses.iter().any(|&other| Family::of(other) == Family::of(found)) {
            findings.error(
                place,
                "a second ClusterIP of one family",
                "a dual-stack Service has one IPv4 and one IPv6 address",
            );
        } else {
            addresses.push(found);
        }
    }
    addresses
}

fn policy(text: Option<&str>, at: Path, findings: &mut Findings) -> TrafficPolicy {
    match text {
        None | Some("" | "Cluster") => TrafficPolicy::Cluster,
        Some("Local") => TrafficPolicy::Local,
        Some(other) => {
            let message = format!("unknown traffic policy {other:?}");
            findings.error(at, message, "known are Cluster and Local");
            TrafficPolicy::Cluster
        }
    }
}

fn affinity(spec: &core::ServiceSpec, at: &Path, findings: &mut Findings) -> Option<Duration> {
    match spec.session_affinity.as_deref() {
        None | Some("" | "None") => return None,
        Some("ClientIP") => {}
        Some(other) => {
            let message = format!("unknown session affinity {other:?}");
            findings.error(at.key("sessionAffinity"), message, "known are None and ClientIP");
            return None;
        }
    }
    let config = spec.session_affinity_config.as_ref();
    let given = config.and_then(|config| config.client_ip.as_ref()?.timeout_seconds);
    let (default, most) = AFFINITY_S;
    let seconds = match given {
        None => default,
        Some(given) => match u32::try_from(given) {
            Ok(seconds) if (1..=most).contains(&seconds) => seconds,
            _ => {
                findings.error(
                    at.key("sessionAffinityConfig").key("clientIP").key("timeoutSeconds"),
                    format!("{given} is out of range"),
                    format!("1 to {most} seconds"),
                );
                default
            }
        },
    };
    Some(Duration::from_secs(seconds.into()))
}

fn distribution(
    spec: &core::ServiceSpec,
    at: &Path,
    findings: &mut Findings,
) -> Option<TrafficDistribution> {
    match spec.traffic_distribution.as_deref()? {
        "PreferClose" | "PreferSameZone" => Some(TrafficDistribution::PreferSameZone),
        "PreferSameNode" => Some(TrafficDistribution::PreferSameNode),
        other => {
            findings.error(
                at.key("trafficDistribution"),
                format!("unknown traffic distribution {other:?}"),
                "known are PreferSameZone, PreferSameNode and the old name PreferClose",
            );
            None
        }
    }
}

fn ingress(status: Option<&core::ServiceStatus>, findings: &mut Findings) -> Vec<Ingress> {
    let balancer = status.and_then(|status| status.load_balancer.as_ref());
    let points = balancer.and_then(|balancer| balancer.ingress.as_deref()).unwrap_or_default();
    let at = Path::of("status.loadBalancer.ingress");
    let mut read = |(index, point): (usize, &core::LoadBalancerIngress)| {
        let at = at.index(index);
        let ip = point.ip.as_deref().filter(|text| !text.is_empty());
        let proxy = match point.ip_mode.as_deref() {
            None | Some("VIP") => false,
            Some("Proxy") => true,
            Some(other) => {
                let message = format!("unknown ipMode {other:?}");
                findings.error(at.key("ipMode"), message, "known are VIP and Proxy");
                false
            }
        };
        Ingress {
            ip: ip.and_then(|text| address(text, at.key("ip"), findings)),
            hostname: point.hostname.clone(),
            proxy,
        }
    };
    points.iter().enumerate().map(&mut read).collect()
}

fn ports(
    kind: ServiceType,
    ports: &[core::ServicePort],
    at: &Path,
    findings: &mut Findings,
) -> Vec<ServicePort> {
    if ports.is_empty() && kind != ServiceType::ExternalName {
        findings.missing(at.clone(), "ports");
    }
    let at = at.key("ports");
    let mut names = BTreeSet::new();
    let mut numbers = BTreeSet::new();
    let mut read = Vec::new();
    for (index, port) in ports.iter().enumerate() {
        let at = at.index(index);
        let protocol = protocol(port.protocol.as_deref(), at.key("protocol"), findings);
        match port.name.as_deref().filter(|name| !name.is_empty()) {
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
            Some(name) if !names.insert(name) => findings.error(
                at.key("name"),
                format!("port name {name:?} is used twice"),
                "port names are unique within a Service",
            ),
            Some(_) => {}
        }
        let Some(number) = port_number(port.port, at.key("port"), findings) else {
            continue;
        };
        let Some(protocol) = protocol else {
            continue;
        };
        if !numbers.insert((protocol, number)) {
            let text = protocol.to_string().to_uppercase();
            findings.error(
                at.key("port"),
                format!("port {number}/{text} is used twice"),
                "protocol and port are unique within a Service",
            );
        }
        let target = target(port, number, at.key("targetPort"), findings);
        let node_port = port.node_port.filter(|&port| port != 0);
        if node_port.is_some() && kind == ServiceType::ClusterIp {
            findings.error(
                at.key("nodePort"),
                "a nodePort, but the type is ClusterIP",
                "set `type: NodePort` or `type: LoadBalancer`",
            );
        }
        let node_port = node_port.and_then(|port| port_number(port, at.key("nodePort"), findings));
        read.extend(target.map(|target| ServicePort {
            name: port.name.clone().filter(|name| !name.is_empty()),
            protocol,
            port: number,
            target,
            node_port,
        }));
    }
    read
}

fn target(
    port: &core::ServicePort,
    number: u16,
    at: Path,
    findings: &mut Findings,
) -> Option<TargetPort> {
    match &port.target_port {
        None | Some(IntOrString::Int(0)) => Some(TargetPort::Number(number)),
        Some(IntOrString::Int(target)) => {
            port_number(*target, at, findings).map(TargetPort::Number)
        }
        Some(IntOrString::String(name)) => {
            if !is_port_name(name) {
                let message = format!("{name:?} is not a valid port name");
                findings.error(at, message, PORT_NAME);
            }
            Some(TargetPort::Name(name.clone()))
        }
    }
}
