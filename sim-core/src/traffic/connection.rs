//! Connections: what client and server know of one, and what the accounts need.

use std::time::Duration;

use netfilter_model::tuple::Tuple;

use super::relay::Relay;
use super::{ClientPlace, Met};
use crate::ids::{ClientId, PodId, ServicePortId};
use crate::time::SimTime;

/// Names a connection; never valid again once it is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    index: u32,
    generation: u32,
}

impl Key {
    /// Returns the connection's place in the table.
    pub fn index(self) -> usize {
        self.index as usize
    }

    /// Returns the key as a packet's id.
    pub fn to_packet_id(self) -> u64 {
        u64::from(self.generation) << 32 | u64::from(self.index)
    }

    /// Returns the key that is a packet's id.
    pub fn from_packet_id(id: u64) -> Key {
        Key { index: id as u32, generation: (id >> 32) as u32 }
    }
}

/// One attempt's connection.
#[derive(Clone, Debug)]
pub struct Connection {
    generation: u32,
    /// The client group.
    pub group: ClientId,
    /// The request.
    pub request: u64,
    /// 0 for the request's first attempt.
    pub attempt: u32,
    /// Who sends it.
    pub client: ClientPlace,
    /// From the client to the Service's address.
    pub tuple: Tuple,
    /// When the first SYN was sent.
    pub sent: SimTime,
    /// When the client gives up.
    pub deadline: SimTime,
    /// SYNs sent.
    pub syns: u32,
    /// Machines that the last SYN has come to from another.
    pub(super) hops: u32,
    /// Rules that its SYN passed.
    pub(super) rules: u32,
    /// The client's side.
    pub state: ClientState,
    /// The server's side.
    pub server: ServerState,
    /// The Pod that holds the server's side.
    pub server_pod: Option<PodId>,
    /// From the client to the server, as the server sees it.
    pub server_tuple: Tuple,
    /// Its place in the server's list.
    pub(super) server_slot: u32,
    /// The draw for the client's node, the first time it needs one.
    pub node_draw: u64,
    /// The draw for the service time.
    pub(super) service_draw: u64,
    /// How many draws the nodes took so far.
    pub draws: u32,
    /// The Pod that DNAT chose.
    pub endpoint: Option<PodId>,
    /// When it was chosen, and whether by the first SYN.
    pub chosen: Option<(SimTime, bool)>,
    /// The endpoint's address and port, as DNAT wrote them.
    pub endpoint_tuple: Option<Tuple>,
    /// The service port whose rules decided.
    pub rule: Option<ServicePortId>,
    /// The part of a proxying process on the client's node, if there is one.
    pub(super) relay: Option<Box<Relay>>,
    /// What its packets met last, if they came to harm.
    pub met: Option<Met>,
    /// Whether a deletion window of its Service was open when it began.
    pub inside: bool,
}

/// The client's side of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientState {
    /// Not begun: a retry that waits.
    Waiting,
    /// SYN sent.
    SynSent,
    /// Waits for the response.
    Established,
    /// Response received, FIN sent.
    FinWait,
    /// Over.
    Closed,
}

/// The server's side of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServerState {
    /// Not there.
    None,
    /// SYN-ACK sent.
    SynReceived,
    /// Accepted.
    Established,
    /// A request is being served.
    Serving,
    /// FIN received and sent.
    LastAck,
    /// Over.
    Closed,
}

impl Connection {
    /// Returns whether no server has had the connection that this SYN asks for. A proxying
    /// process may make several connections for one of its client's.
    pub(super) fn is_new_to_servers(&self, syn: Tuple) -> bool {
        match self.server {
            ServerState::None => true,
            ServerState::Closed => self.relay.is_some() && self.server_tuple != syn,
            _ => false,
        }
    }

    /// Returns how long the endpoint had not been accepting when the attempt was sent.
    pub fn stale_for(&self) -> Option<Duration> {
        self.met.and_then(|met| met.stale_for)
    }
}

/// All connections, reusing places.
#[derive(Debug, Default)]
pub struct Connections {
    places: Vec<Connection>,
    free: Vec<u32>,
}

/// What a connection begins as.
#[derive(Clone, Debug)]
pub(super) struct Begin {
    pub(super) group: ClientId,
    pub(super) request: u64,
    pub(super) attempt: u32,
    pub(super) client: ClientPlace,
    pub(super) tuple: Tuple,
    pub(super) node_draw: u64,
    pub(super) service_draw: u64,
}

impl Connections {
    pub(super) fn insert(&mut self, begin: Begin) -> Key {
        let connection = Connection {
            generation: 0,
            group: begin.group,
            request: begin.request,
            attempt: begin.attempt,
            client: begin.client,
            tuple: begin.tuple,
            sent: SimTime::ZERO,
            deadline: SimTime::ZERO,
            syns: 0,
            hops: 0,
            rules: 0,
            state: ClientState::Waiting,
            server: ServerState::None,
            server_pod: None,
            server_tuple: begin.tuple,
            server_slot: 0,
            node_draw: begin.node_draw,
            service_draw: begin.service_draw,
            draws: 0,
            endpoint: None,
            chosen: None,
            endpoint_tuple: None,
            rule: None,
            relay: None,
            met: None,
            inside: false,
        };
        if let Some(index) = self.free.pop() {
            let place = &mut self.places[index as usize];
            let generation = place.generation;
            *place = Connection { generation, ..connection };
            return Key { index, generation };
        }
        let index = u32::try_from(self.places.len()).expect("fewer than 2^32 connections");
        self.places.push(connection);
        Key { index, generation: 0 }
    }

    /// Returns the connection of `key`, if it is still there.
    #[inline]
    pub fn get(&self, key: Key) -> Option<&Connection> {
        self.places.get(key.index()).filter(|place| place.generation == key.generation)
    }

    /// Returns the connection of `key`, if it is still there.
    #[inline]
    pub fn get_mut(&mut self, key: Key) -> Option<&mut Connection> {
        self.places.get_mut(key.index()).filter(|place| place.generation == key.generation)
    }

    /// Frees the connection's place if both sides are over.
    pub(super) fn reap(&mut self, key: Key) {
        let Some(connection) = self.get_mut(key) else {
            return;
        };
        let server_over = matches!(connection.server, ServerState::None | ServerState::Closed);
        let relay_over = connection.relay.as_ref().is_none_or(|relay| relay.is_over());
        if connection.state == ClientState::Closed && server_over && relay_over {
            connection.generation = connection.generation.wrapping_add(1);
            self.free.push(key.index);
        }
    }

    /// Returns how many connections there are.
    pub fn len(&self) -> usize {
        self.places.len() - self.free.len()
    }

    /// Returns whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Iterates over the connections whose client waits for an answer, in the order of their
    /// places.
    pub fn open(&self) -> impl Iterator<Item = &Connection> {
        self.places.iter().filter(|connection| {
            matches!(connection.state, ClientState::SynSent | ClientState::Established)
        })
    }
}
