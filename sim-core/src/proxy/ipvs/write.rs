//! The iptables part as kube-proxy feeds it to `iptables-restore`.
//!
//! Kubernetes: pkg/proxy/ipvs/proxier.go, writeIptablesRules.

use std::fmt::{self, Write as _};

use netfilter_model::hook::Table;
use netfilter_model::rule::{Match, Nat, Rule, SetSide, Target};

use super::rules::RuleChain;

/// Returns the whole input: table nat, then table filter.
pub(super) fn restore(rules: &[(RuleChain, Rule)]) -> String {
    let mut out = String::new();
    for table in [Table::Nat, Table::Filter] {
        let _ = writeln!(out, "*{}", table.name());
        for chain in RuleChain::ALL.into_iter().filter(|chain| chain.table() == table) {
            let _ = writeln!(out, ":{} - [0:0]", chain.name());
        }
        for (chain, rule) in rules.iter().filter(|(chain, _)| chain.table() == table) {
            let _ = write_rule(&mut out, *chain, rule);
        }
        out.push_str("COMMIT\n");
    }
    out
}

/// Writes a rule: a source stands first, but behind the set that it goes with.
fn write_rule(out: &mut String, chain: RuleChain, rule: &Rule) -> fmt::Result {
    write!(out, "-A {}", chain.name())?;
    let has_set = rule.matches().iter().any(|condition| matches!(condition, Match::Set(_)));
    let is_refusal = rule.matches().iter().any(|condition| matches!(condition, Match::Ipvs(_)));
    for condition in rule.matches() {
        match condition {
            Match::Protocol { protocol, .. } => write!(out, " -p {protocol}")?,
            Match::Source { prefix, .. } if is_refusal => write!(out, " -s {}", prefix.address())?,
            Match::Source { .. } if !has_set => write_source(out, rule)?,
            Match::Ipvs(ipvs) => {
                let (address, protocol) = (ipvs.address.address(), ipvs.protocol);
                write!(out, " -m ipvs --vaddr {address} --vproto {protocol}")?;
                write!(out, " --vport {}", ipvs.port)?;
            }
            Match::Comment(text) => write!(out, " -m comment --comment \"{text}\"")?,
            Match::Set(set) => {
                write!(out, " -m set --match-set {}", set.name)?;
                for (at, side) in set.sides.iter().enumerate() {
                    out.push(if at == 0 { ' ' } else { ',' });
                    out.push_str(match side {
                        SetSide::Source => "src",
                        SetSide::Destination => "dst",
                    });
                }
                write_source(out, rule)?;
            }
            Match::Physdev(physdev) => {
                let not = not(physdev.is_in == Some(false));
                write!(out, " -m physdev{not} --physdev-is-in")?;
            }
            Match::AddrType { src: Some(side), .. } => {
                write!(out, " -m addrtype{} --src-type LOCAL", not(side.invert))?;
            }
            Match::AddrType { dst: Some(side), .. } => {
                write!(out, " -m addrtype{} --dst-type LOCAL", not(side.invert))?;
            }
            Match::Mark { value, mask, invert } => {
                write!(out, " -m mark{} --mark 0x{value:08x}/0x{mask:08x}", not(*invert))?;
            }
            Match::CtState { states, .. } => {
                let names: Vec<&str> = states.names().collect();
                write!(out, " -m conntrack --ctstate {}", names.join(","))?;
            }
            _ => {}
        }
    }
    write_target(out, chain.table(), rule.target())?;
    out.push('\n');
    Ok(())
}

fn write_source(out: &mut String, rule: &Rule) -> fmt::Result {
    for condition in rule.matches() {
        match condition {
            Match::Source { prefix, invert } => write!(out, "{} -s {prefix}", not(*invert))?,
            Match::InDevice(device) => {
                write!(out, "{} -i {}", not(device.invert), device.pattern)?;
            }
            _ => {}
        }
    }
    Ok(())
}

fn write_target(out: &mut String, table: Table, target: &Target) -> fmt::Result {
    match target {
        Target::Accept => out.write_str(" -j ACCEPT"),
        Target::Drop => out.write_str(" -j DROP"),
        Target::Return => out.write_str(" -j RETURN"),
        Target::Reject(_) => out.write_str(" -j REJECT"),
        Target::Mark { value, mask: 0 } => write!(out, " -j MARK --xor-mark 0x{value:08x}"),
        Target::Mark { value, .. } => write!(out, " -j MARK --or-mark 0x{value:08x}"),
        Target::Nat(Nat::Masquerade(range)) => {
            let fully = if range.flags.random_fully { " --random-fully" } else { "" };
            write!(out, " -j MASQUERADE{fully}")
        }
        Target::Jump(id) => {
            let chain = RuleChain::of(table, *id).map_or("", RuleChain::name);
            write!(out, " -j {chain}")
        }
        _ => Ok(()),
    }
}

fn not(invert: bool) -> &'static str {
    if invert { " !" } else { "" }
}
