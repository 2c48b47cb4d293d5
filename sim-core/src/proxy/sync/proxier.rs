//! One family's sync loop on one node.

use std::ops::AddAssign;
use std::time::Duration;

use super::cost::{Backend, Phases, SyncCost, Work};
use super::health::Health;
use super::lock::{Contender, Lock, Wait};
use super::runner::{Bounds, Runner};
use crate::proxy::iptables::LARGE_CLUSTER_ENDPOINTS;
use crate::proxy::profile::Profile;
use crate::time::SimTime;

/// How a proxy runs.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// What it writes to.
    pub backend: Backend,
    /// The version that it behaves as.
    pub profile: Profile,
    /// `minSyncPeriod`, as configured.
    pub min_sync_period: Duration,
    /// `syncPeriod`.
    pub sync_period: Duration,
    /// What a sync costs.
    pub cost: SyncCost,
    /// Another program that takes the xtables lock.
    pub contender: Option<Contender>,
    /// Of an eBPF agent: where in its interval the buffer is written out.
    pub phase: Duration,
}

/// How long an eBPF agent buffers changes at most.
pub const BUFFER: Duration = Duration::from_millis(500);

/// After this time, a sync is a full one.
///
/// Kubernetes: pkg/proxy/util, FullSyncPeriod.
pub const FULL_SYNC_PERIOD: Duration = Duration::from_secs(3600);

/// Part of what a restore writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Table {
    /// Table filter.
    Filter,
    /// Table nat, or the only transaction that there is.
    Nat,
}

/// How a sync ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// All was written.
    Done,
    /// The xtables lock was not to be had.
    NoLock(Table),
    /// The kernel refused this table; it holds what it held.
    Refused(Table),
}

/// A sync, known as a whole when it starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sync {
    /// When it started and took over what had changed.
    pub start: SimTime,
    /// Whether it wrote everything.
    pub full: bool,
    /// When table filter was committed, if it was; nothing where there is one transaction.
    pub filter: Option<SimTime>,
    /// When the last transaction was committed, if it was.
    pub nat: Option<SimTime>,
    /// When it ended.
    pub end: SimTime,
    /// How.
    pub outcome: Outcome,
}

/// Counts over all syncs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Syncs.
    pub syncs: u64,
    /// Full ones among them.
    pub full: u64,
    /// Failed ones among them.
    pub failed: u64,
    /// Time spent in them.
    pub busy: Duration,
    /// Time spent waiting for the xtables lock.
    pub waiting: Duration,
}

impl AddAssign for Counts {
    fn add_assign(&mut self, other: Counts) {
        self.syncs += other.syncs;
        self.full += other.full;
        self.failed += other.failed;
        self.busy += other.busy;
        self.waiting += other.waiting;
    }
}

/// The sync loop of one family on one node.
#[derive(Clone, Debug)]
pub struct Proxier {
    settings: Settings,
    runner: Runner,
    lock: Lock,
    state: State,
    needs_full: bool,
    /// From when on a full sync is needed: a canary will be found gone.
    full_from: Option<SimTime>,
    /// When the next full sync is due though nothing asks for it.
    full_due: SimTime,
    last_listing: Option<SimTime>,
    /// Another program has removed the rules, and no full sync has written them since.
    flushed: bool,
    /// When a canary is looked for: then, and every sync period from there.
    canary_check: SimTime,
    health: Health,
    counts: Counts,
}

/// Whether the proxy knows enough to write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// It waits for the first lists of Services and of EndpointSlices.
    Starting { services: Option<SimTime>, endpoints: Option<SimTime> },
    /// Both lists are there at this time: a full sync that no limit holds up is next.
    Synced(SimTime),
    /// The runner runs it.
    Running,
}

impl Settings {
    /// Returns how a version of kube-proxy runs with a back end.
    pub fn new(
        backend: Backend,
        profile: Profile,
        min_sync_period: Duration,
        sync_period: Duration,
    ) -> Settings {
        Settings {
            backend,
            profile,
            min_sync_period,
            sync_period,
            cost: SyncCost::of(backend),
            contender: None,
            phase: Duration::ZERO,
        }
    }

    /// Returns the least time between syncs that is in force: in iptables and nftables mode, zero
    /// stands for the default.
    ///
    /// Kubernetes: pkg/proxy/apis/config/v1alpha1/defaults.go.
    pub fn effective_min_sync_period(&self) -> Duration {
        match self.backend {
            Backend::Ipvs => self.min_sync_period,
            Backend::Ebpf => Duration::ZERO,
            _ if self.min_sync_period.is_zero() => Duration::from_secs(1),
            _ => self.min_sync_period,
        }
    }

    /// Returns whether a sync may write less than everything.
    fn has_partial(&self) -> bool {
        match self.backend {
            Backend::IptablesLegacy | Backend::IptablesNft | Backend::Ebpf => true,
            Backend::Nftables => self.profile.minor() >= 32,
            Backend::Ipvs => false,
        }
    }

    /// Returns whether a full sync is due every hour.
    fn has_hourly_full(&self) -> bool {
        match self.backend {
            Backend::IptablesLegacy | Backend::IptablesNft => true,
            Backend::Nftables => self.profile.minor() >= 33,
            Backend::Ipvs | Backend::Ebpf => false,
        }
    }

    /// Returns whether rules that another program removes are missed before the next sync.
    fn has_canary(&self) -> bool {
        self.backend.commits_by_table()
    }

    fn runner(&self) -> Runner {
        let max = match self.backend {
            Backend::Ipvs => self.sync_period.max(Duration::from_millis(1)),
            Backend::Ebpf => Duration::from_secs(30 * 60), // a full prune
            _ => FULL_SYNC_PERIOD,
        };
        let bounds = Bounds { min: self.effective_min_sync_period(), max, retry: self.sync_period };
        match self.backend {
            Backend::Ebpf => Runner::ticking(BUFFER, self.phase, bounds),
            _ if self.profile.minor() >= 34 => Runner::waiting_after_end(bounds),
            _ => Runner::token_bucket(bounds),
        }
    }
}

impl Proxier {
    /// Returns the loop of a proxy that has written everything and has been idle for long. All
    /// that recurs has gone through the part `elapsed` of its period, from 0 to 1.
    pub fn idle(settings: Settings, elapsed: f64) -> Proxier {
        let left = |period: Duration| SimTime::ZERO + period.mul_f64(1.0 - elapsed);
        let runner = settings.runner();
        let due = left(runner.max());
        Proxier {
            runner: runner.due_at(due),
            lock: Lock::new(settings.contender),
            canary_check: left(settings.sync_period),
            full_due: left(FULL_SYNC_PERIOD),
            settings,
            state: State::Running,
            needs_full: false,
            full_from: None,
            last_listing: None,
            flushed: false,
            health: Health::default(),
            counts: Counts::default(),
        }
    }

    /// Returns when the next sync is due if nothing else happens.
    pub fn due(&self) -> SimTime {
        match self.state {
            State::Starting { .. } => SimTime::MAX,
            State::Synced(at) => at,
            State::Running => self.runner.due(),
        }
    }

    /// Returns the counts over all syncs.
    pub fn counts(&self) -> &Counts {
        &self.counts
    }

    /// Notes that the proxy is told at `at` of something that has changed. A time in the future
    /// is allowed.
    pub fn request(&mut self, at: SimTime) {
        if self.state == State::Running {
            self.runner.request(at);
            self.health.queued(at);
        }
    }

    /// Returns how it runs.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Returns whether it runs, and knows of nothing that it has to repair.
    pub fn is_settled(&self) -> bool {
        self.state == State::Running && self.full_from.is_none() && !self.needs_full
    }

    /// Returns whether no update waits for longer than it may.
    pub fn is_healthy(&self, now: SimTime) -> bool {
        self.health.is_healthy(now, self.settings.sync_period)
    }

    /// Restarts the program at `at`. The rules stay as they are, and nothing is written until both
    /// lists are there.
    // Simplified: a sync that is under way when the proxy is restarted still completes.
    pub fn restart(&mut self, at: SimTime) {
        self.state = State::Starting { services: None, endpoints: None };
        self.runner = self.settings.runner();
        self.needs_full = true;
        self.full_from = None;
        self.last_listing = None;
        self.canary_check = at + self.settings.sync_period;
        self.health = Health::default();
    }

    /// Notes that the list of Services is there.
    pub fn services_listed(&mut self, at: SimTime) {
        self.listed(Some(at), None);
    }

    /// Notes that the list of EndpointSlices is there.
    pub fn endpoints_listed(&mut self, at: SimTime) {
        self.listed(None, Some(at));
    }

    fn listed(&mut self, of_services: Option<SimTime>, of_endpoints: Option<SimTime>) {
        if let State::Starting { services, endpoints } = self.state {
            let (services, endpoints) = (services.or(of_services), endpoints.or(of_endpoints));
            self.state = match services.zip(endpoints) {
                Some((services, endpoints)) => State::Synced(services.max(endpoints)),
                None => State::Starting { services, endpoints },
            };
        }
    }

    /// Notes that another program removes all rules at `at`. A canary is missed at the next of its
    /// checks, one every sync period; then a full sync is asked for.
    pub fn flush(&mut self, at: SimTime) {
        self.flushed = true;
        if self.settings.has_canary() && self.state == State::Running {
            let every = self.settings.sync_period.max(Duration::from_millis(1)).as_nanos();
            // The first check after `at`.
            let checks = match at.saturating_since(self.canary_check).as_nanos() {
                0 if at < self.canary_check => 0,
                past => past / every + 1,
            };
            let after = u64::try_from(checks * every).unwrap_or(u64::MAX / 4);
            let missed = self.canary_check + Duration::from_nanos(after);
            self.full_from = Some(missed);
            self.runner.request(missed);
        }
    }

    /// Returns whether another program has removed the rules and no sync has brought them back.
    pub fn is_flushed(&self) -> bool {
        self.flushed
    }

    /// Runs the sync that is due at `now`. `work` tells what there is to do, given whether it is a
    /// full sync, and `fault` what the kernel will refuse.
    ///
    /// # Panics
    ///
    /// If no sync is due.
    pub fn sync(
        &mut self,
        now: SimTime,
        fault: Option<Table>,
        work: impl FnOnce(bool) -> (Work, u64),
    ) -> Sync {
        assert!(self.due() <= now, "a sync at {now}, due at {}", self.due());
        let canary_missed = self.full_from.is_some_and(|from| from <= now);
        let hour_over = self.full_due <= now;
        let full = !self.settings.has_partial()
            || self.needs_full
            || canary_missed
            || (hour_over && self.settings.has_hourly_full());
        let (mut work, endpoints) = work(full);
        work.full = full;
        work.lists = self.lists(now, endpoints);
        let phases = self.settings.cost.phases(self.settings.backend, &work);
        // Unchanged Services' chains are jumped to and not written: without them, nat is refused.
        let fault = fault.or((self.flushed && !full).then_some(Table::Nat));
        let sync = self.write(now, full, phases, fault);
        let done = sync.outcome == Outcome::Done;
        self.needs_full = !done;
        if done {
            self.health.updated();
            if full {
                self.flushed = false;
                self.full_from = None;
                self.full_due = sync.end + FULL_SYNC_PERIOD;
            }
        }
        self.counts.syncs += 1;
        self.counts.full += u64::from(full);
        self.counts.failed += u64::from(!done);
        self.counts.busy += sync.end - sync.start;
        self.counts.waiting += (sync.end - sync.start).saturating_sub(phases.total());
        if self.state == State::Running {
            self.runner.ran(now, sync.end, done);
        } else {
            // The first sync is not the runner's; only one runs at a time.
            self.runner = self.settings.runner().from(sync.end);
            if !done {
                self.runner.request(sync.end + self.settings.sync_period);
            }
            self.state = State::Running;
        }
        if let Some(missed) = self.full_from {
            self.runner.request(missed);
        }
        sync
    }

    /// Returns whether this sync lists the kernel's chains to find stale ones: always, and in a
    /// large cluster once every sync period.
    fn lists(&mut self, now: SimTime, endpoints: u64) -> bool {
        let large = endpoints > LARGE_CLUSTER_ENDPOINTS as u64;
        let recent = self
            .last_listing
            .is_some_and(|last| now.saturating_since(last) <= self.settings.sync_period);
        let lists = self.settings.backend.commits_by_table() && !(large && recent);
        if lists {
            self.last_listing = Some(now);
        }
        lists
    }

    /// Writes table by table. Each is committed whole or not at all, and what comes after a table
    /// that is not is not tried.
    fn write(&mut self, now: SimTime, full: bool, phases: Phases, fault: Option<Table>) -> Sync {
        let mut sync = Sync {
            start: now,
            full,
            filter: None,
            nat: None,
            end: now + phases.prepare,
            outcome: Outcome::Done,
        };
        if self.settings.backend.commits_by_table() {
            let refused = fault == Some(Table::Filter);
            (sync.end, sync.outcome) = self.commit(Table::Filter, sync.end, phases.filter, refused);
            if sync.outcome != Outcome::Done {
                return sync;
            }
            sync.filter = Some(sync.end);
        }
        (sync.end, sync.outcome) = self.commit(Table::Nat, sync.end, phases.nat, fault.is_some());
        sync.nat = (sync.outcome == Outcome::Done).then_some(sync.end);
        sync
    }

    /// iptables-restore takes the lock for each table anew.
    fn commit(
        &mut self,
        table: Table,
        at: SimTime,
        takes: Duration,
        refused: bool,
    ) -> (SimTime, Outcome) {
        let from = if self.settings.backend.takes_lock() {
            match self.lock.acquire(at) {
                Wait::Acquired(from) => from,
                Wait::GivenUp(at) => return (at, Outcome::NoLock(table)),
            }
        } else {
            at
        };
        let end = from + takes;
        self.lock.release(end);
        (end, if refused { Outcome::Refused(table) } else { Outcome::Done })
    }
}

#[cfg(test)]
mod tests;
