//! What is looked at, changed and counted.

use super::super::arms::Case;

pub(in super::super) const EXPRESSIONS: &[Case] = &[
    Case {
        name: "addresses, ports, protocols",
        rules: "
table ip t {
    chain f {
        type filter hook forward priority filter; policy accept;
        ip saddr 10.244.1.2 ip daddr != 10.244.2.2 counter drop
        ip saddr & 255.255.255.253 == 10.244.1.4 counter drop
        ip daddr >= 10.244.2.5 counter drop
        tcp dport 1 counter drop
        th dport 2 counter drop
        udp sport > 1000 counter drop
        ip protocol icmp counter
        meta l4proto { tcp, icmp } counter
        meta l4proto != { tcp, icmp } counter
    }
}
",
        packets: "udp c2 s2:1-3; syn c2 s2:1-3; udp c2 s3:9; udp c4 s3:9; udp c6 s3:9; udp c5 s3:9; udp c3 s4:9; udp c3 s5:9; udp c3:1001 s2; ping c2 s2; ping c2 s3",
    },
    Case {
        name: "hops, code points, lengths",
        rules: "
table ip t {
    chain f {
        type filter hook forward priority filter; policy accept;
        ip ttl 9 counter drop
        ip ttl { 10, 20-30 } counter drop
        ip dscp 4 counter drop
        ip dscp != cs0 counter
        ip ecn 1 counter drop
        ip length 29 counter
        meta length > 30 counter
        udp length 9 counter
        ip version 4 counter
        ip hdrlength 5 counter
    }
}
",
        packets: "udp c2 s2 ttl=10; udp c2 s2 ttl=11; udp c2 s2 ttl=21; udp c2 s2 ttl=32; udp c2 s2 tos=16; udp c2 s2 tos=1; udp c2 s2 tos=32; syn c2 s2; ping c2 s2",
    },
    Case {
        name: "changes of headers",
        rules: "
table ip t {
    chain f {
        type filter hook forward priority filter; policy accept;
        udp dport 1 ip dscp set af21 counter
        udp dport 2 ip ttl set 7 counter
    }
}
",
        packets: "udp c2 s2:1-3 tos=3; syn c2 s2:1",
    },
    Case {
        name: "devices",
        rules: "
table inet t {
    chain f {
        type filter hook forward priority filter; policy accept;
        iifname \"c0\" oifname \"s0\" counter
        iifname \"c*\" counter
        iif c0 counter
        oif != s0 counter
        iifname { \"s0\", \"lo\" } counter
        iifname != \"c0\" udp dport 4 counter drop
        meta nfproto ipv4 counter
        meta pkttype host counter
        meta protocol ip counter
    }
}
",
        packets: "udp c2 s2:1-4; udp s2 c2:1-4; udp C2 S2:4; udp S2 C2:4",
    },
    Case {
        name: "devices that are not there",
        rules: "
table ip t {
    chain p {
        type filter hook prerouting priority 0; policy accept;
        oifname != \"s0\" counter
    }
    chain o {
        type filter hook output priority 0; policy accept;
        iifname != \"c0\" counter
        oifname \"s0\" counter
    }
    chain q {
        type filter hook postrouting priority 0; policy accept;
        iifname \"c0\" counter
        oifname \"s0\" counter
    }
}
",
        packets: "udp c2 s2:1; udp s1 s2:1; udp c2 c1:1",
    },
    Case {
        name: "flags of TCP",
        rules: "
table ip t {
    chain f {
        type filter hook forward priority filter; policy accept;
        tcp dport 1 tcp flags syn counter drop
        tcp dport 2 tcp flags == syn counter drop
        tcp dport 3 tcp flags & (fin|syn|rst|ack) == syn counter drop
        tcp dport 4 tcp flags != syn counter drop
        tcp dport 5 tcp flags & (fin | ack) == fin | ack counter drop
        tcp dport 6 tcp flags & (syn | ack) != 0 counter drop
        tcp dport 7 tcp flags fin,rst counter drop
    }
}
",
        packets: "syn c2 s2:1-7; ack c2 s2:1-7; finack c2 s2:1-7; rst c2 s2:1-7; udp c2 s2:1",
    },
    Case {
        name: "marks with masks",
        rules: "
table ip t {
    chain f {
        type filter hook forward priority filter; policy accept;
        meta mark set 0x12
        udp dport 1 meta mark set meta mark or 0x4000
        udp dport 2 meta mark set meta mark xor 0x10
        udp dport 3 meta mark set meta mark and 0xf0
        udp dport 4 meta mark set mark and 0xff or 0x100
        meta mark & 0x4000 == 0x4000 counter drop
        meta mark 0x2 counter drop
        meta mark & 0xf0 == 0x10 counter
        meta mark & 0xf != 0 counter
        meta mark > 0x20 counter drop
    }
}
",
        packets: "udp c2 s2:1-5",
    },
    Case {
        name: "marks of connections",
        rules: "
table ip t {
    chain f {
        type filter hook forward priority filter; policy accept;
        ct mark 0 udp dport 1 ct mark set 5 counter
        ct mark 5 counter
        meta mark set ct mark
        meta mark 5 counter
        udp dport 2 ct mark set mark counter
        udp dport 3 ct mark set ct mark or 0x10 counter
        ct mark & 0x10 != 0 counter
        ct mark set ct mark and 0xff counter
    }
}
",
        packets: "udp c2 s2:1; udp s2:1 c2:1000; udp c2 s2:1; udp c2 s2:3; udp c2 s2:3; udp c2 s2:2",
    },
    Case {
        name: "states and directions",
        rules: "
table ip t {
    chain x {
        ct direction original counter
        meta l4proto udp ct original proto-dst 3 counter drop
        ct original ip saddr 10.244.1.2 counter
        ct reply ip saddr 10.244.2.2 counter
        ct protocol udp counter
        ct status confirmed counter
    }
    chain f {
        type filter hook forward priority filter; policy accept;
        ct state new counter
        ct state established counter
        ct state new,established counter
        ct state invalid counter drop
        ct state != new,established counter
        ct state vmap { new : jump x, established : accept, invalid : drop }
        ct state related counter
    }
}
",
        packets: "udp c2 s2:1; udp s2:1 c2:1000; udp c2 s2:1; udp c2 s2:3; syn c2 s2:4; rst s2:4 c2:1000; ping c2 s2; finack c2 s2:8; syn c3 s2:3",
    },
    Case {
        name: "directions and replies",
        rules: "
table ip t {
    chain f {
        type filter hook forward priority filter; policy accept;
        ct direction reply counter
        ct direction original counter
        ct state established ct direction reply ct original ip daddr 10.244.2.2 counter
        meta l4proto udp ct reply proto-src 1 counter
        ct status seen-reply counter
        ct status assured counter
    }
}
",
        packets: "udp c2 s2:1; udp s2:1 c2:1000; udp c2 s2:1; udp c2 s3:2",
    },
    Case {
        name: "questions to the routes",
        rules: "
table ip t {
    chain p {
        type filter hook prerouting priority 0; policy accept;
        fib daddr type local counter
        fib daddr type unicast counter
        fib daddr . iif type local counter
        fib saddr . iif oif exists counter
        fib saddr . iif oif missing counter drop
        fib saddr oifname \"c0\" counter
        fib saddr oif c0 counter
        fib daddr oifname \"s0\" counter
        fib saddr type { unicast, local } counter
    }
}
",
        packets: "udp c2 s2; udp c2 c1; udp c2 s1; udp s2 c2; udp s3 c1; udp s2 s1; udp c1 c1; udp c1 s1",
    },
    Case {
        name: "numbers in turn",
        rules: "
table ip t {
    chain f {
        type filter hook forward priority filter; policy accept;
        udp dport 1 numgen inc mod 3 0 counter drop
        udp dport 2 numgen inc mod 4 offset 10 vmap { 10 : drop, 11-12 : accept }
        udp dport 3 meta mark set numgen inc mod 3 counter
        meta mark 2 counter drop
        udp dport 4 numgen inc mod 2 == 1 numgen inc mod 2 == 1 counter drop
        counter
    }
}
",
        packets: "udp c2 s2:1-4; udp c2 s2:1-4; udp c2 s2:1-4; udp c2 s2:1-4; udp c2 s2:1-4; udp c2 s2:1-4; udp c2 s2:1-4; udp c2 s2:1-4",
    },
    Case {
        name: "hashes with a seed",
        rules: "
table ip t {
    chain x {
        counter
    }
    chain f {
        type filter hook forward priority filter; policy accept;
        udp dport 1-8 jhash ip saddr mod 4 seed 0xdeadbeef vmap { 0 : drop, 1 : jump x }
        udp dport 1-8 jhash ip saddr . udp sport mod 5 seed 0x7 offset 100 vmap { 100 : drop, 102-103 : jump x }
        udp dport 1-8 jhash ip saddr . udp sport . udp dport . ip daddr mod 7 seed 0x1 3 counter drop
        meta mark set jhash ip daddr . ip saddr mod 3 seed 0x9
        meta mark vmap { 0 : jump x, 1 : drop }
        counter
    }
}
",
        packets: "udp c2:1000 s2:1-4; udp c3:1037 s3:1-4; udp c4:1074 s4:1-4; udp c5:1111 s5:1-4; udp c6:1148 s6:1-4; udp c7:1185 s2:1-4; udp c8:1222 s3:1-4; udp c9:1259 s4:1-4; udp c10:1296 s5:1-4; udp c2:1333 s6:1-4; udp c3:1370 s2:1-4; udp c4:1407 s3:1-4; udp c5:1444 s4:1-4; udp c6:1481 s5:1-4; udp c7:1518 s6:1-4; udp c8:1555 s2:1-4",
    },
    Case {
        name: "hashes of IPv6 and of ports",
        rules: "
table ip6 t {
    chain f {
        type filter hook forward priority filter; policy accept;
        jhash ip6 saddr mod 3 seed 0x5 0 counter drop
        jhash ip6 saddr . ip6 daddr . th dport mod 3 seed 0x5 1 counter drop
        jhash th dport mod 2 seed 0x5 1 counter drop
    }
}
",
        packets: "udp C2 S2:1-3; udp C3 S3:1-3; udp C4 S4:1-3; udp C5 S5:1-3; udp C6 S6:1-3; udp C7 S2:1-3; udp C8 S3:1-3; udp C9 S4:1-3",
    },
    Case {
        name: "limits",
        rules: "
table ip t {
    limit l {
        rate 1/hour burst 4 packets
    }
    chain f {
        type filter hook forward priority filter; policy accept;
        udp dport 1 limit rate 1/hour burst 3 packets counter drop
        udp dport 2 limit rate over 1/hour burst 2 packets counter drop
        udp dport 3 limit rate 2/second burst 1 packets counter drop
        udp dport 4 limit rate 1/minute counter drop
        udp dport 5 limit rate 30 bytes/second burst 60 bytes counter drop
        udp dport 6 limit name \"l\" counter drop
        udp dport 7 limit name \"l\" counter drop
    }
}
",
        packets: "udp c2 s2:1-7; udp c2 s2:1-7; udp c2 s2:1-7; udp c2 s2:1-7; udp c2 s2:1-7; udp c2 s2:1-7; udp c2 s2:1-7; udp c2 s2:1-7; @1250; udp c2 s2:1-7; udp c2 s2:1-7; udp c2 s2:1-7; udp c2 s2:1-7",
    },
    Case {
        name: "quotas",
        rules: "
table ip t {
    quota q {
        90 bytes
    }
    chain f {
        type filter hook forward priority filter; policy accept;
        udp dport 1 quota 100 bytes counter drop
        udp dport 2 quota over 60 bytes counter drop
        udp dport 3 quota name \"q\" counter drop
    }
}
",
        packets: "udp c2 s2:1-3; udp c2 s2:1-3; udp c2 s2:1-3; udp c2 s2:1-3; udp c2 s2:1-3; udp c2 s2:1-3",
    },
    Case {
        name: "headers that are not there",
        rules: "
table inet t {
    chain f {
        type filter hook forward priority filter; policy accept;
        tcp dport 0-65535 counter
        udp dport != 1 counter
        udp dport 0-65535 counter
        icmp type echo-request counter
        icmp type != echo-reply counter
        th dport 8 counter
        ip6 saddr ::/0 counter
        meta l4proto ipv6-icmp counter
        icmpv6 type echo-request counter drop
    }
}
",
        packets: "udp c2 s2:1-2; udp c2 s2:8; syn c2 s2:8; ping c2 s2; udp C2 S2:1; udp C2 S2:8; syn C2 S2:1; ping C2 S2",
    },
    Case {
        name: "comparisons",
        rules: "
table ip t {
    chain f {
        type filter hook forward priority filter; policy accept;
        udp dport < 3 counter
        udp dport <= 3 counter
        udp dport > 3 counter
        udp dport >= 3 counter
        udp dport != 3 counter
        udp dport 2-4 counter
        udp dport != 2-4 counter
        ip daddr 10.244.2.2/31 counter
        ip daddr != 10.244.2.2/31 counter
        ip saddr 10.244.1.3-10.244.1.5 counter
        meta mark < 1 counter
        ip ttl >= 63 counter
    }
}
",
        packets: "udp c2 s2:1-5; udp c3 s3:3; udp c5 s4:3; udp c6 s2:3; syn c2 s2:3",
    },
    Case {
        name: "the same with IPv6 in inet",
        rules: "
table inet t {
    chain f {
        type filter hook forward priority filter; policy accept;
        ip daddr 10.244.2.2 counter drop
        ip6 daddr fd00:244:2::2 counter drop
        ip6 hoplimit < 20 counter drop
        ip6 nexthdr tcp counter drop
        ip6 dscp cs1 counter drop
        meta nfproto ipv6 udp dport 5 counter drop
        meta protocol ip6 counter
        meta protocol ip counter
        udp dport 6 counter drop
        ip6 saddr fd00:244:1::/64 ip6 length 9 counter
    }
}
",
        packets: "udp c2 s2; udp C2 S2; udp c2 s3:5-6; udp C2 S3:4-6; udp C2 S3:4 ttl=20; udp C2 S3:4 ttl=21; syn C2 S3; udp C2 S3 tos=32; ping C2 S3; udp C2 C1:5-6",
    },
    Case {
        name: "route chains and marks of packets made here",
        rules: "
table ip t {
    chain o {
        type route hook output priority mangle; policy accept;
        udp dport 1 meta mark set 5 counter
        udp dport 2 counter drop
        meta mark 5 counter
    }
    chain o2 {
        type filter hook output priority filter; policy accept;
        meta mark 5 counter
        meta skuid 0 counter
        meta skgid 0 counter
        meta skuid > 0 counter
    }
    chain f {
        type filter hook forward priority filter; policy accept;
        meta skuid 0 counter drop
    }
}
",
        packets: "udp s1 s2:1-3; udp c2 s2:1",
    },
    Case {
        name: "notrack",
        rules: "
table ip t {
    chain r {
        type filter hook prerouting priority raw; policy accept;
        udp dport 1 notrack counter
    }
    chain f {
        type filter hook forward priority filter; policy accept;
        ct state untracked counter
        ct state new counter
        ct state established counter
        ct mark 0 counter
        ct state invalid counter drop
        ct direction original counter
        ct mark set 3
        meta mark set ct mark
        meta mark 3 counter
    }
}
",
        packets: "udp c2 s2:1-2; udp s2:1 c2:1000; udp s2:2 c2:1000; udp c2 s2:1-2",
    },
    Case {
        name: "zones and notrack, one after the other",
        rules: "
table ip t {
    chain r {
        type filter hook prerouting priority raw; policy accept;
        udp dport 1 notrack
        udp dport 1 ct zone set 7
        udp dport 2 ct zone set 7
        udp dport 2 notrack
        udp dport 3 ct zone set 7
        udp dport 3 ct zone set 8
        udp dport 4 ct original zone set 8
        udp dport 4 ct zone set 7
        udp dport 5 notrack
    }
    chain f {
        type filter hook forward priority filter; policy accept;
        ct zone 7 counter
        ct zone 8 counter
        ct state untracked counter
        ct state new counter
        ct state invalid notrack counter
        ct state untracked counter
    }
}
",
        packets: "udp c2 s2:1-6; udp c2 s2:1-6; rst c2 s2:7",
    },
    Case {
        name: "sockets of the kernel have no owner",
        rules: "
table inet t {
    chain o {
        type filter hook output priority filter; policy accept;
        meta skuid 0 counter
        meta skuid != 0 counter
        meta skuid > 0 counter
        meta skgid != 0 counter drop
    }
}
",
        packets: "udp c2 c1:1; syn c2 c1:1; udp s1 s2:1; udp C2 C1:1; syn C2 C1:1",
    },
    Case {
        name: "zones",
        rules: "
table ip t {
    chain r {
        type filter hook prerouting priority raw; policy accept;
        udp dport 1 ct zone set 7 counter
        iifname \"s0\" udp sport 2 ct zone set 7
    }
    chain f {
        type filter hook forward priority filter; policy accept;
        ct zone 7 counter
        ct zone 0 counter
        ct state established counter
        ct state new counter
    }
}
",
        packets: "udp c2 s2:1-2; udp s2:1 c2:1000; udp s2:2 c2:1000; udp c2 s2:1-2",
    },
];
