//! Tables, chains and rules: what `nft list ruleset` shows, as data.

use std::fmt;
use std::sync::Arc;

use crate::hook::Hook;
use crate::nft::expr::{Expr, StateId};
use crate::nft::set::{Range, Set, SetUse};
use crate::nft::value::Type;
use crate::rule::{Origin, Policy, RejectWith};

/// The packets that a table is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Family {
    /// IPv4.
    Ip,
    /// IPv6.
    Ip6,
    /// Both.
    Inet,
    /// ARP; kept, not evaluated.
    Arp,
    /// Bridged frames; kept, not evaluated.
    Bridge,
    /// Frames of a device; kept, not evaluated.
    Netdev,
}

impl Family {
    /// All families.
    pub const ALL: [Family; 6] =
        [Family::Ip, Family::Ip6, Family::Inet, Family::Arp, Family::Bridge, Family::Netdev];

    /// Returns the family's name.
    pub const fn name(self) -> &'static str {
        match self {
            Family::Ip => "ip",
            Family::Ip6 => "ip6",
            Family::Inet => "inet",
            Family::Arp => "arp",
            Family::Bridge => "bridge",
            Family::Netdev => "netdev",
        }
    }

    /// Returns whether tables of the family see packets of IPv4, or of IPv6.
    pub const fn sees(self, ipv4: bool) -> bool {
        match self {
            Family::Ip => ipv4,
            Family::Ip6 => !ipv4,
            Family::Inet => true,
            Family::Arp | Family::Bridge | Family::Netdev => false,
        }
    }
}

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A table.
#[derive(Clone, Debug, PartialEq)]
pub struct Table {
    /// The packets that it is for.
    pub family: Family,
    /// Its name.
    pub name: Arc<str>,
    /// The comment.
    pub comment: Option<Arc<str>>,
    /// Its chains are not called.
    pub dormant: bool,
    /// Counters, quotas, limits and what else has a name.
    pub objects: Vec<Object>,
    /// Sets and maps.
    pub sets: Vec<Set>,
    /// Chains, in the order in which they were added.
    pub chains: Vec<Chain>,
}

/// A chain.
#[derive(Clone, Debug, PartialEq)]
pub struct Chain {
    /// Its name.
    pub name: Arc<str>,
    /// The comment.
    pub comment: Option<Arc<str>>,
    /// Where it is called from, if it is a base chain.
    pub base: Option<Base>,
    /// The rules.
    pub rules: Vec<Rule>,
}

/// Where a base chain is called from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Base {
    /// Its type.
    pub kind: Kind,
    /// The hook; `None` for those of frames (ingress, egress).
    pub hook: Option<Hook>,
    /// The hook's name.
    pub hook_name: Arc<str>,
    /// Devices, at the hooks of frames.
    pub devices: Vec<Arc<str>>,
    /// The priority.
    pub priority: i32,
    /// What becomes of packets at its end.
    pub policy: Policy,
}

/// The type of a base chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Sees every packet.
    Filter,
    /// Sees the first packet of a connection, and may translate it.
    Nat,
    /// As filter, but a packet made here is routed again if it was changed.
    Route,
}

impl Kind {
    /// Returns the type's name.
    pub const fn name(self) -> &'static str {
        match self {
            Kind::Filter => "filter",
            Kind::Nat => "nat",
            Kind::Route => "route",
        }
    }
}

/// A rule: statements that run from left to right until one breaks off or decides.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Rule {
    /// The statements.
    pub statements: Vec<Statement>,
    /// The comment.
    pub comment: Option<Arc<str>>,
    /// The handle, if it was listed.
    pub handle: Option<u64>,
    /// What the rule was made for, or where it was read.
    pub origin: Origin,
}

/// A part of a rule.
#[derive(Clone, Debug, PartialEq)]
pub enum Statement {
    /// Breaks off unless a comparison holds.
    Match(Comparison),
    /// Counts; a name is that of an object.
    Counter(Counter),
    /// A verdict.
    Verdict(Verdict),
    /// The verdict that a map holds for a key; breaks off if it holds none.
    Vmap {
        /// The key.
        key: Vec<Expr>,
        /// The map.
        map: SetUse,
    },
    /// Sets the packet's mark.
    SetMark(Expr),
    /// Sets the connection's mark.
    SetCtMark(Expr),
    /// Sets the zone that connection tracking is to use, in a direction if one is named.
    SetZone(Expr, Option<crate::conntrack::Direction>),
    /// Sets the hops left.
    SetTtl(Expr),
    /// Sets the code point.
    SetDscp(Expr),
    /// The packet is not tracked.
    Notrack,
    /// Rejects; packets of another family than the one named pass on.
    Reject(RejectWith, Option<Family>),
    /// Translates.
    Nat(NatStatement),
    /// Breaks off when packets come too fast, or unless they do.
    Limit(Limit),
    /// Breaks off when too much has passed, or until it has.
    Quota(Quota),
    /// Adds, renews or deletes an element.
    Dynset(Dynset),
    /// Something that no later statement here sees: as written.
    Other(Arc<str>),
    /// Something that is not modelled: as written. Evaluation follows both its breaking off and
    /// its going on; at the end of a rule, both its dropping the packet and its doing nothing.
    Unsupported(Arc<str>),
}

/// A comparison.
#[derive(Clone, Debug, PartialEq)]
pub struct Comparison {
    /// What is compared: more than one for a concatenation.
    pub left: Vec<Expr>,
    /// How.
    pub op: Op,
    /// With what.
    pub right: Right,
}

/// How values are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// Equal, or in the range or set.
    Eq,
    /// Neither equal nor in the range or set.
    Ne,
    /// Less.
    Lt,
    /// Less or equal.
    Le,
    /// Greater.
    Gt,
    /// Greater or equal.
    Ge,
    /// Some of these bits are set.
    Any,
    /// None of these bits is set.
    None,
}

/// The right side of a comparison.
#[derive(Clone, Debug, PartialEq)]
pub enum Right {
    /// A value, or a range of values, for each part of a concatenation.
    Values(Vec<Range>),
    /// A set.
    Set(SetUse),
}

/// A counter.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counter {
    /// The object that counts, if it has a name.
    pub name: Option<Arc<str>>,
    /// Packets and bytes, if they were listed.
    pub counts: Option<(u64, u64)>,
}

/// What a rule or an element decides.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The packet passes this base chain.
    Accept,
    /// The packet is gone.
    Drop,
    /// The next rule runs.
    Continue,
    /// As at the end of the chain.
    Return,
    /// To a chain of the table, and back at its end.
    Jump(u32),
    /// To a chain of the table; its end returns to where this chain was called from.
    Goto(u32),
    /// Something that cannot be followed: as written.
    Unknown(Arc<str>),
}

/// A translation.
#[derive(Clone, Debug, PartialEq)]
pub struct NatStatement {
    /// Which.
    pub kind: NatKind,
    /// The family that it is for, if it says so: others pass on.
    pub family: Option<Family>,
    /// The address.
    pub address: Option<NatValue>,
    /// The port.
    pub port: Option<NatValue>,
    /// `random`.
    pub random: bool,
    /// `fully-random`.
    pub fully_random: bool,
    /// `persistent`.
    pub persistent: bool,
}

/// Which side is translated, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NatKind {
    /// A new destination.
    Dnat,
    /// A new source.
    Snat,
    /// The source becomes the output device's address.
    Masquerade,
    /// The destination becomes this host.
    Redirect,
}

impl NatKind {
    /// Returns the statement's name.
    pub const fn name(self) -> &'static str {
        match self {
            NatKind::Dnat => "dnat",
            NatKind::Snat => "snat",
            NatKind::Masquerade => "masquerade",
            NatKind::Redirect => "redirect",
        }
    }
}

/// An address or port of a translation.
#[derive(Clone, Debug, PartialEq)]
pub enum NatValue {
    /// The first and the last.
    Range(u128, u128),
    /// What an expression gives; as an address, a map may give the port too.
    Expr(Expr),
}

/// A rate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limit {
    /// How many packets or bytes.
    pub rate: u64,
    /// In how many seconds.
    pub seconds: u64,
    /// How many at once beyond it.
    pub burst: u64,
    /// Bytes are counted.
    pub bytes: bool,
    /// Holds beyond the rate.
    pub over: bool,
    /// The object that limits, if it has a name.
    pub name: Option<Arc<str>>,
    /// The place of its state.
    pub state: StateId,
}

/// An amount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Quota {
    /// How many bytes.
    pub bytes: u64,
    /// How many of them are used.
    pub used: u64,
    /// Holds beyond the amount.
    pub over: bool,
    /// The object that counts, if it has a name.
    pub name: Option<Arc<str>>,
    /// The place of its state.
    pub state: StateId,
}

/// A change of a set by a packet.
#[derive(Clone, Debug, PartialEq)]
pub struct Dynset {
    /// What is done.
    pub op: DynsetOp,
    /// The set's place among the table's.
    pub set: u32,
    /// The key.
    pub key: Vec<Expr>,
    /// What the element maps to, in a map.
    pub data: Vec<Expr>,
    /// How long the element lives, in milliseconds, if not as the set says.
    pub timeout: Option<u64>,
    /// A rate for each element.
    pub limit: Option<Limit>,
    /// Something for each element that changes no verdict: as written.
    pub other: Option<Arc<str>>,
}

/// What is done to a set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DynsetOp {
    /// An element is added, unless it is there.
    Add,
    /// An element is added or gets its time anew.
    Update,
    /// An element is removed.
    Delete,
}

impl DynsetOp {
    /// Returns the statement's name.
    pub const fn name(self) -> &'static str {
        match self {
            DynsetOp::Add => "add",
            DynsetOp::Update => "update",
            DynsetOp::Delete => "delete",
        }
    }
}

/// Something of a table that has a name.
#[derive(Clone, Debug, PartialEq)]
pub struct Object {
    /// Its name.
    pub name: Arc<str>,
    /// What it is.
    pub kind: ObjectKind,
}

/// What an object is.
#[derive(Clone, Debug, PartialEq)]
pub enum ObjectKind {
    /// A counter, with packets and bytes.
    Counter(u64, u64),
    /// A quota.
    Quota(Quota),
    /// A limit.
    Limit(Limit),
    /// Something else: its kind and body, as written.
    Other {
        /// The words before the name.
        kind: Arc<str>,
        /// The words in braces.
        body: Arc<str>,
    },
}

impl Expr {
    /// Returns a literal.
    pub const fn literal(value: u128, of: Type) -> Expr {
        Expr::Literal(value, of)
    }
}

impl Comparison {
    /// Returns the comparison of one expression with one value.
    pub fn one(left: Expr, op: Op, value: u128) -> Comparison {
        Comparison { left: vec![left], op, right: Right::Values(vec![(value, value)]) }
    }
}

impl Statement {
    /// Returns whether the statement makes the kernel track connections.
    pub(crate) fn needs_tracking(&self) -> bool {
        match self {
            Statement::Match(comparison) => comparison.left.iter().any(Expr::needs_tracking),
            Statement::Vmap { key, .. } => key.iter().any(Expr::needs_tracking),
            Statement::SetMark(value) | Statement::SetTtl(value) | Statement::SetDscp(value) => {
                value.needs_tracking()
            }
            // Kernel: nft_ct.c, nft_ct_set_init
            Statement::SetCtMark(_) | Statement::SetZone(..) | Statement::Nat(_) => true,
            Statement::Dynset(dynset) => {
                dynset.key.iter().chain(&dynset.data).any(Expr::needs_tracking)
            }
            _ => false,
        }
    }
}
