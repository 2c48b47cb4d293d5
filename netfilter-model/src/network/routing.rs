//! The routing decision of a host that is data.

use std::net::IpAddr;

use super::config::{DeviceKind, DeviceSysctls, HostConfig, RouteEntry, RouteKind, Scope};
use crate::device::{DeviceId, DeviceName};
use crate::host::{BridgeQuery, Host, Route, RouteQuery};
use crate::rule::AddrType;

impl Host for HostConfig {
    fn route(&self, query: RouteQuery) -> Route {
        match query.in_dev {
            None => self.route_output(query),
            Some(dev) => self.route_input(query, dev),
        }
    }

    fn bridge(&self, BridgeQuery { ingress, packet, rewritten }: BridgeQuery) -> Option<Route> {
        let bridge = ingress.dev;
        let in_port = ingress.port?;
        let (mac, next_hop) = if rewritten {
            // Kernel: br_netfilter_hooks.c, br_nf_pre_routing_finish: bridged DNAT
            match self.route(packet) {
                Route::Forward { dev, next_hop } if dev == bridge => {
                    let Some(mac) = self.neighbour(bridge, next_hop) else {
                        return Some(Route::Blackhole);
                    };
                    (mac, next_hop)
                }
                _ => return None,
            }
        } else {
            let mac = ingress.destination?;
            if self.is_bridge_mac(bridge, mac) {
                return None;
            }
            (mac, packet.dst)
        };
        Some(match self.port_of(bridge, mac) {
            Some(port) if self.may_leave(port, in_port) => {
                Route::Bridged { dev: bridge, port: Some(port), next_hop }
            }
            _ => Route::Blackhole,
        })
    }

    // Kernel: fib_frontend.c, __inet_dev_addr_type: the local table only
    fn addr_type(&self, addr: IpAddr, on: Option<DeviceId>) -> AddrType {
        if addr.is_multicast() {
            return AddrType::Multicast;
        }
        if let IpAddr::V4(addr) = addr
            && (addr.octets()[0] == 0 || addr.is_broadcast())
        {
            return AddrType::Broadcast;
        }
        match self.local_table(addr) {
            Some((kind, dev)) if on.is_none_or(|on| on == dev) => kind,
            _ => AddrType::Unicast,
        }
    }

    // Kernel: nf_nat_masquerade.c: inet_select_addr with RT_SCOPE_UNIVERSE
    fn masquerade_address(&self, dev: DeviceId, next_hop: IpAddr) -> Option<IpAddr> {
        self.select_address(dev, Some(next_hop), next_hop.is_ipv4(), Scope::Global)
    }

    // Kernel: nf_nat_redirect.c, nf_nat_redirect_ipv4: the first address of the device
    fn redirect_address(&self, dev: DeviceId, src: IpAddr) -> Option<IpAddr> {
        let addresses = &self.device(dev)?.addresses;
        let family = |addr: &IpAddr| addr.is_ipv4() == src.is_ipv4();
        addresses.iter().map(|address| address.addr).find(family)
    }

    // Kernel: fib_semantics.c, fib_result_prefsrc
    fn source_address(&self, query: RouteQuery, route: Route) -> Option<IpAddr> {
        let v4 = query.dst.is_ipv4();
        match route {
            // 127.0.0.2 is reached from 127.0.0.1.
            Route::Local if query.dst.is_loopback() => Some(match query.dst {
                IpAddr::V4(_) => std::net::Ipv4Addr::LOCALHOST.into(),
                IpAddr::V6(_) => std::net::Ipv6Addr::LOCALHOST.into(),
            }),
            Route::Local => Some(query.dst),
            Route::Forward { dev, .. } | Route::Bridged { dev, .. } => {
                let entry = self.main_table(query.dst);
                if let Some(source) = entry.and_then(|entry| entry.source) {
                    return Some(source);
                }
                let (gateway, scope) = match entry {
                    Some(RouteEntry {
                        kind: RouteKind::Unicast { gateway, .. }, scope, ..
                    }) => (*gateway, *scope),
                    _ => (None, Scope::Global),
                };
                self.select_address(dev, gateway, v4, scope)
            }
            Route::Unreachable | Route::Prohibited | Route::Blackhole | Route::NoRoute => None,
        }
    }

    fn loopback(&self) -> DeviceId {
        HostConfig::LO
    }

    fn device_name(&self, dev: DeviceId) -> DeviceName {
        let known = self.device(dev).or(self.device(HostConfig::LO));
        known.expect("a host has a loopback device").name
    }
}

impl HostConfig {
    /// Returns whether a bridge sends a frame out of a port that came in by another.
    // Kernel: br_forward.c, should_deliver
    pub(super) fn may_leave(&self, port: DeviceId, in_port: DeviceId) -> bool {
        let hairpin = |kind| matches!(kind, DeviceKind::Port { hairpin: true, .. });
        port != in_port || self.device(port).is_some_and(|device| hairpin(device.kind))
    }

    /// Returns the route of the main table to an address.
    pub(super) fn main_table(&self, dst: IpAddr) -> Option<&RouteEntry> {
        let mut best: Option<&RouteEntry> = None;
        let candidates = self.routes.iter().filter(|route| {
            route.prefix.contains(dst) && !matches!(route.kind, RouteKind::Local { .. })
        });
        for route in candidates {
            let better = best.is_none_or(|best| {
                let (len, best_len) = (route.prefix.len(), best.prefix.len());
                len > best_len || len == best_len && route.metric < best.metric
            });
            if better {
                best = Some(route);
            }
        }
        best
    }

    /// Looks an address up in both tables.
    fn lookup(&self, dst: IpAddr) -> Route {
        if let Some((kind, dev)) = self.local_table(dst) {
            return match kind {
                AddrType::Broadcast => Route::Forward { dev, next_hop: dst },
                _ => Route::Local,
            };
        }
        match self.main_table(dst).map(|route| route.kind) {
            Some(RouteKind::Unicast { dev, gateway }) => {
                Route::Forward { dev, next_hop: gateway.unwrap_or(dst) }
            }
            Some(RouteKind::Local { .. }) => Route::Local,
            Some(RouteKind::Unreachable) => Route::Unreachable,
            Some(RouteKind::Prohibit) => Route::Prohibited,
            Some(RouteKind::Blackhole) => Route::Blackhole,
            Some(RouteKind::Throw) | None => Route::NoRoute,
        }
    }

    // Kernel: route.c, ip_route_output_key_hash_rcu and __mkroute_output
    fn route_output(&self, query: RouteQuery) -> Route {
        let route = self.lookup(query.dst);
        match route {
            Route::Forward { dev, .. }
                if is_loopback_v4(query.src) && !self.effective(dev).route_localnet =>
            {
                Route::Blackhole
            }
            route => route,
        }
    }

    // Kernel: route.c, ip_route_input_slow
    fn route_input(&self, query: RouteQuery, in_dev: DeviceId) -> Route {
        let RouteQuery { dst, src, .. } = query;
        let set = self.effective(in_dev);
        let forwards =
            if dst.is_ipv4() { self.sysctls.ip_forward } else { self.sysctls.ipv6_forwarding };
        if is_martian_source(src)
            || is_martian_destination(dst)
            || (is_loopback_v4(dst) || is_loopback_v4(src)) && !set.route_localnet
            || dst.is_ipv6() && (dst.is_loopback() || src.is_loopback())
        {
            return Route::Blackhole;
        }
        let broadcast = matches!(self.local_table(dst), Some((AddrType::Broadcast, _)));
        if broadcast || self.addr_type(dst, None) == AddrType::Broadcast {
            return if self.source_is_valid(src, in_dev, set) {
                Route::Local
            } else {
                Route::Blackhole
            };
        }
        let route = self.lookup(dst);
        match route {
            Route::Local if self.source_is_valid(src, in_dev, set) => Route::Local,
            Route::Forward { .. } if forwards && self.source_is_valid(src, in_dev, set) => route,
            Route::Local | Route::Forward { .. } | Route::Bridged { .. } => Route::Blackhole,
            // Kernel: route.c, ip_error: who does not forward says nothing.
            refusal if forwards => refusal,
            _ => Route::Blackhole,
        }
    }

    /// Returns the settings that count for a device.
    fn effective(&self, dev: DeviceId) -> DeviceSysctls {
        let all = self.sysctls.all;
        let own = self.device(dev).map(|device| device.sysctls).unwrap_or_default();
        DeviceSysctls {
            rp_filter: all.rp_filter.max(own.rp_filter),
            route_localnet: all.route_localnet || own.route_localnet,
            accept_local: all.accept_local || own.accept_local,
        }
    }

    /// Judges the source of a packet that came in.
    // Kernel: fib_frontend.c, fib_validate_source
    // Simplified: IPv6 has no such check here; the kernel's is a match of its own (rpfilter).
    fn source_is_valid(&self, src: IpAddr, in_dev: DeviceId, set: DeviceSysctls) -> bool {
        if src.is_ipv6() {
            return true;
        }
        if self.is_local(src) && !set.accept_local {
            return false;
        }
        if set.rp_filter == 0 {
            return true;
        }
        match self.lookup(src) {
            Route::Local => true,
            Route::Forward { dev, .. } => set.rp_filter != 1 || dev == in_dev,
            _ => false,
        }
    }

    /// Chooses an address of a device, or if it has none that fits, of another.
    // Kernel: devinet.c, inet_select_addr
    // Simplified: IPv6 takes the same choice, not RFC 6724's.
    fn select_address(
        &self,
        dev: DeviceId,
        near: Option<IpAddr>,
        v4: bool,
        scope: Scope,
    ) -> Option<IpAddr> {
        let of_family = |addr: &IpAddr| addr.is_ipv4() == v4;
        let route_localnet = self.effective(dev).route_localnet;
        let mut first = None;
        for address in &self.device(dev)?.addresses {
            let reach = if route_localnet { address.scope.min(Scope::Link) } else { address.scope };
            if !of_family(&address.addr) || reach > scope {
                continue;
            }
            let prefix = crate::prefix::Prefix::new(address.addr, address.len);
            if near.is_none_or(|near| prefix.contains(near)) {
                return Some(address.addr);
            }
            first = first.or(Some(address.addr));
        }
        if first.is_some() {
            return first;
        }
        let mut others = self.addresses().map(|(_, address)| address);
        let fits = |address: &&super::config::InterfaceAddress| {
            of_family(&address.addr) && address.scope != Scope::Link && address.scope <= scope
        };
        others.find(fits).map(|address| address.addr)
    }
}

fn is_loopback_v4(addr: IpAddr) -> bool {
    addr.is_ipv4() && addr.is_loopback()
}

/// Nothing is multicast to a host that has joined no group, nor sent to this network.
fn is_martian_destination(addr: IpAddr) -> bool {
    match addr {
        IpAddr::V4(addr) => addr.is_multicast() || addr.octets()[0] == 0,
        IpAddr::V6(addr) => addr.is_multicast() || addr.is_unspecified(),
    }
}

fn is_martian_source(addr: IpAddr) -> bool {
    match addr {
        IpAddr::V4(addr) => addr.is_multicast() || addr.is_broadcast() || addr.octets()[0] == 0,
        IpAddr::V6(addr) => addr.is_multicast(),
    }
}
