//! What is remembered of one connection.

use std::time::Duration;

use super::tcp::{Known, TcpState, TcpTrack};
use crate::device::DeviceId;
use crate::rule::RuleRef;
use crate::time::SimTime;
use crate::tuple::{Side, Tuple};

/// Which way a packet goes, seen from the connection's first packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Direction {
    /// As the first packet.
    Original,
    /// As its answer.
    Reply,
}

impl Direction {
    /// Returns the other direction.
    pub const fn other(self) -> Direction {
        match self {
            Direction::Original => Direction::Reply,
            Direction::Reply => Direction::Original,
        }
    }
}

/// What connection tracking says about a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum CtInfo {
    /// No entry could be attached.
    Invalid,
    /// Of a connection without an answer yet.
    New,
    /// About another connection.
    Related,
    /// Of an answered connection, or the answer.
    Established,
    /// Exempt from tracking.
    Untracked,
}

/// Facts about an entry that only ever become true.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Status(u16);

impl Status {
    /// An answer was seen.
    pub const SEEN_REPLY: Status = Status(0x01);
    /// The entry is not dropped early.
    pub const ASSURED: Status = Status(0x02);
    /// The entry is in the table.
    pub const CONFIRMED: Status = Status(0x04);
    /// The source is rewritten.
    pub const SRC_NAT: Status = Status(0x08);
    /// The destination is rewritten.
    pub const DST_NAT: Status = Status(0x10);
    /// It is settled whether the source is.
    pub const SRC_NAT_DONE: Status = Status(0x20);
    /// It is settled whether the destination is.
    pub const DST_NAT_DONE: Status = Status(0x40);
    /// Packets do not renew the entry.
    pub const FIXED_TIMEOUT: Status = Status(0x80);
    /// The entry has lost a clash: it is found by its reply tuple only, and listed nowhere.
    pub const NAT_CLASH: Status = Status(0x100);

    /// Returns whether all of these hold.
    #[inline]
    pub const fn contains(self, status: Status) -> bool {
        self.0 & status.0 == status.0
    }

    #[inline]
    pub(crate) const fn insert(&mut self, status: Status) {
        self.0 |= status.0;
    }

    /// Returns the facts that `--ctstatus` knows.
    pub(crate) const fn ct_status(self) -> u8 {
        let mut bits = 0;
        if self.contains(Status::SEEN_REPLY) {
            bits |= 0x02;
        }
        if self.contains(Status::ASSURED) {
            bits |= 0x04;
        }
        if self.contains(Status::CONFIRMED) {
            bits |= 0x08;
        }
        bits
    }

    pub(crate) const fn nat(side: Side) -> Status {
        match side {
            Side::Source => Status::SRC_NAT,
            Side::Destination => Status::DST_NAT,
        }
    }

    pub(crate) const fn nat_done(side: Side) -> Status {
        match side {
            Side::Source => Status::SRC_NAT_DONE,
            Side::Destination => Status::DST_NAT_DONE,
        }
    }
}

/// A connection as remembered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    pub(crate) original: Tuple,
    pub(crate) reply: Tuple,
    pub(crate) status: Status,
    pub(super) protocol: ProtocolState,
    pub(super) deadline: SimTime,
    /// The connection mark.
    pub(crate) mark: u32,
    /// The zones of the original and of the reply tuple.
    pub(crate) zones: [u16; 2],
    /// The nat rule that chose the destination.
    pub(crate) dnat_rule: Option<RuleRef>,
    /// The device whose address the source was replaced with.
    pub(crate) masquerade_dev: Option<DeviceId>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ProtocolState {
    Tcp(TcpTrack),
    /// A UDP flow, with the time from which on it may be called a stream.
    Udp(SimTime),
    UdpLite,
    Icmp,
    Gre,
    // Simplified: chunks are not looked at; an association is established by its first answer.
    Sctp,
    Other,
}

impl Entry {
    /// Returns the tuple of packets in a direction, as they are when tracking first sees them.
    #[inline]
    pub const fn tuple(&self, direction: Direction) -> &Tuple {
        match direction {
            Direction::Original => &self.original,
            Direction::Reply => &self.reply,
        }
    }

    /// Returns what is known about the connection.
    pub const fn status(&self) -> Status {
        self.status
    }

    /// Returns when the entry ends unless another packet comes.
    pub const fn deadline(&self) -> SimTime {
        self.deadline
    }

    /// Returns the connection mark.
    pub const fn mark(&self) -> u32 {
        self.mark
    }

    /// Returns the zone of the tuple of a direction.
    pub const fn zone(&self, direction: Direction) -> u16 {
        self.zones[direction as usize]
    }

    /// Returns the TCP state, or `None` for another protocol.
    pub const fn tcp_state(&self) -> Option<TcpState> {
        match &self.protocol {
            ProtocolState::Tcp(track) => Some(track.state),
            _ => None,
        }
    }

    /// Returns the nat rule that chose the destination.
    pub const fn dnat_rule(&self) -> Option<RuleRef> {
        self.dnat_rule
    }

    /// Returns the entry as if no rule were known: what packets meet does not depend on it.
    pub fn without_rule(self) -> Entry {
        Entry { dnat_rule: None, ..self }
    }

    /// Returns which way packets with this tuple in these zones go.
    #[inline]
    pub(super) fn has(&self, direction: Direction, tuple: &Tuple, zones: [u16; 2]) -> bool {
        let zone = direction as usize;
        self.tuple(direction) == tuple && self.zones[zone] == zones[zone]
    }

    /// Returns whether both entries are of one flow in the same direction.
    pub(super) fn same_original(&self, other: &Entry) -> bool {
        self.original == other.original && self.zones[0] == other.zones[0]
    }

    /// Returns whether both sides were decided.
    pub(super) fn nat_decided(&self) -> bool {
        let either = [Status::SRC_NAT_DONE, Status::DST_NAT_DONE];
        either.into_iter().any(|done| self.status.contains(done))
    }

    pub(super) fn known(&self, now: SimTime) -> Known {
        Known {
            seen_reply: self.status.contains(Status::SEEN_REPLY),
            assured: self.status.contains(Status::ASSURED),
            left: self.deadline.saturating_since(now),
        }
    }

    /// Lets the entry live for that long from now, unless it is fixed when it ends.
    #[inline]
    pub(super) fn refresh(&mut self, now: SimTime, timeout: Duration) {
        if !self.status.contains(Status::FIXED_TIMEOUT) {
            self.deadline = now + timeout;
        }
    }

    /// Returns whether the entry may make room for others.
    // Kernel: nf_conntrack_core.c, gc_worker_can_early_drop
    pub(super) fn may_make_room(&self) -> bool {
        let closing = match &self.protocol {
            ProtocolState::Tcp(track) => track.is_closing(),
            _ => false,
        };
        closing || !self.status.contains(Status::ASSURED)
    }

    /// Returns whether a new connection that lacks a tuple may take that of this one.
    // Kernel: nf_nat_core.c, nf_nat_used_tuple_harder
    pub(super) fn gives_way_to(&self, new: &Entry) -> bool {
        let (ProtocolState::Tcp(old), ProtocolState::Tcp(new)) = (&self.protocol, &new.protocol)
        else {
            return false;
        };
        let fixed = self.status.contains(Status::FIXED_TIMEOUT);
        self.status.contains(Status::SRC_NAT) && !fixed && old.gives_way_to(new)
    }
}
