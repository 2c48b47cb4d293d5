//! What `iptables -L` prints: rules in columns, behind which matches and targets say in words
//! what they do.

use std::collections::BTreeSet;

use super::build::{BOTH_ANSWERS, build_match, build_target, unsupported};
use super::command::{self, Draft, DraftTarget};
use super::matches::device;
use super::options::{self, TARGETS};
use super::phrase::{self, Phrases};
use super::section::{named_table, program, shown_in_listing};
use super::tables::Tables;
use super::{Counters, IptablesDump, Source, value};
use crate::hook::{Hook, Table};
use crate::read::{Line, Read, Remark, lines, pasted_command};
use crate::rule::{Backend, Match, Origin, Rule, Target};
use crate::tuple::{Family, Protocol};

/// Reads what `iptables -L` printed, best with `-n -v --line-numbers`.
///
/// A listing names no table: it is told by chains and targets, with a remark, unless the source
/// or a pasted prompt says it. Without `-v` it shows no devices, and without `-n` it shows names
/// in place of addresses; both are remarked upon.
pub fn iptables_listing(text: &str, source: Source) -> Read<Vec<IptablesDump>> {
    let lines: Vec<Line<'_>> = lines(text).collect();
    let mut reader = Reader {
        lines: &lines,
        source,
        dumps: Vec::new(),
        program: None,
        prompt_table: None,
        section: None,
        columns: Columns::default(),
        said: false,
        remarks: Vec::new(),
    };
    for at in 0..lines.len() {
        reader.line(at);
    }
    reader.finish()
}

/// The columns of a listing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Columns {
    numbers: bool,
    counters: bool,
    devices: bool,
}

/// The table whose chains are being read.
struct Section {
    table: Table,
    dump: usize,
    /// The chain whose rules are being read.
    chain: String,
    /// The chains so far, and whether a user chain was among them.
    seen: BTreeSet<String>,
    users: bool,
}

struct Reader<'l, 't> {
    lines: &'l [Line<'t>],
    source: Source,
    dumps: Vec<Tables>,
    program: Option<(Family, Option<Backend>)>,
    prompt_table: Option<Table>,
    section: Option<Section>,
    columns: Columns,
    /// Whether it was said that devices are missing.
    said: bool,
    remarks: Vec<Remark>,
}

/// A chain's heading: its name, and for a built-in chain its policy with counters.
struct Heading<'t> {
    name: &'t str,
    policy: Option<(&'t str, Option<Counters>)>,
}

impl<'t> Reader<'_, 't> {
    fn remark(&mut self, at: usize, problem: impl Into<String>, help: Option<&str>) {
        let remark = self.lines[at].remark(problem);
        self.remarks.push(Remark { help: help.map(str::to_owned), ..remark });
    }

    fn line(&mut self, at: usize) {
        let text = self.lines[at].text.trim();
        if let Some(heading) = heading(text) {
            return self.chain(at, &heading);
        }
        if let Some(columns) = columns(text) {
            self.columns = columns;
            if !columns.devices && !self.said {
                self.said = true;
                let problem = "a listing without -v does not show devices (-i, -o)";
                let help = "rules are read as if they had none: list with -n -v, or use \
                            iptables-save";
                self.remark(at, problem, Some(help));
            }
            return;
        }
        if text.is_empty() {
            return;
        }
        if let Some(called) = pasted_command(text).or_else(|| program_line(text)) {
            return self.prompt(called);
        }
        if text.starts_with('#') {
            return;
        }
        self.rule(at, text);
    }

    fn prompt(&mut self, called: &str) {
        self.section = None;
        let words: Vec<&str> = called.split_whitespace().filter(|word| *word != "sudo").collect();
        let Some((family, backend, _)) = words.first().and_then(|word| program(word)) else {
            (self.program, self.prompt_table) = (None, None);
            return;
        };
        self.program = Some((family, backend));
        let option = words.iter().position(|word| ["-t", "--table"].contains(word));
        let named = option.and_then(|at| words.get(at + 1)).and_then(|name| named_table(name));
        self.prompt_table = Some(named.unwrap_or(Table::Filter));
    }

    fn chain(&mut self, at: usize, heading: &Heading<'t>) {
        let again = |section: &Section| {
            let builtin = heading.policy.is_some();
            (builtin && section.users) || section.seen.contains(heading.name)
        };
        if self.section.as_ref().is_none_or(again) {
            self.begin(at);
        }
        let Some(section) = &mut self.section else { return };
        heading.name.clone_into(&mut section.chain);
        section.seen.insert(heading.name.to_owned());
        section.users |= heading.policy.is_none();
        let (policy, counters) = heading.policy.unwrap_or(("-", None));
        let declared =
            self.dumps[section.dump].declare(section.table, heading.name, policy, counters);
        if let Err((problem, help)) = declared {
            self.remark(at, problem, help);
        }
    }

    /// Begins a table at a chain's heading.
    fn begin(&mut self, from: usize) {
        let mut shown = None;
        let mut hooks: Vec<Hook> = Vec::new();
        let mut users = false;
        let mut only_in = None;
        let mut seen: BTreeSet<&str> = BTreeSet::new();
        for line in &self.lines[from..] {
            let text = line.text.trim();
            if let Some(heading) = heading(text) {
                let hook = Hook::ALL.into_iter().find(|hook| hook.chain_name() == heading.name);
                if (heading.policy.is_some() && users) || !seen.insert(heading.name) {
                    break;
                }
                hooks.extend(hook.filter(|_| heading.policy.is_some()));
                users |= heading.policy.is_none();
                continue;
            }
            if pasted_command(text).is_some() {
                break;
            }
            shown = shown.or_else(|| shown_in_listing(text));
            only_in = only_in.or_else(|| only_table(text));
        }
        let family = self.program.map(|(family, _)| family).or(self.source.family).or(shown);
        let family = family.unwrap_or_default();
        let backend = self.program.and_then(|(_, backend)| backend);
        let table = match self.prompt_table.take().or(self.source.table) {
            Some(table) => table,
            None => {
                let fits = |table: &Table| hooks.iter().all(|hook| table.hooks().contains(*hook));
                let order = [Table::Filter, Table::Raw, Table::Nat, Table::Mangle];
                let table = only_in.or_else(|| order.into_iter().find(fits));
                let table = table.unwrap_or(Table::Filter);
                let problem = format!("no table is named: it is taken as {table}");
                self.remark(from, problem, Some("name the table if that is wrong"));
                table
            }
        };
        let like = |dump: &Tables| dump.family == family && dump.backend == backend;
        let dump = self.dumps.iter().position(like).unwrap_or_else(|| {
            // A listing has no commands.
            self.dumps.push(Tables::new(family, backend, 0));
            self.dumps.len() - 1
        });
        if self.dumps[dump].begin(table) {
            let problem = format!("table {table} for the second time");
            self.remark(from, problem, Some("what stands before is forgotten"));
        }
        let (chain, seen) = (String::new(), BTreeSet::new());
        self.section = Some(Section { table, dump, chain, seen, users: false });
    }

    fn rule(&mut self, at: usize, text: &'t str) {
        let Some(section) = &self.section else {
            return self.remark(at, "the line is not understood", None);
        };
        let (table, dump, chain) = (section.table, section.dump, section.chain.clone());
        let family = self.dumps[dump].family;
        let origin = Origin { owner: self.source.file, item: self.lines[at].number };
        match Row::parse(text, self.columns) {
            Some(row) => {
                let (draft, problems) = row.draft(family, origin);
                for (problem, help) in problems {
                    self.remark(at, problem, help);
                }
                self.append(dump, table, &chain, draft);
            }
            None => {
                // A cut row may be a rule all the same.
                let rule = Rule::new(origin).with(unsupported("", text.to_owned()));
                let unknown = crate::rule::Unsupported { name: "?".into(), options: "".into() };
                let target = DraftTarget::Known(Target::Unsupported(Box::new(unknown)));
                self.remark(at, "the row is not understood", Some(BOTH_ANSWERS));
                self.append(dump, table, &chain, Draft { rule, target, counters: None });
            }
        }
    }

    fn append(&mut self, dump: usize, table: Table, chain: &str, draft: Draft) {
        let complete = self.columns.devices;
        let Some(line) = self.dumps[dump].append(table, chain, draft, complete) else { return };
        let at = (line as usize).saturating_sub(1).min(self.lines.len() - 1);
        let problem = "no packet passes this rule, yet others follow: the listing may leave out \
                       a condition of it";
        let help = if complete { "compare it with iptables-save" } else { BOTH_ANSWERS };
        self.remark(at, problem, Some(help));
    }

    fn finish(self) -> Read<Vec<IptablesDump>> {
        super::section::finish(self.lines, self.dumps, self.remarks)
    }
}

/// Returns the line if it calls iptables.
fn program_line(text: &str) -> Option<&str> {
    let first = text.split_whitespace().find(|word| *word != "sudo")?;
    program(first).map(|_| text)
}

/// Returns what a chain's heading says: `Chain NAME (policy ACCEPT 1 packets, 60 bytes)` or
/// `Chain NAME (2 references)`.
fn heading(text: &str) -> Option<Heading<'_>> {
    let rest = text.strip_prefix("Chain ")?;
    let (name, rest) = rest.split_once(" (")?;
    let inside = rest.split(')').next()?;
    let Some(policy) = inside.strip_prefix("policy ") else {
        return inside.contains("references").then_some(Heading { name, policy: None });
    };
    let words: Vec<&str> = policy.split_whitespace().collect();
    let counters = match words.as_slice() {
        [_, packets, "packets,", bytes, "bytes", ..] => rounded(packets).zip(rounded(bytes)),
        _ => None,
    };
    let counters = counters.map(|(packets, bytes)| Counters { packets, bytes });
    Some(Heading { name, policy: Some((words.first()?, counters)) })
}

/// Returns the columns, if the line names them.
fn columns(text: &str) -> Option<Columns> {
    let mut words = text.split_whitespace().peekable();
    let mut columns = Columns { numbers: words.next_if_eq(&"num").is_some(), ..Columns::default() };
    columns.counters = words.next_if_eq(&"pkts").is_some() && words.next_if_eq(&"bytes").is_some();
    if words.next()? != "target" || words.next()? != "prot" {
        return None;
    }
    words.next_if_eq(&"opt");
    columns.devices = words.next_if_eq(&"in").is_some() && words.next_if_eq(&"out").is_some();
    (words.next()? == "source" && words.next()? == "destination").then_some(columns)
}

/// Returns a count, which may be rounded to thousands, millions and so on.
fn rounded(text: &str) -> Option<u64> {
    let (digits, unit) = match text.as_bytes().last()? {
        b'K' => (&text[..text.len() - 1], 1_000),
        b'M' => (&text[..text.len() - 1], 1_000_000),
        b'G' => (&text[..text.len() - 1], 1_000_000_000),
        b'T' => (&text[..text.len() - 1], 1_000_000_000_000),
        _ => (text, 1u64),
    };
    digits.parse::<u64>().ok()?.checked_mul(unit)
}

/// Returns the table that a row's target is accepted in, if it is only one.
fn only_table(text: &str) -> Option<Table> {
    text.split_whitespace().take(4).find_map(|word| match word {
        "DNAT" | "SNAT" | "MASQUERADE" | "REDIRECT" | "NETMAP" => Some(Table::Nat),
        "REJECT" => Some(Table::Filter),
        "CT" | "NOTRACK" => Some(Table::Raw),
        "TPROXY" | "TTL" | "HL" | "DSCP" | "TOS" | "ECN" => Some(Table::Mangle),
        _ => None,
    })
}

/// A rule's columns.
struct Row<'t> {
    counters: Option<Counters>,
    target: Option<&'t str>,
    protocol: &'t str,
    option: &'t str,
    input: &'t str,
    output: &'t str,
    source: &'t str,
    destination: &'t str,
    rest: &'t str,
}

impl<'t> Row<'t> {
    fn parse(text: &'t str, columns: Columns) -> Option<Row<'t>> {
        let mut rest = text;
        let mut next = || {
            rest = rest.trim_start();
            let end = rest.find(char::is_whitespace).unwrap_or(rest.len());
            let (word, behind) = rest.split_at(end);
            rest = behind;
            (!word.is_empty()).then_some(word)
        };
        if columns.numbers {
            next()?.parse::<u32>().ok()?;
        }
        let counters = match columns.counters {
            true => Some(Counters { packets: rounded(next()?)?, bytes: rounded(next()?)? }),
            false => None,
        };
        // A rule without target leaves that column blank; old listings of IPv6 leave `opt` blank.
        let options = ["--", "-f", "!f"];
        let (first, second) = (next()?, next()?);
        let is_protocol = |text: &str| Protocol::parse(strip_not(text).0).is_some();
        let mut waiting = None;
        let (target, protocol, option) = if options.contains(&second) {
            (None, first, second)
        } else {
            let third = next()?;
            if options.contains(&third) {
                (Some(first), second, third)
            } else if is_protocol(second) {
                waiting = Some(third);
                (Some(first), second, "--")
            } else {
                return None;
            }
        };
        let mut next = || waiting.take().or_else(&mut next);
        let (input, output) = if columns.devices { (next()?, next()?) } else { ("*", "*") };
        let (source, destination) = (next()?, next()?);
        let rest = rest.trim();
        Some(Row { counters, target, protocol, option, input, output, source, destination, rest })
    }

    fn draft(&self, family: Family, origin: Origin) -> (Draft, Vec<command::Trouble>) {
        let mut problems = Vec::new();
        let mut rule = Rule::new(origin);
        for (option, text) in [("-s", self.source), ("-d", self.destination)] {
            match address(family, text) {
                Ok(None) => {}
                Ok(Some((prefix, invert))) if option == "-s" => {
                    rule = rule.with(Match::Source { prefix, invert });
                }
                Ok(Some((prefix, invert))) => {
                    rule = rule.with(Match::Destination { prefix, invert });
                }
                Err(_) => {
                    let problem = format!("{text} is a name: which address it has is not said");
                    problems.push((problem, Some("list with -n")));
                    rule = rule.with(unsupported("", negated(option, text)));
                }
            }
        }
        for (option, text) in [("-i", self.input), ("-o", self.output)] {
            let (text, invert) = strip_not(text);
            if ["*", "any"].contains(&text) {
                continue;
            }
            match device(text, invert) {
                Ok(None) => {}
                Ok(Some(device)) if option == "-i" => {
                    rule = rule.with(Match::InDevice(Box::new(device)));
                }
                Ok(Some(device)) => rule = rule.with(Match::OutDevice(Box::new(device))),
                Err(problem) => {
                    problems.push((problem, None));
                    rule = rule.with(unsupported("", negated(option, text)));
                }
            }
        }
        let (text, invert) = strip_not(self.protocol);
        match Protocol::parse(text) {
            Some(Protocol(0)) if !invert => {}
            Some(protocol) => {
                rule = rule.with(Match::Protocol { protocol, invert });
            }
            None => {
                problems.push((format!("{text:?} is no protocol"), None));
                rule = rule.with(unsupported("", negated("-p", text)));
            }
        }
        match self.option {
            "-f" => rule = rule.with(Match::Fragment { invert: false }),
            "!f" => rule = rule.with(Match::Fragment { invert: true }),
            _ => {}
        }
        let extension = self.target.and_then(|name| options::find(TARGETS, name));
        let mut phrases = Phrases::new(self.rest, self.target, origin.item);
        let said = phrase::read(&mut phrases);
        for instance in &said.matches {
            let (condition, trouble) = build_match(family, instance);
            problems.extend(trouble);
            rule = rule.with(condition);
        }
        if !said.unknown.is_empty() {
            let problem = format!("{:?} is not understood", said.unknown);
            problems.push((problem, Some(BOTH_ANSWERS)));
            rule = rule.with(unsupported("", said.unknown));
        }
        problems.extend(said.assumed);
        let target = match (self.target, said.goto) {
            (None, _) => DraftTarget::Known(Target::None),
            (Some(chain), true) => DraftTarget::Goto(chain.to_owned()),
            (Some(name), false) => {
                let mut instance = options::Instance::new(name.into(), extension);
                instance.given = said.target;
                instance.raw = said.target_raw;
                let (target, trouble) = build_target(family, &instance);
                problems.extend(trouble);
                target
            }
        };
        (Draft { rule, target, counters: self.counters }, problems)
    }
}

fn strip_not(text: &str) -> (&str, bool) {
    match text.strip_prefix('!') {
        Some(rest) => (rest, true),
        None => (text, false),
    }
}

fn negated(option: &str, text: &str) -> String {
    match text.strip_prefix('!') {
        Some(text) => format!("! {option} {text}"),
        None => format!("{option} {text}"),
    }
}

/// Returns the addresses of a column, if it names any.
fn address(family: Family, text: &str) -> Result<Option<(crate::Prefix, bool)>, value::Refused> {
    let (text, invert) = strip_not(text);
    if text == "anywhere" {
        return Ok(None);
    }
    let prefix = value::prefix(family, text)?;
    Ok((invert || !prefix.is_empty()).then_some((prefix, invert)))
}
