//! Lookup in long chains by exact destination, so that a packet need not be compared with
//! thousands of rules that name another.

use std::net::IpAddr;

use hashbrown::HashTable;

use crate::hash::Mix;
use crate::packet::Packet;
use crate::rule::{Match, Rule};
use crate::tuple::Protocol;

/// An exact destination: address, protocol, port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RuleKey {
    /// Destination address.
    pub dst: IpAddr,
    /// Protocol.
    pub protocol: Protocol,
    /// Destination port.
    pub dport: u16,
}

impl RuleKey {
    /// Returns the packet's destination, or `None` if its protocol has no ports.
    #[inline]
    pub fn of_packet(packet: &Packet) -> Option<RuleKey> {
        let tuple = &packet.tuple;
        tuple.protocol.has_ports().then(|| RuleKey {
            dst: tuple.dst(),
            protocol: tuple.protocol,
            dport: tuple.dst_part,
        })
    }

    /// Returns the only destination that can match the rule, if the rule may be passed over for
    /// every other one: nothing that has an effect comes before its port match.
    pub(crate) fn of_rule(rule: &Rule) -> Option<RuleKey> {
        let (mut dst, mut protocol) = (None, None);
        for condition in rule.matches() {
            match condition {
                Match::Destination { prefix, invert: false } => dst = prefix.as_host(),
                Match::Protocol { protocol: p, invert: false } => protocol = Some(*p),
                Match::Tcp { dport: Some(dport), .. } | Match::Udp { dport: Some(dport), .. } => {
                    let dport = dport.exact()?;
                    return Some(RuleKey { dst: dst?, protocol: protocol?, dport });
                }
                condition if condition.has_effect() => return None,
                _ => {}
            }
        }
        None
    }

    pub(crate) fn hash(&self) -> u64 {
        let mut mix = Mix::new();
        mix.address(self.dst);
        mix.word(u64::from(self.protocol.0) << 16 | u64::from(self.dport));
        mix.finish()
    }
}

/// Where a chain's rules stand, by destination.
#[derive(Clone, Debug)]
pub(crate) struct ChainIndex {
    /// Positions of the rules of one destination, rising. Never iterated.
    keyed: HashTable<(RuleKey, Vec<u32>)>,
    /// Positions of the rules without a key, rising.
    others: Vec<u32>,
}

impl ChainIndex {
    /// Below this many rules a walk is as quick.
    const MIN_KEYED: usize = 8;

    /// Returns the index of a chain that is long enough to need one.
    pub(crate) fn build(rules: &[Rule]) -> Option<ChainIndex> {
        let keyed_count = rules.iter().filter(|rule| rule.key().is_some()).count();
        (keyed_count >= ChainIndex::MIN_KEYED).then(|| ChainIndex::of(rules))
    }

    /// Returns the index of rules.
    pub(crate) fn of<'a>(rules: impl IntoIterator<Item = &'a Rule>) -> ChainIndex {
        let mut index = ChainIndex { keyed: HashTable::new(), others: Vec::new() };
        for (position, rule) in rules.into_iter().enumerate() {
            let position = position as u32;
            let Some(key) = rule.key() else {
                index.others.push(position);
                continue;
            };
            index
                .keyed
                .entry(key.hash(), |(other, _)| *other == key, |(key, _)| key.hash())
                .or_insert_with(|| (key, Vec::with_capacity(1)))
                .get_mut()
                .1
                .push(position);
        }
        index
    }

    /// Returns the first position from `from` on whose rule may match the packet.
    #[inline]
    pub(crate) fn next(&self, packet: &Packet, from: u32) -> u32 {
        let first = |positions: &[u32]| {
            let next = positions.partition_point(|position| *position < from);
            positions.get(next).copied().unwrap_or(u32::MAX)
        };
        let keyed = RuleKey::of_packet(packet)
            .and_then(|key| self.keyed.find(key.hash(), |(other, _)| *other == key))
            .map_or(u32::MAX, |(_, positions)| first(positions));
        keyed.min(first(&self.others))
    }
}
