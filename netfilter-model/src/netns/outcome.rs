//! What becomes of packets.

use std::net::IpAddr;

use crate::conntrack::{CtInfo, Direction};
use crate::device::DeviceId;
use crate::hook::Hook;
use crate::packet::Packet;
use crate::rule::{RuleRef, TableId};

/// Proof that a value was made here, and so that its packet has passed the hooks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Seal;

/// A packet that has passed POSTROUTING and leaves by a device.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub struct Egress {
    /// The packet as it leaves.
    pub packet: Packet,
    /// The device.
    pub dev: DeviceId,
    /// The port of the bridge, for a frame that came in by another one and was not routed.
    pub port: Option<DeviceId>,
    /// The neighbour.
    pub next_hop: IpAddr,
    /// If the packet came in pieces, the length of the longest: it is cut so again.
    pub piece_max: u16,
    /// What connection tracking said about it.
    pub ct: Option<(CtInfo, Direction)>,
    /// The nat rule that chose its connection's destination.
    pub dnat: Option<RuleRef>,
    /// How many rules a linear walk looks at.
    pub evaluated: u32,
    pub(super) seal: Seal,
}

/// A packet that has passed INPUT and goes to a socket.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub struct Delivery {
    /// The packet as the socket sees it.
    pub packet: Packet,
    /// The device that it came in by; the loopback device for a packet made here.
    pub in_dev: DeviceId,
    /// What connection tracking said about it.
    pub ct: Option<(CtInfo, Direction)>,
    /// The nat rule that chose its connection's destination.
    pub dnat: Option<RuleRef>,
    /// How many rules a linear walk looks at.
    pub evaluated: u32,
    pub(super) seal: Seal,
}

/// A packet that got no further.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub struct Drop {
    /// The packet as it was then.
    pub packet: Packet,
    /// The last hook that it reached.
    pub hook: Hook,
    /// Why.
    pub reason: DropReason,
    /// What connection tracking said about it.
    pub ct: Option<(CtInfo, Direction)>,
    /// The nat rule that chose its connection's destination.
    pub dnat: Option<RuleRef>,
    /// How many rules a linear walk looks at.
    pub evaluated: u32,
}

/// Why a packet got no further.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DropReason {
    /// A DROP rule.
    Rule(RuleRef),
    /// A REJECT rule. Whether the sender was told is another matter: answers are limited.
    Reject(RuleRef),
    /// The policy of a chain of the table at the hook dropped it.
    Policy(TableId),
    /// The walk was given up at this rule: it had looked at
    /// [`RULES_MAX`](crate::traverse::RULES_MAX) rules.
    Unfinished(RuleRef),
    /// MASQUERADE or REDIRECT found no address on the device.
    NoAddress(RuleRef),
    /// Its connection was masqueraded on another device than it now leaves by.
    DeviceChanged,
    /// Connection tracking has no room.
    TableFull,
    /// Another connection has its tuple.
    Clash,
    /// A virtual service has no real server for it.
    NoServer,
    /// The real server of its connection is gone, or the connection that it opens has to wait
    /// for the end of the one before.
    ServerGone,
    /// An unreachable route.
    Unreachable,
    /// A prohibit route.
    Prohibited,
    /// A blackhole route, or a packet refused silently by routing.
    Blackhole,
    /// No route.
    NoRoute,
    /// Its hops are used up.
    TtlExpired,
    /// A fragment: it waits for the others of its packet, and goes on as a part of it.
    Incomplete,
}

/// What the sender of a dropped packet is told, having passed OUTPUT and POSTROUTING.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// It leaves by a device.
    Sent(Egress),
    /// The sender is on this host.
    Local(Delivery),
}

/// A dropped packet whose sender is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rejection {
    /// The packet.
    pub drop: Drop,
    /// What its sender is told.
    pub answer: Answer,
}

/// What became of a packet.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
#[allow(clippy::large_enum_variant)]
pub enum Outcome {
    /// It leaves by a device.
    Sent(Egress),
    /// It goes to a socket here.
    Local(Delivery),
    /// It got no further, silently.
    Dropped(Drop),
    /// It got no further, and its sender is told.
    Rejected(Box<Rejection>),
}

/// A packet that got no further, told or not.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
#[allow(clippy::large_enum_variant)]
pub enum Stopped {
    /// Silently.
    Dropped(Drop),
    /// Its sender is told.
    Rejected(Box<Rejection>),
}

impl Outcome {
    /// Returns how many rules a linear walk looks at until then.
    pub fn evaluated(&self) -> u32 {
        match self {
            Outcome::Sent(egress) => egress.evaluated,
            Outcome::Local(delivery) => delivery.evaluated,
            Outcome::Dropped(drop) => drop.evaluated,
            Outcome::Rejected(rejection) => rejection.drop.evaluated,
        }
    }
}

impl From<Stopped> for Outcome {
    fn from(stopped: Stopped) -> Outcome {
        match stopped {
            Stopped::Dropped(drop) => Outcome::Dropped(drop),
            Stopped::Rejected(rejection) => Outcome::Rejected(rejection),
        }
    }
}

impl DropReason {
    /// Returns the rule, if a rule is the reason.
    pub fn rule(&self) -> Option<RuleRef> {
        match self {
            DropReason::Rule(rule)
            | DropReason::Reject(rule)
            | DropReason::Unfinished(rule)
            | DropReason::NoAddress(rule) => Some(*rule),
            _ => None,
        }
    }
}
