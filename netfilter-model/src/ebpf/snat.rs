//! Source translation of what a node forwards to a backend elsewhere, so that answers come back.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::net::IpAddr;

use crate::tuple::{Side, Tuple};

/// How often another port is tried.
// Cilium: bpf/lib/nat.h, SNAT_COLLISION_RETRIES
const TRIES: u32 = 32;

/// `cilium_snat_v*_external`, both directions.
// Simplified: the agent's map of translated sources has room for all, and keeps them for the run;
// the least recently used of 524,288 would make way, and the collector takes those whose
// connection has ended.
#[derive(Clone, Debug, Default)]
pub(super) struct Snat {
    there: BTreeMap<Tuple, Tuple>,
    back: BTreeMap<Tuple, Tuple>,
}

impl Snat {
    /// Returns the tuple with the node's address and a port between `first` and 65,535 as its
    /// source, the same for all packets of a flow; `None` if no port is found.
    // Cilium: bpf/lib/nat.h, snat_v4_new_mapping
    pub(super) fn translate(
        &mut self,
        tuple: Tuple,
        node: IpAddr,
        first: u16,
        mut draw: impl FnMut() -> u64,
    ) -> Option<Tuple> {
        if let Some(known) = self.there.get(&tuple).filter(|known| known.src() == node) {
            return Some(*known);
        }
        let range = u32::from(u16::MAX - first) + 1;
        let mut random = || first + (((draw() as u32 & 0xffff) * range) >> 16) as u16;
        let mut port = if tuple.src_part >= first { tuple.src_part } else { random() };
        let mut translated = tuple;
        translated.set_address(Side::Source, node);
        for attempt in 0..TRIES {
            translated.src_part = port;
            let answer = translated.reply();
            if let Entry::Vacant(free) = self.back.entry(answer) {
                free.insert(tuple.reply());
                self.there.insert(tuple, translated);
                return Some(translated);
            }
            port = match (attempt, port) {
                (0, _) => random(),
                (_, u16::MAX) => first,
                (_, port) => port + 1,
            };
        }
        None
    }

    /// Returns the tuple of an answer with its own destination, if it is one to a translated flow.
    pub(super) fn undo(&self, tuple: Tuple) -> Option<Tuple> {
        self.back.get(&tuple).copied()
    }
}
