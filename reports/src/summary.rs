//! What a terminal shows of a run and of a sweep: the question, the answer in a sentence, then
//! expectations and tables.
//!
//! Text is at most 100 columns wide and holds no colours; numbers are rounded, the CSV files have
//! them in full.

use std::time::Duration;

use comfy_table::{CellAlignment, ContentArrangement, LineStyle, Table, TableStyle};
use sim_core::record::{Cause, Ended, LostByCause, Window};

use crate::collect::RunRecords;
use crate::plot::{Axis, Spread, label_of, mean_and_spread, with_half_width};
use crate::stats::{PointSummary, balance_p};

const COLUMNS: u16 = 100;

/// Windows that a terminal lists; of more, those that lost most.
const MOST_WINDOWS: usize = 20;

/// Points that a terminal lists.
const MOST_POINTS: usize = 40;

/// Lines that tell where expectations did not hold.
const MOST_EXPECTATION_LINES: usize = 20;

/// Values of a parameter that have a column each.
const MOST_COLUMNS: usize = 6;

/// What came of an expectation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It held.
    Held,
    /// It did not.
    Failed,
    /// The records cannot tell.
    Undecided,
}

impl Verdict {
    /// Returns the word used in tables.
    pub fn as_str(self) -> &'static str {
        match self {
            Verdict::Held => "held",
            Verdict::Failed => "FAILED",
            Verdict::Undecided => "undecided",
        }
    }
}

/// A stated expectation, judged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Expectation {
    /// As the scenario states it.
    pub text: String,
    /// What came of it.
    pub verdict: Verdict,
    /// What was observed.
    pub observed: String,
}

/// A stated expectation over the runs of a sweep.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SweepExpectation {
    /// As the scenario states it.
    pub text: String,
    /// What came of it; `None` where the sweep is not judged by it.
    pub verdict: Option<Verdict>,
    /// In how many runs of each point it held.
    pub held: Vec<usize>,
}

/// What a run's summary is about.
#[derive(Clone, Copy, Debug)]
pub struct RunSummary<'a> {
    /// The scenario's question, or its name.
    pub question: &'a str,
    /// The scenario's expectations.
    pub expectations: &'a [Expectation],
    /// The records.
    pub records: &'a RunRecords,
    /// The user's seed.
    pub seed: u64,
    /// The version of rulelag.
    pub version: &'a str,
}

/// What a sweep's summary is about.
#[derive(Clone, Copy, Debug)]
pub struct SweepSummary<'a> {
    /// The scenario's question, or its name.
    pub question: &'a str,
    /// The scenario's expectations.
    pub expectations: &'a [SweepExpectation],
    /// The swept parameters.
    pub axes: &'a [Axis],
    /// The points.
    pub points: &'a [PointSummary],
    /// The user's seed.
    pub seed: u64,
    /// The version of rulelag.
    pub version: &'a str,
}

/// Returns the summary of a run.
pub fn run(summary: &RunSummary<'_>) -> String {
    let RunSummary { records, .. } = summary;
    let mut out = head(summary.question, &run_answer(records));
    if !summary.expectations.is_empty() {
        out.push_str(&expectations_of_run(summary.expectations));
    }
    if !records.windows.is_empty() {
        out.push('\n');
        out.push_str(&windows_table(&records.windows));
    }
    let run = &records.run;
    out.push('\n');
    out.push_str(&format!(
        "{} requests, {} lost, {} unfinished; {} attempts, {} outside windows ({} lost)\n",
        count(run.requests),
        count(run.requests_lost),
        count(run.requests_unfinished),
        count(run.inside.attempts + run.outside.attempts),
        count(run.outside.attempts),
        count(run.outside.lost.total()),
    ));
    let misdelivered = run.inside.misdelivered + run.outside.misdelivered;
    if misdelivered > 0 {
        let attempts = plural(misdelivered, "attempt");
        out.push_str(&format!("{attempts} answered by another workload, not counted as lost\n"));
    }
    if let Some(balance) = &run.balance {
        out.push_str(&format!(
            "endpoints chosen alike often: p = {} (χ² {} over {})\n",
            probability(balance_p(balance)),
            rounded(balance.chi2),
            format_args!("{} of freedom", plural(balance.freedom, "degree")),
        ));
    }
    if run.unfinished > 0 {
        let attempts = plural(run.unfinished, "attempt");
        out.push_str(&format!("{attempts} still open at the end, not counted as lost\n"));
    }
    let ended = match run.ended {
        Ended::Complete => "complete",
        Ended::Duration => "cut at the scenario's duration",
    };
    let end = crate::csv::seconds(u128::from(run.end.as_nanos()));
    out.push_str(&format!("{ended} at {end} s, {} events\n", count(run.events)));
    out.push_str(&format!(
        "seed {}, fingerprint {:016x}, rulelag {}\n",
        summary.seed, run.fingerprint, summary.version
    ));
    out
}

/// Returns the summary of a sweep.
pub fn sweep(summary: &SweepSummary<'_>) -> String {
    let mut out = head(summary.question, &sweep_answer(summary.axes, summary.points));
    if !summary.expectations.is_empty() {
        out.push_str(&expectations_of_sweep(summary));
    }
    if !summary.points.is_empty() {
        out.push('\n');
        out.push_str(&points_table(summary.axes, summary.points));
    }
    if summary.axes.iter().any(|axis| is_about_proxies(&axis.path)) {
        out.push('\n');
        out.push_str(&upkeep_table(summary.axes, summary.points));
    }
    let windows: usize = summary.points.iter().map(|p| p.windows).sum();
    let runs: usize = summary.points.iter().map(|p| p.replications).sum();
    out.push_str(&format!(
        "\n{}, {}, {}\nseed {}, rulelag {}\n",
        plural(summary.points.len() as u64, "point"),
        plural(runs as u64, "run"),
        plural(windows as u64, "window"),
        summary.seed,
        summary.version
    ));
    out
}

fn head(question: &str, answer: &str) -> String {
    let mut out = String::new();
    for text in [question, answer] {
        for line in wrap(text) {
            out.push_str(&line);
            out.push('\n');
        }
    }
    out
}

fn expectations_of_run(expectations: &[Expectation]) -> String {
    let held = expectations.iter().filter(|e| e.verdict == Verdict::Held).count();
    let mut table = table(&["expected", "", "observed"]);
    for expectation in expectations {
        table.add_row([
            expectation.text.as_str(),
            expectation.verdict.as_str(),
            expectation.observed.as_str(),
        ]);
    }
    let all = plural(expectations.len() as u64, "expectation");
    format!("\n{held} of {all} held\n{}", text(&table))
}

fn expectations_of_sweep(summary: &SweepSummary<'_>) -> String {
    let all = summary.expectations;
    let judged = all.iter().filter(|e| e.verdict.is_some()).count();
    let held = all.iter().filter(|e| e.verdict == Some(Verdict::Held)).count();
    let title = match (judged, all.len() - judged) {
        (0, _) => "expectations, none of them judged over the sweep".to_owned(),
        (_, 0) => format!("{held} of {} held", plural(judged as u64, "expectation")),
        (_, n) => {
            format!("{held} of {} held, {n} not judged", plural(judged as u64, "expectation"))
        }
    };
    let mut rows: Vec<[String; 3]> = Vec::new();
    for expectation in all {
        let runs: usize = summary.points.iter().map(|p| p.replications).sum();
        let held: usize = expectation.held.iter().sum();
        rows.push([
            expectation.text.clone(),
            expectation.verdict.map_or("(not judged)", Verdict::as_str).to_owned(),
            format!("held in {held} of {}", plural(runs as u64, "run")),
        ]);
        for (point, &held) in summary.points.iter().zip(&expectation.held) {
            let label = label_of(summary.axes, point);
            if held < point.replications && !label.is_empty() {
                let observed = format!("{held} of {}", point.replications);
                rows.push([format!("  at {label}"), String::new(), observed]);
            }
        }
    }
    let more = rows.len().saturating_sub(MOST_EXPECTATION_LINES);
    rows.truncate(MOST_EXPECTATION_LINES);
    let mut table = table(&["expected", "", "observed"]);
    for row in rows {
        table.add_row(row);
    }
    let more = if more > 0 { format!(" … and {more} more lines\n") } else { String::new() };
    format!("\n{title}\n{}{more}", text(&table))
}

/// Returns the sentence that answers what a run lost.
pub fn run_answer(records: &RunRecords) -> String {
    let mut lost = LostByCause::default();
    for window in &records.windows {
        lost.merge(&window.lost);
    }
    let windows = records.windows.len();
    let inside = records.run.inside;
    if windows == 0 {
        let outside = records.run.outside.lost.total();
        let were = if outside == 1 { "was" } else { "were" };
        return format!(
            "No deletion window was opened; {} {were} lost.",
            plural(outside, "attempt")
        );
    }
    let each = match windows {
        1 => "The only deletion window".to_owned(),
        n => format!("Each of {} deletion windows", count(n as u64)),
    };
    if lost.total() == 0 {
        let windows = match windows {
            1 => "the only deletion window".to_owned(),
            n => plural(n as u64, "deletion window"),
        };
        let outside = match records.run.outside.lost.total() {
            0 => String::new(),
            n => format!(
                "; {} lost outside",
                if n == 1 { "1 was".to_owned() } else { format!("{} were", count(n)) }
            ),
        };
        return format!(
            "No attempt was lost in {windows}, of {} sent meanwhile{outside}.",
            count(inside.attempts),
        );
    }
    let mean = lost.total() as f64 / windows as f64;
    let per = if windows == 1 {
        plural(lost.total(), "attempt")
    } else {
        format!("{} attempts on average", rounded(mean))
    };
    let share = match inside.attempts {
        0 => String::new(),
        n => format!(
            " ({} of those sent while {} open)",
            percent(inside.lost.total() as f64 / n as f64),
            if windows == 1 { "it was" } else { "windows were" }
        ),
    };
    let by = Cause::ALL.map(|c| lost.get(c) as f64);
    format!("{each} loses {per}{share}: {}.", shares(&by))
}

/// Returns the sentence that answers what a sweep's points lose.
pub fn sweep_answer(axes: &[Axis], points: &[PointSummary]) -> String {
    let known: Vec<(&PointSummary, f64)> =
        points.iter().filter_map(|p| Some((p, p.lost_per_window?.mean))).collect();
    let least = known.iter().min_by(|a, b| a.1.total_cmp(&b.1));
    let most = known.iter().max_by(|a, b| a.1.total_cmp(&b.1));
    let (Some(least), Some(most)) = (least, most) else {
        return "No deletion window was opened.".to_owned();
    };
    if most.1 == 0.0 {
        return match known.len() {
            1 => "No attempt was lost.".to_owned(),
            n => format!("No attempt was lost at any of {n} points."),
        };
    }
    let describe = |p: &PointSummary| with_half_width(&p.lost_per_window.expect("a known mean"));
    let at = |p: &PointSummary| {
        let label = label_of(axes, p);
        if label.is_empty() { label } else { format!(" at {label}") }
    };
    let share = match most.0.lost_fraction {
        Some(f) => format!(", {} of those sent while windows were open", percent(f.mean)),
        None => String::new(),
    };
    let by = most.0.lost_by_cause.map(|by| format!(" ({})", shares(&by))).unwrap_or_default();
    if known.len() == 1 {
        return format!("A deletion window loses {} attempts{share}{by}.", describe(most.0));
    }
    format!(
        "A deletion window loses {} attempts{} and {}{}{share}{by}.",
        describe(least.0),
        at(least.0),
        describe(most.0),
        at(most.0),
    )
}

fn windows_table(windows: &[Window]) -> String {
    let mut all = LostByCause::default();
    for window in windows {
        all.merge(&window.lost);
    }
    let causes: Vec<Cause> = Cause::ALL.into_iter().filter(|&c| all.get(c) > 0).collect();
    let mut shown: Vec<&Window> = windows.iter().collect();
    if shown.len() > MOST_WINDOWS {
        shown.sort_by_key(|w| std::cmp::Reverse(w.lost.total()));
        shown.truncate(MOST_WINDOWS);
        shown.sort_by_key(|w| w.window);
    }
    // A cause that takes the table past the terminal's edge is part of `lost` all the same.
    let named = &causes[..causes.len().min(4)];
    let mut header = vec!["#", "pod", "node", "opened", "stale", "attempts", "lost"];
    header.extend(named.iter().map(|c| c.as_str()));
    let theory = windows.iter().any(|w| w.expected_lost.is_some());
    if theory {
        header.push(THEORY);
    }
    let mut rows = Vec::new();
    for window in &shown {
        let mut row = vec![
            window.window.to_string(),
            window.pod.to_string(),
            window.node.to_string(),
            format!("{:.1} s", window.opened.as_secs_f64()),
            window.stale_max_s.map_or("-".to_owned(), |s| format!("{s:.3} s")),
            count(window.attempts),
            count(window.lost.total()),
        ];
        row.extend(named.iter().map(|&c| count(window.lost.get(c))));
        if theory {
            row.push(window.expected_lost.map_or("-".to_owned(), rounded));
        }
        rows.push(row);
    }
    let expected: Option<Vec<f64>> = windows.iter().map(|w| w.expected_lost).collect();
    let stale = windows.iter().filter_map(|w| w.stale_max_s).reduce(f64::max);
    let mut total = vec![
        "all".to_owned(),
        plural(windows.len() as u64, "window"),
        String::new(),
        String::new(),
        stale.map_or("-".to_owned(), |s| format!("{s:.3} s")),
        String::new(), // windows that overlap share attempts
        count(all.total()),
    ];
    total.extend(named.iter().map(|&c| count(all.get(c))));
    if theory {
        total.push(expected.map_or("-".to_owned(), |e| rounded(e.iter().sum())));
    }
    rows.push(total);
    let mut out = numbers(&header, rows, &[1, 2]);
    if shown.len() < windows.len() {
        out.push_str(&format!(
            "(the {} windows of {} that lost most)\n",
            shown.len(),
            windows.len()
        ));
    }
    if theory {
        out.push_str(&theory_note("this run's times"));
    }
    out
}

/// The column of what the closed form expects to be lost.
const THEORY: &str = "theory";

fn theory_note(given: &str) -> String {
    format!("{THEORY}: expected number of first attempts lost to stale rules, given {given}\n")
}

fn points_table(axes: &[Axis], points: &[PointSummary]) -> String {
    let varied: Vec<usize> = (0..axes.len())
        .filter(|&a| points.iter().any(|p| p.parameters[a] != points[0].parameters[a]))
        .collect();
    if let [first, second] = varied[..] {
        let few = |axis: usize| distinct(points, axis).len() <= MOST_COLUMNS;
        if few(second) {
            return grid(axes, points, first, second);
        }
        if few(first) {
            return grid(axes, points, second, first);
        }
    }
    let mut header = vec!["point"];
    header.extend(varied.iter().map(|&a| axes[a].title.as_str()));
    header.extend(["lost per window", "p99", "max", "of attempts", "last node"]);
    let theory = points.iter().any(|p| p.expected_lost.is_some());
    if theory {
        header.push(THEORY);
    }
    let shown = &points[..points.len().min(MOST_POINTS)];
    let rows = |no_p99: &str| -> Vec<Vec<String>> {
        let row = |point: &PointSummary| {
            let mut row = vec![point.point.to_string()];
            row.extend(varied.iter().map(|&a| point.parameters[a].display.clone()));
            let no_p99 = if point.windows == 0 { "-" } else { no_p99 };
            row.extend([
                lost_cell(point),
                point.lost_p99.map_or(no_p99.to_owned(), rounded),
                point.lost_max.map_or("-".to_owned(), count),
                point.lost_fraction.map_or("-".to_owned(), |f| percent(f.mean)),
                point.last_node_lag_s.map_or("-".to_owned(), |i| format!("{:.3} s", i.mean)),
            ]);
            if theory {
                row.push(point.expected_lost.map_or("-".to_owned(), rounded));
            }
            row
        };
        shown.iter().map(row).collect()
    };
    let elastic: Vec<usize> = (1..=varied.len()).collect();
    const TOO_FEW: &str = "too few windows";
    let with_words = rows(TOO_FEW);
    let has_room = width(&widths(&header, &with_words)) <= usize::from(COLUMNS);
    let mut out = match has_room {
        true => numbers(&header, with_words, &elastic),
        false => numbers(&header, rows("-"), &elastic),
    };
    if points.len() > MOST_POINTS {
        out.push_str(&format!("(the first {MOST_POINTS} points of {})\n", points.len()));
    }
    if !has_room && shown.iter().any(|p| p.windows > 0 && p.lost_p99.is_none()) {
        out.push_str(&format!("p99 -: {TOO_FEW}\n"));
    }
    if theory {
        out.push_str(&theory_note("each run's times"));
    }
    out
}

/// Whether what proxies do is part of what a sweep compares.
fn is_about_proxies(path: &str) -> bool {
    path.starts_with("proxy.") || path.starts_with("propagation.pipeline.")
}

/// What Services take besides lost attempts, point by point: what one machine's failure hits
/// beside how late the last one hears of a change.
fn upkeep_table(axes: &[Axis], points: &[PointSummary]) -> String {
    let varied: Vec<usize> = (0..axes.len()).filter(|&a| distinct(points, a).len() > 1).collect();
    let mut header = vec!["point"];
    header.extend(varied.iter().map(|&a| axes[a].title.as_str()));
    header.extend(["hops", "passed", "machines", "updates", "if one fails", "last node", "a sync"]);
    let seconds = |s: f64| duration(Duration::from_secs_f64(s));
    let row = |point: &PointSummary| {
        let mut row = vec![point.point.to_string()];
        row.extend(varied.iter().map(|&a| point.parameters[a].display.clone()));
        let last = point.last_node_lag_s.map(|i| seconds(i.mean));
        let sync = point.sync_s.map(|i| seconds(i.mean));
        let (nothing, holders) = ("-".to_owned(), point.holders);
        row.extend([
            point.hops.map_or(nothing.clone(), |hops| format!("{hops:.2}")),
            point.rules.map_or(nothing.clone(), |rules| rounded(rules.mean)),
            count(holders.round() as u64),
            rounded(point.updates),
            if holders > 0.0 { percent(1.0 / holders) } else { nothing.clone() },
            last.unwrap_or(nothing.clone()),
            sync.unwrap_or(nothing),
        ]);
        row
    };
    let rows = points.iter().take(MOST_POINTS).map(row).collect();
    let elastic: Vec<usize> = (1..=varied.len()).collect();
    let mut out = numbers(&header, rows, &elastic);
    if points.len() > MOST_POINTS {
        out.push_str(&format!("(the first {MOST_POINTS} points of {})\n", points.len()));
    }
    let notes = "hops, passed: from machine to machine, and the rules that are passed one after the \
                 other, of a connection's first packet; machines: that hold rules; updates: \
                 changes of a Service, for each of them; if one fails: the share of clients that \
                 loses all of its Services";
    for line in wrap(notes) {
        out.push_str(&line);
        out.push('\n');
    }
    out
}

fn lost_cell(point: &PointSummary) -> String {
    point.lost_per_window.map_or("-".to_owned(), |i| with_half_width(&i))
}

fn distinct(points: &[PointSummary], axis: usize) -> Vec<&str> {
    let mut values: Vec<&str> = Vec::new();
    for point in points {
        let value = point.parameters[axis].display.as_str();
        if !values.contains(&value) {
            values.push(value);
        }
    }
    values
}

fn grid(axes: &[Axis], points: &[PointSummary], down: usize, across: usize) -> String {
    let columns = distinct(points, across);
    let mut header = vec![""];
    header.extend(&columns);
    let rows = distinct(points, down).into_iter().map(|row| {
        let mut cells = vec![row.to_owned()];
        cells.extend(columns.iter().map(|column| {
            let here = points.iter().find(|p| {
                p.parameters[down].display == row && p.parameters[across].display == *column
            });
            here.map_or("-".to_owned(), lost_cell)
        }));
        cells
    });
    let clipped = points
        .iter()
        .filter_map(|p| p.lost_per_window)
        .any(|interval| matches!(mean_and_spread(&interval).1, Some(Spread::FromZero(_))));
    let clipped = if clipped { ", or (0 to its end) where it reaches below 0" } else { "" };
    let title = format!(
        "lost attempts per deletion window, mean ± half of the 95 % interval{clipped}: {} down, {} across",
        axes[down].title, axes[across].title
    );
    format!("{}\n{}", wrap(&title).join("\n"), numbers(&header, rows.collect(), &[]))
}

/// Returns the width of each column as its cells would have it.
fn widths(header: &[&str], rows: &[Vec<String>]) -> Vec<usize> {
    let length = |text: &str| text.chars().count();
    let widest = |column: usize| {
        let cells = rows.iter().map(|r| length(&r[column]));
        cells.max().unwrap_or(0).max(length(header[column]))
    };
    (0..header.len()).map(widest).collect()
}

/// Returns the width of a table whose columns have these.
fn width(widths: &[usize]) -> usize {
    widths.iter().map(|w| w + 2).sum::<usize>().saturating_sub(1)
}

/// Fewer characters than this tell no Pod from another.
const LEAST_NAME: usize = 10;

/// Lays out rows whose columns are numbers but for the `elastic` ones, names that are cut until
/// the table fits.
fn numbers(header: &[&str], rows: Vec<Vec<String>>, elastic: &[usize]) -> String {
    let mut widths = widths(header, &rows);
    while width(&widths) > usize::from(COLUMNS) {
        let longest = elastic.iter().copied().max_by_key(|&e| widths[e]);
        match longest {
            Some(longest) if widths[longest] > LEAST_NAME => widths[longest] -= 1,
            _ => break,
        }
    }
    let fit = |column: usize, text: &str| cut(text, widths[column]);
    let mut table = table(&[]);
    table
        .set_content_arrangement(ContentArrangement::Disabled)
        .set_header(header.iter().enumerate().map(|(i, h)| fit(i, h)));
    for row in &rows {
        table.add_row(row.iter().enumerate().map(|(i, cell)| fit(i, cell)));
    }
    for (index, column) in table.column_iter_mut().enumerate() {
        column.set_padding((0, 1));
        if !elastic.contains(&index) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    text(&table)
}

pub(crate) fn table(header: &[&str]) -> Table {
    let mut table = Table::new();
    table
        .load_style(TableStyle::new().header_separator(LineStyle::none().fill('─').junction('─')))
        .set_content_arrangement(ContentArrangement::Dynamic)
        .set_width(COLUMNS)
        .set_header(header);
    table
}

pub(crate) fn text(table: &Table) -> String {
    let mut out = String::new();
    for line in table.lines() {
        out.push_str(line.trim_end());
        out.push('\n');
    }
    out
}

/// Splits text where a line may end: at spaces, but not before a unit or about a `±`.
pub(crate) fn words(text: &str) -> Vec<String> {
    let mut words: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        let bare = word.trim_end_matches([',', '.', ';', ':', ')']);
        let unit = ["%", "s", "ms", "µs", "ns", "±"].contains(&bare);
        match words.last_mut() {
            Some(last) if unit || last.ends_with('±') => {
                last.push(' ');
                last.push_str(word);
            }
            _ => words.push(word.to_owned()),
        }
    }
    words
}

fn wrap(text: &str) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in words(text) {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 1 + word.chars().count() <= COLUMNS.into() => {
                line.push(' ');
                line.push_str(&word);
            }
            _ => lines.push(word),
        }
    }
    lines
}

/// Keeps the end of a name, where the Pods of a Deployment differ.
fn cut(name: &str, most: usize) -> String {
    let chars: Vec<char> = name.chars().collect();
    if chars.len() <= most {
        return name.to_owned();
    }
    let tail = (2 * most / 3).max(LEAST_NAME - 3).min(most.saturating_sub(1));
    let head = most.saturating_sub(tail + 1);
    chars[..head].iter().chain(['…'].iter()).chain(&chars[chars.len() - tail..]).collect()
}

/// Returns a probability to three digits.
fn probability(p: f64) -> String {
    if p > 0.0 && p < 0.001 { "<0.001".to_owned() } else { format!("{p:.3}") }
}

fn plural(n: u64, noun: &str) -> String {
    format!("{} {noun}{}", count(n), if n == 1 { "" } else { "s" })
}

/// Returns the shares of causes, the greatest first: `92 % refused, 8 % blackholed`.
pub(crate) fn shares(by: &[f64; Cause::ALL.len()]) -> String {
    let total: f64 = by.iter().sum();
    let mut causes: Vec<(f64, Cause)> =
        by.iter().copied().zip(Cause::ALL).filter(|c| c.0 > 0.0).collect();
    causes.sort_by(|a, b| b.0.total_cmp(&a.0));
    let shares: Vec<String> = causes
        .iter()
        .map(|(n, cause)| {
            if causes.len() == 1 {
                format!("all {cause}")
            } else {
                format!("{} {cause}", percent(n / total))
            }
        })
        .collect();
    shares.join(", ")
}

/// Returns a share as a percentage with two significant digits.
pub fn percent(share: f64) -> String {
    let percent = share * 100.0;
    match percent {
        0.0 => "0 %".to_owned(),
        p if p >= 9.95 => format!("{p:.0} %"),
        p if p >= 0.995 => format!("{p:.1} %"),
        p if p >= 0.0995 => format!("{p:.2} %"),
        p if p >= 0.001 => format!("{p:.3} %"),
        _ => "<0.001 %".to_owned(),
    }
}

/// Returns a number with about three significant digits, thousands grouped.
pub fn rounded(value: f64) -> String {
    crate::plot::number(value)
}

fn count(n: u64) -> String {
    crate::plot::number_whole(n)
}

/// Returns a span as people write it, to three digits: `1.5 s`, `300 ms`, `20 µs`.
pub fn duration(span: Duration) -> String {
    let s = span.as_secs_f64();
    let (value, unit) = match span.as_nanos() {
        0 => return "0 s".to_owned(),
        n if n < 1_000 => (s * 1e9, "ns"),
        n if n < 1_000_000 => (s * 1e6, "µs"),
        n if n < 1_000_000_000 => (s * 1e3, "ms"),
        _ => (s, "s"),
    };
    let value = rounded(value);
    let short = match value.contains('.') {
        true => value.trim_end_matches('0').trim_end_matches('.'),
        false => &value,
    };
    format!("{short} {unit}")
}
