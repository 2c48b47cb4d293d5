//! Parts that rules are made of.

use std::sync::Arc;

use netfilter_model::Prefix;
use netfilter_model::nft::{
    Comparison, CtKey, Data, Element, Expr, Fib, FibResult, Field, Header, Meta, NatKind,
    NatStatement, NatValue, Op, Payload, Range, Right, Rule, Set, SetData, SetUse, Statement, Type,
    Verdict,
};
use netfilter_model::rule::Origin;
use netfilter_model::tuple::{Family, Protocol};
use std::net::IpAddr;

use crate::proxy::state::LocalDetector;

/// Words that depend on the family of addresses.
#[derive(Clone, Copy)]
pub(super) struct Words(pub(super) Family);

/// `ct state new`.
const NEW: u128 = 8;
/// `fib … type local`.
const LOCAL: u128 = 2;
/// `ct status dnat`.
const DNATED: u128 = 32;

pub(super) fn value(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => u128::from(address.to_bits()),
        IpAddr::V6(address) => address.to_bits(),
    }
}

/// Returns the first and the last address.
pub(super) fn range(prefix: &Prefix) -> Range {
    let first = value(prefix.address());
    let free = if prefix.address().is_ipv4() { 32 } else { 128 } - u32::from(prefix.len());
    let span = u128::MAX.checked_shr(128 - free).unwrap_or(0);
    (first, first | span)
}

/// Returns ranges as nft keeps them in a set of its own: in order, joined where they touch.
///
/// nft: intervals.c, setelem_automerge
pub(super) fn joined(mut ranges: Vec<Range>) -> Vec<Range> {
    ranges.sort_unstable();
    let mut out: Vec<Range> = Vec::with_capacity(ranges.len());
    for (first, last) in ranges {
        match out.last_mut() {
            Some(before) if first <= before.1.saturating_add(1) => before.1 = before.1.max(last),
            _ => out.push((first, last)),
        }
    }
    out
}

pub(super) const fn service_origin(owner: u32) -> Origin {
    Origin { owner, item: u32::MAX }
}

pub(super) const fn fixed_origin() -> Origin {
    Origin { owner: u32::MAX, item: 0 }
}

pub(super) fn rule(origin: Origin, statements: Vec<Statement>) -> Rule {
    Rule { statements, origin, ..Rule::default() }
}

pub(super) fn commented(comment: &str, rule: Rule) -> Rule {
    Rule { comment: Some(comment.into()), ..rule }
}

pub(super) fn jump(to: u32) -> Statement {
    Statement::Verdict(Verdict::Jump(to))
}

pub(super) fn goto(to: u32) -> Statement {
    Statement::Verdict(Verdict::Goto(to))
}

pub(super) fn l4proto() -> Expr {
    Expr::Meta(Meta::L4proto)
}

pub(super) fn th_dport() -> Expr {
    Expr::Payload(Payload { header: Header::Th, field: Field::Dport })
}

pub(super) fn mark() -> Expr {
    Expr::Meta(Meta::Mark)
}

pub(super) fn state_new() -> Statement {
    Statement::Match(Comparison::one(Expr::Ct(CtKey::State, None), Op::Any, NEW))
}

pub(super) fn status_dnat() -> Statement {
    Statement::Match(Comparison::one(Expr::Ct(CtKey::Status, None), Op::Any, DNATED))
}

/// Returns the comparison of a bit of the mark with zero.
pub(super) fn mark_bit(bit: u32, op: Op) -> Statement {
    let of = Box::new(mark());
    Statement::Match(Comparison::one(Expr::Bits { of, and: u128::from(bit), xor: 0 }, op, 0))
}

/// Returns the setting of a bit of the mark.
pub(super) fn or_mark(bit: u32) -> Statement {
    let (and, xor) = (u128::from(!bit), u128::from(bit));
    Statement::SetMark(Expr::Bits { of: Box::new(mark()), and, xor })
}

/// Returns the flipping of a bit of the mark.
pub(super) fn xor_mark(bit: u32) -> Statement {
    let (and, xor) = (u128::from(u32::MAX), u128::from(bit));
    Statement::SetMark(Expr::Bits { of: Box::new(mark()), and, xor })
}

pub(super) fn fib_local(source: bool) -> Statement {
    let fib = Fib { source, mark: false, iif: false, oif: false, result: FibResult::Type };
    Statement::Match(Comparison::one(Expr::Fib(fib), Op::Eq, LOCAL))
}

pub(super) fn named(set: u32) -> SetUse {
    SetUse::Named { index: set, data: Box::default() }
}

pub(super) fn vmap(key: Vec<Expr>, map: u32) -> Statement {
    Statement::Vmap { key, map: named(map) }
}

pub(super) fn in_set(left: Vec<Expr>, set: u32) -> Statement {
    Statement::Match(Comparison { left, op: Op::Eq, right: Right::Set(named(set)) })
}

pub(super) fn l4proto_is(protocol: Protocol) -> Statement {
    Statement::Match(Comparison::one(l4proto(), Op::Eq, u128::from(protocol.0)))
}

/// Returns the rewriting of the source to the output device's address.
pub(super) fn masquerade() -> Statement {
    let nat = NatStatement { fully_random: true, ..nat(NatKind::Masquerade, None, None) };
    Statement::Nat(nat)
}

/// Returns the rewriting of the destination to one endpoint.
pub(super) fn dnat(address: IpAddr, port: u16) -> Statement {
    let (address, port) = (value(address), u128::from(port));
    let range = |value| Some(NatValue::Range(value, value));
    Statement::Nat(nat(NatKind::Dnat, range(address), range(port)))
}

fn nat(kind: NatKind, address: Option<NatValue>, port: Option<NatValue>) -> NatStatement {
    NatStatement {
        kind,
        family: None,
        address,
        port,
        random: false,
        fully_random: false,
        persistent: false,
    }
}

fn numgen(modulus: usize) -> Expr {
    Expr::Numgen { inc: None, modulus: u32::try_from(modulus).unwrap_or(u32::MAX), offset: 0 }
}

fn one_of(data: SetData, values: impl Iterator<Item = Data>) -> SetUse {
    let mut set = Set::new("", [Type::HostInteger(32)], data);
    set.extend((0..).zip(values).map(|(at, data)| Element::of([at]).to(data)));
    // Numbers do not overlap.
    let overlaps = set.finish();
    debug_assert!(overlaps.is_empty());
    SetUse::Anonymous(Arc::new(set))
}

/// Returns the going to one of these chains, each as likely as the others.
pub(super) fn goto_one_of(chains: &[u32]) -> Statement {
    let values = chains.iter().map(|chain| Data::Verdict(Verdict::Goto(*chain)));
    Statement::Vmap { key: vec![numgen(chains.len())], map: one_of(SetData::Verdict, values) }
}

impl Words {
    pub(super) fn of_address(self) -> Type {
        match self.0 {
            Family::V4 => Type::Ipv4Addr,
            Family::V6 => Type::Ipv6Addr,
        }
    }

    fn header(self) -> Header {
        match self.0 {
            Family::V4 => Header::Ip,
            Family::V6 => Header::Ip6,
        }
    }

    pub(super) fn family(self) -> netfilter_model::nft::Family {
        match self.0 {
            Family::V4 => netfilter_model::nft::Family::Ip,
            Family::V6 => netfilter_model::nft::Family::Ip6,
        }
    }

    pub(super) fn saddr(self) -> Expr {
        Expr::Payload(Payload { header: self.header(), field: Field::Saddr })
    }

    pub(super) fn daddr(self) -> Expr {
        Expr::Payload(Payload { header: self.header(), field: Field::Daddr })
    }

    /// Returns what service ports are found by: address, protocol and port.
    pub(super) fn service_key(self) -> Vec<Expr> {
        vec![self.daddr(), l4proto(), th_dport()]
    }

    pub(super) fn saddr_is(self, address: IpAddr) -> Statement {
        Statement::Match(Comparison::one(self.saddr(), Op::Eq, value(address)))
    }

    /// Returns the match of packets to the port of a service.
    pub(super) fn to(self, address: IpAddr, protocol: Protocol, port: u16) -> [Statement; 2] {
        let header = match protocol {
            Protocol::UDP => Header::Udp,
            Protocol::SCTP => Header::Sctp,
            _ => Header::Tcp,
        };
        let dport = Expr::Payload(Payload { header, field: Field::Dport });
        [
            Statement::Match(Comparison::one(self.daddr(), Op::Eq, value(address))),
            Statement::Match(Comparison::one(dport, Op::Eq, u128::from(port))),
        ]
    }

    /// Returns the match of packets to anything but the loopback addresses.
    pub(super) fn not_to_loopback(self) -> Statement {
        let range = match self.0 {
            Family::V4 => (0x7f00_0000, 0x7fff_ffff),
            Family::V6 => (1, 1),
        };
        compared(self.daddr(), Op::Ne, range)
    }

    /// Returns the dropping of packets from elsewhere than these ranges. Of a set of one, nft
    /// makes a comparison.
    pub(super) fn drop_others(self, ranges: Vec<Range>) -> Vec<Statement> {
        if let [range] = ranges[..] {
            return vec![compared(self.saddr(), Op::Ne, range), Statement::Verdict(Verdict::Drop)];
        }
        let mut set = Set::new("", [self.of_address()], SetData::None);
        let ranges = joined(ranges);
        set.interval = ranges.iter().any(|(first, last)| first != last);
        set.extend(ranges.into_iter().map(|range| Element::ranges([range])));
        // They are disjoint.
        let overlaps = set.finish();
        debug_assert!(overlaps.is_empty());
        let right = Right::Set(SetUse::Anonymous(Arc::new(set)));
        let comparison = Comparison { left: vec![self.saddr()], op: Op::Ne, right };
        vec![Statement::Match(comparison), Statement::Verdict(Verdict::Drop)]
    }

    /// Returns the match of packets of local Pods, or with [`Op::Ne`] of all others.
    pub(super) fn local(self, detector: &LocalDetector, op: Op, by_name: bool) -> Statement {
        match detector {
            LocalDetector::Source(prefix) => compared(self.saddr(), op, range(prefix)),
            LocalDetector::Device(device) => {
                let (name, all) = match device.strip_suffix('+') {
                    Some(prefix) => (prefix, true),
                    None => (&**device, false),
                };
                // A name that is none matches no device.
                let first = Type::Ifname.parse(name).unwrap_or_default();
                let free = if all { u128::MAX.checked_shr(8 * name.len() as u32) } else { None };
                let meta = if by_name { Meta::Iifname } else { Meta::Iif };
                compared(Expr::Meta(meta), op, (first, first | free.unwrap_or(0)))
            }
        }
    }

    /// Returns the rewriting of the destination to one of these, each as likely as the others.
    pub(super) fn dnat_to_one_of(self, endpoints: &[(IpAddr, u16)]) -> Statement {
        let types = Box::new([self.of_address(), Type::InetService]);
        let data = SetData::Values { types, typeof_data: None, interval: false };
        let values = endpoints.iter().map(|(address, port)| {
            let (address, port) = (value(*address), u128::from(*port));
            Data::Values(Box::new([(address, address), (port, port)]))
        });
        let map = one_of(data, values);
        let address = NatValue::Expr(Expr::Map { key: vec![numgen(endpoints.len())], map });
        let nat =
            NatStatement { family: Some(self.family()), ..nat(NatKind::Dnat, Some(address), None) };
        Statement::Nat(nat)
    }
}

fn compared(left: Expr, op: Op, range: Range) -> Statement {
    Statement::Match(Comparison { left: vec![left], op, right: Right::Values(vec![range]) })
}
