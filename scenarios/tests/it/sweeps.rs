//! The built-in sweep against its own theory, and trajectories that must not change unnoticed.

use std::collections::BTreeMap;

use expect_test::expect_file;

use crate::Folder;

/// Reads columns of a CSV file whose fields need no quotes.
fn columns<'a>(text: &'a str, names: &'a [&str]) -> impl Iterator<Item = Vec<&'a str>> {
    let mut lines = text.lines();
    let header: Vec<&str> = lines.next().expect("a header").split(',').collect();
    let place = |name: &&str| header.iter().position(|known| known == name).expect("a column");
    let places: Vec<usize> = names.iter().map(place).collect();
    lines.map(move |line| {
        let fields: Vec<&str> = line.split(',').collect();
        places.iter().map(|&place| fields[place]).collect()
    })
}

/// With D the sum over all points of a replication of lost − expected: |mean D| ≤ 4·sd(D)/√R.
#[track_caller]
fn check_theory(seed: &str) {
    let folder = Folder::new();
    folder.run(&["sweep", "--seed", seed, "--jobs", "1"]).ends_with(0);
    let windows = folder.read("out/windows.csv");
    let mut differences: BTreeMap<&str, f64> = BTreeMap::new();
    let mut rows = 0;
    let mut total = 0.0;
    for row in columns(&windows, &["run", "lost_first_stale", "expected_lost"]) {
        let [lost, expected] = [1, 2].map(|column: usize| row[column].parse::<f64>().unwrap());
        *differences.entry(row[0]).or_default() += lost - expected;
        total += expected;
        rows += 1;
    }
    assert_eq!((rows, differences.len()), (16 * 20 * 10, 20));
    let n = 20.0;
    let mean = differences.values().sum::<f64>() / n;
    let squares: f64 = differences.values().map(|d| (d - mean).powi(2)).sum();
    let error = (squares / (n - 1.0) / n).sqrt();
    assert!(mean.abs() <= 4.0 * error, "seed {seed}: {mean} ± {error} of {}", total / n);
}

#[test]
fn the_default_sweep_loses_what_theory_expects_with_seed_1() {
    check_theory("1");
}

#[test]
fn the_default_sweep_loses_what_theory_expects_with_seed_2() {
    check_theory("2");
}

#[test]
fn the_default_sweep_loses_what_theory_expects_with_seed_3() {
    check_theory("3");
}

#[test]
fn the_default_sweep_has_the_same_bytes_whatever_the_number_of_jobs() {
    let folder = Folder::new();
    let sweep = |jobs: &str, out: &str| {
        let args = ["sweep", "--replications", "2", "--jobs", jobs, "--out", out];
        folder.run(&args).ends_with(0);
        ["windows.csv", "runs.csv", "sweep.csv", "manifest.json", "loss.svg"]
            .map(|file| folder.read(&format!("{out}/{file}")))
    };
    assert!(sweep("1", "a") == sweep("2", "b"));
}

/// The same file is compared by a release build (`.ci/run`).
#[test]
fn a_small_run_gives_the_golden_rows() {
    let folder = Folder::new();
    folder.run(&["run", "delete-pod", "--seed", "1"]).ends_with(0);
    expect_file!["../data/delete-pod.windows.csv"].assert_eq(&folder.read("out/windows.csv"));
    expect_file!["../data/delete-pod.losses.csv"].assert_eq(&folder.read("out/losses.csv"));
}

/// A fingerprint covers the time, kind and entity of every event in order.
#[test]
fn trajectories_are_those_on_file() {
    let folder = Folder::new();
    let mut lines = String::from("scenario,seed,ingredients,fingerprint\n");
    for scenario in ["delete-pod", "prestop", "rolling-update", "scale-to-zero"] {
        for seed in ["1", "2"] {
            let done = folder.run(&["run", scenario, "--seed", seed]);
            assert!(done.status < Some(2), "{}", done.stderr);
            let runs = folder.read("out/runs.csv");
            let row = columns(&runs, &["fingerprint"]).next().expect("a run");
            lines += &format!("{scenario},{seed},time+kind+entity,{}\n", row[0]);
        }
    }
    expect_file!["../data/fingerprints.csv"].assert_eq(&lines);
}
