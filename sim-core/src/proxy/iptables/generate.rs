//! The rules of one service port.
//!
//! Kubernetes: pkg/proxy/iptables/proxier.go, syncProxyRules, writeServiceToEndpointRules.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use netfilter_model::Prefix;
use netfilter_model::hook::Table;
use netfilter_model::rule::{
    AddrType, ChainId, Fragment, FragmentBuilder, FragmentId, Match, Nat, NatRange, Origin,
    Probability, RecentAction, RecentMatch, RejectWith, Rule, SlotId, Target, ValidationError,
};
use netfilter_model::tuple::{Family, Protocol};

use super::common::{Common, MARK_MASQ};
use crate::proxy::endpoint::{Categorized, Endpoint};
use crate::proxy::names;
use crate::proxy::service::ServicePort;

/// What the rules of a service port say, hashed once.
#[derive(Clone, Debug)]
pub struct PortText {
    /// The hash in the names of its chains.
    pub hash: String,
    /// Its name, `namespace/name:port`.
    pub name: Arc<str>,
    /// The chain for all endpoints, KUBE-SVC-….
    pub cluster: Arc<str>,
    /// The chain for local endpoints, KUBE-SVL-….
    pub local: Arc<str>,
}

/// What the rules of an endpoint say, hashed and formatted once.
#[derive(Clone, Debug)]
pub struct EndpointText {
    /// Its chain, KUBE-SEP-….
    pub chain: Arc<str>,
    /// The comment of the rule that picks it.
    pub pick: Arc<str>,
}

/// An endpoint that packets reach through the port's chains.
#[derive(Clone, Copy, Debug)]
pub struct Backend<'a> {
    /// Its address.
    pub addr: IpAddr,
    /// Its port.
    pub port: u16,
    /// What rules for it name as their origin's item.
    pub item: u32,
    /// It is chosen under the policy `Cluster`.
    pub cluster: bool,
    /// It is chosen under the policy `Local`.
    pub local: bool,
    /// Its texts.
    pub text: &'a EndpointText,
}

/// The endpoints of a service port, for its rules.
#[derive(Clone, Copy, Debug)]
pub struct Backends<'a> {
    /// Those that can be reached, in order.
    pub list: &'a [Backend<'a>],
    /// Whether some endpoint of the port could be used on some node.
    pub any: bool,
    /// Whether rules of single endpoints carry comments.
    pub comments: bool,
}

/// Probabilities 1/n, by n.
#[derive(Clone, Debug)]
pub struct Shares(Vec<Probability>);

impl PortText {
    /// Returns the texts of a service port.
    pub fn new(name: Arc<str>, protocol: Protocol) -> PortText {
        let hash = names::port_hash(&name, protocol);
        let cluster = format!("KUBE-SVC-{hash}").into();
        let local = format!("KUBE-SVL-{hash}").into();
        PortText { cluster, local, hash, name }
    }
}

impl EndpointText {
    /// Returns the texts of an endpoint, given as `address:port`.
    pub fn new(port: &PortText, protocol: Protocol, endpoint: &str) -> EndpointText {
        EndpointText {
            chain: names::endpoint_chain(&port.name, protocol, endpoint).into(),
            pick: format!("{} -> {endpoint}", port.name).into(),
        }
    }
}

impl Default for Shares {
    fn default() -> Shares {
        Shares(vec![Probability::ALWAYS])
    }
}

impl Shares {
    /// Makes sure that the shares of up to `count` are known.
    pub fn extend_to(&mut self, count: usize) {
        while self.0.len() <= count {
            self.0.push(Probability::one_of(self.0.len() as u32));
        }
    }
}

/// Returns the reachable endpoints with what they are chosen for; `texts` are theirs.
pub fn backends<'a>(chosen: &Categorized<'_>, texts: &'a [EndpointText]) -> Vec<Backend<'a>> {
    let mut cluster = chosen.cluster.iter().peekable();
    let mut local = chosen.local.iter().peekable();
    let of = |(endpoint, text): (&&Endpoint, &'a EndpointText)| {
        let is = |next: &&&Endpoint| std::ptr::eq::<Endpoint>(**next, *endpoint);
        Backend {
            addr: endpoint.addr,
            port: endpoint.port,
            item: endpoint.item,
            cluster: cluster.next_if(is).is_some(),
            local: local.next_if(is).is_some(),
            text,
        }
    };
    chosen.reachable.iter().zip(texts).map(of).collect()
}

impl Common {
    /// Returns what a service port adds to the rules of a node.
    ///
    /// # Errors
    ///
    /// If the rules would be refused by the kernel; that is a bug.
    pub fn fragment(
        &self,
        id: FragmentId,
        port: &ServicePort,
        text: &PortText,
        backends: Backends<'_>,
        shares: &Shares,
    ) -> Result<Fragment, ValidationError> {
        let rules = self.base.fragment(id);
        PortRules { common: self, port, text, backends, shares, owner: id.0 - 1, rules }.build()
    }
}

struct PortRules<'a> {
    common: &'a Common,
    port: &'a ServicePort,
    text: &'a PortText,
    backends: Backends<'a>,
    shares: &'a Shares,
    owner: u32,
    rules: FragmentBuilder<'a>,
}

/// The chains of a service port, in the order in which kube-proxy declares them.
#[derive(Clone, Copy, Debug)]
struct PortChains {
    /// KUBE-EXT-…, for whatever comes to an address of the outside.
    external: Option<ChainId>,
    /// KUBE-FW-…, for what comes to the load balancer's addresses.
    firewall: Option<ChainId>,
    /// KUBE-SVC-…
    cluster: Option<ChainId>,
    /// KUBE-SVL-…
    local: Option<ChainId>,
}

impl PortChains {
    fn of_policy(&self, local: bool) -> Option<ChainId> {
        if local { self.local } else { self.cluster }
    }
}

impl PortRules<'_> {
    fn build(mut self) -> Result<Fragment, ValidationError> {
        let chains = self.declare();
        self.dispatch_internal(&chains);
        self.dispatch_external(&chains);
        self.masquerade(&chains);
        self.external(&chains);
        self.firewall(&chains);
        let list = self.backends.list;
        let endpoints: Vec<ChainId> =
            list.iter().map(|backend| self.chain(&backend.text.chain)).collect();
        let both = || list.iter().zip(&endpoints).map(|(backend, chain)| (backend, *chain));
        if let Some(chain) = chains.cluster {
            self.balance(chain, both().filter(|(backend, _)| backend.cluster));
        }
        if let Some(chain) = chains.local {
            self.balance(chain, both().filter(|(backend, _)| backend.local));
        }
        for (backend, chain) in both() {
            self.endpoint(chain, backend);
        }
        self.rules.build()
    }

    fn rule(&self) -> Rule {
        Rule::new(Origin { owner: self.owner, item: 0 })
    }

    fn chain(&mut self, name: &Arc<str>) -> ChainId {
        self.rules.chain(Table::Nat, name.clone())
    }

    fn append(&mut self, chain: ChainId, rule: Rule) {
        self.rules.append(Table::Nat, chain, rule);
    }

    fn declare(&mut self) -> PortChains {
        let (port, text) = (self.port, self.text);
        let named = |prefix: &str| Arc::from(format!("{prefix}{}", text.hash));
        let list = self.backends.list;
        let is_external = self.backends.any && port.is_externally_accessible();
        let is_restricted = self.backends.any
            && !port.load_balancer_vips.is_empty()
            && !port.load_balancer_source_ranges.is_empty();
        PortChains {
            external: is_external.then(|| self.chain(&named("KUBE-EXT-"))),
            firewall: is_restricted.then(|| self.chain(&named("KUBE-FW-"))),
            cluster: (list.iter().any(|backend| backend.cluster))
                .then(|| self.chain(&text.cluster)),
            local: (list.iter().any(|backend| backend.local)).then(|| self.chain(&text.local)),
        }
    }

    /// Adds the conditions that a packet is for the port at an address.
    fn to(&self, rule: Rule, address: IpAddr, comment: &str) -> Rule {
        let comment = format!("{} {comment}", self.text.name);
        let rule = rule.destination(Prefix::host(address)).comment(comment);
        rule.dport(self.port.name.protocol, self.port.port)
    }

    /// Returns why a packet that reaches no endpoint is turned away, and how.
    fn refusal(&self) -> (&'static str, Target) {
        if self.backends.any {
            ("has no local endpoints", Target::Drop)
        } else {
            ("has no endpoints", Target::Reject(RejectWith::DEFAULT))
        }
    }

    fn dispatch_internal(&mut self, chains: &PortChains) {
        let address = self.port.cluster_ip;
        match chains.of_policy(self.port.internal_local) {
            Some(chain) => {
                let rule = self.to(self.rule(), address, "cluster IP");
                let rule = rule.then(Target::Jump(chain));
                self.rules.contribute(self.common.slots.services, rule);
            }
            None => self.refuse(self.common.slots.refusals, address),
        }
    }

    fn refuse(&mut self, slot: SlotId, address: IpAddr) {
        let (comment, target) = self.refusal();
        let rule = self.to(self.rule(), address, comment).then(target);
        self.rules.contribute(slot, rule);
    }

    fn dispatch_external(&mut self, chains: &PortChains) {
        let (port, slots) = (self.port, self.common.slots);
        let refused = chains.of_policy(port.external_local).is_none();
        let mut capture = |address: IpAddr, comment: &str, chain: Option<ChainId>| {
            if let Some(chain) = chain {
                let rule = self.to(self.rule(), address, comment).then(Target::Jump(chain));
                self.rules.contribute(slots.services, rule);
            }
            if refused {
                self.refuse(slots.external_refusals, address);
            }
        };
        for &address in &port.external_ips {
            capture(address, "external IP", chains.external);
        }
        for &address in &port.load_balancer_vips {
            capture(address, "loadbalancer IP", chains.firewall.or(chains.external));
        }
        if chains.firewall.is_some() {
            for &address in &port.load_balancer_vips {
                let comment = format!("traffic not accepted by KUBE-FW-{}", self.text.hash);
                let rule = self.to(self.rule(), address, &comment).then(Target::Drop);
                self.rules.contribute(slots.firewall, rule);
            }
        }
        let protocol = port.name.protocol;
        if let Some(node_port) = port.node_port {
            if let Some(chain) = chains.external {
                let rule = self.rule().comment(self.text.name.clone()).dport(protocol, node_port);
                self.rules.contribute(slots.node_ports, rule.then(Target::Jump(chain)));
            }
            if refused {
                let (comment, target) = self.refusal();
                let rule = self.rule().comment(format!("{} {comment}", self.text.name));
                let rule = rule.dst_type(AddrType::Local).dport(protocol, node_port);
                self.rules.contribute(slots.external_refusals, rule.then(target));
            }
        }
        if let Some(health) = port.health_check_node_port {
            let comment = format!("{} health check node port", self.text.name);
            let rule = self.rule().comment(comment).dport(Protocol::TCP, health);
            self.rules.contribute(slots.health_checks, rule.then(Target::Accept));
        }
    }

    /// Marks what comes to the ClusterIP from elsewhere than the cluster's own Pods.
    fn masquerade(&mut self, chains: &PortChains) {
        let Some(chain) = chains.of_policy(self.port.internal_local) else {
            return;
        };
        let settings = &self.common.settings;
        let to_cluster_ip = self.to(self.rule(), self.port.cluster_ip, "cluster IP");
        let rule = match &settings.detector {
            _ if settings.masquerade_all => to_cluster_ip,
            Some(detector) => detector.ask(to_cluster_ip, false),
            None => return,
        };
        self.append(chain, rule.then(Target::Jump(MARK_MASQ)));
    }

    fn external(&mut self, chains: &PortChains) {
        let Some(chain) = chains.external else {
            return;
        };
        let name = self.text.name.clone();
        let about = |rule: Rule, what: &str| {
            rule.comment(format!("{what} traffic for {name} external destinations"))
        };
        if !self.port.external_local {
            let rule = about(self.rule(), "masquerade").then(Target::Jump(MARK_MASQ));
            self.append(chain, rule);
        } else if let Some(cluster) = chains.cluster {
            // The cluster's own traffic takes a short cut: it is not bound by the policy.
            if let Some(detector) = &self.common.settings.detector {
                let rule = detector.ask(about(self.rule(), "pod"), true);
                self.append(chain, rule.then(Target::Jump(cluster)));
            }
            for (what, target) in [("masquerade LOCAL", MARK_MASQ), ("route LOCAL", cluster)] {
                let rule = about(self.rule(), what).src_type(AddrType::Local);
                self.append(chain, rule.then(Target::Jump(target)));
            }
        }
        if let Some(policy) = chains.of_policy(self.port.external_local) {
            self.append(chain, self.rule().then(Target::Jump(policy)));
        }
    }

    fn firewall(&mut self, chains: &PortChains) {
        let (Some(chain), Some(external)) = (chains.firewall, chains.external) else {
            return;
        };
        let comment: Arc<str> = format!("{} loadbalancer IP", self.text.name).into();
        let ranges = &self.port.load_balancer_source_ranges;
        let mut accepted: Vec<Prefix> = ranges.clone();
        // A node that may send is taken for the load balancer, too, whose address it may hold.
        if ranges.iter().any(|range| range.contains(self.common.settings.host_ip)) {
            accepted.extend(self.port.load_balancer_vips.iter().copied().map(Prefix::host));
        }
        for source in accepted {
            let rule = self.rule().comment(comment.clone()).source(source);
            self.append(chain, rule.then(Target::Jump(external)));
        }
        let rest =
            format!("other traffic to {} will be dropped by KUBE-PROXY-FIREWALL", self.text.name);
        self.append(chain, self.rule().comment(rest));
    }

    /// Adds the rules that choose an endpoint: the one that the client had last, or any.
    fn balance<'b>(
        &mut self,
        chain: ChainId,
        endpoints: impl Iterator<Item = (&'b Backend<'b>, ChainId)> + Clone,
    ) {
        let rule = |backend: &Backend<'_>, comments: bool| {
            let rule = Rule::new(Origin { owner: self.owner, item: backend.item });
            if comments { rule.comment(backend.text.pick.clone()) } else { rule }
        };
        let comments = self.backends.comments;
        if let Some(seconds) = self.port.affinity {
            for (backend, target) in endpoints.clone() {
                let known = RecentMatch {
                    seconds: Some(seconds),
                    reap: true,
                    ..self.recent(RecentAction::Check, &backend.text.chain)
                };
                let rule = rule(backend, comments).with(Match::Recent(Box::new(known)));
                self.rules.append(Table::Nat, chain, rule.then(Target::Jump(target)));
            }
        }
        let mut left = endpoints.clone().count();
        for (backend, target) in endpoints {
            let rule = rule(backend, comments);
            let rule = if left > 1 { rule.random(self.shares.0[left]) } else { rule };
            self.rules.append(Table::Nat, chain, rule.then(Target::Jump(target)));
            left -= 1;
        }
    }

    /// Adds the rules that rewrite to an endpoint.
    fn endpoint(&mut self, chain: ChainId, backend: &Backend<'_>) {
        let rule = || {
            let rule = Rule::new(Origin { owner: self.owner, item: backend.item });
            if self.backends.comments { rule.comment(self.text.name.clone()) } else { rule }
        };
        let hairpin = rule().source(Prefix::host(backend.addr)).then(Target::Jump(MARK_MASQ));
        let mut dnat = rule();
        if self.port.affinity.is_some() {
            let note = self.recent(RecentAction::Set, &backend.text.chain);
            dnat = dnat.with(Match::Recent(Box::new(note)));
        }
        let to = NatRange::to(backend.addr, backend.port);
        let dnat = dnat.transport(self.port.name.protocol).then(Target::Nat(Nat::Dnat(to)));
        self.append(chain, hairpin);
        self.append(chain, dnat);
    }

    fn recent(&self, action: RecentAction, name: &Arc<str>) -> RecentMatch {
        let mask = match self.common.settings.family {
            Family::V4 => IpAddr::V4(Ipv4Addr::BROADCAST),
            Family::V6 => IpAddr::V6(Ipv6Addr::from_bits(u128::MAX)),
        };
        RecentMatch {
            action,
            seconds: None,
            reap: false,
            hitcount: None,
            ttl: false,
            name: name.clone(),
            mask,
            destination: false,
            invert: false,
        }
    }
}
