//! Putting fragments together, as connection tracking and local delivery do.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use crate::packet::{Fragment, Packet};
use crate::time::SimTime;
use crate::tuple::Protocol;

/// What has come of a packet is kept no longer.
// Kernel: net.ipv4.ipfrag_time
const KEPT: Duration = Duration::from_secs(30);

/// Fragments that wait for others of their packets.
// Simplified: no ICMP error is sent about a packet that stays incomplete.
#[derive(Clone, Debug, Default)]
pub(super) struct Defrag {
    queues: BTreeMap<Key, Queue>,
}

type Key = (IpAddr, IpAddr, Protocol, u64);

#[derive(Clone, Debug)]
struct Queue {
    since: SimTime,
    /// The fragment with the transport header.
    first: Option<Packet>,
    /// Where each piece begins and ends, in order.
    pieces: Vec<(u32, u32)>,
    /// Where the packet ends, once that is known.
    end: Option<u32>,
}

/// A packet that is whole again.
#[derive(Clone, Copy, Debug)]
pub(super) struct Whole {
    pub(super) packet: Packet,
    /// The length of its longest piece, without the IP header.
    pub(super) piece_max: u16,
}

impl Defrag {
    /// Takes a fragment; returns its packet if this was the last that was missing.
    // Kernel: ip_fragment.c, ip_frag_queue and inet_frag_queue_insert
    pub(super) fn add(&mut self, now: SimTime, packet: &Packet, part: Fragment) -> Option<Whole> {
        self.queues.retain(|_, queue| now.saturating_since(queue.since) < KEPT);
        let tuple = &packet.tuple;
        let key = (tuple.src(), tuple.dst(), tuple.protocol, packet.id);
        let queue = self.queues.entry(key).or_insert_with(|| Queue {
            since: now,
            first: None,
            pieces: Vec::new(),
            end: None,
        });
        let (from, to) = span(packet, part);
        if queue.pieces.contains(&(from, to)) {
            return None;
        }
        if queue.pieces.iter().any(|piece| piece.0 < to && from < piece.1) {
            // Pieces that overlap otherwise than by repetition end the packet.
            self.queues.remove(&key);
            return None;
        }
        let at = queue.pieces.partition_point(|piece| piece.0 < from);
        queue.pieces.insert(at, (from, to));
        if from == 0 {
            queue.first = Some(*packet);
        }
        if !part.more {
            queue.end = Some(to);
        }
        let whole = queue.whole()?;
        self.queues.remove(&key);
        Some(whole)
    }
}

impl Queue {
    fn whole(&self) -> Option<Whole> {
        let (end, first) = (self.end?, self.first?);
        let mut next = 0;
        for (from, to) in &self.pieces {
            if *from != next {
                return None;
            }
            next = *to;
        }
        if next != end {
            return None;
        }
        let longest = self.pieces.iter().map(|(from, to)| to - from).max()?;
        let packet = Packet { fragment: None, len: first.header_len() + end, ..first };
        Some(Whole { packet, piece_max: longest as u16 })
    }
}

fn span(packet: &Packet, part: Fragment) -> (u32, u32) {
    let from = u32::from(part.offset);
    (from, from + packet.len.saturating_sub(packet.header_len()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{CLIENT, REMOTE_POD, udp};

    fn pieces(len: u32, piece: u16) -> Vec<Packet> {
        let packet = Packet { len: 20 + len, ..udp((CLIENT, 1), (REMOTE_POD, 2)) };
        packet.cut(piece).collect()
    }

    fn add(defrag: &mut Defrag, at: u64, packet: &Packet) -> Option<Whole> {
        let now = SimTime::from_nanos(at * 1_000_000_000);
        defrag.add(now, packet, packet.fragment.unwrap())
    }

    #[test]
    fn in_any_order_and_with_repetitions() {
        let pieces = pieces(208, 80);
        assert_eq!(pieces.iter().map(|p| p.len).collect::<Vec<_>>(), [100, 100, 68]);
        let mut defrag = Defrag::default();
        for i in [2, 0, 2, 0] {
            assert!(add(&mut defrag, 0, &pieces[i]).is_none());
        }
        let whole = add(&mut defrag, 0, &pieces[1]).unwrap();
        assert_eq!((whole.packet.len, whole.piece_max), (228, 80));
        assert_eq!(whole.packet.fragment, None);
        assert!(defrag.queues.is_empty());
    }

    #[test]
    fn a_piece_that_comes_too_late_begins_anew() {
        let pieces = pieces(160, 80);
        let mut defrag = Defrag::default();
        assert!(add(&mut defrag, 0, &pieces[0]).is_none());
        assert!(add(&mut defrag, 31, &pieces[1]).is_none());
        assert!(add(&mut defrag, 32, &pieces[0]).is_some());
    }

    #[test]
    fn overlapping_pieces_end_the_packet() {
        let pieces = pieces(160, 80);
        let mut defrag = Defrag::default();
        assert!(add(&mut defrag, 0, &pieces[0]).is_none());
        let odd = Packet { fragment: Some(Fragment { offset: 40, more: true }), ..pieces[1] };
        assert!(add(&mut defrag, 0, &odd).is_none());
        assert!(add(&mut defrag, 0, &pieces[1]).is_none(), "the first is gone");
    }
}
