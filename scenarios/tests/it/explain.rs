//! What `explain` prints, on small dumps.

use std::io::Write as _;

use expect_test::{Expect, expect};
use flate2::Compression;
use flate2::write::GzEncoder;

use super::Folder;

/// A node of three Services: one with three endpoints, one without any, one behind a NodePort; and
/// a rule that cannot be modelled.
const NODE: &str = "\
*filter
:INPUT ACCEPT [0:0]
:FORWARD DROP [0:0]
:OUTPUT ACCEPT [0:0]
:KUBE-FORWARD - [0:0]
:KUBE-SERVICES - [0:0]
-A FORWARD -m conntrack --ctstate NEW -j KUBE-SERVICES
-A FORWARD -p tcp -m string --string secret --algo bm --to 65535 -j DROP
-A FORWARD -j KUBE-FORWARD
-A KUBE-FORWARD -m mark --mark 0x4000/0x4000 -j ACCEPT
-A KUBE-FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A KUBE-FORWARD -s 10.244.0.0/16 -j ACCEPT
-A KUBE-SERVICES -d 10.96.0.12/32 -p tcp -m tcp --dport 80 -j REJECT --reject-with icmp-port-unreachable
COMMIT
*nat
:PREROUTING ACCEPT [0:0]
:INPUT ACCEPT [0:0]
:OUTPUT ACCEPT [0:0]
:POSTROUTING ACCEPT [0:0]
:KUBE-MARK-MASQ - [0:0]
:KUBE-POSTROUTING - [0:0]
:KUBE-SEP-A - [0:0]
:KUBE-SEP-B - [0:0]
:KUBE-SEP-C - [0:0]
:KUBE-SERVICES - [0:0]
:KUBE-SVC-SHOP - [0:0]
-A PREROUTING -j KUBE-SERVICES
-A OUTPUT -j KUBE-SERVICES
-A POSTROUTING -j KUBE-POSTROUTING
-A KUBE-MARK-MASQ -j MARK --set-xmark 0x4000/0x4000
-A KUBE-POSTROUTING -m mark ! --mark 0x4000/0x4000 -j RETURN
-A KUBE-POSTROUTING -j MARK --set-xmark 0x4000/0x0
-A KUBE-POSTROUTING -j MASQUERADE --random-fully
-A KUBE-SEP-A -s 10.244.1.5/32 -j KUBE-MARK-MASQ
-A KUBE-SEP-A -p tcp -m tcp -j DNAT --to-destination 10.244.1.5:8080
-A KUBE-SEP-B -s 10.244.2.7/32 -j KUBE-MARK-MASQ
-A KUBE-SEP-B -p tcp -m tcp -j DNAT --to-destination 10.244.2.7:8080
-A KUBE-SEP-C -s 10.244.3.9/32 -j KUBE-MARK-MASQ
-A KUBE-SEP-C -p tcp -m tcp -j DNAT --to-destination 10.244.3.9:8080
-A KUBE-SERVICES -d 10.96.0.10/32 -p tcp -m comment --comment \"default/shop cluster IP\" -m tcp --dport 80 -j KUBE-SVC-SHOP
-A KUBE-SVC-SHOP ! -s 10.244.0.0/16 -d 10.96.0.10/32 -p tcp -m tcp --dport 80 -j KUBE-MARK-MASQ
-A KUBE-SVC-SHOP -m statistic --mode random --probability 0.33333333349 -j KUBE-SEP-A
-A KUBE-SVC-SHOP -m statistic --mode random --probability 0.50000000000 -j KUBE-SEP-B
-A KUBE-SVC-SHOP -j KUBE-SEP-C
COMMIT
";

fn folder() -> Folder {
    let folder = Folder::new();
    folder.write("node.txt", NODE);
    folder
}

#[track_caller]
fn check(args: &[&str], expected: Expect) {
    let done = folder().run(&[&["explain"], args].concat()).ends_with(0);
    expected.assert_eq(&done.stdout);
    let long = done.stdout.lines().find(|line| line.chars().count() > 100);
    assert!(long.is_none() || args.contains(&"json") || args.contains(&"dot"), "{long:?}");
}

#[track_caller]
fn check_wrong(args: &[&str], expected: Expect) {
    let done = folder().run(&[&["explain"], args].concat()).ends_with(2);
    assert_eq!(done.stdout, "");
    expected.assert_eq(&done.stderr);
}

const TO_SHOP: &str = "tcp 10.244.1.5:40000 > 10.96.0.10:80 [syn]";

#[test]
fn a_service_with_three_endpoints() {
    check(
        &["node.txt", "--packet", TO_SHOP, "--in", "cni0"],
        expect![[r#"
        tcp 10.244.1.5:40000 > 10.96.0.10:80 SYN, in by cni0

        33.33 % (715827883/2147483648)  accept, DNAT to 10.244.1.5:8080, SNAT to 10.244.1.1, the client
            sees: ok
          PREROUTING  10.244.1.5:40000 > 10.96.0.10:80
                     conntrack:  NEW
            line 27  nat PREROUTING 1:  -j KUBE-SERVICES
            line 40  nat KUBE-SERVICES 1:  -d 10.96.0.10/32 -p tcp -m comment --comment "default/shop
                         cluster IP" -m tcp --dport 80 -j KUBE-SVC-SHOP
            line 42  nat KUBE-SVC-SHOP 2:  -m statistic --mode random --probability 0.33333333349 -j
                         KUBE-SEP-A
            line 34  nat KUBE-SEP-A 1:  -s 10.244.1.5/32 -j KUBE-MARK-MASQ
            line 30  nat KUBE-MARK-MASQ 1:  -j MARK --set-xmark 0x4000/0x4000  [mark 0x0 -> 0x4000]
            line 35  nat KUBE-SEP-A 2:  -p tcp -m tcp -j DNAT --to-destination 10.244.1.5:8080
                     nat:  destination 10.244.1.5:8080
                     route:  bridged on cni0
          FORWARD  10.244.1.5:40000 > 10.244.1.5:8080, mark 0x4000
             line 7  filter FORWARD 1:  -m conntrack --ctstate NEW -j KUBE-SERVICES
             line 9  filter FORWARD 3:  -j KUBE-FORWARD
            line 10  filter KUBE-FORWARD 1:  -m mark --mark 0x4000/0x4000 -j ACCEPT
          POSTROUTING  10.244.1.5:40000 > 10.244.1.5:8080, mark 0x4000
            line 29  nat POSTROUTING 1:  -j KUBE-POSTROUTING
            line 32  nat KUBE-POSTROUTING 2:  -j MARK --set-xmark 0x4000/0x0  [mark 0x4000 -> 0x0]
            line 33  nat KUBE-POSTROUTING 3:  -j MASQUERADE --random-fully
                     nat:  source 10.244.1.1
          leaves by cni0; 10.244.1.5:8080 answers

        66.67 % (1431655765/2147483648)  accept, DNAT to one of 2, the client sees: ok
          PREROUTING  10.244.1.5:40000 > 10.96.0.10:80
                     conntrack:  NEW
            line 27  nat PREROUTING 1:  -j KUBE-SERVICES
            line 40  nat KUBE-SERVICES 1:  -d 10.96.0.10/32 -p tcp -m comment --comment "default/shop
                         cluster IP" -m tcp --dport 80 -j KUBE-SVC-SHOP
            line 43  nat KUBE-SVC-SHOP 3:  -m statistic --mode random --probability 0.50000000000 -j
                         KUBE-SEP-B
            line 37  nat KUBE-SEP-B 2:  -p tcp -m tcp -j DNAT --to-destination 10.244.2.7:8080
                     nat:  destination 10.244.2.7:8080
                     route:  dev eth0
          FORWARD  10.244.1.5:40000 > 10.244.2.7:8080
             line 7  filter FORWARD 1:  -m conntrack --ctstate NEW -j KUBE-SERVICES
             line 9  filter FORWARD 3:  -j KUBE-FORWARD
            line 12  filter KUBE-FORWARD 3:  -s 10.244.0.0/16 -j ACCEPT
          POSTROUTING  10.244.1.5:40000 > 10.244.2.7:8080
            line 29  nat POSTROUTING 1:  -j KUBE-POSTROUTING
            line 31  nat KUBE-POSTROUTING 1:  -m mark ! --mark 0x4000/0x4000 -j RETURN
                     nat POSTROUTING:  policy ACCEPT
          leaves by eth0; 10.244.2.7:8080 answers
          this is the way of the first; the others go likewise, each 33.33 %:
            10.244.2.7:8080   10.244.3.9:8080

        if this matches:  line 8  -A FORWARD -p tcp -m string --string secret --algo bm --to 65535 -j DROP
          33.33 % (715827883/2147483648)  drop, DNAT to 10.244.1.5:8080, the client sees: timeout; dropped
              in FORWARD, filter FORWARD rule 2
          66.67 % (1431655765/2147483648)  drop, DNAT to one of 2, the client sees: timeout; dropped in
              FORWARD, filter FORWARD rule 2

        assumed:
          - cni0 is a bridge with 10.244.1.1/24, since the packet comes in by it; bridge-nf-call-iptables is
            1
          - everything else leaves by eth0
          - 10.244.1.5:8080, 10.244.2.7:8080, 10.244.3.9:8080 answer, and their answers come back through
            this node
          - the port of cni0 is in hairpin mode
          - no connection is known to the node (--conntrack gives some)

        not understood:
          - line 8, match string is not modelled; evaluation follows both answers: may match, may not: -A
            FORWARD -p tcp -m string --string secret --algo bm --to 65535 -j DROP
    "#]],
    );
}

#[test]
fn a_service_without_endpoints() {
    let packet = "tcp 10.244.1.5:40000 > 10.96.0.12:80";
    check(
        &["node.txt", "--packet", packet, "--in", "cni0"],
        expect![[r#"
        tcp 10.244.1.5:40000 > 10.96.0.12:80 SYN, in by cni0

        100 %  reject with icmp-port-unreachable, the client sees: refused
          PREROUTING  10.244.1.5:40000 > 10.96.0.12:80
                     conntrack:  NEW
            line 27  nat PREROUTING 1:  -j KUBE-SERVICES
                     nat PREROUTING:  policy ACCEPT
                     route:  dev eth0
          FORWARD  10.244.1.5:40000 > 10.96.0.12:80
             line 7  filter FORWARD 1:  -m conntrack --ctstate NEW -j KUBE-SERVICES
            line 13  filter KUBE-SERVICES 1:  -d 10.96.0.12/32 -p tcp -m tcp --dport 80 -j REJECT
                         --reject-with icmp-port-unreachable
          rejected in FORWARD, filter KUBE-SERVICES rule 1; told "port unreachable"

        assumed:
          - cni0 is a bridge with 10.244.1.1/24, since the packet comes in by it; bridge-nf-call-iptables is
            1
          - everything else leaves by eth0
          - no connection is known to the node (--conntrack gives some)

        not understood:
          - line 8, which this packet does not meet: match string is not modelled; evaluation follows both
            answers: may match, may not
    "#]],
    );
}

#[test]
fn rules_of_nftables() {
    let folder = folder();
    folder.write(
        "nft.txt",
        "table ip shop {\n  chain prerouting {\n    type nat hook prerouting priority dstnat; policy \
         accept;\n    ip daddr 10.96.0.10 tcp dport 80 dnat to numgen random mod 3 map { 0 : \
         10.244.1.5, 1 : 10.244.2.7, 2 : 10.244.3.9 }\n  }\n  chain forward {\n    type filter hook \
         forward priority filter; policy accept;\n    ip daddr 10.244.3.9 reject\n  }\n}\n",
    );
    let args = ["explain", "nft.txt", "--packet", TO_SHOP, "--in", "eth1", "-o", "json"];
    let done = folder.run(&args).ends_with(0);
    let said: serde_json::Value = serde_json::from_str(&done.stdout).unwrap();
    let outcomes = said["outcomes"].as_array().unwrap();
    let brief: Vec<String> = outcomes
        .iter()
        .map(|o| format!("{} {} {} {}", o["probability"], o["verdict"], o["dnat"], o["symptom"]))
        .collect();
    expect![[r#"
        "715827883/2147483648" "accept" "10.244.1.5:80" "timeout"
        "1431655765/4294967296" "accept" "10.244.2.7:80" "ok"
        "1431655765/4294967296" "reject" "10.244.3.9:80" "refused""#]]
    .assert_eq(&brief.join("\n"));
    let last = outcomes[2]["path"].as_array().and_then(|path| path.last()).unwrap();
    assert_eq!((&last["table"], &last["line"]), (&"ip shop".into(), &8.into()));
}

#[test]
fn from_the_node_itself() {
    let packet = "tcp 192.168.7.1:40000 > 10.96.0.10:80";
    check(
        &["node.txt", "--packet", packet, "--local"],
        expect![[r#"
        tcp 192.168.7.1:40000 > 10.96.0.10:80 SYN, made on the node

        100 %  accept, DNAT to one of 3, SNAT to 192.168.7.1, the client sees: ok
                     route:  dev eth0
          OUTPUT  192.168.7.1:40000 > 10.96.0.10:80
                     conntrack:  NEW
            line 28  nat OUTPUT 1:  -j KUBE-SERVICES
            line 40  nat KUBE-SERVICES 1:  -d 10.96.0.10/32 -p tcp -m comment --comment "default/shop
                         cluster IP" -m tcp --dport 80 -j KUBE-SVC-SHOP
            line 41  nat KUBE-SVC-SHOP 1:  ! -s 10.244.0.0/16 -d 10.96.0.10/32 -p tcp -m tcp --dport 80 -j
                         KUBE-MARK-MASQ
            line 30  nat KUBE-MARK-MASQ 1:  -j MARK --set-xmark 0x4000/0x4000  [mark 0x0 -> 0x4000]
            line 42  nat KUBE-SVC-SHOP 2:  -m statistic --mode random --probability 0.33333333349 -j
                         KUBE-SEP-A
            line 35  nat KUBE-SEP-A 2:  -p tcp -m tcp -j DNAT --to-destination 10.244.1.5:8080
                     nat:  destination 10.244.1.5:8080
                     route:  dev eth0
                     filter OUTPUT:  policy ACCEPT
          POSTROUTING  192.168.7.1:40000 > 10.244.1.5:8080, mark 0x4000
            line 29  nat POSTROUTING 1:  -j KUBE-POSTROUTING
            line 32  nat KUBE-POSTROUTING 2:  -j MARK --set-xmark 0x4000/0x0  [mark 0x4000 -> 0x0]
            line 33  nat KUBE-POSTROUTING 3:  -j MASQUERADE --random-fully
                     nat:  source 192.168.7.1
          leaves by eth0; 10.244.1.5:8080 answers
          this is the way of the first; the others go likewise, each 33.33 %:
            10.244.1.5:8080   10.244.2.7:8080   10.244.3.9:8080

        assumed:
          - 192.168.7.1 is the node's own address, on eth0, since it sends this packet
          - everything else leaves by eth0
          - 10.244.1.5:8080, 10.244.2.7:8080, 10.244.3.9:8080 answer, and their answers come back through
            this node
          - no connection is known to the node (--conntrack gives some)

        not understood:
          - line 8, which this packet does not meet: match string is not modelled; evaluation follows both
            answers: may match, may not
    "#]],
    );
}

#[test]
fn as_json() {
    let packet = "tcp 10.244.1.5:40000 > 10.96.0.12:80";
    check(
        &["node.txt", "--packet", packet, "--in", "cni0", "-o", "json"],
        expect![[r#"
            {
              "alternatives": [],
              "assumptions": [
                "cni0 is a bridge with 10.244.1.1/24, since the packet comes in by it; bridge-nf-call-iptables is 1",
                "everything else leaves by eth0",
                "no connection is known to the node (--conntrack gives some)"
              ],
              "limits": [],
              "outcomes": [
                {
                  "dnat": null,
                  "p": 1.0,
                  "path": [
                    {
                      "chain": null,
                      "dst": "10.96.0.12:80",
                      "hook": "PREROUTING",
                      "kind": "hook",
                      "line": null,
                      "mark": "0x0",
                      "rule": null,
                      "src": "10.244.1.5:40000",
                      "table": null,
                      "text": null
                    },
                    {
                      "chain": null,
                      "dst": "10.96.0.12:80",
                      "hook": "PREROUTING",
                      "kind": "conntrack",
                      "line": null,
                      "mark": "0x0",
                      "rule": null,
                      "src": "10.244.1.5:40000",
                      "table": null,
                      "text": "NEW"
                    },
                    {
                      "chain": "PREROUTING",
                      "dst": "10.96.0.12:80",
                      "hook": "PREROUTING",
                      "kind": "rule",
                      "line": 27,
                      "mark": "0x0",
                      "rule": 1,
                      "src": "10.244.1.5:40000",
                      "table": "nat",
                      "text": "-A PREROUTING -j KUBE-SERVICES"
                    },
                    {
                      "chain": "PREROUTING",
                      "dst": "10.96.0.12:80",
                      "hook": "PREROUTING",
                      "kind": "policy",
                      "line": null,
                      "mark": "0x0",
                      "rule": null,
                      "src": "10.244.1.5:40000",
                      "table": "nat",
                      "text": "ACCEPT"
                    },
                    {
                      "chain": null,
                      "dst": "10.96.0.12:80",
                      "hook": "PREROUTING",
                      "kind": "route",
                      "line": null,
                      "mark": "0x0",
                      "rule": null,
                      "src": "10.244.1.5:40000",
                      "table": null,
                      "text": "dev eth0"
                    },
                    {
                      "chain": null,
                      "dst": "10.96.0.12:80",
                      "hook": "FORWARD",
                      "kind": "hook",
                      "line": null,
                      "mark": "0x0",
                      "rule": null,
                      "src": "10.244.1.5:40000",
                      "table": null,
                      "text": null
                    },
                    {
                      "chain": "FORWARD",
                      "dst": "10.96.0.12:80",
                      "hook": "FORWARD",
                      "kind": "rule",
                      "line": 7,
                      "mark": "0x0",
                      "rule": 1,
                      "src": "10.244.1.5:40000",
                      "table": "filter",
                      "text": "-A FORWARD -m conntrack --ctstate NEW -j KUBE-SERVICES"
                    },
                    {
                      "chain": "KUBE-SERVICES",
                      "dst": "10.96.0.12:80",
                      "hook": "FORWARD",
                      "kind": "rule",
                      "line": 13,
                      "mark": "0x0",
                      "rule": 1,
                      "src": "10.244.1.5:40000",
                      "table": "filter",
                      "text": "-A KUBE-SERVICES -d 10.96.0.12/32 -p tcp -m tcp --dport 80 -j REJECT --reject-with icmp-port-unreachable"
                    }
                  ],
                  "probability": "1/1",
                  "reject_with": "icmp-port-unreachable",
                  "rules_visited": 4,
                  "snat": null,
                  "symptom": "refused",
                  "verdict": "reject"
                }
              ],
              "unsupported": [
                {
                  "file": "node.txt",
                  "line": 8,
                  "matters": false,
                  "problem": "match string is not modelled; evaluation follows both answers: may match, may not",
                  "text": "-A FORWARD -p tcp -m string --string secret --algo bm --to 65535 -j DROP"
                }
              ]
            }
        "#]],
    );
}

#[test]
fn as_json_the_shares_are_exact() {
    let args = ["explain", "node.txt", "--packet", TO_SHOP, "--in", "cni0", "-o", "json"];
    let done = folder().run(&args).ends_with(0);
    let said: serde_json::Value = serde_json::from_str(&done.stdout).unwrap();
    let outcomes = said["outcomes"].as_array().unwrap();
    let shares: Vec<&str> =
        outcomes.iter().map(|outcome| outcome["probability"].as_str().unwrap()).collect();
    assert_eq!(shares, ["715827883/2147483648", "1431655765/4294967296", "1431655765/4294967296"]);
    // The client is one of the endpoints: that way is masqueraded, with a port that is drawn.
    assert_eq!(outcomes[0]["snat"], "10.244.1.1");
    assert_eq!(outcomes[1]["snat"], serde_json::Value::Null);
    let alternatives = said["alternatives"].as_array().unwrap();
    assert_eq!(alternatives.len(), 1);
    assert_eq!(alternatives[0]["assuming"], serde_json::json!([{ "line": 8, "matches": true }]));
    assert_eq!(alternatives[0]["outcomes"][0]["symptom"], "timeout");
    assert_eq!(said["unsupported"][0]["line"], 8);
}

#[test]
fn ways_that_differ_in_the_answers_luck_alone_are_one() {
    let folder = Folder::new();
    let rule = "-A FORWARD -m statistic --mode random --probability 0.5 -j MARK --set-xmark ";
    let rules = format!("*filter\n:FORWARD ACCEPT [0:0]\n{rule}0x1/0x1\n{rule}0x2/0x2\nCOMMIT\n");
    folder.write("lottery.txt", &rules);
    let packet = "tcp 10.244.1.5:40000 > 10.244.2.7:80";
    let done = folder
        .run(&["explain", "lottery.txt", "--packet", packet, "--in", "cni0", "-o", "json"])
        .ends_with(0);
    let report: serde_json::Value = serde_json::from_str(&done.stdout).unwrap();
    let shares: Vec<_> = report["outcomes"]
        .as_array()
        .unwrap()
        .iter()
        .map(|outcome| outcome["probability"].as_str().unwrap())
        .collect();
    assert_eq!(shares, ["1/4"; 4]);
}

/// Forty chains, each of which calls the next one twice: the way has 2⁴¹ rules.
#[test]
fn a_way_without_a_foreseeable_end_is_given_up() {
    use std::fmt::Write as _;
    let mut rules =
        "# Generated by iptables-save v1.8.9\n*filter\n:FORWARD ACCEPT [0:0]\n".to_owned();
    (0..=40).for_each(|n| writeln!(rules, ":C{n} - [0:0]").unwrap());
    rules += "-A FORWARD -d 10.244.2.7 -m statistic --mode random --probability 0.25 -j C0\n";
    (0..40).for_each(|n| write!(rules, "-A C{n} -j C{0}\n-A C{n} -j C{0}\n", n + 1).unwrap());
    rules += "COMMIT\n";
    let folder = Folder::new();
    folder.write("deep.txt", &rules);
    let packet = "tcp 10.244.1.5:40000 > 10.244.2.7:80";
    let args = ["explain", "deep.txt", "--packet", packet, "--in", "cni0", "-o"];
    let run = |form| folder.run(&[&args[..], &[form]].concat()).ends_with(0).stdout;
    let text = run("text");
    assert!(text.contains("25.00 % (1/4)  not followed to its end\n"), "{text}");
    assert!(text.contains(" steps\n") && text.lines().count() < 600);
    let why = "given up after 16777216 rules in FORWARD, filter C39 rule 1";
    assert!(text.contains(why), "{text}");

    let said: serde_json::Value = serde_json::from_str(&run("json")).unwrap();
    let [given_up, other] = &said["outcomes"].as_array().unwrap()[..] else { panic!("two ways") };
    assert_eq!((&given_up["probability"], &other["probability"]), (&"1/4".into(), &"3/4".into()));
    assert_eq!((&given_up["verdict"], &given_up["symptom"]), (&().into(), &().into()));
    assert_eq!((&other["verdict"], &other["symptom"]), (&"accept".into(), &"ok".into()));
    assert_eq!(said["limits"].as_array().unwrap().len(), 2);
}

#[test]
fn a_policy_of_table_nat_drops() {
    let folder = Folder::new();
    // Without a rule that translates, the kernel tracks nothing and asks nobody.
    let rule = "-A PREROUTING -p tcp -m tcp --dport 81 -j DNAT --to-destination 10.244.3.9";
    folder.write("nat.txt", &format!("*nat\n:PREROUTING DROP [0:0]\n{rule}\nCOMMIT\n"));
    let packet = "tcp 10.244.1.5:40000 > 10.244.2.7:80";
    let done = folder.run(&["explain", "nat.txt", "--packet", packet, "--in", "cni0"]).ends_with(0);
    assert!(done.stdout.contains("dropped in PREROUTING by the policy of nat"), "{}", done.stdout);
}

#[test]
fn as_a_graph() {
    let packet = "tcp 10.244.1.5:40000 > 10.96.0.12:80";
    check(
        &["node.txt", "--packet", packet, "--in", "cni0", "-o", "dot"],
        expect![[r#"
        digraph packet {
          rankdir=TB;
          node [shape=box, fontname="monospace", fontsize=10];
          n0 [label="tcp 10.244.1.5:40000 > 10.96.0.12:80 SYN\nin by cni0", shape=oval];
          n1 [label="PREROUTING\n10.244.1.5:40000 > 10.96.0.12:80", style=filled, fillcolor=lightgrey];
          n0 -> n1 [];
          n2 [label="conntrack: NEW", style=rounded];
          n1 -> n2 [];
          n3 [label="nat PREROUTING 1 (line 27)\n-A PREROUTING -j KUBE-SERVICES", style=solid];
          n2 -> n3 [];
          n4 [label="nat PREROUTING\npolicy ACCEPT", style=solid];
          n3 -> n4 [];
          n5 [label="route: dev eth0", style=rounded];
          n4 -> n5 [];
          n6 [label="FORWARD\n10.244.1.5:40000 > 10.96.0.12:80", style=filled, fillcolor=lightgrey];
          n5 -> n6 [];
          n7 [label="filter FORWARD 1 (line 7)\n-A FORWARD -m conntrack --ctstate NEW -j KUBE-SERVICES", style=solid];
          n6 -> n7 [];
          n8 [label="filter KUBE-SERVICES 1 (line 13)\n-A KUBE-SERVICES -d 10.96.0.12/32 -p tcp -m tcp --dport 80\n-j REJECT --reject-with icmp-port-unreachable", style=solid];
          n7 -> n8 [];
          n9 [label="reject (1.000000)\nrejected in FORWARD, filter KUBE-SERVICES rule 1\nclient sees: refused", shape=oval, style=bold];
          n8 -> n9 [];
        }
    "#]],
    );
}

#[test]
fn the_matrix_of_hooks() {
    check(
        &["--hooks"],
        expect![[r#"
          priority  what       PREROUTING    INPUT         FORWARD       OUTPUT        POSTROUTING
              -300  raw        chain         .             .             chain         .
              -200  conntrack  track         .             .             track         .
              -150  mangle     chain         chain         chain         chain         chain
              -100  nat        chain         .             .             chain         .
                 0  filter     .             chain         chain         chain         .
                50  security   .             chain         chain         chain         .
               100  nat        .             chain         .             .             chain
              last  conntrack  .             confirm       .             .             confirm

        a routing decision stands behind PREROUTING; OUTPUT routes again after mangle if mark,
        addresses or TOS changed, and after nat if the destination did
    "#]],
    );
    check(
        &["node.txt", "--hooks"],
        expect![[r#"
          priority  what       PREROUTING    INPUT         FORWARD       OUTPUT        POSTROUTING
              -300  raw        -             .             .             -             .
              -200  conntrack  track         .             .             track         .
              -150  mangle     -             -             -             -             -
              -100  nat        1/18          .             .             1/18          .
                 0  filter     .             0/7           3/7 DROP      0/7           .
                50  security   .             -             -             -             .
               100  nat        .             0/18          .             .             1/18
              last  conntrack  .             confirm       .             .             confirm

        a routing decision stands behind PREROUTING; OUTPUT routes again after mangle if mark,
        addresses or TOS changed, and after nat if the destination did

        rules: those of the built-in chain, then those of the whole table; -: not loaded
    "#]],
    );
}

#[test]
fn with_a_host_file() {
    let folder = folder();
    folder.write(
        "host.yaml",
        "devices:\n  eth0: { addresses: [192.168.7.1/24] }\n  cni0: { addresses: [10.244.1.1/24], \
         bridge: true, hairpin: false }\nroutes:\n  - { to: default, via: 192.168.7.254 }\n  - { to: \
         10.244.3.0/24, type: unreachable }\nlisteners: [tcp/22]\n",
    );
    let symptoms = |packet: &str, dev: &str| {
        let args = [
            "explain",
            "node.txt",
            "--host",
            "host.yaml",
            "--packet",
            packet,
            "--in",
            dev,
            "-o",
            "json",
        ];
        let done = folder.run(&args).ends_with(0);
        let said: serde_json::Value = serde_json::from_str(&done.stdout).unwrap();
        let outcomes = said["outcomes"].as_array().unwrap();
        outcomes.iter().map(|o| o["symptom"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(symptoms(TO_SHOP, "cni0"), ["timeout", "ok", "host_unreachable"]);
    assert_eq!(symptoms("tcp 192.168.7.9 > 192.168.7.1:22", "eth0"), ["ok"]);
    assert_eq!(symptoms("tcp 192.168.7.9 > 192.168.7.1:23", "eth0"), ["refused"]);
    assert_eq!(symptoms("udp 192.168.7.9 > 192.168.7.1:23", "eth0"), ["refused"]);
    assert_eq!(symptoms("icmp 192.168.7.9 > 192.168.7.1", "eth0"), ["ok"]);
}

#[test]
fn what_ip_prints_describes_a_host() {
    let folder = folder();
    folder.write(
        "addr.json",
        r#"[{"ifname":"eth0","addr_info":[{"family":"inet","local":"192.168.7.1","prefixlen":24}]},
            {"ifname":"cni0","addr_info":[{"family":"inet","local":"10.244.1.1","prefixlen":24}]}]"#,
    );
    folder.write("route.json", r#"[{"dst":"default","gateway":"192.168.7.254","dev":"eth0"}]"#);
    let args = [
        "explain",
        "node.txt",
        "--host",
        "addr.json",
        "--host",
        "route.json",
        "--packet",
        "tcp 192.168.7.1 > 10.96.0.10:80",
        "--local",
    ];
    let done = folder.run(&args).ends_with(0);
    assert!(done.stdout.contains("via 192.168.7.254 dev eth0"), "{}", done.stdout);
    assert!(done.stdout.contains("SNAT to 192.168.7.1"), "{}", done.stdout);
}

#[test]
fn compressed_and_from_standard_input() {
    let folder = folder();
    let mut packed = GzEncoder::new(Vec::new(), Compression::fast());
    packed.write_all(NODE.as_bytes()).unwrap();
    std::fs::write(folder.path("node.gz"), packed.finish().unwrap()).unwrap();
    let plain = folder.run(&["explain", "node.txt", "--packet", TO_SHOP, "--in", "cni0"]);
    let gzip = folder.run(&["explain", "node.gz", "--packet", TO_SHOP, "--in", "cni0"]);
    assert_eq!(plain.ends_with(0).stdout, gzip.ends_with(0).stdout);
    let mut command = folder.command(&["explain", "-", "--packet", TO_SHOP, "--in", "cni0"]);
    command.stdin(std::fs::File::open(folder.path("node.gz")).unwrap());
    let done = super::Done::from(command.output().unwrap()).ends_with(0);
    assert!(done.stdout.contains("DNAT to one of 2"), "{}", done.stdout);
}

#[test]
fn a_connection_that_the_node_knows_keeps_its_backend() {
    let folder = folder();
    folder.write(
        "conntrack.txt",
        "tcp      6 431999 ESTABLISHED src=10.244.1.5 dst=10.96.0.10 sport=40000 dport=80 \
         src=10.244.3.9 dst=10.244.1.5 sport=8080 dport=40000 [ASSURED] mark=0 use=1\n",
    );
    let args = [
        "explain",
        "node.txt",
        "--conntrack",
        "conntrack.txt",
        "--packet",
        "tcp 10.244.1.5:40000 > 10.96.0.10:80 [ack]",
        "--in",
        "cni0",
        "-o",
        "json",
    ];
    let done = folder.run(&args).ends_with(0);
    let said: serde_json::Value = serde_json::from_str(&done.stdout).unwrap();
    assert_eq!(said["outcomes"].as_array().unwrap().len(), 1, "{}", done.stdout);
    assert_eq!(said["outcomes"][0]["dnat"], "10.244.3.9:8080");
    assert_eq!(said["outcomes"][0]["symptom"], "ok");
    assert_eq!(said["outcomes"][0]["path"][1]["text"], "ESTABLISHED");
}

#[test]
fn a_node_of_a_scenario() {
    let folder = folder();
    folder.write("shop.yaml", &super::SHOP.replacen("spec:", "spec:\n  clusterIP: 10.96.0.80", 1));
    let packet = "tcp 10.244.0.9:40000 > 10.96.0.80:80";
    let args = ["explain", "s.yaml", "--node", "node-0", "--packet", packet, "--in", "cni0"];
    let done = folder.run(&args).ends_with(0);
    assert!(done.stdout.contains("DNAT to one of"), "{}", done.stdout);
    check_wrong(
        &["s.yaml", "--packet", packet, "--in", "cni0"],
        expect![[r#"
        error[no-node]: a scenario has many nodes
        help: as in `--node node-0`; the last one is node-2

        1 error; nothing was run
    "#]],
    );
    check_wrong(
        &["s.yaml", "--node", "n7", "--packet", packet, "--in", "cni0"],
        expect![[r#"
        error[no-node]: the scenario has no node `n7`
        help: as in `--node node-0`; the last one is node-2

        1 error; nothing was run
    "#]],
    );
    check_wrong(
        &["node.txt", "--node", "n7", "--packet", packet, "--in", "cni0"],
        expect![[r#"
        error[no-scenario]: node.txt is no scenario: it has no nodes
        help: --node belongs to a scenario; rules of one node need none

        1 error; nothing was run
    "#]],
    );
}

#[test]
fn wrong_input_is_said() {
    check_wrong(
        &["node.txt", "--packet", "tcp 10.244.1.5:4 > web:80", "--in", "cni0"],
        expect![[r#"
            error[bad-packet]: `web` is no address
             --> --packet:1:20
              |
            1 | tcp 10.244.1.5:4 > web:80
              |                    ^^^
              |
              = help: names are not looked up: give the address

            1 error; nothing was run
        "#]],
    );
    check_wrong(
        &["none.txt", "--packet", TO_SHOP, "--in", "cni0"],
        expect![[r#"
        error[unreadable]: cannot read none.txt: No such file or directory (os error 2)
        help: give the name of a file, or - for stdin

        1 error; nothing was run
    "#]],
    );
    check_wrong(
        &["shop.yaml", "--packet", TO_SHOP, "--in", "cni0"],
        expect![[r#"
        error[many-documents]: a second document
         --> shop.yaml:8:1
          |
        8 | apiVersion: apps/v1
          | ^^^^^^^^^^^^^^^^^^^
          |
          = help: a file holds one scenario; objects of other documents go under `objects:`

        1 error; nothing was run
    "#]],
    );
    check_wrong(
        &["node.txt", "--packet", TO_SHOP, "--in", "a device"],
        expect![[r#"
        error[bad-device]: device name "a device" is not 1 to 15 bytes without blanks and slashes
        help: as in `--in cni0`

        1 error; nothing was run
    "#]],
    );
    check_wrong(
        &["node.txt", "--packet", TO_SHOP],
        expect![[r#"
        error: the following required arguments were not provided:
          --in <DEVICE>

        Usage: rulelag explain --packet <PACKET> --in <DEVICE> <RULES>...

        For more information, try '--help'.
    "#]],
    );
    check_wrong(
        &["node.txt", "--packet", TO_SHOP, "--in", "cni0", "--local"],
        expect![[r#"
        error: the argument '--in <DEVICE>' cannot be used with '--local'

        Usage: rulelag explain --packet <PACKET> --in <DEVICE> <RULES>...

        For more information, try '--help'.
    "#]],
    );
}

#[test]
fn a_wrong_host_file_is_said() {
    let folder = folder();
    folder.write(
        "host.yaml",
        "devices:\n  eth0: { adresses: [192.168.7.1/24] }\n  cni0: { addresses: [10.244.1/24] }\n\
         routes:\n  - { to: default, via: 192.168.9.1 }\nsysctls: { net.ipv4.tcp_syncookies: 1 }\n\
         listeners: [ssh]\n",
    );
    let args = ["explain", "node.txt", "--host", "host.yaml", "--packet", TO_SHOP, "--in", "cni0"];
    let done = folder.run(&args).ends_with(2);
    expect![[r#"
        error[unknown-field]: unknown field `adresses`
         --> host.yaml:2:11
          |
        2 |   eth0: { adresses: [192.168.7.1/24] }
          |           ^^^^^^^^
          |
          = help: `addresses`?

        error[bad-host]: the text "10.244.1/24" where an address is expected
         --> host.yaml:3:23
          |
        3 |   cni0: { addresses: [10.244.1/24] }
          |                       ^^^^^^^^^^^
          |
          = help: as in `192.168.0.10/24`

        error[bad-host]: 192.168.9.1 is on no device's network
         --> host.yaml:5:5
          |
        5 |   - { to: default, via: 192.168.9.1 }
          |     ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          |
          = help: give the device, as in `dev: eth0`

        warning[unused-sysctl]: `net.ipv4.tcp_syncookies` is not used here
         --> host.yaml:6:12
          |
        6 | sysctls: { net.ipv4.tcp_syncookies: 1 }
          |            ^^^^^^^^^^^^^^^^^^^^^^^
          |
          = help: used are net.ipv4.ip_forward, net.ipv4.conf.{all,DEVICE}.route_localnet, net.ipv4.conf.{all,DEVICE}.rp_filter, net.bridge.bridge-nf-call-iptables

        error[bad-host]: the text "ssh" where a socket is expected
         --> host.yaml:7:13
          |
        7 | listeners: [ssh]
          |             ^^^
          |
          = help: as in `tcp/22` or `udp/53@10.244.1.1`

        4 errors; nothing was run
    "#]].assert_eq(&done.stderr);
}
