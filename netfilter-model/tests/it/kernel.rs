//! One body of rules and packets, two arms: the model and the kernel.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use netfilter_model::hook::{Hook, Table};
use netfilter_model::host::{Env, Host, Route, RouteQuery};
use netfilter_model::netns::{Answer, Netns, Outcome};
use netfilter_model::packet::{IcmpError, L4, Packet, TcpFlags};
use netfilter_model::rule::{
    AddrType, AddrTypeMatch, AddrTypes, CtStates, DeviceMatch, FlagsMatch, LimitIface, Match, Nat,
    NatFlags, NatRange, Origin, PortMatch, Probability, RejectWith, Rule, Ruleset, RulesetBuilder,
    Target, iptables_save,
};
use netfilter_model::time::SimTime;
use netfilter_model::tuple::{Protocol, Tuple};
use netfilter_model::{DeviceId, DeviceName, DevicePattern, Prefix};

use crate::lab::{BACKENDS, Lab, Tool, skip};

const LO: DeviceId = DeviceId(0);
const C0: DeviceId = DeviceId(1);
const S0: DeviceId = DeviceId(2);
const CLIENT: Ipv4Addr = Ipv4Addr::new(10, 244, 1, 2);
const MASQ: u32 = 0x4000;

/// The node of the lab.
pub(crate) struct Node;

impl Host for Node {
    fn route(&self, query: RouteQuery) -> Route {
        let IpAddr::V4(dst) = query.dst else {
            return Route::NoRoute;
        };
        match dst.octets() {
            [10, 244, 1 | 2, 1] => Route::Local,
            [10, 244, 1, _] => Route::Forward { dev: C0, next_hop: query.dst },
            [10, 244, 2, _] => Route::Forward { dev: S0, next_hop: query.dst },
            // Addresses that no rule rewrites need a route to get as far as FORWARD.
            [10, 96, 0, 5 | 8] => Route::Forward { dev: S0, next_hop: backend(0).into() },
            _ => Route::NoRoute,
        }
    }

    fn addr_type(&self, addr: IpAddr, _: Option<DeviceId>) -> AddrType {
        match addr {
            IpAddr::V4(addr) if addr.is_loopback() => AddrType::Local,
            IpAddr::V4(addr) if matches!(addr.octets(), [10, 244, 1 | 2, 1]) => AddrType::Local,
            _ => AddrType::Unicast,
        }
    }

    fn masquerade_address(&self, dev: DeviceId, _: IpAddr) -> Option<IpAddr> {
        let net = [None, Some(1), Some(2)][dev.0 as usize]?;
        Some(Ipv4Addr::new(10, 244, net, 1).into())
    }

    fn loopback(&self) -> DeviceId {
        LO
    }

    fn device_name(&self, dev: DeviceId) -> DeviceName {
        DeviceName::parse(["lo", "c0", "s0"][dev.0 as usize]).expect("a name")
    }
}

fn rule() -> Rule {
    Rule::new(Origin::default())
}

fn host(addr: Ipv4Addr) -> Prefix {
    Prefix::host(addr.into())
}

fn vip(n: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 96, 0, n)
}

fn backend(n: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 244, 2, 2 + n)
}

/// A Service of the test: its address, and what stands behind it.
struct Service {
    vip: Ipv4Addr,
    protocol: Protocol,
    port: u16,
    backends: Vec<Ipv4Addr>,
    masquerade: bool,
}

fn services() -> Vec<Service> {
    let tcp = |n, backends: Vec<u8>, masquerade| Service {
        vip: vip(n),
        protocol: Protocol::TCP,
        port: 80,
        backends: backends.into_iter().map(backend).collect(),
        masquerade,
    };
    let udp = |n| Service { protocol: Protocol::UDP, port: 53, ..tcp(n, vec![0], false) };
    vec![
        tcp(1, vec![0], false),
        tcp(2, vec![1], false),
        tcp(3, vec![2], true),
        tcp(4, (0..BACKENDS).collect(), false),
        tcp(5, vec![], false),
        udp(6),
        udp(7),
    ]
}

/// Rules of the shape that kube-proxy makes.
fn proxy_rules() -> Ruleset {
    let mut rules = RulesetBuilder::new();
    let nat = Table::Nat;
    let entry = rules.chain(nat, "KUBE-SERVICES");
    let mark = rules.chain(nat, "KUBE-MARK-MASQ");
    let leave = rules.chain(nat, "KUBE-POSTROUTING");
    let refuse = rules.chain(Table::Filter, "KUBE-SERVICES");
    let forward = rules.chain(Table::Filter, "KUBE-FORWARD");
    for hook in [Hook::Prerouting, Hook::Output] {
        let builtin = rules.builtin(nat, hook);
        let portals = rule().comment("kubernetes service portals").then(Target::Jump(entry));
        rules.append(nat, builtin, portals);
    }
    let builtin = rules.builtin(nat, Hook::Postrouting);
    let text = "kubernetes postrouting rules";
    rules.append(nat, builtin, rule().comment(text).then(Target::Jump(leave)));
    rules.append(nat, leave, rule().not_mark(MASQ, MASQ).then(Target::Return));
    rules.append(nat, leave, rule().then(Target::xor_mark(MASQ)));
    let flags = NatFlags { random_fully: true, ..NatFlags::default() };
    let masquerade = Target::Nat(Nat::Masquerade(NatRange::keep().with_flags(flags)));
    let text = "kubernetes service traffic requiring SNAT";
    rules.append(nat, leave, rule().comment(text).then(masquerade));
    rules.append(nat, mark, rule().then(Target::or_mark(MASQ)));
    let builtin = rules.builtin(Table::Filter, Hook::Forward);
    let text = "kubernetes forwarding rules";
    rules.append(Table::Filter, builtin, rule().comment(text).then(Target::Jump(forward)));
    for hook in [Hook::Forward, Hook::Output] {
        let builtin = rules.builtin(Table::Filter, hook);
        let new = rule().ctstate(CtStates::NEW).comment("kubernetes service portals");
        rules.append(Table::Filter, builtin, new.then(Target::Jump(refuse)));
    }
    let invalid = rule().ctstate(CtStates::INVALID).then(Target::Drop);
    rules.append(Table::Filter, forward, invalid);
    let marked = rule().comment("kubernetes forwarding rules").mark(MASQ, MASQ);
    rules.append(Table::Filter, forward, marked.then(Target::Accept));
    let known = rule().ctstate(CtStates::RELATED | CtStates::ESTABLISHED);
    rules.append(Table::Filter, forward, known.then(Target::Accept));
    for service in services() {
        add_service(&mut rules, &service);
    }
    // Dropped silently: what policy Local does on a node without a local endpoint.
    let silent = rule().destination(host(vip(8))).dport(Protocol::TCP, 80).then(Target::Drop);
    rules.append(Table::Filter, refuse, silent);
    rules.build().expect("valid rules")
}

fn add_service(rules: &mut RulesetBuilder, service: &Service) {
    let Service { vip, protocol, port, backends, masquerade } = service;
    let name = format!("default/svc-{}:p", vip.octets()[3]);
    let to_vip = |text: &str| {
        let to_vip = rule().destination(host(*vip)).protocol(*protocol);
        to_vip.comment(format!("{name} {text}")).dport(*protocol, *port)
    };
    if backends.is_empty() {
        let refuse = rules.chain(Table::Filter, "KUBE-SERVICES");
        let told = to_vip("has no endpoints").then(Target::Reject(RejectWith::DEFAULT));
        rules.append(Table::Filter, refuse, told);
        return;
    }
    let nat = Table::Nat;
    let (entry, mark) = (rules.chain(nat, "KUBE-SERVICES"), rules.chain(nat, "KUBE-MARK-MASQ"));
    let chain = rules.chain(nat, format!("KUBE-SVC-{}", vip.octets()[3]));
    rules.append(nat, entry, to_vip("cluster IP").then(Target::Jump(chain)));
    if *masquerade {
        rules.append(nat, chain, to_vip("cluster IP").then(Target::Jump(mark)));
    }
    let target_port = if *protocol == Protocol::TCP { 8080 } else { 5353 };
    for (i, addr) in backends.iter().enumerate() {
        let sep = rules.chain(nat, format!("KUBE-SEP-{}-{i}", vip.octets()[3]));
        let pick = rule().comment(format!("{name} -> {addr}:{target_port}"));
        let left = (backends.len() - i) as u32;
        let pick = if left > 1 { pick.random(Probability::one_of(left)) } else { pick };
        rules.append(nat, chain, pick.then(Target::Jump(sep)));
        let hairpin = rule().source(host(*addr)).comment(&*name).then(Target::Jump(mark));
        rules.append(nat, sep, hairpin);
        let rewrite = Target::Nat(Nat::Dnat(NatRange::to((*addr).into(), target_port)));
        // The port match comes with -m tcp or -m udp, as kube-proxy writes it.
        let rewrite = match *protocol {
            Protocol::TCP => rule().protocol(*protocol).comment(&*name).with(Match::Tcp {
                sport: None,
                dport: None,
                flags: None,
                option: None,
            }),
            _ => rule()
                .protocol(*protocol)
                .comment(&*name)
                .with(Match::Udp { sport: None, dport: None }),
        }
        .then(rewrite);
        rules.append(nat, sep, rewrite);
    }
}

/// The model's arm.
struct Model {
    netns: Netns,
    rules: Ruleset,
    drawn: u64,
}

impl Model {
    fn new(rules: Ruleset) -> Model {
        Model { netns: Netns::default(), rules, drawn: 0 }
    }

    fn receive(&mut self, packet: Packet) -> Outcome {
        let drawn = &mut self.drawn;
        let mut draws = |_| {
            *drawn += 1;
            mix(*drawn)
        };
        let rules = &self.rules;
        let mut env = Env { now: SimTime::ZERO, host: &Node, rules, draws: &mut draws };
        self.netns.receive(packet, C0, &mut env)
    }

    fn syn(&mut self, sport: u16, to: SocketAddr) -> Outcome {
        self.receive(Packet::tcp(0, tuple(Protocol::TCP, sport, to), TcpFlags::SYN))
    }
}

fn tuple(protocol: Protocol, sport: u16, to: SocketAddr) -> Tuple {
    Tuple::try_new(protocol, CLIENT.into(), sport, to.ip(), to.port()).expect("one family")
}

fn mix(seed: u64) -> u64 {
    let z = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ z >> 31
}

/// What a client of the lab saw.
#[derive(Debug)]
struct Seen {
    /// The client's end, or for UDP the end that answered.
    end: SocketAddr,
    server: SocketAddr,
    peer: SocketAddr,
}

fn seen(line: &str) -> Seen {
    let words: Vec<&str> = line.split_whitespace().collect();
    let [end, "ok", server, peer] = words[..] else { panic!("no answer: {line}") };
    let parse = |text: &str| text.parse().unwrap_or_else(|_| panic!("{text} in {line}"));
    Seen { end: parse(end), server: parse(server), peer: parse(peer) }
}

/// Runs a body on both back ends, or says why not.
fn on_both(test: &str, body: impl Fn(Tool, &Lab)) {
    for tool in [Tool::Legacy, Tool::Nft] {
        match Lab::try_new(tool) {
            Ok(lab) => body(tool, &lab),
            Err(reason) => skip(&format!("{test} ({tool:?})"), &reason),
        }
    }
}

/// Loads rules and checks that the kernel prints them as the model does.
fn load(tool: Tool, lab: &Lab, rules: &Ruleset) {
    let text = iptables_save(rules);
    lab.restore(tool, &text).unwrap_or_else(|error| panic!("{tool:?}: {error}\n{text}"));
    for section in text.split_inclusive("COMMIT\n") {
        let table = section.lines().next().expect("a table line").trim_start_matches('*');
        let printed = lab.save(tool, table).expect("tables print");
        assert_eq!(printed, section, "{tool:?}, table {table}");
    }
}

#[test]
fn services_carry_connections_where_the_model_says() {
    on_both("services_carry_connections_where_the_model_says", |tool, lab| {
        let rules = proxy_rules();
        load(tool, lab, &rules);
        let mut model = Model::new(rules);
        let targets: Vec<SocketAddr> = (1..=3).map(|n| (vip(n), 80).into()).collect();
        let args: Vec<String> = targets.iter().map(SocketAddr::to_string).collect();
        let lines = lab.client("tcp", &args.join(" "));
        assert_eq!(lines.len(), targets.len());
        let entries = lab.node("conntrack", &["-L", "-p", "tcp"], "");
        if let Err(reason) = &entries {
            skip("the entries of services_carry_connections_where_the_model_says", reason);
        }
        for (to, line) in targets.iter().zip(&lines) {
            let seen = seen(line);
            let Outcome::Sent(egress) = model.syn(seen.end.port(), *to) else {
                panic!("{tool:?}: {to} is sent")
            };
            let out = egress.packet.tuple;
            assert_eq!((seen.server.ip(), seen.server.port()), (out.dst(), out.dst_part));
            assert_eq!(seen.peer.ip(), out.src(), "{tool:?}: {to}");
            let masqueraded = out.src() != IpAddr::from(CLIENT);
            if masqueraded {
                assert!(seen.peer.port() >= 1024 && out.src_part >= 1024);
            } else {
                assert_eq!(seen.peer.port(), out.src_part);
            }
            if let (Ok(entries), false) = (&entries, masqueraded) {
                check_entry(entries, &tuple(Protocol::TCP, seen.end.port(), *to), &out.reply());
            }
        }
    });
}

/// Checks that `conntrack -L` lists an entry with these tuples.
fn check_entry(listed: &str, original: &Tuple, reply: &Tuple) {
    let one = |t: &Tuple| {
        format!("src={} dst={} sport={} dport={}", t.src(), t.dst(), t.src_part, t.dst_part)
    };
    let wanted = format!("{} {}", one(original), one(reply));
    assert!(listed.lines().any(|line| line.contains(&wanted)), "no {wanted} in\n{listed}");
}

#[test]
fn a_service_with_many_endpoints_spreads_evenly() {
    on_both("a_service_with_many_endpoints_spreads_evenly", |tool, lab| {
        const CONNECTIONS: usize = 300;
        let rules = proxy_rules();
        load(tool, lab, &rules);
        let to = SocketAddr::from((vip(4), 80));
        let lines = lab.client("tcp", &format!("{to} ").repeat(CONNECTIONS));
        let kernel = count(lines.iter().map(|line| seen(line).server.ip()));
        let mut model = Model::new(rules);
        let model = count((0..CONNECTIONS as u16).map(|i| match model.syn(2000 + i, to) {
            Outcome::Sent(egress) => egress.packet.tuple.dst(),
            other => panic!("{other:?}"),
        }));
        assert!(kernel.keys().eq(model.keys()), "{kernel:?} {model:?}");
        assert_eq!(kernel.len(), usize::from(BACKENDS));
        for (arm, counts) in [("kernel", kernel), ("model", model)] {
            let expected = CONNECTIONS as f64 / f64::from(BACKENDS);
            let chi2: f64 =
                counts.values().map(|n| (f64::from(*n) - expected).powi(2) / expected).sum();
            // 4 degrees of freedom: the 1 - 1e-6 quantile is 33.4.
            assert!(chi2 < 33.4, "{tool:?}, {arm}: chi² {chi2}, {counts:?}");
        }
    });
}

fn count(addresses: impl Iterator<Item = IpAddr>) -> BTreeMap<IpAddr, u32> {
    let mut counts = BTreeMap::new();
    for address in addresses {
        *counts.entry(address).or_insert(0) += 1;
    }
    counts
}

#[test]
fn refusals_reach_the_client_as_the_model_says() {
    on_both("refusals_reach_the_client_as_the_model_says", |tool, lab| {
        let rules = proxy_rules();
        load(tool, lab, &rules);
        let mut model = Model::new(rules);
        let cases: [(SocketAddr, &str, Option<IcmpError>); 3] = [
            // No endpoints: REJECT.
            ((vip(5), 80).into(), "- ConnectionRefused", Some(IcmpError::PortUnreachable)),
            // A port that no rule knows: routed, and there is no route.
            ((vip(1), 81).into(), "- NetworkUnreachable", Some(IcmpError::NetUnreachable)),
            // DROP.
            ((vip(8), 80).into(), "- TimedOut", None),
        ];
        for vip in [vip(5), vip(8)] {
            let route = format!("route add {vip}/32 via {}", backend(0));
            let args: Vec<&str> = route.split(' ').collect();
            lab.node("ip", &args, "").expect("routes are added");
        }
        for (to, expected, error) in cases {
            let line = lab.client("tcp", &to.to_string());
            assert_eq!(line, [expected], "{tool:?}: {to}");
            let outcome = model.syn(1000, to);
            let told = match &outcome {
                Outcome::Rejected(rejection) => match &rejection.answer {
                    Answer::Sent(answer) => match answer.packet.l4 {
                        L4::IcmpError { kind, .. } => Some(kind),
                        _ => None,
                    },
                    Answer::Local(_) => None,
                },
                _ => None,
            };
            assert_eq!(told, error, "{to}: {outcome:?}");
            assert_eq!(model.netns.conntrack().len(), 0, "{to}: nothing is left");
        }
        if let Ok(entries) = lab.node("conntrack", &["-L"], "") {
            assert!(!entries.contains("10.96.0."), "{tool:?}: nothing is left of\n{entries}");
        }
    });
}

#[test]
fn refusals_are_limited_to_six_at_once() {
    on_both("refusals_are_limited_to_six_at_once", |tool, lab| {
        let rules = proxy_rules();
        load(tool, lab, &rules);
        let mut model = Model::new(rules);
        let to = SocketAddr::from((vip(5), 80));
        let route = format!("route add {}/32 via {}", vip(5), backend(0));
        lab.node("ip", &route.split(' ').collect::<Vec<_>>(), "").expect("routes are added");
        // The clients try together and give up before a retransmission is due.
        let lines = lab.client("together", &format!("{to} ").repeat(12));
        let refused = lines.iter().filter(|line| *line == "- ConnectionRefused").count();
        let outcomes = (0..12).map(|i| model.syn(1000 + i, to));
        let told = outcomes.filter(|outcome| matches!(outcome, Outcome::Rejected(_))).count();
        assert_eq!((lines.len(), told), (12, 6));
        // A slow machine may take so long to start them that another token has come.
        assert!((6..=7).contains(&refused), "{tool:?}: {lines:?}");
    });
}

#[test]
fn one_client_port_to_two_vips_gets_another_source_port() {
    on_both("one_client_port_to_two_vips_gets_another_source_port", |tool, lab| {
        let rules = proxy_rules();
        load(tool, lab, &rules);
        let mut model = Model::new(rules);
        let targets: [SocketAddr; 2] = [(vip(6), 53).into(), (vip(7), 53).into()];
        let lines = lab.client("udp", &format!("4444 {} {}", targets[0], targets[1]));
        assert_eq!(lines.len(), 2);
        for (i, (to, line)) in targets.iter().zip(&lines).enumerate() {
            let seen = seen(line);
            assert_eq!(seen.end, *to, "{tool:?}: the answer comes from the VIP");
            let packet = Packet::udp(0, tuple(Protocol::UDP, 4444, *to), 29);
            let Outcome::Sent(egress) = model.receive(packet) else { panic!("{to} is sent") };
            let out = egress.packet.tuple;
            assert_eq!((seen.server.ip(), seen.server.port()), (out.dst(), out.dst_part));
            for port in [seen.peer.port(), out.src_part] {
                assert_eq!(port == 4444, i == 0, "{tool:?}: {port} towards {to}");
                assert!(port >= 1024);
            }
        }
    });
}

/// A rule of every kind, to be printed.
fn every_kind() -> Ruleset {
    let mut rules = RulesetBuilder::new();
    let nat = Table::Nat;
    let a = rules.chain(nat, "A");
    let b = rules.chain(nat, "B");
    let tcp = |sport, dport, flags| {
        rule().protocol(Protocol::TCP).with(Match::Tcp { sport, dport, flags, option: None })
    };
    let udp = |sport, dport| rule().protocol(Protocol::UDP).with(Match::Udp { sport, dport });
    let icmp = |kind, code, invert| {
        rule().protocol(Protocol::ICMP).with(Match::Icmp { kind, code, invert })
    };
    let local = |invert| Some(AddrTypeMatch { types: AddrTypes::of(&[AddrType::Local]), invert });
    let nth = |every, packet, invert| rule().with(Match::Nth { every, packet, invert });
    let flags = |mask, set, invert| Some(FlagsMatch { mask, set, invert });
    let range = |ports| NatRange { ports, ..NatRange::keep() };
    let random = NatFlags { random: true, ..NatFlags::default() };
    let persistent = NatFlags { persistent: true, ..NatFlags::default() };
    let address = |n| NatRange::address(vip(n).into());
    let listed = [
        tcp(None, Some(PortMatch::range(5, 7).inverted()), Some(FlagsMatch::SYN))
            .random(Probability::one_of(3))
            .then(Target::Jump(b)),
        tcp(Some(PortMatch::range(0, 9)), None, None)
            .comment("a.b 'c' \"d\" \\e")
            .then(Target::Goto(b)),
        tcp(None, None, flags(TcpFlags::ALL, TcpFlags::NONE, true)).then(Target::Return),
        udp(Some(PortMatch::one(5)), Some(PortMatch::range(0, 65535))).then(Target::Accept),
        icmp(8, None, false).comment("plain-word").then(Target::None),
        icmp(3, Some(1), true).then(Target::set_mark(1, 3)),
        icmp(255, None, false).then(Target::and_mark(0xff)),
        rule().with(Match::AddrType {
            src: local(false),
            dst: local(true),
            limit: Some(LimitIface::In),
        }),
        rule().with(Match::Mark { value: 1, mask: u32::MAX, invert: true }),
        rule().with(Match::CtState {
            states: CtStates::INVALID | CtStates::NEW | CtStates::UNTRACKED | CtStates::DNAT,
            invert: true,
        }),
        nth(3, 0, false).comment(""),
        nth(3, 1, true),
        rule().with(Match::Random { probability: Probability::one_of(44), invert: true }),
        rule().random(Probability::NEVER),
        rule()
            .not_source(Prefix::new(vip(9).into(), 24))
            .not_destination(host(vip(1)))
            .with(Match::InDevice(Box::new(DeviceMatch {
                pattern: DevicePattern::parse("eth+").expect("a pattern"),
                invert: true,
            })))
            .out_device("cni0")
            .expect("a pattern")
            .with(Match::Protocol { protocol: Protocol(132), invert: true }),
        rule().protocol(Protocol(200)),
        rule().protocol(Protocol(0)).destination(Prefix::new(vip(1).into(), 0)),
    ];
    for listed in listed {
        rules.append(nat, a, listed);
    }
    let of_tcp = || rule().protocol(Protocol::TCP);
    let prerouting = rules.builtin(nat, Hook::Prerouting);
    rules.append(nat, prerouting, rule().then(Target::Jump(a)));
    for nat_target in [
        Nat::Dnat(NatRange::to(vip(1).into(), 80)),
        Nat::Dnat(range(Some((80, 90))).with_flags(random)),
        Nat::Dnat(address(1).with_flags(persistent)),
        Nat::Redirect(range(None)),
        Nat::Redirect(range(Some((80, 80))).with_flags(random)),
    ] {
        rules.append(nat, prerouting, of_tcp().then(Target::Nat(nat_target)));
    }
    let postrouting = rules.builtin(nat, Hook::Postrouting);
    let fully = NatFlags { random_fully: true, ..NatFlags::default() };
    for nat_target in [
        Nat::Snat(NatRange::to(vip(1).into(), 80).with_flags(fully)),
        Nat::Masquerade(range(Some((1000, 2000))).with_flags(fully)),
        Nat::Masquerade(range(None)),
    ] {
        rules.append(nat, postrouting, of_tcp().then(Target::Nat(nat_target)));
    }
    let input = rules.builtin(Table::Filter, Hook::Input);
    for with in [
        RejectWith::TcpReset,
        RejectWith::DEFAULT,
        RejectWith::Icmp(IcmpError::NetUnreachable),
        RejectWith::Icmp(IcmpError::HostUnreachable),
        RejectWith::Icmp(IcmpError::ProtocolUnreachable),
        RejectWith::Icmp(IcmpError::NetProhibited),
        RejectWith::Icmp(IcmpError::HostProhibited),
        RejectWith::Icmp(IcmpError::AdminProhibited),
    ] {
        rules.append(Table::Filter, input, of_tcp().then(Target::Reject(with)));
    }
    for table in [Table::Raw, Table::Mangle, Table::Security] {
        let output = rules.builtin(table, Hook::Output);
        rules.append(table, output, rule().then(Target::xor_mark(2)));
    }
    rules.policy(Table::Filter, Hook::Forward, netfilter_model::rule::Policy::Drop);
    rules.build().expect("valid rules")
}

#[test]
fn every_kind_of_rule_prints_as_the_kernel_prints_it() {
    on_both("every_kind_of_rule_prints_as_the_kernel_prints_it", |tool, lab| {
        load(tool, lab, &every_kind());
    });
}
