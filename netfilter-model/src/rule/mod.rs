//! Rules, chains and rulesets: data with three readers, which are traversal, rendering, counting.
//!
//! A [`Ruleset`] is a whole valid ruleset. Where thousands of hosts hold nearly the same rules, a
//! [`Base`] holds what is common, [`Fragment`]s hold what one Service port (say) adds, and a view
//! of both implements [`Rules`]: traversal does not know the difference.

mod base;
mod build;
pub(crate) mod code;
mod guard;
mod index;
mod legality;
mod lenient;
pub(crate) mod matches;
pub(crate) mod random;
mod render;
pub(crate) mod target;
mod validate;

use std::sync::Arc;

use crate::device::DeviceNameError;
use crate::device::DevicePattern;
use crate::hook::{Hook, Table};
use crate::ipvs;
use crate::nft;
use crate::packet::Packet;
use crate::prefix::Prefix;
use crate::tuple::Protocol;

pub use base::{Base, Fragment, FragmentBuilder, FragmentView};
pub use build::{Backend, Ruleset, RulesetBuilder};
pub use code::Code;
pub(crate) use guard::Guards;
pub(crate) use index::ChainIndex;
pub use index::RuleKey;
pub use matches::{
    AddrType, AddrTypeMatch, AddrTypes, ConntrackMatch, CtAddress, CtStates, CtStatuses,
    DeviceMatch, FlagsMatch, FrameKind, HashlimitMatch, Invertible, IprangeMatch, IpvsMatch,
    LimitIface, LimitMatch, Match, Multiport, MultiportSide, OwnerMatch, PhysdevMatch, PortMatch,
    RecentAction, RecentMatch, RpfilterMatch, SctpMatch, SetMatch, SetSide, TtlCompare,
    Unsupported,
};
pub(crate) use random::Run;
pub use random::{LAW_BITS, Probability, ProbabilityError, random_run_probabilities};
#[cfg(test)]
pub(crate) use render::save_rule;
pub(crate) use render::{chains_in_order, match_text, policy_name, save_quoted, target_text};
pub use render::{iptables_list, iptables_list_rules, iptables_rule, iptables_save};
pub use target::{
    ConnmarkOp, CtTarget, Nat, NatAddresses, NatFlags, NatRange, RejectWith, SetTarget, Target,
    TproxyTarget, TtlChange, Zone, ZoneSide,
};
pub use validate::{Problem, ValidationError};

/// What a rule was made for; the numbers are opaque to this crate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Origin {
    /// The thing that owns the rule, for example a Service port.
    pub owner: u32,
    /// The part of it, for example an endpoint.
    pub item: u32,
}

/// The part of a ruleset that a chain comes from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FragmentId(pub u32);

impl FragmentId {
    /// The common part.
    pub const BASE: FragmentId = FragmentId(0);
}

/// A chain of one table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ChainId {
    /// The part of the ruleset that it comes from.
    pub fragment: FragmentId,
    /// Its place among that part's chains of the table.
    pub index: u32,
}

/// A place in a base's chain where fragments contribute rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SlotId(pub u32);

/// A table of either framework.
// A whole word tells which: behind a byte, copies of an optional rule overlap and stall.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum TableId {
    /// Of x_tables.
    Xt(Table),
    /// Of nf_tables, by its place in the ruleset.
    Nft(u16),
}

impl From<Table> for TableId {
    fn from(table: Table) -> TableId {
        TableId::Xt(table)
    }
}

/// Names a rule, cheaply.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RuleRef {
    /// The table.
    pub table: TableId,
    /// The chain.
    pub chain: ChainId,
    /// The rule's number in its chain, from 1, as iptables counts.
    pub number: u32,
    /// What the rule was made for.
    pub origin: Origin,
}

/// What a built-in chain does with packets that its rules let through.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Policy {
    /// They pass.
    #[default]
    Accept,
    /// They are dropped.
    Drop,
}

/// A rule: conditions, and what to do when all hold.
#[derive(Clone, Debug, PartialEq)]
pub struct Rule {
    matches: Vec<Match>,
    target: Target,
    /// What the rule was made for.
    pub origin: Origin,
    /// The probability, if the rule asks nothing but a `statistic --mode random`.
    only_random: Option<Probability>,
}

/// A list of rules.
#[derive(Clone, Debug)]
pub struct Chain {
    pub(crate) id: ChainId,
    pub(crate) name: Arc<str>,
    /// The hook and policy, for a built-in chain.
    pub(crate) base: Option<(Hook, Policy)>,
    pub(crate) rules: Vec<Rule>,
    pub(crate) slot: Option<Slot>,
    pub(crate) runs: Vec<Run>,
    pub(crate) index: Option<Box<ChainIndex>>,
    pub(crate) guards: Guards,
}

/// Where a chain's slot stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot {
    /// Which slot.
    pub id: SlotId,
    /// How many of the chain's own rules stand before it.
    pub at: u32,
}

/// Rules of a slot that may match a packet.
#[derive(Clone, Copy, Debug)]
pub struct SlotHit<'a> {
    /// Consecutive rules of the slot; empty if no rule from the asked position on can match.
    pub rules: &'a [Rule],
    /// How many rules of the slot stand before them.
    pub before: u32,
    /// How many rules the slot has.
    pub total: u32,
}

/// A view of a valid ruleset.
///
/// Implementations must hold only what [`RulesetBuilder`], [`Base`] and [`FragmentBuilder`] have
/// accepted; traversal checks nothing again.
pub trait Rules {
    /// Returns the built-in chain of a table at a hook, or `None` if the table is not loaded.
    fn base(&self, table: Table, hook: Hook) -> Option<&Chain>;

    /// Returns a chain.
    ///
    /// # Panics
    ///
    /// If there is none: ids come from valid rulesets.
    fn chain(&self, table: Table, id: ChainId) -> &Chain;

    /// Returns the rules of a slot that may match the packet: the first such group whose last
    /// rule stands at position `from` (counted from 0) or behind it.
    ///
    /// Rules that are left out must be such that the packet does not match them by address,
    /// protocol or port ([`Rule::key`]); groups of one rule are fine. Without such rules,
    /// `before` is `total` and `rules` is empty.
    fn slot(&self, table: Table, slot: SlotId, packet: &Packet, from: u32) -> SlotHit<'_>;

    /// Returns whether some rule needs connection tracking. If none does, packets are not tracked.
    fn tracks(&self) -> bool;

    /// Returns the ruleset of nftables, if there is one beside the tables of x_tables.
    #[inline]
    fn nft(&self) -> Option<&nft::Ruleset> {
        None
    }

    /// Returns the virtual services of IPVS, if there are any.
    #[inline]
    fn ipvs(&self) -> Option<&dyn ipvs::Services> {
        None
    }

    /// Returns the table as code, if there is any.
    #[doc(hidden)]
    fn code(&self, _table: Table) -> Option<&Code> {
        None
    }
}

impl Chain {
    /// Returns the chain's id.
    pub fn id(&self) -> ChainId {
        self.id
    }

    /// Returns the chain's name.
    pub fn name(&self) -> &Arc<str> {
        &self.name
    }

    /// Returns the policy, or `None` for a user chain.
    pub fn policy(&self) -> Option<Policy> {
        self.base.map(|(_, policy)| policy)
    }

    /// Returns the hook of a built-in chain.
    pub fn hook(&self) -> Option<Hook> {
        self.base.map(|(hook, _)| hook)
    }

    /// Returns the chain's own rules.
    pub fn rules(&self) -> &[Rule] {
        &self.rules
    }

    /// Returns where fragments contribute.
    pub fn slot(&self) -> Option<Slot> {
        self.slot
    }

    /// Returns for each rule of the random run that begins at a rule the probability that it is
    /// chosen, and last that none is, in units of 2⁻⁹⁶ ([`LAW_BITS`]).
    ///
    /// Positions count the chain's own rules from 0. A position inside a run gives its tail's
    /// law; any other position gives `None`.
    pub fn run_law(&self, position: u32) -> Option<Vec<u128>> {
        let run = self.run_at(position)?;
        let from = (position - run.start) as usize;
        Some(random_run_probabilities(&run.probabilities()[from..]))
    }

    #[inline]
    pub(crate) fn run_at(&self, position: u32) -> Option<&Run> {
        let run = match self.runs.as_slice() {
            [run] => run,
            runs => &runs[runs.partition_point(|run| run.start <= position).checked_sub(1)?],
        };
        (run.start <= position && position < run.end()).then_some(run)
    }

    /// Computes what lookup needs from the rules.
    pub(crate) fn freeze(&mut self) {
        let breaks = self.slot.map(|slot| slot.at);
        let mut runs: Vec<(u32, Vec<Probability>)> = Vec::new();
        for (position, rule) in self.rules.iter().enumerate() {
            let position = position as u32;
            let Some(probability) = rule.only_random else {
                continue;
            };
            match runs.last_mut() {
                Some((start, run))
                    if *start + run.len() as u32 == position && breaks != Some(position) =>
                {
                    run.push(probability);
                }
                _ => runs.push((position, vec![probability])),
            }
        }
        self.runs = runs.into_iter().map(|(start, run)| Run::new(start, run.into())).collect();
        self.index = ChainIndex::build(&self.rules).map(Box::new);
        self.guards = Guards::of(&self.rules);
    }
}

impl Rule {
    /// Returns a rule that matches every packet and does nothing.
    pub fn new(origin: Origin) -> Rule {
        Rule { matches: Vec::new(), target: Target::None, origin, only_random: None }
    }

    /// Returns the conditions: the header's in the kernel's order, then the others as added.
    pub fn matches(&self) -> &[Match] {
        &self.matches
    }

    /// Returns what the rule does.
    pub fn target(&self) -> &Target {
        &self.target
    }

    /// Returns the probability, if the rule asks nothing but a `statistic --mode random`.
    #[inline]
    pub(crate) fn only_random(&self) -> Option<Probability> {
        self.only_random
    }

    /// Returns the exact destination that a packet must have to match this rule, if it has one.
    pub fn key(&self) -> Option<RuleKey> {
        RuleKey::of_rule(self)
    }

    /// Adds a condition. A header condition (`-s`, `-d`, `-i`, `-o`, `-p`) replaces one of its
    /// kind.
    pub fn with(mut self, condition: Match) -> Rule {
        match condition.header_place() {
            None => self.matches.push(condition),
            Some(place) => {
                let header = |m: &Match| m.header_place().unwrap_or(u8::MAX);
                let at = self.matches.partition_point(|m| header(m) < place);
                if self.matches.get(at).is_some_and(|m| header(m) == place) {
                    self.matches[at] = condition;
                } else {
                    self.matches.insert(at, condition);
                }
            }
        }
        self.only_random = self.find_only_random();
        self
    }

    fn find_only_random(&self) -> Option<Probability> {
        let mut asked = self.matches.iter().filter(|m| !matches!(m, Match::Comment(_)));
        match (asked.next(), asked.next()) {
            (Some(Match::Random { probability, invert: false }), None) => Some(*probability),
            _ => None,
        }
    }

    /// `-s`.
    pub fn source(self, prefix: Prefix) -> Rule {
        self.with(Match::Source { prefix, invert: false })
    }

    /// `! -s`.
    pub fn not_source(self, prefix: Prefix) -> Rule {
        self.with(Match::Source { prefix, invert: true })
    }

    /// `-d`.
    pub fn destination(self, prefix: Prefix) -> Rule {
        self.with(Match::Destination { prefix, invert: false })
    }

    /// `! -d`.
    pub fn not_destination(self, prefix: Prefix) -> Rule {
        self.with(Match::Destination { prefix, invert: true })
    }

    /// `-i`, with a final `+` for a prefix.
    ///
    /// # Errors
    ///
    /// If the text is no device pattern.
    pub fn in_device(self, pattern: &str) -> Result<Rule, DeviceNameError> {
        let pattern = DevicePattern::parse(pattern)?;
        Ok(self.with(Match::InDevice(Box::new(DeviceMatch { pattern, invert: false }))))
    }

    /// `-o`, with a final `+` for a prefix.
    ///
    /// # Errors
    ///
    /// If the text is no device pattern.
    pub fn out_device(self, pattern: &str) -> Result<Rule, DeviceNameError> {
        let pattern = DevicePattern::parse(pattern)?;
        Ok(self.with(Match::OutDevice(Box::new(DeviceMatch { pattern, invert: false }))))
    }

    /// `-p`.
    pub fn protocol(self, protocol: Protocol) -> Rule {
        self.with(Match::Protocol { protocol, invert: false })
    }

    /// `-m comment --comment`.
    pub fn comment(self, text: impl Into<Arc<str>>) -> Rule {
        self.with(Match::Comment(text.into()))
    }

    /// `-p` and `--dport` of TCP, UDP or SCTP.
    ///
    /// Any other protocol gives a rule that validation refuses.
    pub fn dport(self, protocol: Protocol, port: u16) -> Rule {
        self.ports(protocol, Some(PortMatch::one(port)))
    }

    /// `-p` and `-m` of TCP, UDP or SCTP, with any ports.
    ///
    /// Any other protocol gives a rule that validation refuses.
    pub fn transport(self, protocol: Protocol) -> Rule {
        self.ports(protocol, None)
    }

    fn ports(self, protocol: Protocol, dport: Option<PortMatch>) -> Rule {
        self.protocol(protocol).with(match protocol {
            Protocol::UDP => Match::Udp { sport: None, dport },
            Protocol::SCTP => Match::Sctp(Box::new(SctpMatch { sport: None, dport, chunks: None })),
            _ => Match::Tcp { sport: None, dport, flags: None, option: None },
        })
    }

    /// `-m mark --mark value/mask`.
    pub fn mark(self, value: u32, mask: u32) -> Rule {
        self.with(Match::Mark { value, mask, invert: false })
    }

    /// `-m mark ! --mark value/mask`.
    pub fn not_mark(self, value: u32, mask: u32) -> Rule {
        self.with(Match::Mark { value, mask, invert: true })
    }

    /// `-m conntrack --ctstate`.
    pub fn ctstate(self, states: CtStates) -> Rule {
        self.with(Match::CtState { states, invert: false })
    }

    /// `-m addrtype --src-type`.
    pub fn src_type(self, kind: AddrType) -> Rule {
        let src = Some(AddrTypeMatch { types: AddrTypes::of(&[kind]), invert: false });
        self.with(Match::AddrType { src, dst: None, limit: None })
    }

    /// `-m addrtype --dst-type`.
    pub fn dst_type(self, kind: AddrType) -> Rule {
        let dst = Some(AddrTypeMatch { types: AddrTypes::of(&[kind]), invert: false });
        self.with(Match::AddrType { src: None, dst, limit: None })
    }

    /// `-m statistic --mode random --probability`.
    pub fn random(self, probability: Probability) -> Rule {
        self.with(Match::Random { probability, invert: false })
    }

    /// Sets what the rule does (`-j`, `-g`).
    pub fn then(mut self, target: Target) -> Rule {
        self.target = target;
        self
    }
}
