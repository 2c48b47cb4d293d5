//! The model against the running kernel.

mod cases;
mod cluster;
mod conntrack;
mod iptables_text;
mod kernel;
mod lab;
mod memory;
mod nft;
mod raw;
