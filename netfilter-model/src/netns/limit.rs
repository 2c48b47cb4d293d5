//! The rate limit of ICMP errors: a bucket for each destination, and one for all.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use crate::packet::IcmpError;
use crate::time::SimTime;

/// One error per this time to a destination, unless it is set otherwise.
// Kernel: net.ipv4.icmp_ratelimit, 1000 ms
const RATE: Duration = Duration::from_secs(1);
/// So many errors at once to a destination.
// Kernel: inetpeer.c, XRLIM_BURST_FACTOR
const BURST: u32 = 6;
/// What a routing error costs before it is asked whether it may be sent, and how much of that may
/// be saved.
// Kernel: net.ipv4.route.error_cost, error_burst
const ROUTE_COST: Duration = Duration::from_secs(1);
const ROUTE_BURST: u32 = 5;
/// Errors per second to all destinations.
// Kernel: net.ipv4.icmp_msgs_per_sec
const ALL_PER_SECOND: u64 = 1000;
/// So many errors at once to all destinations.
// Kernel: net.ipv4.icmp_msgs_burst
const ALL_BURST: u64 = 50;
/// The shared bucket is filled no more often.
// Kernel: icmp.c, icmp_global_allow: HZ / 50
const ALL_FILL: Duration = Duration::from_millis(20);

/// Buckets of time and of errors.
#[derive(Clone, Debug)]
pub(super) struct IcmpLimit {
    /// One error per this time to a destination; zero for any number.
    pub(super) rate: Duration,
    peers: BTreeMap<IpAddr, Bucket>,
    /// At this many peers those with full buckets are forgotten.
    sweep_len: usize,
    credit: u64,
    filled: SimTime,
    off: bool,
}

#[derive(Clone, Copy, Debug)]
struct Bucket {
    tokens: Duration,
    filled: SimTime,
}

impl IcmpLimit {
    pub(super) fn new() -> IcmpLimit {
        let (credit, filled) = (ALL_BURST, SimTime::ZERO);
        IcmpLimit { rate: RATE, peers: BTreeMap::new(), sweep_len: 64, credit, filled, off: false }
    }

    /// Sets whether errors are limited.
    // Kernel: icmp.c, icmpv4_mask_allow, which both limits ask first
    pub(super) fn set(&mut self, limited: bool) {
        self.off = !limited;
    }

    /// Returns whether an error may be sent now, and counts it.
    // Kernel: icmp.c, icmpv4_xrlim_allow and icmp_global_allow
    // Simplified: the shared bucket loses one token for each error, in newer kernels 0 to 2 at
    // random.
    pub(super) fn allow(&mut self, now: SimTime, to: IpAddr, kind: IcmpError) -> bool {
        // Path MTU discovery is not limited.
        if self.off || kind == IcmpError::FragmentationNeeded {
            return true;
        }
        let since = now - self.filled;
        if since >= ALL_FILL {
            let added = since.min(Duration::from_secs(1)).as_nanos() as u64 * ALL_PER_SECOND;
            self.credit = (self.credit + added / 1_000_000_000).min(ALL_BURST);
            self.filled = now;
        }
        if self.credit == 0 || !self.allow_peer(now, to) {
            return false;
        }
        self.credit -= 1;
        true
    }

    /// Returns whether an error about a packet that no route takes is asked for at all; if so it
    /// must be allowed, too. Both take from the same bucket.
    // Kernel: route.c, ip_error
    pub(super) fn allow_routing(&mut self, now: SimTime, to: IpAddr) -> bool {
        let full = ROUTE_COST * ROUTE_BURST;
        let bucket = self.bucket(now, to, full);
        bucket.fill(now, full);
        bucket.take(ROUTE_COST)
    }

    // Kernel: inetpeer.c, inet_peer_xrlim_allow
    fn allow_peer(&mut self, now: SimTime, to: IpAddr) -> bool {
        let (rate, full) = (self.rate, self.rate * BURST);
        let bucket = self.bucket(now, to, full);
        // At the instant of a routing error nothing is filled, nor cut to what is full here.
        if now > bucket.filled {
            bucket.fill(now, full);
        }
        bucket.take(rate)
    }

    /// Returns the bucket of a destination; a new one is full.
    fn bucket(&mut self, now: SimTime, to: IpAddr, full: Duration) -> &mut Bucket {
        if self.peers.len() >= self.sweep_len {
            let most = (self.rate * BURST).max(ROUTE_COST * ROUTE_BURST);
            self.peers.retain(|_, bucket| bucket.tokens + (now - bucket.filled) < most);
            self.sweep_len = (2 * self.peers.len()).max(64);
        }
        self.peers.entry(to).or_insert(Bucket { tokens: full, filled: now })
    }
}

impl Bucket {
    fn fill(&mut self, now: SimTime, full: Duration) {
        self.tokens = (self.tokens + (now - self.filled)).min(full);
        self.filled = now;
    }

    fn take(&mut self, cost: Duration) -> bool {
        match self.tokens.checked_sub(cost) {
            Some(left) => {
                self.tokens = left;
                true
            }
            None => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn to(host: u8) -> IpAddr {
        IpAddr::from([10, 0, 0, host])
    }

    fn at_ms(ms: u64) -> SimTime {
        SimTime::from_nanos(ms * 1_000_000)
    }

    #[test]
    fn six_at_once_then_one_per_second() {
        let mut limit = IcmpLimit::new();
        let kind = IcmpError::PortUnreachable;
        let sent = (0..12).filter(|_| limit.allow(at_ms(5), to(1), kind)).count();
        assert_eq!(sent, 6);
        let later = (1..=40).filter(|i| limit.allow(at_ms(5 + i * 100), to(1), kind)).count();
        assert_eq!(later, 4);
        assert!(limit.allow(at_ms(5000), to(2), kind), "another destination");
        assert!(limit.allow(at_ms(5000), to(1), IcmpError::FragmentationNeeded));
    }

    #[test]
    fn a_routing_error_pays_twice() {
        let mut limit = IcmpLimit::new();
        let mut sent = 0;
        for _ in 0..6 {
            let asked = limit.allow_routing(at_ms(0), to(1));
            sent += u32::from(asked && limit.allow(at_ms(0), to(1), IcmpError::HostUnreachable));
        }
        assert_eq!(sent, 2);
        // Without a limit of its own an ICMP error empties the bucket that routing pays from,
        limit.rate = Duration::ZERO;
        assert!(limit.allow(at_ms(5000), to(1), IcmpError::PortUnreachable));
        assert!(!limit.allow_routing(at_ms(5900), to(1)));
        assert!(limit.allow_routing(at_ms(6100), to(1)));
        // except one of routing itself.
        for ms in [20_000, 20_040] {
            assert!(limit.allow_routing(at_ms(ms), to(1)));
            assert!(limit.allow(at_ms(ms), to(1), IcmpError::HostUnreachable));
        }
    }

    #[test]
    fn fifty_at_once_to_all() {
        let mut limit = IcmpLimit::new();
        let kind = IcmpError::HostUnreachable;
        let sent = (0..100).filter(|i| limit.allow(at_ms(0), to(*i), kind)).count();
        assert_eq!(sent, 50);
        let sent = (0..100).filter(|i| limit.allow(at_ms(20), to(*i), kind)).count();
        assert_eq!(sent, 20, "1000 per second");
    }

    #[test]
    fn forgets_peers_whose_buckets_are_full() {
        let mut limit = IcmpLimit::new();
        for i in 0..100_000u32 {
            let peer = IpAddr::from(i.to_be_bytes());
            limit.allow(at_ms(u64::from(i) * 100), peer, IcmpError::HostUnreachable);
        }
        assert!(limit.peers.len() < 128, "{}", limit.peers.len());
    }
}
