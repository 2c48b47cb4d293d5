//! From the plan to the table.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use netfilter_model::nft::{Chain, Data, Element, Op, Rule, Set, SetData, Table, Verdict};
use netfilter_model::nft::{Dynset, DynsetOp, Statement};
use netfilter_model::tuple::Protocol;

use super::Nftables;
use super::fixed::{
    self, CLUSTER_IPS, FIREWALL_IPS, HAIRPIN, MARK, NO_ENDPOINT_NODEPORTS, NO_ENDPOINT_SERVICES,
    NODEPORT_IPS, REJECT, SERVICE_IPS, SERVICE_NODEPORTS,
};
use super::part::{
    self, Words, commented, dnat, fib_local, goto, goto_one_of, in_set, jump, l4proto_is, range,
    service_origin, value,
};
use super::plan::{Plan, PlannedEndpoint, PlannedPort, Refusal};
use crate::proxy::endpoint::Endpoint;
use crate::proxy::state::{LocalDetector, State};

/// A set without a size holds this many elements that packets add; nft writes it down.
const DYNAMIC_SIZE: u32 = 65_535;

/// Where chains and sets lie in the table: chains in order of name, sets likewise before maps.
pub(super) struct Places {
    chains: Vec<Arc<str>>,
    /// By place in the plan.
    planned: Vec<u32>,
    affinity: Vec<u32>,
    sets: BTreeMap<Arc<str>, u32>,
}

impl Places {
    fn of(state: &State, plan: &Plan<'_>, sets: &[Set]) -> Places {
        let fixed = fixed::chain_names(state).map(|name| (Arc::from(name), None));
        let planned = (0..).zip(&plan.chains).map(|(at, name)| (name.clone(), Some(at)));
        let mut chains: Vec<(Arc<str>, Option<u32>)> = fixed.chain(planned).collect();
        chains.sort_unstable();
        let mut places = vec![0; plan.chains.len()];
        for (place, (_, planned)) in (0..).zip(&chains) {
            if let Some(at) = planned {
                places[*at as usize] = place;
            }
        }
        let index = (0..).zip(sets).map(|(place, set)| (set.name.clone(), place));
        let sets: BTreeMap<Arc<str>, u32> = index.collect();
        let affinity = plan.affinity.iter().map(|(name, _)| sets[name]).collect();
        let chains = chains.into_iter().map(|(name, _)| name).collect();
        Places { chains, planned: places, affinity, sets }
    }

    /// Returns the place of a chain that is always there.
    pub(super) fn fixed(&self, name: &str) -> u32 {
        let found = self.chains.binary_search_by(|other| (**other).cmp(name));
        found.expect("a fixed chain") as u32
    }

    /// Returns the place of a set or map that is always there.
    pub(super) fn set(&self, name: &str) -> u32 {
        self.sets[name]
    }

    fn planned(&self, chain: u32) -> u32 {
        self.planned[chain as usize]
    }
}

/// Returns the table of a plan.
pub(super) fn write(state: &State, plan: &Plan<'_>) -> Nftables {
    let mut sets = fixed::sets(state);
    let of_address = Words(state.family).of_address();
    sets.extend(plan.affinity.iter().map(|(name, seconds)| {
        let mut set = Set::new(name.clone(), [of_address], SetData::None);
        (set.dynamic, set.timeouts) = (true, true);
        (set.size, set.timeout) = (Some(DYNAMIC_SIZE), Some(u64::from(*seconds) * 1000));
        set
    }));
    sets.sort_by(|a, b| {
        let key = |set: &Set| (set.data != SetData::None, set.name.clone());
        key(a).cmp(&key(b))
    });
    let places = Places::of(state, plan, &sets);
    let mut chains: Vec<Chain> = places.chains.iter().cloned().map(empty).collect();
    for chain in fixed::chains(state, &places) {
        let at = places.fixed(&chain.name);
        chains[at as usize] = chain;
    }
    let mut writer = Writer {
        state,
        words: Words(state.family),
        detector: state.local_detector(),
        mark: places.fixed(MARK),
        reject: places.fixed(REJECT),
        places: &places,
        chains,
        elements: BTreeMap::new(),
        spelled: BTreeMap::new(),
    };
    for (owner, port) in (0..).zip(&plan.ports) {
        writer.port(owner, port);
    }
    let Writer { chains, mut elements, spelled, .. } = writer;
    elements.insert(NODEPORT_IPS, fixed::node_port_elements(state).collect());
    for (name, list) in elements {
        let Some(at) = places.sets.get(name) else { continue };
        let set = &mut sets[*at as usize];
        set.extend(unique(list));
        let overlaps = set.finish();
        debug_assert!(overlaps.is_empty());
    }
    for set in &mut sets {
        set.finish();
    }
    let mut table = Table::new(Words(state.family).family(), "kube-proxy");
    table.comment = Some("rules for kube-proxy".into());
    (table.sets, table.chains) = (sets, chains);
    Nftables { table, spelled }
}

/// Returns elements in the order in which nft lists them, of one key the first. kube-proxy before
/// 1.33 writes both, and the kernel refuses the whole transaction.
fn unique(mut elements: Vec<Element>) -> Vec<Element> {
    elements.sort_by(|a, b| a.key.cmp(&b.key));
    elements.dedup_by(|later, first| later.key == first.key);
    elements
}

fn empty(name: Arc<str>) -> Chain {
    Chain { name, comment: None, base: None, rules: Vec::new() }
}

/// Writes the parts of service ports.
struct Writer<'p> {
    state: &'p State,
    words: Words,
    detector: Option<LocalDetector>,
    /// The chain that marks for masquerading.
    mark: u32,
    /// The chain that rejects.
    reject: u32,
    places: &'p Places,
    chains: Vec<Chain>,
    elements: BTreeMap<&'static str, Vec<Element>>,
    spelled: BTreeMap<(u32, u32), String>,
}

impl Writer<'_> {
    fn port(&mut self, owner: u32, planned: &PlannedPort<'_>) {
        let port = planned.port;
        let (protocol, number) = (port.name.protocol, port.port);
        self.add(CLUSTER_IPS, Element::of([value(port.cluster_ip)]));

        let internal = planned.internal();
        let refusal = planned.internal_refusal();
        let cluster_ip = [port.cluster_ip];
        self.dispatch(&cluster_ip, planned, internal.filter(|_| refusal.is_none()), refusal);
        let refusal = planned.external_refusal();
        self.dispatch(&port.external_ips, planned, planned.external, refusal);
        self.dispatch(&port.load_balancer_vips, planned, planned.external, refusal);
        if let Some(firewall) = planned.firewall {
            self.firewall(owner, planned, firewall);
        }
        if let Some(node_port) = port.node_port {
            let key = || Element::of([u128::from(protocol.0), u128::from(node_port)]);
            self.find(SERVICE_NODEPORTS, key(), planned.external);
            self.refuse(NO_ENDPOINT_NODEPORTS, key(), planned, refusal);
        }

        if let Some(internal) = internal
            && !self.state.profile.squashes_nftables()
            && let Some(outside) = fixed::outside(self.state)
        {
            let mut statements: Vec<Statement> =
                self.words.to(port.cluster_ip, protocol, number).into();
            statements.extend(outside);
            statements.push(jump(self.mark));
            self.push(internal, part::rule(service_origin(owner), statements));
        }
        if let Some(external) = planned.external {
            self.external(owner, planned, external);
        }
        for (chain, endpoints) in
            [(planned.service, &planned.chosen.cluster), (planned.local, &planned.chosen.local)]
        {
            if let Some(chain) = chain {
                self.choose(owner, planned, chain, endpoints);
            }
        }
        for (endpoint, chain) in &planned.endpoints {
            self.endpoint(owner, protocol, endpoint, *chain);
        }
    }

    /// Lets packets to addresses of a service port go to a chain, or be refused.
    fn dispatch(
        &mut self,
        addresses: &[IpAddr],
        planned: &PlannedPort<'_>,
        chain: Option<u32>,
        refusal: Option<Refusal>,
    ) {
        for address in addresses {
            let key = self.key(*address, planned);
            self.find(SERVICE_IPS, key.clone(), chain);
            self.refuse(NO_ENDPOINT_SERVICES, key, planned, refusal);
        }
    }

    fn key(&self, address: IpAddr, planned: &PlannedPort<'_>) -> Element {
        let protocol = planned.port.name.protocol;
        Element::of([value(address), u128::from(protocol.0), u128::from(planned.port.port)])
    }

    fn find(&mut self, map: &'static str, key: Element, chain: Option<u32>) {
        if let Some(chain) = chain {
            let verdict = Verdict::Goto(self.places.planned(chain));
            self.add(map, key.to(Data::Verdict(verdict)));
        }
    }

    fn refuse(
        &mut self,
        map: &'static str,
        key: Element,
        planned: &PlannedPort<'_>,
        refusal: Option<Refusal>,
    ) {
        let verdict = match refusal {
            None => return,
            Some(Refusal::Reject) => Verdict::Goto(self.reject),
            Some(Refusal::Drop) => Verdict::Drop,
        };
        self.add(map, noted(planned, key.to(Data::Verdict(verdict))));
    }

    /// Writes the chain that drops what comes from sources that are not let in. The load
    /// balancer's own addresses are let in where the node is: on it, they may be a source.
    fn firewall(&mut self, owner: u32, planned: &PlannedPort<'_>, chain: u32) {
        let port = planned.port;
        let mut ranges = Vec::new();
        let mut texts = Vec::new();
        for prefix in &port.load_balancer_source_ranges {
            ranges.push(range(prefix));
            texts.push(format!("{}/{}", prefix.address(), prefix.len()));
        }
        let node = self.state.node.host_ip;
        if port.load_balancer_source_ranges.iter().any(|range| range.contains(node)) {
            for vip in &port.load_balancer_vips {
                ranges.push((value(*vip), value(*vip)));
                texts.push(vip.to_string());
            }
        }
        let header = if node.is_ipv4() { "ip" } else { "ip6" };
        let text = format!("{header} saddr != {{ {} }} drop", texts.join(" , "));
        self.spelled.insert((self.places.planned(chain), 0), text);
        let statements = self.words.drop_others(ranges);
        self.push(chain, part::rule(service_origin(owner), statements));
        for vip in &port.load_balancer_vips {
            let verdict = Verdict::Goto(self.places.planned(chain));
            let element = self.key(*vip, planned).to(Data::Verdict(verdict));
            self.add(FIREWALL_IPS, noted(planned, element));
        }
    }

    /// Writes the chain where traffic from outside comes in.
    fn external(&mut self, owner: u32, planned: &PlannedPort<'_>, chain: u32) {
        let rule = |statements| part::rule(service_origin(owner), statements);
        let mark = self.mark;
        if !planned.port.external_local {
            self.push(chain, rule(vec![jump(mark)]));
            self.go(owner, chain, planned.service);
            return;
        }
        if let Some(service) = planned.service {
            let service = self.places.planned(service);
            if let Some(detector) = &self.detector {
                let by_name = self.state.profile.matches_device_names();
                let local = self.words.local(detector, Op::Eq, by_name);
                let rule = rule(vec![local, goto(service)]);
                self.push(chain, commented("short-circuit pod traffic", rule));
            }
            let marked = rule(vec![fib_local(true), jump(mark)]);
            self.push(chain, commented("masquerade local traffic", marked));
            let rule = rule(vec![fib_local(true), goto(service)]);
            self.push(chain, commented("short-circuit local traffic", rule));
        }
        self.go(owner, chain, planned.local);
    }

    fn go(&mut self, owner: u32, chain: u32, to: Option<u32>) {
        if let Some(to) = to {
            let to = goto(self.places.planned(to));
            self.push(chain, part::rule(service_origin(owner), vec![to]));
        }
    }

    /// Writes the choice among endpoints.
    fn choose(
        &mut self,
        owner: u32,
        planned: &PlannedPort<'_>,
        chain: u32,
        endpoints: &[&Endpoint],
    ) {
        let rule = |statements| part::rule(service_origin(owner), statements);
        let mut chains = Vec::with_capacity(endpoints.len());
        for endpoint in endpoints {
            let Some(PlannedEndpoint { chain: Some(to), affinity }) = planned.endpoint(endpoint)
            else {
                continue;
            };
            let to = self.places.planned(to);
            chains.push(to);
            if let Some(affinity) = affinity {
                let set = self.places.affinity[affinity as usize];
                let known = in_set(vec![self.words.saddr()], set);
                self.push(chain, rule(vec![known, goto(to)]));
            }
        }
        if chains.is_empty() {
            let targets: Vec<(IpAddr, u16)> =
                endpoints.iter().map(|endpoint| (endpoint.addr, endpoint.port)).collect();
            let protocol = l4proto_is(planned.port.name.protocol);
            self.push(chain, rule(vec![protocol, self.words.dnat_to_one_of(&targets)]));
        } else {
            self.push(chain, rule(vec![goto_one_of(&chains)]));
        }
    }

    /// Writes the rewriting to one endpoint.
    fn endpoint(
        &mut self,
        owner: u32,
        protocol: Protocol,
        endpoint: &Endpoint,
        planned: PlannedEndpoint,
    ) {
        let (addr, port) = (endpoint.addr, endpoint.port);
        let squashed = self.state.profile.squashes_nftables();
        if squashed && endpoint.local {
            let number = u128::from(port);
            let key = [value(addr), value(addr), u128::from(protocol.0), number];
            self.add(HAIRPIN, Element::of(key));
        }
        let Some(chain) = planned.chain else { return };
        // There are many, and they do not grow.
        let place = self.places.planned(chain) as usize;
        let rules = 1 + usize::from(!squashed) + usize::from(planned.affinity.is_some());
        self.chains[place].rules.reserve_exact(rules);
        let origin = netfilter_model::rule::Origin { owner, item: endpoint.item };
        if !squashed {
            let hairpin = vec![self.words.saddr_is(addr), jump(self.mark)];
            self.spell_address(chain, endpoint, |_| {
                let header = if addr.is_ipv4() { "ip" } else { "ip6" };
                format!("{header} saddr {} jump {MARK}", endpoint.addr_text())
            });
            self.push(chain, part::rule(origin, hairpin));
        }
        if let Some(affinity) = planned.affinity {
            let update = Statement::Dynset(Dynset {
                op: DynsetOp::Update,
                set: self.places.affinity[affinity as usize],
                key: vec![self.words.saddr()],
                data: Vec::new(),
                timeout: None,
                limit: None,
                other: None,
            });
            self.push(chain, part::rule(origin, vec![update]));
        }
        self.spell_address(chain, endpoint, |text| {
            format!("meta l4proto {} dnat to {text}", protocol.name().unwrap_or_default())
        });
        self.push(chain, part::rule(origin, vec![l4proto_is(protocol), dnat(addr, port)]));
    }

    /// Keeps the spelling of the rule that is pushed next, if its endpoint's address is not
    /// written in the shortest form.
    fn spell_address(
        &mut self,
        chain: u32,
        endpoint: &Endpoint,
        spell: impl FnOnce(&str) -> String,
    ) {
        if endpoint.addr.is_ipv6() && endpoint.addr.to_string() != endpoint.addr_text() {
            let chain = self.places.planned(chain);
            let number = self.chains[chain as usize].rules.len() as u32;
            self.spelled.insert((chain, number), spell(&endpoint.text));
        }
    }

    fn push(&mut self, planned: u32, rule: Rule) {
        self.chains[self.places.planned(planned) as usize].rules.push(rule);
    }

    fn add(&mut self, set: &'static str, element: Element) {
        self.elements.entry(set).or_default().push(element);
    }
}

/// Returns the element with the service port's name beside it.
fn noted(planned: &PlannedPort<'_>, element: Element) -> Element {
    Element { comment: Some(planned.port.name.text.clone()), ..element }
}
