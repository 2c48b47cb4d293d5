//! Rules of the shape that kube-proxy makes in iptables mode.

use std::net::IpAddr;

use super::super::case::Transport;
use super::super::place::{Family, Place, Settings, own, parse};
use super::Dice;
use super::iptables::Tables;
use super::packets::behind_n2;

/// A Service port.
pub(super) struct Service {
    pub(super) proto: Transport,
    pub(super) address: IpAddr,
    pub(super) port: u16,
    pub(super) node_port: Option<u16>,
    pub(super) endpoints: Vec<(IpAddr, u16)>,
    pub(super) affinity: bool,
    pub(super) masquerade_all: bool,
    /// Traffic from outside goes to endpoints of this node only.
    pub(super) local: bool,
    pub(super) external: Option<IpAddr>,
}

impl Service {
    /// Returns an address and port at which it may be asked for, or nearly.
    pub(super) fn target(&self, dice: &mut Dice, family: Family) -> (Transport, IpAddr, u16) {
        let node = [Place::Ext.device(), super::super::place::CNI0];
        match dice.below(12) {
            0 => (Transport::Icmp, self.address, 0),
            1 => (self.proto, self.address, 4242),
            2..=4 => match self.node_port {
                Some(port) => {
                    let at = own(family, *dice.pick(&node)).expect("it has an address");
                    (self.proto, at, port)
                }
                None => (self.proto, self.address, self.port),
            },
            5 => match self.external {
                Some(external) => (self.proto, external, self.port),
                None => (self.proto, self.address, self.port),
            },
            6 => match self.endpoints.first() {
                Some((addr, port)) => (self.proto, *addr, *port),
                None => (self.proto, self.address, self.port),
            },
            _ => (self.proto, self.address, self.port),
        }
    }
}

/// Returns some Services; `plain` ones choose endpoints at random and nothing else.
pub(super) fn services(dice: &mut Dice, family: Family, plain: bool) -> Vec<Service> {
    let count = if plain { 1 } else { 1 + dice.below(4) };
    let mut services: Vec<Service> = Vec::new();
    for i in 0..count {
        let proto = *dice.pick(&[Transport::Tcp, Transport::Tcp, Transport::Udp]);
        let number = 10 + i;
        let address = parse(family, &format!("10.96.0.{number}"), &format!("fd00:96::{number}"));
        let wanted = if plain { 2 + dice.below(7) } else { dice.below(5) };
        let port = *dice.pick(&[8080, 80, 9000]);
        let mut endpoints: Vec<(IpAddr, u16)> = Vec::new();
        for _ in 0..wanted {
            let address = match dice.below(4) {
                0 | 1 => dice.pick(&[Place::A1, Place::A2, Place::A3, Place::R1]).address(family),
                _ => behind_n2(dice, family),
            };
            if !endpoints.contains(&(address, port)) {
                endpoints.push((address, port));
            }
        }
        services.push(Service {
            proto,
            address,
            port: if proto == Transport::Udp { 53 } else { 80 },
            node_port: dice.percent(50).then_some(30_080 + i as u16),
            endpoints,
            affinity: !plain && dice.percent(20),
            masquerade_all: dice.percent(15),
            local: !plain && dice.percent(25),
            external: dice.percent(30).then(|| parse(family, "203.0.113.80", "fd00:203::80")),
        });
    }
    services
}

const MASQ: &str = "0x4000/0x4000";

/// Appends the rules of all Services.
pub(super) fn rules(
    dice: &mut Dice,
    settings: Settings,
    services: &[Service],
    tables: &mut Tables,
) {
    let family = settings.family;
    let cluster = if family == Family::V4 { "10.244.0.0/16" } else { "fd00:244::/32" };
    let any_random = dice.percent(60);
    for chain in ["KUBE-SERVICES", "KUBE-NODEPORTS", "KUBE-MARK-MASQ", "KUBE-POSTROUTING"] {
        tables.chain("nat", chain);
    }
    for chain in ["KUBE-SERVICES", "KUBE-EXTERNAL-SERVICES", "KUBE-FORWARD", "KUBE-NODEPORTS"] {
        tables.chain("filter", chain);
    }
    let mut nat = |line: String| tables.rule("nat", &line);
    for hook in ["PREROUTING", "OUTPUT"] {
        nat(format!(
            "-A {hook} -m comment --comment \"kubernetes service portals\" -j KUBE-SERVICES"
        ));
    }
    nat("-A POSTROUTING -m comment --comment \"kubernetes postrouting rules\" \
         -j KUBE-POSTROUTING"
        .to_owned());
    nat(format!("-A KUBE-POSTROUTING -m mark ! --mark {MASQ} -j RETURN"));
    nat("-A KUBE-POSTROUTING -j MARK --set-xmark 0x4000/0x0".to_owned());
    let random = if any_random { " --random-fully" } else { "" };
    nat(format!("-A KUBE-POSTROUTING -j MASQUERADE{random}"));
    nat(format!("-A KUBE-MARK-MASQ -j MARK --set-xmark {MASQ}"));
    let mut filter = |line: String| tables.rule("filter", &line);
    filter("-A INPUT -m conntrack --ctstate NEW -j KUBE-EXTERNAL-SERVICES".to_owned());
    filter("-A FORWARD -j KUBE-FORWARD".to_owned());
    for hook in ["FORWARD", "OUTPUT"] {
        filter(format!("-A {hook} -m conntrack --ctstate NEW -j KUBE-SERVICES"));
    }
    filter("-A FORWARD -m conntrack --ctstate NEW -j KUBE-EXTERNAL-SERVICES".to_owned());
    filter("-A KUBE-FORWARD -m conntrack --ctstate INVALID -j DROP".to_owned());
    filter(format!("-A KUBE-FORWARD -m mark --mark {MASQ} -j ACCEPT"));
    filter("-A KUBE-FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT".to_owned());
    for (i, service) in services.iter().enumerate() {
        service_rules(settings, (i, service), cluster, tables);
    }
    tables.rule("nat", "-A KUBE-SERVICES -m addrtype --dst-type LOCAL -j KUBE-NODEPORTS");
    if dice.percent(20) {
        tables.policy("filter", "FORWARD", "DROP");
    }
}

fn service_rules(
    settings: Settings,
    (i, service): (usize, &Service),
    cluster: &str,
    tables: &mut Tables,
) {
    let family = settings.family;
    let proto = if service.proto == Transport::Udp { "udp" } else { "tcp" };
    let to = |addr: IpAddr, port: u16| format!("-d {addr} -p {proto} -m {proto} --dport {port}");
    let at_node = |port: u16| format!("-p {proto} -m {proto} --dport {port}");
    let reject =
        if family == Family::V4 { "icmp-port-unreachable" } else { "icmp6-port-unreachable" };
    let (vip, port) = (service.address, service.port);
    if service.endpoints.is_empty() {
        let refuse = format!("-j REJECT --reject-with {reject}");
        tables.rule("filter", &format!("-A KUBE-SERVICES {} {refuse}", to(vip, port)));
        if let Some(node_port) = service.node_port {
            let local = "-m addrtype --dst-type LOCAL";
            let at = at_node(node_port);
            tables.rule("filter", &format!("-A KUBE-EXTERNAL-SERVICES {at} {local} {refuse}"));
        }
        if let Some(external) = service.external {
            let to = to(external, port);
            tables.rule("filter", &format!("-A KUBE-EXTERNAL-SERVICES {to} {refuse}"));
        }
        return;
    }
    let (svc, ext, svl) =
        (format!("KUBE-SVC-{i}"), format!("KUBE-EXT-{i}"), format!("KUBE-SVL-{i}"));
    tables.chain("nat", &svc);
    let mut nat = |line: String| tables.rule("nat", &line);
    nat(format!("-A KUBE-SERVICES {} -j {svc}", to(vip, port)));
    let masquerade = if service.masquerade_all {
        format!("-A {svc} {} -j KUBE-MARK-MASQ", to(vip, port))
    } else {
        format!("-A {svc} ! -s {cluster} {} -j KUBE-MARK-MASQ", to(vip, port))
    };
    nat(masquerade);
    if service.node_port.is_some() || service.external.is_some() {
        tables.chain("nat", &ext);
        let mut nat = |line: String| tables.rule("nat", &line);
        if let Some(external) = service.external {
            nat(format!("-A KUBE-SERVICES {} -j {ext}", to(external, port)));
        }
        if let Some(node_port) = service.node_port {
            nat(format!("-A KUBE-NODEPORTS {} -j {ext}", at_node(node_port)));
        }
        if service.local {
            nat(format!("-A {ext} -s {cluster} -j {svc}"));
            nat(format!("-A {ext} -m addrtype --src-type LOCAL -j KUBE-MARK-MASQ"));
            nat(format!("-A {ext} -m addrtype --src-type LOCAL -j {svc}"));
            nat(format!("-A {ext} -j {svl}"));
        } else {
            nat(format!("-A {ext} -j KUBE-MARK-MASQ"));
            nat(format!("-A {ext} -j {svc}"));
        }
        if service.local {
            tables.chain("nat", &svl);
            let here: Vec<_> = service
                .endpoints
                .iter()
                .enumerate()
                .filter(|(_, (addr, _))| {
                    Place::AROUND.into_iter().any(|place| place.address(family) == *addr)
                })
                .map(|(at, _)| at)
                .collect();
            choose(i, &svl, &here, service, tables);
        }
    }
    let all: Vec<usize> = (0..service.endpoints.len()).collect();
    choose(i, &svc, &all, service, tables);
    for (at, (addr, port)) in service.endpoints.iter().enumerate() {
        let sep = format!("KUBE-SEP-{i}-{at}");
        tables.chain("nat", &sep);
        let mut nat = |line: String| tables.rule("nat", &line);
        nat(format!("-A {sep} -s {addr} -j KUBE-MARK-MASQ"));
        let to = if addr.is_ipv4() { format!("{addr}:{port}") } else { format!("[{addr}]:{port}") };
        let set = if service.affinity {
            format!(" -m recent --set --name {} --rsource", list_name(i, at))
        } else {
            String::new()
        };
        tables.rule(
            "nat",
            &format!("-A {sep} -p {proto}{set} -m {proto} -j DNAT --to-destination {to}"),
        );
    }
}

fn list_name(service: usize, endpoint: usize) -> String {
    format!("KUBE-SEP-{service}-{endpoint}")
}

/// Appends the choice among endpoints.
fn choose(i: usize, chain: &str, among: &[usize], service: &Service, tables: &mut Tables) {
    if service.affinity {
        for at in among {
            let list = list_name(i, *at);
            tables.rule(
                "nat",
                &format!(
                    "-A {chain} -m recent --rcheck --seconds 10800 --reap --name {list} --rsource \
                     -j KUBE-SEP-{i}-{at}"
                ),
            );
        }
    }
    for (k, at) in among.iter().enumerate() {
        let left = among.len() - k;
        let random = if left > 1 {
            format!(" -m statistic --mode random --probability {:.10}", 1.0 / left as f64)
        } else {
            String::new()
        };
        tables.rule("nat", &format!("-A {chain}{random} -j KUBE-SEP-{i}-{at}"));
    }
}
