//! Random streams: named, and positioned.
//!
//! A stream belongs to a name (an entity and a purpose), and a draw to a position in it: request,
//! attempt, purpose, index. So a draw depends on seed, replication, name and position alone, never
//! on what else was drawn before: adding a client changes nobody else's draws, two points of a
//! sweep see the same arrivals, and no generator is kept per connection.
//!
//! A stream is a ChaCha8 key; a position is one of its 2¹²⁸ blocks of eight 64-bit words:
//!
//! ```text
//! key      SipHash of the name, keyed by seed and replication
//! counter  request                                     (64 bits)
//! nonce    0 · attempt · purpose div 8 · index         (1 + 26 + 5 + 32 bits)
//! word     purpose mod 8
//! ```
//!
//! So the draws of one attempt for purposes 0 to 7 come from one block ([`Stream::attempt`]), and
//! those of four requests in a row from one call of the generator ([`Requests`]). Cursors, for runs
//! of draws of unknown length such as the arrivals of a block of time, have the nonces whose
//! highest bit is set:
//!
//! ```text
//! nonce    1 · position                                (1 + 63 bits)
//! counter  the n-th block of the cursor                (64 bits)
//! ```

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use siphasher::sip128::SipHasher24;

/// Where all randomness of one run comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seed {
    seed: u64,
    replication: u32,
}

impl Seed {
    /// Returns the source of randomness of replication `replication` under the user's `seed`.
    pub const fn new(seed: u64, replication: u32) -> Seed {
        Seed { seed, replication }
    }

    /// Returns the stream of that name.
    ///
    /// ```
    /// # use sim_core::engine::Seed;
    /// let arrivals = Seed::new(1, 0).stream("client/web-0/arrivals");
    /// ```
    pub fn stream(&self, name: &str) -> Stream {
        let mut key = [0; 32];
        for (half, bytes) in key.chunks_exact_mut(16).enumerate() {
            // Replications are below 2³², so the halves' keys differ from all others.
            let tweak = u64::from(self.replication) | (half as u64) << 32;
            let hash = SipHasher24::new_with_keys(self.seed, tweak).hash(name.as_bytes());
            bytes.copy_from_slice(&hash.as_u128().to_le_bytes());
        }
        Stream { generator: ChaCha8Rng::from_seed(key) }
    }
}

/// A named stream of random 64-bit numbers, read at any position.
#[derive(Clone, Debug)]
pub struct Stream {
    /// At the start of its first block; never drawn from, only cloned.
    generator: ChaCha8Rng,
}

impl Stream {
    /// Returns the draw at a position.
    ///
    /// # Panics
    ///
    /// If `attempt` is 2²⁶ or more.
    pub fn draw(&self, request: u64, attempt: u32, purpose: u8, index: u32) -> u64 {
        let nonce = nonce(attempt, purpose / WORDS as u8, index);
        let mut generator = self.generator_at(request, nonce);
        for _ in 0..purpose % WORDS as u8 {
            generator.next_u64();
        }
        generator.next_u64()
    }

    /// Returns the draws of an attempt at index 0 for the purposes 0 to 7, for the price of one.
    ///
    /// # Panics
    ///
    /// If `attempt` is 2²⁶ or more.
    pub fn attempt(&self, request: u64, attempt: u32) -> Draws {
        let mut generator = self.generator_at(request, nonce(attempt, 0, 0));
        Draws::next(&mut generator)
    }

    /// Returns the draws of a request's first attempt; see [`Stream::attempt`].
    pub fn request(&self, request: u64) -> Draws {
        self.attempt(request, 0)
    }

    /// Returns a reader of the first attempts of requests that come mostly in order.
    pub fn requests(&self) -> Requests {
        Requests { stream: self.clone(), first: u64::MAX, blocks: [Draws([0; WORDS]); BLOCKS] }
    }

    /// Returns a generator of the draws that belong to `position`, as many as are wanted.
    ///
    /// # Panics
    ///
    /// If `position` is 2⁶³ or more.
    pub fn cursor(&self, position: u64) -> Cursor {
        assert!(position < CURSORS, "position {position} is beyond 2^63");
        Cursor { generator: self.generator_at(0, CURSORS | position) }
    }

    /// Returns a generator that begins with a block. It makes four blocks at once, when the first
    /// is read.
    fn generator_at(&self, counter: u64, nonce: u64) -> ChaCha8Rng {
        let mut generator = self.generator.clone();
        generator.set_stream(nonce);
        generator.set_word_pos(u128::from(counter) * BLOCK_WORDS);
        generator
    }
}

/// 64-bit words of a block.
const WORDS: usize = 8;
/// 32-bit words of a block, the unit of ChaCha's positions.
const BLOCK_WORDS: u128 = 2 * WORDS as u128;
/// Blocks that the generator makes at once.
const BLOCKS: usize = 4;
/// The highest bit of a cursor's nonce.
const CURSORS: u64 = 1 << 63;

fn nonce(attempt: u32, purpose_group: u8, index: u32) -> u64 {
    assert!(attempt < 1 << 26, "attempt {attempt} is beyond 2^26");
    u64::from(attempt) << 37 | u64::from(purpose_group) << 32 | u64::from(index)
}

/// The draws of one attempt at index 0 for the purposes 0 to 7.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Draws([u64; WORDS]);

impl Draws {
    fn next(generator: &mut ChaCha8Rng) -> Draws {
        Draws(std::array::from_fn(|_| generator.next_u64()))
    }

    /// Returns the draw for a purpose: what [`Stream::draw`] returns for it at index 0.
    ///
    /// # Panics
    ///
    /// If `purpose` is above 7.
    #[inline]
    pub fn get(&self, purpose: u8) -> u64 {
        self.0[usize::from(purpose)]
    }
}

/// A reader of the draws of many requests; four in a row cost as much as one.
#[derive(Clone, Debug)]
pub struct Requests {
    stream: Stream,
    /// The request of the first block; `u64::MAX`, not a multiple of four, before the first.
    first: u64,
    blocks: [Draws; BLOCKS],
}

impl Requests {
    /// Returns the draws of a request's first attempt: what [`Stream::request`] returns.
    pub fn get(&mut self, request: u64) -> Draws {
        let first = request & !(BLOCKS as u64 - 1);
        if first != self.first {
            let mut generator = self.stream.generator_at(first, nonce(0, 0, 0));
            self.blocks = std::array::from_fn(|_| Draws::next(&mut generator));
            self.first = first;
        }
        self.blocks[(request - first) as usize]
    }
}

/// A generator of the draws of one position.
#[derive(Clone, Debug)]
pub struct Cursor {
    generator: ChaCha8Rng,
}

impl Cursor {
    /// Returns the next draw.
    #[inline]
    pub fn next_u64(&mut self) -> u64 {
        self.generator.next_u64()
    }
}

/// Returns the number in the open interval (0, 1) that a draw stands for: its highest 53 bits as a
/// multiple of 2⁻⁵³, and 2⁻⁵⁴ where they are zero.
#[inline]
pub fn unit(draw: u64) -> f64 {
    const ULP: f64 = 1.0 / (1u64 << 53) as f64;
    ((draw >> 11) as f64).max(0.5) * ULP
}

/// Returns the number below `n` that a draw stands for. Larger draws stand for larger numbers, and
/// no number's probability is off 1/n by more than 2⁻⁶⁴.
///
/// # Panics
///
/// If `n` is zero.
#[inline]
pub fn below(draw: u64, n: u64) -> u64 {
    assert!(n > 0, "no number is below zero");
    ((u128::from(draw) * u128::from(n)) >> 64) as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn golden() {
        let stream = Seed::new(1, 0).stream("client/web-0/arrivals");
        assert_eq!(stream.draw(0, 0, 0, 0), 0x8288_0e3a_e7c2_ac33);
        assert_eq!(stream.draw(1, 2, 13, 4), 0x8ea9_61a9_7535_65fe);
        assert_eq!(stream.draw(u64::MAX, (1 << 26) - 1, 255, u32::MAX), 0x2e4f_ea49_9a7f_33b2);
        assert_eq!(stream.cursor(0).next_u64(), 0xc583_b2fd_6f72_8e36);
        let mut cursor = stream.cursor((1 << 63) - 1);
        assert_eq!(
            (0..1000).fold(0, |sum: u64, _| sum.wrapping_add(cursor.next_u64())),
            0x3f3d_419f_a2df_6e57
        );
    }

    /// ECRYPT's first test vector of ChaCha8 with a 256-bit key: all zero.
    #[test]
    fn a_block_is_chacha8() {
        let zero = Stream { generator: ChaCha8Rng::from_seed([0; 32]) };
        let draws = zero.request(0);
        let bytes: Vec<u8> = (0..8).flat_map(|i| draws.get(i).to_le_bytes()).collect();
        assert_eq!(
            data_encoding::HEXLOWER.encode(&bytes),
            "3e00ef2f895f40d67f5bb8e81f09a5a12c840ec3ce9a7f3b181be188ef711a1e\
             984ce172b9216f419f445367456d5619314a42a3da86b001387bfdb80e0cfe42"
        );
    }

    #[test]
    fn seed_replication_name_and_position_all_count() {
        let mut seen = BTreeSet::new();
        let mut streams = 0;
        for seed in [0, 1, 1 << 32] {
            for replication in [0, 1, 2] {
                for name in ["", "a", "b", "ab"] {
                    let stream = Seed::new(seed, replication).stream(name);
                    streams += 1;
                    for position in 0..625 {
                        let digit = |power| position / 5_u32.pow(power) % 5;
                        let purpose = [0, 1, 7, 8, 255][digit(2) as usize];
                        seen.insert(stream.draw(digit(0).into(), digit(1), purpose, digit(3)));
                    }
                    for position in 0..8 {
                        seen.insert(stream.cursor(position).next_u64());
                    }
                }
            }
        }
        assert_eq!(seen.len(), streams * (625 + 8));
    }

    #[test]
    fn all_ways_to_read_a_draw_agree() {
        let stream = Seed::new(7, 3).stream("s");
        let mut requests = stream.requests();
        for request in [0, 1, 2, 3, 4, 9, 6, 7, 8, 3, u64::MAX, u64::MAX - 1, 0] {
            let draws = stream.request(request);
            assert_eq!(draws, requests.get(request), "request {request}");
            for purpose in 0..8 {
                assert_eq!(draws.get(purpose), stream.draw(request, 0, purpose, 0));
                let retry = stream.attempt(request, 5).get(purpose);
                assert_eq!(retry, stream.draw(request, 5, purpose, 0));
            }
        }
    }

    #[test]
    fn unit_is_open_and_monotone() {
        assert_eq!(unit(0), 0.5 / (1u64 << 53) as f64);
        assert_eq!(unit(1 << 11), 1.0 / (1u64 << 53) as f64);
        assert_eq!(unit(1 << 63), 0.5);
        assert_eq!(unit(u64::MAX), 1.0 - f64::EPSILON / 2.0);
    }

    #[test]
    fn below_covers_all_numbers_evenly() {
        assert_eq!((below(0, 3), below(u64::MAX, 3)), (0, 2));
        assert_eq!(below(u64::MAX, u64::MAX), u64::MAX - 1);
        let stream = Seed::new(1, 1).stream("below");
        let mut counts = [0_i64; 5];
        for request in 0..50_000 {
            counts[below(stream.draw(request, 0, 0, 0), 5) as usize] += 1;
        }
        // χ² with 4 degrees of freedom; its 99.9 % quantile is 18.5.
        let chi2: f64 = counts.iter().map(|c| (c - 10_000).pow(2) as f64 / 1e4).sum();
        assert!(chi2 < 18.5, "{counts:?}");
    }
}
