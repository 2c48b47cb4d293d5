//! EndpointSlices.

use std::net::IpAddr;
use std::sync::Arc;

use k8s_openapi::api::discovery::v1 as discovery;
use netfilter_model::tuple::Family;

use super::super::name::{DNS_SUBDOMAIN, is_dns_subdomain, port_number, read_name};
use super::super::{Findings, Path};
use super::{address, protocol};
use crate::kube::object::{AddressType, Endpoint, EndpointPort, EndpointSlice};

pub(super) fn read(
    slice: discovery::EndpointSlice,
    findings: &mut Findings,
) -> Option<EndpointSlice> {
    let name = read_name(&slice.metadata, is_dns_subdomain, DNS_SUBDOMAIN, findings);
    let labels = slice.metadata.labels.unwrap_or_default();
    let address_type = match slice.address_type.as_str() {
        "IPv4" => AddressType::Ip(Family::V4),
        "IPv6" => AddressType::Ip(Family::V6),
        "FQDN" => AddressType::Fqdn,
        "" => {
            findings.missing(Path::default(), "addressType");
            return None;
        }
        other => {
            let message = format!("unknown address type {other:?}");
            findings.error(Path::of("addressType"), message, "known are IPv4, IPv6 and FQDN");
            return None;
        }
    };
    let ports = slice.ports.unwrap_or_default();
    let ports = ports.iter().enumerate().filter_map(|(index, port)| {
        let at = Path::of("ports").index(index);
        let protocol = protocol(port.protocol.as_deref(), at.key("protocol"), findings)?;
        let number = port.port.filter(|&number| number != 0);
        let number = number.and_then(|number| port_number(number, at.key("port"), findings));
        Some(EndpointPort { name: port.name.clone().unwrap_or_default(), protocol, port: number })
    });
    let ports = ports.collect();
    let family = match address_type {
        AddressType::Ip(family) => family,
        AddressType::Fqdn => {
            let endpoints = Vec::new();
            let service = labels.get(SERVICE_NAME).cloned();
            return Some(EndpointSlice { name, service, address_type, ports, endpoints });
        }
    };
    let mut shared = Shared::default();
    let endpoints = slice.endpoints.unwrap_or_default();
    let endpoints = endpoints.iter().enumerate().filter_map(|(index, endpoint)| {
        let at = Path::of("endpoints").index(index);
        let address = first_address(endpoint, family, &at, findings)?;
        Some(shared.endpoint(endpoint, address))
    });
    let endpoints = endpoints.collect();
    let service = labels.get(SERVICE_NAME).cloned();
    Some(EndpointSlice { name, service, address_type, ports, endpoints })
}

const SERVICE_NAME: &str = "kubernetes.io/service-name";

fn first_address(
    endpoint: &discovery::Endpoint,
    family: Family,
    at: &Path,
    findings: &mut Findings,
) -> Option<IpAddr> {
    let at = at.key("addresses");
    if endpoint.addresses.is_empty() {
        findings.error(at, "an endpoint without addresses", "give it at least one");
        return None;
    }
    let mut first = None;
    for (index, text) in endpoint.addresses.iter().enumerate() {
        let at = at.index(index);
        let found = address(text, at.clone(), findings)?;
        if Family::of(found) != family {
            findings.error(
                at,
                format!("{found} is not of the slice's address type"),
                "a slice holds addresses of one family; a dual-stack Service has slices of both",
            );
            return None;
        }
        first.get_or_insert(found);
    }
    first
}

/// Texts that many endpoints have in common.
#[derive(Default)]
struct Shared {
    last: Vec<Arc<str>>,
}

impl Shared {
    fn text(&mut self, text: &str) -> Arc<str> {
        if let Some(known) = self.last.iter().find(|known| &***known == text) {
            return known.clone();
        }
        let text: Arc<str> = text.into();
        if self.last.len() == 32 {
            self.last.remove(0);
        }
        self.last.push(text.clone());
        text
    }

    fn endpoint(&mut self, endpoint: &discovery::Endpoint, address: IpAddr) -> Endpoint {
        let conditions = endpoint.conditions.clone().unwrap_or_default();
        let hints = endpoint.hints.as_ref();
        let zones = hints.and_then(|hints| hints.for_zones.as_deref()).unwrap_or_default();
        let zone_hints = zones.iter().map(|zone| self.text(&zone.name)).collect();
        let nodes = hints.and_then(|hints| hints.for_nodes.as_deref()).unwrap_or_default();
        let node_hints = nodes.iter().map(|node| self.text(&node.name)).collect();
        let pod = endpoint.target_ref.as_ref().and_then(|target| target.name.as_deref());
        Endpoint {
            address,
            text: endpoint.addresses[0].as_str().into(),
            ready: conditions.ready != Some(false),
            serving: conditions.serving != Some(false),
            terminating: conditions.terminating == Some(true),
            node: endpoint.node_name.as_deref().map(|text| self.text(text)),
            zone: endpoint.zone.as_deref().map(|text| self.text(text)),
            zone_hints,
            node_hints,
            pod: pod.map(Into::into),
        }
    }
}
