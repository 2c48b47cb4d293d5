//! The loop over rules.

mod code;
mod effect;
mod limit;
mod matches;
mod memory;
mod recent;

use std::net::IpAddr;

use crate::conntrack::Tracked;
use crate::device::DeviceId;
use crate::hook::Hook;
use crate::hook::Table;
use crate::host::{Draws, Host, Ingress, Note, Socket};
use crate::packet::Packet;
use crate::rule::{
    Chain, ChainId, CtStates, Nat, Policy, Probability, RejectWith, Rule, RuleRef, Rules,
};
use crate::time::SimTime;
use crate::tuple::{Addresses, Protocol};

use effect::{Effect, apply};
use matches::rule_matches;
pub use memory::Memory;
pub use recent::RecentEntry;

/// What a table's chain at one hook says about a packet.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub enum Verdict {
    /// The packet goes on to the next table.
    Accept,
    /// The packet is gone.
    Drop,
    /// The packet is gone and its sender is told.
    Reject(RejectWith),
    /// The packet goes on and its connection is rewritten.
    Nat(Nat),
    /// The walk was given up: it has looked at [`RULES_MAX`] rules.
    Unfinished,
}

/// Walks end at a jump behind so many rules. Chains that call each other several times make walks
/// that grow with every level, to 2⁴⁰ rules from 80: the kernel would walk on for minutes, with the
/// processor to itself. At its pace this is a tenth of a second.
// Simplified: a walk through a table is given up after 2²⁴ rules, and the packet with it.
pub const RULES_MAX: u32 = 1 << 24;

/// A verdict, what it cost, and which rule gave it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub struct Traversal {
    /// The verdict.
    pub verdict: Verdict,
    /// How many rules a linear walk looks at until the verdict.
    pub evaluated: u32,
    /// The rule that gave it, or `None` for the policy.
    pub rule: Option<RuleRef>,
}

/// How rules are found; the result is the same.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Lookup {
    /// By destination where a chain has an index.
    #[default]
    Indexed,
    /// One after the other.
    Linear,
    /// One after the other, each random rule by a draw of its own ([`Draws::chance`]): so that the
    /// exact probability of each way is known.
    RuleByRule,
}

/// What rules can see beside the packet.
#[derive(Debug)]
pub struct Context<'c, H, D> {
    /// The host.
    pub host: &'c H,
    /// Random numbers.
    pub draws: &'c mut D,
    /// How many of them this packet has taken here.
    pub ordinal: &'c mut u32,
    /// The input device, at hooks that have one.
    pub in_dev: Option<DeviceId>,
    /// The output device, at hooks that have one.
    pub out_dev: Option<DeviceId>,
    /// The hook.
    pub hook: Hook,
    /// The time.
    pub now: SimTime,
    /// What `--ctstate` sees.
    pub ct_state: CtStates,
    /// The packet's connection.
    pub ct: Tracked<'c>,
    /// How the packet came in; `None` for a packet made here.
    pub ingress: Option<Ingress>,
    /// The port of the bridge by which a bridged frame leaves, once that is known.
    pub out_port: Option<DeviceId>,
    /// The socket that a packet made here comes from.
    pub socket: Option<Socket>,
    /// The virtual service that a packet was sent to, once IPVS has rewritten it.
    pub virtual_end: Option<(Protocol, IpAddr, u16)>,
    /// State that rules and callers keep between packets.
    pub memory: &'c mut Memory,
}

/// Where to go on in a chain.
#[derive(Clone, Copy, Debug)]
enum Place {
    /// At an own rule in front of the slot.
    Before(u32),
    /// At a rule of the slot.
    Slot(u32),
    /// At an own rule behind the slot, or in a chain without one.
    After {
        /// Which of the chain's own rules.
        own: u32,
        /// How many rules the slot had.
        slot_total: u32,
    },
}

#[derive(Clone, Copy, Debug)]
struct Frame {
    chain: ChainId,
    base: bool,
    place: Place,
}

impl Place {
    fn start(chain: &Chain) -> Place {
        if chain.slot.is_some() { Place::Before(0) } else { Place::After { own: 0, slot_total: 0 } }
    }
}

/// Sends a packet through a table's chain at one hook and returns what became of it.
///
/// The packet's mark may change on the way.
pub fn traverse<R: Rules, H: Host, D: Draws>(
    rules: &R,
    table: Table,
    base: &Chain,
    packet: &mut Packet,
    cx: &mut Context<'_, H, D>,
    lookup: Lookup,
) -> Traversal {
    if lookup == Lookup::Indexed
        && packet.fragment.is_none()
        && matches!(packet.tuple.addresses(), Addresses::V4 { .. })
        && let Some(code) = rules.code(table)
    {
        return code::run(rules, table, code, base, packet, cx);
    }
    let mut stack = std::mem::take(&mut cx.memory.stack);
    stack.clear();
    let walk = Walk { rules, table, lookup, evaluated: 0, chain: base, place: Place::start(base) };
    let (end, evaluated) = walk.run(base, packet, cx, &mut stack);
    cx.memory.stack = stack;
    let (verdict, rule) = match end {
        Some((verdict, rule)) => (verdict, Some(rule)),
        None => (policy_verdict(base), None),
    };
    Traversal { verdict, evaluated, rule }
}

fn policy_verdict(base: &Chain) -> Verdict {
    match base.policy().expect("traversal begins at a built-in chain") {
        Policy::Accept => Verdict::Accept,
        Policy::Drop => Verdict::Drop,
    }
}

struct Walk<'r, R> {
    rules: &'r R,
    table: Table,
    lookup: Lookup,
    evaluated: u32,
    chain: &'r Chain,
    place: Place,
}

impl<'r, R: Rules> Walk<'r, R> {
    /// Returns the rule that decided, or `None` at the end of the base chain.
    #[inline]
    fn run<H: Host, D: Draws>(
        mut self,
        base: &'r Chain,
        packet: &mut Packet,
        cx: &mut Context<'_, H, D>,
        stack: &mut Vec<Frame>,
    ) -> (Option<(Verdict, RuleRef)>, u32) {
        loop {
            let next = self.next_match(packet, cx);
            let back = match next {
                None => true,
                Some((rule, number)) => {
                    let table = self.table.into();
                    let at = RuleRef { table, chain: self.chain.id, number, origin: rule.origin };
                    let before = *packet;
                    let effect = apply(rule.target(), at, packet, cx);
                    let hook = cx.hook;
                    cx.draws.note(Note::Rule { hook, rule: at, before: &before, after: packet });
                    match effect {
                        Effect::Continue => false,
                        Effect::Return => true,
                        Effect::Jump(_) if self.evaluated >= RULES_MAX => {
                            return (Some((Verdict::Unfinished, at)), self.evaluated);
                        }
                        Effect::Jump(to) => {
                            let base = self.chain.id == base.id;
                            stack.push(Frame { chain: self.chain.id, base, place: self.place });
                            self.enter(to);
                            false
                        }
                        // Nothing is pushed: the end of the chain returns to our caller.
                        Effect::Goto(to) => {
                            self.enter(to);
                            false
                        }
                        Effect::Verdict(verdict) => {
                            return (Some((verdict, at)), self.evaluated);
                        }
                    }
                }
            };
            if back {
                let Some(frame) = stack.pop() else {
                    return (None, self.evaluated);
                };
                self.chain =
                    if frame.base { base } else { self.rules.chain(self.table, frame.chain) };
                self.place = frame.place;
            }
        }
    }

    fn enter(&mut self, chain: ChainId) {
        self.chain = self.rules.chain(self.table, chain);
        self.place = Place::start(self.chain);
    }

    /// Returns the next rule of the chain that matches, with its number, and counts the rules
    /// passed on the way.
    #[inline]
    fn next_match<H: Host, D: Draws>(
        &mut self,
        packet: &Packet,
        cx: &mut Context<'_, H, D>,
    ) -> Option<(&'r Rule, u32)> {
        loop {
            match self.place {
                Place::After { own, slot_total } => {
                    let end = self.chain.rules.len() as u32;
                    let (rule, at) = self.next_own(own, end, packet, cx, slot_total)?;
                    self.place = Place::After { own: at + 1, slot_total };
                    return Some((rule, slot_total + at + 1));
                }
                Place::Before(from) => {
                    let at = self.chain.slot.expect("a place before a slot").at;
                    if let Some((rule, at)) = self.next_own(from, at, packet, cx, 0) {
                        self.place = Place::Before(at + 1);
                        return Some((rule, at + 1));
                    }
                    self.place = Place::Slot(0);
                }
                Place::Slot(from) => {
                    let slot = self.chain.slot.expect("a place in a slot");
                    match self.next_in_slot(from, packet, cx) {
                        Ok((rule, position)) => {
                            self.place = Place::Slot(position + 1);
                            return Some((rule, slot.at + position + 1));
                        }
                        Err(slot_total) => self.place = Place::After { own: slot.at, slot_total },
                    }
                }
            }
        }
    }

    /// Returns the next own rule from `from` up to `end` that matches, with its position.
    #[inline]
    fn next_own<H: Host, D: Draws>(
        &mut self,
        mut from: u32,
        end: u32,
        packet: &Packet,
        cx: &mut Context<'_, H, D>,
        slot_total: u32,
    ) -> Option<(&'r Rule, u32)> {
        let chain = self.chain;
        let by_rule = self.lookup == Lookup::RuleByRule;
        while from < end {
            let at = match &chain.index {
                Some(index) if self.lookup == Lookup::Indexed => index.next(packet, from).min(end),
                _ if by_rule => from,
                _ => chain.guards.next(packet, from, end),
            };
            self.evaluated += at - from;
            if at == end {
                return None;
            }
            let rule = &chain.rules[at as usize];
            if !by_rule && rule.only_random().is_some() {
                let run = chain.run_at(at).expect("random rules are in runs");
                let stop = run.end().min(end);
                let draw = cx.draw();
                if let Some(chosen) = run.pick(at, draw) {
                    self.evaluated += chosen + 1;
                    return Some((&chain.rules[(at + chosen) as usize], at + chosen));
                }
                self.evaluated += stop - at;
                from = stop;
                continue;
            }
            self.evaluated += 1;
            let key = (self.table, chain.id, slot_total + at);
            if rule_matches(rule, packet, cx, key) {
                return Some((rule, at));
            }
            from = at + 1;
        }
        None
    }

    /// Returns the next rule of the slot from `from` on that matches, with its position in it; or
    /// how many rules the slot has.
    fn next_in_slot<H: Host, D: Draws>(
        &mut self,
        mut from: u32,
        packet: &Packet,
        cx: &mut Context<'_, H, D>,
    ) -> Result<(&'r Rule, u32), u32> {
        let slot = self.chain.slot.expect("a place in a slot");
        loop {
            let hit = self.rules.slot(self.table, slot.id, packet, from);
            if hit.rules.is_empty() {
                self.evaluated += hit.total - from;
                return Err(hit.total);
            }
            // A group may begin before the place that was asked for, and then ends behind it.
            let skip = from.saturating_sub(hit.before);
            self.evaluated += hit.before.saturating_sub(from);
            for (i, rule) in hit.rules.iter().enumerate().skip(skip as usize) {
                let position = hit.before + i as u32;
                self.evaluated += 1;
                if rule_matches(rule, packet, cx, (self.table, self.chain.id, slot.at + position)) {
                    return Ok((rule, position));
                }
            }
            from = hit.before + hit.rules.len() as u32;
        }
    }
}

impl<H: Host, D: Draws> Context<'_, H, D> {
    fn draw(&mut self) -> u64 {
        let ordinal = *self.ordinal;
        *self.ordinal += 1;
        self.draws.draw(ordinal)
    }

    fn chance(&mut self, probability: Probability) -> bool {
        let ordinal = *self.ordinal;
        *self.ordinal += 1;
        self.draws.chance(ordinal, probability)
    }
}

#[cfg(test)]
mod tests;
