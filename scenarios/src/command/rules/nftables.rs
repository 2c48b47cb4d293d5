//! Rules of nftables mode.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use netfilter_model::nft::nft_list;
use sim_core::proxy::nftables::{Counts, Nftables};

use super::{Side, Wrong, no_such_form};
use crate::cli::RulesForm;

/// Returns the rules in a form.
pub(super) fn print(side: &Side, form: RulesForm) -> Result<String, Wrong> {
    let rules = Nftables::of(&side.state);
    match form {
        RulesForm::Restore => Ok(rules.restore()),
        RulesForm::Nft => {
            let refused = |problem| {
                let help = "this is a bug in rulelag, not in the objects: please report it";
                (format!("the kernel would refuse these rules: {problem}"), help.to_owned())
            };
            rules.into_ruleset().map(|ruleset| nft_list(&ruleset)).map_err(refused)
        }
        RulesForm::Summary => Ok(summary(side, &rules)),
        RulesForm::Save | RulesForm::S | RulesForm::L | RulesForm::Ipvsadm | RulesForm::Ebpf => {
            Err(no_such_form("nftables", "restore, nft, summary"))
        }
    }
}

fn summary(side: &Side, rules: &Nftables) -> String {
    let state = &side.state;
    let services: BTreeSet<_> = state.ports.iter().map(|(port, _)| &port.name.service).collect();
    let Counts { chains, rules: count, sets, maps, elements } = rules.counts();
    let mut text = String::new();
    let mut line = |what: &str, value: &dyn std::fmt::Display| {
        let _ = writeln!(text, "{what:<22}{value}");
    };
    line("node", &state.node.name);
    line("mode", &"nftables");
    line("profile", &state.profile);
    line("services", &services.len());
    line("service ports", &state.ports.len());
    line("endpoints", &state.endpoint_count());
    line("chains", &chains);
    line("rules", &count);
    line("sets", &sets);
    line("maps", &maps);
    line("elements", &elements);
    line("bytes to restore", &rules.restore().len());
    text
}
