//! A run: all components, and what passes between them.

use std::net::Ipv4Addr;
use std::ops::ControlFlow;

use netfilter_model::host::Draws;
use netfilter_model::netns::DropReason;
use netfilter_model::packet::{Packet, TcpFlags};
use netfilter_model::rule::{Origin, ValidationError};

use crate::config::{Arrivals, Config};
use crate::engine::queue::EventQueue;
use crate::engine::rng::{Seed, Stream};
use crate::engine::{self, Fingerprint, LimitError, Stats};
use crate::event::Event;
use crate::ids::{ClientId, Id, IdVec, NodeId, PodId, ServiceId, ServicePortId, WindowId};
use crate::kube::{self, ControlPlane, Effect, SetupError};
use crate::net::fabric::{Fabric, Passage};
use crate::propagation::Lags;
use crate::proxy::iptables::{Iptables, ProxiedService, ServiceRules};
use crate::proxy::names;
use crate::record::{self, Cause, Counts, Ended, Name, OpenedBy, Recorder, Symptom};
use crate::time::SimTime;
use crate::traffic::connection::{Connection, Key};
use crate::traffic::{ClientPlace, GroupPlace, Host, Met, Outcome, Outlet, Traffic};
use crate::window::{Load, Windows, expected_lost, lateness};

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
    Rules(#[from] ValidationError),
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
    run_with(
        config,
        Seed::new(seed, replication),
        EventQueue::new(),
        recorder,
    )
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
    rules: Iptables,
    fabric: Fabric,
    traffic: Traffic,
    windows: Windows,
    lags: Lags,
    services: IdVec<ServiceId, ServiceTraffic>,
    /// The Service and the port's index that a client group sends to.
    targets: IdVec<ClientId, (ServiceId, usize)>,
    /// Whether every client is one for which windows have an expectation.
    has_expectation: bool,
    inside: Counts,
    outside: Counts,
    fingerprint: Fingerprint,
    effects: Vec<Effect>,
    outlet: Outlet,
    error: Option<ValidationError>,
    /// Whether the run goes on to its duration, since nothing else ends it.
    open_ended: bool,
}

#[derive(Debug)]
struct ServiceTraffic {
    name: Name,
    lag_draws: Stream,
    loads: Vec<Load>,
}

impl World {
    /// Returns the world of `config` before its first event.
    ///
    /// # Errors
    ///
    /// If the cluster cannot be set up.
    pub fn new(config: &Config, seed: &Seed) -> Result<World, RunError> {
        let kube = ControlPlane::new(config, seed)?;
        let proxied = kube.services.iter().map(|(_, service)| ProxiedService {
            name: service.spec.name.clone(),
            cluster_ip: service.cluster_ip,
            ports: service
                .spec
                .ports
                .iter()
                .map(|port| (port.name.clone(), port.port))
                .collect(),
            endpoints: service.endpoints.clone(),
        });
        let ranges = (0..config.cluster.nodes).filter_map(|node| kube::node_range(config, node));
        let rules = Iptables::new(&config.cluster, &config.proxy, ranges, proxied.collect())?;
        let targets: Vec<(ServiceId, usize)> = config
            .clients
            .iter()
            .map(|client| target(&kube, client))
            .collect::<Result<_, _>>()?;
        let places = places(config, &kube, &targets);
        let keys = (0..config.cluster.nodes).map(|node| {
            // The hash of the node's name, as a stream's key would be.
            seed.stream(&format!("node/node-{node}")).draw(0, 0, 0, 0)
        });
        let mut services: IdVec<ServiceId, ServiceTraffic> = kube
            .services
            .iter()
            .map(|(_, service)| ServiceTraffic {
                name: service.spec.name.to_string().into(),
                lag_draws: seed.stream(&format!("service/{}/lag", service.spec.name)),
                loads: Vec::new(),
            })
            .collect();
        for (client, &(service, port)) in config.clients.iter().zip(&targets) {
            let per_node_per_s = client.rate_per_s / f64::from(config.cluster.nodes);
            services[service].loads.push(Load {
                per_node_per_s,
                port,
            });
        }
        Ok(World {
            rules,
            fabric: Fabric::new(&config.cluster),
            traffic: Traffic::new(&config.clients, &places, seed),
            windows: Windows::new(kube.services.len()),
            lags: Lags::new(&config.propagation, keys.collect()),
            services,
            targets: targets.into_iter().collect(),
            has_expectation: config
                .clients
                .iter()
                .all(|client| client.arrivals == Arrivals::Poisson),
            inside: Counts::default(),
            outside: Counts::default(),
            fingerprint: Fingerprint::default(),
            effects: Vec::new(),
            outlet: Outlet::default(),
            error: None,
            open_ended: config.events.is_empty() && config.duration.is_some(),
            kube,
        })
    }

    /// Schedules the first events.
    pub fn start(&mut self, queue: &mut EventQueue<Event>) {
        self.kube.start(queue);
        self.traffic.start(queue);
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
                self.apply_effects(queue, recorder);
            }
            Event::Net(event) => self.on_net(event, queue),
            Event::Traffic(event) => self.on_traffic(event, queue, recorder),
            Event::LastNode(service) => self.close_windows(service, now),
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
            && self.windows.all_closed()
            && self.rules.last_live() <= now
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
            Net::Arrive(node, key) => {
                let packet = self.fabric.take(key);
                let rules = self.rules.at(node, queue.now());
                let mut draws = PacketDraws::new(&mut self.traffic, packet.id, node);
                let passage = self.fabric.arrive(node, packet, &rules, &mut draws, queue);
                self.on_passage(node, passage, queue);
            }
            Net::Deliver(node, key) => {
                let packet = self.fabric.take(key);
                if let std::net::IpAddr::V4(addr) = packet.tuple.dst() {
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
        let rules = self.rules.at(node, queue.now());
        let mut draws = PacketDraws::new(&mut self.traffic, packet.id, node);
        self.fabric
            .host_unreachable(node, &packet, &rules, &mut draws, queue);
    }

    fn on_passage(&mut self, node: NodeId, passage: Passage, queue: &mut EventQueue<Event>) {
        let (packet, cause) = match passage {
            Passage::Travelling(..) => return,
            Passage::Reached(node, addr, packet) => return self.reach(node, addr, packet, queue),
            Passage::Rejected(drop) => (drop.packet, Cause::Rejected),
            Passage::Dropped(drop) => (drop.packet, cause_of(drop.reason)),
            Passage::Lost(packet) => (packet, self.cause_of_loss(node, &packet)),
        };
        self.traffic.met(
            packet.id,
            Met {
                cause,
                stale_for: None,
            },
        );
    }

    /// Returns why nobody has a packet that left the cluster: its node had no rule for it, or the
    /// network has no place for it.
    fn cause_of_loss(&self, _: NodeId, packet: &Packet) -> Cause {
        let std::net::IpAddr::V4(dst) = packet.tuple.dst() else {
            return Cause::Link;
        };
        let is_service = self.rules.port_at((dst, packet.tuple.dst_part)).is_some();
        if is_service {
            Cause::NoRule
        } else {
            Cause::Link
        }
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
            self.traffic.met(
                packet.id,
                Met {
                    cause: Cause::Blackholed,
                    stale_for,
                },
            );
            self.fabric.resolve(node, packet, queue);
            return;
        };
        let deployment = self.kube.deployment_of(pod);
        let state = &self.kube.pods[pod];
        let is_syn = packet.tcp_flags() == Some(TcpFlags::SYN);
        if is_syn && !state.listening && deployment.is_some() {
            let stale_for = self.stale_for(packet.id);
            self.traffic.met(
                packet.id,
                Met {
                    cause: Cause::Refused,
                    stale_for,
                },
            );
        }
        let application = deployment.map(|id| {
            &self.kube.deployments[id]
                .spec
                .template
                .application
                .service_time
        });
        let host = Host {
            pod,
            listening: state.listening,
            service_time: application,
        };
        self.traffic
            .on_packet(host, &packet, queue, &mut self.outlet);
    }

    /// Returns for how long the endpoint that an attempt was sent to had not been accepting when
    /// the attempt was sent, if it had stopped by now.
    fn stale_for(&self, id: u64) -> Option<std::time::Duration> {
        let connection = self.traffic.connections.get(Key::from_packet_id(id))?;
        let stopped = self.kube.pods[connection.endpoint?].stopped?;
        Some(connection.sent.saturating_since(stopped))
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
                let place = |pod: PodId| {
                    let placement = kube.pods[pod].placement.expect("client Pods are placed");
                    ClientPlace {
                        pod,
                        node: placement.node,
                        addr: placement.addr,
                    }
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
        }
    }

    fn begin(&mut self, key: Key, queue: &mut EventQueue<Event>, recorder: &mut dyn Recorder) {
        let Some(connection) = self.traffic.connections.get_mut(key) else {
            return;
        };
        let (service, _) = self.targets[connection.group];
        connection.inside = self.windows.attempt(service);
        let counts = if connection.inside {
            &mut self.inside
        } else {
            &mut self.outside
        };
        counts.attempts += 1;
        if recorder.wants_detail() {
            recorder.attempt(queue.now());
        }
        self.traffic.begin(key, queue, &mut self.outlet);
    }

    fn apply_effects(&mut self, queue: &mut EventQueue<Event>, recorder: &mut dyn Recorder) {
        let mut effects = std::mem::take(&mut self.effects);
        while !effects.is_empty() {
            for effect in effects.drain(..) {
                self.apply(effect, queue, recorder);
            }
            std::mem::swap(&mut effects, &mut self.effects);
        }
        self.effects = effects;
    }

    fn apply(
        &mut self,
        effect: Effect,
        queue: &mut EventQueue<Event>,
        recorder: &mut dyn Recorder,
    ) {
        match effect {
            Effect::Deleted(pod, by) => self.open_windows(pod, by, queue.now()),
            Effect::EndpointsChanged(service) => self.commit(service, queue, recorder),
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
            Effect::Killed(pod) => self.traffic.reset_all(pod, &mut self.outlet),
            Effect::Released(_) => {}
        }
    }

    /// Opens a window for each Service that names `pod`, in its endpoints or on some node.
    fn open_windows(&mut self, pod: PodId, by: OpenedBy, now: SimTime) {
        for service in self.services.ids() {
            if self.rules.history(service).newest().content.names(pod) {
                self.windows.open(service, pod, by, now);
            }
        }
    }

    fn commit(
        &mut self,
        service: ServiceId,
        queue: &mut EventQueue<Event>,
        recorder: &mut dyn Recorder,
    ) {
        let now = queue.now();
        let change = self.rules.history(service).newest().ordinal + 1;
        let lags = self.lags.of(&self.services[service].lag_draws, change);
        let endpoints = &self.kube.services[service].endpoints;
        let version = match self.rules.commit(service, endpoints, now, lags) {
            Ok(version) => version,
            Err(error) => {
                self.error = Some(error);
                return;
            }
        };
        queue.at(version.last_live, Event::LastNode(service));
        self.windows.changed(service, version, ServiceRules::names);
        if recorder.wants_detail() {
            for node in (0..self.lags.len()).map(NodeId::from_index) {
                recorder.propagation(record::Propagation {
                    service: self.services[service].name.clone(),
                    change,
                    node: node_name(node),
                    endpoints_changed: now,
                    live: version.live(node),
                });
            }
        }
    }

    fn close_windows(&mut self, service: ServiceId, now: SimTime) {
        let history = self.rules.history(service);
        for id in self.windows.open_of(service) {
            self.windows.try_close(id, history, now);
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
            for (pod, packet) in outlet.packets.drain(..) {
                self.send(pod, packet, queue);
            }
            for (key, outcome) in outlet.ended.drain(..) {
                self.account(key, outcome, queue.now(), recorder);
            }
            for key in outlet.over.drain(..) {
                self.traffic.reap(key);
            }
            for pod in outlet.idle.drain(..) {
                if self.kube.is_draining(pod) && self.traffic.served_by(pod) == 0 {
                    self.kube.drained(pod, queue, &mut self.effects);
                }
            }
            outlet.append(&mut self.outlet);
            self.outlet = outlet;
            self.apply_effects(queue, recorder);
        }
    }

    fn send(&mut self, pod: PodId, packet: Packet, queue: &mut EventQueue<Event>) {
        let state = &self.kube.pods[pod];
        let Some(placement) = state.placement.filter(|_| state.has_namespace()) else {
            return;
        };
        let node = placement.node;
        let rules = self.rules.at(node, queue.now());
        let mut draws = PacketDraws::new(&mut self.traffic, packet.id, node);
        let passage = self.fabric.send(node, packet, &rules, &mut draws, queue);
        if let Passage::Travelling(Some(rule), sent) = &passage
            && packet.tcp_flags() == Some(TcpFlags::SYN)
        {
            self.chosen(packet.id, rule.origin, sent);
        }
        self.on_passage(node, passage, queue);
    }

    /// Notes the endpoint that DNAT chose for an attempt.
    fn chosen(&mut self, id: u64, rule: Origin, sent: &Packet) {
        let Some(connection) = self.traffic.connections.get_mut(Key::from_packet_id(id)) else {
            return;
        };
        let (service, _) = self.targets[connection.group];
        let endpoint = PodId::from_index(rule.item as usize);
        if connection.endpoint == Some(endpoint) {
            return;
        }
        let before = connection.endpoint.replace(endpoint);
        connection.endpoint_tuple = Some(sent.tuple);
        connection.rule = Some(rule.owner);
        if let Some(before) = before {
            self.windows.ended(service, before);
        }
        self.windows.chosen(service, endpoint);
    }

    fn account(&mut self, key: Key, outcome: Outcome, now: SimTime, recorder: &mut dyn Recorder) {
        let connection = self
            .traffic
            .connections
            .get(key)
            .expect("an attempt ends once");
        let (service, _) = self.targets[connection.group];
        let endpoint = connection.endpoint;
        let counts = if connection.inside {
            &mut self.inside
        } else {
            &mut self.outside
        };
        match outcome {
            Outcome::Answered => {
                if misdelivered(&self.kube, connection) {
                    counts.misdelivered += 1;
                    if let Some(pod) = endpoint {
                        self.windows.misdelivered(service, pod);
                    }
                }
            }
            Outcome::Lost(cause, symptom) => {
                counts.lost.add(cause);
                let stale_for = connection.stale_for();
                let dead = [Cause::Refused, Cause::Unreachable, Cause::Blackholed];
                let first_stale =
                    connection.attempt == 0 && stale_for.is_some() && dead.contains(&cause);
                let window =
                    endpoint.and_then(|pod| self.windows.lost(service, pod, cause, first_stale));
                if recorder.wants_detail() {
                    recorder.loss(self.loss(connection, cause, symptom, window, now));
                }
            }
        }
        if let Some(window) = endpoint.and_then(|pod| self.windows.ended(service, pod)) {
            let history = self.rules.history(service);
            self.windows.try_close(window, history, now);
        }
    }

    fn loss(
        &self,
        connection: &Connection,
        cause: Cause,
        symptom: Symptom,
        window: Option<WindowId>,
        now: SimTime,
    ) -> record::Loss {
        let group = &self.traffic.groups[connection.group];
        let port = self.rules.port_at(group.target).map(|(port, ..)| port);
        let service = port.map(|port| self.rules.port_name(port).clone());
        let endpoint = connection
            .endpoint_tuple
            .map(|tuple| (tuple.dst(), tuple.dst_part));
        let rule = connection.rule.zip(endpoint).map(|(owner, (addr, port))| {
            let name = self
                .rules
                .port_name(ServicePortId::from_index(owner as usize));
            match addr {
                std::net::IpAddr::V4(addr) => names::endpoint_chain(name, addr, port).into(),
                std::net::IpAddr::V6(_) => name.clone(),
            }
        });
        record::Loss {
            request: connection.request,
            attempt: connection.attempt,
            sent: connection.sent,
            ended: now,
            client: group.spec.name.as_str().into(),
            client_pod: self.kube.pods[connection.client.pod].name.clone(),
            node: node_name(connection.client.node),
            service: service.unwrap_or_else(|| group.spec.service.to_string().into()),
            rule,
            endpoint: endpoint.map(|(addr, port)| format!("{addr}:{port}").into()),
            cause,
            symptom,
            window: window.map(|window| window.index() as u32),
            stale_for: connection.stale_for(),
        }
    }

    /// Makes the records that are due at the end.
    pub fn finish(&mut self, stats: &Stats, recorder: &mut dyn Recorder) {
        self.windows.cut_all();
        let mut stale = 0;
        let mut expected = 0.0;
        for (id, window) in self.windows.iter() {
            let record = self.window_record(id, window, stats.end);
            stale += record.lost_first_stale.unwrap_or_default();
            expected += record.expected_lost.unwrap_or_default();
            recorder.window(record);
        }
        let unfinished = self.traffic.connections.open().count() as u64;
        let begun = self.inside.attempts + self.outside.attempts;
        let lost = self.inside.lost.total() + self.outside.lost.total();
        let traffic = &self.traffic;
        assert_eq!(
            begun,
            lost + traffic.requests_answered + unfinished,
            "attempts begun; {lost} lost, {} answered, {unfinished} open",
            traffic.requests_answered,
        );
        recorder.run(record::Run {
            ended: match stats.outcome {
                engine::Outcome::Reached => Ended::Duration,
                engine::Outcome::Drained | engine::Outcome::Stopped => Ended::Complete,
            },
            end: stats.end,
            events: stats.events,
            packets: self.fabric.sent,
            requests: traffic.requests,
            requests_lost: traffic.requests_lost,
            requests_unfinished: traffic.requests
                - traffic.requests_lost
                - traffic.requests_answered,
            inside: self.inside,
            outside: self.outside,
            unfinished,
            windows: self.windows.len() as u64,
            lost_first_stale: self.has_expectation.then_some(stale),
            expected_lost: self.has_expectation.then_some(expected),
            fingerprint: self.fingerprint.value(),
        });
    }

    fn window_record(
        &self,
        id: WindowId,
        window: &crate::window::Window,
        end: SimTime,
    ) -> record::Window {
        let pod = &self.kube.pods[window.pod];
        let service = &self.services[window.service];
        let history = self.rules.history(window.service);
        let nodes = || (0..self.lags.len()).map(NodeId::from_index);
        let reached = |time: SimTime| Some(time).filter(|&time| time <= end);
        let removed = window.removed_in.and_then(|version| history.get(version));
        let late = removed.map(|version| lateness(version, pod.stopped, nodes()));
        let last = late.and_then(|late| reached(late.last));
        let home = pod.placement.map(|placement| placement.node);
        let expected = match pod.stopped {
            Some(stop) => expected_lost(
                window,
                stop,
                history,
                nodes(),
                &service.loads,
                |rules: &ServiceRules, port| {
                    let endpoints = rules.endpoints(port);
                    let named = endpoints.iter().any(|endpoint| endpoint.pod == window.pod);
                    named.then_some(endpoints.len())
                },
                |node| self.fabric.latency(node, home?),
                end,
            ),
            None => 0.0,
        };
        let (attempts, attempts_to_pod, lost, misdelivered, lost_first_stale) = window.counts();
        record::Window {
            window: id.index() as u32,
            opened_by: window.opened_by,
            service: service.name.clone(),
            pod: pod.name.clone(),
            node: home.map_or_else(|| "".into(), node_name),
            opened: window.opened,
            endpoints_changed: removed.map(|version| version.commit),
            stopped_accepting: pod.stopped,
            ip_released: pod.released,
            first_node: late.and_then(|late| reached(late.first)),
            last_node: last,
            closed: window.closed,
            stale_mean_s: last.and(late).map(|late| late.mean_s),
            stale_max_s: last.and(late).map(|late| late.max_s),
            attempts,
            attempts_to_pod,
            lost,
            misdelivered,
            lost_first_stale: self.has_expectation.then_some(lost_first_stale),
            expected_lost: self.has_expectation.then_some(expected),
        }
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
        PacketDraws {
            traffic,
            key: Key::from_packet_id(id),
            node,
        }
    }
}

impl Draws for PacketDraws<'_> {
    /// Draws are numbered through the whole attempt: a SYN that is sent again and finds no entry
    /// draws anew.
    fn draw(&mut self, _: u32) -> u64 {
        self.traffic.draw(self.key, self.node)
    }
}

/// Returns the cause that a packet's drop stands for.
fn cause_of(reason: DropReason) -> Cause {
    match reason {
        DropReason::Rule(_) | DropReason::Policy(_) | DropReason::NoAddress(_) => Cause::Dropped,
        DropReason::TableFull | DropReason::Clash | DropReason::DeviceChanged => Cause::Conntrack,
        DropReason::Unreachable | DropReason::Prohibited | DropReason::NoRoute => {
            Cause::Unreachable
        }
        DropReason::Blackhole => Cause::Blackholed,
        DropReason::TtlExpired => Cause::Link,
    }
}

/// Returns whether an answered attempt was answered by another workload than its endpoint's.
fn misdelivered(kube: &ControlPlane, connection: &Connection) -> bool {
    let owner = |pod: Option<PodId>| pod.map(|pod| kube.pods[pod].owner);
    owner(connection.endpoint) != owner(connection.server_pod)
}

fn node_name(node: NodeId) -> Name {
    format!("node-{}", node.index()).into()
}

fn target(
    kube: &ControlPlane,
    client: &crate::config::ClientSpec,
) -> Result<(ServiceId, usize), SetupError> {
    let missing = || SetupError::Missing {
        what: "Service",
        name: format!("{}:{}", client.service, client.port),
    };
    let services = kube.services.iter();
    let mut found = services.filter(|(_, service)| service.spec.name == client.service);
    let (id, service) = found.next().ok_or_else(missing)?;
    let port = service
        .spec
        .ports
        .iter()
        .position(|port| port.port == client.port);
    Ok((id, port.ok_or_else(missing)?))
}

fn places(config: &Config, kube: &ControlPlane, targets: &[(ServiceId, usize)]) -> Vec<GroupPlace> {
    let nodes = config.cluster.nodes;
    let place = |(index, &(service, _)): (usize, &(ServiceId, usize))| GroupPlace {
        target: (
            kube.services[service].cluster_ip,
            config.clients[index].port,
        ),
        first_pod: PodId::from_index(index * nodes as usize),
        pods: nodes,
    };
    targets.iter().enumerate().map(place).collect()
}
