//! Tables that iptables-nft keeps in nftables, back to what iptables has: nft lists its rules in
//! translation, as far as it knows one.
//!
//! Comments are lost in such a list, and so are empty `-m tcp` and the like. Of a few matches the
//! translation says too little; these become unsupported, with a remark.

mod matches;
mod target;

use std::sync::Arc;

use crate::hook::{Hook, Table as XtTable};
use crate::nft::{Base, Chain, Comparison, Family, Kind, Statement, Table};
use crate::read::nft::parser::Parser;
use crate::rule::{Match, Rule, Ruleset, RulesetBuilder, Target, Unsupported};
use crate::tuple::{Family as Ip, Protocol};

/// A rule cannot be one of iptables.
pub(super) struct Foreign;

/// A rule on its way to iptables.
pub(super) struct Converted {
    family: Ip,
    rule: Rule,
    target: Option<Target>,
    remarks: Vec<&'static str>,
}

/// Returns which table of iptables this is, if it is one.
pub(super) fn xt_table(table: &Table) -> Option<XtTable> {
    let ours = matches!(table.family, Family::Ip | Family::Ip6)
        && table.sets.is_empty()
        && table.objects.is_empty()
        && !table.dormant;
    let name = XtTable::ALL.into_iter().find(|xt| xt.name() == &*table.name)?;
    let mut bases = table.chains.iter().filter_map(|chain| Some((chain, chain.base.as_ref()?)));
    let fits = |(chain, base): (&Chain, &Base)| {
        base.hook.is_some_and(|hook| {
            &*chain.name == hook.chain_name()
                && name.hooks().contains(hook)
                && (base.priority, base.kind) == registered(name, hook)
        })
    };
    (ours && bases.clone().next().is_some() && bases.all(fits)).then_some(name)
}

/// Returns priority and type of the base chain that iptables-nft makes.
const fn registered(table: XtTable, hook: Hook) -> (i32, Kind) {
    match (table, hook) {
        (XtTable::Raw, _) => (-300, Kind::Filter),
        (XtTable::Mangle, Hook::Output) => (-150, Kind::Route),
        (XtTable::Mangle, _) => (-150, Kind::Filter),
        (XtTable::Nat, Hook::Prerouting | Hook::Output | Hook::Forward) => (-100, Kind::Nat),
        (XtTable::Nat, _) => (100, Kind::Nat),
        (XtTable::Filter, _) => (0, Kind::Filter),
        (XtTable::Security, _) => (50, Kind::Filter),
    }
}

impl Parser<'_> {
    /// Takes the tables of a family that iptables-nft keeps, and returns what iptables has then.
    pub(super) fn take_xtables(&mut self, tables: &mut Vec<Table>, family: Ip) -> Option<Ruleset> {
        let wanted = if family == Ip::V4 { Family::Ip } else { Family::Ip6 };
        let mut builder = RulesetBuilder::new();
        builder.family(family);
        let mut taken = false;
        let mut kept = Vec::new();
        for table in std::mem::take(tables) {
            let xt = xt_table(&table).filter(|_| table.family == wanted);
            match xt.and_then(|xt| Some((xt, self.convert_table(&table, family)?))) {
                Some((xt, rules)) => {
                    taken = true;
                    append(&mut builder, xt, &table, rules);
                }
                None => kept.push(table),
            }
        }
        *tables = kept;
        if !taken {
            return None;
        }
        let (ruleset, refused) = builder.build_leniently();
        for error in refused {
            let line = tables_line(&ruleset, &error);
            self.remark(line, error.to_string());
        }
        Some(ruleset)
    }

    /// Returns the rules of all chains, or `None` if some rule cannot be one of iptables.
    fn convert_table(&mut self, table: &Table, family: Ip) -> Option<Vec<Vec<Rule>>> {
        let mut remarks = Vec::new();
        let mut chains = Vec::with_capacity(table.chains.len());
        for chain in &table.chains {
            let mut rules = Vec::with_capacity(chain.rules.len());
            for rule in &chain.rules {
                let mut converted = Converted {
                    family,
                    rule: Rule::new(rule.origin),
                    target: None,
                    remarks: Vec::new(),
                };
                for statement in &rule.statements {
                    converted.statement(statement, &chain.name).ok()?;
                }
                let line = rule.origin.item;
                remarks.extend(converted.remarks.iter().map(|problem| (line, *problem)));
                let target = converted.target.unwrap_or(Target::None);
                rules.push(converted.rule.then(target));
            }
            chains.push(rules);
        }
        for (line, problem) in remarks {
            self.remark(line, problem);
        }
        Some(chains)
    }
}

/// Returns the line of the rule that an error is about.
fn tables_line(ruleset: &Ruleset, error: &crate::rule::ValidationError) -> u32 {
    let chains = ruleset.chains(error.table);
    let chain = chains.iter().find(|chain| *chain.name() == error.chain);
    let at = error.rule.map_or(0, |number| number.saturating_sub(1)) as usize;
    chain.and_then(|chain| chain.rules().get(at)).map_or(1, |rule| rule.origin.item)
}

fn append(builder: &mut RulesetBuilder, xt: XtTable, table: &Table, rules: Vec<Vec<Rule>>) {
    builder.load(xt);
    let ids: Vec<_> = table
        .chains
        .iter()
        .map(|chain| match chain.base.as_ref().and_then(|base| Some((base.hook?, base.policy))) {
            Some((hook, policy)) => {
                builder.policy(xt, hook, policy);
                builder.builtin(xt, hook)
            }
            None => builder.chain(xt, chain.name.clone()),
        })
        .collect();
    for (id, rules) in ids.iter().zip(rules) {
        for rule in rules {
            let target = match rule.target() {
                Target::Jump(to) => Some(Target::Jump(ids[to.index as usize])),
                Target::Goto(to) => Some(Target::Goto(ids[to.index as usize])),
                _ => None,
            };
            let rule = match target {
                Some(target) => rule.then(target),
                None => rule,
            };
            builder.append(xt, *id, rule);
        }
    }
}

impl Converted {
    fn statement(&mut self, statement: &Statement, chain: &str) -> Result<(), Foreign> {
        // Behind a target iptables has nothing but what belongs to it.
        match statement {
            Statement::Counter(counter) if counter.name.is_none() => Ok(()),
            _ if self.target.is_some() => Err(Foreign),
            Statement::Match(comparison) => self.comparison(comparison, chain),
            Statement::Limit(limit) => self.limit(limit),
            Statement::Unsupported(text) => {
                self.unsupported(text);
                Ok(())
            }
            other => {
                self.target = Some(self.target(other)?);
                Ok(())
            }
        }
    }

    /// What nft shows only by its name.
    fn unsupported(&mut self, text: &str) {
        let named = |name: &str| {
            Box::new(Unsupported { name: name.trim_matches('"').into(), options: "".into() })
        };
        match (text.strip_prefix("xt match "), text.strip_prefix("xt target ")) {
            (Some(name), _) => self.push(Match::Unsupported(named(name))),
            (_, Some(name)) => self.target = Some(Target::Unsupported(named(name))),
            _ => self.push(Match::Unsupported(named(text))),
        }
    }

    fn push(&mut self, condition: Match) {
        let rule = std::mem::replace(&mut self.rule, Rule::new(Default::default()));
        self.rule = rule.with(condition);
    }

    /// Puts a condition in the place of the last one.
    fn replace_last(&mut self, condition: Match) {
        let origin = self.rule.origin;
        let mut matches = self.rule.matches().to_vec();
        matches.pop();
        matches.push(condition);
        self.rule = matches.into_iter().fold(Rule::new(origin), Rule::with);
    }

    /// Returns the protocol that the rule asks for.
    fn protocol(&self) -> Option<Protocol> {
        self.rule.matches().iter().find_map(|condition| match condition {
            Match::Protocol { protocol, invert: false } => Some(*protocol),
            _ => None,
        })
    }

    /// Asks for a protocol, unless the rule does.
    fn imply(&mut self, protocol: Protocol) {
        if self.protocol().is_none() {
            self.push(Match::Protocol { protocol, invert: false });
        }
    }

    fn comparison(&mut self, comparison: &Comparison, chain: &str) -> Result<(), Foreign> {
        let converted = self.convert(comparison, chain)?;
        if let Some(condition) = converted {
            self.push(condition);
        }
        Ok(())
    }

    fn lossy(&mut self, name: &str, options: impl Into<Arc<str>>, remark: &'static str) -> Match {
        self.remarks.push(remark);
        Match::Unsupported(Box::new(Unsupported { name: name.into(), options: options.into() }))
    }
}
