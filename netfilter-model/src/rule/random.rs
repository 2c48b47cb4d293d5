//! `statistic --mode random`: probabilities as the kernel holds them, and runs of such rules.
//!
//! The kernel draws 31 random bits for each rule that is reached. A run of rules that ask nothing
//! else has a simple law: rule m is chosen with probability k(m) · Π (1 − k(i)) over the rules
//! before it. One draw of 64 bits, mapped through the cumulative law, chooses the same way.

use std::fmt;

/// One, in the 31-bit scale of `statistic`.
const ONE: u32 = 1 << 31;

/// Fraction bits of the fixed-point numbers in which the law of a run is computed.
pub const LAW_BITS: u32 = 96;

/// A probability of k / 2³¹.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Probability(u32);

/// A text is no probability.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("probability {0:?} is not a number from 0 to 1")]
pub struct ProbabilityError(pub String);

impl Probability {
    /// Always.
    pub const ALWAYS: Probability = Probability(ONE);
    /// Never.
    pub const NEVER: Probability = Probability(0);

    /// Returns the probability k / 2³¹, or `None` if that is more than 1.
    pub const fn from_k(k: u32) -> Option<Probability> {
        if k <= ONE { Some(Probability(k)) } else { None }
    }

    /// Returns the probability that iptables makes of a decimal text.
    ///
    /// # Errors
    ///
    /// If the text is not a number from 0 to 1.
    // iptables: libxt_statistic.c: strtod, then lround(0x80000000 * p). The product is exact.
    pub fn parse(text: &str) -> Result<Probability, ProbabilityError> {
        let error = || ProbabilityError(text.to_owned());
        let p: f64 = text.parse().map_err(|_| error())?;
        if !(0.0..=1.0).contains(&p) {
            return Err(error());
        }
        Ok(Probability((p * f64::from(ONE)).round() as u32))
    }

    /// Returns what becomes of 1/n when it is written with ten decimals, as kube-proxy does.
    ///
    /// # Panics
    ///
    /// If n is 0.
    pub fn one_of(n: u32) -> Probability {
        assert!(n > 0, "one of no alternatives");
        let text = format!("{:.10}", 1.0 / f64::from(n));
        Probability::parse(&text).expect("a number from 0 to 1")
    }

    /// Returns k.
    pub const fn k(self) -> u32 {
        self.0
    }

    /// Returns whether a rule with this probability matches on a draw.
    #[inline]
    pub const fn matches(self, draw: u64) -> bool {
        draw >> 33 < self.0 as u64
    }
}

impl fmt::Display for Probability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.11}", f64::from(self.0) / f64::from(ONE))
    }
}

/// Consecutive rules that ask nothing but `statistic --mode random`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Run {
    /// Position of the first rule in its chain.
    pub(crate) start: u32,
    /// The probabilities, in order.
    probabilities: Box<[Probability]>,
    /// For each rule, the first draw that it and those before it leave over.
    ///
    /// A rule that matches always ends the list: its limit would be 2⁶⁴.
    limits: Box<[u64]>,
}

impl Run {
    pub(crate) fn new(start: u32, probabilities: Box<[Probability]>) -> Run {
        let mut limits = Vec::with_capacity(probabilities.len());
        let mut left = 1 << LAW_BITS;
        for probability in &probabilities {
            if *probability == Probability::ALWAYS {
                break;
            }
            left = survive(left, *probability);
            limits.push(limit(left));
        }
        Run { start, probabilities, limits: limits.into() }
    }

    pub(crate) fn end(&self) -> u32 {
        self.start + self.probabilities.len() as u32
    }

    /// Returns for each rule the first draw that it and those before it leave over, up to a rule
    /// that matches always.
    pub(crate) fn limits(&self) -> &[u64] {
        &self.limits
    }

    pub(crate) fn probabilities(&self) -> &[Probability] {
        &self.probabilities
    }

    /// Returns which rule from position `from` on is chosen, counted from `from`.
    ///
    /// Entered in its middle, the tail is a run of its own.
    #[inline]
    pub(crate) fn pick(&self, from: u32, draw: u64) -> Option<u32> {
        if from == self.start {
            let chosen = self.limits.partition_point(|limit| *limit <= draw);
            return (chosen < self.probabilities.len()).then_some(chosen as u32);
        }
        pick_linearly(&self.probabilities[(from - self.start) as usize..], draw)
    }
}

fn pick_linearly(probabilities: &[Probability], draw: u64) -> Option<u32> {
    let mut left = 1 << LAW_BITS;
    let chosen = probabilities.iter().position(|probability| {
        left = survive(left, *probability);
        *probability == Probability::ALWAYS || draw < limit(left)
    })?;
    Some(chosen as u32)
}

/// Returns what is left of a probability behind a rule, in units of 2⁻⁹⁶, rounded down.
fn survive(left: u128, probability: Probability) -> u128 {
    (left * u128::from(ONE - probability.0)) >> 31
}

/// Returns the first 64-bit draw beyond 1 − left.
fn limit(left: u128) -> u64 {
    let taken = (1u128 << LAW_BITS) - left;
    u64::try_from(taken >> (LAW_BITS - 64)).unwrap_or(u64::MAX)
}

/// Returns for each rule of a run the probability that it is chosen, and last the probability
/// that none is, in units of 2⁻⁹⁶.
///
/// They sum to 2⁹⁶. Each is exact but for the rounding of at most n · 2⁻⁹⁶.
pub fn random_run_probabilities(probabilities: &[Probability]) -> Vec<u128> {
    let mut left = 1u128 << LAW_BITS;
    let mut law = Vec::with_capacity(probabilities.len() + 1);
    for probability in probabilities {
        let after = survive(left, *probability);
        law.push(left - after);
        left = after;
    }
    law.push(left);
    law
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The probabilities of a kube-proxy Service chain of n endpoints: n − 1 random rules.
    fn service(n: u32) -> Vec<Probability> {
        (2..=n).rev().map(Probability::one_of).collect()
    }

    #[test]
    fn k_of_one_in_n() {
        let table = [
            (1, 0x8000_0000, "1.00000000000"),
            (2, 0x4000_0000, "0.50000000000"),
            (3, 0x2aaa_aaab, "0.33333333349"),
            (4, 0x2000_0000, "0.25000000000"),
            (5, 0x1999_999a, "0.20000000019"),
            (6, 0x1555_5555, "0.16666666651"),
            (7, 306_783_378, "0.14285714272"),
            (8, 0x1000_0000, "0.12500000000"),
            (9, 0x0e38_e38e, "0.11111111101"),
            (10, 0x0ccc_cccd, "0.10000000009"),
            (12, 0x0aaa_aaab, "0.08333333349"),
            (16, 0x0800_0000, "0.06250000000"),
            (20, 107_374_182, "0.04999999981"),
            (25, 85_899_346, "0.04000000004"),
            (44, 48_806_446, "0.02272727247"),
            (50, 42_949_673, "0.02000000002"),
            (51, 42_107_522, "0.01960784290"),
            (64, 33_554_432, "0.01562500000"),
            (72, 29_826_162, "0.01388888899"),
            (73, 29_417_584, "0.01369863003"),
            (74, 29_020_049, "0.01351351338"),
            (75, 28_633_115, "0.01333333319"),
            (99, 21_691_754, "0.01010101009"),
            (100, 21_474_836, "0.00999999978"),
            (150, 14_316_558, "0.00666666683"),
            (200, 10_737_418, "0.00499999989"),
        ];
        for (n, k, printed) in table {
            let probability = Probability::one_of(n);
            assert_eq!((probability.k(), probability.to_string().as_str()), (k, printed), "1/{n}");
            assert_eq!(Probability::parse(printed), Ok(probability), "{printed} is a fixed point");
        }
    }

    #[test]
    fn k_comes_from_the_ten_decimals_not_from_the_quotient() {
        let differs = |n: &u32| {
            let exact = ((1u64 << 32) / u64::from(*n)).div_ceil(2) as u32;
            Probability::one_of(*n).k() != exact
        };
        let differing: Vec<u32> = (1..=200).filter(differs).collect();
        assert_eq!(differing, [44, 51, 71, 124, 141, 159, 164, 166]);
    }

    #[test]
    fn edges_of_the_scale() {
        assert_eq!(Probability::parse("0.00000000023").unwrap().k(), 0);
        assert_eq!(Probability::parse("0.00000000024").unwrap().k(), 1);
        for bad in ["", "x", "-0.1", "1.1", "nan"] {
            assert!(Probability::parse(bad).is_err(), "{bad:?}");
        }
        assert!(!Probability::NEVER.matches(0));
        assert!(Probability::ALWAYS.matches(u64::MAX));
    }

    #[test]
    fn each_of_74_endpoints_is_equally_likely() {
        let law = random_run_probabilities(&service(74));
        assert_eq!(law.len(), 74);
        assert_eq!(law.iter().sum::<u128>(), 1 << LAW_BITS);
        let fair = (1u128 << LAW_BITS) / 74;
        for (endpoint, p) in law.iter().enumerate() {
            assert!(p.abs_diff(fair) < 1 << (LAW_BITS - 31), "endpoint {endpoint}: {p}");
        }
    }

    #[test]
    fn a_run_picks_by_its_law() {
        let run = Run::new(5, service(74).into());
        // A draw just below and at each boundary of the cumulative law.
        let mut sum = 0u128;
        for (m, p) in random_run_probabilities(run.probabilities()).iter().enumerate() {
            let chosen = (m < 73).then_some(m as u32);
            let first = (sum >> 32) as u64;
            assert_eq!(run.pick(5, first), chosen, "first draw of {m}");
            sum += p;
            let last = ((sum >> 32) - 1) as u64;
            assert_eq!(run.pick(5, last), chosen, "last draw of {m}");
        }
    }

    #[test]
    fn a_tail_is_a_run_of_its_own() {
        let run = Run::new(0, service(10).into());
        let tail = Run::new(4, service(6).into());
        for i in 0..1000u64 {
            let draw = i.wrapping_mul(0x9e37_79b9_7f4a_7c15);
            assert_eq!(run.pick(4, draw), tail.pick(4, draw));
        }
    }

    #[test]
    fn certain_and_impossible_rules() {
        let run = Run::new(0, Box::new([Probability::NEVER, Probability::ALWAYS]));
        for draw in [0, 1 << 63, u64::MAX] {
            assert_eq!(run.pick(0, draw), Some(1));
            assert_eq!(run.pick(1, draw), Some(0));
        }
        let never = Run::new(0, Box::new([Probability::NEVER]));
        assert_eq!(never.pick(0, 0), None);
    }

    #[test]
    fn a_single_rule_agrees_with_the_31_bit_comparison() {
        let half = Run::new(0, Box::new([Probability::one_of(3)]));
        for draw in [0, (0x2aaa_aaab_u64 << 33) - 1, 0x2aaa_aaab << 33, u64::MAX] {
            let matches = Probability::one_of(3).matches(draw);
            assert_eq!(half.pick(0, draw).is_some(), matches, "{draw:#x}");
        }
    }
}
