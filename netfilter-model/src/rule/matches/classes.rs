//! Classes of connections and of addresses, and sets of them that rules ask for.

use std::ops::BitOr;

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

    pub(crate) const fn bits(self) -> u8 {
        self.0
    }

    /// Returns whether any state is in both sets.
    #[inline]
    pub const fn intersects(self, other: CtStates) -> bool {
        self.0 & other.0 != 0
    }

    const NAMES: [&str; 7] =
        ["INVALID", "NEW", "RELATED", "ESTABLISHED", "UNTRACKED", "SNAT", "DNAT"];

    /// Returns the set of the one state of a name.
    pub fn named(name: &str) -> Option<CtStates> {
        let bit = CtStates::NAMES.iter().position(|known| known.eq_ignore_ascii_case(name))?;
        Some(CtStates(1 << bit))
    }

    /// Returns the names in the order in which iptables prints them.
    pub fn names(self) -> impl Iterator<Item = &'static str> + Clone {
        (0..7).filter(move |bit| self.0 & 1 << bit != 0).map(|bit| CtStates::NAMES[bit])
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
    /// What a blackhole route covers; the local table holds none.
    Blackhole,
    /// What an unreachable route covers; the local table holds none.
    Unreachable,
    /// What a prohibit route covers; the local table holds none.
    Prohibit,
    /// What a throw route covers; the local table holds none.
    Throw,
    /// Obsolete.
    Nat,
    /// Obsolete.
    Xresolve,
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

    const NAMES: [&str; 12] = [
        "UNSPEC",
        "UNICAST",
        "LOCAL",
        "BROADCAST",
        "ANYCAST",
        "MULTICAST",
        "BLACKHOLE",
        "UNREACHABLE",
        "PROHIBIT",
        "THROW",
        "NAT",
        "XRESOLVE",
    ];

    /// Returns the set of the one type of a name.
    pub fn named(name: &str) -> Option<AddrTypes> {
        let bit = AddrTypes::NAMES.iter().position(|known| known.eq_ignore_ascii_case(name))?;
        Some(AddrTypes(1 << bit))
    }

    /// Returns the types of either set.
    pub const fn union(self, other: AddrTypes) -> AddrTypes {
        AddrTypes(self.0 | other.0)
    }

    /// Returns the names in the order in which iptables prints them.
    pub fn names(self) -> impl Iterator<Item = &'static str> + Clone {
        (0..12).filter(move |bit| self.0 & 1 << bit != 0).map(|bit| AddrTypes::NAMES[bit])
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

/// A set of facts about a connection, as `--ctstatus` knows them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CtStatuses(pub u8);

impl CtStatuses {
    /// The names with their bits, in the order in which iptables prints them; `NONE` is none.
    // Kernel: uapi/linux/netfilter/nf_conntrack_common.h, enum ip_conntrack_status
    pub const NAMES: [(&'static str, u8); 4] =
        [("EXPECTED", 0x01), ("SEEN_REPLY", 0x02), ("ASSURED", 0x04), ("CONFIRMED", 0x08)];
}
