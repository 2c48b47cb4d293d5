//! What nftables keeps between packets: turns, buckets, amounts, and the elements of sets that
//! packets and time change.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use hashbrown::HashTable;

use crate::nft::expr::StateId;
use crate::nft::rule::{Family, Limit, Quota, Table};
use crate::nft::ruleset::Ruleset;
use crate::nft::set::{Data, Set, hash_key};
use crate::time::SimTime;

/// A set without a size holds this many elements that packets added.
// Kernel: nft_dynset.c, nft_dynset_new; nft writes the size into the set
const DYNAMIC_SIZE: u32 = 65_535;

/// The state of a namespace's nftables ruleset.
#[derive(Clone, Debug, Default)]
pub struct State {
    cells: Vec<Cell>,
    sets: Vec<Option<Live>>,
    /// When the ruleset was first met: lifetimes that it lists count from then.
    since: Option<SimTime>,
}

#[derive(Clone, Copy, Debug, Default)]
enum Cell {
    #[default]
    Unused,
    Turn(u32),
    Bucket(Bucket),
    Amount(u64),
}

/// A token bucket.
#[derive(Clone, Copy, Debug)]
struct Bucket {
    /// In nanoseconds, as the kernel counts.
    tokens: u128,
    last: SimTime,
}

/// The elements of a set now.
#[derive(Clone, Debug)]
struct Live {
    family: Family,
    table: Arc<str>,
    name: Arc<str>,
    elements: Vec<LiveElement>,
    /// Positions by key. Never iterated.
    index: HashTable<u32>,
    /// At this length those that have ended are swept out.
    sweep_len: usize,
}

#[derive(Clone, Debug)]
struct LiveElement {
    key: Box<[u128]>,
    data: Data,
    deadline: Option<SimTime>,
    bucket: Option<Bucket>,
}

/// The key of an element, and how long it has to live if it ends.
pub type LiveKey = (Box<[u128]>, Option<Duration>);

/// What became of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Changed {
    /// The element is there.
    There,
    /// There is no room.
    Full,
    /// The element's own rate is passed.
    Limited,
}

/// Returns the end of a span; `None` if nobody will see it.
fn after(start: SimTime, ms: u64) -> Option<SimTime> {
    const CENTURY_MS: u64 = 3_155_760_000_000;
    (ms < CENTURY_MS).then(|| start + Duration::from_millis(ms))
}

impl State {
    /// Prepares for packets of a ruleset.
    #[inline]
    pub(crate) fn begin(&mut self, ruleset: &Ruleset, now: SimTime) {
        self.since.get_or_insert(now);
        let (cells, sets) = (ruleset.state_count() as usize, ruleset.set_state_count() as usize);
        if self.cells.len() < cells || self.sets.len() < sets {
            self.cells.resize(cells.max(self.cells.len()), Cell::Unused);
            self.sets.resize(sets.max(self.sets.len()), None);
        }
    }

    /// Goes over to another ruleset: elements of sets that are in both stay, turns and buckets
    /// begin anew.
    // Simplified: state of nftables rules that a change leaves alone begins anew with the others.
    pub fn replaced(&mut self, ruleset: &Ruleset, now: SimTime) {
        let key = |live: Live| ((live.family, live.table.clone(), live.name.clone()), live);
        let mut old: BTreeMap<_, Live> = self.sets.drain(..).flatten().map(key).collect();
        *self = State { since: Some(now), ..State::default() };
        self.begin(ruleset, now);
        for table in ruleset.tables() {
            for set in &table.sets {
                let Some(at) = set.state else { continue };
                let key = (table.family, table.name.clone(), set.name.clone());
                self.sets[at as usize] = old.remove(&key);
            }
        }
    }

    fn cell(&mut self, at: StateId) -> &mut Cell {
        let at = at.0 as usize;
        if self.cells.len() <= at {
            self.cells.resize(at + 1, Cell::Unused);
        }
        &mut self.cells[at]
    }

    /// Returns the next number of a turn.
    // Kernel: nft_numgen.c, nft_ng_inc_gen: the first is 0
    pub(crate) fn turn(&mut self, at: StateId, modulus: u32) -> u32 {
        let cell = self.cell(at);
        let next = match cell {
            Cell::Turn(last) if *last + 1 < modulus => *last + 1,
            _ => 0,
        };
        *cell = Cell::Turn(next);
        next
    }

    /// Returns whether a packet lies within the rate.
    pub(crate) fn within_rate(
        &mut self,
        at: StateId,
        limit: &Limit,
        len: u32,
        now: SimTime,
    ) -> bool {
        let cell = self.cell(at);
        let mut bucket = match cell {
            Cell::Bucket(bucket) => *bucket,
            _ => Bucket::full(limit, now),
        };
        let within = bucket.take(limit, len, now);
        *cell = Cell::Bucket(bucket);
        within
    }

    /// Counts a packet and returns whether the amount is passed.
    // Kernel: nft_quota.c, nft_overquota
    pub(crate) fn over_quota(&mut self, at: StateId, quota: &Quota, len: u32) -> bool {
        let cell = self.cell(at);
        let used = match cell {
            Cell::Amount(used) => *used,
            _ => quota.used,
        };
        let used = used.saturating_add(u64::from(len));
        *cell = Cell::Amount(used);
        used > quota.bytes
    }

    fn live<'s>(&'s mut self, table: &Table, set: &Set) -> &'s mut Live {
        let at = set.state.expect("a set that changes has a place") as usize;
        if self.sets.len() <= at {
            self.sets.resize(at + 1, None);
        }
        if self.sets[at].as_ref().is_none_or(|live| !live.is_of(table, set)) {
            self.sets[at] = Some(Live::declared(table, set, self.since.unwrap_or_default()));
        }
        self.sets[at].as_mut().expect("just made")
    }

    /// Returns what a key maps to in a set that changes, if the key is in it.
    pub(crate) fn find(
        &mut self,
        table: &Table,
        set: &Set,
        key: &[u128],
        now: SimTime,
    ) -> Option<Data> {
        if set.interval {
            let at = set.find(key.iter().copied())?;
            let element = &set.elements()[at];
            let left = element.expires.or(element.timeout).or(set.timeout).filter(|ms| *ms > 0);
            let since = self.since.unwrap_or_default();
            let alive = left.and_then(|ms| after(since, ms)).is_none_or(|end| end > now);
            return alive.then(|| element.data.clone());
        }
        let live = self.live(table, set);
        let element = &live.elements[live.find(key)? as usize];
        element.is_alive(now).then(|| element.data.clone())
    }

    /// Adds an element, or renews it if it is there and `renew` is given.
    // Kernel: nft_dynset.c, nft_dynset_eval: only `update` gives an element its time anew
    pub(crate) fn add(
        &mut self,
        (table, set): (&Table, &Set),
        key: &[u128],
        data: Data,
        (renew, timeout): (bool, Option<u64>),
        (limit, len): (Option<&Limit>, u32),
        now: SimTime,
    ) -> Changed {
        let ms = timeout.or(set.timeout).filter(|ms| *ms > 0 && set.timeouts);
        let deadline = ms.and_then(|ms| after(now, ms));
        let size = set.size.unwrap_or(DYNAMIC_SIZE) as usize;
        let live = self.live(table, set);
        let at = match live.find(key) {
            Some(at) if live.elements[at as usize].is_alive(now) => {
                let element = &mut live.elements[at as usize];
                if renew && element.deadline.is_some() && deadline.is_some() {
                    element.deadline = deadline;
                }
                at
            }
            Some(at) => {
                live.elements[at as usize] =
                    LiveElement { key: key.into(), data, deadline, bucket: None };
                at
            }
            None => {
                if live.elements.len() >= size.min(live.sweep_len) {
                    live.sweep(now);
                }
                if live.elements.len() >= size {
                    return Changed::Full;
                }
                live.push(LiveElement { key: key.into(), data, deadline, bucket: None })
            }
        };
        let Some(limit) = limit else {
            return Changed::There;
        };
        let bucket = &mut live.elements[at as usize].bucket;
        let within = bucket.get_or_insert(Bucket::full(limit, now)).take(limit, len, now);
        if within != limit.over { Changed::There } else { Changed::Limited }
    }

    /// Removes an element.
    pub(crate) fn remove(&mut self, table: &Table, set: &Set, key: &[u128]) {
        let live = self.live(table, set);
        if let Some(at) = live.find(key) {
            live.remove(at);
        }
    }

    /// Returns the keys of the elements that a set holds now, with how long they have to live.
    pub(crate) fn elements(&self, table: &Table, set: &Set, now: SimTime) -> Option<Vec<LiveKey>> {
        let live = self.sets.get(set.state? as usize)?.as_ref()?;
        if !live.is_of(table, set) {
            return None;
        }
        let mut elements: Vec<_> = live
            .elements
            .iter()
            .filter(|element| element.is_alive(now))
            .map(|element| (element.key.clone(), element.deadline.map(|at| at - now)))
            .collect();
        elements.sort();
        Some(elements)
    }
}

impl Bucket {
    // Kernel: nft_limit.c, nft_limit_init
    fn full(limit: &Limit, now: SimTime) -> Bucket {
        Bucket { tokens: Bucket::max(limit), last: now }
    }

    fn max(limit: &Limit) -> u128 {
        let (nanos, rate) = (u128::from(limit.seconds) * 1_000_000_000, u128::from(limit.rate));
        if limit.bytes {
            nanos.saturating_mul(rate + u128::from(limit.burst)) / rate.max(1)
        } else {
            (nanos / rate.max(1)).saturating_mul(u128::from(limit.burst))
        }
    }

    // Kernel: nft_limit.c, nft_limit_eval
    fn take(&mut self, limit: &Limit, len: u32, now: SimTime) -> bool {
        let (nanos, rate) = (u128::from(limit.seconds) * 1_000_000_000, u128::from(limit.rate));
        let cost = if limit.bytes {
            nanos.saturating_mul(u128::from(len)) / rate.max(1)
        } else {
            nanos / rate.max(1)
        };
        let since = now.saturating_since(self.last).as_nanos();
        self.tokens = self.tokens.saturating_add(since).min(Bucket::max(limit));
        self.last = now;
        match self.tokens.checked_sub(cost) {
            Some(left) => {
                self.tokens = left;
                true
            }
            None => false,
        }
    }
}

impl LiveElement {
    fn is_alive(&self, now: SimTime) -> bool {
        self.deadline.is_none_or(|deadline| deadline > now)
    }
}

impl Live {
    fn is_of(&self, table: &Table, set: &Set) -> bool {
        self.family == table.family && self.table == table.name && self.name == set.name
    }

    /// Returns the set as the ruleset has it.
    fn declared(table: &Table, set: &Set, since: SimTime) -> Live {
        let mut live = Live {
            family: table.family,
            table: table.name.clone(),
            name: set.name.clone(),
            elements: Vec::with_capacity(set.elements().len()),
            index: HashTable::new(),
            sweep_len: 64,
        };
        for element in set.elements() {
            let left = element.expires.or(element.timeout).or(set.timeout);
            let left = left.filter(|ms| *ms > 0 && set.timeouts);
            let deadline = left.and_then(|ms| after(since, ms));
            let key = element.key.iter().map(|range| range.0).collect();
            live.push(LiveElement { key, data: element.data.clone(), deadline, bucket: None });
        }
        live
    }

    fn find(&self, key: &[u128]) -> Option<u32> {
        let same = |at: &u32| *self.elements[*at as usize].key == *key;
        self.index.find(hash_key(key.iter().copied()), same).copied()
    }

    fn push(&mut self, element: LiveElement) -> u32 {
        let at = self.elements.len() as u32;
        let hash = hash_key(element.key.iter().copied());
        self.elements.push(element);
        let Live { elements, index, .. } = self;
        index.insert_unique(hash, at, |at| hash_key(elements[*at as usize].key.iter().copied()));
        at
    }

    fn remove(&mut self, at: u32) {
        let last = self.elements.len() as u32 - 1;
        self.unlink(at);
        if at != last {
            let hash = hash_key(self.elements[last as usize].key.iter().copied());
            if let Some(node) = self.index.find_mut(hash, |node| *node == last) {
                *node = at;
            }
        }
        self.elements.swap_remove(at as usize);
    }

    fn unlink(&mut self, at: u32) {
        let hash = hash_key(self.elements[at as usize].key.iter().copied());
        if let Ok(node) = self.index.find_entry(hash, |node| *node == at) {
            node.remove();
        }
    }

    fn sweep(&mut self, now: SimTime) {
        let mut at = 0;
        while (at as usize) < self.elements.len() {
            if self.elements[at as usize].is_alive(now) {
                at += 1;
            } else {
                self.remove(at);
            }
        }
        self.sweep_len = (2 * self.elements.len()).max(64);
    }
}

#[cfg(test)]
mod tests;
