//! The sync loops of all nodes of a simulated cluster.
//!
//! Nothing is scheduled when a change is committed but the sync that takes it, and a sync takes
//! all changes that its node has been told of. When a sync starts, all its times are known, and
//! the versions that it takes get theirs at once ([`DataPlane::apply`]).

use std::collections::{BTreeMap, VecDeque};

use super::cost::{Backend, Rules, SyncCost, Tally, Work};
use super::lock::Contender;
use super::proxier::{Counts, Proxier, Settings, Table};
use crate::config::{IptablesBackend, Pipeline, ProxyConfig, ProxyMode};
use crate::engine::queue::Schedule;
use crate::engine::rng::{Seed, Stream, unit};
use crate::ids::{Id, IdVec, NodeId, ServiceId};
use crate::kube::object::SyncSettings;
use crate::propagation::Applied;
use crate::proxy::plane::{DataPlane, PlaneError};
use crate::proxy::profile::Profile;
use crate::time::SimTime;

/// Something that happens in a proxy's loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A sync of this node is due, unless it has been moved.
    Due(NodeId),
}

impl Event {
    /// The kinds of events.
    pub const KINDS: [&str; 1] = ["sync"];

    /// Returns the index of the event's kind and what it concerns.
    pub fn kind(self) -> (usize, usize) {
        let Event::Due(node) = self;
        (0, node.index())
    }
}

/// The sync loops of all nodes.
#[derive(Debug)]
pub struct Nodes {
    nodes: IdVec<NodeId, Node>,
    /// Changes that some node does not have, in the order in which they were committed.
    commits: VecDeque<(ServiceId, u32)>,
    /// The number of the first of them.
    first: u64,
    /// Rules that do not depend on Services.
    fixed: Rules,
    failure: f64,
    failure_draws: Stream,
}

#[derive(Debug)]
struct Node {
    proxier: Proxier,
    /// What stands for its name in a position.
    key: u64,
    /// The Services as its rules have them.
    tally: Tally,
    /// The number of the first change that it may not have.
    cursor: u64,
    /// When the next event comes for it.
    scheduled: SimTime,
}

/// What a sync has brought.
#[derive(Debug, Default)]
pub struct Settled {
    /// Services with a change that every node has or will have.
    pub services: Vec<ServiceId>,
}

impl Nodes {
    /// Returns the loops of proxies that hold what `plane` began with; `keys` stand for the nodes'
    /// names.
    pub fn new(
        proxy: &ProxyConfig,
        pipeline: &Pipeline,
        keys: &[u64],
        plane: &mut DataPlane,
        seed: &Seed,
    ) -> Result<Nodes, PlaneError> {
        let settings = settings(proxy, pipeline);
        let phase_draws = seed.stream("proxy/phase");
        let mut tally = plane.tally();
        if pipeline.others.count > 0 {
            tally += plane.tally_of(pipeline.others.endpoints)?.times(pipeline.others.count.into());
        }
        let node = |&key: &u64| {
            let part = |purpose| unit(phase_draws.draw(key, 0, purpose, 0));
            let mut settings = settings.clone();
            settings.phase = super::proxier::BUFFER.mul_f64(part(0));
            if let Some(contender) = &mut settings.contender {
                contender.phase = contender.every.mul_f64(part(1));
            }
            let proxier = Proxier::idle(settings, part(2));
            Node { proxier, key, tally, cursor: 0, scheduled: SimTime::MAX }
        };
        Ok(Nodes {
            nodes: keys.iter().map(node).collect(),
            commits: VecDeque::new(),
            first: 0,
            fixed: plane.fixed_rules(),
            failure: pipeline.failure,
            failure_draws: seed.stream("proxy/failure"),
        })
    }

    /// Schedules the first syncs.
    pub fn start(&mut self, schedule: &mut impl Schedule<Event>) {
        for node in self.nodes.ids() {
            self.schedule(node, schedule);
        }
    }

    /// Notes that the newest version of `service` was announced.
    pub fn announced(
        &mut self,
        service: ServiceId,
        plane: &DataPlane,
        schedule: &mut impl Schedule<Event>,
    ) {
        let version = plane.history(service).newest();
        self.commits.push_back((service, version.ordinal));
        for (id, node) in self.nodes.iter_mut() {
            if let Some(stages) = version.stages(id) {
                node.proxier.request(stages.informed);
            }
            node.schedule(id, schedule);
        }
    }

    /// Restarts the proxy of a node, which has listed everything at `listed`.
    pub fn restart(
        &mut self,
        id: NodeId,
        listed: SimTime,
        plane: &mut DataPlane,
        schedule: &mut impl Schedule<Event>,
    ) {
        if self.nodes.get(id).is_none() {
            return; // nodes without a proxy
        }
        let node = &mut self.nodes[id];
        node.proxier.restart(schedule.now());
        node.proxier.services_listed(listed);
        node.proxier.endpoints_listed(listed);
        node.scheduled = SimTime::MAX;
        node.schedule(id, schedule);
        plane.list(id, listed);
    }

    /// Removes the rules of a node.
    pub fn flush(
        &mut self,
        id: NodeId,
        plane: &mut DataPlane,
        schedule: &mut impl Schedule<Event>,
    ) {
        if self.nodes.get(id).is_none() {
            return;
        }
        plane.flush(id, schedule.now());
        self.nodes[id].proxier.flush(schedule.now());
        self.schedule(id, schedule);
    }

    /// Returns whether every proxy runs and none has lost its rules.
    pub fn are_settled(&self) -> bool {
        self.nodes.iter().all(|(_, node)| node.proxier.is_settled())
    }

    /// Returns the counts over all nodes.
    pub fn counts(&self) -> Counts {
        let mut total = Counts::default();
        self.nodes.iter().for_each(|(_, node)| total += *node.proxier.counts());
        total
    }

    /// Handles an event.
    pub fn on_event(
        &mut self,
        Event::Due(id): Event,
        plane: &mut DataPlane,
        schedule: &mut impl Schedule<Event>,
    ) -> Settled {
        let now = schedule.now();
        let mut settled = Settled::default();
        if self.nodes[id].proxier.due() <= now {
            self.sync(id, now, plane, &mut settled);
            self.nodes[id].scheduled = SimTime::MAX;
            self.schedule(id, schedule);
        }
        settled
    }

    fn sync(&mut self, id: NodeId, now: SimTime, plane: &mut DataPlane, settled: &mut Settled) {
        let batch = self.batch(id, now, plane);
        let (fixed, failure) = (self.fixed, self.failure);
        let node = &mut self.nodes[id];
        // What the node holds afterwards, and what has changed of it.
        let (mut after, mut changed) = (node.tally, Tally::default());
        for (&service, &ordinal) in &batch {
            let history = plane.history(service);
            after -= history.applied(id).content.tally();
            if let Some(version) = history.get(ordinal) {
                after += version.content.tally();
                changed += version.content.tally();
            }
        }
        let position = node.proxier.counts().syncs as u32;
        let fails = failure > 0.0
            && unit(self.failure_draws.draw(node.key, position & 0x3ff_ffff, 0, 0)) < failure;
        let backend = node.proxier.settings().backend;
        let sync = node.proxier.sync(now, fails.then_some(Table::Nat), |full| {
            let mut held = fixed;
            held += after.held;
            let mut written = changed.held;
            written -= changed.shared;
            // In IPVS mode, every sync looks at everything and writes what differs.
            if full && backend != Backend::Ipvs {
                written = held;
            } else {
                written += fixed;
                written += after.shared;
            }
            let work = Work { full, services: after.services, held, written, ..Work::default() };
            (work, after.endpoints)
        });
        if let Some(live) = sync.nat {
            node.tally = after;
            if sync.full {
                plane.restore(id, live);
            }
        }
        let applied = Applied { start: now, filter: sync.filter, live: sync.nat };
        for (service, ordinal) in batch {
            if plane.apply(service, id, ordinal, &applied) {
                settled.services.push(service);
            }
        }
        self.forget(id, plane);
        self.ask_again(id, now, plane);
    }

    /// Returns, for each Service of which the node has been told something that it does not hold,
    /// the newest version that it was told of.
    fn batch(&self, id: NodeId, now: SimTime, plane: &DataPlane) -> BTreeMap<ServiceId, u32> {
        let mut batch = BTreeMap::new();
        for (service, ordinal, informed) in self.pending(id, plane) {
            if informed <= now {
                batch.insert(service, ordinal);
            }
        }
        batch
    }

    /// Returns the changes that the node does not hold, in order of commit, with the time at
    /// which it is told.
    fn pending<'a>(
        &'a self,
        id: NodeId,
        plane: &'a DataPlane,
    ) -> impl Iterator<Item = (ServiceId, u32, SimTime)> + 'a {
        let from = self.nodes[id].cursor.max(self.first) - self.first;
        self.commits.iter().skip(from as usize).filter_map(move |&(service, ordinal)| {
            let stages = plane.history(service).get(ordinal)?.stages(id)?;
            (stages.live == SimTime::MAX).then_some((service, ordinal, stages.informed))
        })
    }

    /// Moves the node's cursor past what it holds, and forgets what all nodes hold.
    fn forget(&mut self, id: NodeId, plane: &DataPlane) {
        let holds = |&(service, ordinal): &(ServiceId, u32)| {
            let version = plane.history(service).get(ordinal);
            version.is_none_or(|version| version.live(id) < SimTime::MAX)
        };
        let node = &mut self.nodes[id];
        node.cursor = node.cursor.max(self.first);
        let rest = self.commits.iter().skip((node.cursor - self.first) as usize);
        node.cursor += rest.take_while(|commit| holds(commit)).count() as u64;
        while let Some(&(service, ordinal)) = self.commits.front()
            && plane.history(service).get(ordinal).is_none_or(|version| version.is_settled())
        {
            self.commits.pop_front();
            self.first += 1;
        }
    }

    /// Asks for a sync for what the node is told after the last one started.
    fn ask_again(&mut self, id: NodeId, taken: SimTime, plane: &DataPlane) {
        let later: Vec<SimTime> = self
            .pending(id, plane)
            .map(|(.., informed)| informed)
            .filter(|&informed| informed > taken)
            .collect();
        let proxier = &mut self.nodes[id].proxier;
        later.into_iter().for_each(|informed| proxier.request(informed));
    }

    fn schedule(&mut self, id: NodeId, schedule: &mut impl Schedule<Event>) {
        self.nodes[id].schedule(id, schedule);
    }
}

impl Node {
    /// Schedules the sync that is due, if it is sooner than what is scheduled.
    fn schedule(&mut self, id: NodeId, schedule: &mut impl Schedule<Event>) {
        let due = self.proxier.due();
        if due < self.scheduled {
            self.scheduled = due;
            schedule.at(due.max(schedule.now()), Event::Due(id));
        }
    }
}

/// Returns how the proxies of a scenario run.
pub fn settings(proxy: &ProxyConfig, pipeline: &Pipeline) -> Settings {
    let backend = match (proxy.mode, pipeline.iptables_backend) {
        (ProxyMode::Nftables, _) => Backend::Nftables,
        (ProxyMode::Ebpf(_), _) => Backend::Ebpf,
        // What is not kube-proxy writes what differs, as often as it is told.
        (ProxyMode::Ipvs(_) | ProxyMode::Central(_) | ProxyMode::Article(_), _) => Backend::Ipvs,
        (ProxyMode::Iptables | ProxyMode::Userspace, IptablesBackend::Legacy) => {
            Backend::IptablesLegacy
        }
        (ProxyMode::Iptables | ProxyMode::Userspace, IptablesBackend::Nft) => Backend::IptablesNft,
    };
    let defaults = SyncSettings::default();
    let profile = Profile::from_minor(proxy.profile).unwrap_or_default();
    let min = pipeline.min_sync_period.unwrap_or(match backend {
        Backend::Ipvs | Backend::Ebpf => std::time::Duration::ZERO,
        _ => defaults.min_sync_period,
    });
    let period = pipeline.sync_period.unwrap_or(defaults.sync_period);
    Settings {
        cost: SyncCost::with(backend, &pipeline.cost),
        contender: pipeline.contender.map(|contender| Contender {
            every: contender.every,
            holds: contender.holds,
            phase: std::time::Duration::ZERO,
        }),
        ..Settings::new(backend, profile, min, period)
    }
}
