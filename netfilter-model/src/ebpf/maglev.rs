//! Maglev: a table of backends in which a hash of the flow is looked up, so that all nodes choose
//! alike and a change of backends moves few flows.

use std::net::IpAddr;

use super::maps::{Backend, BackendId, Endpoint};
use crate::hash::{jhash, jhash_final, jhash_mix, murmur3};
use crate::tuple::Tuple;

/// Sizes that a table may have (`--bpf-lb-maglev-table-size`); 16,381 unless told otherwise.
pub const TABLE_SIZES: [u32; 10] = [251, 509, 1021, 2039, 4093, 8191, 16381, 32749, 65521, 131_071];

/// What is hashed with what, in the order of the bytes of `--bpf-lb-maglev-hash-seed`'s default.
// Cilium: pkg/maglev/maglev.go, DefaultHashSeed
const SEED_BACKEND: u32 = 0x24b7_ef82;
const SEED_V4: u32 = 0x71dc_da46;
const SEED_V6: u32 = 0x9250_5688;

/// A lookup table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Maglev {
    table: Box<[BackendId]>,
}

impl Maglev {
    /// Returns the table of a size, a prime number, for backends in any order; `None` without
    /// backends.
    ///
    /// Each backend's own permutation of all places begins at one hash of its name and goes on in
    /// steps of another; in turn, each takes its next place that is free. All weights are the
    /// same, as those of Kubernetes' endpoints are.
    // Source: Eisenbud et al., "Maglev", NSDI 2016, section 3.4
    // Cilium: pkg/maglev/maglev.go, GetLookupTable
    pub fn try_new(
        backends: impl IntoIterator<Item = (BackendId, Backend)>,
        size: u32,
    ) -> Option<Maglev> {
        let named = backends.into_iter().map(|(id, backend)| (name(&backend), id));
        let mut named: Vec<(String, BackendId)> = named.collect();
        named.sort();
        let size = u64::from(size.max(2));
        let mut turns: Vec<Turn> =
            named.iter().map(|(name, id)| Turn::of(name, *id, size)).collect();
        let mut table = vec![BackendId(0); size as usize];
        if turns.is_empty() {
            return None;
        }
        let count = turns.len();
        for taken in 0..table.len() {
            let turn = &mut turns[taken % count];
            // A step that is no multiple of the prime size visits every place.
            while table[turn.at as usize] != BackendId(0) {
                turn.at = (turn.at + turn.step) % size;
            }
            table[turn.at as usize] = turn.id;
        }
        Some(Maglev { table: table.into() })
    }

    /// Returns the table: the backend of each place.
    pub fn table(&self) -> &[BackendId] {
        &self.table
    }

    /// Returns how many places there are.
    pub fn size(&self) -> u32 {
        self.table.len() as u32
    }

    /// Returns the backend of a flow to a frontend. Where clients stay with their backends, the
    /// source port does not count.
    // Cilium: bpf/lib/lb.h, lb4_select_backend_id_maglev; the destination is left out, so that
    // all addresses of a Service choose alike.
    pub fn select(&self, tuple: &Tuple, by_client: bool) -> BackendId {
        let at = hash(tuple, by_client) as usize % self.table.len();
        self.table[at]
    }
}

struct Turn {
    id: BackendId,
    at: u64,
    step: u64,
}

impl Turn {
    fn of(name: &str, id: BackendId, size: u64) -> Turn {
        let (first, second) = murmur3(name.as_bytes(), SEED_BACKEND);
        Turn { id, at: first % size, step: second % (size - 1) + 1 }
    }
}

/// Returns what a backend is hashed by, whatever its state.
// Cilium: pkg/maglev/maglev.go, setHashString
fn name(backend: &Backend) -> String {
    let Backend { address, port, protocol, .. } = *backend;
    format!("[{},State:active]", Endpoint(address, port, protocol))
}

/// Returns the hash of a flow, as a little-endian machine computes it.
// Cilium: bpf/lib/hash.h, hash_from_tuple_v4 and hash_from_tuple_v6
fn hash(tuple: &Tuple, by_client: bool) -> u32 {
    let in_memory = |port: u16| u32::from(u16::from_le_bytes(port.to_be_bytes()));
    let source = if by_client { 0 } else { in_memory(tuple.src_part) };
    let ports = in_memory(tuple.dst_part) << 16 | source;
    let protocol = u32::from(tuple.protocol.0);
    match tuple.src() {
        IpAddr::V4(source) => {
            let mut bytes = [0; 12];
            bytes[..4].copy_from_slice(&source.octets());
            bytes[4..8].copy_from_slice(&ports.to_le_bytes());
            bytes[8..].copy_from_slice(&protocol.to_le_bytes());
            jhash(&bytes, SEED_V4)
        }
        IpAddr::V6(source) => {
            let bytes = source.octets();
            let word = |at: usize| {
                u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
            };
            let [a, b, c] = jhash_mix([word(0), word(4), word(8)]);
            let (a, b, c) =
                (a.wrapping_add(word(12)), b.wrapping_add(ports), c.wrapping_add(protocol));
            let [a, b, c] = jhash_mix([a, b, c]);
            jhash_final([a.wrapping_add(SEED_V6), b, c])
        }
    }
}

#[cfg(test)]
mod tests;
