//! Splitting a line into words, as iptables-restore does.

use std::borrow::Cow;

/// A word of a line.
#[derive(Clone, Debug)]
pub(super) struct Word<'t> {
    /// As it is written, quotes included.
    pub(super) raw: &'t str,
    /// What it says.
    pub(super) text: Cow<'t, str>,
}

impl Word<'_> {
    /// Returns whether the word is a `!` of its own.
    pub(super) fn is_not(&self) -> bool {
        self.raw == "!"
    }
}

/// Splits a line at blanks; double quotes group, a backslash takes the next character as it is.
/// Returns also whether a quote stays open.
// iptables: xshared.c, add_param_to_argv
pub(super) fn split(line: &str) -> (Vec<Word<'_>>, bool) {
    let mut words = Vec::new();
    let mut rest = line;
    loop {
        rest = rest.trim_start_matches([' ', '\t']);
        if rest.is_empty() {
            return (words, false);
        }
        let (end, plain, open) = word_end(rest);
        let raw = &rest[..end];
        let text = if plain { Cow::Borrowed(raw) } else { Cow::Owned(unquote(raw)) };
        words.push(Word { raw, text });
        if open {
            return (words, true);
        }
        rest = &rest[end..];
    }
}

/// Returns where the first word ends, whether it is without quotes and backslashes, and whether a
/// quote is open at its end.
fn word_end(text: &str) -> (usize, bool, bool) {
    let (mut quoted, mut escaped, mut plain) = (false, false, true);
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => (escaped, plain) = (true, false),
            b'"' => (quoted, plain) = (!quoted, false),
            b' ' | b'\t' if !quoted => return (at, plain, false),
            _ => {}
        }
    }
    (text.len(), plain, quoted)
}

fn unquote(raw: &str) -> String {
    let mut text = String::with_capacity(raw.len());
    let mut chars = raw.chars();
    while let Some(c) = chars.next() {
        match c {
            '\\' => text.extend(chars.next()),
            '"' => {}
            c => text.push(c),
        }
    }
    text
}
