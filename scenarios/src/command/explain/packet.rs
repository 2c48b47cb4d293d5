//! The packet of the command line: `tcp 10.244.1.5:40000 > 10.96.0.10:80 [syn]`.
//!
//! ```text
//! PROTOCOL SRC[:PORT] > DST[:PORT] [FLAGS] [OPTION VALUE]…
//! ```

use std::net::IpAddr;

use netfilter_model::host::Socket;
use netfilter_model::packet::{L4, Packet, TcpFlags};
use netfilter_model::tuple::{Protocol, Tuple};

/// The source port of a packet that names none.
const SOURCE_PORT: u16 = 40_000;
/// The echo id of a ping that names none.
const ECHO_ID: u16 = 1;

/// A packet to be explained, and what is said about its sender.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Probe {
    /// The packet.
    pub(super) packet: Packet,
    /// The source address of its frame.
    pub(super) mac: Option<[u8; 6]>,
    /// The owner of the socket that it comes from.
    pub(super) socket: Socket,
    /// The source port was not said.
    pub(super) port_assumed: bool,
}

/// A text is no packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PacketError {
    /// The wrong part, as byte offsets.
    pub(super) start: usize,
    /// The byte after its last.
    pub(super) end: usize,
    /// What is wrong.
    pub(super) message: String,
    /// What would be right.
    pub(super) help: String,
}

/// A blank-separated part of the text.
#[derive(Clone, Copy, Debug)]
struct Word<'t> {
    text: &'t str,
    start: usize,
}

impl<'t> Word<'t> {
    fn error(&self, message: impl Into<String>, help: impl Into<String>) -> PacketError {
        let (start, end) = (self.start, self.start + self.text.len());
        PacketError { start, end, message: message.into(), help: help.into() }
    }

    fn part(&self, range: std::ops::Range<usize>) -> Word<'t> {
        Word { text: &self.text[range.clone()], start: self.start + range.start }
    }
}

const GRAMMAR: &str = "a packet is `PROTOCOL SRC[:PORT] > DST[:PORT] [FLAGS] [OPTION VALUE]…`, as in \
                       `tcp 10.244.1.5:40000 > 10.96.0.10:80 syn`";

/// Reads a packet.
pub(super) fn parse(text: &str) -> Result<Probe, PacketError> {
    let mut words = Words { text, words: words(text), at: 0 };
    let protocol = protocol(words.next("a protocol")?)?;
    let from = words.next("the source address")?;
    let arrow = words.next("`>`")?;
    if !matches!(arrow.text, ">" | "->" | "→") {
        return Err(arrow.error(format!("`{}` where `>` is expected", arrow.text), GRAMMAR));
    }
    let to = words.next("the destination address")?;
    let (src, sport) = endpoint(from)?;
    let (dst, dport) = endpoint(to)?;
    let protocol = match protocol {
        Protocol::ICMP if src.is_ipv6() => Protocol::ICMPV6,
        other => other,
    };
    if src.is_ipv4() != dst.is_ipv4() {
        return Err(to.error(
            format!("{dst} is not of the family of {src}"),
            "both addresses are IPv4, or both IPv6",
        ));
    }
    if protocol.is_icmp() && (protocol == Protocol::ICMPV6) != src.is_ipv6() {
        return Err(from.error(
            format!("{src} cannot send {protocol}"),
            "`icmp` fits both families: say that",
        ));
    }
    let options = options(&mut words, protocol)?;
    if !protocol.has_ports() {
        for (word, port) in [(from, sport), (to, dport)] {
            if port.is_some() {
                return Err(word.error(
                    format!("{protocol} has no ports"),
                    "leave `:PORT` out; an echo has `type`, `code` and `id` instead",
                ));
            }
        }
    }
    let (src_part, dst_part) = if protocol.has_ports() {
        let dport = dport.ok_or_else(|| {
            to.error(
                format!("{protocol} needs a destination port"),
                format!("as in `{}`", with_port(dst)),
            )
        })?;
        (sport.unwrap_or(SOURCE_PORT), dport)
    } else if protocol.is_icmp() {
        let echo = if src.is_ipv6() { 128 } else { 8 };
        let (kind, code) = (options.kind.unwrap_or(echo), options.code.unwrap_or(0));
        (options.id.unwrap_or(ECHO_ID), u16::from(kind) << 8 | u16::from(code))
    } else {
        (0, 0)
    };
    let tuple = Tuple::try_new(protocol, src, src_part, dst, dst_part).expect("one family");
    let mut packet = match protocol {
        Protocol::TCP => {
            let flags = options.flags.unwrap_or(TcpFlags::SYN);
            let len = if flags.contains(TcpFlags::SYN) { 60 } else { 52 };
            Packet { len, ..Packet::tcp(1, tuple, flags) }
        }
        Protocol::UDP => Packet::udp(1, tuple, 60),
        icmp if icmp.is_icmp() => Packet::icmp_echo(1, tuple),
        _ => Packet::new(1, tuple, L4::Other, 60),
    };
    if src.is_ipv6() {
        packet.len += 20;
    }
    packet.mark = options.mark.unwrap_or(0);
    packet.ttl = options.ttl.unwrap_or(packet.ttl);
    packet.len = options.len.map_or(packet.len, u32::from);
    packet.tos = options.tos.unwrap_or(0);
    let socket = Socket { uid: options.uid.unwrap_or(0), gid: options.gid.unwrap_or(0) };
    let port_assumed = protocol.has_ports() && sport.is_none();
    Ok(Probe { packet, mac: options.mac, socket, port_assumed })
}

struct Words<'t> {
    text: &'t str,
    words: Vec<Word<'t>>,
    at: usize,
}

impl<'t> Words<'t> {
    fn peek(&self) -> Option<Word<'t>> {
        self.words.get(self.at).copied()
    }

    fn next(&mut self, what: &str) -> Result<Word<'t>, PacketError> {
        let word = self.peek().ok_or_else(|| {
            let end = self.text.len();
            let message = format!("the packet ends where {what} is expected");
            PacketError { start: end, end, message, help: GRAMMAR.to_owned() }
        })?;
        self.at += 1;
        Ok(word)
    }
}

/// Splits at blanks; an arrow may stand without any, and so may a bracket behind an address.
fn words(text: &str) -> Vec<Word<'_>> {
    let mut words = Vec::new();
    let mut start = None;
    for (at, c) in text.char_indices().chain([(text.len(), ' ')]) {
        let arrow = c == '>' && !text[..at].ends_with('-');
        let bracket = matches!(c, '[' | '(');
        if (c.is_whitespace() || arrow || bracket)
            && let Some(start) = start.take()
        {
            words.push(Word { text: &text[start..at], start });
        }
        if arrow {
            words.push(Word { text: &text[at..=at], start: at });
        } else if !c.is_whitespace() && start.is_none() {
            start = Some(at);
        }
    }
    words
}

fn protocol(word: Word<'_>) -> Result<Protocol, PacketError> {
    let name = word.text.to_ascii_lowercase();
    Ok(match name.as_str() {
        "tcp" => Protocol::TCP,
        "udp" => Protocol::UDP,
        "icmp" | "ping" => Protocol::ICMP,
        "icmp6" | "icmpv6" | "ipv6-icmp" => Protocol::ICMPV6,
        "sctp" => Protocol::SCTP,
        "dccp" => Protocol::DCCP,
        "udplite" => Protocol::UDPLITE,
        name => {
            let known = (0..=u8::MAX).map(Protocol).find(|p| p.name() == Some(name));
            let numbered = name.parse().ok().map(Protocol);
            known.or(numbered).ok_or_else(|| {
                word.error(
                    format!("`{}` is no protocol", word.text),
                    "tcp, udp, icmp, sctp, or the number of another",
                )
            })?
        }
    })
}

/// Reads `ADDRESS`, `ADDRESS:PORT`, `[V6]` or `[V6]:PORT`.
fn endpoint(word: Word<'_>) -> Result<(IpAddr, Option<u16>), PacketError> {
    const HELP: &str = "as in `10.244.1.5:40000`, `[fd00::5]:40000`, or without a port";
    let text = word.text;
    if let Ok(addr) = text.parse::<IpAddr>() {
        return Ok((addr, None));
    }
    let (addr, port) = if let Some(rest) = text.strip_prefix('[') {
        let close = rest.find(']').ok_or_else(|| word.error("`[` without `]`", HELP))?;
        let (addr, rest) = (word.part(1..close + 1), word.part(close + 2..text.len()));
        match rest.text.strip_prefix(':') {
            Some(_) => (addr, Some(rest.part(1..rest.text.len()))),
            None if rest.text.is_empty() => (addr, None),
            None => return Err(rest.error(format!("`{}` behind an address", rest.text), HELP)),
        }
    } else {
        match text.rfind(':') {
            Some(colon) => (word.part(0..colon), Some(word.part(colon + 1..text.len()))),
            None => (word, None),
        }
    };
    let address: IpAddr = addr.text.parse().map_err(|_| {
        let help = if addr.text.starts_with(|c: char| c.is_ascii_alphabetic()) {
            "names are not looked up: give the address"
        } else {
            HELP
        };
        addr.error(format!("`{}` is no address", addr.text), help)
    })?;
    if address.is_ipv6() && !text.starts_with('[') {
        return Err(word.error(
            "a port behind an IPv6 address without brackets",
            format!("write `[{}]:{}`", addr.text, port.map_or("PORT", |port| port.text)),
        ));
    }
    let port = port.map(|port| number::<u16>(port, "a port")).transpose()?;
    Ok((address, port))
}

fn with_port(addr: IpAddr) -> String {
    match addr {
        IpAddr::V4(addr) => format!("{addr}:80"),
        IpAddr::V6(addr) => format!("[{addr}]:80"),
    }
}

#[derive(Debug, Default)]
struct Options {
    flags: Option<TcpFlags>,
    kind: Option<u8>,
    code: Option<u8>,
    id: Option<u16>,
    mark: Option<u32>,
    ttl: Option<u8>,
    len: Option<u16>,
    tos: Option<u8>,
    mac: Option<[u8; 6]>,
    uid: Option<u32>,
    gid: Option<u32>,
}

const OPTIONS: &str = "options are `mark`, `ttl`, `len`, `tos`, `dscp`, `mac`, `uid`, `gid`; for \
                       icmp also `type`, `code`, `id`";

fn options(words: &mut Words<'_>, protocol: Protocol) -> Result<Options, PacketError> {
    let mut options = Options::default();
    let mut rest: Vec<Word<'_>> = Vec::new();
    // Brackets only group, and commas only separate.
    while let Some(word) = words.peek() {
        words.at += 1;
        let inner = |c: char| matches!(c, '[' | ']' | '(' | ')' | ',');
        let mut start = 0;
        for (at, c) in word.text.char_indices().chain([(word.text.len(), ',')]) {
            if inner(c) {
                if start < at {
                    rest.push(word.part(start..at));
                }
                start = at + 1;
            }
        }
    }
    let mut rest = rest.into_iter();
    while let Some(word) = rest.next() {
        let (key, value) = match word.text.split_once('=') {
            Some((key, _)) => {
                (word.part(0..key.len()), Some(word.part(key.len() + 1..word.text.len())))
            }
            None => (word, None),
        };
        if value.is_none() && flag_word(&mut options, key, protocol)? {
            continue;
        }
        let name = key.text.to_ascii_lowercase();
        let mut value = || {
            value.or_else(|| rest.next()).ok_or_else(|| {
                key.error(format!("`{}` without a value", key.text), "as in `mark 0x4000`")
            })
        };
        match name.as_str() {
            "mark" => options.mark = Some(number(value()?, "a mark")?),
            "ttl" | "hl" | "hoplimit" => options.ttl = Some(number(value()?, "a TTL")?),
            "len" | "length" => options.len = Some(number(value()?, "a length")?),
            "tos" => options.tos = Some(number(value()?, "a TOS byte")?),
            "dscp" => {
                let value = value()?;
                let dscp: u8 = number(value, "a DSCP")?;
                if dscp > 63 {
                    return Err(value.error(format!("{dscp} is no DSCP"), "0 to 63"));
                }
                options.tos = Some(dscp << 2);
            }
            "mac" => options.mac = Some(mac(value()?)?),
            "uid" => options.uid = Some(number(value()?, "a user id")?),
            "gid" => options.gid = Some(number(value()?, "a group id")?),
            "type" | "code" | "id" if !protocol.is_icmp() => {
                return Err(key.error(
                    format!("{protocol} has no `{name}`"),
                    "`type`, `code` and `id` belong to icmp",
                ));
            }
            "type" => options.kind = Some(icmp_type(value()?, protocol)?),
            "code" => options.code = Some(number(value()?, "a code")?),
            "id" => options.id = Some(number(value()?, "an echo id")?),
            _ => {
                let known = [
                    "mark", "ttl", "len", "tos", "dscp", "mac", "uid", "gid", "type", "code", "id",
                ];
                let near = known.iter().find(|known| strsim::damerau_levenshtein(known, &name) < 2);
                let help = near.map_or_else(|| OPTIONS.to_owned(), |near| format!("`{near}`?"));
                return Err(key.error(format!("`{}` is no flag and no option", key.text), help));
            }
        }
    }
    Ok(options)
}

/// Takes a word that stands alone: a TCP flag, or the kind of a ping.
fn flag_word(
    options: &mut Options,
    word: Word<'_>,
    protocol: Protocol,
) -> Result<bool, PacketError> {
    let name = word.text.to_ascii_lowercase();
    if protocol.is_icmp() {
        let v6 = protocol == Protocol::ICMPV6;
        options.kind = match name.as_str() {
            "echo" | "ping" | "echo-request" => Some(if v6 { 128 } else { 8 }),
            "echo-reply" | "pong" => Some(if v6 { 129 } else { 0 }),
            _ => return Ok(false),
        };
        return Ok(true);
    }
    let Some(flags) = tcp_flags(&name) else {
        return Ok(false);
    };
    if protocol != Protocol::TCP {
        return Err(word.error(format!("{protocol} has no flags"), "flags belong to tcp"));
    }
    options.flags = Some(options.flags.unwrap_or(TcpFlags::NONE) | flags);
    Ok(true)
}

/// Reads flags by name, joined or not, or by letter as tcpdump prints them.
fn tcp_flags(text: &str) -> Option<TcpFlags> {
    let named = |name: &str| match name {
        "syn" => Some(TcpFlags::SYN),
        "ack" => Some(TcpFlags::ACK),
        "fin" => Some(TcpFlags::FIN),
        "rst" => Some(TcpFlags::RST),
        "psh" => Some(TcpFlags::PSH),
        "urg" => Some(TcpFlags::URG),
        "synack" => Some(TcpFlags::SYN_ACK),
        "none" => Some(TcpFlags::NONE),
        _ => None,
    };
    let joined = text.split(['+', '|', '-', '/']).map(named);
    if let Some(flags) = joined.collect::<Option<Vec<_>>>() {
        return Some(flags.into_iter().fold(TcpFlags::NONE, |all, flag| all | flag));
    }
    let letter = |c: char| match c {
        's' => Some(TcpFlags::SYN),
        '.' => Some(TcpFlags::ACK),
        'f' => Some(TcpFlags::FIN),
        'r' => Some(TcpFlags::RST),
        'p' => Some(TcpFlags::PSH),
        'u' => Some(TcpFlags::URG),
        _ => None,
    };
    let letters = text.chars().map(letter).collect::<Option<Vec<_>>>()?;
    (!letters.is_empty() && letters.len() <= 6)
        .then(|| letters.into_iter().fold(TcpFlags::NONE, |all, flag| all | flag))
}

fn icmp_type(word: Word<'_>, protocol: Protocol) -> Result<u8, PacketError> {
    let v6 = protocol == Protocol::ICMPV6;
    let kind = match word.text.to_ascii_lowercase().as_str() {
        "echo-request" => return Ok(if v6 { 128 } else { 8 }),
        "echo-reply" => return Ok(if v6 { 129 } else { 0 }),
        _ => number::<u8>(word, "an ICMP type")?,
    };
    let error = if v6 { kind < 128 } else { matches!(kind, 3 | 4 | 5 | 11 | 12) };
    if error {
        return Err(word.error(
            format!("type {kind} is an error about another packet"),
            "explain the packet that it is about: its answer is part of the outcome",
        ));
    }
    Ok(kind)
}

/// Reads a number, decimal or with `0x`.
fn number<N: TryFrom<u32>>(word: Word<'_>, what: &str) -> Result<N, PacketError> {
    let text = word.text;
    let value = match text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        Some(hex) => u32::from_str_radix(hex, 16).ok(),
        None => text.parse().ok().filter(|_| text.starts_with(|c: char| c.is_ascii_digit())),
    };
    value.and_then(|value| N::try_from(value).ok()).ok_or_else(|| {
        let message = if text.is_empty() {
            format!("{what} is missing")
        } else {
            format!("`{text}` is not {what}")
        };
        let bits = 8 * size_of::<N>();
        let max = u32::MAX >> (32 - bits.min(32));
        word.error(message, format!("a number from 0 to {max}"))
    })
}

fn mac(word: Word<'_>) -> Result<[u8; 6], PacketError> {
    let parts: Vec<Option<u8>> = word
        .text
        .split([':', '-'])
        .map(|part| u8::from_str_radix(part, 16).ok().filter(|_| part.len() <= 2))
        .collect();
    let bytes: Option<Vec<u8>> = parts.into_iter().collect();
    bytes.and_then(|bytes| <[u8; 6]>::try_from(bytes).ok()).ok_or_else(|| {
        word.error(format!("`{}` is no MAC address", word.text), "as in `02:00:5e:10:00:01`")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tuple(text: &str) -> String {
        format!(
            "{:?}",
            parse(text).unwrap_or_else(|error| panic!("{text}: {error:?}")).packet.tuple
        )
    }

    fn flags(text: &str) -> String {
        let probe = parse(text).unwrap_or_else(|error| panic!("{text}: {error:?}"));
        format!("{:?}", probe.packet.tcp_flags().expect("TCP"))
    }

    #[test]
    fn packets() {
        let table = [
            ("tcp 10.0.0.1:1 > 10.0.0.2:2", "tcp 10.0.0.1:1 > 10.0.0.2:2"),
            ("TCP 10.0.0.1>10.0.0.2:2", "tcp 10.0.0.1:40000 > 10.0.0.2:2"),
            ("udp 10.0.0.1:5 -> 10.0.0.2:53", "udp 10.0.0.1:5 > 10.0.0.2:53"),
            ("tcp [fd00::1]:7 > [fd00::2]:80", "tcp [fd00::1]:7 > [fd00::2]:80"),
            ("tcp fd00::1 > [fd00::2]:80", "tcp [fd00::1]:40000 > [fd00::2]:80"),
            ("icmp 10.0.0.1 > 10.0.0.2", "icmp 10.0.0.1 > 10.0.0.2 type 8/0 id 1"),
            (
                "icmp 10.0.0.1 > 10.0.0.2 [type 0 code 0 id 7]",
                "icmp 10.0.0.1 > 10.0.0.2 type 0/0 id 7",
            ),
            ("icmp fd00::1 > fd00::2 echo", "ipv6-icmp fd00::1 > fd00::2 type 128/0 id 1"),
            ("tcp 10.0.0.1:1>10.0.0.2:2[syn]", "tcp 10.0.0.1:1 > 10.0.0.2:2"),
            ("tcp [fd00::1]:7>[fd00::2]:80[syn]", "tcp [fd00::1]:7 > [fd00::2]:80"),
            ("icmp 10.0.0.1 > 10.0.0.2(type 0)", "icmp 10.0.0.1 > 10.0.0.2 type 0/0 id 1"),
            ("47 10.0.0.1 > 10.0.0.2", "gre 10.0.0.1:0 > 10.0.0.2:0"),
        ];
        for (text, expected) in table {
            assert_eq!(tuple(text), expected, "{text}");
        }
    }

    #[test]
    fn flags_in_many_forms() {
        for (form, expected) in [
            ("", "SYN"),
            ("syn", "SYN"),
            ("[syn]", "SYN"),
            ("[ syn ]", "SYN"),
            ("[syn,ack]", "SYN+ACK"),
            ("SYN ACK", "SYN+ACK"),
            ("syn+ack", "SYN+ACK"),
            ("[S.]", "SYN+ACK"),
            ("[.]", "ACK"),
            ("[fin, ack]", "FIN+ACK"),
            ("none", "NONE"),
            ("[ack] mark 0x4000", "ACK"),
        ] {
            assert_eq!(flags(&format!("tcp 10.0.0.1:1 > 10.0.0.2:2 {form}")), expected, "{form}");
        }
    }

    #[test]
    fn options_set_fields() {
        let probe = parse(
            "tcp 10.0.0.1:1 > 10.0.0.2:2 [syn] mark 0x4000 ttl=1 len 1500 dscp 46 \
             mac 02:00:5e:10:00:01 uid 1000",
        )
        .unwrap();
        let Packet { mark, ttl, len, tos, .. } = probe.packet;
        assert_eq!((mark, ttl, len, tos), (0x4000, 1, 1500, 46 << 2));
        assert_eq!(probe.mac, Some([2, 0, 0x5e, 0x10, 0, 1]));
        assert_eq!(probe.socket.uid, 1000);
    }

    #[test]
    fn errors_point_to_the_wrong_part() {
        let table = [
            ("", "", "the packet ends where a protocol is expected"),
            ("tpc 10.0.0.1:1 > 10.0.0.2:2", "tpc", "`tpc` is no protocol"),
            ("tcp 10.0.0.1:1 10.0.0.2:2", "10.0.0.2:2", "`10.0.0.2:2` where `>` is expected"),
            ("tcp 10.0.0.1:1 > 10.0.0.2:70000", "70000", "`70000` is not a port"),
            ("tcp 10.0.0.1:1 > 10.0.0.2", "10.0.0.2", "tcp needs a destination port"),
            ("tcp 10.0.0.1:1 > web:80", "web", "`web` is no address"),
            (
                "tcp 10.0.0.1:1 > [fd00::2]:80",
                "[fd00::2]:80",
                "fd00::2 is not of the family of 10.0.0.1",
            ),
            ("icmp 10.0.0.1:1 > 10.0.0.2", "10.0.0.1:1", "icmp has no ports"),
            ("udp 10.0.0.1:1 > 10.0.0.2:2 [syn]", "syn", "udp has no flags"),
            ("tcp 10.0.0.1:1 > 10.0.0.2:2 marc 1", "marc", "`marc` is no flag and no option"),
            ("tcp 10.0.0.1:1 > 10.0.0.2:2 mark", "mark", "`mark` without a value"),
            ("tcp 10.0.0.1:1 > 10.0.0.2:2 ttl 256", "256", "`256` is not a TTL"),
            ("icmp 10.0.0.1 > 10.0.0.2 type 3", "3", "type 3 is an error about another packet"),
            (
                "tcp fd00::1:x > [fd00::2]:80",
                "fd00::1:x",
                "a port behind an IPv6 address without brackets",
            ),
            ("tcp [fd00::1 > [fd00::2]:80", "[fd00::1", "`[` without `]`"),
        ];
        for (text, part, message) in table {
            let error = parse(text).expect_err(text);
            assert_eq!((&text[error.start..error.end], error.message.as_str()), (part, message));
        }
    }

    #[test]
    fn no_text_panics() {
        for text in
            ["[", "]", "tcp [] > []", "tcp [:1 > ]:2", "tcp é > ü", "tcp 1.1.1.1 > 1.1.1.1:1 é=ü"]
        {
            let _ = parse(text);
        }
    }
}
