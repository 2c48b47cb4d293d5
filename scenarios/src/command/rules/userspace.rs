//! Rules of userspace mode: portals to a process that dials endpoints.

use std::fmt::Write as _;

use netfilter_model::hook::Table;
use netfilter_model::rule::Ruleset;
use sim_core::proxy::userspace;

use super::iptables::{listed, parse_table};
use super::{Side, Wrong, no_such_form};
use crate::cli::RulesForm;

/// Returns the rules in a form.
pub(super) fn print(side: &Side, form: RulesForm, table: Option<&str>) -> Result<String, Wrong> {
    let only = table.map(parse_table).transpose()?;
    let ruleset = userspace::ruleset(&side.state).map_err(|error| {
        let help = "this is a bug in rulelag, not in the objects: please report it with them";
        (error.to_string(), help.to_owned())
    })?;
    match form {
        RulesForm::Save | RulesForm::S | RulesForm::L => Ok(listed(&ruleset, form, only)),
        RulesForm::Summary => Ok(summary(side, &ruleset)),
        // The proxy made each rule by a command of its own.
        RulesForm::Restore | RulesForm::Nft | RulesForm::Ipvsadm | RulesForm::Ebpf => {
            Err(no_such_form("userspace", "save, S, L, summary"))
        }
    }
}

fn summary(side: &Side, ruleset: &Ruleset) -> String {
    let state = &side.state;
    let mut text = String::new();
    let mut line = |what: &str, value: &dyn std::fmt::Display| {
        let _ = writeln!(text, "{what:<22}{value}");
    };
    line("node", &state.node.name);
    line("mode", &"userspace");
    line("service ports", &state.ports.len());
    line("endpoints", &state.endpoint_count());
    let tables = [Table::Nat, Table::Filter];
    line("rules", &tables.map(|table| ruleset.rule_count(table)).iter().sum::<usize>());
    text
}
