//! Rulesets as `nft list ruleset` prints them.

mod expr;
mod statement;

use std::fmt::Write as _;

use crate::hook::Hook;
use crate::nft::rule::{Base, Chain, Family, Object, ObjectKind, Rule, Table};
use crate::nft::ruleset::Ruleset;
use crate::nft::set::{Data, Element, Set, SetData};
use crate::nft::value::{Type, write_time};
use crate::rule::Policy;

/// Returns the ruleset as nft lists it.
pub fn nft_list(ruleset: &Ruleset) -> String {
    let mut out = String::new();
    for table in ruleset.tables() {
        write_table(table, &mut out);
    }
    out
}

/// Returns a rule of a table as nft lists it, without its handle.
pub fn nft_rule(table: &Table, rule: &Rule) -> String {
    let mut out = String::new();
    for (at, statement) in rule.statements.iter().enumerate() {
        out.push_str(if at > 0 { " " } else { "" });
        statement::write(table, statement, &mut out);
    }
    if let Some(comment) = &rule.comment {
        out.push_str(if rule.statements.is_empty() { "" } else { " " });
        push(&mut out, format_args!("comment \"{comment}\""));
    }
    out
}

/// Returns an element of a set of a table as nft lists it.
pub fn nft_element(table: &Table, set: &Set, element: &Element) -> String {
    let mut out = String::new();
    write_element(table, set, element, &mut out);
    out
}

/// Appends to a text, which does not fail.
fn push(out: &mut String, text: std::fmt::Arguments<'_>) {
    out.write_fmt(text).expect("writing to a string does not fail");
}

fn write_table(table: &Table, out: &mut String) {
    push(out, format_args!("table {} {} {{\n", table.family, table.name));
    if let Some(comment) = &table.comment {
        push(out, format_args!("\tcomment \"{comment}\"\n"));
    }
    if table.dormant {
        out.push_str("\tflags dormant\n");
    }
    let mut first = true;
    let mut apart = |out: &mut String| {
        out.push_str(if first { "" } else { "\n" });
        first = false;
    };
    for object in &table.objects {
        apart(out);
        write_object(object, out);
    }
    for set in &table.sets {
        apart(out);
        write_set(table, set, out);
    }
    for chain in &table.chains {
        apart(out);
        write_chain(table, chain, out);
    }
    out.push_str("}\n");
}

fn write_object(object: &Object, out: &mut String) {
    let (kind, body) = match &object.kind {
        ObjectKind::Counter(packets, bytes) => {
            ("counter", format!("packets {packets} bytes {bytes}"))
        }
        ObjectKind::Quota(quota) => ("quota", statement::quota_text(quota)),
        ObjectKind::Limit(limit) => ("limit", statement::rate_text(limit)),
        ObjectKind::Other { kind, body } => (&**kind, body.to_string()),
    };
    push(out, format_args!("\t{kind} {} {{\n\t\t{body}\n\t}}\n", object.name));
}

fn write_chain(table: &Table, chain: &Chain, out: &mut String) {
    push(out, format_args!("\tchain {} {{\n", chain.name));
    if let Some(comment) = &chain.comment {
        push(out, format_args!("\t\tcomment \"{comment}\"\n"));
    }
    if let Some(base) = &chain.base {
        let Base { kind, hook_name, devices, policy, .. } = base;
        push(out, format_args!("\t\ttype {} hook {hook_name} ", kind.name()));
        match devices.as_slice() {
            [] => {}
            [device] => push(out, format_args!("device \"{device}\" ")),
            devices => {
                let quoted: Vec<String> = devices.iter().map(|d| format!("\"{d}\"")).collect();
                push(out, format_args!("devices = {{ {} }} ", quoted.join(", ")));
            }
        }
        let policy = match policy {
            Policy::Accept => "accept",
            Policy::Drop => "drop",
        };
        let priority = priority_text(table.family, base);
        push(out, format_args!("priority {priority}; policy {policy};\n"));
    }
    for rule in &chain.rules {
        push(out, format_args!("\t\t{}\n", nft_rule(table, rule)));
    }
    out.push_str("\t}\n");
}

/// Returns a priority by the nearest name that the hook has, if one is near.
// nft: rule.c, std_prio_lookup
fn priority_text(family: Family, base: &Base) -> String {
    const NEAR: i64 = 10;
    let hook = base.hook;
    let names: &[(&str, i32, bool)] = &[
        ("raw", -300, hook.is_some()),
        ("mangle", -150, hook.is_some()),
        ("dstnat", -100, hook == Some(Hook::Prerouting)),
        ("filter", 0, family != Family::Bridge),
        ("security", 50, hook.is_some()),
        ("srcnat", 100, hook == Some(Hook::Postrouting)),
    ];
    let offset = |of: i32| i64::from(base.priority) - i64::from(of);
    let near = names.iter().filter(|(_, of, here)| *here && offset(*of).abs() <= NEAR);
    match near.min_by_key(|(_, of, _)| offset(*of).abs()) {
        None => base.priority.to_string(),
        Some((name, of, _)) => match offset(*of) {
            0 => (*name).to_owned(),
            more @ 1.. => format!("{name} + {more}"),
            less => format!("{name} - {}", -less),
        },
    }
}

fn write_set(table: &Table, set: &Set, out: &mut String) {
    let what = if set.data == SetData::None { "set" } else { "map" };
    push(out, format_args!("\t{what} {} {{\n\t\t", set.name));
    match &set.typeof_key {
        Some(text) => push(out, format_args!("typeof {text}")),
        None => push(out, format_args!("type {}", type_names(&set.key))),
    }
    match &set.data {
        SetData::None => {}
        SetData::Verdict => out.push_str(" : verdict"),
        SetData::Values { types, typeof_data, interval } => {
            out.push_str(if *interval { " : interval " } else { " : " });
            match typeof_data {
                Some(text) => out.push_str(text),
                None => out.push_str(&type_names(types)),
            }
        }
    }
    out.push('\n');
    if let Some(size) = set.size {
        push(out, format_args!("\t\tsize {size}\n"));
    }
    let flags = [
        (set.constant, "constant"),
        (set.interval, "interval"),
        (set.dynamic, "dynamic"),
        (set.timeouts, "timeout"),
    ];
    let flags: Vec<&str> = flags.iter().filter(|(is, _)| *is).map(|(_, name)| *name).collect();
    if !flags.is_empty() {
        push(out, format_args!("\t\tflags {}\n", flags.join(",")));
    }
    for (name, time) in [("timeout", set.timeout), ("gc-interval", set.gc_interval)] {
        if let Some(ms) = time {
            push(out, format_args!("\t\t{name} "));
            write_time(ms, out);
            out.push('\n');
        }
    }
    if set.auto_merge {
        out.push_str("\t\tauto-merge\n");
    }
    if let Some(comment) = &set.comment {
        push(out, format_args!("\t\tcomment \"{comment}\"\n"));
    }
    if set.counter {
        out.push_str("\t\tcounter\n");
    }
    if !set.elements().is_empty() {
        out.push_str("\t\telements = { ");
        let two = *set.key == [Type::Ipv4Addr] && set.data == SetData::None;
        let per_line = if two { 2 } else { 1 };
        for (at, element) in set.elements().iter().enumerate() {
            if at > 0 {
                out.push_str(if at % per_line == 0 { ",\n\t\t\t     " } else { ", " });
            }
            write_element(table, set, element, out);
        }
        out.push_str(" }\n");
    }
    out.push_str("\t}\n");
}

fn type_names(types: &[Type]) -> String {
    let names: Vec<&str> = types.iter().map(|of| of.name().unwrap_or("integer")).collect();
    names.join(" . ")
}

fn write_element(table: &Table, set: &Set, element: &Element, out: &mut String) {
    for (at, (range, of)) in element.key.iter().zip(&set.key).enumerate() {
        out.push_str(if at > 0 { " . " } else { "" });
        expr::write_range(*of, *range, out);
    }
    for (name, time) in [("timeout", element.timeout), ("expires", element.expires)] {
        if let Some(ms) = time {
            push(out, format_args!(" {name} "));
            write_time(ms, out);
        }
    }
    if let Some(comment) = &element.comment {
        push(out, format_args!(" comment \"{comment}\""));
    }
    match &element.data {
        Data::None => {}
        Data::Verdict(verdict) => {
            out.push_str(" : ");
            statement::write_verdict(table, verdict, out);
        }
        Data::Values(values) => {
            out.push_str(" : ");
            for (at, (range, of)) in values.iter().zip(set.data_types()).enumerate() {
                out.push_str(if at > 0 { " . " } else { "" });
                expr::write_range(*of, *range, out);
            }
        }
    }
}

/// Writes an anonymous set.
fn write_anonymous(table: &Table, set: &Set, out: &mut String) {
    out.push_str("{ ");
    for (at, element) in set.elements().iter().enumerate() {
        out.push_str(if at > 0 { ", " } else { "" });
        write_element(table, set, element, out);
    }
    out.push_str(" }");
}

#[cfg(test)]
mod tests;
