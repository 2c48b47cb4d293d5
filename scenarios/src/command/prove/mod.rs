//! `rulelag prove`: the model against the running kernel, on random cases.
//!
//! ```text
//!   generate ──► case ──► drive ──┬──► rig      the kernel: namespaces, frames, sockets
//!                          │      └──► model    netfilter-model, every way of random rules
//!                          ▼
//!                        shrink ──► a case file
//! ```

mod case;
mod connection;
mod drive;
mod generate;
mod model;
mod place;
mod rig;
mod seen;
mod shrink;
mod tally;
#[cfg(test)]
mod tests;
mod wire;

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fs;
use std::path::{Path, PathBuf};

use indicatif::{ProgressBar, ProgressStyle};
use netfilter_model::read::{Read, Source, ipset, iptables_rules, nft_ruleset};
use netfilter_model::rule::RulesetBuilder;
use netfilter_model::{rule, tuple};

use super::{Status, print};
use crate::cli::Prove;
use case::{Backend, Case};
use drive::Verdict;
use generate::Features;
use place::Family;
use rig::{Rig, RigError};
use tally::Tally;

/// So often a disagreement must show, of so many runs, to count as one: what the kernel chose at
/// random, or did at another time, does not.
const CONFIRMATIONS: u32 = 3;

/// So often the shrinker may ask.
const ASKS_MAX: u32 = 600;

/// Compares the arms.
pub(super) fn execute(args: &Prove) -> Status {
    let backends: Vec<Backend> = Backend::ALL.to_vec();
    let missing = rig::missing(&backends);
    if !missing.is_empty() {
        complain!("error: prove needs {}", missing.join(", "));
        complain!(
            "help: run it as root on Linux, with iptables (both back ends), nftables and iproute2 \
             installed"
        );
        return Status::BadInput;
    }
    // The thread goes into namespaces of its own; the others stay where they are.
    std::thread::scope(|scope| {
        let proving = scope.spawn(|| match &args.case {
            Some(path) => one(path),
            None => many(args),
        });
        proving.join().unwrap_or(Status::Limit)
    })
}

/// The kernel arms that were needed so far.
#[derive(Default)]
struct Rigs(BTreeMap<Backend, Rig>);

impl Rigs {
    fn get(&mut self, backend: Backend) -> Result<&mut Rig, RigError> {
        Ok(match self.0.entry(backend) {
            Entry::Occupied(rig) => rig.into_mut(),
            Entry::Vacant(place) => place.insert(Rig::try_new(backend)?),
        })
    }
}

/// Why a case was not compared.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Unfit {
    /// The machine does not do what it should.
    Machine(String),
    /// The kernel refuses the rules.
    Refused(String),
    /// The model does not take the rules.
    NotModelled(String),
}

/// Reads the rules of a case as the model has them.
fn model_rules(case: &Case) -> Result<model::Rules, String> {
    let family = match case.settings.family {
        Family::V4 => tuple::Family::V4,
        Family::V6 => tuple::Family::V6,
    };
    let mut ruleset = if case.backend == Backend::Nft {
        let mut none = RulesetBuilder::for_backend(rule::Backend::Legacy);
        none.family(family);
        none.build().map_err(|error| error.to_string())?
    } else {
        let source = Source { file: 0, table: None, family: Some(family) };
        let mut dumps = understood(iptables_rules(&case.rules.text(), source))?.into_iter();
        match (dumps.next(), dumps.next()) {
            (Some(dump), None) => dump.ruleset,
            _ => return Err("the text is not one ruleset".to_owned()),
        }
    };
    let nft = if case.backend == Backend::Nft { &case.rules } else { &case.beside };
    if !nft.is_empty() {
        ruleset = ruleset.with_nft(understood(nft_ruleset(&nft.text(), 0))?);
    }
    let sets = understood(ipset(&case.sets.text()))?;
    Ok(model::Rules { ruleset, sets })
}

/// Returns what was read, unless something was not understood.
fn understood<T>(read: Read<T>) -> Result<T, String> {
    match read.remarks.first() {
        Some(remark) => Err(format!("{}: {}", remark.problem, remark.text)),
        None => Ok(read.value),
    }
}

fn compare(case: &Case, rigs: &mut Rigs) -> Result<Verdict, Unfit> {
    let unfit = |error| match error {
        RigError::Machine(text) => Unfit::Machine(text),
        RigError::Refused(text) => Unfit::Refused(text),
    };
    let rules = model_rules(case).map_err(Unfit::NotModelled)?;
    let rig = rigs.get(case.backend).map_err(unfit)?;
    drive::run(case, rules, rig).map_err(unfit)
}

/// Finds out which extensions the machine can load.
fn probe(rigs: &mut Rigs) -> Result<Features, RigError> {
    let mut features = Features::default();
    for backend in Backend::ALL {
        rigs.get(backend)?.enter()?;
        features.backends.push(backend);
        for family in [Family::V4, Family::V6] {
            if backend != Backend::Nft {
                probe_sets(backend, family, &mut features);
            }
            let examples = match backend {
                Backend::Nft => generate::nft_examples(family),
                _ => generate::examples(family),
            };
            for (name, text) in examples {
                let text = match backend {
                    Backend::Nft => format!("flush ruleset\n{text}"),
                    _ => text,
                };
                if rig::load(backend, family, &text).is_err() {
                    features.missing.push((family, backend, name.to_owned()));
                }
            }
        }
    }
    Ok(features)
}

/// Finds out which types of ipsets there are, and creates a set of each.
fn probe_sets(backend: Backend, family: Family, features: &mut Features) {
    let sets = generate::creations(family);
    let all: Vec<&str> = sets.iter().map(|(_, line)| line.as_str()).collect();
    if rig::load_sets(&all.join("\n")).is_ok() {
        return;
    }
    for (kind, line) in sets {
        if rig::load_sets(&line).is_err() {
            features.missing.push((family, backend, kind.to_owned()));
        }
    }
}

fn many(args: &Prove) -> Status {
    let mut rigs = Rigs::default();
    let features = match probe(&mut rigs) {
        Ok(features) => features,
        Err(error) => return cannot(&error.to_string()),
    };
    let bar = ProgressBar::new(args.cases);
    let style = ProgressStyle::with_template("{bar:30} {pos}/{len} cases, {per_sec}, {msg}");
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    let mut tally = Tally::new(&features);
    for number in args.first..args.first.saturating_add(args.cases) {
        let case = generate::case(args.seed, number, &features);
        match compare(&case, &mut rigs) {
            Ok(Verdict::Agree(packets)) => tally.agreed(&case, packets),
            Ok(Verdict::Undecided(why)) => tally.undecided(why),
            Ok(Verdict::Differ(first)) => {
                if confirmed(&case, &mut rigs) {
                    let small = shrunk(&case, &mut rigs);
                    let text = difference(&small, &mut rigs);
                    match write(&args.out, args.seed, number, &case, &small, &text) {
                        Ok(path) => {
                            bar.suspend(|| complain!("{}: {text}", path.display()));
                            tally.differed(path.display().to_string());
                        }
                        Err(error) => return cannot(&error),
                    }
                } else {
                    tally.passing(&case.name, &first.text());
                }
            }
            Err(Unfit::Machine(why)) => return cannot(&why),
            Err(Unfit::Refused(why)) => tally.refused(&case, why),
            Err(Unfit::NotModelled(why)) => tally.not_modelled(why),
        }
        bar.inc(1);
        bar.set_message(format!("{} disagree", tally.disagreements()));
    }
    bar.finish_and_clear();
    print(format_args!("{}", tally.summary(args.seed)));
    if tally.disagreements() == 0 { Status::Held } else { Status::NotHeld }
}

fn cannot(why: &str) -> Status {
    complain!("error: {why}");
    Status::BadInput
}

/// Reads a case: by itself, or as a finding holds it.
fn case_of(text: &str) -> Result<Case, String> {
    let no_case = |error: serde_json::Error| {
        format!("this is no case ({error}): --case wants a file that prove wrote to its --out")
    };
    let file: serde_json::Value = serde_json::from_str(text).map_err(no_case)?;
    serde_json::from_value(file.get("case").unwrap_or(&file).clone()).map_err(no_case)
}

/// Runs a case of a file.
fn one(path: &Path) -> Status {
    let read = fs::read_to_string(path).map_err(|error| error.to_string());
    let case = match read.and_then(|text| case_of(&text)) {
        Ok(case) => case,
        Err(error) => return cannot(&format!("{}: {error}", path.display())),
    };
    let dangling = |(at, step): (usize, &case::Step)| step.refers_to().is_some_and(|to| to >= at);
    if case.steps.iter().enumerate().any(dangling) {
        return cannot("a step refers to itself or a later one");
    }
    match compare(&case, &mut Rigs::default()) {
        Ok(Verdict::Agree(packets)) => {
            print(format_args!("{}: the arms agree on {packets} packets\n", case.name));
            Status::Held
        }
        Ok(Verdict::Differ(difference)) => {
            print(format_args!("{}: the arms differ\n{}", case.name, difference.text()));
            Status::NotHeld
        }
        Ok(Verdict::Undecided(why)) => cannot(&format!("{} was not decided: {why}", case.name)),
        Err(Unfit::Machine(why) | Unfit::Refused(why)) => cannot(&why),
        Err(Unfit::NotModelled(why)) => {
            cannot(&format!("the model does not take the rules: {why}"))
        }
    }
}

fn differs(case: &Case, rigs: &mut Rigs) -> bool {
    matches!(compare(case, rigs), Ok(Verdict::Differ(_)))
}

fn confirmed(case: &Case, rigs: &mut Rigs) -> bool {
    (0..CONFIRMATIONS).all(|_| differs(case, rigs))
}

fn shrunk(case: &Case, rigs: &mut Rigs) -> Case {
    shrink::shrink(case, ASKS_MAX, |case| differs(case, rigs) && differs(case, rigs))
}

fn difference(case: &Case, rigs: &mut Rigs) -> String {
    match compare(case, rigs) {
        Ok(Verdict::Differ(difference)) => difference.text(),
        other => format!("not seen again: {other:?}\n"),
    }
}

/// Writes a case file whole, or not at all.
fn write(
    folder: &Path,
    seed: u64,
    number: u64,
    whole: &Case,
    case: &Case,
    text: &str,
) -> Result<PathBuf, String> {
    let path = folder.join(format!("seed-{seed}-case-{number}.json"));
    let difference: Vec<&str> = text.lines().collect();
    let json = serde_json::json!({ "difference": difference, "case": case, "unshrunk": whole });
    let write = || {
        fs::create_dir_all(folder)?;
        let part = path.with_extension("part");
        fs::write(&part, format!("{json:#}\n"))?;
        fs::rename(&part, &path)
    };
    write().map_err(|error| format!("{}: {error}", path.display()))?;
    Ok(path)
}
