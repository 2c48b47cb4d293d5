//! The accounts: every attempt ends in one record, every window is reported once.

use std::net::SocketAddr;

use netfilter_model::conntrack::CtInfo;
use netfilter_model::netns::{Drop, DropReason};
use netfilter_model::tuple::Protocol;

use super::{World, node_name};
use crate::engine::{self, Stats};
use crate::ids::{Id, NodeId, PodId, ServiceId, WindowId};
use crate::kube::ControlPlane;
use crate::propagation::Version;
use crate::proxy::names;
use crate::proxy::plane::ServiceRules;
use crate::record::{self, Cause, Ended, Recorder, Symptom};
use crate::time::SimTime;
use crate::traffic::Outcome;
use crate::traffic::connection::{Connection, Key};
use crate::window::{Exposure, expected_lost, lateness};

impl World {
    /// Accounts for an attempt that has ended.
    pub(super) fn account(
        &mut self,
        key: Key,
        outcome: Outcome,
        now: SimTime,
        recorder: &mut dyn Recorder,
    ) {
        let connection = self.traffic.connections.get(key).expect("an attempt ends once");
        let (service, _) = self.targets[connection.group];
        let endpoint = connection.endpoint;
        let counts = if connection.inside { &mut self.inside } else { &mut self.outside };
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
                let first =
                    connection.attempt == 0 && connection.chosen.is_some_and(|(_, first)| first);
                let first_stale = first && stale_for.is_some() && dead.contains(&cause);
                let window =
                    endpoint.and_then(|pod| self.windows.lost(service, pod, cause, first_stale));
                if recorder.wants_detail() {
                    recorder.loss(self.loss(connection, cause, symptom, window, now));
                }
            }
        }
        if let Some(window) = endpoint.and_then(|pod| self.windows.ended(service, pod)) {
            let history = self.rules.history(service);
            if self.windows.try_close(window, history, now) {
                self.report_windows(service, now);
            }
        }
    }

    /// Closes the windows of `service` that can be closed.
    pub(super) fn close_windows(&mut self, service: ServiceId, now: SimTime) {
        let history = self.rules.history(service);
        for id in self.windows.open_of(service) {
            self.windows.try_close(id, history, now);
        }
        self.report_windows(service, now);
    }

    /// Makes the records of windows of which nothing more is to come, and forgets the versions
    /// that only they needed.
    pub(super) fn report_windows(&mut self, service: ServiceId, now: SimTime) {
        for id in self.windows.unreported_of(service) {
            let window = self.windows.get(id);
            if window.closed.is_some() && self.kube.pods[window.pod].released.is_some() {
                let record = self.window_record(id, now);
                self.windows.report(id, record);
            }
        }
        // A window looks back by the time that a packet is on its way to the Pod.
        let look_back = self.fabric.greatest_latency().as_nanos();
        let needed = self.windows.first_unreported(service).unwrap_or(now).as_nanos();
        let look_back = u64::try_from(look_back).unwrap_or(u64::MAX);
        let before = SimTime::from_nanos(needed.saturating_sub(look_back));
        if self.rules.forgets_clients_before(service, before) {
            for node in self.fabric.machines() {
                self.rules.catch_up(service, node, now, self.fabric.netns_mut(node));
            }
        }
        self.rules.forget_before(service, before);
    }

    /// Tells when the changes of `service` went live that have done so everywhere by `now`.
    pub(super) fn report_changes(
        &mut self,
        service: ServiceId,
        now: SimTime,
        recorder: &mut dyn Recorder,
    ) {
        let history = self.rules.history(service);
        while let Some(version) = history.get(self.untold[service])
            && version.last_live <= now
        {
            if recorder.wants_detail() {
                self.report_change(service, version, now, recorder);
            }
            self.untold[service] += 1;
        }
    }

    fn report_change(
        &self,
        service: ServiceId,
        version: &Version<ServiceRules>,
        now: SimTime,
        recorder: &mut dyn Recorder,
    ) {
        for node in (0..self.lags.len()).map(NodeId::from_index) {
            let live = version.live(node);
            if live <= now {
                recorder.propagation(record::Propagation {
                    service: self.services[service].name.clone(),
                    change: version.ordinal,
                    node: if self.rules.is_central() {
                        "load-balancer".into()
                    } else {
                        node_name(node)
                    },
                    endpoints_changed: version.commit,
                    live,
                    stages: version.stages(node).map(|stages| record::Stages {
                        informed: stages.informed,
                        sync_start: stages.sync_start,
                        filter_live: stages.filter,
                    }),
                });
            }
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
        let endpoint = connection.endpoint_tuple.map(|tuple| (tuple.dst(), tuple.dst_part));
        let rule = connection.rule.zip(endpoint).map(|(service_port, (addr, port))| {
            if let Some(frontend) = self.rules.frontend(service_port) {
                return frontend.to_string().into();
            }
            let name = self.rules.port_name(service_port);
            let endpoint = SocketAddr::new(addr, port).to_string();
            if let Some(server) = self.rules.virtual_server(service_port) {
                return format!("-t {server} -r {endpoint}").into();
            }
            names::endpoint_chain(name, Protocol::TCP, &endpoint).into()
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
        if recorder.wants_detail() {
            for service in self.services.ids() {
                let untold = self.untold[service];
                let versions = self.rules.history(service).iter();
                for version in versions.filter(|version| version.ordinal >= untold) {
                    self.report_change(service, version, stats.end, recorder);
                }
            }
        }
        for id in self.windows.unreported() {
            let record = self.window_record(id, stats.end);
            self.windows.report(id, record);
        }
        let windows = self.windows.take_records();
        let count = windows.len() as u64;
        let mut stale = 0;
        let mut expected = 0.0;
        for record in windows {
            stale += record.lost_first_stale.unwrap_or_default();
            expected += record.expected_lost.unwrap_or_default();
            recorder.window(record);
        }
        let unfinished = self.traffic.connections.open().count() as u64;
        let begun = self.inside.attempts + self.outside.attempts;
        let lost = self.inside.lost.total() + self.outside.lost.total();
        let traffic = &self.traffic;
        // A sum of expectations says nothing beside losses that have none.
        let called = |service: &ServiceId| !self.services[*service].loads.is_empty();
        let has_expectation = self.has_expectation
            && !self.services.ids().filter(called).any(|id| self.rules.has_affinity(id));
        assert_eq!(
            begun,
            lost + traffic.requests_answered + unfinished,
            "attempts begun; {lost} lost, {} answered, {unfinished} open",
            traffic.requests_answered,
        );
        let accepted = self.traffic.accepted as f64;
        let mean_hops = if accepted > 0.0 { self.traffic.hops as f64 / accepted } else { 0.0 };
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
            windows: count,
            holders: self.lags.len() as u32,
            updates: self.updates,
            accepted: self.traffic.accepted,
            hops: self.traffic.hops,
            rules_passed: self.traffic.rules as f64
                + accepted * self.rules.passed_of(self.others, mean_hops),
            lost_first_stale: has_expectation.then_some(stale),
            expected_lost: has_expectation.then_some(expected),
            fingerprint: self.fingerprint.value(),
            balance: self.choices.balance(),
            syncs: self.syncs.as_ref().map(|syncs| {
                let counts = syncs.counts();
                record::Syncs {
                    syncs: counts.syncs,
                    full: counts.full,
                    failed: counts.failed,
                    busy: counts.busy,
                    lock_wait: counts.waiting,
                }
            }),
        });
    }

    /// Returns the record of a window as of `end`.
    fn window_record(&self, id: WindowId, end: SimTime) -> record::Window {
        let window = self.windows.get(id);
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
                Exposure { stop, end, loads: &service.loads },
                history,
                nodes(),
                |rules: &ServiceRules, port| {
                    let endpoints = rules.endpoints(port);
                    let named = endpoints.iter().any(|endpoint| endpoint.pod == window.pod);
                    named.then_some(endpoints.len())
                },
                |node| self.fabric.latency(self.fabric.load_balancer().unwrap_or(node), home?),
            ),
            None => 0.0,
        };
        let (attempts, attempts_to_pod, lost, misdelivered, lost_first_stale) = window.counts();
        // There is no closed form for a window that was cut, nor for an address that another Pod
        // got while rules still named it.
        let has_expectation = self.has_expectation
            && !self.rules.has_affinity(window.service)
            && window.closed.is_some()
            && !self.kube.is_address_reused(window.pod);
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
            lost_first_stale: has_expectation.then_some(lost_first_stale),
            expected_lost: has_expectation.then_some(expected),
        }
    }
}

/// Returns the cause that a packet's drop stands for.
pub(super) fn cause_of(drop: &Drop) -> Cause {
    match drop.reason {
        // kube-proxy's rule against packets that connection tracking makes no sense of.
        DropReason::Rule(_) if drop.ct.is_some_and(|(info, _)| info == CtInfo::Invalid) => {
            Cause::Conntrack
        }
        DropReason::Rule(_)
        | DropReason::Policy(_)
        | DropReason::Unfinished(_)
        | DropReason::NoAddress(_) => Cause::Dropped,
        DropReason::Reject(_) | DropReason::NoServer => Cause::Rejected,
        DropReason::TableFull
        | DropReason::Clash
        | DropReason::DeviceChanged
        | DropReason::ServerGone => Cause::Conntrack,
        DropReason::Unreachable | DropReason::Prohibited | DropReason::NoRoute => {
            Cause::Unreachable
        }
        DropReason::Blackhole => Cause::Blackholed,
        DropReason::TtlExpired | DropReason::Incomplete => Cause::Link,
    }
}

/// Returns whether an answered attempt was answered by another workload than its endpoint's.
fn misdelivered(kube: &ControlPlane, connection: &Connection) -> bool {
    let owner = |pod: Option<PodId>| pod.map(|pod| kube.pods[pod].owner);
    owner(connection.endpoint) != owner(connection.server_pod)
}
