//! Objects that service proxies are told of, whole: every field that can change a rule.

mod endpoint_slice;
mod kube_proxy;
mod node;
pub(super) mod service;

use std::net::IpAddr;

use netfilter_model::Prefix;
use netfilter_model::tuple::{Family, Protocol};
use serde_json::Value;

use super::{Findings, Manifest, Path, Problem, header, object_name, read_items, strict};
use crate::kube::object::Object;

impl Manifest<Object> {
    /// Reads an object for the proxies, or each item of a `kind: List`. Objects that they know
    /// nothing of are [`Object::Other`], whatever is in them.
    ///
    /// # Errors
    ///
    /// Everything that the API server would refuse, in the order of the file.
    pub fn for_proxies(value: &Value) -> Result<Vec<Manifest<Object>>, Vec<Problem>> {
        read_items(value, read)
    }
}

fn read(value: &Value, findings: &mut Findings) -> Option<Object> {
    let (version, kind) = header(value, findings)?;
    let errors = &mut findings.errors;
    match (version, kind) {
        ("v1", "Service") => {
            let service = strict::read(value, errors)?;
            service::read(service, findings).map(|service| Object::Service(Box::new(service)))
        }
        ("discovery.k8s.io/v1", "EndpointSlice") => {
            let slice = strict::read(value, errors)?;
            let slice = endpoint_slice::read(slice, findings)?;
            Some(Object::EndpointSlice(Box::new(slice)))
        }
        ("v1", "Node") => {
            let node = strict::read(value, errors)?;
            node::read(node, findings).map(|node| Object::Node(Box::new(node)))
        }
        ("kubeproxy.config.k8s.io/v1alpha1", "KubeProxyConfiguration") => {
            let config = strict::read(value, errors)?;
            let config = kube_proxy::read(config, findings)?;
            Some(Object::KubeProxyConfiguration(Box::new(config)))
        }
        (_, "Service" | "EndpointSlice" | "Node" | "KubeProxyConfiguration") => {
            let right = match kind {
                "EndpointSlice" => "discovery.k8s.io/v1",
                "KubeProxyConfiguration" => "kubeproxy.config.k8s.io/v1alpha1",
                _ => "v1",
            };
            findings.wrong_version(version, kind, right);
            None
        }
        _ => Some(Object::Other { kind: kind.to_owned(), name: object_name(value) }),
    }
}

fn address(text: &str, at: Path, findings: &mut Findings) -> Option<IpAddr> {
    let address = text.parse().ok();
    if address.is_none() {
        findings.error(
            at,
            format!("{text:?} is not an IP address"),
            "as in `10.96.0.10` or `fd00::10`",
        );
    }
    address
}

/// Reads a range; host bits are cleared, as kube-proxy does.
fn range(text: &str, at: Path, findings: &mut Findings) -> Option<Prefix> {
    let range = text.trim().split_once('/').and_then(|(address, len)| {
        let address: IpAddr = address.parse().ok()?;
        let len = len.parse().ok().filter(|&len: &u8| len <= Family::of(address).bits())?;
        Some(Prefix::new(address, len))
    });
    if range.is_none() {
        findings.error(
            at,
            format!("{text:?} is not a range of addresses"),
            "as in `10.244.0.0/16` or `fd00::/64`",
        );
    }
    range
}

fn protocol(text: Option<&str>, at: Path, findings: &mut Findings) -> Option<Protocol> {
    Some(match text.unwrap_or("TCP") {
        "TCP" => Protocol::TCP,
        "UDP" => Protocol::UDP,
        "SCTP" => Protocol::SCTP,
        other => {
            findings.error(
                at,
                format!("unknown protocol {other:?}"),
                "known are TCP, UDP and SCTP",
            );
            return None;
        }
    })
}

#[cfg(test)]
mod tests;
