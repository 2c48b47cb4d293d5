//! Where the two ends of a TCP connection stand, and whether a segment lies in the window.
//!
//! For each end the table remembers how far its data goes (`end`), how far the other end lets it
//! go (`max_end`), and the widest window it has offered.

use crate::conntrack::{Direction, Sysctls, TcpState};
use crate::packet::{Segment, TcpFlags};

/// How far behind what it acknowledges a segment may be at least.
// Kernel: nf_conntrack_proto_tcp.c, MAXACKWINCONST
const ACK_WINDOW_MIN: u32 = 66_000;

/// The widest scale of RFC 7323.
const SCALE_MAX: u8 = 14;

/// Whether a segment lies in the window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fit {
    /// It does.
    Yes,
    /// It is old, or a little ahead: it passes, and changes nothing.
    Ignore,
    /// It does not.
    No,
}

/// What is known of one end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct End {
    /// Where its data ends.
    end: u32,
    /// Where its data may end.
    max_end: u32,
    /// The widest window that it has offered; 0 if nothing was seen of it.
    max_window: u32,
    /// The most that it has acknowledged.
    max_ack: Option<u32>,
    scale: u8,
    has_scale: bool,
    has_sack: bool,
    /// The connection was picked up in its middle: windows are not enforced.
    liberal: bool,
    /// It has sent data that was not acknowledged.
    unacknowledged: bool,
}

/// Both ends, and the last segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Windows {
    ends: [End; 2],
    /// The direction of the last acknowledgement.
    last_direction: Option<Direction>,
    last_seq: u32,
    last_ack: u32,
    last_end: u32,
    last_window: u16,
    /// What the last SYN that did not fit announced.
    noted: End,
    /// How often the last acknowledgement was repeated.
    repeats: u8,
}

/// For a connection of which no sequence numbers were seen when it began.
impl Default for Windows {
    fn default() -> Windows {
        let end = End { has_sack: true, liberal: true, ..End::default() };
        Windows {
            ends: [end; 2],
            last_direction: None,
            last_seq: 0,
            last_ack: 0,
            last_end: 0,
            last_window: 0,
            noted: End::default(),
            repeats: 0,
        }
    }
}

/// Returns whether a sequence number stands before another.
pub(super) const fn before(a: u32, b: u32) -> bool {
    (a.wrapping_sub(b) as i32) < 0
}

const fn after(a: u32, b: u32) -> bool {
    before(b, a)
}

/// Returns where a segment ends: SYN and FIN count as a byte.
const fn end_of(flags: TcpFlags, segment: &Segment) -> u32 {
    let flag_bytes = flags.contains(TcpFlags::SYN) as u32 + flags.contains(TcpFlags::FIN) as u32;
    segment.seq.wrapping_add(segment.data as u32).wrapping_add(flag_bytes)
}

/// Returns a window that is not taken for unknown.
const fn at_least_one(window: u32) -> u32 {
    if window == 0 { 1 } else { window }
}

impl End {
    /// Takes what a SYN announces.
    // Kernel: nf_conntrack_proto_tcp.c, tcp_options
    fn take_options(&mut self, segment: &Segment) {
        let has = |kind: u32| segment.options & 1 << kind != 0;
        // The kernel leaves all as it is if there are no options.
        if segment.options != 0 {
            self.has_scale = has(3);
            self.scale = if has(3) { segment.scale.min(SCALE_MAX) } else { 0 };
            self.has_sack = has(4);
            self.liberal = false;
            self.max_ack = None;
            self.unacknowledged = false;
        }
    }
}

impl Windows {
    /// Returns the windows as a first segment shows them.
    pub(super) fn open(flags: TcpFlags, segment: &Segment) -> Windows {
        let end = end_of(flags, segment);
        let max_window = at_least_one(u32::from(segment.window));
        let mut windows = Windows::default();
        if flags.contains(TcpFlags::SYN) {
            windows.ends = [End::default(); 2];
            let sender = &mut windows.ends[0];
            *sender = End { end, max_end: end, max_window, ..End::default() };
            sender.take_options(segment);
        } else {
            let sender = &mut windows.ends[0];
            sender.end = end;
            sender.max_window = max_window;
            sender.max_end = end.wrapping_add(max_window);
        }
        windows
    }

    /// Judges a segment, and learns from it if it fits.
    ///
    /// With `nf_conntrack_tcp_be_liberal`, and on a connection that was picked up in its middle,
    /// everything fits, but what would not teaches nothing.
    // Kernel: nf_conntrack_proto_tcp.c, tcp_in_window
    pub(super) fn take(
        &mut self,
        direction: Direction,
        flags: TcpFlags,
        is_ack: bool,
        state: TcpState,
        segment: &Segment,
        sysctls: &Sysctls,
    ) -> Fit {
        let (seq, end) = (segment.seq, end_of(flags, segment));
        let syn = flags.contains(TcpFlags::SYN);
        let (mut seq, mut end) = (seq, end);
        let [mut sender, mut receiver] = self.both(direction);
        let mut ack = segment.ack;
        let mut sack = ack;
        if receiver.has_sack && segment.options & 1 << 5 != 0 && after(segment.sack, sack) {
            sack = segment.sack;
        }
        let mut window = u32::from(segment.window);

        if sender.max_window == 0 && !syn {
            // The middle of a connection: what the segment says is believed.
            sender.end = end;
            sender.max_window = at_least_one(window << sender.scale);
            sender.max_end = end.wrapping_add(sender.max_window);
            if receiver.max_window == 0 {
                receiver.end = sack;
                receiver.max_end = sack;
            } else if sack == receiver.end.wrapping_add(1) {
                // Likely the answer to a keepalive.
                receiver.end = sack;
            }
        } else if sender.max_window == 0
            || syn
                && after(end, sender.end)
                && matches!(state, TcpState::SynSent | TcpState::SynRecv)
        {
            let first = sender.max_window == 0;
            init_sender(&mut sender, &mut receiver, segment, end, window, direction);
            if !flags.contains(TcpFlags::ACK) && (first || direction == Direction::Reply) {
                // A simultaneous open.
                self.set_both(direction, sender, receiver);
                return Fit::Yes;
            }
        }
        // What was learnt so far stays, whatever becomes of the segment.
        self.set_both(direction, sender, receiver);

        let has_ack = flags.contains(TcpFlags::ACK);
        let rst = flags.contains(TcpFlags::RST);
        if !has_ack || rst && ack == 0 {
            ack = receiver.end;
            sack = ack;
        }
        if rst && seq == 0 && state == TcpState::SynSent {
            // The answer to a SYN.
            seq = sender.end;
            end = sender.end;
        }
        let refused = |fit| {
            if sender.liberal || sysctls.tcp_be_liberal { Fit::Yes } else { fit }
        };
        let ack_window = sender.max_window.max(ACK_WINDOW_MIN);
        let ack_min = receiver.end.wrapping_sub(ack_window).wrapping_sub(1);
        let seq_min = sender.end.wrapping_sub(receiver.max_window).wrapping_sub(1);
        let acks_seen_data = before(sack, receiver.end.wrapping_add(1));
        if !before(seq, sender.max_end.wrapping_add(1)) {
            let overshot = end.wrapping_sub(sender.max_end).wrapping_add(1);
            let near = receiver.max_window != 0
                && after(end, seq_min)
                && after(sack, ack_min)
                && overshot <= receiver.max_window
                && acks_seen_data;
            if near {
                // The acknowledgement of these bytes must fit when it comes.
                sender.end = end;
                sender.unacknowledged = true;
                self.set_both(direction, sender, receiver);
                return refused(Fit::Ignore);
            }
            return refused(Fit::No);
        }
        if !acks_seen_data {
            return refused(Fit::No);
        }
        let old_data = receiver.max_window != 0 && !after(end, seq_min);
        if old_data || !after(sack, ack_min) {
            return refused(Fit::Ignore);
        }

        if !syn {
            window <<= sender.scale;
        }
        let offered = window.wrapping_add(sack.wrapping_sub(ack));
        sender.max_window = sender.max_window.max(offered);
        if after(end, sender.end) {
            sender.end = end;
            sender.unacknowledged = true;
        }
        if has_ack && sender.max_ack.is_none_or(|max_ack| after(ack, max_ack)) {
            sender.max_ack = Some(ack);
        }
        if receiver.max_window != 0 && after(end, sender.max_end) {
            let more = end.wrapping_sub(sender.max_end);
            receiver.max_window = receiver.max_window.wrapping_add(more);
        }
        let allowed = sack.wrapping_add(window);
        if after(allowed, receiver.max_end.wrapping_sub(1)) {
            receiver.max_end = allowed.wrapping_add(u32::from(window == 0));
        }
        if ack == receiver.end {
            receiver.unacknowledged = false;
        }
        self.set_both(direction, sender, receiver);
        if is_ack {
            self.count_repeats(direction, seq, ack, end, segment.window);
        }
        Fit::Yes
    }

    fn count_repeats(&mut self, direction: Direction, seq: u32, ack: u32, end: u32, window: u16) {
        let last = (self.last_direction, self.last_seq, self.last_ack, self.last_end);
        if last == (Some(direction), seq, ack, end) && self.last_window == window {
            self.repeats = self.repeats.saturating_add(1);
            return;
        }
        self.last_direction = Some(direction);
        self.last_seq = seq;
        self.last_ack = ack;
        self.last_end = end;
        self.last_window = window;
        self.repeats = 0;
    }

    /// Notes a segment that did not fit the connection and passed.
    pub(super) fn note(
        &mut self,
        direction: Direction,
        flags: TcpFlags,
        segment: &Segment,
        client_syn: bool,
        challenge: bool,
    ) {
        self.last_direction = Some(direction);
        self.last_seq = segment.seq;
        self.last_end = end_of(flags, segment);
        self.last_window = segment.window;
        if client_syn {
            self.noted = End::default();
            self.noted.take_options(segment);
        }
        if challenge {
            self.last_ack = segment.ack;
        }
    }

    /// Begins anew with the SYN of that direction that was noted.
    pub(super) fn begin_anew(&mut self, direction: Direction) {
        let end = self.last_end;
        let max_window = at_least_one(u32::from(self.last_window));
        let sender = End { end, max_end: end, max_window, max_ack: None, ..self.noted };
        self.set_both(direction, sender, End::default());
    }

    /// Returns whether the last segment ends at a number.
    pub(super) const fn ends_at(&self, number: u32) -> bool {
        self.last_end == number
    }

    /// Returns whether the server has challenged the client with an acknowledgement of a number.
    pub(super) const fn challenged(&self, number: u32) -> bool {
        self.last_ack == number
    }

    /// Returns the most that the sender of a direction has acknowledged.
    pub(super) fn acknowledged(&self, direction: Direction) -> Option<u32> {
        self.ends[direction as usize].max_ack
    }

    /// Returns whether one acknowledgement was repeated often enough.
    pub(super) fn retransmits(&self, sysctls: &Sysctls) -> bool {
        self.repeats >= sysctls.tcp_max_retrans
    }

    /// Returns whether some end waits for an acknowledgement.
    pub(super) fn has_unacknowledged_data(&self) -> bool {
        self.ends.iter().any(|end| end.unacknowledged)
    }

    /// Returns whether the last acknowledgement offered no window.
    pub(super) const fn is_closed(&self) -> bool {
        self.last_window == 0
    }

    /// Returns whether the client's numbers are ahead of those of an older connection.
    pub(super) fn begins_after(&self, old: &Windows) -> bool {
        after(self.ends[0].end, old.ends[0].end)
    }

    fn both(&self, direction: Direction) -> [End; 2] {
        [self.ends[direction as usize], self.ends[direction.other() as usize]]
    }

    fn set_both(&mut self, direction: Direction, sender: End, receiver: End) {
        self.ends[direction as usize] = sender;
        self.ends[direction.other() as usize] = receiver;
    }
}

/// Takes the first SYN of an end, or another one that follows it.
// Kernel: nf_conntrack_proto_tcp.c, tcp_init_sender
fn init_sender(
    sender: &mut End,
    receiver: &mut End,
    segment: &Segment,
    end: u32,
    window: u32,
    direction: Direction,
) {
    sender.end = end;
    sender.max_end = end;
    sender.max_window = at_least_one(window);
    sender.take_options(segment);
    // Scaling takes both ends.
    if direction == Direction::Reply && !(sender.has_scale && receiver.has_scale) {
        sender.scale = 0;
        receiver.scale = 0;
    }
}
