//! Names of chains and sets.

use std::fmt::Write as _;

use data_encoding::BASE32;
use sha2::{Digest, Sha256};

use crate::proxy::endpoint::Endpoint;
use crate::proxy::service::ServicePortName;

/// No name is longer, prefixes aside.
const BASE_LEN_MAX: usize = 240;

/// Returns what the names of a service port's chains end with.
///
/// Kubernetes: pkg/proxy/nftables/proxier.go, servicePortChainNameBase.
pub(super) fn service_base(port: &ServicePortName) -> String {
    hashed(service_text(port))
}

/// Returns what the names of an endpoint's chain and set end with.
///
/// Kubernetes: pkg/proxy/nftables/proxier.go, servicePortEndpointChainNameBase.
pub(super) fn endpoint_base(port: &ServicePortName, endpoint: &Endpoint) -> String {
    let mut text = service_text(port);
    let start = text.len();
    push(&mut text, format_args!("__{}", endpoint.addr_text()));
    if endpoint.addr.is_ipv6() {
        let address = text[start..].replace(':', ".");
        text.replace_range(start.., &address);
    }
    push(&mut text, format_args!("/{}", endpoint.port));
    hashed(text)
}

fn service_text(port: &ServicePortName) -> String {
    let protocol = port.protocol.name().unwrap_or_default();
    format!("{}/{}/{}/{}", port.service.namespace, port.service.name, protocol, port.port)
}

/// Returns a text behind the first letters of its hash.
fn hashed(text: String) -> String {
    let hash = BASE32.encode(&Sha256::digest(text.as_bytes())[..5]);
    let mut name = hash;
    name.push('-');
    name.push_str(&text);
    if name.len() > BASE_LEN_MAX {
        let end = (0..=BASE_LEN_MAX - 3).rev().find(|at| name.is_char_boundary(*at));
        name.truncate(end.unwrap_or_default());
        name.push_str("...");
    }
    name
}

fn push(text: &mut String, more: std::fmt::Arguments<'_>) {
    text.write_fmt(more).expect("writing to a string does not fail");
}
