//! Writing tables as `iptables -L -n` prints them.

use std::collections::BTreeMap;
use std::fmt::{self, Write};

use super::matches::Range;
use super::{Listed, chains_in_order, match_text, policy_name, target, target_text};
use crate::hook::Table;
use crate::prefix::Prefix;
use crate::rule::{
    AddrTypeMatch, Chain, ChainId, LimitIface, Match, MultiportSide, Nat, PortMatch, RecentAction,
    RecentMatch, Rule, Ruleset, Target,
};
use crate::tuple::Family;

/// Returns a table as `iptables -L -n` prints it. Protocols are named, as by every version but
/// 1.8.9. Matches and targets that neither kube-proxy nor pod networks use read as in a rule.
// iptables: iptables.c, print_header, print_firewall; xshared.c, print_rule_details
pub fn iptables_list(ruleset: &Ruleset, table: Table) -> String {
    let mut references: BTreeMap<ChainId, usize> = BTreeMap::new();
    for chain in ruleset.chains(table) {
        for rule in chain.rules() {
            if let Target::Jump(id) | Target::Goto(id) = rule.target() {
                *references.entry(*id).or_default() += 1;
            }
        }
    }
    let mut text = String::new();
    for (at, chain) in chains_in_order(ruleset, table).into_iter().enumerate() {
        if at > 0 {
            text.push('\n');
        }
        let count = references.get(&chain.id()).copied().unwrap_or(0);
        list_chain(&mut text, ruleset, table, chain, count).expect("strings take everything");
    }
    text
}

fn list_chain(
    out: &mut String,
    ruleset: &Ruleset,
    table: Table,
    chain: &Chain,
    references: usize,
) -> fmt::Result {
    match chain.policy() {
        Some(_) => writeln!(out, "Chain {} (policy {})", chain.name(), policy_name(chain))?,
        None => writeln!(out, "Chain {} ({references} references)", chain.name())?,
    }
    writeln!(out, "{:<10} prot opt {:<20} {:<20}", "target", "source", "destination")?;
    for rule in chain.rules() {
        list_rule(out, ruleset, table, rule)?;
        out.push('\n');
    }
    Ok(())
}

fn list_rule(out: &mut String, ruleset: &Ruleset, table: Table, rule: &Rule) -> fmt::Result {
    let family = ruleset.family();
    let name = match rule.target() {
        Target::Jump(id) | Target::Goto(id) => ruleset.chain_name(table, *id).to_owned(),
        target => {
            let text = target_text(family, target);
            text.split(' ').nth(1).unwrap_or_default().to_owned()
        }
    };
    let mark = |invert: bool| if invert { '!' } else { ' ' };
    let (mut protocol, mut fragment) = ((false, "all".to_owned()), ("-", "-"));
    let any = match family {
        Family::V4 => "0.0.0.0/0",
        Family::V6 => "::/0",
    };
    let (mut source, mut destination) = ((false, any.to_owned()), (false, any.to_owned()));
    for condition in rule.matches() {
        match condition {
            Match::Source { prefix, invert } => source = (*invert, address(prefix)),
            Match::Destination { prefix, invert } => destination = (*invert, address(prefix)),
            Match::Protocol { protocol: p, invert } if p.0 != 0 => {
                protocol = (*invert, p.to_string());
            }
            Match::Fragment { invert } => fragment = (if *invert { "!" } else { "-" }, "f"),
            _ => {}
        }
    }
    write!(out, "{name:<9} {}{:<5}", mark(protocol.0), protocol.1)?;
    write!(out, "{}{} ", fragment.0, fragment.1)?;
    write!(out, "{}{:<19} ", mark(source.0), source.1)?;
    write!(out, "{}{:<19} ", mark(destination.0), destination.1)?;
    if matches!(rule.target(), Target::Goto(_)) {
        out.push_str("[goto] ");
    }
    for condition in rule.matches().iter().filter(|m| m.header_place().is_none()) {
        list_match(out, family, condition)?;
    }
    list_target(out, family, rule.target())
}

fn address(prefix: &Prefix) -> String {
    prefix.as_host().map_or_else(|| prefix.to_string(), |host| host.to_string())
}

fn not(invert: bool) -> &'static str {
    if invert { "! " } else { "" }
}

fn list_match(out: &mut String, family: Family, condition: &Match) -> fmt::Result {
    match condition {
        Match::Comment(text) => write!(out, " /* {text} */"),
        Match::Tcp { sport, dport, flags, option } => {
            out.push_str(" tcp");
            list_ports(out, "spt", *sport)?;
            list_ports(out, "dpt", *dport)?;
            if let Some(option) = option {
                write!(out, " option={}{}", if option.invert { "!" } else { "" }, option.value)?;
            }
            let Some(flags) = flags else { return Ok(()) };
            let not = if flags.invert { "!" } else { "" };
            write!(out, " flags:{not}0x{:02X}/0x{:02X}", flags.mask.bits(), flags.set.bits())
        }
        Match::Udp { sport, dport } => {
            out.push_str(" udp");
            list_ports(out, "spt", *sport)?;
            list_ports(out, "dpt", *dport)
        }
        Match::Sctp(sctp) if sctp.chunks.is_none() => {
            out.push_str(" sctp");
            list_ports(out, "spt", sctp.sport)?;
            list_ports(out, "dpt", sctp.dport)
        }
        Match::State { states, invert } => {
            write!(out, " {}state {}", not(*invert), Listed(states.names()))
        }
        Match::CtState { states, invert } => {
            write!(out, " {}ctstate {}", not(*invert), Listed(states.names()))
        }
        Match::Mark { value, mask, invert } => list_mark(out, "mark", *value, *mask, *invert),
        Match::Connmark { value, mask, invert } => {
            list_mark(out, "connmark", *value, *mask, *invert)
        }
        Match::AddrType { src, dst, limit } => {
            out.push_str(" ADDRTYPE match");
            for (side, types) in [("src-type", src), ("dst-type", dst)] {
                if let Some(AddrTypeMatch { types, invert }) = types {
                    let not = if *invert { "!" } else { "" };
                    write!(out, " {side} {not}{}", Listed(types.names()))?;
                }
            }
            out.write_str(match limit {
                None => "",
                Some(LimitIface::In) => " limit-in",
                Some(LimitIface::Out) => " limit-out",
            })
        }
        Match::Random { probability, invert } => {
            let not = if *invert { " !" } else { "" };
            write!(out, " statistic mode random{not} probability {probability}")
        }
        Match::Nth { every, packet, invert } => {
            let not = if *invert { " !" } else { "" };
            write!(out, " statistic mode nth{not} every {every}")?;
            if *packet > 0 { write!(out, " packet {packet}") } else { Ok(()) }
        }
        Match::Recent(recent) => list_recent(out, recent),
        Match::Multiport(multiport) => {
            let side = match multiport.side {
                MultiportSide::Source => "sports",
                MultiportSide::Destination => "dports",
                MultiportSide::Either => "ports",
            };
            let not = if multiport.invert { " !" } else { "" };
            let ports = multiport.ports.iter().map(|(min, max)| Range(min, max, ":"));
            write!(out, " multiport {side} {not}{}", Listed(ports))
        }
        Match::Set(set) if set.counters.is_none() => {
            let sides = Listed(set.sides.iter().map(super::matches::side));
            write!(out, " {}match-set {} {sides}", not(set.invert), set.name)?;
            out.write_str(if set.return_nomatch { " return-nomatch" } else { "" })
        }
        other => write!(out, " {}", match_text(family, other)),
    }
}

fn list_ports(out: &mut String, name: &str, ports: Option<PortMatch>) -> fmt::Result {
    match ports {
        None | Some(PortMatch { min: 0, max: u16::MAX, .. }) => Ok(()),
        Some(PortMatch { min, max, invert }) => {
            let not = if invert { "!" } else { "" };
            let many = if min == max { "" } else { "s" };
            write!(out, " {name}{many}:{not}{}", Range(min, max, ":"))
        }
    }
}

fn list_mark(out: &mut String, name: &str, value: u32, mask: u32, invert: bool) -> fmt::Result {
    write!(out, " {name} match {}{value:#x}", not(invert))?;
    if mask == u32::MAX { Ok(()) } else { write!(out, "/{mask:#x}") }
}

fn list_recent(out: &mut String, recent: &RecentMatch) -> fmt::Result {
    out.push_str(if recent.invert { " ! recent:" } else { " recent:" });
    out.push_str(match recent.action {
        RecentAction::Set => " SET",
        RecentAction::Check => " CHECK",
        RecentAction::Update => " UPDATE",
        RecentAction::Remove => " REMOVE",
    });
    if let Some(seconds) = recent.seconds {
        write!(out, " seconds: {seconds}")?;
    }
    out.push_str(if recent.reap { " reap" } else { "" });
    if let Some(hits) = recent.hitcount {
        write!(out, " hit_count: {hits}")?;
    }
    out.push_str(if recent.ttl { " TTL-Match" } else { "" });
    let side = if recent.destination { "dest" } else { "source" };
    write!(out, " name: {} side: {side} mask: {}", recent.name, recent.mask)
}

fn list_target(out: &mut String, family: Family, of: &Target) -> fmt::Result {
    match of {
        Target::Reject(with) => {
            write!(out, " reject-with {}", target::reject_name(family, *with))
        }
        Target::Mark { value, mask: 0 } => write!(out, " MARK xor {value:#x}"),
        Target::Mark { value, mask } if value == mask => write!(out, " MARK or {value:#x}"),
        Target::Mark { value: 0, mask } => write!(out, " MARK and {:#x}", !mask),
        Target::Mark { value, mask: u32::MAX } => write!(out, " MARK set {value:#x}"),
        Target::Mark { value, mask } => write!(out, " MARK xset {value:#x}/{mask:#x}"),
        Target::Nat(Nat::Netmap(prefix)) => write!(out, " to:{prefix}"),
        Target::Nat(nat) => list_nat(out, nat),
        Target::None
        | Target::Accept
        | Target::Drop
        | Target::Return
        | Target::Jump(_)
        | Target::Goto(_) => Ok(()),
        other => {
            let text = target_text(family, other);
            let options: Vec<&str> = text.split(' ').skip(2).collect();
            if options.is_empty() { Ok(()) } else { write!(out, " {}", options.join(" ")) }
        }
    }
}

fn list_nat(out: &mut String, nat: &Nat) -> fmt::Result {
    let Some(range) = nat.range() else {
        return Ok(());
    };
    let ports = range.ports.map(|(min, max)| Range(min, max, "-"));
    match (nat, ports) {
        (Nat::Masquerade(_), Some(ports)) => write!(out, " masq ports: {ports}")?,
        (Nat::Redirect(_), Some(ports)) => write!(out, " redir ports {ports}")?,
        (Nat::Masquerade(_) | Nat::Redirect(_), None) => {}
        _ => {
            out.push_str(" to:");
            target::save_range(out, range)?;
        }
    }
    for (set, flag) in [
        (range.flags.random, " random"),
        (range.flags.random_fully, " random-fully"),
        (range.flags.persistent, " persistent"),
    ] {
        out.push_str(if set { flag } else { "" });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::*;
    use crate::read::{Source, iptables_rules};

    fn listed(family: Family, text: &str) -> String {
        let source = Source { family: Some(family), ..Source::default() };
        let dumps = iptables_rules(text, source).value;
        let ruleset = &dumps[0].ruleset;
        iptables_list(ruleset, Table::Filter)
    }

    #[test]
    fn what_matches_and_targets_say() {
        let text = "*filter\n\
            :INPUT DROP [0:0]\n\
            :FORWARD ACCEPT [0:0]\n\
            :OUTPUT ACCEPT [0:0]\n\
            :Y - [0:0]\n\
            -A INPUT ! -p udp -j Y\n\
            -A INPUT ! -s 10.0.0.0/8 ! -d 10.1.1.1/32 -j ACCEPT\n\
            -A INPUT -p tcp -m tcp ! --sport 5:6 --dport 7 --tcp-flags SYN,ACK SYN -g Y\n\
            -A INPUT -p tcp -m multiport --dports 80,443 -j REJECT --reject-with tcp-reset\n\
            -A INPUT -p sctp -m sctp --dport 9 -m state ! --state NEW -j DROP\n\
            -A INPUT -m statistic --mode nth ! --every 3 --packet 1 -m connmark ! --mark 1 -j RETURN\n\
            -A INPUT -m recent ! --update --seconds 60 --hitcount 4 --rttl --name n --mask 255.255.255.255 --rdest\n\
            -A INPUT -f -m addrtype ! --src-type LOCAL --limit-iface-in -j LOG --log-prefix \"x \"\n\
            COMMIT\n";
        expect![[r#"
            Chain INPUT (policy DROP)
            target     prot opt source               destination         
            Y         !udp  --  0.0.0.0/0            0.0.0.0/0           
            ACCEPT     all  -- !10.0.0.0/8          !10.1.1.1            
            Y          tcp  --  0.0.0.0/0            0.0.0.0/0           [goto]  tcp spts:!5:6 dpt:7 flags:0x12/0x02
            REJECT     tcp  --  0.0.0.0/0            0.0.0.0/0            multiport dports 80,443 reject-with tcp-reset
            DROP       sctp --  0.0.0.0/0            0.0.0.0/0            sctp dpt:9 ! state NEW
            RETURN     all  --  0.0.0.0/0            0.0.0.0/0            statistic mode nth ! every 3 packet 1 connmark match ! 0x1
                       all  --  0.0.0.0/0            0.0.0.0/0            ! recent: UPDATE seconds: 60 hit_count: 4 TTL-Match name: n side: dest mask: 255.255.255.255
            LOG        all  -f  0.0.0.0/0            0.0.0.0/0            ADDRTYPE match src-type !LOCAL limit-in --log-prefix "x "

            Chain FORWARD (policy ACCEPT)
            target     prot opt source               destination         

            Chain OUTPUT (policy ACCEPT)
            target     prot opt source               destination         

            Chain Y (2 references)
            target     prot opt source               destination         
        "#]].assert_eq(&listed(Family::V4, text));
    }
}
