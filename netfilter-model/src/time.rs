//! Simulated time: nanoseconds since the start of a run.

use std::fmt;
use std::ops::{Add, Sub};
use std::time::Duration;

/// Ticks of the kernel's clock in a second.
// Kernel: CONFIG_HZ, 250 in most distributions
// Simplified: ticks begin with the run, so that what the kernel counts in ticks is up to 4 ms off.
pub(crate) const HZ: u64 = 250;

/// A point in simulated time, in nanoseconds since the start of the run.
///
/// Only `SimTime + Duration` and `SimTime - SimTime` exist; time is never a float inside the
/// model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SimTime(u64);

impl SimTime {
    /// The start of the run.
    pub const ZERO: SimTime = SimTime(0);
    /// The last point that can be expressed, about 584 years in; used as "never".
    pub const MAX: SimTime = SimTime(u64::MAX);

    /// Returns the point `nanos` nanoseconds after the start.
    pub const fn from_nanos(nanos: u64) -> SimTime {
        SimTime(nanos)
    }

    /// Returns the nanoseconds since the start.
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// Returns the seconds since the start, for reports only.
    pub fn as_secs_f64(self) -> f64 {
        self.0 as f64 / 1e9
    }

    /// Returns the ticks of the kernel's clock since the start.
    pub(crate) const fn jiffies(self) -> u64 {
        self.0 / (1_000_000_000 / HZ)
    }

    /// Returns the span since `earlier`, or zero if `earlier` is later.
    pub const fn saturating_since(self, earlier: SimTime) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Duration> for SimTime {
    type Output = SimTime;

    /// # Panics
    ///
    /// On overflow: a bug in the model.
    fn add(self, span: Duration) -> SimTime {
        let nanos = u64::try_from(span.as_nanos()).expect("span longer than 584 years");
        SimTime(self.0.checked_add(nanos).unwrap_or_else(|| panic!("{self} + {span:?} overflows")))
    }
}

impl Sub for SimTime {
    type Output = Duration;

    /// # Panics
    ///
    /// If `earlier` is later than `self`: a bug in the model.
    fn sub(self, earlier: SimTime) -> Duration {
        let nanos = self.0.checked_sub(earlier.0);
        Duration::from_nanos(nanos.unwrap_or_else(|| panic!("{self} - {earlier} goes back")))
    }
}

impl fmt::Display for SimTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:09}s", self.0 / 1_000_000_000, self.0 % 1_000_000_000)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prints_all_nanoseconds() {
        assert_eq!(SimTime::from_nanos(1_500_000_001).to_string(), "1.500000001s");
    }

    #[test]
    #[should_panic(expected = "goes back")]
    fn going_back_panics() {
        let _ = SimTime::ZERO - SimTime::from_nanos(1);
    }
}
