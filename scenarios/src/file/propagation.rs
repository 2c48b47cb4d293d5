//! How rule changes reach the nodes, and what goes with it elsewhere in a scenario.

use std::collections::BTreeMap;
use std::time::Duration;

use sim_core::config::{
    Action, ContenderConfig, IptablesBackend, OtherServices, Pipeline, Propagation, SyncCostConfig,
};

use super::diagnostic::{Diagnostic, Diagnostics};
use super::law;
use super::resolve::{as_duration, node_index, whole};
use super::tree::{Entry, Node};

/// How long a restarted proxy takes to have its lists, unless the event says so.
const RESTART: Duration = Duration::from_secs(3);

/// Reads `propagation`, and of `proxy` what matters with a pipeline only.
pub(super) fn resolve(
    root: &Node,
    count: u32,
    diagnostics: &mut Diagnostics,
) -> Option<Propagation> {
    let (node, proxy) = (root.get("propagation")?, root.get("proxy")?);
    let mut nodes = BTreeMap::new();
    for entry in node.get("nodes")?.entries() {
        let index = node_index(&entry.key, entry.key_span, count, diagnostics);
        nodes.extend(index.zip(law::resolve(&entry.value, diagnostics)));
    }
    if let Some(delay) = node.entry("delay") {
        for field in ["minSyncPeriod", "syncPeriod", "iptablesBackend"] {
            if let Some(entry) = proxy.entry(field) {
                let message = format!("`{field}` has no effect beside `propagation.delay`");
                diagnostics.push(
                    Diagnostic::error("conflicting-fields", entry.key_span, message)
                        .context(delay.key_span, "this is the whole time, syncs included")
                        .help("remove it, or use `propagation: { pipeline: {} }`"),
                );
            }
        }
        return Some(Propagation::Delay { law: law::resolve(&delay.value, diagnostics)?, nodes });
    }
    let pipeline = node.get("pipeline")?;
    if let Some(mode) = proxy.get("mode") {
        let (message, why, late) = match mode.text() {
            Some("central") => (
                "a load balancer has no sync loop",
                "nodes hold no rules in this mode",
                "the load balancer is",
            ),
            Some("article") => (
                "the proxy of the article has no sync loop",
                "each Node has what it is told after a delay",
                "Nodes are",
            ),
            _ => ("", "", ""),
        };
        if !message.is_empty() {
            let span = node.entry("pipeline").map_or(node.span, |entry| entry.key_span);
            let help = format!("use `propagation: {{ delay: … }}` for how late {late}");
            diagnostics.push(
                Diagnostic::error("conflicting-fields", span, message)
                    .context(mode.span, why)
                    .help(help),
            );
        }
    }
    let iptables_backend = match proxy.get("iptablesBackend").and_then(Node::text) {
        Some("legacy") => IptablesBackend::Legacy,
        _ => IptablesBackend::Nft,
    };
    Some(Propagation::Pipeline(Box::new(Pipeline {
        watch: law::resolve(pipeline.get("watch")?, diagnostics)?,
        nodes,
        min_sync_period: proxy.get("minSyncPeriod").and_then(as_duration),
        sync_period: sync_period(proxy, diagnostics),
        iptables_backend,
        cost: sync_cost(pipeline.get("syncCost")?),
        failure: pipeline.get("syncFailure")?.number()?,
        contender: contender(pipeline, iptables_backend, diagnostics),
        others: others(pipeline.get("otherServices")?),
    })))
}

fn others(node: &Node) -> OtherServices {
    let number = |name: &str| node.get(name).and_then(whole).unwrap_or(0);
    OtherServices { count: number("count"), endpoints: number("endpoints") }
}

fn sync_period(proxy: &Node, diagnostics: &mut Diagnostics) -> Option<Duration> {
    let node = proxy.get("syncPeriod")?;
    let period = as_duration(node)?;
    if period.is_zero() {
        diagnostics.push(
            Diagnostic::error("out-of-range", node.span, "a sync period of 0")
                .help("use a duration above 0; 30s is the default"),
        );
    }
    Some(period)
}

fn sync_cost(node: &Node) -> SyncCostConfig {
    let duration = |name: &str| node.get(name).and_then(as_duration);
    SyncCostConfig {
        base: duration("base"),
        ensure: duration("ensure"),
        per_service: duration("perService"),
        per_rule_made: duration("perRuleMade"),
        per_rule_written: duration("perRuleWritten"),
        per_rule_held: duration("perRuleHeld"),
        per_rule_listed: duration("perRuleListed"),
        doubling_rules: node.get("doublingRules").and_then(whole),
        scale: node.get("scale").and_then(Node::number).unwrap_or(1.0),
    }
}

fn contender(
    pipeline: &Node,
    backend: IptablesBackend,
    diagnostics: &mut Diagnostics,
) -> Option<ContenderConfig> {
    let entry = pipeline.entry("lock")?;
    if backend != IptablesBackend::Legacy {
        let message = "iptables-nft takes no lock, so `lock` has no effect";
        diagnostics.push(
            Diagnostic::error("conflicting-fields", entry.key_span, message)
                .help("remove it, or add `iptablesBackend: legacy` to `proxy`"),
        );
    }
    let duration = |name: &str| entry.value.get(name).and_then(as_duration);
    let (every, holds) = (duration("every")?, duration("holds")?);
    if every.is_zero() {
        let message = "the lock is taken every 0 seconds";
        diagnostics.push(
            Diagnostic::error("out-of-range", entry.value.span, message)
                .help("use a duration above 0"),
        );
    }
    Some(ContenderConfig { every, holds })
}

/// Reads an event about the proxy or the rules of a node.
pub(super) fn event(
    root: &Node,
    node: &Node,
    entry: &Entry,
    count: u32,
    diagnostics: &mut Diagnostics,
) -> Option<Action> {
    if let Some(delay) = root.get("propagation").and_then(|node| node.entry("delay")) {
        let message = format!("`{}` needs `propagation.pipeline`", entry.key);
        diagnostics.push(
            Diagnostic::error("conflicting-fields", entry.key_span, message)
                .context(delay.key_span, "there are no proxies that sync behind a drawn delay")
                .help("use `propagation: { pipeline: {} }`"),
        );
    }
    let mode = root.get("proxy").and_then(|proxy| proxy.get("mode"));
    let written = mode.and_then(Node::text).unwrap_or("iptables");
    if entry.key == "flushRules" && !matches!(written, "iptables" | "nftables") {
        let message = format!("mode {written} has no rules of Services that could be removed");
        let help = "remove the event, or use `mode: iptables` or `mode: nftables`";
        diagnostics
            .push(Diagnostic::error("conflicting-fields", entry.key_span, message).help(help));
    }
    let index = node_index(entry.value.text()?, entry.value.span, count, diagnostics)?;
    Some(match entry.key.as_str() {
        "restartProxy" => Action::RestartProxy {
            node: index,
            takes: node.get("takes").and_then(as_duration).unwrap_or(RESTART),
        },
        _ => Action::FlushRules { node: index },
    })
}
