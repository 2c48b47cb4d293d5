//! Distributions of durations, and of counts.
//!
//! Every law is sampled by inverting its distribution function: one draw gives one duration, and a
//! larger draw never a shorter one. So two points of a sweep that differ in a parameter only, and
//! share their draws, differ draw by draw in the direction of the parameter.
//!
//! Logarithms, exponentials and the like come from `libm`: the same bits on every platform.

use std::time::Duration;

use crate::config::Law;
use crate::engine::rng::unit;
use crate::engine::special::{
    gamma_cdf, gamma_quantile, normal_cdf, normal_quantile, poisson_quantile,
};

/// The longest duration that is ever sampled, a hundred years: adding it to a time does not
/// overflow, and nothing that happens after it matters.
pub const LONGEST: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

/// The largest shape of a gamma law: above it, the law is a normal one to within a thousandth of
/// its standard deviation, and evaluating it becomes slow.
const GAMMA_SHAPE_MAX: f64 = 1e6;

impl Law {
    /// Returns the lognormal law with this median and 99th percentile.
    ///
    /// # Errors
    ///
    /// If the median is zero or the percentile below it.
    pub fn lognormal_by_p99(median: Duration, p99: Duration) -> Result<Law, LawError> {
        let median_s = positive("median", median.as_secs_f64())?;
        let sigma = libm::log(p99.as_secs_f64() / median_s) / normal_quantile(0.99);
        checked(Law::LogNormal { median_s, sigma })
    }

    /// Returns the lognormal law with this mean and standard deviation.
    ///
    /// # Errors
    ///
    /// If the mean is zero.
    pub fn lognormal_by_sd(mean: Duration, sd: Duration) -> Result<Law, LawError> {
        let mean_s = positive("mean", mean.as_secs_f64())?;
        let ratio = sd.as_secs_f64() / mean_s;
        let variance = libm::log1p(ratio * ratio);
        checked(Law::LogNormal {
            median_s: mean_s * libm::exp(-0.5 * variance),
            sigma: libm::sqrt(variance),
        })
    }

    /// Returns the gamma law with this mean and standard deviation.
    ///
    /// # Errors
    ///
    /// If either is zero, or the standard deviation less than a thousandth of the mean.
    pub fn gamma_by_sd(mean: Duration, sd: Duration) -> Result<Law, LawError> {
        let ratio = mean.as_secs_f64() / positive("standard deviation", sd.as_secs_f64())?;
        Law::gamma_by_shape(mean, ratio * ratio)
    }

    /// Returns the gamma law with this mean and shape.
    ///
    /// # Errors
    ///
    /// If the mean is zero, or the shape not positive or above a million.
    pub fn gamma_by_shape(mean: Duration, shape: f64) -> Result<Law, LawError> {
        checked(Law::Gamma { shape, scale_s: mean.as_secs_f64() / shape })
    }

    /// Checks that the law is one.
    ///
    /// The other methods expect that it is: for a law that is not they return nonsense or panic.
    ///
    /// # Errors
    ///
    /// If a parameter is out of its range; the first such.
    pub fn validate(&self) -> Result<(), LawError> {
        match self {
            Law::Constant(value) => at_most_longest("value", *value),
            Law::Uniform { min, max } => {
                if min > max {
                    let (min, max) = (*min, *max);
                    return Err(LawError::Reversed { min, max });
                }
                at_most_longest("maximum", *max)
            }
            Law::Exponential { mean } => at_most_longest("mean", *mean),
            Law::LogNormal { median_s, sigma } => {
                positive("median", *median_s)?;
                non_negative("sigma", *sigma)
            }
            Law::Gamma { shape, scale_s } => {
                if *shape > GAMMA_SHAPE_MAX {
                    return Err(LawError::ShapeTooLarge { shape: *shape });
                }
                positive("shape", *shape)?;
                positive("scale", *scale_s).map(drop)
            }
            Law::Weibull { shape, scale_s } => {
                positive("shape", *shape)?;
                positive("scale", *scale_s).map(drop)
            }
            Law::Pareto { min_s, shape } => {
                positive("minimum", *min_s)?;
                positive("shape", *shape).map(drop)
            }
            Law::Histogram { edges_s, weights } => validate_histogram(edges_s, weights),
            Law::Empirical { values_s } => {
                if values_s.is_empty() {
                    return Err(LawError::Empty { what: "observation" });
                }
                rising("observation", values_s, Rising::Weakly)
            }
            Law::Mixture(parts) => {
                validate_weights("part", parts.iter().map(|(weight, _)| *weight))?;
                parts.iter().try_for_each(|(_, law)| law.validate())
            }
        }
    }

    /// Returns the duration that a draw stands for: its [`Law::quantile`] at [`unit`] of the draw,
    /// in whole nanoseconds, at most [`LONGEST`].
    #[inline]
    pub fn sample(&self, draw: u64) -> Duration {
        match self {
            Law::Constant(value) => *value,
            // 1 − unit(draw) is exact but for the least draw, so no precision is lost to it, and
            // the logarithm is faster than log1p.
            Law::Exponential { mean } => {
                to_duration(-mean.as_secs_f64() * libm::log(1.0 - unit(draw)))
            }
            _ => to_duration(self.quantile(unit(draw))),
        }
    }

    /// Returns the least time in seconds that is not exceeded with probability `p`; of a mixture,
    /// the next whole nanosecond.
    pub fn quantile(&self, p: f64) -> f64 {
        assert!((0.0..=1.0).contains(&p), "{p} is not a probability");
        match self {
            Law::Constant(value) => value.as_secs_f64(),
            Law::Uniform { min, max } => {
                let (min, max) = (min.as_secs_f64(), max.as_secs_f64());
                min + (max - min) * p
            }
            Law::Exponential { mean } => scaled(mean.as_secs_f64(), -libm::log1p(-p)),
            Law::LogNormal { median_s, sigma } => {
                median_s * libm::exp(scaled(*sigma, normal_quantile(p)))
            }
            Law::Gamma { shape, scale_s } => scale_s * gamma_quantile(*shape, p),
            Law::Weibull { shape, scale_s } => scale_s * libm::pow(-libm::log1p(-p), 1.0 / shape),
            Law::Pareto { min_s, shape } => min_s * libm::exp(-libm::log1p(-p) / shape),
            Law::Histogram { edges_s, weights } => histogram_quantile(edges_s, weights, p),
            Law::Empirical { values_s } => {
                let rank = libm::ceil(p * values_s.len() as f64) as usize;
                values_s[rank.clamp(1, values_s.len()) - 1]
            }
            Law::Mixture(parts) => mixture_quantile(parts, p),
        }
    }

    /// Returns the probability that `t_s` seconds are not exceeded.
    pub fn cdf(&self, t_s: f64) -> f64 {
        if t_s < 0.0 {
            return 0.0;
        }
        match self {
            Law::Constant(value) => step(t_s, value.as_secs_f64()),
            Law::Uniform { min, max } if min == max => step(t_s, min.as_secs_f64()),
            Law::Uniform { min, max } => {
                let (min, max) = (min.as_secs_f64(), max.as_secs_f64());
                ((t_s - min) / (max - min)).clamp(0.0, 1.0)
            }
            Law::Exponential { mean } if mean.is_zero() => 1.0,
            Law::Exponential { mean } => -libm::expm1(-t_s / mean.as_secs_f64()),
            Law::LogNormal { median_s, sigma } if *sigma == 0.0 => step(t_s, *median_s),
            Law::LogNormal { median_s, sigma } => normal_cdf(libm::log(t_s / median_s) / sigma),
            Law::Gamma { shape, scale_s } => gamma_cdf(*shape, t_s / scale_s),
            Law::Weibull { shape, scale_s } => -libm::expm1(-libm::pow(t_s / scale_s, *shape)),
            Law::Pareto { min_s, .. } if t_s <= *min_s => 0.0,
            Law::Pareto { min_s, shape } => -libm::expm1(-shape * libm::log(t_s / min_s)),
            Law::Histogram { edges_s, weights } => histogram_cdf(edges_s, weights, t_s),
            Law::Empirical { values_s } => {
                values_s.partition_point(|&value| value <= t_s) as f64 / values_s.len() as f64
            }
            Law::Mixture(parts) => mixture_cdf(parts, t_s),
        }
    }

    /// Returns the mean in seconds; infinite where it is.
    pub fn mean(&self) -> f64 {
        match self {
            Law::Constant(value) => value.as_secs_f64(),
            Law::Uniform { min, max } => 0.5 * (min.as_secs_f64() + max.as_secs_f64()),
            Law::Exponential { mean } => mean.as_secs_f64(),
            Law::LogNormal { median_s, sigma } => median_s * libm::exp(0.5 * sigma * sigma),
            Law::Gamma { shape, scale_s } => shape * scale_s,
            Law::Weibull { shape, scale_s } => scale_s * libm::tgamma(1.0 + 1.0 / shape),
            Law::Pareto { shape, .. } if *shape <= 1.0 => f64::INFINITY,
            Law::Pareto { min_s, shape } => min_s * shape / (shape - 1.0),
            Law::Histogram { edges_s, weights } => {
                let bins = std::iter::zip(edges_s.windows(2), weights);
                let sum: f64 = bins.map(|(bin, w)| w * 0.5 * (bin[0] + bin[1])).sum();
                sum / weights.iter().sum::<f64>()
            }
            Law::Empirical { values_s } => values_s.iter().sum::<f64>() / values_s.len() as f64,
            Law::Mixture(parts) => {
                let used = parts.iter().filter(|(weight, _)| *weight > 0.0);
                let sum: f64 = used.map(|(weight, law)| weight * law.mean()).sum();
                sum / total(parts)
            }
        }
    }
}

/// Returns the count that a draw stands for under the Poisson distribution of this mean, by
/// inverting its distribution function.
///
/// # Panics
///
/// If `mean` is negative or not finite.
pub fn poisson(mean: f64, draw: u64) -> u64 {
    assert!(mean >= 0.0 && mean.is_finite(), "{mean} is no mean of a count");
    poisson_quantile(mean, unit(draw))
}

/// Why something is not a [`Law`].
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum LawError {
    /// Zero, negative or not a number.
    #[error("{what} {value} must be positive and finite")]
    NotPositive {
        /// The parameter.
        what: &'static str,
        /// Its value.
        value: f64,
    },
    /// Negative or not a number.
    #[error("{what} {value} must be zero or more, and finite")]
    Negative {
        /// The parameter.
        what: &'static str,
        /// Its value.
        value: f64,
    },
    /// Longer than [`LONGEST`].
    #[error("{what} {value:?} must be at most 100 years")]
    TooLong {
        /// The parameter.
        what: &'static str,
        /// Its value.
        value: Duration,
    },
    /// A uniform law from more to less.
    #[error("minimum {min:?} must not be above maximum {max:?}")]
    Reversed {
        /// The minimum.
        min: Duration,
        /// The maximum.
        max: Duration,
    },
    /// A gamma law that is a normal one for all purposes.
    #[error("shape {shape} must be at most 1000000; a normal or constant law would do")]
    ShapeTooLarge {
        /// The shape.
        shape: f64,
    },
    /// Edges or observations out of order.
    #[error("{what} {value} must not follow {previous}: they must rise")]
    NotRising {
        /// What is out of order.
        what: &'static str,
        /// The first value that is too small.
        value: f64,
        /// The one before it.
        previous: f64,
    },
    /// Edges and weights do not fit.
    #[error("{edges} edges need {} weights, not {weights}", edges.saturating_sub(1))]
    Mismatch {
        /// How many edges.
        edges: usize,
        /// How many weights.
        weights: usize,
    },
    /// No observation, bin or part.
    #[error("at least one {what} is needed")]
    Empty {
        /// What is missing.
        what: &'static str,
    },
    /// All weights are zero.
    #[error("at least one {what} must have a weight above zero")]
    NoWeight {
        /// What is weighted.
        what: &'static str,
    },
}

fn checked(law: Law) -> Result<Law, LawError> {
    law.validate().map(|()| law)
}

fn positive(what: &'static str, value: f64) -> Result<f64, LawError> {
    if value > 0.0 && value.is_finite() {
        Ok(value)
    } else {
        Err(LawError::NotPositive { what, value })
    }
}

fn non_negative(what: &'static str, value: f64) -> Result<(), LawError> {
    if value >= 0.0 && value.is_finite() { Ok(()) } else { Err(LawError::Negative { what, value }) }
}

fn at_most_longest(what: &'static str, value: Duration) -> Result<(), LawError> {
    if value <= LONGEST { Ok(()) } else { Err(LawError::TooLong { what, value }) }
}

#[derive(Clone, Copy, PartialEq)]
enum Rising {
    Weakly,
    Strictly,
}

fn rising(what: &'static str, values: &[f64], order: Rising) -> Result<(), LawError> {
    for &value in values {
        non_negative(what, value)?;
    }
    for pair in values.windows(2) {
        let (previous, value) = (pair[0], pair[1]);
        if value < previous || (value == previous && order == Rising::Strictly) {
            return Err(LawError::NotRising { what, value, previous });
        }
    }
    Ok(())
}

fn validate_weights(
    what: &'static str,
    weights: impl Iterator<Item = f64> + Clone,
) -> Result<(), LawError> {
    if weights.clone().next().is_none() {
        return Err(LawError::Empty { what });
    }
    for weight in weights.clone() {
        non_negative("weight", weight)?;
    }
    match weights.sum::<f64>() {
        0.0 => Err(LawError::NoWeight { what }),
        sum => positive("sum of weights", sum).map(drop),
    }
}

fn validate_histogram(edges_s: &[f64], weights: &[f64]) -> Result<(), LawError> {
    validate_weights("bin", weights.iter().copied())?;
    if edges_s.len() != weights.len() + 1 {
        return Err(LawError::Mismatch { edges: edges_s.len(), weights: weights.len() });
    }
    rising("edge", edges_s, Rising::Strictly)
}

/// Rounds seconds to nanoseconds; what is longer than [`LONGEST`] becomes that.
#[inline]
fn to_duration(seconds: f64) -> Duration {
    // The conversion saturates, at zero as well.
    let nanos = (seconds * 1e9 + 0.5) as u64;
    Duration::from_nanos(nanos.min(LONGEST.as_nanos() as u64))
}

/// Returns `scale · x`, and zero where `scale` is, even if `x` is infinite.
fn scaled(scale: f64, x: f64) -> f64 {
    if scale == 0.0 { 0.0 } else { scale * x }
}

fn step(t: f64, at: f64) -> f64 {
    if t >= at { 1.0 } else { 0.0 }
}

fn histogram_quantile(edges_s: &[f64], weights: &[f64], p: f64) -> f64 {
    let target = p * weights.iter().sum::<f64>();
    let mut below = 0.0;
    let mut last = edges_s[0];
    for (bin, &weight) in std::iter::zip(edges_s.windows(2), weights) {
        if weight > 0.0 {
            if below + weight >= target {
                return bin[0] + (bin[1] - bin[0]) * ((target - below) / weight).max(0.0);
            }
            last = bin[1];
        }
        below += weight;
    }
    last
}

fn histogram_cdf(edges_s: &[f64], weights: &[f64], t_s: f64) -> f64 {
    let mut below = 0.0;
    for (bin, weight) in std::iter::zip(edges_s.windows(2), weights) {
        below += weight * ((t_s - bin[0]) / (bin[1] - bin[0])).clamp(0.0, 1.0);
    }
    (below / weights.iter().sum::<f64>()).min(1.0)
}

fn total(parts: &[(f64, Law)]) -> f64 {
    parts.iter().map(|(weight, _)| weight).sum()
}

fn mixture_cdf(parts: &[(f64, Law)], t_s: f64) -> f64 {
    let used = parts.iter().filter(|(weight, _)| *weight > 0.0);
    let below: f64 = used.map(|(weight, law)| weight * law.cdf(t_s)).sum();
    (below / total(parts)).min(1.0)
}

/// Returns the first whole nanosecond at which the mixture's distribution function reaches `p`: on
/// a grid, so that the way there, and its rounding errors, do not show in the result.
///
/// The quantile of a mixture lies between those of its parts. A bracket that starts there shrinks
/// by regula falsi (Illinois), and every third time by half, which bounds the number of steps.
fn mixture_quantile(parts: &[(f64, Law)], p: f64) -> f64 {
    let mut low = f64::INFINITY;
    let mut high = 0.0_f64;
    for (_, law) in parts.iter().filter(|(weight, _)| *weight > 0.0) {
        let quantile = law.quantile(p);
        low = low.min(quantile);
        high = high.max(quantile);
    }
    if high >= LONGEST.as_secs_f64() && mixture_cdf(parts, LONGEST.as_secs_f64()) < p {
        return high;
    }
    let excess = |nanos: u64| mixture_cdf(parts, nanos as f64 / 1e9) - p;
    // The function reaches `p` after `low` and not after `high`; one more for rounding.
    let mut low = ((low * 1e9) as u64).saturating_sub(1);
    let mut high = to_duration(high).as_nanos() as u64 + 1;
    let (mut at_low, mut at_high) = (excess(low), excess(high));
    if at_low >= 0.0 {
        return low as f64 / 1e9;
    }
    let mut moved_high = None;
    let mut step = 0;
    while high - low > 1 {
        step += 1;
        let share = at_low / (at_low - at_high);
        let middle = if step % 3 == 0 || !(0.0..=1.0).contains(&share) {
            low + (high - low) / 2
        } else {
            low + (share * (high - low) as f64) as u64
        };
        let middle = middle.clamp(low + 1, high - 1);
        let at_middle = excess(middle);
        let moves_high = at_middle >= 0.0;
        if moves_high {
            (high, at_high) = (middle, at_middle);
        } else {
            (low, at_low) = (middle, at_middle);
        }
        // The end that stays twice counts for half, so that the next step passes the root.
        if moved_high == Some(moves_high) {
            *(if moves_high { &mut at_low } else { &mut at_high }) *= 0.5;
        }
        moved_high = Some(moves_high);
    }
    high as f64 / 1e9
}

#[cfg(test)]
mod tests;
