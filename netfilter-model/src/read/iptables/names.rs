//! Names of services and the like, which iptables looks up and does not keep.

/// Services by name, with their ports.
const SERVICES: [(&str, u16); 66] = [
    ("ftp-data", 20),
    ("ftp", 21),
    ("ssh", 22),
    ("telnet", 23),
    ("smtp", 25),
    ("mail", 25),
    ("time", 37),
    ("whois", 43),
    ("tacacs", 49),
    ("domain", 53),
    ("bootps", 67),
    ("bootpc", 68),
    ("tftp", 69),
    ("gopher", 70),
    ("finger", 79),
    ("http", 80),
    ("www", 80),
    ("kerberos", 88),
    ("pop3", 110),
    ("sunrpc", 111),
    ("portmapper", 111),
    ("auth", 113),
    ("nntp", 119),
    ("ntp", 123),
    ("epmap", 135),
    ("netbios-ns", 137),
    ("netbios-dgm", 138),
    ("netbios-ssn", 139),
    ("imap2", 143),
    ("imap", 143),
    ("snmp", 161),
    ("snmp-trap", 162),
    ("snmptrap", 162),
    ("bgp", 179),
    ("irc", 194),
    ("ldap", 389),
    ("https", 443),
    ("microsoft-ds", 445),
    ("kpasswd", 464),
    ("submissions", 465),
    ("ssmtp", 465),
    ("isakmp", 500),
    ("syslog", 514),
    ("shell", 514),
    ("printer", 515),
    ("route", 520),
    ("dhcpv6-client", 546),
    ("dhcpv6-server", 547),
    ("nntps", 563),
    ("submission", 587),
    ("ipp", 631),
    ("ldaps", 636),
    ("domain-s", 853),
    ("rsync", 873),
    ("ftps", 990),
    ("imaps", 993),
    ("pop3s", 995),
    ("socks", 1080),
    ("openvpn", 1194),
    ("ms-sql-s", 1433),
    ("radius", 1812),
    ("nfs", 2049),
    ("mysql", 3306),
    ("postgresql", 5432),
    ("amqp", 5672),
    ("http-alt", 8080),
];

/// Returns the port of a service.
pub(super) fn service(name: &str) -> Option<u16> {
    SERVICES.iter().find(|(known, _)| *known == name).map(|(_, port)| *port)
}

/// ICMP types by name, with their codes.
// iptables: libxt_icmp.h, icmp_codes
const ICMP: [(&str, u8, Option<u8>); 39] = [
    ("any", 255, None),
    ("echo-reply", 0, None),
    ("pong", 0, None),
    ("destination-unreachable", 3, None),
    ("network-unreachable", 3, Some(0)),
    ("host-unreachable", 3, Some(1)),
    ("protocol-unreachable", 3, Some(2)),
    ("port-unreachable", 3, Some(3)),
    ("fragmentation-needed", 3, Some(4)),
    ("source-route-failed", 3, Some(5)),
    ("network-unknown", 3, Some(6)),
    ("host-unknown", 3, Some(7)),
    ("network-prohibited", 3, Some(9)),
    ("host-prohibited", 3, Some(10)),
    ("TOS-network-unreachable", 3, Some(11)),
    ("TOS-host-unreachable", 3, Some(12)),
    ("communication-prohibited", 3, Some(13)),
    ("host-precedence-violation", 3, Some(14)),
    ("precedence-cutoff", 3, Some(15)),
    ("source-quench", 4, None),
    ("redirect", 5, None),
    ("network-redirect", 5, Some(0)),
    ("host-redirect", 5, Some(1)),
    ("TOS-network-redirect", 5, Some(2)),
    ("TOS-host-redirect", 5, Some(3)),
    ("echo-request", 8, None),
    ("ping", 8, None),
    ("router-advertisement", 9, None),
    ("router-solicitation", 10, None),
    ("time-exceeded", 11, None),
    ("ttl-exceeded", 11, None),
    ("ttl-zero-during-transit", 11, Some(0)),
    ("ttl-zero-during-reassembly", 11, Some(1)),
    ("parameter-problem", 12, None),
    ("ip-header-bad", 12, Some(0)),
    ("required-option-missing", 12, Some(1)),
    ("timestamp-request", 13, None),
    ("timestamp-reply", 14, None),
    ("address-mask-request", 17, None),
];

/// ICMPv6 types by name, with their codes.
const ICMPV6: [(&str, u8, Option<u8>); 24] = [
    ("destination-unreachable", 1, None),
    ("no-route", 1, Some(0)),
    ("communication-prohibited", 1, Some(1)),
    ("beyond-scope", 1, Some(2)),
    ("address-unreachable", 1, Some(3)),
    ("port-unreachable", 1, Some(4)),
    ("failed-policy", 1, Some(5)),
    ("reject-route", 1, Some(6)),
    ("packet-too-big", 2, None),
    ("time-exceeded", 3, None),
    ("ttl-exceeded", 3, None),
    ("ttl-zero-during-transit", 3, Some(0)),
    ("ttl-zero-during-reassembly", 3, Some(1)),
    ("parameter-problem", 4, None),
    ("bad-header", 4, Some(0)),
    ("unknown-header-type", 4, Some(1)),
    ("unknown-option", 4, Some(2)),
    ("echo-request", 128, None),
    ("ping", 128, None),
    ("echo-reply", 129, None),
    ("router-solicitation", 133, None),
    ("router-advertisement", 134, None),
    ("neighbour-solicitation", 135, None),
    ("neighbour-advertisement", 136, None),
];

/// Returns type and code of an ICMP message of this family; unambiguous beginnings will do.
pub(super) fn icmp(family: crate::tuple::Family, name: &str) -> Option<(u8, Option<u8>)> {
    let names = match family {
        crate::tuple::Family::V4 => &ICMP[..],
        crate::tuple::Family::V6 => &ICMPV6[..],
    };
    let name = name.replace("neighbor", "neighbour");
    let begins = |known: &str| {
        known.get(..name.len()).is_some_and(|start| start.eq_ignore_ascii_case(&name))
    };
    let found = |(_, kind, code): &(&str, u8, Option<u8>)| (*kind, *code);
    let exact = names.iter().find(|(known, ..)| known.eq_ignore_ascii_case(&name));
    if let Some(exact) = exact {
        return Some(found(exact));
    }
    let mut candidates = names.iter().filter(|(known, ..)| begins(known));
    let first = candidates.next()?;
    candidates.next().is_none().then(|| found(first))
}

/// Returns the number of a level of the system log.
pub(super) fn log_level(name: &str) -> Option<u8> {
    const LEVELS: [(&str, u8); 11] = [
        ("emerg", 0),
        ("panic", 0),
        ("alert", 1),
        ("crit", 2),
        ("error", 3),
        ("err", 3),
        ("warning", 4),
        ("warn", 4),
        ("notice", 5),
        ("info", 6),
        ("debug", 7),
    ];
    let known = |(level, _): &&(&str, u8)| level.eq_ignore_ascii_case(name);
    let named = LEVELS.iter().find(known).map(|(_, number)| *number);
    named.or_else(|| name.parse().ok().filter(|level| *level <= 7))
}
