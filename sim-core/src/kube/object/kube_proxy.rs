//! kube-proxy's configuration file.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use netfilter_model::Prefix;
use netfilter_model::tuple::Family;

/// `kubeproxy.config.k8s.io/v1alpha1` `KubeProxyConfiguration`, as far as it changes rules or
/// when they are written, with Kubernetes' defaults.
///
/// Kubernetes: pkg/proxy/apis/config/v1alpha1/defaults.go.
#[derive(Clone, Debug, PartialEq)]
pub struct KubeProxyConfiguration {
    /// The data plane; iptables if the file does not say.
    pub mode: ProxyMode,
    /// `clusterCIDR`: the ranges of all Pods, at most one of each family.
    pub cluster_cidrs: Vec<Prefix>,
    /// How the proxy tells traffic of the node's own Pods.
    pub detect_local: DetectLocal,
    /// The node's addresses that accept NodePort traffic.
    pub node_port_addresses: NodePortAddresses,
    /// `bindAddress`, unless it is the unspecified address: then it is the node's own.
    pub bind_address: Option<IpAddr>,
    /// `hostnameOverride`.
    pub hostname_override: Option<String>,
    /// `iptables`; its mark serves IPVS mode, too.
    pub iptables: SyncSettings,
    /// `iptables.localhostNodePorts`: NodePorts at 127.0.0.1.
    pub localhost_node_ports: bool,
    /// `nftables`.
    pub nftables: SyncSettings,
    /// `ipvs`.
    pub ipvs: IpvsSettings,
    /// `conntrack`.
    pub conntrack: ConntrackSettings,
    /// `featureGates`.
    pub feature_gates: BTreeMap<String, bool>,
}

/// `mode`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ProxyMode {
    /// `iptables`.
    #[default]
    Iptables,
    /// `nftables`.
    Nftables,
    /// `ipvs`.
    Ipvs,
}

/// `detectLocalMode`, with what it needs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum DetectLocal {
    /// By `clusterCIDR`.
    #[default]
    ClusterCidr,
    /// By the node's own part of it.
    NodeCidr,
    /// What comes in by this bridge.
    BridgeInterface(String),
    /// What comes in by devices whose names begin so.
    InterfaceNamePrefix(String),
}

/// `nodePortAddresses`.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum NodePortAddresses {
    /// What the mode does of itself: iptables and IPVS take all, nftables the primary ones.
    #[default]
    Default,
    /// `primary`: the node's own address of each family.
    Primary,
    /// Those in these ranges.
    Ranges(Vec<Prefix>),
}

/// What the sections `iptables` and `nftables` share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SyncSettings {
    /// Which bit of the packet's mark asks for masquerading.
    pub masquerade_bit: u8,
    /// Masquerade all traffic to ClusterIPs.
    pub masquerade_all: bool,
    /// How long after a failure to try again; how often to look for flushed rules.
    pub sync_period: Duration,
    /// Least time between two syncs.
    pub min_sync_period: Duration,
}

/// The section `ipvs`.
#[derive(Clone, Debug, PartialEq)]
pub struct IpvsSettings {
    /// The scheduler; round robin if empty.
    pub scheduler: String,
    /// `excludeCIDRs`: virtual servers that are not the proxy's.
    pub exclude_cidrs: Vec<Prefix>,
    /// `strictARP`.
    pub strict_arp: bool,
    /// How often all is written anew.
    pub sync_period: Duration,
    /// Least time between two syncs.
    pub min_sync_period: Duration,
    /// Timeouts of TCP, of TCP after FIN, and of UDP; zero leaves the kernel's.
    pub timeouts: [Duration; 3],
}

/// The section `conntrack`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConntrackSettings {
    /// `tcpBeLiberal`: windows are not checked.
    pub tcp_be_liberal: bool,
    /// `maxPerCore`.
    pub max_per_core: u32,
    /// `min`.
    pub min: u32,
    /// `tcpEstablishedTimeout`.
    pub tcp_established: Duration,
    /// `tcpCloseWaitTimeout`.
    pub tcp_close_wait: Duration,
}

impl Default for SyncSettings {
    fn default() -> SyncSettings {
        SyncSettings {
            masquerade_bit: 14,
            masquerade_all: false,
            sync_period: Duration::from_secs(30),
            min_sync_period: Duration::from_secs(1),
        }
    }
}

impl Default for IpvsSettings {
    fn default() -> IpvsSettings {
        IpvsSettings {
            scheduler: String::new(),
            exclude_cidrs: Vec::new(),
            strict_arp: false,
            sync_period: Duration::from_secs(30),
            min_sync_period: Duration::ZERO,
            timeouts: [Duration::ZERO; 3],
        }
    }
}

impl Default for ConntrackSettings {
    fn default() -> ConntrackSettings {
        ConntrackSettings {
            tcp_be_liberal: false,
            max_per_core: 32 * 1024,
            min: 128 * 1024,
            tcp_established: Duration::from_secs(24 * 3600),
            tcp_close_wait: Duration::from_secs(3600),
        }
    }
}

impl Default for KubeProxyConfiguration {
    fn default() -> KubeProxyConfiguration {
        KubeProxyConfiguration {
            mode: ProxyMode::default(),
            cluster_cidrs: Vec::new(),
            detect_local: DetectLocal::default(),
            node_port_addresses: NodePortAddresses::default(),
            bind_address: None,
            hostname_override: None,
            iptables: SyncSettings::default(),
            localhost_node_ports: true,
            nftables: SyncSettings::default(),
            ipvs: IpvsSettings::default(),
            conntrack: ConntrackSettings::default(),
            feature_gates: BTreeMap::new(),
        }
    }
}

impl KubeProxyConfiguration {
    /// Returns the range of all Pods of a family.
    pub fn cluster_cidr(&self, family: Family) -> Option<&Prefix> {
        self.cluster_cidrs.iter().find(|range| Family::of(range.address()) == family)
    }
}
