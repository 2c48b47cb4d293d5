//! Address translation: choosing a connection's tuples, and rewriting its packets.
//!
//! A connection is decided once per side, by its first packet. The decision is only that the
//! reply tuple is not the mirror of the original one; every packet of the connection is rewritten
//! from the two tuples, in either direction.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::conntrack::{Conntrack, Direction, Entry, Status};
use crate::hash::jhash2;
use crate::packet::{L4, Packet};
use crate::rule::{NatAddresses, NatRange};
use crate::time::SimTime;
use crate::tuple::{Side, Tuple};

/// How many ports are tried before another start is drawn.
// Kernel: nf_nat_core.c, NF_NAT_MAX_ATTEMPTS
const ATTEMPTS_MAX: u32 = 128;

/// Below this many tries the search ends.
const ATTEMPTS_MIN: u32 = 16;

/// In the last tries, connections that have ended make way.
// Kernel: nf_nat_core.c, NF_NAT_HARDER_THRESH
const ATTEMPTS_HARDER: u32 = ATTEMPTS_MAX / 4;

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
    let new = unique_tuple(table, now, entry, &current, range, side, draw);
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
    // Kernel: nf_nat_core.c, get_unique_tuple: a tuple that is free stays.
    if !table.is_free(now, &entry.reply, entry) {
        set_up(table, now, entry, side, &NatRange::keep(), draw);
    }
    entry.status.insert(Status::nat_done(side));
}

/// Returns the original tuple as it shall leave, such that its reply tuple is free if possible.
// Kernel: nf_nat_core.c, get_unique_tuple
fn unique_tuple(
    table: &mut Conntrack,
    now: SimTime,
    entry: &Entry,
    current: &Tuple,
    range: &NatRange,
    side: Side,
    draw: &mut dyn FnMut() -> u64,
) -> Tuple {
    let random = range.flags.any_random();
    if side == Side::Source && !random {
        if in_range(current, range) {
            if !table.is_taken(now, &entry.reply, entry) {
                return *current;
            }
        } else if let Some(mapped) = table.mapped_alike(now, entry, current, range)
            && !table.is_taken(now, &mapped.reply(), entry)
        {
            return mapped;
        }
    }
    let mut tuple = *current;
    if let Some(address) = choose_address(current, range, entry.zones[0]) {
        tuple.set_address(side, address);
    }
    if !random {
        match range.ports {
            Some((min, max)) => {
                let (min, max) = (min.min(max), max.max(min));
                // A range with a base shifts every port, also one that lies in it.
                let fits = range.base_port.is_none() && part_in_range(&tuple, side, (min, max));
                if fits && (min == max || !table.is_taken(now, &tuple.reply(), entry)) {
                    return tuple;
                }
            }
            None if !table.is_taken(now, &tuple.reply(), entry) => return tuple,
            None => {}
        }
    }
    search_part(table, now, tuple, entry, range, side, draw)
}

/// Returns whether a source already lies in the range.
// Kernel: nf_nat_core.c, nf_in_range
pub(crate) fn in_range(tuple: &Tuple, range: &NatRange) -> bool {
    let address = match (&range.addresses, tuple.src()) {
        (NatAddresses::Keep, _) => true,
        (NatAddresses::V4(min, max), IpAddr::V4(src)) => (*min..=*max).contains(&src),
        (NatAddresses::V6(range), IpAddr::V6(src)) => (range.0..=range.1).contains(&src),
        _ => false,
    };
    address && range.ports.is_none_or(|ports| part_in_range(tuple, Side::Source, ports))
}

/// Returns whether a port, or an ICMP id, lies in the range; protocols without any do.
// Kernel: nf_nat_core.c, l4proto_in_range
fn part_in_range(tuple: &Tuple, side: Side, (min, max): (u16, u16)) -> bool {
    let has_part = tuple.protocol.has_ports() || tuple.protocol.is_icmp();
    !has_part || (min..=max).contains(&tuple.nat_part(side))
}

/// Returns the address of the range that the flow gets, if the range has addresses.
// Kernel: nf_nat_core.c, find_best_ips_proto; words are as the kernel reads them on x86.
fn choose_address(current: &Tuple, range: &NatRange, zone: u16) -> Option<IpAddr> {
    let (min, max) = match &range.addresses {
        NatAddresses::Keep => return None,
        NatAddresses::V4(min, max) if current.addresses_are_v4() => {
            (words((*min).into()), words((*max).into()))
        }
        NatAddresses::V6(range) if !current.addresses_are_v4() => {
            (words(range.0.into()), words(range.1.into()))
        }
        // Kernel: xt_nat.c, a rewrite for the other family is never reached.
        _ => return None,
    };
    if min == max {
        return Some(address_of(min, current.addresses_are_v4()));
    }
    let last = if current.addresses_are_v4() { 0 } else { 3 };
    let (src, dst) = (words(current.src()), words(current.dst()));
    let salt = if range.flags.persistent { 0 } else { dst[last] ^ u32::from(zone) };
    let mut hash = jhash2(&src, salt);
    let mut chosen = [0; 4];
    let mut below_max = false;
    for word in 0..=last {
        let (first, size) = if below_max {
            (0, u32::MAX)
        } else {
            let (min, max) = (u32::from_be(min[word]), u32::from_be(max[word]));
            (min, max.wrapping_sub(min).wrapping_add(1))
        };
        let offset = ((u64::from(hash) * u64::from(size)) >> 32) as u32;
        chosen[word] = first.wrapping_add(offset).to_be();
        below_max |= chosen[word] != max[word];
        if !range.flags.persistent {
            hash ^= dst[word];
        }
    }
    Some(address_of(chosen, current.addresses_are_v4()))
}

/// Returns an address as the kernel's union holds it: four words in network order.
fn words(address: IpAddr) -> [u32; 4] {
    match address {
        IpAddr::V4(address) => [address.to_bits().to_be(), 0, 0, 0],
        IpAddr::V6(address) => {
            let bits = address.to_bits();
            [96, 64, 32, 0].map(|shift| ((bits >> shift) as u32).to_be())
        }
    }
}

fn address_of(words: [u32; 4], is_v4: bool) -> IpAddr {
    let [a, b, c, d] = words.map(|word| u128::from(u32::from_be(word)));
    if is_v4 {
        IpAddr::V4(Ipv4Addr::from_bits(a as u32))
    } else {
        IpAddr::V6(Ipv6Addr::from_bits(a << 96 | b << 64 | c << 32 | d))
    }
}

/// Tries ports until the reply tuple is free; the last one tried is kept if none is.
// Kernel: nf_nat_core.c, nf_nat_l4proto_unique_tuple
fn search_part(
    table: &mut Conntrack,
    now: SimTime,
    mut tuple: Tuple,
    entry: &Entry,
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
        Some((min, max)) => (min.min(max), max.max(min)),
        // Without a range, a destination port stays.
        None if protocol.is_icmp() => (0, u16::MAX),
        None if side == Side::Destination => return tuple,
        None if part < 512 => (1, 511),
        None if part < 1024 => (600, 1023),
        None => (1024, u16::MAX),
    };
    let size = u32::from(max - min) + 1;
    let mut draw_offset = || (draw() >> 48) as u16;
    let mut offset = match range.base_port {
        Some(base) => part.wrapping_sub(base),
        None if range.flags.any_random() || side == Side::Source => draw_offset(),
        None => 0,
    };
    let mut attempts = size.min(ATTEMPTS_MAX);
    loop {
        for attempt in 0..attempts {
            tuple.set_nat_part(side, min + (u32::from(offset) % size) as u16);
            let reply = tuple.reply();
            let taken = if attempts - attempt > ATTEMPTS_HARDER {
                table.is_taken(now, &reply, entry)
            } else {
                table.is_taken(now, &reply, entry) && table.is_taken_for_good(now, &reply, entry)
            };
            if !taken {
                return tuple;
            }
            offset = offset.wrapping_add(1);
        }
        if attempts >= size || attempts < ATTEMPTS_MIN {
            return tuple;
        }
        attempts /= 2;
        offset = draw_offset();
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
