//! Schedulers: which real server a new connection gets.
//!
//! All walk the service's list of destinations, in the kernel's order, which is that of their
//! adding, newest first. A destination without weight or with too many connections gets none.

use std::net::IpAddr;
use std::sync::Arc;

use super::hashing::{self, Key};
use super::table::Load;
use super::{Destination, Service};

/// Where a scheduler stands in a service's list.
#[derive(Clone, Debug, Default)]
pub(super) struct Position {
    scheduler: Arc<str>,
    /// The list as it was when last looked at.
    seen: Vec<Seen>,
    /// `rr`, `wrr`: the destination that was chosen last; `None` is the list's head.
    last: Option<Place>,
    wrr: Wrr,
    /// `sh`, `mh`: which destination of the list each bucket has.
    buckets: Vec<u16>,
}

type Place = (IpAddr, u16);

/// A destination as it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Seen {
    pub(super) place: Place,
    pub(super) weight: u32,
    /// The last weight that was not 0.
    pub(super) last_weight: u32,
}

/// The thresholds of `wrr`.
#[derive(Clone, Copy, Debug, Default)]
struct Wrr {
    /// The weight that is asked for now.
    current: i64,
    /// The largest that is asked for.
    max: i64,
    /// The steps in which it falls.
    step: i64,
}

/// A destination with its connections.
pub(super) type Loaded<'d> = (&'d Destination, Load);

/// Returns whether a destination takes a connection.
fn is_free((to, load): &Loaded<'_>) -> bool {
    to.weight > 0 && !load.is_overloaded()
}

// Kernel: ip_vs.h, ip_vs_dest_conn_overhead
fn overhead(load: Load) -> u64 {
    (u64::from(load.active) << 8) + u64::from(load.inactive)
}

impl Position {
    /// Returns the place in the list of the real server that a client's new connection gets.
    // Simplified: the IPVS schedulers dh, lblc, lblcr, fo, ovf and twos choose as wlc does.
    pub(super) fn choose(
        &mut self,
        service: &Service,
        list: &[Loaded<'_>],
        client: (IpAddr, u16),
    ) -> Option<usize> {
        self.follow(service);
        let free = || list.iter().enumerate().filter(|(_, loaded)| is_free(loaded));
        // Kernel: a later one must be better: less load by weight, compared across.
        let least = |load: fn(Load) -> u64| {
            let mut best: Option<(usize, u64, u64)> = None;
            for (at, (to, of)) in free() {
                let (load, weight) = (load(*of), u64::from(to.weight));
                if best.is_none_or(|(_, least, by)| least * weight > load * by) {
                    best = Some((at, load, weight));
                }
            }
            best.map(|(at, ..)| at)
        };
        let delay = |load: Load| u64::from(load.active) + 1;
        match &*service.scheduler {
            "rr" => self.rr(list),
            "wrr" => self.wrr(list),
            // Kernel: ip_vs_lc.c
            "lc" => free().min_by_key(|(at, (_, load))| (overhead(*load), *at)).map(|(at, _)| at),
            // Kernel: ip_vs_sed.c
            "sed" => least(delay),
            // Kernel: ip_vs_nq.c
            "nq" => {
                let idle = free().find(|(_, (_, load))| load.active == 0).map(|(at, _)| at);
                idle.or_else(|| least(delay))
            }
            "sh" | "mh" => {
                let key = Key::of(service, client);
                hashing::choose(&self.buckets, key, |at| list.get(at).is_some_and(is_free))
            }
            // Kernel: ip_vs_wlc.c
            _ => least(overhead),
        }
    }

    /// Brings the position up to date with the service's list.
    // Simplified: changes of an IPVS service between two of its new connections come in the order
    // in which kube-proxy makes them: additions first, each by itself, then the rest at once.
    fn follow(&mut self, service: &Service) {
        if self.scheduler != service.scheduler {
            *self = Position { scheduler: service.scheduler.clone(), ..Position::default() };
        }
        let place = |to: &Destination| (to.address, to.port);
        let is_same =
            |(to, seen): (&Destination, &Seen)| place(to) == seen.place && to.weight == seen.weight;
        let destinations = &service.destinations;
        if destinations.len() == self.seen.len() && destinations.iter().zip(&self.seen).all(is_same)
        {
            return;
        }
        let now: Vec<Seen> = destinations.iter().map(|to| self.seen_now(to)).collect();
        for new in now.iter().rev() {
            if !self.seen.iter().any(|seen| seen.place == new.place) {
                self.seen.insert(0, *new);
                self.changed();
            }
        }
        // Kernel: ip_vs_rr.c, ip_vs_rr_del_dest: back to the one in front of it.
        while let Some(last) = self.last.filter(|last| !now.iter().any(|seen| seen.place == *last))
        {
            let at = self.seen.iter().position(|seen| seen.place == last);
            let before = at.and_then(|at| at.checked_sub(1));
            self.last = before.map(|at| self.seen[at].place);
        }
        if self.seen != now {
            self.seen = now;
            self.changed();
        }
        self.buckets = match &*service.scheduler {
            "sh" => hashing::source_buckets(&self.seen),
            "mh" => hashing::maglev_buckets(&self.seen),
            _ => Vec::new(),
        };
    }

    fn seen_now(&self, to: &Destination) -> Seen {
        let place = (to.address, to.port);
        let before = self.seen.iter().find(|seen| seen.place == place);
        let last_weight = match to.weight {
            0 => before.map_or(0, |seen| seen.last_weight),
            weight => weight,
        };
        Seen { place, weight: to.weight, last_weight }
    }

    /// Sets the thresholds anew after a change of the list.
    // Kernel: ip_vs_wrr.c, ip_vs_wrr_dest_changed
    fn changed(&mut self) {
        if &*self.scheduler != "wrr" {
            return;
        }
        let weights = || self.seen.iter().map(|seen| i64::from(seen.weight));
        let step = weights().filter(|weight| *weight > 0).reduce(gcd).unwrap_or(1);
        let max = weights().max().unwrap_or(0) - (step - 1);
        let mut current = self.wrr.current;
        if current > max || current == 0 {
            current = max;
        } else if step > 1 {
            current = current / step * step + 1;
        }
        self.wrr = Wrr { current, max, step };
        self.last = None;
    }

    // Kernel: ip_vs_rr.c, ip_vs_rr_schedule
    fn rr(&mut self, list: &[Loaded<'_>]) -> Option<usize> {
        let last = self.last_place();
        let first = last.map_or(0, |at| at + 1);
        // From behind the last one to its end, then from the head up to the last one itself.
        let order = (first..list.len()).chain(0..first.min(list.len()));
        let chosen = order.into_iter().find(|at| is_free(&list[*at]))?;
        self.last = self.seen.get(chosen).map(|seen| seen.place);
        Some(chosen)
    }

    /// Returns where the destination that was chosen last stands.
    fn last_place(&self) -> Option<usize> {
        let last = self.last?;
        self.seen.iter().position(|seen| seen.place == last)
    }

    // Kernel: ip_vs_wrr.c, ip_vs_wrr_schedule
    fn wrr(&mut self, list: &[Loaded<'_>]) -> Option<usize> {
        if self.wrr.max == 0 {
            return None;
        }
        let start = self.last_place();
        let mut from = start.map_or(0, |at| at + 1);
        let (mut stop, mut last_pass, mut restarted) = (None, false, false);
        loop {
            for (at, (to, load)) in list.iter().enumerate().skip(from) {
                if !load.is_overloaded() && i64::from(to.weight) >= self.wrr.current {
                    self.last = self.seen.get(at).map(|seen| seen.place);
                    return Some(at);
                }
                if stop == Some(at) {
                    self.last = self.seen.get(at).map(|seen| seen.place);
                    return None;
                }
            }
            from = 0;
            self.wrr.current -= self.wrr.step;
            if self.wrr.current <= 0 {
                self.wrr.current = self.wrr.max;
                if last_pass || start.is_none() {
                    self.last = None;
                    return None;
                }
                restarted = true;
            }
            last_pass = self.wrr.current <= self.wrr.step;
            if last_pass && restarted {
                stop = start;
            }
        }
    }
}

fn gcd(a: i64, b: i64) -> i64 {
    if b == 0 { a } else { gcd(b, a % b) }
}
