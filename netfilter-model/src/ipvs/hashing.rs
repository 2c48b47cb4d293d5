//! Schedulers `sh` and `mh`: by a hash of the client.

use std::net::IpAddr;

use super::Service;
use super::schedule::Seen;

/// The buckets of `sh`.
// Kernel: ip_vs_sh.c, CONFIG_IP_VS_SH_TAB_BITS
const SOURCE_SIZE: usize = 256;

/// The buckets of `mh`.
// Kernel: ip_vs_mh.c, CONFIG_IP_VS_MH_TAB_INDEX
const MAGLEV_SIZE: usize = 4093;

/// Weights are cut to so many bits.
// Kernel: ip_vs_mh.c, IP_VS_MH_TAB_BITS
const MAGLEV_WEIGHT_BITS: u32 = 6;

/// The keys of the two hashes of `mh`, the same on every host.
// Kernel: ip_vs_mh.c, generate_hash_secret
const MAGLEV_KEYS: [u64; 2] = [2_654_435_761, 2_654_446_892];

/// What is hashed of a client.
#[derive(Clone, Copy, Debug)]
pub(super) struct Key {
    /// Address and port in one number.
    number: u32,
    maglev: bool,
    /// Look for another where the one that is found takes no connection.
    fallback: bool,
}

impl Key {
    pub(super) fn of(service: &Service, (address, port): (IpAddr, u16)) -> Key {
        let maglev = &*service.scheduler == "mh";
        // ipvsadm names the flags by number unless it knows the scheduler.
        let [by_name, number] = if maglev {
            [["mh-fallback", "mh-port"], ["flag-1", "flag-2"]]
        } else {
            [["sh-fallback", "sh-port"], ["flag-1", "flag-2"]]
        };
        let has = |which: usize| {
            let names = [by_name[which], number[which]];
            service.flags.iter().any(|flag| names.contains(&&**flag))
        };
        let port = if has(1) { port } else { 0 };
        Key { number: number_of(address, port), maglev, fallback: has(0) }
    }

    // Kernel: ip_vs_sh.c, ip_vs_sh_hashkey; ip_vs_mh.c, ip_vs_mh_hashkey
    fn bucket(self, offset: usize) -> usize {
        if self.maglev {
            let number = self.number.wrapping_add(offset as u32);
            hsiphash(number, MAGLEV_KEYS[0]) as usize % MAGLEV_SIZE
        } else {
            let hash = u64::from(self.number).wrapping_mul(2_654_435_761);
            (hash.wrapping_add(offset as u64) % SOURCE_SIZE as u64) as usize
        }
    }
}

fn number_of(address: IpAddr, port: u16) -> u32 {
    let folded = match address {
        IpAddr::V4(address) => address.to_bits(),
        IpAddr::V6(address) => {
            let bits = address.to_bits();
            [96, 64, 32, 0].into_iter().fold(0, |folded, shift| folded ^ (bits >> shift) as u32)
        }
    };
    folded.wrapping_add(u32::from(port))
}

/// Returns the destination of a client's bucket, if it takes connections.
// Kernel: ip_vs_sh_get_fallback, ip_vs_mh_get_fallback
pub(super) fn choose(buckets: &[u16], key: Key, is_free: impl Fn(usize) -> bool) -> Option<usize> {
    let first = key.bucket(0);
    let at = usize::from(*buckets.get(first)?);
    if is_free(at) {
        return Some(at);
    }
    if !key.fallback {
        return None;
    }
    let offsets = (0..buckets.len()).map(|offset| (offset + first) % buckets.len());
    let found = offsets.map(|offset| usize::from(buckets[key.bucket(offset)]));
    found.into_iter().find(|at| is_free(*at))
}

/// Fills the buckets of `sh`: each destination as often in turn as its weight, at least once.
// Kernel: ip_vs_sh.c, ip_vs_sh_reassign
pub(super) fn source_buckets(list: &[Seen]) -> Vec<u16> {
    let turn = |(at, seen): (usize, &Seen)| {
        std::iter::repeat_n(at as u16, seen.weight.clamp(1, SOURCE_SIZE as u32) as usize)
    };
    let turns: Vec<u16> = list.iter().enumerate().flat_map(turn).take(SOURCE_SIZE).collect();
    turns.iter().copied().cycle().take(if turns.is_empty() { 0 } else { SOURCE_SIZE }).collect()
}

/// Fills the buckets of `mh`, each destination in turn those that it likes best. One that has lost
/// its weight keeps its own.
// Kernel: ip_vs_mh.c, ip_vs_mh_permutate, ip_vs_mh_populate
pub(super) fn maglev_buckets(list: &[Seen]) -> Vec<u16> {
    let weights = || list.iter().map(|seen| seen.last_weight).filter(|weight| *weight > 0);
    let Some(gcd) = weights().reduce(gcd) else {
        return Vec::new();
    };
    let max = weights().max().unwrap_or(0) / gcd;
    let shift = (u32::BITS - max.leading_zeros()).saturating_sub(MAGLEV_WEIGHT_BITS);
    let mut wishes: Vec<(usize, usize, u32)> = Vec::with_capacity(list.len());
    for seen in list {
        let number = number_of(seen.place.0, seen.place.1);
        let offset = hsiphash(number, MAGLEV_KEYS[0]) as usize % MAGLEV_SIZE;
        let skip = hsiphash(number, MAGLEV_KEYS[1]) as usize % (MAGLEV_SIZE - 1) + 1;
        let turns = match seen.last_weight {
            0 => 0,
            weight => ((weight / gcd) >> shift).max(1),
        };
        wishes.push((offset, skip, turns));
    }
    let mut buckets = vec![None; MAGLEV_SIZE];
    let mut left = MAGLEV_SIZE;
    while left > 0 {
        for (at, (wish, skip, turns)) in wishes.iter_mut().enumerate() {
            for _ in 0..*turns {
                if left == 0 {
                    break;
                }
                while buckets[*wish].is_some() {
                    *wish = (*wish + *skip) % MAGLEV_SIZE;
                }
                buckets[*wish] = Some(at as u16);
                left -= 1;
            }
        }
    }
    buckets.into_iter().flatten().collect()
}

fn gcd(a: u32, b: u32) -> u32 {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// Returns the kernel's short keyed hash of a number on 64-bit hosts, where it is SipHash-1-3; both
/// halves of the key are the same here.
// Kernel: lib/siphash.c, hsiphash_1u32
pub(super) fn hsiphash(number: u32, key: u64) -> u32 {
    let mut v = [
        0x736f_6d65_7073_6575 ^ key,
        0x646f_7261_6e64_6f6d ^ key,
        0x6c79_6765_6e65_7261 ^ key,
        0x7465_6462_7974_6573 ^ key,
    ];
    let last = 4 << 56 | u64::from(number);
    v[3] ^= last;
    sip_round(&mut v);
    v[0] ^= last;
    v[2] ^= 0xff;
    for _ in 0..3 {
        sip_round(&mut v);
    }
    (v[0] ^ v[1] ^ v[2] ^ v[3]) as u32
}

fn sip_round([a, b, c, d]: &mut [u64; 4]) {
    *a = a.wrapping_add(*b);
    *b = b.rotate_left(13) ^ *a;
    *a = a.rotate_left(32);
    *c = c.wrapping_add(*d);
    *d = d.rotate_left(16) ^ *c;
    *a = a.wrapping_add(*d);
    *d = d.rotate_left(21) ^ *a;
    *c = c.wrapping_add(*b);
    *b = b.rotate_left(17) ^ *c;
    *c = c.rotate_left(32);
}
