//! The elements of one set.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use hashbrown::HashTable;

use crate::device::DeviceName;
use crate::rule::SetSide;
use crate::set::key::{Key, masked};
use crate::set::sight::NoKey;
use crate::set::{Answer, Dimension, Element, Header, Part, SetError, SetKind, Sight};
use crate::time::SimTime;

/// A set.
#[derive(Clone)]
pub struct Set {
    name: Arc<str>,
    header: Header,
    table: HashTable<(Key, Kept)>,
    /// Which lengths of prefix there are, the longest first, for the first and second network.
    lens: [Lens; 2],
    /// The devices of each network of a `hash:net,iface`.
    devices: BTreeMap<(u128, u8, bool), Vec<Key>>,
    /// The members of a list, in the order in which they were added.
    members: BTreeMap<u64, (Arc<str>, Kept)>,
    /// Their places.
    member_places: BTreeMap<Arc<str>, u64>,
    /// Elements are missing that are not known.
    incomplete: bool,
}

/// What is kept of an element beside its key.
#[derive(Clone, Debug)]
struct Kept {
    /// When it leaves by itself; `MAX` never.
    deadline: SimTime,
    nomatch: bool,
    other: Option<Arc<str>>,
}

/// How many elements have a length of prefix.
#[derive(Clone, Debug, Default)]
struct Lens(Vec<(u8, u32)>);

impl Lens {
    fn iter(&self) -> impl Iterator<Item = u8> + Clone {
        self.0.iter().map(|(len, _)| *len)
    }

    fn place(&self, len: u8) -> Result<usize, usize> {
        self.0.binary_search_by(|(other, _)| len.cmp(other))
    }

    fn add(&mut self, len: u8) {
        match self.place(len) {
            Ok(at) => self.0[at].1 += 1,
            Err(at) => self.0.insert(at, (len, 1)),
        }
    }

    fn remove(&mut self, len: u8) {
        let Ok(at) = self.place(len) else {
            return;
        };
        self.0[at].1 -= 1;
        if self.0[at].1 == 0 {
            self.0.remove(at);
        }
    }
}

impl Kept {
    // Kernel: ip_set_timeout.h, ip_set_timeout_expired
    fn lives(&self, now: SimTime) -> bool {
        now <= self.deadline
    }
}

impl Set {
    /// Returns an empty set.
    pub fn new(name: impl Into<Arc<str>>, header: Header) -> Set {
        Set {
            name: name.into(),
            header,
            table: HashTable::new(),
            lens: Default::default(),
            devices: BTreeMap::new(),
            members: BTreeMap::new(),
            member_places: BTreeMap::new(),
            incomplete: false,
        }
    }

    /// Returns whether all elements are known. In a set that is not complete a packet that is not
    /// found may be all the same.
    pub fn is_complete(&self) -> bool {
        !self.incomplete
    }

    /// Notes that there are elements that are not known.
    pub fn set_incomplete(&mut self) {
        self.incomplete = true;
    }

    /// Returns the name.
    pub fn name(&self) -> &Arc<str> {
        &self.name
    }

    pub(super) fn rename(&mut self, name: &str) {
        self.name = name.into();
    }

    /// Returns what the set is.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// Returns how many elements the set holds, those included that have expired and not been
    /// cleared away.
    pub fn len(&self) -> usize {
        self.table.len() + self.members.len()
    }

    /// Returns whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the elements, sorted; the members of a list in its own order. Timeouts are what is
    /// left of them.
    pub fn elements(&self, now: SimTime) -> Vec<Element> {
        let left = |kept: &Kept| {
            self.header.timeout?;
            if kept.deadline == SimTime::MAX {
                return Some(0);
            }
            // Kernel: ip_set_timeout.h, ip_set_timeout_get: 0 would be for ever
            Some(kept.deadline.saturating_since(now).as_secs().max(1) as u32)
        };
        let element = |parts, kept: &Kept| Element {
            parts,
            nomatch: kept.nomatch,
            timeout: left(kept),
            other: kept.other.clone(),
        };
        let mut found: Vec<&(Key, Kept)> =
            self.table.iter().filter(|(_, kept)| kept.lives(now)).collect();
        found.sort_unstable_by_key(|(key, _)| *key);
        let (kind, v6) = (self.header.kind, self.header.v6);
        let elements = found.into_iter().map(|(key, kept)| element(key.parts(kind, v6), kept));
        let members = self.members.values().filter(|(_, kept)| kept.lives(now));
        let members = members.map(|(name, kept)| element(vec![Part::Set(name.clone())], kept));
        elements.chain(members).collect()
    }

    /// Returns the sets of a list.
    pub(super) fn members(&self, now: SimTime) -> impl Iterator<Item = &Arc<str>> {
        self.members.values().filter(move |(_, kept)| kept.lives(now)).map(|(name, _)| name)
    }

    /// Adds an element. With `exist`, one that is there gets its timeout anew.
    ///
    /// # Errors
    ///
    /// If the element is there, does not fit the set's type, or does not fit in.
    pub fn add(&mut self, element: &Element, exist: bool, now: SimTime) -> Result<(), SetError> {
        self.check(element)?;
        let kept = Kept {
            deadline: self.deadline(element.timeout, now),
            nomatch: element.nomatch,
            other: element.other.clone(),
        };
        if let [Part::Set(name)] = element.parts.as_slice() {
            return self.add_member(name, kept, exist, now);
        }
        self.add_key(self.normal(element.key()), kept, exist, now)
    }

    /// Deletes an element.
    ///
    /// # Errors
    ///
    /// If it is not there, or does not fit the set's type.
    pub fn delete(&mut self, element: &Element, now: SimTime) -> Result<(), SetError> {
        self.check(element)?;
        if let [Part::Set(name)] = element.parts.as_slice() {
            let at = self.member_places.remove(name).ok_or(SetError::Missing)?;
            self.members.remove(&at);
            return Ok(());
        }
        self.delete_key(&self.normal(element.key()), now)
    }

    /// Empties the set.
    pub fn flush(&mut self) {
        *self = Set::new(self.name.clone(), self.header.clone());
    }

    /// Returns whether an element is in the set as it stands, networks not being looked into.
    pub fn contains(&self, element: &Element, now: SimTime) -> bool {
        if let [Part::Set(name)] = element.parts.as_slice() {
            let place = self.member_places.get(name);
            return place.is_some_and(|at| self.members[at].1.lives(now));
        }
        self.check(element).is_ok()
            && self.find(&self.normal(element.key())).is_some_and(|(_, kept)| kept.lives(now))
    }

    /// Returns the key as the set keeps it.
    fn normal(&self, mut key: Key) -> Key {
        let Header { kind, v6, netmask, .. } = self.header;
        if let Some(len) = netmask {
            key.a = masked(key.a, len, v6);
        }
        if kind == SetKind::HashIpMark {
            key.extra &= u128::from(self.header.markmask());
        }
        key
    }

    fn check(&self, element: &Element) -> Result<(), SetError> {
        let Header { kind, v6, range, .. } = self.header;
        let dimensions = kind.dimensions();
        if element.parts.len() != dimensions.len() {
            return Err(SetError::Kind);
        }
        for (part, dimension) in element.parts.iter().zip(dimensions) {
            let fits = match (part, dimension) {
                (Part::Net(prefix), Dimension::Ip) => {
                    prefix.as_host().is_some_and(|address| address.is_ipv6() == v6)
                }
                (Part::Net(prefix), Dimension::Net) => {
                    // Kernel: ip_set_hash_netiface.c alone takes a prefix of length 0
                    if prefix.is_empty() && kind != SetKind::HashNetIface {
                        return Err(SetError::ZeroPrefix);
                    }
                    prefix.address().is_ipv6() == v6
                }
                (Part::Port(protocol, _), Dimension::Port) => {
                    protocol.is_none() == (kind == SetKind::BitmapPort)
                }
                (Part::Device { .. }, Dimension::Iface)
                | (Part::Mac(_), Dimension::Mac)
                | (Part::Mark(_), Dimension::Mark)
                | (Part::Set(_), Dimension::Set) => true,
                _ => false,
            };
            if !fits {
                return Err(SetError::Kind);
            }
        }
        if element.nomatch && !kind.has_networks() {
            return Err(SetError::Kind);
        }
        if let Some((first, last)) = range.filter(|_| kind.is_bitmap()) {
            let key = element.key();
            let value = if kind == SetKind::BitmapPort { u128::from(key.port) } else { key.a };
            if value < u128::from(first) || u128::from(last) < value {
                return Err(SetError::Range);
            }
        }
        Ok(())
    }

    fn deadline(&self, timeout: Option<u32>, now: SimTime) -> SimTime {
        let seconds = self.header.timeout.map(|default| timeout.unwrap_or(default));
        let seconds = seconds.filter(|seconds| *seconds > 0);
        seconds.map_or(SimTime::MAX, |seconds| now + Duration::from_secs(u64::from(seconds)))
    }

    fn add_member(
        &mut self,
        name: &Arc<str>,
        kept: Kept,
        exist: bool,
        now: SimTime,
    ) -> Result<(), SetError> {
        let place = self.member_places.get(name);
        if let Some((_, old)) = place.and_then(|at| self.members.get_mut(at)) {
            if old.lives(now) && !exist {
                return Err(SetError::Exists);
            }
            *old = kept;
            return Ok(());
        }
        let at = self.members.last_key_value().map_or(0, |(last, _)| last + 1);
        self.members.insert(at, (name.clone(), kept));
        self.member_places.insert(name.clone(), at);
        Ok(())
    }

    // Kernel: ip_set_hash_gen.h, mtype_add
    fn add_key(&mut self, key: Key, kept: Kept, exist: bool, now: SimTime) -> Result<(), SetError> {
        let hash = key.hash();
        let same = self.covering(&key).unwrap_or(key);
        if let Some((_, old)) = self.table.find_mut(same.hash(), |(other, _)| *other == same) {
            if old.lives(now) && !exist {
                return Err(SetError::Exists);
            }
            *old = kept;
            return Ok(());
        }
        let full = |set: &Set| {
            !set.header.kind.is_bitmap() && set.table.len() >= set.header.maxelem as usize
        };
        if full(self) {
            self.clear_expired(now);
            if full(self) {
                return Err(SetError::Full);
            }
        }
        // Kernel: ip_set_hash_netiface.c: a network has 64 devices at most
        let devices = self.devices.get(&(key.a, key.a_len, key.physdev));
        if devices.is_some_and(|devices| devices.len() >= 64) {
            return Err(SetError::Full);
        }
        self.table.insert_unique(hash, (key, kept), |(key, _)| key.hash());
        self.note(&key);
        Ok(())
    }

    /// Returns the element of a `hash:net,iface` whose beginning of a name takes the key in.
    // Kernel: ip_set_hash_netiface.c, hash_netiface4_data_equal
    fn covering(&self, key: &Key) -> Option<Key> {
        let devices = self.devices.get(&(key.a, key.a_len, key.physdev))?;
        let covers = |other: &&Key| other.wildcard && DeviceName::is_prefix(other.extra, key.extra);
        devices.iter().find(covers).copied()
    }

    fn delete_key(&mut self, key: &Key, now: SimTime) -> Result<(), SetError> {
        let Ok(found) = self.table.find_entry(key.hash(), |(other, _)| other == key) else {
            return Err(SetError::Missing);
        };
        let ((_, kept), _) = found.remove();
        self.forget(key);
        if kept.lives(now) { Ok(()) } else { Err(SetError::Missing) }
    }

    fn clear_expired(&mut self, now: SimTime) {
        let mut gone = Vec::new();
        self.table.retain(|(key, kept)| {
            let lives = kept.lives(now);
            if !lives {
                gone.push(*key);
            }
            lives
        });
        for key in &gone {
            self.forget(key);
        }
    }

    /// Counts the lengths of a new key's networks.
    fn note(&mut self, key: &Key) {
        for (lens, len) in self.lens.iter_mut().zip(self.header.lens(key)) {
            if let Some(len) = len {
                lens.add(len);
            }
        }
        if self.header.kind == SetKind::HashNetIface {
            self.devices.entry((key.a, key.a_len, key.physdev)).or_default().push(*key);
        }
    }

    fn forget(&mut self, key: &Key) {
        for (lens, len) in self.lens.iter_mut().zip(self.header.lens(key)) {
            if let Some(len) = len {
                lens.remove(len);
            }
        }
        let net = (key.a, key.a_len, key.physdev);
        if let Some(devices) = self.devices.get_mut(&net) {
            devices.retain(|other| other != key);
            if devices.is_empty() {
                self.devices.remove(&net);
            }
        }
    }

    fn find(&self, key: &Key) -> Option<&(Key, Kept)> {
        self.table.find(key.hash(), |(other, _)| other == key)
    }

    fn living(&self, key: &Key, now: SimTime) -> Option<&Kept> {
        self.find(key).map(|(_, kept)| kept).filter(|kept| kept.lives(now))
    }

    /// Returns whether a packet is in the set; lists are not looked into.
    pub(super) fn answer(&self, sides: &[SetSide], sight: &Sight<'_>, now: SimTime) -> Answer {
        let key = match sight.key(&self.header, sides) {
            Ok(key) => key,
            Err(NoKey::Absent) => return Answer::Out,
            Err(NoKey::Unknown) if self.is_empty() && !self.incomplete => return Answer::Out,
            Err(NoKey::Unknown) => return Answer::Unknown,
        };
        match self.lookup(key, now) {
            None if self.incomplete => Answer::Unknown,
            None => Answer::Out,
            Some(Kept { nomatch: true, .. }) => Answer::Nomatch,
            Some(_) => Answer::In,
        }
    }

    /// Returns the element that decides about a packet's key: of networks, the most specific one.
    // Kernel: ip_set_hash_gen.h, mtype_test_cidrs
    fn lookup(&self, key: Key, now: SimTime) -> Option<&Kept> {
        let v6 = self.header.v6;
        let [first, second] = &self.lens;
        match self.header.nets() {
            [false, false] => self.living(&key, now),
            [true, false] if self.header.kind == SetKind::HashNetIface => {
                self.lookup_device(key, now)
            }
            [true, false] => {
                first.iter().find_map(|len| self.living(&key.with_len(false, len, v6), now))
            }
            [false, true] => {
                second.iter().find_map(|len| self.living(&key.with_len(true, len, v6), now))
            }
            [true, true] => first.iter().find_map(|len| {
                let key = key.with_len(false, len, v6);
                second.iter().find_map(|len| self.living(&key.with_len(true, len, v6), now))
            }),
        }
    }

    /// Looks for a network with its device. A network that is there for other devices only hides
    /// the wider ones.
    // Kernel: ip_set_hash_netiface.c, hash_netiface4_data_equal: multi
    fn lookup_device(&self, key: Key, now: SimTime) -> Option<&Kept> {
        let [first, _] = &self.lens;
        for len in first.iter() {
            let key = key.with_len(false, len, self.header.v6);
            let Some(devices) = self.devices.get(&(key.a, key.a_len, false)) else {
                continue;
            };
            let fits = |other: &&Key| {
                other.extra == key.extra
                    || other.wildcard && DeviceName::is_prefix(other.extra, key.extra)
            };
            return devices.iter().filter(fits).find_map(|other| self.living(other, now));
        }
        None
    }

    /// Adds what a packet is, and returns whether that could be done.
    pub(super) fn add_packet(
        &mut self,
        sides: &[SetSide],
        sight: &Sight<'_>,
        (exist, timeout): (bool, Option<u32>),
        now: SimTime,
    ) -> bool {
        let Some(key) = self.packet_key(sides, sight) else {
            return false;
        };
        let deadline = self.deadline(timeout, now);
        self.add_key(key, Kept { deadline, nomatch: false, other: None }, exist, now).is_ok()
    }

    /// Deletes what a packet is, and returns whether that could be done.
    pub(super) fn delete_packet(
        &mut self,
        sides: &[SetSide],
        sight: &Sight<'_>,
        now: SimTime,
    ) -> bool {
        self.packet_key(sides, sight).is_some_and(|key| self.delete_key(&key, now).is_ok())
    }

    /// Returns the element that a packet adds: its networks are as long as the longest of the set.
    // Kernel: ip_set_hash_net.c, hash_net4_kadt: INIT_CIDR
    fn packet_key(&self, sides: &[SetSide], sight: &Sight<'_>) -> Option<Key> {
        let mut key = self.normal(sight.key(&self.header, sides).ok()?);
        let nets = self.header.nets();
        for (second, lens) in self.lens.iter().enumerate() {
            if let Some(len) = lens.iter().next().filter(|_| nets[second]) {
                key = key.with_len(second == 1, len, self.header.v6);
            }
        }
        let inside = |value: u128, (first, last): (u32, u32)| {
            u128::from(first) <= value && value <= u128::from(last)
        };
        let fits = match (self.header.kind, self.header.range) {
            (SetKind::BitmapPort, Some(range)) => inside(u128::from(key.port), range),
            (SetKind::BitmapIp, Some(range)) => inside(key.a, range),
            // Kernel: ip_set_hash_ip.c, hash_ip4_kadt
            (SetKind::HashIp, _) => key.a != 0,
            _ => true,
        };
        fits.then_some(key)
    }
}

impl Header {
    /// Returns whether the first and the second address are networks.
    fn nets(&self) -> [bool; 2] {
        let wide = |dimension: &&Dimension| matches!(dimension, Dimension::Ip | Dimension::Net);
        let mut addresses = self.kind.dimensions().iter().filter(wide);
        [(); 2].map(|()| addresses.next() == Some(&Dimension::Net))
    }

    fn lens(&self, key: &Key) -> [Option<u8>; 2] {
        let [first, second] = self.nets();
        [first.then_some(key.a_len), second.then_some(key.b_len)]
    }
}

impl fmt::Debug for Set {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Set { name, header, .. } = self;
        let len = self.len();
        f.debug_struct("Set")
            .field("name", name)
            .field("header", header)
            .field("len", &len)
            .finish()
    }
}
