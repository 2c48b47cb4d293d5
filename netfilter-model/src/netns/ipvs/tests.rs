use std::net::{IpAddr, Ipv4Addr};

use crate::conntrack::{CtInfo, Direction};
use crate::device::{DeviceId, DeviceName};
use crate::hook::{Hook, Table};
use crate::host::{Env, Host, Route, RouteQuery};
use crate::ipvs::{Destination, Ipvs, Service, ServiceId, Sysctls};
use crate::netns::{Answer, Delivery, Drop, DropReason, Egress, Netns, Outcome};
use crate::packet::{IcmpError, L4, Packet, TcpFlags};
use crate::prefix::Prefix;
use crate::rule::{AddrType, IpvsMatch, Match, Ruleset, Target};
use crate::testing::*;
use crate::time::SimTime;
use crate::tuple::{Protocol, Tuple};

/// The node with the virtual address on a device of its own.
struct Virtual(Node);

impl Host for Virtual {
    fn route(&self, query: RouteQuery) -> Route {
        if query.dst == VIP { Route::Local } else { self.0.route(query) }
    }

    fn addr_type(&self, addr: IpAddr, on: Option<DeviceId>) -> AddrType {
        if addr == VIP && on.is_none() { AddrType::Local } else { self.0.addr_type(addr, on) }
    }

    fn masquerade_address(&self, dev: DeviceId, next_hop: IpAddr) -> Option<IpAddr> {
        self.0.masquerade_address(dev, next_hop)
    }

    fn loopback(&self) -> DeviceId {
        self.0.loopback()
    }

    fn device_name(&self, dev: DeviceId) -> DeviceName {
        self.0.device_name(dev)
    }
}

struct Bench {
    netns: Netns,
    rules: Ruleset,
    now: u64,
    drawn: u64,
}

/// A service of TCP and one of UDP with one real server each.
fn services(real: Ipv4Addr) -> Ipvs {
    let mut ipvs = Ipvs::default();
    for (protocol, port) in [(Protocol::TCP, 80), (Protocol::UDP, 53)] {
        let mut service = Service::new(ServiceId::Address(protocol, VIP.into(), port), "rr");
        service.destinations.push(Destination::new(real.into(), 8080));
        ipvs.services.push(service);
    }
    ipvs
}

/// kube-proxy's fixed rules; what goes to the virtual address is masqueraded.
fn masquerading() -> Proxy {
    let mut proxy = Proxy::new();
    let to_vip = rule().destination(host(VIP)).then(Target::Jump(proxy.mark_masq));
    proxy.rules.append(Table::Nat, proxy.services, to_vip);
    proxy
}

impl Bench {
    fn new(proxy: Proxy, ipvs: Ipvs) -> Bench {
        let mut netns = Netns::default();
        netns.ipvs_mut(SimTime::ZERO).sysctls = Sysctls::kube_proxy();
        Bench { netns, rules: proxy.build().with_ipvs(ipvs), now: 0, drawn: 0 }
    }

    fn receive(&mut self, packet: Packet, in_dev: DeviceId) -> Outcome {
        self.run(|netns, env| netns.receive(packet, in_dev, env))
    }

    fn send(&mut self, packet: Packet) -> Outcome {
        let (src, dst) = (packet.tuple.src(), packet.tuple.dst());
        let query = RouteQuery { dst, src, mark: 0, in_dev: None };
        let route = Virtual(Node::default()).route(query);
        self.run(|netns, env| netns.send(packet, route, env))
    }

    fn run<T>(
        &mut self,
        run: impl FnOnce(&mut Netns, &mut Env<'_, Virtual, Ruleset, &mut dyn FnMut(u32) -> u64>) -> T,
    ) -> T {
        let drawn = &mut self.drawn;
        let mut draws = |_| {
            *drawn += 1;
            bits(*drawn)
        };
        let node = Virtual(Node::default());
        let mut draws: &mut dyn FnMut(u32) -> u64 = &mut draws;
        let now = SimTime::from_nanos(self.now * 1_000_000_000);
        let mut env = Env { now, host: &node, rules: &self.rules, draws: &mut draws };
        run(&mut self.netns, &mut env)
    }

    /// Receives a packet that must leave again.
    #[track_caller]
    fn pass(&mut self, packet: Packet, in_dev: DeviceId) -> Egress {
        match self.receive(packet, in_dev) {
            Outcome::Sent(egress) => egress,
            other => panic!("not sent: {other:?}"),
        }
    }

    fn entries(&self) -> Vec<String> {
        let now = SimTime::from_nanos(self.now * 1_000_000_000);
        let entry = |entry: &crate::conntrack::Entry| {
            let [original, reply] =
                [Direction::Original, Direction::Reply].map(|way| *entry.tuple(way));
            format!("{original:?}, {reply:?}")
        };
        self.netns.conntrack().entries(now).map(entry).collect()
    }
}

#[track_caller]
fn local(outcome: Outcome) -> Delivery {
    match outcome {
        Outcome::Local(delivery) => delivery,
        other => panic!("not delivered: {other:?}"),
    }
}

#[track_caller]
fn dropped(outcome: Outcome) -> Drop {
    match outcome {
        Outcome::Dropped(drop) => drop,
        other => panic!("not dropped: {other:?}"),
    }
}

fn text(packet: &Packet) -> String {
    format!("{:?}", packet.tuple)
}

const SYN: TcpFlags = TcpFlags::SYN;

#[test]
fn a_request_from_a_pod_leaves_for_a_real_server_and_is_answered() {
    let mut bench = Bench::new(Proxy::new(), services(REMOTE_POD));
    let out = bench.pass(tcp((CLIENT, 1000), (VIP, 80), SYN), CNI0);
    assert_eq!(text(&out.packet), "tcp 10.244.1.2:1000 > 10.244.2.7:8080");
    assert_eq!((out.dev, out.next_hop, out.packet.ttl), (ETH0, GATEWAY.into(), 63));
    assert_eq!(out.ct, Some((CtInfo::New, Direction::Original)));
    // Of the two tuples only the reply's is another.
    let entry = "tcp 10.244.1.2:1000 > 10.96.0.10:80, tcp 10.244.2.7:8080 > 10.244.1.2:1000";
    assert_eq!(bench.entries(), [entry]);
    let back = bench.pass(tcp((REMOTE_POD, 8080), (CLIENT, 1000), TcpFlags::SYN_ACK), ETH0);
    assert_eq!(text(&back.packet), "tcp 10.96.0.10:80 > 10.244.1.2:1000");
    assert_eq!((back.dev, back.ct), (CNI0, Some((CtInfo::Established, Direction::Reply))));
    let ack = bench.pass(tcp((CLIENT, 1000), (VIP, 80), TcpFlags::ACK), CNI0);
    assert_eq!(text(&ack.packet), "tcp 10.244.1.2:1000 > 10.244.2.7:8080");
    assert_eq!(ack.ct, Some((CtInfo::Established, Direction::Original)));
}

#[test]
fn a_request_is_masqueraded_once_it_is_rewritten() {
    let mut bench = Bench::new(masquerading(), services(REMOTE_POD));
    let out = bench.pass(tcp((CLIENT, 1000), (VIP, 80), SYN), CNI0);
    assert_eq!((out.packet.tuple.src(), out.packet.tuple.dst()), (NODE.into(), REMOTE_POD.into()));
    let answer = Packet::tcp(1, out.packet.tuple.reply(), TcpFlags::SYN_ACK);
    let back = bench.pass(answer, ETH0);
    assert_eq!(text(&back.packet), "tcp 10.96.0.10:80 > 10.244.1.2:1000");
    let ack = bench.pass(tcp((CLIENT, 1000), (VIP, 80), TcpFlags::ACK), CNI0);
    assert_eq!(ack.packet.tuple, out.packet.tuple);
}

/// Without entries in connection tracking there is nothing that could be masqueraded.
#[test]
fn what_is_not_to_be_tracked_is_not_masqueraded() {
    let mut bench = Bench::new(masquerading(), services(REMOTE_POD));
    bench.netns.ipvs_mut(SimTime::ZERO).sysctls.conntrack = false;
    let out = bench.pass(tcp((CLIENT, 1000), (VIP, 80), SYN), CNI0);
    assert_eq!(text(&out.packet), "tcp 10.244.1.2:1000 > 10.244.2.7:8080");
    assert_eq!(bench.entries(), <[String; 0]>::default());
}

#[test]
fn a_request_meets_filter_input_and_not_forward() {
    let drop = |hook, to: Ipv4Addr| {
        let mut proxy = Proxy::new();
        let builtin = proxy.rules.builtin(Table::Filter, hook);
        proxy.rules.append(Table::Filter, builtin, rule().destination(host(to)).then(Target::Drop));
        let mut bench = Bench::new(proxy, services(REMOTE_POD));
        match bench.receive(tcp((CLIENT, 1000), (VIP, 80), SYN), CNI0) {
            Outcome::Dropped(drop) => Some(drop.hook),
            _ => None,
        }
    };
    assert_eq!(drop(Hook::Input, VIP), Some(Hook::Input));
    assert_eq!(drop(Hook::Input, REMOTE_POD), None);
    assert_eq!(drop(Hook::Forward, VIP), None);
    assert_eq!(drop(Hook::Forward, REMOTE_POD), None);
    assert_eq!(drop(Hook::Output, REMOTE_POD), Some(Hook::Output));
    assert_eq!(drop(Hook::Output, VIP), None);
}

#[test]
fn the_node_itself_reaches_a_real_server() {
    let mut bench = Bench::new(masquerading(), services(REMOTE_POD));
    // Its route to the virtual address is a local one, and so is its source.
    let Outcome::Sent(out) = bench.send(tcp((VIP, 5000), (VIP, 80), SYN)) else {
        panic!("it leaves");
    };
    assert_eq!((out.packet.tuple.src(), out.packet.tuple.dst()), (NODE.into(), REMOTE_POD.into()));
    assert_eq!((out.dev, out.packet.tuple.dst_part), (ETH0, 8080));
    let answer = Packet::tcp(1, out.packet.tuple.reply(), TcpFlags::SYN_ACK);
    let back = local(bench.receive(answer, ETH0));
    assert_eq!(text(&back.packet), "tcp 10.96.0.10:80 > 10.96.0.10:5000");
}

#[test]
fn a_real_server_on_the_node_gets_the_packet_at_once() {
    let mut bench = Bench::new(Proxy::new(), services(NODE));
    let got = local(bench.receive(tcp((CLIENT, 1000), (VIP, 80), SYN), CNI0));
    assert_eq!(
        (text(&got.packet), got.packet.ttl),
        ("tcp 10.244.1.2:1000 > 192.168.0.1:8080".into(), 64)
    );
    let Outcome::Sent(back) = bench.send(tcp((NODE, 8080), (CLIENT, 1000), TcpFlags::SYN_ACK))
    else {
        panic!("it leaves");
    };
    assert_eq!(text(&back.packet), "tcp 10.96.0.10:80 > 10.244.1.2:1000");
    assert_eq!(back.dev, CNI0);
    // And from the node to itself.
    let got = local(bench.send(tcp((VIP, 6000), (VIP, 80), SYN)));
    assert_eq!(text(&got.packet), "tcp 10.96.0.10:6000 > 192.168.0.1:8080");
    let back = local(bench.send(tcp((NODE, 8080), (VIP, 6000), TcpFlags::SYN_ACK)));
    assert_eq!(text(&back.packet), "tcp 10.96.0.10:80 > 10.96.0.10:6000");
}

#[test]
fn without_a_real_server_the_client_is_told_that_the_port_is_unreachable() {
    let mut ipvs = services(REMOTE_POD);
    ipvs.services[0].destinations[0].weight = 0;
    let mut bench = Bench::new(Proxy::new(), ipvs);
    let Outcome::Rejected(rejection) = bench.receive(tcp((CLIENT, 1000), (VIP, 80), SYN), CNI0)
    else {
        panic!("the client is told");
    };
    assert_eq!((rejection.drop.hook, rejection.drop.reason), (Hook::Input, DropReason::NoServer));
    let Answer::Sent(answer) = rejection.answer else { panic!("it leaves") };
    assert_eq!(answer.packet.tuple.src(), IpAddr::from(VIP));
    assert!(matches!(answer.packet.l4, L4::IcmpError { kind: IcmpError::PortUnreachable, .. }));
    assert_eq!(bench.entries(), <[String; 0]>::default());
}

#[test]
fn other_ports_of_the_address_and_pings_are_the_hosts() {
    let mut bench = Bench::new(Proxy::new(), services(REMOTE_POD));
    let other = local(bench.receive(tcp((CLIENT, 1000), (VIP, 22), SYN), CNI0));
    assert_eq!(text(&other.packet), "tcp 10.244.1.2:1000 > 10.96.0.10:22");
    let echo = Tuple::v4(Protocol::ICMP, CLIENT, 7, VIP, 8 << 8);
    let _ = local(bench.receive(Packet::icmp_echo(1, echo), CNI0));
    let lone = local(bench.receive(tcp((CLIENT, 1000), (VIP, 80), TcpFlags::ACK), CNI0));
    assert_eq!(lone.packet.tuple.dst(), IpAddr::from(VIP), "it opens nothing");
}

#[test]
fn an_error_about_a_real_server_is_one_about_the_service() {
    let mut bench = Bench::new(masquerading(), services(REMOTE_POD));
    let out = bench.pass(udp((CLIENT, 1000), (VIP, 53)), CNI0);
    let error = Packet::icmp_error(&out.packet, IcmpError::PortUnreachable, REMOTE_POD.into());
    let back = bench.pass(error, ETH0);
    assert_eq!((back.packet.tuple.src(), back.packet.tuple.dst()), (VIP.into(), CLIENT.into()));
    let L4::IcmpError { quote, .. } = back.packet.l4 else { panic!("an error") };
    assert_eq!(format!("{quote:?}"), "udp 10.244.1.2:1000 > 10.96.0.10:53");
}

#[test]
fn rules_can_ask_for_the_service_behind_a_rewritten_request() {
    let drop = |port| {
        let mut proxy = Proxy::new();
        let output = proxy.rules.builtin(Table::Filter, Hook::Output);
        let asked = IpvsMatch { protocol: Protocol::TCP, address: Prefix::host(VIP.into()), port };
        let drop = rule().with(Match::Ipvs(Box::new(asked))).then(Target::Drop);
        proxy.rules.append(Table::Filter, output, drop);
        let mut bench = Bench::new(proxy, services(REMOTE_POD));
        let outcome = bench.receive(tcp((CLIENT, 1000), (VIP, 80), SYN), CNI0);
        matches!(outcome, Outcome::Dropped(Drop { hook: Hook::Output, .. }))
    };
    assert_eq!([80, 8080].map(drop), [true, false]);
}

/// The first packet ends the connection in both tables, the second is the host's to reset.
#[test]
fn a_connection_to_a_server_that_is_gone_ends() {
    let mut bench = Bench::new(Proxy::new(), services(REMOTE_POD));
    let _ = bench.pass(tcp((CLIENT, 1000), (VIP, 80), SYN), CNI0);
    let _ = bench.pass(tcp((REMOTE_POD, 8080), (CLIENT, 1000), TcpFlags::SYN_ACK), ETH0);
    let mut ipvs = services(REMOTE_POD);
    ipvs.services[0].destinations.clear();
    bench.rules = bench.rules.clone().with_ipvs(ipvs);
    let ack = tcp((CLIENT, 1000), (VIP, 80), TcpFlags::ACK);
    let drop = dropped(bench.receive(ack, CNI0));
    assert_eq!((drop.hook, drop.reason), (Hook::Input, DropReason::ServerGone));
    assert_eq!(bench.entries(), <[String; 0]>::default());
    let _ = local(bench.receive(ack, CNI0));
}

#[test]
fn an_expired_connection_takes_its_entry_along() {
    let mut bench = Bench::new(Proxy::new(), services(REMOTE_POD));
    let _ = bench.pass(tcp((CLIENT, 1000), (VIP, 80), SYN), CNI0);
    let _ = bench.pass(tcp((REMOTE_POD, 8080), (CLIENT, 1000), TcpFlags::SYN_ACK), ETH0);
    let _ = bench.pass(tcp((CLIENT, 1000), (VIP, 80), TcpFlags::ACK), CNI0);
    bench.now = 899;
    assert_eq!(bench.netns.ipvs().connections().count(), 1);
    let _ = bench.netns.ipvs_mut(SimTime::from_nanos(899_000_000_000));
    assert_eq!(bench.entries().len(), 1);
    bench.now = 900;
    let state = bench.netns.ipvs_mut(SimTime::from_nanos(900_000_000_000));
    assert_eq!(state.connections().count(), 0);
    // In connection tracking alone it would have stayed for days.
    assert_eq!(bench.entries().len(), 0);
}

#[test]
fn hops_are_counted() {
    let mut bench = Bench::new(Proxy::new(), services(REMOTE_POD));
    let mut packet = tcp((CLIENT, 1000), (VIP, 80), SYN);
    packet.ttl = 1;
    let Outcome::Rejected(rejection) = bench.receive(packet, CNI0) else { panic!("told") };
    assert_eq!(rejection.drop.reason, DropReason::TtlExpired);
}
