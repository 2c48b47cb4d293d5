use serde_json::{Value, json};

use super::*;
use crate::kube::object::{DetectLocal, NodePortAddresses, ProxyMode};

fn problems(value: &Value) -> Vec<String> {
    let problems = Manifest::for_proxies(value).expect_err("invalid");
    problems.iter().map(|problem| format!("{} {problem}", problem.code)).collect()
}

fn config(change: impl Fn(&mut Value)) -> Value {
    let mut value = json!({
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "bindAddress": "0.0.0.0",
        "bindAddressHardFail": false,
        "clientConnection": { "kubeconfig": "/var/lib/kube-proxy/kubeconfig.conf", "qps": 0 },
        "clusterCIDR": "10.244.0.0/16",
        "configSyncPeriod": "0s",
        "conntrack": { "maxPerCore": null, "tcpEstablishedTimeout": null },
        "detectLocal": { "bridgeInterface": "", "interfaceNamePrefix": "" },
        "detectLocalMode": "",
        "hostnameOverride": "",
        "iptables": { "masqueradeBit": null, "minSyncPeriod": "0s", "syncPeriod": "1m" },
        "ipvs": { "excludeCIDRs": null, "scheduler": "", "strictARP": false },
        "logging": { "verbosity": 0 },
        "mode": "",
        "nodePortAddresses": null,
        "oomScoreAdj": null,
        "winkernel": { "enableDSR": false },
    });
    change(&mut value);
    value
}

fn read_config(value: &Value) -> crate::kube::object::KubeProxyConfiguration {
    match Manifest::for_proxies(value).expect("valid").remove(0).object {
        Object::KubeProxyConfiguration(config) => *config,
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_configuration_that_kubeadm_writes_is_that_of_the_defaults() {
    let read = read_config(&config(|_| {}));
    let mut expected = crate::kube::object::KubeProxyConfiguration::default();
    expected.cluster_cidrs.push(Prefix::new(IpAddr::from([10, 244, 0, 0]), 16));
    expected.iptables.sync_period = std::time::Duration::from_secs(60);
    assert_eq!(read, expected);
    assert_eq!(read.iptables.min_sync_period.as_secs(), 1);
}

#[test]
fn what_a_configuration_says_counts() {
    let read = read_config(&config(|value| {
        value["mode"] = json!("ipvs");
        value["ipvs"] = json!({ "scheduler": "wlc", "excludeCIDRs": ["10.9.0.0/16"] });
        value["nodePortAddresses"] = json!(["primary"]);
        value["detectLocalMode"] = json!("InterfaceNamePrefix");
        value["detectLocal"] = json!({ "interfaceNamePrefix": "cali" });
        value["iptables"]["masqueradeBit"] = json!(0);
        value["iptables"]["localhostNodePorts"] = json!(false);
    }));
    assert_eq!((read.mode, read.ipvs.scheduler.as_str()), (ProxyMode::Ipvs, "wlc"));
    assert_eq!(read.node_port_addresses, NodePortAddresses::Primary);
    assert_eq!(read.detect_local, DetectLocal::InterfaceNamePrefix("cali".into()));
    assert_eq!((read.iptables.masquerade_bit, read.localhost_node_ports), (0, false));
}

#[test]
fn a_wrong_configuration_says_where() {
    let wrong = config(|value| {
        value["iptables"]["masqeuradeAll"] = json!(true);
        value["iptables"]["masqueradeBit"] = json!(32);
        value["mode"] = json!("userspace");
        value["clusterCIDR"] = json!("10.0.0.0/8,10.1.0.0/16");
        value["nodePortAddresses"] = json!(["primary", "10.0.0.0/33"]);
        value["detectLocalMode"] = json!("BridgeInterface");
    });
    assert_eq!(
        problems(&wrong),
        ["unknown-field iptables.masqeuradeAll: Kubernetes knows no field `masqeuradeAll` here"]
    );
    let wrong = config(|value| {
        value["iptables"]["masqueradeBit"] = json!(32);
        value["mode"] = json!("userspace");
        value["clusterCIDR"] = json!("10.0.0.0/8,10.1.0.0/16");
        value["nodePortAddresses"] = json!(["primary", "10.0.0.0/33"]);
        value["detectLocalMode"] = json!("BridgeInterface");
    });
    let mut found = problems(&wrong);
    found.sort();
    assert_eq!(
        found,
        [
            "invalid-object clusterCIDR: two ranges of one family",
            "invalid-object iptables.masqueradeBit: there is no such bit",
            "invalid-object mode: unknown mode \"userspace\"",
            "invalid-object nodePortAddresses[0]: \"primary\" is not a range of addresses",
            "invalid-object nodePortAddresses[1]: \"10.0.0.0/33\" is not a range of addresses",
            "missing-field detectLocal: `bridgeInterface` is missing",
        ]
    );
}

fn slice(change: impl Fn(&mut Value)) -> Value {
    let mut value = json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
        "metadata": {
            "name": "web-x7", "namespace": "shop", "resourceVersion": "7",
            "labels": { "kubernetes.io/service-name": "web" },
        },
        "addressType": "IPv4",
        "ports": [{ "name": "http", "port": 8080 }, { "name": "all" }],
        "endpoints": [{
            "addresses": ["10.244.1.5"],
            "conditions": { "ready": false, "terminating": true },
            "nodeName": "n1", "zone": "a",
            "hints": { "forZones": [{ "name": "a" }], "forNodes": [{ "name": "n1" }] },
            "targetRef": { "kind": "Pod", "name": "web-1", "namespace": "shop" },
        }],
    });
    change(&mut value);
    value
}

#[test]
fn a_slice_has_the_defaults_of_its_conditions() {
    let Object::EndpointSlice(read) =
        Manifest::for_proxies(&slice(|_| {})).expect("valid").remove(0).object
    else {
        panic!("a slice")
    };
    assert_eq!(read.service.as_deref(), Some("web"));
    let endpoint = &read.endpoints[0];
    assert_eq!((endpoint.ready, endpoint.serving, endpoint.terminating), (false, true, true));
    assert_eq!(endpoint.node_hints[..], ["n1".into()]);
    assert_eq!(read.ports[1].port, None);
}

#[test]
fn a_wrong_slice_says_where() {
    for (path, value, expected) in [
        (
            "/addressType",
            json!("IPv5"),
            "invalid-object addressType: unknown address type \"IPv5\"",
        ),
        (
            "/endpoints/0/addresses/0",
            json!("fd00::1"),
            "invalid-object endpoints[0].addresses[0]: fd00::1 is not of the slice's address type",
        ),
        (
            "/endpoints/0/addresses",
            json!([]),
            "invalid-object endpoints[0].addresses: an endpoint without addresses",
        ),
        ("/ports/0/port", json!(70000), "invalid-object ports[0].port: 70000 is not a port"),
    ] {
        let wrong = slice(|slice| *slice.pointer_mut(path).unwrap() = value.clone());
        assert_eq!(problems(&wrong), [expected]);
    }
}

#[test]
fn what_contradicts_itself_in_a_service_is_refused() {
    let service = json!({
        "apiVersion": "v1", "kind": "Service", "metadata": { "name": "web" },
        "spec": {
            "clusterIP": "10.96.0.1", "clusterIPs": ["10.96.0.2", "10.96.0.3"],
            "ports": [{ "port": 80, "nodePort": 30080 }],
            "externalTrafficPolicy": "local",
            "sessionAffinity": "ClientIP",
            "sessionAffinityConfig": { "clientIP": { "timeoutSeconds": 0 } },
            "loadBalancerSourceRanges": ["10.0.0.0"],
        },
    });
    let mut found = problems(&service);
    found.sort();
    assert_eq!(
        found,
        [
            "invalid-object spec.clusterIPs[0]: the first of the clusterIPs is 10.96.0.2, but the \
             clusterIP is 10.96.0.1",
            "invalid-object spec.clusterIPs[1]: a second ClusterIP of one family",
            "invalid-object spec.externalTrafficPolicy: unknown traffic policy \"local\"",
            "invalid-object spec.loadBalancerSourceRanges[0]: \"10.0.0.0\" is not a range of \
             addresses",
            "invalid-object spec.ports[0].nodePort: a nodePort, but the type is ClusterIP",
            "invalid-object spec.sessionAffinityConfig.clientIP.timeoutSeconds: 0 is out of range",
        ]
    );
}

#[test]
fn other_objects_are_left_alone() {
    let pod = json!({ "apiVersion": "v1", "kind": "Pod", "metadata": { "name": "x" }, "spec": 5 });
    let read = Manifest::for_proxies(&pod).expect("valid").remove(0);
    assert!(matches!(read.object, Object::Other { kind, .. } if kind == "Pod"));
}
