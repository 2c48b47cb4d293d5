//! Where sources that are rewritten go: a client port keeps its external port.
//!
//! ```text
//!   sources ──► newest entry of a source ──older──► … ──older──► oldest
//! ```

use super::entry::Entry;
use super::table::{Cell, Conntrack};
use crate::hash::Mix;
use crate::rule::NatRange;
use crate::time::SimTime;
use crate::tuple::Tuple;

/// Returns the hash of a source.
// Kernel: nf_nat_core.c, hash_by_src: a zone counts if both directions have it.
fn hash(entry: &Entry) -> u64 {
    let mut mix = Mix::new();
    mix.address(entry.original.src());
    let part = u64::from(entry.original.src_part);
    let zone = u64::from(if entry.zones[0] == entry.zones[1] { entry.zones[0] } else { 0 });
    mix.word(zone << 32 | u64::from(entry.original.protocol.0) << 16 | part);
    mix.finish()
}

// Kernel: nf_nat_core.c, same_src
fn same(a: &Entry, b: &Entry) -> bool {
    a.original.protocol == b.original.protocol
        && a.original.src_part == b.original.src_part
        && a.original.src() == b.original.src()
        && a.zones[0] == b.zones[0]
        && (a.zones[0] == a.zones[1]) == (b.zones[0] == b.zones[1])
}

fn entry(slab: &[Cell], index: u32) -> &Entry {
    slab[index as usize].entry.as_ref().expect("chains name entries")
}

impl Conntrack {
    /// Puts a new entry first in the chain of its source.
    pub(super) fn link_source(&mut self, index: u32) {
        let slab = &mut self.slab;
        let hash_of_source = hash(entry(slab, index));
        let alike = |head: &u32| same(entry(slab, *head), entry(slab, index));
        let older = match self.sources.find_mut(hash_of_source, alike) {
            Some(head) => Some(std::mem::replace(head, index)),
            None => {
                let rehash = |head: &u32| hash(entry(slab, *head));
                self.sources.insert_unique(hash_of_source, index, rehash);
                None
            }
        };
        slab[index as usize].newer = None;
        slab[index as usize].older = older;
        if let Some(older) = older {
            slab[older as usize].newer = Some(index);
        }
    }

    /// Takes an entry out of the chain of its source.
    pub(super) fn unlink_source(&mut self, index: u32) {
        let Cell { newer, older, .. } = self.slab[index as usize];
        if let Some(older) = older {
            self.slab[older as usize].newer = newer;
        }
        match (newer, older) {
            (Some(newer), _) => self.slab[newer as usize].older = older,
            (None, _) => {
                let hash_of_source = hash(entry(&self.slab, index));
                let head = self.sources.find_entry(hash_of_source, |head| *head == index);
                let mut head = head.expect("the newest of a chain is its head");
                match older {
                    Some(older) => *head.get_mut() = older,
                    None => {
                        head.remove();
                    }
                }
            }
        }
    }

    /// Returns the tuple as it leaves if its source is mapped as it is for another destination,
    /// provided that mapping lies in the range: the newest such mapping counts.
    // Kernel: nf_nat_core.c, find_appropriate_src
    pub(crate) fn mapped_alike(
        &self,
        now: SimTime,
        tentative: &Entry,
        current: &Tuple,
        range: &NatRange,
    ) -> Option<Tuple> {
        let slab = &self.slab;
        let alike = |head: &u32| same(entry(slab, *head), tentative);
        let mut next = self.sources.find(hash(tentative), alike).copied();
        while let Some(index) = next {
            let other = entry(slab, index);
            next = slab[index as usize].older;
            if other.deadline <= now || !other.original.same_family(current) {
                continue;
            }
            let mut mapped = *current;
            mapped.copy_side(crate::tuple::Side::Source, &other.reply.reply());
            if crate::nat::in_range(&mapped, range) {
                return Some(mapped);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests;
