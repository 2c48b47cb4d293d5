//! kube-proxy's nftables mode for a large cluster: 10,000 Services of ten endpoints each.
//!
//! The goal is 0.3 s for the rules of a node, from what the proxy was told.

use std::hint::black_box;
use std::net::Ipv4Addr;

use criterion::{Criterion, criterion_group, criterion_main};
use netfilter_model::tuple::{Family, Protocol};
use sim_core::config::{ObjectName, TargetPort};
use sim_core::kube::object;
use sim_core::proxy::nftables::Nftables;
use sim_core::proxy::profile::Profile;
use sim_core::proxy::state::{Objects, State};

const SERVICES: u32 = 10_000;
const ENDPOINTS: u32 = 10;

fn state(profile: Profile) -> State {
    let mut objects = Objects::default();
    for at in 0..SERVICES {
        let name = ObjectName { namespace: "default".into(), name: format!("web-{at}") };
        let slice_name = ObjectName { name: format!("web-{at}-x"), ..name.clone() };
        objects.add(object::Object::EndpointSlice(Box::new(object::EndpointSlice {
            name: slice_name,
            service: Some(name.name.clone()),
            address_type: object::AddressType::Ip(Family::V4),
            ports: vec![object::EndpointPort {
                name: "http".into(),
                protocol: Protocol::TCP,
                port: Some(8080),
            }],
            endpoints: (0..ENDPOINTS).map(|number| endpoint(at * ENDPOINTS + number)).collect(),
        })));
        objects.add(object::Object::Service(Box::new(service(name, at))));
    }
    objects.state("n1", Family::V4, profile)
}

fn endpoint(number: u32) -> object::Endpoint {
    let address = Ipv4Addr::from_bits(0x0af4_0000 + number);
    object::Endpoint {
        address: address.into(),
        text: address.to_string().into(),
        ready: true,
        serving: true,
        terminating: false,
        node: None,
        zone: None,
        zone_hints: [].into(),
        node_hints: [].into(),
        pod: None,
    }
}

fn service(name: ObjectName, at: u32) -> object::Service {
    object::Service {
        name,
        labels: Default::default(),
        annotations: Default::default(),
        kind: object::ServiceType::ClusterIp,
        selector: Default::default(),
        cluster_ips: vec![Ipv4Addr::from_bits(0x0a60_0000 + at).into()],
        headless: false,
        ports: vec![object::ServicePort {
            name: Some("http".into()),
            protocol: Protocol::TCP,
            port: 80,
            target: TargetPort::Number(8080),
            node_port: None,
        }],
        external_ips: Vec::new(),
        internal_traffic_policy: object::TrafficPolicy::Cluster,
        external_traffic_policy: object::TrafficPolicy::Cluster,
        affinity: None,
        load_balancer_source_ranges: Vec::new(),
        allocate_load_balancer_node_ports: true,
        health_check_node_port: None,
        ingress: Vec::new(),
        traffic_distribution: None,
        publish_not_ready_addresses: false,
        external_name: None,
    }
}

fn generate(c: &mut Criterion) {
    let mut group = c.benchmark_group("nftables 10000x10");
    group.sample_size(10);
    for profile in [Profile::V1_30, Profile::CURRENT] {
        let state = state(profile);
        group.bench_function(format!("rules of {profile}"), |b| {
            b.iter_with_large_drop(|| Nftables::of(black_box(&state)));
        });
        let rules = Nftables::of(&state);
        group.bench_function(format!("input of {profile}"), |b| {
            b.iter_with_large_drop(|| rules.restore());
        });
        group.bench_function(format!("checked ruleset of {profile}"), |b| {
            b.iter_with_large_drop(|| rules.ruleset().expect("accepted"));
        });
    }
    group.finish();
}

criterion_group!(benches, generate);
criterion_main!(benches);
