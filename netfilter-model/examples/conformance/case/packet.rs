//! One packet written by hand.

use std::net::IpAddr;

use netfilter_model::network::Sight;
use netfilter_model::packet::{IcmpError, L4, Packet, Segment, TcpFlags};
use netfilter_model::tuple::{Protocol, Tuple};
use serde_json::{Value, json};

use super::flow::flags_text;
use super::json::Get;
use super::{Kind, World};

impl World {
    pub(super) fn packet(&mut self, step: &Value) -> Result<Value, String> {
        let (name, from) = self.endpoint(step, "from")?;
        let dst = step.address("dst")?.ok_or("a packet without \"dst\"")?;
        let src = match step.address("src")? {
            Some(src) => src,
            None => {
                let mut local = self.endpoints[&name].local.iter();
                let own = local.find(|addr| !addr.is_loopback() && addr.is_ipv4() == dst.is_ipv4());
                *own.ok_or_else(|| format!("{name} has no address"))?
            }
        };
        let id = self.new_id();
        let packet = written(step, src, dst, id)?;
        let pieces: Vec<Packet> = match step.number("fragment") {
            None => vec![packet],
            Some(piece) => {
                let mut pieces: Vec<Packet> = packet.cut(piece as u16).collect();
                if step.text("fragment_order") == Some("reverse") {
                    pieces.reverse();
                }
                if step.get("fragment_keep").is_some() {
                    let kept = step.list("fragment_keep").iter().filter_map(Value::as_u64);
                    kept.filter_map(|at| pieces.get(at as usize).copied()).collect()
                } else {
                    pieces
                }
            }
        };
        self.network.take_sights();
        let mut error = None;
        for piece in pieces {
            if let Err(refused) = self.network.send_packet(from, piece) {
                error = Some(refused.name());
            }
        }
        self.pass(step.get("wait").and_then(Value::as_f64).unwrap_or(0.06));
        let sights = self.network.take_sights();
        let (mut at, mut responses) = (Vec::new(), Vec::new());
        for sight in &sights {
            match sight {
                Sight::Datagram { node, packet } if packet.id == id => {
                    let (name, kind, _) = self.who(*node);
                    if kind == Kind::Node && step.text("payload").is_some() {
                        let tuple = &packet.tuple;
                        at.push(json!({
                            "endpoint": name,
                            "src": tuple.src().to_string(), "sport": tuple.src_part,
                            "dst": tuple.dst().to_string(), "dport": tuple.dst_part,
                        }));
                    }
                }
                Sight::Arrival { node, packet, .. } => {
                    let (name, kind, local) = self.who(*node);
                    if !local.contains(&packet.tuple.dst()) {
                        continue;
                    }
                    if packet.id == id && kind != Kind::Node {
                        at.push(seen(name, packet));
                    } else if packet.id != id && *node == from {
                        responses.extend(response(step, packet, id));
                    }
                }
                _ => {}
            }
        }
        let mut out = json!({"at": at});
        if !responses.is_empty() {
            out["responses"] = json!(responses);
        }
        if let Some(error) = error {
            out["error"] = json!(error);
        }
        Ok(out)
    }
}

/// Returns the packet that a step describes.
fn written(step: &Value, src: IpAddr, dst: IpAddr, id: u64) -> Result<Packet, String> {
    let protocol = protocol(step.get("proto").unwrap_or(&Value::Null))?;
    let part = |key: &str| step.number(key).unwrap_or(0) as u16;
    let payload = step.text("payload").map_or(0, str::len) as u64;
    let payload = payload.max(step.number("size").unwrap_or(0)) as u32;
    let (l4, parts, header) = match protocol {
        Protocol::TCP => {
            let (options, mss, options_len) = options(step.text("options_hex").unwrap_or(""));
            let segment = Segment {
                seq: step.number("seq").unwrap_or(0) as u32,
                ack: step.number("ack").unwrap_or(0) as u32,
                window: step.number("window").unwrap_or(64_240) as u16,
                data: payload as u16,
                options,
                mss,
                ..Segment::default()
            };
            let flags = flags(step.text("flags").unwrap_or("S"));
            let l4 = L4::Tcp { flags, segment: Some(segment) };
            (l4, (part("sport"), part("dport")), 20 + options_len)
        }
        Protocol::UDP => (L4::Udp, (part("sport"), part("dport")), 8),
        Protocol::ICMP => {
            let icmp_type = step.number("type").unwrap_or(8) as u8;
            let code = part("code") as u8;
            let kind = u16::from(icmp_type) << 8 | u16::from(code);
            match step.get("inner") {
                None => (L4::IcmpEcho, (part("echo_id"), kind), 8),
                Some(inner) => {
                    let quote = quoted(inner)?;
                    let kind_of_error = IcmpError::of_kind(icmp_type, code);
                    (L4::IcmpError { kind: kind_of_error, quote }, (0, kind), 36)
                }
            }
        }
        _ => (L4::Other, (0, 0), 0),
    };
    let tuple = Tuple::try_new(protocol, src, parts.0, dst, parts.1);
    let tuple = tuple.ok_or("addresses of two families")?;
    let ip = if dst.is_ipv4() { 20 } else { 40 };
    Ok(Packet {
        ttl: step.number("ttl").unwrap_or(64) as u8,
        tos: step.number("tos").unwrap_or(0) as u8,
        mark: step.number("mark").unwrap_or(0) as u32,
        bad_checksum: step.flag("bad_checksum"),
        ..Packet::new(id, tuple, l4, ip + header + payload)
    })
}

fn protocol(value: &Value) -> Result<Protocol, String> {
    let number = |number: u64| u8::try_from(number).ok().map(Protocol);
    let protocol = match value {
        Value::Number(n) => n.as_u64().and_then(number),
        Value::String(text) => match text.as_str() {
            "tcp" => Some(Protocol::TCP),
            "udp" => Some(Protocol::UDP),
            "icmp" => Some(Protocol::ICMP),
            text => text.parse().ok().and_then(number),
        },
        _ => None,
    };
    protocol.ok_or_else(|| format!("{value} is no protocol"))
}

/// Returns what an ICMP error quotes.
fn quoted(inner: &Value) -> Result<Tuple, String> {
    let protocol = protocol(inner.get("proto").unwrap_or(&Value::Null))?;
    let address = |key: &str| inner.address(key)?.ok_or_else(|| format!("no {key:?} in inner"));
    let part = |key: &str| inner.number(key).unwrap_or(0) as u16;
    let parts =
        if protocol.is_icmp() { (part("id"), 8 << 8) } else { (part("sport"), part("dport")) };
    Tuple::try_new(protocol, address("src")?, parts.0, address("dst")?, parts.1)
        .ok_or_else(|| "inner has addresses of two families".to_owned())
}

/// Returns the flags of letters.
fn flags(letters: &str) -> TcpFlags {
    let bits = letters.chars().filter_map(|letter| "FSRPAUEC".find(letter));
    TcpFlags::from_bits(bits.fold(0, |bits, bit| bits | 1 << bit))
}

/// Returns which options a header has, its maximum segment size, and their length.
fn options(hex: &str) -> (u64, u16, u32) {
    let bytes: Vec<u8> = (0..hex.len() / 2)
        .filter_map(|at| u8::from_str_radix(hex.get(2 * at..2 * at + 2)?, 16).ok())
        .collect();
    let (mut kinds, mut mss, mut at) = (0u64, 0, 0);
    while let Some(kind) = bytes.get(at).copied() {
        if kind == 0 {
            break;
        }
        if kind < 64 {
            kinds |= 1 << kind;
        }
        if kind == 1 {
            at += 1;
            continue;
        }
        let len = usize::from(bytes.get(at + 1).copied().unwrap_or(0));
        if len < 2 {
            break;
        }
        if let (2, Some([high, low])) = (kind, bytes.get(at + 2..at + 4)) {
            mss = u16::from_be_bytes([*high, *low]);
        }
        at += len;
    }
    (kinds, mss, bytes.len().next_multiple_of(4) as u32)
}

/// Returns how the packet looked where it arrived.
fn seen(name: &str, packet: &Packet) -> Value {
    let tuple = &packet.tuple;
    let mut seen = json!({
        "endpoint": name, "src": tuple.src().to_string(), "dst": tuple.dst().to_string(),
        "ttl": packet.ttl,
    });
    if let Some(fragment) = packet.fragment {
        seen["frag_offset"] = json!(fragment.offset);
        if fragment.offset > 0 {
            return seen;
        }
    }
    match packet.l4 {
        L4::Tcp { flags, .. } => {
            seen["sport"] = json!(tuple.src_part);
            seen["dport"] = json!(tuple.dst_part);
            seen["flags"] = json!(flags_text(flags));
        }
        L4::Udp => {
            seen["sport"] = json!(tuple.src_part);
            seen["dport"] = json!(tuple.dst_part);
        }
        L4::IcmpEcho => {
            let (icmp_type, code) = tuple.icmp_kind();
            seen["type"] = json!(icmp_type);
            seen["code"] = json!(code);
            if matches!(icmp_type, 0 | 8) {
                seen["echo_id"] = json!(tuple.src_part);
            }
        }
        L4::IcmpError { quote, .. } => {
            let (icmp_type, code) = tuple.icmp_kind();
            seen["type"] = json!(icmp_type);
            seen["code"] = json!(code);
            let mut inner = json!({"src": quote.src().to_string(), "dst": quote.dst().to_string()});
            if quote.protocol.is_icmp() {
                inner["id"] = json!(quote.src_part);
            } else {
                inner["sport"] = json!(quote.src_part);
                inner["dport"] = json!(quote.dst_part);
            }
            seen["inner"] = inner;
        }
        L4::Other => {}
    }
    seen
}

/// Returns what came back to the sender, if it has to do with the packet.
fn response(step: &Value, packet: &Packet, id: u64) -> Option<Value> {
    let tuple = &packet.tuple;
    let src = tuple.src().to_string();
    let answers = Some(u64::from(tuple.dst_part)) == step.number("sport");
    let ours = packet.id & 0xffff_ffff == id;
    match (packet.l4, step.text("proto")) {
        (L4::Tcp { flags, .. }, Some("tcp")) if answers => Some(json!({
            "proto": "tcp", "src": src, "sport": tuple.src_part, "flags": flags_text(flags)
        })),
        (L4::Udp, Some("udp")) if answers => {
            Some(json!({"proto": "udp", "src": src, "sport": tuple.src_part}))
        }
        (L4::IcmpError { .. }, _) if ours => {
            let (icmp_type, code) = tuple.icmp_kind();
            Some(json!({"proto": "icmp", "src": src, "type": icmp_type, "code": code}))
        }
        (L4::IcmpEcho, Some("icmp"))
            if tuple.icmp_kind().0 == 0
                && u64::from(tuple.src_part) == step.number("echo_id").unwrap_or(0) =>
        {
            Some(json!({"proto": "icmp", "src": src, "type": 0, "code": tuple.icmp_kind().1}))
        }
        _ => None,
    }
}
