//! A full table: who makes room.

use std::time::Duration;

use super::table::{Conntrack, Node, hash, node_hash_of, node_of};
use super::{Status, Sysctls};
use crate::time::SimTime;
use crate::tuple::Tuple;

/// The table is full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TableFull;

/// How many buckets are looked at for entries that can make room.
// Kernel: nf_conntrack_core.c, NF_CT_EVICTION_RANGE
const EVICTION_RANGE: u32 = 8;

/// How many entries one bucket takes.
// Kernel: nf_conntrack_core.c, MIN_CHAINLEN and MAX_CHAINLEN
// Simplified: the kernel draws a limit from 50 to 79 for each entry; here it is their middle.
const CHAIN_LEN_MAX: usize = 65;

/// How often the collector runs.
// Kernel: nf_conntrack_core.c, GC_SCAN_INTERVAL_MAX
const COLLECTOR_PERIOD: Duration = Duration::from_secs(60);

/// Returns the bucket of a tuple.
// Simplified: the kernel hashes under a key of its own, so which bucket it is differs.
pub(super) fn bucket(hash: u64, sysctls: &Sysctls) -> u32 {
    (((hash >> 32) * u64::from(sysctls.buckets.max(1))) >> 32) as u32
}

impl Conntrack {
    /// Returns whether chains can get too long: not in a table as long as it may hold entries.
    pub(super) const fn watches_chains(sysctls: &Sysctls) -> bool {
        sysctls.max / 16 >= sysctls.buckets
    }

    /// Finds room for one more entry.
    // Kernel: nf_conntrack_core.c, __nf_conntrack_alloc
    // Simplified: of entries that are not confirmed yet, none counts as an entry.
    pub(super) fn make_room(
        &mut self,
        now: SimTime,
        tuple: &Tuple,
        zone: u16,
    ) -> Result<(), TableFull> {
        if self.len < self.sysctls.max {
            return Ok(());
        }
        self.sweep(now);
        if self.hard_sweep_at.is_some_and(|at| at <= now) {
            self.hard_sweep_at = None;
            self.sweep_hard();
        }
        if self.len < self.sysctls.max || self.drop_early(tuple, zone) {
            return Ok(());
        }
        self.stats.drop += 1;
        // Simplified: the collector is taken to run at whole minutes; the kernel's period varies.
        let period = COLLECTOR_PERIOD.as_nanos() as u64;
        let next = (now.as_nanos() / period + 1) * period;
        self.hard_sweep_at.get_or_insert(SimTime::from_nanos(next));
        Err(TableFull)
    }

    /// Drops all entries that are not assured from the first of eight buckets that has some.
    // Kernel: nf_conntrack_core.c, early_drop
    fn drop_early(&mut self, tuple: &Tuple, zone: u16) -> bool {
        let first = bucket(hash(tuple, zone), &self.sysctls);
        if self.buckets.is_none() {
            self.index_buckets();
        }
        let len = self.sysctls.buckets.max(1);
        for step in 0..EVICTION_RANGE {
            let bucket = (first + step) % len;
            let mut indices: Vec<u32> = self.nodes_in(bucket).map(|node| node >> 1).collect();
            indices.retain(|index| !self.entry_at(*index).status.contains(Status::ASSURED));
            indices.sort_unstable();
            indices.dedup();
            if indices.is_empty() {
                continue;
            }
            self.stats.early_drop += indices.len() as u64;
            for index in indices {
                self.remove(index);
            }
            return true;
        }
        false
    }

    /// Drops closing connections and those that are not assured until less than 95 % is in use.
    // Kernel: nf_conntrack_core.c, gc_worker
    fn sweep_hard(&mut self) {
        let enough = self.sysctls.max / 100 * 95;
        for index in 0..self.slab.len() {
            if self.len < enough {
                return;
            }
            let entry = self.slab[index].entry.as_ref();
            if entry.is_some_and(|entry| entry.may_make_room()) {
                self.remove(index as u32);
            }
        }
    }

    /// Returns whether one of the entry's buckets has too many entries.
    pub(super) fn chain_is_too_long(&self, hashes: [u64; 2]) -> bool {
        self.buckets.is_some() && {
            let long = |hash| {
                let nodes = self.nodes_in(bucket(hash, &self.sysctls));
                nodes.take(CHAIN_LEN_MAX + 1).count() > CHAIN_LEN_MAX
            };
            hashes.into_iter().any(long)
        }
    }

    fn nodes_in(&self, bucket: u32) -> impl Iterator<Item = Node> {
        let range = self
            .buckets
            .iter()
            .flat_map(move |buckets| buckets.range((bucket, 0)..=(bucket, Node::MAX)));
        range.map(|(_, node)| *node)
    }

    /// Sorts all tuples into buckets.
    pub(super) fn index_buckets(&mut self) {
        let mut buckets = std::collections::BTreeSet::new();
        for (index, cell) in self.slab.iter().enumerate() {
            let Some(entry) = &cell.entry else {
                continue;
            };
            for direction in super::table::directions(entry) {
                let node = node_of(index as u32, *direction);
                buckets.insert((bucket(node_hash_of(&self.slab, node), &self.sysctls), node));
            }
        }
        self.buckets = Some(buckets);
    }
}
