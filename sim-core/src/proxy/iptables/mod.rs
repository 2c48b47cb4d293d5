//! kube-proxy's iptables mode.
//!
//! ```text
//!                   Settings ─Common::new─▶ what does not depend on Services ─┐
//! a port's endpoints ─backends─▶ Common::fragment ─▶ what one port adds ──────┴─▶ rules
//! ```
//!
//! [`Proxier`] is a node's whole ruleset from its proxy's state, as one value: it runs packets,
//! prints as `iptables-save` does and as what kube-proxy feeds to `iptables-restore`, and counts.
//! The simulator shares the same parts among thousands of nodes ([`plane`](super::plane)).
//!
//! Kubernetes: pkg/proxy/iptables/proxier.go, syncProxyRules.

pub mod common;
pub mod generate;
mod proxier;
mod restore;

pub use proxier::{Proxier, RulesError, Sync};

/// Above this many endpoints in all, the rules of single endpoints carry no comments.
///
/// Kubernetes: pkg/proxy/iptables/proxier.go, largeClusterEndpointsThreshold.
pub const LARGE_CLUSTER_ENDPOINTS: usize = 1000;
