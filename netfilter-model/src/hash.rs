//! A fixed hash for lookup tables: the same on every machine, in every run and release.

use std::net::IpAddr;

/// Mixes words by folded multiplication.
#[derive(Clone, Copy)]
pub(crate) struct Mix(u64);

impl Mix {
    const SEED: u64 = 0x243f_6a88_85a3_08d3;
    const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;

    #[inline]
    pub(crate) const fn new() -> Mix {
        Mix(Mix::SEED)
    }

    #[inline]
    pub(crate) fn word(&mut self, word: u64) {
        let product = u128::from(self.0 ^ word) * u128::from(Mix::FACTOR);
        self.0 = product as u64 ^ (product >> 64) as u64 ^ word.rotate_left(32);
    }

    #[inline]
    pub(crate) fn address(&mut self, address: IpAddr) {
        match address {
            IpAddr::V4(address) => self.word(u64::from(address.to_bits())),
            IpAddr::V6(address) => {
                let bits = address.to_bits();
                self.word(bits as u64);
                self.word((bits >> 64) as u64);
            }
        }
    }

    #[inline]
    pub(crate) fn finish(self) -> u64 {
        let product = u128::from(self.0) * u128::from(Mix::FACTOR | 1 << 63);
        product as u64 ^ (product >> 64) as u64
    }
}

/// Returns the hash by which the kernel chooses an address of a NAT range.
// Kernel: linux/jhash.h, jhash2, of four words
pub(crate) const fn jhash2(words: &[u32; 4], seed: u32) -> u32 {
    const fn step(x: u32, y: u32, rotate: u32) -> u32 {
        x.wrapping_sub(y) ^ y.rotate_left(rotate)
    }
    const fn last(x: u32, y: u32, rotate: u32) -> u32 {
        (x ^ y).wrapping_sub(y.rotate_left(rotate))
    }
    let begin = 0xdead_beef_u32.wrapping_add(16).wrapping_add(seed);
    let mut a = begin.wrapping_add(words[0]);
    let mut b = begin.wrapping_add(words[1]);
    let mut c = begin.wrapping_add(words[2]);
    a = step(a, c, 4);
    c = c.wrapping_add(b);
    b = step(b, a, 6);
    a = a.wrapping_add(c);
    c = step(c, b, 8);
    b = b.wrapping_add(a);
    a = step(a, c, 16);
    c = c.wrapping_add(b);
    b = step(b, a, 19);
    a = a.wrapping_add(c);
    c = step(c, b, 4);
    b = b.wrapping_add(a);

    a = a.wrapping_add(words[3]);
    c = last(c, b, 14);
    a = last(a, c, 11);
    b = last(b, a, 25);
    c = last(c, b, 16);
    a = last(a, c, 4);
    b = last(b, a, 14);
    last(c, b, 24)
}
