//! What theory says about a sweep's points, to draw beside what was simulated.

use sim_core::config::{Config, Law, Propagation};

/// Returns the expected time from a change's commit until the last node has it, in seconds, for
/// changes that are far enough apart not to wait for each other: the mean of the greatest of N
/// delays. Nothing if nodes differ or the mean is infinite.
pub(crate) fn last_node_s(config: &Config) -> Option<f64> {
    let Propagation::Delay { law, nodes } = &config.propagation else {
        return None;
    };
    nodes.is_empty().then(|| mean_of_greatest(law, config.cluster.nodes))?
}

fn mean_of_greatest(law: &Law, n: u32) -> Option<f64> {
    match law {
        Law::Constant(value) => return Some(value.as_secs_f64()),
        // m·H_N.
        Law::Exponential { mean } => {
            let harmonic: f64 = (1..=n).rev().map(|i| 1.0 / f64::from(i)).sum();
            return Some(mean.as_secs_f64() * harmonic);
        }
        // m·Γ(N + 1)·Γ(1 − 1/α) / Γ(N + 1 − 1/α).
        Law::Pareto { min_s, shape } if *shape > 1.0 => {
            let (n, tail) = (f64::from(n), 1.0 / shape);
            let log =
                libm::lgamma(n + 1.0) + libm::lgamma(1.0 - tail) - libm::lgamma(n + 1.0 - tail);
            return Some(min_s * libm::exp(log));
        }
        _ if !law.mean().is_finite() => return None,
        _ => {}
    }
    // ∫₀¹ Q(u^(1/N)) du, in pieces that halve towards both ends, where Q may run off; midpoints
    // within a piece. `s` is the distance from the end that is being approached.
    let last = 1.0 - f64::EPSILON / 2.0;
    let quantile = |log_u: f64| law.quantile(libm::exp(log_u / f64::from(n)).min(last));
    let mut sum = 0.0;
    let mut width = 0.25;
    for _ in 0..50 {
        const STEPS: u32 = 64;
        let step = width / f64::from(STEPS);
        for i in 0..STEPS {
            let s = width + step * (f64::from(i) + 0.5);
            sum += step * (quantile(libm::log(s)) + quantile(libm::log1p(-s)));
        }
        width /= 2.0;
    }
    sum.is_finite().then_some(sum)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn agrees_with_known_means() {
        // The greatest of n on [0, 1 s]: n / (n + 1).
        let uniform = Law::Uniform { min: Duration::ZERO, max: Duration::from_secs(1) };
        for n in [1, 10, 5000] {
            let expected = f64::from(n) / f64::from(n + 1);
            let found = mean_of_greatest(&uniform, n).unwrap();
            assert!((found - expected).abs() < 1e-6, "{n}: {found} {expected}");
        }
        // A Weibull law of shape 1 is exponential: the quadrature against m·H_N.
        let exponential = Law::Exponential { mean: Duration::from_secs(2) };
        let weibull = Law::Weibull { shape: 1.0, scale_s: 2.0 };
        for n in [1, 10, 1000, 5000] {
            let expected = mean_of_greatest(&exponential, n).unwrap();
            let found = mean_of_greatest(&weibull, n).unwrap();
            assert!((found / expected - 1.0).abs() < 1e-4, "{n}: {found} {expected}");
        }
        let pareto = Law::Pareto { min_s: 1.0, shape: 1.0 };
        assert_eq!(mean_of_greatest(&pareto, 10), None);
        // The greatest of one is one: α·m / (α − 1).
        let pareto = Law::Pareto { min_s: 1.0, shape: 3.0 };
        assert!((mean_of_greatest(&pareto, 1).unwrap() - 1.5).abs() < 1e-12);
    }
}
