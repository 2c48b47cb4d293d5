//! Matches as `iptables-save` prints them.

use std::fmt::{self, Display, Write};
use std::net::IpAddr;

use super::{Listed, not, save_quoted};
use crate::conntrack::Direction;
use crate::packet::TcpFlags;
use crate::prefix::Prefix;
use crate::rule::{
    AddrTypeMatch, ConntrackMatch, CtAddress, CtStatuses, DeviceMatch, FrameKind, HashlimitMatch,
    Invertible, IprangeMatch, IpvsMatch, LimitIface, LimitMatch, Match, Multiport, MultiportSide,
    OwnerMatch, PhysdevMatch, PortMatch, RecentAction, RecentMatch, SctpMatch, SetMatch, SetSide,
    TtlCompare, Unsupported,
};
use crate::tuple::Family;

pub(super) fn save(out: &mut String, family: Family, condition: &Match) -> fmt::Result {
    match condition {
        Match::Source { prefix, invert } => save_prefix(out, "-s", prefix, *invert),
        Match::Destination { prefix, invert } => save_prefix(out, "-d", prefix, *invert),
        Match::InDevice(device) => save_device(out, "-i", device),
        Match::OutDevice(device) => save_device(out, "-o", device),
        Match::Protocol { protocol, .. } if protocol.0 == 0 => Ok(()),
        Match::Protocol { protocol, invert } => write!(out, "{} -p {protocol}", not(*invert)),
        Match::Fragment { invert } => write!(out, "{} -f", not(*invert)),
        Match::Tcp { sport, dport, flags, option } => {
            out.push_str(" -m tcp");
            save_ports(out, "--sport", *sport)?;
            save_ports(out, "--dport", *dport)?;
            if let Some(Invertible { value, invert }) = option {
                write!(out, "{} --tcp-option {value}", not(*invert))?;
            }
            let Some(flags) = flags else { return Ok(()) };
            let (mask, set) = (Flags(flags.mask), Flags(flags.set));
            write!(out, "{} --tcp-flags {mask} {set}", not(flags.invert))
        }
        Match::Udp { sport, dport } => {
            out.push_str(" -m udp");
            save_ports(out, "--sport", *sport)?;
            save_ports(out, "--dport", *dport)
        }
        Match::Sctp(sctp) => save_sctp(out, sctp),
        Match::Icmp { kind, code, invert } => save_icmp(out, family, *kind, *code, *invert),
        Match::Mark { value, mask, invert } => save_mark(out, "mark", *value, *mask, *invert),
        Match::Connmark { value, mask, invert } => {
            save_mark(out, "connmark", *value, *mask, *invert)
        }
        Match::Multiport(multiport) => save_multiport(out, multiport),
        Match::State { states, invert } => {
            write!(out, " -m state{} --state {}", not(*invert), Listed(states.names()))
        }
        Match::Conntrack(conntrack) => save_conntrack(out, conntrack),
        Match::CtState { states, invert } => {
            let states = Listed(states.names());
            write!(out, " -m conntrack{} --ctstate {states}", not(*invert))
        }
        Match::AddrType { src, dst, limit } => {
            out.push_str(" -m addrtype");
            save_types(out, "--src-type", *src)?;
            save_types(out, "--dst-type", *dst)?;
            out.write_str(match limit {
                None => "",
                Some(LimitIface::In) => " --limit-iface-in",
                Some(LimitIface::Out) => " --limit-iface-out",
            })
        }
        Match::Comment(text) => {
            out.push_str(" -m comment --comment ");
            save_quoted(out, text);
            Ok(())
        }
        Match::Random { probability, invert } => {
            let not = not(*invert);
            write!(out, " -m statistic --mode random{not} --probability {probability}")
        }
        Match::Nth { every, packet, invert } => {
            let not = not(*invert);
            write!(out, " -m statistic --mode nth{not} --every {every} --packet {packet}")
        }
        Match::Recent(recent) => save_recent(out, recent),
        Match::Set(set) => save_set(out, set),
        Match::Physdev(physdev) => save_physdev(out, physdev),
        Match::Limit(limit) => save_limit(out, **limit),
        Match::Hashlimit(hashlimit) => save_hashlimit(out, family, hashlimit),
        Match::Mac { address, invert } => {
            write!(out, " -m mac{} --mac-source ", not(*invert))?;
            for (i, byte) in address.iter().enumerate() {
                write!(out, "{}{byte:02x}", if i > 0 { ":" } else { "" })?;
            }
            Ok(())
        }
        Match::Iprange(iprange) => save_iprange(out, iprange),
        Match::Owner(owner) => save_owner(out, owner),
        Match::Pkttype { kind, invert } => {
            let kind = match kind {
                FrameKind::Unicast => "unicast",
                FrameKind::Broadcast => "broadcast",
                FrameKind::Multicast => "multicast",
            };
            write!(out, " -m pkttype{} --pkt-type {kind}", not(*invert))
        }
        Match::Ttl { compare, value } => {
            let name = if family == Family::V4 { "ttl" } else { "hl" };
            let (not, compare) = match compare {
                TtlCompare::Eq => ("", "eq"),
                TtlCompare::Ne => (" !", "eq"),
                TtlCompare::Lt => ("", "lt"),
                TtlCompare::Gt => ("", "gt"),
            };
            write!(out, " -m {name}{not} --{name}-{compare} {value}")
        }
        Match::Length { min, max, invert } => {
            write!(out, " -m length{} --length {min}", not(*invert))?;
            if min != max { write!(out, ":{max}") } else { Ok(()) }
        }
        Match::Tos { value, dscp: true, invert, .. } => {
            write!(out, " -m dscp{} --dscp {:#04x}", not(*invert), value >> 2)
        }
        Match::Tos { value, mask, dscp: false, invert } => {
            write!(out, " -m tos{} --tos {value:#04x}/{mask:#04x}", not(*invert))
        }
        Match::Tcpmss { min, max, invert } => {
            write!(out, " -m tcpmss{} --mss {}", not(*invert), Range(min, max, ":"))
        }
        Match::Rpfilter(rpfilter) => {
            out.push_str(" -m rpfilter");
            for (given, option) in [
                (rpfilter.loose, " --loose"),
                (rpfilter.validmark, " --validmark"),
                (rpfilter.accept_local, " --accept-local"),
                (rpfilter.invert, " --invert"),
            ] {
                out.push_str(if given { option } else { "" });
            }
            Ok(())
        }
        Match::Ipvs(ipvs) => {
            // iptables: libxt_ipvs.c, ipvs_mt_dump: the protocol is a number
            let IpvsMatch { protocol, address, port } = &**ipvs;
            let number = protocol.0;
            write!(out, " -m ipvs --vproto {number} --vaddr {address} --vport {port}")
        }
        Match::Fixed { written, .. } => save_unsupported(out, written),
        Match::Unsupported(unsupported) => save_unsupported(out, unsupported),
    }
}

fn save_unsupported(out: &mut String, Unsupported { name, options }: &Unsupported) -> fmt::Result {
    if !name.is_empty() {
        write!(out, " -m {name}")?;
    }
    if !options.is_empty() { write!(out, " {options}") } else { Ok(()) }
}

fn save_prefix(out: &mut String, option: &str, prefix: &Prefix, invert: bool) -> fmt::Result {
    if prefix.is_empty() && !invert {
        return Ok(());
    }
    write!(out, "{} {option} {prefix}", not(invert))
}

fn save_device(out: &mut String, option: &str, device: &DeviceMatch) -> fmt::Result {
    write!(out, "{} {option} {}", not(device.invert), device.pattern)
}

// iptables prints no range that holds every port, not even negated.
fn save_ports(out: &mut String, option: &str, ports: Option<PortMatch>) -> fmt::Result {
    match ports {
        Some(PortMatch { min: 0, max: u16::MAX, .. }) => Ok(()),
        ports => save_any_ports(out, option, ports),
    }
}

fn save_any_ports(out: &mut String, option: &str, ports: Option<PortMatch>) -> fmt::Result {
    let Some(PortMatch { min, max, invert }) = ports else {
        return Ok(());
    };
    write!(out, "{} {option} {min}", not(invert))?;
    if min != max { write!(out, ":{max}") } else { Ok(()) }
}

fn save_sctp(out: &mut String, sctp: &SctpMatch) -> fmt::Result {
    out.push_str(" -m sctp");
    save_any_ports(out, "--sport", sctp.sport)?;
    save_any_ports(out, "--dport", sctp.dport)?;
    match &sctp.chunks {
        None => Ok(()),
        Some(Invertible { value, invert }) => {
            write!(out, "{} --chunk-types {value}", not(*invert))
        }
    }
}

fn save_icmp(
    out: &mut String,
    family: Family,
    kind: u8,
    code: Option<u8>,
    invert: bool,
) -> fmt::Result {
    let not = not(invert);
    match family {
        Family::V4 => write!(out, " -m icmp{not} --icmp-type ")?,
        Family::V6 => write!(out, " -m icmp6{not} --icmpv6-type ")?,
    }
    match (family, kind, code) {
        (Family::V4, 255, _) => out.write_str("any"),
        (_, kind, None) => write!(out, "{kind}"),
        (_, kind, Some(code)) => write!(out, "{kind}/{code}"),
    }
}

fn save_mark(out: &mut String, name: &str, value: u32, mask: u32, invert: bool) -> fmt::Result {
    write!(out, " -m {name}{} --mark {value:#x}", not(invert))?;
    if mask != u32::MAX { write!(out, "/{mask:#x}") } else { Ok(()) }
}

fn save_multiport(out: &mut String, multiport: &Multiport) -> fmt::Result {
    let option = match multiport.side {
        MultiportSide::Source => "--sports",
        MultiportSide::Destination => "--dports",
        MultiportSide::Either => "--ports",
    };
    let ports = multiport.ports.iter().map(|(min, max)| Range(min, max, ":"));
    write!(out, " -m multiport{} {option} {}", not(multiport.invert), Listed(ports))
}

fn save_conntrack(out: &mut String, ct: &ConntrackMatch) -> fmt::Result {
    out.push_str(" -m conntrack");
    if let Some(Invertible { value, invert }) = ct.states {
        write!(out, "{} --ctstate {}", not(invert), Listed(value.names()))?;
    }
    if let Some(Invertible { value, invert }) = ct.protocol {
        write!(out, "{} --ctproto {}", not(invert), value.0)?;
    }
    for (option, address) in [
        ("--ctorigsrc", ct.orig_src),
        ("--ctorigdst", ct.orig_dst),
        ("--ctreplsrc", ct.repl_src),
        ("--ctrepldst", ct.repl_dst),
    ] {
        if let Some(Invertible { value: CtAddress { address, len }, invert }) = address {
            write!(out, "{} {option} {address}", not(invert))?;
            if len != Family::of(address).bits() {
                write!(out, "/{len}")?;
            }
        }
    }
    save_any_ports(out, "--ctorigsrcport", ct.orig_src_port)?;
    save_any_ports(out, "--ctorigdstport", ct.orig_dst_port)?;
    save_any_ports(out, "--ctreplsrcport", ct.repl_src_port)?;
    save_any_ports(out, "--ctrepldstport", ct.repl_dst_port)?;
    if let Some(Invertible { value, invert }) = ct.status {
        write!(out, "{} --ctstatus {}", not(invert), Statuses(value))?;
    }
    if let Some(Invertible { value: (min, max), invert }) = ct.expire {
        write!(out, "{} --ctexpire {}", not(invert), Range(min, max, ":"))?;
    }
    out.write_str(match ct.direction {
        None => "",
        Some(Direction::Original) => " --ctdir ORIGINAL",
        Some(Direction::Reply) => " --ctdir REPLY",
    })
}

fn save_types(out: &mut String, option: &str, wanted: Option<AddrTypeMatch>) -> fmt::Result {
    let Some(AddrTypeMatch { types, invert }) = wanted else {
        return Ok(());
    };
    write!(out, "{} {option} {}", not(invert), Listed(types.names()))
}

fn save_recent(out: &mut String, recent: &RecentMatch) -> fmt::Result {
    let action = match recent.action {
        RecentAction::Set => "--set",
        RecentAction::Check => "--rcheck",
        RecentAction::Update => "--update",
        RecentAction::Remove => "--remove",
    };
    write!(out, " -m recent{} {action}", not(recent.invert))?;
    if let Some(seconds) = recent.seconds {
        write!(out, " --seconds {seconds}")?;
    }
    out.push_str(if recent.reap { " --reap" } else { "" });
    if let Some(hitcount) = recent.hitcount {
        write!(out, " --hitcount {hitcount}")?;
    }
    out.push_str(if recent.ttl { " --rttl" } else { "" });
    let side = if recent.destination { "--rdest" } else { "--rsource" };
    write!(out, " --name {} --mask {} {side}", recent.name, recent.mask)
}

pub(super) fn side(side: &SetSide) -> &'static str {
    match side {
        SetSide::Source => "src",
        SetSide::Destination => "dst",
    }
}

fn save_set(out: &mut String, set: &SetMatch) -> fmt::Result {
    let sides = Listed(set.sides.iter().map(side));
    write!(out, " -m set{} --match-set {} {sides}", not(set.invert), set.name)?;
    out.push_str(if set.return_nomatch { " --return-nomatch" } else { "" });
    match &set.counters {
        None => Ok(()),
        Some(options) => write!(out, " {options}"),
    }
}

fn save_physdev(out: &mut String, physdev: &PhysdevMatch) -> fmt::Result {
    out.push_str(" -m physdev");
    let is = |out: &mut String, option, wanted: Option<bool>| match wanted {
        None => Ok(()),
        Some(wanted) => write!(out, "{} {option}", not(!wanted)),
    };
    is(out, "--physdev-is-in", physdev.is_in)?;
    if let Some(port) = &physdev.in_port {
        save_device(out, "--physdev-in", port)?;
    }
    is(out, "--physdev-is-out", physdev.is_out)?;
    if let Some(port) = &physdev.out_port {
        save_device(out, "--physdev-out", port)?;
    }
    is(out, "--physdev-is-bridged", physdev.is_bridged)
}

// iptables: libxt_limit.c, limit_save; a burst of 5 is the default
fn save_limit(out: &mut String, limit: LimitMatch) -> fmt::Result {
    let (rate, unit, _) = rate(u64::from(limit.period), 10_000);
    write!(out, " -m limit --limit {rate}/{unit}")?;
    if limit.burst != 5 { write!(out, " --limit-burst {}", limit.burst) } else { Ok(()) }
}

/// Returns the tokens per unit of time that a period between tokens is printed as, the unit and
/// its length in seconds; a second has `scale` periods.
// iptables: libxt_limit.c, print_rate
pub(crate) fn rate(period: u64, scale: u64) -> (u64, &'static str, u32) {
    const UNITS: [(&str, u32); 4] = [("day", 86_400), ("hour", 3600), ("min", 60), ("sec", 1)];
    let period = period.max(1);
    let mut best = 0;
    for (i, (_, seconds)) in UNITS.iter().enumerate().skip(1) {
        let unit = u64::from(*seconds) * scale;
        if period > unit || unit / period < unit % period {
            break;
        }
        best = i;
    }
    let (name, seconds) = UNITS[best];
    (u64::from(seconds) * scale / period, name, seconds)
}

// iptables: libxt_hashlimit.c, hashlimit_mt_save
fn save_hashlimit(out: &mut String, family: Family, limit: &HashlimitMatch) -> fmt::Result {
    let option = if limit.above { "--hashlimit-above" } else { "--hashlimit-upto" };
    let (rate, unit, seconds) = rate(limit.period, 1_000_000);
    write!(out, " -m hashlimit {option} {rate}/{unit} --hashlimit-burst {}", limit.burst)?;
    if limit.mode.contains(&true) {
        let parts = ["srcip", "srcport", "dstip", "dstport"].into_iter().zip(limit.mode);
        let parts = Listed(parts.filter(|(_, asked)| *asked).map(|(name, _)| name));
        write!(out, " --hashlimit-mode {parts}")?;
    }
    write!(out, " --hashlimit-name {}", limit.name)?;
    if let Some(other) = &limit.other {
        write!(out, " {other}")?;
    }
    // The default is the unit that the rate was written in, in milliseconds.
    if limit.expire != seconds * 1000 {
        write!(out, " --hashlimit-htable-expire {}", limit.expire)?;
    }
    if limit.src_len != family.bits() {
        write!(out, " --hashlimit-srcmask {}", limit.src_len)?;
    }
    if limit.dst_len != family.bits() {
        write!(out, " --hashlimit-dstmask {}", limit.dst_len)?;
    }
    Ok(())
}

fn save_iprange(out: &mut String, iprange: &IprangeMatch) -> fmt::Result {
    out.push_str(" -m iprange");
    for (option, range) in [("--src-range", iprange.src), ("--dst-range", iprange.dst)] {
        if let Some(Invertible { value: (first, last), invert }) = range {
            write!(out, "{} {option} {first}-{last}", not(invert))?;
        }
    }
    Ok(())
}

fn save_owner(out: &mut String, owner: &OwnerMatch) -> fmt::Result {
    out.push_str(" -m owner");
    if let Some(exists) = owner.socket_exists {
        write!(out, "{} --socket-exists", not(!exists))?;
    }
    for (option, ids) in [("--uid-owner", owner.uid), ("--gid-owner", owner.gid)] {
        if let Some(Invertible { value: (min, max), invert }) = ids {
            write!(out, "{} {option} {}", not(invert), Range(min, max, "-"))?;
        }
    }
    out.write_str(if owner.suppl_groups { " --suppl-groups" } else { "" })
}

/// First and last of a range with what stands between them, or only the first if it is the last.
pub(super) struct Range<T>(pub(super) T, pub(super) T, pub(super) &'static str);

impl<T: Display + PartialEq> Display for Range<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Range(min, max, between) = self;
        if min == max { min.fmt(f) } else { write!(f, "{min}{between}{max}") }
    }
}

struct Flags(TcpFlags);

impl Display for Flags {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 == TcpFlags::NONE {
            return f.write_str("NONE");
        }
        Listed(self.0.names()).fmt(f)
    }
}

struct Statuses(CtStatuses);

impl Display for Statuses {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.0 == 0 {
            return f.write_str("NONE");
        }
        let set = CtStatuses::NAMES.into_iter().filter(|(_, bit)| self.0.0 & bit != 0);
        Listed(set.map(|(name, _)| name)).fmt(f)
    }
}

/// An address in brackets if something that begins with a colon follows and it is of IPv6.
pub(super) fn bracketed(address: IpAddr, last: IpAddr, port: bool) -> String {
    let range = Range(address, last, "-");
    if address.is_ipv6() && port { format!("[{range}]") } else { range.to_string() }
}
