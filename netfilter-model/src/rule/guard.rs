//! A first look at many rules at once: what nearly all of a long chain's rules fail on.

use crate::packet::Packet;
use crate::rule::{Match, Rule};
use crate::tuple::{Addresses, Protocol};

/// For each rule of a chain, what the destination and the transport must be under masks.
///
/// A rule that fails here fails; one that does not may still fail.
#[derive(Clone, Debug, Default)]
pub(crate) struct Guards {
    address_masks: Box<[u32]>,
    addresses: Box<[u32]>,
    transport_masks: Box<[u32]>,
    transports: Box<[u32]>,
}

/// Rules that are looked at together.
const BLOCK: usize = 16;

impl Guards {
    /// Returns the guards of a chain; a short one has none.
    pub(crate) fn of(rules: &[Rule]) -> Guards {
        if rules.len() < BLOCK {
            return Guards::default();
        }
        let guards: Vec<[(u32, u32); 2]> = rules.iter().map(guard).collect();
        let all = |of: fn(&[(u32, u32); 2]) -> u32| guards.iter().map(of).collect();
        Guards {
            address_masks: all(|guard| guard[0].0),
            addresses: all(|guard| guard[0].1),
            transport_masks: all(|guard| guard[1].0),
            transports: all(|guard| guard[1].1),
        }
    }

    /// Returns the first position from `from` up to `end` whose rule may match the packet, or
    /// `end`.
    #[inline]
    pub(crate) fn next(&self, packet: &Packet, from: u32, end: u32) -> u32 {
        if self.addresses.is_empty() {
            return from;
        }
        let tuple = &packet.tuple;
        let address = match tuple.addresses() {
            Addresses::V4 { dst, .. } => dst.to_bits(),
            // Rules with an IPv4 destination fail anyhow, and others have no mask.
            Addresses::V6 { .. } => 0,
        };
        let part = if tuple.protocol.has_ports() { tuple.dst_part } else { 0 };
        let transport = u32::from(tuple.protocol.0) << 16 | u32::from(part);
        let (from, end) = (from as usize, end as usize);
        let rows = (&self.address_masks[from..end], &self.addresses[from..end]);
        let more = (&self.transport_masks[from..end], &self.transports[from..end]);
        let mut at = 0;
        let blocks = rows.0.chunks(BLOCK).zip(rows.1.chunks(BLOCK));
        let blocks = blocks.zip(more.0.chunks(BLOCK).zip(more.1.chunks(BLOCK)));
        for ((address_masks, addresses), (transport_masks, transports)) in blocks {
            let rows = address_masks.iter().zip(addresses);
            let mut rows = rows.zip(transport_masks.iter().zip(transports));
            // Without a branch for each rule: several are compared by one instruction.
            let fits = |((mask, value), (mask2, value2)): ((&u32, &u32), (&u32, &u32))| {
                u32::from(((address & mask) ^ value) | ((transport & mask2) ^ value2) == 0)
            };
            if rows.clone().map(fits).fold(0, |any, fits| any | fits) != 0 {
                let first = rows.position(|row| fits(row) != 0);
                return (from + at + first.expect("one of them fits")) as u32;
            }
            at += address_masks.len();
        }
        end as u32
    }
}

/// Returns mask and value for the destination and for protocol and port. What stands behind a
/// condition that has an effect is left out: it must be reached.
fn guard(rule: &Rule) -> [(u32, u32); 2] {
    let (mut address, mut transport) = ((0, 0), (0, 0));
    for condition in rule.matches() {
        match condition {
            Match::Destination { prefix, invert: false } => {
                address = prefix.as_v4().map_or((0, 0), |(net, mask)| (mask, net));
            }
            Match::Protocol { protocol, invert: false } if *protocol != Protocol(0) => {
                transport = (0xff << 16, u32::from(protocol.0) << 16);
            }
            Match::Tcp { dport: Some(dport), .. } | Match::Udp { dport: Some(dport), .. } => {
                if let (Some(port), (0xff_0000, protocol)) = (dport.exact(), transport) {
                    transport = (0xff_ffff, protocol | u32::from(port));
                }
            }
            condition if condition.has_effect() => break,
            _ => {}
        }
    }
    [address, transport]
}
