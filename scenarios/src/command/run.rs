//! `rulelag run`.

use reports::collect::{Collector, Detail, RunRecords};
use reports::plot::{RunView, run_charts};
use reports::summary::{self, RunSummary, Verdict};
use serde_json::json;

use super::result::{self, VERSION};
use super::{Status, not_written, print, run_failed};
use crate::cli::Run;
use crate::file::{Reader, Scenario};
use crate::output::{Output, OutputError};

/// Runs a scenario once.
pub(super) fn execute(args: &Run) -> Status {
    let mut reader = Reader::default();
    let scenario = reader.scenario(&args.scenario, &args.common.set);
    let failed = reader.finish();
    let Some(scenario) = scenario.filter(|_| !failed) else {
        return Status::BadInput;
    };
    let output = match Output::open(&args.common.out) {
        Ok(output) => output,
        Err(error) => return not_written(&error),
    };
    let mut collector = Collector::new(Detail::Timeline(scenario.config.timeline_bin));
    let (seed, replication) = (args.common.seed, args.replication);
    if let Err(error) = sim_core::run(&scenario.config, seed, replication, &mut collector) {
        return run_failed(&scenario.name, &error);
    }
    let records = collector.into_records();
    if let Err(error) = write(output, &scenario, args, &records) {
        return not_written(&error);
    }
    let judged: Vec<_> = scenario
        .expectations
        .iter()
        .map(|expectation| result::observed(expectation, &records))
        .collect();
    print(summary::run(&RunSummary {
        question: scenario.question.as_deref().unwrap_or(&scenario.name),
        expectations: &judged,
        records: &records,
        seed,
        version: VERSION,
    }));
    print(format_args!("results in {}\n", args.common.out.display()));
    if judged.iter().all(|expectation| expectation.verdict == Verdict::Held) {
        Status::Held
    } else {
        Status::NotHeld
    }
}

fn write(
    mut output: Output,
    scenario: &Scenario,
    args: &Run,
    records: &RunRecords,
) -> Result<(), OutputError> {
    let (seed, run) = (args.common.seed, args.replication);
    let context = result::context(scenario, 0, run, seed);
    result::table_of_one(&mut output, "windows.csv", &context, &records.windows)?;
    let totals = std::slice::from_ref(&records.run);
    result::table_of_one(&mut output, "runs.csv", &context, totals)?;
    result::table_of_one(&mut output, "losses.csv", &context, &records.losses)?;
    result::table_of_one(&mut output, "propagation.csv", &context, &records.propagation)?;
    result::table_of_one(&mut output, "timeline.csv", &context, &records.timeline)?;
    let view = RunView { scenario: &scenario.name, seed, run: run.into(), records };
    result::charts(&mut output, &run_charts(&view))?;
    let runs = json!({ "replication": run, "replications": 1 });
    let fingerprint = records.run.fingerprint;
    output.commit(result::manifest("run", scenario, seed, runs, fingerprint))
}
