//! A node of a scenario: its rules as the run begins, and its host.

use std::net::{IpAddr, Ipv4Addr};

use netfilter_model::nft::nft_list;
use netfilter_model::rule::iptables_save;
use netfilter_model::{DeviceName, Prefix};
use sim_core::World;
use sim_core::config::{Config, ProxyMode};
use sim_core::engine::rng::Seed;
use sim_core::ids::{Id as _, NodeId};
use sim_core::net::plan::AddressPlan;
use sim_core::proxy::ipvs::Ipvs;
use sim_core::proxy::nftables::Nftables;
use sim_core::time::SimTime;

use super::host::{NodeHost, Way};
use super::input::Input;

/// Returns the rules of a node as `iptables-save` and `nft` would print them, and the host that it
/// is; or what is wrong, and what would be right.
pub(super) fn node(
    config: &Config,
    scenario: &str,
    name: Option<&str>,
) -> Result<(Vec<Input>, NodeHost), (String, String)> {
    let nodes = config.cluster.nodes;
    let known = format!("as in `--node node-0`; the last one is node-{}", nodes.saturating_sub(1));
    let name = name.ok_or_else(|| ("a scenario has many nodes".to_owned(), known.clone()))?;
    let index = name.strip_prefix("node-").unwrap_or(name).parse::<u32>().ok();
    let Some(index) = index.filter(|index| *index < nodes) else {
        return Err((format!("the scenario has no node `{name}`"), known));
    };
    let node = NodeId::from_index(index as usize);
    if matches!(config.proxy.mode, ProxyMode::Ebpf(_)) {
        let message = "in mode ebpf, connections are translated at their Pods: no rule of a node \
                       sees a Service's address";
        let help = "`rulelag rules --mode ebpf` lists the maps that decide";
        return Err((message.to_owned(), help.to_owned()));
    }
    let failed = |error: &dyn std::fmt::Display| {
        (error.to_string(), "`rulelag run` says more about the scenario".to_owned())
    };
    let world = World::new(config, &Seed::new(1, 0)).map_err(|error| failed(&error))?;
    let rules = world.rules().to_ruleset(node, SimTime::ZERO).map_err(|error| failed(&error))?;
    let name = format!("node-{index} of {scenario}");
    let mut inputs = vec![Input { name: name.clone(), text: iptables_save(&rules) }];
    if config.proxy.mode == ProxyMode::Nftables {
        let table = Nftables::of(&world.proxy_state(node, SimTime::ZERO));
        let rules = table.into_ruleset().map_err(|error| failed(&error))?;
        inputs.push(Input { name: name.clone(), text: nft_list(&rules) });
    }
    let mut host = host(config, node);
    if let Some((sets, addresses)) = world.rules().virtual_servers() {
        let servers = Ipvs::of(&world.proxy_state(node, SimTime::ZERO));
        let servers = servers.map_err(|error| failed(&error))?;
        inputs.push(Input { name: name.clone(), text: sets.save(SimTime::ZERO) });
        inputs.push(Input { name, text: servers.servers().list() });
        let device = host.device(DeviceName::parse("kube-ipvs0").expect("a device name"));
        for address in addresses {
            host.address(device, IpAddr::V4(*address), 32, None);
        }
    }
    Ok((inputs, host))
}

/// Returns the host that a node is: flannel's host-gw, as in a run.
fn host(config: &Config, node: NodeId) -> NodeHost {
    let cluster = &config.cluster;
    let plan = AddressPlan::new(cluster);
    let mut host = NodeHost::new();
    let named = |name| DeviceName::parse(name).expect("a device name");
    let eth0 = host.device(named("eth0"));
    let cni0 = host.device(named("cni0"));
    host.get_mut(cni0).bridge = true;
    let own = IpAddr::V4(plan.node_address(node));
    host.address(eth0, own, cluster.node_cidr.prefix_len(), None);
    let bridge = IpAddr::V4(plan.bridge_address(node));
    host.address(cni0, bridge, cluster.node_prefix_len, None);
    for other in (0..cluster.nodes as usize).map(NodeId::from_index).filter(|other| *other != node)
    {
        let pods = Prefix::new(IpAddr::V4(plan.bridge_address(other)), cluster.node_prefix_len);
        let via = IpAddr::V4(plan.node_address(other));
        host.route_to(pods, Way::Out(eth0, Some(via)), 0, None);
    }
    let gateway = Ipv4Addr::from_bits(cluster.node_cidr.base().to_bits() + 1);
    let all = Prefix::new(Ipv4Addr::UNSPECIFIED.into(), 0);
    host.route_to(all, Way::Out(eth0, Some(gateway.into())), 0, None);
    host
}
