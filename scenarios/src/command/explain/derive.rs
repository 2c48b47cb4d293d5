//! A host for rules of which nothing more is known: what the packet, its device and the rules
//! themselves give away, and for the rest assumptions that say so.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use netfilter_model::{DeviceName, Prefix};

use super::facts::Facts;
use super::host::{NodeHost, Way, is_loopback};
use super::packet::Probe;

/// Stands for the node's own address where that is not known (documentation addresses).
const UNKNOWN_V4: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
const UNKNOWN_V6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1);

/// What a device's name says about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Loopback,
    Bridge,
    /// The node's end of a Pod's link.
    PodPort,
    Tunnel,
    Uplink,
}

impl Kind {
    fn of(name: &str) -> Kind {
        let begins = |prefixes: &[&str]| prefixes.iter().any(|prefix| name.starts_with(prefix));
        if name == "lo" {
            Kind::Loopback
        } else if begins(&[
            "cni",
            "docker",
            "br",
            "virbr",
            "cbr",
            "kube-bridge",
            "lxdbr",
            "weave",
            "podman",
        ]) {
            Kind::Bridge
        } else if begins(&["cali", "veth", "lxc", "eni", "gke", "azv", "vethwe", "c-"]) {
            Kind::PodPort
        } else if begins(&[
            "flannel",
            "tun",
            "wg",
            "vxlan",
            "geneve",
            "cilium",
            "ovn",
            "kube-ipvs",
            "nodelocaldns",
            "dummy",
        ]) {
            Kind::Tunnel
        } else {
            Kind::Uplink
        }
    }
}

/// Returns the host that packet, input device (`None` for a packet made on the node) and rules
/// suggest.
pub(super) fn host(probe: &Probe, in_dev: Option<DeviceName>, facts: &Facts) -> NodeHost {
    let mut host = NodeHost::new();
    let tuple = probe.packet.tuple;
    let (src, dst) = (tuple.src(), tuple.dst());
    let in_kind = in_dev.map(|name| Kind::of(name.as_str()));
    let uplink = match (in_dev, in_kind) {
        (Some(name), Some(Kind::Uplink)) => name,
        _ => named("eth0"),
    };
    let eth0 = host.device(uplink);
    let pods = node_pods(probe, in_dev, in_kind, facts);
    let sender_is_pod = matches!(in_kind, Some(Kind::Bridge | Kind::PodPort));

    // The node's own address: from a packet that it makes, or one that it is sent.
    let service_port = facts.node_ports.contains(&(tuple.protocol.0, tuple.dst_part));
    let named_by_rules = facts.virtuals.contains(&dst)
        || facts.external.contains(&dst)
        || facts.pods.as_ref().is_some_and(|pods| pods.contains(dst))
        || pods.as_ref().is_some_and(|(range, ..)| range.contains(dst))
        || facts.near_virtual(dst).is_some();
    let sent_to_node = in_dev.is_some()
        && !is_loopback(dst)
        && !named_by_rules
        && (service_port || (!sender_is_pod && (facts.is_cluster() || probe_is_near(src, dst))));
    let own = match in_dev {
        None if !is_loopback(src) => Some((src, "since it sends this packet")),
        Some(_) if sent_to_node && service_port => {
            Some((dst, "since rules treat its port as a NodePort"))
        }
        Some(_) if sent_to_node => Some((dst, "since no rule says that it is another's")),
        _ => None,
    };
    let bridge_address = pods.as_ref().map(|(range, ..)| first_of(range));
    let own = own.filter(|(addr, _)| Some(*addr) != bridge_address);
    let own_on_bridge =
        own.is_some_and(|(addr, _)| pods.as_ref().is_some_and(|(range, ..)| range.contains(addr)));
    if let Some((addr, why)) = own
        && !own_on_bridge
    {
        let id =
            host.assume(format!("{addr} is the node's own address, on {}, {why}", uplink.as_str()));
        host.address(eth0, addr, usual_len(addr), Some(id));
    } else {
        let addr: IpAddr = if src.is_ipv4() { UNKNOWN_V4.into() } else { UNKNOWN_V6.into() };
        let id = host.assume(format!(
            "the node's own address on {} is not known; {addr} stands for it",
            uplink.as_str()
        ));
        host.address(eth0, addr, usual_len(addr), Some(id));
    }

    if let Some((range, bridge, why)) = pods {
        let on_bridge = Kind::of(bridge.as_str()) == Kind::Bridge;
        let dev = host.device(bridge);
        host.get_mut(dev).bridge = on_bridge;
        let name = bridge.as_str();
        if on_bridge {
            let gateway = bridge_address.expect("there is a range");
            let gateway = match own {
                Some((addr, _)) if own_on_bridge => addr,
                _ => gateway,
            };
            let id = host.assume(format!(
                "{name} is a bridge with {gateway}/{}, {why}; bridge-nf-call-iptables is 1",
                range.len()
            ));
            host.address(dev, gateway, range.len(), Some(id));
        } else {
            let id = host.assume(format!("{src} is behind {name}, {why}"));
            host.route_to(Prefix::host(src), Way::Out(dev, None), 0, Some(id));
        }
    } else if let Some(name) = in_dev
        && name != uplink
        && in_kind != Some(Kind::Loopback)
    {
        let dev = host.device(name);
        let id = host.assume(format!("{src} is behind {}", name.as_str()));
        host.route_to(Prefix::host(src), Way::Out(dev, None), 0, Some(id));
    }
    let rest = if src.is_ipv4() {
        Prefix::new(Ipv4Addr::UNSPECIFIED.into(), 0)
    } else {
        Prefix::new(Ipv6Addr::UNSPECIFIED.into(), 0)
    };
    let id = host.assume(format!("everything else leaves by {}", uplink.as_str()));
    host.route_to(rest, Way::Out(eth0, None), u32::MAX, Some(id));
    if is_loopback(src) || is_loopback(dst) {
        let id = host.assume(
            "route_localnet is 0, the kernel's default (kube-proxy may set 1: say so with --host)"
                .to_owned(),
        );
        host.rely_on(id);
    }
    host
}

/// Returns this node's Pods, the device that they are behind, and why that is thought.
fn node_pods(
    probe: &Probe,
    in_dev: Option<DeviceName>,
    in_kind: Option<Kind>,
    facts: &Facts,
) -> Option<(Prefix, DeviceName, &'static str)> {
    let src = probe.packet.tuple.src();
    let of_family = |prefix: &&Prefix| prefix.address().is_ipv4() == src.is_ipv4();
    let known = facts.node_pods.as_ref().filter(of_family);
    match in_kind {
        Some(Kind::Bridge | Kind::PodPort) => {
            let device = in_dev.expect("a kind has a name");
            match known {
                Some(range) if range.contains(src) => {
                    Some((range.clone(), device, "as the rules have it"))
                }
                _ => Some((
                    Prefix::new(src, usual_len(src)),
                    device,
                    "since the packet comes in by it",
                )),
            }
        }
        _ => {
            let bridge = facts.devices.iter().find(|name| Kind::of(name.as_str()) == Kind::Bridge);
            let bridge = bridge.copied().unwrap_or_else(|| named("cni0"));
            Some((known?.clone(), bridge, "since the rules name this node's Pods"))
        }
    }
}

/// A packet from the same network is most likely for the node itself.
fn probe_is_near(src: IpAddr, dst: IpAddr) -> bool {
    Prefix::new(src, usual_len(src)).contains(dst)
}

fn usual_len(addr: IpAddr) -> u8 {
    if addr.is_ipv4() { 24 } else { 64 }
}

/// Returns the first address of a network that a host may have.
fn first_of(range: &Prefix) -> IpAddr {
    match range.address() {
        IpAddr::V4(addr) => Ipv4Addr::from_bits(addr.to_bits().saturating_add(1)).into(),
        IpAddr::V6(addr) => Ipv6Addr::from_bits(addr.to_bits().saturating_add(1)).into(),
    }
}

fn named(name: &str) -> DeviceName {
    DeviceName::parse(name).expect("a device name")
}
