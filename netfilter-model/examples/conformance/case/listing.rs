//! Looking at what a host keeps: connections, counters, lists and sets.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use netfilter_model::conntrack::{Direction, Entry, Filter, Listing, Status};
use netfilter_model::network::NodeId;
use netfilter_model::read::{self, WithCounters};
use netfilter_model::time::SimTime;
use netfilter_model::tuple::{Protocol, Tuple};
use serde_json::{Value, json};

use super::World;
use super::json::Get;
use super::rules::table_named;

impl World {
    pub(super) fn conntrack(&mut self, step: &Value) -> Result<Value, String> {
        let (_, id) = self.endpoint(step, "node")?;
        let filter = filter(step)?;
        let now = self.network.now();
        let conntrack = self.network.node(id).netns.conntrack();
        let mut entries: Vec<&Entry> = conntrack
            .entries(now)
            .filter(|entry| {
                let v4 = entry.tuple(Direction::Original).is_ipv4();
                !entry.status().contains(Status::NAT_CLASH) && (v4 || self.six)
            })
            .filter(|entry| filter.matches(entry))
            .collect();
        if step.flag("count_only") {
            return Ok(json!({"count": entries.len()}));
        }
        entries.sort_by_key(|entry| {
            let original = entry.tuple(Direction::Original);
            (original.protocol.0, *original)
        });
        let exact = step.flag("exact_ports");
        let entries: Vec<Value> =
            entries.into_iter().map(|entry| described(entry, now, exact)).collect();
        Ok(json!({"entries": entries}))
    }

    pub(super) fn ct_delete(&mut self, step: &Value) -> Result<Value, String> {
        let (_, id) = self.endpoint(step, "node")?;
        let filter = filter(step)?;
        let now = self.network.now();
        let conntrack = self.network.node_mut(id).netns.conntrack_mut();
        Ok(json!({"deleted": conntrack.delete(now, |entry| filter.matches(entry))}))
    }

    /// Fills the table with UDP flows of strangers until so many places are left.
    pub(super) fn ct_fill(&mut self, step: &Value) -> Result<Value, String> {
        let (_, id) = self.endpoint(step, "node")?;
        let leave = step.number("leave").unwrap_or(0);
        let known = step.get("assured").and_then(Value::as_bool).unwrap_or(true);
        let left = Duration::from_secs(step.number("timeout").unwrap_or(600));
        let now = self.network.now();
        let conntrack = self.network.node_mut(id).netns.conntrack_mut();
        let max = u64::from(conntrack.sysctls().max);
        let wanted = (max - leave.min(max)).saturating_sub(conntrack.len() as u64);
        for i in 0..wanted {
            let (host, port) = ((i / 60_000) as u8, 1024 + (i % 60_000) as u16);
            let (src, dst) = ([198, 18, host, 1].into(), [198, 19, 0, 1].into());
            let original = Tuple::v4(Protocol::UDP, src, port, dst, 9);
            let listing = Listing {
                original,
                reply: original.reply(),
                zones: [0; 2],
                left,
                tcp_state: None,
                seen_reply: known,
                assured: known,
                mark: 0,
            };
            conntrack.insert(now, &listing).map_err(|error| error.to_string())?;
        }
        Ok(json!({"free": max.saturating_sub(conntrack.len() as u64), "ok": true}))
    }

    pub(super) fn ct_stats(&mut self, step: &Value) -> Result<Value, String> {
        let (_, id) = self.endpoint(step, "node")?;
        let stats = self.network.node(id).netns.conntrack().stats();
        let all = [
            ("invalid", stats.invalid),
            ("insert", stats.insert),
            ("insert_failed", stats.insert_failed),
            ("drop", stats.drop),
            ("early_drop", stats.early_drop),
            ("clash_resolve", stats.clash_resolve),
        ];
        let mut keys = step.texts("keys");
        if keys.is_empty() {
            let usual = ["invalid", "insert_failed", "drop", "early_drop", "clash_resolve"];
            keys = usual.map(str::to_owned).into();
        }
        let wanted: BTreeMap<&str, u64> =
            all.into_iter().filter(|(key, _)| keys.iter().any(|wanted| wanted == key)).collect();
        Ok(json!({"stats": wanted}))
    }

    pub(super) fn counters(&mut self, step: &Value) -> Result<Value, String> {
        let (_, id) = self.endpoint(step, "node")?;
        let ipv4 = step.text("family") != Some("ip6tables");
        let node = self.network.node(id);
        let (ruleset, counts) = if ipv4 {
            (&node.rules.ipv4, &node.dice.ipv4)
        } else {
            (&node.rules.ipv6, &node.dice.ipv6)
        };
        let mut packets = BTreeMap::new();
        for table_name in step.texts("tables") {
            let Some(table) = table_named(&table_name) else {
                continue;
            };
            for chain in ruleset.chains(table) {
                let mut put = |what: String, count: u64| {
                    if count > 0 || !step.flag("nonzero") {
                        packets.insert(format!("{table_name} {} {what}", chain.name()), count);
                    }
                };
                if chain.hook().is_some() {
                    put("policy".to_owned(), counts.policy(table.into(), chain.id()));
                }
                for number in 1..=chain.rules().len() as u32 {
                    put(number.to_string(), counts.rule(table.into(), chain.id(), number));
                }
            }
        }
        Ok(json!({"packets": packets}))
    }

    pub(super) fn recent(&mut self, step: &Value) -> Result<Value, String> {
        let (_, id) = self.endpoint(step, "node")?;
        let list = step.text("list").ok_or("no \"list\"")?;
        let memory = self.network.node(id).netns.memory();
        let mut entries: Vec<(IpAddr, Value)> = Vec::new();
        for entry in memory.recent(list).into_iter().flatten() {
            let value = json!({
                "src": entry.address.to_string(), "ttl": entry.ttl, "stamps": entry.stamps.len()
            });
            entries.push((entry.address, value));
        }
        entries.sort_by_key(|(address, _)| *address);
        let entries: Vec<Value> = entries.into_iter().map(|(_, value)| value).collect();
        Ok(json!({"entries": entries}))
    }

    pub(super) fn ipset_list(&mut self, step: &Value) -> Result<Value, String> {
        let (_, id) = self.endpoint(step, "node")?;
        let name = step.text("set").ok_or("no \"set\"")?;
        let now = self.network.now();
        let sets = &self.network.node(id).netns.memory().sets;
        let text = sets.get(name).map(|set| set.save(now)).unwrap_or_default();
        let mut lines: Vec<&str> = text.lines().filter(|line| line.starts_with("add ")).collect();
        lines.sort_unstable();
        Ok(json!({"lines": lines}))
    }

    pub(super) fn save(&mut self, step: &Value) -> Result<Value, String> {
        let (name, _) = self.endpoint(step, "node")?;
        let mut lines = Vec::new();
        if let Some(dump) = &self.loaded[&name].dump {
            let text = dump.iptables_save(WithCounters::No);
            let mut of_table = true;
            for line in text.lines() {
                if let Some(table) = line.strip_prefix('*') {
                    of_table = step.text("table").is_none_or(|wanted| wanted == table);
                }
                if !of_table || line.starts_with('#') {
                    continue;
                }
                let bare = match line.starts_with(':') {
                    true => line.rsplit_once(" [").map_or(line, |(bare, _)| bare),
                    false => line,
                };
                lines.push(bare.to_owned());
            }
        }
        Ok(json!({"lines": lines}))
    }

    /// Loads sets.
    pub(super) fn load_ipset(&mut self, id: NodeId, text: &str) {
        let read = read::ipset(text);
        for remark in read.remarks {
            self.remarks.push(format!("{:?}: {}", remark.text, remark.problem));
        }
        let memory = self.network.node_mut(id).netns.memory_mut();
        for set in read.value.iter() {
            memory.sets.insert(set.clone());
        }
    }
}

/// Returns what `conntrack -L` or `-D` is asked for.
fn filter(step: &Value) -> Result<Filter, String> {
    let args = step.texts("args");
    Filter::parse(args.iter().map(String::as_str)).map_err(|error| error.to_string())
}

/// Returns the name that the conntrack tool prints for a protocol.
fn protocol_name(protocol: Protocol) -> &'static str {
    match protocol {
        Protocol::TCP => "tcp",
        Protocol::UDP => "udp",
        Protocol::ICMP => "icmp",
        Protocol::ICMPV6 => "icmpv6",
        Protocol::SCTP => "sctp",
        Protocol::UDPLITE => "udplite",
        Protocol(47) => "gre",
        _ => "unknown",
    }
}

fn described(entry: &Entry, now: SimTime, exact: bool) -> Value {
    let (original, reply) = (entry.tuple(Direction::Original), entry.tuple(Direction::Reply));
    let status = entry.status();
    let mut flags = Vec::new();
    if status.contains(Status::ASSURED) {
        flags.push("ASSURED");
    }
    if !status.contains(Status::SEEN_REPLY) {
        flags.push("UNREPLIED");
    }
    let mut value = json!({
        "proto": protocol_name(original.protocol),
        "timeout": entry.deadline().saturating_since(now).as_secs(),
        "mark": entry.mark(),
        "orig": sides(original),
        "reply": sides(reply),
        "flags": flags,
    });
    if let Some(state) = entry.tcp_state() {
        value["state"] = json!(state.name());
    }
    let zone = entry.zone(Direction::Original);
    if zone > 0 {
        value["zone"] = json!(zone);
    }
    if !exact {
        if original.protocol.has_ports() && reply.dst_part != original.src_part {
            value["reply"]["dport"] = json!("changed");
        }
        if original.protocol.is_icmp() && reply.src_part != original.src_part {
            value["reply"]["id"] = json!("changed");
        }
    }
    value
}

fn sides(tuple: &Tuple) -> Value {
    let mut value = json!({"src": tuple.src().to_string(), "dst": tuple.dst().to_string()});
    if tuple.protocol.has_ports() {
        value["sport"] = json!(tuple.src_part);
        value["dport"] = json!(tuple.dst_part);
    } else if tuple.protocol.is_icmp() {
        let (icmp_type, code) = tuple.icmp_kind();
        value["type"] = json!(icmp_type);
        value["code"] = json!(code);
        value["id"] = json!(tuple.src_part);
    }
    value
}
