//! A node's whole ruleset, kept up to date Service by Service.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use netfilter_model::DeviceNameError;
use netfilter_model::hook::Table;
use netfilter_model::rule::{Fragment, FragmentId, FragmentView, Ruleset, ValidationError};

use super::LARGE_CLUSTER_ENDPOINTS;
use super::common::{Common, Settings};
use super::generate::{Backends, EndpointText, PortText, Shares, backends};
use super::restore::{self, Dispatch, Part};
use crate::config::ObjectName;
use crate::proxy::endpoint::Endpoint;
use crate::proxy::service::{ServicePort, ServicePortName};
use crate::proxy::state::State;

/// kube-proxy in iptables mode on one node, for one family.
#[derive(Clone, Debug)]
pub struct Proxier {
    common: Common,
    /// Where it runs, and its configuration; the Services are in `ports`.
    place: State,
    ports: BTreeMap<ServicePortName, PortState>,
    services: BTreeMap<ObjectName, Vec<ServicePortName>>,
    endpoints: usize,
    next: u32,
    shares: Shares,
}

/// One service port and its rules.
#[derive(Clone, Debug)]
struct PortState {
    port: ServicePort,
    text: PortText,
    id: FragmentId,
    endpoints: usize,
    fragment: Arc<Fragment>,
    dispatch: Dispatch,
    /// Endpoints whose address is not written in its shortest form, by their items.
    odd: BTreeMap<u32, Arc<str>>,
}

/// Rules that cannot be made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RulesError {
    /// Pods are told by a device whose name the kernel would refuse.
    #[error("detectLocal: {0}")]
    Device(#[from] DeviceNameError),
    /// The kernel would refuse a rule; that is a bug.
    #[error(transparent)]
    Rules(#[from] ValidationError),
}

/// What a sync writes.
#[derive(Clone, Copy, Debug)]
pub enum Sync<'a> {
    /// Everything.
    Full,
    /// The chains that all Services share, and those of these Services.
    Partial(&'a BTreeSet<ObjectName>),
}

impl Proxier {
    /// Returns the proxy with the rules for all that it has been told.
    ///
    /// # Errors
    ///
    /// If there are no such rules.
    pub fn new(state: &State) -> Result<Proxier, RulesError> {
        Proxier::with(state, Settings::of(state)?)
    }

    /// Returns the proxy under settings other than its configuration's.
    ///
    /// # Errors
    ///
    /// If there are no such rules.
    pub fn with(state: &State, settings: Settings) -> Result<Proxier, RulesError> {
        let place = State {
            family: state.family,
            node: state.node.clone(),
            config: state.config.clone(),
            profile: state.profile,
            ports: Vec::new(),
        };
        let mut proxier = Proxier {
            common: Common::new(settings)?,
            place,
            ports: BTreeMap::new(),
            services: BTreeMap::new(),
            endpoints: state.endpoint_count(),
            next: 1,
            shares: Shares::default(),
        };
        for (port, endpoints) in &state.ports {
            let name = port.name.clone();
            let of_service = proxier.services.entry(name.service.clone()).or_default();
            of_service.push(name.clone());
            let port = proxier.port(port.clone(), endpoints, None)?;
            proxier.ports.insert(name, port);
        }
        Ok(proxier)
    }

    /// Replaces what is known of a Service; without ports, the Service is gone. Ports of which
    /// nothing changed keep their rules as they are, as under a partial sync.
    ///
    /// # Errors
    ///
    /// If there are no such rules.
    pub fn set(
        &mut self,
        service: &ObjectName,
        ports: &[(ServicePort, Vec<Endpoint>)],
    ) -> Result<(), RulesError> {
        let mut before: BTreeMap<ServicePortName, PortState> = BTreeMap::new();
        for name in self.services.remove(service).unwrap_or_default() {
            if let Some(state) = self.ports.remove(&name) {
                self.endpoints -= state.endpoints;
                before.insert(name, state);
            }
        }
        self.endpoints += ports.iter().map(|(_, endpoints)| endpoints.len()).sum::<usize>();
        for (port, endpoints) in ports {
            let state = self.port(port.clone(), endpoints, before.remove(&port.name))?;
            self.ports.insert(port.name.clone(), state);
            self.services.entry(service.clone()).or_default().push(port.name.clone());
        }
        Ok(())
    }

    fn port(
        &mut self,
        port: ServicePort,
        endpoints: &[Endpoint],
        before: Option<PortState>,
    ) -> Result<PortState, RulesError> {
        let (id, text) = match before {
            Some(before) => (before.id, before.text),
            None => {
                let id = FragmentId(self.next);
                self.next += 1;
                (id, PortText::new(port.name.text.clone(), port.name.protocol))
            }
        };
        let chosen = self.place.categorize(&port, endpoints);
        let protocol = port.name.protocol;
        let texts = chosen.reachable.iter();
        let texts = texts.map(|endpoint| EndpointText::new(&text, protocol, &endpoint.text));
        let texts: Vec<EndpointText> = texts.collect();
        let list = backends(&chosen, &texts);
        self.shares.extend_to(list.len());
        let comments = self.has_comments();
        let backends = Backends { list: &list, any: chosen.any, comments };
        let fragment = self.common.fragment(id, &port, &text, backends, &self.shares)?;
        let fragment = Arc::new(fragment);
        let is_odd = |endpoint: &&&Endpoint| {
            endpoint.addr.is_ipv6() && endpoint.addr_text() != endpoint.addr.to_string()
        };
        let odd = chosen.reachable.iter().filter(is_odd);
        let odd = odd.map(|endpoint| (endpoint.item, endpoint.addr_text().into())).collect();
        let dispatch = Dispatch::of(&self.common, &fragment);
        Ok(PortState { port, text, id, endpoints: endpoints.len(), fragment, dispatch, odd })
    }

    /// Returns whether rules of single endpoints carry comments: not in a large cluster.
    pub fn has_comments(&self) -> bool {
        self.endpoints <= LARGE_CLUSTER_ENDPOINTS
    }

    /// Returns what does not depend on Services.
    pub fn common(&self) -> &Common {
        &self.common
    }

    /// Returns how many service ports there are.
    pub fn port_count(&self) -> usize {
        self.ports.len()
    }

    /// Returns how many endpoints all service ports have, usable or not.
    pub fn endpoint_count(&self) -> usize {
        self.endpoints
    }

    /// Returns the name of the service port that an origin's owner is.
    pub fn port_name(&self, owner: u32) -> Option<&ServicePortName> {
        let mut ports = self.ports.iter();
        ports.find(|(_, port)| port.id.0 == owner + 1).map(|(name, _)| name)
    }

    fn fragments(&self) -> Vec<Arc<Fragment>> {
        self.ports.values().map(|port| port.fragment.clone()).collect()
    }

    /// Returns the rules for packets to run through.
    pub fn view(&self) -> FragmentView {
        FragmentView::new(Arc::new(self.common.base.clone()), self.fragments())
    }

    /// Returns the rules as one plain ruleset, for rendering.
    ///
    /// # Errors
    ///
    /// If the rules would be refused by the kernel; that is a bug.
    pub fn to_ruleset(&self) -> Result<Ruleset, ValidationError> {
        Ruleset::assemble(&self.common.base, &self.fragments())
    }

    /// Returns how many rules a table has.
    pub fn rule_count(&self, table: Table) -> usize {
        let base = &self.common.base;
        let common: usize = base.chains(table).iter().map(|chain| chain.rules().len()).sum();
        let added = self.ports.values().map(|port| port.fragment.rule_count(base, table));
        common + added.sum::<usize>()
    }

    /// Returns whether a chain of table nat is one of a service port or endpoint.
    ///
    /// Kubernetes: pkg/proxy/iptables/proxier.go, isServiceChainName.
    pub fn is_service_chain(name: &str) -> bool {
        let prefixes = ["KUBE-SVC-", "KUBE-SVL-", "KUBE-SEP-", "KUBE-FW-", "KUBE-EXT-"];
        prefixes.iter().any(|prefix| name.starts_with(prefix))
    }

    /// Returns the names of the service ports' chains of table nat.
    pub fn service_chains(&self) -> BTreeSet<&str> {
        let chains = self.ports.values().flat_map(|port| port.fragment.chains(Table::Nat));
        chains.map(|chain| &**chain.name()).collect()
    }

    /// Returns what kube-proxy feeds to `iptables-restore --noflush --counters`. Of `existing`,
    /// the chains that the kernel has in table nat, those that no service port has any more are
    /// deleted.
    pub fn restore(&self, sync: Sync<'_>, existing: &[&str]) -> String {
        let stale: Vec<&str> = if existing.is_empty() {
            Vec::new()
        } else {
            let live = self.service_chains();
            let stale = existing.iter().copied();
            stale.filter(|name| Proxier::is_service_chain(name) && !live.contains(name)).collect()
        };
        let parts = self.ports.values().map(|state| Part {
            port: &state.port,
            fragment: &state.fragment,
            odd: &state.odd,
            dispatch: &state.dispatch,
            changed: match sync {
                Sync::Full => true,
                Sync::Partial(changed) => changed.contains(&state.port.name.service),
            },
        });
        restore::write(&self.common, parts, &stale)
    }
}
