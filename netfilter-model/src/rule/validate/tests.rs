use super::*;
use crate::hook::Hook::{Forward, Input, Output, Postrouting, Prerouting};
use crate::packet::IcmpError;
use crate::rule::LimitIface;
use crate::rule::{
    Base, FragmentId, Match, Nat, NatFlags, NatRange, Policy, PortMatch, Probability, RejectWith,
    Rule, RulesetBuilder,
};
use crate::testing::{VIP, dnat, masquerade, rule};
use crate::tuple::Protocol;

/// What is said of one rule in a built-in chain.
fn said(table: Table, hook: Hook, rule: Rule) -> String {
    let mut builder = RulesetBuilder::new();
    let chain = builder.builtin(table, hook);
    builder.append(table, chain, rule);
    match builder.build() {
        Ok(_) => "ok".to_owned(),
        Err(error) => error.to_string(),
    }
}

#[test]
fn one_rule() {
    let tcp = || rule().protocol(Protocol::TCP);
    let snat = || Target::Nat(Nat::Snat(NatRange::address(VIP.into())));
    let fully = NatFlags { random_fully: true, ..NatFlags::default() };
    let limited = Match::AddrType { src: None, dst: None, limit: Some(LimitIface::In) };
    let backwards =
        Match::Tcp { sport: Some(PortMatch::range(9, 1)), dport: None, flags: None, option: None };
    let (nat, filter) = (Table::Nat, Table::Filter);
    let cases = [
        (nat, Prerouting, tcp().then(dnat(VIP, 80)), "ok"),
        (
            nat,
            Postrouting,
            tcp().then(dnat(VIP, 80)),
            "rule 1: DNAT cannot be used from POSTROUTING, only from PREROUTING, OUTPUT",
        ),
        (
            nat,
            Prerouting,
            rule().then(dnat(VIP, 80)),
            "rule 1: a rewrite of the port needs -p with one of tcp, udp, udplite, sctp, dccp, icmp",
        ),
        (
            filter,
            Forward,
            tcp().then(dnat(VIP, 80)),
            "rule 1: DNAT is not accepted in table filter, only in table nat",
        ),
        (nat, Input, rule().then(snat()), "ok"),
        (nat, Output, rule().then(snat()), "only from INPUT, POSTROUTING"),
        (nat, Output, rule().then(masquerade()), "only from POSTROUTING"),
        (
            nat,
            Prerouting,
            tcp().then(Target::Nat(Nat::Dnat(NatRange::keep()))),
            "DNAT needs an address, a port or both",
        ),
        (
            nat,
            Prerouting,
            tcp().then(Target::Nat(Nat::Dnat(NatRange::to(VIP.into(), 1).with_flags(fully)))),
            "DNAT does not accept --random-fully",
        ),
        (nat, Output, rule().then(Target::Drop), "table nat is not for filtering"),
        (filter, Forward, rule().then(Target::Reject(RejectWith::DEFAULT)), "ok"),
        (
            filter,
            Forward,
            rule().then(Target::Reject(RejectWith::TcpReset)),
            "needs -p with one of tcp",
        ),
        (
            filter,
            Forward,
            rule().then(Target::Reject(RejectWith::Icmp(IcmpError::TimeExceeded))),
            "not TimeExceeded",
        ),
        (
            Table::Mangle,
            Forward,
            rule().then(Target::Reject(RejectWith::DEFAULT)),
            "only in table filter",
        ),
        (filter, Forward, rule().dport(Protocol::ICMP, 80), "a TCP match needs -p with one of tcp"),
        (filter, Forward, tcp().with(backwards), "port range 9:1 ends before it begins"),
        (filter, Output, rule().in_device("eth0").unwrap(), "-i cannot be used in OUTPUT"),
        (filter, Input, rule().out_device("eth0").unwrap(), "-o cannot be used in INPUT"),
        (
            filter,
            Output,
            rule().with(limited),
            "addrtype --limit-iface-in cannot be used from OUTPUT",
        ),
        (
            filter,
            Output,
            rule().with(Match::Nth { every: 3, packet: 3, invert: false }),
            "--packet 3 must be from 0 to 3 - 1",
        ),
        (
            filter,
            Output,
            rule().with(Match::Protocol { protocol: Protocol(0), invert: true }),
            "! -p 0 would never match",
        ),
    ];
    for (table, hook, rule, expected) in cases {
        let said = said(table, hook, rule);
        assert!(said.ends_with(expected) || said.contains(expected), "{said}\nnot: {expected}");
    }
}

#[test]
fn every_hook_that_reaches_a_chain_counts() {
    let mut builder = RulesetBuilder::new();
    let nat = Table::Nat;
    let (a, b) = (builder.chain(nat, "A"), builder.chain(nat, "B"));
    builder.append(nat, a, rule());
    builder.append(nat, a, rule().then(Target::Jump(b)));
    builder.append(nat, b, rule().protocol(Protocol::TCP).then(dnat(VIP, 80)));
    let unreached = builder.clone().build();
    assert!(unreached.is_ok(), "nothing leads there");
    let postrouting = builder.builtin(nat, Postrouting);
    builder.append(nat, postrouting, rule().then(Target::Goto(a)));
    let error = builder.build().unwrap_err();
    assert_eq!((&*error.chain, error.rule), ("B", Some(1)));
    assert!(matches!(error.problem, Problem::WrongHook { hook: Postrouting, .. }), "{error}");
}

#[test]
fn loops_are_refused_where_they_can_be_reached() {
    let mut builder = RulesetBuilder::new();
    let filter = Table::Filter;
    let (a, b) = (builder.chain(filter, "A"), builder.chain(filter, "B"));
    builder.append(filter, a, rule().then(Target::Jump(b)));
    builder.append(filter, b, rule().then(Target::Goto(a)));
    assert!(builder.clone().build().is_ok());
    let forward = builder.builtin(filter, Forward);
    builder.append(filter, forward, rule().then(Target::Jump(a)));
    let error = builder.build().unwrap_err();
    assert!(matches!(error.problem, Problem::Loop(_)), "{error}");
}

/// A chain of so many nested jumps.
fn nested(backend: Backend, jumps: usize) -> Result<(), ValidationError> {
    let mut builder = RulesetBuilder::for_backend(backend);
    let mut from = builder.builtin(Table::Filter, Forward);
    for i in 0..jumps {
        let to = builder.chain(Table::Filter, format!("C{i}"));
        builder.append(Table::Filter, from, rule().then(Target::Jump(to)));
        from = to;
    }
    builder.build().map(|_| ())
}

#[test]
fn nf_tables_nests_fifteen_jumps_and_x_tables_more() {
    assert_eq!(nested(Backend::NfTables, 15), Ok(()));
    let error = nested(Backend::NfTables, 16).unwrap_err();
    assert_eq!(error.problem, Problem::TooDeep { depth: 16 });
    assert_eq!(nested(Backend::Legacy, 40), Ok(()));
}

#[test]
fn chains_are_named_and_exist() {
    for name in ["", "a b", "-x", "!x", "ACCEPT", "a-name-of-more-than-28-letters"] {
        let mut builder = RulesetBuilder::new();
        builder.chain(Table::Filter, name);
        assert!(builder.build().is_err(), "{name:?}");
    }
    let unknown = ChainId { fragment: FragmentId::BASE, index: 99 };
    let text = said(Table::Filter, Forward, rule().then(Target::Jump(unknown)));
    assert!(text.contains("no chain of this table"), "{text}");
    let builtin = ChainId { fragment: FragmentId::BASE, index: 0 };
    let text = said(Table::Filter, Forward, rule().then(Target::Jump(builtin)));
    assert!(text.contains("jump to the built-in chain INPUT"), "{text}");
    let mut builder = RulesetBuilder::new();
    builder.policy(Table::Nat, Output, Policy::Drop);
    assert_eq!(builder.build().unwrap_err().problem, Problem::DropInNat);
}

#[test]
fn a_fragment_is_checked_against_where_its_slot_stands() {
    let mut builder = RulesetBuilder::new();
    let nat = Table::Nat;
    let services = builder.chain(nat, "SERVICES");
    let snat_only = builder.chain(nat, "SNAT-ONLY");
    builder.append(nat, snat_only, rule().then(masquerade()));
    let prerouting = builder.builtin(nat, Prerouting);
    builder.append(nat, prerouting, rule().then(Target::Jump(services)));
    let slot = builder.slot(nat, services);
    let base: Base = builder.build_base().unwrap();
    let build = |contributed: &dyn Fn(ChainId) -> Rule, own: Rule| {
        let mut fragment = base.fragment(FragmentId(7));
        let chain = fragment.chain(nat, "OWN");
        fragment.append(nat, chain, own);
        fragment.contribute(slot, contributed(chain));
        fragment.build().map(|_| ()).map_err(|error| error.problem)
    };
    let jump = |chain| rule().dport(Protocol::TCP, 80).then(Target::Jump(chain));
    let rewrite = || rule().protocol(Protocol::TCP).then(dnat(VIP, 80));
    assert_eq!(build(&jump, rewrite()), Ok(()));
    let wrong = build(&jump, rule().then(masquerade()));
    assert!(matches!(wrong, Err(Problem::WrongHook { .. })), "{wrong:?}");
    let wrong = build(&jump, rule().then(Target::Jump(snat_only)));
    assert!(matches!(wrong, Err(Problem::WrongHook { .. })), "{wrong:?}");
    let back = build(&jump, rule().then(Target::Jump(services)));
    assert!(matches!(back, Err(Problem::Loop(_))), "{back:?}");
    let chance =
        build(&|chain| rule().random(Probability::one_of(2)).then(Target::Jump(chain)), rewrite());
    assert_eq!(chance, Err(Problem::OnlyRandomInSlot));
}
