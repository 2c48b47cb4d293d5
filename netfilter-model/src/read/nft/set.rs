//! Sets, maps and their elements.

use std::sync::Arc;

use super::lexer::Kind;
use super::parser::{Fail, Parsed, Parser, fail};
use crate::nft::{Element, Expr, SetData, Type};

impl Parser<'_> {
    /// Reads a set or map behind its name.
    pub(super) fn set(&mut self, name: &str, is_map: bool) -> Parsed<()> {
        let line = self.line();
        let draft = self.draft()?;
        let at = draft.set(name) as usize;
        draft.set_declared[at] = true;
        draft.set_lines[at] = line;
        if !self.opens() {
            return fail("\"{\" was expected");
        }
        while !self.closes("set") {
            let (start, line) = (self.at, self.line());
            if let Err(Fail(problem)) = self.set_item(at, is_map) {
                self.remark(line, format!("not read of set {name}: {problem}"));
                self.at = self.end_of_statement(start).max(start + 1);
            }
        }
        Ok(())
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

    pub(super) fn add_elements(&mut self, name: &str) -> Parsed<()> {
        let draft = self.draft()?;
        let at = draft.set(name) as usize;
        self.read_elements(at)
    }

    pub(super) fn delete_elements(&mut self) -> Parsed<()> {
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
}
