//! The fingerprint of a trajectory: which events happened, when, to whom, in what order.

use crate::time::SimTime;

/// A 64-bit hash of a sequence of events.
///
/// Two runs that differ in one event, or in the order of two, have different fingerprints, but for
/// a chance of about 2⁻⁶⁴. The algorithm is fixed: fingerprints are kept in files.
///
/// ```
/// use sim_core::engine::Fingerprint;
/// use sim_core::time::SimTime;
///
/// let mut fingerprint = Fingerprint::new();
/// fingerprint.add(SimTime::from_nanos(1), 0, 7);
/// fingerprint.add(SimTime::from_nanos(2), 1, 7);
/// assert_eq!(fingerprint.value(), 0xb7a4_c3c9_3571_caf1);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fingerprint {
    state: u64,
    events: u64,
}

/// Odd numbers without structure: the fractional parts of √2 and √3.
const SQRT_2: u64 = 0x6a09_e667_f3bc_c909;
const SQRT_3: u64 = 0xbb67_ae85_84ca_a73b;

impl Fingerprint {
    /// Returns the fingerprint of nothing having happened.
    pub const fn new() -> Fingerprint {
        Fingerprint { state: 0, events: 0 }
    }

    /// Appends an event: its time, the index of its kind, and the entity that it concerns.
    #[inline]
    pub fn add(&mut self, time: SimTime, kind: u16, entity: u64) {
        // The entity is spread before the kind is added to it, lest (kind, entity) pairs coincide.
        let what = entity.wrapping_mul(SQRT_2).rotate_left(32) ^ u64::from(kind);
        self.state = fold(self.state ^ time.as_nanos() ^ SQRT_2, what ^ SQRT_3)
            .wrapping_add(self.state.rotate_left(23));
        self.events += 1;
    }

    /// Returns the hash of all events so far.
    pub fn value(&self) -> u64 {
        fold(self.state ^ SQRT_3, self.events ^ SQRT_2)
    }
}

impl Default for Fingerprint {
    fn default() -> Self {
        Fingerprint::new()
    }
}

/// Multiplies to 128 bits and folds the halves.
#[inline]
fn fold(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    product as u64 ^ (product >> 64) as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    fn of(events: &[(u64, u16, u64)]) -> u64 {
        let mut fingerprint = Fingerprint::new();
        for &(time, kind, entity) in events {
            fingerprint.add(SimTime::from_nanos(time), kind, entity);
        }
        fingerprint.value()
    }

    #[test]
    fn golden() {
        assert_eq!(of(&[]), 0xf901_09d2_335f_6b4f);
        assert_eq!(of(&[(0, 0, 0)]), 0x64d1_850b_ff9d_7127);
        let many: Vec<_> = (0..1000).map(|i| (i * i, (i % 7) as u16, i / 3)).collect();
        assert_eq!(of(&many), 0x167c_8fb6_e694_ba48);
    }

    #[test]
    fn every_field_and_the_order_count() {
        let base = [(5, 1, 2), (5, 2, 1), (9, 0, 0)];
        let others = [
            vec![(5, 2, 1), (5, 1, 2), (9, 0, 0)],
            vec![(5, 1, 2), (5, 2, 1), (9, 0, 1)],
            vec![(5, 1, 2), (5, 2, 1), (9, 1, 0)],
            vec![(5, 1, 2), (5, 2, 1), (8, 0, 0)],
            vec![(5, 1, 2), (5, 2, 1)],
            vec![(5, 1, 2), (5, 2, 1), (9, 0, 0), (0, 0, 0)],
        ];
        for other in others {
            assert_ne!(of(&base), of(&other), "{other:?}");
        }
    }

    #[test]
    fn small_events_do_not_collide() {
        let mut seen = BTreeSet::new();
        for time in 0..32 {
            for kind in 0..32 {
                for entity in 0..32 {
                    assert!(seen.insert(of(&[(time, kind, entity)])));
                    seen.insert(of(&[(time, kind, entity), (time, kind, entity)]));
                }
            }
        }
        assert_eq!(seen.len(), 2 * 32 * 32 * 32);
    }
}
