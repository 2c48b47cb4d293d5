//! What random rules ask.

use std::net::IpAddr;

use super::super::super::place::{Family, Place};
use super::super::ipsets;
use super::super::packets::{PORTS, behind_n2, target};
use super::{Dice, Spot};

fn not(dice: &mut Dice) -> &'static str {
    if dice.percent(25) { "! " } else { "" }
}

/// Returns an address or a network that holds some.
pub(in super::super) fn network(dice: &mut Dice, family: Family) -> String {
    let four = ["10.244.0.0/16", "10.244.1.0/24", "10.244.1.2/31", "10.96.0.0/12", "172.18.0.0/16"];
    let six =
        ["fd00:244::/32", "fd00:244:1::/64", "fd00:244:1::2/127", "fd00:96::/64", "fd00:18::/64"];
    if dice.percent(55) {
        return target(dice, family).to_string();
    }
    dice.word(if family == Family::V4 { &four } else { &six }).to_owned()
}

/// Appends conditions of the header, and returns the protocol if there is one.
pub(super) fn header(dice: &mut Dice, spot: Spot<'_>, words: &mut String) -> Option<&'static str> {
    if dice.percent(25) {
        *words += &format!(" {}-s {}", not(dice), network(dice, spot.family));
    }
    if dice.percent(35) {
        *words += &format!(" {}-d {}", not(dice), network(dice, spot.family));
    }
    let devices = ["cni0", "eth0", "eth1", "cali1", "lo", "eth+", "cali+", "va1"];
    let input = matches!(spot.hook, "PREROUTING" | "INPUT" | "FORWARD");
    if input && dice.percent(20) {
        *words += &format!(" {}-i {}", not(dice), dice.word(&devices));
    }
    let output = matches!(spot.hook, "FORWARD" | "OUTPUT" | "POSTROUTING");
    if output && dice.percent(20) {
        *words += &format!(" {}-o {}", not(dice), dice.word(&devices));
    }
    if !dice.percent(55) {
        return None;
    }
    let icmp = if spot.v4() { "icmp" } else { "ipv6-icmp" };
    let protocol = dice.word(&["tcp", "tcp", "udp", "udp", icmp]);
    if dice.percent(8) {
        *words += &format!(" ! -p {protocol}");
        return None;
    }
    *words += &format!(" -p {protocol}");
    Some(protocol)
}

fn ports(dice: &mut Dice) -> String {
    match dice.below(6) {
        0 => "1024:65535".to_owned(),
        1 => "0:1023".to_owned(),
        2 => "40000:41000".to_owned(),
        3 => "50:9000".to_owned(),
        _ => dice.pick(&PORTS).to_string(),
    }
}

fn mark(dice: &mut Dice) -> String {
    let value = *dice.pick(&[0x1_u32, 0x2, 0x4000, 0x4001, 0x0, 0x3]);
    let mask = *dice.pick(&[0xffff_ffff_u32, 0x4000, 0x3, 0x1, 0x4003]);
    format!("{value:#x}/{mask:#x}")
}

/// The state a connection may be in.
const STATES: [&str; 7] =
    ["NEW", "ESTABLISHED", "RELATED,ESTABLISHED", "INVALID", "UNTRACKED", "RELATED", "NEW,INVALID"];

/// Appends one more condition.
#[allow(clippy::too_many_lines, reason = "one arm for each extension")]
pub(super) fn extension(
    dice: &mut Dice,
    spot: Spot<'_>,
    protocol: Option<&'static str>,
    random: &mut usize,
    words: &mut String,
) {
    let family = spot.family;
    let transport = protocol.filter(|p| matches!(*p, "tcp" | "udp"));
    let icmp = protocol.is_some_and(|p| p.contains("icmp"));
    let raw = spot.table == "raw";
    let input = matches!(spot.hook, "PREROUTING" | "INPUT" | "FORWARD");
    let (name, text) = match dice.below(24) {
        0..=3 => match transport {
            Some(p) => {
                let side = dice.word(&["dport", "dport", "sport"]);
                if words.contains(&format!(" -m {p} ")) {
                    return;
                }
                ("", format!("-m {p} {}--{side} {}", not(dice), ports(dice)))
            }
            None if icmp => {
                let (four, six) = (
                    ["echo-request", "echo-reply", "destination-unreachable", "8", "3/3"],
                    ["echo-request", "echo-reply", "destination-unreachable", "128", "1/4"],
                );
                if family == Family::V4 {
                    if words.contains(" -m icmp ") {
                        return;
                    }
                    ("", format!("-m icmp {}--icmp-type {}", not(dice), dice.word(&four)))
                } else {
                    if words.contains(" -m icmp6 ") {
                        return;
                    }
                    ("", format!("-m icmp6 {}--icmpv6-type {}", not(dice), dice.word(&six)))
                }
            }
            None => return,
        },
        4 => match transport {
            Some(_) => {
                let side = dice.word(&["dports", "sports", "ports"]);
                let list = dice.word(&[
                    "80,443",
                    "53,80,8080:9000",
                    "40000:40999",
                    "5353",
                    "80,30080:30090",
                ]);
                ("multiport", format!("-m multiport {}--{side} {list}", not(dice)))
            }
            None => return,
        },
        5 => {
            let side = dice.word(&["src-range", "dst-range"]);
            let range = if family == Family::V4 {
                dice.word(&[
                    "10.244.1.2-10.244.1.3",
                    "10.96.0.0-10.96.0.12",
                    "172.18.0.1-172.18.0.8",
                ])
            } else {
                dice.word(&["fd00:244:1::2-fd00:244:1::3", "fd00:96::-fd00:96::12"])
            };
            ("iprange", format!("-m iprange {}--{side} {range}", not(dice)))
        }
        6 | 7 => ("mark", format!("-m mark {}--mark {}", not(dice), mark(dice))),
        8 if !raw => ("connmark", format!("-m connmark {}--mark {}", not(dice), mark(dice))),
        9 | 10 if !raw => {
            let states = dice.word(&STATES);
            ("conntrack", format!("-m conntrack {}--ctstate {states}", not(dice)))
        }
        11 if !raw => conntrack(dice, spot),
        12 if !raw => ("state", format!("-m state {}--state {}", not(dice), dice.word(&STATES))),
        13 => {
            let kinds = ["LOCAL", "UNICAST", "LOCAL,UNICAST", "MULTICAST"];
            let side = dice.word(&["src-type", "dst-type"]);
            let limit = if input && dice.percent(20) {
                " --limit-iface-in"
            } else if !input && dice.percent(20) {
                " --limit-iface-out"
            } else {
                ""
            };
            let kind = dice.word(&kinds);
            ("addrtype", format!("-m addrtype {}--{side} {kind}{limit}", not(dice)))
        }
        14 if *random > 0 => {
            *random -= 1;
            let p = dice.word(&["0.5", "0.25", "0.3333333333", "0.9", "1", "0"]);
            ("statistic", format!("-m statistic --mode random {}--probability {p}", not(dice)))
        }
        15 => {
            let every = 1 + dice.below(4);
            let packet = dice.below(every);
            let not = not(dice);
            ("statistic", format!("-m statistic --mode nth {not}--every {every} --packet {packet}"))
        }
        16 => {
            let list = dice.word(&["LIST-A", "LIST-B"]);
            let side = dice.word(&["rsource", "rsource", "rdest"]);
            let act = dice.word(&[
                "--set",
                "--set",
                "--rcheck",
                "--rcheck --seconds 60",
                "--rcheck --hitcount 2",
                "--update --seconds 60",
                "--update --hitcount 3",
                "--remove",
                "--rcheck --rttl",
            ]);
            ("recent", format!("-m recent {}{act} --name {list} --{side}", not(dice)))
        }
        17 => {
            let burst = 1 + dice.below(6);
            let rate = dice.word(&["1/hour", "2/hour", "6/hour"]);
            ("limit", format!("-m limit --limit {rate} --limit-burst {burst}"))
        }
        18 => {
            let mode = dice.word(&["srcip", "dstip", "srcip,dstport", "srcip,dstip"]);
            let above = dice.word(&["upto", "above"]);
            let burst = 1 + dice.below(4);
            let name = format!("H{}", words.len());
            let text = format!(
                "-m hashlimit --hashlimit-{above} 1/hour --hashlimit-burst {burst} \
                 --hashlimit-mode {mode} --hashlimit-name {name}"
            );
            ("hashlimit", text)
        }
        19 => match protocol {
            Some("tcp") if !words.contains(" -m tcp ") => {
                let text = dice.word(&[
                    "--tcp-flags FIN,SYN,RST,ACK SYN",
                    "--syn",
                    "--tcp-flags ALL SYN,ACK",
                    "--tcp-flags RST RST",
                    "--tcp-flags SYN,ACK ACK",
                    "--tcp-flags FIN,ACK FIN",
                ]);
                ("", format!("-m tcp {}{text}", not(dice)))
            }
            _ => match dice.below(3) {
                0 => (
                    "length",
                    format!(
                        "-m length {}--length {}",
                        not(dice),
                        dice.word(&["0:60", "84", "100:65535"])
                    ),
                ),
                1 if spot.v4() => (
                    "ttl",
                    format!(
                        "-m ttl {}",
                        dice.word(&["--ttl-eq 64", "--ttl-lt 64", "--ttl-gt 63", "! --ttl-eq 63"])
                    ),
                ),
                1 => (
                    "hl",
                    format!(
                        "-m hl {}",
                        dice.word(&["--hl-eq 64", "--hl-lt 64", "--hl-gt 63", "! --hl-eq 63"])
                    ),
                ),
                _ => (
                    "dscp",
                    format!("-m dscp {}--dscp {}", not(dice), dice.word(&["0x2e", "0x04", "0x00"])),
                ),
            },
        },
        20 if spot.hook != "OUTPUT" => physdev(dice, spot),
        22 | 23 if spot.sets => {
            let not = not(dice);
            ("set", ipsets::condition(dice, spot.known(), input, not))
        }
        _ => match dice.below(3) {
            0 if matches!(spot.hook, "OUTPUT" | "POSTROUTING") => {
                let text = dice.word(&[
                    "--uid-owner 0",
                    "--socket-exists",
                    "--gid-owner 0",
                    "--uid-owner 1",
                ]);
                ("owner", format!("-m owner {}{text}", not(dice)))
            }
            1 if input => {
                let place = *dice.pick(&[Place::A1, Place::A2, Place::N2, Place::Far]);
                let mac: Vec<String> =
                    place.mac().iter().map(|byte| format!("{byte:02x}")).collect();
                ("mac", format!("-m mac {}--mac-source {}", not(dice), mac.join(":")))
            }
            _ => ("comment", "-m comment --comment \"what it is for\"".to_owned()),
        },
    };
    if name.is_empty() || spot.has(name) {
        *words += &format!(" {text}");
    }
}

fn conntrack(dice: &mut Dice, spot: Spot<'_>) -> (&'static str, String) {
    let text = match dice.below(8) {
        0 => format!(
            "--ctstatus {}",
            dice.word(&["ASSURED", "SEEN_REPLY", "NONE", "SEEN_REPLY,ASSURED", "CONFIRMED"])
        ),
        1 => format!("--ctorigdst {}", network(dice, spot.family)),
        2 => format!("--ctorigsrc {}", network(dice, spot.family)),
        3 => format!("--ctreplsrc {}", behind_n2(dice, spot.family)),
        4 => format!("--ctreplsrc {}", target(dice, spot.family)),
        5 => format!("--ctorigdstport {}", ports(dice)),
        6 => format!("--ctproto {}", dice.word(&["6", "17"])),
        _ => {
            return (
                "conntrack",
                format!("-m conntrack --ctdir {}", dice.word(&["ORIGINAL", "REPLY"])),
            );
        }
    };
    let state = if dice.percent(25) {
        format!("--ctstate {}", dice.word(&["DNAT", "SNAT", "NEW"]))
    } else {
        text
    };
    ("conntrack", format!("-m conntrack {}{state}", not(dice)))
}

fn physdev(dice: &mut Dice, spot: Spot<'_>) -> (&'static str, String) {
    let bridged = matches!(spot.hook, "FORWARD" | "POSTROUTING");
    let text = match dice.below(if bridged { 5 } else { 2 }) {
        0 => "--physdev-is-in".to_owned(),
        1 => format!("--physdev-in {}", dice.word(&["va1", "va+", "va2"])),
        2 => "--physdev-is-out".to_owned(),
        3 => format!("--physdev-out {}", dice.word(&["va1", "va+", "va3"])),
        _ => "--physdev-is-bridged".to_owned(),
    };
    let bridged = if text.contains("-out ") { " --physdev-is-bridged" } else { "" };
    ("physdev", format!("-m physdev {}{text}{bridged}", not(dice)))
}

/// Returns an example of each: name, table, rule.
pub(super) fn examples(family: Family) -> Vec<(&'static str, &'static str, String)> {
    let any: IpAddr = Place::A1.address(family);
    let mut examples = vec![
        ("multiport", "-p tcp -m multiport --dports 80"),
        ("mark", "-m mark --mark 1"),
        ("connmark", "-m connmark --mark 1"),
        ("conntrack", "-m conntrack --ctstate NEW"),
        ("state", "-m state --state NEW"),
        ("addrtype", "-m addrtype --dst-type LOCAL"),
        ("statistic", "-m statistic --mode nth --every 2 --packet 0"),
        ("recent", "-m recent --set --name LIST-A --rsource"),
        ("limit", "-m limit --limit 1/hour"),
        (
            "hashlimit",
            "-m hashlimit --hashlimit-upto 1/hour --hashlimit-mode srcip --hashlimit-name H",
        ),
        ("length", "-m length --length 0:60"),
        ("dscp", "-m dscp --dscp 0x2e"),
        ("physdev", "-m physdev --physdev-is-in"),
        (
            "set",
            if family == Family::V4 {
                "-m set --match-set four-ip src"
            } else {
                "-m set --match-set six-ip src"
            },
        ),
        ("mac", "-m mac --mac-source 02:00:00:00:00:01"),
        ("comment", "-m comment --comment x"),
    ];
    examples.push(if family == Family::V4 {
        ("ttl", "-m ttl --ttl-eq 64")
    } else {
        ("hl", "-m hl --hl-eq 64")
    });
    let mut all: Vec<_> = examples
        .into_iter()
        .map(|(name, text)| (name, "filter", format!("-A INPUT {text}")))
        .collect();
    all.push(("iprange", "filter", format!("-A INPUT -m iprange --src-range {any}-{any}")));
    all.push(("owner", "filter", "-A OUTPUT -m owner --uid-owner 0".to_owned()));
    all
}
