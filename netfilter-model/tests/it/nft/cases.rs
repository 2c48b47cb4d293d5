//! Small rulesets and packets.

mod expressions;
mod nat;
mod refusals;
mod sets;
mod verdicts;

pub(super) use expressions::EXPRESSIONS;
pub(super) use nat::NAT;
pub(super) use refusals::REFUSALS;
pub(super) use sets::SETS;
pub(super) use verdicts::VERDICTS;
