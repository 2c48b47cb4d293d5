//! The event engine, and the cluster that runs on it.

pub mod config;
pub mod engine;
pub mod event;
pub mod ids;
pub mod kube;
pub mod net;
pub mod propagation;
pub mod proxy;
pub mod record;
pub mod traffic;
pub mod window;
pub mod world;

pub use netfilter_model::time;
pub use world::{RunError, World, check, run, run_with_shuffled_ties, world_at};
