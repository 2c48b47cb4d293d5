//! Connection tracking of packets written by hand: the model and the kernel, packet by packet.

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use netfilter_model::DeviceId;
use netfilter_model::conntrack::{CtInfo, Entry, Listing, Status, Sysctls, TcpState};
use netfilter_model::hook::{Hook, Table};
use netfilter_model::host::Env;
use netfilter_model::netns::{Netns, Outcome};
use netfilter_model::packet::{L4, Packet, Segment, TcpFlags};
use netfilter_model::read::{Source, conntrack_entries, iptables_rules};
use netfilter_model::rule::{CtStates, Origin, Rule, Ruleset, RulesetBuilder, iptables_save};
use netfilter_model::time::SimTime;
use netfilter_model::tuple::{Protocol, Tuple};

use crate::kernel::Node;
use crate::lab::{Lab, Tool, skip};
use crate::raw::Sender;

const CLIENT: Ipv4Addr = Ipv4Addr::new(10, 244, 1, 2);
const SERVER: Ipv4Addr = Ipv4Addr::new(10, 244, 2, 2);

/// What becomes of a packet: its state, and the connection after it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Seen {
    info: CtInfo,
    /// State, seconds left, answered, assured.
    entry: Option<(String, u64, bool, bool)>,
}

impl Seen {
    /// Returns whether both are alike; the kernel's seconds have gone by a little.
    fn agrees(&self, kernel: &Seen) -> bool {
        let alike = match (&self.entry, &kernel.entry) {
            (Some(model), Some(kernel)) => {
                let left = model.1.abs_diff(kernel.1) <= 3;
                (&model.0, model.2, model.3) == (&kernel.0, kernel.2, kernel.3) && left
            }
            (None, None) => true,
            _ => false,
        };
        alike && self.info == kernel.info
    }
}

/// The states of packets in the order of the rules that count them.
const INFOS: [(CtInfo, CtStates); 4] = [
    (CtInfo::Invalid, CtStates::INVALID),
    (CtInfo::New, CtStates::NEW),
    (CtInfo::Established, CtStates::ESTABLISHED),
    (CtInfo::Related, CtStates::RELATED),
];

/// Rules that count packets by state.
fn counting_rules() -> Ruleset {
    let mut rules = RulesetBuilder::new();
    let forward = rules.builtin(Table::Filter, Hook::Forward);
    for (_, state) in INFOS {
        rules.append(Table::Filter, forward, Rule::new(Origin::default()).ctstate(state));
    }
    rules.build().expect("valid rules")
}

/// The model's arm.
struct Model {
    netns: Netns,
    rules: Ruleset,
    now: SimTime,
}

impl Model {
    fn new(rules: Ruleset, sysctls: Sysctls) -> Model {
        Model { netns: Netns::new(sysctls), rules, now: SimTime::ZERO }
    }

    /// Sends a packet through; whether it gets out.
    fn pass(&mut self, packet: Packet) -> bool {
        let in_dev = DeviceId(if is_from_client(&packet) { 1 } else { 2 });
        let mut drawn = 0;
        let mut draws = |_| {
            drawn += 1;
            drawn << 48
        };
        let Model { rules, now, .. } = self;
        let mut env = Env { now: *now, host: &Node, rules, draws: &mut draws };
        matches!(self.netns.receive(packet, in_dev, &mut env), Outcome::Sent(_))
    }

    fn see(&mut self, packet: Packet) -> Seen {
        let in_dev = DeviceId(if is_from_client(&packet) { 1 } else { 2 });
        let mut draws = |_| 0;
        let mut env = Env { now: self.now, host: &Node, rules: &self.rules, draws: &mut draws };
        let Outcome::Sent(egress) = self.netns.receive(packet, in_dev, &mut env) else {
            panic!("{packet:?} passes")
        };
        let (info, _) = egress.ct.expect("packets are tracked");
        let entry = self.netns.conntrack().entries(self.now).next();
        Seen { info, entry: entry.map(|entry| self.describe(entry)) }
    }

    fn describe(&self, entry: &Entry) -> (String, u64, bool, bool) {
        let state = entry.tcp_state().map_or("", TcpState::name);
        let left = (entry.deadline() - self.now).as_secs();
        let has = |status| entry.status().contains(status);
        (state.to_owned(), left, has(Status::SEEN_REPLY), has(Status::ASSURED))
    }
}

fn is_from_client(packet: &Packet) -> bool {
    matches!(packet.tuple.src(), IpAddr::V4(src) if src.octets()[..3] == [10, 244, 1])
}

/// The kernel's arm: the ends are mute, all packets are ours.
struct Kernel {
    lab: Lab,
    client: Sender,
    server: Sender,
    counted: [u64; 4],
}

impl Kernel {
    fn try_new(rules: &Ruleset) -> Result<Kernel, String> {
        let lab = Lab::try_new(Tool::Legacy)?;
        lab.node("conntrack", &["--version"], "")?;
        for far in ["c", "s"] {
            let mute = ["-A", "INPUT", "!", "-s", "10.244.0.1", "-j", "DROP"];
            lab.at(far, "iptables-legacy", &mute, "")?;
        }
        for far in [("c0", CLIENT, "c"), ("s0", SERVER, "s")] {
            // Neighbours are known, so that no packet waits.
            let (dev, address, place) = (far.0, far.1.to_string(), far.2);
            let link = lab.at(place, "ip", &["-o", "link", "show", "eth0"], "")?;
            let mac = link.split("link/ether ").nth(1).and_then(|rest| rest.split(' ').next());
            let mac = mac.ok_or("no MAC")?;
            let args =
                ["neigh", "replace", &address, "lladdr", mac, "dev", dev, "nud", "permanent"];
            lab.node("ip", &args, "")?;
        }
        lab.restore(Tool::Legacy, &iptables_save(rules))?;
        let (client, server) = (Sender::start(&lab, "c")?, Sender::start(&lab, "s")?);
        Ok(Kernel { lab, client, server, counted: [0; 4] })
    }

    fn reset(&mut self, sysctls: &[(&str, u32)]) {
        let _ = self.lab.node("conntrack", &["-F"], "");
        for (name, value) in sysctls {
            let setting = format!("net.netfilter.nf_conntrack_{name}={value}");
            self.lab.node("sysctl", &["-qw", &setting], "").expect("sysctls can be set");
        }
    }

    fn counts(&self) -> [u64; 4] {
        let text = self.lab.node("iptables-legacy-save", &["-c", "-t", "filter"], "");
        let text = text.expect("tables print");
        let mut counts = [0; 4];
        let rules = text.lines().filter(|line| line.contains("-A FORWARD"));
        for (line, count) in rules.zip(&mut counts) {
            let number = line.trim_start_matches('[').split(':').next().expect("a counter");
            *count = number.parse().expect("a number");
        }
        counts
    }

    fn send(&mut self, packet: &Packet) {
        if is_from_client(packet) { &mut self.client } else { &mut self.server }.send(packet);
    }

    fn see(&mut self, packet: &Packet) -> Seen {
        self.send(packet);
        for _ in 0..200 {
            let counts = self.counts();
            let grown = (0..4).find(|i| counts[*i] > self.counted[*i]);
            if let Some(grown) = grown {
                self.counted = counts;
                return Seen { info: INFOS[grown].0, entry: self.entry() };
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        panic!("{packet:?} did not reach FORWARD");
    }

    fn list(&self) -> String {
        self.lab.node("conntrack", &["-L"], "").expect("conntrack lists")
    }

    fn entry(&self) -> Option<(String, u64, bool, bool)> {
        let listed = self.list();
        let line = listed.lines().next()?;
        let words: Vec<&str> = line.split_whitespace().collect();
        let left = words[2].parse().expect("seconds");
        let state = if words[0] == "tcp" { words[3] } else { "" };
        let has = |word| words.contains(&word);
        Some((state.to_owned(), left, !has("[UNREPLIED]"), has("[ASSURED]")))
    }
}

/// Reads a packet: `c` or `s` for who sends it, flags, sequence number, `ack=`, `win=`, `len=`,
/// `ws=`, `sackok`, `sack=`.
fn segment(text: &str) -> Packet {
    let mut words = text.split_whitespace();
    let from = words.next().expect("who");
    let mut flags = TcpFlags::NONE;
    for letter in words.next().expect("flags").chars() {
        let flag = match letter {
            'S' => TcpFlags::SYN,
            'A' => TcpFlags::ACK,
            'F' => TcpFlags::FIN,
            'R' => TcpFlags::RST,
            'P' => TcpFlags::PSH,
            'U' => TcpFlags::URG,
            '-' => TcpFlags::NONE,
            letter => panic!("no flag {letter}"),
        };
        flags = flags | flag;
    }
    let seq = words.next().expect("a number").parse().expect("a number");
    let mut segment = Segment { seq, window: 1000, ..Segment::default() };
    for word in words {
        let (key, value) = word.split_once('=').unwrap_or((word, "0"));
        let value: u32 = value.parse().expect("a number");
        match key {
            "ack" => segment.ack = value,
            "win" => segment.window = value as u16,
            "len" => segment.data = value as u16,
            "ws" => {
                segment.options |= 1 << 3;
                segment.scale = value as u8;
            }
            "sackok" => segment.options |= 1 << 4,
            "sack" => {
                segment.options |= 1 << 5;
                segment.sack = value;
            }
            key => panic!("no field {key}"),
        }
    }
    let there = Tuple::v4(Protocol::TCP, CLIENT, 4000, SERVER, 80);
    let tuple = if from == "c" { there } else { there.reply() };
    Packet::new(0, tuple, L4::Tcp { flags, segment: Some(segment) }, 40)
}

/// A connection, and the sysctls under which it is tracked.
struct Case {
    name: &'static str,
    sysctls: &'static [(&'static str, u32)],
    packets: &'static [&'static str],
}

const DEFAULTS: &[(&str, u32)] =
    &[("tcp_be_liberal", 0), ("tcp_loose", 1), ("tcp_ignore_invalid_rst", 0)];

fn sysctls(settings: &[(&str, u32)]) -> Sysctls {
    let mut sysctls = Sysctls::default();
    for (name, value) in settings {
        let on = *value != 0;
        match *name {
            "tcp_be_liberal" => sysctls.tcp_be_liberal = on,
            "tcp_loose" => sysctls.tcp_loose = on,
            "tcp_ignore_invalid_rst" => sysctls.tcp_ignore_invalid_rst = on,
            name => panic!("no sysctl {name}"),
        }
    }
    sysctls
}

/// A handshake: the client is at 1001, the server at 5001.
macro_rules! open {
    ($($packet:expr),* $(,)?) => {
        &["c S 1000", "s SA 5000 ack=1001", "c A 1001 ack=5001", $($packet),*]
    };
}

const CASES: &[Case] = &[
    Case {
        name: "data both ways, then both ends close",
        sysctls: &[],
        packets: open![
            "c PA 1001 ack=5001 len=10",
            "s A 5001 ack=1011",
            "s PA 5001 ack=1011 len=200",
            "c A 1011 ack=5201",
            "c FA 1011 ack=5201",
            "s A 5201 ack=1012",
            "s FA 5201 ack=1012",
            "c A 1012 ack=5202",
            "c A 1012 ack=5202",
        ],
    },
    Case {
        name: "beyond the window",
        sysctls: &[],
        packets: open![
            "c PA 9001 ack=5001 len=10",
            "c PA 2002 ack=5001 len=10",
            "c PA 2001 ack=5001 len=10",
            "s A 5001 ack=2011",
            "c A 1001 ack=6001",
            "c A 1001 ack=5002",
            "s A 5001 ack=9999",
        ],
    },
    Case {
        name: "from before the window",
        sysctls: &[],
        packets: open![
            "c PA 1001 ack=5001 len=900",
            "s A 5001 ack=1901",
            "c PA 1901 ack=5001 len=900",
            "s A 5001 ack=2801",
            "c PA 1001 ack=5001 len=10",
            "c A 2801 ack=4294900000",
            "s A 5001 ack=1001",
        ],
    },
    Case {
        name: "beyond the window, liberally",
        sysctls: &[("tcp_be_liberal", 1)],
        packets: open![
            "c PA 9001 ack=5001 len=10",
            "c A 1001 ack=7001",
            "s FA 99001 ack=1001",
            "s R 3000",
            "c R 90000",
        ],
    },
    Case {
        name: "an exact reset",
        sysctls: &[],
        packets: open![
            "c PA 1001 ack=5001 len=5",
            "s A 5001 ack=1006",
            "s R 5001",
            "c A 1006 ack=5001"
        ],
    },
    Case {
        name: "a reset in the window, challenged",
        sysctls: &[],
        packets: open!["s R 5101", "c A 1001 ack=5001", "s R 5001"],
    },
    Case { name: "a reset from before", sysctls: &[], packets: open!["s R 4000", "c R 999"] },
    Case {
        name: "a reset from before, ignored",
        sysctls: &[("tcp_ignore_invalid_rst", 1)],
        packets: open!["s R 4000", "c A 1001 ack=5001"],
    },
    Case {
        name: "resets above the window",
        sysctls: &[],
        packets: open!["s R 6010", "s R 96010", "c FA 96010 ack=5001", "s FA 96010 ack=1001"],
    },
    Case {
        name: "a reset that follows data",
        sysctls: &[],
        packets: open!["s PA 5001 ack=1001 len=19", "s A 5020 ack=1001", "s R 5020 ack=1001"],
    },
    Case {
        name: "one acknowledgement again and again",
        sysctls: &[],
        packets: open![
            "s A 5001 ack=1001",
            "s A 5001 ack=1001",
            "s A 5001 ack=1001",
            "s A 5001 ack=1001",
            "c A 1001 ack=5001",
        ],
    },
    Case {
        name: "no window",
        sysctls: &[],
        packets: open!["s A 5001 ack=1001 win=0", "c PA 1001 ack=5001 len=1", "s A 5001 ack=1002"],
    },
    Case {
        name: "a new SYN on a live connection",
        sysctls: &[],
        packets: open!["c S 777000", "s A 5001 ack=1001", "c R 1001", "c S 778000"],
    },
    Case {
        name: "a SYN that the server knows better",
        sysctls: &[],
        packets: open![
            "s R 5001",
            "c S 777000 win=500",
            "s SA 9000 ack=777001",
            "c A 777001 ack=9001",
            "c PA 777001 ack=9001 len=10",
            "s A 9001 ack=777011",
        ],
    },
    Case {
        name: "a SYN that the server does not know",
        sysctls: &[],
        packets: open!["s R 5001", "c S 777000", "s SA 9000 ack=1", "s RA 0 ack=777001"],
    },
    Case {
        name: "again after TIME_WAIT",
        sysctls: &[],
        packets: open![
            "c FA 1001 ack=5001",
            "s FA 5001 ack=1002",
            "c A 1002 ack=5002",
            "c S 800000",
            "s SA 9000 ack=800001",
        ],
    },
    Case {
        name: "the server opens again after TIME_WAIT",
        sysctls: &[],
        packets: open![
            "c FA 1001 ack=5001",
            "s FA 5001 ack=1002",
            "c A 1002 ack=5002",
            "s S 900000",
        ],
    },
    Case {
        name: "a challenge in LAST_ACK",
        sysctls: &[],
        packets: open![
            "c FA 1001 ack=5001",
            "s FA 5001 ack=1002",
            "c S 800000",
            "s A 5002 ack=1002",
            "c A 1002 ack=5002",
        ],
    },
    Case {
        name: "both open at once",
        sysctls: &[],
        packets: &[
            "c S 1000",
            "s S 5000",
            "c SA 1000 ack=5001",
            "s SA 5000 ack=1001",
            "s A 5001 ack=1001",
            "c A 1001 ack=5001",
        ],
    },
    Case {
        name: "picked up in its middle",
        sysctls: &[],
        packets: &[
            "c PA 70000 ack=90000 len=10",
            "c PA 99970000 ack=80000 len=10",
            "s A 90000 ack=70010",
            "c A 70010 ack=90000",
            "s PA 90000 ack=70010 len=1400",
            "c A 70010 ack=91400",
            "s FA 91400 ack=70010",
        ],
    },
    Case {
        name: "not picked up",
        sysctls: &[("tcp_loose", 0)],
        packets: &["c A 70000 ack=90000", "c S 1000"],
    },
    Case {
        name: "refused",
        sysctls: &[],
        packets: &["c S 1000", "s RA 0 ack=1001", "c A 1001 ack=1"],
    },
    Case {
        name: "refused with a wrong number",
        sysctls: &[],
        packets: &["c S 1000", "s RA 0 ack=5", "s RA 777 ack=1001"],
    },
    Case {
        name: "SYNs again",
        sysctls: &[],
        packets: &["c S 1000", "c S 1000", "c S 2000", "s A 77 ack=55", "c R 55", "c S 3000"],
    },
    Case {
        name: "scaled windows",
        sysctls: &[],
        packets: &[
            "c S 1000 ws=7 sackok win=64000",
            "s SA 5000 ack=1001 ws=2 sackok win=1000",
            "c A 1001 ack=5001 win=500",
            "s PA 5001 ack=1001 len=1400 win=1000",
            "s PA 60000 ack=1001 len=1400 win=1000",
            "s PA 69010 ack=1001 len=1400 win=1000",
            "c PA 5010 ack=5001 len=500 win=500",
            "c A 1001 ack=5001 win=500 sack=61400",
            "c A 1001 ack=5001 win=500 sack=99999",
        ],
    },
    Case {
        name: "a scale of one end only",
        sysctls: &[],
        packets: &[
            "c S 1000 ws=7 win=1000",
            "s SA 5000 ack=1001 win=1000",
            "c A 1001 ack=5001 win=500",
            "s PA 6100 ack=1001 len=100",
            "s PA 5600 ack=1001 len=100",
        ],
    },
    Case {
        name: "flags that make no sense",
        sysctls: &[],
        packets: open!["c - 1001", "c SF 1001", "c FPU 1001", "c SR 1001", "c FAU 1001 ack=5001"],
    },
];

#[test]
fn tcp_states_windows_and_timeouts_are_the_kernels() {
    let mut kernel = match Kernel::try_new(&counting_rules()) {
        Ok(kernel) => kernel,
        Err(reason) => {
            return skip("tcp_states_windows_and_timeouts_are_the_kernels", &reason);
        }
    };
    let mut differ = Vec::new();
    for case in CASES {
        let settings = [DEFAULTS, case.sysctls].concat();
        kernel.reset(&settings);
        let mut model = Model::new(counting_rules(), sysctls(&settings));
        for text in case.packets {
            let packet = segment(text);
            let (ours, theirs) = (model.see(packet), kernel.see(&packet));
            if !ours.agrees(&theirs) {
                differ.push(format!("{}: {text}: {ours:?}, the kernel {theirs:?}", case.name));
                break;
            }
        }
    }
    assert!(differ.is_empty(), "{differ:#?}");
}

/// Rules that choose addresses and ports.
const NAT_RULES: &str = "\
*nat
:PREROUTING ACCEPT [0:0]
:INPUT ACCEPT [0:0]
:OUTPUT ACCEPT [0:0]
:POSTROUTING ACCEPT [0:0]
-A PREROUTING -d 10.96.0.20/31 -p udp -j DNAT --to-destination 10.244.2.2-10.244.2.90
-A PREROUTING -d 10.96.0.22/31 -p udp -j DNAT --to-destination 10.244.2.2-10.244.2.90 --persistent
-A PREROUTING -d 10.96.0.24/32 -p udp -j DNAT --to-destination 10.244.2.2:90-99
-A PREROUTING -d 10.96.0.25/32 -p udp -j DNAT --to-destination 10.244.2.3:3000-3010/2000
-A PREROUTING -d 10.96.0.28/30 -j NETMAP --to 10.244.2.4/30
-A POSTROUTING -s 10.244.1.128/25 -p udp -j SNAT --to-source 10.244.2.1:7000-7001
-A POSTROUTING -s 10.244.1.64/26 -p udp -j SNAT --to-source 10.244.2.1
COMMIT
";

/// Datagrams: the client's host number and port, the host number behind 10.96.0.0 or 10.244.2.0,
/// the port.
fn datagrams() -> Vec<Packet> {
    let mut flows = Vec::new();
    for client in 2..30 {
        for service in 20..24 {
            flows.push((client, 4000, [10, 96, 0, service], 53));
        }
    }
    // Destination ports: the lowest free one, the original if it lies inside, a shifted one.
    flows.extend((1..4).map(|port| (2, port, [10, 96, 0, 24], 53)));
    flows.extend([(3, 1, [10, 96, 0, 24], 95), (3, 1, [10, 96, 0, 24], 53)]);
    flows.extend([(2, 1, [10, 96, 0, 25], 2004), (2, 1, [10, 96, 0, 25], 3005)]);
    flows.extend([(2, 1, [10, 96, 0, 29], 53), (2, 1, [10, 96, 0, 31], 53)]);
    // Two external ports for three clients, and towards two destinations.
    for host in [2, 3] {
        flows.extend((200..203).map(|client| (client, 5000, [10, 244, 2, host], 53)));
    }
    // A port that is kept if it is free, for each of its classes.
    for port in [300, 700, 5000] {
        flows.extend((70..72).map(|client| (client, port, [10, 244, 2, 4], 53)));
    }
    flows
        .into_iter()
        .map(|(client, sport, to, dport)| {
            let from = Ipv4Addr::new(10, 244, 1, client);
            Packet::udp(0, Tuple::v4(Protocol::UDP, from, sport, to.into(), dport), 29)
        })
        .collect()
}

/// What must be alike of a listing: all but a source port that is drawn.
fn chosen(listing: &Listing) -> (Tuple, IpAddr, u16, IpAddr, &'static str) {
    let Listing { original, reply, .. } = listing;
    let class = match reply.dst_part {
        port if port == original.src_part => "kept",
        1..=511 => "1-511",
        600..=1023 => "600-1023",
        7000..=7001 => "7000-7001",
        _ => "1024-65535",
    };
    (*original, reply.src(), reply.src_part, reply.dst(), class)
}

#[test]
fn nat_chooses_the_addresses_and_ports_that_the_kernel_chooses() {
    let test = "nat_chooses_the_addresses_and_ports_that_the_kernel_chooses";
    let read = iptables_rules(NAT_RULES, Source::default());
    assert_eq!(read.remarks, []);
    let rules = read.value.into_iter().next().expect("one dump").ruleset;
    let mut kernel = match Kernel::try_new(&counting_rules()) {
        Ok(kernel) => kernel,
        Err(reason) => return skip(test, &reason),
    };
    kernel.lab.restore(Tool::Legacy, NAT_RULES).expect("the rules load");
    kernel.reset(&[]);
    let mut model = Model::new(rules, Sysctls::default());
    let passed = datagrams().into_iter().filter(|packet| {
        kernel.send(packet);
        model.pass(*packet)
    });
    let passed = passed.count();
    std::thread::sleep(Duration::from_millis(100));
    let text = kernel.list();
    let read = conntrack_entries(&text);
    assert_eq!(read.remarks, []);
    for (line, listing) in text.lines().zip(&read.value) {
        assert_eq!(listing.to_string(), line.trim_end().replace("use=2", "use=1"));
    }
    let mut theirs = read.value;
    theirs.sort_unstable();
    let ours = model.netns.conntrack().list(model.now);
    assert_eq!(ours.len(), passed);
    for (ours, theirs) in ours.iter().zip(&theirs) {
        assert_eq!(chosen(ours), chosen(theirs));
    }
    assert_eq!(ours.len(), theirs.len());
    for list in [&ours, &theirs] {
        let mut ports = std::collections::BTreeMap::new();
        for Listing { original, reply, .. } in list.iter() {
            if let 7000..=7001 = reply.dst_part {
                let port = ports.entry(original.src()).or_insert(reply.dst_part);
                assert_eq!(*port, reply.dst_part, "one external port for {}", original.src());
            }
        }
        assert_eq!(ports.len(), 2, "the third client finds no port");
    }
}
