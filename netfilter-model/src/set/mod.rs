//! ipsets: named sets of addresses, networks, ports and the like, which rules match and change.
// Kernel: net/netfilter/ipset
//!
//! A set of each type is a table of [`Element`]s; lookups take one probe, or one for each length
//! of prefix that the set holds.
//!
//! ```
//! use netfilter_model::set::{Header, Set, SetKind, Sets};
//! use netfilter_model::time::SimTime;
//!
//! let mut set = Set::new("vips", Header::new(SetKind::HashIpPort));
//! for element in set.parse_elements("10.96.0.10,udp:53").unwrap() {
//!     set.add(&element, false, SimTime::ZERO).unwrap();
//! }
//! let mut sets = Sets::default();
//! sets.insert(set);
//! assert!(sets.save(SimTime::ZERO).contains("add vips 10.96.0.10,udp:53"));
//! ```

mod element;
mod key;
mod kind;
mod sight;
mod table;
mod text;

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::rule::{SetSide, SetTarget};
use crate::time::SimTime;

pub use element::{Element, ElementError, Part};
pub use kind::{Dimension, SetKind};
pub use sight::Sight;
pub use table::Set;
pub(crate) use text::{is_set_name, parse_addresses, parse_number};

/// So many elements fit a set unless it says otherwise.
// Kernel: ip_set_hash_gen.h, IPSET_DEFAULT_MAXELEM
pub const MAXELEM_DEFAULT: u32 = 65_536;

/// What a set is, apart from its elements.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// Its type.
    pub kind: SetKind,
    /// `family inet6`.
    pub v6: bool,
    /// `hashsize`, which changes nothing here.
    pub hashsize: u32,
    /// `maxelem`.
    pub maxelem: u32,
    /// `timeout`, in seconds: what an element gets that names none; 0 is for ever.
    pub timeout: Option<u32>,
    /// `netmask`, as a length of prefix.
    pub netmask: Option<u8>,
    /// `markmask`.
    pub markmask: Option<u32>,
    /// `range` of a bitmap: first and last port or IPv4 address.
    pub range: Option<(u32, u32)>,
    /// `size` of a list, which changes nothing here.
    pub size: Option<u32>,
    /// Options that change nothing here, as printed: `counters`, `comment`, `skbinfo`,
    /// `forceadd`, `bucketsize N`, `initval N`.
    pub other: Vec<Arc<str>>,
}

impl Header {
    /// Returns the header of a set of this type with the defaults of ipset.
    pub fn new(kind: SetKind) -> Header {
        Header {
            kind,
            v6: false,
            hashsize: 1024,
            maxelem: MAXELEM_DEFAULT,
            timeout: None,
            netmask: None,
            markmask: None,
            range: None,
            size: None,
            other: Vec::new(),
        }
    }

    pub(crate) fn markmask(&self) -> u32 {
        self.markmask.unwrap_or(u32::MAX)
    }
}

/// Why an element is not added or deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SetError {
    /// It is there.
    #[error("the element is already added")]
    Exists,
    /// It is not there.
    #[error("the element is not added")]
    Missing,
    /// It is of another type or family.
    #[error("the element does not have the parts of the set's type and family")]
    Kind,
    /// It is a network of all addresses.
    #[error("a network of prefix length 0 is not accepted")]
    ZeroPrefix,
    /// It lies outside a bitmap.
    #[error("the element is out of the set's range")]
    Range,
    /// The set is full.
    #[error("the set is full")]
    Full,
}

/// What a lookup says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// Not there.
    Out,
    /// There.
    In,
    /// There, as an exception.
    Nomatch,
    /// Cannot be told.
    Unknown,
}

/// The sets of a network namespace, in the order in which they were made.
///
/// Cloning is cheap: sets are shared until one of them changes.
#[derive(Clone, Debug, Default)]
pub struct Sets {
    sets: Vec<Arc<Set>>,
    by_name: BTreeMap<Arc<str>, usize>,
}

impl Sets {
    /// Adds a set; one of the same name is replaced, in its place.
    pub fn insert(&mut self, set: Set) {
        match self.by_name.get(set.name()) {
            Some(at) => self.sets[*at] = Arc::new(set),
            None => {
                self.by_name.insert(set.name().clone(), self.sets.len());
                self.sets.push(Arc::new(set));
            }
        }
    }

    /// Returns a set.
    pub fn get(&self, name: &str) -> Option<&Set> {
        self.by_name.get(name).map(|at| &*self.sets[*at])
    }

    /// Returns a set, to change it.
    pub fn get_mut(&mut self, name: &str) -> Option<&mut Set> {
        self.by_name.get(name).map(|at| Arc::make_mut(&mut self.sets[*at]))
    }

    /// Removes a set and returns whether it was there.
    pub fn remove(&mut self, name: &str) -> bool {
        let Some(at) = self.by_name.remove(name) else {
            return false;
        };
        self.sets.remove(at);
        for other in self.by_name.values_mut().filter(|other| **other > at) {
            *other -= 1;
        }
        true
    }

    /// Exchanges what two sets hold, as `ipset swap` does, and returns whether both were there.
    pub fn swap(&mut self, one: &str, two: &str) -> bool {
        let (Some(&a), Some(&b)) = (self.by_name.get(one), self.by_name.get(two)) else {
            return false;
        };
        self.sets.swap(a, b);
        for at in [a, b] {
            let name = if at == a { one } else { two };
            Arc::make_mut(&mut self.sets[at]).rename(name);
        }
        true
    }

    /// Returns all sets, in the order in which they were made.
    pub fn iter(&self) -> impl Iterator<Item = &Set> {
        self.sets.iter().map(|set| &**set)
    }

    /// Returns how many sets there are.
    pub fn len(&self) -> usize {
        self.sets.len()
    }

    /// Returns whether there are none.
    pub fn is_empty(&self) -> bool {
        self.sets.is_empty()
    }

    /// Returns whether a packet is in a set, or `None` if that cannot be told, because the set is
    /// not known or the packet's part is not.
    // Kernel: ip_set_core.c, ip_set_test
    pub fn test(
        &self,
        name: &str,
        sides: &[SetSide],
        return_nomatch: bool,
        sight: &Sight<'_>,
        now: SimTime,
    ) -> Option<bool> {
        let set = self.get(name)?;
        match self.answer(set, sides, sight, now, return_nomatch) {
            Answer::In => Some(true),
            Answer::Out | Answer::Nomatch => Some(false),
            Answer::Unknown => None,
        }
    }

    /// Returns what a set says; with `return_nomatch` exceptions are what is looked for.
    fn answer(
        &self,
        set: &Set,
        sides: &[SetSide],
        sight: &Sight<'_>,
        now: SimTime,
        return_nomatch: bool,
    ) -> Answer {
        if set.header().kind == SetKind::ListSet {
            return self.answer_of_list(set, sides, sight, now, return_nomatch);
        }
        let answer = set.answer(sides, sight, now);
        match answer {
            Answer::In if return_nomatch && set.header().kind.has_networks() => Answer::Out,
            Answer::Nomatch if return_nomatch => Answer::In,
            answer => answer,
        }
    }

    // Kernel: ip_set_list_set.c, list_set_ktest: the first set that holds it
    fn answer_of_list(
        &self,
        list: &Set,
        sides: &[SetSide],
        sight: &Sight<'_>,
        now: SimTime,
        return_nomatch: bool,
    ) -> Answer {
        let mut seen = if list.is_complete() { Answer::Out } else { Answer::Unknown };
        for name in list.members(now) {
            // A list holds no lists.
            let member = self.get(name).filter(|set| set.header().kind != SetKind::ListSet);
            let answer = match member {
                Some(member) => self.answer(member, sides, sight, now, return_nomatch),
                None => Answer::Unknown,
            };
            match answer {
                Answer::In => return Answer::In,
                Answer::Unknown => seen = Answer::Unknown,
                Answer::Out | Answer::Nomatch => {}
            }
        }
        seen
    }

    /// Does what a `SET` target asks. Sets that are not known stay so.
    // Kernel: xt_set.c, set_target_v3
    pub(crate) fn apply(&mut self, target: &SetTarget, sight: &Sight<'_>, now: SimTime) {
        if let Some((name, sides)) = &target.add {
            let options = (target.exist, target.timeout);
            self.change(name, &mut |set| set.add_packet(sides, sight, options, now), now);
        }
        if let Some((name, sides)) = &target.delete {
            self.change(name, &mut |set| set.delete_packet(sides, sight, now), now);
        }
    }

    /// Changes a set; of a list the first member that takes the change.
    fn change(&mut self, name: &str, change: &mut dyn FnMut(&mut Set) -> bool, now: SimTime) {
        let Some(set) = self.get_mut(name) else {
            return;
        };
        if set.header().kind != SetKind::ListSet {
            change(set);
            return;
        }
        let members: Vec<Arc<str>> = set.members(now).cloned().collect();
        for member in members {
            let set = self.get_mut(&member);
            let set = set.filter(|set| set.header().kind != SetKind::ListSet);
            if set.is_some_and(&mut *change) {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests;
