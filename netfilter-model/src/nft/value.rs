//! Types of values: how wide they are, in which byte order a register holds them, what names
//! they have.
//!
//! A value is a number of up to 128 bits: an address or port as a number, a device name as its
//! bytes, first byte first.

use std::fmt::{self, Write as _};
use std::net::{Ipv4Addr, Ipv6Addr};

use crate::device::DeviceName;
use crate::tuple::Protocol;

/// The type of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Type {
    /// An IPv4 address.
    Ipv4Addr,
    /// An IPv6 address.
    Ipv6Addr,
    /// A hardware address.
    EtherAddr,
    /// What a frame carries.
    EtherType,
    /// A protocol of IP.
    InetProto,
    /// A port.
    InetService,
    /// A packet's or a connection's mark.
    Mark,
    /// The name of a device.
    Ifname,
    /// A device by its index; a value holds its name, or a small number if it has none.
    IfaceIndex,
    /// Connection-tracking states, one bit each.
    CtState,
    /// A direction of a connection.
    CtDir,
    /// Facts about a connection, one bit each.
    CtStatus,
    /// The type of an ICMP message.
    IcmpType,
    /// The code of an ICMP message.
    IcmpCode,
    /// The type of an ICMPv6 message.
    Icmpv6Type,
    /// The code of an ICMPv6 message.
    Icmpv6Code,
    /// The flags of a TCP segment.
    TcpFlag,
    /// A differentiated-services code point.
    Dscp,
    /// Explicit congestion notification.
    Ecn,
    /// What the local routing table says about an address.
    FibAddrtype,
    /// Whether something is there.
    Boolean,
    /// How a frame was addressed.
    PktType,
    /// A user.
    Uid,
    /// A group.
    Gid,
    /// The family of a packet.
    NfProto,
    /// A span of time, in milliseconds.
    Time,
    /// A number of so many bits, in network byte order.
    Integer(u8),
    /// A number of so many bits, in the host's byte order.
    HostInteger(u8),
}

/// Names of values, in the order in which a set of bits is printed.
type Names = &'static [(&'static str, u128)];

const CT_STATES: Names =
    &[("invalid", 1), ("established", 2), ("related", 4), ("new", 8), ("untracked", 64)];
const CT_STATUSES: Names = &[
    ("expected", 1),
    ("seen-reply", 2),
    ("assured", 4),
    ("confirmed", 8),
    ("snat", 16),
    ("dnat", 32),
    ("dying", 512),
];
const TCP_FLAGS: Names = &[
    ("fin", 1),
    ("syn", 2),
    ("rst", 4),
    ("psh", 8),
    ("ack", 16),
    ("urg", 32),
    ("ecn", 64),
    ("cwr", 128),
];
const ICMP_TYPES: Names = &[
    ("echo-reply", 0),
    ("destination-unreachable", 3),
    ("source-quench", 4),
    ("redirect", 5),
    ("echo-request", 8),
    ("router-advertisement", 9),
    ("router-solicitation", 10),
    ("time-exceeded", 11),
    ("parameter-problem", 12),
    ("timestamp-request", 13),
    ("timestamp-reply", 14),
    ("info-request", 15),
    ("info-reply", 16),
    ("address-mask-request", 17),
    ("address-mask-reply", 18),
];
const ICMP_CODES: Names = &[
    ("net-unreachable", 0),
    ("host-unreachable", 1),
    ("prot-unreachable", 2),
    ("port-unreachable", 3),
    ("frag-needed", 4),
    ("net-prohibited", 9),
    ("host-prohibited", 10),
    ("admin-prohibited", 13),
];
const ICMPV6_TYPES: Names = &[
    ("destination-unreachable", 1),
    ("packet-too-big", 2),
    ("time-exceeded", 3),
    ("parameter-problem", 4),
    ("echo-request", 128),
    ("echo-reply", 129),
    ("mld-listener-query", 130),
    ("mld-listener-report", 131),
    ("mld-listener-done", 132),
    ("mld-listener-reduction", 132),
    ("nd-router-solicit", 133),
    ("nd-router-advert", 134),
    ("nd-neighbor-solicit", 135),
    ("nd-neighbor-advert", 136),
    ("nd-redirect", 137),
    ("router-renumbering", 138),
    ("ind-neighbor-solicit", 141),
    ("ind-neighbor-advert", 142),
    ("mld2-listener-report", 143),
];
const ICMPV6_CODES: Names = &[
    ("no-route", 0),
    ("admin-prohibited", 1),
    ("addr-unreachable", 3),
    ("port-unreachable", 4),
    ("policy-fail", 5),
    ("reject-route", 6),
];
const FIB_TYPES: Names = &[
    ("unspec", 0),
    ("unicast", 1),
    ("local", 2),
    ("broadcast", 3),
    ("anycast", 4),
    ("multicast", 5),
    ("blackhole", 6),
    ("unreachable", 7),
    ("prohibit", 8),
];
const DSCPS: Names = &[
    ("cs0", 0),
    ("cs1", 8),
    ("cs2", 16),
    ("cs3", 24),
    ("cs4", 32),
    ("cs5", 40),
    ("cs6", 48),
    ("cs7", 56),
    ("df", 0),
    ("be", 0),
    ("lephb", 1),
    ("af11", 10),
    ("af12", 12),
    ("af13", 14),
    ("af21", 18),
    ("af22", 20),
    ("af23", 22),
    ("af31", 26),
    ("af32", 28),
    ("af33", 30),
    ("af41", 34),
    ("af42", 36),
    ("af43", 38),
    ("va", 44),
    ("ef", 46),
];
const ETHER_TYPES: Names =
    &[("ip", 0x0800), ("arp", 0x0806), ("ip6", 0x86dd), ("8021q", 0x8100), ("vlan", 0x8100)];
const NF_PROTOS: Names = &[("ipv4", 2), ("ipv6", 10)];
const PKT_TYPES: Names =
    &[("host", 0), ("unicast", 0), ("broadcast", 1), ("multicast", 2), ("other", 3)];
const CT_DIRS: Names = &[("original", 0), ("reply", 1)];
const ECNS: Names = &[("not-ect", 0), ("ect1", 1), ("ect0", 2), ("ce", 3)];
const BOOLEANS: Names = &[("exists", 1), ("missing", 0)];
const PROTOCOLS: Names = &[
    ("icmp", 1),
    ("igmp", 2),
    ("ipencap", 4),
    ("tcp", 6),
    ("udp", 17),
    ("dccp", 33),
    ("ipv6", 41),
    ("gre", 47),
    ("esp", 50),
    ("ah", 51),
    ("ipv6-icmp", 58),
    ("icmpv6", 58),
    ("ospf", 89),
    ("comp", 108),
    ("ipcomp", 108),
    ("vrrp", 112),
    ("sctp", 132),
    ("udplite", 136),
];
/// Ports that have names people write in rules; nft prints numbers.
const SERVICES: Names = &[
    ("ftp", 21),
    ("ssh", 22),
    ("telnet", 23),
    ("smtp", 25),
    ("domain", 53),
    ("bootps", 67),
    ("bootpc", 68),
    ("tftp", 69),
    ("http", 80),
    ("pop3", 110),
    ("sunrpc", 111),
    ("ntp", 123),
    ("imap2", 143),
    ("snmp", 161),
    ("bgp", 179),
    ("https", 443),
    ("isakmp", 500),
    ("dhcpv6-client", 546),
    ("dhcpv6-server", 547),
    ("imaps", 993),
    ("nfs", 2049),
    ("mysql", 3306),
    ("postgresql", 5432),
    ("mdns", 5353),
];

impl Type {
    const NAMED: [(&'static str, Type); 24] = [
        ("ipv4_addr", Type::Ipv4Addr),
        ("ipv6_addr", Type::Ipv6Addr),
        ("ether_addr", Type::EtherAddr),
        ("ether_type", Type::EtherType),
        ("inet_proto", Type::InetProto),
        ("inet_service", Type::InetService),
        ("mark", Type::Mark),
        ("ifname", Type::Ifname),
        ("iface_index", Type::IfaceIndex),
        ("ct_state", Type::CtState),
        ("ct_dir", Type::CtDir),
        ("ct_status", Type::CtStatus),
        ("icmp_type", Type::IcmpType),
        ("icmp_code", Type::IcmpCode),
        ("icmpv6_type", Type::Icmpv6Type),
        ("icmpv6_code", Type::Icmpv6Code),
        ("tcp_flag", Type::TcpFlag),
        ("dscp", Type::Dscp),
        ("ecn", Type::Ecn),
        ("fib_addrtype", Type::FibAddrtype),
        ("pkt_type", Type::PktType),
        ("uid", Type::Uid),
        ("gid", Type::Gid),
        ("nf_proto", Type::NfProto),
    ];

    /// Returns the type of this name, as `type` in a set's declaration has it.
    pub fn named(name: &str) -> Option<Type> {
        Type::NAMED.iter().find(|(other, _)| *other == name).map(|(_, of)| *of)
    }

    /// Returns the type's name, or `None` for one that only `typeof` can give.
    pub fn name(self) -> Option<&'static str> {
        Type::NAMED.iter().find(|(_, other)| *other == self).map(|(name, _)| *name)
    }

    /// Returns how many bits a value has.
    pub const fn bits(self) -> u32 {
        match self {
            Type::Ipv4Addr
            | Type::Mark
            | Type::IfaceIndex
            | Type::CtState
            | Type::CtStatus
            | Type::FibAddrtype
            | Type::Uid
            | Type::Gid
            | Type::Time => 32,
            Type::Ipv6Addr | Type::Ifname => 128,
            Type::EtherAddr => 48,
            Type::EtherType | Type::InetService => 16,
            Type::InetProto
            | Type::CtDir
            | Type::IcmpType
            | Type::IcmpCode
            | Type::Icmpv6Type
            | Type::Icmpv6Code
            | Type::TcpFlag
            | Type::PktType
            | Type::NfProto => 8,
            Type::Dscp => 6,
            Type::Ecn => 2,
            Type::Boolean => 1,
            Type::Integer(bits) | Type::HostInteger(bits) => bits as u32,
        }
    }

    /// Returns the largest value.
    pub const fn largest(self) -> u128 {
        u128::MAX >> (128 - self.bits())
    }

    /// Returns whether a register holds the value in the host's byte order.
    pub const fn is_host_order(self) -> bool {
        matches!(
            self,
            Type::Mark
                | Type::IfaceIndex
                | Type::CtState
                | Type::CtStatus
                | Type::FibAddrtype
                | Type::Uid
                | Type::Gid
                | Type::Time
                | Type::HostInteger(_)
        )
    }

    /// Returns whether a bare value on the right asks for any of its bits.
    pub const fn is_flags(self) -> bool {
        matches!(self, Type::CtState | Type::CtStatus | Type::TcpFlag)
    }

    fn names(self) -> Names {
        match self {
            Type::CtState => CT_STATES,
            Type::CtStatus => CT_STATUSES,
            Type::TcpFlag => TCP_FLAGS,
            Type::IcmpType => ICMP_TYPES,
            Type::IcmpCode => ICMP_CODES,
            Type::Icmpv6Type => ICMPV6_TYPES,
            Type::Icmpv6Code => ICMPV6_CODES,
            Type::FibAddrtype => FIB_TYPES,
            Type::Dscp => DSCPS,
            Type::Ecn => ECNS,
            Type::EtherType => ETHER_TYPES,
            Type::NfProto => NF_PROTOS,
            Type::PktType => PKT_TYPES,
            Type::CtDir => CT_DIRS,
            Type::Boolean => BOOLEANS,
            Type::InetProto => PROTOCOLS,
            Type::InetService => SERVICES,
            _ => &[],
        }
    }

    /// Returns the value that a word stands for, or `None` if it is no value of this type.
    pub fn parse(self, text: &str) -> Option<u128> {
        if let Some((_, value)) = self.names().iter().find(|(name, _)| *name == text) {
            return Some(*value);
        }
        let value = match self {
            Type::Ipv4Addr => u128::from(text.parse::<Ipv4Addr>().ok()?.to_bits()),
            Type::Ipv6Addr => text.parse::<Ipv6Addr>().ok()?.to_bits(),
            Type::EtherAddr => {
                let mut value = 0;
                let mut count = 0;
                for part in text.split(':') {
                    value = value << 8 | u128::from(u8::from_str_radix(part, 16).ok()?);
                    count += 1;
                    if count > 6 {
                        return None;
                    }
                }
                (count == 6).then_some(value)?
            }
            Type::Ifname => device_value(text)?,
            Type::IfaceIndex => match text.parse::<u32>() {
                Ok(index) => u128::from(index),
                Err(_) => device_value(text)?,
            },
            Type::Time => u128::from(parse_time(text)?),
            _ => parse_number(text)?,
        };
        (value <= self.largest() || self == Type::IfaceIndex).then_some(value)
    }

    /// Writes a value as nft prints it.
    pub(crate) fn write(self, value: u128, out: &mut String) {
        if self.is_flags() {
            return self.write_flags(value, ",", out);
        }
        // Ports and code points that have names are printed as numbers.
        let named = !matches!(self, Type::InetService | Type::IcmpCode | Type::Icmpv6Code);
        if named && let Some((name, _)) = self.names().iter().find(|(_, named)| *named == value) {
            out.push_str(name);
            return;
        }
        let written = match self {
            Type::Ipv4Addr => write!(out, "{}", Ipv4Addr::from_bits(value as u32)),
            Type::Ipv6Addr => write!(out, "{}", Ipv6Addr::from_bits(value)),
            Type::EtherAddr => {
                let bytes = value.to_be_bytes();
                let [.., a, b, c, d, e, f] = bytes;
                write!(out, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{f:02x}")
            }
            Type::Mark => write!(out, "0x{value:08x}"),
            Type::Ifname => write!(out, "\"{}\"", DeviceText(value)),
            Type::IfaceIndex if value > u128::from(u32::MAX) => {
                write!(out, "\"{}\"", DeviceText(value))
            }
            Type::InetProto => match Protocol(value as u8).name() {
                Some(name) => write!(out, "{name}"),
                None => write!(out, "{value}"),
            },
            Type::Dscp => write!(out, "0x{value:02x}"),
            Type::EtherType => write!(out, "0x{value:04x}"),
            Type::Time => {
                write_time(value as u64, out);
                Ok(())
            }
            _ => write!(out, "{value}"),
        };
        written.expect("writing to a string does not fail");
    }

    /// Writes a set of bits by names; bits without one as a number.
    pub(crate) fn write_flags(self, value: u128, separator: &str, out: &mut String) {
        let mut rest = value;
        let mut first = true;
        for (name, bit) in self.names() {
            if rest & bit != 0 {
                out.push_str(if first { "" } else { separator });
                out.push_str(name);
                rest &= !bit;
                first = false;
            }
        }
        if rest != 0 || first {
            let separator = if first { "" } else { separator };
            write!(out, "{separator}0x{rest:x}").expect("writing to a string does not fail");
        }
    }
}

/// Returns the value of a device name.
pub(crate) fn device_value(name: &str) -> Option<u128> {
    DeviceName::parse(name).ok().map(value_of_device)
}

/// Returns the value of a device name.
pub(crate) fn value_of_device(name: DeviceName) -> u128 {
    let mut bytes = [0; 16];
    let text = name.as_str().as_bytes();
    bytes[..text.len()].copy_from_slice(text);
    u128::from_be_bytes(bytes)
}

/// Returns the values of all device names that begin with this.
pub(crate) fn device_prefix(prefix: &str) -> Option<(u128, u128)> {
    if prefix.is_empty() {
        return Some((0, u128::MAX));
    }
    let min = device_value(prefix)?;
    Some((min, min | u128::MAX.checked_shr(8 * prefix.len() as u32).unwrap_or(0)))
}

/// A device name as a value holds it.
pub(crate) struct DeviceText(pub(crate) u128);

impl fmt::Display for DeviceText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = self.0.to_be_bytes();
        let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(16);
        f.write_str(&String::from_utf8_lossy(&bytes[..end]))
    }
}

/// Returns the number that a text is: decimal, or hexadecimal with `0x`.
pub(crate) fn parse_number(text: &str) -> Option<u128> {
    if !text.starts_with(|c: char| c.is_ascii_digit()) {
        return None;
    }
    match text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        Some(digits) if digits.starts_with('+') => None,
        Some(digits) => u128::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}

/// Returns a span of time such as `1h30m`, or a number of seconds, in milliseconds.
pub(crate) fn parse_time(text: &str) -> Option<u64> {
    if let Ok(seconds) = text.parse::<u64>() {
        return seconds.checked_mul(1000);
    }
    let mut total: u64 = 0;
    let mut rest = text;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit())?;
        let count: u64 = rest[..digits].parse().ok()?;
        rest = &rest[digits..];
        let unit_len = rest.find(|c: char| c.is_ascii_digit()).unwrap_or(rest.len());
        let unit = match &rest[..unit_len] {
            "w" => 604_800_000,
            "d" => 86_400_000,
            "h" => 3_600_000,
            "m" => 60_000,
            "s" => 1_000,
            "ms" => 1,
            _ => return None,
        };
        rest = &rest[unit_len..];
        total = total.checked_add(count.checked_mul(unit)?)?;
    }
    (!text.is_empty()).then_some(total)
}

/// Writes a span of time, as nft does.
pub(crate) fn write_time(ms: u64, out: &mut String) {
    if ms == 0 {
        out.push_str("0s");
        return;
    }
    let units =
        [("d", 86_400_000, u64::MAX), ("h", 3_600_000, 24), ("m", 60_000, 60), ("s", 1000, 60)];
    for (unit, size, wrap) in units {
        let count = ms / size % wrap;
        if count > 0 {
            write!(out, "{count}{unit}").expect("writing to a string does not fail");
        }
    }
    if !ms.is_multiple_of(1000) {
        write!(out, "{}ms", ms % 1000).expect("writing to a string does not fail");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(of: Type, value: u128) -> String {
        let mut out = String::new();
        of.write(value, &mut out);
        out
    }

    #[test]
    fn values_are_read_as_they_are_written() {
        for (of, written) in [
            (Type::Ipv4Addr, "10.96.0.10"),
            (Type::Ipv6Addr, "fd00::1"),
            (Type::EtherAddr, "02:00:00:00:00:0a"),
            (Type::InetProto, "tcp"),
            (Type::InetProto, "250"),
            (Type::InetService, "8080"),
            (Type::Mark, "0x00004000"),
            (Type::CtState, "established"),
            (Type::IcmpType, "echo-request"),
            (Type::Time, "4m59s992ms"),
            (Type::Time, "2d3h"),
            (Type::Dscp, "cs2"),
            (Type::FibAddrtype, "local"),
        ] {
            let value = of.parse(written).unwrap_or_else(|| panic!("{written}"));
            assert_eq!(text(of, value), written);
        }
        assert_eq!(text(Type::Ifname, device_value("eth0").unwrap()), "\"eth0\"");
        assert_eq!(text(Type::CtState, 0x0a), "established,new");
    }

    #[test]
    fn what_is_no_value_is_refused() {
        assert_eq!(Type::InetService.parse("65536"), None);
        assert_eq!(Type::InetProto.parse("300"), None);
        assert_eq!(Type::EtherAddr.parse("1:2:3:4:5"), None);
        assert_eq!(Type::Mark.parse("0x"), None);
        assert_eq!(Type::Time.parse("5q"), None);
        assert_eq!(Type::Time.parse("99999999999999999999w"), None);
    }

    #[test]
    fn a_prefix_of_names_is_a_range() {
        let (min, max) = device_prefix("eth").unwrap();
        let lies = |name| (min..=max).contains(&device_value(name).unwrap());
        assert!(lies("eth") && lies("eth0") && lies("eth12"));
        assert!(!lies("et") && !lies("eti"));
    }
}
