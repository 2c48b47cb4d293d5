//! Elements of sets.

use std::fmt;
use std::sync::Arc;

use crate::device::DeviceName;
use crate::prefix::Prefix;
use crate::set::text::icmp_name;
use crate::tuple::Protocol;

/// An element of a set.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Element {
    /// What it is made of, one for each dimension of the set's type.
    pub parts: Vec<Part>,
    /// `nomatch`: an exception.
    pub nomatch: bool,
    /// How many seconds it stays; 0 is for ever, `None` what the set says.
    pub timeout: Option<u32>,
    /// Options that change nothing here, as printed: `comment "…"`, `packets N bytes N`, …
    pub other: Option<Arc<str>>,
}

/// A part of an element.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Part {
    /// An address or a network.
    Net(Prefix),
    /// A port of a protocol, or of any in a bitmap.
    Port(Option<Protocol>, u16),
    /// A network device.
    Device {
        /// Its name.
        name: DeviceName,
        /// It is the port of a bridge.
        physdev: bool,
        /// The name is only its beginning.
        wildcard: bool,
    },
    /// A hardware address.
    Mac([u8; 6]),
    /// A mark.
    Mark(u32),
    /// Another set.
    Set(Arc<str>),
}

/// A text is no element of a set.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ElementError {
    /// A part is not what the type wants.
    #[error("{text:?} is no {wanted}")]
    Part {
        /// The part.
        text: String,
        /// What would be accepted.
        wanted: &'static str,
    },
    /// There are too few or too many parts.
    #[error("{found} parts, where the set's type {kind} has {wanted}")]
    Parts {
        /// How many there are.
        found: usize,
        /// How many there should be.
        wanted: usize,
        /// The set's type.
        kind: &'static str,
    },
    /// A range has too many elements.
    #[error("a range of more than {0} elements")]
    TooMany(u64),
    /// An option is not known.
    #[error("unknown option {0:?}")]
    Option(String),
}

impl Element {
    /// Returns an element that stays as long as the set says.
    pub fn new(parts: Vec<Part>) -> Element {
        Element { parts, nomatch: false, timeout: None, other: None }
    }
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Part::Net(prefix) => match prefix.as_host() {
                Some(address) => write!(f, "{address}"),
                None => write!(f, "{prefix}"),
            },
            Part::Port(None, port) => write!(f, "{port}"),
            Part::Port(Some(protocol), port) if protocol.is_icmp() => {
                let name = if *protocol == Protocol::ICMP { "icmp" } else { "icmpv6" };
                let (kind, code) = ((port >> 8) as u8, *port as u8);
                match icmp_name(*protocol, kind, code) {
                    Some(text) => write!(f, "{name}:{text}"),
                    None => write!(f, "{name}:{kind}/{code}"),
                }
            }
            Part::Port(Some(protocol), port) => write!(f, "{protocol}:{port}"),
            Part::Device { name, physdev, .. } => {
                write!(f, "{}{}", if *physdev { "physdev:" } else { "" }, name.as_str())
            }
            Part::Mac(mac) => {
                for (i, byte) in mac.iter().enumerate() {
                    write!(f, "{}{byte:02X}", if i > 0 { ":" } else { "" })?;
                }
                Ok(())
            }
            Part::Mark(mark) => write!(f, "0x{mark:08x}"),
            Part::Set(name) => f.write_str(name),
        }
    }
}

/// Prints the element as `ipset save` does, without its timeout.
impl fmt::Display for Element {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, part) in self.parts.iter().enumerate() {
            write!(f, "{}{part}", if i > 0 { "," } else { "" })?;
        }
        Ok(())
    }
}
