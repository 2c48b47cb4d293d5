//! Token buckets, in the kernel's own numbers.

use std::collections::BTreeMap;
use std::net::IpAddr;

use crate::packet::Packet;
use crate::prefix::Prefix;
use crate::rule::{HashlimitMatch, LimitMatch};
use crate::time::HZ;

/// A bucket of credit: it gains by the tick and loses by the packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Bucket {
    /// When credit was last added, in ticks; of nf_tables in nanoseconds.
    filled: u64,
    credit: u64,
    cap: u64,
    cost: u64,
    per_tick: u64,
}

impl Bucket {
    /// Returns the full bucket of a `limit` rule.
    // Kernel: xt_limit.c, limit_mt_check
    pub(super) fn limit(limit: LimitMatch, now: u64) -> Bucket {
        let cap = u64::from(limit_credits(limit.period.wrapping_mul(limit.burst)));
        let cost = u64::from(limit_credits(limit.period));
        Bucket { filled: now, credit: cap, cap, cost, per_tick: u64::from(LIMIT_PER_TICK) }
    }

    /// Returns the full bucket of a `limit` rule of iptables-nft, which nf_tables keeps in
    /// nanoseconds.
    // Kernel: nft_limit.c, nft_limit_init
    pub(super) fn native(limit: LimitMatch, now: u64) -> Bucket {
        let cost = u64::from(limit.period) * 100_000;
        let cap = cost.saturating_mul(u64::from(limit.burst));
        Bucket { filled: now, credit: cap, cap, cost, per_tick: 1 }
    }

    /// Returns the full bucket of a `hashlimit` rule.
    // Kernel: xt_hashlimit.c, rateinfo_init
    fn hashlimit(period: u64, burst: u32, now: u64) -> Bucket {
        let cap = hashlimit_credits(period.saturating_mul(u64::from(burst)));
        let cost = hashlimit_credits(period);
        Bucket { filled: now, credit: cap, cap, cost, per_tick: HASHLIMIT_PER_TICK }
    }

    /// Takes what a packet costs, if it is there.
    // Kernel: xt_limit.c, limit_mt; xt_hashlimit.c, rateinfo_recalc
    pub(super) fn take(&mut self, now: u64) -> bool {
        let gained = now.saturating_sub(self.filled).saturating_mul(self.per_tick);
        self.filled = now;
        self.credit = self.credit.saturating_add(gained).min(self.cap);
        let enough = self.credit >= self.cost;
        if enough {
            self.credit -= self.cost;
        }
        enough
    }
}

/// The largest power of two of which a day's worth of ticks fits 32 bits.
// Kernel: xt_limit.c, CREDITS_PER_JIFFY
const LIMIT_PER_TICK: u32 = 1 << (u32::MAX / (HZ as u32 * 86_400)).ilog2();

/// The same for 64 bits.
// Kernel: xt_hashlimit.c, CREDITS_PER_JIFFY
const HASHLIMIT_PER_TICK: u64 = 1 << (u64::MAX / (HZ * 86_400)).ilog2();

/// Converts a time in units of 100 µs to credit.
// Kernel: xt_limit.c, user2credits; XT_LIMIT_SCALE
const fn limit_credits(period: u32) -> u32 {
    const SCALE: u32 = 10_000;
    const PER_SECOND: u32 = HZ as u32 * LIMIT_PER_TICK;
    if period > u32::MAX / PER_SECOND {
        // Multiplying first would overflow.
        return (period / SCALE).wrapping_mul(PER_SECOND);
    }
    period * PER_SECOND / SCALE
}

/// Converts a time in microseconds to credit.
// Kernel: xt_hashlimit.c, user2credits; XT_HASHLIMIT_SCALE_v2
const fn hashlimit_credits(period: u64) -> u64 {
    period.saturating_mul(HZ * HASHLIMIT_PER_TICK / 1_000_000)
}

/// The buckets of a `hashlimit` name.
#[derive(Clone, Debug)]
pub(super) struct Buckets {
    /// The rule that was first to use the name: what it says holds for all.
    config: HashlimitMatch,
    /// When the first packet came, in ticks.
    since: u64,
    /// When idle buckets were last thrown out.
    swept: u64,
    buckets: BTreeMap<Key, Kept>,
}

/// Source address and port, destination address and port, as far as they count.
type Key = (Option<IpAddr>, u16, Option<IpAddr>, u16);

#[derive(Clone, Copy, Debug)]
struct Kept {
    bucket: Bucket,
    expires: u64,
}

/// Idle buckets are thrown out once in so many ticks.
// Kernel: xt_hashlimit.c, htable_gc; iptables' default of --hashlimit-htable-gcinterval
const SWEEP: u64 = HZ;

impl Buckets {
    // Kernel: xt_hashlimit.c, htable_find_get: a name that is there keeps its configuration
    pub(super) fn new(limit: &HashlimitMatch, now: u64) -> Buckets {
        Buckets { config: limit.clone(), since: now, swept: now, buckets: BTreeMap::new() }
    }

    /// Takes a token from the packet's bucket.
    // Kernel: xt_hashlimit.c, hashlimit_mt
    // Simplified: there is room for any number of buckets, and idle ones are thrown out every
    // second, counted from the first packet.
    pub(super) fn take(&mut self, packet: &Packet, now: u64) -> bool {
        let last = now - (now - self.since) % SWEEP;
        if last > self.swept {
            self.swept = last;
            self.buckets.retain(|_, kept| kept.expires > last);
        }
        let HashlimitMatch { period, burst, expire, .. } = self.config;
        let full = || Kept { bucket: Bucket::hashlimit(period, burst, now), expires: 0 };
        let kept = self.buckets.entry(key(&self.config, packet)).or_insert_with(full);
        kept.expires = now + (u64::from(expire) * HZ).div_ceil(1000);
        kept.bucket.take(now)
    }
}

// Kernel: xt_hashlimit.c, hashlimit_init_dst
fn key(config: &HashlimitMatch, packet: &Packet) -> Key {
    let tuple = &packet.tuple;
    let [src, src_port, dst, dst_port] = config.mode;
    let address = |wanted: bool, address: IpAddr, len: u8| {
        let max = if address.is_ipv4() { 32 } else { 128 };
        wanted.then(|| Prefix::new(address, len.min(max)).address())
    };
    let ported = tuple.protocol.has_ports() && !packet.is_later_fragment();
    let port = |wanted: bool, port: u16| if wanted && ported { port } else { 0 };
    (
        address(src, tuple.src(), config.src_len),
        port(src_port, tuple.src_part),
        address(dst, tuple.dst(), config.dst_len),
        port(dst_port, tuple.dst_part),
    )
}

#[cfg(test)]
mod tests;
