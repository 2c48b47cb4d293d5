//! What the sender of a dropped packet is told.

use std::net::IpAddr;

use super::{Answer, Flight, Netns, Stopped, Way};
use crate::conntrack::{CtInfo, Holder, Track};
use crate::hook::Hook;
use crate::host::{Draws, Env, Host, Route, RouteQuery, Socket};
use crate::packet::{IcmpError, L4, Packet};
use crate::rule::{AddrType, RejectWith, Rules};

impl Netns {
    /// Makes the answer and sends it through OUTPUT and POSTROUTING; `None` if nothing is said, too
    /// much was said already, or the answer itself is dropped.
    // Kernel: nf_reject_ipv4.c; icmp.c, __icmp_send
    pub(super) fn answer<H: Host, R: Rules, D: Draws>(
        &mut self,
        rejected: &Flight,
        with: RejectWith,
        hook: Option<Hook>,
        env: &mut Env<'_, H, R, D>,
    ) -> Option<Answer> {
        let about = &rejected.packet;
        let query =
            RouteQuery { dst: about.tuple.src(), src: about.tuple.dst(), mark: 0, in_dev: None };
        let route = env.host.route(query);
        let packet = match with {
            RejectWith::TcpReset => Packet::tcp_reset(about.id, about)?,
            RejectWith::Icmp(kind) => {
                let unrouted = is_unrouted(rejected, hook, route, env.host);
                let way = self.bridged_way(rejected).unwrap_or(route);
                icmp_error(about, kind, (query, way, unrouted), env.host)?
            }
        };
        if let RejectWith::Icmp(_) = with
            && is_from_icmp(rejected)
        {
            return None;
        }
        // Resets are not limited, nor is what goes by the loopback device.
        if let RejectWith::Icmp(kind) = with
            && route != Route::Local
            && !self.icmp_limit.allow(env.now, packet.tuple.dst(), kind)
        {
            return None;
        }
        let mut flight = Flight::new(packet, None);
        flight.socket = matches!(with, RejectWith::Icmp(_)).then_some(Socket::KERNEL);
        if with == RejectWith::TcpReset
            && let Some(Holder::Table(entry)) = rejected.track.map(|track| track.holder)
        {
            self.conntrack.set_closing(env.now, entry);
        }
        // Kernel: nf_reject_ipv4.c, nf_send_reset: to a frame's sender, below all hooks.
        if let (RejectWith::TcpReset, Some(ingress)) = (with, rejected.ingress)
            && ingress.port.is_some()
        {
            flight.out = Some((ingress.dev, self.frame_sender(rejected)));
            return Some(Answer::Sent(self.egress(&flight)));
        }
        // Kernel: nf_conntrack_core.c, nf_conntrack_attach: the answer shares the connection.
        // A template with zones is shared likewise.
        flight.track = rejected.track.and_then(attached);
        if rejected.track.is_none() {
            flight.zones = rejected.zones;
        }
        flight.entry = rejected.entry.clone();
        flight.ordinal = rejected.ordinal;
        match self.run_sent(&mut flight, route, env) {
            Ok(Way::Out) => Some(Answer::Sent(self.egress(&flight))),
            Ok(Way::Local) => Some(Answer::Local(self.delivery(&flight, env.host.loopback()))),
            // What is told about a reset that is rejected in its turn; nothing is about an error.
            Err(stop) => match self.stopped(flight, stop, env) {
                Stopped::Dropped(_) => None,
                Stopped::Rejected(rejection) => Some(rejection.answer),
            },
        }
    }

    /// Returns the way by whose device an ICMPv6 error gets its address, if it is not the way to
    /// the sender: a bridged frame whose destination was rewritten counts as having come in by the
    /// device by which it is to leave.
    // Kernel: br_netfilter_ipv6.c, br_nf_pre_routing_finish_ipv6, which routes it; ip6_input.c,
    // ip6_rcv_core, which takes IP6CB(skb)->iif from the route; icmp.c, icmp6_send
    fn bridged_way(&self, rejected: &Flight) -> Option<Route> {
        let Flight { packet, ingress, out, track, entry, .. } = rejected;
        ingress.filter(|ingress| ingress.port.is_some() && !packet.tuple.is_ipv4())?;
        let track = track.as_ref()?;
        let known = track.entry(&self.conntrack, entry)?;
        let rewritten = known.tuple(track.direction).dst() != packet.tuple.dst();
        let (dev, next_hop) = out.filter(|_| rewritten)?;
        Some(Route::Forward { dev, next_hop })
    }

    /// Returns who sent the frame that a packet came in, before translation of its source.
    fn frame_sender(&self, received: &Flight) -> IpAddr {
        let track = received.track.as_ref();
        let entry = track.and_then(|track| {
            let entry = track.entry(&self.conntrack, &received.entry)?;
            Some(entry.tuple(track.direction).src())
        });
        entry.unwrap_or(received.packet.tuple.src())
    }
}

/// Returns whether the kernel's ICMP made the packet: it does not answer itself.
// Kernel: icmp.c, icmp_xmit_trylock, which is held while the packet passes OUTPUT
fn is_from_icmp(rejected: &Flight) -> bool {
    rejected.in_dev.is_none()
        && matches!(rejected.socket, None | Some(Socket::KERNEL))
        && rejected.packet.tuple.protocol.is_icmp()
}

fn attached(track: Track) -> Option<Track> {
    if track.holder == Holder::None {
        return (track.info == CtInfo::Untracked).then_some(Track::ABOUT_UNTRACKED);
    }
    let direction = track.direction.other();
    Some(Track { holder: track.holder, info: CtInfo::Related, direction })
}

/// Returns whether a packet is refused before it is known to be for this host: the error then has
/// the address of the way to the sender, whomever the packet was for.
// Kernel: nf_reject_ipv4.c, nf_reject_fill_skb_dst; icmp.c, icmp_send, which looks for RTCF_LOCAL.
// What comes by the loopback device has kept its route.
fn is_unrouted<H: Host>(rejected: &Flight, hook: Option<Hook>, route: Route, host: &H) -> bool {
    let by_loopback = rejected.in_dev == Some(host.loopback());
    let v4 = rejected.packet.tuple.is_ipv4();
    v4 && hook == Some(Hook::Prerouting) && route != Route::Local && !by_loopback
}

/// Returns the ICMP error about a packet; errors are not answered with errors.
fn icmp_error<H: Host>(
    about: &Packet,
    kind: IcmpError,
    (query, route, unrouted): (RouteQuery, Route, bool),
    host: &H,
) -> Option<Packet> {
    if matches!(about.l4, L4::IcmpError { .. }) {
        return None;
    }
    // The address that the packet was for if it is ours, else that of the way to the sender.
    let dst = about.tuple.dst();
    let from = if !unrouted && host.addr_type(dst, None) == AddrType::Local {
        dst
    } else {
        host.source_address(query, route)?
    };
    Some(Packet::icmp_error(about, kind, from))
}
