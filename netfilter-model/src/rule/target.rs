//! What a rule does with a packet that it matches.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::packet::IcmpError;
use crate::prefix::Prefix;
use std::sync::Arc;

use crate::rule::ChainId;
use crate::rule::matches::{SetSide, Unsupported};

/// What a rule does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// No `-j`: the rule counts, the next one runs.
    None,
    /// The packet passes this table at this hook.
    Accept,
    /// The packet is gone.
    Drop,
    /// As at the end of the chain.
    Return,
    /// The packet is gone and its sender is told.
    Reject(RejectWith),
    /// mark = (mark AND NOT mask) XOR value; the next rule runs.
    Mark {
        /// What is flipped in.
        value: u32,
        /// What is cleared first.
        mask: u32,
    },
    /// `TOS` and `DSCP`: tos = (tos AND NOT mask) XOR value; the next rule runs.
    Tos {
        /// What is flipped in.
        value: u8,
        /// What is cleared first.
        mask: u8,
        /// Written as `DSCP`.
        dscp: bool,
    },
    /// `TTL`, or `HL`; the next rule runs.
    Ttl(TtlChange),
    /// `TCPMSS`: the announced segment size becomes at most this, `--set-mss`; `None` is
    /// `--clamp-mss-to-pmtu`. The next rule runs.
    Tcpmss(Option<u16>),
    /// The connection's mark; the next rule runs.
    Connmark(ConnmarkOp),
    /// `CT` and `NOTRACK`: what connection tracking is to do; the next rule runs.
    Ct(Box<CtTarget>),
    /// An ipset is changed; the next rule runs.
    Set(Box<SetTarget>),
    /// Something that no later rule here sees, such as `LOG`; the next rule runs.
    Continue(Box<Unsupported>),
    /// A target that cannot be modelled: evaluation follows both its dropping the packet and its
    /// letting the next rule run.
    Unsupported(Box<Unsupported>),
    /// The packet is given to a local socket, whatever its destination (`TPROXY`).
    Tproxy(Box<TproxyTarget>),
    /// The connection's addresses are rewritten.
    Nat(Nat),
    /// To a chain, and back at its end.
    Jump(ChainId),
    /// To a chain; its end returns to where this chain was called from.
    Goto(ChainId),
}

impl Target {
    /// `--set-mark value/mask`: also clears the bits of the value.
    pub const fn set_mark(value: u32, mask: u32) -> Target {
        Target::Mark { value, mask: mask | value }
    }

    /// `--or-mark bits`.
    pub const fn or_mark(bits: u32) -> Target {
        Target::Mark { value: bits, mask: bits }
    }

    /// `--and-mark bits`.
    pub const fn and_mark(bits: u32) -> Target {
        Target::Mark { value: 0, mask: !bits }
    }

    /// `--xor-mark bits`.
    pub const fn xor_mark(bits: u32) -> Target {
        Target::Mark { value: bits, mask: 0 }
    }
}

/// What the sender of a rejected packet is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RejectWith {
    /// An ICMP error.
    Icmp(IcmpError),
    /// A TCP segment that resets the connection.
    TcpReset,
}

impl RejectWith {
    /// The default of `REJECT`.
    pub const DEFAULT: RejectWith = RejectWith::Icmp(IcmpError::PortUnreachable);
}

/// What `TTL` does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TtlChange {
    /// `--ttl-set`.
    Set(u8),
    /// `--ttl-inc`.
    Add(u8),
    /// `--ttl-dec`.
    Subtract(u8),
}

/// What `CONNMARK` does, with the kernel's masks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnmarkOp {
    /// ct = (ct AND NOT mask) XOR value.
    Set {
        /// What is flipped in.
        value: u32,
        /// What is cleared first.
        mask: u32,
    },
    /// ct = (ct AND NOT ctmask) XOR (mark AND nfmask).
    Save {
        /// Which bits of the packet's mark.
        nfmask: u32,
        /// Which bits of the connection's mark.
        ctmask: u32,
    },
    /// mark = (mark AND NOT nfmask) XOR (ct AND ctmask).
    Restore {
        /// Which bits of the packet's mark.
        nfmask: u32,
        /// Which bits of the connection's mark.
        ctmask: u32,
    },
}

/// What connection tracking is told before it sees the packet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CtTarget {
    /// `--notrack`, or the target `NOTRACK`.
    pub notrack: bool,
    /// Written as `NOTRACK`, which has no options.
    pub alias: bool,
    /// `--zone`, `--zone-orig`, `--zone-reply`.
    pub zone: Option<(ZoneSide, Zone)>,
    /// Helper, timeout policy, events: as printed. They change no verdict here.
    pub other: Option<Arc<str>>,
}

/// Which tuples a zone belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ZoneSide {
    /// Both.
    Both,
    /// The original one.
    Original,
    /// The reply.
    Reply,
}

/// A zone of connection tracking.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Zone {
    /// This one.
    Id(u16),
    /// The packet's mark.
    Mark,
}

/// What `SET` does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SetTarget {
    /// `--add-set`, `--del-set`, `--map-set`, each with one side per dimension.
    pub add: Option<(Arc<str>, Vec<SetSide>)>,
    /// `--del-set`.
    pub delete: Option<(Arc<str>, Vec<SetSide>)>,
    /// `--exist`: an element that is there gets its timeout anew.
    pub exist: bool,
    /// `--timeout`, in seconds.
    pub timeout: Option<u32>,
    /// `--map-set` and its options, as printed; not modelled.
    pub map: Option<Arc<str>>,
}

/// What `TPROXY` does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TproxyTarget {
    /// `--on-port`; 0 keeps the port.
    pub port: u16,
    /// `--on-ip`; the unspecified address is that of the input device.
    pub address: IpAddr,
    /// `--tproxy-mark`, value and mask.
    pub mark: (u32, u32),
}

/// A rewrite of addresses; only nat chains accept it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Nat {
    /// A new destination.
    Dnat(NatRange),
    /// A new source.
    Snat(NatRange),
    /// The source becomes the address of the output device.
    Masquerade(NatRange),
    /// The destination becomes this host.
    Redirect(NatRange),
    /// The network part becomes that of a prefix; which side, the hook tells.
    Netmap(Prefix),
}

impl Nat {
    /// Returns the range, or `None` for `NETMAP`.
    pub const fn range(&self) -> Option<&NatRange> {
        match self {
            Nat::Dnat(range) | Nat::Snat(range) | Nat::Masquerade(range) | Nat::Redirect(range) => {
                Some(range)
            }
            Nat::Netmap(_) => None,
        }
    }
}

/// What addresses and ports a rewrite may choose.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NatRange {
    /// Addresses.
    pub addresses: NatAddresses,
    /// First and last port, if the port may change other than to settle a clash.
    pub ports: Option<(u16, u16)>,
    /// The port that a DNAT's range of ports is counted from (`p-q/base`).
    pub base_port: Option<u16>,
    /// How the choice is made.
    pub flags: NatFlags,
}

/// The addresses of a rewrite.
// The wide family is boxed, as in prefixes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NatAddresses {
    /// The address stays.
    Keep,
    /// First and last IPv4 address.
    V4(Ipv4Addr, Ipv4Addr),
    /// First and last IPv6 address.
    V6(Box<(Ipv6Addr, Ipv6Addr)>),
}

/// How NAT chooses within a range.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NatFlags {
    /// `--random`.
    pub random: bool,
    /// `--random-fully`.
    pub random_fully: bool,
    /// `--persistent`: the address depends on the client alone.
    pub persistent: bool,
}

impl NatFlags {
    /// Returns whether the port starts at a random place even if the original is free.
    pub const fn any_random(self) -> bool {
        self.random || self.random_fully
    }
}

impl NatRange {
    /// Returns a range that changes nothing but to settle a clash.
    pub const fn keep() -> NatRange {
        let flags = NatFlags { random: false, random_fully: false, persistent: false };
        NatRange { addresses: NatAddresses::Keep, ports: None, base_port: None, flags }
    }

    /// Returns the range of one address.
    pub fn address(address: IpAddr) -> NatRange {
        let addresses = match address {
            IpAddr::V4(address) => NatAddresses::V4(address, address),
            IpAddr::V6(address) => NatAddresses::V6(Box::new((address, address))),
        };
        NatRange { addresses, ..NatRange::keep() }
    }

    /// Returns the range of one address and one port.
    pub fn to(address: IpAddr, port: u16) -> NatRange {
        NatRange { ports: Some((port, port)), ..NatRange::address(address) }
    }

    /// Returns this range with these flags.
    pub fn with_flags(self, flags: NatFlags) -> NatRange {
        NatRange { flags, ..self }
    }
}
