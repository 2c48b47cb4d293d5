use expect_test::expect_file;
use netfilter_model::nft::nft_list;
use netfilter_model::read::nft_ruleset;
use netfilter_model::tuple::Protocol;
use serde_json::{Value, json};

use super::*;
use crate::config::ObjectName;
use crate::kube::manifest::Manifest;
use crate::proxy::profile::Profile;
use crate::proxy::service::ServicePortName;
use crate::proxy::state::Objects;

fn state(items: &Value, family: Family, profile: Profile) -> State {
    let mut objects = Objects::default();
    let list = json!({ "apiVersion": "v1", "kind": "List", "items": items });
    for manifest in Manifest::for_proxies(&list).expect("valid") {
        objects.add(manifest.object);
    }
    objects.state("n1", family, profile)
}

fn service(name: &str, spec: Value) -> Value {
    let balanced = spec["type"] == "LoadBalancer";
    let ingress = if balanced { json!([{ "ip": "203.0.113.1" }]) } else { json!([]) };
    json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": { "name": name, "namespace": "shop" }, "spec": spec,
        "status": { "loadBalancer": { "ingress": ingress } },
    })
}

fn slice(service: &str, addresses: &[(&str, &str)]) -> Value {
    let endpoint =
        |(address, node): &(&str, &str)| json!({ "addresses": [address], "nodeName": node });
    let v6 = addresses.iter().any(|(address, _)| address.contains(':'));
    json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
        "metadata": {
            "name": format!("{service}-x"), "namespace": "shop",
            "labels": { "kubernetes.io/service-name": service },
        },
        "addressType": if v6 { "IPv6" } else { "IPv4" },
        "ports": [{ "name": "", "port": 8080, "protocol": "TCP" }],
        "endpoints": addresses.iter().map(endpoint).collect::<Vec<_>>(),
    })
}

/// A Service of each kind: one that everybody reaches, one whose clients stay, one that is kept
/// on the node and behind a firewall, one with nobody behind it.
fn shop() -> Value {
    json!([
        { "apiVersion": "v1", "kind": "Node", "metadata": { "name": "n1" }, "status": {
            "addresses": [{ "type": "InternalIP", "address": "192.168.9.1" }],
        } },
        { "apiVersion": "kubeproxy.config.k8s.io/v1alpha1", "kind": "KubeProxyConfiguration",
          "mode": "nftables", "clusterCIDR": "10.1.0.0/16,fd00:1::/48" },
        service("all", json!({ "clusterIP": "10.96.0.1", "ports": [{ "port": 80 }] })),
        slice("all", &[("10.1.1.2", "n1"), ("10.1.2.2", "n2"), ("10.1.2.10", "n2")]),
        service("sticky", json!({
            "type": "NodePort", "clusterIP": "10.96.0.2", "sessionAffinity": "ClientIP",
            "ports": [{ "port": 80, "nodePort": 30080 }],
        })),
        slice("sticky", &[("10.1.1.3", "n1"), ("10.1.2.3", "n2")]),
        service("near", json!({
            "type": "LoadBalancer", "clusterIP": "10.96.0.3", "externalTrafficPolicy": "Local",
            "loadBalancerSourceRanges": ["192.168.0.0/16", "198.51.100.7/32"],
            "ports": [{ "port": 80, "nodePort": 30081 }],
        })),
        slice("near", &[("10.1.1.4", "n1"), ("10.1.2.4", "n2")]),
        service("far", json!({
            "type": "NodePort", "clusterIP": "10.96.0.4", "externalTrafficPolicy": "Local",
            "ports": [{ "port": 80, "nodePort": 30082 }],
        })),
        slice("far", &[("10.1.2.5", "n2")]),
        service("nobody", json!({
            "type": "NodePort", "clusterIP": "10.96.0.5", "externalIPs": ["203.0.113.9"],
            "ports": [{ "port": 80, "nodePort": 30083 }],
        })),
        service("six", json!({ "clusterIP": "fd00:96::6", "ports": [{ "port": 80 }] })),
        slice("six", &[("fd00:1:1:0::2", "n1"), ("fd00:1:2::2", "n2")]),
    ])
}

const PROFILES: [(Profile, &str); 2] = [(Profile::V1_30, "1.30"), (Profile::CURRENT, "current")];
const FAMILIES: [(Family, &str); 2] = [(Family::V4, ""), (Family::V6, "6")];

#[test]
fn a_shop_in_full() {
    for (profile, name) in PROFILES {
        for (family, six) in FAMILIES {
            let rules = Nftables::of(&state(&shop(), family, profile));
            let file = |form: &str| {
                format!("{}/tests/data/shop-{name}.nft{six}{form}", env!("CARGO_MANIFEST_DIR"))
            };
            expect_file![file("")].assert_eq(&rules.restore());
            let ruleset = rules.ruleset().expect("accepted");
            expect_file![file("-list")].assert_eq(&nft_list(&ruleset));
        }
    }
}

#[test]
fn both_forms_read_back_as_the_table_that_they_show() {
    for (profile, _) in PROFILES {
        for (family, _) in FAMILIES {
            let rules = Nftables::of(&state(&shop(), family, profile)).ruleset().unwrap();
            let listed = nft_list(&rules);
            let read = nft_ruleset(&listed, 0);
            assert_eq!(read.remarks, []);
            assert_eq!(nft_list(&read.value), listed);
        }
    }
}

#[test]
fn chains_are_named_as_on_real_nodes() {
    let name = |namespace: &str, name: &str, port: &str| {
        let service = ObjectName { namespace: namespace.into(), name: name.into() };
        names::service_base(&ServicePortName::new(&service, Some(port), Protocol::TCP))
    };
    assert_eq!(name("ns1", "svc1", "p80"), "ULMVA6XW-ns1/svc1/tcp/p80");
    assert_eq!(name("default", "kubernetes", "https"), "2QRHZV4L-default/kubernetes/tcp/https");
    let long = name(&"n".repeat(63), &"s".repeat(120), &"p".repeat(63));
    assert_eq!((long.len(), &long[long.len() - 4..]), (240, "p..."));
}

/// Returns a node and a number of Services, each with as many endpoints.
fn many(services: u32, endpoints: u32) -> Value {
    let mut items = vec![shop()[0].clone(), shop()[1].clone()];
    for at in 0..services {
        let name = format!("s{at}");
        let ip = std::net::Ipv4Addr::from_bits(0x0a60_0100 + at).to_string();
        items.push(service(&name, json!({ "clusterIP": ip, "ports": [{ "port": 80 }] })));
        let address = |number: u32| {
            std::net::Ipv4Addr::from_bits(0x0a01_0001 + at * endpoints + number).to_string()
        };
        let addresses: Vec<String> = (0..endpoints).map(address).collect();
        let pairs: Vec<(&str, &str)> = addresses.iter().map(|text| (&**text, "n2")).collect();
        items.push(slice(&name, &pairs));
    }
    Value::Array(items)
}

#[test]
fn what_services_and_endpoints_add() {
    for (services, endpoints) in [(1, 1), (7, 1), (7, 4)] {
        let list = many(services as u32, endpoints as u32);
        let with = |profile| Nftables::of(&state(&list, Family::V4, profile)).counts();
        let without = |profile| Nftables::of(&state(&many(0, 0), Family::V4, profile)).counts();
        // A chain with two rules for the Service, and one with two for each endpoint.
        let (old, none) = (with(Profile::V1_30), without(Profile::V1_30));
        assert_eq!(old.chains - none.chains, services * (1 + endpoints));
        assert_eq!(old.rules - none.rules, services * (2 + 2 * endpoints));
        // One rule, however many endpoints there are.
        let (new, none) = (with(Profile::CURRENT), without(Profile::CURRENT));
        assert_eq!((new.chains - none.chains, new.rules - none.rules), (services, services));
        // The address and the way from it, in both.
        assert_eq!([old.elements, new.elements], [1 + 2 * services; 2]);
    }
}

#[test]
fn node_ports_of_all_addresses_spare_loopback() {
    let mut items = shop();
    items[1]["nodePortAddresses"] = json!(["0.0.0.0/0"]);
    let text = Nftables::of(&state(&items, Family::V4, Profile::V1_30)).restore();
    assert!(text.contains(
        "services fib daddr type local ip daddr != 127.0.0.0/8 meta l4proto . th dport vmap \
         @service-nodeports"
    ));
    assert!(!text.contains("nodeport-ips"));
}

#[test]
fn of_two_ports_with_one_address_the_first_by_name_counts() {
    let spec = json!({ "clusterIP": "10.96.0.1", "ports": [{ "port": 80 }] });
    let items = json!([service("b", spec.clone()), service("a", spec)]);
    let text = Nftables::of(&state(&items, Family::V4, Profile::V1_30)).restore();
    let lines: Vec<&str> =
        text.lines().filter(|line| line.starts_with("add element ip kube-proxy no-")).collect();
    assert_eq!(lines.len(), 1);
    assert!(lines[0].contains("shop/a"));
}

#[test]
fn a_file_for_another_mode_keeps_its_mark() {
    let mut items = shop();
    items[1]["mode"] = json!("iptables");
    items[1]["iptables"] = json!({ "masqueradeBit": 5 });
    let text = Nftables::of(&state(&items, Family::V4, Profile::V1_30)).restore();
    assert!(text.contains("mark-for-masquerade mark set mark or 0x00000020"));
    items[1]["mode"] = json!("nftables");
    let text = Nftables::of(&state(&items, Family::V4, Profile::V1_30)).restore();
    assert!(text.contains("mark-for-masquerade mark set mark or 0x00004000"));
}

/// Two of three endpoints once had no share: those whose items were not in the order of their
/// addresses.
#[test]
fn endpoints_count_whatever_their_items() {
    let mut state = state(&shop(), Family::V4, Profile::V1_30);
    let all = |state: &State| Nftables::of(state).restore();
    let before = all(&state);
    assert!(before.contains("numgen random mod 3 vmap"), "{before}");
    for (_, endpoints) in &mut state.ports {
        endpoints.iter_mut().for_each(|endpoint| endpoint.item = 100 - endpoint.item);
    }
    assert_eq!(all(&state), before);
}
