use std::net::Ipv4Addr;

use super::*;
use crate::conntrack::{Conntrack, Filter, Status, Sysctls};
use crate::time::SimTime;

const LISTED: &str = "\
root@node:~# conntrack -L
tcp      6 431999 ESTABLISHED src=10.1.0.2 dst=10.96.0.10 sport=41106 dport=80 src=10.3.0.12 dst=10.1.0.2 sport=8080 dport=41106 [ASSURED] mark=7 use=1
udp      17 29 src=10.1.0.2 dst=10.96.0.11 sport=4444 dport=53 [UNREPLIED] src=10.3.0.9 dst=192.168.0.1 sport=5353 dport=61000 mark=0 use=1
icmp     1 12 src=10.1.0.2 dst=10.3.0.12 type=8 code=0 id=7 src=10.3.0.12 dst=10.1.0.2 type=0 code=0 id=7 mark=0 zone=3 use=1
unknown  89 599 src=10.1.0.2 dst=10.3.0.12 [UNREPLIED] src=10.3.0.12 dst=10.1.0.2 mark=0 use=1
gre      47 29 src=10.1.0.2 dst=10.3.0.12 srckey=0x0 dstkey=0x1f [UNREPLIED] src=10.3.0.12 dst=10.1.0.2 srckey=0x1f dstkey=0x0 mark=0 use=1
tcp      6 60 SYN_RECV src=fd00::1 dst=fd00::2 sport=9 dport=80 src=fd00::2 dst=fd00::1 sport=80 dport=9 mark=0 use=1
conntrack v1.4.7 (conntrack-tools): 6 flow entries have been shown.
";

fn entry_lines(text: &str) -> String {
    let lines = text.lines().filter(|line| line.contains("src="));
    lines.map(|line| format!("{line}\n")).collect()
}

fn written(listings: &[Listing]) -> String {
    listings.iter().map(|listing| format!("{listing}\n")).collect()
}

#[test]
fn what_is_read_is_written_as_it_was() {
    let read = conntrack_entries(LISTED);
    assert_eq!(read.remarks, []);
    assert_eq!(written(&read.value), entry_lines(LISTED));
}

#[test]
fn other_forms_of_the_same_are_read() {
    let plain = conntrack_entries(LISTED).value;
    let extended: String = plain.iter().map(|listing| format!("{listing:#}\r\n")).collect();
    assert!(extended.starts_with("ipv4     2 tcp      6 431999 ESTABLISHED src="), "{extended}");
    assert_eq!(conntrack_entries(&extended).value, plain);
    let proc = "ipv4     2 tcp      6 119 SYN_SENT src=1.1.1.1 dst=2.2.2.2 sport=1 dport=2 \
                packets=3 bytes=180 [UNREPLIED] src=2.2.2.2 dst=1.1.1.1 sport=2 dport=1 \
                packets=0 bytes=0 mark=0 secctx=none delta-time=3 zone=0 use=2";
    let read = conntrack_entries(proc);
    assert_eq!((read.value.len(), read.remarks.len()), (1, 0));
    let numbered = format!("{} id=4242", LISTED.lines().nth(3).unwrap());
    assert_eq!(conntrack_entries(&numbered).value[0], plain[2], "id= of -o id is no ICMP id");
    let offloaded = "tcp      6 src=1.1.1.1 dst=2.2.2.2 sport=1 dport=2 src=2.2.2.2 dst=1.1.1.1 \
                     sport=2 dport=1 [OFFLOAD] mark=0 use=3";
    assert!(conntrack_entries(offloaded).value[0].assured);
}

#[test]
fn what_is_no_connection_is_remarked_on() {
    let text = "tcp 6 5 ESTABLISHED src=1.1.1.1\n\
                nonsense\n\
                tcp 6 5 DANCING src=1.1.1.1 dst=2.2.2.2 src=2.2.2.2 dst=1.1.1.1\n\
                udp 17 5 src=1.1.1.1 dst=::1 src=::1 dst=1.1.1.1\n\
                udp 17 5 src=1.1.1.1 dst=2.2.2.2 sport=1 dport=70000 src=2.2.2.2 dst=1.1.1.1\n\
                udp 17 5 src=1.1.1.1 dst=2.2.2.2 src=2.2.2.2 dst=1.1.1.1 colour=red\n\
                conntrack v1.4.6 (conntrack-tools): 9 flow entries have been shown.\n";
    let read = conntrack_entries(text);
    assert_eq!(read.value.len(), 1);
    let problems: Vec<(u32, &str)> =
        read.remarks.iter().map(|remark| (remark.line, &*remark.problem)).collect();
    assert_eq!(
        problems,
        [
            (1, "not a connection: addresses are missing"),
            (2, "not a connection: no protocol number"),
            (3, "no TCP state DANCING"),
            (4, "1.1.1.1 and ::1 are of different families"),
            (5, "70000 is no value of dport"),
            (6, "colour=red is not known and not kept"),
            (7, "9 entries were listed, 1 are read"),
        ]
    );
}

#[test]
fn listed_connections_enter_a_table_and_can_be_filtered() {
    let mut table = Conntrack::new(Sysctls::default());
    let now = SimTime::from_nanos(5_000_000_000);
    let listings = conntrack_entries(LISTED).value;
    for listing in &listings {
        table.insert(now, listing).unwrap();
        assert!(table.insert(now, listing).is_err(), "{listing}: its tuples are taken");
    }
    let mut sorted = listings.clone();
    sorted.sort_unstable();
    assert_eq!(table.list(now), sorted);
    let count = |options: &str| {
        let filter = Filter::parse(options.split_whitespace()).unwrap();
        table.entries(now).filter(|entry| filter.matches(entry)).count()
    };
    assert_eq!(count(""), 6);
    assert_eq!(count("-L -p tcp"), 2);
    assert_eq!(count("-p udp --orig-dst 10.96.0.11 --dport=53"), 1);
    assert_eq!(count("-p udp --dst-nat 10.3.0.9"), 1);
    assert_eq!(count("-g 10.3.0.12 -s 10.1.0.0/16"), 1);
    assert_eq!(count("--src-nat"), 1);
    assert_eq!(count("-m 5/5"), 1);
    assert_eq!(count("-w 3 -p icmp"), 1);
    assert_eq!(count("--state SYN_RECV -f ipv6"), 1);
    assert_eq!(count("-u ASSURED"), 1);
    assert_eq!(count("-p 89"), 1);
    assert!(Filter::parse(["--colour", "red"]).is_err());
    assert!(Filter::parse(["-s"]).is_err());
    assert!(Filter::parse(["-s", "10.0.0.0/33"]).is_err());
    let client = Ipv4Addr::new(10, 1, 0, 2);
    let answer =
        Tuple::v4(Protocol::UDP, [10, 3, 0, 9].into(), 5353, [192, 168, 0, 1].into(), 61000);
    let (entry, _) = table.lookup(now, &answer).expect("found by its answer");
    assert_eq!(entry.tuple(crate::conntrack::Direction::Original).src(), client);
    let both = [Status::SRC_NAT, Status::DST_NAT];
    assert!(both.into_iter().all(|status| entry.status().contains(status)));
}
