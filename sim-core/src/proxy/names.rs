//! Names of chains and service ports, as kube-proxy writes them.

use std::net::Ipv4Addr;

use data_encoding::BASE32;
use sha2::{Digest, Sha256};

use crate::config::ObjectName;

/// Returns a service port's name: `namespace/name:port`, without the colon where the port has no
/// name.
pub fn service_port(service: &ObjectName, port: Option<&str>) -> String {
    match port {
        Some(port) => format!("{service}:{port}"),
        None => service.to_string(),
    }
}

/// Returns the name of the chain that chooses an endpoint of a TCP service port.
///
/// Kubernetes: pkg/proxy/iptables/proxier.go, portProtoHash.
pub fn service_chain(service_port: &str) -> String {
    format!("KUBE-SVC-{}", hash(&[service_port, "tcp"]))
}

/// Returns the name of the chain that rewrites to an endpoint of a TCP service port.
///
/// Kubernetes: pkg/proxy/iptables/proxier.go, servicePortEndpointChainName.
pub fn endpoint_chain(service_port: &str, addr: Ipv4Addr, port: u16) -> String {
    format!("KUBE-SEP-{}", hash(&[service_port, "tcp", &format!("{addr}:{port}")]))
}

fn hash(parts: &[&str]) -> String {
    let mut hasher = Sha256::new();
    for part in parts {
        hasher.update(part.as_bytes());
    }
    BASE32.encode(&hasher.finalize())[..16].to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chains_are_named_as_in_dumps_of_real_nodes() {
        for (port, chain) in [
            ("default/kubernetes:https", "KUBE-SVC-NPX46M4PTMTKRN6Y"),
            ("kube-system/kube-dns:dns-tcp", "KUBE-SVC-ERIFXISQEP7F7OF4"),
            ("ns1/svc1:p80", "KUBE-SVC-XPGD46QRK7WJZT7O"),
            ("default/nginx-demo", "KUBE-SVC-2ZZBI6IPY23MEJHC"),
        ] {
            assert_eq!(service_chain(port), chain);
        }
        let addr = Ipv4Addr::new(10, 180, 0, 1);
        assert_eq!(endpoint_chain("ns1/svc1:p80", addr, 80), "KUBE-SEP-SXIVWICOYRO3J4NJ");
    }

    #[test]
    fn a_port_without_a_name_has_no_colon() {
        let service = ObjectName { namespace: "default".into(), name: "web".into() };
        assert_eq!(service_port(&service, None), "default/web");
        assert_eq!(service_port(&service, Some("http")), "default/web:http");
    }
}
