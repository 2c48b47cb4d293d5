use std::net::Ipv4Addr;

use super::*;
use crate::packet::TcpFlags;
use crate::testing::{CLIENT, REMOTE_POD, VIP, tcp, udp};

fn limit(period: u32, burst: u32) -> Bucket {
    Bucket::limit(LimitMatch { period, burst }, 0)
}

fn taken(bucket: &mut Bucket, at: u64, tries: u32) -> u32 {
    (0..tries).map(|_| u32::from(bucket.take(at))).sum()
}

#[test]
fn credit_is_the_kernels_with_250_ticks() {
    assert_eq!(LIMIT_PER_TICK, 128);
    assert_eq!(HASHLIMIT_PER_TICK, 1 << 39);
    // 1/second costs what 250 ticks gain.
    assert_eq!(limit_credits(10_000), 250 * 128);
    // 1/day would overflow if it were multiplied first.
    assert_eq!(limit_credits(864_000_000), 86_400 * 250 * 128);
}

#[test]
fn a_bucket_starts_full_and_refills_at_its_rate() {
    let mut hourly = limit(36_000_000, 3);
    assert_eq!(taken(&mut hourly, 0, 6), 3);
    assert_eq!(taken(&mut hourly, 3599 * HZ, 2), 0);
    assert_eq!(taken(&mut hourly, 3600 * HZ, 2), 1);
    assert_eq!(taken(&mut hourly, 100_000 * HZ, 9), 3, "no more than the burst is saved");
}

#[test]
fn three_per_second_is_a_third_of_a_second_in_whole_ticks() {
    // The period is cut to 333.3 ms; a tick is 4 ms.
    let mut bucket = limit(3333, 1);
    assert!(bucket.take(0));
    assert!(!bucket.take(83));
    assert!(bucket.take(84));
}

fn hashlimit(period: u64, burst: u32) -> HashlimitMatch {
    HashlimitMatch {
        above: false,
        period,
        burst,
        mode: [true, false, false, false],
        name: "h".into(),
        expire: 10_000,
        src_len: 32,
        dst_len: 32,
        other: None,
    }
}

#[test]
fn every_source_has_a_bucket() {
    let config = hashlimit(3_600_000_000, 2);
    let mut buckets = Buckets::new(&config, 0);
    let mut take =
        |from: Ipv4Addr, port| buckets.take(&tcp((from, port), (VIP, 80), TcpFlags::SYN), 5);
    let client: Vec<bool> = (0..3).map(|port| take(CLIENT, port)).collect();
    assert_eq!(client, [true, true, false]);
    assert!(take(REMOTE_POD, 1));
}

#[test]
fn an_idle_bucket_is_thrown_out_at_the_next_second() {
    let config = hashlimit(3_600_000_000, 1);
    let mut buckets = Buckets::new(&config, 0);
    let packet = tcp((CLIENT, 1), (VIP, 80), TcpFlags::SYN);
    assert!(buckets.take(&packet, 100));
    // 10 s of silence end at tick 2600; the sweep is at tick 2750.
    assert!(!buckets.clone().take(&packet, 2749));
    assert!(buckets.take(&packet, 2750), "a new bucket is full");
}

#[test]
fn masks_and_ports_make_the_key() {
    let packet = tcp((CLIENT, 7), (VIP, 80), TcpFlags::SYN);
    let config = HashlimitMatch { src_len: 24, mode: [true, true, true, true], ..hashlimit(1, 1) };
    let net = Ipv4Addr::new(10, 244, 1, 0).into();
    assert_eq!(key(&config, &packet), (Some(net), 7, Some(VIP.into()), 80));
    let none = HashlimitMatch { mode: [false; 4], ..config };
    assert_eq!(key(&none, &udp((CLIENT, 1), (VIP, 2))), (None, 0, None, 0));
}

#[test]
fn hashlimit_gains_what_a_second_costs() {
    let config = hashlimit(1_000_000, 1);
    let mut bucket = Bucket::hashlimit(config.period, config.burst, 0);
    assert!(bucket.take(0));
    assert!(!bucket.take(249));
    assert!(bucket.take(250));
}

#[test]
fn nf_tables_counts_in_nanoseconds_and_wraps_nothing() {
    let hundred = LimitMatch { period: 36_000_000, burst: 100 };
    // x_tables: 100 hours of credit do not fit 32 bits.
    assert_eq!(taken(&mut Bucket::limit(hundred, 0), 0, 200), 25);
    assert_eq!(taken(&mut Bucket::native(hundred, 0), 0, 200), 100);
    let mut third = Bucket::native(LimitMatch { period: 3333, burst: 1 }, 0);
    assert!(third.take(0));
    assert!(!third.take(333_299_999));
    assert!(third.take(2 * 333_300_000));
}
