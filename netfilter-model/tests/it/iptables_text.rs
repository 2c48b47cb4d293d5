//! What iptables makes of rules, in both back ends, and what the reader makes of them.

use netfilter_model::hook::Table;
use netfilter_model::read::{Source, WithCounters, iptables_listing, iptables_rules};
use netfilter_model::rule::{Match, Rule, Target};
use netfilter_model::tuple::Family;

use crate::lab::{Lab, Tool, skip};

/// Rules of both families, as people write them: table, rule.
const BOTH: &[(&str, &str)] = &[
    ("raw", "-j NOTRACK"),
    ("raw", "-j CT --notrack"),
    ("raw", "-j CT --zone 5"),
    ("raw", "-p tcp -j CT --zone-orig mark --ctevents destroy,new"),
    ("raw", "-m rpfilter --invert --loose -j DROP"),
    ("raw", "-j TRACE"),
    ("mangle", "-p tcp -j TPROXY --on-port 80"),
    ("mangle", "-p udp -j TPROXY --on-port 80 --tproxy-mark 1/1"),
    ("mangle", "-j DSCP --set-dscp-class AF11"),
    ("mangle", "-j TOS --set-tos 4/8"),
    ("mangle", "-j TOS --and-tos 4"),
    ("mangle", "-j TOS --or-tos 4"),
    ("mangle", "-j TOS --xor-tos 4"),
    ("mangle", "-j MARK --set-mark 5/0xf"),
    ("mangle", "-j MARK --set-xmark 5"),
    ("mangle", "-j MARK --or-mark 0x10"),
    ("mangle", "-j MARK --and-mark 0x10"),
    ("mangle", "-j MARK --xor-mark 0x10"),
    ("mangle", "-j CONNMARK --save-mark"),
    ("mangle", "-j CONNMARK --restore-mark --mask 0xff"),
    ("mangle", "-j CONNMARK --set-mark 4/8"),
    ("mangle", "-j CONNMARK --save-mark --nfmask 3 --ctmask 5"),
    ("mangle", "-p tcp --syn -j TCPMSS --set-mss 1400"),
    ("mangle", "-p tcp --syn -j TCPMSS --clamp-mss-to-pmtu"),
    ("mangle", "-j CHECKSUM --checksum-fill"),
    ("nat", "-p tcp -j REDIRECT --to-ports 80-90 --random"),
    ("nat", "-j REDIRECT"),
    ("nat", "-p udp -j MASQUERADE --to-ports 5 --random-fully"),
    ("nat", "-j MASQUERADE --random"),
    ("nat", "-p tcp -j DNAT --to-destination :80-90"),
    ("filter", "-j REJECT"),
    ("filter", "-p tcp -j REJECT --reject-with tcp-reset"),
    ("filter", "-j LOG --log-prefix \"a.b: \" --log-level debug --log-uid --log-ip-options"),
    ("filter", "-j LOG --log-level warning"),
    ("filter", "-j NFLOG --nflog-prefix x --nflog-group 3 --nflog-threshold 4"),
    ("filter", "-i eth+ -o v0 -j ACCEPT"),
    ("filter", "! -i lo ! -o lo -j DROP"),
    ("filter", "-p tcp --dport 80 -j Y"),
    ("filter", "-p TCP --source-port :5 -g Y"),
    ("filter", "-p 6 --dport 5: -j RETURN"),
    ("filter", "! -p udp"),
    ("filter", "-p tcp"),
    ("filter", "-p tcp -m tcp"),
    ("filter", "-p tcp ! --sport 5:6 ! --dport 7"),
    ("filter", "-p tcp -m comment --comment c --dport 5"),
    ("filter", "-p tcp --dport 22 -m state --state NEW --sport 5"),
    ("filter", "-p tcp --syn"),
    ("filter", "-p tcp ! --syn"),
    ("filter", "-p tcp --tcp-flags ALL NONE"),
    ("filter", "-p tcp --tcp-flags SYN,FIN FIN --tcp-option 8"),
    ("filter", "-p udp --sport 53"),
    ("filter", "-p sctp --dport 5 --chunk-types any DATA,INIT"),
    ("filter", "-p tcp -m multiport --dports 80,443,8000:8010"),
    ("filter", "-p udp -m multiport ! --ports 1,2:3"),
    ("filter", "-p udp -m multiport --source-ports 9"),
    ("filter", "-m comment --comment \"say \\\"hi\\\" it's \\\\\""),
    ("filter", "-m comment --comment a.b"),
    ("filter", "-m comment --comment a-b_C"),
    ("filter", "-m mark --mark 16/0x10"),
    ("filter", "-m mark ! --mark 010"),
    ("filter", "-m connmark ! --mark 5"),
    ("filter", "-m conntrack --ctstate ESTABLISHED,RELATED"),
    (
        "filter",
        "-m conntrack ! --ctstate NEW,DNAT --ctproto tcp --ctorigsrcport 4:5 ! --ctrepldstport 6",
    ),
    ("filter", "-m conntrack --ctstatus ASSURED,EXPECTED --ctexpire 4:10 --ctdir ORIGINAL"),
    ("filter", "-m conntrack --ctstatus NONE"),
    ("filter", "-m state ! --state NEW,INVALID"),
    ("filter", "-m addrtype --dst-type LOCAL"),
    ("filter", "-m addrtype ! --src-type LOCAL --dst-type UNICAST,MULTICAST"),
    ("filter", "-m statistic --mode random --probability 0.3333333333"),
    ("filter", "-m statistic --mode random ! --probability 0.5"),
    ("filter", "-m statistic --mode nth ! --every 3 --packet 1"),
    ("filter", "-m recent --set"),
    ("filter", "-m recent ! --rcheck --seconds 5 --reap --hitcount 4 --rttl --name foo --rdest"),
    ("filter", "-m recent --update --seconds 60"),
    ("filter", "-m recent --remove --name A"),
    ("filter", "-m limit"),
    ("filter", "-m limit --limit 120/min --limit-burst 7"),
    ("filter", "-m limit --limit 9999/s"),
    ("filter", "-m limit --limit 7/day"),
    ("filter", "-m hashlimit --hashlimit-upto 60/min --hashlimit-mode srcip --hashlimit-name a"),
    ("filter", "-m hashlimit --hashlimit-above 10/hour --hashlimit-name b --hashlimit-burst 9"),
    (
        "filter",
        "-m hashlimit --hashlimit 5/sec --hashlimit-name c --hashlimit-htable-expire 10000 --hashlimit-mode dstport,srcip --hashlimit-srcmask 24",
    ),
    ("filter", "-m mac ! --mac-source AA:bb:CC:00:11:22"),
    ("filter", "-m owner --uid-owner root --gid-owner 5-10"),
    ("filter", "-m owner ! --socket-exists"),
    ("filter", "-m pkttype ! --pkt-type bcast"),
    ("filter", "-m length --length 5:"),
    ("filter", "-m length ! --length 5"),
    ("filter", "-m dscp ! --dscp-class EF"),
    ("filter", "-m tos --tos 0x10"),
    ("filter", "-m tos ! --tos Minimize-Delay"),
    ("filter", "-m physdev --physdev-in eth0 --physdev-out v+ --physdev-is-bridged"),
    ("filter", "-m physdev ! --physdev-is-in"),
    ("filter", "-p tcp -m tcpmss ! --mss 4:5"),
    ("filter", "-m policy --dir in --pol none"),
];

const V4: &[(&str, &str)] = &[
    ("raw", "-s 10.0.0.0/255.0.255.0 -p udp -f -j ACCEPT"),
    ("mangle", "-j TTL --ttl-inc 4"),
    ("mangle", "-p tcp -j TPROXY --on-port 80 --on-ip 10.0.0.1"),
    ("nat", "-p tcp -j DNAT --to 10.0.0.4-10.0.0.4:5-5"),
    ("nat", "-p tcp -j DNAT --to 10.0.0.4-10.0.0.6:5-7/9 --random --persistent"),
    ("nat", "-p tcp -j DNAT --to-destination :http"),
    ("nat", "-p tcp -j SNAT --to-source 10.0.0.4:1-65535 --random-fully --persistent"),
    ("nat", "-j NETMAP --to 10.5.0.0/16"),
    ("nat", "-j NETMAP --to 10.5.0.1"),
    ("filter", "-s 10.0.0.1/24 -d 10.1 -j ACCEPT"),
    ("filter", "-s 10/8 ! -d 10.1.2.3/255.255.0.0"),
    ("filter", "-s 0.0.0.0/0 -i + -p all -j ACCEPT"),
    ("filter", "-s 10.0.0.1,10.0.0.2 -d 10.9.0.0/16,10.8.0.1"),
    ("filter", "! -f -p tcp"),
    ("filter", "-p icmp --icmp-type any"),
    ("filter", "-p icmp ! --icmp-type 3/1"),
    ("filter", "-p icmp --icmp-type echo-request"),
    ("filter", "-p icmp --icmp-type time-exceeded"),
    ("filter", "-m conntrack --ctorigsrc 10.0.0.1/24 ! --ctrepldst 10.2.3.4 --ctdir REPLY"),
    ("filter", "-m iprange ! --src-range 10.2.3.4-10.2.3.9 --dst-range 10.1.1.1"),
    ("filter", "-m recent --set --mask 255.255.255.0 --name n"),
    ("filter", "-m addrtype --dst-type BROADCAST,NAT --limit-iface-in"),
    ("filter", "-m ttl ! --ttl 4"),
    ("filter", "-m ttl --ttl-lt 4"),
    ("filter", "-p tcp -j REJECT --reject-with tcp-rst"),
    ("filter", "-j REJECT --reject-with host-prohib"),
    ("filter", "-j REJECT --reject-with icmp-admin-prohibited"),
];

const V6: &[(&str, &str)] = &[
    ("mangle", "-j HL --hl-dec 4"),
    ("mangle", "-p tcp -j TPROXY --on-port 80 --on-ip fd00::1"),
    ("nat", "-p tcp -j DNAT --to-destination [fd00::5]:80"),
    ("nat", "-p tcp -j DNAT --to-destination [fd00::5-fd00::9]:80-90 --persistent"),
    ("nat", "-j DNAT --to-destination fd00::5"),
    ("nat", "-p udp -j SNAT --to-source [fd00::5]:80 --random-fully"),
    ("nat", "-j NETMAP --to fd00:1::/64"),
    ("filter", "-s fd00::1 ! -d fd00::/8 -j ACCEPT"),
    ("filter", "-s ::/0 -d fd00:0:0:1::77/64"),
    ("filter", "-p icmpv6 --icmpv6-type echo-request"),
    ("filter", "-p ipv6-icmp ! --icmpv6-type 1/3"),
    ("filter", "-m conntrack --ctorigsrc fd00::1/64 ! --ctrepldst fd00::4 --ctdir REPLY"),
    ("filter", "-m iprange --src-range fd00::1-fd00::9"),
    ("filter", "-m recent --set --mask ffff:: --name n"),
    ("filter", "-m hl --hl-eq 255"),
    ("filter", "-m hl ! --hl-eq 255"),
    ("filter", "-m hl --hl-gt 5"),
    ("filter", "-j REJECT --reject-with icmp6-adm-prohibited"),
    ("filter", "-j REJECT --reject-with addr-unreach"),
    ("filter", "-j REJECT --reject-with icmp6-policy-fail"),
    ("filter", "-j REJECT --reject-with icmp6-reject-route"),
    ("filter", "-j REJECT --reject-with no-route"),
];

/// Returns the text of a table with these rules in a chain that nothing calls, so that hooks do
/// not matter.
fn table(name: &str, rules: &[(&str, &str)]) -> String {
    let own = rules.iter().filter(|(table, _)| *table == name);
    let rules: String = own.map(|(_, rule)| format!("-A X {rule}\n")).collect();
    format!("*{name}\n:X - [0:0]\n:Y - [0:0]\n{rules}COMMIT\n")
}

fn table_of(name: &str) -> Option<Table> {
    Table::ALL.into_iter().find(|table| table.name() == name)
}

/// Returns the rules of a chain in a saved table.
fn rules_of_x(text: &str) -> Vec<&str> {
    text.lines().filter(|line| line.starts_with("-A X")).collect()
}

#[test]
fn the_reader_makes_of_rules_what_both_back_ends_make_of_them() {
    for tool in [Tool::Legacy, Tool::Nft] {
        let lab = match Lab::try_new(tool) {
            Ok(lab) => lab,
            Err(reason) => return skip("the reader of iptables", &reason),
        };
        for (family, own) in [(Family::V4, V4), (Family::V6, V6)] {
            let rules = [BOTH, own].concat();
            for name in ["raw", "mangle", "nat", "filter"] {
                let text = table(name, &rules);
                let saved = lab.reload(tool, family, name, &text).unwrap_or_else(|error| {
                    panic!("{tool:?} refuses table {name} of {family:?}: {error}")
                });
                let source = Source { family: Some(family), ..Source::default() };
                let read = iptables_rules(&text, source);
                let remarks: Vec<_> =
                    read.remarks.iter().map(|of| (&of.text, &of.problem)).collect();
                assert_eq!(remarks, [], "{family:?}");
                let ours = read.value[0].iptables_save(WithCounters::No);
                assert_eq!(rules_of_x(&ours), rules_of_x(&saved), "{tool:?} {family:?} {name}");
                let listed = lab.list(tool, family, name).unwrap();
                let listed = iptables_listing(&listed, Source { table: table_of(name), ..source });
                let listed = listed.value[0].iptables_save(WithCounters::No);
                let pairs = rules_of_x(&listed).into_iter().zip(rules_of_x(&saved));
                // A listing does not name the buckets of hashlimit.
                let pairs = pairs.filter(|(_, saved)| !saved.contains("-m hashlimit"));
                let differing: Vec<_> = pairs.filter(|(listed, saved)| listed != saved).collect();
                assert_eq!(differing, [], "{tool:?} {family:?} {name}");
                // What the kernel prints is written back as it is.
                let again = iptables_rules(&saved, source);
                assert_eq!(again.remarks, [], "{tool:?} {family:?} {name}");
                assert_eq!(again.value[0].iptables_save(WithCounters::No), saved);
            }
        }
    }
}

/// Rules that no kernel takes: family, table, chain and rule.
const REFUSED: &[(Family, &str, &str)] = &[
    (Family::V4, "filter", "INPUT -m mac --mac-source xx:00:00:00:00:01"),
    (Family::V4, "filter", "OUTPUT -m mac --mac-source 02:00:00:00:00:01"),
    (Family::V4, "filter", "INPUT -m owner --uid-owner 0"),
    (Family::V4, "filter", "OUTPUT -m owner --suppl-groups --uid-owner 0"),
    (Family::V4, "filter", "OUTPUT -m addrtype --dst-type LOCAL --limit-iface-in"),
    (Family::V4, "filter", "INPUT -m addrtype --dst-type LOCAL --limit-iface-out"),
    (Family::V6, "filter", "INPUT -m addrtype --dst-type BROADCAST"),
    (Family::V4, "filter", "OUTPUT -m physdev --physdev-out eth0"),
    (Family::V4, "filter", "INPUT -m limit --limit 1/day --limit-burst 45"),
    (Family::V4, "filter", "INPUT -m recent --set --seconds 5"),
    (Family::V4, "filter", "INPUT -m recent --rcheck --reap"),
    (Family::V4, "filter", "INPUT -m multiport --dports 5"),
    (
        Family::V4,
        "filter",
        "INPUT -p tcp -m multiport --dports 1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16",
    ),
    (Family::V4, "filter", "INPUT -m tcp --dport 5"),
    (Family::V4, "filter", "INPUT -p udp -m tcp --dport 5"),
    (Family::V4, "filter", "INPUT -p tcp --dport 6:5"),
    (Family::V4, "filter", "INPUT -p tcp --tcp-option 0"),
    (Family::V4, "filter", "INPUT -p udp -m tcpmss --mss 5"),
    (Family::V4, "filter", "INPUT -m statistic --mode nth --every 3 --packet 3"),
    (Family::V4, "filter", "INPUT -m statistic --mode random --probability 1.1"),
    (Family::V4, "filter", "INPUT -m state --state NEW,DNAT"),
    (Family::V4, "filter", "INPUT -o eth0"),
    (Family::V4, "filter", "OUTPUT -i eth0"),
    (Family::V4, "filter", "INPUT -m rpfilter"),
    (Family::V4, "filter", "INPUT -j REJECT --reject-with tcp-reset"),
    (Family::V4, "filter", "INPUT -j REJECT --reject-with icmp6-no-route"),
    (Family::V4, "filter", "INPUT -j DNAT --to-destination 10.0.0.1"),
    (Family::V4, "filter", "INPUT -j NOTRACK"),
    (Family::V4, "filter", "INPUT -j TTL --ttl-set 5"),
    (Family::V4, "filter", "INPUT -j FORWARD"),
    (Family::V4, "filter", "INPUT ! -p 0"),
    (Family::V4, "filter", "INPUT ! -s 10.0.0.1,10.0.0.2"),
    (Family::V4, "filter", "INPUT -p tcp --nothing 5"),
    (Family::V4, "mangle", "INPUT -p tcp -j TPROXY --on-port 5"),
    (Family::V4, "mangle", "PREROUTING -j TPROXY --on-port 5"),
    (Family::V4, "mangle", "INPUT -p tcp --syn -j TCPMSS --clamp-mss-to-pmtu"),
    (Family::V4, "mangle", "PREROUTING -j CLASSIFY --set-class 1:2"),
    (Family::V4, "mangle", "INPUT -j REJECT"),
    (Family::V4, "nat", "POSTROUTING -j DNAT --to-destination 10.0.0.1"),
    (Family::V4, "nat", "PREROUTING -j MASQUERADE"),
    (Family::V4, "nat", "OUTPUT -j SNAT --to-source 10.0.0.1"),
    (Family::V4, "nat", "PREROUTING -j DNAT --to-destination 10.0.0.1:5"),
    (Family::V4, "nat", "PREROUTING -p tcp -j DNAT --to-destination 10.0.0.1 --random-fully"),
    (Family::V4, "nat", "PREROUTING -j DROP"),
    (Family::V6, "nat", "PREROUTING -j DNAT --to-destination 10.0.0.1"),
];

#[test]
fn what_the_kernel_refuses_is_said_and_kept_as_unsupported() {
    let lab = match Lab::try_new(Tool::Legacy) {
        Ok(lab) => lab,
        Err(reason) => return skip("what the kernel refuses", &reason),
    };
    for (family, name, rule) in REFUSED {
        let text = format!("*{name}\n-A {rule}\nCOMMIT\n");
        let taken = lab.reload(Tool::Legacy, *family, name, &text);
        assert!(taken.is_err(), "the kernel takes {name} {rule}: {taken:?}");
        let source = Source { family: Some(*family), ..Source::default() };
        let read = iptables_rules(&text, source);
        assert!(read.remarks.iter().any(|remark| remark.line == 2), "{name} {rule}");
        let chains = Table::ALL.into_iter().flat_map(|table| read.value[0].ruleset.chains(table));
        let rules: Vec<_> = chains.flat_map(|chain| chain.rules()).collect();
        let unsupported = |rule: &&Rule| {
            let is = |condition: &Match| matches!(condition, Match::Unsupported(_));
            rule.matches().iter().any(is) || matches!(rule.target(), Target::Unsupported(_))
        };
        assert!(!rules.is_empty() && rules.iter().all(unsupported), "{name} {rule}: {rules:?}");
    }
}
