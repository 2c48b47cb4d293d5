use super::*;
use crate::conntrack::{CtInfo, Holder, Sysctls, Track};
use crate::nat;
use crate::packet::{Packet, TcpFlags};
use crate::rule::NatRange;
use crate::testing::{CLIENT, LOCAL_POD, REMOTE_POD, VIP, tcp, udp};
use crate::tuple::{Protocol, Side, Tuple};
use std::net::Ipv4Addr;

fn at(millis: u64) -> SimTime {
    SimTime::from_nanos(millis * 1_000_000)
}

fn track(table: &mut Conntrack, now: SimTime, packet: &Packet) -> (Track, Option<Entry>) {
    let mut own = None;
    let track = table.track(now, packet, [0; 2], true, &mut own, || ()).expect("there is room");
    (track, own)
}

/// A first packet under way: tracked, sent to a backend, and not confirmed.
fn begin(table: &mut Conntrack, packet: &Packet, backend: Ipv4Addr) -> Option<Entry> {
    let (tracked, mut own) = track(table, at(0), packet);
    assert_eq!((tracked.info, tracked.holder), (CtInfo::New, Holder::Tentative));
    let entry = own.as_mut().expect("a new connection");
    let range = NatRange::address(backend.into());
    nat::set_up(table, at(0), entry, Side::Destination, &range, &mut || 0);
    own
}

/// The source is decided only when the other packet may have been confirmed.
fn finish(table: &mut Conntrack, mut own: Option<Entry>) -> Result<Confirmed, Unconfirmed> {
    let entry = own.as_mut().expect("a new connection");
    nat::set_up_null(table, at(0), entry, Side::Source, &mut || 0);
    table.confirm(at(0), &mut own)
}

/// Two first packets of one flow, to two backends.
fn race(packet: &Packet, backends: [Ipv4Addr; 2]) -> (Conntrack, Result<Confirmed, Unconfirmed>) {
    let mut table = Conntrack::new(Sysctls::default());
    let [first, second] = backends.map(|backend| begin(&mut table, packet, backend));
    finish(&mut table, first).expect("nobody was faster");
    let second = finish(&mut table, second);
    (table, second)
}

#[test]
fn of_two_datagrams_to_one_backend_the_second_joins() {
    let (table, second) = race(&udp((CLIENT, 9), (VIP, 53)), [REMOTE_POD; 2]);
    assert_eq!(second.map(|confirmed| confirmed.reversed), Ok(false));
    assert_eq!((table.len(), table.stats().clash_resolve), (1, 1));
    assert_eq!(table.stats().insert_failed, 0);
}

#[test]
fn of_two_datagrams_to_two_backends_both_pass_and_the_loser_is_found_by_its_answer_once() {
    let query = udp((CLIENT, 9), (VIP, 53));
    let (mut table, second) = race(&query, [REMOTE_POD, LOCAL_POD]);
    assert!(second.is_ok());
    assert_eq!((table.len(), table.stats().clash_resolve), (2, 1));
    assert_eq!(table.list(at(0)).len(), 1, "the loser is listed nowhere");
    assert_eq!(table.delete(at(0), |entry| entry.reply.src() == LOCAL_POD), 0);
    let (winner, _) = table.lookup(at(1), &query.tuple).expect("later packets follow the winner");
    assert_eq!(winner.reply.src(), REMOTE_POD);

    let answer = udp((LOCAL_POD, 53), (CLIENT, 9));
    let (tracked, own) = track(&mut table, at(500), &answer);
    assert_eq!((tracked.info, tracked.direction), (CtInfo::Established, Direction::Reply));
    let mut translated = answer;
    let entry = tracked.entry(&table, &own).expect("with the packet");
    nat::translate(entry, tracked.direction, Side::Source, &mut translated);
    assert_eq!(translated.tuple, query.tuple.reply(), "as if from the Service");
    assert_eq!(table.len(), 1, "it goes with its first answer");
    assert_eq!(track(&mut table, at(501), &answer).0.info, CtInfo::New);
}

#[test]
fn the_loser_of_a_clash_lives_for_a_second() {
    let query = udp((CLIENT, 9), (VIP, 53));
    let answer = udp((LOCAL_POD, 53), (CLIENT, 9));
    for (millis, info) in [(999, CtInfo::Established), (1000, CtInfo::New)] {
        let (mut table, _) = race(&query, [REMOTE_POD, LOCAL_POD]);
        assert_eq!(track(&mut table, at(millis), &answer).0.info, info, "after {millis} ms");
    }
}

#[test]
fn answers_that_look_alike_are_not_settled() {
    let mut table = Conntrack::new(Sysctls::default());
    let flows = [udp((CLIENT, 9), (VIP, 53)), udp((CLIENT, 9), (REMOTE_POD, 53))];
    let [first, second] = flows.map(|flow| {
        let mut own = begin(&mut table, &flow, REMOTE_POD);
        let entry = own.as_mut().expect("a new connection");
        // Both are decided while neither is in the table.
        nat::set_up_null(&mut table, at(0), entry, Side::Source, &mut || 0);
        own
    });
    assert!(table.confirm(at(0), &mut { first }).is_ok());
    assert_eq!(table.confirm(at(0), &mut { second }), Err(Unconfirmed::Clash));
    assert_eq!((table.stats().insert_failed, table.stats().drop), (1, 1));
}

#[test]
fn other_protocols_lose_the_second_packet() {
    let ping = Tuple::v4(Protocol::ICMP, CLIENT, 7, VIP, 8 << 8);
    for packet in [tcp((CLIENT, 9), (VIP, 80), TcpFlags::SYN), Packet::icmp_echo(0, ping)] {
        let (table, second) = race(&packet, [REMOTE_POD; 2]);
        assert_eq!(second, Err(Unconfirmed::Clash), "{packet:?}");
        assert_eq!((table.len(), table.stats().insert_failed, table.stats().drop), (1, 1, 1));
    }
}

#[test]
fn both_ends_at_once_are_one_connection() {
    let mut table = Conntrack::new(Sysctls::default());
    let there = udp((CLIENT, 9), (REMOTE_POD, 9));
    let back = udp((REMOTE_POD, 9), (CLIENT, 9));
    let mut own = [there, back].map(|packet| {
        let (_, mut own) = track(&mut table, at(0), &packet);
        for side in [Side::Destination, Side::Source] {
            let entry = own.as_mut().expect("a new connection");
            nat::set_up_null(&mut table, at(0), entry, side, &mut || 0);
        }
        own
    });
    assert!(table.confirm(at(0), &mut own[0]).is_ok());
    let second = table.confirm(at(0), &mut own[1]);
    assert_eq!(second.map(|confirmed| confirmed.reversed), Ok(true));
    assert_eq!(table.len(), 1);
}
