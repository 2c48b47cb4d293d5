//! The control plane and the kubelets: Services, Deployments, Pods and their lives.
//!
//! [`ControlPlane`] is one component: it takes [`Event`]s and tells the rest of the world what
//! happened as [`Effect`]s. It sends no packets and knows no rules.
//!
//! ```text
//! create ─start─▶ Running ─startup─▶ listening ─probe─▶ Ready ─minReadySeconds─▶ available
//! delete ─notice─▶ preStop ─▶ SIGTERM ─▶ exit (or SIGKILL) ─teardown─▶ address released
//! ```
//!
//! Simplified: the API server, the controllers and the slice's write take no time; with a drawn
//! propagation delay, what they take is part of the delay.

pub mod address;
pub mod endpoint_slice;
pub mod manifest;
pub mod pod;
pub mod rollout;

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;
use std::time::Duration;

use self::address::{AllocateError, ClusterIps, PodAddresses};
use self::endpoint_slice::{ServiceEndpoints, endpoints, selects};
use self::pod::{Owner, Phase, Placement, Pod};
use self::rollout::{Goal, plan};
use crate::config::{
    Action, Config, DeploymentSpec, EventSpec, Ipv4Cidr, Law, ObjectName, OnSigterm, ServiceSpec,
};
use crate::engine::queue::{Schedule, TimerId};
use crate::engine::rng::{Seed, Stream, below};
use crate::ids::{ClientId, DeploymentId, Id, IdVec, NodeId, PodId, ServiceId};
use crate::record::OpenedBy;
use crate::time::SimTime;

/// Something that happens in the control plane or in a kubelet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// The scenario's event of this index.
    User(u32),
    /// A container runs.
    Started(PodId),
    /// An application listens.
    Listening(PodId),
    /// A readiness probe is due.
    Probe(PodId),
    /// A Pod has been Ready for `minReadySeconds`.
    Available(PodId),
    /// A kubelet sees that a Pod is to go.
    Notice(PodId),
    /// A preStop hook has ended: SIGTERM.
    Sigterm(PodId),
    /// The grace period is over: SIGKILL.
    Kill(PodId),
    /// A sandbox is torn down.
    Released(PodId),
}

impl Event {
    /// The kinds of events.
    pub const KINDS: [&str; 9] = [
        "user",
        "started",
        "listening",
        "probe",
        "available",
        "notice",
        "sigterm",
        "kill",
        "released",
    ];

    /// Returns the index of the event's kind and what it concerns.
    pub fn kind(self) -> (usize, usize) {
        match self {
            Event::User(index) => (0, index as usize),
            Event::Started(pod) => (1, pod.index()),
            Event::Listening(pod) => (2, pod.index()),
            Event::Probe(pod) => (3, pod.index()),
            Event::Available(pod) => (4, pod.index()),
            Event::Notice(pod) => (5, pod.index()),
            Event::Sigterm(pod) => (6, pod.index()),
            Event::Kill(pod) => (7, pod.index()),
            Event::Released(pod) => (8, pod.index()),
        }
    }
}

/// What the rest of the world must know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// A Pod's deletion was accepted; its endpoints are still as they were.
    Deleted(PodId, OpenedBy),
    /// A Service's endpoints are no longer what they were.
    EndpointsChanged(ServiceId),
    /// An application stopped accepting and got SIGTERM; under `close` it is gone already.
    Sigterm(PodId),
    /// An application was killed.
    Killed(PodId),
    /// An address was released.
    Released(PodId),
}

/// A Service as stored.
#[derive(Debug)]
pub struct Service {
    /// What was applied.
    pub spec: ServiceSpec,
    /// Its virtual address.
    pub cluster_ip: Ipv4Addr,
    /// Its endpoints now.
    pub endpoints: ServiceEndpoints,
}

/// A Deployment as stored, with what its Pods draw from.
#[derive(Debug)]
pub struct Deployment {
    /// What was applied.
    pub spec: DeploymentSpec,
    /// The present template.
    pub revision: u32,
    /// Pods that are not gone.
    pub pods: Vec<PodId>,
    /// Services that select its Pods.
    services: Vec<ServiceId>,
    created: u64,
    /// Nodes by how many of its Pods they hold that are not terminating.
    spread: BTreeSet<(u32, NodeId)>,
    waiting: Vec<PodId>,
    name_draws: Stream,
    start_draws: Stream,
    startup_draws: Stream,
    notice_draws: Stream,
    teardown_draws: Stream,
}

/// A node as the control plane knows it.
#[derive(Debug)]
struct Node {
    addresses: PodAddresses,
}

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
    /// Something refers to an object that is not there.
    #[error("{what} {name} does not exist")]
    Missing {
        /// The kind of object.
        what: &'static str,
        /// Its name.
        name: String,
    },
}

/// Timer purposes of this component.
const LIFECYCLE: u16 = 1;
const PROBE: u16 = 2;

/// Kubernetes: pkg/kubelet/kuberuntime, minimumGracePeriodInSeconds.
const MIN_GRACE: Duration = Duration::from_secs(2);

/// The API server, its controllers and the kubelets.
#[derive(Debug)]
pub struct ControlPlane {
    /// Services, in the order they were applied.
    pub services: IdVec<ServiceId, Service>,
    /// Deployments, in the order they were applied.
    pub deployments: IdVec<DeploymentId, Deployment>,
    /// All Pods that ever were.
    pub pods: IdVec<PodId, Pod>,
    nodes: IdVec<NodeId, Node>,
    kubelet: crate::config::KubeletConfig,
    max_pods: usize,
    events: Vec<EventSpec>,
    events_left: usize,
    /// Pods that are neither available nor terminating.
    unavailable: u64,
    /// Pods that are terminating and not yet gone.
    terminating: u64,
}

impl ControlPlane {
    /// Returns the cluster of `config`, settled: every Deployment's Pods run and are available.
    pub fn new(config: &Config, seed: &Seed) -> Result<ControlPlane, SetupError> {
        let mut nodes = IdVec::new();
        for node in 0..config.cluster.nodes {
            let range = node_range(config, node).ok_or(SetupError::PodCidr {
                range: config.cluster.pod_cidr,
                node,
            })?;
            nodes.push(Node {
                addresses: PodAddresses::new(range),
            });
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

    /// Schedules the scenario's events.
    pub fn start(&self, schedule: &mut impl Schedule<Event>) {
        for (index, event) in self.events.iter().enumerate() {
            schedule.after(event.at, Event::User(index as u32));
        }
    }

    /// Returns whether nothing is under way: all events have happened, all Pods are available or
    /// gone.
    pub fn is_settled(&self) -> bool {
        self.events_left == 0 && self.unavailable == 0 && self.terminating == 0
    }

    /// Returns the Pod that has `addr` on `node`.
    pub fn pod_at(&self, node: NodeId, addr: Ipv4Addr) -> Option<PodId> {
        self.nodes[node].addresses.owner(addr)
    }

    /// Returns the Deployment whose Pod `pod` is.
    pub fn deployment_of(&self, pod: PodId) -> Option<DeploymentId> {
        match self.pods[pod].owner {
            Owner::Deployment(deployment) => Some(deployment),
            Owner::Client(_) => None,
        }
    }

    /// Returns the Services whose endpoint `pod` is now, in order.
    pub fn services_naming(&self, pod: PodId) -> Vec<ServiceId> {
        let names = |service: &Service| {
            service
                .endpoints
                .iter()
                .any(|port| port.iter().any(|endpoint| endpoint.pod == pod))
        };
        self.services
            .iter()
            .filter(|(_, service)| names(service))
            .map(|(id, _)| id)
            .collect()
    }

    /// Handles `event`.
    pub fn on_event(
        &mut self,
        event: Event,
        schedule: &mut impl Schedule<Event>,
        effects: &mut Vec<Effect>,
    ) {
        match event {
            Event::User(index) => self.user(index as usize, schedule, effects),
            Event::Started(pod) => self.container_started(pod, schedule, effects),
            Event::Listening(pod) => {
                let pod = &mut self.pods[pod];
                pod.listening = pod.phase == Phase::Running && pod.stopped.is_none();
            }
            Event::Probe(pod) => self.probe(pod, schedule, effects),
            Event::Available(pod) => self.became_available(pod, schedule, effects),
            Event::Notice(pod) => self.notice(pod, schedule),
            Event::Sigterm(pod) => self.sigterm(pod, schedule, effects),
            Event::Kill(pod) => {
                self.stop_accepting(pod, schedule.now());
                effects.push(Effect::Killed(pod));
                self.exit(pod, schedule, effects);
            }
            Event::Released(pod) => self.release(pod, schedule, effects),
        }
    }

    /// Notes that a draining application has finished its last connection.
    pub fn drained(
        &mut self,
        pod: PodId,
        schedule: &mut impl Schedule<Event>,
        effects: &mut Vec<Effect>,
    ) {
        self.exit(pod, schedule, effects);
    }

    /// Returns whether `pod` has been told to end and waits for its connections.
    pub fn is_draining(&self, pod: PodId) -> bool {
        let pod = &self.pods[pod];
        pod.phase == Phase::Running && pod.sigterm.is_some() && pod.stopped.is_some()
    }

    fn user(
        &mut self,
        index: usize,
        schedule: &mut impl Schedule<Event>,
        effects: &mut Vec<Effect>,
    ) {
        self.events_left -= 1;
        let action = self.events[index].action.clone();
        let (Action::DeletePod {
            deployment: name, ..
        }
        | Action::Rollout { deployment: name }
        | Action::Scale {
            deployment: name, ..
        }) = &action;
        let id = self
            .find_deployment(name)
            .expect("events were checked at set-up");
        let by = match action {
            Action::Rollout { .. } => {
                self.deployments[id].revision += 1;
                OpenedBy::Rollout
            }
            Action::Scale { replicas, .. } => {
                self.deployments[id].spec.replicas = replicas;
                OpenedBy::Scale
            }
            Action::DeletePod { count, .. } => {
                let mut pods = self.deployments[id].pods.clone();
                pods.retain(|&pod| !self.pods[pod].is_terminating());
                pods.sort_by(|&a, &b| self.pods[a].name.cmp(&self.pods[b].name));
                for pod in pods.into_iter().take(count as usize) {
                    self.delete(pod, OpenedBy::Delete, schedule, effects);
                }
                OpenedBy::Delete
            }
        };
        self.sync(id, by, schedule, effects);
    }

    /// Brings a Deployment nearer to its goal and its Services' endpoints up to date.
    fn sync(
        &mut self,
        id: DeploymentId,
        by: OpenedBy,
        schedule: &mut impl Schedule<Event>,
        effects: &mut Vec<Effect>,
    ) {
        let deployment = &self.deployments[id];
        let goal = Goal {
            replicas: deployment.spec.replicas,
            revision: deployment.revision,
            strategy: &deployment.spec.strategy,
        };
        let pods: Vec<_> = deployment
            .pods
            .iter()
            .map(|&pod| (pod, &self.pods[pod]))
            .collect();
        let plan = plan(goal, &pods, schedule.now());
        for _ in 0..plan.create {
            let pod = self.create(id, schedule.now());
            self.unavailable += 1;
            self.place(pod, schedule);
        }
        for pod in plan.delete {
            self.delete(pod, by, schedule, effects);
        }
        self.update_endpoints(id, effects);
    }

    fn update_endpoints(&mut self, id: DeploymentId, effects: &mut Vec<Effect>) {
        for index in 0..self.deployments[id].services.len() {
            let service = self.deployments[id].services[index];
            let endpoints = self.endpoints_of(service);
            if endpoints != self.services[service].endpoints {
                self.services[service].endpoints = endpoints;
                effects.push(Effect::EndpointsChanged(service));
            }
        }
    }

    fn endpoints_of(&self, service: ServiceId) -> ServiceEndpoints {
        let deployments = self.deployments.iter().map(|(_, deployment)| deployment);
        let pods: Vec<_> = deployments
            .filter(|deployment| deployment.services.contains(&service))
            .flat_map(|deployment| deployment.pods.iter().map(move |&pod| (pod, deployment)))
            .map(|(pod, deployment)| (pod, &self.pods[pod], &deployment.spec.template))
            .collect();
        endpoints(&self.services[service].spec, &pods)
    }

    fn create(&mut self, id: DeploymentId, now: SimTime) -> PodId {
        let deployment = &mut self.deployments[id];
        let ordinal = deployment.created;
        deployment.created += 1;
        let hash = letters(
            deployment
                .name_draws
                .draw(u64::from(deployment.revision), 0, 1, 0),
            10,
        );
        let suffix = letters(deployment.name_draws.draw(ordinal, 0, 0, 0), 5);
        let name = format!("{}-{hash}-{suffix}", deployment.spec.name.name);
        let pod = self.pods.push(Pod {
            name: name.into(),
            owner: Owner::Deployment(id),
            ordinal,
            revision: deployment.revision,
            created: now,
            placement: None,
            phase: Phase::Pending,
            started: None,
            listening: false,
            ready_since: None,
            available_from: None,
            probes_against: 0,
            deleted: None,
            sigterm: None,
            stopped: None,
            released: None,
        });
        deployment.pods.push(pod);
        pod
    }

    /// Binds `pod` to a node and lets its kubelet start it, or leaves it pending.
    fn place(&mut self, pod: PodId, schedule: &mut impl Schedule<Event>) {
        let Some(id) = self.deployment_of(pod) else {
            return;
        };
        if self.bind(pod).is_none() {
            self.deployments[id].waiting.push(pod);
            return;
        }
        let draw = self.deployments[id]
            .start_draws
            .draw(self.pods[pod].ordinal, 0, 0, 0);
        schedule.after(self.kubelet.start.sample(draw), Event::Started(pod));
    }

    /// Chooses the node with the fewest Pods of the same Deployment, the first among equals.
    ///
    /// Simplified: the scheduler spreads by workload and fits by Pod count and addresses alone.
    fn bind(&mut self, pod: PodId) -> Option<NodeId> {
        let id = self.deployment_of(pod)?;
        let fits = |&&(_, node): &&(u32, NodeId)| {
            let addresses = &self.nodes[node].addresses;
            addresses.len() < self.max_pods
        };
        let (count, node) = *self.deployments[id].spread.iter().find(fits)?;
        let addr = self.nodes[node].addresses.allocate(pod)?;
        let spread = &mut self.deployments[id].spread;
        spread.remove(&(count, node));
        spread.insert((count + 1, node));
        self.pods[pod].placement = Some(Placement { node, addr });
        Some(node)
    }

    fn delete(
        &mut self,
        id: PodId,
        by: OpenedBy,
        schedule: &mut impl Schedule<Event>,
        effects: &mut Vec<Effect>,
    ) {
        let Some(deployment) = self.deployment_of(id) else {
            return;
        };
        let pod = &mut self.pods[id];
        pod.deleted = Some(schedule.now());
        self.terminating += 1;
        if pod.available_from.is_none_or(|from| from > schedule.now()) {
            self.unavailable -= 1;
        }
        effects.push(Effect::Deleted(id, by));
        let deployment = &mut self.deployments[deployment];
        let Some(Placement { node, .. }) = pod.placement else {
            deployment.waiting.retain(|&waiting| waiting != id);
            schedule.after(Duration::ZERO, Event::Released(id));
            return;
        };
        let entry = *deployment
            .spread
            .iter()
            .find(|entry| entry.1 == node)
            .expect("is spread");
        deployment.spread.remove(&entry);
        deployment.spread.insert((entry.0 - 1, node));
        let notice = self
            .kubelet
            .notice
            .sample(deployment.notice_draws.draw(pod.ordinal, 0, 0, 0));
        schedule.set_timer(
            timer(LIFECYCLE, id),
            schedule.now() + notice,
            Event::Notice(id),
        );
        // Readiness is probed to the end; while nothing can change, no probe is simulated.
        if let Some(next) = self.next_probe(id, schedule.now()) {
            schedule.set_timer(timer(PROBE, id), next, Event::Probe(id));
        }
    }

    fn container_started(
        &mut self,
        id: PodId,
        schedule: &mut impl Schedule<Event>,
        effects: &mut Vec<Effect>,
    ) {
        let Some(deployment) = self.deployment_of(id) else {
            return;
        };
        let deployment = &self.deployments[deployment];
        let pod = &mut self.pods[id];
        if pod.phase != Phase::Pending {
            return;
        }
        pod.phase = Phase::Running;
        pod.started = Some(schedule.now());
        let template = &deployment.spec.template;
        let draw = deployment.startup_draws.draw(pod.ordinal, 0, 0, 0);
        schedule.after(
            template.application.startup.sample(draw),
            Event::Listening(id),
        );
        match template.readiness {
            Some(probe) => {
                let first = schedule.now() + probe.initial_delay;
                schedule.set_timer(timer(PROBE, id), first, Event::Probe(id));
            }
            None => self.became_ready(id, schedule, effects),
        }
    }

    fn probe(&mut self, id: PodId, schedule: &mut impl Schedule<Event>, effects: &mut Vec<Effect>) {
        let Some(deployment) = self.deployment_of(id) else {
            return;
        };
        let Some(probe) = self.deployments[deployment].spec.template.readiness else {
            return;
        };
        let pod = &mut self.pods[id];
        if pod.listening == pod.is_ready() {
            pod.probes_against = 0;
        } else {
            pod.probes_against += 1;
        }
        let (ready, against) = (pod.is_ready(), pod.probes_against);
        if !ready && against >= probe.success_threshold {
            self.pods[id].probes_against = 0;
            self.became_ready(id, schedule, effects);
        } else if ready && against >= probe.failure_threshold {
            self.pods[id].ready_since = None;
            self.update_endpoints(deployment, effects);
        }
        let pod = &self.pods[id];
        if pod.is_ready() == pod.is_terminating() {
            let next = schedule.now() + probe.period;
            schedule.set_timer(timer(PROBE, id), next, Event::Probe(id));
        }
    }

    /// Returns when a ready Pod's next probe is due.
    fn next_probe(&self, id: PodId, now: SimTime) -> Option<SimTime> {
        let deployment = &self.deployments[self.deployment_of(id)?];
        let probe = deployment.spec.template.readiness?;
        let pod = &self.pods[id];
        let first = pod.started? + probe.initial_delay;
        if !pod.is_ready() || probe.period.is_zero() {
            return None;
        }
        let period = u64::try_from(probe.period.as_nanos()).ok()?;
        let passed = u64::try_from(now.saturating_since(first).as_nanos()).ok()? / period;
        Some(first + Duration::from_nanos((passed + 1) * period))
    }

    fn became_ready(
        &mut self,
        id: PodId,
        schedule: &mut impl Schedule<Event>,
        effects: &mut Vec<Effect>,
    ) {
        let Some(deployment) = self.deployment_of(id) else {
            return;
        };
        let min_ready = self.deployments[deployment].spec.min_ready;
        let pod = &mut self.pods[id];
        pod.ready_since = Some(schedule.now());
        pod.available_from = Some(schedule.now() + min_ready);
        if pod.is_terminating() {
            self.update_endpoints(deployment, effects);
        } else if min_ready.is_zero() {
            self.became_available(id, schedule, effects);
        } else {
            schedule.after(min_ready, Event::Available(id));
            self.update_endpoints(deployment, effects);
        }
    }

    fn became_available(
        &mut self,
        id: PodId,
        schedule: &mut impl Schedule<Event>,
        effects: &mut Vec<Effect>,
    ) {
        if self.pods[id].is_terminating() {
            return;
        }
        self.unavailable -= 1;
        if let Some(deployment) = self.deployment_of(id) {
            self.sync(deployment, OpenedBy::Rollout, schedule, effects);
        }
    }

    fn notice(&mut self, id: PodId, schedule: &mut impl Schedule<Event>) {
        let Some(deployment) = self.deployment_of(id) else {
            return;
        };
        let template = &self.deployments[deployment].spec.template;
        let running = self.pods[id].phase == Phase::Running;
        let pre_stop = template.pre_stop.filter(|_| running).unwrap_or_default();
        // A hook that outlasts the grace period is cut off there.
        let sigterm = schedule.now() + pre_stop.min(template.grace);
        schedule.set_timer(timer(LIFECYCLE, id), sigterm, Event::Sigterm(id));
    }

    fn sigterm(
        &mut self,
        id: PodId,
        schedule: &mut impl Schedule<Event>,
        effects: &mut Vec<Effect>,
    ) {
        let Some(deployment) = self.deployment_of(id) else {
            return;
        };
        let template = &self.deployments[deployment].spec.template;
        let (on_sigterm, grace) = (template.application.on_sigterm, template.grace);
        let left = grace
            .saturating_sub(template.pre_stop.unwrap_or_default())
            .max(MIN_GRACE);
        let pod = &mut self.pods[id];
        pod.sigterm = Some(schedule.now());
        if pod.phase == Phase::Running && on_sigterm != OnSigterm::Close {
            schedule.set_timer(timer(LIFECYCLE, id), schedule.now() + left, Event::Kill(id));
        }
        match on_sigterm {
            OnSigterm::Ignore if pod.phase == Phase::Running => {}
            OnSigterm::Drain if pod.phase == Phase::Running => {
                self.stop_accepting(id, schedule.now());
                effects.push(Effect::Sigterm(id));
            }
            _ => {
                self.stop_accepting(id, schedule.now());
                effects.push(Effect::Sigterm(id));
                self.exit(id, schedule, effects);
            }
        }
    }

    fn stop_accepting(&mut self, id: PodId, now: SimTime) {
        let pod = &mut self.pods[id];
        pod.listening = false;
        pod.stopped.get_or_insert(now);
    }

    fn exit(&mut self, id: PodId, schedule: &mut impl Schedule<Event>, effects: &mut Vec<Effect>) {
        let Some(deployment) = self.deployment_of(id) else {
            return;
        };
        let pod = &mut self.pods[id];
        assert!(
            pod.phase != Phase::Gone,
            "{} exits after its sandbox is gone",
            pod.name
        );
        pod.phase = Phase::Exited;
        pod.ready_since = None;
        schedule.clear_timer(timer(LIFECYCLE, id));
        schedule.clear_timer(timer(PROBE, id));
        let draw = self.deployments[deployment]
            .teardown_draws
            .draw(pod.ordinal, 0, 0, 0);
        schedule.after(self.kubelet.teardown.sample(draw), Event::Released(id));
        self.update_endpoints(deployment, effects);
    }

    fn release(
        &mut self,
        id: PodId,
        schedule: &mut impl Schedule<Event>,
        effects: &mut Vec<Effect>,
    ) {
        let Some(deployment) = self.deployment_of(id) else {
            return;
        };
        let pod = &mut self.pods[id];
        pod.phase = Phase::Gone;
        pod.released = Some(schedule.now());
        if let Some(Placement { node, addr }) = pod.placement {
            self.nodes[node].addresses.release(addr);
        }
        self.terminating -= 1;
        self.deployments[deployment].pods.retain(|&pod| pod != id);
        effects.push(Effect::Released(id));
        self.place_waiting(schedule);
        self.sync(deployment, OpenedBy::Rollout, schedule, effects);
    }

    /// Tries again to place the Pods that no node had room for.
    fn place_waiting(&mut self, schedule: &mut impl Schedule<Event>) {
        for id in self.deployments.ids() {
            for pod in std::mem::take(&mut self.deployments[id].waiting) {
                self.place(pod, schedule);
            }
        }
    }

    fn find_deployment(&self, name: &ObjectName) -> Option<DeploymentId> {
        self.deployments
            .iter()
            .find(|(_, found)| found.spec.name == *name)
            .map(|(id, _)| id)
    }

    fn check_event(&self, config: &Config, event: &EventSpec) -> Result<(), SetupError> {
        let (Action::DeletePod { deployment, .. }
        | Action::Rollout { deployment }
        | Action::Scale { deployment, .. }) = &event.action;
        if config
            .deployments
            .iter()
            .any(|spec| spec.name == *deployment)
        {
            Ok(())
        } else {
            Err(SetupError::Missing {
                what: "Deployment",
                name: deployment.to_string(),
            })
        }
    }

    fn add_client_pods(&mut self, config: &Config) -> Result<(), SetupError> {
        for (index, client) in config.clients.iter().enumerate() {
            for node in self.nodes.ids() {
                let id = PodId::from_index(self.pods.len());
                let full = || SetupError::Capacity {
                    owner: format!("client {}", client.name),
                };
                if self.nodes[node].addresses.len() >= self.max_pods {
                    return Err(full());
                }
                let addr = self.nodes[node]
                    .addresses
                    .allocate_from_top(id)
                    .ok_or_else(full)?;
                self.pods.push(Pod {
                    name: format!("{}-node-{}", client.name, node.index()).into(),
                    owner: Owner::Client(ClientId::from_index(index)),
                    ordinal: node.index() as u64,
                    revision: 0,
                    created: SimTime::ZERO,
                    placement: Some(Placement { node, addr }),
                    phase: Phase::Running,
                    started: Some(SimTime::ZERO),
                    listening: false,
                    ready_since: Some(SimTime::ZERO),
                    available_from: Some(SimTime::ZERO),
                    probes_against: 0,
                    deleted: None,
                    sigterm: None,
                    stopped: None,
                    released: None,
                });
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
            let full = SetupError::Capacity {
                owner: format!("Deployment {}", spec.name),
            };
            self.bind(pod).ok_or(full)?;
            let pod = &mut self.pods[pod];
            pod.phase = Phase::Running;
            pod.started = Some(SimTime::ZERO);
            pod.listening = true;
            pod.ready_since = Some(SimTime::ZERO);
            pod.available_from = Some(SimTime::ZERO);
        }
        Ok(())
    }
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
                ips.allocate_next(stream.draw(0, 0, 0, 0))
                    .map_err(|source| error(spec, source))?
            }
        };
        services.push(Service {
            spec: spec.clone(),
            cluster_ip,
            endpoints: Vec::new(),
        });
    }
    Ok(services)
}

/// Returns the Pod range of node number `node`.
pub fn node_range(config: &Config, node: u32) -> Option<Ipv4Cidr> {
    let cluster = &config.cluster;
    let size = 1u64 << (32 - u32::from(cluster.node_prefix_len.min(32)));
    let base = cluster.pod_cidr.address(u64::from(node) * size)?;
    let range = Ipv4Cidr::new(base, cluster.node_prefix_len)?;
    cluster
        .pod_cidr
        .address(u64::from(node) * size + size - 1)
        .map(|_| range)
}

fn timer(purpose: u16, pod: PodId) -> TimerId {
    TimerId::new(purpose, pod.index() as u32)
}

/// Returns `count` characters as in generated Kubernetes names: no vowels, no lookalikes.
fn letters(draw: u64, count: u32) -> String {
    const ALPHABET: &[u8; 27] = b"bcdfghjklmnpqrstvwxz2456789";
    let base = ALPHABET.len() as u64;
    let mut rest = below(draw, base.pow(count.min(13)));
    let mut letter = || {
        let letter = ALPHABET[(rest % base) as usize];
        rest /= base;
        char::from(letter)
    };
    (0..count).map(|_| letter()).collect()
}

/// Returns whether a law never gives anything but zero.
pub fn is_zero(law: &Law) -> bool {
    *law == Law::Constant(Duration::ZERO)
}
