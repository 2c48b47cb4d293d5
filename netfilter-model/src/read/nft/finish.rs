//! From what was read to a ruleset: what was only mentioned goes, and what is said twice.

use std::sync::Arc;

use super::NftDump;
use super::parser::{Draft, Parser};
use crate::nft::{Chain, Data, Ruleset, Set, SetUse, Statement, Table, Verdict, each_set_use};
use crate::read::{Read, in_order};
use crate::tuple::Family as Ip;

impl Parser<'_> {
    pub(super) fn finish(mut self, xtables: bool) -> Read<NftDump> {
        let drafts = std::mem::take(&mut self.drafts);
        let mut tables: Vec<Table> = drafts.into_iter().map(|draft| self.table(draft)).collect();
        let (mut ipv4, mut ipv6) = (None, None);
        if xtables {
            ipv4 = self.take_xtables(&mut tables, Ip::V4);
            ipv6 = self.take_xtables(&mut tables, Ip::V6);
        }
        let (nft, problems) = Ruleset::repaired(tables);
        for problem in problems {
            self.remark(problem.origin.item.max(1), problem.to_string());
        }
        in_order(&mut self.remarks);
        Read { value: NftDump { nft, ipv4, ipv6 }, remarks: self.remarks }
    }

    fn table(&mut self, draft: Draft) -> Table {
        let Draft { mut table, chain_order, set_declared, set_lines, .. } = draft;
        let names: Vec<Arc<str>> = table.chains.iter().map(|chain| chain.name.clone()).collect();
        // In the order of declaration: of two base chains of one priority the last runs first.
        let mut order: Vec<(u32, usize)> = chain_order
            .iter()
            .enumerate()
            .filter_map(|(at, order)| Some(((*order)?, at)))
            .collect();
        order.sort_unstable();
        let mut places = vec![None; names.len()];
        for (place, (_, at)) in order.iter().enumerate() {
            places[*at] = Some(place as u32);
        }
        let mut old: Vec<Option<Chain>> =
            std::mem::take(&mut table.chains).into_iter().map(Some).collect();
        table.chains = order.iter().filter_map(|(_, at)| old[*at].take()).collect();
        let mut missing = Vec::new();
        for (chain_line, verdict) in verdicts(&mut table, &set_lines) {
            let (Verdict::Jump(to) | Verdict::Goto(to)) = verdict else { continue };
            let name = &names[*to as usize];
            match places[*to as usize] {
                Some(place) => *to = place,
                None => {
                    let how = if matches!(verdict, Verdict::Jump(_)) { "jump" } else { "goto" };
                    missing.push((chain_line, name.clone()));
                    *verdict = Verdict::Unknown(format!("{how} {name}").into());
                }
            }
        }
        missing.dedup();
        for (line, name) in missing {
            let problem = format!("chain {name} is not in this text: the verdict is not followed");
            self.remark(line, problem);
        }
        self.finish_sets(&mut table, &set_declared, &set_lines);
        table
    }

    fn finish_sets(&mut self, table: &mut Table, declared: &[bool], lines: &[u32]) {
        for (set, line) in table.sets.iter_mut().zip(lines) {
            let overlaps = set.finish();
            if !overlaps.is_empty() && !set.auto_merge {
                let (name, count) = (&set.name, overlaps.len());
                let problem = format!("{count} elements of {name} lie in others: the first counts");
                self.remark(*line, problem);
            }
        }
        let mut places = Vec::new();
        let mut kept = Vec::new();
        for (set, declared) in std::mem::take(&mut table.sets).into_iter().zip(declared) {
            // The place of what is not there is beyond all others.
            places.push(if *declared { kept.len() as u32 } else { u32::MAX });
            if *declared {
                kept.push(set);
            }
        }
        table.sets = kept;
        let sets: &[Set] = &table.sets;
        let mut missing = Vec::new();
        for chain in &mut table.chains {
            for rule in &mut chain.rules {
                for statement in &mut rule.statements {
                    if let Statement::Dynset(dynset) = statement {
                        dynset.set = places[dynset.set as usize];
                    }
                    each_set_use(statement, &mut |used| {
                        if let SetUse::Named { index, data } = used {
                            *index = places[*index as usize];
                            if let Some(set) = sets.get(*index as usize) {
                                *data = set.data_types().into();
                            }
                        }
                    });
                    if let Statement::Dynset(dynset) = statement
                        && dynset.set == u32::MAX
                    {
                        let text = format!("{} @…", dynset.op.name());
                        missing.push(rule.origin.item);
                        *statement = Statement::Unsupported(text.into());
                    }
                }
            }
        }
        for line in missing {
            self.remark(line, "the set that packets would change is not in this text");
        }
    }
}

/// Returns every verdict of a table, with its line.
fn verdicts<'t>(table: &'t mut Table, lines: &[u32]) -> Vec<(u32, &'t mut Verdict)> {
    let mut found = Vec::new();
    for (set, line) in table.sets.iter_mut().zip(lines) {
        for element in set.elements_mut() {
            if let Data::Verdict(verdict) = &mut element.data {
                found.push((*line, verdict));
            }
        }
    }
    for rule in table.chains.iter_mut().flat_map(|chain| &mut chain.rules) {
        let line = rule.origin.item;
        for statement in &mut rule.statements {
            match statement {
                Statement::Verdict(verdict) => found.push((line, verdict)),
                Statement::Vmap { map: SetUse::Anonymous(set), .. } => {
                    for element in Arc::make_mut(set).elements_mut() {
                        if let Data::Verdict(verdict) = &mut element.data {
                            found.push((line, verdict));
                        }
                    }
                }
                _ => {}
            }
        }
    }
    found
}
