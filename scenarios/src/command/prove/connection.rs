//! Connections as the kernel lists them, and as the model has them.

use std::fmt;
use std::net::IpAddr;

use netfilter_model::conntrack::{Direction, Entry, Status, TcpState};
use netfilter_model::time::SimTime;
use netfilter_model::tuple::{Protocol, Tuple};

/// An entry.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Connection {
    /// As first seen.
    pub(super) original: Tuple,
    /// As an answer looks.
    pub(super) reply: Tuple,
    /// The TCP state, as the kernel names it.
    state: Option<String>,
    /// No answer was seen.
    unreplied: bool,
    /// It is not dropped early.
    assured: bool,
    mark: u32,
    /// The zones of both tuples.
    zones: [u16; 2],
    /// Seconds left.
    seconds: u64,
}

/// How many seconds two deadlines may differ.
const SLACK: u64 = 3;

impl Connection {
    /// Reads a line of `/proc/net/nf_conntrack`.
    pub(super) fn parse(line: &str) -> Option<Connection> {
        let mut words = line.split_whitespace();
        let protocol = Protocol(words.by_ref().nth(3)?.parse().ok()?);
        let seconds = words.next()?.parse().ok()?;
        let mut halves = [Half::default(), Half::default()];
        let (mut state, mut mark, mut zones) = (None, 0, [0; 2]);
        let (mut unreplied, mut assured, mut at) = (false, false, 0);
        for word in words {
            let Some((key, value)) = word.split_once('=') else {
                match word {
                    "[UNREPLIED]" => unreplied = true,
                    "[ASSURED]" => assured = true,
                    word if state.is_none() && !word.starts_with('[') => {
                        state = Some(word.to_owned());
                    }
                    _ => {}
                }
                continue;
            };
            let number = || value.parse::<u16>().ok();
            match key {
                "src" => {
                    at = usize::from(halves[0].src.is_some());
                    halves[at].src = Some(value.parse().ok()?);
                }
                "dst" => halves[at].dst = Some(value.parse().ok()?),
                "sport" | "id" => halves[at].src_part = number()?,
                "dport" => halves[at].dst_part = number()?,
                "type" => halves[at].dst_part |= number()? << 8,
                "code" => halves[at].dst_part |= number()?,
                "mark" => mark = value.parse().ok()?,
                "zone" => zones = [number()?; 2],
                "zone-orig" => zones[0] = number()?,
                "zone-reply" => zones[1] = number()?,
                _ => {}
            }
        }
        let [original, reply] = halves.map(|half| half.tuple(protocol));
        let (original, reply) = (original?, reply?);
        Some(Connection { original, reply, state, unreplied, assured, mark, zones, seconds })
    }

    /// Returns what the kernel would list for an entry.
    pub(super) fn of(entry: &Entry, now: SimTime) -> Connection {
        let status = entry.status();
        Connection {
            original: *entry.tuple(Direction::Original),
            reply: *entry.tuple(Direction::Reply),
            state: entry.tcp_state().map(|state| state_name(state).to_owned()),
            unreplied: !status.contains(Status::SEEN_REPLY),
            assured: status.contains(Status::ASSURED),
            mark: entry.mark(),
            zones: [entry.zone(Direction::Original), entry.zone(Direction::Reply)],
            seconds: (entry.deadline() - now).as_secs(),
        }
    }

    /// Returns whether both are one connection, where ports that are not `literal` were chosen at
    /// random.
    pub(super) fn same(&self, other: &Connection, literal: &[u16]) -> bool {
        // Two ports of which each arm chose one at random.
        let chosen = |a: u16, b: u16| {
            let free = |port| port < 1024 || !literal.contains(&port);
            a == b || free(a) && free(b)
        };
        let same = |a: &Tuple, b: &Tuple| {
            let addresses = a.protocol == b.protocol && a.addresses() == b.addresses();
            let last = a.protocol.is_icmp() && a.dst_part == b.dst_part
                || !a.protocol.is_icmp() && chosen(a.dst_part, b.dst_part);
            addresses && last && chosen(a.src_part, b.src_part)
        };
        // What has kept its port in one arm has so in the other.
        let kept = |of: &Connection| {
            let (original, reply) = (&of.original, &of.reply.reply());
            (original.src_part == reply.src_part, original.dst_part == reply.dst_part)
        };
        same(&self.original, &other.original)
            && same(&self.reply, &other.reply)
            && kept(self) == kept(other)
            && self.state == other.state
            && self.unreplied == other.unreplied
            && self.assured == other.assured
            && self.mark == other.mark
            && self.zones == other.zones
            && self.seconds.abs_diff(other.seconds) <= SLACK
    }
}

const fn state_name(state: TcpState) -> &'static str {
    match state {
        TcpState::SynSent => "SYN_SENT",
        TcpState::SynRecv => "SYN_RECV",
        TcpState::Established => "ESTABLISHED",
        TcpState::FinWait => "FIN_WAIT",
        TcpState::CloseWait => "CLOSE_WAIT",
        TcpState::LastAck => "LAST_ACK",
        TcpState::TimeWait => "TIME_WAIT",
        TcpState::Close => "CLOSE",
        TcpState::SynSent2 => "SYN_SENT2",
    }
}

/// One direction of a listed entry.
#[derive(Clone, Copy, Default)]
struct Half {
    src: Option<IpAddr>,
    dst: Option<IpAddr>,
    src_part: u16,
    dst_part: u16,
}

impl Half {
    fn tuple(self, protocol: Protocol) -> Option<Tuple> {
        Tuple::try_new(protocol, self.src?, self.src_part, self.dst?, self.dst_part)
    }
}

impl fmt::Display for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} / {:?}", self.original, self.reply)?;
        if let Some(state) = &self.state {
            write!(f, " {state}")?;
        }
        for (word, holds) in [(" UNREPLIED", self.unreplied), (" ASSURED", self.assured)] {
            f.write_str(if holds { word } else { "" })?;
        }
        write!(f, " mark {} zones {:?} {} s", self.mark, self.zones, self.seconds)
    }
}

/// Returns whether both lists hold the same connections, in any order.
pub(super) fn all_same(a: &[Connection], b: &[Connection], literal: &[u16]) -> bool {
    let mut left: Vec<&Connection> = b.iter().collect();
    let found = a.iter().all(|one| {
        let at = left.iter().position(|other| one.same(other, literal));
        at.map(|at| left.swap_remove(at)).is_some()
    });
    found && left.is_empty()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_the_kernel() {
        let tcp = "ipv4     2 tcp      6 119 SYN_SENT src=10.1.0.2 dst=10.9.9.9 sport=41106 \
                   dport=7000 [UNREPLIED] src=10.3.0.12 dst=10.1.0.2 sport=7000 dport=41106 \
                   mark=16 zone=3 use=2";
        let read = Connection::parse(tcp).unwrap();
        assert_eq!(read.original.dst_part, 7000);
        assert_eq!(read.state.as_deref(), Some("SYN_SENT"));
        assert!(read.unreplied && !read.assured);
        assert_eq!((read.mark, read.zones, read.seconds), (16, [3, 3], 119));
        let icmp = "ipv6     10 icmpv6   58 29 src=fd00::1 dst=fd00::2 type=128 code=0 id=7 \
                    src=fd00::2 dst=fd00::1 type=129 code=0 id=7 mark=0 use=2";
        let read = Connection::parse(icmp).unwrap();
        assert_eq!(read.reply.icmp_kind(), (129, 0));
        assert_eq!(read.reply.src_part, 7);
        assert_eq!(Connection::parse("ipv4     2 tcp"), None);
    }
}
