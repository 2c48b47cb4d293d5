//! The host around the rules: devices, addresses, routes, sysctls, sockets.
//!
//! What it says is remembered as far as it was only assumed, so that every assumption that was used
//! can be named, and no other.

use std::cell::Cell;
use std::net::{IpAddr, Ipv4Addr};

use netfilter_model::host::{Host, Route, RouteQuery};
use netfilter_model::rule::AddrType;
use netfilter_model::tuple::Protocol;
use netfilter_model::{DeviceId, DeviceName, Prefix};

/// An assumption of a host, by its place in [`NodeHost::assumptions`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct AssumptionId(usize);

/// A network device.
#[derive(Clone, Debug)]
pub(super) struct Device {
    /// Its name.
    pub(super) name: DeviceName,
    /// Its addresses, each with its prefix length and whether it is only assumed.
    pub(super) addresses: Vec<(IpAddr, u8, Option<AssumptionId>)>,
    /// It is a bridge.
    pub(super) bridge: bool,
    /// Frames may leave the bridge by the port by which they came.
    pub(super) hairpin: bool,
    /// Addresses of 127.0.0.0/8 are routed.
    pub(super) route_localnet: bool,
    /// 0 no check of sources, 1 strict, 2 loose.
    pub(super) rp_filter: u8,
}

/// Where a route leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// Out of a device, to a gateway or to the destination itself.
    Out(DeviceId, Option<IpAddr>),
    /// Nowhere, and the sender is told so.
    Unreachable,
    /// Nowhere, since it is not allowed.
    Prohibit,
    /// Nowhere.
    Blackhole,
}

#[derive(Clone, Debug)]
struct RouteEntry {
    to: Prefix,
    metric: u32,
    way: Way,
    assumed: Option<AssumptionId>,
}

/// A socket that takes packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Listener {
    /// Its protocol.
    pub(super) protocol: Protocol,
    /// Its port.
    pub(super) port: u16,
    /// The only address at which it listens, if there is one.
    pub(super) address: Option<IpAddr>,
}

/// The host of one node.
#[derive(Debug)]
pub(super) struct NodeHost {
    devices: Vec<Device>,
    routes: Vec<RouteEntry>,
    /// Packets are passed on.
    pub(super) forwarding: bool,
    /// Bridged frames meet the hooks.
    pub(super) bridge_nf: bool,
    /// Sockets, if they are known.
    pub(super) listeners: Option<Vec<Listener>>,
    /// Each with whether it was used.
    assumptions: Vec<(String, Cell<bool>)>,
}

/// The loopback device.
const LO: DeviceId = DeviceId(0);

impl NodeHost {
    /// Returns a host with nothing but a loopback device.
    pub(super) fn new() -> NodeHost {
        let mut host = NodeHost {
            devices: Vec::new(),
            routes: Vec::new(),
            forwarding: true,
            bridge_nf: true,
            listeners: None,
            assumptions: Vec::new(),
        };
        let lo = host.device(DeviceName::parse("lo").expect("a name"));
        host.devices[lo.0 as usize].addresses = vec![
            (Ipv4Addr::LOCALHOST.into(), 8, None),
            (std::net::Ipv6Addr::LOCALHOST.into(), 128, None),
        ];
        host
    }

    /// Returns the device of this name, adding it if there is none.
    pub(super) fn device(&mut self, name: DeviceName) -> DeviceId {
        if let Some(id) = self.find(name) {
            return id;
        }
        self.devices.push(Device {
            name,
            addresses: Vec::new(),
            bridge: false,
            hairpin: true,
            route_localnet: false,
            rp_filter: 0,
        });
        DeviceId(self.devices.len() as u32 - 1)
    }

    /// Returns the device of this name.
    pub(super) fn find(&self, name: DeviceName) -> Option<DeviceId> {
        let at = self.devices.iter().position(|device| device.name == name)?;
        Some(DeviceId(at as u32))
    }

    /// Returns a device.
    pub(super) fn get(&self, id: DeviceId) -> &Device {
        &self.devices[id.0 as usize]
    }

    /// Returns a device, to change it.
    pub(super) fn get_mut(&mut self, id: DeviceId) -> &mut Device {
        &mut self.devices[id.0 as usize]
    }

    /// Returns the devices, the loopback device first.
    pub(super) fn devices_mut(&mut self) -> &mut [Device] {
        &mut self.devices
    }

    /// Adds an assumption; it is listed once something that depends on it is asked.
    pub(super) fn assume(&mut self, text: String) -> AssumptionId {
        let known = self.assumptions.iter().position(|(known, _)| *known == text);
        AssumptionId(known.unwrap_or_else(|| {
            self.assumptions.push((text, Cell::new(false)));
            self.assumptions.len() - 1
        }))
    }

    /// Notes that an assumption was used.
    pub(super) fn rely_on(&self, id: AssumptionId) {
        self.assumptions[id.0].1.set(true);
    }

    fn relied(&self, id: Option<AssumptionId>) {
        if let Some(id) = id {
            self.rely_on(id);
        }
    }

    /// Returns the assumptions that were used, in the order in which they were made.
    pub(super) fn assumptions(&self) -> impl Iterator<Item = &str> {
        self.assumptions.iter().filter(|(_, used)| used.get()).map(|(text, _)| text.as_str())
    }

    /// Gives a device an address; its network is routed to it.
    pub(super) fn address(
        &mut self,
        dev: DeviceId,
        addr: IpAddr,
        len: u8,
        assumed: Option<AssumptionId>,
    ) {
        self.get_mut(dev).addresses.push((addr, len, assumed));
        if dev != LO {
            self.route_to(Prefix::new(addr, len), Way::Out(dev, None), 0, assumed);
        }
    }

    /// Adds a route.
    pub(super) fn route_to(
        &mut self,
        to: Prefix,
        way: Way,
        metric: u32,
        assumed: Option<AssumptionId>,
    ) {
        let place = |entry: &RouteEntry| (std::cmp::Reverse(entry.to.len()), entry.metric);
        let at = self
            .routes
            .partition_point(|entry| place(entry) <= (std::cmp::Reverse(to.len()), metric));
        self.routes.insert(at, RouteEntry { to, metric, way, assumed });
    }

    /// Returns the device that owns an address.
    fn owner(&self, addr: IpAddr) -> Option<(DeviceId, Option<AssumptionId>)> {
        if is_loopback(addr) {
            return Some((LO, None));
        }
        self.devices.iter().enumerate().find_map(|(at, device)| {
            let own = device.addresses.iter().find(|(own, ..)| *own == addr)?;
            Some((DeviceId(at as u32), own.2))
        })
    }

    /// Returns whether an address is the host's own.
    pub(super) fn is_own(&self, addr: IpAddr) -> bool {
        self.owner(addr).is_some()
    }

    fn lookup(&self, dst: IpAddr) -> Option<Way> {
        let entry = self.routes.iter().find(|entry| entry.to.contains(dst))?;
        self.relied(entry.assumed);
        Some(entry.way)
    }

    /// Returns whether a received packet's source is such that the kernel takes the packet.
    // Kernel: fib_frontend.c, fib_validate_source
    fn takes_source(&self, query: &RouteQuery, dev: DeviceId) -> bool {
        let device = self.get(dev);
        if is_loopback(query.src) {
            return device.route_localnet;
        }
        if self.is_own(query.src) {
            return false;
        }
        match device.rp_filter {
            0 => true,
            strict => match self.lookup(query.src) {
                Some(Way::Out(back, _)) => strict == 2 || back == dev,
                _ => false,
            },
        }
    }

    /// Returns the longest route to an address, without regard to where the packet comes from.
    pub(super) fn device_toward(&self, addr: IpAddr) -> Option<DeviceId> {
        match self.lookup(addr) {
            Some(Way::Out(dev, _)) => Some(dev),
            _ => None,
        }
    }
}

/// Returns whether an address is of the loopback network.
pub(super) fn is_loopback(addr: IpAddr) -> bool {
    addr.is_loopback()
}

impl Host for NodeHost {
    fn route(&self, query: RouteQuery) -> Route {
        let received = query.in_dev.filter(|dev| *dev != LO);
        if let Some(dev) = received {
            if !self.takes_source(&query, dev) {
                return Route::Blackhole;
            }
            if is_loopback(query.dst) && !self.get(dev).route_localnet {
                return Route::Blackhole;
            }
        }
        if let Some((_, assumed)) = self.owner(query.dst) {
            self.relied(assumed);
            return Route::Local;
        }
        let way = self.lookup(query.dst);
        if received.is_some() && !self.forwarding {
            return Route::Blackhole;
        }
        match way {
            None => Route::NoRoute,
            Some(Way::Unreachable) => Route::Unreachable,
            Some(Way::Prohibit) => Route::Prohibited,
            Some(Way::Blackhole) => Route::Blackhole,
            Some(Way::Out(dev, gateway)) => {
                let device = self.get(dev);
                // Kernel: route.c, __mkroute_output and __mkroute_input
                if is_loopback(query.src) && !device.route_localnet {
                    return Route::Blackhole;
                }
                let next_hop = gateway.unwrap_or(query.dst);
                if device.bridge && self.bridge_nf && received == Some(dev) {
                    Route::Bridged { dev, next_hop, port: None }
                } else {
                    Route::Forward { dev, next_hop }
                }
            }
        }
    }

    fn addr_type(&self, addr: IpAddr, on: Option<DeviceId>) -> AddrType {
        if let Some((owner, assumed)) = self.owner(addr) {
            self.relied(assumed);
            let there = on.is_none_or(|on| on == owner);
            return if there { AddrType::Local } else { AddrType::Unicast };
        }
        if addr.is_multicast() {
            return AddrType::Multicast;
        }
        let IpAddr::V4(addr) = addr else {
            return AddrType::Unicast;
        };
        let directed = self.devices.iter().flat_map(|device| &device.addresses).any(
            |(own, len, _)| matches!(own, IpAddr::V4(own) if *len < 31 && last_of(*own, *len) == addr),
        );
        if addr.is_broadcast() || addr.is_unspecified() || directed {
            AddrType::Broadcast
        } else {
            AddrType::Unicast
        }
    }

    fn masquerade_address(&self, dev: DeviceId, next_hop: IpAddr) -> Option<IpAddr> {
        let of_family = |device: &Device| {
            let family = |own: &&(IpAddr, u8, _)| own.0.is_ipv4() == next_hop.is_ipv4();
            let near = |own: &&(IpAddr, u8, _)| Prefix::new(own.0, own.1).contains(next_hop);
            let mut of_family = device.addresses.iter().filter(family);
            of_family.clone().find(near).or_else(|| of_family.next()).copied()
        };
        let others = self.devices.iter().skip(1);
        let found = of_family(self.get(dev)).or_else(|| others.into_iter().find_map(of_family));
        let (addr, _, assumed) = found?;
        self.relied(assumed);
        Some(addr)
    }

    fn loopback(&self) -> DeviceId {
        LO
    }

    fn device_name(&self, dev: DeviceId) -> DeviceName {
        self.get(dev).name
    }
}

fn last_of(addr: Ipv4Addr, len: u8) -> Ipv4Addr {
    let host = u32::MAX.checked_shr(u32::from(len)).unwrap_or(0);
    Ipv4Addr::from_bits(addr.to_bits() | host)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn addr(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn node() -> (NodeHost, DeviceId, DeviceId) {
        let mut host = NodeHost::new();
        let eth0 = host.device(DeviceName::parse("eth0").unwrap());
        let cni0 = host.device(DeviceName::parse("cni0").unwrap());
        host.get_mut(cni0).bridge = true;
        host.address(eth0, addr("192.168.0.10"), 24, None);
        host.address(cni0, addr("10.244.1.1"), 24, None);
        let default = Way::Out(eth0, Some(addr("192.168.0.1")));
        host.route_to(Prefix::new(addr("0.0.0.0"), 0), default, 0, None);
        (host, eth0, cni0)
    }

    fn query(src: &str, dst: &str, in_dev: Option<DeviceId>) -> RouteQuery {
        RouteQuery { src: addr(src), dst: addr(dst), mark: 0, in_dev }
    }

    #[test]
    fn the_longest_route_leads() {
        let (mut host, eth0, cni0) = node();
        let more = Prefix::new(addr("10.9.0.0"), 16);
        host.route_to(more, Way::Unreachable, 0, None);
        let via = |dev, hop: &str| Route::Forward { dev, next_hop: addr(hop) };
        let table = [
            (query("10.244.1.5", "192.168.0.10", Some(cni0)), Route::Local),
            (query("10.244.1.5", "192.168.0.11", Some(cni0)), via(eth0, "192.168.0.11")),
            (query("10.244.1.5", "8.8.8.8", Some(cni0)), via(eth0, "192.168.0.1")),
            (query("10.244.1.5", "10.9.1.1", Some(cni0)), Route::Unreachable),
            (query("192.168.0.10", "10.244.1.5", None), via(cni0, "10.244.1.5")),
            (
                query("10.244.1.5", "10.244.1.6", Some(cni0)),
                Route::Bridged { dev: cni0, next_hop: addr("10.244.1.6"), port: None },
            ),
            // A packet that claims to come from the host itself.
            (query("192.168.0.10", "8.8.8.8", Some(cni0)), Route::Blackhole),
            (query("10.244.1.5", "127.0.0.1", Some(cni0)), Route::Blackhole),
            (query("127.0.0.1", "10.244.1.5", None), Route::Blackhole),
            (query("127.0.0.1", "127.0.0.2", None), Route::Local),
        ];
        for (query, expected) in table {
            assert_eq!(host.route(query), expected, "{query:?}");
        }
        host.get_mut(cni0).route_localnet = true;
        assert_eq!(host.route(query("127.0.0.1", "10.244.1.5", None)), via(cni0, "10.244.1.5"));
        host.bridge_nf = false;
        let same = query("10.244.1.5", "10.244.1.6", Some(cni0));
        assert_eq!(host.route(same), via(cni0, "10.244.1.6"));
        host.forwarding = false;
        assert_eq!(host.route(same), Route::Blackhole);
    }

    #[test]
    fn sources_are_checked_where_rp_filter_says_so() {
        let (mut host, eth0, cni0) = node();
        let stray = query("10.244.1.5", "8.8.8.8", Some(eth0));
        assert!(matches!(host.route(stray), Route::Forward { .. }));
        host.get_mut(eth0).rp_filter = 2;
        assert!(matches!(host.route(stray), Route::Forward { .. }));
        host.get_mut(eth0).rp_filter = 1;
        assert_eq!(host.route(stray), Route::Blackhole);
        host.get_mut(cni0).rp_filter = 1;
        assert!(matches!(
            host.route(query("10.244.1.5", "8.8.8.8", Some(cni0))),
            Route::Forward { .. }
        ));
    }

    #[test]
    fn address_types() {
        let (host, eth0, cni0) = node();
        let table = [
            ("192.168.0.10", None, AddrType::Local),
            ("192.168.0.10", Some(eth0), AddrType::Local),
            ("192.168.0.10", Some(cni0), AddrType::Unicast),
            ("127.1.2.3", None, AddrType::Local),
            ("192.168.0.255", None, AddrType::Broadcast),
            ("192.168.0.0", None, AddrType::Unicast),
            ("224.0.0.1", None, AddrType::Multicast),
            ("10.96.0.10", None, AddrType::Unicast),
        ];
        for (text, on, expected) in table {
            assert_eq!(host.addr_type(addr(text), on), expected, "{text}");
        }
    }

    #[test]
    fn only_assumptions_that_were_used_are_listed() {
        let (mut host, eth0, _) = node();
        let unused = host.assume("one".to_owned());
        host.address(eth0, addr("192.168.1.1"), 24, Some(unused));
        let used = host.assume("two".to_owned());
        host.route_to(Prefix::new(addr("10.0.0.0"), 8), Way::Blackhole, 0, Some(used));
        let _ = host.route(query("192.168.0.10", "10.1.1.1", None));
        assert_eq!(host.assumptions().collect::<Vec<_>>(), ["two"]);
        let many: Vec<AssumptionId> = (0..100).map(|n| host.assume(format!("{n}"))).collect();
        host.rely_on(many[99]);
        host.rely_on(many[3]);
        assert_eq!(host.assumptions().collect::<Vec<_>>(), ["two", "3", "99"]);
    }
}
