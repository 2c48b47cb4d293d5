//! What is seen of a packet, and when two sightings are the same.

use std::fmt;

use netfilter_model::packet::{L4, Packet};

use super::place::Place;

/// A packet that has arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Seen {
    /// Where.
    pub(super) at: Place,
    /// As it looks there.
    pub(super) packet: Packet,
}

impl fmt::Display for Seen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Packet { tuple, l4, ttl, tos, .. } = &self.packet;
        write!(f, "at {}: {tuple:?}", self.at.name())?;
        match l4 {
            L4::Tcp { flags, .. } => write!(f, " {flags:?}")?,
            L4::IcmpError { kind, quote } => write!(f, " {kind:?} about {quote:?}")?,
            L4::Udp | L4::IcmpEcho | L4::Other => {}
        }
        write!(f, " ttl {ttl} tos {tos:#x}")
    }
}

/// How strictly chosen ports are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ports {
    /// A source port that both arms have changed may differ, and nothing else.
    Source,
    /// A destination port, too: a rule picks some at random.
    Both,
}

/// Returns whether a sighting in one arm is that of the other. Each comes with the packet that
/// was sent.
pub(super) fn same(a: (&Packet, &Seen), b: (&Packet, &Seen), ports: Ports) -> bool {
    let ((sent_a, a), (sent_b, b)) = (a, b);
    if a.at != b.at {
        return false;
    }
    let (p, q) = (&a.packet, &b.packet);
    let (ta, tb) = (&p.tuple, &q.tuple);
    if ta.protocol != tb.protocol || ta.src() != tb.src() || ta.dst() != tb.dst() {
        return false;
    }
    let both = ports == Ports::Both;
    // A port that the arm itself sent is the same only in the same role.
    let number = |x: u16, y: u16, loose: bool| match (role(x, sent_a), role(y, sent_b)) {
        (0, 0) => x == y || loose,
        (x, y) => x & y != 0,
    };
    let transport = match (&p.l4, &q.l4) {
        (L4::Tcp { flags: a, .. }, L4::Tcp { flags: b, .. }) => {
            // A reset that the node made goes to the port that it saw.
            let both = both || Some(*a) != sent_a.tcp_flags();
            a == b
                && number(ta.src_part, tb.src_part, true)
                && number(ta.dst_part, tb.dst_part, both)
        }
        (L4::Udp, L4::Udp) => {
            number(ta.src_part, tb.src_part, true) && number(ta.dst_part, tb.dst_part, both)
        }
        (L4::IcmpEcho, L4::IcmpEcho) => {
            ta.dst_part == tb.dst_part && number(ta.src_part, tb.src_part, true)
        }
        (L4::IcmpError { kind: a, quote: x }, L4::IcmpError { kind: b, quote: y }) => {
            a == b
                && x.protocol == y.protocol
                && x.src() == y.src()
                && x.dst() == y.dst()
                && number(x.src_part, y.src_part, true)
                && number(x.dst_part, y.dst_part, true)
        }
        (L4::Other, L4::Other) => true,
        _ => false,
    };
    // The IPv6 header of what the node itself is sent is not seen.
    let header = (a.at == Place::Node && ta.src().is_ipv6()) || (p.ttl == q.ttl && p.tos == q.tos);
    transport && header
}

/// Returns which of the sent packet's ports a number is: 1 for the source's, 2 for the other.
fn role(port: u16, sent: &Packet) -> u8 {
    let tuple = match &sent.l4 {
        L4::IcmpError { quote, .. } => quote,
        _ => &sent.tuple,
    };
    u8::from(port == tuple.src_part) | u8::from(port == tuple.dst_part) << 1
}

/// Returns whether all sightings of one arm are those of the other, in any order.
pub(super) fn all_same(a: (&Packet, &[Seen]), b: (&Packet, &[Seen]), ports: Ports) -> bool {
    let mut left: Vec<&Seen> = b.1.iter().collect();
    let found = a.1.iter().all(|one| {
        let at = left.iter().position(|other| same((a.0, one), (b.0, other), ports));
        at.map(|at| left.swap_remove(at)).is_some()
    });
    found && left.is_empty()
}
