//! Packets between Pods: through their nodes' network namespaces and over the links.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use netfilter_model::DeviceId;
use netfilter_model::host::{Draws, Env, Host, RouteQuery};
use netfilter_model::ipvs::Sysctls;
use netfilter_model::netns::{Answer, Drop, Egress, Netns, Outcome};
use netfilter_model::packet::{IcmpError, Packet};
use netfilter_model::rule::{RuleRef, Rules};
use netfilter_model::set::Sets;

use super::Event;
use super::plan::{AddressPlan, CNI0, ETH0};
use super::topology::Topology;
use crate::config::{ClusterConfig, LoadBalancer};
use crate::engine::queue::Schedule;
use crate::ids::{Id, IdVec, NodeId};
use crate::time::SimTime;

/// How long a node asks for an address before it gives up.
///
/// Kernel: `net.ipv4.neigh.default.mcast_solicit` = 3 requests, `retrans_time_ms` = 1000 apart.
const RESOLVE: Duration = Duration::from_secs(3);

/// A packet that is on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PacketKey(u32);

/// The nodes and what is between them.
#[derive(Debug)]
pub struct Fabric {
    plan: AddressPlan,
    topology: Topology,
    bridge: Duration,
    nodes: IdVec<NodeId, Node>,
    balancer: Option<Balancer>,
    packets: Vec<Packet>,
    free: Vec<PacketKey>,
    /// Packets that Pods sent.
    pub sent: u64,
    /// Rules that a linear walk looks at for the packet that a namespace looked at last.
    pub evaluated: u32,
}

/// A load balancer's queue: one packet at a time, in order of arrival.
#[derive(Debug)]
struct Balancer {
    node: NodeId,
    config: LoadBalancer,
    /// When it will have done all that waits.
    busy_until: SimTime,
}

/// What a machine does with a packet that arrives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    /// It looks at it at once.
    Now,
    /// It has it look at it later: [`Event::Serve`].
    Queued,
    /// Its queue is full.
    Refused,
    /// It is down.
    Down,
}

#[derive(Debug, Default)]
struct Node {
    netns: Netns,
    /// It has failed.
    down: bool,
    /// Packets that wait for the answer to "who has this address?".
    resolving: BTreeMap<Ipv4Addr, Vec<Packet>>,
}

/// What became of a packet at a node.
#[derive(Debug)]
pub enum Passage {
    /// It is on its way; the rule that chose its new destination, if one did just now.
    Travelling(Option<RuleRef>, Packet),
    /// It has reached an address on the node's bridge.
    Reached(NodeId, Ipv4Addr, Packet),
    /// It is for a socket of the node itself.
    Local(NodeId, Packet),
    /// It is gone; its sender may have been told.
    Dropped(Drop),
    /// It left the cluster: nobody answers.
    Lost(Packet),
}

impl Fabric {
    /// Returns the network of `cluster`.
    pub fn new(cluster: &ClusterConfig) -> Fabric {
        Fabric::of(AddressPlan::new(cluster), cluster, None)
    }

    /// Returns the same with a load balancer for the addresses of Services.
    pub fn with_load_balancer(cluster: &ClusterConfig, config: LoadBalancer) -> Fabric {
        let plan = AddressPlan::new(cluster).with_load_balancer(cluster.service_cidr);
        Fabric::of(plan, cluster, Some(config))
    }

    /// Returns the same with nodes that have virtual servers of IPVS at these addresses, sorted, and
    /// these ipsets.
    pub fn with_virtual_servers(
        cluster: &ClusterConfig,
        addresses: Vec<Ipv4Addr>,
        sets: &Sets,
    ) -> Fabric {
        let plan = AddressPlan::new(cluster).with_shared(addresses);
        let mut fabric = Fabric::of(plan, cluster, None);
        for (_, node) in fabric.nodes.iter_mut() {
            node.netns.memory_mut().sets = sets.clone();
            node.netns.ipvs_mut(SimTime::ZERO).sysctls = Sysctls::kube_proxy();
        }
        fabric
    }

    /// Returns the network namespace of a node.
    pub fn netns_mut(&mut self, node: NodeId) -> &mut Netns {
        &mut self.nodes[node].netns
    }

    fn of(plan: AddressPlan, cluster: &ClusterConfig, balancer: Option<LoadBalancer>) -> Fabric {
        let machines = cluster.nodes + u32::from(balancer.is_some());
        let node = NodeId::from_index(cluster.nodes as usize);
        let balancer = balancer.map(|config| Balancer { node, config, busy_until: SimTime::ZERO });
        Fabric {
            plan,
            topology: Topology::star(machines, cluster.link_latency),
            bridge: cluster.bridge_latency,
            nodes: (0..machines).map(|_| Node::default()).collect(),
            balancer,
            packets: Vec::new(),
            free: Vec::new(),
            sent: 0,
            evaluated: 0,
        }
    }

    /// Returns who has which address.
    pub fn plan(&self) -> &AddressPlan {
        &self.plan
    }

    /// Returns how long a packet takes from a Pod on `from` to a Pod on `to`, if it can.
    pub fn latency(&self, from: NodeId, to: NodeId) -> Option<Duration> {
        if from == to { Some(self.bridge) } else { self.topology.latency(from, to) }
    }

    /// Returns the longest that a packet takes between two Pods.
    pub fn greatest_latency(&self) -> Duration {
        self.bridge.max(self.topology.greatest_latency())
    }

    /// Returns the load balancer's place among the nodes, if there is one.
    pub fn load_balancer(&self) -> Option<NodeId> {
        self.balancer.as_ref().map(|balancer| balancer.node)
    }

    /// Notes that a machine has failed, or works again. A load balancer has lost its connections
    /// by then.
    // Simplified: a node that fails is cut off; its Pods run on and are there when it is back.
    pub fn set_down(&mut self, node: NodeId, down: bool) {
        let machine = &mut self.nodes[node];
        machine.down = down;
        let is_balancer = self.balancer.as_ref().is_some_and(|balancer| balancer.node == node);
        if down && is_balancer {
            machine.netns = Netns::default();
        }
    }

    /// Returns all machines: the nodes, and the load balancer if there is one.
    pub fn machines(&self) -> impl Iterator<Item = NodeId> + use<> {
        (0..self.nodes.len()).map(NodeId::from_index)
    }

    /// Returns whether a machine has failed.
    pub fn is_down(&self, node: NodeId) -> bool {
        self.nodes[node].down
    }

    /// Decides what becomes of a packet that arrives at `node`.
    pub fn admit(
        &mut self,
        node: NodeId,
        key: PacketKey,
        schedule: &mut impl Schedule<Event>,
    ) -> Admission {
        if self.nodes[node].down {
            return Admission::Down;
        }
        let Some(balancer) = self.balancer.as_mut().filter(|balancer| balancer.node == node) else {
            return Admission::Now;
        };
        let per_packet = balancer.config.per_packet;
        if per_packet.is_zero() {
            return Admission::Now;
        }
        let now = schedule.now();
        let waiting = balancer.busy_until.saturating_since(now);
        // The one that is being worked on does not wait.
        let places = balancer.config.queue.saturating_add(1);
        if waiting.as_nanos().div_ceil(per_packet.as_nanos()) >= u128::from(places) {
            return Admission::Refused;
        }
        balancer.busy_until = balancer.busy_until.max(now) + per_packet;
        schedule.at(balancer.busy_until, Event::Serve(node, key));
        Admission::Queued
    }

    /// Sends a packet from a Pod on `node`.
    pub fn send(
        &mut self,
        node: NodeId,
        packet: Packet,
        rules: &impl Rules,
        draws: &mut impl Draws,
        schedule: &mut impl Schedule<Event>,
    ) -> Passage {
        self.sent += 1;
        if self.nodes[node].down {
            return Passage::Lost(packet);
        }
        let outcome = self.receive(node, packet, CNI0, rules, draws, schedule.now());
        self.pass_on(node, outcome, schedule)
    }

    /// Sends a packet from a process in the namespace of `node` itself.
    pub fn send_local(
        &mut self,
        node: NodeId,
        packet: Packet,
        rules: &impl Rules,
        draws: &mut impl Draws,
        schedule: &mut impl Schedule<Event>,
    ) -> Passage {
        let host = self.plan.host(node);
        let (dst, src) = (packet.tuple.dst(), packet.tuple.src());
        let route = host.route(RouteQuery { dst, src, mark: packet.mark, in_dev: None });
        let mut env = Env { now: schedule.now(), host: &host, rules, draws };
        let outcome = self.nodes[node].netns.send(packet, route, &mut env);
        self.evaluated = outcome.evaluated();
        self.pass_on(node, outcome, schedule)
    }

    /// Returns the address that a process of `node` sends from to `dst`.
    pub fn source_address(&self, node: NodeId, dst: Ipv4Addr) -> Ipv4Addr {
        if self.plan.node_of_pod(dst) == Some(node) {
            self.plan.bridge_address(node)
        } else {
            self.plan.node_address(node)
        }
    }

    /// Runs a packet that came in by `dev` through the namespace of `node`.
    #[inline]
    fn receive(
        &mut self,
        node: NodeId,
        packet: Packet,
        dev: DeviceId,
        rules: &impl Rules,
        draws: &mut impl Draws,
        now: SimTime,
    ) -> Outcome {
        let host = self.plan.host(node);
        let mut env = Env { now, host: &host, rules, draws };
        let outcome = self.nodes[node].netns.receive(packet, dev, &mut env);
        self.evaluated = outcome.evaluated();
        outcome
    }

    /// Takes the packet of an [`Event::Arrive`] or [`Event::Deliver`] off its link; a packet that
    /// arrives at a node still has to pass it ([`Fabric::arrive`]).
    pub fn take(&mut self, key: PacketKey) -> Packet {
        self.free.push(key);
        self.packets[key.0 as usize]
    }

    /// Handles a packet that arrived at `node` from the fabric.
    pub fn arrive(
        &mut self,
        node: NodeId,
        packet: Packet,
        rules: &impl Rules,
        draws: &mut impl Draws,
        schedule: &mut impl Schedule<Event>,
    ) -> Passage {
        let outcome = self.receive(node, packet, ETH0, rules, draws, schedule.now());
        match outcome {
            Outcome::Sent(egress) if egress.dev == CNI0 => {
                let packet = egress.packet;
                match packet.tuple.dst() {
                    IpAddr::V4(addr) => Passage::Reached(node, addr, packet),
                    IpAddr::V6(_) => Passage::Lost(packet),
                }
            }
            outcome => self.pass_on(node, outcome, schedule),
        }
    }

    /// Holds back a packet to an address that no Pod on `node` has: the node asks for it.
    pub fn resolve(&mut self, node: NodeId, packet: Packet, schedule: &mut impl Schedule<Event>) {
        let IpAddr::V4(addr) = packet.tuple.dst() else {
            return;
        };
        let waiting = self.nodes[node].resolving.entry(addr).or_insert_with(|| {
            schedule.after(RESOLVE, Event::Unresolved(node, addr));
            Vec::new()
        });
        waiting.push(packet);
    }

    /// Returns the packets that wait for an address on `node`, which has been given up or found.
    pub fn resolved(&mut self, node: NodeId, addr: Ipv4Addr) -> Vec<Packet> {
        self.nodes[node].resolving.remove(&addr).unwrap_or_default()
    }

    /// Tells the sender of `about` that its destination does not answer.
    ///
    /// Kernel: arp.c, arp_error_report; route.c, ipv4_link_failure.
    pub fn host_unreachable(
        &mut self,
        node: NodeId,
        about: &Packet,
        rules: &impl Rules,
        draws: &mut impl Draws,
        schedule: &mut impl Schedule<Event>,
    ) {
        let host = self.plan.host(node);
        let mut env = Env { now: schedule.now(), host: &host, rules, draws };
        let netns = &mut self.nodes[node].netns;
        if let Some(answer) = netns.send_error(about, IcmpError::HostUnreachable, &mut env) {
            self.answer(node, answer, schedule);
        }
    }

    fn pass_on(
        &mut self,
        node: NodeId,
        outcome: Outcome,
        schedule: &mut impl Schedule<Event>,
    ) -> Passage {
        match outcome {
            Outcome::Sent(egress) => self.transmit(node, egress, schedule),
            Outcome::Local(delivery) => Passage::Local(node, delivery.packet),
            Outcome::Dropped(drop) => Passage::Dropped(drop),
            Outcome::Rejected(rejection) => {
                self.answer(node, rejection.answer, schedule);
                Passage::Dropped(rejection.drop)
            }
        }
    }

    /// Sends what a sender is told; an answer to the node itself has nobody to hear it.
    fn answer(&mut self, node: NodeId, answer: Answer, schedule: &mut impl Schedule<Event>) {
        if let Answer::Sent(egress) = answer {
            // An answer that is lost shows at the sender as silence.
            let _: Passage = self.transmit(node, egress, schedule);
        }
    }

    /// Puts a packet on the link that it leaves by.
    fn transmit(
        &mut self,
        node: NodeId,
        egress: Egress,
        schedule: &mut impl Schedule<Event>,
    ) -> Passage {
        let Egress { packet, dev, next_hop, dnat, .. } = egress;
        if dev == CNI0 {
            let key = self.keep(packet);
            schedule.after(self.bridge, Event::Deliver(node, key));
            return Passage::Travelling(dnat, packet);
        }
        let neighbour = match next_hop {
            IpAddr::V4(addr) => self.plan.node_at(addr),
            IpAddr::V6(_) => None,
        };
        let latency = neighbour.and_then(|to| self.topology.latency(node, to));
        let (Some(to), Some(latency)) = (neighbour, latency) else {
            return Passage::Lost(packet);
        };
        let key = self.keep(packet);
        schedule.after(latency, Event::Arrive(to, key));
        Passage::Travelling(dnat, packet)
    }

    fn keep(&mut self, packet: Packet) -> PacketKey {
        match self.free.pop() {
            Some(key) => {
                self.packets[key.0 as usize] = packet;
                key
            }
            None => {
                let key = u32::try_from(self.packets.len()).expect("fewer than 2^32 packets");
                self.packets.push(packet);
                PacketKey(key)
            }
        }
    }
}
