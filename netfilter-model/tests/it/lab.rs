//! Network namespaces of the running kernel: a client, a node and a server in a row.
//!
//! ```text
//!   client 10.244.1.2 ──── c0 10.244.1.1  node  10.244.2.1 s0 ──── server 10.244.2.2 … .6
//! ```

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use netfilter_model::tuple::Family;

/// Names the role that a run of this program plays inside a network namespace.
pub(crate) const ROLE: &str = "NETFILTER_MODEL_ROLE";
/// The role's arguments, blank separated.
const ARGS: &str = "NETFILTER_MODEL_ARGS";
/// The test that plays the role.
const ROLE_TEST: &str = "lab::role";
/// Marks lines of a role among those of the test harness.
const MARK: &str = "@ ";
/// How long a client waits for anything.
const PATIENCE: Duration = Duration::from_millis(1500);

/// How many addresses the server has.
pub(crate) const BACKENDS: u8 = 5;

/// A client, a node and a server; gone when dropped, also by a panic.
pub(crate) struct Lab {
    name: String,
    server: Option<Child>,
}

/// Which iptables is used.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Tool {
    Legacy,
    Nft,
}

impl Tool {
    fn name(self) -> &'static str {
        match self {
            Tool::Legacy => "iptables-legacy",
            Tool::Nft => "iptables-nft",
        }
    }

    fn of_family(self, family: Family) -> String {
        match family {
            Family::V4 => self.name().to_owned(),
            Family::V6 => self.name().replace("iptables", "ip6tables"),
        }
    }

    /// Returns the program of `iptables` or `ip6tables`.
    pub(crate) fn name_of(self, family: &str) -> String {
        let backend = match self {
            Tool::Legacy => "legacy",
            Tool::Nft => "nft",
        };
        format!("{family}-{backend}")
    }
}

/// Says that a test could not run. Where everything must run, that is a failure.
pub(crate) fn skip(test: &str, reason: &str) {
    assert!(
        std::env::var("CI").as_deref() != Ok("true"),
        "{test} was skipped, which CI does not accept: {reason}"
    );
    let _ = writeln!(std::io::stderr(), "skipped: {test}: {reason}");
}

fn run(command: &mut Command, input: &str) -> Result<String, String> {
    let spawned = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = spawned.spawn().map_err(|error| format!("{command:?}: {error}"))?;
    let mut stdin = child.stdin.take().expect("piped");
    let sent = stdin.write_all(input.as_bytes());
    drop(stdin);
    let output = child.wait_with_output().map_err(|error| format!("{command:?}: {error}"))?;
    if sent.is_ok() && output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    Err(format!("{command:?}: {}", String::from_utf8_lossy(&output.stderr).trim()))
}

pub(crate) fn ip(args: &str) -> Result<String, String> {
    run(Command::new("ip").args(args.split_whitespace()), "")
}

/// Runs a program in a namespace.
pub(crate) fn run_in(
    namespace: &str,
    program: &str,
    args: &[&str],
    input: &str,
) -> Result<String, String> {
    run(Command::new("ip").args(["netns", "exec", namespace, program]).args(args), input)
}

/// Returns the command by which this program plays a role in a namespace.
pub(crate) fn role_in(namespace: &str, role: &str, args: &str) -> Command {
    test_in(namespace, ROLE_TEST, role, args)
}

/// Returns the run of a test of this program in a namespace, where it plays a role.
fn test_in(namespace: &str, test: &str, role: &str, args: &str) -> Command {
    let program = std::env::current_exe().expect("a program has a path");
    let mut command = Command::new("ip");
    command
        .args(["netns", "exec", namespace])
        .arg(program)
        .args(["--exact", test, "--nocapture"])
        .env(ROLE, role)
        .env(ARGS, args);
    command
}

/// Runs a role to its end and returns its lines.
pub(crate) fn spoken(command: &mut Command) -> Result<Vec<String>, String> {
    let text = run(command, "")?;
    let lines = text.lines().filter_map(|line| line.split_once(MARK));
    Ok(lines.map(|(_, line)| line.to_owned()).collect())
}

impl Lab {
    /// Builds the namespaces, or says why it cannot.
    pub(crate) fn try_new(tool: Tool) -> Result<Lab, String> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        run(Command::new(format!("{}-restore", tool.name())).arg("--version"), "")?;
        let mut lab = Lab { name: format!("nfm{}x{count}", std::process::id()), server: None };
        for place in ["c", "n", "s"] {
            ip(&format!("netns add {}{place}", lab.name))?;
            lab.ip(place, "link set lo up")?;
        }
        for (far, dev, net) in [("c", "c0", 1), ("s", "s0", 2)] {
            let name = &lab.name;
            ip(&format!(
                "link add {dev} netns {name}n type veth peer name eth0 netns {name}{far}"
            ))?;
            lab.ip("n", &format!("address add 10.244.{net}.1/24 dev {dev}"))?;
            lab.ip("n", &format!("link set {dev} up"))?;
            lab.ip(far, "link set eth0 up")?;
            let addresses = if far == "c" { 2..=2 } else { 2..=1 + BACKENDS };
            for host in addresses {
                lab.ip(far, &format!("address add 10.244.{net}.{host}/24 dev eth0"))?;
            }
            lab.ip(far, &format!("route add default via 10.244.{net}.1"))?;
        }
        lab.node("sh", &["-c", "echo 1 > /proc/sys/net/ipv4/ip_forward"], "")?;
        lab.serve()?;
        Ok(lab)
    }

    fn ip(&self, place: &str, args: &str) -> Result<String, String> {
        ip(&format!("-n {}{place} {args}", self.name))
    }

    /// Runs a program in the node's namespace.
    pub(crate) fn node(&self, program: &str, args: &[&str], input: &str) -> Result<String, String> {
        self.at("n", program, args, input)
    }

    /// Runs a program in the namespace of the client (`c`), the node (`n`) or the server (`s`).
    pub(crate) fn at(
        &self,
        place: &str,
        program: &str,
        args: &[&str],
        input: &str,
    ) -> Result<String, String> {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &format!("{}{place}", self.name), program]).args(args);
        run(&mut command, input)
    }

    /// Loads rules.
    pub(crate) fn restore(&self, tool: Tool, text: &str) -> Result<String, String> {
        self.node(&format!("{}-restore", tool.name()), &[], text)
    }

    /// Prints a table, without comment lines.
    pub(crate) fn save(&self, tool: Tool, table: &str) -> Result<String, String> {
        let text = self.node(&format!("{}-save", tool.name()), &["-t", table], "")?;
        let lines = text.lines().filter(|line| !line.starts_with('#'));
        Ok(lines.map(|line| format!("{line}\n")).collect())
    }

    /// Prints a table with its counters.
    pub(crate) fn save_counted(&self, tool: Tool, table: &str) -> Result<String, String> {
        self.node(&format!("{}-save", tool.name()), &["-c", "-t", table], "")
    }

    /// Lists a table of a family, with all that a listing can say.
    pub(crate) fn list(&self, tool: Tool, family: Family, table: &str) -> Result<String, String> {
        self.node(&tool.of_family(family), &["-t", table, "-L", "-n", "-v"], "")
    }

    /// Loads a table of a family and prints it, without comment lines.
    pub(crate) fn reload(
        &self,
        tool: Tool,
        family: Family,
        table: &str,
        text: &str,
    ) -> Result<String, String> {
        let name = tool.of_family(family);
        self.node(&format!("{name}-restore"), &[], text)?;
        let text = self.node(&format!("{name}-save"), &["-t", table], "")?;
        let lines = text.lines().filter(|line| !line.starts_with('#'));
        // The kernel sends packets of its own, as when it asks for IPv6 routers.
        let uncounted = |line: &str| match line.split_once(" [") {
            Some((policy, _)) if line.starts_with(':') => format!("{policy} [0:0]\n"),
            _ => format!("{line}\n"),
        };
        Ok(lines.map(uncounted).collect())
    }

    fn role(&self, place: &str, role: &str, args: &str) -> Command {
        role_in(&format!("{}{place}", self.name), role, args)
    }

    /// Returns the run of a test of this program in a namespace, where it plays a role.
    pub(crate) fn test(&self, place: &str, test: &str, role: &str, args: &str) -> Command {
        test_in(&format!("{}{place}", self.name), test, role, args)
    }

    fn serve(&mut self) -> Result<(), String> {
        let mut command = self.role("s", "serve", "");
        let spawned = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let child = spawned.spawn().map_err(|error| format!("{command:?}: {error}"))?;
        let child = self.server.insert(child);
        let mut lines = BufReader::new(child.stdout.as_mut().expect("piped")).lines();
        let ready = |line: std::io::Result<String>| line.is_ok_and(|l| l.ends_with("ready"));
        if lines.any(ready) { Ok(()) } else { Err("the server did not start".to_owned()) }
    }

    /// Runs a client and returns its lines.
    pub(crate) fn client(&self, role: &str, args: &str) -> Vec<String> {
        spoken(&mut self.role("c", role, args)).expect("the client runs")
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        if let Some(server) = &mut self.server {
            let _ = server.kill();
            let _ = server.wait();
        }
        for place in ["c", "n", "s"] {
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
    let args = std::env::var(ARGS).unwrap_or_default();
    match role.as_str() {
        "serve" => serve(),
        "listen" => listen(&args),
        "flow" => println!("{MARK}{}", flow(&args)),
        "tcp" => args.split_whitespace().for_each(|to| println!("{MARK}{}", connect(to, PATIENCE))),
        "together" => together(&args),
        "staggered" => staggered(&args),
        "udp" => exchange(&args),
        role => panic!("no role {role}"),
    }
}

/// Tells every peer which address it reached and how it is seen, until standard input ends.
fn serve() {
    let listener = TcpListener::bind("0.0.0.0:8080").expect("the port is free");
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            if let (Ok(local), Ok(peer)) = (stream.local_addr(), stream.peer_addr()) {
                let _ = writeln!(stream, "{local} {peer}");
            }
        }
    });
    for host in 2..=1 + BACKENDS {
        let local = format!("10.244.2.{host}:5353");
        let socket = UdpSocket::bind(&local).expect("the port is free");
        std::thread::spawn(move || {
            let mut buffer = [0; 64];
            while let Ok((_, peer)) = socket.recv_from(&mut buffer) {
                let _ = socket.send_to(format!("{local} {peer}").as_bytes(), peer);
            }
        });
    }
    println!("ready");
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
}

/// `NAME tcp/80 udp/53@127.0.0.1 …`: answers every line and datagram with its name and who it sees, until
/// standard input ends.
fn listen(args: &str) {
    let mut args = args.split_whitespace().map(str::to_owned);
    let name = args.next().expect("a name");
    for spec in args {
        let (protocol, place) = spec.split_once('/').expect("a protocol and a port");
        let name = name.clone();
        let any = match place.split_once('@') {
            Some((port, address)) => format!("{address}:{port}"),
            None => format!("[::]:{place}"),
        };
        if protocol == "tcp" {
            let listener = TcpListener::bind(any).expect("the port is free");
            std::thread::spawn(move || {
                for mut stream in listener.incoming().flatten() {
                    if let Ok(peer) = stream.peer_addr() {
                        let _ = writeln!(stream, "{name} {peer}");
                    }
                }
            });
        } else {
            let socket = UdpSocket::bind(any).expect("the port is free");
            std::thread::spawn(move || {
                let mut buffer = [0; 65_536];
                while let Ok((_, peer)) = socket.recv_from(&mut buffer) {
                    let _ = socket.send_to(format!("{name} {peer}").as_bytes(), peer);
                }
            });
        }
    }
    println!("ready");
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
}

/// `PROTOCOL TO SIZE`: uses a service once; returns `NAME sees ADDRESS kept|changed`, the error, or
/// `silence`.
fn flow(args: &str) -> String {
    const PATIENCE: Duration = Duration::from_millis(700);
    let mut args = args.split_whitespace();
    let (protocol, to, size) = (args.next(), args.next(), args.next());
    let to: SocketAddr = to.and_then(|to| to.parse().ok()).expect("an address and port");
    let size = size.and_then(|size| size.parse().ok()).expect("a size");
    let mut said = String::new();
    let done = if protocol == Some("tcp") {
        TcpStream::connect_timeout(&to, PATIENCE).and_then(|stream| {
            stream.set_read_timeout(Some(PATIENCE))?;
            let local = stream.local_addr()?;
            BufReader::new(stream).read_line(&mut said).map(|_| local)
        })
    } else {
        let any = if to.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
        UdpSocket::bind(any).and_then(|socket| {
            socket.set_read_timeout(Some(PATIENCE))?;
            socket.connect(to)?;
            socket.send(&vec![b'.'; size])?;
            let mut buffer = [0; 128];
            let len = socket.recv(&mut buffer)?;
            said = String::from_utf8_lossy(&buffer[..len]).into_owned();
            socket.local_addr()
        })
    };
    match done {
        Ok(local) => {
            let (name, peer) = said.trim().split_once(' ').expect("a name and an address");
            let peer: SocketAddr = peer.parse().expect("an address and port");
            let port = if peer.port() == local.port() { "kept" } else { "changed" };
            format!("{name} sees {} {port}", peer.ip().to_canonical())
        }
        Err(error) => match error.kind() {
            ErrorKind::TimedOut | ErrorKind::WouldBlock => "silence".to_owned(),
            kind => format!("{kind:?}"),
        },
    }
}

/// Connects once and returns `LOCAL ok SERVER PEER-SEEN`, or `- ERROR`.
fn connect(to: &str, patience: Duration) -> String {
    let address: SocketAddr = to.parse().expect("an address and port");
    let stream = match TcpStream::connect_timeout(&address, patience) {
        Ok(stream) => stream,
        Err(error) => return format!("- {:?}", error.kind()),
    };
    let _ = stream.set_read_timeout(Some(PATIENCE));
    let local = stream.local_addr().expect("connected");
    let mut line = String::new();
    match BufReader::new(stream).read_line(&mut line) {
        Ok(_) => format!("{local} ok {}", line.trim()),
        Err(error) => format!("{local} {:?}", error.kind()),
    }
}

/// Connects to all addresses at once, for less than a retransmission takes.
fn together(args: &str) {
    std::thread::scope(|scope| {
        for to in args.split_whitespace() {
            scope.spawn(move || println!("{MARK}{}", connect(to, Duration::from_millis(700))));
        }
    });
}

/// `TO MILLISECONDS…`: connects that long after the start, patiently, and prints
/// `MILLISECONDS ended AFTER-MILLISECONDS RESULT`.
fn staggered(args: &str) {
    let mut args = args.split_whitespace();
    let to = args.next().expect("an address");
    #[allow(clippy::disallowed_methods)] // The kernel's time is the wall's.
    let start = std::time::Instant::now();
    std::thread::scope(|scope| {
        for wait in args {
            scope.spawn(move || {
                std::thread::sleep(Duration::from_millis(wait.parse().expect("a number")));
                let result = connect(to, Duration::from_secs(8));
                println!("{MARK}{wait} ended {} {result}", start.elapsed().as_millis());
            });
        }
    });
}

/// `PORT TO…`: sends a datagram from one port to each address and prints
/// `FROM ok SERVER PEER-SEEN`, or `- ERROR`.
fn exchange(args: &str) {
    let mut args = args.split_whitespace();
    let port = args.next().expect("a port");
    let socket = UdpSocket::bind(format!("0.0.0.0:{port}")).expect("the port is free");
    let _ = socket.set_read_timeout(Some(PATIENCE));
    for to in args {
        socket.send_to(b"?", to).expect("datagrams leave");
        let mut buffer = [0; 64];
        match socket.recv_from(&mut buffer) {
            Ok((len, from)) => {
                println!("{MARK}{from} ok {}", String::from_utf8_lossy(&buffer[..len]));
            }
            Err(error) => println!("{MARK}- {:?}", error.kind()),
        }
    }
}
