//! The ipsets.
//!
//! Kubernetes: pkg/proxy/ipvs/ipset.go and proxier.go, ipsetInfo.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::net::IpAddr;

use netfilter_model::Prefix;
use netfilter_model::set::{Dimension, Element, Header, Part, Set, SetKind, Sets};
use netfilter_model::time::SimTime;
use netfilter_model::tuple::{Family, Protocol};

/// One of the sets, in order of name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum IpSet {
    /// ClusterIPs and their ports.
    ClusterIp,
    /// `externalIPs` and their ports.
    ExternalIp,
    /// Likewise, of Services whose external policy is `Local`.
    ExternalIpLocal,
    /// Ports at which load balancers ask for a node's health.
    HealthCheckNodePort,
    /// All addresses on the device.
    IpvsIps,
    /// Load balancers' addresses and ports.
    LoadBalancer,
    /// Likewise, of Services with source ranges.
    LoadBalancerFw,
    /// Likewise, of Services whose external policy is `Local`.
    LoadBalancerLocal,
    /// Source ranges by load balancer's address and port.
    LoadBalancerSourceCidr,
    /// Load balancers' addresses that nodes may use as their own sources.
    LoadBalancerSourceIp,
    /// The node's own endpoints, for what loops back to them.
    LoopBack,
    /// SCTP NodePorts of Services whose external policy is `Local`.
    NodePortLocalSctp,
    /// TCP NodePorts of Services whose external policy is `Local`.
    NodePortLocalTcp,
    /// UDP NodePorts of Services whose external policy is `Local`.
    NodePortLocalUdp,
    /// SCTP NodePorts, by node address.
    NodePortSctp,
    /// TCP NodePorts.
    NodePortTcp,
    /// UDP NodePorts.
    NodePortUdp,
}

/// What a set holds, by the text that kube-proxy gives ipset.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Entries(BTreeMap<String, Element>);

impl Entries {
    /// Adds an element.
    pub(super) fn insert(&mut self, set: IpSet, parts: Vec<Part>) {
        let mut text = String::new();
        for (part, dimension) in parts.iter().zip(set.kind().dimensions()) {
            text.push_str(if text.is_empty() { "" } else { "," });
            let _ = match part {
                // A range has its length even if it holds one address.
                Part::Net(range) if *dimension == Dimension::Net => write!(text, "{range}"),
                part => write!(text, "{part}"),
            };
        }
        self.insert_as(text, parts);
    }

    /// Adds an element that kube-proxy spells so.
    pub(super) fn insert_as(&mut self, text: String, parts: Vec<Part>) {
        self.0.insert(text, Element::new(parts));
    }

    /// Returns how many elements there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl IpSet {
    /// All of them.
    pub const ALL: [IpSet; 17] = [
        IpSet::ClusterIp,
        IpSet::ExternalIp,
        IpSet::ExternalIpLocal,
        IpSet::HealthCheckNodePort,
        IpSet::IpvsIps,
        IpSet::LoadBalancer,
        IpSet::LoadBalancerFw,
        IpSet::LoadBalancerLocal,
        IpSet::LoadBalancerSourceCidr,
        IpSet::LoadBalancerSourceIp,
        IpSet::LoopBack,
        IpSet::NodePortLocalSctp,
        IpSet::NodePortLocalTcp,
        IpSet::NodePortLocalUdp,
        IpSet::NodePortSctp,
        IpSet::NodePortTcp,
        IpSet::NodePortUdp,
    ];

    /// Returns the set's name, cut to what the kernel takes.
    pub fn name(self, family: Family) -> String {
        // Kernel: ip_set.h, IPSET_MAXNAMELEN, with the byte that ends it
        const NAME_MAX: usize = 31;
        let name = self.base_name();
        match family {
            Family::V4 => name.to_owned(),
            Family::V6 => {
                let mut name = name.replacen("KUBE-", "KUBE-6-", 1);
                name.truncate(NAME_MAX);
                name
            }
        }
    }

    const fn base_name(self) -> &'static str {
        match self {
            IpSet::ClusterIp => "KUBE-CLUSTER-IP",
            IpSet::ExternalIp => "KUBE-EXTERNAL-IP",
            IpSet::ExternalIpLocal => "KUBE-EXTERNAL-IP-LOCAL",
            IpSet::HealthCheckNodePort => "KUBE-HEALTH-CHECK-NODE-PORT",
            IpSet::IpvsIps => "KUBE-IPVS-IPS",
            IpSet::LoadBalancer => "KUBE-LOAD-BALANCER",
            IpSet::LoadBalancerFw => "KUBE-LOAD-BALANCER-FW",
            IpSet::LoadBalancerLocal => "KUBE-LOAD-BALANCER-LOCAL",
            IpSet::LoadBalancerSourceCidr => "KUBE-LOAD-BALANCER-SOURCE-CIDR",
            IpSet::LoadBalancerSourceIp => "KUBE-LOAD-BALANCER-SOURCE-IP",
            IpSet::LoopBack => "KUBE-LOOP-BACK",
            IpSet::NodePortLocalSctp => "KUBE-NODE-PORT-LOCAL-SCTP-HASH",
            IpSet::NodePortLocalTcp => "KUBE-NODE-PORT-LOCAL-TCP",
            IpSet::NodePortLocalUdp => "KUBE-NODE-PORT-LOCAL-UDP",
            IpSet::NodePortSctp => "KUBE-NODE-PORT-SCTP-HASH",
            IpSet::NodePortTcp => "KUBE-NODE-PORT-TCP",
            IpSet::NodePortUdp => "KUBE-NODE-PORT-UDP",
        }
    }

    /// Returns what rules that ask the set say it is for.
    pub(super) const fn comment(self) -> &'static str {
        match self {
            IpSet::ClusterIp => "Kubernetes service cluster ip + port for masquerade purpose",
            IpSet::ExternalIp => {
                "Kubernetes service external ip + port for masquerade and filter purpose"
            }
            IpSet::ExternalIpLocal => {
                "Kubernetes service external ip + port with externalTrafficPolicy=local"
            }
            IpSet::HealthCheckNodePort => "Kubernetes health check node port",
            IpSet::IpvsIps => "Kubernetes service IPVS addresses",
            IpSet::LoadBalancer => "Kubernetes service lb portal",
            IpSet::LoadBalancerFw => {
                "Kubernetes service load balancer ip + port for load balancer with sourceRange"
            }
            IpSet::LoadBalancerLocal => {
                "Kubernetes service load balancer ip + port with externalTrafficPolicy=local"
            }
            IpSet::LoadBalancerSourceCidr => {
                "Kubernetes service load balancer ip + port + source cidr for packet filter purpose"
            }
            IpSet::LoadBalancerSourceIp => {
                "Kubernetes service load balancer ip + port + source IP for packet filter purpose"
            }
            IpSet::LoopBack => {
                "Kubernetes endpoints dst ip:port, source ip for solving hairpin purpose"
            }
            IpSet::NodePortLocalSctp => {
                "Kubernetes nodeport SCTP port with externalTrafficPolicy=local with type \
                 'hash ip:port'"
            }
            IpSet::NodePortLocalTcp => {
                "Kubernetes nodeport TCP port with externalTrafficPolicy=local"
            }
            IpSet::NodePortLocalUdp => {
                "Kubernetes nodeport UDP port with externalTrafficPolicy=local"
            }
            IpSet::NodePortSctp => {
                "Kubernetes nodeport SCTP port for masquerade purpose with type 'hash ip:port'"
            }
            IpSet::NodePortTcp => "Kubernetes nodeport TCP port for masquerade purpose",
            IpSet::NodePortUdp => "Kubernetes nodeport UDP port for masquerade purpose",
        }
    }

    /// Returns the set's type.
    pub(super) const fn kind(self) -> SetKind {
        match self {
            IpSet::HealthCheckNodePort
            | IpSet::NodePortLocalTcp
            | IpSet::NodePortLocalUdp
            | IpSet::NodePortTcp
            | IpSet::NodePortUdp => SetKind::BitmapPort,
            IpSet::IpvsIps => SetKind::HashIp,
            IpSet::LoadBalancerSourceCidr => SetKind::HashIpPortNet,
            IpSet::LoadBalancerSourceIp | IpSet::LoopBack => SetKind::HashIpPortIp,
            _ => SetKind::HashIpPort,
        }
    }

    fn empty(self, family: Family) -> Set {
        let kind = self.kind();
        let mut header = Header::new(kind);
        if kind.is_bitmap() {
            header.range = Some((0, u32::from(u16::MAX)));
        } else {
            header.v6 = family == Family::V6;
        }
        Set::new(self.name(family), header)
    }
}

/// Returns the sets as the kernel holds them, in order of name.
pub(super) fn kernel_sets(family: Family, entries: &BTreeMap<IpSet, Entries>) -> Sets {
    let mut sets = Sets::default();
    for which in IpSet::ALL {
        let mut set = which.empty(family);
        for element in entries.get(&which).iter().flat_map(|entries| entries.0.values()) {
            // What the kernel refuses, kube-proxy logs and goes on: networks of all addresses.
            let _ = set.add(element, true, SimTime::ZERO);
        }
        sets.insert(set);
    }
    sets
}

/// Returns the sets as `ipset save` prints them, with what kube-proxy adds as it spells it.
pub(super) fn save(family: Family, entries: &BTreeMap<IpSet, Entries>) -> String {
    let mut text: String =
        IpSet::ALL.iter().map(|set| set.empty(family).save(SimTime::ZERO)).collect();
    for (set, entries) in entries {
        for element in entries.0.keys() {
            let _ = writeln!(text, "add {} {element}", set.name(family));
        }
    }
    text
}

pub(super) fn port(number: u16) -> Vec<Part> {
    vec![Part::Port(None, number)]
}

pub(super) fn address(address: IpAddr) -> Part {
    Part::Net(Prefix::host(address))
}

pub(super) fn address_port(ip: IpAddr, protocol: Protocol, number: u16) -> Vec<Part> {
    vec![address(ip), Part::Port(Some(protocol), number)]
}

pub(super) fn address_port_address(
    ip: IpAddr,
    protocol: Protocol,
    number: u16,
    source: IpAddr,
) -> Vec<Part> {
    vec![address(ip), Part::Port(Some(protocol), number), address(source)]
}
