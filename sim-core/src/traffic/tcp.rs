//! TCP's timers, as far as Service traffic shows them.

use std::time::Duration;

/// How many SYNs are sent a second apart before the gaps double.
///
/// Kernel: `net.ipv4.tcp_syn_linear_timeouts`, since 6.5.
const LINEAR_TIMEOUTS: u32 = 4;

/// How many times a SYN is sent again.
///
/// Kernel: `net.ipv4.tcp_syn_retries`. With linear timeouts these come on top.
const RETRIES: u32 = 6;

const FIRST_TIMEOUT: Duration = Duration::from_secs(1);

/// Returns how long the kernel waits after the `sent`-th SYN (1 is the first) before it sends
/// another, or `None` if it gives up instead when [`last_timeout`] has passed.
///
/// Kernel: tcp_timer.c, tcp_retransmit_timer.
pub fn syn_timeout(sent: u32) -> Option<Duration> {
    (sent <= LINEAR_TIMEOUTS + RETRIES).then(|| backed_off(sent))
}

/// Returns how long the kernel waits after its last SYN.
pub fn last_timeout() -> Duration {
    backed_off(LINEAR_TIMEOUTS + RETRIES + 1)
}

fn backed_off(sent: u32) -> Duration {
    FIRST_TIMEOUT * (1 << sent.saturating_sub(LINEAR_TIMEOUTS + 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn syns_follow_the_schedule_of_kernels_since_6_5() {
        let mut at = 0;
        let mut sent = 1;
        let mut times = Vec::new();
        while let Some(timeout) = syn_timeout(sent) {
            at += timeout.as_secs();
            times.push(at);
            sent += 1;
        }
        assert_eq!(times, [1, 2, 3, 4, 5, 7, 11, 19, 35, 67]);
        assert_eq!(at + last_timeout().as_secs(), 131);
    }
}
