//! What stands in braces: tables, chains, objects.

use std::sync::Arc;

use super::lexer::Kind;
use super::parser::{Fail, Parsed, Parser, fail};
use crate::hook::Hook;
use crate::nft::{Base, Family, Kind as ChainKind, Limit, Object, ObjectKind, StateId};
use crate::rule::Policy;

impl Parser<'_> {
    /// Passes the opening brace of a block behind its name, if there is one.
    pub(super) fn opens(&mut self) -> bool {
        if matches!(self.kind(), Some(Kind::Handle(_))) {
            self.at += 1;
        }
        self.eat_sign("{")
    }

    /// Returns whether a block ends here: with its brace, or with the text.
    pub(super) fn closes(&mut self, what: &str) -> bool {
        self.skip_ends();
        if self.eat_sign("}") {
            return true;
        }
        let ended = self.kind().is_none();
        if ended {
            let line = self.line();
            self.remark(line, format!("the text ends inside a {what}: it was cut off"));
        }
        ended
    }

    pub(super) fn table_block(&mut self) -> Parsed<()> {
        if !self.opens() {
            return Ok(());
        }
        while !self.closes("table") {
            let (start, line) = (self.at, self.line());
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
        Ok(())
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
    pub(super) fn chain(&mut self, name: &str) -> Parsed<()> {
        let draft = self.draft()?;
        let at = draft.declare_chain(name) as usize;
        if !self.opens() {
            return Ok(());
        }
        while !self.closes("chain") {
            let (start, line) = (self.at, self.line());
            match self.kind() {
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
                _ => {
                    let rule = self.rule();
                    if self.at == start {
                        self.at += 1;
                    }
                    self.draft()?.table.chains[at].rules.push(rule);
                }
            }
        }
        Ok(())
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

    /// Reads an object behind its name.
    pub(super) fn object(&mut self, kind: &str, name: &str) -> Parsed<()> {
        if !self.opens() {
            return fail("\"{\" was expected");
        }
        let (start, end) = (self.at, self.end_of_block());
        let body = self.text_between(start, end);
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
