//! What becomes of routing decisions.

use std::net::IpAddr;

use super::{DropReason, Flight, Stop, Way};
use crate::hook::Hook;
use crate::host::{BridgeQuery, Draws, Env, Host, Note, Route};
use crate::packet::IcmpError;
use crate::rule::RejectWith;

/// Routes a packet that has passed PREROUTING; `dst` is where it went before.
#[inline]
pub(super) fn route_received<H: Host, R, D: Draws>(
    flight: &mut Flight,
    dst: IpAddr,
    env: &mut Env<'_, H, R, D>,
) -> Result<Way, Stop> {
    let hook = Hook::Prerouting;
    let query = flight.route_query();
    let bridged = match flight.ingress {
        Some(ingress) if ingress.port.is_some() => {
            let rewritten = query.dst != dst;
            env.host.bridge(BridgeQuery { ingress, packet: query, rewritten })
        }
        _ => None,
    };
    let route = bridged.unwrap_or_else(|| env.host.route(query));
    env.draws.note(Note::Routed { hook, query, route });
    match route {
        Route::Local => Ok(Way::Local),
        Route::Forward { dev, next_hop } => {
            flight.out = Some((dev, next_hop));
            // Kernel: ip_forward.c, ip_forward: the hop is taken before FORWARD.
            if flight.packet.ttl <= 1 {
                let tell = Some(RejectWith::Icmp(IcmpError::TimeExceeded));
                return Err(Stop { hook, reason: DropReason::TtlExpired, tell });
            }
            flight.packet.ttl -= 1;
            Ok(Way::Out)
        }
        Route::Bridged { dev, port, next_hop } => {
            flight.out = Some((dev, next_hop));
            (flight.out_port, flight.bridged) = (port, true);
            Ok(Way::Out)
        }
        refusal => {
            let (reason, error) = refused(refusal);
            // Kernel: net/ipv6/route.c, ip6_pkt_discard: all but prohibited is "no route".
            let error = match error {
                Some(IcmpError::HostUnreachable) if query.dst.is_ipv6() => {
                    Some(IcmpError::NetUnreachable)
                }
                error => error,
            };
            Err(Stop { hook, reason, tell: error.map(RejectWith::Icmp) })
        }
    }
}

/// Sets where a packet made here leaves by. Its sender learns of a refusal by an error code.
pub(super) fn set_out<H: Host>(flight: &mut Flight, route: Route, host: &H) -> Result<(), Stop> {
    flight.out = Some(match route {
        Route::Local => (host.loopback(), flight.packet.tuple.dst()),
        Route::Forward { dev, next_hop } | Route::Bridged { dev, next_hop, .. } => (dev, next_hop),
        refusal => {
            let (reason, _) = refused(refusal);
            return Err(Stop { hook: Hook::Output, reason, tell: None });
        }
    });
    Ok(())
}

pub(super) fn refused(route: Route) -> (DropReason, Option<IcmpError>) {
    match route {
        Route::Unreachable => (DropReason::Unreachable, Some(IcmpError::HostUnreachable)),
        Route::Prohibited => (DropReason::Prohibited, Some(IcmpError::AdminProhibited)),
        Route::Blackhole => (DropReason::Blackhole, None),
        Route::NoRoute => (DropReason::NoRoute, Some(IcmpError::NetUnreachable)),
        Route::Local | Route::Forward { .. } | Route::Bridged { .. } => {
            unreachable!("{route:?} is a way")
        }
    }
}
