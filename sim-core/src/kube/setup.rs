//! The cluster as a run begins: everything applied, everything available.

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;

use super::address::{AllocateError, ClusterIps, PodAddresses};
use super::endpoint_slice::selects;
use super::pod::{Owner, Placement, Pod};
use super::{ControlPlane, Deployment, Node, Service};
use crate::config::{
    Action, Config, DeploymentSpec, EventSpec, Ipv4Cidr, Machine, ObjectName, ProxyMode,
    ServiceSpec,
};
use crate::engine::rng::Seed;
use crate::ids::{ClientId, Id, IdVec, PodId, ServiceId};
use crate::record::OpenedBy;
use crate::time::SimTime;

/// Why a cluster cannot be set up.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SetupError {
    /// A ClusterIP cannot be given.
    #[error("Service {service}: {source}")]
    ClusterIp {
        /// The Service.
        service: ObjectName,
        /// Why.
        source: AllocateError,
    },
    /// A node's part of the Pod range does not exist.
    #[error("the Pod range {range} has no room for the Pods of node {node}")]
    PodCidr {
        /// The Pod range.
        range: Ipv4Cidr,
        /// The node's number.
        node: u32,
    },
    /// A Pod has no room.
    #[error("no node has room for the Pods of {owner}")]
    Capacity {
        /// The Deployment or client group.
        owner: String,
    },
    /// There is no node.
    #[error("a cluster needs at least one node")]
    NoNodes,
    /// Two things have one name.
    #[error("two {what}s are named {name}")]
    Duplicate {
        /// The kind of thing.
        what: &'static str,
        /// Its name.
        name: String,
    },
    /// Something refers to an object that is not there.
    #[error("{what} {name} does not exist")]
    Missing {
        /// The kind of object.
        what: &'static str,
        /// Its name.
        name: String,
    },
}

impl ControlPlane {
    /// Returns the cluster of `config`, settled: every Deployment's Pods run and are available.
    pub fn new(config: &Config, seed: &Seed) -> Result<ControlPlane, SetupError> {
        check_names(config)?;
        let mut nodes = IdVec::new();
        for node in 0..config.cluster.nodes {
            let range = node_range(config, node)
                .ok_or(SetupError::PodCidr { range: config.cluster.pod_cidr, node })?;
            nodes.push(Node { addresses: PodAddresses::new(range) });
        }
        let mut control_plane = ControlPlane {
            services: services(config, seed)?,
            deployments: IdVec::new(),
            pods: IdVec::new(),
            nodes,
            kubelet: config.kubelet.clone(),
            max_pods: config.cluster.max_pods as usize,
            events: config.events.clone(),
            events_left: config.events.len(),
            unavailable: 0,
            terminating: 0,
        };
        for event in &config.events {
            control_plane.check_event(config, event)?;
        }
        control_plane.add_client_pods(config)?;
        for spec in &config.deployments {
            control_plane.add_deployment(spec, seed)?;
        }
        for service in control_plane.services.ids() {
            control_plane.services[service].endpoints = control_plane.endpoints_of(service);
        }
        Ok(control_plane)
    }

    fn check_event(&self, config: &Config, event: &EventSpec) -> Result<(), SetupError> {
        let deployment = match &event.action {
            Action::DeletePod { deployment, .. }
            | Action::Rollout { deployment }
            | Action::Scale { deployment, .. } => deployment,
            Action::Fail { machine: Machine::Node(node), .. } if *node >= config.cluster.nodes => {
                return Err(SetupError::Missing { what: "node", name: format!("node-{node}") });
            }
            Action::Fail { machine: Machine::LoadBalancer, .. }
                if !matches!(config.proxy.mode, ProxyMode::Central(_)) =>
            {
                let name = "of proxy mode central".to_owned();
                return Err(SetupError::Missing { what: "load balancer", name });
            }
            Action::Fail { .. } => return Ok(()),
            Action::RestartProxy { node, .. } | Action::FlushRules { node } => {
                if *node < config.cluster.nodes {
                    return Ok(());
                }
                return Err(SetupError::Missing { what: "node", name: format!("node-{node}") });
            }
        };
        if config.deployments.iter().any(|spec| spec.name == *deployment) {
            Ok(())
        } else {
            Err(SetupError::Missing { what: "Deployment", name: deployment.to_string() })
        }
    }

    fn add_client_pods(&mut self, config: &Config) -> Result<(), SetupError> {
        for (index, client) in config.clients.iter().enumerate() {
            for node in self.nodes.ids() {
                let id = PodId::from_index(self.pods.len());
                let full = || SetupError::Capacity { owner: format!("client {}", client.name) };
                if self.nodes[node].addresses.len() >= self.max_pods {
                    return Err(full());
                }
                let addr = self.nodes[node].addresses.allocate_from_top(id).ok_or_else(full)?;
                let name = format!("{}-node-{}", client.name, node.index());
                let owner = Owner::Client(ClientId::from_index(index));
                let ordinal = node.index() as u64;
                let mut pod = Pod::new(name.into(), owner, ordinal, 0, SimTime::ZERO);
                pod.placement = Some(Placement { node, addr });
                pod.settle();
                self.pods.push(pod);
            }
        }
        Ok(())
    }

    fn add_deployment(&mut self, spec: &DeploymentSpec, seed: &Seed) -> Result<(), SetupError> {
        let stream = |purpose: &str| seed.stream(&format!("deployment/{}/{purpose}", spec.name));
        let services = self.services.iter();
        let services = services.filter(|(_, service)| {
            service.spec.name.namespace == spec.name.namespace
                && selects(&service.spec, &spec.template)
        });
        let id = self.deployments.push(Deployment {
            spec: spec.clone(),
            revision: 0,
            by: OpenedBy::Rollout,
            pods: Vec::new(),
            services: services.map(|(id, _)| id).collect(),
            created: 0,
            spread: self.nodes.ids().map(|node| (0, node)).collect(),
            waiting: Vec::new(),
            name_draws: stream("name"),
            start_draws: stream("start"),
            startup_draws: stream("startup"),
            notice_draws: stream("notice"),
            teardown_draws: stream("teardown"),
        });
        for _ in 0..spec.replicas {
            let pod = self.create(id, SimTime::ZERO);
            let full = SetupError::Capacity { owner: format!("Deployment {}", spec.name) };
            self.bind(pod).ok_or(full)?;
            let pod = &mut self.pods[pod];
            pod.settle();
            pod.listening = true;
        }
        Ok(())
    }
}

fn check_names(config: &Config) -> Result<(), SetupError> {
    if config.cluster.nodes == 0 {
        return Err(SetupError::NoNodes);
    }
    let services = config.services.iter().map(|spec| ("Service", spec.name.to_string()));
    let deployments = config.deployments.iter().map(|spec| ("Deployment", spec.name.to_string()));
    let clients = config.clients.iter().map(|spec| ("client", spec.name.clone()));
    let mut seen = BTreeSet::new();
    for (what, name) in services.chain(deployments).chain(clients) {
        if !seen.insert((what, name.clone())) {
            return Err(SetupError::Duplicate { what, name });
        }
    }
    Ok(())
}

fn services(config: &Config, seed: &Seed) -> Result<IdVec<ServiceId, Service>, SetupError> {
    let mut ips = ClusterIps::new(config.cluster.service_cidr);
    let error = |spec: &ServiceSpec, source| {
        let service = spec.name.clone();
        SetupError::ClusterIp { service, source }
    };
    let mut given: BTreeMap<usize, Ipv4Addr> = BTreeMap::new();
    for (index, spec) in config.services.iter().enumerate() {
        if let Some(addr) = spec.cluster_ip {
            // The API server's own Service has the address that is taken from the start.
            let own = spec.name.namespace == "default" && spec.name.name == "kubernetes";
            if own && Some(addr) == config.cluster.service_cidr.address(1) {
                given.insert(index, addr);
                continue;
            }
            ips.allocate(addr).map_err(|source| error(spec, source))?;
            given.insert(index, addr);
        }
    }
    let mut services = IdVec::new();
    for (index, spec) in config.services.iter().enumerate() {
        let cluster_ip = match given.get(&index) {
            Some(&addr) => addr,
            None => {
                let stream = seed.stream(&format!("service/{}/cluster-ip", spec.name));
                ips.allocate_next(stream.draw(0, 0, 0, 0)).map_err(|source| error(spec, source))?
            }
        };
        services.push(Service { spec: spec.clone(), cluster_ip, endpoints: Vec::new() });
    }
    Ok(services)
}

/// Returns the Pod range of node number `node`.
pub fn node_range(config: &Config, node: u32) -> Option<Ipv4Cidr> {
    let cluster = &config.cluster;
    let size = 1u64 << (32 - u32::from(cluster.node_prefix_len.min(32)));
    let base = cluster.pod_cidr.address(u64::from(node) * size)?;
    let range = Ipv4Cidr::new(base, cluster.node_prefix_len)?;
    cluster.pod_cidr.address(u64::from(node) * size + size - 1).map(|_| range)
}
