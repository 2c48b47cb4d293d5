//! The loop over the rules of a base chain.

use std::borrow::Cow;

use crate::hook::Hook;
use crate::host::{Draws, Host, Note};
use crate::nft::eval::{Break, Eval, to_address};
use crate::nft::expr::Expr;
use crate::nft::rule::{
    Chain, Dynset, DynsetOp, Kind, NatKind, NatStatement, NatValue, Rule, Statement, Table,
    Verdict as RuleVerdict,
};
use crate::nft::ruleset::{BaseChain, Ruleset};
use crate::nft::set::{Data, Range};
use crate::nft::state::Changed;
use crate::packet::{Packet, TcpFlags};
use crate::rule::{
    ChainId, ConnmarkOp, CtStates, FragmentId, Nat, NatAddresses, NatFlags, NatRange, Policy,
    RejectWith, RuleRef, TableId, ZoneSide,
};
use crate::traverse::{Context, RULES_MAX, Traversal, Verdict};

/// A base chain and 15 nested jumps.
// Kernel: nf_tables.h, NFT_JUMP_STACK_SIZE
const STACK_MAX: usize = 16;

/// What a statement means for the walk.
enum Effect<'r> {
    /// The next statement runs.
    Next,
    /// The next rule runs.
    Break,
    /// A verdict of the ruleset.
    Rule(Cow<'r, RuleVerdict>),
    /// A verdict about the packet.
    Packet(Verdict),
}

/// Sends a packet through a base chain and returns what became of it.
// Kernel: nf_tables_core.c, nft_do_chain
pub(crate) fn traverse<H: Host, D: Draws>(
    ruleset: &Ruleset,
    at: BaseChain,
    packet: &mut Packet,
    cx: &mut Context<'_, H, D>,
) -> Traversal {
    cx.memory.nft.begin(ruleset, cx.now);
    let table = &ruleset.tables()[usize::from(at.table)];
    let mut stack = [(0, 0); STACK_MAX];
    let mut depth = 0;
    let (mut chain, mut index) = (at.chain, 0);
    let mut evaluated = 0;
    let policy = table.chains[at.chain as usize].base.as_ref().map(|base| base.policy);
    loop {
        let rules: &Chain = &table.chains[chain as usize];
        let Some(rule) = rules.rules.get(index) else {
            if depth == 0 {
                break;
            }
            depth -= 1;
            (chain, index) = stack[depth];
            continue;
        };
        evaluated += 1;
        index += 1;
        let reference = RuleRef {
            table: TableId::Nft(at.table),
            chain: ChainId { fragment: FragmentId::BASE, index: chain },
            number: index as u32,
            origin: rule.origin,
        };
        let decided = |verdict| Traversal { verdict, evaluated, rule: Some(reference) };
        match run_rule(rule, reference, table, packet, cx) {
            Effect::Next | Effect::Break => {}
            // Outside of chains of type nat there is no connection to translate.
            Effect::Packet(Verdict::Nat(_)) if at.kind != Kind::Nat => {}
            Effect::Packet(verdict) => return decided(verdict),
            Effect::Rule(verdict) => match &*verdict {
                RuleVerdict::Accept => return decided(Verdict::Accept),
                RuleVerdict::Drop => return decided(Verdict::Drop),
                RuleVerdict::Continue => {}
                RuleVerdict::Return if depth == 0 => break,
                RuleVerdict::Return => {
                    depth -= 1;
                    (chain, index) = stack[depth];
                }
                RuleVerdict::Jump(to) => {
                    if depth == STACK_MAX {
                        return decided(Verdict::Drop);
                    }
                    if evaluated >= RULES_MAX {
                        return decided(Verdict::Unfinished);
                    }
                    stack[depth] = (chain, index);
                    depth += 1;
                    (chain, index) = (*to, 0);
                }
                // Nothing is pushed: the end of the chain returns to our caller.
                RuleVerdict::Goto(to) => (chain, index) = (*to, 0),
                RuleVerdict::Unknown(_) => {
                    if cx.draws.unsupported(reference) {
                        return decided(Verdict::Drop);
                    }
                }
            },
        }
    }
    let policy = policy.unwrap_or(Policy::Accept);
    let chain = ChainId { fragment: FragmentId::BASE, index: at.chain };
    let (hook, table) = (cx.hook, TableId::Nft(at.table));
    cx.draws.note(Note::Policy { hook, table, chain, policy });
    let verdict = match policy {
        Policy::Accept => Verdict::Accept,
        Policy::Drop => Verdict::Drop,
    };
    Traversal { verdict, evaluated, rule: None }
}

/// Runs a rule's statements up to the first that breaks off or decides.
#[inline]
fn run_rule<'r, H: Host, D: Draws>(
    rule: &'r Rule,
    at: RuleRef,
    table: &'r Table,
    packet: &mut Packet,
    cx: &mut Context<'_, H, D>,
) -> Effect<'r> {
    let before = *packet;
    let mut effect = Effect::Next;
    let last = rule.statements.len().wrapping_sub(1);
    for (position, statement) in rule.statements.iter().enumerate() {
        if let Statement::Unsupported(_) = statement {
            let holds = cx.draws.unsupported(at);
            effect = match (holds, position == last) {
                (true, true) => Effect::Packet(Verdict::Drop),
                (false, false) => Effect::Break,
                _ => Effect::Next,
            };
        } else {
            let ran = run_statement(statement, table, packet, cx);
            effect = ran.unwrap_or(Effect::Break);
        }
        if !matches!(effect, Effect::Next) {
            break;
        }
    }
    if !matches!(effect, Effect::Break) || before != *packet {
        let hook = cx.hook;
        cx.draws.note(Note::Rule { hook, rule: at, before: &before, after: packet });
    }
    effect
}

fn run_statement<'r, H: Host, D: Draws>(
    statement: &'r Statement,
    table: &'r Table,
    packet: &mut Packet,
    cx: &mut Context<'_, H, D>,
) -> Result<Effect<'r>, Break> {
    let (len, now) = (packet.len, cx.now);
    let mut eval = Eval { table, packet, cx };
    match statement {
        Statement::Match(comparison) => {
            return if eval.holds(comparison)? { Ok(Effect::Next) } else { Err(Break) };
        }
        Statement::Counter(_) | Statement::Other(_) | Statement::Unsupported(_) => {}
        Statement::Verdict(verdict) => return Ok(Effect::Rule(Cow::Borrowed(verdict))),
        Statement::Vmap { key, map } => {
            let key = eval.key(key)?;
            return match eval.find(map, &key).ok_or(Break)? {
                Cow::Borrowed(Data::Verdict(verdict)) => Ok(Effect::Rule(Cow::Borrowed(verdict))),
                Cow::Owned(Data::Verdict(verdict)) => Ok(Effect::Rule(Cow::Owned(verdict))),
                _ => Err(Break),
            };
        }
        Statement::SetMark(value) => packet_mark(&mut eval, value)?,
        Statement::SetCtMark(value) => {
            let value = eval.value(value)? as u32;
            eval.cx.ct.connmark(ConnmarkOp::Set { value, mask: u32::MAX }, eval.packet);
        }
        Statement::SetZone(value, direction) => {
            use crate::conntrack::Direction;
            let side = match direction {
                None => ZoneSide::Both,
                Some(Direction::Original) => ZoneSide::Original,
                Some(Direction::Reply) => ZoneSide::Reply,
            };
            let zone = eval.value(value)? as u16;
            // Simplified: a zone is set before connection tracking, or not at all.
            if matches!(eval.cx.hook, Hook::Prerouting | Hook::Output) {
                eval.cx.ct.set_zone(side, zone);
            }
        }
        Statement::SetTtl(value) => eval.packet.ttl = eval.value(value)? as u8,
        Statement::SetDscp(value) => {
            let value = eval.value(value)? as u8;
            eval.packet.tos = eval.packet.tos & 3 | value << 2;
        }
        Statement::Notrack => {
            if eval.cx.ct.notrack() {
                eval.cx.ct_state = CtStates::UNTRACKED;
            }
        }
        Statement::Reject(with, family) => {
            let ipv4 = eval.packet.tuple.src().is_ipv4();
            let tcp = eval.packet.tcp_flags().is_some_and(|flags| flags != TcpFlags::NONE);
            let others = family.is_some_and(|family| !family.sees(ipv4))
                || *with == RejectWith::TcpReset && !tcp;
            return if others { Err(Break) } else { Ok(Effect::Packet(Verdict::Reject(*with))) };
        }
        Statement::Nat(nat) => {
            let ipv4 = eval.packet.tuple.src().is_ipv4();
            if nat.family.is_some_and(|family| !family.sees(ipv4)) {
                return Ok(Effect::Next);
            }
            return Ok(Effect::Packet(Verdict::Nat(concrete(nat, &mut eval)?)));
        }
        Statement::Limit(limit) => {
            if eval.cx.memory.nft.within_rate(limit.state, limit, len, now) == limit.over {
                return Err(Break);
            }
        }
        Statement::Quota(quota) => {
            if eval.cx.memory.nft.over_quota(quota.state, quota, len) != quota.over {
                return Err(Break);
            }
        }
        Statement::Dynset(dynset) => change_set(dynset, &mut eval)?,
    }
    Ok(Effect::Next)
}

fn packet_mark<'e, H: Host, D: Draws>(
    eval: &mut Eval<'e, '_, '_, '_, H, D>,
    value: &'e Expr,
) -> Result<(), Break> {
    eval.packet.mark = eval.value(value)? as u32;
    Ok(())
}

fn change_set<'e, H: Host, D: Draws>(
    dynset: &'e Dynset,
    eval: &mut Eval<'e, '_, '_, '_, H, D>,
) -> Result<(), Break> {
    let key = eval.key(&dynset.key)?;
    let table = eval.table;
    let set = &table.sets[dynset.set as usize];
    let (len, now) = (eval.packet.len, eval.cx.now);
    if dynset.op == DynsetOp::Delete {
        eval.cx.memory.nft.remove(table, set, key.as_slice());
        return Ok(());
    }
    let data = if dynset.data.is_empty() {
        Data::None
    } else {
        let values = eval.key(&dynset.data)?;
        Data::Values(values.as_slice().iter().map(|value| (*value, *value)).collect())
    };
    let time = (dynset.op == DynsetOp::Update, dynset.timeout);
    let limit = (dynset.limit.as_ref(), len);
    let state = &mut eval.cx.memory.nft;
    match state.add((table, set), key.as_slice(), data, time, limit, now) {
        Changed::There => Ok(()),
        Changed::Full | Changed::Limited => Err(Break),
    }
}

/// Returns a translation with its addresses and ports filled in.
fn concrete<'e, H: Host, D: Draws>(
    nat: &'e NatStatement,
    eval: &mut Eval<'e, '_, '_, '_, H, D>,
) -> Result<Nat, Break> {
    let ipv4 = eval.packet.tuple.src().is_ipv4();
    let mut values = |value: &'e NatValue| -> Result<Cow<'e, [Range]>, Break> {
        Ok(match value {
            NatValue::Range(min, max) => vec![(*min, *max)].into(),
            NatValue::Expr(Expr::Map { key, map }) => eval.map(key, map)?,
            NatValue::Expr(expr) => {
                let value = eval.value(expr)?;
                vec![(value, value)].into()
            }
        })
    };
    let mut range = NatRange::keep();
    let mut port = None;
    if let Some(address) = &nat.address {
        let found = values(address)?;
        let (min, max) = *found.first().ok_or(Break)?;
        // A map may give the port too.
        port = found.get(1).copied();
        range.addresses = match (to_address(min, ipv4), to_address(max, ipv4)) {
            (std::net::IpAddr::V4(min), std::net::IpAddr::V4(max)) if min <= max => {
                NatAddresses::V4(min, max)
            }
            (std::net::IpAddr::V6(min), std::net::IpAddr::V6(max)) if min <= max => {
                NatAddresses::V6(Box::new((min, max)))
            }
            _ => return Err(Break),
        };
    }
    if let Some(value) = &nat.port {
        port = values(value)?.first().copied();
    }
    range.ports = port.map(|(min, max)| (min as u16, (max as u16).max(min as u16)));
    range.flags =
        NatFlags { random: nat.random, random_fully: nat.fully_random, persistent: nat.persistent };
    Ok(match nat.kind {
        NatKind::Dnat => Nat::Dnat(range),
        NatKind::Snat => Nat::Snat(range),
        NatKind::Masquerade => Nat::Masquerade(range),
        NatKind::Redirect => Nat::Redirect(range),
    })
}
