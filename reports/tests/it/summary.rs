use expect_test::{Expect, expect};
use reports::collect::Detail;
use reports::summary::{
    Expectation, RunSummary, SweepSummary, Verdict, duration, percent, run, sweep,
};
use sim_core::record::Window;
use std::time::Duration;

use crate::made_up;

const QUESTION: &str = "How many requests does a rolling update lose when nodes learn late?";

fn check(text: &str, golden: Expect) {
    for line in text.lines() {
        assert!(line.chars().count() <= 100, "{} columns: {line}", line.chars().count());
        assert_eq!(line, line.trim_end());
    }
    golden.assert_eq(text);
}

fn of_run(windows: Vec<Window>, expectations: &[Expectation]) -> String {
    let records = made_up::records(windows, Detail::Off);
    run(&RunSummary {
        question: QUESTION,
        expectations,
        records: &records,
        seed: 7,
        version: "0.1.0",
    })
}

#[test]
fn of_a_run() {
    let expectations = [
        Expectation {
            text: "lost <= 10".to_owned(),
            verdict: Verdict::Failed,
            observed: "72".to_owned(),
        },
        Expectation {
            text: "stale_max_s < 5s".to_owned(),
            verdict: Verdict::Held,
            observed: "1.5s".to_owned(),
        },
    ];
    check(
        &of_run((0..3).map(made_up::window).collect(), &expectations),
        expect![[r#"
            How many requests does a rolling update lose when nodes learn late?
            Each of 3 deletion windows loses 24.0 attempts on average (1.4 % of those sent while windows were
            open): 88 % refused, 12 % blackholed.

            1 of 2 expectations held
             expected                    observed
            ──────────────────────────────────────
             lost <= 10         FAILED   72
             stale_max_s < 5s   held     1.5s

              #  pod                    node    opened    stale  attempts  lost  refused  blackholed  theory
            ─────────────────────────────────────────────────────────────────────────────────────────────────
              0  shop-7d9c5b8f6d-x2k4p  node-0  10.0 s  1.500 s     1,700    23       20           3    22.8
              1  shop-7d9c5b8f6d-9wq7z  node-1  13.0 s  1.500 s     1,700    24       21           3    22.8
              2  shop-7d9c5b8f6d-m5t8v  node-2  16.0 s  1.500 s     1,700    25       22           3    22.8
            all  3 windows                              1.500 s              72       63           9    68.2
            theory: expected number of first attempts lost to stale rules, given this run's times

            20,480 requests, 72 lost, 0 unfinished; 20,480 attempts, 15,380 outside windows (0 lost)
            endpoints chosen alike often: p = 0.350 (χ² 10.0 over 9 degrees of freedom)
            complete at 20.5 s, 123,456 events
            seed 7, fingerprint 00d1ce5eed00cafe, rulelag 0.1.0
        "#]],
    );
}

#[test]
fn of_a_run_that_lost_nothing() {
    check(
        &of_run(vec![made_up::empty_window(0)], &[]),
        expect![[r#"
            How many requests does a rolling update lose when nodes learn late?
            No attempt was lost in the only deletion window, of 5,100 sent meanwhile.

              #  pod                    node    opened  stale  attempts  lost
            ──────────────────────────────────────────────────────────────────
              0  shop-7d9c5b8f6d-x2k4p  node-0  10.0 s      -         0     0
            all  1 window                                   -               0

            20,480 requests, 0 lost, 0 unfinished; 20,480 attempts, 15,380 outside windows (0 lost)
            endpoints chosen alike often: p = 0.350 (χ² 10.0 over 9 degrees of freedom)
            complete at 20.5 s, 123,456 events
            seed 7, fingerprint 00d1ce5eed00cafe, rulelag 0.1.0
        "#]],
    );
}

#[test]
fn of_a_run_without_windows() {
    check(
        &of_run(vec![], &[]),
        expect![[r#"
            How many requests does a rolling update lose when nodes learn late?
            No deletion window was opened; 0 attempts were lost.

            20,480 requests, 0 lost, 0 unfinished; 20,480 attempts, 15,380 outside windows (0 lost)
            endpoints chosen alike often: p = 0.350 (χ² 10.0 over 9 degrees of freedom)
            complete at 20.5 s, 123,456 events
            seed 7, fingerprint 00d1ce5eed00cafe, rulelag 0.1.0
        "#]],
    );
}

#[test]
fn of_a_sweep_over_two_parameters() {
    let (axes, points) = made_up::usual_grid();
    let text = sweep(&SweepSummary {
        question: QUESTION,
        expectations: &[],
        axes: &axes,
        points: &points,
        seed: 7,
        version: "0.1.0",
    });
    check(
        &text,
        expect![[r#"
            How many requests does a rolling update lose when nodes learn late?
            A deletion window loses 4.8 ± 1.5 attempts at 100ms, 10 nodes and 99.8 ± 32.0 at 3s, 1000 nodes,
            3.0 % of those sent while windows were open (75 % refused, 25 % blackholed).

            lost attempts per deletion window, mean ± half of the 95 % interval: propagation delay (exponential
            mean) down, nodes across
                            10          100         1000
            ─────────────────────────────────────────────
            100ms    4.8 ± 1.5    6.3 ± 2.0    7.9 ± 2.5
            300ms   11.1 ± 3.6   12.7 ± 4.1   14.2 ± 4.6
               1s  33.2 ± 10.7  34.8 ± 11.2  36.4 ± 11.7
               3s  96.6 ± 31.0  98.2 ± 31.5  99.8 ± 32.0

            12 points, 48 runs, 144 windows
            seed 7, rulelag 0.1.0
        "#]],
    );
}

#[test]
fn of_a_sweep_over_words() {
    let long = "a-value-with-a-name-that-is-longer-than-the-terminal-can-show-beside-the-numbers";
    let points: Vec<_> = ["iptables", "ipvs", long]
        .iter()
        .enumerate()
        .map(|(i, v)| {
            made_up::point(i, vec![made_up::parameter("proxy.mode", v, None)], i as u64, 3)
        })
        .collect();
    let text = sweep(&SweepSummary {
        question: QUESTION,
        expectations: &[],
        axes: &[reports::plot::Axis::from_path("proxy.mode")],
        points: &points,
        seed: 7,
        version: "0.1.0",
    });
    check(
        &text,
        expect![[r#"
            How many requests does a rolling update lose when nodes learn late?
            A deletion window loses 0 attempts at iptables and 3.3 ± 1.7 at
            a-value-with-a-name-that-is-longer-than-the-terminal-can-show-beside-the-numbers, 0.10 % of those
            sent while windows were open (77 % refused, 23 % blackholed).

            point  proxy.mode                         lost per window  p99  max  of attempts  last node  theory
            ────────────────────────────────────────────────────────────────────────────────────────────────────
                0  iptables                                         0    -    0          0 %    0.125 s       0
                1  ipvs                                   1.67 ± 0.83    -    3      0.050 %    0.250 s    1.50
                2  a-value-wi…how-beside-the-numbers        3.3 ± 1.7    -    6       0.10 %    0.375 s    3.00
            p99 -: too few windows
            theory: expected number of first attempts lost to stale rules, given each run's times

            point  proxy.mode                  hops  passed  machines  updates  if one fails  last node  a sync
            ────────────────────────────────────────────────────────────────────────────────────────────────────
                0  iptables                    1.00    41.0        10     20.0          10 %     125 ms   10 ms
                1  ipvs                        1.00    41.0        10     20.0          10 %     250 ms   20 ms
                2  a-value-…eside-the-numbers  1.00    41.0        10     20.0          10 %     375 ms   30 ms
            hops, passed: from machine to machine, and the rules that are passed one after the other, of a
            connection's first packet; machines: that hold rules; updates: changes of a Service, for each of
            them; if one fails: the share of clients that loses all of its Services

            3 points, 9 runs, 27 windows
            seed 7, rulelag 0.1.0
        "#]],
    );
}

#[test]
fn words_for_numbers() {
    assert_eq!(percent(0.0016), "0.16 %");
    assert_eq!(percent(0.9234), "92 %");
    assert_eq!(percent(0.0), "0 %");
    assert_eq!(percent(1e-9), "<0.001 %");
    assert_eq!(duration(Duration::from_millis(1500)), "1.5 s");
    assert_eq!(duration(Duration::from_millis(300)), "300 ms");
    assert_eq!(duration(Duration::from_micros(20)), "20 µs");
    assert_eq!(duration(Duration::ZERO), "0 s");
}
