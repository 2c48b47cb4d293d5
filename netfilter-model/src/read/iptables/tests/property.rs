//! Random rules of every kind are printed and read as themselves; random texts are survived.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;

use super::{LISTED, SAVED};
use crate::Prefix;
use crate::conntrack::Direction;
use crate::device::DevicePattern;
use crate::packet::{IcmpError, TcpFlags};
use crate::read::iptables::command::{self, DraftTarget};
use crate::read::iptables::words;
use crate::read::{Source, WithCounters, iptables_listing, iptables_rules};
use crate::rule::{
    AddrType, AddrTypeMatch, AddrTypes, ChainId, ConnmarkOp, ConntrackMatch, CtAddress, CtStates,
    CtStatuses, CtTarget, DeviceMatch, FlagsMatch, FrameKind, HashlimitMatch, Invertible,
    IprangeMatch, LimitIface, LimitMatch, Match, Multiport, MultiportSide, Nat, NatAddresses,
    NatFlags, NatRange, Origin, OwnerMatch, PhysdevMatch, PortMatch, Probability, RecentAction,
    RecentMatch, RejectWith, RpfilterMatch, Rule, SctpMatch, SetMatch, SetSide, SetTarget, Target,
    TproxyTarget, TtlChange, TtlCompare, Zone, ZoneSide, save_rule,
};
use crate::tuple::{Family, Protocol};

fn address(family: Family) -> BoxedStrategy<IpAddr> {
    match family {
        Family::V4 => any::<u32>().prop_map(|bits| Ipv4Addr::from_bits(bits).into()).boxed(),
        Family::V6 => any::<u128>().prop_map(|bits| Ipv6Addr::from_bits(bits).into()).boxed(),
    }
}

fn prefix(family: Family) -> BoxedStrategy<Prefix> {
    (address(family), 1..=family.bits())
        .prop_map(|(address, len)| Prefix::new(address, len))
        .boxed()
}

fn invertible<T: Clone + std::fmt::Debug + 'static>(
    value: impl Strategy<Value = T> + 'static,
) -> BoxedStrategy<Invertible<T>> {
    (value, any::<bool>()).prop_map(|(value, invert)| Invertible { value, invert }).boxed()
}

fn range<T: Arbitrary + Ord + Copy + 'static>() -> BoxedStrategy<(T, T)> {
    (any::<T>(), any::<T>()).prop_map(|(a, b)| (a.min(b), a.max(b))).boxed()
}

fn ports() -> BoxedStrategy<PortMatch> {
    let all = |(min, max): &(u16, u16)| (*min, *max) != (0, u16::MAX);
    (range::<u16>().prop_filter("all ports are not printed", all), any::<bool>())
        .prop_map(|((min, max), invert)| PortMatch { min, max, invert })
        .boxed()
}

fn device() -> BoxedStrategy<DeviceMatch> {
    ("[a-z][a-z0-9.]{0,12}\\+?", any::<bool>())
        .prop_map(|(name, invert)| DeviceMatch {
            pattern: DevicePattern::parse(&name).unwrap(),
            invert,
        })
        .boxed()
}

fn name() -> BoxedStrategy<Arc<str>> {
    "[A-Za-z][A-Za-z0-9_-]{0,10}".prop_map(Arc::from).boxed()
}

fn states(bits: u8) -> BoxedStrategy<CtStates> {
    let names = ["INVALID", "NEW", "RELATED", "ESTABLISHED", "UNTRACKED", "SNAT", "DNAT"];
    (1..1u8 << bits)
        .prop_map(move |set| {
            let set = (0..7).filter(|bit| set & 1 << bit != 0).map(|bit| names[bit]);
            set.filter_map(CtStates::named).fold(CtStates::default(), |a, b| a | b)
        })
        .boxed()
}

fn types() -> BoxedStrategy<AddrTypeMatch> {
    let some =
        vec(prop_oneof![Just(AddrType::Local), Just(AddrType::Nat), Just(AddrType::Unspec)], 1..3);
    (some, any::<bool>())
        .prop_map(|(types, invert)| AddrTypeMatch { types: AddrTypes::of(&types), invert })
        .boxed()
}

fn tcp_flags() -> BoxedStrategy<TcpFlags> {
    (0..0x40u8).prop_map(TcpFlags::from_bits).boxed()
}

fn sides() -> BoxedStrategy<Vec<SetSide>> {
    vec(prop_oneof![Just(SetSide::Source), Just(SetSide::Destination)], 1..=6).boxed()
}

fn ct_address(family: Family) -> BoxedStrategy<Option<Invertible<CtAddress>>> {
    let address = (address(family), 0..=family.bits());
    option::of(invertible(address.prop_map(|(address, len)| CtAddress { address, len }))).boxed()
}

/// The matches whose protocol is TCP, or which need none.
fn conditions(family: Family) -> BoxedStrategy<Match> {
    let flags = (tcp_flags(), tcp_flags(), any::<bool>())
        .prop_map(|(mask, set, invert)| FlagsMatch { mask, set, invert });
    let tcp = (
        option::of(ports()),
        option::of(ports()),
        option::of(flags),
        option::of(invertible(any::<u8>())),
    )
        .prop_map(|(sport, dport, flags, option)| Match::Tcp { sport, dport, flags, option });
    let multiport = (
        prop_oneof![
            Just(MultiportSide::Source),
            Just(MultiportSide::Destination),
            Just(MultiportSide::Either)
        ],
        vec(range::<u16>(), 1..=7),
        any::<bool>(),
    )
        .prop_map(|(side, ports, invert)| {
            Match::Multiport(Box::new(Multiport { side, ports, invert }))
        });
    let conntrack = (
        (
            option::of(invertible(states(7))),
            option::of(invertible(any::<u8>().prop_map(Protocol))),
            ct_address(family),
            ct_address(family),
            ct_address(family),
            ct_address(family),
        ),
        (option::of(ports()), option::of(ports()), option::of(ports()), option::of(ports())),
        (
            option::of(invertible((0..16u8).prop_map(CtStatuses))),
            option::of(invertible(range::<u32>())),
            prop_oneof![Just(Direction::Original), Just(Direction::Reply)],
        ),
    )
        .prop_map(|(addresses, ports, (status, expire, direction))| {
            let (states, protocol, orig_src, orig_dst, repl_src, repl_dst) = addresses;
            let (orig_src_port, orig_dst_port, repl_src_port, repl_dst_port) = ports;
            let direction = Some(direction);
            Match::Conntrack(Box::new(ConntrackMatch {
                states,
                protocol,
                orig_src,
                orig_dst,
                repl_src,
                repl_dst,
                orig_src_port,
                orig_dst_port,
                repl_src_port,
                repl_dst_port,
                status,
                expire,
                direction,
            }))
        });
    let recent = (
        prop_oneof![Just(RecentAction::Check), Just(RecentAction::Update)],
        (1..99999u32, any::<bool>(), option::of(1..200u32), any::<bool>()),
        (name(), address(family), any::<bool>(), any::<bool>()),
    )
        .prop_map(
            |(action, (seconds, reap, hitcount, ttl), (name, mask, destination, invert))| {
                let seconds = Some(seconds);
                let of = RecentMatch {
                    action,
                    seconds,
                    reap,
                    hitcount,
                    ttl,
                    name,
                    mask,
                    destination,
                    invert,
                };
                Match::Recent(Box::new(of))
            },
        );
    let set = (name(), sides(), any::<bool>(), any::<bool>()).prop_map(
        |(name, sides, return_nomatch, invert)| {
            Match::Set(Box::new(SetMatch { name, sides, return_nomatch, counters: None, invert }))
        },
    );
    let physdev = (
        option::of(any::<bool>()),
        device(),
        option::of(any::<bool>()),
        option::of(device()),
        option::of(any::<bool>()),
    )
        .prop_map(|(is_in, in_port, is_out, out_port, is_bridged)| {
            let in_port = Some(in_port);
            Match::Physdev(Box::new(PhysdevMatch { is_in, in_port, is_out, out_port, is_bridged }))
        });
    let units = || prop_oneof![Just(1u32), Just(60), Just(3600), Just(86400)];
    let limit = (1..100u32, units(), 1..50u32).prop_map(|(rate, unit, burst)| {
        Match::Limit(Box::new(LimitMatch { period: 10_000 * unit / rate, burst }))
    });
    let hashlimit = (
        (any::<bool>(), 1..100u64, units(), 1..50u32),
        (any::<[bool; 4]>(), name(), 1..100_000u32, 0..=family.bits(), 0..=family.bits()),
        option::of(Just("--hashlimit-htable-size 16 --hashlimit-htable-max 32".into())),
    )
        .prop_map(
            |((above, rate, unit, burst), (mode, name, expire, src_len, dst_len), other)| {
                let period = 1_000_000 * u64::from(unit) / rate;
                Match::Hashlimit(Box::new(HashlimitMatch {
                    above,
                    period,
                    burst,
                    mode,
                    name,
                    expire,
                    src_len,
                    dst_len,
                    other,
                }))
            },
        );
    let iprange = (
        invertible((address(family), address(family))),
        option::of(invertible((address(family), address(family)))),
    )
        .prop_map(|(src, dst)| Match::Iprange(Box::new(IprangeMatch { src: Some(src), dst })));
    let owner = (
        option::of(invertible(range::<u32>())),
        option::of(invertible(range::<u32>())),
        option::of(any::<bool>()),
        any::<bool>(),
    )
        .prop_map(|(uid, gid, socket_exists, suppl_groups)| {
            Match::Owner(Box::new(OwnerMatch { uid, gid, socket_exists, suppl_groups }))
        });
    let limit_iface =
        prop_oneof![Just(None), Just(Some(LimitIface::In)), Just(Some(LimitIface::Out))];
    let addrtype = (option::of(types()), types(), limit_iface)
        .prop_map(|(src, dst, limit)| Match::AddrType { src, dst: Some(dst), limit });
    let one =
        prop_oneof![
            (any::<u32>(), any::<u32>(), any::<bool>())
                .prop_map(|(value, mask, invert)| Match::Mark { value, mask, invert }),
            (any::<u32>(), any::<u32>(), any::<bool>())
                .prop_map(|(value, mask, invert)| Match::Connmark { value, mask, invert }),
            (states(5), any::<bool>()).prop_map(|(states, invert)| Match::State { states, invert }),
            (states(7), any::<bool>())
                .prop_map(|(states, invert)| Match::CtState { states, invert }),
            "[ -~äß]{0,40}".prop_map(|text| Match::Comment(text.into())),
            (0..=1u32 << 31, any::<bool>()).prop_map(|(k, invert)| {
                Match::Random { probability: Probability::from_k(k).unwrap(), invert }
            }),
            (1..99u32, any::<u32>(), any::<bool>()).prop_map(|(every, packet, invert)| {
                Match::Nth { every, packet: packet % every, invert }
            }),
            (any::<[u8; 6]>(), any::<bool>())
                .prop_map(|(address, invert)| Match::Mac { address, invert }),
            prop_oneof![
                Just(FrameKind::Unicast),
                Just(FrameKind::Broadcast),
                Just(FrameKind::Multicast)
            ]
            .prop_map(|kind| Match::Pkttype { kind, invert: true }),
            (any::<u8>(), 0..4usize).prop_map(|(value, which)| {
                let compare =
                    [TtlCompare::Eq, TtlCompare::Ne, TtlCompare::Lt, TtlCompare::Gt][which];
                Match::Ttl { compare, value }
            }),
            (range::<u16>(), any::<bool>()).prop_map(|((min, max), invert)| Match::Length {
                min,
                max,
                invert
            }),
            (0..64u8, any::<bool>()).prop_map(|(code, invert)| Match::Tos {
                value: code << 2,
                mask: 0xfc,
                dscp: true,
                invert
            }),
            (any::<u8>(), any::<u8>(), any::<bool>())
                .prop_map(|(value, mask, invert)| Match::Tos { value, mask, dscp: false, invert }),
            (range::<u16>(), any::<bool>()).prop_map(|((min, max), invert)| Match::Tcpmss {
                min,
                max,
                invert
            }),
            any::<[bool; 4]>().prop_map(|[loose, validmark, accept_local, invert]| {
                Match::Rpfilter(RpfilterMatch { loose, validmark, accept_local, invert })
            }),
        ];
    prop_oneof![
        one, tcp, multiport, conntrack, recent, set, physdev, limit, hashlimit, iprange, owner,
        addrtype
    ]
    .boxed()
}

fn nat_range(family: Family) -> BoxedStrategy<NatRange> {
    let addresses = (address(family), address(family)).prop_map(|ends| match ends {
        (IpAddr::V4(a), IpAddr::V4(b)) => NatAddresses::V4(a.min(b), a.max(b)),
        (IpAddr::V6(a), IpAddr::V6(b)) => NatAddresses::V6(Box::new((a.min(b), a.max(b)))),
        _ => unreachable!("one family"),
    });
    (addresses, option::of(range::<u16>()), any::<[bool; 2]>())
        .prop_map(|(addresses, ports, [random, persistent])| {
            let flags = NatFlags { random, random_fully: false, persistent };
            NatRange { addresses, ports, base_port: None, flags }
        })
        .boxed()
}

fn target(family: Family) -> BoxedStrategy<Target> {
    use IcmpError::*;
    let kinds = [
        NetUnreachable,
        HostUnreachable,
        PortUnreachable,
        NetProhibited,
        HostProhibited,
        AdminProhibited,
    ];
    let zone_sides = [ZoneSide::Both, ZoneSide::Original, ZoneSide::Reply];
    let ct = (
        any::<bool>(),
        option::of((0..3usize, option::of(any::<u16>()))),
        option::of(Just("--helper ftp --ctevents new,destroy".into())),
    )
        .prop_map(move |(notrack, zone, other)| {
            let zone = zone.map(|(side, id)| (zone_sides[side], id.map_or(Zone::Mark, Zone::Id)));
            Target::Ct(Box::new(CtTarget { notrack, alias: false, zone, other }))
        });
    let set = (name(), sides(), any::<bool>(), option::of(any::<u32>())).prop_map(
        |(name, sides, exist, timeout)| {
            let (add, delete) = (Some((name, sides)), None);
            Target::Set(Box::new(SetTarget { add, delete, exist, timeout, map: None }))
        },
    );
    let ports = || (option::of(range::<u16>()), any::<bool>());
    let only_ports = |(ports, random): (Option<(u16, u16)>, bool)| {
        let flags = NatFlags { random, ..NatFlags::default() };
        NatRange { ports, ..NatRange::keep() }.with_flags(flags)
    };
    prop_oneof![
        Just(Target::None),
        Just(Target::Accept),
        Just(Target::Drop),
        Just(Target::Return),
        (0..kinds.len()).prop_map(move |i| Target::Reject(RejectWith::Icmp(kinds[i]))),
        Just(Target::Reject(RejectWith::TcpReset)),
        (any::<u32>(), any::<u32>()).prop_map(|(value, mask)| Target::Mark { value, mask }),
        (any::<u32>(), any::<u32>())
            .prop_map(|(value, mask)| Target::Connmark(ConnmarkOp::Set { value, mask })),
        (any::<u32>(), any::<u32>())
            .prop_map(|(nfmask, ctmask)| Target::Connmark(ConnmarkOp::Save { nfmask, ctmask })),
        (any::<u32>(), any::<u32>())
            .prop_map(|(nfmask, ctmask)| Target::Connmark(ConnmarkOp::Restore { nfmask, ctmask })),
        nat_range(family).prop_map(|range| Target::Nat(Nat::Dnat(range))),
        nat_range(family).prop_map(|range| Target::Nat(Nat::Snat(range))),
        ports().prop_map(move |of| Target::Nat(Nat::Masquerade(only_ports(of)))),
        ports().prop_map(move |of| Target::Nat(Nat::Redirect(only_ports(of)))),
        prefix(family).prop_map(|prefix| Target::Nat(Nat::Netmap(prefix))),
        (any::<u16>(), address(family), any::<(u32, u32)>()).prop_map(|(port, address, mark)| {
            Target::Tproxy(Box::new(TproxyTarget { port, address, mark }))
        }),
        (any::<u8>(), any::<u8>()).prop_map(|(value, mask)| Target::Tos {
            value,
            mask,
            dscp: false
        }),
        (0..64u8).prop_map(|code| Target::Tos { value: code << 2, mask: 0xfc, dscp: true }),
        any::<u8>().prop_map(|value| Target::Ttl(TtlChange::Subtract(value))),
        option::of(any::<u16>()).prop_map(Target::Tcpmss),
        ct,
        set,
    ]
    .boxed()
}

fn rule(family: Family) -> BoxedStrategy<Rule> {
    let header = (
        option::of((prefix(family), any::<bool>())),
        option::of((prefix(family), any::<bool>())),
        option::of(device()),
        option::of(device()),
    );
    (header, vec(conditions(family), 0..4), target(family))
        .prop_map(|((source, destination, input, output), conditions, target)| {
            let mut rule = Rule::new(Origin::default()).protocol(Protocol::TCP);
            if let Some((prefix, invert)) = source {
                rule = rule.with(Match::Source { prefix, invert });
            }
            if let Some((prefix, invert)) = destination {
                rule = rule.with(Match::Destination { prefix, invert });
            }
            if let Some(device) = input {
                rule = rule.with(Match::InDevice(Box::new(device)));
            }
            if let Some(device) = output {
                rule = rule.with(Match::OutDevice(Box::new(device)));
            }
            conditions.into_iter().fold(rule, Rule::with).then(target)
        })
        .boxed()
}

/// Rules whose protocol is not TCP.
fn rule_of_others(family: Family) -> BoxedStrategy<Rule> {
    let icmp = if family == Family::V4 { Protocol::ICMP } else { Protocol::ICMPV6 };
    let of_icmp = (0..255u8, option::of(any::<u8>()), any::<bool>())
        .prop_map(move |(kind, code, invert)| (icmp, Match::Icmp { kind, code, invert }));
    let of_udp = (option::of(ports()), option::of(ports()))
        .prop_map(|(sport, dport)| (Protocol::UDP, Match::Udp { sport, dport }));
    let chunks = option::of(invertible(Just(Arc::from("any DATA,INIT,ABORT"))));
    let of_sctp =
        (option::of(ports()), option::of(ports()), chunks).prop_map(|(sport, dport, chunks)| {
            (Protocol::SCTP, Match::Sctp(Box::new(SctpMatch { sport, dport, chunks })))
        });
    prop_oneof![of_icmp, of_udp, of_sctp]
        .prop_map(|(protocol, condition)| {
            Rule::new(Origin::default()).protocol(protocol).with(condition).then(Target::Accept)
        })
        .boxed()
}

fn reads_as_itself(family: Family, rule: &Rule) {
    let nobody = |_: ChainId| -> &'static str { unreachable!("no calls") };
    let mut text = String::from("-A X");
    save_rule(&mut text, family, rule, &nobody).unwrap();
    let (split, open) = words::split(&text);
    assert!(!open, "{text}");
    let command = command::parse(&split, family, Origin::default(), usize::MAX);
    assert_eq!(command.problems, [], "{text}");
    let [draft] = command.rules.as_slice() else { panic!("{text}: {:?}", command.rules) };
    assert_eq!(draft.rule.matches(), rule.matches(), "{text}");
    match &draft.target {
        DraftTarget::Known(target) => assert_eq!(target, rule.target(), "{text}"),
        DraftTarget::Named(_, Some(target)) => assert_eq!(target, rule.target(), "{text}"),
        target => panic!("{text}: {target:?}"),
    }
}

/// Replaces, removes or doubles parts of a text.
fn mutated(text: &'static str) -> BoxedStrategy<String> {
    let edit = (any::<prop::sample::Index>(), 0..12usize, "[ -~\\n\\r\\t\u{e4}]{0,6}");
    vec(edit, 1..12)
        .prop_map(move |edits| {
            let mut chars: Vec<char> = text.chars().collect();
            for (at, remove, insert) in edits {
                let at = at.index(chars.len() + 1);
                let end = (at + remove).min(chars.len());
                chars.splice(at..end, insert.chars());
            }
            chars.into_iter().collect()
        })
        .boxed()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn a_rule_is_printed_and_read_as_itself(rule in rule(Family::V4)) {
        reads_as_itself(Family::V4, &rule);
    }

    #[test]
    fn a_rule_of_ipv6_is_printed_and_read_as_itself(rule in rule(Family::V6)) {
        reads_as_itself(Family::V6, &rule);
    }

    #[test]
    fn other_protocols_are_printed_and_read_as_themselves(
        four in rule_of_others(Family::V4),
        six in rule_of_others(Family::V6),
    ) {
        reads_as_itself(Family::V4, &four);
        reads_as_itself(Family::V6, &six);
    }

    #[test]
    fn a_damaged_dump_is_survived(text in mutated(SAVED), table in 0..6usize) {
        let source = Source { table: crate::hook::Table::ALL.get(table).copied(), ..Source::default() };
        for dump in iptables_rules(&text, source).value {
            // What was kept can be written, and is a text that can be read.
            iptables_rules(&dump.iptables_save(WithCounters::Yes), source);
        }
    }

    #[test]
    fn a_damaged_listing_is_survived(text in mutated(LISTED)) {
        for dump in iptables_listing(&text, Source::default()).value {
            dump.iptables_save(WithCounters::Yes);
        }
    }

    #[test]
    fn any_text_is_survived(text in ".{0,200}") {
        iptables_rules(&text, Source::default());
        iptables_listing(&text, Source::default());
    }
}
