//! The Deployment controller's decision: how many Pods to make, which to delete.
//!
//! Kubernetes: pkg/controller/deployment/rolling.go; pkg/controller/controller_utils.go,
//! ActivePodsWithRanks.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::time::Duration;

use super::pod::Pod;
use crate::config::{IntOrPercent, Strategy};
use crate::ids::{NodeId, PodId};
use crate::time::SimTime;

/// What the controller does next.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// How many Pods of the present revision to create.
    pub create: u32,
    /// Pods to delete, in order.
    pub delete: Vec<PodId>,
}

/// What the controller looks at.
#[derive(Clone, Copy, Debug)]
pub struct Goal<'a> {
    /// The wanted number of Pods.
    pub replicas: u32,
    /// The present revision.
    pub revision: u32,
    /// How Pods are replaced.
    pub strategy: &'a Strategy,
}

/// Returns the most Pods above and below `replicas` that `strategy` allows.
pub fn surge_and_unavailable(strategy: &Strategy, replicas: u32) -> (u32, u32) {
    let Strategy::RollingUpdate { max_surge, max_unavailable } = strategy else {
        return (0, replicas);
    };
    let percent = |p: u32| u64::from(replicas) * u64::from(p);
    let surge = match *max_surge {
        IntOrPercent::Int(n) => n,
        IntOrPercent::Percent(p) => clamp(percent(p).div_ceil(100)),
    };
    let unavailable = match *max_unavailable {
        IntOrPercent::Int(n) => n,
        IntOrPercent::Percent(p) => clamp(percent(p) / 100),
    };
    // Kubernetes: ResolveFenceposts makes one Pod unavailable where both round to none.
    (surge, if surge == 0 && unavailable == 0 { 1 } else { unavailable })
}

fn clamp(n: u64) -> u32 {
    u32::try_from(n).unwrap_or(u32::MAX)
}

/// Returns what the controller does for a Deployment whose Pods, gone ones aside, are `pods`.
pub fn plan(goal: Goal<'_>, pods: &[(PodId, &Pod)], now: SimTime) -> Plan {
    let live = pods.iter().filter(|(_, pod)| !pod.is_terminating());
    let (new, old): (Vec<_>, Vec<_>) = live.partition(|(_, pod)| pod.revision == goal.revision);
    let available = |pods: &[&(PodId, &Pod)]| count(pods.iter().filter(|(_, pod)| pod.available));
    let (new_count, old_count) = (count(new.iter()), count(old.iter()));

    if new_count > goal.replicas {
        let surplus = (new_count - goal.replicas) as usize;
        return Plan { create: 0, delete: ranked(&new, now).into_iter().take(surplus).collect() };
    }
    if *goal.strategy == Strategy::Recreate {
        if old_count > 0 {
            return Plan { create: 0, delete: ranked(&old, now) };
        }
        let old_exists = pods.iter().any(|(_, pod)| pod.revision != goal.revision);
        let create = if old_exists { 0 } else { goal.replicas - new_count };
        return Plan { create, delete: Vec::new() };
    }

    let (surge, unavailable) = surge_and_unavailable(goal.strategy, goal.replicas);
    let room = (goal.replicas + surge).saturating_sub(new_count + old_count);
    let create = room.min(goal.replicas - new_count);
    let min_available = goal.replicas.saturating_sub(unavailable);
    // A Pod made in this step counts as existing and as unavailable: it changes nothing below.
    let new_available = available(&new);
    let old_available = available(&old);
    let may_go = (new_available + old_count).saturating_sub(min_available);
    let mut delete: Vec<PodId> = ranked(&old, now);
    let unhealthy = old_count - old_available;
    // Unhealthy old Pods first, then healthy ones as long as enough stay available.
    let healthy_may_go = (new_available + old_available).saturating_sub(min_available);
    let total = unhealthy.min(may_go) + healthy_may_go.min(old_available);
    delete.truncate(total as usize);
    Plan { create, delete }
}

fn count<T>(items: impl Iterator<Item = T>) -> u32 {
    u32::try_from(items.count()).expect("fewer than 2^32 pods")
}

/// Returns the Pods in the order in which a ReplicaSet deletes them: unscheduled, not ready, more
/// siblings on the node, Ready more recently (in powers of two of seconds), younger; names settle
/// the rest.
fn ranked(pods: &[&(PodId, &Pod)], now: SimTime) -> Vec<PodId> {
    let mut per_node: BTreeMap<NodeId, u32> = BTreeMap::new();
    let node = |pod: &Pod| pod.placement.map(|placement| placement.node);
    for node in pods.iter().filter_map(|(_, pod)| node(pod)) {
        *per_node.entry(node).or_default() += 1;
    }
    let mut order: Vec<_> = pods
        .iter()
        .map(|(id, pod)| {
            let siblings = node(pod).map_or(0, |node| per_node[&node]);
            let ready_for = pod.ready_since.map(|since| bucket(now.saturating_since(since)));
            let age = bucket(now.saturating_since(pod.created));
            (node(pod).is_some(), pod.is_ready(), Reverse(siblings), ready_for, age, &pod.name, *id)
        })
        .collect();
    order.sort();
    order.into_iter().map(|(.., id)| id).collect()
}

/// Kubernetes: KEP-2185 compares ages by their logarithm.
fn bucket(age: Duration) -> u32 {
    u64::BITS - age.as_secs().leading_zeros()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::{DeploymentId, Id};
    use crate::kube::pod::{Owner, Placement};

    fn pod(index: u32, revision: u32, ready: bool) -> Pod {
        let owner = Owner::Deployment(DeploymentId::from_index(0));
        let name = format!("pod-{index}").into();
        let mut pod = Pod::new(name, owner, u64::from(index), revision, SimTime::ZERO);
        let node = NodeId::from_index(index as usize);
        pod.placement = Some(Placement { node, addr: [10, 244, 0, 2].into() });
        pod.settle();
        if !ready {
            pod.ready_since = None;
            pod.available = false;
        }
        pod
    }

    fn rolling(surge: u32, unavailable: u32) -> Strategy {
        Strategy::RollingUpdate {
            max_surge: IntOrPercent::Int(surge),
            max_unavailable: IntOrPercent::Int(unavailable),
        }
    }

    /// Returns how many Pods are created and deleted with `old` ready and `new` (ready, not
    /// ready) Pods.
    #[track_caller]
    fn check(replicas: u32, strategy: &Strategy, old: u32, new: (u32, u32)) -> (u32, usize) {
        let pods: Vec<Pod> = (0..old)
            .map(|i| pod(i, 0, true))
            .chain((0..new.0).map(|i| pod(100 + i, 1, true)))
            .chain((0..new.1).map(|i| pod(200 + i, 1, false)))
            .collect();
        let listed: Vec<_> =
            pods.iter().enumerate().map(|(i, pod)| (PodId::from_index(i), pod)).collect();
        let goal = Goal { replicas, revision: 1, strategy };
        let plan = plan(goal, &listed, SimTime::from_nanos(1_000_000_000));
        (plan.create, plan.delete.len())
    }

    #[test]
    fn percentages_round_up_for_surge_and_down_for_unavailable() {
        let quarter = Strategy::RollingUpdate {
            max_surge: IntOrPercent::Percent(25),
            max_unavailable: IntOrPercent::Percent(25),
        };
        for (replicas, surge, unavailable) in
            [(1, 1, 0), (2, 1, 0), (3, 1, 0), (4, 1, 1), (10, 3, 2), (100, 25, 25)]
        {
            assert_eq!(surge_and_unavailable(&quarter, replicas), (surge, unavailable));
        }
        assert_eq!(surge_and_unavailable(&rolling(0, 0), 5), (0, 1));
    }

    #[test]
    fn a_rollout_starts_with_surge_and_unavailable_at_once() {
        assert_eq!(check(10, &rolling(3, 2), 10, (0, 0)), (3, 2));
        assert_eq!(check(10, &rolling(3, 2), 8, (0, 3)), (2, 0));
        assert_eq!(check(10, &rolling(3, 2), 8, (3, 2)), (0, 3));
        assert_eq!(check(10, &rolling(0, 1), 10, (0, 0)), (0, 1));
        assert_eq!(check(10, &rolling(0, 1), 9, (0, 0)), (1, 0));
        assert_eq!(check(10, &rolling(0, 1), 9, (1, 0)), (0, 1));
        assert_eq!(check(1, &rolling(1, 0), 1, (0, 0)), (1, 0));
        assert_eq!(check(1, &rolling(1, 0), 1, (1, 0)), (0, 1));
    }

    #[test]
    fn recreate_deletes_all_first() {
        assert_eq!(check(3, &Strategy::Recreate, 3, (0, 0)), (0, 3));
        assert_eq!(check(3, &Strategy::Recreate, 0, (0, 0)), (3, 0));
    }

    #[test]
    fn scaling_down_takes_unready_pods_first() {
        let pods = [pod(0, 1, true), pod(1, 1, false), pod(2, 1, true)];
        let listed: Vec<_> =
            pods.iter().enumerate().map(|(i, pod)| (PodId::from_index(i), pod)).collect();
        let goal = Goal { replicas: 2, revision: 1, strategy: &rolling(1, 0) };
        assert_eq!(plan(goal, &listed, SimTime::ZERO).delete, [PodId::from_index(1)]);
    }
}
