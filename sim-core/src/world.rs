//! A run: all components, and what passes between them.

mod account;
mod balance;
mod setup;

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr};
use std::ops::ControlFlow;
use std::time::Duration;

use netfilter_model::host::Draws;
use netfilter_model::packet::{IcmpError, Packet, TcpFlags};
use netfilter_model::rule::RuleRef;
use netfilter_model::tuple::{Protocol, Tuple};

use self::balance::Choices;
use crate::config::{Config, Machine};
use crate::engine::queue::EventQueue;
use crate::engine::rng::{Seed, Stream};
use crate::engine::{self, Fingerprint, LimitError};
use crate::event::Event;
use crate::ids::{ClientId, Id, IdVec, NodeId, PodId, ServiceId, ServicePortId};
use crate::kube::endpoint_slice::ServiceEndpoints;
use crate::kube::{ControlPlane, Effect, SetupError};
use crate::net::fabric::{Admission, Fabric, PacketKey, Passage};
use crate::propagation::Lags;
use crate::proxy::plane::{DataPlane, Dialed, Dialer, NoEndpoint, PlaneError, ServiceRules};
use crate::proxy::state::{NodeInfo, State};
use crate::proxy::sync;
use crate::proxy::userspace::Caller;
use crate::record::{self, Cause, Counts, Name, OpenedBy, Recorder};
use crate::time::SimTime;
use crate::traffic::connection::Key;
use crate::traffic::{ClientPlace, Host, Met, Outlet, Sender, Traffic};
use crate::window::{Load, Windows};

/// Why a run gave no result.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum RunError {
    /// The cluster cannot be set up.
    #[error(transparent)]
    Setup(#[from] SetupError),
    /// A limit was hit.
    #[error(transparent)]
    Limit(#[from] LimitError),
    /// The proxy made rules that the kernel would refuse: a bug.
    #[error("the proxy made rules that the kernel refuses: {0}")]
    Rules(#[from] PlaneError),
}

/// Runs `config` once and tells `recorder` what happened.
///
/// The result depends on the arguments alone.
///
/// # Errors
///
/// If the cluster cannot be set up or a limit is hit. Records may have been made by then.
pub fn run(
    config: &Config,
    seed: u64,
    replication: u32,
    recorder: &mut dyn Recorder,
) -> Result<(), RunError> {
    run_with(config, Seed::new(seed, replication), EventQueue::new(), recorder)
}

/// Runs `config` with simultaneous events in an order drawn from `ties`: for the test that this
/// order means nothing.
///
/// # Errors
///
/// As [`run`].
pub fn run_with_shuffled_ties(
    config: &Config,
    seed: u64,
    replication: u32,
    ties: u64,
    recorder: &mut dyn Recorder,
) -> Result<(), RunError> {
    let queue = EventQueue::with_shuffled_ties(ties);
    run_with(config, Seed::new(seed, replication), queue, recorder)
}

fn run_with(
    config: &Config,
    seed: Seed,
    mut queue: EventQueue<Event>,
    recorder: &mut dyn Recorder,
) -> Result<(), RunError> {
    let mut world = World::new(config, &seed)?;
    world.start(&mut queue);
    let until = config.duration.map(|duration| SimTime::ZERO + duration);
    let stats = engine::run(&mut queue, &config.limits, until, |queue, now, event| {
        world.on_event(now, event, queue, recorder)
    })?;
    if let Some(error) = world.error.take() {
        return Err(RunError::Rules(error));
    }
    world.finish(&stats, recorder);
    Ok(())
}

/// Checks that `config` can be set up, without running it.
///
/// # Errors
///
/// If it cannot.
pub fn check(config: &Config) -> Result<(), RunError> {
    World::new(config, &Seed::new(0, 0)).map(drop)
}

/// Everything in a run.
#[derive(Debug)]
pub struct World {
    kube: ControlPlane,
    rules: DataPlane,
    fabric: Fabric,
    traffic: Traffic,
    windows: Windows,
    lags: Lags,
    /// The proxies' sync loops, where the scenario has them.
    syncs: Option<sync::Nodes>,
    services: IdVec<ServiceId, ServiceTraffic>,
    /// The Service and the port's index that a client group sends to.
    targets: IdVec<ClientId, (ServiceId, usize)>,
    /// Whether every client is one for which windows have an expectation.
    has_expectation: bool,
    inside: Counts,
    outside: Counts,
    /// Changes times machines that were told.
    updates: u64,
    /// Services that are only counted.
    others: u32,
    choices: Choices,
    fingerprint: Fingerprint,
    effects: Vec<Effect>,
    outlet: Outlet,
    error: Option<PlaneError>,
    /// The next change of each Service whose times have not been told.
    untold: IdVec<ServiceId, u32>,
    /// Whether endpoints are told in the order of their Pods' names.
    by_name: bool,
    /// What the clock of changes counts by; zero has no ticks.
    tick: Duration,
    /// Whether the run goes on to its duration, since nothing else ends it.
    open_ended: bool,
    /// Machines that are down and will be repaired.
    repairs: u32,
}

#[derive(Debug)]
struct ServiceTraffic {
    name: Name,
    lag_draws: Stream,
    /// For the order in which a node's process takes endpoints.
    order_draws: Stream,
    loads: Vec<Load>,
}

/// Runs `config` up to `at`, the events of that time included, and returns the world then.
///
/// # Errors
///
/// As [`run`].
pub fn world_at(
    config: &Config,
    seed: u64,
    replication: u32,
    at: SimTime,
) -> Result<World, RunError> {
    let mut queue = EventQueue::new();
    let mut world = World::new(config, &Seed::new(seed, replication))?;
    world.start(&mut queue);
    let until = config.duration.map_or(at, |duration| at.min(SimTime::ZERO + duration));
    engine::run(&mut queue, &config.limits, Some(until), |queue, now, event| {
        world.on_event(now, event, queue, &mut Unrecorded)
    })?;
    match world.error.take() {
        Some(error) => Err(RunError::Rules(error)),
        None => Ok(world),
    }
}

/// Keeps nothing.
struct Unrecorded;

impl Recorder for Unrecorded {
    fn wants_detail(&self) -> bool {
        false
    }

    fn attempt(&mut self, _: SimTime) {}

    fn loss(&mut self, _: record::Loss) {}

    fn propagation(&mut self, _: record::Propagation) {}

    fn window(&mut self, _: record::Window) {}

    fn run(&mut self, _: record::Run) {}
}

impl World {
    /// Returns what the proxy of a node has been told, as far as it is live at `now`.
    pub fn proxy_state(&self, node: NodeId, now: SimTime) -> State {
        let plan = self.fabric.plan();
        let own = IpAddr::V4(plan.node_address(node));
        let bridge = IpAddr::V4(plan.bridge_address(node));
        let info = NodeInfo {
            name: node_name(node).to_string(),
            zone: None,
            host_ip: own,
            addresses: vec![Ipv4Addr::LOCALHOST.into(), own, bridge],
            pod_cidr: Some(plan.pod_range(node)),
        };
        self.rules.state(info, node, now)
    }

    /// Returns what the proxies of all nodes hold.
    pub fn rules(&self) -> &DataPlane {
        &self.rules
    }

    /// Schedules the first events.
    pub fn start(&mut self, queue: &mut EventQueue<Event>) {
        self.kube.start(queue);
        self.traffic.start(queue);
        if let Some(syncs) = &mut self.syncs {
            syncs.start(queue);
        }
    }

    /// Handles `event`, and breaks when the run is over.
    pub fn on_event(
        &mut self,
        now: SimTime,
        event: Event,
        queue: &mut EventQueue<Event>,
        recorder: &mut dyn Recorder,
    ) -> ControlFlow<()> {
        let (kind, entity) = event.what();
        self.fingerprint.add(now, kind as u16, entity);
        match event {
            Event::Kube(event) => {
                self.kube.on_event(event, queue, &mut self.effects);
                self.apply_effects(queue);
            }
            Event::Net(event) => self.on_net(event, queue),
            Event::Traffic(event) => self.on_traffic(event, queue, recorder),
            Event::Sync(event) => {
                if let Some(syncs) = &mut self.syncs {
                    for service in syncs.on_event(event, &mut self.rules, queue).services {
                        self.settled(service, queue);
                    }
                }
            }
            Event::LastNode(service) => {
                self.report_changes(service, now, recorder);
                self.close_windows(service, now);
            }
        }
        self.flush(queue, recorder);
        if self.error.is_some() {
            return ControlFlow::Break(());
        }
        if !matches!(event, Event::Net(_)) {
            return self.check_end(now);
        }
        ControlFlow::Continue(())
    }

    /// Ends the sending once everything that was to happen has happened, and the run once every
    /// attempt has ended.
    fn check_end(&mut self, now: SimTime) -> ControlFlow<()> {
        if self.traffic.is_sending()
            && !self.open_ended
            && self.kube.is_settled()
            && self.repairs == 0
            && self.windows.all_closed()
            && self.rules.last_live() <= now
            && self.syncs.as_ref().is_none_or(sync::Nodes::are_settled)
        {
            self.traffic.stop_sending();
        }
        if !self.traffic.is_sending() && self.traffic.open() == 0 {
            return ControlFlow::Break(());
        }
        ControlFlow::Continue(())
    }

    fn on_net(&mut self, event: crate::net::Event, queue: &mut EventQueue<Event>) {
        use crate::net::Event as Net;
        match event {
            Net::Arrive(node, key) => match self.fabric.admit(node, key, queue) {
                Admission::Now => self.arrive(node, key, queue),
                Admission::Queued => {}
                admission @ (Admission::Refused | Admission::Down) => {
                    let packet = self.fabric.take(key);
                    // What was sent to an endpoint meets silence; what was sent to the load
                    // balancer never got so far.
                    let is_node = self.fabric.load_balancer() != Some(node);
                    let cause = match admission {
                        Admission::Down if is_node => Cause::Blackholed,
                        _ => Cause::Link,
                    };
                    self.traffic.met(packet.id, Met { cause, stale_for: None });
                }
            },
            Net::Serve(node, key) => {
                if self.fabric.is_down(node) {
                    let packet = self.fabric.take(key);
                    self.traffic.met(packet.id, Met { cause: Cause::Link, stale_for: None });
                } else {
                    self.arrive(node, key, queue);
                }
            }
            Net::Repaired(node) => {
                self.repairs -= 1;
                self.fabric.set_down(node, false);
            }
            Net::Deliver(node, key) if self.fabric.is_down(node) => {
                self.fabric.take(key);
            }
            Net::Deliver(node, key) => {
                let packet = self.fabric.take(key);
                if let IpAddr::V4(addr) = packet.tuple.dst() {
                    self.reach(node, addr, packet, queue);
                }
            }
            Net::Unresolved(node, addr) => {
                for packet in self.fabric.resolved(node, addr) {
                    self.on_resolved(node, addr, packet, queue);
                }
            }
        }
    }

    /// Lets a machine look at a packet that has arrived at it.
    fn arrive(&mut self, node: NodeId, key: PacketKey, queue: &mut EventQueue<Event>) {
        let packet = self.fabric.take(key);
        let is_syn = packet.tcp_flags() == Some(TcpFlags::SYN);
        if is_syn {
            self.traffic.hop(packet.id);
        }
        if self.rules.is_central() {
            self.rules.prepare(node, queue.now(), &packet, self.fabric.netns_mut(node));
        }
        let rules = self.rules.at(node, queue.now(), &packet);
        let mut draws = PacketDraws::new(&mut self.traffic, packet.id, node);
        let passage = self.fabric.arrive(node, packet, &rules, &mut draws, queue);
        if is_syn {
            self.traffic.passed(packet.id, self.fabric.evaluated);
        }
        if let Passage::Travelling(rule, sent) = &passage
            && is_syn
        {
            self.chosen((node, queue.now()), *rule, sent);
        }
        self.on_passage(passage, queue);
    }

    /// Delivers a packet that waited for an address, or tells its sender that nobody has it.
    fn on_resolved(
        &mut self,
        node: NodeId,
        addr: Ipv4Addr,
        packet: Packet,
        queue: &mut EventQueue<Event>,
    ) {
        if self.kube.pod_at(node, addr).is_some() {
            self.reach(node, addr, packet, queue);
            return;
        }
        let rules = self.rules.at(node, queue.now(), &packet);
        let mut draws = PacketDraws::new(&mut self.traffic, packet.id, node);
        self.fabric.host_unreachable(node, &packet, &rules, &mut draws, queue);
    }

    fn on_passage(&mut self, passage: Passage, queue: &mut EventQueue<Event>) {
        let (packet, cause) = match passage {
            Passage::Travelling(..) => return,
            Passage::Reached(node, addr, packet) => return self.reach(node, addr, packet, queue),
            Passage::Local(node, packet) => {
                if !self.rules.has_processes() {
                    let cause = self.cause_of_loss(&packet);
                    return self.traffic.met(packet.id, Met { cause, stale_for: None });
                }
                let accepts = self.rules.process_accepts(packet.tuple.dst_part);
                return self.traffic.on_relay_packet(node, &packet, accepts, &mut self.outlet);
            }
            Passage::Dropped(drop) => (drop.packet, account::cause_of(&drop)),
            Passage::Lost(packet) => (packet, self.cause_of_loss(&packet)),
        };
        self.traffic.met(packet.id, Met { cause, stale_for: None });
    }

    /// Returns why nobody has a packet that left the cluster: its node had no rule for it, or the
    /// network has no place for it.
    fn cause_of_loss(&self, packet: &Packet) -> Cause {
        let IpAddr::V4(dst) = packet.tuple.dst() else {
            return Cause::Link;
        };
        let is_service = self.rules.port_at((dst, packet.tuple.dst_part)).is_some();
        if is_service { Cause::NoRule } else { Cause::Link }
    }

    /// Hands a packet to the Pod at an address, or lets the node ask for it.
    fn reach(
        &mut self,
        node: NodeId,
        addr: Ipv4Addr,
        packet: Packet,
        queue: &mut EventQueue<Event>,
    ) {
        let Some(pod) = self.kube.pod_at(node, addr) else {
            let stale_for = self.stale_for(packet.id);
            self.traffic.met(packet.id, Met { cause: Cause::Blackholed, stale_for });
            self.fabric.resolve(node, packet, queue);
            return;
        };
        let packet = if self.rules.translates_packets() {
            let mut draws = PacketDraws::new(&mut self.traffic, packet.id, node);
            self.rules.to_pod((node, queue.now()), packet, &mut draws)
        } else {
            packet
        };
        let deployment = self.kube.deployment_of(pod);
        let state = &self.kube.pods[pod];
        let is_syn = packet.tcp_flags() == Some(TcpFlags::SYN);
        if is_syn && !state.listening && deployment.is_some() {
            let stale_for = self.stale_for(packet.id);
            self.traffic.met(packet.id, Met { cause: Cause::Refused, stale_for });
        }
        let application =
            deployment.map(|id| &self.kube.deployments[id].spec.template.application.service_time);
        let host = Host { pod, listening: state.listening, service_time: application };
        self.traffic.on_packet(host, &packet, queue, &mut self.outlet);
    }

    /// Returns for how long the endpoint that an attempt was sent to had not been accepting when
    /// the SYN that chose it was sent, if it had stopped by now.
    fn stale_for(&self, id: u64) -> Option<Duration> {
        let connection = self.traffic.connections.get(Key::from_packet_id(id))?;
        let stopped = self.kube.pods[connection.endpoint?].stopped?;
        let (chosen, _) = connection.chosen?;
        Some(chosen.saturating_since(stopped))
    }

    fn on_traffic(
        &mut self,
        event: crate::traffic::Event,
        queue: &mut EventQueue<Event>,
        recorder: &mut dyn Recorder,
    ) {
        use crate::traffic::Event as Traffic;
        match event {
            Traffic::Arrival(client) => {
                let kube = &self.kube;
                let fabric = &self.fabric;
                let place = |pod: PodId| {
                    let placement = kube.pods[pod].placement.expect("client Pods are placed");
                    let place = ClientPlace { pod, node: placement.node, addr: placement.addr };
                    (!fabric.is_down(placement.node)).then_some(place)
                };
                if let Some(key) = self.traffic.on_arrival(client, queue, place) {
                    self.begin(key, queue, recorder);
                }
            }
            Traffic::Retry(key) => self.begin(key, queue, recorder),
            Traffic::Timer(key) => {
                self.traffic.on_timer(key, queue, &mut self.outlet);
            }
            Traffic::Served(key) => self.traffic.on_served(key, &mut self.outlet),
            Traffic::Dial(key, dial) => self.traffic.on_dial_timeout(key, dial, &mut self.outlet),
            Traffic::DialAgain(key, dial) => {
                self.traffic.on_dial_again(key, dial, &mut self.outlet);
            }
        }
    }

    fn begin(&mut self, key: Key, queue: &mut EventQueue<Event>, recorder: &mut dyn Recorder) {
        let Some(connection) = self.traffic.connections.get_mut(key) else {
            return;
        };
        let (service, _) = self.targets[connection.group];
        connection.inside = self.windows.attempt(service);
        let counts = if connection.inside { &mut self.inside } else { &mut self.outside };
        counts.attempts += 1;
        if recorder.wants_detail() {
            recorder.attempt(queue.now());
        }
        self.connect(key, queue);
    }

    /// Lets an attempt's socket connect: where sockets are translated, to an endpoint.
    fn connect(&mut self, key: Key, queue: &mut EventQueue<Event>) {
        let dialed = match self.traffic.connections.get(key) {
            Some(connection) if self.rules.translates_sockets() => {
                let client = connection.client;
                let to = self.traffic.groups[connection.group].target;
                let (cookie, namespace) = (key.to_packet_id(), client.pod.index() as u64);
                let dialer = Dialer { node: client.node, cookie, namespace };
                let (service, _) = self.targets[connection.group];
                let netns = self.fabric.netns_mut(client.node);
                self.rules.catch_up(service, client.node, queue.now(), netns);
                let mut draws = PacketDraws::new(&mut self.traffic, cookie, client.node);
                self.rules.connect(dialer, queue.now(), to, &mut draws)
            }
            _ => Dialed::ToService,
        };
        match dialed {
            Dialed::ToService => self.traffic.begin(key, queue, &mut self.outlet),
            Dialed::Nowhere => self.traffic.fail_to_connect(key, queue, &mut self.outlet),
            Dialed::ToEndpoint(port, endpoint) => {
                let Some(connection) = self.traffic.connections.get(key) else {
                    return;
                };
                let node = connection.client.node;
                let Some(tuple) = self.traffic.translate(key, (endpoint.addr, endpoint.port))
                else {
                    return;
                };
                self.traffic.begin(key, queue, &mut self.outlet);
                self.choose(key, (port, endpoint.pod), tuple, (node, queue.now()));
            }
        }
    }

    fn apply_effects(&mut self, queue: &mut EventQueue<Event>) {
        let mut effects = std::mem::take(&mut self.effects);
        while !effects.is_empty() {
            for effect in effects.drain(..) {
                self.apply(effect, queue);
            }
            std::mem::swap(&mut effects, &mut self.effects);
        }
        self.effects = effects;
    }

    fn apply(&mut self, effect: Effect, queue: &mut EventQueue<Event>) {
        match effect {
            Effect::Deleted(pod, by) => self.open_windows(pod, by, queue.now()),
            Effect::EndpointsChanged(service) => self.commit(service, queue),
            Effect::Sigterm(pod) => {
                if self.kube.is_draining(pod) {
                    self.traffic.stop_listening(pod, &mut self.outlet);
                    if self.traffic.served_by(pod) == 0 {
                        self.kube.drained(pod, queue, &mut self.effects);
                    }
                } else {
                    self.traffic.reset_all(pod, &mut self.outlet);
                }
            }
            Effect::Failed(machine, lasting) => {
                let node = match machine {
                    Machine::Node(node) => Some(NodeId::from_index(node as usize)),
                    Machine::LoadBalancer => self.fabric.load_balancer(),
                };
                if let Some(node) = node {
                    self.fabric.set_down(node, true);
                    if let Some(lasting) = lasting {
                        self.repairs += 1;
                        queue.after(lasting, Event::Net(crate::net::Event::Repaired(node)));
                    }
                }
            }
            Effect::Killed(pod) => self.traffic.reset_all(pod, &mut self.outlet),
            Effect::ProxyRestarts(node, takes) => {
                if let Some(syncs) = &mut self.syncs {
                    let listed = queue.now() + takes;
                    syncs.restart(node, listed, &mut self.rules, queue);
                }
            }
            Effect::RulesFlushed(node) => {
                if let Some(syncs) = &mut self.syncs {
                    syncs.flush(node, &mut self.rules, queue);
                    self.rules.forget_clients(node, self.fabric.netns_mut(node));
                }
            }
            Effect::Released(pod) => {
                for service in self.windows.services_of(pod) {
                    self.report_windows(service, queue.now());
                }
            }
        }
    }

    /// Opens a window for each Service that names `pod`, in its endpoints or on some node.
    fn open_windows(&mut self, pod: PodId, by: OpenedBy, now: SimTime) {
        for &service in self.kube.services_of(pod) {
            if self.rules.history(service).newest().content.names(pod) {
                self.windows.open(service, pod, by, now);
            }
        }
    }

    fn commit(&mut self, service: ServiceId, queue: &mut EventQueue<Event>) {
        let change = self.rules.history(service).newest().ordinal + 1;
        let lags = self.lags.of(&self.services[service].lag_draws, change);
        let (tick, now) = (self.tick, queue.now());
        let lags = lags.map(|lag| on_tick(now, lag, tick));
        let endpoints = told(&self.kube, service, self.by_name);
        let made = match self.syncs {
            Some(_) => self.rules.announce(service, &endpoints, now, lags).map(|_| ()),
            None => self.rules.commit(service, &endpoints, now, lags).map(|_| ()),
        };
        if let Err(error) = made {
            self.error = Some(error);
            return;
        }
        let version = self.rules.history(service).newest();
        match &mut self.syncs {
            Some(syncs) => syncs.announced(service, &self.rules, queue),
            None => queue.at(version.last_live, Event::LastNode(service)),
        }
        self.updates += self.lags.len() as u64;
        self.windows.changed(service, version, ServiceRules::names);
        // A Pod that was deleted before it was ever named may be named for want of others.
        for endpoint in version.content.all() {
            let pod = &self.kube.pods[endpoint.pod];
            if let Some((deleted, by)) = pod.deleted.zip(pod.deleted_by)
                && !self.windows.has(service, endpoint.pod)
            {
                self.windows.open(service, endpoint.pod, by, deleted);
            }
        }
    }

    /// Notes that changes of `service` have a time on every node.
    fn settled(&mut self, service: ServiceId, queue: &mut EventQueue<Event>) {
        let now = queue.now();
        let untold = self.untold[service];
        let versions = self.rules.history(service).iter();
        let settled = versions.filter(|version| version.is_settled() && version.ordinal >= untold);
        let times: BTreeSet<SimTime> = settled.map(|version| version.last_live.max(now)).collect();
        for live in times {
            queue.at(live, Event::LastNode(service));
        }
    }

    /// Sends what Pods want to send and accounts for what ended, until nothing is left to do.
    fn flush(&mut self, queue: &mut EventQueue<Event>, recorder: &mut dyn Recorder) {
        loop {
            let mut outlet = std::mem::take(&mut self.outlet);
            if outlet.is_empty() {
                self.outlet = outlet;
                return;
            }
            for (sender, packet) in outlet.packets.drain(..) {
                match sender {
                    Sender::Pod(pod) => self.send(pod, packet, queue),
                    Sender::Node(node) => self.send_local(node, packet, queue),
                }
            }
            for key in outlet.dials.drain(..) {
                self.dial(key, queue);
            }
            for (key, outcome) in outlet.ended.drain(..) {
                self.account(key, outcome, queue.now(), recorder);
            }
            for key in outlet.over.drain(..) {
                if let Some(connection) = self.traffic.connections.get(key) {
                    self.rules.close(connection.client.node, key.to_packet_id());
                }
                self.traffic.reap(key);
            }
            for pod in outlet.idle.drain(..) {
                if self.kube.is_draining(pod) && self.traffic.served_by(pod) == 0 {
                    self.kube.drained(pod, queue, &mut self.effects);
                }
            }
            outlet.append(&mut self.outlet);
            self.outlet = outlet;
            self.apply_effects(queue);
        }
    }

    fn send(&mut self, pod: PodId, packet: Packet, queue: &mut EventQueue<Event>) {
        let state = &self.kube.pods[pod];
        let Some(placement) = state.placement.filter(|_| state.has_namespace()) else {
            return;
        };
        let node = placement.node;
        self.rules.prepare(node, queue.now(), &packet, self.fabric.netns_mut(node));
        let Some(packet) = self.leave_pod(node, packet, queue) else {
            return;
        };
        let rules = self.rules.at(node, queue.now(), &packet);
        let mut draws = PacketDraws::new(&mut self.traffic, packet.id, node);
        let passage = self.fabric.send(node, packet, &rules, &mut draws, queue);
        let is_syn = packet.tcp_flags() == Some(TcpFlags::SYN);
        if is_syn {
            self.traffic.passed(packet.id, self.fabric.evaluated);
        }
        if let Passage::Travelling(rule, sent) = &passage
            && is_syn
        {
            self.chosen((node, queue.now()), *rule, sent);
        }
        self.on_passage(passage, queue);
    }

    /// Lets the programs at a Pod's device translate a packet, where there are any.
    fn leave_pod(
        &mut self,
        node: NodeId,
        packet: Packet,
        queue: &mut EventQueue<Event>,
    ) -> Option<Packet> {
        if !self.rules.translates_packets() {
            return Some(packet);
        }
        let now = queue.now();
        let mut draws = PacketDraws::new(&mut self.traffic, packet.id, node);
        match self.rules.from_pod((node, now), packet, &mut draws) {
            Ok((sent, chosen)) => {
                if let Some((port, endpoint)) = chosen
                    && packet.tcp_flags() == Some(TcpFlags::SYN)
                {
                    let key = Key::from_packet_id(packet.id);
                    self.choose(key, (port, endpoint.pod), sent.tuple, (node, now));
                }
                Some(sent)
            }
            Err(NoEndpoint) => {
                self.traffic.met(packet.id, Met { cause: Cause::Rejected, stale_for: None });
                // Cilium: bpf/lib/nodeport.h, tail_no_service_ipv4: from the Service's address
                let from = packet.tuple.dst();
                let error = Packet::icmp_error(&packet, IcmpError::PortUnreachable, from);
                if let IpAddr::V4(client) = packet.tuple.src() {
                    self.reach(node, client, error, queue);
                }
                None
            }
        }
    }

    /// Sends a packet of a process on `node`.
    fn send_local(&mut self, node: NodeId, packet: Packet, queue: &mut EventQueue<Event>) {
        let rules = self.rules.at(node, queue.now(), &packet);
        let mut draws = PacketDraws::new(&mut self.traffic, packet.id, node);
        let passage = self.fabric.send_local(node, packet, &rules, &mut draws, queue);
        if packet.tcp_flags() == Some(TcpFlags::SYN) {
            self.traffic.passed(packet.id, self.fabric.evaluated);
        }
        self.on_passage(passage, queue);
    }

    /// Lets a node's process dial the endpoint whose turn it is.
    fn dial(&mut self, key: Key, queue: &mut EventQueue<Event>) {
        let Some((node, client, dials)) = self.traffic.relayed(key) else {
            return;
        };
        let Some(connection) = self.traffic.connections.get(key) else {
            return;
        };
        let target = self.targets[connection.group];
        self.rules.catch_up(target.0, node, queue.now(), self.fabric.netns_mut(node));
        let caller = Caller { client, again: dials > 0 };
        let lags = &self.lags;
        let order = &self.services[target.0].order_draws;
        let draw = |change, k| order.draw(lags.key(node), change, 0, k);
        let now = queue.now();
        let Some((port, endpoint)) = self.rules.next_endpoint(target, (node, now), caller, draw)
        else {
            return self.traffic.no_endpoint(key, &mut self.outlet);
        };
        let source = self.fabric.source_address(node, endpoint.addr);
        let from = self.traffic.relay_port(node);
        let to = Tuple::v4(Protocol::TCP, source, from, endpoint.addr, endpoint.port);
        self.choose(key, (port, endpoint.pod), to, (node, now));
        self.traffic.dial(key, to, queue, &mut self.outlet);
    }

    /// Notes the endpoint that rules, or a node's IPVS, chose for an attempt.
    fn chosen(&mut self, at: (NodeId, SimTime), rule: Option<RuleRef>, sent: &Packet) {
        let key = Key::from_packet_id(sent.id);
        let Some(connection) = self.traffic.connections.get(key) else {
            return;
        };
        let (service, _) = self.targets[connection.group];
        if let Some(choice) = self.rules.chosen(service, at, rule, sent) {
            self.choose(key, choice, sent.tuple, at);
        }
    }

    /// Notes the endpoint that was chosen for an attempt, and the tuple that leads to it.
    fn choose(
        &mut self,
        key: Key,
        (port, endpoint): (ServicePortId, PodId),
        tuple: Tuple,
        (node, now): (NodeId, SimTime),
    ) {
        let Some(connection) = self.traffic.connections.get_mut(key) else {
            return;
        };
        let (service, _) = self.targets[connection.group];
        if connection.endpoint == Some(endpoint) {
            return;
        }
        connection.chosen = Some((now, connection.syns == 1));
        let before = connection.endpoint.replace(endpoint);
        connection.endpoint_tuple = Some(tuple);
        connection.rule = Some(port);
        if before.is_none() {
            let (first, ordinal, endpoints) = self.rules.choices(port, node, now);
            self.choices.forget_before(port, first);
            self.choices.add((port, ordinal), endpoints, endpoint);
        }
        if let Some(before) = before
            && let Some(window) = self.windows.ended(service, before)
        {
            self.windows.try_close(window, self.rules.history(service), now);
            self.report_windows(service, now);
        }
        self.windows.chosen(service, endpoint);
    }
}

/// Draws of the attempt that a packet belongs to, for the node that looks at it.
struct PacketDraws<'a> {
    traffic: &'a mut Traffic,
    key: Key,
    node: NodeId,
}

impl<'a> PacketDraws<'a> {
    fn new(traffic: &'a mut Traffic, id: u64, node: NodeId) -> PacketDraws<'a> {
        PacketDraws { traffic, key: Key::from_packet_id(id), node }
    }
}

impl Draws for PacketDraws<'_> {
    /// Draws are numbered through the whole attempt: a SYN that is sent again and finds no entry
    /// draws anew.
    fn draw(&mut self, _: u32) -> u64 {
        self.traffic.draw(self.key, self.node)
    }
}

/// Returns a Service's endpoints as proxies are told of them: in the order of their addresses, or
/// of their Pods' names.
fn told(kube: &ControlPlane, service: ServiceId, by_name: bool) -> ServiceEndpoints {
    let mut ports = kube.services[service].endpoints.clone();
    if by_name {
        for endpoints in &mut ports {
            let mut list = endpoints.to_vec();
            list.sort_by(|a, b| kube.pods[a.pod].name.cmp(&kube.pods[b.pod].name));
            *endpoints = list.into();
        }
    }
    ports
}

/// Returns a lag that ends at a whole tick.
fn on_tick(now: SimTime, lag: Duration, tick: Duration) -> Duration {
    let at = (now + lag).as_nanos();
    let tick = u64::try_from(tick.as_nanos()).unwrap_or(u64::MAX);
    match at.checked_next_multiple_of(tick) {
        Some(whole) => Duration::from_nanos(whole - now.as_nanos()),
        None => lag,
    }
}

fn node_name(node: NodeId) -> Name {
    format!("node-{}", node.index()).into()
}
