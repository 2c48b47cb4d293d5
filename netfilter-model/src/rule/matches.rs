//! What a rule asks of a packet.

mod classes;

use std::net::IpAddr;
use std::sync::Arc;

pub use classes::{AddrType, AddrTypeMatch, AddrTypes, CtStates, CtStatuses};

use crate::conntrack::Direction;
use crate::device::DevicePattern;
use crate::packet::TcpFlags;
use crate::prefix::Prefix;
use crate::rule::random::Probability;
use crate::tuple::{Protocol, Tuple};

/// One condition of a rule.
///
/// The first six belong to the rule's header: the kernel checks them before the others, and
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
    /// `-f`: a fragment that is not the first.
    Fragment {
        /// Whole packets and first fragments.
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
        /// `--tcp-option`.
        option: Option<Invertible<u8>>,
    },
    /// `-m udp`.
    Udp {
        /// `--sport`.
        sport: Option<PortMatch>,
        /// `--dport`.
        dport: Option<PortMatch>,
    },
    /// `-m sctp`.
    Sctp(Box<SctpMatch>),
    /// `-m icmp --icmp-type`, or `-m icmp6 --icmpv6-type`: the rule's family tells which.
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
    /// `-m connmark`: as `mark`, on the connection's mark. Without a connection false, even inverted.
    Connmark {
        /// The wanted value.
        value: u32,
        /// The bits that are looked at.
        mask: u32,
        /// Any but it.
        invert: bool,
    },
    /// `-m multiport`.
    Multiport(Box<Multiport>),
    /// `-m state --state`: the first five states of `--ctstate`.
    State {
        /// The wanted states.
        states: CtStates,
        /// None of them.
        invert: bool,
    },
    /// `-m conntrack` with more than `--ctstate`.
    Conntrack(Box<ConntrackMatch>),
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
        /// `--limit-iface-in` or `-out`: local counts only on that device.
        limit: Option<LimitIface>,
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
    /// `-m recent`.
    Recent(Box<RecentMatch>),
    /// `-m set`.
    Set(Box<SetMatch>),
    /// `-m physdev`.
    Physdev(Box<PhysdevMatch>),
    /// `-m limit`.
    Limit(Box<LimitMatch>),
    /// `-m hashlimit`.
    Hashlimit(Box<HashlimitMatch>),
    /// `-m mac --mac-source`.
    Mac {
        /// The wanted address.
        address: [u8; 6],
        /// Any but it.
        invert: bool,
    },
    /// `-m iprange`.
    Iprange(Box<IprangeMatch>),
    /// `-m owner`.
    Owner(Box<OwnerMatch>),
    /// `-m pkttype`.
    Pkttype {
        /// How the frame was addressed.
        kind: FrameKind,
        /// Any other way.
        invert: bool,
    },
    /// `-m ttl`, or `-m hl`.
    Ttl {
        /// How to compare.
        compare: TtlCompare,
        /// With what.
        value: u8,
    },
    /// `-m length`: of the IP packet, in bytes.
    Length {
        /// At least.
        min: u16,
        /// At most.
        max: u16,
        /// Outside of it.
        invert: bool,
    },
    /// `-m dscp`, or `-m tos` with a mask.
    Tos {
        /// The wanted bits of the TOS byte.
        value: u8,
        /// Which bits are looked at.
        mask: u8,
        /// Written as `-m dscp`.
        dscp: bool,
        /// Any but it.
        invert: bool,
    },
    /// `-m tcpmss --mss`: the segment size that a TCP segment announces.
    Tcpmss {
        /// At least.
        min: u16,
        /// At most.
        max: u16,
        /// Outside of it, or none is announced.
        invert: bool,
    },
    /// `-m rpfilter`.
    Rpfilter(RpfilterMatch),
    /// `-m ipvs`.
    Ipvs(Box<IpvsMatch>),
    /// A match that has one answer in this model, such as `helper` (there are none) or
    /// `policy --pol none` (there is no IPsec).
    Fixed {
        /// As it was written.
        written: Box<Unsupported>,
        /// The answer.
        holds: bool,
    },
    /// A match that is known by name but cannot be modelled: evaluation follows both answers.
    Unsupported(Box<Unsupported>),
}

/// Something in a rule that cannot be modelled, kept as it was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unsupported {
    /// The name behind `-m` or `-j`, or the nft expression.
    pub name: Arc<str>,
    /// Its options as `iptables-save` prints them, without the name.
    pub options: Arc<str>,
}

/// A value with its negation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Invertible<T> {
    /// The value.
    pub value: T,
    /// Any but it.
    pub invert: bool,
}

/// Which device `addrtype` limits local addresses to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LimitIface {
    /// `--limit-iface-in`.
    In,
    /// `--limit-iface-out`.
    Out,
}

/// `-m sctp`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SctpMatch {
    /// `--sport`.
    pub sport: Option<PortMatch>,
    /// `--dport`.
    pub dport: Option<PortMatch>,
    /// `--chunk-types` as printed: packets here carry no chunks, so it cannot be decided.
    pub chunks: Option<Invertible<Arc<str>>>,
}

/// `-m multiport`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Multiport {
    /// Which port is looked at.
    pub side: MultiportSide,
    /// Ranges, first and last port, as written.
    pub ports: Vec<(u16, u16)>,
    /// None of them.
    pub invert: bool,
}

/// Which port `multiport` looks at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MultiportSide {
    /// `--sports`.
    Source,
    /// `--dports`.
    Destination,
    /// `--ports`: one of both.
    Either,
}

/// An address with a mask that leaves host bits alone, as `-m conntrack` keeps it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CtAddress {
    /// The address.
    pub address: IpAddr,
    /// How many leading bits count.
    pub len: u8,
}

/// `-m conntrack` with all its options.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConntrackMatch {
    /// `--ctstate`: if given and true, the others are not looked at where there is no connection.
    pub states: Option<Invertible<CtStates>>,
    /// `--ctproto`.
    pub protocol: Option<Invertible<Protocol>>,
    /// `--ctorigsrc`.
    pub orig_src: Option<Invertible<CtAddress>>,
    /// `--ctorigdst`.
    pub orig_dst: Option<Invertible<CtAddress>>,
    /// `--ctreplsrc`.
    pub repl_src: Option<Invertible<CtAddress>>,
    /// `--ctrepldst`.
    pub repl_dst: Option<Invertible<CtAddress>>,
    /// `--ctorigsrcport`.
    pub orig_src_port: Option<PortMatch>,
    /// `--ctorigdstport`.
    pub orig_dst_port: Option<PortMatch>,
    /// `--ctreplsrcport`.
    pub repl_src_port: Option<PortMatch>,
    /// `--ctrepldstport`.
    pub repl_dst_port: Option<PortMatch>,
    /// `--ctstatus`.
    pub status: Option<Invertible<CtStatuses>>,
    /// `--ctexpire`, in seconds.
    pub expire: Option<Invertible<(u32, u32)>>,
    /// `--ctdir`.
    pub direction: Option<Direction>,
}

impl Multiport {
    /// Returns whether the flow's ports fit.
    pub(crate) fn matches(&self, tuple: &Tuple) -> bool {
        let lies = |port| self.ports.iter().any(|(min, max)| *min <= port && port <= *max);
        let fits = match self.side {
            MultiportSide::Source => lies(tuple.src_part),
            MultiportSide::Destination => lies(tuple.dst_part),
            MultiportSide::Either => lies(tuple.src_part) || lies(tuple.dst_part),
        };
        fits != self.invert
    }
}

/// `-m recent`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecentMatch {
    /// What is done with the list.
    pub action: RecentAction,
    /// `--seconds`.
    pub seconds: Option<u32>,
    /// `--reap`.
    pub reap: bool,
    /// `--hitcount`.
    pub hitcount: Option<u32>,
    /// `--rttl`.
    pub ttl: bool,
    /// `--name`.
    pub name: Arc<str>,
    /// `--mask`.
    pub mask: IpAddr,
    /// `--rdest` instead of `--rsource`.
    pub destination: bool,
    /// The complement.
    pub invert: bool,
}

/// What `recent` does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecentAction {
    /// `--set`.
    Set,
    /// `--rcheck`.
    Check,
    /// `--update`.
    Update,
    /// `--remove`.
    Remove,
}

/// Which side of the packet a dimension of a set is taken from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetSide {
    /// `src`.
    Source,
    /// `dst`.
    Destination,
}

/// `-m set --match-set`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SetMatch {
    /// The set.
    pub name: Arc<str>,
    /// One side for each dimension.
    pub sides: Vec<SetSide>,
    /// `--return-nomatch`.
    pub return_nomatch: bool,
    /// Options about counters, as printed: sets here count nothing.
    pub counters: Option<Arc<str>>,
    /// Not in it.
    pub invert: bool,
}

/// `-m physdev`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PhysdevMatch {
    /// `--physdev-is-in`.
    pub is_in: Option<bool>,
    /// `--physdev-in`.
    pub in_port: Option<DeviceMatch>,
    /// `--physdev-is-out`.
    pub is_out: Option<bool>,
    /// `--physdev-out`.
    pub out_port: Option<DeviceMatch>,
    /// `--physdev-is-bridged`.
    pub is_bridged: Option<bool>,
}

/// `-m limit`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LimitMatch {
    /// The time between two tokens, in units of 100 µs, as the kernel keeps it.
    // Kernel: xt_limit.c, XT_LIMIT_SCALE
    pub period: u32,
    /// How many tokens the bucket holds.
    pub burst: u32,
}

/// `-m hashlimit`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HashlimitMatch {
    /// `--hashlimit-above` instead of `-upto`.
    pub above: bool,
    /// The time between two tokens, in units of 1 µs.
    pub period: u64,
    /// How many tokens a bucket holds.
    pub burst: u32,
    /// `--hashlimit-mode`: source address, source port, destination address, destination port.
    pub mode: [bool; 4],
    /// `--hashlimit-name`.
    pub name: Arc<str>,
    /// `--hashlimit-htable-expire`, in milliseconds.
    pub expire: u32,
    /// `--hashlimit-srcmask`.
    pub src_len: u8,
    /// `--hashlimit-dstmask`.
    pub dst_len: u8,
    /// Other options, as printed; they do not change what matches.
    pub other: Option<Arc<str>>,
}

/// `-m rpfilter`: whether the packet's source is reached by the device that it came in by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RpfilterMatch {
    /// `--loose`: by any device.
    pub loose: bool,
    /// `--validmark`: the packet's mark counts in routing.
    pub validmark: bool,
    /// `--accept-local`: the source may be an address of this host.
    pub accept_local: bool,
    /// `--invert`.
    pub invert: bool,
}

/// `-m ipvs` about the virtual service that a request was sent to: only packets that IPVS has
/// rewritten match.
// Kernel: xt_ipvs.c, ipvs_mt
#[derive(Clone, Debug, PartialEq)]
pub struct IpvsMatch {
    /// `--vproto`.
    pub protocol: Protocol,
    /// `--vaddr`.
    pub address: Prefix,
    /// `--vport`.
    pub port: u16,
}

/// `-m iprange`: first and last address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IprangeMatch {
    /// `--src-range`.
    pub src: Option<Invertible<(IpAddr, IpAddr)>>,
    /// `--dst-range`.
    pub dst: Option<Invertible<(IpAddr, IpAddr)>>,
}

/// `-m owner`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OwnerMatch {
    /// `--uid-owner`, first and last.
    pub uid: Option<Invertible<(u32, u32)>>,
    /// `--gid-owner`, first and last.
    pub gid: Option<Invertible<(u32, u32)>>,
    /// `--socket-exists`, or its negation.
    pub socket_exists: Option<bool>,
    /// `--suppl-groups`.
    pub suppl_groups: bool,
}

/// How a frame was addressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameKind {
    /// To one.
    Unicast,
    /// To all.
    Broadcast,
    /// To a group.
    Multicast,
}

/// How `ttl` compares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TtlCompare {
    /// `--ttl-eq`.
    Eq,
    /// `! --ttl-eq`.
    Ne,
    /// `--ttl-lt`.
    Lt,
    /// `--ttl-gt`.
    Gt,
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

impl Match {
    /// Returns the place in the rule's header, or `None` for a match that stands behind it.
    pub(crate) fn header_place(&self) -> Option<u8> {
        Some(match self {
            Match::Source { .. } => 0,
            Match::Destination { .. } => 1,
            Match::InDevice(_) => 2,
            Match::OutDevice(_) => 3,
            Match::Protocol { .. } => 4,
            Match::Fragment { .. } => 5,
            _ => return None,
        })
    }

    /// Returns whether reaching this match changes something: takes a draw or a count.
    pub(crate) fn has_effect(&self) -> bool {
        matches!(
            self,
            Match::Random { .. }
                | Match::Nth { .. }
                | Match::Recent(_)
                | Match::Limit(_)
                | Match::Hashlimit(_)
                | Match::Unsupported(_)
        )
    }
}
