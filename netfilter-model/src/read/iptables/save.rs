//! Writing a dump back.

use std::fmt::Write;

use super::{Counters, IptablesDump};
use crate::rule::{chains_in_order, iptables_rule, policy_name};

/// Whether rules are written with their counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WithCounters {
    /// As `iptables-save -c`.
    Yes,
    /// As `iptables-save`.
    No,
}

impl IptablesDump {
    /// Returns the dump as `iptables-save` prints it, without comment lines: tables in the order
    /// of the text that was read, policies with their counters.
    pub fn iptables_save(&self, counters: WithCounters) -> String {
        let mut text = String::new();
        for &table in &self.order {
            let _ = writeln!(text, "*{table}");
            let chains = chains_in_order(&self.ruleset, table);
            for chain in &chains {
                let hook = chain.hook();
                if hook.is_some_and(|hook| !self.has_builtin(table, hook)) {
                    continue;
                }
                let of_policy = hook.and_then(|hook| self.policy_counters(table, hook));
                let Counters { packets, bytes } = of_policy.unwrap_or_default();
                let _ =
                    writeln!(text, ":{} {} [{packets}:{bytes}]", chain.name(), policy_name(chain));
            }
            for chain in &chains {
                for (rule, number) in chain.rules().iter().zip(1..) {
                    if counters == WithCounters::Yes {
                        let of_rule = self.rule_counters(table, chain.id(), number);
                        let Counters { packets, bytes } = of_rule.unwrap_or_default();
                        let _ = write!(text, "[{packets}:{bytes}] ");
                    }
                    text.push_str(&iptables_rule(&self.ruleset, table, chain, rule));
                    text.push('\n');
                }
            }
            text.push_str("COMMIT\n");
        }
        text
    }
}
