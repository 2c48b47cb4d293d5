//! Nodes by the hash of their tuple, a cache line to each place of the table.
//!
//! A connection that comes looks up two tuples, enters them, and as many that have expired go. In
//! a table larger than the caches each of these is a wait for memory; here it is one line, read
//! and written, where a table with its tags apart from its values needs two.

use super::table::Node;

/// Slots of a line: what fits beside the count.
const SLOTS: usize = 12;

/// A place of the table.
#[derive(Clone, Debug)]
#[repr(align(64))]
struct Line {
    nodes: [Node; SLOTS],
    /// Bits of the hash that do not choose the line; 0 marks a free slot.
    tags: [u8; SLOTS],
    /// How many nodes would lie here or before, and lie behind because there was no room.
    passed: u32,
}

impl Line {
    const EMPTY: Line = Line { nodes: [0; SLOTS], tags: [0; SLOTS], passed: 0 };

    /// Returns the slots with a tag: the highest bit of the byte of each.
    #[inline]
    fn tagged(&self, tag: u8) -> u128 {
        const LOW: u128 = u128::from_ne_bytes([0x7f; 16]);
        let (first, last) =
            (self.tags.first_chunk().expect("8"), self.tags.last_chunk().expect("4"));
        let tags =
            u128::from(u64::from_le_bytes(*first)) | u128::from(u32::from_le_bytes(*last)) << 64;
        // A byte is 0 if the tag is there; no byte's sum reaches the next.
        let other = tags ^ u128::from_ne_bytes([tag; 16]);
        let sums = (other & LOW) + LOW;
        let slots = (1 << (8 * SLOTS)) - 1;
        !(sums | other | LOW) & slots
    }
}

/// Returns the first of some slots.
#[inline]
const fn first(slots: u128) -> usize {
    slots.trailing_zeros() as usize / 8
}

/// A hash table of nodes. Never iterated by who asks it.
#[derive(Clone, Debug)]
pub(super) struct Index {
    /// A power of two of them.
    lines: Vec<Line>,
    len: usize,
}

impl Index {
    pub(super) fn new() -> Index {
        Index { lines: vec![Line::EMPTY; 1], len: 0 }
    }

    /// Returns how many nodes there are.
    #[cfg(test)]
    pub(super) const fn len(&self) -> usize {
        self.len
    }

    /// Returns the line in which a hash is looked for first, and its tag.
    #[inline]
    fn place(&self, hash: u64) -> (usize, u8) {
        (hash as usize & (self.lines.len() - 1), ((hash >> 56) as u8).max(1))
    }

    #[inline]
    fn behind(&self, line: usize) -> usize {
        (line + 1) & (self.lines.len() - 1)
    }

    /// Returns the node with this hash that is the one meant.
    #[inline]
    pub(super) fn find(&self, hash: u64, mut is_meant: impl FnMut(Node) -> bool) -> Option<Node> {
        let (mut at, tag) = self.place(hash);
        loop {
            let line = &self.lines[at];
            let mut slots = line.tagged(tag);
            while slots != 0 {
                let node = line.nodes[first(slots)];
                if is_meant(node) {
                    return Some(node);
                }
                slots &= slots - 1;
            }
            if line.passed == 0 {
                return None;
            }
            at = self.behind(at);
        }
    }

    /// Enters a node that is not in it; `hash_of` gives the hash of those that are.
    #[inline]
    pub(super) fn insert(&mut self, hash: u64, node: Node, hash_of: impl Fn(Node) -> u64) {
        // At two thirds few lines are full.
        if self.len >= self.lines.len() * (SLOTS * 2 / 3) {
            self.grow(hash_of);
        }
        self.len += 1;
        self.put(hash, node);
    }

    #[inline]
    fn put(&mut self, hash: u64, node: Node) {
        let (mut at, tag) = self.place(hash);
        loop {
            let line = &mut self.lines[at];
            let free = line.tagged(0);
            if free != 0 {
                let slot = first(free);
                (line.tags[slot], line.nodes[slot]) = (tag, node);
                return;
            }
            line.passed += 1;
            at = self.behind(at);
        }
    }

    #[cold]
    fn grow(&mut self, hash_of: impl Fn(Node) -> u64) {
        let old = std::mem::take(&mut self.lines);
        self.lines = vec![Line::EMPTY; 2 * old.len()];
        for line in &old {
            for (tag, node) in line.tags.iter().zip(line.nodes) {
                if *tag != 0 {
                    self.put(hash_of(node), node);
                }
            }
        }
    }

    /// Removes a node that is in it.
    #[inline]
    pub(super) fn remove(&mut self, hash: u64, node: Node) {
        let (mut at, tag) = self.place(hash);
        loop {
            let line = &mut self.lines[at];
            let mut slots = line.tagged(tag);
            while slots != 0 {
                let slot = first(slots);
                if line.nodes[slot] == node {
                    line.tags[slot] = 0;
                    self.len -= 1;
                    return;
                }
                slots &= slots - 1;
            }
            line.passed = line.passed.checked_sub(1).expect("a node lies behind full lines");
            at = self.behind(at);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    /// Hashes that share lines and tags more often than chance has it.
    fn hash_of(node: Node) -> u64 {
        u64::from(node % 7) | u64::from(node % 3) << 56
    }

    proptest! {
        /// Entering, finding and removing nodes gives what an ordered map gives.
        #[test]
        fn holds_what_was_entered(steps in prop::collection::vec((0_u32..200, any::<bool>()), 0..600)) {
            let mut index = Index::new();
            let mut expected = BTreeMap::new();
            for (node, enters) in steps {
                let known = expected.contains_key(&node);
                prop_assert_eq!(index.find(hash_of(node), |n| n == node), known.then_some(node));
                match (enters, known) {
                    (true, false) => {
                        index.insert(hash_of(node), node, hash_of);
                        expected.insert(node, ());
                    }
                    (false, true) => {
                        index.remove(hash_of(node), node);
                        expected.remove(&node);
                    }
                    _ => {}
                }
                prop_assert_eq!(index.len(), expected.len());
            }
            for node in expected.keys() {
                prop_assert_eq!(index.find(hash_of(*node), |n| n == *node), Some(*node));
            }
            for node in expected.keys() {
                index.remove(hash_of(*node), *node);
            }
            prop_assert!(index.lines.iter().all(|line| line.passed == 0));
        }
    }
}
