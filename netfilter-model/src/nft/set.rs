//! Sets and maps: elements, and finding the one that a key lies in.

use std::collections::BTreeMap;
use std::sync::Arc;

use hashbrown::HashTable;

use crate::hash::Mix;
use crate::nft::rule::Verdict;
use crate::nft::value::Type;

/// First and last value of a field.
pub type Range = (u128, u128);

/// A set, map or verdict map.
#[derive(Clone, Debug)]
pub struct Set {
    /// Its name; empty for an anonymous one.
    pub name: Arc<str>,
    /// The types of a key's fields.
    pub key: Box<[Type]>,
    /// The expression that the types were given by, if they were.
    pub typeof_key: Option<Arc<str>>,
    /// What elements map to.
    pub data: SetData,
    /// Elements may be ranges.
    pub interval: bool,
    /// Elements may be added by packets.
    pub dynamic: bool,
    /// Elements may end.
    pub timeouts: bool,
    /// The set does not change.
    pub constant: bool,
    /// Ranges that touch are merged.
    pub auto_merge: bool,
    /// How many elements it can hold.
    pub size: Option<u32>,
    /// How long an element lives, in milliseconds.
    pub timeout: Option<u64>,
    /// How often dead elements are looked for, in milliseconds.
    pub gc_interval: Option<u64>,
    /// Elements have counters.
    pub counter: bool,
    /// The comment.
    pub comment: Option<Arc<str>>,
    elements: Vec<Element>,
    index: Index,
    /// The element for keys that are in no other.
    catch_all: Option<u32>,
    /// The place of its state, if packets or time change it.
    pub(crate) state: Option<u32>,
}

/// What the elements of a set map to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SetData {
    /// Nothing: a plain set.
    None,
    /// Values.
    Values {
        /// Their types.
        types: Box<[Type]>,
        /// The expression that the types were given by, if they were.
        typeof_data: Option<Arc<str>>,
        /// They may be ranges.
        interval: bool,
    },
    /// Verdicts.
    Verdict,
}

/// An element of a set.
#[derive(Clone, Debug, PartialEq)]
pub struct Element {
    /// First and last value of each field.
    pub key: Box<[Range]>,
    /// What it maps to.
    pub data: Data,
    /// How long it lives, in milliseconds, if not as the set says.
    pub timeout: Option<u64>,
    /// How long it has still to live, in milliseconds.
    pub expires: Option<u64>,
    /// The comment.
    pub comment: Option<Arc<str>>,
}

/// What an element maps to.
#[derive(Clone, Debug, PartialEq)]
pub enum Data {
    /// Nothing.
    None,
    /// Values, each a range.
    Values(Box<[Range]>),
    /// A verdict.
    Verdict(Verdict),
}

/// A set that a rule uses.
#[derive(Clone, Debug)]
pub enum SetUse {
    /// One of the table's.
    Named {
        /// Its place among the table's sets.
        index: u32,
        /// The types of its values.
        data: Box<[Type]>,
    },
    /// One of the rule's own.
    Anonymous(Arc<Set>),
}

impl PartialEq for SetUse {
    fn eq(&self, other: &SetUse) -> bool {
        match (self, other) {
            (SetUse::Named { index, .. }, SetUse::Named { index: other, .. }) => index == other,
            (SetUse::Anonymous(set), SetUse::Anonymous(other)) => **set == **other,
            _ => false,
        }
    }
}

/// Sets are equal if they say the same; the order of elements is no part of it.
impl PartialEq for Set {
    fn eq(&self, other: &Set) -> bool {
        let head = |set: &Set| {
            (
                set.name.clone(),
                set.key.clone(),
                set.data.clone(),
                [set.interval, set.dynamic, set.timeouts, set.constant, set.auto_merge],
                (set.size, set.timeout, set.gc_interval),
                set.comment.clone(),
            )
        };
        head(self) == head(other)
            && self.elements.len() == other.elements.len()
            && self.elements.iter().all(|element| {
                other.find(element.key.iter().map(|range| range.0)).is_some_and(|at| {
                    let twin = &other.elements[at];
                    twin.key == element.key && twin.data == element.data
                })
            })
    }
}

/// Where elements are.
#[derive(Clone, Debug)]
enum Index {
    /// By hash of single keys. Never iterated.
    Exact(HashTable<u32>),
    /// By start of disjoint ranges: first, last, position.
    Ranges(Vec<(u128, u128, u32)>),
    /// By field.
    Fields(Node),
    /// Not built yet.
    Stale,
}

/// Elements by one field: those whose range of it is the same are together.
#[derive(Clone, Debug, Default)]
struct Node {
    /// Ranges that are all values with some leading bits, by how many bits follow: one look for
    /// each such number.
    aligned: BTreeMap<(u8, u128), Branch>,
    /// The numbers of following bits that occur.
    widths: Vec<u8>,
    /// Other ranges, while elements are added.
    unaligned: BTreeMap<Range, Branch>,
    /// Other ranges by start, each with the largest end up to it.
    other: Vec<(Range, u128, Branch)>,
}

#[derive(Clone, Debug)]
enum Branch {
    Inner(Node),
    Leaf(u32),
}

/// Two elements of a set that cannot be told apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Overlap {
    /// The element that is kept.
    pub kept: usize,
    /// The element that is left out, or merged into the other.
    pub other: usize,
}

pub(crate) fn hash_key(key: impl Iterator<Item = u128>) -> u64 {
    let mut mix = Mix::new();
    for field in key {
        mix.word(field as u64);
        if field > u128::from(u64::MAX) {
            mix.word((field >> 64) as u64);
        }
    }
    mix.finish()
}

impl Set {
    /// Returns an empty set of keys of these types.
    pub fn new(name: impl Into<Arc<str>>, key: impl Into<Box<[Type]>>, data: SetData) -> Set {
        Set {
            name: name.into(),
            key: key.into(),
            typeof_key: None,
            data,
            interval: false,
            dynamic: false,
            timeouts: false,
            constant: false,
            auto_merge: false,
            size: None,
            timeout: None,
            gc_interval: None,
            counter: false,
            comment: None,
            elements: Vec::new(),
            index: Index::Stale,
            catch_all: None,
            state: None,
        }
    }

    /// Returns the elements that were declared, in order.
    pub fn elements(&self) -> &[Element] {
        &self.elements
    }

    /// Adds elements. They are found once [`Set::finish`] has been called.
    pub fn extend(&mut self, elements: impl IntoIterator<Item = Element>) {
        self.elements.extend(elements);
        self.index = Index::Stale;
        self.catch_all = None;
    }

    /// Removes all elements.
    pub fn clear(&mut self) {
        self.elements.clear();
        self.index = Index::Stale;
        self.catch_all = None;
    }

    /// Removes the elements with these keys.
    pub fn remove(&mut self, keys: &[Box<[Range]>]) {
        let keys: std::collections::BTreeSet<&[Range]> = keys.iter().map(|key| &**key).collect();
        self.elements.retain(|element| !keys.contains(&*element.key));
        self.index = Index::Stale;
        self.catch_all = None;
    }

    /// Returns the types of the values that elements map to.
    pub fn data_types(&self) -> &[Type] {
        match &self.data {
            SetData::Values { types, .. } => types,
            SetData::None | SetData::Verdict => &[],
        }
    }

    pub(crate) fn elements_mut(&mut self) -> &mut [Element] {
        &mut self.elements
    }

    /// Makes the elements findable and returns those that lie in others: sets keep one of two
    /// equal elements and merge ranges that overlap, maps keep the first.
    pub fn finish(&mut self) -> Vec<Overlap> {
        let mut overlaps = Vec::new();
        self.catch_all = None;
        if self.elements.len() > 1 {
            let all = |e: &Element| {
                e.key.iter().zip(&self.key).all(|(range, of)| *range == (0, of.largest()))
            };
            self.catch_all = self.elements.iter().position(all).map(|at| at as u32);
        }
        let exact = (0..self.elements.len() as u32).all(|at| {
            let element = &self.elements[at as usize];
            Some(at) == self.catch_all || element.key.iter().all(|range| range.0 == range.1)
        });
        self.index = if exact {
            self.index_exact(&mut overlaps)
        } else if self.key.len() == 1 {
            self.index_ranges(&mut overlaps)
        } else {
            self.index_fields(&mut overlaps)
        };
        overlaps
    }

    /// Returns the positions of the elements that are indexed.
    fn indexed(&self) -> impl Iterator<Item = u32> + use<> {
        let catch_all = self.catch_all;
        (0..self.elements.len() as u32).filter(move |at| Some(*at) != catch_all)
    }

    fn index_exact(&mut self, overlaps: &mut Vec<Overlap>) -> Index {
        let mut table: HashTable<u32> = HashTable::with_capacity(self.elements.len());
        let hash = |elements: &[Element], at: u32| {
            hash_key(elements[at as usize].key.iter().map(|range| range.0))
        };
        for at in self.indexed() {
            let elements = &self.elements;
            let same = |other: &u32| elements[*other as usize].key == elements[at as usize].key;
            let hashed = hash(elements, at);
            match table.find(hashed, same) {
                Some(kept) => overlaps.push(Overlap { kept: *kept as usize, other: at as usize }),
                None => {
                    table.insert_unique(hashed, at, |at| hash(elements, *at));
                }
            }
        }
        Index::Exact(table)
    }

    fn index_ranges(&mut self, overlaps: &mut Vec<Overlap>) -> Index {
        let mut order: Vec<u32> = self.indexed().collect();
        order.sort_by_key(|at| (self.elements[*at as usize].key[0], *at));
        let mut ranges: Vec<(u128, u128, u32)> = Vec::with_capacity(order.len());
        let merges = self.data == SetData::None;
        for at in order {
            let (min, max) = self.elements[at as usize].key[0];
            match ranges.last_mut() {
                Some((_, last, kept)) if min <= *last => {
                    overlaps.push(Overlap { kept: *kept as usize, other: at as usize });
                    if merges {
                        *last = (*last).max(max);
                    } else if max > *last {
                        // What is left of it behind the one that stands first.
                        let min = *last + 1;
                        ranges.push((min, max, at));
                    }
                }
                _ => ranges.push((min, max, at)),
            }
        }
        Index::Ranges(ranges)
    }

    fn index_fields(&mut self, overlaps: &mut Vec<Overlap>) -> Index {
        let mut root = Node::default();
        for at in self.indexed() {
            if let Some(kept) = root.insert(&self.elements[at as usize].key, at) {
                overlaps.push(Overlap { kept: kept as usize, other: at as usize });
            }
        }
        root.freeze();
        Index::Fields(root)
    }

    /// Returns the position of the element that a key lies in.
    #[inline]
    pub(crate) fn find(&self, key: impl Iterator<Item = u128> + Clone) -> Option<usize> {
        self.find_indexed(key).or(self.catch_all.map(|at| at as usize))
    }

    #[inline]
    fn find_indexed(&self, key: impl Iterator<Item = u128> + Clone) -> Option<usize> {
        match &self.index {
            Index::Exact(table) => {
                let same = |at: &u32| {
                    let element = &self.elements[*at as usize];
                    element.key.iter().map(|range| range.0).eq(key.clone())
                };
                table.find(hash_key(key.clone()), same).map(|at| *at as usize)
            }
            Index::Ranges(ranges) => {
                let value = key.clone().next()?;
                let next = ranges.partition_point(|(min, ..)| *min <= value);
                let (_, max, at) = ranges.get(next.checked_sub(1)?)?;
                (value <= *max).then_some(*at as usize)
            }
            Index::Fields(root) => root.find(key).map(|at| at as usize),
            Index::Stale => self.find_linear(key),
        }
    }

    /// Returns the same, looking at one element after the other.
    pub(crate) fn find_linear(&self, key: impl Iterator<Item = u128> + Clone) -> Option<usize> {
        let mut at = self.indexed().map(|at| at as usize);
        at.find(|at| {
            let ranges = self.elements[*at].key.iter();
            ranges.zip(key.clone()).all(|((min, max), value)| (*min..=*max).contains(&value))
        })
    }
}

/// Returns how many low bits are free in a range that is all values with some leading bits.
fn aligned_width(range: Range) -> Option<u8> {
    let span = range.0 ^ range.1;
    let aligned = span & span.wrapping_add(1) == 0 && range.0 & span == 0;
    aligned.then_some(span.count_ones() as u8)
}

fn without_low_bits(value: u128, width: u8) -> u128 {
    value & u128::MAX.checked_shl(u32::from(width)).unwrap_or(0)
}

impl Node {
    /// Adds an element; returns the one that has the same key, if there is one.
    fn insert(&mut self, key: &[Range], at: u32) -> Option<u32> {
        let (range, rest) = (key[0], &key[1..]);
        let fresh =
            || if rest.is_empty() { Branch::Leaf(at) } else { Branch::Inner(Node::default()) };
        let mut is_new = false;
        let branch = match aligned_width(range) {
            Some(width) => self.aligned.entry((width, range.0)).or_insert_with(|| {
                is_new = true;
                fresh()
            }),
            None => self.unaligned.entry(range).or_insert_with(|| {
                is_new = true;
                fresh()
            }),
        };
        match branch {
            Branch::Leaf(kept) => (!is_new).then_some(*kept),
            Branch::Inner(node) => node.insert(rest, at),
        }
    }

    fn freeze(&mut self) {
        self.widths = self.aligned.keys().map(|(width, _)| *width).collect();
        self.widths.dedup();
        let mut largest = 0;
        for (range, branch) in std::mem::take(&mut self.unaligned) {
            largest = range.1.max(largest);
            self.other.push((range, largest, branch));
        }
        let others = self.other.iter_mut().map(|(.., branch)| branch);
        for branch in self.aligned.values_mut().chain(others) {
            if let Branch::Inner(node) = branch {
                node.freeze();
            }
        }
    }

    /// Returns the element that was declared first of those that the key lies in.
    fn find(&self, mut key: impl Iterator<Item = u128> + Clone) -> Option<u32> {
        let value = key.next()?;
        let below = |branch: &Branch| match branch {
            Branch::Leaf(at) => Some(*at),
            // Boxed because the type of the iterator must not grow with the depth.
            Branch::Inner(node) => node.find_rest(key.clone()),
        };
        let aligned = self.widths.iter().filter_map(|width| {
            self.aligned.get(&(*width, without_low_bits(value, *width))).and_then(below)
        });
        let upto = self.other.partition_point(|(range, ..)| range.0 <= value);
        let other = self.other[..upto]
            .iter()
            .rev()
            .take_while(|(_, end, _)| *end >= value)
            .filter(|(range, ..)| range.1 >= value)
            .filter_map(|(.., branch)| below(branch));
        aligned.chain(other).min()
    }

    fn find_rest(&self, key: impl Iterator<Item = u128> + Clone) -> Option<u32> {
        self.find(key)
    }
}

impl SetUse {
    pub(crate) fn data_hint(&self) -> &[Type] {
        match self {
            SetUse::Named { data, .. } => data,
            SetUse::Anonymous(set) => set.data_types(),
        }
    }
}

impl Element {
    /// Returns the element of a single key.
    pub fn of(key: impl IntoIterator<Item = u128>) -> Element {
        Element::ranges(key.into_iter().map(|value| (value, value)))
    }

    /// Returns the element of a key of ranges.
    pub fn ranges(key: impl IntoIterator<Item = Range>) -> Element {
        let key = key.into_iter().collect();
        Element { key, data: Data::None, timeout: None, expires: None, comment: None }
    }

    /// Returns this element, mapping to something.
    pub fn to(self, data: Data) -> Element {
        Element { data, ..self }
    }
}

#[cfg(test)]
mod tests;
