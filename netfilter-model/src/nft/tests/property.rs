//! Random rulesets are written and read as themselves; a set decides the same under a name.

use std::net::Ipv4Addr;

use proptest::collection::{btree_set, vec};
use proptest::prelude::*;
use proptest::sample::select;

use super::{FAR, rules};
use crate::netns::{Netns, Outcome};
use crate::nft::{Ruleset, Table, nft_list};
use crate::read::nft_ruleset;
use crate::rule::Origin;
use crate::testing::{CNI0, Node, env, udp};

const WORDS: [&str; 40] = [
    "ip saddr 10.0.0.0/8",
    "ip daddr != { 10.0.0.1, 10.0.0.4-10.0.0.9 }",
    "ip saddr . tcp dport { 10.0.0.1 . 80, 10.1.0.0/16 . 1-9 }",
    "ip saddr @a",
    "ip saddr . tcp dport != @b",
    "ip6 daddr fd00::/64",
    "ip6 nexthdr udp",
    "tcp dport { 1-5, 443 }",
    "tcp flags syn / fin,syn,rst,ack",
    "tcp flags & (fin | syn) == syn",
    "udp sport != 1024-65535",
    "th dport >= 30000",
    "meta l4proto { tcp, udp }",
    "meta mark & 0x4000 == 0x4000",
    "meta mark != 0x1-0x9",
    "meta nfproto ipv4",
    "meta length > 100",
    "iifname { \"eth0\", \"cni0\" }",
    "oifname != \"veth*\"",
    "ct state new,established",
    "ct state vmap { established : accept, invalid : drop }",
    "ct mark 0x7",
    "ct original ip daddr 10.0.0.1",
    "ct direction reply",
    "fib daddr type { local, broadcast }",
    "fib saddr . iif oif missing",
    "numgen inc mod 3 1",
    "jhash ip saddr . tcp sport mod 9 seed 0x5 offset 2 3-4",
    "limit rate over 5/minute burst 9 packets",
    "quota over 9 mbytes",
    "counter packets 3 bytes 99",
    "meta mark set meta mark | 0x10",
    "ct mark set meta mark & 0xff",
    "ip dscp set cs1",
    "ip ttl set 9",
    "update @c { ip saddr timeout 9s }",
    "add @c { ip saddr limit rate 3/second }",
    "meta mark set ip saddr map { 10.0.0.1 : 0x1, 10.0.0.8/29 : 0x2 }",
    "icmp type echo-request",
    "icmpv6 type { nd-neighbor-solicit, echo-reply }",
];

const ENDS: [&str; 18] = [
    "accept",
    "drop",
    "continue",
    "return",
    "jump x",
    "goto x",
    "reject",
    "reject with tcp reset",
    "reject with icmp host-prohibited",
    "reject with icmpv6 policy-fail",
    "reject with icmpx admin-prohibited",
    "tcp dport vmap { 1 : accept, 2-4 : jump x, * : drop }",
    "ip saddr . tcp dport vmap { 10.0.0.1 . 1 : goto x, 10.0.0.0/24 . 5-6 : drop }",
    "ip saddr vmap @v",
    "notrack",
    "meta mark set numgen inc mod 2 offset 8",
    "",
    "drop comment \"a word, or { two }\"",
];

const SETS: &str = "
    set a { type ipv4_addr; flags interval; elements = { 10.0.0.1, 10.0.0.4-10.0.0.9, 10.9.0.0/16 }
    }
    set b { type ipv4_addr . inet_service; flags interval; elements = { 10.0.0.0/8 . 1-5 }
    }
    set c { type ipv4_addr; size 9; flags dynamic,timeout; timeout 1h
    }
    map v { type ipv4_addr : verdict; elements = { 10.0.0.1 : drop, 10.0.0.2 : jump x }
    }
    chain x {
    }
";

fn rule() -> impl Strategy<Value = String> {
    (vec(select(&WORDS[..]), 0..4), select(&ENDS[..]))
        .prop_map(|(words, end)| format!("{} {end}", words.join(" ")))
        .prop_filter("a statement", |rule| !rule.trim().is_empty())
}

/// Returns tables as if their rules had been read from nowhere.
fn bare(ruleset: &Ruleset) -> Vec<Table> {
    let mut tables = ruleset.tables().to_vec();
    for rule in tables.iter_mut().flat_map(|t| &mut t.chains).flat_map(|c| &mut c.rules) {
        rule.origin = Origin::default();
    }
    tables
}

/// Ranges that do not overlap, of ports and of last bytes of addresses.
fn ranges() -> impl Strategy<Value = Vec<(u16, u16)>> {
    btree_set(0_u16..60, 1..8).prop_flat_map(|bounds| {
        let bounds: Vec<u16> = bounds.into_iter().collect();
        let len = bounds.len();
        vec(any::<bool>(), len).prop_map(move |wide| {
            let ends = bounds.iter().enumerate().map(|(at, first)| {
                let next = bounds.get(at + 1).map_or(60, |next| next - 1);
                (*first, if wide[at] { next } else { *first })
            });
            ends.collect()
        })
    })
}

/// Returns which of the packets pass.
fn passing(text: &str) -> Vec<bool> {
    let (rules, node) = (rules(text), Node::default());
    let mut netns = Netns::default();
    let mut passes = Vec::new();
    for host in (0..62).step_by(3) {
        for port in (0..62).step_by(5).chain([1, 2, 3]) {
            let mut draws = |_: u32| 0;
            let mut env = env(1, &node, &rules, &mut draws);
            let packet = udp((Ipv4Addr::new(10, 244, 1, host), 9), (FAR, port));
            passes.push(matches!(netns.receive(packet, CNI0, &mut env), Outcome::Sent(_)));
        }
    }
    passes
}

fn table(set: &str, rule: &str) -> String {
    let head = "type filter hook forward priority filter; policy accept;";
    format!("table ip t {{\n{set}\nchain f {{ {head}\n{rule}\n}}\n}}\n")
}

proptest! {
    #[test]
    fn what_is_written_is_what_was_read(rules in vec(rule(), 1..6)) {
        let head = "type filter hook forward priority filter; policy drop;";
        let text = format!("table inet t {{\n{SETS}\nchain f {{ {head}\n{}\n}}\n}}\n", rules.join("\n"));
        let read = nft_ruleset(&text, 0);
        prop_assert_eq!(&read.remarks, &[], "{}", text);
        let written = nft_list(&read.value);
        let again = nft_ruleset(&written, 0);
        prop_assert_eq!(&again.remarks, &[], "{}", written);
        prop_assert_eq!(bare(&again.value), bare(&read.value), "{}", written);
        prop_assert_eq!(nft_list(&again.value), written);
    }

    #[test]
    fn what_is_broken_is_written_once_and_for_all(
        rules in vec(rule(), 1..6),
        cuts in vec((any::<prop::sample::Index>(), 0..9_usize, "[ -~]{0,6}"), 1..4),
    ) {
        let mut text = format!("table inet t {{\n{SETS}\nchain f {{\n{}\n}}\n}}\n", rules.join("\n"));
        for (at, len, instead) in cuts {
            let at = at.index(text.len());
            text.replace_range(at..(at + len).min(text.len()), &instead);
        }
        let once = nft_list(&nft_ruleset(&text, 0).value);
        let twice = nft_list(&nft_ruleset(&once, 0).value);
        let thrice = nft_list(&nft_ruleset(&twice, 0).value);
        prop_assert_eq!(twice, thrice, "{}", once);
    }

    #[test]
    fn a_set_decides_the_same_under_a_name(
        ports in ranges(),
        hosts in ranges(),
        negated in any::<bool>(),
        both in any::<bool>(),
    ) {
        let not = if negated { "!= " } else { "" };
        let port = |(first, last): &(u16, u16)| format!("{first}-{last}");
        let host = |(first, last): &(u16, u16)| format!("10.244.1.{first}-10.244.1.{last}");
        let (key, of, elements): (_, _, Vec<String>) = if both {
            let pairs = hosts.iter().zip(ports.iter().cycle());
            let pairs = pairs.map(|(h, p)| format!("{} . {}", host(h), port(p)));
            ("ip saddr . udp dport", "ipv4_addr . inet_service", pairs.collect())
        } else {
            ("udp dport", "inet_service", ports.iter().map(port).collect())
        };
        let elements = elements.join(", ");
        let set = format!("set s {{\ntype {of}\nflags interval\nelements = {{ {elements} }}\n}}");
        let named = passing(&table(&set, &format!("{key} {not}@s drop")));
        let anonymous = passing(&table("", &format!("{key} {not}{{ {elements} }} drop")));
        prop_assert_eq!(&named, &anonymous);
        // And as the ranges say one by one.
        let map: String = elements.split(", ").map(|e| format!("{key} vmap {{ {e} : drop }}\n")).collect();
        if !negated {
            prop_assert_eq!(named, passing(&table("", &map)));
        }
    }
}
