//! The network: nodes with bridge and uplink, the fabric between them, and packets on their way.
//!
//! ```text
//! Pod ─veth─ cni0 (bridge) ─ host namespace: hooks, routes ─ eth0 ─ switch ─ eth0 ─ … ─ Pod
//! ```
//!
//! A packet passes its sender's node at the instant it is sent, arrives at the other node one
//! path latency later, and reaches a Pod there at once; between Pods of one node it takes the
//! bridge's latency. The network knows neither Pods nor Services: who asks brings the rules, and
//! is told which address a packet has reached.

pub mod fabric;
pub mod plan;
pub mod topology;

use crate::ids::{Id, NodeId};
use fabric::PacketKey;

/// Something that happens to a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// It arrives at a node's uplink.
    Arrive(NodeId, PacketKey),
    /// It arrives at a Pod of the node that it is on.
    Deliver(NodeId, PacketKey),
    /// A load balancer that was busy takes it up.
    Serve(NodeId, PacketKey),
    /// A machine that had failed is back.
    Repaired(NodeId),
    /// A node gives up asking who has an address.
    Unresolved(NodeId, std::net::Ipv4Addr),
}

impl Event {
    /// The kinds of events.
    pub const KINDS: [&str; 5] =
        ["arrive", "deliver", "unresolved address", "load balancer", "machine repaired"];

    /// Returns the index of the event's kind and what it concerns.
    pub fn kind(self) -> (usize, usize) {
        match self {
            Event::Arrive(node, _) => (0, node.index()),
            Event::Deliver(node, _) => (1, node.index()),
            Event::Unresolved(node, _) => (2, node.index()),
            Event::Serve(node, _) => (3, node.index()),
            Event::Repaired(node) => (4, node.index()),
        }
    }
}
