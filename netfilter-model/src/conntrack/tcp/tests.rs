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

/// An answered connection.
const ANSWERED: Known = Known { seen_reply: true, assured: true, left: Duration::ZERO };

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
        let mut track = TcpTrack { fin_seen, ..TcpTrack::picked_up(state) };
        match track.segment(direction, flags, None, ANSWERED, &Sysctls::default()) {
            Step::Invalid | Step::InvalidShortens { .. } => "IV",
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
        TcpTrack::open(flags, None, &sysctls).map(|(track, life)| (track.state, life.as_secs()))
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
    let (mut track, _) = TcpTrack::open(TcpFlags::SYN, None, &sysctls).unwrap();
    let mut pass = |direction, flags| track.segment(direction, flags, None, ANSWERED, &sysctls);
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
    let (mut track, _) = TcpTrack::open(TcpFlags::SYN, None, &sysctls).unwrap();
    let mut pass = |direction, flags| track.segment(direction, flags, None, ANSWERED, &sysctls);
    let _ = pass(Direction::Reply, TcpFlags::SYN_ACK);
    let _ = pass(Direction::Original, TcpFlags::RST);
    assert_eq!(pass(Direction::Original, TcpFlags::SYN), Step::Reopen);
}
