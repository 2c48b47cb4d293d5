//! The lines of `iptables-save` and `iptables -S`, and of scripts that call iptables.

use super::build::unsupported;
use super::command::{self, Action, Trouble};
use super::tables::{self, Tables};
use super::words::{self, Word};
use super::{Counters, IptablesDump, Source};
use crate::hook::{Hook, Table};
use crate::read::{Line, Read, Remark, in_order, lines, pasted_command};
use crate::rule::{Backend, Origin, Target, Unsupported};
use crate::tuple::Family;

/// Reads what `iptables-save` or `iptables -S` printed, or commands of iptables, one a line.
///
/// A text with both back ends or both families gives a dump for each; one without rules gives
/// none. Where the text names no table, as that of `-S` does not, it is told by the chains and
/// targets, with a remark, unless the source says it.
pub fn iptables_rules(text: &str, source: Source) -> Read<Vec<IptablesDump>> {
    let lines: Vec<Line<'_>> = lines(text).collect();
    let mut reader = Reader {
        lines: &lines,
        source,
        dumps: Vec::new(),
        header: None,
        program: None,
        prompt_table: None,
        table: None,
        guessed_to: 0,
        work_max: tables::work_max(text),
        remarks: Vec::new(),
    };
    let cut = !text.ends_with('\n');
    for at in 0..lines.len() {
        reader.line(at, cut && at + 1 == lines.len());
    }
    reader.finish()
}

/// The table whose lines are being read.
#[derive(Clone, Copy)]
struct Open {
    table: Table,
    dump: usize,
    /// The line of `*table`, if there was one.
    begun: Option<usize>,
}

struct Reader<'l, 't> {
    lines: &'l [Line<'t>],
    source: Source,
    dumps: Vec<Tables>,
    /// What the last header said.
    header: Option<(Family, Option<Backend>)>,
    /// What the last pasted prompt called.
    program: Option<(Family, Option<Backend>)>,
    prompt_table: Option<Table>,
    table: Option<Open>,
    /// The line to which a table was told from its rules.
    guessed_to: usize,
    /// How much work the commands of a dump may ask for.
    work_max: usize,
    remarks: Vec<Remark>,
}

impl<'t> Reader<'_, 't> {
    fn remark(&mut self, at: usize, (problem, help): Trouble) {
        let remark = self.lines[at].remark(problem);
        self.remarks.push(Remark { help: help.map(str::to_owned), ..remark });
    }

    fn line(&mut self, at: usize, last: bool) {
        let line = self.lines[at];
        let text = line.text.trim_matches([' ', '\t', '\r']);
        let first = text.chars().next();
        match first {
            None => {}
            Some('*') => self.begin(at, &text[1..]),
            Some(':') => self.chain(at, &text[1..]),
            Some('[') => self.counted(at, text, last),
            Some('-') => self.command(at, text, None, last),
            Some('#') if header(text).is_some() => self.header = header(text),
            Some(_) if text == "COMMIT" => self.commit(at),
            Some(_) => self.other(at, text, last),
        }
    }

    /// A prompt, a script's command, or something else.
    fn other(&mut self, at: usize, text: &'t str, last: bool) {
        let called = pasted_command(text);
        if called.is_none() && text.starts_with('#') {
            return;
        }
        let called_or_text = called.unwrap_or(text);
        let (words, _) = words::split(called_or_text);
        let skip = words.iter().take_while(|word| word.text == "sudo").count();
        let program = words.get(skip).and_then(|word| program(&word.text));
        let Some((family, backend, name)) = program else {
            if called.is_none() {
                self.remark(at, ("the line is not understood".to_owned(), None));
            }
            // Some other program was called: what follows is not of this table.
            self.close(at);
            return;
        };
        let rest = &words[skip + 1..];
        let table = rest.iter().zip(rest.iter().skip(1)).find_map(|(option, value)| {
            (option.text == "-t" || option.text == "--table").then(|| named_table(&value.text))?
        });
        let adds = rest.iter().any(|word| {
            ["-A", "-I", "-N", "-P", "-F", "-X", "-D", "-R", "-E", "--append", "--insert"]
                .contains(&&*word.text)
        });
        if adds && !name.ends_with("-save") {
            let table = table.unwrap_or(Table::Filter);
            let dump = self.dump(family, backend);
            self.table = Some(Open { table, dump, begun: None });
            self.guessed_to = at + 1;
            let rest = rest.to_vec();
            return self.run(at, &rest, None, last);
        }
        self.close(at);
        self.program = Some((family, backend));
        self.header = None;
        let lists = rest.iter().any(|word| word.text.starts_with("-S"));
        self.prompt_table = table.or(lists.then_some(Table::Filter));
    }

    fn close(&mut self, at: usize) {
        if let Some(Open { begun: Some(begun), .. }) = self.table.take() {
            let begun = self.lines[begun].number;
            let problem = format!("the table begun in line {begun} has no COMMIT");
            self.remark(at, (problem, Some("it is read up to here")));
        }
    }

    fn commit(&mut self, at: usize) {
        if self.table.take().is_none() {
            self.remark(at, ("COMMIT without a table".to_owned(), None));
        }
    }

    fn begin(&mut self, at: usize, name: &str) {
        self.close(at);
        let Some(table) = named_table(name.trim()) else {
            let problem = format!("there is no table {name}");
            return self.remark(at, (problem, Some("its lines are passed over")));
        };
        let (family, backend) = self.header.or(self.program).unwrap_or((Family::V4, None));
        let told = self.header.or(self.program).is_some();
        let family = if told { family } else { self.guess_family(at + 1) };
        let dump = self.dump(family, backend);
        if self.dumps[dump].begin(table) {
            let help = "iptables-restore would forget what stands before; so is done here";
            self.remark(at, (format!("table {table} for the second time"), Some(help)));
        }
        self.table = Some(Open { table, dump, begun: Some(at) });
    }

    /// Returns the dump of a family and back end.
    fn dump(&mut self, family: Family, backend: Option<Backend>) -> usize {
        let like = |dump: &Tables| dump.family == family && dump.backend == backend;
        self.dumps.iter().position(like).unwrap_or_else(|| {
            self.dumps.push(Tables::new(family, backend, self.work_max));
            self.dumps.len() - 1
        })
    }

    /// Returns the family of the rules from a line on, told by the first one that shows it.
    fn guess_family(&self, from: usize) -> Family {
        let section = self.lines[from..].iter().take_while(|line| {
            let text = line.text.trim_start();
            !text.starts_with('*') && text.trim_end() != "COMMIT"
        });
        let mut shown = section.filter_map(|line| shown_family(line.text));
        self.source.family.or_else(|| shown.next()).unwrap_or_default()
    }

    fn chain(&mut self, at: usize, text: &str) {
        let Some(Open { table, dump, .. }) = self.table else {
            return self.remark(at, ("a chain outside of a table".to_owned(), None));
        };
        let mut words = text.split_whitespace();
        let (Some(name), Some(policy)) = (words.next(), words.next()) else {
            return self.remark(at, ("a chain needs a name and a policy, or -".to_owned(), None));
        };
        let counters = match words.next().map(|text| (text, bracketed(text))) {
            Some((_, Some((counters, "")))) => Some(counters),
            None => None,
            Some((text, _)) => {
                self.remark(at, (format!("{text:?} is no [packets:bytes]"), None));
                None
            }
        };
        if let Err(trouble) = self.dumps[dump].declare(table, name, policy, counters) {
            self.remark(at, trouble);
        }
    }

    fn counted(&mut self, at: usize, text: &'t str, last: bool) {
        match bracketed(text) {
            Some((counters, rest)) => self.command(at, rest.trim_start(), Some(counters), last),
            // A prompt may begin so as well.
            None => self.other(at, text, last),
        }
    }

    fn command(&mut self, at: usize, text: &'t str, counters: Option<Counters>, last: bool) {
        let (words, open) = words::split(text);
        if open {
            let help = "the text may be cut here";
            self.remark(at, ("a quote is not closed".to_owned(), Some(help)));
        }
        if self.table.is_none_or(|open| open.begun.is_none() && at >= self.guessed_to) {
            self.guess_section(at);
        }
        self.run(at, &words, counters, last || open);
    }

    /// Does what a command says. A last line that is cut may lack its end.
    fn run(&mut self, at: usize, words: &[Word<'t>], counters: Option<Counters>, cut: bool) {
        let Some(Open { table, dump, .. }) = self.table else {
            return self.remark(at, ("a rule outside of a table".to_owned(), None));
        };
        let family = self.dumps[dump].family;
        let origin = Origin { owner: self.source.file, item: self.lines[at].number };
        let mut command = command::parse(words, family, origin, self.dumps[dump].work_left());
        if command.only.is_some_and(|only| only != family) {
            return;
        }
        let table = command.table.as_deref().and_then(named_table).unwrap_or(table);
        for trouble in std::mem::take(&mut command.problems) {
            self.remark(at, trouble);
        }
        let mut lacks_end = false;
        for rule in &mut command.rules {
            rule.counters = counters.or(rule.counters);
            if cut && rule.target == command::DraftTarget::Known(Target::None) {
                // Without its end the rule would match more than it should.
                lacks_end = true;
                let end = unsupported("", String::new());
                rule.rule = rule.rule.clone().with(end);
                let unknown = Unsupported { name: "?".into(), options: "".into() };
                let target = Target::Unsupported(Box::new(unknown));
                rule.target = command::DraftTarget::Known(target);
            }
        }
        // The last line of what `-S` printed may just as well be whole.
        if lacks_end || cut && self.table.is_some_and(|open| open.begun.is_some()) {
            let help = "what is there of it is read";
            self.remark(
                at,
                ("the text ends in this line, which may be cut".to_owned(), Some(help)),
            );
        }
        let policy = (command.action == Some(Action::Policy)).then(|| command.chain.to_string());
        if let Err(trouble) = self.dumps[dump].apply(table, command) {
            self.remark(at, trouble);
        }
        // `iptables -S -v` prints the counters of a policy behind it.
        if let Some(name) = policy
            && let [.., option, packets, bytes] = words
            && option.text == "-c"
            && let (Ok(packets), Ok(bytes)) = (packets.text.parse(), bytes.text.parse())
        {
            self.dumps[dump].count(table, &name, Counters { packets, bytes });
        }
    }

    /// Finds out to which table the rules from a line on belong, as `-S` does not say it.
    fn guess_section(&mut self, from: usize) {
        let mut evidence = Evidence::default();
        let mut to = from;
        let mut rules = false;
        for line in &self.lines[from..] {
            let text = line.text.trim();
            let text = bracketed(text).map_or(text, |(_, rest)| rest.trim_start());
            if text.starts_with('*') || (!text.starts_with(['-', '#']) && !text.is_empty()) {
                break;
            }
            if text.starts_with("-P ") && rules {
                break;
            }
            rules |= text.starts_with("-A ");
            evidence.add(text);
            to += 1;
        }
        self.guessed_to = to.max(from + 1);
        let known = self.prompt_table.take().or(self.source.table);
        let (table, why) = match known {
            Some(table) => (table, None),
            None => evidence.table(),
        };
        if let Some(why) = why {
            let problem = format!("no table is named: it is taken as {table} {why}");
            self.remark(from, (problem, Some("name the table if that is wrong")));
        }
        let (family, backend) = self.header.or(self.program).unwrap_or((Family::V4, None));
        let told = self.header.or(self.program).is_some();
        let family = if told { family } else { self.guess_family(from) };
        let dump = self.dump(family, backend);
        self.table = Some(Open { table, dump, begun: None });
    }

    fn finish(mut self) -> Read<Vec<IptablesDump>> {
        if let Some(last) = self.lines.len().checked_sub(1) {
            self.close(last);
        }
        finish(self.lines, self.dumps, self.remarks)
    }
}

/// Makes rulesets of what was read.
pub(super) fn finish(
    lines: &[Line<'_>],
    dumps: Vec<Tables>,
    mut remarks: Vec<Remark>,
) -> Read<Vec<IptablesDump>> {
    let mut value = Vec::new();
    let of = |line: u32| {
        let known = (line as usize).checked_sub(1).and_then(|at| lines.get(at)).copied();
        known.unwrap_or(Line { number: line.max(1), text: "" })
    };
    for tables in dumps.into_iter().filter(|tables| !tables.is_empty()) {
        let (dump, findings) = tables.finish();
        for (line, (problem, help)) in findings {
            let remark = of(line).remark(problem);
            remarks.push(Remark { help: help.map(str::to_owned), ..remark });
        }
        value.push(dump);
    }
    if value.len() > 1 {
        let remark = of(1).remark(format!("the text holds {} rulesets", value.len()));
        remarks.push(remark.help("one for each back end and family; all of them are in force"));
    }
    in_order(&mut remarks);
    Read { value, remarks }
}

/// Returns family and back end of a header of `iptables-save`.
fn header(text: &str) -> Option<(Family, Option<Backend>)> {
    let rest = text.trim_start_matches(['#', ' ']).strip_prefix("Generated by ")?;
    let (program, rest) = rest.split_once(' ')?;
    let family = if program.starts_with("ip6tables") { Family::V6 } else { Family::V4 };
    if !program.starts_with("ip") && !program.starts_with("xtables") {
        return None;
    }
    let version = rest.trim_start().split(' ').next().unwrap_or("");
    let backend = if rest.contains("(nf_tables)") { Backend::NfTables } else { Backend::Legacy };
    Some((family, version.starts_with('v').then_some(backend)))
}

/// Returns family, back end and name of a program of iptables.
pub(super) fn program(word: &str) -> Option<(Family, Option<Backend>, &str)> {
    let name = word.rsplit('/').next()?;
    let rest = name.strip_prefix("ip6tables").or_else(|| name.strip_prefix("iptables"))?;
    let family = if name.starts_with("ip6") { Family::V6 } else { Family::V4 };
    if !(rest.is_empty() || rest.starts_with('-')) {
        return None;
    }
    let backend = match () {
        () if rest.starts_with("-nft") => Some(Backend::NfTables),
        () if rest.starts_with("-legacy") => Some(Backend::Legacy),
        () => None,
    };
    Some((family, backend, name))
}

pub(super) fn named_table(name: &str) -> Option<Table> {
    Table::ALL.into_iter().find(|table| table.name() == name)
}

/// Returns the counters of `[packets:bytes]` and what stands behind them.
fn bracketed(text: &str) -> Option<(Counters, &str)> {
    let (inside, rest) = text.strip_prefix('[')?.split_once(']')?;
    let (packets, bytes) = inside.split_once(':')?;
    let (packets, bytes) = (packets.parse().ok()?, bytes.parse().ok()?);
    Some((Counters { packets, bytes }, rest))
}

/// Returns the family that a line shows.
fn shown_family(text: &str) -> Option<Family> {
    let mut words = text.split_whitespace();
    while let Some(word) = words.next() {
        if !["-s", "-d", "-p", "--reject-with", "-m"].contains(&word) {
            continue;
        }
        let value = words.next()?;
        let octets = || value.split(['.', '/']).take(4).all(|part| part.parse::<u8>().is_ok());
        match word {
            "-s" | "-d" if value.matches(':').count() >= 2 => return Some(Family::V6),
            "-s" | "-d" if octets() => return Some(Family::V4),
            "-p" if ["icmpv6", "ipv6-icmp"].contains(&value) => return Some(Family::V6),
            "-p" if value == "icmp" => return Some(Family::V4),
            "-m" if ["icmp6", "hl"].contains(&value) => return Some(Family::V6),
            "--reject-with" if value.starts_with("icmp6-") => return Some(Family::V6),
            "--reject-with" if value.starts_with("icmp-") => return Some(Family::V4),
            _ => {}
        }
    }
    None
}

/// Returns the family that a row of a listing shows.
pub(super) fn shown_in_listing(text: &str) -> Option<Family> {
    text.split_whitespace().take(10).find_map(|word| {
        let word = word.trim_start_matches('!');
        let address = word.split('/').next().unwrap_or(word);
        if address.contains("::") && address.parse::<std::net::Ipv6Addr>().is_ok() {
            return Some(Family::V6);
        }
        address.parse::<std::net::Ipv4Addr>().is_ok().then_some(Family::V4)
    })
}

/// What the rules of a table that is not named show of it.
#[derive(Default)]
struct Evidence {
    hooks: Vec<Hook>,
    only_in: Option<(Table, String)>,
}

impl Evidence {
    fn add(&mut self, text: &str) {
        let mut words = text.split_whitespace();
        while let Some(word) = words.next() {
            match word {
                "-P" | "-A" | "-I" => {
                    let name = words.next().unwrap_or("");
                    let hook = Hook::ALL.into_iter().find(|hook| hook.chain_name() == name);
                    self.hooks.extend(hook.filter(|hook| !self.hooks.contains(hook)));
                }
                "-j" => {
                    let name = words.next().unwrap_or("");
                    let only_in = match name {
                        "DNAT" | "SNAT" | "MASQUERADE" | "REDIRECT" | "NETMAP" => Table::Nat,
                        "REJECT" => Table::Filter,
                        "CT" | "NOTRACK" => Table::Raw,
                        "TPROXY" | "TTL" | "HL" | "DSCP" | "TOS" | "ECN" => Table::Mangle,
                        _ => continue,
                    };
                    if self.only_in.is_none() {
                        self.only_in = Some((only_in, name.to_owned()));
                    }
                }
                _ => {}
            }
        }
    }

    /// Returns the likeliest table and why.
    fn table(&self) -> (Table, Option<String>) {
        if let Some((table, target)) = &self.only_in {
            return (*table, Some(format!("because of its target {target}")));
        }
        let fits = |table: &Table| self.hooks.iter().all(|hook| table.hooks().contains(*hook));
        // The one that shows itself without `-t` first, then the one with the fewest chains.
        let order = [Table::Filter, Table::Raw, Table::Nat, Table::Mangle];
        match order.into_iter().find(fits) {
            Some(table) if !self.hooks.is_empty() => {
                (table, Some("because of its built-in chains".to_owned()))
            }
            _ => (Table::Filter, Some("as iptables does".to_owned())),
        }
    }
}
