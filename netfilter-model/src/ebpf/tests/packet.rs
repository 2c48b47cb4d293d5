//! Packets at devices.

use super::*;

const SYN: TcpFlags = TcpFlags::SYN;
const ACK: TcpFlags = TcpFlags::ACK;
const FIN: TcpFlags = TcpFlags::FIN;

#[derive(Clone, Copy)]
enum At {
    FromContainer,
    ToContainer,
    FromNetdev,
    ToNetdev,
}

impl Bench {
    fn verdict(&mut self, at: At, packet: Packet) -> Verdict {
        self.act(|node, around| match at {
            At::FromContainer => node.from_container(around, packet),
            At::ToContainer => node.to_container(around, packet),
            At::FromNetdev => node.from_netdev(around, packet),
            At::ToNetdev => node.to_netdev(around, packet),
        })
    }

    /// Returns where a packet that passes goes, and whether it leaves by the node's device.
    #[track_caller]
    fn pass(&mut self, at: At, packet: Packet) -> (String, String, bool) {
        match self.verdict(at, packet) {
            Verdict::Pass(Passage { packet, forwarded, .. }) => {
                let (from, to) = ends(&packet);
                (from, to, forwarded)
            }
            dropped => panic!("{dropped:?}"),
        }
    }

    fn reason(&mut self, at: At, packet: Packet) -> Option<DropReason> {
        match self.verdict(at, packet) {
            Verdict::Drop { reason, .. } => Some(reason),
            Verdict::Pass(_) => None,
        }
    }
}

fn passes(from: &str, to: &str, forwarded: bool) -> (String, String, bool) {
    (from.into(), to.into(), forwarded)
}

/// A client's port outside the range for translated sources is replaced by
/// `32768 + (r mod 2^16) × 32768 / 2^16`; one inside is kept.
#[test]
fn a_node_forwards_to_a_backend_elsewhere_under_its_own_address() {
    let mut bench = Bench::new();
    bench.frontend(FrontendKind::NodePort, (NODE, 30080), &[REMOTE]);
    bench.draws = vec![0];
    let syn = tcp((CLIENT, 40000), (NODE, 30080), SYN);
    let there = passes("192.168.0.1:40000", "10.244.2.7:8080", true);
    assert_eq!(bench.pass(At::FromNetdev, syn), there);
    let answer = tcp((REMOTE, 8080), (NODE, 40000), TcpFlags::SYN_ACK);
    let back = passes("192.168.0.1:30080", "198.51.100.7:40000", true);
    assert_eq!(bench.pass(At::FromNetdev, answer), back);
    assert_eq!(bench.pass(At::FromNetdev, tcp((CLIENT, 40000), (NODE, 30080), ACK)), there);
    // A second client of that port gets another: 0x4000 of 0x10000 is a quarter of the range.
    bench.draws = vec![0, 0x4000];
    let other = tcp(("198.51.100.8", 40000), (NODE, 30080), SYN);
    let there = passes("192.168.0.1:40960", "10.244.2.7:8080", true);
    assert_eq!(bench.pass(At::FromNetdev, other), there);
    bench.draws = vec![0, 0x8001];
    let low = tcp((CLIENT, 1025), (NODE, 30080), SYN);
    let there = passes("192.168.0.1:49152", "10.244.2.7:8080", true);
    assert_eq!(bench.pass(At::FromNetdev, low), there);
    let stray = tcp((REMOTE, 8081), (NODE, 40000), ACK);
    let unknown = passes("10.244.2.7:8081", "192.168.0.1:40000", false);
    assert_eq!(bench.pass(At::FromNetdev, stray), unknown, "not an answer");
}

#[test]
fn a_backend_here_sees_the_client_itself() {
    let mut bench = Bench::new();
    bench.frontend(FrontendKind::LoadBalancer, ("203.0.113.9", 80), &[LOCAL]);
    bench.draws = vec![0];
    let syn = tcp((CLIENT, 40000), ("203.0.113.9", 80), SYN);
    let to_pod = passes("198.51.100.7:40000", "10.244.1.5:8080", false);
    assert_eq!(bench.pass(At::FromNetdev, syn), to_pod);
    let at_pod = tcp((CLIENT, 40000), (LOCAL, 8080), SYN);
    assert_eq!(bench.pass(At::ToContainer, at_pod), to_pod);
    let answer = tcp((LOCAL, 8080), (CLIENT, 40000), TcpFlags::SYN_ACK);
    let back = passes("203.0.113.9:80", "198.51.100.7:40000", false);
    assert_eq!(bench.pass(At::FromContainer, answer), back);
    let translated = tcp(("203.0.113.9", 80), (CLIENT, 40000), TcpFlags::SYN_ACK);
    assert_eq!(bench.pass(At::ToNetdev, translated), back, "not twice");
    // Where the Pod's device has no program, the node's does it.
    assert_eq!(bench.pass(At::ToNetdev, answer), back);
}

#[test]
fn what_is_refused() {
    let mut bench = Bench::new();
    bench.frontend(FrontendKind::ClusterIp, (VIP, 80), &[LOCAL]);
    let mut ranged = Frontend::new(FrontendKind::LoadBalancer, vec![BackendId(1)]);
    ranged.source_ranges = vec![crate::Prefix::new(ip("203.0.113.0"), 24)];
    bench.add(("203.0.113.9", 80), ranged);
    bench.frontend(FrontendKind::NodePort, (NODE, 30080), &[]);
    let syn = |to| tcp((CLIENT, 40000), to, SYN);
    for (to, reason) in [
        ((VIP, 80), DropReason::IsClusterIp),
        (("203.0.113.9", 80), DropReason::NotInSourceRange),
        ((NODE, 30080), DropReason::NoService),
    ] {
        assert_eq!(bench.reason(At::FromNetdev, syn(to)), Some(reason), "{to:?}");
    }
    bench.draws = vec![0];
    let accepted = tcp(("203.0.113.77", 40000), ("203.0.113.9", 80), SYN);
    assert_eq!(bench.reason(At::FromNetdev, accepted), None);
    assert_eq!(bench.reason(At::FromNetdev, syn((NODE, 22))), None, "no frontend");
}

/// Sets up a NodePort whose client has an open connection to the first of two backends here.
fn connected() -> (Bench, Frontend) {
    let mut bench = Bench::new();
    let frontend = bench.frontend(FrontendKind::NodePort, (NODE, 30080), &[LOCAL, "10.244.1.6"]);
    bench.draws = vec![0];
    let to_first = passes("198.51.100.7:40000", "10.244.1.5:8080", false);
    for flags in [SYN, ACK] {
        assert_eq!(
            bench.pass(At::FromNetdev, tcp((CLIENT, 40000), (NODE, 30080), flags)),
            to_first
        );
    }
    (bench, frontend)
}

fn again(bench: &mut Bench, at: f64, flags: TcpFlags, draws: &[u64]) -> String {
    bench.now = at;
    bench.draws = draws.to_vec();
    let (_, to, _) = bench.pass(At::FromNetdev, tcp((CLIENT, 40000), (NODE, 30080), flags));
    assert!(bench.draws.is_empty(), "nothing drawn at {at}");
    to
}

#[test]
fn a_connection_stays_while_its_backend_is_there_and_is_moved_once_it_is_gone() {
    let (mut bench, frontend) = connected();
    bench.backend(LOCAL, BackendState::Terminating);
    let drained = Frontend { slots: [BackendId(2), BackendId(1)].into(), count: 1, ..frontend };
    bench.add((NODE, 30080), drained);
    assert_eq!(again(&mut bench, 1.0, ACK, &[]), "10.244.1.5:8080", "it drains");
    assert_eq!(again(&mut bench, 2.0, SYN, &[0]), "10.244.1.6:8080", "a new one does not");
    assert_eq!(again(&mut bench, 3.0, ACK, &[]), "10.244.1.6:8080");
    bench.maps.remove_backend(BackendId(2));
    let only = bench.maps.frontend(&bench.key((NODE, 30080))).unwrap().clone();
    assert_eq!((only.count, &*only.slots), (0, &[BackendId(1)][..]));
    let packet = tcp((CLIENT, 40000), (NODE, 30080), ACK);
    assert_eq!(bench.reason(At::FromNetdev, packet), Some(DropReason::NoService));
    let back = Frontend { count: 1, ..only };
    bench.add((NODE, 30080), back);
    assert_eq!(again(&mut bench, 4.0, ACK, &[0]), "10.244.1.5:8080", "chosen anew");
}

/// A connection's end leaves its choice for 10 s more; within the grace period, another one of the
/// same ports takes it up again.
#[test]
fn a_new_connection_of_old_ports_is_balanced_after_the_grace_period() {
    let (mut bench, _) = connected();
    assert_eq!(again(&mut bench, 10.0, FIN, &[]), "10.244.1.5:8080");
    assert_eq!(again(&mut bench, 19.0, SYN, &[]), "10.244.1.5:8080");
    assert_eq!(again(&mut bench, 30.0, FIN, &[]), "10.244.1.5:8080");
    assert_eq!(again(&mut bench, 40.0, SYN, &[1]), "10.244.1.6:8080", "forgotten after 10 s");
    let (mut bench, _) = connected();
    bench.node.settings.lifetimes.service_grace = std::time::Duration::from_secs(5);
    assert_eq!(again(&mut bench, 10.0, FIN, &[]), "10.244.1.5:8080");
    assert_eq!(again(&mut bench, 15.0, SYN, &[1]), "10.244.1.6:8080", "not forgotten, but old");
}

#[test]
fn lifetimes() {
    // A lone SYN is remembered for 60 s, a connection for 8,000 s.
    let syn_only = || {
        let mut bench = Bench::new();
        bench.frontend(FrontendKind::NodePort, (NODE, 30080), &[LOCAL, "10.244.1.6"]);
        assert_eq!(again(&mut bench, 0.0, SYN, &[0]), "10.244.1.5:8080");
        bench
    };
    assert_eq!(again(&mut syn_only(), 59.0, ACK, &[]), "10.244.1.5:8080");
    assert_eq!(again(&mut syn_only(), 60.0, ACK, &[1]), "10.244.1.6:8080");
    assert_eq!(again(&mut connected().0, 7999.0, ACK, &[]), "10.244.1.5:8080");
    assert_eq!(again(&mut connected().0, 8000.0, ACK, &[1]), "10.244.1.6:8080");
    // The choice and the connection behind it.
    let (mut bench, _) = connected();
    let at = |seconds: u64| SimTime::from_nanos(seconds * 1_000_000_000);
    assert_eq!(bench.node.connection_count(at(7999)), 2);
    assert_eq!(bench.node.connection_count(at(8000)), 0);
    bench.node.collect(at(8000));
    assert_eq!(bench.node.connection_count(at(0)), 0);
    // UDP: 60 s.
    let mut bench = Bench::new();
    bench.protocol = Protocol::UDP;
    bench.frontend(FrontendKind::NodePort, (NODE, 30053), &[LOCAL, "10.244.1.6"]);
    let tuple = Tuple::try_new(Protocol::UDP, ip(CLIENT), 4000, ip(NODE), 30053).unwrap();
    for (now, draws, to) in
        [(0.0, vec![0], LOCAL), (59.0, vec![], LOCAL), (119.0, vec![1], "10.244.1.6")]
    {
        (bench.now, bench.draws) = (now, draws);
        let (_, reached, _) = bench.pass(At::FromNetdev, Packet::udp(1, tuple, 60));
        assert_eq!(reached, format!("{to}:8080"), "at {now}");
    }
}

#[test]
fn pods_are_translated_packet_by_packet_where_sockets_are_not() {
    let mut bench = Bench::new();
    bench.node.settings.socket_lb = SocketLb::HostOnly;
    bench.frontend(FrontendKind::ClusterIp, (VIP, 80), &[REMOTE]);
    bench.draws = vec![0];
    let syn = tcp((POD, 40000), (VIP, 80), SYN);
    let there = passes("10.244.1.2:40000", "10.244.2.7:8080", false);
    assert_eq!(bench.pass(At::FromContainer, syn), there);
    let answer = tcp((REMOTE, 8080), (POD, 40000), TcpFlags::SYN_ACK);
    let back = passes("10.96.0.10:80", "10.244.1.2:40000", false);
    assert_eq!(bench.pass(At::ToContainer, answer), back);
    bench.frontend(FrontendKind::ClusterIp, (VIP, 81), &[]);
    let nowhere = tcp((POD, 40000), (VIP, 81), SYN);
    assert_eq!(bench.reason(At::FromContainer, nowhere), Some(DropReason::NoService));
    // With sockets translated, no packet has a frontend's address.
    bench.node = Node::default();
    let untouched = passes("10.244.1.2:40001", "10.96.0.10:80", false);
    assert_eq!(bench.pass(At::FromContainer, tcp((POD, 40001), (VIP, 80), SYN)), untouched);
}

#[test]
fn a_pod_reaches_itself_from_the_loopback_address() {
    let mut bench = Bench::new();
    bench.node.settings.socket_lb = SocketLb::HostOnly;
    bench.frontend(FrontendKind::ClusterIp, (VIP, 80), &[POD]);
    bench.draws = vec![0];
    let syn = tcp((POD, 40000), (VIP, 80), SYN);
    let there = passes("169.254.42.1:40000", "10.244.1.2:8080", false);
    assert_eq!(bench.pass(At::FromContainer, syn), there);
    let looped = tcp(("169.254.42.1", 40000), (POD, 8080), SYN);
    assert_eq!(bench.pass(At::ToContainer, looped), there);
    let answer = tcp((POD, 8080), ("169.254.42.1", 40000), TcpFlags::SYN_ACK);
    let back = passes("10.96.0.10:80", "10.244.1.2:40000", false);
    assert_eq!(bench.pass(At::FromContainer, answer), back);
}

/// With a table, draws decide nothing, and every node that has it chooses alike.
#[test]
fn all_nodes_choose_alike_by_maglev() {
    let mut chosen = Vec::new();
    for _ in 0..2 {
        let mut bench = Bench::new();
        let three = ["10.244.1.5", "10.244.1.6", "10.244.1.7"];
        let frontend = bench.frontend(FrontendKind::NodePort, (NODE, 30080), &three);
        let backends = bench.maps.backends().map(|(id, backend)| (id, *backend));
        let maglev = Maglev::try_new(backends, 251).map(std::sync::Arc::new);
        bench.add((NODE, 30080), Frontend { maglev, ..frontend });
        let mut reached = |port| {
            let (_, to, _) = bench.pass(At::FromNetdev, tcp((CLIENT, port), (NODE, 30080), SYN));
            to
        };
        chosen.push((40000..40050).map(&mut reached).collect::<Vec<_>>());
    }
    assert_eq!(chosen[0], chosen[1]);
    let distinct: std::collections::BTreeSet<_> = chosen[0].iter().collect();
    assert_eq!(distinct.len(), 3);
}
