//! Readers of what iptables prints: `iptables-save`, `iptables -S`, `iptables -L`.

mod build;
mod command;
mod listing;
mod matches;
mod names;
mod options;
mod phrase;
mod save;
mod section;
mod tables;
mod target;
mod value;
mod words;

use std::collections::BTreeMap;

use crate::hook::{Hook, Hooks, Table};
use crate::rule::{Backend, Ruleset};
use crate::tuple::Family;

pub use listing::iptables_listing;
pub use save::WithCounters;
pub use section::iptables_rules;

/// How often something matched.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Packets.
    pub packets: u64,
    /// Bytes of their IP packets.
    pub bytes: u64,
}

/// What is known about a text that it does not say itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Source {
    /// The number of the file: rules get it as the owner of their origin, and their line as the
    /// item.
    pub file: u32,
    /// The table of rules for which the text names none.
    pub table: Option<Table>,
    /// The family of rules for which the text names none; without, addresses show it.
    pub family: Option<Family>,
}

/// What one back end has for one family.
#[derive(Clone, Debug)]
pub struct IptablesDump {
    /// The rules. Each has the number of its file and its line as origin.
    pub ruleset: Ruleset,
    /// The back end, if the text says which.
    pub backend: Option<Backend>,
    /// The tables, in the order of the text.
    order: Vec<Table>,
    /// The built-in chains that the text names.
    declared: [Hooks; 5],
    policies: BTreeMap<(Table, Hook), Counters>,
    counters: [Vec<Vec<Option<Counters>>>; 5],
}

impl IptablesDump {
    /// Returns the tables, in the order of the text.
    pub fn tables(&self) -> &[Table] {
        &self.order
    }
}

#[cfg(test)]
mod tests;
