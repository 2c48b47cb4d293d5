//! A fixed hash for lookup tables: the same on every machine, in every run and release; and the
//! kernel's own hash, where what it gives can be seen.

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

/// Returns Bob Jenkins' hash of bytes under a seed.
// Kernel: include/linux/jhash.h, jhash: lookup3 on little-endian words
pub(crate) fn jhash(bytes: &[u8], seed: u32) -> u32 {
    let start = 0xdead_beef_u32.wrapping_add(bytes.len() as u32).wrapping_add(seed);
    let (mut a, mut b, mut c) = (start, start, start);
    let mut rest = bytes;
    let word = |bytes: &[u8], at: usize| {
        let mut word = [0; 4];
        for (to, from) in word.iter_mut().zip(bytes.iter().skip(at)) {
            *to = *from;
        }
        u32::from_le_bytes(word)
    };
    while rest.len() > 12 {
        a = a.wrapping_add(word(rest, 0));
        b = b.wrapping_add(word(rest, 4));
        c = c.wrapping_add(word(rest, 8));
        for (by, turn) in [4, 6, 8, 16, 19, 4].into_iter().zip([0, 1, 2].into_iter().cycle()) {
            match turn {
                0 => {
                    a = a.wrapping_sub(c) ^ c.rotate_left(by);
                    c = c.wrapping_add(b);
                }
                1 => {
                    b = b.wrapping_sub(a) ^ a.rotate_left(by);
                    a = a.wrapping_add(c);
                }
                _ => {
                    c = c.wrapping_sub(b) ^ b.rotate_left(by);
                    b = b.wrapping_add(a);
                }
            }
        }
        rest = &rest[12..];
    }
    if rest.is_empty() {
        return c;
    }
    a = a.wrapping_add(word(rest, 0));
    b = b.wrapping_add(word(rest, 4));
    c = c.wrapping_add(word(rest, 8));
    c = (c ^ b).wrapping_sub(b.rotate_left(14));
    a = (a ^ c).wrapping_sub(c.rotate_left(11));
    b = (b ^ a).wrapping_sub(a.rotate_left(25));
    c = (c ^ b).wrapping_sub(b.rotate_left(16));
    a = (a ^ c).wrapping_sub(c.rotate_left(4));
    b = (b ^ a).wrapping_sub(a.rotate_left(14));
    (c ^ b).wrapping_sub(b.rotate_left(24))
}

/// Returns the hash of words under a seed, as a little-endian machine has them.
// Kernel: include/linux/jhash.h, jhash2
pub(crate) fn jhash2(words: &[u32; 4], seed: u32) -> u32 {
    let mut bytes = [0; 16];
    for (to, word) in bytes.chunks_exact_mut(4).zip(words) {
        to.copy_from_slice(&word.to_le_bytes());
    }
    jhash(&bytes, seed)
}

/// Returns a number below `modulus`, by the upper bits of a hash.
// Kernel: include/linux/kernel.h, reciprocal_scale
pub(crate) const fn scale(hash: u32, modulus: u32) -> u32 {
    ((hash as u64 * modulus as u64) >> 32) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Values of the public-domain `hashlittle`, whose start value differs by the constant.
    #[test]
    fn agrees_with_lookup3() {
        assert_eq!(jhash(b"", 0), 0xdead_beef);
        assert_eq!(jhash(b"", 0xdead_beef), 0xbd5b_7dde);
        assert_eq!(jhash(b"Four score and seven years ago", 0), 0x1777_0551);
        assert_eq!(jhash(b"Four score and seven years ago", 1), 0xcd62_8161);
    }

    #[test]
    fn scales_by_the_upper_bits() {
        assert_eq!(scale(0, 3), 0);
        assert_eq!(scale(u32::MAX, 3), 2);
        assert_eq!(scale(0x5555_5556, 3), 1);
    }
}
