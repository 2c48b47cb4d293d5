//! Shares of random rules, by χ².

use netfilter_model::exact::Step as Met;

use super::super::case::Shares;
use super::super::model::Model;
use super::super::place::{Place, Settings};
use super::super::rig::Rig;
use super::super::seen::{Ports, Seen, all_same};
use super::{
    Clock, Difference, Limits, Packet, Verdict, explore, frame_to, opened, texts, transmit,
};

/// So many of the ports that are chosen at random may be those that their packets had before.
const MET_MAX: u32 = 2;

/// A right model fails so rarely.
const RARE: f64 = 1e-9;

/// Returns how likely χ² of so many degrees of freedom is at least this value.
// The upper incomplete gamma function at half the freedom, by its recurrence from 1/2 or 1.
fn tail(value: f64, freedom: u32) -> f64 {
    let x = value / 2.0;
    let (mut order, mut sum) =
        if freedom % 2 == 1 { (0.5, libm::erfc(x.sqrt())) } else { (1.0, libm::exp(-x)) };
    while order < f64::from(freedom) / 2.0 {
        sum += libm::exp(order * libm::log(x) - x - libm::lgamma(order + 1.0));
        order += 1.0;
    }
    sum
}

/// What may become of a packet, and how likely it is.
struct Class {
    seen: Vec<Seen>,
    /// A port was chosen at random.
    drawn: bool,
    share: f64,
    count: u32,
}

/// Returns what was seen of a packet as if no source port had been chosen that the packet had
/// before: at random, one of many keeps its port.
fn as_if_changed(packet: &Packet, seen: &[Seen]) -> Vec<Seen> {
    let (sent, mut seen) = (&packet.tuple, seen.to_vec());
    for Seen { packet: Packet { tuple, .. }, .. } in &mut seen {
        if tuple.src_part == sent.src_part && tuple.src() != sent.src() {
            let mut others = (1024..).filter(|port| ![sent.src_part, sent.dst_part].contains(port));
            tuple.src_part = others.next().unwrap_or_default();
        }
    }
    seen
}

/// Returns χ² over the classes and its degrees of freedom; classes of which fewer than five are
/// expected count as one.
fn statistic(classes: &[(f64, u32)], total: f64) -> (f64, u32) {
    let (mut sum, mut cells) = (0.0, 0_u32);
    let mut rest = (0.0, 0);
    let mut add = |expected: f64, count: u32| {
        if expected > 0.0 {
            sum += (f64::from(count) - expected).powi(2) / expected;
            cells += 1;
        }
    };
    for (share, count) in classes {
        let expected = share * total;
        if expected < 5.0 {
            rest = (rest.0 + expected, rest.1 + count);
        } else {
            add(expected, *count);
        }
    }
    add(rest.0, rest.1);
    (sum, cells.saturating_sub(1))
}

/// Sends all, and compares what became of them with the exact distribution.
pub(super) fn run(
    shares: &Shares,
    settings: Settings,
    model: &Model,
    rig: &mut Rig,
    ports: Ports,
) -> Verdict {
    let clock = Clock::start();
    let first = opened(&shares.flow, 0);
    let from = shares.flow.from;
    let fresh = model.fresh();
    let exploration =
        explore(Limits { ways: 2000, alternatives: 1, ..Limits::default() }, |draws| {
            let mut world = fresh.clone();
            if from == Place::Node {
                model.send(&mut world, &first, clock.now(), draws)
            } else {
                let to = frame_to(from, first.tuple.dst());
                model.inject(&mut world, (from, to, &first), clock.now(), draws)
            }
        });
    if !exploration.alternatives.is_empty() {
        return Verdict::Undecided("shares under a rule that is not modelled".to_owned());
    }
    let mut classes: Vec<Class> = Vec::new();
    for way in &exploration.main.ways {
        let share = way.probability.to_f64();
        let drawn = exploration.main.steps(way).contains(&Met::Drawn);
        let known = classes
            .iter_mut()
            .find(|class| all_same((&first, &class.seen), (&first, &way.outcome), ports));
        match known {
            Some(class) => {
                class.share += share;
                class.drawn |= drawn;
            }
            None => classes.push(Class { seen: way.outcome.clone(), drawn, share, count: 0 }),
        }
    }
    let mut met = 0;
    for i in 0..shares.count {
        let mut packet: Packet = first;
        packet.tuple.src_part = first.tuple.src_part.wrapping_add(i);
        let seen = transmit(rig, settings, from, &packet);
        let is_of = |class: &Class, seen: &[Seen]| {
            class.share > 0.0 && all_same((&packet, seen), (&first, &class.seen), ports)
        };
        let mut at = classes.iter().position(|class| is_of(class, &seen));
        if at.is_none() && met < MET_MAX {
            met += 1;
            let changed = as_if_changed(&packet, &seen);
            at = classes.iter().position(|class| class.drawn && is_of(class, &changed));
        }
        let Some(at) = at else {
            return Verdict::Differ(Difference {
                step: None,
                sent: format!("{} sends {:?}, one of many", from.name(), packet.tuple),
                kernel: texts(&seen),
                model: classes.iter().map(|class| texts(&class.seen)).collect(),
            });
        };
        classes[at].count += 1;
    }
    let counts: Vec<(f64, u32)> = classes.iter().map(|c| (c.share, c.count)).collect();
    let (sum, freedom) = statistic(&counts, f64::from(shares.count));
    if freedom > 0 && tail(sum, freedom) < RARE {
        let text =
            |class: &Class, number: String| format!("{number}: {}", texts(&class.seen).join("; "));
        let expected = |class: &Class| format!("{:.1}", class.share * f64::from(shares.count));
        return Verdict::Differ(Difference {
            step: None,
            sent: format!("shares: χ² {sum:.1} of {freedom} degrees of freedom"),
            kernel: classes.iter().map(|class| text(class, class.count.to_string())).collect(),
            model: vec![classes.iter().map(|class| text(class, expected(class))).collect()],
        });
    }
    Verdict::Agree(shares.count.into())
}

#[cfg(test)]
mod tests {
    use netfilter_model::tuple::{Protocol, Tuple};

    use super::*;

    #[test]
    fn tails() {
        let near = |a: f64, b: f64| assert!((a / b - 1.0).abs() < 1e-3, "{a} {b}");
        // From tables of χ².
        near(tail(10.828, 1), 0.001);
        near(tail(13.816, 2), 0.001);
        near(tail(18.467, 4), 0.001);
        near(tail(24.322, 7), 0.001);
        near(tail(37.325, 1), 1e-9);
    }

    #[test]
    fn a_port_that_is_met_by_chance() {
        let packet = |src: [u8; 4], port| {
            let tuple = Tuple::v4(Protocol::UDP, src.into(), port, [10, 0, 0, 9].into(), 53);
            Packet::udp(0, tuple, 60)
        };
        let sent = packet([10, 0, 0, 1], 1024);
        let seen = |packet| vec![Seen { at: Place::Ext, packet }];
        let (met, other) = (seen(packet([10, 0, 0, 2], 1024)), seen(packet([10, 0, 0, 2], 7000)));
        assert!(!all_same((&sent, &met), (&sent, &other), Ports::Source));
        let changed = as_if_changed(&sent, &met);
        assert!(all_same((&sent, &changed), (&sent, &other), Ports::Source));
        // What was not translated keeps its port for good.
        assert_eq!(as_if_changed(&sent, &seen(sent)), seen(sent));
    }

    #[test]
    fn even_and_uneven() {
        let (sum, freedom) = statistic(&[(0.5, 203), (0.5, 197)], 400.0);
        assert!(freedom == 1 && tail(sum, 1) > 0.5);
        let (sum, _) = statistic(&[(0.5, 290), (0.5, 110)], 400.0);
        assert!(tail(sum, 1) < RARE);
        // Less than a packet is expected in the last class: it joins nothing, and still counts.
        let (sum, freedom) = statistic(&[(0.999, 380), (0.001, 20)], 400.0);
        assert!(freedom == 1 && tail(sum, 1) < RARE);
    }
}
