//! Translations.

use super::super::arms::Case;

pub(in super::super) const NAT: &[Case] = &[
    Case {
        name: "destinations and replies",
        rules: "
table ip t {
    chain p {
        type nat hook prerouting priority dstnat; policy accept;
        ip daddr 10.96.0.9 udp dport 1 counter dnat to 10.244.2.3
        ip daddr 10.96.0.9 udp dport 2 counter dnat to 10.244.2.4:80
        tcp dport 3 counter dnat to :4
        udp dport 5 dnat to 10.244.2.2-10.244.2.2:6-6
        udp dport 6 counter dnat to 10.244.1.1
    }
}
",
        packets: "udp c2 v9:1; udp s3:1 c2:1000; udp c2 v9:1; udp c2 v9:2; udp s4:80 c2:1000; syn c2 s2:3; udp c2 v9:5-6; udp s2:6 c2:1000; udp c2 s2:2",
    },
    Case {
        name: "destinations by maps",
        rules: "
table ip t {
    map m {
        type ipv4_addr . inet_service : ipv4_addr . inet_service
        elements = { 10.96.0.9 . 3 : 10.244.2.2 . 30, 10.96.0.9 . 4 : 10.244.2.3 . 40 }
    }
    chain p {
        type nat hook prerouting priority dstnat; policy accept;
        dnat to udp dport map { 1 : 10.244.2.3, 2 : 10.244.2.4 }
        dnat ip to ip daddr . udp dport map @m
        meta l4proto udp dnat to 10.244.2.5 : udp dport map { 5 : 50, 6 : 60 }
        meta l4proto udp dnat ip to numgen inc mod 2 map { 0 : 10.244.2.2 . 80, 1 : 10.244.2.3 . 81 }
    }
}
",
        packets: "udp c2 v9:1-8; udp c2:1001 v8:1-5; udp c2:1002 v8:9; udp c2:1003 v8:9",
    },
    Case {
        name: "one address for intervals of keys",
        rules: "
table ip t {
    map m {
        type ipv4_addr . inet_service : ipv4_addr
        flags interval
        elements = { 10.96.0.0/28 . 1-3 : 10.244.2.3, 10.96.0.9 . 4 : 10.244.2.4 }
    }
    chain p {
        type nat hook prerouting priority dstnat; policy accept;
        dnat to ip daddr . udp dport map @m
    }
}
",
        packets: "udp c2 v9:1-4; udp c2:1001 v8:3",
    },
    Case {
        name: "services by verdict map",
        rules: "
table ip t {
    map v {
        type ipv4_addr . inet_proto . inet_service : verdict
        elements = { 10.244.2.6 . udp . 1 : goto svc, 10.244.2.6 . tcp . 1 : goto svc2 }
    }
    chain svc {
        ip saddr != 10.244.1.0/29 counter jump masq
        numgen inc mod 2 vmap { 0 : goto a, 1 : goto b }
    }
    chain svc2 {
        jump masq
        jhash ip saddr mod 2 seed 0x1 vmap { 0 : goto a, 1 : goto b }
    }
    chain masq {
        meta mark set meta mark or 0x4000
    }
    chain a {
        ip saddr 10.244.2.2 jump masq
        meta l4proto { tcp, udp } counter dnat to 10.244.2.2:80
    }
    chain b {
        meta l4proto udp counter dnat to 10.244.2.3:80
        meta l4proto tcp counter dnat to 10.244.2.3:81
    }
    chain p {
        type nat hook prerouting priority dstnat; policy accept;
        ip daddr . ip protocol . th dport vmap @v
    }
    chain o {
        type nat hook output priority -100; policy accept;
        ip daddr . ip protocol . th dport vmap @v
    }
    chain q {
        type nat hook postrouting priority srcnat; policy accept;
        meta mark & 0x4000 == 0 return
        meta mark set meta mark xor 0x4000
        counter masquerade
    }
}
",
        packets: "udp c2:1 s6:1; udp c3:2 s6:1; udp c9:3 s6:1; udp c10:4 s6:1; syn c2:5 s6:1; syn c3:6 s6:1; syn c4:7 s6:1; udp s1:8 s6:1; udp s1:9 s6:1; udp c2:1 s6:1; udp c2 s6:2",
    },
    Case {
        name: "sources",
        rules: "
table ip t {
    chain q {
        type nat hook postrouting priority srcnat; policy accept;
        udp dport 1 counter snat to 10.244.2.1
        udp dport 2 counter snat to 10.244.2.9:77
        udp dport 3 counter masquerade
        udp dport 4 masquerade to :500-500
        udp dport 5 snat ip to ip saddr map { 10.244.1.2 : 10.244.2.7, 10.244.1.3 : 10.244.2.8 }
        udp dport 6 counter snat to 10.244.2.7-10.244.2.7
        udp dport 7 counter snat to 10.244.2.9:80-80
    }
}
",
        packets: "udp c2 s2:1; udp s2:1 s1:1000; udp c2 s2:2-8; udp c3 s2:5; udp c4 s2:5; udp s1:7 s2:1-3; udp c3 s3:3; udp c4 s3:7",
    },
    Case {
        name: "a source that two want",
        rules: "
table ip t {
    chain q {
        type nat hook postrouting priority srcnat; policy accept;
        udp dport 7 counter masquerade to :600-600
    }
}
",
        packets: "udp c2 s2:7; udp c2 s3:7; udp s2:7 s1:600; udp c3 s2:7; udp c2 s2:7",
    },
    Case {
        name: "redirections",
        rules: "
table ip t {
    chain p {
        type nat hook prerouting priority dstnat; policy accept;
        udp dport 1 counter redirect
        udp dport 2 counter redirect to :7
        tcp dport 3 counter redirect to :8
    }
    chain o {
        type nat hook output priority -100; policy accept;
        udp dport 4 counter redirect to :9
    }
    chain i {
        type filter hook input priority filter; policy accept;
        udp dport 1 counter
        udp dport 7 ip daddr 10.244.1.1 counter
        tcp dport 8 counter
        udp dport 9 ip daddr 127.0.0.1 counter
    }
}
",
        packets: "udp c2 s2:1-2; syn c2 s2:3; udp s2 c2:1; udp s1 s2:4",
    },
    Case {
        name: "the first nat chain that translates",
        rules: "
table ip t {
    chain a {
        type nat hook prerouting priority -110; policy accept;
        udp dport 1 accept
        udp dport 2 dnat to 10.244.2.3
        counter
    }
    chain b {
        type nat hook prerouting priority -90; policy accept;
        udp dport 1-2 counter dnat to 10.244.2.4
        udp dport 3 counter drop
    }
}
",
        packets: "udp c2 s2:1-4; udp c2 s2:1-4",
    },
    Case {
        name: "translation is for the first packet of a connection",
        rules: "
table ip t {
    chain p {
        type nat hook prerouting priority dstnat; policy accept;
        counter
        udp dport 1 counter dnat to 10.244.2.3
    }
    chain q {
        type nat hook postrouting priority srcnat; policy accept;
        counter
    }
}
",
        packets: "udp c2 s2:1; udp c2 s2:1; udp s3:1 c2:1000; udp c2 s2:2; udp s2:2 c2:1000; syn c2 s2:1; ack c2 s2:1; finack c2 s2:5",
    },
    Case {
        name: "both ends, and what filters see",
        rules: "
table ip t {
    chain p {
        type nat hook prerouting priority dstnat; policy accept;
        udp dport 1 dnat to 10.244.2.3:81
    }
    chain q {
        type nat hook postrouting priority srcnat; policy accept;
        ip daddr 10.244.2.3 counter masquerade
    }
    chain f {
        type filter hook forward priority filter; policy drop;
        ct status dnat counter accept
        ct state established counter accept
        ip daddr 10.244.2.3 udp dport 81 counter
        meta l4proto udp ct original proto-dst 1 counter
    }
    chain g {
        type filter hook postrouting priority 300; policy accept;
        ip saddr 10.244.2.1 counter
        ct status snat counter
        ct reply ip daddr 10.244.2.1 counter
        ct original ip daddr 10.244.2.2 counter
    }
}
",
        packets: "udp c2 s2:1; udp s3:81 s1:1000; udp c2 s2:1; udp c2 s2:2",
    },
    Case {
        name: "translations of inet tables",
        rules: "
table inet t {
    chain p {
        type nat hook prerouting priority dstnat; policy accept;
        udp dport 1 dnat ip to 10.244.2.3
        udp dport 1 dnat ip6 to fd00:244:2::3
        udp dport 2 dnat ip6 to [fd00:244:2::4]:80
        udp dport 3 counter redirect to :7
        ip6 daddr fd00:96::9 counter dnat ip6 to udp dport map { 4 : fd00:244:2::5 }
    }
    chain q {
        type nat hook postrouting priority srcnat; policy accept;
        udp dport 1 counter masquerade
        meta nfproto ipv6 udp dport 5 snat ip6 to fd00:244:2::9
    }
}
",
        packets: "udp c2 s2:1-6; udp C2 S2:1-6; udp C2 V9:4; udp S3:1 S1:1000; udp s3:1 s1:1000; udp S4:80 C2:1000",
    },
    Case {
        name: "a rule after translation in vain",
        rules: "
table ip t {
    chain p {
        type nat hook prerouting priority dstnat; policy accept;
        udp dport 1 dnat to ip saddr map { 10.244.1.3 : 10.244.2.3 }
        udp dport 1 counter
        udp dport 1 ip saddr 10.244.1.2 counter dnat to 10.244.2.4
    }
}
",
        packets: "udp c2 s2:1; udp c3 s2:1; udp c4 s2:1",
    },
    Case {
        name: "drop in a nat chain",
        rules: "
table ip t {
    chain p {
        type nat hook prerouting priority dstnat; policy accept;
        udp dport 1 counter drop
        udp dport 2 counter accept
        udp dport 2 counter dnat to 10.244.2.3
    }
    chain q {
        type nat hook postrouting priority srcnat; policy accept;
        udp dport 3 counter drop
    }
}
",
        packets: "udp c2 s2:1-4",
    },
    Case {
        name: "input chains of type nat",
        rules: "
table ip t {
    chain i {
        type nat hook input priority 100; policy accept;
        udp dport 1 counter snat to 10.244.1.77
    }
    chain j {
        type filter hook input priority 200; policy accept;
        ip saddr 10.244.1.77 counter drop
    }
}
",
        packets: "udp c2 c1:1-2",
    },
];
