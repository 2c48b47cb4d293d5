//! What random rules do.

use super::super::super::place::{CNI0, ETH0, ETH1, Family, Place, own, parse};
use super::super::ipsets;
use super::super::packets::{PORTS, behind_n2};
use super::{Dice, Spot};

/// Appends a target, or none.
pub(super) fn target(
    dice: &mut Dice,
    spot: Spot<'_>,
    protocol: Option<&'static str>,
    in_user_chain: bool,
    words: &mut String,
) {
    if dice.percent(4) {
        return;
    }
    let input = matches!(spot.hook, "PREROUTING" | "INPUT" | "FORWARD");
    if spot.sets && spot.table != "nat" && dice.percent(12) && spot.has("SET") {
        *words += &format!(" -j {}", ipsets::change(dice, spot.known(), input));
        return;
    }
    let (name, text) = match spot.table {
        "nat" => nat(dice, spot, protocol),
        "raw" => match dice.below(8) {
            0 | 1 => ("CT", "CT --notrack".to_owned()),
            2 => ("CT", format!("CT --zone {}", 1 + dice.below(2))),
            3 => {
                ("CT", format!("CT --zone-{} {}", dice.word(&["orig", "reply"]), 1 + dice.below(2)))
            }
            4 => ("NOTRACK", "NOTRACK".to_owned()),
            5 => ("MARK", mark(dice)),
            _ => plain(dice, in_user_chain),
        },
        "mangle" => match dice.below(12) {
            0..=3 => ("MARK", mark(dice)),
            4..=6 => ("CONNMARK", connmark(dice)),
            7 if spot.v4() => (
                "TTL",
                dice.word(&["TTL --ttl-set 40", "TTL --ttl-inc 1", "TTL --ttl-dec 1"]).to_owned(),
            ),
            7 => {
                ("HL", dice.word(&["HL --hl-set 40", "HL --hl-inc 1", "HL --hl-dec 1"]).to_owned())
            }
            8 => ("DSCP", format!("DSCP --set-dscp {}", dice.word(&["0x2e", "0x04"]))),
            9 => ("TOS", "TOS --set-tos 0x10/0x3f".to_owned()),
            10 => ("CLASSIFY", "CLASSIFY --set-class 1:2".to_owned()),
            _ => plain(dice, in_user_chain),
        },
        "filter" => match dice.below(10) {
            0 | 1 => reject(dice, spot, protocol),
            2 => ("MARK", mark(dice)),
            3 => ("CONNMARK", connmark(dice)),
            _ => plain(dice, in_user_chain),
        },
        _ => match dice.below(4) {
            0 => ("MARK", mark(dice)),
            _ => plain(dice, in_user_chain),
        },
    };
    let allowed = match name {
        "CLASSIFY" => matches!(spot.hook, "FORWARD" | "OUTPUT" | "POSTROUTING"),
        _ => true,
    };
    if !allowed || !(name.is_empty() || spot.has(name)) {
        *words += " -j ACCEPT";
    } else {
        *words += &format!(" -j {text}");
    }
}

fn plain(dice: &mut Dice, in_user_chain: bool) -> (&'static str, String) {
    let words = ["ACCEPT", "ACCEPT", "ACCEPT", "RETURN", "RETURN", "DROP"];
    let word = dice.word(&words);
    let word = if word == "RETURN" && !in_user_chain && dice.percent(50) { "ACCEPT" } else { word };
    ("", word.to_owned())
}

fn mark(dice: &mut Dice) -> String {
    dice.word(&[
        "MARK --set-xmark 0x4000/0x4000",
        "MARK --set-xmark 0x1/0xffffffff",
        "MARK --set-mark 0x1/0x3",
        "MARK --or-mark 0x2",
        "MARK --and-mark 0x1",
        "MARK --xor-mark 0x4000",
        "MARK --set-xmark 0x2/0x4003",
    ])
    .to_owned()
}

fn connmark(dice: &mut Dice) -> String {
    dice.word(&[
        "CONNMARK --save-mark",
        "CONNMARK --restore-mark",
        "CONNMARK --save-mark --nfmask 0x4000 --ctmask 0x4000",
        "CONNMARK --restore-mark --nfmask 0x3 --ctmask 0x4003",
        "CONNMARK --set-xmark 0x1/0x3",
        "CONNMARK --set-mark 0x4000",
        "CONNMARK --or-mark 0x2",
        "CONNMARK --and-mark 0x4000",
    ])
    .to_owned()
}

fn reject(dice: &mut Dice, spot: Spot<'_>, protocol: Option<&str>) -> (&'static str, String) {
    let four = [
        "icmp-port-unreachable",
        "icmp-net-unreachable",
        "icmp-host-unreachable",
        "icmp-proto-unreachable",
        "icmp-net-prohibited",
        "icmp-host-prohibited",
        "icmp-admin-prohibited",
    ];
    let six = [
        "icmp6-port-unreachable",
        "icmp6-no-route",
        "icmp6-adm-prohibited",
        "icmp6-addr-unreachable",
    ];
    let with = if protocol == Some("tcp") && dice.percent(40) {
        "tcp-reset"
    } else if spot.v4() {
        dice.word(&four)
    } else {
        dice.word(&six)
    };
    ("REJECT", format!("REJECT --reject-with {with}"))
}

/// Returns an address with a port, as targets write it.
fn with_port(address: impl Into<std::net::IpAddr>, port: &str) -> String {
    match address.into() {
        std::net::IpAddr::V4(address) => format!("{address}:{port}"),
        std::net::IpAddr::V6(address) => format!("[{address}]:{port}"),
    }
}

fn nat(dice: &mut Dice, spot: Spot<'_>, protocol: Option<&'static str>) -> (&'static str, String) {
    let family = spot.family;
    let transport = matches!(protocol, Some("tcp" | "udp"));
    if dice.percent(25) {
        let word = dice.word(&["ACCEPT", "RETURN", "MARK --set-xmark 0x4000/0x4000", "ACCEPT"]);
        return ("", word.to_owned());
    }
    if matches!(spot.hook, "PREROUTING" | "OUTPUT") {
        let to = match dice.below(5) {
            0 => behind_n2(dice, family),
            1 => own(family, *dice.pick(&[ETH0, CNI0])).expect("it has an address"),
            _ => {
                dice.pick(&[Place::A1, Place::A2, Place::A3, Place::R1, Place::Ext]).address(family)
            }
        };
        return match dice.below(9) {
            0 if transport => {
                let port = *dice.pick(&PORTS);
                ("REDIRECT", format!("REDIRECT --to-ports {port}"))
            }
            0 => ("REDIRECT", "REDIRECT".to_owned()),
            1 => {
                let net = parse(family, "203.0.113.0", "fd00:203::");
                let len = if family == Family::V4 { 24 } else { 64 };
                ("NETMAP", format!("NETMAP --to {net}/{len}"))
            }
            2 if transport => {
                let range = dice.word(&["8080-8083", "9000-9001"]);
                let random = dice.word(&["", "", " --random"]);
                ("DNAT", format!("DNAT --to-destination {}{random}", with_port(to, range)))
            }
            3..=5 if transport => {
                let port = dice.pick(&PORTS).to_string();
                ("DNAT", format!("DNAT --to-destination {}", with_port(to, &port)))
            }
            _ => ("DNAT", format!("DNAT --to-destination {to}")),
        };
    }
    let from = match dice.below(3) {
        0 => parse(family, "172.18.0.77", "fd00:18::77"),
        1 => parse(family, "198.51.100.7", "fd00:198::7"),
        _ => own(family, *dice.pick(&[ETH0, ETH1, CNI0])).expect("it has an address"),
    };
    if spot.hook == "POSTROUTING" && dice.percent(60) {
        let text = match dice.below(5) {
            0 if transport => format!(
                "MASQUERADE --to-ports {}",
                dice.word(&["50000-50010", "61000", "1024-65535"])
            ),
            1 => "MASQUERADE --random-fully".to_owned(),
            _ => "MASQUERADE".to_owned(),
        };
        return ("MASQUERADE", text);
    }
    let text = match dice.below(6) {
        0 | 1 if transport => {
            let range = dice.word(&["50000-50010", "61000", "40000-41000"]);
            format!("SNAT --to-source {}", with_port(from, range))
        }
        2 => format!("SNAT --to-source {from} --random"),
        3 => format!("SNAT --to-source {from} --persistent"),
        _ => format!("SNAT --to-source {from}"),
    };
    ("SNAT", text)
}

/// Returns an example of each: name, table, rule.
pub(super) fn examples(family: Family) -> Vec<(&'static str, &'static str, String)> {
    let to = Place::A1.address(family);
    let v4 = family == Family::V4;
    let reject = if v4 { "icmp-port-unreachable" } else { "icmp6-port-unreachable" };
    let len = if v4 { 32 } else { 128 };
    let mut all = vec![
        ("MARK", "mangle", "-A PREROUTING -j MARK --set-mark 1".to_owned()),
        ("CONNMARK", "mangle", "-A PREROUTING -j CONNMARK --save-mark".to_owned()),
        ("DSCP", "mangle", "-A PREROUTING -j DSCP --set-dscp 4".to_owned()),
        ("TOS", "mangle", "-A PREROUTING -j TOS --set-tos 16".to_owned()),
        ("CLASSIFY", "mangle", "-A POSTROUTING -j CLASSIFY --set-class 1:2".to_owned()),
        ("CT", "raw", "-A PREROUTING -j CT --notrack".to_owned()),
        ("NOTRACK", "raw", "-A PREROUTING -j NOTRACK".to_owned()),
        (
            "SET",
            "mangle",
            format!("-A PREROUTING -j SET --add-set {}-ip src", if v4 { "four" } else { "six" }),
        ),
        ("REJECT", "filter", format!("-A INPUT -j REJECT --reject-with {reject}")),
        ("DNAT", "nat", format!("-A PREROUTING -j DNAT --to-destination {to}")),
        ("SNAT", "nat", format!("-A POSTROUTING -j SNAT --to-source {to}")),
        ("MASQUERADE", "nat", "-A POSTROUTING -j MASQUERADE".to_owned()),
        ("REDIRECT", "nat", "-A PREROUTING -j REDIRECT".to_owned()),
        ("NETMAP", "nat", format!("-A PREROUTING -j NETMAP --to {to}/{len}")),
    ];
    all.push(if v4 {
        ("TTL", "mangle", "-A PREROUTING -j TTL --ttl-set 9".to_owned())
    } else {
        ("HL", "mangle", "-A PREROUTING -j HL --hl-set 9".to_owned())
    });
    all
}
