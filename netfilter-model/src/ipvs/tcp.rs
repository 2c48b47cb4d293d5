//! States of connections, by the flags of segments that pass.
// Kernel: ip_vs_proto_tcp.c, tcp_states, tcp_timeouts, tcp_state_active_table

use std::time::Duration;

use crate::conntrack::Direction;
use crate::packet::TcpFlags;

/// How far a connection is. Only TCP has more than one state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ConnState {
    /// Nothing has been seen of it.
    #[default]
    None,
    /// Both sides talk.
    Established,
    /// The server has opened it.
    SynSent,
    /// The client has opened it.
    SynRecv,
    /// The server is done.
    FinWait,
    /// Both are done.
    TimeWait,
    /// It was cut.
    Close,
    /// The client is done.
    CloseWait,
    /// The last acknowledgement is awaited.
    LastAck,
    /// A socket that listens.
    Listen,
    /// The handshake is defended.
    SynAck,
    /// Datagrams.
    Udp,
    /// An association.
    // Simplified: IPVS takes an SCTP association for established from its first packet on.
    Sctp,
}

use ConnState::{
    Close, CloseWait, Established, FinWait, LastAck, Listen, SynRecv, SynSent, TimeWait,
};

/// Next states by flag (SYN, FIN, ACK, RST) and state, for packets of the client.
const INPUT: [[ConnState; 11]; 4] = [
    [
        SynRecv,
        Established,
        Established,
        SynRecv,
        SynRecv,
        SynRecv,
        SynRecv,
        SynRecv,
        SynRecv,
        SynRecv,
        SynRecv,
    ],
    [
        Close, CloseWait, SynSent, TimeWait, TimeWait, TimeWait, Close, CloseWait, LastAck, Listen,
        TimeWait,
    ],
    [
        Close,
        Established,
        SynSent,
        Established,
        FinWait,
        TimeWait,
        Close,
        CloseWait,
        Close,
        Listen,
        Established,
    ],
    [Close, Close, Close, SynRecv, Close, Close, Close, Close, LastAck, Listen, SynRecv],
];

/// Likewise, for packets of the server.
const OUTPUT: [[ConnState; 11]; 4] = [
    [
        SynSent,
        Established,
        SynSent,
        SynRecv,
        SynSent,
        SynSent,
        SynSent,
        SynSent,
        SynSent,
        Listen,
        SynRecv,
    ],
    [
        TimeWait, FinWait, SynSent, TimeWait, FinWait, TimeWait, Close, TimeWait, LastAck, Listen,
        TimeWait,
    ],
    [
        Established,
        Established,
        SynSent,
        Established,
        FinWait,
        TimeWait,
        Close,
        CloseWait,
        LastAck,
        Established,
        Established,
    ],
    [Close, Close, SynSent, Close, Close, TimeWait, Close, Close, Close, Close, Close],
];

/// `ipvsadm --set`: how long a connection stays after its last packet. The other timeouts are
/// fixed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeouts {
    /// Of established TCP.
    pub tcp: Duration,
    /// Of TCP whose server is done.
    pub tcp_fin: Duration,
    /// Of UDP.
    pub udp: Duration,
}

impl Default for Timeouts {
    fn default() -> Timeouts {
        let seconds = Duration::from_secs;
        Timeouts { tcp: seconds(900), tcp_fin: seconds(120), udp: seconds(300) }
    }
}

impl ConnState {
    /// Returns the name in `ipvsadm -Lc`.
    pub const fn name(self) -> &'static str {
        match self {
            ConnState::None => "NONE",
            ConnState::Established | ConnState::Sctp => "ESTABLISHED",
            ConnState::SynSent => "SYN_SENT",
            ConnState::SynRecv => "SYN_RECV",
            ConnState::FinWait => "FIN_WAIT",
            ConnState::TimeWait => "TIME_WAIT",
            ConnState::Close => "CLOSE",
            ConnState::CloseWait => "CLOSE_WAIT",
            ConnState::LastAck => "LAST_ACK",
            ConnState::Listen => "LISTEN",
            ConnState::SynAck => "SYNACK",
            ConnState::Udp => "UDP",
        }
    }

    /// Returns whether a connection in this state counts as active: since Linux 4.8 also one that
    /// is being opened.
    pub const fn is_active(self) -> bool {
        matches!(
            self,
            ConnState::Established
                | ConnState::SynSent
                | ConnState::SynRecv
                | ConnState::SynAck
                | ConnState::Sctp
        )
    }

    /// Returns the state after a segment.
    // Kernel: ip_vs_proto_tcp.c, tcp_state_idx, set_tcp_state
    pub(super) fn after(self, direction: Direction, flags: TcpFlags) -> ConnState {
        let order = [TcpFlags::RST, TcpFlags::SYN, TcpFlags::FIN, TcpFlags::ACK];
        let row = match order.into_iter().position(|flag| flags.contains(flag)) {
            Some(0) => 3,
            Some(1) => 0,
            Some(2) => 1,
            Some(_) => 2,
            None => return ConnState::Close,
        };
        let table = match direction {
            Direction::Original => &INPUT,
            Direction::Reply => &OUTPUT,
        };
        let column = self as usize;
        table[row].get(column).copied().unwrap_or(self)
    }

    /// Returns how long a connection stays in the state.
    pub(super) const fn timeout(self, timeouts: &Timeouts) -> Duration {
        match self {
            ConnState::None => Duration::from_secs(2),
            ConnState::Established => timeouts.tcp,
            ConnState::FinWait => timeouts.tcp_fin,
            ConnState::Udp => timeouts.udp,
            ConnState::Sctp => Duration::from_secs(900),
            ConnState::SynSent | ConnState::TimeWait | ConnState::Listen | ConnState::SynAck => {
                Duration::from_secs(120)
            }
            ConnState::SynRecv | ConnState::CloseWait => Duration::from_secs(60),
            ConnState::Close => Duration::from_secs(10),
            ConnState::LastAck => Duration::from_secs(30),
        }
    }
}
