//! The rules that a command makes.

use super::{Action, Command, Draft, DraftTarget, Parser};
use crate::prefix::Prefix;
use crate::read::iptables::build::{build_match, build_target, unsupported};
use crate::read::iptables::tables::cost_of_rule;
use crate::read::iptables::value;
use crate::rule::{Match, Origin, Rule, Target};

impl<'t> Parser<'_, 't> {
    pub(super) fn addresses(&mut self, letter: char, not: bool, value: &str) -> Result<(), String> {
        /// A cross product grows fast; iptables has no limit, memory has.
        const LISTED_MAX: usize = 1024;
        let family = self.family;
        let prefixes: Result<Vec<(Prefix, bool)>, String> =
            value.split(',').map(|text| Ok((value::prefix(family, text)?, not))).collect();
        let prefixes = prefixes?;
        if not && prefixes.len() > 1 {
            return Err("! is not accepted with several addresses".to_owned());
        }
        let list = if letter == 's' { &mut self.sources } else { &mut self.destinations };
        if !list.is_empty() {
            return Err(format!("a second -{letter}"));
        }
        *list = prefixes;
        if self.sources.len().max(1) * self.destinations.len().max(1) > LISTED_MAX {
            return Err(format!("more than {LISTED_MAX} combinations of addresses"));
        }
        Ok(())
    }

    pub(super) fn finish(mut self, origin: Origin, work_left: usize) -> Command<'t> {
        let mut rule = Rule::new(origin);
        let mut has_rule = self.target.is_some() || self.goto.is_some();
        if let Some(device) = self.input.take() {
            rule = rule.with(Match::InDevice(Box::new(device)));
        }
        if let Some(device) = self.output.take() {
            rule = rule.with(Match::OutDevice(Box::new(device)));
        }
        if let Some((protocol, invert)) = self.protocol {
            rule = rule.with(Match::Protocol { protocol, invert });
        }
        if let Some(invert) = self.fragment {
            rule = rule.with(Match::Fragment { invert });
        }
        if !self.loose.is_empty() {
            rule = rule.with(unsupported("", self.loose.join(" ")));
        }
        for instance in std::mem::take(&mut self.matches) {
            let (condition, trouble) = build_match(self.family, &instance);
            self.command.problems.extend(trouble);
            rule = rule.with(condition);
            has_rule = true;
        }
        let target = match (self.goto.take(), self.target.take()) {
            (Some(chain), _) => DraftTarget::Goto(chain.into_owned()),
            (None, None) => DraftTarget::Known(Target::None),
            (None, Some(instance)) => {
                let (target, trouble) = build_target(self.family, &instance);
                self.command.problems.extend(trouble);
                target
            }
        };
        has_rule |= !rule.matches().is_empty();
        let adds = matches!(
            self.command.action,
            Some(Action::Append | Action::Insert(_) | Action::Replace(_) | Action::Delete(None))
        );
        if adds || has_rule {
            let count = self.sources.len().max(1) * self.destinations.len().max(1);
            // Sources and destinations are conditions as well.
            if count > 1 && count * cost_of_rule(rule.matches().len() + 2) > work_left {
                let help = "the line is passed over";
                let problem = format!("{count} rules are too much work for a text of this length");
                self.command.problems.push((problem, Some(help)));
                self.command.action = self.command.action.and(Some(Action::Nothing));
            } else {
                self.command.rules = self.cross(&rule, &target);
            }
        }
        self.command
    }

    /// Returns the rule for each pair of a source and a destination, sources outside.
    fn cross(&self, rule: &Rule, target: &DraftTarget) -> Vec<Draft> {
        let any = [(None, false)];
        let listed = |list: &[(Prefix, bool)]| -> Vec<(Option<Prefix>, bool)> {
            let some = list.iter().map(|(prefix, invert)| (Some(prefix.clone()), *invert));
            if list.is_empty() { any.to_vec() } else { some.collect() }
        };
        let (sources, destinations) = (listed(&self.sources), listed(&self.destinations));
        let mut rules = Vec::with_capacity(sources.len() * destinations.len());
        for (source, not_source) in &sources {
            for (destination, not_destination) in &destinations {
                let mut rule = rule.clone();
                if let Some(prefix) = source.clone()
                    && (!prefix.is_empty() || *not_source)
                {
                    rule = rule.with(Match::Source { prefix, invert: *not_source });
                }
                if let Some(prefix) = destination.clone()
                    && (!prefix.is_empty() || *not_destination)
                {
                    rule = rule.with(Match::Destination { prefix, invert: *not_destination });
                }
                rules.push(Draft { rule, target: target.clone(), counters: self.counters });
            }
        }
        rules
    }
}
