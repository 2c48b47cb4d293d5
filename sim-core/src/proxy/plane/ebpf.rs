//! No kube-proxy: Cilium's maps on every node.
//!
//! ```text
//!  at random:  connect(ClusterIP) ─► Node::connect ─► the backend's address ─► packets
//!  by Maglev:  packet to ClusterIP ─► Node::from_container ─► packet to the backend
//!              packet of the backend ─► Node::to_container ─► packet of the ClusterIP
//! ```
//!
//! No packet on a node's bridge or device has a ClusterIP in it, so its rules are flannel's alone.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use netfilter_model::Prefix;
use netfilter_model::ebpf::{
    Around, Backend, BackendId, BackendState, Connected, Frontend, FrontendKey, FrontendKind,
    Identity, Maglev, Node, Passage, RevNatId, Scope, Settings, Socket, SocketLb, Verdict, View,
};
use netfilter_model::host::Draws;
use netfilter_model::packet::Packet;
use netfilter_model::rule::ValidationError;
use netfilter_model::tuple::Protocol;

use super::plain::Plain;
use super::{DataPlane, Made, Mode, RuleCounts, Tally};
use crate::config::Selection;
use crate::ids::{Id, NodeId, ServicePortId};
use crate::kube::endpoint_slice::Endpoint;
use crate::time::SimTime;

/// What nodes hold beside the versions of Services.
#[derive(Debug)]
pub(super) struct Ebpf {
    pub(super) plain: Plain,
    backends: Vec<(ServicePortId, Backend)>,
    ids: BTreeMap<(ServicePortId, Ipv4Addr, u16), BackendId>,
    nodes: BTreeMap<NodeId, Node>,
    selection: Selection,
}

/// The places of a lookup table.
// Cilium: --bpf-lb-maglev-table-size
const TABLE_SIZE: u32 = 16381;

/// What becomes of a connection to a Service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dialed {
    /// Its packets go to the Service's address.
    ToService,
    /// They go to an endpoint of this service port.
    ToEndpoint(ServicePortId, Endpoint),
    /// There is no endpoint: the call fails.
    Nowhere,
}

/// A packet is for a Service that has no endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoEndpoint;

/// A socket of a Pod that connects.
#[derive(Clone, Copy, Debug)]
pub struct Dialer {
    /// Its node.
    pub node: NodeId,
    /// Its number.
    pub cookie: u64,
    /// The number of its Pod's network namespace.
    pub namespace: u64,
}

impl Ebpf {
    pub(super) fn new(
        pods: &Prefix,
        mark: u32,
        selection: Selection,
    ) -> Result<Ebpf, ValidationError> {
        Ok(Ebpf {
            plain: Plain::new(pods, mark)?,
            backends: Vec::new(),
            ids: BTreeMap::new(),
            nodes: BTreeMap::new(),
            selection,
        })
    }

    /// Makes a service port's entries: the endpoints that the controller gives take connections.
    pub(super) fn make(
        &mut self,
        port: ServicePortId,
        affinity: Option<u32>,
        endpoints: &[Endpoint],
    ) -> Frontend {
        let slots = endpoints.iter().map(|endpoint| {
            let Endpoint { addr, port: number, .. } = *endpoint;
            let backends = &mut self.backends;
            *self.ids.entry((port, addr, number)).or_insert_with(|| {
                let (address, protocol) = (IpAddr::V4(addr), Protocol::TCP);
                let state = BackendState::Active;
                backends.push((port, Backend { address, port: number, protocol, state }));
                BackendId(backends.len() as u32)
            })
        });
        let slots: Vec<BackendId> = slots.collect();
        let maglev = match self.selection {
            Selection::Random => None,
            Selection::Maglev => {
                let known = |id: &BackendId| (*id, self.backends[id.0 as usize - 1].1);
                Maglev::try_new(slots.iter().map(known), TABLE_SIZE).map(Arc::new)
            }
        };
        let plain = Frontend::new(FrontendKind::ClusterIp, slots);
        Frontend { rev_nat: rev_nat(port), affinity, maglev, ..plain }
    }

    /// Lets a node forget which clients stay with an endpoint that is gone.
    pub(super) fn forget_clients_of(
        &mut self,
        node: NodeId,
        port: ServicePortId,
        endpoint: &Endpoint,
    ) {
        if let Some(id) = self.ids.get(&(port, endpoint.addr, endpoint.port))
            && let Some(programs) = self.nodes.get_mut(&node)
        {
            programs.forget_clients_of(*id);
        }
    }

    fn settings(&self) -> Settings {
        let socket_lb = match self.selection {
            Selection::Random => SocketLb::Full,
            Selection::Maglev => SocketLb::HostOnly,
        };
        Settings { socket_lb, ..Settings::default() }
    }
}

/// Returns how many entries a service port has: its own and the one for the way back; of each
/// endpoint, its place and itself and, with affinity, that clients may stay with it.
pub(super) fn tally(endpoints: usize, affinity: bool) -> Tally {
    let endpoints = endpoints as u64;
    let held = RuleCounts { filter: 0, nat: 2 + (2 + u64::from(affinity)) * endpoints };
    Tally { services: 1, endpoints, held, shared: RuleCounts::default() }
}

/// Returns the number of a service port's frontend. Beyond 65,535 they would be given twice; the
/// address tells them apart.
fn rev_nat(port: ServicePortId) -> RevNatId {
    RevNatId((port.index() % usize::from(u16::MAX)) as u16 + 1)
}

impl DataPlane {
    /// Returns whether sockets are translated when they connect.
    pub fn translates_sockets(&self) -> bool {
        matches!(&self.mode, Mode::Ebpf(mode) if mode.selection == Selection::Random)
    }

    /// Returns whether packets are translated where they leave and enter Pods.
    pub fn translates_packets(&self) -> bool {
        matches!(&self.mode, Mode::Ebpf(mode) if mode.selection == Selection::Maglev)
    }

    /// Returns the entry by which a service port's packets find endpoints, where there are no rules.
    pub fn frontend(&self, id: ServicePortId) -> Option<FrontendKey> {
        let port = &self.ports[id].port;
        let key = FrontendKey::external(port.cluster_ip, port.port, Protocol::TCP);
        matches!(self.mode, Mode::Ebpf(_)).then_some(key)
    }

    /// Translates the destination of a socket that connects.
    pub fn connect(
        &mut self,
        dialer: Dialer,
        now: SimTime,
        to: (Ipv4Addr, u16),
        draws: &mut impl Draws,
    ) -> Dialed {
        let Dialer { node, cookie, namespace } = dialer;
        let socket = Socket { cookie, namespace, on_host: false, protocol: Protocol::TCP };
        let to = (IpAddr::V4(to.0), to.1);
        let dialed = self.on_node(node, now, draws, |programs, around| {
            match programs.connect(around, &socket, to) {
                Connected::Direct => Dialed::ToService,
                Connected::NoBackend => Dialed::Nowhere,
                Connected::Backend { backend, .. } => match around.view.endpoint(backend) {
                    Some((port, endpoint)) => Dialed::ToEndpoint(port, endpoint),
                    None => Dialed::Nowhere,
                },
            }
        });
        dialed.unwrap_or(Dialed::ToService)
    }

    /// Takes a packet that leaves a Pod, and returns it as it goes on, with the endpoint if it is for
    /// a Service.
    ///
    /// # Errors
    ///
    /// If the Service has no endpoint.
    pub fn from_pod(
        &mut self,
        (node, now): (NodeId, SimTime),
        packet: Packet,
        draws: &mut impl Draws,
    ) -> Result<(Packet, Option<(ServicePortId, Endpoint)>), NoEndpoint> {
        let passed = self.on_node(node, now, draws, |programs, around| {
            match programs.from_container(around, packet) {
                Verdict::Pass(Passage { packet, chosen, .. }) => {
                    let chosen = chosen.and_then(|chosen| around.view.endpoint(chosen.backend));
                    Ok((packet, chosen))
                }
                Verdict::Drop { .. } => Err(NoEndpoint),
            }
        });
        passed.unwrap_or(Ok((packet, None)))
    }

    /// Takes a packet that goes into a Pod, and returns it as the Pod sees it.
    pub fn to_pod(
        &mut self,
        (node, now): (NodeId, SimTime),
        packet: Packet,
        draws: &mut impl Draws,
    ) -> Packet {
        let passed = self.on_node(node, now, draws, |programs, around| {
            match programs.to_container(around, packet) {
                Verdict::Pass(passage) => passage.packet,
                Verdict::Drop { packet, .. } => packet,
            }
        });
        passed.unwrap_or(packet)
    }

    /// Lets a node's programs look at something.
    fn on_node<D: Draws, T>(
        &mut self,
        node: NodeId,
        now: SimTime,
        draws: &mut D,
        act: impl FnOnce(&mut Node, &mut Around<'_, NodeView<'_>, fn(IpAddr) -> Identity, D>) -> T,
    ) -> Option<T> {
        let Mode::Ebpf(mode) = &mut self.mode else {
            return None;
        };
        let mut programs = mode.nodes.remove(&node).unwrap_or_else(|| Node::new(mode.settings()));
        let view = NodeView { plane: self, node, now };
        // Nobody asks whose an address is: nothing comes from outside, and no Service has a port
        // of the nodes.
        let identities: fn(IpAddr) -> Identity = |_| Identity::World;
        let mut around = Around {
            now,
            view: &view,
            identities: &identities,
            node: IpAddr::V4(Ipv4Addr::UNSPECIFIED),
            draws,
        };
        let done = act(&mut programs, &mut around);
        if let Mode::Ebpf(mode) = &mut self.mode {
            mode.nodes.insert(node, programs);
        }
        Some(done)
    }

    /// Forgets a socket that was closed.
    pub fn close(&mut self, node: NodeId, cookie: u64) {
        if let Mode::Ebpf(mode) = &mut self.mode
            && let Some(programs) = mode.nodes.get_mut(&node)
        {
            programs.release(cookie);
        }
    }
}

/// The maps of one node at one time.
struct NodeView<'a> {
    plane: &'a DataPlane,
    node: NodeId,
    now: SimTime,
}

impl NodeView<'_> {
    /// Returns a backend as the endpoint that it is, if the node still knows it.
    fn endpoint(&self, id: BackendId) -> Option<(ServicePortId, Endpoint)> {
        let Mode::Ebpf(mode) = &self.plane.mode else {
            return None;
        };
        let (port, backend) = mode.backends.get((id.0 as usize).checked_sub(1)?)?;
        let endpoints = &self.plane.held(*port, self.node, self.now).endpoints;
        let at = (backend.address, backend.port);
        let is = |endpoint: &&Endpoint| (IpAddr::V4(endpoint.addr), endpoint.port) == at;
        endpoints.iter().find(is).map(|endpoint| (*port, *endpoint))
    }
}

impl View for NodeView<'_> {
    fn frontend(&self, key: &FrontendKey) -> Option<&Frontend> {
        let IpAddr::V4(address) = key.address else {
            return None;
        };
        if key.protocol != Protocol::TCP || key.scope != Scope::External {
            return None;
        }
        let port = self.plane.find(address.to_bits(), key.port)?;
        match &self.plane.held(port, self.node, self.now).made {
            Made::Frontend(frontend) => Some(frontend),
            Made::Fragment(_) | Made::Nft(_) | Made::Turns(_) | Made::Nothing => None,
        }
    }

    fn backend(&self, id: BackendId) -> Option<Backend> {
        let (_, endpoint) = self.endpoint(id)?;
        Some(Backend {
            address: IpAddr::V4(endpoint.addr),
            port: endpoint.port,
            protocol: Protocol::TCP,
            state: BackendState::Active,
        })
    }

    fn rev_nat(&self, id: RevNatId) -> Option<(IpAddr, u16)> {
        let index = usize::from(id.0).checked_sub(1)?;
        let port = self.plane.ports.ids().nth(index).map(|port| &self.plane.ports[port].port)?;
        Some((port.cluster_ip, port.port))
    }

    fn affinity_match(&self, frontend: RevNatId, backend: BackendId) -> bool {
        self.endpoint(backend).is_some_and(|(port, _)| rev_nat(port) == frontend)
    }
}
