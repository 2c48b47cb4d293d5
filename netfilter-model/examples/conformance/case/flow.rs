//! Using a service as a program would.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use netfilter_model::network::{Close, Network, NodeId, Sight, SocketError, SocketId, SocketState};
use netfilter_model::packet::{L4, Packet, TcpFlags};
use netfilter_model::tuple::Protocol;
use serde_json::{Map, Value, json};

use super::json::Get;
use super::{Kind, World};

/// What a client has found out.
#[derive(Default)]
struct Record {
    /// Where the answer came from, and who made it.
    reply: Option<((IpAddr, u16), Option<String>)>,
    connected: bool,
    io: Option<&'static str>,
    icmp: Option<(u8, u8, IpAddr)>,
    errno: Option<&'static str>,
    waited: bool,
}

/// One flow.
struct Flow<'s> {
    step: &'s Value,
    from: (String, NodeId),
    protocol: Protocol,
    src: Option<IpAddr>,
    sport: u16,
    dst: (IpAddr, u16),
    mark: u32,
    id: u64,
}

impl World {
    pub(super) fn flow(&mut self, step: &Value) -> Result<Value, String> {
        let from = self.endpoint(step, "from")?;
        let count = step.number("count").unwrap_or(1);
        let stride = step.number("sport_step").unwrap_or(1);
        let first = match step.number("sport") {
            Some(port) => port,
            None => {
                let port = self.next_port;
                self.next_port += count * stride;
                port
            }
        };
        let dst = step.address("dst")?.ok_or("a flow without \"dst\"")?;
        let protocol = match (step.text("proto"), dst) {
            (Some("tcp"), _) => Protocol::TCP,
            (Some("udp"), _) => Protocol::UDP,
            (Some("icmp"), IpAddr::V4(_)) => Protocol::ICMP,
            (Some("icmp"), IpAddr::V6(_)) => Protocol::ICMPV6,
            other => return Err(format!("{other:?} is no protocol of a flow")),
        };
        let mut results = Vec::new();
        for i in 0..count {
            let sport = u16::try_from(first + i * stride).map_err(|_| "no source ports left")?;
            let flow = Flow {
                step,
                from: from.clone(),
                protocol,
                src: step.address("src")?,
                sport,
                dst: (dst, step.number("dport").unwrap_or(0) as u16),
                mark: step.number("mark").unwrap_or(0) as u32,
                id: self.new_id(),
            };
            self.network.take_sights();
            self.network.take_icmp(from.1);
            let record = match protocol {
                Protocol::TCP => self.tcp_flow(&flow),
                Protocol::UDP => self.udp_flow(&flow),
                _ => self.icmp_flow(&flow),
            };
            if record.waited {
                let usual = if protocol == Protocol::TCP { 0.8 } else { 0.4 };
                self.pass(step.get("timeout").and_then(Value::as_f64).unwrap_or(usual));
            }
            let sights = self.network.take_sights();
            results.push(self.judge(&flow, record, &sights));
        }
        let mut out = Map::new();
        if let Some(id) = step.text("id") {
            out.insert("id".to_owned(), json!(id));
        }
        if step.get("random").is_none_or(Value::is_null) {
            out.insert("results".to_owned(), json!(results));
        } else {
            summarise(results, &mut out);
        }
        Ok(Value::Object(out))
    }

    fn tcp_flow(&mut self, flow: &Flow<'_>) -> Record {
        let mut record = Record::default();
        let src = (flow.src, flow.sport);
        let socket = match self.network.connect(flow.from.1, src, flow.dst, flow.id, flow.mark) {
            Ok(socket) => socket,
            Err(error) => {
                record.errno = Some(error.name());
                return record;
            }
        };
        let Some(tcp) = self.network.tcp(socket).copied() else {
            return record;
        };
        match (tcp.state, tcp.error) {
            (_, Some(SocketError::Icmp { kind, from })) => {
                let (icmp_type, code) = if from.is_ipv4() { kind.kind() } else { kind.kind6() };
                record.icmp = Some((icmp_type, code, from));
                return record;
            }
            (_, Some(_)) => {
                record.errno = Some("ECONNREFUSED");
                return record;
            }
            (SocketState::Established, None) => {}
            _ => {
                record.waited = true;
                self.network.close(socket, Close::Reset);
                return record;
            }
        }
        record.connected = true;
        let (by, io) = self.exchange(socket, flow.id);
        record.waited = io == Some("timeout");
        record.reply = Some((flow.dst, by));
        record.io = io;
        match flow.step.text("close") {
            Some("keep") => {
                let id = flow.step.text("id").unwrap_or_default();
                self.tcp.insert(id.to_owned(), socket);
            }
            how => self.shut(socket, how),
        }
        record
    }

    /// Sends a line and waits for one: who answered, or why nobody did.
    fn exchange(&mut self, socket: SocketId, id: u64) -> (Option<String>, Option<&'static str>) {
        self.network.write(socket, id);
        let Some(tcp) = self.network.tcp(socket) else {
            return (None, Some("EBADF"));
        };
        let by = tcp.received.and_then(Network::answered_by).map(|by| self.names[&by].clone());
        let io = match (&by, tcp.error) {
            (Some(_), _) => None,
            (None, Some(SocketError::Reset)) => Some("ECONNRESET"),
            (None, Some(_)) => Some("EPIPE"),
            (None, None) if tcp.ended => Some("eof"),
            (None, None) => Some("timeout"),
        };
        (by, io)
    }

    fn shut(&mut self, socket: SocketId, how: Option<&str>) {
        let how = if how == Some("rst") { Close::Reset } else { Close::Fin };
        self.network.close(socket, how);
        let waits = self.network.tcp(socket).is_some_and(|tcp| !tcp.ended && tcp.error.is_none());
        if how == Close::Fin && waits {
            self.pass(0.8);
        }
    }

    fn udp_flow(&mut self, flow: &Flow<'_>) -> Record {
        let mut record = Record::default();
        let key = (flow.from.0.clone(), flow.src, flow.sport);
        let peer = flow.step.flag("connect_udp").then_some(flow.dst);
        let socket = match self.udp.get(&key) {
            Some(socket) => *socket,
            None => self.network.open_udp(flow.from.1, flow.src, flow.sport, peer),
        };
        let keeps = flow.step.text("close") == Some("keep");
        if keeps {
            self.udp.insert(key.clone(), socket);
        }
        let heard = self.network.udp(socket).map_or(0, |udp| udp.errors.len());
        // A token of the flow is all that the payload needs to hold.
        let size = flow.step.number("size").unwrap_or(0).max(8) as u32;
        let sent = self.network.send_udp(socket, flow.dst, size, flow.id, flow.mark);
        record.errno = sent.err().map(|error| error.name());
        if let Some(udp) = self.network.udp(socket) {
            if let Some(SocketError::Icmp { kind, from }) = udp.errors.get(heard) {
                let (icmp_type, code) = if from.is_ipv4() { kind.kind() } else { kind.kind6() };
                record.icmp = Some((icmp_type, code, *from));
            }
            let ours = |id: u64| id & 0xffff_ffff == flow.id;
            let reply = udp.received.iter().find(|datagram| ours(datagram.id));
            if flow.step.get("reply").and_then(Value::as_bool) != Some(false) {
                record.reply = reply.map(|datagram| {
                    let by = Network::answered_by(datagram.id).map(|by| self.names[&by].clone());
                    (datagram.from, by)
                });
                let told = record.icmp.is_some() || record.errno == Some("EPERM");
                record.waited = record.reply.is_none() && !told;
            }
        }
        if !self.udp.contains_key(&key) {
            self.network.close_udp(socket);
        }
        record
    }

    fn icmp_flow(&mut self, flow: &Flow<'_>) -> Record {
        let mut record = Record::default();
        let size = flow.step.number("size").unwrap_or(16) as u32;
        let marks = (flow.id, flow.mark);
        let (from, dst) = (flow.from.1, flow.dst.0);
        let sent = self.network.ping(from, flow.src, dst, flow.sport, size, marks);
        if let Err(error) = sent {
            record.errno = Some(error.name());
            return record;
        }
        for packet in self.network.take_icmp(from) {
            if packet.id & 0xffff_ffff != flow.id {
                continue;
            }
            match packet.l4 {
                L4::IcmpError { quote, .. } if quote.src_part == flow.sport => {
                    let (icmp_type, code) = packet.tuple.icmp_kind();
                    record.icmp = Some((icmp_type, code, packet.tuple.src()));
                    break;
                }
                L4::IcmpEcho if packet.tuple.src_part == flow.sport => {
                    record.reply = Some(((packet.tuple.src(), 0), Some("echo".to_owned())));
                    break;
                }
                _ => {}
            }
        }
        record.waited = record.reply.is_none() && record.icmp.is_none();
        record
    }

    /// Makes the result of one flow of what its client found out and of what was seen elsewhere.
    fn judge(&self, flow: &Flow<'_>, record: Record, sights: &[Sight]) -> Value {
        let at = self.arrivals(flow, sights);
        let arrived = !at.is_empty();
        let mut out = Map::new();
        let icmp = flow.protocol.is_icmp();
        let got = record.reply.is_some();
        let outcome = match &record.reply {
            Some((_, None)) => {
                out.insert("io".to_owned(), json!(record.io.unwrap_or("eof")));
                "connected"
            }
            Some(_) => "answered",
            None => {
                let refused = record.errno == Some("ECONNREFUSED");
                if let Some((icmp_type, code, from)) = record.icmp {
                    let error = json!({
                        "kind": "icmp", "type": icmp_type, "code": code, "from": from.to_string()
                    });
                    out.insert("error".to_owned(), error);
                } else if refused {
                    out.insert("error".to_owned(), json!({"kind": "rst"}));
                } else if let Some(name) = record.errno {
                    out.insert("error".to_owned(), json!({"kind": "errno", "name": name}));
                }
                match (record.icmp.is_some() || refused, arrived) {
                    (true, true) => "refused",
                    (true, false) => "rejected",
                    (false, true) => "delivered",
                    (false, false) => "dropped",
                }
            }
        };
        let reply_src = record.reply.as_ref().map(|((src, _), _)| *src);
        if let Some(((src, sport), by)) = record.reply {
            let mut reply = json!({"src": src.to_string(), "by": by});
            if !icmp {
                reply["sport"] = json!(sport);
            }
            out.insert("reply".to_owned(), reply);
        }
        let strays = self.strays(flow, reply_src, got, sights);
        if !strays.is_empty() {
            out.insert("strays".to_owned(), json!(strays));
        }
        out.insert("at".to_owned(), json!(at));
        out.insert("outcome".to_owned(), json!(outcome));
        Value::Object(out)
    }

    fn arrivals(&self, flow: &Flow<'_>, sights: &[Sight]) -> Vec<Value> {
        let mut syn_seen = BTreeSet::new();
        let mut at = Vec::new();
        for sight in sights {
            let (node, packet, captured) = match sight {
                Sight::Arrival { node, packet, .. } => (*node, packet, true),
                Sight::Datagram { node, packet } | Sight::Data { node, packet } => {
                    (*node, packet, false)
                }
                _ => continue,
            };
            let (name, kind, local) = self.who(node);
            if packet.id != flow.id || captured == (kind == Kind::Node) {
                continue;
            }
            if captured {
                let request = match packet.l4 {
                    L4::Tcp { flags, .. } => {
                        flags.masked(TcpFlags::ALL) == TcpFlags::SYN && syn_seen.insert(node)
                    }
                    L4::Udp => flow.protocol == Protocol::UDP,
                    L4::IcmpEcho => matches!(packet.tuple.icmp_kind().0, 8 | 128),
                    _ => false,
                };
                let first = !packet.is_later_fragment();
                if !request || !first || !local.contains(&packet.tuple.dst()) {
                    continue;
                }
            }
            at.push(hit(flow, name, packet, captured));
        }
        at
    }

    fn strays(
        &self,
        flow: &Flow<'_>,
        reply: Option<IpAddr>,
        got: bool,
        sights: &[Sight],
    ) -> Vec<Value> {
        let (_, kind, local) = self.who(flow.from.1);
        let mut strays: Vec<Value> = Vec::new();
        if kind == Kind::Node {
            return strays;
        }
        for sight in sights {
            let Sight::Arrival { node, packet, .. } = sight else {
                continue;
            };
            let tuple = &packet.tuple;
            if *node != flow.from.1
                || !local.contains(&tuple.dst())
                || tuple.src() == flow.dst.0
                || packet.is_later_fragment()
            {
                continue;
            }
            let src = tuple.src().to_string();
            let own_port = tuple.dst_part == flow.sport;
            let stray = match (packet.l4, flow.protocol) {
                (L4::Tcp { flags, .. }, Protocol::TCP) if own_port => {
                    json!({"src": src, "sport": tuple.src_part, "flags": flags_text(flags)})
                }
                (L4::Udp, Protocol::UDP) if own_port && Some(tuple.src()) != reply => {
                    json!({"src": src, "sport": tuple.src_part})
                }
                (L4::IcmpEcho, Protocol::ICMP)
                    if tuple.icmp_kind().0 == 0 && tuple.src_part == flow.sport && !got =>
                {
                    json!({"src": src, "type": 0})
                }
                _ => continue,
            };
            if !strays.contains(&stray) {
                strays.push(stray);
            }
        }
        strays
    }

    /// Goes on with a kept connection.
    pub(super) fn send(&mut self, step: &Value) -> Result<Value, String> {
        self.endpoint(step, "from")?;
        let name = step.text("conn").ok_or("no \"conn\"")?;
        let socket = *self.tcp.get(name).ok_or_else(|| format!("{name:?} is not open"))?;
        let id = self.new_id();
        self.network.take_sights();
        let mut out = json!({"conn": name});
        let data = step.get("data").and_then(Value::as_bool).unwrap_or(true);
        if data {
            let (by, io) = self.exchange(socket, id);
            if io == Some("timeout") {
                self.pass(step.get("timeout").and_then(Value::as_f64).unwrap_or(0.8));
            }
            out["outcome"] = json!(io.unwrap_or("answered"));
            if let Some(by) = by {
                out["by"] = json!(by);
            }
        } else {
            out["outcome"] = json!("closed");
        }
        if let Some(how) = step.text("close") {
            self.shut(socket, Some(how));
            self.tcp.remove(name);
        }
        let sights = self.network.take_sights();
        let at: BTreeSet<&str> = sights
            .iter()
            .filter_map(|sight| match sight {
                Sight::Data { node, packet } if packet.id == id => Some(self.who(*node).0),
                _ => None,
            })
            .collect();
        out["data_at"] = json!(at);
        Ok(out)
    }
}

/// Returns how a request looked where it arrived.
fn hit(flow: &Flow<'_>, name: &str, packet: &Packet, captured: bool) -> Value {
    let tuple = &packet.tuple;
    let icmp = flow.protocol.is_icmp();
    let part = tuple.src_part;
    let mut hit = json!({
        "endpoint": name, "src": tuple.src().to_string(), "dst": tuple.dst().to_string()
    });
    if !icmp {
        hit["dport"] = json!(tuple.dst_part);
    }
    if captured {
        hit["ttl"] = json!(packet.ttl);
        if packet.fragment.is_some() {
            hit["fragmented"] = json!(true);
        }
    }
    if flow.step.flag("want_mss") {
        hit["mss"] = match packet.l4 {
            L4::Tcp { segment: Some(segment), .. } if segment.mss > 0 => json!(segment.mss),
            _ => Value::Null,
        };
    }
    let range = flow.step.list("sport_range");
    let bound = |at: usize| range.get(at).and_then(Value::as_u64);
    let in_range = match (bound(0), bound(1)) {
        (Some(low), Some(high)) => (low..=high).contains(&u64::from(part)),
        _ => false,
    };
    hit[if icmp { "id" } else { "sport" }] = if in_range {
        json!("in-range")
    } else if part != flow.sport && !flow.step.flag("exact_ports") {
        json!("changed")
    } else {
        json!(part)
    };
    hit
}

/// Returns the letters of flags.
pub(super) fn flags_text(flags: TcpFlags) -> String {
    let letters = "FSRPAUEC".chars().enumerate();
    let set: String =
        letters.filter(|(bit, _)| flags.bits() & 1 << bit != 0).map(|(_, letter)| letter).collect();
    if set.is_empty() { "-".to_owned() } else { set }
}

/// Counts the results of a random flow.
fn summarise(results: Vec<Value>, out: &mut Map<String, Value>) {
    let mut outcomes: BTreeMap<String, u64> = BTreeMap::new();
    let mut endpoints: BTreeMap<String, u64> = BTreeMap::new();
    let mut kinds: BTreeMap<String, Value> = BTreeMap::new();
    let total = results.len();
    for mut result in results {
        let outcome = result.text("outcome").unwrap_or_default().to_owned();
        *outcomes.entry(outcome).or_default() += 1;
        let hits = result.get_mut("at").and_then(Value::as_array_mut);
        for hit in hits.into_iter().flatten() {
            let endpoint = hit.text("endpoint").unwrap_or_default().to_owned();
            *endpoints.entry(endpoint).or_default() += 1;
            for key in ["sport", "id"] {
                if hit.get(key).is_some_and(|part| part != "changed") {
                    hit[key] = json!("*");
                }
            }
        }
        kinds.entry(result.to_string()).or_insert(result);
    }
    out.insert("total".to_owned(), json!(total));
    out.insert("outcomes".to_owned(), json!(outcomes));
    out.insert("by_endpoint".to_owned(), json!(endpoints));
    out.insert("kinds".to_owned(), json!(kinds.into_values().collect::<Vec<_>>()));
}
