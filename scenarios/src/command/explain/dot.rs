//! The report as a graph for Graphviz: the ways of the packet, which part where random rules choose.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::report::{Found, PathStep, Report, StepKind};

/// Returns the report as a graph.
pub(super) fn render(report: &Report) -> String {
    let mut graph = Graph { out: String::new(), nodes: 0, known: BTreeMap::new() };
    graph.out.push_str("digraph packet {\n");
    graph.out.push_str("  rankdir=TB;\n  node [shape=box, fontname=\"monospace\", fontsize=10];\n");
    let start = graph.node(&format!("{}\n{}", report.packet, report.entry), "shape=oval");
    for found in &report.outcomes {
        graph.way(start, found, "");
    }
    for alternative in &report.alternatives {
        let holding = alternative.assuming.iter().filter(|assumed| assumed.matches);
        let lines: Vec<String> = holding
            .map(|assumed| match &assumed.place {
                Some(place) => format!("line {} matches", place.line),
                None => format!("{} matches", assumed.text),
            })
            .collect();
        let branch = graph.node(&lines.join("\n"), "shape=diamond, style=dashed");
        graph.edge(start, branch, "style=dashed");
        for found in &alternative.outcomes {
            graph.way(branch, found, "style=dashed");
        }
    }
    graph.out.push_str("}\n");
    graph.out
}

struct Graph {
    out: String,
    nodes: usize,
    /// The node that a step leads to from a node.
    known: BTreeMap<(usize, String), usize>,
}

impl Graph {
    fn node(&mut self, label: &str, attributes: &str) -> usize {
        let id = self.nodes;
        self.nodes += 1;
        let _ = writeln!(self.out, "  n{id} [label=\"{}\", {attributes}];", escaped(label));
        id
    }

    fn edge(&mut self, from: usize, to: usize, attributes: &str) {
        let _ = writeln!(self.out, "  n{from} -> n{to} [{attributes}];");
    }

    fn way(&mut self, start: usize, found: &Found, style: &str) {
        let mut at = start;
        for step in &found.path {
            let label = label(step);
            let shape = match step.kind {
                StepKind::Hook => "style=filled, fillcolor=lightgrey",
                StepKind::Rule | StepKind::Policy => "style=solid",
                StepKind::Route | StepKind::Conntrack | StepKind::Nat => "style=rounded",
            };
            at = match self.known.get(&(at, label.clone())) {
                Some(next) => *next,
                None => {
                    let next = self.node(&label, shape);
                    self.edge(at, next, style);
                    self.known.insert((at, label), next);
                    next
                }
            };
        }
        let p = found.probability.to_f64();
        let mut label = format!("{} ({p:.6})\n{}", found.verdict.name().unwrap_or("?"), found.end);
        if let Some(dnat) = &found.dnat {
            let _ = write!(label, "\nDNAT {dnat}");
        }
        if let Some(snat) = &found.snat {
            let _ = write!(label, "\nSNAT {snat}");
        }
        if let Some(symptom) = found.symptom.name() {
            let _ = write!(label, "\nclient sees: {symptom}");
        }
        let end = self.node(&label, "shape=oval, style=bold");
        self.edge(at, end, style);
    }
}

fn label(step: &PathStep) -> String {
    let text = step.text.as_deref().unwrap_or_default();
    let table = step.table.as_deref().unwrap_or_default();
    let chain = step.chain.as_deref().unwrap_or_default();
    match step.kind {
        StepKind::Hook => format!("{}\n{} > {}", step.hook, step.src, step.dst),
        StepKind::Rule => {
            let number = step.rule.unwrap_or_default();
            let line =
                step.place.as_ref().map_or_else(String::new, |p| format!(" (line {})", p.line));
            format!("{table} {chain} {number}{line}\n{}", folded(text))
        }
        StepKind::Policy => format!("{table} {chain}\npolicy {text}"),
        StepKind::Route => format!("route: {text}"),
        StepKind::Conntrack => format!("conntrack: {text}"),
        StepKind::Nat => format!("nat: {text}"),
    }
}

/// Breaks a text into lines of about 60 characters.
fn folded(text: &str) -> String {
    let mut out = String::new();
    let mut column = 0;
    for word in text.split(' ') {
        if column > 0 {
            let fits = column + word.len() < 60;
            out.push(if fits { ' ' } else { '\n' });
            column = if fits { column + 1 } else { 0 };
        }
        out.push_str(word);
        column += word.len();
    }
    out
}

fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}
