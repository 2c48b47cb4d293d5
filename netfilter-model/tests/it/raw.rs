//! Packets written by hand, sent from a network namespace of the lab.

use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Lines, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddrV4};
use std::os::fd::AsRawFd;
use std::process::{Child, ChildStdin, ChildStdout, Stdio};

use netfilter_model::packet::{L4, Packet, Segment, TcpFlags};
use netfilter_model::tuple::{Protocol, Tuple};
use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, SockaddrIn, sendto, socket,
};

use crate::lab::{Lab, ROLE};

/// A process that sends what it is told.
pub(crate) struct Sender {
    child: Child,
    stdin: ChildStdin,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Sender {
    /// Starts one in the namespace of the lab's client (`c`), node (`n`) or server (`s`).
    pub(crate) fn start(lab: &Lab, place: &str) -> Result<Sender, String> {
        let mut command = lab.test(place, "raw::sender", "raw", "");
        let spawned = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = spawned.spawn().map_err(|error| format!("{command:?}: {error}"))?;
        let stdin = child.stdin.take().expect("piped");
        let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines();
        let ready = |line: std::io::Result<String>| line.is_ok_and(|l| l.ends_with("ready"));
        if !lines.any(ready) {
            return Err("the sender did not start".to_owned());
        }
        Ok(Sender { child, stdin, lines })
    }

    /// Sends a packet and returns once it has left.
    pub(crate) fn send(&mut self, packet: &Packet) {
        let IpAddr::V4(to) = packet.tuple.dst() else { panic!("IPv4 only") };
        let mut line = format!("{to} ");
        for byte in bytes(packet) {
            write!(line, "{byte:02x}").expect("strings grow");
        }
        writeln!(self.stdin, "{line}").expect("the sender lives");
        let answer = self.lines.next().expect("the sender answers").expect("in text");
        assert_eq!(answer, "sent", "{packet:?}");
    }
}

impl Drop for Sender {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The sender's process: a line is an address and a packet in hexadecimal. As a test of its own
/// it does nothing.
#[test]
fn sender() {
    if std::env::var(ROLE).as_deref() != Ok("raw") {
        return;
    }
    // IPPROTO_RAW: the IP header is ours; the kernel fills in length and checksum.
    let raw = socket(AddressFamily::Inet, SockType::Raw, SockFlag::empty(), SockProtocol::Raw);
    let raw = raw.expect("root may open raw sockets");
    println!("ready");
    for line in std::io::stdin().lines().map_while(Result::ok) {
        let (to, hex) = line.split_once(' ').expect("an address and a packet");
        let to: Ipv4Addr = to.parse().expect("an address");
        let digits: Vec<&str> = (0..hex.len() / 2).map(|i| &hex[2 * i..2 * i + 2]).collect();
        let bytes: Vec<u8> =
            digits.iter().map(|d| u8::from_str_radix(d, 16).expect("hexadecimal")).collect();
        let address = SockaddrIn::from(SocketAddrV4::new(to, 0));
        match sendto(raw.as_raw_fd(), &bytes, &address, MsgFlags::empty()) {
            Ok(_) => println!("sent"),
            Err(error) => println!("{error}"),
        }
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

/// Returns a packet on the wire.
fn bytes(packet: &Packet) -> Vec<u8> {
    let (IpAddr::V4(src), IpAddr::V4(dst)) = (packet.tuple.src(), packet.tuple.dst()) else {
        panic!("IPv4 only");
    };
    let payload = transport(packet);
    let protocol = packet.tuple.protocol.0;
    let mut ip = vec![0x45, 0, 0, 0, 0, 0, 0, 0, packet.ttl, protocol, 0, 0];
    ip.extend(src.octets());
    ip.extend(dst.octets());
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
            tcp.push(flag_bits(flags));
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
            icmp.extend([0, 1]);
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
    let (IpAddr::V4(src), IpAddr::V4(dst)) = (packet.tuple.src(), packet.tuple.dst()) else {
        panic!("IPv4 only");
    };
    let len = (bytes.len() as u16).to_be_bytes();
    let protocol = [0, packet.tuple.protocol.0];
    let sum = checksum(&[&src.octets(), &dst.octets(), &protocol, &len, bytes]);
    let sum = sum ^ u16::from(packet.bad_checksum) << 3;
    bytes[at..at + 2].copy_from_slice(&sum.to_be_bytes());
}

fn icmp_sum(bytes: &mut [u8], packet: &Packet) {
    let sum = checksum(&[bytes]) ^ u16::from(packet.bad_checksum) << 3;
    bytes[2..4].copy_from_slice(&sum.to_be_bytes());
}

fn flag_bits(flags: TcpFlags) -> u8 {
    let bits = [
        (TcpFlags::FIN, 0x01),
        (TcpFlags::SYN, 0x02),
        (TcpFlags::RST, 0x04),
        (TcpFlags::PSH, 0x08),
        (TcpFlags::ACK, 0x10),
        (TcpFlags::URG, 0x20),
    ];
    let set = bits.into_iter().filter(|(flag, _)| flags.contains(*flag));
    set.map(|(_, bit)| bit).sum()
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
