//! Runs a case in both arms and says where they differ.
//!
//! The kernel goes first. Where random rules decide, it goes one of several ways; the model goes all
//! of them, and those that the kernel did not go are left: a case fails when none remains.
//!
//! Ports that are chosen at random make no ways of their own, or there would be too many. Some of
//! them meet what is there already, and change more than a number: when no way remains, the ports
//! are drawn anew some times.

mod shares;

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::net::IpAddr;
use std::time::Duration;

use netfilter_model::exact::{Limits, Script, explore};
use netfilter_model::host::Draws;
use netfilter_model::packet::{IcmpError, L4, Packet, Segment, TcpFlags};
use netfilter_model::rule::{Probability, RuleRef};
use netfilter_model::tuple::{Protocol, Tuple};

use super::case::{Case, Complaint, Opening, Step, Transport, flags};
use super::connection::{self, Connection};
use super::model::{Model, Rules, World};
use super::place::{CNI0, NODE_UDP, Place, Settings, device_mac};
use super::rig::{Rig, RigError};
use super::seen::{Ports, Seen, all_same};

/// So many states of the model are followed. One that agrees to the end is enough; only if none
/// does, those that were not followed leave a case undecided.
const WORLDS_MAX: usize = 192;

/// So often ports are drawn until the arms agree.
const DRAWINGS: u64 = 16;

/// A packet that was sent, and what was seen of it.
#[derive(Clone, Debug)]
pub(super) struct Sent {
    from: Place,
    packet: Packet,
    seen: Vec<Seen>,
}

/// What one arm has sent and seen, by step; `None` for a step that had nothing to refer to.
#[derive(Clone, Debug, Default)]
pub(super) struct History(Vec<Option<Sent>>);

/// What came of a case.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Both arms agree; so many packets were sent.
    Agree(u64),
    /// They do not.
    Differ(Difference),
    /// That cannot be said.
    Undecided(String),
}

/// Where the arms differ.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Difference {
    /// Which step; `None` for connections and shares.
    pub(super) step: Option<usize>,
    /// What the packet was.
    pub(super) sent: String,
    /// What the kernel did.
    pub(super) kernel: Vec<String>,
    /// What the model says: one text for each possibility.
    pub(super) model: Vec<Vec<String>>,
}

impl Difference {
    /// Returns the difference as a text of some lines.
    pub(super) fn text(&self) -> String {
        let mut text = String::new();
        match self.step {
            Some(step) => _ = writeln!(text, "step {step}: {}", self.sent),
            None => _ = writeln!(text, "{}", self.sent),
        }
        let list = |text: &mut String, who: &str, lines: &[String]| {
            if lines.is_empty() {
                _ = writeln!(text, "  {who}: nothing");
            }
            for line in lines {
                _ = writeln!(text, "  {who}: {line}");
            }
        };
        list(&mut text, "kernel", &self.kernel);
        for (i, way) in self.model.iter().take(8).enumerate() {
            let who = if self.model.len() > 1 { format!("model, way {i}") } else { "model".into() };
            list(&mut text, &who, way);
        }
        text
    }
}

fn texts(seen: &[Seen]) -> Vec<String> {
    let mut texts: Vec<String> = seen.iter().map(Seen::to_string).collect();
    texts.sort();
    texts
}

/// Returns the time since the case began, which conditions on time go by.
struct Clock(std::time::Instant);

impl Clock {
    #[allow(clippy::disallowed_methods, reason = "the kernel's time is the wall's")]
    fn start() -> Clock {
        Clock(std::time::Instant::now())
    }

    fn now(&self) -> Duration {
        self.0.elapsed()
    }
}

/// Runs a case.
pub(super) fn run(case: &Case, rules: Rules, rig: &mut Rig) -> Result<Verdict, RigError> {
    rig.prepare(case)?;
    let model = Model::new(case.settings, rules);
    let ports = ports_of(case);
    let mut packets = 0;
    if let Some(shares) = &case.shares {
        let verdict = shares::run(shares, case.settings, &model, rig, ports);
        match verdict {
            Verdict::Agree(sent) => packets += sent,
            verdict => return Ok(verdict),
        }
        rig.prepare(case)?;
    }
    let record = Record::of(case, rig)?;
    let mut first = None;
    for drawing in 0..DRAWINGS {
        match followed((case, ports), &record, &model, drawing) {
            Verdict::Agree(sent) => return Ok(Verdict::Agree(packets + sent)),
            verdict => first = first.or(Some(verdict)),
        }
    }
    Ok(first.expect("ports are drawn at least once"))
}

/// What the kernel did.
struct Record {
    /// When each step was, and what was sent and seen.
    steps: Vec<(Duration, Option<Sent>)>,
    /// The connections at the end, and when that was.
    connections: Vec<Connection>,
    end: Duration,
}

impl Record {
    /// Sends a case's packets.
    fn of(case: &Case, rig: &mut Rig) -> Result<Record, RigError> {
        let clock = Clock::start();
        let mut history = History::default();
        let mut times = Vec::new();
        for step in &case.steps {
            times.push(clock.now());
            let sent = packet_of(step, &case.steps, &history).map(|(from, packet)| {
                let seen = transmit(rig, case.settings, from, &packet);
                Sent { from, packet, seen }
            });
            history.0.push(sent);
        }
        let connections = rig.connections()?;
        let end = clock.now();
        Ok(Record { steps: times.into_iter().zip(history.0).collect(), connections, end })
    }
}

/// Lets the model follow the kernel.
fn followed(
    (case, ports): (&Case, Ports),
    record: &Record,
    model: &Model,
    drawing: u64,
) -> Verdict {
    let mut packets = 0;
    let mut worlds = vec![model.fresh()];
    let mut left_out = false;
    let undecided = || Verdict::Undecided("too many possible states".to_owned());
    for (number, (step, (now, sent))) in case.steps.iter().zip(&record.steps).enumerate() {
        let Some(Sent { from, packet, seen }) = sent else {
            worlds.iter_mut().for_each(|world| world.history.0.push(None));
            continue;
        };
        packets += 1;
        let ways = explored(model, &worlds, (case, step), *now, drawing);
        let mut next = Vec::new();
        let mut others = Vec::new();
        for (sent, seen_there, world) in ways {
            if all_same((packet, seen), (&sent, &seen_there), ports) {
                next.push(world);
            } else {
                others.push(texts(&seen_there));
            }
        }
        if next.is_empty() {
            if left_out {
                return undecided();
            }
            others.sort();
            others.dedup();
            let sent = format!("{} sends {:?} {:?}", from.name(), packet.tuple, packet.l4);
            let kernel = texts(seen);
            let step = Some(number);
            return Verdict::Differ(Difference { step, sent, kernel, model: others });
        }
        if next.len() > 1 {
            let mut states = BTreeSet::new();
            next.retain(|world| states.insert(world.state(*now)));
        }
        if next.len() > WORLDS_MAX {
            left_out = true;
            next = spread(next, WORLDS_MAX);
        }
        worlds = next;
    }
    let differ = compare_connections((case, ports), record, model, &worlds);
    match differ {
        None => Verdict::Agree(packets),
        Some(_) if left_out => undecided(),
        Some(difference) => Verdict::Differ(difference),
    }
}

/// Returns so many of all, evenly spread.
fn spread<T>(all: Vec<T>, wanted: usize) -> Vec<T> {
    let count = all.len();
    // Those at which the multiple of wanted / count passes a whole number.
    let chosen = |at: &usize| (at + 1) * wanted / count > at * wanted / count;
    all.into_iter().enumerate().filter(|(at, _)| chosen(at)).map(|(_, one)| one).collect()
}

fn compare_connections(
    (case, ports): (&Case, Ports),
    record: &Record,
    model: &Model,
    worlds: &[World],
) -> Option<Difference> {
    let kernel = record.connections.as_slice();
    let literal = if ports == Ports::Both { Vec::new() } else { literal_ports(case) };
    let mut ways = Vec::new();
    for world in worlds {
        let connections = model.connections(world, record.end);
        if connection::all_same(kernel, &connections, &literal) {
            return None;
        }
        ways.push(connections);
    }
    // Only what differs is of interest.
    let only = |a: &[Connection], b: &[Connection]| -> Vec<String> {
        let alone = a.iter().filter(|one| !b.iter().any(|other| one.same(other, &literal)));
        alone.map(Connection::to_string).collect()
    };
    let first = ways.first().map(Vec::as_slice).unwrap_or_default();
    Some(Difference {
        step: None,
        sent: "connections at the end that the other arm does not have".to_owned(),
        kernel: only(kernel, first),
        model: ways.iter().map(|way| only(way, kernel)).collect(),
    })
}

/// Lets every world go every way. An alternative in which a condition holds that is not modelled
/// is a way as well.
fn explored(
    model: &Model,
    worlds: &[World],
    (case, step): (&Case, &Step),
    now: Duration,
    drawing: u64,
) -> Vec<(Packet, Vec<Seen>, World)> {
    let mut ways = Vec::new();
    for world in worlds {
        let Some((from, packet)) = packet_of(step, &case.steps, &world.history) else {
            continue;
        };
        let mut follow = |silent: bool| {
            let _ = model.refuse_silently(silent);
            let limits = Limits { ways: 4 * WORLDS_MAX, alternatives: 8, ..Limits::default() };
            let exploration = explore(limits, |script| {
                let salt = drawing << 48 | (world.history.0.len() as u64) << 32;
                let draws = &mut Varied { script, salt, drawn: 0 };
                let mut world = world.clone();
                let seen = if from == Place::Node {
                    model.send(&mut world, &packet, now, draws)
                } else {
                    let to = frame_to(from, packet.tuple.dst());
                    model.inject(&mut world, (from, to, &packet), now, draws)
                };
                world.history.0.push(Some(Sent { from, packet, seen: seen.clone() }));
                (seen, world)
            });
            let alternatives = exploration.alternatives.into_iter().flat_map(|branch| branch.ways);
            for way in exploration.main.ways.into_iter().chain(alternatives) {
                let (seen, world) = way.outcome;
                ways.push((packet, seen, world));
            }

            model.refuse_silently(false)
        };
        if follow(false) {
            follow(true);
        }
    }
    ways
}

/// A script whose arbitrary bits differ from step to step, as ports that are chosen at random do,
/// and not from way to way: what two ways have in common makes their states the same.
struct Varied<'s> {
    script: &'s mut Script,
    salt: u64,
    drawn: u64,
}

impl Draws for Varied<'_> {
    fn draw(&mut self, _: u32) -> u64 {
        self.drawn += 1;
        mixed(self.salt | self.drawn)
    }

    fn chance(&mut self, ordinal: u32, probability: Probability) -> bool {
        self.script.chance(ordinal, probability)
    }

    fn below(&mut self, ordinal: u32, modulus: u32) -> u32 {
        self.script.below(ordinal, modulus)
    }

    fn unsupported(&mut self, rule: RuleRef) -> bool {
        self.script.unsupported(rule)
    }
}

/// Returns the bits of a number, well mixed.
// The last steps of SplitMix64.
const fn mixed(number: u64) -> u64 {
    let mut bits = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    bits = (bits ^ bits >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ bits >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ bits >> 31
}

fn transmit(rig: &mut Rig, _: Settings, from: Place, packet: &Packet) -> Vec<Seen> {
    if from == Place::Node {
        rig.send(packet)
    } else {
        rig.inject(from, frame_to(from, packet.tuple.dst()), packet)
    }
}

/// Returns whom a frame from a place is for: a pod of the bridge reaches its like directly.
fn frame_to(from: Place, dst: IpAddr) -> [u8; 6] {
    let family = |addr: IpAddr| {
        if addr.is_ipv4() { super::place::Family::V4 } else { super::place::Family::V6 }
    };
    let like = Place::AROUND.into_iter().find(|place| {
        from.device() == CNI0
            && place.device() == CNI0
            && *place != from
            && place.address(family(dst)) == dst
    });
    like.map_or(device_mac(from.device()), Place::mac)
}

/// Returns the packet of a step, and who sends it.
fn packet_of(step: &Step, steps: &[Step], history: &History) -> Option<(Place, Packet)> {
    let sent = |step: usize| history.0.get(step)?.as_ref();
    match step {
        Step::Open(opening) => Some((opening.from, opened(opening, history.0.len()))),
        Step::Again { of, flags: letters } => {
            let Sent { from, packet, .. } = sent(*of)?;
            let mut packet = *packet;
            with_flags(&mut packet, letters, *of, steps, history, Side::Same);
            Some((*from, packet))
        }
        Step::Answer { to, flags: letters } => {
            let Seen { at, packet: seen, .. } = receiver(sent(*to)?)?;
            if at == Place::Node
                && (seen.tuple.protocol != Protocol::UDP || seen.tuple.dst_part != NODE_UDP)
            {
                return None;
            }
            let mut packet = Packet::new(0, seen.tuple.reply(), seen.l4, seen.len);
            packet.len = seen.len;
            with_flags(&mut packet, letters, *to, steps, history, Side::Other);
            Some((at, packet))
        }
        Step::Complain { about, kind, from } => {
            let Seen { at, packet: seen, .. } = receiver(sent(*about)?)?;
            if at == Place::Node || seen.is_icmp_error() {
                return None;
            }
            let kind = match kind {
                Complaint::PortUnreachable => IcmpError::PortUnreachable,
                Complaint::HostUnreachable => IcmpError::HostUnreachable,
                Complaint::TimeExceeded => IcmpError::TimeExceeded,
            };
            let from = from.unwrap_or(seen.tuple.dst());
            Some((at, Packet::icmp_error(&seen, kind, from)))
        }
    }
}

/// Returns where a packet arrived that was sent, as it was there; the answers to it do not count.
fn receiver(sent: &Sent) -> Option<Seen> {
    let is_it = |seen: &&Seen| match (&sent.packet.l4, &seen.packet.l4) {
        (L4::Tcp { flags: a, .. }, L4::Tcp { flags: b, .. }) => a == b,
        (L4::Udp, L4::Udp) => true,
        (L4::IcmpEcho, L4::IcmpEcho) => sent.packet.tuple.dst_part == seen.packet.tuple.dst_part,
        _ => false,
    };
    sent.seen.iter().filter(is_it).min_by_key(|seen| seen.at).copied()
}

/// Whether a step's packet goes the same way as the one that it refers to.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Side {
    Same,
    Other,
}

/// Returns the step that opened the flow of a step, and whether the step's packet goes its way.
fn flow_of(mut step: usize, steps: &[Step]) -> (usize, bool) {
    let mut forward = true;
    loop {
        match &steps[step] {
            Step::Open(_) => return (step, forward),
            Step::Again { of, .. } => step = *of,
            Step::Answer { to, .. } => (step, forward) = (*to, !forward),
            Step::Complain { about, .. } => (step, forward) = (*about, !forward),
        }
    }
}

/// Gives a TCP segment its flags and its place in the stream.
fn with_flags(
    packet: &mut Packet,
    letters: &str,
    refers_to: usize,
    steps: &[Step],
    history: &History,
    side: Side,
) {
    if !matches!(packet.l4, L4::Tcp { .. }) {
        return;
    }
    let (flow, forward) = flow_of(refers_to, steps);
    let forward = forward == (side == Side::Same);
    let next = |forward: bool| {
        let mut next = first_number(flow, forward);
        let mut spoken = false;
        for (number, sent) in history.0.iter().enumerate() {
            let Some(Sent { packet: Packet { l4: L4::Tcp { flags, .. }, .. }, .. }) = sent else {
                continue;
            };
            if flow_of(number, steps) == (flow, forward) {
                spoken = true;
                next += u32::from(flags.contains(TcpFlags::SYN));
                next += u32::from(flags.contains(TcpFlags::FIN));
            }
        }
        (next, spoken)
    };
    let (seq, _) = next(forward);
    let (other, spoken) = next(!forward);
    let flags = flags(letters);
    let ack = if flags.contains(TcpFlags::ACK) && spoken { other } else { 0 };
    packet.l4 = segment(flags, seq, ack);
}

const fn first_number(flow: usize, forward: bool) -> u32 {
    1_000_000 + 1000 * flow as u32 + if forward { 0 } else { 500_000_000 }
}

fn segment(flags: TcpFlags, seq: u32, ack: u32) -> L4 {
    let segment =
        Segment { seq, ack, window: 64_240, data: 0, options: 0, mss: 0, scale: 0, sack: 0 };
    L4::Tcp { flags, segment: Some(segment) }
}

fn opened(opening: &Opening, number: usize) -> Packet {
    let v4 = opening.src.is_ipv4();
    let (protocol, part) = match opening.proto {
        Transport::Tcp => (Protocol::TCP, opening.dport),
        Transport::Udp => (Protocol::UDP, opening.dport),
        Transport::Icmp if v4 => (Protocol::ICMP, 8 << 8),
        Transport::Icmp => (Protocol::ICMPV6, 128 << 8),
    };
    let tuple = Tuple::try_new(protocol, opening.src, opening.sport, opening.dst, part)
        .expect("a case is of one family");
    let l4 = match opening.proto {
        Transport::Tcp => segment(flags(&opening.flags), first_number(number, true), 0),
        Transport::Udp => L4::Udp,
        Transport::Icmp => L4::IcmpEcho,
    };
    let mut packet = Packet::new(0, tuple, l4, 0);
    packet.len = super::wire::smallest(&packet);
    if opening.proto != Transport::Tcp {
        packet.len += opening.data;
    }
    (packet.ttl, packet.tos, packet.mark) = (opening.ttl, opening.tos, 0);
    if opening.from == Place::Node {
        packet.mark = opening.mark;
    }
    packet
}

/// Returns how ports are compared: a rule that picks one at random loosens it.
fn ports_of(case: &Case) -> Ports {
    let random = |line: &String| {
        let words = ["DNAT", "REDIRECT", " dnat ", " redirect "];
        let says = line.contains(" --random")
            || [" random", " fully-random"].iter().any(|word| line.ends_with(word));
        says && words.iter().any(|word| line.contains(word))
    };
    let mut lines = case.texts().into_iter().flat_map(|text| &text.lines);
    if lines.any(random) { Ports::Both } else { Ports::Source }
}

/// Returns the numbers that a case names: a port that is none of them was chosen.
fn literal_ports(case: &Case) -> Vec<u16> {
    let mut ports = vec![NODE_UDP];
    for line in case.texts().into_iter().flat_map(|text| &text.lines) {
        // The ends of a range are chosen like what is between them.
        let numbers = line.split([' ', ',', ':']);
        ports.extend(numbers.filter_map(|number| number.parse::<u16>().ok()));
    }
    for step in &case.steps {
        if let Step::Open(opening) = step {
            ports.extend([opening.sport, opening.dport]);
        }
    }
    ports.sort_unstable();
    ports.dedup();
    ports
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn so_many_of_all() {
        assert_eq!(spread((0..10).collect(), 3), [3, 6, 9]);
        assert_eq!(spread((0..4).collect(), 4), [0, 1, 2, 3]);
        assert_eq!(spread((0..1000).collect::<Vec<_>>(), 192).len(), 192);
    }
}
