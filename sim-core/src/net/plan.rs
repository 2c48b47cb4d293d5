//! Who has which address, by plan: every node's range of Pods, its own address, its routes.
//!
//! flannel's `host-gw`: a node's Pods are on its bridge, another node's behind that node, all
//! else behind the default gateway. The Service range is routed by nobody.

use std::net::{IpAddr, Ipv4Addr};

use netfilter_model::host::{Host, Route, RouteQuery};
use netfilter_model::rule::AddrType;
use netfilter_model::{DeviceId, DeviceName, Prefix};

use crate::config::{ClusterConfig, Ipv4Cidr};
use crate::ids::{Id, NodeId};

/// The bridge that a node's Pods are on.
pub const CNI0: DeviceId = DeviceId(0);
/// A node's uplink.
pub const ETH0: DeviceId = DeviceId(1);
/// A node's loopback device.
pub const LO: DeviceId = DeviceId(2);

/// The addresses of a cluster.
#[derive(Clone, Debug)]
pub struct AddressPlan {
    pods: Ipv4Cidr,
    /// How many bits of a Pod's address are the node's own to give.
    pod_bits: u32,
    nodes: Ipv4Cidr,
    count: u32,
    /// What is routed to a load balancer, which stands behind the last node.
    balanced: Option<Ipv4Cidr>,
    /// Addresses that every node has, sorted.
    shared: Vec<Ipv4Addr>,
    names: [DeviceName; 3],
}

impl AddressPlan {
    /// Returns the plan of `cluster`.
    pub fn new(cluster: &ClusterConfig) -> AddressPlan {
        let name = |name| DeviceName::parse(name).expect("a device name");
        AddressPlan {
            pods: cluster.pod_cidr,
            pod_bits: 32 - u32::from(cluster.node_prefix_len.min(32)),
            nodes: cluster.node_cidr,
            count: cluster.nodes,
            balanced: None,
            shared: Vec::new(),
            names: [name("cni0"), name("eth0"), name("lo")],
        }
    }

    /// Adds a load balancer to which all nodes route `range`.
    pub fn with_load_balancer(self, range: Ipv4Cidr) -> AddressPlan {
        AddressPlan { balanced: Some(range), ..self }
    }

    /// Adds addresses that every node has, sorted: those of virtual servers.
    pub fn with_shared(self, shared: Vec<Ipv4Addr>) -> AddressPlan {
        AddressPlan { shared, ..self }
    }

    /// Returns the load balancer, if there is one.
    pub fn load_balancer(&self) -> Option<NodeId> {
        self.balanced.map(|_| NodeId::from_index(self.count as usize))
    }

    /// Returns the node whose Pods' range holds `addr`.
    #[inline]
    pub fn node_of_pod(&self, addr: Ipv4Addr) -> Option<NodeId> {
        if !self.pods.contains(addr) {
            return None;
        }
        let index = (addr.to_bits() - self.pods.base().to_bits()).checked_shr(self.pod_bits)?;
        (index < self.count).then(|| NodeId::from_index(index as usize))
    }

    /// Returns the node whose own address is `addr`.
    #[inline]
    pub fn node_at(&self, addr: Ipv4Addr) -> Option<NodeId> {
        if !self.nodes.contains(addr) {
            return None;
        }
        let index = (addr.to_bits() - self.nodes.base().to_bits()).checked_sub(FIRST_NODE)?;
        let machines = self.count + u32::from(self.balanced.is_some());
        (index < machines).then(|| NodeId::from_index(index as usize))
    }

    /// Returns a node's own address.
    pub fn node_address(&self, node: NodeId) -> Ipv4Addr {
        let bits = self.nodes.base().to_bits() + FIRST_NODE + node.index() as u32;
        Ipv4Addr::from_bits(bits)
    }

    /// Returns the range of a node's Pods.
    pub fn pod_range(&self, node: NodeId) -> Prefix {
        Prefix::new(IpAddr::V4(self.bridge_address(node)), 32 - self.pod_bits as u8)
    }

    /// Returns the address of a node's bridge, its Pods' gateway.
    pub fn bridge_address(&self, node: NodeId) -> Ipv4Addr {
        let range = (node.index() as u64) << self.pod_bits;
        Ipv4Addr::from_bits(self.pods.base().to_bits() + range as u32 + 1)
    }

    /// Returns the host that `node` is.
    #[inline]
    pub fn host(&self, node: NodeId) -> NodeHost<'_> {
        NodeHost { plan: self, node }
    }

    fn gateway(&self) -> Ipv4Addr {
        Ipv4Addr::from_bits(self.nodes.base().to_bits() + 1)
    }
}

/// The first node's place in the nodes' range: after the network address and the gateway.
const FIRST_NODE: u32 = 2;

/// One node's routes and addresses.
#[derive(Clone, Copy, Debug)]
pub struct NodeHost<'a> {
    plan: &'a AddressPlan,
    node: NodeId,
}

impl NodeHost<'_> {
    /// Returns whether the load balancer is asked for an address, by another machine.
    fn is_balanced(&self, addr: Ipv4Addr) -> bool {
        self.plan.balanced.is_some_and(|range| range.contains(addr))
            && self.plan.load_balancer() != Some(self.node)
    }

    fn is_shared(&self, addr: Ipv4Addr) -> bool {
        self.plan.shared.binary_search(&addr).is_ok()
    }

    fn is_own(&self, addr: Ipv4Addr) -> bool {
        addr.is_loopback()
            || self.is_shared(addr)
            || self.plan.node_at(addr) == Some(self.node)
            || self.plan.bridge_address(self.node) == addr
    }
}

impl Host for NodeHost<'_> {
    #[inline]
    fn route(&self, query: RouteQuery) -> Route {
        let IpAddr::V4(dst) = query.dst else {
            return Route::NoRoute;
        };
        let forward = |dev, next_hop| Route::Forward { dev, next_hop: IpAddr::V4(next_hop) };
        match self.plan.node_of_pod(dst) {
            Some(node) if node == self.node => {
                if dst == self.plan.bridge_address(node) {
                    Route::Local
                } else if query.in_dev == Some(CNI0) {
                    Route::Bridged { dev: CNI0, port: None, next_hop: query.dst }
                } else {
                    forward(CNI0, dst)
                }
            }
            Some(node) => forward(ETH0, self.plan.node_address(node)),
            None if self.is_own(dst) => Route::Local,
            None if self.is_balanced(dst) => {
                let balancer = NodeId::from_index(self.plan.count as usize);
                forward(ETH0, self.plan.node_address(balancer))
            }
            None if self.plan.node_at(dst).is_some() => forward(ETH0, dst),
            None => forward(ETH0, self.plan.gateway()),
        }
    }

    fn addr_type(&self, addr: IpAddr, on: Option<DeviceId>) -> AddrType {
        let IpAddr::V4(addr) = addr else {
            return AddrType::Unicast;
        };
        let of = |dev, own| on.is_none_or(|on| on == dev) && own == addr;
        if of(ETH0, self.plan.node_address(self.node))
            || of(CNI0, self.plan.bridge_address(self.node))
            || (on.is_none() && (addr.is_loopback() || self.is_shared(addr)))
        {
            AddrType::Local
        } else if addr.is_broadcast() || addr.is_unspecified() {
            AddrType::Broadcast
        } else if addr.is_multicast() {
            AddrType::Multicast
        } else {
            AddrType::Unicast
        }
    }

    fn masquerade_address(&self, dev: DeviceId, _: IpAddr) -> Option<IpAddr> {
        Some(IpAddr::V4(if dev == CNI0 {
            self.plan.bridge_address(self.node)
        } else {
            self.plan.node_address(self.node)
        }))
    }

    fn loopback(&self) -> DeviceId {
        LO
    }

    fn device_name(&self, dev: DeviceId) -> DeviceName {
        self.plan.names[dev.0 as usize]
    }
}
