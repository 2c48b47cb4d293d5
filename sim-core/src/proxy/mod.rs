//! Service proxies: what each node's rules say, and since when.
//!
//! ```text
//! objects ─Objects::state─▶ service ports, endpoints ─categorize─▶ what packets may reach
//!                                              ├─ iptables, nftables, ipvs ─▶ rules
//!                                              └─ ebpf ─▶ maps
//! ```
//!
//! [`state`] is what a proxy on a node is told, [`service`] and [`endpoint`] are its parts and
//! [`endpoint::categorize`] is the one choice of endpoints for all modes. [`profile`] says which
//! version of Kubernetes is meant where they differ.
//!
//! [`matrix`] asks the rules of each mode who reaches what.
//!
//! In the simulator, rules are kept once, as versions in the Services' histories; a node's rules
//! at a time are a view of them ([`plane`]).

pub mod ebpf;
pub mod endpoint;
pub mod iptables;
pub mod ipvs;
pub mod matrix;
pub mod names;
pub mod nftables;
pub mod plane;
pub mod profile;
pub mod service;
pub mod state;
pub mod sync;
pub mod userspace;
