//! What one node's programs keep between packets, and how they were configured.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::affinity::{Affinity, Client};
use super::conntrack::{self, Lifetimes};
use super::maps::{Backend, BackendId, Frontend, View};
use super::snat::Snat;
use super::socket::Translated;
use crate::host::Draws;
use crate::time::SimTime;
use crate::tuple::Tuple;

/// Whose address something is (`cilium_ipcache`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Identity {
    /// This node's.
    Host,
    /// Another node's.
    RemoteNode,
    /// A Pod's on this node.
    LocalPod,
    /// A Pod's on another node.
    RemotePod,
    /// Nobody's in the cluster.
    World,
}

/// Tells whose an address is.
pub trait Identify {
    /// Returns whose an address is.
    fn identity(&self, address: IpAddr) -> Identity;
}

impl<F: Fn(IpAddr) -> Identity> Identify for F {
    fn identity(&self, address: IpAddr) -> Identity {
        self(address)
    }
}

/// Which sockets are translated when they connect or send.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SocketLb {
    /// All.
    #[default]
    Full,
    /// Those of the node itself; Pods' packets are translated one by one
    /// (`--bpf-lb-sock-hostns-only`).
    HostOnly,
}

/// How a backend is chosen for packets from outside (`--bpf-lb-algorithm`). Sockets choose at
/// random always.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Algorithm {
    /// At random.
    #[default]
    Random,
    /// By the frontend's lookup table of this size; at random where there is none.
    Maglev {
        /// How many places it has.
        table_size: u32,
    },
}

impl Algorithm {
    /// Maglev with the table's default size.
    pub const MAGLEV: Algorithm = Algorithm::Maglev { table_size: 16381 };
}

/// How a node's programs were configured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Which sockets are translated.
    pub socket_lb: SocketLb,
    /// The ports of the nodes that Services may have; sources are translated to those above.
    pub node_ports: (u16, u16),
    /// What a Pod that reaches itself by a Service sees as its client.
    pub loopback: (Ipv4Addr, Ipv6Addr),
    /// How long connections are remembered.
    pub lifetimes: Lifetimes,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            socket_lb: SocketLb::Full,
            node_ports: (30000, 32767),
            loopback: (Ipv4Addr::new(169, 254, 42, 1), Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1)),
            lifetimes: Lifetimes::default(),
        }
    }
}

/// What is around a packet or system call at one instant.
#[derive(Debug)]
pub struct Around<'e, V, I, D> {
    /// The time.
    pub now: SimTime,
    /// The maps as they are now.
    pub view: &'e V,
    /// Whose addresses are.
    pub identities: &'e I,
    /// The node's own address, by which it forwards.
    pub node: IpAddr,
    /// Random numbers.
    pub draws: &'e mut D,
}

/// What a node's programs keep between packets and system calls.
#[derive(Clone, Debug, Default)]
pub struct Node {
    /// How they were configured.
    pub settings: Settings,
    pub(super) connections: conntrack::Table,
    pub(super) affinity: Affinity,
    pub(super) snat: Snat,
    pub(super) translated: Translated,
}

impl Node {
    /// Returns a node that has seen no packet.
    pub fn new(settings: Settings) -> Node {
        Node { settings, ..Node::default() }
    }

    /// Returns how many connections are tracked; translated sockets are none.
    pub fn connection_count(&self, now: SimTime) -> usize {
        self.connections.len(now)
    }

    /// Forgets which clients stay with a backend. An agent gives a backend that comes back another
    /// number, which comes to the same.
    pub fn forget_clients_of(&mut self, backend: BackendId) {
        self.affinity.forget(backend);
    }

    /// Forgets connections that have ended.
    pub fn collect(&mut self, now: SimTime) {
        self.connections.collect(now);
    }

    /// Chooses a backend for a packet: where the client was before, or by the frontend's
    /// algorithm.
    // Cilium: bpf/lib/lb.h, lb4_select_backend_id
    pub(super) fn select<V: View, I, D: Draws>(
        &mut self,
        around: &mut Around<'_, V, I, D>,
        frontend: &Frontend,
        tuple: &Tuple,
        ordinal: u32,
    ) -> Option<(BackendId, Backend)> {
        let client = Client::Address(tuple.src());
        let stays = self.affinity.of(around.view, around.now, frontend, client);
        let known = |id: BackendId| Some((id, around.view.backend(id)?));
        if let Some(found) = stays.and_then(known) {
            return Some(found);
        }
        match &frontend.maglev {
            Some(maglev) => known(maglev.select(tuple, frontend.affinity.is_some())),
            None => {
                let id = random_slot(frontend, around.draws.draw(ordinal) as u32 as u64)?;
                known(id)
            }
        }
    }
}

/// Returns the backend of a slot that a number falls on.
// Cilium: bpf/bpf_sock.c, sock_select_slot, and bpf/lib/lb.h: a remainder, with its bias
pub(super) fn random_slot(frontend: &Frontend, number: u64) -> Option<BackendId> {
    let active = frontend.active();
    let at = number.checked_rem(active.len() as u64)?;
    active.get(at as usize).copied()
}
