//! `rulelag rules diff`: two nodes' rules, chain by chain.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use similar::{Algorithm, ChangeTag, capture_diff_slices};

use super::{Status, Wrong, bad_input, print, printed, read};
use crate::cli::{RulesDiff, RulesMode, RulesSide};
use crate::file::Reader;

/// Compares two sides; only what differs is printed.
pub(super) fn execute(args: &RulesDiff) -> Status {
    let RulesDiff { side, output, to, to_node, to_mode, to_family, to_profile, to_at } = args;
    let other = RulesSide {
        files: if to.is_empty() { side.files.clone() } else { to.clone() },
        node: to_node.clone().or_else(|| side.node.clone()),
        mode: to_mode.or(side.mode),
        family: to_family.or(side.family),
        profile: to_profile.clone().unwrap_or_else(|| side.profile.clone()),
        at: to_at.clone().or_else(|| side.at.clone()),
        seed: side.seed,
        canaries: side.canaries,
    };
    let mut reader = Reader::default();
    let sides = [side, &other].map(|side| read(&mut reader, side));
    if reader.finish() {
        return Status::BadInput;
    }
    let texts = sides.map(|side| {
        let side = side?;
        let text = printed(&side, None, *output, None)?;
        Ok::<_, Wrong>(if side.mode == RulesMode::Ebpf { one_blank(&text) } else { text })
    });
    match texts {
        [Err(wrong), _] | [_, Err(wrong)] => bad_input(&wrong),
        [Ok(before), Ok(after)] => {
            let differences = compare(&before, &after);
            print(&differences);
            if differences.is_empty() { Status::Held } else { Status::NotHeld }
        }
    }
}

/// Returns lines without the alignment of their columns, which depends on the longest entry.
fn one_blank(text: &str) -> String {
    let words = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
    text.lines().map(|line| words(line) + "\n").collect()
}

/// The lines of a text, by the table and chain that they belong to.
type Chains<'t> = BTreeMap<(&'t str, &'t str), Vec<&'t str>>;

fn chains(text: &str) -> Chains<'_> {
    let mut chains = Chains::new();
    let (mut table, mut listed) = ("", "");
    for line in text.lines() {
        let mut words = line.split_whitespace();
        let chain = match words.next() {
            None | Some("COMMIT" | "target") => continue,
            Some(word) if word.starts_with('*') => {
                table = word;
                continue;
            }
            Some("Chain") => {
                listed = words.next().unwrap_or_default();
                listed
            }
            // nft lists blocks in a table's block, `{` at the end.
            Some(kind @ ("table" | "chain" | "set" | "map")) if line.ends_with('{') => {
                if kind == "table" {
                    table = line;
                    listed = "";
                } else {
                    listed = line.trim();
                }
                listed
            }
            Some("-A" | "-N" | "-P" | "-X") => words.next().unwrap_or_default(),
            Some(word) if word.starts_with(':') => word.trim_start_matches(':'),
            Some(_) => listed,
        };
        chains.entry((table, chain)).or_default().push(line);
    }
    chains
}

/// Returns the lines that are in one text only, behind `-` or `+`, chains in order of their
/// names.
fn compare(before: &str, after: &str) -> String {
    let (before, after) = (chains(before), chains(after));
    let keys: BTreeSet<_> = before.keys().chain(after.keys()).copied().collect();
    let mut text = String::new();
    let mut last = "";
    for key in keys {
        let old = before.get(&key).map_or(&[][..], Vec::as_slice);
        let new = after.get(&key).map_or(&[][..], Vec::as_slice);
        if old == new {
            continue;
        }
        if key.0 != last {
            let _ = writeln!(text, "{}", key.0);
            last = key.0;
        }
        // What is in a block says not whose it is.
        if key.1.ends_with('{') && old.first() == new.first() {
            let _ = writeln!(text, " {}", old[0]);
        }
        let changes = capture_diff_slices(Algorithm::Myers, old, new);
        for change in changes.iter().flat_map(|change| change.iter_changes(old, new)) {
            let _ = match change.tag() {
                ChangeTag::Equal => Ok(()),
                ChangeTag::Delete => writeln!(text, "-{}", change.value()),
                ChangeTag::Insert => writeln!(text, "+{}", change.value()),
            };
        }
    }
    text
}
