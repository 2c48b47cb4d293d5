//! What targets do.

use crate::host::{Draws, Host};
use crate::packet::{L4, Packet};
use crate::rule::{ChainId, RuleRef, Target, TtlChange};
use crate::tuple::Protocol;

use super::matches::sight;
use super::{Context, Verdict};

/// What a target means for the walk.
pub(super) enum Effect {
    Continue,
    Return,
    Jump(ChainId),
    Goto(ChainId),
    Verdict(Verdict),
}

/// Does what a rule's target does to the packet and its connection.
#[inline]
pub(super) fn apply<H: Host, D: Draws>(
    target: &Target,
    at: RuleRef,
    packet: &mut Packet,
    cx: &mut Context<'_, H, D>,
) -> Effect {
    match target {
        Target::None | Target::Continue(_) => Effect::Continue,
        Target::Accept => Effect::Verdict(Verdict::Accept),
        Target::Drop => Effect::Verdict(Verdict::Drop),
        Target::Return => Effect::Return,
        Target::Jump(to) => Effect::Jump(*to),
        Target::Goto(to) => Effect::Goto(*to),
        Target::Reject(with) => Effect::Verdict(Verdict::Reject(*with)),
        Target::Nat(nat) => Effect::Verdict(Verdict::Nat(nat.clone())),
        Target::Mark { value, mask } => {
            packet.mark = packet.mark & !mask ^ value;
            Effect::Continue
        }
        Target::Connmark(op) => {
            cx.ct.connmark(*op, packet);
            Effect::Continue
        }
        Target::Ct(target) => {
            cx.ct.direct(target, packet);
            Effect::Continue
        }
        Target::Tos { value, mask, .. } => {
            packet.tos = packet.tos & !mask ^ value;
            Effect::Continue
        }
        Target::Ttl(change) => {
            packet.ttl = match change {
                TtlChange::Set(ttl) => *ttl,
                TtlChange::Add(hops) => packet.ttl.saturating_add(*hops),
                TtlChange::Subtract(hops) => packet.ttl.saturating_sub(*hops),
            };
            Effect::Continue
        }
        Target::Tcpmss(wanted) => {
            clamp_mss(*wanted, packet, cx);
            Effect::Continue
        }
        Target::Set(target) => {
            if target.map.is_some() {
                // What is mapped is not known: both branches go on, and the rule is named.
                let _ = cx.draws.unsupported(at);
            }
            let (sight, now) = (sight(packet, cx), cx.now);
            cx.memory.sets.apply(target, &sight, now);
            Effect::Continue
        }
        // Kernel: xt_TPROXY.c, tproxy_tg4: without a socket that takes it the packet is dropped.
        // Simplified: a transparent socket is there unless the caller follows its absence.
        Target::Tproxy(target) => {
            if cx.draws.unsupported(at) {
                return Effect::Verdict(Verdict::Drop);
            }
            let (value, mask) = target.mark;
            packet.mark = packet.mark & !mask ^ value;
            Effect::Verdict(Verdict::Accept)
        }
        Target::Unsupported(_) => {
            if cx.draws.unsupported(at) {
                Effect::Verdict(Verdict::Drop)
            } else {
                Effect::Continue
            }
        }
    }
}

/// Lowers the segment size that a SYN announces.
// Kernel: xt_TCPMSS.c, tcpmss_mangle_packet
fn clamp_mss<H: Host, D>(wanted: Option<u16>, packet: &mut Packet, cx: &Context<'_, H, D>) {
    /// The length of the headers.
    fn headers(packet: &Packet) -> u16 {
        if packet.tuple.src().is_ipv4() { 40 } else { 60 }
    }
    if packet.tuple.protocol != Protocol::TCP || packet.is_later_fragment() {
        return;
    }
    let mtu = || {
        let devices = [cx.out_dev, cx.in_dev];
        devices.into_iter().flatten().map(|dev| cx.host.mtu(dev)).min().unwrap_or(1500)
    };
    let most = wanted.unwrap_or_else(|| mtu().saturating_sub(headers(packet)));
    // An option that is not there is added, with what every host takes.
    let least = if packet.tuple.src().is_ipv4() { 536 } else { 1220 };
    // A packet without a segment shows nobody its options.
    let L4::Tcp { segment: Some(segment), .. } = &mut packet.l4 else {
        return;
    };
    if segment.mss == 0 {
        segment.mss = most.min(least);
        segment.options |= 1 << 2;
    } else {
        segment.mss = segment.mss.min(most);
    }
}
