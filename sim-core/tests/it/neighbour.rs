//! An address that nobody has: what the node in front of it does, in the model and in the kernel.

use std::time::Duration;

use sim_core::config::Law;

use crate::lab::{Lab, Tool, skip};
use crate::support::{cluster, ms, run, secs};

/// When the connections begin, after the first of them. With what is sent again six packets wait
/// at the end, and as many errors are told at once.
const BEGIN_MS: [u64; 3] = [0, 1700, 2600];

/// Packets that join the question under way share its end: the kernel asks three times, a second
/// apart. The model does the same; `a_patient_client_hears_that_the_host_is_unreachable` times it.
#[test]
fn the_kernel_ends_all_waiting_connections_three_seconds_after_the_first() {
    let lab = match Lab::try_new(Tool::Nft) {
        Ok(lab) => lab,
        Err(reason) => return skip("an address that nobody has", &reason),
    };
    let waits: Vec<String> = BEGIN_MS.iter().map(u64::to_string).collect();
    // The node is on this network, and nobody has the address.
    let lines = lab.client("staggered", &format!("10.244.2.99:8080 {}", waits.join(" ")));
    assert_eq!(lines.len(), BEGIN_MS.len(), "{lines:?}");
    for line in lines {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [_, "ended", at, "-", "HostUnreachable"] = words[..] else { panic!("{line}") };
        let at: u64 = at.parse().unwrap();
        // Timers of the kernel and a busy machine: never before 3 s, and not much later.
        assert!((2950..4500).contains(&at), "{line}");
    }
}

#[test]
fn the_model_ends_them_at_the_same_time() {
    let mut config = cluster(3, 2, Law::Constant(secs(6.0)));
    config.clients[0].timeout = secs(8.0);
    config.clients[0].rate_per_s = 2.0;
    let records = run(&config, 3, 0);
    let released = records.windows[0].ip_released.unwrap();
    let late = records.losses.iter().filter(|loss| loss.sent > released);
    let first = late.clone().map(|loss| loss.sent).min().expect("a loss at the dead address");
    let joined: Vec<Duration> =
        late.filter(|loss| loss.sent - first < secs(2.9)).map(|loss| loss.ended - first).collect();
    assert!(joined.len() > 1, "{joined:?}");
    assert!(joined.iter().all(|&end| end.abs_diff(secs(3.0)) < ms(1)), "{joined:?}");
}
