//! The host of `--host`: a file of its own, or what `ip -j addr` and `ip -j route` print.
//!
//! JSON is YAML: one reader takes all three, and says where something is wrong.

use std::net::IpAddr;

use netfilter_model::tuple::Protocol;
use netfilter_model::{DeviceId, DeviceName, Prefix};

use super::host::{Listener, NodeHost, Way};
use super::input::Input;
use crate::file::diagnostic::{Diagnostic, Diagnostics, Sources, Span};
use crate::file::tree::{self, Entry, Node, Value};

/// Reads the files of one host.
pub(super) fn read(
    files: &[String],
    sources: &mut Sources,
    diagnostics: &mut Diagnostics,
) -> Option<NodeHost> {
    let mut reader = Reader { host: NodeHost::new(), routes: Vec::new(), diagnostics };
    for name in files {
        let input = match Input::open(name) {
            Ok(input) => input,
            Err(message) => {
                let help = "--host takes the name of a file, or - for stdin";
                reader.diagnostics.push(Diagnostic::placeless("unreadable", message).help(help));
                continue;
            }
        };
        let file = sources.add(&input.name, input.text.clone());
        let documents = tree::parse(&input.text, file, reader.diagnostics);
        let Some(root) = documents.first() else {
            let span = Span::new(file, 0, 0);
            reader.diagnostics.push(Diagnostic::error(
                "missing-field",
                span,
                "nothing is said here",
            ));
            continue;
        };
        match &root.value {
            Value::Map(entries) => reader.own(entries),
            Value::List(items) if items.iter().any(|item| item.get("ifname").is_some()) => {
                reader.ip_addr(items);
            }
            Value::List(items) if items.iter().any(|item| item.get("dst").is_some()) => {
                reader.ip_route(items);
            }
            _ => reader.wrong(root, "no description of a host", HELP),
        }
    }
    reader.finish()
}

const HELP: &str = "a host has `devices:`, `routes:`, `sysctls:` and `listeners:`; the output of \
                    `ip -j addr` and `ip -j route` is also understood";

struct Reader<'d> {
    host: NodeHost,
    /// Routes wait for the devices.
    routes: Vec<(Prefix, Target, Span)>,
    diagnostics: &'d mut Diagnostics,
}

/// Where a route leads, as it is written.
#[derive(Clone, Copy, Debug)]
struct Target {
    via: Option<IpAddr>,
    dev: Option<DeviceName>,
    refusal: Option<Way>,
    metric: u32,
}

impl Reader<'_> {
    fn wrong(&mut self, at: &Node, message: impl Into<String>, help: &str) {
        self.diagnostics.push(Diagnostic::error("bad-host", at.span, message).help(help));
    }

    fn unknown(&mut self, entry: &Entry, known: &[&str]) {
        let near = known.iter().find(|k| strsim::damerau_levenshtein(k, &entry.key) <= 2);
        let help = match near {
            Some(near) => format!("`{near}`?"),
            None => format!("known here: {}", known.join(", ")),
        };
        let message = format!("unknown field `{}`", entry.key);
        let diagnostic = Diagnostic::error("unknown-field", entry.key_span, message);
        self.diagnostics.push(diagnostic.help(help));
    }

    /// Reads a file of our own.
    fn own(&mut self, entries: &[Entry]) {
        for entry in entries {
            match entry.key.as_str() {
                "devices" => self.devices(&entry.value),
                "routes" => self.own_routes(&entry.value),
                "sysctls" => {}
                "listeners" => self.listeners(&entry.value),
                _ => self.unknown(entry, &["devices", "routes", "sysctls", "listeners"]),
            }
        }
        // Those of single devices need the devices.
        for entry in entries.iter().filter(|entry| entry.key == "sysctls") {
            self.sysctls(&entry.value);
        }
    }

    fn devices(&mut self, node: &Node) {
        if node.entries().is_empty() {
            self.wrong(
                node,
                "no devices",
                "as in `devices: { eth0: { addresses: [192.0.2.1/24] } }`",
            );
        }
        for entry in node.entries() {
            let Ok(name) = DeviceName::parse(&entry.key) else {
                self.wrong(&entry.value, format!("{:?} is no device name", entry.key), HELP);
                continue;
            };
            let dev = self.host.device(name);
            for field in entry.value.entries() {
                let value = &field.value;
                match field.key.as_str() {
                    "addresses" => {
                        for item in value.items() {
                            self.address(dev, item);
                        }
                        if !matches!(value.value, Value::List(_)) {
                            self.address(dev, value);
                        }
                    }
                    "bridge" => self.flag(value, |host, on| host.get_mut(dev).bridge = on),
                    "hairpin" => self.flag(value, |host, on| host.get_mut(dev).hairpin = on),
                    _ => self.unknown(field, &["addresses", "bridge", "hairpin"]),
                }
            }
        }
    }

    fn flag(&mut self, node: &Node, set: impl FnOnce(&mut NodeHost, bool)) {
        match node.value {
            Value::Bool(on) => set(&mut self.host, on),
            Value::Int(number @ (0 | 1)) => set(&mut self.host, number == 1),
            _ => {
                self.wrong(node, format!("{} where true or false is expected", node.describe()), "")
            }
        }
    }

    fn address(&mut self, dev: DeviceId, node: &Node) {
        let parsed = node.text().and_then(prefixed);
        match parsed {
            Some((addr, len)) => self.add_address(dev, addr, len),
            None => {
                let message = format!("{} where an address is expected", node.describe());
                self.wrong(node, message, "as in `192.168.0.10/24`");
            }
        }
    }

    fn add_address(&mut self, dev: DeviceId, addr: IpAddr, len: u8) {
        if !self.host.is_own(addr) {
            self.host.address(dev, addr, len, None);
        }
    }

    fn own_routes(&mut self, node: &Node) {
        for item in node.items() {
            for entry in item.entries() {
                let known = ["to", "via", "dev", "type", "metric"];
                if !known.contains(&entry.key.as_str()) {
                    self.unknown(entry, &known);
                }
            }
            self.route(item, "to", "via");
        }
    }

    fn route(&mut self, item: &Node, to: &str, via: &str) {
        let Some(destination) = item.get(to).filter(|node| node.text().is_some()) else {
            self.wrong(
                item,
                format!("a route without `{to}`"),
                "as in `{ to: default, via: 192.168.0.1 }`",
            );
            return;
        };
        let via = match item.get(via) {
            None => None,
            Some(node) => match node.text().and_then(|text| text.parse::<IpAddr>().ok()) {
                Some(addr) => Some(addr),
                None => {
                    self.wrong(
                        node,
                        format!("{} is no address", node.describe()),
                        "as in `192.168.0.1`",
                    );
                    return;
                }
            },
        };
        let refusal = match item.get("type").and_then(Node::text) {
            None | Some("unicast") => None,
            Some("unreachable") => Some(Way::Unreachable),
            Some("prohibit") => Some(Way::Prohibit),
            Some("blackhole") => Some(Way::Blackhole),
            // Local and broadcast routes follow from addresses.
            Some("local" | "broadcast" | "anycast" | "multicast") => return,
            Some(_) => {
                let node = item.get("type").expect("just seen");
                let help = "unicast, unreachable, prohibit or blackhole";
                self.wrong(node, format!("{} is no type of route", node.describe()), help);
                return;
            }
        };
        let text = destination.text().unwrap_or_default();
        let prefix = match text {
            "default" => {
                let v6 = via.is_some_and(|via| via.is_ipv6());
                let any = if v6 { IpAddr::from([0u16; 8]) } else { IpAddr::from([0u8; 4]) };
                Some((any, 0))
            }
            text => prefixed(text),
        };
        let Some((addr, len)) = prefix else {
            self.wrong(
                destination,
                format!("{text:?} is no destination"),
                "`default`, or as in `10.244.2.0/24`",
            );
            return;
        };
        let dev = match item.get("dev") {
            None => None,
            Some(node) => match node.text().and_then(|name| DeviceName::parse(name).ok()) {
                Some(name) => Some(name),
                None => {
                    self.wrong(
                        node,
                        format!("{} is no device name", node.describe()),
                        "as in `eth0`",
                    );
                    return;
                }
            },
        };
        let metric = item.get("metric").and_then(Node::int).and_then(|m| u32::try_from(m).ok());
        let target = Target { via, dev, refusal, metric: metric.unwrap_or(0) };
        self.routes.push((Prefix::new(addr, len), target, item.span));
    }

    fn listeners(&mut self, node: &Node) {
        let listeners = self.host.listeners.get_or_insert_default();
        let mut wrong = Vec::new();
        for item in node.items() {
            match item.text().and_then(listener) {
                Some(listener) => listeners.push(listener),
                None => wrong.push(item),
            }
        }
        for item in wrong {
            let message = format!("{} where a socket is expected", item.describe());
            self.wrong(item, message, "as in `tcp/22` or `udp/53@10.244.1.1`");
        }
    }

    fn sysctls(&mut self, node: &Node) {
        for entry in node.entries() {
            let value = entry.value.int().or_else(|| entry.value.bool().map(i64::from));
            let Some(value) = value.and_then(|value| u8::try_from(value).ok()) else {
                let message =
                    format!("{} where a small number is expected", entry.value.describe());
                self.wrong(&entry.value, message, "as in `net.ipv4.ip_forward: 1`");
                continue;
            };
            if !self.sysctl(&entry.key, value) {
                let message = format!("`{}` is not used here", entry.key);
                let help = "used are net.ipv4.ip_forward, net.ipv4.conf.{all,DEVICE}.route_localnet, \
                            net.ipv4.conf.{all,DEVICE}.rp_filter, net.bridge.bridge-nf-call-iptables";
                let diagnostic = Diagnostic::warning("unused-sysctl", entry.key_span, message);
                self.diagnostics.push(diagnostic.help(help));
            }
        }
    }

    /// Returns whether the sysctl is one that matters.
    fn sysctl(&mut self, name: &str, value: u8) -> bool {
        let name = name.replace('/', ".");
        match name.as_str() {
            "net.ipv4.ip_forward"
            | "net.ipv4.conf.all.forwarding"
            | "net.ipv6.conf.all.forwarding" => {
                self.host.forwarding = value != 0;
                return true;
            }
            "net.bridge.bridge-nf-call-iptables" | "net.bridge.bridge-nf-call-ip6tables" => {
                self.host.bridge_nf = value != 0;
                return true;
            }
            _ => {}
        }
        let Some(rest) = name.strip_prefix("net.ipv4.conf.") else {
            return false;
        };
        // A device's name may hold dots itself.
        let Some((device, key)) = rest.rsplit_once('.') else {
            return false;
        };
        let wanted = DeviceName::parse(device).ok();
        let mut known = device == "all" || device == "default";
        for of in self.host.devices_mut() {
            if device == "all" || Some(of.name) == wanted {
                known = true;
                // Kernel: inetdevice.h: the larger, or either, of both counts.
                match key {
                    "route_localnet" => of.route_localnet |= value != 0,
                    "rp_filter" => of.rp_filter = of.rp_filter.max(value.min(2)),
                    _ => return false,
                }
            }
        }
        known && matches!(key, "route_localnet" | "rp_filter")
    }

    /// Reads the output of `ip -j addr`.
    fn ip_addr(&mut self, items: &[Node]) {
        for item in items {
            let Some(name) = item.get("ifname").and_then(Node::text) else {
                continue;
            };
            // `eth0@if5` names the other end, too.
            let name = name.split('@').next().unwrap_or(name);
            let Ok(name) = DeviceName::parse(name) else {
                continue;
            };
            let dev = self.host.device(name);
            let kind = item.get("linkinfo").and_then(|info| info.get("info_kind"));
            let looks = ["cni", "docker", "br-", "virbr", "cbr", "kube-bridge"];
            let bridge = match kind.and_then(Node::text) {
                Some(kind) => kind == "bridge",
                None => looks.iter().any(|prefix| name.as_str().starts_with(prefix)),
            };
            self.host.get_mut(dev).bridge = bridge;
            for info in item.get("addr_info").map_or(&[][..], Node::items) {
                let local = info.get("local").and_then(Node::text);
                let addr = local.and_then(|text| text.parse::<IpAddr>().ok());
                let len = info.get("prefixlen").and_then(Node::int);
                let max = |addr: &IpAddr| if addr.is_ipv4() { 32 } else { 128 };
                if let (Some(addr), Some(len)) = (addr, len)
                    && (0..=max(&addr)).contains(&len)
                {
                    self.add_address(dev, addr, len as u8);
                }
            }
        }
    }

    /// Reads the output of `ip -j route`.
    fn ip_route(&mut self, items: &[Node]) {
        for item in items {
            self.route(item, "dst", "gateway");
        }
    }

    fn finish(mut self) -> Option<NodeHost> {
        for (to, target, span) in std::mem::take(&mut self.routes) {
            let way = match target {
                Target { refusal: Some(way), .. } => way,
                Target { dev: Some(name), via, .. } => Way::Out(self.host.device(name), via),
                Target { via: Some(via), .. } => match self.host.device_toward(via) {
                    Some(dev) => Way::Out(dev, Some(via)),
                    None => {
                        let message = format!("{via} is on no device's network");
                        let help = "give the device, as in `dev: eth0`";
                        self.diagnostics
                            .push(Diagnostic::error("bad-host", span, message).help(help));
                        continue;
                    }
                },
                Target { .. } => {
                    let message = "a route without `via` and `dev`";
                    let help = "as in `{ to: default, via: 192.168.0.1, dev: eth0 }`";
                    self.diagnostics.push(Diagnostic::error("bad-host", span, message).help(help));
                    continue;
                }
            };
            self.host.route_to(to, way, target.metric, None);
        }
        (!self.diagnostics.has_errors()).then_some(self.host)
    }
}

/// Reads `ADDRESS/LEN`, or an address alone.
fn prefixed(text: &str) -> Option<(IpAddr, u8)> {
    let (addr, len) = match text.split_once('/') {
        Some((addr, len)) => (addr, Some(len)),
        None => (text, None),
    };
    let addr: IpAddr = addr.parse().ok()?;
    let max = if addr.is_ipv4() { 32 } else { 128 };
    let len = len.map_or(Some(max), |len| len.parse().ok())?;
    (len <= max).then_some((addr, len))
}

/// Reads `PROTOCOL/PORT` or `PROTOCOL/PORT@ADDRESS`.
fn listener(text: &str) -> Option<Listener> {
    let (what, address) = match text.split_once('@') {
        Some((what, address)) => (what, Some(address.parse().ok()?)),
        None => (text, None),
    };
    let (protocol, port) = what.split_once('/')?;
    let protocol = match protocol {
        "tcp" => Protocol::TCP,
        "udp" => Protocol::UDP,
        "sctp" => Protocol::SCTP,
        _ => return None,
    };
    Some(Listener { protocol, port: port.parse().ok()?, address })
}
