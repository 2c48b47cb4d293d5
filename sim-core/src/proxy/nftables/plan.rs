//! What chains and sets there are, before they are filled.

use std::sync::Arc;

use super::names;
use crate::proxy::endpoint::{Categorized, Endpoint};
use crate::proxy::service::ServicePort;
use crate::proxy::state::State;

/// Chains and sets of all service ports.
pub(super) struct Plan<'s> {
    pub(super) ports: Vec<PlannedPort<'s>>,
    /// Names of service ports' chains, in the order in which they were thought of.
    pub(super) chains: Vec<Arc<str>>,
    /// Names of affinity sets, likewise, with their timeouts in seconds.
    pub(super) affinity: Vec<(Arc<str>, u32)>,
}

/// One service port. Chains and sets are places in the plan's lists.
pub(super) struct PlannedPort<'s> {
    pub(super) port: &'s ServicePort,
    pub(super) chosen: Categorized<'s>,
    /// Chooses among all endpoints.
    pub(super) service: Option<u32>,
    /// Chooses among the node's own.
    pub(super) local: Option<u32>,
    /// Where traffic from outside comes in.
    pub(super) external: Option<u32>,
    /// Drops what comes from sources that are not let in.
    pub(super) firewall: Option<u32>,
    /// The endpoints that are reached, with their chains.
    pub(super) endpoints: Vec<(&'s Endpoint, PlannedEndpoint)>,
    /// The places of endpoints in that list by their items, sorted.
    by_item: Vec<(u32, usize)>,
}

/// The chain of an endpoint, and the set of its clients.
#[derive(Clone, Copy)]
pub(super) struct PlannedEndpoint {
    pub(super) chain: Option<u32>,
    pub(super) affinity: Option<u32>,
}

/// What becomes of packets to a destination that has no endpoint for them.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Refusal {
    Reject,
    Drop,
}

impl<'s> Plan<'s> {
    pub(super) fn of(state: &'s State) -> Plan<'s> {
        let ports = Vec::with_capacity(state.ports.len());
        let mut plan = Plan { ports, chains: Vec::new(), affinity: Vec::new() };
        for (port, endpoints) in &state.ports {
            let planned = plan.port(state, port, endpoints);
            plan.ports.push(planned);
        }
        plan
    }

    fn port(
        &mut self,
        state: &State,
        port: &'s ServicePort,
        endpoints: &'s [Endpoint],
    ) -> PlannedPort<'s> {
        let chosen = state.categorize(port, endpoints);
        let base = names::service_base(&port.name);
        let guarded =
            !port.load_balancer_vips.is_empty() && !port.load_balancer_source_ranges.is_empty();
        let mut chain = |wanted: bool, prefix: &str| {
            wanted.then(|| self.add_chain(format!("{prefix}-{base}").into()))
        };
        let service = chain(!chosen.cluster.is_empty(), "service");
        let local = chain(!chosen.local.is_empty(), "local");
        let external = chain(chosen.any && port.is_externally_accessible(), "external");
        let firewall = chain(guarded, "firewall");
        let has_chains = port.affinity.is_some() || !state.profile.squashes_nftables();
        let reached = chosen.reachable.iter().map(|endpoint| {
            let mut planned = PlannedEndpoint { chain: None, affinity: None };
            if has_chains {
                let base = names::endpoint_base(&port.name, endpoint);
                planned.affinity = port.affinity.map(|seconds| {
                    self.affinity.push((format!("affinity-{base}").into(), seconds));
                    self.affinity.len() as u32 - 1
                });
                planned.chain = Some(self.add_chain(format!("endpoint-{base}").into()));
            }
            (*endpoint, planned)
        });
        let endpoints: Vec<(&Endpoint, PlannedEndpoint)> = reached.collect();
        let items = endpoints.iter().enumerate().map(|(at, (endpoint, _))| (endpoint.item, at));
        let mut by_item: Vec<(u32, usize)> = items.collect();
        by_item.sort_unstable();
        PlannedPort { port, chosen, service, local, external, firewall, endpoints, by_item }
    }

    fn add_chain(&mut self, name: Arc<str>) -> u32 {
        self.chains.push(name);
        self.chains.len() as u32 - 1
    }
}

impl PlannedPort<'_> {
    /// Returns the chain of an endpoint that is reached.
    pub(super) fn endpoint(&self, endpoint: &Endpoint) -> Option<PlannedEndpoint> {
        let at = self.by_item.binary_search_by_key(&endpoint.item, |(item, _)| *item).ok()?;
        Some(self.endpoints[self.by_item[at].1].1)
    }

    /// Returns the chain that packets to the ClusterIP go to.
    pub(super) fn internal(&self) -> Option<u32> {
        if self.port.internal_local { self.local } else { self.service }
    }

    /// Returns what becomes of packets to the ClusterIP that go nowhere.
    pub(super) fn internal_refusal(&self) -> Option<Refusal> {
        self.refusal(self.port.internal_local)
    }

    /// Returns what becomes of packets from outside that go nowhere.
    pub(super) fn external_refusal(&self) -> Option<Refusal> {
        self.refusal(self.port.external_local)
    }

    fn refusal(&self, local: bool) -> Option<Refusal> {
        if !self.chosen.any {
            Some(Refusal::Reject)
        } else if local && self.chosen.local.is_empty() {
            Some(Refusal::Drop)
        } else {
            None
        }
    }
}
