//! The data of one host: devices, addresses, routes, neighbours, sysctls.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};

use crate::device::{DeviceId, DeviceName, DeviceNameError};
use crate::prefix::Prefix;
use crate::rule::AddrType;

/// The hardware address of a device.
pub type MacAddr = [u8; 6];

/// What a device is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceKind {
    /// The loopback device.
    Loopback,
    /// An Ethernet device: one end of a link.
    Ethernet,
    /// A bridge.
    Bridge,
    /// An Ethernet device that is a port of a bridge.
    Port {
        /// The bridge.
        bridge: DeviceId,
        /// Frames may leave by the port that they came in by.
        hairpin: bool,
    },
}

/// How far an address is known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Scope {
    /// Everywhere.
    #[default]
    Global,
    /// On the link.
    Link,
    /// On the host: 127.0.0.1.
    Host,
}

/// An address of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InterfaceAddress {
    /// The address.
    pub addr: IpAddr,
    /// The length of its subnet's prefix.
    pub len: u8,
    /// How far it is known.
    pub scope: Scope,
}

/// Settings under `net.ipv4.conf.<device>`; those of `all` are combined with the device's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceSysctls {
    /// 0 no reverse-path filter, 1 strict, 2 loose; the greater of `all` and the device's counts.
    pub rp_filter: u8,
    /// 127.0.0.0/8 is routed like other addresses.
    pub route_localnet: bool,
    /// Packets from own addresses are accepted.
    pub accept_local: bool,
}

/// Settings of the whole host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostSysctls {
    /// `net.ipv4.ip_forward`.
    pub ip_forward: bool,
    /// `net.ipv6.conf.all.forwarding`.
    pub ipv6_forwarding: bool,
    /// `net.bridge.bridge-nf-call-iptables`.
    pub bridge_nf_call_iptables: bool,
    /// `net.bridge.bridge-nf-call-ip6tables`.
    pub bridge_nf_call_ip6tables: bool,
    /// `net.ipv4.conf.all`.
    pub all: DeviceSysctls,
}

impl Default for HostSysctls {
    /// The kernel's defaults, with br_netfilter loaded.
    fn default() -> HostSysctls {
        HostSysctls {
            ip_forward: false,
            ipv6_forwarding: false,
            bridge_nf_call_iptables: true,
            bridge_nf_call_ip6tables: true,
            all: DeviceSysctls::default(),
        }
    }
}

/// A device of a host.
#[derive(Clone, Debug)]
pub struct Device {
    /// Its name.
    pub name: DeviceName,
    /// What it is.
    pub kind: DeviceKind,
    /// Its hardware address.
    pub mac: MacAddr,
    /// Its addresses, oldest first.
    pub addresses: Vec<InterfaceAddress>,
    /// Its settings.
    pub sysctls: DeviceSysctls,
}

/// What a route does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RouteKind {
    /// Leads out of a device.
    Unicast {
        /// The device.
        dev: DeviceId,
        /// The gateway; without one, the destination itself is the neighbour.
        gateway: Option<IpAddr>,
    },
    /// Ends here.
    Local {
        /// The device.
        dev: DeviceId,
    },
    /// ICMP host unreachable.
    Unreachable,
    /// ICMP administratively prohibited.
    Prohibit,
    /// Silence.
    Blackhole,
    /// As if the table had no route.
    Throw,
}

/// A route of the main table.
#[derive(Clone, Debug, PartialEq)]
pub struct RouteEntry {
    /// The destinations.
    pub prefix: Prefix,
    /// What becomes of their packets.
    pub kind: RouteKind,
    /// The preferred source (`src`).
    pub source: Option<IpAddr>,
    /// Among routes to one prefix the lowest counts.
    pub metric: u32,
    /// How far the next hop is: [`Scope::Link`] without a gateway.
    pub scope: Scope,
}

impl RouteEntry {
    /// Returns a route by a gateway, or without one to a link.
    pub fn unicast(prefix: Prefix, dev: DeviceId, gateway: Option<IpAddr>) -> RouteEntry {
        let scope = if gateway.is_some() { Scope::Global } else { Scope::Link };
        let kind = RouteKind::Unicast { dev, gateway };
        RouteEntry { prefix, kind, source: None, metric: 0, scope }
    }

    /// Returns a route of another kind.
    pub fn other(prefix: Prefix, kind: RouteKind) -> RouteEntry {
        RouteEntry { prefix, kind, source: None, metric: 0, scope: Scope::Global }
    }
}

/// One host as data. Implements [`Host`](crate::host::Host).
///
/// It begins with the loopback device only, without an address.
#[derive(Clone, Debug)]
pub struct HostConfig {
    pub(super) devices: Vec<Device>,
    pub(super) routes: Vec<RouteEntry>,
    pub(super) neighbours: BTreeMap<(DeviceId, IpAddr), MacAddr>,
    /// Behind which port of a bridge a hardware address is.
    pub(super) stations: BTreeMap<(DeviceId, MacAddr), DeviceId>,
    /// Settings.
    pub sysctls: HostSysctls,
}

impl Default for HostConfig {
    fn default() -> HostConfig {
        HostConfig::new()
    }
}

impl HostConfig {
    /// The loopback device.
    pub const LO: DeviceId = DeviceId(0);

    /// Returns a host with a loopback device that has 127.0.0.1 and ::1.
    pub fn new() -> HostConfig {
        let lo = Device {
            name: DeviceName::parse("lo").expect("a name"),
            kind: DeviceKind::Loopback,
            mac: [0; 6],
            addresses: Vec::new(),
            sysctls: DeviceSysctls::default(),
        };
        let mut host = HostConfig {
            devices: vec![lo],
            routes: Vec::new(),
            neighbours: BTreeMap::new(),
            stations: BTreeMap::new(),
            sysctls: HostSysctls::default(),
        };
        host.add_address(HostConfig::LO, Ipv4Addr::LOCALHOST.into(), 8);
        host.add_address(HostConfig::LO, std::net::Ipv6Addr::LOCALHOST.into(), 128);
        host
    }

    /// Adds a device without addresses.
    ///
    /// # Errors
    ///
    /// If the name is no device name.
    pub fn add_device(
        &mut self,
        name: &str,
        kind: DeviceKind,
        mac: MacAddr,
    ) -> Result<DeviceId, DeviceNameError> {
        let name = DeviceName::parse(name)?;
        let id = DeviceId(self.devices.len() as u32);
        let (addresses, sysctls) = (Vec::new(), DeviceSysctls::default());
        self.devices.push(Device { name, kind, mac, addresses, sysctls });
        Ok(id)
    }

    /// Returns the device, if there is one of this number.
    pub fn device(&self, id: DeviceId) -> Option<&Device> {
        self.devices.get(id.0 as usize)
    }

    /// Returns the device to change it, if there is one of this number.
    pub fn device_mut(&mut self, id: DeviceId) -> Option<&mut Device> {
        self.devices.get_mut(id.0 as usize)
    }

    /// Returns the devices; the place of each is its number.
    pub fn devices(&self) -> &[Device] {
        &self.devices
    }

    /// Returns the device of this name.
    pub fn device_named(&self, name: &str) -> Option<DeviceId> {
        let at = self.devices.iter().position(|device| device.name.as_str() == name)?;
        Some(DeviceId(at as u32))
    }

    /// Gives a device an address. Its subnet is routed to the device, unless it is that address
    /// only.
    // Kernel: fib_frontend.c, fib_add_ifaddr
    pub fn add_address(&mut self, dev: DeviceId, addr: IpAddr, len: u8) {
        let scope = if is_loopback(addr) { Scope::Host } else { Scope::Global };
        let Some(device) = self.devices.get_mut(dev.0 as usize) else {
            return;
        };
        let len = len.min(if addr.is_ipv4() { 32 } else { 128 });
        device.addresses.push(InterfaceAddress { addr, len, scope });
        let whole = if addr.is_ipv4() { 32 } else { 128 };
        if len < whole && !is_loopback(addr) {
            let mut route = RouteEntry::unicast(Prefix::new(addr, len), dev, None);
            route.source = addr.is_ipv4().then_some(addr);
            self.routes.push(route);
        }
    }

    /// Takes an address from a device, and the routes with it that came with it.
    pub fn remove_address(&mut self, dev: DeviceId, addr: IpAddr) {
        if let Some(device) = self.devices.get_mut(dev.0 as usize) {
            device.addresses.retain(|address| address.addr != addr);
        }
        self.routes.retain(|route| route.source != Some(addr));
    }

    /// Adds a route to the main table.
    pub fn add_route(&mut self, route: RouteEntry) {
        self.routes.push(route);
    }

    /// Removes the routes of the main table that `condemned` holds for; returns how many.
    pub fn remove_routes(&mut self, mut condemned: impl FnMut(&RouteEntry) -> bool) -> usize {
        let before = self.routes.len();
        self.routes.retain(|route| !condemned(route));
        before - self.routes.len()
    }

    /// Returns the routes of the main table.
    pub fn routes(&self) -> &[RouteEntry] {
        &self.routes
    }

    /// Names the hardware address of a neighbour.
    pub fn add_neighbour(&mut self, dev: DeviceId, addr: IpAddr, mac: MacAddr) {
        self.neighbours.insert((dev, addr), mac);
    }

    /// Says behind which port of a bridge a hardware address is.
    pub fn add_station(&mut self, bridge: DeviceId, mac: MacAddr, port: DeviceId) {
        self.stations.insert((bridge, mac), port);
    }

    /// Returns the hardware address of a neighbour.
    pub fn neighbour(&self, dev: DeviceId, addr: IpAddr) -> Option<MacAddr> {
        self.neighbours.get(&(dev, addr)).copied()
    }

    /// Returns behind which port of a bridge a hardware address is.
    pub fn port_of(&self, bridge: DeviceId, mac: MacAddr) -> Option<DeviceId> {
        self.stations.get(&(bridge, mac)).copied()
    }

    /// Returns whether a frame to this hardware address is for the bridge's host: the address is
    /// the bridge's or a port's.
    pub fn is_bridge_mac(&self, bridge: DeviceId, mac: MacAddr) -> bool {
        self.devices.iter().enumerate().any(|(at, device)| {
            let of_bridge = match device.kind {
                DeviceKind::Port { bridge: of, .. } => of == bridge,
                _ => at as u32 == bridge.0,
            };
            of_bridge && device.mac == mac
        })
    }

    /// Returns every address of the host with its device, in order.
    pub fn addresses(&self) -> impl Iterator<Item = (DeviceId, &InterfaceAddress)> {
        self.devices.iter().enumerate().flat_map(|(at, device)| {
            device.addresses.iter().map(move |address| (DeviceId(at as u32), address))
        })
    }

    /// Returns whether an address is one of the host's.
    pub fn is_local(&self, addr: IpAddr) -> bool {
        self.local_table(addr).is_some_and(|(kind, _)| kind == AddrType::Local)
    }

    /// Looks an address up in the local table: its kind and device.
    // Kernel: fib_frontend.c, fib_add_ifaddr: local, broadcast; no network addresses since 5.14
    pub(super) fn local_table(&self, addr: IpAddr) -> Option<(AddrType, DeviceId)> {
        let mut found: Option<(u8, AddrType, DeviceId)> = None;
        for (dev, address) in self.addresses() {
            let (len, kind) = match (address.addr, addr) {
                (own, addr) if own == addr => (u8::MAX, AddrType::Local),
                (IpAddr::V4(own), IpAddr::V4(addr)) => {
                    let prefix = Prefix::new(address.addr, address.len);
                    if own.is_loopback() && prefix.contains(addr.into()) {
                        (address.len, AddrType::Local)
                    } else if is_broadcast(own, address.len, addr) {
                        (32, AddrType::Broadcast)
                    } else {
                        continue;
                    }
                }
                _ => continue,
            };
            if found.is_none_or(|(best, ..)| len > best) {
                found = Some((len, kind, dev));
            }
        }
        let local = self.routes.iter().filter_map(|route| match route.kind {
            RouteKind::Local { dev } if route.prefix.contains(addr) => Some((route, dev)),
            _ => None,
        });
        for (route, dev) in local {
            if found.is_none_or(|(best, ..)| route.prefix.len() > best) {
                found = Some((route.prefix.len(), AddrType::Local, dev));
            }
        }
        found.map(|(_, kind, dev)| (kind, dev))
    }
}

pub(super) fn is_loopback(addr: IpAddr) -> bool {
    addr.is_loopback()
}

fn is_broadcast(own: Ipv4Addr, len: u8, addr: Ipv4Addr) -> bool {
    if len >= 31 || own.is_loopback() {
        return false;
    }
    let mask = u32::MAX.checked_shl(32 - u32::from(len)).unwrap_or(0);
    addr.to_bits() == own.to_bits() | !mask
}
