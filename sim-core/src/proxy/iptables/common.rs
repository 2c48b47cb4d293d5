//! What a node's rules are without Services: chains, the jumps to them from the built-in ones,
//! and places for what Services add.
//!
//! Kubernetes: pkg/proxy/iptables/proxier.go, iptablesJumpChains, iptablesKubeletJumpChains,
//! syncProxyRules.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use netfilter_model::hook::{Hook, Table};
use netfilter_model::rule::{
    AddrType, Base, ChainId, CtStates, DeviceMatch, FragmentId, Match, Nat, NatFlags, NatRange,
    Origin, Rule, RulesetBuilder, SlotId, Target, ValidationError,
};
use netfilter_model::tuple::Family;
use netfilter_model::{DeviceNameError, DevicePattern, Prefix};

use crate::kube::object::NodePortAddresses;
use crate::proxy::state::{LocalDetector, State};

/// The owner of rules that belong to no service port.
pub const NOBODY: Origin = Origin { owner: u32::MAX, item: 0 };

/// What the rules depend on besides Services.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// The family.
    pub family: Family,
    /// The bit of the packet's mark that asks for masquerading.
    pub mark: u32,
    /// Masquerade all traffic to ClusterIPs.
    pub masquerade_all: bool,
    /// How a packet of the cluster's own Pods looks.
    pub detector: Option<Detector>,
    /// Destinations at which NodePorts are looked for.
    pub node_ports: NodePorts,
    /// NodePorts at 127.0.0.1.
    pub localhost_node_ports: bool,
    /// Drop what connection tracking makes no sense of.
    pub drop_invalid: bool,
    /// Also make the empty chains by whose absence the proxy notices a flush.
    pub canaries: bool,
    /// The node's own address.
    pub host_ip: IpAddr,
}

/// How a packet of the cluster's own Pods looks.
#[derive(Clone, Debug, PartialEq)]
pub enum Detector {
    /// By its source.
    Source(Prefix),
    /// By its device.
    Device(DevicePattern),
}

/// Destinations at which NodePorts are looked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodePorts {
    /// All addresses of the node.
    Local,
    /// These.
    Addresses(Vec<IpAddr>),
}

/// Where Services add rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slots {
    /// nat KUBE-SERVICES.
    pub services: SlotId,
    /// nat KUBE-NODEPORTS.
    pub node_ports: SlotId,
    /// filter KUBE-SERVICES.
    pub refusals: SlotId,
    /// filter KUBE-EXTERNAL-SERVICES.
    pub external_refusals: SlotId,
    /// filter KUBE-NODEPORTS.
    pub health_checks: SlotId,
    /// filter KUBE-PROXY-FIREWALL.
    pub firewall: SlotId,
}

/// The rules without Services, valid by type.
#[derive(Clone, Debug)]
pub struct Common {
    /// What they depend on.
    pub settings: Settings,
    /// The rules.
    pub base: Base,
    /// Where Services add theirs.
    pub slots: Slots,
}

/// nat KUBE-MARK-MASQ: the first user chain of nat, after the four built-in ones.
pub(super) const MARK_MASQ: ChainId = ChainId { fragment: FragmentId::BASE, index: 4 };

impl Settings {
    /// Returns the settings of a node's proxy.
    ///
    /// # Errors
    ///
    /// If Pods are told by a device whose name the kernel would refuse.
    pub fn of(state: &State) -> Result<Settings, DeviceNameError> {
        let config = &state.config;
        let detector = match state.local_detector() {
            None => None,
            Some(LocalDetector::Source(range)) => Some(Detector::Source(range)),
            Some(LocalDetector::Device(name)) => {
                Some(Detector::Device(DevicePattern::parse(&name)?))
            }
        };
        let v4 = state.family == Family::V4;
        let loopback = IpAddr::V4(Ipv4Addr::LOCALHOST);
        let takes_loopback = match &config.node_port_addresses {
            NodePortAddresses::Default => true,
            NodePortAddresses::Primary => false,
            NodePortAddresses::Ranges(ranges) => {
                let mut of_family =
                    ranges.iter().filter(|range| Family::of(range.address()) == Family::V4);
                // Ranges of the other family alone are as none.
                of_family.clone().next().is_none()
                    || of_family.any(|range| range.contains(loopback))
            }
        };
        let localhost_node_ports = v4 && config.localhost_node_ports && takes_loopback;
        Ok(Settings {
            family: state.family,
            mark: 1 << config.iptables.masquerade_bit,
            masquerade_all: config.iptables.masquerade_all,
            detector,
            node_ports: node_ports(state, localhost_node_ports),
            localhost_node_ports,
            drop_invalid: !config.conntrack.tcp_be_liberal,
            canaries: false,
            host_ip: state.node.host_ip,
        })
    }
}

/// Returns where NodePorts are looked for.
///
/// Kubernetes: pkg/proxy/util/nodeport_addresses.go.
fn node_ports(state: &State, localhost: bool) -> NodePorts {
    let usable =
        |&&address: &&IpAddr| !address.is_loopback() || (state.family == Family::V4 && localhost);
    let of_node = state.node.addresses.iter();
    match &state.config.node_port_addresses {
        NodePortAddresses::Default => NodePorts::Local,
        NodePortAddresses::Primary => NodePorts::Addresses(vec![state.node.host_ip]),
        NodePortAddresses::Ranges(ranges) => {
            let of_family = ranges.iter();
            let of_family = of_family.filter(|range| Family::of(range.address()) == state.family);
            let ranges: Vec<&Prefix> = of_family.collect();
            if ranges.is_empty() || ranges.iter().any(|range| range.is_empty()) {
                return NodePorts::Local;
            }
            let is_in = |address: &&IpAddr| ranges.iter().any(|range| range.contains(**address));
            NodePorts::Addresses(of_node.filter(usable).filter(is_in).copied().collect())
        }
    }
}

impl Detector {
    /// Adds the condition that a packet is, or is not, of the cluster's own Pods.
    pub(in crate::proxy) fn ask(&self, rule: Rule, local: bool) -> Rule {
        let invert = !local;
        rule.with(match self {
            Detector::Source(prefix) => Match::Source { prefix: prefix.clone(), invert },
            Detector::Device(pattern) => {
                Match::InDevice(Box::new(DeviceMatch { pattern: *pattern, invert }))
            }
        })
    }
}

impl Common {
    /// Returns the rules without Services.
    ///
    /// # Errors
    ///
    /// If the rules would be refused by the kernel; that is a bug.
    pub fn new(settings: Settings) -> Result<Common, ValidationError> {
        let (rules, slots) = Common::builder(&settings);
        Ok(Common { settings, base: rules.build_base()?, slots })
    }

    /// Returns the rules without Services, for others' rules to be added.
    pub(in crate::proxy) fn builder(settings: &Settings) -> (RulesetBuilder, Slots) {
        let mut rules = RulesetBuilder::new();
        rules.family(settings.family);
        rules.load(Table::Nat);
        let mark_masq = rules.chain(Table::Nat, "KUBE-MARK-MASQ");
        assert_eq!(mark_masq, MARK_MASQ, "KUBE-MARK-MASQ follows the built-in chains");
        let mark = rule().then(Target::or_mark(settings.mark));
        rules.append(Table::Nat, mark_masq, mark);
        let (services, node_ports) = nat(&mut rules, settings);
        let [refusals, external_refusals, health_checks, firewall] = filter(&mut rules, settings);
        if settings.canaries {
            for table in [Table::Mangle, Table::Nat, Table::Filter] {
                rules.chain(table, "KUBE-PROXY-CANARY");
            }
        }
        let slots =
            Slots { services, node_ports, refusals, external_refusals, health_checks, firewall };
        (rules, slots)
    }
}

fn rule() -> Rule {
    Rule::new(NOBODY)
}

fn nat(rules: &mut RulesetBuilder, settings: &Settings) -> (SlotId, SlotId) {
    let mark = settings.mark;
    let services = rules.chain(Table::Nat, "KUBE-SERVICES");
    let node_ports = rules.chain(Table::Nat, "KUBE-NODEPORTS");
    let postrouting = rules.chain(Table::Nat, "KUBE-POSTROUTING");
    for hook in [Hook::Prerouting, Hook::Output] {
        let builtin = rules.builtin(Table::Nat, hook);
        let portals = rule().comment("kubernetes service portals").then(Target::Jump(services));
        rules.append(Table::Nat, builtin, portals);
    }
    let builtin = rules.builtin(Table::Nat, Hook::Postrouting);
    let jump = rule().comment("kubernetes postrouting rules").then(Target::Jump(postrouting));
    rules.append(Table::Nat, builtin, jump);
    for rule in [
        rule().not_mark(mark, mark).then(Target::Return),
        rule().then(Target::xor_mark(mark)),
        rule()
            .comment("kubernetes service traffic requiring SNAT")
            .then(Target::Nat(Nat::Masquerade(random_fully()))),
    ] {
        rules.append(Table::Nat, postrouting, rule);
    }
    let slots = (rules.slot(Table::Nat, services), rules.slot(Table::Nat, node_ports));
    for rule in node_port_rules(settings) {
        rules.append(Table::Nat, services, rule.then(Target::Jump(node_ports)));
    }
    slots
}

/// Returns the conditions of the jumps to KUBE-NODEPORTS.
fn node_port_rules(settings: &Settings) -> Vec<Rule> {
    const LAST: &str =
        "kubernetes service nodeports; NOTE: this must be the last rule in this chain";
    let last = rule().comment(LAST);
    match &settings.node_ports {
        NodePorts::Local => {
            let local = last.dst_type(AddrType::Local);
            vec![match (settings.family, settings.localhost_node_ports) {
                (Family::V4, true) => local,
                (Family::V4, false) => local.not_destination(loopback()),
                (Family::V6, _) => {
                    local.not_destination(Prefix::host(IpAddr::V6(Ipv6Addr::LOCALHOST)))
                }
            }]
        }
        NodePorts::Addresses(addresses) => {
            let to = |&address: &IpAddr| last.clone().destination(Prefix::host(address));
            addresses.iter().map(to).collect()
        }
    }
}

/// Each jump is put at the head of its chain, so the last one made stands first.
fn filter(rules: &mut RulesetBuilder, settings: &Settings) -> [SlotId; 4] {
    let mark = settings.mark;
    let [services, external, forward, node_ports, lb, firewall] = [
        "KUBE-SERVICES",
        "KUBE-EXTERNAL-SERVICES",
        "KUBE-FORWARD",
        "KUBE-NODEPORTS",
        "KUBE-PROXY-FIREWALL",
        "KUBE-FIREWALL",
    ]
    .map(|name| rules.chain(Table::Filter, name));
    let new = |comment: &str, chain| {
        rule().ctstate(CtStates::NEW).comment(comment).then(Target::Jump(chain))
    };
    let lb_jump = new("kubernetes load balancer firewall", lb);
    let external_jump = new("kubernetes externally-visible service portals", external);
    let portals = new("kubernetes service portals", services);
    let firewall_jump = rule().then(Target::Jump(firewall));
    let health = rule().comment("kubernetes health check service ports");
    let health = health.then(Target::Jump(node_ports));
    let forwarding = rule().comment("kubernetes forwarding rules").then(Target::Jump(forward));
    let jumps = [
        (Hook::Input, vec![firewall_jump.clone(), lb_jump.clone(), health, external_jump.clone()]),
        (Hook::Forward, vec![lb_jump.clone(), forwarding, portals.clone(), external_jump]),
        (Hook::Output, vec![firewall_jump, lb_jump, portals]),
    ];
    for (hook, jumps) in jumps {
        let builtin = rules.builtin(Table::Filter, hook);
        for jump in jumps {
            rules.append(Table::Filter, builtin, jump);
        }
    }
    let established = CtStates::RELATED | CtStates::ESTABLISHED;
    let invalid = rule().ctstate(CtStates::INVALID).then(Target::Drop);
    let forwarded = [
        rule().comment("kubernetes forwarding rules").mark(mark, mark).then(Target::Accept),
        rule()
            .comment("kubernetes forwarding conntrack rule")
            .ctstate(established)
            .then(Target::Accept),
    ];
    for rule in settings.drop_invalid.then_some(invalid).into_iter().chain(forwarded) {
        rules.append(Table::Filter, forward, rule);
    }
    if settings.localhost_node_ports {
        let states = established | CtStates::DNAT;
        let martian = rule()
            .destination(loopback())
            .not_source(loopback())
            .comment("block incoming localnet connections")
            .with(Match::CtState { states, invert: true })
            .then(Target::Drop);
        rules.append(Table::Filter, firewall, martian);
    }
    [services, external, node_ports, lb].map(|chain| rules.slot(Table::Filter, chain))
}

fn loopback() -> Prefix {
    Prefix::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 8)
}

pub(in crate::proxy) fn random_fully() -> NatRange {
    let flags = NatFlags { random_fully: true, ..NatFlags::default() };
    NatRange::keep().with_flags(flags)
}
