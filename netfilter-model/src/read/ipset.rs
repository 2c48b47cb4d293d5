//! What `ipset save` and `ipset list` print, and what `ipset restore` takes.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::{Line, Read, Remark, in_order, lines, pasted_command};
use crate::set::{Header, Set, SetError, SetKind, Sets, is_set_name, parse_number};
use crate::time::SimTime;

/// So many elements beyond one a line may ranges give, in all.
const RANGES_MAX: u64 = 1 << 20;

/// Reads sets as `ipset save` or `ipset list` prints them, or as `ipset restore` takes them.
///
/// Timeouts count from the start of the run. A set of which a line cannot be read is incomplete:
/// a packet that is not found in it may be in it all the same ([`Set::is_complete`]).
pub fn ipset(text: &str) -> Read<Sets> {
    let mut reader = Reader { ranges: RANGES_MAX, ..Reader::default() };
    for line in lines(text) {
        reader.line(line);
    }
    reader.end_listing();
    in_order(&mut reader.remarks);
    Read { value: reader.sets, remarks: reader.remarks }
}

#[derive(Default)]
struct Reader<'t> {
    sets: Sets,
    remarks: Vec<Remark>,
    /// The listing of the set that is being read.
    listing: Option<Listing<'t>>,
    /// Sets that were said to be left out.
    left_out: BTreeSet<Arc<str>>,
    /// How many more elements ranges may give.
    ranges: u64,
}

/// A set in a listing.
struct Listing<'t> {
    line: Line<'t>,
    name: &'t str,
    kind: &'t str,
    header: &'t str,
    /// What the listing says.
    entries: Option<usize>,
    members: Option<usize>,
}

impl<'t> Reader<'t> {
    fn remark(&mut self, line: Line<'_>, problem: impl Into<String>) {
        self.remarks.push(line.remark(problem));
    }

    fn line(&mut self, line: Line<'t>) {
        let text = line.text.trim();
        if text.is_empty() {
            self.end_listing();
            return;
        }
        if let Some(name) = text.strip_prefix("Name: ") {
            self.end_listing();
            let (name, kind, header) = (name.trim(), "", "");
            self.listing = Some(Listing { line, name, kind, header, entries: None, members: None });
            return;
        }
        if self.listing.is_some() && self.listing_line(line, text) {
            return;
        }
        if self.script_line(line, text) {
            return;
        }
        let prompted = pasted_command(text);
        if prompted.is_some_and(|command| self.script_line(line, command)) {
            return;
        }
        if text.starts_with('#') && prompted.is_none() {
            return;
        }
        let program = text.split_whitespace().next();
        let problem = if prompted.is_some() || program.is_some_and(is_program) {
            "a shell's prompt or command, not its output"
        } else {
            "no line that ipset prints"
        };
        self.remark(line, problem);
    }

    /// Takes a command with or without the name of the program, and returns whether it is one.
    fn script_line(&mut self, line: Line<'t>, text: &'t str) -> bool {
        let words = text.split_whitespace().skip_while(|word| is_program(word));
        let words: Vec<&str> = words.collect();
        let Some((verb, arguments)) = words.split_first() else {
            return false;
        };
        let at = arguments.first().map_or(text.len(), |word| offset(text, word));
        self.command(line, verb, arguments, &text[at..])
    }

    /// Takes a line of a listing, and returns whether it is one.
    fn listing_line(&mut self, line: Line<'t>, text: &'t str) -> bool {
        let Some(listing) = &mut self.listing else {
            return false;
        };
        if let Some(members) = &mut listing.members {
            if pasted_command(text).is_some() {
                self.end_listing();
                return false;
            }
            *members += 1;
            let name: Arc<str> = listing.name.into();
            self.add(line, &name, text, true);
            return true;
        }
        let Some((key, value)) = text.split_once(':') else {
            return false;
        };
        match key {
            "Type" => listing.kind = value.trim(),
            "Header" => listing.header = value.trim(),
            "Number of entries" => listing.entries = value.trim().parse().ok(),
            "Revision" | "Size in memory" | "References" | "Bindings" => {}
            "Members" => {
                listing.members = Some(0);
                let (line, name, kind, header) =
                    (listing.line, listing.name, listing.kind, listing.header);
                self.create(line, name, kind, header);
            }
            _ => return false,
        }
        true
    }

    /// Compares what a listing said with what it showed.
    fn end_listing(&mut self) {
        let Some(listing) = self.listing.take() else {
            return;
        };
        let Listing { line, name, kind, header, entries, members } = listing;
        if members.is_none() {
            self.create(line, name, kind, header);
        }
        let shown = members.unwrap_or(0);
        let missing = match entries {
            Some(entries) if entries > shown => Some(format!(
                "the listing says {entries} entries and shows {shown}: the others are not known"
            )),
            None if members.is_none() => Some("the listing ends before its members".to_owned()),
            _ => None,
        };
        if let Some(problem) = missing {
            if let Some(set) = self.sets.get_mut(name) {
                set.set_incomplete();
            }
            self.remark(line, problem);
        }
    }

    /// Does what a line of `ipset restore` says, and returns whether it is one.
    fn command(
        &mut self,
        line: Line<'t>,
        verb: &str,
        arguments: &[&'t str],
        rest: &'t str,
    ) -> bool {
        // `-exist` may stand in front.
        if matches!(verb, "-exist" | "-!" | "--exist") {
            let Some((verb, arguments)) = arguments.split_first() else {
                return false;
            };
            let at = arguments.first().map_or(rest.len(), |word| offset(rest, word));
            return self.command(line, verb, arguments, &rest[at..]);
        }
        let name = arguments.first().copied();
        let behind = name.map_or("", |name| rest[name.len()..].trim());
        match (verb, name) {
            ("create" | "-N" | "--create" | "n" | "new", Some(name)) => {
                let (kind, options) =
                    behind.split_once(char::is_whitespace).unwrap_or((behind, ""));
                self.create(line, name, kind, options.trim());
            }
            ("add" | "-A" | "--add", Some(name)) => self.add(line, name, behind, false),
            ("del" | "-D" | "--del", Some(name)) => self.delete(line, name, behind),
            ("flush" | "-F" | "--flush", _) => {
                match name.and_then(|name| self.sets.get_mut(name)) {
                    Some(set) => set.flush(),
                    None => self.remark(line, "nothing here to flush: the line is ignored"),
                }
            }
            ("destroy" | "-X" | "--destroy", _) => {
                if !name.is_some_and(|name| self.sets.remove(name)) {
                    self.remark(line, "nothing here to destroy: the line is ignored");
                }
            }
            ("swap" | "-W" | "--swap", Some(name)) => {
                if !self.sets.swap(name, behind) {
                    self.remark(line, "one of the sets is not known: the line is ignored");
                }
            }
            ("COMMIT" | "quit", None) => {}
            _ => return false,
        }
        true
    }

    fn create(&mut self, line: Line<'t>, name: &str, kind: &str, options: &str) {
        if !is_set_name(name) {
            self.remark(line, format!("{name:?} is no name of a set: it is left out"));
            self.left_out.insert(name.into());
            return;
        }
        let Some(kind) = SetKind::parse(kind) else {
            let problem = format!("set type {kind:?} is not modelled: the set is left out");
            let help = "a rule that names the set is followed both ways: it may match or not";
            self.remarks.push(line.remark(problem).help(help));
            self.left_out.insert(name.into());
            return;
        };
        let mut header = Header::new(kind);
        let mut words = options.split_whitespace();
        let mut exist = false;
        while let Some(option) = words.next() {
            if matches!(option, "-exist" | "-!" | "--exist") {
                exist = true;
                continue;
            }
            if matches!(option, "counters" | "comment" | "skbinfo" | "forceadd") {
                header.other.push(option.into());
                continue;
            }
            let value = words.next().unwrap_or("");
            if read_option(&mut header, option, value).is_none() {
                let problem = if option == "bitmask" {
                    "bitmask is not modelled: the set is left out"
                } else {
                    "an option of the set that cannot be read"
                };
                self.remark(line, format!("{problem}: {option} {value}"));
                if option == "bitmask" {
                    self.left_out.insert(name.into());
                    return;
                }
            }
        }
        if kind.is_bitmap() && header.range.is_none() {
            self.remark(line, "a bitmap without its range: all is taken to be in range");
            let last = if kind == SetKind::BitmapPort { 65_535 } else { u32::MAX };
            header.range = Some((0, last));
        }
        if exist && self.sets.get(name).is_some() {
            return;
        }
        if self.sets.get(name).is_some() {
            self.remark(line, "a second set of this name takes the place of the first");
        }
        self.left_out.remove(name);
        self.sets.insert(Set::new(name, header));
    }

    fn add(&mut self, line: Line<'t>, name: &str, text: &str, listed: bool) {
        let ranges = self.ranges;
        let Some(set) = self.sets.get_mut(name) else {
            if !self.left_out.contains(name) {
                self.remark(line, format!("set {name:?} was not created above"));
            }
            return;
        };
        let (text, exist) = without_exist(text);
        let elements = match set.parse_elements_up_to(&text, ranges + 1) {
            Ok(elements) => elements,
            Err(error) => {
                set.set_incomplete();
                self.remark(line, format!("{error}: the element is left out of the set"));
                return;
            }
        };
        self.ranges -= (elements.len() as u64).saturating_sub(1).min(ranges);
        for element in &elements {
            match set.add(element, exist, SimTime::ZERO) {
                Ok(()) => {}
                Err(SetError::Exists) if listed => {}
                Err(error) => {
                    // What is there already, or does not fit in, is not in the kernel's set either.
                    if !matches!(error, SetError::Exists | SetError::Full) {
                        set.set_incomplete();
                    }
                    self.remark(line, format!("{element}: {error}"));
                    return;
                }
            }
        }
    }

    fn delete(&mut self, line: Line<'t>, name: &str, text: &str) {
        let ranges = self.ranges;
        let Some(set) = self.sets.get_mut(name) else {
            self.remark(line, format!("set {name:?} was not created above"));
            return;
        };
        let (text, exist) = without_exist(text);
        let problem = match set.parse_elements_up_to(&text, ranges + 1) {
            Ok(elements) => {
                self.ranges -= (elements.len() as u64).saturating_sub(1).min(ranges);
                let deleted =
                    elements.iter().try_for_each(|element| set.delete(element, SimTime::ZERO));
                deleted.err().filter(|_| !exist).map(|error| error.to_string())
            }
            Err(error) => {
                set.set_incomplete();
                Some(error.to_string())
            }
        };
        if let Some(problem) = problem {
            self.remark(line, problem);
        }
    }
}

/// Returns whether a word begins a command of ipset.
fn is_program(word: &str) -> bool {
    matches!(word.rsplit('/').next(), Some("sudo" | "ipset"))
}

/// Returns where a word that is a part of the text stands in it.
fn offset(text: &str, word: &str) -> usize {
    word.as_ptr() as usize - text.as_ptr() as usize
}

/// Returns an entry without the option `-exist`, which may stand at its end.
fn without_exist(text: &str) -> (std::borrow::Cow<'_, str>, bool) {
    for option in [" -exist", " -!", " --exist"] {
        if let Some(entry) = text.strip_suffix(option) {
            return (entry.trim_end().into(), true);
        }
    }
    (text.into(), false)
}

fn read_option(header: &mut Header, option: &str, value: &str) -> Option<()> {
    match option {
        "family" => {
            header.v6 = match value {
                "inet" | "ipv4" => false,
                "inet6" | "ipv6" => true,
                _ => return None,
            }
        }
        "hashsize" => header.hashsize = value.parse().ok()?,
        "maxelem" => header.maxelem = value.parse().ok()?,
        "timeout" => header.timeout = Some(value.parse().ok()?),
        "size" => header.size = Some(value.parse().ok()?),
        "markmask" => header.markmask = Some(parse_number(value)?),
        "netmask" => {
            let width = if header.v6 { 128 } else { 32 };
            header.netmask = Some(value.parse().ok().filter(|len| (1..=width).contains(len))?);
        }
        "range" => header.range = Some(read_range(header.kind, value)?),
        "bucketsize" | "initval" | "probes" | "resize" | "gc" => {
            if value.is_empty() {
                return None;
            }
            header.other.push(format!("{option} {value}").into());
        }
        _ => return None,
    }
    Some(())
}

fn read_range(kind: SetKind, text: &str) -> Option<(u32, u32)> {
    if kind == SetKind::BitmapPort {
        let (first, last) = text.split_once('-')?;
        let (first, last): (u16, u16) = (first.parse().ok()?, last.parse().ok()?);
        return Some((first.min(last).into(), first.max(last).into()));
    }
    let (first, last) = crate::set::parse_addresses(text, false)?;
    Some((u32::try_from(first).ok()?, u32::try_from(last).ok()?))
}

#[cfg(test)]
mod tests;
