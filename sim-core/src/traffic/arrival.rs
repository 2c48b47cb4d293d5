//! When requests are sent: open loop, block of time by block of time.
//!
//! A block's arrivals come from the block's own position of the client's stream: first how many,
//! then when. So any block can be produced alone, and nothing else in the scenario moves them.

use std::time::Duration;

use crate::config::Arrivals;
use crate::engine::distribution::poisson;
use crate::engine::rng::{Seed, Stream, below, unit};
use crate::time::SimTime;

/// The arrivals of one client group.
#[derive(Debug)]
pub struct ArrivalProcess {
    kind: Arrivals,
    rate_per_s: f64,
    /// Length of a block in nanoseconds, a power of two: at most 64 arrivals are expected in it.
    block: u64,
    stream: Stream,
}

/// Requests of a block are numbered from here on: `block << BLOCK_BITS`.
const BLOCK_BITS: u32 = 16;
const MEAN_PER_BLOCK: f64 = 64.0;
const LONGEST_BLOCK_BITS: u32 = 34;
/// Where the phase of constant arrivals is drawn: no block has this number.
const PHASE: u64 = (1 << 63) - 1;

impl ArrivalProcess {
    /// Returns the arrivals of the client group `name`.
    pub fn new(name: &str, kind: Arrivals, rate_per_s: f64, seed: &Seed) -> ArrivalProcess {
        let fits = |bits: &u32| rate_per_s * ((1u64 << bits) as f64) * 1e-9 <= MEAN_PER_BLOCK;
        let bits = (0..=LONGEST_BLOCK_BITS).rev().find(fits).unwrap_or(0);
        let stream = seed.stream(&format!("client/{name}/arrivals"));
        ArrivalProcess { kind, rate_per_s, block: 1 << bits, stream }
    }

    /// Fills `out` with the times of block number `block` in order; empty for a rate of 0.
    pub fn block(&self, block: u64, out: &mut Vec<SimTime>) {
        out.clear();
        let start = block * self.block;
        match self.kind {
            Arrivals::Poisson => {
                let mut draws = self.stream.cursor(block);
                let mean = self.rate_per_s * self.block as f64 * 1e-9;
                let count = poisson(mean, draws.next_u64());
                let offset = |draw| SimTime::from_nanos(start + below(draw, self.block));
                out.extend((0..count).map(|_| offset(draws.next_u64())));
                out.sort_unstable();
            }
            Arrivals::Constant if self.rate_per_s > 0.0 => {
                let phase = unit(self.stream.cursor(PHASE).next_u64());
                let nanos = |k: f64| ((k + phase) * 1e9 / self.rate_per_s) as u64;
                let mut k = libm::floor(start as f64 * self.rate_per_s * 1e-9 - 1.0).max(0.0);
                while nanos(k) < start {
                    k += 1.0;
                }
                while nanos(k) < start + self.block {
                    out.push(SimTime::from_nanos(nanos(k)));
                    k += 1.0;
                }
            }
            Arrivals::Constant => {}
        }
        assert!(out.len() < 1 << BLOCK_BITS, "{} arrivals in one block", out.len());
    }

    /// Returns the number of the request at `index` in `block`.
    pub fn request(block: u64, index: usize) -> u64 {
        (block << BLOCK_BITS) | index as u64
    }

    /// Returns when `block` starts.
    pub fn start(&self, block: u64) -> SimTime {
        SimTime::from_nanos(block * self.block)
    }

    /// Returns how long a block is.
    pub fn block_length(&self) -> Duration {
        Duration::from_nanos(self.block)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn times(kind: Arrivals, rate: f64, blocks: u64) -> (Vec<SimTime>, Duration) {
        let process = ArrivalProcess::new("front", kind, rate, &Seed::new(1, 0));
        let mut all = Vec::new();
        let mut block = Vec::new();
        for index in 0..blocks {
            process.block(index, &mut block);
            all.append(&mut block);
        }
        (all, process.block_length() * blocks as u32)
    }

    #[test]
    fn constant_arrivals_are_evenly_spaced_across_blocks() {
        let (times, span) = times(Arrivals::Constant, 1000.0, 100);
        assert!((times.len() as f64 - span.as_secs_f64() * 1000.0).abs() <= 1.0);
        let gaps = times.windows(2).map(|pair| (pair[1] - pair[0]).as_nanos());
        assert!(gaps.clone().all(|gap| gap.abs_diff(1_000_000) <= 1), "{:?}", gaps.max());
    }

    #[test]
    fn poisson_arrivals_have_the_mean_and_variance_of_their_rate() {
        let (times, span) = times(Arrivals::Poisson, 1000.0, 3000);
        assert!(times.is_sorted());
        let mean = span.as_secs_f64() * 1000.0;
        // 4.9 standard deviations: one in a million.
        assert!((times.len() as f64 - mean).abs() < 4.9 * mean.sqrt(), "{} {mean}", times.len());
        // Gaps: the coefficient of variation of an exponential is 1; its estimate from n gaps has
        // a standard deviation of about 1/√n.
        let gaps: Vec<f64> =
            times.windows(2).map(|pair| (pair[1] - pair[0]).as_secs_f64()).collect();
        let n = gaps.len() as f64;
        let mean = gaps.iter().sum::<f64>() / n;
        let variance = gaps.iter().map(|gap| (gap - mean).powi(2)).sum::<f64>() / n;
        assert!(
            (variance.sqrt() / mean - 1.0).abs() < 4.9 / n.sqrt(),
            "{}",
            variance.sqrt() / mean
        );
    }

    #[test]
    fn slow_and_fast_rates_fill_blocks_sensibly() {
        for rate in [0.0, 1e-3, 1.0, 1e6] {
            let (times, span) = times(Arrivals::Poisson, rate, 50);
            let mean = rate * span.as_secs_f64();
            assert!((times.len() as f64 - mean).abs() <= 5.0 * mean.sqrt() + 5.0, "{rate}");
        }
    }
}
