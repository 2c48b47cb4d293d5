//! The hosts of a matrix: nodes, Pods, a machine outside, a router.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use netfilter_model::network::{
    Built, DeviceKind, HostConfig, Listener, Machine, Network, NodeId, PodNetwork, Topology,
    TopologyError,
};
use netfilter_model::tuple::{Family, Protocol};
use netfilter_model::{DeviceName, DeviceNameError, Prefix};

use super::{Question, Whose};
use crate::kube::object::{AddressType, DetectLocal, Node, NodeAddress};
use crate::proxy::endpoint::{Endpoint, Locality};
use crate::proxy::service::ServicePort;
use crate::proxy::state::{Objects, State};

/// The hosts, and what answers where.
#[derive(Clone, Debug)]
pub struct World {
    /// Hosts and links; no rules.
    pub network: Network,
    /// The node that is asked about.
    pub node: String,
    /// Another one.
    pub other: Option<String>,
    /// What the objects do not say and was made up.
    pub assumptions: Vec<String>,
    /// Servers: host, protocol, port.
    pub servers: BTreeSet<(NodeId, Protocol, u16)>,
    pub(super) external: (NodeId, IpAddr),
    pub(super) router: NodeId,
    objects: Objects,
    nodes: BTreeMap<String, (NodeId, IpAddr)>,
    clients: BTreeMap<String, (NodeId, IpAddr)>,
    homes: BTreeMap<IpAddr, (NodeId, Option<String>)>,
    labels: BTreeMap<NodeId, String>,
}

/// Hosts that cannot be built.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WorldError {
    /// There is no such node.
    #[error("no object names a node {0}")]
    NoNode(String),
    /// There is no node at all.
    #[error("no object names a node")]
    NoNodes,
    /// The address of the client outside is somebody else's, or of the other family.
    #[error("{0} cannot be the address of a client outside")]
    External(IpAddr),
    /// A device of the configuration that the kernel would refuse.
    #[error("detectLocal: {0}")]
    Device(#[from] DeviceNameError),
    /// A bug.
    #[error(transparent)]
    Topology(#[from] TopologyError),
}

/// Where the Pods of a node are.
struct Site {
    name: String,
    addr: IpAddr,
    /// Its Pods' range and the node's address there; none if each Pod has a route of its own.
    range: Option<(Prefix, IpAddr)>,
    /// Endpoints, and the client last.
    pods: Vec<IpAddr>,
}

impl World {
    /// Builds the hosts that a question is about.
    pub(super) fn of(objects: &Objects, question: &Question) -> Result<World, WorldError> {
        let mut plan = Plan::new(objects, question)?;
        plan.place()?;
        plan.build()
    }

    /// Returns what the proxy on a node is told.
    pub(super) fn state(&self, node: &str, question: &Question) -> State {
        self.objects.state(node, question.family, question.profile)
    }

    /// Returns the nodes, by name.
    pub fn nodes(&self) -> impl Iterator<Item = (&str, NodeId)> {
        self.nodes.iter().map(|(name, (id, _))| (name.as_str(), *id))
    }

    /// Returns the address of a node.
    pub(super) fn address_of(&self, node: &str) -> Option<(NodeId, IpAddr)> {
        self.nodes.get(node).copied()
    }

    /// Returns the client Pod of a node.
    pub(super) fn client_of(&self, node: &str) -> Option<(NodeId, IpAddr)> {
        self.clients.get(node).copied()
    }

    /// Returns the host that has an endpoint's address.
    pub(super) fn home_of(&self, endpoint: IpAddr) -> Option<NodeId> {
        self.homes.get(&endpoint).map(|(id, _)| *id)
    }

    /// Returns the node of an endpoint.
    pub(super) fn node_of(&self, endpoint: IpAddr) -> Option<&str> {
        self.homes.get(&endpoint)?.1.as_deref()
    }

    /// Returns what a host is called: a node's name, `pod ADDRESS`, `external`, `router`.
    pub fn label(&self, id: NodeId) -> &str {
        self.labels.get(&id).map_or("", String::as_str)
    }

    /// Returns a port at a virtual address that no Service has.
    pub(super) fn unused_port(&self, addr: IpAddr, after: u16) -> u16 {
        let of_addr = self.objects.services.values();
        let of_addr = of_addr.filter(|service| service.cluster_ips.contains(&addr));
        let known: BTreeSet<u16> =
            of_addr.flat_map(|service| &service.ports).map(|port| port.port).collect();
        let mut port = after;
        loop {
            port = port.checked_add(1).unwrap_or(1);
            // A Service has fewer ports than there are.
            if !known.contains(&port) {
                return port;
            }
        }
    }

    /// Returns whether a host is silent: it takes packets and drops them.
    pub fn is_router(&self, id: NodeId) -> bool {
        id == self.router
    }

    /// Returns whose an address is, seen from a client that sent from `own`.
    pub(super) fn whose(&self, addr: IpAddr, own: IpAddr) -> Whose {
        if addr == own {
            return Whose::Own;
        }
        let has = |id: NodeId| self.network.node(id).host.is_local(addr);
        match self.nodes.iter().find(|(_, (id, _))| has(*id)) {
            Some((name, _)) if *name == self.node => Whose::Node,
            Some(_) => Whose::OtherNode,
            None => Whose::Elsewhere,
        }
    }
}

/// What is known before anything is built.
struct Plan<'q> {
    question: &'q Question,
    objects: Objects,
    assumptions: Vec<String>,
    used: BTreeSet<IpAddr>,
    node: String,
    other: Option<String>,
    /// Endpoints of the Services that are asked about, with their nodes.
    endpoints: BTreeMap<IpAddr, Option<String>>,
    /// Ports at which they listen.
    listens: BTreeSet<(IpAddr, Protocol, u16)>,
    vips: BTreeSet<IpAddr>,
    sites: Vec<Site>,
    is_routed: bool,
}

impl<'q> Plan<'q> {
    fn new(objects: &Objects, question: &'q Question) -> Result<Plan<'q>, WorldError> {
        let mut plan = Plan {
            question,
            objects: objects.clone(),
            assumptions: Vec::new(),
            used: BTreeSet::new(),
            node: String::new(),
            other: None,
            endpoints: BTreeMap::new(),
            listens: BTreeSet::new(),
            vips: BTreeSet::new(),
            sites: Vec::new(),
            is_routed: false,
        };
        let known = plan.gather();
        plan.node = match &question.node {
            Some(name) if known.contains(name) => name.clone(),
            Some(name) => return Err(WorldError::NoNode(name.clone())),
            None => known.first().cloned().ok_or(WorldError::NoNodes)?,
        };
        let with_endpoints: BTreeSet<&String> = plan.endpoints.values().flatten().collect();
        let mut others = known.iter().filter(|name| **name != plan.node);
        let preferred = others.clone().find(|name| with_endpoints.contains(name));
        plan.other = preferred.or_else(|| others.next()).cloned();
        Ok(plan)
    }

    /// Takes note of addresses in use and of the endpoints that are asked about; returns the nodes
    /// that objects name.
    fn gather(&mut self) -> BTreeSet<String> {
        let family = self.question.family;
        let mut known: BTreeSet<String> = self.objects.nodes.keys().cloned().collect();
        for node in self.objects.nodes.values() {
            self.used.extend(node.addresses.iter().map(|(_, address)| *address));
        }
        for service in self.objects.services.values() {
            let asked = &self.question.services;
            let is_asked = asked.is_empty() || asked.contains(&service.name);
            for port in ServicePort::of(service, family) {
                self.used.insert(port.cluster_ip);
                let vips = port.external_ips.iter().chain(&port.load_balancer_vips);
                self.used.extend(vips.clone());
                if is_asked {
                    self.vips.extend(vips);
                }
                let slices = self.objects.slices_of(&service.name);
                let place = Locality { node: "", zone: None, profile: self.question.profile };
                for endpoint in Endpoint::of(slices, &port.name, family, place) {
                    if is_asked {
                        self.endpoints.entry(endpoint.addr).or_default();
                        let server = (endpoint.addr, port.name.protocol, endpoint.port);
                        self.listens.insert(server);
                    }
                }
            }
        }
        for slice in self.objects.slices.values().flat_map(BTreeMap::values) {
            let of_family = slice.address_type == AddressType::Ip(family);
            for endpoint in &slice.endpoints {
                let node = endpoint.node.as_deref().map(str::to_owned);
                known.extend(node.clone());
                if of_family {
                    self.used.insert(endpoint.address);
                    if let Some(of) = self.endpoints.get_mut(&endpoint.address) {
                        *of = node.or(of.take());
                    }
                }
            }
        }
        known
    }

    /// Decides who has which address.
    fn place(&mut self) -> Result<(), WorldError> {
        let family = self.question.family;
        let mut names = vec![self.node.clone()];
        names.extend(self.other.clone());
        for name in self.endpoints.values().flatten() {
            if !names.contains(name) {
                names.push(name.clone());
            }
        }
        for (at, name) in names.iter().enumerate() {
            let addr = self.node_address(name, at);
            self.sites.push(Site { name: name.clone(), addr, range: None, pods: Vec::new() });
        }
        let node_addrs: BTreeSet<IpAddr> = self.sites.iter().map(|site| site.addr).collect();
        for (&addr, node) in &self.endpoints {
            if node_addrs.contains(&addr) {
                continue;
            }
            if let Some(site) = self.sites.iter_mut().find(|site| Some(&site.name) == node.as_ref())
            {
                site.pods.push(addr);
            }
        }
        let ranges: Vec<Option<Prefix>> = self
            .sites
            .iter()
            .map(|site| self.objects.nodes.get(&site.name)?.pod_cidr(family).cloned())
            .collect();
        let by_device = self.objects.config.as_ref().map(|config| &config.detect_local);
        let by_port = matches!(by_device, Some(DetectLocal::InterfaceNamePrefix(_)));
        self.is_routed = by_port || !self.is_disjoint(&ranges, &node_addrs);
        for (at, range) in ranges.into_iter().enumerate() {
            if let Some(range) = range.clone().filter(|_| !self.is_routed) {
                let gateway = self.free_after(range.address());
                self.sites[at].range = Some((range, gateway));
            }
            let client = self.client_address(at, range);
            self.sites[at].pods.push(client);
        }
        if self.is_routed && !by_port {
            let text = "every Pod has a route of its own, since Nodes do not give disjoint ranges \
                        that hold their endpoints";
            self.assumptions.push(text.to_owned());
        }
        Ok(())
    }

    /// Returns whether each node has a range of its own that holds its Pods.
    fn is_disjoint(&self, ranges: &[Option<Prefix>], nodes: &BTreeSet<IpAddr>) -> bool {
        let room = if self.question.family == Family::V4 { 29 } else { 120 };
        let overlap = |a: &Prefix, b: &Prefix| a.contains(b.address()) || b.contains(a.address());
        ranges.iter().enumerate().all(|(at, range)| {
            let Some(range) = range else {
                return false;
            };
            range.len() <= room
                && self.sites[at].pods.iter().all(|pod| range.contains(*pod))
                && !nodes.iter().any(|node| range.contains(*node))
                && ranges[..at].iter().flatten().all(|other| !overlap(range, other))
        })
    }

    /// Returns the address of a node, made up if its object does not say.
    fn node_address(&mut self, name: &str, at: usize) -> IpAddr {
        let family = self.question.family;
        if let Some(addr) = self.objects.nodes.get(name).and_then(|node| node.host_ip(family)) {
            return addr;
        }
        let first = match family {
            Family::V4 => IpAddr::V4(Ipv4Addr::new(192, 168, 77, at as u8)),
            Family::V6 => IpAddr::V6(Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, at as u16)),
        };
        let addr = self.free_after(first);
        self.assumptions.push(format!("node {name} has the address {addr}"));
        let empty = || Node {
            name: name.to_owned(),
            labels: BTreeMap::new(),
            addresses: Vec::new(),
            pod_cidrs: Vec::new(),
        };
        let node = self.objects.nodes.entry(name.to_owned()).or_insert_with(empty);
        node.addresses.push((NodeAddress::InternalIp, addr));
        addr
    }

    /// Returns an address for the client Pod of a node: far from those that are given out first.
    fn client_address(&mut self, at: usize, range: Option<Prefix>) -> IpAddr {
        let near = match (&range, self.sites[at].pods.last(), self.question.family) {
            (Some(range), _, Family::V4) if range.len() <= 24 => step(range.address(), 199),
            (Some(range), _, Family::V6) if range.len() <= 112 => step(range.address(), 0xc7),
            (_, Some(pod), _) => *pod,
            (Some(range), ..) => range.address(),
            (None, None, Family::V4) => Ipv4Addr::new(10, 244, at as u8, 199).into(),
            (None, None, Family::V6) => {
                Ipv6Addr::new(0xfd00, 0x10, 0x244, at as u16, 0, 0, 0, 0xc7).into()
            }
        };
        self.free_after(near)
    }

    /// Takes the next address that nobody has.
    fn free_after(&mut self, addr: IpAddr) -> IpAddr {
        let mut next = step(addr, 1);
        while !self.used.insert(next) {
            next = step(next, 1);
        }
        next
    }

    fn build(mut self) -> Result<World, WorldError> {
        let family = self.question.family;
        let outside: IpAddr = match family {
            Family::V4 => Ipv4Addr::new(198, 18, 0, 0).into(),
            Family::V6 => Ipv6Addr::new(0x2001, 2, 0, 0, 0, 0, 0, 0).into(),
        };
        let router = self.free_after(outside);
        let external = match self.question.external {
            None => self.free_after(step(outside, 9)),
            Some(addr) if Family::of(addr) != family || !self.used.insert(addr) => {
                return Err(WorldError::External(addr));
            }
            Some(addr) => addr,
        };
        let machines = self.machines(router, external);
        let Built { mut network, ids } = Topology { machines, fabric_len: (32, 128) }.build(1)?;
        self.name_devices(&mut network, &ids)?;
        let mut world = World {
            external: (ids["external"], external),
            router: ids["router"],
            network,
            node: self.node,
            other: self.other,
            assumptions: self.assumptions,
            servers: BTreeSet::new(),
            objects: self.objects,
            nodes: BTreeMap::new(),
            clients: BTreeMap::new(),
            homes: BTreeMap::new(),
            labels: BTreeMap::new(),
        };
        for name in ["external", "router"] {
            world.labels.insert(ids[name], name.to_owned());
        }
        for (at, site) in self.sites.iter().enumerate() {
            let id = ids[&format!("n{at}")];
            world.nodes.insert(site.name.clone(), (id, site.addr));
            world.labels.insert(id, site.name.clone());
            for (pod, &addr) in site.pods.iter().enumerate() {
                let id = ids[&format!("p{at}-{pod}")];
                world.labels.insert(id, format!("pod {addr}"));
                if pod + 1 == site.pods.len() {
                    world.clients.insert(site.name.clone(), (id, addr));
                } else {
                    world.homes.insert(addr, (id, Some(site.name.clone())));
                }
            }
        }
        for (at, &addr) in self.endpoints.keys().enumerate() {
            let on_node = self.sites.iter().find(|site| site.addr == addr);
            if let Some(site) = on_node {
                world.homes.insert(addr, (world.nodes[&site.name].0, Some(site.name.clone())));
            } else if let Some(&id) = ids.get(&format!("e{at}")) {
                world.labels.insert(id, format!("endpoint {addr}"));
                world.homes.insert(addr, (id, None));
            }
        }
        for (addr, protocol, port) in self.listens {
            if let Some(&(id, _)) = world.homes.get(&addr)
                && world.servers.insert((id, protocol, port))
            {
                world.network.listen(id, Listener { protocol, port, address: None, answers: true });
            }
        }
        Ok(world)
    }

    /// Nodes, machines outside, and endpoints that are no Pods, all on one segment on which
    /// everybody has a route to everybody.
    fn machines(&self, router: IpAddr, external: IpAddr) -> Vec<Machine> {
        let machine = |name: String, addr: IpAddr| Machine {
            name,
            addresses: vec![addr],
            ..Machine::default()
        };
        let mut machines = vec![
            Machine { gateway: true, mute: true, ..machine("router".to_owned(), router) },
            machine("external".to_owned(), external),
        ];
        for (at, site) in self.sites.iter().enumerate() {
            let pods = site.pods.iter().enumerate();
            let pods = pods.map(|(pod, &addr)| machine(format!("p{at}-{pod}"), addr)).collect();
            let subnets = match &site.range {
                Some(range) => vec![range.clone()],
                None => site.pods.iter().map(|&pod| (Prefix::host(pod), site.addr)).collect(),
            };
            let routed = self.is_routed;
            let node = Some(PodNetwork { subnets, routed, hairpin: true, pods });
            machines.push(Machine { node, ..machine(format!("n{at}"), site.addr) });
        }
        for (at, (&addr, node)) in self.endpoints.iter().enumerate() {
            let is_placed = self.sites.iter().any(|site| {
                site.addr == addr
                    || (Some(&site.name) == node.as_ref() && site.pods.contains(&addr))
            });
            if !is_placed {
                machines.push(machine(format!("e{at}"), addr));
            }
        }
        let all: Vec<IpAddr> = machines.iter().map(|machine| machine.addresses[0]).collect();
        for machine in &mut machines {
            let own = machine.addresses[0];
            let others = all.iter().filter(|addr| **addr != own);
            machine.routes = others.map(|addr| format!("{addr} dev eth0")).collect();
            if machine.name == "external" {
                let by_node = self.vips.iter().filter(|vip| !all.contains(vip));
                let entry = self.sites[0].addr;
                machine.routes.extend(by_node.map(|vip| format!("{vip} via {entry}")));
            }
        }
        machines
    }

    /// Names the devices behind which Pods are as the configuration expects them.
    fn name_devices(
        &self,
        network: &mut Network,
        ids: &BTreeMap<String, NodeId>,
    ) -> Result<(), DeviceNameError> {
        let config = self.objects.config.as_ref();
        for at in 0..self.sites.len() {
            let host = &mut network.node_mut(ids[&format!("n{at}")]).host;
            match config.map(|config| &config.detect_local) {
                Some(DetectLocal::BridgeInterface(name)) => {
                    let bridge = host.device_named("cni0");
                    if let Some(device) = bridge.and_then(|id| host.device_mut(id)) {
                        device.name = DeviceName::parse(name)?;
                    }
                }
                Some(DetectLocal::InterfaceNamePrefix(prefix)) => {
                    let ports: Vec<_> = (0..host.devices().len() as u32)
                        .map(netfilter_model::DeviceId)
                        .filter(|id| *id != HostConfig::LO && *id != HostConfig::ETH0)
                        .collect();
                    for (number, port) in ports.into_iter().enumerate() {
                        if let Some(device) = host.device_mut(port)
                            && device.kind == DeviceKind::Ethernet
                        {
                            device.name = DeviceName::parse(&format!("{prefix}{number}"))?;
                        }
                    }
                }
                _ => {}
            }
        }
        Ok(())
    }
}

/// Returns the address that many further on; the last one is followed by the first.
fn step(addr: IpAddr, by: u32) -> IpAddr {
    match addr {
        IpAddr::V4(addr) => Ipv4Addr::from_bits(addr.to_bits().wrapping_add(by)).into(),
        IpAddr::V6(addr) => Ipv6Addr::from_bits(addr.to_bits().wrapping_add(by.into())).into(),
    }
}
