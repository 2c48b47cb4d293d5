//! All events of a run.

use crate::engine::Kind;
use crate::ids::{Id, ServiceId};
use crate::proxy::sync;
use crate::{kube, net, traffic};

/// Something that happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// In the control plane or a kubelet.
    Kube(kube::Event),
    /// In the network.
    Net(net::Event),
    /// At a client or a server.
    Traffic(traffic::Event),
    /// In a proxy's sync loop.
    Sync(sync::Event),
    /// A Service's change is live on its last node.
    LastNode(ServiceId),
}

impl From<kube::Event> for Event {
    fn from(event: kube::Event) -> Event {
        Event::Kube(event)
    }
}

impl From<net::Event> for Event {
    fn from(event: net::Event) -> Event {
        Event::Net(event)
    }
}

impl From<sync::Event> for Event {
    fn from(event: sync::Event) -> Event {
        Event::Sync(event)
    }
}

impl From<traffic::Event> for Event {
    fn from(event: traffic::Event) -> Event {
        Event::Traffic(event)
    }
}

impl Event {
    /// Returns the index of the event's kind and what it concerns, for the fingerprint.
    pub fn what(self) -> (usize, u64) {
        let (kind, entity) = match self {
            Event::Kube(event) => event.kind(),
            Event::Net(event) => {
                let (kind, entity) = event.kind();
                (kube::Event::KINDS.len() + kind, entity)
            }
            Event::Traffic(event) => {
                let (kind, entity) = event.kind();
                (kube::Event::KINDS.len() + net::Event::KINDS.len() + kind, entity)
            }
            Event::LastNode(service) => (OTHERS, service.index()),
            // Last, so that runs without syncs keep their fingerprints.
            Event::Sync(event) => {
                let (kind, entity) = event.kind();
                (OTHERS + 1 + kind, entity)
            }
        };
        (kind, entity as u64)
    }
}

impl Kind for Event {
    const KINDS: &'static [&'static str] = &KINDS;

    fn kind(&self) -> usize {
        self.what().0
    }
}

const KINDS: [&str; COUNT] = {
    let mut all = [""; COUNT];
    let groups = [
        &kube::Event::KINDS as &[&str],
        &net::Event::KINDS,
        &traffic::Event::KINDS,
        &["last node"],
        &sync::Event::KINDS,
    ];
    let (mut at, mut group) = (0, 0);
    while group < groups.len() {
        let mut index = 0;
        while index < groups[group].len() {
            all[at] = groups[group][index];
            at += 1;
            index += 1;
        }
        group += 1;
    }
    all
};

/// Kinds of the three components that every run has.
const OTHERS: usize =
    kube::Event::KINDS.len() + net::Event::KINDS.len() + traffic::Event::KINDS.len();

const COUNT: usize = OTHERS + 1 + sync::Event::KINDS.len();

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_has_its_name() {
        let arrival = Event::Traffic(traffic::Event::Arrival(Id::from_index(3)));
        assert_eq!((KINDS[arrival.kind()], arrival.what().1), ("arrival", 3));
        let last = Event::LastNode(Id::from_index(0));
        assert_eq!(KINDS[last.kind()], "last node");
        let sync = Event::Sync(sync::Event::Due(Id::from_index(7)));
        assert_eq!((KINDS[sync.kind()], sync.what().1), ("sync", 7));
    }
}
