//! The model against the running kernel.

mod conntrack;
mod kernel;
mod lab;
mod memory;
mod raw;
