//! IPVS: virtual services, where they send connections, and which connections there are.
//!
//! [`Ipvs`] is what is configured, as `ipvsadm` shows it. Packets meet any view of it
//! ([`Services`]), since what a node has configured changes with time; [`State`] is what IPVS
//! itself keeps between packets, and belongs to a network namespace.

mod hashing;
mod schedule;
mod state;
mod table;
mod tcp;

use std::fmt::{self, Write as _};
use std::net::IpAddr;
use std::sync::Arc;

use crate::tuple::Protocol;

pub(crate) use state::{Request, Tracking};
pub use state::{State, Sysctls};
pub use table::{Connection, Load, RealServer};
pub use tcp::{ConnState, Timeouts};

/// What is configured at the time of a packet.
///
/// The destinations of a service stand in the kernel's order: those added last come first.
pub trait Services {
    /// Returns a service.
    fn service(&self, id: &ServiceId) -> Option<&Service>;
}

impl Services for Ipvs {
    fn service(&self, id: &ServiceId) -> Option<&Service> {
        self.services.iter().find(|service| service.id == *id)
    }
}

/// The size of the kernel's connection table unless it was built otherwise.
// Kernel: CONFIG_IP_VS_TAB_BITS
const TABLE_SIZE_DEFAULT: u32 = 4096;

/// The services of a network namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ipvs {
    /// How many buckets the connection table has.
    pub table_size: u32,
    /// The services, as listed.
    pub services: Vec<Service>,
}

/// A virtual service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Service {
    /// What packets it is for.
    pub id: ServiceId,
    /// The name of its scheduler.
    pub scheduler: Arc<str>,
    /// The scheduler's flags, such as `flag-1` or `sh-port`.
    pub flags: Vec<Arc<str>>,
    /// What keeps a client at its destination.
    pub persistence: Option<Persistence>,
    /// `ops`: each UDP packet is scheduled by itself.
    pub one_packet: bool,
    /// The persistence engine.
    pub engine: Option<Arc<str>>,
    /// Where it sends connections, as listed.
    pub destinations: Vec<Destination>,
}

/// What a virtual service is known by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ServiceId {
    /// Protocol, address and port.
    Address(Protocol, IpAddr, u16),
    /// The mark of packets.
    Mark {
        /// The mark.
        mark: u32,
        /// Of IPv6 packets.
        v6: bool,
    },
}

/// How a client is kept at its destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Persistence {
    /// For so many seconds.
    pub timeout: u32,
    /// As one client counts who shares so many leading bits of the address.
    pub len: u8,
}

/// A real server of a service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Destination {
    /// Its address.
    pub address: IpAddr,
    /// Its port.
    pub port: u16,
    /// How packets get there.
    pub forward: Forward,
    /// Its weight; 0 takes no new connections.
    pub weight: u32,
    /// At so many connections it takes no more; 0 is never.
    pub upper: u32,
    /// Below so many it takes some again.
    pub lower: u32,
    /// Established TCP connections.
    pub active: u32,
    /// All others.
    pub inactive: u32,
}

/// How packets get to a destination.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Forward {
    /// Their addresses are rewritten.
    #[default]
    Masq,
    /// Only the frame's address is another.
    Route,
    /// In a tunnel.
    Tunnel,
    /// To this host.
    Local,
}

impl Forward {
    /// Returns the word in listings.
    pub const fn name(self) -> &'static str {
        match self {
            Forward::Masq => "Masq",
            Forward::Route => "Route",
            Forward::Tunnel => "Tunnel",
            Forward::Local => "Local",
        }
    }

    /// Returns the option of `ipvsadm -a`. What is local was added as a route.
    const fn option(self) -> &'static str {
        match self {
            Forward::Masq => "-m",
            Forward::Route | Forward::Local => "-g",
            Forward::Tunnel => "-i",
        }
    }
}

impl Default for Ipvs {
    fn default() -> Ipvs {
        Ipvs { table_size: TABLE_SIZE_DEFAULT, services: Vec::new() }
    }
}

impl Service {
    /// Returns a service without destinations.
    pub fn new(id: ServiceId, scheduler: impl Into<Arc<str>>) -> Service {
        Service {
            id,
            scheduler: scheduler.into(),
            flags: Vec::new(),
            persistence: None,
            one_packet: false,
            engine: None,
            destinations: Vec::new(),
        }
    }
}

impl Destination {
    /// Returns a destination of weight 1 without connections.
    pub fn new(address: IpAddr, port: u16) -> Destination {
        let (forward, weight) = (Forward::Masq, 1);
        let (upper, lower, active, inactive) = (0, 0, 0, 0);
        Destination { address, port, forward, weight, upper, lower, active, inactive }
    }
}

impl ServiceId {
    const fn is_v6(&self) -> bool {
        match self {
            ServiceId::Address(_, address, _) => address.is_ipv6(),
            ServiceId::Mark { v6, .. } => *v6,
        }
    }

    /// Returns the options by which `ipvsadm` names the service.
    fn options(&self) -> String {
        match self {
            ServiceId::Address(protocol, address, port) => {
                let option = match *protocol {
                    Protocol::UDP => "-u",
                    Protocol::SCTP => "--sctp-service",
                    _ => "-t",
                };
                format!("{option} {}", endpoint(*address, *port))
            }
            ServiceId::Mark { mark, v6 } => format!("-f {mark}{}", if *v6 { " -6" } else { "" }),
        }
    }
}

/// Prints the beginning of a service's line in listings.
impl fmt::Display for ServiceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ServiceId::Address(protocol, address, port) => {
                let name = protocol.to_string().to_ascii_uppercase();
                write!(f, "{name:<4} {}", endpoint(*address, *port))
            }
            ServiceId::Mark { mark, v6 } => {
                write!(f, "FWM  {mark}{}", if *v6 { " IPv6" } else { "" })
            }
        }
    }
}

fn endpoint(address: IpAddr, port: u16) -> String {
    match address {
        IpAddr::V4(address) => format!("{address}:{port}"),
        IpAddr::V6(address) => format!("[{address}]:{port}"),
    }
}

impl Persistence {
    /// Returns the mask as it is printed, or `None` if every address is a client of its own.
    fn mask(self, v6: bool) -> Option<String> {
        let width = if v6 { 128 } else { 32 };
        let host = u32::from(width - self.len.min(width));
        match (self.len >= width, v6) {
            (true, _) => None,
            (false, true) => Some(self.len.to_string()),
            (false, false) => {
                let mask = u32::MAX.checked_shl(host).unwrap_or(0);
                Some(std::net::Ipv4Addr::from_bits(mask).to_string())
            }
        }
    }
}

impl Ipvs {
    /// Returns the services as `ipvsadm -Ln` prints them, without trailing blanks.
    pub fn list(&self) -> String {
        let mut text = format!(
            "IP Virtual Server version 1.2.1 (size={})\n\
             Prot LocalAddress:Port Scheduler Flags\n  \
             -> RemoteAddress:Port           Forward Weight ActiveConn InActConn\n",
            self.table_size
        );
        for service in &self.services {
            let _ = write!(text, "{} {}", service.id, service.scheduler);
            if let Some(persistence) = service.persistence {
                let _ = write!(text, " persistent {}", persistence.timeout);
                if let Some(mask) = persistence.mask(service.id.is_v6()) {
                    let _ = write!(text, " mask {mask}");
                }
            }
            if service.one_packet {
                text.push_str(" ops");
            }
            if let Some(engine) = &service.engine {
                let _ = write!(text, " pe {engine}");
            }
            if !service.flags.is_empty() {
                let _ = write!(text, " ({})", service.flags.join(","));
            }
            text.push('\n');
            for destination in &service.destinations {
                let Destination { address, port, forward, weight, active, inactive, .. } =
                    destination;
                let line = format!(
                    "  -> {:<28} {:<7} {weight:<6} {active:<10} {inactive}",
                    endpoint(*address, *port),
                    forward.name(),
                );
                let _ = writeln!(text, "{line}");
            }
        }
        text
    }

    /// Returns the services as `ipvsadm -S -n` prints them.
    pub fn save(&self) -> String {
        let mut text = String::new();
        for service in &self.services {
            let id = service.id.options();
            let _ = write!(text, "-A {id} -s {}", service.scheduler);
            if let Some(persistence) = service.persistence {
                let _ = write!(text, " -p {}", persistence.timeout);
                if let Some(mask) = persistence.mask(service.id.is_v6()) {
                    let _ = write!(text, " -M {mask}");
                }
            }
            if service.one_packet {
                text.push_str(" -o");
            }
            if let Some(engine) = &service.engine {
                let _ = write!(text, " --pe {engine}");
            }
            if !service.flags.is_empty() {
                let _ = write!(text, " -b {}", service.flags.join(","));
            }
            text.push('\n');
            for destination in &service.destinations {
                let Destination { address, port, forward, weight, upper, lower, .. } = destination;
                let to = endpoint(*address, *port);
                let _ = write!(text, "-a {id} -r {to} {} -w {weight}", forward.option());
                if *upper > 0 || *lower > 0 {
                    let _ = write!(text, " -x {upper} -y {lower}");
                }
                text.push('\n');
            }
        }
        text
    }
}

#[cfg(test)]
mod tests;
