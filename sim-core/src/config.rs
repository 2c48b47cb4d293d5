//! What a run is made of: a scenario after reading, checking and defaulting.
//!
//! Nothing here is a Kubernetes type or a file position; `kube::manifest` turns Kubernetes
//! objects into the specs below, and the scenario reader does the rest.

mod duration;

pub use duration::parse_duration;

use std::collections::BTreeMap;
use std::fmt;
use std::net::Ipv4Addr;
use std::time::Duration;

/// Everything that a run depends on besides seed and replication number.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// The scenario's name, for captions and the `scenario` column.
    pub scenario: String,
    /// Nodes and address ranges.
    pub cluster: ClusterConfig,
    /// The Service proxy on every node.
    pub proxy: ProxyConfig,
    /// How rule changes reach the nodes.
    pub propagation: Propagation,
    /// The kubelets' timings.
    pub kubelet: KubeletConfig,
    /// Services, in the order they were applied.
    pub services: Vec<ServiceSpec>,
    /// Deployments, in the order they were applied.
    pub deployments: Vec<DeploymentSpec>,
    /// Who sends requests.
    pub clients: Vec<ClientSpec>,
    /// What happens, in order of time.
    pub events: Vec<EventSpec>,
    /// Cuts the run; without it a run ends when everything has ended.
    pub duration: Option<Duration>,
    /// Bounds on a run that would not end.
    pub limits: Limits,
    /// Width of a bin of `timeline.csv`.
    pub timeline_bin: Duration,
}

/// Nodes and address ranges.
#[derive(Clone, Debug, PartialEq)]
pub struct ClusterConfig {
    /// How many nodes; they are named `node-0`, `node-1`, ….
    pub nodes: u32,
    /// All Pods' addresses.
    pub pod_cidr: Ipv4Cidr,
    /// Prefix length of one node's part of `pod_cidr`.
    pub node_prefix_len: u8,
    /// ClusterIPs.
    pub service_cidr: Ipv4Cidr,
    /// The nodes' own addresses: node i has the address `base + 2 + i`.
    pub node_cidr: Ipv4Cidr,
    /// The pod network.
    pub network: PodNetwork,
    /// One-way latency between two Pods of one node.
    pub bridge_latency: Duration,
    /// One-way latency of each of the two links between a Pod's node and the fabric switch,
    /// node stack included; two Pods on different nodes are two of these apart.
    pub link_latency: Duration,
    /// Most Pods that fit a node (kubelet's `maxPods`).
    pub max_pods: u32,
    /// Labels of nodes, by node index; they have no effect on packets.
    pub node_labels: BTreeMap<u32, BTreeMap<String, String>>,
}

/// An IPv4 range: host bits are zero by construction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ipv4Cidr {
    base: Ipv4Addr,
    prefix_len: u8,
}

impl Ipv4Cidr {
    /// Returns the range of `prefix_len` bits that holds `addr`, or nothing above 32 bits.
    pub fn new(addr: Ipv4Addr, prefix_len: u8) -> Option<Ipv4Cidr> {
        if prefix_len > 32 {
            return None;
        }
        let base = Ipv4Addr::from(u32::from(addr) & mask(prefix_len));
        Some(Ipv4Cidr { base, prefix_len })
    }

    /// Returns the first address.
    pub fn base(self) -> Ipv4Addr {
        self.base
    }

    /// Returns the length of the prefix in bits.
    pub fn prefix_len(self) -> u8 {
        self.prefix_len
    }

    /// Returns how many addresses there are, network and broadcast included.
    pub fn size(self) -> u64 {
        1 << (32 - u32::from(self.prefix_len))
    }

    /// Returns the address `offset` after the base, if it is in the range.
    pub fn address(self, offset: u64) -> Option<Ipv4Addr> {
        (offset < self.size()).then(|| Ipv4Addr::from(u32::from(self.base) + offset as u32))
    }

    /// Returns whether `addr` is in the range.
    pub fn contains(self, addr: Ipv4Addr) -> bool {
        u32::from(addr) & mask(self.prefix_len) == u32::from(self.base)
    }
}

fn mask(prefix_len: u8) -> u32 {
    u32::MAX.checked_shl(32 - u32::from(prefix_len)).unwrap_or(0)
}

impl fmt::Display for Ipv4Cidr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.base, self.prefix_len)
    }
}

/// How Pods of different nodes reach each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PodNetwork {
    /// flannel's `host-gw`: a bridge per node, a route per other node, no encapsulation.
    FlannelHostGw,
}

/// The Service proxy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProxyConfig {
    /// Which data plane.
    pub mode: ProxyMode,
    /// The bit of the mark that asks for masquerading (kube-proxy's `masqueradeBit`).
    pub masquerade_bit: u8,
    /// Masquerade all traffic to ClusterIPs (kube-proxy's `masqueradeAll`).
    pub masquerade_all: bool,
    /// The minor version of Kubernetes 1 that it is of, where versions differ.
    pub profile: u16,
}

/// kube-proxy's mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProxyMode {
    /// Chains of iptables rules.
    Iptables,
    /// Maps and chains of nftables.
    Nftables,
    /// Virtual servers of IPVS.
    Ipvs(IpvsScheduler),
    /// A process on each node that dials endpoints.
    Userspace,
    /// eBPF maps on each node, by which sockets are translated when they connect.
    Ebpf(Selection),
    /// A load balancer that all nodes send to; they hold no rules.
    Central(LoadBalancer),
    /// Endpoints by name and in turns, as introductions draw it. What is told at some time is
    /// known at the first whole tick of the clock behind its delay; zero has no ticks.
    Article(Duration),
}

/// How IPVS chooses among endpoints (kube-proxy's `ipvs.scheduler`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum IpvsScheduler {
    /// In turn.
    #[default]
    Rr,
    /// In turn, by weight; all weights are 1.
    Wrr,
    /// The one with the fewest connections.
    Lc,
    /// The one with the fewest connections for its weight.
    Wlc,
    /// The one that will have the fewest active connections for its weight.
    Sed,
    /// An idle one, or else as `Sed`.
    Nq,
    /// By a hash of the client's address.
    Sh,
    /// By a Maglev hash of the client's address and port.
    Mh,
}

impl IpvsScheduler {
    /// All of them.
    pub const ALL: [IpvsScheduler; 8] = [
        IpvsScheduler::Rr,
        IpvsScheduler::Wrr,
        IpvsScheduler::Lc,
        IpvsScheduler::Wlc,
        IpvsScheduler::Sed,
        IpvsScheduler::Nq,
        IpvsScheduler::Sh,
        IpvsScheduler::Mh,
    ];

    /// Returns the kernel's name.
    pub const fn name(self) -> &'static str {
        match self {
            IpvsScheduler::Rr => "rr",
            IpvsScheduler::Wrr => "wrr",
            IpvsScheduler::Lc => "lc",
            IpvsScheduler::Wlc => "wlc",
            IpvsScheduler::Sed => "sed",
            IpvsScheduler::Nq => "nq",
            IpvsScheduler::Sh => "sh",
            IpvsScheduler::Mh => "mh",
        }
    }

    /// Returns the scheduler of a name.
    pub fn named(name: &str) -> Option<IpvsScheduler> {
        IpvsScheduler::ALL.into_iter().find(|scheduler| scheduler.name() == name)
    }
}

/// How endpoints are chosen in mode ebpf.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Selection {
    /// At random, when a Pod's socket connects.
    #[default]
    Random,
    /// By a hash of the packet's addresses and ports, where the packet leaves its Pod: sockets never
    /// choose so (`--bpf-lb-algorithm=maglev`, `--bpf-lb-sock-hostns-only`,
    /// `--bpf-lb-external-clusterip`).
    Maglev,
}

/// A machine that all packets to Services pass, there and back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoadBalancer {
    /// How long it works on a packet; zero for one that is never busy.
    pub per_packet: Duration,
    /// How many packets may wait; more are lost.
    pub queue: u32,
}

/// How rule changes reach the nodes.
#[derive(Clone, Debug, PartialEq)]
pub enum Propagation {
    /// The whole time from the slice's commit to live rules is drawn for each node and change.
    Delay {
        /// The law of the delay.
        law: Law,
        /// Nodes whose delay follows another law, by node index.
        nodes: BTreeMap<u32, Law>,
    },
    /// The lag comes about: the watch tells the node's proxy, and a sync of it brings the change.
    Pipeline(Box<Pipeline>),
}

/// What makes a change late.
#[derive(Clone, Debug, PartialEq)]
pub struct Pipeline {
    /// From the slice's commit until the node's proxy is told.
    pub watch: Law,
    /// Nodes whose watch follows another law, by node index.
    pub nodes: BTreeMap<u32, Law>,
    /// kube-proxy's `minSyncPeriod`, if not the mode's default.
    pub min_sync_period: Option<Duration>,
    /// kube-proxy's `syncPeriod`, if not the default.
    pub sync_period: Option<Duration>,
    /// What iptables mode writes through.
    pub iptables_backend: IptablesBackend,
    /// What a sync costs, where it is not what was measured.
    pub cost: SyncCostConfig,
    /// The probability that a sync fails at its end.
    pub failure: f64,
    /// Another program that takes the xtables lock on every node.
    pub contender: Option<ContenderConfig>,
    /// Services beside those of the scenario.
    pub others: OtherServices,
}

/// Services that nobody calls and that do not change: proxies hold their rules, and walk them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OtherServices {
    /// How many, each with one port.
    pub count: u32,
    /// How many endpoints each has.
    pub endpoints: u32,
}

/// Which iptables a node has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum IptablesBackend {
    /// iptables-legacy, which replaces whole tables under the xtables lock.
    Legacy,
    /// iptables-nft.
    #[default]
    Nft,
}

/// Coefficients of a sync's cost that replace the fitted ones.
#[derive(Clone, Debug, PartialEq)]
pub struct SyncCostConfig {
    /// Of any sync.
    pub base: Option<Duration>,
    /// Of a full sync.
    pub ensure: Option<Duration>,
    /// Of each service port, changed or not.
    pub per_service: Option<Duration>,
    /// Of making a rule that is written.
    pub per_rule_made: Option<Duration>,
    /// Of loading a rule.
    pub per_rule_written: Option<Duration>,
    /// Of a rule in the table, written or not.
    pub per_rule_held: Option<Duration>,
    /// Of a rule in the kernel's listing.
    pub per_rule_listed: Option<Duration>,
    /// From how many rules on a load costs twice as much for each.
    pub doubling_rules: Option<u64>,
    /// Multiplies everything; 0 turns the cost off.
    pub scale: f64,
}

impl Default for SyncCostConfig {
    fn default() -> SyncCostConfig {
        SyncCostConfig {
            base: None,
            ensure: None,
            per_service: None,
            per_rule_made: None,
            per_rule_written: None,
            per_rule_held: None,
            per_rule_listed: None,
            doubling_rules: None,
            scale: 1.0,
        }
    }
}

/// A program that takes the xtables lock again and again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ContenderConfig {
    /// From one take to the next.
    pub every: Duration,
    /// How long it holds the lock.
    pub holds: Duration,
}

/// Kubelet timings.
#[derive(Clone, Debug, PartialEq)]
pub struct KubeletConfig {
    /// From an accepted deletion to the kubelet acting on it.
    pub notice: Law,
    /// From a Pod's creation to its container running (scheduling, pulling, starting).
    pub start: Law,
    /// From the last container's exit to the release of the Pod's address.
    pub teardown: Law,
}

/// A distribution of durations, as data.
#[derive(Clone, Debug, PartialEq)]
pub enum Law {
    /// Always the same.
    Constant(Duration),
    /// Uniform on [min, max].
    Uniform {
        /// Least.
        min: Duration,
        /// Greatest.
        max: Duration,
    },
    /// Exponential.
    Exponential {
        /// Mean.
        mean: Duration,
    },
    /// Lognormal: exp(μ + σZ) seconds, μ being the logarithm of the median.
    LogNormal {
        /// Median in seconds.
        median_s: f64,
        /// Standard deviation of the logarithm.
        sigma: f64,
    },
    /// Gamma.
    Gamma {
        /// Shape k.
        shape: f64,
        /// Scale θ in seconds; the mean is kθ.
        scale_s: f64,
    },
    /// Weibull: F(t) = 1 − exp(−(t/λ)^k).
    Weibull {
        /// Shape k.
        shape: f64,
        /// Scale λ in seconds.
        scale_s: f64,
    },
    /// Pareto: F(t) = 1 − (m/t)^α for t ≥ m.
    Pareto {
        /// Least value m in seconds.
        min_s: f64,
        /// Tail index α.
        shape: f64,
    },
    /// A histogram: within a bin uniform. Edges rise; one more edge than weights.
    Histogram {
        /// Edges in seconds.
        edges_s: Vec<f64>,
        /// Weight of each bin, not necessarily summing to one.
        weights: Vec<f64>,
    },
    /// Each of these observations with equal probability, in seconds, sorted.
    Empirical {
        /// The observations.
        values_s: Vec<f64>,
    },
    /// One of several laws, with weights that need not sum to one.
    Mixture(Vec<(f64, Law)>),
}

/// A namespaced name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectName {
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
}

impl fmt::Display for ObjectName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// A Service, as the model needs it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceSpec {
    /// Namespace and name.
    pub name: ObjectName,
    /// The ClusterIP that the manifest asks for.
    pub cluster_ip: Option<Ipv4Addr>,
    /// Labels that a Pod must have; empty selects nothing (a Service without selector).
    pub selector: BTreeMap<String, String>,
    /// Ports, at least one.
    pub ports: Vec<ServicePortSpec>,
    /// How long a client stays with its endpoint, under `sessionAffinity: ClientIP`; whole seconds.
    pub affinity: Option<Duration>,
}

/// One port of a Service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServicePortSpec {
    /// Name; a Service with one port may leave it out.
    pub name: Option<String>,
    /// The port of the ClusterIP.
    pub port: u16,
    /// The Pods' port.
    pub target: TargetPort,
}

/// Where a Service port leads on a Pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TargetPort {
    /// This port on every Pod.
    Number(u16),
    /// Each Pod's container port of that name.
    Name(String),
}

/// A Deployment, as the model needs it.
#[derive(Clone, Debug, PartialEq)]
pub struct DeploymentSpec {
    /// Namespace and name.
    pub name: ObjectName,
    /// How many Pods.
    pub replicas: u32,
    /// How Pods are replaced.
    pub strategy: Strategy,
    /// How long a Pod must be Ready to count as available.
    pub min_ready: Duration,
    /// The Pods.
    pub template: PodTemplate,
}

/// How a Deployment replaces its Pods.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Strategy {
    /// Some at a time.
    RollingUpdate {
        /// Pods above `replicas`; a percentage rounds up.
        max_surge: IntOrPercent,
        /// Pods below `replicas`; a percentage rounds down.
        max_unavailable: IntOrPercent,
    },
    /// All old Pods are gone before the first new one is made.
    Recreate,
}

/// Kubernetes' `IntOrString` where the string is a percentage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IntOrPercent {
    /// A number.
    Int(u32),
    /// A percentage of `replicas`.
    Percent(u32),
}

/// What the Pods of a Deployment are.
#[derive(Clone, Debug, PartialEq)]
pub struct PodTemplate {
    /// Labels.
    pub labels: BTreeMap<String, String>,
    /// Named container ports.
    pub ports: BTreeMap<String, u16>,
    /// `lifecycle.preStop`, where it is a sleep.
    pub pre_stop: Option<Duration>,
    /// `terminationGracePeriodSeconds`.
    pub grace: Duration,
    /// The readiness probe; without one a running container is ready.
    pub readiness: Option<Probe>,
    /// What runs in the container.
    pub application: Application,
}

/// A readiness probe's timing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Probe {
    /// From container start to the first probe.
    pub initial_delay: Duration,
    /// Between probes.
    pub period: Duration,
    /// Successes in a row that make the Pod ready.
    pub success_threshold: u32,
    /// Failures in a row that make it unready.
    pub failure_threshold: u32,
}

/// What the manifest cannot say about the program in the container.
#[derive(Clone, Debug, PartialEq)]
pub struct Application {
    /// What it does at SIGTERM.
    pub on_sigterm: OnSigterm,
    /// From container start to listening.
    pub startup: Law,
    /// From a request's arrival to its response.
    pub service_time: Law,
}

/// What an application does at SIGTERM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnSigterm {
    /// Exits at once; in-flight connections are reset.
    Close,
    /// Stops listening, finishes what it has, exits.
    Drain,
    /// Serves until SIGKILL.
    Ignore,
}

/// A group of clients.
#[derive(Clone, Debug, PartialEq)]
pub struct ClientSpec {
    /// Name.
    pub name: String,
    /// The Service they send to.
    pub service: ObjectName,
    /// The Service's port they send to.
    pub port: u16,
    /// Requests per second of the whole group.
    pub rate_per_s: f64,
    /// How requests are spaced.
    pub arrivals: Arrivals,
    /// How long an attempt may take, from its first SYN to the response.
    pub timeout: Duration,
    /// How many more attempts, each on a new connection, a failed request gets.
    pub retries: u32,
    /// Pause before a retry.
    pub retry_backoff: Duration,
}

/// How requests are spaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrivals {
    /// A Poisson process.
    Poisson,
    /// Equal gaps.
    Constant,
}

/// Something that happens at a given time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventSpec {
    /// Time since the start.
    pub at: Duration,
    /// What.
    pub action: Action,
}

/// What a user does to the cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Deletes Pods of a Deployment, as `kubectl delete pod` does.
    DeletePod {
        /// The Deployment.
        deployment: ObjectName,
        /// How many of its Pods, at once.
        count: u32,
    },
    /// Replaces all Pods of a Deployment (`kubectl rollout restart`).
    Rollout {
        /// The Deployment.
        deployment: ObjectName,
    },
    /// Changes a Deployment's size (`kubectl scale`).
    Scale {
        /// The Deployment.
        deployment: ObjectName,
        /// The new size.
        replicas: u32,
    },
    /// A machine is without power or network.
    Fail {
        /// Which.
        machine: Machine,
        /// For how long; to the end if it is not said.
        lasting: Option<Duration>,
    },
    /// Restarts the Service proxy of a node; its rules stay.
    RestartProxy {
        /// The node.
        node: u32,
        /// From then until it has listed Services and EndpointSlices.
        takes: Duration,
    },
    /// Another program removes all rules of a node.
    FlushRules {
        /// The node.
        node: u32,
    },
}

/// A machine that may fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Machine {
    /// A node, by index.
    Node(u32),
    /// The central load balancer.
    LoadBalancer,
}

/// Bounds on a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Most events in all.
    pub events: u64,
    /// Most events at one instant.
    pub events_at_one_instant: u64,
    /// Longest simulated time, where `duration` is not given.
    pub simulated: Duration,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            events: 20_000_000_000,
            events_at_one_instant: 10_000_000,
            simulated: Duration::from_secs(24 * 3600),
        }
    }
}
