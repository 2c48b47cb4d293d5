//! Names of chains and service ports, as kube-proxy writes them.

use data_encoding::BASE32;
use netfilter_model::tuple::Protocol;
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

/// Returns what the names of a service port's chains end with.
///
/// Kubernetes: pkg/proxy/iptables/proxier.go, portProtoHash.
pub fn port_hash(service_port: &str, protocol: Protocol) -> String {
    hash(&[service_port, protocol.name().unwrap_or_default()])
}

/// Returns the name of the chain that rewrites to an endpoint, given as `address:port`.
///
/// Kubernetes: pkg/proxy/iptables/proxier.go, servicePortEndpointChainName.
pub fn endpoint_chain(service_port: &str, protocol: Protocol, endpoint: &str) -> String {
    let protocol = protocol.name().unwrap_or_default();
    format!("KUBE-SEP-{}", hash(&[service_port, protocol, endpoint]))
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
        let (tcp, udp) = (Protocol::TCP, Protocol::UDP);
        for (port, protocol, chain) in [
            ("default/kubernetes:https", tcp, "NPX46M4PTMTKRN6Y"),
            ("kube-system/kube-dns:dns", udp, "TCOU7JCQXEZGVUNU"),
            ("kube-system/kube-dns:dns-tcp", tcp, "ERIFXISQEP7F7OF4"),
            ("ns1/svc1:p80", tcp, "XPGD46QRK7WJZT7O"),
            ("default/nginx-demo", tcp, "2ZZBI6IPY23MEJHC"),
        ] {
            assert_eq!(port_hash(port, protocol), chain);
        }
        for (port, protocol, endpoint, chain) in [
            ("ns1/svc1:p80", tcp, "10.180.0.1:80", "KUBE-SEP-SXIVWICOYRO3J4NJ"),
            ("kube-system/kube-dns:dns", udp, "10.85.0.4:53", "KUBE-SEP-WAIILD3LBHUAKL5L"),
        ] {
            assert_eq!(endpoint_chain(port, protocol, endpoint), chain);
        }
    }

    #[test]
    fn a_port_without_a_name_has_no_colon() {
        let service = ObjectName { namespace: "default".into(), name: "web".into() };
        assert_eq!(service_port(&service, None), "default/web");
        assert_eq!(service_port(&service, Some("http")), "default/web:http");
    }
}
