//! The lock that iptables-legacy takes for its tables, and another program that holds it.

use std::time::Duration;

use crate::time::SimTime;

/// A program that takes the xtables lock again and again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Contender {
    /// From one of its takes to the next.
    pub every: Duration,
    /// How long it holds the lock.
    pub holds: Duration,
    /// When it first takes it.
    pub phase: Duration,
}

/// How long kube-proxy waits for the lock: `iptables-restore -w 5`.
pub const WAIT: Duration = Duration::from_secs(5);

/// What came of waiting for the lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// It was there, or became free, at this time.
    Acquired(SimTime),
    /// The wait was given up at this time.
    GivenUp(SimTime),
}

/// The lock of one node.
#[derive(Clone, Debug, Default)]
pub struct Lock {
    contender: Option<Contender>,
    /// When the proxy last let go of it: the contender may have waited for that.
    released: SimTime,
    /// Of the contender's takes, the first that has not been waited for.
    next: u64,
    /// Until when the contender holds it, as far as it has taken it.
    held_until: SimTime,
}

impl Lock {
    /// Returns a lock that only `contender` takes besides the proxy.
    pub fn new(contender: Option<Contender>) -> Lock {
        Lock { contender, ..Lock::default() }
    }

    /// Waits for the lock from `at` on, no longer than [`WAIT`].
    ///
    /// The contender waits without end, and who waits is served in order of coming: the
    /// contender's next take waits while the proxy holds the lock, and the proxy gives up after
    /// five seconds where the contender never does.
    // Simplified: who waits for the xtables lock gets it in order of coming; flock(2) promises none.
    pub fn acquire(&mut self, at: SimTime) -> Wait {
        let Some(contender) = self.contender else {
            return Wait::Acquired(at);
        };
        // The contender's takes up to now, each once the lock was free.
        while let Some(take) = contender.take(self.next)
            && take <= at
        {
            let from = take.max(self.held_until).max(self.released);
            self.held_until = from + contender.holds;
            self.next += 1;
        }
        let free = self.held_until.max(at);
        if free < at + WAIT || free == at { Wait::Acquired(free) } else { Wait::GivenUp(at + WAIT) }
    }

    /// Notes that the proxy lets go of the lock at `at`.
    pub fn release(&mut self, at: SimTime) {
        self.released = at;
    }
}

impl Contender {
    fn take(&self, index: u64) -> Option<SimTime> {
        let after = self.every.checked_mul(u32::try_from(index).ok()?)?.checked_add(self.phase)?;
        u64::try_from(after.as_nanos()).ok().map(SimTime::from_nanos)
    }

    /// Returns the share of time that contender and proxy together ask of the lock when the proxy
    /// holds it for `holds` in every `period`. Above one, waits grow without bound.
    pub fn load(&self, holds: Duration, period: Duration) -> f64 {
        self.holds.as_secs_f64() / self.every.as_secs_f64()
            + holds.as_secs_f64() / period.as_secs_f64()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> SimTime {
        SimTime::from_nanos(millis * 1_000_000)
    }

    fn contender(every_s: u64, holds_s: u64) -> Lock {
        let (every, holds) = (Duration::from_secs(every_s), Duration::from_secs(holds_s));
        Lock::new(Some(Contender { every, holds, phase: Duration::from_secs(1) }))
    }

    #[test]
    fn five_seconds_are_waited() {
        let mut lock = contender(20, 8); // held from 1 to 9, 21 to 29, …
        assert_eq!(lock.acquire(at(500)), Wait::Acquired(at(500)));
        lock.release(at(700));
        assert_eq!(lock.acquire(at(3000)), Wait::GivenUp(at(8000)), "six seconds are too many");
        assert_eq!(lock.acquire(at(4000)), Wait::GivenUp(at(9000)), "free just then: too late");
        assert_eq!(lock.acquire(at(4001)), Wait::Acquired(at(9000)));
        lock.release(at(9500));
        assert_eq!(lock.acquire(at(9000)), Wait::Acquired(at(9000)));
        assert_eq!(lock.acquire(at(22_000)), Wait::GivenUp(at(27_000)));
    }

    #[test]
    fn the_contender_waits_as_long_as_it_takes() {
        let mut lock = contender(20, 8);
        assert_eq!(lock.acquire(at(0)), Wait::Acquired(at(0)));
        lock.release(at(15_000)); // a restore of fifteen seconds
        // The contender asked at 1 s and holds it from 15 to 23.
        assert_eq!(lock.acquire(at(16_000)), Wait::GivenUp(at(21_000)));
        // It asked again at 21 s and holds it on, to 31.
        assert_eq!(lock.acquire(at(24_000)), Wait::GivenUp(at(29_000)));
        assert_eq!(lock.acquire(at(27_000)), Wait::Acquired(at(31_000)));
    }

    #[test]
    fn without_a_contender_there_is_no_wait() {
        assert_eq!(Lock::default().acquire(at(7)), Wait::Acquired(at(7)));
    }
}
