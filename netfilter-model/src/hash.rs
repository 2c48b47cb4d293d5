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
        [a, b, c] = jhash_mix([a, b, c]);
        rest = &rest[12..];
    }
    if rest.is_empty() {
        return c;
    }
    a = a.wrapping_add(word(rest, 0));
    b = b.wrapping_add(word(rest, 4));
    c = c.wrapping_add(word(rest, 8));
    jhash_final([a, b, c])
}

/// Mixes three words of Bob Jenkins' hash.
// Kernel: include/linux/jhash.h, __jhash_mix
pub(crate) fn jhash_mix([mut a, mut b, mut c]: [u32; 3]) -> [u32; 3] {
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
    [a, b, c]
}

/// Returns the hash that three words of Bob Jenkins' hash end in.
// Kernel: include/linux/jhash.h, __jhash_final
pub(crate) fn jhash_final([mut a, mut b, mut c]: [u32; 3]) -> u32 {
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

/// Returns both halves of MurmurHash3's x64 variant of 128 bits.
// Source: Austin Appleby's MurmurHash3.cpp, in the public domain
pub(crate) fn murmur3(bytes: &[u8], seed: u32) -> (u64, u64) {
    const FACTORS: (u64, u64) = (0x87c3_7b91_1142_53d5, 0x4cf5_ad43_2745_937f);
    let mix_first = |k: u64| k.wrapping_mul(FACTORS.0).rotate_left(31).wrapping_mul(FACTORS.1);
    let mix_second = |k: u64| k.wrapping_mul(FACTORS.1).rotate_left(33).wrapping_mul(FACTORS.0);
    let halves = |block: &[u8]| {
        let mut padded = [0; 16];
        padded[..block.len()].copy_from_slice(block);
        let block = u128::from_le_bytes(padded);
        (block as u64, (block >> 64) as u64)
    };
    let (mut h1, mut h2) = (u64::from(seed), u64::from(seed));
    let mut blocks = bytes.chunks_exact(16);
    for block in &mut blocks {
        let (k1, k2) = halves(block);
        h1 = (h1 ^ mix_first(k1)).rotate_left(27).wrapping_add(h2);
        h1 = h1.wrapping_mul(5).wrapping_add(0x52dc_e729);
        h2 = (h2 ^ mix_second(k2)).rotate_left(31).wrapping_add(h1);
        h2 = h2.wrapping_mul(5).wrapping_add(0x3849_5ab5);
    }
    let (k1, k2) = halves(blocks.remainder());
    h1 ^= mix_first(k1) ^ bytes.len() as u64;
    h2 ^= mix_second(k2) ^ bytes.len() as u64;
    let finish = |mut k: u64| {
        k = (k ^ k >> 33).wrapping_mul(0xff51_afd7_ed55_8ccd);
        k = (k ^ k >> 33).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
        k ^ k >> 33
    };
    h1 = h1.wrapping_add(h2);
    h2 = h2.wrapping_add(h1);
    (h1, h2) = (finish(h1), finish(h2));
    h1 = h1.wrapping_add(h2);
    (h1, h2.wrapping_add(h1))
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

    /// Values that implementations of MurmurHash3 are tested with everywhere.
    #[test]
    fn agrees_with_murmurhash3() {
        assert_eq!(murmur3(b"", 0), (0, 0));
        assert_eq!(murmur3(b"hello", 0), (0xcbd8_a7b3_41bd_9b02, 0x5b1e_906a_48ae_1d19));
        let fox = b"The quick brown fox jumps over the lazy dog.";
        assert_eq!(murmur3(fox, 0), (0xcd99_481f_9ee9_02c9, 0x695d_a1a3_8987_b6e7));
    }

    #[test]
    fn scales_by_the_upper_bits() {
        assert_eq!(scale(0, 3), 0);
        assert_eq!(scale(u32::MAX, 3), 2);
        assert_eq!(scale(0x5555_5556, 3), 1);
    }
}
