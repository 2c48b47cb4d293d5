//! The TCP state machine of connection tracking.
//!
//! Flags alone move a connection from state to state; where a packet says where it stands in its
//! stream ([`Segment`]), it must also lie in the window that the two ends allow each other.

use std::time::Duration;

use crate::conntrack::{Direction, Sysctls};
use crate::packet::{Segment, TcpFlags};

#[cfg(test)]
mod tests;
mod window;

use window::{Fit, Windows};

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

impl TcpState {
    /// All states with the names that `conntrack -L` prints.
    pub const NAMES: [(TcpState, &'static str); 9] = [
        (TcpState::SynSent, "SYN_SENT"),
        (TcpState::SynRecv, "SYN_RECV"),
        (TcpState::Established, "ESTABLISHED"),
        (TcpState::FinWait, "FIN_WAIT"),
        (TcpState::CloseWait, "CLOSE_WAIT"),
        (TcpState::LastAck, "LAST_ACK"),
        (TcpState::TimeWait, "TIME_WAIT"),
        (TcpState::Close, "CLOSE"),
        (TcpState::SynSent2, "SYN_SENT2"),
    ];

    /// Returns the state's name as `conntrack -L` prints it.
    pub fn name(self) -> &'static str {
        let named = TcpState::NAMES.iter().find(|(state, _)| *state == self);
        named.map_or("NONE", |(_, name)| name)
    }
}

/// A TCP connection as tracked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TcpTrack {
    pub(crate) state: TcpState,
    /// Some side has sent a FIN.
    fin_seen: bool,
    /// SYNs were seen in both directions.
    simultaneous: bool,
    /// A SYN passed in LAST_ACK, which the other end may challenge.
    challenge: bool,
    /// The last segment that was not INVALID.
    last: Option<(Kind, Direction)>,
    /// Where both ends stand, if segments say so.
    // Boxed: where no packet has sequence numbers, entries stay small.
    windows: Option<Box<Windows>>,
}

/// What is known of a connection besides its TCP state.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Known {
    /// An answer was seen before this segment.
    pub(crate) seen_reply: bool,
    pub(crate) assured: bool,
    /// How long the entry would live without this segment.
    pub(crate) left: Duration,
}

/// What a segment does to an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Nothing; the packet is INVALID.
    Invalid,
    /// The packet is INVALID, but shows that the entry is out of step: it ends sooner.
    InvalidShortens {
        /// How long it lives.
        timeout: Duration,
    },
    /// The packet passes; how long the entry lives is as before.
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

/// What a reset is, judged by its number before the window is looked at.
enum Reset {
    /// None of this connection.
    Invalid,
    /// One that need not be in the window.
    Exact,
    /// One that must be in the window, and what it leads to then.
    InWindow(TcpState),
}

impl TcpTrack {
    /// Returns the tracking of a connection in a state, of which nothing else is known.
    pub(crate) const fn picked_up(state: TcpState) -> TcpTrack {
        TcpTrack {
            state,
            fin_seen: false,
            simultaneous: false,
            challenge: false,
            last: None,
            windows: None,
        }
    }

    /// Returns the tracking of a connection whose first segment this is, and how long it lives;
    /// `None` if no connection begins so.
    // Kernel: nf_conntrack_proto_tcp.c, tcp_new
    pub(crate) fn open(
        flags: TcpFlags,
        segment: Option<&Segment>,
        sysctls: &Sysctls,
    ) -> Option<(TcpTrack, Duration)> {
        let kind = kind(flags)?;
        let (state, timeout) = match kind {
            Kind::Syn => (TcpState::SynSent, sysctls.tcp_timeout_syn_sent),
            Kind::Ack if sysctls.tcp_loose => {
                let timeout = sysctls.tcp_timeout_unacknowledged;
                (TcpState::Established, timeout.min(sysctls.tcp_timeout_established))
            }
            _ => return None,
        };
        let mut track = TcpTrack::picked_up(state);
        if let Some(segment) = segment {
            let mut windows = Windows::open(flags, segment);
            windows.take(Direction::Original, flags, kind == Kind::Ack, state, segment, sysctls);
            track.windows = Some(Box::new(windows));
        }
        track.last = Some((kind, Direction::Original));
        Some((track, timeout))
    }

    /// Takes a segment of a tracked connection.
    // Kernel: nf_conntrack_proto_tcp.c, nf_conntrack_tcp_packet
    #[inline]
    pub(crate) fn segment(
        &mut self,
        direction: Direction,
        flags: TcpFlags,
        segment: Option<&Segment>,
        known: Known,
        sysctls: &Sysctls,
    ) -> Step {
        let Some(kind) = kind(flags) else {
            return Step::Invalid;
        };
        let mut old = self.state;
        let mut new = match cell(direction, kind, old) {
            Cell::Invalid => return Step::Invalid,
            Cell::To(state) => state,
            Cell::Syn if self.fin_seen || self.last == Some((Kind::Rst, direction)) => {
                return Step::Reopen;
            }
            Cell::Ignore | Cell::Syn => {
                if !self.answers_ignored_syn(direction, kind, segment) {
                    self.ignore(direction, kind, flags, segment);
                    return Step::Ignore;
                }
                // The server acknowledges a SYN that did not fit: the connection begins anew.
                if let Some(windows) = &mut self.windows {
                    windows.begin_anew(direction.other());
                }
                old = TcpState::SynSent;
                self.fin_seen = false;
                self.challenge = false;
                TcpState::SynRecv
            }
        };
        match new {
            // RFC 5961: the answer to a SYN that does not fit does not acknowledge the last FIN.
            TcpState::TimeWait
                if old == TcpState::LastAck
                    && kind == Kind::Ack
                    && self.challenge
                    && self.last == Some((Kind::Syn, direction.other())) =>
            {
                self.challenge = false;
                return Step::Ignore;
            }
            TcpState::SynSent2 => self.simultaneous = true,
            TcpState::SynRecv
                if direction == Direction::Reply && kind == Kind::Ack && self.simultaneous =>
            {
                new = TcpState::Established;
            }
            _ => {}
        }
        if let Some(segment) = segment {
            let reset = match kind {
                Kind::Rst => self.judge_reset(direction, segment, known, sysctls),
                _ => Reset::InWindow(new),
            };
            match reset {
                Reset::Invalid => return Step::Invalid,
                Reset::Exact => {}
                Reset::InWindow(state) => {
                    new = state;
                    let windows = self.windows.get_or_insert_default();
                    let is_ack = kind == Kind::Ack;
                    match windows.take(direction, flags, is_ack, self.state, segment, sysctls) {
                        Fit::Yes => {}
                        Fit::Ignore => return Step::Ignore,
                        Fit::No => return self.out_of_window(direction, kind, known, sysctls),
                    }
                }
            }
        }
        self.last = Some((kind, direction));
        self.fin_seen |= new == TcpState::FinWait && old != new;
        self.state = new;
        self.refresh(kind, old, segment.is_some(), known, sysctls)
    }

    /// Decides how long the entry lives after a segment that fits.
    fn refresh(
        &self,
        kind: Kind,
        old: TcpState,
        has_segment: bool,
        known: Known,
        sysctls: &Sysctls,
    ) -> Step {
        let Known { seen_reply, assured, .. } = known;
        let new = self.state;
        // A refused connection leaves nothing.
        if kind == Kind::Rst && !seen_reply {
            return Step::Remove;
        }
        // A SYN that is sent again does not renew the entry, lest a client that uses its port
        // again keeps an old mapping alive.
        if kind == Kind::Syn && old == TcpState::SynSent && !seen_reply {
            return Step::Ignore;
        }
        let mut timeout = timeout(new, sysctls);
        let windows = self.windows.as_deref().filter(|_| has_segment);
        if let Some(windows) = windows
            && windows.retransmits(sysctls)
        {
            timeout = timeout.min(sysctls.tcp_timeout_max_retrans);
        } else if kind == Kind::Rst {
            timeout = sysctls.tcp_timeout_close;
        } else if let Some(windows) = windows {
            if windows.has_unacknowledged_data() {
                timeout = timeout.min(sysctls.tcp_timeout_unacknowledged);
            } else if windows.is_closed() {
                timeout = timeout.min(sysctls.tcp_timeout_max_retrans);
            }
        }
        if !seen_reply && new == TcpState::Established {
            timeout = timeout.min(sysctls.tcp_timeout_unacknowledged);
        }
        let assured = assured
            || seen_reply
                && matches!(old, TcpState::SynRecv | TcpState::Established)
                && new == TcpState::Established;
        Step::Refresh { timeout, assured }
    }

    /// Returns whether the server acknowledges a SYN that did not fit and passed all the same.
    fn answers_ignored_syn(
        &self,
        direction: Direction,
        kind: Kind,
        segment: Option<&Segment>,
    ) -> bool {
        kind == Kind::SynAck
            && self.last == Some((Kind::Syn, direction.other()))
            && match (segment, &self.windows) {
                (Some(segment), Some(windows)) => windows.ends_at(segment.ack),
                _ => true,
            }
    }

    /// Notes a segment that does not fit the connection but may fit the two ends.
    fn ignore(
        &mut self,
        direction: Direction,
        kind: Kind,
        flags: TcpFlags,
        segment: Option<&Segment>,
    ) {
        self.last = Some((kind, direction));
        let client_syn = kind == Kind::Syn && direction == Direction::Original;
        if client_syn {
            self.challenge = self.state == TcpState::LastAck;
        }
        let challenge =
            self.state == TcpState::SynSent && kind == Kind::Ack && direction == Direction::Reply;
        if let Some(segment) = segment {
            let windows = self.windows.get_or_insert_default();
            windows.note(direction, flags, segment, client_syn, challenge);
        }
    }

    fn judge_reset(
        &self,
        direction: Direction,
        segment: &Segment,
        known: Known,
        sysctls: &Sysctls,
    ) -> Reset {
        let Some(windows) = &self.windows else {
            return Reset::InWindow(TcpState::Close);
        };
        // A connection that is closing may be dropped early anyhow; its numbers may be another's.
        if self.is_closing() {
            return Reset::Exact;
        }
        let mut new = TcpState::Close;
        let last_kind = self.last.map(|(kind, _)| kind);
        let established = self.state == TcpState::Established && known.assured;
        // After a SYN that was let through, what was acknowledged may be of another connection.
        if last_kind != Some(Kind::Syn)
            && let Some(acknowledged) = windows.acknowledged(direction.other())
        {
            if segment.seq == 0 && !established {
                return Reset::InWindow(new);
            }
            if window::before(segment.seq, acknowledged) && !sysctls.tcp_ignore_invalid_rst {
                return Reset::Invalid;
            }
            let follows_data =
                self.last == Some((Kind::Ack, direction)) && windows.ends_at(segment.seq);
            if !established || segment.seq == acknowledged || follows_data {
                return Reset::InWindow(new);
            }
            // Not exact: the receiver may challenge it, and the connection go on.
            new = self.state;
        }
        let answers_what_passed = known.seen_reply && last_kind == Some(Kind::Syn)
            || !known.assured && last_kind == Some(Kind::Ack);
        if answers_what_passed && windows.ends_at(segment.ack) {
            return Reset::Exact;
        }
        if self.state == TcpState::SynSent
            && self.last == Some((Kind::Ack, Direction::Reply))
            && windows.challenged(segment.seq)
        {
            return Reset::Exact;
        }
        Reset::InWindow(new)
    }

    /// Takes a segment beyond the window: two resets or FINs in a row, one from each end, tell
    /// that the connection is over.
    // Kernel: nf_conntrack_proto_tcp.c, nf_tcp_handle_invalid
    fn out_of_window(
        &mut self,
        direction: Direction,
        kind: Kind,
        known: Known,
        sysctls: &Sysctls,
    ) -> Step {
        const SHORT: Duration = Duration::from_secs(120);
        if !known.assured || !matches!(kind, Kind::Rst | Kind::Fin) {
            return Step::Invalid;
        }
        let other = direction.other();
        if self.last == Some((Kind::Fin, other)) || self.last == Some((Kind::Rst, other)) {
            let timeout = sysctls.tcp_timeout_unacknowledged;
            if known.left >= SHORT && known.left > timeout {
                return Step::InvalidShortens { timeout };
            }
        } else {
            self.last = Some((kind, direction));
        }
        Step::Invalid
    }

    /// Returns whether the connection may make room for others although it is assured.
    // Kernel: nf_conntrack_proto_tcp.c, tcp_can_early_drop
    pub(crate) const fn is_closing(&self) -> bool {
        matches!(
            self.state,
            TcpState::FinWait
                | TcpState::CloseWait
                | TcpState::LastAck
                | TcpState::TimeWait
                | TcpState::Close
        )
    }

    /// Returns whether a new connection may take the tuple of this one, which has ended.
    // Kernel: nf_nat_core.c, nf_nat_may_kill and nf_seq_has_advanced
    // Simplified: where packets have no sequence numbers, none is taken to have advanced.
    pub(crate) fn gives_way_to(&self, new: &TcpTrack) -> bool {
        let ended = matches!(self.state, TcpState::TimeWait | TcpState::Close | TcpState::SynSent2);
        let (Some(old_windows), Some(new_windows)) = (&self.windows, &new.windows) else {
            return false;
        };
        ended && new.state == TcpState::SynSent && new_windows.begins_after(old_windows)
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
