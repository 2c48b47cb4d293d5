//! `connect()`, `sendmsg()`, `recvmsg()`.

use super::*;

const POD_SOCKET: Socket =
    Socket { cookie: 5, namespace: 77, on_host: false, protocol: Protocol::TCP };
const UDP_SOCKET: Socket = Socket { protocol: Protocol::UDP, ..POD_SOCKET };

impl Bench {
    fn connect(&mut self, socket: Socket, to: (&str, u16)) -> Connected {
        let to = (ip(to.0), to.1);
        self.act(|node, around| node.connect(around, &socket, to))
    }

    fn recvmsg(&mut self, socket: Socket, from: (&str, u16)) -> (String, u16) {
        let from = (ip(from.0), from.1);
        let (address, port) = self.act(|node, around| node.recvmsg(around, &socket, from));
        (address.to_string(), port)
    }
}

fn address(connected: Connected) -> String {
    match connected {
        Connected::Backend { address, port, .. } => format!("{address}:{port}"),
        other => format!("{other:?}"),
    }
}

#[test]
fn tcp_draws_a_slot_and_udp_goes_by_its_cookie() {
    let mut bench = Bench::new();
    let three = ["10.244.2.1", "10.244.2.2", "10.244.2.3"];
    bench.frontend(FrontendKind::ClusterIp, (VIP, 80), &three);
    // Of the 64 bits drawn, the lower 32 count: 7 mod 3 is the second slot.
    bench.draws = vec![0xffff_ffff_0000_0007, 3];
    assert_eq!(address(bench.connect(POD_SOCKET, (VIP, 80))), "10.244.2.2:8080");
    assert_eq!(address(bench.connect(POD_SOCKET, (VIP, 80))), "10.244.2.1:8080");
    assert!(bench.draws.is_empty());
    bench.protocol = Protocol::UDP;
    bench.frontend(FrontendKind::ClusterIp, (VIP, 53), &three);
    // The cookie 5 is the third of three slots, and the second of two.
    assert_eq!(address(bench.connect(UDP_SOCKET, (VIP, 53))), "10.244.2.3:8080");
    bench.maps.remove_backend(BackendId(4));
    assert_eq!(address(bench.connect(UDP_SOCKET, (VIP, 53))), "10.244.2.3:8080");
    bench.maps.remove_backend(BackendId(6));
    assert_eq!(address(bench.connect(UDP_SOCKET, (VIP, 53))), "10.244.2.2:8080");
}

#[test]
fn what_is_no_frontend_stays_and_one_without_backends_fails() {
    let mut bench = Bench::new();
    bench.frontend(FrontendKind::ClusterIp, (VIP, 80), &[]);
    assert_eq!(bench.connect(POD_SOCKET, (VIP, 81)), Connected::Direct);
    assert_eq!(bench.connect(UDP_SOCKET, (VIP, 80)), Connected::Direct, "the protocol counts");
    assert_eq!(bench.connect(POD_SOCKET, (VIP, 80)), Connected::NoBackend);
    let sctp = Socket { protocol: Protocol::SCTP, ..POD_SOCKET };
    assert_eq!(bench.connect(sctp, (VIP, 80)), Connected::Direct);
    bench.node.settings.socket_lb = SocketLb::HostOnly;
    assert_eq!(bench.connect(POD_SOCKET, (VIP, 80)), Connected::Direct);
    let host = Socket { on_host: true, ..POD_SOCKET };
    assert_eq!(bench.connect(host, (VIP, 80)), Connected::NoBackend);
}

#[test]
fn a_program_sees_the_address_that_it_asked_for_until_the_frontend_is_another() {
    let mut bench = Bench::new();
    bench.protocol = Protocol::UDP;
    bench.frontend(FrontendKind::ClusterIp, (VIP, 53), &[REMOTE]);
    assert_eq!(address(bench.connect(UDP_SOCKET, (VIP, 53))), "10.244.2.7:8080");
    assert_eq!(bench.recvmsg(UDP_SOCKET, (REMOTE, 8080)), (VIP.into(), 53));
    let other = Socket { cookie: 6, ..UDP_SOCKET };
    assert_eq!(bench.recvmsg(other, (REMOTE, 8080)), (REMOTE.into(), 8080));
    assert_eq!(bench.recvmsg(UDP_SOCKET, (REMOTE, 53)), (REMOTE.into(), 53));
    assert_eq!(bench.node.sockets_of(ip(REMOTE), 8080), [5]);
    // Without a backend the frontend counts as another.
    bench.maps.remove_backend(BackendId(1));
    assert_eq!(bench.recvmsg(UDP_SOCKET, (REMOTE, 8080)), (REMOTE.into(), 8080));
    assert_eq!(bench.node.sockets_of(ip(REMOTE), 8080), [0u64; 0], "a stale entry is dropped");
}

/// An established connection needs no entry: its packets name the backend. What the agent may
/// close, it finds by the entries.
#[test]
fn sockets_of_a_backend_are_found_until_they_are_closed() {
    let mut bench = Bench::new();
    bench.frontend(FrontendKind::ClusterIp, (VIP, 80), &[LOCAL, REMOTE]);
    for (cookie, draw) in [(9, 1), (4, 0), (7, 1)] {
        bench.draws.push(draw);
        let _ = bench.connect(Socket { cookie, ..POD_SOCKET }, (VIP, 80));
    }
    bench.maps.remove_backend(BackendId(2));
    assert_eq!(bench.node.sockets_of(ip(REMOTE), 8080), [7, 9]);
    bench.node.release(9);
    assert_eq!(bench.node.sockets_of(ip(REMOTE), 8080), [7]);
    assert_eq!(bench.node.connection_count(SimTime::ZERO), 0, "sockets leave no connections");
}

#[test]
fn ports_of_all_nodes_are_translated_at_the_client() {
    let mut bench = Bench::new();
    bench.frontend(FrontendKind::NodePort, ("0.0.0.0", 30080), &[LOCAL]);
    bench.frontend(FrontendKind::NodePort, (NODE, 30080), &[LOCAL]);
    let host = Socket { on_host: true, ..POD_SOCKET };
    for (socket, to, expected) in [
        (POD_SOCKET, NODE, "10.244.1.5:8080"),
        (POD_SOCKET, OTHER_NODE, "10.244.1.5:8080"),
        (POD_SOCKET, CLIENT, "Direct"),
        (POD_SOCKET, POD, "Direct"),
        (POD_SOCKET, "127.0.0.1", "Direct"),
        (host, "127.0.0.1", "10.244.1.5:8080"),
    ] {
        bench.draws = vec![0];
        assert_eq!(address(bench.connect(socket, (to, 30080))), expected, "{to}");
    }
    assert_eq!(bench.connect(host, (OTHER_NODE, 20080)), Connected::Direct);
}

#[test]
fn an_external_ip_is_translated_only_if_it_is_the_nodes() {
    let mut bench = Bench::new();
    bench.frontend(FrontendKind::ExternalIps, (NODE, 80), &[REMOTE]);
    bench.frontend(FrontendKind::ExternalIps, ("203.0.113.9", 80), &[REMOTE]);
    bench.draws = vec![0];
    assert_eq!(address(bench.connect(POD_SOCKET, (NODE, 80))), "10.244.2.7:8080");
    assert_eq!(bench.connect(POD_SOCKET, ("203.0.113.9", 80)), Connected::Direct);
}

#[test]
fn sockets_take_the_internal_scope_where_policies_differ() {
    let mut bench = Bench::new();
    let mut outside = Frontend::new(FrontendKind::LoadBalancer, Vec::new());
    outside.policies.external_local = true;
    bench.add(("203.0.113.9", 80), outside.clone());
    assert_eq!(bench.connect(POD_SOCKET, ("203.0.113.9", 80)), Connected::Direct, "no entry");
    let id = bench.backend(REMOTE, BackendState::Active);
    let inside = Frontend { slots: [id].into(), count: 1, ..outside };
    let key = bench.key(("203.0.113.9", 80)).scoped(Scope::Internal);
    bench.maps.add_frontend(key, inside).unwrap();
    bench.draws = vec![0];
    assert_eq!(address(bench.connect(POD_SOCKET, ("203.0.113.9", 80))), "10.244.2.7:8080");
}

/// Sticky in [last, last + timeout), in whole seconds, renewed by use; by network namespace.
#[test]
fn a_namespace_stays_with_its_backend() {
    let mut bench = Bench::new();
    let sticky = bench.frontend(FrontendKind::ClusterIp, (VIP, 80), &[LOCAL, REMOTE]);
    bench.add((VIP, 80), Frontend { affinity: Some(10), ..sticky });
    let connect = |bench: &mut Bench, at: f64, namespace: u64, draws: &[u64]| {
        bench.now = at;
        bench.draws = draws.to_vec();
        let connected = bench.connect(Socket { namespace, ..POD_SOCKET }, (VIP, 80));
        assert!(bench.draws.is_empty(), "not drawn at {at}");
        address(connected)
    };
    assert_eq!(connect(&mut bench, 0.9, 1, &[1]), "10.244.2.7:8080");
    assert_eq!(connect(&mut bench, 0.9, 2, &[0]), "10.244.1.5:8080");
    assert_eq!(connect(&mut bench, 9.9, 1, &[]), "10.244.2.7:8080");
    assert_eq!(connect(&mut bench, 18.9, 1, &[]), "10.244.2.7:8080", "renewed at 9.9");
    assert_eq!(connect(&mut bench, 28.0, 1, &[0]), "10.244.1.5:8080", "18 + 10");
    // As if the backend had come back, with another number.
    bench.node.forget_clients_of(BackendId(1));
    assert_eq!(connect(&mut bench, 28.5, 1, &[0]), "10.244.1.5:8080", "forgotten");
    assert_eq!(connect(&mut bench, 28.5, 1, &[]), "10.244.1.5:8080");
    // A backend that terminates takes no client that comes again.
    let state = BackendState::Terminating;
    let local = bench.backend(LOCAL, state);
    let slots = [BackendId(2), local].into();
    let ended = Frontend { affinity: Some(10), slots, count: 1, ..sticky_of(&bench) };
    bench.add((VIP, 80), ended);
    assert_eq!(connect(&mut bench, 29.0, 1, &[0]), "10.244.2.7:8080");
}

fn sticky_of(bench: &Bench) -> Frontend {
    bench.maps.frontend(&bench.key((VIP, 80))).unwrap().clone()
}
