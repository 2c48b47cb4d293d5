//! First packets through many Services, and whole runs.
//!
//! A first packet is a SYN from a Pod to a ClusterIP: PREROUTING with the walk to its Service and
//! the pick of an endpoint, routing, FORWARD, POSTROUTING, two conntrack entries. Its cost should
//! not depend on the number of Services, caches aside.

#[allow(dead_code)] // What only the tests need of it.
#[path = "../tests/it/support.rs"]
mod support;

use std::hint::black_box;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use netfilter_model::host::Env;
use netfilter_model::netns::{Netns, Outcome};
use netfilter_model::packet::{Packet, TcpFlags};
use netfilter_model::tuple::{Protocol, Tuple};
use sim_core::config::*;
use sim_core::ids::{Id, NodeId, PodId};
use sim_core::kube::endpoint_slice::Endpoint;
use sim_core::net::plan::{AddressPlan, CNI0};
use sim_core::proxy::plane::{DataPlane, ProxiedService};
use sim_core::record::{Loss, Propagation as Live, Recorder, Run, Window};
use sim_core::time::SimTime;

/// A rolling update of 10 Pods under 1,000 requests per second.
fn config(nodes: u32) -> Config {
    let law = |ms| Law::Exponential { mean: Duration::from_millis(ms) };
    let mut config = support::cluster(nodes, 10, law(300));
    config.kubelet = KubeletConfig { notice: law(100), start: law(1000), teardown: law(500) };
    let deployment = &mut config.deployments[0];
    deployment.strategy = Strategy::RollingUpdate {
        max_surge: IntOrPercent::Percent(25),
        max_unavailable: IntOrPercent::Percent(25),
    };
    deployment.template.application.startup = law(100);
    deployment.template.application.service_time = law(1);
    support::rollout(&mut config);
    config.events[0].at = Duration::from_secs(10);
    config
}

fn rules(config: &Config, services: u32) -> DataPlane {
    let service = |k: u32| {
        let endpoint = |e: u32| Endpoint {
            pod: PodId::from_index(e as usize),
            addr: Ipv4Addr::from_bits(0x0a00_0002 + e * 256),
            port: 8080,
        };
        ProxiedService {
            name: ObjectName { namespace: "default".into(), name: format!("s{k}") },
            cluster_ip: Ipv4Addr::from_bits(0xac14_0100 + k),
            ports: vec![(None, 80)],
            endpoints: vec![(0..10).map(endpoint).collect::<Arc<[Endpoint]>>()],
            affinity: None,
        }
    };
    let ranges =
        (0..config.cluster.nodes).filter_map(|node| sim_core::kube::node_range(config, node));
    let services = (0..services).map(service).collect();
    DataPlane::new(&config.cluster, &config.proxy, ranges, services).expect("valid rules")
}

fn first_packets(c: &mut Criterion) {
    let mut group = c.benchmark_group("first packet");
    group.throughput(Throughput::Elements(1));
    let config = config(20);
    let plan = AddressPlan::new(&config.cluster);
    let node = NodeId::FIRST;
    for services in [10u32, 1_000, 10_000] {
        let rules = rules(&config, services);
        group.bench_function(BenchmarkId::new("services", services), |b| {
            let mut netns = Netns::default();
            let mut k = 0u32;
            b.iter(|| {
                // A table of 100,000 entries at most: what a busy node has.
                if k.is_multiple_of(100_000) {
                    netns = Netns::default();
                }
                k = k.wrapping_add(1);
                let service = k.wrapping_mul(2_654_435_761) % services;
                let client = Ipv4Addr::from_bits(0x0a00_00fe - k / 28_000 % 100);
                let port = 32_768 + (k % 28_000) as u16;
                let vip = Ipv4Addr::from_bits(0xac14_0100 + service);
                let tuple = Tuple::v4(Protocol::TCP, client, port, vip, 80);
                let host = plan.host(node);
                let mut draws =
                    |_: u32| u64::from(k).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(31);
                let syn = Packet::tcp(u64::from(k), tuple, TcpFlags::SYN);
                let view = rules.at(node, SimTime::ZERO, &syn);
                let mut env =
                    Env { now: SimTime::ZERO, host: &host, rules: &view, draws: &mut draws };
                let outcome = netns.receive(syn, CNI0, &mut env);
                assert!(matches!(outcome, Outcome::Sent(_)));
                let _ = black_box(outcome);
            });
        });
    }
    group.finish();
}

/// Keeps only the totals.
#[derive(Default)]
struct Totals(Option<Run>);

impl Recorder for Totals {
    fn wants_detail(&self) -> bool {
        false
    }
    fn attempt(&mut self, _: SimTime) {}
    fn loss(&mut self, _: Loss) {}
    fn propagation(&mut self, _: Live) {}
    fn window(&mut self, _: Window) {}
    fn run(&mut self, run: Run) {
        self.0 = Some(run);
    }
}

fn run(config: &Config) -> Run {
    let mut totals = Totals::default();
    sim_core::run(config, 1, 0, &mut totals).expect("the run ends");
    totals.0.expect("a run has totals")
}

/// Whole rolling updates; the rate is in events.
fn whole_runs(c: &mut Criterion) {
    let mut group = c.benchmark_group("rolling update");
    group.sample_size(10);
    for nodes in [10u32, 1_000, 5_000] {
        let config = config(nodes);
        group.throughput(Throughput::Elements(run(&config).events));
        group.bench_function(BenchmarkId::new("nodes", nodes), |b| b.iter(|| run(&config)));
    }
    group.finish();
}

criterion_group!(benches, first_packets, whole_runs);
criterion_main!(benches);
