//! Sets and maps that every random table has.

use super::super::super::place::Family;
use super::super::packets::{PORTS, behind_n2, target, vip};
use super::{Dice, Script};

/// Declares the sets of a table, with elements.
pub(super) fn declare(dice: &mut Dice, family: Family, table: &str, script: &mut Script) {
    let addr = if family == Family::V4 { "ipv4_addr" } else { "ipv6_addr" };
    script.chain(table, "leaf");
    script.rule(table, "leaf", "meta mark set meta mark or 0x2");
    // Intervals must not overlap.
    script.set(table, "nets", &format!("type {addr}; flags interval;"));
    for net in some(dice, intervals(family)) {
        script.element(table, "nets", net);
    }
    script.set(table, "ports", "type inet_service; flags interval;");
    for ports in some(dice, &["53", "80-90", "443", "5353-8079", "8080", "30000-40100", "700"]) {
        script.element(table, "ports", ports);
    }
    script.set(table, "pairs", &format!("type {addr} . inet_service;"));
    for pair in distinct(dice, |dice| {
        let to = target(dice, family);
        format!("{to} . {}", dice.pick(&PORTS))
    }) {
        script.element(table, "pairs", &pair);
    }
    script.set(table, "spans", &format!("type {addr} . inet_service; flags interval;"));
    for net in some(dice, intervals(family)) {
        let ports = dice.word(&["80", "1-443", "5353-9000", "0-65535", "30080-30090"]);
        script.element(table, "spans", &format!("{net} . {ports}"));
    }
    script.set(table, "seen", &format!("type {addr}; size 64; flags dynamic,timeout; timeout 1h;"));
    if dice.percent(40) {
        let of = target(dice, family);
        let text = dice.word(&["", " timeout 2h"]);
        script.element(table, "seen", &format!("{of}{text}"));
    }
    script.set(table, "flows", &format!("type {addr} . inet_service; size 3; flags dynamic;"));
    script.map(table, "where", &format!("type {addr} . inet_proto . inet_service : verdict;"));
    for key in distinct(dice, |dice| {
        let to = if dice.percent(50) { vip(dice, family) } else { target(dice, family) };
        format!("{to} . {} . {}", dice.word(&["tcp", "udp"]), dice.pick(&PORTS))
    }) {
        let verdict = dice.word(&["accept", "drop", "jump leaf", "goto leaf", "return"]);
        script.element(table, "where", &format!("{key} : {verdict}"));
    }
    script.map(table, "marks", &format!("type {addr} : mark; flags interval;"));
    for net in some(dice, intervals(family)) {
        let mark = dice.word(&["0x1", "0x4000", "0x2"]);
        script.element(table, "marks", &format!("{net} : {mark}"));
    }
    script.map(table, "dests", &format!("type {addr} . inet_service : {addr} . inet_service;"));
    for key in distinct(dice, |dice| {
        let to = vip(dice, family);
        format!("{to} . {}", dice.pick(&PORTS))
    }) {
        let to = behind_n2(dice, family);
        script.element(table, "dests", &format!("{key} : {to} . {}", dice.pick(&PORTS)));
    }
}

fn intervals(family: Family) -> &'static [&'static str] {
    if family == Family::V4 {
        &[
            "10.244.1.0/31",
            "10.244.1.2",
            "10.244.1.3-10.244.1.200",
            "10.244.2.0/24",
            "10.96.0.10-10.96.0.11",
            "172.18.0.0/29",
            "172.18.0.9",
            "203.0.113.0/24",
        ]
    } else {
        &[
            "fd00:244:1::/127",
            "fd00:244:1::2",
            "fd00:244:1::3-fd00:244:1::200",
            "fd00:244:2::/64",
            "fd00:96::10-fd00:96::11",
            "fd00:18::/125",
            "fd00:18::9",
            "fd00:203::/64",
        ]
    }
}

/// Returns about half of them.
fn some<'t>(dice: &mut Dice, all: &[&'t str]) -> Vec<&'t str> {
    all.iter().copied().filter(|_| dice.percent(45)).collect()
}

/// Returns up to four that differ.
fn distinct(dice: &mut Dice, mut one: impl FnMut(&mut Dice) -> String) -> Vec<String> {
    let mut all: Vec<String> = (0..dice.below(5)).map(|_| one(dice)).collect();
    all.sort();
    all.dedup();
    all
}
