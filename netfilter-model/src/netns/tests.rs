use std::net::{Ipv4Addr, Ipv6Addr};

use super::*;
use crate::conntrack::TcpState;
use crate::packet::{IcmpError, L4, TcpFlags};
use crate::prefix::Prefix;
use crate::rule::{
    CtStates, CtTarget, Nat, NatRange, Origin, Policy, RejectWith, Ruleset, RulesetBuilder, Target,
    Zone, ZoneSide,
};
use crate::testing::*;
use crate::tuple::{Protocol, Tuple};

/// A node with rules; draws come from a counter.
struct Bench {
    netns: Netns,
    node: Node,
    rules: Ruleset,
    now: u64,
    drawn: u64,
}

impl Bench {
    fn new(rules: Ruleset) -> Bench {
        Bench { netns: Netns::default(), node: Node::default(), rules, now: 0, drawn: 0 }
    }

    fn receive(&mut self, packet: Packet, in_dev: DeviceId) -> Outcome {
        let drawn = &mut self.drawn;
        let mut draws = |_| {
            *drawn += 1;
            bits(*drawn)
        };
        let mut env = env(self.now, &self.node, &self.rules, &mut draws);
        self.netns.receive(packet, in_dev, &mut env)
    }

    fn send(&mut self, packet: Packet) -> Outcome {
        let (src, dst) = (packet.tuple.src(), packet.tuple.dst());
        let route = self.node.route(RouteQuery { dst, src, mark: 0, in_dev: None });
        let drawn = &mut self.drawn;
        let mut draws = |_| {
            *drawn += 1;
            bits(*drawn)
        };
        let mut env = env(self.now, &self.node, &self.rules, &mut draws);
        self.netns.send(packet, route, &mut env)
    }

    fn entries(&self) -> usize {
        self.netns.conntrack.entries(SimTime::from_nanos(self.now * 1_000_000_000)).count()
    }

    /// Receives a packet that must leave again.
    #[track_caller]
    fn pass(&mut self, packet: Packet, in_dev: DeviceId) -> Egress {
        sent(self.receive(packet, in_dev))
    }
}

use crate::time::SimTime;

#[track_caller]
fn sent(outcome: Outcome) -> Egress {
    match outcome {
        Outcome::Sent(egress) => egress,
        other => panic!("not sent: {other:?}"),
    }
}

#[track_caller]
fn dropped(outcome: Outcome) -> Drop {
    match outcome {
        Outcome::Dropped(drop) => drop,
        other => panic!("not dropped: {other:?}"),
    }
}

#[track_caller]
fn rejected(outcome: Outcome) -> Rejection {
    match outcome {
        Outcome::Rejected(rejection) => *rejection,
        other => panic!("not rejected: {other:?}"),
    }
}

fn proxy() -> Proxy {
    let mut proxy = Proxy::new();
    proxy.service(Protocol::TCP, VIP, 80, &[(REMOTE_POD, 8080)]);
    proxy.service(Protocol::TCP, OTHER_VIP, 80, &[(REMOTE_POD, 8080)]);
    proxy.service(Protocol::TCP, EMPTY_VIP, 80, &[]);
    proxy.service(Protocol::UDP, VIP, 53, &[(REMOTE_POD, 5353), (LOCAL_POD, 5353)]);
    proxy
}

fn tuple(packet: &Packet) -> String {
    format!("{:?}", packet.tuple)
}

const SYN: TcpFlags = TcpFlags::SYN;
const ACK: TcpFlags = TcpFlags::ACK;
const RST: TcpFlags = TcpFlags::RST;

#[test]
fn a_connection_through_a_service_and_back() {
    let mut bench = Bench::new(proxy().build());
    let out = bench.pass(tcp((CLIENT, 1000), (VIP, 80), SYN), CNI0);
    assert_eq!(tuple(&out.packet), "tcp 10.244.1.2:1000 > 10.244.2.7:8080");
    assert_eq!((out.dev, out.next_hop, out.packet.ttl), (ETH0, GATEWAY.into(), 63));
    assert_eq!(out.ct, Some((CtInfo::New, Direction::Original)));
    assert!(out.dnat.is_some());
    let back = bench.pass(tcp((REMOTE_POD, 8080), (CLIENT, 1000), TcpFlags::SYN_ACK), ETH0);
    assert_eq!(tuple(&back.packet), "tcp 10.96.0.10:80 > 10.244.1.2:1000");
    assert_eq!(back.dev, CNI0);
    let ack = bench.pass(tcp((CLIENT, 1000), (VIP, 80), ACK), CNI0);
    assert_eq!(tuple(&ack.packet), "tcp 10.244.1.2:1000 > 10.244.2.7:8080");
    assert_eq!(ack.ct, Some((CtInfo::Established, Direction::Original)));
    assert_eq!(ack.dnat, out.dnat, "every packet tells its rule");
    let entry = bench.netns.conntrack.entries(SimTime::ZERO).next().unwrap();
    assert_eq!(entry.tcp_state(), Some(TcpState::Established));
}

#[test]
fn filter_sees_the_backend_on_the_way_there_and_back() {
    let mut proxy = proxy();
    let forward = proxy.rules.builtin(Table::Filter, Hook::Forward);
    let vip_seen = |r: crate::rule::Rule| r.then(Target::Drop);
    proxy.rules.append(Table::Filter, forward, vip_seen(rule().destination(host(VIP))));
    proxy.rules.append(Table::Filter, forward, vip_seen(rule().source(host(VIP))));
    let seen = rule().destination(host(REMOTE_POD)).protocol(Protocol::TCP).then(Target::Drop);
    let mut bench = Bench::new(proxy.build());
    let _ = bench.pass(tcp((CLIENT, 1000), (VIP, 80), SYN), CNI0);
    let _ = bench.pass(tcp((REMOTE_POD, 8080), (CLIENT, 1000), TcpFlags::SYN_ACK), ETH0);
    let mut proxy = self::proxy();
    let forward = proxy.rules.builtin(Table::Filter, Hook::Forward);
    proxy.rules.append(Table::Filter, forward, seen);
    let mut bench = Bench::new(proxy.build());
    let drop = dropped(bench.receive(tcp((CLIENT, 1000), (VIP, 80), SYN), CNI0));
    assert_eq!(drop.hook, Hook::Forward);
    assert_eq!(bench.entries(), 0, "a dropped packet leaves no entry");
}

#[test]
fn nat_is_asked_for_the_first_packet_only() {
    let mut bench = Bench::new(proxy().build());
    let first = bench.pass(udp((CLIENT, 4444), (VIP, 53)), CNI0);
    let second = bench.pass(udp((CLIENT, 4444), (VIP, 53)), CNI0);
    assert_eq!(first.packet.tuple, second.packet.tuple);
    assert_eq!(second.ct, Some((CtInfo::New, Direction::Original)), "still no answer");
    assert!(second.evaluated < first.evaluated, "{} {}", second.evaluated, first.evaluated);
    assert_eq!(bench.drawn, 1);
}

#[test]
fn a_change_of_rules_moves_no_entry() {
    let mut bench = Bench::new(proxy().build());
    let first = bench.pass(tcp((CLIENT, 1000), (VIP, 80), SYN), CNI0);
    let mut changed = Proxy::new();
    changed.service(Protocol::TCP, VIP, 80, &[(LOCAL_POD, 9090)]);
    bench.rules = changed.build();
    let again = bench.pass(tcp((CLIENT, 1000), (VIP, 80), SYN), CNI0);
    assert_eq!(again.packet.tuple, first.packet.tuple, "a retransmitted SYN keeps its backend");
    let other = bench.pass(tcp((CLIENT, 1001), (VIP, 80), SYN), CNI0);
    assert_eq!(tuple(&other.packet), "tcp 10.244.1.2:1001 > 10.244.1.3:9090");
}

#[test]
fn an_entry_older_than_its_service_stays_untranslated() {
    let mut bench = Bench::new(Proxy::new().build());
    let before = bench.pass(udp((CLIENT, 4444), (VIP, 53)), CNI0);
    assert_eq!(tuple(&before.packet), "udp 10.244.1.2:4444 > 10.96.0.10:53");
    bench.rules = proxy().build();
    let after = bench.pass(udp((CLIENT, 4444), (VIP, 53)), CNI0);
    assert_eq!(after.packet.tuple, before.packet.tuple);
    bench.now = 31;
    let expired = bench.pass(udp((CLIENT, 4444), (VIP, 53)), CNI0);
    assert!(expired.dnat.is_some(), "the entry has expired");
}

#[test]
fn a_refused_connection_leaves_no_entry() {
    let mut bench = Bench::new(proxy().build());
    let _ = bench.pass(tcp((CLIENT, 1000), (VIP, 80), SYN), CNI0);
    assert_eq!(bench.entries(), 1);
    let reset = bench.pass(tcp((REMOTE_POD, 8080), (CLIENT, 1000), RST | ACK), ETH0);
    assert_eq!(tuple(&reset.packet), "tcp 10.96.0.10:80 > 10.244.1.2:1000");
    assert_eq!(reset.ct, Some((CtInfo::Established, Direction::Reply)));
    assert_eq!(bench.entries(), 0);
}

#[test]
fn a_packet_dropped_in_routing_leaves_no_entry() {
    let mut bench = Bench::new(proxy().build());
    bench.node.routes.push((host(REMOTE_POD), Route::Blackhole));
    let drop = dropped(bench.receive(tcp((CLIENT, 1000), (VIP, 80), SYN), CNI0));
    assert_eq!(drop.reason, DropReason::Blackhole);
    assert!(drop.dnat.is_some());
    assert_eq!(bench.entries(), 0);
}

#[test]
fn hairpin_is_masqueraded_behind_the_bridge() {
    let mut proxy = Proxy::new();
    proxy.service(Protocol::TCP, VIP, 80, &[(CLIENT, 8080)]);
    let mut bench = Bench::new(proxy.build());
    let bridged = Route::Bridged { dev: CNI0, port: None, next_hop: CLIENT.into() };
    bench.node.routes.push((host(CLIENT), bridged));
    let out = bench.pass(tcp((CLIENT, 1000), (VIP, 80), SYN), CNI0);
    assert_eq!((out.packet.tuple.src(), out.packet.tuple.dst()), (BRIDGE.into(), CLIENT.into()));
    assert_eq!(out.packet.ttl, 64, "a bridged frame keeps its hops");
    assert_eq!(out.packet.mark & MASQ, 0, "the mark is taken back");
    let back = bench
        .pass(tcp((CLIENT, 8080), (BRIDGE, out.packet.tuple.src_part), TcpFlags::SYN_ACK), CNI0);
    assert_eq!(tuple(&back.packet), "tcp 10.96.0.10:80 > 10.244.1.2:1000");
}

#[test]
fn one_client_port_to_two_vips_with_one_backend_gets_another_source_port() {
    let mut bench = Bench::new(proxy().build());
    let one = bench.pass(tcp((CLIENT, 1000), (VIP, 80), SYN), CNI0);
    let two = bench.pass(tcp((CLIENT, 1000), (OTHER_VIP, 80), SYN), CNI0);
    assert_eq!(one.packet.tuple.dst(), two.packet.tuple.dst());
    assert_eq!(one.packet.tuple.src_part, 1000);
    let port = two.packet.tuple.src_part;
    assert!(port != 1000 && (600..1024).contains(&port), "{port}");
    let back = bench.pass(tcp((REMOTE_POD, 8080), (CLIENT, port), TcpFlags::SYN_ACK), ETH0);
    assert_eq!(tuple(&back.packet), "tcp 10.96.0.11:80 > 10.244.1.2:1000");
}

#[test]
fn a_service_without_endpoints_answers_from_the_node() {
    let mut bench = Bench::new(proxy().build());
    let Rejection { drop, answer } =
        rejected(bench.receive(tcp((CLIENT, 1000), (EMPTY_VIP, 80), SYN), CNI0));
    let DropReason::Reject(rule) = drop.reason else { panic!("{:?}", drop.reason) };
    assert_eq!((rule.table, rule.number, drop.hook), (Table::Filter.into(), 1, Hook::Forward));
    let Answer::Sent(answer) = answer else { panic!("{answer:?}") };
    assert_eq!((answer.packet.tuple.src(), answer.dev), (BRIDGE.into(), CNI0));
    let L4::IcmpError { kind, quote } = answer.packet.l4 else { panic!("{:?}", answer.packet) };
    assert_eq!(kind, IcmpError::PortUnreachable);
    assert_eq!(format!("{quote:?}"), "tcp 10.244.1.2:1000 > 10.96.0.12:80");
    assert_eq!(bench.entries(), 0);
    assert_eq!(answer.ct, Some((CtInfo::Related, Direction::Reply)));
}

#[test]
fn a_reject_in_output_is_told_to_the_local_socket() {
    let mut bench = Bench::new(proxy().build());
    let Rejection { answer, .. } = rejected(bench.send(tcp((NODE, 1000), (EMPTY_VIP, 80), SYN)));
    let Answer::Local(answer) = answer else { panic!("{answer:?}") };
    assert_eq!((answer.packet.tuple.dst(), answer.in_dev), (NODE.into(), LO));
}

#[test]
fn tcp_reset_comes_from_the_packets_destination_translated_back() {
    let mut proxy = proxy();
    let forward = proxy.rules.builtin(Table::Filter, Hook::Forward);
    let reset = rule().destination(host(REMOTE_POD)).protocol(Protocol::TCP);
    let reset = reset.then(Target::Reject(RejectWith::TcpReset));
    proxy.rules.append(Table::Filter, forward, reset);
    let mut bench = Bench::new(proxy.build());
    let Rejection { answer, .. } =
        rejected(bench.receive(tcp((CLIENT, 1000), (VIP, 80), SYN), CNI0));
    let Answer::Sent(answer) = answer else { panic!("{answer:?}") };
    assert_eq!(tuple(&answer.packet), "tcp 10.96.0.10:80 > 10.244.1.2:1000");
    assert_eq!(answer.packet.tcp_flags(), Some(RST | ACK));
    assert_eq!(bench.entries(), 0);
}

#[test]
fn a_tcp_reset_ends_a_connection_that_is_known() {
    let mut rules = RulesetBuilder::new();
    let forward = rules.builtin(Table::Filter, Hook::Forward);
    let reset = rule().destination(host(REMOTE_POD)).protocol(Protocol::TCP);
    let reset = reset.ctstate(crate::rule::CtStates::ESTABLISHED);
    let reset = reset.then(Target::Reject(RejectWith::TcpReset));
    rules.append(Table::Filter, forward, reset);
    let mut bench = Bench::new(rules.build().unwrap());
    let _ = bench.pass(tcp((CLIENT, 1000), (REMOTE_POD, 8080), SYN), CNI0);
    let _ = bench.pass(tcp((REMOTE_POD, 8080), (CLIENT, 1000), TcpFlags::SYN_ACK), ETH0);
    let _ = rejected(bench.receive(tcp((CLIENT, 1000), (REMOTE_POD, 8080), ACK), CNI0));
    let entry = bench.netns.conntrack.entries(SimTime::ZERO).next().unwrap();
    // The answer is the connection's own, and is not tracked again: REJECT itself ends it.
    assert_eq!(entry.tcp_state(), Some(TcpState::Close));
    bench.now = 11;
    assert_eq!(bench.entries(), 0, "net.netfilter.nf_conntrack_tcp_timeout_close: 10 s");
}

#[test]
fn errors_are_not_answered_with_errors() {
    let mut bench = Bench::new(Proxy::new().build());
    bench.node.routes.push((host(REMOTE_POD), Route::Unreachable));
    let about = tcp((REMOTE_POD, 8080), (CLIENT, 1000), ACK);
    let error = Packet::icmp_error(&about, IcmpError::HostUnreachable, CLIENT.into());
    let drop = dropped(bench.receive(error, CNI0));
    assert_eq!(drop.reason, DropReason::Unreachable);
}

#[test]
fn an_error_from_the_backends_node_arrives_as_from_the_vip() {
    let mut bench = Bench::new(proxy().build());
    let out = bench.pass(tcp((CLIENT, 1000), (VIP, 80), SYN), CNI0);
    let backends_node = Ipv4Addr::new(192, 168, 0, 2);
    let error = Packet::icmp_error(&out.packet, IcmpError::HostUnreachable, backends_node.into());
    let back = bench.pass(error, ETH0);
    assert_eq!((back.packet.tuple.src(), back.packet.tuple.dst()), (VIP.into(), CLIENT.into()));
    let L4::IcmpError { quote, .. } = back.packet.l4 else { panic!("{:?}", back.packet) };
    assert_eq!(format!("{quote:?}"), "tcp 10.244.1.2:1000 > 10.96.0.10:80");
    assert_eq!(back.ct, Some((CtInfo::Related, Direction::Reply)));
    bench.now = 120;
    assert_eq!(bench.entries(), 0, "an error keeps nothing alive");
}

#[test]
fn an_error_about_a_masqueraded_packet_finds_its_client() {
    let mut proxy = proxy();
    let (services, mark) = (proxy.services, proxy.mark_masq);
    let all = rule().destination(host(VIP)).then(Target::Jump(mark));
    proxy.rules.append(Table::Nat, services, all.clone());
    let mut first = Proxy::new();
    first.rules.append(Table::Nat, first.services, all);
    first.service(Protocol::TCP, VIP, 80, &[(REMOTE_POD, 8080)]);
    let mut bench = Bench::new(first.build());
    let out = bench.pass(tcp((CLIENT, 1000), (VIP, 80), SYN), CNI0);
    assert_eq!(out.packet.tuple.src(), IpAddr::from(NODE));
    let error = Packet::icmp_error(&out.packet, IcmpError::HostUnreachable, GATEWAY.into());
    let back = bench.pass(error, ETH0);
    assert_eq!((back.packet.tuple.src(), back.packet.tuple.dst()), (VIP.into(), CLIENT.into()));
    let L4::IcmpError { quote, .. } = back.packet.l4 else { panic!("{:?}", back.packet) };
    assert_eq!(format!("{quote:?}"), "tcp 10.244.1.2:1000 > 10.96.0.10:80");
}

#[test]
fn a_dead_neighbour_is_told_to_the_client() {
    let mut proxy = Proxy::new();
    proxy.service(Protocol::TCP, VIP, 80, &[(LOCAL_POD, 8080)]);
    let mut bench = Bench::new(proxy.build());
    let out = bench.pass(tcp((CLIENT, 1000), (VIP, 80), SYN), CNI0);
    let mut draws = |_| 0;
    let mut env = env(3, &bench.node, &bench.rules, &mut draws);
    let answer = bench.netns.send_error(&out.packet, IcmpError::HostUnreachable, &mut env);
    let Some(Answer::Sent(answer)) = answer else { panic!("{answer:?}") };
    assert_eq!((answer.packet.tuple.src(), answer.dev), (VIP.into(), CNI0));
    let L4::IcmpError { quote, .. } = answer.packet.l4 else { panic!("{:?}", answer.packet) };
    assert_eq!(format!("{quote:?}"), "tcp 10.244.1.2:1000 > 10.96.0.10:80");
}

#[test]
fn an_unreachable_route_is_told_and_a_last_hop_too() {
    let mut bench = Bench::new(proxy().build());
    bench.node.routes.push((host(REMOTE_POD), Route::Unreachable));
    let Rejection { drop, answer } =
        rejected(bench.receive(tcp((CLIENT, 1000), (VIP, 80), SYN), CNI0));
    assert_eq!(drop.reason, DropReason::Unreachable);
    let Answer::Sent(answer) = answer else { panic!("{answer:?}") };
    let L4::IcmpError { kind, quote } = answer.packet.l4 else { panic!("{:?}", answer.packet) };
    assert_eq!(kind, IcmpError::HostUnreachable);
    assert_eq!(format!("{quote:?}"), "tcp 10.244.1.2:1000 > 10.96.0.10:80");
    assert_eq!(bench.entries(), 0);
    let last_hop = Packet { ttl: 1, ..tcp((CLIENT, 1000), (OTHER_VIP, 81), SYN) };
    let Rejection { drop, .. } = rejected(bench.receive(last_hop, CNI0));
    assert_eq!(drop.reason, DropReason::TtlExpired);
}

#[test]
fn a_host_process_keeps_the_source_of_its_first_route() {
    let mut bench = Bench::new(proxy().build());
    bench
        .node
        .routes
        .push((host(REMOTE_POD), Route::Forward { dev: CNI0, next_hop: REMOTE_POD.into() }));
    let out = sent(bench.send(tcp((NODE, 1000), (VIP, 80), SYN)));
    assert_eq!(tuple(&out.packet), "tcp 192.168.0.1:1000 > 10.244.2.7:8080");
    assert_eq!(out.dev, CNI0, "routed again");
    assert_eq!(out.packet.ttl, 64);
    let back = bench.receive(tcp((REMOTE_POD, 8080), (NODE, 1000), TcpFlags::SYN_ACK), CNI0);
    let Outcome::Local(back) = back else { panic!("{back:?}") };
    assert_eq!(tuple(&back.packet), "tcp 10.96.0.10:80 > 192.168.0.1:1000");
}

#[test]
fn output_sees_the_old_device_and_postrouting_the_new_one() {
    let mut proxy = proxy();
    for (table, hook, dev) in
        [(Table::Filter, Hook::Output, "cni0"), (Table::Mangle, Hook::Postrouting, "eth0")]
    {
        let builtin = proxy.rules.builtin(table, hook);
        let wrong = rule().out_device(dev).unwrap().then(Target::Drop);
        proxy.rules.append(table, builtin, wrong);
    }
    let mut bench = Bench::new(proxy.build());
    bench
        .node
        .routes
        .push((host(REMOTE_POD), Route::Forward { dev: CNI0, next_hop: REMOTE_POD.into() }));
    let _ = sent(bench.send(tcp((NODE, 1000), (VIP, 80), SYN)));
}

#[test]
fn loopback_keeps_its_connection_and_skips_nat() {
    let mut proxy = Proxy::new();
    proxy.service(Protocol::TCP, NODE, 30080, &[(NODE, 8080)]);
    let mangle = proxy.rules.builtin(Table::Mangle, Hook::Prerouting);
    let count = rule().ctstate(CtStates::NEW).then(Target::or_mark(1));
    proxy.rules.append(Table::Mangle, mangle, count);
    let mut bench = Bench::new(proxy.build());
    let outcome = bench.send(tcp((NODE, 1000), (NODE, 30080), SYN));
    let Outcome::Local(delivery) = outcome else { panic!("{outcome:?}") };
    // The hairpin rule masquerades behind the address of the loopback device's route.
    assert_eq!(delivery.packet.tuple.dst_part, 8080);
    assert_eq!(delivery.packet.mark, 1, "mangle PREROUTING runs, and the packet is NEW there");
    assert_eq!(bench.entries(), 1);
}

#[test]
fn masquerade_follows_the_device_or_dies() {
    let mut proxy = Proxy::new();
    let all = rule().destination(host(VIP)).then(Target::Jump(proxy.mark_masq));
    proxy.rules.append(Table::Nat, proxy.services, all);
    proxy.service(Protocol::TCP, VIP, 80, &[(REMOTE_POD, 8080)]);
    let mut bench = Bench::new(proxy.build());
    let _ = bench.pass(tcp((CLIENT, 1000), (VIP, 80), SYN), CNI0);
    bench
        .node
        .routes
        .push((host(REMOTE_POD), Route::Forward { dev: CNI0, next_hop: REMOTE_POD.into() }));
    let drop = dropped(bench.receive(tcp((CLIENT, 1000), (VIP, 80), SYN), CNI0));
    assert_eq!((drop.reason, drop.hook), (DropReason::DeviceChanged, Hook::Postrouting));
    assert_eq!(bench.entries(), 0);
}

#[test]
fn an_invalid_packet_passes_untranslated() {
    let mut rules = RulesetBuilder::new();
    let postrouting = rules.builtin(Table::Nat, Hook::Postrouting);
    rules.append(Table::Nat, postrouting, rule().then(masquerade()));
    let mut bench = Bench::new(rules.build().unwrap());
    let out = bench.pass(tcp((CLIENT, 1000), (REMOTE_POD, 80), TcpFlags::SYN_ACK), CNI0);
    assert_eq!(out.packet.tuple.src(), IpAddr::from(CLIENT));
    assert_eq!(out.ct, Some((CtInfo::Invalid, Direction::Original)));
    assert_eq!(bench.entries(), 0);
}

/// A client reaches the host by an address that the host then does not know for the client's own:
/// only zone 1 does, where what the host sends is INVALID until it comes in by lo.
fn answer_by_loopback([client, own, other]: [IpAddr; 3]) -> Outcome {
    let mut rules = RulesetBuilder::new();
    let zone = Some((ZoneSide::Both, Zone::Id(1)));
    let raw = rules.builtin(Table::Raw, Hook::Prerouting);
    let target = Target::Ct(Box::new(CtTarget { zone, ..CtTarget::default() }));
    rules.append(Table::Raw, raw, rule().then(target));
    let input = rules.builtin(Table::Nat, Hook::Input);
    let target = Target::Nat(Nat::Snat(NatRange::address(other)));
    rules.append(Table::Nat, input, rule().then(target));
    let mut bench = Bench::new(rules.build().unwrap());
    let routes = [
        (client, Route::Forward { dev: CNI0, next_hop: client }),
        (own, Route::Local),
        (other, Route::Local),
    ];
    bench.node.routes = routes.map(|(to, route)| (Prefix::host(to), route)).into();
    let tuple = Tuple::try_new(Protocol::TCP, client, 1000, own, 80).unwrap();
    let Outcome::Local(seen) = bench.receive(Packet::tcp(1, tuple, SYN), CNI0) else { panic!() };
    assert_eq!(seen.packet.tuple.src(), other);
    bench.send(Packet::tcp(2, seen.packet.tuple.reply(), RST | ACK))
}

#[test]
fn what_prerouting_turns_away_from_lo_is_routed_again() {
    let six = ["2001:db8:1::2", "2001:db8:1::1", "2001:db8:2::1"].map(|a| a.parse().unwrap());
    let out = sent(answer_by_loopback(six));
    assert_eq!((out.dev, out.next_hop, out.packet.ttl), (CNI0, six[0], 63));
    assert_eq!(tuple(&out.packet), "tcp [2001:db8:1::1]:80 > [2001:db8:1::2]:1000");
    assert_eq!(out.ct, Some((CtInfo::Established, Direction::Reply)));
    let four = [CLIENT, BRIDGE, NODE].map(IpAddr::from);
    let drop = dropped(answer_by_loopback(four));
    assert_eq!((drop.hook, drop.reason), (Hook::Prerouting, DropReason::Blackhole));
}

#[test]
fn without_a_rule_that_needs_it_nothing_is_tracked() {
    let mut rules = RulesetBuilder::new();
    let forward = rules.builtin(Table::Filter, Hook::Forward);
    rules.append(Table::Filter, forward, rule().source(host(CLIENT)).then(Target::Accept));
    let mut bench = Bench::new(rules.build().unwrap());
    let out = bench.pass(tcp((CLIENT, 1000), (REMOTE_POD, 80), SYN), CNI0);
    assert_eq!((out.ct, out.evaluated, bench.entries()), (None, 1, 0));
}

#[test]
fn a_drop_names_rule_and_policy() {
    let mut rules = RulesetBuilder::new();
    let forward = rules.builtin(Table::Filter, Hook::Forward);
    rules.policy(Table::Filter, Hook::Input, Policy::Drop);
    rules.append(Table::Filter, forward, rule());
    let origin = Origin { owner: 7, item: 9 };
    let drop_rule = crate::rule::Rule::new(origin).source(host(CLIENT)).then(Target::Drop);
    rules.append(Table::Filter, forward, drop_rule);
    let mut bench = Bench::new(rules.build().unwrap());
    let drop = dropped(bench.receive(tcp((CLIENT, 1), (REMOTE_POD, 80), SYN), CNI0));
    let rule = drop.reason.rule().unwrap();
    assert_eq!((rule.table, rule.chain, rule.number), (Table::Filter.into(), forward, 2));
    assert_eq!((rule.origin, drop.evaluated), (origin, 2));
    let drop = dropped(bench.receive(tcp((CLIENT, 1), (NODE, 80), SYN), CNI0));
    assert_eq!((drop.reason, drop.hook), (DropReason::Policy(Table::Filter.into()), Hook::Input));
}

#[test]
fn what_iptables_would_not_write_into_table_nat_drops() {
    let mut rules = RulesetBuilder::new();
    rules.policy(Table::Nat, Hook::Prerouting, Policy::Drop);
    let prerouting = rules.builtin(Table::Nat, Hook::Prerouting);
    let to = Nat::Dnat(NatRange::to(REMOTE_POD.into(), 8080));
    let known = rule().protocol(Protocol::TCP).dport(Protocol::TCP, 80).then(Target::Nat(to));
    rules.append(Table::Nat, prerouting, known);
    let mut bench = Bench::new(rules.build_leniently().0);
    let drop = dropped(bench.receive(tcp((CLIENT, 1), (VIP, 81), SYN), CNI0));
    let reason = DropReason::Policy(Table::Nat.into());
    assert_eq!((drop.reason, drop.hook, bench.entries()), (reason, Hook::Prerouting, 0));
    let egress = bench.pass(tcp((CLIENT, 1), (VIP, 80), SYN), CNI0);
    assert_eq!(egress.packet.tuple.dst(), REMOTE_POD);
}

#[test]
fn ping_keeps_its_id_and_is_answered() {
    let mut rules = RulesetBuilder::new();
    let postrouting = rules.builtin(Table::Nat, Hook::Postrouting);
    let out = rule().out_device("eth0").unwrap().then(masquerade());
    rules.append(Table::Nat, postrouting, out);
    let mut bench = Bench::new(rules.build().unwrap());
    let echo = Tuple::v4(Protocol::ICMP, CLIENT, 7, REMOTE_POD, 8 << 8);
    let out = bench.pass(Packet::icmp_echo(1, echo), CNI0);
    assert_eq!(out.packet.tuple.src(), IpAddr::from(NODE));
    let back = bench.pass(Packet::icmp_echo(1, out.packet.tuple.reply()), ETH0);
    assert_eq!(back.packet.tuple, echo.reply());
    let stray = Tuple::v4(Protocol::ICMP, REMOTE_POD, 9, NODE, 0);
    let Outcome::Local(stray) = bench.receive(Packet::icmp_echo(1, stray), ETH0) else { panic!() };
    assert_eq!(stray.ct, Some((CtInfo::Invalid, Direction::Original)));
}

#[test]
fn the_typed_steps_give_what_the_composed_ones_give() {
    let packet = tcp((CLIENT, 1000), (VIP, 80), SYN);
    let mut composed = Bench::new(proxy().build());
    let expected = composed.pass(packet, CNI0);
    let mut bench = Bench::new(proxy().build());
    let mut draws = |_| bits(1);
    let mut env = env(0, &bench.node, &bench.rules, &mut draws);
    let prerouted = bench.netns.prerouting(packet, CNI0, &mut env).unwrap();
    let Routed::Forward(forwarded) = bench.netns.route(prerouted, &mut env) else { panic!() };
    let leaving = bench.netns.forward(forwarded, &mut env).unwrap();
    let Ok(Postrouted::Egress(egress)) = bench.netns.postrouting(leaving, &mut env) else {
        panic!()
    };
    assert_eq!(egress, expected);
}

#[test]
fn an_answer_about_what_is_not_tracked_is_invalid_and_stays_so() {
    let notrack = || {
        let target = CtTarget { notrack: true, ..CtTarget::default() };
        rule().then(Target::Ct(Box::new(target)))
    };
    let mut rules = RulesetBuilder::new();
    for hook in [Hook::Prerouting, Hook::Output] {
        let raw = rules.builtin(Table::Raw, hook);
        rules.append(Table::Raw, raw, notrack());
    }
    let input = rules.builtin(Table::Filter, Hook::Input);
    let reject = Target::Reject(RejectWith::Icmp(IcmpError::PortUnreachable));
    rules.append(Table::Filter, input, rule().protocol(Protocol::TCP).then(reject));
    let output = rules.builtin(Table::Filter, Hook::Output);
    // As if the rule of OUTPUT had not met the answer.
    let untracked = || rule().ctstate(CtStates::UNTRACKED);
    let reject_udp = Target::Reject(RejectWith::Icmp(IcmpError::AdminProhibited));
    rules.append(Table::Filter, output, untracked().protocol(Protocol::UDP).then(reject_udp));
    rules.append(Table::Filter, output, untracked().then(Target::Drop));
    let invalid = rule().ctstate(CtStates::INVALID).then(Target::Accept);
    rules.append(Table::Filter, output, invalid);
    rules.policy(Table::Filter, Hook::Output, Policy::Drop);
    let mangle = rules.builtin(Table::Mangle, Hook::Prerouting);
    let by_loopback = untracked().in_device("lo").unwrap().then(Target::Drop);
    rules.append(Table::Mangle, mangle, by_loopback);
    let mut bench = Bench::new(rules.build().unwrap());
    let outcome = bench.receive(tcp((CLIENT, 1000), (NODE, 80), SYN), CNI0);
    assert!(matches!(outcome, Outcome::Rejected(_)), "{outcome:?}");
    // To the node itself, it meets the rule of PREROUTING, too.
    let sent = udp((NODE, 1000), (REMOTE_POD, 53));
    let Outcome::Rejected(rejection) = bench.send(sent) else { panic!() };
    assert!(matches!(rejection.answer, Answer::Local(_)), "{rejection:?}");
}

#[test]
fn a_bare_segment_is_as_long_as_its_headers() {
    let over = |tuple: Tuple| Packet::tcp(1, tuple, SYN).len;
    assert_eq!(over(Tuple::v4(Protocol::TCP, CLIENT, 1, VIP, 2)), 40);
    let (a, b) = (Ipv6Addr::LOCALHOST, Ipv6Addr::UNSPECIFIED);
    assert_eq!(over(Tuple::v6(Protocol::TCP, a, 1, b, 2)), 60);
}

/// A reset that comes by the loopback device meets the rules of INPUT like any packet.
#[test]
fn a_rejected_reset_is_answered() {
    let mut rules = RulesetBuilder::new();
    let input = rules.builtin(Table::Filter, Hook::Input);
    let reset = rule().ctstate(CtStates::NEW).then(Target::Reject(RejectWith::TcpReset));
    rules.append(Table::Filter, input, reset.protocol(Protocol::TCP));
    let error = Target::Reject(RejectWith::Icmp(IcmpError::PortUnreachable));
    rules.append(Table::Filter, input, rule().protocol(Protocol::TCP).then(error));
    let mut bench = Bench::new(rules.build().unwrap());
    let Rejection { answer, .. } = rejected(bench.send(tcp((NODE, 1000), (NODE, 80), SYN)));
    let Answer::Local(Delivery { packet, .. }) = answer else { panic!("{answer:?}") };
    let L4::IcmpError { quote, .. } = packet.l4 else { panic!("{packet:?}") };
    assert_eq!(quote, Tuple::v4(Protocol::TCP, NODE, 80, NODE, 1000));
}
