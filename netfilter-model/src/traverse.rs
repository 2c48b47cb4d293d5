//! The loop over rules.

mod code;

use std::net::IpAddr;

use crate::conntrack::{Direction, Tracked};
use crate::device::DeviceId;
use crate::hook::Hook;
use crate::hook::Table;
use crate::host::{Draws, Host, Ingress, Note, Socket};
use crate::packet::{L4, Packet};
use crate::prefix::Prefix;
use crate::rule::{
    AddrTypeMatch, Chain, ChainId, ConntrackMatch, CtAddress, CtStates, DeviceMatch, FlagsMatch,
    FrameKind, Invertible, LimitIface, Match, Nat, OwnerMatch, PhysdevMatch, Policy, PortMatch,
    Probability, RejectWith, Rule, RuleRef, Rules, Target, TtlCompare,
};
use crate::time::SimTime;
use crate::tuple::Addresses;

/// What a table's chain at one hook says about a packet.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub enum Verdict {
    /// The packet goes on to the next table.
    Accept,
    /// The packet is gone.
    Drop,
    /// The packet is gone and its sender is told.
    Reject(RejectWith),
    /// The packet goes on and its connection is rewritten.
    Nat(Nat),
}

/// A verdict, what it cost, and which rule gave it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub struct Traversal {
    /// The verdict.
    pub verdict: Verdict,
    /// How many rules a linear walk looks at until the verdict.
    pub evaluated: u32,
    /// The rule that gave it, or `None` for the policy.
    pub rule: Option<RuleRef>,
}

/// How rules are found; the result is the same.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Lookup {
    /// By destination where a chain has an index.
    #[default]
    Indexed,
    /// One after the other.
    Linear,
    /// One after the other, each random rule by a draw of its own ([`Draws::chance`]): so that the
    /// exact probability of each way is known.
    RuleByRule,
}

/// What rules can see beside the packet.
#[derive(Debug)]
pub struct Context<'c, H, D> {
    /// The host.
    pub host: &'c H,
    /// Random numbers.
    pub draws: &'c mut D,
    /// How many of them this packet has taken here.
    pub ordinal: &'c mut u32,
    /// The input device, at hooks that have one.
    pub in_dev: Option<DeviceId>,
    /// The output device, at hooks that have one.
    pub out_dev: Option<DeviceId>,
    /// The hook.
    pub hook: Hook,
    /// The time.
    pub now: SimTime,
    /// What `--ctstate` sees.
    pub ct_state: CtStates,
    /// The packet's connection.
    pub ct: Tracked<'c>,
    /// How the packet came in; `None` for a packet made here.
    pub ingress: Option<Ingress>,
    /// The port of the bridge by which a bridged frame leaves, once that is known.
    pub out_port: Option<DeviceId>,
    /// The socket that a packet made here comes from.
    pub socket: Option<Socket>,
    /// State that rules and callers keep between packets.
    pub memory: &'c mut Memory,
}

/// What traversal keeps between packets: the counters of `statistic --mode nth`, and the stack's
/// space.
#[derive(Clone, Debug, Default)]
pub struct Memory {
    nth: std::collections::BTreeMap<(Table, ChainId, u32, u32), u32>,
    stack: Vec<Frame>,
    returns: Vec<code::Return>,
}

impl Memory {
    /// Forgets the state of a table's rules, as x_tables does whenever a table is replaced.
    pub fn table_replaced(&mut self, table: Table) {
        self.nth.retain(|(of, ..), _| *of != table);
    }
}

/// Where to go on in a chain.
#[derive(Clone, Copy, Debug)]
enum Place {
    /// At an own rule in front of the slot.
    Before(u32),
    /// At a rule of the slot.
    Slot(u32),
    /// At an own rule behind the slot, or in a chain without one.
    After {
        /// Which of the chain's own rules.
        own: u32,
        /// How many rules the slot had.
        slot_total: u32,
    },
}

#[derive(Clone, Copy, Debug)]
struct Frame {
    chain: ChainId,
    base: bool,
    place: Place,
}

impl Place {
    fn start(chain: &Chain) -> Place {
        if chain.slot.is_some() { Place::Before(0) } else { Place::After { own: 0, slot_total: 0 } }
    }
}

/// Sends a packet through a table's chain at one hook and returns what became of it.
///
/// The packet's mark may change on the way.
pub fn traverse<R: Rules, H: Host, D: Draws>(
    rules: &R,
    table: Table,
    base: &Chain,
    packet: &mut Packet,
    cx: &mut Context<'_, H, D>,
    lookup: Lookup,
) -> Traversal {
    if lookup == Lookup::Indexed
        && packet.fragment.is_none()
        && matches!(packet.tuple.addresses(), Addresses::V4 { .. })
        && let Some(code) = rules.code(table)
    {
        return code::run(rules, table, code, base, packet, cx);
    }
    let mut stack = std::mem::take(&mut cx.memory.stack);
    stack.clear();
    let walk = Walk { rules, table, lookup, evaluated: 0, chain: base, place: Place::start(base) };
    let (end, evaluated) = walk.run(base, packet, cx, &mut stack);
    cx.memory.stack = stack;
    let (verdict, rule) = match end {
        Some((verdict, rule)) => (verdict, Some(rule)),
        None => (policy_verdict(base), None),
    };
    Traversal { verdict, evaluated, rule }
}

fn policy_verdict(base: &Chain) -> Verdict {
    match base.policy().expect("traversal begins at a built-in chain") {
        Policy::Accept => Verdict::Accept,
        Policy::Drop => Verdict::Drop,
    }
}

struct Walk<'r, R> {
    rules: &'r R,
    table: Table,
    lookup: Lookup,
    evaluated: u32,
    chain: &'r Chain,
    place: Place,
}

impl<'r, R: Rules> Walk<'r, R> {
    /// Returns the rule that decided, or `None` at the end of the base chain.
    #[inline]
    fn run<H: Host, D: Draws>(
        mut self,
        base: &'r Chain,
        packet: &mut Packet,
        cx: &mut Context<'_, H, D>,
        stack: &mut Vec<Frame>,
    ) -> (Option<(Verdict, RuleRef)>, u32) {
        loop {
            let next = self.next_match(packet, cx);
            let back = match next {
                None => true,
                Some((rule, number)) => {
                    let table = self.table.into();
                    let at = RuleRef { table, chain: self.chain.id, number, origin: rule.origin };
                    let before = *packet;
                    let effect = apply(rule.target(), at, packet, cx);
                    let hook = cx.hook;
                    cx.draws.note(Note::Rule { hook, rule: at, before: &before, after: packet });
                    match effect {
                        Effect::Continue => false,
                        Effect::Return => true,
                        Effect::Jump(to) => {
                            let base = self.chain.id == base.id;
                            stack.push(Frame { chain: self.chain.id, base, place: self.place });
                            self.enter(to);
                            false
                        }
                        // Nothing is pushed: the end of the chain returns to our caller.
                        Effect::Goto(to) => {
                            self.enter(to);
                            false
                        }
                        Effect::Verdict(verdict) => {
                            return (Some((verdict, at)), self.evaluated);
                        }
                    }
                }
            };
            if back {
                let Some(frame) = stack.pop() else {
                    return (None, self.evaluated);
                };
                self.chain =
                    if frame.base { base } else { self.rules.chain(self.table, frame.chain) };
                self.place = frame.place;
            }
        }
    }

    fn enter(&mut self, chain: ChainId) {
        self.chain = self.rules.chain(self.table, chain);
        self.place = Place::start(self.chain);
    }

    /// Returns the next rule of the chain that matches, with its number, and counts the rules
    /// passed on the way.
    #[inline]
    fn next_match<H: Host, D: Draws>(
        &mut self,
        packet: &Packet,
        cx: &mut Context<'_, H, D>,
    ) -> Option<(&'r Rule, u32)> {
        loop {
            match self.place {
                Place::After { own, slot_total } => {
                    let end = self.chain.rules.len() as u32;
                    let (rule, at) = self.next_own(own, end, packet, cx, slot_total)?;
                    self.place = Place::After { own: at + 1, slot_total };
                    return Some((rule, slot_total + at + 1));
                }
                Place::Before(from) => {
                    let at = self.chain.slot.expect("a place before a slot").at;
                    if let Some((rule, at)) = self.next_own(from, at, packet, cx, 0) {
                        self.place = Place::Before(at + 1);
                        return Some((rule, at + 1));
                    }
                    self.place = Place::Slot(0);
                }
                Place::Slot(from) => {
                    let slot = self.chain.slot.expect("a place in a slot");
                    match self.next_in_slot(from, packet, cx) {
                        Ok((rule, position)) => {
                            self.place = Place::Slot(position + 1);
                            return Some((rule, slot.at + position + 1));
                        }
                        Err(slot_total) => self.place = Place::After { own: slot.at, slot_total },
                    }
                }
            }
        }
    }

    /// Returns the next own rule from `from` up to `end` that matches, with its position.
    #[inline]
    fn next_own<H: Host, D: Draws>(
        &mut self,
        mut from: u32,
        end: u32,
        packet: &Packet,
        cx: &mut Context<'_, H, D>,
        slot_total: u32,
    ) -> Option<(&'r Rule, u32)> {
        let chain = self.chain;
        let by_rule = self.lookup == Lookup::RuleByRule;
        while from < end {
            let at = match &chain.index {
                Some(index) if self.lookup == Lookup::Indexed => index.next(packet, from).min(end),
                _ if by_rule => from,
                _ => chain.guards.next(packet, from, end),
            };
            self.evaluated += at - from;
            if at == end {
                return None;
            }
            let rule = &chain.rules[at as usize];
            if !by_rule && rule.only_random().is_some() {
                let run = chain.run_at(at).expect("random rules are in runs");
                let stop = run.end().min(end);
                let draw = cx.draw();
                if let Some(chosen) = run.pick(at, draw) {
                    self.evaluated += chosen + 1;
                    return Some((&chain.rules[(at + chosen) as usize], at + chosen));
                }
                self.evaluated += stop - at;
                from = stop;
                continue;
            }
            self.evaluated += 1;
            let key = (self.table, chain.id, slot_total + at);
            if rule_matches(rule, packet, cx, key) {
                return Some((rule, at));
            }
            from = at + 1;
        }
        None
    }

    /// Returns the next rule of the slot from `from` on that matches, with its position in it; or
    /// how many rules the slot has.
    fn next_in_slot<H: Host, D: Draws>(
        &mut self,
        mut from: u32,
        packet: &Packet,
        cx: &mut Context<'_, H, D>,
    ) -> Result<(&'r Rule, u32), u32> {
        let slot = self.chain.slot.expect("a place in a slot");
        loop {
            let hit = self.rules.slot(self.table, slot.id, packet, from);
            if hit.rules.is_empty() {
                self.evaluated += hit.total - from;
                return Err(hit.total);
            }
            // A group may begin before the place that was asked for, and then ends behind it.
            let skip = from.saturating_sub(hit.before);
            self.evaluated += hit.before.saturating_sub(from);
            for (i, rule) in hit.rules.iter().enumerate().skip(skip as usize) {
                let position = hit.before + i as u32;
                self.evaluated += 1;
                if rule_matches(rule, packet, cx, (self.table, self.chain.id, slot.at + position)) {
                    return Ok((rule, position));
                }
            }
            from = hit.before + hit.rules.len() as u32;
        }
    }
}

/// What a target means for the walk.
enum Effect {
    Continue,
    Return,
    Jump(ChainId),
    Goto(ChainId),
    Verdict(Verdict),
}

/// Does what a rule's target does to the packet and its connection.
#[inline]
fn apply<H: Host, D: Draws>(
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
        Target::Set(_) | Target::Tproxy(_) | Target::Unsupported(_) => {
            if cx.draws.unsupported(at) {
                Effect::Verdict(Verdict::Drop)
            } else {
                Effect::Continue
            }
        }
    }
}

impl<H: Host, D: Draws> Context<'_, H, D> {
    fn draw(&mut self) -> u64 {
        let ordinal = *self.ordinal;
        *self.ordinal += 1;
        self.draws.draw(ordinal)
    }

    fn chance(&mut self, probability: Probability) -> bool {
        let ordinal = *self.ordinal;
        *self.ordinal += 1;
        self.draws.chance(ordinal, probability)
    }
}

/// Names a rule for the state that it keeps: table, chain, position.
type StateKey = (Table, ChainId, u32);

/// Returns whether all conditions hold, looking at them in order up to the first that fails.
#[inline]
fn rule_matches<H: Host, D: Draws>(
    rule: &Rule,
    packet: &Packet,
    cx: &mut Context<'_, H, D>,
    key: StateKey,
) -> bool {
    rule.matches().iter().enumerate().all(|(i, condition)| match condition {
        Match::Random { probability, invert } => cx.chance(*probability) != *invert,
        Match::Recent(_)
        | Match::Set(_)
        | Match::Limit(_)
        | Match::Hashlimit(_)
        | Match::Unsupported(_) => {
            let (table, chain, position) = key;
            let number = position + 1;
            let (table, origin) = (table.into(), rule.origin);
            cx.draws.unsupported(RuleRef { table, chain, number, origin })
        }
        Match::Nth { every, packet: first, invert } => {
            cx.memory.nth_matches(key, i as u32, *every, *first) != *invert
        }
        condition => holds(condition, packet, cx),
    })
}

#[inline]
fn holds<H: Host, D: Draws>(condition: &Match, packet: &Packet, cx: &Context<'_, H, D>) -> bool {
    let tuple = &packet.tuple;
    match condition {
        Match::Source { prefix, invert } => prefix.contains_src(tuple) != *invert,
        Match::Destination { prefix, invert } => prefix.contains_dst(tuple) != *invert,
        Match::InDevice(device) => device_matches(device, cx.in_dev, cx.host),
        Match::OutDevice(device) => device_matches(device, cx.out_dev, cx.host),
        Match::Protocol { protocol, invert } => {
            (tuple.protocol == *protocol || protocol.0 == 0) != *invert
        }
        Match::Fragment { invert } => packet.is_later_fragment() != *invert,
        // No header, no match.
        Match::Tcp { .. }
        | Match::Udp { .. }
        | Match::Icmp { .. }
        | Match::Multiport(_)
        | Match::Sctp(_)
            if packet.is_later_fragment() =>
        {
            false
        }
        Match::Tcp { sport, dport, flags, option } => match packet.l4 {
            L4::Tcp { flags: set, .. } => {
                ports_match(*sport, tuple.src_part)
                    && ports_match(*dport, tuple.dst_part)
                    && flags.is_none_or(|FlagsMatch { mask, set: wanted, invert }| {
                        (set.masked(mask) == wanted) != invert
                    })
                    && option.is_none_or(|Invertible { value, invert }| {
                        packet.has_tcp_option(value) != invert
                    })
            }
            _ => false,
        },
        Match::Udp { sport, dport } => {
            ports_match(*sport, tuple.src_part) && ports_match(*dport, tuple.dst_part)
        }
        Match::Sctp(sctp) => {
            ports_match(sctp.sport, tuple.src_part) && ports_match(sctp.dport, tuple.dst_part)
        }
        Match::Multiport(multiport) => multiport.matches(tuple),
        Match::Icmp { kind, code, invert } => {
            let (packet_kind, packet_code) = tuple.icmp_kind();
            // 255 is iptables' "any".
            let fits =
                *kind == 255 || *kind == packet_kind && code.is_none_or(|code| code == packet_code);
            fits != *invert
        }
        Match::Mark { value, mask, invert } => (packet.mark & mask == *value) != *invert,
        // Kernel: xt_connmark.c, connmark_mt: without a connection false, inverted or not.
        Match::Connmark { value, mask, invert } => {
            cx.ct.entry().is_some_and(|entry| (entry.mark() & mask == *value) != *invert)
        }
        Match::Conntrack(wanted) => conntrack_matches(wanted, cx),
        Match::CtState { states, invert } | Match::State { states, invert } => {
            states.intersects(cx.ct_state) != *invert
        }
        Match::AddrType { src, dst, limit } => {
            let on = match limit {
                None => None,
                Some(LimitIface::In) => cx.in_dev,
                Some(LimitIface::Out) => cx.out_dev,
            };
            let fits = |wanted: &Option<AddrTypeMatch>, address| {
                wanted.is_none_or(|AddrTypeMatch { types, invert }| {
                    types.contains(cx.host.addr_type(address, on)) != invert
                })
            };
            fits(src, tuple.src()) && fits(dst, tuple.dst())
        }
        Match::Comment(_) => true,
        Match::Physdev(wanted) => physdev_matches(wanted, cx),
        Match::Mac { address, invert } => match cx.ingress.and_then(|ingress| ingress.source) {
            Some(source) => (source == *address) != *invert,
            None => false,
        },
        Match::Iprange(range) => {
            let lies = |wanted: &Option<Invertible<(IpAddr, IpAddr)>>, address: IpAddr| {
                wanted.is_none_or(|Invertible { value: (min, max), invert }| {
                    (min <= address && address <= max) != invert
                })
            };
            lies(&range.src, tuple.src()) && lies(&range.dst, tuple.dst())
        }
        Match::Owner(wanted) => owner_matches(wanted, cx.socket),
        Match::Pkttype { kind, invert } => {
            let seen = cx.ingress.map_or(FrameKind::Unicast, |ingress| ingress.kind);
            (seen == *kind) != *invert
        }
        Match::Ttl { compare, value } => match compare {
            TtlCompare::Eq => packet.ttl == *value,
            TtlCompare::Ne => packet.ttl != *value,
            TtlCompare::Lt => packet.ttl < *value,
            TtlCompare::Gt => packet.ttl > *value,
        },
        Match::Length { min, max, invert } => {
            (u32::from(*min) <= packet.len && packet.len <= u32::from(*max)) != *invert
        }
        Match::Tos { value, mask, invert, .. } => (packet.tos & mask == *value) != *invert,
        Match::Random { .. }
        | Match::Nth { .. }
        | Match::Recent(_)
        | Match::Set(_)
        | Match::Limit(_)
        | Match::Hashlimit(_)
        | Match::Unsupported(_) => unreachable!("is decided with its rule"),
    }
}

fn ports_match(wanted: Option<PortMatch>, port: u16) -> bool {
    wanted.is_none_or(|wanted| wanted.matches(port))
}

/// Kernel: xt_conntrack.c, conntrack_mt.
fn conntrack_matches<H, D>(wanted: &ConntrackMatch, cx: &Context<'_, H, D>) -> bool {
    if let Some(Invertible { value: states, invert }) = wanted.states
        && states.intersects(cx.ct_state) == invert
    {
        return false;
    }
    let Some((entry, direction)) = cx.ct.entry_and_direction() else {
        return wanted.states.is_some();
    };
    if wanted.direction.is_some_and(|wanted| wanted != direction) {
        return false;
    }
    let (original, reply) = (entry.tuple(Direction::Original), entry.tuple(Direction::Reply));
    let address = |wanted: &Option<Invertible<CtAddress>>, address: IpAddr| {
        wanted.is_none_or(|Invertible { value, invert }| {
            Prefix::new(value.address, value.len).contains(address) != invert
        })
    };
    let number = |wanted: &Option<Invertible<u8>>, number: u8| {
        wanted.is_none_or(|Invertible { value, invert }| (value == number) != invert)
    };
    let seconds = entry.deadline().saturating_since(cx.now).as_secs();
    number(
        &wanted.protocol.map(|p| Invertible { value: p.value.0, invert: p.invert }),
        original.protocol.0,
    ) && address(&wanted.orig_src, original.src())
        && address(&wanted.orig_dst, original.dst())
        && address(&wanted.repl_src, reply.src())
        && address(&wanted.repl_dst, reply.dst())
        && ports_match(wanted.orig_src_port, original.src_part)
        && ports_match(wanted.orig_dst_port, original.dst_part)
        && ports_match(wanted.repl_src_port, reply.src_part)
        && ports_match(wanted.repl_dst_port, reply.dst_part)
        && wanted.status.is_none_or(|Invertible { value, invert }| {
            let bits = entry.status().ct_status();
            let fits = value.0 & bits != 0 || value.0 == 0 && bits == 0;
            fits != invert
        })
        && wanted.expire.is_none_or(|Invertible { value: (min, max), invert }| {
            (u64::from(min) <= seconds && seconds <= u64::from(max)) != invert
        })
}

/// Kernel: xt_physdev.c, physdev_mt.
fn physdev_matches<H: Host, D>(wanted: &PhysdevMatch, cx: &Context<'_, H, D>) -> bool {
    let in_port = cx.ingress.and_then(|ingress| ingress.port);
    let out_port = cx.out_port;
    let is = |wanted: Option<bool>, fact: bool| wanted.is_none_or(|wanted| wanted == fact);
    let port = |wanted: &Option<DeviceMatch>, port: Option<DeviceId>| {
        wanted.as_ref().is_none_or(|wanted| device_matches(wanted, port, cx.host))
    };
    is(wanted.is_in, in_port.is_some())
        && is(wanted.is_out, out_port.is_some())
        && is(wanted.is_bridged, in_port.is_some() && out_port.is_some())
        && port(&wanted.in_port, in_port)
        && port(&wanted.out_port, out_port)
}

/// Kernel: xt_owner.c, owner_mt.
fn owner_matches(wanted: &OwnerMatch, socket: Option<Socket>) -> bool {
    let lies = |wanted: Option<Invertible<(u32, u32)>>, id: Option<u32>| {
        wanted.is_none_or(|Invertible { value: (min, max), invert }| {
            id.is_some_and(|id| min <= id && id <= max) != invert
        })
    };
    wanted.socket_exists.is_none_or(|exists| exists == socket.is_some())
        && lies(wanted.uid, socket.map(|socket| socket.uid))
        && lies(wanted.gid, socket.map(|socket| socket.gid))
}

fn device_matches<H: Host>(wanted: &DeviceMatch, dev: Option<DeviceId>, host: &H) -> bool {
    wanted.pattern.matches(dev.map(|dev| host.device_name(dev))) != wanted.invert
}

impl Memory {
    /// Counts a packet that reached an nth match and returns whether its turn has come.
    // Kernel: xt_statistic.c: the count starts at every - 1 - packet and matches on reaching every
    fn nth_matches(&mut self, key: StateKey, place: u32, every: u32, packet: u32) -> bool {
        let count = self.nth.entry((key.0, key.1, key.2, place)).or_insert(every - 1 - packet);
        *count += 1;
        if *count >= every {
            *count = 0;
            return true;
        }
        false
    }
}

#[cfg(test)]
mod tests;
