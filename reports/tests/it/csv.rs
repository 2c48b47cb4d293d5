use expect_test::{ExpectFile, expect_file};
use proptest::prelude::*;
use reports::collect::{Detail, TimelineBin};
use reports::csv::{Row, RowContext, WINDOWS_COLUMNS, Writer, seconds, write_sweep};
use sim_core::record::{Loss, Propagation, Run, Window};
use std::time::Duration;

use crate::made_up;

fn context() -> RowContext {
    RowContext { scenario: "shop, \"rolling\"".to_owned(), point: 3, run: 1, seed: 42 }
}

fn written<R: Row>(rows: &[R]) -> String {
    let mut writer = Writer::<_, R>::new(Vec::new()).unwrap();
    for row in rows {
        writer.write(&context(), row).unwrap();
    }
    String::from_utf8(writer.finish().unwrap()).unwrap()
}

fn check(text: &str, golden: ExpectFile) {
    let columns = |line: &[String]| line.len();
    let mut reader = csv::ReaderBuilder::new().has_headers(false).from_reader(text.as_bytes());
    let lines: Vec<Vec<String>> = reader.deserialize().map(Result::unwrap).collect();
    assert!(lines.iter().all(|line| columns(line) == columns(&lines[0])));
    assert!(!text.contains('\r') && text.ends_with('\n'));
    golden.assert_eq(text);
}

#[test]
fn windows() {
    let windows: Vec<Window> =
        vec![made_up::window(0), made_up::window(1), made_up::empty_window(2)];
    let text = written(&windows);
    assert_eq!(text.lines().next(), Some(WINDOWS_COLUMNS));
    check(&text, expect_file!["../data/windows.csv"]);
}

#[test]
fn the_columns_of_windows_do_not_change() {
    // Others read these by name and by place: a new column goes last.
    assert_eq!(
        WINDOWS_COLUMNS,
        "scenario,point,run,seed,window,opened_by,service,pod,node,opened_s,endpoints_changed_s,stopped_accepting_s,ip_released_s,first_node_s,last_node_s,closed_s,stale_mean_s,stale_max_s,attempts,attempts_to_pod,lost,lost_refused,lost_reset,lost_unreachable,lost_blackholed,lost_rejected,lost_dropped,lost_no_rule,lost_conntrack,lost_link,lost_server,misdelivered,lost_fraction,lost_first_stale,expected_lost"
    );
}

#[test]
fn runs() {
    let runs: Vec<Run> = vec![made_up::run(&[made_up::window(0)]), made_up::run(&[])];
    check(&written(&runs), expect_file!["../data/runs.csv"]);
}

#[test]
fn losses() {
    let mut plain: Loss = made_up::loss(4, 1);
    (plain.rule, plain.endpoint, plain.window, plain.stale_for) = (None, None, None, None);
    plain.client = "batch-job".into();
    plain.attempt = 2;
    check(&written(&[made_up::loss(0, 0), plain]), expect_file!["../data/losses.csv"]);
}

#[test]
fn propagation() {
    let rows: Vec<Propagation> = (0..3).map(|node| made_up::propagation(1, node)).collect();
    check(&written(&rows), expect_file!["../data/propagation.csv"]);
}

#[test]
fn timeline() {
    let detail = Detail::Timeline(Duration::from_millis(2_500));
    let records = made_up::records(vec![made_up::window(0), made_up::window(1)], detail);
    let bins: Vec<TimelineBin> = records.timeline;
    check(&written(&bins), expect_file!["../data/timeline.csv"]);
}

#[test]
fn sweep() {
    let (_, points) = made_up::usual_grid();
    let text = String::from_utf8(write_sweep(Vec::new(), &points).unwrap()).unwrap();
    check(&text, expect_file!["../data/sweep.csv"]);
}

#[test]
fn a_sweep_of_one_run_has_no_intervals() {
    let point = made_up::point(0, vec![made_up::parameter("proxy.mode", "ipvs", None)], 5, 1);
    let text = String::from_utf8(write_sweep(Vec::new(), &[point]).unwrap()).unwrap();
    let row = text.lines().nth(1).unwrap();
    assert!(row.starts_with("0,ipvs,1,3,6.666666666666667,,,,20,,,,0.002,,,,5,,,10,"), "{row}");
}

#[test]
fn an_appended_row_brings_no_header() {
    let mut writer = Writer::<_, Run>::append(Vec::new());
    writer.write(&context(), &made_up::run(&[])).unwrap();
    let text = String::from_utf8(writer.finish().unwrap()).unwrap();
    assert_eq!(text.lines().count(), 1);
}

proptest! {
    #[test]
    fn times_read_back(nanos: u64) {
        let text = seconds(u128::from(nanos));
        let (whole, rest) = text.split_once('.').unwrap_or((&text, ""));
        prop_assert!(!rest.ends_with('0'));
        let rest = format!("{rest:0<9}").parse::<u64>().unwrap();
        prop_assert_eq!(u128::from(whole.parse::<u64>().unwrap()) * 1_000_000_000 + u128::from(rest), u128::from(nanos));
    }

    #[test]
    fn floats_read_back(stale in 0.0..1e9_f64, expected in prop::num::f64::POSITIVE) {
        let mut window = made_up::window(0);
        window.stale_max_s = Some(stale);
        window.expected_lost = Some(expected);
        let text = written(&[window]);
        let mut reader = csv::Reader::from_reader(text.as_bytes());
        let headers = reader.headers().unwrap().clone();
        let row = reader.records().next().unwrap().unwrap();
        let field = |name: &str| {
            let column = headers.iter().position(|h| h == name).unwrap();
            row[column].parse::<f64>().unwrap()
        };
        prop_assert_eq!(field("stale_max_s"), stale);
        prop_assert_eq!(field("expected_lost"), expected);
    }
}

#[test]
fn times_are_exact_and_short() {
    assert_eq!(seconds(1_500_000_000), "1.5");
    assert_eq!(seconds(1), "0.000000001");
    assert_eq!(seconds(0), "0");
    assert_eq!(seconds(10_000_000_000), "10");
}
