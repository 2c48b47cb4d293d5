//! Random rules for iptables.

mod matches;
mod targets;

use super::super::case::Backend;
use super::super::place::{Family, Settings};
use super::super::rig::TABLES;
use super::ipsets::Known;
use super::{Dice, Features};
pub(super) use matches::network;

/// A table that is being filled.
#[derive(Debug, Default)]
struct Table {
    policies: Vec<(&'static str, &'static str)>,
    chains: Vec<String>,
    rules: Vec<String>,
}

/// All tables of a ruleset.
#[derive(Debug, Default)]
pub(super) struct Tables([Table; 5]);

fn hooks(table: &str) -> &'static [&'static str] {
    match table {
        "raw" => &["PREROUTING", "OUTPUT"],
        "mangle" => &["PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING"],
        "nat" => &["PREROUTING", "INPUT", "OUTPUT", "POSTROUTING"],
        _ => &["INPUT", "FORWARD", "OUTPUT"],
    }
}

impl Tables {
    fn table(&mut self, name: &str) -> &mut Table {
        let at = TABLES.iter().position(|table| *table == name).expect("a table");
        &mut self.0[at]
    }

    /// Declares a chain.
    pub(super) fn chain(&mut self, table: &str, name: &str) {
        self.table(table).chains.push(name.to_owned());
    }

    /// Appends a rule.
    pub(super) fn rule(&mut self, table: &str, line: &str) {
        self.table(table).rules.push(line.to_owned());
    }

    /// Sets a policy.
    pub(super) fn policy(&mut self, table: &str, chain: &'static str, policy: &'static str) {
        self.table(table).policies.push((chain, policy));
    }

    /// Returns the input of `iptables-restore`. All tables are there, so that nothing of another
    /// case stays.
    pub(super) fn lines(&self) -> Vec<String> {
        let mut lines = Vec::new();
        for (name, table) in TABLES.iter().zip(&self.0) {
            lines.push(format!("*{name}"));
            for chain in hooks(name) {
                let set = table.policies.iter().rev().find(|(of, _)| of == chain);
                let policy = set.map_or("ACCEPT", |(_, policy)| policy);
                lines.push(format!(":{chain} {policy} [0:0]"));
            }
            lines.extend(table.chains.iter().map(|chain| format!(":{chain} - [0:0]")));
            lines.extend(table.rules.iter().cloned());
            lines.push("COMMIT".to_owned());
        }
        lines
    }
}

/// Where a rule stands.
#[derive(Clone, Copy)]
pub(super) struct Spot<'s> {
    family: Family,
    backend: Backend,
    features: &'s Features,
    table: &'static str,
    hook: &'static str,
    /// There are ipsets.
    sets: bool,
}

impl Spot<'_> {
    fn has(&self, name: &str) -> bool {
        self.features.has(self.family, self.backend, name)
    }

    /// Returns what sets there may be.
    fn known(&self) -> Known<'_> {
        let Spot { family, backend, features, .. } = *self;
        Known { family, backend, features }
    }

    fn v4(&self) -> bool {
        self.family == Family::V4
    }
}

/// Appends random rules to all tables; some stay empty.
pub(super) fn generic(
    dice: &mut Dice,
    settings: Settings,
    (backend, features): (Backend, &Features),
    (amount, sets): (usize, bool),
    tables: &mut Tables,
) {
    let mut random_left = 2;
    for (name, percent) in
        [("raw", 30), ("mangle", 55), ("nat", 75), ("filter", 85), ("security", 15)]
    {
        if !dice.percent(percent) {
            continue;
        }
        for hook in hooks(name) {
            if !dice.percent(60) {
                continue;
            }
            let family = settings.family;
            let spot = Spot { family, backend, features, table: name, hook, sets };
            fill(dice, spot, amount, &mut random_left, tables);
            if name != "nat" && dice.percent(4) {
                tables.policy(name, hook, "DROP");
            }
        }
    }
}

/// Fills a built-in chain, and user chains that only it leads to.
fn fill(dice: &mut Dice, spot: Spot<'_>, amount: usize, random: &mut usize, tables: &mut Tables) {
    let users = dice.below(3);
    let names: Vec<String> = (0..users).map(|i| format!("{}-{i}", spot.hook)).collect();
    for name in &names {
        tables.chain(spot.table, name);
    }
    for level in 0..=users {
        let chain = if level == 0 { spot.hook } else { &names[level - 1] };
        for _ in 0..1 + dice.below(amount) {
            let mut words = format!("-A {chain}");
            let protocol = matches::header(dice, spot, &mut words);
            for _ in 0..*dice.pick(&[0, 0, 1, 1, 2]) {
                matches::extension(dice, spot, protocol, random, &mut words);
            }
            let below = &names[level..];
            if !below.is_empty() && dice.percent(40) {
                let how = dice.word(&["-j", "-j", "-g"]);
                words += &format!(" {how} {}", dice.pick(below));
            } else {
                targets::target(dice, spot, protocol, level > 0, &mut words);
            }
            tables.rule(spot.table, &words);
        }
        // Something is there to be jumped to.
        if level < users && dice.percent(70) {
            tables.rule(spot.table, &format!("-A {chain} -j {}", names[level]));
        }
    }
}

/// Returns an example of each extension: its name, a table, and a rule.
pub(super) fn examples(family: Family) -> Vec<(&'static str, &'static str, String)> {
    let mut all = matches::examples(family);
    all.extend(targets::examples(family));
    all
}
