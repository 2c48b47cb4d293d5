//! Clients that stay with their endpoints: what nodes remember of them, from version to version.
//!
//! Who was sent where is remembered by a node, not by a version of a Service:
//!
//! | mode | memory | how long |
//! |---|---|---|
//! | iptables | a `recent` list for each endpoint | while a rule names it |
//! | nftables | a set for each endpoint | while the table has it |
//! | eBPF | one map | entries of backends that are gone do not count |
//! | userspace | the process's map | entries of endpoints that are gone are removed |
//! | IPVS | templates of connections | they know what became of their real servers |
//!
//! Nothing happens when a version goes live on a node; so a node's memory is brought up to date
//! when the next packet to the Service passes it ([`DataPlane::prepare`]), version by version: an
//! endpoint that was gone and came back has lost its clients.

use std::collections::BTreeSet;
use std::net::Ipv4Addr;

use netfilter_model::netns::Netns;
use netfilter_model::packet::Packet;

use super::{DataPlane, LOAD_BALANCER, Made, Mode, ServiceState};
use crate::ids::{Id, NodeId, ServiceId};
use crate::kube::endpoint_slice::Endpoint;
use crate::time::SimTime;

/// The number of the version of a Service that each node's memory is of.
#[derive(Debug, Default)]
pub(super) struct Seen(Vec<u32>);

impl Seen {
    fn of(&mut self, node: NodeId) -> &mut u32 {
        if self.0.len() <= node.index() {
            self.0.resize(node.index() + 1, 0);
        }
        &mut self.0[node.index()]
    }
}

impl DataPlane {
    /// Returns whether clients of `service` stay with their endpoints.
    pub fn has_affinity(&self, service: ServiceId) -> bool {
        self.services[service].seen.is_some()
    }

    /// Brings what a node keeps of the Service that a packet is for up to date with the version
    /// that is live there. To be called before the packet meets what the node holds
    /// ([`DataPlane::at`]); `netns` is the node's.
    #[inline]
    pub fn prepare(&mut self, node: NodeId, now: SimTime, packet: &Packet, netns: &mut Netns) {
        if self.keeps_state {
            self.prepare_port(node, now, packet, netns);
        }
    }

    fn prepare_port(&mut self, node: NodeId, now: SimTime, packet: &Packet, netns: &mut Netns) {
        let Some(port) = self.addressed(packet) else {
            return;
        };
        if let Mode::Ipvs(_) = self.mode {
            self.sync_virtual_server(node, now, port, netns.ipvs_mut(now));
        }
        let service = self.ports[port].service;
        if !self.has_affinity(service) {
            return;
        }
        self.catch_up(service, node, now, netns);
        if let Mode::Nftables(mode) = &mut self.mode {
            mode.show(node, port, netns);
        }
    }

    /// Brings what `node` remembers of the clients of `service` up to date; `netns` is the node's.
    // Simplified: in large clusters, what an endpoint's chain remembers goes with its last rule, at
    // once, and not with the chain, up to a sync period later.
    pub fn catch_up(&mut self, service: ServiceId, node: NodeId, now: SimTime, netns: &mut Netns) {
        let holder = match self.mode {
            Mode::Central(..) if node.index() == self.local.len() => LOAD_BALANCER,
            Mode::Central(..) => return,
            _ => node,
        };
        let ServiceState { history, ports, seen } = &mut self.services[service];
        let Some(seen) = seen.as_mut().map(|seen| seen.of(holder)) else {
            return;
        };
        let Some(mut before) = history.get(*seen) else {
            return;
        };
        for version in history.held_since(holder, *seen, now) {
            for (index, &port) in ports.iter().enumerate() {
                let old = &before.content.ports[index].endpoints;
                let new = &version.content.ports[index];
                match &mut self.mode {
                    Mode::Iptables(mode) | Mode::Central(mode, _) => {
                        for endpoint in gone(old, &new.endpoints) {
                            if let Some(list) = mode.chain_of(port, endpoint) {
                                netns.memory_mut().forget_recent(list);
                            }
                        }
                    }
                    Mode::Nftables(mode) => {
                        if let Made::Nft(rules) = &new.made {
                            mode.replaced((node, port), rules, version.live(holder), netns);
                        }
                    }
                    Mode::Ebpf(mode) => {
                        for endpoint in gone(old, &new.endpoints) {
                            mode.forget_clients_of(node, port, endpoint);
                        }
                    }
                    Mode::Userspace(mode) => mode.keep_clients(node, port, &new.endpoints),
                    Mode::Ipvs(_) | Mode::Article(_) => {}
                }
            }
            before = version;
        }
        *seen = before.ordinal;
    }

    /// Forgets all clients of a node whose rules were removed; `netns` is the node's.
    pub fn forget_clients(&mut self, node: NodeId, netns: &mut Netns) {
        match &mut self.mode {
            Mode::Iptables(_) => netns.memory_mut().forget_all_recent(),
            Mode::Nftables(mode) => mode.forget_clients(node, netns),
            // What another program removes is rules of nodes.
            Mode::Ipvs(_)
            | Mode::Userspace(_)
            | Mode::Ebpf(_)
            | Mode::Central(..)
            | Mode::Article(_) => {}
        }
    }
}

/// Returns the endpoints of `old` whose address and port `new` has not.
fn gone<'a>(old: &'a [Endpoint], new: &[Endpoint]) -> impl Iterator<Item = &'a Endpoint> + use<'a> {
    let place = |endpoint: &Endpoint| (endpoint.addr, endpoint.port);
    let same = |(a, b): &(&Endpoint, &Endpoint)| place(a) == place(b);
    // One change leaves most of a list alone.
    let prefix = old.iter().zip(new).take_while(same).count();
    let (old, new) = (&old[prefix..], &new[prefix..]);
    let suffix = old.iter().rev().zip(new.iter().rev()).take_while(same).count();
    let (old, new) = (&old[..old.len() - suffix], &new[..new.len() - suffix]);
    let new: BTreeSet<(Ipv4Addr, u16)> = new.iter().map(place).collect();
    old.iter().filter(move |endpoint| !new.contains(&place(endpoint)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::PodId;

    fn endpoints(last: &[u8]) -> Vec<Endpoint> {
        let endpoint = |&last: &u8| Endpoint {
            pod: PodId::from_index(last.into()),
            addr: Ipv4Addr::new(10, 0, 0, last),
            port: 80,
        };
        last.iter().map(endpoint).collect()
    }

    #[test]
    fn who_is_gone_is_found_wherever_it_stood() {
        for (old, new, expected) in [
            (&[1, 2, 3][..], &[1, 2, 3][..], &[][..]),
            (&[1, 2, 3], &[2, 3], &[1]),
            (&[1, 2, 3], &[1, 3, 4], &[2]),
            (&[1, 2, 3], &[0, 1, 2], &[3]),
            (&[1, 2], &[3, 4, 5], &[1, 2]),
            (&[2, 5], &[1, 2, 3, 5], &[]),
            (&[1, 2, 3], &[], &[1, 2, 3]),
            (&[], &[1], &[]),
        ] {
            let (old, new) = (endpoints(old), endpoints(new));
            let gone: Vec<Endpoint> = gone(&old, &new).copied().collect();
            assert_eq!(gone, endpoints(expected), "{old:?} {new:?}");
        }
    }
}
