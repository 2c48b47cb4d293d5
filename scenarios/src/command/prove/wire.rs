//! Packets as bytes, and bytes as packets.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use netfilter_model::packet::{IcmpError, L4, Packet, TcpFlags};
use netfilter_model::tuple::{Addresses, Protocol, Tuple};

/// A TCP header without options.
const TCP_HEADER: usize = 20;

/// Returns the smallest length that a packet of this kind has on the wire.
pub(super) fn smallest(packet: &Packet) -> u32 {
    let ip = if packet.tuple.src().is_ipv4() { 20 } else { 40 };
    ip + match packet.l4 {
        L4::Tcp { .. } => TCP_HEADER as u32,
        L4::IcmpError { .. } => 8 + ip + 8,
        L4::Udp | L4::IcmpEcho | L4::Other => 8,
    }
}

/// Returns the packet as it stands behind an Ethernet header: checksums are right, and it is as
/// long as it says, or as its headers need.
pub(super) fn encode(packet: &Packet) -> Vec<u8> {
    let payload = transport(packet);
    let tuple = &packet.tuple;
    let mut bytes = ip_header(tuple, payload.len(), packet.ttl, packet.tos);
    bytes.extend(payload);
    bytes
}

fn ip_header(tuple: &Tuple, payload: usize, ttl: u8, tos: u8) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(40 + payload);
    match tuple.addresses() {
        Addresses::V4 { src, dst } => {
            let len = (20 + payload) as u16;
            bytes.extend([0x45, tos]);
            bytes.extend(len.to_be_bytes());
            // No identification, "don't fragment".
            bytes.extend([0, 0, 0x40, 0, ttl, tuple.protocol.0, 0, 0]);
            bytes.extend(src.octets());
            bytes.extend(dst.octets());
            let sum = fold(sum_of(&bytes));
            bytes[10..12].copy_from_slice(&sum.to_be_bytes());
        }
        Addresses::V6 { src, dst } => {
            bytes.extend([0x60 | tos >> 4, tos << 4, 0, 0]);
            bytes.extend((payload as u16).to_be_bytes());
            bytes.extend([tuple.protocol.0, ttl]);
            bytes.extend(src.octets());
            bytes.extend(dst.octets());
        }
    }
    bytes
}

fn transport(packet: &Packet) -> Vec<u8> {
    let tuple = &packet.tuple;
    let ip = if tuple.src().is_ipv4() { 20 } else { 40 };
    let space = (packet.len.max(smallest(packet)) - ip) as usize;
    let mut bytes = Vec::with_capacity(space);
    let sum_at = match packet.l4 {
        L4::Tcp { flags, segment } => {
            bytes.extend(tuple.src_part.to_be_bytes());
            bytes.extend(tuple.dst_part.to_be_bytes());
            let (seq, ack) = segment.map_or((0, 0), |segment| (segment.seq, segment.ack));
            bytes.extend(seq.to_be_bytes());
            bytes.extend(ack.to_be_bytes());
            let window = segment.map_or(64_240, |segment| segment.window);
            bytes.extend([(TCP_HEADER as u8 / 4) << 4, flags.bits()]);
            bytes.extend(window.to_be_bytes());
            bytes.extend([0; 4]);
            Some(16)
        }
        L4::Udp => {
            bytes.extend(tuple.src_part.to_be_bytes());
            bytes.extend(tuple.dst_part.to_be_bytes());
            bytes.extend((space as u16).to_be_bytes());
            bytes.extend([0; 2]);
            Some(6)
        }
        L4::IcmpEcho => {
            let (kind, code) = tuple.icmp_kind();
            bytes.extend([kind, code, 0, 0]);
            bytes.extend(tuple.src_part.to_be_bytes());
            bytes.extend([0, 1]);
            Some(2)
        }
        L4::IcmpError { kind, quote } => {
            let (number, code) = error_number(kind, tuple.src().is_ipv4());
            bytes.extend([number, code, 0, 0, 0, 0, 0, 0]);
            bytes.extend(quoted(&quote));
            Some(2)
        }
        L4::Other => {
            bytes.extend([0; 8]);
            None
        }
    };
    bytes.resize(space.max(bytes.len()), b'.');
    if let Some(at) = sum_at {
        let sum = checksum(tuple, &bytes);
        bytes[at..at + 2].copy_from_slice(&sum.to_be_bytes());
    }
    bytes
}

/// Returns what an error quotes: the IP header and eight bytes behind it.
fn quoted(quote: &Tuple) -> Vec<u8> {
    let mut head = Vec::with_capacity(8);
    if quote.protocol.is_icmp() {
        let (kind, code) = quote.icmp_kind();
        head.extend([kind, code, 0, 0]);
        head.extend(quote.src_part.to_be_bytes());
        head.extend([0, 1]);
    } else {
        head.extend(quote.src_part.to_be_bytes());
        head.extend(quote.dst_part.to_be_bytes());
        // For TCP the sequence number, for UDP the length and no checksum.
        head.extend(if quote.protocol == Protocol::UDP { [0, 8, 0, 0] } else { [0; 4] });
    }
    let mut bytes = ip_header(quote, head.len(), 62, 0);
    bytes.extend(head);
    bytes
}

/// Type and code.
type Number = (u8, u8);

/// Errors by their numbers in ICMP and in ICMPv6.
const ERRORS: [(IcmpError, Number, Number); 8] = [
    (IcmpError::NetUnreachable, (3, 0), (1, 0)),
    (IcmpError::HostUnreachable, (3, 1), (1, 3)),
    (IcmpError::ProtocolUnreachable, (3, 2), (4, 1)),
    (IcmpError::PortUnreachable, (3, 3), (1, 4)),
    (IcmpError::AdminProhibited, (3, 13), (1, 1)),
    (IcmpError::NetProhibited, (3, 9), (1, 5)),
    (IcmpError::HostProhibited, (3, 10), (1, 6)),
    (IcmpError::TimeExceeded, (11, 0), (3, 0)),
];

fn error_number(kind: IcmpError, v4: bool) -> (u8, u8) {
    let found = ERRORS.iter().find(|(of, ..)| *of == kind);
    match found {
        Some((_, four, six)) => {
            if v4 {
                *four
            } else {
                *six
            }
        }
        None => kind.kind(),
    }
}

fn error_kind(number: (u8, u8), v4: bool) -> Option<IcmpError> {
    let found = ERRORS.iter().find(|(_, four, six)| number == if v4 { *four } else { *six });
    found.map(|(kind, ..)| *kind)
}

fn sum_of(bytes: &[u8]) -> u64 {
    let pairs = bytes.chunks(2);
    pairs.map(|pair| u64::from(pair[0]) << 8 | pair.get(1).map_or(0, |b| u64::from(*b))).sum()
}

fn fold(mut sum: u64) -> u16 {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

fn checksum(tuple: &Tuple, payload: &[u8]) -> u16 {
    let mut sum = sum_of(payload);
    // ICMP for IPv4 has no pseudo header.
    if tuple.protocol != Protocol::ICMP {
        sum += match tuple.addresses() {
            Addresses::V4 { src, dst } => sum_of(&src.octets()) + sum_of(&dst.octets()),
            Addresses::V6 { src, dst } => sum_of(&src.octets()) + sum_of(&dst.octets()),
        };
        sum += u64::from(tuple.protocol.0) + payload.len() as u64;
    }
    match fold(sum) {
        0 if tuple.protocol == Protocol::UDP => 0xffff,
        sum => sum,
    }
}

/// Returns the packet that begins with an IP header, or `None` for what is not looked at:
/// neighbour discovery, multicast listeners, redirects, truncated packets.
pub(super) fn decode(bytes: &[u8]) -> Option<Packet> {
    match bytes.first()? >> 4 {
        4 => {
            let header = usize::from(bytes[0] & 0xf) * 4;
            if bytes.len() < 20.max(header) {
                return None;
            }
            let len = usize::from(be16(bytes, 2)?).min(bytes.len());
            let (src, dst) = (v4(&bytes[12..16])?, v4(&bytes[16..20])?);
            let rest = bytes.get(header..len)?;
            let mut packet = transport_of(Protocol(bytes[9]), src, dst, rest)?;
            (packet.ttl, packet.tos, packet.len) = (bytes[8], bytes[1], len as u32);
            Some(packet)
        }
        6 => {
            let (src, dst) = (v6(bytes.get(8..24)?)?, v6(bytes.get(24..40)?)?);
            let len = 40 + usize::from(be16(bytes, 4)?);
            let rest = bytes.get(40..len.min(bytes.len()))?;
            let mut packet = transport_of(Protocol(bytes[6]), src, dst, rest)?;
            packet.tos = bytes[0] << 4 | bytes[1] >> 4;
            (packet.ttl, packet.len) = (bytes[7], len as u32);
            Some(packet)
        }
        _ => None,
    }
}

/// Returns the packet with that transport header, with a TTL of 64 and without a length.
pub(super) fn transport_of(
    protocol: Protocol,
    src: IpAddr,
    dst: IpAddr,
    bytes: &[u8],
) -> Option<Packet> {
    let tuple = |a, b| Tuple::try_new(protocol, src, a, dst, b);
    let ports = || tuple(be16(bytes, 0)?, be16(bytes, 2)?);
    let (tuple, l4) = match protocol {
        Protocol::TCP => {
            let flags = TcpFlags::from_bits(*bytes.get(13)?);
            (ports()?, L4::Tcp { flags, segment: None })
        }
        Protocol::UDP => (ports()?, L4::Udp),
        Protocol::ICMP | Protocol::ICMPV6 => {
            let is_v4 = protocol == Protocol::ICMP;
            let (kind, code) = (*bytes.first()?, *bytes.get(1)?);
            let echo = if is_v4 { matches!(kind, 0 | 8) } else { matches!(kind, 128 | 129) };
            let part = u16::from(kind) << 8 | u16::from(code);
            if echo {
                (tuple(be16(bytes, 4)?, part)?, L4::IcmpEcho)
            } else {
                let kind = error_kind((kind, code), is_v4)?;
                let quote = quote_of(bytes.get(8..)?)?;
                (tuple(0, part)?, L4::IcmpError { kind, quote })
            }
        }
        _ => (tuple(0, 0)?, L4::Other),
    };
    Some(Packet::new(0, tuple, l4, 0))
}

fn quote_of(bytes: &[u8]) -> Option<Tuple> {
    let (protocol, src, dst, rest) = match bytes.first()? >> 4 {
        4 => {
            let header = usize::from(bytes[0] & 0xf) * 4;
            let rest = bytes.get(header..)?;
            (*bytes.get(9)?, v4(bytes.get(12..16)?)?, v4(bytes.get(16..20)?)?, rest)
        }
        6 => {
            let rest = bytes.get(40..)?;
            (*bytes.get(6)?, v6(bytes.get(8..24)?)?, v6(bytes.get(24..40)?)?, rest)
        }
        _ => return None,
    };
    let protocol = Protocol(protocol);
    let (a, b) = if protocol.is_icmp() {
        (be16(rest, 4)?, be16(rest, 0)?)
    } else if protocol.has_ports() {
        (be16(rest, 0)?, be16(rest, 2)?)
    } else {
        (0, 0)
    };
    Tuple::try_new(protocol, src, a, dst, b)
}

fn be16(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

fn v4(bytes: &[u8]) -> Option<IpAddr> {
    Some(IpAddr::V4(Ipv4Addr::from(<[u8; 4]>::try_from(bytes).ok()?)))
}

fn v6(bytes: &[u8]) -> Option<IpAddr> {
    Some(IpAddr::V6(Ipv6Addr::from(<[u8; 16]>::try_from(bytes).ok()?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packets() -> Vec<Packet> {
        let four = |protocol, a, b| {
            let (src, dst) = (Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(10, 0, 0, 2));
            Tuple::v4(protocol, src, a, dst, b)
        };
        let six = |protocol, a, b| {
            let (src, dst) = ("fd00::1".parse().unwrap(), "fd00::2".parse().unwrap());
            Tuple::try_new(protocol, src, a, dst, b).unwrap()
        };
        let tcp = Packet::tcp(0, four(Protocol::TCP, 40_000, 80), TcpFlags::SYN);
        let mut long = Packet::udp(0, six(Protocol::UDP, 40_001, 53), 333);
        (long.ttl, long.tos) = (7, 0x10);
        vec![
            tcp,
            long,
            Packet::icmp_echo(0, four(Protocol::ICMP, 77, 8 << 8)),
            Packet::icmp_echo(0, six(Protocol::ICMPV6, 77, 128 << 8)),
            Packet::icmp_error(&tcp, IcmpError::HostUnreachable, [10, 0, 0, 9].into()),
            Packet::icmp_error(&long, IcmpError::PortUnreachable, "fd00::9".parse().unwrap()),
        ]
    }

    #[test]
    fn bytes_and_back() {
        for packet in packets() {
            let back = decode(&encode(&packet)).unwrap();
            let bare = |packet: &Packet| {
                let l4 = match packet.l4 {
                    L4::Tcp { flags, .. } => L4::Tcp { flags, segment: None },
                    l4 => l4,
                };
                (packet.tuple, l4, packet.ttl, packet.tos)
            };
            assert_eq!(bare(&back), bare(&packet));
            if !packet.is_icmp_error() {
                assert_eq!(back.len, packet.len, "{packet:?}");
            }
        }
    }

    #[test]
    fn checksums_sum_to_nothing() {
        for packet in packets() {
            let bytes = encode(&packet);
            let ip = if packet.tuple.src().is_ipv4() { 20 } else { 40 };
            let sum = checksum(&packet.tuple, &bytes[ip..]);
            // UDP writes 0 as all ones.
            let is_udp = packet.tuple.protocol == Protocol::UDP;
            assert_eq!(sum, if is_udp { 0xffff } else { 0 }, "{packet:?}");
        }
    }

    #[test]
    fn truncated_bytes_are_nothing() {
        for packet in packets() {
            let bytes = encode(&packet);
            for len in 0..bytes.len() {
                let _ = decode(&bytes[..len]);
            }
        }
    }
}
