//! Readers of what tools print and people paste.
//!
//! A reader takes a text and never fails: what it cannot use becomes a [`Remark`] with its line,
//! and the rest is read. A rule that is only partly understood keeps the part that is not as
//! `Unsupported`, so that evaluation follows both answers; it is neither dropped nor widened.

mod conntrack;
mod ipset;
mod iptables;
mod ipvs;
mod nft;

use std::collections::BTreeSet;

pub use conntrack::conntrack_entries;
pub use ipset::ipset;
pub use iptables::{
    Counters, IptablesDump, Source, WithCounters, iptables_listing, iptables_rules,
};
pub use ipvs::ipvsadm;
pub use nft::{NftDump, nft_dump, nft_ruleset};

/// What a reader could not use, and where it stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Remark {
    /// The line, counted from 1.
    pub line: u32,
    /// The line itself, without blanks at its ends.
    pub text: String,
    /// What is wrong with it, or what was assumed.
    pub problem: String,
    /// What the reader of the remark can do.
    pub help: Option<String>,
}

/// What a reader made of a text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Read<T> {
    /// What was understood.
    pub value: T,
    /// What was not, in the order of lines.
    pub remarks: Vec<Remark>,
}

/// A line of a text.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Line<'t> {
    /// Its number, counted from 1.
    pub(crate) number: u32,
    /// The line without its end.
    pub(crate) text: &'t str,
}

impl<'t> Line<'t> {
    /// Returns a remark about the line.
    pub(crate) fn remark(self, problem: impl Into<String>) -> Remark {
        /// Longer lines are cut: a remark is to be read.
        const TEXT_LEN_MAX: usize = 400;
        let text: String = self.text.trim().chars().take(TEXT_LEN_MAX).collect();
        Remark { line: self.number, text, problem: problem.into(), help: None }
    }
}

impl Remark {
    /// Returns the remark with a sentence of help.
    pub(crate) fn help(self, help: impl Into<String>) -> Remark {
        Remark { help: Some(help.into()), ..self }
    }
}

/// Puts remarks in the order of lines, and leaves out what is said of a line already: one line may
/// make many rules.
pub(crate) fn in_order(remarks: &mut Vec<Remark>) {
    remarks.sort_by_key(|remark| remark.line);
    let mut line = 0;
    let mut said = BTreeSet::new();
    remarks.retain(|remark| {
        if std::mem::replace(&mut line, remark.line) != remark.line {
            said.clear();
        }
        said.insert(remark.problem.clone())
    });
}

/// Returns the lines of a text, without the carriage returns of other systems, byte order marks
/// and the colours of terminals' listings left to the reader.
pub(crate) fn lines(text: &str) -> impl Iterator<Item = Line<'_>> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    text.lines().zip(1u32..).map(|(text, number)| {
        let text = text.trim_end_matches('\r');
        Line { number, text }
    })
}

/// Returns the command behind a shell's prompt, if the line is a pasted prompt:
/// `$ sudo iptables-save`, `root@node:~# iptables -t nat -L`, `[root@node ~]# …`.
pub(crate) fn pasted_command(line: &str) -> Option<&str> {
    let line = line.trim();
    if let Some(command) = line.strip_prefix("$ ").or_else(|| line.strip_prefix("% ")) {
        return Some(command.trim_start());
    }
    if let Some(command) = line.strip_prefix("# ") {
        return is_command(command).then_some(command);
    }
    let end = line.find(['#', '$'])?;
    let (prompt, command) = (&line[..end], &line[end + 1..]);
    let plain = prompt.len() <= 100 && !prompt.starts_with(['-', ':', '*']);
    let like_a_prompt = prompt.contains(['@', '~', ']']) || prompt.ends_with(['/', ':']);
    let apart = command.is_empty() || command.starts_with(' ');
    (plain && like_a_prompt && apart && !prompt.contains('"')).then(|| command.trim_start())
}

/// Returns whether a line begins with the name of a program whose output is read here.
fn is_command(line: &str) -> bool {
    const PROGRAMS: [&str; 9] = [
        "iptables",
        "ip6tables",
        "nft",
        "ipset",
        "ipvsadm",
        "conntrack",
        "cat",
        "kubectl",
        "docker",
    ];
    let words = line.split_whitespace().filter(|word| *word != "sudo");
    let program = words.map(|word| word.rsplit('/').next().unwrap_or(word)).next();
    let known = |program: &str| {
        PROGRAMS.iter().any(|known| {
            program.strip_prefix(known).is_some_and(|rest| rest.is_empty() || rest.starts_with('-'))
        })
    };
    program.is_some_and(known)
}
