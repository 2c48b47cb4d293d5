//! The TCP state machine of connection tracking.
//!
//! It follows flags alone.
// Simplified: no window check. Sequence numbers are not modelled, so segments are never INVALID
// for being out of window, resets are always exact, and the shorter timeouts of unacknowledged
// data and repeated acknowledgements do not apply.

use std::time::Duration;

use crate::conntrack::{Direction, Sysctls};
use crate::packet::TcpFlags;

/// Where a TCP connection stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum TcpState {
    /// A SYN was seen.
    SynSent,
    /// Its SYN+ACK was seen.
    SynRecv,
    /// The handshake is done, or the connection was picked up in its middle.
    Established,
    /// One FIN was seen.
    FinWait,
    /// That FIN was acknowledged.
    CloseWait,
    /// Both FINs were seen.
    LastAck,
    /// The last FIN was acknowledged.
    TimeWait,
    /// A RST was seen.
    Close,
    /// SYNs were seen in both directions.
    SynSent2,
}

/// A TCP connection as tracked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TcpTrack {
    pub(crate) state: TcpState,
    /// Some side has sent a FIN.
    fin_seen: bool,
    /// The last segment was a RST of the client.
    reset_by_original: bool,
    /// The last segment was a SYN of the client that did not fit and passed all the same.
    syn_ignored: bool,
}

/// What a segment does to an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Nothing; the packet is INVALID.
    Invalid,
    /// Nothing; the packet passes.
    Ignore,
    /// The entry goes, and a new one is made for the packet.
    Reopen,
    /// The entry goes; the packet passes.
    Remove,
    /// The entry lives for the time from now.
    Refresh {
        /// How long.
        timeout: Duration,
        /// Whether it may no longer be dropped early.
        assured: bool,
    },
}

/// What a segment is to the state machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Syn,
    SynAck,
    Fin,
    Ack,
    Rst,
}

/// What the table says about a segment in a state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cell {
    To(TcpState),
    Ignore,
    Invalid,
    /// A SYN on an entry that has ended: a new connection if it has ended well.
    Syn,
}

/// Returns the segment's kind, or `None` for flags that make no sense together.
// Kernel: nf_conntrack_proto_tcp.c, tcp_valid_flags and get_conntrack_index
fn kind(flags: TcpFlags) -> Option<Kind> {
    const URG: TcpFlags = TcpFlags::URG;
    let relevant = flags.masked(TcpFlags::FIN_SYN_RST_ACK | URG);
    let is = |wanted: TcpFlags| relevant == wanted;
    let or_urgent = |wanted: TcpFlags| is(wanted) || is(wanted | URG);
    if or_urgent(TcpFlags::SYN) {
        Some(Kind::Syn)
    } else if is(TcpFlags::SYN_ACK) {
        Some(Kind::SynAck)
    } else if is(TcpFlags::RST) || is(TcpFlags::RST | TcpFlags::ACK) {
        Some(Kind::Rst)
    } else if or_urgent(TcpFlags::FIN | TcpFlags::ACK) {
        Some(Kind::Fin)
    } else if or_urgent(TcpFlags::ACK) {
        Some(Kind::Ack)
    } else {
        None
    }
}

// Kernel: nf_conntrack_proto_tcp.c, tcp_conntracks
fn cell(direction: Direction, kind: Kind, state: TcpState) -> Cell {
    use Cell::{Ignore, Invalid, To};
    use Direction::{Original, Reply};
    use TcpState::*;
    match (direction, kind, state) {
        (_, Kind::Rst, _) => To(Close),

        (Original, Kind::Syn, SynSent) => To(SynSent),
        (Original, Kind::Syn, SynSent2) => To(SynSent2),
        (Original, Kind::Syn, TimeWait | Close) => Cell::Syn,
        (Original, Kind::Syn, _) => Ignore,
        (Reply, Kind::Syn, SynSent | SynSent2) => To(SynSent2),
        (Reply, Kind::Syn, TimeWait) => Cell::Syn,
        (Reply, Kind::Syn, _) => Invalid,

        (Original, Kind::SynAck, SynRecv | SynSent2) => To(SynRecv),
        (Original, Kind::SynAck, _) => Invalid,
        (Reply, Kind::SynAck, SynSent | SynSent2) => To(SynRecv),
        (Reply, Kind::SynAck, _) => Ignore,

        (_, Kind::Fin, SynSent | SynSent2) => Invalid,
        (_, Kind::Fin, SynRecv | Established) => To(FinWait),
        (_, Kind::Fin, FinWait | CloseWait | LastAck) => To(LastAck),
        (_, Kind::Fin, TimeWait) => To(TimeWait),
        (_, Kind::Fin, Close) => To(Close),

        (Original, Kind::Ack, SynSent | SynSent2) => Invalid,
        (Reply, Kind::Ack, SynSent | SynSent2) => Ignore,
        (Original, Kind::Ack, SynRecv) => To(Established),
        (Reply, Kind::Ack, SynRecv) => To(SynRecv),
        (_, Kind::Ack, Established) => To(Established),
        (_, Kind::Ack, FinWait | CloseWait) => To(CloseWait),
        (_, Kind::Ack, LastAck | TimeWait) => To(TimeWait),
        (_, Kind::Ack, Close) => To(Close),
    }
}

impl TcpTrack {
    /// Returns the tracking of a connection whose first segment this is, and how long it lives;
    /// `None` if no connection begins so.
    pub(crate) fn open(flags: TcpFlags, sysctls: &Sysctls) -> Option<(TcpTrack, Duration)> {
        let (state, timeout) = match kind(flags)? {
            Kind::Syn => (TcpState::SynSent, sysctls.tcp_timeout_syn_sent),
            Kind::Ack if sysctls.tcp_loose => {
                let timeout = sysctls.tcp_timeout_unacknowledged;
                (TcpState::Established, timeout.min(sysctls.tcp_timeout_established))
            }
            _ => return None,
        };
        let track =
            TcpTrack { state, fin_seen: false, reset_by_original: false, syn_ignored: false };
        Some((track, timeout))
    }

    /// Takes a segment of a tracked connection.
    ///
    /// `seen_reply` and `assured` tell what is known of the entry before the segment.
    // Kernel: nf_conntrack_proto_tcp.c, nf_conntrack_tcp_packet
    #[inline]
    pub(crate) fn segment(
        &mut self,
        direction: Direction,
        flags: TcpFlags,
        seen_reply: bool,
        assured: bool,
        sysctls: &Sysctls,
    ) -> Step {
        let Some(kind) = kind(flags) else {
            return Step::Invalid;
        };
        let mut old = self.state;
        let new = match cell(direction, kind, old) {
            Cell::Invalid => return Step::Invalid,
            Cell::To(state) => state,
            Cell::Syn if self.fin_seen || self.reset_by_original => return Step::Reopen,
            Cell::Ignore | Cell::Syn => {
                let answers = kind == Kind::SynAck
                    && direction == Direction::Reply
                    && std::mem::take(&mut self.syn_ignored);
                if !answers {
                    self.syn_ignored = kind == Kind::Syn && direction == Direction::Original;
                    self.reset_by_original = false;
                    return Step::Ignore;
                }
                // The server acknowledges a SYN that did not fit: the connection begins anew.
                old = TcpState::SynSent;
                self.fin_seen = false;
                TcpState::SynRecv
            }
        };
        self.syn_ignored = false;
        self.reset_by_original = kind == Kind::Rst && direction == Direction::Original;
        self.fin_seen |= new == TcpState::FinWait;
        self.state = new;
        // A refused connection leaves nothing.
        if kind == Kind::Rst && !seen_reply {
            return Step::Remove;
        }
        let mut timeout = timeout(new, sysctls);
        if !seen_reply && new == TcpState::Established {
            timeout = timeout.min(sysctls.tcp_timeout_unacknowledged);
        }
        let assured = assured
            || seen_reply
                && matches!(old, TcpState::SynRecv | TcpState::Established)
                && new == TcpState::Established;
        Step::Refresh { timeout, assured }
    }
}

fn timeout(state: TcpState, sysctls: &Sysctls) -> Duration {
    match state {
        TcpState::SynSent | TcpState::SynSent2 => sysctls.tcp_timeout_syn_sent,
        TcpState::SynRecv => sysctls.tcp_timeout_syn_recv,
        TcpState::Established => sysctls.tcp_timeout_established,
        TcpState::FinWait => sysctls.tcp_timeout_fin_wait,
        TcpState::CloseWait => sysctls.tcp_timeout_close_wait,
        TcpState::LastAck => sysctls.tcp_timeout_last_ack,
        TcpState::TimeWait => sysctls.tcp_timeout_time_wait,
        TcpState::Close => sysctls.tcp_timeout_close,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STATES: [TcpState; 9] = [
        TcpState::SynSent,
        TcpState::SynRecv,
        TcpState::Established,
        TcpState::FinWait,
        TcpState::CloseWait,
        TcpState::LastAck,
        TcpState::TimeWait,
        TcpState::Close,
        TcpState::SynSent2,
    ];

    fn name(state: TcpState) -> &'static str {
        match state {
            TcpState::SynSent => "SS",
            TcpState::SynRecv => "SR",
            TcpState::Established => "ES",
            TcpState::FinWait => "FW",
            TcpState::CloseWait => "CW",
            TcpState::LastAck => "LA",
            TcpState::TimeWait => "TW",
            TcpState::Close => "CL",
            TcpState::SynSent2 => "S2",
        }
    }

    /// What a segment does to an answered connection in a state: the new state, `.` ignored,
    /// `IV` invalid, `new` reopened.
    fn row(direction: Direction, flags: TcpFlags) -> String {
        let cells = STATES.map(|state| {
            let fin_seen = state == TcpState::TimeWait;
            let mut track =
                TcpTrack { state, fin_seen, reset_by_original: false, syn_ignored: false };
            match track.segment(direction, flags, true, true, &Sysctls::default()) {
                Step::Invalid => "IV",
                Step::Ignore => ".",
                Step::Reopen => "new",
                Step::Remove => "gone",
                Step::Refresh { .. } => name(track.state),
            }
        });
        cells.join(" ")
    }

    // The cells were measured on Linux 6.18.
    #[test]
    fn every_cell() {
        use Direction::{Original, Reply};
        const SYN: TcpFlags = TcpFlags::SYN;
        const ACK: TcpFlags = TcpFlags::ACK;
        let fin_ack = TcpFlags::FIN | ACK;
        let rows = [
            (Original, SYN, "SS . . . . . new . S2"),
            (Original, TcpFlags::SYN_ACK, "IV SR IV IV IV IV IV IV SR"),
            (Original, fin_ack, "IV FW FW LA LA LA TW CL IV"),
            (Original, ACK, "IV ES ES CW CW TW TW CL IV"),
            (Original, TcpFlags::RST, "CL CL CL CL CL CL CL CL CL"),
            (Original, TcpFlags::NONE, "IV IV IV IV IV IV IV IV IV"),
            (Reply, SYN, "S2 IV IV IV IV IV new IV S2"),
            (Reply, TcpFlags::SYN_ACK, "SR . . . . . . . SR"),
            (Reply, fin_ack, "IV FW FW LA LA LA TW CL IV"),
            (Reply, ACK, ". SR ES CW CW TW TW CL ."),
            (Reply, TcpFlags::RST | ACK, "CL CL CL CL CL CL CL CL CL"),
        ];
        for (direction, flags, expected) in rows {
            assert_eq!(row(direction, flags), expected, "{direction:?} {flags:?}");
        }
    }

    #[test]
    fn only_a_syn_or_a_bare_ack_opens() {
        let open = |flags, tcp_loose| {
            let sysctls = Sysctls { tcp_loose, ..Sysctls::default() };
            TcpTrack::open(flags, &sysctls).map(|(track, life)| (track.state, life.as_secs()))
        };
        assert_eq!(open(TcpFlags::SYN, false), Some((TcpState::SynSent, 120)));
        assert_eq!(open(TcpFlags::ACK, true), Some((TcpState::Established, 300)));
        let pushed = TcpFlags::ACK | TcpFlags::PSH;
        assert_eq!(open(pushed, true), Some((TcpState::Established, 300)), "PSH does not count");
        assert_eq!(open(TcpFlags::ACK, false), None);
        for flags in [TcpFlags::SYN_ACK, TcpFlags::RST, TcpFlags::FIN | TcpFlags::ACK] {
            assert_eq!(open(flags, true), None, "{flags:?}");
        }
        let christmas = TcpFlags::SYN | TcpFlags::FIN;
        assert_eq!(open(christmas, true), None, "makes no sense");
    }

    #[test]
    fn a_server_reset_keeps_the_mapping_and_the_next_handshake_revives_it() {
        let sysctls = Sysctls::default();
        let (mut track, _) = TcpTrack::open(TcpFlags::SYN, &sysctls).unwrap();
        let mut pass = |direction, flags| track.segment(direction, flags, true, true, &sysctls);
        use Direction::{Original, Reply};
        let _ = pass(Reply, TcpFlags::SYN_ACK);
        let _ = pass(Original, TcpFlags::ACK);
        let _ = pass(Reply, TcpFlags::RST);
        assert_eq!(pass(Original, TcpFlags::SYN), Step::Ignore, "the old mapping");
        let _ = pass(Reply, TcpFlags::SYN_ACK);
        assert_eq!(track.state, TcpState::SynRecv);
    }

    #[test]
    fn a_client_reset_lets_the_next_syn_open_anew() {
        let sysctls = Sysctls::default();
        let (mut track, _) = TcpTrack::open(TcpFlags::SYN, &sysctls).unwrap();
        let mut pass = |direction, flags| track.segment(direction, flags, true, true, &sysctls);
        let _ = pass(Direction::Reply, TcpFlags::SYN_ACK);
        let _ = pass(Direction::Original, TcpFlags::RST);
        assert_eq!(pass(Direction::Original, TcpFlags::SYN), Step::Reopen);
    }
}
