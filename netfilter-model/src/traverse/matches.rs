//! What matches ask.

use std::net::IpAddr;

use crate::conntrack::Direction;
use crate::device::DeviceId;
use crate::host::{Draws, Host, Route, RouteQuery, Socket};
use crate::packet::{L4, Packet, TcpFlags};
use crate::prefix::Prefix;
use crate::rule::{
    AddrType, AddrTypeMatch, AddrTypes, ConntrackMatch, CtAddress, DeviceMatch, FlagsMatch,
    FrameKind, Invertible, LimitIface, Match, OwnerMatch, PhysdevMatch, PortMatch, RpfilterMatch,
    Rule, RuleRef, SetMatch, TtlCompare,
};
use crate::set::Sight;

use super::Context;
use super::memory::StateKey;

/// Returns whether all conditions hold, looking at them in order up to the first that fails.
#[inline]
pub(super) fn rule_matches<H: Host, D: Draws>(
    rule: &Rule,
    packet: &Packet,
    cx: &mut Context<'_, H, D>,
    key: StateKey,
) -> bool {
    rule.matches().iter().enumerate().all(|(i, condition)| match condition {
        Match::Random { probability, invert } => cx.chance(*probability) != *invert,
        Match::Recent(_)
        | Match::Set(_)
        | Match::Limit(_)
        | Match::Hashlimit(_)
        | Match::Nth { .. }
        | Match::Mac { .. }
        | Match::Sctp(_)
        | Match::Tcpmss { .. }
        | Match::Unsupported(_) => ask(condition, i as u32, rule, packet, cx, key),
        condition => holds(condition, packet, cx),
    })
}

/// Decides a match that looks at or changes what is kept between packets, or that may ask for what
/// is not known of this one.
#[inline(never)]
fn ask<H: Host, D: Draws>(
    condition: &Match,
    place: u32,
    rule: &Rule,
    packet: &Packet,
    cx: &mut Context<'_, H, D>,
    key: StateKey,
) -> bool {
    let (now, local) = (cx.now, cx.socket.is_some());
    let decided = match condition {
        Match::Nth { every, packet: first, invert } => {
            Some(cx.memory.nth_matches(key, place, *every, *first) != *invert)
        }
        Match::Limit(limit) => Some(cx.memory.limit_matches(key, place, **limit, now)),
        Match::Hashlimit(limit) => Some(cx.memory.hashlimit_matches(limit, packet, now)),
        Match::Recent(recent) => {
            // Kernel: xt_recent.c, recent_mt: a hop that this host took is given back.
            let forwarded = cx.out_dev.is_some() && !local;
            let ttl = packet.ttl.wrapping_add(u8::from(forwarded));
            Some(cx.memory.recent_matches(recent, packet, ttl, now))
        }
        Match::Set(wanted) => set_matches(wanted, packet, cx),
        // Kernel: xt_mac.c, mac_mt: what has no frame does not match, inverted or not
        Match::Mac { address, invert } => match cx.ingress {
            Some(ingress) => ingress.source.map(|source| (source == *address) != *invert),
            None => Some(false),
        },
        Match::Sctp(sctp) => {
            let tuple = &packet.tuple;
            let fits = !packet.is_later_fragment()
                && ports_match(sctp.sport, tuple.src_part)
                && ports_match(sctp.dport, tuple.dst_part);
            (sctp.chunks.is_none() || !fits).then_some(fits)
        }
        Match::Tcpmss { min, max, invert } => tcpmss_matches(*min, *max, *invert, packet),
        _ => None,
    };
    decided.unwrap_or_else(|| {
        let (table, chain, position) = key;
        let (table, number, origin) = (table.into(), position + 1, rule.origin);
        cx.draws.unsupported(RuleRef { table, chain, number, origin })
    })
}

/// Returns whether the packet is in the set, or `None` if that is not known.
// Kernel: xt_set.c, set_match_v1
fn set_matches<H: Host, D>(
    wanted: &SetMatch,
    packet: &Packet,
    cx: &Context<'_, H, D>,
) -> Option<bool> {
    let sets = &cx.memory.sets;
    let found =
        sets.test(&wanted.name, &wanted.sides, wanted.return_nomatch, &sight(packet, cx), cx.now)?;
    // What counters would say is not known: sets here count nothing.
    if found && wanted.counters.as_deref().is_some_and(asks_counters) {
        return None;
    }
    Some(found != wanted.invert)
}

/// Returns whether the segment announces a size in the range; `None` if that is not known.
// Kernel: xt_tcpmss.c, tcpmss_mt
fn tcpmss_matches(min: u16, max: u16, invert: bool, packet: &Packet) -> Option<bool> {
    match packet.l4 {
        L4::Tcp { .. } if packet.is_later_fragment() => Some(false),
        L4::Tcp { flags, segment: None } if flags.contains(TcpFlags::SYN) => None,
        L4::Tcp { segment, .. } => {
            let mss = segment.map_or(0, |segment| segment.mss);
            Some((mss != 0 && min <= mss && mss <= max) != invert)
        }
        _ => Some(false),
    }
}

/// Returns whether the options make a match depend on counters.
fn asks_counters(options: &str) -> bool {
    options.contains("--packets-") || options.contains("--bytes-")
}

/// Returns what a set can see of the packet.
pub(super) fn sight<'p, H: Host, D>(packet: &'p Packet, cx: &Context<'_, H, D>) -> Sight<'p> {
    let name = |dev: Option<DeviceId>| dev.map(|dev| cx.host.device_name(dev));
    Sight {
        packet,
        in_dev: name(cx.in_dev),
        out_dev: name(cx.out_dev),
        source: cx.ingress.and_then(|ingress| ingress.source),
    }
}

#[inline]
fn holds<H: Host, D: Draws>(condition: &Match, packet: &Packet, cx: &Context<'_, H, D>) -> bool {
    let tuple = &packet.tuple;
    match condition {
        Match::Source { prefix, invert } => prefix.contains_src(tuple) != *invert,
        Match::Destination { prefix, invert } => prefix.contains_dst(tuple) != *invert,
        Match::InDevice(device) => device_matches(device, cx.in_dev, cx.host),
        Match::OutDevice(device) => device_matches(device, cx.out_dev, cx.host),
        Match::Protocol { protocol, invert } => {
            (tuple.protocol == *protocol || protocol.0 == 0) != *invert
        }
        Match::Fragment { invert } => packet.is_later_fragment() != *invert,
        // No header, no match.
        Match::Tcp { .. } | Match::Udp { .. } | Match::Icmp { .. } | Match::Multiport(_)
            if packet.is_later_fragment() =>
        {
            false
        }
        Match::Tcp { sport, dport, flags, option } => match packet.l4 {
            L4::Tcp { flags: set, .. } => {
                ports_match(*sport, tuple.src_part)
                    && ports_match(*dport, tuple.dst_part)
                    && flags.is_none_or(|FlagsMatch { mask, set: wanted, invert }| {
                        (set.masked(mask) == wanted) != invert
                    })
                    && option.is_none_or(|Invertible { value, invert }| {
                        packet.has_tcp_option(value) != invert
                    })
            }
            _ => false,
        },
        Match::Udp { sport, dport } => {
            ports_match(*sport, tuple.src_part) && ports_match(*dport, tuple.dst_part)
        }
        Match::Multiport(multiport) => multiport.matches(tuple),
        Match::Icmp { kind, code, invert } => {
            let (packet_kind, packet_code) = tuple.icmp_kind();
            // 255 is iptables' "any".
            let fits =
                *kind == 255 || *kind == packet_kind && code.is_none_or(|code| code == packet_code);
            fits != *invert
        }
        Match::Mark { value, mask, invert } => (packet.mark & mask == *value) != *invert,
        // Kernel: xt_connmark.c, connmark_mt: without a connection false, inverted or not.
        Match::Connmark { value, mask, invert } => {
            cx.ct.entry().is_some_and(|entry| (entry.mark() & mask == *value) != *invert)
        }
        Match::Conntrack(wanted) => conntrack_matches(wanted, cx),
        Match::CtState { states, invert } | Match::State { states, invert } => {
            states.intersects(cx.ct_state) != *invert
        }
        Match::AddrType { src, dst, limit } => {
            let on = match limit {
                None => None,
                Some(LimitIface::In) => cx.in_dev,
                Some(LimitIface::Out) => cx.out_dev,
            };
            let fits = |wanted: &Option<AddrTypeMatch>, address| {
                wanted.is_none_or(|AddrTypeMatch { types, invert }| {
                    addr_type_matches(types, address, cx.host.addr_type(address, on)) != invert
                })
            };
            fits(src, tuple.src()) && fits(dst, tuple.dst())
        }
        Match::Comment(_) => true,
        Match::Physdev(wanted) => physdev_matches(wanted, cx),
        Match::Iprange(range) => {
            let lies = |wanted: &Option<Invertible<(IpAddr, IpAddr)>>, address: IpAddr| {
                wanted.is_none_or(|Invertible { value: (min, max), invert }| {
                    (min <= address && address <= max) != invert
                })
            };
            lies(&range.src, tuple.src()) && lies(&range.dst, tuple.dst())
        }
        Match::Owner(wanted) => owner_matches(wanted, cx.socket),
        Match::Pkttype { kind, invert } => {
            let seen = cx.ingress.map_or(FrameKind::Unicast, |ingress| ingress.kind);
            (seen == *kind) != *invert
        }
        Match::Ttl { compare, value } => match compare {
            TtlCompare::Eq => packet.ttl == *value,
            TtlCompare::Ne => packet.ttl != *value,
            TtlCompare::Lt => packet.ttl < *value,
            TtlCompare::Gt => packet.ttl > *value,
        },
        Match::Length { min, max, invert } => {
            (u32::from(*min) <= packet.len && packet.len <= u32::from(*max)) != *invert
        }
        Match::Tos { value, mask, invert, .. } => (packet.tos & mask == *value) != *invert,
        Match::Rpfilter(wanted) => rpfilter_matches(*wanted, packet, cx),
        Match::Ipvs(wanted) => cx.virtual_end.is_some_and(|(protocol, address, port)| {
            protocol == wanted.protocol && wanted.address.contains(address) && port == wanted.port
        }),
        Match::Fixed { holds, .. } => *holds,
        Match::Random { .. }
        | Match::Nth { .. }
        | Match::Recent(_)
        | Match::Set(_)
        | Match::Limit(_)
        | Match::Hashlimit(_)
        | Match::Mac { .. }
        | Match::Sctp(_)
        | Match::Tcpmss { .. }
        | Match::Unsupported(_) => unreachable!("is decided with its rule"),
    }
}

fn ports_match(wanted: Option<PortMatch>, port: u16) -> bool {
    wanted.is_none_or(|wanted| wanted.matches(port))
}

/// Kernel: xt_conntrack.c, conntrack_mt.
fn conntrack_matches<H, D>(wanted: &ConntrackMatch, cx: &Context<'_, H, D>) -> bool {
    if let Some(Invertible { value: states, invert }) = wanted.states
        && states.intersects(cx.ct_state) == invert
    {
        return false;
    }
    let Some((entry, direction)) = cx.ct.entry_and_direction() else {
        return wanted.states.is_some();
    };
    if wanted.direction.is_some_and(|wanted| wanted != direction) {
        return false;
    }
    let (original, reply) = (entry.tuple(Direction::Original), entry.tuple(Direction::Reply));
    let address = |wanted: &Option<Invertible<CtAddress>>, address: IpAddr| {
        wanted.is_none_or(|Invertible { value, invert }| {
            Prefix::new(value.address, value.len).contains(address) != invert
        })
    };
    let number = |wanted: &Option<Invertible<u8>>, number: u8| {
        wanted.is_none_or(|Invertible { value, invert }| (value == number) != invert)
    };
    let seconds = entry.deadline().saturating_since(cx.now).as_secs();
    number(
        &wanted.protocol.map(|p| Invertible { value: p.value.0, invert: p.invert }),
        original.protocol.0,
    ) && address(&wanted.orig_src, original.src())
        && address(&wanted.orig_dst, original.dst())
        && address(&wanted.repl_src, reply.src())
        && address(&wanted.repl_dst, reply.dst())
        && ports_match(wanted.orig_src_port, original.src_part)
        && ports_match(wanted.orig_dst_port, original.dst_part)
        && ports_match(wanted.repl_src_port, reply.src_part)
        && ports_match(wanted.repl_dst_port, reply.dst_part)
        && wanted.status.is_none_or(|Invertible { value, invert }| {
            // Kernel: xt_conntrack.c, conntrack_mt: NONE is no bit, and fits nothing.
            (value.0 & entry.status().ct_status() != 0) != invert
        })
        && wanted.expire.is_none_or(|Invertible { value: (min, max), invert }| {
            (u64::from(min) <= seconds && seconds <= u64::from(max)) != invert
        })
}

/// Kernel: xt_addrtype.c, match_type and match_type6: over IPv6, several types hold together or not
/// at all.
fn addr_type_matches(wanted: AddrTypes, address: IpAddr, kind: AddrType) -> bool {
    let IpAddr::V6(address) = address else {
        return wanted.contains(kind);
    };
    let asks = |kind| wanted.contains(kind);
    let of_table = [AddrType::Local, AddrType::Anycast, AddrType::Unreachable];
    (!asks(AddrType::Multicast) || address.is_multicast())
        && (!asks(AddrType::Unicast) || !address.is_multicast() && !address.is_unspecified())
        && (!asks(AddrType::Unspec) || address.is_unspecified())
        && (!of_table.into_iter().any(asks) || of_table.contains(&kind) && asks(kind))
}

/// Kernel: xt_physdev.c, physdev_mt.
fn physdev_matches<H: Host, D>(wanted: &PhysdevMatch, cx: &Context<'_, H, D>) -> bool {
    let in_port = cx.ingress.and_then(|ingress| ingress.port);
    let out_port = cx.out_port;
    let is = |wanted: Option<bool>, fact: bool| wanted.is_none_or(|wanted| wanted == fact);
    let port = |wanted: &Option<DeviceMatch>, port: Option<DeviceId>| {
        wanted.as_ref().is_none_or(|wanted| device_matches(wanted, port, cx.host))
    };
    is(wanted.is_in, in_port.is_some())
        && is(wanted.is_out, out_port.is_some())
        && is(wanted.is_bridged, in_port.is_some() && out_port.is_some())
        && port(&wanted.in_port, in_port)
        && port(&wanted.out_port, out_port)
}

/// Kernel: ipt_rpfilter.c, rpfilter_mt.
fn rpfilter_matches<H: Host, D>(
    wanted: RpfilterMatch,
    packet: &Packet,
    cx: &Context<'_, H, D>,
) -> bool {
    let Some(in_dev) = cx.in_dev else {
        return true;
    };
    if in_dev == cx.host.loopback() {
        return true;
    }
    let mark = if wanted.validmark { packet.mark } else { 0 };
    let (dst, src) = (packet.tuple.src(), packet.tuple.dst());
    let reached = match cx.host.route(RouteQuery { dst, src, mark, in_dev: None }) {
        Route::Local => {
            let here = cx.host.addr_type(dst, Some(in_dev)) == AddrType::Local;
            wanted.accept_local && (wanted.loose || here)
        }
        Route::Forward { dev, .. } | Route::Bridged { dev, .. } => wanted.loose || dev == in_dev,
        Route::Unreachable | Route::Prohibited | Route::Blackhole | Route::NoRoute => false,
    };
    reached != wanted.invert
}

/// Kernel: xt_owner.c, owner_mt.
fn owner_matches(wanted: &OwnerMatch, socket: Option<Socket>) -> bool {
    let lies = |wanted: Option<Invertible<(u32, u32)>>, id: Option<u32>| {
        wanted.is_none_or(|Invertible { value: (min, max), invert }| {
            id.is_some_and(|id| min <= id && id <= max) != invert
        })
    };
    let exists = socket.is_some();
    let socket = socket.filter(|socket| *socket != Socket::KERNEL);
    wanted.socket_exists.is_none_or(|wanted| wanted == exists)
        && lies(wanted.uid, socket.map(|socket| socket.uid))
        && lies(wanted.gid, socket.map(|socket| socket.gid))
}

fn device_matches<H: Host>(wanted: &DeviceMatch, dev: Option<DeviceId>, host: &H) -> bool {
    wanted.pattern.matches(dev.map(|dev| host.device_name(dev))) != wanted.invert
}
