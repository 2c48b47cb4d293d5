//! Rules of the shape that kube-proxy makes in nftables mode.

use std::net::IpAddr;

use super::super::super::case::Transport;
use super::super::super::place::{CNI0, ETH0, Family, Place, Settings, own};
use super::super::kube::Service;
use super::{Dice, Script};

/// Where the rules go.
struct Table<'s> {
    script: &'s mut Script,
    name: &'static str,
}

impl Table<'_> {
    fn chain(&mut self, name: &str) {
        self.script.chain(self.name, name);
    }

    fn rule(&mut self, chain: &str, text: &str) {
        self.script.rule(self.name, chain, text);
    }

    fn element(&mut self, set: &str, text: &str) {
        self.script.element(self.name, set, text);
    }
}

/// Appends the rules of all Services.
// Kubernetes: pkg/proxy/nftables/proxier.go, setupNFTables and syncProxyRules
pub(in super::super) fn rules(
    dice: &mut Dice,
    settings: Settings,
    services: &[Service],
    script: &mut Script,
) {
    let v4 = settings.family == Family::V4;
    let (ip, addr) = if v4 { ("ip", "ipv4_addr") } else { ("ip6", "ipv6_addr") };
    let name = if v4 { "ip kube-proxy" } else { "ip6 kube-proxy" };
    script.table(name);
    for (chain, header) in [
        ("filter-prerouting", "filter hook prerouting priority dstnat - 10"),
        ("filter-input", "filter hook input priority -110"),
        ("filter-forward", "filter hook forward priority -110"),
        ("filter-output", "filter hook output priority -110"),
        ("filter-output-post-dnat", "filter hook output priority -90"),
        ("nat-prerouting", "nat hook prerouting priority dstnat"),
        ("nat-output", "nat hook output priority -100"),
        ("nat-postrouting", "nat hook postrouting priority srcnat"),
    ] {
        script.base_chain(name, chain, header, "accept");
    }
    let service = format!("type {addr} . inet_proto . inet_service : verdict;");
    script.set(name, "cluster-ips", &format!("type {addr};"));
    script.set(name, "nodeport-ips", &format!("type {addr};"));
    script.map(name, "no-endpoint-services", &service);
    script.map(name, "no-endpoint-nodeports", "type inet_proto . inet_service : verdict;");
    script.map(name, "firewall-ips", &service);
    script.map(name, "service-ips", &service);
    script.map(name, "service-nodeports", "type inet_proto . inet_service : verdict;");
    let mut table = Table { script, name };
    for chain in [
        "nodeport-endpoints-check",
        "service-endpoints-check",
        "firewall-check",
        "cluster-ips-check",
        "services",
        "mark-for-masquerade",
        "masquerading",
        "reject-chain",
    ] {
        table.chain(chain);
    }
    let key = format!("{ip} daddr . meta l4proto . th dport");
    let by_node_port = format!("{ip} daddr @nodeport-ips meta l4proto . th dport");
    let range = if v4 { "10.96.0.0/24" } else { "fd00:96::/64" };
    let random = if dice.percent(60) { " fully-random" } else { "" };
    let masquerade = format!("masquerade{random}");
    let first_packet = |to: &str| format!("ct state new jump {to}");
    for (chain, text) in [
        ("filter-prerouting", first_packet("firewall-check")),
        ("filter-input", first_packet("nodeport-endpoints-check")),
        ("filter-input", first_packet("service-endpoints-check")),
        ("filter-forward", first_packet("service-endpoints-check")),
        ("filter-forward", first_packet("cluster-ips-check")),
        ("filter-output", first_packet("service-endpoints-check")),
        ("filter-output", first_packet("firewall-check")),
        ("filter-output-post-dnat", first_packet("cluster-ips-check")),
        ("nat-prerouting", "jump services".to_owned()),
        ("nat-output", "jump services".to_owned()),
        ("nat-postrouting", "jump masquerading".to_owned()),
        ("nodeport-endpoints-check", format!("{by_node_port} vmap @no-endpoint-nodeports")),
        ("service-endpoints-check", format!("{key} vmap @no-endpoint-services")),
        ("firewall-check", format!("{key} vmap @firewall-ips")),
        ("cluster-ips-check", format!("{ip} daddr @cluster-ips reject comment \"wrong port\"")),
        ("cluster-ips-check", format!("{ip} daddr {{ {range} }} drop comment \"no Service\"")),
        ("services", format!("{key} vmap @service-ips")),
        ("services", format!("{by_node_port} vmap @service-nodeports")),
        ("mark-for-masquerade", "meta mark set meta mark or 0x4000".to_owned()),
        ("masquerading", "meta mark & 0x4000 == 0 return".to_owned()),
        ("masquerading", "meta mark set meta mark xor 0x4000".to_owned()),
        ("masquerading", masquerade),
        ("reject-chain", "reject".to_owned()),
    ] {
        table.rule(chain, &text);
    }
    let nodes = if dice.percent(50) { vec![ETH0] } else { vec![ETH0, CNI0] };
    for dev in nodes {
        let at = own(settings.family, dev).expect("it has an address");
        table.element("nodeport-ips", &at.to_string());
    }
    for (i, service) in services.iter().enumerate() {
        service_rules(dice, settings, (i, service), &mut table);
    }
}

fn service_rules(
    dice: &mut Dice,
    settings: Settings,
    (i, service): (usize, &Service),
    table: &mut Table<'_>,
) {
    let family = settings.family;
    let (ip, addr, cluster) = if family == Family::V4 {
        ("ip", "ipv4_addr", "10.244.0.0/16")
    } else {
        ("ip6", "ipv6_addr", "fd00:244::/32")
    };
    let proto = if service.proto == Transport::Udp { "udp" } else { "tcp" };
    let (vip, port) = (service.address, service.port);
    table.element("cluster-ips", &vip.to_string());
    // Two Services may not have one external address and port.
    let external = service.external.filter(|_| i == 0);
    if service.endpoints.is_empty() {
        let reject = "goto reject-chain";
        table.element("no-endpoint-services", &format!("{vip} . {proto} . {port} : {reject}"));
        if let Some(external) = external {
            let key = format!("{external} . {proto} . {port}");
            table.element("no-endpoint-services", &format!("{key} : {reject}"));
        }
        if let Some(port) = service.node_port {
            let verdict = if service.local { "drop" } else { reject };
            table.element("no-endpoint-nodeports", &format!("{proto} . {port} : {verdict}"));
        }
        return;
    }
    let (svc, ext) = (format!("service-{i}"), format!("external-{i}"));
    table.chain(&svc);
    table.element("service-ips", &format!("{vip} . {proto} . {port} : goto {svc}"));
    let from_outside =
        if service.masquerade_all { String::new() } else { format!(" {ip} saddr != {cluster}") };
    let to_service = format!("{ip} daddr {vip} {proto} dport {port}");
    table.rule(&svc, &format!("{to_service}{from_outside} jump mark-for-masquerade"));
    if service.affinity {
        for at in 0..service.endpoints.len() {
            let text = format!("type {addr}; flags dynamic,timeout; timeout 3h;");
            table.script.set(table.name, &affinity(i, at), &text);
        }
    }
    let all: Vec<usize> = (0..service.endpoints.len()).collect();
    if let Some(external) = external {
        let key = format!("{external} . {proto} . {port}");
        table.element("service-ips", &format!("{key} : goto {ext}"));
        if dice.percent(25) {
            let firewall = format!("firewall-{i}");
            table.chain(&firewall);
            table.element("firewall-ips", &format!("{key} : goto {firewall}"));
            let allowed = Place::Far.address(family);
            table.rule(&firewall, &format!("{ip} saddr != {{ {allowed} }} drop"));
        }
    }
    if let Some(port) = service.node_port {
        table.element("service-nodeports", &format!("{proto} . {port} : goto {ext}"));
    }
    if external.is_some() || service.node_port.is_some() {
        table.chain(&ext);
        if service.local {
            table.rule(&ext, &format!("{ip} saddr {cluster} goto {svc}"));
            table.rule(&ext, "fib saddr type local jump mark-for-masquerade");
            table.rule(&ext, &format!("fib saddr type local goto {svc}"));
            let is_here = |at: &usize| {
                let address = service.endpoints[*at].0;
                Place::AROUND.into_iter().any(|place| place.address(family) == address)
            };
            let here: Vec<usize> = all.iter().copied().filter(is_here).collect();
            choose(i, &ext, &here, service, ip, table);
            if here.is_empty() {
                table.rule(&ext, "drop");
            }
        } else {
            table.rule(&ext, "jump mark-for-masquerade");
            table.rule(&ext, &format!("goto {svc}"));
        }
    }
    choose(i, &svc, &all, service, ip, table);
    for (at, (address, port)) in service.endpoints.iter().enumerate() {
        let chain = endpoint(i, at);
        table.chain(&chain);
        table.rule(&chain, &format!("{ip} saddr {address} jump mark-for-masquerade"));
        if service.affinity {
            table.rule(&chain, &format!("update @{} {{ {ip} saddr }}", affinity(i, at)));
        }
        let to = match address {
            IpAddr::V4(address) => format!("{address}:{port}"),
            IpAddr::V6(address) => format!("[{address}]:{port}"),
        };
        table.rule(&chain, &format!("meta l4proto {proto} dnat to {to}"));
    }
}

fn endpoint(service: usize, endpoint: usize) -> String {
    format!("endpoint-{service}-{endpoint}")
}

fn affinity(service: usize, endpoint: usize) -> String {
    format!("affinity-{service}-{endpoint}")
}

/// Appends the choice among endpoints.
fn choose(
    i: usize,
    chain: &str,
    among: &[usize],
    service: &Service,
    ip: &str,
    table: &mut Table<'_>,
) {
    if service.affinity {
        for at in among {
            let (set, to) = (affinity(i, *at), endpoint(i, *at));
            table.rule(chain, &format!("{ip} saddr @{set} goto {to}"));
        }
    }
    if among.is_empty() {
        return;
    }
    let ways: Vec<String> = among
        .iter()
        .enumerate()
        .map(|(k, at)| format!("{k} : goto {}", endpoint(i, *at)))
        .collect();
    let count = among.len();
    table.rule(chain, &format!("numgen random mod {count} vmap {{ {} }}", ways.join(" , ")));
}
