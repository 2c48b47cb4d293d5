//! Expressions, values and elements.

use std::sync::Arc;

use super::lexer::Kind;
use super::parser::{Fail, Parsed, Parser, fail};
use crate::conntrack::Direction;
use crate::nft::value::{device_prefix, device_value, parse_number};
use crate::nft::{
    CtKey, Data, Element, Expr, Family, Fib, FibResult, Meta, Payload, Range, Set, SetData, SetUse,
    StateId, Type, Verdict,
};

/// The longest concatenation.
// Kernel: nf_tables.h, NFT_REG32_COUNT
const FIELDS_MAX: usize = 16;

/// A value that is the same for each packet, or is not.
#[derive(Clone, Debug)]
enum Operand {
    Constant(u128),
    Expr(Expr),
}

impl Parser<'_> {
    /// Reads a concatenation.
    pub(super) fn concatenation(&mut self) -> Parsed<Vec<Expr>> {
        let mut exprs = vec![self.masked()?];
        while self.eat_sign(".") {
            if exprs.len() == FIELDS_MAX {
                return fail("the concatenation is too long");
            }
            exprs.push(self.masked()?);
        }
        Ok(exprs)
    }

    /// Reads an expression with what is done to its bits.
    pub(super) fn masked(&mut self) -> Parsed<Expr> {
        let of = self.masked_operand()?;
        let bits_of = of.of_type();
        match self.operators(Operand::Expr(of), 0, &mut |parser| parser.bit_operand(bits_of))? {
            Operand::Expr(expr) => Ok(expr),
            Operand::Constant(value) => Ok(Expr::literal(value, Type::Integer(32))),
        }
    }

    fn masked_operand(&mut self) -> Parsed<Expr> {
        if !self.eat_sign("(") {
            return self.primary();
        }
        self.deeper()?;
        let inner = self.masked();
        self.depth -= 1;
        self.expect_sign(")")?;
        inner
    }

    /// Applies the operators that follow and bind at least so strongly.
    fn operators(
        &mut self,
        mut left: Operand,
        least: u8,
        operand: &mut dyn FnMut(&mut Self) -> Parsed<Operand>,
    ) -> Parsed<Operand> {
        while let Some((operator, strength)) = self.operator_ahead() {
            if strength < least {
                break;
            }
            self.at += 1;
            let right = operand(self)?;
            self.deeper()?;
            let right = self.operators(right, strength + 1, operand);
            self.depth -= 1;
            left = apply(operator, left, right?)?;
        }
        Ok(left)
    }

    /// Returns the operator that is next, and how strongly it binds.
    fn operator_ahead(&self) -> Option<(&'static str, u8)> {
        Some(match self.kind()? {
            Kind::Sign("|") | Kind::Word("or") => ("|", 0),
            Kind::Sign("^") | Kind::Word("xor") => ("^", 1),
            Kind::Sign("&") | Kind::Word("and") => ("&", 2),
            Kind::Sign("<<") | Kind::Word("lshift") => ("<<", 3),
            Kind::Sign(">>") | Kind::Word("rshift") => (">>", 3),
            _ => return None,
        })
    }

    /// Reads a constant of a type, or several in parentheses.
    fn bit_operand(&mut self, of: Type) -> Parsed<Operand> {
        if self.eat_sign("(") {
            let mut value = 0;
            loop {
                value |= self.constant(of)?;
                if !self.eat_sign("|") && !self.eat_word("or") && !self.eat_sign(",") {
                    break;
                }
            }
            self.expect_sign(")")?;
            return Ok(Operand::Constant(value));
        }
        Ok(Operand::Constant(self.constant(of)?))
    }

    fn constant(&mut self, of: Type) -> Parsed<u128> {
        let word = self.word_or_text()?;
        of.parse(word)
            .or_else(|| parse_number(word))
            .filter(|value| *value <= of.largest())
            .ok_or_else(|| Fail(format!("{word:?} is no value here")))
    }

    /// Reads what a statement sets something to.
    pub(super) fn assigned(&mut self, of: Type) -> Parsed<Expr> {
        let left = self.operand(of)?;
        match self.operators(left, 0, &mut |parser| parser.operand(of))? {
            Operand::Expr(expr) => Ok(expr),
            Operand::Constant(value) => Ok(Expr::literal(value, of)),
        }
    }

    fn operand(&mut self, of: Type) -> Parsed<Operand> {
        if self.eat_sign("(") {
            self.deeper()?;
            let inner = self.assigned(of);
            self.depth -= 1;
            self.expect_sign(")")?;
            return Ok(match inner? {
                Expr::Literal(value, _) => Operand::Constant(value),
                expr => Operand::Expr(expr),
            });
        }
        if let Some(Kind::Word(word)) = self.kind()
            && let Some(value) = of.parse(word).or_else(|| parse_number(word))
        {
            self.at += 1;
            if value > of.largest() {
                return fail(format!("{word:?} is no value here"));
            }
            return Ok(Operand::Constant(value));
        }
        let mut key = vec![self.primary()?];
        while self.eat_sign(".") {
            if key.len() == FIELDS_MAX {
                return fail("the concatenation is too long");
            }
            key.push(self.primary()?);
        }
        if self.eat_word("map") {
            let map = self.map_use(&key, &[of])?;
            return Ok(Operand::Expr(Expr::Map { key, map }));
        }
        match <[Expr; 1]>::try_from(key) {
            Ok([expr]) => Ok(Operand::Expr(expr)),
            Err(_) => fail("a concatenation is no value"),
        }
    }

    /// Reads the map behind `map` or `vmap`.
    pub(super) fn map_use(&mut self, key: &[Expr], data: &[Type]) -> Parsed<SetUse> {
        if let Some(Kind::Set(name)) = self.kind() {
            self.at += 1;
            return self.named_set(name, data);
        }
        let data = if data.is_empty() {
            SetData::Verdict
        } else {
            SetData::Values { types: data.into(), typeof_data: None, interval: false }
        };
        let types: Vec<Type> = key.iter().flat_map(Expr::types).collect();
        Ok(SetUse::Anonymous(Arc::new(self.anonymous(&types, data)?)))
    }

    pub(super) fn named_set(&mut self, name: &str, data: &[Type]) -> Parsed<SetUse> {
        let draft = self.draft()?;
        let index = draft.set(name);
        let set = &draft.table.sets[index as usize];
        let data = if set.data_types().is_empty() { data } else { set.data_types() };
        Ok(SetUse::Named { index, data: data.into() })
    }

    /// Reads one expression.
    pub(super) fn primary(&mut self) -> Parsed<Expr> {
        let start = self.at;
        let word = self.word()?;
        let known = match word {
            "meta" => {
                let key = self.word()?;
                Meta::ALL.iter().find(|row| row.1 == key).map(|row| Expr::Meta(row.0))
            }
            "ct" => return self.ct(),
            "fib" => return self.fib(),
            "numgen" => return self.numgen(),
            "jhash" => return self.jhash(),
            "symhash" => {
                let (modulus, _, offset) = self.modulus()?;
                Some(Expr::Symhash { modulus, offset })
            }
            _ => match Meta::ALL.iter().find(|row| row.3 && row.1 == word) {
                Some(row) => Some(Expr::Meta(row.0)),
                None => {
                    let field = self.word()?;
                    let rows = &mut Payload::ALL.iter();
                    rows.find(|row| row.1 == word && row.2 == field).map(|row| Expr::Payload(row.0))
                }
            },
        };
        known.ok_or_else(|| {
            let text = self.text_between(start, self.at);
            Fail(format!("{text:?} is not known"))
        })
    }

    fn ct(&mut self) -> Parsed<Expr> {
        let direction = match self.kind() {
            Some(Kind::Word("original")) => Some(Direction::Original),
            Some(Kind::Word("reply")) => Some(Direction::Reply),
            _ => None,
        };
        self.at += usize::from(direction.is_some());
        let word = self.word()?;
        let ipv6 = self.family == Family::Ip6;
        let key = match word {
            "ip" | "ip6" => {
                let field = self.word()?;
                let words = format!("{word} {field}");
                CtKey::ALL.iter().find(|row| row.1 == words).map(|row| row.0)
            }
            // As translations of iptables rules are printed.
            "saddr" | "daddr" => Some(match (word, ipv6) {
                ("saddr", false) => CtKey::IpSaddr,
                ("saddr", true) => CtKey::Ip6Saddr,
                (_, false) => CtKey::IpDaddr,
                (_, true) => CtKey::Ip6Daddr,
            }),
            _ => CtKey::ALL.iter().find(|row| row.1 == word).map(|row| row.0),
        };
        match key {
            Some(key) if !key.needs_direction() || direction.is_some() => {
                Ok(Expr::Ct(key, direction))
            }
            _ => fail(format!("\"ct {word}\" is not known")),
        }
    }

    fn fib(&mut self) -> Parsed<Expr> {
        let source = match self.word()? {
            "saddr" => true,
            "daddr" => false,
            word => return fail(format!("\"fib {word}\" is not known")),
        };
        let mut fib = Fib { source, mark: false, iif: false, oif: false, result: FibResult::Type };
        while self.eat_sign(".") {
            match self.word()? {
                "mark" => fib.mark = true,
                "iif" => fib.iif = true,
                "oif" => fib.oif = true,
                word => return fail(format!("\"fib . {word}\" is not known")),
            }
        }
        fib.result = match self.word()? {
            "type" => FibResult::Type,
            "oif" => FibResult::Oif,
            "oifname" => FibResult::Oifname,
            "check" => FibResult::Exists,
            word => return fail(format!("\"fib … {word}\" is not known")),
        };
        if fib.result == FibResult::Oif
            && matches!(self.kind(), Some(Kind::Word("exists" | "missing")))
        {
            fib.result = FibResult::Exists;
        }
        Ok(Expr::Fib(fib))
    }

    fn numgen(&mut self) -> Parsed<Expr> {
        let inc = match self.word()? {
            "inc" => Some(StateId::default()),
            "random" => None,
            word => return fail(format!("\"numgen {word}\" is not known")),
        };
        let (modulus, _, offset) = self.modulus()?;
        Ok(Expr::Numgen { inc, modulus, offset })
    }

    fn jhash(&mut self) -> Parsed<Expr> {
        let line = self.line();
        self.deeper()?;
        let of = self.concatenation();
        self.depth -= 1;
        let of = of?;
        let (modulus, seed, offset) = self.modulus()?;
        if seed.is_none() {
            self.remark(line, "the seed of this hash is the kernel's secret: taken for 0");
        }
        Ok(Expr::Jhash { of, modulus, seed, offset })
    }

    /// Reads `mod N [seed S] [offset K]`.
    fn modulus(&mut self) -> Parsed<(u32, Option<u32>, u32)> {
        if !self.eat_word("mod") {
            return fail("\"mod\" was expected");
        }
        let modulus = self.number()?;
        if modulus == 0 {
            return fail("mod 0");
        }
        let seed = if self.eat_word("seed") { Some(self.number()?) } else { None };
        let offset = if self.eat_word("offset") { self.number()? } else { 0 };
        if offset.checked_add(modulus - 1).is_none() {
            return fail("mod and offset pass 32 bits");
        }
        Ok((modulus, seed, offset))
    }

    /// Reads a value or range of a type.
    pub(super) fn range(&mut self, of: Type) -> Parsed<Range> {
        let (min, max) = match self.kind() {
            Some(Kind::Text(text)) => {
                self.at += 1;
                return text_range(of, text);
            }
            Some(Kind::Word("*")) => {
                self.at += 1;
                return Ok((0, if of == Type::IfaceIndex { u128::MAX } else { of.largest() }));
            }
            Some(Kind::Word(word)) => {
                let range = word_range(of, word)
                    .ok_or_else(|| Fail(format!("{word:?} is no value here")))?;
                self.at += 1;
                range
            }
            _ => return fail("a value was expected"),
        };
        if min == max && matches!(self.kind(), Some(Kind::Sign("-"))) {
            self.at += 1;
            let (last, end) = self.range(of)?;
            if last != end || last < min {
                return fail("a range that ends before it begins");
            }
            return Ok((min, last));
        }
        if of.is_flags() && min == max {
            let mut value = min;
            while matches!(self.kind(), Some(Kind::Sign("|"))) {
                self.at += 1;
                value |= self.constant(of)?;
            }
            return Ok((value, value));
        }
        Ok((min, max))
    }

    /// Reads the fields of a key.
    pub(super) fn key(&mut self, types: &[Type]) -> Parsed<Vec<Range>> {
        if matches!(self.kind(), Some(Kind::Word("*"))) && types.len() > 1 {
            let next = self.kind_after(1);
            if !matches!(next, Some(Kind::Sign("."))) {
                self.at += 1;
                return Ok(types.iter().map(|of| (0, of.largest())).collect());
            }
        }
        let mut key = Vec::with_capacity(types.len());
        for (at, of) in types.iter().enumerate() {
            if at > 0 {
                self.skip_newlines();
                self.expect_sign(".")?;
                self.skip_newlines();
            }
            key.push(self.range(*of)?);
        }
        Ok(key)
    }

    /// Reads a set in braces.
    pub(super) fn anonymous(&mut self, key: &[Type], data: SetData) -> Parsed<Set> {
        let line = self.line();
        let mut set = Set::new("", key, data);
        let elements = self.elements(&mut set)?;
        set.interval = elements.iter().any(|e| e.key.iter().any(|range| range.0 != range.1));
        set.extend(elements);
        if !set.finish().is_empty() && set.data != SetData::None {
            self.remark(line, "elements of this map overlap: the first counts");
        }
        Ok(set)
    }

    /// Reads elements in braces.
    pub(super) fn elements(&mut self, set: &mut Set) -> Parsed<Vec<Element>> {
        self.expect_sign("{")?;
        let mut elements = Vec::new();
        loop {
            self.skip_newlines();
            if self.eat_sign("}") {
                return Ok(elements);
            }
            elements.push(self.element(set)?);
            self.skip_newlines();
            if !self.eat_sign(",") {
                self.skip_newlines();
                self.expect_sign("}")?;
                return Ok(elements);
            }
        }
    }

    /// Reads one element.
    pub(super) fn element(&mut self, set: &mut Set) -> Parsed<Element> {
        let key = self.key(&set.key)?;
        let mut element = Element::ranges(key);
        self.element_options(&mut element)?;
        self.skip_newlines();
        if set.data != SetData::None {
            self.expect_sign(":")?;
            self.skip_newlines();
            element.data = match &mut set.data {
                SetData::None => Data::None,
                SetData::Verdict => Data::Verdict(self.verdict()?),
                SetData::Values { types, .. } => {
                    let grows = set.name.is_empty();
                    let mut values = vec![self.range(types[0])?];
                    while self.eat_sign(".") {
                        // In a translation a port may follow the address.
                        let of = types.get(values.len()).copied().unwrap_or(Type::InetService);
                        if values.len() == FIELDS_MAX || !grows && values.len() >= types.len() {
                            return fail("the concatenation is too long");
                        }
                        if types.len() == values.len() {
                            *types = types.iter().copied().chain([of]).collect();
                        }
                        values.push(self.range(of)?);
                    }
                    Data::Values(values.into())
                }
            };
            self.element_options(&mut element)?;
        }
        Ok(element)
    }

    fn element_options(&mut self, element: &mut Element) -> Parsed<()> {
        loop {
            match self.kind() {
                Some(Kind::Word("timeout")) => {
                    self.at += 1;
                    element.timeout = Some(self.time()?);
                }
                Some(Kind::Word("expires")) => {
                    self.at += 1;
                    element.expires = Some(self.time()?);
                }
                Some(Kind::Word("comment")) => {
                    self.at += 1;
                    element.comment = Some(self.word_or_text()?.into());
                }
                Some(Kind::Word("counter")) => {
                    self.at += 1;
                    if self.eat_word("packets") {
                        self.number_64()?;
                        self.eat_word("bytes");
                        self.number_64()?;
                    }
                }
                // A rate of this element: `limit rate 5/second burst 5 packets`.
                Some(Kind::Word("limit")) => {
                    self.limit()?;
                }
                _ => return Ok(()),
            }
        }
    }

    /// Reads a verdict.
    pub(super) fn verdict(&mut self) -> Parsed<Verdict> {
        let start = self.at;
        Ok(match self.word()? {
            "accept" => Verdict::Accept,
            "drop" => Verdict::Drop,
            "continue" => Verdict::Continue,
            "return" => Verdict::Return,
            word @ ("jump" | "goto") => {
                let name = self.word_or_text()?;
                let to = self.draft()?.chain(name);
                if word == "jump" { Verdict::Jump(to) } else { Verdict::Goto(to) }
            }
            "queue" => {
                let end = self.end_of_statement(start);
                // In a map the verdict ends with its element.
                while self.at < end
                    && !matches!(self.kind(), Some(Kind::Sign(",")))
                    && !matches!(self.kind(), Some(Kind::Handle(_) | Kind::Word("comment")))
                {
                    self.at += 1;
                }
                Verdict::Unknown(self.text_between(start, self.at))
            }
            word => return fail(format!("{word:?} is no verdict")),
        })
    }
}

/// Applies an operator to bits.
fn apply(operator: &str, left: Operand, right: Operand) -> Parsed<Operand> {
    let (of, constant) = match (left, right) {
        (Operand::Constant(left), Operand::Constant(right)) => {
            return Ok(Operand::Constant(match operator {
                "&" => left & right,
                "|" => left | right,
                "^" => left ^ right,
                "<<" => shift(left, right, true),
                _ => shift(left, right, false),
            }));
        }
        (Operand::Expr(of), Operand::Constant(constant)) => (of, constant),
        (Operand::Constant(constant), Operand::Expr(of)) if !operator.contains(['<', '>']) => {
            (of, constant)
        }
        _ => return fail("two values that depend on the packet"),
    };
    if let "<<" | ">>" = operator {
        let by = i8::try_from(constant).ok().filter(|by| *by < 127);
        let by = by.ok_or_else(|| Fail(format!("a shift by {constant}")))?;
        let left = if operator == "<<" { by } else { -by };
        return Ok(Operand::Expr(Expr::Shift { of: Box::new(of), left }));
    }
    let all = of.of_type().largest();
    let (of, and, xor) = match of {
        Expr::Bits { of, and, xor } => (of, and, xor),
        of => (Box::new(of), all, 0),
    };
    let (and, xor) = match operator {
        "&" => (and & constant, xor & constant),
        "|" => (and & !constant, xor & !constant | constant),
        _ => (and, xor ^ constant),
    };
    Ok(Operand::Expr(Expr::Bits { of, and: and & all, xor }))
}

fn shift(value: u128, by: u128, left: bool) -> u128 {
    let by = u32::try_from(by).unwrap_or(u32::MAX);
    let moved = if left { value.checked_shl(by) } else { value.checked_shr(by) };
    moved.unwrap_or(0)
}

/// Returns what a text in quotes stands for.
fn text_range(of: Type, text: &str) -> Parsed<Range> {
    let no_value = || Fail(format!("{text:?} is no value here"));
    if let Type::Ifname = of {
        if let Some(prefix) = text.strip_suffix("\\*") {
            return device_value(&format!("{prefix}*")).map(|v| (v, v)).ok_or_else(no_value);
        }
        if let Some(prefix) = text.strip_suffix('*') {
            return device_prefix(prefix).ok_or_else(no_value);
        }
    }
    of.parse(text).map(|value| (value, value)).ok_or_else(no_value)
}

/// Returns the range that a word stands for.
fn word_range(of: Type, word: &str) -> Option<Range> {
    if let Some(value) = of.parse(word) {
        return Some((value, value));
    }
    if of == Type::Ifname {
        return device_prefix(word.strip_suffix('*')?);
    }
    if let Some((address, len)) = word.split_once('/') {
        let bits = match of {
            Type::Ipv4Addr => 32,
            Type::Ipv6Addr => 128,
            // So a value under a mask of leading bits is listed.
            Type::Mark => 32,
            _ => return None,
        };
        let len: u32 = len.parse().ok().filter(|len| *len <= bits)?;
        let host = u128::MAX.checked_shr(128 - (bits - len)).unwrap_or(0);
        let address = of.parse(address)? & !host;
        return Some((address, address | host));
    }
    // Names may hold a dash themselves.
    word.match_indices('-').find_map(|(dash, _)| {
        let (min, max) = (of.parse(&word[..dash])?, of.parse(&word[dash + 1..])?);
        (min <= max).then_some((min, max))
    })
}
