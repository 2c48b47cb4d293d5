//! What the kernel and iptables refuse.

use std::sync::Arc;

use crate::hook::{Hook, Hooks, Table};
use crate::packet::IcmpError;
use crate::rule::legality::{Place, rule_hooks, wrong_hook};
use crate::rule::{Backend, Chain, ChainId, Target};
use crate::tuple::Family;

/// nf_tables: a base chain and 15 nested jumps.
// Kernel: nf_tables.h, NFT_JUMP_STACK_SIZE
const NFT_JUMP_DEPTH_MAX: u32 = 15;

/// The longest name of a chain.
// Kernel: x_tables.h, XT_EXTENSION_MAXNAMELEN, less one
const CHAIN_NAME_LEN_MAX: usize = 28;

/// A ruleset that would be refused: where, and why.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("table {table}, chain {chain}{}: {problem}", .rule.map(|n| format!(", rule {n}")).unwrap_or_default())]
pub struct ValidationError {
    /// The table.
    pub table: Table,
    /// The chain.
    pub chain: Arc<str>,
    /// The rule, counted from 1.
    pub rule: Option<u32>,
    /// What is wrong.
    pub problem: Problem,
}

/// Why a ruleset is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Problem {
    /// A target or match in a table that does not have it.
    #[error("{what} is not accepted in table {table}, only in table {accepted}")]
    WrongTable {
        /// What was used.
        what: &'static str,
        /// Where it was used.
        table: Table,
        /// Where it is accepted.
        accepted: Table,
    },
    /// A target or match that some hook does not have.
    #[error("{what} cannot be used from {hook}, only from {accepted}")]
    WrongHook {
        /// What was used.
        what: &'static str,
        /// The hook from which the rule can be reached.
        hook: Hook,
        /// The hooks that accept it.
        accepted: Hooks,
    },
    /// A drop in the table that decides about addresses only.
    #[error(
        "table nat is not for filtering: DROP is accepted in tables raw, mangle, filter, security"
    )]
    DropInNat,
    /// An interface match in a built-in chain that has no such interface.
    #[error("{option} cannot be used in {chain}, which has no such device")]
    NoSuchDevice {
        /// `-i` or `-o`.
        option: &'static str,
        /// The built-in chain.
        chain: Hook,
    },
    /// A match or target that needs a protocol.
    #[error("{what} needs -p with one of {accepted}")]
    NeedsProtocol {
        /// What needs it.
        what: &'static str,
        /// The protocols that would do.
        accepted: &'static str,
    },
    /// A range that ends before it begins.
    #[error("{what} range {min}:{max} ends before it begins")]
    EmptyRange {
        /// What the range is of.
        what: &'static str,
        /// Its first number.
        min: u32,
        /// Its last number.
        max: u32,
    },
    /// A protocol number that matches everything, negated.
    #[error("! -p 0 would never match; leave -p out to match every protocol")]
    NeverMatches,
    /// `--packet` not below `--every`.
    #[error("--packet {packet} must be from 0 to {every} - 1, the value of --every less one")]
    NthPacket {
        /// `--packet`.
        packet: u32,
        /// `--every`.
        every: u32,
    },
    /// An ICMP error that REJECT does not send.
    #[error(
        "REJECT sends destination unreachable errors other than fragmentation needed, not {0:?}"
    )]
    RejectKind(IcmpError),
    /// A rewrite with an option that its target does not have.
    #[error("{target} does not accept {option}")]
    NatOption {
        /// The target.
        target: &'static str,
        /// The option.
        option: &'static str,
    },
    /// Options that do not go together.
    #[error("{what} {problem}")]
    Option {
        /// The match or target.
        what: &'static str,
        /// What it does or wants.
        problem: &'static str,
    },
    /// A rewrite of nothing.
    #[error("{0} needs an address, a port or both")]
    NothingToRewrite(&'static str),
    /// A jump to a chain that does not exist.
    #[error("jump to {0:?}, which is no chain of this table")]
    UnknownChain(ChainId),
    /// A jump to a built-in chain.
    #[error("jump to the built-in chain {0}: only user chains can be called")]
    JumpToBuiltin(Arc<str>),
    /// A chain that can reach itself.
    #[error("chain {0} can reach itself (too many levels of symbolic links)")]
    Loop(Arc<str>),
    /// Chains that call each other too deeply.
    #[error("{depth} nested jumps; nf_tables accepts {NFT_JUMP_DEPTH_MAX} (too many links)")]
    TooDeep {
        /// How deep it goes.
        depth: u32,
    },
    /// A name that no chain may have.
    #[error(
        "chain name {0:?} is not 1 to {CHAIN_NAME_LEN_MAX} characters, or begins with '-' or '!', holds a blank, or is a verdict"
    )]
    ChainName(Arc<str>),
    /// Two chains of one name.
    #[error("a second chain of this name")]
    DuplicateChain,
    /// A slot outside a base.
    #[error("a slot is accepted only in a base (RulesetBuilder::build_base)")]
    SlotInRuleset,
    /// A rule that a slot cannot hold.
    #[error("a rule in a slot needs a match other than comment and statistic")]
    OnlyRandomInSlot,
}

impl ValidationError {
    pub(crate) fn of_chain(table: Table, chain: &Arc<str>, problem: Problem) -> ValidationError {
        ValidationError { table, chain: chain.clone(), rule: None, problem }
    }

    pub(crate) fn of_rule(
        table: Table,
        chain: &Arc<str>,
        position: usize,
        problem: Problem,
    ) -> ValidationError {
        let rule = Some(position as u32 + 1);
        ValidationError { table, chain: chain.clone(), rule, problem }
    }
}

/// What is known about a chain and the chains that it calls.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Reach {
    /// The hooks from which the chain may be called without breaking a rule's limits.
    pub(crate) legal: Hooks,
    /// Nested calls below the chain; `None` if it can reach a loop.
    pub(crate) height: Option<u32>,
    /// Whether the chain holds a slot or can reach one.
    pub(crate) reaches_slot: bool,
    /// The hooks from which the chain is called.
    pub(crate) from: Hooks,
    /// Nested calls above the chain.
    pub(crate) depth: u32,
}

/// Refuses a name that no chain may have.
pub(crate) fn chain_name(table: Table, name: &Arc<str>) -> Option<ValidationError> {
    const VERDICTS: [&str; 4] = ["ACCEPT", "DROP", "QUEUE", "RETURN"];
    let legal = !name.is_empty()
        && name.len() <= CHAIN_NAME_LEN_MAX
        && !name.starts_with(['-', '!'])
        && !name.contains(char::is_whitespace)
        && !VERDICTS.contains(&&**name);
    (!legal).then(|| ValidationError::of_chain(table, name, Problem::ChainName(name.clone())))
}

/// Checks a table and returns what was found out about each chain.
pub(crate) fn table(
    table: Table,
    family: Family,
    chains: &[Chain],
    backend: Backend,
) -> Result<Vec<Reach>, ValidationError> {
    for chain in chains {
        check_policy(table, chain)?;
    }
    rules(table, family, chains, backend)
}

/// Checks a table but for its policies, which iptables-restore sets where iptables would not.
pub(crate) fn rules(
    table: Table,
    family: Family,
    chains: &[Chain],
    backend: Backend,
) -> Result<Vec<Reach>, ValidationError> {
    let outside = |id| Err(Problem::UnknownChain(id));
    let first = chains.first().map(|c| c.id);
    let (mut reach, order) = bottom_up(table, family, chains, first, &outside)?;
    for (index, chain) in chains.iter().enumerate() {
        let Some(hook) = chain.hook() else { continue };
        let Some(height) = reach[index].height else {
            return Err(loop_error(table, chains, &reach, index));
        };
        check_depth(table, chain, height, backend)?;
        if !reach[index].legal.contains(hook) {
            return Err(blame(table, family, chains, &reach, index, hook));
        }
    }
    top_down(chains, &order, &mut reach);
    Ok(reach)
}

pub(crate) fn check_depth(
    table: Table,
    chain: &Chain,
    depth: u32,
    backend: Backend,
) -> Result<(), ValidationError> {
    if backend == Backend::NfTables && depth > NFT_JUMP_DEPTH_MAX {
        return Err(ValidationError::of_chain(table, &chain.name, Problem::TooDeep { depth }));
    }
    Ok(())
}

fn check_policy(table: Table, chain: &Chain) -> Result<(), ValidationError> {
    if table == Table::Nat && chain.policy() == Some(crate::rule::Policy::Drop) {
        return Err(ValidationError::of_chain(table, &chain.name, Problem::DropInNat));
    }
    Ok(())
}

/// What a chain outside the checked list allows: its hooks, and nested calls below it.
pub(crate) type Outside<'a> = dyn Fn(ChainId) -> Result<(Hooks, Option<u32>), Problem> + 'a;

/// Checks each rule on its own and computes from the callees up what each chain allows.
///
/// Returns also the chains in an order in which callees come first, without those that can reach
/// a loop. `first` is the id of the first chain of the list.
pub(crate) fn bottom_up(
    table: Table,
    family: Family,
    chains: &[Chain],
    first: Option<ChainId>,
    outside: &Outside<'_>,
) -> Result<(Vec<Reach>, Vec<usize>), ValidationError> {
    let inside = |id: ChainId| {
        let own = first.is_some_and(|first| first.fragment == id.fragment);
        (own && (id.index as usize) < chains.len()).then_some(id.index as usize)
    };
    let mut reach = vec![Reach::default(); chains.len()];
    let mut callers: Vec<Vec<usize>> = vec![Vec::new(); chains.len()];
    let mut open = vec![0usize; chains.len()];
    for (index, chain) in chains.iter().enumerate() {
        let (mut legal, mut height) = (Hooks::of(&Hook::ALL), Some(0));
        for (position, rule) in chain.rules.iter().enumerate() {
            let at = |problem| ValidationError::of_rule(table, &chain.name, position, problem);
            legal =
                intersect(legal, rule_hooks(Place::of(table, family, chain), rule).map_err(at)?);
            let (Target::Jump(id) | Target::Goto(id)) = rule.target() else {
                continue;
            };
            if let Some(callee) = inside(*id) {
                if chains[callee].base.is_some() {
                    return Err(at(Problem::JumpToBuiltin(chains[callee].name.clone())));
                }
                callers[callee].push(index);
                open[index] += 1;
            } else {
                let (hooks, below) = outside(*id).map_err(at)?;
                legal = intersect(legal, hooks);
                height = height.zip(below).map(|(height, below): (u32, u32)| height.max(below + 1));
            }
        }
        reach[index] =
            Reach { legal, height, reaches_slot: chain.slot.is_some(), ..Reach::default() };
    }
    let mut order: Vec<usize> = (0..chains.len()).filter(|index| open[*index] == 0).collect();
    let mut next = 0;
    while let Some(&callee) = order.get(next) {
        next += 1;
        for &caller in &callers[callee] {
            let below = reach[callee];
            let above = &mut reach[caller];
            above.legal = intersect(above.legal, below.legal);
            above.reaches_slot |= below.reaches_slot;
            above.height = above.height.zip(below.height).map(|(a, b)| a.max(b + 1));
            open[caller] -= 1;
            if open[caller] == 0 {
                order.push(caller);
            }
        }
    }
    for (reach, open) in reach.iter_mut().zip(&open) {
        if *open > 0 {
            reach.height = None;
        }
    }
    Ok((reach, order))
}

fn top_down(chains: &[Chain], order: &[usize], reach: &mut [Reach]) {
    for &index in order.iter().rev() {
        let chain = &chains[index];
        reach[index].from = reach[index].from.union(chain.own_hooks());
        let Reach { from, depth, .. } = reach[index];
        if from.is_empty() {
            continue;
        }
        for rule in &chain.rules {
            if let Target::Jump(id) | Target::Goto(id) = rule.target() {
                let callee = &mut reach[id.index as usize];
                callee.from = callee.from.union(from);
                callee.depth = callee.depth.max(depth + 1);
            }
        }
    }
}

pub(crate) fn intersect(a: Hooks, b: Hooks) -> Hooks {
    a.without(Hooks::of(&Hook::ALL).without(b))
}

/// Names a chain on the loop that a chain can reach.
fn loop_error(table: Table, chains: &[Chain], reach: &[Reach], from: usize) -> ValidationError {
    let mut seen = vec![false; chains.len()];
    let mut index = from;
    loop {
        seen[index] = true;
        let chain = &chains[index];
        let callees =
            chain.rules.iter().enumerate().filter_map(|(position, rule)| match rule.target() {
                Target::Jump(id) | Target::Goto(id) => Some((position, id.index as usize)),
                _ => None,
            });
        let mut on_the_way = callees.filter(|(_, callee)| reach[*callee].height.is_none());
        let (position, callee) = on_the_way.next().expect("a chain above a loop has such a callee");
        if seen[callee] {
            let problem = Problem::Loop(chains[callee].name.clone());
            return ValidationError::of_rule(table, &chain.name, position, problem);
        }
        index = callee;
    }
}

/// Finds the rule below a chain that does not accept the hook.
fn blame(
    table: Table,
    family: Family,
    chains: &[Chain],
    reach: &[Reach],
    from: usize,
    hook: Hook,
) -> ValidationError {
    let mut index = from;
    'chain: loop {
        let chain = &chains[index];
        for (position, rule) in chain.rules.iter().enumerate() {
            if let Some(problem) = wrong_hook(Place::of(table, family, chain), rule, hook) {
                return ValidationError::of_rule(table, &chain.name, position, problem);
            }
            if let Target::Jump(id) | Target::Goto(id) = rule.target() {
                let callee = id.index as usize;
                if !reach[callee].legal.contains(hook) {
                    index = callee;
                    continue 'chain;
                }
            }
        }
        unreachable!("no rule below chain {} refuses {hook}", chains[from].name);
    }
}

#[cfg(test)]
mod tests;
