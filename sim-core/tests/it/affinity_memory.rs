//! What a node remembers of clients, as versions of a Service come and go.

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use netfilter_model::host::Env;
use netfilter_model::netns::{Netns, Outcome};
use netfilter_model::packet::{Packet, TcpFlags};
use netfilter_model::tuple::{Protocol, Tuple};
use sim_core::config::*;
use sim_core::ids::{Id, NodeId, PodId, ServiceId};
use sim_core::kube::endpoint_slice::Endpoint;
use sim_core::net::plan::{AddressPlan, CNI0};
use sim_core::proxy::plane::{DataPlane, Dialed, Dialer, ProxiedService};
use sim_core::proxy::userspace::Caller;
use sim_core::time::SimTime;

use crate::support::{cluster, shop};

const NODE: NodeId = NodeId::FIRST;
const SERVICE: ServiceId = ServiceId::FIRST;
const CLIENT: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 9);
const VIP: (Ipv4Addr, u16) = (Ipv4Addr::new(172, 20, 0, 10), 80);

const MODES: [ProxyMode; 4] = [
    ProxyMode::Iptables,
    ProxyMode::Nftables,
    ProxyMode::Ebpf(Selection::Random),
    ProxyMode::Userspace,
];

/// A node with a Service of two endpoints, 1 and 2, and affinity for 100 s.
struct Bench {
    mode: ProxyMode,
    plane: DataPlane,
    netns: Netns,
    plan: AddressPlan,
    port: u16,
    /// What random numbers are; in turn it is endpoints that are given.
    draw: u64,
}

fn at(seconds: u64) -> SimTime {
    SimTime::ZERO + Duration::from_secs(seconds)
}

fn endpoints(last: &[u8]) -> Vec<Endpoint> {
    let endpoint = |&last: &u8| Endpoint {
        pod: PodId::from_index(last.into()),
        addr: Ipv4Addr::new(10, 0, 1, last),
        port: 8080,
    };
    last.iter().map(endpoint).collect()
}

impl Bench {
    fn new(mode: ProxyMode) -> Bench {
        let mut config = cluster(3, 1, Law::Constant(Duration::ZERO));
        config.proxy.mode = mode;
        let service = ProxiedService {
            name: shop(),
            cluster_ip: VIP.0,
            ports: vec![(Some("http".into()), VIP.1)],
            endpoints: vec![endpoints(&[1, 2]).into()],
            affinity: Some(Duration::from_secs(100)),
        };
        let ranges =
            (0..config.cluster.nodes).filter_map(|node| sim_core::kube::node_range(&config, node));
        let plane = DataPlane::new(&config.cluster, &config.proxy, ranges, vec![service]);
        let plan = AddressPlan::new(&config.cluster);
        let plane = plane.expect("valid rules");
        Bench { mode, plane, netns: Netns::default(), plan, port: 40_000, draw: 0 }
    }

    /// Commits a version that is live at once.
    fn commit(&mut self, last: &[u8], second: u64) {
        let lags = [Duration::ZERO; 3].into_iter();
        self.plane.commit(SERVICE, &vec![endpoints(last).into()], at(second), lags).unwrap();
    }

    /// Connects to the Service, and returns the last part of the address that it was sent to.
    fn connect(&mut self, second: u64) -> u8 {
        let now = at(second);
        self.port += 1;
        let draw = self.draw;
        let mut draws = |_: u32| draw;
        let addr = match self.mode {
            ProxyMode::Ebpf(_) => {
                self.plane.catch_up(SERVICE, NODE, now, &mut self.netns);
                let dialer = Dialer { node: NODE, cookie: self.port.into(), namespace: 7 };
                match self.plane.connect(dialer, now, VIP, &mut draws) {
                    Dialed::ToEndpoint(_, endpoint) => endpoint.addr,
                    other => panic!("{other:?}"),
                }
            }
            ProxyMode::Userspace => {
                self.plane.catch_up(SERVICE, NODE, now, &mut self.netns);
                let caller = Caller { client: CLIENT.into(), again: false };
                let order = |_, _| u64::MAX;
                let next = self.plane.next_endpoint((SERVICE, 0), (NODE, now), caller, order);
                next.expect("it has endpoints").1.addr
            }
            _ => {
                let to = Tuple::v4(Protocol::TCP, CLIENT, self.port, VIP.0, VIP.1);
                let packet = Packet::tcp(1, to, TcpFlags::SYN);
                self.plane.prepare(NODE, now, &packet, &mut self.netns);
                let rules = self.plane.at(NODE, now, &packet);
                let host = self.plan.host(NODE);
                let mut env = Env { now, host: &host, rules: &rules, draws: &mut draws };
                match self.netns.receive(packet, CNI0, &mut env) {
                    Outcome::Sent(egress) => match egress.packet.tuple.dst() {
                        IpAddr::V4(addr) => addr,
                        IpAddr::V6(addr) => panic!("{addr}"),
                    },
                    other => panic!("{other:?}"),
                }
            }
        };
        addr.octets()[3]
    }

    /// Has the client sent to the first endpoint, and whatever it is sent to by chance to the last.
    fn at_the_first(mode: ProxyMode) -> Bench {
        let mut bench = Bench::new(mode);
        assert_eq!(bench.connect(1), 1, "{mode:?}");
        bench.draw = u64::MAX;
        bench
    }
}

#[test]
fn a_client_stays_for_the_timeout_and_not_beyond() {
    for mode in MODES {
        let mut bench = Bench::at_the_first(mode);
        assert_eq!(bench.connect(90), 1, "{mode:?}");
        assert_eq!(bench.connect(189), 1, "{mode:?}: the time begins anew with each connection");
        assert_eq!(bench.connect(300), 2, "{mode:?}");
    }
}

/// Kernel: `recent` finds its list by name when a table is replaced, and `add set` leaves a set that
/// is there alone.
#[test]
fn a_new_version_leaves_clients_of_endpoints_that_stay_where_they_are() {
    for mode in MODES {
        let mut bench = Bench::at_the_first(mode);
        bench.commit(&[1, 2, 3], 2);
        assert_eq!(bench.connect(3), 1, "{mode:?}");
        bench.commit(&[1, 3], 4);
        bench.commit(&[0, 1, 4], 5);
        assert_eq!(bench.connect(6), 1, "{mode:?}");
        bench.commit(&[0, 4], 7);
        // In turn, a list that is new begins with its first.
        let expected = if mode == ProxyMode::Userspace { 0 } else { 4 };
        assert_eq!(bench.connect(8), expected, "{mode:?}");
    }
}

/// Even if no packet passed meanwhile.
#[test]
fn an_endpoint_that_was_gone_has_lost_its_clients() {
    for mode in MODES {
        let mut bench = Bench::at_the_first(mode);
        bench.commit(&[2], 2);
        bench.commit(&[1, 2], 4);
        assert_eq!(bench.connect(6), 2, "{mode:?}");
        let mut bench = Bench::at_the_first(mode);
        bench.commit(&[2], 2);
        bench.commit(&[1, 2], 2);
        assert_eq!(bench.connect(6), 1, "{mode:?}: it never was gone on this node");
    }
}

/// Versions are forgotten only when nodes have taken note of them.
#[test]
fn a_node_that_has_caught_up_needs_no_old_version() {
    for mode in MODES {
        let mut bench = Bench::at_the_first(mode);
        bench.commit(&[2], 2);
        bench.commit(&[1, 2], 4);
        assert!(bench.plane.forgets_clients_before(SERVICE, at(5)));
        bench.plane.catch_up(SERVICE, NODE, at(5), &mut bench.netns);
        bench.plane.forget_before(SERVICE, at(5));
        assert!(!bench.plane.forgets_clients_before(SERVICE, at(5)));
        assert_eq!(bench.connect(6), 2, "{mode:?}");
    }
}

#[test]
fn rules_that_were_removed_have_lost_their_clients() {
    for mode in [ProxyMode::Iptables, ProxyMode::Nftables] {
        let mut bench = Bench::at_the_first(mode);
        bench.plane.flush(NODE, at(2));
        bench.plane.forget_clients(NODE, &mut bench.netns);
        bench.plane.restore(NODE, at(3));
        assert_eq!(bench.connect(4), 2, "{mode:?}");
        assert_eq!(bench.connect(5), 2, "{mode:?}: and get them anew");
        bench.draw = 0;
        assert_eq!(bench.connect(6), 2, "{mode:?}");
    }
}
