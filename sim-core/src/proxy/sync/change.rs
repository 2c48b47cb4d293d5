//! What has changed since the last sync.
//!
//! Kubernetes: pkg/proxy/servicechangetracker.go and endpointslicecache.go.

use std::collections::BTreeMap;

/// Changes of Services: for each, what it was at the last sync and what it is now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceChanges<K, V> {
    items: BTreeMap<K, Change<V>>,
}

/// What something was when the tracker was last drained, and what it is now; nothing where it was
/// not there, or is not any more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change<V> {
    /// Before.
    pub previous: Option<V>,
    /// Now.
    pub current: Option<V>,
}

impl<K, V> Default for ServiceChanges<K, V> {
    fn default() -> Self {
        ServiceChanges { items: BTreeMap::new() }
    }
}

impl<K: Ord, V: PartialEq> ServiceChanges<K, V> {
    /// Notes that `key` went from `previous` to `current`, and returns whether anything at all is
    /// to be synced. What comes back to where it was is no change.
    pub fn update(&mut self, key: K, previous: Option<V>, current: Option<V>) -> bool {
        let before = match self.items.remove(&key) {
            Some(earlier) => earlier.previous,
            None => previous,
        };
        if before != current {
            self.items.insert(key, Change { previous: before, current });
        }
        !self.items.is_empty()
    }

    /// Returns how many changes wait for a sync.
    pub fn pending(&self) -> usize {
        self.items.len()
    }

    /// Takes all changes, as the start of a sync does.
    pub fn drain(&mut self) -> BTreeMap<K, Change<V>> {
        std::mem::take(&mut self.items)
    }
}

/// EndpointSlices: for each Service those that the rules were made of, and those that have come
/// since.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SliceCache<K, N, V> {
    services: BTreeMap<K, Slices<N, V>>,
}

/// The slices of one Service; a pending slice without a value is to be removed.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Slices<N, V> {
    applied: BTreeMap<N, V>,
    pending: BTreeMap<N, Option<V>>,
}

impl<K, N, V> Default for SliceCache<K, N, V> {
    fn default() -> Self {
        SliceCache { services: BTreeMap::new() }
    }
}

impl<K: Ord + Clone, N: Ord + Clone, V: PartialEq + Clone> SliceCache<K, N, V> {
    /// Notes what slice `name` of `service` is now, `None` if it is gone, and returns whether that
    /// differs from what was known of it: whether a sync is due.
    ///
    /// A slice is compared with its newest value only. One that comes back to what is applied
    /// while another value waits asks for a sync that finds nothing to do.
    pub fn update(&mut self, service: K, name: N, slice: Option<V>) -> bool {
        let slices = self
            .services
            .entry(service)
            .or_insert_with(|| Slices { applied: BTreeMap::new(), pending: BTreeMap::new() });
        let differs = match (slices.pending.get(&name), slices.applied.get(&name)) {
            (Some(pending), _) => *pending != slice,
            (None, applied) => applied != slice.as_ref(),
        };
        if differs {
            slices.pending.insert(name, slice);
        }
        differs
    }

    /// Returns how many Services have slices that wait for a sync.
    pub fn pending(&self) -> usize {
        self.services.values().filter(|slices| !slices.pending.is_empty()).count()
    }

    /// Applies what waits, as the start of a sync does, and returns for each Service that had any
    /// its slices before and now.
    pub fn checkout(&mut self) -> BTreeMap<K, Change<BTreeMap<N, V>>> {
        let mut changes = BTreeMap::new();
        for (service, slices) in &mut self.services {
            if slices.pending.is_empty() {
                continue;
            }
            let previous = slices.applied.clone();
            for (name, slice) in std::mem::take(&mut slices.pending) {
                match slice {
                    Some(slice) => slices.applied.insert(name, slice),
                    None => slices.applied.remove(&name),
                };
            }
            let of = |slices: BTreeMap<N, V>| Some(slices).filter(|slices| !slices.is_empty());
            let change = Change { previous: of(previous), current: of(slices.applied.clone()) };
            changes.insert(service.clone(), change);
        }
        self.services.retain(|_, slices| !slices.applied.is_empty());
        changes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_that_is_taken_back_before_a_sync_is_none() {
        let mut changes = ServiceChanges::default();
        assert!(changes.update("web", Some(1), Some(2)));
        assert!(changes.update("web", Some(2), Some(3)));
        assert_eq!(changes.pending(), 1, "one Service, one change");
        assert!(!changes.update("web", Some(3), Some(1)), "back where it was");
        assert!(!changes.update("new", None, None));
        assert!(changes.update("new", None, Some(1)));
        assert!(!changes.update("new", Some(1), None), "made and deleted");
        assert!(changes.update("web", Some(1), Some(2)));
        assert!(changes.update("new", None, None), "another change still waits");
        let drained = changes.drain();
        assert_eq!(drained["web"], Change { previous: Some(1), current: Some(2) });
        assert_eq!((drained.len(), changes.pending()), (1, 0));
    }

    #[test]
    fn a_change_spans_all_updates_since_the_last_sync() {
        let mut changes = ServiceChanges::default();
        changes.update("web", Some("a"), Some("b"));
        changes.update("web", Some("b"), Some("c"));
        assert_eq!(changes.drain()["web"], Change { previous: Some("a"), current: Some("c") });
        changes.update("web", Some("c"), Some("d"));
        assert_eq!(changes.drain()["web"].previous, Some("c"), "from the last sync on");
    }

    #[test]
    fn slices_wait_until_a_sync_applies_them() {
        let mut cache = SliceCache::default();
        assert!(cache.update("web", "a", Some(vec![1, 2])));
        assert!(!cache.update("web", "a", Some(vec![1, 2])), "known");
        assert!(cache.update("web", "b", Some(vec![3])));
        let first = cache.checkout();
        assert_eq!(first["web"].previous, None);
        assert_eq!(first["web"].current.as_ref().unwrap().len(), 2);
        assert!(cache.checkout().is_empty());
        // One slice changes, the other stays as applied.
        assert!(cache.update("web", "a", Some(vec![1])));
        assert_eq!(cache.pending(), 1);
        let second = cache.checkout();
        assert_eq!(second["web"].current.as_ref().unwrap()["a"], [1]);
        assert_eq!(second["web"].current.as_ref().unwrap()["b"], [3]);
    }

    #[test]
    fn a_slice_that_comes_back_asks_for_a_sync_that_finds_nothing() {
        let mut cache = SliceCache::default();
        cache.update("web", "a", Some(1));
        cache.checkout();
        assert!(cache.update("web", "a", Some(2)));
        assert!(cache.update("web", "a", Some(1)), "it differs from what waits");
        let change = &cache.checkout()["web"];
        assert_eq!(change.previous, change.current);
    }

    #[test]
    fn removed_slices() {
        let mut cache: SliceCache<&str, &str, i32> = SliceCache::default();
        assert!(!cache.update("web", "a", None), "never there");
        cache.update("web", "a", Some(1));
        assert!(cache.update("web", "a", None), "it waits, to be removed");
        assert_eq!(cache.checkout()["web"].current, None);
        cache.update("web", "a", Some(1));
        cache.checkout();
        assert!(cache.update("web", "a", None));
        assert!(!cache.update("web", "a", None));
        let change = &cache.checkout()["web"];
        assert_eq!((change.previous.is_some(), change.current.is_some()), (true, false));
    }
}
