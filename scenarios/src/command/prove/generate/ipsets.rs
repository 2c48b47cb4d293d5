//! Random ipsets, and what rules for iptables ask of them and put into them.

use super::super::place::{Family, Place};
use super::packets::{PORTS, behind_n2, target, vip};
use super::{Backend, Dice, Features};

/// What a set is made of, and how rules may use it.
struct Shape {
    name: &'static str,
    kind: &'static str,
    options: &'static str,
    dimensions: usize,
    /// Rules may add elements.
    grows: bool,
}

const fn shape(
    name: &'static str,
    kind: &'static str,
    options: &'static str,
    dimensions: usize,
    grows: bool,
) -> Shape {
    Shape { name, kind, options, dimensions, grows }
}

/// The sets that cases have. What a name stands for is the same in all cases, so that no set must
/// go while rules still name it.
const SHAPES: [Shape; 14] = [
    shape("ip", "hash:ip", "", 1, true),
    shape("ip-time", "hash:ip", "timeout 3600", 1, true),
    shape("ip-port", "hash:ip,port", "timeout 3600", 2, true),
    shape("ip-port-ip", "hash:ip,port,ip", "", 3, true),
    shape("ip-port-net", "hash:ip,port,net", "", 3, false),
    shape("ip-mark", "hash:ip,mark", "markmask 0x4003", 2, true),
    shape("net", "hash:net", "", 1, true),
    shape("net-port", "hash:net,port", "", 2, false),
    shape("net-net", "hash:net,net", "", 2, false),
    shape("net-port-net", "hash:net,port,net", "", 3, false),
    shape("net-iface", "hash:net,iface", "", 2, false),
    shape("port", "bitmap:port", "range 0-65535", 1, true),
    shape("ip-map", "bitmap:ip", "range 10.244.0.0/16", 1, true),
    shape("list", "list:set", "", 1, false),
];

/// What sets there may be.
#[derive(Clone, Copy)]
pub(super) struct Known<'f> {
    pub(super) family: Family,
    pub(super) backend: Backend,
    pub(super) features: &'f Features,
}

impl Known<'_> {
    fn shapes(&self) -> Vec<&'static Shape> {
        let Known { family, backend, features } = *self;
        of_family(family).filter(|shape| features.has(family, backend, shape.kind)).collect()
    }
}

fn of_family(family: Family) -> impl Iterator<Item = &'static Shape> {
    SHAPES.iter().filter(move |shape| family == Family::V4 || shape.kind != "bitmap:ip")
}

fn full_name(shape: &Shape, family: Family) -> String {
    let family = if family == Family::V4 { "four" } else { "six" };
    format!("{family}-{}", shape.name)
}

/// Returns the type of each set, and the line of `ipset restore` that creates it.
pub(in super::super) fn creations(family: Family) -> Vec<(&'static str, String)> {
    of_family(family).map(|shape| (shape.kind, creation(shape, family))).collect()
}

fn creation(shape: &Shape, family: Family) -> String {
    let Shape { kind, options, .. } = shape;
    let inet = match (*kind, family) {
        ("bitmap:port" | "bitmap:ip" | "list:set", _) => "",
        (_, Family::V4) => " family inet",
        (_, Family::V6) => " family inet6",
    };
    let space = if options.is_empty() { "" } else { " " };
    format!("create {} {kind}{inet}{space}{options}", full_name(shape, family))
}

/// Returns the sets with some elements.
pub(super) fn lines(dice: &mut Dice, known: Known<'_>) -> Vec<String> {
    let family = known.family;
    let shapes = known.shapes();
    let mut lines: Vec<String> = shapes.iter().map(|shape| creation(shape, family)).collect();
    for shape in shapes.iter().filter(|shape| shape.kind != "list:set") {
        let mut elements: Vec<String> =
            (0..dice.below(6)).map(|_| element(dice, family, shape)).collect();
        elements.sort();
        // One that is there already is not added with other options.
        elements.dedup_by_key(|element| element.split(' ').next().map(str::to_owned));
        lines.extend(elements.iter().map(|e| format!("add {} {e}", full_name(shape, family))));
    }
    if let Some(list) = shapes.iter().find(|shape| shape.kind == "list:set") {
        for member in shapes.iter().filter(|shape| ["ip", "net", "ip-port"].contains(&shape.name)) {
            if dice.percent(50) {
                let [list, member] = [list, member].map(|shape| full_name(shape, family));
                lines.push(format!("add {list} {member}"));
            }
        }
    }
    lines
}

fn element(dice: &mut Dice, family: Family, shape: &Shape) -> String {
    if shape.kind == "bitmap:ip" {
        return dice
            .pick(&[Place::A1, Place::A2, Place::A3, Place::R1])
            .address(family)
            .to_string();
    }
    let (_, parts) = shape.kind.split_once(':').unwrap_or_default();
    let mut words = Vec::new();
    for part in parts.split(',') {
        words.push(match part {
            "ip" if dice.percent(50) => vip(dice, family).to_string(),
            "ip" => target(dice, family).to_string(),
            "port" if shape.kind == "bitmap:port" => dice.pick(&PORTS).to_string(),
            "port" => match dice.below(8) {
                0 if family == Family::V4 => "icmp:echo-request".to_owned(),
                0 => "icmpv6:128/0".to_owned(),
                1 => "tcp:40000".to_owned(),
                _ => format!("{}:{}", dice.word(&["tcp", "tcp", "udp"]), dice.pick(&PORTS)),
            },
            "net" => network(dice, family),
            "mark" => dice.word(&["0x1", "0x4000", "0x4001"]).to_owned(),
            _ => dice.word(&["cni0", "eth0", "eth1", "lo"]).to_owned(),
        });
    }
    let may_except = shape.kind.contains("net") && dice.percent(20);
    let time = shape.options.starts_with("timeout") && dice.percent(30);
    let more = if may_except {
        " nomatch"
    } else if time {
        " timeout 7200"
    } else {
        ""
    };
    format!("{}{more}", words.join(","))
}

fn network(dice: &mut Dice, family: Family) -> String {
    let four = ["10.244.0.0/16", "10.244.1.0/24", "10.244.1.2/31", "10.96.0.0/12", "172.18.0.0/16"];
    let six =
        ["fd00:244::/32", "fd00:244:1::/64", "fd00:244:1::2/127", "fd00:96::/64", "fd00:18::/64"];
    if dice.percent(40) {
        return behind_n2(dice, family).to_string();
    }
    dice.word(if family == Family::V4 { &four } else { &six }).to_owned()
}

/// Returns a condition, with its negation if there is one.
pub(super) fn condition(dice: &mut Dice, known: Known<'_>, input: bool, not: &str) -> String {
    let shape = *dice.pick(&known.shapes());
    let sides = sides(dice, shape, input);
    let exact =
        if shape.kind.contains("net") && dice.percent(20) { " --return-nomatch" } else { "" };
    let name = full_name(shape, known.family);
    // An exception that counts as such cannot be negated with it.
    let not = if exact.is_empty() { not } else { "" };
    format!("-m set {not}--match-set {name} {sides}{exact}")
}

/// Returns a target.
pub(super) fn change(dice: &mut Dice, known: Known<'_>, input: bool) -> String {
    let all: Vec<&Shape> = known.shapes().into_iter().filter(|shape| shape.grows).collect();
    let shape = *dice.pick(&all);
    let (name, sides) = (full_name(shape, known.family), sides(dice, shape, input));
    match dice.below(4) {
        0 => format!("SET --del-set {name} {sides}"),
        1 if shape.options.starts_with("timeout") => {
            format!("SET --add-set {name} {sides} --exist --timeout 5000")
        }
        _ => format!("SET --add-set {name} {sides}"),
    }
}

fn sides(dice: &mut Dice, shape: &Shape, input: bool) -> String {
    let mut sides: Vec<&str> =
        (0..shape.dimensions).map(|_| dice.word(&["dst", "dst", "src"])).collect();
    // A device that the hook does not know is refused, or none.
    if shape.kind.ends_with("iface") {
        sides[1] = if input { "src" } else { "dst" };
    }
    sides.join(",")
}
