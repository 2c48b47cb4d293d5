//! What a run tells: typed records, pushed to a [`Recorder`].
//!
//! Everything reported is a function of records. Names, not ids, appear in them.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::time::SimTime;

/// An interned name.
pub type Name = Arc<str>;

/// Receives records as a run makes them.
pub trait Recorder {
    /// Whether [`attempt`](Recorder::attempt), [`loss`](Recorder::loss) and
    /// [`propagation`](Recorder::propagation) are wanted; a run that makes none is faster.
    fn wants_detail(&self) -> bool;

    /// An attempt began.
    fn attempt(&mut self, at: SimTime);

    /// An attempt was lost.
    fn loss(&mut self, loss: Loss);

    /// A change went live on a node. Called once for each (change, node), when the last node of
    /// the change is live.
    fn propagation(&mut self, propagation: Propagation);

    /// A deletion window closed, or the run ended before it did.
    fn window(&mut self, window: Window);

    /// The run ended.
    fn run(&mut self, run: Run);
}

/// What had happened to a lost attempt's packets by the time it ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Cause {
    /// RST or port unreachable from a live network namespace.
    Refused,
    /// An established connection was cut.
    Reset,
    /// ICMP host or net unreachable.
    Unreachable,
    /// Rewritten to an address that answered nothing.
    Blackholed,
    /// A REJECT rule.
    Rejected,
    /// A DROP rule.
    Dropped,
    /// The node has no rule for that Service address.
    NoRule,
    /// conntrack: INVALID, table full, clash.
    Conntrack,
    /// The network lost it.
    Link,
    /// Timed out at a live server.
    Server,
}

impl Cause {
    /// All causes, in the order of the columns of `windows.csv`.
    pub const ALL: [Cause; 10] = [
        Cause::Refused,
        Cause::Reset,
        Cause::Unreachable,
        Cause::Blackholed,
        Cause::Rejected,
        Cause::Dropped,
        Cause::NoRule,
        Cause::Conntrack,
        Cause::Link,
        Cause::Server,
    ];

    /// Returns the word used in files and messages.
    pub fn as_str(self) -> &'static str {
        match self {
            Cause::Refused => "refused",
            Cause::Reset => "reset",
            Cause::Unreachable => "unreachable",
            Cause::Blackholed => "blackholed",
            Cause::Rejected => "rejected",
            Cause::Dropped => "dropped",
            Cause::NoRule => "no_rule",
            Cause::Conntrack => "conntrack",
            Cause::Link => "link",
            Cause::Server => "server",
        }
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// What the client saw of a lost attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Symptom {
    /// ECONNREFUSED.
    Refused,
    /// ECONNRESET.
    Reset,
    /// EHOSTUNREACH.
    HostUnreachable,
    /// Its own timeout.
    Timeout,
}

impl Symptom {
    /// Returns the word used in files and messages.
    pub fn as_str(self) -> &'static str {
        match self {
            Symptom::Refused => "refused",
            Symptom::Reset => "reset",
            Symptom::HostUnreachable => "host_unreachable",
            Symptom::Timeout => "timeout",
        }
    }
}

/// Lost attempts by cause.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LostByCause([u64; Cause::ALL.len()]);

impl LostByCause {
    /// Counts one attempt lost to `cause`.
    pub fn add(&mut self, cause: Cause) {
        self.0[cause as usize] += 1;
    }

    /// Returns how many were lost to `cause`.
    pub fn get(&self, cause: Cause) -> u64 {
        self.0[cause as usize]
    }

    /// Returns how many were lost.
    pub fn total(&self) -> u64 {
        self.0.iter().sum()
    }

    /// Adds the counts of `other`.
    pub fn merge(&mut self, other: &LostByCause) {
        for (mine, theirs) in self.0.iter_mut().zip(other.0) {
            *mine += theirs;
        }
    }
}

/// A lost attempt.
#[derive(Clone, Debug, PartialEq)]
pub struct Loss {
    /// The request's number, unique within a client group of a run.
    pub request: u64,
    /// 0 for the first attempt.
    pub attempt: u32,
    /// When its first packet was sent.
    pub sent: SimTime,
    /// When the client knew.
    pub ended: SimTime,
    /// The client group.
    pub client: Name,
    /// The client's Pod.
    pub client_pod: Name,
    /// The client's node.
    pub node: Name,
    /// The Service, as `namespace/name:port name`.
    pub service: Name,
    /// The chain that rewrote it to its endpoint, if one did.
    pub rule: Option<Name>,
    /// The endpoint it was sent to, as `address:port`.
    pub endpoint: Option<Name>,
    /// What had happened.
    pub cause: Cause,
    /// What the client saw.
    pub symptom: Symptom,
    /// The window that it belongs to, as numbered in the run.
    pub window: Option<u32>,
    /// How long the endpoint had not been accepting when the attempt was sent, if its rule was
    /// stale.
    pub stale_for: Option<Duration>,
}

/// A change that went live on a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Propagation {
    /// The Service.
    pub service: Name,
    /// The change's number within its Service, from 1.
    pub change: u32,
    /// The node.
    pub node: Name,
    /// When the slice was written.
    pub endpoints_changed: SimTime,
    /// When the node's rules were live.
    pub live: SimTime,
    /// The way there, where proxies sync.
    pub stages: Option<Stages>,
}

/// The way of a change to a node's rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stages {
    /// When the node's proxy was told.
    pub informed: SimTime,
    /// When the sync started that brought it.
    pub sync_start: SimTime,
    /// When table filter said it, which iptables-restore commits before nat.
    pub filter_live: SimTime,
}

/// The syncs of all proxies of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Syncs {
    /// How many.
    pub syncs: u64,
    /// Full ones among them.
    pub full: u64,
    /// Failed ones among them.
    pub failed: u64,
    /// Time spent in them, all nodes together.
    pub busy: Duration,
    /// Time of that spent waiting for the xtables lock.
    pub lock_wait: Duration,
}

/// How evenly endpoints were chosen: Pearson's χ², summed over versions of endpoint lists, each
/// against equal shares.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Balance {
    /// The statistic.
    pub chi2: f64,
    /// Its degrees of freedom.
    pub freedom: u64,
}

/// What opened a deletion window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum OpenedBy {
    /// A user deleted the Pod.
    Delete,
    /// A rolling update replaced it.
    Rollout,
    /// The workload was made smaller.
    Scale,
}

impl OpenedBy {
    /// Returns the word used in files.
    pub fn as_str(self) -> &'static str {
        match self {
            OpenedBy::Delete => "delete",
            OpenedBy::Rollout => "rollout",
            OpenedBy::Scale => "scale",
        }
    }
}

/// A deletion window: one Pod that stops serving, as one Service saw it.
#[derive(Clone, Debug, PartialEq)]
pub struct Window {
    /// Number in the run, from 0, in order of opening.
    pub window: u32,
    /// Why it opened.
    pub opened_by: OpenedBy,
    /// The Service.
    pub service: Name,
    /// The Pod.
    pub pod: Name,
    /// The Pod's node.
    pub node: Name,
    /// When the API server accepted the deletion.
    pub opened: SimTime,
    /// When the EndpointSlice without the Pod was written.
    pub endpoints_changed: Option<SimTime>,
    /// When the Pod stopped accepting connections.
    pub stopped_accepting: Option<SimTime>,
    /// When its address was released.
    pub ip_released: Option<SimTime>,
    /// When the first node's rules no longer named the endpoint.
    pub first_node: Option<SimTime>,
    /// When the last node's rules no longer named it.
    pub last_node: Option<SimTime>,
    /// When the window closed.
    pub closed: Option<SimTime>,
    /// Mean over nodes of max(0, live − stopped accepting), in seconds.
    pub stale_mean_s: Option<f64>,
    /// Greatest over nodes of the same, in seconds.
    pub stale_max_s: Option<f64>,
    /// Attempts to the Service while the window was open.
    pub attempts: u64,
    /// Attempts whose DNAT chose this Pod while the window was open.
    pub attempts_to_pod: u64,
    /// Lost attempts that belong to the window.
    pub lost: LostByCause,
    /// Attempts answered by another workload.
    pub misdelivered: u64,
    /// First attempts lost because a rule outlived its listener.
    pub lost_first_stale: Option<u64>,
    /// The expectation of the same, given this run's times.
    pub expected_lost: Option<f64>,
}

/// How a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// Everything that was to happen had happened.
    Complete,
    /// At the scenario's `duration`.
    Duration,
}

impl Ended {
    /// Returns the word used in files.
    pub fn as_str(self) -> &'static str {
        match self {
            Ended::Complete => "complete",
            Ended::Duration => "duration",
        }
    }
}

/// Attempts and what became of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Attempts begun.
    pub attempts: u64,
    /// Lost attempts.
    pub lost: LostByCause,
    /// Attempts answered by another workload.
    pub misdelivered: u64,
}

/// The totals of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct Run {
    /// How it ended.
    pub ended: Ended,
    /// When.
    pub end: SimTime,
    /// Events handled.
    pub events: u64,
    /// Packets sent by Pods.
    pub packets: u64,
    /// Requests begun.
    pub requests: u64,
    /// Requests that no attempt could save.
    pub requests_lost: u64,
    /// Requests still open at the end.
    pub requests_unfinished: u64,
    /// Attempts begun in some open window of their Service.
    pub inside: Counts,
    /// All other attempts.
    pub outside: Counts,
    /// Attempts still open at the end.
    pub unfinished: u64,
    /// How many windows opened.
    pub windows: u64,
    /// Machines that hold what tells where a Service's packets go.
    pub holders: u32,
    /// Changes of a Service times machines that had to learn of it.
    pub updates: u64,
    /// Connections that servers took.
    pub accepted: u64,
    /// From machine to machine, by the first packets of these.
    pub hops: u64,
    /// Rules that the first packets of these passed, on all machines: as many as the kernel looks at
    /// in chains, one after the other. Of Services that are only counted, half stand before one.
    pub rules_passed: f64,
    /// Sum over windows.
    pub lost_first_stale: Option<u64>,
    /// Sum over windows.
    pub expected_lost: Option<f64>,
    /// Hash of the trajectory.
    pub fingerprint: u64,
    /// The proxies' syncs, where they sync.
    pub syncs: Option<Syncs>,
    /// How evenly first attempts were spread, if there were enough to tell.
    pub balance: Option<Balance>,
}

impl Run {
    /// Returns how often a connection's first packet came from one machine to another, in mean.
    pub fn mean_hops(&self) -> Option<f64> {
        (self.accepted > 0).then(|| self.hops as f64 / self.accepted as f64)
    }

    /// Returns how many rules a connection's first packet passed, in mean.
    pub fn mean_rules_passed(&self) -> Option<f64> {
        (self.accepted > 0).then(|| self.rules_passed / self.accepted as f64)
    }
}
