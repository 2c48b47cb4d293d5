//! Elements and sets as ipset writes them.

use std::fmt::Write as _;
use std::net::IpAddr;
use std::sync::Arc;

use crate::device::DeviceName;
use crate::prefix::Prefix;
use crate::set::key::{address, bits, masked};
use crate::set::{Dimension, Element, ElementError, Header, Part, Set, SetKind, Sets};
use crate::time::SimTime;
use crate::tuple::Protocol;

/// The largest range that one line may name.
// Kernel: ip_set_hash_gen.h, IPSET_MAX_RANGE
const RANGE_MAX: u64 = 1 << 20;

impl Set {
    /// Returns the elements that a text names, as it stands behind `ipset add SET`: ranges give
    /// one element for each of theirs.
    ///
    /// # Errors
    ///
    /// If the text does not fit the set's type.
    pub fn parse_elements(&self, text: &str) -> Result<Vec<Element>, ElementError> {
        self.parse_elements_up_to(text, RANGE_MAX)
    }

    pub(crate) fn parse_elements_up_to(
        &self,
        text: &str,
        max: u64,
    ) -> Result<Vec<Element>, ElementError> {
        let header = self.header();
        let (entry, options) = text.trim().split_once(char::is_whitespace).unwrap_or((text, ""));
        let dimensions = header.kind.dimensions();
        let texts: Vec<&str> = entry.trim().split(',').take(dimensions.len() + 1).collect();
        if texts.len() != dimensions.len() {
            let (found, wanted) = (texts.len(), dimensions.len());
            return Err(ElementError::Parts { found, wanted, kind: header.kind.name() });
        }
        let mut template = Element::default();
        let wildcard = parse_options(options, &mut template)?;
        let mut ranges = Vec::with_capacity(texts.len());
        let mut count = 1_u64;
        for (text, dimension) in texts.iter().zip(dimensions) {
            let range = parse_part(text, *dimension, header, wildcard)?;
            count = count.saturating_mul(range.len());
            if count > max.min(RANGE_MAX) {
                return Err(ElementError::TooMany(max.min(RANGE_MAX)));
            }
            ranges.push(range);
        }
        let elements = (0..count).map(|n| {
            let mut rest = n;
            let mut parts: Vec<Part> = Vec::with_capacity(ranges.len());
            for range in ranges.iter().rev() {
                parts.push(range.get(rest % range.len()));
                rest /= range.len();
            }
            parts.reverse();
            Element { parts, ..template.clone() }
        });
        Ok(elements.collect())
    }
}

/// What one part of an entry names.
enum Range {
    One(Part),
    /// Host addresses, this many apart.
    Hosts {
        first: u128,
        step: u128,
        count: u64,
        v6: bool,
    },
    Nets(Vec<Prefix>),
    Ports {
        protocol: Option<Protocol>,
        first: u16,
        last: u16,
    },
}

impl Range {
    fn len(&self) -> u64 {
        match self {
            Range::One(_) => 1,
            Range::Hosts { count, .. } => *count,
            Range::Nets(nets) => nets.len() as u64,
            Range::Ports { first, last, .. } => u64::from(last - first) + 1,
        }
    }

    fn get(&self, n: u64) -> Part {
        match self {
            Range::One(part) => part.clone(),
            Range::Hosts { first, step, v6, .. } => {
                Part::Net(Prefix::host(address(first + step * u128::from(n), *v6)))
            }
            Range::Nets(nets) => Part::Net(nets[n as usize].clone()),
            Range::Ports { protocol, first, .. } => Part::Port(*protocol, first + n as u16),
        }
    }
}

fn parse_part(
    text: &str,
    dimension: Dimension,
    header: &Header,
    wildcard: bool,
) -> Result<Range, ElementError> {
    let wrong = |wanted| move || ElementError::Part { text: text.to_owned(), wanted };
    let one = |part: Option<Part>, wanted| part.map(Range::One).ok_or_else(wrong(wanted));
    match dimension {
        Dimension::Ip => {
            let wanted = if header.v6 { "IPv6 address or range" } else { "IPv4 address or range" };
            let (first, last) = parse_addresses(text, header.v6).ok_or_else(wrong(wanted))?;
            let len = header.netmask.unwrap_or(if header.v6 { 128 } else { 32 });
            let step = 1_u128.checked_shl(if header.v6 { 128 } else { 32 } - u32::from(len));
            let (step, first) = match step {
                Some(step) => (step, masked(first, len, header.v6)),
                None => (u128::MAX, 0),
            };
            let count = u64::try_from((last - first) / step).unwrap_or(u64::MAX).saturating_add(1);
            Ok(Range::Hosts { first, step, count, v6: header.v6 })
        }
        Dimension::Net => {
            let wanted = if header.v6 { "IPv6 network or range" } else { "IPv4 network or range" };
            let nets = parse_networks(text, header.v6).ok_or_else(wrong(wanted))?;
            Ok(Range::Nets(nets))
        }
        Dimension::Port => {
            parse_ports(text, header).ok_or_else(wrong("port, [protocol:]port or range of ports"))
        }
        Dimension::Iface => {
            let (physdev, name) = match text.strip_prefix("physdev:") {
                Some(name) => (true, name),
                None => (false, text),
            };
            let device = |name| Part::Device { name, physdev, wildcard };
            let name = Some(name).filter(|name| !name.contains(['#', '$']));
            one(name.and_then(|name| DeviceName::parse(name).ok()).map(device), "device name")
        }
        Dimension::Mac => one(parse_mac(text).map(Part::Mac), "hardware address"),
        Dimension::Mark => one(parse_number(text).map(Part::Mark), "mark"),
        Dimension::Set => one(is_set_name(text).then(|| Part::Set(text.into())), "name of a set"),
    }
}

/// Returns whether a set may have this name: ipset takes more, but nobody could paste it.
// Kernel: uapi/linux/netfilter/ipset/ip_set.h, IPSET_MAXNAMELEN
pub(crate) fn is_set_name(text: &str) -> bool {
    let strange = |c: char| c.is_whitespace() || c.is_control() || matches!(c, '#' | '$' | ',');
    (1..=31).contains(&text.len()) && !text.starts_with('-') && !text.contains(strange)
}

/// Returns the first and last address of `A`, `A/LEN` or `A-B`.
pub(crate) fn parse_addresses(text: &str, v6: bool) -> Option<(u128, u128)> {
    let parse = |text: &str| {
        let address: IpAddr = text.trim_matches(['[', ']']).parse().ok()?;
        (address.is_ipv6() == v6).then(|| bits(address))
    };
    if let Some((first, last)) = text.split_once('-') {
        let (first, last) = (parse(first)?, parse(last)?);
        return Some((first.min(last), first.max(last)));
    }
    let Some((address, len)) = text.split_once('/') else {
        let address = parse(text)?;
        return Some((address, address));
    };
    let width = if v6 { 128 } else { 32 };
    let len: u8 = len.parse().ok().filter(|len| *len <= width)?;
    let first = masked(parse(address)?, len, v6);
    let hosts = u128::MAX.checked_shr(128 - u32::from(width - len)).unwrap_or(0);
    Some((first, first | hosts))
}

/// Returns the networks of `A`, `A/LEN` or `A-B`.
fn parse_networks(text: &str, v6: bool) -> Option<Vec<Prefix>> {
    let width = if v6 { 128 } else { 32 };
    if let Some((addr, len)) = text.split_once('/') {
        let len: u8 = len.parse().ok().filter(|len| *len <= width)?;
        let addr: IpAddr = addr.parse().ok().filter(|addr: &IpAddr| addr.is_ipv6() == v6)?;
        return Some(vec![Prefix::new(addr, len)]);
    }
    let (mut first, last) = parse_addresses(text, v6)?;
    let mut nets = Vec::new();
    loop {
        // The largest network that begins here and ends in time.
        let aligned = first.trailing_zeros().min(u32::from(width));
        let room = (last - first).checked_add(1).map_or(u32::from(width), u128::ilog2);
        let host = aligned.min(room);
        nets.push(Prefix::new(address(first, v6), width - host as u8));
        let end = first | u128::MAX.checked_shr(128 - host).unwrap_or(0);
        if end >= last {
            return Some(nets);
        }
        first = end + 1;
    }
}

fn parse_ports(text: &str, header: &Header) -> Option<Range> {
    let bitmap = header.kind == SetKind::BitmapPort;
    let (protocol, ports) = match text.split_once(':') {
        Some((protocol, ports)) => (parse_protocol(protocol)?, ports),
        None => (Protocol::TCP, text),
    };
    let icmp: &[(&str, u8, u8)] = match protocol {
        Protocol::ICMP => &ICMP,
        Protocol::ICMPV6 => &ICMPV6,
        _ => &[],
    };
    if protocol.is_icmp() {
        let named = icmp.iter().find(|(name, ..)| *name == ports).map(|(_, k, c)| (*k, *c));
        let (kind, code) = named.or_else(|| {
            let (kind, code) = ports.split_once('/').unwrap_or((ports, "0"));
            Some((kind.parse().ok()?, code.parse().ok()?))
        })?;
        let port = u16::from(kind) << 8 | u16::from(code);
        return (!bitmap).then_some(Range::One(Part::Port(Some(protocol), port)));
    }
    let (first, last) = ports.split_once('-').unwrap_or((ports, ports));
    let (first, last): (u16, u16) = (first.parse().ok()?, last.parse().ok()?);
    let protocol = (!bitmap).then_some(protocol);
    Some(Range::Ports { protocol, first: first.min(last), last: first.max(last) })
}

fn parse_protocol(text: &str) -> Option<Protocol> {
    let text = text.to_ascii_lowercase();
    if text == "icmpv6" {
        return Some(Protocol::ICMPV6);
    }
    let named = (1..=255).map(Protocol).find(|protocol| protocol.name() == Some(&text));
    named.or_else(|| text.parse().ok().map(Protocol))
}

fn parse_mac(text: &str) -> Option<[u8; 6]> {
    let mut mac = [0; 6];
    let mut bytes = text.split([':', '-']);
    for byte in &mut mac {
        *byte = u8::from_str_radix(bytes.next()?, 16).ok()?;
    }
    bytes.next().is_none().then_some(mac)
}

/// Returns a decimal or hexadecimal number.
pub(crate) fn parse_number(text: &str) -> Option<u32> {
    match text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        Some(hex) => u32::from_str_radix(hex, 16).ok(),
        None => text.parse().ok(),
    }
}

/// Reads what stands behind an entry, and returns whether its device is a beginning only.
fn parse_options(text: &str, element: &mut Element) -> Result<bool, ElementError> {
    let mut wildcard = false;
    let mut other = String::new();
    let mut rest = text.trim();
    while !rest.is_empty() {
        let (option, behind) = rest.split_once(char::is_whitespace).unwrap_or((rest, ""));
        rest = behind.trim_start();
        let wrong = || ElementError::Option(option.to_owned());
        match option {
            "nomatch" => element.nomatch = true,
            "wildcard" => wildcard = true,
            "comment" => {
                let inner = rest.strip_prefix('"').ok_or_else(wrong)?;
                let end = inner.find('"').ok_or_else(wrong)?;
                let _ = write!(other, " comment \"{}\"", &inner[..end]);
                rest = inner[end + 1..].trim_start();
            }
            "timeout" | "packets" | "bytes" | "skbmark" | "skbprio" | "skbqueue" => {
                let (value, behind) = rest.split_once(char::is_whitespace).unwrap_or((rest, ""));
                rest = behind.trim_start();
                if option == "timeout" {
                    element.timeout = Some(value.parse().map_err(|_| wrong())?);
                } else if value.is_empty() {
                    return Err(wrong());
                } else {
                    let _ = write!(other, " {option} {value}");
                }
            }
            _ => return Err(wrong()),
        }
    }
    let other = other.trim_start();
    element.other = (!other.is_empty()).then(|| other.into());
    Ok(wildcard)
}

impl Sets {
    /// Returns the sets as `ipset save` prints them, elements sorted.
    pub fn save(&self, now: SimTime) -> String {
        // A list can only be made when its members are there.
        let is_list = |set: &&Set| set.header().kind == SetKind::ListSet;
        let plain = self.iter().filter(|set| !is_list(set));
        plain.chain(self.iter().filter(is_list)).map(|set| set.save(now)).collect()
    }
}

impl Set {
    /// Returns the set as `ipset save` prints it, elements sorted.
    pub fn save(&self, now: SimTime) -> String {
        let mut text = format!("create {} {}{}\n", self.name(), self.header().kind, self.options());
        for element in self.elements(now) {
            let _ = writeln!(text, "add {} {}", self.name(), member(&element));
        }
        text
    }

    /// Returns the set as `ipset list` prints it, elements sorted.
    pub fn list(&self, now: SimTime) -> String {
        let elements = self.elements(now);
        let (name, kind, options) = (self.name(), self.header().kind, self.options());
        let mut text = format!("Name: {name}\nType: {kind}\nHeader:{options}\n");
        let _ = writeln!(text, "Number of entries: {}\nMembers:", elements.len());
        for element in elements {
            let _ = writeln!(text, "{}", member(&element));
        }
        text
    }

    /// Returns the options of the set's creation, each behind a blank.
    fn options(&self) -> String {
        let header = self.header();
        let mut text = String::new();
        let mut put = |name: &str, value: &dyn std::fmt::Display| {
            let _ = write!(text, " {name} {value}");
        };
        match (header.kind, header.range) {
            (SetKind::BitmapIp, Some((first, last))) => {
                let (first, last) = (address(first.into(), false), address(last.into(), false));
                put("range", &format!("{first}-{last}"));
            }
            (SetKind::BitmapPort, Some((first, last))) => put("range", &format!("{first}-{last}")),
            (SetKind::ListSet, _) => put("size", &header.size.unwrap_or(8)),
            _ => {
                if header.kind != SetKind::HashMac {
                    put("family", &if header.v6 { "inet6" } else { "inet" });
                }
                if let Some(mask) = header.markmask {
                    put("markmask", &format!("0x{mask:08x}"));
                }
                put("hashsize", &header.hashsize);
                put("maxelem", &header.maxelem);
            }
        }
        if let Some(len) = header.netmask {
            put("netmask", &len);
        }
        if let Some(timeout) = header.timeout {
            put("timeout", &timeout);
        }
        for option in &header.other {
            let _ = write!(text, " {option}");
        }
        text
    }
}

/// Returns an element with what belongs to it.
fn member(element: &Element) -> String {
    let mut text = element.to_string();
    if element.parts.iter().any(|part| matches!(part, Part::Device { wildcard: true, .. })) {
        text.push_str(" wildcard");
    }
    if let Some(timeout) = element.timeout {
        let _ = write!(text, " timeout {timeout}");
    }
    if element.nomatch {
        text.push_str(" nomatch");
    }
    if let Some(other) = &element.other {
        let _ = write!(text, " {other}");
    }
    text
}

/// Returns the name that ipset has for an ICMP type and code.
pub(super) fn icmp_name(protocol: Protocol, kind: u8, code: u8) -> Option<&'static str> {
    let names: &[_] = if protocol == Protocol::ICMP { &ICMP } else { &ICMPV6 };
    names.iter().find(|(_, k, c)| (*k, *c) == (kind, code)).map(|(name, ..)| *name)
}

/// Names of ICMP types and codes; of several for one, the first is printed.
const ICMP: [(&str, u8, u8); 24] = [
    ("echo-reply", 0, 0),
    ("pong", 0, 0),
    ("network-unreachable", 3, 0),
    ("host-unreachable", 3, 1),
    ("protocol-unreachable", 3, 2),
    ("port-unreachable", 3, 3),
    ("fragmentation-needed", 3, 4),
    ("source-route-failed", 3, 5),
    ("network-unknown", 3, 6),
    ("host-unknown", 3, 7),
    ("network-prohibited", 3, 9),
    ("host-prohibited", 3, 10),
    ("communication-prohibited", 3, 13),
    ("source-quench", 4, 0),
    ("network-redirect", 5, 0),
    ("host-redirect", 5, 1),
    ("echo-request", 8, 0),
    ("ping", 8, 0),
    ("router-advertisement", 9, 0),
    ("router-solicitation", 10, 0),
    ("ttl-zero-during-transit", 11, 0),
    ("ttl-zero-during-reassembly", 11, 1),
    ("timestamp-request", 13, 0),
    ("timestamp-reply", 14, 0),
];

const ICMPV6: [(&str, u8, u8); 12] = [
    ("no-route", 1, 0),
    ("communication-prohibited", 1, 1),
    ("address-unreachable", 1, 3),
    ("port-unreachable", 1, 4),
    ("packet-too-big", 2, 0),
    ("ttl-zero-during-transit", 3, 0),
    ("echo-request", 128, 0),
    ("echo-reply", 129, 0),
    ("router-solicitation", 133, 0),
    ("router-advertisement", 134, 0),
    ("neighbour-solicitation", 135, 0),
    ("neighbour-advertisement", 136, 0),
];

impl Part {
    /// Returns a set's name as a part.
    pub fn set(name: impl Into<Arc<str>>) -> Part {
        Part::Set(name.into())
    }
}
