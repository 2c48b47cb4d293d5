//! Connections as `conntrack -L` lists them.

use std::fmt;
use std::time::Duration;

use super::entry::{Direction, Entry, ProtocolState, Status};
use super::table::Conntrack;
use super::tcp::{TcpState, TcpTrack};
use crate::time::SimTime;
use crate::tuple::{Protocol, Side, Tuple};

/// A connection as `conntrack -L` lists it.
///
/// Listings are in order by their original tuples.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Listing {
    /// The tuple of the first packet.
    pub original: Tuple,
    /// The tuple of its answer.
    pub reply: Tuple,
    /// The zones of both.
    pub zones: [u16; 2],
    /// How long the entry lives unless another packet comes.
    pub left: Duration,
    /// The state of a TCP connection.
    pub tcp_state: Option<TcpState>,
    /// An answer was seen.
    pub seen_reply: bool,
    /// The entry is not dropped early.
    pub assured: bool,
    /// The connection mark.
    pub mark: u32,
}

/// A connection cannot be put into a table: another has one of its tuples.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("another connection has one of its tuples")]
pub struct TupleTaken;

impl Listing {
    /// Returns the listing of a live entry.
    pub fn of(entry: &Entry, now: SimTime) -> Listing {
        Listing {
            original: entry.original,
            reply: entry.reply,
            zones: entry.zones,
            left: entry.deadline().saturating_since(now),
            tcp_state: entry.tcp_state(),
            seen_reply: entry.status.contains(Status::SEEN_REPLY),
            assured: entry.status.contains(Status::ASSURED),
            mark: entry.mark,
        }
    }

    /// Returns the facts that the tuples tell, as if rules had been asked.
    fn status(&self) -> Status {
        let mut status = Status::CONFIRMED;
        let leaves_as = self.reply.reply();
        for side in [Side::Source, Side::Destination] {
            status.insert(Status::nat_done(side));
            let address = self.original.address(side) != leaves_as.address(side);
            // An ICMP id belongs to both sides; it is the source that is rewritten.
            let has_part = side == Side::Source || !self.original.protocol.is_icmp();
            let part = has_part && self.original.nat_part(side) != leaves_as.nat_part(side);
            if address || part {
                status.insert(Status::nat(side));
            }
        }
        if self.seen_reply {
            status.insert(Status::SEEN_REPLY);
        }
        if self.assured {
            status.insert(Status::ASSURED);
        }
        status
    }
}

impl Conntrack {
    /// Returns what `conntrack -L` lists, in order.
    pub fn list(&self, now: SimTime) -> Vec<Listing> {
        let mut list: Vec<Listing> =
            self.entries(now).map(|entry| Listing::of(entry, now)).collect();
        list.sort_unstable();
        list
    }

    /// Puts a connection into the table, as if its packets had passed.
    ///
    /// What a listing does not tell is taken as the kernel takes it for a connection picked up in
    /// its middle: the windows of TCP are not enforced until both ends have shown theirs.
    ///
    /// # Errors
    ///
    /// If another connection has one of its tuples.
    pub fn insert(&mut self, now: SimTime, listing: &Listing) -> Result<(), TupleTaken> {
        let protocol = match (listing.original.protocol, listing.tcp_state) {
            (Protocol::TCP, state) => {
                let state = state.unwrap_or(TcpState::Established);
                ProtocolState::Tcp(TcpTrack::picked_up(state))
            }
            // Listed entries are older than two seconds, or become so.
            (Protocol::UDP, _) => ProtocolState::Udp(now),
            (Protocol::UDPLITE, _) => ProtocolState::UdpLite,
            (Protocol::SCTP, _) => ProtocolState::Sctp,
            (Protocol::GRE, _) => ProtocolState::Gre,
            (protocol, _) if protocol.is_icmp() => ProtocolState::Icmp,
            _ => ProtocolState::Other,
        };
        let entry = Entry {
            original: listing.original,
            reply: listing.reply,
            status: listing.status(),
            protocol,
            // A second that is listed as gone is not over yet.
            deadline: now + listing.left.max(Duration::from_secs(1)),
            mark: listing.mark,
            zones: listing.zones,
            dnat_rule: None,
            masquerade_dev: None,
        };
        let mut taken = |direction| self.find_exact(now, &entry, direction).is_some();
        if taken(Direction::Original) || taken(Direction::Reply) {
            return Err(TupleTaken);
        }
        self.enter(&mut Some(entry));
        Ok(())
    }
}

/// Returns the name by which `conntrack` lists a protocol.
// conntrack-tools: libnetfilter_conntrack, l4proto2str
pub(crate) const fn protocol_name(protocol: Protocol) -> &'static str {
    match protocol {
        Protocol::ICMP => "icmp",
        Protocol::TCP => "tcp",
        Protocol::UDP => "udp",
        Protocol::DCCP => "dccp",
        Protocol::GRE => "gre",
        Protocol::ICMPV6 => "icmpv6",
        Protocol::SCTP => "sctp",
        Protocol::UDPLITE => "udplite",
        _ => "unknown",
    }
}

/// Writes the line of `conntrack -L`; the alternative form `{:#}` is that of `-o extended`.
impl fmt::Display for Listing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if f.alternate() {
            let (family, number) = match self.original.src() {
                std::net::IpAddr::V4(_) => ("ipv4", 2),
                std::net::IpAddr::V6(_) => ("ipv6", 10),
            };
            write!(f, "{family:<8} {number} ")?;
        }
        let protocol = self.original.protocol;
        write!(f, "{:<8} {} {} ", protocol_name(protocol), protocol.0, self.left.as_secs())?;
        if let Some(state) = self.tcp_state {
            write!(f, "{} ", state.name())?;
        }
        let zoned = self.zones[0] != self.zones[1];
        write_tuple(&self.original, f)?;
        if zoned && self.zones[0] != 0 {
            write!(f, "zone-orig={} ", self.zones[0])?;
        }
        if !self.seen_reply {
            f.write_str("[UNREPLIED] ")?;
        }
        write_tuple(&self.reply, f)?;
        if zoned && self.zones[1] != 0 {
            write!(f, "zone-reply={} ", self.zones[1])?;
        }
        if self.assured {
            f.write_str("[ASSURED] ")?;
        }
        write!(f, "mark={} ", self.mark)?;
        if !zoned && self.zones[0] != 0 {
            write!(f, "zone={} ", self.zones[0])?;
        }
        f.write_str("use=1")
    }
}

fn write_tuple(tuple: &Tuple, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    write!(f, "src={} dst={} ", tuple.src(), tuple.dst())?;
    if tuple.protocol.is_icmp() {
        let (kind, code) = tuple.icmp_kind();
        return write!(f, "type={kind} code={code} id={} ", tuple.src_part);
    }
    match tuple.protocol {
        Protocol::GRE => write!(f, "srckey={:#x} dstkey={:#x} ", tuple.src_part, tuple.dst_part),
        protocol if protocol.has_ports() => {
            write!(f, "sport={} dport={} ", tuple.src_part, tuple.dst_part)
        }
        _ => Ok(()),
    }
}
