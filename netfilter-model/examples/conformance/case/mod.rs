//! One case: the network that it describes, and its steps one after the other.

mod flow;
mod json;
mod listing;
mod packet;
mod restore;
mod rules;
mod settings;
mod topology;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use netfilter_model::network::{Network, NodeId, SocketId};
use serde_json::{Value, json};

use json::Get;
use rules::Loaded;

/// Random draws come from this.
const SEED: u64 = 0x6b65_726e_656c;

/// What came of a case.
pub(crate) struct Ran {
    /// In the form of a result file.
    pub(crate) result: Value,
    /// What was not understood.
    pub(crate) remarks: Vec<String>,
}

/// What an endpoint is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Node,
    Pod,
    Remote,
}

struct Endpoint {
    id: NodeId,
    kind: Kind,
    local: Vec<IpAddr>,
}

/// The network of a case, and what its steps have to remember.
struct World {
    network: Network,
    endpoints: BTreeMap<String, Endpoint>,
    names: BTreeMap<NodeId, String>,
    loaded: BTreeMap<String, Loaded>,
    six: bool,
    next_port: u64,
    /// The id of the last packet; answers keep it.
    last_id: u64,
    tcp: BTreeMap<String, SocketId>,
    udp: BTreeMap<(String, Option<IpAddr>, u16), SocketId>,
    remarks: Vec<String>,
}

/// Runs a case.
pub(crate) fn run(case: &Value) -> Result<Ran, String> {
    let mut world = topology::build(case)?;
    if let Some(rules) = case.get("rules").and_then(Value::as_object) {
        for (endpoint, rules) in rules {
            if !world.load(endpoint, rules)? {
                return Err(format!("rules of {endpoint} do not load"));
            }
        }
    }
    let mut steps = Vec::new();
    for (at, step) in case.list("steps").iter().enumerate() {
        let kind = step.text("do").ok_or("a step without \"do\"")?.to_owned();
        let mut result =
            world.step(&kind, step).map_err(|problem| format!("step {}: {problem}", at + 1))?;
        if let Some(object) = result.as_object_mut() {
            object.insert("do".to_owned(), json!(kind));
        }
        steps.push(result);
    }
    let name = case.text("name").unwrap_or("case");
    let result = json!({"case": name, "format": 1, "steps": steps});
    Ok(Ran { result, remarks: world.remarks })
}

impl World {
    fn step(&mut self, kind: &str, step: &Value) -> Result<Value, String> {
        match kind {
            "flow" => self.flow(step),
            "send" => self.send(step),
            "packet" => self.packet(step),
            "rules" => self.rules(step),
            "conntrack" => self.conntrack(step),
            "ct_delete" => self.ct_delete(step),
            "ct_fill" => self.ct_fill(step),
            "ct_stats" => self.ct_stats(step),
            "counters" => self.counters(step),
            "recent" => self.recent(step),
            "ipset_list" => self.ipset_list(step),
            "save" => self.save(step),
            "sysctl" => self.sysctl(step),
            "ip" => self.ip(step),
            "sleep" => {
                let seconds = step.get("seconds").and_then(Value::as_f64).unwrap_or(0.0);
                self.pass(seconds.clamp(0.0, 30.0));
                Ok(json!({}))
            }
            other => Err(format!("{other:?} is no step")),
        }
    }

    fn pass(&mut self, seconds: f64) {
        self.network.advance(Duration::from_secs_f64(seconds));
    }

    fn endpoint(&self, step: &Value, key: &str) -> Result<(String, NodeId), String> {
        let name = step.text(key).ok_or_else(|| format!("no {key:?}"))?;
        let endpoint = self.endpoints.get(name);
        let endpoint = endpoint.ok_or_else(|| format!("{name:?} is no endpoint"))?;
        Ok((name.to_owned(), endpoint.id))
    }

    /// Returns the name and kind of a host, and whether an address is its own as listed.
    fn who(&self, id: NodeId) -> (&str, Kind, &[IpAddr]) {
        let name = &self.names[&id];
        let endpoint = &self.endpoints[name];
        (name, endpoint.kind, &endpoint.local)
    }

    fn new_id(&mut self) -> u64 {
        self.last_id += 1;
        self.last_id
    }
}
