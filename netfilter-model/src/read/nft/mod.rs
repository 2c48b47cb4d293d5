//! Reader of nftables: what `nft list ruleset` prints, what `nft -f` takes.

mod block;
mod expression;
mod finish;
mod lexer;
mod parser;
mod set;
mod stateful;
mod statement;
#[cfg(test)]
mod tests;
mod xtables;

use std::sync::Arc;

use crate::nft::{Family, Ruleset};
use crate::read::{Read, pasted_command};

use lexer::Kind;
use parser::{Draft, Fail, Parsed, Parser, fail};

/// What nft lists.
#[derive(Clone, Debug)]
pub struct NftDump {
    /// Tables of nftables.
    pub nft: Ruleset,
    /// The tables that iptables-nft keeps there, for IPv4.
    pub ipv4: Option<crate::rule::Ruleset>,
    /// The tables that ip6tables-nft keeps there.
    pub ipv6: Option<crate::rule::Ruleset>,
}

/// Reads a ruleset of nftables, the tables of iptables-nft as what they are.
///
/// Rules get the number of the file as the owner of their origin, and their line as the item.
/// What is not modelled of a rule becomes [`crate::nft::Statement::Unsupported`] or
/// [`crate::rule::Match::Unsupported`], with a remark.
pub fn nft_dump(text: &str, file: u32) -> Read<NftDump> {
    parser(text, file).finish(true)
}

/// Reads a ruleset of nftables, the tables of iptables-nft as any other.
pub fn nft_ruleset(text: &str, file: u32) -> Read<Ruleset> {
    let Read { value, remarks } = parser(text, file).finish(false);
    Read { value: value.nft, remarks }
}

fn parser(text: &str, file: u32) -> Parser<'_> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut parser = Parser::new(text, file);
    parser.file();
    parser
}

impl Parser<'_> {
    fn file(&mut self) {
        loop {
            self.skip_ends();
            let Some(kind) = self.kind() else {
                return;
            };
            let (start, line) = (self.at, self.line());
            if self.is_prompt(line) {
                self.skip_line(line);
                continue;
            }
            if kind == Kind::Sign("}") {
                self.at += 1;
                self.remark(line, "a brace that closes nothing");
                continue;
            }
            self.current = None;
            if let Err(Fail(problem)) = self.command() {
                self.remark(line, format!("not read: {problem}"));
                // On behind the line, or behind what is in its braces if nothing of it was read.
                self.at = self.end_of_statement(start).max(start + 1);
            }
        }
    }

    fn is_prompt(&self, line: u32) -> bool {
        self.source_line(line).is_some_and(|text| {
            pasted_command(text).is_some()
                || text.starts_with("nft ") && !text.contains('{')
                || text.starts_with("sudo nft ")
        })
    }

    fn skip_line(&mut self, line: u32) {
        while self.at < self.tokens.len() && self.tokens[self.at].line == line {
            self.at += 1;
        }
    }

    /// Reads one thing at the top: a table in braces, or a command.
    fn command(&mut self) -> Parsed<()> {
        let verb = match self.kind() {
            Some(Kind::Word(verb)) => verb,
            _ => return fail("a command was expected"),
        };
        match verb {
            "table" | "chain" | "rule" | "set" | "map" | "element" | "counter" | "quota"
            | "limit" => self.add("add"),
            "add" | "create" | "insert" => {
                self.at += 1;
                self.add(verb)
            }
            "delete" | "destroy" | "flush" => {
                self.at += 1;
                self.remove(verb)
            }
            "define" | "redefine" | "undefine" | "include" | "replace" | "rename" | "reset" => {
                fail(format!("{verb} is not modelled"))
            }
            _ => fail(format!("{verb:?} is no command of nft that changes or lists rules")),
        }
    }

    fn add(&mut self, verb: &str) -> Parsed<()> {
        let what = self.word()?;
        match what {
            "table" => {
                self.table_name(true)?;
                self.table_block()
            }
            "chain" => {
                self.table_name(false)?;
                let name = self.word_or_text()?;
                self.chain(name)
            }
            "rule" => {
                self.table_name(false)?;
                let chain = self.word_or_text()?;
                for place in ["position", "handle", "index"] {
                    if self.eat_word(place) {
                        self.number_64()?;
                    }
                }
                let rule = self.rule();
                let draft = self.draft()?;
                let at = draft.declare_chain(chain) as usize;
                let rules = &mut draft.table.chains[at].rules;
                if verb == "insert" {
                    rules.insert(0, rule)
                } else {
                    rules.push(rule)
                }
                Ok(())
            }
            "set" | "map" => {
                self.table_name(false)?;
                let name = self.word_or_text()?;
                self.set(name, what == "map")
            }
            "element" => {
                self.table_name(false)?;
                let name = self.word_or_text()?;
                self.add_elements(name)
            }
            "counter" | "quota" | "limit" | "ct" | "flowtable" | "synproxy" | "secmark" => {
                let kind = if what == "ct" { format!("ct {}", self.word()?) } else { what.into() };
                self.table_name(false)?;
                let name = self.word_or_text()?;
                self.object(&kind, name)
            }
            _ => fail(format!("\"add {what}\" is not known")),
        }
    }

    /// Reads `[FAMILY] NAME` and goes to that table, which is made if it is not there.
    fn table_name(&mut self, may_be_new: bool) -> Parsed<()> {
        let at = match self.find_table()? {
            (_, _, Some(at)) => at,
            (family, name, None) => {
                if !may_be_new {
                    let line = self.line();
                    self.remark(line, format!("table {family} {name} is not declared before"));
                }
                if matches!(family, Family::Arp | Family::Bridge | Family::Netdev) {
                    let line = self.line();
                    self.remark(
                        line,
                        format!(
                            "table {family} {name} is kept but not run: its family is not modelled"
                        ),
                    );
                }
                self.drafts.push(Draft::new(family, &name));
                self.drafts.len() - 1
            }
        };
        self.current = Some(at);
        self.family = self.drafts[at].table.family;
        Ok(())
    }

    fn find_table(&mut self) -> Parsed<(Family, Arc<str>, Option<usize>)> {
        let mut family = Family::Ip;
        if let Some(Kind::Word(word)) = self.kind()
            && let Some(named) = Family::ALL.into_iter().find(|family| family.name() == word)
        {
            family = named;
            self.at += 1;
        }
        let Some(Kind::Word(name) | Kind::Text(name)) = self.kind() else {
            return fail("the name of a table was expected");
        };
        self.at += 1;
        let at = self
            .drafts
            .iter()
            .position(|draft| draft.table.family == family && &*draft.table.name == name);
        Ok((family, name.into(), at))
    }

    fn remove(&mut self, verb: &str) -> Parsed<()> {
        let what = self.word()?;
        if what == "ruleset" {
            while !self.is_end() {
                self.at += 1;
            }
            self.drafts.clear();
            return Ok(());
        }
        // What is not there is destroyed without complaint, and a listing has no such commands.
        let at = self.find_table()?.2;
        let Some(at) = at else {
            while !self.is_end() {
                self.at += 1;
            }
            return if verb == "destroy" || what == "table" {
                Ok(())
            } else {
                fail("there is no such table")
            };
        };
        self.current = Some(at);
        match (verb, what) {
            ("flush", "table") => {
                for chain in &mut self.drafts[at].table.chains {
                    chain.rules.clear();
                }
            }
            (_, "table") => {
                self.drafts.remove(at);
                self.current = None;
            }
            ("flush", "chain") => {
                let name = self.word_or_text()?;
                let draft = self.draft()?;
                if let Some(at) = draft.chains.get(name) {
                    draft.table.chains[*at as usize].rules.clear();
                }
            }
            (_, "chain") => {
                let name = self.word_or_text()?;
                let draft = self.draft()?;
                if let Some(at) = draft.chains.get(name) {
                    let chain = &mut draft.table.chains[*at as usize];
                    chain.rules.clear();
                    chain.base = None;
                    draft.chain_order[*at as usize] = None;
                }
            }
            ("flush", "set" | "map") => {
                let name = self.word_or_text()?;
                let draft = self.draft()?;
                if let Some(at) = draft.sets.get(name) {
                    draft.table.sets[*at as usize].clear();
                }
            }
            (_, "set" | "map") => {
                let name = self.word_or_text()?;
                let draft = self.draft()?;
                if let Some(at) = draft.sets.get(name) {
                    draft.table.sets[*at as usize].clear();
                    draft.set_declared[*at as usize] = false;
                }
            }
            (_, "element") => self.delete_elements()?,
            (_, "rule") => {
                let chain = self.word_or_text()?;
                if !self.eat_word("handle") {
                    return fail("a rule is deleted by its handle");
                }
                let handle = self.number_64()?;
                let draft = self.draft()?;
                if let Some(at) = draft.chains.get(chain) {
                    let rules = &mut draft.table.chains[*at as usize].rules;
                    rules.retain(|rule| rule.handle != Some(handle));
                }
            }
            _ => return fail(format!("\"{verb} {what}\" is not known")),
        }
        Ok(())
    }
}
