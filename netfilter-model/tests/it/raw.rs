//! Packets written by hand, sent from a network namespace of the lab.

use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Lines, Write};
use std::net::{IpAddr, SocketAddrV4, SocketAddrV6};
use std::os::fd::AsRawFd;
use std::process::{Child, ChildStdin, ChildStdout, Stdio};

use netfilter_model::packet::{L4, Packet, Segment, TcpFlags};
use netfilter_model::tuple::{Addresses, Protocol, Tuple};
use nix::sys::socket::{
    AddressFamily, LinkAddr, MsgFlags, SockFlag, SockProtocol, SockType, SockaddrIn, SockaddrIn6,
    recvfrom, sendto, socket,
};

use crate::lab::{Lab, ROLE};

/// A process that sends what it is told.
pub(crate) struct Sender(Process);

impl Sender {
    /// Starts one in the namespace of the lab's client (`c`), node (`n`) or server (`s`).
    pub(crate) fn start(lab: &Lab, place: &str) -> Result<Sender, String> {
        Ok(Sender(Process::start(lab, place, "raw::sender", "raw")?))
    }

    /// Sends a packet and returns once it has left.
    pub(crate) fn send(&mut self, packet: &Packet) {
        let answer = self.try_send(packet);
        assert_eq!(answer, "sent", "{packet:?}");
    }

    /// Sends a packet that rules of this host may stop; returns `sent` or the error.
    pub(crate) fn try_send(&mut self, packet: &Packet) -> String {
        let mut line = format!("{} ", packet.tuple.dst());
        for byte in bytes(packet) {
            write!(line, "{byte:02x}").expect("strings grow");
        }
        self.0.ask(&line)
    }
}

/// A process that tells which packets have come in.
pub(crate) struct Watcher(Process);

impl Watcher {
    /// Starts one in the namespace of the lab's client (`c`), node (`n`) or server (`s`).
    pub(crate) fn start(lab: &Lab, place: &str) -> Result<Watcher, String> {
        Ok(Watcher(Process::start(lab, place, "raw::watcher", "watch")?))
    }

    /// Returns the packets that have come in since it was last asked, from the IP header on.
    pub(crate) fn seen(&mut self) -> Vec<Vec<u8>> {
        let line = self.0.ask("");
        line.split_whitespace().map(from_hex).collect()
    }
}

/// A process that answers each line with one.
struct Process {
    child: Child,
    stdin: ChildStdin,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Process {
    fn start(lab: &Lab, place: &str, test: &str, role: &str) -> Result<Process, String> {
        let mut command = lab.test(place, test, role, "");
        let spawned = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = spawned.spawn().map_err(|error| format!("{command:?}: {error}"))?;
        let stdin = child.stdin.take().expect("piped");
        let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines();
        let ready = |line: std::io::Result<String>| line.is_ok_and(|l| l.ends_with("ready"));
        if !lines.any(ready) {
            return Err(format!("{test} did not start"));
        }
        Ok(Process { child, stdin, lines })
    }

    fn ask(&mut self, line: &str) -> String {
        writeln!(self.stdin, "{line}").expect("the process lives");
        self.lines.next().expect("the process answers").expect("in text")
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn from_hex(hex: &str) -> Vec<u8> {
    let digits = (0..hex.len() / 2).map(|i| &hex[2 * i..2 * i + 2]);
    digits.map(|d| u8::from_str_radix(d, 16).expect("hexadecimal")).collect()
}

/// The sender's process: a line is an address and a packet in hexadecimal. As a test of its own
/// it does nothing.
#[test]
fn sender() {
    if std::env::var(ROLE).as_deref() != Ok("raw") {
        return;
    }
    // IPPROTO_RAW: the IP header is ours; the kernel fills in length and checksum.
    let open = |family| {
        let raw = socket(family, SockType::Raw, SockFlag::empty(), SockProtocol::Raw);
        raw.expect("root may open raw sockets")
    };
    let (raw, raw6) = (open(AddressFamily::Inet), open(AddressFamily::Inet6));
    println!("ready");
    for line in std::io::stdin().lines().map_while(Result::ok) {
        let (to, hex) = line.split_once(' ').expect("an address and a packet");
        let bytes = from_hex(hex);
        let none = MsgFlags::empty();
        let sent = match to.parse().expect("an address") {
            IpAddr::V4(to) => {
                let to = SockaddrIn::from(SocketAddrV4::new(to, 0));
                sendto(raw.as_raw_fd(), &bytes, &to, none)
            }
            IpAddr::V6(to) => {
                let to = SockaddrIn6::from(SocketAddrV6::new(to, 0, 0, 0));
                sendto(raw6.as_raw_fd(), &bytes, &to, none)
            }
        };
        match sent {
            Ok(_) => println!("sent"),
            Err(error) => println!("{error}"),
        }
    }
}

/// The watcher's process: a line asks for all that has come in. As a test of its own it does
/// nothing.
#[test]
fn watcher() {
    if std::env::var(ROLE).as_deref() != Ok("watch") {
        return;
    }
    // Kernel: uapi/linux/if_packet.h
    const PACKET_OUTGOING: u8 = 4;
    let all = SockProtocol::EthAll;
    let socket = socket(AddressFamily::Packet, SockType::Datagram, SockFlag::SOCK_NONBLOCK, all);
    let socket = socket.expect("root may listen to devices");
    println!("ready");
    for _ in std::io::stdin().lines().map_while(Result::ok) {
        let mut line = String::new();
        let mut buffer = [0; 2048];
        while let Ok((len, Some(from))) = recvfrom::<LinkAddr>(socket.as_raw_fd(), &mut buffer) {
            if from.pkttype() != PACKET_OUTGOING {
                buffer[..len].iter().for_each(|b| write!(line, "{b:02x}").expect("strings grow"));
                line.push(' ');
            }
        }
        println!("{line}");
    }
}

fn checksum(parts: &[&[u8]]) -> u16 {
    let bytes: Vec<u8> = parts.concat();
    let words = bytes.chunks(2).map(|pair| match *pair {
        [high, low] => u32::from(high) << 8 | u32::from(low),
        [high] => u32::from(high) << 8,
        _ => 0,
    });
    let mut sum: u32 = words.sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

/// Returns a packet on the wire. Its id stands in the identification of IPv4 and the flow label of
/// IPv6.
fn bytes(packet: &Packet) -> Vec<u8> {
    let payload = transport(packet);
    let (protocol, ttl, tos) = (packet.tuple.protocol.0, packet.ttl, packet.tos);
    let [high, low] = (packet.id as u16).to_be_bytes();
    let mut ip;
    match packet.tuple.addresses() {
        Addresses::V4 { src, dst } => {
            ip = vec![0x45, tos, 0, 0, high, low, 0, 0, ttl, protocol, 0, 0];
            ip.extend(src.octets());
            ip.extend(dst.octets());
        }
        Addresses::V6 { src, dst } => {
            ip = vec![0x60 | tos >> 4, tos << 4, high, low];
            ip.extend((payload.len() as u16).to_be_bytes());
            ip.extend([protocol, ttl]);
            ip.extend(src.octets());
            ip.extend(dst.octets());
        }
    }
    ip.extend(payload);
    ip
}

fn transport(packet: &Packet) -> Vec<u8> {
    let Tuple { src_part, dst_part, .. } = packet.tuple;
    match packet.l4 {
        L4::Tcp { flags, segment } => {
            let segment = segment.unwrap_or_default();
            let options = options(&segment);
            let mut tcp = Vec::new();
            tcp.extend(src_part.to_be_bytes());
            tcp.extend(dst_part.to_be_bytes());
            tcp.extend(segment.seq.to_be_bytes());
            tcp.extend(segment.ack.to_be_bytes());
            tcp.push(((20 + options.len() as u8) / 4) << 4);
            tcp.push(flags.bits());
            tcp.extend(segment.window.to_be_bytes());
            tcp.extend([0; 4]);
            tcp.extend(options);
            tcp.resize(tcp.len() + usize::from(segment.data), b'.');
            sum_up(&mut tcp, 16, packet);
            tcp
        }
        L4::Udp => {
            let mut udp = Vec::new();
            udp.extend(src_part.to_be_bytes());
            udp.extend(dst_part.to_be_bytes());
            udp.extend(9_u16.to_be_bytes());
            udp.extend([0, 0, b'?']);
            sum_up(&mut udp, 6, packet);
            udp
        }
        L4::IcmpEcho => {
            let (kind, code) = packet.tuple.icmp_kind();
            let mut icmp = vec![kind, code, 0, 0];
            icmp.extend(src_part.to_be_bytes());
            icmp.extend((packet.id as u16).max(1).to_be_bytes());
            icmp_sum(&mut icmp, packet);
            icmp
        }
        L4::IcmpError { kind, quote } => {
            let (kind, code) = kind.kind();
            let mut icmp = vec![kind, code, 0, 0, 0, 0, 0, 0];
            let l4 = match quote.protocol {
                Protocol::TCP => {
                    L4::Tcp { flags: TcpFlags::SYN, segment: Some(Segment::default()) }
                }
                Protocol::UDP => L4::Udp,
                _ => L4::IcmpEcho,
            };
            icmp.extend(bytes(&Packet::new(0, quote, l4, 0)));
            icmp_sum(&mut icmp, packet);
            icmp
        }
        L4::Other => vec![b'?'; 8],
    }
}

/// Sets the checksum over the addresses and the segment.
fn sum_up(bytes: &mut [u8], at: usize, packet: &Packet) {
    let len = (bytes.len() as u16).to_be_bytes();
    let protocol = [0, packet.tuple.protocol.0];
    let sum = match packet.tuple.addresses() {
        Addresses::V4 { src, dst } => {
            checksum(&[&src.octets(), &dst.octets(), &protocol, &len, bytes])
        }
        Addresses::V6 { src, dst } => {
            checksum(&[&src.octets(), &dst.octets(), &protocol, &len, bytes])
        }
    };
    let sum = sum ^ u16::from(packet.bad_checksum) << 3;
    bytes[at..at + 2].copy_from_slice(&sum.to_be_bytes());
}

fn icmp_sum(icmp: &mut [u8], packet: &Packet) {
    if packet.tuple.protocol == Protocol::ICMPV6 {
        return sum_up(icmp, 2, packet);
    }
    let sum = checksum(&[icmp]) ^ u16::from(packet.bad_checksum) << 3;
    icmp[2..4].copy_from_slice(&sum.to_be_bytes());
}

fn options(segment: &Segment) -> Vec<u8> {
    let has = |kind: u32| segment.options & 1 << kind != 0;
    let mut bytes = Vec::new();
    if has(2) {
        bytes.extend([2, 4]);
        bytes.extend(segment.mss.to_be_bytes());
    }
    if has(3) {
        bytes.extend([3, 3, segment.scale]);
    }
    if has(4) {
        bytes.extend([4, 2]);
    }
    if has(5) {
        bytes.extend([5, 10]);
        bytes.extend(segment.sack.wrapping_sub(1).to_be_bytes());
        bytes.extend(segment.sack.to_be_bytes());
    }
    bytes.resize(bytes.len().next_multiple_of(4), 1);
    bytes
}
