//! Where matches and targets are accepted.

use crate::hook::{Hook, Hooks, Table};
use crate::packet::IcmpError;
use crate::rule::validate::{Problem, intersect};
use crate::rule::{
    Chain, LimitIface, Match, Nat, NatAddresses, NatRange, PortMatch, RejectWith, Rule, Target,
};
use crate::tuple::Protocol;

/// Returns why a rule cannot be used from a hook, callees aside.
pub(crate) fn wrong_hook(table: Table, chain: &Chain, rule: &Rule, hook: Hook) -> Option<Problem> {
    let accepted = rule_hooks(table, chain, rule).expect("rules were checked before");
    if accepted.contains(hook) {
        return None;
    }
    let (what, accepted) = match rule.target() {
        Target::Reject(_) | Target::Nat(_) if !target_hooks(rule.target()).contains(hook) => {
            (target_name(rule.target()), target_hooks(rule.target()))
        }
        _ => ("addrtype --limit-iface-in", accepted),
    };
    Some(Problem::WrongHook { what, hook, accepted })
}

fn target_name(target: &Target) -> &'static str {
    match target {
        Target::Reject(_) => "REJECT",
        Target::Nat(nat) => nat_name(nat),
        _ => "target",
    }
}

fn target_hooks(target: &Target) -> Hooks {
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
        _ => Hooks::of(&Hook::ALL),
    }
}

/// Checks what can be said about a rule alone and returns the hooks that it accepts.
pub(crate) fn rule_hooks(table: Table, chain: &Chain, rule: &Rule) -> Result<Hooks, Problem> {
    let protocol = rule.matches().iter().find_map(|m| match m {
        Match::Protocol { protocol, invert: false } => Some(*protocol),
        _ => None,
    });
    let mut hooks = Hooks::of(&Hook::ALL);
    for condition in rule.matches() {
        hooks = intersect(hooks, match_hooks(chain, condition, protocol)?);
    }
    check_target(table, rule.target(), protocol)?;
    Ok(intersect(hooks, target_hooks(rule.target())))
}

fn match_hooks(
    chain: &Chain,
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
        Match::InDevice(_) => match chain.hook() {
            Some(hook) if !hook.has_input_device() => {
                Err(Problem::NoSuchDevice { option: "-i", chain: hook })
            }
            _ => Ok(all),
        },
        Match::OutDevice(_) => match chain.hook() {
            Some(hook) if !hook.has_output_device() => {
                Err(Problem::NoSuchDevice { option: "-o", chain: hook })
            }
            _ => Ok(all),
        },
        Match::Protocol { protocol: Protocol(0), invert: true } => Err(Problem::NeverMatches),
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
        Match::Icmp { .. } => needs("an ICMP match", Protocol::ICMP, "icmp"),
        Match::AddrType { limit: Some(LimitIface::In), .. } => {
            Ok(Hooks::of(&[Hook::Prerouting, Hook::Input, Hook::Forward]))
        }
        Match::AddrType { limit: Some(LimitIface::Out), .. } => {
            Ok(Hooks::of(&[Hook::Forward, Hook::Output, Hook::Postrouting]))
        }
        Match::Nth { every, packet, .. } if packet >= every => {
            Err(Problem::NthPacket { packet: *packet, every: *every })
        }
        _ => Ok(all),
    }
}

fn check_ports(ports: Option<PortMatch>) -> Result<(), Problem> {
    match ports {
        Some(PortMatch { min, max, .. }) if min > max => {
            Err(Problem::EmptyRange { what: "port", min: min.into(), max: max.into() })
        }
        _ => Ok(()),
    }
}

fn check_target(table: Table, target: &Target, protocol: Option<Protocol>) -> Result<(), Problem> {
    let only_in = |accepted| {
        let what = target_name(target);
        if table == accepted { Ok(()) } else { Err(Problem::WrongTable { what, table, accepted }) }
    };
    match target {
        Target::Drop if table == Table::Nat => Err(Problem::DropInNat),
        Target::Reject(with) => {
            only_in(Table::Filter)?;
            if let RejectWith::Icmp(
                kind @ (IcmpError::FragmentationNeeded
                | IcmpError::TimeExceeded
                | IcmpError::Other(..)),
            ) = with
            {
                return Err(Problem::RejectKind(*kind));
            }
            if *with == RejectWith::TcpReset && protocol != Some(Protocol::TCP) {
                let what = "REJECT --reject-with tcp-reset";
                return Err(Problem::NeedsProtocol { what, accepted: "tcp" });
            }
            Ok(())
        }
        Target::Nat(nat) => {
            only_in(Table::Nat)?;
            check_range(nat, protocol)
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
    if let NatAddresses::V4(min, max) = range.addresses
        && min > max
    {
        let (min, max) = (min.to_bits(), max.to_bits());
        return Err(Problem::EmptyRange { what: "address", min, max });
    }
    Ok(())
}

fn check_nat_options(nat: &Nat, range: &NatRange) -> Result<(), Problem> {
    let NatRange { addresses, ports, flags, .. } = range;
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
    match refused {
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
