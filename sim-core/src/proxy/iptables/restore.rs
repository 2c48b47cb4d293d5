//! Rules as kube-proxy feeds them to `iptables-restore`: words in its order, chains in its order.
//!
//! Kubernetes: pkg/proxy/iptables/proxier.go, syncProxyRules.

use std::collections::BTreeMap;
use std::fmt::{self, Write};
use std::sync::Arc;

use netfilter_model::Prefix;
use netfilter_model::hook::Table;
use netfilter_model::rule::{
    AddrTypeMatch, Chain, ChainId, CtStates, Fragment, FragmentId, Match, Nat, NatAddresses,
    RecentAction, Rule, SlotId, Target,
};

use super::common::{Common, MARK_MASQ};
use crate::proxy::service::ServicePort;

/// What a service port adds.
pub(super) struct Part<'a> {
    pub(super) port: &'a ServicePort,
    pub(super) fragment: &'a Fragment,
    /// Addresses of endpoints that are not written in their shortest form, by items.
    pub(super) odd: &'a BTreeMap<u32, Arc<str>>,
    /// Its rules in the chains that all Services share.
    pub(super) dispatch: &'a Dispatch,
    /// Whether the port's own chains are written.
    pub(super) changed: bool,
}

/// What a service port writes in every sync, partial ones included: kept as text, since nearly
/// all of a partial sync is this, of Services that did not change.
#[derive(Clone, Debug)]
pub(super) struct Dispatch {
    filter: Box<str>,
    nat: Box<str>,
}

impl Dispatch {
    /// Returns the text of a fragment's rules in shared chains.
    pub(super) fn of(common: &Common, fragment: &Fragment) -> Dispatch {
        let slots = common.slots;
        let text = |table, slots: &[SlotId]| {
            let mut out = String::new();
            let mut writer = Writer { out: &mut out, common };
            for slot in slots {
                writer.contribution(table, fragment, *slot).expect("strings take everything");
            }
            out.into_boxed_str()
        };
        let filter = [slots.refusals, slots.firewall, slots.external_refusals, slots.health_checks];
        Dispatch {
            filter: text(Table::Filter, &filter),
            nat: text(Table::Nat, &[slots.services, slots.node_ports]),
        }
    }
}

const FILTER_CHAINS: [&str; 6] = [
    "KUBE-SERVICES",
    "KUBE-EXTERNAL-SERVICES",
    "KUBE-FORWARD",
    "KUBE-NODEPORTS",
    "KUBE-PROXY-FIREWALL",
    "KUBE-FIREWALL",
];
const NAT_CHAINS: [&str; 4] =
    ["KUBE-SERVICES", "KUBE-NODEPORTS", "KUBE-POSTROUTING", "KUBE-MARK-MASQ"];

/// Returns the whole input.
pub(super) fn write<'a>(
    common: &'a Common,
    parts: impl Iterator<Item = Part<'a>>,
    stale: &[&str],
) -> String {
    let parts: Vec<Part<'a>> = parts.collect();
    let shared = parts.iter().map(|part| part.dispatch.filter.len() + part.dispatch.nat.len());
    // The chains of a port take about as much again for each of its endpoints.
    let own = parts.iter().filter(|part| part.changed);
    let own = own.map(|part| 450 * part.fragment.chains(Table::Nat).len());
    let mut out = String::with_capacity(4096 + shared.sum::<usize>() + own.sum::<usize>());
    let mut writer = Writer { out: &mut out, common };
    writer.all(&parts, stale).expect("strings take everything");
    out
}

struct Writer<'a> {
    out: &'a mut String,
    common: &'a Common,
}

/// How the addresses of a rule are written.
#[derive(Clone, Copy)]
enum Style<'a> {
    /// Its source is a range, with its length even if it holds one address.
    Range,
    /// Its source is an address.
    Host,
    /// It is about an endpoint whose address is written so.
    Endpoint(&'a str),
}

impl Writer<'_> {
    fn all(&mut self, parts: &[Part<'_>], stale: &[&str]) -> fmt::Result {
        let localhost = self.common.settings.localhost_node_ports;
        self.out.push_str("*filter\n");
        for name in &FILTER_CHAINS[..if localhost { 6 } else { 5 }] {
            self.declare(name)?;
        }
        self.common_chain(Table::Filter, "KUBE-FIREWALL")?;
        for part in parts {
            self.out.push_str(&part.dispatch.filter);
        }
        self.common_chain(Table::Filter, "KUBE-FORWARD")?;
        self.out.push_str("COMMIT\n*nat\n");
        for name in NAT_CHAINS {
            self.declare(name)?;
        }
        let changed = || parts.iter().filter(|part| part.changed);
        for chain in changed().flat_map(|part| part.fragment.chains(Table::Nat)) {
            self.declare(chain.name())?;
        }
        for name in stale {
            self.declare(name)?;
        }
        self.common_chain(Table::Nat, "KUBE-POSTROUTING")?;
        self.common_chain(Table::Nat, "KUBE-MARK-MASQ")?;
        for part in parts {
            self.nat_rules(part)?;
        }
        for name in stale {
            writeln!(self.out, "-X {name}")?;
        }
        self.common_chain(Table::Nat, "KUBE-SERVICES")?;
        self.out.push_str("COMMIT\n");
        Ok(())
    }

    fn declare(&mut self, name: &str) -> fmt::Result {
        writeln!(self.out, ":{name} - [0:0]")
    }

    fn common_chain(&mut self, table: Table, name: &str) -> fmt::Result {
        let mut chains = self.common.base.chains(table).iter();
        let Some(chain) = chains.find(|chain| &**chain.name() == name) else {
            return Ok(());
        };
        for (position, rule) in chain.rules().iter().enumerate() {
            self.rule(table, chain, position, rule, None, Style::Range)?;
        }
        Ok(())
    }

    fn contribution(&mut self, table: Table, fragment: &Fragment, slot: SlotId) -> fmt::Result {
        let common = self.common;
        let mut chains = common.base.chains(table).iter();
        let holds = |chain: &&Chain| chain.slot().is_some_and(|found| found.id == slot);
        let Some(chain) = chains.find(holds) else {
            return Ok(());
        };
        for rule in fragment.contribution(slot) {
            self.rule(table, chain, 0, rule, Some(fragment), Style::Range)?;
        }
        Ok(())
    }

    fn nat_rules(&mut self, part: &Part<'_>) -> fmt::Result {
        self.out.push_str(&part.dispatch.nat);
        if !part.changed {
            return Ok(());
        }
        let chains = part.fragment.chains(Table::Nat);
        // The rule about traffic to the ClusterIP comes before the other chains.
        for chain in chains {
            if masquerades(chain) {
                self.chain_rules(part, chain, 0..1)?;
            }
        }
        for chain in chains {
            let from = usize::from(masquerades(chain));
            self.chain_rules(part, chain, from..chain.rules().len())?;
        }
        Ok(())
    }

    fn chain_rules(
        &mut self,
        part: &Part<'_>,
        chain: &Chain,
        positions: std::ops::Range<usize>,
    ) -> fmt::Result {
        let is_firewall = chain.name().starts_with("KUBE-FW-");
        let is_endpoint = chain.name().starts_with("KUBE-SEP-");
        let ranges = part.port.load_balancer_source_ranges.len();
        for position in positions {
            let rule = &chain.rules()[position];
            let style = match part.odd.get(&rule.origin.item) {
                Some(text) if is_endpoint => Style::Endpoint(text),
                _ if is_endpoint || (is_firewall && position >= ranges) => Style::Host,
                _ => Style::Range,
            };
            self.rule(Table::Nat, chain, position, rule, Some(part.fragment), style)?;
        }
        Ok(())
    }

    fn rule(
        &mut self,
        table: Table,
        chain: &Chain,
        position: usize,
        rule: &Rule,
        fragment: Option<&Fragment>,
        style: Style<'_>,
    ) -> fmt::Result {
        write!(self.out, "-A {}", chain.name())?;
        self.comment(rule);
        let left = chain.rules().len() - position.min(chain.rules().len());
        for condition in rule.matches() {
            self.extension(condition, left)?;
        }
        self.transport(rule)?;
        self.source(rule, style)?;
        for condition in rule.matches() {
            if let Match::CtState { states, invert } = condition {
                self.states(*states, *invert)?;
            }
        }
        self.target(table, rule.target(), fragment, style)?;
        self.out.push('\n');
        Ok(())
    }

    fn comment(&mut self, rule: &Rule) {
        for condition in rule.matches() {
            if let Match::Comment(text) = condition {
                let quote = if text.contains(' ') { "\"" } else { "" };
                for word in [" -m comment --comment ", quote, text, quote] {
                    self.out.push_str(word);
                }
            }
        }
    }

    /// Writes the matches that stand before addresses and ports. `left` is how many rules of the
    /// chain there are from this one on: the share of a random pick.
    fn extension(&mut self, condition: &Match, left: usize) -> fmt::Result {
        match condition {
            Match::Mark { value, mask, invert } => {
                let not = not(*invert);
                write!(self.out, " -m mark{not} --mark 0x{value:08x}/0x{mask:08x}")
            }
            Match::AddrType { src, dst, .. } => {
                self.out.push_str(" -m addrtype");
                for (side, types) in [("--src-type", src), ("--dst-type", dst)] {
                    if let Some(AddrTypeMatch { types, invert }) = types {
                        write!(self.out, "{} {side}", not(*invert))?;
                        for (at, name) in types.names().enumerate() {
                            write!(self.out, "{}{name}", if at == 0 { ' ' } else { ',' })?;
                        }
                    }
                }
                Ok(())
            }
            Match::Recent(recent) => {
                write!(self.out, " -m recent --name {}", recent.name)?;
                self.out.push_str(match recent.action {
                    RecentAction::Set => " --set",
                    RecentAction::Check => " --rcheck",
                    RecentAction::Update => " --update",
                    RecentAction::Remove => " --remove",
                });
                if let Some(seconds) = recent.seconds {
                    write!(self.out, " --seconds {seconds}")?;
                }
                self.out.push_str(if recent.reap { " --reap" } else { "" });
                Ok(())
            }
            Match::Random { .. } => {
                let share = 1.0 / left as f64;
                write!(self.out, " -m statistic --mode random --probability {share:.10}")
            }
            _ => Ok(()),
        }
    }

    fn transport(&mut self, rule: &Rule) -> fmt::Result {
        for condition in rule.matches() {
            if let Match::Protocol { protocol, .. } = condition {
                write!(self.out, " -m {protocol} -p {protocol}")?;
            }
        }
        for condition in rule.matches() {
            if let Match::Destination { prefix, invert } = condition {
                let style = if *invert { Style::Range } else { Style::Host };
                self.address("-d", prefix, *invert, style)?;
            }
        }
        for condition in rule.matches() {
            let port = match condition {
                Match::Tcp { dport, .. } | Match::Udp { dport, .. } => dport,
                Match::Sctp(sctp) => &sctp.dport,
                _ => continue,
            };
            if let Some(port) = port {
                write!(self.out, " --dport {}", port.min)?;
            }
        }
        Ok(())
    }

    fn source(&mut self, rule: &Rule, style: Style<'_>) -> fmt::Result {
        for condition in rule.matches() {
            match condition {
                Match::Source { prefix, invert } => self.address("-s", prefix, *invert, style)?,
                Match::InDevice(device) => {
                    write!(self.out, "{} -i {}", not(device.invert), device.pattern)?;
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn address(
        &mut self,
        option: &str,
        prefix: &Prefix,
        invert: bool,
        style: Style<'_>,
    ) -> fmt::Result {
        write!(self.out, "{} {option} ", not(invert))?;
        match (style, prefix.as_host()) {
            (Style::Endpoint(text), _) => self.out.write_str(text),
            (Style::Host, Some(address)) => write!(self.out, "{address}"),
            _ => write!(self.out, "{prefix}"),
        }
    }

    fn states(&mut self, states: CtStates, invert: bool) -> fmt::Result {
        write!(self.out, " -m conntrack{} --ctstate", not(invert))?;
        for (at, name) in states.names().enumerate() {
            write!(self.out, "{}{name}", if at == 0 { ' ' } else { ',' })?;
        }
        Ok(())
    }

    fn target(
        &mut self,
        table: Table,
        target: &Target,
        fragment: Option<&Fragment>,
        style: Style<'_>,
    ) -> fmt::Result {
        match target {
            Target::Accept => self.out.write_str(" -j ACCEPT"),
            Target::Drop => self.out.write_str(" -j DROP"),
            Target::Return => self.out.write_str(" -j RETURN"),
            Target::Reject(_) => self.out.write_str(" -j REJECT"),
            Target::Mark { value, mask: 0 } => {
                write!(self.out, " -j MARK --xor-mark 0x{value:08x}")
            }
            Target::Mark { value, .. } => write!(self.out, " -j MARK --or-mark 0x{value:08x}"),
            Target::Nat(Nat::Dnat(range)) => {
                self.out.push_str(" -j DNAT --to-destination ");
                let port = range.ports.map_or(0, |(port, _)| port);
                match (style, &range.addresses) {
                    (Style::Endpoint(text), _) => write!(self.out, "[{text}]:{port}"),
                    (_, NatAddresses::V4(address, _)) => write!(self.out, "{address}:{port}"),
                    (_, NatAddresses::V6(both)) => write!(self.out, "[{}]:{port}", both.0),
                    (_, NatAddresses::Keep) => Ok(()),
                }
            }
            Target::Nat(_) => self.out.write_str(" -j MASQUERADE --random-fully"),
            Target::Jump(chain) => {
                self.out.push_str(" -j ");
                self.chain_name(table, *chain, fragment);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn chain_name(&mut self, table: Table, id: ChainId, fragment: Option<&Fragment>) {
        let chain = match fragment {
            Some(fragment) if id.fragment != FragmentId::BASE => fragment.chain(table, id),
            _ => self.common.base.chain(table, id),
        };
        self.out.push_str(chain.name());
    }
}

/// Returns whether a chain's first rule marks traffic to the ClusterIP.
fn masquerades(chain: &Chain) -> bool {
    chain.name().starts_with("KUBE-SV")
        && chain.rules().first().is_some_and(|rule| rule.target() == &Target::Jump(MARK_MASQ))
}

fn not(invert: bool) -> &'static str {
    if invert { " !" } else { "" }
}
