//! The same seed gives the same run; the order of simultaneous events means nothing.

use sim_core::config::*;

use crate::support::{Records, cluster, ms, rollout, run};

fn busy() -> Config {
    let mut config = cluster(20, 5, Law::Exponential { mean: ms(300) });
    config.kubelet = KubeletConfig {
        notice: Law::Exponential { mean: ms(100) },
        start: Law::Uniform { min: ms(500), max: ms(2000) },
        teardown: Law::Uniform { min: ms(100), max: ms(2000) },
    };
    config.clients[0].retries = 2;
    config.clients[0].retry_backoff = ms(50);
    rollout(&mut config);
    config
}

#[test]
fn two_runs_are_the_same() {
    assert_eq!(run(&busy(), 7, 3), run(&busy(), 7, 3));
}

#[test]
fn seeds_and_replications_differ() {
    let fingerprint = |seed, replication| run(&busy(), seed, replication).run().fingerprint;
    assert_ne!(fingerprint(7, 0), fingerprint(8, 0));
    assert_ne!(fingerprint(7, 0), fingerprint(7, 1));
}

#[test]
fn shuffled_ties_change_no_record() {
    // Times are continuous here, but for what happens to one entity at one instant.
    let expected = run(&busy(), 7, 0);
    for ties in 1..5 {
        let mut records = Records::default();
        sim_core::run_with_shuffled_ties(&busy(), 7, 0, ties, &mut records).unwrap();
        assert_eq!(records.windows, expected.windows, "ties {ties}");
        // The order of records at one instant follows that of events.
        let sorted = |records: &Records| {
            let mut losses: Vec<String> =
                records.losses.iter().map(|loss| format!("{loss:?}")).collect();
            losses.sort();
            losses
        };
        assert_eq!(sorted(&records), sorted(&expected), "ties {ties}");
    }
}
