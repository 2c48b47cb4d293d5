//! `rulelag rules`: the rules that a node's proxy holds, in every form in which they are met.
//!
//! ```text
//! files ─Reader::cluster─▶ objects ─of a node─▶ state ─ a mode's module ─▶ text
//! ```
//!
//! A mode is a module of its own that gives a [`Printed`] for a [`State`] and a form.

mod diff;
mod ebpf;
mod iptables;
mod ipvs;
mod nftables;
mod userspace;

use std::collections::BTreeSet;

use netfilter_model::tuple::Family;
use sim_core::ids::{Id as _, NodeId};
use sim_core::kube::object::ProxyMode;
use sim_core::proxy::profile::Profile;
use sim_core::proxy::state::{Objects, State};
use sim_core::time::SimTime;

use super::{Status, print};
use crate::cli::{Rules, RulesAction, RulesFamily, RulesForm, RulesMode, RulesSide};
use crate::file::Reader;
use crate::units::{closest, parse_duration};

/// What cannot be printed, and what to do about it.
type Wrong = (String, String);

/// A proxy whose rules are asked for.
struct Side {
    mode: RulesMode,
    state: State,
    canaries: bool,
}

/// Prints or compares rules.
pub(super) fn execute(args: &Rules) -> Status {
    if let Some(RulesAction::Diff(args)) = &args.action {
        return diff::execute(args);
    }
    let mut reader = Reader::default();
    let side = read(&mut reader, &args.side);
    let since = (!args.since.is_empty()).then(|| {
        let files = RulesSide { files: args.since.clone(), ..args.side.clone() };
        read(&mut reader, &files)
    });
    if reader.finish() {
        return Status::BadInput;
    }
    let text = side.and_then(|side| {
        let since = since.transpose()?;
        printed(&side, since.as_ref(), args.output, args.table.as_deref())
    });
    match text {
        Ok(text) => {
            print(text);
            Status::Held
        }
        Err(wrong) => bad_input(&wrong),
    }
}

fn bad_input((message, help): &Wrong) -> Status {
    complain!("error: {message}\nhelp: {help}");
    Status::BadInput
}

/// Reads a side. What is wrong with files is the reader's to say.
fn read(reader: &mut Reader, args: &RulesSide) -> Result<Side, Wrong> {
    if args.files.is_empty() {
        return Err((
            "no files of objects are given".to_owned(),
            "as in `rulelag rules -f objects.yaml --node node-1`".to_owned(),
        ));
    }
    if let Some(at) = &args.at {
        return of_scenario(reader, args, at);
    }
    let objects = reader.cluster(&args.files);
    side(&objects, args)
}

/// Returns the proxy of a scenario's node at a time of its run.
fn of_scenario(reader: &mut Reader, args: &RulesSide, at: &str) -> Result<Side, Wrong> {
    let wrong = |message: String, help: &str| (message, help.to_owned());
    let time = parse_duration(at)
        .map_err(|error| wrong(format!("{at} is not a time: {error}"), "as in `--at 10.5s`"))?;
    let [name] = &args.files[..] else {
        return Err(wrong("--at belongs to one scenario".to_owned(), "give one `-f SCENARIO`"));
    };
    let Some(scenario) = reader.scenario(name, &[]) else {
        // What is wrong with it is the reader's to say.
        return Err(wrong(format!("{name} cannot be run"), "see above"));
    };
    let config = &scenario.config;
    let nodes = config.cluster.nodes;
    let node = match args.node.as_deref() {
        None if nodes == 1 => Some(0),
        None => None,
        Some(name) => name.strip_prefix("node-").and_then(|index| index.parse().ok()),
    };
    let Some(node) = node.filter(|node| *node < nodes) else {
        let message = match &args.node {
            Some(name) => format!("the scenario has no node {name}"),
            None => "which node?".to_owned(),
        };
        return Err((message, format!("give `--node` one of node-0 to node-{}", nodes - 1)));
    };
    let mode = match (args.mode, config.proxy.mode) {
        (Some(mode), _) => mode,
        (None, sim_core::config::ProxyMode::Iptables) => RulesMode::Iptables,
        (None, sim_core::config::ProxyMode::Nftables) => RulesMode::Nftables,
        (None, sim_core::config::ProxyMode::Userspace) => RulesMode::Userspace,
        (None, _) => {
            let message = "the scenario's nodes hold no rules of kube-proxy".to_owned();
            return Err(wrong(message, "give `--mode` to see what they would hold in that mode"));
        }
    };
    let now = SimTime::ZERO + time;
    let world = sim_core::world_at(config, args.seed, 0, now)
        .map_err(|error| wrong(error.to_string(), "`rulelag run` says more about it"))?;
    let state = world.proxy_state(NodeId::from_index(node as usize), now);
    Ok(Side { mode, state, canaries: args.canaries })
}

fn side(objects: &Objects, args: &RulesSide) -> Result<Side, Wrong> {
    let profile = Profile::parse(&args.profile).ok_or_else(|| {
        let message = format!("no such version of Kubernetes: {}", args.profile);
        (message, format!("1.28 to {}, or `current`", Profile::CURRENT))
    })?;
    let node = node(objects, args.node.as_deref())?;
    let family = args.family.map_or_else(
        || objects.nodes.get(&node).map_or(Family::V4, first_family),
        |family| match family {
            RulesFamily::V4 => Family::V4,
            RulesFamily::V6 => Family::V6,
        },
    );
    let configured = objects.config.as_ref().map(|config| config.mode);
    let mode = match args.mode {
        Some(mode) => mode,
        None => match configured.unwrap_or_default() {
            ProxyMode::Iptables => RulesMode::Iptables,
            ProxyMode::Nftables => RulesMode::Nftables,
            ProxyMode::Ipvs => RulesMode::Ipvs,
        },
    };
    let state = objects.state(&node, family, profile);
    Ok(Side { mode, state, canaries: args.canaries })
}

/// Returns the node that is meant: the only one needs no name.
fn node(objects: &Objects, name: Option<&str>) -> Result<String, Wrong> {
    let names: BTreeSet<&str> = objects.nodes.keys().map(String::as_str).collect();
    // Nodes that slices name need no object of their own.
    let slices = objects.slices.values().flat_map(|slices| slices.values());
    let endpoints = slices.flat_map(|slice| &slice.endpoints);
    let named = endpoints.filter_map(|endpoint| endpoint.node.as_deref());
    let known: BTreeSet<&str> = names.iter().copied().chain(named).collect();
    let listed = |names: &BTreeSet<&str>| {
        let shown: Vec<&str> = names.iter().copied().take(10).collect();
        let more = if names.len() > shown.len() { ", …" } else { "" };
        format!("{}{more}", shown.join(", "))
    };
    match name {
        Some(name) if known.is_empty() || known.contains(name) => Ok(name.to_owned()),
        Some(name) => {
            let help = match closest(name, known.iter().copied()) {
                Some(close) => format!("did you mean {close}?"),
                None => format!("there are {}", listed(&known)),
            };
            Err((format!("no object names a node {name}"), help))
        }
        None if names.len() == 1 => Ok(names.into_iter().map(str::to_owned).collect()),
        None => {
            let help = if known.is_empty() {
                "as in `--node node-1`".to_owned()
            } else {
                format!("give `--node` one of {}", listed(&known))
            };
            Err(("which node?".to_owned(), help))
        }
    }
}

fn first_family(node: &sim_core::kube::object::Node) -> Family {
    node.addresses.first().map_or(Family::V4, |(_, address)| Family::of(*address))
}

fn printed(
    side: &Side,
    since: Option<&Side>,
    form: Option<RulesForm>,
    table: Option<&str>,
) -> Result<String, Wrong> {
    match side.mode {
        RulesMode::Iptables => iptables::print(side, since, form.unwrap_or(RulesForm::Save), table),
        RulesMode::Ipvs if since.is_some() => Err((
            "`--since` is about iptables mode".to_owned(),
            "IPVS mode writes everything anew each time; `rulelag rules diff` shows what changed"
                .to_owned(),
        )),
        RulesMode::Ipvs => ipvs::print(side, form.unwrap_or(RulesForm::Ipvsadm), table),
        RulesMode::Ebpf if table.is_some() || since.is_some() => Err((
            "`--table` and `--since` are about iptables mode".to_owned(),
            "mode ebpf keeps maps; `rulelag rules diff` shows what changed".to_owned(),
        )),
        RulesMode::Userspace if since.is_some() => Err((
            "`--since` is about iptables mode".to_owned(),
            "userspace mode's rules do not change with endpoints".to_owned(),
        )),
        RulesMode::Userspace => userspace::print(side, form.unwrap_or(RulesForm::Save), table),
        RulesMode::Ebpf => ebpf::print(side, form.unwrap_or(RulesForm::Ebpf)),
        RulesMode::Nftables if table.is_some() || since.is_some() => Err((
            "`--table` and `--since` are about iptables mode".to_owned(),
            "nftables mode keeps one table; `rulelag rules diff` shows what changed".to_owned(),
        )),
        RulesMode::Nftables => nftables::print(side, form.unwrap_or(RulesForm::Nft)),
    }
}

/// Returns the error for a form that a mode does not have.
fn no_such_form(mode: &str, forms: &str) -> Wrong {
    (format!("rules of {mode} mode have no such form"), format!("give one of {forms}"))
}
