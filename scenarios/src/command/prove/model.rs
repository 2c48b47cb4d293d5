//! The model arm: the same node, as the model has it.

use std::cell::Cell;
use std::fmt::Write as _;
use std::net::IpAddr;
use std::time::Duration;

use netfilter_model::host::{BridgeQuery, Draws, Env, Host, Ingress, Route, RouteQuery, Socket};
use netfilter_model::netns::{Answer, Netns, Outcome, Rejection};
use netfilter_model::packet::{IcmpError, L4, Packet, TcpFlags};
use netfilter_model::rule::{AddrType, FrameKind, Rules as _, Ruleset};
use netfilter_model::set::Sets;
use netfilter_model::time::SimTime;
use netfilter_model::traverse::Lookup;
use netfilter_model::tuple::Protocol;
use netfilter_model::{DeviceId, DeviceName, Prefix};

use super::connection::Connection;
use super::drive::History;
use super::place::{
    BEHIND, CNI0, Family, LO, NODE_UDP, OWN, Place, REFUSED, Settings, device_mac, device_name,
    own, parse,
};
use super::seen::Seen;

/// The routes and addresses of the node.
pub(super) struct Node {
    settings: Settings,
    own: Vec<(DeviceId, IpAddr)>,
    /// Networks and who is behind them, longest prefix first.
    routes: Vec<(Prefix, To)>,
    /// Refuses received packets silently.
    silent: Cell<bool>,
    /// A received packet was refused.
    refused: Cell<bool>,
}

#[derive(Clone, Copy)]
enum To {
    /// A neighbour.
    Via(Place),
    /// Whoever has the address, behind a device.
    Link(DeviceId),
    Refused(Route),
}

fn prefix(text: &str) -> Prefix {
    let (addr, len) = text.split_once('/').expect("a prefix");
    Prefix::new(addr.parse().expect("an address"), len.parse().expect("a length"))
}

impl Node {
    pub(super) fn new(settings: Settings) -> Node {
        let family = settings.family;
        let pick =
            |four: &'static str, six: &'static str| if family == Family::V4 { four } else { six };
        let own: Vec<_> =
            OWN.iter().map(|(dev, four, six)| (*dev, parse(family, four, six))).collect();
        let mut routes: Vec<(Prefix, To)> = Vec::new();
        for (dev, four, six) in OWN.into_iter().filter(|(dev, ..)| *dev != LO) {
            routes.push((prefix(pick(four, six)), To::Link(dev)));
        }
        for (place, four, six) in BEHIND {
            routes.push((prefix(pick(four, six)), To::Via(place)));
        }
        for (kind, four, six) in REFUSED {
            let route = match kind {
                "unreachable" => Route::Unreachable,
                "blackhole" => Route::Blackhole,
                _ => Route::Prohibited,
            };
            routes.push((prefix(pick(four, six)), To::Refused(route)));
        }
        if settings.default_route {
            routes.push((prefix(pick("0.0.0.0/0", "::/0")), To::Via(Place::Gw)));
        }
        routes.sort_by_key(|(prefix, _)| std::cmp::Reverse(prefix.len()));
        Node { settings, own, routes, silent: Cell::new(false), refused: Cell::new(false) }
    }

    fn is_own(&self, addr: IpAddr) -> bool {
        is_loopback(addr) || self.own.iter().any(|(_, own)| *own == addr)
    }
}

impl Node {
    /// Returns the route to an address, whoever asks.
    fn lookup(&self, dst: IpAddr) -> Route {
        if self.is_own(dst) {
            return Route::Local;
        }
        let found = self.routes.iter().find(|(prefix, _)| prefix.contains(dst));
        match found.map(|(_, to)| *to) {
            None => Route::NoRoute,
            Some(To::Refused(route)) => route,
            Some(To::Link(dev)) => Route::Forward { dev, next_hop: dst },
            Some(To::Via(place)) => {
                let next_hop =
                    if place == Place::R1 { dst } else { place.address(self.settings.family) };
                Route::Forward { dev: place.device(), next_hop }
            }
        }
    }
}

fn is_loopback(addr: IpAddr) -> bool {
    addr.is_loopback()
}

impl Host for Node {
    // Kernel: route.c, ip_route_input_slow; fib_frontend.c, fib_validate_source
    fn route(&self, query: RouteQuery) -> Route {
        let RouteQuery { dst, src, in_dev, .. } = query;
        let v4 = dst.is_ipv4();
        if in_dev.is_some_and(|dev| dev != LO) && v4 {
            let martian = is_loopback(src) || is_loopback(dst) && !self.settings.route_localnet;
            if martian {
                return Route::Blackhole;
            }
        }
        match self.lookup(dst) {
            // A source of its own from outside.
            _ if in_dev.is_some_and(|dev| dev != LO) && v4 && self.is_own(src) => Route::Blackhole,
            // Without a device that may carry it, an address of lo does not leave.
            // Kernel: route.c, __mkroute_output
            Route::Forward { .. }
                if in_dev.is_none() && v4 && is_loopback(src) && !self.settings.route_localnet =>
            {
                Route::Blackhole
            }
            Route::Unreachable | Route::Prohibited | Route::NoRoute if in_dev.is_some() && v4 => {
                self.refused.set(true);
                if self.silent.get() { Route::Blackhole } else { self.lookup(dst) }
            }
            route => route,
        }
    }

    // Kernel: br_netfilter_hooks.c, br_nf_pre_routing_finish; br_forward.c, should_deliver
    fn bridge(&self, query: BridgeQuery) -> Option<Route> {
        let BridgeQuery { ingress, packet, rewritten } = query;
        if !self.settings.bridge_nf {
            return None;
        }
        let family = self.settings.family;
        let pods = || Place::AROUND.into_iter().filter(|place| place.device() == CNI0);
        let to = if rewritten {
            let Route::Forward { dev: CNI0, next_hop } = self.lookup(packet.dst) else {
                return None;
            };
            pods().find(|place| place.address(family) == next_hop)?
        } else {
            // A frame for the bridge itself is handed up.
            pods().find(|place| Some(place.mac()) == ingress.destination)?
        };
        if to.port() == ingress.port && !self.settings.hairpin {
            return Some(Route::Blackhole);
        }
        Some(Route::Bridged { dev: CNI0, port: to.port(), next_hop: to.address(family) })
    }

    fn addr_type(&self, addr: IpAddr, on: Option<DeviceId>) -> AddrType {
        let local = match on {
            None => self.is_own(addr),
            Some(dev) => {
                self.own.iter().any(|(of, own)| *of == dev && *own == addr)
                    || dev == LO && is_loopback(addr)
            }
        };
        match addr {
            _ if local => AddrType::Local,
            IpAddr::V4(addr) if addr.is_multicast() => AddrType::Multicast,
            IpAddr::V6(addr) if addr.is_multicast() => AddrType::Multicast,
            IpAddr::V4(addr) if addr.is_broadcast() || addr.is_unspecified() => AddrType::Broadcast,
            _ => AddrType::Unicast,
        }
    }

    // Kernel: devinet.c, inet_select_addr: the address of lo is of too small a scope, and the first
    // other device has one. addrconf.c, ipv6_dev_get_saddr: the destination itself, if it is ours.
    fn masquerade_address(&self, dev: DeviceId, next_hop: IpAddr) -> Option<IpAddr> {
        match (dev, self.settings.family) {
            (LO, Family::V4) => own(Family::V4, CNI0),
            (LO, Family::V6) => Some(next_hop),
            (dev, family) => own(family, dev),
        }
    }

    fn redirect_address(&self, dev: DeviceId, _: IpAddr) -> Option<IpAddr> {
        own(self.settings.family, dev)
    }

    fn source_address(&self, query: RouteQuery, route: Route) -> Option<IpAddr> {
        match route {
            Route::Local => Some(query.dst),
            Route::Forward { dev, .. } | Route::Bridged { dev, .. } => {
                own(self.settings.family, dev)
            }
            _ => None,
        }
    }

    fn loopback(&self) -> DeviceId {
        LO
    }

    fn device_name(&self, dev: DeviceId) -> DeviceName {
        device_name(dev)
    }
}

/// The model's node, in one of the states that the kernel's may be in.
#[derive(Clone, Debug)]
pub(super) struct World {
    netns: Netns,
    /// What it has seen.
    pub(super) history: History,
}

impl World {
    /// Returns a text that two worlds share only if they have the same future.
    pub(super) fn state(&self, now: Duration) -> String {
        let now = SimTime::ZERO + now;
        let mut text = String::new();
        for entry in self.netns.conntrack().entries(now) {
            // By which rule it came about does not matter here.
            let entry = entry.clone().without_rule();
            _ = write!(text, "{entry:?};");
        }
        _ = write!(text, "{:?};{:?}", self.netns.memory(), self.history);
        text
    }
}

/// Rules, and the sets that they name.
pub(super) struct Rules {
    /// Of x_tables, with those of nftables beside them.
    pub(super) ruleset: Ruleset,
    /// ipsets before the first packet.
    pub(super) sets: Sets,
}

/// What stays the same while a case runs.
pub(super) struct Model {
    node: Node,
    rules: Ruleset,
    sets: Sets,
}

impl Model {
    pub(super) fn new(settings: Settings, rules: Rules) -> Model {
        let Rules { ruleset, sets } = rules;
        Model { node: Node::new(settings), rules: ruleset, sets }
    }

    /// Sets whether packets are refused silently that have no route, and returns whether some was
    /// refused since.
    // Kernel: route.c, ip_error: each sender is told five times, then once per second, and this
    // memory does not end with a case.
    pub(super) fn refuse_silently(&self, silent: bool) -> bool {
        self.node.silent.set(silent);
        self.node.refused.replace(false)
    }

    /// Returns the node before the first packet.
    pub(super) fn fresh(&self) -> World {
        let mut netns = Netns::default();
        netns.set_lookup(Lookup::RuleByRule);
        netns.limit_icmp_errors(false);
        netns.memory_mut().sets = self.sets.clone();
        if let Some(nft) = self.rules.nft() {
            netns.nft_replaced(nft, SimTime::ZERO);
        }
        World { netns, history: History::default() }
    }

    /// Returns the world's connections.
    pub(super) fn connections(&self, world: &World, now: Duration) -> Vec<Connection> {
        let now = SimTime::ZERO + now;
        let entries = world.netns.conntrack().entries(now);
        let mut read: Vec<_> = entries.map(|entry| Connection::of(entry, now)).collect();
        read.sort();
        read
    }

    /// A place sends a packet, in a frame to that hardware address.
    pub(super) fn inject<D: Draws>(
        &self,
        world: &mut World,
        (from, to, packet): (Place, [u8; 6], &Packet),
        now: Duration,
        draws: &mut D,
    ) -> Vec<Seen> {
        let dev = from.device();
        if from.port().is_some() && to != device_mac(dev) && !self.node.settings.bridge_nf {
            // Below all hooks.
            let at = Place::AROUND.into_iter().find(|place| place.mac() == to);
            let at = at.filter(|at| *at != from || self.node.settings.hairpin);
            return at.map(|at| Seen { at, packet: *packet }).into_iter().collect();
        }
        let kind = FrameKind::Unicast;
        let port = from.port().filter(|_| self.node.settings.bridge_nf);
        let ingress = Ingress { dev, port, source: Some(from.mac()), destination: Some(to), kind };
        let mut env = Env { now: SimTime::ZERO + now, host: &self.node, rules: &self.rules, draws };
        let outcome = world.netns.receive_frame(*packet, ingress, &mut env);
        let mut seen = Vec::new();
        self.follow(&mut world.netns, outcome, &mut env, &mut seen);
        seen
    }

    /// The node sends a packet.
    pub(super) fn send<D: Draws>(
        &self,
        world: &mut World,
        packet: &Packet,
        now: Duration,
        draws: &mut D,
    ) -> Vec<Seen> {
        let mut env = Env { now: SimTime::ZERO + now, host: &self.node, rules: &self.rules, draws };
        let mut seen = Vec::new();
        self.send_on(&mut world.netns, *packet, Some(Socket::default()), &mut env, &mut seen);
        seen
    }

    fn send_on<D: Draws>(
        &self,
        netns: &mut Netns,
        packet: Packet,
        socket: Option<Socket>,
        env: &mut Env<'_, Node, Ruleset, D>,
        seen: &mut Vec<Seen>,
    ) {
        let (dst, src) = (packet.tuple.dst(), packet.tuple.src());
        let route = self.node.route(RouteQuery { dst, src, mark: packet.mark, in_dev: None });
        let outcome = netns.send_from(packet, socket, route, env);
        self.follow(netns, outcome, env, seen);
    }

    fn follow<D: Draws>(
        &self,
        netns: &mut Netns,
        outcome: Outcome,
        env: &mut Env<'_, Node, Ruleset, D>,
        seen: &mut Vec<Seen>,
    ) {
        match outcome {
            Outcome::Sent(egress) => seen.extend(self.arrival(egress.next_hop, egress.packet)),
            Outcome::Local(delivery) => self.deliver(netns, delivery.packet, env, seen),
            Outcome::Dropped(_) => {}
            Outcome::Rejected(rejection) => {
                let Rejection { answer, .. } = *rejection;
                match answer {
                    Answer::Sent(egress) => {
                        seen.extend(self.arrival(egress.next_hop, egress.packet));
                    }
                    Answer::Local(delivery) => self.deliver(netns, delivery.packet, env, seen),
                }
            }
        }
    }

    fn arrival(&self, next_hop: IpAddr, packet: Packet) -> Option<Seen> {
        let family = self.node.settings.family;
        let at = Place::AROUND.into_iter().find(|place| place.address(family) == next_hop)?;
        Some(Seen { at, packet })
    }

    /// The node itself gets a packet; it has one UDP socket.
    fn deliver<D: Draws>(
        &self,
        netns: &mut Netns,
        packet: Packet,
        env: &mut Env<'_, Node, Ruleset, D>,
        seen: &mut Vec<Seen>,
    ) {
        seen.push(Seen { at: Place::Node, packet });
        let tuple = packet.tuple;
        match packet.l4 {
            // Kernel: tcp_ipv4.c, tcp_v4_send_reset; tcp_ipv6.c, tcp_v6_send_response, whose reset
            // has no socket.
            L4::Tcp { flags, .. } if !flags.contains(TcpFlags::RST) => {
                let answer = if flags.contains(TcpFlags::ACK) {
                    TcpFlags::RST
                } else {
                    TcpFlags::RST | TcpFlags::ACK
                };
                let mut reset = Packet::tcp(0, tuple.reply(), answer);
                reset.tos = packet.tos;
                let socket = tuple.is_ipv4().then_some(Socket::KERNEL);
                self.send_on(netns, reset, socket, env, seen);
            }
            L4::Udp if tuple.dst_part != NODE_UDP => {
                let answer = netns.send_error(&packet, IcmpError::PortUnreachable, env);
                match answer {
                    None => {}
                    Some(Answer::Sent(egress)) => {
                        seen.extend(self.arrival(egress.next_hop, egress.packet));
                    }
                    Some(Answer::Local(delivery)) => {
                        self.deliver(netns, delivery.packet, env, seen);
                    }
                }
            }
            L4::IcmpEcho if is_request(&packet) => {
                let mut reply = Packet::icmp_echo(0, tuple.reply());
                (reply.len, reply.tos) = (packet.len, packet.tos);
                self.send_on(netns, reply, Some(Socket::KERNEL), env, seen);
            }
            _ => {}
        }
    }
}

fn is_request(packet: &Packet) -> bool {
    let (kind, _) = packet.tuple.icmp_kind();
    kind == if packet.tuple.protocol == Protocol::ICMP { 8 } else { 128 }
}
