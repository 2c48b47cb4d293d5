//! Published reports about IPVS mode: one node, packet by packet, with what a kube-proxy makes of
//! its virtual servers.

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use netfilter_model::host::Env;
use netfilter_model::ipvs::{self, RealServer, ServiceId, Sysctls};
use netfilter_model::netns::{Netns, Outcome};
use netfilter_model::packet::{Packet, TcpFlags};
use netfilter_model::rule::Ruleset;
use netfilter_model::time::SimTime;
use netfilter_model::tuple::{Family, Protocol, Tuple};
use serde_json::json;
use sim_core::config::Law;
use sim_core::ids::NodeId;
use sim_core::kube::manifest::Manifest;
use sim_core::net::plan::{AddressPlan, CNI0, ETH0};
use sim_core::proxy::ipvs::Ipvs;
use sim_core::proxy::ipvs::graceful::{CHECK_INTERVAL, Kernel};
use sim_core::proxy::profile::Profile;
use sim_core::proxy::state::Objects;

use crate::support::{cluster, secs};

const VIP: Ipv4Addr = Ipv4Addr::new(172, 20, 0, 9);
const CLIENT: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 9);
const A: Ipv4Addr = Ipv4Addr::new(10, 0, 1, 1);
const B: Ipv4Addr = Ipv4Addr::new(10, 0, 1, 2);
const C: Ipv4Addr = Ipv4Addr::new(10, 0, 1, 3);

/// What came of a client's packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Seen {
    /// It went to an endpoint.
    To(Ipv4Addr),
    /// It was dropped silently.
    Dropped,
    /// The client is told that nobody is there.
    Refused,
    /// It came to a socket of the node.
    Local,
}

/// A node with one virtual server at port 80 of [`VIP`], whose endpoints are on another node.
struct Node {
    plan: AddressPlan,
    rules: Ruleset,
    netns: Netns,
    kernel: Kernel,
    now: SimTime,
    checked: Duration,
    protocol: Protocol,
}

fn proxied(protocol: Protocol, endpoints: &[Ipv4Addr]) -> Ipvs {
    let protocol = if protocol == Protocol::UDP { "UDP" } else { "TCP" };
    let endpoints = endpoints.iter().map(|addr| json!({ "addresses": [addr], "nodeName": "n2" }));
    let items = json!({ "apiVersion": "v1", "kind": "List", "items": [
        { "apiVersion": "v1", "kind": "Node", "metadata": { "name": "n1" }, "status": {
            "addresses": [{ "type": "InternalIP", "address": "192.168.0.1" }],
        } },
        { "apiVersion": "kubeproxy.config.k8s.io/v1alpha1", "kind": "KubeProxyConfiguration",
          "mode": "ipvs", "clusterCIDR": "10.0.0.0/8" },
        { "apiVersion": "v1", "kind": "Service", "metadata": { "name": "a" },
          "spec": { "clusterIP": VIP, "ports": [{ "port": 80, "protocol": protocol }] } },
        { "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
          "metadata": { "name": "a-x", "labels": { "kubernetes.io/service-name": "a" } },
          "addressType": "IPv4",
          "ports": [{ "name": "", "port": 8080, "protocol": protocol }],
          "endpoints": endpoints.collect::<Vec<_>>() },
    ] });
    let mut objects = Objects::default();
    for manifest in Manifest::for_proxies(&items).expect("valid objects") {
        objects.add(manifest.object);
    }
    Ipvs::of(&objects.state("n1", Family::V4, Profile::V1_30)).expect("rules")
}

impl Node {
    fn new(protocol: Protocol, endpoints: &[Ipv4Addr], sysctls: Sysctls) -> Node {
        let made = proxied(protocol, endpoints);
        let config = cluster(2, 1, Law::Constant(Duration::ZERO));
        let mut netns = Netns::default();
        netns.memory_mut().sets = made.sets();
        netns.ipvs_mut(SimTime::ZERO).sysctls = sysctls;
        // A client would be told once a second at most.
        netns.limit_icmp_errors(false);
        let mut node = Node {
            plan: AddressPlan::new(&config.cluster).with_shared(vec![VIP]),
            rules: made.to_ruleset().expect("valid rules"),
            netns,
            kernel: Kernel::default(),
            now: SimTime::ZERO,
            checked: Duration::ZERO,
            protocol,
        };
        node.sync(endpoints);
        node
    }

    fn tcp(endpoints: &[Ipv4Addr]) -> Node {
        Node::new(Protocol::TCP, endpoints, Sysctls::kube_proxy())
    }

    /// The proxy hears of a change.
    fn sync(&mut self, endpoints: &[Ipv4Addr]) {
        let wanted = proxied(self.protocol, endpoints);
        let state = self.netns.ipvs_mut(self.now);
        let connections = |real: &RealServer| {
            let load = state.load(real);
            load.active + load.inactive
        };
        self.kernel.sync(&wanted.servers().services, &[], &connections);
        self.serve();
    }

    /// Puts what the kernel holds in place.
    fn serve(&mut self) {
        let services = self.kernel.services().to_vec();
        self.put(services);
    }

    fn put(&mut self, services: Vec<ipvs::Service>) {
        let servers = ipvs::Ipvs { services, ..ipvs::Ipvs::default() };
        self.rules = self.rules.clone().with_ipvs(servers);
    }

    /// Time passes, in which the proxy looks at real servers without weight as it is due.
    fn wait(&mut self, span: Duration) {
        let until = self.now + span;
        while self.checked + CHECK_INTERVAL <= Duration::from_nanos(until.as_nanos()) {
            self.checked += CHECK_INTERVAL;
            let at = SimTime::ZERO + self.checked;
            let state = self.netns.ipvs_mut(at);
            let connections = |real: &RealServer| {
                let load = state.load(real);
                load.active + load.inactive
            };
            self.kernel.check(&connections);
            self.serve();
        }
        self.now = until;
    }

    /// Returns how many connections an endpoint has in the kernel's table.
    fn connections(&mut self, endpoint: Ipv4Addr) -> u32 {
        let id = ServiceId::Address(self.protocol, VIP.into(), 80);
        let load = self.netns.ipvs_mut(self.now).load(&(id, endpoint.into(), 8080));
        load.active + load.inactive
    }

    /// Returns an endpoint's weight, if the kernel has it.
    fn weight(&self, endpoint: Ipv4Addr) -> Option<u32> {
        let mut to = self.kernel.services().iter().flat_map(|service| &service.destinations);
        to.find(|to| to.address == endpoint).map(|to| to.weight)
    }

    fn receive(&mut self, packet: Packet, by: netfilter_model::DeviceId) -> Outcome {
        let host = self.plan.host(NodeId::FIRST);
        let mut draws = |_| 0_u64;
        let mut env = Env { now: self.now, host: &host, rules: &self.rules, draws: &mut draws };
        self.netns.receive(packet, by, &mut env)
    }

    /// The client sends a segment.
    fn send(&mut self, port: u16, flags: TcpFlags) -> Seen {
        let tuple = Tuple::v4(Protocol::TCP, CLIENT, port, VIP, 80);
        self.request(Packet::tcp(1, tuple, flags))
    }

    /// The client sends a datagram.
    fn datagram(&mut self, port: u16) -> Seen {
        self.request(Packet::udp(1, Tuple::v4(Protocol::UDP, CLIENT, port, VIP, 80), 32))
    }

    fn request(&mut self, packet: Packet) -> Seen {
        match self.receive(packet, CNI0) {
            Outcome::Sent(out) => match out.packet.tuple.dst() {
                IpAddr::V4(to) => Seen::To(to),
                IpAddr::V6(to) => panic!("to {to}"),
            },
            Outcome::Dropped(_) => Seen::Dropped,
            Outcome::Rejected(_) => Seen::Refused,
            Outcome::Local(_) => Seen::Local,
        }
    }

    /// An endpoint sends a segment; returns whether it comes to the client as the Service's.
    fn answer(&mut self, from: Ipv4Addr, port: u16, flags: TcpFlags) -> bool {
        let tuple = Tuple::v4(Protocol::TCP, from, 8080, CLIENT, port);
        match self.receive(Packet::tcp(2, tuple, flags), ETH0) {
            Outcome::Sent(out) => out.packet.tuple.src() == VIP,
            _ => false,
        }
    }

    /// The client opens a connection; the endpoint that it was sent to answers.
    fn open(&mut self, port: u16) -> Seen {
        let seen = self.send(port, TcpFlags::SYN);
        if let Seen::To(endpoint) = seen {
            assert!(self.answer(endpoint, port, TcpFlags::SYN_ACK));
            assert_eq!(self.send(port, TcpFlags::ACK), seen);
        }
        seen
    }

    /// Both sides close a connection, the client first.
    fn close(&mut self, endpoint: Ipv4Addr, port: u16) {
        let end = TcpFlags::FIN | TcpFlags::ACK;
        assert_eq!(self.send(port, end), Seen::To(endpoint));
        assert!(self.answer(endpoint, port, end));
        assert_eq!(self.send(port, TcpFlags::ACK), Seen::To(endpoint));
    }
}

/// Case C56: every node's list begins at the same endpoint, so the first connections of all nodes
/// whose tables are new go to one.
#[test]
fn c56_all_nodes_begin_at_one_endpoint() {
    let fresh = Node::tcp(&[A, B, C]);
    let mut got = [0_u32; 3];
    for _ in 0..1000 {
        let mut netns = Netns::default();
        netns.memory_mut().sets = fresh.netns.memory().sets.clone();
        netns.ipvs_mut(SimTime::ZERO).sysctls = Sysctls::kube_proxy();
        let mut node = Node {
            plan: fresh.plan.clone(),
            rules: fresh.rules.clone(),
            netns,
            kernel: Kernel::default(),
            now: SimTime::ZERO,
            checked: Duration::ZERO,
            protocol: Protocol::TCP,
        };
        let seen = node.send(40_000, TcpFlags::SYN);
        let at = [A, B, C].iter().position(|endpoint| seen == Seen::To(*endpoint));
        got[at.expect("an endpoint")] += 1;
    }
    // The newest is the head of the kernel's list, and kube-proxy adds them in order.
    assert_eq!(got, [0, 0, 1000]);
}

/// Case C57: nothing moves persistent flows back to an endpoint that was out for a minute.
#[test]
fn c57_persistent_flows_stay_where_a_restart_has_left_them() {
    let mut node = Node::tcp(&[A, B, C]);
    let mut at: Vec<(u16, Ipv4Addr)> = Vec::new();
    for port in 40_000..40_027 {
        let Seen::To(endpoint) = node.open(port) else { panic!("no endpoint") };
        at.push((port, endpoint));
    }
    let spread = |at: &[(u16, Ipv4Addr)]| {
        [A, B, C].map(|endpoint| at.iter().filter(|(_, to)| *to == endpoint).count())
    };
    assert_eq!(spread(&at), [9, 9, 9]);
    // B resets its connections as it goes down; its clients connect anew, from new ports.
    node.sync(&[A, C]);
    let of_b = at.iter_mut().filter(|(_, endpoint)| *endpoint == B);
    for (next, (port, endpoint)) in (41_000..).zip(of_b) {
        assert!(node.answer(B, *port, TcpFlags::RST));
        let Seen::To(other) = node.open(next) else { panic!("no endpoint") };
        (*port, *endpoint) = (next, other);
    }
    node.wait(secs(60.0));
    node.sync(&[A, B, C]);
    let mut left = spread(&at);
    left.sort_unstable();
    assert_eq!(left, [0, 13, 14]);
    // 16 hours of a packet each ten minutes, within the kernel's 15.
    for _ in 0..16 * 6 {
        node.wait(secs(600.0));
        for (port, endpoint) in &at {
            assert_eq!(node.send(*port, TcpFlags::ACK), Seen::To(*endpoint));
        }
    }
    assert_eq!(node.connections(B), 0);
    // A client that comes after that does find it.
    let to_b = (0..3).filter(|n| node.open(42_000 + n) == Seen::To(B)).count();
    assert_eq!(to_b, 1);
}

/// One client opens short connections at an even pace, from `ports` ports in turn. Endpoint A dies
/// after two rounds of its ports and is replaced by C at once; returns how many of the connections
/// opened after that went to A, and the latest of them, in seconds after its death.
fn reuse(ports: u16, rate_per_s: f64, sysctls: Sysctls) -> (u32, f64) {
    let mut node = Node::new(Protocol::TCP, &[A, B], sysctls);
    let gap = secs(1.0 / rate_per_s);
    let death = 2 * u32::from(ports);
    let (mut dead, mut last) = (0, 0.0);
    for number in 0..4 * u32::from(ports) {
        if number == death {
            node.sync(&[B, C]);
        }
        let port = 30_000 + (number % u32::from(ports)) as u16;
        match node.send(port, TcpFlags::SYN) {
            Seen::To(A) if number >= death => {
                dead += 1;
                last = f64::from(number - death) / rate_per_s;
            }
            Seen::To(endpoint) => {
                assert!(node.answer(endpoint, port, TcpFlags::SYN_ACK));
                assert_eq!(node.send(port, TcpFlags::ACK), Seen::To(endpoint));
                node.close(endpoint, port);
            }
            other => panic!("connection {number}: {other:?}"),
        }
        node.wait(gap);
    }
    (dead, last)
}

/// Case C60: a port comes again after 28,000 ports / 250 per second = 112 s, within the 120 s for
/// which IPVS remembers a closed connection. Here with 280 ports at 2.5 per second, which is the
/// same interval.
#[test]
fn c60_ports_that_come_again_find_the_pod_that_was_replaced() {
    // As kube-proxy left it on kernels up to 5.8, and before they looked at weights.
    let off = Sysctls { conn_reuse_mode: 0, expire_nodest_conn: false, ..Sysctls::kube_proxy() };
    // A had every other connection of the last round; its table holds them, so that a graceful
    // removal waits, and each port finds its old entry once.
    let (dead, last) = reuse(280, 2.5, off);
    assert_eq!(dead, 140);
    assert!((110.0..=112.0).contains(&last), "{last}");
    // From 233 per second down (2.33 here), entries have ended by the time.
    assert_eq!(reuse(280, 2.33, off), (0, 0.0));
    // What kube-proxy sets now, on a kernel that looks at the weight whatever the mode.
    let now = Sysctls { conn_reuse_mode: 0, ..Sysctls::kube_proxy() };
    assert_eq!(reuse(280, 2.5, now), (0, 0.0));
    assert_eq!(reuse(280, 2.5, Sysctls::kube_proxy()), (0, 0.0));
}

/// Case C61: with `conn_reuse_mode` 1, kernels before 5.9 drop the first SYN from a port that comes
/// again, and so it takes a second; a fresh port, and any port on a later kernel, does not.
#[test]
fn c61_a_reused_port_costs_a_retransmission_on_old_kernels() {
    // Returns how long each of two connections from one port takes until its SYN gets through.
    let waits = |drops_reused_syn: bool| {
        let sysctls = Sysctls { drops_reused_syn, ..Sysctls::kube_proxy() };
        let mut node = Node::new(Protocol::TCP, &[A, B], sysctls);
        let mut connect = |port: u16| {
            let begun = node.now;
            // Linux sends a SYN again after a second.
            let endpoint = loop {
                match node.send(port, TcpFlags::SYN) {
                    Seen::To(endpoint) => break endpoint,
                    seen => assert_eq!(seen, Seen::Dropped),
                }
                assert!(node.now - begun < secs(5.0), "it never gets through");
                node.wait(secs(1.0));
            };
            let took = node.now - begun;
            assert!(node.answer(endpoint, port, TcpFlags::SYN_ACK));
            assert_eq!(node.send(port, TcpFlags::ACK), Seen::To(endpoint));
            node.close(endpoint, port);
            node.wait(secs(60.0));
            took
        };
        [connect(40_000), connect(40_000), connect(40_001)]
    };
    let none = Duration::ZERO;
    assert_eq!(waits(true), [none, secs(1.0), none]);
    assert_eq!(waits(false), [none; 3]);
}

/// Case C62: an endpoint that was out while the proxy stopped and is back when it starts. A proxy
/// that leaves weights as it finds them leaves it at 0: alone it makes the Service dead, of three
/// it gets no share. A first sync that sets weights, as kube-proxy's does now, heals both.
#[test]
fn c62_a_flap_while_the_proxy_was_down_leaves_weight_zero() {
    for all in [&[A][..], &[A, B, C]] {
        let mut node = Node::tcp(all);
        // Each endpoint has a connection that stays.
        for (number, _) in (40_000..).zip(all) {
            assert_ne!(node.open(number), Seen::Refused);
        }
        let others: Vec<Ipv4Addr> = all.iter().copied().filter(|addr| *addr != A).collect();
        node.sync(&others);
        assert_eq!(node.weight(A), Some(0));
        // The proxy starts anew, and leaves real servers that are wanted and there alone.
        let shares = |node: &mut Node, from: u16| {
            let seen: Vec<Seen> = (0..30).map(|n| node.open(from + n)).collect();
            let count = |what: Seen| seen.iter().filter(|seen| **seen == what).count();
            (count(Seen::To(A)), count(Seen::Refused))
        };
        let lost = if all.len() == 1 { 30 } else { 0 };
        assert_eq!(shares(&mut node, 41_000), (0, lost));
        node.kernel.restart();
        node.sync(all);
        assert_eq!(node.weight(A), Some(1));
        assert_eq!(shares(&mut node, 42_000), (30 / all.len(), 0));
    }
}

/// Case C63: one-way datagrams keep a real server's connection for 300 s more each; a proxy that
/// waits for its end waits for ever. kube-proxy deletes real servers of UDP at once, and the next
/// datagram goes elsewhere.
#[test]
fn c63_one_way_datagrams_keep_a_quiesced_server_for_ever() {
    let mut node = Node::new(Protocol::UDP, &[A], Sysctls::kube_proxy());
    assert_eq!(node.datagram(5000), Seen::To(A));
    // As of kube-proxy before it told UDP apart: weight 0, and wait.
    let mut services = node.kernel.services().to_vec();
    services[0].destinations[0].weight = 0;
    node.put(services);
    let hour = 3600 / 10;
    for _ in 0..hour {
        node.now = node.now + secs(10.0);
        assert_eq!(node.datagram(5000), Seen::To(A));
        assert_eq!(node.connections(A), 1);
    }
    node.now = node.now + secs(299.0);
    assert_eq!(node.connections(A), 1);
    node.now = node.now + secs(1.0);
    assert_eq!(node.connections(A), 0, "the timer of UDP");
    // As it is now.
    let mut node = Node::new(Protocol::UDP, &[A, B], Sysctls::kube_proxy());
    let Seen::To(first) = node.datagram(5000) else { panic!("no endpoint") };
    let other = if first == A { B } else { A };
    node.sync(&[other]);
    assert_eq!(node.weight(first), None);
    let after: Vec<Seen> = (0..3).map(|_| node.datagram(5000)).collect();
    assert_eq!(after[1..], [Seen::To(other); 2], "{after:?}");
}

/// Case C64: a long connection whose endpoint is taken out, 60 s before the application ends.
#[test]
fn c64_connections_are_cut_at_once_without_grace() {
    let mut node = Node::tcp(&[A]);
    assert_eq!(node.open(40_000), Seen::To(A));
    node.sync(&[B]);
    assert_eq!(node.weight(A), Some(0));
    for _ in 0..60 {
        node.wait(secs(1.0));
        assert_eq!(node.send(40_000, TcpFlags::ACK), Seen::To(A), "with grace it goes on");
        assert!(node.answer(A, 40_000, TcpFlags::ACK));
    }
    assert_eq!(node.open(40_001), Seen::To(B), "new ones do not");
    node.close(A, 40_000);
    // Two minutes of TIME_WAIT, and up to one until the proxy looks.
    node.wait(secs(119.0));
    assert_eq!(node.weight(A), Some(0));
    node.wait(secs(61.0));
    assert_eq!(node.weight(A), None);

    // Without: the real server is deleted with the endpoint.
    let mut node = Node::tcp(&[A, B]);
    let Seen::To(endpoint) = node.open(40_000) else { panic!("no endpoint") };
    let mut services = node.kernel.services().to_vec();
    services[0].destinations.retain(|to| to.address != endpoint);
    node.put(services);
    assert_eq!(node.send(40_000, TcpFlags::ACK), Seen::Dropped);
    assert_eq!(node.send(40_000, TcpFlags::ACK), Seen::Local, "none's: the node resets it");

    // A Service that is deleted takes its connections along, grace or not.
    let mut node = Node::tcp(&[A]);
    assert_eq!(node.open(40_000), Seen::To(A));
    node.put(Vec::new());
    assert_ne!(node.send(40_000, TcpFlags::ACK), Seen::To(A));
}
