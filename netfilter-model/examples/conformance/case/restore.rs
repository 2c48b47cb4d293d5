//! What a table of iptables holds as text, and what input of iptables-restore makes of it.
//!
//! Rules are kept as they were written: reading them is the library's part.

use std::collections::BTreeMap;

/// A chain: its policy or `-`, and its rules without `-A CHAIN`.
#[derive(Clone, Debug)]
struct Chain {
    name: String,
    policy: String,
    /// Each with its packet counter, if the input gave one.
    rules: Vec<(Option<u64>, String)>,
}

/// The tables of one family.
#[derive(Clone, Debug, Default)]
pub(super) struct Tables {
    tables: BTreeMap<String, Vec<Chain>>,
}

/// What a restore did.
#[derive(Clone, Debug, Default)]
pub(super) struct Restored {
    /// The tables that it committed.
    pub(super) tables: Vec<String>,
    /// It ended early.
    pub(super) failed: bool,
    /// What it did not understand.
    pub(super) remarks: Vec<String>,
}

/// Options of iptables-restore.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Options {
    pub(super) noflush: bool,
    pub(super) counters: bool,
    pub(super) test: bool,
}

impl Tables {
    /// Takes input of iptables-restore; each table is committed by itself.
    pub(super) fn restore(&mut self, text: &str, options: Options) -> Restored {
        let mut done = Restored::default();
        let mut open: Option<(String, Vec<Chain>)> = None;
        for line in text.lines() {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            if let Some(name) = line.strip_prefix('*') {
                let old = self.tables.get(name).filter(|_| options.noflush).cloned();
                open = Some((name.to_owned(), old.unwrap_or_default()));
                continue;
            }
            let Some((name, chains)) = &mut open else {
                done.failed = true;
                return done;
            };
            if line == "COMMIT" {
                if !options.test {
                    self.tables.insert(name.clone(), std::mem::take(chains));
                    done.tables.push(name.clone());
                }
                open = None;
            } else if let Some(rest) = line.strip_prefix(':') {
                declare(chains, rest);
            } else if !command(chains, line, options) {
                done.failed = true;
                done.remarks.push(format!("{line:?} is not carried out"));
                return done;
            }
        }
        done.failed |= open.is_some();
        done
    }

    /// Returns everything as iptables-save would, counters left out.
    pub(super) fn text(&self) -> String {
        let mut text = String::new();
        for (name, chains) in &self.tables {
            text.push_str(&format!("*{name}\n"));
            for chain in chains {
                text.push_str(&format!(":{} {} [0:0]\n", chain.name, chain.policy));
            }
            for chain in chains {
                for (_, rule) in &chain.rules {
                    text.push_str(&format!("-A {} {rule}\n", chain.name));
                }
            }
            text.push_str("COMMIT\n");
        }
        text
    }
}

/// `:CHAIN POLICY [packets:bytes]`: a user chain is emptied, a built-in one is not.
fn declare(chains: &mut Vec<Chain>, line: &str) {
    let mut words = line.split_whitespace();
    let (name, policy) = (words.next().unwrap_or_default(), words.next().unwrap_or("-"));
    match chains.iter_mut().find(|chain| chain.name == name) {
        Some(chain) if policy == "-" => chain.rules.clear(),
        Some(chain) => chain.policy = policy.to_owned(),
        None => chains.push(Chain {
            name: name.to_owned(),
            policy: policy.to_owned(),
            rules: Vec::new(),
        }),
    }
}

/// Carries a command out; returns whether it could.
fn command(chains: &mut Vec<Chain>, line: &str, options: Options) -> bool {
    let (counters, line) = match line.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((counters, rest)) => (Some(counters), rest.trim_start()),
        None => (None, line),
    };
    let packets = counters
        .filter(|_| options.counters)
        .and_then(|counters| counters.split(':').next()?.parse().ok());
    let (verb, rest) = line.split_once(' ').unwrap_or((line, ""));
    let (name, rest) = rest.trim_start().split_once(' ').unwrap_or((rest.trim(), ""));
    let rest = rest.trim();
    if matches!(verb, "-N" | "--new-chain") {
        declare(chains, &format!("{name} -"));
        return true;
    }
    if name.is_empty() && matches!(verb, "-F" | "--flush") {
        chains.iter_mut().for_each(|chain| chain.rules.clear());
        return true;
    }
    // A built-in chain is there without being named.
    if !chains.iter().any(|chain| chain.name == name) {
        const BUILTIN: [&str; 5] = ["PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING"];
        if !BUILTIN.contains(&name) {
            return false;
        }
        declare(chains, &format!("{name} ACCEPT"));
    }
    let Some(at) = chains.iter().position(|chain| chain.name == name) else {
        return false;
    };
    let rules = &mut chains[at].rules;
    match verb {
        "-A" | "--append" => rules.push((packets, rest.to_owned())),
        "-I" | "--insert" => {
            let (number, rule) = numbered(rest);
            let at = number.unwrap_or(1).max(1) - 1;
            if at > rules.len() {
                return false;
            }
            rules.insert(at, (packets, rule.to_owned()));
        }
        "-R" | "--replace" => match numbered(rest) {
            (Some(number @ 1..), rule) if number <= rules.len() => {
                rules[number - 1] = (packets, rule.to_owned());
            }
            _ => return false,
        },
        "-D" | "--delete" => {
            let place = match numbered(rest) {
                (Some(number @ 1..), "") if number <= rules.len() => Some(number - 1),
                _ => rules.iter().position(|(_, rule)| rule == rest),
            };
            match place {
                Some(place) => _ = rules.remove(place),
                None => return false,
            }
        }
        "-F" | "--flush" => rules.clear(),
        "-X" | "--delete-chain" => _ = chains.remove(at),
        "-P" | "--policy" => chains[at].policy = rest.to_owned(),
        _ => return false,
    }
    true
}

/// Splits a leading number off.
fn numbered(rest: &str) -> (Option<usize>, &str) {
    let (first, rule) = rest.split_once(' ').unwrap_or((rest, ""));
    match first.parse() {
        Ok(number) => (Some(number), rule.trim()),
        Err(_) => (None, rest),
    }
}
