//! Rules and their statements.

use std::sync::Arc;

use super::lexer::Kind;
use super::parser::{Fail, Parsed, Parser, fail};
use crate::nft::value::parse_number;
use crate::nft::{
    Comparison, Counter, CtKey, Expr, Family, Fib, FibResult, Meta, NatKind, NatStatement,
    NatValue, Op, Payload, Right, Rule, SetData, SetUse, Statement, Type,
};
use crate::packet::IcmpError;
use crate::rule::RejectWith;

/// How many places in a rule are tried for going on behind what is not known.
const RESUME_MAX: usize = 48;

impl Parser<'_> {
    /// Reads a rule up to its end. What is not known of it becomes unsupported, with a remark.
    pub(super) fn rule(&mut self) -> Rule {
        let line = self.line();
        let mut rule = Rule { origin: self.origin(line), ..Rule::default() };
        while !self.is_end() {
            let start = self.at;
            if let Err(Fail(problem)) = self.statement_of(&mut rule) {
                self.at = start;
                let unknown = self.pass_unknown(start);
                self.remark(line, format!("{unknown:?} is not modelled ({problem})"));
                rule.statements.push(Statement::Unsupported(unknown));
            }
        }
        rule
    }

    fn statement_of(&mut self, rule: &mut Rule) -> Parsed<()> {
        match self.kind() {
            Some(Kind::Word("comment")) => {
                self.at += 1;
                rule.comment = Some(self.word_or_text()?.into());
            }
            Some(Kind::Handle(handle)) => {
                self.at += 1;
                rule.handle = Some(handle);
            }
            _ => rule.statements.push(self.statement()?),
        }
        Ok(())
    }

    /// Passes over what is not known: up to the first place from which the rest of the rule can be
    /// read, or to its end.
    fn pass_unknown(&mut self, start: usize) -> Arc<str> {
        let mut end = self.end_of_statement(start);
        while end > start && matches!(self.tokens[end - 1].kind, Kind::Handle(_)) {
            end -= 1;
        }
        let remarks = self.remarks.len();
        let mut depth = 0;
        let outside = |at: &usize| {
            match self.tokens[*at - 1].kind {
                Kind::Sign("{" | "(") => depth += 1,
                Kind::Sign("}" | ")") => depth -= 1,
                _ => {}
            }
            depth == 0
        };
        // Inside of braces no statement begins.
        let places: Vec<usize> = (start + 1..end).filter(outside).take(RESUME_MAX).collect();
        let resume = places.into_iter().find(|from| {
            self.at = *from;
            let reads = self.reads_to_end();
            self.remarks.truncate(remarks);
            reads
        });
        self.at = resume.unwrap_or(end.max(start + 1));
        self.text_between(start, self.at)
    }

    fn reads_to_end(&mut self) -> bool {
        let mut scratch = Rule::default();
        while !self.is_end() {
            if self.statement_of(&mut scratch).is_err() {
                return false;
            }
        }
        true
    }

    /// Reads a statement.
    pub(super) fn statement(&mut self) -> Parsed<Statement> {
        let start = self.at;
        let Some(Kind::Word(word)) = self.kind() else {
            if let Some(Kind::Sign("@")) | Some(Kind::Set(_)) = self.kind() {
                return fail("raw bytes of a header");
            }
            return fail("a statement was expected");
        };
        match word {
            "accept" | "drop" | "continue" | "return" | "jump" | "goto" | "queue" => {
                return Ok(Statement::Verdict(self.verdict()?));
            }
            "counter" => {
                self.at += 1;
                return self.counter();
            }
            "reject" => {
                self.at += 1;
                return self.reject();
            }
            "dnat" | "snat" | "masquerade" | "redirect" => {
                self.at += 1;
                return self.nat(word);
            }
            "notrack" => {
                self.at += 1;
                return Ok(Statement::Notrack);
            }
            "log" => {
                self.at += 1;
                self.log_options();
                return Ok(Statement::Other(self.text_between(start, self.at)));
            }
            "limit" => return Ok(Statement::Limit(self.limit()?)),
            "quota" => {
                self.at += 1;
                return Ok(Statement::Quota(self.quota()?));
            }
            "add" | "update" | "delete" | "set" => {
                self.at += 1;
                return self.dynset(word);
            }
            "xt" => {
                // What nft cannot print of a rule of iptables.
                self.at += 1;
                let kind = self.word()?;
                let name = self.word_or_text()?;
                return fail(format!("nft shows of this {kind} only its name, {name}"));
            }
            _ => {}
        }
        if let Some(statement) = self.setting()? {
            return Ok(statement);
        }
        self.comparison()
    }

    fn log_options(&mut self) {
        while let Some(Kind::Word(option)) = self.kind() {
            match option {
                "prefix" | "level" | "group" | "snaplen" | "queue-threshold" | "flags" => {
                    self.at += 1;
                    if matches!(self.kind(), Some(Kind::Word(_) | Kind::Text(_))) {
                        self.at += 1;
                    }
                    if option == "flags" {
                        while let Some(Kind::Sign(",") | Kind::Word("sequence" | "options")) =
                            self.kind()
                        {
                            self.at += 1;
                        }
                    }
                }
                _ => return,
            }
        }
    }

    pub(super) fn counter(&mut self) -> Parsed<Statement> {
        if self.eat_word("name") {
            let name = Some(self.word_or_text()?.into());
            return Ok(Statement::Counter(Counter { name, counts: None }));
        }
        let mut counter = Counter::default();
        if self.eat_word("packets") {
            let packets = self.number_64()?;
            if !self.eat_word("bytes") {
                return fail("\"bytes\" was expected");
            }
            counter.counts = Some((packets, self.number_64()?));
        }
        Ok(Statement::Counter(counter))
    }

    /// Reads `meta mark set`, `ct mark set` and what else sets something.
    fn setting(&mut self) -> Parsed<Option<Statement>> {
        let start = self.at;
        let Ok(target) = self.primary_quietly() else {
            self.at = start;
            return self.other_setting();
        };
        if !self.eat_word("set") {
            self.at = start;
            return self.other_setting();
        }
        let payload = |header, field| {
            let rows = &mut Payload::ALL.iter();
            rows.find(|row| row.1 == header && row.2 == field).map(|row| Expr::Payload(row.0))
        };
        Ok(Some(match target {
            Expr::Meta(Meta::Mark) => Statement::SetMark(self.assigned(Type::Mark)?),
            Expr::Ct(CtKey::Mark, None) => match self.translated_connmark() {
                Some(value) => Statement::SetCtMark(value),
                None => Statement::SetCtMark(self.assigned(Type::Mark)?),
            },
            Expr::Ct(CtKey::Zone, direction) => {
                Statement::SetZone(self.assigned(Type::HostInteger(16))?, direction)
            }
            other
                if Some(&other) == payload("ip", "ttl").as_ref()
                    || Some(&other) == payload("ip6", "hoplimit").as_ref() =>
            {
                Statement::SetTtl(self.assigned(Type::Integer(8))?)
            }
            other
                if Some(&other) == payload("ip", "dscp").as_ref()
                    || Some(&other) == payload("ip6", "dscp").as_ref() =>
            {
                Statement::SetDscp(self.assigned(Type::Dscp)?)
            }
            _ => return fail("this is not set in the model"),
        }))
    }

    /// Reads `ct mark xor V and M`: so, and in words, the translation of `CONNMARK --set-xmark` is
    /// printed, which means the mask first.
    // iptables: libxt_CONNMARK.c, connmark_tg_xlate
    fn translated_connmark(&mut self) -> Option<Expr> {
        let word = |ahead| match self.kind_after(ahead) {
            Some(Kind::Word(word)) => Some(word),
            _ => None,
        };
        let words = [word(0)?, word(1)?, word(2)?, word(4)?];
        if words != ["ct", "mark", "xor", "and"] {
            return None;
        }
        let (xor, and) = (parse_number(word(3)?)?, parse_number(word(5)?)?);
        if xor.max(and) > Type::Mark.largest() {
            return None;
        }
        self.at += 6;
        Some(Expr::Bits { of: Box::new(Expr::Ct(CtKey::Mark, None)), and, xor })
    }

    fn primary_quietly(&mut self) -> Parsed<Expr> {
        let remarks = self.remarks.len();
        let read = self.primary();
        self.remarks.truncate(remarks);
        read
    }

    /// Reads settings that change no verdict here.
    fn other_setting(&mut self) -> Parsed<Option<Statement>> {
        let start = self.at;
        let words: Vec<&str> = (0..6)
            .map_while(|ahead| match self.kind_after(ahead) {
                Some(Kind::Word(word) | Kind::Text(word)) => Some(word),
                _ => None,
            })
            .collect();
        let len = match words.as_slice() {
            ["meta", "nftrace" | "priority" | "pkttype", "set", _, ..] => 4,
            ["ct", "event" | "helper" | "label" | "timeout" | "expectation", "set", _, ..] => 4,
            ["tcp", "option", "maxseg", "size", "set", "rt"] => 7,
            ["tcp", "option", "maxseg", "size", "set", _] => 6,
            _ => return Ok(None),
        };
        self.at += len;
        while self.eat_sign(",") {
            self.word()?;
        }
        Ok(Some(Statement::Other(self.text_between(start, self.at))))
    }

    fn comparison(&mut self) -> Parsed<Statement> {
        let mut left = self.concatenation()?;
        if self.eat_word("vmap") {
            let map = self.map_use(&left, &[])?;
            return Ok(Statement::Vmap { key: left, map });
        }
        let op = self.operator();
        if let Some(Kind::Set(name)) = self.kind() {
            self.at += 1;
            let set = self.named_set(name, &[])?;
            return Ok(Statement::Match(Comparison {
                left,
                op: set_operator(op)?,
                right: Right::Set(set),
            }));
        }
        let types: Vec<Type> = left.iter().flat_map(Expr::types).collect();
        if matches!(self.kind(), Some(Kind::Sign("{"))) {
            let set = self.anonymous(&types, SetData::None)?;
            let right = Right::Set(SetUse::Anonymous(Arc::new(set)));
            return Ok(Statement::Match(Comparison { left, op: set_operator(op)?, right }));
        }
        if let [Expr::Fib(Fib { result, .. })] = left.as_mut_slice()
            && *result == FibResult::Oif
            && let Some(Kind::Word("exists" | "missing")) = self.kind()
        {
            *result = FibResult::Exists;
        }
        if let ([Expr::Fib(Fib { result: FibResult::Exists, .. })], Some(Kind::Word("0" | "1"))) =
            (left.as_slice(), self.kind())
        {
            let value = u128::from(self.number()?);
            let expr = left.remove(0);
            return Ok(Statement::Match(Comparison::one(expr, op.unwrap_or(Op::Eq), value)));
        }
        let types: Vec<Type> = left.iter().flat_map(Expr::types).collect();
        let [of] = types.as_slice() else {
            let values = self.key(&types)?;
            let op = set_operator(op)?;
            return Ok(Statement::Match(Comparison { left, op, right: Right::Values(values) }));
        };
        let of = *of;
        if of.is_flags() {
            let expr = left.remove(0);
            return self.flags(expr, of, op);
        }
        let (min, max) = self.range(of)?;
        let op = op.unwrap_or(Op::Eq);
        if min != max && !matches!(op, Op::Eq | Op::Ne) {
            return fail("a range is neither less nor greater");
        }
        Ok(Statement::Match(Comparison { left, op, right: Right::Values(vec![(min, max)]) }))
    }

    fn operator(&mut self) -> Option<Op> {
        let op = match self.kind()? {
            Kind::Sign("==") | Kind::Word("eq") => Op::Eq,
            Kind::Sign("!=") | Kind::Word("ne") => Op::Ne,
            Kind::Sign("<") | Kind::Word("lt") => Op::Lt,
            Kind::Sign("<=") | Kind::Word("le") => Op::Le,
            Kind::Sign(">") | Kind::Word("gt") => Op::Gt,
            Kind::Sign(">=") | Kind::Word("ge") => Op::Ge,
            Kind::Sign("!") => Op::None,
            _ => return None,
        };
        self.at += 1;
        Some(op)
    }

    /// Reads what bits are compared with: `a,b` for any of them, `a / a,b` under a mask.
    fn flags(&mut self, left: Expr, of: Type, op: Option<Op>) -> Parsed<Statement> {
        let value = self.flag_list(of)?;
        if self.eat_sign("/") {
            let mask = self.flag_list(of)?;
            let left = Expr::Bits { of: Box::new(left), and: mask, xor: 0 };
            let op = op.unwrap_or(Op::Eq);
            return Ok(Statement::Match(Comparison::one(left, op, value)));
        }
        let implied = if matches!(left, Expr::Bits { .. }) { Op::Eq } else { Op::Any };
        Ok(Statement::Match(Comparison::one(left, op.unwrap_or(implied), value)))
    }

    fn flag_list(&mut self, of: Type) -> Parsed<u128> {
        let parens = self.eat_sign("(");
        let mut value = 0;
        loop {
            let word = self.word()?;
            let bits = of.parse(word).or_else(|| parse_number(word));
            value |= bits
                .filter(|bits| *bits <= of.largest())
                .ok_or_else(|| Fail(format!("{word:?} is no value here")))?;
            if !self.eat_sign(",") && !self.eat_sign("|") {
                break;
            }
        }
        if parens {
            self.expect_sign(")")?;
        }
        Ok(value)
    }

    fn reject(&mut self) -> Parsed<Statement> {
        let port = RejectWith::Icmp(IcmpError::PortUnreachable);
        if !self.eat_word("with") {
            return Ok(Statement::Reject(port, None));
        }
        let kind = self.word()?;
        if kind == "tcp" {
            return if self.eat_word("reset") {
                Ok(Statement::Reject(RejectWith::TcpReset, None))
            } else {
                fail("\"tcp reset\" was expected")
            };
        }
        self.eat_word("type");
        let code = self.word()?;
        let error = match (kind, code) {
            ("icmp", "net-unreachable" | "0") => IcmpError::NetUnreachable,
            ("icmp", "host-unreachable" | "1") => IcmpError::HostUnreachable,
            ("icmp", "prot-unreachable" | "proto-unreachable" | "2") => {
                IcmpError::ProtocolUnreachable
            }
            ("icmp", "port-unreachable" | "3") => IcmpError::PortUnreachable,
            ("icmp", "net-prohibited" | "9") => IcmpError::NetProhibited,
            ("icmp", "host-prohibited" | "10") => IcmpError::HostProhibited,
            ("icmp" | "icmpx", "admin-prohibited" | "13" | "3") => IcmpError::AdminProhibited,
            ("icmpx", "no-route" | "0") => IcmpError::NetUnreachable,
            ("icmpx", "port-unreachable" | "1") => IcmpError::PortUnreachable,
            ("icmpx", "host-unreachable" | "2") => IcmpError::HostUnreachable,
            ("icmpv6", "no-route" | "0") => IcmpError::NetUnreachable,
            ("icmpv6", "admin-prohibited" | "1") => IcmpError::AdminProhibited,
            ("icmpv6", "addr-unreachable" | "3") => IcmpError::HostUnreachable,
            ("icmpv6", "port-unreachable" | "4") => IcmpError::PortUnreachable,
            ("icmpv6", "policy-fail" | "5") => IcmpError::Other(1, 5),
            ("icmpv6", "reject-route" | "6") => IcmpError::Other(1, 6),
            _ => return fail(format!("reject with {kind} {code} is not known")),
        };
        let family = match kind {
            "icmp" => Some(Family::Ip),
            "icmpv6" => Some(Family::Ip6),
            _ => None,
        };
        let family = family.filter(|_| self.family == Family::Inet);
        Ok(Statement::Reject(RejectWith::Icmp(error), family))
    }

    fn nat(&mut self, name: &str) -> Parsed<Statement> {
        let kind = match name {
            "dnat" => NatKind::Dnat,
            "snat" => NatKind::Snat,
            "masquerade" => NatKind::Masquerade,
            _ => NatKind::Redirect,
        };
        let mut nat = NatStatement {
            kind,
            family: None,
            address: None,
            port: None,
            random: false,
            fully_random: false,
            persistent: false,
        };
        match self.kind() {
            Some(Kind::Word("ip")) => nat.family = Some(Family::Ip),
            Some(Kind::Word("ip6")) => nat.family = Some(Family::Ip6),
            _ => {}
        }
        self.at += usize::from(nat.family.is_some());
        // `addr . port` and `interval` say what a map holds, which it says itself.
        if self.eat_word("addr") {
            self.expect_sign(".")?;
            if !self.eat_word("port") {
                return fail("\"port\" was expected");
            }
        }
        self.eat_word("interval");
        let of = match nat.family {
            Some(Family::Ip6) => Type::Ipv6Addr,
            Some(_) => Type::Ipv4Addr,
            None => self.address_type(),
        };
        if self.eat_word("to") {
            if !matches!(self.kind(), Some(Kind::Sign(":"))) {
                nat.address = Some(self.nat_value(of)?);
            }
            if self.eat_sign(":") {
                nat.port = Some(self.nat_value(Type::InetService)?);
            }
        } else if matches!(kind, NatKind::Dnat | NatKind::Snat) {
            return fail("\"to\" was expected");
        }
        loop {
            match self.kind() {
                Some(Kind::Word("random")) => nat.random = true,
                Some(Kind::Word("fully-random")) => nat.fully_random = true,
                Some(Kind::Word("persistent")) => nat.persistent = true,
                Some(Kind::Sign(",")) => {}
                _ => break,
            }
            self.at += 1;
        }
        Ok(Statement::Nat(nat))
    }

    fn nat_value(&mut self, of: Type) -> Parsed<NatValue> {
        if let Some(Kind::Word(word)) = self.kind() {
            if let Some(inner) = word.strip_prefix('[').and_then(|w| w.strip_suffix(']'))
                && let Some(value) = of.parse(inner)
            {
                self.at += 1;
                return Ok(NatValue::Range(value, value));
            }
            if let Some((first, last)) = word.split_once("]-[")
                && let Some(min) = first.strip_prefix('[').and_then(|first| of.parse(first))
                && let Some(max) = last.strip_suffix(']').and_then(|last| of.parse(last))
            {
                self.at += 1;
                return Ok(NatValue::Range(min, max));
            }
            let start = self.at;
            if let Ok((min, max)) = self.range(of) {
                return Ok(NatValue::Range(min, max));
            }
            self.at = start;
        }
        let key = self.concatenation()?;
        if self.eat_word("map") {
            let map = self.map_use(&key, &[of])?;
            return Ok(NatValue::Expr(Expr::Map { key, map }));
        }
        match <[Expr; 1]>::try_from(key) {
            Ok([expr]) => Ok(NatValue::Expr(expr)),
            Err(_) => fail("a concatenation is no address"),
        }
    }
}

fn set_operator(op: Option<Op>) -> Parsed<Op> {
    match op {
        None | Some(Op::Eq) => Ok(Op::Eq),
        Some(Op::Ne) => Ok(Op::Ne),
        Some(_) => fail("a set is neither less nor greater"),
    }
}
