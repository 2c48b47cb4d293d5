//! The kernel arm: a node in a network namespace of the running kernel, and all cables in hand.
//!
//! Two namespaces without names hold the node and the far ends of its cables. They live as long
//! as this process: nothing is left behind, however it ends. A frame is written to the far end of
//! a cable; what the node does with it happens before the write returns, on the same processor, so
//! that a packet that does not arrive is known to be lost without waiting for it.

mod sockets;

use std::fs::{self, File};
use std::io::Write as _;
use std::process::{Command, Stdio};

use netfilter_model::DeviceId;
use netfilter_model::packet::Packet;
use nix::sched::{CloneFlags, CpuSet, sched_getaffinity, sched_setaffinity, setns, unshare};
use nix::unistd::Pid;

use super::case::{Backend, Case};
use super::connection::Connection;
use super::generate::NFT_TABLES;
use super::place::{
    BEHIND, CABLES, DEVICES, Family, LO, OWN, Place, REFUSED, Settings, device_mac,
};
use super::seen::Seen;
use super::wire;
use sockets::{Cable, Conntrack, Listener, Sender};

/// Why the kernel arm cannot do something.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum RigError {
    /// Something about the machine.
    #[error("{0}")]
    Machine(String),
    /// The kernel, or its tool, does not take a ruleset.
    #[error("the kernel refuses the rules: {0}")]
    Refused(String),
}

fn machine(what: &str, error: impl std::fmt::Display) -> RigError {
    RigError::Machine(format!("{what}: {error}"))
}

/// A node in the running kernel.
pub(super) struct Rig {
    backend: Backend,
    node: File,
    cables: Vec<Cable>,
    listeners: Vec<Listener>,
    sender: Sender,
    conntrack: Conntrack,
    /// What the node is set to; `None` before the first case.
    settings: Option<Settings>,
    /// The families of which the rules there have lists with names.
    lists: Vec<Family>,
    /// There are rules of nftables beside those of iptables.
    beside: bool,
    /// The node has a UDP socket.
    _socket: std::net::UdpSocket,
}

fn own_namespace() -> Result<File, RigError> {
    File::open("/proc/thread-self/ns/net").map_err(|error| machine("its own namespace", error))
}

/// Runs a program in the thread's network namespace.
pub(super) fn run(program: &str, args: &[&str], input: &str) -> Result<String, String> {
    let mut command = Command::new(program);
    // Tables belong to namespaces; the lock is for programs that share one.
    command.args(args).env("XTABLES_LOCKFILE", "/dev/null");
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(|error| format!("{program}: {error}"))?;
    let mut stdin = child.stdin.take().expect("piped");
    let sent = stdin.write_all(input.as_bytes());
    drop(stdin);
    let output = child.wait_with_output().map_err(|error| format!("{program}: {error}"))?;
    if sent.is_ok() && output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let error = String::from_utf8_lossy(&output.stderr);
    Err(format!("{program}: {}", error.trim()))
}

fn sysctl(path: &str, value: &str) -> Result<(), RigError> {
    let path = format!("/proc/sys/net/{path}");
    fs::write(&path, value).map_err(|error| machine(&path, error))
}

fn mac(bytes: [u8; 6]) -> String {
    let hex: Vec<String> = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    hex.join(":")
}

impl Rig {
    /// Builds the namespaces. The calling thread then stays in the node's.
    pub(super) fn try_new(backend: Backend) -> Result<Rig, RigError> {
        stay_on_one_processor();
        let enter = |flags| unshare(flags).map_err(|error| machine("a new namespace", error));
        enter(CloneFlags::CLONE_NEWNET)?;
        let outside = own_namespace()?;
        for path in ["ipv6/conf/all/disable_ipv6", "ipv6/conf/default/disable_ipv6"] {
            sysctl(path, "1")?;
        }
        enter(CloneFlags::CLONE_NEWNET)?;
        let node = own_namespace()?;
        set_node_up(&outside)?;
        let conntrack = Conntrack::try_new()?;
        let listeners = Listener::all()?;
        let sender = Sender::try_new()?;
        let port = super::place::NODE_UDP;
        let socket = std::net::UdpSocket::bind(("::", port))
            .map_err(|error| machine("a UDP socket of the node", error))?;
        setns(&outside, CloneFlags::CLONE_NEWNET).map_err(|error| machine("setns", error))?;
        let links: Vec<String> =
            CABLES.iter().map(|dev| format!("link set far{} up", dev.0)).collect();
        batch("ip", &links)?;
        let cables = Cable::all()?;
        setns(&node, CloneFlags::CLONE_NEWNET).map_err(|error| machine("setns", error))?;
        Ok(Rig {
            backend,
            node,
            cables,
            listeners,
            sender,
            conntrack,
            settings: None,
            lists: Vec::new(),
            beside: false,
            _socket: socket,
        })
    }

    /// Makes the calling thread one of the node's.
    pub(super) fn enter(&self) -> Result<(), RigError> {
        setns(&self.node, CloneFlags::CLONE_NEWNET).map_err(|error| machine("setns", error))
    }

    /// Gives the node a case's settings and rules, and forgets all connections.
    pub(super) fn prepare(&mut self, case: &Case) -> Result<(), RigError> {
        self.enter()?;
        self.set(case.settings)?;
        let family = case.settings.family;
        if self.backend == Backend::Nft {
            // One transaction: the rules take the place of those before.
            load(Backend::Nft, family, &format!("flush ruleset\n{}", case.rules.text()))?;
        } else {
            self.prepare_iptables(case)?;
        }
        self.conntrack.flush()?;
        self.collect();
        Ok(())
    }

    fn prepare_iptables(&mut self, case: &Case) -> Result<(), RigError> {
        let family = case.settings.family;
        if !case.sets.is_empty() {
            load_sets(&case.sets.text())?;
        }
        // Lists with a name outlive a table that is replaced by one that names them, too. Those of
        // recent are of both families.
        let named = ["-m recent", "-m hashlimit"];
        let has_lists =
            case.rules.lines.iter().any(|line| named.iter().any(|name| line.contains(name)));
        if has_lists {
            let empty: String = TABLES.iter().map(|name| format!("*{name}\nCOMMIT\n")).collect();
            for of in std::mem::take(&mut self.lists) {
                load(self.backend, of, &empty)?;
            }
        } else {
            self.lists.retain(|of| *of != family);
        }
        load(self.backend, family, &case.rules.text())?;
        if has_lists {
            self.lists.push(family);
        }
        if self.beside || !case.beside.is_empty() {
            let table = |(family, name)| {
                format!("add table {family} {name}\ndelete table {family} {name}\n")
            };
            let mut text: String = NFT_TABLES.into_iter().map(table).collect();
            text += &case.beside.text();
            load(Backend::Nft, family, &text)?;
            self.beside = !case.beside.is_empty();
        }
        Ok(())
    }

    fn set(&mut self, settings: Settings) -> Result<(), RigError> {
        let is = self.settings;
        let changed = |of: fn(&Settings) -> bool| is.is_none_or(|is| of(&is) != of(&settings));
        if changed(|s| s.bridge_nf) {
            let value = if settings.bridge_nf { "1" } else { "0" };
            for name in ["iptables", "ip6tables"] {
                sysctl(&format!("bridge/bridge-nf-call-{name}"), value)?;
            }
        }
        if changed(|s| s.route_localnet) {
            let value = if settings.route_localnet { "1" } else { "0" };
            for dev in &DEVICES {
                sysctl(&format!("ipv4/conf/{dev}/route_localnet"), value)?;
            }
        }
        if changed(|s| s.hairpin) {
            let value = if settings.hairpin { "on" } else { "off" };
            let ports = [Place::A1, Place::A2, Place::A3].map(|place| {
                format!("link set dev {} hairpin {value}", DEVICES[place.cable().0 as usize])
            });
            batch("bridge", &ports)?;
        }
        if changed(|s| s.default_route) {
            let gw = |family| Place::Gw.address(family);
            let [four, six] = [gw(Family::V4), gw(Family::V6)];
            let verb = if settings.default_route { "add" } else { "del" };
            let lines = [
                format!("route {verb} default via {four}"),
                format!("route {verb} ::/0 via {six}"),
            ];
            if settings.default_route || is.is_some() {
                batch("ip", &lines)?;
            }
        }
        self.settings = Some(settings);
        Ok(())
    }

    /// Writes a packet to a place's cable, in a frame to that hardware address, and returns what
    /// arrives anywhere.
    pub(super) fn inject(&mut self, from: Place, to: [u8; 6], packet: &Packet) -> Vec<Seen> {
        let payload = wire::encode(packet);
        let mut frame = Vec::with_capacity(14 + payload.len());
        frame.extend(to);
        frame.extend(from.mac());
        frame.extend(if packet.tuple.src().is_ipv4() { [0x08, 0x00] } else { [0x86, 0xdd] });
        frame.extend(payload);
        let cable = self.cables.iter().find(|cable| cable.dev == from.cable());
        cable.expect("every place has a cable").write(&frame);
        self.collect()
    }

    /// Sends a packet from the node, and returns what arrives anywhere.
    pub(super) fn send(&mut self, packet: &Packet) -> Vec<Seen> {
        self.sender.send(&wire::encode(packet), packet.tuple.dst(), packet.mark);
        self.collect()
    }

    fn collect(&mut self) -> Vec<Seen> {
        let mut seen = Vec::new();
        // Twice: whatever went to another processor's queue has had the time of the first round.
        for _ in 0..2 {
            for cable in &self.cables {
                cable.read(&mut seen);
            }
            for listener in &self.listeners {
                listener.read(&mut seen);
            }
        }
        seen
    }

    /// Returns the node's connections.
    pub(super) fn connections(&self) -> Result<Vec<Connection>, RigError> {
        let path = "/proc/thread-self/net/nf_conntrack";
        let text = fs::read_to_string(path).map_err(|error| machine(path, error))?;
        let mut read = Vec::new();
        for line in text.lines() {
            let read_line = Connection::parse(line);
            read.push(read_line.ok_or_else(|| machine("a line of nf_conntrack", line))?);
        }
        read.sort();
        Ok(read)
    }
}

/// The tables that every ruleset for iptables has.
pub(super) const TABLES: [&str; 5] = ["raw", "mangle", "nat", "filter", "security"];

/// Loads a ruleset into the thread's network namespace.
pub(super) fn load(backend: Backend, family: Family, text: &str) -> Result<(), RigError> {
    let six = if family == Family::V6 { "6" } else { "" };
    let loaded = match backend {
        Backend::Legacy => run(&format!("ip{six}tables-legacy-restore"), &["-w", "5"], text),
        Backend::IptablesNft => run(&format!("ip{six}tables-nft-restore"), &["-w", "5"], text),
        Backend::Nft => run("nft", &["-f", "-"], text),
    };
    loaded.map(drop).map_err(RigError::Refused)
}

/// Loads ipsets into the thread's network namespace: those that are there lose their elements.
pub(super) fn load_sets(text: &str) -> Result<(), RigError> {
    let text = format!("flush\n{text}");
    run("ipset", &["restore", "-exist"], &text).map(drop).map_err(RigError::Refused)
}

/// Keeps the thread on its processor: the kernel then handles its frames in order.
fn stay_on_one_processor() {
    let Ok(allowed) = sched_getaffinity(Pid::from_raw(0)) else {
        return;
    };
    let possible: Vec<usize> =
        (0..CpuSet::count()).filter(|cpu| allowed.is_set(*cpu).unwrap_or(false)).collect();
    if possible.is_empty() {
        return;
    }
    let mut one = CpuSet::new();
    let chosen = possible[std::process::id() as usize % possible.len()];
    if one.set(chosen).is_ok() {
        // Where that is forbidden, frames may be handled a little later.
        let _ = sched_setaffinity(Pid::from_raw(0), &one);
    }
}

fn batch(program: &str, lines: &[String]) -> Result<(), RigError> {
    let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
    run(program, &["-batch", "-"], &text).map(drop).map_err(RigError::Machine)
}

fn set_node_up(outside: &File) -> Result<(), RigError> {
    use std::os::fd::AsRawFd as _;

    for (path, value) in [
        ("ipv4/ip_forward", "1"),
        ("ipv6/conf/all/forwarding", "1"),
        ("ipv6/conf/default/accept_dad", "0"),
        ("ipv6/conf/all/accept_dad", "0"),
        ("ipv4/icmp_ratemask", "0"),
        ("ipv6/icmp/ratelimit", "0"),
        ("ipv4/conf/all/rp_filter", "0"),
        ("ipv4/conf/default/rp_filter", "0"),
        ("ipv4/conf/all/send_redirects", "0"),
        ("ipv4/conf/default/send_redirects", "0"),
        ("ipv4/conf/all/accept_local", "0"),
    ] {
        sysctl(path, value)?;
    }
    let name = |dev: DeviceId| DEVICES[dev.0 as usize];
    let outside = format!("/proc/{}/fd/{}", std::process::id(), outside.as_raw_fd());
    let mut lines = vec![
        "link add cni0 type bridge mcast_snooping 0".to_owned(),
        "link add dummy0 type bridge".to_owned(),
    ];
    for dev in CABLES {
        let (name, far) = (name(dev), format!("far{}", dev.0));
        lines.push(format!("link add {name} type veth peer name {far} netns {outside}"));
    }
    for (i, name) in DEVICES.iter().enumerate().skip(1) {
        let address = mac(device_mac(DeviceId(i as u32)));
        lines.push(format!("link set {name} address {address} addrgenmode none"));
    }
    for place in [Place::A1, Place::A2, Place::A3] {
        lines.push(format!("link set {} master cni0", name(place.cable())));
    }
    lines.extend(DEVICES.iter().map(|name| format!("link set {name} up")));
    for (dev, four, six) in OWN.into_iter().filter(|(dev, ..)| *dev != LO) {
        let name = name(dev);
        lines.push(format!("address add {four} dev {name}"));
        lines.push(format!("address add {six} dev {name} nodad"));
    }
    for family in [Family::V4, Family::V6] {
        for place in Place::AROUND {
            let (to, dev, mac) = (place.address(family), name(place.device()), mac(place.mac()));
            lines.push(format!("neighbour add {to} lladdr {mac} dev {dev} nud permanent"));
        }
        for (place, four, net6) in BEHIND {
            let net = if family == Family::V4 { four } else { net6 };
            let via = if place == Place::R1 {
                format!("dev {}", name(place.device()))
            } else {
                format!("via {}", place.address(family))
            };
            lines.push(format!("route add {net} {via}"));
        }
        for (kind, four, net6) in REFUSED {
            let net = if family == Family::V4 { four } else { net6 };
            lines.push(format!("route add {kind} {net}"));
        }
    }
    batch("ip", &lines)?;
    let fdb = [Place::A1, Place::A2, Place::A3].map(|place| {
        format!("fdb add {} dev {} master static", mac(place.mac()), name(place.cable()))
    });
    batch("bridge", &fdb)?;
    for dev in DEVICES {
        for (key, value) in [("send_redirects", "0"), ("rp_filter", "0")] {
            sysctl(&format!("ipv4/conf/{dev}/{key}"), value)?;
        }
    }
    Ok(())
}

/// Returns what this machine lacks for the kernel arm, if anything.
pub(super) fn missing(backends: &[Backend]) -> Vec<String> {
    let mut missing = Vec::new();
    if !nix::unistd::geteuid().is_root() {
        missing.push("root".to_owned());
    }
    let mut tools: Vec<&str> = vec!["ip", "bridge"];
    for backend in backends {
        tools.extend(backend.tools());
    }
    for tool in tools {
        let found = std::env::var_os("PATH").is_some_and(|path| {
            std::env::split_paths(&path).any(|folder| folder.join(tool).is_file())
        });
        if !found {
            missing.push(format!("the program {tool}"));
        }
    }
    missing
}
