//! Nodes.

use k8s_openapi::api::core::v1 as core;

use super::super::name::{DNS_SUBDOMAIN, is_dns_subdomain, read_name};
use super::super::{Findings, Path};
use super::{address, range};
use crate::kube::object::{Node, NodeAddress};

pub(super) fn read(node: core::Node, findings: &mut Findings) -> Option<Node> {
    let name = read_name(&node.metadata, is_dns_subdomain, DNS_SUBDOMAIN, findings).name;
    let spec = node.spec.unwrap_or_default();
    let status = node.status.unwrap_or_default();
    let mut addresses = Vec::new();
    for (index, given) in status.addresses.unwrap_or_default().iter().enumerate() {
        let kind = match given.type_.as_str() {
            "InternalIP" => NodeAddress::InternalIp,
            "ExternalIP" => NodeAddress::ExternalIp,
            _ => continue, // a name
        };
        let at = Path::of("status.addresses").index(index).key("address");
        addresses.extend(address(&given.address, at, findings).map(|address| (kind, address)));
    }
    let ranges = match (spec.pod_cidrs, spec.pod_cidr) {
        (Some(ranges), _) => ranges,
        (None, single) => single.into_iter().collect(),
    };
    let ranges = ranges.iter().enumerate();
    let pod_cidrs = ranges
        .filter_map(|(index, text)| range(text, Path::of("spec.podCIDRs").index(index), findings))
        .collect();
    let labels = node.metadata.labels.unwrap_or_default();
    Some(Node { name, labels, addresses, pod_cidrs })
}
