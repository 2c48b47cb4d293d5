//! Cilium in place of kube-proxy: Services as entries of eBPF maps, and no rules.
//!
//! ```text
//!  State ─▶ service ports ─categorize─▶ frontends: ClusterIP, NodePort, load balancer, external IP
//!                                         └─ slots ─▶ backends, active ones first
//! ```
//!
//! [`Ebpf::of`] makes the maps of one family from what any proxy is told. There is no kube-proxy Pod
//! and no `KUBE-` chain on such a node ([`Ebpf::ruleset`]); how much there is instead,
//! [`Maps::counts`] says.
//!
//! Cilium: pkg/loadbalancer/reflectors/conversions.go, convertService; reconciler/bpf_reconciler.go,
//! updateFrontend.

use std::net::IpAddr;
use std::sync::Arc;

use netfilter_model::ebpf::{
    Algorithm, Backend, BackendId, BackendState, Frontend, FrontendKey, FrontendKind, Maglev, Maps,
    Policies, Scope, View as _,
};
use netfilter_model::hook::{Hook, Table};
use netfilter_model::rule::{Ruleset, RulesetBuilder, ValidationError};

use super::endpoint::{Categorized, Endpoint};
use super::nftables::node_port_ips;
use super::service::ServicePort;
use super::state::State;

/// The entries that the service map has room for, unless the agent is told otherwise.
// Cilium: --bpf-lb-map-max
pub const SERVICE_MAP_ENTRIES_MAX: usize = 65536;

/// What an agent of one family keeps on a node.
#[derive(Clone, Debug, PartialEq)]
pub struct Ebpf {
    /// The maps.
    pub maps: Maps,
}

/// More frontends than there are numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0} frontends; there are numbers for 65535")]
pub struct TooManyFrontends(pub usize);

impl Ebpf {
    /// Returns what the agent keeps once it has heard everything.
    ///
    /// # Errors
    ///
    /// If there are more frontends than the numbers of 16 bits by which answers find them.
    // Simplified: each family's frontends and backends are numbered from 1 on in order of the
    // Services' names; an agent numbers both families together, as it hears of them
    pub fn of(state: &State, algorithm: Algorithm) -> Result<Ebpf, TooManyFrontends> {
        let mut writer = Writer::new(state, algorithm);
        let of_one = state.ports.chunk_by(|(a, _), (b, _)| a.name.service == b.name.service);
        for ports in of_one {
            writer.service(ports);
        }
        match writer.refused {
            0 => Ok(Ebpf { maps: writer.maps }),
            refused => Err(TooManyFrontends(usize::from(u16::MAX) + refused)),
        }
    }

    /// Returns the node's rules: the built-in chains, empty.
    ///
    /// # Errors
    ///
    /// Never, as long as empty chains are valid.
    // Simplified: Cilium's own chains, which mark and masquerade, are absent
    pub fn ruleset() -> Result<Ruleset, ValidationError> {
        let mut builder = RulesetBuilder::new();
        for (table, hooks) in [
            (Table::Filter, [Hook::Input, Hook::Forward, Hook::Output].as_slice()),
            (Table::Nat, &[Hook::Prerouting, Hook::Input, Hook::Output, Hook::Postrouting]),
        ] {
            for hook in hooks {
                builder.builtin(table, *hook);
            }
        }
        builder.build()
    }
}

/// One port of a Service, with what its frontends go to.
struct Port<'s> {
    port: &'s ServicePort,
    endpoints: &'s [Endpoint],
    chosen: Categorized<'s>,
}

struct Writer<'s> {
    state: &'s State,
    algorithm: Algorithm,
    /// The node's addresses at which it accepts NodePort traffic, after the one for all nodes'.
    node_addresses: Vec<IpAddr>,
    maps: Maps,
    refused: usize,
}

impl<'s> Writer<'s> {
    fn new(state: &'s State, algorithm: Algorithm) -> Writer<'s> {
        let all = || state.node.addresses.clone();
        let mut node_addresses = node_port_ips(state).unwrap_or_else(all);
        node_addresses.retain(|address| !address.is_loopback());
        Writer { state, algorithm, node_addresses, maps: Maps::default(), refused: 0 }
    }

    fn service(&mut self, ports: &'s [(ServicePort, Vec<Endpoint>)]) {
        let categorized = ports.iter().map(|(port, endpoints)| {
            let chosen = self.state.categorize(port, endpoints);
            Port { port, endpoints, chosen }
        });
        let ports: Vec<Port<'s>> = categorized.collect();
        let Some(first) = ports.first() else {
            return;
        };
        for port in &ports {
            self.add(port, FrontendKind::ClusterIp, (port.port.cluster_ip, port.port.port), None);
        }
        let policies = policies(first.port);
        let two = policies.external_local != policies.internal_local;
        let scopes = if two { &[Scope::External, Scope::Internal][..] } else { &[Scope::External] };
        for scope in scopes {
            for port in &ports {
                let Some(number) = port.port.node_port else { continue };
                let at_all = FrontendKey::external(port.port.cluster_ip, number, protocol(port));
                let addresses = [at_all.wildcard().address];
                let addresses = addresses.into_iter().chain(self.node_addresses.clone());
                for address in addresses {
                    self.add(port, FrontendKind::NodePort, (address, number), Some(*scope));
                }
            }
        }
        for vip in &first.port.load_balancer_vips {
            for scope in scopes {
                for port in &ports {
                    let at = (*vip, port.port.port);
                    self.add(port, FrontendKind::LoadBalancer, at, Some(*scope));
                }
            }
        }
        for address in &first.port.external_ips {
            for port in &ports {
                let at = (*address, port.port.port);
                self.add(port, FrontendKind::ExternalIps, at, Some(Scope::External));
            }
        }
        for port in &ports {
            for endpoint in port.endpoints {
                self.backend(port, endpoint);
            }
        }
    }

    /// Adds a frontend, of the internal policy if no scope is given.
    fn add(
        &mut self,
        port: &Port<'_>,
        kind: FrontendKind,
        (address, number): (IpAddr, u16),
        scope: Option<Scope>,
    ) {
        let policies = policies(port.port);
        let is_local = match scope {
            Some(Scope::External) => policies.external_local,
            Some(Scope::Internal) | None => policies.internal_local,
        };
        let chosen = if is_local { &port.chosen.local } else { &port.chosen.cluster };
        // What takes nothing new but may have connections.
        let ending = port.endpoints.iter().filter(|endpoint| {
            endpoint.terminating
                && !endpoint.ready
                && (endpoint.local || !is_local)
                && !chosen.iter().any(|active| active.item == endpoint.item)
        });
        let mut active: Vec<&Endpoint> = chosen.clone();
        let mut others: Vec<&Endpoint> = ending.collect();
        for list in [&mut active, &mut others] {
            list.sort_by_key(|endpoint| (state_of(endpoint), endpoint.addr, endpoint.port));
        }
        let slots = active.iter().chain(&others).map(|endpoint| self.backend(port, endpoint));
        let slots: Vec<BackendId> = slots.collect();
        let key = FrontendKey::external(address, number, protocol(port));
        let ranges = match kind {
            FrontendKind::LoadBalancer => port.port.load_balancer_source_ranges.clone(),
            _ => Vec::new(),
        };
        let frontend = Frontend {
            policies,
            affinity: port.port.affinity,
            routable: kind != FrontendKind::ClusterIp && !address.is_unspecified(),
            source_ranges: ranges,
            count: active.len() as u16,
            maglev: self.maglev(kind, address, &slots[..active.len()]),
            ..Frontend::new(kind, slots)
        };
        let key = key.scoped(scope.unwrap_or_default());
        if self.maps.add_frontend(key, frontend).is_none() {
            self.refused += 1;
        }
    }

    fn backend(&mut self, port: &Port<'_>, endpoint: &Endpoint) -> BackendId {
        self.maps.add_backend(Backend {
            address: endpoint.addr,
            port: endpoint.port,
            protocol: protocol(port),
            state: state_of(endpoint),
        })
    }

    /// Returns the lookup table of a frontend that is reached from outside.
    // Cilium: pkg/loadbalancer/reconciler/bpf_reconciler.go, useMaglev
    fn maglev(
        &self,
        kind: FrontendKind,
        address: IpAddr,
        active: &[BackendId],
    ) -> Option<Arc<Maglev>> {
        let Algorithm::Maglev { table_size } = self.algorithm else {
            return None;
        };
        if kind == FrontendKind::ClusterIp || address.is_unspecified() {
            return None;
        }
        let backends = active.iter().filter_map(|id| Some((*id, self.maps.backend(*id)?)));
        Maglev::try_new(backends, table_size).map(Arc::new)
    }
}

fn policies(port: &ServicePort) -> Policies {
    Policies { external_local: port.external_local, internal_local: port.internal_local }
}

fn protocol(port: &Port<'_>) -> netfilter_model::tuple::Protocol {
    port.port.name.protocol
}

/// Returns whether an endpoint takes connections.
fn state_of(endpoint: &Endpoint) -> BackendState {
    if endpoint.ready {
        BackendState::Active
    } else if endpoint.is_fallback() {
        BackendState::Terminating
    } else if endpoint.terminating {
        BackendState::TerminatingNotServing
    } else {
        BackendState::Maintenance
    }
}

#[cfg(test)]
mod tests;
