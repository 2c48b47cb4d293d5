//! Rules of IPVS mode: virtual servers, and what surrounds them.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use sim_core::proxy::ipvs::{Counts, Ipvs};

use super::{Side, Wrong, iptables, no_such_form};
use crate::cli::RulesForm;

/// Returns the rules in a form.
pub(super) fn print(side: &Side, form: RulesForm, table: Option<&str>) -> Result<String, Wrong> {
    let only = table.map(iptables::parse_table).transpose()?;
    let rules = Ipvs::of(&side.state).map_err(|error| {
        (error.to_string(), "device names have at most 15 characters".to_owned())
    })?;
    match form {
        RulesForm::Save | RulesForm::S | RulesForm::L => {
            let refused = |error: netfilter_model::rule::ValidationError| {
                let help = "this is a bug in rulelag, not in the objects: please report it";
                (error.to_string(), help.to_owned())
            };
            let ruleset = rules.to_ruleset().map_err(refused)?;
            Ok(iptables::listed(&ruleset, form, only))
        }
        _ if only.is_some() => Err((
            "`--table` is about rules of iptables".to_owned(),
            "give `-o save`, `-o S` or `-o L` with it".to_owned(),
        )),
        RulesForm::Restore => Ok(rules.restore()),
        RulesForm::Ipvsadm => Ok(rules.servers().list()),
        RulesForm::Summary => Ok(summary(side, &rules)),
        RulesForm::Nft | RulesForm::Ebpf => {
            Err(no_such_form("IPVS", "restore, save, S, L, ipvsadm, summary"))
        }
    }
}

fn summary(side: &Side, rules: &Ipvs) -> String {
    let state = &side.state;
    let services: BTreeSet<_> = state.ports.iter().map(|(port, _)| &port.name.service).collect();
    let Counts { servers, real_servers, addresses, elements, rules: count } = rules.counts();
    let mut text = String::new();
    let mut line = |what: &str, value: &dyn std::fmt::Display| {
        let _ = writeln!(text, "{what:<22}{value}");
    };
    line("node", &state.node.name);
    line("mode", &"ipvs");
    line("profile", &state.profile);
    line("services", &services.len());
    line("service ports", &state.ports.len());
    line("endpoints", &state.endpoint_count());
    line("virtual servers", &servers);
    line("real servers", &real_servers);
    line("addresses", &addresses);
    line("elements of ipsets", &elements);
    line("iptables rules", &count);
    for (name, value) in rules.sysctls() {
        let _ = writeln!(text, "net/{name} {value}");
    }
    text
}
