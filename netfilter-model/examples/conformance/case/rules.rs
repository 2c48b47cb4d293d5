//! Loading rules: ipset, nft, iptables, ip6tables.

use std::sync::Arc;

use netfilter_model::hook::Table;
use netfilter_model::network::NodeRules;
use netfilter_model::read::{IptablesDump, Read, Source, iptables_rules, nft_ruleset};
use netfilter_model::rule::{Ruleset, RulesetBuilder};
use netfilter_model::tuple::Family;
use serde_json::{Value, json};

use super::World;
use super::json::Get;
use super::restore::{Options, Tables};

/// What an endpoint has loaded.
#[derive(Clone, Default)]
pub(super) struct Loaded {
    pub(super) ipv4: Tables,
    pub(super) ipv6: Tables,
    pub(super) dump: Option<IptablesDump>,
    pub(super) nft: String,
}

impl World {
    pub(super) fn rules(&mut self, step: &Value) -> Result<Value, String> {
        let (name, _) = self.endpoint(step, "node")?;
        let ok = self.load(&name, step)?;
        if !ok && !step.flag("may_fail") {
            return Err("the rules do not load".to_owned());
        }
        Ok(json!({"ok": ok}))
    }

    /// Loads rules into an endpoint; returns whether all of them could be.
    pub(super) fn load(&mut self, name: &str, rules: &Value) -> Result<bool, String> {
        let endpoint = self.endpoints.get(name);
        let id = endpoint.ok_or_else(|| format!("{name:?} is no endpoint"))?.id;
        if let Some(text) = rules.lines("ipset") {
            self.load_ipset(id, &text);
        }
        let mut loaded = self.loaded[name].clone();
        if let Some(text) = rules.lines("nft") {
            loaded.nft.push_str(&text);
        }
        let options = Options {
            noflush: rules.flag("noflush"),
            counters: rules.flag("counters"),
            test: rules.flag("test"),
        };
        let mut replaced = Vec::new();
        for (key, tables) in [("iptables", &mut loaded.ipv4), ("ip6tables", &mut loaded.ipv6)] {
            let Some(text) = rules.lines(key) else {
                continue;
            };
            let restored = tables.restore(&text, options);
            self.remarks.extend(restored.remarks);
            if restored.failed {
                return Ok(false);
            }
            let ipv4 = key == "iptables";
            replaced.extend(restored.tables.into_iter().map(|table| (ipv4, table)));
        }
        let mut fine_nft = true;
        let nft = if loaded.nft.is_empty() {
            None
        } else {
            let Read { value, remarks } = nft_ruleset(&loaded.nft, 0);
            for remark in &remarks {
                self.remarks.push(format!("{:?}: {}", remark.text, remark.problem));
            }
            fine_nft = remarks.is_empty();
            Some(Arc::new(value))
        };
        let (ipv4, dump, fine) = self.read_tables(&loaded.ipv4.text(), Family::V4)?;
        let (ipv6, _, fine6) = self.read_tables(&loaded.ipv6.text(), Family::V6)?;
        if rules.flag("may_fail") && !(fine && fine6 && fine_nft) {
            return Ok(false);
        }
        loaded.dump = dump;
        let replaced_tables: Vec<Table> =
            replaced.iter().filter_map(|(_, table)| table_named(table)).collect();
        let now = self.network.now();
        let node = self.network.node_mut(id);
        if !options.noflush {
            for (ipv4, table) in &replaced {
                if let Some(table) = table_named(table) {
                    node.dice.counts_mut(*ipv4).clear(table.into());
                }
            }
        }
        node.netns.memory_mut().rulesets_loaded([&ipv4, &ipv6]);
        let (ipv4, ipv6) = match nft {
            None => (ipv4, ipv6),
            Some(nft) => {
                if rules.get("nft").is_some() {
                    node.netns.nft_replaced(&nft, now);
                }
                (ipv4.with_nft(nft.clone()), ipv6.with_nft(nft))
            }
        };
        let rules = NodeRules { ipv4, ipv6 };
        self.network.set_rules(id, rules, &replaced_tables);
        self.loaded.insert(name.to_owned(), loaded);
        Ok(true)
    }

    /// Reads tables; returns whether everything was understood, too.
    fn read_tables(
        &mut self,
        text: &str,
        family: Family,
    ) -> Result<(Ruleset, Option<IptablesDump>, bool), String> {
        let source = Source { family: Some(family), ..Source::default() };
        let Read { value: mut dumps, remarks } = iptables_rules(text, source);
        for remark in &remarks {
            self.remarks.push(format!("{:?}: {}", remark.text, remark.problem));
        }
        let dump = dumps.pop();
        let ruleset = match &dump {
            Some(dump) => dump.ruleset.clone(),
            None => RulesetBuilder::new().build().map_err(|error| error.to_string())?,
        };
        Ok((ruleset, dump, remarks.is_empty()))
    }
}

/// Returns the table of this name.
pub(super) fn table_named(name: &str) -> Option<Table> {
    Table::ALL.into_iter().find(|table| table.to_string() == name)
}
