//! The exact distribution over a packet's outcomes, and its way to each.
//!
//! The same code that simulations sample from runs again and again on the same state, and
//! [`Script`] answers its draws: each time the last choice that has another possibility is made
//! otherwise, until all are made. So nothing is modelled twice.
//!
//! ```text
//!              ┌─ matches (k/2³¹) ── …        a random rule, or `numgen random`
//!   ── choice ─┤
//!              └─ does not ── choice …
//! ```
//!
//! Conditions that cannot be modelled have no probability. They are taken for false at first; each
//! that was asked then makes an alternative in which it holds, and a combination of such rules
//! another one.
//!
//! What is followed has [`Limits`]. A way behind one of them is not followed, and its probability
//! is said, so that the probabilities of a branch sum to one all the same.
//!
//! Draws that only choose a free port do not branch: they get arbitrary bits, and leave
//! [`Step::Drawn`] in the trace. The namespace must look up rule by rule
//! ([`Lookup::RuleByRule`](crate::traverse::Lookup)), or random rules would take such draws too.

mod share;
#[cfg(test)]
mod tests;

use std::collections::{BTreeSet, VecDeque};

pub use share::Share;

use crate::conntrack::{CtInfo, Direction};
use crate::hash::Mix;
use crate::hook::Hook;
use crate::host::{Draws, Note, Route, RouteQuery};
use crate::packet::Packet;
use crate::rule::{ChainId, Policy, Probability, RuleRef, TableId};

/// How much is followed.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Most ways in all.
    pub ways: usize,
    /// Most alternatives, beside the main branch.
    pub alternatives: usize,
    /// Most rules looked at on all ways together, as told by [`Script::looked_at`]. What is begun
    /// is ended.
    pub rules: u64,
    /// Most steps kept of one way.
    pub steps_of_way: u32,
    /// Most steps kept in all.
    pub steps: usize,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            ways: 100_000,
            alternatives: 64,
            rules: 1 << 28,
            steps_of_way: 20_000,
            steps: 3_000_000,
        }
    }
}

/// Which of the [`Limits`] was met.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// The number of ways.
    Ways,
    /// The number of rules looked at.
    Rules,
    /// The number of steps kept.
    Steps,
}

/// What a packet meets: [`Note`] with its packets kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// The packet enters a hook.
    Hook(Hook, Packet),
    /// All conditions of a rule hold.
    Rule {
        /// The hook.
        hook: Hook,
        /// The rule.
        rule: RuleRef,
        /// The packet before.
        before: Packet,
        /// The packet after.
        after: Packet,
    },
    /// A built-in chain ended without a verdict.
    Policy {
        /// The hook.
        hook: Hook,
        /// The table.
        table: TableId,
        /// The chain.
        chain: ChainId,
        /// Whether the packet passes.
        policy: Policy,
    },
    /// What connection tracking says.
    Tracked {
        /// The hook.
        hook: Hook,
        /// What it says, or `None` if it does not look.
        info: Option<(CtInfo, Direction)>,
        /// The packet's connection was not known.
        new: bool,
    },
    /// A connection's packet was rewritten.
    Translated {
        /// The hook.
        hook: Hook,
        /// Before.
        before: Packet,
        /// After.
        after: Packet,
    },
    /// A routing decision.
    Routed {
        /// The hook behind which it was made.
        hook: Hook,
        /// What was asked.
        query: RouteQuery,
        /// The answer.
        route: Route,
    },
    /// A free port was looked for at random; which one was found means nothing.
    Drawn,
}

impl From<Note<'_>> for Step {
    fn from(note: Note<'_>) -> Step {
        match note {
            Note::Hook(hook, packet) => Step::Hook(hook, *packet),
            Note::Rule { hook, rule, before, after } => {
                Step::Rule { hook, rule, before: *before, after: *after }
            }
            Note::Policy { hook, table, chain, policy } => {
                Step::Policy { hook, table, chain, policy }
            }
            Note::Tracked { hook, info, new } => Step::Tracked { hook, info, new },
            Note::Translated { hook, before, after } => {
                Step::Translated { hook, before: *before, after: *after }
            }
            Note::Routed { hook, query, route } => Step::Routed { hook, query, route },
        }
    }
}

/// Everything that may become of a packet.
#[derive(Clone, Debug)]
pub struct Exploration<O> {
    /// No condition holds that cannot be modelled.
    pub main: Branch<O>,
    /// Some do; those with fewer come first.
    pub alternatives: Vec<Branch<O>>,
    /// How many more combinations of such conditions were met and not followed, since there were
    /// too many.
    pub alternatives_left: usize,
}

/// What becomes of a packet, given which conditions hold that cannot be modelled.
#[derive(Clone, Debug)]
pub struct Branch<O> {
    /// These, in the order in which they were met.
    pub assuming: Vec<Assumption>,
    /// The ways, in the order in which random rules choose.
    pub ways: Vec<Way<O>>,
    /// The probability of ways that were not followed.
    pub unfollowed: Share,
    /// Which limit they lie behind, if there are any.
    pub limit: Option<Limit>,
    trace: Trace,
}

/// Whether the conditions of a rule hold that cannot be modelled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Assumption {
    /// The rule.
    pub rule: RuleRef,
    /// They do.
    pub holds: bool,
}

/// One way of a packet.
#[derive(Clone, Debug)]
pub struct Way<O> {
    /// How likely it is.
    pub probability: Share,
    /// Where it ends.
    pub outcome: O,
    /// How many of its last steps were not kept, since there were too many.
    pub steps_left_out: u64,
    last: Option<u32>,
}

impl<O> Exploration<O> {
    /// Returns the rules with conditions that cannot be modelled that were met on any way, each
    /// once.
    pub fn asked(&self) -> Vec<RuleRef> {
        let mut asked = Vec::new();
        for branch in std::iter::once(&self.main).chain(&self.alternatives) {
            for Assumption { rule, .. } in &branch.assuming {
                if !asked.contains(rule) {
                    asked.push(*rule);
                }
            }
        }
        asked
    }
}

impl<O> Way<O> {
    /// Returns whether another way of the same branch has the same steps: such ways differ in
    /// choices that left none.
    pub fn has_steps_of(&self, other: &Way<O>) -> bool {
        self.last == other.last
    }
}

impl<O> Branch<O> {
    /// Returns the steps of a way of this branch, as far as they were kept.
    pub fn steps(&self, way: &Way<O>) -> Vec<Step> {
        let mut steps = Vec::new();
        let mut at = way.last;
        while let Some(node) = at {
            let (before, step) = self.trace.0[node as usize];
            steps.push(step);
            at = before;
        }
        steps.reverse();
        steps
    }
}

/// Steps that several ways may share: each with the one before it.
#[derive(Clone, Debug, Default)]
struct Trace(Vec<(Option<u32>, Step)>);

/// Follows every way of `run`, which must do the same whenever the script answers the same.
pub fn explore<O>(limits: Limits, mut run: impl FnMut(&mut Script) -> O) -> Exploration<O> {
    let mut left = Limits { ways: limits.ways.max(1), ..limits };
    let mut follow = |holding| follow(holding, &mut left, &mut run);
    let main = follow(BTreeSet::new());
    let mut exhausted = main.limit.is_some();
    let mut queue: VecDeque<BTreeSet<RuleRef>> = VecDeque::new();
    let mut seen = BTreeSet::new();
    let mut extend = |branch: &Branch<O>, queue: &mut VecDeque<BTreeSet<RuleRef>>| {
        let holding: BTreeSet<RuleRef> =
            branch.assuming.iter().filter(|a| a.holds).map(|a| a.rule).collect();
        for asked in branch.assuming.iter().filter(|a| !a.holds) {
            let mut more = holding.clone();
            more.insert(asked.rule);
            if seen.insert(more.clone()) {
                queue.push_back(more);
            }
        }
    };
    extend(&main, &mut queue);
    let mut alternatives = Vec::new();
    let mut alternatives_left = 0;
    while let Some(holding) = queue.pop_front() {
        if exhausted || alternatives.len() >= limits.alternatives {
            alternatives_left += 1;
            continue;
        }
        let count = holding.len();
        let branch = follow(holding);
        exhausted = branch.limit.is_some();
        // A rule that is out of reach once another one holds makes no alternative of its own.
        if branch.assuming.iter().filter(|a| a.holds).count() == count {
            extend(&branch, &mut queue);
            alternatives.push(branch);
        }
    }
    Exploration { main, alternatives, alternatives_left }
}

/// Follows the ways of one branch, the first in any case, and takes them from what is `left`.
fn follow<O>(
    holding: BTreeSet<RuleRef>,
    left: &mut Limits,
    run: &mut impl FnMut(&mut Script) -> O,
) -> Branch<O> {
    let mut script = Script::new(holding, left);
    let mut ways = Vec::new();
    let mut followed = Share::zero();
    let limit = loop {
        script.begin();
        let outcome = run(&mut script);
        let probability = script.probability();
        followed = followed + &probability;
        let Place { last, left_out, .. } = script.place;
        ways.push(Way { probability, outcome, steps_left_out: left_out, last });
        if !script.advance() {
            break None;
        }
        if ways.len() >= left.ways {
            break Some(Limit::Ways);
        }
        if script.looked_at > left.rules {
            break Some(Limit::Rules);
        }
        if script.trace.0.len() >= left.steps {
            break Some(Limit::Steps);
        }
    };
    // At least one way of the next branch is followed if this one ended.
    left.ways = left.ways.saturating_sub(ways.len()).max(1);
    left.rules = left.rules.saturating_sub(script.looked_at);
    left.steps = left.steps.saturating_sub(script.trace.0.len());
    let Script { asked, holding, trace, .. } = script;
    let assuming =
        asked.into_iter().map(|rule| Assumption { rule, holds: holding.contains(&rule) }).collect();
    Branch { assuming, ways, unfollowed: Share::one() - &followed, limit, trace }
}

/// Draws that are decided beforehand, as far as they are, and else take the first possibility.
#[derive(Clone, Debug, Default)]
pub struct Script {
    choices: Vec<Choice>,
    /// How many of them this run has met.
    met: usize,
    holding: BTreeSet<RuleRef>,
    asked: Vec<RuleRef>,
    trace: Trace,
    place: Place,
    steps_of_way_max: u32,
    steps_max: usize,
    looked_at: u64,
}

/// How far a way has come.
#[derive(Clone, Copy, Debug, Default)]
struct Place {
    /// The last step that was kept.
    last: Option<u32>,
    /// How many were kept.
    kept: u32,
    /// How many were not.
    left_out: u64,
}

/// A choice that was met.
#[derive(Clone, Debug)]
struct Choice {
    kind: Kind,
    /// Which possibility is taken now.
    option: u32,
    /// How likely the way is up to and with this choice.
    probability: Share,
    /// What lies before it.
    place: Place,
}

/// What is chosen from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// A rule matches, or does not.
    Chance(Probability),
    /// A number below this one.
    Below(u32),
}

impl Kind {
    fn options(self) -> u32 {
        match self {
            Kind::Chance(_) => 2,
            Kind::Below(modulus) => modulus,
        }
    }

    /// Returns the weight of a possibility, and of how many bits its denominator is.
    fn weight(self, option: u32) -> (u64, u32) {
        match self {
            Kind::Chance(probability) => {
                let k = u64::from(probability.k());
                (if option == 0 { k } else { (1 << 31) - k }, 31)
            }
            // Kernel: reciprocal_scale: r · modulus / 2³², rounded down.
            Kind::Below(modulus) => {
                let first = |option: u64| (option << 32).div_ceil(u64::from(modulus));
                (first(u64::from(option) + 1) - first(u64::from(option)), 32)
            }
        }
    }
}

impl Script {
    fn new(holding: BTreeSet<RuleRef>, left: &Limits) -> Script {
        Script {
            choices: Vec::new(),
            met: 0,
            holding,
            asked: Vec::new(),
            trace: Trace::default(),
            place: Place::default(),
            steps_of_way_max: left.steps_of_way,
            steps_max: left.steps,
            looked_at: 0,
        }
    }

    /// Takes note of how many rules the run has looked at.
    pub fn looked_at(&mut self, rules: u32) {
        self.looked_at += u64::from(rules);
    }

    /// Starts a run.
    fn begin(&mut self) {
        self.met = 0;
        self.place = self.choices.last().map_or_else(Place::default, |choice| choice.place);
    }

    /// Returns how likely the run was.
    fn probability(&self) -> Share {
        self.choices.last().map_or_else(Share::one, |choice| choice.probability.clone())
    }

    fn before(&self, choice: usize) -> Share {
        match choice.checked_sub(1) {
            Some(before) => self.choices[before].probability.clone(),
            None => Share::one(),
        }
    }

    /// Decides the last choice otherwise that can be; returns whether there was one.
    fn advance(&mut self) -> bool {
        while let Some(choice) = self.choices.last_mut() {
            choice.option += 1;
            if choice.option < choice.kind.options() {
                let (weight, bits) = choice.kind.weight(choice.option);
                let before = self.before(self.choices.len() - 1);
                let choice = self.choices.last_mut().expect("just seen");
                choice.probability = before.times(weight, bits);
                return true;
            }
            self.choices.pop();
        }
        false
    }

    fn choose(&mut self, kind: Kind) -> u32 {
        let at = self.met;
        self.met += 1;
        if let Some(choice) = self.choices.get(at) {
            assert_eq!(choice.kind, kind, "the run differs from the one before it");
            return choice.option;
        }
        let (weight, bits) = kind.weight(0);
        let probability = self.before(at).times(weight, bits);
        self.choices.push(Choice { kind, option: 0, probability, place: self.place });
        0
    }

    fn record(&mut self, step: Step) {
        // Up to the last choice, the steps are those of the run before.
        if self.met < self.choices.len() {
            return;
        }
        let steps = &mut self.trace.0;
        if self.place.kept >= self.steps_of_way_max || steps.len() >= self.steps_max {
            self.place.left_out += 1;
            return;
        }
        let node = u32::try_from(steps.len()).expect("fewer than 2^32 steps");
        steps.push((self.place.last, step));
        self.place = Place { last: Some(node), kept: self.place.kept + 1, ..self.place };
    }
}

impl Draws for Script {
    fn draw(&mut self, ordinal: u32) -> u64 {
        self.record(Step::Drawn);
        let mut bits = Mix::new();
        bits.word(u64::from(ordinal));
        bits.finish()
    }

    fn chance(&mut self, _: u32, probability: Probability) -> bool {
        match probability {
            Probability::ALWAYS => true,
            Probability::NEVER => false,
            _ => self.choose(Kind::Chance(probability)) == 0,
        }
    }

    fn below(&mut self, _: u32, modulus: u32) -> u32 {
        if modulus <= 1 { 0 } else { self.choose(Kind::Below(modulus)) }
    }

    fn unsupported(&mut self, rule: RuleRef) -> bool {
        if !self.asked.contains(&rule) {
            self.asked.push(rule);
        }
        self.holding.contains(&rule)
    }

    fn note(&mut self, note: Note<'_>) {
        self.record(note.into());
    }
}
