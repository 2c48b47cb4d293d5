//! Building rulesets: everything is checked once, here.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::hook::{Hook, Hooks, Table};
use crate::ipvs;
use crate::nft;
use crate::packet::Packet;
use crate::rule::validate::{self, Problem, Reach, ValidationError};
use crate::rule::{
    Base, Chain, ChainId, Code, FragmentId, Guards, Match, Policy, Rule, Rules, Slot, SlotHit,
    SlotId, Target,
};
use crate::tuple::Family;

/// Which kernel back end a ruleset is for: they differ in how deep chains may nest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Backend {
    /// x_tables: no fixed limit.
    Legacy,
    /// nf_tables: a base chain and at most 15 nested jumps.
    #[default]
    NfTables,
}

/// A whole ruleset, valid by type.
#[derive(Clone, Debug)]
pub struct Ruleset {
    pub(crate) tables: Tables,
    codes: [Code; 5],
    nft: Option<Arc<nft::Ruleset>>,
    ipvs: Option<Arc<ipvs::Ipvs>>,
}

/// The chains of all tables, checked.
#[derive(Clone, Debug)]
pub(crate) struct Tables {
    pub(crate) backend: Backend,
    pub(crate) family: Family,
    pub(crate) chains: [Vec<Chain>; 5],
    pub(crate) builtins: [[Option<u32>; 5]; 5],
    /// Which chain holds each slot.
    pub(crate) slots: Vec<(Table, u32)>,
    /// What was found out about each chain.
    pub(crate) reach: [Vec<Reach>; 5],
    pub(crate) tracks: bool,
}

impl Tables {
    /// Returns the chains of a builder, which were checked.
    pub(crate) fn new(builder: RulesetBuilder, reach: [Vec<Reach>; 5]) -> Tables {
        let RulesetBuilder { backend, family, mut chains, builtins, slots, .. } = builder;
        chains.iter_mut().flatten().for_each(Chain::freeze);
        // Kernel: an empty nat table asks for no connection tracking.
        let tracks =
            chains.iter().flatten().any(|chain| chain.rules.iter().any(Rule::needs_tracking));
        Tables { backend, family, chains, builtins, slots, reach, tracks }
    }

    pub(crate) fn builtin(&self, table: Table, hook: Hook) -> Option<&Chain> {
        let index = self.builtins[table as usize][hook as usize]?;
        Some(&self.chains[table as usize][index as usize])
    }

    pub(crate) fn chain(&self, table: Table, id: ChainId) -> &Chain {
        assert_eq!(id.fragment, FragmentId::BASE, "no fragment has chains here");
        &self.chains[table as usize][id.index as usize]
    }
}

impl Ruleset {
    pub(crate) fn of(tables: Tables) -> Ruleset {
        let codes = Table::ALL.map(|table| Code::of(&tables.chains[table as usize]));
        Ruleset { tables, codes, nft: None, ipvs: None }
    }

    /// Returns the family of the packets that the rules are for.
    pub fn family(&self) -> Family {
        self.tables.family
    }

    /// Returns the chains of a table: built-in ones in hook order, then user chains as declared.
    /// Empty if the table is not loaded.
    pub fn chains(&self, table: Table) -> &[Chain] {
        &self.tables.chains[table as usize]
    }

    /// Returns these tables with a ruleset of nftables beside them.
    pub fn with_nft(self, nft: impl Into<Arc<nft::Ruleset>>) -> Ruleset {
        Ruleset { nft: Some(nft.into()), ..self }
    }

    /// Returns these tables with virtual services of IPVS beside them.
    pub fn with_ipvs(self, ipvs: impl Into<Arc<ipvs::Ipvs>>) -> Ruleset {
        Ruleset { ipvs: Some(ipvs.into()), ..self }
    }

    /// Returns how many rules the table has.
    pub fn rule_count(&self, table: Table) -> usize {
        self.chains(table).iter().map(|chain| chain.rules.len()).sum()
    }

    /// Returns the chain's name, for a reference that came from this ruleset.
    pub fn chain_name(&self, table: Table, id: ChainId) -> &str {
        &self.tables.chain(table, id).name
    }
}

impl Rules for Ruleset {
    #[inline]
    fn base(&self, table: Table, hook: Hook) -> Option<&Chain> {
        self.tables.builtin(table, hook)
    }

    #[inline]
    fn chain(&self, table: Table, id: ChainId) -> &Chain {
        self.tables.chain(table, id)
    }

    fn slot(&self, _: Table, slot: SlotId, _: &Packet, _: u32) -> SlotHit<'_> {
        panic!("a whole ruleset has no {slot:?}")
    }

    #[inline]
    fn tracks(&self) -> bool {
        let by_nft = || self.nft.as_ref().is_some_and(|nft| nft.tracks());
        // Kernel: ip_vs_ctl.c, ip_vs_add_service, which asks for connection tracking
        self.tables.tracks || self.ipvs.is_some() || by_nft()
    }

    #[inline]
    fn nft(&self) -> Option<&nft::Ruleset> {
        self.nft.as_deref()
    }

    #[inline]
    fn ipvs(&self) -> Option<&dyn ipvs::Services> {
        self.ipvs.as_deref().map(|ipvs| ipvs as &dyn ipvs::Services)
    }

    #[inline]
    fn code(&self, table: Table) -> Option<&Code> {
        Some(&self.codes[table as usize])
    }
}

/// Collects chains and rules.
#[derive(Clone, Debug, Default)]
pub struct RulesetBuilder {
    pub(crate) backend: Backend,
    pub(crate) family: Family,
    pub(crate) chains: [Vec<Chain>; 5],
    names: [BTreeMap<Arc<str>, u32>; 5],
    builtins: [[Option<u32>; 5]; 5],
    pub(crate) slots: Vec<(Table, u32)>,
    pub(crate) problems: Vec<ValidationError>,
}

impl RulesetBuilder {
    /// Returns an empty builder for nf_tables.
    pub fn new() -> RulesetBuilder {
        RulesetBuilder::default()
    }

    /// Returns an empty builder for a back end.
    pub fn for_backend(backend: Backend) -> RulesetBuilder {
        RulesetBuilder { backend, ..RulesetBuilder::default() }
    }

    /// Makes the rules those of a family; without, they are for IPv4.
    pub fn family(&mut self, family: Family) {
        self.family = family;
    }

    /// Loads the table with its built-in chains, empty and with policy ACCEPT, if it is not.
    pub fn load(&mut self, table: Table) {
        if !self.chains[table as usize].is_empty() {
            return;
        }
        for hook in table.hooks().iter() {
            let id = self.push_chain(table, hook.chain_name().into(), Some((hook, Policy::Accept)));
            self.builtins[table as usize][hook as usize] = Some(id.index);
        }
    }

    /// Returns the built-in chain of a table at a hook; the table is loaded.
    ///
    /// # Panics
    ///
    /// If the table has no chain at the hook ([`Table::hooks`]).
    pub fn builtin(&mut self, table: Table, hook: Hook) -> ChainId {
        self.load(table);
        let index = self.builtins[table as usize][hook as usize];
        let index = index.unwrap_or_else(|| panic!("table {table} has no chain {hook}"));
        ChainId { fragment: FragmentId::BASE, index }
    }

    /// Returns the user chain of this name, declaring it if there is none; the table is loaded.
    pub fn chain(&mut self, table: Table, name: impl Into<Arc<str>>) -> ChainId {
        self.load(table);
        let name = name.into();
        if let Some(index) = self.names[table as usize].get(&name) {
            return ChainId { fragment: FragmentId::BASE, index: *index };
        }
        self.problems.extend(validate::chain_name(table, &name));
        self.push_chain(table, name, None)
    }

    /// Returns whether the table has a chain of this name.
    pub fn has_chain(&self, table: Table, name: &str) -> bool {
        self.names[table as usize].contains_key(name)
    }

    /// Returns whether a chain has no rules yet.
    ///
    /// # Panics
    ///
    /// If the chain is not one that this builder gave out for the table.
    pub fn is_empty(&self, table: Table, chain: ChainId) -> bool {
        self.chains[table as usize][chain.index as usize].rules.is_empty()
    }

    fn push_chain(
        &mut self,
        table: Table,
        name: Arc<str>,
        base: Option<(Hook, Policy)>,
    ) -> ChainId {
        let chains = &mut self.chains[table as usize];
        let id = ChainId { fragment: FragmentId::BASE, index: chains.len() as u32 };
        self.names[table as usize].insert(name.clone(), id.index);
        chains.push(Chain::empty(id, name, base));
        id
    }

    /// Sets the policy of a built-in chain; the table is loaded.
    ///
    /// # Panics
    ///
    /// If the table has no chain at the hook.
    pub fn policy(&mut self, table: Table, hook: Hook, policy: Policy) {
        let id = self.builtin(table, hook);
        self.chains[table as usize][id.index as usize].base = Some((hook, policy));
    }

    /// Appends a rule to a chain.
    ///
    /// # Panics
    ///
    /// If the chain is not one that this builder gave out for the table.
    pub fn append(&mut self, table: Table, chain: ChainId, rule: Rule) {
        self.chain_mut(table, chain).rules.push(rule);
    }

    /// Makes the end of a chain, as it is now, the place where fragments contribute.
    ///
    /// # Panics
    ///
    /// If the chain is not one that this builder gave out for the table, or has a slot already.
    pub fn slot(&mut self, table: Table, chain: ChainId) -> SlotId {
        let id = SlotId(self.slots.len() as u32);
        self.slots.push((table, chain.index));
        let chain = self.chain_mut(table, chain);
        assert_eq!(chain.slot, None, "chain {} has a slot already", chain.name);
        chain.slot = Some(Slot { id, at: chain.rules.len() as u32 });
        id
    }

    fn chain_mut(&mut self, table: Table, id: ChainId) -> &mut Chain {
        let chains = &mut self.chains[table as usize];
        match chains.get_mut(id.index as usize) {
            Some(chain) if id.fragment == FragmentId::BASE => chain,
            _ => panic!("{id:?} is no chain of table {table} here"),
        }
    }

    /// Checks everything and returns the ruleset.
    ///
    /// # Errors
    ///
    /// The first thing that the kernel or iptables would refuse; also a slot, which only a base
    /// may have.
    pub fn build(self) -> Result<Ruleset, ValidationError> {
        if let Some((table, index)) = self.slots.first() {
            let chain = &self.chains[*table as usize][*index as usize];
            return Err(ValidationError::of_chain(*table, &chain.name, Problem::SlotInRuleset));
        }
        Ok(Ruleset::of(self.tables()?))
    }

    /// Checks everything and returns the base for fragments.
    ///
    /// # Errors
    ///
    /// The first thing that the kernel or iptables would refuse.
    pub fn build_base(self) -> Result<Base, ValidationError> {
        Ok(Base { tables: self.tables()? })
    }

    fn tables(mut self) -> Result<Tables, ValidationError> {
        if !self.problems.is_empty() {
            return Err(self.problems.swap_remove(0));
        }
        let mut reach: [Vec<Reach>; 5] = Default::default();
        for table in Table::ALL {
            let of_table = &self.chains[table as usize];
            reach[table as usize] = validate::table(table, self.family, of_table, self.backend)?;
        }
        Ok(Tables::new(self, reach))
    }
}

impl Chain {
    pub(crate) fn empty(id: ChainId, name: Arc<str>, base: Option<(Hook, Policy)>) -> Chain {
        let (rules, runs) = (Vec::new(), Vec::new());
        Chain { id, name, base, rules, slot: None, runs, index: None, guards: Guards::default() }
    }

    pub(crate) fn own_hooks(&self) -> Hooks {
        self.base.map_or(Hooks::NONE, |(hook, _)| Hooks::of(&[hook]))
    }
}

impl Rule {
    /// Returns whether the rule makes the kernel track connections.
    pub fn needs_tracking(&self) -> bool {
        let matches = self.matches().iter().any(|m| {
            matches!(
                m,
                Match::CtState { .. }
                    | Match::State { .. }
                    | Match::Conntrack(_)
                    | Match::Connmark { .. }
            )
        });
        // Kernel: xt_CT.c, xt_ct_tg_check: not to track asks for nothing.
        let target = match self.target() {
            Target::Connmark(_) | Target::Nat(_) => true,
            Target::Ct(ct) => !ct.notrack,
            _ => false,
        };
        matches || target
    }
}
