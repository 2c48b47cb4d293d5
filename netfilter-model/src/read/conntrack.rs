//! What `conntrack -L`, `conntrack -L -o extended` and `/proc/net/nf_conntrack` print.

use std::net::IpAddr;
use std::time::Duration;

use super::{Line, Read, Remark, lines, pasted_command};
use crate::conntrack::{Listing, TcpState};
use crate::tuple::{Protocol, Tuple};

#[cfg(test)]
mod tests;

/// How long an entry lives whose seconds are not listed: it is handled by the network card.
const OFFLOADED: Duration = Duration::from_secs(432_000);

/// Reads the connections that a node lists.
///
/// Lines that list none are remarked on, and prompts, headings and the count at the end passed
/// over; counters, labels and the like are not kept.
pub fn conntrack_entries(text: &str) -> Read<Vec<Listing>> {
    let mut value = Vec::new();
    let mut remarks = Vec::new();
    for line in lines(text) {
        let trimmed = line.text.trim();
        if trimmed.is_empty() || trimmed.starts_with('#') || pasted_command(trimmed).is_some() {
            continue;
        }
        if let Some(shown) = entries_shown(trimmed) {
            if shown != value.len() as u64 {
                let problem = format!("{shown} entries were listed, {} are read", value.len());
                remarks.push(line.remark(problem).help("the text may have been cut"));
            }
            continue;
        }
        match entry(line) {
            Ok((listing, remark)) => {
                value.push(listing);
                remarks.extend(remark);
            }
            Err(problem) => remarks.push(line.remark(problem)),
        }
    }
    Read { value, remarks }
}

/// Returns the count of the line with which `conntrack` ends.
fn entries_shown(line: &str) -> Option<u64> {
    let rest = line.strip_prefix("conntrack v")?;
    let count = rest.split_once("): ")?.1.strip_suffix(" flow entries have been shown.")?;
    count.parse().ok()
}

/// A tuple as far as it was read.
#[derive(Clone, Copy, Default)]
struct Parts {
    src: Option<IpAddr>,
    dst: Option<IpAddr>,
    /// Ports, keys, or the ICMP id with type and code.
    sport: u16,
    dport: u16,
    kind: u8,
    code: u8,
}

impl Parts {
    fn tuple(&self, protocol: Protocol) -> Result<Tuple, String> {
        let (Some(src), Some(dst)) = (self.src, self.dst) else {
            return Err("not a connection: addresses are missing".to_owned());
        };
        let (src_part, dst_part) = if protocol.is_icmp() {
            (self.sport, u16::from(self.kind) << 8 | u16::from(self.code))
        } else if protocol.has_ports() || protocol == Protocol::GRE {
            (self.sport, self.dport)
        } else {
            (0, 0)
        };
        let tuple = Tuple::try_new(protocol, src, src_part, dst, dst_part);
        tuple.ok_or_else(|| format!("{src} and {dst} are of different families"))
    }
}

/// Returns the connection of a line, with a remark if something in it is unknown.
fn entry(line: Line<'_>) -> Result<(Listing, Option<Remark>), String> {
    let mut words = line.text.split_whitespace().peekable();
    if words.next_if(|word| matches!(*word, "ipv4" | "ipv6")).is_some() {
        words.next();
    }
    let name = words.next().ok_or("not a connection")?;
    let number = words.next().and_then(|word| word.parse().ok());
    let protocol = Protocol(number.ok_or("not a connection: no protocol number")?);
    if !name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-') {
        return Err("not a connection".to_owned());
    }
    let left = words.next_if(|word| word.bytes().all(|byte| byte.is_ascii_digit()));
    let seconds = left.map(|word| word.parse::<u32>().map_err(|_| format!("{word} seconds")));
    let seconds = seconds.transpose()?.map(|seconds| Duration::from_secs(seconds.into()));
    let is_state =
        |word: &&str| word.bytes().all(|byte| matches!(byte, b'A'..=b'Z' | b'0'..=b'9' | b'_'));
    let state = words.next_if(is_state);
    let mut unknown = None;
    let tcp_state = match (protocol, state) {
        (Protocol::TCP, Some(state)) => {
            let named = TcpState::NAMES.iter().find(|(_, name)| *name == state);
            Some(match named {
                Some((state, _)) => *state,
                // Kernel: nf_conntrack_tcp.h, once the name of SYN_SENT2
                None if state == "LISTEN" => TcpState::SynSent2,
                None => return Err(format!("no TCP state {state}")),
            })
        }
        (Protocol::TCP, None) => Some(TcpState::Established),
        _ => None,
    };
    let mut parts = [Parts::default(); 2];
    let mut at = 0;
    let mut listing = Listing {
        original: Tuple::v4(protocol, [0; 4].into(), 0, [0; 4].into(), 0),
        reply: Tuple::v4(protocol, [0; 4].into(), 0, [0; 4].into(), 0),
        zones: [0; 2],
        left: seconds.unwrap_or(OFFLOADED),
        tcp_state,
        seen_reply: true,
        assured: false,
        mark: 0,
    };
    // Behind the reply tuple, `id=` numbers the entry.
    let mut tuples_done = false;
    for word in words {
        let Some((key, value)) = word.split_once('=') else {
            match word {
                "[UNREPLIED]" => listing.seen_reply = false,
                "[ASSURED]" => listing.assured = true,
                "[OFFLOAD]" | "[HW_OFFLOAD]" => listing.assured = true,
                word => unknown = unknown.or(Some(word)),
            }
            continue;
        };
        let wrong = || format!("{value} is no value of {key}");
        if key == "src" {
            if parts[at].src.is_some() {
                if at == 1 {
                    return Err("more than two tuples".to_owned());
                }
                at = 1;
            }
            parts[at].src = Some(value.parse().map_err(|_| wrong())?);
            continue;
        }
        let tuple = &mut parts[at];
        match key {
            "dst" => tuple.dst = Some(value.parse().map_err(|_| wrong())?),
            "sport" => tuple.sport = value.parse().map_err(|_| wrong())?,
            "dport" => tuple.dport = value.parse().map_err(|_| wrong())?,
            "srckey" => tuple.sport = hexadecimal(value).ok_or_else(wrong)?,
            "dstkey" => tuple.dport = hexadecimal(value).ok_or_else(wrong)?,
            "type" => tuple.kind = value.parse().map_err(|_| wrong())?,
            "code" => tuple.code = value.parse().map_err(|_| wrong())?,
            "id" if !tuples_done && protocol.is_icmp() => {
                tuple.sport = value.parse().map_err(|_| wrong())?;
            }
            "mark" => {
                tuples_done = true;
                listing.mark = value.parse().map_err(|_| wrong())?;
            }
            "zone" => listing.zones = [value.parse().map_err(|_| wrong())?; 2],
            "zone-orig" => listing.zones[0] = value.parse().map_err(|_| wrong())?,
            "zone-reply" => listing.zones[1] = value.parse().map_err(|_| wrong())?,
            "use" => tuples_done = true,
            "id" | "packets" | "bytes" | "secctx" | "secmark" | "helper" | "delta-time"
            | "start" | "stop" | "labels" | "timeout" | "class" => {}
            _ => unknown = unknown.or(Some(word)),
        }
    }
    listing.original = parts[0].tuple(protocol)?;
    listing.reply = parts[1].tuple(protocol)?;
    if !listing.original.same_family(&listing.reply) {
        return Err("its tuples are of different families".to_owned());
    }
    let remark = unknown.map(|word| line.remark(format!("{word} is not known and not kept")));
    Ok((listing, remark))
}

fn hexadecimal(text: &str) -> Option<u16> {
    u16::from_str_radix(text.strip_prefix("0x").unwrap_or(text), 16).ok()
}
