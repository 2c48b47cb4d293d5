//! The event queue.
//!
//! Behind one contract are two structures. Timers that are named, moved and cleared live in a
//! `priority-queue`, one entry per entity and purpose. Everything that is only ever fired lives in
//! a ladder of buckets, which does not slow down with the number of events pending. Both draw from
//! one sequence, so nobody can tell from the order of events which structure they were in.

use std::cmp::Ordering;
use std::fmt;
use std::hash::{BuildHasherDefault, Hasher};
use std::time::Duration;

use priority_queue::PriorityQueue;

use crate::engine::ladder::{Entry, Ladder};
use crate::time::SimTime;

/// The events that are to happen, and the clock that they move.
///
/// Events leave in order of time, then of scheduling. Time never goes back. The order of
/// simultaneous events of different entities carries no meaning; a test shuffles it.
///
/// The contract is asserted on every push and on every pop. Setting a timer again is scheduling it
/// anew: it goes behind what is already scheduled for that time.
///
/// ```
/// use std::time::Duration;
/// use sim_core::engine::{EventQueue, TimerId};
/// use sim_core::time::SimTime;
///
/// let mut queue = EventQueue::new();
/// let timeout = TimerId::new(1, 7);
/// queue.set_timer(timeout, SimTime::from_nanos(500), "timed out");
/// queue.after(Duration::from_nanos(200), "response");
/// assert_eq!(queue.pop(), Some((SimTime::from_nanos(200), "response")));
/// assert!(queue.clear_timer(timeout));
/// assert_eq!(queue.pop(), None);
/// ```
#[derive(Clone)]
pub struct EventQueue<E> {
    now: SimTime,
    /// What was popped last: time and sequence.
    last: u128,
    /// How many events were scheduled so far.
    scheduled: u64,
    /// Seeds the order of simultaneous events, in tests.
    shuffle: Option<u64>,
    fired: Ladder<E>,
    timers: PriorityQueue<TimerId, Due<E>, BuildHasherDefault<TimerHasher>>,
    /// The key of the first timer; the greatest number if there is none.
    first_timer: u128,
}

/// The part of the queue that a component sees: it schedules its own events, and pops none.
pub trait Schedule<E> {
    /// Returns the time of the event that is being handled.
    fn now(&self) -> SimTime;

    /// Schedules `event` for `delay` from now.
    fn after(&mut self, delay: Duration, event: E);

    /// Schedules `event` for `time`.
    ///
    /// # Panics
    ///
    /// If `time` has passed.
    fn at(&mut self, time: SimTime, event: E);

    /// Schedules `event` for `at`, in the place of what that timer was set to before.
    ///
    /// # Panics
    ///
    /// If `at` has passed.
    fn set_timer(&mut self, timer: TimerId, at: SimTime, event: E);

    /// Cancels a timer and returns whether it was set.
    fn clear_timer(&mut self, timer: TimerId) -> bool;
}

/// The name of a timer: what it is for, and whose it is.
///
/// The tags are the caller's; a constant per purpose, and the entity's id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TimerId(u64);

impl TimerId {
    /// Returns the name of the timer of `entity` for `purpose`.
    pub const fn new(purpose: u16, entity: u32) -> TimerId {
        TimerId((purpose as u64) << 32 | entity as u64)
    }

    /// Returns what the timer is for.
    pub const fn purpose(self) -> u16 {
        (self.0 >> 32) as u16
    }

    /// Returns whose timer it is.
    pub const fn entity(self) -> u32 {
        self.0 as u32
    }
}

impl<E: Copy> EventQueue<E> {
    /// Returns an empty queue at the start of time.
    pub fn new() -> EventQueue<E> {
        EventQueue {
            now: SimTime::ZERO,
            last: 0,
            // The first key is above `last`, so that the order can be asserted strictly.
            scheduled: 1,
            shuffle: None,
            fired: Ladder::new(),
            timers: PriorityQueue::with_default_hasher(),
            first_timer: u128::MAX,
        }
    }

    /// Returns an empty queue in which simultaneous events leave in an order drawn from `seed`.
    ///
    /// For the test that results do not depend on that order. An event that is scheduled for the
    /// very instant of the one being handled still comes after it.
    pub fn with_shuffled_ties(seed: u64) -> EventQueue<E> {
        EventQueue { shuffle: Some(seed), ..EventQueue::new() }
    }

    /// Returns the time of the last event popped, or what [`EventQueue::pop_until`] moved it to.
    #[inline]
    pub fn now(&self) -> SimTime {
        self.now
    }

    /// Returns how many events are scheduled, timers included.
    pub fn len(&self) -> usize {
        self.fired.len() + self.timers.len()
    }

    /// Returns whether nothing is scheduled.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Schedules `event` for `delay` from now.
    #[inline]
    pub fn after(&mut self, delay: Duration, event: E) {
        self.at(self.now + delay, event);
    }

    /// Schedules `event` for `time`.
    ///
    /// # Panics
    ///
    /// If `time` has passed.
    #[inline]
    pub fn at(&mut self, time: SimTime, event: E) {
        let entry = Entry { time: time.as_nanos(), seq: self.next_seq(time), event };
        self.fired.push(entry, self.now.as_nanos());
    }

    /// Schedules `event` for `at`, in the place of what that timer was set to before.
    ///
    /// # Panics
    ///
    /// If `at` has passed.
    pub fn set_timer(&mut self, timer: TimerId, at: SimTime, event: E) {
        let seq = self.next_seq(at);
        let key = u128::from(at.as_nanos()) << 64 | u128::from(seq);
        self.timers.push(timer, Due { key, event });
        self.find_first_timer();
    }

    /// Cancels a timer and returns whether it was set.
    pub fn clear_timer(&mut self, timer: TimerId) -> bool {
        let was_set = self.timers.remove(&timer).is_some();
        self.find_first_timer();
        was_set
    }

    /// Removes the next event, moves the clock to it, and returns both.
    #[inline]
    pub fn pop(&mut self) -> Option<(SimTime, E)> {
        self.next_until(u64::MAX)
    }

    /// Removes the next event if it is at `limit` or before, as [`EventQueue::pop`] does. If there
    /// is none, moves the clock to `limit`.
    ///
    /// # Panics
    ///
    /// If `limit` has passed.
    #[inline]
    pub fn pop_until(&mut self, limit: SimTime) -> Option<(SimTime, E)> {
        let next = self.next_until(limit.as_nanos());
        if next.is_none() {
            assert!(limit >= self.now, "{limit} is before {}", self.now);
            self.now = limit;
        }
        next
    }

    /// Returns the time of the next event.
    ///
    /// It may have to look at many events: a loop that stops at some time should use
    /// [`EventQueue::pop_until`].
    pub fn peek_time(&self) -> Option<SimTime> {
        let timer = self.timers.peek().map(|(_, due)| due.time());
        let fired = self.fired.peek_time();
        fired.into_iter().chain(timer).min().map(SimTime::from_nanos)
    }

    #[inline]
    fn next_until(&mut self, limit: u64) -> Option<(SimTime, E)> {
        let first_timer = self.first_timer;
        let fired = self.fired.first_key(limit.min((first_timer >> 64) as u64));
        let key = fired.min(first_timer);
        if key == u128::MAX || (key >> 64) as u64 > limit {
            return None;
        }
        let event = if fired < first_timer { self.fired.pop().event } else { self.pop_timer() };
        self.check_order(key);
        self.last = key;
        self.now = SimTime::from_nanos((key >> 64) as u64);
        Some((self.now, event))
    }

    #[cold]
    fn pop_timer(&mut self) -> E {
        let (_, due) = self.timers.pop().expect("a timer is due");
        self.find_first_timer();
        due.event
    }

    #[inline]
    fn find_first_timer(&mut self) {
        self.first_timer = self.timers.peek().map_or(u128::MAX, |(_, due)| due.key);
    }

    /// Returns the place of an event at `time` among simultaneous ones.
    #[inline]
    fn next_seq(&mut self, time: SimTime) -> u64 {
        assert!(
            time >= self.now,
            "an event is scheduled for {time}, but it is {} already",
            self.now
        );
        let seq = self.scheduled;
        self.scheduled += 1;
        match self.shuffle {
            None => seq,
            Some(seed) => scramble(seq ^ seed),
        }
    }

    #[inline]
    fn check_order(&self, key: u128) {
        let in_order = match self.shuffle {
            None => key > self.last,
            Some(_) => key >> 64 >= self.last >> 64,
        };
        assert!(
            in_order && (key >> 64) as u64 >= self.now.as_nanos(),
            "event {:?} leaves after {:?} at {}",
            split(key),
            split(self.last),
            self.now
        );
    }
}

impl<E: Copy> Default for EventQueue<E> {
    fn default() -> Self {
        EventQueue::new()
    }
}

impl<E> fmt::Debug for EventQueue<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EventQueue")
            .field("now", &self.now)
            .field("scheduled", &self.scheduled)
            .finish_non_exhaustive()
    }
}

impl<R: From<E> + Copy, E> Schedule<E> for EventQueue<R> {
    #[inline]
    fn now(&self) -> SimTime {
        self.now()
    }

    #[inline]
    fn after(&mut self, delay: Duration, event: E) {
        self.after(delay, R::from(event));
    }

    #[inline]
    fn at(&mut self, time: SimTime, event: E) {
        self.at(time, R::from(event));
    }

    fn set_timer(&mut self, timer: TimerId, at: SimTime, event: E) {
        self.set_timer(timer, at, R::from(event));
    }

    fn clear_timer(&mut self, timer: TimerId) -> bool {
        self.clear_timer(timer)
    }
}

/// When a timer fires, and what with. Greater is sooner.
#[derive(Clone, Copy)]
struct Due<E> {
    key: u128,
    event: E,
}

impl<E> Due<E> {
    fn time(&self) -> u64 {
        (self.key >> 64) as u64
    }
}

impl<E> Ord for Due<E> {
    fn cmp(&self, other: &Self) -> Ordering {
        other.key.cmp(&self.key)
    }
}

impl<E> PartialOrd for Due<E> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<E> PartialEq for Due<E> {
    fn eq(&self, other: &Self) -> bool {
        self.key == other.key
    }
}

impl<E> Eq for Due<E> {}

/// Hashes a timer's name: always the same way, so that runs are alike in every respect.
#[derive(Clone, Copy, Default)]
struct TimerHasher(u64);

impl Hasher for TimerHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u64(u64::from(byte));
        }
    }

    fn write_u64(&mut self, word: u64) {
        self.0 = scramble(self.0 ^ word);
    }
}

/// A permutation of the 64-bit numbers in which every output bit depends on every input bit.
fn scramble(word: u64) -> u64 {
    // The finaliser of SplitMix64 (Steele, Lea and Flood 2014).
    let word = word.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let word = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ word >> 31
}

fn split(key: u128) -> (SimTime, u64) {
    (SimTime::from_nanos((key >> 64) as u64), key as u64)
}

#[cfg(test)]
mod tests;
