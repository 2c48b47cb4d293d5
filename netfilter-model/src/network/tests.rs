use std::net::{IpAddr, Ipv4Addr};

use super::*;
use crate::conntrack::Direction;
use crate::packet::TcpFlags;
use crate::prefix::Prefix;
use crate::rule::{Nat, NatRange, Policy, Ruleset, Target};
use crate::testing::{dnat, host, masquerade, rule};
use crate::tuple::{Protocol, Tuple};

const N1: &str = "172.18.0.11";
const A1: Ipv4Addr = Ipv4Addr::new(10, 244, 1, 2);
const A2: Ipv4Addr = Ipv4Addr::new(10, 244, 1, 3);
const B1: Ipv4Addr = Ipv4Addr::new(10, 244, 2, 2);
const VIP: Ipv4Addr = Ipv4Addr::new(10, 96, 0, 10);

fn addr(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn machine(name: &str, address: &str) -> Machine {
    Machine { name: name.to_owned(), addresses: vec![addr(address)], ..Machine::default() }
}

fn node(name: &str, address: &str, pods: &[(&str, Ipv4Addr)]) -> Machine {
    let subnet = Prefix::new(pods[0].1.into(), 24);
    let IpAddr::V4(net) = subnet.address() else { panic!() };
    let bridge = Ipv4Addr::from_bits(net.to_bits() + 1);
    let pods = pods.iter().map(|(name, address)| machine(name, &address.to_string())).collect();
    let network =
        PodNetwork { subnets: vec![(subnet, bridge.into())], pods, ..PodNetwork::default() };
    Machine { node: Some(network), ..machine(name, address) }
}

/// Two nodes with Pods, and a machine outside.
struct Bench {
    network: Network,
    ids: BTreeMap<String, NodeId>,
    flows: u64,
}

impl Bench {
    fn new(change: impl FnOnce(&mut Topology)) -> Bench {
        let machines = vec![
            node("n1", N1, &[("a1", A1), ("a2", A2)]),
            node("n2", "172.18.0.12", &[("b1", B1)]),
            machine("ext", "172.18.0.100"),
        ];
        let mut topology = Topology { machines, fabric_len: (16, 64) };
        change(&mut topology);
        let Built { network, ids } = topology.build(1).unwrap();
        let mut bench = Bench { network, ids, flows: 0 };
        for id in bench.ids.values().copied().collect::<Vec<_>>() {
            for (protocol, port) in [(Protocol::TCP, 8080), (Protocol::UDP, 53)] {
                let listener = Listener { protocol, port, address: None, answers: true };
                bench.network.listen(id, listener);
            }
        }
        bench
    }

    fn id(&self, name: &str) -> NodeId {
        self.ids[name]
    }

    fn rules(&mut self, name: &str, build: impl FnOnce(&mut RulesetBuilder)) {
        let mut rules = RulesetBuilder::new();
        build(&mut rules);
        let ipv4: Ruleset = rules.build().unwrap();
        let id = self.id(name);
        self.network.set_rules(id, NodeRules { ipv4, ..NodeRules::default() }, &[]);
    }

    /// DNAT of a ClusterIP on n1, as kube-proxy would, and a masquerade of what is for `masked`.
    fn service(&mut self, backend: Ipv4Addr, masked: &[Ipv4Addr]) {
        self.rules("n1", |rules| {
            for hook in [Hook::Prerouting, Hook::Output] {
                let chain = rules.builtin(Table::Nat, hook);
                let to = rule().destination(host(VIP)).dport(Protocol::TCP, 80);
                rules.append(Table::Nat, chain, to.then(dnat(backend, 8080)));
                let to = rule().destination(host(VIP)).dport(Protocol::UDP, 53);
                rules.append(Table::Nat, chain, to.then(dnat(backend, 53)));
            }
            let chain = rules.builtin(Table::Nat, Hook::Postrouting);
            for source in masked {
                let from = rule().source(host(*source)).destination(host(backend));
                rules.append(Table::Nat, chain, from.then(masquerade()));
            }
        });
    }

    /// Connects, writes a line and returns what came of it.
    fn connect(&mut self, from: &str, dst: IpAddr, port: u16) -> Result<String, String> {
        self.flows += 1;
        let (id, sport) = (self.flows, 40_000 + self.flows as u16);
        let from = self.id(from);
        let socket = self.network.connect(from, (None, sport), (dst, port), id, 0);
        let socket = socket.map_err(|error| error.name().to_owned())?;
        self.network.write(socket, id);
        let tcp = *self.network.tcp(socket).unwrap();
        self.network.close(socket, Close::Fin);
        match (tcp.received, tcp.error) {
            (Some(id), _) => {
                let by = Network::answered_by(id).unwrap();
                Ok(self.network.node(by).name.to_string())
            }
            (None, Some(error)) => Err(format!("{error:?}")),
            (None, None) => Err("silence".to_owned()),
        }
    }

    /// Returns the SYNs that arrived at a host: source address, hops left.
    fn syns(&mut self, at: &str) -> Vec<(IpAddr, u8)> {
        let at = self.id(at);
        let sights = self.network.take_sights();
        let syns = sights.iter().filter_map(|sight| match sight {
            Sight::Arrival { node, packet, .. }
                if *node == at && packet.tcp_flags() == Some(TcpFlags::SYN) =>
            {
                Some((packet.tuple.src(), packet.ttl))
            }
            _ => None,
        });
        syns.collect()
    }

    fn entries(&self, name: &str) -> usize {
        let netns = &self.network.node(self.id(name)).netns;
        netns.conntrack().entries(self.network.now()).count()
    }

    fn call_iptables(&mut self, call: bool) {
        let id = self.id("n1");
        self.network.node_mut(id).host.sysctls.bridge_nf_call_iptables = call;
    }
}

fn hairpin(topology: &mut Topology) {
    topology.machines[0].node.as_mut().unwrap().hairpin = true;
}

#[test]
fn without_rules_everybody_reaches_everybody() {
    let mut bench = Bench::new(|_| {});
    for (from, dst, by) in [
        ("a1", A2.into(), "a2"),
        ("a1", B1.into(), "b1"),
        ("ext", A1.into(), "a1"),
        ("n1", B1.into(), "b1"),
        ("n1", addr("127.0.0.1"), "n1"),
        ("a1", addr(N1), "n1"),
        ("a1", A1.into(), "a1"),
        ("a1", addr("127.0.0.1"), "a1"),
    ] {
        assert_eq!(bench.connect(from, dst, 8080), Ok(by.to_owned()), "{from} to {dst}");
    }
    assert_eq!(bench.connect("a1", B1.into(), 81), Err("Refused".to_owned()));
    assert_eq!(bench.connect("n1", addr("10.9.9.9"), 81), Err("ENETUNREACH".to_owned()));
    let told = bench.connect("a1", addr("10.9.9.9"), 81).unwrap_err();
    assert!(told.contains("NetUnreachable") && told.contains("10.244.1.1"), "{told}");
}

#[test]
fn a_service_on_the_clients_own_bridge() {
    // With bridge-nf the frame stays on the bridge and the answer is translated back.
    let mut bench = Bench::new(|_| {});
    bench.service(A2, &[]);
    assert_eq!(bench.connect("a1", VIP.into(), 80), Ok("a2".to_owned()));
    assert_eq!(bench.syns("a2"), [(A1.into(), 64)]);
    // Without it the request is routed, and the answer comes from the wrong address.
    bench.call_iptables(false);
    assert_eq!(bench.connect("a1", VIP.into(), 80), Err("silence".to_owned()));
    assert_eq!(bench.syns("a2"), [(A1.into(), 63)]);
    let id = bench.id("n1");
    let conntrack = bench.network.node(id).netns.conntrack();
    let entry = conntrack.entries(bench.network.now()).last().unwrap();
    assert_eq!(entry.tcp_state(), Some(crate::conntrack::TcpState::SynSent));
    assert_eq!(entry.tuple(Direction::Reply).src(), IpAddr::from(A2));
    // What is masqueraded comes back through the node.
    bench.service(A2, &[A1]);
    assert_eq!(bench.connect("a1", VIP.into(), 80), Ok("a2".to_owned()));
    // Another node's endpoint is no matter of bridges.
    bench.service(B1, &[]);
    assert_eq!(bench.connect("a1", VIP.into(), 80), Ok("b1".to_owned()));
}

#[test]
fn hairpin_table() {
    // masquerade, call-iptables, hairpin mode of the port: what arrives, and whether it works.
    for (masked, call, mode, arrives, works) in [
        (false, true, false, None, false),
        (false, true, true, Some(A1), false),
        (false, false, false, Some(A1), false),
        (false, false, true, Some(A1), false),
        (true, true, false, None, false),
        (true, true, true, Some(Ipv4Addr::new(10, 244, 1, 1)), true),
        (true, false, false, Some(Ipv4Addr::new(10, 244, 1, 1)), true),
        (true, false, true, Some(Ipv4Addr::new(10, 244, 1, 1)), true),
    ] {
        let case = format!("masquerade {masked}, call {call}, hairpin {mode}");
        let mut bench = Bench::new(|topology| {
            if mode {
                hairpin(topology)
            }
        });
        bench.call_iptables(call);
        bench.service(A1, if masked { &[A1] } else { &[] });
        let got = bench.connect("a1", VIP.into(), 80);
        assert_eq!(got.is_ok(), works, "{case}: {got:?}");
        let sources: Vec<_> = bench.syns("a1").into_iter().map(|(src, _)| src).collect();
        let expected: Vec<IpAddr> = arrives.into_iter().map(IpAddr::from).collect();
        assert_eq!(sources, expected, "{case}");
        if arrives.is_none() {
            assert_eq!(bench.entries("n1"), 0, "{case}: never confirmed");
        }
    }
}

#[test]
fn forward_and_physdev_in_the_bridge() {
    let mut bench = Bench::new(|_| {});
    bench.rules("n1", |rules| rules.policy(Table::Filter, Hook::Forward, Policy::Drop));
    assert_eq!(bench.connect("a1", A2.into(), 8080), Err("silence".to_owned()));
    bench.call_iptables(false);
    assert_eq!(bench.connect("a1", A2.into(), 8080), Ok("a2".to_owned()));
}

fn localhost_service(bench: &mut Bench, masquerade_all: bool) {
    bench.rules("n1", |rules| {
        let output = rules.builtin(Table::Nat, Hook::Output);
        let port = rule().dport(Protocol::TCP, 30080).then(dnat(B1, 8080));
        rules.append(Table::Nat, output, port);
        if masquerade_all {
            let chain = rules.builtin(Table::Nat, Hook::Postrouting);
            rules.append(Table::Nat, chain, rule().destination(host(B1)).then(masquerade()));
        }
    });
}

#[test]
fn a_node_port_on_the_loopback_address() {
    // route_localnet, masquerade: what arrives, whether it works, how many entries are left.
    for (localnet, masked, arrives, works, entries) in [
        (false, false, 0, false, 0),
        (false, true, 0, false, 0),
        (true, false, 1, false, 1),
        (true, true, 1, true, 1),
    ] {
        let mut bench = Bench::new(|_| {});
        localhost_service(&mut bench, masked);
        let id = bench.id("n1");
        bench.network.node_mut(id).host.sysctls.all.route_localnet = localnet;
        let got = bench.connect("n1", addr("127.0.0.1"), 30080);
        let case = format!("route_localnet {localnet}, masquerade {masked}");
        assert_eq!(got.is_ok(), works, "{case}: {got:?}");
        // The packet from 127.0.0.1 reaches the other node, which refuses it.
        let forwarded = bench.syns(if masked { "b1" } else { "n2" }).len();
        assert_eq!(forwarded, arrives, "{case}");
        assert_eq!(bench.entries("n1"), entries, "{case}");
    }
}

#[test]
fn dnat_to_the_loopback_address() {
    for localnet in [false, true] {
        let mut bench = Bench::new(|_| {});
        bench.rules("n1", |rules| {
            let chain = rules.builtin(Table::Nat, Hook::Prerouting);
            let port = rule().dport(Protocol::TCP, 30080);
            let target = Target::Nat(Nat::Dnat(NatRange::to([127, 0, 0, 1].into(), 8080)));
            rules.append(Table::Nat, chain, port.then(target));
        });
        let id = bench.id("n1");
        let host = &mut bench.network.node_mut(id).host;
        host.device_mut(HostConfig::ETH0).unwrap().sysctls.route_localnet = localnet;
        let got = bench.connect("ext", addr(N1), 30080);
        assert_eq!(got.is_ok(), localnet, "{got:?}");
    }
}

#[test]
fn reverse_path_filter() {
    // A packet from a Pod's address that comes in by the fabric.
    for (all, own, src, arrives) in [
        (0, 0, A2.into(), true),
        (1, 0, A2.into(), false),
        (0, 1, A2.into(), false),
        (2, 1, A2.into(), true),
        (2, 0, addr("203.0.113.5"), false),
        (0, 0, addr("203.0.113.5"), true),
        (1, 0, addr("172.18.0.100"), true),
        (0, 0, addr(N1), false),
        (0, 0, addr("127.0.0.1"), false),
        (0, 0, addr("224.0.0.1"), false),
    ] {
        let mut bench = Bench::new(|_| {});
        let id = bench.id("n1");
        let node = &mut bench.network.node_mut(id).host;
        node.sysctls.all.rp_filter = all;
        node.device_mut(HostConfig::ETH0).unwrap().sysctls.rp_filter = own;
        let ext = bench.id("ext");
        bench.network.node_mut(ext).host.sysctls.all.route_localnet = true;
        let tuple = Tuple::try_new(Protocol::UDP, src, 1, A1.into(), 9).unwrap();
        bench.network.send_packet(ext, Packet::udp(7, tuple, 40)).unwrap();
        let a1 = bench.id("a1");
        let seen = bench.network.take_sights().iter().any(
            |sight| matches!(sight, Sight::Arrival { node, packet, .. } if *node == a1 && packet.id == 7),
        );
        assert_eq!(seen, arrives, "all {all}, own {own}, from {src}");
    }
}

#[test]
fn kinds_of_addresses() {
    use crate::rule::AddrType;
    let bench = Bench::new(|topology| {
        topology.machines[0].also = vec![addr("10.96.0.99")];
        topology.machines[0].routes =
            vec!["blackhole 10.7.0.0/16".to_owned(), "local 10.8.0.0/16 dev lo".to_owned()];
    });
    let node = &bench.network.node(bench.id("n1")).host;
    for (address, kind) in [
        (N1, AddrType::Local),
        ("10.244.1.1", AddrType::Local),
        ("10.96.0.99", AddrType::Local),
        ("127.9.9.9", AddrType::Local),
        ("10.8.1.1", AddrType::Local),
        ("172.18.255.255", AddrType::Broadcast),
        ("255.255.255.255", AddrType::Broadcast),
        ("0.0.0.0", AddrType::Broadcast),
        ("172.18.0.0", AddrType::Unicast),
        ("10.7.0.1", AddrType::Unicast),
        ("240.0.0.1", AddrType::Unicast),
        ("203.0.113.1", AddrType::Unicast),
        ("239.1.1.1", AddrType::Multicast),
    ] {
        assert_eq!(node.addr_type(addr(address), None), kind, "{address}");
    }
    let eth0 = Some(HostConfig::ETH0);
    assert_eq!(node.addr_type(addr(N1), eth0), AddrType::Local);
    assert_eq!(node.addr_type(addr("10.244.1.1"), eth0), AddrType::Unicast);
}

#[test]
fn fragments_pass_one_by_one_without_conntrack_and_together_with_it() {
    for (tracked, keep, arrive) in [(false, 3, 3), (false, 2, 2), (true, 3, 3), (true, 2, 0)] {
        let mut bench = Bench::new(|_| {});
        bench.rules("n1", |rules| {
            let forward = rules.builtin(Table::Filter, Hook::Forward);
            if tracked {
                let state = rule().ctstate(crate::rule::CtStates::NEW).then(Target::Accept);
                rules.append(Table::Filter, forward, state);
            }
            rules.policy(
                Table::Filter,
                Hook::Forward,
                if tracked { Policy::Drop } else { Policy::Accept },
            );
        });
        let tuple = Tuple::v4(Protocol::UDP, A1, 1000, Ipv4Addr::new(172, 18, 0, 100), 9);
        let packet = Packet::udp(5, tuple, 20 + 208);
        let a1 = bench.id("a1");
        for piece in packet.cut(80).take(keep) {
            bench.network.send_packet(a1, piece).unwrap();
        }
        let ext = bench.id("ext");
        let seen: Vec<_> = bench
            .network
            .take_sights()
            .into_iter()
            .filter_map(|sight| match sight {
                Sight::Arrival { node, packet, .. } if node == ext => packet.fragment,
                _ => None,
            })
            .map(|fragment| fragment.offset)
            .collect();
        assert_eq!(seen, [0, 80, 160][..arrive], "tracked {tracked}, {keep} sent");
    }
}

/// Returns how often each rule of a chain matched.
fn counts(bench: &Bench, name: &str, table: Table, hook: Hook) -> Vec<u64> {
    let node = bench.network.node(bench.id(name));
    let chains = node.rules.ipv4.chains(table);
    let chain = chains.iter().find(|chain| chain.hook() == Some(hook)).unwrap();
    let numbers = 1..=chain.rules().len() as u32;
    numbers.map(|number| node.dice.ipv4.rule(table.into(), chain.id(), number)).collect()
}

#[test]
fn a_node_talks_to_itself_through_four_hooks() {
    let mut bench = Bench::new(|_| {});
    let new = || rule().ctstate(crate::rule::CtStates::NEW);
    bench.rules("n1", |rules| {
        for hook in [Hook::Output, Hook::Postrouting, Hook::Prerouting, Hook::Input] {
            let mangle = rules.builtin(Table::Mangle, hook);
            rules.append(Table::Mangle, mangle, new());
            if hook != Hook::Output {
                let nat = rules.builtin(Table::Nat, hook);
                rules.append(Table::Nat, nat, rule());
            }
        }
        let nat = rules.builtin(Table::Nat, Hook::Output);
        let port = rule().dport(Protocol::UDP, 5300);
        rules.append(Table::Nat, nat, port.then(dnat(Ipv4Addr::new(172, 18, 0, 11), 53)));
    });
    let n1 = bench.id("n1");
    let socket = bench.network.open_udp(n1, None, 4000, None);
    bench.network.send_udp(socket, (addr(N1), 5300), 8, 1, 0).unwrap();
    let answer = bench.network.udp(socket).unwrap().received[0];
    assert_eq!(answer.from, (addr(N1), 5300), "translated back");
    // The first packet is NEW at all four; its nat is settled before it comes in again.
    for (hook, nat) in
        [(Hook::Output, 1), (Hook::Postrouting, 1), (Hook::Prerouting, 0), (Hook::Input, 0)]
    {
        assert_eq!(counts(&bench, "n1", Table::Mangle, hook), [1], "{hook:?}");
        assert_eq!(counts(&bench, "n1", Table::Nat, hook), [nat], "{hook:?}");
    }
}

#[test]
fn the_filter_sees_the_backend_both_ways() {
    let mut bench = Bench::new(|_| {});
    bench.rules("n1", |rules| {
        let chain = rules.builtin(Table::Nat, Hook::Prerouting);
        let to = rule().destination(host(VIP)).dport(Protocol::UDP, 53);
        rules.append(Table::Nat, chain, to.then(dnat(B1, 53)));
        let forward = rules.builtin(Table::Filter, Hook::Forward);
        for rule in [
            rule().destination(host(VIP)),
            rule().source(host(VIP)),
            rule().source(host(A1)).destination(host(B1)),
            rule().source(host(B1)).destination(host(A1)),
        ] {
            rules.append(Table::Filter, forward, rule);
        }
    });
    let a1 = bench.id("a1");
    let socket = bench.network.open_udp(a1, None, 4000, None);
    bench.network.send_udp(socket, (VIP.into(), 53), 8, 1, 0).unwrap();
    assert_eq!(bench.network.udp(socket).unwrap().received[0].from, (VIP.into(), 53));
    assert_eq!(counts(&bench, "n1", Table::Filter, Hook::Forward), [0, 0, 1, 1]);
}

#[test]
fn an_error_of_another_node_comes_back_from_the_service() {
    let mut bench = Bench::new(|topology| {
        topology.machines[1].routes = vec!["unreachable 10.244.2.9/32".to_owned()];
    });
    bench.service(Ipv4Addr::new(10, 244, 2, 9), &[]);
    let told = bench.connect("a1", VIP.into(), 80).unwrap_err();
    assert!(told.contains("HostUnreachable") && told.contains("10.96.0.10"), "{told}");
    // A packet of one hop ends at the first node, of two at the second.
    for (ttl, from) in [(1, "10.244.1.1"), (2, "172.18.0.12")] {
        let tuple = Tuple::v4(Protocol::UDP, A1, 5, B1, 9);
        let a1 = bench.id("a1");
        bench.network.take_icmp(a1);
        let packet = Packet { ttl, ..Packet::udp(9, tuple, 40) };
        bench.network.send_packet(a1, packet).unwrap();
        let errors = bench.network.take_icmp(a1);
        let seen: Vec<_> = errors.iter().map(|e| (e.tuple.src(), e.tuple.icmp_kind())).collect();
        assert_eq!(seen, [(addr(from), (11, 0))]);
    }
}

#[test]
fn an_output_rewrite_keeps_the_source_of_the_first_route() {
    let mut bench = Bench::new(|topology| {
        topology.machines[0].routes =
            vec!["10.96.0.0/16 via 172.18.0.12 src 10.244.1.1".to_owned()];
    });
    bench.service(B1, &[]);
    assert_eq!(bench.connect("n1", VIP.into(), 80), Ok("b1".to_owned()));
    assert_eq!(bench.syns("b1"), [(addr("10.244.1.1"), 63)]);
}

#[test]
fn ip_commands() {
    let mut host = HostConfig::new();
    host.add_device("eth0", DeviceKind::Ethernet, [2; 6]).unwrap();
    let mut ip = |line: &str| host.ip(&line.split(' ').collect::<Vec<_>>());
    assert_eq!(ip("addr add 192.0.2.1/24 dev eth0"), Ok(()));
    assert_eq!(ip("route add default via 192.0.2.254"), Ok(()));
    assert_eq!(ip("route add 10.0.0.0/8 via 192.0.2.9 src 192.0.2.1 metric 5"), Ok(()));
    assert_eq!(ip("route add blackhole 10.1.0.0/16"), Ok(()));
    assert_eq!(ip("route add 198.51.100.0/24 via 203.0.113.1 dev eth0 onlink"), Ok(()));
    assert_eq!(ip("route add throw 10.2.0.0/16"), Ok(()));
    for (line, error) in [
        ("route add default via 192.0.2.253", IpError::Route),
        ("route add 10.3.0.0/16 via 203.0.113.1 dev eth1", IpError::Device("eth1".to_owned())),
        ("route add 10.3.0.0/33 dev eth0", IpError::Word("10.3.0.0/33".to_owned())),
        ("route del 10.9.0.0/16", IpError::Route),
        ("route add 10.3.0.0/16", IpError::End),
        ("rule add", IpError::Word("rule".to_owned())),
        ("route", IpError::End),
    ] {
        assert_eq!(ip(line), Err(error), "{line}");
    }
    let query =
        |dst: &str| RouteQuery { dst: addr(dst), src: addr("0.0.0.0"), mark: 0, in_dev: None };
    let forward = |next_hop| Route::Forward { dev: HostConfig::ETH0, next_hop: addr(next_hop) };
    for (dst, route) in [
        ("192.0.2.7", forward("192.0.2.7")),
        ("10.5.0.1", forward("192.0.2.9")),
        ("10.1.0.1", Route::Blackhole),
        ("10.2.0.1", Route::NoRoute),
        ("198.51.100.4", forward("203.0.113.1")),
        ("203.0.113.9", forward("192.0.2.254")),
        ("192.0.2.1", Route::Local),
    ] {
        assert_eq!(host.route(query(dst)), route, "{dst}");
    }
    assert_eq!(host.ip(&["addr", "del", "192.0.2.1/24", "dev", "eth0"]), Ok(()));
    assert!(!host.is_local(addr("192.0.2.1")));
}

/// Every way of a connection through the whole network: one backend in four tries, by the rule of
/// kube-proxy's shape, which a Pod of the other node and one of the node itself share.
#[test]
fn every_way_of_a_connection_is_explored() {
    let mut bench = Bench::new(|_| {});
    bench.rules("n1", |rules| {
        let chain = rules.builtin(Table::Nat, Hook::Prerouting);
        let to = || rule().destination(host(VIP)).dport(Protocol::TCP, 80);
        let first = to().random(crate::rule::Probability::one_of(4)).then(dnat(A2, 8080));
        rules.append(Table::Nat, chain, first);
        rules.append(Table::Nat, chain, to().then(dnat(B1, 8080)));
    });
    let client = bench.id("a1");
    let explored = bench.network.explore(crate::exact::Limits::default(), |network| {
        let socket = network.connect(client, (None, 40_000), (VIP.into(), 80), 1, 0).unwrap();
        network.write(socket, 2);
        let received = network.tcp(socket).unwrap().received.unwrap();
        network.node(Network::answered_by(received).unwrap()).name.to_string()
    });
    let ways = explored.main.ways.iter();
    let ways: Vec<_> = ways.map(|way| format!("{} {}", way.outcome, way.probability)).collect();
    assert_eq!(ways, ["a2 1/4", "b1 3/4"]);
    assert!(bench.network.tcp(SocketId { node: client, at: 0 }).is_none(), "copies were used");
}
