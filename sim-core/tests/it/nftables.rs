//! nftables mode's rules in the running kernel and in the model.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use netfilter_model::host::{Env, Host, Route, RouteQuery};
use netfilter_model::netns::{Netns, Outcome};
use netfilter_model::nft::{Ruleset, nft_list};
use netfilter_model::packet::{Packet, TcpFlags};
use netfilter_model::rule::{AddrType, RulesetBuilder};
use netfilter_model::time::SimTime;
use netfilter_model::tuple::{Family, Protocol, Tuple};
use netfilter_model::{DeviceId, DeviceName};
use serde_json::{Value, json};
use sim_core::kube::manifest::Manifest;
use sim_core::proxy::nftables::Nftables;
use sim_core::proxy::profile::Profile;
use sim_core::proxy::state::{Objects, State};

use crate::lab::{Lab, Tool, skip};

/// The lab's node: its client is 10.244.1.2 by `c0`, its servers 10.244.2.2 and up by `s0`.
struct LabNode;

const LO: DeviceId = DeviceId(0);
const C0: DeviceId = DeviceId(1);
const S0: DeviceId = DeviceId(2);
const NEAR: Ipv4Addr = Ipv4Addr::new(10, 244, 1, 1);
const FAR: Ipv4Addr = Ipv4Addr::new(10, 244, 2, 1);
const CLIENT: Ipv4Addr = Ipv4Addr::new(10, 244, 1, 2);

impl Host for LabNode {
    fn route(&self, query: RouteQuery) -> Route {
        if self.addr_type(query.dst, None) == AddrType::Local {
            return Route::Local;
        }
        match query.dst {
            IpAddr::V4(dst) if dst.octets()[..3] == [10, 244, 1] => {
                Route::Forward { dev: C0, next_hop: query.dst }
            }
            IpAddr::V4(dst) if dst.octets()[..3] == [10, 244, 2] => {
                Route::Forward { dev: S0, next_hop: query.dst }
            }
            _ => Route::Forward { dev: S0, next_hop: [10, 244, 2, 2].into() },
        }
    }

    fn addr_type(&self, addr: IpAddr, _: Option<DeviceId>) -> AddrType {
        let own = addr.is_loopback() || addr == NEAR || addr == FAR;
        if own { AddrType::Local } else { AddrType::Unicast }
    }

    fn masquerade_address(&self, dev: DeviceId, _: IpAddr) -> Option<IpAddr> {
        Some(match dev {
            C0 => NEAR.into(),
            S0 => FAR.into(),
            _ => Ipv4Addr::LOCALHOST.into(),
        })
    }

    fn loopback(&self) -> DeviceId {
        LO
    }

    fn device_name(&self, dev: DeviceId) -> DeviceName {
        let name = ["lo", "c0", "s0"].get(dev.0 as usize).unwrap_or(&"none");
        DeviceName::parse(name).expect("a name")
    }
}

fn service(name: &str, spec: Value) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": { "name": name, "namespace": "lab" }, "spec": spec,
    })
}

fn slice(service: &str, address: &str, node: &str) -> Value {
    json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
        "metadata": {
            "name": service, "namespace": "lab",
            "labels": { "kubernetes.io/service-name": service },
        },
        "addressType": "IPv4",
        "ports": [{ "name": "", "port": 8080, "protocol": "TCP" }],
        "endpoints": [{ "addresses": [address], "nodeName": node }],
    })
}

/// Services with one endpoint at most, so that nothing is drawn; `range` is that of Pods.
fn state(range: &str, profile: Profile) -> State {
    let list = json!({ "apiVersion": "v1", "kind": "List", "items": [
        { "apiVersion": "v1", "kind": "Node", "metadata": { "name": "n1" }, "status": {
            "addresses": [{ "type": "InternalIP", "address": NEAR.to_string() }],
        } },
        { "apiVersion": "kubeproxy.config.k8s.io/v1alpha1", "kind": "KubeProxyConfiguration",
          "mode": "nftables", "clusterCIDR": range },
        service("web", json!({
            "type": "NodePort", "clusterIP": "10.96.0.10", "externalIPs": ["203.0.113.9"],
            "ports": [{ "port": 80, "nodePort": 30080 }],
        })),
        slice("web", "10.244.2.3", "n1"),
        service("sticky", json!({
            "clusterIP": "10.96.0.11", "sessionAffinity": "ClientIP", "ports": [{ "port": 80 }],
        })),
        slice("sticky", "10.244.2.4", "n2"),
        service("nobody", json!({
            "type": "NodePort", "clusterIP": "10.96.0.12",
            "ports": [{ "port": 80, "nodePort": 30082 }],
        })),
        service("inside", json!({
            "clusterIP": "10.96.0.13", "internalTrafficPolicy": "Local", "ports": [{ "port": 80 }],
        })),
        slice("inside", "10.244.2.5", "n2"),
        service("far", json!({
            "type": "NodePort", "clusterIP": "10.96.0.14", "externalTrafficPolicy": "Local",
            "ports": [{ "port": 80, "nodePort": 30084 }],
        })),
        slice("far", "10.244.2.6", "n2"),
    ] });
    let mut objects = Objects::default();
    for manifest in Manifest::for_proxies(&list).expect("valid") {
        objects.add(manifest.object);
    }
    objects.state("n1", Family::V4, profile)
}

/// Returns what a client sees of a SYN, as the lab's client says it.
fn model(rules: &Arc<Ruleset>, to: (Ipv4Addr, u16)) -> String {
    let rules = RulesetBuilder::new().build().unwrap().with_nft(rules.clone());
    let tuple = Tuple::v4(Protocol::TCP, CLIENT, 40000, to.0, to.1);
    let syn = Packet::tcp(1, tuple, TcpFlags::SYN);
    let mut draws = |_: u32| 0;
    let mut env = Env { now: SimTime::ZERO, host: &LabNode, rules: &rules, draws: &mut draws };
    match Netns::default().receive(syn, C0, &mut env) {
        Outcome::Sent(egress) => {
            let sent = egress.packet.tuple;
            let source = if sent.src() == CLIENT { "client" } else { "node" };
            format!("{}:{} sees {source}", sent.dst(), sent.dst_part)
        }
        Outcome::Dropped(_) => "TimedOut".to_owned(),
        // A SYN to a closed port of the node itself is refused as one that a rule rejects.
        Outcome::Rejected(_) | Outcome::Local(_) => "ConnectionRefused".to_owned(),
    }
}

fn kernel(lab: &Lab, to: (Ipv4Addr, u16)) -> String {
    let lines = lab.client("tcp", &format!("{}:{}", to.0, to.1));
    let words: Vec<&str> = lines[0].split_whitespace().collect();
    match words[..] {
        [local, "ok", server, seen] => {
            let source = if seen == local { "client" } else { "node" };
            format!("{server} sees {source}")
        }
        ["-", error] => error.to_owned(),
        _ => panic!("{lines:?}"),
    }
}

/// Returns the lines in an order that does not depend on that of elements, which is nft's own.
fn in_order(text: &str) -> Vec<&str> {
    let bare = |line| -> &str {
        let line = str::trim(line).trim_start_matches("elements = { ");
        line.trim_end_matches([' ', ',', '}'])
    };
    let mut lines: Vec<&str> = text.lines().map(bare).collect();
    lines.sort_unstable();
    lines
}

#[test]
fn the_kernel_loads_nftables_mode_and_sends_packets_where_the_model_does() {
    let ip = |last: u8| Ipv4Addr::new(10, 96, 0, last);
    let targets = [
        (ip(10), 80),
        (ip(10), 81),
        (ip(11), 80),
        (ip(12), 80),
        (ip(13), 80),
        (ip(14), 80),
        (Ipv4Addr::new(203, 0, 113, 9), 80),
        (NEAR, 30080),
        (NEAR, 30082),
        (NEAR, 30084),
        (NEAR, 30999),
    ];
    for profile in [Profile::V1_30, Profile::CURRENT] {
        for range in ["10.244.0.0/16", "10.250.0.0/16"] {
            let lab = match Lab::try_new(Tool::Nft) {
                Ok(lab) => lab,
                Err(reason) => return skip("nftables mode in the kernel", &reason),
            };
            let rules = Nftables::of(&state(range, profile));
            lab.node("nft", &["-f", "-"], &rules.restore()).expect("the kernel accepts the rules");
            let ruleset = Arc::new(rules.into_ruleset().expect("accepted"));
            let listed = lab.node("nft", &["list", "ruleset"], "").unwrap();
            assert_eq!(in_order(&listed), in_order(&nft_list(&ruleset)), "{profile}");
            lab.node("ip", &["route", "add", "default", "via", "10.244.2.2"], "").expect("a route");
            for to in targets {
                assert_eq!(kernel(&lab, to), model(&ruleset, to), "{profile} {range} {to:?}");
            }
        }
    }
}
