//! What the rules themselves tell of their surroundings: which addresses are virtual, where Pods
//! live, which ports are NodePorts, which devices exist.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use netfilter_model::hook::Table;
use netfilter_model::rule::{AddrType, Chain, ChainId, Match, Nat, Rule, Ruleset, Target};
use netfilter_model::tuple::Protocol;
use netfilter_model::{DeviceName, Prefix};

/// What is to be known from rules.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Facts {
    /// Addresses that only rules know: packets for them are translated or refused.
    pub(super) virtuals: BTreeSet<IpAddr>,
    /// Addresses that rules translate and that are also reached without them: external IPs and
    /// those of load balancers.
    pub(super) external: BTreeSet<IpAddr>,
    /// Ports that are translated at the host's own addresses.
    pub(super) node_ports: BTreeSet<(u8, u16)>,
    /// The Pods of the cluster.
    pub(super) pods: Option<Prefix>,
    /// The Pods of this node.
    pub(super) node_pods: Option<Prefix>,
    /// Devices that are named whole.
    pub(super) devices: Vec<DeviceName>,
}

impl Facts {
    /// Adds what a ruleset tells.
    pub(super) fn add(&mut self, rules: &Ruleset) {
        let translating = translating(rules.chains(Table::Nat));
        for table in Table::ALL {
            for rule in rules.chains(table).iter().flat_map(Chain::rules) {
                self.devices_of(rule);
                self.pods_of(table, rule);
                let claims = match rule.target() {
                    Target::Reject(_) | Target::Drop => table == Table::Filter,
                    Target::Jump(to) | Target::Goto(to) => {
                        table == Table::Nat && translating.contains(to)
                    }
                    Target::Nat(Nat::Dnat(_)) => true,
                    _ => false,
                };
                if claims {
                    self.claim(rule);
                }
            }
        }
        self.virtuals = &self.virtuals - &self.external;
    }

    /// Adds what the text of an nftables ruleset tells, in the way in which kube-proxy writes it:
    /// `10.96.0.10 . tcp . 80 : goto service-…`, `tcp . 30080 : goto external-…`,
    /// `ip saddr != 10.244.0.0/16 … jump mark-for-masquerade`.
    pub(super) fn add_nft(&mut self, text: &str) {
        let breaks = |c: char| c.is_whitespace() || matches!(c, ',' | '{' | '}' | '=' | ':');
        for line in text.lines() {
            let words: Vec<&str> = line.split(breaks).filter(|word| !word.is_empty()).collect();
            for (at, window) in words.windows(3).enumerate() {
                let [protocol, ".", port] = window else {
                    continue;
                };
                let (Some(protocol), Ok(port)) = (protocol_number(protocol), port.parse::<u16>())
                else {
                    continue;
                };
                match at.checked_sub(2).map(|before| (words[before], words[before + 1])) {
                    Some((address, ".")) => self.virtuals.extend(address.parse::<IpAddr>()),
                    _ => {
                        self.node_ports.insert((protocol, port));
                    }
                }
            }
            // The sign `!=` has lost its second half above.
            for window in words.windows(4) {
                if let ["ip" | "ip6", "saddr", "!", pods] = window
                    && let Some(pods) = prefix(pods)
                {
                    self.pods = Some(pods);
                }
            }
            for window in words.windows(2) {
                if let ["iifname" | "oifname", name] = window
                    && let Ok(name) = DeviceName::parse(name.trim_matches('"'))
                    && !name.as_str().ends_with('*')
                    && !self.devices.contains(&name)
                {
                    self.devices.push(name);
                }
            }
        }
    }

    /// Takes note of what a rule is about that translates, rejects or drops.
    fn claim(&mut self, rule: &Rule) {
        let mut host = None;
        let mut other_destination = false;
        let mut port = None;
        let mut protocol = None;
        let mut comment = "";
        let mut local = false;
        for condition in rule.matches() {
            match condition {
                Match::Destination { prefix, invert: false } => match prefix.as_host() {
                    Some(addr) => host = Some(addr),
                    None => other_destination = true,
                },
                Match::Destination { .. } => other_destination = true,
                Match::Protocol { protocol: Protocol(number), invert: false } => {
                    protocol = Some(*number);
                }
                Match::Tcp { dport: Some(dport), .. } | Match::Udp { dport: Some(dport), .. } => {
                    port = dport.exact();
                }
                Match::AddrType { dst: Some(dst), .. } => {
                    local |= dst.types.contains(AddrType::Local) && !dst.invert;
                }
                Match::Comment(text) => comment = text,
                _ => {}
            }
        }
        let drops = matches!(rule.target(), Target::Drop);
        if let (Some(addr), Some(_), false) = (host, port, drops) {
            if comment.contains("external IP") || comment.contains("loadbalancer IP") {
                self.external.insert(addr);
            } else if !addr.is_loopback() {
                self.virtuals.insert(addr);
            }
        }
        if host.is_none()
            && !other_destination
            && (local || !drops)
            && let (Some(protocol), Some(port)) = (protocol, port)
        {
            self.node_ports.insert((protocol, port));
        }
    }

    /// kube-proxy masquerades what does not come from Pods; flannel tells the node's from others.
    fn pods_of(&mut self, table: Table, rule: &Rule) {
        if table != Table::Nat {
            return;
        }
        let mut source = None;
        let mut destination = None;
        for condition in rule.matches() {
            match condition {
                Match::Source { prefix, invert } => source = Some((prefix, *invert)),
                Match::Destination { prefix, invert } => destination = Some((prefix, *invert)),
                _ => {}
            }
        }
        let wide = |prefix: &Prefix| (4..31).contains(&prefix.len());
        match (source, destination, rule.target()) {
            (Some((pods, true)), Some((vip, false)), Target::Jump(_))
                if wide(pods) && vip.as_host().is_some() =>
            {
                self.pods = Some(pods.clone());
            }
            (Some((node, false)), Some((pods, false)), Target::Return)
                if wide(node)
                    && wide(pods)
                    && node.len() > pods.len()
                    && pods.contains(node.address()) =>
            {
                self.node_pods = Some(node.clone());
                self.pods.get_or_insert_with(|| pods.clone());
            }
            _ => {}
        }
    }

    fn devices_of(&mut self, rule: &Rule) {
        for condition in rule.matches() {
            let (Match::InDevice(device) | Match::OutDevice(device)) = condition else {
                continue;
            };
            let pattern = device.pattern.to_string();
            if let Ok(name) = DeviceName::parse(&pattern)
                && !pattern.ends_with('+')
                && !self.devices.contains(&name)
            {
                self.devices.push(name);
            }
        }
    }

    /// Returns whether an address lies where those of Services are, though no rule names it.
    pub(super) fn near_virtual(&self, addr: IpAddr) -> Option<Prefix> {
        let len = if addr.is_ipv4() { 16 } else { 108 };
        let range = Prefix::new(addr, len);
        let crowded = self.virtuals.iter().filter(|known| range.contains(**known)).count() > 0;
        let elsewhere = [&self.pods, &self.node_pods];
        let taken = elsewhere.into_iter().flatten().any(|pods| pods.contains(addr));
        (crowded && !taken).then_some(range)
    }

    /// Returns whether the rules are those of a Kubernetes node.
    pub(super) fn is_cluster(&self) -> bool {
        self.pods.is_some() || self.node_pods.is_some()
    }
}

fn protocol_number(name: &str) -> Option<u8> {
    match name {
        "tcp" => Some(Protocol::TCP.0),
        "udp" => Some(Protocol::UDP.0),
        "sctp" => Some(Protocol::SCTP.0),
        _ => None,
    }
}

fn prefix(text: &str) -> Option<Prefix> {
    let (address, len) = text.split_once('/')?;
    let address: IpAddr = address.parse().ok()?;
    let len: u8 = len.parse().ok()?;
    let max = if address.is_ipv4() { 32 } else { 128 };
    ((4..31).contains(&len) && len <= max).then(|| Prefix::new(address, len))
}

/// Returns the chains of table nat from which a destination may be rewritten.
fn translating(chains: &[Chain]) -> BTreeSet<ChainId> {
    let mut callers: BTreeMap<ChainId, Vec<ChainId>> = BTreeMap::new();
    let mut next = Vec::new();
    for chain in chains.iter().filter(|chain| chain.policy().is_none()) {
        for rule in chain.rules() {
            match rule.target() {
                Target::Nat(Nat::Dnat(_) | Nat::Redirect(_)) => next.push(chain.id()),
                Target::Jump(to) | Target::Goto(to) => {
                    callers.entry(*to).or_default().push(chain.id());
                }
                _ => {}
            }
        }
    }
    let mut found = BTreeSet::new();
    while let Some(chain) = next.pop() {
        if found.insert(chain) {
            next.extend(callers.get(&chain).into_iter().flatten());
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use netfilter_model::read::{Source, iptables_rules};

    use super::*;

    fn addr(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn what_kube_proxy_and_flannel_give_away() {
        let text = "\
*nat
:PREROUTING ACCEPT [0:0]
:FLANNEL-POSTRTG - [0:0]
:KUBE-MARK-MASQ - [0:0]
:KUBE-NODEPORTS - [0:0]
:KUBE-SEP-A - [0:0]
:KUBE-SERVICES - [0:0]
:KUBE-SVC-A - [0:0]
-A PREROUTING -j KUBE-SERVICES
-A FLANNEL-POSTRTG -s 10.244.3.0/24 -d 10.244.0.0/16 -j RETURN
-A KUBE-MARK-MASQ -j MARK --set-xmark 0x4000/0x4000
-A KUBE-NODEPORTS -p tcp -m tcp --dport 30080 -j KUBE-SVC-A
-A KUBE-SEP-A -p tcp -m tcp -j DNAT --to-destination 10.244.3.7:8080
-A KUBE-SERVICES -d 10.96.0.10/32 -p tcp -m tcp --dport 80 -j KUBE-SVC-A
-A KUBE-SERVICES -d 198.51.100.9/32 -p tcp -m comment --comment \"a/b loadbalancer IP\" -m tcp --dport 80 -j KUBE-SVC-A
-A KUBE-SVC-A ! -s 10.244.0.0/16 -d 10.96.0.10/32 -p tcp -m tcp --dport 80 -j KUBE-MARK-MASQ
-A KUBE-SVC-A -j KUBE-SEP-A
COMMIT
*filter
:FORWARD ACCEPT [0:0]
-A FORWARD -i cni0 -j ACCEPT
-A FORWARD -d 10.96.0.11/32 -p tcp -m tcp --dport 80 -j REJECT --reject-with icmp-port-unreachable
COMMIT
";
        let dumps = iptables_rules(text, Source::default()).value;
        let mut facts = Facts::default();
        facts.add(&dumps[0].ruleset);
        assert_eq!(facts.virtuals, [addr("10.96.0.10"), addr("10.96.0.11")].into());
        assert_eq!(facts.external, [addr("198.51.100.9")].into());
        assert_eq!(facts.node_ports, [(6, 30080)].into());
        assert_eq!(facts.pods, Some(Prefix::new(addr("10.244.0.0"), 16)));
        assert_eq!(facts.node_pods, Some(Prefix::new(addr("10.244.3.0"), 24)));
        assert_eq!(facts.devices, [DeviceName::parse("cni0").unwrap()]);
        let range = Prefix::new(addr("10.96.0.0"), 16);
        assert_eq!(facts.near_virtual(addr("10.96.9.9")), Some(range));
        assert_eq!(facts.near_virtual(addr("10.97.9.9")), None);
    }

    #[test]
    fn what_kube_proxys_nftables_give_away() {
        let text = "\
table ip kube-proxy {
  map service-ips {
    type ipv4_addr . inet_proto . inet_service : verdict
    elements = { 10.96.0.10 . tcp . 80 : goto service-A, 10.96.0.11 . udp . 53 : goto service-B }
  }
  map service-nodeports {
    type inet_proto . inet_service : verdict
    elements = { tcp . 30080 : goto external-A }
  }
  chain service-A {
    ip saddr != 10.244.0.0/16 ip daddr 10.96.0.10 jump mark-for-masquerade
  }
}
";
        let mut facts = Facts::default();
        facts.add_nft(text);
        assert_eq!(facts.virtuals, [addr("10.96.0.10"), addr("10.96.0.11")].into());
        assert_eq!(facts.node_ports, [(6, 30080)].into());
        assert_eq!(facts.pods, Some(Prefix::new(addr("10.244.0.0"), 16)));
    }
}
