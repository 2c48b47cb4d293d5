//! Probabilities without rounding.

use std::fmt;
use std::ops::{Add, Sub};

use num_bigint::BigUint;

/// An exact probability: a whole number over a power of two, in lowest terms.
///
/// Everything that is drawn here is drawn from 31 or 32 random bits, so no other denominators occur.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Share {
    numerator: BigUint,
    /// The denominator is two to this power.
    exponent: u64,
}

impl Share {
    /// Returns certainty.
    pub fn one() -> Share {
        Share { numerator: BigUint::from(1u32), exponent: 0 }
    }

    /// Returns impossibility.
    pub fn zero() -> Share {
        Share { numerator: BigUint::ZERO, exponent: 0 }
    }

    /// Returns `numerator` / 2^`exponent`.
    pub fn new(numerator: u64, exponent: u64) -> Share {
        Share { numerator: BigUint::from(numerator), exponent }.reduced()
    }

    fn reduced(mut self) -> Share {
        let spare = self.numerator.trailing_zeros().unwrap_or(self.exponent).min(self.exponent);
        self.numerator >>= spare;
        self.exponent -= spare;
        if self.numerator == BigUint::ZERO {
            self.exponent = 0;
        }
        self
    }

    /// Returns this probability times `weight` / 2^`bits`.
    pub fn times(&self, weight: u64, bits: u32) -> Share {
        let exponent = self.exponent + u64::from(bits);
        Share { numerator: &self.numerator * weight, exponent }.reduced()
    }

    /// Returns whether this is impossibility.
    pub fn is_zero(&self) -> bool {
        self.numerator == BigUint::ZERO
    }

    /// Returns the numerator, in lowest terms.
    pub fn numerator(&self) -> &BigUint {
        &self.numerator
    }

    /// Returns the power of two that is the denominator, in lowest terms.
    pub fn exponent(&self) -> u64 {
        self.exponent
    }

    /// Returns the nearest number but for the last bit.
    pub fn to_f64(&self) -> f64 {
        let spare = self.numerator.bits().saturating_sub(64);
        let top = u64::try_from(&self.numerator >> spare).expect("64 bits are left");
        let exponent = spare as i64 - self.exponent as i64;
        top as f64 * 2f64.powi(i32::try_from(exponent).unwrap_or(i32::MIN))
    }

    fn scaled(&self, exponent: u64) -> BigUint {
        &self.numerator << (exponent - self.exponent)
    }
}

impl Add<&Share> for Share {
    type Output = Share;

    fn add(self, other: &Share) -> Share {
        let exponent = self.exponent.max(other.exponent);
        let numerator = self.scaled(exponent) + other.scaled(exponent);
        Share { numerator, exponent }.reduced()
    }
}

impl Sub<&Share> for Share {
    type Output = Share;

    /// # Panics
    ///
    /// If the result is below zero.
    fn sub(self, other: &Share) -> Share {
        let exponent = self.exponent.max(other.exponent);
        let numerator = self.scaled(exponent) - other.scaled(exponent);
        Share { numerator, exponent }.reduced()
    }
}

impl<'s> std::iter::Sum<&'s Share> for Share {
    fn sum<I: Iterator<Item = &'s Share>>(shares: I) -> Share {
        shares.fold(Share::zero(), Share::add)
    }
}

/// `numerator/denominator`, also for whole numbers: `1/1`.
impl fmt::Display for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.numerator, BigUint::from(1u32) << self.exponent)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arithmetic_in_lowest_terms() {
        let third = Share::new(715_827_883, 31);
        assert_eq!(third.to_string(), "715827883/2147483648");
        assert_eq!(Share::new(1 << 30, 31).to_string(), "1/2");
        assert_eq!((Share::one() - &third).to_string(), "1431655765/2147483648");
        assert_eq!((Share::new(1, 2) + &Share::new(3, 2)).to_string(), "1/1");
        assert_eq!(Share::new(0, 31), Share::zero());
        assert_eq!(third.times(0, 31), Share::zero());
        assert_eq!(Share::new(1, 1).times(1 << 31, 31).to_string(), "1/2");
    }

    #[test]
    fn near_numbers() {
        assert_eq!(Share::one().to_f64(), 1.0);
        assert_eq!(Share::zero().to_f64(), 0.0);
        assert_eq!(Share::new(3, 3).to_f64(), 0.375);
        let mut tiny = Share::one();
        for _ in 0..100 {
            tiny = tiny.times((1 << 31) - 1, 31);
        }
        assert!((tiny.to_f64() - (1.0 - 100.0 / f64::from(1u32 << 31))).abs() < 1e-12);
    }
}
