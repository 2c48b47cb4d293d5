//! What is right for modes that are more than rules: a Service with every kind of address on two
//! nodes, `n1` being asked about.

use serde_json::{Value, json};

use super::*;
use crate::kube::manifest::Manifest;

const MODES: [Mode; 3] = [Mode::Ipvs, Mode::Ebpf, Mode::Userspace];

/// Returns the matrix of a Service with these endpoints, each with its node, under a policy for
/// traffic from outside.
fn ask(policy: &str, endpoints: &[(&str, &str)]) -> Matrix {
    let node = |name: &str, range: &str, address: &str| {
        json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": name },
                "spec": { "podCIDR": range },
                "status": { "addresses": [{ "type": "InternalIP", "address": address }] } })
    };
    let endpoints = endpoints
        .iter()
        .map(|(address, node)| json!({ "addresses": [address], "nodeName": node }))
        .collect::<Vec<Value>>();
    let value = json!({ "apiVersion": "v1", "kind": "List", "items": [
        { "apiVersion": "kubeproxy.config.k8s.io/v1alpha1", "kind": "KubeProxyConfiguration",
          "clusterCIDR": "10.5.0.0/16" },
        node("n1", "10.5.1.0/24", "192.0.2.1"),
        node("n2", "10.5.2.0/24", "192.0.2.2"),
        { "apiVersion": "v1", "kind": "Service", "metadata": { "name": "s" },
          "spec": { "type": "LoadBalancer", "clusterIP": "10.6.0.1",
                    "externalTrafficPolicy": policy, "externalIPs": ["203.0.113.7"],
                    "ports": [{ "port": 80, "nodePort": 30080 }] },
          "status": { "loadBalancer": { "ingress": [{ "ip": "203.0.113.5" }] } } },
        { "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
          "metadata": { "name": "s-1", "labels": { "kubernetes.io/service-name": "s" } },
          "addressType": "IPv4", "ports": [{ "name": "", "port": 8080 }],
          "endpoints": endpoints },
    ] });
    let mut objects = Objects::default();
    for manifest in Manifest::for_proxies(&value).expect("valid objects") {
        objects.add(manifest.object);
    }
    let question = Question {
        family: Family::V4,
        profile: Profile::V1_30,
        modes: MODES.to_vec(),
        node: Some("n1".to_owned()),
        services: Vec::new(),
        external: None,
    };
    Matrix::of(&objects, &question).expect("answers")
}

const HERE: (&str, &str) = ("10.5.1.9", "n1");
const THERE: (&str, &str) = ("10.5.2.9", "n2");
const THIRD: (&str, &str) = ("10.5.2.10", "n2");

fn cell(matrix: &Matrix, mode: Mode, client: Client, target: Target) -> &Cell {
    let [part] = &matrix.ports[..] else { panic!("one port") };
    let is = |cell: &&Cell| (cell.mode, cell.client, cell.target) == (mode, client, target);
    part.cells.iter().find(is).expect("a cell")
}

/// Returns a cell as `verdict endpoint source`, its ends in order.
fn ends(matrix: &Matrix, mode: Mode, client: Client, target: Target) -> Vec<String> {
    let end = |outcome: &Outcome| {
        let endpoint = outcome.endpoint.map(|(addr, _)| addr.to_string());
        let source = outcome.source.map(|source| source.of.name().to_owned());
        let verdict = Some(outcome.verdict.name().to_owned());
        let parts = [verdict, endpoint, source].into_iter().flatten();
        parts.collect::<Vec<String>>().join(" ")
    };
    let mut ends: Vec<String> =
        cell(matrix, mode, client, target).outcomes.iter().map(end).collect();
    ends.sort_unstable();
    ends
}

#[track_caller]
fn check(matrix: &Matrix, client: Client, target: Target, expected: [&[&str]; 3]) {
    for (mode, expected) in MODES.into_iter().zip(expected) {
        assert_eq!(ends(matrix, mode, client, target), expected, "{mode} {client:?} {target:?}");
    }
}

/// Each of three is a third: in turn where nothing is drawn, else of 2³² numbers, of which one
/// residue has one more than the others.
#[test]
fn shares_are_turns_or_draws() {
    let matrix = ask("Cluster", &[HERE, THERE, THIRD]);
    let shares = |mode| {
        let cell = cell(&matrix, mode, Client::Pod, Target::ClusterIp);
        let mut shares: Vec<String> =
            cell.outcomes.iter().map(|outcome| outcome.share.to_string()).collect();
        shares.sort_unstable();
        (shares.join(" "), cell.outcomes.iter().all(|outcome| outcome.share.is_in_turn()))
    };
    assert_eq!(shares(Mode::Ipvs), ("1/3 1/3 1/3".to_owned(), true));
    assert_eq!(shares(Mode::Userspace), ("1/3 1/3 1/3".to_owned(), true));
    let drawn = "1431655765/4294967296 1431655765/4294967296 715827883/2147483648";
    assert_eq!(shares(Mode::Ebpf), (drawn.to_owned(), false));
}

/// Who sees whom: IPVS keeps Pods' addresses as rules do, sockets are translated before there is a
/// packet, and a process dials by itself.
#[test]
fn sources_by_mode() {
    let matrix = ask("Cluster", &[HERE, THERE]);
    let kept: &[&str] = &["ok 10.5.1.9 own", "ok 10.5.2.9 own"];
    let node: &[&str] = &["ok 10.5.1.9 node", "ok 10.5.2.9 node"];
    check(&matrix, Client::Pod, Target::ClusterIp, [kept, kept, node]);
    let other: &[&str] = &["ok 10.5.1.9 other-node", "ok 10.5.2.9 other-node"];
    check(&matrix, Client::OtherPod, Target::ClusterIp, [kept, kept, other]);
    // What comes from outside is masqueraded, but by the programs only where it goes on.
    let half: &[&str] = &["ok 10.5.1.9 own", "ok 10.5.2.9 node"];
    for target in [Target::NodePort, Target::LoadBalancer] {
        check(&matrix, Client::External, target, [node, half, node]);
    }
}

/// Case C70: a Pod that reaches itself by its Service is seen as the bridge's address where
/// packets are translated, and as itself where sockets are.
#[test]
fn c70_a_pod_reaches_itself() {
    let matrix = ask("Cluster", &[HERE]);
    let node: &[&str] = &["ok 10.5.1.9 node"];
    check(&matrix, Client::Itself, Target::ClusterIp, [node, &["ok 10.5.1.9 own"], node]);
}

/// Case C65: policy Local, no endpoint on the node. IPVS sends what comes from outside on to
/// another node all the same, with its source, so that the answer comes from an address that was
/// not asked; the node's Pods are served. Programs drop it and say so, a process knows no policy.
#[test]
fn c65_policy_local_without_a_local_endpoint() {
    let matrix = ask("Local", &[THERE]);
    for target in [Target::LoadBalancer, Target::NodePort] {
        let astray: &[&str] = &["timeout 10.5.2.9 own"];
        check(&matrix, Client::External, target, [astray, &["refused"], &["ok 10.5.2.9 node"]]);
    }
    let served: &[&str] = &["ok 10.5.2.9 own"];
    check(&matrix, Client::Pod, Target::LoadBalancer, [served, served, &["ok 10.5.2.9 node"]]);
}

/// Cases C66, C77 and C78: a port that the Service does not have, and an echo request. IPVS has
/// the address on the node and rejects what is none of its Services'; else the packet goes where
/// routes lead, and nobody has the address.
#[test]
fn c66_c77_c78_wrong_ports_and_pings() {
    let matrix = ask("Cluster", &[HERE]);
    for client in [Client::Pod, Client::OtherPod, Client::Node] {
        for target in [Target::WrongPort, Target::Ping] {
            check(&matrix, client, target, [&["refused"], &["timeout"], &["timeout"]]);
        }
    }
}

/// Case C67: no endpoints. A virtual server without real ones refuses whoever asks; sockets cannot
/// connect, and packets from outside are refused; a process accepts and closes.
#[test]
fn c67_no_endpoints() {
    let matrix = ask("Cluster", &[]);
    let pods: [&[&str]; 3] = [&["refused"], &["host_unreachable"], &["reset"]];
    for client in [Client::Pod, Client::OtherPod, Client::Node] {
        check(&matrix, client, Target::ClusterIp, pods);
    }
    let outside: [&[&str]; 3] = [&["refused"], &["refused"], &["reset"]];
    check(&matrix, Client::External, Target::NodePort, outside);
}

/// Case C74: a node port at the loopback address. IPVS has no virtual server there; sockets are
/// translated before the address plays a part, and a process is on the node.
#[test]
fn c74_node_ports_at_localhost() {
    let matrix = ask("Cluster", &[HERE]);
    let expected: [&[&str]; 3] = [&["refused"], &["ok 10.5.1.9 node"], &["ok 10.5.1.9 node"]];
    check(&matrix, Client::Node, Target::Localhost, expected);
}

/// Sockets do not take an address that is none of the cluster's for a Service's, lest a Service
/// take others' traffic; packets that come in for it do.
#[test]
fn external_ips_of_programs_are_for_packets_from_outside() {
    let matrix = ask("Cluster", &[HERE]);
    let of = |client| ends(&matrix, Mode::Ebpf, client, Target::ExternalIp);
    assert_eq!(of(Client::Pod), ["timeout"]);
    assert_eq!(of(Client::External), ["ok 10.5.1.9 own"]);
}
