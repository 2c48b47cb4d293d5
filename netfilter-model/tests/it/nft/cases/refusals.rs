//! Refusals.

use super::super::arms::Case;

pub(in super::super) const REFUSALS: &[Case] = &[
    Case {
        name: "icmp",
        rules: "
table ip t {
    chain f {
        type filter hook forward priority filter; policy accept;
        udp dport 1 counter reject with icmp net-unreachable
        udp dport 2 counter reject with icmp host-unreachable
        udp dport 3 counter reject with icmp prot-unreachable
        udp dport 4 counter reject with icmp port-unreachable
        udp dport 5 counter reject with icmp net-prohibited
        udp dport 6 counter reject with icmp host-prohibited
        udp dport 7 counter reject with icmp admin-prohibited
        udp dport 8 counter reject
        tcp dport 9 counter reject
        icmp type echo-request counter reject
    }
}
",
        packets: "udp c2 s2:1-8; syn c2 s2:9; ping c2 s2; udp c3 s2:1",
    },
    Case {
        name: "icmpv6",
        rules: "
table ip6 t {
    chain f {
        type filter hook forward priority filter; policy accept;
        udp dport 1 counter reject with icmpv6 no-route
        udp dport 2 counter reject with icmpv6 admin-prohibited
        udp dport 3 counter reject with icmpv6 addr-unreachable
        udp dport 4 counter reject with icmpv6 port-unreachable
        udp dport 5 counter reject with icmpv6 policy-fail
        udp dport 6 counter reject with icmpv6 reject-route
        udp dport 8 counter reject
        tcp dport 9 counter reject
        icmpv6 type echo-request counter reject
    }
}
",
        packets: "udp C2 S2:1-8; syn C2 S2:9; ping C2 S2",
    },
    Case {
        name: "icmpx",
        rules: "
table inet t {
    chain f {
        type filter hook forward priority filter; policy accept;
        udp dport 1 counter reject with icmpx port-unreachable
        udp dport 2 counter reject with icmpx admin-prohibited
        udp dport 3 counter reject with icmpx no-route
        udp dport 4 counter reject with icmpx host-unreachable
        udp dport 5 counter reject
        meta nfproto ipv4 udp dport 6 reject with icmp host-prohibited
        meta nfproto ipv6 udp dport 6 reject with icmpv6 policy-fail
        udp dport 6 counter drop
    }
}
",
        packets: "udp c2 s2:1-7; udp C2 S2:1-7",
    },
    Case {
        name: "resets",
        rules: "
table inet t {
    chain f {
        type filter hook forward priority filter; policy accept;
        tcp dport 1 counter reject with tcp reset
        meta l4proto tcp reject with tcp reset
        counter
    }
}
",
        packets: "syn c2 s2:1-2; ack c2 s2:1; finack c2 s2:1; rst c2 s2:1; udp c2 s2:1; syn C2 S2:1; ack C2 S2:1; rst C2 S2:2",
    },
    Case {
        name: "refusals at prerouting, input and output",
        rules: "
table inet t {
    chain p {
        type filter hook prerouting priority 0; policy accept;
        udp dport 1 counter reject
        tcp dport 1 counter reject with tcp reset
    }
    chain i {
        type filter hook input priority 0; policy accept;
        udp dport 2 counter reject with icmpx admin-prohibited
        tcp dport 2 reject with tcp reset
        ct state new counter
    }
    chain o {
        type filter hook output priority 0; policy accept;
        udp dport 3 counter reject
        meta l4proto icmp counter
        icmpv6 type destination-unreachable counter
        tcp flags rst counter
        ct state related counter
        ct state established counter
    }
}
",
        packets: "udp c2 s2:1; syn c2 s2:1; udp c2 s1:1-2; udp c2 c1:1-4; syn c2 c1:1-4; udp s1 s2:3-4; udp C2 S2:1; syn C2 S2:1; udp C2 C1:1-4; syn C2 C1:1-4",
    },
    Case {
        name: "refusals behind a translation",
        rules: "
table ip t {
    chain p {
        type nat hook prerouting priority dstnat; policy accept;
        udp dport 1 dnat to 10.244.2.3:81
        tcp dport 1 dnat to 10.244.2.3:81
    }
    chain f {
        type filter hook forward priority 0; policy accept;
        udp dport 81 counter reject
        tcp dport 81 counter reject with tcp reset
    }
}
",
        packets: "udp c2 s2:1; syn c2 s2:1; udp c2 s2:2",
    },
    Case {
        name: "refusals of what is not tracked, and by a chain",
        rules: "
table ip t {
    chain r {
        type filter hook prerouting priority raw; policy accept;
        udp dport 1 notrack
    }
    chain no {
        meta l4proto tcp counter reject with tcp reset
        counter reject with icmp host-prohibited
    }
    chain f {
        type filter hook forward priority 0; policy accept;
        th dport vmap { 1 : goto no, 2 : jump no }
        counter
    }
    chain late {
        type filter hook forward priority 10; policy accept;
        counter
    }
}
",
        packets: "udp c2 s2:1-3; syn c2 s2:1-3; rst c2 s2:2; ping c2 s2",
    },
    Case {
        name: "answers pass the rules",
        rules: "
table ip t {
    chain f {
        type filter hook forward priority 0; policy accept;
        udp dport 1 counter reject
        udp dport 2 counter reject with icmp admin-prohibited
    }
    chain o {
        type filter hook output priority 0; policy accept;
        icmp code admin-prohibited counter drop
        icmp type destination-unreachable counter
    }
    chain q {
        type filter hook postrouting priority 0; policy accept;
        oifname \"c0\" counter
    }
}
",
        packets: "udp c2 s2:1-3",
    },
];
