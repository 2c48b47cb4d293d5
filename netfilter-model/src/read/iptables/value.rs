//! Values of options.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::names;
use crate::prefix::Prefix;
use crate::rule::PortMatch;
use crate::tuple::Family;

/// A value that cannot be used, and why.
pub(super) type Refused = String;

/// Returns a number: decimal, hexadecimal behind `0x`, or octal behind `0`.
// iptables: xtoptions.c and xtables.c, xtables_strtoul with base 0
pub(super) fn number(text: &str, max: u64) -> Result<u64, Refused> {
    let digits = text.strip_prefix('+').unwrap_or(text);
    let hex = digits.strip_prefix("0x").or_else(|| digits.strip_prefix("0X"));
    let parsed = match hex {
        Some(hex) => u64::from_str_radix(hex, 16),
        None if digits.len() > 1 && digits.starts_with('0') => u64::from_str_radix(digits, 8),
        None => digits.parse(),
    };
    match parsed {
        Ok(number) if number <= max && !digits.starts_with('+') => Ok(number),
        _ => Err(format!("{text:?} is not a number from 0 to {max}")),
    }
}

pub(super) fn u32(text: &str) -> Result<u32, Refused> {
    number(text, u32::MAX.into()).map(|number| number as u32)
}

pub(super) fn u16(text: &str) -> Result<u16, Refused> {
    number(text, u16::MAX.into()).map(|number| number as u16)
}

pub(super) fn u8(text: &str) -> Result<u8, Refused> {
    number(text, u8::MAX.into()).map(|number| number as u8)
}

/// Returns a port by number or by service.
pub(super) fn port(text: &str) -> Result<u16, Refused> {
    let named = || names::service(text);
    u16(text).ok().or_else(named).ok_or_else(|| format!("{text:?} is no port"))
}

/// Returns a range with a separator between its ends, each of which may be left out.
pub(super) fn range<T: Copy + PartialOrd + std::fmt::Display>(
    text: &str,
    separator: char,
    (least, most): (T, T),
    parse: impl Fn(&str) -> Result<T, Refused>,
) -> Result<(T, T), Refused> {
    let end = |text: &str, absent| if text.is_empty() { Ok(absent) } else { parse(text) };
    let (min, max) = match text.split_once(separator) {
        Some((min, max)) => (end(min, least)?, end(max, most)?),
        None => {
            let only = parse(text)?;
            (only, only)
        }
    };
    if min > max {
        return Err(format!("the range {text} ends before it begins"));
    }
    Ok((min, max))
}

pub(super) fn ports(text: &str, invert: bool) -> Result<PortMatch, Refused> {
    let (min, max) = range(text, ':', (0, u16::MAX), port)?;
    Ok(PortMatch { min, max, invert })
}

/// Returns a value with a mask behind a slash.
pub(super) fn masked(text: &str, default: u32) -> Result<(u32, u32), Refused> {
    match text.split_once('/') {
        Some((value, mask)) => Ok((u32(value)?, u32(mask)?)),
        None => Ok((u32(text)?, default)),
    }
}

/// Returns an address, as far as it is written in numbers.
// iptables: xtables.c, __numeric_to_ipaddr: parts that are left out are 0
pub(super) fn address(family: Family, text: &str) -> Result<IpAddr, Refused> {
    let parsed = match family {
        Family::V4 => v4(text).map(IpAddr::V4),
        Family::V6 => {
            let inner = text.strip_prefix('[').and_then(|text| text.strip_suffix(']'));
            inner.unwrap_or(text).parse().ok().map(IpAddr::V6)
        }
    };
    parsed.ok_or_else(|| {
        let family = if family == Family::V4 { "IPv4" } else { "IPv6" };
        format!("{text:?} is no {family} address; names cannot be looked up")
    })
}

fn v4(text: &str) -> Option<Ipv4Addr> {
    let mut octets = [0; 4];
    for (count, part) in text.split('.').enumerate() {
        *octets.get_mut(count)? = part.parse().ok().filter(|_| !part.starts_with('+'))?;
    }
    Some(Ipv4Addr::from(octets))
}

/// Returns a mask: a length or an address.
pub(super) fn mask(family: Family, text: &str) -> Result<IpAddr, Refused> {
    if let Ok(len) = text.parse::<u8>()
        && len <= family.bits()
    {
        return Ok(match family {
            Family::V4 => {
                Ipv4Addr::from_bits(u32::MAX.checked_shl(32 - u32::from(len)).unwrap_or(0)).into()
            }
            Family::V6 => {
                let bits = u128::MAX.checked_shl(128 - u32::from(len)).unwrap_or(0);
                Ipv6Addr::from_bits(bits).into()
            }
        });
    }
    // Every part must be there: `/255` is no mask.
    let whole = family == Family::V6 || text.matches('.').count() == 3;
    let mask = address(family, text).ok().filter(|_| whole);
    mask.ok_or_else(|| format!("{text:?} is no mask"))
}

/// Returns an address with a mask behind a slash, both as written.
pub(super) fn address_and_mask(family: Family, text: &str) -> Result<(IpAddr, IpAddr), Refused> {
    let (addr, bits) = match text.split_once('/') {
        Some((addr, bits)) => (addr, mask(family, bits)?),
        None => (text, mask(family, if family == Family::V4 { "32" } else { "128" })?),
    };
    Ok((address(family, addr)?, bits))
}

/// Returns an address with a mask.
pub(super) fn prefix(family: Family, text: &str) -> Result<Prefix, Refused> {
    let (address, mask) = address_and_mask(family, text)?;
    Prefix::masked(address, mask).ok_or_else(|| format!("{text:?} mixes families"))
}

/// Returns the names of a list that are set, joined.
pub(super) fn names<T>(
    text: &str,
    empty: T,
    join: impl Fn(T, T) -> T,
    named: impl Fn(&str) -> Option<T>,
) -> Result<T, Refused> {
    text.split(',').try_fold(empty, |set, name| match named(name) {
        Some(one) => Ok(join(set, one)),
        None => Err(format!("{name:?} is not known here")),
    })
}

/// Returns a rate as the time between two, in periods of which a second has `scale`; and the unit
/// that was written, in seconds.
// iptables: libxt_limit.c and libxt_hashlimit.c, parse_rate
pub(super) fn rate(text: &str, scale: u64) -> Result<(u64, u32), Refused> {
    let refused = || format!("{text:?} is no rate");
    let (count, unit) = text.split_once('/').unwrap_or((text, "second"));
    let unit = unit.to_ascii_lowercase();
    const UNITS: [(&str, u32); 4] =
        [("second", 1), ("minute", 60), ("hour", 3600), ("day", 86_400)];
    let begins = |(name, _): &&(&str, u32)| !unit.is_empty() && name.starts_with(&unit);
    let (_, seconds) = UNITS.iter().find(begins).ok_or_else(refused)?;
    let count: u64 = count.parse().map_err(|_| refused())?;
    let period = (scale * u64::from(*seconds)).checked_div(count).ok_or_else(refused)?;
    if period == 0 { Err(format!("the rate {text} is too fast")) } else { Ok((period, *seconds)) }
}
