use super::*;

fn at(millis: u64) -> SimTime {
    SimTime::from_nanos(millis * 1_000_000)
}

fn bounds(min_s: u64) -> Bounds {
    let seconds = Duration::from_secs;
    Bounds { min: seconds(min_s), max: seconds(3600), retry: seconds(30) }
}

/// Returns the starts, in milliseconds, of runs of `millis` each that answer `requests`, by `until`.
fn starts(mut runner: Runner, millis: u64, requests: &[u64], until: u64) -> Vec<u64> {
    let mut starts = Vec::new();
    let mut served = None;
    loop {
        for &request in requests.iter().filter(|&&request| served.is_none_or(|s| request > s)) {
            runner.request(at(request));
        }
        let start = runner.due().as_nanos() / 1_000_000;
        if start > until {
            return starts;
        }
        starts.push(start);
        served = Some(start);
        runner.ran(at(start), at(start + millis), true);
    }
}

/// A request every 100 ms.
fn stream(until: u64) -> Vec<u64> {
    (0..until / 100).map(|k| k * 100).collect()
}

#[test]
fn since_1_34_the_wait_begins_at_the_end_of_a_run() {
    let runner = || Runner::waiting_after_end(bounds(1));
    // The first after a quiet time runs at once; what comes meanwhile is one run, a second after
    // the end.
    assert_eq!(starts(runner(), 300, &[10_000, 10_010, 10_200], 20_000), [10_000, 11_300]);
    assert_eq!(starts(runner(), 300, &[10_000, 11_299], 20_000), [10_000, 11_300]);
    assert_eq!(starts(runner(), 300, &[10_000, 11_301], 20_000), [10_000, 11_301]);
    // Back to back: one every D + min, without a burst.
    assert_eq!(starts(runner(), 300, &stream(5000), 5300), [0, 1300, 2600, 3900, 5200]);
    assert_eq!(starts(runner(), 2000, &stream(8000), 7000), [0, 3000, 6000]);
}

#[test]
fn up_to_1_33_two_runs_may_follow_each_other() {
    let runner = || Runner::token_bucket(bounds(1));
    // Two tokens: the second run follows the first; the third has 0.6 tokens and waits for a
    // second from the second's end.
    assert_eq!(starts(runner(), 300, &[0, 100, 400], 20_000), [0, 300, 1600]);
    // One more request while it waits, at 1.0 s, finds a whole token.
    assert_eq!(starts(runner(), 300, &[0, 100, 400, 1000], 20_000), [0, 300, 1000]);
    assert_eq!(starts(runner(), 300, &[0, 100, 400, 999], 20_000), [0, 300, 1600]);
    // The bucket holds two, however long it was quiet.
    assert_eq!(starts(runner(), 100, &[60_000, 60_001, 60_150], 65_000), [60_000, 60_100, 61_200]);
    // A steady stream: worked by hand. Tokens left after each start: 1, 0.3, 0, 0.
    // 0 → 1; 300 → 0.3; at 1000 exactly one: 0; at 2000 exactly one: 0; and so on each second.
    assert_eq!(starts(runner(), 300, &stream(5000), 4500), [0, 300, 1000, 2000, 3000, 4000]);
}

#[test]
fn up_to_1_33_runs_longer_than_the_period_do_not_wait() {
    // A run of two seconds earns two tokens and costs one.
    let runner = Runner::token_bucket(bounds(1));
    assert_eq!(starts(runner, 2000, &stream(9000), 8000), [0, 2000, 4000, 6000, 8000]);
}

#[test]
fn without_a_least_time_runs_follow_each_other() {
    for runner in [Runner::token_bucket(bounds(0)), Runner::waiting_after_end(bounds(0))] {
        assert_eq!(starts(runner, 250, &stream(1000), 1000), [0, 250, 500, 750, 1000]);
    }
}

#[test]
fn a_failed_run_is_repeated_after_the_sync_period_or_at_the_next_request() {
    for mut runner in [Runner::token_bucket(bounds(1)), Runner::waiting_after_end(bounds(1))] {
        runner.request(at(1000));
        runner.ran(at(1000), at(1500), false);
        assert_eq!(runner.due(), at(31_500));
        runner.request(at(9000));
        assert_eq!(runner.due(), at(9000));
        runner.ran(at(9000), at(9500), true);
        assert_eq!(runner.due(), at(9500 + 3_600_000), "an hour at the longest");
    }
}

#[test]
fn a_retry_sooner_than_the_least_time_waits_for_it() {
    let seconds = Duration::from_secs;
    let bounds = Bounds { min: seconds(10), max: seconds(3600), retry: seconds(5) };
    let mut runner = Runner::waiting_after_end(bounds);
    runner.ran(at(0), at(1000), false);
    assert_eq!(runner.due(), at(11_000));
}

#[test]
fn ipvs_runs_every_thirty_seconds_at_the_longest() {
    let seconds = Duration::from_secs;
    let bounds = Bounds { min: seconds(0), max: seconds(30), retry: seconds(30) };
    assert_eq!(starts(Runner::token_bucket(bounds), 500, &[], 70_000), [30_000, 60_500]);
}

#[test]
fn a_buffer_is_written_at_its_ticks() {
    let millis = Duration::from_millis;
    let runner = || Runner::ticking(millis(500), millis(120), bounds(0));
    assert_eq!(starts(runner(), 0, &[1000, 1100, 1121], 5000), [1120, 1620]);
    assert_eq!(starts(runner(), 0, &[1120], 5000), [1120]);
    assert_eq!(starts(runner(), 700, &[1000, 1121], 5000), [1120, 2120], "a long run skips a tick");
}

#[test]
fn requests_in_any_order() {
    let mut forward = Runner::token_bucket(bounds(1));
    forward.ran(at(0), at(10), true);
    forward.ran(at(20), at(30), true);
    let mut backward = forward.clone();
    let requests = [40, 500, 1100, 900];
    requests.iter().for_each(|&request| forward.request(at(request)));
    requests.iter().rev().for_each(|&request| backward.request(at(request)));
    // 0.98 of a token is missing at 40 ms: the end of the last run and a second.
    assert_eq!((forward.due(), backward.due()), (at(1030), at(1030)));
}
