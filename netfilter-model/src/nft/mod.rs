//! nftables: tables of the families ip, ip6 and inet, with base chains at any priority, sets,
//! maps and verdict maps.
//!
//! ```text
//!  Ruleset ─ Table ─┬─ Chain (base or not) ─ Rule ─ Statement ─ Expr
//!                   ├─ Set (named)                    │
//!                   └─ Object (counter, limit, …)     └─ Set (anonymous)
//! ```
//!
//! A [`Ruleset`] is what [`crate::rule::Rules::nft`] shows beside the tables of x_tables: its
//! chains run between those, by priority. What rules keep between packets lives in the network
//! namespace, as with x_tables.
//!
//! Tables of the families arp, bridge and netdev are kept and never run. A statement that is not
//! modelled is kept as [`Statement::Unsupported`]: evaluation asks
//! [`crate::host::Draws::unsupported`] what it does.

mod check;
mod eval;
mod expr;
mod render;
mod rule;
mod ruleset;
mod set;
mod state;
#[cfg(test)]
mod tests;
pub(crate) mod value;
mod walk;

pub use check::Problem;
pub(crate) use check::each_set_use;
pub use expr::{CtKey, Expr, Fib, FibResult, Field, Header, Meta, Payload, StateId};
pub use render::{nft_element, nft_list, nft_rule};
pub use rule::{
    Base, Chain, Comparison, Counter, Dynset, DynsetOp, Family, Kind, Limit, NatKind, NatStatement,
    NatValue, Object, ObjectKind, Op, Quota, Right, Rule, Statement, Table, Verdict,
};
pub use ruleset::{BaseChain, Planned, Ruleset};
pub use set::{Data, Element, Overlap, Range, Set, SetData, SetUse};
pub use value::Type;

pub use state::{LiveKey, State};
pub(crate) use walk::traverse;
