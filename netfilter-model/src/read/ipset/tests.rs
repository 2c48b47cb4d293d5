use super::*;

fn saved(text: &str) -> (String, Vec<(u32, String)>) {
    let Read { value, remarks } = ipset(text);
    let remarks = remarks.into_iter().map(|remark| (remark.line, remark.problem)).collect();
    (value.save(SimTime::ZERO), remarks)
}

#[test]
fn saved_sets_are_read_and_written_sorted() {
    let text = "\
create VIPS hash:ip,port family inet hashsize 1024 maxelem 65536 bucketsize 12 initval 0x01020304
add VIPS 10.96.0.10,udp:53
add VIPS 10.96.0.10,tcp:53
add VIPS 10.96.0.1,tcp:443
create PORTS bitmap:port range 0-65535
add PORTS 30001
create ALL list:set size 8
add ALL VIPS
";
    let sorted = "\
create VIPS hash:ip,port family inet hashsize 1024 maxelem 65536 bucketsize 12 initval 0x01020304
add VIPS 10.96.0.1,tcp:443
add VIPS 10.96.0.10,tcp:53
add VIPS 10.96.0.10,udp:53
create PORTS bitmap:port range 0-65535
add PORTS 30001
create ALL list:set size 8
add ALL VIPS
";
    assert_eq!(saved(text), (sorted.to_owned(), vec![]));
    assert_eq!(saved(sorted), (sorted.to_owned(), vec![]));
}

#[test]
fn a_listing_gives_the_same_sets() {
    let listing = "\
root@node-1:~# ipset -L
Name: VIPS
Type: hash:ip,port
Revision: 5
Header: family inet hashsize 1024 maxelem 65536 timeout 100
Size in memory: 440
References: 2
Number of entries: 2
Members:
10.96.0.10,udp:53 timeout 30
10.96.0.1,tcp:443 timeout 0 comment \"the API\"

Name: NETS
Type: hash:net
Revision: 7
Header: family inet6 hashsize 1024 maxelem 65536
Size in memory: 1240
References: 0
Number of entries: 1
Members:
2001:db8::/32 nomatch
root@node-1:~#
";
    let expected = "\
create VIPS hash:ip,port family inet hashsize 1024 maxelem 65536 timeout 100
add VIPS 10.96.0.1,tcp:443 timeout 0 comment \"the API\"
add VIPS 10.96.0.10,udp:53 timeout 30
create NETS hash:net family inet6 hashsize 1024 maxelem 65536
add NETS 2001:db8::/32 nomatch
";
    let (text, remarks) = saved(listing);
    assert_eq!(text, expected);
    let prompt = "a shell's prompt or command, not its output".to_owned();
    assert_eq!(remarks, [(1, prompt.clone()), (22, prompt)]);
}

#[test]
fn what_is_missing_from_a_listing_makes_a_set_incomplete() {
    let text =
        "Name: a\nType: hash:ip\nHeader: family inet\nNumber of entries: 3\nMembers:\n1.2.3.4\n";
    let Read { value, remarks } = ipset(text);
    assert!(!value.get("a").unwrap().is_complete());
    assert_eq!(remarks[0].line, 1);
    assert!(remarks[0].problem.contains("says 3 entries and shows 1"), "{remarks:?}");
    let terse = ipset("Name: a\nType: hash:ip\nHeader: family inet\nNumber of entries: 3\n");
    assert!(!terse.value.get("a").unwrap().is_complete());
}

#[test]
fn restore_takes_more_than_save_gives() {
    let text = "\
# made by hand
create a hash:ip -exist
-exist add a 10.0.0.1-10.0.0.3
add a 10.0.0.1 -exist
del a 10.0.0.2
-N b nethash
-A b 10.0.0.0/8
swap a b
destroy other
flush
COMMIT
$ sudo ipset add a 192.168.0.0/16
";
    let expected = "\
create a hash:net family inet hashsize 1024 maxelem 65536
add a 10.0.0.0/8
add a 192.168.0.0/16
create b hash:ip family inet hashsize 1024 maxelem 65536
add b 10.0.0.1
add b 10.0.0.3
";
    let (text, remarks) = saved(text);
    assert_eq!(text, expected);
    let lines: Vec<u32> = remarks.iter().map(|(line, _)| *line).collect();
    assert_eq!(lines, [9, 10]);
}

#[test]
fn what_cannot_be_read_is_told_and_the_rest_is_read() {
    let text = "\
create a hash:ip family inet
add a 10.0.0.1
add a nonsense
add missing 10.0.0.1
create odd hash:unknown family inet
add odd anything
what is this
create b hash:ip family inet bitmask 255.0.255.0
add b 10.0.0.1
add a 10.0.0.1
add a 10.0.0.2";
    let Read { value, remarks } = ipset(text);
    let lines: Vec<u32> = remarks.iter().map(|remark| remark.line).collect();
    assert_eq!(lines, [3, 4, 5, 7, 8, 10]);
    let a = value.get("a").unwrap();
    assert_eq!((a.len(), a.is_complete()), (2, false));
    assert!(value.get("odd").is_none() && value.get("b").is_none());
}

#[test]
fn ranges_do_not_grow_without_end() {
    let mut text = "create a hash:ip maxelem 4294967295\n".to_owned();
    for n in 0..40 {
        text.push_str(&format!("add a {n}.0.0.0/12 -exist\n"));
    }
    text.push_str("add a 99.0.0.1\n");
    let Read { value, remarks } = ipset(&text);
    assert!(value.get("a").unwrap().len() < 1 << 21);
    assert_eq!(remarks.len(), 39, "each but the first is too much");
}

#[test]
fn a_member_whose_name_begins_like_a_listing_is_a_member() {
    let text =
        "Name: all\nType: list:set\nHeader: size 8\nNumber of entries: 1\nMembers:\nName:b\n";
    let (saved, remarks) = saved(text);
    assert_eq!(saved, "create all list:set size 8\nadd all Name:b\n");
    assert_eq!(remarks, []);
}
