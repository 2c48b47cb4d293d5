//! The data planes of all nodes of a simulated cluster.
//!
//! A Service's endpoints are kept once, as versions in its history, with what the mode makes of
//! them; what a node holds at a time is a view of those versions ([`NodeRules`]). Every mode
//! serves ClusterIP Services of TCP, with flannel's rules around them.

mod affinity;
mod article;
mod ebpf;
mod flannel;
mod iptables;
mod ipvs;
mod nftables;
mod plain;
mod userspace;

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use netfilter_model::ebpf::Frontend;
use netfilter_model::hook::{Hook, Table};
use netfilter_model::ipvs::{Services, State as IpvsState};
use netfilter_model::nft;
use netfilter_model::packet::Packet;
use netfilter_model::rule::{
    Base, Chain, ChainId, Fragment, FragmentId, Origin, Rule, RuleRef, Rules, Ruleset, SlotHit,
    SlotId, ValidationError,
};
use netfilter_model::set::Sets;
use netfilter_model::tuple::{Family, Protocol};
use netfilter_model::{DeviceNameError, Prefix};

pub use self::ebpf::{Dialed, Dialer, NoEndpoint};

use self::affinity::Seen;
use self::article::Article;
use self::ebpf::Ebpf;
use self::iptables::Iptables;
use self::ipvs::Ipvs;
use self::nftables::Nftables;
use self::plain::Plain;
use self::userspace::Userspace;
use super::endpoint;
use super::profile::Profile;
use super::service::{ServicePort, ServicePortName};
use super::state::{NodeInfo, State};
use super::sync::cost::{Rules as RuleCounts, Tally};
use super::userspace::{Caller, Sticky};
use crate::config::{ClusterConfig, Ipv4Cidr, ObjectName, ProxyConfig, ProxyMode};
use crate::ids::{Id, IdVec, NodeId, PodId, ServiceId, ServicePortId};
use crate::kube::endpoint_slice::{Endpoint, ServiceEndpoints};
use crate::kube::object::{self, KubeProxyConfiguration, SyncSettings};
use crate::propagation::{Applied, History, Version};
use crate::record::Name;
use crate::time::SimTime;

/// A Service as the proxies are told of it.
#[derive(Clone, Debug)]
pub struct ProxiedService {
    /// Its name.
    pub name: ObjectName,
    /// Its virtual address.
    pub cluster_ip: Ipv4Addr,
    /// Its ports, with their names.
    pub ports: Vec<(Option<String>, u16)>,
    /// Its endpoints at the start.
    pub endpoints: ServiceEndpoints,
    /// How long a client stays with its endpoint; whole seconds.
    pub affinity: Option<Duration>,
}

/// What the proxies of all nodes hold.
#[derive(Debug)]
pub struct DataPlane {
    services: IdVec<ServiceId, ServiceState>,
    ports: IdVec<ServicePortId, Port>,
    /// Service ports by address and port, sorted.
    by_target: Vec<((u32, u16), ServicePortId)>,
    config: KubeProxyConfiguration,
    profile: Profile,
    /// Nodes whose Services' rules another program removed: from when, and until when.
    flushed: BTreeMap<NodeId, (SimTime, SimTime)>,
    /// flannel's rules about a node's own Pods.
    local: Vec<[Rule; 3]>,
    mode: Mode,
    /// Nodes keep something that is to be brought up to date before packets.
    keeps_state: bool,
}

#[derive(Debug)]
#[allow(clippy::large_enum_variant)]
enum Mode {
    Iptables(Iptables),
    Nftables(Nftables),
    Ipvs(Ipvs),
    Userspace(Userspace),
    Ebpf(Ebpf),
    /// The rules of the load balancer, and those of nodes.
    Central(Iptables, Plain),
    Article(Article),
}

#[derive(Debug)]
struct ServiceState {
    history: History<ServiceRules>,
    ports: Vec<ServicePortId>,
    /// What nodes' memories of its clients are of, if they stay with their endpoints.
    seen: Option<Seen>,
}

/// One service port.
#[derive(Debug)]
struct Port {
    service: ServiceId,
    /// Its place in the Service's list.
    index: usize,
    name: Name,
    port: ServicePort,
}

/// One version of a Service: its ports' endpoints and rules.
#[derive(Debug)]
pub struct ServiceRules {
    ports: Vec<PortRules>,
}

#[derive(Debug)]
struct PortRules {
    endpoints: Arc<[Endpoint]>,
    made: Made,
    tally: Tally,
}

/// What a mode makes of a port's endpoints.
#[derive(Debug)]
enum Made {
    Fragment(Arc<Fragment>),
    Nft(Arc<nft::Ruleset>),
    /// A rule for each turn.
    Turns(Vec<Rule>),
    Frontend(Frontend),
    /// Endpoints are all that counts.
    Nothing,
}

/// Rules that the kernel would refuse: a bug.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum PlaneError {
    /// Of iptables.
    #[error(transparent)]
    Iptables(#[from] ValidationError),
    /// Of nftables.
    #[error("{0}")]
    Nftables(#[from] nft::Problem),
    /// A device's name.
    #[error(transparent)]
    Device(DeviceNameError),
}

impl ProxiedService {
    /// Returns a port of it.
    fn port(&self, name: ServicePortName, number: u16) -> ServicePort {
        ServicePort {
            affinity: self.affinity.map(|timeout| timeout.as_secs() as u32),
            ..ServicePort::cluster_ip_only(name, self.cluster_ip.into(), number)
        }
    }
}

impl ServiceRules {
    /// Returns the endpoints of the port at `index`.
    pub fn endpoints(&self, index: usize) -> &[Endpoint] {
        &self.ports[index].endpoints
    }

    /// Returns the endpoints of all ports.
    pub fn all(&self) -> impl Iterator<Item = &Endpoint> {
        self.ports.iter().flat_map(|port| port.endpoints.iter())
    }

    /// Returns how much it is.
    pub fn tally(&self) -> Tally {
        let mut total = Tally::default();
        self.ports.iter().for_each(|port| total += port.tally);
        total
    }

    /// Returns whether `pod` is an endpoint of some port.
    pub fn names(&self, pod: PodId) -> bool {
        self.ports.iter().any(|port| port.endpoints.iter().any(|endpoint| endpoint.pod == pod))
    }
}

impl DataPlane {
    /// Returns what proxies hold for `services`, the same on all nodes.
    ///
    /// # Errors
    ///
    /// If the rules would be refused by the kernel; that is a bug.
    pub fn new(
        cluster: &ClusterConfig,
        proxy: &ProxyConfig,
        node_ranges: impl Iterator<Item = Ipv4Cidr>,
        services: Vec<ProxiedService>,
    ) -> Result<DataPlane, PlaneError> {
        let pods = prefix(cluster.pod_cidr);
        let profile = Profile::from_minor(proxy.profile).unwrap_or_default();
        let settings = SyncSettings {
            masquerade_bit: proxy.masquerade_bit,
            masquerade_all: proxy.masquerade_all,
            ..SyncSettings::default()
        };
        let config = KubeProxyConfiguration {
            mode: match proxy.mode {
                ProxyMode::Iptables => object::ProxyMode::Iptables,
                ProxyMode::Nftables => object::ProxyMode::Nftables,
                ProxyMode::Ipvs(_) => object::ProxyMode::Ipvs,
                // Not, or no more, kube-proxy's to be configured.
                ProxyMode::Userspace
                | ProxyMode::Ebpf(_)
                | ProxyMode::Central(_)
                | ProxyMode::Article(_) => object::ProxyMode::default(),
            },
            cluster_cidrs: vec![pods.clone()],
            iptables: settings,
            nftables: settings,
            ipvs: object::IpvsSettings {
                scheduler: match proxy.mode {
                    ProxyMode::Ipvs(scheduler) => scheduler.name().to_owned(),
                    _ => String::new(),
                },
                ..object::IpvsSettings::default()
            },
            ..KubeProxyConfiguration::default()
        };
        let local = node_ranges.map(|range| flannel::of_node(&pods, &prefix(range)));
        let local: Vec<[Rule; 3]> = local.collect();
        let mut plane = DataPlane {
            services: IdVec::new(),
            ports: IdVec::new(),
            by_target: Vec::new(),
            profile,
            flushed: BTreeMap::new(),
            mode: match proxy.mode {
                ProxyMode::Iptables => {
                    Mode::Iptables(Iptables::new(&pods, proxy, true, &services)?)
                }
                ProxyMode::Nftables => Mode::Nftables(Nftables::new(&pods, &config, profile)?),
                ProxyMode::Ipvs(_) => {
                    Mode::Ipvs(Ipvs::new(&pods, &config, profile, local.len(), &services)?)
                }
                ProxyMode::Userspace => {
                    Mode::Userspace(Userspace::new(&pods, 1 << proxy.masquerade_bit)?)
                }
                ProxyMode::Article(_) => {
                    Mode::Article(Article::new(&pods, 1 << proxy.masquerade_bit)?)
                }
                ProxyMode::Ebpf(selection) => {
                    Mode::Ebpf(Ebpf::new(&pods, 1 << proxy.masquerade_bit, selection)?)
                }
                ProxyMode::Central(_) => Mode::Central(
                    Iptables::new(&pods, proxy, false, &services)?,
                    Plain::new(&pods, 1 << proxy.masquerade_bit)?,
                ),
            },
            local,
            config,
            keeps_state: matches!(proxy.mode, ProxyMode::Ipvs(_))
                || services.iter().any(|service| service.affinity.is_some()),
        };
        for service in services {
            plane.add_service(service)?;
        }
        plane.by_target.sort_unstable();
        Ok(plane)
    }

    fn add_service(&mut self, service: ProxiedService) -> Result<(), PlaneError> {
        let id = ServiceId::from_index(self.services.len());
        let mut ports = Vec::new();
        for (index, (name, number)) in service.ports.iter().enumerate() {
            let name = ServicePortName::new(&service.name, name.as_deref(), Protocol::TCP);
            let port = self.ports.push(Port {
                service: id,
                index,
                name: (*name.text).into(),
                port: service.port(name, *number),
            });
            if let Mode::Userspace(mode) = &mut self.mode {
                mode.add(&self.ports[port].port);
            }
            self.by_target.push(((service.cluster_ip.to_bits(), *number), port));
            ports.push(port);
        }
        let rules = self.make(&ports, &service.endpoints)?;
        let seen = service.affinity.map(|_| Seen::default());
        self.services.push(ServiceState { history: History::new(rules), ports, seen });
        Ok(())
    }

    /// Commits a change of `service` at `now`; it goes live on node i after the i-th lag.
    ///
    /// # Errors
    ///
    /// If the rules would be refused by the kernel; that is a bug.
    pub fn commit(
        &mut self,
        service: ServiceId,
        endpoints: &ServiceEndpoints,
        now: SimTime,
        lags: impl Iterator<Item = Duration>,
    ) -> Result<&Version<ServiceRules>, PlaneError> {
        let rules = self.remake(service, endpoints)?;
        Ok(self.services[service].history.commit(now, rules, lags))
    }

    /// Commits a change of `service` at `now` of which the proxy of node i is told after the i-th
    /// lag; syncs bring it ([`DataPlane::apply`]).
    ///
    /// # Errors
    ///
    /// If the rules would be refused by the kernel; that is a bug.
    pub fn announce(
        &mut self,
        service: ServiceId,
        endpoints: &ServiceEndpoints,
        now: SimTime,
        lags: impl Iterator<Item = Duration>,
    ) -> Result<&Version<ServiceRules>, PlaneError> {
        let rules = self.remake(service, endpoints)?;
        Ok(self.services[service].history.announce(now, rules, lags))
    }

    /// Notes that a sync of `node` took the versions of `service` up to number `ordinal`, and
    /// returns whether that settles any.
    pub fn apply(
        &mut self,
        service: ServiceId,
        node: NodeId,
        ordinal: u32,
        applied: &Applied,
    ) -> bool {
        self.services[service].history.apply(node, ordinal, applied)
    }

    /// Lets a proxy that lists everything at `at` know of all versions up to then.
    pub fn list(&mut self, node: NodeId, at: SimTime) {
        for (_, service) in self.services.iter_mut() {
            service.history.list(node, at);
        }
    }

    /// Removes the Services' rules of `node` at `at`, until [`DataPlane::restore`].
    // Simplified: rules that another program removes are those of Services, all tables at once.
    pub fn flush(&mut self, node: NodeId, at: SimTime) {
        self.flushed.insert(node, (at, SimTime::MAX));
    }

    /// Brings the Services' rules of `node` back at `at`, if they were removed.
    pub fn restore(&mut self, node: NodeId, at: SimTime) {
        if let Some((_, until)) = self.flushed.get_mut(&node) {
            *until = (*until).min(at);
        }
    }

    #[inline]
    fn is_flushed(&self, node: NodeId, now: SimTime) -> bool {
        !self.flushed.is_empty()
            && self.flushed.get(&node).is_some_and(|&(from, until)| from <= now && now < until)
    }

    /// Returns the rules of every node that do not depend on Services.
    pub fn fixed_rules(&self) -> RuleCounts {
        match &self.mode {
            Mode::Iptables(mode) | Mode::Central(mode, _) => {
                let base = &mode.common.base;
                let of = |table: Table| {
                    let chains = base.chains(table).iter();
                    chains.map(|chain| chain.rules().len() as u64).sum()
                };
                RuleCounts { filter: of(Table::Filter), nat: of(Table::Nat) }
            }
            Mode::Nftables(mode) => RuleCounts { filter: 0, nat: mode.fixed },
            Mode::Userspace(_) | Mode::Ipvs(_) | Mode::Ebpf(_) | Mode::Article(_) => {
                RuleCounts::default()
            }
        }
    }

    /// Returns how much all Services together are, as the run began.
    pub fn tally(&self) -> Tally {
        let mut total = Tally::default();
        for (_, service) in self.services.iter() {
            total += service.history.newest().content.tally();
        }
        total
    }

    /// Makes the rules of `service` with other endpoints.
    fn remake(
        &mut self,
        service: ServiceId,
        endpoints: &ServiceEndpoints,
    ) -> Result<ServiceRules, PlaneError> {
        if let Mode::Iptables(mode) | Mode::Central(mode, _) = &mut self.mode {
            let old = self.services[service].history.newest().content.all().count();
            mode.recount(old, count(endpoints));
        }
        let ports = self.services[service].ports.clone();
        self.make(&ports, endpoints)
    }

    /// Makes a version of the Service that has these ports.
    fn make(
        &mut self,
        ports: &[ServicePortId],
        endpoints: &ServiceEndpoints,
    ) -> Result<ServiceRules, PlaneError> {
        let mut rules = Vec::with_capacity(ports.len());
        for (&id, endpoints) in ports.iter().zip(endpoints) {
            let port = self.ports[id].port.clone();
            rules.push(self.make_port(id, &port, endpoints)?);
        }
        Ok(ServiceRules { ports: rules })
    }

    /// Returns how much a Service with one port and so many endpoints is.
    ///
    /// # Errors
    ///
    /// If the rules would be refused by the kernel; that is a bug.
    pub fn tally_of(&mut self, endpoints: u32) -> Result<Tally, PlaneError> {
        if let Mode::Ebpf(_) = self.mode {
            // Making entries would number backends that nobody has.
            return Ok(ebpf::tally(endpoints as usize, false));
        }
        let name = ObjectName { namespace: "other".to_owned(), name: "service".to_owned() };
        let name = ServicePortName::new(&name, None, Protocol::TCP);
        let port = ServicePort::cluster_ip_only(name, Ipv4Addr::new(192, 0, 2, 1).into(), 80);
        let endpoint = |index: u32| Endpoint {
            pod: PodId::from_index(index as usize),
            addr: Ipv4Addr::from_bits(0x0a00_0000 + (index & 0x00ff_ffff)),
            port: 80,
        };
        let endpoints: Vec<Endpoint> = (0..endpoints).map(endpoint).collect();
        let spare = ServicePortId::from_index(self.ports.len());
        Ok(self.make_port(spare, &port, &endpoints.into())?.tally)
    }

    /// Makes a version of a service port.
    fn make_port(
        &mut self,
        id: ServicePortId,
        port: &ServicePort,
        endpoints: &Arc<[Endpoint]>,
    ) -> Result<PortRules, PlaneError> {
        let (made, held, shared) = match &mut self.mode {
            Mode::Iptables(mode) | Mode::Central(mode, _) => {
                let fragment = mode.make(id, port, endpoints)?;
                let (held, shared) = mode.counts(&fragment);
                (Made::Fragment(Arc::new(fragment)), held, shared)
            }
            Mode::Nftables(mode) => {
                let mut state = state(&self.config, self.profile, anywhere());
                state.ports.push((port.clone(), told(endpoints)));
                let (table, held) = mode.make(&state)?;
                (Made::Nft(Arc::new(table)), held, RuleCounts::default())
            }
            Mode::Article(_) => {
                let rules = Article::make(id, port, endpoints);
                let held = RuleCounts::default();
                (Made::Turns(rules), held, RuleCounts::default())
            }
            // A virtual server and its real ones.
            Mode::Ipvs(_) => {
                let held = RuleCounts { filter: 0, nat: 1 + endpoints.len() as u64 };
                (Made::Nothing, held, RuleCounts::default())
            }
            Mode::Ebpf(mode) => {
                let affinity = port.affinity;
                let Tally { held, shared, .. } = ebpf::tally(endpoints.len(), affinity.is_some());
                (Made::Frontend(mode.make(id, affinity, endpoints)), held, shared)
            }
            // Where a Service's packets come from Pods, and where from the node.
            Mode::Userspace(_) => {
                (Made::Nothing, RuleCounts { filter: 0, nat: 2 }, RuleCounts::default())
            }
        };
        let tally = Tally { services: 1, endpoints: endpoints.len() as u64, held, shared };
        Ok(PortRules { endpoints: endpoints.clone(), made, tally })
    }

    /// Returns the versions of `service`.
    pub fn history(&self, service: ServiceId) -> &History<ServiceRules> {
        &self.services[service].history
    }

    /// Returns whether [`DataPlane::forget_before`] would forget versions of whose clients nodes
    /// may remember something: then they have to catch up first ([`DataPlane::catch_up`]).
    pub fn forgets_clients_before(&self, service: ServiceId, time: SimTime) -> bool {
        self.has_affinity(service) && self.services[service].history.forgets_before(time)
    }

    /// Forgets versions of `service` that no node has had since `time`.
    pub fn forget_before(&mut self, service: ServiceId, time: SimTime) {
        self.services[service].history.forget_before(time);
    }

    /// Returns when the last node has, or will have, all that is committed.
    pub fn last_live(&self) -> SimTime {
        let last = |state: &ServiceState| state.history.newest().last_live;
        self.services.iter().map(|(_, state)| last(state)).max().unwrap_or(SimTime::ZERO)
    }

    /// Returns the name of a service port, given by an origin's owner.
    pub fn port_name(&self, port: ServicePortId) -> &Name {
        &self.ports[port].name
    }

    /// Returns the service port at an address and port.
    pub fn port_at(&self, target: (Ipv4Addr, u16)) -> Option<(ServicePortId, ServiceId, usize)> {
        let id = self.find(target.0.to_bits(), target.1)?;
        Some((id, self.ports[id].service, self.ports[id].index))
    }

    /// Returns what a node holds at `now`, as far as it concerns a packet.
    #[inline]
    pub fn at(&self, node: NodeId, now: SimTime, packet: &Packet) -> NodeRules<'_> {
        match &self.mode {
            Mode::Iptables(mode) => {
                NodeRules::Iptables(iptables::NodeRules { plane: self, mode, node, now })
            }
            Mode::Nftables(mode) => {
                let port = match packet.tuple.dst() {
                    IpAddr::V4(dst) => self.nearest(dst.to_bits(), packet),
                    IpAddr::V6(_) => None,
                };
                let port = port.filter(|_| !self.is_flushed(node, now));
                let made = port.map(|port| &self.held(port, node, now).made);
                let rules = match made {
                    Some(Made::Nft(rules)) => rules,
                    _ => mode.without_services(),
                };
                let plain = plain::NodeRules { plane: self, plain: &mode.plain, node };
                NodeRules::Nftables(nftables::NodeRules { plain, rules })
            }
            Mode::Ipvs(mode) => {
                let port = self.addressed(packet);
                let kernel = port.and_then(|port| mode.kernel(node, port));
                NodeRules::Ipvs(ipvs::NodeRules { plane: self, mode, node, kernel })
            }
            Mode::Central(mode, _) if node.index() == self.local.len() => {
                let node = LOAD_BALANCER;
                NodeRules::Iptables(iptables::NodeRules { plane: self, mode, node, now })
            }
            Mode::Article(mode) => {
                NodeRules::Article(article::NodeRules { plane: self, mode, node, now })
            }
            Mode::Central(_, plain) => {
                NodeRules::Plain(plain::NodeRules { plane: self, plain, node })
            }
            Mode::Ebpf(mode) => {
                NodeRules::Plain(plain::NodeRules { plane: self, plain: &mode.plain, node })
            }
            Mode::Userspace(mode) => {
                NodeRules::Userspace(userspace::NodeRules { plane: self, mode, node })
            }
        }
    }

    /// Returns the ipsets that rules ask and the addresses that are every node's own, sorted, where
    /// nodes have virtual servers.
    pub fn virtual_servers(&self) -> Option<(&Sets, &[Ipv4Addr])> {
        match &self.mode {
            Mode::Ipvs(mode) => Some(mode.shared()),
            _ => None,
        }
    }

    /// Returns the address and port of the virtual server of a service port, if nodes have such.
    pub fn virtual_server(&self, port: ServicePortId) -> Option<SocketAddr> {
        let ServicePort { cluster_ip, port, .. } = self.ports[port].port;
        matches!(self.mode, Mode::Ipvs(_)).then(|| SocketAddr::new(cluster_ip, port))
    }

    /// Brings a node's virtual server of a service port up to date; `ipvs` is what the node's IPVS
    /// knows at `now`.
    fn sync_virtual_server(
        &mut self,
        node: NodeId,
        now: SimTime,
        id: ServicePortId,
        ipvs: &IpvsState,
    ) {
        let Port { service, index, port, .. } = &self.ports[id];
        let version = self.services[*service].history.at(node, now);
        let live = (version.ordinal, &*version.content.ports[*index].endpoints);
        if let Mode::Ipvs(mode) = &mut self.mode {
            mode.sync((node, now), (id, port), live, ipvs);
        }
    }

    /// Returns the service port that a packet is for.
    fn addressed(&self, packet: &Packet) -> Option<ServicePortId> {
        let IpAddr::V4(dst) = packet.tuple.dst() else {
            return None;
        };
        self.find(dst.to_bits(), packet.tuple.dst_part)
    }

    /// Returns the service port and the Pod that a packet to `service` is sent to, as it left a
    /// node at `now`; `rule` is the one that rewrote it, if a rule did.
    pub fn chosen(
        &mut self,
        service: ServiceId,
        (node, now): (NodeId, SimTime),
        rule: Option<RuleRef>,
        sent: &Packet,
    ) -> Option<(ServicePortId, PodId)> {
        if !matches!(self.mode, Mode::Ipvs(_)) {
            rule?;
        }
        if let (Mode::Iptables(_) | Mode::Central(..) | Mode::Article(_), Some(rule)) =
            (&self.mode, rule)
        {
            let Origin { owner, item } = rule.origin;
            if let Mode::Article(mode) = &mut self.mode {
                mode.count(node, ServicePortId::from_index(owner as usize));
            }
            return Some((
                ServicePortId::from_index(owner as usize),
                PodId::from_index(item as usize),
            ));
        }
        let to = (sent.tuple.dst(), sent.tuple.dst_part);
        let state = &self.services[service];
        let version = state.history.at(node, now);
        let ports = state.ports.iter().zip(&version.content.ports);
        let mut found = ports.flat_map(|(port, rules)| {
            let mut endpoints = rules.endpoints.iter();
            let is = |endpoint: &&Endpoint| (IpAddr::V4(endpoint.addr), endpoint.port) == to;
            endpoints.find(is).map(|endpoint| (*port, endpoint.pod))
        });
        found.next()
    }

    /// Returns the numbers of the oldest version of a service port that any node has and of the one
    /// that `node` has at `now`, and how many endpoints that one has.
    pub fn choices(&self, id: ServicePortId, node: NodeId, now: SimTime) -> (u32, u32, usize) {
        let Port { service, index, .. } = self.ports[id];
        let history = &self.services[service].history;
        let version = history.at(node, now);
        (history.first(), version.ordinal, version.content.ports[index].endpoints.len())
    }

    /// Returns how many rules of so many other Services a connection's first packet passes in mean.
    /// Where there is one after the other, its own stands anywhere among them; each of `hops` takes
    /// it to a node that finds nothing among them.
    pub fn passed_of(&self, others: u32, hops: f64) -> f64 {
        let chains = match self.mode {
            Mode::Iptables(_) => 0.5 + hops,
            Mode::Central(..) => 0.5,
            // The process's own packets pass those for the node's.
            Mode::Userspace(_) => 1.5 + hops,
            Mode::Nftables(_) | Mode::Ipvs(_) | Mode::Ebpf(_) | Mode::Article(_) => 0.0,
        };
        f64::from(others) * chains
    }

    /// Returns whether the load balancer alone holds what others hold on every node.
    pub fn is_central(&self) -> bool {
        matches!(self.mode, Mode::Central(..))
    }

    /// Returns whether a process on each node dials endpoints.
    pub fn has_processes(&self) -> bool {
        matches!(self.mode, Mode::Userspace(_))
    }

    /// Returns whether a node's process listens at a port of its own.
    pub fn process_accepts(&self, port: u16) -> bool {
        self.has_processes()
            && super::userspace::index_of(port).is_some_and(|index| index < self.ports.len())
    }

    /// Returns the endpoint that the process on `node` dials next for the port at `index` of
    /// `service`, for a client. `draw` gives the draws for the order of a list that is new to it,
    /// by the number of the change.
    pub fn next_endpoint(
        &mut self,
        (service, index): (ServiceId, usize),
        (node, now): (NodeId, SimTime),
        caller: Caller,
        draw: impl Fn(u32, u32) -> u64,
    ) -> Option<(ServicePortId, Endpoint)> {
        let state = &self.services[service];
        let port = state.ports[index];
        let version = state.history.at(node, now);
        let endpoints = &version.content.ports[index].endpoints;
        let Mode::Userspace(mode) = &mut self.mode else {
            return None;
        };
        let sticky = self.ports[port].port.affinity.map(|seconds| Sticky { caller, seconds, now });
        let next = mode.next(node, port, endpoints, sticky, |k| draw(version.ordinal, k));
        next.map(|endpoint| (port, endpoint))
    }

    /// Returns what the proxy of a node has been told, all Services, as far as it is live at
    /// `now`: what any mode's rules can be made of anew.
    pub fn state(&self, node: NodeInfo, at: NodeId, now: SimTime) -> State {
        let mut state = state(&self.config, self.profile, node);
        for (id, port) in self.ports.iter() {
            state.ports.push((port.port.clone(), told(&self.held(id, at, now).endpoints)));
        }
        state.ports.sort_by(|(a, _), (b, _)| a.name.cmp(&b.name));
        state
    }

    /// Returns the whole ruleset of x_tables that a node holds, for rendering and comparison.
    // Simplified: between the commits of filter and nat, a listing shows filter as it was before.
    ///
    /// # Errors
    ///
    /// If the rules would be refused by the kernel; that is a bug.
    pub fn to_ruleset(&self, node: NodeId, now: SimTime) -> Result<Ruleset, ValidationError> {
        let (base, slot) = self.base(node);
        let node = if node.index() == self.local.len() { LOAD_BALANCER } else { node };
        let mut fragments = Vec::new();
        let holds = !matches!(self.mode, Mode::Central(..)) || slot.is_none();
        for port in self.ports.ids().filter(|_| holds) {
            if let Made::Fragment(fragment) = &self.held(port, node, now).made {
                fragments.push(fragment.clone());
            }
        }
        let mut local = base.fragment(FragmentId(u32::MAX));
        if let Some(slot) = slot {
            for rule in &self.local[node.index()] {
                local.contribute(slot, rule.clone());
            }
        }
        if let Mode::Article(mode) = &self.mode {
            for port in self.ports.ids() {
                if let Made::Turns(rules) = &self.held(port, node, now).made {
                    rules.iter().for_each(|rule| local.contribute(mode.rules, rule.clone()));
                }
            }
        }
        if let Mode::Userspace(mode) = &self.mode {
            for (slot, rule) in mode.rules() {
                local.contribute(slot, rule.clone());
            }
        }
        fragments.push(Arc::new(local.build()?));
        Ruleset::assemble(base, &fragments)
    }

    /// Returns the rules of x_tables that do not depend on Services, and where flannel's rules
    /// about a node's own Pods go.
    fn base(&self, node: NodeId) -> (&Base, Option<SlotId>) {
        match &self.mode {
            Mode::Central(_, plain) if node.index() < self.local.len() => {
                (&plain.base, Some(plain.local))
            }
            Mode::Iptables(mode) | Mode::Central(mode, _) => {
                (&mode.common.base, mode.flannel_local)
            }
            Mode::Nftables(mode) => (&mode.plain.base, Some(mode.plain.local)),
            Mode::Ipvs(mode) => (&mode.base, Some(mode.flannel_local)),
            Mode::Userspace(mode) => (&mode.base, Some(mode.flannel_local)),
            Mode::Article(mode) => (&mode.base, Some(mode.flannel_local)),
            Mode::Ebpf(mode) => (&mode.plain.base, Some(mode.plain.local)),
        }
    }

    #[inline]
    fn find(&self, addr: u32, port: u16) -> Option<ServicePortId> {
        let index = self.by_target.binary_search_by_key(&(addr, port), |entry| entry.0).ok()?;
        Some(self.by_target[index].1)
    }

    /// Returns the service port that a packet is for, or else one at its address: all of them
    /// know that the address is a Service's.
    #[inline]
    fn nearest(&self, addr: u32, packet: &Packet) -> Option<ServicePortId> {
        let is_tcp = packet.tuple.protocol == Protocol::TCP;
        let port = if is_tcp { packet.tuple.dst_part } else { 0 };
        let found = self.by_target.binary_search_by_key(&(addr, port), |entry| entry.0);
        let near = found.unwrap_or_else(|at| at);
        let before = near.checked_sub(1).and_then(|at| self.by_target.get(at));
        let mut candidates = self.by_target.get(near).into_iter().chain(before);
        candidates.find(|entry| entry.0.0 == addr).map(|entry| entry.1)
    }

    /// Returns what table filter of a node says of a service port.
    #[inline]
    fn filtered(&self, id: ServicePortId, node: NodeId, now: SimTime) -> &PortRules {
        let port = &self.ports[id];
        &self.services[port.service].history.filter_at(node, now).content.ports[port.index]
    }

    #[inline]
    fn held(&self, id: ServicePortId, node: NodeId, now: SimTime) -> &PortRules {
        let port = &self.ports[id];
        &self.services[port.service].history.at(node, now).content.ports[port.index]
    }

    /// Returns flannel's rules about the node's own Pods, from position `from` on.
    fn flannel(&self, node: NodeId, from: u32) -> SlotHit<'_> {
        let rules = &self.local[node.index()];
        let from = (from as usize).min(rules.len());
        SlotHit { rules: &rules[from..], before: from as u32, total: rules.len() as u32 }
    }
}

/// What one node holds at one time, as far as it concerns one packet.
#[derive(Clone, Copy, Debug)]
pub enum NodeRules<'a> {
    /// Of iptables mode.
    Iptables(iptables::NodeRules<'a>),
    /// Of nftables mode.
    Nftables(nftables::NodeRules<'a>),
    /// Of IPVS mode.
    Ipvs(ipvs::NodeRules<'a>),
    /// Of userspace mode.
    Userspace(userspace::NodeRules<'a>),
    /// Of a node that holds none for Services.
    Plain(plain::NodeRules<'a>),
    /// Of a node that takes turns.
    Article(article::NodeRules<'a>),
}

/// The load balancer's place in histories, where it is alone.
const LOAD_BALANCER: NodeId = NodeId::FIRST;

impl Rules for NodeRules<'_> {
    #[inline]
    fn base(&self, table: Table, hook: Hook) -> Option<&Chain> {
        match self {
            NodeRules::Iptables(rules) => rules.base(table, hook),
            NodeRules::Nftables(rules) => rules.base(table, hook),
            NodeRules::Ipvs(rules) => rules.base(table, hook),
            NodeRules::Userspace(rules) => rules.base(table, hook),
            NodeRules::Plain(rules) => rules.base(table, hook),
            NodeRules::Article(rules) => rules.base(table, hook),
        }
    }

    #[inline]
    fn chain(&self, table: Table, id: ChainId) -> &Chain {
        match self {
            NodeRules::Iptables(rules) => rules.chain(table, id),
            NodeRules::Nftables(rules) => rules.chain(table, id),
            NodeRules::Ipvs(rules) => rules.chain(table, id),
            NodeRules::Userspace(rules) => rules.chain(table, id),
            NodeRules::Plain(rules) => rules.chain(table, id),
            NodeRules::Article(rules) => rules.chain(table, id),
        }
    }

    #[inline]
    fn slot(&self, table: Table, slot: SlotId, packet: &Packet, from: u32) -> SlotHit<'_> {
        match self {
            NodeRules::Iptables(rules) => rules.slot(table, slot, packet, from),
            NodeRules::Nftables(rules) => rules.slot(table, slot, packet, from),
            NodeRules::Ipvs(rules) => rules.slot(table, slot, packet, from),
            NodeRules::Userspace(rules) => rules.slot(table, slot, packet, from),
            NodeRules::Plain(rules) => rules.slot(table, slot, packet, from),
            NodeRules::Article(rules) => rules.slot(table, slot, packet, from),
        }
    }

    #[inline]
    fn tracks(&self) -> bool {
        true
    }

    #[inline]
    fn nft(&self) -> Option<&nft::Ruleset> {
        match self {
            NodeRules::Nftables(rules) => rules.nft(),
            _ => None,
        }
    }

    #[inline]
    fn ipvs(&self) -> Option<&dyn Services> {
        match self {
            NodeRules::Ipvs(rules) => rules.ipvs(),
            _ => None,
        }
    }
}

fn state(config: &KubeProxyConfiguration, profile: Profile, node: NodeInfo) -> State {
    State { family: Family::V4, node, config: config.clone(), profile, ports: Vec::new() }
}

/// A node of which nothing is known: rules that concern a ClusterIP alone are the same on all.
fn anywhere() -> NodeInfo {
    let loopback = IpAddr::V4(Ipv4Addr::LOCALHOST);
    NodeInfo {
        name: String::new(),
        zone: None,
        host_ip: loopback,
        addresses: vec![loopback],
        pod_cidr: None,
    }
}

/// Returns endpoints as a proxy is told of them: those that the simulator's controller gives are
/// the ones to be used.
fn told(endpoints: &[Endpoint]) -> Vec<endpoint::Endpoint> {
    let of = |&Endpoint { pod, addr, port }: &Endpoint| endpoint::Endpoint {
        addr: IpAddr::V4(addr),
        port,
        text: format!("{addr}:{port}").into(),
        ready: true,
        serving: true,
        terminating: false,
        local: false,
        zone_hints: [].into(),
        node_hints: [].into(),
        item: pod.index() as u32,
    };
    endpoints.iter().map(of).collect()
}

fn count(endpoints: &ServiceEndpoints) -> usize {
    endpoints.iter().map(|port| port.len()).sum()
}

fn prefix(cidr: Ipv4Cidr) -> Prefix {
    Prefix::new(IpAddr::V4(cidr.base()), cidr.prefix_len())
}
