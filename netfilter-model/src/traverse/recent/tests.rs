use std::net::Ipv4Addr;

use super::*;
use crate::packet::TcpFlags;
use crate::testing::{CLIENT, REMOTE_POD, VIP, tcp};

fn asks(action: RecentAction) -> RecentMatch {
    RecentMatch {
        action,
        seconds: None,
        reap: false,
        hitcount: None,
        ttl: false,
        name: "list".into(),
        mask: Ipv4Addr::BROADCAST.into(),
        destination: false,
        invert: false,
    }
}

struct Bench(RecentList);

impl Bench {
    fn new() -> Bench {
        Bench(RecentList::new(Ipv4Addr::BROADCAST.into()))
    }

    fn ask(&mut self, wanted: &RecentMatch, from: Ipv4Addr, second: u64) -> bool {
        self.ask_with_ttl(wanted, from, second, 64)
    }

    fn ask_with_ttl(&mut self, wanted: &RecentMatch, from: Ipv4Addr, at: u64, ttl: u8) -> bool {
        self.0.make_room(wanted.hitcount);
        self.0.matches(wanted, &tcp((from, 1), (VIP, 80), TcpFlags::SYN), ttl, at * HZ)
    }

    fn seen(&self) -> Vec<(IpAddr, usize)> {
        self.0.entries().map(|entry| (entry.address, entry.stamps.len())).collect()
    }
}

fn not(wanted: &RecentMatch) -> RecentMatch {
    RecentMatch { invert: !wanted.invert, ..wanted.clone() }
}

#[test]
fn set_is_true_and_its_negation_false_and_both_note() {
    let mut bench = Bench::new();
    let set = asks(RecentAction::Set);
    assert!(bench.ask(&set, CLIENT, 0));
    assert!(!bench.ask(&not(&set), REMOTE_POD, 0));
    assert_eq!(bench.seen(), [(CLIENT.into(), 1), (REMOTE_POD.into(), 1)]);
}

#[test]
fn check_knows_addresses_up_to_the_last_second() {
    let mut bench = Bench::new();
    let check = RecentMatch { seconds: Some(2), ..asks(RecentAction::Check) };
    assert!(!bench.ask(&check, CLIENT, 0));
    assert!(bench.ask(&not(&check), CLIENT, 0), "an unknown address fits the negation");
    assert!(bench.ask(&asks(RecentAction::Set), CLIENT, 10));
    assert!(bench.ask(&check, CLIENT, 12), "exactly two seconds");
    assert!(!bench.ask(&check, CLIENT, 13));
    assert!(bench.ask(&asks(RecentAction::Check), CLIENT, 1000), "no --seconds is any age");
    assert!(!bench.ask(&check, REMOTE_POD, 12));
    assert_eq!(bench.seen(), [(CLIENT.into(), 1)], "a check notes nothing");
}

#[test]
fn hitcount_counts_stamps_within_the_time() {
    let mut bench = Bench::new();
    let full = RecentMatch { hitcount: Some(3), seconds: Some(60), ..asks(RecentAction::Check) };
    // The third packet finds two stamps, the fourth three.
    let found: Vec<bool> = (0..5)
        .map(|n| {
            let found = bench.ask(&full, CLIENT, n);
            bench.ask(&asks(RecentAction::Set), CLIENT, n);
            found
        })
        .collect();
    assert_eq!(found, [false, false, false, true, true]);
    assert!(!bench.ask(&full, CLIENT, 63), "two are within the last minute");
}

#[test]
fn update_notes_only_if_it_is_true() {
    let mut bench = Bench::new();
    let update = RecentMatch { seconds: Some(5), ..asks(RecentAction::Update) };
    assert!(!bench.ask(&update, CLIENT, 0));
    assert_eq!(bench.seen(), []);
    bench.ask(&asks(RecentAction::Set), CLIENT, 0);
    assert!(bench.ask(&update, CLIENT, 4));
    assert!(bench.ask(&update, CLIENT, 9), "renewed by the update");
    assert!(!bench.ask(&update, CLIENT, 15));
    assert_eq!(bench.seen(), [(CLIENT.into(), 3)]);
    assert!(bench.ask(&not(&update), CLIENT, 30), "true by negation");
    assert_eq!(bench.seen(), [(CLIENT.into(), 4)]);
}

#[test]
fn remove_is_true_once() {
    let mut bench = Bench::new();
    let remove = asks(RecentAction::Remove);
    assert!(!bench.ask(&remove, CLIENT, 0));
    bench.ask(&asks(RecentAction::Set), CLIENT, 0);
    assert!(bench.ask(&remove, CLIENT, 0));
    assert!(!bench.ask(&remove, CLIENT, 0));
}

#[test]
fn a_list_holds_a_hundred_addresses_and_loses_the_longest_unused() {
    let mut bench = Bench::new();
    let set = asks(RecentAction::Set);
    let address = |n: u8| Ipv4Addr::new(10, 0, 0, n);
    for n in 0..100 {
        bench.ask(&set, address(n), 0);
    }
    bench.ask(&set, address(0), 1);
    bench.ask(&asks(RecentAction::Check), address(1), 1);
    bench.ask(&set, address(100), 2);
    let check = asks(RecentAction::Check);
    assert_eq!(bench.seen().len(), 100);
    assert!(bench.ask(&check, address(0), 3), "was set again");
    assert!(!bench.ask(&check, address(1), 3), "a check is no use");
    assert!(bench.ask(&check, address(2), 3));
}

#[test]
fn reap_takes_the_longest_unused_on_finding_another() {
    let mut bench = Bench::new();
    let set = asks(RecentAction::Set);
    for (n, address) in [CLIENT, REMOTE_POD, VIP].into_iter().enumerate() {
        bench.ask(&set, address, n as u64);
    }
    let reap = RecentMatch { seconds: Some(5), reap: true, ..asks(RecentAction::Check) };
    assert!(!bench.ask(&reap, Ipv4Addr::LOCALHOST, 100));
    assert_eq!(bench.seen().len(), 3, "an unknown address reaps nothing");
    assert!(!bench.ask(&reap, VIP, 100));
    assert_eq!(bench.seen(), [(REMOTE_POD.into(), 1), (VIP.into(), 1)], "one at a time");
}

#[test]
fn rttl_wants_the_same_time_to_live() {
    let mut bench = Bench::new();
    bench.ask_with_ttl(&asks(RecentAction::Set), CLIENT, 0, 64);
    let check = RecentMatch { ttl: true, ..asks(RecentAction::Check) };
    assert!(bench.ask_with_ttl(&check, CLIENT, 1, 64));
    assert!(!bench.ask_with_ttl(&check, CLIENT, 1, 63));
}

#[test]
fn stamps_are_a_ring_of_the_largest_hitcount() {
    let mut bench = Bench::new();
    for n in 0..40 {
        bench.ask(&asks(RecentAction::Set), CLIENT, n);
    }
    assert_eq!(bench.seen(), [(CLIENT.into(), 32)]);
    let many = RecentMatch { hitcount: Some(33), ..asks(RecentAction::Check) };
    assert!(!bench.ask(&many, CLIENT, 40));
    assert_eq!(bench.seen(), [], "a list that grows is emptied");
    for n in 0..70 {
        bench.ask(&asks(RecentAction::Set), CLIENT, 41 + n);
    }
    assert_eq!(bench.seen(), [(CLIENT.into(), 64)]);
}

#[test]
fn the_mask_of_the_first_rule_holds() {
    let mask = Ipv4Addr::new(255, 255, 255, 0);
    let mut bench = Bench(RecentList::new(mask.into()));
    bench.ask(&asks(RecentAction::Set), CLIENT, 0);
    assert!(bench.ask(&asks(RecentAction::Check), Ipv4Addr::new(10, 244, 1, 99), 0));
    let to = RecentMatch { destination: true, ..asks(RecentAction::Check) };
    assert!(!bench.ask(&to, CLIENT, 0));
}
