//! Running a table's code.

use std::net::Ipv4Addr;

use super::{Context, Effect, RULES_MAX, Traversal, Verdict, apply, rule_matches};
use crate::hook::Table;
use crate::host::{Draws, Host};
use crate::packet::Packet;
use crate::rule::code::{ACTION, CALL, Code, HEADER, op};
use crate::rule::{Chain, ChainId, FragmentId, Nat, NatRange, Origin, Rule, RuleRef, Rules};
use crate::tuple::Addresses;

/// Where to go on behind a jump.
#[derive(Clone, Copy, Debug)]
pub(super) struct Return {
    chain: u32,
    at: u32,
    position: u32,
}

struct Run<'r, R> {
    rules: &'r R,
    table: Table,
    code: &'r Code,
    /// Where the chain begins.
    chain: u32,
    /// The next operation.
    at: u32,
    /// How many rules of the chain lie before it.
    position: u32,
    evaluated: u32,
    /// What tests ask for, and no rule changes.
    src: u32,
    dst: u32,
    protocol: u32,
    dport: u32,
}

/// What a run of operations ends with.
enum End {
    Chain,
    /// The DNAT that lies at a place.
    Dnat(usize),
    Verdict(Verdict, RuleRef),
}

/// Runs a packet through a chain. It must be a whole IPv4 packet.
pub(super) fn run<R: Rules, H: Host, D: Draws>(
    rules: &R,
    table: Table,
    code: &Code,
    base: &Chain,
    packet: &mut Packet,
    cx: &mut Context<'_, H, D>,
) -> Traversal {
    let mut stack = std::mem::take(&mut cx.memory.returns);
    stack.clear();
    let chain = code.start(base.id.index);
    let tuple = &packet.tuple;
    let Addresses::V4 { src, dst } = tuple.addresses() else { unreachable!("code is for IPv4") };
    let mut run = Run {
        rules,
        table,
        code,
        chain,
        at: chain + HEADER,
        position: 0,
        evaluated: 0,
        src: src.to_bits(),
        dst: dst.to_bits(),
        protocol: u32::from(tuple.protocol.0),
        dport: u32::from(tuple.dst_part),
    };
    let end = loop {
        match run.run_chain(packet, cx, &mut stack) {
            End::Chain => match stack.pop() {
                Some(Return { chain, at, position }) => {
                    (run.chain, run.at, run.position) = (chain, at, position);
                }
                None => break End::Chain,
            },
            end => break end,
        }
    };
    cx.memory.returns = stack;
    let evaluated = run.evaluated;
    match end {
        End::Chain => Traversal { verdict: super::policy_verdict(base), evaluated, rule: None },
        End::Verdict(verdict, rule) => Traversal { verdict, evaluated, rule: Some(rule) },
        // Made where it is returned: copied about, it would be waited for.
        End::Dnat(at) => {
            let words = code.words();
            let (port, address) = ((words[at] >> 16) as u16, Ipv4Addr::from_bits(words[at + 1]));
            let rule = run.rule_ref(Origin { owner: words[at + 2], item: words[at + 3] });
            let verdict = Verdict::Nat(Nat::Dnat(NatRange::to(address.into(), port)));
            Traversal { verdict, evaluated, rule: Some(rule) }
        }
    }
}

impl<R: Rules> Run<'_, R> {
    #[inline]
    fn enter(&mut self, chain: u32) {
        self.chain = chain;
        self.at = chain + HEADER;
        self.position = 0;
    }

    fn chain_id(&self) -> ChainId {
        let index = self.code.words()[self.chain as usize];
        ChainId { fragment: FragmentId::BASE, index }
    }

    /// Returns the rule at the present position.
    fn rule(&self) -> &Rule {
        &self.rules.chain(self.table, self.chain_id()).rules[self.position as usize]
    }

    fn rule_ref(&self, origin: Origin) -> RuleRef {
        let (table, chain) = (self.table.into(), self.chain_id());
        RuleRef { table, chain, number: self.position + 1, origin }
    }

    /// Gives up at the jump at the present position.
    #[cold]
    fn unfinished(&self) -> End {
        End::Verdict(Verdict::Unfinished, self.rule_ref(self.rule().origin))
    }

    /// Runs to the end of a chain.
    #[inline]
    fn run_chain<H: Host, D: Draws>(
        &mut self,
        packet: &mut Packet,
        cx: &mut Context<'_, H, D>,
        stack: &mut Vec<Return>,
    ) -> End {
        let words = self.code.words();
        // Operations that find the rule to try: it is passed, or its target is run.
        loop {
            let at = self.at as usize;
            let word = words[at];
            let target = match word & 0xff {
                op::RULE => {
                    self.at += word >> 8;
                    match self.tests(at + 1, packet, cx) {
                        Some(target) => target,
                        None => {
                            self.position += 1;
                            self.evaluated += 1;
                            continue;
                        }
                    }
                }
                op::RUN => match self.pick(at, cx) {
                    Some(target) if target & ACTION != 0 => target & !ACTION,
                    Some(chain) => {
                        self.evaluated += 1;
                        if self.evaluated >= RULES_MAX {
                            return self.unfinished();
                        }
                        let position = self.position + 1;
                        stack.push(Return { chain: self.chain, at: self.at, position });
                        self.enter(chain);
                        continue;
                    }
                    None => continue,
                },
                op::INDEX => {
                    let index = self.code.index(words[at + 1]);
                    let Some((position, place)) = index.next(packet, self.position) else {
                        self.evaluated += words[at + 2] - self.position;
                        return End::Chain;
                    };
                    self.evaluated += position - self.position;
                    self.position = position;
                    if place & CALL != 0 {
                        self.evaluated += 1;
                        let position = self.position + 1;
                        stack.push(Return { chain: self.chain, at: self.at, position });
                        self.enter(place & !CALL);
                        continue;
                    }
                    let place = place as usize;
                    if words[place] & 0xff != op::RULE {
                        place as u32
                    } else {
                        match self.tests(place + 1, packet, cx) {
                            Some(target) => target,
                            None => {
                                self.position += 1;
                                self.evaluated += 1;
                                continue;
                            }
                        }
                    }
                }
                _ => return End::Chain,
            };
            // The rule at this position matches.
            self.evaluated += 1;
            let target = target as usize;
            let word = words[target];
            match word & 0xff {
                op::JUMP => {
                    if self.evaluated >= RULES_MAX {
                        return self.unfinished();
                    }
                    let position = self.position + 1;
                    stack.push(Return { chain: self.chain, at: self.at, position });
                    self.enter(words[target + 1]);
                    continue;
                }
                op::GOTO => {
                    self.enter(words[target + 1]);
                    continue;
                }
                op::RETURN => return End::Chain,
                op::SET_MARK => {
                    packet.mark = packet.mark & !words[target + 2] ^ words[target + 1];
                }
                op::DNAT => return End::Dnat(target),
                _ => {
                    let rule = self.rule();
                    let at = self.rule_ref(rule.origin);
                    match apply(rule.target(), at, packet, cx) {
                        Effect::Continue => {}
                        Effect::Verdict(verdict) => return End::Verdict(verdict, at),
                        Effect::Return | Effect::Jump(_) | Effect::Goto(_) => {
                            unreachable!("has an operation of its own")
                        }
                    }
                }
            }
            self.position += 1;
        }
    }

    /// Tests all conditions of the rule at the present position.
    #[inline(never)]
    fn rule_holds<H: Host, D: Draws>(&self, packet: &Packet, cx: &mut Context<'_, H, D>) -> bool {
        let key = (self.table, self.chain_id(), self.position);
        rule_matches(self.rule(), packet, cx, key)
    }

    /// Runs a rule's tests; returns where its target lies if all hold.
    #[inline(always)]
    fn tests<H: Host, D: Draws>(
        &self,
        mut at: usize,
        packet: &Packet,
        cx: &mut Context<'_, H, D>,
    ) -> Option<u32> {
        let words = self.code.words();
        loop {
            let [word, one, two] = words[at..at + 3] else { unreachable!("three words") };
            let (holds, len) = match word & 0xff {
                op::SRC => (self.src & two == one, 3),
                op::DST => (self.dst & two == one, 3),
                op::MARK => (packet.mark & two == one, 3),
                op::PROTOCOL => (self.protocol == word >> 16, 1),
                op::CT_STATE => (cx.ct_state.bits() & (word >> 16) as u8 != 0, 1),
                op::DPORT => {
                    if self.protocol != word >> 16 {
                        return None;
                    }
                    let (min, max) = (one >> 16, one & 0xffff);
                    (min <= self.dport && self.dport <= max, 2)
                }
                op::RULE_TEST => (self.rule_holds(packet, cx), 1),
                _ => return Some(at as u32),
            };
            if holds == (word & op::NOT != 0) {
                return None;
            }
            at += len;
        }
    }

    /// Picks a rule of the run at a place: moves to it and returns its target, or moves behind the
    /// run.
    #[inline]
    fn pick<H: Host, D: Draws>(&mut self, at: usize, cx: &mut Context<'_, H, D>) -> Option<u32> {
        let words = self.code.words();
        let (count, first) = (words[at] >> 8, words[at + 1]);
        let targets = at + 4;
        let draw = cx.draw();
        let from = self.position - first;
        let chosen = if from == 0 {
            let limits = self.code.limits(words[at + 2], words[at + 3]);
            // Most runs are fair: the search begins where a fair one would end.
            let mut i = ((u128::from(draw) * u128::from(count)) >> 64) as usize;
            i = i.min(limits.len());
            while i > 0 && limits[i - 1] > draw {
                i -= 1;
            }
            while i < limits.len() && limits[i] <= draw {
                i += 1;
            }
            i as u32
        } else {
            let chain = self.rules.chain(self.table, self.chain_id());
            let run = chain.run_at(self.position).expect("inside of a run");
            run.pick(self.position, draw).map_or(count, |chosen| from + chosen)
        };
        self.evaluated += chosen - from;
        self.position = first + chosen;
        // Behind a jump the rest of the run, if there is one, is a run of its own.
        if chosen + 1 >= count {
            self.at = words[targets + count as usize];
        }
        (chosen < count).then(|| words[targets + chosen as usize])
    }
}
