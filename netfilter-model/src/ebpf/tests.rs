//! Sockets and packets through a small cluster's maps; values worked by hand.

mod packet;
mod property;
mod socket;

use std::net::IpAddr;

use expect_test::expect;

use super::*;
use crate::packet::{Packet, TcpFlags};
use crate::time::SimTime;
use crate::tuple::{Protocol, Tuple};

const NODE: &str = "192.168.0.1";
const OTHER_NODE: &str = "192.168.0.2";
const CLIENT: &str = "198.51.100.7";
const POD: &str = "10.244.1.2";
const LOCAL: &str = "10.244.1.5";
const REMOTE: &str = "10.244.2.7";
const VIP: &str = "10.96.0.10";

fn ip(text: &str) -> IpAddr {
    text.parse().expect("an address")
}

/// Pods of 10.244.1.0/24 and fd00:1::/64 are here, those of 10.244.0.0/16 and fd00::/16 elsewhere.
fn identity(address: IpAddr) -> Identity {
    let text = address.to_string();
    match text.as_str() {
        NODE | "fd00:f::1" => Identity::Host,
        OTHER_NODE => Identity::RemoteNode,
        _ if text.starts_with("10.244.1.") || text.starts_with("fd00:1:") => Identity::LocalPod,
        _ if text.starts_with("10.244.") || text.starts_with("fd00:") => Identity::RemotePod,
        _ => Identity::World,
    }
}

/// A node, its maps, the time, and what is drawn next.
struct Bench {
    node: Node,
    maps: Maps,
    now: f64,
    draws: Vec<u64>,
    protocol: Protocol,
}

impl Bench {
    fn new() -> Bench {
        let (node, maps) = (Node::default(), Maps::default());
        Bench { node, maps, now: 0.0, draws: Vec::new(), protocol: Protocol::TCP }
    }

    fn backend(&mut self, address: &str, state: BackendState) -> BackendId {
        let protocol = self.protocol;
        self.maps.add_backend(Backend { address: ip(address), port: 8080, protocol, state })
    }

    /// Adds a frontend with active backends.
    fn frontend(&mut self, kind: FrontendKind, at: (&str, u16), to: &[&str]) -> Frontend {
        let ids = to.iter().map(|to| self.backend(to, BackendState::Active)).collect();
        let frontend = Frontend::new(kind, ids);
        self.add(at, frontend)
    }

    fn key(&self, at: (&str, u16)) -> FrontendKey {
        FrontendKey::external(ip(at.0), at.1, self.protocol)
    }

    fn add(&mut self, at: (&str, u16), frontend: Frontend) -> Frontend {
        let key = self.key(at);
        self.maps.add_frontend(key, frontend).expect("a number");
        self.maps.frontend(&key).expect("just added").clone()
    }

    fn act<T>(
        &mut self,
        act: impl FnOnce(
            &mut Node,
            &mut Around<'_, Maps, fn(IpAddr) -> Identity, &mut dyn FnMut(u32) -> u64>,
        ) -> T,
    ) -> T {
        let queue = &mut self.draws;
        let mut draw =
            |_| if queue.is_empty() { panic!("nothing to draw") } else { queue.remove(0) };
        let mut draws: &mut dyn FnMut(u32) -> u64 = &mut draw;
        let identities: fn(IpAddr) -> Identity = identity;
        let mut around = Around {
            now: SimTime::from_nanos((self.now * 1e9) as u64),
            view: &self.maps,
            identities: &identities,
            node: ip(NODE),
            draws: &mut draws,
        };
        act(&mut self.node, &mut around)
    }
}

fn tcp(from: (&str, u16), to: (&str, u16), flags: TcpFlags) -> Packet {
    let tuple = Tuple::try_new(Protocol::TCP, ip(from.0), from.1, ip(to.0), to.1);
    Packet::tcp(1, tuple.expect("one family"), flags)
}

/// Returns where a packet comes from and goes to.
fn ends(packet: &Packet) -> (String, String) {
    let Tuple { src_part, dst_part, .. } = packet.tuple;
    (format!("{}:{src_part}", packet.tuple.src()), format!("{}:{dst_part}", packet.tuple.dst()))
}

#[test]
fn numbers_are_given_in_order_and_kept() {
    let mut bench = Bench::new();
    let first = bench.frontend(FrontendKind::ClusterIp, (VIP, 80), &[LOCAL, REMOTE]);
    let second = bench.frontend(FrontendKind::ClusterIp, (VIP, 81), &[REMOTE, "10.244.2.8"]);
    assert_eq!((first.rev_nat, second.rev_nat), (RevNatId(1), RevNatId(2)));
    assert_eq!(*first.slots, [BackendId(1), BackendId(2)]);
    assert_eq!(*second.slots, [BackendId(2), BackendId(3)], "an address has one number");
    let again = bench.frontend(FrontendKind::ClusterIp, (VIP, 80), &[REMOTE]);
    assert_eq!(again.rev_nat, RevNatId(1));
    let counts = bench.maps.counts();
    // Two frontends with one and two slots.
    assert_eq!((counts.services, counts.backends, counts.rev_nat), (5, 3, 2));
}

#[test]
fn the_listing_has_a_line_for_each_slot() {
    let mut bench = Bench::new();
    bench.frontend(FrontendKind::ClusterIp, (VIP, 80), &[LOCAL, REMOTE]);
    let mut local = Frontend::new(FrontendKind::NodePort, vec![BackendId(1)]);
    local.policies.external_local = true;
    local.affinity = Some(10800);
    bench.add(("0.0.0.0", 30080), local.clone());
    let inside = Frontend { slots: [BackendId(1), BackendId(2)].into(), count: 2, ..local };
    let key = bench.key(("0.0.0.0", 30080)).scoped(Scope::Internal);
    bench.maps.add_frontend(key, inside).unwrap();
    let mut ranged = Frontend::new(FrontendKind::LoadBalancer, Vec::new());
    ranged.source_ranges = vec![crate::Prefix::new(ip("198.51.100.0"), 24)];
    bench.add(("203.0.113.9", 80), ranged);
    bench.frontend(FrontendKind::ClusterIp, ("fd00:96::1", 80), &["fd00:2::7"]);
    expect![[r#"
        SERVICE ADDRESS          BACKEND ADDRESS (REVNAT_ID) (SLOT)
        0.0.0.0:30080/TCP (0)    0.0.0.0:0 (2) (0) [NodePort, Local, two-scopes, sessionAffinity]
        0.0.0.0:30080/TCP (1)    10.244.1.5:8080/TCP (2) (1)
        0.0.0.0:30080/TCP/i (0)  0.0.0.0:0 (3) (0) [NodePort, Local, two-scopes, sessionAffinity]
        0.0.0.0:30080/TCP/i (1)  10.244.1.5:8080/TCP (3) (1)
        0.0.0.0:30080/TCP/i (2)  10.244.2.7:8080/TCP (3) (2)
        10.96.0.10:80/TCP (0)    0.0.0.0:0 (1) (0) [ClusterIP, non-routable]
        10.96.0.10:80/TCP (1)    10.244.1.5:8080/TCP (1) (1)
        10.96.0.10:80/TCP (2)    10.244.2.7:8080/TCP (1) (2)
        203.0.113.9:80/TCP (0)   0.0.0.0:0 (4) (0) [LoadBalancer, check source-range]
        [fd00:96::1]:80/TCP (0)  [::]:0 (5) (0) [ClusterIP, non-routable]
        [fd00:96::1]:80/TCP (1)  [fd00:2::7]:8080/TCP (5) (1)
    "#]]
    .assert_eq(&bench.maps.list());
    expect![[r#"
        ID  BACKEND ADDRESS (REVNAT_ID) (SLOT)
        1   10.96.0.10:80
        2   0.0.0.0:30080
        3   0.0.0.0:30080
        4   203.0.113.9:80
        5   [fd00:96::1]:80
    "#]]
    .assert_eq(&bench.maps.list_rev_nat());
}
