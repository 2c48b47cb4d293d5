//! One network namespace: packets through its hooks.
//!
//! ```text
//!  prerouting ─► route ─┬► input ─────────────┬─────────────► Delivery
//!                       │                     └ by IPVS ► output, postrouting
//!                       └► forward ─► postrouting ──────────► Egress
//!  output (reroute) ───────────────► postrouting ─┬─────────► Egress
//!                                                 └► loopback ► prerouting
//! ```
//!
//! [`Netns::receive`] and [`Netns::send`] run a packet through all of it. The single steps are
//! there too, each taking only what the step before it gives: a packet that skipped a hook does
//! not compile.

#![allow(
    clippy::result_large_err,
    reason = "a drop is a result like another, and no rarer on a node with stale rules"
)]

mod answer;
mod defrag;
mod ipvs;
mod limit;
mod nft;
mod outcome;
mod routing;
mod step;
#[cfg(test)]
mod tests;

use std::net::IpAddr;

use crate::conntrack::{Conntrack, CtInfo, Direction, Entry, Sysctls, Track};
use crate::device::DeviceId;
use crate::hook::{Hook, Table};
use crate::host::{Draws, Env, Host, Ingress, Note, Route, RouteQuery, Socket};
use crate::ipvs as ipvs_state;
use crate::packet::{IcmpError, Packet};
use crate::rule::{AddrType, RejectWith, RuleRef, Rules};
use crate::time::SimTime;
use crate::traverse::{Lookup, Memory};
use crate::tuple::Protocol;

use defrag::{Defrag, Whole};
use limit::IcmpLimit;
use outcome::Seal;
pub use outcome::{Answer, Delivery, Drop, DropReason, Egress, Outcome, Rejection, Stopped};
use routing::{route_received, set_out};

/// The state of a network namespace that packets change.
#[derive(Clone, Debug)]
pub struct Netns {
    conntrack: Conntrack,
    memory: Memory,
    lookup: Lookup,
    icmp_limit: IcmpLimit,
    defrag: Defrag,
    ipvs: ipvs_state::State,
}

/// A packet on its way through the hooks.
#[derive(Clone, Debug)]
struct Flight {
    packet: Packet,
    in_dev: Option<DeviceId>,
    /// Where the packet leaves by, once that is known.
    out: Option<(DeviceId, IpAddr)>,
    /// The output device that rules at the present hook see.
    seen_out_dev: Option<DeviceId>,
    /// What connection tracking said, once it was asked.
    track: Option<Track>,
    /// How the packet came in.
    ingress: Option<Ingress>,
    /// The port of the bridge by which a bridged frame leaves.
    out_port: Option<DeviceId>,
    /// The packet stays in the bridge.
    bridged: bool,
    /// The socket that a packet made here comes from.
    socket: Option<Socket>,
    /// The virtual service that the packet was sent to, once IPVS has rewritten it.
    virtual_end: Option<(Protocol, IpAddr, u16)>,
    /// IPVS has rewritten the packet: it does not look at it again.
    by_ipvs: bool,
    /// IPVS has sent the packet on from INPUT: it has passed OUTPUT.
    diverted: bool,
    /// The zones that rules have put the packet into.
    zones: [u16; 2],
    /// The rule that chose the destination of a new connection. Read from the entry, which has
    /// only just been written to memory, it would keep the processor waiting.
    dnat: Option<RuleRef>,
    /// The packet's connection, while it is not in the table.
    entry: Option<Entry>,
    /// The length of its longest piece, if it came in pieces.
    piece_max: u16,
    ordinal: u32,
    evaluated: u32,
}

/// Why a flight ends, before the packet's remains are gathered.
#[derive(Clone, Copy, Debug)]
struct Stop {
    hook: Hook,
    reason: DropReason,
    tell: Option<RejectWith>,
}

/// A received packet that has passed PREROUTING.
#[derive(Debug)]
#[must_use]
pub struct Prerouted(Flight, IpAddr);

/// A packet for this host.
#[derive(Debug)]
#[must_use]
pub struct ToInput(Flight);

/// A packet that passes through.
#[derive(Debug)]
#[must_use]
pub struct ToForward(Flight);

/// A packet that has passed FORWARD or OUTPUT and is about to leave.
#[derive(Debug)]
#[must_use]
pub struct ToPostrouting(Flight);

/// A packet made here for this host, about to come in by the loopback device.
#[derive(Debug)]
#[must_use]
pub struct ToLoopback(Flight);

/// Where a packet goes that has come in.
#[derive(Debug)]
#[must_use]
#[allow(clippy::large_enum_variant)]
pub enum Routed {
    /// To this host.
    Input(ToInput),
    /// On.
    Forward(ToForward),
    /// No further.
    Stopped(Stopped),
}

/// What a packet does behind INPUT.
#[derive(Debug)]
#[must_use]
#[allow(clippy::large_enum_variant)]
pub enum Inputted {
    /// Goes to a socket.
    Delivered(Delivery),
    /// Goes to a real server of IPVS.
    Diverted(ToPostrouting),
}

/// What a packet does behind POSTROUTING.
#[derive(Debug)]
#[must_use]
#[allow(clippy::large_enum_variant)]
pub enum Postrouted {
    /// Leaves by a device.
    Egress(Egress),
    /// Comes in again by the loopback device.
    Loopback(ToLoopback),
}

impl Default for Netns {
    fn default() -> Netns {
        Netns::new(Sysctls::default())
    }
}

impl Netns {
    /// Returns a network namespace without connections.
    pub fn new(sysctls: Sysctls) -> Netns {
        let conntrack = Conntrack::new(sysctls);
        Netns {
            conntrack,
            memory: Memory::default(),
            lookup: Lookup::default(),
            icmp_limit: IcmpLimit::new(),
            defrag: Defrag::default(),
            ipvs: ipvs_state::State::default(),
        }
    }

    /// Returns its connections.
    pub fn conntrack(&self) -> &Conntrack {
        &self.conntrack
    }

    /// Returns what IPVS keeps between packets.
    pub fn ipvs(&self) -> &ipvs_state::State {
        &self.ipvs
    }

    /// Returns what IPVS keeps between packets as of a time, to count connections or to change its
    /// settings.
    pub fn ipvs_mut(&mut self, now: SimTime) -> &mut ipvs_state::State {
        self.expire_ipvs(now);
        &mut self.ipvs
    }

    /// Returns its connections, to delete some.
    pub fn conntrack_mut(&mut self) -> &mut Conntrack {
        &mut self.conntrack
    }

    /// Sets the time after which an ICMP error may go to a destination again
    /// (`net.ipv4.icmp_ratelimit`); zero for no limit.
    pub fn set_icmp_ratelimit(&mut self, rate: std::time::Duration) {
        self.icmp_limit.rate = rate;
    }

    /// Sets how rules are found. Outcomes do not depend on it.
    pub fn set_lookup(&mut self, lookup: Lookup) {
        self.lookup = lookup;
    }

    /// Returns what rules keep between packets.
    pub fn memory(&self) -> &Memory {
        &self.memory
    }

    /// Returns what rules keep between packets, to load sets or rulesets.
    pub fn memory_mut(&mut self) -> &mut Memory {
        &mut self.memory
    }

    /// Sets whether ICMP errors are limited, as `icmp_ratemask` does for all their types at once.
    pub fn limit_icmp_errors(&mut self, limited: bool) {
        self.icmp_limit.set(limited);
    }

    /// Forgets the state of a table's rules, as x_tables does whenever a table is replaced.
    pub fn table_replaced(&mut self, table: Table) {
        self.memory.table_replaced(table);
    }

    /// Runs a received packet through the namespace.
    pub fn receive<H: Host, R: Rules, D: Draws>(
        &mut self,
        packet: Packet,
        in_dev: DeviceId,
        env: &mut Env<'_, H, R, D>,
    ) -> Outcome {
        self.receive_frame(packet, Ingress::by(in_dev), env)
    }

    /// Runs a received packet through the namespace, of whose frame more is known.
    pub fn receive_frame<H: Host, R: Rules, D: Draws>(
        &mut self,
        packet: Packet,
        ingress: Ingress,
        env: &mut Env<'_, H, R, D>,
    ) -> Outcome {
        let in_dev = ingress.dev;
        let mut flight = Flight::new(packet, Some(in_dev));
        flight.ingress = Some(ingress);
        if !self.ipvs.is_idle() {
            self.expire_ipvs(env.now);
        }
        let ran = self.run_received(&mut flight, env);
        match ran {
            Ok(Way::Local) => Outcome::Local(self.delivery(&flight, in_dev)),
            Ok(Way::Out) => Outcome::Sent(self.egress(&flight)),
            Err(stop) => self.stopped(flight, stop, env).into(),
        }
    }

    fn run_received<H: Host, R: Rules, D: Draws>(
        &mut self,
        flight: &mut Flight,
        env: &mut Env<'_, H, R, D>,
    ) -> Result<Way, Stop> {
        if flight.packet.fragment.is_some() && env.rules.tracks() {
            self.gather(Hook::Prerouting, flight, env)?;
        }
        let dst = flight.packet.tuple.dst();
        self.run_hook(Hook::Prerouting, flight, env)?;
        let way = route_received(flight, dst, env)?;
        self.run_routed(way, flight, env)
    }

    #[inline]
    fn run_routed<H: Host, R: Rules, D: Draws>(
        &mut self,
        way: Way,
        flight: &mut Flight,
        env: &mut Env<'_, H, R, D>,
    ) -> Result<Way, Stop> {
        match way {
            Way::Local => {
                // Kernel: ip_input.c, ip_local_deliver
                self.gather(Hook::Input, flight, env)?;
                self.run_hook(Hook::Input, flight, env)?;
                if !flight.diverted {
                    return Ok(Way::Local);
                }
            }
            Way::Out => self.run_hook(Hook::Forward, flight, env)?,
        }
        self.run_hook(Hook::Postrouting, flight, env)?;
        Ok(Way::Out)
    }

    /// Runs a packet made on this host through the namespace.
    ///
    /// `route` is the routing decision by which the packet got its source address
    /// ([`Host::route`] without an input device). A packet to this host's own address comes in
    /// again by the loopback device.
    pub fn send<H: Host, R: Rules, D: Draws>(
        &mut self,
        packet: Packet,
        route: Route,
        env: &mut Env<'_, H, R, D>,
    ) -> Outcome {
        self.send_from(packet, Some(Socket::default()), route, env)
    }

    /// Runs a packet made on this host through the namespace, of whose socket more is known;
    /// `None` for what the kernel sends by itself.
    pub fn send_from<H: Host, R: Rules, D: Draws>(
        &mut self,
        packet: Packet,
        socket: Option<Socket>,
        route: Route,
        env: &mut Env<'_, H, R, D>,
    ) -> Outcome {
        let mut flight = Flight::new(packet, None);
        flight.socket = socket;
        if !self.ipvs.is_idle() {
            self.expire_ipvs(env.now);
        }
        let query = flight.route_query();
        env.draws.note(Note::Routed { hook: Hook::Output, query, route });
        let ran = self.run_sent(&mut flight, route, env);
        match ran {
            Ok(Way::Local) => Outcome::Local(self.delivery(&flight, env.host.loopback())),
            Ok(Way::Out) => Outcome::Sent(self.egress(&flight)),
            Err(stop) => self.stopped(flight, stop, env).into(),
        }
    }

    fn run_sent<H: Host, R: Rules, D: Draws>(
        &mut self,
        flight: &mut Flight,
        route: Route,
        env: &mut Env<'_, H, R, D>,
    ) -> Result<Way, Stop> {
        set_out(flight, route, env.host)?;
        if flight.packet.fragment.is_some() && env.rules.tracks() {
            self.gather(Hook::Output, flight, env)?;
        }
        self.run_hook(Hook::Output, flight, env)?;
        self.run_hook(Hook::Postrouting, flight, env)?;
        if !is_loopback(flight, env.host) {
            return Ok(Way::Out);
        }
        let way = self.run_loopback(flight, env)?;
        self.run_routed(way, flight, env)
    }

    /// Puts a fragment to those of its packet that have come; goes on when it was the last.
    fn gather<H, R, D>(
        &mut self,
        hook: Hook,
        flight: &mut Flight,
        env: &Env<'_, H, R, D>,
    ) -> Result<(), Stop> {
        let Some(part) = flight.packet.fragment else {
            return Ok(());
        };
        let incomplete = Stop { hook, reason: DropReason::Incomplete, tell: None };
        let whole = self.defrag.add(env.now, &flight.packet, part);
        let Whole { packet, piece_max } = whole.ok_or(incomplete)?;
        (flight.packet, flight.piece_max) = (packet, piece_max);
        Ok(())
    }

    /// Runs PREROUTING for a packet that this host sent to itself.
    fn run_loopback<H: Host, R: Rules, D: Draws>(
        &mut self,
        flight: &mut Flight,
        env: &mut Env<'_, H, R, D>,
    ) -> Result<Way, Stop> {
        flight.in_dev = Some(env.host.loopback());
        // Kernel: nf_conntrack_core.c, nf_conntrack_in: what is INVALID is looked at once more.
        if flight.track.is_some_and(|track| track.info == CtInfo::Invalid) {
            (flight.track, flight.zones) = (None, [0; 2]);
        }
        let dst = flight.packet.tuple.dst();
        self.run_hook(Hook::Prerouting, flight, env)?;
        if flight.packet.tuple.dst() == dst {
            return Ok(Way::Local);
        }
        // Kernel: nf_nat_proto.c, nf_nat_ipv4_pre_routing, nf_nat_ipv6_in: it is routed again.
        // Kernel: fib_frontend.c, fib_validate_source: over IPv4 an own source that comes in by a
        // device is taken for forged, unless accept_local is set. IPv6 asks for no such thing.
        let src = flight.packet.tuple.src();
        let is_own = || env.host.addr_type(src, None) == AddrType::Local;
        if dst.is_ipv4() && (is_own() || env.host.route(flight.route_query()) != Route::Local) {
            let (hook, reason) = (Hook::Prerouting, DropReason::Blackhole);
            return Err(Stop { hook, reason, tell: None });
        }
        // Kernel: loopback.c, loopback_xmit: no socket stays with it.
        flight.socket = None;
        route_received(flight, dst, env)
    }

    /// Sends the ICMP error that a packet deserves which this host could not pass on after it had
    /// left the hooks: no neighbour answered, or a pod's device is gone.
    ///
    /// `packet` is the packet as it left ([`Egress::packet`]). Returns `None` if nothing is said:
    /// errors are not answered with errors, and the error itself may be dropped.
    pub fn send_error<H: Host, R: Rules, D: Draws>(
        &mut self,
        packet: &Packet,
        kind: IcmpError,
        env: &mut Env<'_, H, R, D>,
    ) -> Option<Answer> {
        let flight = Flight::new(*packet, None);
        self.answer(&flight, RejectWith::Icmp(kind), None, env)
    }

    /// Runs PREROUTING.
    pub fn prerouting<H: Host, R: Rules, D: Draws>(
        &mut self,
        packet: Packet,
        in_dev: DeviceId,
        env: &mut Env<'_, H, R, D>,
    ) -> Result<Prerouted, Stopped> {
        let flight = Flight::new(packet, Some(in_dev));
        let dst = packet.tuple.dst();
        self.step(Hook::Prerouting, flight, env).map(|flight| Prerouted(flight, dst))
    }

    /// Decides where a received packet goes. A routed packet loses a hop here, before FORWARD.
    pub fn route<H: Host, R: Rules, D: Draws>(
        &mut self,
        Prerouted(mut flight, dst): Prerouted,
        env: &mut Env<'_, H, R, D>,
    ) -> Routed {
        match route_received(&mut flight, dst, env) {
            Ok(Way::Local) => Routed::Input(ToInput(flight)),
            Ok(Way::Out) => Routed::Forward(ToForward(flight)),
            Err(stop) => Routed::Stopped(self.stopped(flight, stop, env)),
        }
    }

    /// Runs INPUT; a new connection is confirmed. What IPVS takes there runs OUTPUT, too.
    pub fn input<H: Host, R: Rules, D: Draws>(
        &mut self,
        ToInput(flight): ToInput,
        env: &mut Env<'_, H, R, D>,
    ) -> Result<Inputted, Stopped> {
        let flight = self.step(Hook::Input, flight, env)?;
        if flight.diverted {
            return Ok(Inputted::Diverted(ToPostrouting(flight)));
        }
        let in_dev = flight.in_dev.expect("received by a device");
        Ok(Inputted::Delivered(self.delivery(&flight, in_dev)))
    }

    /// Runs FORWARD.
    pub fn forward<H: Host, R: Rules, D: Draws>(
        &mut self,
        ToForward(flight): ToForward,
        env: &mut Env<'_, H, R, D>,
    ) -> Result<ToPostrouting, Stopped> {
        self.step(Hook::Forward, flight, env).map(ToPostrouting)
    }

    /// Runs OUTPUT and routes again what it has rewritten.
    pub fn output<H: Host, R: Rules, D: Draws>(
        &mut self,
        packet: Packet,
        route: Route,
        env: &mut Env<'_, H, R, D>,
    ) -> Result<ToPostrouting, Stopped> {
        let mut flight = Flight::new(packet, None);
        if let Err(stop) = set_out(&mut flight, route, env.host) {
            return Err(self.stopped(flight, stop, env));
        }
        self.step(Hook::Output, flight, env).map(ToPostrouting)
    }

    /// Runs POSTROUTING; a new connection is confirmed.
    pub fn postrouting<H: Host, R: Rules, D: Draws>(
        &mut self,
        ToPostrouting(flight): ToPostrouting,
        env: &mut Env<'_, H, R, D>,
    ) -> Result<Postrouted, Stopped> {
        let flight = self.step(Hook::Postrouting, flight, env)?;
        Ok(if is_loopback(&flight, env.host) {
            Postrouted::Loopback(ToLoopback(flight))
        } else {
            Postrouted::Egress(self.egress(&flight))
        })
    }

    /// Runs PREROUTING for a packet that this host sent to itself. It keeps its connection:
    /// neither tracking nor nat is asked again. Only one that was INVALID is looked at anew, and
    /// may leave after all.
    pub fn loopback<H: Host, R: Rules, D: Draws>(
        &mut self,
        ToLoopback(mut flight): ToLoopback,
        env: &mut Env<'_, H, R, D>,
    ) -> Routed {
        match self.run_loopback(&mut flight, env) {
            Ok(Way::Local) => Routed::Input(ToInput(flight)),
            Ok(Way::Out) => Routed::Forward(ToForward(flight)),
            Err(stop) => Routed::Stopped(self.stopped(flight, stop, env)),
        }
    }

    fn step<H: Host, R: Rules, D: Draws>(
        &mut self,
        hook: Hook,
        mut flight: Flight,
        env: &mut Env<'_, H, R, D>,
    ) -> Result<Flight, Stopped> {
        match self.run_hook(hook, &mut flight, env) {
            Ok(()) => Ok(flight),
            Err(stop) => Err(self.stopped(flight, stop, env)),
        }
    }

    fn egress(&self, flight: &Flight) -> Egress {
        let (dev, next_hop) = flight.out.expect("a packet that leaves has a way out");
        let (ct, dnat) = self.tracked(flight);
        let Flight { packet, out_port, piece_max, evaluated, .. } = *flight;
        let port = out_port;
        Egress { packet, dev, port, next_hop, piece_max, ct, dnat, evaluated, seal: Seal }
    }

    fn delivery(&self, flight: &Flight, in_dev: DeviceId) -> Delivery {
        let (ct, dnat) = self.tracked(flight);
        let Flight { packet, evaluated, .. } = *flight;
        Delivery { packet, in_dev, ct, dnat, evaluated, seal: Seal }
    }

    fn tracked(&self, flight: &Flight) -> (Option<(CtInfo, Direction)>, Option<RuleRef>) {
        let Some(track) = &flight.track else {
            return (None, None);
        };
        let of_entry = || track.entry(&self.conntrack, &flight.entry).and_then(|e| e.dnat_rule);
        let dnat = flight.dnat.or_else(of_entry);
        (Some((track.info, track.direction)), dnat)
    }

    /// Gathers what remains of a packet, and tells its sender.
    fn stopped<H: Host, R: Rules, D: Draws>(
        &mut self,
        flight: Flight,
        stop: Stop,
        env: &mut Env<'_, H, R, D>,
    ) -> Stopped {
        let (ct, dnat) = self.tracked(&flight);
        let Flight { packet, evaluated, .. } = flight;
        let drop = Drop { packet, hook: stop.hook, reason: stop.reason, ct, dnat, evaluated };
        let routing = matches!(
            stop.reason,
            DropReason::Unreachable | DropReason::Prohibited | DropReason::NoRoute
        );
        let tell = stop.tell.filter(|_| {
            !routing || !packet.tuple.is_ipv4() || {
                self.icmp_limit.allow_routing(env.now, packet.tuple.src())
            }
        });
        let answer = tell.and_then(|with| self.answer(&flight, with, Some(stop.hook), env));
        match answer {
            None => Stopped::Dropped(drop),
            Some(answer) => Stopped::Rejected(Box::new(Rejection { drop, answer })),
        }
    }
}

/// Where a packet goes after routing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Local,
    Out,
}

impl Flight {
    fn new(packet: Packet, in_dev: Option<DeviceId>) -> Flight {
        Flight {
            packet,
            in_dev,
            out: None,
            seen_out_dev: None,
            track: None,
            ingress: in_dev.map(Ingress::by),
            out_port: None,
            bridged: false,
            socket: in_dev.is_none().then(Socket::default),
            virtual_end: None,
            by_ipvs: false,
            diverted: false,
            zones: [0; 2],
            dnat: None,
            entry: None,
            piece_max: 0,
            ordinal: 0,
            evaluated: 0,
        }
    }

    fn route_query(&self) -> RouteQuery {
        let Packet { tuple, mark, .. } = &self.packet;
        RouteQuery { dst: tuple.dst(), src: tuple.src(), mark: *mark, in_dev: self.in_dev }
    }
}

fn is_loopback<H: Host>(flight: &Flight, host: &H) -> bool {
    flight.out.is_some_and(|(dev, _)| dev == host.loopback())
}
