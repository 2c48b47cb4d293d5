//! Random rules: looked up and walked, in parts and as a whole.

use std::sync::Arc;

use proptest::prelude::*;

use super::*;

/// What a generated rule asks and does.
#[derive(Clone, Debug)]
struct Drawn {
    dst: Option<u8>,
    port: Option<(bool, u16)>,
    extra: u8,
    target: u8,
}

fn drawn() -> impl Strategy<Value = Drawn> {
    let port = prop::option::of((any::<bool>(), 80u16..84));
    (prop::option::of(0u8..4), port, 0u8..8, 0u8..10).prop_map(|(dst, port, extra, target)| Drawn {
        dst,
        port,
        extra,
        target,
    })
}

fn vip(i: u8) -> std::net::Ipv4Addr {
    std::net::Ipv4Addr::new(10, 96, 0, i)
}

impl Drawn {
    /// The rule; it may call the chains given.
    fn rule(&self, number: u32, callees: &[ChainId]) -> Rule {
        let mut made = Rule::new(Origin { owner: 1, item: number });
        if self.extra == 4 {
            made = made.comment("first");
        }
        if let Some(dst) = self.dst {
            made = made.destination(host(vip(dst)));
        }
        if let Some((udp, port)) = self.port {
            let protocol = if udp { Protocol::UDP } else { Protocol::TCP };
            if self.extra == 5 {
                made = made.random(Probability::one_of(2));
            }
            made = made.dport(protocol, port);
        }
        made = match self.extra {
            0 => made.random(Probability::one_of(3)),
            1 => made.mark(1, 1),
            2 => made.with(Match::Nth { every: 2, packet: 1, invert: false }),
            3 => made.source(host(CLIENT)),
            _ => made,
        };
        made.then(self.target(callees))
    }

    fn target(&self, callees: &[ChainId]) -> Target {
        let callee = callees.get(usize::from(self.target) % callees.len().max(1)).copied();
        match (self.target, callee) {
            (0, _) => Target::Drop,
            (1, _) => Target::Return,
            (2, _) => Target::or_mark(1),
            (3, Some(callee)) => Target::Goto(callee),
            (4..=7, Some(callee)) => Target::Jump(callee),
            (8, _) => Target::Accept,
            _ => Target::None,
        }
    }
}

fn packets() -> impl Strategy<Value = Vec<(u8, bool, u16, u64)>> {
    prop::collection::vec((0u8..5, any::<bool>(), 79u16..85, any::<u64>()), 1..6)
}

#[test]
fn a_rule_that_asks_for_two_ports_is_not_found_by_one() {
    let mut builder = RulesetBuilder::new();
    let forward = builder.builtin(Table::Filter, Hook::Forward);
    let both = |ports: PortMatch| {
        let second = Match::Tcp { sport: None, dport: Some(ports), flags: None, option: None };
        rule().destination(host(vip(0))).dport(Protocol::TCP, 80).with(second).then(Target::Drop)
    };
    let is = |min, max, invert| PortMatch { min, max, invert };
    for _ in 0..8 {
        builder.append(Table::Filter, forward, both(is(81, 81, false)));
        builder.append(Table::Filter, forward, both(is(80, 80, true)));
    }
    builder.append(Table::Filter, forward, both(is(80, 90, false)));
    let rules = builder.build().unwrap();
    let packet = tcp((CLIENT, 9), (vip(0), 80), TcpFlags::SYN);
    for lookup in [Lookup::Indexed, Lookup::Linear, Lookup::RuleByRule] {
        let mut memory = Memory::default();
        let seen = walk(&rules, Table::Filter, Hook::Forward, packet, 1, lookup, &mut memory);
        assert_eq!((seen.verdict, seen.evaluated), (Verdict::Drop, 17), "{lookup:?}");
    }
}

fn packet_of((dst, is_udp, port, seed): (u8, bool, u16, u64)) -> (Packet, u64) {
    let to = (vip(dst), port);
    let made = if is_udp { udp((CLIENT, 9), to) } else { tcp((CLIENT, 9), to, TcpFlags::SYN) };
    (made, seed)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn indexed_is_linear(
        chains in prop::collection::vec(prop::collection::vec(drawn(), 0..40), 1..5),
        packets in packets(),
    ) {
        let mut builder = RulesetBuilder::new();
        let mut ids = vec![builder.builtin(Table::Filter, Hook::Forward)];
        for i in 1..chains.len() {
            ids.push(builder.chain(Table::Filter, format!("C{i}")));
        }
        for (i, rules) in chains.iter().enumerate() {
            for (number, made) in rules.iter().enumerate() {
                builder.append(Table::Filter, ids[i], made.rule(number as u32, &ids[i + 1..]));
            }
        }
        let rules = builder.build().expect("chains call later ones only");
        let (mut a, mut b) = (Memory::default(), Memory::default());
        for (packet, seed) in packets.into_iter().map(packet_of) {
            let (table, hook) = (Table::Filter, Hook::Forward);
            let indexed = walk(&rules, table, hook, packet, seed, Lookup::Indexed, &mut a);
            let linear = walk(&rules, table, hook, packet, seed, Lookup::Linear, &mut b);
            prop_assert_eq!(indexed, linear);
        }
    }

    #[test]
    fn a_view_is_its_whole(
        own in prop::collection::vec(drawn(), 0..6),
        at in 0usize..6,
        parts in prop::collection::vec(
            (prop::collection::vec(drawn(), 0..3), prop::collection::vec(drawn(), 0..5)), 0..6),
        packets in packets(),
    ) {
        let (base, slot, noop) = base_with_slot(&own, at);
        let base = Arc::new(base);
        let fragments = parts.iter().enumerate().map(|(i, (slot_rules, chain_rules))| {
            Arc::new(fragment(&base, slot, noop, i as u32 + 1, slot_rules, chain_rules))
        });
        let fragments: Vec<Arc<Fragment>> = fragments.collect();
        let whole = Ruleset::assemble(&base, &fragments).expect("names differ");
        let all = fragments.iter().flat_map(|fragment| fragment.contribution(slot));
        let all: Vec<Rule> = all.cloned().collect();
        let view = FragmentView::new(base, fragments);
        let grouped = Grouped { view: view.clone(), all };
        let [mut a, mut b, mut c] = [(); 3].map(|()| Memory::default());
        for (packet, seed) in packets.into_iter().map(packet_of) {
            let (table, hook) = (Table::Filter, Hook::Forward);
            let of_groups = walk(&grouped, table, hook, packet, seed, Lookup::Indexed, &mut c);
            let of_view = walk(&view, table, hook, packet, seed, Lookup::Indexed, &mut a);
            let of_whole = walk(&whole, table, hook, packet, seed, Lookup::Linear, &mut b);
            prop_assert_eq!(&of_view, &of_whole);
            prop_assert_eq!(&of_groups, &of_whole);
        }
    }
}

/// A view that answers with all rules of the slot as one group, wherever it is asked to begin.
struct Grouped {
    view: FragmentView,
    all: Vec<Rule>,
}

impl Rules for Grouped {
    fn base(&self, table: Table, hook: Hook) -> Option<&Chain> {
        self.view.base(table, hook)
    }

    fn chain(&self, table: Table, id: ChainId) -> &Chain {
        self.view.chain(table, id)
    }

    fn slot(&self, _: Table, _: SlotId, _: &Packet, from: u32) -> SlotHit<'_> {
        let total = self.all.len() as u32;
        if from < total {
            SlotHit { rules: &self.all, before: 0, total }
        } else {
            SlotHit { rules: &[], before: total, total }
        }
    }

    fn tracks(&self) -> bool {
        self.view.tracks()
    }
}

fn base_with_slot(own: &[Drawn], at: usize) -> (Base, SlotId, ChainId) {
    let mut builder = RulesetBuilder::new();
    let forward = builder.builtin(Table::Filter, Hook::Forward);
    let services = builder.chain(Table::Filter, "SERVICES");
    let noop = builder.chain(Table::Filter, "NOOP");
    builder.append(Table::Filter, noop, rule().then(Target::or_mark(1)));
    builder.append(Table::Filter, forward, rule().then(Target::Jump(services)));
    builder.append(Table::Filter, forward, rule().then(Target::Jump(services)));
    let mut slot = None;
    for (number, made) in own.iter().enumerate() {
        if number == at {
            // Else random rules on both sides of an empty slot are one run in the whole ruleset,
            // which takes one draw where the view takes two.
            builder.append(Table::Filter, services, rule());
            slot = Some(builder.slot(Table::Filter, services));
        }
        builder.append(Table::Filter, services, made.rule(number as u32, &[noop]));
    }
    let slot = slot.unwrap_or_else(|| builder.slot(Table::Filter, services));
    (builder.build_base().expect("a valid base"), slot, noop)
}

fn fragment(
    base: &Base,
    slot: SlotId,
    noop: ChainId,
    id: u32,
    slot_rules: &[Drawn],
    chain_rules: &[Drawn],
) -> Fragment {
    let mut builder = base.fragment(FragmentId(id));
    let own = builder.chain(Table::Filter, format!("OWN{id}"));
    for (number, made) in chain_rules.iter().enumerate() {
        builder.append(Table::Filter, own, made.rule(number as u32, &[noop]));
    }
    for (number, made) in slot_rules.iter().enumerate() {
        // A slot takes no rule that asks for chance alone.
        let made = made.rule(number as u32, &[own, noop]).source(host(CLIENT));
        builder.contribute(slot, made);
    }
    builder.build().expect("a valid fragment")
}
