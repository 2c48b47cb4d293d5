//! What `run` and `sweep` write: tables, charts, the manifest.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;

use reports::collect::RunRecords;
use reports::csv::{Row, RowContext, Writer};
use reports::plot::Chart;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use sim_core::record::Run;

use crate::file::Scenario;
use crate::output::{Output, OutputError};

/// The version of the program.
pub(super) const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Writes one kind of row of many runs.
pub(super) fn table<'r, R: Row + 'r>(
    output: &mut Output,
    name: &str,
    rows: impl Iterator<Item = (RowContext, &'r [R])>,
) -> Result<(), OutputError> {
    output.file(name, |out| {
        let mut writer = Writer::new(out).map_err(unwrap_io)?;
        for (context, rows) in rows {
            for row in rows {
                writer.write(&context, row).map_err(unwrap_io)?;
            }
        }
        writer.finish().map(drop).map_err(unwrap_io)
    })
}

/// Writes one kind of row of a single run.
pub(super) fn table_of_one<R: Row>(
    output: &mut Output,
    name: &str,
    context: &RowContext,
    rows: &[R],
) -> Result<(), OutputError> {
    table(output, name, std::iter::once((context.clone(), rows)))
}

/// Returns the error of the operating system that a CSV error wraps, for its text.
fn unwrap_io(error: csv::Error) -> io::Error {
    error.into()
}

/// Writes the rows of one run to a file of their own, without a header.
pub(super) fn fragment<R: Row>(path: &Path, context: &RowContext, rows: &[R]) -> io::Result<()> {
    let mut writer = Writer::append(BufWriter::new(File::create(path)?));
    for row in rows {
        writer.write(context, row).map_err(unwrap_io)?;
    }
    writer.finish().map_err(unwrap_io)?.flush()
}

/// Writes a table whose rows lie in fragments, in their order, and removes those.
pub(super) fn table_of_fragments<R: Row>(
    output: &mut Output,
    name: &str,
    fragments: &[std::path::PathBuf],
) -> Result<(), OutputError> {
    output.file(name, |out| {
        Writer::<_, R>::new(&mut *out).and_then(Writer::finish).map_err(unwrap_io)?;
        for fragment in fragments {
            io::copy(&mut File::open(fragment)?, out)?;
            std::fs::remove_file(fragment)?;
        }
        Ok(())
    })
}

/// Writes charts, as SVG and as PNG.
pub(super) fn charts(output: &mut Output, charts: &[Chart]) -> Result<(), OutputError> {
    for chart in charts {
        let form = |name: String, error: reports::plot::Error| OutputError::Form {
            name,
            error: error.to_string(),
        };
        let name = format!("{}.svg", chart.name());
        let svg = chart.svg().map_err(|error| form(name.clone(), error))?;
        output.file(&name, |out| out.write_all(svg.as_bytes()))?;
        let name = format!("{}.png", chart.name());
        let png = chart.png().map_err(|error| form(name.clone(), error))?;
        output.file(&name, |out| out.write_all(&png))?;
    }
    Ok(())
}

/// Returns the manifest: what was run, so that anybody can run it again. It holds no time of day,
/// host, path or thread count.
pub(super) fn manifest(
    command: &str,
    scenario: &Scenario,
    seed: u64,
    runs: Value,
    fingerprint: u64,
) -> Value {
    let mut manifest = json!({
        "rulelag": VERSION,
        "command": command,
        "scenario": scenario.resolved,
        "scenario_sha256": hex(&Sha256::digest(scenario.resolved.to_string())),
        "seed": seed,
        "fingerprint": format!("{fingerprint:016x}"),
    });
    if let (Value::Object(manifest), Value::Object(runs)) = (&mut manifest, runs) {
        manifest.extend(runs);
    }
    manifest
}

/// Returns one fingerprint for many runs, in their order; that of the run if it is one.
pub(super) fn fingerprint<'r>(runs: impl Iterator<Item = &'r Run>) -> u64 {
    let runs: Vec<u64> = runs.map(|run| run.fingerprint).collect();
    match runs[..] {
        [run] => run,
        _ => {
            let mut hash = Sha256::new();
            for run in runs {
                hash.update(run.to_le_bytes());
            }
            let digest = hash.finalize();
            digest.iter().take(8).fold(0, |sum, &byte| (sum << 8) | u64::from(byte))
        }
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Returns which run the rows of `records` are about.
pub(super) fn context(scenario: &Scenario, point: usize, run: u32, seed: u64) -> RowContext {
    RowContext { scenario: scenario.name.clone(), point, run: run.into(), seed }
}

/// Returns what an expectation saw, for the summary.
pub(super) fn observed(
    expectation: &crate::expect::Expectation,
    records: &RunRecords,
) -> reports::summary::Expectation {
    use reports::summary::Verdict;
    let outcome = expectation.judge(records);
    reports::summary::Expectation {
        text: expectation.to_string(),
        verdict: match outcome.holds {
            Some(true) => Verdict::Held,
            Some(false) => Verdict::Failed,
            None => Verdict::Undecided,
        },
        observed: outcome
            .value
            .map_or("nothing to judge".to_owned(), |value| expectation.show(value)),
    }
}
