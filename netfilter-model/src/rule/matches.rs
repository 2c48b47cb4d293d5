//! What a rule asks of a packet.

use std::ops::BitOr;
use std::sync::Arc;

use crate::device::DevicePattern;
use crate::packet::TcpFlags;
use crate::prefix::Prefix;
use crate::rule::random::Probability;
use crate::tuple::Protocol;

/// One condition of a rule.
///
/// The first five belong to the rule's header: the kernel checks them before the others, and
/// iptables prints them first. [`crate::rule::Rule`] keeps them in that order.
#[derive(Clone, Debug, PartialEq)]
pub enum Match {
    /// `-s`.
    Source {
        /// Where the source must lie.
        prefix: Prefix,
        /// Or must not.
        invert: bool,
    },
    /// `-d`.
    Destination {
        /// Where the destination must lie.
        prefix: Prefix,
        /// Or must not.
        invert: bool,
    },
    /// `-i`.
    InDevice(Box<DeviceMatch>),
    /// `-o`.
    OutDevice(Box<DeviceMatch>),
    /// `-p`.
    Protocol {
        /// The protocol.
        protocol: Protocol,
        /// Any but it.
        invert: bool,
    },
    /// `-m tcp`.
    Tcp {
        /// `--sport`.
        sport: Option<PortMatch>,
        /// `--dport`.
        dport: Option<PortMatch>,
        /// `--tcp-flags` or `--syn`.
        flags: Option<FlagsMatch>,
    },
    /// `-m udp`.
    Udp {
        /// `--sport`.
        sport: Option<PortMatch>,
        /// `--dport`.
        dport: Option<PortMatch>,
    },
    /// `-m icmp --icmp-type`.
    Icmp {
        /// The type.
        kind: u8,
        /// The code; `None` is any.
        code: Option<u8>,
        /// Any but these.
        invert: bool,
    },
    /// `-m mark`: (mark AND mask) = value; the value is not masked.
    Mark {
        /// The wanted value.
        value: u32,
        /// The bits that are looked at.
        mask: u32,
        /// Any but it.
        invert: bool,
    },
    /// `-m conntrack --ctstate`.
    CtState {
        /// The wanted states.
        states: CtStates,
        /// None of them.
        invert: bool,
    },
    /// `-m addrtype`.
    AddrType {
        /// `--src-type`.
        src: Option<AddrTypeMatch>,
        /// `--dst-type`.
        dst: Option<AddrTypeMatch>,
        /// `--limit-iface-in`: local counts only on the input device.
        limit_iface_in: bool,
    },
    /// `-m comment`: always true.
    Comment(Arc<str>),
    /// `-m statistic --mode random`.
    Random {
        /// How often.
        probability: Probability,
        /// The complement.
        invert: bool,
    },
    /// `-m statistic --mode nth`: every n-th packet that reaches this match.
    Nth {
        /// The period.
        every: u32,
        /// Which packet of the first period, counted from 0.
        packet: u32,
        /// The others.
        invert: bool,
    },
}

/// A device pattern with its negation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceMatch {
    /// The name or prefix.
    pub pattern: DevicePattern,
    /// Any other device.
    pub invert: bool,
}

/// A range of ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortMatch {
    /// The first port.
    pub min: u16,
    /// The last port.
    pub max: u16,
    /// Any but these.
    pub invert: bool,
}

impl PortMatch {
    /// Returns a match for one port.
    pub const fn one(port: u16) -> PortMatch {
        PortMatch { min: port, max: port, invert: false }
    }

    /// Returns a match for a range.
    pub const fn range(min: u16, max: u16) -> PortMatch {
        PortMatch { min, max, invert: false }
    }

    /// Returns the complement.
    pub const fn inverted(self) -> PortMatch {
        PortMatch { invert: !self.invert, ..self }
    }

    /// Returns whether the port fits.
    #[inline]
    pub const fn matches(self, port: u16) -> bool {
        (self.min <= port && port <= self.max) != self.invert
    }

    /// Returns the port, if exactly one fits.
    pub const fn exact(self) -> Option<u16> {
        if self.min == self.max && !self.invert { Some(self.min) } else { None }
    }
}

/// `--tcp-flags MASK SET`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlagsMatch {
    /// The flags that are looked at.
    pub mask: TcpFlags,
    /// Those of them that must be set; the others must not.
    pub set: TcpFlags,
    /// Any other combination.
    pub invert: bool,
}

impl FlagsMatch {
    /// `--syn`.
    pub const SYN: FlagsMatch =
        FlagsMatch { mask: TcpFlags::FIN_SYN_RST_ACK, set: TcpFlags::SYN, invert: false };
}

/// A set of connection-tracking states, as `--ctstate` knows them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CtStates(u8);

impl CtStates {
    /// Connection tracking cannot make sense of the packet.
    pub const INVALID: CtStates = CtStates(0x01);
    /// A connection of which no answer was seen.
    pub const NEW: CtStates = CtStates(0x02);
    /// A packet about another connection.
    pub const RELATED: CtStates = CtStates(0x04);
    /// A connection that was answered, or the answer.
    pub const ESTABLISHED: CtStates = CtStates(0x08);
    /// Exempt from tracking.
    pub const UNTRACKED: CtStates = CtStates(0x10);
    /// The connection's source was rewritten.
    pub const SNAT: CtStates = CtStates(0x20);
    /// The connection's destination was rewritten.
    pub const DNAT: CtStates = CtStates(0x40);

    /// Returns whether any state is in both sets.
    #[inline]
    pub const fn intersects(self, other: CtStates) -> bool {
        self.0 & other.0 != 0
    }

    /// Returns the names in the order in which iptables prints them.
    pub fn names(self) -> impl Iterator<Item = &'static str> + Clone {
        const NAMES: [&str; 7] =
            ["INVALID", "NEW", "RELATED", "ESTABLISHED", "UNTRACKED", "SNAT", "DNAT"];
        (0..7).filter(move |bit| self.0 & 1 << bit != 0).map(|bit| NAMES[bit])
    }
}

impl BitOr for CtStates {
    type Output = CtStates;

    fn bitor(self, other: CtStates) -> CtStates {
        CtStates(self.0 | other.0)
    }
}

/// What the local routing table says about an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum AddrType {
    /// Not specified.
    Unspec,
    /// Everything that is none of the others, unroutable addresses included.
    Unicast,
    /// An address of this host, on whatever device.
    Local,
    /// The broadcast address of a local subnet.
    Broadcast,
    /// An anycast address.
    Anycast,
    /// A multicast address.
    Multicast,
}

/// A set of address types.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AddrTypes(u16);

impl AddrTypes {
    /// Returns the set of these types.
    pub const fn of(types: &[AddrType]) -> AddrTypes {
        let mut set = 0;
        let mut i = 0;
        while i < types.len() {
            set |= 1 << types[i] as u16;
            i += 1;
        }
        AddrTypes(set)
    }

    /// Returns whether the type is in the set.
    pub const fn contains(self, kind: AddrType) -> bool {
        self.0 & 1 << kind as u16 != 0
    }

    /// Returns the names in the order in which iptables prints them.
    pub fn names(self) -> impl Iterator<Item = &'static str> + Clone {
        const NAMES: [&str; 6] =
            ["UNSPEC", "UNICAST", "LOCAL", "BROADCAST", "ANYCAST", "MULTICAST"];
        (0..6).filter(move |bit| self.0 & 1 << bit != 0).map(|bit| NAMES[bit])
    }
}

/// Address types with their negation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AddrTypeMatch {
    /// The wanted types.
    pub types: AddrTypes,
    /// None of them.
    pub invert: bool,
}

impl Match {
    /// Returns the place in the rule's header, or `None` for a match that stands behind it.
    pub(crate) fn header_place(&self) -> Option<u8> {
        Some(match self {
            Match::Source { .. } => 0,
            Match::Destination { .. } => 1,
            Match::InDevice(_) => 2,
            Match::OutDevice(_) => 3,
            Match::Protocol { .. } => 4,
            _ => return None,
        })
    }

    /// Returns whether reaching this match changes something: takes a draw or a count.
    pub(crate) fn has_effect(&self) -> bool {
        matches!(self, Match::Random { .. } | Match::Nth { .. })
    }
}
