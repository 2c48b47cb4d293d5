//! Expressions: what a rule reads of a packet and its surroundings.

use crate::conntrack::Direction;
use crate::nft::set::SetUse;
use crate::nft::value::Type;

/// A value that depends on the packet.
#[derive(Clone, Debug, PartialEq)]
pub enum Expr {
    /// A field of a header.
    Payload(Payload),
    /// Something that the kernel knows about the packet.
    Meta(Meta),
    /// Something about the packet's connection.
    Ct(CtKey, Option<Direction>),
    /// What the routing tables say.
    Fib(Fib),
    /// `numgen`.
    Numgen {
        /// In turn, with the state of this number; else at random.
        inc: Option<StateId>,
        /// One more than the largest number.
        modulus: u32,
        /// Is added.
        offset: u32,
    },
    /// `jhash`.
    Jhash {
        /// What is hashed.
        of: Vec<Expr>,
        /// One more than the largest number.
        modulus: u32,
        /// The seed; without, the kernel draws one that nobody sees.
        seed: Option<u32>,
        /// Is added.
        offset: u32,
    },
    /// `symhash`: the same for both directions of a flow.
    Symhash {
        /// One more than the largest number.
        modulus: u32,
        /// Is added.
        offset: u32,
    },
    /// (value AND and) XOR xor.
    Bits {
        /// The value.
        of: Box<Expr>,
        /// Which bits stay.
        and: u128,
        /// Which bits are flipped then.
        xor: u128,
    },
    /// A value whose bits are moved.
    Shift {
        /// The value.
        of: Box<Expr>,
        /// How far to the left, or to the right if negative.
        left: i8,
    },
    /// What a map holds for a key.
    Map {
        /// The key.
        key: Vec<Expr>,
        /// The map.
        map: SetUse,
    },
    /// A value that does not depend on the packet.
    Literal(u128, Type),
}

/// Names what a rule keeps between packets: the place of its state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StateId(pub(crate) u32);

/// A header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Header {
    /// The frame.
    Ether,
    /// IPv4.
    Ip,
    /// IPv6.
    Ip6,
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
    /// UDP-Lite.
    Udplite,
    /// SCTP.
    Sctp,
    /// DCCP.
    Dccp,
    /// Whatever stands above IP.
    Th,
    /// ICMP.
    Icmp,
    /// ICMPv6.
    Icmpv6,
}

/// A part of a header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Field {
    /// Source address.
    Saddr,
    /// Destination address.
    Daddr,
    /// The protocol above.
    Protocol,
    /// Hops left.
    Ttl,
    /// Length.
    Length,
    /// Code point.
    Dscp,
    /// Congestion notification.
    Ecn,
    /// Place in a fragmented packet, and whether more follows.
    FragOff,
    /// The version of IP.
    Version,
    /// Length of the header in words.
    Hdrlength,
    /// Source port.
    Sport,
    /// Destination port.
    Dport,
    /// Flags of TCP.
    Flags,
    /// Type of ICMP.
    Kind,
    /// Code of ICMP.
    Code,
    /// Id of an ICMP query.
    Id,
}

/// A field of a header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Payload {
    /// The header.
    pub header: Header,
    /// The field.
    pub field: Field,
}

const fn payload(header: Header, field: Field) -> Payload {
    Payload { header, field }
}

impl Payload {
    /// Every field that is modelled, with the words that name it and its type.
    pub(crate) const ALL: [(Payload, &'static str, &'static str, Type); 43] = [
        (payload(Header::Ether, Field::Saddr), "ether", "saddr", Type::EtherAddr),
        (payload(Header::Ip, Field::Saddr), "ip", "saddr", Type::Ipv4Addr),
        (payload(Header::Ip, Field::Daddr), "ip", "daddr", Type::Ipv4Addr),
        (payload(Header::Ip, Field::Protocol), "ip", "protocol", Type::InetProto),
        (payload(Header::Ip, Field::Ttl), "ip", "ttl", Type::Integer(8)),
        (payload(Header::Ip, Field::Length), "ip", "length", Type::Integer(16)),
        (payload(Header::Ip, Field::Dscp), "ip", "dscp", Type::Dscp),
        (payload(Header::Ip, Field::Ecn), "ip", "ecn", Type::Ecn),
        (payload(Header::Ip, Field::FragOff), "ip", "frag-off", Type::Integer(16)),
        (payload(Header::Ip, Field::Version), "ip", "version", Type::Integer(4)),
        (payload(Header::Ip, Field::Hdrlength), "ip", "hdrlength", Type::Integer(4)),
        (payload(Header::Ip6, Field::Saddr), "ip6", "saddr", Type::Ipv6Addr),
        (payload(Header::Ip6, Field::Daddr), "ip6", "daddr", Type::Ipv6Addr),
        (payload(Header::Ip6, Field::Protocol), "ip6", "nexthdr", Type::InetProto),
        (payload(Header::Ip6, Field::Ttl), "ip6", "hoplimit", Type::Integer(8)),
        (payload(Header::Ip6, Field::Length), "ip6", "length", Type::Integer(16)),
        (payload(Header::Ip6, Field::Dscp), "ip6", "dscp", Type::Dscp),
        (payload(Header::Ip6, Field::Ecn), "ip6", "ecn", Type::Ecn),
        (payload(Header::Ip6, Field::Version), "ip6", "version", Type::Integer(4)),
        (payload(Header::Tcp, Field::Sport), "tcp", "sport", Type::InetService),
        (payload(Header::Tcp, Field::Dport), "tcp", "dport", Type::InetService),
        (payload(Header::Tcp, Field::Flags), "tcp", "flags", Type::TcpFlag),
        (payload(Header::Udp, Field::Sport), "udp", "sport", Type::InetService),
        (payload(Header::Udp, Field::Dport), "udp", "dport", Type::InetService),
        (payload(Header::Udp, Field::Length), "udp", "length", Type::Integer(16)),
        (payload(Header::Udplite, Field::Sport), "udplite", "sport", Type::InetService),
        (payload(Header::Udplite, Field::Dport), "udplite", "dport", Type::InetService),
        (payload(Header::Sctp, Field::Sport), "sctp", "sport", Type::InetService),
        (payload(Header::Sctp, Field::Dport), "sctp", "dport", Type::InetService),
        (payload(Header::Dccp, Field::Sport), "dccp", "sport", Type::InetService),
        (payload(Header::Dccp, Field::Dport), "dccp", "dport", Type::InetService),
        (payload(Header::Th, Field::Sport), "th", "sport", Type::InetService),
        (payload(Header::Th, Field::Dport), "th", "dport", Type::InetService),
        (payload(Header::Icmp, Field::Kind), "icmp", "type", Type::IcmpType),
        (payload(Header::Icmp, Field::Code), "icmp", "code", Type::IcmpCode),
        (payload(Header::Icmp, Field::Id), "icmp", "id", Type::Integer(16)),
        (payload(Header::Icmpv6, Field::Kind), "icmpv6", "type", Type::Icmpv6Type),
        (payload(Header::Icmpv6, Field::Code), "icmpv6", "code", Type::Icmpv6Code),
        (payload(Header::Icmpv6, Field::Id), "icmpv6", "id", Type::Integer(16)),
        // Older spellings.
        (payload(Header::Ip, Field::Saddr), "ip", "source", Type::Ipv4Addr),
        (payload(Header::Ip, Field::Daddr), "ip", "destination", Type::Ipv4Addr),
        (payload(Header::Ip6, Field::Saddr), "ip6", "source", Type::Ipv6Addr),
        (payload(Header::Ip6, Field::Daddr), "ip6", "destination", Type::Ipv6Addr),
    ];

    fn row(self) -> &'static (Payload, &'static str, &'static str, Type) {
        Payload::ALL.iter().find(|row| row.0 == self).unwrap_or(&Payload::ALL[0])
    }

    /// Returns the type of the field.
    pub fn of_type(self) -> Type {
        self.row().3
    }

    /// Returns the two words that name the field.
    pub fn words(self) -> (&'static str, &'static str) {
        let (_, header, field, _) = self.row();
        (header, field)
    }
}

/// Something that the kernel knows about a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Meta {
    /// Length in bytes.
    Length,
    /// The family.
    Nfproto,
    /// The protocol above IP.
    L4proto,
    /// What the frame carries.
    Protocol,
    /// The mark.
    Mark,
    /// The input device.
    Iif,
    /// The output device.
    Oif,
    /// The name of the input device.
    Iifname,
    /// The name of the output device.
    Oifname,
    /// The user of the socket.
    Skuid,
    /// The group of the socket.
    Skgid,
    /// How the frame was addressed.
    Pkttype,
    /// 32 random bits.
    Random,
}

impl Meta {
    /// Every key, with its word, its type, and whether `meta` may be left out before it.
    pub(crate) const ALL: [(Meta, &'static str, Type, bool); 13] = [
        (Meta::Length, "length", Type::HostInteger(32), false),
        (Meta::Nfproto, "nfproto", Type::NfProto, false),
        (Meta::L4proto, "l4proto", Type::InetProto, false),
        (Meta::Protocol, "protocol", Type::EtherType, false),
        (Meta::Mark, "mark", Type::Mark, true),
        (Meta::Iif, "iif", Type::IfaceIndex, true),
        (Meta::Oif, "oif", Type::IfaceIndex, true),
        (Meta::Iifname, "iifname", Type::Ifname, true),
        (Meta::Oifname, "oifname", Type::Ifname, true),
        (Meta::Skuid, "skuid", Type::Uid, true),
        (Meta::Skgid, "skgid", Type::Gid, true),
        (Meta::Pkttype, "pkttype", Type::PktType, true),
        (Meta::Random, "random", Type::HostInteger(32), false),
    ];

    fn row(self) -> &'static (Meta, &'static str, Type, bool) {
        Meta::ALL.iter().find(|row| row.0 == self).unwrap_or(&Meta::ALL[0])
    }

    /// Returns the type of the value.
    pub fn of_type(self) -> Type {
        self.row().2
    }
}

/// Something about a packet's connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum CtKey {
    /// The packet's state.
    State,
    /// The packet's direction.
    Direction,
    /// What is known about the connection.
    Status,
    /// The connection's mark.
    Mark,
    /// How long it lives without another packet.
    Expiration,
    /// The family.
    L3proto,
    /// The protocol.
    Protocol,
    /// The source address of a direction's IPv4 tuple.
    IpSaddr,
    /// The destination address of a direction's IPv4 tuple.
    IpDaddr,
    /// The source address of a direction's IPv6 tuple.
    Ip6Saddr,
    /// The destination address of a direction's IPv6 tuple.
    Ip6Daddr,
    /// The source port of a direction's tuple.
    ProtoSrc,
    /// The destination port of a direction's tuple.
    ProtoDst,
    /// The zone.
    Zone,
}

impl CtKey {
    /// Every key with its words and its type.
    pub(crate) const ALL: [(CtKey, &'static str, Type); 14] = [
        (CtKey::State, "state", Type::CtState),
        (CtKey::Direction, "direction", Type::CtDir),
        (CtKey::Status, "status", Type::CtStatus),
        (CtKey::Mark, "mark", Type::Mark),
        (CtKey::Expiration, "expiration", Type::Time),
        (CtKey::L3proto, "l3proto", Type::NfProto),
        (CtKey::Protocol, "protocol", Type::InetProto),
        (CtKey::IpSaddr, "ip saddr", Type::Ipv4Addr),
        (CtKey::IpDaddr, "ip daddr", Type::Ipv4Addr),
        (CtKey::Ip6Saddr, "ip6 saddr", Type::Ipv6Addr),
        (CtKey::Ip6Daddr, "ip6 daddr", Type::Ipv6Addr),
        (CtKey::ProtoSrc, "proto-src", Type::InetService),
        (CtKey::ProtoDst, "proto-dst", Type::InetService),
        (CtKey::Zone, "zone", Type::HostInteger(16)),
    ];

    fn row(self) -> &'static (CtKey, &'static str, Type) {
        CtKey::ALL.iter().find(|row| row.0 == self).unwrap_or(&CtKey::ALL[0])
    }

    /// Returns the type of the value.
    pub fn of_type(self) -> Type {
        self.row().2
    }

    /// Returns whether the value is that of a direction's tuple, which must be named.
    pub(crate) const fn needs_direction(self) -> bool {
        matches!(
            self,
            CtKey::IpSaddr
                | CtKey::IpDaddr
                | CtKey::Ip6Saddr
                | CtKey::Ip6Daddr
                | CtKey::ProtoSrc
                | CtKey::ProtoDst
        )
    }
}

/// A question to the routing tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fib {
    /// About the source address; else about the destination.
    pub source: bool,
    /// The packet's mark counts.
    pub mark: bool,
    /// The input device counts.
    pub iif: bool,
    /// The output device counts.
    pub oif: bool,
    /// What is asked for.
    pub result: FibResult,
}

/// What is asked of the routing tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FibResult {
    /// What kind of address it is.
    Type,
    /// By which device packets to it leave.
    Oif,
    /// The name of that device.
    Oifname,
    /// Whether there is such a device.
    Exists,
}

impl FibResult {
    /// Returns the type of the answer.
    pub const fn of_type(self) -> Type {
        match self {
            FibResult::Type => Type::FibAddrtype,
            FibResult::Oif => Type::IfaceIndex,
            FibResult::Oifname => Type::Ifname,
            FibResult::Exists => Type::Boolean,
        }
    }
}

impl Expr {
    /// Returns the types of the expression's values: more than one for a map of concatenations.
    pub fn types(&self) -> Vec<Type> {
        match self {
            Expr::Map { map, .. } => map.data_hint().to_vec(),
            other => vec![other.of_type()],
        }
    }

    /// Returns the type of the expression's value.
    pub fn of_type(&self) -> Type {
        match self {
            Expr::Payload(payload) => payload.of_type(),
            Expr::Meta(meta) => meta.of_type(),
            Expr::Ct(key, _) => key.of_type(),
            Expr::Fib(fib) => fib.result.of_type(),
            Expr::Numgen { .. } | Expr::Jhash { .. } | Expr::Symhash { .. } => {
                Type::HostInteger(32)
            }
            Expr::Bits { of, .. } | Expr::Shift { of, .. } => of.of_type(),
            Expr::Map { map, .. } => map.data_hint().first().copied().unwrap_or(Type::Integer(32)),
            Expr::Literal(_, of) => *of,
        }
    }

    /// Returns whether the expression makes the kernel track connections.
    pub(crate) fn needs_tracking(&self) -> bool {
        match self {
            Expr::Ct(..) => true,
            Expr::Bits { of, .. } | Expr::Shift { of, .. } => of.needs_tracking(),
            Expr::Jhash { of, .. } => of.iter().any(Expr::needs_tracking),
            Expr::Map { key, .. } => key.iter().any(Expr::needs_tracking),
            _ => false,
        }
    }
}
