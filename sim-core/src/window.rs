//! Deletion windows: which losses belong to which Pod's end, and how many were to be expected.

use std::collections::{BTreeMap, BTreeSet};

use crate::ids::{IdVec, NodeId, PodId, ServiceId, WindowId};
use crate::propagation::{History, Version};
use crate::record::{self, Cause, LostByCause, OpenedBy};
use crate::time::SimTime;

/// A window, open or closed, whose record has not been made yet.
#[derive(Debug)]
pub struct Window {
    /// What opened it.
    pub opened_by: OpenedBy,
    /// The Service.
    pub service: ServiceId,
    /// The Pod.
    pub pod: PodId,
    /// When it opened.
    pub opened: SimTime,
    /// The Service's first version without the Pod.
    pub removed_in: Option<u32>,
    /// When it closed.
    pub closed: Option<SimTime>,
    attempts_before: u64,
    attempts: u64,
    attempts_to_pod: u64,
    lost: LostByCause,
    misdelivered: u64,
    lost_first_stale: u64,
}

/// What is counted for each Service.
#[derive(Clone, Copy, Debug, Default)]
struct ServiceCount {
    attempts: u64,
    open_windows: u32,
}

/// All windows of a run.
#[derive(Debug, Default)]
pub struct Windows {
    windows: IdVec<WindowId, Window>,
    /// Windows that are not closed.
    open: BTreeSet<WindowId>,
    /// Windows whose record has not been made.
    unreported: BTreeSet<WindowId>,
    records: BTreeMap<WindowId, record::Window>,
    by_pod: BTreeMap<(PodId, ServiceId), WindowId>,
    services: IdVec<ServiceId, ServiceCount>,
    /// Attempts under way, by the Pod that DNAT chose and the Service.
    under_way: BTreeMap<(PodId, ServiceId), u32>,
}

impl Windows {
    /// Returns the windows of a run with `services` Services: none.
    pub fn new(services: usize) -> Windows {
        let services = (0..services).map(|_| ServiceCount::default()).collect();
        Windows { services, ..Windows::default() }
    }

    /// Opens the window of `pod`, deleted at `opened`, for `service`; its attempts count from now.
    pub fn open(&mut self, service: ServiceId, pod: PodId, opened_by: OpenedBy, opened: SimTime) {
        let count = &mut self.services[service];
        count.open_windows += 1;
        let id = self.windows.push(Window {
            opened_by,
            service,
            pod,
            opened,
            removed_in: None,
            closed: None,
            attempts_before: count.attempts,
            attempts: 0,
            attempts_to_pod: 0,
            lost: LostByCause::default(),
            misdelivered: 0,
            lost_first_stale: 0,
        });
        self.open.insert(id);
        self.unreported.insert(id);
        self.by_pod.insert((pod, service), id);
    }

    /// Returns whether `pod` has a window for `service`.
    pub fn has(&self, service: ServiceId, pod: PodId) -> bool {
        self.by_pod.contains_key(&(pod, service))
    }

    /// Notes that `service` got a version: windows of Pods that it no longer names wait for its
    /// last node, and windows of Pods that it names again are open again.
    pub fn changed<T>(
        &mut self,
        service: ServiceId,
        version: &Version<T>,
        names: impl Fn(&T, PodId) -> bool,
    ) {
        for id in self.unreported_of(service) {
            let window = &mut self.windows[id];
            if names(&version.content, window.pod) {
                window.removed_in = None;
                if window.closed.take().is_some() {
                    let count = &mut self.services[service];
                    count.open_windows += 1;
                    window.attempts_before = count.attempts - window.attempts;
                    self.open.insert(id);
                }
            } else if window.removed_in.is_none() {
                window.removed_in = Some(version.ordinal);
            }
        }
    }

    /// Counts an attempt to `service` and returns whether a window of it is open.
    pub fn attempt(&mut self, service: ServiceId) -> bool {
        let count = &mut self.services[service];
        count.attempts += 1;
        count.open_windows > 0
    }

    /// Counts that DNAT chose `pod` for an attempt to `service`.
    pub fn chosen(&mut self, service: ServiceId, pod: PodId) {
        *self.under_way.entry((pod, service)).or_default() += 1;
        if let Some(id) = self.counting(service, pod) {
            self.windows[id].attempts_to_pod += 1;
        }
    }

    /// Returns the window of `pod` for `service`, unless it is closed: what reaches the Pod's
    /// address later does so by an old conntrack entry, not by a rule.
    fn counting(&self, service: ServiceId, pod: PodId) -> Option<WindowId> {
        let id = *self.by_pod.get(&(pod, service))?;
        self.windows[id].closed.is_none().then_some(id)
    }

    /// Counts a lost attempt and returns its window.
    pub fn lost(
        &mut self,
        service: ServiceId,
        pod: PodId,
        cause: Cause,
        first_stale: bool,
    ) -> Option<WindowId> {
        let id = self.counting(service, pod)?;
        let window = &mut self.windows[id];
        window.lost.add(cause);
        window.lost_first_stale += u64::from(first_stale);
        Some(id)
    }

    /// Counts an attempt that another workload answered.
    pub fn misdelivered(&mut self, service: ServiceId, pod: PodId) {
        if let Some(id) = self.counting(service, pod) {
            self.windows[id].misdelivered += 1;
        }
    }

    /// Notes that an attempt for which DNAT chose `pod` has ended, and returns the Pod's window
    /// if that was the last one under way.
    pub fn ended(&mut self, service: ServiceId, pod: PodId) -> Option<WindowId> {
        let count = self.under_way.get_mut(&(pod, service)).expect("the attempt was counted");
        *count -= 1;
        if *count > 0 {
            return None;
        }
        self.under_way.remove(&(pod, service));
        self.counting(service, pod)
    }

    /// Returns the windows of `service` that are not closed, in order.
    pub fn open_of(&self, service: ServiceId) -> Vec<WindowId> {
        let of = |id: &&WindowId| self.windows[**id].service == service;
        self.open.iter().filter(of).copied().collect()
    }

    /// Closes a window if its last node has heard and its last attempt has ended.
    pub fn try_close<T>(&mut self, id: WindowId, history: &History<T>, now: SimTime) -> bool {
        let window = &mut self.windows[id];
        let last = window
            .removed_in
            .and_then(|version| history.get(version))
            .map(|version| version.last_live);
        let heard = last.is_some_and(|last| last <= now);
        let quiet = !self.under_way.contains_key(&(window.pod, window.service));
        if !heard || !quiet || window.closed.is_some() {
            return false;
        }
        window.closed = Some(now);
        self.cut(id);
        self.open.remove(&id);
        true
    }

    /// Ends the counting of a window's attempts.
    fn cut(&mut self, id: WindowId) {
        let window = &mut self.windows[id];
        let count = &mut self.services[window.service];
        count.open_windows -= 1;
        window.attempts = count.attempts - window.attempts_before;
    }

    /// Ends the counting of all windows that are still open: the run is over.
    pub fn cut_all(&mut self) {
        for id in std::mem::take(&mut self.open) {
            self.cut(id);
        }
    }

    /// Returns whether all windows are closed.
    pub fn all_closed(&self) -> bool {
        self.open.is_empty()
    }

    /// Returns the windows of `service` whose record has not been made, in order.
    pub fn unreported_of(&self, service: ServiceId) -> Vec<WindowId> {
        let of = |id: &&WindowId| self.windows[**id].service == service;
        self.unreported.iter().filter(of).copied().collect()
    }

    /// Returns the windows whose record has not been made, in order.
    pub fn unreported(&self) -> Vec<WindowId> {
        self.unreported.iter().copied().collect()
    }

    /// Returns when the first window of `service` opened whose record has not been made.
    pub fn first_unreported(&self, service: ServiceId) -> Option<SimTime> {
        let mut windows = self.unreported.iter().map(|&id| &self.windows[id]);
        windows.find(|window| window.service == service).map(|window| window.opened)
    }

    /// Keeps the record of a window.
    pub fn report(&mut self, id: WindowId, record: record::Window) {
        self.unreported.remove(&id);
        self.records.insert(id, record);
    }

    /// Takes all records, in the order in which the windows opened.
    pub fn take_records(&mut self) -> Vec<record::Window> {
        std::mem::take(&mut self.records).into_values().collect()
    }

    /// Returns the Services for which `pod` has a window.
    pub fn services_of(&self, pod: PodId) -> Vec<ServiceId> {
        let all = (pod, ServiceId::FIRST)..=(pod, ServiceId::LAST);
        self.by_pod.range(all).map(|(&(_, service), _)| service).collect()
    }

    /// Returns the window `id`.
    pub fn get(&self, id: WindowId) -> &Window {
        &self.windows[id]
    }
}

/// What a window's expectation needs to know of the clients.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// New connections per second from each node.
    pub per_node_per_s: f64,
    /// The index of the Service port that they go to.
    pub port: usize,
}

/// From when on a Pod refuses, until when clients send, and how much.
#[derive(Clone, Copy, Debug)]
pub struct Exposure<'a> {
    /// When the Pod stopped accepting.
    pub stop: SimTime,
    /// When the last client stops sending.
    pub end: SimTime,
    /// The clients of the window's Service.
    pub loads: &'a [Load],
}

/// Returns the expected number of first attempts that are lost because a rule outlived its
/// listener, given when the Pod stopped and when each node heard:
/// Σ over nodes of λ ∫ 1/n(t) dt over send times t with t + latency ≥ stop and t < live.
///
/// `count` tells how many endpoints a version has on a port if the Pod is one of them; `latency`
/// how long a packet takes from a node's Pods to the Pod.
pub fn expected_lost<T>(
    window: &Window,
    Exposure { stop, end, loads }: Exposure<'_>,
    history: &History<T>,
    nodes: impl Iterator<Item = NodeId>,
    count: impl Fn(&T, usize) -> Option<usize>,
    latency: impl Fn(NodeId) -> Option<std::time::Duration>,
) -> f64 {
    // Versions that name the Pod, newest first, each with its count for every load.
    let versions = history.iter().rev();
    let versions = versions
        .skip_while(|version| window.removed_in.is_some_and(|removed| version.ordinal >= removed));
    let shares: Vec<(&Version<T>, f64)> = versions
        .map(|version| {
            let share = |load: &Load| {
                count(&version.content, load.port).map_or(0.0, |n| load.per_node_per_s / n as f64)
            };
            (version, loads.iter().map(share).sum())
        })
        .collect();
    let removed = window.removed_in.and_then(|removed| history.get(removed));
    let mut expected = 0.0;
    for node in nodes {
        let Some(latency) = latency(node) else {
            continue;
        };
        let from = SimTime::from_nanos(
            stop.as_nanos().saturating_sub(u64::try_from(latency.as_nanos()).unwrap_or(u64::MAX)),
        );
        let mut until = removed.map_or(end, |removed| removed.live(node)).min(end);
        for (version, per_s) in &shares {
            if until <= from {
                break;
            }
            let live = version.live(node);
            let begin = live.max(from);
            if begin < until {
                expected += per_s * (until - begin).as_secs_f64();
                until = live;
            }
        }
    }
    expected
}

/// Mean and greatest lateness over nodes, in seconds, and the first and last node's times.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Lateness {
    /// When the first node heard.
    pub first: SimTime,
    /// When the last node heard.
    pub last: SimTime,
    /// Mean of max(0, live − stopped).
    pub mean_s: f64,
    /// Greatest of the same.
    pub max_s: f64,
}

/// Returns how late `nodes` were with a version for a Pod that stopped at `stop`; a Pod that
/// never stopped makes nobody late.
pub fn lateness<T>(
    version: &Version<T>,
    stop: Option<SimTime>,
    nodes: impl ExactSizeIterator<Item = NodeId>,
) -> Lateness {
    let count = nodes.len() as f64;
    let mut total = 0u128;
    let mut max = 0u64;
    for node in nodes {
        let late =
            stop.map_or(0, |stop| version.live(node).as_nanos().saturating_sub(stop.as_nanos()));
        total += u128::from(late);
        max = max.max(late);
    }
    Lateness {
        first: version.first_live,
        last: version.last_live,
        mean_s: total as f64 / 1e9 / count,
        max_s: max as f64 / 1e9,
    }
}

impl Window {
    /// Fills in what was counted.
    pub fn counts(&self) -> (u64, u64, LostByCause, u64, u64) {
        (self.attempts, self.attempts_to_pod, self.lost, self.misdelivered, self.lost_first_stale)
    }
}
