use std::net::Ipv4Addr;
use std::time::Duration;

use netfilter_model::conntrack::{Conntrack, Listing, Sysctls};
use netfilter_model::tuple::Tuple;

use super::*;
use crate::time::SimTime;

const VIP: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 96, 0, 10));
const NODE: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 168, 0, 2));

fn pod(last: u8) -> IpAddr {
    IpAddr::V4(Ipv4Addr::new(10, 244, 0, last))
}

fn flow(protocol: Protocol, sport: u16, to: (IpAddr, u16), backend: (IpAddr, u16)) -> Listing {
    let client = pod(200);
    let tuple = |src: (IpAddr, u16), dst: (IpAddr, u16)| {
        Tuple::try_new(protocol, src.0, src.1, dst.0, dst.1).expect("one family")
    };
    Listing {
        original: tuple((client, sport), to),
        reply: tuple(backend, (client, sport)),
        zones: [0, 0],
        left: Duration::from_secs(100),
        tcp_state: None,
        seen_reply: false,
        assured: false,
        mark: 0,
    }
}

/// Client ports of flows, by what they are.
const OLD: u16 = 1; // to the Service, to an endpoint that is gone
const LIVE: u16 = 2; // to the Service, to an endpoint that serves
const UNTRANSLATED: u16 = 3; // to the Service, from before there were rules
const NODE_PORT: u16 = 4; // to the NodePort, to an endpoint that is gone
const OTHER_PORT: u16 = 5; // to the Service's address, another port, the endpoint that is gone
const DIRECT: u16 = 6; // to the Pod that is gone
const TCP: u16 = 7; // over TCP, to the Service, to the endpoint that is gone

/// Returns which of the flows are left after a sync.
#[track_caller]
fn left(minor: u16, port: UdpPort) -> Vec<u16> {
    let cleanup = match Profile::from_minor(minor) {
        Some(profile) => Cleanup::of(profile),
        None => Cleanup::ReconcileEmpty,
    };
    let now = SimTime::from_nanos(1_000_000_000);
    let mut table = Conntrack::new(Sysctls::default());
    let (gone, live) = ((pod(1), 53), (pod(2), 53));
    for listing in [
        flow(Protocol::UDP, OLD, (VIP, 53), gone),
        flow(Protocol::UDP, LIVE, (VIP, 53), live),
        flow(Protocol::UDP, UNTRANSLATED, (VIP, 53), (VIP, 53)),
        flow(Protocol::UDP, NODE_PORT, (NODE, 30_053), gone),
        flow(Protocol::UDP, OTHER_PORT, (VIP, 5353), gone),
        flow(Protocol::UDP, DIRECT, gone, gone),
        flow(Protocol::TCP, TCP, (VIP, 53), gone),
    ] {
        table.insert(now, &listing).unwrap();
    }
    let ports = [port];
    if cleanup.is_required(&ports) {
        table.delete(now, |entry| cleanup.condemns(entry, &ports));
    }
    table.list(now).iter().map(|listing| listing.original.src_part).collect::<Vec<_>>()
}

fn dns(before: &[u8], now: &[u8]) -> UdpPort {
    UdpPort {
        addresses: vec![VIP],
        port: 53,
        node_port: Some(30_053),
        before: before.iter().map(|&last| pod(last)).collect(),
        now: now.iter().map(|&last| pod(last)).collect(),
        deleted: false,
    }
}

#[track_caller]
fn check(minor: u16, port: UdpPort, mut expected: Vec<u16>) {
    let mut left = left(minor, port);
    left.sort_unstable();
    expected.sort_unstable();
    assert_eq!(left, expected, "1.{minor}");
}

#[test]
fn flows_of_a_removed_endpoint_are_deleted() {
    // Up to 1.31 by address: other ports of the Service's address lose theirs, too.
    check(31, dns(&[1, 2], &[2]), vec![LIVE, UNTRANSLATED, DIRECT, TCP]);
    // From 1.32 on by address and port, and whatever is not to a serving endpoint.
    check(32, dns(&[1, 2], &[2]), vec![LIVE, OTHER_PORT, DIRECT, TCP]);
    check(36, dns(&[1, 2], &[2]), vec![LIVE, OTHER_PORT, DIRECT, TCP]);
}

/// A UDP Service scaled to zero (kubernetes/kubernetes#139628): its flows went on for thirteen
/// hours.
#[test]
fn without_endpoints_flows_stay_from_1_32_to_1_36() {
    check(31, dns(&[1], &[]), vec![LIVE, UNTRANSLATED, DIRECT, TCP]);
    let all = vec![OLD, LIVE, UNTRANSLATED, NODE_PORT, OTHER_PORT, DIRECT, TCP];
    check(32, dns(&[1], &[]), all.clone());
    check(36, dns(&[1], &[]), all);
    check(37, dns(&[1], &[]), vec![OTHER_PORT, DIRECT, TCP]);
}

/// A socket that sent before there were rules (kubernetes/kubernetes#48370), and a restart of
/// kube-proxy, after which every Service is new to it (kubernetes/kubernetes#122740).
#[test]
fn the_first_endpoint_ends_all_flows_of_the_service() {
    check(31, dns(&[], &[1, 2]), vec![DIRECT, TCP]);
    check(32, dns(&[], &[1, 2]), vec![OLD, LIVE, NODE_PORT, OTHER_PORT, DIRECT, TCP]);
}

#[test]
fn an_endpoint_that_is_added_ends_nothing_before_1_32() {
    let all = vec![OLD, LIVE, UNTRANSLATED, NODE_PORT, OTHER_PORT, DIRECT, TCP];
    check(31, dns(&[1], &[1, 2]), all.clone());
    check(32, dns(&[1, 2], &[1, 2]), all);
}

#[test]
fn flows_of_a_deleted_service_stay() {
    let gone = UdpPort { deleted: true, ..dns(&[1], &[]) };
    check(37, gone, vec![OLD, LIVE, UNTRANSLATED, NODE_PORT, OTHER_PORT, DIRECT, TCP]);
}
