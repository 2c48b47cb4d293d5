//! Which entries `conntrack -L` lists and `conntrack -D` deletes.

use std::net::IpAddr;

use super::entry::{Entry, Status};
use super::listing::protocol_name;
use super::tcp::TcpState;
use crate::prefix::Prefix;
use crate::tuple::{Protocol, Tuple};

/// What is asked of one tuple of an entry.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TupleFilter {
    /// Its source address.
    pub src: Option<Prefix>,
    /// Its destination address.
    pub dst: Option<Prefix>,
    /// Its source port.
    pub sport: Option<u16>,
    /// Its destination port.
    pub dport: Option<u16>,
}

/// What is asked of the entries to be listed or deleted; nothing by default.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    /// `-p`.
    pub protocol: Option<Protocol>,
    /// `-f`: whether IPv6.
    pub ipv6: Option<bool>,
    /// `-s`, `-d`, `--sport`, `--dport`.
    pub original: TupleFilter,
    /// `-r`, `-q`, `--reply-port-src`, `--reply-port-dst`.
    pub reply: TupleFilter,
    /// `-m`: value and mask.
    pub mark: Option<(u32, u32)>,
    /// `-w`.
    pub zone: Option<u16>,
    /// `--state`.
    pub state: Option<TcpState>,
    /// `-n`: the source is rewritten, to this if given.
    pub src_nat: Option<Option<Prefix>>,
    /// `-g`: the destination is rewritten, to this if given.
    pub dst_nat: Option<Option<Prefix>>,
    /// `-u`: facts that must hold.
    pub status: Status,
    /// `-u UNSET`: no answer was seen.
    pub unreplied: bool,
}

/// Options of `conntrack` that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FilterError {
    /// There is no such option.
    #[error("no filter {0}")]
    Option(String),
    /// An option has no value.
    #[error("{0} needs a value")]
    Missing(String),
    /// An option's value makes no sense.
    #[error("{value} is no value of {option}")]
    Value {
        /// The option.
        option: String,
        /// The value.
        value: String,
    },
}

impl TupleFilter {
    fn matches(&self, tuple: &Tuple) -> bool {
        let lies = |net: &Option<Prefix>, address| net.as_ref().is_none_or(|n| n.contains(address));
        let is = |wanted: Option<u16>, part| wanted.is_none_or(|wanted| wanted == part);
        lies(&self.src, tuple.src())
            && lies(&self.dst, tuple.dst())
            && is(self.sport, tuple.src_part)
            && is(self.dport, tuple.dst_part)
    }
}

impl Filter {
    /// Returns whether the filter holds for an entry.
    pub fn matches(&self, entry: &Entry) -> bool {
        let rewritten = |wanted: &Option<Option<Prefix>>, status, to| match wanted {
            None => true,
            Some(None) => entry.status.contains(status),
            Some(Some(net)) => entry.status.contains(status) && net.contains(to),
        };
        let zoned = |zone| entry.zones[0] == zone || entry.zones[1] == zone;
        self.protocol.is_none_or(|protocol| entry.original.protocol == protocol)
            && self.ipv6.is_none_or(|ipv6| entry.original.src().is_ipv6() == ipv6)
            && self.original.matches(&entry.original)
            && self.reply.matches(&entry.reply)
            && self.mark.is_none_or(|(value, mask)| entry.mark & mask == value)
            && self.zone.is_none_or(zoned)
            && self.state.is_none_or(|state| entry.tcp_state() == Some(state))
            && rewritten(&self.src_nat, Status::SRC_NAT, entry.reply.dst())
            && rewritten(&self.dst_nat, Status::DST_NAT, entry.reply.src())
            && entry.status.contains(self.status)
            && !(self.unreplied && entry.status.contains(Status::SEEN_REPLY))
    }

    /// Reads the options of `conntrack -L` and `-D`.
    ///
    /// # Errors
    ///
    /// If an option is unknown, lacks its value, or has one that makes no sense.
    pub fn parse<'a>(options: impl IntoIterator<Item = &'a str>) -> Result<Filter, FilterError> {
        let mut filter = Filter::default();
        let mut options = options.into_iter().peekable();
        while let Some(option) = options.next() {
            let (option, inline) = match option.split_once('=') {
                Some((option, value)) if option.starts_with("--") => (option, Some(value)),
                _ => (option, None),
            };
            if matches!(option, "-n" | "--src-nat" | "-g" | "--dst-nat" | "-j" | "--any-nat") {
                let next = options.next_if(|next| inline.is_none() && !next.starts_with('-'));
                let net = inline.or(next).map(|value| prefix(option, value)).transpose()?;
                match option {
                    "-n" | "--src-nat" => filter.src_nat = Some(net),
                    "-g" | "--dst-nat" => filter.dst_nat = Some(net),
                    _ => return Err(FilterError::Option(option.to_owned())),
                }
                continue;
            }
            if matches!(option, "-L" | "-D" | "--dump" | "--delete") {
                continue;
            }
            let missing = || FilterError::Missing(option.to_owned());
            let value = inline.or_else(|| options.next()).ok_or_else(missing)?;
            filter.set(option, value)?;
        }
        Ok(filter)
    }

    fn set(&mut self, option: &str, value: &str) -> Result<(), FilterError> {
        let wrong = || FilterError::Value { option: option.to_owned(), value: value.to_owned() };
        match option {
            "-p" | "--proto" => self.protocol = Some(protocol(value).ok_or_else(wrong)?),
            "-f" | "--family" => {
                self.ipv6 = match value {
                    "ipv4" => Some(false),
                    "ipv6" => Some(true),
                    _ => return Err(wrong()),
                }
            }
            "-s" | "--src" | "--orig-src" => self.original.src = Some(prefix(option, value)?),
            "-d" | "--dst" | "--orig-dst" => self.original.dst = Some(prefix(option, value)?),
            "-r" | "--reply-src" => self.reply.src = Some(prefix(option, value)?),
            "-q" | "--reply-dst" => self.reply.dst = Some(prefix(option, value)?),
            "--sport" | "--orig-port-src" => {
                self.original.sport = Some(value.parse().map_err(|_| wrong())?);
            }
            "--dport" | "--orig-port-dst" => {
                self.original.dport = Some(value.parse().map_err(|_| wrong())?);
            }
            "--reply-port-src" => self.reply.sport = Some(value.parse().map_err(|_| wrong())?),
            "--reply-port-dst" => self.reply.dport = Some(value.parse().map_err(|_| wrong())?),
            "-m" | "--mark" => {
                let (mark, mask) = value.split_once('/').unwrap_or((value, "0xffffffff"));
                let both = number(mark).zip(number(mask));
                self.mark = Some(both.ok_or_else(wrong)?);
            }
            "-w" | "--zone" => self.zone = Some(value.parse().map_err(|_| wrong())?),
            "--state" => {
                let named = TcpState::NAMES.iter().find(|(_, name)| *name == value);
                self.state = Some(named.ok_or_else(wrong)?.0);
            }
            "-u" | "--status" => {
                for name in value.split(',') {
                    match name {
                        "ASSURED" => self.status.insert(Status::ASSURED),
                        "SEEN_REPLY" => self.status.insert(Status::SEEN_REPLY),
                        "UNSET" => self.unreplied = true,
                        _ => return Err(wrong()),
                    }
                }
            }
            // How it is printed is not for the filter.
            "-o" | "--output" => {}
            _ => return Err(FilterError::Option(option.to_owned())),
        }
        Ok(())
    }
}

fn number(text: &str) -> Option<u32> {
    match text.strip_prefix("0x") {
        Some(digits) => u32::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}

/// Returns the protocol of a name that `conntrack` knows, or of a number.
pub(crate) fn protocol(text: &str) -> Option<Protocol> {
    let named = (0..=u8::MAX).map(Protocol).find(|protocol| {
        let name = protocol_name(*protocol);
        name != "unknown" && name.eq_ignore_ascii_case(text)
    });
    named.or_else(|| text.parse().ok().map(Protocol))
}

fn prefix(option: &str, text: &str) -> Result<Prefix, FilterError> {
    let wrong = || FilterError::Value { option: option.to_owned(), value: text.to_owned() };
    let (address, len) = match text.split_once('/') {
        Some((address, len)) => (address, Some(len)),
        None => (text, None),
    };
    let address: IpAddr = address.parse().map_err(|_| wrong())?;
    let Some(len) = len else {
        return Ok(Prefix::host(address));
    };
    let len: u8 = len.parse().map_err(|_| wrong())?;
    if len > if address.is_ipv4() { 32 } else { 128 } {
        return Err(wrong());
    }
    Ok(Prefix::new(address, len))
}
