//! kube-proxy's iptables mode for a large cluster: 10,000 Services of ten endpoints each.
//!
//! The goals: 0.3 s for the rules of a node, from what the proxy was told, and a millisecond for
//! what one Service's change makes it write.

use std::collections::BTreeSet;
use std::hint::black_box;
use std::net::{IpAddr, Ipv4Addr};

use criterion::{Criterion, criterion_group, criterion_main};
use netfilter_model::tuple::{Family, Protocol};
use sim_core::config::ObjectName;
use sim_core::proxy::endpoint::Endpoint;
use sim_core::proxy::iptables::{Proxier, Sync};
use sim_core::proxy::profile::Profile;
use sim_core::proxy::service::{ServicePort, ServicePortName};
use sim_core::proxy::state::{Objects, State};

const SERVICES: u32 = 10_000;
const ENDPOINTS: u32 = 10;

fn name(k: u32) -> ObjectName {
    ObjectName { namespace: "default".into(), name: format!("web-{k:05}") }
}

fn port(k: u32, endpoints: u32) -> (ServicePort, Vec<Endpoint>) {
    let name = ServicePortName::new(&name(k), Some("http"), Protocol::TCP);
    let endpoint = |e: u32| {
        let addr = Ipv4Addr::from_bits(0x0af4_0000 + k * ENDPOINTS + e);
        Endpoint {
            addr: addr.into(),
            port: 8080,
            text: format!("{addr}:8080").into(),
            ready: true,
            serving: true,
            terminating: false,
            local: false,
            zone_hints: [].into(),
            node_hints: [].into(),
            item: e,
        }
    };
    let vip = IpAddr::V4(Ipv4Addr::from_bits(0x0a60_0000 + k));
    (ServicePort::cluster_ip_only(name, vip, 80), (0..endpoints).map(endpoint).collect())
}

fn state() -> State {
    let mut state = Objects::default().state("n1", Family::V4, Profile::V1_30);
    state.config.cluster_cidrs.push(netfilter_model::Prefix::new([10, 0, 0, 0].into(), 8));
    state.ports.extend((0..SERVICES).map(|k| port(k, ENDPOINTS)));
    state
}

fn generate(c: &mut Criterion) {
    let mut group = c.benchmark_group("iptables 10000x10");
    group.sample_size(10);
    let state = state();
    group.bench_function("rules", |b| {
        b.iter_with_large_drop(|| Proxier::new(black_box(&state)).expect("rules"));
    });
    let mut proxier = Proxier::new(&state).expect("rules");
    group.bench_function("input of a full sync", |b| {
        b.iter_with_large_drop(|| proxier.restore(Sync::Full, &[]));
    });
    group.bench_function("rules and input of a full sync", |b| {
        b.iter_with_large_drop(|| {
            Proxier::new(black_box(&state)).expect("rules").restore(Sync::Full, &[])
        });
    });
    let changed = name(SERVICES / 2);
    let sides = [9, 10].map(|endpoints| vec![port(SERVICES / 2, endpoints)]);
    let partial = BTreeSet::from([changed.clone()]);
    let mut turn = 0;
    group.bench_function("one Service's change", |b| {
        b.iter(|| {
            turn += 1;
            proxier.set(&changed, &sides[turn % 2]).expect("rules");
        });
    });
    group.bench_function("input of a partial sync", |b| {
        b.iter_with_large_drop(|| proxier.restore(Sync::Partial(&partial), &[]));
    });
    group.finish();
}

criterion_group!(benches, generate);
criterion_main!(benches);
