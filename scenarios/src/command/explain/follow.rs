//! A packet's ways through a node, and what its sender would see at the end of each.

use std::collections::BTreeSet;
use std::net::IpAddr;

use netfilter_model::DeviceId;
use netfilter_model::exact::{Exploration, Limits, Script, explore};
use netfilter_model::hook::Hook;
use netfilter_model::host::{Draws, Env, Host, Ingress, Note, Route, RouteQuery};
use netfilter_model::netns::{Answer, Delivery, Drop, DropReason, Egress, Netns, Outcome};
use netfilter_model::packet::{IcmpError, L4, Packet, TcpFlags};
use netfilter_model::rule::{Probability, RuleRef, Rules};
use netfilter_model::time::SimTime;
use netfilter_model::traverse::Lookup;
use netfilter_model::tuple::{Protocol, Tuple};

use super::facts::Facts;
use super::host::{NodeHost, is_loopback};
use super::packet::Probe;

/// Where a packet comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum From {
    /// It comes in by a device.
    Device(DeviceId),
    /// It is made on the node.
    Local,
}

/// What the sender sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Symptom {
    /// An answer.
    Ok,
    /// An error at once: nobody is there, or may be talked to.
    Refused,
    /// An error at once: there is no way.
    HostUnreachable,
    /// Nothing.
    Timeout,
    /// The way was not followed to its end.
    Unknown,
}

impl Symptom {
    /// Returns its name, if it is known.
    pub(super) fn name(self) -> Option<&'static str> {
        Some(match self {
            Symptom::Ok => "ok",
            Symptom::Refused => "refused",
            Symptom::HostUnreachable => "host_unreachable",
            Symptom::Timeout => "timeout",
            Symptom::Unknown => return None,
        })
    }
}

/// Where a way ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct End {
    /// What became of the packet.
    pub(super) outcome: Outcome,
    /// What its sender sees.
    pub(super) symptom: Symptom,
    /// Why.
    pub(super) because: String,
}

/// What was assumed about the world around the node.
#[derive(Clone, Debug, Default)]
pub(super) struct Trust {
    /// Who answers by way of this node.
    backends: BTreeSet<String>,
    others: BTreeSet<String>,
}

impl Trust {
    /// Returns the assumptions, in words.
    pub(super) fn texts(self) -> Vec<String> {
        const NAMED_MAX: usize = 3;
        let count = self.backends.len();
        let names: Vec<String> = self.backends.into_iter().take(NAMED_MAX).collect();
        let backends = match count {
            0 => None,
            1 => Some(format!("{} answers, and its answers come back through this node", names[0])),
            2..=NAMED_MAX => {
                let names = names.join(", ");
                Some(format!("{names} answer, and their answers come back through this node"))
            }
            _ => Some(format!(
                "all {count} backends answer, and their answers come back through this node"
            )),
        };
        backends.into_iter().chain(self.others).collect()
    }
}

/// What a packet meets.
pub(super) struct Ground<'g, R> {
    /// The rules.
    pub(super) rules: &'g R,
    /// The host around them.
    pub(super) host: &'g NodeHost,
    /// What the rules tell of their surroundings.
    pub(super) facts: &'g Facts,
    /// Its state as the packet comes.
    pub(super) netns: &'g Netns,
    /// The time.
    pub(super) now: SimTime,
}

/// All ways of a packet, and what was assumed about the world around the node.
pub(super) fn follow<R: Rules>(
    ground: &Ground<'_, R>,
    probe: &Probe,
    from: From,
    limits: Limits,
) -> (Exploration<End>, Trust) {
    let mut assumed = Trust::default();
    let exploration = explore(limits, |script| {
        let mut netns = ground.netns.clone();
        netns.set_lookup(Lookup::RuleByRule);
        let outcome = enter(ground, &mut netns, probe, from, script);
        script.looked_at(outcome.evaluated());
        let mut seer =
            Seer { ground, probe, from, netns, draws: Quiet(script), assumed: &mut assumed };
        let (symptom, because) = seer.look(&outcome);
        End { outcome, symptom, because }
    });
    (exploration, assumed)
}

fn enter<R: Rules>(
    ground: &Ground<'_, R>,
    netns: &mut Netns,
    probe: &Probe,
    from: From,
    draws: &mut Script,
) -> Outcome {
    let Ground { rules, host, now, .. } = *ground;
    let mut env = Env { now, host, rules, draws };
    match from {
        From::Device(dev) => {
            let ingress = Ingress { source: probe.mac, ..Ingress::by(dev) };
            netns.receive_frame(probe.packet, ingress, &mut env)
        }
        From::Local => {
            let route = host.route(first_query(&probe.packet));
            netns.send_from(probe.packet, Some(probe.socket), route, &mut env)
        }
    }
}

fn first_query(packet: &Packet) -> RouteQuery {
    let Tuple { .. } = packet.tuple;
    RouteQuery { dst: packet.tuple.dst(), src: packet.tuple.src(), mark: packet.mark, in_dev: None }
}

/// Draws of a packet whose steps are not part of the explained packet's way.
struct Quiet<'s>(&'s mut Script);

impl Draws for Quiet<'_> {
    fn draw(&mut self, ordinal: u32) -> u64 {
        // Beyond the script: a port that is drawn for an answer is no step of the packet's way.
        u64::from(ordinal).wrapping_mul(0x9e37_79b9_7f4a_7c15)
    }

    fn chance(&mut self, ordinal: u32, probability: Probability) -> bool {
        self.0.chance(ordinal, probability)
    }

    fn below(&mut self, ordinal: u32, modulus: u32) -> u32 {
        self.0.below(ordinal, modulus)
    }

    fn unsupported(&mut self, rule: RuleRef) -> bool {
        self.0.unsupported(rule)
    }

    fn note(&mut self, _: Note<'_>) {}
}

/// Looks from the sender's side.
struct Seer<'a, R> {
    ground: &'a Ground<'a, R>,
    probe: &'a Probe,
    from: From,
    netns: Netns,
    draws: Quiet<'a>,
    assumed: &'a mut Trust,
}

type Sight = (Symptom, String);

/// What is said of a walk that was given up.
const NOT_FOLLOWED: &str = "chains call each other too often to be followed to the end";

impl<R: Rules> Seer<'_, R> {
    fn look(&mut self, outcome: &Outcome) -> Sight {
        match outcome {
            Outcome::Rejected(rejection) => self.told(&rejection.answer),
            Outcome::Dropped(drop) => self.dropped(drop),
            Outcome::Local(delivery) => self.delivered(delivery),
            Outcome::Sent(egress) => self.sent(egress),
        }
    }

    fn tuple(&self) -> Tuple {
        self.probe.packet.tuple
    }

    fn assume(&mut self, text: impl Into<String>) {
        self.assumed.others.insert(text.into());
    }

    /// What a rejected packet's sender makes of the answer.
    fn told(&mut self, answer: &Answer) -> Sight {
        let (packet, reaches) = match answer {
            Answer::Sent(egress) => (&egress.packet, self.from == From::Device(egress.dev)),
            Answer::Local(delivery) => (&delivery.packet, self.from == From::Local),
        };
        if !reaches || packet.tuple.dst() != self.tuple().src() {
            let to = packet.tuple.dst();
            return (Symptom::Timeout, format!("the refusal goes to {to}, another way"));
        }
        self.error_seen(packet)
    }

    fn error_seen(&self, packet: &Packet) -> Sight {
        let protocol = self.tuple().protocol;
        let L4::IcmpError { kind, .. } = packet.l4 else {
            return (Symptom::Refused, "the connection is reset".to_owned());
        };
        if self.from == From::Local && protocol != Protocol::TCP {
            return (Symptom::Refused, "sending fails: operation not permitted".to_owned());
        }
        let opening = self.probe.packet.tcp_flags().map(is_opening);
        let symptom = error_symptom(kind, protocol, opening);
        let name = error_name(kind);
        let because = match symptom {
            Symptom::Timeout => format!("told \"{name}\", which it ignores"),
            _ => format!("told \"{name}\""),
        };
        (symptom, because)
    }

    fn dropped(&mut self, drop: &Drop) -> Sight {
        let local = self.from == From::Local;
        let protocol = self.tuple().protocol;
        if let DropReason::Unfinished(_) = drop.reason {
            return (Symptom::Unknown, NOT_FOLLOWED.to_owned());
        }
        if local && drop.hook == Hook::Output {
            let route = self.ground.host.route(first_query(&self.probe.packet));
            if let Some(sight) = refused_at_once(route) {
                return sight;
            }
            if protocol != Protocol::TCP {
                return match drop.reason {
                    DropReason::Blackhole | DropReason::NoRoute | DropReason::Unreachable => {
                        (Symptom::HostUnreachable, "sending fails: no way out".to_owned())
                    }
                    _ => (Symptom::Refused, "sending fails: operation not permitted".to_owned()),
                };
            }
        }
        let because = match drop.reason {
            DropReason::Reject(_) => "rejected, but the answer does not get through",
            DropReason::Blackhole => "the routing decision drops it silently",
            DropReason::TableFull => "connection tracking is full",
            DropReason::Clash => "another connection has its tuple",
            DropReason::NoAddress(_) => "the device has no address to masquerade behind",
            _ => "dropped silently",
        };
        (Symptom::Timeout, because.to_owned())
    }

    fn delivered(&mut self, delivery: &Delivery) -> Sight {
        let tuple = delivery.packet.tuple;
        let host = self.ground.host;
        let mut listening = true;
        if tuple.protocol.has_ports() {
            let there = (tuple.dst(), tuple.dst_part);
            let known = host.listeners.as_ref().map(|listeners| {
                listeners.iter().any(|socket| {
                    socket.protocol == tuple.protocol
                        && socket.port == there.1
                        && socket.address.is_none_or(|addr| addr == there.0)
                })
            });
            listening = known.unwrap_or_else(|| self.presumably_listens(&tuple));
            if known == Some(true) || (known.is_none() && listening) {
                self.assume(format!("a socket at {} answers", place(&tuple)));
            } else if known.is_none() {
                self.assume(format!("nothing listens at {}", place(&tuple)));
            }
        }
        let reply = self.reply_to(&delivery.packet, listening);
        let Some(reply) = reply else {
            return (Symptom::Ok, "delivered".to_owned());
        };
        let Ground { rules, host, now, .. } = *self.ground;
        let route = host.route(first_query(&reply));
        let mut env = Env { now, host, rules, draws: &mut self.draws };
        let outcome = self.netns.send_from(reply, None, route, &mut env);
        let (symptom, because) = self.answered(&outcome, &tuple);
        if symptom == Symptom::Ok && !listening {
            return (Symptom::Refused, format!("nothing listens at {}", place(&tuple)));
        }
        (symptom, because)
    }

    /// Whether a socket of the host takes a packet, as far as rules let one guess.
    fn presumably_listens(&self, tuple: &Tuple) -> bool {
        let translated =
            (tuple.dst(), tuple.dst_part) != (self.tuple().dst(), self.tuple().dst_part);
        let node_port = (30_000..=32_767).contains(&tuple.dst_part);
        translated || !node_port
    }

    fn sent(&mut self, egress: &Egress) -> Sight {
        let Egress { packet, dev, .. } = egress;
        let host = self.ground.host;
        let (asked, now) = (self.tuple(), packet.tuple);
        let translated = now.dst() != asked.dst();
        if is_loopback(now.src()) {
            let because = format!("leaves with source {}, which {} drops", now.src(), now.dst());
            return (Symptom::Timeout, because);
        }
        if now.dst() == asked.src() && self.from != From::Local {
            if now.src() == now.dst() {
                let because = "reaches its own sender with the sender's address as its source, and \
                               is dropped there";
                return (Symptom::Timeout, because.to_owned());
            }
            if self.from == From::Device(*dev) && host.get(*dev).bridge && host.bridge_nf {
                let name = host.get(*dev).name;
                if !host.get(*dev).hairpin {
                    let because = "the bridge port does not send frames back (no hairpin mode)";
                    return (Symptom::Timeout, because.to_owned());
                }
                let name = name.as_str();
                self.assume(format!("the port of {name} is in hairpin mode"));
            }
        }
        if !translated && self.ground.facts.virtuals.contains(&now.dst()) {
            let because = format!("{} is a virtual address: nobody has it", now.dst());
            return (Symptom::Timeout, because);
        }
        if !translated && let Some(range) = self.ground.facts.near_virtual(now.dst()) {
            self.assume(format!("{range} is the Service range: nobody has {}", now.dst()));
            let because = format!("{} is a virtual address of no Service", now.dst());
            return (Symptom::Timeout, because);
        }
        let from_here = self.from == From::Device(*dev);
        if from_here
            && host.get(*dev).bridge
            && !host.bridge_nf
            && now.src() == asked.src()
            && translated
        {
            let because = format!(
                "{} answers past this node (bridge-nf-call-iptables = 0), from its own address",
                now.dst()
            );
            return (Symptom::Timeout, because);
        }
        self.assumed.backends.insert(place(&now));
        let Some(reply) = self.reply_to(packet, true) else {
            return (Symptom::Ok, "passed on".to_owned());
        };
        let Ground { rules, host, now: time, .. } = *self.ground;
        let mut env = Env { now: time, host, rules, draws: &mut self.draws };
        let outcome = self.netns.receive(reply, *dev, &mut env);
        self.answered(&outcome, &now)
    }

    /// Returns the answer of whoever got the packet; nothing if none is due.
    fn reply_to(&self, packet: &Packet, listening: bool) -> Option<Packet> {
        let tuple = packet.tuple.reply();
        Some(match packet.l4 {
            L4::Tcp { flags, .. } if flags.contains(TcpFlags::RST) => return None,
            L4::Tcp { .. } if !listening => Packet::tcp(2, tuple, TcpFlags::RST | TcpFlags::ACK),
            L4::Tcp { flags, .. } if is_opening(flags) => Packet::tcp(2, tuple, TcpFlags::SYN_ACK),
            L4::Tcp { .. } => Packet::tcp(2, tuple, TcpFlags::ACK),
            L4::Udp if !listening => {
                Packet::icmp_error(packet, IcmpError::PortUnreachable, packet.tuple.dst())
            }
            L4::Udp => Packet::udp(2, tuple, 60),
            // Only a query has an answer.
            L4::IcmpEcho if tuple.dst_part == packet.tuple.dst_part => return None,
            L4::IcmpEcho => Packet::icmp_echo(2, tuple),
            L4::IcmpError { .. } | L4::Other => return None,
        })
    }

    /// What the sender makes of an answer that went back through the node.
    fn answered(&mut self, outcome: &Outcome, by: &Tuple) -> Sight {
        let lost = |why: &str| (Symptom::Timeout, format!("the answer of {} {why}", place(by)));
        let (packet, reaches) = match outcome {
            Outcome::Dropped(Drop { reason: DropReason::Unfinished(_), .. }) => {
                let answer = format!("the answer of {}: {NOT_FOLLOWED}", place(by));
                return (Symptom::Unknown, answer);
            }
            Outcome::Dropped(drop) => {
                let place = drop_place(drop);
                return lost(&format!("is dropped {place}"));
            }
            Outcome::Rejected(rejection) => {
                let place = drop_place(&rejection.drop);
                return lost(&format!("is rejected {place}"));
            }
            Outcome::Sent(egress) => (&egress.packet, self.from == From::Device(egress.dev)),
            Outcome::Local(delivery) => (&delivery.packet, self.from == From::Local),
        };
        let asked = self.tuple();
        if !reaches || packet.tuple.dst() != asked.src() {
            return lost(&format!("goes to {}, another way", packet.tuple.dst()));
        }
        if packet.is_icmp_error() {
            return (Symptom::Ok, "answered".to_owned());
        }
        if packet.tuple != asked.reply() {
            let src = place(&packet.tuple.reply());
            return lost(&format!("arrives as from {src}, which its sender did not ask"));
        }
        (Symptom::Ok, format!("{} answers", place(by)))
    }
}

/// Returns where a packet was dropped: at a hook, in a table.
fn drop_place(drop: &Drop) -> String {
    let by = match drop.reason {
        DropReason::Policy(_) => " by a policy".to_owned(),
        DropReason::Rule(_) | DropReason::Reject(_) => " by a rule".to_owned(),
        DropReason::Blackhole => " by the routing decision".to_owned(),
        _ => String::new(),
    };
    format!("in {}{by}", drop.hook)
}

fn is_opening(flags: TcpFlags) -> bool {
    flags.masked(TcpFlags::FIN_SYN_RST_ACK) == TcpFlags::SYN
}

/// What a local sender learns at once of a first routing decision that fails.
fn refused_at_once(route: Route) -> Option<Sight> {
    let because = match route {
        Route::NoRoute => "connecting fails: network is unreachable",
        Route::Unreachable => "connecting fails: no route to host",
        Route::Prohibited => "connecting fails: permission denied",
        Route::Blackhole => "connecting fails: invalid argument",
        Route::Local | Route::Forward { .. } | Route::Bridged { .. } => return None,
    };
    Some((Symptom::HostUnreachable, because.to_owned()))
}

/// What an ICMP error means to a sender; `opening` tells whether a TCP segment opens a connection.
// Kernel: icmp.c, icmp_err_convert; tcp_ipv4.c, tcp_v4_err; udp.c, __udp4_lib_err
fn error_symptom(kind: IcmpError, protocol: Protocol, opening: Option<bool>) -> Symptom {
    let hard = match kind {
        IcmpError::PortUnreachable | IcmpError::ProtocolUnreachable => Symptom::Refused,
        IcmpError::FragmentationNeeded => return Symptom::Timeout,
        _ => Symptom::HostUnreachable,
    };
    let soft = matches!(
        kind,
        IcmpError::NetUnreachable | IcmpError::HostUnreachable | IcmpError::TimeExceeded
    );
    match opening {
        // Only a connecting socket gives up.
        Some(false) => Symptom::Timeout,
        Some(true) => hard,
        None if protocol.is_icmp() => hard,
        None if soft => Symptom::Timeout,
        None => hard,
    }
}

/// Returns what an ICMP error is called.
pub(super) fn error_name(kind: IcmpError) -> &'static str {
    match kind {
        IcmpError::NetUnreachable => "network unreachable",
        IcmpError::HostUnreachable => "host unreachable",
        IcmpError::ProtocolUnreachable => "protocol unreachable",
        IcmpError::PortUnreachable => "port unreachable",
        IcmpError::FragmentationNeeded => "fragmentation needed",
        IcmpError::NetProhibited => "network prohibited",
        IcmpError::HostProhibited => "host prohibited",
        IcmpError::AdminProhibited => "administratively prohibited",
        IcmpError::TimeExceeded => "time to live exceeded",
        IcmpError::Other(..) => "another ICMP error",
    }
}

/// Returns the destination of a packet: an address, and a port if it has one.
pub(super) fn place(tuple: &Tuple) -> String {
    side(tuple.dst(), tuple.protocol.has_ports().then_some(tuple.dst_part))
}

/// Returns the source of a packet: an address, and a port if it has one.
pub(super) fn origin(tuple: &Tuple) -> String {
    side(tuple.src(), tuple.protocol.has_ports().then_some(tuple.src_part))
}

fn side(addr: IpAddr, port: Option<u16>) -> String {
    match (addr, port) {
        (addr, None) => addr.to_string(),
        (IpAddr::V4(addr), Some(port)) => format!("{addr}:{port}"),
        (IpAddr::V6(addr), Some(port)) => format!("[{addr}]:{port}"),
    }
}
