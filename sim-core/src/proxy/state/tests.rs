use serde_json::{Value, json};

use super::*;
use crate::kube::manifest::Manifest;

fn objects(items: &[Value]) -> Objects {
    let mut objects = Objects::default();
    let list = json!({ "apiVersion": "v1", "kind": "List", "items": items });
    for manifest in Manifest::for_proxies(&list).expect("valid") {
        objects.add(manifest.object);
    }
    objects
}

fn node() -> Value {
    json!({
        "apiVersion": "v1", "kind": "Node",
        "metadata": { "name": "n1", "labels": { "topology.kubernetes.io/zone": "a" } },
        "spec": { "podCIDR": "10.1.0.0/24", "podCIDRs": ["10.1.0.0/24", "fd00:1::/64"] },
        "status": { "addresses": [
            { "type": "Hostname", "address": "n1" },
            { "type": "ExternalIP", "address": "203.0.113.7" },
            { "type": "InternalIP", "address": "192.168.9.1" },
            { "type": "InternalIP", "address": "fd00:9::1" },
        ] },
    })
}

fn service(spec: Value) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": { "name": "web", "namespace": "shop" }, "spec": spec,
        "status": { "loadBalancer": { "ingress": [
            { "ip": "203.0.113.1" }, { "ip": "2001:db8::1" }, { "hostname": "lb.example" },
            { "ip": "203.0.113.2", "ipMode": "Proxy" },
        ] } },
    })
}

#[test]
fn a_dual_stack_service_is_seen_by_family() {
    let objects = objects(&[
        node(),
        service(json!({
            "type": "LoadBalancer", "clusterIPs": ["10.96.0.9", "fd00:96::9"],
            "clusterIP": "10.96.0.9", "externalIPs": ["198.51.100.1", "2001:db8::5"],
            "loadBalancerSourceRanges": ["10.1.2.3/8", " fd00::/64"],
            "externalTrafficPolicy": "Local", "healthCheckNodePort": 32000,
            "sessionAffinity": "ClientIP",
            "ports": [
                { "name": "b", "port": 80, "nodePort": 30080, "targetPort": "http" },
                { "name": "a", "port": 80, "protocol": "UDP" },
            ],
        })),
    ]);
    let state = objects.state("n1", Family::V6, Profile::V1_30);
    assert_eq!(state.node.host_ip, "fd00:9::1".parse::<IpAddr>().unwrap());
    assert_eq!(state.locality().zone, Some("a"));
    let names: Vec<&str> = state.ports.iter().map(|(port, _)| &*port.name.text).collect();
    assert_eq!(names, ["shop/web:a", "shop/web:b"]);
    let (port, _) = &state.ports[1];
    assert_eq!(port.cluster_ip, "fd00:96::9".parse::<IpAddr>().unwrap());
    assert_eq!(port.load_balancer_vips, ["2001:db8::1".parse::<IpAddr>().unwrap()]);
    assert_eq!(port.external_ips, ["2001:db8::5".parse::<IpAddr>().unwrap()]);
    assert_eq!(port.load_balancer_source_ranges[0].to_string(), "fd00::/64");
    assert_eq!((port.affinity, port.health_check_node_port), (Some(10800), Some(32000)));
    assert!(port.external_local && port.uses_local_endpoints() && port.uses_cluster_endpoints());
    let state = objects.state("n1", Family::V4, Profile::V1_30);
    let (port, _) = &state.ports[1];
    assert_eq!(port.load_balancer_vips, ["203.0.113.1".parse::<IpAddr>().unwrap()]);
    assert_eq!(port.load_balancer_source_ranges[0].to_string(), "10.0.0.0/8");
}

#[test]
fn services_without_an_address_have_no_rules() {
    for spec in [
        json!({ "clusterIP": "None", "ports": [{ "port": 80 }] }),
        json!({ "type": "ExternalName", "externalName": "db.example" }),
        json!({ "ports": [{ "port": 80 }] }),
        json!({ "clusterIP": "fd00:96::9", "ports": [{ "port": 80 }] }),
    ] {
        let objects = objects(&[service(spec.clone())]);
        assert!(objects.state("n1", Family::V4, Profile::V1_30).ports.is_empty(), "{spec}");
    }
}

#[test]
fn an_external_policy_needs_external_traffic() {
    let spec = json!({
        "clusterIP": "10.96.0.9", "externalTrafficPolicy": "Local", "ports": [{ "port": 80 }],
    });
    let objects = objects(&[service(spec)]);
    let (port, _) = &objects.state("n1", Family::V4, Profile::V1_30).ports[0];
    assert!(!port.external_local);
}

#[test]
fn local_traffic_is_told_by_range_or_device() {
    let text = |config: Value, family| {
        let mut config = config;
        config["apiVersion"] = json!("kubeproxy.config.k8s.io/v1alpha1");
        config["kind"] = json!("KubeProxyConfiguration");
        let state = objects(&[node(), config]).state("n1", family, Profile::V1_30);
        match state.local_detector() {
            None => "none".to_owned(),
            Some(LocalDetector::Source(range)) => range.to_string(),
            Some(LocalDetector::Device(device)) => device,
        }
    };
    let (v4, v6) = (Family::V4, Family::V6);
    assert_eq!(text(json!({ "clusterCIDR": "10.0.0.0/8" }), v4), "10.0.0.0/8");
    assert_eq!(text(json!({ "clusterCIDR": "10.0.0.0/8" }), v6), "none");
    assert_eq!(text(json!({ "clusterCIDR": "10.0.0.0/8,fd00::/48" }), v6), "fd00::/48");
    assert_eq!(text(json!({ "detectLocalMode": "NodeCIDR" }), v6), "fd00:1::/64");
    let bridge = json!({
        "detectLocalMode": "BridgeInterface", "detectLocal": { "bridgeInterface": "cbr0" },
    });
    assert_eq!(text(bridge, v4), "cbr0");
    let prefix = json!({
        "detectLocalMode": "InterfaceNamePrefix", "detectLocal": { "interfaceNamePrefix": "veth" },
    });
    assert_eq!(text(prefix, v4), "veth+");
}
