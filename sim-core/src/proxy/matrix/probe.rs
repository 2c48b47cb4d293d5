//! Clients that try targets, every way.

use std::collections::BTreeSet;
use std::net::IpAddr;

use netfilter_model::exact::{Limits, Share};
use netfilter_model::netns::DropReason;
use netfilter_model::network::{Network, NodeId, SendError, Sight, SocketError, SocketState};
use netfilter_model::packet::{IcmpError, L4, Packet};
use netfilter_model::tuple::Protocol;

use super::plane::{Plane, Processes, take_turns};
use super::{Cell, Client, Mode, Odds, Outcome, PortMatrix, Source, Target, Verdict, World};

/// The client's port. Nothing depends on it.
pub(super) const CLIENT_PORT: u16 = 40_000;
/// The port of a process that dials on behalf of a client.
const DIAL_PORT: u16 = 40_001;
/// How often it dials before it gives up.
// Kubernetes: pkg/proxy/userspace/proxysocket.go of 1.25, EndpointDialTimeouts
const DIALS: u64 = 4;
/// The ids of a client's first and second packet.
const OPENING: u64 = 1;
const QUESTION: u64 = 2;

/// Returns the cells of a service port under the rules that the hosts hold.
pub(super) fn cells(
    world: &World,
    network: &Network,
    plane: &Plane,
    part: &PortMatrix,
    mode: Mode,
) -> Vec<Cell> {
    let targets = targets(world, network, part);
    let mut cells = Vec::new();
    for client in Client::ALL {
        let Some((id, own)) = host_of(world, part, client) else {
            continue;
        };
        for &(target, to, port) in &targets {
            if target == Target::Localhost && client != Client::Node {
                continue;
            }
            let from = if target == Target::Localhost { to } else { own };
            let visit = Visit { world, part, who: client, client: id, from, to, port };
            let outcomes = visit.every_way(network, plane);
            cells.push(Cell { client, from, target, to, port, mode, outcomes });
        }
    }
    cells
}

/// Returns where a client is.
fn host_of(world: &World, part: &PortMatrix, client: Client) -> Option<(NodeId, IpAddr)> {
    match client {
        Client::Pod => world.client_of(&world.node),
        Client::OtherPod => world.client_of(world.other.as_deref()?),
        Client::Node => world.address_of(&world.node),
        Client::External => Some(world.external),
        Client::Itself => {
            // A Pod on the node's own network is no Pod to the rules.
            let is_pod = |addr: &IpAddr| {
                world.node_of(*addr).is_some()
                    && world.nodes().all(|(_, id)| world.home_of(*addr) != Some(id))
            };
            let usable = part.endpoints.iter().filter(|place| place.ready || place.terminating);
            let pods = || usable.clone().map(|place| place.addr).filter(is_pod);
            let is_here = |addr: &IpAddr| world.node_of(*addr) == Some(world.node.as_str());
            let addr = pods().find(is_here).or_else(|| pods().next())?;
            Some((world.home_of(addr)?, addr))
        }
    }
}

fn targets(
    world: &World,
    network: &Network,
    part: &PortMatrix,
) -> Vec<(Target, IpAddr, Option<u16>)> {
    let port = &part.port;
    let node = world.address_of(&world.node);
    let mut targets = vec![(Target::ClusterIp, port.cluster_ip, Some(port.port))];
    if let (Some(node_port), Some((id, addr))) = (port.node_port, node) {
        targets.push((Target::NodePort, addr, Some(node_port)));
        let loopback = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);
        if addr.is_ipv4() && network.node(id).host.is_local(loopback) {
            targets.push((Target::Localhost, loopback, Some(node_port)));
        }
    }
    let vips = &port.load_balancer_vips;
    targets.extend(vips.iter().map(|&vip| (Target::LoadBalancer, vip, Some(port.port))));
    let externals = &port.external_ips;
    targets.extend(externals.iter().map(|&vip| (Target::ExternalIp, vip, Some(port.port))));
    let wrong = world.unused_port(port.cluster_ip, port.port);
    targets.push((Target::WrongPort, port.cluster_ip, Some(wrong)));
    targets.push((Target::Ping, port.cluster_ip, None));
    targets
}

/// One client at one target.
#[derive(Clone, Copy)]
pub(super) struct Visit<'w> {
    pub(super) world: &'w World,
    pub(super) part: &'w PortMatrix,
    pub(super) who: Client,
    pub(super) client: NodeId,
    pub(super) from: IpAddr,
    pub(super) to: IpAddr,
    pub(super) port: Option<u16>,
}

/// What came of a try.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Seen {
    pub(super) verdict: Verdict,
    pub(super) endpoint: Option<(IpAddr, u16)>,
    pub(super) source: Option<Source>,
    pub(super) why: String,
}

impl Visit<'_> {
    /// Tries every way; equal ends are one.
    fn every_way(&self, network: &Network, plane: &Plane) -> Vec<Outcome> {
        let mut outcomes: Vec<Outcome> = Vec::new();
        for (seen, share) in self.ways(network, plane) {
            let Seen { verdict, endpoint, source, why } = seen;
            let same = outcomes.iter_mut().find(|outcome| {
                (outcome.verdict, outcome.endpoint, outcome.source) == (verdict, endpoint, source)
                    && outcome.why == why
            });
            match same {
                Some(outcome) => outcome.share = outcome.share.plus(&share),
                None => outcomes.push(Outcome { verdict, endpoint, source, share, why }),
            }
        }
        let place = |outcome: &Outcome| {
            let is = |(addr, port): (IpAddr, u16)| {
                self.part
                    .endpoints
                    .iter()
                    .position(|place| (place.addr, place.port) == (addr, port))
            };
            outcome.endpoint.and_then(is)
        };
        outcomes.retain(|outcome| !outcome.share.is_zero());
        outcomes.sort_by_key(|outcome| (outcome.verdict, place(outcome), outcome.source));
        outcomes
    }

    /// Returns the ends, each with how likely or how often it is.
    fn ways(&self, network: &Network, plane: &Plane) -> Vec<(Seen, Odds)> {
        let target = self.port.map(|port| (self.to, port, self.part.port.name.protocol));
        let turns = target.map_or(1, |target| plane.turns(network, target));
        match (plane, target) {
            (Plane::Servers, Some(target)) => {
                let turn = |turn: u64| {
                    let mut network = network.clone();
                    take_turns(&mut network, target, turn);
                    (self.run(&mut network), Odds::turns(1, turns))
                };
                (0..turns).map(turn).collect()
            }
            (Plane::Processes(processes), _) => {
                let turn = |turn: u64| {
                    let mut network = network.clone();
                    (self.run_by_process(&mut network, processes, turn), Odds::turns(1, turns))
                };
                (0..turns).map(turn).collect()
            }
            (Plane::Maps(maps), _) => {
                // A number of 32 bits is drawn, and its remainder is the backend's place.
                let draw = |number: u64| {
                    let seen = self.run_by_maps(&mut network.clone(), maps, number);
                    let all = 1_u64 << 32;
                    let count = all / turns + u64::from(number < all % turns);
                    (seen, Odds::Chance(Share::new(count, 32)))
                };
                (0..turns).map(draw).collect()
            }
            (Plane::Rules, _) | (Plane::Servers, None) => self.ways_of_rules(network),
        }
    }

    /// Follows every way of random rules.
    fn ways_of_rules(&self, network: &Network) -> Vec<(Seen, Odds)> {
        let explored = network.explore(Limits::default(), |network| self.run(network));
        let ways = explored.main.ways.into_iter();
        let mut ways: Vec<(Seen, Odds)> =
            ways.map(|way| (way.outcome, Odds::Chance(way.probability))).collect();
        if !explored.main.unfollowed.is_zero() {
            let why = "more ways than are followed".to_owned();
            let left = Seen { verdict: Verdict::Unknown, endpoint: None, source: None, why };
            ways.push((left, Odds::Chance(explored.main.unfollowed)));
        }
        ways
    }

    /// Tries once; the process on a node that the client comes to dials the endpoint whose turn
    /// it is, or the next one.
    // Kubernetes: pkg/proxy/userspace/proxysocket.go of 1.25, TryConnectEndpoints
    fn run_by_process(&self, network: &mut Network, processes: &Processes, turn: u64) -> Seen {
        let (seen, sights) = self.run_seen(network);
        let reached = sights.iter().find_map(|sight| match sight {
            Sight::Datagram { node, packet } | Sight::Data { node, packet } => {
                let at = (packet.tuple.protocol, packet.tuple.dst_part);
                Some((*node, processes.get(node)?.get(&at)?))
            }
            _ => None,
        });
        let Some((node, endpoints)) = reached else {
            return seen;
        };
        let protocol = self.part.port.name.protocol;
        let mut last = Seen {
            verdict: if protocol == Protocol::UDP { Verdict::Timeout } else { Verdict::Reset },
            endpoint: None,
            source: None,
            why: format!("the process on {} has no endpoint", self.world.label(node)),
        };
        for dial in 0..DIALS.min(endpoints.len() as u64) {
            let at = (turn + dial) % endpoints.len() as u64;
            let (to, port) = endpoints[at as usize];
            let Ok(from) = network.source_for(node, to) else {
                continue;
            };
            let dialer = Visit { client: node, from, to, port: Some(port), ..*self };
            let (dialed, _) = dialer.run_from(network, DIAL_PORT);
            let source = dialed
                .source
                .map(|source| Source { of: self.world.whose(source.addr, self.from), ..source });
            if dialed.verdict == Verdict::Ok {
                return Seen { source, ..dialed };
            }
            last = Seen { verdict: last.verdict, source, ..dialed };
        }
        last
    }

    /// Tries once.
    pub(super) fn run(&self, network: &mut Network) -> Seen {
        self.run_seen(network).0
    }

    /// Tries once, and returns what was seen on the way, too.
    pub(super) fn run_seen(&self, network: &mut Network) -> (Seen, Vec<Sight>) {
        self.run_from(network, CLIENT_PORT)
    }

    fn run_from(&self, network: &mut Network, own: u16) -> (Seen, Vec<Sight>) {
        let verdict = match (self.port, self.part.port.name.protocol) {
            (None, _) => self.ping(network),
            (Some(port), Protocol::UDP) => self.exchange(network, own, port),
            (Some(port), _) => self.connect(network, own, port),
        };
        let sights = network.take_sights();
        let (endpoint, source) = self.reached(&sights);
        let why = match verdict {
            Verdict::Ok => String::new(),
            _ => self.why(&sights, verdict),
        };
        (Seen { verdict, endpoint, source, why }, sights)
    }

    fn connect(&self, network: &mut Network, own: u16, port: u16) -> Verdict {
        let source = (Some(self.from), own);
        let socket = match network.connect(self.client, source, (self.to, port), OPENING, 0) {
            Ok(socket) => socket,
            Err(error) => return send_verdict(error),
        };
        network.write(socket, QUESTION);
        let Some(tcp) = network.tcp(socket) else {
            return Verdict::Unknown;
        };
        match (tcp.error, tcp.state) {
            (Some(SocketError::Refused), _) => Verdict::Refused,
            (Some(SocketError::Reset), _) => Verdict::Reset,
            (Some(SocketError::Icmp { kind, .. }), _) => error_verdict(kind),
            (None, SocketState::Established) if tcp.received.is_some() => Verdict::Ok,
            (None, _) => Verdict::Timeout,
        }
    }

    fn exchange(&self, network: &mut Network, own: u16, port: u16) -> Verdict {
        let to = (self.to, port);
        let socket = network.open_udp(self.client, Some(self.from), own, Some(to));
        if let Err(error) = network.send_udp(socket, to, 32, OPENING, 0) {
            return send_verdict(error);
        }
        let Some(udp) = network.udp(socket) else {
            return Verdict::Unknown;
        };
        match udp.errors.first() {
            _ if !udp.received.is_empty() => Verdict::Ok,
            Some(SocketError::Icmp { kind, .. }) => udp_verdict(*kind),
            Some(_) => Verdict::Refused,
            None => Verdict::Timeout,
        }
    }

    fn ping(&self, network: &mut Network) -> Verdict {
        let from = Some(self.from);
        if let Err(error) = network.ping(self.client, from, self.to, 7, 56, (OPENING, 0)) {
            return send_verdict(error);
        }
        let answers = network.take_icmp(self.client);
        let is_echo = |packet: &Packet| {
            packet.l4 == L4::IcmpEcho
                && packet.tuple.src() == self.to
                && matches!(packet.tuple.icmp_kind().0, 0 | 129)
        };
        if answers.iter().any(is_echo) {
            return Verdict::Ok;
        }
        let errors = answers.iter().find_map(|packet| match packet.l4 {
            L4::IcmpError { kind, .. } => Some(error_verdict(kind)),
            _ => None,
        });
        errors.unwrap_or(Verdict::Timeout)
    }

    /// Returns the endpoint that the client's packets came to, and from where.
    fn reached(&self, sights: &[Sight]) -> (Option<(IpAddr, u16)>, Option<Source>) {
        let protocol = self.part.port.name.protocol;
        let Some(_) = self.port else {
            return (None, None);
        };
        let packets = sights.iter().filter_map(|sight| match sight {
            Sight::Arrival { node, packet, .. }
            | Sight::Datagram { node, packet }
            | Sight::Data { node, packet } => Some((*node, packet)),
            Sight::Drop { .. } | Sight::Lost { .. } => None,
        });
        let known: BTreeSet<(IpAddr, u16)> =
            self.part.endpoints.iter().map(|place| (place.addr, place.port)).collect();
        for (node, packet) in packets {
            let to = (packet.tuple.dst(), packet.tuple.dst_part);
            let is_there = packet.tuple.protocol == protocol
                && Network::answered_by(packet.id).is_none()
                && known.contains(&to)
                && self.world.home_of(to.0) == Some(node);
            if is_there {
                let addr = packet.tuple.src();
                return (Some(to), Some(Source { addr, of: self.world.whose(addr, self.from) }));
            }
        }
        (None, None)
    }

    /// Returns why there was no answer.
    fn why(&self, sights: &[Sight], verdict: Verdict) -> String {
        let mut why = String::new();
        for sight in sights {
            match sight {
                Sight::Drop { node, hook, reason, packet } if why.is_empty() => {
                    let is_answer = Network::answered_by(packet.id).is_some();
                    let what = if is_answer { "the answer is " } else { "" };
                    let how = match reason {
                        DropReason::Reject(_) => "rejected by a rule",
                        DropReason::Rule(_) => "dropped by a rule",
                        DropReason::Policy(_) => "dropped by a policy",
                        DropReason::NoServer => "refused by a virtual server without real ones",
                        DropReason::ServerGone => "dropped: its real server is gone",
                        _ => "dropped by routing",
                    };
                    let place = self.world.label(*node);
                    why = format!("{what}{how} in {hook} on {place}");
                }
                Sight::Arrival { node, packet, .. }
                    if *node == self.client
                        && packet.tuple.src() != self.to
                        && Network::answered_by(packet.id).is_some()
                        && !packet.is_icmp_error() =>
                {
                    let src = packet.tuple.src();
                    why = format!("the answer comes from {src}, which was not asked");
                }
                Sight::Arrival { node, packet, .. }
                    if self.world.is_router(*node) && why.is_empty() =>
                {
                    let dst = packet.tuple.dst();
                    let what = if packet.tuple.dst() == self.to { "" } else { "the answer to " };
                    why = format!("{what}{dst} goes to the router: nobody has it");
                }
                Sight::Lost { packet, .. } if why.is_empty() => {
                    why = format!("nobody has {}", packet.tuple.dst());
                }
                _ => {}
            }
        }
        if why.is_empty() && verdict == Verdict::Refused {
            why = "nothing listens there".to_owned();
        }
        why
    }
}

/// What a sender makes of an error of its own kernel.
fn send_verdict(error: SendError) -> Verdict {
    match error {
        SendError::NotPermitted => Verdict::Refused,
        _ => Verdict::HostUnreachable,
    }
}

/// What a connecting client, or ping, makes of an ICMP error.
// Kernel: icmp.c, icmp_err_convert; tcp_ipv4.c, tcp_v4_err
fn error_verdict(kind: IcmpError) -> Verdict {
    match kind {
        IcmpError::PortUnreachable | IcmpError::ProtocolUnreachable => Verdict::Refused,
        IcmpError::FragmentationNeeded => Verdict::Timeout,
        _ => Verdict::HostUnreachable,
    }
}

/// What a UDP client makes of an ICMP error: it hears of hard ones only.
// Kernel: udp.c, __udp4_lib_err
fn udp_verdict(kind: IcmpError) -> Verdict {
    match kind {
        IcmpError::NetUnreachable | IcmpError::HostUnreachable | IcmpError::TimeExceeded => {
            Verdict::Timeout
        }
        kind => error_verdict(kind),
    }
}
