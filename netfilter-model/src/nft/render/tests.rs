use crate::nft::nft_list;
use crate::read::nft_ruleset;

#[test]
fn what_is_written_reads_as_the_same() {
    let text = "table inet t {
\tcomment \"all of it\"
\tset a {
\t\ttype ipv4_addr . inet_service
\t\tsize 9
\t\tflags interval,timeout
\t\ttimeout 1h30m
\t\telements = { 10.0.0.0/8 . 1-5 timeout 5m expires 4m2s,
\t\t\t     10.9.0.1-10.9.0.3 . 7 }
\t}

\tset b {
\t\ttype ipv4_addr
\t\tflags dynamic,timeout
\t}

\tmap m {
\t\ttypeof ip daddr . tcp dport : ip daddr . tcp dport
\t\telements = { 10.0.0.1 . 80 : 10.0.0.2 . 8080 }
\t}

\tchain c {
\t\tmeta mark & 0x00004000 == 0x00000000 return
\t\tmeta mark set meta mark & 0x0000ff00 | 0x00000012
\t\tmeta mark set ct mark >> 4
\t\ttcp flags syn / fin,syn,rst,ack ct state established,related accept
\t\tct state != established | related drop
\t\tip saddr . tcp dport @a ip6 daddr != fd00::/8 accept
\t\tiifname \"eth*\" oifname != \"lo\" fib daddr . iif type local accept
\t\tjhash ip saddr . tcp sport mod 7 seed 0x5 offset 3 vmap { 3 : accept, 4-5 : jump e }
\t\tlimit rate over 10 kbytes/second burst 2 mbytes drop comment \"too much\"
\t\tupdate @b { ip saddr timeout 5s limit rate 5/second }
\t\treject with icmpx admin-prohibited
\t}

\tchain e {
\t}

\tchain d {
\t\ttype nat hook prerouting priority dstnat - 10; policy accept;
\t\tdnat ip to ip daddr . tcp dport map @m
\t\tmeta l4proto tcp dnat ip6 to [fd00::1]:80-90 random,persistent
\t}
}
";
    let read = nft_ruleset(text, 0);
    assert_eq!(read.remarks, []);
    let written = nft_list(&read.value);
    let again = nft_ruleset(&written, 0);
    assert_eq!(nft_list(&again.value), written);
    assert_eq!(written, text);
}

#[test]
fn a_mask_of_leading_bits_is_listed_as_a_length() {
    let text = |rule: &str| format!("table ip t {{\n\tchain c {{\n\t\t{rule}\n\t}}\n}}\n");
    for (given, listed) in [
        ("meta mark & 0x80000000 == 0x0 return", "meta mark 0x00000000/1 return"),
        ("meta mark & 0xc0000000 != 0x40000000 drop", "meta mark != 0x40000000/2 drop"),
        ("ip saddr & 255.255.0.0 == 10.1.0.0 drop", "ip saddr 10.1.0.0/16 drop"),
        ("meta mark & 0x4000 == 0x0 return", "meta mark & 0x00004000 == 0x00000000 return"),
    ] {
        let read = nft_ruleset(&text(given), 0);
        assert_eq!(read.remarks, []);
        assert_eq!(nft_list(&read.value), text(listed));
        assert_eq!(nft_ruleset(&text(listed), 0).remarks, []);
    }
}
