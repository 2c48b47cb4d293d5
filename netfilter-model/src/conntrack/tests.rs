use std::net::Ipv4Addr;

use proptest::prelude::*;

use super::*;
use crate::nat;
use crate::packet::{L4, TcpFlags};
use crate::rule::{NatFlags, NatRange};
use crate::testing::{CLIENT, NODE, REMOTE_POD, VIP, bits, tcp, udp};
use crate::time::SimTime;
use crate::tuple::{Protocol, Side, Tuple};

fn at(seconds: u64) -> SimTime {
    SimTime::from_nanos(seconds * 1_000_000_000)
}

/// Tracks a packet and confirms a new connection.
fn pass(table: &mut Conntrack, now: SimTime, packet: &Packet) -> Result<CtInfo, Unconfirmed> {
    let mut own = None;
    let track = table.track(now, packet, [0; 2], true, &mut own, || ()).expect("there is room");
    if track.holder == Holder::Tentative {
        table.confirm(now, &mut own)?;
    }
    Ok(track.info)
}

fn life(table: &Conntrack, now: SimTime) -> Vec<u64> {
    table.entries(now).map(|entry| (entry.deadline() - now).as_secs()).collect()
}

#[test]
fn udp_becomes_a_stream_two_seconds_after_its_first_packet() {
    let mut table = Conntrack::new(Sysctls::default());
    let (query, answer) = (udp((CLIENT, 9), (VIP, 53)), udp((VIP, 53), (CLIENT, 9)));
    let steps = [
        (0, query, CtInfo::New, 30),
        (1, query, CtInfo::New, 30),
        // The first answer, however late, does not make a stream.
        (5, answer, CtInfo::Established, 30),
        (6, query, CtInfo::Established, 120),
        (7, answer, CtInfo::Established, 120),
    ];
    for (second, packet, info, seconds) in steps {
        assert_eq!(pass(&mut table, at(second), &packet), Ok(info), "at {second}");
        assert_eq!(life(&table, at(second)), [seconds], "at {second}");
    }
    let assured = table.entries(at(7)).next().unwrap().status().contains(Status::ASSURED);
    assert!(assured);
}

#[test]
fn udp_stays_short_within_two_seconds() {
    let mut table = Conntrack::new(Sysctls::default());
    for packet in [udp((CLIENT, 9), (VIP, 53)), udp((VIP, 53), (CLIENT, 9))] {
        for second in [0, 2] {
            pass(&mut table, at(second), &packet).unwrap();
        }
    }
    assert_eq!(life(&table, at(2)), [30]);
}

#[test]
fn an_entry_beyond_its_deadline_is_absent() {
    let mut table = Conntrack::new(Sysctls::default());
    let packet = udp((CLIENT, 9), (VIP, 53));
    pass(&mut table, at(0), &packet).unwrap();
    assert!(table.lookup(at(29), &packet.tuple).is_some());
    assert!(table.lookup(at(30), &packet.tuple).is_none());
    assert_eq!(pass(&mut table, at(30), &packet), Ok(CtInfo::New));
    assert_eq!(table.len(), 1);
}

#[test]
fn memory_follows_the_live_entries() {
    let mut table = Conntrack::new(Sysctls::default());
    for i in 0..100_000u64 {
        let packet = udp((CLIENT, (i % 60_000) as u16 + 1), (VIP, 53));
        // A packet each 100 ms: 300 live at once.
        pass(&mut table, SimTime::from_nanos(i * 100_000_000), &packet).unwrap();
    }
    assert!(table.slab.len() <= 1024, "{} cells", table.slab.len());
}

/// Opens a connection, and answers and acknowledges it if asked.
fn open_tcp(table: &mut Conntrack, now: SimTime, port: u16, assured: bool) {
    pass(table, now, &tcp((CLIENT, port), (VIP, 80), TcpFlags::SYN)).unwrap();
    if assured {
        pass(table, now, &tcp((VIP, 80), (CLIENT, port), TcpFlags::SYN_ACK)).unwrap();
        pass(table, now, &tcp((CLIENT, port), (VIP, 80), TcpFlags::ACK)).unwrap();
    }
}

#[test]
fn a_full_table_empties_the_first_bucket_that_has_entries_not_assured() {
    let sysctls = Sysctls { max: 8, buckets: 1, ..Sysctls::default() };
    let mut table = Conntrack::new(sysctls);
    for port in 1..=8 {
        open_tcp(&mut table, at(0), port, port <= 3);
    }
    open_tcp(&mut table, at(0), 9, false);
    assert_eq!((table.len(), table.stats().early_drop), (4, 5), "one bucket, five not assured");
    for port in 10..=14 {
        open_tcp(&mut table, at(0), port, true);
    }
    assert_eq!((table.len(), table.stats().early_drop), (8, 6));
}

#[test]
fn a_full_table_of_assured_connections_refuses_until_the_collector_has_run() {
    let sysctls = Sysctls { max: 100, buckets: 7, ..Sysctls::default() };
    let mut table = Conntrack::new(sysctls);
    for port in 1..=100 {
        open_tcp(&mut table, at(0), port, true);
    }
    for port in 1..=20 {
        pass(&mut table, at(1), &tcp((VIP, 80), (CLIENT, port), TcpFlags::FIN | TcpFlags::ACK))
            .unwrap();
    }
    let syn = tcp((CLIENT, 999), (VIP, 80), TcpFlags::SYN);
    let mut own = None;
    assert!(table.track(at(2), &syn, [0; 2], true, &mut own, || ()).is_err(), "all are assured");
    assert_eq!(table.stats().drop, 1);
    assert_eq!(
        pass(&mut table, at(2), &tcp((CLIENT, 50), (VIP, 80), TcpFlags::ACK)).unwrap(),
        CtInfo::Established,
        "known connections go on"
    );
    assert!(table.track(at(59), &syn, [0; 2], true, &mut own, || ()).is_err());
    assert_eq!(pass(&mut table, at(60), &syn), Ok(CtInfo::New));
    assert_eq!(table.len(), 95, "closing connections went until 95 % was in use");
    let states = table.entries(at(60)).filter(|entry| entry.status().contains(Status::ASSURED));
    let established = states.filter(|entry| entry.tcp_state() == Some(TcpState::Established));
    assert_eq!(established.count(), 80, "no other assured connection did");
}

#[test]
fn a_short_table_refuses_chains_that_are_too_long() {
    let mut table = Conntrack::new(Sysctls { max: 1000, buckets: 1, ..Sysctls::default() });
    let refused = (1..=50u16)
        .filter(|port| {
            let packet = udp((CLIENT, *port), (VIP, 53));
            pass(&mut table, at(0), &packet) == Err(Unconfirmed::ChainTooLong)
        })
        .count();
    assert_eq!(refused, 17, "each entry is in the bucket twice, and 33 entries fit");
    assert_eq!(table.stats().chaintoolong, 17);
}

#[test]
fn deleting_lets_the_next_packet_be_new() {
    let mut table = Conntrack::new(Sysctls::default());
    let (query, answer) = (udp((CLIENT, 9), (VIP, 53)), udp((VIP, 53), (CLIENT, 9)));
    pass(&mut table, at(0), &query).unwrap();
    pass(&mut table, at(0), &answer).unwrap();
    assert_eq!(table.delete(at(0), |entry| entry.original.dst_part == 53), 1);
    assert_eq!(pass(&mut table, at(0), &query), Ok(CtInfo::New));
}

/// A tentative entry for a packet.
fn tentative(table: &mut Conntrack, packet: &Packet) -> Entry {
    let mut own = None;
    let _ = table.track(at(0), packet, [0; 2], true, &mut own, || ()).expect("there is room");
    own.expect("a new connection")
}

/// Masquerades connections of one client port to one destination, one after the other.
fn masquerade(
    table: &mut Conntrack,
    clients: u8,
    range: &NatRange,
) -> Vec<Result<u16, Unconfirmed>> {
    let mut drawn = 0;
    let mut draw = || {
        drawn += 1;
        bits(drawn)
    };
    (1..=clients)
        .map(|client| {
            let from = Ipv4Addr::new(10, 244, 1, client);
            let mut entry = tentative(table, &tcp((from, 5000), (REMOTE_POD, 80), TcpFlags::SYN));
            nat::set_up(table, at(0), &mut entry, Side::Source, range, &mut draw);
            let port = entry.reply.dst_part;
            assert_eq!(entry.reply.dst(), std::net::IpAddr::from(NODE));
            table.confirm(at(0), &mut Some(entry)).map(|_| port)
        })
        .collect()
}

#[test]
fn a_source_port_changes_only_on_a_clash_or_by_wish() {
    let to_node = NatRange::address(NODE.into());
    let mut table = Conntrack::new(Sysctls::default());
    let ports = masquerade(&mut table, 2, &to_node);
    assert_eq!(ports[0], Ok(5000));
    assert!(matches!(ports[1], Ok(1024..)) && ports[1] != ports[0], "{ports:?}");
    let fully = NatFlags { random_fully: true, ..NatFlags::default() };
    let ports = masquerade(&mut Conntrack::new(Sysctls::default()), 1, &to_node.with_flags(fully));
    assert!(matches!(ports[0], Ok(1024..)) && ports[0] != Ok(5000), "{ports:?}");
}

#[test]
fn the_third_client_of_two_ports_is_dropped_at_confirm() {
    let range = NatRange { ports: Some((7000, 7001)), ..NatRange::address(NODE.into()) };
    let mut table = Conntrack::new(Sysctls::default());
    let ports = masquerade(&mut table, 3, &range);
    let mut got: Vec<u16> = ports.iter().flatten().copied().collect();
    got.sort_unstable();
    assert_eq!((got, ports[2]), (vec![7000, 7001], Err(Unconfirmed::Clash)));
    let Stats { insert_failed, drop, insert, .. } = *table.stats();
    assert_eq!((insert_failed, drop, insert), (1, 1, 2));
}

#[test]
fn a_dnat_range_takes_the_first_free_port_and_one_address_per_client() {
    let addresses =
        crate::rule::NatAddresses::V4(Ipv4Addr::new(10, 244, 2, 1), Ipv4Addr::new(10, 244, 2, 8));
    let range = NatRange { addresses, ports: Some((90, 99)), ..NatRange::keep() };
    let mut table = Conntrack::new(Sysctls::default());
    let mut draw = || panic!("a destination port is not drawn");
    let mut chosen = std::collections::BTreeSet::new();
    for port in 1..20 {
        let mut entry = tentative(&mut table, &tcp((CLIENT, port), (VIP, 80), TcpFlags::SYN));
        nat::set_up(&mut table, at(0), &mut entry, Side::Destination, &range, &mut draw);
        assert_eq!(entry.reply.src_part, 90);
        chosen.insert(entry.reply.src());
        table.confirm(at(0), &mut Some(entry)).unwrap();
    }
    assert_eq!(chosen.len(), 1, "the same client always gets the same address");
}

#[test]
fn zones_keep_equal_flows_apart() {
    let mut table = Conntrack::new(Sysctls::default());
    let query = udp((CLIENT, 9), (VIP, 53));
    let answer = Packet { tuple: query.tuple.reply(), ..query };
    let mut see = |packet: &Packet, zones| {
        let mut own = None;
        let track =
            table.track(at(0), packet, zones, true, &mut own, || ()).expect("there is room");
        if track.holder == Holder::Tentative {
            table.confirm(at(0), &mut own).expect("no clash");
        }
        (track.info, table.len())
    };
    assert_eq!(see(&query, [0; 2]), (CtInfo::New, 1));
    assert_eq!(see(&query, [7; 2]), (CtInfo::New, 2));
    assert_eq!(see(&answer, [7; 2]), (CtInfo::Established, 2));
    assert_eq!(see(&query, [7; 2]), (CtInfo::Established, 2));
    assert_eq!(see(&query, [0; 2]), (CtInfo::New, 2), "the other was not answered");
    assert_eq!(see(&answer, [8; 2]), (CtInfo::New, 3));
    // A zone of the original direction alone: answers come in outside of zones.
    let mut table = Conntrack::new(Sysctls::default());
    let mut own = None;
    let _ = table.track(at(0), &query, [7, 0], true, &mut own, || ()).expect("there is room");
    table.confirm(at(0), &mut own).expect("no clash");
    let back = table.track(at(0), &answer, [0; 2], true, &mut own, || ()).expect("there is room");
    assert_eq!(back.info, CtInfo::Established);
    assert_eq!(table.list(at(0))[0].zones, [7, 0]);
}

#[test]
fn packets_that_belong_to_nothing_are_invalid() {
    let mut table = Conntrack::new(Sysctls::default());
    let icmp = |kind: u16| {
        let tuple = Tuple::v4(Protocol::ICMP, CLIENT, 7, REMOTE_POD, kind << 8);
        Packet::icmp_echo(0, tuple)
    };
    let bad = Packet { bad_checksum: true, ..udp((CLIENT, 9), (VIP, 53)) };
    let invalid = |table: &mut Conntrack, packet: &Packet, received| {
        let track = table.track(at(0), packet, [0; 2], received, &mut None, || ());
        track.expect("there is room").info == CtInfo::Invalid
    };
    assert!(invalid(&mut table, &bad, true));
    assert!(!invalid(&mut table, &bad, false), "a checksum that the device is to fill in");
    for kind in [0, 14, 16, 18, 9, 10, 42] {
        assert!(invalid(&mut table, &icmp(kind), true), "type {kind}");
    }
    for kind in [8, 13, 15, 17] {
        assert!(!invalid(&mut table, &icmp(kind), true), "type {kind}");
    }
    assert_eq!((table.stats().invalid, table.len()), (8, 0));
    let lenient = Sysctls { checksum: false, ..Sysctls::default() };
    assert!(!invalid(&mut Conntrack::new(lenient), &bad, true));
}

#[test]
fn protocols_have_timeouts_of_their_own() {
    let life = |protocol: u8, packets: u8| {
        let mut table = Conntrack::new(Sysctls::default());
        let there = Tuple::v4(Protocol(protocol), CLIENT, 0, REMOTE_POD, 0);
        for tuple in [there, there.reply(), there].into_iter().take(packets.into()) {
            pass(&mut table, at(0), &Packet::new(0, tuple, L4::Other, 60)).unwrap();
        }
        let assured = table.list(at(0))[0].assured;
        (life(&table, at(0))[0], assured)
    };
    assert_eq!([1, 2, 3].map(|n| life(89, n)), [(600, false), (600, false), (600, false)]);
    assert_eq!([1, 2, 3].map(|n| life(47, n)), [(30, false), (30, false), (180, true)]);
    assert_eq!([1, 2, 3].map(|n| life(136, n)), [(30, false), (30, false), (120, true)]);
    assert_eq!([1, 2].map(|n| life(132, n)), [(3, false), (210, true)]);
}

/// What a naive list knows of a flow.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Naive {
    port: u16,
    end: u64,
    answered: bool,
    /// The last packet was a SYN, whose answer opens the connection anew.
    asked: bool,
}

fn flow() -> impl Strategy<Value = (u8, u16, u8, u16, bool)> {
    (1u8..4, 1u16..6, 1u8..4, 80u16..82, any::<bool>())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    // Every tuple of the table leads to its entry; a clash enters neither.
    #[test]
    fn both_tuples_or_neither(
        flows in prop::collection::vec((flow(), prop::option::of(flow()), 0u64..100), 1..60)
    ) {
        let mut table = Conntrack::new(Sysctls { max: 20, ..Sysctls::default() });
        let mut now = 0;
        for ((client, sport, vip, dport, is_tcp), rewrite, wait) in flows {
            now += wait;
            let (from, to) = (Ipv4Addr::new(10, 0, 0, client), Ipv4Addr::new(10, 96, 0, vip));
            let packet = match is_tcp {
                true => tcp((from, sport), (to, dport), TcpFlags::SYN),
                false => udp((from, sport), (to, dport)),
            };
            let mut own = None;
            let Ok(track) = table.track(at(now), &packet, [0; 2], true, &mut own, || ()) else { continue };
            if track.holder == Holder::Tentative {
                let entry = own.as_mut().unwrap();
                if let Some((_, _, backend, port, _)) = rewrite {
                    let range = NatRange::to(Ipv4Addr::new(10, 1, 0, backend).into(), port);
                    let side = Side::Destination;
                    nat::set_up(&mut table, at(now), entry, side, &range, &mut || 0);
                }
                let tentative = entry.clone();
                let confirmed = table.confirm(at(now), &mut own);
                let found = table.lookup(at(now), &tentative.original);
                prop_assert_eq!(found.is_some(), confirmed.is_ok());
            }
            prop_assert_eq!(table.tuples.len(), 2 * table.len());
            for entry in table.entries(at(now)) {
                for direction in [Direction::Original, Direction::Reply] {
                    let found = table.lookup(at(now), entry.tuple(direction));
                    prop_assert_eq!(found, Some((entry, direction)));
                }
            }
        }
    }

    // The table is a list of flows, searched from end to end.
    #[test]
    fn a_naive_list_agrees(
        packets in prop::collection::vec((1u16..20, any::<bool>(), 0u64..12), 1..200)
    ) {
        let mut table = Conntrack::new(Sysctls::default());
        let mut naive: Vec<Naive> = Vec::new();
        let mut now = 0;
        for (port, is_answer, wait) in packets {
            now += wait;
            let packet = if is_answer {
                tcp((VIP, 80), (CLIENT, port), TcpFlags::SYN_ACK)
            } else {
                tcp((CLIENT, port), (VIP, 80), TcpFlags::SYN)
            };
            naive.retain(|flow| flow.end > now);
            let known = naive.iter_mut().find(|flow| flow.port == port);
            let expected = match (known, is_answer) {
                (None, true) => CtInfo::Invalid,
                (None, false) => {
                    naive.push(Naive { port, end: now + 120, answered: false, asked: true });
                    CtInfo::New
                }
                // A SYN that is sent again renews nothing.
                (Some(flow), false) => {
                    flow.asked = true;
                    if flow.answered { CtInfo::Established } else { CtInfo::New }
                }
                (Some(flow), true) => {
                    if flow.asked {
                        flow.end = now + 60;
                    }
                    (flow.answered, flow.asked) = (true, false);
                    CtInfo::Established
                }
            };
            prop_assert_eq!(pass(&mut table, at(now), &packet), Ok(expected));
            let mut ends: Vec<_> =
                table.entries(at(now)).map(|e| (e.original.src_part, e.deadline())).collect();
            ends.sort_unstable();
            naive.sort_unstable();
            let expected: Vec<_> = naive.iter().map(|flow| (flow.port, at(flow.end))).collect();
            prop_assert_eq!(ends, expected);
        }
    }

    // However full the table is, what is assured stays as long as it lives.
    #[test]
    fn early_drop_spares_what_is_assured(
        opened in prop::collection::vec(any::<bool>(), 1..100), buckets in 2u32..40
    ) {
        let mut table = Conntrack::new(Sysctls { max: 16, buckets, ..Sysctls::default() });
        let mut assured = Vec::new();
        for (port, answered) in (1..).zip(opened) {
            let syn = tcp((CLIENT, port), (VIP, 80), TcpFlags::SYN);
            let mut own = None;
            let full = table.track(at(0), &syn, [0; 2], true, &mut own, || ()).is_err();
            if full {
                continue;
            }
            table.confirm(at(0), &mut own).unwrap();
            if answered {
                let answer = tcp((VIP, 80), (CLIENT, port), TcpFlags::SYN_ACK);
                pass(&mut table, at(0), &answer).unwrap();
                pass(&mut table, at(0), &tcp((CLIENT, port), (VIP, 80), TcpFlags::ACK)).unwrap();
                assured.push(syn.tuple);
            }
            prop_assert!(table.len() <= 16);
            prop_assert!(assured.iter().all(|tuple| table.lookup(at(0), tuple).is_some()));
        }
    }

    // What nat does to a request, it undoes on the answer.
    #[test]
    fn un_nat_undoes_nat(
        (client, sport, vip, dport, is_tcp) in flow(),
        backend in 1u8..4,
        port in 1u16..,
        source in prop::option::of(any::<bool>()),
        seed in any::<u64>(),
    ) {
        let (from, to) = (Ipv4Addr::new(10, 0, 0, client), Ipv4Addr::new(10, 96, 0, vip));
        let packet = match is_tcp {
            true => tcp((from, sport), (to, dport), TcpFlags::SYN),
            false => udp((from, sport), (to, dport)),
        };
        let mut table = Conntrack::new(Sysctls::default());
        let mut entry = tentative(&mut table, &packet);
        let range = NatRange::to(Ipv4Addr::new(10, 1, 0, backend).into(), port);
        let mut draw = || bits(seed);
        nat::set_up(&mut table, at(0), &mut entry, Side::Destination, &range, &mut draw);
        if let Some(random_fully) = source {
            let flags = NatFlags { random_fully, ..NatFlags::default() };
            let range = NatRange::address(NODE.into()).with_flags(flags);
            nat::set_up(&mut table, at(0), &mut entry, Side::Source, &range, &mut draw);
        }
        let mut request = packet;
        for side in [Side::Destination, Side::Source] {
            nat::translate(&entry, Direction::Original, side, &mut request);
        }
        prop_assert_eq!(request.tuple.reply(), entry.reply);
        let mut answer = Packet { tuple: request.tuple.reply(), ..packet };
        for side in [Side::Destination, Side::Source] {
            nat::translate(&entry, Direction::Reply, side, &mut answer);
        }
        prop_assert_eq!(answer.tuple, packet.tuple.reply());
    }
}
