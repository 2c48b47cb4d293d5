//! What is to be said about a packet, in no form yet.

use netfilter_model::exact::{Branch, Exploration, Limit, Limits, Share, Step, Way};
use netfilter_model::hook::Hook;
use netfilter_model::host::{Host as _, Route};
use netfilter_model::netns::{Answer, Drop, DropReason, Outcome};
use netfilter_model::packet::{IcmpError, L4, Packet, TcpFlags};
use netfilter_model::rule::{ChainId, Policy, RejectWith, RuleRef, TableId};
use netfilter_model::traverse::RULES_MAX;
use netfilter_model::tuple::Tuple;

use super::follow::{End, Symptom, origin, place};
use super::host::NodeHost;

/// Names what traces refer to.
pub(super) trait Book {
    /// Returns a table's name.
    fn table(&self, table: TableId) -> String;
    /// Returns a chain's name.
    fn chain(&self, table: TableId, chain: ChainId) -> String;
    /// Returns where a rule was read.
    fn place(&self, rule: RuleRef) -> Option<Place>;
    /// Returns a rule's own text.
    fn text(&self, rule: RuleRef) -> String;
    /// Returns what a rule tells the senders of packets that it rejects.
    fn reject_with(&self, rule: RuleRef) -> Option<RejectWith>;
}

/// A line of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Place {
    /// The file's name.
    pub(super) file: String,
    /// The line, from 1.
    pub(super) line: u32,
}

/// What the rules decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Verdict {
    Accept,
    Drop,
    Reject,
    /// The way was not followed to its end.
    Unknown,
}

impl Verdict {
    /// Returns its name, if it is known.
    pub(super) fn name(self) -> Option<&'static str> {
        Some(match self {
            Verdict::Accept => "accept",
            Verdict::Drop => "drop",
            Verdict::Reject => "reject",
            Verdict::Unknown => return None,
        })
    }
}

/// Everything about a packet.
#[derive(Debug)]
pub(super) struct Report {
    /// The packet, as it was given.
    pub(super) packet: String,
    /// How it comes in.
    pub(super) entry: String,
    /// Where no unsupported condition holds. What was not followed is the last of them.
    pub(super) outcomes: Vec<Found>,
    /// Where some do.
    pub(super) alternatives: Vec<Alternative>,
    /// How many more of these were not followed.
    pub(super) alternatives_left: usize,
    /// Rules that could matter and are not understood, and lines that were not read.
    pub(super) unsupported: Vec<Unread>,
    /// What was assumed.
    pub(super) assumptions: Vec<String>,
    /// What was not followed, and why.
    pub(super) limits: Vec<String>,
    /// More than one file of rules was given: lines need their file's name.
    pub(super) many_files: bool,
}

/// A branch beside the main one.
#[derive(Debug)]
pub(super) struct Alternative {
    /// Under which assumptions.
    pub(super) assuming: Vec<Assumed>,
    /// What becomes of the packet then.
    pub(super) outcomes: Vec<Found>,
}

/// Whether a rule's conditions hold that cannot be modelled.
#[derive(Clone, Debug)]
pub(super) struct Assumed {
    /// Where the rule was read.
    pub(super) place: Option<Place>,
    /// The rule.
    pub(super) text: String,
    /// They do.
    pub(super) matches: bool,
}

/// A rule or line that is not understood.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Unread {
    /// Where it stands.
    pub(super) place: Option<Place>,
    /// Its text.
    pub(super) text: String,
    /// What is not understood.
    pub(super) problem: String,
    /// The packet has met it, or it is lost.
    pub(super) matters: bool,
}

/// One outcome and the way to it.
#[derive(Debug)]
pub(super) struct Found {
    pub(super) probability: Share,
    pub(super) verdict: Verdict,
    pub(super) reject_with: Option<&'static str>,
    /// The new destination, if it was translated.
    pub(super) dnat: Option<String>,
    /// The new source, if it was translated; without a port that was drawn.
    pub(super) snat: Option<String>,
    pub(super) symptom: Symptom,
    /// Why the sender sees that.
    pub(super) because: String,
    /// Where the way ends.
    pub(super) end: String,
    /// How many rules a linear walk looks at, if it was followed.
    pub(super) rules_visited: Option<u32>,
    pub(super) path: Vec<PathStep>,
    /// How many steps more the way has.
    pub(super) steps_left_out: u64,
}

/// What kind of step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum StepKind {
    Hook,
    Rule,
    Policy,
    Route,
    Conntrack,
    Nat,
}

impl StepKind {
    /// Returns its name.
    pub(super) fn name(self) -> &'static str {
        match self {
            StepKind::Hook => "hook",
            StepKind::Rule => "rule",
            StepKind::Policy => "policy",
            StepKind::Route => "route",
            StepKind::Conntrack => "conntrack",
            StepKind::Nat => "nat",
        }
    }
}

/// A step of a way, with the packet as it left it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PathStep {
    pub(super) kind: StepKind,
    pub(super) hook: Hook,
    pub(super) table: Option<String>,
    pub(super) chain: Option<String>,
    pub(super) rule: Option<u32>,
    pub(super) place: Option<Place>,
    pub(super) text: Option<String>,
    pub(super) mark: u32,
    pub(super) src: String,
    pub(super) dst: String,
}

/// Returns the outcomes of a branch, which sum to one. Ways that differ only in what the answer
/// met are one.
pub(super) fn outcomes(
    branch: &Branch<End>,
    limits: Limits,
    asked: &Packet,
    host: &NodeHost,
    book: &impl Book,
) -> Vec<Found> {
    let mut kept: Vec<(&Way<End>, Found)> = Vec::new();
    for way in &branch.ways {
        // Ways with the same steps come one after the other.
        let mut alike = kept.iter_mut().rev().take_while(|(known, _)| way.has_steps_of(known));
        match alike.find(|(known, _)| known.outcome == way.outcome) {
            Some((_, same)) => {
                let sum = std::mem::replace(&mut same.probability, Share::zero());
                same.probability = sum + &way.probability;
            }
            None => kept.push((way, found(branch, way, asked, host, book))),
        }
    }
    let rest = branch.limit.map(|limit| Found {
        probability: branch.unfollowed.clone(),
        verdict: Verdict::Unknown,
        reject_with: None,
        dnat: None,
        snat: None,
        symptom: Symptom::Unknown,
        because: too_much(limit, limits),
        end: "not followed".to_owned(),
        rules_visited: None,
        path: Vec::new(),
        steps_left_out: 0,
    });
    kept.into_iter().map(|(_, found)| found).chain(rest).collect()
}

/// Returns which limit ways lie behind that were not followed.
fn too_much(limit: Limit, limits: Limits) -> String {
    let Limits { ways, rules, steps, .. } = limits;
    match limit {
        Limit::Ways => format!("the packet has more than {ways} ways"),
        Limit::Rules => format!("more than {rules} rules were looked at"),
        Limit::Steps => format!("the ways have more than {steps} steps"),
    }
}

/// Returns what was not followed of outcomes, in words.
pub(super) fn limits<'f>(outcomes: impl Iterator<Item = &'f Found>) -> Vec<String> {
    let mut limits: Vec<String> = Vec::new();
    for found in outcomes {
        let left_out = found.steps_left_out;
        let cut = (left_out > 0).then(|| {
            let kept = found.path.len();
            format!("of a way, {left_out} steps behind the first {kept} are left out")
        });
        let open = (found.verdict == Verdict::Unknown || found.symptom == Symptom::Unknown)
            .then(|| format!("{}: {}", found.end, found.because));
        for limit in open.into_iter().chain(cut) {
            if !limits.contains(&limit) {
                limits.push(limit);
            }
        }
    }
    limits
}

/// Returns the branches beside the main one.
pub(super) fn alternatives(
    exploration: &Exploration<End>,
    limits: Limits,
    asked: &Packet,
    host: &NodeHost,
    book: &impl Book,
) -> Vec<Alternative> {
    let alternative = |branch: &Branch<End>| Alternative {
        assuming: branch
            .assuming
            .iter()
            .map(|assumption| Assumed {
                place: book.place(assumption.rule),
                text: book.text(assumption.rule),
                matches: assumption.holds,
            })
            .collect(),
        outcomes: outcomes(branch, limits, asked, host, book),
    };
    exploration.alternatives.iter().map(alternative).collect()
}

fn found(
    branch: &Branch<End>,
    way: &Way<End>,
    asked: &Packet,
    host: &NodeHost,
    book: &impl Book,
) -> Found {
    let End { outcome, symptom, because } = &way.outcome;
    let mut steps = branch.steps(way);
    if let Some(answer) = steps.iter().skip(1).position(|step| is_answer(step, asked)) {
        steps.truncate(answer + 1);
    }
    let mut walk = Walk { packet: *asked, drawn: false, src_drawn: false, dst_drawn: false };
    let path: Vec<PathStep> = steps.iter().filter_map(|step| walk.step(step, host, book)).collect();
    let (verdict, reject_with, packet, end, rules_visited) = match outcome {
        Outcome::Sent(egress) => {
            let dev = host.device_name(egress.dev);
            let hop = egress.next_hop;
            let via = if hop == egress.packet.tuple.dst() {
                String::new()
            } else {
                format!(" via {hop}")
            };
            let end = format!("leaves by {}{via}", dev.as_str());
            (Verdict::Accept, None, egress.packet, end, egress.evaluated)
        }
        Outcome::Local(delivery) => {
            let end = "delivered on this node".to_owned();
            (Verdict::Accept, None, delivery.packet, end, delivery.evaluated)
        }
        Outcome::Dropped(drop) => {
            let with = match drop.reason {
                DropReason::Reject(rule) => book.reject_with(rule).map(reject_name),
                _ => None,
            };
            let verdict = match drop.reason {
                DropReason::Reject(_) => Verdict::Reject,
                DropReason::Unfinished(_) => Verdict::Unknown,
                _ => Verdict::Drop,
            };
            (verdict, with, drop.packet, end_of(drop, book), drop.evaluated)
        }
        Outcome::Rejected(rejection) => {
            let drop = &rejection.drop;
            let answer = match &rejection.answer {
                Answer::Sent(egress) => egress.packet.l4,
                Answer::Local(delivery) => delivery.packet.l4,
            };
            let with = match answer {
                L4::IcmpError { kind, .. } => reject_name(RejectWith::Icmp(kind)),
                _ => "tcp-reset",
            };
            (Verdict::Reject, Some(with), drop.packet, end_of(drop, book), drop.evaluated)
        }
    };
    let side = |tuple: &Tuple, of: fn(&Tuple) -> String| of(tuple);
    let changed = |of: fn(&Tuple) -> String| {
        let new = side(&packet.tuple, of);
        (new != side(&asked.tuple, of)).then_some(new)
    };
    let dnat =
        changed(place).map(|dst| if walk.dst_drawn { packet.tuple.dst().to_string() } else { dst });
    let snat = changed(origin)
        .map(|src| if walk.src_drawn { packet.tuple.src().to_string() } else { src });
    Found {
        probability: way.probability.clone(),
        verdict,
        reject_with,
        dnat,
        snat,
        symptom: *symptom,
        because: because.clone(),
        end,
        rules_visited: Some(rules_visited),
        path,
        steps_left_out: way.steps_left_out,
    }
}

/// Returns whether a step is the first of the refusal that goes back to a packet's sender.
fn is_answer(step: &Step, asked: &Packet) -> bool {
    let Step::Hook(Hook::Output, packet) = step else {
        return false;
    };
    let refusal = match packet.l4 {
        L4::IcmpError { .. } => true,
        L4::Tcp { flags, .. } => flags.contains(TcpFlags::RST) && packet.l4 != asked.l4,
        _ => false,
    };
    refusal && packet.tuple.dst() == asked.tuple.src()
}

/// Returns where and why a packet got no further.
fn end_of(drop: &Drop, book: &impl Book) -> String {
    let hook = drop.hook;
    let at = |rule: &RuleRef| {
        let (table, chain) = (book.table(rule.table), book.chain(rule.table, rule.chain));
        format!("{hook}, {table} {chain} rule {}", rule.number)
    };
    match &drop.reason {
        DropReason::Rule(rule) => format!("dropped in {}", at(rule)),
        DropReason::Reject(rule) => format!("rejected in {}", at(rule)),
        DropReason::Unfinished(rule) => {
            format!("given up after {RULES_MAX} rules in {}", at(rule))
        }
        DropReason::NoAddress(rule) => {
            format!("dropped in {}: no address to translate to", at(rule))
        }
        DropReason::Policy(table) => {
            format!("dropped in {hook} by the policy of {}", book.table(*table))
        }
        DropReason::DeviceChanged => "dropped: masqueraded on another device".to_owned(),
        DropReason::TableFull => "dropped: connection tracking is full".to_owned(),
        DropReason::Clash => "dropped: another connection has its tuple".to_owned(),
        DropReason::NoServer => "no real server of IPVS takes it".to_owned(),
        DropReason::ServerGone => "dropped by IPVS: its real server is gone".to_owned(),
        DropReason::Unreachable => "an unreachable route".to_owned(),
        DropReason::Prohibited => "a prohibiting route".to_owned(),
        DropReason::Blackhole => "dropped by the routing decision".to_owned(),
        DropReason::NoRoute => "no route".to_owned(),
        DropReason::Incomplete => "kept: a fragment that waits for others".to_owned(),
        DropReason::TtlExpired => "its hops are used up".to_owned(),
    }
}

/// Turns steps into lines, keeping track of the packet.
struct Walk {
    packet: Packet,
    /// A port was drawn since the last translation.
    drawn: bool,
    src_drawn: bool,
    dst_drawn: bool,
}

impl Walk {
    fn step(&mut self, step: &Step, host: &NodeHost, book: &impl Book) -> Option<PathStep> {
        match step {
            Step::Drawn => {
                self.drawn = true;
                None
            }
            Step::Hook(hook, packet) => {
                self.packet = *packet;
                Some(self.line(StepKind::Hook, *hook))
            }
            Step::Rule { hook, rule, after, .. } => {
                self.packet = *after;
                Some(PathStep {
                    table: Some(book.table(rule.table)),
                    chain: Some(book.chain(rule.table, rule.chain)),
                    rule: Some(rule.number),
                    place: book.place(*rule),
                    text: Some(book.text(*rule)),
                    ..self.line(StepKind::Rule, *hook)
                })
            }
            Step::Policy { hook, table, chain, policy } => Some(PathStep {
                table: Some(book.table(*table)),
                chain: Some(book.chain(*table, *chain)),
                text: Some(policy_name(*policy).to_owned()),
                ..self.line(StepKind::Policy, *hook)
            }),
            Step::Tracked { hook, info, new } => {
                let (info, direction) = (*info)?;
                let state = format!("{info:?}").to_uppercase();
                let text = match (new, direction) {
                    (true, _) | (_, netfilter_model::conntrack::Direction::Original) => state,
                    _ => format!("{state}, reply"),
                };
                Some(PathStep { text: Some(text), ..self.line(StepKind::Conntrack, *hook) })
            }
            Step::Translated { hook, before, after } => {
                let (old, new) = (&before.tuple, &after.tuple);
                let drawn = std::mem::take(&mut self.drawn);
                self.src_drawn |= drawn && origin(old) != origin(new);
                self.dst_drawn |= drawn && place(old) != place(new);
                self.packet = *after;
                let mut texts = Vec::new();
                if origin(old) != origin(new) {
                    texts.push(format!("source {}", self.src()));
                }
                if place(old) != place(new) {
                    texts.push(format!("destination {}", self.dst()));
                }
                let text = texts.join(", ");
                Some(PathStep { text: Some(text), ..self.line(StepKind::Nat, *hook) })
            }
            Step::Routed { hook, route, .. } => {
                let dev = |dev| host.device_name(dev);
                let dst = self.packet.tuple.dst();
                let text = match route {
                    Route::Local => "local".to_owned(),
                    Route::Forward { dev: out, next_hop } if *next_hop == dst => {
                        format!("dev {}", dev(*out).as_str())
                    }
                    Route::Forward { dev: out, next_hop } => {
                        format!("via {next_hop} dev {}", dev(*out).as_str())
                    }
                    Route::Bridged { dev: out, .. } => {
                        format!("bridged on {}", dev(*out).as_str())
                    }
                    Route::Unreachable => "unreachable".to_owned(),
                    Route::Prohibited => "prohibit".to_owned(),
                    Route::Blackhole => "dropped".to_owned(),
                    Route::NoRoute => "no route".to_owned(),
                };
                Some(PathStep { text: Some(text), ..self.line(StepKind::Route, *hook) })
            }
        }
    }

    fn src(&self) -> String {
        let tuple = &self.packet.tuple;
        if self.src_drawn { tuple.src().to_string() } else { origin(tuple) }
    }

    fn dst(&self) -> String {
        let tuple = &self.packet.tuple;
        if self.dst_drawn { tuple.dst().to_string() } else { place(tuple) }
    }

    fn line(&self, kind: StepKind, hook: Hook) -> PathStep {
        PathStep {
            kind,
            hook,
            table: None,
            chain: None,
            rule: None,
            place: None,
            text: None,
            mark: self.packet.mark,
            src: self.src(),
            dst: self.dst(),
        }
    }
}

/// Returns what `--reject-with` calls an answer.
fn reject_name(with: RejectWith) -> &'static str {
    match with {
        RejectWith::TcpReset => "tcp-reset",
        RejectWith::Icmp(kind) => match kind {
            IcmpError::NetUnreachable => "icmp-net-unreachable",
            IcmpError::HostUnreachable => "icmp-host-unreachable",
            IcmpError::ProtocolUnreachable => "icmp-proto-unreachable",
            IcmpError::PortUnreachable => "icmp-port-unreachable",
            IcmpError::FragmentationNeeded => "icmp-frag-needed",
            IcmpError::NetProhibited => "icmp-net-prohibited",
            IcmpError::HostProhibited => "icmp-host-prohibited",
            IcmpError::AdminProhibited => "icmp-admin-prohibited",
            IcmpError::TimeExceeded => "icmp-time-exceeded",
            IcmpError::Other(..) => "icmp",
        },
    }
}

fn policy_name(policy: Policy) -> &'static str {
    match policy {
        Policy::Accept => "ACCEPT",
        Policy::Drop => "DROP",
    }
}
