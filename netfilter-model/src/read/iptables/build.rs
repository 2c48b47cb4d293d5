//! From what was given to a match or target to the rule's part, or to what is kept of it.

use super::command::{DraftTarget, Trouble};
use super::options::{CONTINUING, Instance, UNMODELLED_MATCHES, UNMODELLED_TARGETS};
use super::{matches, target};
use crate::rule::{Match, Target, Unsupported};
use crate::tuple::Family;

/// Returns the match of an instance, and what is wrong if it is kept as unsupported.
pub(super) fn build_match(family: Family, instance: &Instance<'_>) -> (Match, Option<Trouble>) {
    let name = &*instance.name;
    let problem = match instance.extension {
        Some(_) => match built(family, instance) {
            Ok(condition) => return (condition, None),
            Err(problem) => format!("match {name}: {problem}"),
        },
        None if UNMODELLED_MATCHES.contains(&name) => format!("match {name} is not modelled"),
        None => format!("match {name} is not known"),
    };
    (unsupported(name, instance.raw_text()), Some((problem, Some(BOTH_ANSWERS))))
}

/// Returns the target of an instance, and what is wrong if it is kept as unsupported.
pub(super) fn build_target(
    family: Family,
    instance: &Instance<'_>,
) -> (DraftTarget, Option<Trouble>) {
    let name = instance.name.to_string();
    let kept = || {
        let (name, options) = ((*name).into(), instance.raw_text().into());
        Box::new(Unsupported { name, options })
    };
    let plain = instance.raw.is_empty();
    let (known, problem) = if instance.extension.is_some() {
        match target::build(family, instance) {
            Ok(target @ (Target::Accept | Target::Drop | Target::Return)) => {
                return (DraftTarget::Known(target), None);
            }
            Ok(target) => (Some(target), None),
            Err(problem) => (None, Some(format!("target {name}: {problem}"))),
        }
    } else if CONTINUING.contains(&&*name) {
        (Some(Target::Continue(kept())), None)
    } else if UNMODELLED_TARGETS.contains(&&*name) {
        let problem = format!("target {name} is not modelled");
        (Some(Target::Unsupported(kept())), Some(problem))
    } else {
        (None, Some(format!("target {name} is not known")))
    };
    if plain {
        // It may be a chain.
        return (DraftTarget::Named(name, known), None);
    }
    let target = known.unwrap_or_else(|| Target::Unsupported(kept()));
    (DraftTarget::Known(target), problem.map(|problem| (problem, Some(BOTH_VERDICTS))))
}

pub(super) const BOTH_ANSWERS: &str = "evaluation follows both answers: may match, may not";
pub(super) const BOTH_VERDICTS: &str =
    "evaluation follows both: the packet is dropped, the next rule runs";

fn built(family: Family, instance: &Instance<'_>) -> Result<Match, String> {
    if instance.given.iter().any(|given| given.key.is_empty()) {
        return Err("an option without its value".to_owned());
    }
    matches::build(family, instance)
}

pub(super) fn unsupported(name: &str, options: String) -> Match {
    Match::Unsupported(Box::new(Unsupported { name: name.into(), options: options.into() }))
}
