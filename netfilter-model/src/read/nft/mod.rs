//! Reader of nftables: what `nft list ruleset` prints, what `nft -f` takes.

mod expression;
mod finish;
mod lexer;
mod parser;
mod statement;
#[cfg(test)]
mod tests;
mod xtables;

use std::sync::Arc;

use crate::hook::Hook;
use crate::nft::{
    Base, Element, Expr, Family, Kind as ChainKind, Limit, Object, ObjectKind, Ruleset, SetData,
    StateId, Type,
};
use crate::read::{Read, pasted_command};
use crate::rule::Policy;

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

    fn delete_elements(&mut self) -> Parsed<()> {
        let name = self.word_or_text()?;
        let draft = self.draft()?;
        let at = draft.set(name) as usize;
        let mut set = draft.table.sets[at].clone();
        set.clear();
        set.data = SetData::None;
        // The data may be left out here.
        let keys = self.elements(&mut set)?.into_iter().map(|element| element.key);
        let keys: Vec<_> = keys.collect();
        self.draft()?.table.sets[at].remove(&keys);
        Ok(())
    }

    fn table_block(&mut self) -> Parsed<()> {
        if matches!(self.kind(), Some(Kind::Handle(_))) {
            self.at += 1;
        }
        if !self.eat_sign("{") {
            return Ok(());
        }
        loop {
            self.skip_ends();
            let (start, line) = (self.at, self.line());
            if self.eat_sign("}") {
                return Ok(());
            }
            if self.kind().is_none() {
                self.remark(line, "the text ends inside a table: it was cut off");
                return Ok(());
            }
            // A table that begins inside another: the end of that was lost.
            if self.kind() == Some(Kind::Word("table"))
                && self
                    .kind_after(2)
                    .is_some_and(|kind| matches!(kind, Kind::Word(_) | Kind::Sign("{")))
            {
                self.remark(line, "a table begins inside another: its end is missing");
                return Ok(());
            }
            if let Err(Fail(problem)) = self.table_item() {
                self.remark(line, format!("not read: {problem}"));
                self.at = self.end_of_statement(start).max(start + 1);
            }
        }
    }

    fn table_item(&mut self) -> Parsed<()> {
        let line = self.line();
        let item = self.word()?;
        match item {
            "comment" => {
                let comment = self.word_or_text()?.into();
                self.draft()?.table.comment = Some(comment);
                Ok(())
            }
            "flags" => {
                let flags = self.word()?;
                let dormant = flags == "dormant";
                self.draft()?.table.dormant |= dormant;
                while self.eat_sign(",") {
                    self.word()?;
                }
                Ok(())
            }
            "chain" => {
                let name = self.word_or_text()?;
                self.chain(name)
            }
            "set" | "map" | "meter" => {
                let name = self.word_or_text()?;
                self.set(name, item == "map")
            }
            "counter" | "quota" | "limit" | "flowtable" | "synproxy" | "secmark" => {
                let name = self.word_or_text()?;
                self.object(item, name)
            }
            "ct" => {
                let kind = format!("ct {}", self.word()?);
                let name = self.word_or_text()?;
                self.object(&kind, name)
            }
            _ if item.bytes().all(|byte| byte == b'.') || item.starts_with('…') => {
                self.remark(line, "something was left out here");
                Ok(())
            }
            _ => fail(format!("{item:?} is not known in a table")),
        }
    }

    /// Reads a chain behind its name.
    fn chain(&mut self, name: &str) -> Parsed<()> {
        let draft = self.draft()?;
        let at = draft.declare_chain(name) as usize;
        if matches!(self.kind(), Some(Kind::Handle(_))) {
            self.at += 1;
        }
        if !self.eat_sign("{") {
            return Ok(());
        }
        loop {
            self.skip_ends();
            let (start, line) = (self.at, self.line());
            if self.eat_sign("}") {
                return Ok(());
            }
            match self.kind() {
                None => {
                    self.remark(line, "the text ends inside a chain: it was cut off");
                    return Ok(());
                }
                Some(Kind::Word("type")) => {
                    self.at += 1;
                    let base = self.base()?;
                    self.draft()?.table.chains[at].base = Some(base);
                }
                Some(Kind::Word("policy")) => {
                    self.at += 1;
                    let policy = self.policy()?;
                    if let Some(base) = &mut self.draft()?.table.chains[at].base {
                        base.policy = policy;
                    }
                }
                Some(Kind::Word("comment")) => {
                    self.at += 1;
                    let comment = self.word_or_text()?.into();
                    self.draft()?.table.chains[at].comment = Some(comment);
                }
                Some(Kind::Word("flags")) => self.at = self.end_of_statement(start),
                Some(Kind::Word("chain" | "set" | "map" | "table"))
                    if matches!(self.kind_after(1), Some(Kind::Word(_)))
                        && matches!(
                            (self.kind_after(2), self.kind_after(3)),
                            (Some(Kind::Sign("{")), _) | (_, Some(Kind::Sign("{")))
                        ) =>
                {
                    self.remark(line, "a chain or set begins inside a chain: its end is missing");
                    return Ok(());
                }
                Some(Kind::Word(word)) if word.len() > 1 && word.bytes().all(|b| b == b'.') => {
                    self.at += 1;
                    self.remark(line, "something was left out here");
                }
                Some(_) => {
                    let rule = self.rule();
                    if self.at == start {
                        self.at += 1;
                    }
                    self.draft()?.table.chains[at].rules.push(rule);
                }
            }
        }
    }

    /// Reads what stands behind `type` in a chain.
    fn base(&mut self) -> Parsed<Base> {
        let kind = match self.word()? {
            "filter" => ChainKind::Filter,
            "nat" => ChainKind::Nat,
            "route" => ChainKind::Route,
            word => return fail(format!("a chain of type {word:?}")),
        };
        if !self.eat_word("hook") {
            return fail("\"hook\" was expected");
        }
        let hook_name = self.word()?;
        let hook = match hook_name {
            "prerouting" => Some(Hook::Prerouting),
            "input" => Some(Hook::Input),
            "forward" => Some(Hook::Forward),
            "output" => Some(Hook::Output),
            "postrouting" => Some(Hook::Postrouting),
            "ingress" | "egress" => None,
            word => return fail(format!("a hook {word:?}")),
        };
        let mut devices: Vec<Arc<str>> = Vec::new();
        if self.eat_word("device") {
            devices.push(self.word_or_text()?.into());
        } else if self.eat_word("devices") {
            self.eat_sign("=");
            self.expect_sign("{")?;
            while !self.eat_sign("}") {
                devices.push(self.word_or_text()?.into());
                self.eat_sign(",");
            }
        }
        if !self.eat_word("priority") {
            return fail("\"priority\" was expected");
        }
        let priority = self.priority()?;
        self.skip_semicolon();
        let mut policy = Policy::Accept;
        if self.eat_word("policy") {
            policy = self.policy()?;
        }
        let hook = hook.filter(|_| matches!(self.family, Family::Ip | Family::Ip6 | Family::Inet));
        Ok(Base { kind, hook, hook_name: hook_name.into(), devices, priority, policy })
    }

    fn skip_semicolon(&mut self) {
        self.eat_sign(";");
    }

    fn policy(&mut self) -> Parsed<Policy> {
        match self.word()? {
            "accept" => Ok(Policy::Accept),
            "drop" => Ok(Policy::Drop),
            word => fail(format!("a policy {word:?}")),
        }
    }

    /// Reads a priority: a number, a name, a name and a number.
    fn priority(&mut self) -> Parsed<i32> {
        let word = self.word()?;
        if let Ok(number) = word.parse() {
            return Ok(number);
        }
        let mut places = word.char_indices().skip(1);
        let end = places.find(|(_, c)| matches!(c, '+' | '-')).map_or(word.len(), |(at, _)| at);
        let (name, offset) = word.split_at(end);
        let bridge = self.family == Family::Bridge;
        let base: i32 = match name {
            "raw" => -300,
            "mangle" => -150,
            "dstnat" if bridge => -300,
            "dstnat" => -100,
            "filter" if bridge => -200,
            "filter" => 0,
            "security" => 50,
            "out" if bridge => 100,
            "srcnat" if bridge => 300,
            "srcnat" => 100,
            _ => return fail(format!("a priority {word:?}")),
        };
        let offset: i32 = match offset {
            "" => match self.kind() {
                Some(Kind::Sign(sign @ ("+" | "-"))) => {
                    self.at += 1;
                    let number = self.number()?;
                    let number = i32::try_from(number).unwrap_or(i32::MAX);
                    if sign == "-" { -number } else { number }
                }
                Some(Kind::Word(word)) if word.starts_with(['-', '+']) => {
                    self.at += 1;
                    word.parse().map_err(|_| Fail(format!("a priority {word:?}")))?
                }
                _ => 0,
            },
            offset => offset.parse().map_err(|_| Fail(format!("a priority {word:?}")))?,
        };
        Ok(base.saturating_add(offset))
    }

    /// Reads a set or map behind its name.
    fn set(&mut self, name: &str, is_map: bool) -> Parsed<()> {
        let line = self.line();
        let draft = self.draft()?;
        let at = draft.set(name) as usize;
        draft.set_declared[at] = true;
        draft.set_lines[at] = line;
        if matches!(self.kind(), Some(Kind::Handle(_))) {
            self.at += 1;
        }
        self.expect_sign("{")?;
        loop {
            self.skip_ends();
            let (start, line) = (self.at, self.line());
            if self.eat_sign("}") {
                return Ok(());
            }
            if self.kind().is_none() {
                self.remark(line, "the text ends inside a set: it was cut off");
                return Ok(());
            }
            if let Err(Fail(problem)) = self.set_item(at, is_map) {
                self.remark(line, format!("not read of set {name}: {problem}"));
                self.at = self.end_of_statement(start).max(start + 1);
            }
        }
    }

    fn set_item(&mut self, at: usize, is_map: bool) -> Parsed<()> {
        let item = self.word()?;
        match item {
            "type" | "typeof" => {
                let (key, typeof_key) = self.types(item)?;
                let data = if is_map && self.eat_sign(":") {
                    if self.eat_word("verdict") {
                        SetData::Verdict
                    } else {
                        let interval = self.eat_word("interval");
                        let (types, typeof_data) = self.types(item)?;
                        SetData::Values { types: types.into(), typeof_data, interval }
                    }
                } else {
                    SetData::None
                };
                let set = &mut self.draft()?.table.sets[at];
                (set.key, set.data, set.typeof_key) = (key.into(), data, typeof_key);
            }
            "flags" => loop {
                let flag = self.word()?;
                let set = &mut self.draft()?.table.sets[at];
                match flag {
                    "interval" => set.interval = true,
                    "timeout" => set.timeouts = true,
                    "dynamic" => set.dynamic = true,
                    "constant" => set.constant = true,
                    _ => return fail(format!("a flag {flag:?}")),
                }
                if !self.eat_sign(",") {
                    break;
                }
            },
            "timeout" => {
                let timeout = self.time()?;
                let set = &mut self.draft()?.table.sets[at];
                (set.timeout, set.timeouts) = (Some(timeout), true);
            }
            "gc-interval" => {
                let interval = self.time()?;
                self.draft()?.table.sets[at].gc_interval = Some(interval);
            }
            "size" => {
                let size = self.number()?;
                self.draft()?.table.sets[at].size = Some(size);
            }
            "policy" => {
                self.word()?;
            }
            "auto-merge" => self.draft()?.table.sets[at].auto_merge = true,
            "comment" => {
                let comment = self.word_or_text()?.into();
                self.draft()?.table.sets[at].comment = Some(comment);
            }
            "counter" => self.draft()?.table.sets[at].counter = true,
            "elements" => {
                self.expect_sign("=")?;
                self.read_elements(at)?;
            }
            _ => return fail(format!("{item:?} is not known in a set")),
        }
        Ok(())
    }

    /// Reads types by name, or by expressions.
    fn types(&mut self, how: &str) -> Parsed<(Vec<Type>, Option<Arc<str>>)> {
        let start = self.at;
        if how == "typeof" {
            let exprs = self.concatenation()?;
            let types: Vec<Type> = exprs.iter().flat_map(Expr::types).collect();
            return Ok((types, Some(self.text_between(start, self.at))));
        }
        let mut types = Vec::new();
        loop {
            let word = self.word()?;
            types.push(Type::named(word).ok_or_else(|| Fail(format!("a type {word:?}")))?);
            if types.len() > 16 || !self.eat_sign(".") {
                return Ok((types, None));
            }
        }
    }

    /// Reads elements into a set, as many as can be read.
    fn read_elements(&mut self, at: usize) -> Parsed<()> {
        self.expect_sign("{")?;
        // The set is taken out of its table while verdicts go into the same.
        let draft = self.draft()?;
        let empty = crate::nft::Set::new("", [], SetData::None);
        let mut set = std::mem::replace(&mut draft.table.sets[at], empty);
        let mut elements: Vec<Element> = Vec::new();
        let known = !set.key.is_empty();
        let ended = loop {
            self.skip_newlines();
            if self.eat_sign("}") {
                break true;
            }
            let (start, line) = (self.at, self.line());
            if self.kind().is_none() {
                break false;
            }
            let read = if known { self.element(&mut set) } else { fail("the set has no type") };
            match read {
                Ok(element) => elements.push(element),
                Err(Fail(problem)) => {
                    self.at = start;
                    self.skip_element();
                    let text = self.text_between(start, self.at);
                    self.remark(line, format!("element {text:?} is left out: {problem}"));
                }
            }
            self.skip_newlines();
            if !self.eat_sign(",") && !matches!(self.kind(), Some(Kind::Sign("}"))) {
                let (start, line) = (self.at, self.line());
                if self.kind().is_none() {
                    break false;
                }
                self.skip_element();
                let text = self.text_between(start, self.at);
                self.remark(line, format!("{text:?} behind an element is not known"));
                if self.at == start {
                    break false;
                }
                self.eat_sign(",");
            }
        };
        set.extend(elements);
        self.draft()?.table.sets[at] = set;
        if ended { Ok(()) } else { fail("the elements end without a brace") }
    }

    /// Passes over an element that cannot be read.
    fn skip_element(&mut self) {
        let mut depth = 0;
        while let Some(kind) = self.kind() {
            match kind {
                Kind::Sign("{") => depth += 1,
                Kind::Sign("}") if depth > 0 => depth -= 1,
                Kind::Sign("," | "}") if depth == 0 => return,
                _ => {}
            }
            self.at += 1;
        }
    }

    fn add_elements(&mut self, name: &str) -> Parsed<()> {
        let draft = self.draft()?;
        let at = draft.set(name) as usize;
        self.read_elements(at)
    }

    /// Reads an object behind its name.
    fn object(&mut self, kind: &str, name: &str) -> Parsed<()> {
        if matches!(self.kind(), Some(Kind::Handle(_))) {
            self.at += 1;
        }
        let start = self.at;
        let end = {
            self.expect_sign("{")?;
            self.end_of_block()
        };
        let body = self.text_between(start + 1, end);
        self.skip_ends();
        let object = match kind {
            "counter" => {
                let mut counts = (0, 0);
                if self.eat_word("packets") {
                    counts.0 = self.number_64()?;
                    self.eat_word("bytes");
                    counts.1 = self.number_64()?;
                }
                ObjectKind::Counter(counts.0, counts.1)
            }
            "quota" => ObjectKind::Quota(self.quota()?),
            "limit" => {
                let (name, state) = (None, StateId::default());
                let (rate, seconds, burst) = (1, 1, 5);
                let (bytes, over) = (false, false);
                let mut limit = Limit { rate, seconds, burst, bytes, over, name, state };
                self.rate(&mut limit)?;
                ObjectKind::Limit(limit)
            }
            _ => ObjectKind::Other { kind: kind.into(), body },
        };
        self.at = end;
        self.eat_sign("}");
        let object = Object { name: name.into(), kind: object };
        self.draft()?.table.objects.push(object);
        Ok(())
    }

    /// Returns where the braces end in which the present token stands.
    fn end_of_block(&self) -> usize {
        let mut depth = 0u32;
        for (at, token) in self.tokens.iter().enumerate().skip(self.at) {
            match token.kind {
                Kind::Sign("{") => depth += 1,
                Kind::Sign("}") if depth == 0 => return at,
                Kind::Sign("}") => depth -= 1,
                _ => {}
            }
        }
        self.tokens.len()
    }
}
