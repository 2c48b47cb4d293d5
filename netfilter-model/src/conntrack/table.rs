//! The table: entries in a slab, and both tuples of each in a hash table.

use std::collections::BTreeSet;

use hashbrown::HashTable;

use super::entry::{Direction, Entry, Status};
use super::index::Index;
use super::{EntryRef, Stats, Sysctls};
use crate::hash::Mix;
use crate::time::SimTime;
use crate::tuple::{Addresses, Tuple};

/// The connections of one network namespace.
#[derive(Clone, Debug)]
pub struct Conntrack {
    pub(super) sysctls: Sysctls,
    pub(super) slab: Vec<Cell>,
    free: Vec<u32>,
    /// Nodes by tuple and zone. Never iterated.
    pub(super) tuples: Index,
    /// Tuples, by direction, that were looked for since an entry came, with their zone, and are no
    /// entry's. NAT and confirmation ask for the same ones over and over.
    absent: [Option<(Tuple, u16)>; 2],
    /// The newest entry of each source that is rewritten, by index. Never iterated.
    pub(super) sources: HashTable<u32>,
    /// Nodes by the bucket that they have in the kernel's table; made when it first matters.
    pub(super) buckets: Option<BTreeSet<(u32, u32)>>,
    pub(super) len: u32,
    /// The cell of the slab that is looked at next for an entry that has expired.
    hand: u32,
    /// When the collector runs that takes closing connections too.
    pub(super) hard_sweep_at: Option<SimTime>,
    pub(super) stats: Stats,
}

#[derive(Clone, Debug)]
pub(super) struct Cell {
    generation: u32,
    /// The neighbours in the chain of entries with this source.
    pub(super) newer: Option<u32>,
    pub(super) older: Option<u32>,
    pub(super) entry: Option<Entry>,
}

/// An entry's tuple of one direction: `index << 1 | direction`.
pub(super) type Node = u32;

#[inline]
pub(super) fn hash(tuple: &Tuple, zone: u16) -> u64 {
    let mut mix = Mix::new();
    match tuple.addresses() {
        Addresses::V4 { src, dst } => {
            mix.word(u64::from(src.to_bits()) << 32 | u64::from(dst.to_bits()));
        }
        Addresses::V6 { .. } => {
            mix.address(tuple.src());
            mix.address(tuple.dst());
        }
    }
    let parts = u64::from(tuple.src_part) << 16 | u64::from(tuple.dst_part);
    mix.word(u64::from(zone) << 48 | u64::from(tuple.protocol.0) << 32 | parts);
    mix.finish()
}

pub(super) const fn direction_of(node: Node) -> Direction {
    if node & 1 == 0 { Direction::Original } else { Direction::Reply }
}

pub(super) const fn node_of(index: u32, direction: Direction) -> Node {
    index << 1 | direction as u32
}

/// Returns the directions in which an entry is found.
pub(super) fn directions(entry: &Entry) -> &'static [Direction] {
    if entry.status.contains(Status::NAT_CLASH) {
        &[Direction::Reply]
    } else {
        &[Direction::Original, Direction::Reply]
    }
}

impl Conntrack {
    /// How many cells are looked at for expired entries when one is made: with two, the table holds
    /// a fourth more than what lives, if as many come as go.
    const LOOKED_AT: u32 = 2;

    /// Returns an empty table.
    pub fn new(sysctls: Sysctls) -> Conntrack {
        let buckets = Conntrack::watches_chains(&sysctls).then(BTreeSet::new);
        Conntrack {
            sysctls,
            slab: Vec::new(),
            free: Vec::new(),
            tuples: Index::new(),
            absent: [None; 2],
            sources: HashTable::new(),
            buckets,
            len: 0,
            hand: 0,
            hard_sweep_at: None,
            stats: Stats::default(),
        }
    }

    /// Returns the counters.
    pub const fn stats(&self) -> &Stats {
        &self.stats
    }

    /// Returns the timeouts and limits.
    pub const fn sysctls(&self) -> &Sysctls {
        &self.sysctls
    }

    /// Changes timeouts and limits: what comes later follows them.
    pub fn set_sysctls(&mut self, sysctls: Sysctls) {
        self.buckets = None;
        self.sysctls = sysctls;
        if Conntrack::watches_chains(&self.sysctls) {
            self.index_buckets();
        }
    }

    /// Returns how many entries the table holds, those that have expired and not been swept out
    /// included.
    pub const fn len(&self) -> usize {
        self.len as usize
    }

    /// Returns whether the table holds nothing.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the live entries, in no order that means anything but always the same. One that
    /// has lost a clash is not among them.
    pub fn entries(&self, now: SimTime) -> impl Iterator<Item = &Entry> {
        let entries = self.slab.iter().filter_map(|cell| cell.entry.as_ref());
        entries.filter(move |entry| is_listed(entry, now))
    }

    /// Removes the live entries that `condemned` holds for, as `conntrack -D` does, and returns
    /// how many there were.
    pub fn delete(&mut self, now: SimTime, mut condemned: impl FnMut(&Entry) -> bool) -> usize {
        let mut deleted = 0;
        for index in 0..self.slab.len() as u32 {
            let Some(entry) = &self.slab[index as usize].entry else {
                continue;
            };
            if is_listed(entry, now) && condemned(entry) {
                deleted += 1;
                self.remove(index);
            }
        }
        deleted
    }

    /// Returns the live entry to which a packet with this tuple belongs, outside of zones.
    pub fn lookup(&self, now: SimTime, tuple: &Tuple) -> Option<(&Entry, Direction)> {
        self.lookup_in(now, tuple, [0; 2])
    }

    /// Returns the live entry to which a packet with this tuple belongs if rules have put it into
    /// these zones, of original and reply tuples.
    pub fn lookup_in(
        &self,
        now: SimTime,
        tuple: &Tuple,
        zones: [u16; 2],
    ) -> Option<(&Entry, Direction)> {
        let node = self.node(tuple, zones)?;
        let entry = self.entry_at(node >> 1);
        (entry.deadline > now).then_some((entry, direction_of(node)))
    }

    pub(crate) fn get(&self, at: EntryRef) -> Option<&Entry> {
        let cell = &self.slab[at.index() as usize];
        cell.entry.as_ref().filter(|_| cell.generation == at.generation())
    }

    pub(super) fn get_mut(&mut self, at: EntryRef) -> Option<&mut Entry> {
        let cell = &mut self.slab[at.index() as usize];
        cell.entry.as_mut().filter(|_| cell.generation == at.generation())
    }

    pub(super) fn entry_at(&self, index: u32) -> &Entry {
        self.slab[index as usize].entry.as_ref().expect("nodes name entries")
    }

    pub(super) fn entry_ref(&self, index: u32) -> EntryRef {
        EntryRef::new(index, self.slab[index as usize].generation)
    }

    #[inline]
    fn node(&self, tuple: &Tuple, zones: [u16; 2]) -> Option<Node> {
        let same = |node: Node| self.entry_at(node >> 1).has(direction_of(node), tuple, zones);
        let found = self.tuples.find(hash(tuple, zones[0]), same);
        // Kernel: nf_conntrack_core.c, resolve_normal_ct: the other zone is asked second.
        if found.is_none() && zones[0] != zones[1] {
            return self.tuples.find(hash(tuple, zones[1]), same);
        }
        found
    }

    /// Returns the live entry with this tuple; one that has expired goes.
    #[inline]
    pub(super) fn find(
        &mut self,
        now: SimTime,
        tuple: &Tuple,
        zones: [u16; 2],
    ) -> Option<(u32, Direction)> {
        match self.node(tuple, zones) {
            Some(node) => self.live(now, node),
            None => {
                self.note_absent(tuple, Direction::Original, zones);
                None
            }
        }
    }

    /// Returns the live entry that stands in the way of one with these zones: it is where the
    /// tuple's direction has its zone, and its own direction has the same zone.
    // Kernel: nf_conntrack_core.c, nf_ct_key_equal
    #[inline]
    pub(super) fn find_beside(
        &mut self,
        now: SimTime,
        tuple: &Tuple,
        direction: Direction,
        zones: [u16; 2],
    ) -> Option<(u32, Direction)> {
        if let Some((absent, zone)) = &self.absent[direction as usize]
            && zones == [*zone; 2]
            && absent == tuple
        {
            return None;
        }
        let same = |node: Node| self.entry_at(node >> 1).has(direction_of(node), tuple, zones);
        match self.tuples.find(hash(tuple, zones[direction as usize]), same) {
            Some(node) => self.live(now, node),
            None => {
                self.note_absent(tuple, direction, zones);
                None
            }
        }
    }

    #[inline]
    fn note_absent(&mut self, tuple: &Tuple, direction: Direction, zones: [u16; 2]) {
        if zones[0] == zones[1] {
            self.absent[direction as usize] = Some((*tuple, zones[0]));
        }
    }

    /// Returns an entry that is live; one that has expired goes.
    #[inline]
    fn live(&mut self, now: SimTime, node: Node) -> Option<(u32, Direction)> {
        let index = node >> 1;
        if self.entry_at(index).deadline <= now {
            self.remove(index);
            return None;
        }
        Some((index, direction_of(node)))
    }

    /// Returns whether a live entry of another flow has the tuple that a tentative entry would
    /// like to be answered by.
    // Kernel: nf_conntrack_core.c, nf_conntrack_tuple_taken
    pub(crate) fn is_taken(&mut self, now: SimTime, tuple: &Tuple, by: &Entry) -> bool {
        let taken = !self.is_free(now, tuple, by);
        self.stats.found += u64::from(taken);
        taken
    }

    /// As [`Conntrack::is_taken`] the other way round, and not counted.
    #[inline]
    pub(crate) fn is_free(&mut self, now: SimTime, tuple: &Tuple, by: &Entry) -> bool {
        let Some((index, _)) = self.find_beside(now, tuple, Direction::Reply, by.zones) else {
            return true;
        };
        let other = self.entry_at(index);
        // Two first packets of one flow: settled when the second is confirmed.
        if other.same_original(by) {
            return true;
        }
        // Both ends of one flow at once, without NAT: likewise.
        // Kernel: nf_nat_core.c, nf_nat_used_tuple_new
        let reversed = other.original == by.reply && other.reply == by.original;
        let plain =
            !other.status.contains(Status::SRC_NAT) && !other.status.contains(Status::DST_NAT);
        reversed && plain && super::clash::allows(by) && by.reply == *tuple
    }

    /// As [`Conntrack::is_taken`], but an ended TCP connection makes way.
    // Kernel: nf_nat_core.c, nf_nat_used_tuple_harder
    pub(crate) fn is_taken_for_good(&mut self, now: SimTime, tuple: &Tuple, by: &Entry) -> bool {
        let Some((index, direction)) = self.find_beside(now, tuple, Direction::Reply, by.zones)
        else {
            return false;
        };
        let gives_way = direction == Direction::Reply && self.entry_at(index).gives_way_to(by);
        if gives_way {
            self.remove(index);
        }
        !gives_way
    }

    /// Enters an entry by the tuples by which it is to be found, and takes it.
    pub(super) fn enter(&mut self, own: &mut Option<Entry>) -> EntryRef {
        let entry = own.as_ref().expect("an entry to enter");
        self.absent = [None; 2];
        let index = self.free.pop().unwrap_or_else(|| {
            self.slab.push(Cell { generation: 0, newer: None, older: None, entry: None });
            self.slab.len() as u32 - 1
        });
        let hashes = [hash(&entry.original, entry.zones[0]), hash(&entry.reply, entry.zones[1])];
        let rewrites_source = entry.status.contains(Status::SRC_NAT);
        let directions = directions(entry);
        self.slab[index as usize].entry = own.take();
        for direction in directions {
            let node = node_of(index, *direction);
            let node_hash = hashes[*direction as usize];
            let slab = &self.slab;
            self.tuples.insert(node_hash, node, |node| node_hash_of(slab, node));
            if let Some(buckets) = &mut self.buckets {
                buckets.insert((super::room::bucket(node_hash, &self.sysctls), node));
            }
        }
        if rewrites_source {
            self.link_source(index);
        }
        self.len += 1;
        self.entry_ref(index)
    }

    /// Ends a TCP connection that REJECT resets.
    // Kernel: nf_conntrack_proto_tcp.c, nf_conntrack_tcp_set_closing
    pub(crate) fn set_closing(&mut self, now: SimTime, at: EntryRef) {
        if self.get(at).is_none() {
            return;
        }
        let left = self.sysctls.tcp_timeout_close;
        if let Some(entry) = &mut self.slab[at.index() as usize].entry
            && let super::entry::ProtocolState::Tcp(track) = &mut entry.protocol
            && track.state != super::TcpState::Close
        {
            track.state = super::TcpState::Close;
            entry.refresh(now, left);
        }
    }

    /// Removes an entry at the wish of NAT.
    pub(crate) fn kill(&mut self, at: EntryRef) {
        if self.get(at).is_some() {
            self.remove(at.index());
        }
    }

    /// Removes the entry that packets with an original tuple belong to, outside of zones.
    pub(crate) fn kill_tuple(&mut self, now: SimTime, tuple: &Tuple) {
        if let Some((index, Direction::Original)) = self.find(now, tuple, [0; 2]) {
            self.remove(index);
        }
    }

    /// Removes what has expired in a few cells, in turn. So memory follows the live entries, and
    /// the cell that is used next is one just looked at.
    // Kernel: nf_conntrack_core.c, gc_worker
    #[inline]
    pub(super) fn expire(&mut self, now: SimTime) {
        for _ in 0..Conntrack::LOOKED_AT {
            let cell = self.slab.get(self.hand as usize);
            if cell.and_then(|cell| cell.entry.as_ref()).is_some_and(|e| e.deadline <= now) {
                self.remove(self.hand);
            }
            self.hand += 1;
            if self.hand as usize >= self.slab.len() {
                self.hand = 0;
            }
        }
    }

    /// Removes all that has expired.
    pub(super) fn sweep(&mut self, now: SimTime) {
        for index in 0..self.slab.len() {
            let entry = self.slab[index].entry.as_ref();
            if entry.is_some_and(|entry| entry.deadline <= now) {
                self.remove(index as u32);
            }
        }
    }

    /// Removes an entry.
    #[inline]
    pub(super) fn remove(&mut self, index: u32) {
        self.unlink(index);
        self.slab[index as usize].entry = None;
    }

    /// Removes an entry and returns it.
    pub(super) fn take(&mut self, index: u32) -> Entry {
        self.unlink(index);
        self.slab[index as usize].entry.take().expect("an entry is removed once")
    }

    #[inline]
    fn unlink(&mut self, index: u32) {
        let entry = self.entry_at(index);
        let status = entry.status;
        // Both places are known before the first is gone to: so both are waited for at once.
        let hashes = [hash(&entry.original, entry.zones[0]), hash(&entry.reply, entry.zones[1])];
        for direction in directions(entry) {
            let (node, node_hash) = (node_of(index, *direction), hashes[*direction as usize]);
            self.tuples.remove(node_hash, node);
            if let Some(buckets) = &mut self.buckets {
                buckets.remove(&(super::room::bucket(node_hash, &self.sysctls), node));
            }
        }
        if status.contains(Status::SRC_NAT) {
            self.unlink_source(index);
        }
        let cell = &mut self.slab[index as usize];
        cell.generation = cell.generation.wrapping_add(1);
        self.free.push(index);
        self.len -= 1;
    }
}

fn is_listed(entry: &Entry, now: SimTime) -> bool {
    entry.deadline > now && !entry.status.contains(Status::NAT_CLASH)
}

pub(super) fn node_hash_of(slab: &[Cell], node: Node) -> u64 {
    let entry = slab[(node >> 1) as usize].entry.as_ref().expect("nodes name entries");
    let direction = direction_of(node);
    hash(entry.tuple(direction), entry.zones[direction as usize])
}
