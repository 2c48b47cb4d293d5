//! The functions that quantiles need and `libm` lacks.
//!
//! Only the basic operations of `f64` and `libm` are used: the same bits on every platform.

use std::f64::consts::{PI, SQRT_2};

/// Returns Φ(z), the probability that a standard normal variable is at most `z`.
pub(super) fn normal_cdf(z: f64) -> f64 {
    0.5 * libm::erfc(-z / SQRT_2)
}

/// Returns the z with Φ(z) = `p`, to about 10⁻¹⁵.
pub(super) fn normal_quantile(p: f64) -> f64 {
    if p > 0.5 {
        // In the lower tail the residual below is exact relative to `p`.
        return -normal_quantile(1.0 - p);
    }
    if p <= 0.0 {
        return f64::NEG_INFINITY;
    }
    // Abramowitz and Stegun 26.2.23: off by less than 4.5·10⁻⁴. Halley's method cubes that twice.
    let t = libm::sqrt(-2.0 * libm::log(p));
    let numerator = 2.515517 + t * (0.802853 + t * 0.010328);
    let denominator = 1.0 + t * (1.432788 + t * (0.189269 + t * 0.001308));
    let mut z = numerator / denominator - t;
    for _ in 0..2 {
        let density = libm::exp(-0.5 * z * z) / libm::sqrt(2.0 * PI);
        let step = (normal_cdf(z) - p) / density;
        z -= step / (1.0 + 0.5 * z * step);
    }
    z
}

/// The gamma distribution of scale 1 at one point.
struct GammaAt {
    below: f64,
    above: f64,
    density: f64,
}

/// Returns P(X ≤ `x`) for X of the gamma distribution of this shape and scale 1: the regularised
/// incomplete gamma function P(shape, x).
pub(super) fn gamma_cdf(shape: f64, x: f64) -> f64 {
    if x <= 0.0 {
        return 0.0;
    }
    if x == f64::INFINITY {
        return 1.0;
    }
    gamma_at(shape, x).below
}

/// Evaluates the tail that is the smaller one, and the other as its complement.
fn gamma_at(shape: f64, x: f64) -> GammaAt {
    // x^a e^(−x) / Γ(a + 1)
    let front = gamma_front(shape, x);
    let density = front * shape / x;
    if x < shape + 1.0 {
        // P = front · (1 + x/(a+1) + x²/((a+1)(a+2)) + …)
        let (mut sum, mut term, mut a) = (1.0, 1.0, shape);
        while term > sum * 1e-17 {
            a += 1.0;
            term *= x / a;
            sum += term;
        }
        let below = (front * sum).min(1.0);
        return GammaAt { below, above: 1.0 - below, density };
    }
    // Q = front · a / (x + 1 − a − 1(1 − a)/(x + 3 − a − 2(2 − a)/(x + 5 − a − …))), evaluated
    // from the front by Lentz's method.
    let mut b = x + 1.0 - shape;
    let mut c = f64::MAX;
    let mut d = 1.0 / b;
    let mut fraction = d;
    let mut n = 0.0;
    loop {
        n += 1.0;
        let a = -n * (n - shape);
        b += 2.0;
        d = 1.0 / (a * d + b);
        c = b + a / c;
        let factor = c * d;
        fraction *= factor;
        if (factor - 1.0).abs() < 1e-16 || n > 1e5 {
            break;
        }
    }
    let above = (front * shape * fraction).min(1.0);
    GammaAt { below: 1.0 - above, above, density }
}

/// Returns x^a e^(−x) / Γ(a + 1).
fn gamma_front(a: f64, x: f64) -> f64 {
    if a < 10.0 {
        return libm::exp(a * libm::log(x) - x - libm::lgamma(a + 1.0));
    }
    // Γ(a + 1) by Stirling's series, with the large terms cancelled against those of x^a e^(−x).
    let i = 1.0 / (a * a);
    let series = (1.0 / 12.0 - i * (1.0 / 360.0 - i * (1.0 / 1260.0 - i / 1680.0))) / a;
    let d = (x - a) / a;
    let exponent =
        if d.abs() < 0.5 { a * (libm::log1p(d) - d) } else { a * libm::log(x / a) - (x - a) };
    libm::exp(exponent - series) / libm::sqrt(2.0 * PI * a)
}

/// Returns the x with P(X ≤ x) = `p` for X of the gamma distribution of this shape and scale 1.
pub(super) fn gamma_quantile(shape: f64, p: f64) -> f64 {
    if p <= 0.0 {
        return 0.0;
    }
    if p >= 1.0 {
        return f64::INFINITY;
    }
    let mut x = gamma_start(shape, p);
    if x < f64::MIN_POSITIVE {
        return 0.0;
    }
    // Halley's method, kept inside a shrinking bracket.
    let (mut low, mut high) = (0.0, f64::INFINITY);
    for _ in 0..200 {
        let at = gamma_at(shape, x);
        let excess = if p <= 0.5 { at.below - p } else { (1.0 - p) - at.above };
        if excess > 0.0 {
            high = x;
        } else {
            low = x;
        }
        let step = excess / at.density;
        let slope = 1.0 - 0.5 * step * ((shape - 1.0) / x - 1.0);
        let next = x - step / slope.max(0.5);
        // The error of `next` is about the cube of this.
        if step.abs() <= 1e-6 * x {
            return next;
        }
        x = if next > low && next < high {
            next
        } else if high == f64::INFINITY {
            2.0 * x
        } else {
            0.5 * (low + high)
        };
    }
    x
}

fn gamma_start(shape: f64, p: f64) -> f64 {
    // P(a, x) is about x^a / Γ(a + 1) where x is small.
    let small = libm::exp((libm::log(p) + libm::lgamma(shape + 1.0)) / shape);
    if small < 0.1 * (shape + 1.0) {
        return small;
    }
    if shape < 0.5 {
        // Q(a, x) is about e^(−x) x^(a−1) / Γ(a) where x is large.
        return (-libm::log1p(-p) - libm::lgamma(shape)).max(0.1);
    }
    // Wilson and Hilferty: the cube root of X is nearly normal.
    let ninth = 1.0 / (9.0 * shape);
    let root = 1.0 - ninth + normal_quantile(p) * libm::sqrt(ninth);
    if root > 0.1 { shape * root * root * root } else { small }
}

/// Returns the smallest k with P(N ≤ k) ≥ `p` for N of the Poisson distribution of this mean.
pub(super) fn poisson_quantile(mean: f64, p: f64) -> u64 {
    if mean > 500.0 {
        return poisson_quantile_by_gamma(mean, p);
    }
    let mut term = libm::exp(-mean);
    let mut sum = term;
    let mut k = 0.0;
    while sum < p {
        k += 1.0;
        term *= mean / k;
        // In the far tail `sum` stops short of 1 by the rounding of its terms.
        if k > mean && term < 1e-17 {
            break;
        }
        sum += term;
    }
    k as u64
}

/// P(N ≤ k) = P(X > mean) for X of the gamma distribution of shape k + 1. Bisects over k.
fn poisson_quantile_by_gamma(mean: f64, p: f64) -> u64 {
    let spread = 10.0 * libm::sqrt(mean);
    let mut low = (mean - spread).max(0.0) as u64;
    let mut high = (mean + spread) as u64;
    while low < high {
        let middle = low + (high - low) / 2;
        if gamma_at(middle as f64 + 1.0, mean).above >= p {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    low
}

#[cfg(test)]
mod tests {
    use super::*;

    fn close(got: f64, want: f64, relative: f64) {
        assert!(
            (got - want).abs() <= relative * want.abs(),
            "{got} instead of {want}: off by {:e}",
            (got / want - 1.0).abs()
        );
    }

    // (p, z) and (shape, p, x), computed with 60 digits.
    const NORMAL: &[(f64, f64)] = &[
        (1e-300, -37.0470962993612),
        (5.551115123125783e-17, -8.292361075813595),
        (1e-09, -5.9978070150076865),
        (0.001, -3.0902323061678136),
        (0.02425, -1.9729610513118847),
        (0.1, -1.2815515655446004),
        (0.3, -0.5244005127080408),
        (0.49, -0.025068908258711057),
        (0.499999, -2.5066282745665593e-06),
    ];
    const GAMMA: &[(f64, f64, f64)] = &[
        (0.01, 0.01, 5.660738147061947e-201),
        (0.01, 0.1, 5.6607381470619397e-101),
        (0.01, 0.5, 4.465535018910355e-31),
        (0.01, 0.9, 1.5035936230702948e-05),
        (0.01, 0.99, 0.26505255025158186),
        (0.01, 0.999999, 7.151253478084882),
        (0.3, 1e-06, 6.972699096409348e-21),
        (0.3, 0.01, 1.502222655236038e-07),
        (0.3, 0.1, 0.0003237246218234327),
        (0.3, 0.5, 0.0731311358669519),
        (0.3, 0.9, 0.884810773360244),
        (0.3, 0.99, 2.639409157070533),
        (0.3, 0.999999, 10.984835632108625),
        (0.5, 1e-06, 7.853981633978594e-13),
        (0.5, 0.01, 7.854392895485099e-05),
        (0.5, 0.1, 0.007895387046715613),
        (0.5, 0.5, 0.2274682115597864),
        (0.5, 0.9, 1.3527717270477075),
        (0.5, 0.99, 3.317448300510607),
        (0.5, 0.999999, 11.964063488439734),
        (1.0, 1e-06, 1.0000005000003334e-06),
        (1.0, 0.01, 0.01005033585350144),
        (1.0, 0.1, 0.10536051565782631),
        (1.0, 0.5, std::f64::consts::LN_2),
        (1.0, 0.9, std::f64::consts::LN_10),
        (1.0, 0.99, 4.605170185988091),
        (1.0, 0.999999, 13.815510557935518),
        (2.5, 1e-06, 0.006448080103248548),
        (2.5, 0.01, 0.27714903836413857),
        (2.5, 0.1, 0.8051539934811616),
        (2.5, 0.5, 2.1757300955477636),
        (2.5, 0.9, 4.61817844989056),
        (2.5, 0.99, 7.543136234694494),
        (2.5, 0.999999, 17.94409343980521),
        (9.5, 1e-06, 1.127526861710015),
        (9.5, 0.01, 3.8163648237857357),
        (9.5, 0.1, 5.825455016063476),
        (9.5, 0.5, 9.168826448378237),
        (9.5, 0.9, 13.601785514678413),
        (9.5, 0.99, 18.095434564635024),
        (9.5, 0.999999, 31.838526142800315),
        (10.5, 1e-06, 1.4330576988246988),
        (10.5, 0.01, 4.4485989710386065),
        (10.5, 0.1, 6.619798987697652),
        (10.5, 0.5, 10.168613781773963),
        (10.5, 0.9, 14.807544718091368),
        (10.5, 0.99, 19.466086341758032),
        (10.5, 0.999999, 33.573254366197),
        (50.0, 1e-06, 23.25066535794659),
        (50.0, 0.01, 35.0324474626999),
        (50.0, 0.1, 41.179067906178574),
        (50.0, 0.5, 49.66706461799423),
        (50.0, 0.9, 59.24900190553105),
        (50.0, 0.99, 67.90336158551338),
        (50.0, 0.999999, 91.06338855971308),
        (1000.0, 1e-06, 856.8146512793919),
        (1000.0, 0.01, 927.9081597966425),
        (1000.0, 0.1, 959.6939327288333),
        (1000.0, 0.5, 999.6666864269652),
        (1000.0, 0.9, 1040.73430801369),
        (1000.0, 0.99, 1075.032832086435),
        (1000.0, 0.999999, 1157.577911008724),
    ];

    #[test]
    fn normal_quantiles() {
        for &(p, z) in NORMAL {
            assert!((normal_quantile(p) - z).abs() < 1e-15 - 1e-14 * z, "{p}");
            assert_eq!(normal_quantile(1.0 - p), -normal_quantile(1.0 - (1.0 - p)));
        }
        assert!(normal_quantile(0.5).abs() < 1e-15);
    }

    #[test]
    fn gamma_quantiles() {
        for &(shape, p, x) in GAMMA {
            close(gamma_quantile(shape, p), x, 1e-11);
            close(gamma_cdf(shape, x), p, 1e-11);
        }
    }

    #[test]
    fn gamma_quantile_undoes_cdf_everywhere() {
        for shape in [1e-3, 0.1, 0.5, 0.99, 1.0, 1.01, 3.0, 9.9, 10.0, 123.0, 1e4, 1e6] {
            let mut previous = 0.0;
            for step in 1..200 {
                let p = f64::from(step) / 200.0;
                let x = gamma_quantile(shape, p);
                assert!(x >= previous);
                previous = x;
                if x > 0.0 {
                    close(gamma_cdf(shape, x), p, 1e-11);
                }
            }
        }
    }

    #[test]
    fn poisson_quantiles_agree_with_gamma() {
        for mean in [0.01, 1.0, 7.5, 100.0, 499.0] {
            for step in 1..100 {
                let p = f64::from(step) / 100.0;
                let k = poisson_quantile(mean, p);
                assert!(gamma_at(k as f64 + 1.0, mean).above >= p - 1e-12);
                assert!(k == 0 || gamma_at(k as f64, mean).above < p + 1e-12);
            }
        }
        assert_eq!(poisson_quantile(0.0, 0.999), 0);
        assert_eq!(poisson_quantile(100.0, f64::MIN_POSITIVE), 0);
        let nearly_one = 1.0 - f64::EPSILON / 2.0;
        assert!((180..250).contains(&poisson_quantile(100.0, nearly_one)));
        assert!((1200..1350).contains(&poisson_quantile(1000.0, nearly_one)));
        let agree = poisson_quantile_by_gamma(499.0, 0.3);
        assert_eq!(poisson_quantile(499.0, 0.3), agree);
    }
}
