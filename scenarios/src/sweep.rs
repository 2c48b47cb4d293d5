//! Many runs side by side: every point of a grid, every replication.
//!
//! A run is a function of its configuration, the seed and its replication number. Which thread
//! makes it, and when, is nobody's business but the clock's: results come back in their place.

use std::panic;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread;

use crate::file::Point;

/// A run of a sweep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Job {
    /// The point's index.
    pub(crate) point: usize,
    /// The replication.
    pub(crate) replication: u32,
}

/// Makes every run on `threads` threads and returns what `run` made of each, by point and
/// replication. `done` is told of each run that ends, with the share of the work that it was.
///
/// # Errors
///
/// That of the first run, by point and replication, among those that failed before the others
/// were stopped.
pub(crate) fn execute<T: Send, E: Send>(
    points: &[Point],
    replications: u32,
    threads: usize,
    run: impl Fn(Job) -> Result<T, E> + Sync,
    mut done: impl FnMut(u64),
) -> Result<Vec<Vec<T>>, E> {
    let jobs = schedule(points, replications);
    let next = AtomicUsize::new(0);
    let stop = AtomicBool::new(false);
    let mut results: Vec<Vec<Option<T>>> =
        points.iter().map(|_| (0..replications).map(|_| None).collect()).collect();
    let mut failure: Option<(usize, u32, E)> = None;
    thread::scope(|scope| {
        let (sender, receiver) = mpsc::channel();
        for _ in 0..threads.clamp(1, jobs.len().max(1)) {
            let sender = sender.clone();
            let (jobs, next, stop, run) = (&jobs, &next, &stop, &run);
            scope.spawn(move || {
                while !stop.load(Ordering::Relaxed)
                    && let Some(&job) = jobs.get(next.fetch_add(1, Ordering::Relaxed))
                {
                    // A panic ends the sweep at once, not after the other threads' last run.
                    let result = panic::catch_unwind(panic::AssertUnwindSafe(|| run(job)));
                    if sender.send((job, result)).is_err() {
                        return;
                    }
                }
            });
        }
        drop(sender);
        for (job, result) in receiver {
            match result {
                Ok(Ok(result)) => {
                    results[job.point][job.replication as usize] = Some(result);
                    done(weight(&points[job.point]));
                }
                Ok(Err(error)) => {
                    stop.store(true, Ordering::Relaxed);
                    let place = (job.point, job.replication);
                    if failure
                        .as_ref()
                        .is_none_or(|(point, replication, _)| place < (*point, *replication))
                    {
                        failure = Some((job.point, job.replication, error));
                    }
                }
                Err(payload) => {
                    stop.store(true, Ordering::Relaxed);
                    panic::resume_unwind(payload);
                }
            }
        }
    });
    match failure {
        Some((_, _, error)) => Err(error),
        None => Ok(results.into_iter().map(|runs| runs.into_iter().flatten().collect()).collect()),
    }
}

/// Returns how much work a run of a point is, for the progress bar: a guess.
pub(crate) fn weight(point: &Point) -> u64 {
    1_000 + u64::from(point.config.cluster.nodes)
}

/// Returns all runs, those of the largest clusters first: they take longest, and the last thread
/// should not be left alone with one of them.
fn schedule(points: &[Point], replications: u32) -> Vec<Job> {
    let mut order: Vec<usize> = (0..points.len()).collect();
    order.sort_by_key(|&point| std::cmp::Reverse(weight(&points[point])));
    order
        .into_iter()
        .flat_map(|point| (0..replications).map(move |replication| Job { point, replication }))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::file::Reader;

    fn points() -> Vec<Point> {
        let mut reader = Reader::default();
        let scenario = reader.scenario("rolling-update", &[]).expect("valid");
        reader.points(&scenario).expect("valid").0
    }

    #[test]
    fn results_are_in_their_place_whatever_the_number_of_threads() {
        let points = points();
        for threads in [1, 2, 7, 1000] {
            let mut work = 0;
            let results: Result<_, ()> = execute(&points, 3, threads, Ok, |weight| work += weight);
            for (point, runs) in results.unwrap().iter().enumerate() {
                for (replication, job) in runs.iter().enumerate() {
                    assert_eq!((job.point, job.replication as usize), (point, replication));
                }
            }
            assert_eq!(work, 3 * points.iter().map(weight).sum::<u64>());
        }
    }

    #[test]
    fn the_largest_clusters_go_first() {
        let points = points();
        let first = schedule(&points, 2)[0];
        assert_eq!(points[first.point].config.cluster.nodes, 5000);
    }

    #[test]
    fn one_failure_is_returned() {
        let fail = |job: Job| {
            if job.point == 3 { Err(job.replication) } else { Ok(()) }
        };
        assert_eq!(execute(&points(), 2, 1, fail, |_| {}), Err(0));
    }

    #[test]
    #[should_panic(expected = "a bug")]
    fn a_panic_is_passed_on() {
        let run = |_: Job| -> Result<(), ()> { panic!("a bug") };
        let _ = execute(&points(), 1, 2, run, |_| {});
    }
}
