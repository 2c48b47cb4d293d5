//! What sets see of packets.

use crate::device::DeviceName;
use crate::packet::Packet;
use crate::rule::SetSide;
use crate::set::key::{Key, bits, mac_bits};
use crate::set::{Dimension, Header, SetKind};
use crate::tuple::Protocol;

/// A packet and what is known around it.
#[derive(Clone, Copy, Debug)]
pub struct Sight<'p> {
    /// The packet.
    pub packet: &'p Packet,
    /// The device that it came in by, at hooks that have one.
    pub in_dev: Option<DeviceName>,
    /// The device that it leaves by, at hooks that have one.
    pub out_dev: Option<DeviceName>,
    /// The frame's source address.
    pub source: Option<[u8; 6]>,
}

/// Why a packet gives no element.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NoKey {
    /// It has none of the kind.
    Absent,
    /// Whether it has is not known.
    Unknown,
}

impl Sight<'_> {
    /// Returns the element that a packet is, networks being whole addresses.
    pub(super) fn key(&self, header: &Header, sides: &[SetSide]) -> Result<Key, NoKey> {
        let kind = header.kind;
        let dimensions = kind.dimensions();
        // Kernel: ip_set_core.c, ip_set_test
        if sides.len() < dimensions.len() {
            return Err(NoKey::Absent);
        }
        let tuple = &self.packet.tuple;
        let v6 = tuple.src().is_ipv6();
        if kind.has_addresses() && v6 != header.v6 {
            return Err(NoKey::Absent);
        }
        let host = if v6 { 128 } else { 32 };
        let mut key = Key::default();
        let mut second = false;
        for (dimension, side) in dimensions.iter().zip(sides) {
            match dimension {
                Dimension::Ip | Dimension::Net => {
                    let address = match side {
                        SetSide::Source => tuple.src(),
                        SetSide::Destination => tuple.dst(),
                    };
                    if second {
                        (key.b, key.b_len) = (bits(address), host);
                    } else {
                        (key.a, key.a_len) = (bits(address), host);
                    }
                    second = true;
                }
                Dimension::Port => {
                    let (protocol, port) = self.port(*side).ok_or(NoKey::Absent)?;
                    // Kernel: pfxlen.h, ip_set_get_ip_port: a bitmap tells TCP from UDP no more
                    // than it takes other protocols.
                    if kind == SetKind::BitmapPort {
                        if !matches!(protocol, Protocol::TCP | Protocol::UDP) {
                            return Err(NoKey::Absent);
                        }
                    } else {
                        key.protocol = protocol.0;
                    }
                    key.port = port;
                }
                Dimension::Iface => {
                    let dev = match side {
                        SetSide::Source => self.in_dev,
                        SetSide::Destination => self.out_dev,
                    };
                    key.extra = dev.ok_or(NoKey::Absent)?.bits();
                }
                Dimension::Mac => match (side, self.source) {
                    (SetSide::Source, Some([0, 0, 0, 0, 0, 0])) => return Err(NoKey::Absent),
                    (SetSide::Source, Some(mac)) => key.extra = mac_bits(mac),
                    (SetSide::Source, None) if self.in_dev.is_none() => return Err(NoKey::Absent),
                    (SetSide::Source, None) => return Err(NoKey::Unknown),
                    (SetSide::Destination, _) => return Err(NoKey::Unknown),
                },
                Dimension::Mark => key.extra = u128::from(self.packet.mark & header.markmask()),
                Dimension::Set => {}
            }
        }
        if let Some(len) = header.netmask {
            key = key.with_len(false, len, v6);
            key.a_len = host;
        }
        Ok(key)
    }

    /// Returns the protocol and port; of ICMP, type and code.
    // Kernel: ip_set_getport.c, ip_set_get_ip4_port
    fn port(&self, side: SetSide) -> Option<(Protocol, u16)> {
        let tuple = &self.packet.tuple;
        let port = match tuple.protocol {
            Protocol::TCP | Protocol::UDP | Protocol::SCTP | Protocol::UDPLITE => match side {
                SetSide::Source => tuple.src_part,
                SetSide::Destination => tuple.dst_part,
            },
            Protocol::ICMP | Protocol::ICMPV6 => tuple.dst_part,
            protocol => return Some((protocol, 0)),
        };
        (!self.packet.is_later_fragment()).then_some((tuple.protocol, port))
    }
}
