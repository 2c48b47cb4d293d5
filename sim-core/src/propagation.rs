//! How changes reach nodes: version lists that all nodes share, and each node's place in them.
//!
//! A Service has one [`History`]. A change appends a version; on a node it goes live after a lag
//! and never before an earlier change of the same Service. A node's rules at a time are the
//! newest version that is live there, so nothing is stored or scheduled per node but that time.
//!
//! Where proxies sync, a version waits on each node from the time at which the node is informed
//! until a sync of that node takes it ([`History::apply`]).

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
    live: Live,
    /// Nodes that do not have it yet, nor a sync under way that will bring it.
    waiting: u32,
    /// When the first node had it.
    pub first_live: SimTime,
    /// When the last node had it.
    pub last_live: SimTime,
}

/// When a version went live on each node.
#[derive(Debug)]
enum Live {
    /// The run began with it.
    Always,
    /// At times drawn when it was committed.
    Drawn(Vec<SimTime>),
    /// At the end of a sync.
    Synced(Vec<Stages>),
}

/// The way of a version to one node where proxies sync; `SimTime::MAX` stands for not yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stages {
    /// When the node's proxy was told.
    pub informed: SimTime,
    /// When the sync started that brought it.
    pub sync_start: SimTime,
    /// When table filter said it; the same as `live` where there is one transaction.
    pub filter: SimTime,
    /// When all said it.
    pub live: SimTime,
}

/// What a sync of one node brings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Applied {
    /// When it started.
    pub start: SimTime,
    /// When table filter was committed, if it was.
    pub filter: Option<SimTime>,
    /// When all was, if it was.
    pub live: Option<SimTime>,
}

impl<T> Version<T> {
    /// Returns when this version went live on `node`.
    #[inline]
    pub fn live(&self, node: NodeId) -> SimTime {
        match &self.live {
            Live::Always => SimTime::ZERO,
            Live::Drawn(live) => live.get(node.index()).copied().unwrap_or(SimTime::ZERO),
            Live::Synced(stages) => stages[node.index()].live,
        }
    }

    /// Returns when table filter of `node` said this version.
    #[inline]
    pub fn filter_live(&self, node: NodeId) -> SimTime {
        match &self.live {
            Live::Synced(stages) => stages[node.index()].filter,
            _ => self.live(node),
        }
    }

    /// Returns the way of this version to `node`, if proxies sync.
    pub fn stages(&self, node: NodeId) -> Option<&Stages> {
        match &self.live {
            Live::Synced(stages) => stages.get(node.index()),
            _ => None,
        }
    }

    /// Returns whether it is live on every node, or a sync is under way that will make it so.
    pub fn is_settled(&self) -> bool {
        self.waiting == 0
    }
}

impl<T> History<T> {
    /// Returns a history in which every node has `content` from the start.
    pub fn new(content: T) -> History<T> {
        let version = Version {
            ordinal: 0,
            commit: SimTime::ZERO,
            content,
            live: Live::Always,
            waiting: 0,
            first_live: SimTime::ZERO,
            last_live: SimTime::ZERO,
        };
        History { first: 0, versions: VecDeque::from([version]) }
    }

    /// Returns the number of the oldest version that any node has.
    pub fn first(&self) -> u32 {
        self.first
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
            live: Live::Drawn(live),
            waiting: 0,
        };
        self.versions.push_back(version);
        self.newest()
    }

    /// Appends a version committed at `now` of which the proxy of node i is told after `lags[i]`,
    /// not before it is told of an earlier version, and returns it. Until syncs bring it, it is
    /// live nowhere.
    // Simplified: a watch keeps the order of one Service's changes, not of all Services' together.
    pub fn announce(
        &mut self,
        now: SimTime,
        content: T,
        lags: impl Iterator<Item = Duration>,
    ) -> &Version<T> {
        const NEVER: SimTime = SimTime::MAX;
        let previous = self.newest();
        let stages: Vec<Stages> = lags
            .enumerate()
            .map(|(node, lag)| {
                let earlier = previous.stages(NodeId::from_index(node));
                let informed = earlier.map_or(now + lag, |earlier| earlier.informed.max(now + lag));
                Stages { informed, sync_start: NEVER, filter: NEVER, live: NEVER }
            })
            .collect();
        let version = Version {
            ordinal: previous.ordinal + 1,
            commit: now,
            content,
            first_live: NEVER,
            last_live: NEVER,
            waiting: stages.len() as u32,
            live: Live::Synced(stages),
        };
        self.versions.push_back(version);
        self.newest()
    }

    /// Lets a proxy that lists everything at `at` know of the versions up to then.
    pub fn list(&mut self, node: NodeId, at: SimTime) {
        for version in &mut self.versions {
            if let Live::Synced(stages) = &mut version.live
                && version.commit <= at
                && stages[node.index()].live == SimTime::MAX
            {
                stages[node.index()].informed = at;
            }
        }
    }

    /// Notes that a sync of `node` took the versions up to number `ordinal`, and returns whether
    /// any of them is settled by that.
    pub fn apply(&mut self, node: NodeId, ordinal: u32, applied: &Applied) -> bool {
        let mut settled = false;
        let taken = self.versions.iter_mut().take_while(|version| version.ordinal <= ordinal);
        for version in taken {
            let Live::Synced(all) = &mut version.live else {
                continue;
            };
            let stages = &mut all[node.index()];
            if stages.live != SimTime::MAX {
                continue;
            }
            if let Some(filter) = applied.filter.or(applied.live) {
                stages.filter = stages.filter.min(filter);
            }
            if let Some(live) = applied.live {
                (stages.sync_start, stages.live) = (applied.start, live);
                version.first_live = version.first_live.min(live);
                version.waiting -= 1;
                if version.waiting == 0 {
                    settled = true;
                    version.last_live = all.iter().map(|node| node.live).max().unwrap_or(live);
                }
            }
        }
        settled
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

    /// Returns the version that table filter of `node` says at `now`.
    #[inline]
    pub fn filter_at(&self, node: NodeId, now: SimTime) -> &Version<T> {
        let live = self.versions.iter().rev().find(|version| version.filter_live(node) <= now);
        live.expect("versions are forgotten only once a newer one is live everywhere")
    }

    /// Returns the newest version that is live on `node` or will be by a sync under way.
    pub fn applied(&self, node: NodeId) -> &Version<T> {
        let live = self.versions.iter().rev().find(|version| version.live(node) < SimTime::MAX);
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

    /// Returns the versions after number `seen` that `node` has held up to `now`, in order. One that
    /// a newer one replaced at the instant at which it went live was never held.
    pub fn held_since(
        &self,
        node: NodeId,
        seen: u32,
        now: SimTime,
    ) -> impl Iterator<Item = &Version<T>> {
        let next = (seen + 1).saturating_sub(self.first) as usize;
        let live = move |version: &Version<T>| version.live(node);
        (next..self.versions.len())
            .map(|at| (&self.versions[at], self.versions.get(at + 1)))
            .take_while(move |(version, _)| live(version) <= now)
            .filter(move |(version, after)| after.is_none_or(|after| live(after) > live(version)))
            .map(|(version, _)| version)
    }

    /// Returns whether [`History::forget_before`] would forget a version.
    pub fn forgets_before(&self, time: SimTime) -> bool {
        self.versions.get(1).is_some_and(|next| next.last_live <= time)
    }

    /// Forgets versions that no node has had since `time`.
    pub fn forget_before(&mut self, time: SimTime) {
        while self.forgets_before(time) {
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
        let (law, nodes) = match propagation {
            Propagation::Delay { law, nodes } => (law, nodes),
            Propagation::Pipeline(pipeline) => (&pipeline.watch, &pipeline.nodes),
        };
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
    fn an_announced_change_waits_for_a_sync() {
        let mut history = History::new(0);
        history.announce(at(10), 1, [Duration::from_nanos(7)].into_iter());
        history.announce(at(11), 2, [Duration::from_nanos(2)].into_iter());
        let second = history.newest();
        assert_eq!(second.stages(NODE).unwrap().informed, at(17), "not before the first");
        assert_eq!((history.at(NODE, at(1000)).ordinal, second.last_live), (0, SimTime::MAX));
        // A sync that fails after table filter.
        let failed = Applied { start: at(20), filter: Some(at(22)), live: None };
        assert!(!history.apply(NODE, 2, &failed));
        assert_eq!(history.filter_at(NODE, at(21)).ordinal, 0);
        assert_eq!(history.filter_at(NODE, at(22)).ordinal, 2);
        assert_eq!(history.at(NODE, at(1000)).ordinal, 0);
        let done = Applied { start: at(30), filter: Some(at(32)), live: Some(at(35)) };
        assert!(history.apply(NODE, 2, &done));
        assert_eq!((history.at(NODE, at(34)).ordinal, history.at(NODE, at(35)).ordinal), (0, 2));
        assert_eq!(history.newest().last_live, at(35));
        assert_eq!(history.newest().stages(NODE).unwrap().filter, at(22), "it says so since");
        assert!(history.get(1).unwrap().is_settled());
    }

    #[test]
    fn a_list_brings_what_the_watch_lost() {
        let mut history = History::new(0);
        history.announce(at(10), 1, [Duration::from_nanos(5)].into_iter());
        history.announce(at(20), 2, [Duration::from_nanos(500)].into_iter());
        history.list(NODE, at(19));
        let informed = |ordinal| history.get(ordinal).unwrap().stages(NODE).unwrap().informed;
        assert_eq!([informed(1), informed(2)], [at(19), at(520)]);
    }

    #[test]
    fn a_version_that_was_replaced_as_it_went_live_was_never_held() {
        let mut history = History::new(0);
        for (commit, lag) in [(10, 100), (20, 5), (200, 1), (300, 1)] {
            history.commit(at(commit), commit, [Duration::from_nanos(lag)].into_iter());
        }
        let held = |seen, now| {
            let held = history.held_since(NODE, seen, at(now));
            held.map(|version| version.ordinal).collect::<Vec<_>>()
        };
        assert!(held(0, 109).is_empty());
        assert_eq!(held(0, 110), [2]);
        assert_eq!(held(0, 300), [2, 3]);
        assert_eq!(held(2, 1000), [3, 4]);
        assert!(held(4, 1000).is_empty());
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
