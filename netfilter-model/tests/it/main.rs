//! The model against the running kernel.

mod cases;
mod cluster;
mod conntrack;
mod kernel;
mod lab;
mod memory;
mod raw;
