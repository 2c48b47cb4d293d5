//! Who reaches what: clients of every kind, a Service's addresses, and the rules of each mode.
//!
//! ```text
//!  objects ─world─▶ hosts, links, servers ─plane─▶ what the mode has on each node
//!                                                   └─ probe, every way ─▶ cells
//! ```
//!
//! The world is the smallest in which the question has an answer: the node that is asked about, one
//! other node, the nodes of the endpoints, a Pod for each endpoint, a client Pod on either node, a
//! machine outside, and a router that drops what nobody has. Every node holds the rules that its
//! proxy makes of all objects. A client talks to a target as a real one would, and [`exact`] follows
//! every choice of the rules: a cell holds where it may end, each with its probability. What is
//! answered from an address that the client did not ask is no answer.
//!
//! [`exact`]: netfilter_model::exact

mod odds;
mod plane;
mod probe;
mod programs;
mod world;

use std::fmt;
use std::net::IpAddr;

use netfilter_model::rule::ValidationError;
use netfilter_model::tuple::{Family, Protocol};
use netfilter_model::{DeviceNameError, nft};

use super::ebpf::TooManyFrontends;
use super::iptables::RulesError;
use super::profile::Profile;
use super::service::ServicePort;
use super::state::Objects;
use crate::config::ObjectName;
pub use odds::Odds;
use plane::Plane;
pub use world::{World, WorldError};

/// A data plane that the matrix compares. Another one is a variant, and what
/// [`Plane`](plane::Plane) puts on hosts for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Mode {
    /// kube-proxy's iptables mode.
    Iptables,
    /// kube-proxy's nftables mode.
    Nftables,
    /// kube-proxy's IPVS mode.
    Ipvs,
    /// Cilium in place of kube-proxy, at its defaults.
    Ebpf,
    /// kube-proxy's userspace mode, which 1.25 was the last version to have.
    Userspace,
}

/// Who talks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Client {
    /// A Pod of the node that is asked about.
    Pod,
    /// A Pod of another node.
    OtherPod,
    /// A process on the node itself.
    Node,
    /// A machine outside the cluster, whose packets reach the node.
    External,
    /// A Pod that is an endpoint of the Service: on the node if one is there.
    Itself,
}

/// What is talked to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Target {
    /// The Service's virtual address, at its port.
    ClusterIp,
    /// The node's address, at the Service's node port.
    NodePort,
    /// The node's loopback address, at the node port: for the node itself only.
    Localhost,
    /// An address of the load balancer.
    LoadBalancer,
    /// One of `externalIPs`.
    ExternalIp,
    /// The virtual address, at a port that the Service does not have.
    WrongPort,
    /// The virtual address, by an ICMP echo request.
    Ping,
}

/// What the client sees, in the words of a loss's symptom.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verdict {
    /// An answer from the address that was asked.
    Ok,
    /// An error at once: nobody is there, or may be talked to.
    Refused,
    /// The connection was cut.
    Reset,
    /// An error: there is no way.
    HostUnreachable,
    /// Nothing.
    Timeout,
    /// Not followed to the end.
    Unknown,
}

/// The source address that an endpoint sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Source {
    /// The address.
    pub addr: IpAddr,
    /// Whose it is.
    pub of: Whose,
}

/// Whose a source address is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Whose {
    /// The client's: it was kept.
    Own,
    /// One of the node that is asked about.
    Node,
    /// One of another node.
    OtherNode,
    /// Somebody else's.
    Elsewhere,
}

/// One end of a cell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// What the client sees.
    pub verdict: Verdict,
    /// The endpoint that the packet reached, answered or not.
    pub endpoint: Option<(IpAddr, u16)>,
    /// The source address there.
    pub source: Option<Source>,
    /// How likely, or how often.
    pub share: Odds,
    /// Why it is not an answer; empty for one.
    pub why: String,
}

/// A client, a target and a mode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cell {
    /// Who.
    pub client: Client,
    /// The address that it sends from.
    pub from: IpAddr,
    /// To what.
    pub target: Target,
    /// The address.
    pub to: IpAddr,
    /// The port; none for a ping.
    pub port: Option<u16>,
    /// Under which rules.
    pub mode: Mode,
    /// Where it may end: by verdict, then in order of the endpoints.
    pub outcomes: Vec<Outcome>,
}

/// An endpoint and what is known of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// Its address.
    pub addr: IpAddr,
    /// Its port.
    pub port: u16,
    /// Its node.
    pub node: Option<String>,
    /// It takes new connections.
    pub ready: bool,
    /// It is being deleted, and answers still.
    pub terminating: bool,
}

/// All that can be asked about one service port.
#[derive(Clone, Debug)]
pub struct PortMatrix {
    /// The port.
    pub port: ServicePort,
    /// Its endpoints, in the order in which rules name them.
    pub endpoints: Vec<Place>,
    /// The cells, by target, client and mode.
    pub cells: Vec<Cell>,
}

/// What is asked.
#[derive(Clone, Debug)]
pub struct Question {
    /// The family of addresses.
    pub family: Family,
    /// The version of Kubernetes.
    pub profile: Profile,
    /// Under which rules.
    pub modes: Vec<Mode>,
    /// The node that packets from outside come to; the first by name if left out.
    pub node: Option<String>,
    /// The Services; all if empty.
    pub services: Vec<ObjectName>,
    /// The address of the machine outside, instead of one that nobody has.
    pub external: Option<IpAddr>,
}

/// The answers.
#[derive(Clone, Debug)]
pub struct Matrix {
    /// The hosts, without rules.
    pub world: World,
    /// One part for each service port.
    pub ports: Vec<PortMatrix>,
    /// What was left out, and why.
    pub notes: Vec<String>,
}

/// A matrix that cannot be made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MatrixError {
    /// The hosts.
    #[error(transparent)]
    World(#[from] WorldError),
    /// Rules of iptables mode.
    #[error(transparent)]
    Rules(#[from] RulesError),
    /// Rules of nftables mode, which the kernel would refuse: that is a bug.
    #[error("nftables: {0}")]
    Nft(#[from] nft::Problem),
    /// A device of the configuration that the kernel would refuse.
    #[error("detectLocal: {0}")]
    Device(DeviceNameError),
    /// Entries of eBPF maps.
    #[error(transparent)]
    Frontends(#[from] TooManyFrontends),
}

impl From<ValidationError> for MatrixError {
    fn from(error: ValidationError) -> MatrixError {
        MatrixError::Rules(error.into())
    }
}

impl Mode {
    /// All of them.
    pub const ALL: [Mode; 5] =
        [Mode::Iptables, Mode::Nftables, Mode::Ipvs, Mode::Ebpf, Mode::Userspace];

    /// Those that are rules alone, which the kernel of any machine can be asked about.
    pub const RULES: [Mode; 2] = [Mode::Iptables, Mode::Nftables];

    /// Returns its name, as `kube-proxy --proxy-mode` has it where it is one of its modes.
    pub const fn name(self) -> &'static str {
        match self {
            Mode::Iptables => "iptables",
            Mode::Nftables => "nftables",
            Mode::Ipvs => "ipvs",
            Mode::Ebpf => "ebpf",
            Mode::Userspace => "userspace",
        }
    }

    /// Returns the mode of this name.
    pub fn parse(name: &str) -> Option<Mode> {
        Mode::ALL.into_iter().find(|mode| mode.name() == name)
    }
}

impl Client {
    /// All of them.
    pub const ALL: [Client; 5] =
        [Client::Pod, Client::OtherPod, Client::Node, Client::External, Client::Itself];

    /// Returns its name.
    pub const fn name(self) -> &'static str {
        match self {
            Client::Pod => "pod",
            Client::OtherPod => "other-pod",
            Client::Node => "node",
            Client::External => "external",
            Client::Itself => "itself",
        }
    }
}

impl Target {
    /// Returns its name.
    pub const fn name(self) -> &'static str {
        match self {
            Target::ClusterIp => "cluster-ip",
            Target::NodePort => "node-port",
            Target::Localhost => "localhost",
            Target::LoadBalancer => "load-balancer",
            Target::ExternalIp => "external-ip",
            Target::WrongPort => "wrong-port",
            Target::Ping => "ping",
        }
    }
}

impl Verdict {
    /// Returns its name.
    pub const fn name(self) -> &'static str {
        match self {
            Verdict::Ok => "ok",
            Verdict::Refused => "refused",
            Verdict::Reset => "reset",
            Verdict::HostUnreachable => "host_unreachable",
            Verdict::Timeout => "timeout",
            Verdict::Unknown => "unknown",
        }
    }
}

impl Whose {
    /// Returns its name.
    pub const fn name(self) -> &'static str {
        match self {
            Whose::Own => "own",
            Whose::Node => "node",
            Whose::OtherNode => "other-node",
            Whose::Elsewhere => "elsewhere",
        }
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl Matrix {
    /// Answers a question about a cluster.
    ///
    /// # Errors
    ///
    /// If there is no such node, or what would be asked about cannot be built.
    pub fn of(objects: &Objects, question: &Question) -> Result<Matrix, MatrixError> {
        let world = World::of(objects, question)?;
        let mut matrix = Matrix { ports: Vec::new(), notes: Vec::new(), world };
        let world = &matrix.world;
        let state = world.state(&world.node, question);
        let asked = |port: &ServicePort| {
            question.services.is_empty() || question.services.contains(&port.name.service)
        };
        for (port, endpoints) in state.ports.iter().filter(|(port, _)| asked(port)) {
            if !matches!(port.name.protocol, Protocol::TCP | Protocol::UDP) {
                let protocol = port.name.protocol;
                matrix.notes.push(format!("{}: hosts do not speak {protocol} here", port.name));
                continue;
            }
            let place = |endpoint: &super::endpoint::Endpoint| Place {
                addr: endpoint.addr,
                port: endpoint.port,
                node: world.node_of(endpoint.addr).map(str::to_owned),
                ready: endpoint.ready,
                terminating: endpoint.is_fallback(),
            };
            let endpoints = endpoints.iter().map(place).collect();
            matrix.ports.push(PortMatrix { port: port.clone(), endpoints, cells: Vec::new() });
        }
        for service in objects.services.values() {
            let ingress = service.ingress.iter().filter(|ingress| ingress.proxy);
            for ip in ingress.filter_map(|ingress| ingress.ip) {
                if question.services.is_empty() || question.services.contains(&service.name) {
                    let why = "the load balancer's own: nodes do not catch it (ipMode Proxy)";
                    matrix.notes.push(format!("{}: {ip} is {why}", service.name));
                }
            }
        }
        for &mode in &question.modes {
            let mut network = world.network.clone();
            let mut plane = Plane::new(mode);
            for (name, id) in world.nodes() {
                plane.install(mode, &world.state(name, question), &mut network, id)?;
            }
            for part in &mut matrix.ports {
                let cells = probe::cells(world, &network, &plane, part, mode);
                part.cells.extend(cells);
            }
        }
        for part in &mut matrix.ports {
            part.cells.sort_by_key(|cell| (cell.target, cell.to, cell.client, cell.mode));
        }
        Ok(matrix)
    }
}

#[cfg(test)]
mod modes;
#[cfg(test)]
mod tests;
