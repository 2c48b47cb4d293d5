//! Records to tables, CSV and charts.
//!
//! ```text
//! Recorder ──► collect ──► csv      the files of a run
//!                 │   ──► plot     its timeline and its windows
//!                 │   ──► summary  what a terminal shows
//!                 ▼
//!               stats ──► csv      the files of a sweep
//!                     ──► plot     its lines, heat map and bars
//!                     ──► summary
//! ```
//!
//! [`matrix`] shows who reaches what; it needs no run.
//!
//! It computes nothing that the model should have said: only sums, means, quantiles and intervals
//! over what [`sim_core::record`] holds.

pub mod collect;
pub mod csv;
pub mod matrix;
pub mod plot;
pub mod stats;
pub mod summary;
