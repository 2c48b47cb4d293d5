//! The engine: a queue of events and the loop that runs it, random streams, distributions, and the
//! fingerprint of a trajectory.
//!
//! The engine knows nothing of clusters. An event is a value of the caller's own enum; a handler
//! gets it together with the queue, and schedules what follows from it:
//!
//! ```
//! use std::ops::ControlFlow;
//! use std::time::Duration;
//! use sim_core::config::Limits;
//! use sim_core::engine::{self, EventQueue, Kind};
//!
//! #[derive(Clone, Copy)]
//! enum Event { Tick { left: u32 } }
//!
//! impl Kind for Event {
//!     const KINDS: &'static [&'static str] = &["tick"];
//!     fn kind(&self) -> usize { 0 }
//! }
//!
//! let mut queue = EventQueue::new();
//! queue.after(Duration::ZERO, Event::Tick { left: 9 });
//! let stats = engine::run(&mut queue, &Limits::default(), None, |queue, _, event| {
//!     let Event::Tick { left } = event;
//!     if left > 0 {
//!         queue.after(Duration::from_secs(1), Event::Tick { left: left - 1 });
//!     }
//!     ControlFlow::Continue(())
//! })?;
//! assert_eq!((stats.events, stats.end.as_nanos()), (10, 9_000_000_000));
//! # Ok::<(), engine::LimitError>(())
//! ```

use std::ops::ControlFlow;

use crate::config::Limits;
use crate::time::SimTime;

pub mod distribution;
pub mod fingerprint;
mod ladder;
pub mod queue;
pub mod rng;
mod special;

pub use fingerprint::Fingerprint;
pub use queue::{EventQueue, Schedule, TimerId};
pub use rng::{Seed, Stream};

/// What kinds of events there are, for counting them and for naming them in an error.
pub trait Kind {
    /// The names of the kinds.
    const KINDS: &'static [&'static str];

    /// Returns the index of this event's kind in [`Kind::KINDS`].
    fn kind(&self) -> usize;
}

/// What a run came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stats {
    /// Events handled.
    pub events: u64,
    /// The clock at the end.
    pub end: SimTime,
    /// Why the run ended.
    pub outcome: Outcome,
    /// Events handled of each kind, in the order of [`Kind::KINDS`].
    pub by_kind: Vec<(&'static str, u64)>,
}

/// Why a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// No event was left.
    Drained,
    /// The time that it was to run to was reached.
    Reached,
    /// The handler ended it.
    Stopped,
}

/// A limit was passed: the run would not have ended, or not soon.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LimitError {
    /// Too many events in all.
    #[error(
        "more than {limit} events by {at}: {count} of them {kind}; raise the limit on events or \
         simulate less"
    )]
    Events {
        /// The limit.
        limit: u64,
        /// The clock.
        at: SimTime,
        /// The most frequent kind.
        kind: &'static str,
        /// Its events.
        count: u64,
    },
    /// Too many events without the clock moving: most likely two components that answer each
    /// other at once, for ever.
    #[error(
        "more than {limit} events at the one instant {at}: {count} of the last {sample} are {kind}"
    )]
    OneInstant {
        /// The limit.
        limit: u64,
        /// The clock.
        at: SimTime,
        /// The most frequent kind among the last events.
        kind: &'static str,
        /// Its events among them.
        count: u64,
        /// How many of the last events were looked at.
        sample: u64,
    },
    /// Too long a simulated time.
    #[error(
        "events are left at {at}, the limit on simulated time, after {events} events, {count} of \
         them {kind}"
    )]
    Simulated {
        /// The limit.
        at: SimTime,
        /// Events so far.
        events: u64,
        /// The most frequent kind.
        kind: &'static str,
        /// Its events.
        count: u64,
    },
}

/// Hands events to `handler` in order until none is left, `until` is reached, the handler breaks
/// or a limit is passed.
///
/// Events at `until` are still handled. `limits.simulated` holds only where `until` is not given.
///
/// # Errors
///
/// If a limit is passed, which [`LimitError`] names together with the busiest kind of event.
pub fn run<E, F>(
    queue: &mut EventQueue<E>,
    limits: &Limits,
    until: Option<SimTime>,
    mut handler: F,
) -> Result<Stats, LimitError>
where
    E: Copy + Kind,
    F: FnMut(&mut EventQueue<E>, SimTime, E) -> ControlFlow<()>,
{
    let mut meter = Meter::new(E::KINDS, *limits);
    let last = until.unwrap_or(SimTime::ZERO + limits.simulated);
    let mut outcome = Outcome::Drained;
    while !queue.is_empty() {
        let Some((now, event)) = queue.pop_until(last) else {
            if until.is_none() {
                return Err(meter.simulated(last));
            }
            outcome = Outcome::Reached;
            break;
        };
        meter.count(now, event.kind())?;
        if handler(queue, now, event).is_break() {
            outcome = Outcome::Stopped;
            break;
        }
    }
    Ok(meter.into_stats(queue.now(), outcome))
}

/// Counts events against the limits.
struct Meter {
    kinds: &'static [&'static str],
    limits: Limits,
    events: u64,
    counts: Vec<u64>,
    instant: SimTime,
    /// Events at `instant`.
    at_instant: u64,
    /// The counts when `at_instant` had come half-way to its limit.
    half_way: Vec<u64>,
}

impl Meter {
    fn new(kinds: &'static [&'static str], limits: Limits) -> Meter {
        Meter {
            kinds,
            limits,
            events: 0,
            counts: vec![0; kinds.len()],
            instant: SimTime::ZERO,
            at_instant: 0,
            half_way: Vec::new(),
        }
    }

    #[inline]
    fn count(&mut self, now: SimTime, kind: usize) -> Result<(), LimitError> {
        if now != self.instant {
            self.instant = now;
            self.at_instant = 0;
            self.half_way.clear();
        }
        self.events += 1;
        self.at_instant += 1;
        self.counts[kind] += 1;
        if self.at_instant >= self.limits.events_at_one_instant / 2
            || self.events > self.limits.events
        {
            return self.check();
        }
        Ok(())
    }

    #[cold]
    fn check(&mut self) -> Result<(), LimitError> {
        let limit = self.limits.events_at_one_instant;
        if self.events > self.limits.events {
            let (kind, count) = busiest(self.kinds, &self.counts);
            return Err(LimitError::Events {
                limit: self.limits.events,
                at: self.instant,
                kind,
                count,
            });
        }
        if self.half_way.is_empty() {
            self.half_way.extend_from_slice(&self.counts);
        }
        if self.at_instant > limit {
            let since: Vec<u64> = std::iter::zip(&self.counts, &self.half_way)
                .map(|(now, then)| now - then)
                .collect();
            let (kind, count) = busiest(self.kinds, &since);
            return Err(LimitError::OneInstant {
                limit,
                at: self.instant,
                kind,
                count,
                sample: since.iter().sum(),
            });
        }
        Ok(())
    }

    fn simulated(&self, at: SimTime) -> LimitError {
        let (kind, count) = busiest(self.kinds, &self.counts);
        LimitError::Simulated { at, events: self.events, kind, count }
    }

    fn into_stats(self, end: SimTime, outcome: Outcome) -> Stats {
        Stats {
            events: self.events,
            end,
            outcome,
            by_kind: std::iter::zip(self.kinds.iter().copied(), self.counts).collect(),
        }
    }
}

/// Returns the most frequent kind and its count; of equals the first.
fn busiest(kinds: &[&'static str], counts: &[u64]) -> (&'static str, u64) {
    let mut best = ("nothing", 0);
    for (&kind, &count) in std::iter::zip(kinds, counts) {
        if count > best.1 {
            best = (kind, count);
        }
    }
    best
}

#[cfg(test)]
mod tests;
