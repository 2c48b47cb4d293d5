//! Keeps the records of one run.
//!
//! [`Collector`] is the [`Recorder`] of `rulelag run` and of each run of a sweep. It brings the
//! records into the order of the files, and counts attempts into time bins as they come, so that
//! detail costs memory for losses and not for attempts.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use sim_core::record::{Loss, LostByCause, Name, Propagation, Recorder, Run, Window};
use sim_core::time::SimTime;

/// How much of a run is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Detail {
    /// Windows and totals.
    Off,
    /// Also each loss, each change on each node, and a timeline of bins this wide.
    Timeline(Duration),
}

/// A time bin of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TimelineBin {
    /// The first point in time within it.
    pub start: SimTime,
    /// The first point in time after it.
    pub end: SimTime,
    /// Attempts begun within it.
    pub attempts: u64,
    /// Those of them that were lost.
    pub lost: LostByCause,
    /// Nodes whose rules named, at its start, an endpoint that had stopped accepting.
    pub stale_nodes: u64,
}

/// What one run yields, in the order of the files.
#[derive(Clone, Debug, PartialEq)]
pub struct RunRecords {
    /// The totals.
    pub run: Run,
    /// In order of opening.
    pub windows: Vec<Window>,
    /// In order of sending; empty without detail.
    pub losses: Vec<Loss>,
    /// By Service, change and node; empty without detail.
    pub propagation: Vec<Propagation>,
    /// In order of time; empty without detail.
    pub timeline: Vec<TimelineBin>,
}

/// Keeps the records of one run.
#[derive(Clone, Debug)]
pub struct Collector {
    detail: Detail,
    attempts: Vec<u64>,
    windows: Vec<Window>,
    losses: Vec<Loss>,
    propagation: Vec<Propagation>,
    run: Option<Run>,
}

impl Collector {
    /// Creates a collector.
    ///
    /// # Panics
    ///
    /// If the bins of the timeline have no width.
    pub fn new(detail: Detail) -> Collector {
        assert_ne!(detail, Detail::Timeline(Duration::ZERO), "bins without width");
        Collector {
            detail,
            attempts: Vec::new(),
            windows: Vec::new(),
            losses: Vec::new(),
            propagation: Vec::new(),
            run: None,
        }
    }

    /// Returns what the run yielded.
    ///
    /// # Panics
    ///
    /// If the run has not ended.
    pub fn into_records(mut self) -> RunRecords {
        let run = self.run.take().expect("a run that has ended");
        self.windows.sort_by_key(|w| w.window);
        self.losses.sort_by(|a, b| {
            let key = |l: &Loss| (l.sent, l.client.clone(), l.request, l.attempt);
            key(a).cmp(&key(b))
        });
        self.propagation
            .sort_by(|a, b| (&a.service, a.change, &a.node).cmp(&(&b.service, b.change, &b.node)));
        let timeline = match self.detail {
            Detail::Off => Vec::new(),
            Detail::Timeline(width) => self.timeline(&run, width),
        };
        RunRecords {
            run,
            windows: self.windows,
            losses: self.losses,
            propagation: self.propagation,
            timeline,
        }
    }

    fn timeline(&self, run: &Run, width: Duration) -> Vec<TimelineBin> {
        let width = nanos(width);
        let last_loss = self.losses.last().map_or(0, |l| bin_of(l.sent, width) + 1);
        let bins =
            (run.end.as_nanos().div_ceil(width) as usize).max(self.attempts.len()).max(last_loss);
        let mut lost = vec![LostByCause::default(); bins];
        for loss in &self.losses {
            lost[bin_of(loss.sent, width)].add(loss.cause);
        }
        let stale = stale_nodes(&self.windows, &self.propagation, bins, width);
        (0..bins)
            .map(|i| TimelineBin {
                start: SimTime::from_nanos(i as u64 * width),
                end: SimTime::from_nanos((i as u64 + 1).saturating_mul(width)),
                attempts: self.attempts.get(i).copied().unwrap_or(0),
                lost: lost[i],
                stale_nodes: stale[i],
            })
            .collect()
    }
}

impl Recorder for Collector {
    fn wants_detail(&self) -> bool {
        self.detail != Detail::Off
    }

    fn attempt(&mut self, at: SimTime) {
        let Detail::Timeline(width) = self.detail else {
            return;
        };
        let bin = bin_of(at, nanos(width));
        if bin >= self.attempts.len() {
            self.attempts.resize(bin + 1, 0);
        }
        self.attempts[bin] += 1;
    }

    fn loss(&mut self, loss: Loss) {
        if self.wants_detail() {
            self.losses.push(loss);
        }
    }

    fn propagation(&mut self, propagation: Propagation) {
        if self.wants_detail() {
            self.propagation.push(propagation);
        }
    }

    fn window(&mut self, window: Window) {
        self.windows.push(window);
    }

    fn run(&mut self, run: Run) {
        self.run = Some(run);
    }
}

fn nanos(width: Duration) -> u64 {
    u64::try_from(width.as_nanos()).expect("a bin shorter than 584 years")
}

fn bin_of(at: SimTime, width: u64) -> usize {
    (at.as_nanos() / width) as usize
}

/// Counts, at each bin's start, the nodes with a rule for an endpoint that has stopped accepting.
///
/// A window whose slice was never written, or whose change some node never applied, keeps stale
/// every node that its Service is known on and that is not known to have applied it.
fn stale_nodes(
    windows: &[Window],
    propagation: &[Propagation],
    bins: usize,
    width: u64,
) -> Vec<u64> {
    let mut nodes: BTreeMap<&Name, BTreeSet<&Name>> = BTreeMap::new();
    let mut live: BTreeMap<(&Name, SimTime), BTreeMap<&Name, SimTime>> = BTreeMap::new();
    for p in propagation {
        nodes.entry(&p.service).or_default().insert(&p.node);
        let change = live.entry((&p.service, p.endpoints_changed)).or_default();
        // Two changes may be written at one instant: the rules are right when both are live.
        let at = change.entry(&p.node).or_insert(p.live);
        *at = (*at).max(p.live);
    }
    let mut stale: BTreeMap<&Name, Vec<(SimTime, SimTime)>> = BTreeMap::new();
    for window in windows {
        let Some(stopped) = window.stopped_accepting else {
            continue;
        };
        let change = window.endpoints_changed.and_then(|at| live.get(&(&window.service, at)));
        for &node in nodes.get(&window.service).into_iter().flatten() {
            let until = change.and_then(|c| c.get(node)).copied().unwrap_or(SimTime::MAX);
            if until > stopped {
                stale.entry(node).or_default().push((stopped, until));
            }
        }
    }
    let first_bin_from = |at: SimTime| (at.as_nanos().div_ceil(width) as usize).min(bins);
    let mut change = vec![0_i64; bins + 1];
    for spans in stale.values_mut() {
        spans.sort_unstable();
        let mut counted = 0;
        for &(from, until) in spans.iter() {
            let first = first_bin_from(from).max(counted);
            let end = first_bin_from(until);
            if end > first {
                change[first] += 1;
                change[end] -= 1;
                counted = end;
            }
        }
    }
    let mut now = 0;
    change[..bins]
        .iter()
        .map(|c| {
            now += c;
            u64::try_from(now).expect("no node stops being stale before it is")
        })
        .collect()
}

#[cfg(test)]
mod tests;
