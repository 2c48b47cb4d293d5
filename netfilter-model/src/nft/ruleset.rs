//! A whole nftables ruleset, ready to run: what is called at each hook in which order, where
//! state is kept, and whether anything needs connection tracking.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::hook::{self, Hook, Step};
use crate::nft::check::{self, Problem};
use crate::nft::expr::{Expr, StateId};
use crate::nft::rule::{
    Chain, Family, Kind, Limit, NatValue, ObjectKind, Quota, Rule, Statement, Table,
};
use crate::nft::set::{Set, SetUse};
use crate::rule::{RuleRef, TableId};

/// A whole ruleset of nftables.
#[derive(Clone, Debug, Default)]
pub struct Ruleset {
    tables: Vec<Table>,
    /// By family (IPv4, IPv6) and hook.
    steps: [[Vec<(i32, Planned)>; 5]; 2],
    nat: [[Vec<BaseChain>; 5]; 2],
    has_nat: [bool; 2],
    tracks: bool,
    state_count: u32,
    set_state_count: u32,
}

/// A base chain at its hook.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BaseChain {
    /// The table's place in the ruleset.
    pub table: u16,
    /// The chain's place in the table.
    pub chain: u32,
    /// Its priority.
    pub priority: i32,
    /// Its type.
    pub kind: Kind,
}

/// What runs at one priority of a hook.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Planned {
    /// What runs there in any case.
    Fixed(Step),
    /// A base chain that is not of type nat.
    Chain(BaseChain),
}

impl Ruleset {
    /// Returns the ruleset of these tables.
    ///
    /// # Errors
    ///
    /// The first thing that the kernel would refuse.
    pub fn try_new(tables: Vec<Table>) -> Result<Ruleset, Problem> {
        let (ruleset, problems) = Ruleset::repaired(tables);
        match problems.into_iter().next() {
            Some(problem) => Err(problem),
            None => Ok(ruleset),
        }
    }

    /// Returns the ruleset of these tables, in which whatever the kernel would refuse has become
    /// something that is not supported, and what that was.
    pub fn repaired(mut tables: Vec<Table>) -> (Ruleset, Vec<Problem>) {
        // A reference to a table has 16 bits.
        tables.truncate(usize::from(u16::MAX));
        let mut problems = Vec::new();
        for table in &mut tables {
            check::repair(table, &mut problems);
        }
        let mut ruleset = Ruleset { tables, ..Ruleset::default() };
        ruleset.place_state(&mut problems);
        ruleset.plan();
        (ruleset, problems)
    }

    /// Returns the tables.
    pub fn tables(&self) -> &[Table] {
        &self.tables
    }

    /// Returns whether there is no table.
    pub fn is_empty(&self) -> bool {
        self.tables.is_empty()
    }

    /// Returns the rule that a reference names.
    pub fn rule(&self, at: RuleRef) -> Option<&Rule> {
        let TableId::Nft(table) = at.table else {
            return None;
        };
        let chain = self.chain(table, at.chain.index)?;
        chain.rules.get(at.number.checked_sub(1)? as usize)
    }

    /// Returns a chain by the places of its table and itself.
    pub fn chain(&self, table: u16, chain: u32) -> Option<&Chain> {
        self.tables.get(usize::from(table))?.chains.get(chain as usize)
    }

    /// Returns what runs at a hook, by priority: what runs there in any case, and base chains
    /// that are not of type nat. Of those with one priority, the last added runs first.
    #[inline]
    pub fn steps(&self, ipv4: bool, hook: Hook) -> &[(i32, Planned)] {
        &self.steps[usize::from(!ipv4)][hook as usize]
    }

    /// Returns the base chains of type nat at a hook, in the order in which they are asked.
    // Kernel: nf_nat_core.c, nf_nat_register_fn: they are asked where NAT itself stands.
    #[inline]
    pub fn nat_chains(&self, ipv4: bool, hook: Hook) -> &[BaseChain] {
        &self.nat[usize::from(!ipv4)][hook as usize]
    }

    /// Returns whether a packet of the family meets address translation at all.
    #[inline]
    pub fn has_nat(&self, ipv4: bool) -> bool {
        self.has_nat[usize::from(!ipv4)]
    }

    /// Returns whether some rule needs connection tracking.
    pub fn tracks(&self) -> bool {
        self.tracks
    }

    pub(crate) fn state_count(&self) -> u32 {
        self.state_count
    }

    pub(crate) fn set_state_count(&self) -> u32 {
        self.set_state_count
    }

    fn plan(&mut self) {
        let mut bases = Vec::new();
        for (table_at, table) in self.tables.iter().enumerate() {
            if table.dormant {
                continue;
            }
            for (at, chain) in table.chains.iter().enumerate() {
                let Some(base) = &chain.base else { continue };
                let Some(hook) = base.hook else { continue };
                let (table_at, at) = (table_at as u16, at as u32);
                let (priority, kind) = (base.priority, base.kind);
                let chain = BaseChain { table: table_at, chain: at, priority, kind };
                bases.push((hook, table.family, chain));
            }
        }
        for (at, ipv4) in [(0, true), (1, false)] {
            for hook in Hook::ALL {
                // Of the same priority, the last registered runs first. A list does not tell
                // whether that was a chain here or a table of x_tables.
                // Simplified: nftables chains are taken for registered after x_tables and
                // connection tracking, and tables in the order in which they are listed.
                let mut steps = Vec::new();
                let mut nat = Vec::new();
                for (_, family, chain) in bases.iter().rev().filter(|base| base.0 == hook) {
                    if !family.sees(ipv4) {
                        continue;
                    }
                    if chain.kind == Kind::Nat {
                        nat.push(*chain);
                    } else {
                        steps.push((chain.priority, Planned::Chain(*chain)));
                    }
                }
                let fixed = hook::steps(hook).iter();
                steps.extend(fixed.map(|(priority, step)| (*priority, Planned::Fixed(*step))));
                steps.sort_by_key(|(priority, _)| *priority);
                nat.sort_by_key(|chain| chain.priority);
                self.has_nat[at] |= !nat.is_empty();
                self.steps[at][hook as usize] = steps;
                self.nat[at][hook as usize] = nat;
            }
        }
        let rules = self.tables.iter().flat_map(|table| &table.chains);
        let mut statements = rules.flat_map(|chain| &chain.rules).flat_map(|rule| &rule.statements);
        self.tracks = statements.any(Statement::needs_tracking);
    }

    fn place_state(&mut self, problems: &mut Vec<Problem>) {
        let mut states = Places::default();
        for table in &mut self.tables {
            states.place_table(table, problems);
        }
        self.state_count = states.next;
        self.set_state_count = states.next_set;
    }
}

/// Gives out places for state.
#[derive(Default)]
struct Places {
    next: u32,
    next_set: u32,
}

impl Places {
    fn place(&mut self) -> StateId {
        self.next += 1;
        StateId(self.next - 1)
    }

    fn place_table(&mut self, table: &mut Table, problems: &mut Vec<Problem>) {
        let mut objects: BTreeMap<Arc<str>, ObjectKind> = BTreeMap::new();
        for object in &mut table.objects {
            match &mut object.kind {
                ObjectKind::Quota(Quota { state, .. }) | ObjectKind::Limit(Limit { state, .. }) => {
                    *state = self.place();
                }
                ObjectKind::Counter(..) | ObjectKind::Other { .. } => {}
            }
            objects.insert(object.name.clone(), object.kind.clone());
        }
        let mut changed = vec![false; table.sets.len()];
        for chain in &mut table.chains {
            for rule in &mut chain.rules {
                for statement in &mut rule.statements {
                    if let Some(missing) = resolve_object(statement, &objects) {
                        problems.push(Problem {
                            family: table.family,
                            table: table.name.clone(),
                            chain: chain.name.clone(),
                            origin: rule.origin,
                            what: format!("there is no {missing}"),
                        });
                        *statement = Statement::Unsupported(missing.into());
                    }
                    if let Statement::Dynset(dynset) = statement
                        && let Some(changed) = changed.get_mut(dynset.set as usize)
                    {
                        *changed = true;
                    }
                    self.place_statement(statement);
                }
            }
        }
        for (set, changed) in table.sets.iter_mut().zip(changed) {
            set.state = None;
            if changed || set.dynamic || set.timeouts {
                set.state = Some(self.next_set);
                self.next_set += 1;
            }
        }
    }

    fn place_statement(&mut self, statement: &mut Statement) {
        match statement {
            Statement::Match(comparison) => self.place_all(&mut comparison.left),
            Statement::Vmap { key, .. } => self.place_all(key),
            Statement::SetMark(value)
            | Statement::SetCtMark(value)
            | Statement::SetZone(value, _)
            | Statement::SetTtl(value)
            | Statement::SetDscp(value) => self.place_expr(value),
            Statement::Nat(nat) => {
                for value in [&mut nat.address, &mut nat.port].into_iter().flatten() {
                    if let NatValue::Expr(value) = value {
                        self.place_expr(value);
                    }
                }
            }
            Statement::Limit(limit) if limit.name.is_none() => limit.state = self.place(),
            Statement::Quota(quota) if quota.name.is_none() => quota.state = self.place(),
            Statement::Dynset(dynset) => {
                self.place_all(&mut dynset.key);
                self.place_all(&mut dynset.data);
            }
            _ => {}
        }
    }

    fn place_all(&mut self, exprs: &mut [Expr]) {
        exprs.iter_mut().for_each(|expr| self.place_expr(expr));
    }

    fn place_expr(&mut self, expr: &mut Expr) {
        match expr {
            Expr::Numgen { inc: Some(state), .. } => *state = self.place(),
            Expr::Jhash { of, .. } => self.place_all(of),
            Expr::Bits { of, .. } | Expr::Shift { of, .. } => self.place_expr(of),
            Expr::Map { key, .. } => self.place_all(key),
            _ => {}
        }
    }
}

/// Fills in what a named limit or quota says; returns what is named but not there.
fn resolve_object(
    statement: &mut Statement,
    objects: &BTreeMap<Arc<str>, ObjectKind>,
) -> Option<String> {
    match statement {
        Statement::Limit(limit) => {
            let name = limit.name.clone()?;
            match objects.get(&name) {
                Some(ObjectKind::Limit(object)) => {
                    *limit = Limit { name: Some(name), ..object.clone() };
                    None
                }
                _ => Some(format!("limit name \"{name}\"")),
            }
        }
        Statement::Quota(quota) => {
            let name = quota.name.clone()?;
            match objects.get(&name) {
                Some(ObjectKind::Quota(object)) => {
                    *quota = Quota { name: Some(name), ..object.clone() };
                    None
                }
                _ => Some(format!("quota name \"{name}\"")),
            }
        }
        _ => None,
    }
}

impl Table {
    /// Returns an empty table.
    pub fn new(family: Family, name: impl Into<Arc<str>>) -> Table {
        Table {
            family,
            name: name.into(),
            comment: None,
            dormant: false,
            objects: Vec::new(),
            sets: Vec::new(),
            chains: Vec::new(),
        }
    }

    /// Returns the set that a rule of the table uses.
    ///
    /// # Panics
    ///
    /// If there is none: places come from checked rulesets.
    #[inline]
    pub(crate) fn set<'s>(&'s self, set: &'s SetUse) -> &'s Set {
        match set {
            SetUse::Named { index, .. } => &self.sets[*index as usize],
            SetUse::Anonymous(set) => set,
        }
    }
}

impl PartialEq for Ruleset {
    fn eq(&self, other: &Ruleset) -> bool {
        self.tables == other.tables
    }
}
