//! Choices and states worked out by hand from the kernel's algorithms.

use std::net::Ipv4Addr;
use std::time::Duration;

use super::*;
use crate::packet::{Packet, TcpFlags};
use crate::testing::{tcp, udp};
use crate::time::SimTime;

const VIP: Ipv4Addr = Ipv4Addr::new(10, 96, 0, 10);
const A: Ipv4Addr = Ipv4Addr::new(10, 244, 1, 1);
const B: Ipv4Addr = Ipv4Addr::new(10, 244, 1, 2);
const C: Ipv4Addr = Ipv4Addr::new(10, 244, 1, 3);

/// One virtual service, and what IPVS keeps.
struct Bench {
    ipvs: Ipvs,
    state: State,
    now: u64,
    port: u16,
}

fn id() -> ServiceId {
    ServiceId::Address(Protocol::TCP, VIP.into(), 80)
}

fn seconds(now: u64) -> SimTime {
    SimTime::from_nanos(now * 1_000_000_000)
}

impl Bench {
    /// Destinations with their weights, in the order in which they are added.
    fn new(scheduler: &str, added: &[(Ipv4Addr, u32)]) -> Bench {
        let mut bench = Bench {
            ipvs: Ipvs::default(),
            state: State::new(Sysctls::kube_proxy()),
            now: 0,
            port: 1000,
        };
        bench.ipvs.services.push(Service::new(id(), scheduler));
        for (address, weight) in added {
            bench.add(*address, *weight);
        }
        bench
    }

    fn service(&mut self) -> &mut Service {
        &mut self.ipvs.services[0]
    }

    fn add(&mut self, address: Ipv4Addr, weight: u32) {
        let to = Destination { weight, ..Destination::new(address.into(), 8080) };
        self.service().destinations.insert(0, to);
    }

    fn weigh(&mut self, address: Ipv4Addr, weight: u32) {
        let to = self.service().destinations.iter_mut().find(|to| to.address == address);
        to.unwrap().weight = weight;
    }

    fn remove(&mut self, address: Ipv4Addr) {
        self.service().destinations.retain(|to| to.address != address);
    }

    fn request_of(&mut self, packet: &Packet, confirmed: bool) -> Request {
        let now = seconds(self.now);
        self.state.expire(now);
        self.state.request(now, &self.ipvs, packet, confirmed, &mut None)
    }

    fn to(request: Request) -> Option<char> {
        match request {
            Request::Forward(address, 8080, Forward::Masq, Tracking::Kept) => {
                [(A, 'a'), (B, 'b'), (C, 'c')]
                    .into_iter()
                    .find_map(|(known, name)| (address == known).then_some(name))
            }
            Request::Refused => Some('!'),
            Request::Dropped => Some('x'),
            Request::Pass => Some('.'),
            Request::Forward(..) => None,
        }
    }

    /// Sends a packet of a client's port.
    fn packet(&mut self, client: Ipv4Addr, port: u16, flags: TcpFlags) -> char {
        let packet = tcp((client, port), (VIP, 80), flags);
        let request = self.request_of(&packet, flags != TcpFlags::SYN);
        Bench::to(request).expect("a known real server")
    }

    /// Opens a connection from a new port.
    fn open(&mut self) -> char {
        self.port += 1;
        self.packet(CLIENT, self.port, TcpFlags::SYN)
    }

    fn opens(&mut self, count: usize) -> String {
        (0..count).map(|_| self.open()).collect()
    }

    /// Sends a packet of the real server's.
    fn answer(&mut self, server: Ipv4Addr, port: u16, flags: TcpFlags) -> bool {
        let packet = tcp((server, 8080), (CLIENT, port), flags);
        self.state.reply(seconds(self.now), &packet).is_some()
    }

    fn load(&self, server: Ipv4Addr) -> (u32, u32) {
        let load = self.state.load(&(id(), server.into(), 8080));
        (load.active, load.inactive)
    }

    fn state(&self) -> ConnState {
        self.state.connections().next().expect("a connection").state
    }
}

const CLIENT: Ipv4Addr = Ipv4Addr::new(10, 244, 9, 9);

#[test]
fn round_robin_goes_from_the_newest_and_skips_the_quiesced() {
    let mut bench = Bench::new("rr", &[(A, 1), (B, 1), (C, 7)]);
    assert_eq!(bench.opens(4), "cbac");
    bench.weigh(B, 0);
    assert_eq!(bench.opens(3), "aca");
    // The one in front of the one that was last and goes is where it stands now.
    bench.weigh(B, 1);
    bench.remove(A);
    assert_eq!(bench.opens(3), "cbc");
    // A new one stands in front of all.
    bench.add(A, 1);
    assert_eq!(bench.opens(4), "bacb");
    let mut none = Bench::new("rr", &[(A, 0)]);
    assert_eq!(none.opens(2), "!!");
}

/// Thresholds fall from 4 to 1 over the list c, b, a: a, then b a, then twice c b a. The first
/// destination that is added, alone, makes it begin at 1.
#[test]
fn weighted_round_robin_of_four_three_two() {
    let mut bench = Bench::new("wrr", &[(A, 4), (B, 3), (C, 2)]);
    assert_eq!(bench.opens(3 + 9 + 6), "cbaabacbacbaabacba");
    let mut bench = Bench::new("wrr", &[(C, 2), (B, 3), (A, 4)]);
    assert_eq!(bench.opens(3 + 9 + 3), "abcaababcabcaab");
    // Weights 6 and 3 are 2 and 1: thresholds 4 and 1.
    let mut bench = Bench::new("wrr", &[(A, 6), (B, 3)]);
    assert_eq!(bench.opens(2 + 6), "baabaaba");
    let mut none = Bench::new("wrr", &[(A, 0)]);
    assert_eq!(none.open(), '!');
}

/// A change sends it back to the head of the list, at the weight that it had come to.
#[test]
fn a_change_of_weight_starts_the_list_again() {
    let mut bench = Bench::new("wrr", &[(A, 1), (B, 1), (C, 1)]);
    assert_eq!(bench.opens(2), "cb");
    bench.weigh(B, 0);
    assert_eq!(bench.opens(4), "caca");
}

#[test]
fn least_connection_counts_an_active_one_as_256() {
    let mut bench = Bench::new("lc", &[(A, 1), (B, 1)]);
    // Each opened connection is active at once.
    assert_eq!(bench.opens(3), "bab");
    // Both of b's are reset: two inactive ones are less than one that is active.
    assert_eq!((bench.load(A), bench.load(B)), ((1, 0), (2, 0)));
    for port in [1001, 1003] {
        assert!(bench.answer(B, port, TcpFlags::RST));
    }
    assert_eq!(bench.load(B), (0, 2));
    assert_eq!(bench.open(), 'b');
}

#[test]
fn weights_divide_the_load() {
    // b takes 256·n for n, a 256·n/3.
    let mut bench = Bench::new("wlc", &[(A, 3), (B, 1)]);
    assert_eq!(bench.opens(8), "baaabaaa");
    // (n + 1) / weight: 1/3 1/1, 2/3 1/1, 3/3 1/1: b is first in the list.
    let mut bench = Bench::new("sed", &[(A, 3), (B, 1)]);
    assert_eq!(bench.opens(8), "aabaaaba");
    // Who is idle comes first.
    let mut bench = Bench::new("nq", &[(A, 3), (B, 1)]);
    assert_eq!(bench.opens(8), "baaaaaba");
}

#[test]
fn source_hash_keeps_a_client_and_refuses_where_its_server_is_quiesced() {
    let mut bench = Bench::new("sh", &[(A, 1), (B, 1)]);
    // Buckets are b, a, b, a, …; 2654435761 is odd, so an odd address has an odd bucket.
    let to = |bench: &mut Bench, last: u8| {
        bench.port += 1;
        bench.packet(Ipv4Addr::new(10, 0, 0, last), bench.port, TcpFlags::SYN)
    };
    assert_eq!([1, 2, 3, 4].map(|last| to(&mut bench, last)), ['a', 'b', 'a', 'b']);
    bench.weigh(A, 0);
    // Without weight it keeps one bucket in turn all the same.
    assert_eq!([1, 2].map(|last| to(&mut bench, last)), ['!', 'b']);
    bench.service().flags.push("sh-fallback".into());
    assert_eq!([1, 2].map(|last| to(&mut bench, last)), ['b', 'b']);
    // Weights are runs of buckets: b, a, a, a.
    let mut bench = Bench::new("sh", &[(A, 3), (B, 1)]);
    let order: String = (0..8).map(|last| to(&mut bench, last)).collect();
    // 10.0.0.last · 177 mod 256, mod 4: 2654435761 is 1 mod 4 and 10.0.0.0 is 0.
    assert_eq!(order, "baaabaaa");
}

#[test]
fn the_hash_of_maglev_is_siphash_1_3() {
    for (number, hash) in [(0, 0x1d5a_77c2), (0x0a01_0203, 0x2b29_8ba1), (0xc0a8_0001, 0x8334_668e)]
    {
        assert_eq!(hashing::hsiphash(number, 2_654_435_761), hash);
    }
}

#[test]
fn maglev_shares_alike_and_moves_few() {
    let clients = |bench: &mut Bench| -> String {
        let mut to = |client: u32| {
            bench.port = bench.port.wrapping_add(1);
            let client = Ipv4Addr::from_bits(0x0a00_0000 + client);
            bench.packet(client, bench.port, TcpFlags::SYN)
        };
        (0..3000).map(&mut to).collect()
    };
    let mut bench = Bench::new("mh", &[(A, 1), (B, 1), (C, 1)]);
    let before = clients(&mut bench);
    for name in ["a", "b", "c"] {
        let share = before.matches(name).count();
        assert!((850..1150).contains(&share), "{name}: {share} of 3000");
    }
    // One that is only quiesced keeps its buckets, and refuses.
    bench.weigh(C, 0);
    let quiesced = clients(&mut bench);
    assert_eq!(before.replace('c', "!"), quiesced);
    bench.service().flags.push("mh-fallback".into());
    assert!(!clients(&mut bench).contains(['c', '!']));
    // One that is gone leaves its clients to the others, and hardly moves theirs.
    bench.remove(C);
    let without = clients(&mut bench);
    let moved = before.chars().zip(without.chars()).filter(|(old, new)| *old != 'c' && old != new);
    assert!(moved.count() < 3000 / 10);
}

#[test]
fn states_follow_the_flags_of_both_sides() {
    let mut bench = Bench::new("rr", &[(A, 1)]);
    bench.open();
    assert_eq!((bench.state(), bench.load(A)), (ConnState::SynRecv, (1, 0)));
    assert!(bench.answer(A, 1001, TcpFlags::SYN_ACK));
    assert_eq!(bench.state(), ConnState::SynRecv);
    bench.packet(CLIENT, 1001, TcpFlags::ACK);
    assert_eq!((bench.state(), bench.load(A)), (ConnState::Established, (1, 0)));
    bench.packet(CLIENT, 1001, TcpFlags::FIN | TcpFlags::ACK);
    assert_eq!((bench.state(), bench.load(A)), (ConnState::CloseWait, (0, 1)));
    assert!(bench.answer(A, 1001, TcpFlags::FIN | TcpFlags::ACK));
    assert_eq!(bench.state(), ConnState::TimeWait);
    // Two minutes later it is gone.
    bench.now = 119;
    bench.state.expire(seconds(119));
    assert_eq!(bench.load(A), (0, 1));
    bench.state.expire(seconds(120));
    assert_eq!((bench.load(A), bench.state.is_idle()), ((0, 0), true));
    let mut bench = Bench::new("rr", &[(A, 1)]);
    bench.open();
    bench.packet(CLIENT, 1001, TcpFlags::ACK);
    assert!(bench.answer(A, 1001, TcpFlags::FIN | TcpFlags::ACK));
    assert_eq!(bench.state(), ConnState::FinWait);
}

/// An idle connection is forgotten, and what comes of it then opens none.
#[test]
fn an_idle_connection_ends_after_a_quarter_of_an_hour() {
    let mut bench = Bench::new("rr", &[(A, 1), (B, 1)]);
    assert_eq!(bench.open(), 'b');
    assert_eq!(bench.packet(CLIENT, 1001, TcpFlags::ACK), 'b');
    bench.now = 899;
    assert_eq!(bench.packet(CLIENT, 1001, TcpFlags::ACK), 'b');
    bench.now += 900;
    assert_eq!(bench.packet(CLIENT, 1001, TcpFlags::ACK), '.');
    bench.state.sysctls.timeouts.tcp = Duration::from_secs(10);
}

#[test]
fn datagrams_are_inactive_connections() {
    let mut bench = Bench::new("rr", &[(A, 1), (B, 1)]);
    let id = ServiceId::Address(Protocol::UDP, VIP.into(), 80);
    bench.service().id = id;
    let packet = udp((CLIENT, 5), (VIP, 80));
    for now in [0, 299, 598] {
        bench.now = now;
        assert_eq!(Bench::to(bench.request_of(&packet, false)), Some('b'));
    }
    let load = bench.state.load(&(id, B.into(), 8080));
    assert_eq!((load.active, load.inactive), (0, 1));
    bench.now = 598 + 300;
    assert_eq!(Bench::to(bench.request_of(&packet, false)), Some('a'));
}

#[test]
fn what_is_quiesced_keeps_its_connections() {
    let mut bench = Bench::new("rr", &[(A, 1), (B, 1)]);
    assert_eq!(bench.open(), 'b');
    bench.weigh(B, 0);
    assert_eq!(bench.packet(CLIENT, 1001, TcpFlags::ACK), 'b');
    assert_eq!(bench.opens(2), "aa");
    // A SYN that is sent again waits for the end of the old entry, then goes elsewhere.
    let again = tcp((CLIENT, 1001), (VIP, 80), TcpFlags::SYN);
    assert_eq!(bench.request_of(&again, true), Request::Dropped);
    assert_eq!(Bench::to(bench.request_of(&again, false)), Some('a'));
}

#[test]
fn what_is_gone_keeps_none() {
    let mut bench = Bench::new("rr", &[(A, 1), (B, 1)]);
    assert_eq!(bench.open(), 'b');
    bench.remove(B);
    let packet = tcp((CLIENT, 1001), (VIP, 80), TcpFlags::ACK);
    // The entry in connection tracking goes with it, and this packet, too.
    let mut ended = None;
    let request = bench.state.request(seconds(0), &bench.ipvs, &packet, true, &mut ended);
    assert_eq!((request, ended), (Request::Dropped, Some(packet.tuple)));
    assert_eq!(bench.request_of(&packet, false), Request::Pass, "the host answers the next one");
    // With the kernel's defaults packets are dropped as long as the connection is remembered.
    let mut bench = Bench::new("rr", &[(A, 1), (B, 1)]);
    bench.state.sysctls.expire_nodest_conn = false;
    assert_eq!(bench.open(), 'b');
    bench.remove(B);
    for confirmed in [true, false] {
        assert_eq!(bench.request_of(&packet, confirmed), Request::Dropped);
    }
    // It comes back, and so do they.
    bench.add(B, 1);
    assert_eq!(bench.packet(CLIENT, 1001, TcpFlags::ACK), 'b');
}

#[test]
fn a_port_that_is_used_again_is_scheduled_again() {
    let mut bench = Bench::new("rr", &[(A, 1), (B, 1)]);
    assert_eq!(bench.open(), 'b');
    bench.packet(CLIENT, 1001, TcpFlags::FIN | TcpFlags::ACK);
    assert!(bench.answer(B, 1001, TcpFlags::FIN | TcpFlags::ACK));
    assert_eq!(bench.state(), ConnState::TimeWait);
    bench.now = 100;
    assert_eq!(bench.packet(CLIENT, 1001, TcpFlags::SYN), 'a');
    // Not so where that is switched off: it goes to the old one, gone or quiesced or not.
    let mut bench = Bench::new("rr", &[(A, 1), (B, 1)]);
    bench.state.sysctls = Sysctls { conn_reuse_mode: 0, ..Sysctls::default() };
    bench.state.sysctls.conntrack = true;
    assert_eq!(bench.open(), 'b');
    bench.packet(CLIENT, 1001, TcpFlags::RST);
    bench.answer(B, 1001, TcpFlags::RST);
    bench.weigh(B, 0);
    assert_eq!(bench.packet(CLIENT, 1001, TcpFlags::SYN), 'b');
}

fn persistent(timeout: u32) -> Bench {
    let mut bench = Bench::new("rr", &[(A, 1), (B, 1), (C, 1)]);
    bench.service().persistence = Some(Persistence { timeout, len: 32 });
    bench
}

#[test]
fn a_client_keeps_its_place_for_a_while_after_its_last_new_connection() {
    let mut bench = persistent(100);
    assert_eq!(bench.opens(3), "ccc");
    assert_eq!(bench.packet(Ipv4Addr::new(10, 244, 9, 8), 1, TcpFlags::SYN), 'b');
    bench.now = 99;
    assert_eq!(bench.open(), 'c');
    // Packets do not renew it, but while there is a connection it ends a minute late.
    for now in [150, 200, 250] {
        bench.now = now;
        assert_eq!(bench.packet(CLIENT, 1004, TcpFlags::ACK), 'c');
    }
    assert_eq!(bench.open(), 'c', "at 199 it was put off to 259");
    for port in [1004, 1005] {
        bench.packet(CLIENT, port, TcpFlags::RST);
        bench.answer(C, port, TcpFlags::RST);
    }
    // Renewed at 250 by a minute, which is what it has been given since.
    bench.now = 310;
    assert_eq!(bench.open(), 'a');
}

#[test]
fn a_place_at_a_quiesced_server_is_lost() {
    let mut bench = persistent(100);
    assert_eq!(bench.opens(2), "cc");
    bench.weigh(C, 0);
    assert_eq!(bench.packet(CLIENT, 1002, TcpFlags::ACK), 'c', "its connections stay");
    assert_eq!(bench.opens(2), "bb");
    bench.weigh(C, 1);
    assert_eq!(bench.open(), 'b');
    let mut bench = persistent(100);
    bench.state.sysctls.expire_quiescent_template = false;
    assert_eq!(bench.open(), 'c');
    bench.weigh(C, 0);
    assert_eq!(bench.open(), 'c', "the kernel's default");
    bench.remove(C);
    assert_eq!(bench.open(), 'b');
}

#[test]
fn a_masked_client_is_a_network() {
    let mut bench = persistent(100);
    bench.service().persistence = Some(Persistence { timeout: 100, len: 24 });
    let from = |bench: &mut Bench, client| bench.packet(client, 7, TcpFlags::SYN);
    assert_eq!(from(&mut bench, Ipv4Addr::new(10, 0, 0, 1)), 'c');
    assert_eq!(from(&mut bench, Ipv4Addr::new(10, 0, 0, 200)), 'c');
    assert_eq!(from(&mut bench, Ipv4Addr::new(10, 0, 1, 1)), 'b');
}

/// Overloaded at the upper threshold, until it is below three quarters of it.
#[test]
fn thresholds_have_a_memory() {
    let mut bench = Bench::new("rr", &[(A, 1), (B, 1)]);
    bench.service().destinations[0].upper = 4;
    assert_eq!(bench.opens(10), "babababaaa");
    let mut bench = Bench::new("rr", &[(B, 1)]);
    bench.service().destinations[0].upper = 4;
    assert_eq!(bench.opens(5), "bbbb!");
    let close = |bench: &mut Bench, port| {
        bench.packet(CLIENT, port, TcpFlags::RST);
        bench.answer(B, port, TcpFlags::RST);
    };
    close(&mut bench, 1001);
    bench.now = 10;
    assert_eq!(bench.open(), '!', "three of four");
    close(&mut bench, 1002);
    bench.now = 20;
    assert_eq!(bench.opens(3), "bb!");
}

#[test]
fn a_flow_of_the_same_port_to_two_services_is_answered_from_the_newer() {
    let mut bench = Bench::new("rr", &[(A, 1)]);
    let other = Ipv4Addr::new(10, 96, 0, 11);
    let mut service = bench.service().clone();
    service.id = ServiceId::Address(Protocol::TCP, other.into(), 80);
    bench.ipvs.services.push(service);
    bench.packet(CLIENT, 5, TcpFlags::SYN);
    let second = tcp((CLIENT, 5), (other, 80), TcpFlags::SYN);
    assert_eq!(Bench::to(bench.request_of(&second, false)), Some('a'));
    let answer = tcp((A, 8080), (CLIENT, 5), TcpFlags::SYN_ACK);
    let (client, _) = bench.state.reply(seconds(0), &answer).unwrap();
    assert_eq!(client.dst(), other);
}

#[test]
fn only_what_opens_a_connection_is_scheduled() {
    let mut bench = Bench::new("rr", &[(A, 1)]);
    assert_eq!(bench.packet(CLIENT, 5, TcpFlags::ACK), '.');
    assert_eq!(bench.packet(CLIENT, 5, TcpFlags::SYN | TcpFlags::RST), '.');
    let other_port = tcp((CLIENT, 5), (VIP, 81), TcpFlags::SYN);
    assert_eq!(bench.request_of(&other_port, false), Request::Pass);
    // By a mark, whatever the destination.
    let id = ServiceId::Mark { mark: 7, v6: false };
    bench.service().id = id;
    let mut marked = tcp((CLIENT, 5), (Ipv4Addr::new(1, 2, 3, 4), 99), TcpFlags::SYN);
    assert_eq!(bench.request_of(&marked, false), Request::Pass);
    marked.mark = 7;
    assert_eq!(Bench::to(bench.request_of(&marked, false)), Some('a'));
    let counted = bench.state.counted(&bench.ipvs);
    assert_eq!(counted.services[0].destinations[0].active, 1);
}
