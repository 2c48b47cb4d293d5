use super::*;
use crate::conntrack::Sysctls;
use crate::nat;
use crate::packet::{L4, Packet, Segment, TcpFlags};
use crate::testing::{CLIENT, NODE, tcp, udp};
use crate::tuple::{Protocol, Side};
use std::net::Ipv4Addr;

fn at(seconds: u64) -> SimTime {
    SimTime::from_nanos(seconds * 1_000_000_000)
}

/// Sends a first packet through a source range; returns its external port, or that it was dropped.
fn open(
    table: &mut Conntrack,
    now: u64,
    packet: &Packet,
    ports: Option<(u16, u16)>,
) -> Option<u16> {
    let mut own = None;
    let _ = table.track(at(now), packet, [0; 2], true, &mut own, || ()).expect("there is room");
    let entry = own.as_mut().expect("a new connection");
    let range = NatRange { ports, ..NatRange::address(NODE.into()) };
    let mut draws = 0;
    let mut draw = || {
        draws += 1;
        (now * 31 + draws) << 48
    };
    nat::set_up(table, at(now), entry, Side::Source, &range, &mut draw);
    let port = entry.reply.dst_part;
    table.confirm(at(now), &mut own).ok().map(|_| port)
}

fn server(n: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 3, 0, n)
}

#[test]
fn a_client_port_keeps_its_external_port_towards_other_destinations() {
    let mut table = Conntrack::new(Sysctls::default());
    let ports = Some((60_000, 60_999));
    let mut external = |now, sport, to| {
        open(&mut table, now, &udp((CLIENT, sport), (server(to), 53)), ports).expect("free")
    };
    let first = external(0, 9, 1);
    assert_eq!((external(1, 9, 2), external(2, 9, 3)), (first, first));
    let other = external(3, 10, 1);
    assert_ne!(other, first, "another client port towards the same server");
    // All expire together; what is chosen then depends on nothing.
    assert_eq!(external(29, 9, 4), first, "as long as one lives");
}

#[test]
fn chains_follow_removals() {
    let mut table = Conntrack::new(Sysctls::default());
    let ports = Some((60_000, 60_999));
    for to in 1..=5 {
        open(&mut table, 0, &udp((CLIENT, 9), (server(to), 53)), ports);
    }
    for to in [3, 5, 1, 2] {
        let gone = table.delete(at(0), |entry| entry.original.dst() == server(to));
        assert_eq!(gone, 1);
        let alike = table.sources.len();
        assert_eq!(alike, 1);
    }
    assert_eq!(table.delete(at(0), |_| true), 1);
    assert!(table.sources.is_empty());
}

#[test]
fn a_connection_that_has_ended_makes_way_for_one_with_later_numbers() {
    let ports = Some((7000, 7000));
    let segment = |client, flags, seq, ack, back: bool| {
        let from = Ipv4Addr::new(10, 244, 1, client);
        let there = Tuple::v4(Protocol::TCP, from, 5000, server(1), 80);
        let answer = Tuple::v4(Protocol::TCP, server(1), 80, NODE, 7000);
        let tuple = if back { answer } else { there };
        let segment = Segment { seq, ack, window: 1000, ..Segment::default() };
        Packet::new(0, tuple, L4::Tcp { flags, segment: Some(segment) }, 40)
    };
    let (fin_ack, ack) = (TcpFlags::FIN | TcpFlags::ACK, TcpFlags::ACK);
    let begin = |end: bool| {
        let mut table = Conntrack::new(Sysctls::default());
        open(&mut table, 0, &segment(2, TcpFlags::SYN, 1000, 0, false), ports).expect("free");
        let mut packets = vec![
            segment(2, TcpFlags::SYN_ACK, 5000, 1001, true),
            segment(2, ack, 1001, 5001, false),
        ];
        if end {
            packets.extend([
                segment(2, fin_ack, 1001, 5001, false),
                segment(2, fin_ack, 5001, 1002, true),
                segment(2, ack, 1002, 5002, false),
            ]);
        }
        for packet in packets {
            let _ = table.track(at(1), &packet, [0; 2], true, &mut None, || ()).expect("known");
        }
        table
    };
    let syn = |seq| segment(3, TcpFlags::SYN, seq, 0, false);
    assert_eq!(open(&mut begin(true), 2, &syn(9000), ports), Some(7000));
    let ports = Some((7000, 7001));
    let with_both_taken = |end| {
        let mut table = begin(end);
        let udp_like = tcp((Ipv4Addr::new(10, 244, 1, 4), 5000), (server(1), 80), TcpFlags::SYN);
        assert_eq!(open(&mut table, 1, &udp_like, ports), Some(7001));
        table
    };
    assert_eq!(open(&mut with_both_taken(true), 2, &syn(9000), ports), Some(7000));
    assert_eq!(open(&mut with_both_taken(true), 2, &syn(500), ports), None, "older numbers");
    assert_eq!(open(&mut with_both_taken(false), 2, &syn(9000), ports), None, "still alive");
}
