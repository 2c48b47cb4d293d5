//! Translation where a socket connects or sends, before there is a packet.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};

use super::affinity::Client;
use super::maps::{BackendId, Frontend, FrontendKey, FrontendKind, RevNatId, Scope, View, lookup};
use super::node::{Around, Identify, Identity, Node, SocketLb, random_slot};
use crate::host::Draws;
use crate::tuple::Protocol;

/// A socket that connects or sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Socket {
    /// Its number, given to no other socket of the node.
    pub cookie: u64,
    /// The number of its network namespace.
    pub namespace: u64,
    /// The namespace is the node's own.
    pub on_host: bool,
    /// TCP or UDP; others are not translated.
    pub protocol: Protocol,
}

/// What became of a destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Connected {
    /// It stays: it is no frontend's, or not one that sockets of the node translate.
    Direct,
    /// The socket goes to a backend.
    Backend {
        /// The backend's address.
        address: IpAddr,
        /// The backend's port.
        port: u16,
        /// The backend's number.
        backend: BackendId,
        /// The frontend's number.
        rev_nat: RevNatId,
    },
    /// The frontend has no backend: the call fails with EHOSTUNREACH.
    NoBackend,
}

/// `cilium_lb*_reverse_sk`: by socket and backend, what the program thinks that it talks to.
// Simplified: the agent's map of translated sockets has room for all, while the least recently
// used of its entries would make way.
#[derive(Clone, Debug, Default)]
pub(super) struct Translated {
    entries: BTreeMap<(u64, IpAddr, u16), (IpAddr, u16, RevNatId)>,
}

impl Node {
    /// Translates the destination of `connect()`, of TCP or UDP, once for the connection.
    // Cilium: bpf/bpf_sock.c, __sock4_xlate_fwd and __sock6_xlate_fwd
    pub fn connect<V: View, I: Identify, D: Draws>(
        &mut self,
        around: &mut Around<'_, V, I, D>,
        socket: &Socket,
        to: (IpAddr, u16),
    ) -> Connected {
        let is_covered = self.settings.socket_lb == SocketLb::Full || socket.on_host;
        if !is_covered || !matches!(socket.protocol, Protocol::TCP | Protocol::UDP) {
            return Connected::Direct;
        }
        let key = FrontendKey::external(to.0, to.1, socket.protocol);
        let Some(frontend) = self.socket_frontend(around, socket, key) else {
            return Connected::Direct;
        };
        if frontend.active().is_empty() {
            return Connected::NoBackend;
        }
        // A Service must not take the traffic to a public address that is none of the node's.
        let is_host = around.identities.identity(to.0) == Identity::Host;
        if frontend.kind == FrontendKind::ExternalIps && !is_host {
            return Connected::Direct;
        }
        let client = Client::Namespace(socket.namespace);
        let view = around.view;
        let known = |id: BackendId| Some((id, view.backend(id)?));
        let stays = self.affinity.of(view, around.now, frontend, client);
        let chosen = stays.and_then(known).or_else(|| {
            let number = match socket.protocol {
                Protocol::TCP => u64::from(around.draws.draw(0) as u32),
                _ => socket.cookie,
            };
            random_slot(frontend, number).and_then(known)
        });
        let Some((id, backend)) = chosen else {
            return Connected::NoBackend;
        };
        self.affinity.note(around.now, frontend, client, id);
        let (address, port, rev_nat) = (backend.address, backend.port, frontend.rev_nat);
        self.translated.entries.insert((socket.cookie, address, port), (to.0, to.1, rev_nat));
        Connected::Backend { address, port, backend: id, rev_nat }
    }

    /// Translates the destination of a datagram that an unconnected UDP socket sends. A socket
    /// stays with its slot as long as there are as many.
    pub fn sendmsg<V: View, I: Identify, D: Draws>(
        &mut self,
        around: &mut Around<'_, V, I, D>,
        socket: &Socket,
        to: (IpAddr, u16),
    ) -> Connected {
        self.connect(around, socket, to)
    }

    /// Returns whom the program sees as the sender of a datagram, or as its peer.
    // Cilium: bpf/bpf_sock.c, __sock4_xlate_rev
    pub fn recvmsg<V: View, I: Identify, D: Draws>(
        &mut self,
        around: &mut Around<'_, V, I, D>,
        socket: &Socket,
        from: (IpAddr, u16),
    ) -> (IpAddr, u16) {
        let entry = (socket.cookie, from.0, from.1);
        let Some(&(address, port, rev_nat)) = self.translated.entries.get(&entry) else {
            return from;
        };
        let key = FrontendKey::external(address, port, socket.protocol);
        let frontend = self.socket_frontend(around, socket, key);
        let is_current =
            |frontend: &Frontend| frontend.rev_nat == rev_nat && !frontend.active().is_empty();
        if frontend.is_some_and(is_current) {
            return (address, port);
        }
        self.translated.entries.remove(&entry);
        from
    }

    /// Forgets a socket that was closed.
    pub fn release(&mut self, cookie: u64) {
        let first = (cookie, IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0);
        let of_socket = self.translated.entries.range(first..).map(|(key, _)| *key);
        let of_socket: Vec<_> = of_socket.take_while(|(other, ..)| *other == cookie).collect();
        for key in of_socket {
            self.translated.entries.remove(&key);
        }
    }

    /// Returns the sockets that were translated to a backend, in order: those that the agent closes
    /// when the backend is gone, UDP ones by default. Those of TCP keep their connections.
    // Cilium: pkg/loadbalancer/reconciler/termination.go
    pub fn sockets_of(&self, address: IpAddr, port: u16) -> Vec<u64> {
        let keys = self.translated.entries.keys();
        keys.filter(|key| (key.1, key.2) == (address, port)).map(|key| key.0).collect()
    }

    /// Returns the frontend of a destination: by its address or, for the port of a node, by any.
    // Cilium: bpf/bpf_sock.c, sock4_wildcard_lookup
    fn socket_frontend<'v, V: View, I: Identify, D>(
        &self,
        around: &Around<'v, V, I, D>,
        socket: &Socket,
        key: FrontendKey,
    ) -> Option<&'v Frontend> {
        let view: &'v V = around.view;
        if let Some(frontend) = lookup(view, key, Scope::Internal) {
            return Some(frontend);
        }
        let (first, last) = self.settings.node_ports;
        if !(first..=last).contains(&key.port) {
            return None;
        }
        let is_nodes = match around.identities.identity(key.address) {
            _ if key.address.is_loopback() => socket.on_host,
            Identity::Host | Identity::RemoteNode => true,
            Identity::LocalPod | Identity::RemotePod | Identity::World => false,
        };
        let frontend = lookup(view, key.wildcard(), Scope::Internal).filter(|_| is_nodes)?;
        (frontend.kind == FrontendKind::NodePort).then_some(frontend)
    }
}
