//! From the options of a match to the match.

use std::net::IpAddr;
use std::sync::Arc;

use super::names;
use super::options::{Given, Instance};
use super::value::{self, Refused};
use crate::conntrack::Direction;
use crate::device::DevicePattern;
use crate::packet::TcpFlags;
use crate::rule::{
    AddrTypeMatch, AddrTypes, ConntrackMatch, CtAddress, CtStates, CtStatuses, DeviceMatch,
    FlagsMatch, FrameKind, HashlimitMatch, Invertible, IprangeMatch, LimitIface, LimitMatch, Match,
    Multiport, MultiportSide, OwnerMatch, PhysdevMatch, PortMatch, Probability, RecentAction,
    RecentMatch, RpfilterMatch, SctpMatch, SetMatch, SetSide, TtlCompare, Unsupported,
};
use crate::tuple::{Family, Protocol};

/// Returns the match, or why its options cannot be used.
pub(super) fn build(family: Family, of: &Instance<'_>) -> Result<Match, Refused> {
    match &*of.name {
        "tcp" => tcp(of),
        "udp" => Ok(Match::Udp { sport: ports(of, "sport")?, dport: ports(of, "dport")? }),
        "sctp" => sctp(of),
        "icmp" | "icmp6" => icmp(family, of),
        "multiport" => multiport(of),
        "comment" => {
            let text = of.value("comment")?.ok_or("--comment must be given")?;
            if text.len() > 255 {
                return Err("a comment has at most 255 bytes".to_owned());
            }
            Ok(Match::Comment(text.into()))
        }
        "mark" | "connmark" => {
            let given = of.get("mark")?.ok_or("--mark must be given")?;
            let (value, mask) = value::masked(&given.values[0], u32::MAX)?;
            let invert = given.invert;
            Ok(if of.name == "mark" {
                Match::Mark { value, mask, invert }
            } else {
                Match::Connmark { value, mask, invert }
            })
        }
        "conntrack" => conntrack(family, of),
        "state" => {
            let given = of.get("state")?.ok_or("--state must be given")?;
            let states = states(&given.values[0])?;
            if states.intersects(CtStates::SNAT | CtStates::DNAT) {
                return Err("--state does not know SNAT and DNAT".to_owned());
            }
            Ok(Match::State { states, invert: given.invert })
        }
        "addrtype" => addrtype(of),
        "statistic" => statistic(of),
        "recent" => recent(family, of),
        "set" => set(of),
        "physdev" => physdev(of),
        "limit" => limit(of),
        "hashlimit" => hashlimit(family, of),
        "mac" => {
            let given = of.get("mac-source")?.ok_or("--mac-source must be given")?;
            Ok(Match::Mac { address: mac(&given.values[0])?, invert: given.invert })
        }
        "iprange" => iprange(family, of),
        "owner" => owner(of),
        "pkttype" => pkttype(of),
        "ttl" | "hl" => ttl(of),
        "length" => {
            let given = of.get("length")?.ok_or("--length must be given")?;
            let (min, max) = value::range(&given.values[0], ':', (0, u16::MAX), value::u16)?;
            Ok(Match::Length { min, max, invert: given.invert })
        }
        "tcpmss" => {
            let given = of.get("mss")?.ok_or("--mss must be given")?;
            let (min, max) = value::range(&given.values[0], ':', (0, u16::MAX), value::u16)?;
            Ok(Match::Tcpmss { min, max, invert: given.invert })
        }
        "rpfilter" => Ok(Match::Rpfilter(RpfilterMatch {
            loose: of.flag("loose")?,
            validmark: of.flag("validmark")?,
            accept_local: of.flag("accept-local")?,
            invert: of.flag("invert")?,
        })),
        "helper" => {
            let given = of.get("helper")?.ok_or("--helper must be given")?;
            Ok(fixed(of, given.invert))
        }
        "policy" => {
            // Without IPsec no packet has a policy, whatever else is asked of it.
            let given = of.plain("pol")?.ok_or("--pol must be given")?;
            Ok(fixed(of, given.values[0] == "none"))
        }
        "dscp" => dscp(of),
        "tos" => tos(of),
        name => Err(format!("match {name} is not modelled")),
    }
}

/// Returns a match that has one answer here.
fn fixed(of: &Instance<'_>, holds: bool) -> Match {
    let written = Unsupported { name: (*of.name).into(), options: of.raw_text().into() };
    Match::Fixed { written: Box::new(written), holds }
}

fn ports(of: &Instance<'_>, key: &str) -> Result<Option<PortMatch>, Refused> {
    of.get(key)?.map(|given| value::ports(&given.values[0], given.invert)).transpose()
}

fn invertible<T>(
    given: Option<&Given<'_>>,
    parse: impl Fn(&str) -> Result<T, Refused>,
) -> Result<Option<Invertible<T>>, Refused> {
    let parsed = |given: &Given<'_>| {
        Ok(Invertible { value: parse(&given.values[0])?, invert: given.invert })
    };
    given.map(parsed).transpose()
}

fn tcp(of: &Instance<'_>) -> Result<Match, Refused> {
    let flags = match (of.get("syn")?, of.get("tcp-flags")?) {
        (Some(_), Some(_)) => return Err("--syn and --tcp-flags exclude each other".to_owned()),
        (Some(given), None) => Some(FlagsMatch { invert: given.invert, ..FlagsMatch::SYN }),
        (None, Some(Given { values: [mask, set], invert, .. })) => {
            Some(FlagsMatch { mask: flags(mask)?, set: flags(set)?, invert: *invert })
        }
        (None, None) => None,
    };
    let option = invertible(of.get("tcp-option")?, value::u8)?;
    Ok(Match::Tcp { sport: ports(of, "sport")?, dport: ports(of, "dport")?, flags, option })
}

fn flags(text: &str) -> Result<TcpFlags, Refused> {
    value::names(
        text,
        TcpFlags::NONE,
        |a, b| a | b,
        |name| match name {
            "ALL" | "all" => Some(TcpFlags::ALL),
            "NONE" | "none" => Some(TcpFlags::NONE),
            name => TcpFlags::named(name),
        },
    )
}

/// The types of chunks, in the order in which iptables prints them.
// iptables: libxt_sctp.c, sctp_chunk_names
pub(super) const CHUNKS: [&str; 17] = [
    "DATA",
    "INIT",
    "INIT_ACK",
    "SACK",
    "HEARTBEAT",
    "HEARTBEAT_ACK",
    "ABORT",
    "SHUTDOWN",
    "SHUTDOWN_ACK",
    "ERROR",
    "COOKIE_ECHO",
    "COOKIE_ACK",
    "ECN_ECNE",
    "ECN_CWR",
    "SHUTDOWN_COMPLETE",
    "I_DATA",
    "RE_CONFIG",
];

fn sctp(of: &Instance<'_>) -> Result<Match, Refused> {
    let chunks = match of.get("chunk-types")? {
        None => None,
        Some(Given { values: [how, chunks], invert, .. }) => {
            if !["all", "any", "only"].contains(&&**how) {
                return Err(format!("--chunk-types {how:?} is none of all, any, only"));
            }
            let mut listed: Vec<(usize, &str)> = Vec::new();
            for chunk in chunks.split(',') {
                let name = chunk.split(':').next().unwrap_or(chunk);
                let known = |known: &&str| known.eq_ignore_ascii_case(name);
                let place = CHUNKS.iter().position(known).unwrap_or(CHUNKS.len());
                listed.push((place, chunk));
            }
            listed.sort_by_key(|(place, _)| *place);
            let listed: Vec<&str> = listed.into_iter().map(|(_, chunk)| chunk).collect();
            let value: Arc<str> = format!("{how} {}", listed.join(",")).into();
            Some(Invertible { value, invert: *invert })
        }
    };
    let (sport, dport) = (ports(of, "sport")?, ports(of, "dport")?);
    Ok(Match::Sctp(Box::new(SctpMatch { sport, dport, chunks })))
}

fn icmp(family: Family, of: &Instance<'_>) -> Result<Match, Refused> {
    let given = of.get("icmp-type")?.ok_or("the type must be given")?;
    let text = &given.values[0];
    let number = |text: &str| text.parse::<u8>().ok();
    let numeric = match text.split_once('/') {
        Some((kind, code)) => number(kind).zip(number(code).map(Some)),
        None => number(text).map(|kind| (kind, None)),
    };
    let known = numeric.or_else(|| names::icmp(family, text));
    let (kind, mut code) = known.ok_or_else(|| format!("{text:?} is no type of {}", of.name))?;
    if family == Family::V4 && kind == 255 {
        code = None;
    }
    Ok(Match::Icmp { kind, code, invert: given.invert })
}

fn multiport(of: &Instance<'_>) -> Result<Match, Refused> {
    let [given] = of.given.as_slice() else {
        return Err("one of --sports, --dports, --ports must be given".to_owned());
    };
    let side = match given.key {
        "sports" => MultiportSide::Source,
        "dports" => MultiportSide::Destination,
        _ => MultiportSide::Either,
    };
    let range = |text: &str| value::range(text, ':', (0, u16::MAX), value::port);
    let ports: Result<Vec<(u16, u16)>, Refused> = given.values[0].split(',').map(range).collect();
    Ok(Match::Multiport(Box::new(Multiport { side, ports: ports?, invert: given.invert })))
}

fn states(text: &str) -> Result<CtStates, Refused> {
    value::names(text, CtStates::default(), |a, b| a | b, CtStates::named)
}

fn conntrack(family: Family, of: &Instance<'_>) -> Result<Match, Refused> {
    let address = |key| -> Result<Option<Invertible<CtAddress>>, Refused> {
        invertible(of.get(key)?, |text| {
            let (address, mask) = value::address_and_mask(family, text)?;
            let len = crate::Prefix::masked(mask, mask)
                .filter(crate::Prefix::is_contiguous)
                .ok_or_else(|| format!("--{key} with the mask {mask} is not modelled"))?
                .len();
            Ok(CtAddress { address, len })
        })
    };
    let status = |text: &str| {
        let named = |name: &str| match name {
            "NONE" => Some(0),
            name => CtStatuses::NAMES.iter().find(|(known, _)| *known == name).map(|(_, bit)| *bit),
        };
        value::names(text, 0, |a, b| a | b, named).map(CtStatuses)
    };
    let protocol =
        |text: &str| Protocol::parse(text).ok_or_else(|| format!("{text:?} is no protocol"));
    let expire = |text: &str| value::range(text, ':', (0, u32::MAX), value::u32);
    let direction = match of.value("ctdir")? {
        None => None,
        Some(text) if text.eq_ignore_ascii_case("ORIGINAL") => Some(Direction::Original),
        Some(text) if text.eq_ignore_ascii_case("REPLY") => Some(Direction::Reply),
        Some(text) => return Err(format!("--ctdir {text:?} is neither ORIGINAL nor REPLY")),
    };
    let all = ConntrackMatch {
        states: invertible(of.get("ctstate")?, states)?,
        protocol: invertible(of.get("ctproto")?, protocol)?,
        orig_src: address("ctorigsrc")?,
        orig_dst: address("ctorigdst")?,
        repl_src: address("ctreplsrc")?,
        repl_dst: address("ctrepldst")?,
        orig_src_port: ports(of, "ctorigsrcport")?,
        orig_dst_port: ports(of, "ctorigdstport")?,
        repl_src_port: ports(of, "ctreplsrcport")?,
        repl_dst_port: ports(of, "ctrepldstport")?,
        status: invertible(of.get("ctstatus")?, status)?,
        expire: invertible(of.get("ctexpire")?, expire)?,
        direction,
    };
    if of.given.is_empty() {
        return Err("match conntrack needs an option".to_owned());
    }
    if let (Some(states), [_]) = (all.states, of.given.as_slice()) {
        return Ok(Match::CtState { states: states.value, invert: states.invert });
    }
    Ok(Match::Conntrack(Box::new(all)))
}

fn addrtype(of: &Instance<'_>) -> Result<Match, Refused> {
    let types = |key| -> Result<Option<AddrTypeMatch>, Refused> {
        let Some(given) = of.get(key)? else {
            return Ok(None);
        };
        let none = AddrTypes::of(&[]);
        let types = value::names(&given.values[0], none, AddrTypes::union, AddrTypes::named)?;
        Ok(Some(AddrTypeMatch { types, invert: given.invert }))
    };
    let limit = match (of.flag("limit-iface-in")?, of.flag("limit-iface-out")?) {
        (false, false) => None,
        (true, false) => Some(LimitIface::In),
        (false, true) => Some(LimitIface::Out),
        (true, true) => return Err("--limit-iface-in and -out exclude each other".to_owned()),
    };
    let (src, dst) = (types("src-type")?, types("dst-type")?);
    if src.is_none() && dst.is_none() {
        return Err("--src-type or --dst-type must be given".to_owned());
    }
    Ok(Match::AddrType { src, dst, limit })
}

fn statistic(of: &Instance<'_>) -> Result<Match, Refused> {
    match of.value("mode")? {
        Some("random") => {
            let given = of.get("probability")?.ok_or("--probability must be given")?;
            let probability = Probability::parse(&given.values[0]).map_err(|e| e.to_string())?;
            Ok(Match::Random { probability, invert: given.invert })
        }
        Some("nth") => {
            let given = of.get("every")?.ok_or("--every must be given")?;
            let every = value::u32(&given.values[0])?;
            let packet = of.parsed("packet", value::u32)?.unwrap_or(0);
            if every == 0 {
                return Err("--every must be at least 1".to_owned());
            }
            Ok(Match::Nth { every, packet, invert: given.invert })
        }
        mode => Err(format!("--mode {} is neither random nor nth", mode.unwrap_or("(none)"))),
    }
}

fn recent(family: Family, of: &Instance<'_>) -> Result<Match, Refused> {
    const ACTIONS: [(&str, RecentAction); 4] = [
        ("set", RecentAction::Set),
        ("rcheck", RecentAction::Check),
        ("update", RecentAction::Update),
        ("remove", RecentAction::Remove),
    ];
    let mut actions = ACTIONS.iter().filter_map(|(key, action)| {
        of.given.iter().find(|given| given.key == *key).map(|given| (*action, given.invert))
    });
    let (action, invert) =
        actions.next().ok_or("one of --set, --rcheck, --update, --remove must be given")?;
    if actions.next().is_some() {
        return Err("--set, --rcheck, --update and --remove exclude each other".to_owned());
    }
    let everything = value::mask(family, if family == Family::V4 { "32" } else { "128" })?;
    let mask = of.parsed("mask", |text| value::address(family, text))?.unwrap_or(everything);
    Ok(Match::Recent(Box::new(RecentMatch {
        action,
        seconds: of.parsed("seconds", value::u32)?,
        reap: of.flag("reap")?,
        hitcount: of.parsed("hitcount", value::u32)?,
        ttl: of.flag("rttl")?,
        name: of.value("name")?.unwrap_or("DEFAULT").into(),
        mask,
        destination: of.flag("rdest")?,
        invert,
    })))
}

pub(super) fn sides(text: &str) -> Result<Vec<SetSide>, Refused> {
    let side = |name: &str| match name {
        "src" => Ok(SetSide::Source),
        "dst" => Ok(SetSide::Destination),
        name => Err(format!("{name:?} is neither src nor dst")),
    };
    text.split(',').map(side).collect()
}

fn set(of: &Instance<'_>) -> Result<Match, Refused> {
    let given = of.get("match-set")?.ok_or("--match-set must be given")?;
    let mut counters = Vec::new();
    for option in &of.given {
        let not = if option.invert { "! " } else { "" };
        match option.key {
            "match-set" | "return-nomatch" => {}
            key @ ("update-counters" | "update-subcounters") => {
                counters.push(format!("{not}--{key}"))
            }
            // They are compared with counters, which sets here do not have.
            key => return Err(format!("--{key} is not modelled")),
        }
    }
    Ok(Match::Set(Box::new(SetMatch {
        name: (*given.values[0]).into(),
        sides: sides(&given.values[1])?,
        return_nomatch: of.flag("return-nomatch")?,
        counters: (!counters.is_empty()).then(|| counters.join(" ").into()),
        invert: given.invert,
    })))
}

/// Returns the device pattern of an option; `+` alone is no condition.
pub(super) fn device(text: &str, invert: bool) -> Result<Option<DeviceMatch>, Refused> {
    if text == "+" {
        return Ok(None);
    }
    let pattern = DevicePattern::parse(text).map_err(|error| error.to_string())?;
    Ok(Some(DeviceMatch { pattern, invert }))
}

fn physdev(of: &Instance<'_>) -> Result<Match, Refused> {
    let is = |key| -> Result<Option<bool>, Refused> { Ok(of.get(key)?.map(|given| !given.invert)) };
    let port = |key| -> Result<Option<DeviceMatch>, Refused> {
        let Some(given) = of.get(key)? else {
            return Ok(None);
        };
        device(&given.values[0], given.invert)
    };
    Ok(Match::Physdev(Box::new(PhysdevMatch {
        is_in: is("physdev-is-in")?,
        in_port: port("physdev-in")?,
        is_out: is("physdev-is-out")?,
        out_port: port("physdev-out")?,
        is_bridged: is("physdev-is-bridged")?,
    })))
}

fn limit(of: &Instance<'_>) -> Result<Match, Refused> {
    let rate = of.value("limit")?.unwrap_or("3/hour");
    let (period, _) = value::rate(rate, 10_000)?;
    let burst = of.parsed("limit-burst", |text| value::number(text, 10_000))?.unwrap_or(5);
    let period = u32::try_from(period).map_err(|_| format!("the rate {rate} is too slow"))?;
    Ok(Match::Limit(Box::new(LimitMatch { period, burst: burst as u32 })))
}

fn hashlimit(family: Family, of: &Instance<'_>) -> Result<Match, Refused> {
    let (upto, above) = (of.get("hashlimit-upto")?, of.get("hashlimit-above")?);
    let (given, above) = match (upto, above) {
        // `! --hashlimit-upto` is `--hashlimit-above`.
        (Some(given), None) => (given, given.invert),
        (None, Some(given)) => (given, !given.invert),
        _ => return Err("one of --hashlimit-upto and --hashlimit-above must be given".to_owned()),
    };
    let rate = &given.values[0];
    if rate.ends_with("/s") && rate.contains('b') {
        return Err("limits of bytes are not modelled".to_owned());
    }
    let (period, unit) = value::rate(rate, 1_000_000)?;
    let mut mode = [false; 4];
    for part in of.value("hashlimit-mode")?.into_iter().flat_map(|text| text.split(',')) {
        let parts = ["srcip", "srcport", "dstip", "dstport"];
        let place = parts.iter().position(|known| *known == part);
        mode[place.ok_or_else(|| format!("--hashlimit-mode {part:?} is not known"))?] = true;
    }
    let mut other = Vec::new();
    for (key, default) in [
        ("hashlimit-htable-size", 0),
        ("hashlimit-htable-max", 0),
        ("hashlimit-htable-gcinterval", 1000),
    ] {
        if let Some(value) = of.parsed(key, value::u32)?
            && value != default
        {
            other.push(format!("--{key} {value}"));
        }
    }
    let len = |text: &str| value::number(text, family.bits().into()).map(|len| len as u8);
    Ok(Match::Hashlimit(Box::new(HashlimitMatch {
        above,
        period,
        burst: of.parsed("hashlimit-burst", value::u32)?.unwrap_or(5),
        mode,
        name: of.value("hashlimit-name")?.ok_or("--hashlimit-name must be given")?.into(),
        expire: of.parsed("hashlimit-htable-expire", value::u32)?.unwrap_or(unit * 1000),
        src_len: of.parsed("hashlimit-srcmask", len)?.unwrap_or(family.bits()),
        dst_len: of.parsed("hashlimit-dstmask", len)?.unwrap_or(family.bits()),
        other: (!other.is_empty()).then(|| other.join(" ").into()),
    })))
}

fn mac(text: &str) -> Result<[u8; 6], Refused> {
    let refused = || format!("{text:?} is no hardware address");
    let mut address = [0; 6];
    let mut parts = text.split(':');
    for byte in &mut address {
        let part = parts.next().filter(|part| (1..=2).contains(&part.len())).ok_or_else(refused)?;
        *byte = u8::from_str_radix(part, 16).map_err(|_| refused())?;
    }
    if parts.next().is_some() { Err(refused()) } else { Ok(address) }
}

fn iprange(family: Family, of: &Instance<'_>) -> Result<Match, Refused> {
    let range = |text: &str| -> Result<(IpAddr, IpAddr), Refused> {
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        Ok((value::address(family, first)?, value::address(family, last)?))
    };
    let src = invertible(of.get("src-range")?, range)?;
    let dst = invertible(of.get("dst-range")?, range)?;
    if src.is_none() && dst.is_none() {
        return Err("--src-range or --dst-range must be given".to_owned());
    }
    Ok(Match::Iprange(Box::new(IprangeMatch { src, dst })))
}

fn owner(of: &Instance<'_>) -> Result<Match, Refused> {
    let ids = |text: &str| {
        let id = |text: &str| match text {
            "root" => Ok(0),
            text => value::u32(text)
                .map_err(|_| format!("{text:?} is no number; names cannot be looked up")),
        };
        value::range(text, '-', (0, u32::MAX), id)
    };
    Ok(Match::Owner(Box::new(OwnerMatch {
        uid: invertible(of.get("uid-owner")?, ids)?,
        gid: invertible(of.get("gid-owner")?, ids)?,
        socket_exists: of.get("socket-exists")?.map(|given| !given.invert),
        suppl_groups: of.flag("suppl-groups")?,
    })))
}

fn pkttype(of: &Instance<'_>) -> Result<Match, Refused> {
    let given = of.get("pkt-type")?.ok_or("--pkt-type must be given")?;
    let kind = match &*given.values[0].to_ascii_lowercase() {
        "unicast" | "host" => FrameKind::Unicast,
        "broadcast" | "bcast" => FrameKind::Broadcast,
        "multicast" | "mcast" => FrameKind::Multicast,
        kind => return Err(format!("--pkt-type {kind:?} is not known")),
    };
    Ok(Match::Pkttype { kind, invert: given.invert })
}

fn ttl(of: &Instance<'_>) -> Result<Match, Refused> {
    let [given] = of.given.as_slice() else {
        return Err("one comparison must be given".to_owned());
    };
    let compare = match (given.key, given.invert) {
        ("ttl-eq", false) => TtlCompare::Eq,
        ("ttl-eq", true) => TtlCompare::Ne,
        ("ttl-lt", false) => TtlCompare::Lt,
        ("ttl-gt", false) => TtlCompare::Gt,
        (key, _) => return Err(format!("--{key} cannot be negated")),
    };
    Ok(Match::Ttl { compare, value: value::u8(&given.values[0])? })
}

fn dscp(of: &Instance<'_>) -> Result<Match, Refused> {
    let [given] = of.given.as_slice() else {
        return Err("one of --dscp and --dscp-class must be given".to_owned());
    };
    let text = &given.values[0];
    let value = if given.key == "dscp" { value::number(text, 63)? as u8 } else { class(text)? };
    Ok(Match::Tos { value: value << 2, mask: 0xfc, dscp: true, invert: given.invert })
}

/// Returns the code point of a class of service.
pub(super) fn class(name: &str) -> Result<u8, Refused> {
    let name = name.to_ascii_uppercase();
    let digit = |text: &str, max: u8| text.parse::<u8>().ok().filter(|digit| *digit <= max);
    let known = match name.split_at_checked(2) {
        Some(("EF", "")) => Some(0x2e),
        Some(("BE", "")) => Some(0),
        Some(("CS", class)) => digit(class, 7).map(|class| class << 3),
        Some(("AF", number)) => digit(number, 43).and_then(|number| {
            let (class, drop) = (number / 10, number % 10);
            ((1..=4).contains(&class) && (1..=3).contains(&drop)).then_some(class << 3 | drop << 1)
        }),
        _ => None,
    };
    known.ok_or_else(|| format!("{name:?} is no class of service"))
}

fn tos(of: &Instance<'_>) -> Result<Match, Refused> {
    let given = of.get("tos")?.ok_or("--tos must be given")?;
    let (value, mask) = tos_value(&given.values[0])?;
    Ok(Match::Tos { value, mask, dscp: false, invert: given.invert })
}

/// Returns the value and mask of a TOS byte; names leave the bits of congestion control alone.
pub(super) fn tos_value(text: &str) -> Result<(u8, u8), Refused> {
    const NAMES: [(&str, u8); 5] = [
        ("Minimize-Delay", 0x10),
        ("Maximize-Throughput", 0x08),
        ("Maximize-Reliability", 0x04),
        ("Minimize-Cost", 0x02),
        ("Normal-Service", 0x00),
    ];
    let named = NAMES.iter().find(|(name, _)| name.eq_ignore_ascii_case(text));
    Ok(match (named, text.split_once('/')) {
        (Some((_, value)), _) => (*value, 0x3f),
        (None, Some((value, mask))) => (value::u8(value)?, value::u8(mask)?),
        (None, None) => (value::u8(text)?, 0xff),
    })
}
