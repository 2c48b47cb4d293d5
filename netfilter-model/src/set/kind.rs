//! What sets there are.

use std::fmt;

/// The type of a set: how its elements are kept, and what they are made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SetKind {
    /// `bitmap:ip`.
    BitmapIp,
    /// `bitmap:port`.
    BitmapPort,
    /// `hash:ip`.
    HashIp,
    /// `hash:ip,mac`.
    HashIpMac,
    /// `hash:ip,mark`.
    HashIpMark,
    /// `hash:ip,port`.
    HashIpPort,
    /// `hash:ip,port,ip`.
    HashIpPortIp,
    /// `hash:ip,port,net`.
    HashIpPortNet,
    /// `hash:mac`.
    HashMac,
    /// `hash:net`.
    HashNet,
    /// `hash:net,iface`.
    HashNetIface,
    /// `hash:net,net`.
    HashNetNet,
    /// `hash:net,port`.
    HashNetPort,
    /// `hash:net,port,net`.
    HashNetPortNet,
    /// `list:set`.
    ListSet,
}

/// A part of an element.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dimension {
    /// An address.
    Ip,
    /// A network.
    Net,
    /// A protocol and port; in a `bitmap:port` only the port.
    Port,
    /// A network device.
    Iface,
    /// A hardware address.
    Mac,
    /// A mark.
    Mark,
    /// Another set.
    Set,
}

impl SetKind {
    /// All types.
    pub const ALL: [SetKind; 15] = [
        SetKind::BitmapIp,
        SetKind::BitmapPort,
        SetKind::HashIp,
        SetKind::HashIpMac,
        SetKind::HashIpMark,
        SetKind::HashIpPort,
        SetKind::HashIpPortIp,
        SetKind::HashIpPortNet,
        SetKind::HashMac,
        SetKind::HashNet,
        SetKind::HashNetIface,
        SetKind::HashNetNet,
        SetKind::HashNetPort,
        SetKind::HashNetPortNet,
        SetKind::ListSet,
    ];

    /// Returns the name that ipset prints.
    pub const fn name(self) -> &'static str {
        match self {
            SetKind::BitmapIp => "bitmap:ip",
            SetKind::BitmapPort => "bitmap:port",
            SetKind::HashIp => "hash:ip",
            SetKind::HashIpMac => "hash:ip,mac",
            SetKind::HashIpMark => "hash:ip,mark",
            SetKind::HashIpPort => "hash:ip,port",
            SetKind::HashIpPortIp => "hash:ip,port,ip",
            SetKind::HashIpPortNet => "hash:ip,port,net",
            SetKind::HashMac => "hash:mac",
            SetKind::HashNet => "hash:net",
            SetKind::HashNetIface => "hash:net,iface",
            SetKind::HashNetNet => "hash:net,net",
            SetKind::HashNetPort => "hash:net,port",
            SetKind::HashNetPortNet => "hash:net,port,net",
            SetKind::ListSet => "list:set",
        }
    }

    /// Returns the type with a name, which may be one of ipset's older ones.
    pub fn parse(name: &str) -> Option<SetKind> {
        let name = match name {
            "ipmap" => "bitmap:ip",
            "portmap" => "bitmap:port",
            "iphash" => "hash:ip",
            "nethash" => "hash:net",
            "ipporthash" => "hash:ip,port",
            "ipportiphash" => "hash:ip,port,ip",
            "ipportnethash" => "hash:ip,port,net",
            "setlist" => "list:set",
            name => name,
        };
        SetKind::ALL.into_iter().find(|kind| kind.name() == name)
    }

    /// Returns what elements are made of.
    pub const fn dimensions(self) -> &'static [Dimension] {
        use Dimension::{Iface, Ip, Mac, Mark, Net, Port, Set};
        match self {
            SetKind::BitmapIp | SetKind::HashIp => &[Ip],
            SetKind::BitmapPort => &[Port],
            SetKind::HashIpMac => &[Ip, Mac],
            SetKind::HashIpMark => &[Ip, Mark],
            SetKind::HashIpPort => &[Ip, Port],
            SetKind::HashIpPortIp => &[Ip, Port, Ip],
            SetKind::HashIpPortNet => &[Ip, Port, Net],
            SetKind::HashMac => &[Mac],
            SetKind::HashNet => &[Net],
            SetKind::HashNetIface => &[Net, Iface],
            SetKind::HashNetNet => &[Net, Net],
            SetKind::HashNetPort => &[Net, Port],
            SetKind::HashNetPortNet => &[Net, Port, Net],
            SetKind::ListSet => &[Set],
        }
    }

    /// Returns whether elements hold addresses, of one family per set.
    pub fn has_addresses(self) -> bool {
        self.dimensions().iter().any(|part| matches!(part, Dimension::Ip | Dimension::Net))
    }

    /// Returns whether elements hold networks, and so may be exceptions (`nomatch`).
    pub fn has_networks(self) -> bool {
        self.dimensions().contains(&Dimension::Net)
    }

    /// Returns whether the set has a fixed range instead of a number of elements.
    pub const fn is_bitmap(self) -> bool {
        matches!(self, SetKind::BitmapIp | SetKind::BitmapPort)
    }
}

impl fmt::Display for SetKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
