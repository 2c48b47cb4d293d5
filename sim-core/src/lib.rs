//! The event engine, and the cluster that runs on it.

pub mod config;
pub mod engine;
pub mod ids;
pub mod record;

pub use netfilter_model::time;
