//! A small node and rules of kube-proxy's shape, for unit tests.

use std::net::{IpAddr, Ipv4Addr};

use crate::device::{DeviceId, DeviceName};
use crate::hook::{Hook, Table};
use crate::host::{Env, Host, Route, RouteQuery};
use crate::packet::{Packet, TcpFlags};
use crate::prefix::Prefix;
use crate::rule::{
    AddrType, ChainId, CtStates, Nat, NatFlags, NatRange, Origin, Probability, RejectWith, Rule,
    Ruleset, RulesetBuilder, Target,
};
use crate::time::SimTime;
use crate::tuple::{Protocol, Tuple};

pub(crate) const LO: DeviceId = DeviceId(0);
pub(crate) const ETH0: DeviceId = DeviceId(1);
pub(crate) const CNI0: DeviceId = DeviceId(2);

pub(crate) const NODE: Ipv4Addr = Ipv4Addr::new(192, 168, 0, 1);
pub(crate) const GATEWAY: Ipv4Addr = Ipv4Addr::new(192, 168, 0, 254);
pub(crate) const BRIDGE: Ipv4Addr = Ipv4Addr::new(10, 244, 1, 1);
pub(crate) const CLIENT: Ipv4Addr = Ipv4Addr::new(10, 244, 1, 2);
pub(crate) const LOCAL_POD: Ipv4Addr = Ipv4Addr::new(10, 244, 1, 3);
pub(crate) const REMOTE_POD: Ipv4Addr = Ipv4Addr::new(10, 244, 2, 7);
pub(crate) const VIP: Ipv4Addr = Ipv4Addr::new(10, 96, 0, 10);
pub(crate) const OTHER_VIP: Ipv4Addr = Ipv4Addr::new(10, 96, 0, 11);
pub(crate) const EMPTY_VIP: Ipv4Addr = Ipv4Addr::new(10, 96, 0, 12);
pub(crate) const MASQ: u32 = 0x4000;

/// A node with a pod bridge and an uplink.
#[derive(Clone, Debug, Default)]
pub(crate) struct Node {
    /// Routes that come before the usual ones.
    pub(crate) routes: Vec<(Prefix, Route)>,
}

impl Host for Node {
    fn route(&self, query: RouteQuery) -> Route {
        if let Some((_, route)) = self.routes.iter().find(|(net, _)| net.contains(query.dst)) {
            return *route;
        }
        let IpAddr::V4(dst) = query.dst else {
            return Route::NoRoute;
        };
        if self.addr_type(query.dst, None) == AddrType::Local {
            return Route::Local;
        }
        if dst.octets()[..3] == [10, 244, 1] {
            return Route::Forward { dev: CNI0, next_hop: query.dst };
        }
        Route::Forward { dev: ETH0, next_hop: GATEWAY.into() }
    }

    fn addr_type(&self, addr: IpAddr, on: Option<DeviceId>) -> AddrType {
        let owner = match addr {
            IpAddr::V4(addr) if addr.is_loopback() => LO,
            IpAddr::V4(NODE) => ETH0,
            IpAddr::V4(BRIDGE) => CNI0,
            _ => return AddrType::Unicast,
        };
        if on.is_none_or(|on| on == owner) { AddrType::Local } else { AddrType::Unicast }
    }

    fn masquerade_address(&self, dev: DeviceId, _: IpAddr) -> Option<IpAddr> {
        match dev {
            LO => Some(Ipv4Addr::LOCALHOST.into()),
            ETH0 => Some(NODE.into()),
            CNI0 => Some(BRIDGE.into()),
            _ => None,
        }
    }

    fn loopback(&self) -> DeviceId {
        LO
    }

    fn device_name(&self, dev: DeviceId) -> DeviceName {
        let name = ["lo", "eth0", "cni0"][dev.0 as usize];
        DeviceName::parse(name).expect("a name")
    }
}

/// Well-mixed bits of a number.
pub(crate) fn bits(seed: u64) -> u64 {
    let mut z = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ z >> 31
}

/// The environment of a packet.
pub(crate) fn env<'e, R, D>(
    now: u64,
    host: &'e Node,
    rules: &'e R,
    draws: &'e mut D,
) -> Env<'e, Node, R, D> {
    Env { now: SimTime::from_nanos(now * 1_000_000_000), host, rules, draws }
}

pub(crate) fn host(addr: Ipv4Addr) -> Prefix {
    Prefix::host(addr.into())
}

pub(crate) fn tcp(src: (Ipv4Addr, u16), dst: (Ipv4Addr, u16), flags: TcpFlags) -> Packet {
    Packet::tcp(1, Tuple::v4(Protocol::TCP, src.0, src.1, dst.0, dst.1), flags)
}

pub(crate) fn udp(src: (Ipv4Addr, u16), dst: (Ipv4Addr, u16)) -> Packet {
    Packet::udp(1, Tuple::v4(Protocol::UDP, src.0, src.1, dst.0, dst.1), 60)
}

pub(crate) fn rule() -> Rule {
    Rule::new(Origin::default())
}

pub(crate) fn dnat(addr: Ipv4Addr, port: u16) -> Target {
    Target::Nat(Nat::Dnat(NatRange::to(addr.into(), port)))
}

pub(crate) fn masquerade() -> Target {
    let flags = NatFlags { random_fully: true, ..NatFlags::default() };
    Target::Nat(Nat::Masquerade(NatRange::keep().with_flags(flags)))
}

/// A builder with kube-proxy's fixed chains, and those that Services need.
pub(crate) struct Proxy {
    pub(crate) rules: RulesetBuilder,
    pub(crate) services: ChainId,
    pub(crate) mark_masq: ChainId,
    pub(crate) reject: ChainId,
}

impl Proxy {
    pub(crate) fn new() -> Proxy {
        let mut rules = RulesetBuilder::new();
        let services = rules.chain(Table::Nat, "KUBE-SERVICES");
        let mark_masq = rules.chain(Table::Nat, "KUBE-MARK-MASQ");
        let postrouting = rules.chain(Table::Nat, "KUBE-POSTROUTING");
        for hook in [Hook::Prerouting, Hook::Output] {
            let builtin = rules.builtin(Table::Nat, hook);
            let portals = rule().comment("kubernetes service portals").then(Target::Jump(services));
            rules.append(Table::Nat, builtin, portals);
        }
        let builtin = rules.builtin(Table::Nat, Hook::Postrouting);
        rules.append(Table::Nat, builtin, rule().then(Target::Jump(postrouting)));
        let unmarked = rule().not_mark(MASQ, MASQ).then(Target::Return);
        rules.append(Table::Nat, postrouting, unmarked);
        rules.append(Table::Nat, postrouting, rule().then(Target::xor_mark(MASQ)));
        rules.append(Table::Nat, postrouting, rule().then(masquerade()));
        rules.append(Table::Nat, mark_masq, rule().then(Target::or_mark(MASQ)));
        let reject = rules.chain(Table::Filter, "KUBE-SERVICES");
        let forward = rules.chain(Table::Filter, "KUBE-FORWARD");
        let builtin = rules.builtin(Table::Filter, Hook::Forward);
        rules.append(Table::Filter, builtin, rule().then(Target::Jump(forward)));
        for hook in [Hook::Forward, Hook::Output] {
            let builtin = rules.builtin(Table::Filter, hook);
            let new = rule().ctstate(CtStates::NEW).then(Target::Jump(reject));
            rules.append(Table::Filter, builtin, new);
        }
        for (states, target) in [
            (CtStates::INVALID, Target::Drop),
            (CtStates::RELATED | CtStates::ESTABLISHED, Target::Accept),
        ] {
            rules.append(Table::Filter, forward, rule().ctstate(states).then(target));
        }
        Proxy { rules, services, mark_masq, reject }
    }

    /// Adds a Service with endpoints; without any, its packets are rejected.
    pub(crate) fn service(
        &mut self,
        protocol: Protocol,
        vip: Ipv4Addr,
        port: u16,
        endpoints: &[(Ipv4Addr, u16)],
    ) {
        let to_vip = || rule().destination(host(vip)).dport(protocol, port);
        if endpoints.is_empty() {
            let told = to_vip().then(Target::Reject(RejectWith::DEFAULT));
            self.rules.append(Table::Filter, self.reject, told);
            return;
        }
        let rules = &mut self.rules;
        let chain = rules.chain(Table::Nat, format!("KUBE-SVC-{vip}:{port}"));
        rules.append(Table::Nat, self.services, to_vip().then(Target::Jump(chain)));
        for (i, (addr, target_port)) in endpoints.iter().enumerate() {
            let sep = rules.chain(Table::Nat, format!("SEP-{protocol}-{addr}-{target_port}"));
            let left = (endpoints.len() - i) as u32;
            let pick = if left > 1 { rule().random(Probability::one_of(left)) } else { rule() };
            rules.append(Table::Nat, chain, pick.then(Target::Jump(sep)));
            if rules.is_empty(Table::Nat, sep) {
                let hairpin = rule().source(host(*addr)).then(Target::Jump(self.mark_masq));
                rules.append(Table::Nat, sep, hairpin);
                let rewrite = rule().protocol(protocol).then(dnat(*addr, *target_port));
                rules.append(Table::Nat, sep, rewrite);
            }
        }
    }

    pub(crate) fn build(self) -> Ruleset {
        self.rules.build().expect("valid rules")
    }
}
