//! The running kernel's rate of new flows through the same rules: a client's datagrams, each of a
//! flow of its own, pass a node's namespace and end at a device that drops them.

use std::io::Write;
use std::net::UdpSocket;
use std::process::{Command, Stdio};
use std::time::Instant;

use netfilter_model::rule::iptables_save;
use netfilter_model::tuple::Protocol;

/// Tells a run of this program how many Services the flows of the client namespace go to.
const SERVICES: &str = "NETFILTER_MODEL_BENCH_SERVICES";
const FLOWS: u32 = 40_000;

/// Sends the flows if this run is a client, and says whether it was.
pub(crate) fn play_client() -> bool {
    let Ok(services) = std::env::var(SERVICES) else {
        return false;
    };
    let services: u32 = services.parse().expect("a number");
    let sockets = FLOWS.div_ceil(services.min(1_000));
    let sockets = (0..sockets.min(900)).map(|_| UdpSocket::bind("0.0.0.0:0").expect("a port"));
    let sockets: Vec<UdpSocket> = sockets.collect();
    let start = Instant::now();
    let mut sent = 0;
    'all: for round in 0.. {
        for socket in &sockets {
            if sent == FLOWS || round == services {
                break 'all;
            }
            // Services in no order, each of a socket's flows to another one.
            let service = (round * 7_919 + sent % 97) % services;
            socket.send_to(b"?", (super::vip(service), 80)).expect("datagrams leave");
            sent += 1;
        }
    }
    println!("{}", f64::from(sent) / start.elapsed().as_secs_f64());
    true
}

/// Prints the kernel's rates, or why there are none.
pub(crate) fn print_rates(sizes: &[u32]) {
    for services in sizes {
        match rate(*services) {
            Ok(rate) => println!("kernel, {services} Services: {rate:.0} new flows/s"),
            Err(why) => {
                println!("kernel: not measured: {why}");
                return;
            }
        }
    }
}

/// Two namespaces, gone when dropped.
struct Net {
    client: String,
    node: String,
}

impl Drop for Net {
    fn drop(&mut self) {
        for name in [&self.client, &self.node] {
            let _ = run("ip", &["netns", "delete", name], "");
        }
    }
}

fn rate(services: u32) -> Result<f64, String> {
    let id = std::process::id();
    let net = Net { client: format!("nfb{id}c"), node: format!("nfb{id}n") };
    let (client, node) = (net.client.as_str(), net.node.as_str());
    for step in [
        format!("netns add {client}"),
        format!("netns add {node}"),
        format!("link add eth0 netns {client} type veth peer name cni0 netns {node}"),
        // What leaves the node arrives at a device without addresses.
        format!("-n {node} link add eth0 type veth peer name sink netns {client}"),
        format!("-n {client} link set sink up"),
        format!("-n {node} address add 10.244.1.1/24 dev cni0"),
        format!("-n {node} link set cni0 up"),
        format!("-n {node} link set eth0 up"),
        format!("-n {node} address add 192.168.0.1/24 dev eth0"),
        format!("-n {node} neigh add 192.168.0.254 lladdr 02:00:00:00:00:01 dev eth0"),
        format!("-n {node} route add default via 192.168.0.254"),
        format!("-n {client} address add 10.244.1.2/24 dev eth0"),
        format!("-n {client} link set eth0 up"),
        format!("-n {client} route add default via 10.244.1.1"),
    ] {
        run("ip", &step.split(' ').collect::<Vec<_>>(), "")?;
    }
    let inside = |program: &str, args: &[&str], input: &str| {
        let exec = ["netns", "exec", node, program];
        run("ip", &[&exec, args].concat(), input)
    };
    inside("sysctl", &["-qw", "net.ipv4.ip_forward=1"], "")?;
    let text = iptables_save(&super::rules(services, Protocol::UDP));
    inside("iptables-legacy-restore", &[], &text)?;
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    let program = program.to_str().ok_or("this program's path is no text")?;
    let setting = format!("{SERVICES}={services}");
    let rate = run("ip", &["netns", "exec", client, "env", &setting, program], "")?;
    rate.trim().parse().map_err(|_| format!("the client printed {rate:?}"))
}

fn run(program: &str, args: &[&str], input: &str) -> Result<String, String> {
    let mut command = Command::new(program);
    command.args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(|error| format!("{program}: {error}"))?;
    let sent = child.stdin.take().expect("piped").write_all(input.as_bytes());
    let output = child.wait_with_output().map_err(|error| format!("{program}: {error}"))?;
    if output.status.success() && sent.is_ok() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    Err(format!("{program} {}: {}", args.join(" "), String::from_utf8_lossy(&output.stderr).trim()))
}
