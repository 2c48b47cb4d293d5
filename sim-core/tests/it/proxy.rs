//! Rulesets that a proxy's generators make of objects: their text, in kube-proxy's and the
//! kernel's words, what packets make of them, and how many rules they are.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use expect_test::{expect, expect_file};
use netfilter_model::hook::Table;
use netfilter_model::rule::{iptables_list, iptables_list_rules, iptables_save};
use netfilter_model::tuple::{Family, Protocol};
use sim_core::config::ObjectName;
use sim_core::kube::manifest::Manifest;
use sim_core::proxy::endpoint::Endpoint;
use sim_core::proxy::iptables::common::Settings;
use sim_core::proxy::iptables::{Proxier, Sync};
use sim_core::proxy::profile::Profile;
use sim_core::proxy::service::{ServicePort, ServicePortName};
use sim_core::proxy::state::{Objects, State};

use crate::lab::{Lab, Tool, skip};

const SHOP: &str = include_str!("../data/proxy/shop.json");

fn shop() -> Objects {
    read(SHOP)
}

fn read(text: &str) -> Objects {
    let value = serde_json::from_str(text).expect("JSON");
    let mut objects = Objects::default();
    for manifest in Manifest::for_proxies(&value).expect("valid objects") {
        objects.add(manifest.object);
    }
    objects
}

fn state(node: &str, family: Family) -> State {
    shop().state(node, family, Profile::V1_30)
}

fn proxier(node: &str, family: Family) -> Proxier {
    Proxier::new(&state(node, family)).expect("rules")
}

/// A state of `services` Services with `endpoints` endpoints each, all of a made-up cluster.
fn made_up(services: u32, endpoints: u32) -> State {
    let mut state = Objects::default().state("n1", Family::V4, Profile::V1_30);
    state.config.cluster_cidrs.push(netfilter_model::Prefix::new([10, 0, 0, 0].into(), 8));
    for k in 0..services {
        state.ports.push(made_up_port(k, endpoints, 0));
    }
    state.ports.sort_by(|(a, _), (b, _)| a.name.cmp(&b.name));
    state
}

fn made_up_port(k: u32, endpoints: u32, shift: u32) -> (ServicePort, Vec<Endpoint>) {
    let service = ObjectName { namespace: "default".into(), name: format!("s{k}") };
    let name = ServicePortName::new(&service, Some("http"), Protocol::TCP);
    let vip = IpAddr::V4(Ipv4Addr::from_bits(0xac10_0000 + k));
    let endpoint = |e: u32| {
        let addr = Ipv4Addr::from_bits(0x0a00_0000 + (k * 16 + shift + e) % (1 << 24));
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
    let port = ServicePort::cluster_ip_only(name, vip, 80);
    (port, (0..endpoints).map(endpoint).collect())
}

#[test]
fn what_a_proxy_feeds_the_kernel_on_a_node_with_local_endpoints() {
    let text = proxier("n1", Family::V4).restore(Sync::Full, &[]);
    expect_file!["../data/proxy/shop.n1.restore"].assert_eq(&text);
}

#[test]
fn what_a_proxy_feeds_the_kernel_over_ipv6() {
    let text = proxier("n1", Family::V6).restore(Sync::Full, &[]);
    expect_file!["../data/proxy/shop.n1.restore6"].assert_eq(&text);
}

#[test]
fn what_the_kernel_then_holds() {
    let text = iptables_save(&proxier("n2", Family::V4).to_ruleset().unwrap());
    expect_file!["../data/proxy/shop.n2.save"].assert_eq(&text);
}

#[test]
fn what_iptables_then_lists() {
    let ruleset = proxier("n1", Family::V4).to_ruleset().unwrap();
    expect_file!["../data/proxy/shop.n1.L"].assert_eq(&iptables_list(&ruleset, Table::Nat));
}

/// Settings of the configuration that change rules all Services share.
#[test]
fn settings_change_the_common_rules() {
    let with = |change: fn(&mut State)| {
        let mut state = state("n1", Family::V4);
        state.ports.clear();
        change(&mut state);
        let text = Proxier::new(&state).expect("rules").restore(Sync::Full, &[]);
        let lines = text.lines().filter(|line| !line.starts_with([':', '*', 'C']));
        lines.map(|line| format!("{line}\n")).collect::<String>()
    };
    let plain = with(|_| {});
    let differ = |change: fn(&mut State)| {
        let text = with(change);
        let (old, new): (BTreeSet<_>, BTreeSet<_>) =
            (plain.lines().collect(), text.lines().collect());
        let gone = old.difference(&new).map(|line| format!("-{line}\n"));
        let come = new.difference(&old).map(|line| format!("+{line}\n"));
        gone.chain(come).collect::<String>()
    };
    expect![[r#"
        --A KUBE-FORWARD -m comment --comment "kubernetes forwarding rules" -m mark --mark 0x00004000/0x00004000 -j ACCEPT
        --A KUBE-MARK-MASQ -j MARK --or-mark 0x00004000
        --A KUBE-POSTROUTING -j MARK --xor-mark 0x00004000
        --A KUBE-POSTROUTING -m mark ! --mark 0x00004000/0x00004000 -j RETURN
        +-A KUBE-FORWARD -m comment --comment "kubernetes forwarding rules" -m mark --mark 0x80000000/0x80000000 -j ACCEPT
        +-A KUBE-MARK-MASQ -j MARK --or-mark 0x80000000
        +-A KUBE-POSTROUTING -j MARK --xor-mark 0x80000000
        +-A KUBE-POSTROUTING -m mark ! --mark 0x80000000/0x80000000 -j RETURN
    "#]]
    .assert_eq(&differ(|state| state.config.iptables.masquerade_bit = 31));
    expect![[r#"
        --A KUBE-FORWARD -m conntrack --ctstate INVALID -j DROP
    "#]]
    .assert_eq(&differ(|state| state.config.conntrack.tcp_be_liberal = true));
    expect![[r#"
        --A KUBE-FIREWALL -m comment --comment "block incoming localnet connections" -d 127.0.0.0/8 ! -s 127.0.0.0/8 -m conntrack ! --ctstate RELATED,ESTABLISHED,DNAT -j DROP
        --A KUBE-SERVICES -m comment --comment "kubernetes service nodeports; NOTE: this must be the last rule in this chain" -m addrtype --dst-type LOCAL -j KUBE-NODEPORTS
        +-A KUBE-SERVICES -m comment --comment "kubernetes service nodeports; NOTE: this must be the last rule in this chain" -m addrtype --dst-type LOCAL ! -d 127.0.0.0/8 -j KUBE-NODEPORTS
    "#]]
    .assert_eq(&differ(|state| state.config.localhost_node_ports = false));
    // Loopback addresses are in none of the ranges, so localhost has no NodePorts either.
    expect![[r#"
        --A KUBE-FIREWALL -m comment --comment "block incoming localnet connections" -d 127.0.0.0/8 ! -s 127.0.0.0/8 -m conntrack ! --ctstate RELATED,ESTABLISHED,DNAT -j DROP
        --A KUBE-SERVICES -m comment --comment "kubernetes service nodeports; NOTE: this must be the last rule in this chain" -m addrtype --dst-type LOCAL -j KUBE-NODEPORTS
        +-A KUBE-SERVICES -m comment --comment "kubernetes service nodeports; NOTE: this must be the last rule in this chain" -d 172.31.0.1 -j KUBE-NODEPORTS
    "#]]
    .assert_eq(&differ(|state| {
        let ranges = vec![netfilter_model::Prefix::new([172, 16, 0, 0].into(), 12)];
        state.config.node_port_addresses =
            sim_core::kube::object::NodePortAddresses::Ranges(ranges);
    }));
}

#[test]
fn a_large_cluster_has_no_comments_on_endpoints() {
    let text = |endpoints: u32| {
        let proxier = Proxier::new(&made_up(1, endpoints)).expect("rules");
        let text = proxier.restore(Sync::Full, &[]);
        let about_endpoint = |line: &&str| line.contains("KUBE-SEP-") && line.starts_with("-A");
        text.lines().filter(about_endpoint).filter(|line| line.contains("--comment")).count()
    };
    assert_eq!(text(1000), 3000);
    assert_eq!(text(1001), 0);
}

#[test]
fn rules_by_services_and_endpoints() {
    let count = |services: u32, endpoints: u32| {
        let proxier = Proxier::new(&made_up(services, endpoints)).expect("rules");
        let text = proxier.restore(Sync::Full, &[]);
        let dnat = text.lines().filter(|line| line.contains("-j DNAT")).count();
        (proxier.rule_count(Table::Filter), proxier.rule_count(Table::Nat), dnat)
    };
    let (filter, nat, dnat) = count(0, 0);
    assert_eq!((filter, nat, dnat), (15, 8, 0));
    assert_eq!(count(1000, 10), (filter, nat + 1000 * (2 + 3 * 10), 10_000));
    assert_eq!(count(7, 0), (filter + 7, nat, 0));
    assert_eq!(count(3, 1), (filter, nat + 3 * 5, 3));
}

#[test]
fn counting_rules_is_counting_lines() {
    for node in ["n1", "n2"] {
        for family in [Family::V4, Family::V6] {
            let proxier = proxier(node, family);
            let ruleset = proxier.to_ruleset().unwrap();
            for table in [Table::Filter, Table::Nat] {
                let lines = iptables_list_rules(&ruleset, table);
                let lines = lines.lines().filter(|line| line.starts_with("-A")).count();
                assert_eq!(proxier.rule_count(table), lines);
            }
        }
    }
}

#[test]
fn canaries_are_empty_chains_of_three_tables() {
    let state = state("n1", Family::V4);
    let settings = Settings { canaries: true, ..Settings::of(&state).unwrap() };
    let ruleset = Proxier::with(&state, settings).unwrap().to_ruleset().unwrap();
    let text = iptables_save(&ruleset);
    assert_eq!(text.matches(":KUBE-PROXY-CANARY - [0:0]\n").count(), 3);
    assert!(text.starts_with("*mangle\n"));
}

/// What is left of a Service's rules when it changes, and what a partial sync writes of them.
#[test]
fn a_partial_sync_writes_changed_services_alone() {
    let mut state = made_up(3, 2);
    let mut proxier = Proxier::new(&state).expect("rules");
    let name = ObjectName { namespace: "default".into(), name: "s1".into() };
    let before: Vec<String> = proxier.service_chains().into_iter().map(str::to_owned).collect();
    state.ports[1] = made_up_port(1, 2, 1);
    proxier.set(&name, &state.ports[1..2]).expect("rules");
    let existing: Vec<&str> = before.iter().map(String::as_str).collect();
    let text = proxier.restore(Sync::Partial(&BTreeSet::from([name.clone()])), &existing);
    let nat = &text[text.find("*nat").unwrap()..];
    expect![[r#"
        *nat
        :KUBE-SERVICES - [0:0]
        :KUBE-NODEPORTS - [0:0]
        :KUBE-POSTROUTING - [0:0]
        :KUBE-MARK-MASQ - [0:0]
    "#]]
    .assert_eq(&nat.lines().take(5).map(|line| format!("{line}\n")).collect::<String>());
    let of = |what: &str| nat.lines().filter(|line| line.starts_with(what)).count();
    // KUBE-SERVICES, the Service's chain, its two endpoints' chains, and the one that is stale.
    assert_eq!((of(":KUBE-S"), of("-X KUBE-SEP-"), of("-A KUBE-SVC-")), (5, 1, 3));
    assert_eq!(of("-A KUBE-SERVICES"), 4, "dispatch to all Services, and NodePorts");
    // The same as from scratch, but for the order of fragments' numbers.
    let anew = Proxier::new(&state).expect("rules");
    assert_eq!(anew.restore(Sync::Full, &[]), proxier.restore(Sync::Full, &[]));
    // Without ports, the Service is gone, and all of its chains are stale.
    proxier.set(&name, &[]).expect("rules");
    assert_eq!(proxier.port_count(), 2);
    let text = proxier.restore(Sync::Full, &existing);
    assert_eq!(text.lines().filter(|line| line.starts_with("-X ")).count(), 3);
}

#[test]
fn the_kernel_loads_the_rules_and_prints_them_so() {
    for tool in [Tool::Legacy, Tool::Nft] {
        let lab = match Lab::try_new(tool) {
            Ok(lab) => lab,
            Err(reason) => return skip("a proxy's rules in the kernel", &reason),
        };
        for (node, family) in [("n1", Family::V4), ("n2", Family::V4), ("n1", Family::V6)] {
            let proxier = proxier(node, family);
            let ruleset = proxier.to_ruleset().unwrap();
            let text = iptables_save(&ruleset);
            for table in [Table::Filter, Table::Nat] {
                let head = format!("*{table}\n");
                let start = text.find(&head).unwrap();
                let end = start + text[start..].find("COMMIT\n").unwrap() + "COMMIT\n".len();
                let kept = lab.reload(tool, family, table.name(), &text[start..end]).unwrap();
                assert_eq!(kept, text[start..end], "{tool:?} {node} {family:?}");
                let program =
                    tool.name_of(if family == Family::V4 { "iptables" } else { "ip6tables" });
                let table_name = table.name();
                let listed = lab.node(&program, &["-t", table_name, "-S"], "").unwrap();
                assert_eq!(sorted(&listed), sorted(&iptables_list_rules(&ruleset, table)));
                let listed = lab.node(&program, &["-t", table_name, "-L", "-n"], "").unwrap();
                let ours = iptables_list(&ruleset, table);
                assert_eq!(unnumbered(&listed), unnumbered(&ours), "{tool:?} {node} {family:?}");
            }
        }
    }
}

/// What kube-proxy feeds the kernel makes of a node without rules what `iptables-save` prints,
/// but for the jumps from the built-in chains, which it makes one by one.
#[test]
fn what_is_fed_is_what_is_kept() {
    for tool in [Tool::Legacy, Tool::Nft] {
        let lab = match Lab::try_new(tool) {
            Ok(lab) => lab,
            Err(reason) => return skip("a proxy's input in the kernel", &reason),
        };
        for family in [Family::V4, Family::V6] {
            let proxier = proxier("n1", family);
            let name = tool.name_of(if family == Family::V4 { "iptables" } else { "ip6tables" });
            let restore = format!("{name}-restore");
            let fed = proxier.restore(Sync::Full, &[]);
            lab.node(&restore, &["--noflush", "--counters"], &fed).expect("it loads");
            let expected = iptables_save(&proxier.to_ruleset().unwrap());
            for table in ["nat", "filter"] {
                let kept = lab.node(&format!("{name}-save"), &["-t", table], "").unwrap();
                let start = expected.find(&format!("*{table}\n")).unwrap();
                let end = start + expected[start..].find("COMMIT\n").unwrap();
                let rules = |text: &str| {
                    let lines = text.lines().filter(|line| line.starts_with("-A KUBE-"));
                    lines.map(|line| format!("{line}\n")).collect::<String>()
                };
                assert_eq!(rules(&kept), rules(&expected[start..end]), "{tool:?} {table}");
            }
        }
    }
}

fn sorted(text: &str) -> Vec<&str> {
    let mut lines: Vec<&str> = text.lines().collect();
    lines.sort_unstable();
    lines
}

/// Drops what iptables 1.8.9 alone prints: protocols as numbers.
fn unnumbered(text: &str) -> String {
    let mut out = String::new();
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let line = line.trim_end();
        let (target, rest) = line.split_once(' ').unwrap_or((line, ""));
        let rest = rest.trim_start();
        let (protocol, rest) = rest.split_at(rest.find(' ').unwrap_or(rest.len()));
        let protocol = match protocol {
            "0" => "all",
            "6" => "tcp",
            "17" => "udp",
            "132" => "sctp",
            other => other,
        };
        out.push_str(&format!("{target} {protocol:<5} {}\n", rest.trim_start()));
    }
    out
}

#[test]
fn an_address_that_is_not_in_its_shortest_form_is_named_as_written() {
    let text = proxier("n2", Family::V6).restore(Sync::Full, &[]);
    assert!(text.contains(r#"--comment "shop/cart:web -> [fd20:0:0:2:0::9]:8080" -j KUBE-SEP-"#));
    assert!(text.contains("-s fd20:0:0:2:0::9 -j KUBE-MARK-MASQ"), "{text}");
    assert!(text.contains("--to-destination [fd20:0:0:2:0::9]:8080"));
    let saved = iptables_save(&proxier("n2", Family::V6).to_ruleset().unwrap());
    let short = Ipv6Addr::new(0xfd20, 0, 0, 2, 0, 0, 0, 9);
    assert!(saved.contains(&format!("-s {short}/128")), "{saved}");
}
