//! What syncs make of the kernel's virtual servers: real servers that are no longer wanted stay,
//! with weight 0, as long as they have connections.
//!
//! Kubernetes: pkg/proxy/ipvs/graceful_termination.go; proxier.go, syncEndpoint,
//! cleanLegacyService.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::Duration;

use netfilter_model::Prefix;
use netfilter_model::ipvs::{Destination, Service, ServiceId};
use netfilter_model::tuple::Protocol;

/// How often real servers without weight are looked at.
// Kubernetes: pkg/proxy/ipvs/graceful_termination.go, rsCheckDeleteInterval
pub const CHECK_INTERVAL: Duration = Duration::from_secs(60);

/// A real server of a virtual one.
pub type RealServer = (ServiceId, IpAddr, u16);

/// Returns how many connections a real server has, established or not.
pub type Connections<'c> = &'c dyn Fn(&RealServer) -> u32;

/// The virtual servers in a node's kernel, with what the proxy remembers of them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Kernel {
    /// In order of their ids. The destinations are in the kernel's order: newest first.
    services: Vec<Service>,
    /// Real servers that stay for their connections.
    terminating: BTreeSet<RealServer>,
    /// The proxy has synced since it was started.
    synced: bool,
}

impl Kernel {
    /// Returns the virtual servers, in order of their ids, with their destinations in the
    /// kernel's order: those added last come first.
    pub fn services(&self) -> &[Service] {
        &self.services
    }

    /// Returns the real servers that stay for their connections, with weight 0.
    pub fn terminating(&self) -> &BTreeSet<RealServer> {
        &self.terminating
    }

    /// Starts the proxy anew: what is terminating is forgotten, and the first sync gives every
    /// wanted real server its weight again.
    pub fn restart(&mut self) {
        self.terminating.clear();
        self.synced = false;
    }

    /// Makes the virtual servers those that are wanted. Others are deleted, with all their
    /// connections, unless their addresses are excluded (`excludeCIDRs`).
    pub fn sync(&mut self, wanted: &[Service], excluded: &[Prefix], connections: Connections<'_>) {
        let ids: BTreeSet<ServiceId> = wanted.iter().map(|service| service.id).collect();
        self.services.retain(|service| {
            let is_excluded = |address| excluded.iter().any(|range| range.contains(address));
            let foreign = match service.id {
                ServiceId::Address(_, address, _) => is_excluded(address),
                ServiceId::Mark { .. } => false,
            };
            ids.contains(&service.id) || foreign
        });
        for service in wanted {
            let at = match self.services.binary_search_by_key(&service.id, |other| other.id) {
                Ok(at) => {
                    let destinations = std::mem::take(&mut self.services[at].destinations);
                    self.services[at] = Service { destinations, ..service.clone() };
                    at
                }
                Err(at) => {
                    self.services.insert(at, Service { destinations: vec![], ..service.clone() });
                    at
                }
            };
            self.sync_destinations(at, &service.destinations, connections);
        }
        self.synced = true;
    }

    /// Makes the real servers of a virtual one those that are wanted.
    fn sync_destinations(
        &mut self,
        at: usize,
        wanted: &[Destination],
        connections: Connections<'_>,
    ) {
        let service = &mut self.services[at];
        let id = service.id;
        let place = |destination: &Destination| (destination.address, destination.port);
        let old: Vec<(IpAddr, u16)> = service.destinations.iter().map(place).collect();
        // In order of text, as sorted by kube-proxy.
        let mut new: Vec<&Destination> = wanted.iter().collect();
        new.sort_by_cached_key(|destination| text(destination.address, destination.port));
        for destination in new {
            let real = (id, destination.address, destination.port);
            let held = service.destinations.iter().position(|held| place(held) == (real.1, real.2));
            match held {
                Some(held) if self.terminating.remove(&real) => {
                    // It is deleted and made anew.
                    service.destinations.remove(held);
                    service.destinations.insert(0, destination.clone());
                }
                Some(held) if !self.synced => {
                    service.destinations[held].weight = destination.weight;
                }
                Some(_) => {}
                None => service.destinations.insert(0, destination.clone()),
            }
        }
        for (address, port) in old {
            let stays = wanted.iter().any(|destination| place(destination) == (address, port));
            let real = (id, address, port);
            if stays || self.terminating.contains(&real) {
                continue;
            }
            let service = &mut self.services[at];
            if has_grace(&id) && connections(&real) > 0 {
                let held = service.destinations.iter_mut();
                for held in held.filter(|held| place(held) == (address, port)) {
                    held.weight = 0;
                }
                self.terminating.insert(real);
            } else {
                service.destinations.retain(|held| place(held) != (address, port));
            }
        }
    }

    /// Deletes real servers that have waited for connections and have none any more. Due every
    /// [`CHECK_INTERVAL`].
    pub fn check(&mut self, connections: Connections<'_>) {
        let services = &mut self.services;
        self.terminating.retain(|real| {
            let (id, address, port) = real;
            let Ok(at) = services.binary_search_by_key(id, |service| service.id) else {
                return false;
            };
            if connections(real) > 0 {
                return true;
            }
            let is_it = |held: &Destination| (held.address, held.port) == (*address, *port);
            services[at].destinations.retain(|held| !is_it(held));
            false
        });
    }
}

/// Returns whether real servers of a service wait for their connections. Those of UDP and SCTP do
/// not: the next packet of a connection ends it (`expire_nodest_conn`).
///
/// Kubernetes: pkg/proxy/ipvs/util/ipvs.go, IsRsGracefulTerminationNeeded.
fn has_grace(id: &ServiceId) -> bool {
    !matches!(id, ServiceId::Address(Protocol::UDP | Protocol::SCTP, ..))
}

fn text(address: IpAddr, port: u16) -> String {
    match address {
        IpAddr::V4(address) => format!("{address}:{port}"),
        IpAddr::V6(address) => format!("[{address}]:{port}"),
    }
}
