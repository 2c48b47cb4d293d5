//! Links: how frames get from one device to another, and who is whose neighbour.

use std::collections::BTreeSet;

use super::config::{Device, DeviceKind, MacAddr};
use super::{Frame, MTU, Network, NodeId, Sight};
use crate::device::DeviceId;
use crate::netns::Egress;
use crate::packet::Packet;

/// A device that takes frames for itself: an Ethernet device, or a bridge behind its ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Station {
    node: NodeId,
    dev: DeviceId,
    mac: MacAddr,
}

impl Network {
    /// Joins devices by a segment, as a cable or a switch does. A device joined before leaves its
    /// old segment.
    pub fn join(&mut self, ends: &[(NodeId, DeviceId)]) {
        let at = self.segments.len();
        for end in ends {
            if let Some(old) = self.segment_of.insert(*end, at) {
                self.segments[old].retain(|other| other != end);
            }
        }
        self.segments.push(ends.to_vec());
    }

    /// Tells every host who its neighbours are and every bridge what is behind its ports.
    ///
    /// To be called when hosts, addresses and links are complete, and again after a change.
    pub fn introduce(&mut self) {
        for at in 0..self.nodes.len() {
            let id = NodeId(at as u32);
            let devices = self.nodes[at].host.devices.len() as u32;
            for dev in (0..devices).map(DeviceId) {
                let kind = self.nodes[at].host.devices[dev.0 as usize].kind;
                match kind {
                    DeviceKind::Loopback => {}
                    DeviceKind::Ethernet => {
                        let met = self.behind(id, dev);
                        self.meet(id, dev, &met);
                    }
                    DeviceKind::Port { bridge, .. } => {
                        let met = self.behind(id, dev);
                        for station in &met {
                            self.nodes[at].host.add_station(bridge, station.mac, dev);
                        }
                        self.meet(id, bridge, &met);
                    }
                    DeviceKind::Bridge => {}
                }
            }
        }
    }

    /// Notes the addresses of stations: those of their devices, and then all others of their
    /// hosts, which answer for them too.
    // Kernel: arp.c, arp_process: arp_ignore is 0
    fn meet(&mut self, id: NodeId, dev: DeviceId, met: &[Station]) {
        for own in [true, false] {
            for station in met {
                let other = &self.nodes[station.node.0 as usize].host;
                let known: Vec<_> = other
                    .addresses()
                    .filter(|(on, address)| {
                        (*on == station.dev) == own && !address.addr.is_loopback()
                    })
                    .map(|(_, address)| address.addr)
                    .collect();
                let neighbours = &mut self.nodes[id.0 as usize].host.neighbours;
                for addr in known {
                    if own {
                        neighbours.insert((dev, addr), station.mac);
                    } else {
                        neighbours.entry((dev, addr)).or_insert(station.mac);
                    }
                }
            }
        }
    }

    /// Returns the stations that a frame reaches which leaves by a device.
    fn behind(&self, id: NodeId, dev: DeviceId) -> Vec<Station> {
        let mut seen = BTreeSet::from([(id, dev)]);
        let mut found = BTreeSet::new();
        self.search(id, dev, &mut seen, &mut found);
        found.into_iter().collect()
    }

    fn search(
        &self,
        id: NodeId,
        dev: DeviceId,
        seen: &mut BTreeSet<(NodeId, DeviceId)>,
        found: &mut BTreeSet<Station>,
    ) {
        let Some(segment) = self.segment_of.get(&(id, dev)) else {
            return;
        };
        for (node, end) in self.segments[*segment].clone() {
            if !seen.insert((node, end)) {
                continue;
            }
            let host = &self.nodes[node.0 as usize].host;
            let Some(device) = host.device(end) else {
                continue;
            };
            let DeviceKind::Port { bridge, .. } = device.kind else {
                found.insert(Station { node, dev: end, mac: device.mac });
                continue;
            };
            if let Some(device) = host.device(bridge) {
                found.insert(Station { node, dev: bridge, mac: device.mac });
            }
            for (at, other) in host.devices.iter().enumerate() {
                let port = DeviceId(at as u32);
                let same =
                    matches!(other.kind, DeviceKind::Port { bridge: of, .. } if of == bridge);
                if same && seen.insert((node, port)) {
                    self.search(node, port, seen, found);
                }
            }
        }
    }

    /// Sends a packet that has passed the hooks; `mac` is where its frame goes, if that is known.
    pub(super) fn egress(&mut self, id: NodeId, egress: Egress, mac: Option<MacAddr>) {
        let Egress { packet, dev, port, next_hop, piece_max, .. } = egress;
        let packet = Packet { mark: 0, ..packet };
        let host = &self.nodes[id.0 as usize].host;
        let lost = Sight::Lost { node: id, packet };
        let bridged = mac.filter(|_| port.is_some());
        let Some(to) = bridged.or_else(|| host.neighbour(dev, next_hop)) else {
            self.sights.push(lost);
            return;
        };
        let Some(device) = host.device(dev) else {
            return;
        };
        let is_bridge = device.kind == DeviceKind::Bridge;
        let from = device.mac;
        let port = port.or_else(|| if is_bridge { host.port_of(dev, to) } else { Some(dev) });
        let Some(port) = port else {
            self.sights.push(lost);
            return;
        };
        // Kernel: ip_output.c, ip_finish_output: what came in pieces leaves in pieces.
        if packet.fragment.is_none() && (piece_max > 0 || packet.len > MTU) {
            let most = (MTU - packet.header_len()) as u16;
            let piece = if piece_max > 0 { piece_max.min(most) } else { most };
            for part in packet.cut(piece) {
                self.transmit(id, port, from, to, part);
            }
            return;
        }
        self.transmit(id, port, from, to, packet);
    }

    /// Puts a frame on the link of a device.
    pub(super) fn transmit(
        &mut self,
        id: NodeId,
        dev: DeviceId,
        source: MacAddr,
        destination: MacAddr,
        packet: Packet,
    ) {
        let Some(segment) = self.segment_of.get(&(id, dev)) else {
            return;
        };
        let ends = &self.segments[*segment];
        for (node, end) in ends {
            // A switch has learned who is where.
            let leads = ends.len() == 2 || self.leads_to(*node, *end, destination);
            if leads && (*node, *end) != (id, dev) {
                let (node, dev) = (*node, *end);
                self.frames.push_back(Frame { node, dev, source, destination, packet });
            }
        }
    }

    fn leads_to(&self, id: NodeId, dev: DeviceId, mac: MacAddr) -> bool {
        let host = &self.nodes[id.0 as usize].host;
        match host.device(dev) {
            Some(Device { kind: DeviceKind::Port { bridge, .. }, .. }) => {
                host.is_bridge_mac(*bridge, mac)
                    || host.port_of(*bridge, mac).is_some_and(|port| port != dev)
            }
            Some(device) => device.mac == mac,
            None => false,
        }
    }
}
