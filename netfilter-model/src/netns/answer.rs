//! What the sender of a dropped packet is told.

use std::net::IpAddr;

use super::{Answer, Flight, Netns, Way};
use crate::conntrack::{CtInfo, Holder, Track};
use crate::host::{Draws, Env, Host, Route, RouteQuery};
use crate::packet::{IcmpError, L4, Packet, TcpFlags};
use crate::rule::{RejectWith, Rules};

impl Netns {
    /// Makes the answer and sends it through OUTPUT and POSTROUTING; `None` if nothing is said, too
    /// much was said already, or the answer itself is dropped.
    // Kernel: nf_reject_ipv4.c; icmp.c, __icmp_send
    pub(super) fn answer<H: Host, R: Rules, D: Draws>(
        &mut self,
        rejected: &Flight,
        with: RejectWith,
        env: &mut Env<'_, H, R, D>,
    ) -> Option<Answer> {
        let about = &rejected.packet;
        let query =
            RouteQuery { dst: about.tuple.src(), src: about.tuple.dst(), mark: 0, in_dev: None };
        let route = env.host.route(query);
        let packet = match with {
            RejectWith::TcpReset => reset(about)?,
            RejectWith::Icmp(kind) => icmp_error(about, kind, route, env.host)?,
        };
        // Resets are not limited, nor is what goes by the loopback device.
        if let RejectWith::Icmp(kind) = with
            && route != Route::Local
            && !self.icmp_limit.allow(env.now, packet.tuple.dst(), kind)
        {
            return None;
        }
        let mut flight = Flight::new(packet, None);
        // Kernel: nf_conntrack_core.c, nf_conntrack_attach: the answer shares the connection.
        flight.track = rejected.track.and_then(attached);
        flight.entry = rejected.entry.clone();
        flight.ordinal = rejected.ordinal;
        match self.run_sent(&mut flight, route, env) {
            Ok(Way::Out) => Some(Answer::Sent(self.egress(&flight))),
            Ok(Way::Local) => Some(Answer::Local(self.delivery(&flight, env.host.loopback()))),
            Err(_) => None,
        }
    }
}

fn attached(track: Track) -> Option<Track> {
    if track.holder == Holder::None {
        return None;
    }
    let direction = track.direction.other();
    Some(Track { holder: track.holder, info: CtInfo::Related, direction })
}

/// Returns the segment that resets a connection; a reset is not answered with one.
fn reset(about: &Packet) -> Option<Packet> {
    let flags = about.tcp_flags()?;
    if flags.contains(TcpFlags::RST) {
        return None;
    }
    // An acknowledged segment is reset at its acknowledgement number, without ACK.
    let answer =
        if flags.contains(TcpFlags::ACK) { TcpFlags::RST } else { TcpFlags::RST | TcpFlags::ACK };
    Some(Packet::tcp(about.id, about.tuple.reply(), answer))
}

/// Returns the ICMP error about a packet; errors are not answered with errors.
fn icmp_error<H: Host>(about: &Packet, kind: IcmpError, route: Route, host: &H) -> Option<Packet> {
    if matches!(about.l4, L4::IcmpError { .. }) {
        return None;
    }
    let from = source_of_error(about, route, host)?;
    Some(Packet::icmp_error(about, kind, from))
}

/// Returns the address that an ICMP error comes from: the one that the packet was for if it is
/// ours, else that of the device toward the sender.
fn source_of_error<H: Host>(about: &Packet, route: Route, host: &H) -> Option<IpAddr> {
    let local = |addr| host.addr_type(addr, None) == crate::rule::AddrType::Local;
    match route {
        _ if local(about.tuple.dst()) => Some(about.tuple.dst()),
        Route::Local => Some(about.tuple.src()),
        Route::Forward { dev, next_hop } | Route::Bridged { dev, next_hop } => {
            host.masquerade_address(dev, next_hop)
        }
        Route::Unreachable | Route::Prohibited | Route::Blackhole | Route::NoRoute => None,
    }
}
