//! Writing rulesets as `iptables-save` prints them.

use std::fmt::{self, Display, Write};
use std::net::IpAddr;

use crate::hook::Table;
use crate::packet::{IcmpError, TcpFlags};
use crate::prefix::Prefix;
use crate::rule::{
    AddrTypeMatch, Chain, ChainId, LimitIface, Match, Nat, NatAddresses, NatRange, Policy,
    PortMatch, RejectWith, Rule, Ruleset, Target,
};

/// The order in which iptables-nft prints tables; that of x_tables depends on history.
// iptables: nft.h, enum nft_table_type
const TABLE_ORDER: [Table; 5] =
    [Table::Mangle, Table::Security, Table::Raw, Table::Filter, Table::Nat];

/// Returns the ruleset as `iptables-save` 1.8.9 prints it, without its comment lines, which hold
/// the time of day. The text is also what `iptables-restore` reads.
pub fn iptables_save(ruleset: &Ruleset) -> String {
    let mut text = String::new();
    for table in TABLE_ORDER {
        if !ruleset.chains(table).is_empty() {
            save_table(&mut text, ruleset, table).expect("strings take everything");
        }
    }
    text
}

fn save_table(out: &mut String, ruleset: &Ruleset, table: Table) -> fmt::Result {
    let mut chains: Vec<&Chain> = ruleset.chains(table).iter().collect();
    chains.sort_by_key(|chain| match chain.hook() {
        Some(hook) => (0, hook as u8, ""),
        None => (1, 0, &**chain.name()),
    });
    writeln!(out, "*{table}")?;
    for chain in &chains {
        let policy = match chain.policy() {
            Some(Policy::Accept) => "ACCEPT",
            Some(Policy::Drop) => "DROP",
            None => "-",
        };
        writeln!(out, ":{} {policy} [0:0]", chain.name())?;
    }
    let name = |id: ChainId| ruleset.chain_name(table, id);
    for chain in &chains {
        for rule in chain.rules() {
            write!(out, "-A {}", chain.name())?;
            save_rule(out, rule, &name)?;
            out.push('\n');
        }
    }
    out.push_str("COMMIT\n");
    Ok(())
}

/// Writes a rule behind its `-A CHAIN`; `name` gives the names of chains that it calls.
pub(crate) fn save_rule<'n>(
    out: &mut String,
    rule: &Rule,
    name: &dyn Fn(ChainId) -> &'n str,
) -> fmt::Result {
    for condition in rule.matches() {
        save_match(out, condition)?;
    }
    save_target(out, rule.target(), name)
}

fn not(invert: bool) -> &'static str {
    if invert { " !" } else { "" }
}

fn save_match(out: &mut String, condition: &Match) -> fmt::Result {
    match condition {
        Match::Source { prefix, invert } => save_prefix(out, "-s", prefix, *invert),
        Match::Destination { prefix, invert } => save_prefix(out, "-d", prefix, *invert),
        Match::InDevice(device) => write!(out, "{} -i {}", not(device.invert), device.pattern),
        Match::OutDevice(device) => write!(out, "{} -o {}", not(device.invert), device.pattern),
        Match::Protocol { protocol, .. } if protocol.0 == 0 => Ok(()),
        Match::Protocol { protocol, invert } => write!(out, "{} -p {protocol}", not(*invert)),
        Match::Tcp { sport, dport, flags, .. } => {
            out.push_str(" -m tcp");
            save_ports(out, "--sport", *sport)?;
            save_ports(out, "--dport", *dport)?;
            let Some(flags) = flags else { return Ok(()) };
            let (mask, set) = (Flags(flags.mask), Flags(flags.set));
            write!(out, "{} --tcp-flags {mask} {set}", not(flags.invert))
        }
        Match::Udp { sport, dport } => {
            out.push_str(" -m udp");
            save_ports(out, "--sport", *sport)?;
            save_ports(out, "--dport", *dport)
        }
        Match::Icmp { kind, code, invert } => {
            write!(out, " -m icmp{} --icmp-type ", not(*invert))?;
            match (kind, code) {
                (255, _) => out.write_str("any"),
                (kind, None) => write!(out, "{kind}"),
                (kind, Some(code)) => write!(out, "{kind}/{code}"),
            }
        }
        Match::Mark { value, mask, invert } => {
            write!(out, " -m mark{} --mark {value:#x}", not(*invert))?;
            if *mask != u32::MAX { write!(out, "/{mask:#x}") } else { Ok(()) }
        }
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
        _ => unimplemented!("{condition:?}"),
    }
}

fn save_prefix(out: &mut String, option: &str, prefix: &Prefix, invert: bool) -> fmt::Result {
    if prefix.is_empty() && !invert {
        return Ok(());
    }
    write!(out, "{} {option} {prefix}", not(invert))
}

// iptables prints no range that holds every port, not even negated.
fn save_ports(out: &mut String, option: &str, ports: Option<PortMatch>) -> fmt::Result {
    match ports {
        None | Some(PortMatch { min: 0, max: u16::MAX, .. }) => Ok(()),
        Some(PortMatch { min, max, invert }) if min == max => {
            write!(out, "{} {option} {min}", not(invert))
        }
        Some(PortMatch { min, max, invert }) => {
            write!(out, "{} {option} {min}:{max}", not(invert))
        }
    }
}

fn save_types(out: &mut String, option: &str, wanted: Option<AddrTypeMatch>) -> fmt::Result {
    let Some(AddrTypeMatch { types, invert }) = wanted else {
        return Ok(());
    };
    write!(out, "{} {option} {}", not(invert), Listed(types.names()))
}

/// Writes an argument bare if it is plain, else in quotes.
// iptables: xtables.c, xtables_save_string
fn save_quoted(out: &mut String, text: &str) {
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    if !text.is_empty() && text.chars().all(plain) {
        out.push_str(text);
        return;
    }
    out.push('"');
    for c in text.chars() {
        if matches!(c, '"' | '\\' | '\'') {
            out.push('\\');
        }
        out.push(c);
    }
    out.push('"');
}

fn save_target<'n>(
    out: &mut String,
    target: &Target,
    name: &dyn Fn(ChainId) -> &'n str,
) -> fmt::Result {
    match target {
        Target::None => Ok(()),
        Target::Accept => out.write_str(" -j ACCEPT"),
        Target::Drop => out.write_str(" -j DROP"),
        Target::Return => out.write_str(" -j RETURN"),
        Target::Reject(with) => write!(out, " -j REJECT --reject-with {}", reject_name(*with)),
        Target::Mark { value, mask } => {
            write!(out, " -j MARK --set-xmark {value:#x}/{mask:#x}")
        }
        Target::Jump(chain) => write!(out, " -j {}", name(*chain)),
        Target::Goto(chain) => write!(out, " -g {}", name(*chain)),
        Target::Nat(nat) => save_nat(out, nat),
        _ => unimplemented!("{target:?}"),
    }
}

fn reject_name(with: RejectWith) -> &'static str {
    match with {
        RejectWith::TcpReset => "tcp-reset",
        RejectWith::Icmp(kind) => match kind {
            IcmpError::NetUnreachable => "icmp-net-unreachable",
            IcmpError::HostUnreachable => "icmp-host-unreachable",
            IcmpError::ProtocolUnreachable => "icmp-proto-unreachable",
            IcmpError::PortUnreachable => "icmp-port-unreachable",
            IcmpError::NetProhibited => "icmp-net-prohibited",
            IcmpError::HostProhibited => "icmp-host-prohibited",
            IcmpError::AdminProhibited => "icmp-admin-prohibited",
            IcmpError::FragmentationNeeded | IcmpError::TimeExceeded | IcmpError::Other(..) => {
                unreachable!("{kind:?} is refused by validation")
            }
        },
    }
}

fn save_nat(out: &mut String, nat: &Nat) -> fmt::Result {
    let range = match nat {
        Nat::Netmap(prefix) => return write!(out, " -j NETMAP --to {prefix}"),
        Nat::Dnat(range) | Nat::Snat(range) | Nat::Masquerade(range) | Nat::Redirect(range) => {
            range
        }
    };
    match nat {
        Nat::Dnat(_) => {
            out.push_str(" -j DNAT --to-destination ");
            save_range(out, range)?;
        }
        Nat::Snat(_) => {
            out.push_str(" -j SNAT --to-source ");
            save_range(out, range)?;
        }
        _ => {
            let masquerade = matches!(nat, Nat::Masquerade(_));
            out.push_str(if masquerade { " -j MASQUERADE" } else { " -j REDIRECT" });
            if let Some(ports) = range.ports {
                write!(out, " --to-ports {}", Ports(ports))?;
            }
        }
    }
    for (set, option) in [
        (range.flags.random, " --random"),
        (range.flags.random_fully, " --random-fully"),
        (range.flags.persistent, " --persistent"),
    ] {
        out.push_str(if set { option } else { "" });
    }
    Ok(())
}

fn save_range(out: &mut String, range: &NatRange) -> fmt::Result {
    let addresses = match &range.addresses {
        NatAddresses::Keep => None,
        NatAddresses::V4(min, max) => Some((IpAddr::V4(*min), IpAddr::V4(*max))),
        NatAddresses::V6(range) => Some((IpAddr::V6(range.0), IpAddr::V6(range.1))),
    };
    if let Some((min, max)) = addresses {
        // A port behind an IPv6 address needs the address in brackets.
        let brackets = min.is_ipv6() && range.ports.is_some();
        let (open, close) = if brackets { ("[", "]") } else { ("", "") };
        write!(out, "{open}{min}")?;
        if min != max {
            write!(out, "-{max}")?;
        }
        out.push_str(close);
    }
    match range.ports {
        Some(ports) => write!(out, ":{}", Ports(ports)),
        None => Ok(()),
    }
}

struct Ports((u16, u16));

impl Display for Ports {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Ports((min, max)) = self;
        if min == max { write!(f, "{min}") } else { write!(f, "{min}-{max}") }
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

/// Names with commas between them.
struct Listed<I>(I);

impl<I: Iterator<Item = &'static str> + Clone> Display for Listed<I> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, name) in self.0.clone().enumerate() {
            f.write_str(if i > 0 { "," } else { "" })?;
            f.write_str(name)?;
        }
        Ok(())
    }
}
