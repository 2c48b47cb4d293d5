use super::*;

const LISTED: &str = "\
IP Virtual Server version 1.2.1 (size=4096)
Prot LocalAddress:Port Scheduler Flags
  -> RemoteAddress:Port           Forward Weight ActiveConn InActConn
TCP  10.96.0.10:53 rr persistent 10800
  -> 10.244.1.5:53                Masq    1      3          17
  -> 10.244.2.9:53                Masq    0      0          2
TCP  10.96.0.11:80 rr persistent 360 mask 255.255.255.0 ops (flag-1,flag-2)
UDP  [fd00:10:96::a]:53 wlc
  -> [fd00:10:244::5]:53          Route   100    0          0
FWM  7 IPv6 sh
FWM  8 wrr pe sip
  -> 10.244.1.5:0                 Tunnel  1      0          0
";

#[test]
fn what_is_listed_is_written_alike() {
    let Read { value, remarks } = ipvsadm(LISTED);
    assert_eq!(remarks, []);
    assert_eq!(value.list(), LISTED);
    assert_eq!(value.services.len(), 5);
    let first = &value.services[0];
    assert_eq!(first.persistence, Some(Persistence { timeout: 10_800, len: 32 }));
    assert_eq!((first.destinations[0].active, first.destinations[0].inactive), (3, 17));
}

#[test]
fn what_is_saved_is_read_again() {
    let saved = "\
-A -t 10.96.0.10:53 -s rr -p 10800
-a -t 10.96.0.10:53 -r 10.244.1.5:53 -m -w 1
-a -t 10.96.0.10:53 -r 10.244.2.9:53 -m -w 0
-A -t 10.96.0.11:80 -s rr -p 360 -M 255.255.255.0 -o -b flag-1,flag-2
-A -u [fd00:10:96::a]:53 -s wlc
-a -u [fd00:10:96::a]:53 -r [fd00:10:244::5]:53 -g -w 100
-A -f 7 -6 -s sh
-A -f 8 -s wrr --pe sip
-a -f 8 -r 10.244.1.5:0 -i -w 1
";
    let listed = ipvsadm(LISTED).value;
    assert_eq!(listed.save(), saved);
    let Read { value, remarks } = ipvsadm(saved);
    assert_eq!((value.save().as_str(), remarks), (saved, vec![]));
}

#[test]
fn blanks_prompts_and_strange_lines() {
    let text = "\
[root@node ~]# ipvsadm -Ln
IP Virtual Server version 1.2.1 (size=1024)
Prot LocalAddress:Port Scheduler Flags
  -> RemoteAddress:Port           Forward Weight ActiveConn InActConn
TCP  10.96.0.1:443 rr\r
  -> 192.168.0.2:6443             Masq    1      0          0         \r
TCP  kubernetes:https rr
  -> 192.168.0.3:6443             Masq    1      0          0
UDP  10.96.0.10:53 rr
  -> 10.244.1.5:53                Masq    1
something else
";
    let Read { value, remarks } = ipvsadm(text);
    let lines: Vec<u32> = remarks.iter().map(|remark| remark.line).collect();
    assert_eq!(lines, [1, 7, 8, 10, 11]);
    assert_eq!(value.table_size, 1024);
    assert_eq!(value.services.len(), 2);
    assert_eq!(value.services[1].destinations[0].weight, 1);
}

#[test]
fn other_columns_are_told_apart() {
    let thresholds = "\
Prot LocalAddress:Port            Uthreshold Lthreshold ActiveConn InActConn
  -> RemoteAddress:Port
TCP  10.96.0.1:443 rr
";
    assert!(ipvsadm(thresholds).remarks.is_empty());
    let rates = "\
Prot LocalAddress:Port               Conns   InPkts  OutPkts  InBytes OutBytes
  -> RemoteAddress:Port
TCP  10.96.0.1:443                      12      340      120    45K     2M
  -> 192.168.0.2:6443                   12      340      120    45K     2M
";
    let Read { value, remarks } = ipvsadm(rates);
    assert_eq!(value.services[0].destinations.len(), 1);
    assert_eq!(remarks.len(), 2, "scheduler and weight are not shown");
}

#[test]
fn commands_of_a_script() {
    let text = "\
ipvsadm -A -t 10.96.0.1:443 -s rr -p
sudo ipvsadm --add-server --tcp-service 10.96.0.1:443 --real-server 10.0.0.1 -m -x 100 -y 80 --odd
ipvsadm -C
";
    let Read { value, remarks } = ipvsadm(text);
    let lines: Vec<u32> = remarks.iter().map(|remark| remark.line).collect();
    assert_eq!(lines, [2, 3]);
    let service = &value.services[0];
    assert_eq!(service.persistence.map(|persistence| persistence.timeout), Some(360));
    let to = &service.destinations[0];
    assert_eq!((to.port, to.weight, to.upper, to.lower), (443, 1, 100, 80));
}
