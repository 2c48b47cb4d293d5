//! What expressions are worth for a packet.

use std::borrow::Cow;
use std::net::IpAddr;

use crate::conntrack::{Direction, Entry, Status};
use crate::hash::{jhash, scale};
use crate::hook::Hook;
use crate::host::{Draws, Host, Route, RouteQuery, Socket};
use crate::nft::expr::{CtKey, Expr, Fib, FibResult, Field, Header, Meta, Payload};
use crate::nft::rule::{Comparison, Op, Right, Table};
use crate::nft::set::{Data, Range, SetUse};
use crate::nft::value::value_of_device;
use crate::packet::Packet;
use crate::rule::{AddrType, CtStates, FrameKind, Probability};
use crate::traverse::Context;
use crate::tuple::{Protocol, Tuple};

/// The rule breaks off: something that it reads is not there.
pub(super) struct Break;

/// Fields of a key, or of what a map holds.
#[derive(Clone, Copy)]
pub(super) struct Key {
    fields: [u128; Key::LEN_MAX],
    len: usize,
}

impl Key {
    /// The longest key.
    // Kernel: nf_tables.h, NFT_REG32_COUNT
    pub(super) const LEN_MAX: usize = 16;

    pub(super) const fn new() -> Key {
        Key { fields: [0; Key::LEN_MAX], len: 0 }
    }

    pub(super) fn as_slice(&self) -> &[u128] {
        &self.fields[..self.len]
    }

    fn push(&mut self, value: u128) -> Result<(), Break> {
        *self.fields.get_mut(self.len).ok_or(Break)? = value;
        self.len += 1;
        Ok(())
    }
}

/// A packet before a table's rules.
pub(super) struct Eval<'e, 'p, 'c, 'x, H, D> {
    pub(super) table: &'e Table,
    pub(super) packet: &'p mut Packet,
    pub(super) cx: &'x mut Context<'c, H, D>,
}

impl<'e, H: Host, D: Draws> Eval<'e, '_, '_, '_, H, D> {
    /// Returns the values of a concatenation.
    pub(super) fn key(&mut self, exprs: &'e [Expr]) -> Result<Key, Break> {
        let mut key = Key::new();
        for expr in exprs {
            if let Expr::Map { key: of, map } = expr {
                let found = self.map(of, map)?;
                found.iter().try_for_each(|(min, _)| key.push(*min))?;
            } else {
                key.push(self.value(expr)?)?;
            }
        }
        Ok(key)
    }

    /// Returns what a map of values holds.
    pub(super) fn map(
        &mut self,
        key: &'e [Expr],
        map: &'e SetUse,
    ) -> Result<Cow<'e, [Range]>, Break> {
        let key = self.key(key)?;
        match self.find(map, &key).ok_or(Break)? {
            Cow::Borrowed(Data::Values(values)) => Ok(Cow::Borrowed(values)),
            Cow::Owned(Data::Values(values)) => Ok(Cow::Owned(values.into_vec())),
            _ => Err(Break),
        }
    }

    /// Returns what a key maps to, if the set holds it.
    #[inline]
    pub(super) fn find(&mut self, used: &'e SetUse, key: &Key) -> Option<Cow<'e, Data>> {
        let set = self.table.set(used);
        if set.state.is_some() {
            let memory = &mut self.cx.memory.nft;
            return memory.find(self.table, set, key.as_slice(), self.cx.now).map(Cow::Owned);
        }
        let at = set.find(key.as_slice().iter().copied())?;
        Some(Cow::Borrowed(&set.elements()[at].data))
    }

    /// Returns the value of an expression.
    pub(super) fn value(&mut self, expr: &'e Expr) -> Result<u128, Break> {
        Ok(match expr {
            Expr::Payload(payload) => return self.payload(*payload),
            Expr::Meta(meta) => return self.meta(*meta),
            Expr::Ct(key, direction) => return self.ct(*key, *direction),
            Expr::Fib(fib) => self.fib(*fib),
            Expr::Numgen { inc: Some(state), modulus, offset } => {
                let turn = self.cx.memory.nft.turn(*state, *modulus);
                u128::from(turn.wrapping_add(*offset))
            }
            Expr::Numgen { inc: None, modulus, offset } => {
                let ordinal = *self.cx.ordinal;
                *self.cx.ordinal += 1;
                let number = self.cx.draws.below(ordinal, *modulus);
                u128::from(number.wrapping_add(*offset))
            }
            // Simplified: a jhash without a seed, for which the kernel draws one, has seed 0.
            Expr::Jhash { of, modulus, seed, offset } => {
                let hash = jhash(&self.bytes(of)?, seed.unwrap_or(0));
                u128::from(scale(hash, *modulus).wrapping_add(*offset))
            }
            Expr::Symhash { modulus, offset } => {
                let hash = symmetric_hash(&self.packet.tuple);
                u128::from(scale(hash, *modulus).wrapping_add(*offset))
            }
            Expr::Bits { of, and, xor } => self.value(of)? & and ^ xor,
            Expr::Shift { of, left } => {
                let value = self.value(of)?;
                let by = u32::from(left.unsigned_abs());
                let moved = if *left < 0 { value.checked_shr(by) } else { value.checked_shl(by) };
                moved.unwrap_or(0) & of.of_type().largest()
            }
            Expr::Map { key, map } => self.map(key, map)?.first().ok_or(Break)?.0,
            Expr::Literal(value, _) => *value,
        })
    }

    /// Returns values as registers hold them: in a concatenation each begins a new register.
    fn bytes(&mut self, exprs: &'e [Expr]) -> Result<Vec<u8>, Break> {
        let mut bytes = Vec::with_capacity(16);
        for expr in exprs {
            let (value, of) = (self.value(expr)?, expr.of_type());
            let width = (of.bits() as usize).div_ceil(8);
            if of.is_host_order() {
                bytes.extend_from_slice(&value.to_le_bytes()[..width]);
            } else {
                bytes.extend_from_slice(&value.to_be_bytes()[16 - width..]);
            }
            if exprs.len() > 1 {
                bytes.resize(bytes.len().next_multiple_of(4), 0);
            }
        }
        Ok(bytes)
    }

    /// Returns whether a comparison holds.
    #[inline]
    pub(super) fn holds(&mut self, comparison: &'e Comparison) -> Result<bool, Break> {
        let Comparison { left, op, right } = comparison;
        if let Some(holds) = self.random_holds(comparison) {
            return Ok(holds);
        }
        match right {
            Right::Set(set) => {
                let key = self.key(left)?;
                Ok(self.find(set, &key).is_some() == (*op != Op::Ne))
            }
            Right::Values(wanted) => {
                let key = self.key(left)?;
                let lies = || {
                    let pairs = wanted.iter().zip(key.as_slice());
                    pairs.into_iter().all(|((min, max), value)| (min..=max).contains(&value))
                };
                let first = key.as_slice().first().zip(wanted.first());
                let (value, (wanted, _)) = first.ok_or(Break)?;
                Ok(match op {
                    Op::Eq => lies(),
                    Op::Ne => !lies(),
                    Op::Lt => value < wanted,
                    Op::Le => value <= wanted,
                    Op::Gt => value > wanted,
                    Op::Ge => value >= wanted,
                    Op::Any => value & wanted != 0,
                    Op::None => value & wanted == 0,
                })
            }
        }
    }

    /// Decides `meta random & 2147483647 < k` by its probability.
    fn random_holds(&mut self, comparison: &'e Comparison) -> Option<bool> {
        let (k, invert) = random_share(comparison)?;
        let ordinal = *self.cx.ordinal;
        *self.cx.ordinal += 1;
        Some(self.cx.draws.chance(ordinal, Probability::from_k(k)?) != invert)
    }

    fn payload(&self, Payload { header, field }: Payload) -> Result<u128, Break> {
        let packet = &*self.packet;
        let tuple = &packet.tuple;
        let ipv4 = tuple.src().is_ipv4();
        let there = match header {
            Header::Ether => true,
            Header::Ip => ipv4,
            Header::Ip6 => !ipv4,
            // Kernel: nft_payload.c, nft_payload_eval: later fragments have no transport header
            _ if packet.is_later_fragment() => false,
            Header::Tcp => tuple.protocol == Protocol::TCP,
            Header::Udp => tuple.protocol == Protocol::UDP,
            Header::Udplite => tuple.protocol == Protocol::UDPLITE,
            Header::Sctp => tuple.protocol == Protocol::SCTP,
            Header::Dccp => tuple.protocol == Protocol::DCCP,
            Header::Icmp => tuple.protocol == Protocol::ICMP,
            Header::Icmpv6 => tuple.protocol == Protocol::ICMPV6,
            Header::Th => true,
        };
        if !there {
            return Err(Break);
        }
        let ports = tuple.protocol.has_ports();
        let ip_header = if ipv4 { 20 } else { 40 };
        Ok(match field {
            Field::Saddr if header == Header::Ether => {
                let source = self.cx.ingress.and_then(|ingress| ingress.source).ok_or(Break)?;
                source.iter().fold(0, |value, byte| value << 8 | u128::from(*byte))
            }
            Field::Saddr => address(tuple.src()),
            Field::Daddr => address(tuple.dst()),
            Field::Protocol => u128::from(tuple.protocol.0),
            Field::Ttl => u128::from(packet.ttl),
            Field::Length if header == Header::Ip => u128::from(packet.len),
            Field::Length => u128::from(packet.len.saturating_sub(ip_header)),
            Field::Dscp => u128::from(packet.tos >> 2),
            Field::Ecn => u128::from(packet.tos & 3),
            Field::FragOff => packet.fragment.map_or(0, |fragment| {
                u128::from(fragment.offset / 8) | u128::from(fragment.more) << 13
            }),
            Field::Version => {
                if ipv4 {
                    4
                } else {
                    6
                }
            }
            Field::Hdrlength => 5,
            // Simplified: where an ICMP header has its checksum, th dport reads 0.
            Field::Sport if ports => u128::from(tuple.src_part),
            Field::Dport if ports => u128::from(tuple.dst_part),
            Field::Sport if tuple.protocol.is_icmp() => u128::from(tuple.dst_part),
            Field::Sport | Field::Dport => 0,
            Field::Flags => u128::from(packet.tcp_flags().ok_or(Break)?.bits()),
            Field::Kind => u128::from(tuple.icmp_kind().0),
            Field::Code => u128::from(tuple.icmp_kind().1),
            Field::Id => u128::from(tuple.src_part),
        })
    }

    fn meta(&mut self, meta: Meta) -> Result<u128, Break> {
        let packet = &*self.packet;
        let ipv4 = packet.tuple.src().is_ipv4();
        // A hook without a device reads as an empty name and index 0.
        let device = |dev: Option<crate::device::DeviceId>| {
            dev.map_or(0, |dev| value_of_device(self.cx.host.device_name(dev)))
        };
        Ok(match meta {
            Meta::Length => u128::from(packet.len),
            Meta::Nfproto => {
                if ipv4 {
                    2
                } else {
                    10
                }
            }
            Meta::L4proto => u128::from(packet.tuple.protocol.0),
            Meta::Protocol => {
                if ipv4 {
                    0x0800
                } else {
                    0x86dd
                }
            }
            Meta::Mark => u128::from(packet.mark),
            Meta::Iif | Meta::Iifname => device(self.cx.in_dev),
            Meta::Oif | Meta::Oifname => device(self.cx.out_dev),
            Meta::Skuid => u128::from(self.owner()?.uid),
            Meta::Skgid => u128::from(self.owner()?.gid),
            Meta::Pkttype => match self.cx.ingress.map(|ingress| ingress.kind) {
                None | Some(FrameKind::Unicast) => 0,
                Some(FrameKind::Broadcast) => 1,
                Some(FrameKind::Multicast) => 2,
            },
            Meta::Random => {
                let ordinal = *self.cx.ordinal;
                *self.cx.ordinal += 1;
                u128::from(self.cx.draws.draw(ordinal) >> 32)
            }
        })
    }

    /// Returns the socket of somebody.
    // Kernel: nft_meta.c, nft_meta_get_eval_skugid: the kernel's own have no file
    fn owner(&self) -> Result<Socket, Break> {
        self.cx.socket.filter(|socket| *socket != Socket::KERNEL).ok_or(Break)
    }

    // Kernel: nft_ct.c, nft_ct_get_eval
    fn ct(&self, key: CtKey, wanted: Option<Direction>) -> Result<u128, Break> {
        if key == CtKey::State {
            return Ok(state_bit(self.cx.ct_state));
        }
        let (entry, direction) = self.cx.ct.entry_and_direction().ok_or(Break)?;
        let tuple = entry.tuple(wanted.unwrap_or(Direction::Original));
        let of_family = |address: IpAddr, ipv4: bool| {
            if address.is_ipv4() == ipv4 { Ok(self::address(address)) } else { Err(Break) }
        };
        Ok(match key {
            CtKey::State => 0,
            CtKey::Direction => direction as u128,
            CtKey::Status => status_bits(entry),
            CtKey::Mark => u128::from(entry.mark()),
            // Kernel: nf_conntrack.h, nf_ct_expires: what is not confirmed has no time left
            CtKey::Expiration if !entry.status().contains(Status::CONFIRMED) => 0,
            CtKey::Expiration => entry.deadline().saturating_since(self.cx.now).as_millis(),
            CtKey::L3proto => {
                if tuple.src().is_ipv4() {
                    2
                } else {
                    10
                }
            }
            CtKey::Protocol => u128::from(tuple.protocol.0),
            CtKey::IpSaddr => of_family(tuple.src(), true)?,
            CtKey::IpDaddr => of_family(tuple.dst(), true)?,
            CtKey::Ip6Saddr => of_family(tuple.src(), false)?,
            CtKey::Ip6Daddr => of_family(tuple.dst(), false)?,
            CtKey::ProtoSrc => u128::from(tuple.src_part),
            CtKey::ProtoDst => u128::from(tuple.dst_part),
            CtKey::Zone => u128::from(entry.zone(wanted.unwrap_or(Direction::Original))),
        })
    }

    // Kernel: nft_fib_ipv4.c, nft_fib4_eval and nft_fib4_eval_type
    fn fib(&self, fib: Fib) -> u128 {
        let tuple = &self.packet.tuple;
        let (address, other) =
            if fib.source { (tuple.src(), tuple.dst()) } else { (tuple.dst(), tuple.src()) };
        let on = match (fib.iif, fib.oif) {
            (true, _) => self.cx.in_dev,
            (_, true) => self.cx.out_dev,
            _ => None,
        };
        let mark = if fib.mark { self.packet.mark } else { 0 };
        let query = RouteQuery { dst: address, src: other, mark, in_dev: None };
        if fib.result == FibResult::Type {
            let kind = self.cx.host.addr_type(address, on);
            return fib_type(match kind {
                AddrType::Unicast if !self.packet.tuple.is_ipv4() => {
                    route_type(self.cx.host.route(query))
                }
                kind => kind,
            });
        }
        // Kernel: nft_fib.h, nft_fib_can_skip: what comes by the loopback device comes rightly.
        let looped = matches!(self.cx.hook, Hook::Prerouting | Hook::Input)
            && self.cx.in_dev == Some(self.cx.host.loopback());
        let dev = match self.cx.host.route(query) {
            _ if looped => self.cx.host.loopback(),
            Route::Forward { dev, .. } | Route::Bridged { dev, .. } => dev,
            _ => return 0,
        };
        if !looped && (fib.iif || fib.oif) && on != Some(dev) {
            return 0;
        }
        match fib.result {
            FibResult::Exists => 1,
            _ => value_of_device(self.cx.host.device_name(dev)),
        }
    }
}

/// Returns k and whether the share is the complement, for a comparison that asks whether 31
/// random bits are below k.
fn random_share(comparison: &Comparison) -> Option<(u32, bool)> {
    let [Expr::Bits { of, and: 0x7fff_ffff, xor: 0 }] = comparison.left.as_slice() else {
        return None;
    };
    let Right::Values(values) = &comparison.right else {
        return None;
    };
    let [(value, _)] = values.as_slice() else {
        return None;
    };
    if **of != Expr::Meta(Meta::Random) {
        return None;
    }
    let k = |value: u128| value.min(1 << 31) as u32;
    match comparison.op {
        Op::Lt => Some((k(*value), false)),
        Op::Le => Some((k(value.saturating_add(1)), false)),
        Op::Ge => Some((k(*value), true)),
        Op::Gt => Some((k(value.saturating_add(1)), true)),
        _ => None,
    }
}

pub(super) fn address(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => u128::from(address.to_bits()),
        IpAddr::V6(address) => address.to_bits(),
    }
}

/// Returns the one bit of a packet's state.
// Kernel: nft_ct.c, NF_CT_STATE_BIT
fn state_bit(states: CtStates) -> u128 {
    let bits = [
        (CtStates::INVALID, 1),
        (CtStates::ESTABLISHED, 2),
        (CtStates::RELATED, 4),
        (CtStates::NEW, 8),
        (CtStates::UNTRACKED, 64),
    ];
    bits.into_iter().filter(|(state, _)| state.intersects(states)).map(|(_, bit)| bit).sum()
}

// Kernel: nf_conntrack_common.h, enum ip_conntrack_status
fn status_bits(entry: &Entry) -> u128 {
    let bits = [
        (Status::SEEN_REPLY, 1 << 1),
        (Status::ASSURED, 1 << 2),
        (Status::CONFIRMED, 1 << 3),
        (Status::SRC_NAT, 1 << 4),
        (Status::DST_NAT, 1 << 5),
        (Status::SRC_NAT_DONE, 1 << 7),
        (Status::DST_NAT_DONE, 1 << 8),
    ];
    bits.into_iter().filter(|(fact, _)| entry.status().contains(*fact)).map(|(_, bit)| bit).sum()
}

/// Returns the type of an IPv6 address that is not this host's, by the route to it.
// Kernel: nft_fib_ipv6.c, __nft_fib6_eval_type; IPv4 looks into the local table only
const fn route_type(route: Route) -> AddrType {
    match route {
        Route::Unreachable | Route::NoRoute => AddrType::Unreachable,
        Route::Blackhole => AddrType::Blackhole,
        Route::Prohibited => AddrType::Prohibit,
        _ => AddrType::Unicast,
    }
}

// Kernel: uapi/linux/rtnetlink.h, RTN_UNSPEC and those that follow
const fn fib_type(kind: AddrType) -> u128 {
    kind as u128
}

/// Returns a hash that is the same for both directions of a flow.
// Simplified: the kernel hashes under a key that it draws at boot (symhash); here it is fixed.
fn symmetric_hash(tuple: &Tuple) -> u32 {
    let (a, b) = ((tuple.src(), tuple.src_part), (tuple.dst(), tuple.dst_part));
    let (low, high) = if a <= b { (a, b) } else { (b, a) };
    let mut mix = crate::hash::Mix::new();
    mix.address(low.0);
    mix.address(high.0);
    mix.word(u64::from(low.1) << 32 | u64::from(high.1) << 8 | u64::from(tuple.protocol.0));
    (mix.finish() >> 32) as u32
}

/// Returns the address that a value of a type is.
pub(super) fn to_address(value: u128, ipv4: bool) -> IpAddr {
    if ipv4 {
        IpAddr::V4(std::net::Ipv4Addr::from_bits(value as u32))
    } else {
        IpAddr::V6(std::net::Ipv6Addr::from_bits(value))
    }
}
