//! What sets and maps hold.

use super::super::arms::Case;

pub(in super::super) const SETS: &[Case] = &[
    Case {
        name: "intervals",
        rules: "
table ip t {
    set a {
        type ipv4_addr
        flags interval
        elements = { 10.244.1.2, 10.244.1.4-10.244.1.6, 10.244.1.8/30 }
    }
    set p {
        type inet_service
        flags interval
        elements = { 5, 10-12, 65530-65535 }
    }
    chain f {
        type filter hook forward priority filter; policy accept;
        ip saddr @a udp dport 1 counter drop
        ip saddr != @a udp dport 2 counter drop
        udp dport @p counter drop
        udp sport != @p udp dport 3 counter drop
    }
}
",
        packets: "udp c2 s2:1-13; udp c3 s2:1-3; udp c4 s2:1-3; udp c6 s2:1-3; udp c7 s2:1-3; udp c8 s2:1-3; udp c11 s2:1-3; udp c12 s2:1-3; udp c2:65530 s2:3; udp c2:65529 s2:3; udp c2 s2:65529-65531",
    },
    Case {
        name: "adjacent and touching intervals",
        rules: "
table ip t {
    chain f {
        type filter hook forward priority filter; policy accept;
        ip saddr { 10.244.1.2-10.244.1.4, 10.244.1.5-10.244.1.7, 10.244.1.9 } counter drop
        udp dport { 1-4, 5, 6-8 } counter drop
    }
}
",
        packets: "udp c2 s2:1; udp c4 s2:1; udp c5 s2:2; udp c7 s2:1; udp c8 s2:3-10; udp c9 s2:9; udp c10 s2:9",
    },
    Case {
        name: "concatenations",
        rules: "
table ip t {
    set k {
        type ipv4_addr . inet_service
        elements = { 10.244.1.2 . 1, 10.244.1.3 . 2 }
    }
    chain f {
        type filter hook forward priority filter; policy accept;
        ip saddr . udp dport @k counter drop
        ip protocol . ip daddr . th dport { tcp . 10.244.2.2 . 4, udp . 10.244.2.3 . 4 } counter drop
        ip saddr . ip daddr != { 10.244.1.2 . 10.244.2.2, 10.244.1.3 . 10.244.2.2, 10.244.1.2 . 10.244.2.3 } counter drop
    }
}
",
        packets: "udp c2 s2:1-4; udp c3 s2:1-4; syn c2 s2:1-4; udp c2 s3:4; syn c2 s3:4; udp c4 s2:1; ping c2 s2; ping c4 s2",
    },
    Case {
        name: "concatenated intervals",
        rules: "
table ip t {
    set k {
        type ipv4_addr . inet_service
        flags interval
        elements = { 10.244.1.2-10.244.1.4 . 1-3, 10.244.1.3 . 9, 10.244.1.8/30 . 4, 10.244.1.6 . 0-65535 }
    }
    chain f {
        type filter hook forward priority filter; policy accept;
        ip saddr . udp dport @k counter drop
        ip saddr . ip daddr . th dport { 10.244.1.0/29 . 10.244.2.2-10.244.2.3 . 20-22, 10.244.1.8/29 . 10.244.2.0/24 . 21 } counter drop
    }
}
",
        packets: "udp c2 s2:1-4; udp c3 s2:3; udp c3 s2:9; udp c4 s2:3-4; udp c5 s2:1; udp c8 s2:3-4; udp c11 s2:4; udp c12 s2:4; udp c6 s2:7; syn c2 s3:19-23; syn c9 s3:20-22; syn c2 s4:21; syn c9 s4:21",
    },
    Case {
        name: "maps",
        rules: "
table ip t {
    map m {
        type ipv4_addr : mark
        flags interval
        elements = { 10.244.1.3 : 77, 10.244.1.4-10.244.1.5 : 10 }
    }
    chain f {
        type filter hook forward priority filter; policy accept;
        meta mark set udp dport map { 1 : 10, 2-4 : 20, 5 : 30 }
        meta mark set ip saddr map @m
        meta mark 10 counter drop
        meta mark 20 counter
        meta mark 77 counter drop
        udp dport 3 counter drop
        meta mark 0 counter
    }
}
",
        packets: "udp c2 s2:1-7; udp c3 s2:1-7; udp c5 s2:9; udp c6 s2:9",
    },
    Case {
        name: "verdicts by named concatenations",
        rules: "
table ip t {
    map v {
        type ipv4_addr . inet_proto . inet_service : verdict
        elements = { 10.244.2.2 . udp . 1 : drop, 10.244.2.2 . tcp . 1 : goto x, 10.244.2.3 . udp . 2 : jump x }
    }
    chain x {
        counter
        udp dport 2 counter accept
    }
    chain f {
        type filter hook forward priority filter; policy accept;
        ip daddr . ip protocol . th dport vmap @v
        counter
    }
}
",
        packets: "udp c2 s2:1-2; syn c2 s2:1-2; udp c2 s3:1-2; syn c2 s3:1-2; ping c2 s2",
    },
    Case {
        name: "verdicts by concatenated intervals and names of devices",
        rules: "
table ip t {
    chain x {
        counter
    }
    chain f {
        type filter hook forward priority filter; policy accept;
        iifname . oifname . udp dport vmap { \"c0\" . \"s0\" . 1-3 : drop, \"s0\" . \"c0\" . 1-5 : jump x, \"c0\" . \"s0\" . 7 : continue }
        counter
    }
}
",
        packets: "udp c2 s2:1-8; udp s2 c2:1-6",
    },
    Case {
        name: "elements that packets add and renew",
        rules: "
table ip t {
    set s {
        type ipv4_addr
        size 100
        flags dynamic,timeout
        timeout 1s
    }
    set q {
        type ipv4_addr . inet_service
        size 100
        flags dynamic
    }
    chain f {
        type filter hook forward priority filter; policy accept;
        udp dport 1 add @s { ip saddr } counter
        udp dport 2 update @s { ip saddr } counter
        udp dport 3 update @s { ip saddr timeout 5s } counter
        udp dport 4 delete @s { ip saddr } counter
        udp dport 5 ip saddr @s counter drop
        udp dport 6 add @q { ip saddr . udp sport } counter
        udp dport 7 ip saddr . udp sport @q counter drop
    }
}
",
        packets: "udp c2 s2:5; udp c2 s2:1; udp c2 s2:5; udp c3 s2:2; udp c3 s2:5; udp c4 s2:3; udp c5 s2:1; udp c6 s2:2; udp c6 s2:4-5; udp c2:7 s2:6-7; udp c2:8 s2:7; @600; udp c2 s2:1; udp c3 s2:2; udp c2 s2:5; udp c3 s2:5; @1300; udp c2 s2:5; udp c3 s2:5; udp c4 s2:5; udp c5 s2:5; udp c5 s2:1; udp c5 s2:5; @1900; udp c3 s2:5; udp c4 s2:5; udp c5 s2:5",
    },
    Case {
        name: "timeouts of listed elements",
        rules: "
table ip t {
    set s {
        type ipv4_addr
        flags timeout
        timeout 1s
        elements = { 10.244.1.2, 10.244.1.3 timeout 4s, 10.244.1.4 timeout 500ms }
    }
    chain f {
        type filter hook forward priority filter; policy accept;
        ip saddr @s counter drop
        counter
    }
}
",
        packets: "udp c2 s2; udp c3 s2; udp c4 s2; @800; udp c2 s2; udp c3 s2; udp c4 s2; @1400; udp c2 s2; udp c3 s2; udp c4 s2",
    },
    Case {
        name: "a full set breaks off",
        rules: "
table ip t {
    set s {
        type inet_service
        size 3
        flags dynamic
    }
    chain f {
        type filter hook forward priority filter; policy accept;
        udp dport 1 add @s { udp sport } counter drop
        udp dport 2 update @s { udp sport } counter drop
        udp dport 3 udp sport @s counter drop
        counter
    }
}
",
        packets: "udp c2:1 s2:1; udp c2:2 s2:1; udp c2:3 s2:2; udp c2:4 s2:1-2; udp c2:1 s2:1-2; udp c2:4 s2:3; udp c2:3 s2:3",
    },
    Case {
        name: "maps that packets fill",
        rules: "
table ip t {
    map m {
        type ipv4_addr : mark
        size 100
        flags dynamic
    }
    chain f {
        type filter hook forward priority filter; policy accept;
        udp dport 1 update @m { ip saddr : 0x00000007 } counter
        udp dport 2 meta mark set ip saddr map @m
        meta mark 7 counter drop
    }
}
",
        packets: "udp c2 s2:2; udp c2 s2:1; udp c2 s2:2; udp c3 s2:2",
    },
    Case {
        name: "limits of elements",
        rules: "
table ip t {
    set s {
        type ipv4_addr
        size 100
        flags dynamic
    }
    chain f {
        type filter hook forward priority filter; policy accept;
        udp dport 1 add @s { ip saddr limit rate 1/hour burst 2 packets } counter accept
        counter drop
    }
}
",
        packets: "udp c2 s2:1; udp c2 s2:1; udp c2 s2:1; udp c2 s2:1; udp c3 s2:1; udp c3 s2:1; udp c3 s2:1",
    },
    Case {
        name: "limits above a rate of elements",
        rules: "
table ip t {
    set s {
        type ipv4_addr
        size 100
        flags dynamic,timeout
        timeout 10s
    }
    chain f {
        type filter hook forward priority filter; policy accept;
        udp dport 1 update @s { ip saddr limit rate over 2/second burst 2 packets } counter drop
        counter
    }
}
",
        packets: "udp c2 s2:1; udp c2 s2:1; udp c2 s2:1; udp c2 s2:1; udp c3 s2:1; @1300; udp c2 s2:1; udp c2 s2:1; udp c2 s2:1; udp c2 s2:1",
    },
    Case {
        name: "flags in sets and bits of masks",
        rules: "
table ip t {
    chain f {
        type filter hook forward priority filter; policy accept;
        tcp flags { syn, ack } counter drop
        ct state { new, established } counter
        meta mark and 0x3 { 1, 2 } counter drop
    }
}
",
        packets: "syn c2 s2:1; ack c2 s2:2; finack c2 s2:3; rst c2 s2:4; udp c2 s2:1",
    },
    Case {
        name: "sets of IPv6",
        rules: "
table ip6 t {
    set a {
        type ipv6_addr
        flags interval
        elements = { fd00:244:1::4, fd00:244:1::8/126 }
    }
    set k {
        type ipv6_addr . inet_service
        flags interval
        elements = { fd00:244:1::/125 . 10-12, fd00:244:1::d-fd00:244:1::f . 10 }
    }
    chain f {
        type filter hook forward priority filter; policy accept;
        ip6 saddr @a counter drop
        ip6 daddr . th dport { fd00:244:2::2 . 5, fd00:244:2::3 . 6 } counter drop
        ip6 saddr . udp dport @k counter drop
    }
}
",
        packets: "udp C2 S2:4-6; udp C2 S3:4-6; udp C4 S2; udp C8 S2; udp C11 S2:9-10; udp C12 S2:10; udp C14 S2:10-11; udp C7 S2:12-13; ping C4 S2; ping C2 S2; udp c4 s2",
    },
];
