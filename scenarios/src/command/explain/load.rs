//! The rules of all files together, and where each stands.

use std::collections::{BTreeMap, BTreeSet};

use netfilter_model::conntrack::Listing;
use netfilter_model::hook::{Hook, Table};
use netfilter_model::ipvs::Ipvs;
use netfilter_model::nft;
use netfilter_model::packet::Packet;
use netfilter_model::read::{
    Read, Remark, Source, conntrack_entries, ipset, iptables_listing, iptables_rules, ipvsadm,
    nft_dump,
};
use netfilter_model::rule::{
    Backend, Chain, ChainId, Match, RejectWith, Rule, RuleRef, Rules, Ruleset, RulesetBuilder,
    SlotHit, SlotId, TableId, Target, iptables_rule,
};
use netfilter_model::set::Sets;
use netfilter_model::tuple::Family;

use super::facts::Facts;
use super::input::{Input, Kind};
use super::report::{Book, Place, Unread};

/// The rules of all files.
#[derive(Debug)]
pub(super) struct Loaded {
    /// The rules of x_tables, of one family.
    pub(super) ruleset: Ruleset,
    /// The rules of nftables.
    pub(super) nft: Option<nft::Ruleset>,
    /// Lines that were not read, or not wholly.
    pub(super) remarks: Vec<Unread>,
    /// The sets that rules name.
    pub(super) sets: Sets,
    /// Virtual servers.
    pub(super) ipvs: Ipvs,
    /// Connections that the node knows.
    pub(super) connections: Vec<Listing>,
    /// What the rules tell of their surroundings.
    pub(super) facts: Facts,
    files: Vec<File>,
}

#[derive(Debug)]
struct File {
    name: String,
    lines: Vec<String>,
}

impl Loaded {
    /// Reads texts of rules; of each table the first that has it counts.
    pub(super) fn new(inputs: Vec<(Input, Kind)>, family: Family) -> Result<Loaded, String> {
        let mut loaded = Loaded {
            ruleset: empty(),
            nft: None,
            remarks: Vec::new(),
            sets: Sets::default(),
            ipvs: Ipvs::default(),
            connections: Vec::new(),
            facts: Facts::default(),
            files: Vec::new(),
        };
        let mut nft_tables = Vec::new();
        let mut parts: Vec<(usize, Ruleset)> = Vec::new();
        for (file, (input, kind)) in inputs.into_iter().enumerate() {
            let source = Source { file: file as u32, family: Some(family), ..Source::default() };
            let remarks = match kind {
                Kind::IptablesRules | Kind::IptablesListing => {
                    let Read { value, remarks } = match kind {
                        Kind::IptablesListing => iptables_listing(&input.text, source),
                        _ => iptables_rules(&input.text, source),
                    };
                    let (ours, others): (Vec<_>, Vec<_>) =
                        value.into_iter().partition(|dump| dump.ruleset.family() == family);
                    if ours.is_empty() && !others.is_empty() {
                        loaded.remarks.push(Unread {
                            place: None,
                            text: input.name.clone(),
                            problem: "these rules are not of the packet's family".to_owned(),
                            matters: true,
                        });
                    }
                    parts.extend(ours.into_iter().map(|dump| (file, dump.ruleset)));
                    remarks
                }
                Kind::Nft => {
                    let Read { value, remarks } = nft_dump(&input.text, file as u32);
                    nft_tables.extend(value.nft.tables().iter().cloned());
                    let translated = if family == Family::V4 { value.ipv4 } else { value.ipv6 };
                    parts.extend(translated.map(|ruleset| (file, ruleset)));
                    loaded.facts.add_nft(&input.text);
                    remarks
                }
                Kind::Ipset => {
                    let Read { value, remarks } = ipset(&input.text);
                    value.iter().for_each(|set| loaded.sets.insert(set.clone()));
                    remarks
                }
                Kind::Ipvs => {
                    let Read { value, remarks } = ipvsadm(&input.text);
                    loaded.ipvs.services.extend(value.services);
                    remarks
                }
                Kind::Conntrack => {
                    let Read { value, remarks } = conntrack_entries(&input.text);
                    let known = value.into_iter().filter(|listing| {
                        listing.original.src().is_ipv4() == (family == Family::V4)
                    });
                    loaded.connections.extend(known);
                    remarks
                }
                Kind::Scenario => {
                    return Err(format!("{}: a scenario stands alone, with --node", input.name));
                }
            };
            let lines = input.text.lines().map(|line| line.trim().to_owned()).collect();
            loaded.files.push(File { name: input.name, lines });
            loaded.remark(file, remarks);
        }
        loaded.join(parts, family)?;
        loaded.facts.add(&loaded.ruleset);
        if !nft_tables.is_empty() {
            loaded.nft = Some(nft::Ruleset::repaired(nft_tables).0);
        }
        Ok(loaded)
    }

    fn remark(&mut self, file: usize, remarks: Vec<Remark>) {
        let name = &self.files[file].name;
        self.remarks.extend(remarks.into_iter().map(|remark| Unread {
            place: Some(Place { file: name.clone(), line: remark.line }),
            text: remark.text,
            problem: match remark.help {
                Some(help) => format!("{}; {help}", remark.problem),
                None => remark.problem,
            },
            // Until it is known whether the line has become a rule.
            matters: true,
        }));
    }

    /// Joins rulesets that have different tables.
    fn join(&mut self, parts: Vec<(usize, Ruleset)>, family: Family) -> Result<(), String> {
        let mut parts = parts;
        if let [(_, _)] = &parts[..] {
            let (_, only) = parts.remove(0);
            self.ruleset = only;
            return Ok(());
        }
        let mut builder = RulesetBuilder::for_backend(Backend::Legacy);
        builder.family(family);
        for table in Table::ALL {
            let mut of_table = parts.iter().filter(|(_, part)| !part.chains(table).is_empty());
            let Some((_, part)) = of_table.next() else {
                continue;
            };
            copy(&mut builder, table, part);
            for (file, _) in of_table {
                let name = self.files[*file].name.clone();
                self.remarks.push(Unread {
                    place: None,
                    text: name,
                    problem: format!("table {table} was read before: it is not read again from"),
                    matters: true,
                });
            }
        }
        self.ruleset = builder.build().map_err(|error| error.to_string())?;
        Ok(())
    }

    fn nft_tables(&self) -> &[nft::Table] {
        self.nft.as_ref().map_or(&[], nft::Ruleset::tables)
    }

    /// Returns whether several files were read.
    pub(super) fn has_many_files(&self) -> bool {
        self.files.len() > 1
    }

    /// Returns the rule that a reference names.
    fn rule(&self, at: RuleRef) -> Option<&Rule> {
        let TableId::Xt(table) = at.table else {
            return None;
        };
        let chain = self.ruleset.chains(table).get(at.chain.index as usize)?;
        chain.rules().get((at.number as usize).checked_sub(1)?)
    }

    /// Returns the places of all rules.
    pub(super) fn places(&self) -> BTreeSet<(u32, u32)> {
        let nft = self.nft_tables().iter().flat_map(|table| &table.chains);
        let nft = nft.flat_map(|chain| &chain.rules).map(|rule| rule.origin);
        let chains = Table::ALL.into_iter().flat_map(|table| self.ruleset.chains(table));
        let rules = chains.flat_map(|chain| chain.rules());
        let origins = rules.map(|rule| rule.origin).chain(nft);
        origins.map(|origin| (origin.owner, origin.item)).collect()
    }

    /// Returns the number of a file.
    pub(super) fn file(&self, name: &str) -> Option<u32> {
        self.files.iter().position(|file| file.name == name).map(|at| at as u32)
    }

    /// Returns whether some rule has a condition like this.
    pub(super) fn has_match(&self, wanted: impl Fn(&Match) -> bool) -> bool {
        let chains = Table::ALL.into_iter().flat_map(|table| self.ruleset.chains(table));
        chains.flat_map(|chain| chain.rules()).flat_map(Rule::matches).any(wanted)
    }
}

fn empty() -> Ruleset {
    RulesetBuilder::for_backend(Backend::Legacy).build().expect("no rule is refused")
}

fn copy(builder: &mut RulesetBuilder, table: Table, from: &Ruleset) {
    let mut ids: BTreeMap<ChainId, ChainId> = BTreeMap::new();
    for chain in from.chains(table) {
        let id = match (chain.hook(), chain.policy()) {
            (Some(hook), Some(policy)) => {
                builder.policy(table, hook, policy);
                builder.builtin(table, hook)
            }
            _ => builder.chain(table, chain.name().clone()),
        };
        ids.insert(chain.id(), id);
    }
    for chain in from.chains(table) {
        for rule in chain.rules() {
            let target = match rule.target() {
                Target::Jump(to) => Target::Jump(ids[to]),
                Target::Goto(to) => Target::Goto(ids[to]),
                other => other.clone(),
            };
            builder.append(table, ids[&chain.id()], rule.clone().then(target));
        }
    }
}

/// Rules of either framework beside each other.
impl Rules for Loaded {
    fn base(&self, table: Table, hook: Hook) -> Option<&Chain> {
        self.ruleset.base(table, hook)
    }

    fn chain(&self, table: Table, id: ChainId) -> &Chain {
        self.ruleset.chain(table, id)
    }

    fn slot(&self, table: Table, slot: SlotId, packet: &Packet, from: u32) -> SlotHit<'_> {
        self.ruleset.slot(table, slot, packet, from)
    }

    fn tracks(&self) -> bool {
        self.ruleset.tracks() || self.nft.as_ref().is_some_and(nft::Ruleset::tracks)
    }

    fn nft(&self) -> Option<&nft::Ruleset> {
        self.nft.as_ref()
    }
}

impl Book for Loaded {
    fn table(&self, table: TableId) -> String {
        match table {
            TableId::Xt(table) => table.name().to_owned(),
            TableId::Nft(at) => match self.nft_tables().get(usize::from(at)) {
                Some(table) => format!("{} {}", table.family.name(), table.name),
                None => format!("nft {at}"),
            },
        }
    }

    fn chain(&self, table: TableId, chain: ChainId) -> String {
        match table {
            TableId::Xt(table) => self.ruleset.chain(table, chain).name().to_string(),
            TableId::Nft(at) => {
                let found = self.nft.as_ref().and_then(|nft| nft.chain(at, chain.index));
                found.map_or_else(|| chain.index.to_string(), |chain| chain.name.to_string())
            }
        }
    }

    fn place(&self, rule: RuleRef) -> Option<Place> {
        let file = self.files.get(rule.origin.owner as usize)?;
        (rule.origin.item > 0).then(|| Place { file: file.name.clone(), line: rule.origin.item })
    }

    fn text(&self, rule: RuleRef) -> String {
        let written = self
            .files
            .get(rule.origin.owner as usize)
            .and_then(|file| file.lines.get((rule.origin.item as usize).checked_sub(1)?));
        if let Some(line) = written
            && !line.is_empty()
        {
            return line.clone();
        }
        let (TableId::Xt(table), Some(found)) = (rule.table, self.rule(rule)) else {
            return String::new();
        };
        let chain = self.ruleset.chain(table, rule.chain);
        iptables_rule(&self.ruleset, table, chain, found)
    }

    fn reject_with(&self, rule: RuleRef) -> Option<RejectWith> {
        if let (TableId::Nft(_), Some(nft)) = (rule.table, &self.nft) {
            return nft.rule(rule)?.statements.iter().find_map(|statement| match statement {
                nft::Statement::Reject(with, _) => Some(*with),
                _ => None,
            });
        }
        match self.rule(rule)?.target() {
            Target::Reject(with) => Some(*with),
            _ => None,
        }
    }
}
