//! When a proxy may run: the runner of bounded frequency, as Kubernetes has it before and since
//! 1.34.

use std::time::Duration;

use crate::time::SimTime;

/// A runner: between runs, it knows when the next is due.
///
/// Requests may lie in the future; their order does not matter. A request during a run counts
/// from its end, and any number of them is one.
#[derive(Clone, Debug)]
pub struct Runner {
    kind: Kind,
    bounds: Bounds,
    /// When the last run ended; nothing before the first.
    last_end: Option<SimTime>,
    /// Before this, nothing runs.
    floor: SimTime,
    due: SimTime,
}

/// The times that bound a runner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Least time between runs; zero for no limit.
    pub min: Duration,
    /// Longest time without a run.
    pub max: Duration,
    /// From the end of a run that failed to the next.
    pub retry: Duration,
}

#[derive(Clone, Copy, Debug)]
enum Kind {
    /// A run may start `min` after the end of the last.
    WaitAfterEnd,
    /// A bucket of two tokens, one more every `min`. Without a token, a request waits for `min`
    /// from the end of the last run, or for the first request that finds one.
    TokenBucket {
        /// What the bucket held at `since`, as the time that it took to fill: `min` for each.
        credit: u64,
        since: SimTime,
    },
    /// A buffer that is written out at every tick.
    Ticks { every: Duration, phase: Duration },
}

impl Runner {
    /// Returns a runner of Kubernetes 1.34 and later.
    ///
    /// Kubernetes: pkg/proxy/runner/bounded_frequency_runner.go.
    pub fn waiting_after_end(bounds: Bounds) -> Runner {
        Runner::new(Kind::WaitAfterEnd, bounds)
    }

    /// Returns a runner of Kubernetes up to 1.33, with a burst of two.
    ///
    /// Kubernetes: pkg/util/async/bounded_frequency_runner.go.
    pub fn token_bucket(bounds: Bounds) -> Runner {
        let full = Kind::TokenBucket { credit: 2 * nanos(bounds.min), since: SimTime::ZERO };
        Runner::new(full, bounds)
    }

    /// Returns a runner that runs at `phase`, `phase + every` and so on whenever there is
    /// something to do: how an eBPF agent writes out what it has buffered.
    pub fn ticking(every: Duration, phase: Duration, bounds: Bounds) -> Runner {
        Runner::new(Kind::Ticks { every, phase }, bounds)
    }

    fn new(kind: Kind, bounds: Bounds) -> Runner {
        Runner {
            kind,
            bounds,
            last_end: None,
            floor: SimTime::ZERO,
            due: SimTime::ZERO + bounds.max,
        }
    }

    /// Returns the runner with its next run due at `at`, since it has been running for a while.
    pub fn due_at(mut self, at: SimTime) -> Runner {
        self.due = at;
        self
    }

    /// Returns the longest time without a run.
    pub fn max(&self) -> Duration {
        self.bounds.max
    }

    /// Returns when the next run is due if nothing else asks for one.
    pub fn due(&self) -> SimTime {
        self.due
    }

    /// Notes that a run is asked for at `at`.
    pub fn request(&mut self, at: SimTime) {
        self.due = self.due.min(self.earliest(at));
    }

    /// Returns the runner of a program that starts: nothing has run, and nothing will before
    /// `floor`.
    pub fn from(mut self, floor: SimTime) -> Runner {
        self.floor = floor;
        self.due = floor + self.bounds.max;
        self
    }

    /// Notes a run. What was asked for up to `start` is done, unless it failed; what is asked for
    /// later counts from `end`.
    pub fn ran(&mut self, start: SimTime, end: SimTime, succeeded: bool) {
        if let Kind::TokenBucket { credit, since } = &mut self.kind {
            let min = nanos(self.bounds.min);
            let held = (*credit + (start - *since).as_nanos() as u64).min(2 * min);
            *credit = held.saturating_sub(min);
            *since = start;
        }
        self.last_end = Some(end);
        self.due = end + self.bounds.max;
        if !succeeded {
            // The timer is set for the retry; when it rings, the usual limits hold.
            let retry = end + self.bounds.retry;
            self.due = self.due.min(self.earliest(retry));
        }
    }

    /// Returns the first time at which a run that is asked for at `at` may start.
    fn earliest(&self, at: SimTime) -> SimTime {
        let at = at.max(self.last_end.unwrap_or(self.floor));
        match self.kind {
            Kind::WaitAfterEnd => self.last_end.map_or(at, |end| at.max(end + self.bounds.min)),
            Kind::TokenBucket { credit, since } => {
                let missing = nanos(self.bounds.min).saturating_sub(credit);
                if at >= since + Duration::from_nanos(missing) {
                    return at;
                }
                self.last_end.map_or(at, |end| at.max(end + self.bounds.min))
            }
            Kind::Ticks { every, phase } => {
                let (at, every, phase) = (at.as_nanos(), nanos(every).max(1), nanos(phase));
                let ticks = at.saturating_sub(phase).div_ceil(every);
                SimTime::from_nanos(phase + ticks * every)
            }
        }
    }
}

fn nanos(span: Duration) -> u64 {
    // A period beyond 146 years is as good as one of 146.
    u64::try_from(span.as_nanos()).unwrap_or(u64::MAX).min(u64::MAX / 4)
}

#[cfg(test)]
mod tests;
