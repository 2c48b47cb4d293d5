//! Random rules for nftables.

pub(super) mod kube;
mod phrase;
mod sets;

use super::super::place::{Family, Settings};
use super::{Dice, Features};
use phrase::Phrase;

/// The tables that cases have; a table of another name would stay.
pub(in super::super) const TABLES: [(&str, &str); 7] = [
    ("ip", "one"),
    ("ip6", "one"),
    ("inet", "two"),
    ("ip", "kube-proxy"),
    ("ip6", "kube-proxy"),
    ("ip", "probe"),
    ("ip6", "probe"),
];

/// The input of `nft -f`, in commands: what is named comes before what names it.
#[derive(Debug, Default)]
pub(super) struct Script {
    tables: Vec<String>,
    chains: Vec<String>,
    sets: Vec<String>,
    elements: Vec<String>,
    rules: Vec<String>,
}

impl Script {
    fn table(&mut self, table: &str) {
        self.tables.push(format!("add table {table}"));
    }

    fn chain(&mut self, table: &str, name: &str) {
        self.chains.push(format!("add chain {table} {name}"));
    }

    fn base_chain(&mut self, table: &str, name: &str, header: &str, policy: &str) {
        self.chains.push(format!("add chain {table} {name} {{ type {header}; policy {policy}; }}"));
    }

    fn set(&mut self, table: &str, name: &str, text: &str) {
        self.sets.push(format!("add set {table} {name} {{ {text} }}"));
    }

    fn map(&mut self, table: &str, name: &str, text: &str) {
        self.sets.push(format!("add map {table} {name} {{ {text} }}"));
    }

    fn element(&mut self, table: &str, set: &str, text: &str) {
        self.elements.push(format!("add element {table} {set} {{ {text} }}"));
    }

    fn rule(&mut self, table: &str, chain: &str, text: &str) {
        self.rules.push(format!("add rule {table} {chain} {text}"));
    }

    /// Returns the commands.
    pub(super) fn lines(self) -> Vec<String> {
        let Script { tables, chains, sets, elements, rules } = self;
        [tables, chains, sets, elements, rules].concat()
    }
}

/// The kind of a base chain.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Filter,
    Nat,
    Route,
}

/// Where a rule stands.
#[derive(Clone, Copy)]
struct Spot<'s> {
    family: Family,
    features: &'s Features,
    /// Family and name of the table.
    table: &'s str,
    /// The table is of both families.
    inet: bool,
    kind: Kind,
    hook: &'static str,
    priority: i32,
}

impl Spot<'_> {
    fn has(&self, name: &str) -> bool {
        self.features.has(self.family, super::Backend::Nft, name)
    }

    fn v4(&self) -> bool {
        self.family == Family::V4
    }

    /// Returns the word for the header and the addresses of the case's family.
    fn ip(&self) -> &'static str {
        if self.v4() { "ip" } else { "ip6" }
    }

    /// Returns whether a packet has come in by a device here.
    fn is_input(&self) -> bool {
        matches!(self.hook, "prerouting" | "input" | "forward")
    }

    /// Returns whether a packet goes out by a device here.
    fn is_output(&self) -> bool {
        matches!(self.hook, "forward" | "output" | "postrouting")
    }

    /// Returns whether connection tracking comes later.
    fn is_raw(&self) -> bool {
        self.priority < -200
    }
}

/// Priorities of filter chains at a hook: those of x_tables, of kube-proxy, and between.
fn priorities(hook: &str) -> &'static [i32] {
    match hook {
        "prerouting" => &[-310, -300, -150, -110, -90, 0, 10],
        "output" => &[-310, -300, -150, -110, -90, 0, 50, 110],
        "postrouting" => &[-150, 0, 90, 110, 300],
        _ => &[-150, -110, 0, 10, 50, 110],
    }
}

/// Appends tables with random chains and rules.
pub(super) fn generic(
    dice: &mut Dice,
    settings: Settings,
    features: &Features,
    amount: usize,
    script: &mut Script,
) {
    let own = if settings.family == Family::V4 { "ip one" } else { "ip6 one" };
    let mut tables = vec![own, "inet two"];
    if dice.percent(65) {
        tables.remove(dice.below(2));
    }
    let mut random_left = 2;
    for table in tables {
        let inet = table.starts_with("inet");
        script.table(table);
        sets::declare(dice, settings.family, table, script);
        for hook in ["prerouting", "input", "forward", "output", "postrouting"] {
            let spot = |kind, priority| Spot {
                family: settings.family,
                features,
                table,
                inet,
                kind,
                hook,
                priority,
            };
            for _ in 0..*dice.pick(&[0, 0, 1, 1, 1, 2]) {
                let priority = *dice.pick(priorities(hook));
                fill(dice, spot(Kind::Filter, priority), amount, &mut random_left, script);
            }
            if hook != "forward" && dice.percent(40) {
                let middle = if matches!(hook, "prerouting" | "output") { -100 } else { 100 };
                let priority = middle + dice.pick(&[0, 0, 0, -10, 5]);
                fill(dice, spot(Kind::Nat, priority), amount, &mut random_left, script);
            }
            if hook == "output" && dice.percent(15) {
                let priority = *dice.pick(&[-150, 0]);
                fill(dice, spot(Kind::Route, priority), amount, &mut random_left, script);
            }
        }
    }
}

/// Adds a base chain, and chains that only it leads to.
fn fill(dice: &mut Dice, spot: Spot<'_>, amount: usize, random: &mut usize, script: &mut Script) {
    let Spot { table, hook, priority, .. } = spot;
    let base = format!("{hook}-{}", script.chains.len());
    let kind = match spot.kind {
        Kind::Filter => "filter",
        Kind::Nat => "nat",
        Kind::Route => "route",
    };
    let policy = if spot.kind == Kind::Filter && dice.percent(4) { "drop" } else { "accept" };
    script.base_chain(table, &base, &format!("{kind} hook {hook} priority {priority}"), policy);
    let users = dice.below(3);
    let names: Vec<String> = (0..users).map(|i| format!("{base}-{i}")).collect();
    for name in &names {
        script.chain(table, name);
    }
    for level in 0..=users {
        let chain = if level == 0 { &base } else { &names[level - 1] };
        let below = &names[level..];
        for _ in 0..1 + dice.below(amount) {
            let mut phrase = Phrase::default();
            for _ in 0..*dice.pick(&[0, 1, 1, 1, 2, 2, 3]) {
                phrase.condition(dice, spot, random);
            }
            for _ in 0..*dice.pick(&[0, 0, 0, 1]) {
                phrase.change(dice, spot);
            }
            phrase.end(dice, spot, below, random);
            script.rule(table, chain, &phrase.text());
        }
        // Something is there to be jumped to.
        if level < users && dice.percent(70) {
            script.rule(table, chain, &format!("jump {}", names[level]));
        }
    }
}

/// Returns an example of each expression that not every kernel has: its name, and a ruleset.
pub(in super::super) fn examples(family: Family) -> Vec<(&'static str, String)> {
    let table = if family == Family::V4 { "ip probe" } else { "ip6 probe" };
    let ip = if family == Family::V4 { "ip" } else { "ip6" };
    let rule = |header: &str, text: &str| {
        format!(
            "add table {table}\nadd chain {table} c {{ type {header}; }}\nadd rule {table} c {text}\n"
        )
    };
    let filter = "filter hook forward priority 0";
    vec![
        ("fib", rule(filter, "fib daddr type local")),
        ("ct", rule(filter, "ct state new ct mark set 1")),
        ("zone", rule("filter hook prerouting priority -300", "ct zone set 1")),
        ("numgen", rule(filter, "numgen random mod 2 0")),
        ("jhash", rule(filter, &format!("jhash {ip} saddr mod 2 seed 0x1 0"))),
        ("limit", rule(filter, "limit rate 1/hour burst 2 packets")),
        ("quota", rule(filter, "quota 100 bytes")),
        ("reject", rule(filter, "reject")),
        ("masquerade", rule("nat hook postrouting priority 100", "masquerade")),
        ("redirect", rule("nat hook prerouting priority -100", "redirect")),
        ("nat", rule("nat hook prerouting priority -100", "udp dport 1 dnat to :2")),
        ("route", rule("route hook output priority 0", "meta mark set 1")),
    ]
}
