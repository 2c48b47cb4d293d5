//! The CSV files of a run and of a sweep.
//!
//! Plain CSV: a header, then rows; no comment lines, LF. Numbers are printed so that they read
//! back to the same value: times as exact decimals of nanoseconds, floats as the shortest decimal
//! that is that float. A time that was never reached is empty.
//!
//! ```
//! use reports::csv::WindowsWriter;
//!
//! let mut out = Vec::new();
//! WindowsWriter::new(&mut out)?.finish()?;
//! assert!(out.starts_with(b"scenario,point,run,seed,window,"));
//! # Ok::<(), csv::Error>(())
//! ```

use std::io;
use std::marker::PhantomData;
use std::time::Duration;

use ::csv::{Error, Terminator, WriterBuilder};
use sim_core::record::{Cause, Loss, LostByCause, Propagation, Run, Window};
use sim_core::time::SimTime;

use crate::collect::TimelineBin;
use crate::stats::{Interval, PointSummary, balance_p};

/// The columns of `windows.csv`. Later columns may only be appended.
pub const WINDOWS_COLUMNS: &str = "scenario,point,run,seed,window,opened_by,service,pod,node,\
    opened_s,endpoints_changed_s,stopped_accepting_s,ip_released_s,first_node_s,last_node_s,\
    closed_s,stale_mean_s,stale_max_s,attempts,attempts_to_pod,lost,lost_refused,lost_reset,\
    lost_unreachable,lost_blackholed,lost_rejected,lost_dropped,lost_no_rule,lost_conntrack,\
    lost_link,lost_server,misdelivered,lost_fraction,lost_first_stale,expected_lost";

/// Which run a row is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RowContext {
    /// The scenario's name.
    pub scenario: String,
    /// The point's index; 0 in a single run.
    pub point: usize,
    /// The replication.
    pub run: u64,
    /// The user's seed.
    pub seed: u64,
}

/// A record that is a row of a file.
pub trait Row {
    /// Returns the header.
    fn columns() -> Vec<String>;

    /// Appends the row's fields, one for each column.
    fn fields(&self, context: &RowContext, row: &mut Fields);
}

/// Writes rows of one kind.
pub struct Writer<W: io::Write, R: Row> {
    csv: ::csv::Writer<W>,
    row: Fields,
    rows: PhantomData<fn(R)>,
}

/// Writes `windows.csv`.
pub type WindowsWriter<W> = Writer<W, Window>;
/// Writes `runs.csv`.
pub type RunsWriter<W> = Writer<W, Run>;
/// Writes `losses.csv`.
pub type LossesWriter<W> = Writer<W, Loss>;
/// Writes `propagation.csv`.
pub type PropagationWriter<W> = Writer<W, Propagation>;
/// Writes `timeline.csv`.
pub type TimelineWriter<W> = Writer<W, TimelineBin>;

impl<W: io::Write, R: Row> Writer<W, R> {
    /// Writes the header.
    pub fn new(out: W) -> Result<Self, Error> {
        let mut csv = plain(out);
        csv.write_record(R::columns())?;
        Ok(Writer { csv, row: Fields::default(), rows: PhantomData })
    }

    /// Goes on with a file that already has its header, for runs that are resumed.
    pub fn append(out: W) -> Self {
        Writer { csv: plain(out), row: Fields::default(), rows: PhantomData }
    }

    /// Writes a row.
    pub fn write(&mut self, context: &RowContext, record: &R) -> Result<(), Error> {
        self.row.0.clear();
        record.fields(context, &mut self.row);
        self.csv.write_record(&self.row.0)
    }

    /// Flushes, and returns what was written to.
    pub fn finish(self) -> Result<W, Error> {
        self.csv.into_inner().map_err(|e| Error::from(e.into_error()))
    }
}

fn plain<W: io::Write>(out: W) -> ::csv::Writer<W> {
    WriterBuilder::new().terminator(Terminator::Any(b'\n')).from_writer(out)
}

/// The fields of a row, as text.
#[derive(Clone, Debug, Default)]
pub struct Fields(Vec<String>);

impl Fields {
    /// Appends a word, a name or a whole number.
    pub fn push(&mut self, value: impl ToString) {
        self.0.push(value.to_string());
    }

    /// Appends a value, or nothing.
    pub fn push_option(&mut self, value: Option<impl ToString>) {
        self.0.push(value.map(|v| v.to_string()).unwrap_or_default());
    }

    /// Appends a number that may be missing. No number is −0: an empty sum is, in Rust.
    pub fn push_float_option(&mut self, value: Option<f64>) {
        self.push_option(value.map(|v| v + 0.0));
    }

    /// Appends a time.
    pub fn push_time(&mut self, at: SimTime) {
        self.0.push(seconds(u128::from(at.as_nanos())));
    }

    /// Appends a time that may never have been reached.
    pub fn push_time_option(&mut self, at: Option<SimTime>) {
        self.push_option(at.map(|at| seconds(u128::from(at.as_nanos()))));
    }

    fn push_causes(&mut self, lost: &LostByCause) {
        for cause in Cause::ALL {
            self.push(lost.get(cause));
        }
    }

    fn push_interval(&mut self, interval: Option<Interval>) {
        self.push_float_option(interval.map(|i| i.mean));
        self.push_float_option(interval.and_then(|i| i.sd));
        self.push_float_option(interval.and_then(|i| i.ci95).map(|(low, _)| low));
        self.push_float_option(interval.and_then(|i| i.ci95).map(|(_, high)| high));
    }
}

/// Returns nanoseconds as an exact decimal of seconds, without trailing zeros.
pub fn seconds(nanos: u128) -> String {
    let (whole, rest) = (nanos / 1_000_000_000, nanos % 1_000_000_000);
    if rest == 0 {
        return whole.to_string();
    }
    format!("{whole}.{rest:09}").trim_end_matches('0').to_owned()
}

fn split(columns: &str) -> Vec<String> {
    columns.split(',').map(str::to_owned).collect()
}

fn with_causes(columns: &mut Vec<String>, prefix: &str) {
    columns.extend(Cause::ALL.map(|c| format!("{prefix}{c}")));
}

fn push_context(context: &RowContext, row: &mut Fields) {
    row.push(&context.scenario);
    row.push(context.point);
    row.push(context.run);
    row.push(context.seed);
}

impl Row for Window {
    fn columns() -> Vec<String> {
        split(WINDOWS_COLUMNS)
    }

    fn fields(&self, context: &RowContext, row: &mut Fields) {
        push_context(context, row);
        row.push(self.window);
        row.push(self.opened_by.as_str());
        row.push(&self.service);
        row.push(&self.pod);
        row.push(&self.node);
        row.push_time(self.opened);
        row.push_time_option(self.endpoints_changed);
        row.push_time_option(self.stopped_accepting);
        row.push_time_option(self.ip_released);
        row.push_time_option(self.first_node);
        row.push_time_option(self.last_node);
        row.push_time_option(self.closed);
        row.push_float_option(self.stale_mean_s);
        row.push_float_option(self.stale_max_s);
        row.push(self.attempts);
        row.push(self.attempts_to_pod);
        let lost = self.lost.total();
        row.push(lost);
        row.push_causes(&self.lost);
        row.push(self.misdelivered);
        row.push_float_option((self.attempts > 0).then(|| lost as f64 / self.attempts as f64));
        row.push_option(self.lost_first_stale);
        row.push_float_option(self.expected_lost);
    }
}

impl Row for Run {
    fn columns() -> Vec<String> {
        let mut columns = split(
            "scenario,point,run,seed,ended,end_s,events,packets,requests,requests_lost,\
             requests_unfinished,attempts_inside,lost_inside",
        );
        with_causes(&mut columns, "lost_inside_");
        columns.extend(split("misdelivered_inside,attempts_outside,lost_outside"));
        with_causes(&mut columns, "lost_outside_");
        columns.extend(split(
            "misdelivered_outside,unfinished,windows,lost_first_stale,expected_lost,fingerprint,\
             rule_holders,rule_updates,hops,\
             syncs,full_syncs,failed_syncs,sync_s,lock_wait_s,\
             balance_chi2,balance_df,balance_p,rules_passed",
        ));
        columns
    }

    fn fields(&self, context: &RowContext, row: &mut Fields) {
        push_context(context, row);
        row.push(self.ended.as_str());
        row.push_time(self.end);
        row.push(self.events);
        row.push(self.packets);
        row.push(self.requests);
        row.push(self.requests_lost);
        row.push(self.requests_unfinished);
        for counts in [&self.inside, &self.outside] {
            row.push(counts.attempts);
            row.push(counts.lost.total());
            row.push_causes(&counts.lost);
            row.push(counts.misdelivered);
        }
        row.push(self.unfinished);
        row.push(self.windows);
        row.push_option(self.lost_first_stale);
        row.push_float_option(self.expected_lost);
        row.push(format!("{:016x}", self.fingerprint));
        row.push(self.holders);
        row.push(self.updates);
        row.push_float_option(self.mean_hops());
        row.push_option(self.syncs.map(|syncs| syncs.syncs));
        row.push_option(self.syncs.map(|syncs| syncs.full));
        row.push_option(self.syncs.map(|syncs| syncs.failed));
        row.push_option(self.syncs.map(|syncs| seconds(syncs.busy.as_nanos())));
        row.push_option(self.syncs.map(|syncs| seconds(syncs.lock_wait.as_nanos())));
        row.push_float_option(self.balance.map(|balance| balance.chi2));
        row.push_option(self.balance.map(|balance| balance.freedom));
        row.push_float_option(self.balance.as_ref().map(balance_p));
        row.push_float_option(self.mean_rules_passed());
    }
}

/// Returns the name of a lost attempt: `run-client-request-attempt`. A client's name may hold
/// dashes; the other parts are numbers.
pub fn loss_id(run: u64, loss: &Loss) -> String {
    format!("{run}-{}-{}-{}", loss.client, loss.request, loss.attempt)
}

impl Row for Loss {
    fn columns() -> Vec<String> {
        split(
            "point,run,loss_id,sent_s,ended_s,client,client_pod,node,service,rule,endpoint,cause,\
             symptom,window,stale_for_s",
        )
    }

    fn fields(&self, context: &RowContext, row: &mut Fields) {
        row.push(context.point);
        row.push(context.run);
        row.push(loss_id(context.run, self));
        row.push_time(self.sent);
        row.push_time(self.ended);
        row.push(&self.client);
        row.push(&self.client_pod);
        row.push(&self.node);
        row.push(&self.service);
        row.push_option(self.rule.as_ref());
        row.push_option(self.endpoint.as_ref());
        row.push(self.cause);
        row.push(self.symptom.as_str());
        row.push_option(self.window);
        row.push_option(self.stale_for.map(|d: Duration| seconds(d.as_nanos())));
    }
}

impl Row for Propagation {
    fn columns() -> Vec<String> {
        split(
            "point,run,service,change,node,endpoints_changed_s,live_s,rule_lag_s,informed_s,\
             sync_start_s,filter_live_s",
        )
    }

    fn fields(&self, context: &RowContext, row: &mut Fields) {
        row.push(context.point);
        row.push(context.run);
        row.push(&self.service);
        row.push(self.change);
        row.push(&self.node);
        row.push_time(self.endpoints_changed);
        row.push_time(self.live);
        row.push(seconds(self.live.saturating_since(self.endpoints_changed).as_nanos()));
        row.push_time_option(self.stages.map(|stages| stages.informed));
        row.push_time_option(self.stages.map(|stages| stages.sync_start));
        row.push_time_option(self.stages.map(|stages| stages.filter_live));
    }
}

impl Row for TimelineBin {
    fn columns() -> Vec<String> {
        let mut columns = split("point,run,start_s,end_s,attempts,lost");
        with_causes(&mut columns, "lost_");
        columns.extend(split("stale_nodes"));
        columns
    }

    fn fields(&self, context: &RowContext, row: &mut Fields) {
        row.push(context.point);
        row.push(context.run);
        row.push_time(self.start);
        row.push_time(self.end);
        row.push(self.attempts);
        row.push(self.lost.total());
        row.push_causes(&self.lost);
        row.push(self.stale_nodes);
    }
}

/// Writes `sweep.csv`: a row for each point, a column for each swept parameter, named by its path
/// and written as in the scenario.
///
/// # Panics
///
/// If the points differ in their parameters' paths.
pub fn write_sweep<W: io::Write>(out: W, points: &[PointSummary]) -> Result<W, Error> {
    let paths = |p: &PointSummary| p.parameters.iter().map(|p| p.path.clone()).collect::<Vec<_>>();
    let axes = points.first().map(paths).unwrap_or_default();
    let mut csv = plain(out);
    let mut columns = split("point");
    columns.extend(axes.iter().cloned());
    columns.extend(split("replications,windows"));
    for measure in ["lost_per_window", "lost_per_run", "lost_fraction"] {
        columns.extend(["mean", "sd", "ci95_low", "ci95_high"].map(|s| format!("{measure}_{s}")));
    }
    columns.extend(split("lost_p50,lost_p90,lost_p99,lost_max"));
    columns.extend(Cause::ALL.map(|c| format!("lost_{c}_mean")));
    columns.extend(split(
        "stale_max_s_mean,last_node_lag_s_mean,last_node_lag_s_sd,last_node_lag_s_ci95_low,\
         last_node_lag_s_ci95_high,last_node_lag_s_closed_form,expected_lost_mean,\
         lost_first_stale_mean,rule_holders_mean,rule_updates_mean,hops_mean,\
         rules_passed_mean,\
         sync_s_mean,sync_s_sd,sync_s_ci95_low,sync_s_ci95_high",
    ));
    csv.write_record(&columns)?;
    let mut row = Fields::default();
    for point in points {
        assert_eq!(paths(point), axes, "the parameters of point {}", point.point);
        row.0.clear();
        row.push(point.point);
        for parameter in &point.parameters {
            row.push(&parameter.display);
        }
        row.push(point.replications);
        row.push(point.windows);
        row.push_interval(point.lost_per_window);
        row.push_interval(point.lost_per_run);
        row.push_interval(point.lost_fraction);
        row.push_float_option(point.lost_p50);
        row.push_float_option(point.lost_p90);
        row.push_float_option(point.lost_p99);
        row.push_option(point.lost_max);
        for cause in 0..Cause::ALL.len() {
            row.push_float_option(point.lost_by_cause.map(|by| by[cause]));
        }
        row.push_float_option(point.stale_max_s);
        row.push_interval(point.last_node_lag_s);
        row.push_float_option(point.last_node_lag_closed_form_s);
        row.push_float_option(point.expected_lost);
        row.push_float_option(point.lost_first_stale);
        row.push_float_option(Some(point.holders));
        row.push_float_option(Some(point.updates));
        row.push_float_option(point.hops);
        row.push_float_option(point.rules.map(|i| i.mean));
        row.push_interval(point.sync_s);
        csv.write_record(&row.0)?;
    }
    csv.into_inner().map_err(|e| Error::from(e.into_error()))
}
