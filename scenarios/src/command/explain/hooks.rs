//! The matrix of hooks, tables and priorities.

use std::fmt::Write as _;

use netfilter_model::hook::{Hook, Step, Table, steps};
use netfilter_model::nft;
use netfilter_model::rule::{Policy, Rules, Ruleset};

use super::load::Loaded;

/// Returns the matrix, with how many rules each table has at each hook if rules are given.
pub(super) fn render(loaded: Option<&Loaded>) -> String {
    let rules = loaded.map(|loaded| &loaded.ruleset);
    let mut rows: Vec<Row> = Vec::new();
    for hook in Hook::ALL {
        for (priority, step) in steps(hook) {
            let (name, cell) = cell(*step, hook, rules);
            let row = rows.iter_mut().find(|(p, of, _)| *p == *priority && of == name);
            let row = match row {
                Some(row) => row,
                None => {
                    rows.push((*priority, name.to_owned(), Default::default()));
                    rows.last_mut().expect("just pushed")
                }
            };
            row.2[hook as usize] = Some(cell);
        }
    }
    let tables = loaded.and_then(|loaded| loaded.nft.as_ref()).map_or(&[][..], |nft| nft.tables());
    for table in tables {
        rows.extend(nft_rows(table));
    }
    rows.sort_by_key(|(priority, ..)| *priority);
    let width = rows.iter().map(|(_, name, _)| name.chars().count()).max().unwrap_or(0);
    let mut out = format!("{:>10}  {:<width$}", "priority", "what");
    for hook in Hook::ALL {
        let _ = write!(out, "  {:<12}", hook.chain_name());
    }
    trim(&mut out);
    for (priority, name, cells) in rows {
        let priority = match priority {
            i32::MAX => "last".to_owned(),
            priority => priority.to_string(),
        };
        let _ = write!(out, "{priority:>10}  {name:<width$}");
        for cell in cells {
            let _ = write!(out, "  {:<12}", cell.as_deref().unwrap_or("."));
        }
        trim(&mut out);
    }
    out.push_str("\na routing decision stands behind PREROUTING; OUTPUT routes again after mangle if mark,\n");
    out.push_str("addresses or TOS changed, and after nat if the destination did\n");
    if rules.is_some() {
        out.push_str(
            "\nrules: those of the built-in chain, then those of the whole table; -: not loaded\n",
        );
    }
    out
}

/// A priority, what runs there, and what that is at each hook.
type Row = (i32, String, [Option<String>; 5]);

/// Returns a row for each priority at which a table of nftables has base chains.
fn nft_rows(table: &nft::Table) -> Vec<Row> {
    let name = format!("{} {}", table.family.name(), table.name);
    let mut rows: Vec<Row> = Vec::new();
    for chain in &table.chains {
        let Some(base) = &chain.base else { continue };
        let Some(hook) = base.hook else { continue };
        let row = match rows.iter_mut().find(|row| row.0 == base.priority) {
            Some(row) => row,
            None => {
                rows.push((base.priority, name.clone(), Default::default()));
                rows.last_mut().expect("just pushed")
            }
        };
        let policy = if base.policy == Policy::Drop { " DROP" } else { "" };
        row.2[hook as usize] = Some(format!("{} {}{policy}", base.kind.name(), chain.rules.len()));
    }
    rows
}

fn trim(out: &mut String) {
    out.truncate(out.trim_end().len());
    out.push('\n');
}

fn cell(step: Step, hook: Hook, rules: Option<&Ruleset>) -> (&'static str, String) {
    match step {
        Step::Track => ("conntrack", "track".to_owned()),
        Step::Confirm => ("conntrack", "confirm".to_owned()),
        Step::Table(table) => (table.name(), table_cell(table, hook, rules)),
    }
}

fn table_cell(table: Table, hook: Hook, rules: Option<&Ruleset>) -> String {
    let Some(rules) = rules else {
        return "chain".to_owned();
    };
    let Some(chain) = rules.base(table, hook) else {
        return "-".to_owned();
    };
    let policy = if chain.policy() == Some(Policy::Drop) { " DROP" } else { "" };
    format!("{}/{}{policy}", chain.rules().len(), rules.rule_count(table))
}
