//! IPVS mode of a made-up shop: as text, and in the kernel as far as it can be loaded where there
//! is no IPVS.

use std::net::IpAddr;
use std::time::Duration;

use expect_test::expect_file;
use netfilter_model::hook::{Hook, Table};
use netfilter_model::host::Env;
use netfilter_model::ipvs::Sysctls;
use netfilter_model::netns::{Netns, Outcome};
use netfilter_model::packet::{Packet, TcpFlags};
use netfilter_model::read::ipvsadm;
use netfilter_model::rule::iptables_save;
use netfilter_model::time::SimTime;
use netfilter_model::tuple::{Family, Protocol, Tuple};
use serde_json::json;
use sim_core::config::Law;
use sim_core::ids::{Id as _, NodeId};
use sim_core::kube::manifest::Manifest;
use sim_core::net::plan::{AddressPlan, CNI0};
use sim_core::proxy::ipvs::Ipvs;
use sim_core::proxy::profile::Profile;
use sim_core::proxy::state::Objects;

use crate::lab::{Lab, Tool, skip};
use crate::support::cluster;

fn rules(node: &str, family: Family) -> Ipvs {
    let value = serde_json::from_str(include_str!("../data/proxy/shop.json")).expect("JSON");
    let mut objects = Objects::default();
    for manifest in Manifest::for_proxies(&value).expect("valid objects") {
        objects.add(manifest.object);
    }
    Ipvs::of(&objects.state(node, family, Profile::V1_30)).expect("rules")
}

const SIDES: [(&str, Family); 3] = [("n1", Family::V4), ("n2", Family::V4), ("n1", Family::V6)];

#[test]
fn what_a_proxy_makes_of_a_shop() {
    for (node, family) in SIDES {
        let six = if family == Family::V6 { "6" } else { "" };
        let file = |form: &str| {
            format!("{}/tests/data/proxy/shop.{node}.{form}{six}", env!("CARGO_MANIFEST_DIR"))
        };
        let rules = rules(node, family);
        expect_file![file("ipvs")].assert_eq(&rules.restore());
        expect_file![file("ipvsadm")].assert_eq(&rules.servers().list());
        expect_file![file("ipvs-save")].assert_eq(&iptables_save(&rules.to_ruleset().unwrap()));
    }
}

#[test]
fn virtual_servers_read_back_from_both_forms() {
    for (node, family) in SIDES {
        let rules = rules(node, family);
        for text in [rules.servers().list(), rules.servers().save()] {
            let read = ipvsadm(&text);
            assert_eq!(read.remarks, []);
            assert_eq!(&read.value, rules.servers());
        }
    }
}

#[test]
fn the_kernel_takes_the_sets() {
    let lab = match Lab::try_new(Tool::Legacy) {
        Ok(lab) => lab,
        Err(reason) => return skip("sets of IPVS mode in the kernel", &reason),
    };
    for (node, family) in SIDES {
        let ours = rules(node, family).sets().save(SimTime::ZERO);
        if let Err(reason) = lab.node("ipset", &["restore"], &ours) {
            return skip("sets of IPVS mode in the kernel", &reason);
        }
        let kept = lab.node("ipset", &["save"], "").unwrap();
        // The kernel prints how its tables are laid out, too.
        let kept: Vec<String> = kept.lines().map(plain).collect();
        let mut kept: Vec<&str> = kept.iter().map(String::as_str).collect();
        let mut ours: Vec<&str> = ours.lines().collect();
        kept.sort_unstable();
        ours.sort_unstable();
        assert_eq!(kept, ours, "{node} {family:?}");
        lab.node("ipset", &["destroy"], "").unwrap();
    }
}

/// Drops `bucketsize N initval N`.
fn plain(line: &str) -> String {
    line.split(" bucketsize ").next().unwrap_or(line).to_owned()
}

/// All but what asks IPVS itself, which needs it in the kernel.
#[test]
fn the_kernel_takes_the_rules_and_prints_them_so() {
    for tool in [Tool::Legacy, Tool::Nft] {
        let lab = match Lab::try_new(tool) {
            Ok(lab) => lab,
            Err(reason) => return skip("rules of IPVS mode in the kernel", &reason),
        };
        for (node, family) in SIDES {
            let rules = rules(node, family);
            if let Err(reason) = lab.node("ipset", &["restore"], &rules.sets().save(SimTime::ZERO))
            {
                return skip("rules of IPVS mode in the kernel", &reason);
            }
            let name = tool.name_of(if family == Family::V4 { "iptables" } else { "ip6tables" });
            let fed = without_ipvs(&rules.iptables_restore());
            let restore = format!("{name}-restore");
            lab.node(&restore, &["--noflush", "--counters"], &fed).expect("it loads");
            let expected = without_ipvs(&iptables_save(&rules.to_ruleset().unwrap()));
            for table in [Table::Nat, Table::Filter] {
                let ours = section(&expected, table);
                let kept = lab.node(&format!("{name}-save"), &["-t", table.name()], "").unwrap();
                let of_proxy = |text: &str| {
                    let lines = text.lines().filter(|line| line.starts_with("-A KUBE-"));
                    lines.map(|line| format!("{line}\n")).collect::<String>()
                };
                assert_eq!(of_proxy(&kept), of_proxy(ours), "{tool:?} {node} {family:?}");
                let kept = lab.reload(tool, family, table.name(), ours).unwrap();
                assert_eq!(kept, ours, "{tool:?} {node} {family:?}");
            }
            for table in ["nat", "filter"] {
                lab.node(&name, &["-t", table, "-F"], "").unwrap();
                lab.node(&name, &["-t", table, "-X"], "").unwrap();
            }
            lab.node("ipset", &["destroy"], "").unwrap();
        }
    }
}

fn without_ipvs(text: &str) -> String {
    let lines = text.lines().filter(|line| !line.contains(" -m ipvs "));
    lines.map(|line| format!("{line}\n")).collect()
}

fn section(text: &str, table: Table) -> &str {
    let start = text.find(&format!("*{table}\n")).unwrap();
    &text[start..start + text[start..].find("COMMIT\n").unwrap() + "COMMIT\n".len()]
}

/// Sends a packet from a Pod of node 0 through the rules, sets and virtual servers of a Service
/// behind a load balancer whose one endpoint is on node 1.
fn sent(packet: Packet) -> Outcome {
    let config = cluster(2, 1, Law::Constant(Duration::ZERO));
    let plan = AddressPlan::new(&config.cluster);
    let node = NodeId::FIRST;
    let [own, other] = [node, NodeId::from_index(1)].map(|node| plan.node_address(node));
    let items = json!({ "apiVersion": "v1", "kind": "List", "items": [
        { "apiVersion": "v1", "kind": "Node", "metadata": { "name": "n1" }, "status": {
            "addresses": [{ "type": "InternalIP", "address": own.to_string() }],
        } },
        { "apiVersion": "kubeproxy.config.k8s.io/v1alpha1", "kind": "KubeProxyConfiguration",
          "mode": "ipvs", "clusterCIDR": "10.244.0.0/16" },
        { "apiVersion": "v1", "kind": "Service", "metadata": { "name": "a", "namespace": "shop" },
          "spec": {
            "type": "LoadBalancer", "clusterIP": "172.20.0.9", "externalTrafficPolicy": "Local",
            "healthCheckNodePort": 31999, "loadBalancerSourceRanges": ["10.244.0.0/24"],
            "ports": [{ "port": 80, "nodePort": 30080 }],
          },
          "status": { "loadBalancer": { "ingress": [{ "ip": "203.0.113.1" }] } } },
        { "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
          "metadata": { "name": "a-x", "namespace": "shop",
                        "labels": { "kubernetes.io/service-name": "a" } },
          "addressType": "IPv4", "ports": [{ "name": "", "port": 8080, "protocol": "TCP" }],
          "endpoints": [{ "addresses": [other.to_string()], "nodeName": "n2" }] },
    ] });
    let mut objects = Objects::default();
    for manifest in Manifest::for_proxies(&items).expect("valid objects") {
        objects.add(manifest.object);
    }
    let made = Ipvs::of(&objects.state("n1", Family::V4, Profile::V1_30)).unwrap();
    let shared = made.addresses().iter().filter_map(|address| match address {
        IpAddr::V4(address) => Some(*address),
        IpAddr::V6(_) => None,
    });
    let plan = plan.with_shared(shared.collect());
    let rules = made.to_ruleset().unwrap().with_ipvs(made.servers().clone());
    let mut netns = Netns::default();
    netns.memory_mut().sets = made.sets();
    netns.ipvs_mut(SimTime::ZERO).sysctls = Sysctls::kube_proxy();
    let host = plan.host(node);
    let mut draws = |_| 0_u64;
    let mut env = Env { now: SimTime::ZERO, host: &host, rules: &rules, draws: &mut draws };
    netns.receive(packet, CNI0, &mut env)
}

fn syn(from: [u8; 4], to: [u8; 4], port: u16) -> Packet {
    let tuple = Tuple::v4(Protocol::TCP, from.into(), 40_000, to.into(), port);
    Packet::tcp(1, tuple, TcpFlags::SYN)
}

const VIP: [u8; 4] = [172, 20, 0, 9];
const BALANCER: [u8; 4] = [203, 0, 113, 1];
const POD: [u8; 4] = [10, 244, 0, 7];

/// Case C66: since 1.26 nothing but Services' ports answers at their addresses.
#[test]
fn c66_other_ports_and_pings_of_a_service_are_rejected() {
    let Outcome::Sent(out) = sent(syn(POD, VIP, 80)) else { panic!("it leaves") };
    assert_eq!(out.packet.tuple.dst_part, 8080);
    assert_eq!(out.packet.tuple.src(), IpAddr::from(POD), "Pods are not masqueraded");
    let rejected = |packet| match sent(packet) {
        Outcome::Rejected(rejection) => rejection.drop.hook == Hook::Input,
        _ => false,
    };
    assert!(rejected(syn(POD, VIP, 22)));
    let echo = Tuple::v4(Protocol::ICMP, POD.into(), 7, VIP.into(), 8 << 8);
    assert!(rejected(Packet::icmp_echo(1, echo)));
    // The port for health checks, at whichever address.
    assert!(matches!(sent(syn(POD, VIP, 31999)), Outcome::Local(_)));
}

#[test]
fn sources_and_masquerading_are_the_sets_to_decide() {
    let Outcome::Sent(out) = sent(syn([10, 9, 9, 9], VIP, 80)) else { panic!("it leaves") };
    assert_ne!(out.packet.tuple.src(), IpAddr::from([10, 9, 9, 9]), "from outside the cluster");
    // Only some may use the load balancer's address; under policy Local they keep their own.
    let Outcome::Sent(out) = sent(syn(POD, BALANCER, 80)) else { panic!("it leaves") };
    assert_eq!(out.packet.tuple.src(), IpAddr::from(POD));
    let Outcome::Dropped(drop) = sent(syn([10, 244, 3, 3], BALANCER, 80)) else {
        panic!("it is kept out");
    };
    assert_eq!(drop.hook, Hook::Input);
}
