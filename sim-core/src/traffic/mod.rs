//! Clients and servers: requests over TCP connections, segment by segment.
//!
//! [`Traffic`] is one component. It is told of arrivals, timers and packets that reach a Pod, and
//! it answers with packets to send and with attempts that ended. It knows no rules and no routes:
//! what became of a packet on its way it is told by [`Traffic::met`].
//!
//! Simplified: a segment of data that is lost is not sent again; only the SYN is.

pub mod arrival;
mod client;
pub mod connection;
mod relay;
mod server;
pub mod tcp;

use std::net::Ipv4Addr;
use std::time::Duration;

use netfilter_model::packet::Packet;

use self::arrival::ArrivalProcess;
use self::connection::{Connections, Key};
use crate::config::{ClientSpec, Law};
use crate::engine::rng::{Requests, Seed, Stream};
use crate::ids::{ClientId, Id, IdVec, NodeId, PodId};
use crate::record::{Cause, Symptom};
use crate::time::SimTime;

/// Something that happens to a client or a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A group's next request is due.
    Arrival(ClientId),
    /// A connection's retransmission or timeout is due.
    Timer(Key),
    /// A request's next attempt is due.
    Retry(Key),
    /// A server has its answer.
    Served(Key),
    /// The time for a proxying process's dial, by its number, is over.
    Dial(Key, u32),
    /// A dial's SYN is due again.
    DialAgain(Key, u32),
}

impl Event {
    /// The kinds of events.
    pub const KINDS: [&str; 6] =
        ["arrival", "connection timer", "retry", "served", "dial timeout", "dial again"];

    /// Returns the index of the event's kind and what it concerns.
    pub fn kind(self) -> (usize, usize) {
        match self {
            Event::Arrival(client) => (0, client.index()),
            Event::Timer(key) => (1, key.index()),
            Event::Retry(key) => (2, key.index()),
            Event::Served(key) => (3, key.index()),
            Event::Dial(key, _) => (4, key.index()),
            Event::DialAgain(key, _) => (5, key.index()),
        }
    }
}

/// How an attempt ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The response came.
    Answered,
    /// It did not.
    Lost(Cause, Symptom),
}

/// What a component of traffic wants from the world.
#[derive(Debug, Default)]
pub struct Outlet {
    /// Packets to be sent, in order.
    pub packets: Vec<(Sender, Packet)>,
    /// Attempts that ended; their connections are kept until the outlet is emptied.
    pub ended: Vec<(Key, Outcome)>,
    /// Connections of which one side is over, perhaps both.
    pub over: Vec<Key>,
    /// Pods that serve no connection any more.
    pub idle: Vec<PodId>,
    /// Connections for which a proxying process wants an endpoint.
    pub dials: Vec<Key>,
}

/// Who sends a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sender {
    /// A Pod.
    Pod(PodId),
    /// A process on a node, in the node's own namespace.
    Node(NodeId),
}

impl Outlet {
    /// Returns whether nothing is wanted.
    pub fn is_empty(&self) -> bool {
        self.packets.is_empty()
            && self.ended.is_empty()
            && self.over.is_empty()
            && self.idle.is_empty()
            && self.dials.is_empty()
    }

    /// Appends all of `other`.
    pub fn append(&mut self, other: &mut Outlet) {
        self.packets.append(&mut other.packets);
        self.ended.append(&mut other.ended);
        self.over.append(&mut other.over);
        self.idle.append(&mut other.idle);
        self.dials.append(&mut other.dials);
    }
}

/// A group of clients at work.
#[derive(Debug)]
pub struct Group {
    /// What it was asked to be.
    pub spec: ClientSpec,
    /// The Service's address and port.
    pub target: (Ipv4Addr, u16),
    /// The group's Pods: one on each node, with consecutive ids.
    pub first_pod: PodId,
    /// How many Pods it has.
    pub pods: u32,
    arrivals: ArrivalProcess,
    block: u64,
    times: Vec<SimTime>,
    next: usize,
    requests: Requests,
    /// The same stream, for draws beyond a request's first.
    pub stream: Stream,
    ports: Vec<u16>,
}

/// Purposes of a request's draws.
pub mod purpose {
    /// Which of the group's Pods sends it.
    pub const POD: u8 = 0;
    /// What the client's node draws while the packet traverses its rules.
    pub const CLIENT_NODE: u8 = 1;
    /// The server's service time.
    pub const SERVICE: u8 = 2;
    /// What another node draws.
    pub const OTHER_NODE: u8 = 3;
}

/// Kernel: `net.ipv4.ip_local_port_range`.
const PORTS: std::ops::RangeInclusive<u16> = 32768..=60999;

/// All clients and servers.
#[derive(Debug)]
pub struct Traffic {
    /// Client groups.
    pub groups: IdVec<ClientId, Group>,
    /// Connections that have not ended on both sides.
    pub connections: Connections,
    servers: server::Servers,
    /// The next source port of each node's proxying process.
    relay_ports: Vec<u16>,
    /// Whether clients still send new requests.
    sending: bool,
    /// Attempts that are neither answered nor given up.
    open: u64,
    /// Requests begun.
    pub requests: u64,
    /// Requests that ended without an answer.
    pub requests_lost: u64,
    /// Requests that ended with one.
    pub requests_answered: u64,
    /// Connections that servers took.
    pub accepted: u64,
    /// From machine to machine, by the SYNs of these.
    pub hops: u64,
    /// Rules that a linear walk looks at for the SYNs of these, on all machines.
    pub rules: u64,
}

/// Where a group's Pods and its Service are.
#[derive(Clone, Copy, Debug)]
pub struct GroupPlace {
    /// The Service's address and port.
    pub target: (Ipv4Addr, u16),
    /// The group's first Pod.
    pub first_pod: PodId,
    /// How many Pods follow each other from it.
    pub pods: u32,
}

impl Traffic {
    /// Returns the clients of `specs`, each at its place.
    pub fn new(specs: &[ClientSpec], places: &[GroupPlace], seed: &Seed) -> Traffic {
        let group = |(spec, place): (&ClientSpec, &GroupPlace)| {
            let stream = seed.stream(&format!("client/{}/requests", spec.name));
            Group {
                spec: spec.clone(),
                target: place.target,
                first_pod: place.first_pod,
                pods: place.pods,
                arrivals: ArrivalProcess::new(&spec.name, spec.arrivals, spec.rate_per_s, seed),
                block: 0,
                times: Vec::new(),
                next: 0,
                requests: stream.requests(),
                stream,
                ports: vec![*PORTS.start(); place.pods as usize],
            }
        };
        Traffic {
            groups: specs.iter().zip(places).map(group).collect(),
            connections: Connections::default(),
            servers: server::Servers::default(),
            relay_ports: Vec::new(),
            sending: true,
            open: 0,
            requests: 0,
            requests_lost: 0,
            requests_answered: 0,
            accepted: 0,
            hops: 0,
            rules: 0,
        }
    }

    /// Stops new requests; what is under way goes on.
    pub fn stop_sending(&mut self) {
        self.sending = false;
    }

    /// Returns whether clients still send new requests.
    pub fn is_sending(&self) -> bool {
        self.sending
    }

    /// Returns how many attempts have neither an answer nor been given up, those that wait for a
    /// retry included.
    pub fn open(&self) -> u64 {
        self.open
    }

    /// Takes the next draw of an attempt, for `node`.
    pub fn draw(&mut self, key: Key, node: NodeId) -> u64 {
        let Some(connection) = self.connections.get_mut(key) else {
            return 0;
        };
        let index = connection.draws;
        connection.draws += 1;
        let at_client = connection.client.node == node;
        if at_client && index == 0 {
            return connection.node_draw;
        }
        let purpose = if at_client { purpose::CLIENT_NODE } else { purpose::OTHER_NODE };
        let (request, attempt) = (connection.request, connection.attempt);
        self.groups[connection.group].stream.draw(request, attempt, purpose, index)
    }

    /// Returns how many connections `pod` serves.
    pub fn served_by(&self, pod: PodId) -> usize {
        self.servers.of(pod).len()
    }
}

impl Group {
    /// Takes the next source port of one of the group's Pods.
    fn next_port(&mut self, index: usize) -> u16 {
        let port = self.ports[index];
        self.ports[index] = if port == *PORTS.end() { *PORTS.start() } else { port + 1 };
        port
    }

    /// Returns which of the group's Pods a draw stands for.
    fn pod(&self, draw: u64) -> usize {
        crate::engine::rng::below(draw, u64::from(self.pods)) as usize
    }
}

/// Where and how a Pod can be reached, as far as servers need it.
#[derive(Clone, Copy, Debug)]
pub struct Host<'a> {
    /// The Pod.
    pub pod: PodId,
    /// Whether its application accepts connections.
    pub listening: bool,
    /// The law of its service time; a Pod without one serves nothing.
    pub service_time: Option<&'a Law>,
}

/// A Pod's place in the network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientPlace {
    /// The Pod.
    pub pod: PodId,
    /// Its node.
    pub node: NodeId,
    /// Its address.
    pub addr: Ipv4Addr,
}

/// What an attempt's packet met on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Met {
    /// What happened to it.
    pub cause: Cause,
    /// For how long the endpoint had not been accepting, where that is why.
    pub stale_for: Option<Duration>,
}
