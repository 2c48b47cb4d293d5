//! From the description of a network to the network.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use netfilter_model::Prefix;
use netfilter_model::network::{Built, Listener, Machine, PodNetwork, Topology};
use netfilter_model::tuple::Protocol;
use serde_json::Value;

use super::json::{Get, parse_address};
use super::rules::Loaded;
use super::{Endpoint, Kind, SEED, World};

/// Builds the network of a case, without rules.
pub(super) fn build(case: &Value) -> Result<World, String> {
    let topology = case.get("topology").ok_or("no topology")?;
    let (nodes, remotes) = (topology.list("nodes"), topology.list("remotes"));
    let mut machines = Vec::new();
    for node in nodes {
        let network = pod_network(node)?;
        machines.push(Machine { node: Some(network), ..machine(node)? });
    }
    for remote in remotes {
        machines.push(machine(remote)?);
    }
    let len = |key: &str, default: u8| match topology.text(key) {
        None => Ok(default),
        Some(text) => prefix(text).map(|prefix| prefix.len()),
    };
    let fabric_len = (len("fabric", 16)?, len("fabric6", 64)?);
    let Built { network, ids } =
        Topology { machines, fabric_len }.build(SEED).map_err(|error| error.to_string())?;
    let mut world = World {
        network,
        endpoints: BTreeMap::new(),
        names: BTreeMap::new(),
        loaded: BTreeMap::new(),
        six: false,
        next_port: 40_000,
        last_id: 0,
        tcp: BTreeMap::new(),
        udp: BTreeMap::new(),
        remarks: Vec::new(),
    };
    let pods = nodes.iter().flat_map(|node| node.list("pods"));
    let all = nodes
        .iter()
        .map(|node| (node, Kind::Node))
        .chain(remotes.iter().map(|remote| (remote, Kind::Remote)))
        .chain(pods.map(|pod| (pod, Kind::Pod)));
    for (endpoint, kind) in all {
        let name = endpoint.text("name").ok_or("an endpoint without a name")?;
        let id = ids[name];
        let mut local = vec![Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()];
        let keys: &[&str] = match kind {
            Kind::Node => &["ip", "ip6", "bridge_ip", "bridge_ip6"],
            _ => &["ip", "ip6"],
        };
        for key in keys {
            local.extend(endpoint.address(key)?);
        }
        for also in endpoint.texts("also") {
            local.push(parse_address(&also)?);
        }
        world.six |= endpoint.get("ip6").is_some();
        for spec in endpoint.texts("listen") {
            world.network.listen(id, listener(&spec)?);
        }
        world.names.insert(id, name.to_owned());
        world.endpoints.insert(name.to_owned(), Endpoint { id, kind, local });
        world.loaded.insert(name.to_owned(), Loaded::default());
        if let Some(values) = endpoint.get("sysctls") {
            world.set_sysctls(id, values)?;
        }
    }
    Ok(world)
}

fn prefix(text: &str) -> Result<Prefix, String> {
    let wrong = || format!("{text:?} is no network");
    let (address, len) = text.split_once('/').ok_or_else(wrong)?;
    let address = parse_address(address)?;
    let longest = if address.is_ipv4() { 32 } else { 128 };
    let len: u8 = len.parse().ok().filter(|len| *len <= longest).ok_or_else(wrong)?;
    Ok(Prefix::new(address, len))
}

fn machine(value: &Value) -> Result<Machine, String> {
    let mut addresses = Vec::new();
    for key in ["ip", "ip6"] {
        addresses.extend(value.address(key)?);
    }
    let also: Result<Vec<IpAddr>, String> =
        value.texts("also").iter().map(|text| parse_address(text)).collect();
    Ok(Machine {
        name: value.text("name").unwrap_or_default().to_owned(),
        addresses,
        also: also?,
        also_dev: value.text("also_dev").map(str::to_owned),
        mac: value.text("mac").map(mac).transpose()?,
        routes: value.texts("routes"),
        gateway: value.flag("gateway"),
        mute: value.flag("mute"),
        node: None,
    })
}

fn mac(text: &str) -> Result<[u8; 6], String> {
    let bytes: Vec<u8> =
        text.split(':').filter_map(|byte| u8::from_str_radix(byte, 16).ok()).collect();
    bytes.try_into().map_err(|_| format!("{text:?} is no hardware address"))
}

fn pod_network(node: &Value) -> Result<PodNetwork, String> {
    let mut subnets = Vec::new();
    for (subnet, bridge) in [("pod_subnet", "bridge_ip"), ("pod_subnet6", "bridge_ip6")] {
        if let (Some(subnet), Some(bridge)) = (node.text(subnet), node.address(bridge)?) {
            subnets.push((prefix(subnet)?, bridge));
        }
    }
    let pods: Result<Vec<Machine>, String> = node.list("pods").iter().map(machine).collect();
    Ok(PodNetwork {
        subnets,
        routed: node.text("cni") == Some("routed"),
        hairpin: node.flag("hairpin"),
        pods: pods?,
    })
}

/// `tcp/80@127.0.0.1`, `udp/53/noreply`.
fn listener(spec: &str) -> Result<Listener, String> {
    let wrong = || format!("{spec:?} is no listener");
    let (place, address) = match spec.split_once('@') {
        Some((place, address)) => (place, Some(parse_address(address)?)),
        None => (spec, None),
    };
    let mut parts = place.split('/');
    let protocol = match parts.next() {
        Some("tcp") => Protocol::TCP,
        Some("udp") => Protocol::UDP,
        _ => return Err(wrong()),
    };
    let port = parts.next().and_then(|port| port.parse().ok()).ok_or_else(wrong)?;
    let answers = parts.all(|part| part != "noreply");
    Ok(Listener { protocol, port, address, answers })
}
