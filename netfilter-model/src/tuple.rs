//! One direction of a flow, as connection tracking sees it.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// An IP protocol number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Protocol(pub u8);

impl Protocol {
    /// ICMP for IPv4.
    pub const ICMP: Protocol = Protocol(1);
    /// TCP.
    pub const TCP: Protocol = Protocol(6);
    /// UDP.
    pub const UDP: Protocol = Protocol(17);
    /// ICMP for IPv6.
    pub const ICMPV6: Protocol = Protocol(58);
    /// SCTP.
    pub const SCTP: Protocol = Protocol(132);
    /// DCCP.
    pub const DCCP: Protocol = Protocol(33);
    /// Generic routing encapsulation.
    pub const GRE: Protocol = Protocol(47);
    /// UDP-Lite.
    pub const UDPLITE: Protocol = Protocol(136);

    /// Returns whether the protocol's packets carry a source and a destination port.
    pub const fn has_ports(self) -> bool {
        matches!(self.0, 6 | 17 | 33 | 132 | 136)
    }

    /// Returns whether the protocol is ICMP of either family.
    pub const fn is_icmp(self) -> bool {
        matches!(self.0, 1 | 58)
    }

    /// Returns the name that iptables prints, if the protocol has one.
    pub const fn name(self) -> Option<&'static str> {
        Some(match self.0 {
            1 => "icmp",
            2 => "igmp",
            3 => "ggp",
            4 => "ipencap",
            6 => "tcp",
            8 => "egp",
            9 => "igp",
            17 => "udp",
            33 => "dccp",
            41 => "ipv6",
            43 => "ipv6-route",
            44 => "ipv6-frag",
            46 => "rsvp",
            47 => "gre",
            50 => "esp",
            51 => "ah",
            58 => "ipv6-icmp",
            59 => "ipv6-nonxt",
            60 => "ipv6-opts",
            88 => "eigrp",
            89 => "ospf",
            94 => "ipip",
            97 => "etherip",
            103 => "pim",
            108 => "ipcomp",
            112 => "vrrp",
            115 => "l2tp",
            124 => "isis",
            132 => "sctp",
            135 => "mobility-header",
            136 => "udplite",
            137 => "mpls-in-ip",
            _ => return None,
        })
    }

    /// Returns the protocol that iptables reads from a text: a name in either case, a number, or
    /// `all`, which is 0.
    pub fn parse(text: &str) -> Option<Protocol> {
        if let Ok(number) = text.parse() {
            return Some(Protocol(number));
        }
        // Names that are read but not printed.
        const OTHERS: [(&str, u8); 8] = [
            ("all", 0),
            ("ip", 0),
            ("icmpv6", 58),
            ("icmp6", 58),
            ("mh", 135),
            ("ospfigp", 89),
            ("ipip", 94),
            ("ip-encap", 4),
        ];
        let known = |(name, _): &&(&str, u8)| name.eq_ignore_ascii_case(text);
        let other = OTHERS.iter().find(known).map(|(_, number)| Protocol(*number));
        let named = |p: &Protocol| p.name().is_some_and(|name| name.eq_ignore_ascii_case(text));
        other.or_else(|| (0..=u8::MAX).map(Protocol).find(named))
    }
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.write_str(name),
            None => write!(f, "{}", self.0),
        }
    }
}

/// An address family.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Family {
    /// IPv4.
    #[default]
    V4,
    /// IPv6.
    V6,
}

impl Family {
    /// Returns the family of an address.
    pub const fn of(address: IpAddr) -> Family {
        if address.is_ipv4() { Family::V4 } else { Family::V6 }
    }

    /// Returns how many bits an address has.
    pub const fn bits(self) -> u8 {
        match self {
            Family::V4 => 32,
            Family::V6 => 128,
        }
    }
}

/// Source and destination address, of one family by construction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Addresses {
    /// IPv4.
    V4 {
        /// Sender.
        src: Ipv4Addr,
        /// Receiver.
        dst: Ipv4Addr,
    },
    /// IPv6.
    V6 {
        /// Sender.
        src: Ipv6Addr,
        /// Receiver.
        dst: Ipv6Addr,
    },
}

/// One side of a tuple.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Side {
    /// Where the packet comes from.
    Source,
    /// Where it goes.
    Destination,
}

impl Side {
    /// Returns the other side.
    pub const fn other(self) -> Side {
        match self {
            Side::Source => Side::Destination,
            Side::Destination => Side::Source,
        }
    }
}

/// Addresses as they are kept: IPv4 as aligned numbers, since unaligned pieces that are written one
/// by one and read together stall the hot path.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Repr {
    V4 { src: u32, dst: u32 },
    V6 { src: Ipv6Addr, dst: Ipv6Addr },
}

/// One direction of a flow: addresses, protocol, and on each side the part that tells flows of
/// one address pair apart.
///
/// For TCP, UDP and their like the parts are ports. For ICMP the source part is the echo id and
/// the destination part is `type << 8 | code`, as in the kernel.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tuple {
    addresses: Repr,
    /// The transport protocol.
    pub protocol: Protocol,
    /// Source port, or ICMP echo id.
    pub src_part: u16,
    /// Destination port, or ICMP type and code.
    pub dst_part: u16,
}

impl Tuple {
    /// Returns an IPv4 tuple.
    pub const fn v4(
        protocol: Protocol,
        src: Ipv4Addr,
        src_part: u16,
        dst: Ipv4Addr,
        dst_part: u16,
    ) -> Tuple {
        Tuple {
            addresses: Repr::V4 { src: src.to_bits(), dst: dst.to_bits() },
            protocol,
            src_part,
            dst_part,
        }
    }

    /// Returns an IPv6 tuple.
    pub const fn v6(
        protocol: Protocol,
        src: Ipv6Addr,
        src_part: u16,
        dst: Ipv6Addr,
        dst_part: u16,
    ) -> Tuple {
        Tuple { addresses: Repr::V6 { src, dst }, protocol, src_part, dst_part }
    }

    /// Returns the tuple, or `None` if the addresses are of different families.
    pub fn try_new(
        protocol: Protocol,
        src: IpAddr,
        src_part: u16,
        dst: IpAddr,
        dst_part: u16,
    ) -> Option<Tuple> {
        match (src, dst) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => {
                Some(Tuple::v4(protocol, src, src_part, dst, dst_part))
            }
            (IpAddr::V6(src), IpAddr::V6(dst)) => {
                Some(Tuple::v6(protocol, src, src_part, dst, dst_part))
            }
            _ => None,
        }
    }

    /// Returns both addresses.
    #[inline]
    pub const fn addresses(&self) -> Addresses {
        match self.addresses {
            Repr::V4 { src, dst } => {
                Addresses::V4 { src: Ipv4Addr::from_bits(src), dst: Ipv4Addr::from_bits(dst) }
            }
            Repr::V6 { src, dst } => Addresses::V6 { src, dst },
        }
    }

    /// Returns whether the addresses are of IPv4.
    pub const fn is_ipv4(&self) -> bool {
        matches!(self.addresses, Repr::V4 { .. })
    }

    /// Returns the source address.
    pub const fn src(&self) -> IpAddr {
        match self.addresses {
            Repr::V4 { src, .. } => IpAddr::V4(Ipv4Addr::from_bits(src)),
            Repr::V6 { src, .. } => IpAddr::V6(src),
        }
    }

    /// Returns the destination address.
    pub const fn dst(&self) -> IpAddr {
        match self.addresses {
            Repr::V4 { dst, .. } => IpAddr::V4(Ipv4Addr::from_bits(dst)),
            Repr::V6 { dst, .. } => IpAddr::V6(dst),
        }
    }

    /// Returns the address of one side.
    pub const fn address(&self, side: Side) -> IpAddr {
        match side {
            Side::Source => self.src(),
            Side::Destination => self.dst(),
        }
    }

    /// Returns whether the tuple is of IPv4.
    pub(crate) const fn addresses_are_v4(&self) -> bool {
        matches!(self.addresses, Repr::V4 { .. })
    }

    /// Returns whether both tuples are of one address family.
    pub const fn same_family(&self, other: &Tuple) -> bool {
        matches!(
            (self.addresses, other.addresses),
            (Repr::V4 { .. }, Repr::V4 { .. }) | (Repr::V6 { .. }, Repr::V6 { .. })
        )
    }

    /// Replaces the address of one side.
    ///
    /// # Panics
    ///
    /// If the address is of the other family.
    pub fn set_address(&mut self, side: Side, address: IpAddr) {
        match (&mut self.addresses, side, address) {
            (Repr::V4 { src, .. }, Side::Source, IpAddr::V4(address)) => *src = address.to_bits(),
            (Repr::V4 { dst, .. }, Side::Destination, IpAddr::V4(address)) => {
                *dst = address.to_bits();
            }
            (Repr::V6 { src, .. }, Side::Source, IpAddr::V6(address)) => *src = address,
            (Repr::V6 { dst, .. }, Side::Destination, IpAddr::V6(address)) => *dst = address,
            _ => panic!("{address} is not of the family of {self:?}"),
        }
    }

    /// Returns the part that NAT rewrites together with the address of `side`.
    ///
    /// For ICMP this is the id on either side, as in the kernel.
    pub const fn nat_part(&self, side: Side) -> u16 {
        match side {
            Side::Destination if !self.protocol.is_icmp() => self.dst_part,
            _ => self.src_part,
        }
    }

    /// Replaces the part that NAT rewrites together with the address of `side`.
    pub fn set_nat_part(&mut self, side: Side, part: u16) {
        match side {
            Side::Destination if !self.protocol.is_icmp() => self.dst_part = part,
            _ => self.src_part = part,
        }
    }

    /// Replaces address and part of one side by those of `other`.
    ///
    /// # Panics
    ///
    /// If the families differ.
    #[inline]
    pub(crate) fn copy_side(&mut self, side: Side, other: &Tuple) {
        match (&mut self.addresses, &other.addresses, side) {
            (Repr::V4 { src, .. }, Repr::V4 { src: new, .. }, Side::Source) => *src = *new,
            (Repr::V4 { dst, .. }, Repr::V4 { dst: new, .. }, Side::Destination) => {
                *dst = *new;
            }
            (Repr::V6 { src, .. }, Repr::V6 { src: new, .. }, Side::Source) => *src = *new,
            (Repr::V6 { dst, .. }, Repr::V6 { dst: new, .. }, Side::Destination) => {
                *dst = *new;
            }
            _ => panic!("{other:?} is not of the family of {self:?}"),
        }
        if self.protocol == other.protocol {
            self.set_nat_part(side, other.nat_part(side));
        }
    }

    /// Returns the tuple of the answer.
    #[inline]
    pub const fn reply(&self) -> Tuple {
        let addresses = match self.addresses {
            Repr::V4 { src, dst } => Repr::V4 { src: dst, dst: src },
            Repr::V6 { src, dst } => Repr::V6 { src: dst, dst: src },
        };
        if self.protocol.is_icmp() {
            let dst_part = answering_icmp(self.protocol, self.dst_part);
            return Tuple { addresses, protocol: self.protocol, src_part: self.src_part, dst_part };
        }
        Tuple {
            addresses,
            protocol: self.protocol,
            src_part: self.dst_part,
            dst_part: self.src_part,
        }
    }

    /// Returns the packet's ICMP type and code.
    pub const fn icmp_kind(&self) -> (u8, u8) {
        ((self.dst_part >> 8) as u8, self.dst_part as u8)
    }
}

/// Returns the ICMP type and code of the answer to a query, and of the query to an answer.
// Kernel: nf_conntrack_proto_icmp.c, invmap; the code is kept.
const fn answering_icmp(protocol: Protocol, part: u16) -> u16 {
    let kind = match (protocol.0, part >> 8) {
        (1, 8) => 0,
        (1, 0) => 8,
        (1, 13) => 14,
        (1, 14) => 13,
        (1, 15) => 16,
        (1, 16) => 15,
        (1, 17) => 18,
        (1, 18) => 17,
        (58, 128) => 129,
        (58, 129) => 128,
        (_, kind) => kind,
    };
    kind << 8 | part & 0xff
}

impl fmt::Debug for Tuple {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Tuple { protocol, src_part, dst_part, .. } = self;
        if protocol.is_icmp() {
            let (kind, code) = self.icmp_kind();
            let (src, dst) = (self.src(), self.dst());
            return write!(f, "{protocol} {src} > {dst} type {kind}/{code} id {src_part}");
        }
        match self.addresses() {
            Addresses::V4 { src, dst } => {
                write!(f, "{protocol} {src}:{src_part} > {dst}:{dst_part}")
            }
            Addresses::V6 { src, dst } => {
                write!(f, "{protocol} [{src}]:{src_part} > [{dst}]:{dst_part}")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
    const B: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);

    #[test]
    fn reply_mirrors_ports_and_keeps_the_echo_id() {
        let tcp = Tuple::v4(Protocol::TCP, A, 1000, B, 80);
        assert_eq!(tcp.reply(), Tuple::v4(Protocol::TCP, B, 80, A, 1000));
        let ping = Tuple::v4(Protocol::ICMP, A, 7, B, 8 << 8);
        assert_eq!(ping.reply(), Tuple::v4(Protocol::ICMP, B, 7, A, 0));
        assert_eq!(ping.reply().reply(), ping);
    }

    #[test]
    fn families_do_not_mix() {
        let v6 = IpAddr::V6(Ipv6Addr::LOCALHOST);
        assert_eq!(Tuple::try_new(Protocol::TCP, IpAddr::V4(A), 1, v6, 2), None);
    }
}
