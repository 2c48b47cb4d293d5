use expect_test::{Expect, expect};
use netfilter_model::ebpf::Counts;
use netfilter_model::rule::iptables_save;
use netfilter_model::tuple::{Family, Protocol};
use serde_json::{Value, json};

use super::*;
use crate::config::ObjectName;
use crate::kube::manifest::Manifest;
use crate::proxy::iptables::Proxier;
use crate::proxy::profile::Profile;
use crate::proxy::service::ServicePortName;
use crate::proxy::state::Objects;

fn state(items: &Value, family: Family) -> State {
    let mut objects = Objects::default();
    let list = json!({ "apiVersion": "v1", "kind": "List", "items": items });
    for manifest in Manifest::for_proxies(&list).expect("valid") {
        objects.add(manifest.object);
    }
    objects.state("n1", family, Profile::default())
}

#[track_caller]
fn check(items: &Value, family: Family, expected: &Expect) {
    let ebpf = Ebpf::of(&state(items, family), Algorithm::Random).unwrap();
    expected.assert_eq(&ebpf.maps.list());
}

fn service(namespace: &str, name: &str, spec: &Value) -> Value {
    let balanced = spec["type"] == "LoadBalancer";
    let ingress = if balanced { json!([{ "ip": "203.0.113.1" }]) } else { json!([]) };
    json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": { "name": name, "namespace": namespace }, "spec": spec,
        "status": { "loadBalancer": { "ingress": ingress } },
    })
}

/// Endpoints by address, node and a letter: `r`eady, `t`erminating and serving, `d`ying, `n`ot
/// ready.
fn slice(
    namespace: &str,
    service: &str,
    ports: &[(&str, u16, &str)],
    endpoints: &[(&str, &str, char)],
) -> Value {
    let v6 = endpoints.iter().any(|(address, ..)| address.contains(':'));
    let port = |(name, port, protocol): &(&str, u16, &str)| json!({ "name": name, "port": port, "protocol": protocol });
    let endpoint = |(address, node, state): &(&str, &str, char)| {
        json!({ "addresses": [address], "nodeName": node, "conditions": {
            "ready": *state == 'r',
            "serving": matches!(state, 'r' | 't'),
            "terminating": matches!(state, 't' | 'd'),
        } })
    };
    json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
        "metadata": {
            "name": format!("{service}-{}", if v6 { 6 } else { 4 }), "namespace": namespace,
            "labels": { "kubernetes.io/service-name": service },
        },
        "addressType": if v6 { "IPv6" } else { "IPv4" },
        "ports": ports.iter().map(port).collect::<Vec<_>>(),
        "endpoints": endpoints.iter().map(endpoint).collect::<Vec<_>>(),
    })
}

fn node() -> Value {
    json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": "n1" }, "status": {
        "addresses": [
            { "type": "InternalIP", "address": "192.168.9.1" },
            { "type": "InternalIP", "address": "fd00:9::1" },
        ],
    } })
}

const HTTP: [(&str, u16, &str); 1] = [("", 8080, "TCP")];

/// What a cluster has from the start, with the addresses that an article shows.
fn fresh_cluster() -> Value {
    let kubernetes = json!({
        "clusterIP": "10.96.0.1", "ports": [{ "name": "https", "port": 443, "targetPort": 6443 }],
    });
    let hubble = json!({
        "clusterIP": "10.96.7.7", "ports": [{ "name": "peer-service", "port": 443 }],
    });
    let dns = json!({ "clusterIP": "10.96.0.10", "ports": [
        { "name": "dns", "port": 53, "protocol": "UDP" },
        { "name": "dns-tcp", "port": 53, "protocol": "TCP" },
    ] });
    json!([
        node(),
        service("default", "kubernetes", &kubernetes),
        slice("default", "kubernetes", &[("https", 6443, "TCP")], &[("10.0.0.120", "cp-1", 'r')]),
        service("kube-system", "hubble-peer", &hubble),
        service("kube-system", "kube-dns", &dns),
        slice(
            "kube-system",
            "kube-dns",
            &[("dns", 53, "UDP"), ("dns-tcp", 53, "TCP")],
            &[("10.244.0.150", "n1", 'r')],
        ),
    ])
}

#[test]
fn s3_26_the_listing_is_that_of_the_article() {
    let ebpf = Ebpf::of(&state(&fresh_cluster(), Family::V4), Algorithm::Random).unwrap();
    let listing = ebpf.maps.list();
    for line in [
        "SERVICE ADDRESS        BACKEND ADDRESS (REVNAT_ID) (SLOT)",
        "10.96.0.10:53/TCP (1)  10.244.0.150:53/TCP (4) (1)",
        "10.96.0.1:443/TCP (1)  10.0.0.120:6443/TCP (1) (1)",
    ] {
        assert!(listing.lines().any(|listed| listed == line), "{line}\nis not in\n{listing}");
    }
    expect![[r#"
        SERVICE ADDRESS        BACKEND ADDRESS (REVNAT_ID) (SLOT)
        10.96.0.10:53/TCP (0)  0.0.0.0:0 (4) (0) [ClusterIP, non-routable]
        10.96.0.10:53/TCP (1)  10.244.0.150:53/TCP (4) (1)
        10.96.0.10:53/UDP (0)  0.0.0.0:0 (3) (0) [ClusterIP, non-routable]
        10.96.0.10:53/UDP (1)  10.244.0.150:53/UDP (3) (1)
        10.96.0.1:443/TCP (0)  0.0.0.0:0 (1) (0) [ClusterIP, non-routable]
        10.96.0.1:443/TCP (1)  10.0.0.120:6443/TCP (1) (1)
        10.96.7.7:443/TCP (0)  0.0.0.0:0 (2) (0) [ClusterIP, non-routable]
    "#]]
    .assert_eq(&listing);
}

/// Chains named `KUBE-` in what iptables-save prints.
fn kube_chains(save: &str) -> usize {
    save.lines().filter(|line| line.starts_with(":KUBE-")).count()
}

#[test]
fn s3_24_no_kube_chain_is_left() {
    let save = iptables_save(&Ebpf::ruleset().unwrap());
    assert!(save.contains(":PREROUTING ACCEPT"), "{save}");
    assert_eq!(kube_chains(&save), 0);
    let proxier = Proxier::new(&state(&fresh_cluster(), Family::V4)).unwrap();
    assert!(kube_chains(&iptables_save(&proxier.to_ruleset().unwrap())) > 10);
}

/// A state of `services` ClusterIP Services of `each` endpoints, no two with one address.
fn many(services: u32, each: u32) -> State {
    let mut state = Objects::default().state("n1", Family::V4, Profile::default());
    for service in 0..services {
        let name =
            ObjectName { namespace: "default".to_owned(), name: format!("service-{service:05}") };
        let port = ServicePortName::new(&name, Some("http"), Protocol::TCP);
        let port = ServicePort::cluster_ip_only(port, address(10, 96, service), 80);
        let endpoint = |item: u32| {
            let addr = address(10, 128, service * each + item);
            Endpoint {
                addr,
                port: 8080,
                text: format!("{addr}:8080").into(),
                ready: true,
                serving: true,
                terminating: false,
                local: false,
                zone_hints: [].into(),
                node_hints: [].into(),
                item,
            }
        };
        state.ports.push((port, (0..each).map(endpoint).collect()));
    }
    state
}

fn address(first: u8, second: u8, number: u32) -> IpAddr {
    std::net::Ipv4Addr::from_bits(u32::from_be_bytes([first, second, 0, 0]) + number).into()
}

/// Without kube-proxy: an entry for a Service, two for an endpoint, and no chain. With it, two
/// chains for a Service of one endpoint and one more for each further endpoint.
#[test]
fn s3_25_chains_grow_with_services_where_entries_do() {
    let chains = |services| {
        let state = many(services, 2);
        let proxier = Proxier::new(&state).unwrap();
        kube_chains(&iptables_save(&proxier.to_ruleset().unwrap()))
    };
    let fixed = chains(0);
    for services in [1, 10, 100] {
        assert_eq!(chains(services), fixed + 3 * services as usize);
    }
}

#[test]
fn entries_for_services_and_endpoints() {
    for (services, each) in [(0, 0), (1, 0), (1, 1), (20, 10), (1000, 10)] {
        let ebpf = Ebpf::of(&many(services, each), Algorithm::Random).unwrap();
        let (services, each) = (services as usize, each as usize);
        let expected = Counts {
            services: services * (1 + each),
            backends: services * each,
            rev_nat: services,
            ..Counts::default()
        };
        assert_eq!(ebpf.maps.counts(), expected, "{services} × {each}");
    }
    let crowded = Ebpf::of(&many(14_000, 4), Algorithm::Random).unwrap();
    assert!(crowded.maps.counts().services > SERVICE_MAP_ENTRIES_MAX);
    assert_eq!(Ebpf::of(&many(65_540, 0), Algorithm::Random), Err(TooManyFrontends(65_540)));
}

fn all_kinds() -> Value {
    let near = json!({
        "type": "LoadBalancer", "clusterIP": "10.96.0.3", "externalTrafficPolicy": "Local",
        "loadBalancerSourceRanges": ["198.51.100.0/24"], "sessionAffinity": "ClientIP",
        "ports": [{ "port": 80, "nodePort": 30081 }],
    });
    let outside = json!({
        "clusterIP": "10.96.0.4", "externalIPs": ["203.0.113.9"], "ports": [{ "port": 80 }],
        "internalTrafficPolicy": "Local",
    });
    let both = json!({
        "clusterIP": "10.96.0.6", "clusterIPs": ["10.96.0.6", "fd00:96::6"],
        "ipFamilies": ["IPv4", "IPv6"], "type": "NodePort",
        "ports": [{ "port": 80, "nodePort": 30086 }],
    });
    json!([
        node(),
        service("shop", "near", &near),
        slice("shop", "near", &HTTP, &[("10.1.2.4", "n2", 'r'), ("10.1.1.4", "n1", 'r')]),
        service("shop", "outside", &outside),
        slice("shop", "outside", &HTTP, &[("10.1.2.5", "n2", 'r')]),
        service("shop", "both", &both),
        slice("shop", "both", &HTTP, &[("10.1.2.6", "n2", 'r')]),
        slice("shop", "both", &HTTP, &[("fd00:1::6", "n2", 'r')]),
        service("shop", "headless", &json!({ "clusterIP": "None", "ports": [{ "port": 80 }] })),
        service("shop", "named", &json!({ "type": "ExternalName", "externalName": "a.example" })),
    ])
}

#[test]
fn every_kind_of_service_has_its_frontends() {
    let items = all_kinds();
    check(
        &items,
        Family::V4,
        &expect![[r#"
        SERVICE ADDRESS              BACKEND ADDRESS (REVNAT_ID) (SLOT)
        0.0.0.0:30081/TCP (0)        0.0.0.0:0 (5) (0) [NodePort, Local, two-scopes, sessionAffinity, non-routable]
        0.0.0.0:30081/TCP (1)        10.1.1.4:8080/TCP (5) (1)
        0.0.0.0:30081/TCP/i (0)      0.0.0.0:0 (7) (0) [NodePort, Local, two-scopes, sessionAffinity, non-routable]
        0.0.0.0:30081/TCP/i (1)      10.1.1.4:8080/TCP (7) (1)
        0.0.0.0:30081/TCP/i (2)      10.1.2.4:8080/TCP (7) (2)
        0.0.0.0:30086/TCP (0)        0.0.0.0:0 (2) (0) [NodePort, non-routable]
        0.0.0.0:30086/TCP (1)        10.1.2.6:8080/TCP (2) (1)
        10.96.0.3:80/TCP (0)         0.0.0.0:0 (4) (0) [ClusterIP, Local, sessionAffinity, non-routable]
        10.96.0.3:80/TCP (1)         10.1.1.4:8080/TCP (4) (1)
        10.96.0.3:80/TCP (2)         10.1.2.4:8080/TCP (4) (2)
        10.96.0.4:80/TCP (0)         0.0.0.0:0 (11) (0) [ClusterIP, InternalLocal, non-routable]
        10.96.0.6:80/TCP (0)         0.0.0.0:0 (1) (0) [ClusterIP, non-routable]
        10.96.0.6:80/TCP (1)         10.1.2.6:8080/TCP (1) (1)
        192.168.9.1:30081/TCP (0)    0.0.0.0:0 (6) (0) [NodePort, Local, two-scopes, sessionAffinity]
        192.168.9.1:30081/TCP (1)    10.1.1.4:8080/TCP (6) (1)
        192.168.9.1:30081/TCP/i (0)  0.0.0.0:0 (8) (0) [NodePort, Local, two-scopes, sessionAffinity]
        192.168.9.1:30081/TCP/i (1)  10.1.1.4:8080/TCP (8) (1)
        192.168.9.1:30081/TCP/i (2)  10.1.2.4:8080/TCP (8) (2)
        192.168.9.1:30086/TCP (0)    0.0.0.0:0 (3) (0) [NodePort]
        192.168.9.1:30086/TCP (1)    10.1.2.6:8080/TCP (3) (1)
        203.0.113.1:80/TCP (0)       0.0.0.0:0 (9) (0) [LoadBalancer, Local, two-scopes, sessionAffinity, check source-range]
        203.0.113.1:80/TCP (1)       10.1.1.4:8080/TCP (9) (1)
        203.0.113.1:80/TCP/i (0)     0.0.0.0:0 (10) (0) [LoadBalancer, Local, two-scopes, sessionAffinity, check source-range]
        203.0.113.1:80/TCP/i (1)     10.1.1.4:8080/TCP (10) (1)
        203.0.113.1:80/TCP/i (2)     10.1.2.4:8080/TCP (10) (2)
        203.0.113.9:80/TCP (0)       0.0.0.0:0 (12) (0) [ExternalIPs, InternalLocal, two-scopes]
        203.0.113.9:80/TCP (1)       10.1.2.5:8080/TCP (12) (1)
    "#]],
    );
    check(
        &items,
        Family::V6,
        &expect![[r#"
        SERVICE ADDRESS            BACKEND ADDRESS (REVNAT_ID) (SLOT)
        [::]:30086/TCP (0)         [::]:0 (2) (0) [NodePort, non-routable]
        [::]:30086/TCP (1)         [fd00:1::6]:8080/TCP (2) (1)
        [fd00:96::6]:80/TCP (0)    [::]:0 (1) (0) [ClusterIP, non-routable]
        [fd00:96::6]:80/TCP (1)    [fd00:1::6]:8080/TCP (1) (1)
        [fd00:9::1]:30086/TCP (0)  [::]:0 (3) (0) [NodePort]
        [fd00:9::1]:30086/TCP (1)  [fd00:1::6]:8080/TCP (3) (1)
    "#]],
    );
}

#[test]
fn endpoints_that_end_are_behind_those_that_take_connections() {
    let web = json!({ "clusterIP": "10.96.0.1", "ports": [{ "port": 80 }] });
    let with = |endpoints: &[(&str, &str, char)]| {
        let items =
            json!([node(), service("shop", "web", &web), slice("shop", "web", &HTTP, endpoints)]);
        let ebpf = Ebpf::of(&state(&items, Family::V4), Algorithm::Random).unwrap();
        let (_, frontend) = ebpf.maps.frontends().next().unwrap();
        let shown = frontend.slots.iter().map(|id| ebpf.maps.backend(*id).unwrap());
        let shown = shown.map(|b| (b.address.to_string(), b.state)).collect::<Vec<_>>();
        (frontend.count, shown, ebpf.maps.counts().backends)
    };
    use BackendState::{Active, Terminating, TerminatingNotServing};
    let at = |last: u8, state| (format!("10.1.2.{last}"), state);
    let all = [
        ("10.1.2.10", "n2", 'r'),
        ("10.1.2.9", "n2", 'r'),
        ("10.1.2.8", "n2", 'd'),
        ("10.1.2.7", "n2", 't'),
        ("10.1.2.6", "n2", 'n'),
    ];
    // By number, not by text; the one that is not ready has no slot.
    let expected =
        vec![at(9, Active), at(10, Active), at(7, Terminating), at(8, TerminatingNotServing)];
    assert_eq!(with(&all), (2, expected, 5));
    // KEP-1669: where none is ready, those that still serve take connections.
    let expected = vec![at(7, Terminating), at(8, TerminatingNotServing)];
    assert_eq!(with(&all[2..]), (1, expected, 3));
    assert_eq!(with(&all[2..3]), (0, vec![at(8, TerminatingNotServing)], 1));
}

#[test]
fn lookup_tables_are_for_what_is_reached_from_outside() {
    let state = state(&all_kinds(), Family::V4);
    let ebpf = Ebpf::of(&state, Algorithm::Maglev { table_size: 251 }).unwrap();
    let with_table = ebpf.maps.frontends().filter(|(_, frontend)| frontend.maglev.is_some());
    let with_table: Vec<String> = with_table.map(|(key, _)| key.to_string()).collect();
    let expected = [
        "192.168.9.1:30081/TCP",
        "192.168.9.1:30081/TCP/i",
        "192.168.9.1:30086/TCP",
        "203.0.113.1:80/TCP",
        "203.0.113.1:80/TCP/i",
        "203.0.113.9:80/TCP",
    ];
    assert_eq!(with_table, expected);
    assert_eq!(ebpf.maps.counts().maglev, 6);
}
