//! What the kernel would refuse: verdicts that lead nowhere or in a circle, translations where
//! there are none, sets that are not there.

use std::fmt;
use std::sync::Arc;

use crate::hook::{Hook, Hooks};
use crate::nft::expr::Expr;
use crate::nft::rule::{Chain, Family, Kind, NatKind, NatValue, Right, Statement, Table, Verdict};
use crate::nft::set::{Data, Set, SetUse};
use crate::rule::Origin;

/// Something that the kernel would refuse.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The table's family.
    pub family: Family,
    /// The table.
    pub table: Arc<str>,
    /// The chain or set.
    pub chain: Arc<str>,
    /// The rule's origin.
    pub origin: Origin,
    /// What is wrong.
    pub what: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "table {} {}, {}: {}", self.family, self.table, self.chain, self.what)
    }
}

impl std::error::Error for Problem {}

/// Where a verdict stands in a table.
#[derive(Clone, Copy)]
enum Place {
    /// In a rule: chain, rule, statement; and the element of an anonymous map.
    Rule { rule: u32, statement: u32, element: Option<u32> },
    /// In an element of a named map.
    Element(u32),
}

/// A way from a chain or a named map to another.
struct Edge {
    to: usize,
    /// The verdict, or `None` for the way from a rule to the map that it uses.
    place: Option<Place>,
}

/// Makes a table safe to run, and tells what was wrong with it.
pub(super) fn repair(table: &mut Table, problems: &mut Vec<Problem>) {
    repair_sets(table, problems);
    let chains = table.chains.len();
    let unknown = edges_of(table, |to| to >= chains);
    forget(table, &unknown, "there is no such chain", problems);
    let bases: Vec<bool> = table.chains.iter().map(|chain| chain.base.is_some()).collect();
    let to_base = edges_of(table, |to| to < chains && bases[to]);
    forget(table, &to_base, "a base chain cannot be called", problems);
    let circles = circles(table);
    forget(table, &circles, "the chain can reach itself (too many links)", problems);
    repair_nat(table, problems);
}

/// Replaces rules' uses of sets that are not there or are of another shape.
fn repair_sets(table: &mut Table, problems: &mut Vec<Problem>) {
    let Table { family, name, sets, chains, .. } = table;
    for chain in chains {
        for rule in &mut chain.rules {
            for statement in &mut rule.statements {
                let Some(what) = wrong_set(statement, sets) else { continue };
                problems.push(Problem {
                    family: *family,
                    table: name.clone(),
                    chain: chain.name.clone(),
                    origin: rule.origin,
                    what: what.clone(),
                });
                *statement = Statement::Unsupported(what.into());
            }
        }
    }
}

fn wrong_set(statement: &Statement, sets: &[Set]) -> Option<String> {
    let fits = |used: &SetUse, key: &[Expr], verdicts: bool| -> Option<String> {
        let set = match used {
            SetUse::Named { index, .. } => match sets.get(*index as usize) {
                Some(set) => set,
                None => return Some("a set that is not there".to_owned()),
            },
            SetUse::Anonymous(set) => set,
        };
        let width: usize = key.iter().map(|expr| expr.types().len()).sum();
        if set.key.len() != width {
            return Some(format!("a key of {width} fields in a set of {}", set.key.len()));
        }
        if verdicts != (set.data == crate::nft::set::SetData::Verdict) && verdicts {
            return Some(format!("set @{} holds no verdicts", set.name));
        }
        None
    };
    let mut wrong = None;
    each_expr(statement, &mut |expr| {
        if let Expr::Map { key, map } = expr {
            wrong = wrong.take().or_else(|| fits(map, key, false));
        }
    });
    wrong.or_else(|| match statement {
        Statement::Match(comparison) => match &comparison.right {
            Right::Set(set) => fits(set, &comparison.left, false),
            Right::Values(values) => {
                let width: usize = comparison.left.iter().map(|expr| expr.types().len()).sum();
                (values.len() != width).then(|| "a comparison of unequal widths".to_owned())
            }
        },
        Statement::Vmap { key, map } => fits(map, key, true),
        Statement::Dynset(dynset) => {
            let used = SetUse::Named { index: dynset.set, data: Box::default() };
            fits(&used, &dynset.key, false).or_else(|| {
                let set = &sets[dynset.set as usize];
                let single = !set.interval;
                (!single).then(|| format!("set @{} of intervals is changed by packets", set.name))
            })
        }
        _ => None,
    })
}

/// Calls for every expression of a statement, inner ones too.
fn each_expr(statement: &Statement, call: &mut dyn FnMut(&Expr)) {
    fn inner(expr: &Expr, call: &mut dyn FnMut(&Expr)) {
        call(expr);
        match expr {
            Expr::Jhash { of, .. } => of.iter().for_each(|expr| inner(expr, call)),
            Expr::Bits { of, .. } | Expr::Shift { of, .. } => inner(of, call),
            Expr::Map { key, .. } => key.iter().for_each(|expr| inner(expr, call)),
            _ => {}
        }
    }
    let exprs: Vec<&Expr> = match statement {
        Statement::Match(comparison) => comparison.left.iter().collect(),
        Statement::Vmap { key, .. } => key.iter().collect(),
        Statement::SetMark(value)
        | Statement::SetCtMark(value)
        | Statement::SetZone(value, _)
        | Statement::SetTtl(value)
        | Statement::SetDscp(value) => vec![value],
        Statement::Nat(nat) => [&nat.address, &nat.port]
            .into_iter()
            .flatten()
            .filter_map(|value| match value {
                NatValue::Expr(value) => Some(value),
                NatValue::Range(..) => None,
            })
            .collect(),
        Statement::Dynset(dynset) => dynset.key.iter().chain(&dynset.data).collect(),
        _ => Vec::new(),
    };
    exprs.into_iter().for_each(|expr| inner(expr, call));
}

const fn target(verdict: &Verdict) -> Option<usize> {
    match verdict {
        Verdict::Jump(to) | Verdict::Goto(to) => Some(*to as usize),
        _ => None,
    }
}

/// Returns the ways out of a chain; to a named map by its place behind the chains.
fn edges_of_chain(chain: &Chain, chains: usize, edges: &mut Vec<Edge>) {
    for (rule, at) in chain.rules.iter().zip(0..) {
        for (statement, statement_at) in rule.statements.iter().zip(0..) {
            let place = |element| Some(Place::Rule { rule: at, statement: statement_at, element });
            match statement {
                Statement::Verdict(verdict) => {
                    let to = target(verdict).into_iter();
                    edges.extend(to.map(|to| Edge { to, place: place(None) }));
                }
                Statement::Vmap { map: SetUse::Named { index, .. }, .. } => {
                    edges.push(Edge { to: chains + *index as usize, place: None });
                }
                Statement::Vmap { map: SetUse::Anonymous(set), .. } => {
                    for (element, element_at) in set.elements().iter().zip(0..) {
                        if let Data::Verdict(verdict) = &element.data
                            && let Some(to) = target(verdict)
                        {
                            edges.push(Edge { to, place: place(Some(element_at)) });
                        }
                    }
                }
                _ => {}
            }
        }
    }
}

fn edges_of_set(set: &Set, edges: &mut Vec<Edge>) {
    for (element, at) in set.elements().iter().zip(0..) {
        if let Data::Verdict(verdict) = &element.data
            && let Some(to) = target(verdict)
        {
            edges.push(Edge { to, place: Some(Place::Element(at)) });
        }
    }
}

fn edges(table: &Table, node: usize) -> Vec<Edge> {
    let mut edges = Vec::new();
    let chains = table.chains.len();
    match table.chains.get(node) {
        Some(chain) => edges_of_chain(chain, chains, &mut edges),
        None => edges_of_set(&table.sets[node - chains], &mut edges),
    }
    edges
}

fn nodes(table: &Table) -> usize {
    table.chains.len() + table.sets.len()
}

/// Returns the verdicts whose chain is such.
fn edges_of(table: &Table, such: impl Fn(usize) -> bool) -> Vec<(usize, Place)> {
    let mut found = Vec::new();
    for node in 0..nodes(table) {
        for edge in edges(table, node) {
            if let Some(place) = edge.place
                && such(edge.to)
            {
                found.push((node, place));
            }
        }
    }
    found
}

/// Returns verdicts without which no chain can reach itself.
fn circles(table: &Table) -> Vec<(usize, Place)> {
    #[derive(Clone, Copy, PartialEq)]
    enum Seen {
        No,
        Above,
        Done,
    }
    let mut seen = vec![Seen::No; nodes(table)];
    let mut found = Vec::new();
    for start in 0..nodes(table) {
        if seen[start] != Seen::No {
            continue;
        }
        seen[start] = Seen::Above;
        // Each with the verdict, and the node that it stands in, that led into a map last.
        let mut stack = vec![(start, edges(table, start))];
        while let Some((node, left)) = stack.last_mut() {
            let node = *node;
            let Some(edge) = left.pop() else {
                seen[node] = Seen::Done;
                stack.pop();
                continue;
            };
            match seen[edge.to] {
                Seen::No => {
                    seen[edge.to] = Seen::Above;
                    stack.push((edge.to, edges(table, edge.to)));
                }
                Seen::Above => match edge.place {
                    Some(place) => found.push((node, place)),
                    // From a chain to a map from which it is called: the map's verdicts to chains
                    // above go when the search comes back to them, or stand above already.
                    None => found.extend(map_verdicts_to_above(table, edge.to, |to| {
                        seen[to] == Seen::Above
                    })),
                },
                Seen::Done => {}
            }
        }
    }
    found
}

fn map_verdicts_to_above(
    table: &Table,
    map: usize,
    above: impl Fn(usize) -> bool,
) -> Vec<(usize, Place)> {
    let ways = edges(table, map).into_iter();
    ways.filter(|edge| above(edge.to)).filter_map(|edge| Some((map, edge.place?))).collect()
}

/// Replaces verdicts by ones that are not followed.
fn forget(table: &mut Table, found: &[(usize, Place)], why: &str, problems: &mut Vec<Problem>) {
    let chains = table.chains.len();
    let names: Vec<Arc<str>> = table.chains.iter().map(|chain| chain.name.clone()).collect();
    let as_written = |verdict: &Verdict| -> Arc<str> {
        let name = |to: &u32| names.get(*to as usize).map_or("?", |name| name).to_owned();
        match verdict {
            Verdict::Jump(to) => format!("jump {}", name(to)).into(),
            Verdict::Goto(to) => format!("goto {}", name(to)).into(),
            Verdict::Unknown(text) => text.clone(),
            _ => "".into(),
        }
    };
    for (node, place) in found {
        let (verdict, holder, origin) = match place {
            Place::Element(at) => {
                let set = &mut table.sets[node - chains];
                let name = set.name.clone();
                let Some(element) = set.elements_mut().get_mut(*at as usize) else { continue };
                let Data::Verdict(verdict) = &mut element.data else { continue };
                let text = as_written(verdict);
                *verdict = Verdict::Unknown(text.clone());
                (text, name, Origin::default())
            }
            Place::Rule { rule, statement, element } => {
                let chain = &mut table.chains[*node];
                let rule = &mut chain.rules[*rule as usize];
                let origin = rule.origin;
                let text = match (&mut rule.statements[*statement as usize], element) {
                    (Statement::Verdict(verdict), _) => {
                        let text = as_written(verdict);
                        *verdict = Verdict::Unknown(text.clone());
                        text
                    }
                    (Statement::Vmap { map: SetUse::Anonymous(set), .. }, Some(element)) => {
                        let set = Arc::make_mut(set);
                        let Some(element) = set.elements_mut().get_mut(*element as usize) else {
                            continue;
                        };
                        let Data::Verdict(verdict) = &mut element.data else { continue };
                        let text = as_written(verdict);
                        *verdict = Verdict::Unknown(text.clone());
                        text
                    }
                    _ => continue,
                };
                (text, chain.name.clone(), origin)
            }
        };
        let (family, table) = (table.family, table.name.clone());
        let what = format!("{verdict}: {why}");
        problems.push(Problem { family, table, chain: holder, origin, what });
    }
}

/// Replaces translations that can be reached from where there are none.
fn repair_nat(table: &mut Table, problems: &mut Vec<Problem>) {
    // For each chain and map: the hooks from which it is called by a chain of type nat, and
    // whether it is by another.
    let mut from = vec![(Hooks::NONE, false); nodes(table)];
    let mut waiting = Vec::new();
    for (at, chain) in table.chains.iter().enumerate() {
        if let Some(base) = &chain.base {
            from[at] = match base.hook {
                Some(hook) if base.kind == Kind::Nat => (Hooks::of(&[hook]), false),
                _ => (Hooks::NONE, true),
            };
            waiting.push(at);
        }
    }
    while let Some(node) = waiting.pop() {
        for edge in edges(table, node) {
            let merged = (from[edge.to].0.union(from[node].0), from[edge.to].1 || from[node].1);
            if merged != from[edge.to] {
                from[edge.to] = merged;
                waiting.push(edge.to);
            }
        }
    }
    let Table { family, name, chains, .. } = table;
    for (chain, (hooks, elsewhere)) in chains.iter_mut().zip(from) {
        for rule in &mut chain.rules {
            for statement in &mut rule.statements {
                let Statement::Nat(nat) = statement else { continue };
                let accepted = match nat.kind {
                    NatKind::Dnat | NatKind::Redirect => {
                        Hooks::of(&[Hook::Prerouting, Hook::Output])
                    }
                    NatKind::Snat => Hooks::of(&[Hook::Postrouting, Hook::Input]),
                    NatKind::Masquerade => Hooks::of(&[Hook::Postrouting]),
                };
                let wrong = hooks.without(accepted);
                if !elsewhere && wrong.is_empty() {
                    continue;
                }
                let kind = nat.kind.name();
                let what = if elsewhere {
                    format!("{kind} outside of chains of type nat")
                } else {
                    format!("{kind} at {wrong}, where it is not accepted")
                };
                problems.push(Problem {
                    family: *family,
                    table: name.clone(),
                    chain: chain.name.clone(),
                    origin: rule.origin,
                    what,
                });
                *statement = Statement::Unsupported(kind.into());
            }
        }
    }
}

/// Calls for every set that a statement uses.
pub(crate) fn each_set_use(statement: &mut Statement, call: &mut dyn FnMut(&mut SetUse)) {
    fn inner(expr: &mut Expr, call: &mut dyn FnMut(&mut SetUse)) {
        match expr {
            Expr::Jhash { of, .. } => of.iter_mut().for_each(|expr| inner(expr, call)),
            Expr::Bits { of, .. } | Expr::Shift { of, .. } => inner(of, call),
            Expr::Map { key, map } => {
                key.iter_mut().for_each(|expr| inner(expr, call));
                call(map);
            }
            _ => {}
        }
    }
    match statement {
        Statement::Match(comparison) => {
            comparison.left.iter_mut().for_each(|expr| inner(expr, call));
            if let Right::Set(set) = &mut comparison.right {
                call(set);
            }
        }
        Statement::Vmap { key, map } => {
            key.iter_mut().for_each(|expr| inner(expr, call));
            call(map);
        }
        Statement::SetMark(value)
        | Statement::SetCtMark(value)
        | Statement::SetZone(value, _)
        | Statement::SetTtl(value)
        | Statement::SetDscp(value) => inner(value, call),
        Statement::Nat(nat) => {
            for value in [&mut nat.address, &mut nat.port].into_iter().flatten() {
                if let NatValue::Expr(value) = value {
                    inner(value, call);
                }
            }
        }
        Statement::Dynset(dynset) => {
            dynset.key.iter_mut().chain(&mut dynset.data).for_each(|expr| inner(expr, call));
        }
        _ => {}
    }
}
