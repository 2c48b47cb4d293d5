//! kube-proxy's IPVS mode: virtual servers in the kernel, their addresses on a device of the node,
//! and a number of ipsets and iptables rules that does not grow with Services.
//!
//! ```text
//!  PREROUTING nat ─ KUBE-SERVICES ─ marks by ipset ─▶ local address of kube-ipvs0
//!       ─▶ INPUT filter ─▶ IPVS ─ chooses a real server ─▶ OUTPUT ─▶ POSTROUTING nat (masquerade)
//! ```
//!
//! [`Ipvs::of`] makes all of it from what the proxy is told, as it is after a first sync;
//! [`graceful::Kernel`] is what later syncs make of the virtual servers, where connections keep
//! real servers that are no longer wanted. [`Ipvs::restore`] writes it in four parts, with the
//! iptables part as kube-proxy feeds it to `iptables-restore`.
//!
//! Kubernetes: pkg/proxy/ipvs/proxier.go, syncProxyRules.

pub mod graceful;
mod rules;
mod sets;
mod write;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use netfilter_model::ipvs::{self, Destination, Persistence, Service, ServiceId};
use netfilter_model::rule::{Rule, Ruleset, RulesetBuilder, SlotId, ValidationError};
use netfilter_model::set::{Part, Sets};
use netfilter_model::tuple::{Family, Protocol};
use netfilter_model::{DeviceNameError, Prefix};

use super::endpoint::{Categorized, Endpoint};
use super::iptables::common::Settings;
use super::service::ServicePort;
use super::state::State;
use crate::kube::object::NodePortAddresses;
use rules::RuleChain;
pub use sets::{Entries, IpSet};

/// The device that holds the addresses of virtual servers.
pub const DEVICE: &str = "kube-ipvs0";

/// The scheduler where the configuration names none.
// Kubernetes: pkg/proxy/ipvs/proxier.go, defaultScheduler
const SCHEDULER_DEFAULT: &str = "rr";

/// What a proxy of one family keeps on a node in IPVS mode.
#[derive(Clone, Debug, PartialEq)]
pub struct Ipvs {
    family: Family,
    servers: ipvs::Ipvs,
    addresses: BTreeSet<IpAddr>,
    sets: BTreeMap<IpSet, Entries>,
    rules: Vec<(RuleChain, Rule)>,
    sysctls: Vec<(&'static str, u32)>,
}

/// How much there is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Virtual servers.
    pub servers: usize,
    /// Real servers of all virtual ones.
    pub real_servers: usize,
    /// Addresses on the device.
    pub addresses: usize,
    /// Elements of all ipsets.
    pub elements: usize,
    /// Rules of iptables, without the jumps from the built-in chains.
    pub rules: usize,
}

impl Ipvs {
    /// Returns what a proxy keeps after its first sync.
    ///
    /// # Errors
    ///
    /// If Pods are told by a device whose name the kernel would refuse.
    pub fn of(state: &State) -> Result<Ipvs, DeviceNameError> {
        let settings = Settings::of(state)?;
        let mut plan = Plan::new(state);
        for (port, endpoints) in &state.ports {
            plan.port(port, endpoints);
        }
        let Plan { servers, addresses, mut sets, refused, .. } = plan;
        let bound = sets.entry(IpSet::IpvsIps).or_default();
        for address in &addresses {
            bound.insert(IpSet::IpvsIps, vec![sets::address(*address)]);
        }
        let rules = rules::rules(&settings, &sets, &refused);
        let mut all = ipvs::Ipvs::default();
        all.services.extend(servers.into_values());
        let family = state.family;
        Ok(Ipvs { family, servers: all, addresses, sets, rules, sysctls: sysctls(state) })
    }

    /// Returns the virtual servers, in order of protocol, address and port; their destinations
    /// stand in order of address and port, as `ipvsadm` lists them.
    pub fn servers(&self) -> &ipvs::Ipvs {
        &self.servers
    }

    /// Returns the addresses on the device.
    pub fn addresses(&self) -> &BTreeSet<IpAddr> {
        &self.addresses
    }

    /// Returns the ipsets as the kernel holds them: networks of all addresses, which it refuses,
    /// are not in them.
    pub fn sets(&self) -> Sets {
        sets::kernel_sets(self.family, &self.sets)
    }

    /// Returns the iptables rules with the jumps to them from the built-in chains.
    ///
    /// # Errors
    ///
    /// If the kernel would refuse a rule; that is a bug.
    pub fn to_ruleset(&self) -> Result<Ruleset, ValidationError> {
        rules::ruleset(self.family, &self.rules)
    }

    /// Returns the rules for others' to be added, and the place in front of those of
    /// KUBE-POSTROUTING.
    pub(in crate::proxy) fn builder(&self) -> (RulesetBuilder, SlotId) {
        rules::builder(self.family, &self.rules)
    }

    /// Returns the kernel settings that the proxy makes, by their names under `net/`.
    pub fn sysctls(&self) -> &[(&'static str, u32)] {
        &self.sysctls
    }

    /// Returns how much there is of everything.
    pub fn counts(&self) -> Counts {
        let servers = &self.servers.services;
        Counts {
            servers: servers.len(),
            real_servers: servers.iter().map(|server| server.destinations.len()).sum(),
            addresses: self.addresses.len(),
            elements: self.sets.values().map(Entries::len).sum(),
            rules: self.rules.len(),
        }
    }

    /// Returns the whole as text in four parts: virtual servers as `ipvsadm -S -n` prints them,
    /// addresses on the device, ipsets as `ipset save` prints them but with each element as
    /// kube-proxy spells it, and what it feeds to `iptables-restore --noflush`.
    pub fn restore(&self) -> String {
        format!(
            "# --- virtual servers (ipvsadm -Sn)\n{}\
             # --- addresses on {DEVICE}\n{}\
             # --- ipset save\n{}\
             # --- iptables-restore --noflush input\n{}",
            self.servers.save(),
            self.addresses.iter().map(|address| format!("{address}\n")).collect::<String>(),
            sets::save(self.family, &self.sets),
            self.iptables_restore(),
        )
    }

    /// Returns what kube-proxy feeds to `iptables-restore --noflush --counters`.
    pub fn iptables_restore(&self) -> String {
        write::restore(&self.rules)
    }
}

/// What is gathered from one service port after the other.
struct Plan<'s> {
    state: &'s State,
    scheduler: Arc<str>,
    /// The node's addresses that NodePorts are served at.
    node_ips: Vec<IpAddr>,
    servers: BTreeMap<ServiceId, Service>,
    addresses: BTreeSet<IpAddr>,
    sets: BTreeMap<IpSet, Entries>,
    /// Load balancer addresses that the node itself may not reach.
    refused: Vec<(IpAddr, Protocol, u16)>,
}

impl<'s> Plan<'s> {
    fn new(state: &'s State) -> Plan<'s> {
        let scheduler = state.config.ipvs.scheduler.as_str();
        let scheduler = if scheduler.is_empty() { SCHEDULER_DEFAULT } else { scheduler };
        Plan {
            state,
            scheduler: scheduler.into(),
            node_ips: node_port_ips(state),
            servers: BTreeMap::new(),
            addresses: BTreeSet::new(),
            sets: BTreeMap::new(),
            refused: Vec::new(),
        }
    }

    fn add(&mut self, set: IpSet, parts: Vec<Part>) {
        self.sets.entry(set).or_default().insert(set, parts);
    }

    fn port(&mut self, port: &ServicePort, endpoints: &[Endpoint]) {
        let protocol = port.name.protocol;
        // All of the node's own, whether or not they take connections.
        for endpoint in endpoints.iter().filter(|endpoint| endpoint.local) {
            // With the address as the slice writes it, shortest form or not.
            let (address, written) = (endpoint.addr, endpoint.addr_text());
            let text = format!("{written},{protocol}:{},{written}", endpoint.port);
            let parts = sets::address_port_address(address, protocol, endpoint.port, address);
            self.sets.entry(IpSet::LoopBack).or_default().insert_as(text, parts);
        }
        let chosen = self.state.categorize(port, endpoints);
        let at = |address| sets::address_port(address, protocol, port.port);

        self.add(IpSet::ClusterIp, at(port.cluster_ip));
        self.addresses.insert(port.cluster_ip);
        self.server(port, &chosen, (port.cluster_ip, port.port), port.internal_local);

        let is_local = port.external_local;
        for &address in &port.external_ips {
            self.add(
                if is_local { IpSet::ExternalIpLocal } else { IpSet::ExternalIp },
                at(address),
            );
            self.bind(address);
            self.server(port, &chosen, (address, port.port), is_local);
        }
        for &address in &port.load_balancer_vips {
            self.add(IpSet::LoadBalancer, at(address));
            if is_local {
                self.add(IpSet::LoadBalancerLocal, at(address));
            }
            self.source_ranges(port, address);
            self.bind(address);
            self.server(port, &chosen, (address, port.port), is_local);
        }
        if let Some(number) = port.node_port {
            if self.node_ips.is_empty() {
                // As kube-proxy: the health check port is left out, too.
                return;
            }
            self.node_port(protocol, number, is_local);
            for address in self.node_ips.clone() {
                self.server(port, &chosen, (address, number), is_local);
            }
        }
        if let Some(number) = port.health_check_node_port {
            self.add(IpSet::HealthCheckNodePort, sets::port(number));
        }
    }

    /// Adds what lets only some sources reach a load balancer's address.
    fn source_ranges(&mut self, port: &ServicePort, address: IpAddr) {
        let ranges = &port.load_balancer_source_ranges;
        if ranges.is_empty() {
            return;
        }
        let (protocol, number) = (port.name.protocol, port.port);
        self.add(IpSet::LoadBalancerFw, sets::address_port(address, protocol, number));
        for range in ranges {
            let mut parts = sets::address_port(address, protocol, number);
            parts.push(Part::Net(range.clone()));
            self.add(IpSet::LoadBalancerSourceCidr, parts);
        }
        if ranges.iter().any(|range| range.contains(self.state.node.host_ip)) {
            let parts = sets::address_port_address(address, protocol, number, address);
            self.add(IpSet::LoadBalancerSourceIp, parts);
        } else {
            self.refused.push((address, protocol, number));
        }
    }

    fn node_port(&mut self, protocol: Protocol, number: u16, is_local: bool) {
        let (all, local) = match protocol {
            Protocol::UDP => (IpSet::NodePortUdp, IpSet::NodePortLocalUdp),
            Protocol::SCTP => (IpSet::NodePortSctp, IpSet::NodePortLocalSctp),
            _ => (IpSet::NodePortTcp, IpSet::NodePortLocalTcp),
        };
        for set in [Some(all), is_local.then_some(local)].into_iter().flatten() {
            if protocol == Protocol::SCTP {
                for address in self.node_ips.clone() {
                    self.add(set, sets::address_port(address, protocol, number));
                }
            } else {
                self.add(set, sets::port(number));
            }
        }
    }

    /// Puts an address on the device, unless another device has it.
    fn bind(&mut self, address: IpAddr) {
        if address.is_loopback() || !self.state.node.addresses.contains(&address) {
            self.addresses.insert(address);
        }
    }

    /// Adds a virtual server. Where its traffic should stay on the node but nobody is there to
    /// take it, it goes to all endpoints, for the sake of the node's own Pods.
    ///
    /// Kubernetes: pkg/proxy/ipvs/proxier.go, syncEndpoint.
    fn server(
        &mut self,
        port: &ServicePort,
        chosen: &Categorized<'_>,
        (address, number): (IpAddr, u16),
        is_local: bool,
    ) {
        let endpoints =
            if is_local && !chosen.local.is_empty() { &chosen.local } else { &chosen.cluster };
        let id = ServiceId::Address(port.name.protocol, address, number);
        let mut server = Service::new(id, self.scheduler.clone());
        let len = if address.is_ipv6() { 128 } else { 32 };
        server.persistence = port.affinity.map(|timeout| Persistence { timeout, len });
        if &*self.scheduler == "mh" {
            // Kernel: ip_vs.h, IP_VS_SVC_F_SCHED_MH_PORT, which kube-proxy calls FlagSourceHash
            server.flags.push("mh-port".into());
        }
        let places: BTreeSet<(IpAddr, u16)> =
            endpoints.iter().map(|endpoint| (endpoint.addr, endpoint.port)).collect();
        let real = places.into_iter().map(|(address, port)| Destination::new(address, port));
        server.destinations.extend(real);
        self.servers.insert(id, server);
    }
}

/// Returns the node's addresses that NodePorts are served at. Loopback addresses never are.
fn node_port_ips(state: &State) -> Vec<IpAddr> {
    let own = state.node.addresses.iter().copied().filter(|address| !address.is_loopback());
    match &state.config.node_port_addresses {
        NodePortAddresses::Default => own.collect(),
        NodePortAddresses::Primary => vec![state.node.host_ip],
        NodePortAddresses::Ranges(ranges) => {
            let of_family = |range: &&Prefix| Family::of(range.address()) == state.family;
            let ranges: Vec<&Prefix> = ranges.iter().filter(of_family).collect();
            let takes_all = ranges.is_empty() || ranges.iter().any(|range| range.is_empty());
            let is_in = |address: &IpAddr| ranges.iter().any(|range| range.contains(*address));
            own.filter(|address| takes_all || is_in(address)).collect()
        }
    }
}

/// Returns the settings that a proxy makes when it starts.
///
/// Kubernetes: pkg/proxy/ipvs/proxier.go, NewProxier. `conn_reuse_mode` is left alone: since Linux
/// 5.9 its default does no harm.
fn sysctls(state: &State) -> Vec<(&'static str, u32)> {
    let mut sysctls = vec![
        ("ipv4/vs/conntrack", 1),
        ("ipv4/vs/expire_nodest_conn", 1),
        ("ipv4/vs/expire_quiescent_template", 1),
        ("ipv4/ip_forward", 1),
    ];
    if state.config.ipvs.strict_arp {
        sysctls.push(("ipv4/conf/all/arp_ignore", 1));
        sysctls.push(("ipv4/conf/all/arp_announce", 2));
    }
    sysctls
}

#[cfg(test)]
mod tests;
