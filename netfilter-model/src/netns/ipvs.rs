//! Packets through IPVS: where it stands among the tables, and what becomes of what it rewrites.
// Kernel: ip_vs_core.c, ip_vs_ops; ip_vs_xmit.c, ip_vs_nat_xmit; ip_vs_nfct.c

use super::routing::refused;
use super::{DropReason, Flight, Netns, Stop};
use crate::conntrack::{Direction, Holder, Track};
use crate::hook::Hook;
use crate::host::{Draws, Env, Host, Note, Route, RouteQuery};
use crate::ipvs::{Forward, Request, Tracking};
use crate::packet::{IcmpError, L4};
use crate::rule::{RejectWith, Rules};
use crate::tuple::{Protocol, Side};

/// What runs at a hook below this priority runs before IPVS.
// Kernel: ip_vs_core.c, ip_vs_ops4
// Simplified: ICMP errors from clients go no further than a virtual service of IPVS.
const fn priority(hook: Hook) -> Option<i32> {
    match hook {
        Hook::Input => Some(98),
        Hook::Output => Some(-99),
        Hook::Forward => Some(100),
        Hook::Prerouting | Hook::Postrouting => None,
    }
}

impl Netns {
    /// Runs everything at a hook of a node that has virtual services. A request that IPVS has
    /// taken at INPUT is [diverted](Flight::diverted): it has passed OUTPUT and is to leave.
    pub(super) fn run_hook_with_ipvs<H: Host, R: Rules, D: Draws>(
        &mut self,
        hook: Hook,
        flight: &mut Flight,
        env: &mut Env<'_, H, R, D>,
    ) -> Result<(), Stop> {
        let Some(priority) = priority(hook).filter(|_| !flight.by_ipvs) else {
            return self.run_steps(hook, i32::MIN..=i32::MAX, flight, env);
        };
        self.run_steps(hook, i32::MIN..=priority - 1, flight, env)?;
        self.ipvs_reply(hook, flight, env)?;
        if hook != Hook::Forward && self.ipvs_request(hook, flight, env)? {
            flight.diverted = true;
            return Ok(());
        }
        self.run_steps(hook, priority..=i32::MAX, flight, env)
    }

    /// Gives a real server's packet the virtual service's address.
    // Kernel: ip_vs_core.c, handle_response, handle_response_icmp
    fn ipvs_reply<H: Host, R: Rules, D: Draws>(
        &mut self,
        hook: Hook,
        flight: &mut Flight,
        env: &mut Env<'_, H, R, D>,
    ) -> Result<(), Stop> {
        let before = flight.packet;
        let packet = &mut flight.packet;
        let tracking = if packet.is_icmp_error() {
            let Some(client) = self.ipvs.error_about(packet) else {
                return Ok(());
            };
            packet.tuple.set_address(Side::Source, client.dst());
            if let L4::IcmpError { quote, .. } = &mut packet.l4 {
                *quote = client;
            }
            Tracking::Kept
        } else {
            let Some((client, tracking)) = self.ipvs.reply(env.now, packet) else {
                return Ok(());
            };
            packet.tuple.set_address(Side::Source, client.dst());
            packet.tuple.set_nat_part(Side::Source, client.dst_part);
            tracking
        };
        flight.by_ipvs = true;
        env.draws.note(Note::Translated { hook, before: &before, after: &flight.packet });
        let from = (flight.packet.tuple.src(), flight.packet.tuple.src_part);
        self.ipvs_conntrack(tracking, Side::Destination, from, flight);
        if hook == Hook::Input || flight.bridged {
            return Ok(());
        }
        // Kernel: ip_vs_core.c, ip_vs_route_me_harder: as if the packet were made here.
        let query = RouteQuery { in_dev: None, ..flight.route_query() };
        let route = env.host.route(query);
        env.draws.note(Note::Routed { hook, query, route });
        match route {
            Route::Local if hook == Hook::Output => {
                flight.out = Some((env.host.loopback(), query.dst));
            }
            Route::Forward { dev, next_hop } | Route::Bridged { dev, next_hop, .. } => {
                flight.out = Some((dev, next_hop));
            }
            Route::Local => {}
            refusal => {
                let (reason, _) = refused(refusal);
                return Err(Stop { hook, reason, tell: None });
            }
        }
        Ok(())
    }

    /// Sends a client's packet to a real server, and returns whether it has gone there: one for a
    /// real server on this host goes on.
    fn ipvs_request<H: Host, R: Rules, D: Draws>(
        &mut self,
        hook: Hook,
        flight: &mut Flight,
        env: &mut Env<'_, H, R, D>,
    ) -> Result<bool, Stop> {
        let before = flight.packet;
        let knows = matches!(before.tuple.protocol, Protocol::TCP | Protocol::UDP | Protocol::SCTP);
        let Some(services) = env.rules.ipvs().filter(|_| knows && !flight.by_ipvs) else {
            return Ok(false);
        };
        if before.is_later_fragment() {
            return Ok(false);
        }
        let confirmed = matches!(flight.track, Some(Track { holder: Holder::Table(_), .. }));
        let mut ended = None;
        let request = self.ipvs.request(env.now, services, &before, confirmed, &mut ended);
        if let Some(tuple) = ended {
            self.conntrack.kill_tuple(env.now, &tuple);
        }
        let (address, port, forward, tracking) = match request {
            Request::Pass => return Ok(false),
            Request::Forward(address, port, forward, tracking) => {
                (address, port, forward, tracking)
            }
            Request::Refused => {
                let tell = Some(RejectWith::Icmp(IcmpError::PortUnreachable));
                return Err(Stop { hook, reason: DropReason::NoServer, tell });
            }
            Request::Dropped => {
                return Err(Stop { hook, reason: DropReason::ServerGone, tell: None });
            }
        };
        flight.by_ipvs = true;
        flight.virtual_end =
            Some((before.tuple.protocol, before.tuple.dst(), before.tuple.dst_part));
        if forward == Forward::Local {
            return Ok(false);
        }
        let query = RouteQuery { dst: address, src: before.tuple.src(), mark: 0, in_dev: None };
        let route = env.host.route(query);
        env.draws.note(Note::Routed { hook, query, route });
        let is_local = self.ipvs_out(hook, route, flight, env.host)?;
        if is_local && hook == Hook::Output {
            flight.out = Some((env.host.loopback(), address));
        }
        // Simplified: a real server of IPVS behind a route or a tunnel gets the packet as it is.
        if forward == Forward::Masq {
            flight.packet.tuple.set_address(Side::Destination, address);
            flight.packet.tuple.set_nat_part(Side::Destination, port);
            env.draws.note(Note::Translated { hook, before: &before, after: &flight.packet });
            self.ipvs_conntrack(tracking, Side::Source, (address, port), flight);
        }
        if is_local {
            return Ok(false);
        }
        self.run_hook(Hook::Output, flight, env)?;
        Ok(true)
    }

    /// Sets by which way a request leaves, and returns whether that is none, since the real server
    /// is on this host.
    // Kernel: ip_vs_xmit.c, __ip_vs_get_out_rt, decrement_ttl
    fn ipvs_out<H: Host>(
        &mut self,
        hook: Hook,
        route: Route,
        flight: &mut Flight,
        host: &H,
    ) -> Result<bool, Stop> {
        match route {
            Route::Local => return Ok(true),
            Route::Forward { dev, next_hop } | Route::Bridged { dev, next_hop, .. } => {
                debug_assert!(dev != host.loopback(), "what leaves is not local");
                flight.out = Some((dev, next_hop));
            }
            refusal => {
                let (reason, _) = refused(refusal);
                let tell = Some(RejectWith::Icmp(IcmpError::HostUnreachable));
                return Err(Stop { hook, reason, tell });
            }
        }
        if flight.packet.ttl <= 1 {
            let tell = Some(RejectWith::Icmp(IcmpError::TimeExceeded));
            return Err(Stop { hook, reason: DropReason::TtlExpired, tell });
        }
        flight.packet.ttl -= 1;
        (flight.bridged, flight.out_port) = (false, None);
        Ok(false)
    }

    /// Lets connection tracking know what a first packet has become: by which tuple it will be
    /// answered.
    // Kernel: ip_vs_nfct.c, ip_vs_update_conntrack; ip_vs.h, ip_vs_notrack
    fn ipvs_conntrack(
        &mut self,
        tracking: Tracking,
        side: Side,
        (address, port): (std::net::IpAddr, u16),
        flight: &mut Flight,
    ) {
        match (tracking, &flight.track, &mut flight.entry) {
            (Tracking::Off, Some(_), entry) => {
                *entry = None;
                flight.track = Some(Track::UNTRACKED);
            }
            (
                Tracking::Kept,
                Some(Track { holder: Holder::Tentative, direction: Direction::Original, .. }),
                Some(entry),
            ) => {
                entry.reply.set_address(side, address);
                entry.reply.set_nat_part(side, port);
            }
            _ => {}
        }
    }

    /// Ends the connections of IPVS that have expired, and their entries of connection tracking.
    // Kernel: ip_vs_conn.c, ip_vs_conn_expire
    pub(super) fn expire_ipvs(&mut self, now: crate::time::SimTime) {
        for tuple in self.ipvs.expire(now) {
            self.conntrack.kill_tuple(now, &tuple);
        }
    }
}

#[cfg(test)]
mod tests;
