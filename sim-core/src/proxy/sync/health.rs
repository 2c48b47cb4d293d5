//! What a proxy says of itself: `/healthz`, `/livez` and the port that load balancers ask.
//!
//! Kubernetes: pkg/proxy/healthcheck/proxy_health.go and service_health.go.

use std::time::Duration;

use crate::time::SimTime;

/// Whether updates are applied in time, for one family.
#[derive(Clone, Debug, Default)]
pub struct Health {
    /// Since when the oldest update waits that no sync has applied.
    oldest: Option<SimTime>,
}

/// A node as far as load balancers should send to it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NodeEligibility {
    /// It has a deletion timestamp.
    pub deleted: bool,
    /// It has the taint `ToBeDeletedByClusterAutoscaler`.
    pub tainted: bool,
}

/// What the health check of a Service answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServiceHealth {
    /// The status code of HTTP.
    pub status: u16,
    /// How many of the node's addresses serve the Service, as in the body and, in newer versions,
    /// in the header `X-Load-Balancing-Endpoint-Weight`.
    pub local_endpoints: usize,
}

impl Health {
    /// Notes that a sync was asked for.
    pub fn queued(&mut self, at: SimTime) {
        self.oldest = Some(self.oldest.map_or(at, |oldest| oldest.min(at)));
    }

    /// Notes that a sync has succeeded. What was asked for during the sync counts as applied, too.
    pub fn updated(&mut self) {
        self.oldest = None;
    }

    /// Returns whether no update has been waiting for longer than twice the sync period. A proxy
    /// that has just started is healthy.
    pub fn is_healthy(&self, now: SimTime, sync_period: Duration) -> bool {
        self.oldest.is_none_or(|oldest| now.saturating_since(oldest) < 2 * sync_period)
    }
}

/// Returns the status code of `/healthz`, given the health of each family.
pub fn healthz(healthy: &[bool], node: NodeEligibility) -> u16 {
    if node.deleted || node.tainted { 503 } else { livez(healthy) }
}

/// Returns the status code of `/livez`: whether the node should get traffic does not matter.
pub fn livez(healthy: &[bool]) -> u16 {
    if healthy.iter().all(|&healthy| healthy) { 200 } else { 503 }
}

/// Returns what a node's `healthCheckNodePort` answers for a Service with so many local endpoints
/// that are ready; terminating ones do not count.
pub fn service(local_ready: usize, proxy_healthy: bool) -> ServiceHealth {
    let status = if local_ready > 0 && proxy_healthy { 200 } else { 503 };
    ServiceHealth { status, local_endpoints: local_ready }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PERIOD: Duration = Duration::from_secs(30);

    fn at(seconds: u64) -> SimTime {
        SimTime::from_nanos(seconds * 1_000_000_000)
    }

    #[test]
    fn an_update_may_wait_for_twice_the_sync_period() {
        let mut health = Health::default();
        assert!(health.is_healthy(at(500), PERIOD), "nothing was asked for");
        health.queued(at(1000));
        health.queued(at(1050));
        assert!(health.is_healthy(at(1059), PERIOD));
        assert!(!health.is_healthy(at(1060), PERIOD), "the oldest counts");
        health.updated();
        assert!(health.is_healthy(at(1060), PERIOD));
    }

    #[test]
    fn a_node_that_is_going_fails_healthz_only() {
        let going = NodeEligibility { tainted: true, ..NodeEligibility::default() };
        assert_eq!((healthz(&[true, true], going), livez(&[true, true])), (503, 200));
        let deleted = NodeEligibility { deleted: true, ..NodeEligibility::default() };
        assert_eq!(healthz(&[true], deleted), 503);
        assert_eq!(healthz(&[true, false], NodeEligibility::default()), 503, "one family is late");
        assert_eq!(healthz(&[true, true], NodeEligibility::default()), 200);
    }

    #[test]
    fn a_service_is_healthy_where_it_has_ready_endpoints() {
        assert_eq!(service(2, true), ServiceHealth { status: 200, local_endpoints: 2 });
        assert_eq!(service(0, true).status, 503, "terminating endpoints are not counted");
        assert_eq!(service(2, false).status, 503);
    }
}
