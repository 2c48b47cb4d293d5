//! What random rules of nftables ask and do.

mod nat;

use std::net::IpAddr;

use super::super::super::place::Place;
use super::super::iptables::network;
use super::super::packets::{PORTS, behind_n2, target};
use super::{Dice, Kind, Spot};

/// A rule as far as it is written.
#[derive(Debug, Default)]
pub(super) struct Phrase {
    words: Vec<String>,
    /// The transport that it asks for: `tcp`, `udp`, `icmp` or `ipv6-icmp`, or `any` of several.
    protocol: Option<&'static str>,
}

fn not(dice: &mut Dice) -> &'static str {
    if dice.percent(25) { "!= " } else { "" }
}

fn ports(dice: &mut Dice) -> String {
    match dice.below(9) {
        0 => "1024-65535".to_owned(),
        1 => "0-1023".to_owned(),
        2 => "40000-41000".to_owned(),
        3 => "{ 80, 443, 8080-9000 }".to_owned(),
        4 => "{ 53, 5353 }".to_owned(),
        5 => "@ports".to_owned(),
        _ => dice.pick(&PORTS).to_string(),
    }
}

const STATES: [&str; 8] = [
    "new",
    "established",
    "established,related",
    "invalid",
    "untracked",
    "related",
    "{ new, invalid }",
    "new,untracked",
];

impl Phrase {
    /// Returns the rule.
    pub(super) fn text(&self) -> String {
        self.words.join(" ")
    }

    fn say(&mut self, text: impl Into<String>) {
        self.words.push(text.into());
    }

    /// Asks for a transport with ports, if it may, and returns which.
    fn transport(&mut self, dice: &mut Dice) -> Option<&'static str> {
        match self.protocol {
            None => {
                let protocol = dice.word(&["tcp", "tcp", "udp"]);
                self.protocol = Some(protocol);
                self.say(format!("meta l4proto {protocol}"));
                Some(protocol)
            }
            Some(protocol) if matches!(protocol, "tcp" | "udp") => Some(protocol),
            Some(_) => None,
        }
    }

    /// Appends a condition.
    pub(super) fn condition(&mut self, dice: &mut Dice, spot: Spot<'_>, random: &mut usize) {
        match dice.below(16) {
            0..=3 => self.address(dice, spot),
            4 | 5 => self.device(dice, spot),
            6..=8 => self.port(dice, spot),
            9 => self.icmp(dice, spot),
            10 | 11 if !spot.is_raw() || dice.percent(10) => self.connection(dice, spot),
            12 => self.mark(dice),
            13 if spot.has("fib") => self.fib(dice, spot),
            14 => self.counted(dice, spot, random),
            _ => self.header(dice, spot),
        }
    }

    fn address(&mut self, dice: &mut Dice, spot: Spot<'_>) {
        let (ip, side) = (spot.ip(), dice.word(&["saddr", "daddr"]));
        let not = not(dice);
        let text = match dice.below(8) {
            0 => format!("{ip} {side} {not}@nets"),
            1 => {
                let mut all = vec![target(dice, spot.family), target(dice, spot.family)];
                all.sort();
                all.dedup();
                let all: Vec<String> = all.iter().map(IpAddr::to_string).collect();
                format!("{ip} {side} {not}{{ {} }}", all.join(", "))
            }
            2 => format!("{ip} {side} {not}@seen"),
            3 => match self.protocol {
                Some(p @ ("tcp" | "udp")) => {
                    let set = dice.word(&["pairs", "spans", "flows"]);
                    format!("{ip} {side} . {p} dport {not}@{set}")
                }
                _ => format!("{ip} {side} {not}{}", network(dice, spot.family)),
            },
            4 => {
                let (from, to) = if spot.v4() {
                    ("10.244.1.3", "10.244.1.77")
                } else {
                    ("fd00:244:1::3", "fd00:244:1::77")
                };
                format!("{ip} {side} {not}{from}-{to}")
            }
            _ => format!("{ip} {side} {not}{}", network(dice, spot.family)),
        };
        self.say(text);
    }

    fn device(&mut self, dice: &mut Dice, spot: Spot<'_>) {
        // Where there is no such device, a rule finds none.
        let input = if dice.percent(90) { spot.is_input() } else { dice.percent(50) };
        let input = if spot.is_input() && spot.is_output() { dice.percent(50) } else { input };
        let way = if input { "iif" } else { "oif" };
        let text = match dice.below(6) {
            0 => format!("{way} {}{}", not(dice), dice.word(&["cni0", "eth0", "lo"])),
            1 => format!("{way}name {}\"{}\"", not(dice), dice.word(&["eth*", "cali*", "c*"])),
            2 => format!("{way}name {}{{ \"cni0\", \"eth1\" }}", not(dice)),
            _ => {
                let name = dice.word(&["cni0", "eth0", "eth1", "cali1", "lo"]);
                format!("{way}name {}\"{name}\"", not(dice))
            }
        };
        self.say(text);
    }

    fn port(&mut self, dice: &mut Dice, spot: Spot<'_>) {
        match dice.below(8) {
            0 if self.protocol.is_none() => {
                self.protocol = Some("any");
                let side = dice.word(&["dport", "sport"]);
                let set = ports(dice);
                self.say(format!("meta l4proto {{ tcp, udp }} th {side} {}{set}", not(dice)));
            }
            1 if self.protocol.is_none() => {
                self.protocol = Some("any");
                self.say(format!(
                    "{} . meta l4proto . th dport {{ {} . {} . {}, {} . udp . 53 }}",
                    if spot.v4() { "ip daddr" } else { "ip6 daddr" },
                    target(dice, spot.family),
                    dice.word(&["tcp", "udp"]),
                    dice.pick(&PORTS[..3]),
                    target(dice, spot.family),
                ));
            }
            2 if matches!(self.protocol, None | Some("tcp")) => {
                self.protocol = Some("tcp");
                self.say(dice.word(&[
                    "tcp flags & (fin | syn | rst | ack) == syn",
                    "tcp flags syn",
                    "tcp flags & (syn | ack) == (syn | ack)",
                    "tcp flags rst",
                    "tcp flags != syn",
                    "tcp flags fin,rst",
                    "tcp flags & (syn | ack) == ack",
                ]));
            }
            _ => {
                let Some(protocol) = self.protocol.filter(|p| matches!(*p, "tcp" | "udp")) else {
                    if self.protocol.is_none() {
                        let protocol = dice.word(&["tcp", "tcp", "udp"]);
                        self.protocol = Some(protocol);
                        let side = dice.word(&["dport", "dport", "sport"]);
                        let set = ports(dice);
                        self.say(format!("{protocol} {side} {}{set}", not(dice)));
                    }
                    return;
                };
                let side = dice.word(&["dport", "dport", "sport"]);
                let set = ports(dice);
                self.say(format!("{protocol} {side} {}{set}", not(dice)));
            }
        }
    }

    fn icmp(&mut self, dice: &mut Dice, spot: Spot<'_>) {
        let (name, header) = if spot.v4() { ("icmp", "icmp") } else { ("ipv6-icmp", "icmpv6") };
        if self.protocol.is_none() {
            self.protocol = Some(name);
        } else if self.protocol != Some(name) {
            return;
        }
        let kinds = if dice.percent(60) {
            dice.word(&["echo-request", "echo-reply"]).to_owned()
        } else {
            "{ echo-reply, destination-unreachable, time-exceeded }".to_owned()
        };
        self.say(format!("{header} type {}{kinds}", not(dice)));
    }

    fn connection(&mut self, dice: &mut Dice, spot: Spot<'_>) {
        if !spot.has("ct") {
            return;
        }
        let ip = spot.ip();
        let text = match dice.below(12) {
            0..=4 => format!("ct state {}{}", not(dice), dice.word(&STATES)),
            5 => format!("ct direction {}", dice.word(&["original", "reply"])),
            6 => {
                format!(
                    "ct status {}",
                    dice.word(&["assured", "seen-reply", "dnat", "snat", "confirmed"])
                )
            }
            7 => format!("ct mark {}{}", not(dice), dice.word(&["0x0", "0x1", "0x4000"])),
            8 => {
                let value = dice.word(&["0x1", "0x0", "0x2"]);
                format!("ct mark & 0x3 {} {value}", dice.word(&["==", "!="]))
            }
            9 => format!("ct original {ip} daddr {}", network(dice, spot.family)),
            10 => format!("ct reply {ip} saddr {}", network(dice, spot.family)),
            _ => match self.transport(dice) {
                Some(_) => format!("ct original proto-dst {}", dice.pick(&PORTS)),
                None => "ct state new".to_owned(),
            },
        };
        self.say(text);
    }

    fn mark(&mut self, dice: &mut Dice) {
        let value = dice.word(&["0x0", "0x1", "0x2", "0x4000", "0x4001"]);
        let text = match dice.below(4) {
            0 => format!("meta mark {}{value}", not(dice)),
            1 => format!("meta mark & 0x4000 {} 0x4000", dice.word(&["==", "!="])),
            2 => format!("meta mark & 0x3 {} 0x0", dice.word(&["==", "!="])),
            _ => format!("meta mark {}{{ 0x1, 0x4000-0x4002 }}", not(dice)),
        };
        self.say(text);
    }

    // Kernel: nft_fib.c, nft_fib_validate, says which question is asked where.
    fn fib(&mut self, dice: &mut Dice, spot: Spot<'_>) {
        let side = dice.word(&["saddr", "daddr", "daddr"]);
        let kind = dice.word(&["local", "local", "unicast", "{ local, unicast }"]);
        let text = match dice.below(6) {
            0 if spot.hook == "prerouting" => {
                let answer = dice.word(&["exists", "missing"]);
                format!("fib saddr . iif oif {answer}")
            }
            1 if spot.hook == "prerouting" => {
                format!("fib daddr oifname {}\"{}\"", not(dice), dice.word(&["cni0", "eth0", "lo"]))
            }
            2 if spot.is_input() => format!("fib daddr . iif type {}{kind}", not(dice)),
            3 if spot.is_output() => format!("fib saddr . oif type {}{kind}", not(dice)),
            _ => format!("fib {side} type {}{kind}", not(dice)),
        };
        self.say(text);
    }

    /// What depends on chance, or on earlier packets.
    fn counted(&mut self, dice: &mut Dice, spot: Spot<'_>, random: &mut usize) {
        let ip = spot.ip();
        let text = match dice.below(8) {
            0 if *random > 0 && spot.has("numgen") => {
                *random -= 1;
                let modulus = 2 + dice.below(3);
                format!("numgen random mod {modulus} {}{}", not(dice), dice.below(modulus))
            }
            1 if spot.has("numgen") => {
                let modulus = 2 + dice.below(3);
                format!("numgen inc mod {modulus} {}{}", not(dice), dice.below(modulus))
            }
            2 | 3 if spot.has("limit") => {
                let rate = dice.word(&["1/hour", "over 1/hour", "2/hour", "over 6/day"]);
                format!("limit rate {rate} burst {} packets", 1 + dice.below(5))
            }
            4 if spot.has("jhash") => {
                let modulus = 2 + dice.below(3);
                let of = dice.word(&["saddr", "daddr"]);
                format!("jhash {ip} {of} mod {modulus} seed 0x7 {}", dice.below(modulus))
            }
            // Over IPv6 the kernel sends redirects of its own, which count too.
            5 if spot.has("quota") && (spot.v4() || spot.hook != "output") => {
                format!("quota {}{} bytes", dice.word(&["", "over "]), 40 + dice.below(400))
            }
            6 => {
                let op = dice.word(&["add", "update", "update"]);
                let text = dice.word(&["", "", " timeout 2h"]);
                format!("{op} @seen {{ {ip} saddr{text} }}")
            }
            _ => match self.transport(dice) {
                Some(p) => format!("add @flows {{ {ip} saddr . {p} sport }}"),
                None => "counter".to_owned(),
            },
        };
        self.say(text);
    }

    fn header(&mut self, dice: &mut Dice, spot: Spot<'_>) {
        let ip = spot.ip();
        let hops = if spot.v4() { "ip ttl" } else { "ip6 hoplimit" };
        let text = match dice.below(10) {
            0 => format!("{hops} {}{}", not(dice), dice.word(&["64", "63", "1", "60-64"])),
            1 => format!("{hops} {}", dice.word(&["< 64", "> 63", ">= 2"])),
            2 => format!("{ip} dscp {}{}", not(dice), dice.word(&["ef", "0x04", "cs0"])),
            3 => format!("meta length {}{}", not(dice), dice.word(&["60", "0-60", "84"])),
            4 if spot.v4() => format!("ip length {}", dice.word(&["> 60", "<= 84", "28-40"])),
            5 if self.protocol.is_none() => {
                let (protocols, only) = match dice.below(3) {
                    0 => ("{ tcp, udp }", "any"),
                    1 => ("tcp", "tcp"),
                    _ => ("udp", "udp"),
                };
                let not = if only == "any" { not(dice) } else { "" };
                self.protocol = Some(only);
                let field = if spot.v4() { "ip protocol" } else { "ip6 nexthdr" };
                let field = dice.word(&[field, "meta l4proto", "meta l4proto"]);
                format!("{field} {not}{protocols}")
            }
            6 if matches!(spot.hook, "output" | "postrouting") => {
                dice.word(&["meta skuid 0", "meta skuid != 0", "meta skgid 0"]).to_owned()
            }
            7 => format!("meta nfproto {}", if spot.v4() { "ipv4" } else { "ipv6" }),
            8 if spot.is_input() => {
                dice.word(&["meta pkttype host", "meta pkttype != host"]).into()
            }
            _ => "counter".to_owned(),
        };
        // In a table of one family nft takes no question about it.
        if text.starts_with("meta nfproto") && !spot.inet {
            return;
        }
        self.say(text);
    }

    /// Appends a statement after which the rule goes on.
    pub(super) fn change(&mut self, dice: &mut Dice, spot: Spot<'_>) {
        let ip = spot.ip();
        let text = match dice.below(14) {
            0..=4 => dice
                .word(&[
                    "meta mark set 0x1",
                    "meta mark set meta mark or 0x4000",
                    "meta mark set meta mark xor 0x2",
                    "meta mark set meta mark and 0x4001",
                    "meta mark set (meta mark & 0xfffffffc) | 0x1",
                    "meta mark set 0x0",
                ])
                .to_owned(),
            5 if spot.has("ct") => "meta mark set ct mark".to_owned(),
            6 | 7 if spot.has("ct") => dice
                .word(&[
                    "ct mark set meta mark",
                    "ct mark set 0x1",
                    "ct mark set ct mark or 0x2",
                    "ct mark set ct mark and 0x4001",
                ])
                .to_owned(),
            8 => format!("meta mark set {ip} saddr map @marks"),
            9 => format!("{ip} dscp set {}", dice.word(&["ef", "0x04", "cs0"])),
            10 => {
                let field = if spot.v4() { "ip ttl" } else { "ip6 hoplimit" };
                format!("{field} set {}", dice.word(&["40", "1", "200"]))
            }
            11 if spot.has("numgen") => "meta mark set numgen inc mod 3".to_owned(),
            12 => match self.protocol {
                Some(p @ ("tcp" | "udp")) => {
                    format!(
                        "meta mark set {p} dport map {{ 80 : 0x1, 53 : 0x2, 8080-9000 : 0x4000 }}"
                    )
                }
                _ => "counter".to_owned(),
            },
            _ => "counter".to_owned(),
        };
        self.say(text);
    }

    /// Ends the rule with what becomes of the packet, or with nothing.
    pub(super) fn end(
        &mut self,
        dice: &mut Dice,
        spot: Spot<'_>,
        below: &[String],
        random: &mut usize,
    ) {
        if dice.percent(8) {
            return self.say("counter");
        }
        if spot.is_raw() && dice.percent(45) && matches!(spot.hook, "prerouting" | "output") {
            let zone = 1 + dice.below(2);
            let text = match dice.below(4) {
                0 if spot.has("zone") => format!("ct zone set {zone}"),
                // At OUTPUT the kernel's own errors get such a zone too, which differs: docs/prove.md.
                1 if spot.has("zone") && spot.hook == "prerouting" => {
                    format!("ct {} zone set {zone}", dice.word(&["original", "reply"]))
                }
                _ => "notrack".to_owned(),
            };
            return self.say(text);
        }
        if spot.kind == Kind::Nat && dice.percent(70) && self.nat(dice, spot, random) {
            return;
        }
        if dice.percent(18) {
            return self.verdict_map(dice, spot, below, random);
        }
        if !below.is_empty() && dice.percent(40) {
            let how = dice.word(&["jump", "jump", "goto"]);
            let to = dice.pick(below);
            return self.say(format!("{how} {to}"));
        }
        if spot.kind == Kind::Filter
            && spot.hook != "postrouting"
            && spot.has("reject")
            && dice.percent(22)
        {
            return self.reject(dice, spot);
        }
        let words =
            ["accept", "accept", "accept", "return", "continue", "drop", "drop", "jump leaf"];
        let mut word = dice.word(&words);
        if spot.kind == Kind::Nat && word == "drop" && dice.percent(60) {
            word = "accept";
        }
        self.say(word);
    }

    fn verdict_map(
        &mut self,
        dice: &mut Dice,
        spot: Spot<'_>,
        below: &[String],
        random: &mut usize,
    ) {
        let ip = spot.ip();
        let verdict = |dice: &mut Dice| match dice.below(8) {
            0 | 1 => "accept".to_owned(),
            2 => "drop".to_owned(),
            3 => "return".to_owned(),
            4 => "continue".to_owned(),
            5 => "jump leaf".to_owned(),
            _ => match below.first() {
                Some(_) => {
                    let how = dice.word(&["jump", "goto"]);
                    format!("{how} {}", dice.pick(below))
                }
                None => "goto leaf".to_owned(),
            },
        };
        let (a, b) = (verdict(dice), verdict(dice));
        let text = match dice.below(9) {
            0 | 1 => format!("{ip} daddr . meta l4proto . th dport vmap @where"),
            2 if spot.has("ct") && !spot.is_raw() => {
                format!("ct state vmap {{ established : {a}, invalid : {b}, related : accept }}")
            }
            3 if spot.has("numgen") && *random > 0 => {
                *random -= 1;
                format!("numgen random mod 3 vmap {{ 0 : {a}, 1 : {b} }}")
            }
            4 if spot.has("numgen") => {
                format!("numgen inc mod 4 offset 10 vmap {{ 10 : {a}, 11-12 : {b} }}")
            }
            5 => format!("meta mark vmap {{ 0x0 : {a}, 0x1-0x4000 : {b} }}"),
            6 if spot.is_input() => format!("iifname vmap {{ \"cni0\" : {a}, \"eth0\" : {b} }}"),
            7 => format!(
                "{ip} saddr vmap {{ {} : {a}, {} : {b} }}",
                Place::A1.address(spot.family),
                behind_n2(dice, spot.family)
            ),
            _ => match self.transport(dice) {
                Some(p) => format!("{p} dport vmap {{ 80 : {a}, 53 : accept, 8080-9000 : {b} }}"),
                None => return self.say("accept"),
            },
        };
        self.say(text);
    }

    fn reject(&mut self, dice: &mut Dice, spot: Spot<'_>) {
        let four = [
            "port-unreachable",
            "net-unreachable",
            "host-unreachable",
            "prot-unreachable",
            "net-prohibited",
            "host-prohibited",
            "admin-prohibited",
        ];
        let six = ["port-unreachable", "no-route", "admin-prohibited", "addr-unreachable"];
        let both = ["port-unreachable", "no-route", "admin-prohibited", "host-unreachable"];
        let text = if self.protocol == Some("tcp") && dice.percent(40) {
            "reject with tcp reset".to_owned()
        } else if dice.percent(20) {
            "reject".to_owned()
        } else if spot.inet && dice.percent(50) {
            format!("reject with icmpx type {}", dice.word(&both))
        } else if spot.v4() {
            format!("reject with icmp type {}", dice.word(&four))
        } else {
            format!("reject with icmpv6 type {}", dice.word(&six))
        };
        self.say(text);
    }
}
