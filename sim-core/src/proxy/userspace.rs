//! kube-proxy's userspace mode: rules that lead to a process on the node, which dials endpoints.
//!
//! ```text
//! PREROUTING ─▶ KUBE-PORTALS-CONTAINER ─REDIRECT─▶ ┐
//! OUTPUT     ─▶ KUBE-PORTALS-HOST      ─DNAT─────▶ ┴ the process's port ─dial─▶ endpoint
//! ```
//!
//! The rules name Services, never endpoints: what a change of endpoints changes is the process's
//! own list ([`RoundRobin`]).
//!
//! Kubernetes: pkg/proxy/userspace/{proxier,roundrobin}.go of 1.25, the last minor version with
//! this mode.

use std::collections::BTreeMap;
use std::net::IpAddr;

use netfilter_model::Prefix;
use netfilter_model::hook::{Hook, Table};
use netfilter_model::rule::{
    AddrType, CtStates, Nat, NatRange, Origin, Rule, Ruleset, RulesetBuilder, SlotId, Target,
    ValidationError,
};

use super::service::ServicePort;
use super::state::State;
use crate::time::SimTime;

/// The process's ports, one for each service port in their order.
///
/// The kernel gives the process any free port of `net.ipv4.ip_local_port_range`; these stand
/// outside of it, so that no client has one of them.
const FIRST_PORT: u16 = 20_000;
const LAST_PORT: u16 = 32_000;

/// Where Services add rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slots {
    /// nat KUBE-PORTALS-CONTAINER: for packets that come in.
    pub container: SlotId,
    /// nat KUBE-PORTALS-HOST: for packets of the node itself.
    pub host: SlotId,
    /// nat KUBE-NODEPORT-CONTAINER.
    pub node_container: SlotId,
    /// nat KUBE-NODEPORT-HOST.
    pub node_host: SlotId,
    /// filter KUBE-NODEPORT-NON-LOCAL: lets what was sent on to the process in.
    pub non_local: SlotId,
}

/// Returns the process's port for the service port at `index`, if there are that many.
pub fn process_port(index: usize) -> Option<u16> {
    let port = usize::from(FIRST_PORT) + index;
    u16::try_from(port).ok().filter(|port| *port <= LAST_PORT)
}

/// Returns the place of the service port that a port of the process is for.
pub fn index_of(process_port: u16) -> Option<usize> {
    (FIRST_PORT..=LAST_PORT).contains(&process_port).then(|| usize::from(process_port - FIRST_PORT))
}

/// Returns the rules without Services, and where Services add theirs.
pub fn builder() -> (RulesetBuilder, Slots) {
    const PORTALS: &str = "handle ClusterIPs; NOTE: this must be before the NodePort rules";
    const NODE_PORTS: &str =
        "handle service NodePorts; NOTE: this must be the last rule in the chain";
    let mut rules = RulesetBuilder::new();
    rules.load(Table::Nat);
    let mut chains =
        [(Hook::Prerouting, "CONTAINER"), (Hook::Output, "HOST")].map(|(hook, side)| {
            let portals = rules.chain(Table::Nat, format!("KUBE-PORTALS-{side}"));
            let ports = rules.chain(Table::Nat, format!("KUBE-NODEPORT-{side}"));
            let builtin = rules.builtin(Table::Nat, hook);
            rules.append(Table::Nat, builtin, rule().comment(PORTALS).then(Target::Jump(portals)));
            let to_node = rule().dst_type(AddrType::Local).comment(NODE_PORTS);
            rules.append(Table::Nat, builtin, to_node.then(Target::Jump(ports)));
            [portals, ports]
        });
    let non_local = rules.chain(Table::Filter, "KUBE-NODEPORT-NON-LOCAL");
    let input = rules.builtin(Table::Filter, Hook::Input);
    let comment = "Ensure that non-local NodePort traffic can flow";
    rules.append(Table::Filter, input, rule().comment(comment).then(Target::Jump(non_local)));
    let [[container, node_container], [host, node_host]] =
        chains.each_mut().map(|pair| pair.map(|chain| rules.slot(Table::Nat, chain)));
    let non_local = rules.slot(Table::Filter, non_local);
    (rules, Slots { container, host, node_container, node_host, non_local })
}

/// Returns the rules of a service port, with where they go; `host_ip` is the node's address.
pub fn rules_of(
    port: &ServicePort,
    slots: &Slots,
    origin: Origin,
    process_port: u16,
    host_ip: IpAddr,
) -> Vec<(SlotId, Rule)> {
    let protocol = port.name.protocol;
    let ports = Some((process_port, process_port));
    let redirect = || Target::Nat(Nat::Redirect(NatRange { ports, ..NatRange::keep() }));
    let dnat = || Target::Nat(Nat::Dnat(NatRange { ports, ..NatRange::address(host_ip) }));
    let named = || Rule::new(origin).comment(port.name.text.clone());
    let mut rules = Vec::new();
    let vips =
        std::iter::once(&port.cluster_ip).chain(&port.external_ips).chain(&port.load_balancer_vips);
    for vip in vips {
        let to = || {
            Rule::new(origin)
                .destination(Prefix::host(*vip))
                .protocol(protocol)
                .comment(port.name.text.clone())
                .dport(protocol, port.port)
        };
        rules.push((slots.container, to().then(redirect())));
        rules.push((slots.host, to().then(dnat())));
    }
    if let Some(node_port) = port.node_port {
        let to = |port| named().protocol(protocol).dport(protocol, port);
        rules.push((slots.node_container, to(node_port).then(redirect())));
        rules.push((slots.node_host, to(node_port).then(dnat())));
        let sent_on = to(process_port).ctstate(CtStates::NEW);
        rules.push((slots.non_local, sent_on.then(Target::Accept)));
    }
    rules
}

/// Returns the rules that a node holds.
///
/// # Errors
///
/// If the kernel would refuse them.
pub fn ruleset(state: &State) -> Result<Ruleset, ValidationError> {
    let (mut builder, slots) = builder();
    builder.family(state.family);
    let base = builder.build_base()?;
    let mut fragment = base.fragment(netfilter_model::rule::FragmentId(1));
    let ports = state.ports.iter().enumerate();
    for (index, (port, _)) in ports {
        // What the process finds no port for, it does not serve.
        let Some(process_port) = process_port(index) else {
            break;
        };
        let origin = Origin { owner: index as u32, item: 0 };
        for (slot, rule) in rules_of(port, &slots, origin, process_port, state.node.host_ip) {
            fragment.contribute(slot, rule);
        }
    }
    Ruleset::assemble(&base, &[fragment.build()?.into()])
}

/// The process's place in a service port's endpoints.
///
/// The list is shuffled whenever it changes, and begun anew.
///
/// Kubernetes: pkg/proxy/userspace/roundrobin.go, LoadBalancerRR.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RoundRobin<T> {
    told: Vec<T>,
    list: Vec<T>,
    next: usize,
    /// When clients were last sent somewhere, and where, if they stay there.
    clients: BTreeMap<IpAddr, (SimTime, T)>,
}

/// For whom the process dials.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caller {
    /// The client's address.
    pub client: IpAddr,
    /// Whether a dial for this connection has failed.
    pub again: bool,
}

/// A caller of a service port whose clients stay with their endpoints.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sticky {
    /// Who calls.
    pub caller: Caller,
    /// How long a client stays after its last call.
    pub seconds: u32,
    /// The time.
    pub now: SimTime,
}

impl<T> Default for RoundRobin<T> {
    fn default() -> RoundRobin<T> {
        RoundRobin { told: Vec::new(), list: Vec::new(), next: 0, clients: BTreeMap::new() }
    }
}

impl<T: Copy + PartialEq> RoundRobin<T> {
    /// Tells the endpoints. If they differ from those before, they are put into the order that
    /// `draw` gives: the draw at k, any 64 bits, says which of the first k + 1 goes to place k.
    pub fn update(&mut self, endpoints: &[T], draw: impl Fn(u32) -> u64) {
        if self.told == endpoints {
            return;
        }
        self.told = endpoints.to_vec();
        self.list.clone_from(&self.told);
        for k in (1..self.list.len()).rev() {
            let other = crate::engine::rng::below(draw(k as u32), k as u64 + 1);
            self.list.swap(k, other as usize);
        }
        self.next = 0;
    }

    /// Returns the next endpoint, if there is any.
    pub fn take_turn(&mut self) -> Option<T> {
        let endpoint = *self.list.get(self.next)?;
        self.next = (self.next + 1) % self.list.len();
        Some(endpoint)
    }

    /// Returns the endpoint that a client was last sent to, or the next if that was too long ago or
    /// has just failed.
    // Kubernetes: pkg/proxy/userspace/roundrobin.go, NextEndpoint: whole seconds, the last not
    // included; proxysocket.go, TryConnectEndpoints
    pub fn stay(&mut self, Sticky { caller, seconds, now }: Sticky) -> Option<T> {
        if self.list.is_empty() {
            return None;
        }
        let timeout = u64::from(seconds);
        let known = self
            .clients
            .get(&caller.client)
            .filter(|(last, _)| !caller.again && now.saturating_since(*last).as_secs() < timeout);
        let endpoint = match known {
            Some((_, endpoint)) => *endpoint,
            None => self.take_turn()?,
        };
        self.clients.insert(caller.client, (now, endpoint));
        Some(endpoint)
    }

    /// Forgets the clients of endpoints for which `still` has nothing; others are known by what it
    /// has for them.
    pub fn keep_clients(&mut self, still: impl Fn(&T) -> Option<T>) {
        self.clients.retain(|_, (_, endpoint)| match still(endpoint) {
            Some(same) => {
                *endpoint = same;
                true
            }
            None => false,
        });
    }
}

fn rule() -> Rule {
    Rule::new(Origin { owner: u32::MAX, item: 0 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_take_turns_and_begin_anew_when_they_change() {
        let mut turns = RoundRobin::default();
        assert_eq!(turns.take_turn(), None);
        // The draw 0 puts the first of those that are left to the end.
        turns.update(&["a", "b", "c"], |_| 0);
        let taken: Vec<_> = (0..4).filter_map(|_| turns.take_turn()).collect();
        assert_eq!(taken, ["b", "c", "a", "b"]);
        turns.update(&["a", "b", "c"], |_| u64::MAX);
        assert_eq!(turns.take_turn(), Some("c"), "the same list goes on");
        turns.update(&["a", "c"], |_| u64::MAX);
        assert_eq!(
            (turns.take_turn(), turns.take_turn(), turns.take_turn()),
            (Some("a"), Some("c"), Some("a"))
        );
        turns.update(&[], |_| 0);
        assert_eq!(turns.take_turn(), None);
    }

    #[test]
    fn a_client_stays_until_its_time_is_up_or_a_dial_fails() {
        let mut turns = RoundRobin::default();
        turns.update(&["a", "b"], |_| u64::MAX);
        let call = |turns: &mut RoundRobin<_>, last: u8, again: bool, ms: u64| {
            let caller = Caller { client: IpAddr::from([10, 0, 0, last]), again };
            let now = SimTime::from_nanos(ms * 1_000_000);
            turns.stay(Sticky { caller, seconds: 10, now }).unwrap_or("none")
        };
        assert_eq!(call(&mut turns, 1, false, 0), "a");
        assert_eq!(call(&mut turns, 2, false, 0), "b");
        assert_eq!(call(&mut turns, 1, false, 9_999), "a", "which renews it");
        assert_eq!(call(&mut turns, 1, false, 19_998), "a");
        assert_eq!(call(&mut turns, 2, false, 10_000), "a", "ten seconds are too many");
        assert_eq!(call(&mut turns, 1, true, 20_000), "b", "the next, and the one after it");
        assert_eq!(call(&mut turns, 1, false, 20_001), "b");
        turns.keep_clients(|of| Some(*of).filter(|of| *of != "b"));
        turns.update(&["a"], |_| u64::MAX);
        assert_eq!(call(&mut turns, 1, false, 20_002), "a");
        turns.update(&[], |_| 0);
        turns.keep_clients(|_| None);
        assert_eq!(call(&mut turns, 1, false, 20_003), "none");
    }

    #[test]
    fn every_service_port_has_a_port_of_the_process() {
        assert_eq!(process_port(0).and_then(index_of), Some(0));
        assert_eq!(process_port(12_000).and_then(index_of), Some(12_000));
        assert_eq!(process_port(12_001), None);
        assert_eq!(index_of(80), None);
    }
}
