//! Conditions.

use std::net::IpAddr;

use super::{Converted, Foreign};
use crate::conntrack::Direction;
use crate::device::DevicePattern;
use crate::nft::value::DeviceText;
use crate::nft::{
    Comparison, CtKey, Expr, Fib, FibResult, Field, Header, Limit, Meta, Op, Payload, Range, Right,
    SetUse,
};
use crate::packet::TcpFlags;
use crate::prefix::Prefix;
use crate::rule::{
    AddrType, AddrTypeMatch, AddrTypes, ConntrackMatch, CtAddress, CtStates, CtStatuses,
    DeviceMatch, FlagsMatch, FrameKind, Invertible, IprangeMatch, LimitIface, LimitMatch, Match,
    Multiport, MultiportSide, OwnerMatch, PortMatch, Probability, SctpMatch, TtlCompare,
};
use crate::tuple::{Family as Ip, Protocol};

const STATUS_LOST: &str = "nft shows of --ctstate with SNAT or DNAT neither the other states nor a \
                           negation: taken for unsupported";
const KUBELET: &str = "nft shows only a part of this match: read as kubelet's rule against \
                       packets to 127.0.0.0/8, ! --ctstate RELATED,ESTABLISHED,DNAT";

impl Converted {
    /// Returns the condition that iptables has for a comparison; `None` if it went into another.
    pub(super) fn convert(
        &mut self,
        comparison: &Comparison,
        chain: &str,
    ) -> Result<Option<Match>, Foreign> {
        let Comparison { left, op, right } = comparison;
        let invert = match op {
            Op::Eq | Op::Any => false,
            Op::Ne | Op::None => true,
            Op::Lt | Op::Le | Op::Gt | Op::Ge => {
                return self.ordered(comparison).map(Some);
            }
        };
        let [left] = left.as_slice() else {
            let text = "ports on either side";
            return Ok(Some(self.lossy("multiport", text, "--ports is not read from nft's list")));
        };
        let ranges: Vec<Range> = match right {
            Right::Values(values) => values.clone(),
            Right::Set(SetUse::Anonymous(set)) => {
                let mut ranges: Vec<Range> =
                    set.elements().iter().filter_map(|e| e.key.first().copied()).collect();
                ranges.sort_unstable();
                ranges
            }
            Right::Set(SetUse::Named { .. }) => return Err(Foreign),
        };
        let is_set = matches!(right, Right::Set(_));
        let (Some(first), 1) = (ranges.first().copied(), ranges.len()) else {
            return self.several(left, &ranges, invert).map(Some);
        };
        match left {
            Expr::Payload(_) | Expr::Fib(_) if is_set => {
                self.several(left, &ranges, invert).map(Some)
            }
            Expr::Payload(payload) => self.payload(*payload, first, invert),
            Expr::Meta(meta) => self.meta(*meta, first, invert).map(Some),
            Expr::Ct(key, direction) => self.ct(*key, *direction, first, invert, chain),
            Expr::Fib(fib) => fib_match(*fib, &[first.0], invert).map(Some),
            Expr::Bits { of, and, xor: 0 } => self.masked(of, *and, first.0, invert, *op),
            Expr::Numgen { inc: Some(_), modulus, offset: 0 } => {
                let packet = u32::try_from(first.0).map_err(|_| Foreign)?;
                Ok(Some(Match::Nth { every: *modulus, packet, invert }))
            }
            _ => Err(Foreign),
        }
    }

    /// Less, greater: random shares, hops.
    fn ordered(&mut self, comparison: &Comparison) -> Result<Match, Foreign> {
        let Right::Values(values) = &comparison.right else { return Err(Foreign) };
        let ([left], [(value, _)]) = (comparison.left.as_slice(), values.as_slice()) else {
            return Err(Foreign);
        };
        match left {
            Expr::Bits { of, and: 0x7fff_ffff, xor: 0 } if **of == Expr::Meta(Meta::Random) => {
                let k = u32::try_from(*value).map_err(|_| Foreign)?;
                let probability = Probability::from_k(k).ok_or(Foreign)?;
                match comparison.op {
                    Op::Lt => Ok(Match::Random { probability, invert: false }),
                    Op::Ge => Ok(Match::Random { probability, invert: true }),
                    _ => Err(Foreign),
                }
            }
            Expr::Payload(Payload { field: Field::Ttl, .. }) => {
                let compare = match comparison.op {
                    Op::Lt => TtlCompare::Lt,
                    Op::Gt => TtlCompare::Gt,
                    _ => return Err(Foreign),
                };
                Ok(Match::Ttl { compare, value: *value as u8 })
            }
            _ => Err(Foreign),
        }
    }

    /// Sets: ports of multiport, types of addrtype.
    fn several(&mut self, left: &Expr, ranges: &[Range], invert: bool) -> Result<Match, Foreign> {
        match left {
            Expr::Payload(Payload { header, field: field @ (Field::Sport | Field::Dport) }) => {
                if let Some(protocol) = protocol_of(*header) {
                    self.imply(protocol);
                }
                let side = if *field == Field::Sport {
                    MultiportSide::Source
                } else {
                    MultiportSide::Destination
                };
                let ports = ranges.iter().map(|(min, max)| (*min as u16, *max as u16)).collect();
                Ok(Match::Multiport(Box::new(Multiport { side, ports, invert })))
            }
            Expr::Fib(fib) => {
                let kinds: Vec<u128> = ranges.iter().map(|range| range.0).collect();
                fib_match(*fib, &kinds, invert)
            }
            _ => Err(Foreign),
        }
    }

    fn payload(
        &mut self,
        payload: Payload,
        range: Range,
        invert: bool,
    ) -> Result<Option<Match>, Foreign> {
        let Payload { header, field } = payload;
        let ipv4 = self.family == Ip::V4;
        match (header, field) {
            (Header::Ip | Header::Ip6, Field::Saddr | Field::Daddr) => {
                let source = field == Field::Saddr;
                let prefix = prefix_of(range, ipv4);
                Ok(Some(match (prefix, source) {
                    (Some(prefix), true) => Match::Source { prefix, invert },
                    (Some(prefix), false) => Match::Destination { prefix, invert },
                    (None, source) => {
                        let value = (address(range.0, ipv4), address(range.1, ipv4));
                        let side = Some(Invertible { value, invert });
                        let (src, dst) = if source { (side, None) } else { (None, side) };
                        Match::Iprange(Box::new(IprangeMatch { src, dst }))
                    }
                }))
            }
            (Header::Ip | Header::Ip6, Field::Protocol) => {
                let protocol = Protocol(range.0 as u8);
                // Behind -p icmp this is `--icmp-type any`.
                if self.protocol() == Some(protocol) && protocol.is_icmp() {
                    return Ok(Some(Match::Icmp { kind: 255, code: None, invert }));
                }
                Ok(Some(Match::Protocol { protocol, invert }))
            }
            (Header::Ip | Header::Ip6, Field::Ttl) => {
                let compare = if invert { TtlCompare::Ne } else { TtlCompare::Eq };
                Ok(Some(Match::Ttl { compare, value: range.0 as u8 }))
            }
            (Header::Ip | Header::Ip6, Field::Dscp) => {
                Ok(Some(Match::Tos { value: (range.0 as u8) << 2, mask: 0xfc, dscp: true, invert }))
            }
            (Header::Tcp | Header::Udp | Header::Sctp, Field::Sport | Field::Dport) => {
                let protocol = protocol_of(header).ok_or(Foreign)?;
                self.imply(protocol);
                let port = PortMatch { min: range.0 as u16, max: range.1 as u16, invert };
                Ok(self.port(protocol, field == Field::Sport, port))
            }
            (Header::Icmp | Header::Icmpv6, Field::Kind) => {
                self.imply(if ipv4 { Protocol::ICMP } else { Protocol::ICMPV6 });
                Ok(Some(Match::Icmp { kind: range.0 as u8, code: None, invert }))
            }
            (Header::Icmp | Header::Icmpv6, Field::Code) => match self.rule.matches().last() {
                Some(Match::Icmp { kind, code: None, invert: false }) => {
                    let (kind, code) = (*kind, Some(range.0 as u8));
                    self.replace_last(Match::Icmp { kind, code, invert });
                    Ok(None)
                }
                _ => Err(Foreign),
            },
            (Header::Ether, Field::Saddr) => {
                let bytes = range.0.to_be_bytes();
                let mut address = [0; 6];
                address.copy_from_slice(&bytes[10..]);
                Ok(Some(Match::Mac { address, invert }))
            }
            _ => Err(Foreign),
        }
    }

    /// Returns a match of a port, or puts it into the one before.
    fn port(&mut self, protocol: Protocol, source: bool, port: PortMatch) -> Option<Match> {
        let (sport, dport) = if source { (Some(port), None) } else { (None, Some(port)) };
        let merged = match self.rule.matches().last() {
            Some(Match::Tcp { sport: old, dport: other, flags, option })
                if protocol == Protocol::TCP
                    && (source && old.is_none() || !source && other.is_none()) =>
            {
                let (flags, option) = (*flags, *option);
                Match::Tcp { sport: sport.or(*old), dport: dport.or(*other), flags, option }
            }
            Some(Match::Udp { sport: old, dport: other })
                if protocol == Protocol::UDP
                    && (source && old.is_none() || !source && other.is_none()) =>
            {
                Match::Udp { sport: sport.or(*old), dport: dport.or(*other) }
            }
            _ => {
                return Some(match protocol {
                    Protocol::TCP => Match::Tcp { sport, dport, flags: None, option: None },
                    Protocol::UDP => Match::Udp { sport, dport },
                    _ => Match::Sctp(Box::new(SctpMatch { sport, dport, chunks: None })),
                });
            }
        };
        self.replace_last(merged);
        None
    }

    fn meta(&mut self, meta: Meta, range: Range, invert: bool) -> Result<Match, Foreign> {
        Ok(match meta {
            Meta::L4proto => Match::Protocol { protocol: Protocol(range.0 as u8), invert },
            Meta::Iifname | Meta::Oifname => {
                let name = DeviceText(range.0).to_string();
                let wildcard = if range.0 == range.1 { "" } else { "+" };
                let pattern = DevicePattern::parse(&format!("{name}{wildcard}"));
                let pattern = pattern.map_err(|_| Foreign)?;
                let device = Box::new(DeviceMatch { pattern, invert });
                if meta == Meta::Iifname {
                    Match::InDevice(device)
                } else {
                    Match::OutDevice(device)
                }
            }
            Meta::Mark if range.0 == range.1 => {
                Match::Mark { value: range.0 as u32, mask: u32::MAX, invert }
            }
            Meta::Length => Match::Length {
                min: u16::try_from(range.0).map_err(|_| Foreign)?,
                max: u16::try_from(range.1).map_err(|_| Foreign)?,
                invert,
            },
            Meta::Pkttype => {
                let kind = match range.0 {
                    0 => FrameKind::Unicast,
                    1 => FrameKind::Broadcast,
                    2 => FrameKind::Multicast,
                    _ => return Err(Foreign),
                };
                Match::Pkttype { kind, invert }
            }
            Meta::Skuid | Meta::Skgid => {
                let value = (range.0 as u32, range.1 as u32);
                let ids = Some(Invertible { value, invert });
                let (uid, gid) = if meta == Meta::Skuid { (ids, None) } else { (None, ids) };
                Match::Owner(Box::new(OwnerMatch {
                    uid,
                    gid,
                    socket_exists: None,
                    suppl_groups: false,
                }))
            }
            _ => return Err(Foreign),
        })
    }

    fn ct(
        &mut self,
        key: CtKey,
        direction: Option<Direction>,
        range: Range,
        invert: bool,
        chain: &str,
    ) -> Result<Option<Match>, Foreign> {
        let ipv4 = self.family == Ip::V4;
        let mut all = match self.rule.matches().last() {
            Some(Match::Conntrack(before)) => (**before).clone(),
            _ => ConntrackMatch::default(),
        };
        let merges = matches!(self.rule.matches().last(), Some(Match::Conntrack(_)));
        match key {
            CtKey::State => return Ok(Some(Match::CtState { states: states(range.0), invert })),
            CtKey::Mark => {
                return Ok(Some(Match::Connmark { value: range.0 as u32, mask: u32::MAX, invert }));
            }
            CtKey::Status if range.0 & 0x30 != 0 => return Ok(Some(self.status_lost(chain))),
            CtKey::Status => {
                all.status = Some(Invertible { value: CtStatuses(range.0 as u8), invert });
            }
            CtKey::Direction => {
                let reply = (range.0 == 1) != invert;
                all.direction = Some(if reply { Direction::Reply } else { Direction::Original });
            }
            CtKey::Protocol => {
                all.protocol = Some(Invertible { value: Protocol(range.0 as u8), invert });
            }
            CtKey::Expiration => {
                let value = ((range.0 / 1000) as u32, (range.1 / 1000) as u32);
                all.expire = Some(Invertible { value, invert });
            }
            CtKey::IpSaddr | CtKey::IpDaddr | CtKey::Ip6Saddr | CtKey::Ip6Daddr => {
                let prefix = prefix_of(range, ipv4).ok_or(Foreign)?;
                let value = CtAddress { address: prefix.address(), len: prefix.len() };
                let wanted = Some(Invertible { value, invert });
                let source = matches!(key, CtKey::IpSaddr | CtKey::Ip6Saddr);
                match (direction, source) {
                    (Some(Direction::Reply), true) => all.repl_src = wanted,
                    (Some(Direction::Reply), false) => all.repl_dst = wanted,
                    (_, true) => all.orig_src = wanted,
                    (_, false) => all.orig_dst = wanted,
                }
            }
            CtKey::ProtoSrc | CtKey::ProtoDst => {
                let port = PortMatch { min: range.0 as u16, max: range.1 as u16, invert };
                match (direction, key == CtKey::ProtoSrc) {
                    (Some(Direction::Reply), true) => all.repl_src_port = Some(port),
                    (Some(Direction::Reply), false) => all.repl_dst_port = Some(port),
                    (_, true) => all.orig_src_port = Some(port),
                    (_, false) => all.orig_dst_port = Some(port),
                }
            }
            CtKey::L3proto | CtKey::Zone => return Err(Foreign),
        }
        let condition = Match::Conntrack(Box::new(all));
        if merges {
            self.replace_last(condition);
            return Ok(None);
        }
        Ok(Some(condition))
    }

    /// `--ctstate` with SNAT or DNAT is translated to `ct status`, without the rest.
    fn status_lost(&mut self, chain: &str) -> Match {
        let loopback = Prefix::new(IpAddr::from([127, 0, 0, 0]), 8);
        let kubelet = [
            Match::Source { prefix: loopback.clone(), invert: true },
            Match::Destination { prefix: loopback, invert: false },
        ];
        if chain == "KUBE-FIREWALL" && self.rule.matches() == kubelet {
            self.remarks.push(KUBELET);
            let states = CtStates::RELATED | CtStates::ESTABLISHED | CtStates::DNAT;
            return Match::CtState { states, invert: true };
        }
        self.lossy("conntrack", "--ctstate …", STATUS_LOST)
    }

    fn masked(
        &mut self,
        of: &Expr,
        and: u128,
        value: u128,
        invert: bool,
        op: Op,
    ) -> Result<Option<Match>, Foreign> {
        let (mask, wanted) = (and as u32, value as u32);
        match of {
            Expr::Meta(Meta::Mark) => Ok(Some(Match::Mark { value: wanted, mask, invert })),
            Expr::Ct(CtKey::Mark, None) => {
                Ok(Some(Match::Connmark { value: wanted, mask, invert }))
            }
            Expr::Payload(Payload { header: Header::Tcp, field: Field::Flags })
                if matches!(op, Op::Eq | Op::Ne) =>
            {
                self.imply(Protocol::TCP);
                let (mask, set) =
                    (TcpFlags::from_bits(and as u8), TcpFlags::from_bits(value as u8));
                let wanted = FlagsMatch { mask, set, invert };
                if let Some(Match::Tcp { sport, dport, flags: None, option }) =
                    self.rule.matches().last()
                {
                    let (sport, dport, option) = (*sport, *dport, *option);
                    self.replace_last(Match::Tcp { sport, dport, flags: Some(wanted), option });
                    return Ok(None);
                }
                let flags = Some(wanted);
                Ok(Some(Match::Tcp { sport: None, dport: None, flags, option: None }))
            }
            Expr::Payload(Payload { header: Header::Ip, field: Field::FragOff })
                if and == 0x1fff && value == 0 =>
            {
                Ok(Some(Match::Fragment { invert: !invert }))
            }
            Expr::Payload(Payload { header: Header::Ip, field: Field::Saddr | Field::Daddr }) => {
                let remark = "a mask with gaps is not modelled";
                Ok(Some(self.lossy("addresses under a mask", "", remark)))
            }
            _ => Err(Foreign),
        }
    }

    pub(super) fn limit(&mut self, limit: &Limit) -> Result<(), Foreign> {
        if limit.bytes || limit.over || limit.name.is_some() {
            return Err(Foreign);
        }
        // Kernel: xt_limit.c, XT_LIMIT_SCALE
        let period = limit.seconds * 10_000 / limit.rate.max(1);
        let period = u32::try_from(period).map_err(|_| Foreign)?;
        let burst = u32::try_from(limit.burst).map_err(|_| Foreign)?;
        self.push(Match::Limit(Box::new(LimitMatch { period, burst })));
        Ok(())
    }
}

const fn protocol_of(header: Header) -> Option<Protocol> {
    match header {
        Header::Tcp => Some(Protocol::TCP),
        Header::Udp => Some(Protocol::UDP),
        Header::Sctp => Some(Protocol::SCTP),
        _ => None,
    }
}

fn address(value: u128, ipv4: bool) -> IpAddr {
    if ipv4 { IpAddr::V4((value as u32).into()) } else { IpAddr::V6(value.into()) }
}

/// Returns the prefix that a range of addresses is.
fn prefix_of((min, max): Range, ipv4: bool) -> Option<Prefix> {
    let span = min ^ max;
    let aligned = span & span.wrapping_add(1) == 0 && min & span == 0;
    let bits = if ipv4 { 32 } else { 128 };
    aligned.then(|| Prefix::new(address(min, ipv4), bits - span.count_ones() as u8))
}

fn states(bits: u128) -> CtStates {
    let known = [
        (1, CtStates::INVALID),
        (2, CtStates::ESTABLISHED),
        (4, CtStates::RELATED),
        (8, CtStates::NEW),
        (64, CtStates::UNTRACKED),
    ];
    let set = known.into_iter().filter(|(bit, _)| bits & bit != 0).map(|(_, state)| state);
    set.fold(CtStates::default(), |all, state| all | state)
}

fn fib_match(fib: Fib, kinds: &[u128], invert: bool) -> Result<Match, Foreign> {
    const KINDS: [AddrType; 12] = [
        AddrType::Unspec,
        AddrType::Unicast,
        AddrType::Local,
        AddrType::Broadcast,
        AddrType::Anycast,
        AddrType::Multicast,
        AddrType::Blackhole,
        AddrType::Unreachable,
        AddrType::Prohibit,
        AddrType::Throw,
        AddrType::Nat,
        AddrType::Xresolve,
    ];
    if fib.result != FibResult::Type || fib.mark {
        return Err(Foreign);
    }
    let mut types = AddrTypes::of(&[]);
    for kind in kinds {
        let kind = usize::try_from(*kind).ok().and_then(|kind| KINDS.get(kind));
        types = types.union(AddrTypes::of(&[*kind.ok_or(Foreign)?]));
    }
    let wanted = Some(AddrTypeMatch { types, invert });
    let (src, dst) = if fib.source { (wanted, None) } else { (None, wanted) };
    let limit = match (fib.iif, fib.oif) {
        (true, _) => Some(LimitIface::In),
        (_, true) => Some(LimitIface::Out),
        _ => None,
    };
    Ok(Match::AddrType { src, dst, limit })
}
