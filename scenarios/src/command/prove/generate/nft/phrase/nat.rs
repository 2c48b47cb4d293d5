//! What random rules of nftables translate.

use std::net::IpAddr;

use super::super::super::super::place::{CNI0, ETH0, ETH1, Place, own, parse};
use super::super::super::packets::{PORTS, behind_n2, target, vip};
use super::super::{Dice, Spot};
use super::Phrase;

impl Phrase {
    /// Appends a translation, unless the machine has none.
    pub(super) fn nat(&mut self, dice: &mut Dice, spot: Spot<'_>, random: &mut usize) -> bool {
        let name = |text: &str| spot.has(text);
        if !(name("nat") && name("masquerade") && name("redirect")) {
            return false;
        }
        let ports = dice.percent(60) && self.transport(dice).is_some();
        let ports = ports.then_some(self.protocol).flatten();
        let text = if matches!(spot.hook, "prerouting" | "output") {
            self.destination(dice, spot, ports, random)
        } else {
            source(dice, spot, ports)
        };
        self.say(text);
        true
    }

    fn destination(
        &self,
        dice: &mut Dice,
        spot: Spot<'_>,
        ports: Option<&str>,
        random: &mut usize,
    ) -> String {
        let (family, ip) = (spot.family, spot.ip());
        let dnat = if spot.inet { format!("dnat {ip} to") } else { "dnat to".to_owned() };
        let endpoint = |dice: &mut Dice| match dice.below(5) {
            0 => behind_n2(dice, family),
            1 => own(family, *dice.pick(&[ETH0, CNI0])).expect("it has an address"),
            _ => {
                dice.pick(&[Place::A1, Place::A2, Place::A3, Place::R1, Place::Ext]).address(family)
            }
        };
        let to = endpoint(dice);
        let Some(protocol) = ports else {
            return match dice.below(5) {
                0 => "redirect".to_owned(),
                1 => {
                    let (a, b) = (vip(dice, family), vip(dice, family));
                    let other = if a == b { target(dice, family) } else { b };
                    if a == other {
                        format!("{dnat} {to}")
                    } else {
                        let map = format!("{a} : {to}, {other} : {}", endpoint(dice));
                        format!("{dnat} {ip} daddr map {{ {map} }}")
                    }
                }
                _ => format!("{dnat} {to}"),
            };
        };
        let port = *dice.pick(&PORTS);
        match dice.below(9) {
            0 => format!("redirect to :{port}"),
            1 => format!(
                "{dnat} {}",
                with_port(to, &format!("8080-8083{}", dice.word(&["", " random"])))
            ),
            2 | 3 => format!("dnat {ip} to {ip} daddr . {protocol} dport map @dests"),
            4 => {
                let other = endpoint(dice);
                format!(
                    "dnat {ip} to numgen inc mod 2 map {{ 0 : {to} . {port}, 1 : {other} . 8080 }}"
                )
            }
            5 if *random > 0 => {
                *random -= 1;
                let other = endpoint(dice);
                format!(
                    "dnat {ip} to numgen random mod 2 map {{ 0 : {to} . {port}, 1 : {other} . 80 }}"
                )
            }
            // nft does not take it in a table of both families.
            6 if !spot.inet => format!("dnat to :{port}"),
            _ => format!("{dnat} {}", with_port(to, &port.to_string())),
        }
    }
}

fn source(dice: &mut Dice, spot: Spot<'_>, ports: Option<&str>) -> String {
    let (family, ip) = (spot.family, spot.ip());
    if spot.hook == "postrouting" && dice.percent(55) {
        return match dice.below(4) {
            0 if ports.is_some() => {
                format!("masquerade to :{}", dice.word(&["50000-50010", "61000", "1024-65535"]))
            }
            1 => "masquerade fully-random".to_owned(),
            2 => "masquerade random".to_owned(),
            _ => "masquerade".to_owned(),
        };
    }
    let from = match dice.below(3) {
        0 => parse(family, "172.18.0.77", "fd00:18::77"),
        1 => parse(family, "198.51.100.7", "fd00:198::7"),
        _ => own(family, *dice.pick(&[ETH0, ETH1, CNI0])).expect("it has an address"),
    };
    let snat = if spot.inet { format!("snat {ip} to") } else { "snat to".to_owned() };
    match dice.below(6) {
        0 | 1 if ports.is_some() => {
            let range = dice.word(&["50000-50010", "61000", "40000-41000"]);
            format!("{snat} {}", with_port(from, range))
        }
        2 => format!("{snat} {from} random"),
        3 => format!("{snat} {from} persistent"),
        4 => {
            let (a, b) = (Place::A1.address(family), behind_n2(dice, family));
            format!("{snat} {ip} saddr map {{ {a} : {from}, {b} : {from} }}")
        }
        _ => format!("{snat} {from}"),
    }
}

/// Returns an address with a port, as statements write it.
fn with_port(address: IpAddr, port: &str) -> String {
    match address {
        IpAddr::V4(address) => format!("{address}:{port}"),
        IpAddr::V6(address) => format!("[{address}]:{port}"),
    }
}
