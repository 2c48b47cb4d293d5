//! How changes reach nodes: version lists that all nodes share, and each node's place in them.
//!
//! A Service has one [`History`]. A change appends a version; on a node it goes live after a lag
//! and never before an earlier change of the same Service. A node's rules at a time are the
//! newest version that is live there, so nothing is stored or scheduled per node but that time.

use std::collections::VecDeque;
use std::time::Duration;

use crate::config::{Law, Propagation};
use crate::engine::rng::Stream;
use crate::ids::{Id, NodeId};
use crate::time::SimTime;

/// The versions of one Service.
#[derive(Debug)]
pub struct History<T> {
    /// The ordinal of the first version that is kept.
    first: u32,
    versions: VecDeque<Version<T>>,
}

/// One version of a Service.
#[derive(Debug)]
pub struct Version<T> {
    /// Its number: 0 is what the run began with.
    pub ordinal: u32,
    /// When it was committed.
    pub commit: SimTime,
    /// What it says.
    pub content: T,
    /// When it went live, by node; empty for the version that the run began with.
    live: Vec<SimTime>,
    /// When the first node had it.
    pub first_live: SimTime,
    /// When the last node had it.
    pub last_live: SimTime,
}

impl<T> Version<T> {
    /// Returns when this version went live on `node`.
    pub fn live(&self, node: NodeId) -> SimTime {
        self.live.get(node.index()).copied().unwrap_or(SimTime::ZERO)
    }
}

impl<T> History<T> {
    /// Returns a history in which every node has `content` from the start.
    pub fn new(content: T) -> History<T> {
        let version = Version {
            ordinal: 0,
            commit: SimTime::ZERO,
            content,
            live: Vec::new(),
            first_live: SimTime::ZERO,
            last_live: SimTime::ZERO,
        };
        History { first: 0, versions: VecDeque::from([version]) }
    }

    /// Appends a version committed at `now` that goes live on node i after `lags[i]`, and
    /// returns it.
    pub fn commit(
        &mut self,
        now: SimTime,
        content: T,
        lags: impl Iterator<Item = Duration>,
    ) -> &Version<T> {
        let previous = self.newest();
        let live: Vec<SimTime> = lags
            .enumerate()
            .map(|(node, lag)| (now + lag).max(previous.live(NodeId::from_index(node))))
            .collect();
        let version = Version {
            ordinal: previous.ordinal + 1,
            commit: now,
            content,
            first_live: live.iter().copied().min().unwrap_or(now),
            last_live: live.iter().copied().max().unwrap_or(now),
            live,
        };
        self.versions.push_back(version);
        self.newest()
    }

    /// Returns the newest version, live or not.
    pub fn newest(&self) -> &Version<T> {
        self.versions.back().expect("a history is never empty")
    }

    /// Returns the version that is live on `node` at `now`.
    ///
    /// The cost is the number of newer versions that are still under way to the node.
    #[inline]
    pub fn at(&self, node: NodeId, now: SimTime) -> &Version<T> {
        let live = self.versions.iter().rev().find(|version| version.live(node) <= now);
        live.expect("versions are forgotten only once a newer one is live everywhere")
    }

    /// Returns the version number `ordinal`, if it is still kept.
    pub fn get(&self, ordinal: u32) -> Option<&Version<T>> {
        self.versions.get(ordinal.checked_sub(self.first)? as usize)
    }

    /// Returns the versions that are kept, in order.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = &Version<T>> {
        self.versions.iter()
    }

    /// Forgets versions that no node has had since `time`.
    pub fn forget_before(&mut self, time: SimTime) {
        while self.versions.get(1).is_some_and(|next| next.last_live <= time) {
            self.versions.pop_front();
            self.first += 1;
        }
    }
}

/// Draws lags.
#[derive(Debug)]
pub struct Lags {
    law: Law,
    /// Laws of single nodes, sorted by node.
    exceptions: Vec<(u32, Law)>,
    /// What stands for each node's name in a position.
    keys: Vec<u64>,
}

impl Lags {
    /// Returns what draws the lags of `nodes` nodes whose names hash to `keys`.
    pub fn new(propagation: &Propagation, keys: Vec<u64>) -> Lags {
        let Propagation::Delay { law, nodes } = propagation;
        let exceptions = nodes.iter().map(|(&node, law)| (node, law.clone())).collect();
        Lags { law: law.clone(), exceptions, keys }
    }

    /// Returns what stands for a node's name in a position.
    pub fn key(&self, node: NodeId) -> u64 {
        self.keys[node.index()]
    }

    /// Returns how many nodes there are.
    pub fn len(&self) -> usize {
        self.keys.len()
    }

    /// Returns whether there is no node.
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// Returns the lag of each node for change number `change` of the Service whose lags come
    /// from `stream`.
    pub fn of<'a>(
        &'a self,
        stream: &'a Stream,
        change: u32,
    ) -> impl Iterator<Item = Duration> + 'a {
        self.keys
            .iter()
            .enumerate()
            .map(move |(node, &key)| self.law(node as u32).sample(stream.draw(key, change, 0, 0)))
    }

    fn law(&self, node: u32) -> &Law {
        match self.exceptions.binary_search_by_key(&node, |exception| exception.0) {
            Ok(index) => &self.exceptions[index].1,
            Err(_) => &self.law,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NODE: NodeId = NodeId::FIRST;

    fn at(nanos: u64) -> SimTime {
        SimTime::from_nanos(nanos)
    }

    #[test]
    fn a_change_never_overtakes_an_earlier_one() {
        let mut history = History::new("zero");
        history.commit(at(10), "one", [Duration::from_nanos(100)].into_iter());
        history.commit(at(20), "two", [Duration::from_nanos(5)].into_iter());
        assert_eq!(history.at(NODE, at(109)).content, "zero");
        assert_eq!(history.at(NODE, at(110)).content, "two", "both go live at 110");
    }

    #[test]
    fn a_rule_that_goes_live_at_t_applies_at_t() {
        let mut history = History::new(0);
        history.commit(at(10), 1, [Duration::ZERO].into_iter());
        assert_eq!(history.at(NODE, at(9)).content, 0);
        assert_eq!(history.at(NODE, at(10)).content, 1);
    }

    #[test]
    fn only_what_no_node_has_is_forgotten() {
        let mut history = History::new(0);
        for change in 1..4 {
            let lag = Duration::from_nanos(change * 10);
            history.commit(at(change * 100), change, [lag].into_iter());
        }
        history.forget_before(at(219));
        assert_eq!(history.iter().map(|version| version.content).collect::<Vec<_>>(), [1, 2, 3]);
        history.forget_before(at(220));
        assert_eq!(history.at(NODE, at(220)).ordinal, 2);
        assert!(history.get(1).is_none());
        assert_eq!(history.get(3).unwrap().content, 3);
    }
}
