//! Address prefixes.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::tuple::{Addresses, Tuple};

/// A network: an address and which of its bits count, nearly always the leading ones. The other
/// bits are cleared.
// The wide family is boxed: rules exist by the hundred thousand, and nearly all are IPv4.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prefix(Repr);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Repr {
    V4 { net: u32, mask: u32 },
    V6(Box<(u128, u128)>),
}

impl Prefix {
    /// Returns the prefix, with host bits cleared.
    ///
    /// # Panics
    ///
    /// If `len` is beyond the family's address length.
    pub fn new(addr: IpAddr, len: u8) -> Prefix {
        match addr {
            IpAddr::V4(addr) => {
                assert!(len <= 32, "prefix {addr}/{len} is longer than 32");
                let mask = u32::MAX.checked_shl(32 - u32::from(len)).unwrap_or(0);
                Prefix(Repr::V4 { net: addr.to_bits() & mask, mask })
            }
            IpAddr::V6(addr) => {
                assert!(len <= 128, "prefix {addr}/{len} is longer than 128");
                let mask = u128::MAX.checked_shl(128 - u32::from(len)).unwrap_or(0);
                Prefix(Repr::V6(Box::new((addr.to_bits() & mask, mask))))
            }
        }
    }

    /// Returns the prefix of one address.
    pub fn host(addr: IpAddr) -> Prefix {
        Prefix::new(addr, if addr.is_ipv4() { 32 } else { 128 })
    }

    /// Returns the addresses that agree with this one where the mask has ones, or `None` if the
    /// mask is of the other family.
    pub fn masked(addr: IpAddr, mask: IpAddr) -> Option<Prefix> {
        Some(Prefix(match (addr, mask) {
            (IpAddr::V4(addr), IpAddr::V4(mask)) => {
                Repr::V4 { net: addr.to_bits() & mask.to_bits(), mask: mask.to_bits() }
            }
            (IpAddr::V6(addr), IpAddr::V6(mask)) => {
                Repr::V6(Box::new((addr.to_bits() & mask.to_bits(), mask.to_bits())))
            }
            _ => return None,
        }))
    }

    /// Returns the mask.
    pub fn mask(&self) -> IpAddr {
        match &self.0 {
            Repr::V4 { mask, .. } => IpAddr::V4(Ipv4Addr::from_bits(*mask)),
            Repr::V6(wide) => IpAddr::V6(Ipv6Addr::from_bits(wide.1)),
        }
    }

    /// Returns whether the bits that count are the leading ones.
    pub fn is_contiguous(&self) -> bool {
        match &self.0 {
            Repr::V4 { mask, .. } => mask.leading_ones() == mask.count_ones(),
            Repr::V6(wide) => wide.1.leading_ones() == wide.1.count_ones(),
        }
    }

    /// Returns the network address.
    pub fn address(&self) -> IpAddr {
        match &self.0 {
            Repr::V4 { net, .. } => IpAddr::V4(Ipv4Addr::from_bits(*net)),
            Repr::V6(wide) => IpAddr::V6(Ipv6Addr::from_bits(wide.0)),
        }
    }

    /// Returns how many bits count.
    pub fn len(&self) -> u8 {
        match &self.0 {
            Repr::V4 { mask, .. } => mask.count_ones() as u8,
            Repr::V6(wide) => wide.1.count_ones() as u8,
        }
    }

    /// Returns whether the prefix holds every address of its family.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns network and mask of an IPv4 prefix.
    pub(crate) fn as_v4(&self) -> Option<(u32, u32)> {
        match self.0 {
            Repr::V4 { net, mask } => Some((net, mask)),
            Repr::V6(_) => None,
        }
    }

    /// Returns the one address that the prefix holds, if it is one.
    pub fn as_host(&self) -> Option<IpAddr> {
        match &self.0 {
            Repr::V4 { net, mask: u32::MAX } => Some(IpAddr::V4(Ipv4Addr::from_bits(*net))),
            Repr::V6(wide) if wide.1 == u128::MAX => Some(IpAddr::V6(Ipv6Addr::from_bits(wide.0))),
            _ => None,
        }
    }

    /// Returns the address with the prefix's network part in place of its own.
    ///
    /// # Panics
    ///
    /// If the address is of the other family.
    pub(crate) fn map(&self, addr: IpAddr) -> IpAddr {
        match (&self.0, addr) {
            (Repr::V4 { net, mask }, IpAddr::V4(addr)) => {
                Ipv4Addr::from_bits(net | addr.to_bits() & !mask).into()
            }
            (Repr::V6(wide), IpAddr::V6(addr)) => {
                Ipv6Addr::from_bits(wide.0 | addr.to_bits() & !wide.1).into()
            }
            _ => panic!("{addr} is not of the family of {self}"),
        }
    }

    /// Returns whether the address lies in the prefix.
    pub fn contains(&self, addr: IpAddr) -> bool {
        match (&self.0, addr) {
            (Repr::V4 { net, mask }, IpAddr::V4(addr)) => addr.to_bits() & mask == *net,
            (Repr::V6(wide), IpAddr::V6(addr)) => addr.to_bits() & wide.1 == wide.0,
            _ => false,
        }
    }

    /// Returns whether the tuple's source lies in the prefix.
    #[inline]
    pub(crate) fn contains_src(&self, tuple: &Tuple) -> bool {
        match (&self.0, tuple.addresses()) {
            (Repr::V4 { net, mask }, Addresses::V4 { src, .. }) => src.to_bits() & mask == *net,
            (Repr::V6(wide), Addresses::V6 { src, .. }) => src.to_bits() & wide.1 == wide.0,
            _ => false,
        }
    }

    /// Returns whether the tuple's destination lies in the prefix.
    #[inline]
    pub(crate) fn contains_dst(&self, tuple: &Tuple) -> bool {
        match (&self.0, tuple.addresses()) {
            (Repr::V4 { net, mask }, Addresses::V4 { dst, .. }) => dst.to_bits() & mask == *net,
            (Repr::V6(wide), Addresses::V6 { dst, .. }) => dst.to_bits() & wide.1 == wide.0,
            _ => false,
        }
    }
}

impl fmt::Display for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_contiguous() {
            write!(f, "{}/{}", self.address(), self.len())
        } else {
            write!(f, "{}/{}", self.address(), self.mask())
        }
    }
}
