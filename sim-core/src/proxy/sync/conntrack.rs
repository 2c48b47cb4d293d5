//! Which conntrack entries a proxy deletes after a sync: of UDP only, and by version.
//!
//! TCP and SCTP entries are never touched, whatever becomes of their endpoint.
//!
//! Kubernetes: pkg/proxy/conntrack/cleanup.go.

use std::net::IpAddr;

use netfilter_model::conntrack::{Direction, Entry, Status};
use netfilter_model::tuple::Protocol;

use crate::proxy::profile::Profile;

/// A UDP service port, before and after a sync.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UdpPort {
    /// The addresses that it is reached at: ClusterIP, external IPs, those of load balancers.
    pub addresses: Vec<IpAddr>,
    /// The port at those addresses.
    pub port: u16,
    /// The port at the nodes.
    pub node_port: Option<u16>,
    /// Addresses of its endpoints before.
    pub before: Vec<IpAddr>,
    /// Addresses of its endpoints that serve, terminating or not.
    pub now: Vec<IpAddr>,
    /// Whether the Service is gone.
    pub deleted: bool,
}

/// How entries to be deleted are found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cleanup {
    /// For each event, by running `conntrack -D`: entries to an endpoint that was removed, and all
    /// of a service port that had no endpoint and now has one. By address, without the port.
    ByEvent,
    /// By going through the table: entries of a service port whose endpoint does not serve.
    /// Service ports without serving endpoints are left out.
    Reconcile,
    /// As `Reconcile`, with service ports without serving endpoints.
    ReconcileEmpty,
}

impl Cleanup {
    /// Returns what a version does.
    pub fn of(profile: Profile) -> Cleanup {
        match profile.minor() {
            ..=31 => Cleanup::ByEvent,
            32..=36 => Cleanup::Reconcile,
            _ => Cleanup::ReconcileEmpty,
        }
    }

    /// Returns whether anything is looked for after a sync that changed these service ports.
    pub fn is_required(self, changed: &[UdpPort]) -> bool {
        match self {
            Cleanup::ByEvent => changed.iter().any(|port| {
                port.before.iter().any(|old| !port.now.contains(old))
                    || (port.before.is_empty() && !port.now.is_empty())
            }),
            Cleanup::Reconcile | Cleanup::ReconcileEmpty => {
                changed.iter().any(|port| port.before != port.now)
            }
        }
    }

    /// Returns whether a sync that knows `ports` deletes an entry.
    pub fn condemns(self, entry: &Entry, ports: &[UdpPort]) -> bool {
        entry.tuple(Direction::Original).protocol == Protocol::UDP
            && ports.iter().any(|port| self.is_stale(entry, port))
    }

    fn is_stale(self, entry: &Entry, port: &UdpPort) -> bool {
        let original = entry.tuple(Direction::Original);
        let backend = entry.tuple(Direction::Reply).src();
        let to_address = port.addresses.contains(&original.dst());
        let to_node_port = port.node_port == Some(original.dst_part);
        match self {
            Cleanup::ByEvent => {
                let translated = entry.status().contains(Status::DST_NAT);
                let removed = !port.now.contains(&backend) && port.before.contains(&backend);
                let appeared = port.before.is_empty() && !port.now.is_empty();
                (to_address || to_node_port) && ((translated && removed) || appeared)
            }
            Cleanup::Reconcile | Cleanup::ReconcileEmpty => {
                let skipped = port.now.is_empty() && self == Cleanup::Reconcile;
                let to_port = to_address && original.dst_part == port.port;
                !port.deleted
                    && !skipped
                    && (to_port || to_node_port)
                    && !port.now.contains(&backend)
            }
        }
    }
}

#[cfg(test)]
mod tests;
