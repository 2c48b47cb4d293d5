//! What the model asks of the world around it: routes, addresses, device names, random numbers.

use std::net::IpAddr;

use crate::conntrack::{CtInfo, Direction};
use crate::device::{DeviceId, DeviceName};
use crate::hook::Hook;
use crate::packet::Packet;
use crate::rule::{AddrType, ChainId, FrameKind, Policy, Probability, RuleRef, TableId};
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
        /// The port by which it leaves, if the host knows its ports.
        port: Option<DeviceId>,
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

/// How a packet came in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ingress {
    /// The device: the bridge, for a frame that came in by a port of one.
    pub dev: DeviceId,
    /// The port of the bridge.
    pub port: Option<DeviceId>,
    /// The frame's source address.
    pub source: Option<[u8; 6]>,
    /// The frame's destination address.
    pub destination: Option<[u8; 6]>,
    /// How the frame was addressed.
    pub kind: FrameKind,
}

impl Ingress {
    /// Returns the arrival of a unicast frame by a device.
    pub const fn by(dev: DeviceId) -> Ingress {
        let (port, source, destination) = (None, None, None);
        Ingress { dev, port, source, destination, kind: FrameKind::Unicast }
    }
}

/// A question to a bridge about a frame that has passed PREROUTING in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BridgeQuery {
    /// How the frame came in.
    pub ingress: Ingress,
    /// The packet's route, as the host would ask for it.
    pub packet: RouteQuery,
    /// PREROUTING has changed the packet's destination.
    pub rewritten: bool,
}

/// The socket that a packet comes from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Socket {
    /// The user that owns it.
    pub uid: u32,
    /// The group.
    pub gid: u32,
}

impl Socket {
    /// One of the kernel's own, from which it resets connections over IPv4 and sends ICMP: nobody
    /// owns it. A reset over IPv6 comes from no socket.
    pub const KERNEL: Socket = Socket { uid: u32::MAX, gid: u32::MAX };
}

/// The host around a network namespace's rules.
///
/// Used as a type parameter: the hot path makes no dynamic calls.
pub trait Host {
    /// Returns where a packet goes.
    fn route(&self, query: RouteQuery) -> Route;

    /// Returns where a frame goes that came in by a port of a bridge and has passed PREROUTING
    /// there ([`Route::Bridged`], or [`Route::Blackhole`] if the bridge keeps it), or `None` if it
    /// is handed up to be routed.
    // Kernel: br_netfilter_hooks.c, br_nf_pre_routing_finish
    fn bridge(&self, _query: BridgeQuery) -> Option<Route> {
        None
    }

    /// Returns what the local routing table says about an address; with `on`, an address counts
    /// as local only if it belongs to that device.
    fn addr_type(&self, addr: IpAddr, on: Option<DeviceId>) -> AddrType;

    /// Returns the address of a device from which a packet to that neighbour is best sent: what
    /// MASQUERADE takes.
    fn masquerade_address(&self, dev: DeviceId, next_hop: IpAddr) -> Option<IpAddr>;

    /// Returns the largest IP packet that a device sends.
    fn mtu(&self, _dev: DeviceId) -> u16 {
        1500
    }

    /// Returns the address of an input device that REDIRECT takes.
    fn redirect_address(&self, dev: DeviceId, src: IpAddr) -> Option<IpAddr> {
        self.masquerade_address(dev, src)
    }

    /// Returns the address that a packet gets which this host makes and sends by a route: what
    /// sockets without an address of their own and ICMP errors come from.
    fn source_address(&self, query: RouteQuery, route: Route) -> Option<IpAddr> {
        match route {
            Route::Local => Some(query.dst),
            Route::Forward { dev, next_hop } | Route::Bridged { dev, next_hop, .. } => {
                self.masquerade_address(dev, next_hop)
            }
            Route::Unreachable | Route::Prohibited | Route::Blackhole | Route::NoRoute => None,
        }
    }

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

    /// Decides whether something happens that has this probability.
    fn chance(&mut self, ordinal: u32, probability: Probability) -> bool {
        probability.matches(self.draw(ordinal))
    }

    /// Returns a number below `modulus`, each equally likely but for the rounding of nftables'
    /// `numgen random`.
    // Kernel: nft_numgen.c, nft_ng_random_gen and reciprocal_scale
    fn below(&mut self, ordinal: u32, modulus: u32) -> u32 {
        (((self.draw(ordinal) >> 32) * u64::from(modulus)) >> 32) as u32
    }

    /// Decides whether a condition holds that cannot be modelled. A sampling caller takes it for
    /// false, having warned its user; an exact one follows both.
    fn unsupported(&mut self, _rule: RuleRef) -> bool {
        false
    }

    /// Is told what happens to the packet, step by step.
    #[inline]
    fn note(&mut self, _note: Note<'_>) {}
}

/// A step of a packet's way.
#[derive(Clone, Copy, Debug)]
pub enum Note<'n> {
    /// The packet enters a hook.
    Hook(Hook, &'n Packet),
    /// All conditions of a rule hold; the packet as the rule found it and as it left it.
    Rule {
        /// The hook.
        hook: Hook,
        /// The rule.
        rule: RuleRef,
        /// The packet before.
        before: &'n Packet,
        /// The packet after.
        after: &'n Packet,
    },
    /// A built-in chain ended without a verdict.
    Policy {
        /// The hook.
        hook: Hook,
        /// The table.
        table: TableId,
        /// The chain.
        chain: ChainId,
        /// Whether the packet passes.
        policy: Policy,
    },
    /// What connection tracking says.
    Tracked {
        /// The hook.
        hook: Hook,
        /// What it says, or `None` if it does not look.
        info: Option<(CtInfo, Direction)>,
        /// The packet's connection was not known.
        new: bool,
    },
    /// A connection's packet was rewritten.
    Translated {
        /// The hook.
        hook: Hook,
        /// Before.
        before: &'n Packet,
        /// After.
        after: &'n Packet,
    },
    /// A routing decision.
    Routed {
        /// The hook behind which it was made.
        hook: Hook,
        /// What was asked.
        query: RouteQuery,
        /// The answer.
        route: Route,
    },
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
