//! Both arms of a case: what the packets of a text become in the kernel and in the model.
//!
//! A text is `udp c2 s2:1-8; @1500; syn C2 S2:80 ttl=3; …`: a kind of packet, its source and its
//! destination; `@` waits until so many milliseconds after the start. `c2` is 10.244.1.2, at the
//! client, `s2` 10.244.2.2, at the server, `c1` and `s1` are the node's addresses, `v9` is
//! 10.96.0.9, which nobody has; capital letters stand for the same in IPv6.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::{Duration, Instant};

use netfilter_model::host::{Draws, Env, Host, Note, Route, RouteQuery, Socket};
use netfilter_model::netns::{Answer, Netns, Outcome};
use netfilter_model::nft::{self, Statement};
use netfilter_model::packet::{IcmpError, L4, Packet, Segment, TcpFlags};
use netfilter_model::read::nft_ruleset;
use netfilter_model::rule::{AddrType, Ruleset, RulesetBuilder, TableId};
use netfilter_model::time::SimTime;
use netfilter_model::tuple::{Protocol, Tuple};
use netfilter_model::{DeviceId, DeviceName};

use crate::lab::{Lab, Tool};
use crate::raw::{Sender, Watcher};

const LO: DeviceId = DeviceId(0);
const C0: DeviceId = DeviceId(1);
const S0: DeviceId = DeviceId(2);

/// A ruleset and packets.
pub(super) struct Case {
    pub(super) name: &'static str,
    pub(super) rules: &'static str,
    pub(super) packets: &'static str,
}

/// What is seen of a case: packets as lines, by id; and how many packets each rule has counted.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Seen {
    pub(super) lines: BTreeMap<u16, Vec<String>>,
    pub(super) counts: BTreeMap<(u16, u32, u32), u64>,
}

/// The node of the lab, with both families.
struct Node;

/// Returns the network (1, 2, 96) and the host of an address.
fn place(address: IpAddr) -> Option<(u16, u16)> {
    match address {
        IpAddr::V4(address) => match address.octets() {
            [10, 244, net @ (1 | 2), host] => Some((net.into(), host.into())),
            _ => None,
        },
        IpAddr::V6(address) => match address.segments() {
            [0xfd00, 0x244, net @ (1 | 2), 0, 0, 0, 0, host] => Some((net, host)),
            _ => None,
        },
    }
}

fn address(net: u16, host: u16, ipv4: bool) -> IpAddr {
    if ipv4 {
        Ipv4Addr::new(10, if net == 96 { 96 } else { 244 }, (net % 96) as u8, host as u8).into()
    } else {
        let (site, net) = if net == 96 { (0x96, 0) } else { (0x244, net) };
        Ipv6Addr::new(0xfd00, site, net, 0, 0, 0, 0, host).into()
    }
}

impl Host for Node {
    fn route(&self, query: RouteQuery) -> Route {
        match place(query.dst) {
            _ if query.dst.is_loopback() => Route::Local,
            Some((_, 1)) => Route::Local,
            Some((net, _)) => Route::Forward { dev: DeviceId(net.into()), next_hop: query.dst },
            None => Route::NoRoute,
        }
    }

    fn addr_type(&self, address: IpAddr, on: Option<DeviceId>) -> AddrType {
        match place(address) {
            _ if address.is_loopback() => AddrType::Local,
            Some((net, 1)) if on.is_none_or(|on| on.0 == u32::from(net)) => AddrType::Local,
            _ => AddrType::Unicast,
        }
    }

    fn masquerade_address(&self, dev: DeviceId, next_hop: IpAddr) -> Option<IpAddr> {
        (dev != LO).then(|| address(dev.0 as u16, 1, next_hop.is_ipv4()))
    }

    fn loopback(&self) -> DeviceId {
        LO
    }

    fn device_name(&self, dev: DeviceId) -> DeviceName {
        DeviceName::parse(["lo", "c0", "s0"][dev.0 as usize]).expect("a name")
    }
}

/// One step of a text: when, and the packet.
type Step = (u64, Packet);

fn end(word: &str) -> (IpAddr, String) {
    let (host, ports) = word.split_once(':').unwrap_or((word, ""));
    let letter = host.chars().next().expect("an end");
    let net = match letter.to_ascii_lowercase() {
        'c' => 1,
        's' => 2,
        _ => 96,
    };
    let host = host[1..].parse().expect("a number");
    (address(net, host, letter.is_ascii_lowercase()), ports.to_owned())
}

/// Reads a text of packets, whose ids follow another.
fn steps(text: &str, mut id: u16) -> Vec<Step> {
    let (mut at, mut steps) = (0, Vec::new());
    for phrase in text.split(';').map(str::trim).filter(|phrase| !phrase.is_empty()) {
        if let Some(wait) = phrase.strip_prefix('@') {
            at = wait.parse().expect("milliseconds");
            continue;
        }
        let words: Vec<&str> = phrase.split_whitespace().collect();
        let ((src, sport), (dst, dports)) = (end(words[1]), end(words[2]));
        let sport = sport.parse().unwrap_or(1000);
        let (first, last) = dports.split_once('-').unwrap_or((&dports, &dports));
        let first: u16 = first.parse().unwrap_or(9);
        for dport in first..=last.parse().unwrap_or(first) {
            id += 1;
            let mut packet = packet(words[0], id, (src, sport), (dst, dport));
            for word in &words[3..] {
                let (key, value) = word.split_once('=').expect("a key");
                let value = value.parse().expect("a number");
                match key {
                    "ttl" => packet.ttl = value,
                    "tos" => packet.tos = value,
                    key => panic!("{key}?"),
                }
            }
            steps.push((at, packet));
        }
    }
    steps
}

fn packet(kind: &str, id: u16, (src, sport): (IpAddr, u16), (dst, dport): (IpAddr, u16)) -> Packet {
    let header = if src.is_ipv4() { 20 } else { 40 };
    let tuple = |protocol, sport, dport| {
        Tuple::try_new(protocol, src, sport, dst, dport).expect("ends of one family")
    };
    let tcp = |flags| {
        let seq = u32::from(id) << 8;
        let ack = if flags == TcpFlags::SYN { 0 } else { seq };
        let segment = Some(Segment { seq, ack, window: 9000, ..Segment::default() });
        let tuple = tuple(Protocol::TCP, sport, dport);
        Packet::new(id.into(), tuple, L4::Tcp { flags, segment }, header + 20)
    };
    match kind {
        "udp" => Packet::udp(id.into(), tuple(Protocol::UDP, sport, dport), header + 9),
        "syn" => tcp(TcpFlags::SYN),
        "ack" => tcp(TcpFlags::ACK),
        "finack" => tcp(TcpFlags::FIN | TcpFlags::ACK),
        "rst" => tcp(TcpFlags::RST),
        "ping" => {
            let (protocol, kind) =
                if src.is_ipv4() { (Protocol::ICMP, 8) } else { (Protocol::ICMPV6, 128) };
            Packet::new(id.into(), tuple(protocol, 7, kind << 8), L4::IcmpEcho, header + 8)
        }
        kind => panic!("{kind}?"),
    }
}

/// Returns the line that tells of a packet at a place.
fn line(place: &str, packet: &Packet) -> String {
    let Packet { tuple, ttl, tos, .. } = packet;
    let (src, dst, sport, dport) = (tuple.src(), tuple.dst(), tuple.src_part, tuple.dst_part);
    match packet.l4 {
        L4::Tcp { flags, .. } => {
            format!("{place}: {flags:?} {src} {sport} {dst} {dport} ttl {ttl} tos {tos}")
        }
        L4::IcmpError { kind, quote } => {
            let (kind, code) = if src.is_ipv4() { kind.kind() } else { kind.kind6() };
            let (of, to) = (quote.src(), quote.dst());
            let (sport, dport) = (quote.src_part, quote.dst_part);
            format!("{place}: icmp {kind}/{code} {src} {dst} about {of} {sport} {to} {dport}")
        }
        L4::IcmpEcho => {
            let kind = tuple.icmp_kind().0;
            format!("{place}: echo {kind} {src} {dst} ttl {ttl} tos {tos}")
        }
        _ => format!("{place}: udp {src} {sport} {dst} {dport} ttl {ttl} tos {tos}"),
    }
}

/// The headers of a packet from the wire.
struct Wire {
    id: u16,
    packet: Packet,
}

fn be16(bytes: &[u8], at: usize) -> u16 {
    u16::from(bytes[at]) << 8 | u16::from(bytes[at + 1])
}

fn be32(bytes: &[u8], at: usize) -> u32 {
    u32::from(be16(bytes, at)) << 16 | u32::from(be16(bytes, at + 2))
}

/// Returns the headers of a packet, if it is one of those that are sent or answer one.
fn parse(bytes: &[u8]) -> Option<Wire> {
    let v4 = |at: usize| IpAddr::from(<[u8; 4]>::try_from(&bytes[at..at + 4]).expect("4 bytes"));
    let v6 = |at: usize| IpAddr::from(<[u8; 16]>::try_from(&bytes[at..at + 16]).expect("16 bytes"));
    let (src, dst, header, protocol, ttl, tos, mut id) = match bytes.first()? >> 4 {
        4 => (v4(12), v4(16), 20, bytes[9], bytes[8], bytes[1], be16(bytes, 4)),
        6 => (v6(8), v6(24), 40, bytes[6], bytes[7], (be16(bytes, 0) >> 4) as u8, be16(bytes, 2)),
        _ => return None,
    };
    let above = &bytes[header..];
    let (l4, sport, dport) = match protocol {
        6 => {
            let (seq, ack) = (be32(above, 4), be32(above, 8));
            // The resets of the node have no id of their own.
            id = (seq.max(ack) >> 8) as u16;
            let flags = [TcpFlags::FIN, TcpFlags::SYN, TcpFlags::RST, TcpFlags::PSH, TcpFlags::ACK];
            let set = (0..5).filter(|bit| above[13] & 1 << bit != 0).map(|bit| flags[bit]);
            let flags = set.fold(TcpFlags::NONE, |all, flag| all | flag);
            (L4::Tcp { flags, segment: None }, be16(above, 0), be16(above, 2))
        }
        17 => (L4::Udp, be16(above, 0), be16(above, 2)),
        1 | 58 => {
            let (kind, code) = (above[0], above[1]);
            let error = if protocol == 1 { matches!(kind, 3 | 11) } else { kind < 5 };
            if error {
                let about = parse(&above[8..])?;
                id = about.id;
                let kind = IcmpError::Other(kind, code);
                (L4::IcmpError { kind, quote: about.packet.tuple }, 0, 0)
            } else if matches!((protocol, kind), (1, 0 | 8) | (58, 128 | 129)) {
                id = be16(above, 6);
                (L4::IcmpEcho, be16(above, 4), be16(above, 0))
            } else {
                return None;
            }
        }
        _ => return None,
    };
    let tuple = Tuple::try_new(Protocol(protocol), src, sport, dst, dport)?;
    let mut packet = Packet::new(id.into(), tuple, l4, 0);
    (packet.ttl, packet.tos) = (ttl, tos);
    Some(Wire { id, packet })
}

/// Reads a listing of which everything must be understood.
fn read(listing: &str) -> nft::Ruleset {
    let read = nft_ruleset(listing, 0);
    assert_eq!(read.remarks, [], "{listing}");
    read.value
}

/// The kernel's arm.
pub(super) struct Kernel {
    lab: Lab,
    senders: [Sender; 3],
    watchers: [(&'static str, Watcher); 2],
    last_id: u16,
}

impl Kernel {
    /// Builds the namespaces, or says why it cannot.
    pub(super) fn try_new() -> Result<Kernel, String> {
        let lab = Lab::try_new(Tool::Nft)?;
        lab.node("nft", &["--version"], "")?;
        lab.node("conntrack", &["--version"], "")?;
        let quiet = "for i in all default c0 s0 eth0; do \
                     for k in ipv4/conf/$i/rp_filter ipv4/conf/$i/send_redirects; do \
                     [ -e /proc/sys/net/$k ] && echo 0 > /proc/sys/net/$k; done; done; \
                     echo 0 > /proc/sys/net/ipv4/icmp_ratelimit; \
                     echo 0 > /proc/sys/net/ipv6/icmp/ratelimit; \
                     echo 1 > /proc/sys/net/ipv6/conf/all/forwarding";
        lab.node("sh", &["-c", quiet], "")?;
        // The ends answer nothing but questions about neighbours.
        let mute = "table inet mute {
            chain i { type filter hook input priority 0; policy drop;
                icmpv6 type { nd-neighbor-solicit, nd-neighbor-advert } accept
            }
        }";
        for (far, net, dev) in [("c", 1, "c0"), ("s", 2, "s0")] {
            lab.at(far, "nft", &["-f", "-"], mute)?;
            for host in 2..=20 {
                let v4 = format!("10.244.{net}.{host}/24");
                if far == "c" && host > 2 || host > 6 {
                    lab.at(far, "ip", &["address", "add", &v4, "dev", "eth0"], "")?;
                }
                let v6 = format!("{}/64", address(net, host, false));
                lab.at(far, "ip", &["address", "add", &v6, "dev", "eth0", "nodad"], "")?;
            }
            let own = format!("{}/64", address(net, 1, false));
            lab.node("ip", &["address", "add", &own, "dev", dev, "nodad"], "")?;
            let via = address(net, 1, false).to_string();
            lab.at(far, "ip", &["-6", "route", "add", "default", "via", &via], "")?;
        }
        Kernel::introduce(&lab)?;
        let senders =
            [Sender::start(&lab, "c")?, Sender::start(&lab, "s")?, Sender::start(&lab, "n")?];
        let watchers = [("c", Watcher::start(&lab, "c")?), ("s", Watcher::start(&lab, "s")?)];
        Ok(Kernel { lab, senders, watchers, last_id: 0 })
    }

    /// Tells all neighbours of each other: nobody has to be asked.
    fn introduce(lab: &Lab) -> Result<(), String> {
        let mac = |place, dev| {
            let path = format!("/sys/class/net/{dev}/address");
            lab.at(place, "cat", &[&path], "").map(|mac| mac.trim().to_owned())
        };
        for (far, net, dev) in [("c", 1, "c0"), ("s", 2, "s0")] {
            let (near_mac, far_mac) = (mac("n", dev)?, mac(far, "eth0")?);
            let known = |host, dev, mac: &str| -> String {
                let of = |ipv4| {
                    let address = address(net, host, ipv4);
                    format!("neighbour replace {address} lladdr {mac} dev {dev} nud permanent\n")
                };
                of(true) + &of(false)
            };
            let all: String = (2..=20).map(|host| known(host, dev, &far_mac)).collect();
            lab.node("ip", &["-batch", "-"], &all)?;
            lab.at(far, "ip", &["-batch", "-"], &known(1, "eth0", &near_mac))?;
        }
        Ok(())
    }

    fn send(&mut self, packet: &Packet) {
        let sender = match place(packet.tuple.src()) {
            Some((_, 1)) => 2,
            Some((2, _)) => 1,
            _ => 0,
        };
        let _ = self.senders[sender].try_send(packet);
    }

    fn nft(&self, args: &[&str], input: &str) -> Result<String, String> {
        self.lab.node("nft", args, input)
    }

    /// Runs a case in both arms and compares them; returns how they differ.
    pub(super) fn differ(&mut self, case: &Case) -> Option<String> {
        self.nft(&["flush", "ruleset"], "").expect("an empty ruleset");
        self.lab.node("conntrack", &["-F"], "").expect("no connections");
        if let Err(error) = self.nft(&["-f", "-"], case.rules) {
            return Some(format!("{}: {error}", case.name));
        }
        let listing = self.nft(&["list", "ruleset"], "").expect("a listing");
        let steps = steps(case.packets, self.last_id);
        let range = (self.last_id + 1, self.last_id + steps.len() as u16);
        self.last_id = range.1;
        #[allow(clippy::disallowed_methods)] // The kernel's time is the wall's.
        let start = Instant::now();
        for (at, packet) in &steps {
            let wait = Duration::from_millis(*at).saturating_sub(start.elapsed());
            std::thread::sleep(wait);
            self.send(packet);
        }
        let model = model(&listing, &steps);
        let from_text = model_of(read(case.rules), &steps);
        if model.lines != from_text.lines {
            return Some(format!("{}: listed {model:#?}\nwritten {from_text:#?}", case.name));
        }
        // Packets arrive at once, unless the machine has other things to do.
        let mut kernel = Seen::default();
        for _ in 0..40 {
            std::thread::sleep(Duration::from_millis(15));
            self.watch(&mut kernel, range);
            if kernel.lines == model.lines {
                break;
            }
        }
        let listing_after = self.nft(&["list", "ruleset"], "").expect("a listing");
        kernel.counts = listed_counts(&read(&listing_after));
        let counted = |key: &(u16, u32, u32)| model.counts.get(key).copied().unwrap_or(0);
        let mut difference = String::new();
        for (_, packet) in &steps {
            let id = packet.id as u16;
            let (of_kernel, of_model) = (kernel.lines.get(&id), model.lines.get(&id));
            if of_kernel != of_model {
                let sent = line("sent", packet);
                let _ = writeln!(
                    difference,
                    "  {sent}\n    kernel {of_kernel:?}\n    model  {of_model:?}"
                );
            }
        }
        for (key, count) in &kernel.counts {
            if *count != counted(key) {
                let _ = writeln!(difference, "  {key:?}: {count}, in the model {}", counted(key));
            }
        }
        (!difference.is_empty()).then(|| format!("{}:\n{difference}{listing_after}", case.name))
    }

    fn watch(&mut self, seen: &mut Seen, (first, last): (u16, u16)) {
        for (place, watcher) in &mut self.watchers {
            for bytes in watcher.seen() {
                let Some(Wire { id, packet }) = parse(&bytes) else { continue };
                let line = line(place, &packet);
                assert!((first..=last).contains(&id), "{id} of another case: {line}");
                seen.lines.entry(id).or_default().push(line);
            }
        }
        seen.lines.values_mut().for_each(|lines| lines.sort());
    }
}

/// Returns how many packets each rule that counts has counted.
fn listed_counts(ruleset: &nft::Ruleset) -> BTreeMap<(u16, u32, u32), u64> {
    let mut counts = BTreeMap::new();
    for (table_at, table) in ruleset.tables().iter().enumerate() {
        for (chain_at, chain) in table.chains.iter().enumerate() {
            for (rule_at, rule) in chain.rules.iter().enumerate() {
                for statement in &rule.statements {
                    if let Statement::Counter(counter) = statement
                        && let Some((packets, _)) = counter.counts
                    {
                        let key = (table_at as u16, chain_at as u32, rule_at as u32 + 1);
                        counts.insert(key, packets);
                    }
                }
            }
        }
    }
    counts
}

/// Counts matches of rules.
#[derive(Default)]
struct Counting {
    counts: BTreeMap<(u16, u32, u32), u64>,
    drawn: u64,
}

impl Draws for Counting {
    fn draw(&mut self, _: u32) -> u64 {
        self.drawn = self.drawn.wrapping_add(0x9e37_79b9_7f4a_7c15);
        self.drawn
    }

    fn note(&mut self, note: Note<'_>) {
        if let Note::Rule { rule, .. } = note
            && let TableId::Nft(table) = rule.table
        {
            *self.counts.entry((table, rule.chain.index, rule.number)).or_default() += 1;
        }
    }
}

fn model(listing: &str, steps: &[Step]) -> Seen {
    model_of(read(listing), steps)
}

fn model_of(nft: nft::Ruleset, steps: &[Step]) -> Seen {
    let rules = RulesetBuilder::new().build().expect("no rules").with_nft(nft);
    let mut netns = Netns::default();
    netns.limit_icmp_errors(false);
    let mut draws = Counting::default();
    let mut seen = Seen::default();
    for (at, packet) in steps {
        // Rules are loaded a while after the kernel's start.
        let now = SimTime::from_nanos((1_000_000 + at) * 1_000_000);
        let mut env = Env { now, host: &Node, rules: &rules, draws: &mut draws };
        let lines = through(&mut netns, *packet, &mut env);
        if !lines.is_empty() {
            seen.lines.insert(packet.id as u16, lines);
        }
    }
    seen.counts = draws.counts;
    seen
}

fn name_of(dev: DeviceId) -> &'static str {
    if dev == C0 { "c" } else { "s" }
}

/// Sends a packet through the model's node; what leaves it, as lines.
fn through(
    netns: &mut Netns,
    packet: Packet,
    env: &mut Env<'_, Node, Ruleset, Counting>,
) -> Vec<String> {
    let outcome = match place(packet.tuple.src()) {
        Some((_, 1)) => {
            let (dst, src) = (packet.tuple.dst(), packet.tuple.src());
            let route = env.host.route(RouteQuery { dst, src, mark: 0, in_dev: None });
            netns.send(packet, route, env)
        }
        Some((2, _)) => netns.receive(packet, S0, env),
        _ => netns.receive(packet, C0, env),
    };
    let mut lines = Vec::new();
    match outcome {
        Outcome::Sent(egress) => lines.push(line(name_of(egress.dev), &egress.packet)),
        Outcome::Dropped(_) => {}
        Outcome::Rejected(rejection) => {
            if let Answer::Sent(egress) = &rejection.answer {
                lines.push(line(name_of(egress.dev), &egress.packet));
            }
        }
        // Nobody listens.
        Outcome::Local(delivery) => {
            let packet = delivery.packet;
            let sent = match packet.l4 {
                L4::Udp => match netns.send_error(&packet, IcmpError::PortUnreachable, env) {
                    Some(Answer::Sent(egress)) => Some(egress),
                    _ => None,
                },
                L4::Tcp { .. } => Packet::tcp_reset(packet.id, &packet).and_then(|reset| {
                    let (dst, src) = (reset.tuple.dst(), reset.tuple.src());
                    let route = env.host.route(RouteQuery { dst, src, mark: 0, in_dev: None });
                    match netns.send_from(reset, Some(Socket::KERNEL), route, env) {
                        Outcome::Sent(egress) => Some(egress),
                        _ => None,
                    }
                }),
                _ => None,
            };
            lines.extend(sent.map(|egress| line(name_of(egress.dev), &egress.packet)));
        }
    }
    lines
}
