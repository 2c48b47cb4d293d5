//! Connection tracking: what the kernel remembers of flows.
//!
//! ```text
//!   first packet ── PREROUTING or OUTPUT ──► tentative entry, owned by the packet
//!                                               │ nat decides the reply tuple
//!   INPUT or POSTROUTING passed ────────────────► confirmed: both tuples enter the table, or the
//!                                                 packet is dropped and neither does
//! ```
//!
//! Entries end by deadline. Nothing is scheduled: a lookup takes an entry beyond its deadline for
//! absent, and the table sweeps such entries out before it grows.

mod entry;
pub(crate) mod tcp;
mod timeout;

use std::time::Duration;

use hashbrown::HashTable;

use crate::hash::Mix;
use crate::packet::{L4, Packet};
use crate::rule::{ConnmarkOp, CtStates, CtTarget, Zone, ZoneSide};
use crate::time::SimTime;
use crate::tuple::{Addresses, Protocol, Tuple};

use entry::ProtocolState;
pub use entry::{CtInfo, Direction, Entry, Status};
pub use tcp::TcpState;
use tcp::{Step, TcpTrack};
pub use timeout::Sysctls;

/// Names an entry of a table; entries that have gone are not confused with later ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct EntryRef {
    index: u32,
    generation: u32,
}

/// Where the entry of a packet is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Holder {
    /// The packet has none.
    None,
    /// With the packet, to be confirmed.
    Tentative,
    /// With the packet only: the packet has ended it.
    Removed,
    /// In the table.
    Table(EntryRef),
}

/// What connection tracking has found out about a packet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Track {
    pub(crate) holder: Holder,
    pub(crate) info: CtInfo,
    pub(crate) direction: Direction,
}

impl Track {
    /// The packet is not to be tracked.
    pub(crate) const UNTRACKED: Track =
        Track { holder: Holder::None, info: CtInfo::Untracked, direction: Direction::Original };

    pub(crate) const INVALID: Track =
        Track { holder: Holder::None, info: CtInfo::Invalid, direction: Direction::Original };
}

/// A packet's connection, as rules see it and change it.
#[derive(Debug)]
pub struct Tracked<'c> {
    pub(crate) table: &'c mut Conntrack,
    pub(crate) own: &'c mut Option<Entry>,
    pub(crate) track: &'c mut Option<Track>,
    pub(crate) zones: &'c mut [u16; 2],
}

impl Tracked<'_> {
    /// Returns the entry and which way the packet goes in it.
    pub(crate) fn entry_and_direction(&self) -> Option<(&Entry, Direction)> {
        let track = self.track.as_ref()?;
        Some((track.entry(self.table, self.own)?, track.direction))
    }

    pub(crate) fn entry(&self) -> Option<&Entry> {
        self.entry_and_direction().map(|(entry, _)| entry)
    }

    /// Changes a mark; nothing happens without a connection.
    // Kernel: xt_connmark.c, connmark_tg_shift
    pub(crate) fn connmark(&mut self, op: ConnmarkOp, packet: &mut Packet) {
        let Some(track) = self.track.as_ref() else {
            return;
        };
        let Some(entry) = track.entry_mut(self.table, self.own) else {
            return;
        };
        match op {
            ConnmarkOp::Set { value, mask } => entry.mark = entry.mark & !mask ^ value,
            ConnmarkOp::Save { nfmask, ctmask } => {
                entry.mark = entry.mark & !ctmask ^ packet.mark & nfmask;
            }
            ConnmarkOp::Restore { nfmask, ctmask } => {
                packet.mark = packet.mark & !nfmask ^ entry.mark & ctmask;
            }
        }
    }

    /// Notes what connection tracking is to do with the packet, unless it has seen it.
    // Kernel: xt_CT.c, xt_ct_target
    pub(crate) fn direct(&mut self, target: &CtTarget, packet: &Packet) {
        if self.track.is_some() {
            return;
        }
        if target.notrack {
            *self.track = Some(Track::UNTRACKED);
            return;
        }
        if let Some((side, zone)) = target.zone {
            let zone = match zone {
                Zone::Id(zone) => zone,
                Zone::Mark => packet.mark as u16,
            };
            *self.zones = match side {
                ZoneSide::Both => [zone; 2],
                ZoneSide::Original => [zone, 0],
                ZoneSide::Reply => [0, zone],
            };
        }
    }
}

/// Counters, as `conntrack -S` names them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Packets without an entry.
    pub invalid: u64,
    /// Entries that entered the table.
    pub insert: u64,
    /// Entries that could not enter it.
    pub insert_failed: u64,
    /// Packets dropped for want of an entry.
    pub drop: u64,
    /// Entries that made way for a new one.
    pub early_drop: u64,
    /// Clashes that were settled without loss.
    pub clash_resolve: u64,
}

/// The table is full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TableFull;

/// An entry's reply tuple, or its original tuple, is another entry's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Clash;

/// The connections of one network namespace.
#[derive(Clone, Debug)]
pub struct Conntrack {
    sysctls: Sysctls,
    slab: Vec<Cell>,
    free: Vec<u32>,
    /// `index << 1 | direction`, by tuple. Never iterated.
    tuples: HashTable<u32>,
    len: u32,
    /// At this length the expired entries are swept out.
    sweep_len: u32,
    stats: Stats,
}

#[derive(Clone, Debug)]
struct Cell {
    generation: u32,
    entry: Option<Entry>,
}

#[inline]
fn hash(tuple: &Tuple) -> u64 {
    let mut mix = Mix::new();
    match tuple.addresses() {
        Addresses::V4 { src, dst } => {
            mix.word(u64::from(src.to_bits()) << 32 | u64::from(dst.to_bits()));
        }
        Addresses::V6 { .. } => {
            mix.address(tuple.src());
            mix.address(tuple.dst());
        }
    }
    let parts = u64::from(tuple.src_part) << 16 | u64::from(tuple.dst_part);
    mix.word(u64::from(tuple.protocol.0) << 32 | parts);
    mix.finish()
}

impl Conntrack {
    const SWEEP_LEN_MIN: u32 = 64;

    /// Returns an empty table.
    pub fn new(sysctls: Sysctls) -> Conntrack {
        Conntrack {
            sysctls,
            slab: Vec::new(),
            free: Vec::new(),
            tuples: HashTable::new(),
            len: 0,
            sweep_len: Conntrack::SWEEP_LEN_MIN,
            stats: Stats::default(),
        }
    }

    /// Returns the counters.
    pub const fn stats(&self) -> &Stats {
        &self.stats
    }

    /// Returns the timeouts and limits.
    pub const fn sysctls(&self) -> &Sysctls {
        &self.sysctls
    }

    /// Returns how many entries the table holds, those that have expired and not been swept out
    /// included.
    pub const fn len(&self) -> usize {
        self.len as usize
    }

    /// Returns whether the table holds nothing.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the live entries, in no order that means anything but always the same.
    pub fn entries(&self, now: SimTime) -> impl Iterator<Item = &Entry> {
        let entries = self.slab.iter().filter_map(|cell| cell.entry.as_ref());
        entries.filter(move |entry| entry.deadline > now)
    }

    /// Removes the live entries that `condemned` holds for, as `conntrack -D` does, and returns
    /// how many there were.
    pub fn delete(&mut self, now: SimTime, mut condemned: impl FnMut(&Entry) -> bool) -> usize {
        let mut deleted = 0;
        for index in 0..self.slab.len() as u32 {
            let Some(entry) = &self.slab[index as usize].entry else {
                continue;
            };
            let live = entry.deadline > now;
            if live && condemned(entry) {
                deleted += 1;
                self.remove(index);
            }
        }
        deleted
    }

    /// Returns the live entry to which a packet with this tuple belongs.
    pub fn lookup(&self, now: SimTime, tuple: &Tuple) -> Option<(&Entry, Direction)> {
        let node = self.node(tuple)?;
        let entry = self.slab[(node >> 1) as usize].entry.as_ref().expect("nodes name entries");
        (entry.deadline > now).then_some((entry, direction_of(node)))
    }

    pub(crate) fn get(&self, at: EntryRef) -> Option<&Entry> {
        let cell = &self.slab[at.index as usize];
        cell.entry.as_ref().filter(|_| cell.generation == at.generation)
    }

    /// Returns whether a live entry has this tuple in some direction.
    pub(crate) fn is_taken(&mut self, now: SimTime, tuple: &Tuple) -> bool {
        self.find(now, tuple).is_some()
    }

    #[inline]
    fn node(&self, tuple: &Tuple) -> Option<u32> {
        let same = |node: &u32| {
            let entry = self.slab[(node >> 1) as usize].entry.as_ref().expect("nodes name entries");
            entry.tuple(direction_of(*node)) == tuple
        };
        self.tuples.find(hash(tuple), same).copied()
    }

    /// Returns the live entry with this tuple; one that has expired goes.
    #[inline]
    fn find(&mut self, now: SimTime, tuple: &Tuple) -> Option<(u32, Direction)> {
        let node = self.node(tuple)?;
        let index = node >> 1;
        let entry = self.slab[index as usize].entry.as_ref().expect("nodes name entries");
        if entry.deadline <= now {
            self.remove(index);
            return None;
        }
        Some((index, direction_of(node)))
    }

    /// Finds the packet's entry or makes a tentative one, which is put into `own`.
    #[inline]
    pub(crate) fn track(
        &mut self,
        now: SimTime,
        packet: &Packet,
        own: &mut Option<Entry>,
    ) -> Result<Track, TableFull> {
        if let L4::IcmpError { quote, .. } = &packet.l4 {
            return Ok(self.track_error(now, packet, quote));
        }
        if let Some((index, direction)) = self.find(now, &packet.tuple)
            && let Some(track) = self.update(now, packet, index, direction, own)
        {
            return Ok(track);
        }
        self.create(now, packet, own)
    }

    /// Attaches the entry that an ICMP error is about.
    // Kernel: nf_conntrack_proto_icmp.c, nf_conntrack_inet_error
    fn track_error(&mut self, now: SimTime, packet: &Packet, quote: &Tuple) -> Track {
        let Some((index, direction)) = self.find(now, &quote.reply()) else {
            self.stats.invalid += 1;
            return Track::INVALID;
        };
        let cell = &self.slab[index as usize];
        let entry = cell.entry.as_ref().expect("found");
        // An error must go to where the quoted packet came from.
        if entry.tuple(direction).dst() != packet.tuple.dst() {
            self.stats.invalid += 1;
            return Track::INVALID;
        }
        let holder = Holder::Table(EntryRef { index, generation: cell.generation });
        Track { holder, info: CtInfo::Related, direction }
    }

    /// Takes a packet of a known connection; `None` if the connection makes way for a new one.
    // Kernel: nf_conntrack_core.c, resolve_normal_ct and nf_conntrack_in
    #[inline]
    fn update(
        &mut self,
        now: SimTime,
        packet: &Packet,
        index: u32,
        direction: Direction,
        own: &mut Option<Entry>,
    ) -> Option<Track> {
        let cell = &mut self.slab[index as usize];
        let generation = cell.generation;
        let entry = cell.entry.as_mut().expect("found");
        let seen_reply = entry.status.contains(Status::SEEN_REPLY);
        let info = match direction {
            Direction::Original if !seen_reply => CtInfo::New,
            _ => CtInfo::Established,
        };
        let assured = entry.status.contains(Status::ASSURED);
        let sysctls = &self.sysctls;
        let refresh = |timeout| Step::Refresh { timeout, assured };
        let step = match (&mut entry.protocol, packet.l4) {
            (ProtocolState::Tcp(track), L4::Tcp { flags, .. }) => {
                track.segment(direction, flags, seen_reply, assured, sysctls)
            }
            // Kernel: nf_conntrack_proto_udp.c, nf_conntrack_udp_packet
            (ProtocolState::Udp(stream_from), _) if seen_reply && now > *stream_from => {
                Step::Refresh { timeout: sysctls.udp_timeout_stream, assured: true }
            }
            (ProtocolState::Udp(_), _) => refresh(sysctls.udp_timeout),
            (ProtocolState::Icmp, _) => refresh(sysctls.icmp_timeout),
            (ProtocolState::Other, _) => refresh(sysctls.generic_timeout),
            (ProtocolState::Tcp(_), _) => Step::Invalid,
        };
        match step {
            Step::Invalid => {
                self.stats.invalid += 1;
                return Some(Track::INVALID);
            }
            Step::Reopen => {
                self.remove(index);
                return None;
            }
            Step::Remove => {
                let mut entry = self.remove(index);
                if direction == Direction::Reply {
                    entry.status.insert(Status::SEEN_REPLY);
                }
                *own = Some(entry);
                return Some(Track { holder: Holder::Removed, info, direction });
            }
            Step::Ignore => {}
            Step::Refresh { timeout, assured } => {
                entry.deadline = now + timeout;
                if assured {
                    entry.status.insert(Status::ASSURED);
                }
            }
        }
        if direction == Direction::Reply {
            entry.status.insert(Status::SEEN_REPLY);
        }
        let holder = Holder::Table(EntryRef { index, generation });
        Some(Track { holder, info, direction })
    }

    /// Makes a tentative entry, unless no connection begins with such a packet.
    // Kernel: nf_conntrack_core.c, init_conntrack
    fn create(
        &mut self,
        now: SimTime,
        packet: &Packet,
        own: &mut Option<Entry>,
    ) -> Result<Track, TableFull> {
        let Some((protocol, timeout)) = self.open(now, packet) else {
            self.stats.invalid += 1;
            return Ok(Track::INVALID);
        };
        self.make_room(now, &packet.tuple)?;
        *own = Some(Entry {
            original: packet.tuple,
            reply: packet.tuple.reply(),
            status: Status::default(),
            protocol,
            deadline: now + timeout,
            mark: 0,
            zones: [0; 2],
            dnat_rule: None,
            masquerade_dev: None,
        });
        let holder = Holder::Tentative;
        Ok(Track { holder, info: CtInfo::New, direction: Direction::Original })
    }

    fn open(&self, now: SimTime, packet: &Packet) -> Option<(ProtocolState, Duration)> {
        let sysctls = &self.sysctls;
        match packet.l4 {
            L4::Tcp { flags, .. } => {
                let (track, timeout) = TcpTrack::open(flags, sysctls)?;
                Some((ProtocolState::Tcp(track), timeout))
            }
            L4::Udp => {
                // Kernel: nf_conntrack_proto_udp.c: a stream is what goes on after two seconds.
                let stream_from = now + Duration::from_secs(2);
                Some((ProtocolState::Udp(stream_from), sysctls.udp_timeout))
            }
            L4::IcmpEcho => {
                let query = match packet.tuple.protocol {
                    Protocol::ICMP => matches!(packet.tuple.icmp_kind().0, 8 | 13 | 15 | 17),
                    _ => packet.tuple.icmp_kind().0 == 128,
                };
                query.then_some((ProtocolState::Icmp, sysctls.icmp_timeout))
            }
            L4::Other => Some((ProtocolState::Other, sysctls.generic_timeout)),
            L4::IcmpError { .. } => None,
        }
    }

    /// Finds room for one more entry.
    // Kernel: nf_conntrack_core.c, __nf_conntrack_alloc and early_drop
    fn make_room(&mut self, now: SimTime, tuple: &Tuple) -> Result<(), TableFull> {
        if self.len < self.sysctls.max {
            return Ok(());
        }
        self.sweep(now);
        if self.len < self.sysctls.max || self.drop_early(tuple) {
            return Ok(());
        }
        self.stats.drop += 1;
        Err(TableFull)
    }

    /// Drops one entry that is not assured, from eight looked at.
    // Simplified: the kernel looks at up to eight hash buckets and empties the first that has
    // such entries; here eight entries are looked at, from a place given by the new tuple. It
    // also lets a background sweep take closing assured connections when 95 % are in use.
    fn drop_early(&mut self, tuple: &Tuple) -> bool {
        let cells = self.slab.len() as u64;
        let start = hash(tuple) % cells.max(1);
        for step in 0..cells.min(8) {
            let index = ((start + step) % cells) as u32;
            let entry = self.slab[index as usize].entry.as_ref();
            if entry.is_some_and(|entry| !entry.status.contains(Status::ASSURED)) {
                self.remove(index);
                self.stats.early_drop += 1;
                return true;
            }
        }
        false
    }

    /// Enters a tentative entry into the table: both tuples or neither. On a clash it stays
    /// where it is.
    // Kernel: nf_conntrack_core.c, __nf_conntrack_confirm
    pub(crate) fn confirm(
        &mut self,
        now: SimTime,
        own: &mut Option<Entry>,
    ) -> Result<EntryRef, Clash> {
        let entry = own.as_ref().expect("a tentative entry is with its packet");
        let original = self.find(now, &entry.original);
        let reply = self.find(now, &entry.reply);
        if original.is_some() || reply.is_some() {
            return self.resolve_clash(entry, original, reply);
        }
        if self.len >= self.sweep_len {
            self.sweep(now);
            self.sweep_len = (self.len * 2).max(Conntrack::SWEEP_LEN_MIN);
        }
        let index = self.free.pop().unwrap_or_else(|| {
            self.slab.push(Cell { generation: 0, entry: None });
            self.slab.len() as u32 - 1
        });
        let hashes = [hash(&entry.original), hash(&entry.reply)];
        let cell = &mut self.slab[index as usize];
        let generation = cell.generation;
        cell.entry = own.take();
        let entry = cell.entry.as_mut().expect("just put there");
        entry.status.insert(Status::CONFIRMED);
        let slab = &self.slab;
        for (direction, node_hash) in hashes.into_iter().enumerate() {
            let node = index << 1 | direction as u32;
            self.tuples.insert_unique(node_hash, node, |node| node_hash_of(slab, *node));
        }
        self.len += 1;
        self.stats.insert += 1;
        Ok(EntryRef { index, generation })
    }

    /// Settles that a tentative entry's tuples are in use.
    // Kernel: nf_conntrack_core.c, nf_ct_resolve_clash
    // Simplified: UDP first packets with different backends at one instant both pass in the
    // kernel, the loser for one second; here the loser is dropped.
    fn resolve_clash(
        &mut self,
        entry: &Entry,
        original: Option<(u32, Direction)>,
        reply: Option<(u32, Direction)>,
    ) -> Result<EntryRef, Clash> {
        if let Some((index, Direction::Original)) = original
            && reply == Some((index, Direction::Reply))
            && matches!(entry.protocol, ProtocolState::Udp(_))
        {
            self.stats.clash_resolve += 1;
            let generation = self.slab[index as usize].generation;
            return Ok(EntryRef { index, generation });
        }
        self.stats.insert_failed += 1;
        self.stats.drop += 1;
        Err(Clash)
    }

    /// Removes an entry at the wish of NAT.
    pub(crate) fn kill(&mut self, at: EntryRef) {
        if self.get(at).is_some() {
            self.remove(at.index);
        }
    }

    /// Removes what has expired, so that memory follows the live entries.
    fn sweep(&mut self, now: SimTime) {
        for index in 0..self.slab.len() {
            let entry = self.slab[index].entry.as_ref();
            if entry.is_some_and(|entry| entry.deadline <= now) {
                self.remove(index as u32);
            }
        }
    }

    fn remove(&mut self, index: u32) -> Entry {
        for direction in [Direction::Original, Direction::Reply] {
            let node = index << 1 | direction as u32;
            let node_hash = node_hash_of(&self.slab, node);
            let occupied = self.tuples.find_entry(node_hash, |other| *other == node);
            occupied.expect("both tuples are in the table").remove();
        }
        let cell = &mut self.slab[index as usize];
        cell.generation = cell.generation.wrapping_add(1);
        self.free.push(index);
        self.len -= 1;
        cell.entry.take().expect("an entry is removed once")
    }
}

fn direction_of(node: u32) -> Direction {
    if node & 1 == 0 { Direction::Original } else { Direction::Reply }
}

fn node_hash_of(slab: &[Cell], node: u32) -> u64 {
    let entry = slab[(node >> 1) as usize].entry.as_ref().expect("nodes name entries");
    hash(entry.tuple(direction_of(node)))
}

impl Track {
    /// Returns the entry, wherever it is.
    #[inline]
    pub(crate) fn entry<'t>(
        &self,
        table: &'t Conntrack,
        own: &'t Option<Entry>,
    ) -> Option<&'t Entry> {
        match self.holder {
            Holder::None => None,
            Holder::Tentative | Holder::Removed => own.as_ref(),
            Holder::Table(at) => table.get(at),
        }
    }

    pub(crate) fn entry_mut<'t>(
        &self,
        table: &'t mut Conntrack,
        own: &'t mut Option<Entry>,
    ) -> Option<&'t mut Entry> {
        match self.holder {
            Holder::None => None,
            Holder::Tentative | Holder::Removed => own.as_mut(),
            Holder::Table(at) => {
                let cell = &mut table.slab[at.index as usize];
                cell.entry.as_mut().filter(|_| cell.generation == at.generation)
            }
        }
    }

    /// Returns what `--ctstate` sees.
    // Kernel: xt_conntrack.c, conntrack_mt
    #[inline]
    pub(crate) fn states(&self, table: &Conntrack, own: &Option<Entry>) -> CtStates {
        if self.info == CtInfo::Untracked {
            return CtStates::UNTRACKED;
        }
        let Some(entry) = self.entry(table, own) else {
            return CtStates::INVALID;
        };
        let mut states = match self.info {
            CtInfo::Invalid => CtStates::INVALID,
            CtInfo::New => CtStates::NEW,
            CtInfo::Related => CtStates::RELATED,
            CtInfo::Established => CtStates::ESTABLISHED,
            CtInfo::Untracked => CtStates::UNTRACKED,
        };
        if entry.status.contains(Status::SRC_NAT) {
            states = states | CtStates::SNAT;
        }
        if entry.status.contains(Status::DST_NAT) {
            states = states | CtStates::DNAT;
        }
        states
    }
}

#[cfg(test)]
mod tests;
