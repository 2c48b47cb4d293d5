mod property;

use super::*;
use crate::conntrack::{Conntrack, Sysctls};
use crate::hook::Hook;
use crate::packet::{L4, Segment, TcpFlags};
use crate::rule::{
    AddrTypeMatch, Backend, Base, FlagsMatch, Fragment, FragmentId, FragmentView, Invertible,
    LimitIface, Match, Origin, PortMatch, Probability, RpfilterMatch, Ruleset, RulesetBuilder,
    SlotHit, SlotId, Target,
};
use crate::testing::*;
use crate::tuple::{Protocol, Tuple};

/// Everything that two walks must agree on; chains have other ids in parts than in the whole.
#[derive(Debug, PartialEq)]
struct Seen {
    verdict: Verdict,
    evaluated: u32,
    rule: Option<(u32, Origin)>,
    packet: Packet,
    draws: u32,
}

fn walk<R: Rules>(
    rules: &R,
    table: Table,
    hook: Hook,
    packet: Packet,
    seed: u64,
    lookup: Lookup,
    memory: &mut Memory,
) -> Seen {
    let mut packet = packet;
    let mut ordinal = 0;
    let mut draws = |i| bits(seed ^ u64::from(i) << 40);
    let host = Node::default();
    let mut table_of = Conntrack::new(Sysctls::default());
    let mut cx = Context {
        host: &host,
        draws: &mut draws,
        ordinal: &mut ordinal,
        in_dev: Some(CNI0),
        out_dev: Some(ETH0),
        hook,
        now: SimTime::ZERO,
        ct_state: CtStates::NEW,
        ct: Tracked { table: &mut table_of, own: &mut None, track: &mut None, zones: &mut [0; 2] },
        ingress: Some(Ingress::by(CNI0)),
        out_port: None,
        socket: None,
        virtual_end: None,
        memory,
    };
    let base = rules.base(table, hook).expect("the table is loaded");
    let Traversal { verdict, evaluated, rule } =
        traverse(rules, table, base, &mut packet, &mut cx, lookup);
    let rule = rule.map(|rule| (rule.number, rule.origin));
    Seen { verdict, evaluated, rule, packet, draws: ordinal }
}

/// Walks the filter table's FORWARD chain.
fn forward(rules: &Ruleset, packet: Packet) -> Seen {
    let mut memory = Memory::default();
    walk(rules, Table::Filter, Hook::Forward, packet, 1, Lookup::Indexed, &mut memory)
}

fn packet() -> Packet {
    tcp((CLIENT, 1000), (VIP, 80), TcpFlags::SYN)
}

/// Builds a filter table: chain name (FORWARD or a user chain) and rules, which may call user
/// chains by number.
fn table(policy: Policy, chains: &[(&str, &[Step])]) -> Ruleset {
    let mut builder = RulesetBuilder::new();
    builder.policy(Table::Filter, Hook::Forward, policy);
    let ids: Vec<ChainId> = chains
        .iter()
        .map(|(name, _)| match *name {
            "FORWARD" => builder.builtin(Table::Filter, Hook::Forward),
            name => builder.chain(Table::Filter, name),
        })
        .collect();
    for ((_, steps), id) in chains.iter().zip(&ids) {
        for step in *steps {
            let target = match step {
                Step::Jump(chain) => Target::Jump(ids[*chain]),
                Step::Goto(chain) => Target::Goto(ids[*chain]),
                Step::Do(target) => target.clone(),
            };
            builder.append(Table::Filter, *id, rule().then(target));
        }
    }
    builder.build().expect("a valid table")
}

enum Step {
    Jump(usize),
    Goto(usize),
    Do(Target),
}

#[test]
fn jumps_returns_and_policies() {
    use Step::{Do, Goto, Jump};
    use Target::{Accept, Drop, Return};
    type Case<'a> = (&'a str, Policy, &'a [(&'a str, &'a [Step])], Verdict, u32);
    let cases: &[Case<'_>] = &[
        ("empty", Policy::Drop, &[("FORWARD", &[])], Verdict::Drop, 0),
        (
            "return in a base chain: policy",
            Policy::Drop,
            &[("FORWARD", &[Do(Return), Do(Accept)])],
            Verdict::Drop,
            1,
        ),
        (
            "a chain's end goes back behind the jump",
            Policy::Accept,
            &[("FORWARD", &[Jump(1), Do(Drop)]), ("A", &[Do(Target::None)])],
            Verdict::Drop,
            3,
        ),
        (
            "return goes back behind the jump",
            Policy::Accept,
            &[("FORWARD", &[Jump(1), Do(Drop)]), ("A", &[Do(Return), Do(Accept)])],
            Verdict::Drop,
            3,
        ),
        (
            "goto from a base chain: its end is the policy",
            Policy::Accept,
            &[("FORWARD", &[Goto(1), Do(Drop)]), ("A", &[])],
            Verdict::Accept,
            1,
        ),
        (
            "goto returns to the caller of its chain",
            Policy::Accept,
            &[("FORWARD", &[Jump(1), Do(Drop)]), ("A", &[Goto(2), Do(Accept)]), ("B", &[])],
            Verdict::Drop,
            3,
        ),
        (
            "accept ends the table from within",
            Policy::Drop,
            &[("FORWARD", &[Jump(1), Do(Drop)]), ("A", &[Jump(2)]), ("B", &[Do(Accept)])],
            Verdict::Accept,
            3,
        ),
        (
            "one chain called twice",
            Policy::Accept,
            &[("FORWARD", &[Jump(1), Jump(1), Do(Drop)]), ("A", &[Do(Target::None)])],
            Verdict::Drop,
            5,
        ),
    ];
    for (name, policy, chains, verdict, evaluated) in cases {
        let seen = forward(&table(*policy, chains), packet());
        assert_eq!((&seen.verdict, seen.evaluated), (verdict, *evaluated), "{name}: {seen:?}");
    }
}

/// Each chain calls the next one twice.
#[test]
fn walks_that_grow_with_every_level_are_given_up() {
    for (levels, ends) in [(8, true), (23, true), (40, false)] {
        // nf_tables nests 15 jumps.
        let mut builder = RulesetBuilder::for_backend(Backend::Legacy);
        let mut caller = builder.builtin(Table::Filter, Hook::Forward);
        for level in 0..levels {
            let callee = builder.chain(Table::Filter, format!("C{level}"));
            builder.append(Table::Filter, caller, rule().then(Target::Jump(callee)));
            builder.append(Table::Filter, caller, rule().then(Target::Jump(callee)));
            caller = callee;
        }
        let rules = builder.build().unwrap();
        let [seen, others @ ..] =
            [Lookup::Linear, Lookup::Indexed, Lookup::RuleByRule].map(|lookup| {
                let mut memory = Memory::default();
                walk(&rules, Table::Filter, Hook::Forward, packet(), 1, lookup, &mut memory)
            });
        let verdict = if ends { Verdict::Accept } else { Verdict::Unfinished };
        let evaluated = if ends { (2 << levels) - 2 } else { RULES_MAX };
        assert_eq!((&seen.verdict, seen.evaluated), (&verdict, evaluated), "{levels} levels");
        for other in others {
            assert_eq!(other, seen, "{levels} levels");
        }
    }
}

#[test]
fn marks() {
    let cases = [
        ("--set-mark 0x1/0x3", 0xf, Target::set_mark(0x1, 0x3), 0xd),
        ("--set-mark also clears its own bits", 0xf, Target::set_mark(0x8, 0x3), 0xc),
        ("--or-mark", 0x1, Target::or_mark(0x4000), 0x4001),
        ("--and-mark", 0x4001, Target::and_mark(0x1), 0x1),
        ("--xor-mark", 0x4001, Target::xor_mark(0x4000), 0x1),
        ("--set-xmark 0x1/0xffffffff", 0xf0, Target::Mark { value: 1, mask: u32::MAX }, 0x1),
    ];
    for (name, before, target, after) in cases {
        let rules = table(Policy::Accept, &[("FORWARD", &[Step::Do(target)])]);
        let seen = forward(&rules, Packet { mark: before, ..packet() });
        assert_eq!(seen.packet.mark, after, "{name}");
    }
}

/// Whether a rule with this match drops the packet.
fn matches(condition: Rule, packet: Packet) -> bool {
    let mut builder = RulesetBuilder::new();
    let chain = builder.builtin(Table::Filter, Hook::Forward);
    builder.append(Table::Filter, chain, condition.then(Target::Drop));
    forward(&builder.build().expect("a valid rule"), packet).verdict == Verdict::Drop
}

#[test]
fn matches_one_by_one() {
    let tcp_match = |sport, dport, flags| {
        rule().protocol(Protocol::TCP).with(Match::Tcp { sport, dport, flags, option: None })
    };
    let net = |text: [u8; 4], len| crate::Prefix::new(std::net::Ipv4Addr::from(text).into(), len);
    let ctstate = |states, invert| rule().with(Match::CtState { states, invert });
    let types = |kind, invert| AddrTypeMatch { types: crate::rule::AddrTypes::of(&[kind]), invert };
    let addrtype = |src, dst, on_input: bool| {
        let limit = on_input.then_some(LimitIface::In);
        rule().with(Match::AddrType { src, dst, limit })
    };
    use crate::rule::AddrType::{Local, Unicast};
    let marked = Packet { mark: 0x1ff, ..packet() };
    let cases = [
        ("source in prefix", rule().source(net([10, 244, 1, 9], 24)), packet(), true),
        ("source outside", rule().source(net([10, 244, 2, 0], 24)), packet(), false),
        ("! source", rule().not_source(net([10, 244, 2, 0], 24)), packet(), true),
        ("destination", rule().destination(host(VIP)), packet(), true),
        ("everything", rule().destination(net([0, 0, 0, 0], 0)), packet(), true),
        ("protocol", rule().protocol(Protocol::UDP), packet(), false),
        ("in device", rule().in_device("cni+").unwrap(), packet(), true),
        ("out device", rule().out_device("cni0").unwrap(), packet(), false),
        ("sport", tcp_match(Some(PortMatch::range(1, 999)), None, None), packet(), false),
        (
            "! sport",
            tcp_match(Some(PortMatch::range(1, 999).inverted()), None, None),
            packet(),
            true,
        ),
        ("dport", tcp_match(None, Some(PortMatch::one(80)), None), packet(), true),
        ("syn", tcp_match(None, None, Some(FlagsMatch::SYN)), packet(), true),
        (
            "syn on an answer",
            tcp_match(None, None, Some(FlagsMatch::SYN)),
            tcp((CLIENT, 1), (VIP, 80), TcpFlags::SYN_ACK),
            false,
        ),
        ("mark is masked, the value is not", rule().mark(0x1ff, 0xff), marked, false),
        ("mark", rule().mark(0xff, 0xff), marked, true),
        ("! mark", rule().not_mark(0x4000, 0x4000), marked, true),
        ("ctstate", ctstate(CtStates::NEW | CtStates::RELATED, false), packet(), true),
        ("! ctstate", ctstate(CtStates::NEW, true), packet(), false),
        ("dst-type of an address that is not ours", rule().dst_type(Local), packet(), false),
        ("src-type unicast", rule().src_type(Unicast), packet(), true),
        (
            "dst-type local",
            rule().dst_type(Local),
            tcp((CLIENT, 1), (NODE, 2), TcpFlags::SYN),
            true,
        ),
        (
            "local, but on another device",
            addrtype(None, Some(types(Local, false)), true),
            tcp((CLIENT, 1), (NODE, 2), TcpFlags::SYN),
            false,
        ),
        (
            "! dst-type",
            addrtype(Some(types(Unicast, false)), Some(types(Local, true)), false),
            packet(),
            true,
        ),
        ("comment", rule().comment("x"), packet(), true),
        ("always", rule().random(Probability::ALWAYS), packet(), true),
        ("never", rule().random(Probability::NEVER), packet(), false),
        (
            "! never",
            rule().with(Match::Random { probability: Probability::NEVER, invert: true }),
            packet(),
            true,
        ),
        (
            "icmp type",
            rule().protocol(Protocol::ICMP).with(Match::Icmp {
                kind: 8,
                code: None,
                invert: false,
            }),
            Packet::icmp_echo(1, Tuple::v4(Protocol::ICMP, CLIENT, 7, VIP, 8 << 8)),
            true,
        ),
        (
            "! icmp type/code",
            rule().protocol(Protocol::ICMP).with(Match::Icmp {
                kind: 8,
                code: Some(0),
                invert: true,
            }),
            Packet::icmp_echo(1, Tuple::v4(Protocol::ICMP, CLIENT, 7, VIP, 8 << 8)),
            false,
        ),
    ];
    for (name, condition, packet, expected) in cases {
        assert_eq!(matches(condition, packet), expected, "{name}");
    }
}

#[test]
fn nth_counts_what_reaches_it() {
    let mut builder = RulesetBuilder::new();
    let chain = builder.builtin(Table::Filter, Hook::Forward);
    let third = Match::Nth { every: 3, packet: 2, invert: false };
    let third = rule().protocol(Protocol::TCP).with(third).then(Target::Drop);
    builder.append(Table::Filter, chain, third);
    let rules = builder.build().unwrap();
    let mut memory = Memory::default();
    let pass = |packet, memory: &mut Memory| {
        let seen = walk(&rules, Table::Filter, Hook::Forward, packet, 0, Lookup::Indexed, memory);
        if seen.verdict == Verdict::Drop { 'M' } else { '.' }
    };
    let first: String = (0..7).map(|_| pass(packet(), &mut memory)).collect();
    assert_eq!(first, "..M..M.");
    assert_eq!(pass(udp((CLIENT, 1), (VIP, 2)), &mut memory), '.', "does not reach the match");
    memory.table_replaced(Table::Filter);
    let again: String = (0..4).map(|_| pass(packet(), &mut memory)).collect();
    assert_eq!(again, "..M.", "a replaced table counts anew");
}

#[test]
fn a_run_that_is_come_back_into_takes_a_new_draw() {
    let mut builder = RulesetBuilder::new();
    let chain = builder.builtin(Table::Filter, Hook::Forward);
    let noop = builder.chain(Table::Filter, "NOOP");
    let always = || rule().random(Probability::ALWAYS);
    builder.append(Table::Filter, chain, rule().random(Probability::NEVER));
    builder.append(Table::Filter, chain, always().comment("x").then(Target::Jump(noop)));
    builder.append(Table::Filter, chain, always().then(Target::Drop));
    let seen = forward(&builder.build().unwrap(), packet());
    assert_eq!((seen.draws, seen.evaluated), (2, 3));
    assert_eq!(seen.verdict, Verdict::Drop);
}

#[test]
fn a_run_takes_one_draw_and_counts_as_the_walk_does() {
    let mut proxy = Proxy::new();
    let endpoints: Vec<_> = (1..=9).map(|i| (std::net::Ipv4Addr::new(10, 244, 3, i), 80)).collect();
    proxy.service(Protocol::TCP, VIP, 80, &endpoints);
    let rules = proxy.build();
    let mut picked = std::collections::BTreeMap::new();
    for seed in 0..9000 {
        let mut memory = Memory::default();
        let seen = walk(
            &rules,
            Table::Nat,
            Hook::Prerouting,
            packet(),
            seed,
            Lookup::Indexed,
            &mut memory,
        );
        assert_eq!(seen.draws, 1);
        let Verdict::Nat(Nat::Dnat(range)) = &seen.verdict else { panic!("{seen:?}") };
        let crate::rule::NatAddresses::V4(addr, _) = range.addresses else { panic!() };
        // PREROUTING, KUBE-SERVICES, i rules of the Service's chain, two of the endpoint's.
        assert_eq!(seen.evaluated, 1 + 1 + u32::from(addr.octets()[3]) + 2);
        *picked.entry(addr).or_insert(0u32) += 1;
    }
    // 8 degrees of freedom: the 1 - 1e-6 quantile is 43.3.
    let chi2: f64 = picked.values().map(|n| (f64::from(*n) - 1000.0).powi(2) / 1000.0).sum();
    assert!(picked.len() == 9 && chi2 < 43.3, "{chi2} {picked:?}");
}

#[test]
fn targets_change_fields() {
    let steps = [
        Target::Tos { value: 0x10, mask: 0x3f, dscp: false },
        Target::Ttl(crate::rule::TtlChange::Subtract(4)),
        Target::Tcpmss(Some(1000)),
    ];
    let mut builder = RulesetBuilder::new();
    let chain = builder.builtin(Table::Mangle, Hook::Forward);
    for target in steps {
        let wanted = rule().protocol(Protocol::TCP);
        let syn =
            Match::Tcp { sport: None, dport: None, flags: Some(FlagsMatch::SYN), option: None };
        builder.append(Table::Mangle, chain, wanted.with(syn).then(target));
    }
    let rules = builder.build().unwrap();
    let seen = |packet| {
        let mut memory = Memory::default();
        let lookup = Lookup::Indexed;
        walk(&rules, Table::Mangle, Hook::Forward, packet, 0, lookup, &mut memory).packet
    };
    let plain = seen(Packet { tos: 0xff, ..packet() });
    assert_eq!((plain.tos, plain.ttl), (0xd0, 60));
    let mut with_segment = packet();
    for (announced, expected) in [(1460, 1000), (900, 900), (0, 536)] {
        let segment = Segment { mss: announced, ..Segment::default() };
        with_segment.l4 = L4::Tcp { flags: TcpFlags::SYN, segment: Some(segment) };
        let L4::Tcp { segment: Some(segment), .. } = seen(with_segment).l4 else { panic!() };
        assert_eq!(segment.mss, expected);
    }
}

#[test]
fn rpfilter_asks_for_the_way_back() {
    let strict = RpfilterMatch::default();
    let cases = [
        (CLIENT, strict, true),
        (REMOTE_POD, strict, false),
        (REMOTE_POD, RpfilterMatch { loose: true, ..strict }, true),
        (REMOTE_POD, RpfilterMatch { invert: true, ..strict }, true),
        (BRIDGE, strict, false),
        (BRIDGE, RpfilterMatch { accept_local: true, ..strict }, true),
        (NODE, RpfilterMatch { accept_local: true, ..strict }, false),
        (NODE, RpfilterMatch { accept_local: true, loose: true, ..strict }, true),
    ];
    for (src, wanted, expected) in cases {
        let mut builder = RulesetBuilder::new();
        let chain = builder.builtin(Table::Raw, Hook::Prerouting);
        builder.append(Table::Raw, chain, rule().with(Match::Rpfilter(wanted)).then(Target::Drop));
        let rules = builder.build().unwrap();
        let mut memory = Memory::default();
        let packet = tcp((src, 1), (VIP, 80), TcpFlags::SYN);
        let hook = Hook::Prerouting;
        let seen = walk(&rules, Table::Raw, hook, packet, 0, Lookup::Indexed, &mut memory);
        assert_eq!(seen.verdict == Verdict::Drop, expected, "{src} {wanted:?}");
    }
}

#[test]
fn state_of_rules_goes_with_the_table_and_names_stay_while_they_are_used() {
    let limit = Match::Limit(Box::new(crate::rule::LimitMatch { period: 36_000_000, burst: 1 }));
    let recent = |action, hitcount| {
        let mask = std::net::Ipv4Addr::BROADCAST.into();
        Match::Recent(Box::new(crate::rule::RecentMatch {
            action,
            seconds: None,
            reap: false,
            hitcount,
            ttl: false,
            name: "seen".into(),
            mask,
            destination: false,
            invert: false,
        }))
    };
    let ruleset = |conditions: &[Match]| {
        let mut builder = RulesetBuilder::new();
        let chain = builder.builtin(Table::Filter, Hook::Forward);
        for condition in conditions {
            builder.append(Table::Filter, chain, rule().with(condition.clone()));
        }
        builder.build().unwrap()
    };
    use crate::rule::RecentAction::{Check, Set};
    let accept = |rules: &Ruleset, memory: &mut Memory| {
        let seen = walk(rules, Table::Filter, Hook::Forward, packet(), 0, Lookup::Indexed, memory);
        seen.verdict
    };
    let dropping = |condition: &Match| {
        let mut builder = RulesetBuilder::new();
        let chain = builder.builtin(Table::Filter, Hook::Forward);
        builder.append(Table::Filter, chain, rule().with(condition.clone()).then(Target::Drop));
        builder.build().unwrap()
    };
    let mut memory = Memory::default();
    let limited = dropping(&limit);
    assert_eq!(accept(&limited, &mut memory), Verdict::Drop);
    assert_eq!(accept(&limited, &mut memory), Verdict::Accept);
    memory.table_replaced(Table::Nat);
    assert_eq!(accept(&limited, &mut memory), Verdict::Accept);
    memory.table_replaced(Table::Filter);
    assert_eq!(accept(&limited, &mut memory), Verdict::Drop, "a new bucket is full");

    let set = ruleset(&[recent(Set, None)]);
    memory.ruleset_loaded(&set);
    let _ = accept(&set, &mut memory);
    let check = dropping(&recent(Check, None));
    memory.table_replaced(Table::Filter);
    memory.ruleset_loaded(&check);
    assert_eq!(accept(&check, &mut memory), Verdict::Drop, "the list has a name");
    memory.ruleset_loaded(&limited);
    memory.ruleset_loaded(&check);
    assert_eq!(accept(&check, &mut memory), Verdict::Accept, "no rule had named it");
    let _ = accept(&set, &mut memory);
    memory.rulesets_loaded([&check, &limited]);
    assert_eq!(memory.recent("seen").map(Iterator::count), Some(1), "one of both names it");
    memory.ruleset_loaded(&dropping(&recent(Check, Some(64))));
    assert_eq!(memory.recent("seen").map(Iterator::count), Some(0), "a list that grows is emptied");
}

#[test]
fn what_is_not_known_of_a_packet_is_asked() {
    struct Both(u32);
    impl Draws for Both {
        fn draw(&mut self, _: u32) -> u64 {
            0
        }

        fn unsupported(&mut self, _: RuleRef) -> bool {
            self.0 += 1;
            true
        }
    }
    let tcp_packet = packet();
    let sctp = Packet {
        tuple: Tuple::v4(Protocol::SCTP, CLIENT, 1000, VIP, 80),
        l4: L4::Other,
        ..packet()
    };
    let chunks = |port| {
        let types = Invertible { value: "all INIT".into(), invert: false };
        let dport = Some(PortMatch::one(port));
        Match::Sctp(Box::new(crate::rule::SctpMatch { sport: None, dport, chunks: Some(types) }))
    };
    let set = crate::rule::SetMatch {
        name: "nowhere".into(),
        sides: vec![crate::rule::SetSide::Source],
        return_nomatch: false,
        counters: None,
        invert: true,
    };
    let mac = Match::Mac { address: [2; 6], invert: false };
    let cases = [
        (tcp_packet, Protocol::TCP, Match::Tcpmss { min: 1, max: 9, invert: false }, 1),
        (tcp_packet, Protocol::TCP, mac, 1),
        (tcp_packet, Protocol::TCP, Match::Set(Box::new(set)), 1),
        (sctp, Protocol::SCTP, chunks(80), 1),
        (sctp, Protocol::SCTP, chunks(81), 0),
    ];
    for (packet, protocol, condition, expected) in cases {
        let text = format!("{condition:?}");
        let mut builder = RulesetBuilder::new();
        let chain = builder.builtin(Table::Filter, Hook::Forward);
        let drop = rule().protocol(protocol).with(condition).then(Target::Drop);
        builder.append(Table::Filter, chain, drop);
        let rules = builder.build().unwrap();
        let (mut both, host) = (Both(0), Node::default());
        let env =
            crate::host::Env { now: SimTime::ZERO, host: &host, rules: &rules, draws: &mut both };
        let mut env = env;
        let outcome = crate::netns::Netns::default().receive(packet, CNI0, &mut env);
        let dropped = matches!(outcome, crate::netns::Outcome::Dropped(_));
        assert_eq!((both.0, dropped), (expected, expected == 1), "{text}");
    }
}

#[test]
fn tproxy_marks_and_accepts_or_drops() {
    struct Answer(bool);
    impl Draws for Answer {
        fn draw(&mut self, _: u32) -> u64 {
            0
        }

        fn unsupported(&mut self, _: RuleRef) -> bool {
            self.0
        }
    }
    let address = std::net::Ipv4Addr::UNSPECIFIED.into();
    let target = crate::rule::TproxyTarget { port: 15_001, address, mark: (1, 1) };
    let mut builder = RulesetBuilder::new();
    let chain = builder.builtin(Table::Mangle, Hook::Prerouting);
    let wanted = rule().protocol(Protocol::TCP);
    builder.append(Table::Mangle, chain, wanted.then(Target::Tproxy(Box::new(target))));
    let rules = builder.build().unwrap();
    for (absent, expected) in [(false, Some(1)), (true, None)] {
        let (mut answer, host) = (Answer(absent), Node::default());
        let mut env = env(0, &host, &rules, &mut answer);
        let outcome = crate::netns::Netns::default().receive(packet(), CNI0, &mut env);
        let mark = match outcome {
            crate::netns::Outcome::Sent(egress) => Some(egress.packet.mark),
            _ => None,
        };
        assert_eq!(mark, expected);
    }
}
