//! Tables while they are read, and the ruleset that they amount to.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::build::{BOTH_VERDICTS, unsupported};
use super::command::{Action, Command, Draft, DraftTarget, Trouble};
use super::{Counters, IptablesDump};
use crate::hook::{Hook, Hooks, Table};
use crate::rule::{Backend, ChainId, Match, Policy, Rules, RulesetBuilder, Target, Unsupported};
use crate::tuple::Family;

/// A chain while it is read.
#[derive(Debug)]
struct Draftable {
    name: Arc<str>,
    hook: Option<Hook>,
    /// Whether the text names it other than in a rule.
    declared: bool,
    policy: Policy,
    counters: Option<Counters>,
    rules: Vec<Draft>,
}

/// A table while it is read.
#[derive(Debug)]
struct DraftTable {
    chains: Vec<Draftable>,
    names: BTreeMap<Arc<str>, usize>,
}

/// What one back end has for one family, while it is read.
#[derive(Debug)]
pub(super) struct Tables {
    pub(super) family: Family,
    pub(super) backend: Option<Backend>,
    tables: [Option<DraftTable>; 5],
    order: Vec<Table>,
    /// What the commands of a script have cost, which may be more than a step each.
    work: usize,
    work_max: usize,
}

/// Returns how much work the commands of a text may ask for: beyond it, those that search or make
/// many rules are passed over.
pub(super) fn work_max(text: &str) -> usize {
    /// A few commands may do more than their length: some 2,000 rules from lists of addresses.
    const BASE: usize = 200_000;
    /// Ten thousand insertions at the top of a chain, the longest scripts that there are, need it.
    const EACH_BYTE: usize = 64;
    BASE + EACH_BYTE * text.len()
}

/// Returns how much work it is to make a rule with so many conditions.
pub(super) fn cost_of_rule(conditions: usize) -> usize {
    25 * (4 + conditions)
}

/// What is wrong, with the line that it is about.
pub(super) type Finding = (u32, Trouble);

impl DraftTable {
    fn new(table: Table) -> DraftTable {
        let mut new = DraftTable { chains: Vec::new(), names: BTreeMap::new() };
        for hook in table.hooks().iter() {
            new.push(hook.chain_name(), Some(hook));
        }
        new
    }

    fn push(&mut self, name: &str, hook: Option<Hook>) -> usize {
        let name: Arc<str> = name.into();
        let (policy, counters, rules) = (Policy::Accept, None, Vec::new());
        self.names.insert(name.clone(), self.chains.len());
        self.chains.push(Draftable { name, hook, declared: false, policy, counters, rules });
        self.chains.len() - 1
    }

    fn find(&mut self, name: &str) -> Option<&mut Draftable> {
        self.names.get(name).map(|index| &mut self.chains[*index])
    }

    fn find_or_add(&mut self, name: &str) -> &mut Draftable {
        let known = self.names.get(name).copied();
        let index = known.unwrap_or_else(|| self.push(name, None));
        &mut self.chains[index]
    }
}

impl Tables {
    /// Returns no tables yet, of a text that may ask for so much work.
    pub(super) fn new(family: Family, backend: Option<Backend>, work_max: usize) -> Tables {
        let (tables, order) = (Default::default(), Vec::new());
        Tables { family, backend, tables, order, work: 0, work_max }
    }

    /// Returns how much more work the text may ask for.
    pub(super) fn work_left(&self) -> usize {
        self.work_max.saturating_sub(self.work)
    }

    /// Returns whether nothing was read.
    pub(super) fn is_empty(&self) -> bool {
        self.order.is_empty()
    }

    /// Begins a table as iptables-restore does: what was read of it before is gone. Returns
    /// whether something was.
    pub(super) fn begin(&mut self, table: Table) -> bool {
        let before = self.tables[table as usize].replace(DraftTable::new(table));
        if before.is_none() {
            self.order.push(table);
        }
        before.is_some()
    }

    fn table(&mut self, table: Table) -> &mut DraftTable {
        let slot = &mut self.tables[table as usize];
        if slot.is_none() {
            self.order.push(table);
        }
        slot.get_or_insert_with(|| DraftTable::new(table))
    }

    /// Declares a chain with what stands behind its name.
    pub(super) fn declare(
        &mut self,
        table: Table,
        name: &str,
        policy: &str,
        counters: Option<Counters>,
    ) -> Result<(), Trouble> {
        let chain = self.table(table).find_or_add(name);
        let again = chain.declared;
        chain.declared = true;
        chain.counters = counters;
        match (policy, chain.hook) {
            ("ACCEPT", Some(_)) => chain.policy = Policy::Accept,
            ("DROP", Some(_)) => chain.policy = Policy::Drop,
            ("-", _) => {}
            (policy, None) => {
                let problem = format!("chain {name} is not built in and has no policy {policy}");
                return Err((problem, None));
            }
            (policy, Some(_)) => return Err((format!("{policy:?} is no policy"), None)),
        }
        if again { Err((format!("chain {name} is declared twice"), None)) } else { Ok(()) }
    }

    /// Does what a command says.
    pub(super) fn apply(&mut self, table: Table, command: Command<'_>) -> Result<(), Trouble> {
        let Command { action: Some(action), chain: name, argument, rules, .. } = command else {
            return Err(("no command of iptables".to_owned(), None));
        };
        let cheap = matches!(action, Action::Append | Action::NewChain | Action::Policy);
        let cheap = cheap && rules.len() <= 1;
        if self.work > self.work_max && !cheap {
            return Ok(());
        }
        self.work += self.cost(table, action, &name, &rules);
        if self.work > self.work_max && !cheap {
            let help = "what searches or lists addresses is passed over from here on";
            return Err(("the text asks for too much work".to_owned(), Some(help)));
        }
        let table = self.table(table);
        match action {
            Action::Nothing => return Ok(()),
            Action::Policy => {
                let chain = table.find_or_add(&name);
                chain.declared = true;
                match (&*argument, chain.hook) {
                    ("ACCEPT", Some(_)) => chain.policy = Policy::Accept,
                    ("DROP", Some(_)) => chain.policy = Policy::Drop,
                    _ => return Err((format!("chain {name} has no policy {argument}"), None)),
                }
                return Ok(());
            }
            Action::NewChain => {
                let chain = table.find_or_add(&name);
                if std::mem::replace(&mut chain.declared, true) {
                    return Err((format!("chain {name} is there already"), None));
                }
                return Ok(());
            }
            Action::Flush if name.is_empty() => {
                table.chains.iter_mut().for_each(|chain| chain.rules.clear());
                return Ok(());
            }
            Action::DeleteChain => return table.delete(&name),
            Action::Rename => return table.rename(&name, &argument),
            _ => {}
        }
        let undeclared = table.find(&name).is_none();
        let chain = table.find_or_add(&name);
        match action {
            Action::Append => chain.rules.extend(rules),
            Action::Flush => chain.rules.clear(),
            Action::Insert(number) => {
                let at = (number.max(1) as usize - 1).min(chain.rules.len());
                chain.rules.splice(at..at, rules);
            }
            Action::Replace(number) | Action::Delete(Some(number)) => {
                let at = (number as usize).wrapping_sub(1);
                if at >= chain.rules.len() {
                    return Err((format!("chain {name} has no rule {number}"), None));
                }
                chain.rules.splice(at..=at, rules);
            }
            Action::Delete(None) => {
                for rule in &rules {
                    match chain.rules.iter().position(|there| there.is_like(rule)) {
                        Some(at) => drop(chain.rules.remove(at)),
                        None => return Err((format!("chain {name} has no such rule"), None)),
                    }
                }
            }
            _ => {}
        }
        if undeclared {
            let problem = format!("chain {name} is not declared before its first rule");
            return Err((problem, Some("it is taken as a chain of this name")));
        }
        Ok(())
    }

    /// Returns how many chains and rules a command may have to look at.
    fn cost(&mut self, table: Table, action: Action, name: &str, rules: &[Draft]) -> usize {
        let table = self.table(table);
        // A list of addresses makes many rules of one line.
        let making = match rules {
            [first, _, ..] => rules.len() * cost_of_rule(first.rule.matches().len()),
            _ => 0,
        };
        making
            + match action {
                Action::DeleteChain | Action::Rename => {
                    table.chains.iter().map(|chain| 10 * (chain.rules.len() + 1)).sum()
                }
                Action::Flush if name.is_empty() => table.chains.len(),
                Action::Insert(_) | Action::Replace(_) | Action::Delete(_) => {
                    (table.find(name).map_or(0, |chain| chain.rules.len()) + 1) * rules.len().max(1)
                }
                _ => 0,
            }
    }

    /// Appends a rule of a listing to a chain, which is there from then on. Returns the line of
    /// the rule before it if no packet can pass that one, which may be because the listing leaves
    /// a condition out: if it does so, that rule may match or not.
    pub(super) fn append(
        &mut self,
        table: Table,
        chain: &str,
        rule: Draft,
        complete: bool,
    ) -> Option<u32> {
        let rules = &mut self.table(table).find_or_add(chain).rules;
        let last = rules.last_mut().filter(|last| last.ends_everything());
        let line = last.map(|last| {
            if !complete {
                last.rule = last.rule.clone().with(unsupported("?", String::new()));
            }
            last.rule.origin.item
        });
        rules.push(rule);
        line
    }

    /// Sets how many packets the policy of a chain decided about.
    pub(super) fn count(&mut self, table: Table, name: &str, counters: Counters) {
        if let Some(chain) = self.table(table).find(name) {
            chain.counters = Some(counters);
        }
    }

    /// Returns the finished dump and what was found on the way.
    pub(super) fn finish(mut self) -> (IptablesDump, Vec<Finding>) {
        let mut findings: Vec<Finding> = Vec::new();
        let mut builder = RulesetBuilder::for_backend(self.backend.unwrap_or_default());
        builder.family(self.family);
        let mut lines: BTreeMap<(Table, u32, u32), u32> = BTreeMap::new();
        let mut counters = [const { Vec::new() }; 5];
        let mut policies = BTreeMap::new();
        let mut declared = [Hooks::NONE; 5];
        for table in self.order.clone() {
            let Some(mut draft) = self.tables[table as usize].take() else { continue };
            draft.declare_callees(&mut findings);
            let ids: Vec<ChainId> = draft
                .chains
                .iter()
                .map(|chain| match chain.hook {
                    Some(hook) => builder.builtin(table, hook),
                    None => builder.chain(table, chain.name.clone()),
                })
                .collect();
            let of_table: &mut Vec<Vec<Option<Counters>>> = &mut counters[table as usize];
            of_table.resize(draft.chains.len(), Vec::new());
            for (chain, id) in draft.chains.iter().zip(&ids) {
                if let Some(hook) = chain.hook {
                    builder.policy(table, hook, chain.policy);
                    policies.extend(chain.counters.map(|of| ((table, hook), of)));
                    if chain.declared {
                        declared[table as usize] =
                            declared[table as usize].union(Hooks::of(&[hook]));
                    }
                }
                for (rule, number) in chain.rules.iter().zip(1..) {
                    let line = rule.rule.origin.item;
                    lines.insert((table, id.index, number), line);
                    let target = draft.resolve(&rule.target, &ids, line, &mut findings);
                    builder.append(table, *id, rule.rule.clone().then(target));
                    of_table[id.index as usize].push(rule.counters);
                }
            }
        }
        let (ruleset, refused) = builder.build_leniently();
        let named = Table::ALL.map(|table| -> BTreeMap<&str, u32> {
            let chains = ruleset.chains(table).iter();
            chains.map(|chain| (&**chain.name(), chain.id.index)).collect()
        });
        // One line may make many rules, which are refused for one reason.
        let mut said = BTreeSet::new();
        for error in refused {
            let chain = named[error.table as usize].get(&*error.chain);
            let place = chain.map(|index| (error.table, *index, error.rule.unwrap_or(0)));
            let line = place.and_then(|place| lines.get(&place)).copied().unwrap_or(0);
            let help = "the kernel or iptables would refuse this; evaluation follows both answers";
            if said.insert((line, error.problem.to_string())) {
                findings.push((line, (error.to_string(), Some(help))));
            }
        }
        let (order, backend) = (self.order, self.backend);
        (IptablesDump { ruleset, backend, order, declared, policies, counters }, findings)
    }
}

impl Draft {
    /// Returns whether no packet passes the rule.
    fn ends_everything(&self) -> bool {
        let asks = self.rule.matches().iter().any(|m| !matches!(m, Match::Comment(_)));
        let ends = match &self.target {
            DraftTarget::Goto(_) => true,
            DraftTarget::Known(target) | DraftTarget::Named(_, Some(target)) => matches!(
                target,
                Target::Accept | Target::Drop | Target::Return | Target::Reject(_) | Target::Nat(_)
            ),
            DraftTarget::Named(_, None) => false,
        };
        ends && !asks
    }

    /// Returns whether the rules say the same.
    fn is_like(&self, other: &Draft) -> bool {
        self.rule.matches() == other.rule.matches() && self.target == other.target
    }
}

impl DraftTable {
    fn delete(&mut self, name: &str) -> Result<(), Trouble> {
        let rules = self.chains.iter().flat_map(|chain| &chain.rules);
        let called: BTreeSet<&str> = rules.filter_map(|rule| rule.target.calls()).collect();
        let goes = |chain: &Draftable| {
            let called = called.contains(&*chain.name);
            let empty = chain.hook.is_none() && chain.rules.is_empty() && !called;
            empty && (name.is_empty() || *chain.name == *name)
        };
        let going: Vec<bool> = self.chains.iter().map(goes).collect();
        if !name.is_empty() && !going.contains(&true) {
            return Err((format!("chain {name} is in use, built in or not there"), None));
        }
        let mut going = going.into_iter();
        self.chains.retain(|_| !going.next().unwrap_or(false));
        self.index();
        Ok(())
    }

    fn rename(&mut self, from: &str, to: &str) -> Result<(), Trouble> {
        if self.names.contains_key(to) {
            return Err((format!("chain {to} is there already"), None));
        }
        match self.find(from) {
            Some(chain) if chain.hook.is_none() => chain.name = to.into(),
            _ => return Err((format!("there is no chain {from} that can be renamed"), None)),
        }
        for rule in self.chains.iter_mut().flat_map(|chain| &mut chain.rules) {
            match &mut rule.target {
                DraftTarget::Named(name, _) | DraftTarget::Goto(name) if *name == from => {
                    to.clone_into(name);
                }
                _ => {}
            }
        }
        self.index();
        Ok(())
    }

    fn index(&mut self) {
        let names = self.chains.iter().enumerate().map(|(at, chain)| (chain.name.clone(), at));
        self.names = names.collect();
    }

    /// Declares chains that are called and not there: the text may be cut.
    fn declare_callees(&mut self, findings: &mut Vec<Finding>) {
        let mut missing: BTreeMap<String, u32> = BTreeMap::new();
        for rule in self.chains.iter().flat_map(|chain| &chain.rules) {
            let name = match &rule.target {
                DraftTarget::Named(name, None) | DraftTarget::Goto(name) => name,
                _ => continue,
            };
            if !self.names.contains_key(&**name) {
                missing.entry(name.clone()).or_insert(rule.rule.origin.item);
            }
        }
        for (name, line) in missing {
            self.push(&name, None);
            let problem = format!("chain {name} is called and not declared");
            findings.push((line, (problem, Some("it is taken as an empty chain"))));
        }
    }

    fn resolve(
        &self,
        target: &DraftTarget,
        ids: &[ChainId],
        line: u32,
        findings: &mut Vec<Finding>,
    ) -> Target {
        let chain = |name: &str| self.names.get(name).map(|index| ids[*index]);
        match target {
            DraftTarget::Known(target) => target.clone(),
            DraftTarget::Goto(name) => chain(name).map_or(Target::None, Target::Goto),
            DraftTarget::Named(name, known) => match (chain(name), known) {
                (Some(id), _) => Target::Jump(id),
                (None, Some(target)) => {
                    if let Target::Unsupported(_) = target {
                        let problem = format!("target {name} is not modelled");
                        let finding = (line, (problem, Some(BOTH_VERDICTS)));
                        if findings.last() != Some(&finding) {
                            findings.push(finding);
                        }
                    }
                    target.clone()
                }
                (None, None) => {
                    let (name, options) = ((**name).into(), "".into());
                    Target::Unsupported(Box::new(Unsupported { name, options }))
                }
            },
        }
    }
}

impl DraftTarget {
    fn calls(&self) -> Option<&str> {
        match self {
            DraftTarget::Named(name, _) | DraftTarget::Goto(name) => Some(name),
            DraftTarget::Known(_) => None,
        }
    }
}

impl IptablesDump {
    /// Returns how many packets matched a rule, counted from 1, if the text says so.
    pub fn rule_counters(&self, table: Table, chain: ChainId, number: u32) -> Option<Counters> {
        let chain = self.counters[table as usize].get(chain.index as usize)?;
        *chain.get((number as usize).checked_sub(1)?)?
    }

    /// Returns how many packets the policy of a built-in chain decided about, if the text says so.
    pub fn policy_counters(&self, table: Table, hook: Hook) -> Option<Counters> {
        self.policies.get(&(table, hook)).copied()
    }

    /// Returns whether the text names a built-in chain, or has rules in it.
    pub(super) fn has_builtin(&self, table: Table, hook: Hook) -> bool {
        let used = || self.ruleset.base(table, hook).is_some_and(|chain| !chain.rules.is_empty());
        self.declared[table as usize].contains(hook) || used()
    }
}
