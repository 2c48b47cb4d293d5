//! Reverse NAT undoes NAT.

use proptest::prelude::*;

use super::*;

fn packet(protocol: Protocol, tuple: Tuple, flags: TcpFlags) -> Packet {
    match protocol {
        Protocol::TCP => Packet::tcp(1, tuple, flags),
        _ => Packet::udp(1, tuple, 60),
    }
}

fn passed(verdict: Verdict) -> Packet {
    match verdict {
        Verdict::Pass(Passage { packet, .. }) => packet,
        dropped => panic!("{dropped:?}"),
    }
}

proptest! {
    /// Whatever was translated on the way to a backend, the client sees the answer come from where
    /// it sent to, for any number of clients at once.
    #[test]
    fn an_answer_comes_from_where_the_packet_went(
        v6: bool,
        is_udp: bool,
        inside: bool,
        backends in prop::collection::vec((1u8..3, 2u8..40), 1..6),
        clients in prop::collection::vec((0u8..8, any::<u16>(), any::<u64>()), 1..40),
    ) {
        let mut bench = Bench::new();
        bench.protocol = if is_udp { Protocol::UDP } else { Protocol::TCP };
        bench.node.settings.socket_lb = SocketLb::HostOnly;
        let address = |net: u8, host: u8| {
            if v6 { format!("fd00:{net}::{host:x}") } else { format!("10.244.{net}.{host}") }
        };
        let to: Vec<String> = backends.iter().map(|(net, host)| address(*net, *host)).collect();
        let to: Vec<&str> = to.iter().map(String::as_str).collect();
        let (kind, vip) = match (inside, v6) {
            (true, false) => (FrontendKind::ClusterIp, VIP),
            (true, true) => (FrontendKind::ClusterIp, "fd00:96::1"),
            (false, false) => (FrontendKind::LoadBalancer, "203.0.113.9"),
            (false, true) => (FrontendKind::LoadBalancer, "2001:db8:1::9"),
        };
        bench.frontend(kind, (vip, 80), &to);
        for (client, port, draw) in clients {
            let client = match (inside, v6) {
                (true, _) => address(1, 2 + client),
                (false, false) => format!("198.51.100.{client}"),
                (false, true) => format!("2001:db8::{client}"),
            };
            let tuple = Tuple::try_new(bench.protocol, ip(&client), port, ip(vip), 80).unwrap();
            let protocol = bench.protocol;
            for (there, back) in [(TcpFlags::SYN, TcpFlags::SYN_ACK), (TcpFlags::ACK, TcpFlags::ACK)]
            {
                bench.draws = (0..40).map(|k| draw.rotate_left(k)).collect();
                let sent = packet(protocol, tuple, there);
                let arrived = bench.act(|node, around| {
                    around.node = if v6 { ip("fd00:f::1") } else { ip(NODE) };
                    if inside {
                        passed(node.from_container(around, sent))
                    } else {
                        passed(node.from_netdev(around, sent))
                    }
                });
                prop_assert!(to.iter().any(|to| ip(to) == arrived.tuple.dst()));
                prop_assert_eq!(arrived.tuple.dst_part, 8080);
                let here = identity(arrived.tuple.dst()) == Identity::LocalPod;
                let answer = packet(protocol, arrived.tuple.reply(), back);
                let seen = bench.act(|node, around| {
                    let arrived = if here { passed(node.to_container(around, arrived)) } else { arrived };
                    let mut answer = Packet { tuple: arrived.tuple.reply(), ..answer };
                    if here {
                        answer = passed(node.from_container(around, answer));
                    }
                    if inside {
                        passed(node.to_container(around, answer))
                    } else if here {
                        passed(node.to_netdev(around, answer))
                    } else {
                        passed(node.from_netdev(around, answer))
                    }
                });
                prop_assert_eq!(seen.tuple, tuple.reply());
            }
        }
    }
}
