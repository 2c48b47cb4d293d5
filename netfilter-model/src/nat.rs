//! Address translation: choosing a connection's tuples, and rewriting its packets.
//!
//! A connection is decided once per side, by its first packet. The decision is only that the
//! reply tuple is not the mirror of the original one; every packet of the connection is rewritten
//! from the two tuples, in either direction.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::conntrack::{Conntrack, Direction, Entry, Status};
use crate::hash::Mix;
use crate::packet::{L4, Packet};
use crate::rule::{NatAddresses, NatFlags, NatRange};
use crate::time::SimTime;
use crate::tuple::{Side, Tuple};

/// How many ports are tried before another start is drawn.
// Kernel: nf_nat_core.c, NF_NAT_MAX_ATTEMPTS
const ATTEMPTS_MAX: u32 = 128;

/// Below this many tries the search ends.
const ATTEMPTS_MIN: u32 = 16;

/// Decides one side of a tentative connection.
// Kernel: nf_nat_core.c, nf_nat_setup_info
pub(crate) fn set_up(
    table: &mut Conntrack,
    now: SimTime,
    entry: &mut Entry,
    side: Side,
    range: &NatRange,
    draw: &mut dyn FnMut() -> u64,
) {
    let current = entry.reply.reply();
    let new = unique_tuple(table, now, &current, range, side, draw);
    if new != current {
        entry.reply = new.reply();
        entry.status.insert(Status::nat(side));
    }
    entry.status.insert(Status::nat_done(side));
}

/// Decides that one side stays as it is, but for a clash of reply tuples.
// Kernel: nf_nat_core.c, __nf_nat_alloc_null_binding
pub(crate) fn set_up_null(
    table: &mut Conntrack,
    now: SimTime,
    entry: &mut Entry,
    side: Side,
    draw: &mut dyn FnMut() -> u64,
) {
    set_up(table, now, entry, side, &NatRange::keep(), draw);
}

/// Returns the original tuple as it shall leave, such that its reply tuple is free if possible.
// Kernel: nf_nat_core.c, get_unique_tuple
// Simplified: a client port that is mapped already is not looked up to be mapped alike towards
// other destinations (find_appropriate_src); the search below keeps the port whenever it is free.
fn unique_tuple(
    table: &mut Conntrack,
    now: SimTime,
    current: &Tuple,
    range: &NatRange,
    side: Side,
    draw: &mut dyn FnMut() -> u64,
) -> Tuple {
    let random = range.flags.any_random();
    if side == Side::Source
        && !random
        && in_range(current, range)
        && !table.is_taken(now, &current.reply())
    {
        return *current;
    }
    let mut tuple = *current;
    if let Some(address) = choose_address(current, range, side) {
        tuple.set_address(side, address);
    }
    if !random {
        match range.ports {
            Some((min, max)) => {
                let fits = (min..=max).contains(&tuple.nat_part(side));
                if fits && (min == max || !table.is_taken(now, &tuple.reply())) {
                    return tuple;
                }
            }
            None if !table.is_taken(now, &tuple.reply()) => return tuple,
            None => {}
        }
    }
    search_part(table, now, tuple, range, side, draw)
}

/// Returns whether a source already lies in the range.
// Kernel: nf_nat_core.c, nf_in_range
fn in_range(tuple: &Tuple, range: &NatRange) -> bool {
    let address = match (&range.addresses, tuple.src()) {
        (NatAddresses::Keep, _) => true,
        (NatAddresses::V4(min, max), IpAddr::V4(src)) => (*min..=*max).contains(&src),
        (NatAddresses::V6(range), IpAddr::V6(src)) => (range.0..=range.1).contains(&src),
        _ => false,
    };
    let part = tuple.nat_part(Side::Source);
    address && range.ports.is_none_or(|(min, max)| (min..=max).contains(&part))
}

/// Returns the address of the range that the flow gets, if the range has addresses.
// Kernel: nf_nat_core.c, find_best_ips_proto
// Simplified: the kernel hashes under a key that it draws at boot; here the key is fixed.
fn choose_address(current: &Tuple, range: &NatRange, side: Side) -> Option<IpAddr> {
    let mut mix = Mix::new();
    mix.address(current.src());
    if !range.flags.persistent {
        mix.address(current.dst());
    }
    let hash = mix.finish() >> 32;
    let address = match &range.addresses {
        NatAddresses::Keep => return None,
        NatAddresses::V4(min, max) => {
            let (min, max) = (min.to_bits(), max.to_bits());
            let size = u64::from(max - min) + 1;
            IpAddr::V4(Ipv4Addr::from_bits(min + ((hash * size) >> 32) as u32))
        }
        NatAddresses::V6(range) => {
            let (min, max) = (range.0.to_bits(), range.1.to_bits());
            let offset = match (max - min).checked_add(1) {
                Some(size) => u128::from(hash) % size,
                None => u128::from(hash),
            };
            IpAddr::V6(Ipv6Addr::from_bits(min + offset))
        }
    };
    assert_eq!(
        address.is_ipv4(),
        current.address(side).is_ipv4(),
        "a rewrite of {current:?} to {address}",
    );
    Some(address)
}

/// Tries ports until the reply tuple is free; the last one tried is kept if none is.
// Kernel: nf_nat_core.c, nf_nat_l4proto_unique_tuple
// Simplified: no entry in TIME_WAIT or CLOSE is evicted for a new connection in the last tries.
fn search_part(
    table: &mut Conntrack,
    now: SimTime,
    mut tuple: Tuple,
    range: &NatRange,
    side: Side,
    draw: &mut dyn FnMut() -> u64,
) -> Tuple {
    let protocol = tuple.protocol;
    if !protocol.has_ports() && !protocol.is_icmp() {
        return tuple;
    }
    let part = tuple.nat_part(side);
    let (min, max) = match range.ports {
        Some(ports) => ports,
        // Without a range, a destination port stays.
        None if protocol.is_icmp() => (0, u16::MAX),
        None if side == Side::Destination => return tuple,
        None if part < 512 => (1, 511),
        None if part < 1024 => (600, 1023),
        None => (1024, u16::MAX),
    };
    let size = u32::from(max - min) + 1;
    let NatFlags { random, random_fully, .. } = range.flags;
    let mut offset =
        if random || random_fully || side == Side::Source { (draw() >> 48) as u32 } else { 0 };
    let mut attempts = size.min(ATTEMPTS_MAX);
    loop {
        for _ in 0..attempts {
            tuple.set_nat_part(side, min + (offset % size) as u16);
            if !table.is_taken(now, &tuple.reply()) {
                return tuple;
            }
            offset += 1;
        }
        if attempts >= size || attempts < ATTEMPTS_MIN {
            return tuple;
        }
        attempts /= 2;
        offset = (draw() >> 48) as u32;
    }
}

/// Returns whether packets of a direction are rewritten on a side.
// Kernel: nf_nat_core.c, nf_nat_packet
#[inline]
fn is_rewritten(entry: &Entry, direction: Direction, side: Side) -> bool {
    let decided = match direction {
        Direction::Original => side,
        Direction::Reply => side.other(),
    };
    entry.status.contains(Status::nat(decided))
}

/// Rewrites one side of a packet of the connection.
#[inline]
pub(crate) fn translate(entry: &Entry, direction: Direction, side: Side, packet: &mut Packet) {
    if is_rewritten(entry, direction, side) {
        let target = entry.tuple(direction.other()).reply();
        packet.tuple.copy_side(side, &target);
    }
}

/// Rewrites one side of an ICMP error about the connection, and the other side of what it quotes.
// Kernel: nf_nat_proto.c, nf_nat_icmp_reply_translation
pub(crate) fn translate_error(
    entry: &Entry,
    direction: Direction,
    side: Side,
    packet: &mut Packet,
) {
    let L4::IcmpError { quote, .. } = &mut packet.l4 else {
        panic!("{:?} is no ICMP error", packet.tuple)
    };
    if is_rewritten(entry, direction, side) {
        let opposite = entry.tuple(direction.other());
        quote.copy_side(side.other(), opposite);
        packet.tuple.set_address(side, opposite.reply().address(side));
    }
}
