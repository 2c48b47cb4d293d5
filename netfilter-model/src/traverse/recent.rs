//! The lists of `recent`.
// Kernel: xt_recent.c

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::packet::Packet;
use crate::rule::{RecentAction, RecentMatch};
use crate::time::HZ;

/// So many addresses fit a list.
// Kernel: xt_recent.c, ip_list_tot
const ADDRESSES_MAX: usize = 100;

/// So many stamps an address has if no rule asks for a hit count.
// Kernel: xt_recent.c, recent_mt_check
const STAMPS_DEFAULT: usize = 32;

/// A list of addresses and when they were seen.
#[derive(Clone, Debug)]
pub(super) struct RecentList {
    /// The mask of the rule that was first to name the list.
    mask: IpAddr,
    /// How many stamps an address keeps; a power of two.
    stamps_max: usize,
    entries: BTreeMap<IpAddr, Entry>,
    /// The addresses by when they were last used.
    by_use: BTreeMap<u64, IpAddr>,
    uses: u64,
}

#[derive(Clone, Debug)]
struct Entry {
    ttl: u8,
    /// Ticks, as a ring.
    stamps: Vec<u64>,
    /// Where the next stamp goes.
    next: usize,
    used: u64,
}

/// An address of a `recent` list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecentEntry<'l> {
    /// The address.
    pub address: IpAddr,
    /// The time to live of its last packet, before this host took a hop.
    pub ttl: u8,
    /// When it was seen, in ticks of 4 ms, as the ring holds them.
    pub stamps: &'l [u64],
}

impl RecentList {
    pub(super) fn new(mask: IpAddr) -> RecentList {
        let (entries, by_use) = (BTreeMap::new(), BTreeMap::new());
        RecentList { mask, stamps_max: 0, entries, by_use, uses: 0 }
    }

    /// Makes room for a rule's hit count. A list that grows forgets what it held.
    // Kernel: xt_recent.c, recent_mt_check
    pub(super) fn make_room(&mut self, hitcount: Option<u32>) {
        let wanted = match hitcount {
            None | Some(0) => STAMPS_DEFAULT,
            Some(hits) => (hits.min(65_535) as usize).next_power_of_two(),
        };
        if wanted > self.stamps_max {
            self.stamps_max = wanted;
            self.entries.clear();
            self.by_use.clear();
        }
    }

    pub(super) fn entries(&self) -> impl Iterator<Item = RecentEntry<'_>> {
        self.by_use.values().map(|address| {
            let entry = &self.entries[address];
            RecentEntry { address: *address, ttl: entry.ttl, stamps: &entry.stamps }
        })
    }

    // Kernel: xt_recent.c, recent_mt
    pub(super) fn matches(
        &mut self,
        wanted: &RecentMatch,
        packet: &Packet,
        ttl: u8,
        now: u64,
    ) -> bool {
        let tuple = &packet.tuple;
        let address = if wanted.destination { tuple.dst() } else { tuple.src() };
        let address = masked(address, self.mask);
        let entry = self
            .entries
            .get(&address)
            .filter(|entry| !wanted.ttl || ttl == 0 || entry.ttl == 0 || entry.ttl == ttl);
        let Some(entry) = entry else {
            if wanted.action != RecentAction::Set {
                return wanted.invert;
            }
            self.insert(address, ttl, now);
            return !wanted.invert;
        };
        let (found, update) = match wanted.action {
            RecentAction::Set => (true, true),
            RecentAction::Remove => {
                self.remove(address);
                (true, false)
            }
            action @ (RecentAction::Check | RecentAction::Update) => {
                let since = wanted.seconds.filter(|seconds| *seconds > 0).map(|seconds| {
                    // Nothing is older than the run.
                    now.saturating_sub(u64::from(seconds) * HZ)
                });
                let young = |stamp: &&u64| since.is_none_or(|since| **stamp >= since);
                let hits = wanted.hitcount.unwrap_or(0).max(1) as usize;
                let found = entry.stamps.iter().filter(young).take(hits).count() == hits;
                let update = action == RecentAction::Update && found != wanted.invert;
                if wanted.reap
                    && let Some(since) = since
                {
                    self.reap(since, address, update);
                }
                (found, update)
            }
        };
        if update {
            self.update(address, ttl, now);
        }
        found != wanted.invert
    }

    fn insert(&mut self, address: IpAddr, ttl: u8, now: u64) {
        if self.entries.len() >= ADDRESSES_MAX
            && let Some((_, oldest)) = self.by_use.pop_first()
        {
            self.entries.remove(&oldest);
        }
        let used = self.next_use(address);
        self.entries.insert(address, Entry { ttl, stamps: vec![now], next: 1, used });
    }

    fn update(&mut self, address: IpAddr, ttl: u8, now: u64) {
        let used = self.next_use(address);
        let max = self.stamps_max;
        let Some(entry) = self.entries.get_mut(&address) else {
            return;
        };
        self.by_use.remove(&entry.used);
        entry.used = used;
        entry.ttl = ttl;
        entry.next %= max;
        match entry.stamps.get_mut(entry.next) {
            Some(stamp) => *stamp = now,
            None => entry.stamps.push(now),
        }
        entry.next += 1;
    }

    fn next_use(&mut self, address: IpAddr) -> u64 {
        self.uses += 1;
        self.by_use.insert(self.uses, address);
        self.uses
    }

    fn remove(&mut self, address: IpAddr) {
        if let Some(entry) = self.entries.remove(&address) {
            self.by_use.remove(&entry.used);
        }
    }

    /// Removes the address that was not used for longest, if it was last seen before `since`.
    // Kernel: xt_recent.c, recent_entry_reap: not the one that is about to be updated
    fn reap(&mut self, since: u64, working: IpAddr, update: bool) {
        let Some((_, oldest)) = self.by_use.first_key_value() else {
            return;
        };
        let oldest = *oldest;
        let last = |entry: &Entry| entry.stamps.get(entry.next.wrapping_sub(1)).copied();
        let old = self.entries.get(&oldest).and_then(last).is_some_and(|stamp| stamp < since);
        if old && !(update && oldest == working) {
            self.remove(oldest);
        }
    }
}

fn masked(address: IpAddr, mask: IpAddr) -> IpAddr {
    match (address, mask) {
        (IpAddr::V4(address), IpAddr::V4(mask)) => {
            Ipv4Addr::from_bits(address.to_bits() & mask.to_bits()).into()
        }
        (IpAddr::V6(address), IpAddr::V6(mask)) => {
            Ipv6Addr::from_bits(address.to_bits() & mask.to_bits()).into()
        }
        _ => address,
    }
}

#[cfg(test)]
mod tests;
