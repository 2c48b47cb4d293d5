//! Session affinity: which backend a client was last sent to.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use super::maps::{BackendId, Frontend, RevNatId, View};
use crate::time::SimTime;

/// What counts as one client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Client {
    /// An address, where packets are translated.
    Address(IpAddr),
    /// A network namespace, by its cookie, where sockets are.
    Namespace(u64),
}

/// `cilium_lb*_affinity`.
// Simplified: the affinity map of an agent has room for any number of clients; the least recently
// used of 65,536 would make way.
#[derive(Clone, Debug, Default)]
pub(super) struct Affinity {
    last: BTreeMap<(RevNatId, Client), (SimTime, BackendId)>,
}

impl Affinity {
    /// Returns the backend that a client stays with, and renews its time. An entry that is too old,
    /// or whose backend takes no new connections, is dropped.
    // Cilium: bpf/lib/lb.h, __lb4_affinity_backend_id: whole seconds, the end not included
    pub(super) fn of<V: View>(
        &mut self,
        view: &V,
        now: SimTime,
        frontend: &Frontend,
        client: Client,
    ) -> Option<BackendId> {
        let timeout = frontend.affinity?;
        let key = (frontend.rev_nat, client);
        let (last, backend) = self.last.get_mut(&key)?;
        let ends = whole_seconds(*last) + Duration::from_secs(timeout.into());
        if ends <= whole_seconds(now) || !view.affinity_match(frontend.rev_nat, *backend) {
            self.last.remove(&key);
            return None;
        }
        *last = now;
        Some(*backend)
    }

    /// Forgets who was sent to a backend whose number is to be given again.
    pub(super) fn forget(&mut self, backend: BackendId) {
        self.last.retain(|_, (_, other)| *other != backend);
    }

    /// Notes where a client was sent.
    pub(super) fn note(
        &mut self,
        now: SimTime,
        frontend: &Frontend,
        client: Client,
        backend: BackendId,
    ) {
        if frontend.affinity.is_some() {
            self.last.insert((frontend.rev_nat, client), (now, backend));
        }
    }
}

/// Returns a time as programs read it from the kernel.
// Cilium: bpf/lib/time.h, bpf_mono_now
pub(super) fn whole_seconds(time: SimTime) -> SimTime {
    SimTime::from_nanos(time.as_nanos() / 1_000_000_000 * 1_000_000_000)
}
