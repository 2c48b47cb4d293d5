use proptest::prelude::*;

use super::*;
use crate::hook::{Hook, Table};
use crate::host::Env;
use crate::netns::{Netns, Outcome};
use crate::rule::{LAW_BITS, Match, Rule, Ruleset, RulesetBuilder, Target, Unsupported};
use crate::testing::*;
use crate::time::SimTime;
use crate::traverse::Lookup;
use crate::tuple::Protocol;

/// Follows a packet from a pod through a node of fresh state.
fn follow(rules: &Ruleset, packet: Packet, limits: Limits) -> Exploration<Outcome> {
    let host = Node::default();
    let mut fresh = Netns::default();
    fresh.set_lookup(Lookup::RuleByRule);
    explore(limits, |script| {
        let mut env = Env { now: SimTime::ZERO, host: &host, rules, draws: script };
        fresh.clone().receive(packet, CNI0, &mut env)
    })
}

fn service(n: u8) -> Ruleset {
    let mut proxy = Proxy::new();
    let endpoint = |i| (std::net::Ipv4Addr::new(10, 244, 2, i), 8080);
    let endpoints: Vec<_> = (1..=n).map(endpoint).collect();
    proxy.service(Protocol::TCP, VIP, 80, &endpoints);
    proxy.build()
}

fn syn() -> Packet {
    tcp((CLIENT, 40000), (VIP, 80), crate::packet::TcpFlags::SYN)
}

fn backend(outcome: &Outcome) -> std::net::IpAddr {
    match outcome {
        Outcome::Sent(egress) => egress.packet.tuple.dst(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_service_is_shared_as_its_chain_says() {
    for n in [1, 2, 3, 74] {
        let rules = service(n);
        let found = follow(&rules, syn(), Limits::default());
        assert!(found.alternatives.is_empty() && found.main.unfollowed.is_zero());
        let ways = &found.main.ways;
        assert_eq!(ways.len(), usize::from(n));
        assert_eq!(ways.iter().map(|way| &way.probability).sum::<Share>(), Share::one());
        if n == 1 {
            continue;
        }
        let name = format!("KUBE-SVC-{VIP}:80");
        let chain = rules.chains(Table::Nat).iter().find(|chain| **chain.name() == *name).unwrap();
        let mut law = chain.run_law(0).expect("a run");
        if law.len() > ways.len() {
            assert_eq!(law.pop(), Some(0));
        }
        for (way, law) in ways.iter().zip(law) {
            // The law is rounded at its last bits; up to three endpoints it is exact.
            let exact = way.probability.to_f64();
            assert!((exact - law as f64 / (1u128 << LAW_BITS) as f64).abs() < 1e-15);
            if n <= 3 {
                let scaled = way.probability.numerator() << (96 - way.probability.exponent());
                assert_eq!(scaled, num_bigint::BigUint::from(law));
            }
        }
    }
}

#[test]
fn three_endpoints_to_the_last_bit() {
    let found = follow(&service(3), syn(), Limits::default());
    let shown: Vec<String> =
        found.main.ways.iter().map(|way| way.probability.to_string()).collect();
    assert_eq!(shown, ["715827883/2147483648", "1431655765/4294967296", "1431655765/4294967296"]);
}

#[test]
fn sampled_frequencies_agree_with_the_distribution() {
    const SAMPLES: u32 = 60_000;
    let rules = service(7);
    let found = follow(&rules, syn(), Limits::default());
    let host = Node::default();
    let fresh = Netns::default();
    let mut counts = vec![0u32; 7];
    for sample in 0..SAMPLES {
        let mut draws = |i: u32| bits(u64::from(sample) << 8 ^ u64::from(i));
        let outcome = fresh.clone().receive(syn(), CNI0, &mut env(0, &host, &rules, &mut draws));
        let at = |way: &Way<Outcome>| backend(&way.outcome) == backend(&outcome);
        counts[found.main.ways.iter().position(at).expect("a known outcome")] += 1;
    }
    let chi2: f64 = found
        .main
        .ways
        .iter()
        .zip(&counts)
        .map(|(way, &count)| {
            let expected = way.probability.to_f64() * f64::from(SAMPLES);
            (f64::from(count) - expected).powi(2) / expected
        })
        .sum();
    // The 99.9 % quantile of chi-square with 6 degrees of freedom.
    assert!(chi2 < 22.46, "{chi2}: {counts:?}");
}

#[test]
fn ways_share_the_steps_before_their_branching() {
    let found = follow(&service(3), syn(), Limits::default());
    let steps: Vec<Vec<Step>> = found.main.ways.iter().map(|way| found.main.steps(way)).collect();
    for (way, steps) in found.main.ways.iter().zip(&steps) {
        assert!(matches!(steps[0], Step::Hook(Hook::Prerouting, _)));
        let last = steps.iter().rev().find_map(|step| match step {
            Step::Translated { hook: Hook::Prerouting, after, .. } => Some(after.tuple.dst()),
            _ => None,
        });
        assert_eq!(last, Some(backend(&way.outcome)));
        let hooks: Vec<Hook> = steps
            .iter()
            .filter_map(|step| match step {
                Step::Hook(hook, _) => Some(*hook),
                _ => None,
            })
            .collect();
        assert_eq!(hooks, [Hook::Prerouting, Hook::Forward, Hook::Postrouting]);
    }
    // A linear run of the same choices notes the same steps.
    let mut seen = Vec::new();
    let rules = service(3);
    let host = Node::default();
    struct First<'s>(&'s mut Vec<Step>);
    impl Draws for First<'_> {
        fn draw(&mut self, _: u32) -> u64 {
            0
        }
        fn note(&mut self, note: Note<'_>) {
            self.0.push(note.into());
        }
    }
    let mut draws = First(&mut seen);
    let mut netns = Netns::default();
    netns.set_lookup(Lookup::RuleByRule);
    let _ = netns.receive(syn(), CNI0, &mut env(0, &host, &rules, &mut draws));
    assert_eq!(seen, steps[0]);
}

#[test]
fn a_limit_says_what_it_left() {
    let all = follow(&service(3), syn(), Limits::default());
    assert_eq!((all.main.limit, all.main.unfollowed.is_zero()), (None, true));
    let found = follow(&service(3), syn(), Limits { ways: 2, ..Limits::default() });
    assert_eq!((found.main.ways.len(), found.main.limit), (2, Some(Limit::Ways)));
    assert_eq!(found.main.unfollowed.to_string(), "1431655765/4294967296");
    // Three are all.
    let found = follow(&service(3), syn(), Limits { ways: 3, ..Limits::default() });
    assert_eq!((found.main.ways.len(), found.main.limit), (3, None));

    let steps = all.main.steps(&all.main.ways[0]);
    let found = follow(&service(3), syn(), Limits { steps: steps.len() + 1, ..Limits::default() });
    assert_eq!((found.main.ways.len(), found.main.limit), (2, Some(Limit::Steps)));
    let left_out = |way: &Way<Outcome>| way.steps_left_out;
    assert_eq!(
        found.main.ways.iter().map(left_out).map(|n| n > 0).collect::<Vec<_>>(),
        [false, true]
    );
    let found = follow(&service(3), syn(), Limits { steps_of_way: 4, ..Limits::default() });
    assert_eq!((found.main.ways.len(), found.main.limit), (3, None));
    for way in &found.main.ways {
        assert_eq!(found.main.steps(way), steps[..4]);
    }
    assert_eq!(found.main.ways[0].steps_left_out, steps.len() as u64 - 4);

    let found = explore(Limits { rules: 10, ..Limits::default() }, |script| {
        script.looked_at(4);
        script.below(0, 8)
    });
    assert_eq!((found.main.ways.len(), found.main.limit), (3, Some(Limit::Rules)));
    assert_eq!(found.main.unfollowed.to_string(), "5/8");
}

fn odd(name: &str) -> Match {
    Match::Unsupported(Box::new(Unsupported { name: name.into(), options: "".into() }))
}

/// FORWARD drops under each of these conditions in turn.
fn guarded(conditions: &[&str]) -> Ruleset {
    let mut rules = RulesetBuilder::new();
    let forward = rules.builtin(Table::Filter, Hook::Forward);
    for name in conditions {
        rules.append(Table::Filter, forward, rule().with(odd(name)).then(Target::Drop));
    }
    rules.build().unwrap()
}

#[test]
fn unknown_conditions_make_alternatives() {
    let packet = tcp((CLIENT, 40000), (REMOTE_POD, 80), crate::packet::TcpFlags::SYN);
    let found = follow(&guarded(&["string", "time"]), packet, Limits::default());
    assert!(matches!(found.main.ways[0].outcome, Outcome::Sent(_)));
    let assumed = |branch: &Branch<Outcome>| -> Vec<(u32, bool)> {
        branch.assuming.iter().map(|a| (a.rule.number, a.holds)).collect()
    };
    assert_eq!(assumed(&found.main), [(1, false), (2, false)]);
    // If the first holds, the second is never asked.
    let alternatives: Vec<_> = found.alternatives.iter().map(assumed).collect();
    assert_eq!(alternatives, [vec![(1, true)], vec![(1, false), (2, true)]]);
    for branch in &found.alternatives {
        assert!(matches!(branch.ways[0].outcome, Outcome::Dropped(_)));
        assert_eq!(branch.ways[0].probability, Share::one());
    }
}

#[test]
fn too_many_unknown_conditions_are_counted() {
    let packet = tcp((CLIENT, 40000), (REMOTE_POD, 80), crate::packet::TcpFlags::SYN);
    let limits = Limits { alternatives: 3, ..Limits::default() };
    let found = follow(&guarded(&["a", "b", "c", "d", "e"]), packet, limits);
    assert_eq!((found.alternatives.len(), found.alternatives_left), (3, 5));
}

proptest! {
    #[test]
    fn numbers_below_are_as_likely_as_bits_make_them(modulus in 1u32..40, seed: u64) {
        let found = explore(Limits::default(), |script| script.below(0, modulus));
        let ways = &found.main.ways;
        prop_assert_eq!(ways.iter().map(|way| &way.probability).sum::<Share>(), Share::one());
        let values: Vec<u32> = ways.iter().map(|way| way.outcome).collect();
        prop_assert_eq!(values, (0..modulus).collect::<Vec<_>>());
        // The draw at each boundary is the first of its number.
        let mut first = Share::zero();
        for way in ways {
            let scaled = first.numerator() << (32 - first.exponent());
            let draw = u64::try_from(scaled).unwrap() << 32 | seed >> 32;
            prop_assert_eq!((|_| draw).below(0, modulus), way.outcome);
            first = first + &way.probability;
        }
    }

    /// Rules of any probabilities and unknown conditions: every branch sums to one, and its first
    /// way is what a sampler finds whose draws are all zero.
    #[test]
    fn every_branch_sums_to_one(
        rules in proptest::collection::vec((0u32..=1 << 31, any::<bool>(), 0u8..4), 0..9),
    ) {
        let mut builder = RulesetBuilder::new();
        let forward = builder.builtin(Table::Filter, Hook::Forward);
        for (k, invert, kind) in rules {
            let probability = Probability::from_k(k).unwrap();
            let mut new: Rule = rule();
            if kind == 3 {
                new = new.with(odd("time"));
            }
            new = new.with(Match::Random { probability, invert });
            let target = [Target::Accept, Target::Drop, Target::or_mark(1), Target::Drop];
            new = new.then(target[usize::from(kind)].clone());
            builder.append(Table::Filter, forward, new);
        }
        let rules = builder.build().unwrap();
        let packet = tcp((CLIENT, 40000), (REMOTE_POD, 80), crate::packet::TcpFlags::SYN);
        let found = follow(&rules, packet, Limits::default());
        for branch in std::iter::once(&found.main).chain(&found.alternatives) {
            let sum = branch.ways.iter().map(|way| &way.probability).sum::<Share>();
            prop_assert_eq!(sum, Share::one());
            prop_assert!(branch.ways.iter().all(|way| !way.probability.is_zero()));
        }
    }
}
