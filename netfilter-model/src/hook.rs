//! The five hooks, the tables at them and their order, which is the kernel's and is data.

use std::fmt;

use crate::tuple::Side;

/// A place in the stack where rules may look at a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Hook {
    /// Received, before the routing decision.
    Prerouting,
    /// For this host.
    Input,
    /// Passing through.
    Forward,
    /// Made here.
    Output,
    /// About to leave.
    Postrouting,
}

impl Hook {
    /// All hooks, in the order in which built-in chains are printed.
    pub const ALL: [Hook; 5] =
        [Hook::Prerouting, Hook::Input, Hook::Forward, Hook::Output, Hook::Postrouting];

    /// Returns the name of the built-in chain at this hook.
    pub const fn chain_name(self) -> &'static str {
        match self {
            Hook::Prerouting => "PREROUTING",
            Hook::Input => "INPUT",
            Hook::Forward => "FORWARD",
            Hook::Output => "OUTPUT",
            Hook::Postrouting => "POSTROUTING",
        }
    }

    /// Returns the side that NAT may rewrite at this hook.
    // Kernel: nf_nat.h, HOOK2MANIP
    pub(crate) const fn nat_side(self) -> Side {
        match self {
            Hook::Prerouting | Hook::Forward | Hook::Output => Side::Destination,
            Hook::Input | Hook::Postrouting => Side::Source,
        }
    }

    /// Returns whether a packet at this hook has an input device.
    pub const fn has_input_device(self) -> bool {
        matches!(self, Hook::Prerouting | Hook::Input | Hook::Forward)
    }

    /// Returns whether a packet at this hook has an output device.
    pub const fn has_output_device(self) -> bool {
        matches!(self, Hook::Forward | Hook::Output | Hook::Postrouting)
    }
}

impl fmt::Display for Hook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.chain_name())
    }
}

/// A set of hooks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Hooks(u8);

impl Hooks {
    /// No hook.
    pub const NONE: Hooks = Hooks(0);

    /// Returns the set of these hooks.
    pub const fn of(hooks: &[Hook]) -> Hooks {
        let mut set = 0;
        let mut i = 0;
        while i < hooks.len() {
            set |= 1 << hooks[i] as u8;
            i += 1;
        }
        Hooks(set)
    }

    /// Returns whether the hook is in the set.
    pub const fn contains(self, hook: Hook) -> bool {
        self.0 & 1 << hook as u8 != 0
    }

    /// Returns the hooks of either set.
    pub const fn union(self, other: Hooks) -> Hooks {
        Hooks(self.0 | other.0)
    }

    /// Returns the hooks that are not in `other`.
    pub const fn without(self, other: Hooks) -> Hooks {
        Hooks(self.0 & !other.0)
    }

    /// Returns whether the set is empty.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Returns the hooks in printing order.
    pub fn iter(self) -> impl Iterator<Item = Hook> {
        Hook::ALL.into_iter().filter(move |hook| self.contains(*hook))
    }
}

impl fmt::Display for Hooks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, hook) in self.iter().enumerate() {
            let separator = if i > 0 { ", " } else { "" };
            write!(f, "{separator}{hook}")?;
        }
        Ok(())
    }
}

/// A table: rules of one purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Table {
    /// Before connection tracking.
    Raw,
    /// Changing headers.
    Mangle,
    /// Address translation.
    Nat,
    /// Letting pass or not.
    Filter,
    /// Mandatory access control.
    Security,
}

impl Table {
    /// All tables.
    pub const ALL: [Table; 5] =
        [Table::Raw, Table::Mangle, Table::Nat, Table::Filter, Table::Security];

    /// Returns the table's name.
    pub const fn name(self) -> &'static str {
        match self {
            Table::Raw => "raw",
            Table::Mangle => "mangle",
            Table::Nat => "nat",
            Table::Filter => "filter",
            Table::Security => "security",
        }
    }

    /// Returns the hooks at which the table has a built-in chain.
    pub const fn hooks(self) -> Hooks {
        match self {
            Table::Raw => Hooks::of(&[Hook::Prerouting, Hook::Output]),
            Table::Mangle => Hooks::of(&Hook::ALL),
            Table::Nat => {
                Hooks::of(&[Hook::Prerouting, Hook::Input, Hook::Output, Hook::Postrouting])
            }
            Table::Filter | Table::Security => {
                Hooks::of(&[Hook::Input, Hook::Forward, Hook::Output])
            }
        }
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What runs at one priority of a hook.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// The table's built-in chain.
    Table(Table),
    /// Connection tracking finds or makes the packet's entry.
    Track,
    /// Connection tracking enters a new connection into its table.
    Confirm,
}

/// Returns what runs at a hook, in order of the kernel's priority numbers.
// Kernel: uapi/linux/netfilter_ipv4.h, enum nf_ip_hook_priorities
pub const fn steps(hook: Hook) -> &'static [(i32, Step)] {
    const RAW: (i32, Step) = (-300, Step::Table(Table::Raw));
    const TRACK: (i32, Step) = (-200, Step::Track);
    const MANGLE: (i32, Step) = (-150, Step::Table(Table::Mangle));
    const DSTNAT: (i32, Step) = (-100, Step::Table(Table::Nat));
    const FILTER: (i32, Step) = (0, Step::Table(Table::Filter));
    const SECURITY: (i32, Step) = (50, Step::Table(Table::Security));
    const SRCNAT: (i32, Step) = (100, Step::Table(Table::Nat));
    const CONFIRM: (i32, Step) = (i32::MAX, Step::Confirm);
    match hook {
        Hook::Prerouting => &[RAW, TRACK, MANGLE, DSTNAT],
        Hook::Input => &[MANGLE, FILTER, SECURITY, SRCNAT, CONFIRM],
        Hook::Forward => &[MANGLE, FILTER, SECURITY],
        Hook::Output => &[RAW, TRACK, MANGLE, DSTNAT, FILTER, SECURITY],
        Hook::Postrouting => &[MANGLE, SRCNAT, CONFIRM],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_agree_with_the_tables_and_rise_in_priority() {
        for hook in Hook::ALL {
            let steps = steps(hook);
            assert!(steps.is_sorted_by_key(|(priority, _)| *priority), "{hook}");
            for table in Table::ALL {
                let runs = steps.iter().any(|(_, step)| *step == Step::Table(table));
                assert_eq!(runs, table.hooks().contains(hook), "{table} at {hook}");
            }
        }
    }

    #[test]
    fn filter_stands_before_nat_on_input_and_after_it_on_output() {
        let position = |hook, table| {
            steps(hook).iter().position(|(_, step)| *step == Step::Table(table)).unwrap()
        };
        assert!(position(Hook::Input, Table::Filter) < position(Hook::Input, Table::Nat));
        assert!(position(Hook::Output, Table::Nat) < position(Hook::Output, Table::Filter));
    }
}
