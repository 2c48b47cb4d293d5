//! What rulesets do with packets: rules as text, packets through a namespace.

mod property;

use std::net::{IpAddr, Ipv4Addr};

use crate::host::Route;
use crate::netns::{Answer, DropReason, Netns, Outcome};
use crate::packet::{Packet, TcpFlags};
use crate::read::nft_ruleset;
use crate::rule::{Ruleset, RulesetBuilder, TableId};
use crate::testing::{BRIDGE, CNI0, ETH0, GATEWAY, NODE, Node, env, tcp, udp};
use crate::tuple::{Protocol, Tuple};

const POD: Ipv4Addr = Ipv4Addr::new(10, 244, 1, 2);
const FAR: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 9);

/// Reads rules that must be understood.
fn rules(text: &str) -> Ruleset {
    let read = nft_ruleset(text, 0);
    assert_eq!(read.remarks, [], "{text}");
    RulesetBuilder::new().build().unwrap().with_nft(read.value)
}

fn forward(rules: &str) -> Ruleset {
    let head = "type filter hook forward priority filter; policy drop;";
    self::rules(&format!("table ip t {{\n{rules}\nchain f {{ {head}\n jump r\n }}\n}}\n"))
}

struct Bench {
    netns: Netns,
    rules: Ruleset,
    draw: u64,
}

impl Bench {
    fn new(rules: Ruleset) -> Bench {
        Bench { netns: Netns::default(), rules, draw: 0 }
    }

    fn forward(&mut self, second: u64, sport: u16, dport: u16) -> Outcome {
        let (node, draw) = (Node::default(), self.draw);
        let mut draws = |_: u32| draw;
        let mut env = env(second, &node, &self.rules, &mut draws);
        self.netns.receive(udp((POD, sport), (FAR, dport)), CNI0, &mut env)
    }

    /// Returns whether a datagram to a port passes.
    fn passes(&mut self, second: u64, dport: u16) -> bool {
        matches!(self.forward(second, 1000, dport), Outcome::Sent(_))
    }

    /// Returns which of the ports pass.
    fn passing(&mut self, ports: impl IntoIterator<Item = u16>) -> Vec<u16> {
        ports.into_iter().filter(|port| self.passes(1, *port)).collect()
    }
}

#[test]
fn jump_comes_back_goto_does_not_and_return_ends_in_the_policy() {
    let rules = rules(
        "table ip t {
            chain j { udp dport 1 return
                      udp dport 2 drop
                    }
            chain g { udp dport 3 return
                    }
            chain h { goto g
                      drop
                    }
            chain f { type filter hook forward priority filter; policy drop;
                udp dport 1 jump j
                udp dport 1 accept
                udp dport 2 jump j
                udp dport 2 accept
                udp dport 3 goto g
                udp dport 3 accept
                udp dport 4 jump h
                udp dport 4 accept
                udp dport 5 continue
                udp dport 5 accept
                udp dport 6 return
                udp dport 6 accept
            }
        }",
    );
    assert_eq!(Bench::new(rules).passing(1..8), [1, 4, 5]);
}

#[test]
fn a_verdict_map_that_misses_breaks_off() {
    let rules = forward(
        "map m { type inet_service : verdict
                 elements = { 1 : accept, 2 : drop, 3 : continue, 4 : return } }
         chain r { udp dport vmap @m
                   udp dport { 3, 4, 5 } accept
         }",
    );
    assert_eq!(Bench::new(rules).passing(1..7), [1, 3, 5]);
}

#[test]
fn accept_ends_its_base_chain_and_drop_the_packet() {
    let rules = rules(
        "table ip t {
            chain late { type filter hook forward priority 5; policy accept;
                udp dport 1 drop
                udp dport 2 meta mark 2 drop
            }
            chain early { type filter hook forward priority -5; policy accept;
                udp dport 1 accept
                udp dport 2 meta mark set 2
                udp dport 3 drop
            }
        }",
    );
    let mut bench = Bench::new(rules);
    assert_eq!(bench.passing(1..5), [4]);
    let Outcome::Dropped(drop) = bench.forward(1, 1000, 3) else { panic!("it passed") };
    let DropReason::Rule(rule) = drop.reason else { panic!("{:?}", drop.reason) };
    assert_eq!((rule.table, rule.number, rule.origin.item), (TableId::Nft(0), 3, 9));
}

#[test]
fn of_one_priority_the_last_added_runs_first() {
    let chain = |name: &str, rule: &str| {
        format!("chain {name} {{ type filter hook forward priority 0; policy accept;\n{rule}\n}}\n")
    };
    let check = chain("a", "meta mark 7 drop");
    let mark = chain("b", "meta mark set 7");
    let table = |first: &str, second: &str| rules(&format!("table ip t {{\n{first}{second}}}\n"));
    assert!(!Bench::new(table(&check, &mark)).passes(1, 1));
    assert!(Bench::new(table(&mark, &check)).passes(1, 1));
}

#[test]
fn a_chain_without_a_rule_for_the_packet_has_a_policy_by_name() {
    let Outcome::Dropped(drop) = Bench::new(forward("chain r { }")).forward(1, 1, 1) else {
        panic!("it passed")
    };
    assert_eq!(drop.reason, DropReason::Policy(TableId::Nft(0)));
}

#[test]
fn update_renews_and_add_does_not() {
    let rules = forward(
        "set a { type ipv4_addr; flags dynamic,timeout; timeout 10s; }
         set u { type ipv4_addr; flags dynamic,timeout; timeout 10s; }
         chain r { udp dport 1 add @a { ip saddr } update @u { ip saddr }
                   udp dport 2 ip saddr @a accept
                   udp dport 3 ip saddr @u accept
         }",
    );
    let mut bench = Bench::new(rules);
    assert!(!bench.passes(100, 2) && !bench.passes(100, 3));
    let _ = bench.forward(100, 1000, 1);
    let _ = bench.forward(106, 1000, 1);
    assert!(bench.passes(109, 2) && bench.passes(109, 3));
    assert!(!bench.passes(110, 2), "its ten seconds are over");
    assert!(bench.passes(115, 3) && !bench.passes(116, 3));
}

#[test]
fn a_full_set_breaks_the_rule_off() {
    let rules = forward(
        "set s { type inet_service; size 2; flags dynamic; }
         chain r { add @s { udp sport } accept
         }",
    );
    let mut bench = Bench::new(rules);
    let passes = |bench: &mut Bench, sport| matches!(bench.forward(1, sport, 9), Outcome::Sent(_));
    assert!(passes(&mut bench, 1) && passes(&mut bench, 2));
    assert!(!passes(&mut bench, 3), "no room");
    assert!(passes(&mut bench, 1), "it is there");
}

#[test]
fn elements_stay_when_the_ruleset_is_replaced() {
    let text = "set s { type inet_service; flags dynamic; }
         chain r { udp dport 1 add @s { udp sport }
                   udp dport 2 udp sport @s accept
         }";
    let mut bench = Bench::new(forward(text));
    let _ = bench.forward(1, 7, 1);
    let again = forward(&format!("set other {{ type mark; flags dynamic; }}\n{text}"));
    let nft = crate::rule::Rules::nft(&again).unwrap().clone();
    bench.netns.nft_replaced(&nft, crate::time::SimTime::ZERO);
    bench.rules = again;
    assert!(matches!(bench.forward(2, 7, 2), Outcome::Sent(_)));
    assert!(!matches!(bench.forward(2, 8, 2), Outcome::Sent(_)));
}

#[test]
fn numbers_in_turn_begin_with_0() {
    let rules = forward(
        "chain r { udp dport 1 numgen inc mod 3 0 accept
                   udp dport 2 numgen inc mod 2 offset 10 vmap { 10 : accept, 11 : drop }
         }",
    );
    let mut bench = Bench::new(rules);
    let mut turns = |port| (0..6).map(|_| bench.passes(1, port)).collect::<Vec<_>>();
    assert_eq!(turns(1), [true, false, false, true, false, false]);
    assert_eq!(turns(2), [true, false, true, false, true, false]);
}

#[test]
fn a_limit_begins_full_and_fills_at_its_rate() {
    let mut bench = Bench::new(forward(
        "chain r { limit rate 1/second burst 3 packets accept
         }",
    ));
    let count = |bench: &mut Bench, second| (0..5).filter(|_| bench.passes(second, 1)).count();
    assert_eq!(count(&mut bench, 10), 3);
    assert_eq!(count(&mut bench, 12), 2);
}

#[test]
fn intervals_concatenations_and_a_catch_all() {
    let rules = forward(
        "set p { type ipv4_addr . inet_service; flags interval
                 elements = { 10.244.1.2 . 10-20, 10.0.0.0/8 . 40, 10.244.1.0/24 . 50-60 } }
         map m { type inet_service : verdict; flags interval
                 elements = { 70-80 : accept, 90 : drop, * : continue } }
         chain r { ip saddr . udp dport @p accept
                   udp dport 75 drop
                   udp dport vmap @m
                   udp dport != 1-200 accept
         }",
    );
    let read: Vec<u16> = vec![9, 10, 20, 21, 40, 49, 50, 60, 61, 70, 75, 80, 81, 200, 201];
    let mut bench = Bench::new(rules);
    assert_eq!(bench.passing(read), [10, 20, 40, 50, 60, 70, 80, 201]);
}

#[test]
fn flags_are_compared_as_the_kernel_compares_them() {
    let mut bench = Bench::new(forward(
        "chain r { tcp dport 1 tcp flags syn accept
                   tcp dport 2 tcp flags == syn accept
                   tcp dport 3 tcp flags syn / fin,syn,rst,ack accept
                   tcp dport 4 tcp flags ! syn accept
                   tcp dport 5 ct state != new,established accept
         }",
    ));
    let node = Node::default();
    let mut passes = |port, flags| {
        let mut draws = |_: u32| 0;
        let mut env = env(1, &node, &bench.rules, &mut draws);
        let packet = tcp((POD, 4000), (FAR, port), flags);
        matches!(bench.netns.receive(packet, CNI0, &mut env), Outcome::Sent(_))
    };
    let (syn, both, ack) = (TcpFlags::SYN, TcpFlags::SYN_ACK, TcpFlags::ACK);
    assert_eq!([syn, both, ack].map(|flags| passes(1, flags)), [true, true, false]);
    assert_eq!([syn, both, ack].map(|flags| passes(2, flags)), [true, false, false]);
    assert_eq!([syn, both, ack].map(|flags| passes(3, flags)), [true, false, false]);
    assert_eq!([syn, both, ack].map(|flags| passes(4, flags)), [false, false, true]);
    assert!(passes(5, syn), "a state is one bit, never both");
}

#[test]
fn translation_asks_all_nat_chains_for_the_first_packet_only() {
    let rules = rules(
        "table ip a {
            chain p { type nat hook prerouting priority -110; policy accept;
                accept
            }
        }
        table ip b {
            map to { type ipv4_addr . inet_service : ipv4_addr . inet_service
                     elements = { 192.0.2.9 . 80 : 10.244.2.7 . 8080 } }
            chain p { type nat hook prerouting priority dstnat; policy accept;
                meta l4proto udp numgen inc mod 2 1 accept
                dnat ip to ip daddr . udp dport map @to
            }
            chain q { type nat hook postrouting priority srcnat; policy accept;
                masquerade fully-random
            }
        }",
    );
    let mut bench = Bench::new(rules);
    for _ in 0..3 {
        let Outcome::Sent(egress) = bench.forward(1, 1000, 80) else { panic!("it stopped") };
        assert_eq!(format!("{:?}", egress.packet.tuple.dst()), "10.244.2.7");
        assert_eq!(egress.packet.tuple.dst_part, 8080);
        assert_ne!(egress.packet.tuple.src(), std::net::IpAddr::V4(POD));
    }
    assert_eq!(bench.netns.conntrack().len(), 1);
}

#[test]
fn only_a_route_chain_reroutes_by_mark() {
    for (kind, rerouted) in [("route", true), ("filter", false)] {
        let rules = rules(&format!(
            "table ip t {{
                chain o {{ type {kind} hook output priority mangle; policy accept;
                    meta mark set 1
                }}
            }}"
        ));
        let node = Node::default();
        let mut draws = |_: u32| 0;
        let mut env = env(1, &node, &rules, &mut draws);
        let route = Route::Forward { dev: ETH0, next_hop: GATEWAY.into() };
        let to_pod = udp((crate::testing::NODE, 1), (POD, 1));
        let Outcome::Sent(egress) = Netns::default().send(to_pod, route, &mut env) else {
            panic!("it stopped")
        };
        assert_eq!(egress.dev == CNI0, rerouted, "{kind}");
    }
}

#[test]
fn what_is_not_modelled_may_hold_or_not() {
    let read = nft_ruleset(
        "table ip t { chain f { type filter hook forward priority 0; policy accept;
            socket transparent 1 drop
         }
        }",
        0,
    );
    assert_eq!(read.remarks.len(), 1, "{:?}", read.remarks);
    let rules = RulesetBuilder::new().build().unwrap().with_nft(read.value);
    assert!(Bench::new(rules).passes(1, 1), "a sampling caller takes it for false");
}

#[test]
fn a_bridged_frame_has_no_input_device_behind_the_bridge() {
    let rules = rules(
        "table ip t {
            chain q { type filter hook postrouting priority 0; policy accept;
                iifname \"cni0\" drop
            }
        }",
    );
    let far = crate::prefix::Prefix::host(FAR.into());
    let next_hop = FAR.into();
    let bridged = Route::Bridged { dev: CNI0, port: None, next_hop };
    for (route, passes) in [(bridged, true), (Route::Forward { dev: CNI0, next_hop }, false)] {
        let node = Node { routes: vec![(far.clone(), route)] };
        let mut draws = |_: u32| 0;
        let mut env = env(1, &node, &rules, &mut draws);
        let outcome = Netns::default().receive(udp((POD, 1000), (FAR, 1)), CNI0, &mut env);
        assert_eq!(matches!(outcome, Outcome::Sent(_)), passes, "{route:?}");
    }
}

#[test]
fn what_is_refused_before_routing_hears_of_the_way_to_its_sender() {
    let udp = udp((POD, 1000), (NODE, 1));
    for (hook, from) in [("prerouting", BRIDGE), ("input", NODE)] {
        let rules = rules(&format!(
            "table ip t {{ chain c {{ type filter hook {hook} priority 0; policy accept;
                reject
             }}
            }}"
        ));
        let node = Node::default();
        let mut draws = |_: u32| 0;
        let mut env = env(1, &node, &rules, &mut draws);
        let Outcome::Rejected(rejection) = Netns::default().receive(udp, CNI0, &mut env) else {
            panic!("{hook}")
        };
        let Answer::Sent(egress) = rejection.answer else { panic!("{hook}") };
        assert_eq!(egress.packet.tuple.src(), IpAddr::from(from), "{hook}");
    }
}

#[test]
fn an_ipv6_address_has_the_type_of_its_route() {
    let [src, dst] = ["fd00::1", "fd00::2"].map(|addr| addr.parse::<IpAddr>().unwrap());
    let tuple = Tuple::try_new(Protocol::UDP, src, 1, dst, 2).unwrap();
    let rules = rules(
        "table inet t { chain c { type filter hook prerouting priority 0; policy accept;
            fib daddr type vmap { unicast : drop, unreachable : accept,
                                  blackhole : accept, prohibit : accept }
            drop
         }
        }",
    );
    let forward = Route::Forward { dev: ETH0, next_hop: dst };
    for route in [forward, Route::Unreachable, Route::NoRoute, Route::Blackhole, Route::Prohibited]
    {
        let node = Node { routes: vec![(crate::prefix::Prefix::host(dst), route)] };
        let mut draws = |_: u32| 0;
        let mut env = env(1, &node, &rules, &mut draws);
        let outcome = Netns::default().receive(Packet::udp(1, tuple, 60), CNI0, &mut env);
        let by_rule = match &outcome {
            Outcome::Dropped(drop) => matches!(drop.reason, DropReason::Rule(_)),
            _ => false,
        };
        assert_eq!(by_rule, route == forward, "{route:?}: {outcome:?}");
    }
}
