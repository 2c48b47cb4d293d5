//! IPVS mode: virtual servers of each node, beside rules that are the same on all.
//!
//! What a node's kernel has of a service port depends on the node's connections, since real servers
//! that are gone stay for theirs. So each node has its own, brought up to date by the next packet
//! to the port ([`Ipvs::sync`]).

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use netfilter_model::hook::{Hook, Table};
use netfilter_model::ipvs::{self, Destination, Persistence, Service, ServiceId, State};
use netfilter_model::packet::Packet;
use netfilter_model::rule::{
    Base, Chain, ChainId, Nat, NatRange, Origin, Rule, Rules, SlotHit, SlotId, Target,
};
use netfilter_model::set::Sets;

use super::{DataPlane, PlaneError, ProxiedService, anywhere, flannel, state};
use crate::ids::{Id, NodeId, ServicePortId};
use crate::kube::endpoint_slice::Endpoint;
use crate::kube::object::KubeProxyConfiguration;
use crate::proxy::ipvs::graceful::{CHECK_INTERVAL, Kernel};
use crate::proxy::profile::Profile;
use crate::proxy::service::{ServicePort, ServicePortName};
use crate::time::SimTime;
use netfilter_model::tuple::Protocol;

/// What all nodes hold, and the virtual servers of each.
#[derive(Debug)]
pub(super) struct Ipvs {
    pub(super) base: Base,
    /// Where flannel's rules about a node's own Pods go.
    pub(super) flannel_local: SlotId,
    /// In front of KUBE-POSTROUTING's rules: for packets that loop back to their senders.
    loop_back: SlotId,
    masquerade: Rule,
    sets: Sets,
    addresses: Vec<Ipv4Addr>,
    scheduler: String,
    nodes: Vec<BTreeMap<ServicePortId, Servers>>,
}

/// A node's virtual server of one service port.
#[derive(Debug, Default)]
struct Servers {
    kernel: Kernel,
    /// The number of the version that it was synced to.
    synced: Option<u32>,
    /// When it was last brought up to date.
    at: SimTime,
}

impl Ipvs {
    pub(super) fn new(
        pods: &netfilter_model::Prefix,
        config: &KubeProxyConfiguration,
        profile: Profile,
        nodes: usize,
        services: &[ProxiedService],
    ) -> Result<Ipvs, PlaneError> {
        let mut state = state(config, profile, anywhere());
        for service in services {
            for (name, number) in &service.ports {
                let name = ServicePortName::new(&service.name, name.as_deref(), Protocol::TCP);
                let ip = IpAddr::V4(service.cluster_ip);
                state.ports.push((ServicePort::cluster_ip_only(name, ip, *number), Vec::new()));
            }
        }
        let made = crate::proxy::ipvs::Ipvs::of(&state).map_err(PlaneError::Device)?;
        let (mut builder, loop_back) = made.builder();
        let mark = 1 << config.iptables.masquerade_bit;
        let flannel_local = flannel::common(&mut builder, pods, mark);
        let mut addresses: Vec<Ipv4Addr> =
            services.iter().map(|service| service.cluster_ip).collect();
        addresses.sort_unstable();
        let masquerade = Target::Nat(Nat::Masquerade(NatRange::keep()));
        Ok(Ipvs {
            base: builder.build_base()?,
            flannel_local,
            loop_back,
            masquerade: Rule::new(Origin { owner: u32::MAX, item: 0 }).then(masquerade),
            sets: made.sets(),
            addresses,
            scheduler: config.ipvs.scheduler.clone(),
            nodes: (0..nodes).map(|_| BTreeMap::new()).collect(),
        })
    }

    /// Returns the ipsets that rules ask, and the addresses that are every node's own, sorted.
    pub(super) fn shared(&self) -> (&Sets, &[Ipv4Addr]) {
        (&self.sets, &self.addresses)
    }

    /// Brings a node's virtual server of a port up to date with the version that is live there.
    /// `state` is what the node's IPVS knows at `now`.
    // Simplified: whether a removed real server of IPVS has connections is looked at when the next
    // packet to its service leaves the node.
    pub(super) fn sync(
        &mut self,
        (node, now): (NodeId, SimTime),
        (id, port): (ServicePortId, &ServicePort),
        (ordinal, endpoints): (u32, &[Endpoint]),
        state: &State,
    ) {
        let servers = self.nodes[node.index()].entry(id).or_default();
        let minutes = |time: SimTime| {
            Duration::from_nanos(time.as_nanos()).as_secs() / CHECK_INTERVAL.as_secs()
        };
        let connections = |real: &ipvs::RealServer| {
            let load = state.load(real);
            load.active + load.inactive
        };
        if !servers.kernel.terminating().is_empty() && minutes(servers.at) < minutes(now) {
            servers.kernel.check(&connections);
        }
        servers.at = now;
        if servers.synced == Some(ordinal) {
            return;
        }
        servers.synced = Some(ordinal);
        let id = ServiceId::Address(port.name.protocol, port.cluster_ip, port.port);
        let mut service = Service::new(id, self.scheduler.as_str());
        let timeout = port.affinity;
        service.persistence = timeout.map(|timeout| Persistence { timeout, len: 32 });
        if self.scheduler == "mh" {
            service.flags.push("mh-port".into());
        }
        let to = |endpoint: &Endpoint| Destination::new(endpoint.addr.into(), endpoint.port);
        service.destinations.extend(endpoints.iter().map(to));
        servers.kernel.sync(std::slice::from_ref(&service), &[], &connections);
    }

    pub(super) fn kernel(&self, node: NodeId, port: ServicePortId) -> Option<&Kernel> {
        self.nodes[node.index()].get(&port).map(|servers| &servers.kernel)
    }
}

/// What one node holds at one time for one packet.
#[derive(Clone, Copy, Debug)]
pub struct NodeRules<'a> {
    pub(super) plane: &'a DataPlane,
    pub(super) mode: &'a Ipvs,
    pub(super) node: NodeId,
    /// The virtual server that the packet is for.
    pub(super) kernel: Option<&'a Kernel>,
}

impl ipvs::Services for NodeRules<'_> {
    fn service(&self, id: &ServiceId) -> Option<&Service> {
        let services = self.kernel?.services();
        let at = services.binary_search_by_key(id, |service| service.id).ok()?;
        Some(&services[at])
    }
}

impl Rules for NodeRules<'_> {
    #[inline]
    fn base(&self, table: Table, hook: Hook) -> Option<&Chain> {
        self.mode.base.builtin(table, hook)
    }

    #[inline]
    fn chain(&self, table: Table, id: ChainId) -> &Chain {
        self.mode.base.chain(table, id)
    }

    fn slot(&self, _: Table, slot: SlotId, packet: &Packet, from: u32) -> SlotHit<'_> {
        if slot == self.mode.flannel_local {
            return self.plane.flannel(self.node, from);
        }
        // Who is a packet's source and destination is in the set of what loops back: only the
        // node's own Pods send to themselves.
        let loops = slot == self.mode.loop_back && packet.tuple.src() == packet.tuple.dst();
        let rules = std::slice::from_ref(&self.mode.masquerade);
        let rules = if loops && from == 0 { rules } else { &[] };
        SlotHit { rules, before: u32::from(rules.is_empty()), total: 1 }
    }

    #[inline]
    fn tracks(&self) -> bool {
        true
    }

    #[inline]
    fn ipvs(&self) -> Option<&dyn ipvs::Services> {
        Some(self)
    }
}
