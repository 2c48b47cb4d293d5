//! Targets as `iptables-save` prints them.

use std::fmt::{self, Write};
use std::net::IpAddr;

use super::Listed;
use super::matches::{Range, bracketed, side};
use crate::packet::IcmpError;
use crate::rule::{
    ChainId, ConnmarkOp, CtTarget, Nat, NatAddresses, NatRange, RejectWith, SetTarget, Target,
    TproxyTarget, TtlChange, Unsupported, Zone, ZoneSide,
};
use crate::tuple::Family;

pub(super) fn save<'n>(
    out: &mut String,
    family: Family,
    target: &Target,
    name: &dyn Fn(ChainId) -> &'n str,
) -> fmt::Result {
    match target {
        Target::None => Ok(()),
        Target::Accept => out.write_str(" -j ACCEPT"),
        Target::Drop => out.write_str(" -j DROP"),
        Target::Return => out.write_str(" -j RETURN"),
        Target::Reject(with) => {
            write!(out, " -j REJECT --reject-with {}", reject_name(family, *with))
        }
        Target::Mark { value, mask } => {
            write!(out, " -j MARK --set-xmark {value:#x}/{mask:#x}")
        }
        Target::Tos { value, dscp: true, .. } => {
            write!(out, " -j DSCP --set-dscp {:#04x}", value >> 2)
        }
        Target::Tos { value, mask, dscp: false } => {
            write!(out, " -j TOS --set-tos {value:#04x}/{mask:#04x}")
        }
        Target::Ttl(change) => {
            let (name, option) = if family == Family::V4 { ("TTL", "ttl") } else { ("HL", "hl") };
            let (how, number) = match change {
                TtlChange::Set(number) => ("set", number),
                TtlChange::Add(number) => ("inc", number),
                TtlChange::Subtract(number) => ("dec", number),
            };
            write!(out, " -j {name} --{option}-{how} {number}")
        }
        Target::Tcpmss(None) => out.write_str(" -j TCPMSS --clamp-mss-to-pmtu"),
        Target::Tcpmss(Some(size)) => write!(out, " -j TCPMSS --set-mss {size}"),
        Target::Connmark(op) => save_connmark(out, *op),
        Target::Ct(ct) => save_ct(out, ct),
        Target::Set(set) => save_set(out, set),
        Target::Continue(target) | Target::Unsupported(target) => {
            let Unsupported { name, options } = &**target;
            write!(out, " -j {name}")?;
            if !options.is_empty() { write!(out, " {options}") } else { Ok(()) }
        }
        Target::Tproxy(tproxy) => {
            let TproxyTarget { port, address, mark: (value, mask) } = **tproxy;
            write!(out, " -j TPROXY --on-port {port} --on-ip {address}")?;
            write!(out, " --tproxy-mark {value:#x}/{mask:#x}")
        }
        Target::Jump(chain) => write!(out, " -j {}", name(*chain)),
        Target::Goto(chain) => write!(out, " -g {}", name(*chain)),
        Target::Nat(nat) => save_nat(out, nat),
    }
}

/// Returns the name behind `--reject-with`.
// Simplified: the policy and route errors of ICMPv6 are held as the prohibitions of ICMP.
pub(crate) fn reject_name(family: Family, with: RejectWith) -> &'static str {
    let RejectWith::Icmp(kind) = with else {
        return "tcp-reset";
    };
    match (family, kind) {
        (Family::V4, IcmpError::NetUnreachable) => "icmp-net-unreachable",
        (Family::V4, IcmpError::HostUnreachable) => "icmp-host-unreachable",
        (Family::V4, IcmpError::ProtocolUnreachable) => "icmp-proto-unreachable",
        (Family::V4, IcmpError::NetProhibited) => "icmp-net-prohibited",
        (Family::V4, IcmpError::HostProhibited) => "icmp-host-prohibited",
        (Family::V4, IcmpError::AdminProhibited) => "icmp-admin-prohibited",
        (Family::V6, IcmpError::NetUnreachable) => "icmp6-no-route",
        (Family::V6, IcmpError::HostUnreachable) => "icmp6-addr-unreachable",
        (Family::V6, IcmpError::NetProhibited) => "icmp6-reject-route",
        (Family::V6, IcmpError::HostProhibited) => "icmp6-policy-fail",
        (Family::V6, IcmpError::AdminProhibited) => "icmp6-adm-prohibited",
        (Family::V6, _) => "icmp6-port-unreachable",
        // Validation refuses the two that REJECT does not send.
        (
            Family::V4,
            IcmpError::PortUnreachable
            | IcmpError::FragmentationNeeded
            | IcmpError::TimeExceeded
            | IcmpError::Other(..),
        ) => "icmp-port-unreachable",
    }
}

fn save_connmark(out: &mut String, op: ConnmarkOp) -> fmt::Result {
    out.push_str(" -j CONNMARK ");
    match op {
        ConnmarkOp::Set { value, mask } => write!(out, "--set-xmark {value:#x}/{mask:#x}"),
        ConnmarkOp::Save { nfmask, ctmask } => {
            write!(out, "--save-mark --nfmask {nfmask:#x} --ctmask {ctmask:#x}")
        }
        ConnmarkOp::Restore { nfmask, ctmask } => {
            write!(out, "--restore-mark --nfmask {nfmask:#x} --ctmask {ctmask:#x}")
        }
    }
}

fn save_ct(out: &mut String, ct: &CtTarget) -> fmt::Result {
    if ct.alias {
        return out.write_str(" -j NOTRACK");
    }
    out.push_str(" -j CT");
    out.push_str(if ct.notrack { " --notrack" } else { "" });
    if let Some(other) = &ct.other {
        write!(out, " {other}")?;
    }
    let Some((zone_side, zone)) = ct.zone else {
        return Ok(());
    };
    out.push_str(match zone_side {
        ZoneSide::Both => " --zone ",
        ZoneSide::Original => " --zone-orig ",
        ZoneSide::Reply => " --zone-reply ",
    });
    match zone {
        Zone::Id(id) => write!(out, "{id}"),
        Zone::Mark => out.write_str("mark"),
    }
}

fn save_set(out: &mut String, set: &SetTarget) -> fmt::Result {
    out.push_str(" -j SET");
    if let Some((name, sides)) = &set.add {
        write!(out, " --add-set {name} {}", Listed(sides.iter().map(side)))?;
        out.push_str(if set.exist { " --exist" } else { "" });
        if let Some(timeout) = set.timeout {
            write!(out, " --timeout {timeout}")?;
        }
    }
    if let Some((name, sides)) = &set.delete {
        write!(out, " --del-set {name} {}", Listed(sides.iter().map(side)))?;
    }
    match &set.map {
        None => Ok(()),
        Some(options) => write!(out, " {options}"),
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
            if let Some((min, max)) = range.ports {
                write!(out, " --to-ports {}", Range(min, max, "-"))?;
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

pub(super) fn save_range(out: &mut String, range: &NatRange) -> fmt::Result {
    let addresses = match &range.addresses {
        NatAddresses::Keep => None,
        NatAddresses::V4(min, max) => Some((IpAddr::V4(*min), IpAddr::V4(*max))),
        NatAddresses::V6(range) => Some((IpAddr::V6(range.0), IpAddr::V6(range.1))),
    };
    if let Some((min, max)) = addresses {
        out.push_str(&bracketed(min, max, range.ports.is_some()));
    }
    let Some((min, max)) = range.ports else {
        return Ok(());
    };
    write!(out, ":{}", Range(min, max, "-"))?;
    match range.base_port {
        Some(base) => write!(out, "/{base}"),
        None => Ok(()),
    }
}
