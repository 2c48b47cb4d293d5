//! Writing rulesets as `iptables-save` prints them, and as `iptables -S` and `-L` do.

mod listing;
mod matches;
mod target;

use std::fmt::{self, Display, Write};

use crate::hook::Table;
use crate::rule::{Chain, ChainId, Match, Policy, Rule, Ruleset, Target};
use crate::tuple::Family;

pub use listing::iptables_list;

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

/// Returns a table as `iptables -S` prints it: policies, then user chains, then rules.
pub fn iptables_list_rules(ruleset: &Ruleset, table: Table) -> String {
    let mut text = String::new();
    let chains = chains_in_order(ruleset, table);
    for chain in &chains {
        let (name, policy) = (chain.name(), policy_name(chain));
        text.push_str(&match chain.policy() {
            Some(_) => format!("-P {name} {policy}\n"),
            None => format!("-N {name}\n"),
        });
    }
    for chain in &chains {
        for rule in chain.rules() {
            text.push_str(&iptables_rule(ruleset, table, chain, rule));
            text.push('\n');
        }
    }
    text
}

fn save_table(out: &mut String, ruleset: &Ruleset, table: Table) -> fmt::Result {
    let chains = chains_in_order(ruleset, table);
    writeln!(out, "*{table}")?;
    for chain in &chains {
        writeln!(out, ":{} {} [0:0]", chain.name(), policy_name(chain))?;
    }
    let name = |id: ChainId| ruleset.chain_name(table, id);
    for chain in &chains {
        for rule in chain.rules() {
            write!(out, "-A {}", chain.name())?;
            save_rule(out, ruleset.family(), rule, &name)?;
            out.push('\n');
        }
    }
    out.push_str("COMMIT\n");
    Ok(())
}

/// Returns the chains as iptables prints them: built-in ones by hook, then the others by name.
pub(crate) fn chains_in_order(ruleset: &Ruleset, table: Table) -> Vec<&Chain> {
    let mut chains: Vec<&Chain> = ruleset.chains(table).iter().collect();
    chains.sort_by_key(|chain| match chain.hook() {
        Some(hook) => (0, hook as u8, ""),
        None => (1, 0, &**chain.name()),
    });
    chains
}

/// Returns what stands behind a chain's name: its policy, or `-` for a user chain.
pub(crate) fn policy_name(chain: &Chain) -> &'static str {
    match chain.policy() {
        Some(Policy::Accept) => "ACCEPT",
        Some(Policy::Drop) => "DROP",
        None => "-",
    }
}

/// Returns a rule as `iptables-save` prints it, from `-A CHAIN` on.
pub fn iptables_rule(ruleset: &Ruleset, table: Table, chain: &Chain, rule: &Rule) -> String {
    let mut text = format!("-A {}", chain.name());
    let name = |id: ChainId| ruleset.chain_name(table, id);
    save_rule(&mut text, ruleset.family(), rule, &name).expect("strings take everything");
    text
}

/// Writes a rule behind its `-A CHAIN`; `name` gives the names of chains that it calls.
pub(crate) fn save_rule<'n>(
    out: &mut String,
    family: Family,
    rule: &Rule,
    name: &dyn Fn(ChainId) -> &'n str,
) -> fmt::Result {
    for condition in rule.matches() {
        matches::save(out, family, condition)?;
    }
    target::save(out, family, rule.target(), name)
}

/// Returns a match as it is printed, without the leading blank.
pub(crate) fn match_text(family: Family, condition: &Match) -> String {
    let mut text = String::new();
    matches::save(&mut text, family, condition).expect("strings take everything");
    text.trim_start().to_owned()
}

/// Returns a target as it is printed, without the leading blank. Calls have no text of their own.
pub(crate) fn target_text(family: Family, target: &Target) -> String {
    let mut text = String::new();
    target::save(&mut text, family, target, &|_| "").expect("strings take everything");
    text.trim_start().to_owned()
}

fn not(invert: bool) -> &'static str {
    if invert { " !" } else { "" }
}

/// Writes an argument bare if it is plain, else in quotes.
// iptables: xtables.c, xtables_save_string
pub(crate) fn save_quoted(out: &mut String, text: &str) {
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

/// Names with commas between them.
struct Listed<I>(I);

impl<I: Iterator<Item: Display> + Clone> Display for Listed<I> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, name) in self.0.clone().enumerate() {
            f.write_str(if i > 0 { "," } else { "" })?;
            name.fmt(f)?;
        }
        Ok(())
    }
}
