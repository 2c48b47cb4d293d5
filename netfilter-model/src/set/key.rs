//! Elements as they are compared.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::device::DeviceName;
use crate::hash::Mix;
use crate::prefix::Prefix;
use crate::set::{Element, Part};
use crate::tuple::Protocol;

/// An element of any type; what its type does not have is zero.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Key {
    /// The first address or network.
    pub(super) a: u128,
    pub(super) a_len: u8,
    pub(super) protocol: u8,
    pub(super) port: u16,
    /// The second address or network.
    pub(super) b: u128,
    pub(super) b_len: u8,
    /// The device is the port of a bridge.
    pub(super) physdev: bool,
    /// The device's name is the beginning of one. Such stand behind whole names, which could not
    /// be added after them.
    pub(super) wildcard: bool,
    /// The device's name, the hardware address or the mark.
    pub(super) extra: u128,
}

impl Key {
    pub(super) fn hash(&self) -> u64 {
        let mut mix = Mix::new();
        let lens = u64::from(self.a_len) << 40 | u64::from(self.b_len) << 48;
        let flags = u64::from(self.physdev) << 56 | u64::from(self.wildcard) << 57;
        mix.word(u64::from(self.protocol) << 16 | u64::from(self.port) | lens | flags);
        for wide in [self.a, self.b, self.extra] {
            mix.word(wide as u64);
            mix.word((wide >> 64) as u64);
        }
        mix.finish()
    }

    /// Returns the key with a network in place of the first or second address.
    pub(super) fn with_len(mut self, second: bool, len: u8, v6: bool) -> Key {
        let (address, old) =
            if second { (&mut self.b, &mut self.b_len) } else { (&mut self.a, &mut self.a_len) };
        (*address, *old) = (masked(*address, len, v6), len);
        self
    }

    /// Returns the key of an element of which the dimensions are known to fit.
    pub(super) fn of(parts: &[Part]) -> Key {
        let mut key = Key::default();
        let mut second = false;
        for part in parts {
            match part {
                Part::Net(prefix) => {
                    let (address, len) = (bits(prefix.address()), prefix.len());
                    if second {
                        (key.b, key.b_len) = (address, len);
                    } else {
                        (key.a, key.a_len) = (address, len);
                    }
                    second = true;
                }
                Part::Port(protocol, port) => {
                    key.protocol = protocol.map_or(0, |protocol| protocol.0);
                    key.port = *port;
                }
                Part::Device { name, physdev, wildcard } => {
                    key.extra = name.bits();
                    (key.physdev, key.wildcard) = (*physdev, *wildcard);
                }
                Part::Mac(mac) => key.extra = mac_bits(*mac),
                Part::Mark(mark) => key.extra = u128::from(*mark),
                Part::Set(_) => {}
            }
        }
        key
    }

    /// Returns the parts of an element of this type.
    pub(super) fn parts(&self, kind: super::SetKind, v6: bool) -> Vec<Part> {
        use super::Dimension;
        let mut second = false;
        let dimensions = kind.dimensions().iter();
        dimensions
            .map(|dimension| match dimension {
                Dimension::Ip | Dimension::Net => {
                    let (bits, len) =
                        if second { (self.b, self.b_len) } else { (self.a, self.a_len) };
                    second = true;
                    Part::Net(Prefix::new(address(bits, v6), len))
                }
                Dimension::Port if kind == super::SetKind::BitmapPort => {
                    Part::Port(None, self.port)
                }
                Dimension::Port => Part::Port(Some(Protocol(self.protocol)), self.port),
                Dimension::Iface => Part::Device {
                    name: DeviceName::from_bits(self.extra),
                    physdev: self.physdev,
                    wildcard: self.wildcard,
                },
                Dimension::Mac => {
                    let mut mac = [0; 6];
                    mac.copy_from_slice(&self.extra.to_be_bytes()[10..]);
                    Part::Mac(mac)
                }
                Dimension::Mark => Part::Mark(self.extra as u32),
                Dimension::Set => unreachable!("a list has no keys"),
            })
            .collect()
    }
}

/// Returns an address as a number.
pub(super) fn bits(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => u128::from(address.to_bits()),
        IpAddr::V6(address) => address.to_bits(),
    }
}

/// Returns the address of a number.
pub(super) fn address(bits: u128, v6: bool) -> IpAddr {
    if v6 { Ipv6Addr::from_bits(bits).into() } else { Ipv4Addr::from_bits(bits as u32).into() }
}

/// Returns a hardware address as a number.
pub(super) fn mac_bits(mac: [u8; 6]) -> u128 {
    mac.into_iter().fold(0, |bits, byte| bits << 8 | u128::from(byte))
}

/// Returns the address with its host bits cleared.
pub(super) fn masked(address: u128, len: u8, v6: bool) -> u128 {
    let width = if v6 { 128 } else { 32 };
    let host = u32::from(width - len.min(width));
    address.checked_shr(host).and_then(|net| net.checked_shl(host)).unwrap_or(0)
}

impl Element {
    pub(super) fn key(&self) -> Key {
        Key::of(&self.parts)
    }
}
