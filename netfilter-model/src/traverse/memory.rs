//! What rules keep between packets.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::hook::Table;
use crate::nft;
use crate::packet::Packet;
use crate::rule::{Backend, ChainId, HashlimitMatch, LimitMatch, Match, RecentMatch, Ruleset};
use crate::set::Sets;
use crate::time::SimTime;

use super::Frame;
use super::code::Return;
use super::limit::{Bucket, Buckets};
use super::recent::{RecentEntry, RecentList};

/// Names a rule for the state that it keeps: table, chain, position.
pub(super) type StateKey = (Table, ChainId, u32);

/// What traversal keeps between packets: the state of single rules (`limit`, `statistic --mode
/// nth`), what has a name (`recent`, `hashlimit`, ipsets), the state of
/// nftables, and the stack's space.
#[derive(Clone, Debug, Default)]
pub struct Memory {
    /// The ipsets, which rules match and change.
    pub sets: Sets,
    /// Whose arithmetic `limit` has.
    backend: Backend,
    nth: BTreeMap<(StateKey, u32), u32>,
    limits: BTreeMap<(StateKey, u32), Bucket>,
    recent: BTreeMap<Arc<str>, RecentList>,
    /// By name and whether IPv6.
    hashlimits: BTreeMap<(Arc<str>, bool), Buckets>,
    pub(super) stack: Vec<Frame>,
    pub(super) returns: Vec<Return>,
    pub(crate) nft: nft::State,
}

impl Memory {
    /// Forgets the state of a table's own rules, as x_tables does whenever a table is replaced.
    pub fn table_replaced(&mut self, table: Table) {
        self.nth.retain(|((of, ..), _), _| *of != table);
        self.limits.retain(|((of, ..), _), _| *of != table);
    }

    /// Takes note of the ruleset that is in force from now on: what has a name stays as long as a
    /// rule names it, and a `recent` list has room for the largest hit count that is asked of it.
    ///
    /// Without this call lists grow as rules are reached, and `limit` counts as nf_tables does.
    pub fn ruleset_loaded(&mut self, ruleset: &Ruleset) {
        self.rulesets_loaded([ruleset]);
    }

    /// Does the same for rulesets that are in force together, such as those of two families.
    pub fn rulesets_loaded<'r>(&mut self, rulesets: impl IntoIterator<Item = &'r Ruleset>) {
        let mut recent = BTreeSet::new();
        let mut hashlimits = BTreeSet::new();
        for ruleset in rulesets {
            if self.backend != ruleset.tables.backend {
                self.backend = ruleset.tables.backend;
                self.limits.clear();
            }
            let chains = Table::ALL.into_iter().flat_map(|table| ruleset.chains(table));
            let rules = chains.flat_map(|chain| chain.rules());
            for condition in rules.flat_map(|rule| rule.matches()) {
                match condition {
                    Match::Recent(wanted) => {
                        self.recent_list(wanted);
                        recent.insert(wanted.name.clone());
                    }
                    Match::Hashlimit(wanted) => {
                        hashlimits.insert(wanted.name.clone());
                    }
                    _ => {}
                }
            }
        }
        self.recent.retain(|name, _| recent.contains(name));
        self.hashlimits.retain(|(name, _), _| hashlimits.contains(name));
    }

    /// Forgets a `recent` list: the last rule that named it is gone.
    // Kernel: xt_recent.c, recent_mt_destroy
    pub fn forget_recent(&mut self, name: &str) {
        self.recent.remove(name);
    }

    /// Forgets all `recent` lists: no rule names any.
    pub fn forget_all_recent(&mut self) {
        self.recent.clear();
    }

    /// Returns the addresses of a `recent` list, the longest unseen first; `None` if no rule has
    /// used it.
    pub fn recent(&self, name: &str) -> Option<impl Iterator<Item = RecentEntry<'_>>> {
        Some(self.recent.get(name)?.entries())
    }

    fn recent_list(&mut self, wanted: &RecentMatch) -> &mut RecentList {
        if !self.recent.contains_key(&wanted.name) {
            self.recent.insert(wanted.name.clone(), RecentList::new(wanted.mask));
        }
        let list = self.recent.get_mut(&wanted.name).expect("just made");
        list.make_room(wanted.hitcount);
        list
    }

    pub(super) fn recent_matches(
        &mut self,
        wanted: &RecentMatch,
        packet: &Packet,
        ttl: u8,
        now: SimTime,
    ) -> bool {
        self.recent_list(wanted).matches(wanted, packet, ttl, now.jiffies())
    }

    /// Counts a packet that reached an nth match and returns whether its turn has come.
    // Kernel: xt_statistic.c: the count starts at every - 1 - packet and matches on reaching every
    pub(super) fn nth_matches(
        &mut self,
        key: StateKey,
        place: u32,
        every: u32,
        packet: u32,
    ) -> bool {
        let count = self.nth.entry((key, place)).or_insert(every - 1 - packet);
        *count += 1;
        if *count >= every {
            *count = 0;
            return true;
        }
        false
    }

    /// Takes a token from a rule's bucket, which starts full.
    pub(super) fn limit_matches(
        &mut self,
        key: StateKey,
        place: u32,
        limit: LimitMatch,
        now: SimTime,
    ) -> bool {
        let (now, full): (_, fn(LimitMatch, u64) -> Bucket) = match self.backend {
            Backend::Legacy => (now.jiffies(), Bucket::limit),
            Backend::NfTables => (now.as_nanos(), Bucket::native),
        };
        self.limits.entry((key, place)).or_insert_with(|| full(limit, now)).take(now)
    }

    pub(super) fn hashlimit_matches(
        &mut self,
        limit: &HashlimitMatch,
        packet: &Packet,
        now: SimTime,
    ) -> bool {
        let now = now.jiffies();
        let key = (limit.name.clone(), packet.tuple.src().is_ipv6());
        let buckets = self.hashlimits.entry(key).or_insert_with(|| Buckets::new(limit, now));
        buckets.take(packet, now) != limit.above
    }
}
