//! What the model asks of the world around it: routes, addresses, device names, random numbers.

use std::net::IpAddr;

use crate::device::{DeviceId, DeviceName};
use crate::rule::AddrType;
use crate::time::SimTime;

/// A question to the routing table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RouteQuery {
    /// Where the packet goes.
    pub dst: IpAddr,
    /// Where it comes from.
    pub src: IpAddr,
    /// Its mark.
    pub mark: u32,
    /// The device that it came in by; `None` for a packet made here.
    pub in_dev: Option<DeviceId>,
}

/// An answer of the routing table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Route {
    /// An address of this host.
    Local,
    /// Out of a device, to a neighbour.
    Forward {
        /// The device.
        dev: DeviceId,
        /// The neighbour: a gateway, or the destination itself.
        next_hop: IpAddr,
    },
    /// Back out of the bridge by which the packet came in, as a frame: the hooks are those of a
    /// forwarded packet with the bridge as both devices, but the TTL stays.
    Bridged {
        /// The bridge.
        dev: DeviceId,
        /// The neighbour.
        next_hop: IpAddr,
    },
    /// An `unreachable` route: ICMP host unreachable.
    Unreachable,
    /// A `prohibit` route: ICMP administratively prohibited.
    Prohibited,
    /// A `blackhole` route, or a packet that the host refuses silently (martian, reverse path).
    Blackhole,
    /// No route at all: ICMP net unreachable.
    NoRoute,
}

/// The host around a network namespace's rules.
///
/// Used as a type parameter: the hot path makes no dynamic calls.
pub trait Host {
    /// Returns where a packet goes.
    fn route(&self, query: RouteQuery) -> Route;

    /// Returns what the local routing table says about an address; with `on`, an address counts
    /// as local only if it belongs to that device.
    fn addr_type(&self, addr: IpAddr, on: Option<DeviceId>) -> AddrType;

    /// Returns the address of a device from which a packet to that neighbour is best sent: what
    /// MASQUERADE and REDIRECT take and ICMP errors come from.
    fn masquerade_address(&self, dev: DeviceId, next_hop: IpAddr) -> Option<IpAddr>;

    /// Returns the loopback device.
    fn loopback(&self) -> DeviceId;

    /// Returns the name of a device.
    fn device_name(&self, dev: DeviceId) -> DeviceName;
}

/// Random numbers for the packet that is being looked at.
pub trait Draws {
    /// Returns 64 uniform random bits. `ordinal` counts the draws of this packet in this network
    /// namespace from 0; implementations may compute the bits from it.
    fn draw(&mut self, ordinal: u32) -> u64;
}

/// Draws by a function of the ordinal.
impl<F: FnMut(u32) -> u64> Draws for F {
    fn draw(&mut self, ordinal: u32) -> u64 {
        self(ordinal)
    }
}

/// What is around a packet at one instant.
#[derive(Debug)]
pub struct Env<'e, H, R, D> {
    /// The time.
    pub now: SimTime,
    /// The host.
    pub host: &'e H,
    /// Its rules.
    pub rules: &'e R,
    /// Random numbers.
    pub draws: &'e mut D,
}
