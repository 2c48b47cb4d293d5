//! The rules that a node holds: their text, their law, and what the kernel makes of them.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::Duration;

use expect_test::expect_file;
use netfilter_model::hook::{Hook, Table};
use netfilter_model::host::{Draws, Env};
use netfilter_model::netns::{Netns, Outcome};
use netfilter_model::nft;
use netfilter_model::packet::{Packet, TcpFlags};
use netfilter_model::rule::{
    Chain, ChainId, LAW_BITS, Rules, Ruleset, SlotHit, SlotId, iptables_save,
};
use netfilter_model::tuple::{Protocol, Tuple};
use sim_core::config::*;
use sim_core::engine::rng::Seed;
use sim_core::ids::{Id, NodeId, PodId, ServiceId};
use sim_core::kube::endpoint_slice::Endpoint;
use sim_core::net::plan::{AddressPlan, CNI0};
use sim_core::proxy::nftables::Nftables;
use sim_core::proxy::plane::{DataPlane, ProxiedService};
use sim_core::proxy::state::NodeInfo;
use sim_core::time::SimTime;

use crate::lab::{BACKENDS, Lab, Tool, skip};
use crate::support::{cluster, ms};

/// The node of the tests: its Pods are 10.244.1.0/24.
const NODE: NodeId = NodeId::FIRST;
const CLIENT: Ipv4Addr = Ipv4Addr::new(10, 244, 0, 2);

fn config() -> Config {
    let mut config = cluster(3, 1, Law::Constant(Duration::ZERO));
    config.cluster.pod_cidr = Ipv4Cidr::new(Ipv4Addr::new(10, 244, 0, 0), 16).unwrap();
    config.cluster.service_cidr = Ipv4Cidr::new(Ipv4Addr::new(10, 96, 0, 0), 12).unwrap();
    config
}

fn endpoints(count: u32, addr: impl Fn(u32) -> Ipv4Addr) -> Arc<[Endpoint]> {
    let endpoint = |k| Endpoint { pod: PodId::from_index(k as usize), addr: addr(k), port: 8080 };
    let mut list: Vec<Endpoint> = (0..count).map(endpoint).collect();
    list.sort_by_key(|endpoint| format!("{}:{}", endpoint.addr, endpoint.port));
    list.into()
}

fn service(name: &str, last: u8, endpoints: Arc<[Endpoint]>) -> ProxiedService {
    ProxiedService {
        name: ObjectName { namespace: "default".into(), name: name.into() },
        cluster_ip: Ipv4Addr::new(10, 96, 0, last),
        ports: vec![(Some("http".into()), 80)],
        endpoints: vec![endpoints],
        affinity: None,
    }
}

fn rules(config: &Config, services: Vec<ProxiedService>) -> DataPlane {
    let ranges =
        (0..config.cluster.nodes).filter_map(|node| sim_core::kube::node_range(config, node));
    DataPlane::new(&config.cluster, &config.proxy, ranges, services).expect("valid rules")
}

fn syn(to: (Ipv4Addr, u16), port: u16) -> Packet {
    Packet::tcp(1, Tuple::v4(Protocol::TCP, CLIENT, port, to.0, to.1), TcpFlags::SYN)
}

/// Returns where a packet from the client goes.
fn send<R: Rules>(
    rules: &R,
    plan: &AddressPlan,
    netns: &mut Netns,
    packet: Packet,
    draws: &mut impl Draws,
) -> Outcome {
    let host = plan.host(NODE);
    let mut env = Env { now: SimTime::ZERO, host: &host, rules, draws };
    netns.receive(packet, CNI0, &mut env)
}

fn no_draws(_: u32) -> u64 {
    panic!("a Service with one endpoint draws nothing")
}

#[test]
fn a_nodes_rules_read_as_iptables_save_prints_them() {
    let pods = endpoints(3, |k| Ipv4Addr::new(10, 244, 2, 9 + k as u8));
    let services = vec![service("web", 10, pods), service("empty", 11, [].into())];
    let rules = rules(&config(), services);
    let ruleset = rules.to_ruleset(NODE, SimTime::ZERO).unwrap();
    expect_file!["../data/node-rules.iptables-save"].assert_eq(&iptables_save(&ruleset));
}

#[test]
fn rules_grow_by_three_for_each_endpoint() {
    let count = |services: u8, pods: u32| {
        let pods = endpoints(pods, |k| Ipv4Addr::from_bits(0x0af4_0000 + k));
        let services = (0..services).map(|k| service(&format!("s{k}"), 10 + k, pods.clone()));
        let ruleset = rules(&config(), services.collect());
        let ruleset = ruleset.to_ruleset(NODE, SimTime::ZERO).unwrap();
        [Table::Nat, Table::Filter].map(|table| ruleset.rule_count(table))
    };
    let fixed = count(0, 0);
    for (services, pods) in [(1u8, 1u32), (1, 10), (20, 10), (5, 100)] {
        let each = services as usize * (2 + 3 * pods as usize);
        assert_eq!(count(services, pods), [fixed[0] + each, fixed[1]], "{services} × {pods}");
    }
    assert_eq!(count(7, 0), [fixed[0], fixed[1] + 7], "only a REJECT each");
}

fn seventy_four() -> (DataPlane, Ruleset) {
    let pods = endpoints(74, |k| Ipv4Addr::new(10, 161, 33, 109 + k as u8));
    let rules = rules(&config(), vec![service("testapp-svc", 10, pods)]);
    let ruleset = rules.to_ruleset(NODE, SimTime::ZERO).unwrap();
    (rules, ruleset)
}

#[test]
fn each_of_74_endpoints_gets_its_share() {
    let (_, ruleset) = seventy_four();
    let mut chains = ruleset.chains(Table::Nat).iter();
    let chain = chains.find(|chain| chain.name().starts_with("KUBE-SVC-")).unwrap();
    // 73 random rules follow the masquerade rule; what none of them takes is the last one's.
    let law = chain.run_law(1).expect("a run of random rules");
    assert_eq!(law.len(), 74);
    for share in law {
        let share = share as f64 / 2f64.powi(LAW_BITS as i32);
        assert!((share - 1.0 / 74.0).abs() < 2f64.powi(-31), "{share}");
    }
    let text = iptables_save(&ruleset);
    let mut written = text.lines().filter_map(|line| line.split_once("--probability "));
    for expected in ["0.01351351338", "0.01369863003", "0.01388888899"] {
        let (_, rest) = written.next().unwrap();
        assert!(rest.starts_with(expected), "{rest}");
    }
}

#[test]
fn a_long_run_over_74_endpoints_is_fair() {
    let (rules, _) = seventy_four();
    let plan = AddressPlan::new(&config().cluster);
    let stream = Seed::new(1, 0).stream("picks");
    let mut hits = std::collections::BTreeMap::new();
    let runs = 74 * 2000;
    for request in 0..runs {
        let mut netns = Netns::default();
        let mut draws = |index| stream.draw(request, 0, 1, index);
        let to = (Ipv4Addr::new(10, 96, 0, 10), 80);
        let packet = syn(to, 40000);
        let view = rules.at(NODE, SimTime::ZERO, &packet);
        let Outcome::Sent(egress) = send(&view, &plan, &mut netns, packet, &mut draws) else {
            panic!("not sent");
        };
        *hits.entry(egress.packet.tuple.dst()).or_insert(0u32) += 1;
    }
    assert_eq!(hits.len(), 74);
    let chi2: f64 = hits.values().map(|&n| (f64::from(n) - 2000.0).powi(2) / 2000.0).sum();
    // The 99.9 % quantile of χ² with 73 degrees of freedom.
    assert!(chi2 < 116.1, "χ² = {chi2}");
}

/// A node's rules as one value each of x_tables and nftables.
struct Whole(Ruleset, Option<nft::Ruleset>);

impl Rules for Whole {
    fn base(&self, table: Table, hook: Hook) -> Option<&Chain> {
        self.0.base(table, hook)
    }

    fn chain(&self, table: Table, id: ChainId) -> &Chain {
        Rules::chain(&self.0, table, id)
    }

    fn slot(&self, table: Table, slot: SlotId, packet: &Packet, from: u32) -> SlotHit<'_> {
        self.0.slot(table, slot, packet, from)
    }

    fn tracks(&self) -> bool {
        true
    }

    fn nft(&self) -> Option<&nft::Ruleset> {
        self.1.as_ref()
    }
}

#[test]
fn a_view_is_the_ruleset_that_it_stands_for() {
    for (mode, profile) in
        [(ProxyMode::Iptables, 30), (ProxyMode::Nftables, 30), (ProxyMode::Nftables, 36)]
    {
        let mut config = config();
        config.proxy.mode = mode;
        config.proxy.profile = profile;
        check_views(&config);
    }
}

fn check_views(config: &Config) {
    let pods = |from: u8, count| endpoints(count, |k| Ipv4Addr::new(10, 244, 2, from + k as u8));
    let names = ["a", "b", "c", "d"];
    let services = names.iter().zip([3, 0, 1, 2]);
    let services = services
        .enumerate()
        .map(|(k, (name, count))| service(name, 10 + k as u8, pods(10 * (k as u8 + 1), count)));
    let mut rules = rules(config, services.collect());
    let commit = |rules: &mut DataPlane, service: usize, list, now: u64| {
        let lags = [ms(10), ms(30), ms(20)].into_iter();
        let now = SimTime::from_nanos(now * 1_000_000);
        rules.commit(ServiceId::from_index(service), &vec![list], now, lags).unwrap();
    };
    commit(&mut rules, 0, [].into(), 100);
    commit(&mut rules, 1, pods(60, 2), 110);
    commit(&mut rules, 0, pods(70, 5), 120);
    let plan = AddressPlan::new(&config.cluster);
    let stream = Seed::new(1, 0).stream("draws");
    for now in [0, 105, 115, 125, 135, 145, 155].map(|ms: u64| ms * 1_000_000) {
        let now = SimTime::from_nanos(now);
        for node in (0..3).map(NodeId::from_index) {
            let own = IpAddr::V4(plan.node_address(node));
            let own = NodeInfo {
                name: "node".into(),
                zone: None,
                host_ip: own,
                addresses: vec![own],
                pod_cidr: None,
            };
            let nft = (config.proxy.mode == ProxyMode::Nftables)
                .then(|| Nftables::of(&rules.state(own, node, now)).into_ruleset().unwrap());
            let whole = Whole(rules.to_ruleset(node, now).unwrap(), nft);
            for port in 0..200u16 {
                let to = (Ipv4Addr::new(10, 96, 0, 9 + (port % 6) as u8), 80 + port / 150);
                let packet = syn(to, 40000 + port);
                let draws = |index| stream.draw(u64::from(port), 0, 1, index);
                let mut arms = [Netns::default(), Netns::default()];
                let view = rules.at(node, now, &packet);
                let a = send(&view, &plan, &mut arms[0], packet, &mut draws.clone());
                let b = send(&whole, &plan, &mut arms[1], packet, &mut draws.clone());
                assert_eq!(essence(a), essence(b), "{node:?} at {now} to {to:?}");
            }
        }
    }
}

/// Returns what does not depend on how a ruleset numbers its chains.
fn essence(outcome: Outcome) -> (&'static str, Packet, u32) {
    match outcome {
        Outcome::Sent(egress) => ("sent", egress.packet, egress.evaluated),
        Outcome::Local(delivery) => ("local", delivery.packet, delivery.evaluated),
        Outcome::Dropped(drop) => ("dropped", drop.packet, drop.evaluated),
        Outcome::Rejected(rejection) => {
            ("rejected", rejection.drop.packet, rejection.drop.evaluated)
        }
    }
}

/// The lab's client is 10.244.1.2, behind node 1; its servers are 10.244.2.2 and up, on 8080.
#[test]
fn the_kernel_loads_these_rules_and_sends_packets_where_the_model_does() {
    let pods = |from: u8, count| endpoints(count, |k| Ipv4Addr::new(10, 244, 2, from + k as u8));
    let mut services =
        vec![service("all", 10, pods(2, u32::from(BACKENDS))), service("empty", 11, [].into())];
    for backend in 0..BACKENDS {
        let name = format!("only-{backend}");
        services.push(service(&name, 20 + backend, pods(2 + backend, 1)));
    }
    let config = config();
    let rules = rules(&config, services);
    let node = NodeId::from_index(1);
    let text = iptables_save(&rules.to_ruleset(node, SimTime::ZERO).unwrap());
    let plan = AddressPlan::new(&config.cluster);
    for tool in [Tool::Legacy, Tool::Nft] {
        let lab = match Lab::try_new(tool) {
            Ok(lab) => lab,
            Err(reason) => return skip("generated rules in the kernel", &reason),
        };
        lab.restore(tool, &text).expect("the kernel accepts the rules");
        // An address that no rule rewrites needs a route to get as far as FORWARD.
        lab.node("ip", &["route", "add", "default", "via", "10.244.2.2"], "").expect("a route");
        for table in ["nat", "filter"] {
            let start = text.find(&format!("*{table}\n")).unwrap();
            let end = start + text[start..].find("COMMIT\n").unwrap() + "COMMIT\n".len();
            assert_eq!(lab.save(tool, table).unwrap(), text[start..end], "{tool:?} {table}");
        }
        for backend in 0..BACKENDS {
            let vip = Ipv4Addr::new(10, 96, 0, 20 + backend);
            let tuple = Tuple::v4(Protocol::TCP, Ipv4Addr::new(10, 244, 1, 2), 40000, vip, 80);
            let host = plan.host(node);
            let syn = Packet::tcp(1, tuple, TcpFlags::SYN);
            let view = rules.at(node, SimTime::ZERO, &syn);
            let mut env =
                Env { now: SimTime::ZERO, host: &host, rules: &view, draws: &mut no_draws };
            let Outcome::Sent(egress) = Netns::default().receive(syn, CNI0, &mut env) else {
                panic!("{vip} is not forwarded");
            };
            let sent = egress.packet.tuple;
            let kernel = lab.client("tcp", &format!("{vip}:80"));
            let words: Vec<&str> = kernel[0].split_whitespace().collect();
            let [local, "ok", server, seen] = words[..] else { panic!("{tool:?} {kernel:?}") };
            assert_eq!(server, format!("{}:{}", sent.dst(), sent.dst_part), "{tool:?}");
            assert_eq!(seen, local, "{tool:?}: the source stays");
            assert_eq!(sent.src(), tuple.src());
        }
        let all: String = (0..30).map(|_| "10.96.0.10:80 ").collect();
        let mut reached = std::collections::BTreeSet::new();
        for line in lab.client("tcp", &all) {
            let server = line.split_whitespace().nth(2).unwrap_or_else(|| panic!("{line}"));
            reached.insert(server.parse::<std::net::SocketAddr>().unwrap().ip());
        }
        // 30 connections miss one of 5 servers with a probability below 0.7 %; all are ours.
        let ours = |ip: &IpAddr| matches!(ip, IpAddr::V4(ip) if ip.octets()[..3] == [10, 244, 2]);
        assert!(reached.len() > 2 && reached.iter().all(ours), "{tool:?} {reached:?}");
        assert_eq!(lab.client("tcp", "10.96.0.11:80"), ["- ConnectionRefused"], "{tool:?}");
    }
}
