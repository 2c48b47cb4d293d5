//! New connections through many Services: a SYN from a Pod to a ClusterIP passes PREROUTING with
//! the walk to its Service and the pick of an endpoint, routing, FORWARD and POSTROUTING, and
//! leaves a connection behind.
//!
//! 10, 100, 1,000 and 10,000 Services of 10 endpoints, 100,000 live connections. Prints also what
//! a rule costs that is passed one by one and, as root on Linux, how many new flows per second the
//! running kernel takes through the same rules.

#![allow(clippy::disallowed_methods, reason = "a benchmark reads the clock")]

mod kernel;

use std::hint::black_box;
use std::net::{IpAddr, Ipv4Addr};
use std::time::{Duration, Instant};

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group};
use netfilter_model::hook::{Hook, Table};
use netfilter_model::host::{Env, Host, Route, RouteQuery};
use netfilter_model::netns::{Netns, Outcome};
use netfilter_model::packet::{Packet, TcpFlags};
use netfilter_model::rule::{
    AddrType, CtStates, Nat, NatFlags, NatRange, Origin, Probability, Rule, Ruleset,
    RulesetBuilder, Target,
};
use netfilter_model::time::SimTime;
use netfilter_model::traverse::Lookup;
use netfilter_model::tuple::{Protocol, Tuple};
use netfilter_model::{DeviceId, DeviceName, Prefix};

const LO: DeviceId = DeviceId(0);
const ETH0: DeviceId = DeviceId(1);
const CNI0: DeviceId = DeviceId(2);
const MASQ: u32 = 0x4000;
const LIVE: u64 = 100_000;
const ENDPOINTS: u32 = 10;
const SIZES: [u32; 4] = [10, 100, 1_000, 10_000];

/// A node with a pod bridge and an uplink.
struct Node;

impl Host for Node {
    fn route(&self, query: RouteQuery) -> Route {
        match query.dst {
            IpAddr::V4(dst) if dst.octets()[..3] == [10, 244, 1] => {
                Route::Forward { dev: CNI0, next_hop: query.dst }
            }
            _ => Route::Forward { dev: ETH0, next_hop: Ipv4Addr::new(192, 168, 0, 254).into() },
        }
    }

    fn addr_type(&self, _: IpAddr, _: Option<DeviceId>) -> AddrType {
        AddrType::Unicast
    }

    fn masquerade_address(&self, _: DeviceId, _: IpAddr) -> Option<IpAddr> {
        Some(Ipv4Addr::new(192, 168, 0, 1).into())
    }

    fn loopback(&self) -> DeviceId {
        LO
    }

    fn device_name(&self, dev: DeviceId) -> DeviceName {
        DeviceName::parse(["lo", "eth0", "cni0"][dev.0 as usize]).expect("a name")
    }
}

/// Well-mixed bits of a number.
fn bits(seed: u64) -> u64 {
    let mut z = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ z >> 31
}

pub(crate) fn vip(service: u32) -> Ipv4Addr {
    Ipv4Addr::from_bits(0x0a60_0000 + service)
}

fn rule() -> Rule {
    Rule::new(Origin::default())
}

/// The rules of kube-proxy's iptables mode.
pub(crate) fn rules(services: u32, protocol: Protocol) -> Ruleset {
    let mut builder = RulesetBuilder::new();
    let b = &mut builder;
    let nat = Table::Nat;
    let [kube_services, mark_masq, postrouting] =
        ["KUBE-SERVICES", "KUBE-MARK-MASQ", "KUBE-POSTROUTING"].map(|name| b.chain(nat, name));
    for hook in [Hook::Prerouting, Hook::Output] {
        let base = b.builtin(nat, hook);
        let rule = rule().comment("kubernetes service portals").then(Target::Jump(kube_services));
        b.append(nat, base, rule);
    }
    let base = b.builtin(nat, Hook::Postrouting);
    b.append(nat, base, rule().then(Target::Jump(postrouting)));
    b.append(nat, mark_masq, rule().then(Target::or_mark(MASQ)));
    b.append(nat, postrouting, rule().not_mark(MASQ, MASQ).then(Target::Return));
    b.append(nat, postrouting, rule().then(Target::xor_mark(MASQ)));
    let flags = NatFlags { random_fully: true, ..NatFlags::default() };
    let masquerade = Target::Nat(Nat::Masquerade(NatRange::keep().with_flags(flags)));
    b.append(nat, postrouting, rule().then(masquerade));
    let pods = Prefix::new(Ipv4Addr::new(10, 244, 0, 0).into(), 16);
    for service in 0..services {
        let svc = b.chain(nat, format!("KUBE-SVC-{service:016}"));
        let to_service = rule()
            .destination(Prefix::host(vip(service).into()))
            .comment(format!("default/s{service} cluster IP"))
            .dport(protocol, 80);
        b.append(nat, kube_services, to_service.clone().then(Target::Jump(svc)));
        b.append(nat, svc, to_service.not_source(pods.clone()).then(Target::Jump(mark_masq)));
        for e in 0..ENDPOINTS {
            let address: IpAddr = Ipv4Addr::from_bits(0x0af4_0002 + service * 16 + e).into();
            let sep = b.chain(nat, format!("KUBE-SEP-{service:08}{e:08}"));
            let hairpin =
                rule().source(Prefix::host(address)).comment(format!("default/s{service}"));
            b.append(nat, sep, hairpin.then(Target::Jump(mark_masq)));
            let dnat = rule()
                .comment(format!("default/s{service}"))
                .protocol(protocol)
                .then(Target::Nat(Nat::Dnat(NatRange::to(address, 8080))));
            b.append(nat, sep, dnat);
            let mut pick = rule().comment(format!("default/s{service} -> {address}:8080"));
            if e + 1 < ENDPOINTS {
                pick = pick.random(Probability::one_of(ENDPOINTS - e));
            }
            b.append(nat, svc, pick.then(Target::Jump(sep)));
        }
    }
    let filter = Table::Filter;
    let forward = b.builtin(filter, Hook::Forward);
    let kube_forward = b.chain(filter, "KUBE-FORWARD");
    b.append(filter, forward, rule().then(Target::Jump(kube_forward)));
    b.append(filter, kube_forward, rule().ctstate(CtStates::INVALID).then(Target::Drop));
    b.append(filter, kube_forward, rule().mark(MASQ, MASQ).then(Target::Accept));
    let known = CtStates::RELATED | CtStates::ESTABLISHED;
    b.append(filter, kube_forward, rule().ctstate(known).then(Target::Accept));
    builder.build().expect("kube-proxy's rules are valid")
}

/// A SYN of the n-th connection: 240 Pods, each with its ports in turn, to Services in no order.
fn syn(n: u64, services: u32) -> Packet {
    let pod = Ipv4Addr::new(10, 244, 1, 2 + (n % 240) as u8);
    let port = 1024 + (n / 240 % 60_000) as u16;
    let service = (((bits(n) >> 32) * u64::from(services)) >> 32) as u32;
    Packet::tcp(n, Tuple::v4(Protocol::TCP, pod, port, vip(service), 80), TcpFlags::SYN)
}

/// Opens connections from the n-th on, one each `interval`, such that [`LIVE`] are alive at a time.
fn open(netns: &mut Netns, rules: &Ruleset, first: u64, count: u64, services: u32) -> u64 {
    // SYN_SENT lasts for 120 s.
    let interval = 120_000_000_000 / LIVE;
    let mut evaluated = 0;
    for n in first..first + count {
        let now = SimTime::from_nanos(n * interval);
        let mut draws = |i: u32| bits(n << 8 | u64::from(i));
        let mut env = Env { now, host: &Node, rules, draws: &mut draws };
        match netns.receive(syn(n, services), CNI0, &mut env) {
            Outcome::Sent(egress) => evaluated += u64::from(egress.evaluated),
            outcome => panic!("a SYN is forwarded, not {outcome:?}"),
        }
    }
    evaluated
}

fn connections(c: &mut Criterion) {
    let mut group = c.benchmark_group("new_connections");
    group.throughput(Throughput::Elements(1));
    for services in SIZES {
        let rules = rules(services, Protocol::TCP);
        let mut netns = Netns::default();
        let mut n = 0;
        open(&mut netns, &rules, 0, 2 * LIVE, services);
        n += 2 * LIVE;
        group.bench_function(BenchmarkId::from_parameter(services), |b| {
            b.iter_custom(|count| {
                let start = Instant::now();
                black_box(open(&mut netns, &rules, n, count, services));
                n += count;
                start.elapsed()
            });
        });
    }
    group.finish();
}

/// Passes all rules of the dispatch chain one after the other.
fn rule_by_rule(c: &mut Criterion) {
    let services = 10_000;
    let rules = rules(services, Protocol::TCP);
    let mut group = c.benchmark_group("rule_by_rule");
    group.throughput(Throughput::Elements(u64::from(services)));
    let mut netns = Netns::default();
    netns.set_lookup(Lookup::Linear);
    let mut n = 0;
    group.bench_function("passed", |b| {
        b.iter(|| {
            n += 1;
            let client = Ipv4Addr::new(10, 244, 1, 2);
            let stranger = Ipv4Addr::new(10, 200, 0, 1);
            let tuple = Tuple::v4(Protocol::TCP, client, (n % 60_000) as u16, stranger, 80);
            let mut draws = |i: u32| bits(n << 8 | u64::from(i));
            let now = SimTime::from_nanos(n * 1_000_000_000);
            let mut env = Env { now, host: &Node, rules: &rules, draws: &mut draws };
            let packet = Packet::tcp(n, tuple, TcpFlags::SYN);
            match netns.receive(packet, CNI0, &mut env) {
                Outcome::Sent(egress) => assert!(egress.evaluated > services),
                outcome => panic!("a SYN is forwarded, not {outcome:?}"),
            }
        });
    });
    group.finish();
}

criterion_group! {
    name = benches;
    config = Criterion::default().sample_size(20).measurement_time(Duration::from_secs(3));
    targets = connections, rule_by_rule
}

fn main() {
    if kernel::play_client() {
        return;
    }
    benches();
    Criterion::default().configure_from_args().final_summary();
    // Not beside a choice of benchmarks.
    if std::env::args().skip(1).all(|arg| arg == "--bench") {
        kernel::print_rates(&SIZES);
    }
}
