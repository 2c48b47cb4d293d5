//! Confirmation, and what happens if another packet of the same flow was faster.

use std::time::Duration;

use super::EntryRef;
use super::entry::{Direction, Entry, ProtocolState, Status};
use super::table::{Conntrack, hash};
use crate::time::SimTime;

/// Why a tentative entry does not enter the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unconfirmed {
    /// One of its tuples is another entry's.
    Clash,
    /// Too many others have its place.
    ChainTooLong,
}

/// Where a packet's connection is, now that it was confirmed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Confirmed {
    pub(crate) at: EntryRef,
    /// The connection was another packet's already, which went the other way.
    pub(crate) reversed: bool,
}

/// How long the loser of a clash lives.
const LOSER_TIMEOUT: Duration = Duration::from_secs(1);

/// Returns whether clashes of such a protocol are settled.
// Kernel: nf_conntrack_proto_udp.c, allow_clash
pub(super) fn allows(entry: &Entry) -> bool {
    matches!(entry.protocol, ProtocolState::Udp(_) | ProtocolState::UdpLite)
}

impl Conntrack {
    /// Enters a tentative entry into the table: both tuples or neither. If that is refused, it
    /// stays where it is.
    // Kernel: nf_conntrack_core.c, __nf_conntrack_confirm
    #[inline]
    pub(crate) fn confirm(
        &mut self,
        now: SimTime,
        own: &mut Option<Entry>,
    ) -> Result<Confirmed, Unconfirmed> {
        let entry = own.as_ref().expect("a tentative entry is with its packet");
        let original = self.find_exact(now, entry, Direction::Original);
        let reply = self.find_exact(now, entry, Direction::Reply);
        if let Some(winner) = original.or(reply) {
            return self.resolve_clash(now, own, winner, reply);
        }
        if self.buckets.is_some() {
            let hashes =
                [hash(&entry.original, entry.zones[0]), hash(&entry.reply, entry.zones[1])];
            if Conntrack::watches_chains(&self.sysctls) && self.chain_is_too_long(hashes) {
                self.stats.chaintoolong += 1;
                self.stats.insert_failed += 1;
                return Err(Unconfirmed::ChainTooLong);
            }
        }
        own.as_mut().expect("just looked at").status.insert(Status::CONFIRMED);
        self.stats.insert += 1;
        Ok(Confirmed { at: self.enter(own), reversed: false })
    }

    /// Returns the live entry that is found by the tuple of a direction of a tentative one.
    #[inline]
    pub(super) fn find_exact(
        &mut self,
        now: SimTime,
        entry: &Entry,
        direction: Direction,
    ) -> Option<(u32, Direction)> {
        self.find_beside(now, entry.tuple(direction), direction, entry.zones)
    }

    /// Settles that a tentative entry's tuples are in use.
    // Kernel: nf_conntrack_core.c, nf_ct_resolve_clash
    #[cold]
    fn resolve_clash(
        &mut self,
        now: SimTime,
        own: &mut Option<Entry>,
        winner: (u32, Direction),
        reply: Option<(u32, Direction)>,
    ) -> Result<Confirmed, Unconfirmed> {
        let loser = own.as_ref().expect("just looked at");
        let winning = self.entry_at(winner.0);
        if allows(winning) {
            let found = [Some(winner), reply].into_iter().flatten();
            let joined = found.map(|(index, _)| index).find_map(|index| {
                let reversed = joins(self.entry_at(index), loser)?;
                Some((index, reversed))
            });
            if let Some((index, reversed)) = joined {
                *own = None;
                self.stats.clash_resolve += 1;
                return Ok(Confirmed { at: self.entry_ref(index), reversed });
            }
            if reply.is_none() {
                let loser = own.as_mut().expect("just looked at");
                loser.deadline = now + LOSER_TIMEOUT;
                for fact in [Status::CONFIRMED, Status::FIXED_TIMEOUT, Status::NAT_CLASH] {
                    loser.status.insert(fact);
                }
                self.stats.clash_resolve += 1;
                return Ok(Confirmed { at: self.enter(own), reversed: false });
            }
        }
        self.stats.insert_failed += 1;
        self.stats.drop += 1;
        Err(Unconfirmed::Clash)
    }
}

/// Returns whether a packet with a tentative entry may go on with another entry, and whether it
/// goes the other way there.
// Kernel: nf_conntrack_core.c, __nf_ct_resolve_clash
fn joins(winner: &Entry, loser: &Entry) -> Option<bool> {
    let same = winner.original == loser.original
        && winner.reply == loser.reply
        && winner.zones == loser.zones;
    if same || !winner.nat_decided() {
        return Some(false);
    }
    let reversed = winner.original == loser.reply
        && winner.reply == loser.original
        && winner.zones == [loser.zones[1], loser.zones[0]];
    reversed.then_some(true)
}

#[cfg(test)]
mod tests;
