//! Several hosts joined by links: nodes with bridges, their Pods, machines outside.
//!
//! There is no event queue: what is sent is delivered to its end before anything else happens,
//! frame by frame in the order of sending, in no time. [`Network::advance`] lets time pass.
//! Neighbours are known (no ARP), nothing is lost or delayed on a link.
//!
//! ```text
//!   Pod a1          node n1                               node n2
//!   eth0 ─── veth-a1 ┐                                   ┌ veth-b1 ─── eth0 Pod b1
//!                    cni0 ── hooks ── eth0 ═ segment ═ eth0
//!   eth0 ─── veth-a2 ┘
//! ```
//!
//! A frame that comes in by a port of a bridge passes PREROUTING in the bridge if
//! bridge-nf-call-iptables is set, and is then bridged or handed up; else it meets no hook
//! unless it is addressed to the bridge.
//!
//! [`Network::explore`] follows every way of what is done in a network, with exact probabilities.

mod config;
mod dice;
mod exact;
mod ip;
mod link;
mod routing;
mod socket;
mod stack;
#[cfg(test)]
mod tests;
mod topology;

use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use crate::conntrack::Sysctls;
use crate::device::DeviceId;
use crate::exact::Script;
use crate::hook::{Hook, Table};
use crate::host::{Env, Host, Ingress, Route, RouteQuery, Socket};
use crate::netns::{Answer, Delivery, Drop, DropReason, Egress, Netns, Outcome};
use crate::packet::{IcmpError, Packet};
use crate::rule::{AddrType, FrameKind, Ruleset, RulesetBuilder};
use crate::time::SimTime;
use crate::traverse::Lookup;

pub use config::{
    Device, DeviceKind, DeviceSysctls, HostConfig, HostSysctls, InterfaceAddress, MacAddr,
    RouteEntry, RouteKind, Scope,
};
pub use dice::{Counts, Dice};
use exact::Decider;
pub use ip::IpError;
use socket::Sockets;
pub use socket::{
    Close, Datagram, Listener, SocketError, SocketId, SocketState, TcpSocket, UdpSocket,
};
pub use topology::{Built, Machine, PodNetwork, Topology, TopologyError};

/// A host of a network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(pub u32);

/// The largest packet that fits a link.
// Kernel: veth has an MTU of 1500.
const MTU: u32 = 1500;

/// More frames than this in one go mean that something circles.
const FRAMES_MAX: u32 = 100_000;

/// What a host's packets meet.
#[derive(Clone, Debug)]
pub struct NodeRules {
    /// The rules for IPv4.
    pub ipv4: Ruleset,
    /// The rules for IPv6.
    pub ipv6: Ruleset,
}

impl Default for NodeRules {
    fn default() -> NodeRules {
        let empty = || RulesetBuilder::new().build().expect("no rules are valid");
        NodeRules { ipv4: empty(), ipv6: empty() }
    }
}

impl NodeRules {
    /// Returns the rules of a packet's family.
    pub fn of(&self, packet: &Packet) -> &Ruleset {
        if packet.tuple.is_ipv4() { &self.ipv4 } else { &self.ipv6 }
    }
}

/// One host of a network.
#[derive(Clone, Debug)]
pub struct Node {
    /// Its name.
    pub name: Arc<str>,
    /// Devices, addresses, routes.
    pub host: HostConfig,
    /// Its connections.
    pub netns: Netns,
    /// Its rules. Shared, so that a copy of a network is cheap.
    pub rules: Arc<NodeRules>,
    /// Random numbers, and how often rules matched.
    pub dice: Dice,
    /// It takes packets and says nothing.
    pub mute: bool,
    sockets: Sockets,
}

/// Something that was seen.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Sight {
    /// A packet came in by a device that is no bridge port, before any hook.
    Arrival {
        /// Where.
        node: NodeId,
        /// By which device; the loopback device too.
        dev: DeviceId,
        /// The packet.
        packet: Packet,
    },
    /// A UDP listener got a datagram.
    Datagram {
        /// Where.
        node: NodeId,
        /// The datagram.
        packet: Packet,
    },
    /// A TCP listener's connection got data.
    Data {
        /// Where.
        node: NodeId,
        /// The segment.
        packet: Packet,
    },
    /// A packet got no further.
    Drop {
        /// Where.
        node: NodeId,
        /// The packet as it was then.
        packet: Packet,
        /// The last hook that it reached.
        hook: Hook,
        /// Why.
        reason: DropReason,
    },
    /// A packet left a device behind which nobody has the address that it is for.
    Lost {
        /// Which host sent it.
        node: NodeId,
        /// The packet.
        packet: Packet,
    },
}

/// Why the kernel refused to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendError {
    /// EPERM: dropped in OUTPUT or POSTROUTING.
    NotPermitted,
    /// ENETUNREACH: no route.
    NetUnreachable,
    /// EHOSTUNREACH.
    HostUnreachable,
    /// EACCES.
    Prohibited,
    /// EINVAL: a blackhole route, or an address that may not leave.
    Invalid,
}

impl SendError {
    /// Returns the name of the error number.
    pub const fn name(self) -> &'static str {
        match self {
            SendError::NotPermitted => "EPERM",
            SendError::NetUnreachable => "ENETUNREACH",
            SendError::HostUnreachable => "EHOSTUNREACH",
            SendError::Prohibited => "EACCES",
            SendError::Invalid => "EINVAL",
        }
    }
}

/// A frame on its way to a device.
#[derive(Clone, Copy, Debug)]
struct Frame {
    node: NodeId,
    dev: DeviceId,
    source: MacAddr,
    destination: MacAddr,
    packet: Packet,
}

/// Hosts and the links between them.
#[derive(Clone, Debug, Default)]
pub struct Network {
    nodes: Vec<Node>,
    /// Each segment joins devices; a frame reaches the one with its destination address.
    segments: Vec<Vec<(NodeId, DeviceId)>>,
    segment_of: BTreeMap<(NodeId, DeviceId), usize>,
    now: SimTime,
    frames: VecDeque<Frame>,
    /// What local packets' sockets are to be told, in order.
    sights: Vec<Sight>,
    /// What decides all random choices, while every way is followed.
    script: Option<Script>,
}

impl Network {
    /// Returns a network without hosts.
    pub fn new() -> Network {
        Network::default()
    }

    /// Adds a host; `seed` is for its random numbers.
    pub fn add_node(&mut self, name: impl Into<Arc<str>>, host: HostConfig, seed: u64) -> NodeId {
        let id = NodeId(self.nodes.len() as u32);
        let mut netns = Netns::new(Sysctls::default());
        // Every rule that matches is to be counted.
        netns.set_lookup(Lookup::Linear);
        self.nodes.push(Node {
            name: name.into(),
            host,
            netns,
            rules: Arc::default(),
            dice: Dice::new(seed),
            mute: false,
            sockets: Sockets::default(),
        });
        id
    }

    /// Returns a host.
    ///
    /// # Panics
    ///
    /// If the id is of another network.
    pub fn node(&self, id: NodeId) -> &Node {
        &self.nodes[id.0 as usize]
    }

    /// Returns a host to change it.
    ///
    /// # Panics
    ///
    /// If the id is of another network.
    pub fn node_mut(&mut self, id: NodeId) -> &mut Node {
        &mut self.nodes[id.0 as usize]
    }

    /// Returns the hosts with their ids.
    pub fn nodes(&self) -> impl Iterator<Item = (NodeId, &Node)> {
        self.nodes.iter().enumerate().map(|(at, node)| (NodeId(at as u32), node))
    }

    /// Replaces rules. The tables named lose what their rules kept (`statistic --mode nth`, …).
    pub fn set_rules(&mut self, id: NodeId, rules: NodeRules, replaced: &[Table]) {
        let node = self.node_mut(id);
        node.rules = Arc::new(rules);
        for table in replaced {
            node.netns.table_replaced(*table);
        }
    }

    /// Returns the segments: each joins the devices that it lists.
    pub fn segments(&self) -> &[Vec<(NodeId, DeviceId)>] {
        &self.segments
    }

    /// Returns the time.
    pub const fn now(&self) -> SimTime {
        self.now
    }

    /// Lets time pass.
    pub fn advance(&mut self, span: Duration) {
        self.now = self.now + span;
    }

    /// Returns what was seen since the last call.
    pub fn take_sights(&mut self) -> Vec<Sight> {
        std::mem::take(&mut self.sights)
    }

    /// Sends a packet as it is, as a raw socket does, and everything that follows from it.
    ///
    /// # Errors
    ///
    /// What the sender is told at once.
    // Kernel: raw.c, raw_send_hdrinc: the header's source plays no part in routing
    pub fn send_packet(&mut self, id: NodeId, packet: Packet) -> Result<(), SendError> {
        let dst = packet.tuple.dst();
        let host = &self.node(id).host;
        if host.addr_type(dst, None) == AddrType::Broadcast {
            return Err(SendError::Prohibited);
        }
        let query = RouteQuery { dst, src: unspecified(dst), mark: packet.mark, in_dev: None };
        let route = host.route(query);
        let sent = self.output_by(id, packet, Some(Socket::default()), route);
        self.settle();
        sent
    }

    /// Returns the address from which a host sends to another, and whether it can.
    ///
    /// # Errors
    ///
    /// If there is no way.
    pub fn source_for(&self, id: NodeId, dst: IpAddr) -> Result<IpAddr, SendError> {
        let host = &self.node(id).host;
        let query = RouteQuery { dst, src: unspecified(dst), mark: 0, in_dev: None };
        let route = host.route(query);
        match refusal(route) {
            Some(error) => Err(error),
            None => host.source_address(query, route).ok_or(SendError::Invalid),
        }
    }

    /// Delivers everything that is on its way.
    fn settle(&mut self) {
        let mut count = 0;
        while let Some(frame) = self.frames.pop_front() {
            count += 1;
            if count > FRAMES_MAX {
                self.frames.clear();
                return;
            }
            self.take_frame(frame);
        }
    }

    /// A host takes a frame.
    fn take_frame(&mut self, frame: Frame) {
        let Frame { node: id, dev, source, destination, packet } = frame;
        let node = &self.nodes[id.0 as usize];
        let Some(device) = node.host.device(dev) else {
            return;
        };
        if let DeviceKind::Port { bridge, .. } = device.kind {
            return self.take_at_port(frame, bridge);
        }
        if destination != device.mac {
            return;
        }
        self.sights.push(Sight::Arrival { node: id, dev, packet });
        if node.mute {
            return;
        }
        let (source, destination) = (Some(source), Some(destination));
        let ingress = Ingress { dev, port: None, source, destination, kind: FrameKind::Unicast };
        self.receive(id, packet, ingress, None);
    }

    // Kernel: br_input.c, br_handle_frame; br_netfilter_hooks.c, br_nf_pre_routing
    fn take_at_port(&mut self, frame: Frame, bridge: DeviceId) {
        let Frame { node: id, dev: in_port, source, destination, packet } = frame;
        let host = &self.nodes[id.0 as usize].host;
        let filtered = if packet.tuple.is_ipv4() {
            host.sysctls.bridge_nf_call_iptables
        } else {
            host.sysctls.bridge_nf_call_ip6tables
        };
        let local = host.is_bridge_mac(bridge, destination);
        if !filtered && !local {
            if let Some(port) = host.port_of(bridge, destination)
                && host.may_leave(port, in_port)
            {
                self.transmit(id, port, source, destination, packet);
            }
            return;
        }
        let ingress = Ingress {
            dev: bridge,
            port: filtered.then_some(in_port),
            source: Some(source),
            destination: Some(destination),
            kind: FrameKind::Unicast,
        };
        self.receive(id, packet, ingress, Some(destination));
    }

    /// Runs a packet through the hooks of a host that has received it.
    fn receive(&mut self, id: NodeId, packet: Packet, ingress: Ingress, frame_to: Option<MacAddr>) {
        let now = self.now;
        let packet = Packet { mark: 0, ..packet };
        let outcome =
            self.with_env(id, &packet, now, |netns, env| netns.receive_frame(packet, ingress, env));
        // A bridged frame keeps its hardware address unless its destination was rewritten.
        let keep = |out: &Egress| frame_to.filter(|_| out.packet.tuple.dst() == packet.tuple.dst());
        match outcome {
            Outcome::Sent(egress) => {
                let mac = keep(&egress);
                self.egress(id, egress, mac);
            }
            Outcome::Local(delivery) => self.deliver(id, delivery),
            Outcome::Dropped(drop) => self.note_drop(id, &drop),
            Outcome::Rejected(rejection) => {
                self.note_drop(id, &rejection.drop);
                self.answer(id, rejection.answer);
            }
        }
    }

    /// Runs a packet made here through the hooks.
    fn output(
        &mut self,
        id: NodeId,
        packet: Packet,
        socket: Option<Socket>,
    ) -> Result<(), SendError> {
        let tuple = &packet.tuple;
        let query =
            RouteQuery { dst: tuple.dst(), src: tuple.src(), mark: packet.mark, in_dev: None };
        let route = self.nodes[id.0 as usize].host.route(query);
        self.output_by(id, packet, socket, route)
    }

    /// Runs a packet made here through the hooks, of which is known where it goes at first.
    fn output_by(
        &mut self,
        id: NodeId,
        packet: Packet,
        socket: Option<Socket>,
        route: Route,
    ) -> Result<(), SendError> {
        if let Some(error) = refusal(route) {
            return Err(error);
        }
        let now = self.now;
        let outcome = self
            .with_env(id, &packet, now, |netns, env| netns.send_from(packet, socket, route, env));
        match outcome {
            Outcome::Sent(egress) => {
                self.egress(id, egress, None);
                Ok(())
            }
            Outcome::Local(delivery) => {
                let Delivery { packet, in_dev, .. } = delivery;
                self.sights.push(Sight::Arrival { node: id, dev: in_dev, packet });
                self.deliver(id, delivery);
                Ok(())
            }
            Outcome::Dropped(drop) => {
                self.note_drop(id, &drop);
                drop_error(&drop)
            }
            Outcome::Rejected(rejection) => {
                self.note_drop(id, &rejection.drop);
                self.answer(id, rejection.answer);
                drop_error(&rejection.drop)
            }
        }
    }

    /// Tells the sender of a packet that it got no further.
    fn send_error(&mut self, id: NodeId, about: &Packet, kind: IcmpError) {
        let now = self.now;
        let answer = self.with_env(id, about, now, |netns, env| netns.send_error(about, kind, env));
        if let Some(answer) = answer {
            self.answer(id, answer);
        }
    }

    fn answer(&mut self, id: NodeId, answer: Answer) {
        // What is said about a packet is no copy of it; about an answer, it has to do with no
        // request.
        let told = |about: u64| match Network::answered_by(about) {
            None => Network::answer_id(id, about),
            Some(_) => Network::answer_id(id, 0),
        };
        match answer {
            Answer::Sent(mut egress) => {
                egress.packet.id = told(egress.packet.id);
                self.egress(id, egress, None);
            }
            Answer::Local(mut delivery) => {
                delivery.packet.id = told(delivery.packet.id);
                let Delivery { packet, in_dev, .. } = delivery;
                self.sights.push(Sight::Arrival { node: id, dev: in_dev, packet });
                self.deliver(id, delivery);
            }
        }
    }

    fn note_drop(&mut self, id: NodeId, drop: &Drop) {
        let Drop { packet, hook, reason, .. } = *drop;
        self.sights.push(Sight::Drop { node: id, packet, hook, reason });
    }

    fn with_env<T>(
        &mut self,
        id: NodeId,
        packet: &Packet,
        now: SimTime,
        run: impl FnOnce(&mut Netns, &mut Env<'_, HostConfig, Ruleset, Decider<'_>>) -> T,
    ) -> T {
        let Node { host, netns, rules, dice, .. } = &mut self.nodes[id.0 as usize];
        let rules = rules.of(packet);
        let mut draws = Decider { dice, script: self.script.as_mut() };
        run(netns, &mut Env { now, host, rules, draws: &mut draws })
    }
}

/// Returns the address that stands for none, of the family of another.
fn unspecified(of: IpAddr) -> IpAddr {
    match of {
        IpAddr::V4(_) => std::net::Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => std::net::Ipv6Addr::UNSPECIFIED.into(),
    }
}

/// Returns what a sender is told when there is no way.
// Kernel: fib_semantics.c, fib_props
fn refusal(route: Route) -> Option<SendError> {
    match route {
        Route::Local | Route::Forward { .. } | Route::Bridged { .. } => None,
        Route::NoRoute => Some(SendError::NetUnreachable),
        Route::Unreachable => Some(SendError::HostUnreachable),
        Route::Prohibited => Some(SendError::Prohibited),
        Route::Blackhole => Some(SendError::Invalid),
    }
}

/// Returns what the sender of a dropped packet is told by its own kernel: nothing, if the packet
/// had left the hooks of sending.
fn drop_error(drop: &Drop) -> Result<(), SendError> {
    match (drop.hook, drop.reason) {
        (_, DropReason::Incomplete) | (Hook::Prerouting | Hook::Input, _) => Ok(()),
        // Kernel: nf_nat_proto.c, nf_nat_ipv4_local_fn: NF_DROP_ERR
        (_, DropReason::NoRoute) => Err(SendError::NetUnreachable),
        (_, DropReason::Unreachable) => Err(SendError::HostUnreachable),
        (_, DropReason::Prohibited) => Err(SendError::Prohibited),
        (_, DropReason::Blackhole) => Err(SendError::Invalid),
        _ => Err(SendError::NotPermitted),
    }
}
