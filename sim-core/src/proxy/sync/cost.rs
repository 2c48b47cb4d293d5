//! What a sync costs, as a function of what it must write.
//!
//! ```text
//! prepare  base/2 + walk every service port + make the rules to be written [+ ensure] [+ list]
//! commit   base/2 + held rules × per_rule_held
//!                 + written rules × per_rule_written × (1 + written / doubling_rules)
//! ```
//!
//! The coefficients of a back end are fitted to times of real restores, which grow faster than
//! the rules; docs/fidelity.md has the errors of the fit.

use std::ops::{AddAssign, SubAssign};
use std::time::Duration;

use crate::config::SyncCostConfig;

/// What a proxy writes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backend {
    /// iptables mode through iptables-legacy: each change replaces a whole table in the kernel.
    IptablesLegacy,
    /// iptables mode through iptables-nft.
    IptablesNft,
    /// nftables mode.
    Nftables,
    /// IPVS mode: virtual and real servers count as rules.
    Ipvs,
    /// eBPF maps: entries count as rules.
    Ebpf,
}

/// The coefficients of a sync's duration.
#[derive(Clone, Debug, PartialEq)]
pub struct SyncCost {
    /// Of any sync: starting programs, empty transactions.
    pub base: Duration,
    /// Of a full sync: chains and jumps looked for one by one.
    pub ensure: Duration,
    /// Of walking one service port, changed or not.
    pub per_service: Duration,
    /// Of making one rule that is to be written.
    pub per_rule_made: Duration,
    /// Of loading one rule.
    pub per_rule_written: Duration,
    /// Of one rule that is in the table afterwards, written or not.
    pub per_rule_held: Duration,
    /// Of one rule of the kernel's listing, where stale chains are looked for.
    pub per_rule_listed: Duration,
    /// The number of rules from which on a load costs twice as much for each rule.
    pub doubling_rules: u64,
    /// Multiplies everything; zero turns the cost of syncs off.
    pub scale: f64,
}

/// Rules, by the transaction that writes them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rules {
    /// In table filter, which iptables-restore commits first; elsewhere zero.
    pub filter: u64,
    /// In table nat, or in the only transaction that there is.
    pub nat: u64,
}

/// How much there is of Services and their rules.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Service ports.
    pub services: u64,
    /// Endpoints, summed over service ports.
    pub endpoints: u64,
    /// Rules.
    pub held: Rules,
    /// Rules among them that every sync writes, whatever has changed.
    pub shared: Rules,
}

/// No part of a sync takes longer: nobody waits so long, and times stay far from what they can hold.
const LONGEST_PHASE: Duration = Duration::from_secs(365 * 24 * 3600);

impl Tally {
    /// Returns how much so many of it are.
    pub fn times(self, count: u64) -> Tally {
        let rules = |rules: Rules| Rules { filter: rules.filter * count, nat: rules.nat * count };
        Tally {
            services: self.services * count,
            endpoints: self.endpoints * count,
            held: rules(self.held),
            shared: rules(self.shared),
        }
    }
}

impl AddAssign for Rules {
    fn add_assign(&mut self, other: Rules) {
        self.filter += other.filter;
        self.nat += other.nat;
    }
}

impl SubAssign for Rules {
    fn sub_assign(&mut self, other: Rules) {
        self.filter -= other.filter;
        self.nat -= other.nat;
    }
}

impl AddAssign for Tally {
    fn add_assign(&mut self, other: Tally) {
        self.services += other.services;
        self.endpoints += other.endpoints;
        self.held += other.held;
        self.shared += other.shared;
    }
}

impl SubAssign for Tally {
    fn sub_assign(&mut self, other: Tally) {
        self.services -= other.services;
        self.endpoints -= other.endpoints;
        self.held -= other.held;
        self.shared -= other.shared;
    }
}

/// What a sync has to do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Work {
    /// Whether it is a full sync.
    pub full: bool,
    /// Whether the kernel's chains are listed to find stale ones.
    pub lists: bool,
    /// Service ports in all.
    pub services: u64,
    /// Rules in the tables afterwards.
    pub held: Rules,
    /// Rules that are written.
    pub written: Rules,
}

/// How long the parts of a sync take.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Phases {
    /// Until the restore begins.
    pub prepare: Duration,
    /// From then until table filter is committed; nothing where there is one transaction.
    pub filter: Duration,
    /// From then until the last transaction is committed.
    pub nat: Duration,
}

impl Phases {
    /// Returns the whole.
    pub fn total(&self) -> Duration {
        self.prepare + self.filter + self.nat
    }
}

impl Backend {
    /// Returns whether table filter is committed apart, before nat.
    pub fn commits_by_table(self) -> bool {
        matches!(self, Backend::IptablesLegacy | Backend::IptablesNft)
    }

    /// Returns whether the xtables lock is taken.
    pub fn takes_lock(self) -> bool {
        self == Backend::IptablesLegacy
    }
}

impl SyncCost {
    /// Returns the fitted coefficients of a back end.
    pub fn of(backend: Backend) -> SyncCost {
        let micros = Duration::from_micros;
        let nanos = Duration::from_nanos;
        // What kube-proxy itself does, whatever it writes to.
        let general = SyncCost {
            base: Duration::ZERO,
            ensure: Duration::ZERO,
            per_service: micros(80),
            per_rule_made: nanos(4_700),
            per_rule_written: Duration::ZERO,
            per_rule_held: Duration::ZERO,
            per_rule_listed: Duration::ZERO,
            doubling_rules: u64::MAX,
            scale: 1.0,
        };
        match backend {
            Backend::IptablesLegacy => SyncCost {
                base: micros(10_500),
                ensure: micros(25_000), // about twenty calls of 1.2 ms
                per_rule_written: nanos(5_730),
                per_rule_held: nanos(9_010),
                per_rule_listed: nanos(7_000),
                doubling_rules: 59_800,
                ..general
            },
            Backend::IptablesNft => SyncCost {
                base: micros(26_000),
                ensure: micros(45_000), // about twenty calls of 2.2 ms
                per_rule_written: nanos(36_800),
                per_rule_held: nanos(12),
                per_rule_listed: nanos(7_000),
                doubling_rules: 361_000,
                ..general
            },
            Backend::Nftables => SyncCost {
                base: micros(22_000),
                per_rule_written: nanos(17_700),
                per_rule_held: nanos(6_490),
                doubling_rules: 5_910,
                ..general
            },
            // Simplified: no measured times of IPVS and eBPF syncs stand behind their cost.
            Backend::Ipvs => SyncCost {
                base: micros(10_000),
                per_rule_held: nanos(20_000), // asked for with every sync, one by one
                per_rule_written: micros(100),
                ..general
            },
            Backend::Ebpf => SyncCost {
                per_service: Duration::ZERO,
                per_rule_made: Duration::ZERO,
                per_rule_written: micros(20),
                ..general
            },
        }
    }

    /// Returns the fitted coefficients of a back end, but for those that are given.
    pub fn with(backend: Backend, given: &SyncCostConfig) -> SyncCost {
        let fitted = SyncCost::of(backend);
        SyncCost {
            base: given.base.unwrap_or(fitted.base),
            ensure: given.ensure.unwrap_or(fitted.ensure),
            per_service: given.per_service.unwrap_or(fitted.per_service),
            per_rule_made: given.per_rule_made.unwrap_or(fitted.per_rule_made),
            per_rule_written: given.per_rule_written.unwrap_or(fitted.per_rule_written),
            per_rule_held: given.per_rule_held.unwrap_or(fitted.per_rule_held),
            per_rule_listed: given.per_rule_listed.unwrap_or(fitted.per_rule_listed),
            doubling_rules: given.doubling_rules.unwrap_or(fitted.doubling_rules),
            scale: given.scale,
        }
    }

    /// Returns how long a sync takes that nothing holds up.
    pub fn phases(&self, backend: Backend, work: &Work) -> Phases {
        let made = (work.written.filter + work.written.nat) as f64;
        let held = (work.held.filter + work.held.nat) as f64;
        let half = nanos(self.base) / 2.0;
        let mut prepare = half
            + nanos(self.per_service) * work.services as f64
            + nanos(self.per_rule_made) * made;
        if work.full {
            prepare += nanos(self.ensure);
        }
        if work.lists {
            prepare += nanos(self.per_rule_listed) * held;
        }
        let (filter, nat) = if backend.commits_by_table() {
            let filter = self.load(work.written.filter, work.held.filter);
            (half / 2.0 + filter, half / 2.0 + self.load(work.written.nat, work.held.nat))
        } else {
            (0.0, half + self.load(work.written.nat, work.held.nat))
        };
        let span = |nanos: f64| {
            Duration::from_nanos((nanos * self.scale).round() as u64).min(LONGEST_PHASE)
        };
        Phases { prepare: span(prepare), filter: span(filter), nat: span(nat) }
    }

    /// Returns the nanoseconds of loading `written` rules into a table that then holds `held`.
    fn load(&self, written: u64, held: u64) -> f64 {
        let (written, held) = (written as f64, held as f64);
        nanos(self.per_rule_held) * held
            + nanos(self.per_rule_written) * written * (1.0 + written / self.doubling_rules as f64)
    }
}

fn nanos(span: Duration) -> f64 {
    span.as_nanos() as f64
}

#[cfg(test)]
mod tests;
