//! The network of a case: one node, and what stands around it.
//!
//! ```text
//!   a1 a2 a3 ── cni0 (bridge) ─┐             ┌─ eth0 ── n2 (10.244.2.0/24), ext, gw
//!        r1 ── cali1 ──────────┤    node     ├─ eth1 ── far (192.168.7.9, 203.0.113.0/24)
//!                              └─────────────┘
//!                                lo, dummy0 (10.96.0.200)
//! ```
//!
//! Everything but the node is played by this program, which reads and writes frames: no other
//! kernel answers anything.

use std::net::IpAddr;

use netfilter_model::{DeviceId, DeviceName};
use serde::{Deserialize, Serialize};

/// An address family.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Family {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

/// Where packets come from and arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Place {
    /// A pod on the bridge.
    A1,
    /// A pod on the bridge.
    A2,
    /// A pod on the bridge.
    A3,
    /// A pod with a route of its own.
    R1,
    /// Another node, with pods behind it.
    N2,
    /// A neighbour of the node.
    Ext,
    /// The default gateway.
    Gw,
    /// A neighbour on the other network, with a network behind it.
    Far,
    /// The node itself.
    Node,
}

impl Place {
    /// All places around the node.
    pub(super) const AROUND: [Place; 8] =
        [Place::A1, Place::A2, Place::A3, Place::R1, Place::N2, Place::Ext, Place::Gw, Place::Far];

    /// Returns its address.
    pub(super) fn address(self, family: Family) -> IpAddr {
        let (four, six) = match self {
            Place::A1 => ("10.244.1.2", "fd00:244:1::2"),
            Place::A2 => ("10.244.1.3", "fd00:244:1::3"),
            Place::A3 => ("10.244.1.4", "fd00:244:1::4"),
            Place::R1 => ("10.244.3.2", "fd00:244:3::2"),
            Place::N2 => ("172.18.0.3", "fd00:18::3"),
            Place::Ext => ("172.18.0.9", "fd00:18::9"),
            Place::Gw => ("172.18.0.1", "fd00:18::1"),
            Place::Far => ("192.168.7.9", "fd00:7::9"),
            Place::Node => ("172.18.0.2", "fd00:18::2"),
        };
        parse(family, four, six)
    }

    /// Returns the node's device toward it.
    pub(super) const fn device(self) -> DeviceId {
        match self {
            Place::A1 | Place::A2 | Place::A3 => CNI0,
            Place::R1 => CALI1,
            Place::N2 | Place::Ext | Place::Gw => ETH0,
            Place::Far => ETH1,
            Place::Node => LO,
        }
    }

    /// Returns the bridge's port toward it.
    pub(super) const fn port(self) -> Option<DeviceId> {
        match self {
            Place::A1 => Some(VA1),
            Place::A2 => Some(VA2),
            Place::A3 => Some(VA3),
            _ => None,
        }
    }

    /// Returns which cable leads to it: the bridge's port, or the device.
    pub(super) const fn cable(self) -> DeviceId {
        match self.port() {
            Some(port) => port,
            None => self.device(),
        }
    }

    /// Returns its hardware address.
    pub(super) const fn mac(self) -> [u8; 6] {
        [2, 0, 0, 0, 2, self as u8 + 1]
    }

    /// Returns the place of a cable that has a hardware address.
    pub(super) fn on_cable(cable: DeviceId, mac: [u8; 6]) -> Option<Place> {
        Place::AROUND.into_iter().find(|place| place.cable() == cable && place.mac() == mac)
    }

    /// Returns its name.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Place::A1 => "a1",
            Place::A2 => "a2",
            Place::A3 => "a3",
            Place::R1 => "r1",
            Place::N2 => "n2",
            Place::Ext => "ext",
            Place::Gw => "gw",
            Place::Far => "far",
            Place::Node => "node",
        }
    }
}

/// The loopback device.
pub(super) const LO: DeviceId = DeviceId(0);
/// The fabric.
pub(super) const ETH0: DeviceId = DeviceId(1);
/// The other network.
pub(super) const ETH1: DeviceId = DeviceId(2);
/// The bridge.
pub(super) const CNI0: DeviceId = DeviceId(3);
/// To the routed pod.
pub(super) const CALI1: DeviceId = DeviceId(4);
/// A port of the bridge.
pub(super) const VA1: DeviceId = DeviceId(5);
/// A port of the bridge.
pub(super) const VA2: DeviceId = DeviceId(6);
/// A port of the bridge.
pub(super) const VA3: DeviceId = DeviceId(7);
/// Holds an address that no cable leads to.
pub(super) const DUMMY0: DeviceId = DeviceId(8);

/// Names of the node's devices, by their number.
pub(super) const DEVICES: [&str; 9] =
    ["lo", "eth0", "eth1", "cni0", "cali1", "va1", "va2", "va3", "dummy0"];

/// The devices with a cable.
pub(super) const CABLES: [DeviceId; 6] = [ETH0, ETH1, CALI1, VA1, VA2, VA3];

/// Returns the name of a device.
pub(super) fn device_name(dev: DeviceId) -> DeviceName {
    DeviceName::parse(DEVICES[dev.0 as usize]).expect("a device name")
}

/// Returns a device's hardware address.
pub(super) const fn device_mac(dev: DeviceId) -> [u8; 6] {
    [2, 0, 0, 0, 1, dev.0 as u8]
}

/// The node's own addresses: device, and address with prefix length in both families.
pub(super) const OWN: [(DeviceId, &str, &str); 6] = [
    (LO, "127.0.0.1/8", "::1/128"),
    (ETH0, "172.18.0.2/24", "fd00:18::2/64"),
    (ETH1, "192.168.7.1/24", "fd00:7::1/64"),
    (CNI0, "10.244.1.1/24", "fd00:244:1::1/64"),
    (CALI1, "10.244.3.1/32", "fd00:244:3::1/128"),
    (DUMMY0, "10.96.0.200/32", "fd00:96::200/128"),
];

/// Networks behind a neighbour.
pub(super) const BEHIND: [(Place, &str, &str); 3] = [
    (Place::N2, "10.244.2.0/24", "fd00:244:2::/64"),
    (Place::Far, "203.0.113.0/24", "fd00:203::/64"),
    (Place::R1, "10.244.3.2/32", "fd00:244:3::2/128"),
];

/// Networks that nothing is sent to, by the kind of their route.
pub(super) const REFUSED: [(&str, &str, &str); 3] = [
    ("unreachable", "10.99.0.0/16", "fd00:99::/64"),
    ("blackhole", "10.98.0.0/16", "fd00:98::/64"),
    ("prohibit", "10.97.0.0/16", "fd00:97::/64"),
];

/// The port at which the node has a UDP socket.
pub(super) const NODE_UDP: u16 = 5353;

/// Returns the address of the family.
pub(super) fn parse(family: Family, four: &str, six: &str) -> IpAddr {
    let text = if family == Family::V4 { four } else { six };
    text.split('/').next().unwrap_or(text).parse().expect("an address")
}

/// Returns the node's address on a device.
pub(super) fn own(family: Family, dev: DeviceId) -> Option<IpAddr> {
    let found = OWN.iter().find(|(of, ..)| *of == dev);
    found.map(|(_, four, six)| parse(family, four, six))
}

/// What may differ between the nodes of two cases.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Settings {
    /// The family of all packets.
    pub(super) family: Family,
    /// `bridge-nf-call-iptables` and `-ip6tables`.
    pub(super) bridge_nf: bool,
    /// `route_localnet` of all devices.
    pub(super) route_localnet: bool,
    /// The ports of the bridge send frames back where they came from.
    pub(super) hairpin: bool,
    /// There is a default route.
    pub(super) default_route: bool,
}
