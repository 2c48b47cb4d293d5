//! What all cases together say.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::case::Case;
use super::generate::Features;
use super::place::Family;

/// Counts of cases, packets and features.
pub(super) struct Tally {
    cases: u64,
    packets: u64,
    features: BTreeMap<String, u64>,
    skipped: Vec<String>,
    undecided: BTreeMap<String, u64>,
    refused: BTreeMap<String, u64>,
    not_modelled: BTreeMap<String, u64>,
    passing: Vec<String>,
    files: Vec<String>,
}

impl Tally {
    /// Returns an empty tally that knows what this machine lacks.
    pub(super) fn new(features: &Features) -> Tally {
        let family = |family| if family == Family::V4 { "IPv4" } else { "IPv6" };
        let lacking = features.missing.iter().map(|(of, backend, name)| {
            format!("{name} ({}, {}): this machine does not load it", family(*of), backend.name())
        });
        Tally {
            cases: 0,
            packets: 0,
            features: BTreeMap::new(),
            skipped: lacking.collect(),
            undecided: BTreeMap::new(),
            refused: BTreeMap::new(),
            not_modelled: BTreeMap::new(),
            passing: Vec::new(),
            files: Vec::new(),
        }
    }

    /// The arms agree on a case.
    pub(super) fn agreed(&mut self, case: &Case, packets: u64) {
        self.cases += 1;
        self.packets += packets;
        let mut names = vec![
            format!("back end {}", case.backend.name()),
            match case.settings.family {
                Family::V4 => "IPv4".to_owned(),
                Family::V6 => "IPv6".to_owned(),
            },
        ];
        for line in case.rules.lines.iter().filter(|line| line.starts_with("-A")) {
            let words: Vec<&str> = line.split(' ').collect();
            for pair in words.windows(2) {
                let is_target = matches!(pair[0], "-j" | "-g") && is_extension(pair[1]);
                if pair[0] == "-m" || is_target {
                    names.push(format!("{} {}", pair[0], pair[1]));
                }
            }
            names.extend(words.contains(&"-g").then(|| "-g".to_owned()));
        }
        let nft = case.rules.lines.iter().chain(&case.beside.lines);
        for line in nft.filter(|line| line.starts_with("add rule")) {
            let words = line.split(' ').skip(5);
            let known = words.filter(|word| NFT_WORDS.contains(word));
            names.extend(known.map(|word| format!("nft {word}")));
        }
        if !case.beside.is_empty() {
            names.push("both frameworks".to_owned());
        }
        names.extend(case.shares.as_ref().map(|_| "shares".to_owned()));
        names.sort();
        names.dedup();
        for name in names {
            *self.features.entry(name).or_default() += 1;
        }
    }

    /// It cannot be said whether they do.
    pub(super) fn undecided(&mut self, why: String) {
        *self.undecided.entry(why).or_default() += 1;
    }

    /// The kernel does not take the rules.
    pub(super) fn refused(&mut self, case: &Case, why: String) {
        let line = why.rsplit("line ").next().and_then(|rest| {
            let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
            case.rules.lines.get(digits.parse::<usize>().ok()?.checked_sub(1)?)
        });
        let why = line.map_or(why.clone(), |line| format!("{why}: {line}"));
        *self.refused.entry(why).or_default() += 1;
    }

    /// The model does not take the rules.
    pub(super) fn not_modelled(&mut self, why: String) {
        *self.not_modelled.entry(why).or_default() += 1;
    }

    /// The arms differed once, and not again.
    pub(super) fn passing(&mut self, name: &str, difference: &str) {
        self.passing.push(format!("{name}: {difference}"));
    }

    /// The arms differ.
    pub(super) fn differed(&mut self, file: String) {
        self.files.push(file);
    }

    /// Returns on how many cases the arms differ.
    pub(super) fn disagreements(&self) -> usize {
        self.files.len()
    }

    /// Returns the whole as a text.
    pub(super) fn summary(&self, seed: u64) -> String {
        let mut text = String::new();
        let _ = writeln!(
            text,
            "seed {seed}: {} cases agree, {} packets; {} disagree",
            self.cases,
            self.packets,
            self.files.len()
        );
        for file in &self.files {
            let _ = writeln!(text, "  disagree: {file}");
        }
        if !self.passing.is_empty() {
            let _ = writeln!(
                text,
                "differed once and not again (the kernel chose at random, or was late): {}",
                self.passing.len()
            );
            for name in &self.passing {
                let _ = write!(text, "  {name}");
            }
        }
        let lists = [
            ("not decided", &self.undecided),
            ("refused by the kernel", &self.refused),
            ("not taken by the model", &self.not_modelled),
        ];
        for (what, counts) in lists {
            let total: u64 = counts.values().sum();
            if total > 0 {
                let _ = writeln!(text, "{what}: {total}");
            }
            for (why, count) in counts.iter().take(20) {
                let _ = writeln!(text, "  {count} × {why}");
            }
        }
        if !self.skipped.is_empty() {
            let _ = writeln!(text, "skipped:");
            for name in &self.skipped {
                let _ = writeln!(text, "  {name}");
            }
        }
        let _ = writeln!(text, "cases with");
        for (name, count) in &self.features {
            let _ = writeln!(text, "  {name:<24} {count}");
        }
        text
    }
}

/// Words of nftables that are counted.
const NFT_WORDS: [&str; 30] = [
    "vmap",
    "map",
    "numgen",
    "random",
    "inc",
    "jhash",
    "fib",
    "limit",
    "quota",
    "jump",
    "goto",
    "return",
    "reject",
    "dnat",
    "snat",
    "masquerade",
    "redirect",
    "notrack",
    "zone",
    "ct",
    "mark",
    "update",
    "add",
    "dscp",
    "ttl",
    "hoplimit",
    "iifname",
    "oifname",
    "flags",
    "icmpx",
];

/// Returns whether the word is a target of an extension, not a chain.
fn is_extension(word: &str) -> bool {
    !word.contains('-') && word.chars().all(|c| c.is_ascii_uppercase())
}
