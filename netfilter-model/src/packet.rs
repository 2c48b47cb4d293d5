//! A packet as a struct of fields, not bytes.

use std::fmt;
use std::ops::BitOr;

use crate::tuple::{Protocol, Tuple};

/// The six flags of a TCP header that netfilter can match.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct TcpFlags(u8);

impl TcpFlags {
    /// No flag.
    pub const NONE: TcpFlags = TcpFlags(0);
    /// The sender is done.
    pub const FIN: TcpFlags = TcpFlags(0x01);
    /// A connection is opened.
    pub const SYN: TcpFlags = TcpFlags(0x02);
    /// A connection is cut.
    pub const RST: TcpFlags = TcpFlags(0x04);
    /// Data is to be handed up.
    pub const PSH: TcpFlags = TcpFlags(0x08);
    /// The acknowledgement number holds.
    pub const ACK: TcpFlags = TcpFlags(0x10);
    /// The urgent pointer holds.
    pub const URG: TcpFlags = TcpFlags(0x20);
    /// All six.
    pub const ALL: TcpFlags = TcpFlags(0x3f);
    /// The answer to an opening segment.
    pub const SYN_ACK: TcpFlags = TcpFlags(0x12);
    /// What `--syn` looks at.
    pub const FIN_SYN_RST_ACK: TcpFlags = TcpFlags(0x17);

    /// ECN echo: kept, and seen by no rule.
    pub const ECE: TcpFlags = TcpFlags(0x40);
    /// The congestion window was reduced: kept, and seen by no rule.
    pub const CWR: TcpFlags = TcpFlags(0x80);

    /// Returns the flags of a byte as in the header.
    pub const fn from_bits(bits: u8) -> TcpFlags {
        TcpFlags(bits)
    }

    /// Returns the byte as in the header.
    pub const fn bits(self) -> u8 {
        self.0
    }

    /// Returns whether all of `flags` are set.
    pub const fn contains(self, flags: TcpFlags) -> bool {
        self.0 & flags.0 == flags.0
    }

    /// Returns the flags that are in `mask`.
    pub const fn masked(self, mask: TcpFlags) -> TcpFlags {
        TcpFlags(self.0 & mask.0)
    }

    const NAMES: [(TcpFlags, &str); 6] = [
        (TcpFlags::FIN, "FIN"),
        (TcpFlags::SYN, "SYN"),
        (TcpFlags::RST, "RST"),
        (TcpFlags::PSH, "PSH"),
        (TcpFlags::ACK, "ACK"),
        (TcpFlags::URG, "URG"),
    ];

    /// Returns the flag of a name.
    pub fn named(name: &str) -> Option<TcpFlags> {
        let known = |(_, known): &&(TcpFlags, &str)| known.eq_ignore_ascii_case(name);
        TcpFlags::NAMES.iter().find(known).map(|(flag, _)| *flag)
    }

    /// Returns the flags with their names, in the order in which iptables prints them.
    pub fn names(self) -> impl Iterator<Item = &'static str> + Clone {
        TcpFlags::NAMES
            .into_iter()
            .filter(move |(flag, _)| self.contains(*flag))
            .map(|(_, name)| name)
    }
}

impl BitOr for TcpFlags {
    type Output = TcpFlags;

    fn bitor(self, other: TcpFlags) -> TcpFlags {
        TcpFlags(self.0 | other.0)
    }
}

impl fmt::Debug for TcpFlags {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if *self == TcpFlags::NONE {
            return f.write_str("NONE");
        }
        for (i, name) in self.names().enumerate() {
            if i > 0 {
                f.write_str("+")?;
            }
            f.write_str(name)?;
        }
        Ok(())
    }
}

/// Which ICMP error a packet is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum IcmpError {
    /// Type 3, code 0.
    NetUnreachable,
    /// Type 3, code 1.
    HostUnreachable,
    /// Type 3, code 2.
    ProtocolUnreachable,
    /// Type 3, code 3.
    PortUnreachable,
    /// Type 3, code 4.
    FragmentationNeeded,
    /// Type 3, code 9.
    NetProhibited,
    /// Type 3, code 10.
    HostProhibited,
    /// Type 3, code 13.
    AdminProhibited,
    /// Type 11, code 0.
    TimeExceeded,
    /// Any other type and code of an error.
    Other(u8, u8),
}

impl IcmpError {
    /// Returns type and code in ICMP for IPv4.
    pub const fn kind(self) -> (u8, u8) {
        match self {
            IcmpError::NetUnreachable => (3, 0),
            IcmpError::HostUnreachable => (3, 1),
            IcmpError::ProtocolUnreachable => (3, 2),
            IcmpError::PortUnreachable => (3, 3),
            IcmpError::FragmentationNeeded => (3, 4),
            IcmpError::NetProhibited => (3, 9),
            IcmpError::HostProhibited => (3, 10),
            IcmpError::AdminProhibited => (3, 13),
            IcmpError::TimeExceeded => (11, 0),
            IcmpError::Other(kind, code) => (kind, code),
        }
    }

    /// Returns type and code in ICMPv6.
    pub const fn kind6(self) -> (u8, u8) {
        match self {
            IcmpError::NetUnreachable => (1, 0),
            IcmpError::NetProhibited | IcmpError::HostProhibited | IcmpError::AdminProhibited => {
                (1, 1)
            }
            IcmpError::HostUnreachable => (1, 3),
            IcmpError::PortUnreachable => (1, 4),
            IcmpError::FragmentationNeeded => (2, 0),
            IcmpError::TimeExceeded => (3, 0),
            // An unknown next header is a problem with a parameter.
            IcmpError::ProtocolUnreachable => (4, 1),
            IcmpError::Other(kind, code) => (kind, code),
        }
    }

    /// Returns the error of this type and code in ICMP for IPv4.
    pub const fn of_kind(kind: u8, code: u8) -> IcmpError {
        match (kind, code) {
            (3, 0) => IcmpError::NetUnreachable,
            (3, 1) => IcmpError::HostUnreachable,
            (3, 2) => IcmpError::ProtocolUnreachable,
            (3, 3) => IcmpError::PortUnreachable,
            (3, 4) => IcmpError::FragmentationNeeded,
            (3, 9) => IcmpError::NetProhibited,
            (3, 10) => IcmpError::HostProhibited,
            (3, 13) => IcmpError::AdminProhibited,
            (11, 0) => IcmpError::TimeExceeded,
            (kind, code) => IcmpError::Other(kind, code),
        }
    }
}

/// Where a TCP segment stands in its stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Segment {
    /// Its sequence number.
    pub seq: u32,
    /// What it acknowledges, under ACK.
    pub ack: u32,
    /// The window as it stands in the header.
    pub window: u16,
    /// How many bytes of data it carries.
    pub data: u16,
    /// Which options its header has: bit k for the option of kind k, up to 63.
    pub options: u64,
    /// The maximum segment size that it announces; 0 for none.
    pub mss: u16,
    /// The window scale that it announces, under option 3.
    pub scale: u8,
    /// The end of the highest block that it acknowledges selectively, under option 5.
    pub sack: u32,
}

impl Segment {
    /// The options of a SYN from Linux: kinds 2, 3, 4 and 8.
    pub const SYN_OPTIONS: u64 = 1 << 2 | 1 << 3 | 1 << 4 | 1 << 8;
}

/// The place of a fragment in its packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fragment {
    /// Where it begins, in bytes of the IP payload.
    pub offset: u16,
    /// Others follow.
    pub more: bool,
}

/// What stands above the IP header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum L4 {
    /// A TCP segment.
    Tcp {
        /// Its flags.
        flags: TcpFlags,
        /// Where it stands in the stream. Without, connection tracking checks no window.
        segment: Option<Segment>,
    },
    /// A UDP datagram.
    Udp,
    /// An ICMP query or answer; the tuple holds type, code and id.
    IcmpEcho,
    /// An ICMP error.
    IcmpError {
        /// What went wrong.
        kind: IcmpError,
        /// The packet that it is about, as the sender of the error saw it.
        quote: Tuple,
    },
    /// Any other protocol.
    Other,
}

/// A packet. Small and cheap to move: the hot path moves millions per second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet {
    /// Whose packet it is; opaque here.
    pub id: u64,
    /// Where it comes from and goes to.
    pub tuple: Tuple,
    /// Transport header.
    pub l4: L4,
    /// Hops left.
    pub ttl: u8,
    /// The packet mark: lives inside one host only.
    pub mark: u32,
    /// Length of the IP packet in bytes.
    pub len: u32,
    /// The TOS byte.
    pub tos: u8,
    /// The checksum of the transport header is wrong.
    pub bad_checksum: bool,
    /// Its place, if it is a fragment.
    pub fragment: Option<Fragment>,
}

impl Packet {
    /// Initial TTL of Linux.
    pub const TTL: u8 = 64;

    /// Returns a whole packet as a Linux host makes it.
    pub const fn new(id: u64, tuple: Tuple, l4: L4, len: u32) -> Packet {
        let (ttl, mark, tos) = (Packet::TTL, 0, 0);
        Packet { id, tuple, l4, ttl, mark, len, tos, bad_checksum: false, fragment: None }
    }

    /// Returns a TCP segment without data.
    pub fn tcp(id: u64, tuple: Tuple, flags: TcpFlags) -> Packet {
        assert_eq!(tuple.protocol, Protocol::TCP, "a TCP segment with the tuple {tuple:?}");
        let len = if tuple.is_ipv4() { 40 } else { 60 };
        Packet::new(id, tuple, L4::Tcp { flags, segment: None }, len)
    }

    /// Returns the segment that resets a connection; a reset, and what is not TCP, is not answered
    /// with one.
    // Kernel: nf_reject_ipv4.c, nf_reject_ip_tcphdr_put; tcp_ipv4.c, tcp_v4_send_reset
    pub fn tcp_reset(id: u64, about: &Packet) -> Option<Packet> {
        let L4::Tcp { flags, segment } = about.l4 else {
            return None;
        };
        if flags.contains(TcpFlags::RST) {
            return None;
        }
        // An acknowledged segment is reset at its acknowledgement number, without ACK.
        let acked = flags.contains(TcpFlags::ACK);
        let answer = if acked { TcpFlags::RST } else { TcpFlags::RST | TcpFlags::ACK };
        let segment = segment.map(|about| {
            let ends = flags.contains(TcpFlags::SYN) || flags.contains(TcpFlags::FIN);
            let end = about.seq.wrapping_add(u32::from(about.data) + u32::from(ends));
            let (seq, ack) = if acked { (about.ack, 0) } else { (0, end) };
            Segment { seq, ack, ..Segment::default() }
        });
        let l4 = L4::Tcp { flags: answer, segment };
        let len = about.header_len() + 20;
        Some(Packet::new(id, about.tuple.reply(), l4, len))
    }

    /// Returns a UDP datagram of `len` bytes, IP header included.
    pub fn udp(id: u64, tuple: Tuple, len: u32) -> Packet {
        assert_eq!(tuple.protocol, Protocol::UDP, "a UDP datagram with the tuple {tuple:?}");
        Packet::new(id, tuple, L4::Udp, len)
    }

    /// Returns an ICMP query or answer.
    pub fn icmp_echo(id: u64, tuple: Tuple) -> Packet {
        assert!(tuple.protocol.is_icmp(), "an ICMP message with the tuple {tuple:?}");
        Packet::new(id, tuple, L4::IcmpEcho, 84)
    }

    /// Returns the ICMP error that answers `about`, sent from `from`.
    ///
    /// # Panics
    ///
    /// If `from` is of another family than the packet.
    pub fn icmp_error(about: &Packet, kind: IcmpError, from: std::net::IpAddr) -> Packet {
        let (protocol, (icmp_type, code)) = match from {
            std::net::IpAddr::V4(_) => (Protocol::ICMP, kind.kind()),
            std::net::IpAddr::V6(_) => (Protocol::ICMPV6, kind.kind6()),
        };
        let part = u16::from(icmp_type) << 8 | u16::from(code);
        let tuple = Tuple::try_new(protocol, from, 0, about.tuple.src(), part)
            .unwrap_or_else(|| panic!("error from {from} about {:?}", about.tuple));
        // The quote is cut so that the error fits 576 bytes, over IPv6 1280.
        let len =
            if from.is_ipv4() { (28 + about.len).min(576) } else { (48 + about.len).min(1280) };
        let l4 = L4::IcmpError { kind, quote: about.tuple };
        let mut error = Packet::new(about.id, tuple, l4, len);
        // Kernel: icmp.c, __icmp_send: IPTOS_PREC_INTERNETCONTROL
        if from.is_ipv4() {
            error.tos = about.tos & 0x1e | 0xc0;
        }
        error
    }

    /// Returns the length of the IP header.
    pub const fn header_len(&self) -> u32 {
        if self.tuple.is_ipv4() { 20 } else { 40 }
    }

    /// Returns the fragments of a whole packet: pieces of at most `piece` bytes (rounded down to
    /// a multiple of 8, at least 8) behind IP headers of their own.
    pub fn cut(&self, piece: u16) -> impl Iterator<Item = Packet> {
        let whole = *self;
        let step = u32::from((piece / 8).max(1)) * 8;
        let header = whole.header_len();
        let end = whole.len.saturating_sub(header).min(u32::from(u16::MAX));
        (0..end.max(1)).step_by(step as usize).map(move |from| {
            let to = (from + step).min(end);
            let fragment = Some(Fragment { offset: from as u16, more: to < end });
            Packet { fragment, len: header + (to - from), ..whole }
        })
    }

    /// Returns the TCP flags, or `None` if the packet is not TCP.
    pub const fn tcp_flags(&self) -> Option<TcpFlags> {
        match self.l4 {
            L4::Tcp { flags, .. } => Some(flags),
            _ => None,
        }
    }

    /// Returns whether this is a fragment without a transport header.
    #[inline]
    pub const fn is_later_fragment(&self) -> bool {
        matches!(self.fragment, Some(Fragment { offset: 1.., .. }))
    }

    /// Returns whether the TCP header has an option. Without a [`Segment`], it has what Linux
    /// sends: in a SYN maximum segment size, selective acknowledgements, time stamps and window
    /// scale, else time stamps.
    pub const fn has_tcp_option(&self, kind: u8) -> bool {
        let L4::Tcp { flags, segment } = &self.l4 else {
            return false;
        };
        let options = match segment {
            Some(segment) => segment.options,
            None if flags.contains(TcpFlags::SYN) => Segment::SYN_OPTIONS,
            None => 1 << 8,
        };
        kind < 64 && options & 1 << kind != 0
    }

    /// Returns whether this packet is an ICMP error.
    pub const fn is_icmp_error(&self) -> bool {
        matches!(self.l4, L4::IcmpError { .. })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn icmp_errors_have_the_numbers_of_their_family() {
        let kind = IcmpError::PortUnreachable;
        for (src, dst, expected) in
            [("10.0.0.1", "10.0.0.2", (3, 3)), ("fd00::1", "fd00::2", (1, 4))]
        {
            let (src, dst) = (src.parse().unwrap(), dst.parse().unwrap());
            let about = Tuple::try_new(Protocol::UDP, src, 1, dst, 2).unwrap();
            let error = Packet::icmp_error(&Packet::udp(1, about, 60), kind, dst);
            assert_eq!(error.tuple.icmp_kind(), expected);
        }
        for kind in 0..=12 {
            for code in 0..=15 {
                assert_eq!(IcmpError::of_kind(kind, code).kind(), (kind, code));
            }
        }
    }

    #[test]
    fn resets_answer_at_the_acknowledgement_number() {
        let tuple = Tuple::v4(Protocol::TCP, [10, 0, 0, 1].into(), 1, [10, 0, 0, 2].into(), 2);
        let segment = |flags, seq, ack, data| {
            let segment = Some(Segment { seq, ack, data, ..Segment::default() });
            Packet::new(1, tuple, L4::Tcp { flags, segment }, 40)
        };
        let numbers = |about: &Packet| match Packet::tcp_reset(1, about)?.l4 {
            L4::Tcp { flags, segment: Some(segment) } => Some((flags, segment.seq, segment.ack)),
            _ => None,
        };
        let syn = segment(TcpFlags::SYN, 7, 0, 0);
        assert_eq!(numbers(&syn), Some((TcpFlags::RST | TcpFlags::ACK, 0, 8)));
        let data = segment(TcpFlags::ACK, 7, 50, 10);
        assert_eq!(numbers(&data), Some((TcpFlags::RST, 50, 0)));
        assert_eq!(numbers(&segment(TcpFlags::RST, 7, 0, 0)), None);
    }
}
