//! Running a table's code.

use std::net::Ipv4Addr;

use super::{Context, Effect, RULES_MAX, Traversal, Verdict, apply, rule_matches};
use crate::hook::Table;
use crate::host::{Draws, Host};
use crate::packet::Packet;
use crate::rule::code::{ACTION, CALL, Code, ENDPOINT, HEADER, op, packed};
use crate::rule::{Chain, ChainId, FragmentId, Nat, NatRange, Origin, Rule, RuleRef, Rules};
use crate::tuple::Addresses;

/// Where to go on behind a jump.
#[derive(Clone, Copy, Debug)]
pub(super) struct Return {
    chain: u32,
    at: u32,
    position: u32,
}

/// What tests ask for, and no rule changes.
#[derive(Clone, Copy)]
struct Facts {
    src: u32,
    dst: u32,
    protocol: u32,
    dport: u32,
}

/// A rule's place.
#[derive(Clone, Copy)]
struct Place {
    /// Where its chain begins.
    chain: u32,
    position: u32,
}

/// What a walk ends with.
enum End {
    Chain,
    /// The DNAT that lies at a place.
    Dnat(u32, Place),
    /// The endpoint that lies at a place.
    Endpoint(u32),
    /// Given up at the jump there.
    Unfinished(Place),
    Verdict(Verdict, RuleRef),
}

/// The rules beside their code.
struct Book<'r, R> {
    rules: &'r R,
    table: Table,
    words: &'r [u32],
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
    let tuple = &packet.tuple;
    let Addresses::V4 { src, dst } = tuple.addresses() else { unreachable!("code is for IPv4") };
    let facts = Facts {
        src: src.to_bits(),
        dst: dst.to_bits(),
        protocol: u32::from(tuple.protocol.0),
        dport: u32::from(tuple.dst_part),
    };
    let words = code.words();
    let book = Book { rules, table, words };
    cx.memory.returns.clear();
    let mut chain = code.start(base.id.index);
    // The next operation, how many rules of the chain lie before it, and how many were passed.
    let (mut at, mut position, mut evaluated) = (chain + HEADER, 0, 0);
    let end = loop {
        // Operations that find the rule to try: its tests and its target lie at `rule`.
        let word = words[at as usize];
        let mut rule = match word & 0xff {
            op::RULE => {
                let rule = at + 1;
                at += word >> 8;
                rule
            }
            op::RUN => {
                let (count, targets) = (word >> 8, at + 4);
                let chosen = book.pick(code, at, Place { chain, position }, cx);
                evaluated += chosen.passed;
                position = chosen.position;
                // Behind a jump the rest of the run, if there is one, is a run of its own.
                if chosen.rule + 1 >= count {
                    at = words[(targets + count) as usize];
                }
                if chosen.rule == count {
                    continue;
                }
                let target = words[(targets + chosen.rule) as usize];
                if target & ACTION == 0 {
                    evaluated += 1;
                    if evaluated >= RULES_MAX {
                        break End::Unfinished(Place { chain, position });
                    }
                    cx.memory.returns.push(Return { chain, at, position: position + 1 });
                    (chain, at, position) = (target, target + HEADER, 0);
                    continue;
                }
                target & !ACTION
            }
            op::ENDPOINTS => {
                let (count, endpoints) = (word >> 8, at + 5);
                let chosen = book.pick(code, at, Place { chain, position }, cx);
                evaluated += chosen.passed;
                position = chosen.position;
                if chosen.rule + 1 >= count {
                    at = words[at as usize + 4];
                }
                if chosen.rule == count {
                    continue;
                }
                evaluated += 1;
                if evaluated >= RULES_MAX {
                    break End::Unfinished(Place { chain, position });
                }
                let endpoint = endpoints + ENDPOINT * chosen.rule;
                let [number, word, address] = words[endpoint as usize..endpoint as usize + 3]
                else {
                    unreachable!("three words")
                };
                let protocol = word >> 8 & 0xff;
                if facts.src != address && (protocol == 0 || protocol == facts.protocol) {
                    evaluated += 2;
                    break End::Endpoint(endpoint);
                }
                cx.memory.returns.push(Return { chain, at, position: position + 1 });
                chain = code.start(number);
                (at, position) = (chain + HEADER, 0);
                continue;
            }
            op::INDEX => {
                let key = packed(facts.dst, packet.tuple.protocol, packet.tuple.dst_part);
                let Some((found, place)) = code.index(words[at as usize + 1]).next(key, position)
                else {
                    evaluated += words[at as usize + 2] - position;
                    let Some(back) = cx.memory.returns.pop() else {
                        break End::Chain;
                    };
                    (chain, at, position) = (back.chain, back.at, back.position);
                    continue;
                };
                evaluated += found - position;
                position = found;
                if place & CALL != 0 {
                    evaluated += 1;
                    if evaluated >= RULES_MAX {
                        break End::Unfinished(Place { chain, position });
                    }
                    cx.memory.returns.push(Return { chain, at, position: position + 1 });
                    chain = place & !CALL;
                    (at, position) = (chain + HEADER, 0);
                    continue;
                }
                if words[place as usize] & 0xff == op::RULE { place + 1 } else { place }
            }
            _ => {
                let Some(back) = cx.memory.returns.pop() else {
                    break End::Chain;
                };
                (chain, at, position) = (back.chain, back.at, back.position);
                continue;
            }
        };
        evaluated += 1;
        let holds = loop {
            let [word, one, two] = words[rule as usize..rule as usize + 3] else {
                unreachable!("three words")
            };
            let (holds, len) = match word & 0xff {
                op::SRC => (facts.src & two == one, 3),
                op::DST => (facts.dst & two == one, 3),
                op::MARK => (packet.mark & two == one, 3),
                op::PROTOCOL => (facts.protocol == word >> 16, 1),
                op::CT_STATE => (cx.ct_state.bits() & (word >> 16) as u8 != 0, 1),
                op::DPORT => {
                    if facts.protocol != word >> 16 {
                        break false;
                    }
                    let (min, max) = (one >> 16, one & 0xffff);
                    (min <= facts.dport && facts.dport <= max, 2)
                }
                op::RULE_TEST => (book.holds(Place { chain, position }, packet, cx), 1),
                _ => break true,
            };
            if holds == (word & op::NOT != 0) {
                break false;
            }
            rule += len;
        };
        if !holds {
            position += 1;
            continue;
        }
        let word = words[rule as usize];
        match word & 0xff {
            op::JUMP => {
                if evaluated >= RULES_MAX {
                    break End::Unfinished(Place { chain, position });
                }
                cx.memory.returns.push(Return { chain, at, position: position + 1 });
                chain = words[rule as usize + 1];
                (at, position) = (chain + HEADER, 0);
                continue;
            }
            op::GOTO => {
                chain = words[rule as usize + 1];
                (at, position) = (chain + HEADER, 0);
                continue;
            }
            op::RETURN => {
                let Some(back) = cx.memory.returns.pop() else {
                    break End::Chain;
                };
                (chain, at, position) = (back.chain, back.at, back.position);
                continue;
            }
            op::SET_MARK => {
                packet.mark = packet.mark & !words[rule as usize + 2] ^ words[rule as usize + 1];
            }
            op::DNAT => break End::Dnat(rule, Place { chain, position }),
            _ => match book.apply(Place { chain, position }, packet, cx) {
                (Effect::Continue, _) => {}
                (Effect::Verdict(verdict), at) => break End::Verdict(verdict, at),
                (Effect::Return | Effect::Jump(_) | Effect::Goto(_), _) => {
                    unreachable!("has an operation of its own")
                }
            },
        }
        position += 1;
    };
    match end {
        End::Chain => Traversal { verdict: super::policy_verdict(base), evaluated, rule: None },
        // Made where it is returned: copied about, it would be waited for.
        End::Dnat(at, place) => {
            let (chain, number) = (book.chain_id(place), place.position + 1);
            book.dnat(at, chain, number, evaluated)
        }
        End::Endpoint(at) => {
            let chain = ChainId { fragment: FragmentId::BASE, index: words[at as usize] };
            book.dnat(at + 1, chain, 2, evaluated)
        }
        End::Unfinished(place) => {
            let rule = book.rule_ref(place, book.rule(place).origin);
            Traversal { verdict: Verdict::Unfinished, evaluated, rule: Some(rule) }
        }
        End::Verdict(verdict, rule) => Traversal { verdict, evaluated, rule: Some(rule) },
    }
}

/// Which rule of a run is chosen.
struct Chosen {
    /// Its number in the run, from 0; or how many there are for none.
    rule: u32,
    /// Its position in the chain; or that behind the run.
    position: u32,
    /// How many rules of the run were passed.
    passed: u32,
}

impl<R: Rules> Book<'_, R> {
    fn chain_id(&self, place: Place) -> ChainId {
        let index = self.words[place.chain as usize];
        ChainId { fragment: FragmentId::BASE, index }
    }

    fn rule(&self, place: Place) -> &Rule {
        &self.rules.chain(self.table, self.chain_id(place)).rules[place.position as usize]
    }

    fn rule_ref(&self, place: Place, origin: Origin) -> RuleRef {
        let (table, chain) = (self.table.into(), self.chain_id(place));
        RuleRef { table, chain, number: place.position + 1, origin }
    }

    /// Returns what the DNAT at a place says.
    #[inline]
    fn dnat(&self, at: u32, chain: ChainId, number: u32, evaluated: u32) -> Traversal {
        let [word, address, owner, item] = self.words[at as usize..at as usize + 4] else {
            unreachable!("four words")
        };
        let (port, address) = ((word >> 16) as u16, Ipv4Addr::from_bits(address));
        let origin = Origin { owner, item };
        let rule = Some(RuleRef { table: self.table.into(), chain, number, origin });
        let verdict = Verdict::Nat(Nat::Dnat(NatRange::to(address.into(), port)));
        Traversal { verdict, evaluated, rule }
    }

    /// Runs a rule's target.
    #[inline(never)]
    fn apply<H: Host, D: Draws>(
        &self,
        place: Place,
        packet: &mut Packet,
        cx: &mut Context<'_, H, D>,
    ) -> (Effect, RuleRef) {
        let rule = self.rule(place);
        let at = self.rule_ref(place, rule.origin);
        (apply(rule.target(), at, packet, cx), at)
    }

    /// Tests all conditions of a rule.
    #[inline(never)]
    fn holds<H: Host, D: Draws>(
        &self,
        place: Place,
        packet: &Packet,
        cx: &mut Context<'_, H, D>,
    ) -> bool {
        let key = (self.table, self.chain_id(place), place.position);
        rule_matches(self.rule(place), packet, cx, key)
    }

    /// Picks a rule of the run at `at`.
    #[inline]
    fn pick<H: Host, D: Draws>(
        &self,
        code: &Code,
        at: u32,
        place: Place,
        cx: &mut Context<'_, H, D>,
    ) -> Chosen {
        let [word, first, law, limits] = self.words[at as usize..at as usize + 4] else {
            unreachable!("four words")
        };
        let count = word >> 8;
        let draw = cx.draw();
        let from = place.position - first;
        let rule = if from == 0 {
            let limits = code.limits(law, limits);
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
            let chain = self.rules.chain(self.table, self.chain_id(place));
            let run = chain.run_at(place.position).expect("inside of a run");
            run.pick(place.position, draw).map_or(count, |chosen| from + chosen)
        };
        Chosen { rule, position: first + rule, passed: rule - from }
    }
}
