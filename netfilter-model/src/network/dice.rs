//! Random numbers of a host, and how often its rules matched.

use std::collections::BTreeMap;

use crate::host::{Draws, Note};
use crate::rule::{ChainId, TableId};

/// How often rules matched and policies decided.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    rules: BTreeMap<(TableId, ChainId, u32), u64>,
    policies: BTreeMap<(TableId, ChainId), u64>,
}

impl Counts {
    /// Returns how many packets a rule matched; `number` counts from 1.
    pub fn rule(&self, table: TableId, chain: ChainId, number: u32) -> u64 {
        self.rules.get(&(table, chain, number)).copied().unwrap_or(0)
    }

    /// Returns how many packets came to the end of a built-in chain.
    pub fn policy(&self, table: TableId, chain: ChainId) -> u64 {
        self.policies.get(&(table, chain)).copied().unwrap_or(0)
    }

    /// Forgets a table.
    pub fn clear(&mut self, table: TableId) {
        self.rules.retain(|(of, ..), _| *of != table);
        self.policies.retain(|(of, _), _| *of != table);
    }
}

/// Draws from a seed, one after the other.
#[derive(Clone, Debug)]
pub struct Dice {
    state: u64,
    /// The packet at the present hook is of IPv4.
    seen_ipv4: bool,
    /// How often rules of IPv4 matched.
    pub ipv4: Counts,
    /// How often rules of IPv6 matched.
    pub ipv6: Counts,
}

impl Dice {
    /// Returns dice that fall the same way for the same seed.
    pub fn new(seed: u64) -> Dice {
        let (ipv4, ipv6) = (Counts::default(), Counts::default());
        Dice { state: seed, seen_ipv4: true, ipv4, ipv6 }
    }

    /// Returns the counts of a family.
    pub fn counts_mut(&mut self, ipv4: bool) -> &mut Counts {
        if ipv4 { &mut self.ipv4 } else { &mut self.ipv6 }
    }
}

impl Draws for Dice {
    /// SplitMix64.
    fn draw(&mut self, _: u32) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    fn note(&mut self, note: Note<'_>) {
        match note {
            Note::Hook(_, packet) => self.seen_ipv4 = packet.tuple.is_ipv4(),
            Note::Rule { rule, .. } => {
                let counts = self.counts_mut(self.seen_ipv4);
                *counts.rules.entry((rule.table, rule.chain, rule.number)).or_default() += 1;
            }
            Note::Policy { table, chain, .. } => {
                let counts = self.counts_mut(self.seen_ipv4);
                *counts.policies.entry((table, chain)).or_default() += 1;
            }
            _ => {}
        }
    }
}
