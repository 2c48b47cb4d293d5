//! The queue of events that are only ever fired: buckets of rising width, sorted when entered.
//!
//! Eight rungs of 1,024 buckets cover all of time. A bucket of a rung is as wide as the whole rung
//! below. An entry lies on the rung of the highest base-1,024 digit in which its time differs from
//! `base`, in the bucket of that digit; entries of the bucket that `base` itself is in are sorted
//! and form the bottom:
//!
//! ```text
//!           bottom      rung 1                     rung 2
//! time ──┬──────────┬──┬──┬──┬──┬──┬──┬──┬── ┄ ──┬──────────┬──────────┬── ┄
//!       base        └ one bucket
//! ```
//!
//! When the bottom is empty, the next bucket becomes it: sorted if it is small, else spread over
//! the rung below first. So buckets are narrow where events are dense and wide where they are
//! sparse: delays of 100 µs and of a second go side by side, and a burst at one instant ends in
//! one bucket of one nanosecond, where it is sorted already. An entry moves down at most once per
//! rung, always sequentially, so the cost per event does not grow with the number of events.
//!
//! One thing is tuned: at which bit the digits are cut. Cut well, a bucket that becomes the bottom
//! holds a handful of entries, neither one nor hundreds. The ladder counts, and cuts anew if need
//! be, at most once in a few times as many events as it holds.

use std::ops::Range;

/// Bits of a digit.
const DIGIT_BITS: u32 = 10;
/// Buckets of a rung.
const BUCKETS: usize = 1 << DIGIT_BITS;
/// Rungs that cover 64 bits, wherever the digits are cut.
const RUNGS: usize = ((u64::BITS + DIGIT_BITS - 2) / DIGIT_BITS) as usize + 1;
/// Entries of a chunk, the unit in which buckets grow.
const CHUNK: usize = 32;
/// The largest bucket that is sorted whole; a larger one is spread over the rung below.
const SORT_MAX: usize = 32;
/// The largest bottom that insertions may make; a larger one gives its later part back.
const BOTTOM_MAX: usize = 64;
/// How many entries a bottom should have, as a power of two, and how many are near enough.
const IDEAL_BITS: i32 = 3;
const GOOD: Range<u64> = 3..20;
/// After how many bottoms the cut of the digits is looked at.
const TUNING_PERIOD: u64 = 256;
/// No chunk.
const NONE: u32 = u32::MAX;

/// An event, when it fires, and its place among simultaneous ones.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry<E> {
    pub(super) time: u64,
    pub(super) seq: u64,
    pub(super) event: E,
}

impl<E> Entry<E> {
    /// Returns time and sequence as one number.
    #[inline]
    pub(super) fn key(&self) -> u128 {
        u128::from(self.time) << 64 | u128::from(self.seq)
    }
}

/// A priority queue of entries by key; see the module.
///
/// Its owner promises that no entry is earlier than the last one popped, nor than a `limit` that
/// [`Ladder::first_key`] was asked with.
#[derive(Clone)]
pub(super) struct Ladder<E> {
    /// No entry is earlier; rungs are relative to it.
    base: u64,
    /// The entries at or before `bottom_last`, sorted, from `bottom_head` on.
    bottom: Vec<Entry<E>>,
    bottom_head: usize,
    bottom_last: u64,
    /// The bottom spans one bucket of this rung; all rungs below are empty.
    bottom_rung: usize,
    rungs: Vec<Rung>,
    /// Bit r: rung r has an entry.
    occupied: u32,
    /// How many bits the lowest digit lacks: rung r begins at bit `DIGIT_BITS`·r − `cut`.
    cut: u32,
    pool: Pool<E>,
    len: usize,
    /// Entries popped, and bottoms made, since the cut was looked at.
    popped: u64,
    bottoms: u64,
    /// Entries popped since the digits were cut.
    popped_since_cut: u64,
}

impl<E: Copy> Ladder<E> {
    /// Returns an empty ladder at time zero.
    pub(super) fn new() -> Ladder<E> {
        Ladder {
            base: 0,
            bottom: Vec::with_capacity(2 * BOTTOM_MAX),
            bottom_head: 0,
            bottom_last: 0,
            bottom_rung: 0,
            rungs: (0..RUNGS).map(|_| Rung::new()).collect(),
            occupied: 0,
            cut: 0,
            pool: Pool::new(),
            len: 0,
            popped: 0,
            bottoms: 0,
            popped_since_cut: 0,
        }
    }

    /// Returns how many entries there are.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Adds an entry; `now` is the time of the last one popped.
    #[inline]
    pub(super) fn push(&mut self, entry: Entry<E>, now: u64) {
        self.len += 1;
        if entry.time > self.bottom_last {
            self.put(self.rung_of(entry.time), entry);
        } else {
            self.insert(entry, now);
        }
    }

    /// Returns the key of the first entry if it may be at or before `limit`, and the greatest
    /// number otherwise. From now on no entry before `limit` may be added unless an entry is
    /// returned and popped first.
    #[inline]
    pub(super) fn first_key(&mut self, limit: u64) -> u128 {
        if self.bottom_head == self.bottom.len() && !self.refill(limit) {
            return u128::MAX;
        }
        self.bottom[self.bottom_head].key()
    }

    /// Removes the entry whose key [`Ladder::first_key`] has just returned.
    #[inline]
    pub(super) fn pop(&mut self) -> Entry<E> {
        let entry = self.bottom[self.bottom_head];
        self.bottom_head += 1;
        self.len -= 1;
        self.popped += 1;
        entry
    }

    /// Returns the time of the first entry. Looks at a whole bucket where the bottom is empty.
    pub(super) fn peek_time(&self) -> Option<u64> {
        if let Some(entry) = self.bottom.get(self.bottom_head) {
            return Some(entry.time);
        }
        if self.occupied == 0 {
            return None;
        }
        let rung = &self.rungs[self.occupied.trailing_zeros() as usize];
        let bucket = rung.buckets[rung.first()];
        let mut first = u64::MAX;
        let mut left = bucket.len as usize;
        let mut chunk = bucket.head;
        while left > 0 {
            let in_chunk = left.min(CHUNK);
            let start = chunk as usize * CHUNK;
            for entry in &self.pool.entries[start..start + in_chunk] {
                first = first.min(entry.time);
            }
            left -= in_chunk;
            chunk = self.pool.next[chunk as usize];
        }
        Some(first)
    }

    /// Returns the rung of a time that is not in the bottom.
    #[inline]
    fn rung_of(&self, time: u64) -> usize {
        (((time ^ self.base).ilog2() + self.cut) / DIGIT_BITS) as usize
    }

    /// Returns the lowest bit of a rung's digit: a bucket is two to that many nanoseconds wide.
    ///
    /// The digit of rung 0 has less than `DIGIT_BITS` bits of its own; it is read with all of them
    /// nevertheless, since the others are the same in all its entries.
    #[inline]
    fn shift(&self, rung: usize) -> u32 {
        (rung as u32 * DIGIT_BITS).saturating_sub(self.cut)
    }

    /// Appends an entry to its bucket on `rung`.
    #[inline]
    fn put(&mut self, rung: usize, entry: Entry<E>) {
        let digit = (entry.time >> self.shift(rung)) as usize % BUCKETS;
        self.occupied |= 1 << rung;
        let rung = &mut self.rungs[rung];
        let bucket = &mut rung.buckets[digit];
        if !(bucket.len as usize).is_multiple_of(CHUNK) {
            self.pool.entries[bucket.tail as usize] = entry;
            bucket.tail += 1;
        } else {
            let chunk = self.pool.take(entry);
            if bucket.len == 0 {
                rung.mark(digit);
                rung.buckets[digit].head = chunk;
            } else {
                self.pool.next[(bucket.tail as usize - 1) / CHUNK] = chunk;
            }
            rung.buckets[digit].tail = chunk * CHUNK as u32 + 1;
        }
        rung.buckets[digit].len += 1;
    }

    /// Makes the next bucket the bottom. Returns false if none starts at or before `limit`.
    fn refill(&mut self, limit: u64) -> bool {
        self.bottom.clear();
        self.bottom_head = 0;
        if self.bottoms >= TUNING_PERIOD {
            self.tune();
        }
        while self.bottom.is_empty() && self.occupied != 0 {
            let level = self.occupied.trailing_zeros() as usize;
            let shift = self.shift(level);
            let digit = self.rungs[level].first();
            let above = u64::MAX.checked_shl(shift + DIGIT_BITS).unwrap_or(0);
            let start = self.base & above | (digit as u64) << shift;
            if start > limit {
                return false;
            }
            let bucket = self.rungs[level].take(digit);
            if self.rungs[level].words == 0 {
                self.occupied &= !(1 << level);
            }
            self.base = start;
            if bucket.len as usize <= SORT_MAX || level == 0 {
                self.bottom_rung = level;
                self.bottom_last = start | ((1 << shift) - 1);
                self.sort_into_bottom(bucket);
                break;
            }
            self.bottom_rung = level - 1;
            self.bottom_last = start | ((1 << self.shift(level - 1)) - 1);
            self.spread(bucket, level - 1);
        }
        let filled = !self.bottom.is_empty();
        self.bottoms += u64::from(filled);
        filled
    }

    /// Looks at the size of the last bottoms, and cuts the digits anew if another cut suits it
    /// better. The bottom must be empty.
    #[cold]
    fn tune(&mut self) {
        let per_bottom = self.popped / self.bottoms;
        self.popped_since_cut += self.popped;
        (self.popped, self.bottoms) = (0, 0);
        let width_bits = self.shift(self.bottom_rung) as i32;
        let wanted_bits = width_bits + IDEAL_BITS - per_bottom.max(1).ilog2() as i32;
        if GOOD.contains(&per_bottom)
            || wanted_bits < 0
            || self.popped_since_cut < 4 * self.len as u64
        {
            return;
        }
        self.popped_since_cut = 0;
        let cut = (DIGIT_BITS - wanted_bits as u32 % DIGIT_BITS) % DIGIT_BITS;
        if cut == self.cut {
            return;
        }
        let mut buckets = Vec::new();
        for rung in &mut self.rungs {
            while rung.words != 0 {
                buckets.push(rung.take(rung.first()));
            }
        }
        self.cut = cut;
        self.occupied = 0;
        self.bottom_rung = 0;
        self.bottom_last = self.base;
        // Entries of one time are in one bucket, so they stay in order.
        for bucket in buckets {
            self.move_each(bucket, |ladder, entry| {
                if entry.time > ladder.bottom_last {
                    ladder.put(ladder.rung_of(entry.time), entry);
                } else {
                    ladder.bottom.push(entry);
                }
            });
        }
    }

    fn sort_into_bottom(&mut self, bucket: Bucket) {
        let mut left = bucket.len as usize;
        let mut chunk = bucket.head;
        while left > 0 {
            let in_chunk = left.min(CHUNK);
            let start = chunk as usize * CHUNK;
            self.bottom.extend_from_slice(&self.pool.entries[start..start + in_chunk]);
            left -= in_chunk;
            chunk = self.pool.free_after(chunk);
        }
        if self.bottom.len() > 1 {
            self.bottom.sort_unstable_by_key(Entry::key);
        }
    }

    fn spread(&mut self, bucket: Bucket, rung: usize) {
        self.move_each(bucket, |ladder, entry| ladder.put(rung, entry));
    }

    #[inline]
    fn move_each(&mut self, bucket: Bucket, mut to: impl FnMut(&mut Self, Entry<E>)) {
        let mut left = bucket.len as usize;
        let mut chunk = bucket.head;
        while left > 0 {
            let in_chunk = left.min(CHUNK);
            let start = chunk as usize * CHUNK;
            for slot in start..start + in_chunk {
                let entry = self.pool.entries[slot];
                to(self, entry);
            }
            left -= in_chunk;
            chunk = self.pool.free_after(chunk);
        }
    }

    /// Inserts an entry into the bottom.
    fn insert(&mut self, entry: Entry<E>, now: u64) {
        let key = entry.key();
        let tail = &self.bottom[self.bottom_head..];
        let before = tail.partition_point(|other| other.key() < key);
        let (head, at) = (self.bottom_head, self.bottom_head + before);
        if head > 0 && before < tail.len() - before {
            self.bottom.copy_within(head..at, head - 1);
            self.bottom[at - 1] = entry;
            self.bottom_head -= 1;
        } else {
            self.bottom.insert(at, entry);
        }
        if self.bottom_rung > 0 && self.bottom.len() - self.bottom_head > BOTTOM_MAX {
            self.narrow(now);
        }
    }

    /// Gives the later part of the bottom back to the rungs below it, until it is small.
    fn narrow(&mut self, now: u64) {
        self.bottom.drain(..self.bottom_head);
        self.bottom_head = 0;
        self.base = self.base.max(now);
        while self.bottom_rung > 0 && self.bottom.len() > BOTTOM_MAX {
            self.bottom_rung -= 1;
            self.bottom_last = self.base | ((1 << self.shift(self.bottom_rung)) - 1);
            let last = self.bottom_last;
            let keep = self.bottom.partition_point(|entry| entry.time <= last);
            for index in keep..self.bottom.len() {
                let entry = self.bottom[index];
                self.put(self.bottom_rung, entry);
            }
            self.bottom.truncate(keep);
        }
    }
}

/// Buckets of one width.
#[derive(Clone)]
struct Rung {
    buckets: Box<[Bucket]>,
    /// Bit b of word w: bucket 64·w + b has an entry.
    bits: [u64; BUCKETS / 64],
    /// Bit w: word w of `bits` is not zero.
    words: u32,
}

impl Rung {
    fn new() -> Rung {
        Rung {
            buckets: vec![Bucket::EMPTY; BUCKETS].into_boxed_slice(),
            bits: [0; BUCKETS / 64],
            words: 0,
        }
    }

    /// Returns the first bucket that has an entry; there must be one.
    #[inline]
    fn first(&self) -> usize {
        let word = self.words.trailing_zeros() as usize;
        word * 64 + self.bits[word].trailing_zeros() as usize
    }

    #[inline]
    fn mark(&mut self, bucket: usize) {
        self.bits[bucket / 64] |= 1 << (bucket % 64);
        self.words |= 1 << (bucket / 64);
    }

    /// Removes a bucket's entries.
    #[inline]
    fn take(&mut self, bucket: usize) -> Bucket {
        self.bits[bucket / 64] &= !(1 << (bucket % 64));
        if self.bits[bucket / 64] == 0 {
            self.words &= !(1 << (bucket / 64));
        }
        std::mem::replace(&mut self.buckets[bucket], Bucket::EMPTY)
    }
}

/// A list of chunks in order of scheduling; all but the last are full.
#[derive(Clone, Copy)]
struct Bucket {
    /// The first chunk, if `len` is not zero.
    head: u32,
    /// The slot after the last entry, if the last chunk has room.
    tail: u32,
    len: u32,
}

impl Bucket {
    const EMPTY: Bucket = Bucket { head: NONE, tail: 0, len: 0 };
}

/// The memory of all buckets, in chunks.
#[derive(Clone)]
struct Pool<E> {
    entries: Vec<Entry<E>>,
    /// The chunk after each chunk, of a bucket or of the free list.
    next: Vec<u32>,
    free: u32,
}

impl<E: Copy> Pool<E> {
    fn new() -> Pool<E> {
        Pool { entries: Vec::new(), next: Vec::new(), free: NONE }
    }

    /// Returns a chunk whose first entry is `first`.
    fn take(&mut self, first: Entry<E>) -> u32 {
        let chunk = self.free;
        if chunk == NONE {
            let chunk = self.next.len() as u32;
            assert!(chunk < NONE / CHUNK as u32, "more than 2^32 events pending");
            self.entries.resize(self.entries.len() + CHUNK, first);
            self.next.push(NONE);
            return chunk;
        }
        self.free = self.next[chunk as usize];
        self.entries[chunk as usize * CHUNK] = first;
        chunk
    }

    /// Frees a chunk and returns the one after it.
    fn free_after(&mut self, chunk: u32) -> u32 {
        let next = self.next[chunk as usize];
        self.next[chunk as usize] = self.free;
        self.free = chunk;
        next
    }
}
