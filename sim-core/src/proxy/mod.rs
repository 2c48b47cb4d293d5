//! Service proxies: what each node's rules say, and since when.
//!
//! Rules are kept once, as versions in the Services' histories; a node's rules at a time are a
//! view of them ([`iptables::NodeRules`]).

pub mod iptables;
pub mod names;
