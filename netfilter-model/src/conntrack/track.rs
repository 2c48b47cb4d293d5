//! Finding a packet's connection.

use std::time::Duration;

use super::entry::{CtInfo, Direction, Entry, ProtocolState, Status};
use super::room::TableFull;
use super::table::Conntrack;
use super::tcp::{Step, TcpTrack};
use super::{Holder, Track};
use crate::packet::{L4, Packet};
use crate::time::SimTime;
use crate::tuple::{Protocol, Tuple};

/// From when on a UDP flow may be called a stream.
// Kernel: nf_conntrack_proto_udp.c, nf_conntrack_udp_packet
const STREAM_AFTER: Duration = Duration::from_secs(2);

impl Conntrack {
    /// Finds the packet's entry or makes a tentative one, which is put into `own`.
    ///
    /// `unknown` is called before one is made. `zones` are what rules have put the packet into; `received` tells that it comes from the
    /// network, where checksums are looked at.
    // Kernel: nf_conntrack_core.c, nf_conntrack_in
    #[inline]
    pub(crate) fn track(
        &mut self,
        now: SimTime,
        packet: &Packet,
        zones: [u16; 2],
        received: bool,
        own: &mut Option<Entry>,
        unknown: impl FnOnce(),
    ) -> Result<Track, TableFull> {
        if packet.bad_checksum && received && self.sysctls.checksum {
            return Ok(self.invalid(packet));
        }
        if let L4::IcmpError { quote, .. } = &packet.l4 {
            return Ok(self.track_error(now, packet, quote, zones));
        }
        if is_neighbour_discovery(&packet.tuple) {
            return Ok(Track::UNTRACKED);
        }
        if let Some((index, direction)) = self.find(now, &packet.tuple, zones)
            && let Some(track) = self.update(now, packet, index, direction, own)
        {
            return Ok(track);
        }
        unknown();
        self.create(now, packet, zones, own)
    }

    #[cold]
    fn invalid(&mut self, packet: &Packet) -> Track {
        // Kernel: nf_conntrack_core.c, nf_conntrack_handle_icmp counts apart.
        if packet.is_icmp_error() || packet.bad_checksum && packet.tuple.protocol.is_icmp() {
            self.stats.error += 1;
        } else {
            self.stats.invalid += 1;
        }
        Track::INVALID
    }

    /// Attaches the entry that an ICMP error is about.
    // Kernel: nf_conntrack_proto_icmp.c, nf_conntrack_inet_error
    fn track_error(
        &mut self,
        now: SimTime,
        packet: &Packet,
        quote: &Tuple,
        zones: [u16; 2],
    ) -> Track {
        let Some((index, direction)) = self.find(now, &quote.reply(), zones) else {
            return self.invalid(packet);
        };
        // An error must go to where the quoted packet came from.
        if self.entry_at(index).tuple(direction).dst() != packet.tuple.dst() {
            return self.invalid(packet);
        }
        let holder = Holder::Table(self.entry_ref(index));
        Track { holder, info: CtInfo::Related, direction }
    }

    /// Takes a packet of a known connection; `None` if the connection makes way for a new one.
    // Kernel: nf_conntrack_core.c, resolve_normal_ct and nf_conntrack_in
    #[inline]
    fn update(
        &mut self,
        now: SimTime,
        packet: &Packet,
        index: u32,
        direction: Direction,
        own: &mut Option<Entry>,
    ) -> Option<Track> {
        let at = self.entry_ref(index);
        let sysctls = &self.sysctls;
        let entry = self.slab[index as usize].entry.as_mut().expect("found");
        let known = entry.known(now);
        let seen_reply = known.seen_reply;
        let info = match direction {
            Direction::Original if !seen_reply => CtInfo::New,
            _ => CtInfo::Established,
        };
        let assured = known.assured;
        let refresh = |timeout| Step::Refresh { timeout, assured };
        let stream = |timeout| Step::Refresh { timeout, assured: true };
        let step = match (&mut entry.protocol, &packet.l4) {
            (ProtocolState::Tcp(track), L4::Tcp { flags, segment }) => {
                track.segment(direction, *flags, segment.as_ref(), known, sysctls)
            }
            (ProtocolState::Tcp(_), _) => Step::Invalid,
            // Kernel: nf_conntrack_proto_udp.c, nf_conntrack_udp_packet
            (ProtocolState::Udp(stream_from), _) if seen_reply && now > *stream_from => {
                stream(sysctls.udp_timeout_stream)
            }
            (ProtocolState::UdpLite, _) if seen_reply => stream(sysctls.udp_timeout_stream),
            (ProtocolState::Udp(_) | ProtocolState::UdpLite, _) => refresh(sysctls.udp_timeout),
            // Kernel: nf_conntrack_proto_gre.c, nf_conntrack_gre_packet
            (ProtocolState::Gre, _) if seen_reply => stream(sysctls.gre_timeout_stream),
            (ProtocolState::Gre, _) => refresh(sysctls.gre_timeout),
            (ProtocolState::Sctp, _) if seen_reply || direction == Direction::Reply => {
                stream(sysctls.sctp_timeout_established)
            }
            (ProtocolState::Sctp, _) => refresh(sysctls.sctp_timeout_cookie_wait),
            (ProtocolState::Icmp, _) if packet.tuple.protocol == Protocol::ICMPV6 => {
                refresh(sysctls.icmpv6_timeout)
            }
            (ProtocolState::Icmp, _) => refresh(sysctls.icmp_timeout),
            (ProtocolState::Other, _) => refresh(sysctls.generic_timeout),
        };
        match step {
            Step::Invalid => return Some(self.invalid(packet)),
            Step::InvalidShortens { timeout } => {
                entry.refresh(now, timeout);
                return Some(self.invalid(packet));
            }
            Step::Reopen => {
                self.remove(index);
                return None;
            }
            Step::Remove => {
                let mut entry = self.take(index);
                if direction == Direction::Reply {
                    entry.status.insert(Status::SEEN_REPLY);
                }
                *own = Some(entry);
                return Some(Track { holder: Holder::Removed, info, direction });
            }
            Step::Ignore => {}
            Step::Refresh { timeout, assured } => {
                entry.refresh(now, timeout);
                if assured && !entry.status.contains(Status::NAT_CLASH) {
                    entry.status.insert(Status::ASSURED);
                }
            }
        }
        if direction == Direction::Reply {
            entry.status.insert(Status::SEEN_REPLY);
            // The loser of a clash has had its answer.
            if entry.status.contains(Status::NAT_CLASH) {
                *own = Some(self.take(index));
                return Some(Track { holder: Holder::Removed, info, direction });
            }
        }
        Some(Track { holder: Holder::Table(at), info, direction })
    }

    /// Makes a tentative entry, unless no connection begins with such a packet.
    // Kernel: nf_conntrack_core.c, init_conntrack
    fn create(
        &mut self,
        now: SimTime,
        packet: &Packet,
        zones: [u16; 2],
        own: &mut Option<Entry>,
    ) -> Result<Track, TableFull> {
        let Some((protocol, timeout)) = self.open(now, packet) else {
            return Ok(self.invalid(packet));
        };
        // Here, where the table has just been asked, memory is waited for anyway.
        self.expire(now);
        self.make_room(now, &packet.tuple, zones[0])?;
        *own = Some(Entry {
            original: packet.tuple,
            reply: packet.tuple.reply(),
            status: Status::default(),
            protocol,
            deadline: now + timeout,
            mark: 0,
            zones,
            dnat_rule: None,
            masquerade_dev: None,
        });
        let holder = Holder::Tentative;
        Ok(Track { holder, info: CtInfo::New, direction: Direction::Original })
    }

    fn open(&self, now: SimTime, packet: &Packet) -> Option<(ProtocolState, Duration)> {
        let sysctls = &self.sysctls;
        match &packet.l4 {
            L4::Tcp { flags, segment } => {
                let (track, timeout) = TcpTrack::open(*flags, segment.as_ref(), sysctls)?;
                Some((ProtocolState::Tcp(track), timeout))
            }
            L4::Udp => {
                let stream_from = now + STREAM_AFTER;
                Some((ProtocolState::Udp(stream_from), sysctls.udp_timeout))
            }
            L4::IcmpEcho => {
                let kind = packet.tuple.icmp_kind().0;
                match packet.tuple.protocol {
                    Protocol::ICMP => matches!(kind, 8 | 13 | 15 | 17)
                        .then_some((ProtocolState::Icmp, sysctls.icmp_timeout)),
                    _ => matches!(kind, 128 | 139)
                        .then_some((ProtocolState::Icmp, sysctls.icmpv6_timeout)),
                }
            }
            L4::Other => Some(match packet.tuple.protocol {
                Protocol::UDPLITE => (ProtocolState::UdpLite, sysctls.udp_timeout),
                Protocol::SCTP => (ProtocolState::Sctp, sysctls.sctp_timeout_cookie_wait),
                Protocol::GRE => (ProtocolState::Gre, sysctls.gre_timeout),
                _ => (ProtocolState::Other, sysctls.generic_timeout),
            }),
            L4::IcmpError { .. } => None,
        }
    }
}

/// Returns whether a packet is of IPv6's own household, which is not tracked.
// Kernel: nf_conntrack_proto_icmpv6.c, noct_valid_new
fn is_neighbour_discovery(tuple: &Tuple) -> bool {
    tuple.protocol == Protocol::ICMPV6 && matches!(tuple.icmp_kind().0, 130..=136 | 143)
}
