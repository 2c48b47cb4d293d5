//! The network of a case made of network namespaces: nodes with bridges, Pods, other machines.

use std::io::{BufRead, BufReader};
use std::process::{Child, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use serde_json::Value;

use crate::lab::{Tool, ip, run_in, spoken};

/// Namespaces and servers; gone when dropped, also by a panic.
pub(crate) struct Cluster {
    tag: String,
    tool: Tool,
    places: Vec<String>,
    servers: Vec<Child>,
}

fn text<'v>(value: &'v Value, key: &str) -> Option<&'v str> {
    value.get(key)?.as_str()
}

fn list<'v>(value: &'v Value, key: &str) -> impl Iterator<Item = &'v Value> {
    value.get(key).and_then(Value::as_array).into_iter().flatten()
}

fn texts<'v>(value: &'v Value, key: &str) -> impl Iterator<Item = &'v str> {
    list(value, key).filter_map(Value::as_str)
}

/// Returns what stands behind the slash.
fn len_of(prefix: &str) -> &str {
    prefix.split_once('/').map_or("24", |(_, len)| len)
}

impl Cluster {
    /// Builds the network and loads the rules, or says why it cannot.
    pub(crate) fn try_new(tool: Tool, case: &Value) -> Result<Cluster, String> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let tag = format!("nfk{}x{count}", std::process::id());
        let mut cluster = Cluster { tag, tool, places: Vec::new(), servers: Vec::new() };
        cluster.build(&case["topology"])?;
        for (place, rules) in case.get("rules").and_then(Value::as_object).into_iter().flatten() {
            cluster.load(place, rules)?;
        }
        Ok(cluster)
    }

    fn ns(&self, place: &str) -> String {
        format!("{}{place}", self.tag)
    }

    fn ip(&self, place: &str, args: &str) -> Result<String, String> {
        ip(&format!("-n {} {args}", self.ns(place)))
    }

    fn place(&mut self, name: &str, forwards: bool) -> Result<(), String> {
        let ns = self.ns(name);
        ip(&format!("netns add {ns}"))?;
        self.places.push(name.to_owned());
        let mut set = format!("net.ipv4.ip_forward={}\n", u8::from(forwards));
        for dev in ["all", "default"] {
            for key in ["rp_filter", "send_redirects", "accept_redirects", "route_localnet"] {
                set.push_str(&format!("net.ipv4.conf.{dev}.{key}=0\n"));
            }
            for key in ["accept_dad", "accept_ra", "router_solicitations"] {
                set.push_str(&format!("net.ipv6.conf.{dev}.{key}=0\n"));
            }
        }
        set.push_str(&format!("net.ipv6.conf.all.forwarding={}\n", u8::from(forwards)));
        self.set(name, &set)?;
        self.ip(name, "link set lo up").map(drop)
    }

    /// Sets sysctls, one a line.
    fn set(&self, place: &str, lines: &str) -> Result<(), String> {
        let script = "while IFS== read -r key value; do \
                      echo \"$value\" > /proc/sys/$(echo \"$key\" | tr . /) || exit 1; done";
        run_in(&self.ns(place), "sh", &["-c", script], lines).map(drop)
    }

    fn build(&mut self, topology: &Value) -> Result<(), String> {
        let fabric = text(topology, "fabric").unwrap_or("172.18.0.0/16");
        self.place("fab", false)?;
        self.ip("fab", "link add sw0 type bridge forward_delay 0 mcast_snooping 0")?;
        self.ip("fab", "link set sw0 up")?;
        // A switch asks no rules.
        self.set(
            "fab",
            "net.bridge.bridge-nf-call-iptables=0\nnet.bridge.bridge-nf-call-ip6tables=0\n",
        )?;
        let machines: Vec<(&Value, bool)> = list(topology, "nodes")
            .map(|node| (node, true))
            .chain(list(topology, "remotes").map(|remote| (remote, false)))
            .collect();
        for (machine, forwards) in &machines {
            let name = text(machine, "name").ok_or("a machine without a name")?;
            self.place(name, *forwards)?;
            let (fab, own) = (self.ns("fab"), self.ns(name));
            ip(&format!("link add p-{name} netns {fab} type veth peer name eth0 netns {own}"))?;
            self.ip("fab", &format!("link set p-{name} master sw0 up"))?;
            self.ip(name, "link set eth0 up")?;
            for (key, len) in [("ip", len_of(fabric)), ("ip6", "64")] {
                if let Some(address) = text(machine, key) {
                    self.ip(name, &format!("address add {address}/{len} dev eth0"))?;
                }
            }
            self.attach_pods(name, machine)?;
            let dev = text(machine, "also_dev").unwrap_or("lo");
            for address in texts(machine, "also") {
                self.ip(name, &format!("address add {address}/32 dev {dev}"))?;
            }
        }
        for (machine, _) in &machines {
            let name = text(machine, "name").unwrap_or_default();
            for (other, _) in machines.iter().filter(|(other, _)| other != machine) {
                for (subnet, via) in [("pod_subnet", "ip"), ("pod_subnet6", "ip6")] {
                    if let (Some(subnet), Some(via)) = (text(other, subnet), text(other, via)) {
                        self.ip(name, &format!("route add {subnet} via {via}"))?;
                    }
                }
            }
            for route in texts(machine, "routes") {
                self.ip(name, &format!("route add {route}"))?;
            }
            self.change_sysctls(name, machine.get("sysctls"))?;
            self.serve(machine)?;
            for pod in list(machine, "pods") {
                self.serve(pod)?;
            }
        }
        Ok(())
    }

    fn attach_pods(&mut self, node: &str, machine: &Value) -> Result<(), String> {
        let mut pods = list(machine, "pods").peekable();
        if pods.peek().is_none() {
            return Ok(());
        }
        let nets = [("pod_subnet", "bridge_ip", "ip"), ("pod_subnet6", "bridge_ip6", "ip6")];
        self.ip(node, "link add cni0 type bridge forward_delay 0 mcast_snooping 0")?;
        self.ip(node, "link set cni0 up")?;
        for (subnet, bridge, _) in nets {
            if let (Some(subnet), Some(address)) = (text(machine, subnet), text(machine, bridge)) {
                self.ip(node, &format!("address add {address}/{} dev cni0", len_of(subnet)))?;
            }
        }
        for pod in pods {
            let name = text(pod, "name").ok_or("a Pod without a name")?;
            self.place(name, false)?;
            let (outer, own) = (self.ns(node), self.ns(name));
            ip(&format!(
                "link add veth-{name} netns {outer} type veth peer name eth0 netns {own}"
            ))?;
            self.ip(node, &format!("link set veth-{name} master cni0 up"))?;
            if machine.get("hairpin") == Some(&Value::Bool(true)) {
                self.ip(node, &format!("link set veth-{name} type bridge_slave hairpin on"))?;
            }
            self.ip(name, "link set eth0 up")?;
            for (subnet, bridge, key) in nets {
                if let (Some(subnet), Some(bridge), Some(address)) =
                    (text(machine, subnet), text(machine, bridge), text(pod, key))
                {
                    let len = len_of(subnet);
                    self.ip(name, &format!("address add {address}/{len} dev eth0"))?;
                    let family = if key == "ip6" { "-6 " } else { "" };
                    self.ip(name, &format!("{family}route add default via {bridge}"))?;
                }
            }
        }
        Ok(())
    }

    fn serve(&mut self, machine: &Value) -> Result<(), String> {
        let specs: Vec<&str> = texts(machine, "listen").collect();
        let Some(name) = text(machine, "name").filter(|_| !specs.is_empty()) else {
            return Ok(());
        };
        let args = format!("{name} {}", specs.join(" "));
        let mut command = crate::lab::role_in(&self.ns(name), "listen", &args);
        let spawned = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let child = spawned.spawn().map_err(|error| format!("{command:?}: {error}"))?;
        self.servers.push(child);
        let child = self.servers.last_mut().expect("just pushed");
        let mut lines = BufReader::new(child.stdout.as_mut().expect("piped")).lines();
        let ready = |line: std::io::Result<String>| line.is_ok_and(|line| line.ends_with("ready"));
        if lines.any(ready) { Ok(()) } else { Err(format!("the server of {name} did not start")) }
    }

    fn load(&self, place: &str, rules: &Value) -> Result<(), String> {
        for family in ["iptables", "ip6tables"] {
            if rules.get(family).is_none() {
                continue;
            }
            let lines: String = texts(rules, family).map(|line| format!("{line}\n")).collect();
            let program = format!("{}-restore", self.tool.name_of(family));
            let noflush: &[&str] =
                if rules.get("noflush").is_some() { &["--noflush"] } else { &[] };
            run_in(&self.ns(place), &program, noflush, &lines)?;
        }
        Ok(())
    }

    fn change_sysctls(&self, place: &str, values: Option<&Value>) -> Result<(), String> {
        let values = values.and_then(Value::as_object).into_iter().flatten();
        let lines: String = values.map(|(key, value)| format!("{key}={value}\n")).collect();
        self.set(place, &lines)
    }

    /// Does what a step changes; what it only looks at is passed over.
    pub(crate) fn change(&self, step: &Value) -> Result<(), String> {
        let place = text(step, "node").unwrap_or_default();
        match text(step, "do") {
            Some("rules") => self.load(place, step),
            Some("sysctl") => self.change_sysctls(place, step.get("values")),
            _ => Ok(()),
        }
    }

    /// Lets a program use a service; returns what it learns.
    pub(crate) fn flow(&self, step: &Value) -> Result<String, String> {
        let (from, dst) = (text(step, "from"), text(step, "dst"));
        let (from, dst) = (from.ok_or("no \"from\"")?, dst.ok_or("no \"dst\"")?);
        let port = step.get("dport").and_then(Value::as_u64).unwrap_or(0);
        let size = step.get("size").and_then(Value::as_u64).unwrap_or(8);
        let to =
            if dst.contains(':') { format!("[{dst}]:{port}") } else { format!("{dst}:{port}") };
        let args = format!("{} {to} {size}", text(step, "proto").unwrap_or("tcp"));
        let lines = spoken(&mut crate::lab::role_in(&self.ns(from), "flow", &args))?;
        lines.into_iter().next().ok_or_else(|| "the client said nothing".to_owned())
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for server in &mut self.servers {
            let _ = server.kill();
            let _ = server.wait();
        }
        for place in &self.places {
            let _ = ip(&format!("netns delete {}", self.ns(place)));
        }
    }
}
