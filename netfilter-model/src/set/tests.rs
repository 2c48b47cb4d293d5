use std::net::Ipv4Addr;

use proptest::prelude::*;

use super::*;
use crate::device::DeviceName;
use crate::packet::{Packet, TcpFlags};
use crate::prefix::Prefix;
use crate::rule::SetSide::{Destination as DST, Source as SRC};
use crate::testing::{CLIENT, REMOTE_POD, VIP, tcp, udp};
use crate::tuple::{Protocol, Tuple};

const NOW: SimTime = SimTime::ZERO;

fn second(n: u64) -> SimTime {
    SimTime::from_nanos(n * 1_000_000_000)
}

fn sight(packet: &Packet) -> Sight<'_> {
    let name = |name| DeviceName::parse(name).ok();
    Sight { packet, in_dev: name("cni0"), out_dev: name("eth0"), source: Some([2; 6]) }
}

fn set(kind: SetKind, elements: &[&str]) -> Set {
    with_header(Header::new(kind), elements)
}

fn with_header(header: Header, elements: &[&str]) -> Set {
    let mut set = Set::new("s", header);
    for text in elements {
        for element in set.parse_elements(text).unwrap() {
            set.add(&element, false, NOW).unwrap_or_else(|error| panic!("{text}: {error}"));
        }
    }
    set
}

fn sets(all: impl IntoIterator<Item = Set>) -> Sets {
    let mut sets = Sets::default();
    all.into_iter().for_each(|set| sets.insert(set));
    sets
}

/// Asks the set `s`.
#[track_caller]
fn check(set: &Set, sides: &[SetSide], packet: &Packet, expected: bool) {
    let sets = sets([set.clone()]);
    assert_eq!(sets.test("s", sides, false, &sight(packet), NOW), Some(expected), "{packet:?}");
}

fn to(dst: Ipv4Addr, port: u16) -> Packet {
    tcp((CLIENT, 1000), (dst, port), TcpFlags::SYN)
}

#[test]
fn sides_choose_source_or_destination_of_each_dimension() {
    let ips = set(SetKind::HashIp, &["10.244.1.2"]);
    check(&ips, &[SRC], &to(VIP, 80), true);
    check(&ips, &[DST], &to(VIP, 80), false);
    let pairs = set(SetKind::HashIpPort, &["10.96.0.10,80", "10.244.1.2,1000"]);
    check(&pairs, &[DST, DST], &to(VIP, 80), true);
    check(&pairs, &[DST, SRC], &to(VIP, 80), false);
    check(&pairs, &[SRC, SRC], &to(VIP, 80), true);
    check(&pairs, &[DST], &to(VIP, 80), false);
    let loops = set(SetKind::HashIpPortIp, &["10.96.0.10,tcp:80,10.244.1.2"]);
    check(&loops, &[DST, DST, SRC], &to(VIP, 80), true);
    check(&loops, &[DST, DST, DST], &to(VIP, 80), false);
}

#[test]
fn a_port_is_of_its_protocol_but_in_a_bitmap() {
    let pairs = set(SetKind::HashIpPort, &["10.96.0.10,udp:53", "10.96.0.10,icmp:echo-request"]);
    check(&pairs, &[DST, DST], &udp((CLIENT, 1), (VIP, 53)), true);
    check(&pairs, &[DST, DST], &to(VIP, 53), false);
    let echo = Tuple::v4(Protocol::ICMP, CLIENT, 7, VIP, 8 << 8);
    check(&pairs, &[DST, DST], &Packet::icmp_echo(1, echo), true);
    let mut header = Header::new(SetKind::BitmapPort);
    header.range = Some((0, 1000));
    let ports = with_header(header, &["53", "60-62"]);
    for (packet, expected) in [
        (udp((CLIENT, 1), (VIP, 53)), true),
        (to(VIP, 53), true),
        (to(VIP, 62), true),
        (to(VIP, 63), false),
        (Packet::icmp_echo(1, Tuple::v4(Protocol::ICMP, CLIENT, 7, VIP, 53)), false),
    ] {
        check(&ports, &[DST], &packet, expected);
    }
}

#[test]
fn the_most_specific_network_decides() {
    let nets = set(SetKind::HashNet, &["10.244.0.0/16", "10.244.1.0/24 nomatch", "10.244.1.2"]);
    check(&nets, &[SRC], &to(VIP, 80), true);
    check(&nets, &[DST], &to(Ipv4Addr::new(10, 244, 1, 3), 80), false);
    check(&nets, &[DST], &to(REMOTE_POD, 80), true);
    check(&nets, &[DST], &to(VIP, 80), false);
    let sets = sets([nets]);
    let exception = to(Ipv4Addr::new(10, 244, 1, 3), 80);
    let turned = |packet: &Packet| sets.test("s", &[DST], true, &sight(packet), NOW);
    assert_eq!(turned(&exception), Some(true), "--return-nomatch");
    assert_eq!(turned(&to(REMOTE_POD, 80)), Some(false));
}

#[test]
fn networks_with_ports_addresses_devices() {
    let pairs = set(SetKind::HashNetPort, &["10.96.0.0/16,tcp:80"]);
    check(&pairs, &[DST, DST], &to(VIP, 80), true);
    check(&pairs, &[DST, DST], &to(VIP, 81), false);
    let triples = set(SetKind::HashIpPortNet, &["10.96.0.10,80,10.244.0.0/16"]);
    check(&triples, &[DST, DST, SRC], &to(VIP, 80), true);
    let both = set(SetKind::HashNetNet, &["10.96.0.0/16,10.244.0.0/16"]);
    check(&both, &[DST, SRC], &to(VIP, 80), true);
    check(&both, &[SRC, DST], &to(VIP, 80), false);
    let devices = set(SetKind::HashNetIface, &["0.0.0.0/0,cni0", "10.96.0.0/16,eth0"]);
    check(&devices, &[SRC, SRC], &to(VIP, 80), true);
    check(&devices, &[DST, DST], &to(VIP, 80), true);
    check(&devices, &[DST, SRC], &to(VIP, 80), false);
    let wildcard = set(SetKind::HashNetIface, &["10.96.0.0/16,eth wildcard"]);
    check(&wildcard, &[DST, DST], &to(VIP, 80), true);
}

#[test]
fn the_beginning_of_a_name_takes_in_what_is_added_later() {
    let mut devices = set(SetKind::HashNetIface, &["10.0.0.0/8,eth0", "10.0.0.0/8,eth wildcard"]);
    let later = devices.parse_elements("10.0.0.0/8,eth1").unwrap();
    assert_eq!(devices.add(&later[0], false, NOW), Err(SetError::Exists));
    let saved = devices.save(NOW);
    assert!(saved.ends_with("10.0.0.0/8,eth0\nadd s 10.0.0.0/8,eth wildcard\n"), "{saved}");
}

#[test]
fn ipv6_is_a_family_like_the_other() {
    let v6 = |kind, elements| with_header(Header { v6: true, ..Header::new(kind) }, elements);
    let address = |text: &str| text.parse::<std::net::Ipv6Addr>().unwrap();
    let (src, dst) = (address("2001:db8:1::2"), address("2001:db8:2::80"));
    let packet = Packet::tcp(1, Tuple::v6(Protocol::TCP, src, 7, dst, 80), TcpFlags::SYN);
    let nets = v6(SetKind::HashNet, &["2001:db8::/32", "2001:db8:2::/48 nomatch"]);
    check(&nets, &[SRC], &packet, true);
    check(&nets, &[DST], &packet, false);
    let pairs = v6(SetKind::HashIpPort, &["2001:db8:2::80,tcp:80"]);
    check(&pairs, &[DST, DST], &packet, true);
    check(&pairs, &[DST, DST], &to(VIP, 80), false);
    let saved = nets.save(NOW);
    assert!(saved.contains("family inet6") && saved.contains("2001:db8:2::/48 nomatch"), "{saved}");
}

#[test]
fn marks_and_hardware_addresses() {
    let marked = Packet { mark: 0x14, ..to(VIP, 80) };
    let mut header = Header::new(SetKind::HashIpMark);
    header.markmask = Some(0xf0);
    check(&with_header(header, &["10.244.1.2,0x10"]), &[SRC, SRC], &marked, true);
    let macs = set(SetKind::HashMac, &["02:02:02:02:02:02"]);
    check(&macs, &[SRC], &marked, true);
    let sets = sets([macs]);
    assert_eq!(sets.test("s", &[DST], false, &sight(&marked), NOW), None);
    assert_eq!(sets.test("other", &[DST], false, &sight(&marked), NOW), None, "unknown");
}

#[test]
fn a_set_of_the_other_family_holds_nothing() {
    let mut header = Header::new(SetKind::HashNet);
    header.v6 = true;
    check(&with_header(header, &["fd00::/8"]), &[SRC], &to(VIP, 80), false);
}

#[test]
fn elements_are_refused_as_by_the_kernel() {
    let add = |set: &mut Set, text: &str| {
        let elements = set.parse_elements(text).unwrap();
        elements.iter().try_for_each(|element| set.add(element, false, NOW))
    };
    let mut nets = set(SetKind::HashNet, &["10.0.0.0/8"]);
    assert_eq!(add(&mut nets, "0.0.0.0/0"), Err(SetError::ZeroPrefix));
    assert_eq!(add(&mut nets, "10.1.2.3/8"), Err(SetError::Exists));
    assert_eq!(
        nets.delete(&nets.parse_elements("11.0.0.0/8").unwrap()[0], NOW),
        Err(SetError::Missing)
    );
    let mut header = Header::new(SetKind::HashIp);
    header.maxelem = 3;
    let mut few = with_header(header, &["10.0.0.0/31"]);
    assert_eq!(add(&mut few, "10.0.1.0/31"), Err(SetError::Full));
    assert_eq!(few.len(), 3);
    let mut header = Header::new(SetKind::BitmapPort);
    header.range = Some((10, 20));
    assert_eq!(add(&mut with_header(header, &[]), "21"), Err(SetError::Range));
}

#[test]
fn a_range_of_networks_is_cut_into_prefixes() {
    let nets = set(SetKind::HashNet, &["10.0.0.3-10.0.0.9"]);
    let texts: Vec<String> = nets.elements(NOW).iter().map(Element::to_string).collect();
    assert_eq!(texts, ["10.0.0.3", "10.0.0.4/30", "10.0.0.8/31"]);
    let all = nets.parse_elements("0.0.0.0-255.255.255.255").unwrap();
    assert_eq!(all[0].to_string(), "0.0.0.0/0");
}

fn timed(timeout: u32) -> Header {
    Header { timeout: Some(timeout), ..Header::new(SetKind::HashIp) }
}

#[test]
fn timeouts_end_by_themselves() {
    let set = with_header(timed(60), &["10.244.1.2", "10.96.0.10 timeout 0", "10.0.0.9 timeout 5"]);
    let sets = sets([set]);
    let test = |dst, at| sets.test("s", &[DST], false, &sight(&to(dst, 80)), second(at));
    assert_eq!(test(CLIENT, 60), Some(true));
    assert_eq!(test(CLIENT, 61), Some(false));
    assert_eq!(test(VIP, 1_000_000), Some(true));
    assert_eq!(sets.get("s").unwrap().elements(second(3)).len(), 3);
    assert_eq!(sets.get("s").unwrap().elements(second(6)).len(), 2);
}

fn target(add: Option<&[SetSide]>, delete: Option<&[SetSide]>) -> SetTarget {
    let with = |sides: &[SetSide]| (Arc::from("s"), sides.to_vec());
    SetTarget {
        add: add.map(with),
        delete: delete.map(with),
        exist: false,
        timeout: None,
        map: None,
    }
}

#[test]
fn packets_add_and_delete_themselves() {
    let mut sets = sets([with_header(timed(60), &[])]);
    let packet = to(VIP, 80);
    let test = |sets: &Sets, at| sets.test("s", &[SRC], false, &sight(&packet), second(at));
    let add = target(Some(&[SRC]), None);
    sets.apply(&add, &sight(&packet), NOW);
    assert_eq!(test(&sets, 60), Some(true));
    sets.apply(&add, &sight(&packet), second(30));
    assert_eq!(test(&sets, 61), Some(false), "without --exist the timeout stays");
    let mut renew = add.clone();
    renew.exist = true;
    renew.timeout = Some(100);
    sets.apply(&renew, &sight(&packet), second(40));
    assert_eq!(test(&sets, 140), Some(true));
    sets.apply(&target(None, Some(&[SRC])), &sight(&packet), second(41));
    assert_eq!(test(&sets, 42), Some(false));
}

#[test]
fn a_packet_adds_a_network_of_the_longest_length() {
    let mut sets = sets([set(SetKind::HashNet, &["192.168.0.0/16", "172.16.0.0/24"])]);
    let packet = to(VIP, 80);
    sets.apply(&target(Some(&[DST]), None), &sight(&packet), NOW);
    let net = Element::new(vec![Part::Net(Prefix::new(VIP.into(), 24))]);
    assert!(sets.get("s").unwrap().contains(&net, NOW));
}

#[test]
fn a_list_is_asked_in_its_order() {
    let mut list = Set::new("s", Header::new(SetKind::ListSet));
    for name in ["one", "two"] {
        list.add(&Element::new(vec![Part::set(name)]), false, NOW).unwrap();
    }
    let named = |name: &str, header, elements: &[&str]| {
        let mut set = with_header(header, elements);
        set.rename(name);
        set
    };
    let one = named("one", Header::new(SetKind::HashIp), &["10.244.1.2"]);
    let two = named("two", Header::new(SetKind::HashIpPort), &["10.96.0.10,80"]);
    let mut sets = sets([one, two, list]);
    let packet = to(VIP, 80);
    let test = |sets: &Sets, sides: &[SetSide]| sets.test("s", sides, false, &sight(&packet), NOW);
    assert_eq!(test(&sets, &[SRC]), Some(true));
    assert_eq!(test(&sets, &[DST]), Some(false), "one side is too few for the second set");
    assert_eq!(test(&sets, &[DST, DST]), Some(true));
    sets.apply(&target(Some(&[DST]), None), &sight(&packet), NOW);
    assert_eq!(sets.get("one").unwrap().len(), 2, "the first set that takes it");
    sets.remove("two");
    assert_eq!(test(&sets, &[DST, DST]), Some(true));
    assert_eq!(sets.test("s", &[DST], false, &sight(&to(REMOTE_POD, 1)), NOW), None);
}

#[test]
fn swapped_sets_keep_their_names() {
    let mut a = set(SetKind::HashIp, &["10.0.0.1"]);
    a.rename("a");
    let mut b = set(SetKind::HashNet, &["10.0.0.0/8"]);
    b.rename("b");
    let mut sets = sets([a, b]);
    assert!(sets.swap("a", "b"));
    assert_eq!(sets.get("a").unwrap().header().kind, SetKind::HashNet);
    assert_eq!(sets.get("b").unwrap().name().as_ref(), "b");
    assert!(sets.remove("a"));
    assert!(sets.get("b").is_some() && sets.len() == 1);
}

#[test]
fn sets_are_saved_in_ipsets_words() {
    let mut header = Header::new(SetKind::HashNet);
    header.timeout = Some(60);
    header.other = vec!["counters".into(), "comment".into()];
    let nets = with_header(
        header,
        &["10.0.0.0/8 nomatch comment \"a b\" timeout 7", "10.1.0.0/16 timeout 0"],
    );
    let expected = "\
create s hash:net family inet hashsize 1024 maxelem 65536 timeout 60 counters comment
add s 10.0.0.0/8 timeout 7 nomatch comment \"a b\"
add s 10.1.0.0/16 timeout 0
";
    assert_eq!(nets.save(NOW), expected);
    let ports = set(
        SetKind::HashIpPort,
        &["10.0.0.1,udp:53", "10.0.0.1,icmp:8/0", "10.0.0.1,icmp:99/7", "10.0.0.1,77:0"],
    );
    let expected = "\
create s hash:ip,port family inet hashsize 1024 maxelem 65536
add s 10.0.0.1,icmp:echo-request
add s 10.0.0.1,icmp:99/7
add s 10.0.0.1,udp:53
add s 10.0.0.1,77:0
";
    assert_eq!(ports.save(NOW), expected);
}

/// What a set says, by looking at each element.
fn by_looking(elements: &[Element], kind: SetKind, key: &[Part]) -> bool {
    let depth = |element: &Element| {
        let mut lens = [0; 2];
        let mut at = 0;
        for (part, asked) in element.parts.iter().zip(key) {
            match (part, asked) {
                (Part::Net(net), Part::Net(host)) if net.contains(host.address()) => {
                    lens[at] = net.len() + 1;
                    at = 1;
                }
                (part, asked) if part == asked => {}
                _ => return None,
            }
        }
        Some(lens)
    };
    let found = elements.iter().filter_map(|element| Some((depth(element)?, element)));
    let best = found.max_by_key(|(lens, _)| *lens);
    let _ = kind;
    best.is_some_and(|(_, element)| !element.nomatch)
}

fn small_address() -> impl Strategy<Value = Ipv4Addr> {
    (0..4_u32, 0..4_u32).prop_map(|(a, b)| Ipv4Addr::from_bits(0x0a00_0000 | a << 8 | b))
}

fn part(dimension: Dimension, kind: SetKind) -> BoxedStrategy<Part> {
    match dimension {
        Dimension::Ip => small_address().prop_map(|ip| Part::Net(Prefix::host(ip.into()))).boxed(),
        Dimension::Net => {
            (small_address(), prop::sample::select(vec![8_u8, 22, 23, 24, 30, 31, 32]))
                .prop_map(|(ip, len)| Part::Net(Prefix::new(ip.into(), len)))
                .boxed()
        }
        Dimension::Port => {
            let protocol = prop::sample::select(vec![Protocol::TCP, Protocol::UDP]);
            let bitmap = kind == SetKind::BitmapPort;
            (protocol, 0..4_u16)
                .prop_map(move |(protocol, port)| Part::Port((!bitmap).then_some(protocol), port))
                .boxed()
        }
        Dimension::Mac => (0..4_u8).prop_map(|n| Part::Mac([n, 0, 0, 0, 0, 1])).boxed(),
        Dimension::Mark => (0..4_u32).prop_map(Part::Mark).boxed(),
        // The devices of one network hide those of wider ones, which the reference does not know.
        Dimension::Iface => Just(Part::Device {
            name: DeviceName::parse("cni0").unwrap(),
            physdev: false,
            wildcard: false,
        })
        .boxed(),
        Dimension::Set => Just(Part::set("none")).boxed(),
    }
}

fn elements(kind: SetKind) -> impl Strategy<Value = Vec<Element>> {
    let parts: Vec<_> = kind.dimensions().iter().map(|d| part(*d, kind)).collect();
    let nomatch = if kind.has_networks() { any::<bool>().boxed() } else { Just(false).boxed() };
    let element =
        (parts, nomatch).prop_map(|(parts, nomatch)| Element { nomatch, ..Element::new(parts) });
    prop::collection::vec(element, 0..20)
}

fn any_kind() -> impl Strategy<Value = SetKind> {
    let kinds = SetKind::ALL.into_iter().filter(|kind| *kind != SetKind::ListSet);
    prop::sample::select(kinds.collect::<Vec<_>>())
}

/// A packet whose fields are those that the parts of a set are made of.
fn any_packet() -> impl Strategy<Value = Packet> {
    let ends = (small_address(), 0..4_u16, small_address(), 0..4_u16);
    (ends, any::<bool>(), 0..4_u32).prop_map(|((src, sport, dst, dport), udp, mark)| {
        let packet = if udp {
            crate::testing::udp((src, sport), (dst, dport))
        } else {
            tcp((src, sport), (dst, dport), TcpFlags::SYN)
        };
        Packet { mark, ..packet }
    })
}

proptest! {
    #[test]
    fn lookups_find_what_looking_at_each_element_finds(
        (kind, elements) in any_kind().prop_flat_map(|kind| (Just(kind), elements(kind))),
        gone in prop::collection::vec(any::<prop::sample::Index>(), 0..6),
        packets in prop::collection::vec((any_packet(), 0..4_u8, any::<[bool; 3]>()), 1..20),
    ) {
        let mut set = Set::new("s", Header { range: Some((0, u32::MAX)), ..Header::new(kind) });
        let mut reference: Vec<Element> = Vec::new();
        for element in elements {
            let added = set.add(&element, false, NOW);
            let known = reference.iter().any(|other| other.parts == element.parts);
            prop_assert_eq!(added, if known { Err(SetError::Exists) } else { Ok(()) });
            if !known {
                reference.push(element);
            }
        }
        for at in gone {
            if !reference.is_empty() {
                let element = reference.remove(at.index(reference.len()));
                prop_assert_eq!(set.delete(&element, NOW), Ok(()));
            }
        }
        let sets = sets([set]);
        for (packet, mac, sides) in packets {
            let sides = sides.map(|source| if source { SRC } else { DST });
            let sides = if kind == SetKind::HashMac { [SRC; 3] } else { sides };
            let sides = if kind == SetKind::HashIpMac { [sides[0], SRC, SRC] } else { sides };
            let sight = Sight { source: Some([mac, 0, 0, 0, 0, 1]), ..sight(&packet) };
            let tuple = &packet.tuple;
            let key: Vec<Part> = kind.dimensions().iter().zip(sides).map(|(dimension, side)| {
                let source = side == SRC;
                match dimension {
                    Dimension::Ip | Dimension::Net => {
                        Part::Net(Prefix::host(if source { tuple.src() } else { tuple.dst() }))
                    }
                    Dimension::Port => {
                        let port = if source { tuple.src_part } else { tuple.dst_part };
                        Part::Port((kind != SetKind::BitmapPort).then_some(tuple.protocol), port)
                    }
                    Dimension::Iface => {
                        let name = if source { "cni0" } else { "eth0" };
                        let name = DeviceName::parse(name).unwrap();
                        Part::Device { name, physdev: false, wildcard: false }
                    }
                    Dimension::Mac => Part::Mac([mac, 0, 0, 0, 0, 1]),
                    Dimension::Mark => Part::Mark(packet.mark),
                    Dimension::Set => unreachable!(),
                }
            }).collect();
            let mut expected = by_looking(&reference, kind, &key);
            // A network that is there for another device hides the wider ones.
            if kind == SetKind::HashNetIface && sides[1] == DST {
                expected = false;
            }
            let found = sets.test("s", &sides, false, &sight, NOW);
            prop_assert_eq!(found, Some(expected), "{:?} in {:?}", key, reference);
        }
    }

    #[test]
    fn what_is_saved_is_read_again(
        (kind, elements) in any_kind().prop_flat_map(|kind| (Just(kind), elements(kind))),
    ) {
        let header = Header { range: Some((0, 65_535)), timeout: Some(0), ..Header::new(kind) };
        let header = if kind == SetKind::BitmapIp {
            Header { range: Some((0x0a00_0000, 0x0a00_ffff)), ..header }
        } else {
            header
        };
        let mut set = Set::new("s", header.clone());
        for element in &elements {
            let _ = set.add(element, true, NOW);
        }
        let mut again = Set::new("s", header);
        for line in set.save(NOW).lines().skip(1) {
            let text = line.strip_prefix("add s ").unwrap();
            for element in again.parse_elements(text).unwrap() {
                again.add(&element, false, NOW).unwrap();
            }
        }
        prop_assert_eq!(again.save(NOW), set.save(NOW));
    }
}
