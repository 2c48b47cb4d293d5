//! Translation of packets at devices.

use std::net::IpAddr;

use super::conntrack::{Entry, Found, Kind, Way};
use super::maps::{
    Backend, BackendId, BackendState, Frontend, FrontendKey, RevNatId, Scope, View, lookup,
};
use super::node::{Around, Identify, Identity, Node, SocketLb};
use crate::host::Draws;
use crate::packet::{Packet, TcpFlags};
use crate::tuple::{Protocol, Side, Tuple};

/// The ordinal of the draw that chooses a backend; those of source ports follow.
const BACKEND_DRAW: u32 = 0;
const PORT_DRAW: u32 = 1;

/// What becomes of a packet.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
#[allow(clippy::large_enum_variant)]
pub enum Verdict {
    /// It goes on.
    Pass(Passage),
    /// It does not.
    Drop {
        /// The packet as it came.
        packet: Packet,
        /// Why.
        reason: DropReason,
    },
}

/// A packet that goes on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Passage {
    /// The packet, translated or not.
    pub packet: Packet,
    /// The backend, if it is for a frontend.
    pub chosen: Option<Chosen>,
    /// It leaves by the node's device again, without going through the node's network stack.
    pub forwarded: bool,
}

/// A backend that a packet was translated to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chosen {
    /// The frontend.
    pub rev_nat: RevNatId,
    /// The backend's number.
    pub backend: BackendId,
    /// The backend's address.
    pub address: IpAddr,
    /// The backend's port.
    pub port: u16,
}

/// Why a packet does not go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DropReason {
    /// The frontend has no backend. The sender is told by ICMP, unless
    /// `--service-no-backend-response` says no.
    NoService,
    /// A ClusterIP, from outside.
    IsClusterIp,
    /// The source is not among those that the frontend accepts.
    NotInSourceRange,
    /// No port is left to translate the source to.
    NoMapping,
}

impl Node {
    /// Takes a packet that comes out of a Pod.
    // Cilium: bpf/bpf_lxc.c, cil_from_container
    pub fn from_container<V: View, I: Identify, D: Draws>(
        &mut self,
        around: &mut Around<'_, V, I, D>,
        packet: Packet,
    ) -> Verdict {
        let mut sent = packet;
        let mut entry = Entry::of(RevNatId(0), BackendId(0));
        let mut chosen = None;
        let is_per_packet = self.settings.socket_lb == SocketLb::HostOnly
            || !matches!(packet.tuple.protocol, Protocol::TCP | Protocol::UDP);
        let key = is_per_packet.then(|| key_of(&packet)).flatten();
        if let Some(frontend) = key.and_then(|key| lookup(around.view, key, Scope::Internal)) {
            let (id, backend) = match self.balance(around, frontend, &packet) {
                Ok(found) => found,
                Err(reason) => return Verdict::Drop { packet, reason },
            };
            rewrite(&mut sent, Side::Destination, backend.address, backend.port);
            if sent.tuple.src() == backend.address {
                sent.tuple.set_address(Side::Source, self.loopback(backend.address));
                entry.looped = true;
            }
            entry.rev_nat = frontend.rev_nat;
            chosen = Some(Chosen::of(frontend, id, &backend));
        }
        // Simplified: what a Pod answers itself is translated back where it leaves the Pod, not
        // where it arrives there
        if let Found::Known(entry) = self.track(around, Kind::Egress, Way::Back, &sent)
            && entry.looped
        {
            let own = sent.tuple.src();
            self.undo(around, entry.rev_nat, &mut sent);
            sent.tuple.set_address(Side::Destination, own);
            return Verdict::pass(sent);
        }
        if let Found::Known(entry) = self.track(around, Kind::Ingress, Way::Back, &sent) {
            if entry.node_port {
                self.undo(around, entry.rev_nat, &mut sent);
            }
            return Verdict::pass(sent);
        }
        if self.track(around, Kind::Egress, Way::There, &sent) == Found::New {
            self.start(around, Kind::Egress, &sent, entry);
        }
        Verdict::Pass(Passage { packet: sent, chosen, forwarded: false })
    }

    /// Takes a packet that goes into a Pod.
    // Cilium: bpf/bpf_lxc.c, ipv4_policy
    pub fn to_container<V: View, I: Identify, D: Draws>(
        &mut self,
        around: &mut Around<'_, V, I, D>,
        mut packet: Packet,
    ) -> Verdict {
        if let Found::Known(entry) = self.track(around, Kind::Egress, Way::Back, &packet)
            && !entry.node_port
        {
            self.undo(around, entry.rev_nat, &mut packet);
            return Verdict::pass(packet);
        }
        if self.track(around, Kind::Ingress, Way::There, &packet) == Found::New {
            let mut entry = Entry::of(RevNatId(0), BackendId(0));
            if let Found::Known(outer) = self.track(around, Kind::Egress, Way::There, &packet) {
                entry.node_port = outer.node_port;
                entry.rev_nat = outer.rev_nat;
            }
            self.start(around, Kind::Ingress, &packet, entry);
        }
        Verdict::pass(packet)
    }

    /// Takes a packet that comes in by the node's device.
    // Cilium: bpf/lib/nodeport.h, nodeport_lb4
    pub fn from_netdev<V: View, I: Identify, D: Draws>(
        &mut self,
        around: &mut Around<'_, V, I, D>,
        packet: Packet,
    ) -> Verdict {
        let found = key_of(&packet).and_then(|key| lookup(around.view, key, Scope::External));
        let Some(frontend) = found else {
            return self.answer_from_elsewhere(around, packet);
        };
        let accepts = |frontend: &Frontend| {
            let mut ranges = frontend.source_ranges.iter();
            frontend.source_ranges.is_empty() || ranges.any(|r| r.contains(packet.tuple.src()))
        };
        if !accepts(frontend) {
            return Verdict::Drop { packet, reason: DropReason::NotInSourceRange };
        }
        if !frontend.routable {
            return Verdict::Drop { packet, reason: DropReason::IsClusterIp };
        }
        let (id, backend) = match self.balance(around, frontend, &packet) {
            Ok(found) => found,
            Err(reason) => return Verdict::Drop { packet, reason },
        };
        let mut sent = packet;
        rewrite(&mut sent, Side::Destination, backend.address, backend.port);
        if self.track(around, Kind::Egress, Way::There, &sent) == Found::New {
            let mut entry = Entry::of(frontend.rev_nat, id);
            entry.node_port = true;
            self.start(around, Kind::Egress, &sent, entry);
        }
        let chosen = Some(Chosen::of(frontend, id, &backend));
        let is_here = matches!(
            around.identities.identity(backend.address),
            Identity::Host | Identity::LocalPod
        );
        if is_here {
            return Verdict::Pass(Passage { packet: sent, chosen, forwarded: false });
        }
        let first = self.settings.node_ports.1.saturating_add(1);
        let mut ordinal = PORT_DRAW;
        let draws = &mut *around.draws;
        let draw = || {
            ordinal += 1;
            draws.draw(ordinal - 1)
        };
        match self.snat.translate(sent.tuple, around.node, first, draw) {
            Some(tuple) => {
                sent.tuple = tuple;
                Verdict::Pass(Passage { packet: sent, chosen, forwarded: true })
            }
            None => Verdict::Drop { packet, reason: DropReason::NoMapping },
        }
    }

    /// Takes a packet that goes out by the node's device.
    // Cilium: bpf/lib/nodeport.h, nodeport_rev_dnat_fwd_ipv4
    pub fn to_netdev<V: View, I: Identify, D: Draws>(
        &mut self,
        around: &mut Around<'_, V, I, D>,
        mut packet: Packet,
    ) -> Verdict {
        if let Found::Known(entry) = self.track(around, Kind::Egress, Way::Back, &packet)
            && entry.node_port
        {
            self.undo(around, entry.rev_nat, &mut packet);
        }
        Verdict::pass(packet)
    }

    /// Takes what a backend on another node answers to a client outside.
    // Cilium: bpf/lib/nodeport.h, nodeport_rev_dnat_ingress_ipv4
    fn answer_from_elsewhere<V: View, I: Identify, D: Draws>(
        &mut self,
        around: &mut Around<'_, V, I, D>,
        mut packet: Packet,
    ) -> Verdict {
        let Some(tuple) = self.snat.undo(packet.tuple) else {
            return Verdict::pass(packet);
        };
        packet.tuple = tuple;
        if let Found::Known(entry) = self.track(around, Kind::Egress, Way::Back, &packet)
            && entry.node_port
        {
            self.undo(around, entry.rev_nat, &mut packet);
        }
        Verdict::Pass(Passage { packet, chosen: None, forwarded: true })
    }

    /// Returns the backend of a packet to a frontend: that of its connection, unless it is gone.
    // Cilium: bpf/lib/lb.h, lb4_local
    fn balance<V: View, I: Identify, D: Draws>(
        &mut self,
        around: &mut Around<'_, V, I, D>,
        frontend: &Frontend,
        packet: &Packet,
    ) -> Result<(BackendId, Backend), DropReason> {
        let tuple = packet.tuple;
        let key = (Kind::Service, tuple);
        let is_syn = packet
            .tcp_flags()
            .is_some_and(|flags| flags.contains(TcpFlags::SYN) && !flags.contains(TcpFlags::ACK));
        let known = match self.track(around, Kind::Service, Way::There, packet) {
            Found::Known(entry) if entry.rev_nat == frontend.rev_nat => Some(entry),
            Found::Known(_) | Found::New => None,
        };
        let kept = known.and_then(|entry| {
            let backend = around.view.backend(entry.backend)?;
            // A connection that goes on drains; one that begins does not.
            let drains = backend.state == BackendState::Active || !is_syn;
            drains.then_some((entry.backend, backend))
        });
        let (id, backend) = match kept {
            Some(kept) => kept,
            None if frontend.active().is_empty() => return Err(DropReason::NoService),
            None => {
                let chosen = self.select(around, frontend, &tuple, BACKEND_DRAW);
                let chosen = chosen.ok_or(DropReason::NoService)?;
                if known.is_some() {
                    self.connections.move_to(key, frontend.rev_nat, chosen.0);
                } else {
                    let entry = Entry::of(frontend.rev_nat, chosen.0);
                    self.start(around, Kind::Service, packet, entry);
                }
                chosen
            }
        };
        let client = super::affinity::Client::Address(tuple.src());
        self.affinity.note(around.now, frontend, client, id);
        Ok((id, backend))
    }

    fn track<V, I, D>(
        &mut self,
        around: &Around<'_, V, I, D>,
        kind: Kind,
        way: Way,
        packet: &Packet,
    ) -> Found {
        let tuple = match way {
            Way::There => packet.tuple,
            Way::Back => packet.tuple.reply(),
        };
        let lifetimes = &self.settings.lifetimes;
        self.connections.look_up(around.now, (kind, tuple), packet, way, lifetimes)
    }

    fn start<V, I, D>(
        &mut self,
        around: &Around<'_, V, I, D>,
        kind: Kind,
        packet: &Packet,
        entry: Entry,
    ) {
        let lifetimes = &self.settings.lifetimes;
        self.connections.create(around.now, (kind, packet.tuple), packet, entry, lifetimes);
    }

    /// Translates the source of an answer back to a frontend; where that is gone, it stays.
    // Cilium: bpf/lib/lb.h, lb4_rev_nat
    fn undo<V: View, I, D>(&self, around: &Around<'_, V, I, D>, id: RevNatId, packet: &mut Packet) {
        if let Some((address, port)) = around.view.rev_nat(id) {
            rewrite(packet, Side::Source, address, port);
        }
    }

    fn loopback(&self, like: IpAddr) -> IpAddr {
        match like {
            IpAddr::V4(_) => IpAddr::V4(self.settings.loopback.0),
            IpAddr::V6(_) => IpAddr::V6(self.settings.loopback.1),
        }
    }
}

impl Verdict {
    fn pass(packet: Packet) -> Verdict {
        Verdict::Pass(Passage { packet, chosen: None, forwarded: false })
    }
}

impl Chosen {
    fn of(frontend: &Frontend, backend: BackendId, at: &Backend) -> Chosen {
        let (address, port) = (at.address, at.port);
        Chosen { rev_nat: frontend.rev_nat, backend, address, port }
    }
}

/// Returns the key of a packet's destination; what has no ports is never for a frontend.
fn key_of(packet: &Packet) -> Option<FrontendKey> {
    let Tuple { protocol, dst_part, .. } = packet.tuple;
    let balanced = matches!(protocol, Protocol::TCP | Protocol::UDP | Protocol::SCTP);
    let whole = !packet.is_later_fragment();
    (balanced && whole).then(|| FrontendKey::external(packet.tuple.dst(), dst_part, protocol))
}

/// Rewrites one side of a packet. An address of the other family leaves it as it is: agents write
/// no such entry.
fn rewrite(packet: &mut Packet, side: Side, address: IpAddr, port: u16) {
    if packet.tuple.is_ipv4() == address.is_ipv4() {
        packet.tuple.set_address(side, address);
        packet.tuple.set_nat_part(side, port);
    }
}
