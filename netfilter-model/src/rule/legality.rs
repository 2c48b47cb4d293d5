//! Where matches and targets are accepted.

use crate::hook::{Hook, Hooks, Table};
use crate::packet::IcmpError;
use crate::rule::validate::{Problem, intersect};
use crate::rule::{
    AddrType, AddrTypeMatch, Chain, CtStates, LimitIface, LimitMatch, Match, Multiport, Nat,
    NatAddresses, NatRange, OwnerMatch, PhysdevMatch, PortMatch, RecentAction, RecentMatch,
    RejectWith, Rule, SetSide, Target,
};
use crate::tuple::{Family, Protocol};

/// Where a rule stands.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    pub(crate) table: Table,
    pub(crate) family: Family,
    /// The hook of its chain, if that is built in.
    pub(crate) hook: Option<Hook>,
}

impl Place {
    pub(crate) fn of(table: Table, family: Family, chain: &Chain) -> Place {
        Place { table, family, hook: chain.hook() }
    }
}

/// Returns why a rule cannot be used from a hook, callees aside.
pub(crate) fn wrong_hook(place: Place, rule: &Rule, hook: Hook) -> Option<Problem> {
    let wrong = |what, accepted: Hooks| {
        (!accepted.contains(hook)).then_some(Problem::WrongHook { what, hook, accepted })
    };
    if let Some(problem) = wrong(target_name(rule.target()), target_hooks(rule.target())) {
        return Some(problem);
    }
    let protocol = rule.asked_protocol();
    rule.matches().iter().find_map(|condition| {
        let accepted = match_hooks(place, condition, protocol).ok()?;
        wrong(match_name(condition), accepted)
    })
}

fn match_name(condition: &Match) -> &'static str {
    match condition {
        Match::AddrType { limit: Some(LimitIface::In), .. } => "addrtype --limit-iface-in",
        Match::AddrType { limit: Some(LimitIface::Out), .. } => "addrtype --limit-iface-out",
        Match::Physdev(_) => "physdev --physdev-out without --physdev-is-bridged",
        Match::Mac { .. } => "mac",
        Match::Owner(_) => "owner",
        Match::Rpfilter(_) => "rpfilter",
        _ => "a match",
    }
}

fn target_name(target: &Target) -> &'static str {
    match target {
        Target::Reject(_) => "REJECT",
        Target::Nat(nat) => nat_name(nat),
        Target::Ct(ct) if ct.alias => "NOTRACK",
        Target::Ct(_) => "CT",
        Target::Tproxy(_) => "TPROXY",
        Target::Continue(other) => limits(&other.name).map_or("target", |(name, ..)| name),
        Target::Tos { dscp: true, .. } => "DSCP",
        Target::Tos { dscp: false, .. } => "TOS",
        Target::Ttl(_) => "TTL",
        Target::Tcpmss(None) => "TCPMSS --clamp-mss-to-pmtu",
        Target::Tcpmss(Some(_)) => "TCPMSS",
        _ => "target",
    }
}

/// Returns the name of a target, the tables that accept it, and the hooks.
fn limits(name: &str) -> Option<(&'static str, &'static [Table], Hooks)> {
    const MANGLE: &[Table] = &[Table::Mangle];
    const SECURITY: &[Table] = &[Table::Mangle, Table::Security];
    const ALL: Hooks = Hooks::of(&Hook::ALL);
    const OUT: Hooks = Hooks::of(&[Hook::Forward, Hook::Output, Hook::Postrouting]);
    const LIMITS: [(&str, &[Table], Hooks); 5] = [
        ("ECN", MANGLE, ALL),
        ("CHECKSUM", MANGLE, ALL),
        ("SECMARK", SECURITY, ALL),
        ("CONNSECMARK", SECURITY, ALL),
        ("CLASSIFY", &Table::ALL, OUT),
    ];
    LIMITS.into_iter().find(|(known, ..)| *known == name)
}

pub(crate) fn target_hooks(target: &Target) -> Hooks {
    match target {
        Target::Reject(_) => Hooks::of(&[Hook::Input, Hook::Forward, Hook::Output]),
        Target::Nat(Nat::Dnat(_) | Nat::Redirect(_)) => {
            Hooks::of(&[Hook::Prerouting, Hook::Output])
        }
        Target::Nat(Nat::Netmap(_)) => {
            Hooks::of(&[Hook::Prerouting, Hook::Input, Hook::Output, Hook::Postrouting])
        }
        Target::Nat(Nat::Snat(_)) => Hooks::of(&[Hook::Input, Hook::Postrouting]),
        Target::Nat(Nat::Masquerade(_)) => Hooks::of(&[Hook::Postrouting]),
        Target::Tproxy(_) => Hooks::of(&[Hook::Prerouting]),
        // Kernel: xt_TCPMSS.c, tcpmss_tg4_check
        Target::Tcpmss(None) => Hooks::of(&[Hook::Forward, Hook::Output, Hook::Postrouting]),
        Target::Continue(other) => {
            limits(&other.name).map_or(Hooks::of(&Hook::ALL), |(.., hooks)| hooks)
        }
        _ => Hooks::of(&Hook::ALL),
    }
}

impl Rule {
    /// Returns the protocol that every packet of the rule has.
    pub(crate) fn asked_protocol(&self) -> Option<Protocol> {
        self.matches().iter().find_map(|m| match m {
            Match::Protocol { protocol, invert: false } => Some(*protocol),
            _ => None,
        })
    }
}

/// Checks what can be said about a rule alone and returns the hooks that it accepts.
pub(crate) fn rule_hooks(place: Place, rule: &Rule) -> Result<Hooks, Problem> {
    let protocol = rule.asked_protocol();
    let mut hooks = Hooks::of(&Hook::ALL);
    for condition in rule.matches() {
        hooks = intersect(hooks, match_hooks(place, condition, protocol)?);
    }
    check_target(place, rule.target(), protocol)?;
    Ok(intersect(hooks, target_hooks(rule.target())))
}

/// Checks a match and returns the hooks that it accepts.
pub(crate) fn match_hooks(
    place: Place,
    condition: &Match,
    protocol: Option<Protocol>,
) -> Result<Hooks, Problem> {
    let all = Hooks::of(&Hook::ALL);
    let needs = |what, wanted: Protocol, accepted| {
        if protocol == Some(wanted) {
            Ok(all)
        } else {
            Err(Problem::NeedsProtocol { what, accepted })
        }
    };
    match condition {
        // In user chains iptables accepts both: there they compare with no device at all.
        Match::InDevice(_) => match place.hook {
            Some(hook) if !hook.has_input_device() => {
                Err(Problem::NoSuchDevice { option: "-i", chain: hook })
            }
            _ => Ok(all),
        },
        Match::OutDevice(_) => match place.hook {
            Some(hook) if !hook.has_output_device() => {
                Err(Problem::NoSuchDevice { option: "-o", chain: hook })
            }
            _ => Ok(all),
        },
        Match::Protocol { protocol: Protocol(0), invert: true } => Err(Problem::NeverMatches),
        // iptables: libxt_tcp.c, parse_tcp_option
        Match::Tcp { option: Some(option), .. } if option.value == 0 => {
            Err(Problem::Option { what: "tcp", problem: "does not know a TCP option 0" })
        }
        Match::Tcp { sport, dport, .. } => {
            check_ports(*sport)?;
            check_ports(*dport)?;
            needs("a TCP match", Protocol::TCP, "tcp")
        }
        Match::Udp { sport, dport } => {
            check_ports(*sport)?;
            check_ports(*dport)?;
            needs("a UDP match", Protocol::UDP, "udp")
        }
        Match::Sctp(sctp) => {
            check_ports(sctp.sport)?;
            check_ports(sctp.dport)?;
            needs("an SCTP match", Protocol::SCTP, "sctp")
        }
        Match::Icmp { .. } => match place.family {
            Family::V4 => needs("an ICMP match", Protocol::ICMP, "icmp"),
            Family::V6 => needs("an ICMPv6 match", Protocol::ICMPV6, "ipv6-icmp"),
        },
        Match::Multiport(multiport) => check_multiport(multiport, protocol).map(|()| all),
        Match::State { states, .. } if states.intersects(CtStates::SNAT | CtStates::DNAT) => {
            Err(Problem::Option { what: "state", problem: "does not know SNAT and DNAT" })
        }
        Match::AddrType { src, dst, .. }
            if place.family == Family::V6 && [src, dst].into_iter().flatten().any(only_v4) =>
        {
            let problem = "does not know BROADCAST, PROHIBIT, THROW, NAT, XRESOLVE in IPv6";
            Err(Problem::Option { what: "addrtype", problem })
        }
        Match::AddrType { limit: Some(LimitIface::In), .. } => {
            Ok(Hooks::of(&[Hook::Prerouting, Hook::Input, Hook::Forward]))
        }
        Match::AddrType { limit: Some(LimitIface::Out), .. } => {
            Ok(Hooks::of(&[Hook::Forward, Hook::Output, Hook::Postrouting]))
        }
        // iptables: libxt_comment.c, XT_MAX_COMMENT_LEN, less one
        Match::Comment(text) if text.len() > 255 => {
            Err(Problem::Option { what: "comment", problem: "holds at most 255 bytes" })
        }
        Match::Nth { every, packet, .. } if packet >= every => {
            Err(Problem::NthPacket { packet: *packet, every: *every })
        }
        Match::Recent(recent) => check_recent(recent).map(|()| all),
        Match::Set(set) => check_sides("set", &set.sides).map(|()| all),
        Match::Physdev(physdev) => check_physdev(physdev),
        Match::Limit(limit) => check_limit(**limit).map(|()| all),
        Match::Hashlimit(limit) if limit.burst == 0 || limit.period == 0 => {
            Err(Problem::Option { what: "hashlimit", problem: "needs a rate and a burst above 0" })
        }
        // Kernel: xt_mac.c, the hooks of mac_mt_reg
        Match::Mac { .. } => Ok(Hooks::of(&[Hook::Prerouting, Hook::Input, Hook::Forward])),
        // iptables: libxt_owner.c, owner_mt_check and owner_mt_parse
        Match::Owner(owner) if owner.suppl_groups && owner.gid.is_none() => {
            Err(Problem::Option { what: "owner", problem: "takes --suppl-groups with --gid-owner" })
        }
        Match::Owner(owner) if **owner == OwnerMatch::default() => {
            Err(Problem::Option { what: "owner", problem: "needs an option" })
        }
        // Kernel: xt_owner.c, the hooks of owner_mt_reg
        Match::Owner(_) => Ok(Hooks::of(&[Hook::Output, Hook::Postrouting])),
        Match::Tcpmss { .. } => needs("a match of the segment size", Protocol::TCP, "tcp"),
        // Kernel: xt_rpfilter.c, rpfilter_check
        Match::Rpfilter(_) if !matches!(place.table, Table::Raw | Table::Mangle) => {
            let (table, accepted) = (place.table, Table::Raw);
            Err(Problem::WrongTable { what: "rpfilter", table, accepted })
        }
        Match::Rpfilter(_) => Ok(Hooks::of(&[Hook::Prerouting])),
        Match::Length { min, max, .. } if min > max => {
            let (min, max) = ((*min).into(), (*max).into());
            Err(Problem::EmptyRange { what: "length", min, max })
        }
        _ => Ok(all),
    }
}

// Kernel: xt_addrtype.c, addrtype_mt_checkentry_v1
fn only_v4(wanted: &AddrTypeMatch) -> bool {
    const ONLY_V4: [AddrType; 5] = [
        AddrType::Broadcast,
        AddrType::Prohibit,
        AddrType::Throw,
        AddrType::Nat,
        AddrType::Xresolve,
    ];
    ONLY_V4.iter().any(|kind| wanted.types.contains(*kind))
}

// Kernel: xt_limit.c, limit_mt_check and user2credits, at any usual HZ: 32,000 credits a second
fn check_limit(limit: LimitMatch) -> Result<(), Problem> {
    let problem = |problem| Err(Problem::Option { what: "limit", problem });
    if limit.burst == 0 || limit.period == 0 {
        return problem("needs a rate and a burst above 0");
    }
    let credits = |period: u32| {
        if period > u32::MAX / 32_000 {
            (period / 10_000).wrapping_mul(32_000)
        } else {
            period * 32_000 / 10_000
        }
    };
    if credits(limit.period.wrapping_mul(limit.burst)) < credits(limit.period) {
        return problem("does not hold so large a burst at so slow a rate");
    }
    Ok(())
}

fn check_ports(ports: Option<PortMatch>) -> Result<(), Problem> {
    match ports {
        Some(PortMatch { min, max, .. }) if min > max => {
            Err(Problem::EmptyRange { what: "port", min: min.into(), max: max.into() })
        }
        _ => Ok(()),
    }
}

fn check_multiport(multiport: &Multiport, protocol: Option<Protocol>) -> Result<(), Problem> {
    if !protocol.is_some_and(Protocol::has_ports) {
        let accepted = "tcp, udp, udplite, sctp, dccp";
        return Err(Problem::NeedsProtocol { what: "multiport", accepted });
    }
    // Kernel: uapi/linux/netfilter/xt_multiport.h, XT_MULTI_PORTS; a range takes two places.
    let places = |(min, max): &(u16, u16)| if min == max { 1 } else { 2 };
    let count: usize = multiport.ports.iter().map(places).sum();
    if !(1..=15).contains(&count) {
        let problem = "holds 1 to 15 ports, of which a range takes two";
        return Err(Problem::Option { what: "multiport", problem });
    }
    match multiport.ports.iter().find(|(min, max)| min > max) {
        Some((min, max)) => {
            Err(Problem::EmptyRange { what: "port", min: (*min).into(), max: (*max).into() })
        }
        None => Ok(()),
    }
}

// Kernel: xt_recent.c, recent_mt_check
fn check_recent(recent: &RecentMatch) -> Result<(), Problem> {
    let problem = |problem| Err(Problem::Option { what: "recent", problem });
    let looks = matches!(recent.action, RecentAction::Check | RecentAction::Update);
    if !looks && (recent.seconds.is_some() || recent.hitcount.is_some()) {
        return problem("takes --seconds and --hitcount with --rcheck and --update only");
    }
    if !looks && (recent.ttl || recent.reap) {
        return problem("takes --rttl and --reap with --rcheck and --update only");
    }
    if recent.reap && recent.seconds.is_none_or(|seconds| seconds == 0) {
        return problem("takes --reap with --seconds only");
    }
    if recent.name.is_empty() || recent.name.len() > 199 || recent.name.contains('/') {
        return problem("wants a name of 1 to 199 characters without a slash");
    }
    Ok(())
}

// Kernel: uapi/linux/netfilter/ipset/ip_set.h, IPSET_DIM_MAX
fn check_sides(what: &'static str, sides: &[SetSide]) -> Result<(), Problem> {
    if (1..=6).contains(&sides.len()) {
        return Ok(());
    }
    Err(Problem::Option { what, problem: "takes 1 to 6 of src and dst" })
}

// Kernel: xt_physdev.c, physdev_mt_check
fn check_physdev(physdev: &PhysdevMatch) -> Result<Hooks, Problem> {
    if *physdev == PhysdevMatch::default() {
        return Err(Problem::Option { what: "physdev", problem: "needs an option" });
    }
    let bridged = physdev.is_bridged == Some(true);
    if physdev.out_port.is_some() && !bridged {
        return Ok(Hooks::of(&Hook::ALL).without(Hooks::of(&[Hook::Output])));
    }
    Ok(Hooks::of(&Hook::ALL))
}

/// Checks a target, hooks aside.
pub(crate) fn check_target(
    place: Place,
    target: &Target,
    protocol: Option<Protocol>,
) -> Result<(), Problem> {
    let table = place.table;
    let only_in = |accepted| {
        let what = target_name(target);
        if table == accepted { Ok(()) } else { Err(Problem::WrongTable { what, table, accepted }) }
    };
    match target {
        Target::Drop if table == Table::Nat => Err(Problem::DropInNat),
        Target::Reject(with) => {
            only_in(Table::Filter)?;
            check_reject(place.family, *with, protocol)
        }
        Target::Nat(nat) => {
            only_in(Table::Nat)?;
            check_range(nat, protocol)
        }
        Target::Ct(_) => only_in(Table::Raw),
        Target::Tos { .. } | Target::Ttl(_) => only_in(Table::Mangle),
        Target::Tcpmss(_) if protocol != Some(Protocol::TCP) => {
            Err(Problem::NeedsProtocol { what: "TCPMSS", accepted: "tcp" })
        }
        Target::Tproxy(_) => {
            only_in(Table::Mangle)?;
            if matches!(protocol, Some(Protocol::TCP | Protocol::UDP)) {
                return Ok(());
            }
            Err(Problem::NeedsProtocol { what: "TPROXY", accepted: "tcp, udp" })
        }
        Target::Set(set) => {
            let mut named = set.add.iter().chain(&set.delete);
            named.try_for_each(|(_, sides)| check_sides("SET", sides))
        }
        Target::Continue(other) => match limits(&other.name) {
            Some((_, tables, _)) if !tables.contains(&table) => only_in(tables[0]),
            _ => Ok(()),
        },
        _ => Ok(()),
    }
}

fn check_reject(
    family: Family,
    with: RejectWith,
    protocol: Option<Protocol>,
) -> Result<(), Problem> {
    match with {
        RejectWith::Icmp(
            kind
            @ (IcmpError::FragmentationNeeded | IcmpError::TimeExceeded | IcmpError::Other(..)),
        ) => Err(Problem::RejectKind(kind)),
        RejectWith::Icmp(kind @ IcmpError::ProtocolUnreachable) if family == Family::V6 => {
            Err(Problem::RejectKind(kind))
        }
        RejectWith::TcpReset if protocol != Some(Protocol::TCP) => {
            let what = "REJECT --reject-with tcp-reset";
            Err(Problem::NeedsProtocol { what, accepted: "tcp" })
        }
        _ => Ok(()),
    }
}

fn check_range(nat: &Nat, protocol: Option<Protocol>) -> Result<(), Problem> {
    let Some(range) = nat.range() else {
        return Ok(());
    };
    check_nat_options(nat, range)?;
    if let Some((min, max)) = range.ports {
        if !protocol.is_some_and(|protocol| protocol.has_ports() || protocol.is_icmp()) {
            let accepted = "tcp, udp, udplite, sctp, dccp, icmp";
            return Err(Problem::NeedsProtocol { what: "a rewrite of the port", accepted });
        }
        if min > max {
            let (min, max) = (min.into(), max.into());
            return Err(Problem::EmptyRange { what: "port", min, max });
        }
    }
    match &range.addresses {
        NatAddresses::V4(min, max) if min > max => {
            let (min, max) = (min.to_bits(), max.to_bits());
            Err(Problem::EmptyRange { what: "address", min, max })
        }
        NatAddresses::V6(range) if range.0 > range.1 => {
            let what = nat_name(nat);
            Err(Problem::Option { what, problem: "has a range that ends before it begins" })
        }
        _ => Ok(()),
    }
}

fn check_nat_options(nat: &Nat, range: &NatRange) -> Result<(), Problem> {
    let NatRange { addresses, ports, flags, base_port } = range;
    let target = nat_name(nat);
    let refused = match nat {
        Nat::Dnat(_) | Nat::Snat(_) => {
            if *addresses == NatAddresses::Keep && ports.is_none() {
                return Err(Problem::NothingToRewrite(target));
            }
            let refused = flags.random_fully && matches!(nat, Nat::Dnat(_));
            refused.then_some("--random-fully")
        }
        _ if *addresses != NatAddresses::Keep => Some("an address"),
        _ if flags.persistent => Some("--persistent"),
        Nat::Redirect(_) if flags.random_fully => Some("--random-fully"),
        _ => None,
    };
    let based = base_port.is_some() && (!matches!(nat, Nat::Dnat(_)) || ports.is_none());
    match refused.or(based.then_some("a base of its ports")) {
        Some(option) => Err(Problem::NatOption { target, option }),
        None => Ok(()),
    }
}

fn nat_name(nat: &Nat) -> &'static str {
    match nat {
        Nat::Dnat(_) => "DNAT",
        Nat::Snat(_) => "SNAT",
        Nat::Masquerade(_) => "MASQUERADE",
        Nat::Redirect(_) => "REDIRECT",
        Nat::Netmap(_) => "NETMAP",
    }
}
