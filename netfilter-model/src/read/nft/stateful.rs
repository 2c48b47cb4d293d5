//! What rules keep between packets: limits, quotas, and sets that packets change.

use super::lexer::Kind;
use super::parser::{Fail, Parsed, Parser, fail};
use crate::nft::value::parse_number;
use crate::nft::{Dynset, DynsetOp, Expr, Limit, Quota, StateId, Statement, Type};

impl Parser<'_> {
    /// Reads `limit [name N | rate [over] R/unit [burst B packets]]`.
    pub(super) fn limit(&mut self) -> Parsed<Limit> {
        if !self.eat_word("limit") {
            return fail("\"limit\" was expected");
        }
        let mut limit = Limit {
            rate: 1,
            seconds: 1,
            burst: 5,
            bytes: false,
            over: false,
            name: None,
            state: StateId::default(),
        };
        if self.eat_word("name") {
            limit.name = Some(self.word_or_text()?.into());
            return Ok(limit);
        }
        self.rate(&mut limit)?;
        Ok(limit)
    }

    /// Reads `rate [over] R/unit [burst B packets]`.
    pub(super) fn rate(&mut self, limit: &mut Limit) -> Parsed<()> {
        if !self.eat_word("rate") {
            return fail("\"rate\" was expected");
        }
        limit.over = self.eat_word("over");
        if !limit.over {
            self.eat_word("until");
        }
        // `10/second`, `10 kbytes/second`.
        let word = self.word()?;
        let (number, unit) = match word.split_once('/') {
            Some((number, unit)) => (number, unit),
            None => {
                let (bytes, unit) = self.word()?.split_once('/').unwrap_or(("", ""));
                let scale = scale(bytes).ok_or_else(|| Fail(format!("{bytes:?} is no unit")))?;
                limit.bytes = true;
                limit.burst = 0;
                limit.rate = scale;
                (word, unit)
            }
        };
        let number = parse_number(number).and_then(|n| u64::try_from(n).ok());
        let number = number.filter(|number| *number > 0);
        let number = number.ok_or_else(|| Fail(format!("{word:?} is no rate")))?;
        limit.rate = limit.rate.checked_mul(number).ok_or_else(|| Fail("too fast".to_owned()))?;
        limit.seconds = match unit {
            "second" => 1,
            "minute" => 60,
            "hour" => 3600,
            "day" => 86_400,
            "week" => 604_800,
            _ => return fail(format!("{unit:?} is no unit of time")),
        };
        if self.eat_word("burst") {
            let burst = self.number_64()?;
            let unit = self.word()?;
            let scale = if unit == "packets" { Some(1) } else { scale(unit) };
            let burst = scale.and_then(|scale| burst.checked_mul(scale));
            limit.burst = burst.ok_or_else(|| Fail("a burst without a unit".to_owned()))?;
        }
        // Kernel: nft_limit.c, NFT_LIMIT_PKT_BURST_DEFAULT
        if limit.burst == 0 && !limit.bytes {
            limit.burst = 5;
        }
        Ok(())
    }

    /// Reads `[over|until] N UNIT [used M UNIT]` or `name N`.
    pub(super) fn quota(&mut self) -> Parsed<Quota> {
        let (bytes, used, over) = (0, 0, false);
        let mut quota = Quota { bytes, used, over, name: None, state: StateId::default() };
        if self.eat_word("name") {
            quota.name = Some(self.word_or_text()?.into());
            return Ok(quota);
        }
        quota.over = self.eat_word("over");
        if !quota.over {
            self.eat_word("until");
        }
        quota.bytes = self.amount()?;
        if self.eat_word("used") {
            quota.used = self.amount()?;
        }
        Ok(quota)
    }

    fn amount(&mut self) -> Parsed<u64> {
        let number = self.number_64()?;
        let unit = self.word()?;
        let bytes = scale(unit).and_then(|scale| number.checked_mul(scale));
        bytes.ok_or_else(|| Fail(format!("{unit:?} is no unit")))
    }

    pub(super) fn dynset(&mut self, word: &str) -> Parsed<Statement> {
        // `set update KEY @name` is the older form of `update @name { KEY }`.
        if word == "set" {
            let op = dynset_op(self.word()?)?;
            let key = self.concatenation()?;
            let timeout = if self.eat_word("timeout") { Some(self.time()?) } else { None };
            let set = self.changed_set()?;
            let (data, limit, other) = (Vec::new(), None, None);
            return Ok(Statement::Dynset(Dynset { op, set, key, data, timeout, limit, other }));
        }
        let op = dynset_op(word)?;
        let set = self.changed_set()?;
        self.expect_sign("{")?;
        let key = self.concatenation()?;
        let mut dynset =
            Dynset { op, set, key, data: Vec::new(), timeout: None, limit: None, other: None };
        loop {
            match self.kind() {
                Some(Kind::Word("timeout")) => {
                    self.at += 1;
                    dynset.timeout = Some(self.time()?);
                }
                Some(Kind::Word("limit")) => dynset.limit = Some(self.limit()?),
                Some(Kind::Word("counter")) => {
                    let start = self.at;
                    self.at += 1;
                    self.counter()?;
                    dynset.other = Some(self.text_between(start, self.at));
                }
                Some(Kind::Word("comment")) => {
                    self.at += 1;
                    self.word_or_text()?;
                }
                Some(Kind::Sign(":")) => {
                    self.at += 1;
                    dynset.data = self.concatenation_or_values()?;
                }
                _ => break,
            }
        }
        self.expect_sign("}")?;
        Ok(Statement::Dynset(dynset))
    }

    /// Reads what an element that a packet adds maps to.
    fn concatenation_or_values(&mut self) -> Parsed<Vec<Expr>> {
        let start = self.at;
        if let Ok(exprs) = self.concatenation() {
            return Ok(exprs);
        }
        self.at = start;
        let mut exprs = Vec::new();
        loop {
            let word = self.word()?;
            let types = [Type::Ipv4Addr, Type::Ipv6Addr, Type::HostInteger(32)];
            let value = types.iter().find_map(|of| Some((of.parse(word)?, *of)));
            let (value, of) = value.ok_or_else(|| Fail(format!("{word:?} is no value")))?;
            exprs.push(Expr::literal(value, of));
            if exprs.len() > 8 || !self.eat_sign(".") {
                return Ok(exprs);
            }
        }
    }

    fn changed_set(&mut self) -> Parsed<u32> {
        let Some(Kind::Set(name)) = self.kind() else {
            return fail("a set was expected");
        };
        self.at += 1;
        Ok(self.draft()?.set(name))
    }
}

fn dynset_op(word: &str) -> Parsed<DynsetOp> {
    match word {
        "add" => Ok(DynsetOp::Add),
        "update" => Ok(DynsetOp::Update),
        "delete" => Ok(DynsetOp::Delete),
        _ => fail(format!("{word:?} is no change of a set")),
    }
}

/// Returns how many bytes a unit is.
fn scale(unit: &str) -> Option<u64> {
    match unit {
        "bytes" => Some(1),
        "kbytes" => Some(1 << 10),
        "mbytes" => Some(1 << 20),
        "gbytes" => Some(1 << 30),
        _ => None,
    }
}
