//! Networks of a usual shape: nodes and other machines on one segment, Pods behind the nodes.

use std::collections::BTreeMap;
use std::net::IpAddr;

use super::config::{DeviceKind, HostConfig, MacAddr, RouteEntry, Scope};
use super::ip::IpError;
use super::{Network, NodeId};
use crate::device::{DeviceId, DeviceNameError};
use crate::prefix::Prefix;

/// A machine on the segment, or a Pod.
#[derive(Clone, Debug, Default)]
pub struct Machine {
    /// Its name.
    pub name: String,
    /// Its addresses on `eth0`, at most one of each family.
    pub addresses: Vec<IpAddr>,
    /// More addresses, each a subnet of its own.
    pub also: Vec<IpAddr>,
    /// The device that has those; `lo` if there is no other.
    pub also_dev: Option<String>,
    /// The hardware address of `eth0`; by default by its place.
    pub mac: Option<MacAddr>,
    /// More routes, as for `ip route add`.
    pub routes: Vec<String>,
    /// The default route of all others leads to it.
    pub gateway: bool,
    /// It takes packets and says nothing.
    pub mute: bool,
    /// It is a node: it forwards, and may have Pods.
    pub node: Option<PodNetwork>,
}

/// How the Pods of a node are attached.
#[derive(Clone, Debug, Default)]
pub struct PodNetwork {
    /// The Pods' subnets, each with the node's address in it.
    pub subnets: Vec<(Prefix, IpAddr)>,
    /// There is no bridge: each Pod has a route of its own.
    pub routed: bool,
    /// Hairpin mode on all ports of the bridge.
    pub hairpin: bool,
    /// The Pods.
    pub pods: Vec<Machine>,
}

/// A whole network.
#[derive(Clone, Debug)]
pub struct Topology {
    /// Nodes and other machines.
    pub machines: Vec<Machine>,
    /// The prefix length of the segment, for IPv4 and IPv6.
    pub fabric_len: (u8, u8),
}

/// A network that cannot be built.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TopologyError {
    /// A name gives no device name.
    #[error("{0}")]
    Device(#[from] DeviceNameError),
    /// A route of a machine.
    #[error("route of {machine}: {error}")]
    Route {
        /// Whose.
        machine: String,
        /// What is wrong.
        error: IpError,
    },
    /// Two machines of one name.
    #[error("two machines have the name {0:?}")]
    Name(String),
}

/// A network with its hosts' names.
#[derive(Clone, Debug)]
pub struct Built {
    /// The network.
    pub network: Network,
    /// The hosts.
    pub ids: BTreeMap<String, NodeId>,
}

impl Topology {
    /// Builds the network; `seed` is for random numbers.
    ///
    /// # Errors
    ///
    /// If a name or a route is none.
    pub fn build(&self, seed: u64) -> Result<Built, TopologyError> {
        let mut built = Built { network: Network::new(), ids: BTreeMap::new() };
        let pods = |machine: &Machine| machine.node.as_ref().map_or(0, |node| node.pods.len());
        let mut fabric = Vec::new();
        let mut next_pod = self.machines.len();
        for (at, machine) in self.machines.iter().enumerate() {
            let (host, ports) = self.machine_host(machine, at)?;
            let id = built.add(machine, host, seed)?;
            fabric.push((id, HostConfig::ETH0));
            for (i, port) in ports.into_iter().enumerate() {
                let network = machine.node.as_ref().expect("ports are of Pods");
                let pod = &network.pods[i];
                let host = pod_host(pod, network, next_pod + i)?;
                let pod_id = built.add(pod, host, seed)?;
                built.network.join(&[(id, port), (pod_id, HostConfig::ETH0)]);
            }
            next_pod += pods(machine);
        }
        built.network.join(&fabric);
        built.network.introduce();
        Ok(built)
    }

    fn machine_host(
        &self,
        machine: &Machine,
        at: usize,
    ) -> Result<(HostConfig, Vec<DeviceId>), TopologyError> {
        let mut host = HostConfig::new();
        let eth0 =
            host.add_device("eth0", DeviceKind::Ethernet, machine.mac.unwrap_or(mac(0, at + 1)))?;
        for address in &machine.addresses {
            let (len, len6) = self.fabric_len;
            host.add_address(eth0, *address, if address.is_ipv4() { len } else { len6 });
        }
        let mut ports = Vec::new();
        if let Some(network) = &machine.node {
            host.sysctls.ip_forward = true;
            host.sysctls.ipv6_forwarding = true;
            ports = attach_pods(&mut host, network, at)?;
        }
        also(&mut host, machine);
        for other in &self.machines {
            if std::ptr::eq(other, machine) {
                continue;
            }
            for (subnet, _) in other.node.iter().flat_map(|node| &node.subnets) {
                add_gateway(&mut host, subnet.clone(), eth0, &other.addresses);
            }
        }
        let gateway = self.machines.iter().find(|machine| machine.gateway);
        if let Some(gateway) = gateway.filter(|gateway| !std::ptr::eq(*gateway, machine)) {
            for address in &machine.addresses {
                let any: IpAddr = if address.is_ipv4() { [0; 4].into() } else { [0u16; 8].into() };
                add_gateway(&mut host, Prefix::new(any, 0), eth0, &gateway.addresses);
            }
        }
        for route in &machine.routes {
            let words: Vec<&str> = ["route", "add"].into_iter().chain(route.split(' ')).collect();
            let of = |error| TopologyError::Route { machine: machine.name.clone(), error };
            host.ip(&words).map_err(of)?;
        }
        Ok((host, ports))
    }
}

impl Built {
    fn add(
        &mut self,
        machine: &Machine,
        host: HostConfig,
        seed: u64,
    ) -> Result<NodeId, TopologyError> {
        let own_seed = seed ^ (self.ids.len() as u64 + 1) << 40;
        let id = self.network.add_node(machine.name.as_str(), host, own_seed);
        self.network.node_mut(id).mute = machine.mute;
        match self.ids.insert(machine.name.clone(), id) {
            None => Ok(id),
            Some(_) => Err(TopologyError::Name(machine.name.clone())),
        }
    }
}

/// Gives a node its bridge or its routes to Pods; returns the ports.
fn attach_pods(
    host: &mut HostConfig,
    network: &PodNetwork,
    at: usize,
) -> Result<Vec<DeviceId>, DeviceNameError> {
    let mut ports = Vec::new();
    if network.pods.is_empty() {
        return Ok(ports);
    }
    let bridge = match network.routed {
        true => None,
        false => Some(host.add_device("cni0", DeviceKind::Bridge, mac(1, at))?),
    };
    for (subnet, address) in &network.subnets {
        if let Some(bridge) = bridge {
            host.add_address(bridge, *address, subnet.len());
        }
    }
    for (i, pod) in network.pods.iter().enumerate() {
        let kind = match bridge {
            Some(bridge) => DeviceKind::Port { bridge, hairpin: network.hairpin },
            None => DeviceKind::Ethernet,
        };
        let port = host.add_device(&format!("veth-{}", pod.name), kind, mac(2, at << 8 | i))?;
        if bridge.is_none() {
            for (_, address) in &network.subnets {
                host.add_address(port, *address, if address.is_ipv4() { 32 } else { 128 });
            }
            for address in &pod.addresses {
                host.add_route(RouteEntry::unicast(Prefix::host(*address), port, None));
            }
        }
        ports.push(port);
    }
    Ok(ports)
}

fn pod_host(pod: &Machine, network: &PodNetwork, at: usize) -> Result<HostConfig, TopologyError> {
    let mut host = HostConfig::new();
    let eth0 = host.add_device("eth0", DeviceKind::Ethernet, pod.mac.unwrap_or(mac(0, at + 1)))?;
    for address in &pod.addresses {
        let subnet = network.subnets.iter().find(|(subnet, _)| subnet.contains(*address));
        let Some((subnet, node)) = subnet else {
            continue;
        };
        let whole = if address.is_ipv4() { 32 } else { 128 };
        host.add_address(eth0, *address, if network.routed { whole } else { subnet.len() });
        if network.routed {
            let mut link = RouteEntry::unicast(Prefix::host(*node), eth0, None);
            link.scope = Scope::Link;
            host.add_route(link);
        }
        let any: IpAddr = if address.is_ipv4() { [0; 4].into() } else { [0u16; 8].into() };
        host.add_route(RouteEntry::unicast(Prefix::new(any, 0), eth0, Some(*node)));
    }
    also(&mut host, pod);
    Ok(host)
}

fn also(host: &mut HostConfig, machine: &Machine) {
    let named = machine.also_dev.as_deref().and_then(|name| host.device_named(name));
    for address in &machine.also {
        let len = if address.is_ipv4() { 32 } else { 128 };
        host.add_address(named.unwrap_or(HostConfig::LO), *address, len);
    }
}

fn add_gateway(host: &mut HostConfig, prefix: Prefix, dev: DeviceId, of: &[IpAddr]) {
    let v4 = prefix.address().is_ipv4();
    if let Some(gateway) = of.iter().find(|address| address.is_ipv4() == v4) {
        host.add_route(RouteEntry::unicast(prefix, dev, Some(*gateway)));
    }
}

/// Returns a locally administered address; the kinds do not meet.
fn mac(kind: u8, at: usize) -> MacAddr {
    [2, 0, 0, kind, (at >> 8) as u8, at as u8]
}
