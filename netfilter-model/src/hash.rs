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
