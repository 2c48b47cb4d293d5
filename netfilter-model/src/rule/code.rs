//! Rulesets as compact code: what traversal runs when nobody watches it.
//!
//! The rules of a table, written for one walk through memory: a chain is a header and its rules, a
//! rule its tests and what it does. A Service's chains lie side by side, so that a new connection
//! touches a handful of cache lines where the rules themselves are spread over dozens. Only what
//! kube-proxy, CNIs and their like write often has operations of its own; everything else refers
//! to the rule.

use std::collections::BTreeMap;
use std::hint::black_box;
use std::net::IpAddr;

use crate::rule::{
    Chain, Match, Nat, NatAddresses, NatFlags, NatRange, PortMatch, Rule, RuleKey, Target,
};
use crate::tuple::{Addresses, Protocol, Tuple};

/// Operations: the low byte of a word. The byte above holds 1 for `!`.
pub(crate) mod op {
    /// `[RULE | length << 8]`: begins a rule; the next one is so many words on.
    pub(crate) const RULE: u32 = 0;
    /// `[SRC, net, mask]`
    pub(crate) const SRC: u32 = 1;
    /// `[DST, net, mask]`
    pub(crate) const DST: u32 = 2;
    /// `[PROTOCOL | protocol << 16]`
    pub(crate) const PROTOCOL: u32 = 3;
    /// `[DPORT | protocol << 16, min << 16 | max]`: of a packet of TCP or UDP.
    pub(crate) const DPORT: u32 = 4;
    /// `[MARK, value, mask]`
    pub(crate) const MARK: u32 = 5;
    /// `[CT_STATE | states << 16]`
    pub(crate) const CT_STATE: u32 = 6;
    /// `[RULE_TEST]`: all conditions of the rule.
    pub(crate) const RULE_TEST: u32 = 7;
    /// `[RUN | rules << 8, position, law, limits, target …, end]`: rules that ask nothing but
    /// `statistic --mode random`, the first at that position; their law is so many limits from
    /// `law` on. Has no `RULE` in front. A target is a chain, or [`ACTION`] and where an operation
    /// lies; the run ends at `end`.
    pub(crate) const RUN: u32 = 8;
    /// `[JUMP, chain]`
    pub(crate) const JUMP: u32 = 9;
    /// `[GOTO, chain]`
    pub(crate) const GOTO: u32 = 10;
    /// `[SET_MARK, value, mask]`
    pub(crate) const SET_MARK: u32 = 11;
    /// `[DNAT | port << 16, address, owner, item]`: to one address and one port.
    pub(crate) const DNAT: u32 = 12;
    /// `[RULE_TARGET]`: what the rule does.
    pub(crate) const RULE_TARGET: u32 = 13;
    /// `[INDEX, index, rules]`: the rules are found by destination.
    pub(crate) const INDEX: u32 = 14;
    /// `[END]`
    pub(crate) const END: u32 = 15;
    /// `[RETURN]`
    pub(crate) const RETURN: u32 = 16;
    /// `[ENDPOINTS | rules << 8, position, law, limits, end, endpoint …]`: a [`RUN`] whose targets
    /// are all chains of an endpoint, as kube-proxy writes them: what comes from the endpoint's own
    /// address is marked, the rest goes there. So much of such a chain is here that few packets
    /// need the chain: `[chain, DNAT | protocol << 8 | port << 16, address, owner, item]`, where
    /// the chain is a number and the protocol may be 0 for any.
    pub(crate) const ENDPOINTS: u32 = 17;
    /// `!`
    pub(crate) const NOT: u32 = 1 << 8;
}

/// Words of a chain's header: its index, and the number of its first operation.
pub(crate) const HEADER: u32 = 1;

/// In a run, a target that is no chain: where the operation lies.
pub(crate) const ACTION: u32 = 1 << 31;

/// In an index, what is no rule and no target: the chain that the rule jumps to.
pub(crate) const CALL: u32 = 1 << 31;

/// In an index, stands for several rules of one key.
const SEVERAL: u32 = u32::MAX;

/// Words of an endpoint in [`op::ENDPOINTS`].
pub(crate) const ENDPOINT: u32 = 5;

/// Words of a cache line.
const LINE: usize = 16;

/// Lines of a called chain that are worth waiting for early: a Service with ten endpoints.
const AHEAD: usize = 5;

/// The code of a table.
#[derive(Clone, Debug, Default)]
pub struct Code {
    /// Operations, behind what fills the first cache line.
    buffer: Vec<u32>,
    fill: usize,
    /// Where each chain begins.
    starts: Box<[u32]>,
    indexes: Box<[CodeIndex]>,
    /// The largest of them.
    largest: Option<u32>,
    /// The limits of the laws of runs. Most runs are of few lengths, and fair: they share theirs.
    limits: Box<[u64]>,
}

/// Where a chain's rules stand and lie, by destination.
#[derive(Clone, Debug)]
pub(crate) struct CodeIndex {
    /// A power of two, probed in turn: for each key its rule. Never iterated.
    slots: Box<[Entry]>,
    /// Rules that share their keys, sorted by key and position.
    shared: Box<[Entry]>,
    /// Positions of the rules without a key, rising, and where they lie.
    others: Box<[(u32, u32)]>,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    key: u64,
    position: u32,
    at: u32,
}

impl Entry {
    /// No key is that large.
    const FREE: Entry = Entry { key: u64::MAX, position: 0, at: 0 };
}

/// Returns a packed key: address, protocol, port.
#[inline]
pub(crate) fn packed(dst: u32, protocol: Protocol, dport: u16) -> u64 {
    u64::from(dst) << 24 | u64::from(protocol.0) << 16 | u64::from(dport)
}

impl CodeIndex {
    /// Returns the first rule from position `from` on that may match: its position and where it
    /// lies.
    #[inline]
    pub(crate) fn next(&self, key: u64, from: u32) -> Option<(u32, u32)> {
        let other = self.others.partition_point(|(position, _)| *position < from);
        let other = self.others.get(other).copied();
        let keyed = self.keyed(key, from);
        match (keyed, other) {
            (Some(keyed), Some(other)) => Some(if keyed.0 < other.0 { keyed } else { other }),
            (keyed, other) => keyed.or(other),
        }
    }

    #[inline]
    fn keyed(&self, key: u64, from: u32) -> Option<(u32, u32)> {
        let entry = self.slot(key)?;
        if entry.at == SEVERAL {
            let next = self.shared.partition_point(|e| (e.key, e.position) < (key, from));
            let entry = self.shared.get(next).filter(|entry| entry.key == key)?;
            return Some((entry.position, entry.at));
        }
        (entry.position >= from).then_some((entry.position, entry.at))
    }

    #[inline]
    fn slot(&self, key: u64) -> Option<&Entry> {
        let mut at = self.place(key);
        loop {
            let entry = &self.slots[at & (self.slots.len() - 1)];
            if entry.key == key {
                return Some(entry);
            }
            if entry.key == Entry::FREE.key {
                return None;
            }
            at += 1;
        }
    }

    #[inline]
    fn place(&self, key: u64) -> usize {
        let product = key.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (product ^ product >> 32) as usize
    }

    /// Returns the index of rules that are sorted by key and position.
    fn of(entries: &[Entry], others: Vec<(u32, u32)>) -> CodeIndex {
        // One slot more than entries, that a search ends.
        let slots = vec![Entry::FREE; (entries.len() * 4 / 3 + 1).next_power_of_two()];
        let mut index =
            CodeIndex { slots: slots.into(), shared: Box::default(), others: others.into() };
        let mut shared = Vec::new();
        for same in entries.chunk_by(|a, b| a.key == b.key) {
            let mut entry = same[0];
            if same.len() > 1 {
                entry.at = SEVERAL;
                shared.extend_from_slice(same);
            }
            let mut at = index.place(entry.key);
            while index.slots[at & (index.slots.len() - 1)].key != Entry::FREE.key {
                at += 1;
            }
            let mask = index.slots.len() - 1;
            index.slots[at & mask] = entry;
        }
        index.shared = shared.into();
        index
    }
}

impl Code {
    /// Returns the code of a table's chains.
    pub(crate) fn of(chains: &[Chain]) -> Code {
        let mut writer = Writer::new(chains);
        let mut aside = Vec::new();
        let mut laid = vec![false; chains.len()];
        // What a chain calls lies behind it.
        for first in 0..chains.len() as u32 {
            let mut next = vec![first];
            while let Some(index) = next.pop() {
                if std::mem::replace(&mut laid[index as usize], true) {
                    continue;
                }
                if writer.absorbed[index as usize] {
                    aside.push(index);
                    continue;
                }
                let chain = &chains[index as usize];
                writer.lay(chain);
                next.extend(chain.rules.iter().rev().filter_map(callee));
            }
        }
        for index in aside {
            writer.lay(&chains[index as usize]);
        }
        writer.finish()
    }

    /// Reads what a first packet with this tuple will need, so that it is waited for along with
    /// what else is waited for at present.
    #[inline]
    pub(crate) fn look_ahead(&self, tuple: &Tuple) {
        let (Some(largest), Addresses::V4 { dst, .. }) = (self.largest, tuple.addresses()) else {
            return;
        };
        let key = packed(dst.to_bits(), tuple.protocol, tuple.dst_part);
        let place = self.index(largest).slot(key).map_or(0, |entry| entry.at);
        if place & CALL == 0 {
            return;
        }
        let lines = self.words()[(place & !CALL) as usize..].iter().step_by(LINE).take(AHEAD);
        black_box(lines.fold(0, |all, word| all | word));
    }

    /// Returns where a chain begins.
    #[inline]
    pub(crate) fn start(&self, chain: u32) -> u32 {
        self.starts[chain as usize]
    }

    #[inline]
    pub(crate) fn words(&self) -> &[u32] {
        &self.buffer[self.fill..]
    }

    /// Returns so many limits from one on.
    #[inline]
    pub(crate) fn limits(&self, from: u32, count: u32) -> &[u64] {
        &self.limits[from as usize..][..count as usize]
    }

    #[inline]
    pub(crate) fn index(&self, index: u32) -> &CodeIndex {
        &self.indexes[index as usize]
    }
}

/// Where a chain's rules lie, while words may still move.
struct Places {
    /// Rules with a key, sorted.
    keyed: Vec<Entry>,
    others: Vec<(u32, u32)>,
}

struct Writer<'c> {
    chains: &'c [Chain],
    words: Vec<u32>,
    starts: Vec<u32>,
    /// Chains that are written where they are called.
    absorbed: Vec<bool>,
    indexes: Vec<Places>,
    limits: Vec<u64>,
    laws: BTreeMap<Box<[u64]>, u32>,
    /// Words that hold a chain's number and shall hold where it begins.
    calls: Vec<usize>,
}

impl<'c> Writer<'c> {
    fn new(chains: &'c [Chain]) -> Writer<'c> {
        Writer {
            chains,
            words: Vec::new(),
            starts: vec![0; chains.len()],
            absorbed: vec![false; chains.len()],
            indexes: Vec::new(),
            limits: Vec::new(),
            laws: BTreeMap::new(),
            calls: Vec::new(),
        }
    }

    /// Writes a chain such that it touches no more cache lines than it must.
    fn lay(&mut self, chain: &Chain) {
        let start = self.words.len();
        let (indexes, calls) = (self.indexes.len(), self.calls.len());
        self.chain(chain);
        let room = LINE - start % LINE;
        if room < (self.words.len() - start).min(LINE) {
            self.words.truncate(start);
            self.words.resize(start + room, op::END);
            self.indexes.truncate(indexes);
            self.calls.truncate(calls);
            self.chain(chain);
        }
    }

    fn chain(&mut self, chain: &Chain) {
        self.starts[chain.id.index as usize] = self.words.len() as u32;
        self.words.push(chain.id.index);
        // In a run, one draw decides about all rules: no index may pass over some.
        let indexed = chain.index.is_some() && chain.runs.is_empty();
        if indexed {
            let count = chain.rules.len() as u32;
            self.words.extend([op::INDEX, self.indexes.len() as u32, count]);
        }
        let mut keyed = Vec::new();
        let mut others = Vec::new();
        let mut position = 0;
        while let Some(rule) = chain.rules.get(position) {
            let at = self.words.len() as u32;
            if let Some(run) = chain.run_at(position as u32) {
                self.run(chain, run);
                position = run.end() as usize;
                continue;
            }
            self.rule(rule);
            match (indexed, rule.key()) {
                (true, Some(RuleKey { dst: IpAddr::V4(dst), protocol, dport })) => {
                    let key = packed(dst.to_bits(), protocol, dport);
                    let at = if asks_only_key(rule) { self.target_of(at) } else { at };
                    keyed.push(Entry { key, position: position as u32, at });
                }
                (true, _) => others.push((position as u32, at)),
                (false, _) => {}
            }
            position += 1;
        }
        self.words.push(op::END);
        if indexed {
            keyed.sort_by_key(|entry| (entry.key, entry.position));
            self.indexes.push(Places { keyed, others });
        }
    }

    /// Returns where the target of the rule at a place lies.
    fn target_of(&self, rule: u32) -> u32 {
        let mut at = rule as usize + 1;
        loop {
            at += match self.words[at] & 0xff {
                op::SRC | op::DST | op::MARK => 3,
                op::DPORT => 2,
                op::PROTOCOL | op::CT_STATE | op::RULE_TEST => 1,
                _ => return at as u32,
            };
        }
    }

    fn rule(&mut self, rule: &Rule) {
        let start = self.words.len();
        self.words.push(op::RULE);
        if !self.tests(rule) {
            self.words.truncate(start + 1);
            self.words.push(op::RULE_TEST);
        }
        self.target(rule);
        let len = (self.words.len() - start) as u32;
        self.words[start] |= len << 8;
    }

    /// Writes a rule's conditions; returns false if one has no operation.
    fn tests(&mut self, rule: &Rule) -> bool {
        let mut protocol = None;
        let conditions = rule.matches();
        for (i, condition) in conditions.iter().enumerate() {
            let not = |invert: bool| if invert { op::NOT } else { 0 };
            match condition {
                Match::Comment(_) => {}
                Match::Source { prefix, invert } => match prefix.as_v4() {
                    Some((net, mask)) => self.words.extend([op::SRC | not(*invert), net, mask]),
                    None => return false,
                },
                Match::Destination { prefix, invert } => match prefix.as_v4() {
                    Some((net, mask)) => self.words.extend([op::DST | not(*invert), net, mask]),
                    None => return false,
                },
                Match::Protocol { protocol: Protocol(0), .. } => return false,
                Match::Protocol { protocol: wanted, invert } => {
                    protocol = Some(*wanted).filter(|_| !invert);
                    // The port's operation asks for it too.
                    let tested = conditions[i + 1..].iter().any(|m| port_of(m).is_some());
                    if protocol.is_none() || !tested {
                        let protocol = u32::from(wanted.0) << 16;
                        self.words.push(op::PROTOCOL | not(*invert) | protocol);
                    }
                }
                Match::Mark { value, mask, invert } => {
                    self.words.extend([op::MARK | not(*invert), *value, *mask]);
                }
                Match::CtState { states, invert } | Match::State { states, invert } => {
                    self.words.push(op::CT_STATE | not(*invert) | u32::from(states.bits()) << 16);
                }
                condition => match (port_of(condition), protocol) {
                    (Some(PortMatch { min, max, invert }), Some(protocol)) => {
                        let range = u32::from(min) << 16 | u32::from(max);
                        let protocol = u32::from(protocol.0) << 16;
                        self.words.extend([op::DPORT | not(invert) | protocol, range]);
                    }
                    _ => return false,
                },
            }
        }
        true
    }

    fn target(&mut self, rule: &Rule) {
        match rule.target() {
            Target::Jump(chain) => self.call(op::JUMP, chain.index),
            Target::Goto(chain) => self.call(op::GOTO, chain.index),
            Target::Return => self.words.push(op::RETURN),
            Target::Mark { value, mask } => self.words.extend([op::SET_MARK, *value, *mask]),
            Target::Nat(Nat::Dnat(range)) => match one_address(range) {
                Some((address, port)) => {
                    let port = u32::from(port) << 16;
                    let origin = rule.origin;
                    self.words.extend([op::DNAT | port, address, origin.owner, origin.item]);
                }
                None => self.words.push(op::RULE_TARGET),
            },
            _ => self.words.push(op::RULE_TARGET),
        }
    }

    fn call(&mut self, operation: u32, chain: u32) {
        self.words.push(operation);
        self.calls.push(self.words.len());
        self.words.push(chain);
    }

    fn run(&mut self, chain: &Chain, run: &crate::rule::Run) {
        let count = run.end() - run.start;
        let law = self.law(run.limits());
        let rules = &chain.rules[run.start as usize..run.end() as usize];
        let endpoints = rules.iter().map(|rule| endpoint(rule, self.chains));
        if let Some(endpoints) = endpoints.collect::<Option<Vec<_>>>() {
            let end = self.words.len() + 5 + ENDPOINT as usize * endpoints.len();
            let limits = run.limits().len() as u32;
            let header = [op::ENDPOINTS | count << 8, run.start, law, limits, end as u32];
            self.words.extend(header);
            for words in endpoints {
                self.absorbed[words[0] as usize] = true;
                self.words.extend(words);
            }
            return;
        }
        self.words.extend([op::RUN | count << 8, run.start, law, run.limits().len() as u32]);
        let targets = self.words.len();
        self.words.resize(targets + count as usize, 0);
        let end = self.words.len();
        self.words.push(0);
        for (i, rule) in rules.iter().enumerate() {
            if let Target::Jump(to) = rule.target() {
                self.words[targets + i] = to.index;
                self.calls.push(targets + i);
            } else {
                self.words[targets + i] = self.words.len() as u32 | ACTION;
                self.target(rule);
            }
        }
        self.words[end] = self.words.len() as u32;
    }

    /// Returns where the limits of a law begin.
    fn law(&mut self, limits: &[u64]) -> u32 {
        if let Some(at) = self.laws.get(limits) {
            return *at;
        }
        let at = self.limits.len() as u32;
        self.limits.extend_from_slice(limits);
        self.laws.insert(limits.into(), at);
        at
    }

    fn finish(mut self) -> Code {
        for at in self.calls {
            self.words[at] = self.starts[self.words[at] as usize];
        }
        // A test reads three words, whatever its length.
        self.words.extend([op::END; 2]);
        let words = self.words;
        let indexes = self.indexes.into_iter().map(|Places { mut keyed, others }| {
            for entry in &mut keyed {
                if words[entry.at as usize] & 0xff == op::JUMP {
                    entry.at = words[entry.at as usize + 1] | CALL;
                }
            }
            CodeIndex::of(&keyed, others)
        });
        let indexes: Box<[CodeIndex]> = indexes.collect();
        let largest = (0..indexes.len()).max_by_key(|index| indexes[*index].slots.len());
        let largest = largest.map(|index| index as u32);
        let mut buffer: Vec<u32> = Vec::with_capacity(words.len() + LINE);
        let fill = buffer.as_ptr().align_offset(LINE * size_of::<u32>()).min(LINE);
        buffer.resize(fill, op::END);
        buffer.extend(words);
        let (starts, limits) = (self.starts.into(), self.limits.into());
        Code { buffer, fill, starts, indexes, largest, limits }
    }
}

/// Returns the chain that a rule goes on in.
fn callee(rule: &Rule) -> Option<u32> {
    match rule.target() {
        Target::Jump(to) | Target::Goto(to) => Some(to.index),
        _ => None,
    }
}

/// Returns the endpoint whose chain the rule jumps to, as [`op::ENDPOINTS`] has it.
fn endpoint(rule: &Rule, chains: &[Chain]) -> Option<[u32; ENDPOINT as usize]> {
    let Target::Jump(to) = rule.target() else {
        return None;
    };
    let chain = &chains[to.index as usize];
    let [hairpin, dnat] = &chain.rules[..] else {
        return None;
    };
    let Target::Nat(Nat::Dnat(range)) = dnat.target() else {
        return None;
    };
    let (address, port) = one_address(range)?;
    fn asks(rule: &Rule) -> impl Iterator<Item = &Match> {
        rule.matches().iter().filter(|condition| !matches!(condition, Match::Comment(_)))
    }
    let mut sources = asks(hairpin).map(|condition| match condition {
        Match::Source { prefix, invert: false } => prefix.as_v4(),
        _ => None,
    });
    let own = [sources.next(), sources.next()] == [Some(Some((address, u32::MAX))), None];
    if chain.slot.is_some() || !own {
        return None;
    }
    let mut protocols = asks(dnat);
    let protocol = match (protocols.next(), protocols.next()) {
        (None, _) => 0,
        (Some(Match::Protocol { protocol, invert: false }), None) => u32::from(protocol.0),
        _ => return None,
    };
    let word = op::DNAT | protocol << 8 | u32::from(port) << 16;
    Some([to.index, word, address, dnat.origin.owner, dnat.origin.item])
}

/// Returns the destination port that a match asks for, if it asks nothing else.
fn port_of(condition: &Match) -> Option<PortMatch> {
    match condition {
        Match::Tcp { sport: None, dport, flags: None, option: None } => *dport,
        Match::Udp { sport: None, dport } => *dport,
        _ => None,
    }
}

/// Returns whether a rule asks no more than its key says, which is the first of its ports.
fn asks_only_key(rule: &Rule) -> bool {
    let mut ports = 0;
    rule.matches().iter().all(|condition| match condition {
        Match::Comment(_) => true,
        Match::Destination { invert, .. } | Match::Protocol { invert, .. } => !invert,
        condition => {
            ports += 1;
            ports == 1 && port_of(condition).is_some()
        }
    })
}

fn one_address(range: &NatRange) -> Option<(u32, u16)> {
    match *range {
        NatRange {
            addresses: NatAddresses::V4(min, max),
            ports: Some((first, last)),
            base_port: None,
            flags: NatFlags { random: false, random_fully: false, persistent: false },
        } if min == max && first == last => Some((min.to_bits(), first)),
        _ => None,
    }
}
