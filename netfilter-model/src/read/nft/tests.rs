use crate::nft::{Statement, Verdict};
use crate::read::{nft_dump, nft_ruleset};
use crate::rule::iptables_save;

#[test]
fn what_is_cut_off_is_read_as_far_as_it_goes() {
    let text = "root@node:~# nft list ruleset\ntable ip t {\n\tset s {\n\t\ttype ipv4_addr\n\t\t\
                elements = { 10.0.0.1,\n";
    let read = nft_ruleset(text, 0);
    assert_eq!(read.value.tables()[0].sets[0].elements().len(), 1);
    assert!(!read.remarks.is_empty());
    let text = "table ip t {\n\tchain c {\n\t\tip saddr 10.0.0.1 jump gone # handle 4\n....\n";
    let read = nft_ruleset(text, 7);
    let rule = &read.value.tables()[0].chains[0].rules[0];
    assert_eq!((rule.origin.owner, rule.origin.item, rule.handle), (7, 3, Some(4)));
    assert_eq!(rule.statements[1], Statement::Verdict(Verdict::Unknown("jump gone".into())));
    let lines: Vec<u32> = read.remarks.iter().map(|remark| remark.line).collect();
    assert_eq!(lines, [3, 4, 4, 4]);
}

#[test]
fn what_is_not_known_is_kept_and_the_rest_read() {
    let text = "table ip t {\n chain c {\n tcp dport 80 meta cpu 3 counter drop\n }\n}\n";
    let read = nft_ruleset(text, 0);
    let statements = &read.value.tables()[0].chains[0].rules[0].statements;
    assert_eq!(statements.len(), 4);
    assert_eq!(statements[1], Statement::Unsupported("meta cpu 3".into()));
    assert_eq!(statements[3], Statement::Verdict(Verdict::Drop));
    assert_eq!(read.remarks[0].line, 3);
}

#[test]
fn commands_change_what_is_there() {
    let text = "add table ip t\nadd chain ip t a\nadd chain ip t b { type filter hook input \
                priority filter + 5 ; policy drop ; }\nadd rule ip t b jump a\ninsert rule ip t b \
                accept\nadd map ip t m { type inet_service : verdict ; }\n\
                add element ip t m { 80:drop, 81 : goto a }\nflush chain ip t a\n";
    let read = nft_ruleset(text, 0);
    assert_eq!(read.remarks, []);
    let table = &read.value.tables()[0];
    assert_eq!(table.chains[1].rules[0].statements, [Statement::Verdict(Verdict::Accept)]);
    assert_eq!(table.chains[1].base.as_ref().unwrap().priority, 5);
    assert_eq!(table.sets[0].elements().len(), 2);
}

#[test]
fn chains_in_a_circle_are_not_followed() {
    let text = "table ip t {\n map m { type mark : verdict; elements = { 1 : goto a }; }\n chain a \
                {\n goto b\n }\n chain b {\n meta mark vmap @m\n }\n}\n";
    let read = nft_ruleset(text, 0);
    assert_eq!(read.remarks.len(), 1, "{:?}", read.remarks);
}

#[test]
fn a_priority_in_another_script_is_no_priority() {
    let text = "table ip t {\n chain c {\n type filter hook input priority \u{fffd}+1;\n }\n}\n";
    assert!(!nft_ruleset(text, 0).remarks.is_empty());
}

#[test]
fn tables_of_iptables_are_read_as_such() {
    let text = "table ip nat {
\tchain PREROUTING {
\t\ttype nat hook prerouting priority dstnat; policy accept;
\t\tmeta l4proto tcp ip daddr 10.96.0.10  tcp dport 80 counter packets 0 bytes 0 jump SVC
\t}

\tchain SVC {
\t\tip saddr != 10.244.0.0/16 counter packets 0 bytes 0 meta mark set mark or 0x4000
\t\t meta random & 2147483647 < 1073741824 counter packets 0 bytes 0 return
\t\tmeta l4proto tcp   counter packets 0 bytes 0 dnat to 10.244.1.5:8080
\t}
}
table ip own {
}
";
    let dump = nft_dump(text, 0);
    assert_eq!(dump.remarks, []);
    assert_eq!(dump.value.nft.tables().len(), 1);
    let saved = iptables_save(&dump.value.ipv4.unwrap());
    let rules: Vec<&str> = saved.lines().filter(|line| line.starts_with("-A")).collect();
    assert_eq!(
        rules,
        [
            "-A PREROUTING -d 10.96.0.10/32 -p tcp -m tcp --dport 80 -j SVC",
            "-A SVC ! -s 10.244.0.0/16 -j MARK --set-xmark 0x4000/0x4000",
            "-A SVC -m statistic --mode random --probability 0.50000000000 -j RETURN",
            "-A SVC -p tcp -j DNAT --to-destination 10.244.1.5:8080",
        ]
    );
}

#[test]
fn what_is_kept_as_text_is_read_as_itself() {
    let text = "table ip t {\n chain a {\n numgen rand.2/8080 {\n ip saddr 1.1.1.1 jump x # handle 9\n\
                }\n chain b {\n dnat to 10).1.0.2:80 log prefix \"a\n }\n}\n";
    let written = crate::nft::nft_list(&nft_ruleset(text, 0).value);
    assert_eq!(crate::nft::nft_list(&nft_ruleset(&written, 0).value), written);
}
