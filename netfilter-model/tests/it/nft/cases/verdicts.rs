//! How verdicts flow.

use super::super::arms::Case;

pub(in super::super) const VERDICTS: &[Case] = &[
    Case {
        name: "jump and its return",
        rules: "
table ip t {
    chain j {
        udp dport 1 counter return
        udp dport 2 counter drop
        udp dport 3 counter accept
    }
    chain f {
        type filter hook forward priority filter; policy accept;
        jump j
        counter
        udp dport 1-4 counter drop
    }
}
",
        packets: "udp c2 s2:1-6",
    },
    Case {
        name: "goto returns past its caller",
        rules: "
table ip t {
    chain g {
        udp dport 1 counter return
        udp dport 2 counter drop
    }
    chain h {
        goto g
        counter drop
    }
    chain f {
        type filter hook forward priority filter; policy accept;
        udp dport 1-3 counter jump h
        counter
        udp dport 4 goto g
        counter drop
    }
}
",
        packets: "udp c2 s2:1-6",
    },
    Case {
        name: "the end after goto is the policy",
        rules: "
table ip t {
    chain g {
        udp dport 1 counter accept
    }
    chain f {
        type filter hook forward priority filter; policy drop;
        udp dport 1-2 counter goto g
        udp dport 1-3 counter accept
    }
}
",
        packets: "udp c2 s2:1-5",
    },
    Case {
        name: "return in a base chain is the policy",
        rules: "
table ip t {
    chain f {
        type filter hook forward priority filter; policy drop;
        udp dport 1 counter return
        udp dport 2 counter continue
        counter accept
    }
}
",
        packets: "udp c2 s2:1-3",
    },
    Case {
        name: "verdict map with a miss",
        rules: "
table ip t {
    map m {
        type inet_service : verdict
        elements = { 1 : accept, 2 : drop, 3 : continue, 4 : return, 5 : jump j, 6 : goto j }
    }
    chain j {
        udp dport 5-6 counter return
    }
    chain r {
        udp dport vmap @m
        counter
        udp dport { 3, 5, 6, 7 } counter accept
    }
    chain f {
        type filter hook forward priority filter; policy drop;
        jump r
        udp dport { 4, 6 } counter accept
        counter
    }
}
",
        packets: "udp c2 s2:1-9",
    },
    Case {
        name: "anonymous verdict map with intervals and a catch-all",
        rules: "
table ip t {
    chain f {
        type filter hook forward priority filter; policy drop;
        udp dport vmap { 1-3 : accept, 4 : drop, 6-65535 : continue, * : return }
        counter accept
    }
}
",
        packets: "udp c2 s2:1-8",
    },
    Case {
        name: "accept ends one base chain only",
        rules: "
table ip t {
    chain late {
        type filter hook forward priority 10; policy accept;
        counter
        udp dport 1 counter drop
    }
    chain early {
        type filter hook forward priority -10; policy accept;
        udp dport 1-2 counter accept
        udp dport 3 counter drop
    }
}
table inet u {
    chain f {
        type filter hook forward priority 20; policy drop;
        udp dport != 4 counter accept
    }
}
",
        packets: "udp c2 s2:1-5",
    },
    Case {
        name: "same priority: which chain runs first",
        rules: "
table ip t {
    chain a {
        type filter hook forward priority 0; policy accept;
        meta mark 7 counter drop
        meta mark set 8
    }
    chain b {
        type filter hook forward priority 0; policy accept;
        meta mark 8 counter drop
        meta mark set 7
    }
}
",
        packets: "udp c2 s2:1-2",
    },
    Case {
        name: "same priority in two tables",
        rules: "
table ip t {
    chain a {
        type filter hook forward priority 0; policy accept;
        meta mark 7 counter drop
        meta mark set 8
    }
}
table inet u {
    chain b {
        type filter hook forward priority 0; policy accept;
        meta mark 8 counter drop
        meta mark set 7
    }
}
",
        packets: "udp c2 s2:1-2",
    },
    Case {
        name: "all five hooks",
        rules: "
table inet t {
    chain pre {
        type filter hook prerouting priority raw; policy accept;
        udp dport 1 counter drop
        meta l4proto { tcp, udp, icmp } counter
    }
    chain here {
        type filter hook input priority filter; policy accept;
        udp dport 2 counter drop
        meta l4proto { tcp, udp, icmp } counter
    }
    chain middle {
        type filter hook forward priority filter; policy accept;
        udp dport 3 counter drop
        meta l4proto { tcp, udp, icmp } counter
    }
    chain away {
        type filter hook output priority filter; policy accept;
        udp dport 4 counter drop
        meta l4proto { tcp, udp, icmp } counter
    }
    chain post {
        type filter hook postrouting priority filter; policy accept;
        udp dport 5 counter drop
        meta l4proto { tcp, udp, icmp } counter
    }
}
",
        packets: "udp c2 s2:1-6; udp c2 c1:1-6; udp s1 s2:1-6; syn c2 s1:1-3; udp C2 S2:1-6; udp C2 C1:1-6; udp S1 S2:1-6",
    },
    Case {
        name: "a dormant table does not run",
        rules: "
table ip t {
    flags dormant
    chain f {
        type filter hook forward priority filter; policy drop;
    }
}
",
        packets: "udp c2 s2:1",
    },
    Case {
        name: "jumps fifteen deep",
        rules: "
table ip t {
    chain j14 {
        udp dport 1 counter drop
        counter
    }
    chain j13 {
        jump j14
        counter
    }
    chain j12 {
        jump j13
        counter
    }
    chain j11 {
        jump j12
        counter
    }
    chain j10 {
        jump j11
        counter
    }
    chain j9 {
        jump j10
        counter
    }
    chain j8 {
        jump j9
        counter
    }
    chain j7 {
        jump j8
        counter
    }
    chain j6 {
        jump j7
        counter
    }
    chain j5 {
        jump j6
        counter
    }
    chain j4 {
        jump j5
        counter
    }
    chain j3 {
        jump j4
        counter
    }
    chain j2 {
        jump j3
        counter
    }
    chain j1 {
        jump j2
        counter
    }
    chain j0 {
        jump j1
        counter
    }
    chain f {
        type filter hook forward priority filter; policy accept;
        jump j0
        counter
    }
}
",
        packets: "udp c2 s2:1-2",
    },
    Case {
        name: "hops used up before forward",
        rules: "
table ip t {
    chain p {
        type filter hook prerouting priority filter; policy accept;
        udp dport 1 ip ttl set 9
        counter
    }
    chain f {
        type filter hook forward priority filter; policy accept;
        counter
        ip ttl < 5 counter drop
    }
}
",
        packets: "udp c2 s2:1-2 ttl=1; udp c2 s2:1-2 ttl=5; udp c2 s2:1-2 ttl=6",
    },
    Case {
        name: "what no route leads to",
        rules: "
table ip t {
    chain f {
        type filter hook forward priority filter; policy accept;
        counter
    }
}
",
        packets: "udp c11 v9:1; syn c12 v9:2; ping c13 v9",
    },
];
