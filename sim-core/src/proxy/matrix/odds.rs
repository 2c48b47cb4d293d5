//! How likely an end is, or how often it comes.

use std::fmt;

use netfilter_model::exact::Share;

use super::plane::gcd;

/// How likely an end of a cell is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Odds {
    /// Each connection is drawn for, with this probability.
    Chance(Share),
    /// Nothing is drawn: endpoints take turns, and so many of as many connections in a row end so.
    Turns {
        /// How many.
        of: u64,
        /// Of how many.
        all: u64,
    },
}

impl Odds {
    /// Returns certainty where all of the turns are meant.
    pub(super) fn turns(of: u64, all: u64) -> Odds {
        if of == all { Odds::Chance(Share::one()) } else { Odds::Turns { of, all } }
    }

    /// Returns the sum of two of the same cell.
    pub(super) fn plus(&self, other: &Odds) -> Odds {
        match (self, other) {
            (Odds::Chance(one), Odds::Chance(other)) => Odds::Chance(one.clone() + other),
            (Odds::Turns { of, all }, Odds::Turns { of: more, .. }) => Odds::turns(of + more, *all),
            // A cell has one kind.
            (one, _) => one.clone(),
        }
    }

    /// Returns whether it never comes to that.
    pub fn is_zero(&self) -> bool {
        match self {
            Odds::Chance(share) => share.is_zero(),
            Odds::Turns { of, .. } => *of == 0,
        }
    }

    /// Returns whether it is a matter of turns.
    pub const fn is_in_turn(&self) -> bool {
        matches!(self, Odds::Turns { .. })
    }

    /// Returns the probability, or the share of many connections.
    pub fn to_f64(&self) -> f64 {
        match self {
            Odds::Chance(share) => share.to_f64(),
            Odds::Turns { of, all } => *of as f64 / *all as f64,
        }
    }
}

/// `numerator/denominator`, in lowest terms.
impl fmt::Display for Odds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Odds::Chance(share) => share.fmt(f),
            Odds::Turns { of, all } => {
                let common = gcd(*of, *all);
                write!(f, "{}/{}", of / common, all / common)
            }
        }
    }
}
