//! `rulelag explain`: what happens to one packet, and why.
//!
//! ```text
//! files ─input─▶ texts ─load─▶ rules ─facts─▶ ┐
//! packet ────────────────────────────────────▶ ├─ derive ─▶ host ─ follow ─▶ ways ─ report ─▶ text, json, dot
//! --host ─hostfile──────────────────────────▶ ┘
//! ```

mod derive;
mod dot;
mod facts;
mod follow;
mod hooks;
mod host;
mod hostfile;
mod input;
mod json;
mod load;
mod packet;
mod report;
mod scenario;
mod text;

use std::collections::BTreeSet;
use std::io::IsTerminal as _;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;

use netfilter_model::exact::{Exploration, Limits};
use netfilter_model::ipvs::{Ipvs, ServiceId};
use netfilter_model::netns::{Netns, Outcome};
use netfilter_model::rule::{Match, RuleRef};
use netfilter_model::time::SimTime;
use netfilter_model::tuple::{Family, Tuple};
use netfilter_model::{DeviceName, DeviceNameError};

use super::{Status, print};
use crate::cli::{Explain, Form};
use crate::file::Reader;
use crate::file::diagnostic::{Diagnostic, Diagnostics, Sources, Span};
use crate::library;
use facts::Facts;
use follow::{End, From, Ground, follow};
use host::NodeHost;
use input::{Input, Kind};
use load::Loaded;
use packet::Probe;
use report::{Book as _, Report, Unread};

/// What is needed to explain.
struct Session {
    sources: Sources,
    diagnostics: Diagnostics,
}

/// Nothing more can be done; the diagnostics say why.
struct Wrong;

/// Explains a packet, or prints the matrix of hooks.
pub(super) fn execute(args: &Explain) -> Status {
    let mut session = Session { sources: Sources::default(), diagnostics: Diagnostics::default() };
    let done = session.run(args);
    session.diagnostics.print(&session.sources);
    match done {
        Ok(text) if !session.diagnostics.has_errors() => {
            print(text);
            Status::Held
        }
        _ => Status::BadInput,
    }
}

impl Session {
    fn error(&mut self, code: &'static str, message: impl Into<String>, help: &str) -> Wrong {
        self.diagnostics.push(Diagnostic::placeless(code, message).help(help));
        Wrong
    }

    fn run(&mut self, args: &Explain) -> Result<String, Wrong> {
        let probe = args.packet.as_deref().map(|text| self.packet(text)).transpose();
        let scenario = self.scenario(args)?;
        let (inputs, known_host) = match scenario {
            Some((inputs, host)) => {
                let known = |input: Input| input.kind().map(|kind| (input, kind));
                (Ok(inputs.into_iter().filter_map(known).collect()), Some(host))
            }
            None => (self.inputs(args), None),
        };
        let (probe, inputs) = (probe?, inputs?);
        let family = match &probe {
            Some(probe) if probe.packet.tuple.src().is_ipv6() => Family::V6,
            _ => Family::V4,
        };
        let no_rules = inputs.is_empty();
        let loaded = Loaded::new(inputs, family).map_err(|message| {
            self.error("bad-rules", message, "the kernel would refuse these rules")
        })?;
        if args.hooks {
            return Ok(hooks::render((!no_rules).then_some(&loaded)));
        }
        let probe = probe.ok_or(Wrong)?;
        let facts = &loaded.facts;
        let in_dev = args.in_dev.as_deref().map(|name| self.device(name)).transpose()?;
        let mut host = if let Some(host) = known_host {
            host
        } else if args.host.is_empty() {
            let mut host = derive::host(&probe, in_dev, facts);
            add_virtual_servers(&mut host, &loaded.ipvs);
            host
        } else {
            self.host_files(&args.host)?
        };
        let from = self.entry(in_dev, &mut host)?;
        let report = explain(&loaded, facts, &host, &probe, from, Limits::default());
        Ok(match args.output {
            Form::Text => {
                let styled =
                    std::io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none();
                text::render(&report, styled)
            }
            Form::Json => format!("{:#}\n", json::render(&report)),
            Form::Dot => dot::render(&report),
        })
    }

    fn packet(&mut self, text: &str) -> Result<Probe, Wrong> {
        packet::parse(text).map_err(|error| {
            let file = self.sources.add("--packet", text.to_owned());
            let span = Span::new(file, error.start, error.end);
            self.diagnostics
                .push(Diagnostic::error("bad-packet", span, error.message).help(error.help));
            Wrong
        })
    }

    /// Returns the node of a scenario, if the rules are to come from one.
    fn scenario(&mut self, args: &Explain) -> Result<Option<(Vec<Input>, NodeHost)>, Wrong> {
        let [name] = &args.rules[..] else {
            return Ok(None);
        };
        let built_in = library::get(name).is_some() && !Path::new(name).exists();
        let is_scenario = built_in
            || (name != "-"
                && Input::open(name).is_ok_and(|input| input.kind() == Some(Kind::Scenario)));
        if !is_scenario {
            return match &args.node {
                None => Ok(None),
                Some(_) => Err(self.error(
                    "no-scenario",
                    format!("{name} is no scenario: it has no nodes"),
                    "--node belongs to a scenario; rules of one node need none",
                )),
            };
        }
        let mut reader = Reader::default();
        let scenario = reader.scenario(name, &[]);
        let failed = reader.finish();
        let scenario = scenario.filter(|_| !failed).ok_or(Wrong)?;
        let node = scenario::node(&scenario.config, &scenario.name, args.node.as_deref());
        node.map(Some).map_err(|(message, help)| self.error("no-node", message, &help))
    }

    /// Reads all files that are given, and tells what they are.
    fn inputs(&mut self, args: &Explain) -> Result<Vec<(Input, Kind)>, Wrong> {
        let mut inputs = Vec::new();
        let mut wrong = false;
        let named = args.rules.iter().map(|name| (name, None));
        let conntrack = args.conntrack.iter().map(|name| (name, Some(Kind::Conntrack)));
        let ipset = args.ipset.iter().map(|name| (name, Some(Kind::Ipset)));
        let ipvs = args.ipvs.iter().map(|name| (name, Some(Kind::Ipvs)));
        for (name, kind) in named.chain(conntrack).chain(ipset).chain(ipvs) {
            let input = match Input::open(name) {
                Ok(input) => input,
                Err(message) => {
                    self.error("unreadable", message, "give the name of a file, or - for stdin");
                    wrong = true;
                    continue;
                }
            };
            match kind.or_else(|| input.kind()) {
                Some(kind) => inputs.push((input, kind)),
                None => {
                    let message = format!("cannot tell what {} is", input.name);
                    self.error(
                        "unknown-text",
                        message,
                        "rules are the output of iptables-save, iptables -S, iptables -L, nft list, \
                         ipset save, ipvsadm or conntrack -L, or a scenario",
                    );
                    wrong = true;
                }
            }
        }
        if wrong { Err(Wrong) } else { Ok(inputs) }
    }

    fn device(&mut self, name: &str) -> Result<DeviceName, Wrong> {
        DeviceName::parse(name).map_err(|error: DeviceNameError| {
            self.error("bad-device", error.to_string(), "as in `--in cni0`")
        })
    }

    fn host_files(&mut self, files: &[String]) -> Result<NodeHost, Wrong> {
        hostfile::read(files, &mut self.sources, &mut self.diagnostics).ok_or(Wrong)
    }

    fn entry(&mut self, in_dev: Option<DeviceName>, host: &mut NodeHost) -> Result<From, Wrong> {
        let Some(name) = in_dev else {
            return Ok(From::Local);
        };
        match host.find(name) {
            Some(dev) => Ok(From::Device(dev)),
            None => {
                let devices: Vec<&str> =
                    host.devices_mut().iter().map(|device| device.name.as_str()).collect();
                let known = devices.join(", ");
                let message = format!("the host has no device {}", name.as_str());
                Err(self.error("no-device", message, &format!("it has {known}")))
            }
        }
    }
}

/// Follows the packet and gathers what there is to say.
fn explain(
    loaded: &Loaded,
    facts: &Facts,
    host: &NodeHost,
    probe: &Probe,
    from: From,
    limits: Limits,
) -> Report {
    let mut netns = Netns::default();
    netns.memory_mut().sets = loaded.sets.clone();
    let now = SimTime::ZERO;
    for listing in &loaded.connections {
        // Of two entries with one tuple, the first counts.
        let _ = netns.conntrack_mut().insert(now, listing);
    }
    let ground = Ground { rules: loaded, host, facts, netns: &netns, now };
    let (exploration, assumed) = follow(&ground, probe, from, limits);
    let asked = &probe.packet;
    let outcomes = report::outcomes(&exploration.main, limits, asked, host, loaded);
    let alternatives = report::alternatives(&exploration, limits, asked, host, loaded);
    let beside = alternatives.iter().flat_map(|alternative| &alternative.outcomes);
    let limits = report::limits(outcomes.iter().chain(beside));
    let mut assumptions: Vec<String> = Vec::new();
    if probe.port_assumed {
        assumptions.push(format!("the packet comes from port {}", asked.tuple.src_part));
    }
    assumptions.extend(host.assumptions().map(str::to_owned));
    assumptions.extend(assumed.texts());
    if loaded.connections.is_empty() {
        assumptions.push("no connection is known to the node (--conntrack gives some)".to_owned());
    }
    if loaded.has_match(keeps_state) {
        assumptions.push(
            "lists of recent are empty, buckets of limit full, counters of nth at their start"
                .to_owned(),
        );
    }
    let mut unsupported = unread(&exploration.asked(), loaded);
    unsupported.extend(virtual_server(&loaded.ipvs, &exploration));
    Report {
        packet: describe(probe),
        entry: match from {
            From::Device(dev) => format!("in by {}", host.get(dev).name.as_str()),
            From::Local => "made on the node".to_owned(),
        },
        outcomes,
        alternatives,
        alternatives_left: exploration.alternatives_left,
        unsupported,
        assumptions,
        limits,
        many_files: loaded.has_many_files(),
    }
}

/// IPVS takes packets that are for the host: its virtual addresses are the host's own.
fn add_virtual_servers(host: &mut NodeHost, ipvs: &Ipvs) {
    let addresses: BTreeSet<IpAddr> = ipvs
        .services
        .iter()
        .filter_map(|service| match service.id {
            ServiceId::Address(_, address, _) => Some(address),
            ServiceId::Mark { .. } => None,
        })
        .collect();
    if addresses.is_empty() {
        return;
    }
    let dev = host.device(DeviceName::parse("kube-ipvs0").expect("a device name"));
    let id = host.assume("kube-ipvs0 has the addresses of all virtual servers".to_owned());
    for address in addresses {
        if !host.is_own(address) {
            let len = if address.is_ipv4() { 32 } else { 128 };
            host.address(dev, address, len, Some(id));
        }
    }
}

/// Returns what is not modelled of a packet that reaches a virtual server.
fn virtual_server(ipvs: &Ipvs, exploration: &Exploration<End>) -> Option<Unread> {
    let reached = |tuple: &Tuple| {
        ipvs.services.iter().find(|service| match service.id {
            ServiceId::Address(protocol, address, port) => {
                (protocol, address, port) == (tuple.protocol, tuple.dst(), tuple.dst_part)
            }
            ServiceId::Mark { .. } => false,
        })
    };
    let service = exploration.main.ways.iter().find_map(|way| match &way.outcome.outcome {
        Outcome::Local(delivery) => reached(&delivery.packet.tuple),
        _ => None,
    })?;
    let servers: Vec<String> = service
        .destinations
        .iter()
        .map(|server| SocketAddr::new(server.address, server.port).to_string())
        .collect();
    Some(Unread {
        place: None,
        text: format!("{} {}, to {}", service.id, service.scheduler, servers.join(", ")),
        problem: "behind INPUT's filter, IPVS sends the packet on, which is not followed"
            .to_owned(),
        matters: true,
    })
}

/// Returns what is not understood: what the packet has met, what is lost, and then the rest.
fn unread(met: &[RuleRef], loaded: &Loaded) -> Vec<Unread> {
    let mut unread: Vec<Unread> = Vec::new();
    for &rule in met {
        let (place, text) = (loaded.place(rule), loaded.text(rule));
        if place.is_some() && unread.iter().any(|known| known.place == place) {
            continue;
        }
        let problem = "may match, or not".to_owned();
        unread.push(Unread { place, text, problem, matters: true });
    }
    let rules = loaded.places();
    let mut others = Vec::new();
    for remark in &loaded.remarks {
        let place = remark.place.as_ref();
        if let Some(known) =
            unread.iter_mut().find(|known| place.is_some() && known.place == remark.place)
        {
            known.problem.clone_from(&remark.problem);
            continue;
        }
        let is_rule = place.is_some_and(|place| {
            loaded.file(&place.file).is_some_and(|file| rules.contains(&(file, place.line)))
        });
        others.push(Unread { matters: !is_rule, ..remark.clone() });
    }
    others.sort_by_key(|unread| !unread.matters);
    unread.extend(others);
    unread
}

/// Returns whether a condition depends on packets before this one.
fn keeps_state(condition: &Match) -> bool {
    matches!(
        condition,
        Match::Recent(_) | Match::Limit(_) | Match::Hashlimit(_) | Match::Nth { .. }
    )
}

/// Returns a packet in the words of the command line.
fn describe(probe: &Probe) -> String {
    let packet = &probe.packet;
    let tuple = &packet.tuple;
    let mut text =
        format!("{} {} > {}", tuple.protocol, follow::origin(tuple), follow::place(tuple));
    if let Some(flags) = packet.tcp_flags() {
        text.push_str(&format!(" {flags:?}"));
    }
    if tuple.protocol.is_icmp() {
        let (kind, code) = tuple.icmp_kind();
        text.push_str(&format!(" type {kind} code {code} id {}", tuple.src_part));
    }
    if packet.mark != 0 {
        text.push_str(&format!(" mark {:#x}", packet.mark));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Four ways, each with a mark of its own, and four more if the condition holds.
    const RULES: &str = "\
*filter
:FORWARD ACCEPT [0:0]
-A FORWARD -d 10.244.2.7 -m statistic --mode random --probability 0.5 -j MARK --set-xmark 0x1/0x1
-A FORWARD -d 10.244.2.7 -m statistic --mode random --probability 0.25 -j MARK --set-xmark 0x2/0x2
-A FORWARD -d 10.244.2.7 -m string --string a --algo bm -j MARK --set-xmark 0x4/0x4
COMMIT
";

    fn report(limits: Limits) -> serde_json::Value {
        let input = Input { name: "rules".to_owned(), text: RULES.to_owned() };
        let inputs = vec![(input, Kind::IptablesRules)];
        let Ok(loaded) = Loaded::new(inputs, Family::V4) else { panic!("rules are read") };
        let probe = packet::parse("tcp 10.244.1.5 > 10.244.2.7:80").expect("a packet");
        let cni0 = DeviceName::parse("cni0").expect("a name");
        let host = derive::host(&probe, Some(cni0), &loaded.facts);
        let from = From::Device(host.find(cni0).expect("the packet's device"));
        json::render(&explain(&loaded, &loaded.facts, &host, &probe, from, limits))
    }

    fn shares(outcomes: &serde_json::Value) -> Vec<(String, bool)> {
        let outcomes = outcomes.as_array().expect("a list").iter();
        outcomes
            .map(|outcome| {
                let known = !outcome["verdict"].is_null();
                assert_eq!(known, !outcome["symptom"].is_null());
                assert_eq!(known, !outcome["rules_visited"].is_null());
                (outcome["probability"].as_str().expect("a fraction").to_owned(), known)
            })
            .collect()
    }

    #[test]
    fn what_is_not_followed_has_its_share() {
        let told = |shares: &[(&str, bool)]| -> Vec<(String, bool)> {
            shares.iter().map(|(share, known)| ((*share).to_owned(), *known)).collect()
        };
        let all = report(Limits::default());
        let four = told(&[("1/8", true), ("3/8", true), ("1/8", true), ("3/8", true)]);
        assert_eq!(shares(&all["outcomes"]), four);
        assert_eq!(shares(&all["alternatives"][0]["outcomes"]), four);
        assert_eq!(all["limits"], serde_json::json!([]));

        let part = report(Limits { ways: 3, ..Limits::default() });
        let three = told(&[("1/8", true), ("3/8", true), ("1/8", true), ("3/8", false)]);
        assert_eq!(shares(&part["outcomes"]), three);
        let why = "not followed: the packet has more than 3 ways";
        assert_eq!(part["limits"], serde_json::json!([why]));

        let part = report(Limits { ways: 5, ..Limits::default() });
        assert_eq!(shares(&part["outcomes"]), four);
        let one = told(&[("1/8", true), ("7/8", false)]);
        assert_eq!(shares(&part["alternatives"][0]["outcomes"]), one);
    }
}
