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
//! absent, and such entries are cleared away as others come.

mod clash;
mod entry;
mod filter;
mod index;
mod listing;
mod room;
mod source;
mod table;
pub(crate) mod tcp;
mod timeout;
mod track;

use crate::packet::Packet;
use crate::rule::{ConnmarkOp, CtStates, CtTarget, Zone, ZoneSide};

pub(crate) use clash::{Confirmed, Unconfirmed};
pub use entry::{CtInfo, Direction, Entry, Status};
pub use filter::{Filter, FilterError, TupleFilter};
pub use listing::{Listing, TupleTaken};
pub use table::Conntrack;
pub use tcp::TcpState;
pub use timeout::Sysctls;

/// Names an entry of a table; entries that have gone are not confused with later ones.
///
/// One number, since two that are written one by one and read together stall the hot path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct EntryRef(u64);

impl EntryRef {
    pub(super) const fn new(index: u32, generation: u32) -> EntryRef {
        EntryRef((generation as u64) << 32 | index as u64)
    }

    pub(super) const fn index(self) -> u32 {
        self.0 as u32
    }

    pub(super) const fn generation(self) -> u32 {
        (self.0 >> 32) as u32
    }
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

    /// An answer about an untracked packet: it is tracked, and x_tables takes it for seen.
    // Kernel: nf_conntrack_core.c, nf_conntrack_attach, which makes "related" of "untracked"
    pub(crate) const ABOUT_UNTRACKED: Track =
        Track { holder: Holder::None, info: CtInfo::Related, direction: Direction::Original };

    /// Returns whether it is [`Track::ABOUT_UNTRACKED`].
    pub(crate) fn is_about_untracked(&self) -> bool {
        self.holder == Holder::None && self.info == CtInfo::Related
    }
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
        // The first such rule decides.
        if self.track.is_some() || *self.zones != [0; 2] {
            return;
        }
        if target.notrack {
            *self.track = Some(Track::UNTRACKED);
            return;
        }
        if let Some((side, zone)) = target.zone {
            let zone = match zone {
                Zone::Id(zone) => zone,
                // Simplified: the mark is read here, not when the packet is looked up.
                Zone::Mark => packet.mark as u16,
            };
            *self.zones = both_zones(side, zone);
        }
    }

    /// Takes the packet out of connection tracking, as nftables does: one that is invalid, too.
    // Kernel: nft_ct.c, nft_notrack_eval
    ///
    /// Returns whether it is untracked now.
    pub(crate) fn notrack(&mut self) -> bool {
        let free =
            self.track.is_none_or(|track| track.holder == Holder::None) && *self.zones == [0; 2];
        if free {
            *self.track = Some(Track::UNTRACKED);
        }
        free
    }

    /// Puts the packet into a zone, as nftables does: it is tracked there even if it was not to be.
    // Kernel: nft_ct.c, nft_ct_set_zone_eval: an untracked packet has no entry, either
    pub(crate) fn set_zone(&mut self, side: ZoneSide, zone: u16) {
        let free = self
            .track
            .is_none_or(|track| track.info == CtInfo::Untracked || track.is_about_untracked());
        if free && *self.zones == [0; 2] {
            *self.track = None;
            *self.zones = both_zones(side, zone);
        }
    }
}

const fn both_zones(side: ZoneSide, zone: u16) -> [u16; 2] {
    match side {
        ZoneSide::Both => [zone; 2],
        ZoneSide::Original => [zone, 0],
        ZoneSide::Reply => [0, zone],
    }
}

/// Counters, as `conntrack -S` names them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Tuples that NAT tried and found in use.
    pub found: u64,
    /// Packets without an entry.
    pub invalid: u64,
    /// Entries that entered the table. The kernel counts those of user space only.
    pub insert: u64,
    /// Entries that could not enter it.
    pub insert_failed: u64,
    /// Packets dropped for want of an entry.
    pub drop: u64,
    /// Entries that made way for a new one.
    pub early_drop: u64,
    /// ICMP messages that are about nothing known.
    pub error: u64,
    /// Clashes that were settled without loss.
    pub clash_resolve: u64,
    /// Entries that found too many others in their place of the hash table.
    pub chaintoolong: u64,
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
            Holder::Table(at) => table.get_mut(at),
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
