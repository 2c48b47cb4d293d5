//! From the options of a target to the target.

use std::fmt::Write;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::matches::{class, sides, tos_value};
use super::names;
use super::options::Instance;
use super::value::{self, Refused};
use crate::packet::IcmpError;
use crate::rule::{
    ConnmarkOp, CtTarget, Nat, NatAddresses, NatFlags, NatRange, RejectWith, SetTarget, Target,
    TproxyTarget, TtlChange, Unsupported, Zone, ZoneSide, save_quoted,
};
use crate::tuple::Family;

/// Returns the target, or why its options cannot be used.
pub(super) fn build(family: Family, of: &Instance<'_>) -> Result<Target, Refused> {
    Ok(match &*of.name {
        "ACCEPT" => Target::Accept,
        "DROP" => Target::Drop,
        "RETURN" => Target::Return,
        "REJECT" => Target::Reject(match of.value("reject-with")? {
            None => RejectWith::DEFAULT,
            Some(text) => reject(family, text)?,
        }),
        "MARK" => match mark(of)? {
            Some((value, mask)) => Target::Mark { value, mask },
            None => return Err("MARK needs one of its options".to_owned()),
        },
        "CONNMARK" => Target::Connmark(connmark(of)?),
        "DNAT" => {
            let text = of.value("to-destination")?.ok_or("--to-destination must be given")?;
            Target::Nat(Nat::Dnat(range(family, text)?.with_flags(flags(of)?)))
        }
        "SNAT" => {
            let text = of.value("to-source")?.ok_or("--to-source must be given")?;
            Target::Nat(Nat::Snat(range(family, text)?.with_flags(flags(of)?)))
        }
        "MASQUERADE" => Target::Nat(Nat::Masquerade(to_ports(of)?)),
        "REDIRECT" => Target::Nat(Nat::Redirect(to_ports(of)?)),
        "NETMAP" => {
            let text = of.value("to")?.ok_or("--to must be given")?;
            Target::Nat(Nat::Netmap(value::prefix(family, text)?))
        }
        "NOTRACK" => {
            Target::Ct(Box::new(CtTarget { notrack: true, alias: true, ..CtTarget::default() }))
        }
        // A listing shows `NOTRACK` as an option of `CT`.
        "CT" if of.flag("alias")? => {
            Target::Ct(Box::new(CtTarget { notrack: true, alias: true, ..CtTarget::default() }))
        }
        "CT" => Target::Ct(Box::new(ct(of)?)),
        "LOG" => log(of)?,
        "NFLOG" => nflog(of)?,
        "SET" => Target::Set(Box::new(set(of)?)),
        "TPROXY" => Target::Tproxy(Box::new(tproxy(family, of)?)),
        "TOS" => tos(of)?,
        "DSCP" => {
            let code = of.parsed("set-dscp", |text| value::number(text, 63))?;
            let class = of.parsed("set-dscp-class", class)?;
            let code = code.map(|code| code as u8).or(class).ok_or("--set-dscp must be given")?;
            Target::Tos { value: code << 2, mask: 0xfc, dscp: true }
        }
        "TTL" | "HL" => {
            let changes = [
                of.parsed("ttl-set", value::u8)?.map(TtlChange::Set),
                of.parsed("ttl-inc", value::u8)?.map(TtlChange::Add),
                of.parsed("ttl-dec", value::u8)?.map(TtlChange::Subtract),
            ];
            let mut changes = changes.into_iter().flatten();
            match (changes.next(), changes.next()) {
                (Some(change), None) => Target::Ttl(change),
                _ => return Err("one of its options must be given".to_owned()),
            }
        }
        "TCPMSS" => match (of.parsed("set-mss", value::u16)?, of.flag("clamp-mss-to-pmtu")?) {
            (Some(size), false) => Target::Tcpmss(Some(size)),
            (None, true) => Target::Tcpmss(None),
            _ => return Err("one of its options must be given".to_owned()),
        },
        name => return Err(format!("target {name} is not modelled")),
    })
}

fn reject(family: Family, text: &str) -> Result<RejectWith, Refused> {
    const V4: [(&str, &str, IcmpError); 7] = [
        ("icmp-net-unreachable", "net-unreach", IcmpError::NetUnreachable),
        ("icmp-host-unreachable", "host-unreach", IcmpError::HostUnreachable),
        ("icmp-port-unreachable", "port-unreach", IcmpError::PortUnreachable),
        ("icmp-proto-unreachable", "proto-unreach", IcmpError::ProtocolUnreachable),
        ("icmp-net-prohibited", "net-prohib", IcmpError::NetProhibited),
        ("icmp-host-prohibited", "host-prohib", IcmpError::HostProhibited),
        ("icmp-admin-prohibited", "admin-prohib", IcmpError::AdminProhibited),
    ];
    const V6: [(&str, &str, IcmpError); 6] = [
        ("icmp6-no-route", "no-route", IcmpError::NetUnreachable),
        ("icmp6-adm-prohibited", "adm-prohibited", IcmpError::AdminProhibited),
        ("icmp6-addr-unreachable", "addr-unreach", IcmpError::HostUnreachable),
        ("icmp6-port-unreachable", "port-unreach", IcmpError::PortUnreachable),
        ("icmp6-policy-fail", "policy-fail", IcmpError::HostProhibited),
        ("icmp6-reject-route", "reject-route", IcmpError::NetProhibited),
    ];
    if ["tcp-reset", "tcp-rst"].contains(&text) {
        return Ok(RejectWith::TcpReset);
    }
    let kinds = if family == Family::V4 { &V4[..] } else { &V6[..] };
    let begins = |(name, short, _): &&(&str, &str, IcmpError)| {
        name.starts_with(text) || short.starts_with(text)
    };
    match kinds.iter().find(begins) {
        Some((.., kind)) if !text.is_empty() => Ok(RejectWith::Icmp(*kind)),
        _ => Err(format!("--reject-with {text:?} is not known")),
    }
}

/// Returns value and mask of the options that MARK and CONNMARK share.
fn mark(of: &Instance<'_>) -> Result<Option<(u32, u32)>, Refused> {
    let mut found = None;
    for key in ["set-mark", "set-xmark", "or-mark", "and-mark", "xor-mark"] {
        let Some(text) = of.value(key)? else { continue };
        let pair = match key {
            "set-mark" => {
                let (value, mask) = value::masked(text, u32::MAX)?;
                (value, mask | value)
            }
            "set-xmark" => value::masked(text, u32::MAX)?,
            "or-mark" => (value::u32(text)?, value::u32(text)?),
            "and-mark" => (0, !value::u32(text)?),
            _ => (value::u32(text)?, 0),
        };
        if found.replace(pair).is_some() {
            return Err("only one of its options can be given".to_owned());
        }
    }
    Ok(found)
}

fn tos(of: &Instance<'_>) -> Result<Target, Refused> {
    let set = of.parsed("set-tos", tos_value)?;
    let and = of.parsed("and-tos", value::u8)?.map(|bits| (0, !bits));
    let or = of.parsed("or-tos", value::u8)?.map(|bits| (bits, bits));
    let xor = of.parsed("xor-tos", value::u8)?.map(|bits| (bits, 0));
    let mut found = [set, and, or, xor].into_iter().flatten();
    match (found.next(), found.next()) {
        (Some((value, mask)), None) => Ok(Target::Tos { value, mask, dscp: false }),
        _ => Err("one of its options must be given".to_owned()),
    }
}

fn connmark(of: &Instance<'_>) -> Result<ConnmarkOp, Refused> {
    let mask = of.parsed("mask", value::u32)?;
    let all = mask.unwrap_or(u32::MAX);
    let nfmask = of.parsed("nfmask", value::u32)?.unwrap_or(all);
    let ctmask = of.parsed("ctmask", value::u32)?.unwrap_or(all);
    match (mark(of)?, of.flag("save-mark")?, of.flag("restore-mark")?) {
        (Some((value, mask)), false, false) => Ok(ConnmarkOp::Set { value, mask }),
        (None, true, false) => Ok(ConnmarkOp::Save { nfmask, ctmask }),
        (None, false, true) => Ok(ConnmarkOp::Restore { nfmask, ctmask }),
        _ => Err("CONNMARK needs one of its options".to_owned()),
    }
}

fn flags(of: &Instance<'_>) -> Result<NatFlags, Refused> {
    Ok(NatFlags {
        random: of.flag("random")?,
        random_fully: of.flag("random-fully")?,
        persistent: of.flag("persistent")?,
    })
}

fn to_ports(of: &Instance<'_>) -> Result<NatRange, Refused> {
    let ports = |text: &str| value::range(text, '-', (0, u16::MAX), value::port);
    let ports = of.parsed("to-ports", ports)?;
    Ok(NatRange { ports, ..NatRange::keep() }.with_flags(flags(of)?))
}

/// Returns the range of `[A[-B]][:p[-q][/base]]`; an IPv6 address with a port is in brackets.
fn range(family: Family, text: &str) -> Result<NatRange, Refused> {
    let (addresses, ports) = match family {
        Family::V4 => match text.split_once(':') {
            Some((addresses, ports)) => (addresses, Some(ports)),
            None => (text, None),
        },
        Family::V6 => match text.strip_prefix('[').and_then(|text| text.split_once(']')) {
            Some((addresses, rest)) => (addresses, rest.strip_prefix(':')),
            // Only a port has a colon at its beginning and no second one.
            None => match text.strip_prefix(':') {
                Some(ports) if !ports.contains(':') => ("", Some(ports)),
                _ => (text, None),
            },
        },
    };
    let mut range = NatRange::keep();
    if !addresses.is_empty() {
        let (first, last) = addresses.split_once('-').unwrap_or((addresses, addresses));
        let ends = (value::address(family, first)?, value::address(family, last)?);
        range.addresses = match ends {
            (IpAddr::V4(first), IpAddr::V4(last)) => NatAddresses::V4(first, last),
            (IpAddr::V6(first), IpAddr::V6(last)) => NatAddresses::V6(Box::new((first, last))),
            _ => return Err(format!("{text:?} mixes families")),
        };
    }
    if let Some(ports) = ports {
        let (ports, base) = match ports.split_once('/') {
            Some((ports, base)) => (ports, Some(value::port(base)?)),
            None => (ports, None),
        };
        let (min, max) = ports.split_once('-').unwrap_or((ports, ports));
        range.ports = Some((value::port(min)?, value::port(max)?));
        range.base_port = base;
    }
    Ok(range)
}

fn ct(of: &Instance<'_>) -> Result<CtTarget, Refused> {
    let mut zone = None;
    for (key, side) in [
        ("zone", ZoneSide::Both),
        ("zone-orig", ZoneSide::Original),
        ("zone-reply", ZoneSide::Reply),
    ] {
        if let Some(text) = of.value(key)? {
            let id = if text == "mark" { Zone::Mark } else { Zone::Id(value::u16(text)?) };
            if zone.replace((side, id)).is_some() {
                return Err("a rule gives one zone".to_owned());
            }
        }
    }
    let mut other = Vec::new();
    for key in ["helper", "timeout"] {
        if let Some(text) = of.value(key)? {
            other.push(format!("--{key} {text}"));
        }
    }
    for (key, names) in [("ctevents", &EVENTS[..]), ("expevents", &["new"][..])] {
        if let Some(text) = of.value(key)? {
            other.push(format!("--{key} {}", listed(text, names)?));
        }
    }
    let notrack = of.flag("notrack")?;
    let other = (!other.is_empty()).then(|| other.join(" ").into());
    Ok(CtTarget { notrack, alias: false, zone, other })
}

/// Events of connection tracking, in the order in which iptables prints them.
const EVENTS: [&str; 11] = [
    "new",
    "related",
    "destroy",
    "reply",
    "assured",
    "protoinfo",
    "helper",
    "mark",
    "natseqinfo",
    "secmark",
    "label",
];

fn listed(text: &str, known: &[&str]) -> Result<String, Refused> {
    let asked: Vec<&str> = text.split(',').collect();
    if let Some(unknown) = asked.iter().find(|name| !known.contains(name)) {
        return Err(format!("{unknown:?} is no event"));
    }
    let sorted: Vec<&str> = known.iter().copied().filter(|name| asked.contains(name)).collect();
    Ok(sorted.join(","))
}

fn continuing(name: &str, options: String) -> Target {
    let options = options.trim_start().into();
    Target::Continue(Box::new(Unsupported { name: name.into(), options }))
}

// iptables: libxt_LOG.c, LOG_save
fn log(of: &Instance<'_>) -> Result<Target, Refused> {
    const PREFIX_LEN_MAX: usize = 29;
    let mut options = String::new();
    if let Some(prefix) = of.value("log-prefix")? {
        options.push_str("--log-prefix ");
        save_quoted(&mut options, cut(prefix, PREFIX_LEN_MAX));
    }
    let level = |text: &str| names::log_level(text).ok_or_else(|| format!("{text:?} is no level"));
    if let Some(level) = of.parsed("log-level", level)?
        && level != 4
    {
        let _ = write!(options, " --log-level {level}");
    }
    for key in ["log-tcp-sequence", "log-tcp-options", "log-ip-options", "log-uid", "log-macdecode"]
    {
        if of.flag(key)? {
            let _ = write!(options, " --{key}");
        }
    }
    Ok(continuing("LOG", options))
}

/// Returns the beginning of a text, of at most so many bytes.
fn cut(text: &str, len_max: usize) -> &str {
    let ends = (0..=len_max.min(text.len())).rev();
    ends.filter(|end| text.is_char_boundary(*end)).map(|end| &text[..end]).next().unwrap_or("")
}

// iptables: libxt_NFLOG.c, NFLOG_save
fn nflog(of: &Instance<'_>) -> Result<Target, Refused> {
    let mut options = String::new();
    if let Some(prefix) = of.value("nflog-prefix")? {
        options.push_str("--nflog-prefix ");
        save_quoted(&mut options, cut(prefix, 63));
    }
    for (key, default) in [
        ("nflog-group", Some(0)),
        ("nflog-range", None),
        ("nflog-size", None),
        ("nflog-threshold", Some(0)),
    ] {
        if let Some(value) = of.parsed(key, value::u32)?
            && Some(value) != default
        {
            let _ = write!(options, " --{key} {value}");
        }
    }
    Ok(continuing("NFLOG", options))
}

fn set(of: &Instance<'_>) -> Result<SetTarget, Refused> {
    let named = |key| -> Result<_, Refused> {
        let Some(given) = of.plain(key)? else {
            return Ok(None);
        };
        Ok(Some(((*given.values[0]).into(), sides(&given.values[1])?)))
    };
    let map = match of.plain("map-set")? {
        None => None,
        Some(given) => {
            let mut text = format!("--map-set {} {}", given.values[0], given.values[1]);
            for key in ["map-mark", "map-prio", "map-queue"] {
                text.push_str(&if of.flag(key)? { format!(" --{key}") } else { String::new() });
            }
            Some(text.into())
        }
    };
    let (add, delete) = (named("add-set")?, named("del-set")?);
    if add.is_none() && delete.is_none() && map.is_none() {
        return Err("SET needs a set".to_owned());
    }
    let timeout = of.parsed("timeout", value::u32)?;
    Ok(SetTarget { add, delete, exist: of.flag("exist")?, timeout, map })
}

fn tproxy(family: Family, of: &Instance<'_>) -> Result<TproxyTarget, Refused> {
    let unspecified = match family {
        Family::V4 => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        Family::V6 => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
    };
    let address = of.parsed("on-ip", |text| value::address(family, text))?;
    let mark = of.parsed("tproxy-mark", |text| value::masked(text, u32::MAX))?;
    Ok(TproxyTarget {
        port: of.parsed("on-port", value::port)?.ok_or("--on-port must be given")?,
        address: address.unwrap_or(unspecified),
        mark: mark.unwrap_or((0, 0)),
    })
}
