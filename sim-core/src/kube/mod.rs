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
mod kubelet;
pub mod manifest;
pub mod object;
pub mod pod;
pub mod rollout;
pub mod setup;

pub use setup::{SetupError, node_range};

use std::collections::BTreeSet;
use std::net::Ipv4Addr;
use std::time::Duration;

use self::address::PodAddresses;
use self::endpoint_slice::{ServiceEndpoints, endpoints};
use self::pod::{Owner, Phase, Placement, Pod};
use self::rollout::{Goal, plan};
use crate::config::{
    Action, DeploymentSpec, EventSpec, KubeletConfig, Machine, ObjectName, ServiceSpec,
};
use crate::engine::queue::{Schedule, TimerId};
use crate::engine::rng::{Stream, below};
use crate::ids::{DeploymentId, Id, IdVec, NodeId, PodId, ServiceId};
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
    /// A machine fails, until it is repaired after this time.
    Failed(Machine, Option<Duration>),
    /// An address was released.
    Released(PodId),
    /// A node's proxy restarts, and has listed everything after this time.
    ProxyRestarts(NodeId, Duration),
    /// A node's rules were removed by another program.
    RulesFlushed(NodeId),
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
    /// What the controller deletes Pods for: the last change that a user made.
    by: OpenedBy,
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

/// Timer purposes of this component.
const LIFECYCLE: u16 = 1;
const PROBE: u16 = 2;

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
    kubelet: KubeletConfig,
    max_pods: usize,
    events: Vec<EventSpec>,
    events_left: usize,
    /// Pods that are neither available nor terminating.
    unavailable: u64,
    /// Pods that are terminating and not yet gone.
    terminating: u64,
}

impl ControlPlane {
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

    /// Returns the Services that select `pod`, in order.
    pub fn services_of(&self, pod: PodId) -> &[ServiceId] {
        self.deployment_of(pod).map_or(&[], |id| &self.deployments[id].services)
    }

    /// Returns whether the address of `pod` was given to another Pod after it.
    pub fn is_address_reused(&self, pod: PodId) -> bool {
        self.pods[pod].placement.is_some_and(|Placement { node, addr }| {
            self.nodes[node].addresses.last_owner(addr) != Some(pod)
        })
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
        let name = match &action {
            Action::DeletePod { deployment, .. }
            | Action::Rollout { deployment }
            | Action::Scale { deployment, .. } => deployment,
            Action::Fail { machine, lasting } => {
                return effects.push(Effect::Failed(*machine, *lasting));
            }
            &Action::RestartProxy { node, takes } => {
                let node = NodeId::from_index(node as usize);
                return effects.push(Effect::ProxyRestarts(node, takes));
            }
            &Action::FlushRules { node } => {
                return effects.push(Effect::RulesFlushed(NodeId::from_index(node as usize)));
            }
        };
        let id = self.find_deployment(name).expect("events were checked at set-up");
        match action {
            Action::Rollout { .. } => {
                self.deployments[id].revision += 1;
                self.deployments[id].by = OpenedBy::Rollout;
            }
            Action::Scale { replicas, .. } => {
                self.deployments[id].spec.replicas = replicas;
                self.deployments[id].by = OpenedBy::Scale;
            }
            Action::Fail { .. } => {}
            Action::DeletePod { count, .. } => {
                let mut pods = self.deployments[id].pods.clone();
                pods.retain(|&pod| !self.pods[pod].is_terminating());
                pods.sort_by(|&a, &b| self.pods[a].name.cmp(&self.pods[b].name));
                for pod in pods.into_iter().take(count as usize) {
                    self.delete(pod, OpenedBy::Delete, schedule, effects);
                }
            }
            Action::RestartProxy { .. } | Action::FlushRules { .. } => {}
        }
        self.sync(id, schedule, effects);
    }

    /// Brings a Deployment nearer to its goal and its Services' endpoints up to date.
    fn sync(
        &mut self,
        id: DeploymentId,
        schedule: &mut impl Schedule<Event>,
        effects: &mut Vec<Effect>,
    ) {
        // What it deletes no longer counts, so there may be room at once.
        while self.step(id, schedule, effects) {}
        self.update_endpoints(id, effects);
    }

    /// Takes one step of the Deployment controller, and returns whether there was anything to do.
    fn step(
        &mut self,
        id: DeploymentId,
        schedule: &mut impl Schedule<Event>,
        effects: &mut Vec<Effect>,
    ) -> bool {
        let deployment = &self.deployments[id];
        let by = deployment.by;
        let goal = Goal {
            replicas: deployment.spec.replicas,
            revision: deployment.revision,
            strategy: &deployment.spec.strategy,
        };
        let pods: Vec<_> = deployment.pods.iter().map(|&pod| (pod, &self.pods[pod])).collect();
        let plan = plan(goal, &pods, schedule.now());
        let does_nothing = plan.create == 0 && plan.delete.is_empty();
        for _ in 0..plan.create {
            let pod = self.create(id, schedule.now());
            self.unavailable += 1;
            self.place(pod, schedule);
        }
        for pod in plan.delete {
            self.delete(pod, by, schedule, effects);
        }
        !does_nothing
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
        let hash = letters(deployment.name_draws.draw(u64::from(deployment.revision), 0, 1, 0), 10);
        let suffix = letters(deployment.name_draws.draw(ordinal, 0, 0, 0), 5);
        let name = format!("{}-{hash}-{suffix}", deployment.spec.name.name);
        let owner = Owner::Deployment(id);
        let pod = Pod::new(name.into(), owner, ordinal, deployment.revision, now);
        let pod = self.pods.push(pod);
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
        let draw = self.deployments[id].start_draws.draw(self.pods[pod].ordinal, 0, 0, 0);
        schedule.after(self.kubelet.start.sample(draw), Event::Started(pod));
    }

    /// Chooses the node with the fewest Pods of the same Deployment, the first among equals.
    ///
    /// Simplified: the scheduler spreads by workload and fits by Pod count and addresses alone.
    fn bind(&mut self, pod: PodId) -> Option<NodeId> {
        let id = self.deployment_of(pod)?;
        let fits = |&&(_, node): &&(u32, NodeId)| self.nodes[node].addresses.fit(self.max_pods);
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
        pod.deleted_by = Some(by);
        self.terminating += 1;
        if !pod.available {
            self.unavailable -= 1;
        }
        effects.push(Effect::Deleted(id, by));
        let deployment = &mut self.deployments[deployment];
        let Some(Placement { node, .. }) = pod.placement else {
            deployment.waiting.retain(|&waiting| waiting != id);
            schedule.after(Duration::ZERO, Event::Released(id));
            return;
        };
        let entry = *deployment.spread.iter().find(|entry| entry.1 == node).expect("is spread");
        deployment.spread.remove(&entry);
        deployment.spread.insert((entry.0 - 1, node));
        let notice = self.kubelet.notice.sample(deployment.notice_draws.draw(pod.ordinal, 0, 0, 0));
        schedule.set_timer(timer(LIFECYCLE, id), schedule.now() + notice, Event::Notice(id));
        // Readiness is probed to the end; while nothing can change, no probe is simulated.
        if let Some(next) = self.next_probe(id, schedule.now()) {
            schedule.set_timer(timer(PROBE, id), next, Event::Probe(id));
        }
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
        self.deployments.iter().find(|(_, found)| found.spec.name == *name).map(|(id, _)| id)
    }
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
