//! The node's own connection tracking, beside the kernel's.

use std::collections::BTreeMap;
use std::time::Duration;

use super::affinity::whole_seconds;
use super::maps::{BackendId, RevNatId};
use crate::packet::{L4, Packet, TcpFlags};
use crate::time::SimTime;
use crate::tuple::{Protocol, Tuple};

/// How long entries live.
// Cilium: pkg/option/config.go, the defaults of --bpf-ct-timeout-*
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lifetimes {
    /// Connections of TCP that are more than a SYN: `regular-tcp`, 8,000 s.
    pub tcp: Duration,
    /// Anything but TCP: `regular-any`, 60 s.
    pub any: Duration,
    /// A frontend's choice for a TCP connection: `service-tcp`, 8,000 s.
    pub service_tcp: Duration,
    /// A frontend's choice for anything else: `service-any`, 60 s.
    pub service_any: Duration,
    /// How long after the end of a connection another one of the same ports is kept at its
    /// backend: `service-tcp-grace`, 60 s.
    pub service_grace: Duration,
    /// Until a second packet: `regular-tcp-syn`, 60 s.
    pub syn: Duration,
    /// After the end of both directions: `regular-tcp-fin`, 10 s.
    pub closing: Duration,
}

impl Default for Lifetimes {
    fn default() -> Lifetimes {
        Lifetimes {
            tcp: Duration::from_secs(8000),
            any: Duration::from_secs(60),
            service_tcp: Duration::from_secs(8000),
            service_any: Duration::from_secs(60),
            service_grace: Duration::from_secs(60),
            syn: Duration::from_secs(60),
            closing: Duration::from_secs(10),
        }
    }
}

/// How often a connection that goes on is reported, and so its last report is moved.
// Cilium: --monitor-aggregation-interval
const REPORT_INTERVAL: Duration = Duration::from_secs(5);

/// What an entry is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Kind {
    /// A connection that leaves a Pod, or the node for a backend.
    Egress,
    /// A connection that comes to a Pod.
    Ingress,
    /// A frontend's choice of a backend.
    Service,
}

/// Which way a packet of a connection goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// As the first one.
    There,
    /// Back.
    Back,
}

/// What is known of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    /// The frontend that it was translated for.
    pub(super) rev_nat: RevNatId,
    /// Its backend, for entries of frontends.
    pub(super) backend: BackendId,
    /// It was translated where it came in by the node's device.
    pub(super) node_port: bool,
    /// It goes back to the Pod that it came from; the Pod's own address.
    pub(super) looped: bool,
    /// More than a SYN was seen.
    seen_non_syn: bool,
    closing: [bool; 2],
    flags: [TcpFlags; 2],
    reported: SimTime,
    expires: SimTime,
}

/// What was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// Nothing.
    New,
    /// An entry; with `reopened`, one that had ended.
    Known(Entry),
}

/// `cilium_ct*_global`.
// Simplified: the agent's connection tracking has room for all; the least recently used of 524,288
// TCP and 262,144 other entries would make way.
#[derive(Clone, Debug, Default)]
pub(super) struct Table {
    entries: BTreeMap<(Kind, Tuple), Entry>,
    /// How many entries there may be before those that have ended are looked for.
    crowded: usize,
}

/// The least number of entries among which those that have ended are looked for.
const CROWDED_MIN: usize = 1024;

/// What a packet does to its entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Action {
    Create,
    Close { reset: bool },
    None,
}

impl Entry {
    /// Returns the entry of a connection's first packet.
    pub(super) fn of(rev_nat: RevNatId, backend: BackendId) -> Entry {
        Entry {
            rev_nat,
            backend,
            node_port: false,
            looped: false,
            seen_non_syn: false,
            closing: [false; 2],
            flags: [TcpFlags::NONE; 2],
            reported: SimTime::ZERO,
            expires: SimTime::ZERO,
        }
    }

    fn is_alive(&self) -> bool {
        self.closing != [true; 2]
    }

    // Cilium: bpf/lib/conntrack.h, ct_update_timeout
    fn renew(&mut self, now: SimTime, kind: Kind, packet: &Packet, way: usize, of: &Lifetimes) {
        let is_tcp = packet.tuple.protocol == Protocol::TCP;
        let flags = packet.tcp_flags().unwrap_or(TcpFlags::NONE);
        let is_syn = flags.contains(TcpFlags::SYN) && !flags.contains(TcpFlags::ACK);
        self.seen_non_syn |= is_tcp && !is_syn;
        let lifetime = match (is_tcp, kind) {
            (true, _) if !self.seen_non_syn => of.syn,
            (true, Kind::Service) => of.service_tcp,
            (true, _) => of.tcp,
            (false, Kind::Service) => of.service_any,
            (false, _) => of.any,
        };
        self.expires = whole_seconds(now) + lifetime;
        self.report(now, flags, way);
    }

    fn report(&mut self, now: SimTime, flags: TcpFlags, way: usize) {
        let is_new = |flag| flags.contains(flag) && !self.flags[way].contains(flag);
        let is_new = [TcpFlags::SYN, TcpFlags::FIN, TcpFlags::RST].into_iter().any(is_new);
        self.flags[way] = self.flags[way] | flags;
        if is_new || self.reported + REPORT_INTERVAL < whole_seconds(now) {
            self.reported = whole_seconds(now);
        }
    }
}

impl Table {
    /// Looks a packet of a connection up whose first packet had this tuple, and lets it have its
    /// effect: the entry is renewed, closed or opened again.
    // Cilium: bpf/lib/conntrack.h, __ct_lookup
    pub(super) fn look_up(
        &mut self,
        now: SimTime,
        key: (Kind, Tuple),
        packet: &Packet,
        way: Way,
        lifetimes: &Lifetimes,
    ) -> Found {
        let Some(entry) = self.entries.get_mut(&key) else {
            return Found::New;
        };
        if entry.expires <= now {
            self.entries.remove(&key);
            return Found::New;
        }
        let kind = key.0;
        let side = way as usize;
        if entry.is_alive() {
            entry.renew(now, kind, packet, side, lifetimes);
        }
        match action(packet) {
            Action::Create if entry.closing.contains(&true) => {
                let rebalanced = entry.reported + lifetimes.service_grace <= whole_seconds(now);
                if kind == Kind::Service && rebalanced {
                    return Found::New;
                }
                entry.closing = [false; 2];
                entry.flags = [TcpFlags::NONE; 2];
                entry.seen_non_syn = false;
                entry.renew(now, kind, packet, side, lifetimes);
            }
            Action::Close { reset } => {
                let both_open = entry.flags.iter().all(|flags| flags.contains(TcpFlags::SYN));
                if kind == Kind::Service || reset && !both_open {
                    entry.closing = [true; 2];
                } else {
                    entry.closing[side] = true;
                }
                if !entry.is_alive() {
                    entry.expires = whole_seconds(now) + lifetimes.closing;
                }
            }
            Action::Create | Action::None => {}
        }
        Found::Known(*entry)
    }

    /// Makes the entry of a connection's first packet.
    pub(super) fn create(
        &mut self,
        now: SimTime,
        key: (Kind, Tuple),
        packet: &Packet,
        mut entry: Entry,
        lifetimes: &Lifetimes,
    ) {
        entry.renew(now, key.0, packet, Way::There as usize, lifetimes);
        // A connection that is met halfway counts as one that has begun.
        if packet.tuple.protocol == Protocol::TCP && !entry.seen_non_syn {
            entry.expires = whole_seconds(now) + lifetimes.syn;
        }
        self.entries.insert(key, entry);
        if self.entries.len() > self.crowded.max(CROWDED_MIN) {
            self.collect(now);
            self.crowded = 2 * self.entries.len();
        }
    }

    /// Moves a frontend's choice to another backend.
    // Cilium: bpf/lib/conntrack.h, ct_update_svc_entry
    pub(super) fn move_to(&mut self, key: (Kind, Tuple), rev_nat: RevNatId, backend: BackendId) {
        if let Some(entry) = self.entries.get_mut(&key) {
            entry.rev_nat = rev_nat;
            entry.backend = backend;
        }
    }

    /// Returns how many entries there are that have not ended.
    pub(super) fn len(&self, now: SimTime) -> usize {
        self.entries.values().filter(|entry| entry.expires > now).count()
    }

    /// Drops what has ended, as the agent's collector does every so often. No packet can tell.
    pub(super) fn collect(&mut self, now: SimTime) {
        self.entries.retain(|_, entry| entry.expires > now);
    }
}

// Cilium: bpf/lib/conntrack.h, ct_tcp_select_action
fn action(packet: &Packet) -> Action {
    let L4::Tcp { flags, .. } = packet.l4 else {
        return Action::None;
    };
    if flags.contains(TcpFlags::RST) || flags.contains(TcpFlags::FIN) {
        Action::Close { reset: flags.contains(TcpFlags::RST) }
    } else if flags.contains(TcpFlags::SYN) && !flags.contains(TcpFlags::ACK) {
        Action::Create
    } else {
        Action::None
    }
}
