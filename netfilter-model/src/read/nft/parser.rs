//! The state of a reader: tokens, remarks, and the tables as far as they are read.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::lexer::{Kind, Token};
use crate::nft::{Chain, Family, Set, SetData, Table, Type};
use crate::read::Remark;
use crate::rule::Origin;

/// Why something could not be read.
#[derive(Debug)]
pub(super) struct Fail(pub(super) String);

pub(super) type Parsed<T> = Result<T, Fail>;

pub(super) fn fail<T>(problem: impl Into<String>) -> Parsed<T> {
    Err(Fail(problem.into()))
}

/// A table as far as it is read.
#[derive(Debug)]
pub(super) struct Draft {
    pub(super) table: Table,
    /// Where chains stand, by name; those that are only mentioned too.
    pub(super) chains: BTreeMap<Arc<str>, u32>,
    /// Where chains were declared, in turn; `None` for one that is only mentioned.
    pub(super) chain_order: Vec<Option<u32>>,
    pub(super) sets: BTreeMap<Arc<str>, u32>,
    pub(super) set_declared: Vec<bool>,
    /// The line of each set's elements.
    pub(super) set_lines: Vec<u32>,
    next: u32,
}

impl Draft {
    pub(super) fn new(family: Family, name: &str) -> Draft {
        Draft {
            table: Table::new(family, name),
            chains: BTreeMap::new(),
            chain_order: Vec::new(),
            sets: BTreeMap::new(),
            set_declared: Vec::new(),
            set_lines: Vec::new(),
            next: 0,
        }
    }

    /// Returns the place of a chain that is mentioned.
    pub(super) fn chain(&mut self, name: &str) -> u32 {
        if let Some(at) = self.chains.get(name) {
            return *at;
        }
        let name: Arc<str> = name.into();
        let at = self.table.chains.len() as u32;
        let (comment, base, rules) = (None, None, Vec::new());
        self.table.chains.push(Chain { name: name.clone(), comment, base, rules });
        self.chain_order.push(None);
        self.chains.insert(name, at);
        at
    }

    /// Returns the place of a chain that is declared.
    pub(super) fn declare_chain(&mut self, name: &str) -> u32 {
        let at = self.chain(name);
        let order = &mut self.chain_order[at as usize];
        if order.is_none() {
            *order = Some(self.next);
            self.next += 1;
        }
        at
    }

    /// Returns the place of a set that is mentioned.
    pub(super) fn set(&mut self, name: &str) -> u32 {
        if let Some(at) = self.sets.get(name) {
            return *at;
        }
        let name: Arc<str> = name.into();
        let at = self.table.sets.len() as u32;
        self.table.sets.push(Set::new(name.clone(), [], SetData::None));
        self.set_declared.push(false);
        self.set_lines.push(0);
        self.sets.insert(name, at);
        at
    }
}

/// A reader of one text.
pub(super) struct Parser<'t> {
    pub(super) text: &'t str,
    lines: Vec<&'t str>,
    pub(super) tokens: Vec<Token<'t>>,
    pub(super) at: usize,
    pub(super) remarks: Vec<Remark>,
    pub(super) file: u32,
    pub(super) drafts: Vec<Draft>,
    /// The table that is being read, among them.
    pub(super) current: Option<usize>,
    /// How deep expressions and sets are nested.
    pub(super) depth: u32,
    /// Verdicts and addresses are of this family.
    pub(super) family: Family,
}

impl<'t> Parser<'t> {
    pub(super) fn new(text: &'t str, file: u32) -> Parser<'t> {
        Parser {
            text,
            lines: text.lines().collect(),
            tokens: super::lexer::tokens(text),
            at: 0,
            remarks: Vec::new(),
            file,
            drafts: Vec::new(),
            current: None,
            depth: 0,
            family: Family::Ip,
        }
    }

    /// Goes one level deeper into expressions; there is an end to it.
    pub(super) fn deeper(&mut self) -> Parsed<()> {
        const DEPTH_MAX: u32 = 24;
        if self.depth >= DEPTH_MAX {
            return fail("nested too deeply");
        }
        self.depth += 1;
        Ok(())
    }

    /// Returns the table that is being read.
    pub(super) fn draft(&mut self) -> Parsed<&mut Draft> {
        let draft = self.current.and_then(|at| self.drafts.get_mut(at));
        draft.ok_or_else(|| Fail("there is no table here".to_owned()))
    }

    pub(super) fn kind(&self) -> Option<Kind<'t>> {
        self.tokens.get(self.at).map(|token| token.kind)
    }

    pub(super) fn kind_after(&self, count: usize) -> Option<Kind<'t>> {
        self.tokens.get(self.at + count).map(|token| token.kind)
    }

    pub(super) fn line(&self) -> u32 {
        let token = self.tokens.get(self.at).or(self.tokens.last());
        token.map_or(1, |token| token.line)
    }

    /// Returns a line of the text.
    pub(super) fn source_line(&self, line: u32) -> Option<&'t str> {
        self.lines.get(line.saturating_sub(1) as usize).copied()
    }

    pub(super) fn origin(&self, line: u32) -> Origin {
        Origin { owner: self.file, item: line }
    }

    pub(super) fn remark(&mut self, line: u32, problem: impl Into<String>) {
        /// Longer lines are cut: a remark is to be read.
        const TEXT_LEN_MAX: usize = 400;
        let text = self.lines.get(line.saturating_sub(1) as usize).map_or("", |line| line.trim());
        let text = text.chars().take(TEXT_LEN_MAX).collect();
        self.remarks.push(Remark { line, text, problem: problem.into(), help: None });
    }

    /// Returns the text between two tokens, the second not included, with single blanks, without
    /// comments, and with what it opens closed: it is read as itself wherever it is written.
    pub(super) fn text_between(&self, from: usize, to: usize) -> Arc<str> {
        let mut text = String::new();
        let (mut open, mut end) = (0_u32, None);
        for token in self.tokens.get(from..to).unwrap_or_default() {
            match token.kind {
                Kind::Handle(_) | Kind::Newline => continue,
                Kind::Sign("{") => open += 1,
                Kind::Sign("}") if open == 0 => continue,
                Kind::Sign("}") => open -= 1,
                _ => {}
            }
            if end.is_some_and(|end| end != token.start) {
                text.push(' ');
            }
            let own = self.text.get(token.start..token.end).unwrap_or("");
            if let Kind::Text(_) = token.kind {
                text.extend(own.split_whitespace().flat_map(|word| [word, " "]));
                text.pop();
                if !own.ends_with('"') || own.len() == 1 {
                    text.push('"');
                }
            } else {
                text.push_str(own);
            }
            end = Some(token.end);
        }
        (0..open).for_each(|_| text.push_str(" }"));
        text.into()
    }

    /// Passes over a word, if it is next.
    pub(super) fn eat_word(&mut self, word: &str) -> bool {
        let is = self.kind() == Some(Kind::Word(word));
        self.at += usize::from(is);
        is
    }

    pub(super) fn eat_sign(&mut self, sign: &str) -> bool {
        let is = matches!(self.kind(), Some(Kind::Sign(next)) if next == sign);
        self.at += usize::from(is);
        is
    }

    pub(super) fn expect_sign(&mut self, sign: &str) -> Parsed<()> {
        if self.eat_sign(sign) { Ok(()) } else { fail(format!("{sign:?} was expected")) }
    }

    /// Returns the next word and passes over it.
    pub(super) fn word(&mut self) -> Parsed<&'t str> {
        match self.kind() {
            Some(Kind::Word(word)) => {
                self.at += 1;
                Ok(word)
            }
            _ => fail("a word was expected"),
        }
    }

    /// Returns the next word, or what is in quotes, and passes over it.
    pub(super) fn word_or_text(&mut self) -> Parsed<&'t str> {
        match self.kind() {
            Some(Kind::Word(text) | Kind::Text(text)) => {
                self.at += 1;
                Ok(text)
            }
            _ => fail("a word was expected"),
        }
    }

    pub(super) fn number(&mut self) -> Parsed<u32> {
        let word = self.word()?;
        let number = crate::nft::value::parse_number(word).and_then(|n| u32::try_from(n).ok());
        number.ok_or_else(|| Fail(format!("{word:?} is no number")))
    }

    pub(super) fn number_64(&mut self) -> Parsed<u64> {
        let word = self.word()?;
        let number = crate::nft::value::parse_number(word).and_then(|n| u64::try_from(n).ok());
        number.ok_or_else(|| Fail(format!("{word:?} is no number")))
    }

    pub(super) fn time(&mut self) -> Parsed<u64> {
        let word = self.word()?;
        crate::nft::value::parse_time(word).ok_or_else(|| Fail(format!("{word:?} is no time")))
    }

    /// Passes over ends of lines.
    pub(super) fn skip_newlines(&mut self) {
        while self.kind() == Some(Kind::Newline) {
            self.at += 1;
        }
    }

    /// Passes over ends of lines and of statements.
    pub(super) fn skip_ends(&mut self) {
        while matches!(self.kind(), Some(Kind::Newline | Kind::Sign(";") | Kind::Handle(_))) {
            self.at += 1;
        }
    }

    /// Returns whether a statement ends here.
    pub(super) fn is_end(&self) -> bool {
        matches!(self.kind(), None | Some(Kind::Newline | Kind::Sign(";" | "}")))
    }

    /// Returns where the statement ends that begins at a token: at the end of a line, a semicolon
    /// or a closing brace outside of its own braces.
    pub(super) fn end_of_statement(&self, from: usize) -> usize {
        let mut depth = 0u32;
        for (at, token) in self.tokens.iter().enumerate().skip(from) {
            match token.kind {
                Kind::Sign("{" | "(") => depth += 1,
                Kind::Sign("}" | ")") if depth > 0 => depth -= 1,
                Kind::Sign("}") => return at,
                Kind::Newline | Kind::Sign(";") if depth == 0 => return at,
                _ => {}
            }
        }
        self.tokens.len()
    }

    /// Returns the type of addresses in the family of the table, if there is one.
    pub(super) fn address_type(&self) -> Type {
        if self.family == Family::Ip6 { Type::Ipv6Addr } else { Type::Ipv4Addr }
    }
}
