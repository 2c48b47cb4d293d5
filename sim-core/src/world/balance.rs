//! How evenly endpoints were chosen.
//!
//! Nodes that have the same version of a service port choose among the same endpoints, so their
//! choices together are a sample, whatever each node does by itself. Pearson's statistics of all
//! versions add up, and so do their degrees of freedom.

use std::collections::BTreeMap;

use crate::ids::{PodId, ServicePortId};
use crate::record::Balance;

/// Fewer choices than this for each endpoint say nothing: the usual bound of Pearson's test.
const LEAST_EXPECTED: u64 = 5;

/// The choices of a run.
#[derive(Debug, Default)]
pub(super) struct Choices {
    versions: BTreeMap<(ServicePortId, u32), Sample>,
    /// What versions that nobody has any more came to.
    past: Option<Balance>,
}

#[derive(Debug, Default)]
struct Sample {
    endpoints: u64,
    total: u64,
    of: BTreeMap<PodId, u64>,
}

impl Choices {
    /// Counts a choice of `endpoint` among so many, by a version.
    pub(super) fn add(&mut self, version: (ServicePortId, u32), endpoints: usize, endpoint: PodId) {
        let sample = self.versions.entry(version).or_default();
        sample.endpoints = endpoints as u64;
        sample.total += 1;
        *sample.of.entry(endpoint).or_default() += 1;
    }

    /// Notes that no node has a version of the service port before number `first`.
    pub(super) fn forget_before(&mut self, port: ServicePortId, first: u32) {
        while let Some((&version, sample)) = self.versions.range((port, 0)..(port, first)).next() {
            self.past = together(self.past, sample.balance());
            self.versions.remove(&version);
        }
    }

    /// Returns what all choices come to; `None` if there was nothing to choose, or too seldom.
    pub(super) fn balance(&self) -> Option<Balance> {
        self.versions.values().map(Sample::balance).fold(self.past, together)
    }
}

fn together(a: Option<Balance>, b: Option<Balance>) -> Option<Balance> {
    match (a, b) {
        (Some(a), Some(b)) => {
            Some(Balance { chi2: a.chi2 + b.chi2, freedom: a.freedom + b.freedom })
        }
        (one, other) => one.or(other),
    }
}

impl Sample {
    fn balance(&self) -> Option<Balance> {
        if self.endpoints < 2 || self.total < LEAST_EXPECTED * self.endpoints {
            return None;
        }
        let expected = self.total as f64 / self.endpoints as f64;
        let of = |count: u64| (count as f64 - expected) * (count as f64 - expected) / expected;
        let never = self.endpoints.saturating_sub(self.of.len() as u64) as f64;
        let chi2 = self.of.values().map(|&count| of(count)).sum::<f64>() + never * expected;
        Some(Balance { chi2, freedom: self.endpoints - 1 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::Id;

    fn pod(index: usize) -> PodId {
        PodId::from_index(index)
    }

    #[test]
    fn versions_add_up() {
        let port = ServicePortId::from_index(0);
        let mut choices = Choices::default();
        assert_eq!(choices.balance(), None);
        // 12, 8 and 10 of 30: (4 + 4 + 0) / 10.
        for (index, count) in [12, 8, 10].into_iter().enumerate() {
            (0..count).for_each(|_| choices.add((port, 0), 3, pod(index)));
        }
        assert_eq!(choices.balance(), Some(Balance { chi2: 0.8, freedom: 2 }));
        // All of 10 to one of two: 25 / 5 twice.
        (0..10).for_each(|_| choices.add((port, 1), 2, pod(0)));
        let both = Some(Balance { chi2: 10.8, freedom: 3 });
        assert_eq!(choices.balance(), both);
        choices.forget_before(port, 1);
        assert_eq!((choices.balance(), choices.versions.len()), (both, 1));
        // Too few, and nothing to choose.
        (0..9).for_each(|_| choices.add((port, 2), 2, pod(0)));
        (0..90).for_each(|_| choices.add((port, 3), 1, pod(0)));
        assert_eq!(choices.balance(), both);
    }
}
