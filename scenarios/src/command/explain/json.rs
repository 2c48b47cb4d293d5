//! The report as JSON. The shape is fixed: other programs read it.

use serde_json::{Value, json};

use super::report::{Alternative, Assumed, Found, PathStep, Place, Report, Unread};

/// Returns the report as JSON.
pub(super) fn render(report: &Report) -> Value {
    json!({
        "outcomes": report.outcomes.iter().map(outcome).collect::<Vec<_>>(),
        "alternatives": report.alternatives.iter().map(alternative).collect::<Vec<_>>(),
        "unsupported": report.unsupported.iter().map(unread).collect::<Vec<_>>(),
        "assumptions": report.assumptions,
        "limits": report.limits,
    })
}

fn outcome(found: &Found) -> Value {
    json!({
        "probability": found.probability.to_string(),
        "p": found.probability.to_f64(),
        "verdict": found.verdict.name(),
        "reject_with": found.reject_with,
        "dnat": found.dnat,
        "snat": found.snat,
        "symptom": found.symptom.name(),
        "rules_visited": found.rules_visited,
        "path": found.path.iter().map(step).collect::<Vec<_>>(),
    })
}

fn step(step: &PathStep) -> Value {
    json!({
        "kind": step.kind.name(),
        "hook": step.hook.chain_name(),
        "table": step.table,
        "chain": step.chain,
        "rule": step.rule,
        "line": line(step.place.as_ref()),
        "text": step.text,
        "mark": format!("{:#x}", step.mark),
        "src": step.src,
        "dst": step.dst,
    })
}

fn alternative(alternative: &Alternative) -> Value {
    let assuming = |assumed: &Assumed| json!({ "line": line(assumed.place.as_ref()), "matches": assumed.matches });
    json!({
        "assuming": alternative.assuming.iter().map(assuming).collect::<Vec<_>>(),
        "outcomes": alternative.outcomes.iter().map(outcome).collect::<Vec<_>>(),
    })
}

fn unread(unread: &Unread) -> Value {
    json!({
        "file": unread.place.as_ref().map(|place| &place.file),
        "line": line(unread.place.as_ref()),
        "text": unread.text,
        "problem": unread.problem,
        "matters": unread.matters,
    })
}

fn line(place: Option<&Place>) -> Option<u32> {
    place.map(|place| place.line)
}
