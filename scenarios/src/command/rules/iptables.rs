//! Rules of iptables mode.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use netfilter_model::hook::Table;
use netfilter_model::rule::{Ruleset, iptables_list, iptables_list_rules, iptables_save};
use sim_core::config::ObjectName;
use sim_core::proxy::iptables::common::Settings;
use sim_core::proxy::iptables::{Proxier, RulesError, Sync};
use sim_core::proxy::state::State;

use super::{Side, Wrong};
use crate::cli::RulesForm;

/// Returns the rules in a form.
pub(super) fn print(
    side: &Side,
    since: Option<&Side>,
    form: RulesForm,
    table: Option<&str>,
) -> Result<String, Wrong> {
    let only = table.map(parse_table).transpose()?;
    if since.is_some() && form != RulesForm::Restore {
        return Err((
            "`--since` is about what a proxy writes".to_owned(),
            "give `-o restore`, or compare with `rulelag rules diff`".to_owned(),
        ));
    }
    let proxier = proxier(side).map_err(failed)?;
    Ok(match form {
        RulesForm::Restore => {
            let text = match since {
                None => proxier.restore(Sync::Full, &[]),
                Some(before) => partial(side, before, &proxier)?,
            };
            only.map_or_else(|| text.clone(), |table| one_table(&text, table))
        }
        RulesForm::Save | RulesForm::S | RulesForm::L => {
            let ruleset = proxier.to_ruleset().map_err(|error| failed(error.into()))?;
            listed(&ruleset, form, only)
        }
        RulesForm::Nft | RulesForm::Ipvsadm | RulesForm::Ebpf => {
            return Err(super::no_such_form("iptables", "save, restore, S, L, summary"));
        }
        RulesForm::Summary => summary(side, &proxier),
    })
}

/// Returns what the kernel holds, in one of its forms, of all tables or of one.
pub(super) fn listed(ruleset: &Ruleset, form: RulesForm, only: Option<Table>) -> String {
    let of_table: fn(&Ruleset, Table) -> String = match form {
        RulesForm::S => iptables_list_rules,
        RulesForm::L => iptables_list,
        _ => {
            let text = iptables_save(ruleset);
            return only.map_or_else(|| text.clone(), |table| one_table(&text, table));
        }
    };
    let tables = [Table::Filter, Table::Nat, Table::Mangle].into_iter();
    let tables = tables.filter(|&table| only.is_none_or(|only| only == table));
    let tables = tables.filter(|&table| !ruleset.chains(table).is_empty());
    tables.map(|table| of_table(ruleset, table)).collect()
}

fn proxier(side: &Side) -> Result<Proxier, RulesError> {
    let settings = Settings { canaries: side.canaries, ..Settings::of(&side.state)? };
    Proxier::with(&side.state, settings)
}

fn failed(error: RulesError) -> Wrong {
    let help = match error {
        RulesError::Device(_) => "device names have at most 15 characters",
        RulesError::Rules(_) => {
            "this is a bug in rulelag, not in the objects: please report it with them"
        }
    };
    (error.to_string(), help.to_owned())
}

pub(super) fn parse_table(name: &str) -> Result<Table, Wrong> {
    let mut tables = [Table::Filter, Table::Nat, Table::Mangle].into_iter();
    tables.find(|table| table.name() == name).ok_or_else(|| {
        (format!("no rules are in a table {name}"), "filter, nat and mangle have some".to_owned())
    })
}

/// Returns the part of a text of `*table` … `COMMIT` sections that is about a table.
fn one_table(text: &str, table: Table) -> String {
    let head = format!("*{}", table.name());
    let lines = text.lines().skip_while(|line| *line != head);
    let mut part = String::new();
    for line in lines {
        part.push_str(line);
        part.push('\n');
        if line == "COMMIT" {
            break;
        }
    }
    part
}

/// Returns what a partial sync writes once `before` has become `side`.
fn partial(side: &Side, before: &Side, now: &Proxier) -> Result<String, Wrong> {
    let mut proxier = self::proxier(before).map_err(failed)?;
    let changed = changed_services(&before.state, &side.state);
    let old: Vec<String> = proxier.service_chains().into_iter().map(str::to_owned).collect();
    for service in &changed {
        let ports: Vec<_> =
            side.state.ports.iter().filter(|(port, _)| port.name.service == *service).collect();
        let ports: Vec<_> = ports.into_iter().cloned().collect();
        proxier.set(service, &ports).map_err(failed)?;
    }
    debug_assert_eq!(proxier.port_count(), now.port_count());
    let old: Vec<&str> = old.iter().map(String::as_str).collect();
    Ok(proxier.restore(Sync::Partial(&changed), &old))
}

/// Returns the Services of which a port or an endpoint is not what it was.
fn changed_services(before: &State, after: &State) -> BTreeSet<ObjectName> {
    let is_in = |list: &State, entry: &_| list.ports.contains(entry);
    let gone = before.ports.iter().filter(|entry| !is_in(after, entry));
    let new = after.ports.iter().filter(|entry| !is_in(before, entry));
    gone.chain(new).map(|(port, _)| port.name.service.clone()).collect()
}

fn summary(side: &Side, proxier: &Proxier) -> String {
    let mut text = String::new();
    let state = &side.state;
    let services: BTreeSet<_> = state.ports.iter().map(|(port, _)| &port.name.service).collect();
    let mut line = |what: &str, value: &dyn std::fmt::Display| {
        let _ = writeln!(text, "{what:<22}{value}");
    };
    line("node", &state.node.name);
    line("mode", &"iptables");
    line("profile", &state.profile);
    line("services", &services.len());
    line("service ports", &proxier.port_count());
    line("endpoints", &proxier.endpoint_count());
    line("large cluster", &if proxier.has_comments() { "no" } else { "yes" });
    for table in [Table::Filter, Table::Nat] {
        line(&format!("{} rules", table.name()), &proxier.rule_count(table));
    }
    line("chains of services", &proxier.service_chains().len());
    line("bytes to restore", &proxier.restore(Sync::Full, &[]).len());
    text
}
