//! Random packets: flows of a few steps each, from everywhere to whatever the rules may look at.

use std::net::IpAddr;

use super::super::case::{Complaint, Opening, Step, Transport};
use super::super::place::{CNI0, Family, LO, NODE_UDP, Place, Settings, own, parse};
use super::Dice;
use super::kube::Service;

/// Ports that rules and packets share.
pub(super) const PORTS: [u16; 7] = [80, 443, 8080, 53, NODE_UDP, 30_080, 9000];

/// Returns an address that packets may be sent to and that rules may name.
pub(super) fn target(dice: &mut Dice, family: Family) -> IpAddr {
    let around = |place: Place| place.address(family);
    match dice.below(20) {
        0..=3 => around(*dice.pick(&[Place::A1, Place::A2, Place::A3])),
        4 => around(Place::R1),
        5 | 6 => around(Place::Ext),
        7 => around(Place::Far),
        8 | 9 => behind_n2(dice, family),
        10 => behind_far(dice, family),
        11..=13 => vip(dice, family),
        14 => parse(family, "10.99.0.7", "fd00:99::7"),
        15 => parse(family, "10.97.0.7", "fd00:97::7"),
        16 => parse(family, "10.98.0.7", "fd00:98::7"),
        17 => parse(family, "10.96.0.200", "fd00:96::200"),
        _ => own(family, *dice.pick(&[Place::Ext.device(), CNI0, Place::Far.device()]))
            .expect("the device has an address"),
    }
}

/// Returns a Service's address: nothing has a route of its own to it.
pub(super) fn vip(dice: &mut Dice, family: Family) -> IpAddr {
    let number = dice.below(4) + 10;
    parse(family, &format!("10.96.0.{number}"), &format!("fd00:96::{number}"))
}

/// Returns an address of another node's pods.
pub(super) fn behind_n2(dice: &mut Dice, family: Family) -> IpAddr {
    let number = dice.below(3) + 2;
    parse(family, &format!("10.244.2.{number}"), &format!("fd00:244:2::{number}"))
}

fn behind_far(dice: &mut Dice, family: Family) -> IpAddr {
    let number = dice.below(3) + 5;
    parse(family, &format!("203.0.113.{number}"), &format!("fd00:203::{number}"))
}

/// Returns a sender and its address.
fn sender(dice: &mut Dice, family: Family) -> (Place, IpAddr) {
    let from = *dice.pick(&[
        Place::A1,
        Place::A1,
        Place::A2,
        Place::A3,
        Place::R1,
        Place::N2,
        Place::Ext,
        Place::Far,
        Place::Node,
        Place::Node,
    ]);
    let src = match from {
        Place::N2 if dice.percent(70) => behind_n2(dice, family),
        Place::Far if dice.percent(50) => behind_far(dice, family),
        Place::Node if dice.percent(30) => own(family, CNI0).expect("it has an address"),
        from => from.address(family),
    };
    (from, src)
}

/// Returns the first packet of a flow to an address and port.
fn opening(dice: &mut Dice, settings: Settings, to: Option<(Transport, IpAddr, u16)>) -> Opening {
    let family = settings.family;
    let (from, mut src) = sender(dice, family);
    let (proto, mut dst, dport) = match to {
        Some(to) => to,
        None => {
            let proto =
                *dice.pick(&[Transport::Tcp, Transport::Tcp, Transport::Udp, Transport::Icmp]);
            let dport = if proto == Transport::Icmp { 0 } else { *dice.pick(&PORTS) };
            (proto, target(dice, family), dport)
        }
    };
    let is_like = |place: Place| place.device() == CNI0 && place.address(family) == dst;
    // A pod does not send to itself by the cable.
    if from.device() == CNI0 && from.address(family) == dst
        || from == Place::R1 && from.address(family) == dst
    {
        dst = vip(dice, family);
    } else if from == Place::Node && Place::AROUND.into_iter().any(is_like) && dice.percent(50) {
        src = own(family, CNI0).expect("it has an address");
    }
    if from == Place::Node && own(family, LO) == Some(dst) {
        src = dst;
    }
    let flags = match proto {
        Transport::Tcp if dice.percent(92) => "S".to_owned(),
        Transport::Tcp => dice.word(&["A", "SA", "R", "FA", "PA", "RA", "SU"]).to_owned(),
        _ => String::new(),
    };
    let ttl = *dice.pick(&[64, 64, 64, 64, 64, 63, 128, 2, 1]);
    let tos = *dice.pick(&[0, 0, 0, 0, 0x10, 0x2e << 2]);
    let data = *dice.pick(&[0, 0, 16, 56, 200, 1000]);
    let data = match (proto, family) {
        (Transport::Tcp, _) => 0,
        // A longer packet of which a rule changes the header fails its checksum in the node.
        // Kernel: net/ipv6/ip6_input.c, skb_postpull_rcsum, of what TOS and HL have changed
        (_, Family::V6) => data.min(16),
        (_, Family::V4) => data,
    };
    let mark = if from == Place::Node { *dice.pick(&[0, 0, 0, 1, 0x4000]) } else { 0 };
    let sport = if dice.percent(75) { 40_000 + dice.below(2000) } else { 700 + dice.below(4) };
    let sport = sport as u16;
    Opening { from, proto, src, sport, dst, dport, flags, ttl, tos, data, mark }
}

/// Returns a flow of which the endpoint is chosen at random.
pub(super) fn flow_to_service(
    dice: &mut Dice,
    settings: Settings,
    services: &[Service],
) -> Opening {
    let service = dice.pick(services);
    let to = (service.proto, service.address, service.port);
    let mut opening = opening(dice, settings, Some(to));
    opening.sport = 40_000;
    opening.ttl = 64;
    if service.proto == Transport::Tcp {
        opening.flags = "S".to_owned();
    }
    opening
}

/// Returns the steps of some flows, one flow behind the other or among each other.
pub(super) fn steps(dice: &mut Dice, settings: Settings, services: &[Service]) -> Vec<Step> {
    let mut steps: Vec<Step> = Vec::new();
    let flows = 7 + dice.below(8);
    for _ in 0..flows {
        let to = (!services.is_empty() && dice.percent(75)).then(|| {
            let service = dice.pick(services);
            service.target(dice, settings.family)
        });
        let opening = opening(dice, settings, to);
        let proto = opening.proto;
        let first = steps.len();
        // The same client port to somewhere else, or once more.
        let earlier = steps.iter().rev().find_map(|step| match step {
            Step::Open(earlier) if earlier.proto == proto => Some(earlier.clone()),
            _ => None,
        });
        let opening = match earlier {
            Some(earlier) if dice.percent(15) => {
                Opening { from: earlier.from, src: earlier.src, sport: earlier.sport, ..opening }
            }
            _ => opening,
        };
        let is_syn = opening.flags == "S";
        steps.push(Step::Open(opening));
        follow_up(dice, proto, is_syn, first, &mut steps);
    }
    steps
}

fn follow_up(dice: &mut Dice, proto: Transport, syn: bool, first: usize, steps: &mut Vec<Step>) {
    let letters =
        |text: &str| if proto == Transport::Tcp { text.to_owned() } else { String::new() };
    if dice.percent(12) {
        steps.push(Step::Again { of: first, flags: letters("S") });
    }
    if dice.percent(15) {
        let kind = *dice.pick(&[
            Complaint::PortUnreachable,
            Complaint::HostUnreachable,
            Complaint::TimeExceeded,
        ]);
        steps.push(Step::Complain { about: first, kind, from: None });
    }
    if dice.percent(25) {
        return;
    }
    let answer = steps.len();
    let answered = if syn { dice.word(&["SA", "SA", "SA", "SA", "RA"]) } else { "A" };
    steps.push(Step::Answer { to: first, flags: letters(answered) });
    if dice.percent(50) {
        let more = if answered == "SA" { dice.word(&["A", "A", "A", "R", "FA"]) } else { "A" };
        steps.push(Step::Again { of: first, flags: letters(more) });
        if dice.percent(40) && proto != Transport::Icmp {
            let of = steps.len() - 1;
            steps.push(Step::Again { of: answer, flags: letters(dice.word(&["A", "FA", "RA"])) });
            if dice.percent(40) {
                steps.push(Step::Again { of, flags: letters(dice.word(&["A", "FA", "S"])) });
            }
        }
    }
    if dice.percent(10) {
        let kind = *dice.pick(&[Complaint::HostUnreachable, Complaint::TimeExceeded]);
        steps.push(Step::Complain { about: answer, kind, from: None });
    }
}
