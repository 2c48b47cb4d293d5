//! The kubelets: a Pod's container from start to teardown.

use std::time::Duration;

use super::pod::{Phase, Placement};
use super::{ControlPlane, Effect, Event, LIFECYCLE, PROBE, timer};
use crate::config::OnSigterm;
use crate::engine::queue::Schedule;
use crate::ids::PodId;
use crate::time::SimTime;

/// Kubernetes: pkg/kubelet/kuberuntime, minimumGracePeriodInSeconds.
const MIN_GRACE: Duration = Duration::from_secs(2);

impl ControlPlane {
    pub(super) fn container_started(
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
        schedule.after(template.application.startup.sample(draw), Event::Listening(id));
        match template.readiness {
            Some(probe) => {
                let first = schedule.now() + probe.initial_delay;
                schedule.set_timer(timer(PROBE, id), first, Event::Probe(id));
            }
            None => self.became_ready(id, schedule, effects),
        }
    }

    pub(super) fn probe(
        &mut self,
        id: PodId,
        schedule: &mut impl Schedule<Event>,
        effects: &mut Vec<Effect>,
    ) {
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
    pub(super) fn next_probe(&self, id: PodId, now: SimTime) -> Option<SimTime> {
        let deployment = &self.deployments[self.deployment_of(id)?];
        let probe = deployment.spec.template.readiness?;
        let pod = &self.pods[id];
        let first = pod.started? + probe.initial_delay;
        if !pod.is_ready() || probe.period.is_zero() {
            return None;
        }
        if now < first {
            return Some(first);
        }
        let period = u64::try_from(probe.period.as_nanos()).ok()?;
        let passed = u64::try_from(now.saturating_since(first).as_nanos()).ok()? / period;
        Some(first + Duration::from_nanos((passed + 1) * period))
    }

    pub(super) fn became_ready(
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
        if pod.is_terminating() {
            self.update_endpoints(deployment, effects);
        } else if min_ready.is_zero() {
            self.became_available(id, schedule, effects);
        } else {
            schedule.after(min_ready, Event::Available(id));
            self.update_endpoints(deployment, effects);
        }
    }

    pub(super) fn became_available(
        &mut self,
        id: PodId,
        schedule: &mut impl Schedule<Event>,
        effects: &mut Vec<Effect>,
    ) {
        if self.pods[id].is_terminating() {
            return;
        }
        self.pods[id].available = true;
        self.unavailable -= 1;
        if let Some(deployment) = self.deployment_of(id) {
            self.sync(deployment, schedule, effects);
        }
    }

    pub(super) fn notice(&mut self, id: PodId, schedule: &mut impl Schedule<Event>) {
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

    pub(super) fn sigterm(
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
        let left = grace.saturating_sub(template.pre_stop.unwrap_or_default()).max(MIN_GRACE);
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

    pub(super) fn stop_accepting(&mut self, id: PodId, now: SimTime) {
        let pod = &mut self.pods[id];
        pod.listening = false;
        pod.stopped.get_or_insert(now);
    }

    pub(super) fn exit(
        &mut self,
        id: PodId,
        schedule: &mut impl Schedule<Event>,
        effects: &mut Vec<Effect>,
    ) {
        let Some(deployment) = self.deployment_of(id) else {
            return;
        };
        let pod = &mut self.pods[id];
        assert!(pod.phase != Phase::Gone, "{} exits after its sandbox is gone", pod.name);
        pod.phase = Phase::Exited;
        pod.ready_since = None;
        schedule.clear_timer(timer(LIFECYCLE, id));
        schedule.clear_timer(timer(PROBE, id));
        let draw = self.deployments[deployment].teardown_draws.draw(pod.ordinal, 0, 0, 0);
        schedule.after(self.kubelet.teardown.sample(draw), Event::Released(id));
        self.update_endpoints(deployment, effects);
    }

    pub(super) fn release(
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
        self.sync(deployment, schedule, effects);
    }
}
