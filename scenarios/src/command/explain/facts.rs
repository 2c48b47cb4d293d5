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
