use super::*;
use crate::read::Read;
use crate::rule::{Match, Rules, Target, iptables_list_rules};

mod property;

fn read(text: &str) -> Read<Vec<IptablesDump>> {
    iptables_rules(text, Source::default())
}

/// Returns the only dump of a text, which must hold one.
fn one(read: Read<Vec<IptablesDump>>) -> IptablesDump {
    let [dump] = <[IptablesDump; 1]>::try_from(read.value).expect("one dump");
    dump
}

fn saved(dump: &IptablesDump) -> String {
    dump.iptables_save(WithCounters::No)
}

/// Returns the rules that a rule in a chain of its own is printed as, and how many remarks it got.
fn printed(table: &str, rule: &str) -> (Vec<String>, usize) {
    let read = read(&format!("*{table}\n:X - [0:0]\n:Y - [0:0]\n-A X {rule}\nCOMMIT\n"));
    let remarks = read.remarks.len();
    let text = saved(&one(read));
    let rules = text.lines().filter_map(|line| line.strip_prefix("-A X "));
    (rules.map(str::to_owned).collect(), remarks)
}

#[test]
fn what_iptables_save_prints_is_written_back_byte_by_byte() {
    let text = "\
*raw
:PREROUTING ACCEPT [10:200]
:OUTPUT ACCEPT [0:0]
[3:180] -A PREROUTING -s 10.0.0.0/255.0.255.0 -i eth+ -p udp -m udp --dport 53 -j CT --notrack
[0:0] -A PREROUTING -p tcp -f -j NOTRACK
COMMIT
*nat
:PREROUTING ACCEPT [1:2]
:INPUT ACCEPT [0:0]
:OUTPUT ACCEPT [0:0]
:POSTROUTING ACCEPT [0:0]
:A-1 - [0:0]
:B - [0:0]
[7:420] -A PREROUTING -m comment --comment \"say \\\"hi\\\"\" -j B
[0:0] -A A-1 ! -s 10.1.0.0/16 -p tcp -m tcp --dport 80 -j DNAT --to-destination 10.1.0.5:8080
[0:0] -A B -m statistic --mode random --probability 0.33333333349 -j A-1
[0:0] -A B -m statistic --mode nth --every 3 --packet 1 -g A-1
COMMIT
";
    let read = read(text);
    assert_eq!(read.remarks, []);
    let dump = one(read);
    assert_eq!(dump.iptables_save(WithCounters::Yes), text);
    assert_eq!(dump.tables(), [Table::Raw, Table::Nat]);
    let chain = dump.ruleset.base(Table::Nat, Hook::Prerouting).unwrap();
    let counters = dump.rule_counters(Table::Nat, chain.id(), 1);
    assert_eq!(counters, Some(Counters { packets: 7, bytes: 420 }));
    assert_eq!(chain.rules()[0].origin.item, 14, "the line of the rule");
    let policy = dump.policy_counters(Table::Raw, Hook::Prerouting);
    assert_eq!(policy, Some(Counters { packets: 10, bytes: 200 }));
}

#[test]
fn every_accepted_spelling_is_printed_as_the_kernel_prints_it() {
    let cases = [
        ("--protocol TCP --dpo 80", "-p tcp -m tcp --dport 80"),
        ("-ptcp --destination-port=http", "-p tcp -m tcp --dport 80"),
        ("-p 6 --sport :5 -m tcp", "-p tcp -m tcp --sport 0:5 -m tcp"),
        (
            "-p tcp -m comment --comment c --dport 5",
            "-p tcp -m comment --comment c -m tcp --dport 5",
        ),
        (
            "-p tcp --dport 22 -m state --state NEW --sport 5",
            "-p tcp -m tcp --sport 5 --dport 22 -m state --state NEW",
        ),
        ("-p all -s 0/0 -i + -j ACCEPT", "-j ACCEPT"),
        ("--src 10/8 --in-interface eth0 --jump RETURN", "-s 10.0.0.0/8 -i eth0 -j RETURN"),
        ("-d 10.1 -g Y", "-d 10.1.0.0/32 -g Y"),
        ("-d 10.1.2.3/255.255.0.0", "-d 10.1.0.0/16"),
        ("-p tcp --syn", "-p tcp -m tcp --tcp-flags FIN,SYN,RST,ACK SYN"),
        (
            "-p tcp ! --syn --tcp-option 8",
            "-p tcp -m tcp --tcp-option 8 ! --tcp-flags FIN,SYN,RST,ACK SYN",
        ),
        ("-p tcp --tcp-flags ALL NONE", "-p tcp -m tcp --tcp-flags FIN,SYN,RST,PSH,ACK,URG NONE"),
        ("-p icmp --icmp-type echo-req", "-p icmp -m icmp --icmp-type 8"),
        ("-p icmp --icmp-type host-unreachable", "-p icmp -m icmp --icmp-type 3/1"),
        (
            "-p udp -m multiport --destination-ports 53,ntp,500:510",
            "-p udp -m multiport --dports 53,123,500:510",
        ),
        ("-m mark --mark 16/0x10", "-m mark --mark 0x10/0x10"),
        ("-m mark ! --mark 010", "-m mark ! --mark 0x8"),
        (
            "-m conntrack --ctstate ESTABLISHED,NEW,DNAT",
            "-m conntrack --ctstate NEW,ESTABLISHED,DNAT",
        ),
        (
            "-m conntrack --ctorigdst 10.0.0.1/32 --ctproto tcp --ctdir original",
            "-m conntrack --ctproto 6 --ctorigdst 10.0.0.1 --ctdir ORIGINAL",
        ),
        ("-m limit --limit 120/minute --limit-burst 5", "-m limit --limit 2/sec"),
        ("-m limit", "-m limit --limit 3/hour"),
        (
            "-m hashlimit --hashlimit 60/min --hashlimit-name a --hashlimit-mode dstip,srcip",
            "-m hashlimit --hashlimit-upto 1/sec --hashlimit-burst 5 --hashlimit-mode srcip,dstip --hashlimit-name a --hashlimit-htable-expire 60000",
        ),
        (
            "-m recent --update --seconds 60",
            "-m recent --update --seconds 60 --name DEFAULT --mask 255.255.255.255 --rsource",
        ),
        ("-m iprange --src-range 10.0.0.1", "-m iprange --src-range 10.0.0.1-10.0.0.1"),
        ("-m set --set good src,dst", "-m set --match-set good src,dst"),
        ("-m owner --uid-owner root ! --socket-exists", "-m owner ! --socket-exists --uid-owner 0"),
        ("-m ttl --ttl 5", "-m ttl --ttl-eq 5"),
        ("-m length --length :100", "-m length --length 0:100"),
        ("-m mac --mac-source AA:BB:CC:0:1:02", "-m mac --mac-source aa:bb:cc:00:01:02"),
        ("-m pkttype --pkt-type bcast", "-m pkttype --pkt-type broadcast"),
        ("-m dscp --dscp-class af11", "-m dscp --dscp 0x0a"),
        ("-m tos --tos Minimize-Delay", "-m tos --tos 0x10/0x3f"),
        ("-m addrtype --dst-type MULTICAST,LOCAL", "-m addrtype --dst-type LOCAL,MULTICAST"),
        ("-m comment --comment \"\"", "-m comment --comment \"\""),
        (
            "-m statistic --mode random --probability 0.3333333333",
            "-m statistic --mode random --probability 0.33333333349",
        ),
        ("-m policy --dir in --pol none", "-m policy --dir in --pol none"),
        ("-j MARK --set-mark 5/0xf", "-j MARK --set-xmark 0x5/0xf"),
        ("-j MARK --and-mark 0xf0", "-j MARK --set-xmark 0x0/0xffffff0f"),
        (
            "-j CONNMARK --restore-mark --mask 0xff",
            "-j CONNMARK --restore-mark --nfmask 0xff --ctmask 0xff",
        ),
        (
            "-j LOG --log-prefix a.b --log-level warning --log-uid",
            "-j LOG --log-prefix \"a.b\" --log-uid",
        ),
        ("-j NFLOG --nflog-group 0 --nflog-prefix x", "-j NFLOG --nflog-prefix x"),
    ];
    for (given, expected) in cases {
        assert_eq!(printed("filter", given), (vec![expected.to_owned()], 0), "{given}");
    }
}

#[test]
fn targets_of_one_table() {
    let cases = [
        (
            "nat",
            "-p tcp -j DNAT --to 10.0.0.1-10.0.0.1:80-80",
            "-p tcp -j DNAT --to-destination 10.0.0.1:80",
        ),
        (
            "nat",
            "-p tcp -j DNAT --to-destination 10.0.0.1:5-7/9 --random",
            "-p tcp -j DNAT --to-destination 10.0.0.1:5-7/9 --random",
        ),
        ("nat", "-p tcp -j REDIRECT --to-port 8080", "-p tcp -j REDIRECT --to-ports 8080"),
        (
            "nat",
            "-p udp -j MASQUERADE --to-ports 5-10 --random-fully",
            "-p udp -j MASQUERADE --to-ports 5-10 --random-fully",
        ),
        ("nat", "-j NETMAP --to 10.5.0.0/16", "-j NETMAP --to 10.5.0.0/16"),
        (
            "raw",
            "-p tcp -j CT --zone-reply mark --helper ftp",
            "-p tcp -j CT --helper ftp --zone-reply mark",
        ),
        (
            "mangle",
            "-p tcp -j TPROXY --on-port 15001",
            "-p tcp -j TPROXY --on-port 15001 --on-ip 0.0.0.0 --tproxy-mark 0x0/0x0",
        ),
        ("mangle", "-j TOS --and-tos 4", "-j TOS --set-tos 0x00/0xfb"),
        ("mangle", "-j DSCP --set-dscp-class EF", "-j DSCP --set-dscp 0x2e"),
        ("mangle", "-j TTL --ttl-inc 1", "-j TTL --ttl-inc 1"),
        (
            "mangle",
            "-p tcp --syn -j TCPMSS --clamp-mss-to-pmtu",
            "-p tcp -m tcp --tcp-flags FIN,SYN,RST,ACK SYN -j TCPMSS --clamp-mss-to-pmtu",
        ),
        (
            "filter",
            "-p tcp -j REJECT --reject-with tcp-rst",
            "-p tcp -j REJECT --reject-with tcp-reset",
        ),
        ("filter", "-j REJECT", "-j REJECT --reject-with icmp-port-unreachable"),
    ];
    for (table, given, expected) in cases {
        assert_eq!(printed(table, given), (vec![expected.to_owned()], 0), "{given}");
    }
}

#[test]
fn listed_addresses_make_the_cross_product_with_sources_outside() {
    let (rules, remarks) =
        printed("filter", "-s 10.0.0.1,10.0.0.2 -d 10.9.0.0/16,10.8.0.1 -j DROP");
    let expected = [
        "-s 10.0.0.1/32 -d 10.9.0.0/16 -j DROP",
        "-s 10.0.0.1/32 -d 10.8.0.1/32 -j DROP",
        "-s 10.0.0.2/32 -d 10.9.0.0/16 -j DROP",
        "-s 10.0.0.2/32 -d 10.8.0.1/32 -j DROP",
    ];
    assert_eq!((rules, remarks), (expected.map(str::to_owned).to_vec(), 0));
}

/// Rules of which a part cannot be used keep it, and say so.
#[test]
fn what_is_not_understood_is_kept_and_remarked_upon() {
    let cases = [
        ("filter", "-m mac --mac-source XX:XX:XX:00:00:01 -j DROP"),
        ("filter", "-m string --string \"abc\" --algo bm -j DROP"),
        ("filter", "-m mystery --a b ! --c -j DROP"),
        ("filter", "-p tcp --wrong 5 -j DROP"),
        ("filter", "-m tcp --dport 80 -j DROP"),
        ("filter", "-p icmp -m multiport --dports 5 -j DROP"),
        ("filter", "-s somewhere -j DROP"),
        ("filter", "-j NFQUEUE --queue-num 5"),
        ("filter", "-j DNAT --to-destination 10.0.0.1"),
        ("nat", "-j DROP"),
        ("nat", "-j DNAT --to-destination somewhere"),
        ("mangle", "-j TPROXY --on-port 5"),
        ("filter", "-j MYSTERY --a b"),
        ("filter", "-s 10.0.0.1,10.0.0.2 ! -d 10.0.0.1,10.0.0.3 -j DROP"),
    ];
    for (table, rule) in cases {
        let text = format!("*{table}\n:X - [0:0]\n-A X {rule}\nCOMMIT\n");
        let read = read(&text);
        assert!(read.remarks.iter().all(|remark| remark.line == 3), "{rule}: {:?}", read.remarks);
        assert!(!read.remarks.is_empty(), "{rule}");
        let dump = one(read);
        let chain = dump.ruleset.chains(named(table)).iter().find(|chain| &**chain.name() == "X");
        for rule in chain.unwrap().rules() {
            let kept = rule.matches().iter().any(|m| matches!(m, Match::Unsupported(_)));
            assert!(kept || matches!(rule.target(), Target::Unsupported(_)), "{rule:?}");
        }
    }
}

fn named(table: &str) -> Table {
    section::named_table(table).unwrap()
}

#[test]
fn a_target_from_a_hook_that_lacks_it_is_named_with_its_line() {
    let text = "*filter\n:X - [0:0]\n-A FORWARD -j X\nCOMMIT\n*nat\n:Y - [0:0]\n\
                -A POSTROUTING -j Y\n-A Y -j DNAT --to-destination 10.0.0.1\nCOMMIT\n";
    let read = read(text);
    assert_eq!(read.remarks.len(), 1, "{:?}", read.remarks);
    assert_eq!(read.remarks[0].line, 8);
    assert!(read.remarks[0].problem.contains("DNAT cannot be used from POSTROUTING"));
    assert!(saved(&one(read)).contains("-A Y -j DNAT --to-destination 10.0.0.1\n"));
}

#[test]
fn a_loop_is_cut_where_it_closes() {
    let read = read("*filter\n-A INPUT -j A\n-N A\n-N B\n-A A -g B\n-A B -j A\nCOMMIT\n");
    let loops = read.remarks.iter().filter(|remark| remark.problem.contains("can reach itself"));
    assert_eq!(loops.map(|remark| remark.line).collect::<Vec<_>>(), [6], "{:?}", read.remarks);
}

#[test]
fn a_cut_text_is_read_as_far_as_it_goes() {
    let text = "*nat\n:PREROUTING ACCEPT [0:0]\n:A - [0:0]\n-A PREROUTING -j A\n\
                -A A -p tcp -j B\n-A A -d 10.0.0.1/32 -p tc";
    let read = read(text);
    let problems: Vec<(u32, &str)> =
        read.remarks.iter().map(|remark| (remark.line, &*remark.problem)).collect();
    assert!(problems.contains(&(5, "chain B is called and not declared")), "{problems:?}");
    assert!(problems.iter().any(|(_, problem)| problem.contains("has no COMMIT")), "{problems:?}");
    let dump = one(read);
    let chains = dump.ruleset.chains(Table::Nat);
    let a = chains.iter().find(|chain| &**chain.name() == "A").unwrap();
    // The rule without its end would match more than it should.
    assert!(matches!(a.rules()[1].target(), Target::Unsupported(_)));
    assert!(chains.iter().any(|chain| &**chain.name() == "B"));
}

#[test]
fn pasted_prompts_and_other_line_ends_are_tolerated() {
    let text = "root@node:~# iptables-save -t filter\r\n*filter\r\n:INPUT DROP [0:0]\r\n\r\n  \
                -A INPUT -i lo -j ACCEPT\r\nCOMMIT\r\n[root@node ~]# \r\n";
    let read = read(text);
    assert_eq!(read.remarks, []);
    assert_eq!(saved(&one(read)), "*filter\n:INPUT DROP [0:0]\n-A INPUT -i lo -j ACCEPT\nCOMMIT\n");
}

#[test]
fn both_back_ends_and_both_families_are_kept_apart() {
    let text = "\
# Generated by iptables-save v1.8.9 on Mon Jan  1 00:00:00 2024
*filter
-A INPUT -s 10.0.0.1 -j DROP
COMMIT
# Generated by iptables-save v1.8.9 (nf_tables) on Mon Jan  1 00:00:00 2024
*filter
-A INPUT -s 10.0.0.2 -j DROP
COMMIT
# Generated by ip6tables-save v1.8.9 (nf_tables) on Mon Jan  1 00:00:00 2024
*filter
-A INPUT -s fd00::1 -p icmpv6 --icmpv6-type echo-request -m hl --hl 255 -j REJECT
COMMIT
";
    let read = read(text);
    let problems: Vec<&str> = read.remarks.iter().map(|remark| &*remark.problem).collect();
    assert_eq!(problems, ["the text holds 3 rulesets"]);
    let kinds: Vec<_> =
        read.value.iter().map(|dump| (dump.ruleset.family(), dump.backend)).collect();
    let expected = [
        (Family::V4, Some(Backend::Legacy)),
        (Family::V4, Some(Backend::NfTables)),
        (Family::V6, Some(Backend::NfTables)),
    ];
    assert_eq!(kinds, expected);
    let six = "-A INPUT -s fd00::1/128 -p ipv6-icmp -m icmp6 --icmpv6-type 128 -m hl --hl-eq 255 \
               -j REJECT --reject-with icmp6-port-unreachable\n";
    assert!(saved(&read.value[2]).contains(six), "{}", saved(&read.value[2]));
}

#[test]
fn the_family_shows_in_the_rules_where_no_header_names_it() {
    let dump = one(read("*filter\n-A INPUT -i lo\n-A INPUT -d fe80::/64 -j DROP\nCOMMIT\n"));
    assert_eq!(dump.ruleset.family(), Family::V6);
}

#[test]
fn a_line_for_the_other_family_is_passed_over() {
    let read = read("*filter\n-A INPUT -4 -s 10.0.0.1 -j DROP\n-6 -A INPUT -j DROP\nCOMMIT\n");
    assert_eq!(read.remarks, []);
    assert_eq!(one(read).ruleset.rule_count(Table::Filter), 1);
}

#[test]
fn the_table_of_dash_s_is_told_by_prompt_target_or_chains() {
    let cases = [
        ("$ sudo iptables -t mangle -S\n-P INPUT ACCEPT\n-A INPUT -j DROP\n", Table::Mangle, 0),
        ("-P INPUT ACCEPT\n-P FORWARD DROP\n-P OUTPUT ACCEPT\n", Table::Filter, 1),
        ("-P PREROUTING ACCEPT\n-P OUTPUT ACCEPT\n", Table::Raw, 1),
        (
            "-P PREROUTING ACCEPT\n-P INPUT ACCEPT\n-P OUTPUT ACCEPT\n-P POSTROUTING ACCEPT\n",
            Table::Nat,
            1,
        ),
        ("-P PREROUTING ACCEPT\n-P FORWARD ACCEPT\n", Table::Mangle, 1),
        ("-N X\n-A X -j MASQUERADE\n", Table::Nat, 1),
    ];
    for (text, table, remarks) in cases {
        let read = read(text);
        assert_eq!(read.remarks.len(), remarks, "{text}: {:?}", read.remarks);
        assert_eq!(one(read).tables(), [table], "{text}");
    }
    let source = Source { table: Some(Table::Security), ..Source::default() };
    let read = iptables_rules("-P INPUT DROP -c 5 300\n-A INPUT -c 1 60 -j ACCEPT\n", source);
    assert_eq!(read.remarks, []);
    let dump = one(read);
    let policy = dump.policy_counters(Table::Security, Hook::Input);
    assert_eq!(policy, Some(Counters { packets: 5, bytes: 300 }));
    let expected = "*security\n:INPUT DROP [5:300]\n[1:60] -A INPUT -j ACCEPT\nCOMMIT\n";
    assert_eq!(dump.iptables_save(WithCounters::Yes), expected);
}

#[test]
fn what_dash_s_prints_is_written_back_byte_by_byte() {
    let text = "\
-P PREROUTING ACCEPT
-P INPUT ACCEPT
-P OUTPUT DROP
-P POSTROUTING ACCEPT
-N A
-N B
-A PREROUTING -d 10.0.0.1/32 -p tcp -m tcp --dport 80 -j B
-A B -j DNAT --to-destination 10.0.0.2
";
    let dump = one(read(text));
    assert_eq!(iptables_list_rules(&dump.ruleset, Table::Nat), text);
}

#[test]
fn a_script_builds_its_tables() {
    let text = "\
iptables -N A
iptables -A A -s 10.0.0.1 -j DROP
iptables -A INPUT -j A
iptables -I INPUT -i lo -j ACCEPT
iptables -I INPUT 2 -p tcp --dport 22 -j ACCEPT
iptables -R A 1 -s 10.0.0.2 -j DROP
iptables -D INPUT -i lo -j ACCEPT
iptables -E A B
iptables -P FORWARD DROP
sudo iptables -t nat -A POSTROUTING -o eth0 -j MASQUERADE
";
    let read = read(text);
    assert_eq!(read.remarks, []);
    let expected = "\
*filter
:INPUT ACCEPT [0:0]
:FORWARD DROP [0:0]
:B - [0:0]
-A INPUT -p tcp -m tcp --dport 22 -j ACCEPT
-A INPUT -j B
-A B -s 10.0.0.2/32 -j DROP
COMMIT
*nat
:POSTROUTING ACCEPT [0:0]
-A POSTROUTING -o eth0 -j MASQUERADE
COMMIT
";
    assert_eq!(saved(&one(read)), expected);
}

#[test]
fn a_chain_may_be_named_like_a_target() {
    let dump = one(read("*filter\n:MARK - [0:0]\n-A INPUT -j MARK\nCOMMIT\n"));
    let input = dump.ruleset.base(Table::Filter, Hook::Input).unwrap();
    assert!(matches!(input.rules()[0].target(), Target::Jump(_)));
}

/// The same rules, saved and listed.
const SAVED: &str = "\
*nat
:PREROUTING ACCEPT [12:123000]
:OUTPUT ACCEPT [0:0]
:SERVICES - [0:0]
:SVC - [0:0]
-A PREROUTING -m comment --comment \"all portals\" -j SERVICES
-A SERVICES ! -s 10.1.0.0/16 -d 10.96.0.9/32 -p tcp -m tcp --dport 80 -j MARK --set-xmark 0x4000/0x4000
-A SERVICES -d 10.96.0.9/32 ! -i eth0 -o eth+ ! -p udp -m statistic --mode random --probability 0.50000000000 -g SVC
-A SERVICES -m addrtype ! --src-type LOCAL --dst-type LOCAL -f
-A SERVICES -p tcp -m multiport ! --dports 80,443 -m conntrack ! --ctstate NEW -m mark ! --mark 0x4000/0x4000
-A SERVICES -p tcp -m tcp --sport 1:5 --tcp-flags FIN,SYN,RST,ACK SYN -m limit --limit 10/sec -j RETURN
-A SVC -p tcp -m recent --set --name A --mask 255.255.255.255 --rsource -m tcp -j DNAT --to-destination 10.1.0.5:8080
COMMIT
";

const LISTED: &str = "\
root@node:~# iptables -t nat -L -n -v --line-numbers
Chain PREROUTING (policy ACCEPT 12 packets, 123K bytes)
num   pkts bytes target     prot opt in     out     source               destination         
1        7   420 SERVICES   0    --  *      *       0.0.0.0/0            0.0.0.0/0            /* all portals */

Chain OUTPUT (policy ACCEPT 0 packets, 0 bytes)
num   pkts bytes target     prot opt in     out     source               destination         

Chain SERVICES (1 references)
num   pkts bytes target     prot opt in     out     source               destination         
1        0     0 MARK       6    --  *      *      !10.1.0.0/16          10.96.0.9            tcp dpt:80 MARK or 0x4000
2        0     0 SVC       !17   --  !eth0  eth+    0.0.0.0/0            10.96.0.9           [goto]  statistic mode random probability 0.50000000000
3        0     0            0    -f  *      *       0.0.0.0/0            0.0.0.0/0            ADDRTYPE match src-type !LOCAL dst-type LOCAL
4        0     0            6    --  *      *       0.0.0.0/0            0.0.0.0/0            multiport dports  !80,443 ! ctstate NEW mark match ! 0x4000/0x4000
5        0     0 RETURN     tcp  --  *      *       0.0.0.0/0            0.0.0.0/0            tcp spts:1:5 flags:0x17/0x02 limit: avg 10/sec burst 5

Chain SVC (1 references)
num   pkts bytes target     prot opt in     out     source               destination         
1        0     0 DNAT       6    --  *      *       0.0.0.0/0            0.0.0.0/0            recent: SET name: A side: source mask: 255.255.255.255 tcp to:10.1.0.5:8080
";

#[test]
fn a_listing_gives_the_same_rules() {
    let listed = iptables_listing(LISTED, Source::default());
    assert_eq!(listed.remarks, []);
    let (listed, saved_as) = (saved(&one(listed)), saved(&one(read(SAVED))));
    assert_eq!(listed, saved_as);
}

#[test]
fn a_listing_without_options_says_what_it_lacks() {
    let text = "\
Chain INPUT (policy DROP)
target     prot opt source               destination         
ACCEPT     tcp  --  anywhere             node1                tcp dpt:ssh
LOG        icmp --  10.0.0.0/8           anywhere             icmp echo-request LOG level warn prefix \"a b: \"
DROP       all  --  anywhere             anywhere             something new
";
    let read = iptables_listing(text, Source::default());
    let lines: Vec<u32> = read.remarks.iter().map(|remark| remark.line).collect();
    assert_eq!(lines, [1, 2, 3, 5], "{:?}", read.remarks);
    let expected = "\
*filter
:INPUT DROP [0:0]
-A INPUT -p tcp -d node1 -m tcp --dport 22 -j ACCEPT
-A INPUT -s 10.0.0.0/8 -p icmp -m icmp --icmp-type 8 -j LOG --log-prefix \"a b: \"
-A INPUT something new -j DROP
COMMIT
";
    assert_eq!(saved(&one(read)), expected);
}

#[test]
fn a_rule_that_hides_the_ones_behind_it_may_lack_a_condition() {
    let text = "\
$ iptables -t filter -L
Chain INPUT (policy DROP)
target     prot opt source               destination         
ACCEPT     all  --  anywhere             anywhere             /* lo */
DROP       all  --  anywhere             anywhere            
";
    let read = iptables_listing(text, Source::default());
    let lines: Vec<u32> = read.remarks.iter().map(|remark| remark.line).collect();
    assert_eq!(lines, [3, 4], "{:?}", read.remarks);
    let expected = "-A INPUT -m comment --comment lo -m ? -j ACCEPT\n-A INPUT -j DROP\n";
    assert!(saved(&one(read)).contains(expected));
}

#[test]
fn much_work_from_little_text_is_not_done() {
    let chains: String = (0..3000).map(|n| format!("-N C{n}\n-A C{n} -g C{n}\n")).collect();
    let text = format!("*filter\n{chains}{}COMMIT\n", "-X\n".repeat(40_000));
    let read = read(&text);
    assert!(read.remarks.iter().any(|remark| remark.problem.contains("too much work")));
    assert_eq!(one(read).ruleset.rule_count(Table::Filter), 3000);
}

#[test]
fn lists_of_addresses_may_make_as_many_rules_as_the_text_is_long() {
    let hosts = |count: usize| {
        let hosts: Vec<String> = (0..count).map(|n| format!("1.1.1.{n}")).collect();
        hosts.join(",")
    };
    let line = format!("-A INPUT -s {} -d {} -j DROP\n", hosts(20), hosts(20));
    let few = format!("*filter\n{}COMMIT\n", line.repeat(3));
    let few = read(&few);
    assert_eq!(few.remarks, []);
    assert_eq!(one(few).ruleset.rule_count(Table::Filter), 1200);
    // From then on each line must make up for its rules by its length.
    let many = read(&format!("*filter\n{}-A INPUT -j ACCEPT\nCOMMIT\n", line.repeat(30)));
    let refused = "400 rules are too much work for a text of this length";
    assert!(many.remarks.iter().any(|remark| remark.problem == refused), "{:?}", many.remarks);
    let rules = one(many).ruleset.rule_count(Table::Filter);
    assert!((2000..6000).contains(&rules) && rules % 400 == 1, "{rules}");
}

#[test]
fn a_line_that_makes_many_rules_is_remarked_upon_once() {
    let text = "\
*filter
-A INPUT -s 1.1.1.1,1.1.1.2,1.1.1.3 -d 2.2.2.1,2.2.2.2 -j NFQUEUE
-A INPUT -s 1.1.1.1,1.1.1.2,1.1.1.3 -o eth0 -j DROP
-A OUTPUT -m ecn -m ecn --ecn-ip-ect 1 -j ACCEPT
COMMIT
";
    let remarks: Vec<(u32, String)> =
        read(text).remarks.into_iter().map(|remark| (remark.line, remark.problem)).collect();
    let expected = [
        (2, "target NFQUEUE is not modelled"),
        (
            3,
            "table filter, chain INPUT, rule 7: -o cannot be used in INPUT, which has no such device",
        ),
        (4, "match ecn is not modelled"),
    ];
    assert_eq!(remarks, expected.map(|(line, problem)| (line, problem.to_owned())));
}

#[test]
fn a_word_of_unknown_flags_is_kept_once() {
    let word = format!("-S{}", "j-z".repeat(2000));
    let read = read(&format!("*filter\n-A INPUT {word} -j DROP\nCOMMIT\n"));
    let problems: Vec<&str> = read.remarks.iter().map(|remark| &*remark.problem).collect();
    assert_eq!(problems, [format!("option {word} is not known")]);
    let written = saved(&one(read));
    assert!(written.len() < 7000 && written.contains(&word), "{} bytes", written.len());
}

#[test]
fn a_last_rule_that_lacks_its_end_is_remarked_upon() {
    let text = "$ iptables -t nat -S\n-P PREROUTING ACCEPT\n-A PREROUTING -p tcp";
    let cut = read(text);
    let problem = "the text ends in this line, which may be cut";
    assert!(cut.remarks.iter().any(|remark| remark.line == 3 && remark.problem == problem));
    // One that has a target may be whole.
    assert_eq!(read(&format!("{text} -j ACCEPT")).remarks, []);
}

#[test]
fn a_policy_of_table_nat_may_drop_as_iptables_restore_lets_it() {
    let read = read("*nat\n:PREROUTING DROP [0:0]\nCOMMIT\n");
    assert_eq!(read.remarks, []);
}
