//! Statements as text.

use crate::conntrack::Direction;
use crate::nft::expr::Expr;
use crate::nft::render::{expr, push};
use crate::nft::rule::{
    Dynset, Family, Limit, NatStatement, NatValue, Quota, Statement, Table, Verdict,
};
use crate::nft::value::{Type, write_time};
use crate::packet::IcmpError;
use crate::rule::RejectWith;

/// Writes a statement.
pub(super) fn write(table: &Table, statement: &Statement, out: &mut String) {
    let mut setting = |name: &str, value: &Expr| {
        push(out, format_args!("{name} set "));
        expr::write(table, value, out);
    };
    let ipv6 = table.family == Family::Ip6;
    match statement {
        Statement::Match(comparison) => expr::write_comparison(table, comparison, out),
        Statement::Counter(counter) => {
            out.push_str("counter");
            if let Some(name) = &counter.name {
                push(out, format_args!(" name \"{name}\""));
            }
            if let Some((packets, bytes)) = counter.counts {
                push(out, format_args!(" packets {packets} bytes {bytes}"));
            }
        }
        Statement::Verdict(verdict) => write_verdict(table, verdict, out),
        Statement::Vmap { key, map } => {
            expr::write_all(table, key, out);
            out.push_str(" vmap ");
            expr::write_set_use(table, map, out);
        }
        Statement::SetMark(value) => setting("meta mark", value),
        Statement::SetCtMark(value) => setting("ct mark", value),
        Statement::SetZone(value, None) => setting("ct zone", value),
        Statement::SetZone(value, Some(Direction::Original)) => setting("ct original zone", value),
        Statement::SetZone(value, Some(Direction::Reply)) => setting("ct reply zone", value),
        Statement::SetTtl(value) => setting(if ipv6 { "ip6 hoplimit" } else { "ip ttl" }, value),
        Statement::SetDscp(value) => setting(if ipv6 { "ip6 dscp" } else { "ip dscp" }, value),
        Statement::Notrack => out.push_str("notrack"),
        Statement::Reject(with, family) => write_reject(table, *with, *family, out),
        Statement::Nat(nat) => write_nat(table, nat, out),
        Statement::Limit(limit) => match &limit.name {
            Some(name) => push(out, format_args!("limit name \"{name}\"")),
            None => push(out, format_args!("limit {}", rate_text(limit))),
        },
        Statement::Quota(quota) => match &quota.name {
            Some(name) => push(out, format_args!("quota name \"{name}\"")),
            None => push(out, format_args!("quota {}", quota_text(quota))),
        },
        Statement::Dynset(dynset) => write_dynset(table, dynset, out),
        Statement::Other(text) | Statement::Unsupported(text) => out.push_str(text),
    }
}

/// Writes a verdict.
pub(super) fn write_verdict(table: &Table, verdict: &Verdict, out: &mut String) {
    let name = |to: &u32| table.chains.get(*to as usize).map_or("?", |chain| &chain.name);
    match verdict {
        Verdict::Accept => out.push_str("accept"),
        Verdict::Drop => out.push_str("drop"),
        Verdict::Continue => out.push_str("continue"),
        Verdict::Return => out.push_str("return"),
        Verdict::Jump(to) => push(out, format_args!("jump {}", name(to))),
        Verdict::Goto(to) => push(out, format_args!("goto {}", name(to))),
        Verdict::Unknown(text) => out.push_str(text),
    }
}

fn write_reject(table: &Table, with: RejectWith, family: Option<Family>, out: &mut String) {
    out.push_str("reject");
    let error = match with {
        RejectWith::TcpReset => return out.push_str(" with tcp reset"),
        RejectWith::Icmp(error) => error,
    };
    if family.is_none() && error == IcmpError::PortUnreachable {
        return;
    }
    let (kind, code) = match (family.unwrap_or(table.family), error) {
        (Family::Ip6, IcmpError::NetUnreachable) => ("icmpv6", "no-route"),
        (Family::Ip6, IcmpError::AdminProhibited) => ("icmpv6", "admin-prohibited"),
        (Family::Ip6, IcmpError::HostUnreachable) => ("icmpv6", "addr-unreachable"),
        (Family::Ip6, IcmpError::Other(1, 5)) => ("icmpv6", "policy-fail"),
        (Family::Ip6, IcmpError::Other(1, 6)) => ("icmpv6", "reject-route"),
        (Family::Ip6, _) => ("icmpv6", "port-unreachable"),
        (Family::Inet, IcmpError::NetUnreachable) => ("icmpx", "no-route"),
        (Family::Inet, IcmpError::HostUnreachable) => ("icmpx", "host-unreachable"),
        (Family::Inet, IcmpError::AdminProhibited) => ("icmpx", "admin-prohibited"),
        (_, IcmpError::NetUnreachable) => ("icmp", "net-unreachable"),
        (_, IcmpError::HostUnreachable) => ("icmp", "host-unreachable"),
        (_, IcmpError::ProtocolUnreachable) => ("icmp", "prot-unreachable"),
        (_, IcmpError::NetProhibited) => ("icmp", "net-prohibited"),
        (_, IcmpError::HostProhibited) => ("icmp", "host-prohibited"),
        (_, IcmpError::AdminProhibited) => ("icmp", "admin-prohibited"),
        (_, _) => ("icmp", "port-unreachable"),
    };
    push(out, format_args!(" with {kind} {code}"));
}

fn write_nat(table: &Table, nat: &NatStatement, out: &mut String) {
    out.push_str(nat.kind.name());
    if let Some(family) = nat.family {
        push(out, format_args!(" {family}"));
    }
    if nat.address.is_some() || nat.port.is_some() {
        out.push_str(" to ");
    }
    let ipv6 = nat.family.unwrap_or(table.family) == Family::Ip6;
    let of = if ipv6 { Type::Ipv6Addr } else { Type::Ipv4Addr };
    match &nat.address {
        None => {}
        Some(NatValue::Expr(value)) => expr::write(table, value, out),
        Some(NatValue::Range(min, max)) => {
            let brackets = ipv6 && nat.port.is_some();
            let (open, close) = if brackets { ("[", "]") } else { ("", "") };
            for (value, before) in [(*min, ""), (*max, "-")] {
                if before.is_empty() || min != max {
                    push(out, format_args!("{before}{open}"));
                    of.write(value, out);
                    out.push_str(close);
                }
            }
        }
    }
    match &nat.port {
        None => {}
        Some(NatValue::Range(min, max)) => {
            let spaced = matches!(nat.address, Some(NatValue::Expr(_)));
            out.push_str(if spaced { " : " } else { ":" });
            expr::write_range(Type::InetService, (*min, *max), out);
        }
        Some(NatValue::Expr(value)) => {
            out.push_str(" : ");
            expr::write(table, value, out);
        }
    }
    let flags = [
        (nat.random, "random"),
        (nat.fully_random, "fully-random"),
        (nat.persistent, "persistent"),
    ];
    let flags: Vec<&str> = flags.iter().filter(|(is, _)| *is).map(|(_, name)| *name).collect();
    if !flags.is_empty() {
        push(out, format_args!(" {}", flags.join(",")));
    }
}

/// Returns the largest unit that a number of bytes is a multiple of, and how many of it.
fn bytes_text(bytes: u64) -> String {
    let units = [("gbytes", 1 << 30), ("mbytes", 1 << 20), ("kbytes", 1 << 10)];
    let unit = units.iter().find(|(_, size)| bytes >= *size && bytes.is_multiple_of(*size));
    match unit {
        Some((unit, size)) => format!("{} {unit}", bytes / size),
        None => format!("{bytes} bytes"),
    }
}

/// Returns `rate …`.
pub(super) fn rate_text(limit: &Limit) -> String {
    let unit = match limit.seconds {
        60 => "minute",
        3600 => "hour",
        86_400 => "day",
        604_800 => "week",
        _ => "second",
    };
    let over = if limit.over { "over " } else { "" };
    let rate = if limit.bytes { bytes_text(limit.rate) } else { limit.rate.to_string() };
    let burst = match (limit.bytes, limit.burst) {
        (false, 5) | (true, 0) => String::new(),
        (false, burst) => format!(" burst {burst} packets"),
        (true, burst) => format!(" burst {}", bytes_text(burst)),
    };
    format!("rate {over}{rate}/{unit}{burst}")
}

/// Returns `[over] N UNIT [used M UNIT]`.
pub(super) fn quota_text(quota: &Quota) -> String {
    let over = if quota.over { "over " } else { "" };
    let used = match quota.used {
        0 => String::new(),
        used => format!(" used {}", bytes_text(used)),
    };
    format!("{over}{}{used}", bytes_text(quota.bytes))
}

fn write_dynset(table: &Table, dynset: &Dynset, out: &mut String) {
    let name = table.sets.get(dynset.set as usize).map_or("?", |set| &set.name);
    push(out, format_args!("{} @{name} {{ ", dynset.op.name()));
    expr::write_all(table, &dynset.key, out);
    if let Some(ms) = dynset.timeout {
        out.push_str(" timeout ");
        write_time(ms, out);
    }
    if let Some(limit) = &dynset.limit {
        push(out, format_args!(" limit {}", rate_text(limit)));
    }
    if let Some(other) = &dynset.other {
        push(out, format_args!(" {other}"));
    }
    if !dynset.data.is_empty() {
        out.push_str(" : ");
        expr::write_all(table, &dynset.data, out);
    }
    out.push_str(" }");
}
