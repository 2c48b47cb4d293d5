//! What a mode puts on the nodes, and what it has beside rules that packets meet.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use netfilter_model::DeviceNameError;
use netfilter_model::ebpf::{Algorithm, FrontendKey, Maps, Scope, View as _};
use netfilter_model::ipvs::{ServiceId, Sysctls};
use netfilter_model::network::{DeviceKind, Listener, Network, NodeId, NodeRules};
use netfilter_model::rule::{Rules as _, Ruleset, RulesetBuilder};
use netfilter_model::time::SimTime;
use netfilter_model::tuple::{Family, Protocol};

use super::{MatrixError, Mode};
use crate::proxy::ebpf::Ebpf;
use crate::proxy::iptables::Proxier;
use crate::proxy::ipvs::graceful::Kernel;
use crate::proxy::ipvs::{DEVICE, Ipvs};
use crate::proxy::nftables::Nftables;
use crate::proxy::state::State;
use crate::proxy::userspace;

/// The endpoints of a node's process, by the port at which it takes their connections.
type Process = BTreeMap<(Protocol, u16), Vec<(IpAddr, u16)>>;

/// The process of each node.
pub(super) type Processes = BTreeMap<NodeId, Process>;

/// What all nodes have beside rules, virtual servers and sets.
#[derive(Clone, Debug)]
pub(super) enum Plane {
    /// Nothing.
    Rules,
    /// Virtual servers, whose schedulers stand somewhere.
    Servers,
    /// A process on each node.
    Processes(Processes),
    /// Maps that the node's programs look into.
    Maps(BTreeMap<NodeId, Maps>),
}

impl Plane {
    /// Returns what a mode has before any node has anything.
    pub(super) fn new(mode: Mode) -> Plane {
        match mode {
            Mode::Iptables | Mode::Nftables => Plane::Rules,
            Mode::Ipvs => Plane::Servers,
            Mode::Ebpf => Plane::Maps(BTreeMap::new()),
            Mode::Userspace => Plane::Processes(BTreeMap::new()),
        }
    }

    /// Puts what a node's proxy makes of what it is told on a host.
    pub(super) fn install(
        &mut self,
        mode: Mode,
        state: &State,
        network: &mut Network,
        id: NodeId,
    ) -> Result<(), MatrixError> {
        let ruleset = match mode {
            Mode::Iptables => iptables(state, network, id)?,
            Mode::Nftables => nftables(state, network, id)?,
            Mode::Ipvs => ipvs(state, network, id)?,
            Mode::Ebpf => {
                let made = Ebpf::of(state, Algorithm::Random)?;
                if let Plane::Maps(maps) = self {
                    maps.insert(id, made.maps);
                }
                let mut none = RulesetBuilder::new();
                none.family(state.family);
                none.build()?
            }
            Mode::Userspace => {
                let ports = process(state);
                for &(protocol, port) in ports.keys() {
                    let listener = Listener { protocol, port, address: None, answers: true };
                    network.listen(id, listener);
                }
                if let Plane::Processes(processes) = self {
                    processes.insert(id, ports);
                }
                userspace::ruleset(state)?
            }
        };
        let mut rules = NodeRules::default();
        match state.family {
            Family::V4 => rules.ipv4 = ruleset,
            Family::V6 => rules.ipv6 = ruleset,
        }
        network.set_rules(id, rules, &[]);
        Ok(())
    }

    /// Returns of how many connections in a row to a target each meets something else: after so
    /// many it begins again.
    pub(super) fn turns(&self, network: &Network, (to, port, protocol): Target) -> u64 {
        match self {
            Plane::Rules => 1,
            Plane::Servers => {
                let id = ServiceId::Address(protocol, to, port);
                let counts = network.nodes().filter_map(|(_, node)| {
                    let rules = if to.is_ipv4() { &node.rules.ipv4 } else { &node.rules.ipv6 };
                    Some(rules.ipvs()?.service(&id)?.destinations.len())
                });
                common(counts)
            }
            Plane::Processes(processes) => {
                common(processes.values().flat_map(BTreeMap::values).map(Vec::len))
            }
            Plane::Maps(maps) => {
                let key = FrontendKey::external(to, port, protocol);
                let keys = [key, key.wildcard()];
                let keys = keys.into_iter().flat_map(|key| [key, key.scoped(Scope::Internal)]);
                let keys: Vec<FrontendKey> = keys.collect();
                let of = |maps: &Maps| {
                    let found = keys.iter().filter_map(|key| maps.frontend(key));
                    found.map(|frontend| frontend.active().len()).collect::<Vec<_>>()
                };
                common(maps.values().flat_map(of))
            }
        }
    }
}

/// An address, a port of it, and its protocol.
pub(super) type Target = (IpAddr, u16, Protocol);

/// Lets the schedulers of a virtual server choose as often on every node as if so many connections
/// of others had come.
pub(super) fn take_turns(network: &mut Network, (to, port, protocol): Target, turns: u64) {
    let id = ServiceId::Address(protocol, to, port);
    let now = network.now();
    let ids: Vec<NodeId> = network.nodes().map(|(id, _)| id).collect();
    for node in ids {
        let node = network.node_mut(node);
        let rules = std::sync::Arc::clone(&node.rules);
        let rules = if to.is_ipv4() { &rules.ipv4 } else { &rules.ipv6 };
        let Some(services) = rules.ipvs() else {
            continue;
        };
        for _ in 0..turns {
            node.netns.ipvs_mut(now).pass_turn(services, &id);
        }
    }
}

/// Returns the least common multiple, at least 1; beyond what anybody would follow, the largest.
fn common(counts: impl Iterator<Item = usize>) -> u64 {
    const MOST: u64 = 5040;
    let counts: BTreeSet<u64> = counts.map(|count| count as u64).filter(|&n| n > 0).collect();
    let least = counts.iter().fold(1, |all, &count| all / gcd(all, count) * count);
    if least <= MOST { least } else { counts.last().copied().unwrap_or(1) }
}

/// Returns the greatest common divisor.
pub(super) fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a.max(1) } else { gcd(b, a % b) }
}

fn iptables(state: &State, network: &mut Network, id: NodeId) -> Result<Ruleset, MatrixError> {
    let proxier = Proxier::new(state)?;
    // Kubernetes: pkg/proxy/iptables/proxier.go, NewProxier: sysctlRouteLocalnet
    if proxier.common().settings.localhost_node_ports {
        network.node_mut(id).host.sysctls.all.route_localnet = true;
    }
    Ok(proxier.to_ruleset()?)
}

fn nftables(state: &State, network: &mut Network, id: NodeId) -> Result<Ruleset, MatrixError> {
    let ruleset = Nftables::of(state).into_ruleset()?;
    network.node_mut(id).netns.nft_replaced(&ruleset, SimTime::ZERO);
    let mut none = RulesetBuilder::new();
    none.family(state.family);
    Ok(none.build()?.with_nft(ruleset))
}

fn ipvs(state: &State, network: &mut Network, id: NodeId) -> Result<Ruleset, MatrixError> {
    let made = Ipvs::of(state)?;
    let node = network.node_mut(id);
    // Nothing is behind it: no frame ever has this address.
    let device = node.host.add_device(DEVICE, DeviceKind::Ethernet, [0; 6]);
    let device = device.map_err(MatrixError::Device)?;
    for &address in made.addresses() {
        let len = if address.is_ipv4() { 32 } else { 128 };
        node.host.add_address(device, address, len);
    }
    node.netns.memory_mut().sets = made.sets();
    node.netns.ipvs_mut(SimTime::ZERO).sysctls = Sysctls::kube_proxy();
    let mut kernel = Kernel::default();
    kernel.sync(&made.servers().services, &[], &|_| 0);
    let mut servers = made.servers().clone();
    servers.services = kernel.services().to_vec();
    Ok(made.to_ruleset()?.with_ipvs(servers))
}

/// Returns the endpoints of a node's process. It knows no policy, and only who is ready.
// Kubernetes: pkg/proxy/userspace/roundrobin.go of 1.25, OnEndpointsAdd
fn process(state: &State) -> Process {
    let ports = state.ports.iter().enumerate().filter_map(|(index, (port, endpoints))| {
        let ready = endpoints.iter().filter(|endpoint| endpoint.ready);
        let list = ready.map(|endpoint| (endpoint.addr, endpoint.port)).collect();
        Some(((port.name.protocol, userspace::process_port(index)?), list))
    });
    ports.collect()
}

impl From<DeviceNameError> for MatrixError {
    fn from(error: DeviceNameError) -> MatrixError {
        MatrixError::Device(error)
    }
}
