//! Pods: what the API server, the kubelet and the network know of one.

use std::net::Ipv4Addr;

use crate::ids::{ClientId, DeploymentId, NodeId};
use crate::record::{Name, OpenedBy};
use crate::time::SimTime;

/// A Pod, live or gone.
#[derive(Clone, Debug)]
pub struct Pod {
    /// Name.
    pub name: Name,
    /// Who made it.
    pub owner: Owner,
    /// Its number among the Pods of its owner, from 0.
    pub ordinal: u64,
    /// Which template of its Deployment it was made from.
    pub revision: u32,
    /// When it was created.
    pub created: SimTime,
    /// Where it runs, once it is scheduled.
    pub placement: Option<Placement>,
    /// What its container is doing.
    pub phase: Phase,
    /// When its container started.
    pub started: Option<SimTime>,
    /// Whether its application accepts connections.
    pub listening: bool,
    /// The Ready condition, with the time of its last change to true.
    pub ready_since: Option<SimTime>,
    /// Whether it has been Ready for its Deployment's `minReadySeconds`.
    pub available: bool,
    /// Probe results in a row that speak against the present Ready condition.
    pub probes_against: u32,
    /// When the API server accepted its deletion.
    pub deleted: Option<SimTime>,
    /// Why it was deleted.
    pub deleted_by: Option<OpenedBy>,
    /// When SIGTERM was sent, or would have been.
    pub sigterm: Option<SimTime>,
    /// When it stopped accepting connections for good.
    pub stopped: Option<SimTime>,
    /// When its address was released.
    pub released: Option<SimTime>,
}

/// Where a Pod runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placement {
    /// The node.
    pub node: NodeId,
    /// The address.
    pub addr: Ipv4Addr,
}

/// Who made a Pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    /// A Deployment, through its ReplicaSet.
    Deployment(DeploymentId),
    /// A group of clients.
    Client(ClientId),
}

/// What a Pod's container is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Not running yet.
    Pending,
    /// Running.
    Running,
    /// Ended; the network namespace is still there.
    Exited,
    /// The sandbox is gone and the address released.
    Gone,
}

impl Pod {
    /// Returns a Pod that nobody has placed yet.
    pub fn new(name: Name, owner: Owner, ordinal: u64, revision: u32, created: SimTime) -> Pod {
        Pod {
            name,
            owner,
            ordinal,
            revision,
            created,
            placement: None,
            phase: Phase::Pending,
            started: None,
            listening: false,
            ready_since: None,
            available: false,
            probes_against: 0,
            deleted: None,
            deleted_by: None,
            sigterm: None,
            stopped: None,
            released: None,
        }
    }

    /// Makes a placed Pod what it is at the start of a run: running, ready and available.
    pub fn settle(&mut self) {
        self.phase = Phase::Running;
        self.started = Some(self.created);
        self.ready_since = Some(self.created);
        self.available = true;
    }

    /// Returns whether the Ready condition is true.
    pub fn is_ready(&self) -> bool {
        self.ready_since.is_some()
    }

    /// Returns whether its deletion was accepted.
    pub fn is_terminating(&self) -> bool {
        self.deleted.is_some()
    }

    /// Returns whether its network namespace answers: it is scheduled and not torn down.
    pub fn has_namespace(&self) -> bool {
        self.placement.is_some() && self.phase != Phase::Gone
    }
}
