//! Expectations: small expressions about a run's totals.
//!
//! ```text
//! metric [ {cause="refused"} ] operator number
//!   lost == 0      lost_fraction <= 0.1%      lost{cause="refused"} == 0      stale_max_s < 5
//! ```

use std::fmt;

use reports::collect::RunRecords;
use sim_core::record::Cause;

use crate::units::closest;

/// An expression that holds of a run or does not.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Expectation {
    /// As written.
    pub(crate) text: String,
    metric: Metric,
    operator: Operator,
    bound: f64,
    /// Whether the bound is written as a percentage.
    percent: bool,
    /// Who judges it.
    pub(crate) over: Over,
}

/// Who judges an expectation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Over {
    /// `rulelag run`; a sweep shows it.
    Run,
    /// `rulelag sweep`, too: it must hold in every run.
    Sweep,
}

/// What an expectation came to.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Outcome {
    /// The metric's value, if the run has one.
    pub(crate) value: Option<f64>,
    /// Whether the expectation holds; nothing if there is no value to judge.
    pub(crate) holds: Option<bool>,
}

/// A number that a run comes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Metric {
    Attempts,
    Lost(Option<Cause>),
    LostFraction(Option<Cause>),
    LostOutside,
    LostPerWindowMax,
    Requests,
    RequestsLost,
    RequestsUnfinished,
    Unfinished,
    Misdelivered,
    Windows,
    LostFirstStale,
    ExpectedLost,
    StaleMax,
    StaleMean,
    BalanceP,
    End,
}

/// All metrics, and what they are.
pub(crate) const METRICS: &[(&str, &str)] = &[
    ("attempts", "attempts begun"),
    ("lost", "lost attempts; with {cause=\"…\"} those of one cause"),
    ("lost_fraction", "lost / attempts"),
    ("lost_outside", "lost attempts begun outside every deletion window"),
    ("lost_window_max", "lost attempts of the worst deletion window"),
    ("requests", "requests begun"),
    ("requests_lost", "requests that no attempt could save"),
    ("requests_unfinished", "requests still open at the end"),
    ("unfinished", "attempts still open at the end"),
    ("misdelivered", "attempts answered by another workload"),
    ("windows", "deletion windows"),
    ("lost_first_stale", "first attempts lost because a rule outlived its listener"),
    ("expected_lost", "the expectation of lost_first_stale"),
    ("stale_max_s", "longest that a node's rules outlived a listener, in seconds"),
    ("stale_mean_s", "mean of the same over nodes and windows, in seconds"),
    ("balance_p", "probability of endpoints being chosen so unevenly, if all are as likely"),
    ("end_s", "when the run ended, in seconds"),
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operator {
    Equal,
    NotEqual,
    Less,
    AtMost,
    Greater,
    AtLeast,
}

/// Longer operators first: `<=` begins with `<`.
const OPERATORS: [(&str, Operator); 6] = [
    ("==", Operator::Equal),
    ("!=", Operator::NotEqual),
    ("<=", Operator::AtMost),
    (">=", Operator::AtLeast),
    ("<", Operator::Less),
    (">", Operator::Greater),
];

/// Why a text is not an expectation, and what to do.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ParseError {
    /// What is wrong.
    pub(crate) message: String,
    /// A sentence of help.
    pub(crate) help: String,
}

impl Expectation {
    /// Reads an expression.
    pub(crate) fn parse(text: &str, over: Over) -> Result<Expectation, ParseError> {
        let fail = |message: String, help: &str| ParseError { message, help: help.to_owned() };
        let name_end =
            text.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(text.len());
        let (name, rest) = text.split_at(name_end);
        let rest = rest.trim_start();
        let (cause, rest) = match rest.strip_prefix('{') {
            None => (None, rest),
            Some(rest) => {
                let Some((label, rest)) = rest.split_once('}') else {
                    return Err(fail("a `{` is never closed".to_owned(), CAUSE_HELP));
                };
                (Some(parse_cause(label)?), rest)
            }
        };
        let metric = parse_metric(name, cause)?;
        let rest = rest.trim();
        let found = OPERATORS
            .into_iter()
            .find_map(|(sign, operator)| Some((operator, rest.strip_prefix(sign)?)));
        let Some((operator, number)) = found else {
            let message = if rest.starts_with('=') {
                "`=` does not compare".to_owned()
            } else {
                format!("`{text}` compares nothing")
            };
            return Err(fail(message, "compare with ==, !=, <, <=, > or >=, as in `lost == 0`"));
        };
        let number = number.trim();
        let (digits, scale, percent) = match number.strip_suffix('%') {
            Some(digits) => (digits.trim_end(), 0.01, true),
            None => (number, 1.0, false),
        };
        match digits.replace('_', "").parse::<f64>() {
            Ok(bound) if bound.is_finite() => Ok(Expectation {
                text: text.to_owned(),
                metric,
                operator,
                bound: bound * scale,
                percent,
                over,
            }),
            _ => Err(fail(
                format!("{number:?} is not a number"),
                "the right side is a number or a percentage, as in `lost_fraction <= 0.1%`",
            )),
        }
    }

    /// Judges a run.
    pub(crate) fn judge(&self, records: &RunRecords) -> Outcome {
        let value = self.metric.of(records);
        Outcome { value, holds: value.map(|value| self.operator.holds(value, self.bound)) }
    }

    /// Writes a value of the metric as the bound is written, with four significant digits; with
    /// more where fewer would say something else about the expectation.
    pub(crate) fn show(&self, value: f64) -> String {
        if !self.percent && value.fract() == 0.0 {
            return value.to_string();
        }
        let holds = self.operator.holds(value, self.bound);
        let (scale, unit) = if self.percent { (100.0, "%") } else { (1.0, "") };
        let written = (4..=17).map(|digits| significant(value * scale, digits)).find(|written| {
            let read = written.parse::<f64>().map(|read| read / scale);
            read.is_ok_and(|read| self.operator.holds(read, self.bound) == holds)
        });
        format!("{}{unit}", written.unwrap_or_else(|| (value * scale).to_string()))
    }
}

impl fmt::Display for Expectation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// Returns `value` with so many significant digits, without zeros at the end.
fn significant(value: f64, digits: i32) -> String {
    if value == 0.0 || !value.is_finite() {
        return value.to_string();
    }
    let power = libm::log10(value.abs()).floor() as i32;
    let decimals = (digits - 1 - power).clamp(0, 20) as usize;
    let text = format!("{value:.decimals$}");
    match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text,
    }
}

const CAUSE_HELP: &str = "a cause is written `lost{cause=\"refused\"}`";

fn parse_cause(label: &str) -> Result<Cause, ParseError> {
    let fail = |message: String, help: String| Err(ParseError { message, help });
    let Some((key, value)) = label.split_once('=') else {
        return fail(format!("`{{{label}}}` is not a label"), CAUSE_HELP.to_owned());
    };
    if key.trim() != "cause" {
        let message = format!("unknown label `{}`", key.trim());
        return fail(message, CAUSE_HELP.to_owned());
    }
    let value = value.trim().trim_matches('"');
    let causes = || Cause::ALL.into_iter().map(Cause::as_str);
    match Cause::ALL.into_iter().find(|cause| cause.as_str() == value) {
        Some(cause) => Ok(cause),
        None => fail(
            format!("unknown cause {value:?}"),
            match closest(value, causes()) {
                Some(cause) => format!("did you mean {cause:?}?"),
                None => format!("known are {}", causes().collect::<Vec<_>>().join(", ")),
            },
        ),
    }
}

fn parse_metric(name: &str, cause: Option<Cause>) -> Result<Metric, ParseError> {
    let metric = match name {
        "attempts" => Metric::Attempts,
        "lost" => return Ok(Metric::Lost(cause)),
        "lost_fraction" => return Ok(Metric::LostFraction(cause)),
        "lost_outside" => Metric::LostOutside,
        "lost_window_max" => Metric::LostPerWindowMax,
        "requests" => Metric::Requests,
        "requests_lost" => Metric::RequestsLost,
        "requests_unfinished" => Metric::RequestsUnfinished,
        "unfinished" => Metric::Unfinished,
        "misdelivered" => Metric::Misdelivered,
        "windows" => Metric::Windows,
        "lost_first_stale" => Metric::LostFirstStale,
        "expected_lost" => Metric::ExpectedLost,
        "stale_max_s" => Metric::StaleMax,
        "stale_mean_s" => Metric::StaleMean,
        "balance_p" => Metric::BalanceP,
        "end_s" => Metric::End,
        _ => {
            let names = || METRICS.iter().map(|&(name, _)| name);
            let help = match closest(name, names()) {
                Some(name) => format!("did you mean `{name}`?"),
                None => format!("known are {}", names().collect::<Vec<_>>().join(", ")),
            };
            return Err(ParseError { message: format!("unknown metric {name:?}"), help });
        }
    };
    match cause {
        None => Ok(metric),
        Some(_) => Err(ParseError {
            message: format!("`{name}` has no causes"),
            help: "`lost` and `lost_fraction` have".to_owned(),
        }),
    }
}

impl Metric {
    fn of(self, records: &RunRecords) -> Option<f64> {
        let run = &records.run;
        let attempts = run.inside.attempts + run.outside.attempts;
        let lost = |cause: Option<Cause>| match cause {
            None => run.inside.lost.total() + run.outside.lost.total(),
            Some(cause) => run.inside.lost.get(cause) + run.outside.lost.get(cause),
        };
        let count = |count: u64| Some(count as f64);
        let windows = records.windows.iter();
        match self {
            Metric::Attempts => count(attempts),
            Metric::Lost(cause) => count(lost(cause)),
            Metric::LostFraction(cause) => {
                (attempts > 0).then(|| lost(cause) as f64 / attempts as f64)
            }
            Metric::LostOutside => count(run.outside.lost.total()),
            Metric::LostPerWindowMax => windows.map(|w| w.lost.total() as f64).reduce(f64::max),
            Metric::Requests => count(run.requests),
            Metric::RequestsLost => count(run.requests_lost),
            Metric::RequestsUnfinished => count(run.requests_unfinished),
            Metric::Unfinished => count(run.unfinished),
            Metric::Misdelivered => count(run.inside.misdelivered + run.outside.misdelivered),
            Metric::Windows => count(run.windows),
            Metric::LostFirstStale => run.lost_first_stale.map(|lost| lost as f64),
            Metric::ExpectedLost => run.expected_lost,
            Metric::StaleMax => windows.filter_map(|w| w.stale_max_s).reduce(f64::max),
            Metric::StaleMean => {
                let means: Vec<f64> = windows.filter_map(|w| w.stale_mean_s).collect();
                (!means.is_empty()).then(|| means.iter().sum::<f64>() / means.len() as f64)
            }
            Metric::BalanceP => run.balance.as_ref().map(reports::stats::balance_p),
            Metric::End => Some(run.end.as_secs_f64()),
        }
    }
}

impl Operator {
    fn holds(self, value: f64, bound: f64) -> bool {
        match self {
            Operator::Equal => value == bound,
            Operator::NotEqual => value != bound,
            Operator::Less => value < bound,
            Operator::AtMost => value <= bound,
            Operator::Greater => value > bound,
            Operator::AtLeast => value >= bound,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expressions() {
        let parse = |text| Expectation::parse(text, Over::Run);
        let fraction = parse("lost_fraction <= 0.1%").unwrap();
        assert_eq!(fraction.operator, Operator::AtMost);
        assert!((fraction.bound - 0.001).abs() < 1e-15);
        assert_eq!(
            parse("lost{cause=\"refused\"} == 0").unwrap().metric,
            Metric::Lost(Some(Cause::Refused))
        );
        assert_eq!(parse("requests_lost<=1_000").unwrap().bound, 1000.0);
        for (text, message) in [
            ("", "unknown metric \"\""),
            ("losst == 0", "unknown metric \"losst\""),
            ("lost = 0", "`=` does not compare"),
            ("lost", "`lost` compares nothing"),
            ("lost == few", "\"few\" is not a number"),
            ("lost == nan", "\"nan\" is not a number"),
            ("lost{cause=\"x\"} == 0", "unknown cause \"x\""),
            ("lost{cause} == 0", "`{cause}` is not a label"),
            ("lost{node=\"a\"} == 0", "unknown label `node`"),
            ("lost{cause=\"refused\" == 0", "a `{` is never closed"),
            ("windows{cause=\"refused\"} == 0", "`windows` has no causes"),
            ("löst == 0", "unknown metric \"l\""),
        ] {
            assert_eq!(parse(text).unwrap_err().message, message, "{text}");
        }
    }

    #[test]
    fn values_are_written_as_the_bound_is() {
        let show = |text, value| Expectation::parse(text, Over::Run).unwrap().show(value);
        assert_eq!(show("lost_fraction <= 0.1%", 0.007338017174082748), "0.7338%");
        assert_eq!(show("lost_fraction <= 0.1", 0.007338017174082748), "0.007338");
        assert_eq!(show("lost_fraction <= 0.1%", 0.0), "0%");
        assert_eq!(show("lost == 0", 12345678.0), "12345678");
        assert_eq!(show("stale_max_s < 5", 0.6645), "0.6645");
        assert_eq!(show("end_s < 5", 123456.789), "123457");
        // Rounded to four digits, it would seem to hold.
        assert_eq!(show("lost_fraction <= 0.1%", 0.001_000_001), "0.1000001%");
    }

    #[test]
    fn every_metric_is_listed_and_known() {
        for (name, _) in METRICS {
            assert!(parse_metric(name, None).is_ok(), "{name}");
        }
    }
}
