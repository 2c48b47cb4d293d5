//! `rulelag sweep`.

use std::io::{self, IsTerminal as _};
use std::path::PathBuf;
use std::thread;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use reports::collect::{Collector, Detail, RunRecords, TimelineBin};
use reports::plot::{Axis, SweepView, sweep_charts};
use reports::stats::{PointSummary, Replication};
use reports::summary::{self, SweepExpectation, SweepSummary, Verdict};
use serde_json::json;
use sim_core::RunError;
use sim_core::record::{Loss, Propagation, Run, Window};

use super::result::{self, VERSION};
use super::{Status, not_written, print, run_failed};
use crate::cli::Sweep;
use crate::closed_form;
use crate::expect::Over;
use crate::file::{Point, Reader, Scenario};
use crate::output::{Output, OutputError};
use crate::sweep::{self as executor, Job};

/// What is kept of a run.
struct Done {
    run: Run,
    windows: Vec<Window>,
    outcomes: Vec<Option<bool>>,
}

/// Why a run came to nothing.
enum Failure {
    Run(Job, RunError),
    Write(OutputError),
}

/// Runs the grid of a scenario.
pub(super) fn execute(args: &Sweep) -> Status {
    let mut reader = Reader::default();
    let scenario = reader.scenario(&args.scenario, &args.common.set);
    let points = scenario.as_ref().and_then(|scenario| reader.points(scenario));
    let failed = reader.finish();
    let (Some(scenario), Some((points, replications))) = (scenario, points) else {
        return Status::BadInput;
    };
    if failed {
        return Status::BadInput;
    }
    let output = match Output::open(&args.common.out) {
        Ok(output) => output,
        Err(error) => return not_written(&error),
    };
    let sweep = Grid {
        scenario: &scenario,
        points: &points,
        replications: args.replications.unwrap_or(replications),
        args,
    };
    match sweep.run(&output) {
        Err(Failure::Write(error)) => not_written(&error),
        Err(Failure::Run(job, error)) => {
            let what = format!("point {}, replication {}", job.point, job.replication);
            run_failed(&what, &error)
        }
        Ok(runs) => sweep.finish(output, &runs),
    }
}

/// The kinds of rows that `--detail` adds.
const DETAILS: [&str; 3] = ["losses.csv", "propagation.csv", "timeline.csv"];

struct Grid<'s> {
    scenario: &'s Scenario,
    points: &'s [Point],
    replications: u32,
    args: &'s Sweep,
}

impl Grid<'_> {
    fn run(&self, output: &Output) -> Result<Vec<Vec<Done>>, Failure> {
        let threads = self
            .args
            .jobs
            .map_or_else(|| thread::available_parallelism().map_or(1, usize::from), usize::from);
        let total: u64 =
            self.points.iter().map(executor::weight).sum::<u64>() * u64::from(self.replications);
        let bar = progress(total);
        let mut ended = 0_u64;
        let runs = self.points.len() as u64 * u64::from(self.replications);
        bar.set_message(format!("0 of {runs} runs"));
        let result = executor::execute(
            self.points,
            self.replications,
            threads,
            |job| self.run_one(job, output),
            |weight| {
                ended += 1;
                bar.set_message(format!("{ended} of {runs} runs"));
                bar.inc(weight);
            },
        );
        bar.finish_and_clear();
        result
    }

    fn run_one(&self, job: Job, output: &Output) -> Result<Done, Failure> {
        let config = &self.points[job.point].config;
        let detail =
            if self.args.detail { Detail::Timeline(config.timeline_bin) } else { Detail::Off };
        let mut collector = Collector::new(detail);
        sim_core::run(config, self.args.common.seed, job.replication, &mut collector)
            .map_err(|error| Failure::Run(job, error))?;
        let records = collector.into_records();
        if self.args.detail {
            self.write_details(job, output, &records).map_err(Failure::Write)?;
        }
        let judge = |expectation: &crate::expect::Expectation| expectation.judge(&records).holds;
        Ok(Done {
            outcomes: self.scenario.expectations.iter().map(judge).collect(),
            run: records.run,
            windows: records.windows,
        })
    }

    /// Writes a run's details to files of its own: all of a sweep's would not fit the memory.
    fn write_details(
        &self,
        job: Job,
        output: &Output,
        records: &RunRecords,
    ) -> Result<(), OutputError> {
        let context =
            result::context(self.scenario, job.point, job.replication, self.args.common.seed);
        let place = |kind: &str| output.scratch(&fragment_name(kind, job));
        let failed = |kind: &str| {
            let name = fragment_name(kind, job);
            move |error: io::Error| output.scratch_error(&name, error)
        };
        let [losses, propagation, timeline] = DETAILS;
        result::fragment(&place(losses), &context, &records.losses).map_err(failed(losses))?;
        result::fragment(&place(propagation), &context, &records.propagation)
            .map_err(failed(propagation))?;
        result::fragment(&place(timeline), &context, &records.timeline).map_err(failed(timeline))
    }

    fn finish(&self, output: Output, runs: &[Vec<Done>]) -> Status {
        let summaries: Vec<PointSummary> = runs
            .iter()
            .enumerate()
            .map(|(point, runs)| {
                let replications: Vec<Replication> =
                    runs.iter().map(|done| Replication::new(&done.run, &done.windows)).collect();
                let Point { parameters, config } = &self.points[point];
                let last_node = closed_form::last_node_s(config);
                PointSummary::new(point, parameters.clone(), &replications, last_node)
            })
            .collect();
        let axes: Vec<Axis> = self
            .points
            .first()
            .map(|point| Axis::from_paths(point.parameters.iter().map(|p| p.path.as_str())))
            .unwrap_or_default();
        if let Err(error) = self.write(output, runs, &summaries, &axes) {
            return not_written(&error);
        }
        let expectations = self.expectations(runs);
        print(summary::sweep(&SweepSummary {
            question: self.scenario.question.as_deref().unwrap_or(&self.scenario.name),
            expectations: &expectations,
            axes: &axes,
            points: &summaries,
            seed: self.args.common.seed,
            version: VERSION,
        }));
        print(format_args!("results in {}\n", self.args.common.out.display()));
        if expectations.iter().all(|e| e.verdict.is_none_or(|v| v == Verdict::Held)) {
            Status::Held
        } else {
            Status::NotHeld
        }
    }

    fn write(
        &self,
        mut output: Output,
        runs: &[Vec<Done>],
        summaries: &[PointSummary],
        axes: &[Axis],
    ) -> Result<(), OutputError> {
        let seed = self.args.common.seed;
        let each = || {
            runs.iter().enumerate().flat_map(move |(point, runs)| {
                runs.iter().enumerate().map(move |(run, done)| {
                    (result::context(self.scenario, point, run as u32, seed), done)
                })
            })
        };
        let windows = each().map(|(context, done)| (context, &done.windows[..]));
        result::table(&mut output, "windows.csv", windows)?;
        let totals = each().map(|(context, done)| (context, std::slice::from_ref(&done.run)));
        result::table(&mut output, "runs.csv", totals)?;
        output.file("sweep.csv", |out| {
            reports::csv::write_sweep(out, summaries).map(drop).map_err(io::Error::from)
        })?;
        if self.args.detail {
            let [losses, propagation, timeline] = DETAILS;
            let fragments = |kind: &str| self.fragments(kind, &output);
            let (of_losses, of_propagation, of_timeline) =
                (fragments(losses), fragments(propagation), fragments(timeline));
            result::table_of_fragments::<Loss>(&mut output, losses, &of_losses)?;
            result::table_of_fragments::<Propagation>(&mut output, propagation, &of_propagation)?;
            result::table_of_fragments::<TimelineBin>(&mut output, timeline, &of_timeline)?;
        }
        let view = SweepView { scenario: &self.scenario.name, seed, axes, points: summaries };
        result::charts(&mut output, &sweep_charts(&view))?;
        let fingerprint = result::fingerprint(runs.iter().flatten().map(|done| &done.run));
        let of_runs = json!({
            "points": self.points.len(),
            "replications": self.replications,
            "detail": self.args.detail,
        });
        output.commit(result::manifest("sweep", self.scenario, seed, of_runs, fingerprint))
    }

    fn fragments(&self, kind: &str, output: &Output) -> Vec<PathBuf> {
        let jobs = (0..self.points.len()).flat_map(|point| {
            (0..self.replications).map(move |replication| Job { point, replication })
        });
        jobs.map(|job| output.scratch(&fragment_name(kind, job))).collect()
    }

    /// Returns what came of the expectations; those that are not `over: sweep` are not judged.
    fn expectations(&self, runs: &[Vec<Done>]) -> Vec<SweepExpectation> {
        let total: usize = runs.iter().map(Vec::len).sum();
        let of = |(index, expectation): (usize, &crate::expect::Expectation)| {
            let count = |wanted: bool| -> Vec<usize> {
                let here = |runs: &Vec<Done>| {
                    runs.iter().filter(|done| done.outcomes[index] == Some(wanted)).count()
                };
                runs.iter().map(here).collect()
            };
            let held = count(true);
            let verdict = match (count(false).iter().sum::<usize>(), held.iter().sum::<usize>()) {
                (1.., _) => Verdict::Failed,
                (0, held) if held == total => Verdict::Held,
                _ => Verdict::Undecided,
            };
            SweepExpectation {
                text: expectation.to_string(),
                verdict: (expectation.over == Over::Sweep).then_some(verdict),
                held,
            }
        };
        self.scenario.expectations.iter().enumerate().map(of).collect()
    }
}

fn fragment_name(kind: &str, job: Job) -> String {
    format!("{kind}.{}.{}", job.point, job.replication)
}

/// Returns a progress bar on a terminal, and nothing to see elsewhere.
fn progress(total: u64) -> ProgressBar {
    let target = if io::stderr().is_terminal() {
        ProgressDrawTarget::stderr()
    } else {
        ProgressDrawTarget::hidden()
    };
    let bar = ProgressBar::with_draw_target(Some(total), target);
    let style = ProgressStyle::with_template("{bar:30} {percent:>3}% {msg}, {eta} left");
    match style {
        Ok(style) => bar.with_style(style),
        Err(_) => bar,
    }
}
