//! The world as a run begins.

use std::time::Duration;

use crate::config::{
    Action, Arrivals, ClientSpec, Config, EventSpec, Propagation, ProxyMode, Selection,
};
use crate::engine::Fingerprint;
use crate::engine::rng::Seed;
use crate::ids::{Id, IdVec, PodId, ServiceId};
use crate::kube::{self, ControlPlane, SetupError};
use crate::net::fabric::Fabric;
use crate::propagation::Lags;
use crate::proxy::plane::{DataPlane, ProxiedService};
use crate::proxy::sync;
use crate::record::Counts;
use crate::traffic::{GroupPlace, Outlet, Traffic};
use crate::window::{Load, Windows};

use super::balance::Choices;
use super::{RunError, ServiceTraffic, World};

impl World {
    /// Returns the world of `config` before its first event.
    ///
    /// # Errors
    ///
    /// If the cluster cannot be set up.
    pub fn new(config: &Config, seed: &Seed) -> Result<World, RunError> {
        let kube = ControlPlane::new(config, seed)?;
        let (by_name, tick) = match config.proxy.mode {
            ProxyMode::Article(tick) => (true, tick),
            _ => (false, Duration::ZERO),
        };
        let proxied = kube.services.iter().map(|(id, service)| ProxiedService {
            name: service.spec.name.clone(),
            cluster_ip: service.cluster_ip,
            ports: service.spec.ports.iter().map(|port| (port.name.clone(), port.port)).collect(),
            endpoints: super::told(&kube, id, by_name),
            affinity: service.spec.affinity,
        });
        let ranges = (0..config.cluster.nodes).filter_map(|node| kube::node_range(config, node));
        let mut rules = DataPlane::new(&config.cluster, &config.proxy, ranges, proxied.collect())?;
        let targets: Vec<(ServiceId, usize)> =
            config.clients.iter().map(|client| target(&kube, client)).collect::<Result<_, _>>()?;
        let places = places(config, &kube, &targets);
        // Who holds rules, by a hash of the name, as a stream's key would be.
        let key = |name: String| seed.stream(&name).draw(0, 0, 0, 0);
        let keys: Vec<u64> = if rules.is_central() {
            vec![key("load-balancer".to_owned())]
        } else {
            (0..config.cluster.nodes).map(|node| key(format!("node/node-{node}"))).collect()
        };
        let syncs = match &config.propagation {
            Propagation::Pipeline(pipeline) => {
                Some(sync::Nodes::new(&config.proxy, pipeline, &keys, &mut rules, seed)?)
            }
            Propagation::Delay { .. } => None,
        };
        let mut services: IdVec<ServiceId, ServiceTraffic> = kube
            .services
            .iter()
            .map(|(_, service)| ServiceTraffic {
                name: service.spec.name.to_string().into(),
                lag_draws: seed.stream(&format!("service/{}/lag", service.spec.name)),
                order_draws: seed.stream(&format!("service/{}/order", service.spec.name)),
                loads: Vec::new(),
            })
            .collect();
        for (client, &(service, port)) in config.clients.iter().zip(&targets) {
            let per_node_per_s = client.rate_per_s / keys.len() as f64;
            services[service].loads.push(Load { per_node_per_s, port });
        }
        let fabric = match (config.proxy.mode, rules.virtual_servers()) {
            (ProxyMode::Central(balancer), _) => {
                Fabric::with_load_balancer(&config.cluster, balancer)
            }
            (_, Some((sets, addresses))) => {
                Fabric::with_virtual_servers(&config.cluster, addresses.to_vec(), sets)
            }
            _ => Fabric::new(&config.cluster),
        };
        let round_trip = 2 * fabric.greatest_latency();
        Ok(World {
            untold: kube.services.ids().map(|_| 1).collect(),
            rules,
            fabric,
            traffic: Traffic::new(&config.clients, &places, seed),
            windows: Windows::new(kube.services.len()),
            lags: Lags::new(&config.propagation, keys),
            syncs,
            services,
            targets: targets.into_iter().collect(),
            has_expectation: has_closed_form(config)
                && config.clients.iter().all(|client| {
                    // An attempt must last until its SYN's answer is back.
                    client.arrivals == Arrivals::Poisson && client.timeout > round_trip
                }),
            inside: Counts::default(),
            outside: Counts::default(),
            updates: 0,
            by_name,
            tick,
            others: match &config.propagation {
                Propagation::Pipeline(pipeline) => pipeline.others.count,
                Propagation::Delay { .. } => 0,
            },
            choices: Choices::default(),
            fingerprint: Fingerprint::default(),
            effects: Vec::new(),
            outlet: Outlet::default(),
            error: None,
            open_ended: config.duration.is_some() && config.events.iter().all(disturbs),
            repairs: 0,
            kube,
        })
    }
}

/// Returns whether what is lost to rules alone follows from when they went live: a process that
/// dials again, a queue, a machine that fails and rules that are removed make other losses.
fn has_closed_form(config: &Config) -> bool {
    let mode = match config.proxy.mode {
        // Virtual servers choose in turn or by their connections, not at random.
        ProxyMode::Userspace
        | ProxyMode::Article(_)
        | ProxyMode::Ipvs(_)
        | ProxyMode::Ebpf(Selection::Maglev) => false,
        ProxyMode::Central(balancer) => balancer.per_packet.is_zero(),
        _ => true,
    };
    let flushes = |event: &EventSpec| matches!(event.action, Action::FlushRules { .. });
    mode && !config.events.iter().any(|event| fails(event) || flushes(event))
}

/// Returns whether an event leaves the workloads alone, so that its end is the run's duration.
fn disturbs(event: &EventSpec) -> bool {
    fails(event) || matches!(event.action, Action::RestartProxy { .. } | Action::FlushRules { .. })
}

fn fails(event: &EventSpec) -> bool {
    matches!(event.action, Action::Fail { .. })
}

fn target(kube: &ControlPlane, client: &ClientSpec) -> Result<(ServiceId, usize), SetupError> {
    let missing = || SetupError::Missing {
        what: "Service",
        name: format!("{}:{}", client.service, client.port),
    };
    let services = kube.services.iter();
    let mut found = services.filter(|(_, service)| service.spec.name == client.service);
    let (id, service) = found.next().ok_or_else(missing)?;
    let port = service.spec.ports.iter().position(|port| port.port == client.port);
    Ok((id, port.ok_or_else(missing)?))
}

fn places(config: &Config, kube: &ControlPlane, targets: &[(ServiceId, usize)]) -> Vec<GroupPlace> {
    let nodes = config.cluster.nodes;
    let place = |(index, &(service, _)): (usize, &(ServiceId, usize))| GroupPlace {
        target: (kube.services[service].cluster_ip, config.clients[index].port),
        first_pod: PodId::from_index(index * nodes as usize),
        pods: nodes,
    };
    targets.iter().enumerate().map(place).collect()
}
