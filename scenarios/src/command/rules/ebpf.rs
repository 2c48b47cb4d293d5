//! The maps that Cilium keeps in place of kube-proxy's rules.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use netfilter_model::ebpf::{Algorithm, Counts};
use netfilter_model::hook::Table;
use netfilter_model::rule::Ruleset;
use sim_core::proxy::ebpf::{Ebpf, SERVICE_MAP_ENTRIES_MAX};

use super::{Side, Wrong, iptables, no_such_form};
use crate::cli::RulesForm;

/// Returns the maps, or the rules that there are beside them, in a form.
pub(super) fn print(side: &Side, form: RulesForm) -> Result<String, Wrong> {
    let ebpf = Ebpf::of(&side.state, Algorithm::Random).map_err(|error| {
        (error.to_string(), "an agent could not write them either: give fewer Services".to_owned())
    })?;
    match form {
        RulesForm::Ebpf => Ok(ebpf.maps.list()),
        RulesForm::Summary => summary(side, &ebpf),
        RulesForm::Save | RulesForm::S | RulesForm::L => {
            Ok(iptables::listed(&ruleset()?, form, None))
        }
        RulesForm::Restore | RulesForm::Nft | RulesForm::Ipvsadm => {
            Err(no_such_form("ebpf", "ebpf, save, S, L, summary"))
        }
    }
}

fn ruleset() -> Result<Ruleset, Wrong> {
    Ebpf::ruleset().map_err(|error| {
        let help = "this is a bug in rulelag, not in the objects: please report it";
        (error.to_string(), help.to_owned())
    })
}

fn summary(side: &Side, ebpf: &Ebpf) -> Result<String, Wrong> {
    let state = &side.state;
    let services: BTreeSet<_> = state.ports.iter().map(|(port, _)| &port.name.service).collect();
    let Counts { services: entries, backends, rev_nat, affinity_match, source_ranges, .. } =
        ebpf.maps.counts();
    let ruleset = ruleset()?;
    let chains = [Table::Filter, Table::Nat].into_iter().flat_map(|table| ruleset.chains(table));
    let kube_chains = chains.filter(|chain| chain.name().starts_with("KUBE-")).count();
    let mut text = String::new();
    let mut line = |what: &str, value: &dyn std::fmt::Display| {
        let _ = writeln!(text, "{what:<22}{value}");
    };
    line("node", &state.node.name);
    line("mode", &"ebpf");
    line("services", &services.len());
    line("service ports", &state.ports.len());
    line("endpoints", &state.endpoint_count());
    line("kube-proxy Pods", &0);
    line("KUBE- chains", &kube_chains);
    line("service entries", &format!("{entries} of {SERVICE_MAP_ENTRIES_MAX}"));
    line("backend entries", &backends);
    line("rev-NAT entries", &rev_nat);
    line("affinity entries", &affinity_match);
    line("source ranges", &source_ranges);
    Ok(text)
}
