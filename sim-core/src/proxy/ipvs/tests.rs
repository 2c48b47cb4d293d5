use std::net::Ipv4Addr;

use netfilter_model::hook::Table;
use netfilter_model::rule::iptables_save;
use netfilter_model::time::SimTime;

use super::graceful::Kernel;
use super::*;
use crate::config::ObjectName;
use crate::kube::manifest::Manifest;
use crate::proxy::profile::Profile;
use crate::proxy::service::ServicePortName;
use crate::proxy::state::Objects;
use serde_json::{Value, json};

/// A node with one address, and one Service of these specifications on its port 80 with an
/// endpoint on the node and one elsewhere.
fn state(spec: Value, config: Value) -> State {
    let mut proxy = json!({
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1", "kind": "KubeProxyConfiguration",
        "mode": "ipvs", "clusterCIDR": "10.1.0.0/16",
    });
    for (key, value) in config.as_object().into_iter().flatten() {
        proxy[key] = value.clone();
    }
    let endpoint = |ip: &str, node: &str| json!({ "addresses": [ip], "nodeName": node });
    let items = json!([
        { "apiVersion": "v1", "kind": "Node", "metadata": { "name": "n1" }, "status": {
            "addresses": [{ "type": "InternalIP", "address": "192.168.9.1" }],
        } },
        proxy,
        { "apiVersion": "v1", "kind": "Service",
          "metadata": { "name": "a", "namespace": "shop" }, "spec": spec,
          "status": { "loadBalancer": { "ingress":
            if spec["type"] == "LoadBalancer" { json!([{ "ip": "203.0.113.1" }]) }
            else { json!([]) } } } },
        { "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
          "metadata": { "name": "a-x", "namespace": "shop",
                        "labels": { "kubernetes.io/service-name": "a" } },
          "addressType": "IPv4",
          "ports": [{ "name": "", "port": 8080, "protocol": "TCP" }],
          "endpoints": [endpoint("10.1.1.2", "n1"), endpoint("10.1.2.2", "n2")] },
    ]);
    let list = json!({ "apiVersion": "v1", "kind": "List", "items": items });
    let mut objects = Objects::default();
    for manifest in Manifest::for_proxies(&list).expect("valid") {
        objects.add(manifest.object);
    }
    objects.state("n1", Family::V4, Profile::V1_30)
}

fn cluster_ip() -> Value {
    json!({ "clusterIP": "10.96.0.1", "ports": [{ "port": 80 }] })
}

#[test]
fn schedulers_and_affinity_are_options_of_servers() {
    let mut spec = cluster_ip();
    spec["sessionAffinity"] = json!("ClientIP");
    let saved = |scheduler: &str| {
        let state = state(spec.clone(), json!({ "ipvs": { "scheduler": scheduler } }));
        let text = Ipvs::of(&state).unwrap().servers().save();
        text.lines().next().unwrap().to_owned()
    };
    assert_eq!(saved(""), "-A -t 10.96.0.1:80 -s rr -p 10800");
    assert_eq!(saved("sed"), "-A -t 10.96.0.1:80 -s sed -p 10800");
    assert_eq!(saved("mh"), "-A -t 10.96.0.1:80 -s mh -p 10800 -b mh-port");
}

#[test]
fn strict_arp_is_two_more_settings() {
    let count = |strict: bool| {
        let state = state(cluster_ip(), json!({ "ipvs": { "strictARP": strict } }));
        Ipvs::of(&state).unwrap().sysctls().len()
    };
    assert_eq!((count(false), count(true)), (4, 6));
}

/// kube-proxy asks for it, but ipset takes no network of all addresses: nobody gets in.
#[test]
fn a_source_range_of_all_addresses_is_in_no_set() {
    let spec = json!({
        "type": "LoadBalancer", "clusterIP": "10.96.0.1", "ports": [{ "port": 80 }],
        "loadBalancerSourceRanges": ["0.0.0.0/0"],
    });
    let rules = Ipvs::of(&state(spec, json!({}))).unwrap();
    let add = "add KUBE-LOAD-BALANCER-SOURCE-CIDR 203.0.113.1,tcp:80,0.0.0.0/0\n";
    assert!(rules.restore().contains(add));
    let saved = rules.sets().save(SimTime::ZERO);
    assert!(saved.contains("add KUBE-LOAD-BALANCER-FW 203.0.113.1,tcp:80\n"));
    assert!(!saved.contains("add KUBE-LOAD-BALANCER-SOURCE-CIDR"));
}

/// A node outside the ranges would reach the address from the address itself.
#[test]
fn a_node_outside_the_source_ranges_is_kept_out_by_name() {
    let spec = json!({
        "type": "LoadBalancer", "clusterIP": "10.96.0.1", "ports": [{ "port": 80 }],
        "loadBalancerSourceRanges": ["198.51.100.0/24"],
    });
    let rules = Ipvs::of(&state(spec, json!({}))).unwrap();
    let fed = "-A KUBE-IPVS-OUT-FILTER -s 203.0.113.1 -m ipvs --vaddr 203.0.113.1 --vproto tcp \
               --vport 80 -j DROP\n";
    assert!(rules.iptables_restore().contains(fed));
    let kept = "-A KUBE-IPVS-OUT-FILTER -s 203.0.113.1/32 -m ipvs --vproto 6 \
                --vaddr 203.0.113.1/32 --vport 80 -j DROP\n";
    assert!(iptables_save(&rules.to_ruleset().unwrap()).contains(kept));
}

/// Without an endpoint on the node, traffic that should stay there goes to all endpoints.
#[test]
fn local_traffic_without_local_endpoints_leaves_the_node() {
    let spec = json!({
        "type": "NodePort", "clusterIP": "10.96.0.1", "externalTrafficPolicy": "Local",
        "ports": [{ "port": 80, "nodePort": 30080 }],
    });
    let mut state = state(spec, json!({}));
    let real = |state: &State| {
        let rules = Ipvs::of(state).unwrap();
        let id = ServiceId::Address(Protocol::TCP, [192, 168, 9, 1].into(), 30080);
        let server = rules.servers().services.iter().find(|server| server.id == id);
        server.unwrap().destinations.iter().map(|to| to.address.to_string()).collect::<Vec<_>>()
    };
    assert_eq!(real(&state), ["10.1.1.2"]);
    state.ports[0].1[0].local = false;
    assert_eq!(real(&state), ["10.1.1.2", "10.1.2.2"]);
}

/// An address that another device has is no address of the device.
#[test]
fn addresses_of_the_node_stay_where_they_are() {
    let mut spec = cluster_ip();
    spec["externalIPs"] = json!(["192.168.9.1", "203.0.113.7"]);
    let rules = Ipvs::of(&state(spec, json!({}))).unwrap();
    let bound: Vec<String> = rules.addresses().iter().map(IpAddr::to_string).collect();
    assert_eq!(bound, ["10.96.0.1", "203.0.113.7"]);
    assert_eq!(rules.servers().services.len(), 3);
}

/// S Services of E endpoints each: rules of iptables do not grow with either.
#[test]
fn rules_do_not_grow_with_services_or_endpoints() {
    let count = |services: u32, endpoints: u32| {
        let mut state = state(cluster_ip(), json!({}));
        let (port, found) = state.ports.remove(0);
        for number in 0..services {
            let mut port = port.clone();
            let service = ObjectName { namespace: "shop".into(), name: format!("s{number}") };
            port.name = ServicePortName::new(&service, None, Protocol::TCP);
            port.cluster_ip = Ipv4Addr::from_bits(0x0a60_0000 + number).into();
            let endpoint = |n: u32| Endpoint {
                addr: Ipv4Addr::from_bits(0x0a01_0000 + number * 64 + n).into(),
                ..found[0].clone()
            };
            state.ports.push((port, (0..endpoints).map(endpoint).collect()));
        }
        let rules = Ipvs::of(&state).unwrap();
        let ruleset = rules.to_ruleset().unwrap();
        let all = [Table::Nat, Table::Filter].map(|table| ruleset.rule_count(table));
        (all, rules.counts())
    };
    let (all, one) = count(1, 1);
    let (same, many) = count(1000, 10);
    assert_eq!(all, same);
    assert_eq!((one.rules, many.rules), (20, 20));
    assert_eq!((many.servers, many.real_servers, many.addresses), (1000, 10_000, 1000));
}

fn kernel_of(rules: &Ipvs, kernel: &mut Kernel, connections: u32) -> Vec<(String, u32)> {
    kernel.sync(&rules.servers().services, &[], &|_| connections);
    let destinations = kernel.services().iter().flat_map(|service| &service.destinations);
    destinations.map(|to| (to.address.to_string(), to.weight)).collect()
}

fn held(held: &[(&str, u32)]) -> Vec<(String, u32)> {
    held.iter().map(|(address, weight)| ((*address).to_owned(), *weight)).collect()
}

#[test]
fn a_real_server_with_connections_stays_without_weight() {
    let before = state(cluster_ip(), json!({}));
    let mut after = before.clone();
    after.ports[0].1.remove(0);
    let [before, after] = [before, after].map(|state| Ipvs::of(&state).unwrap());
    let mut kernel = Kernel::default();
    // Added in order, each at the head.
    let both = held(&[("10.1.2.2", 1), ("10.1.1.2", 1)]);
    assert_eq!(kernel_of(&before, &mut kernel, 3), both);
    let quiesced = held(&[("10.1.2.2", 1), ("10.1.1.2", 0)]);
    assert_eq!(kernel_of(&after, &mut kernel, 3), quiesced);
    assert_eq!(kernel_of(&after, &mut kernel, 0), quiesced, "only a check deletes it");
    kernel.check(&|_| 1);
    assert_eq!(kernel.terminating().len(), 1);
    // Wanted again, it is made anew, and so comes first.
    let again = held(&[("10.1.1.2", 1), ("10.1.2.2", 1)]);
    assert_eq!(kernel_of(&before, &mut kernel, 1), again);
    assert!(kernel.terminating().is_empty());
    kernel_of(&after, &mut kernel, 1);
    kernel.check(&|_| 0);
    assert_eq!(kernel_of(&after, &mut kernel, 0), held(&[("10.1.2.2", 1)]));
    assert!(kernel.terminating().is_empty());
    // Without connections there is nothing to wait for.
    kernel_of(&before, &mut kernel, 0);
    assert_eq!(kernel_of(&after, &mut kernel, 0), held(&[("10.1.2.2", 1)]));
}

/// An endpoint that came back while the proxy was down is weighted by its first sync.
#[test]
fn a_restarted_proxy_weights_what_is_wanted() {
    let before = state(cluster_ip(), json!({}));
    let mut after = before.clone();
    after.ports[0].1.remove(0);
    let [before, after] = [before, after].map(|state| Ipvs::of(&state).unwrap());
    let mut kernel = Kernel::default();
    kernel_of(&before, &mut kernel, 1);
    kernel_of(&after, &mut kernel, 1);
    kernel.restart();
    let both = held(&[("10.1.2.2", 1), ("10.1.1.2", 1)]);
    assert_eq!(kernel_of(&before, &mut kernel, 1), both);
}

#[test]
fn udp_has_no_grace() {
    let mut spec = cluster_ip();
    spec["ports"][0]["protocol"] = json!("UDP");
    let mut before = state(spec, json!({}));
    before.ports[0].1 = state(cluster_ip(), json!({})).ports[0].1.clone();
    let mut after = before.clone();
    after.ports[0].1.remove(0);
    let [before, after] = [before, after].map(|state| Ipvs::of(&state).unwrap());
    let mut kernel = Kernel::default();
    kernel_of(&before, &mut kernel, 9);
    assert_eq!(kernel_of(&after, &mut kernel, 9), held(&[("10.1.2.2", 1)]));
}

#[test]
fn servers_in_excluded_ranges_are_not_the_proxys() {
    let rules = Ipvs::of(&state(cluster_ip(), json!({}))).unwrap();
    let mut kernel = Kernel::default();
    let foreign = ServiceId::Address(Protocol::TCP, [172, 16, 0, 1].into(), 80);
    let other = Service::new(foreign, "wlc");
    let none = |_: &_| 0;
    kernel.sync(std::slice::from_ref(&other), &[], &none);
    let range = Prefix::new([172, 16, 0, 0].into(), 12);
    kernel.sync(&rules.servers().services, &[range], &none);
    assert_eq!(kernel.services().len(), 2);
    kernel.sync(&rules.servers().services, &[], &none);
    assert_eq!(kernel.services().len(), 1);
}
