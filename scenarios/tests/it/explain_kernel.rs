//! What `explain` says that a client sees, beside what a client of the running kernel sees.
//!
//! ```text
//!   pod 10.244.1.5 ── cni0 (bridge) 10.244.1.1  node  192.168.7.1 eth0 ── 192.168.7.2 outside
//!                                                                          10.244.2.7
//! ```

use std::io::{BufRead, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use super::Folder;

/// Names the role that a run of this program plays inside a network namespace.
const ROLE: &str = "RULELAG_EXPLAIN_ROLE";
/// How long a client waits.
const PATIENCE: Duration = Duration::from_millis(1500);

/// Rules of kube-proxy's shape: Services at 10.96.0.1 (no endpoints), .2 (another node's Pod), .3
/// (the client itself, masqueraded), .4 (itself, not masqueraded); NodePorts 30080, and 30081
/// under externalTrafficPolicy Local.
const RULES: &str = "\
*filter
:INPUT ACCEPT [0:0]
:FORWARD ACCEPT [0:0]
:OUTPUT ACCEPT [0:0]
:KUBE-EXTERNAL-SERVICES - [0:0]
:KUBE-FORWARD - [0:0]
:KUBE-SERVICES - [0:0]
-A INPUT -m conntrack --ctstate NEW -j KUBE-EXTERNAL-SERVICES
-A FORWARD -j KUBE-FORWARD
-A FORWARD -m conntrack --ctstate NEW -j KUBE-SERVICES
-A FORWARD -m conntrack --ctstate NEW -j KUBE-EXTERNAL-SERVICES
-A OUTPUT -m conntrack --ctstate NEW -j KUBE-SERVICES
-A KUBE-EXTERNAL-SERVICES -p tcp -m comment --comment \"shop/till has no local endpoints\" \
-m addrtype --dst-type LOCAL -m tcp --dport 30081 -j DROP
-A KUBE-FORWARD -m conntrack --ctstate INVALID -j DROP
-A KUBE-FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A KUBE-SERVICES -d 10.96.0.1/32 -p tcp -m comment --comment \"shop/empty has no endpoints\" \
-m tcp --dport 80 -j REJECT --reject-with icmp-port-unreachable
COMMIT
*nat
:PREROUTING ACCEPT [0:0]
:INPUT ACCEPT [0:0]
:OUTPUT ACCEPT [0:0]
:POSTROUTING ACCEPT [0:0]
:KUBE-MARK-MASQ - [0:0]
:KUBE-NODEPORTS - [0:0]
:KUBE-POSTROUTING - [0:0]
:KUBE-SEP-BARE - [0:0]
:KUBE-SEP-FAR - [0:0]
:KUBE-SEP-SELF - [0:0]
:KUBE-SERVICES - [0:0]
:KUBE-SVC-BARE - [0:0]
:KUBE-SVC-FAR - [0:0]
:KUBE-SVC-SELF - [0:0]
-A PREROUTING -j KUBE-SERVICES
-A OUTPUT -j KUBE-SERVICES
-A POSTROUTING -j KUBE-POSTROUTING
-A KUBE-MARK-MASQ -j MARK --set-xmark 0x4000/0x4000
-A KUBE-NODEPORTS -p tcp -m tcp --dport 30080 -j KUBE-MARK-MASQ
-A KUBE-NODEPORTS -p tcp -m tcp --dport 30080 -j KUBE-SVC-FAR
-A KUBE-POSTROUTING -m mark ! --mark 0x4000/0x4000 -j RETURN
-A KUBE-POSTROUTING -j MARK --set-xmark 0x4000/0x0
-A KUBE-POSTROUTING -j MASQUERADE --random-fully
-A KUBE-SEP-BARE -p tcp -m tcp -j DNAT --to-destination 10.244.1.5:8080
-A KUBE-SEP-FAR -s 10.244.2.7/32 -j KUBE-MARK-MASQ
-A KUBE-SEP-FAR -p tcp -m tcp -j DNAT --to-destination 10.244.2.7:8080
-A KUBE-SEP-SELF -s 10.244.1.5/32 -j KUBE-MARK-MASQ
-A KUBE-SEP-SELF -p tcp -m tcp -j DNAT --to-destination 10.244.1.5:8080
-A KUBE-SERVICES -d 10.96.0.2/32 -p tcp -m tcp --dport 80 -j KUBE-SVC-FAR
-A KUBE-SERVICES -d 10.96.0.3/32 -p tcp -m tcp --dport 80 -j KUBE-SVC-SELF
-A KUBE-SERVICES -d 10.96.0.4/32 -p tcp -m tcp --dport 80 -j KUBE-SVC-BARE
-A KUBE-SERVICES -m addrtype --dst-type LOCAL -j KUBE-NODEPORTS
-A KUBE-SVC-BARE -j KUBE-SEP-BARE
-A KUBE-SVC-FAR ! -s 10.244.0.0/16 -d 10.96.0.2/32 -p tcp -m tcp --dport 80 -j KUBE-MARK-MASQ
-A KUBE-SVC-FAR -j KUBE-SEP-FAR
-A KUBE-SVC-SELF -j KUBE-SEP-SELF
COMMIT
";

/// Network namespaces, gone when dropped.
struct Lab {
    name: String,
    servers: Vec<Child>,
}

fn run(command: &mut Command, input: &str) -> Result<String, String> {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(|error| format!("{command:?}: {error}"))?;
    let sent = child.stdin.take().expect("piped").write_all(input.as_bytes());
    let output = child.wait_with_output().map_err(|error| format!("{command:?}: {error}"))?;
    if sent.is_ok() && output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    Err(format!("{command:?}: {}", String::from_utf8_lossy(&output.stderr).trim()))
}

fn ip(args: &str) -> Result<String, String> {
    run(Command::new("ip").args(args.split_whitespace()), "")
}

impl Lab {
    fn try_new() -> Result<Lab, String> {
        let mut lab = Lab { name: format!("rlx{}", std::process::id()), servers: Vec::new() };
        for place in ["p", "n", "o"] {
            ip(&format!("netns add {}{place}", lab.name))?;
            lab.ip(place, "link set lo up")?;
        }
        let name = &lab.name;
        ip(&format!("link add v0 netns {name}n type veth peer name eth0 netns {name}p"))?;
        ip(&format!("link add eth0 netns {name}n type veth peer name eth0 netns {name}o"))?;
        for (place, commands) in [
            (
                "n",
                &[
                    "link add cni0 type bridge",
                    "link set v0 master cni0",
                    "link set v0 up",
                    "address add 10.244.1.1/24 dev cni0",
                    "link set cni0 up",
                    "address add 192.168.7.1/24 dev eth0",
                    "link set eth0 up",
                    "route add default via 192.168.7.2",
                ][..],
            ),
            (
                "p",
                &[
                    "address add 10.244.1.5/24 dev eth0",
                    "link set eth0 up",
                    "route add default via 10.244.1.1",
                ],
            ),
            (
                "o",
                &[
                    "address add 192.168.7.2/24 dev eth0",
                    "address add 10.244.2.7/32 dev lo",
                    "link set eth0 up",
                    "route add 10.244.1.0/24 via 192.168.7.1",
                ],
            ),
        ] {
            for command in commands {
                lab.ip(place, command)?;
            }
        }
        lab.sysctl("n", "net/ipv4/ip_forward", 1)?;
        lab.sysctl("o", "net/ipv4/ip_forward", 0)?;
        for place in ["p", "o"] {
            lab.serve(place)?;
        }
        Ok(lab)
    }

    fn ip(&self, place: &str, args: &str) -> Result<String, String> {
        ip(&format!("-n {}{place} {args}", self.name))
    }

    fn exec(&self, place: &str, args: &[&str], input: &str) -> Result<String, String> {
        let netns = format!("{}{place}", self.name);
        run(Command::new("ip").args(["netns", "exec", &netns]).args(args), input)
    }

    fn sysctl(&self, place: &str, key: &str, value: u8) -> Result<String, String> {
        self.exec(place, &["sh", "-c", &format!("echo {value} > /proc/sys/{key}")], "")
    }

    fn role(&self, place: &str, role: &str) -> Command {
        let mut command = Command::new("ip");
        command
            .args(["netns", "exec", &format!("{}{place}", self.name)])
            .arg(std::env::current_exe().expect("a program has a path"))
            .args(["--exact", "explain_kernel::role", "--nocapture"])
            .env(ROLE, role);
        command
    }

    fn serve(&mut self, place: &str) -> Result<(), String> {
        let mut command = self.role(place, "serve");
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().map_err(|error| format!("{command:?}: {error}"))?;
        let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines();
        let ready = lines.any(|line| line.is_ok_and(|line| line.ends_with("ready")));
        self.servers.push(child);
        if ready { Ok(()) } else { Err("the server did not start".to_owned()) }
    }

    /// Returns what a client sees: of a TCP connection, or of a ping if there is no port.
    fn client(&self, place: &str, to: &str) -> String {
        if !to.contains(':') {
            let args = ["ping", "-n", "-c", "1", "-W", "1", to];
            let answered = self.exec(place, &args, "").is_ok();
            return if answered { "ok" } else { "timeout" }.to_owned();
        }
        let text = run(&mut self.role(place, &format!("connect {to}")), "").expect("it runs");
        let seen = text.lines().find_map(|line| line.split_once("@ "));
        seen.expect("the client says what it sees").1.to_owned()
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        for server in &mut self.servers {
            let _ = server.kill();
            let _ = server.wait();
        }
        for place in ["p", "n", "o"] {
            let _ = ip(&format!("netns delete {}{place}", self.name));
        }
    }
}

/// Plays a role inside a network namespace; as a test of its own it does nothing.
#[test]
fn role() {
    let Ok(role) = std::env::var(ROLE) else {
        return;
    };
    if role == "serve" {
        let listener = TcpListener::bind("0.0.0.0:8080").expect("the port is free");
        println!("ready");
        std::thread::spawn(move || listener.incoming().for_each(drop));
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        return;
    }
    let to = role.strip_prefix("connect ").expect("a role");
    let address: SocketAddr = to.parse().expect("an address and port");
    let seen = match TcpStream::connect_timeout(&address, PATIENCE) {
        Ok(_) => "ok",
        Err(error) => match error.kind() {
            std::io::ErrorKind::ConnectionRefused => "refused",
            std::io::ErrorKind::HostUnreachable | std::io::ErrorKind::NetworkUnreachable => {
                "host_unreachable"
            }
            _ => "timeout",
        },
    };
    println!("@ {seen}");
}

#[test]
fn clients_see_what_explain_says() {
    const TEST: &str = "clients_see_what_explain_says";
    let skip = |reason: &str| {
        assert!(
            std::env::var("CI").as_deref() != Ok("true"),
            "{TEST} was skipped, which CI does not accept: {reason}"
        );
        let _ = writeln!(std::io::stderr(), "skipped: {TEST}: {reason}");
    };
    let lab = match Lab::try_new() {
        Ok(lab) => lab,
        Err(reason) => return skip(&reason),
    };
    if let Err(reason) = lab.exec("n", &["iptables-restore"], RULES) {
        return skip(&reason);
    }
    let pings = Command::new("ping").arg("-V").output().is_ok();
    if !pings {
        skip("its pings: there is no ping");
    }
    let folder = Folder::new();
    folder.write("rules.txt", &lab.exec("n", &["iptables-save"], "").expect("it prints"));
    const BRIDGE_NF: &str = "net/bridge/bridge-nf-call-iptables";
    let has_bridge_nf = lab.exec("n", &["cat", &format!("/proc/sys/{BRIDGE_NF}")], "").is_ok();
    let settings: &[(u8, u8, u8)] = if has_bridge_nf {
        // bridge-nf-call-iptables, hairpin mode, route_localnet
        &[(1, 0, 0), (1, 1, 1), (0, 0, 1)]
    } else {
        &[(0, 0, 0), (0, 0, 1)]
    };
    for &(bridge_nf, hairpin, route_localnet) in settings {
        if has_bridge_nf {
            lab.sysctl("n", BRIDGE_NF, bridge_nf).expect("it is writable");
        }
        let mode = format!(
            "link set v0 type bridge_slave hairpin {}",
            ["off", "on"][usize::from(hairpin)]
        );
        lab.ip("n", &mode).expect("the port takes it");
        lab.sysctl("n", "net/ipv4/conf/all/route_localnet", route_localnet)
            .expect("it is writable");
        folder.write(
            "host.yaml",
            &format!(
                "devices:\n  eth0: {{ addresses: [192.168.7.1/24] }}\n  cni0:\n    addresses: \
                 [10.244.1.1/24]\n    bridge: true\n    hairpin: {}\nroutes:\n  - {{ to: default, via: \
                 192.168.7.2 }}\nsysctls:\n  net.bridge.bridge-nf-call-iptables: {bridge_nf}\n  \
                 net.ipv4.conf.all.route_localnet: {route_localnet}\nlisteners: []\n",
                hairpin == 1,
            ),
        );
        let table = [
            // Who, its address, to whom, the device or none.
            ("p", "10.244.1.5", "10.96.0.2:80", Some("cni0")),
            ("p", "10.244.1.5", "10.96.0.2", Some("cni0")),
            ("p", "10.244.1.5", "10.96.0.1:80", Some("cni0")),
            ("p", "10.244.1.5", "10.96.0.2:81", Some("cni0")),
            ("p", "10.244.1.5", "10.96.0.3:80", Some("cni0")),
            ("p", "10.244.1.5", "10.96.0.4:80", Some("cni0")),
            ("p", "10.244.1.5", "192.168.7.1:30080", Some("cni0")),
            ("p", "10.244.1.5", "192.168.7.1:9", Some("cni0")),
            ("n", "127.0.0.1", "127.0.0.1:30080", None),
            ("n", "192.168.7.1", "10.96.0.1:80", None),
            ("n", "192.168.7.1", "10.96.0.2:80", None),
            ("o", "192.168.7.2", "192.168.7.1:30080", Some("eth0")),
            ("o", "192.168.7.2", "192.168.7.1:30081", Some("eth0")),
        ];
        let table = table.iter().filter(|(_, _, to, _)| pings || to.contains(':'));
        std::thread::scope(|scope| {
            for &(who, from, to, dev) in table {
                let (lab, folder) = (&lab, &folder);
                scope.spawn(move || {
                    let seen = lab.client(who, to);
                    let protocol = if to.contains(':') { "tcp" } else { "icmp" };
                    let packet = format!("{protocol} {from} > {to}");
                    let mut args = vec![
                        "explain",
                        "rules.txt",
                        "--host",
                        "host.yaml",
                        "-o",
                        "json",
                        "--packet",
                        &packet,
                    ];
                    match dev {
                        Some(dev) => args.extend(["--in", dev]),
                        None => args.push("--local"),
                    }
                    let done = folder.run(&args).ends_with(0);
                    let said: serde_json::Value = serde_json::from_str(&done.stdout).unwrap();
                    assert_eq!(
                        said["outcomes"][0]["symptom"],
                        seen,
                        "{packet} with {bridge_nf} {hairpin} {route_localnet}: {}",
                        folder.run(&[&args[..4], &args[6..]].concat()).stdout
                    );
                });
            }
        });
    }
}
