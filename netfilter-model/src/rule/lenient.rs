//! Rulesets out of rules that the kernel may have refused: what it would refuse becomes
//! unsupported, so that evaluation follows both answers.

use crate::hook::{Hook, Hooks, Table};
use crate::rule::build::Tables;
use crate::rule::legality::{Place, check_target, match_hooks, target_hooks, wrong_hook};
use crate::rule::validate::{self, Problem, Reach, ValidationError};
use crate::rule::{
    Backend, Chain, Match, Rule, Ruleset, RulesetBuilder, Target, Unsupported, match_text,
    target_text,
};
use crate::tuple::Family;

impl RulesetBuilder {
    /// Returns the ruleset and everything that the kernel or iptables would refuse in it. Such
    /// matches and targets are kept as unsupported ones.
    ///
    /// # Panics
    ///
    /// If the builder has slots.
    pub fn build_leniently(mut self) -> (Ruleset, Vec<ValidationError>) {
        assert!(self.slots.is_empty(), "slots are for bases");
        let mut refused = std::mem::take(&mut self.problems);
        let family = self.family;
        let mut reach: [Vec<Reach>; 5] = Default::default();
        for table in Table::ALL {
            let chains = &mut self.chains[table as usize];
            repair_rules(table, family, chains, &mut refused);
            repair_loops(table, family, chains, &mut refused);
            repair_hooks(table, family, chains, &mut refused);
            let mut checked = validate::rules(table, family, chains, self.backend);
            if let Err(error) = &checked
                && matches!(error.problem, Problem::TooDeep { .. })
            {
                refused.push(error.clone());
                self.backend = Backend::Legacy;
                checked = validate::rules(table, family, chains, self.backend);
            }
            // Every problem was repaired above; should one be left, the table is empty.
            reach[table as usize] = checked.unwrap_or_else(|error| {
                refused.push(error);
                chains.iter_mut().for_each(|chain| chain.rules.clear());
                vec![Reach::default(); chains.len()]
            });
        }
        (Ruleset::of(Tables::new(self, reach)), refused)
    }
}

fn unsupported_match(family: Family, condition: &Match) -> Match {
    let text = match_text(family, condition);
    let (name, options) = match text.strip_prefix("-m ") {
        Some(rest) => rest.split_once(' ').unwrap_or((rest, "")),
        None => ("", &*text),
    };
    Match::Unsupported(Box::new(Unsupported { name: name.into(), options: options.into() }))
}

fn unsupported_target(family: Family, target: &Target, callee: &str) -> Target {
    let text = match target {
        Target::Jump(_) | Target::Goto(_) => format!("-j {callee}"),
        target => target_text(family, target),
    };
    let text = text.strip_prefix("-j ").unwrap_or(&text);
    let (name, options) = text.split_once(' ').unwrap_or((text, ""));
    Target::Unsupported(Box::new(Unsupported { name: name.into(), options: options.into() }))
}

/// Replaces what no rule may have, wherever it stands.
fn repair_rules(
    table: Table,
    family: Family,
    chains: &mut [Chain],
    refused: &mut Vec<ValidationError>,
) {
    let builtin: Vec<bool> = chains.iter().map(|chain| chain.base.is_some()).collect();
    let names: Vec<_> = chains.iter().map(|chain| chain.name.clone()).collect();
    for chain in chains {
        let (place, name) = (Place::of(table, family, chain), chain.name.clone());
        for (position, rule) in chain.rules.iter_mut().enumerate() {
            let mut refuse = |problem| {
                refused.push(ValidationError::of_rule(table, &name, position, problem));
            };
            let protocol = rule.asked_protocol();
            let check = |condition: &Match| match_hooks(place, condition, protocol).err();
            if rule.matches().iter().any(|condition| check(condition).is_some()) {
                let repaired = rule.matches().iter().map(|condition| match check(condition) {
                    None => condition.clone(),
                    Some(problem) => {
                        refuse(problem);
                        unsupported_match(family, condition)
                    }
                });
                let repaired: Vec<Match> = repaired.collect();
                *rule = rebuilt(rule, repaired);
            }
            let called = match rule.target() {
                Target::Jump(id) | Target::Goto(id) => Some(id.index as usize),
                _ => None,
            };
            let problem = match called {
                Some(callee) if builtin[callee] => {
                    Some(Problem::JumpToBuiltin(names[callee].clone()))
                }
                _ => check_target(place, rule.target(), protocol).err(),
            };
            if let Some(problem) = problem {
                refuse(problem);
                let callee = called.map_or("", |callee| &names[callee]);
                let target = unsupported_target(family, rule.target(), callee);
                *rule = rule.clone().then(target);
            }
        }
    }
}

fn rebuilt(rule: &Rule, matches: Vec<Match>) -> Rule {
    let new = Rule::new(rule.origin).then(rule.target().clone());
    matches.into_iter().fold(new, Rule::with)
}

fn callees(chain: &Chain) -> impl Iterator<Item = (usize, usize)> {
    chain.rules.iter().enumerate().filter_map(|(position, rule)| match rule.target() {
        Target::Jump(id) | Target::Goto(id) => Some((position, id.index as usize)),
        _ => None,
    })
}

/// Replaces the calls that close a loop which a built-in chain can reach.
fn repair_loops(
    table: Table,
    family: Family,
    chains: &mut [Chain],
    refused: &mut Vec<ValidationError>,
) {
    #[derive(Clone, Copy, PartialEq)]
    enum Seen {
        No,
        OnTheWay,
        Done,
    }
    let calls: Vec<Vec<(usize, usize)>> =
        chains.iter().map(|chain| callees(chain).collect()).collect();
    let mut seen = vec![Seen::No; chains.len()];
    let mut closing = Vec::new();
    for start in 0..chains.len() {
        if chains[start].base.is_none() {
            continue;
        }
        // Each entry is a chain and how many of its calls were followed.
        let mut way = vec![(start, 0)];
        seen[start] = Seen::OnTheWay;
        while let Some((chain, next)) = way.last_mut() {
            let Some(&(position, callee)) = calls[*chain].get(*next) else {
                seen[*chain] = Seen::Done;
                way.pop();
                continue;
            };
            *next += 1;
            match seen[callee] {
                Seen::OnTheWay => closing.push((*chain, position, callee)),
                Seen::Done => {}
                Seen::No => {
                    seen[callee] = Seen::OnTheWay;
                    way.push((callee, 0));
                }
            }
        }
    }
    for (chain, position, callee) in closing {
        let callee = chains[callee].name.clone();
        let problem = Problem::Loop(callee.clone());
        refused.push(ValidationError::of_rule(table, &chains[chain].name, position, problem));
        let rule = &mut chains[chain].rules[position];
        let target = unsupported_target(family, rule.target(), &callee);
        *rule = rule.clone().then(target);
    }
}

/// Replaces what a hook that can reach it does not have.
fn repair_hooks(
    table: Table,
    family: Family,
    chains: &mut [Chain],
    refused: &mut Vec<ValidationError>,
) {
    let mut from: Vec<Hooks> = chains.iter().map(Chain::own_hooks).collect();
    let mut open: Vec<usize> = (0..chains.len()).filter(|chain| !from[*chain].is_empty()).collect();
    while let Some(chain) = open.pop() {
        for (_, callee) in callees(&chains[chain]) {
            let all = from[callee].union(from[chain]);
            if all != from[callee] {
                from[callee] = all;
                open.push(callee);
            }
        }
    }
    for (chain, from) in chains.iter_mut().zip(from) {
        let (place, name) = (Place::of(table, family, chain), chain.name.clone());
        for position in 0..chain.rules.len() {
            let rule = &chain.rules[position];
            let wrong = |at: Hook| wrong_hook(place, rule, at);
            let Some(problem) = from.iter().find_map(wrong) else { continue };
            refused.push(ValidationError::of_rule(table, &name, position, problem));
            let protocol = rule.asked_protocol();
            let fits = |accepted: Hooks| from.without(accepted).is_empty();
            let repaired = rule.matches().iter().map(|condition| {
                let accepted = match_hooks(place, condition, protocol);
                if accepted.is_ok_and(fits) {
                    condition.clone()
                } else {
                    unsupported_match(family, condition)
                }
            });
            let mut repaired = rebuilt(rule, repaired.collect());
            if !fits(target_hooks(rule.target())) {
                repaired = repaired.then(unsupported_target(family, rule.target(), ""));
            }
            chain.rules[position] = repaired;
        }
    }
}
