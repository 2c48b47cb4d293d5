//! Rulesets in parts: a base that all hosts share, and fragments that come and go.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::hook::{Hook, Table};
use crate::packet::Packet;
use crate::rule::build::Tables;
use crate::rule::legality::{self, Place};
use crate::rule::validate::{self, Problem, ValidationError};
use crate::rule::{
    Chain, ChainId, ChainIndex, FragmentId, Rule, Rules, Ruleset, RulesetBuilder, SlotHit, SlotId,
    Target,
};

/// The common part of many rulesets, valid by type, with slots for contributions.
#[derive(Clone, Debug)]
pub struct Base {
    pub(crate) tables: Tables,
}

impl Base {
    /// Returns the built-in chain of a table at a hook, or `None` if the table is not loaded.
    #[inline]
    pub fn builtin(&self, table: Table, hook: Hook) -> Option<&Chain> {
        self.tables.builtin(table, hook)
    }

    /// Returns a chain of the base.
    ///
    /// # Panics
    ///
    /// If the id is of a fragment.
    #[inline]
    pub fn chain(&self, table: Table, id: ChainId) -> &Chain {
        self.tables.chain(table, id)
    }

    /// Returns the chains of a table.
    pub fn chains(&self, table: Table) -> &[Chain] {
        &self.tables.chains[table as usize]
    }

    /// Returns whether some rule of the base needs connection tracking.
    pub fn tracks(&self) -> bool {
        self.tables.tracks
    }

    /// Returns how many slots there are; their ids count from 0.
    pub fn slot_count(&self) -> usize {
        self.tables.slots.len()
    }

    /// Returns the table of a slot.
    pub fn slot_table(&self, slot: SlotId) -> Table {
        self.tables.slots[slot.0 as usize].0
    }

    /// Returns a builder for a fragment. Its id must tell it apart from all fragments with which
    /// it may share a view, other versions of itself included.
    ///
    /// # Panics
    ///
    /// If the id is that of the base.
    pub fn fragment(&self, id: FragmentId) -> FragmentBuilder<'_> {
        assert_ne!(id, FragmentId::BASE, "the base's id for a fragment");
        let contributions = vec![Vec::new(); self.slot_count()];
        FragmentBuilder { base: self, id, chains: Default::default(), contributions, problem: None }
    }
}

/// What one owner adds to a base: chains of its own, and rules in the base's slots.
#[derive(Clone, Debug)]
pub struct Fragment {
    id: FragmentId,
    chains: [Vec<Chain>; 5],
    contributions: Vec<Vec<Rule>>,
    tracks: bool,
}

impl Fragment {
    /// Returns the fragment's id.
    pub fn id(&self) -> FragmentId {
        self.id
    }

    /// Returns a chain of the fragment.
    ///
    /// # Panics
    ///
    /// If the fragment has no such chain.
    #[inline]
    pub fn chain(&self, table: Table, id: ChainId) -> &Chain {
        debug_assert_eq!(id.fragment, self.id);
        &self.chains[table as usize][id.index as usize]
    }

    /// Returns the fragment's chains of a table.
    pub fn chains(&self, table: Table) -> &[Chain] {
        &self.chains[table as usize]
    }

    /// Returns the rules that the fragment contributes to a slot.
    #[inline]
    pub fn contribution(&self, slot: SlotId) -> &[Rule] {
        &self.contributions[slot.0 as usize]
    }

    /// Returns whether some rule of the fragment needs connection tracking.
    pub fn tracks(&self) -> bool {
        self.tracks
    }

    /// Returns how many rules the fragment adds to a table of its base.
    pub fn rule_count(&self, base: &Base, table: Table) -> usize {
        let own: usize = self.chains(table).iter().map(|chain| chain.rules.len()).sum();
        let slots = self.contributions.iter().enumerate();
        let of_table = slots.filter(|(slot, _)| base.slot_table(SlotId(*slot as u32)) == table);
        own + of_table.map(|(_, rules)| rules.len()).sum::<usize>()
    }
}

/// Collects the chains and contributions of a fragment.
#[derive(Clone, Debug)]
pub struct FragmentBuilder<'b> {
    base: &'b Base,
    id: FragmentId,
    chains: [Vec<Chain>; 5],
    contributions: Vec<Vec<Rule>>,
    problem: Option<ValidationError>,
}

impl FragmentBuilder<'_> {
    /// Declares a chain of the fragment. Names must differ within a table of a whole ruleset;
    /// [`Ruleset::assemble`] checks that.
    pub fn chain(&mut self, table: Table, name: impl Into<Arc<str>>) -> ChainId {
        let name = name.into();
        if self.problem.is_none() {
            self.problem = validate::chain_name(table, &name);
        }
        let chains = &mut self.chains[table as usize];
        let id = ChainId { fragment: self.id, index: chains.len() as u32 };
        chains.push(Chain::empty(id, name, None));
        id
    }

    /// Appends a rule to a chain of the fragment.
    ///
    /// # Panics
    ///
    /// If the chain is not one that this builder gave out for the table.
    pub fn append(&mut self, table: Table, chain: ChainId, rule: Rule) {
        assert_eq!(chain.fragment, self.id, "a chain of another part");
        self.chains[table as usize][chain.index as usize].rules.push(rule);
    }

    /// Appends a rule to the fragment's contribution to a slot.
    ///
    /// # Panics
    ///
    /// If the base has no such slot.
    pub fn contribute(&mut self, slot: SlotId, rule: Rule) {
        self.contributions[slot.0 as usize].push(rule);
    }

    /// Checks everything and returns the fragment.
    ///
    /// # Errors
    ///
    /// The first thing that the kernel or iptables would refuse, given where the slots stand.
    pub fn build(mut self) -> Result<Fragment, ValidationError> {
        if let Some(problem) = self.problem.take() {
            return Err(problem);
        }
        let mut reach: [Vec<validate::Reach>; 5] = Default::default();
        let family = self.base.tables.family;
        for table in Table::ALL {
            let outside = |id: ChainId| self.base_chain(table, id);
            let own = &self.chains[table as usize];
            let first = Some(ChainId { fragment: self.id, index: 0 });
            reach[table as usize] = validate::bottom_up(table, family, own, first, &outside)?.0;
        }
        for (slot, rules) in self.contributions.iter().enumerate() {
            for (position, rule) in rules.iter().enumerate() {
                self.check_contribution(SlotId(slot as u32), position, rule, &reach)?;
            }
        }
        let mut chains = self.chains;
        chains.iter_mut().flatten().for_each(Chain::freeze);
        let tracks = chains.iter().flatten().flat_map(|chain| &chain.rules);
        let tracks = tracks.chain(self.contributions.iter().flatten()).any(Rule::needs_tracking);
        Ok(Fragment { id: self.id, chains, contributions: self.contributions, tracks })
    }

    fn base_chain(
        &self,
        table: Table,
        id: ChainId,
    ) -> Result<(crate::hook::Hooks, Option<u32>), Problem> {
        let chains = self.base.chains(table);
        match chains.get(id.index as usize) {
            Some(chain) if id.fragment == FragmentId::BASE => {
                if chain.base.is_some() {
                    return Err(Problem::JumpToBuiltin(chain.name.clone()));
                }
                let reach = self.base.tables.reach[table as usize][id.index as usize];
                match reach.height {
                    // A loop, or a way back through a slot to the rule that asks.
                    None => Err(Problem::Loop(chain.name.clone())),
                    Some(_) if reach.reaches_slot => Err(Problem::Loop(chain.name.clone())),
                    Some(height) => Ok((reach.legal, Some(height))),
                }
            }
            _ => Err(Problem::UnknownChain(id)),
        }
    }

    fn check_contribution(
        &self,
        slot: SlotId,
        position: usize,
        rule: &Rule,
        reach: &[Vec<validate::Reach>; 5],
    ) -> Result<(), ValidationError> {
        let (table, index) = self.base.tables.slots[slot.0 as usize];
        let chain = &self.base.tables.chains[table as usize][index as usize];
        let above = self.base.tables.reach[table as usize][index as usize];
        let at = |problem| ValidationError::of_rule(table, &chain.name, position, problem);
        if rule.only_random().is_some() {
            return Err(at(Problem::OnlyRandomInSlot));
        }
        let place = Place::of(table, self.base.tables.family, chain);
        legality::rule_hooks(place, rule).map_err(at)?;
        for hook in above.from.iter() {
            if let Some(problem) = legality::wrong_hook(place, rule, hook) {
                return Err(at(problem));
            }
        }
        let (Target::Jump(id) | Target::Goto(id)) = rule.target() else {
            return Ok(());
        };
        let own = &self.chains[table as usize];
        let (callee, legal, height) = if id.fragment == self.id && (id.index as usize) < own.len() {
            let below = reach[table as usize][id.index as usize];
            (own[id.index as usize].name.clone(), below.legal, below.height)
        } else {
            let (legal, height) = self.base_chain(table, *id).map_err(at)?;
            (self.base.chain(table, *id).name.clone(), legal, height)
        };
        let Some(height) = height else {
            return Err(at(Problem::Loop(callee)));
        };
        if let Some(hook) = above.from.without(legal).iter().next() {
            let what = "a rule in the called chain";
            return Err(at(Problem::WrongHook { what, hook, accepted: legal }));
        }
        validate::check_depth(table, chain, above.depth + 1 + height, self.base.tables.backend)
    }
}

/// A base and fragments, in order: the plain way to run them without assembling a ruleset.
#[derive(Clone, Debug)]
pub struct FragmentView {
    base: Arc<Base>,
    fragments: Vec<Arc<Fragment>>,
    by_id: BTreeMap<FragmentId, usize>,
    slots: Vec<SlotIndex>,
    tracks: bool,
}

#[derive(Clone, Debug)]
struct SlotIndex {
    /// Where each fragment's contribution begins.
    starts: Vec<u32>,
    total: u32,
    index: ChainIndex,
}

impl FragmentView {
    /// Returns the view of a base with these fragments, which were built against it.
    ///
    /// # Panics
    ///
    /// If two fragments have one id.
    pub fn new(base: Arc<Base>, fragments: Vec<Arc<Fragment>>) -> FragmentView {
        let ids = fragments.iter().enumerate().map(|(i, fragment)| (fragment.id, i));
        let by_id: BTreeMap<FragmentId, usize> = ids.collect();
        assert_eq!(by_id.len(), fragments.len(), "two fragments of one id");
        let slots = (0..base.slot_count()).map(|slot| {
            let slot = SlotId(slot as u32);
            let mut total = 0;
            let starts = fragments.iter().map(|fragment| {
                let start = total;
                total += fragment.contribution(slot).len() as u32;
                start
            });
            let starts = starts.collect();
            let rules = fragments.iter().flat_map(|fragment| fragment.contribution(slot));
            SlotIndex { starts, total, index: ChainIndex::of(rules) }
        });
        let slots = slots.collect();
        let tracks = base.tracks() || fragments.iter().any(|fragment| fragment.tracks());
        FragmentView { base, fragments, by_id, slots, tracks }
    }
}

impl Rules for FragmentView {
    fn base(&self, table: Table, hook: Hook) -> Option<&Chain> {
        self.base.builtin(table, hook)
    }

    fn chain(&self, table: Table, id: ChainId) -> &Chain {
        if id.fragment == FragmentId::BASE {
            return self.base.chain(table, id);
        }
        self.fragments[self.by_id[&id.fragment]].chain(table, id)
    }

    fn slot(&self, _: Table, slot: SlotId, packet: &Packet, from: u32) -> SlotHit<'_> {
        let SlotIndex { starts, total, index } = &self.slots[slot.0 as usize];
        let position = index.next(packet, from);
        if position >= *total {
            return SlotHit { rules: &[], before: *total, total: *total };
        }
        let owner = starts.partition_point(|start| *start <= position) - 1;
        let own = (position - starts[owner]) as usize;
        let rules = &self.fragments[owner].contribution(slot)[own..=own];
        SlotHit { rules, before: position, total: *total }
    }

    fn tracks(&self) -> bool {
        self.tracks
    }
}

impl Ruleset {
    /// Returns the plain ruleset that a base and fragments, in order, amount to.
    ///
    /// # Errors
    ///
    /// If two chains of a table have one name, or if a limit is passed that only shows in the
    /// whole.
    pub fn assemble(base: &Base, fragments: &[Arc<Fragment>]) -> Result<Ruleset, ValidationError> {
        let mut builder = RulesetBuilder::for_backend(base.tables.backend);
        builder.family(base.tables.family);
        let mut ids: BTreeMap<(Table, ChainId), ChainId> = BTreeMap::new();
        for table in Table::ALL {
            let own = fragments.iter().flat_map(|fragment| fragment.chains(table));
            for chain in base.chains(table).iter().chain(own) {
                let declared = builder.declare(table, chain)?;
                ids.insert((table, chain.id), declared);
            }
        }
        for table in Table::ALL {
            let own = fragments.iter().flat_map(|fragment| fragment.chains(table));
            for chain in base.chains(table).iter().chain(own) {
                let at = chain.slot.map_or(chain.rules.len(), |slot| slot.at as usize);
                let (before, after) = chain.rules.split_at(at);
                let contributed = chain.slot.into_iter().flat_map(|slot| {
                    fragments.iter().flat_map(move |fragment| fragment.contribution(slot.id))
                });
                for rule in before.iter().chain(contributed).chain(after) {
                    let target = match rule.target() {
                        Target::Jump(id) => Target::Jump(ids[&(table, *id)]),
                        Target::Goto(id) => Target::Goto(ids[&(table, *id)]),
                        target => target.clone(),
                    };
                    builder.append(table, ids[&(table, chain.id)], rule.clone().then(target));
                }
            }
        }
        builder.build()
    }
}

impl RulesetBuilder {
    /// Declares a chain like this one, which must be new unless it is built in.
    fn declare(&mut self, table: Table, chain: &Chain) -> Result<ChainId, ValidationError> {
        if let Some((hook, policy)) = chain.base {
            self.policy(table, hook, policy);
            return Ok(self.builtin(table, hook));
        }
        if self.has_chain(table, &chain.name) {
            return Err(ValidationError::of_chain(table, &chain.name, Problem::DuplicateChain));
        }
        Ok(self.chain(table, chain.name.clone()))
    }
}
