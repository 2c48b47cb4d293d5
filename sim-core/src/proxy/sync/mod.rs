//! When a proxy writes rules: what has changed, when it may run, what a run costs, what can go
//! wrong.
//!
//! ```text
//! watch ─▶ change ─▶ runner ─▶ plan: prepare ─ wait for the lock ─ filter ─ nat ─ clean up ─▶ live
//!                      ▲                                   │
//!                      └──────── minSyncPeriod ────────────┘
//! ```
//!
//! Everything here is a state machine without a clock: times go in, times come out. One
//! [`Proxier`] is one family of one node; its syncs are serial. What a sync does is known when it
//! starts, so a simulation needs one event for each. [`Nodes`] are all loops of a simulated
//! cluster, and the only part that schedules.
//!
//! ```
//! use std::time::Duration;
//! use sim_core::proxy::sync::runner::{Bounds, Runner};
//! use sim_core::time::SimTime;
//!
//! let at = |millis: u64| SimTime::from_nanos(millis * 1_000_000);
//! let seconds = Duration::from_secs;
//! let bounds = Bounds { min: seconds(1), max: seconds(3600), retry: seconds(30) };
//! let mut runner = Runner::waiting_after_end(bounds);
//! runner.request(at(5000)); // after a quiet time: at once
//! assert_eq!(runner.due(), at(5000));
//! runner.ran(at(5000), at(5300), true);
//! runner.request(at(5100)); // a second after the end
//! assert_eq!(runner.due(), at(6300));
//! ```

pub mod change;
pub mod conntrack;
pub mod cost;
pub mod health;
pub mod lock;
pub mod nodes;
pub mod proxier;
pub mod runner;

pub use cost::{Backend, SyncCost, Work};
pub use nodes::{Event, Nodes};
pub use proxier::{Proxier, Settings, Sync};
