//! The report as text that can be pasted into a conversation.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use netfilter_model::exact::Share;

use super::follow::Symptom;
use super::report::{Alternative, Found, PathStep, Place, Report, StepKind, Unread, Verdict};

/// Lines are not longer, unless a word is.
const WIDTH: usize = 100;
/// So many kinds of ways are shown.
const GROUPS_MAX: usize = 50;
/// So many steps of a way are shown.
const STEPS_MAX: usize = 400;
/// So many alternatives are shown.
const ALTERNATIVES_MAX: usize = 8;
/// So many things that were not understood are shown.
const UNREAD_MAX: usize = 12;
/// So many members of a group are listed.
const MEMBERS_MAX: usize = 100;

/// Returns the report as text; `styled` adds colours.
pub(super) fn render(report: &Report, styled: bool) -> String {
    let mut out = Text { out: String::new(), styled, many_files: report.many_files };
    out.line(0, &format!("{}, {}", report.packet, report.entry));
    let groups = groups(&report.outcomes);
    for group in groups.iter().take(GROUPS_MAX) {
        out.out.push('\n');
        out.group(group);
    }
    if let Some(more) = groups.get(GROUPS_MAX..).filter(|more| !more.is_empty()) {
        let rest: Share = more.iter().map(|group| &group.probability).sum();
        out.out.push('\n');
        out.line(0, &format!("{}  {} more ways; see -o json", percent(&rest), more.len()));
    }
    out.alternatives(report);
    out.list("not followed", report.limits.iter().cloned());
    out.list("assumed", report.assumptions.iter().cloned());
    let (matter, rest): (Vec<&Unread>, Vec<&Unread>) =
        report.unsupported.iter().partition(|unread| unread.matters);
    let unread = matter.iter().take(UNREAD_MAX).map(|unread| {
        let at = unread
            .place
            .as_ref()
            .map_or_else(String::new, |place| format!("{}, ", shown(place, report.many_files)));
        format!("{at}{}: {}", unread.problem, shortened(&unread.text, 160))
    });
    let left = matter.len().saturating_sub(UNREAD_MAX);
    let more = (left > 0).then(|| format!("and {left} more; see -o json"));
    let met = rest.first().map(|first| {
        let place = first.place.as_ref();
        let from = place.map_or_else(String::new, |place| shown(place, report.many_files));
        match rest.len() {
            1 => format!("{from}, which this packet does not meet: {}", first.problem),
            n => format!(
                "{n} more lines that this packet does not meet, from {from} on; see -o json"
            ),
        }
    });
    out.list("not understood", unread.chain(more).chain(met));
    out.out
}

/// Outcomes that differ only in where they lead.
struct Group<'r> {
    members: Vec<&'r Found>,
    probability: Share,
}

fn groups(outcomes: &[Found]) -> Vec<Group<'_>> {
    let mut groups: Vec<Group<'_>> = Vec::new();
    let mut known = BTreeMap::new();
    for found in outcomes {
        // Only what is translated to different places goes together.
        let place = found.dnat.as_ref().map(|_| *known.entry(looks(found)).or_insert(groups.len()));
        match place.and_then(|place| groups.get_mut(place)) {
            Some(group) => {
                let sum = std::mem::replace(&mut group.probability, Share::zero());
                group.probability = sum + &found.probability;
                group.members.push(found);
            }
            None => {
                let probability = found.probability.clone();
                groups.push(Group { members: vec![found], probability });
            }
        }
    }
    groups
}

/// Returns what outcomes have in common that are told together.
fn looks(found: &Found) -> impl Ord + use<'_> {
    let told = (found.verdict, found.reject_with, found.symptom);
    let steps = found.path.iter().map(|step| (step.kind, step.mark));
    // The place of a drop tells apart what else is alike.
    let end = (found.verdict != Verdict::Accept).then_some(&found.end);
    (told, found.snat.as_ref(), end, steps.collect::<Vec<(StepKind, u32)>>())
}

/// Returns what makes two outcomes the same for whoever asks.
fn said(found: &Found) -> impl PartialEq + use<> {
    let told = (found.verdict, found.reject_with, found.symptom);
    (found.probability.clone(), told, found.dnat.clone(), found.snat.clone())
}

struct Text {
    out: String,
    styled: bool,
    many_files: bool,
}

impl Text {
    /// Writes words behind an indentation; what does not fit goes on below, indented more.
    fn line(&mut self, indent: usize, text: &str) {
        self.hanging(indent, "", text, 4);
    }

    /// Writes words behind a label; further lines are indented by `more` than the first word.
    fn hanging(&mut self, indent: usize, label: &str, text: &str, more: usize) {
        let _ = write!(self.out, "{:indent$}{label}", "");
        let start = indent + label.chars().count();
        let mut column = start;
        for (i, word) in text.split(' ').enumerate() {
            let len = word.chars().count();
            if i > 0 {
                if column + 1 + len > WIDTH && column > start + 8 {
                    let _ = write!(self.out, "\n{:1$}", "", start + more);
                    column = start + more;
                } else {
                    self.out.push(' ');
                    column += 1;
                }
            }
            self.out.push_str(word);
            column += len;
        }
        self.out.push('\n');
    }

    fn paint(&self, text: &str, code: &str) -> String {
        if self.styled { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
    }

    fn head(&self, found: &Found, probability: &Share) -> String {
        let mut head = percent(probability);
        let exact = probability.to_string();
        if exact.len() <= 24 && exact != "1/1" {
            let _ = write!(head, " ({exact})");
        }
        let colour = match (found.verdict, found.symptom) {
            (Verdict::Accept, Symptom::Ok) => "1;32",
            (Verdict::Accept, _) => "1;33",
            _ => "1;31",
        };
        let mut verdict = found.verdict.name().unwrap_or("not followed to its end").to_owned();
        if let Some(with) = found.reject_with {
            let _ = write!(verdict, " with {with}");
        }
        let _ = write!(head, "  {}", self.paint(&verdict, colour));
        head
    }

    fn group(&mut self, group: &Group<'_>) {
        let first = group.members[0];
        let others = group.members.len() - 1;
        let mut head = self.head(first, &group.probability);
        match (&first.dnat, others) {
            (Some(dnat), 0) => {
                let _ = write!(head, ", DNAT to {dnat}");
            }
            (Some(_), _) => {
                let _ = write!(head, ", DNAT to one of {}", others + 1);
            }
            (None, _) => {}
        }
        if let Some(snat) = &first.snat {
            let _ = write!(head, ", SNAT to {snat}");
        }
        if let Some(symptom) = first.symptom.name() {
            let _ = write!(head, ", the client sees: {}", self.paint(symptom, "1"));
        }
        self.line(0, &head);
        self.path(&first.path);
        let left_out = first.path.len().saturating_sub(STEPS_MAX) as u64 + first.steps_left_out;
        if left_out > 0 {
            self.line(4, &format!("and {left_out} more steps"));
        }
        self.line(2, &format!("{}; {}", first.end, first.because));
        if others > 0 {
            self.members(group);
        }
    }

    fn members(&mut self, group: &Group<'_>) {
        let shown = group.members.iter().take(MEMBERS_MAX);
        let shares: Vec<String> = shown.clone().map(|found| percent(&found.probability)).collect();
        let equal = shares.iter().all(|share| *share == shares[0]);
        let each = if equal { format!(", each {}", shares[0]) } else { String::new() };
        self.line(2, &format!("this is the way of the first; the others go likewise{each}:"));
        let items: Vec<String> = shown
            .zip(shares)
            .map(|(found, share)| {
                let dnat = found.dnat.as_deref().unwrap_or("-");
                if equal { dnat.to_owned() } else { format!("{dnat} {share}") }
            })
            .collect();
        let width = items.iter().map(|item| item.chars().count()).max().unwrap_or(0) + 3;
        let columns = ((WIDTH - 4) / width).max(1);
        for row in items.chunks(columns) {
            let cells: Vec<String> = row.iter().map(|item| format!("{item:width$}")).collect();
            let _ = writeln!(self.out, "    {}", cells.concat().trim_end());
        }
        if let Some(more) = group.members.len().checked_sub(MEMBERS_MAX).filter(|more| *more > 0) {
            self.line(4, &format!("and {more} more; see -o json"));
        }
    }

    fn path(&mut self, path: &[PathStep]) {
        let shown =
            |step: &PathStep| step.place.as_ref().map(|place| shown(place, self.many_files));
        let labels: Vec<String> = path.iter().map(|step| shown(step).unwrap_or_default()).collect();
        let width = labels.iter().map(|label| label.chars().count()).max().unwrap_or(0);
        let mut mark = path.first().map_or(0, |step| step.mark);
        let mut routed = false;
        for (step, label) in path.iter().zip(labels).take(STEPS_MAX) {
            let mut text = step.text.clone().unwrap_or_default();
            match step.kind {
                StepKind::Hook => {
                    let hook = self.paint(step.hook.chain_name(), "1");
                    let mark = if step.mark == 0 {
                        String::new()
                    } else {
                        format!(", mark {:#x}", step.mark)
                    };
                    let _ = writeln!(self.out, "  {hook}  {} > {}{mark}", step.src, step.dst);
                    routed = false;
                    continue;
                }
                StepKind::Rule => {
                    let table = step.table.as_deref().unwrap_or_default();
                    let chain = step.chain.as_deref().unwrap_or_default();
                    let number = step.rule.unwrap_or_default();
                    text = format!("{table} {chain} {number}:  {}", without_chain(&text, chain));
                    if step.mark != mark {
                        let _ = write!(text, "  [mark {mark:#x} -> {:#x}]", step.mark);
                    }
                }
                StepKind::Policy => {
                    let table = step.table.as_deref().unwrap_or_default();
                    let chain = step.chain.as_deref().unwrap_or_default();
                    text = format!("{table} {chain}:  policy {text}");
                }
                StepKind::Route => {
                    text = format!("{}:  {text}", if routed { "route again" } else { "route" });
                    routed = true;
                }
                StepKind::Conntrack => text = format!("conntrack:  {text}"),
                StepKind::Nat => text = format!("nat:  {text}"),
            }
            mark = step.mark;
            self.hanging(4, &format!("{label:>width$}  "), &text, 4);
        }
    }

    fn alternatives(&mut self, report: &Report) {
        let (same, other): (Vec<&Alternative>, Vec<&Alternative>) =
            report.alternatives.iter().partition(|alternative| {
                alternative.outcomes.iter().map(said).eq(report.outcomes.iter().map(said))
            });
        for alternative in other.iter().take(ALTERNATIVES_MAX) {
            self.out.push('\n');
            self.alternative(alternative);
        }
        let more = other.len().saturating_sub(ALTERNATIVES_MAX);
        if more > 0 {
            self.line(0, &format!("\nand {more} more combinations of such rules; see -o json"));
        }
        if report.alternatives_left > 0 {
            let left = report.alternatives_left;
            self.line(0, &format!("\nat least {left} more combinations were not followed"));
        }
        let mut rules: Vec<String> = Vec::new();
        for assumed in same.iter().flat_map(|alternative| &alternative.assuming) {
            let place = assumed.place.as_ref();
            let rule = place.map_or_else(|| assumed.text.clone(), |p| shown(p, self.many_files));
            if assumed.matches && !rules.contains(&rule) {
                rules.push(rule);
            }
        }
        if !rules.is_empty() {
            let rules = rules.join(", ");
            self.out.push('\n');
            self.line(0, &format!("the same whether or not these match: {rules}"));
        }
    }

    fn alternative(&mut self, alternative: &Alternative) {
        let holding = alternative.assuming.iter().filter(|assumed| assumed.matches);
        for (i, assumed) in holding.enumerate() {
            let place = assumed.place.as_ref();
            let place =
                place.map_or_else(String::new, |place| shown(place, self.many_files) + "  ");
            let word = if i == 0 { "if this matches:" } else { "and this:" };
            self.line(0, &format!("{word}  {place}{}", assumed.text));
        }
        for group in groups(&alternative.outcomes) {
            let first = group.members[0];
            let mut head = self.head(first, &group.probability);
            match (&first.dnat, group.members.len()) {
                (Some(dnat), 1) => {
                    let _ = write!(head, ", DNAT to {dnat}");
                }
                (Some(_), n) => {
                    let _ = write!(head, ", DNAT to one of {n}");
                }
                (None, _) => {}
            }
            if let Some(symptom) = first.symptom.name() {
                let _ = write!(head, ", the client sees: {}", self.paint(symptom, "1"));
            }
            self.line(2, &format!("{head}; {}", first.end));
        }
    }

    fn list(&mut self, title: &str, items: impl Iterator<Item = String>) {
        for (i, item) in items.enumerate() {
            if i == 0 {
                let _ = writeln!(self.out, "\n{}", self.paint(&format!("{title}:"), "1"));
            }
            self.hanging(2, "- ", &item, 0);
        }
    }
}

/// Returns a rule's text without the `-A CHAIN` that stands before it already.
fn without_chain<'t>(text: &'t str, chain: &str) -> &'t str {
    let rest = text.split_once("-A ").and_then(|(_, rest)| rest.strip_prefix(chain));
    rest.map_or(text, str::trim_start)
}

fn shown(place: &Place, many_files: bool) -> String {
    if many_files {
        format!("{}:{}", place.file, place.line)
    } else {
        format!("line {}", place.line)
    }
}

fn shortened(text: &str, len: usize) -> String {
    if text.chars().count() <= len {
        return text.to_owned();
    }
    text.chars().take(len).chain(['…']).collect()
}

/// Returns a probability in per cent, to four digits.
fn percent(share: &Share) -> String {
    let value = share.to_f64() * 100.0;
    if *share == Share::one() {
        return "100 %".to_owned();
    }
    let decimals = if value >= 10.0 {
        2
    } else if value >= 1.0 {
        3
    } else {
        4
    };
    if value < 0.000_1 { format!("{value:.1e} %") } else { format!("{value:.decimals$} %") }
}
