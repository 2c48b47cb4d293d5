//! The mutants.

use super::Mutant;

const fn mutant(
    name: &'static str,
    file: &'static str,
    from: &'static str,
    to: &'static str,
) -> Mutant {
    Mutant { name, file, from, to }
}

pub(crate) const MUTANTS: &[Mutant] = &[
    mutant(
        "goto-returns-like-jump",
        "src/traverse.rs",
        "Effect::Goto(to) => {\n                            self.enter(to);",
        "Effect::Goto(to) => {\n                            let base = self.chain.id == base.id;\n                            stack.push(Frame { chain: self.chain.id, base, place: self.place });\n                            self.enter(to);",
    ),
    mutant(
        "goto-returns-like-jump-in-code",
        "src/traverse/code.rs",
        "op::GOTO => {\n",
        "op::GOTO => {\n                    let position = self.position + 1;\n                    stack.push(Return { chain: self.chain, at: self.at, position });\n",
    ),
    mutant(
        "return-in-a-base-chain-accepts",
        "src/traverse.rs",
        "Policy::Drop => Verdict::Drop,",
        "Policy::Drop => Verdict::Accept,",
    ),
    mutant(
        "nat-on-every-packet",
        "src/netns/step.rs",
        "&& !entry.status.contains(Status::nat_done(side))",
        "&& entry.status.contains(entry.status)",
    ),
    mutant(
        "mark-mask-ignored",
        "src/traverse/matches.rs",
        "(packet.mark & mask == *value) != *invert,",
        "(packet.mark == *value & *mask) != *invert,",
    ),
    mutant(
        "mark-value-masked",
        "src/traverse/matches.rs",
        "(packet.mark & mask == *value) != *invert,",
        "(packet.mark & mask == *value & *mask) != *invert,",
    ),
    mutant(
        "set-mark-without-mask",
        "src/traverse/effect.rs",
        "Target::Mark { value, mask } => {\n            packet.mark = packet.mark & !mask ^ value;",
        "Target::Mark { value, mask: _ } => {\n            packet.mark = *value;",
    ),
    mutant(
        "set-mark-keeps-bits-of-the-value",
        "src/rule/target.rs",
        "Target::Mark { value, mask: mask | value }",
        "Target::Mark { value, mask }",
    ),
    mutant(
        "probability-rounded-down",
        "src/rule/random.rs",
        "(p * f64::from(ONE)).round() as u32",
        "(p * f64::from(ONE)) as u32",
    ),
    mutant(
        "forward-before-routing",
        "src/hook.rs",
        "Hook::Prerouting => &[RAW, TRACK, MANGLE, DSTNAT],",
        "Hook::Prerouting => &[RAW, TRACK, MANGLE, FILTER, DSTNAT],",
    ),
    mutant(
        "input-filter-behind-nat",
        "src/hook.rs",
        "Hook::Input => &[MANGLE, FILTER, SECURITY, SRCNAT, CONFIRM],",
        "Hook::Input => &[MANGLE, SRCNAT, FILTER, SECURITY, CONFIRM],",
    ),
    mutant(
        "output-filter-before-nat",
        "src/hook.rs",
        "Hook::Output => &[RAW, TRACK, MANGLE, DSTNAT, FILTER, SECURITY],",
        "Hook::Output => &[RAW, TRACK, MANGLE, FILTER, DSTNAT, SECURITY],",
    ),
    mutant(
        "confirmed-before-source-nat",
        "src/hook.rs",
        "Hook::Postrouting => &[MANGLE, SRCNAT, CONFIRM],",
        "Hook::Postrouting => &[MANGLE, CONFIRM, SRCNAT],",
    ),
    mutant(
        "untracked-is-invalid",
        "src/conntrack/mod.rs",
        "return CtStates::UNTRACKED;",
        "return CtStates::INVALID;",
    ),
    mutant(
        "hop-taken-behind-forward",
        "src/netns.rs",
        "flight.packet.ttl -= 1;",
        "flight.packet.ttl -= 0;",
    ),
    mutant(
        "answer-not-translated-back",
        "src/nat.rs",
        "Direction::Reply => side.other(),",
        "Direction::Reply => side,",
    ),
    mutant(
        "source-port-always-kept",
        "src/nat.rs",
        "None if !table.is_taken(now, &tuple.reply(), entry) => return tuple,\n            None => {}",
        "None => return tuple,",
    ),
    mutant(
        "udp-stream-at-once",
        "src/conntrack/track.rs",
        "const STREAM_AFTER: Duration = Duration::from_secs(2);",
        "const STREAM_AFTER: Duration = Duration::from_secs(0);",
    ),
    mutant(
        "answer-not-noted",
        "src/conntrack/track.rs",
        "if direction == Direction::Reply {\n            entry.status.insert(Status::SEEN_REPLY);\n            // The loser",
        "if direction == Direction::Reply {\n            // The loser",
    ),
    mutant(
        "mangle-does-not-reroute",
        "src/netns/step.rs",
        "if changed && table == Table::Mangle && hook == Hook::Output {",
        "if changed && table == Table::Security && hook == Hook::Output {",
    ),
    mutant(
        "masquerade-survives-another-device",
        "src/netns/step.rs",
        "self.conntrack.kill(at);",
        "let _ = at;",
    ),
    mutant(
        "reject-answers-a-reset",
        "src/packet.rs",
        "if flags.contains(TcpFlags::RST) {\n            return None;",
        "if flags.contains(TcpFlags::RST) && flags.contains(TcpFlags::SYN) {\n            return None;",
    ),
    mutant(
        "no-limit-of-icmp-errors",
        "src/netns/answer.rs",
        "&& !self.icmp_limit.allow(env.now, packet.tuple.dst(), kind)",
        "&& !self.icmp_limit.allow(env.now, packet.tuple.dst(), kind)\n            && packet.id == u64::MAX",
    ),
    mutant(
        "run-takes-a-draw-for-each-rule",
        "src/rule/random.rs",
        "(left * u128::from(ONE - probability.0)) >> 31",
        "(left * u128::from(ONE - probability.0 - 1)) >> 31",
    ),
    mutant(
        "or-mark-clears",
        "src/rule/target.rs",
        "Target::Mark { value: bits, mask: bits }",
        "Target::Mark { value: bits, mask: u32::MAX }",
    ),
    mutant(
        "index-forgets-later-rules",
        "src/rule/code.rs",
        "same.skip_while(|entry| entry.position < from)",
        "same.take_while(|entry| entry.position >= from)",
    ),
    mutant(
        "rp-filter-of-the-device-alone",
        "src/network/routing.rs",
        "rp_filter: all.rp_filter.max(own.rp_filter),",
        "rp_filter: own.rp_filter,",
    ),
    mutant(
        "route-localnet-without-setting",
        "src/network/routing.rs",
        "if is_loopback_v4(query.src) && !self.effective(dev).route_localnet =>",
        "if is_loopback_v4(query.src) && self.effective(dev).rp_filter == 9 =>",
    ),
];
