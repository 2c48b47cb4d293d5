use super::*;
use crate::engine::rng::Seed;

const MS: fn(u64) -> Duration = Duration::from_millis;

/// Every law, with mixtures of both kinds: continuous, and with atoms.
fn laws() -> Vec<Law> {
    let exponential = Law::Exponential { mean: MS(300) };
    let gamma = |shape| Law::Gamma { shape, scale_s: 0.2 };
    let histogram = Law::Histogram {
        edges_s: vec![0.0, 0.1, 0.2, 0.5, 1.0],
        weights: vec![3.0, 0.0, 5.0, 2.0],
    };
    vec![
        Law::Constant(MS(5)),
        Law::Uniform { min: MS(5), max: MS(50) },
        exponential.clone(),
        Law::LogNormal { median_s: 0.3, sigma: 0.8 },
        gamma(0.4),
        gamma(1.0),
        gamma(12.0),
        Law::Weibull { shape: 0.7, scale_s: 0.3 },
        Law::Weibull { shape: 3.0, scale_s: 0.3 },
        Law::Pareto { min_s: 0.1, shape: 4.0 },
        histogram.clone(),
        Law::Empirical { values_s: vec![0.1, 0.1, 0.2, 0.7, 1.5] },
        Law::Mixture(vec![(9.0, exponential), (0.0, gamma(5.0)), (1.0, gamma(3.0))]),
        Law::Mixture(vec![
            (0.5, Law::Constant(MS(100))),
            (0.3, histogram),
            (0.2, Law::Constant(MS(700))),
        ]),
    ]
}

#[test]
fn means_agree_with_quantiles() {
    // The mean is the integral of the quantile over (0, 1), here by the midpoint rule after
    // p = s²(3 − 2s), which flattens both ends. The rule's error is O(n⁻²) for smooth laws; jumps
    // of the quantile (atoms) and the power tails leave about span/n: 10⁻⁴ of the mean at n = 2¹⁵.
    let n = 1 << 15;
    for law in laws() {
        law.validate().unwrap();
        let mut sum = 0.0;
        for i in 0..n {
            let s = (f64::from(i) + 0.5) / f64::from(n);
            let p = s * s * (3.0 - 2.0 * s);
            sum += law.quantile(p) * 6.0 * s * (1.0 - s) / f64::from(n);
        }
        let error = sum / law.mean() - 1.0;
        assert!(error.abs() < 2e-4, "{law:?}: off by {error:e}");
    }
}

#[test]
fn quantile_is_the_least_time_that_cdf_reaches() {
    for law in laws() {
        for i in 1..1000 {
            let p = f64::from(i) / 1000.0;
            let t = law.quantile(p);
            assert!(law.cdf(t) >= p - 1e-11, "{law:?} at {p}: {} there", law.cdf(t));
            let before = law.cdf(t * (1.0 - 1e-9));
            assert!(before <= p + 1e-7, "{law:?} at {p}: {before} before");
        }
    }
}

#[test]
fn a_larger_draw_is_never_a_shorter_time() {
    let mut cursor = Seed::new(1, 0).stream("monotone").cursor(0);
    let mut draws: Vec<_> = (0..2000).map(|_| cursor.next_u64()).collect();
    draws.extend([0, 1, 1 << 11, 1 << 12, u64::MAX - (1 << 11), u64::MAX]);
    draws.extend((0..500).map(|i| (1 << 63) + (i << 40)));
    draws.sort_unstable();
    for law in laws() {
        let samples: Vec<_> = draws.iter().map(|&draw| law.sample(draw)).collect();
        assert!(samples.is_sorted(), "{law:?}");
        for (&draw, &sample) in std::iter::zip(&draws, &samples) {
            // The exponential law takes another way to its samples.
            let quantile = to_duration(law.quantile(unit(draw)));
            assert!(quantile.abs_diff(sample) <= Duration::from_nanos(1));
        }
    }
}

/// `libm` computes the same bits everywhere; a new version of it may not.
#[test]
fn golden() {
    let mut cursor = Seed::new(1, 0).stream("golden").cursor(0);
    let draws: Vec<_> = (0..100).map(|_| cursor.next_u64()).collect();
    let sum =
        |law: &Law| -> u64 { draws.iter().map(|&draw| law.sample(draw).as_nanos() as u64).sum() };
    let sums: Vec<_> = laws().iter().map(sum).collect();
    expect_test::expect![[r#"
        [
            500000000,
            2851496701,
            31640719760,
            42952903714,
            8506370429,
            21093813174,
            245027342219,
            40155047460,
            27544618067,
            13471428797,
            36329204922,
            51200000000,
            34791818371,
            28521858977,
        ]
    "#]]
    .assert_debug_eq(&sums);
}

#[test]
fn closed_forms() {
    let close = |got: f64, want: f64| assert!((got / want - 1.0).abs() < 1e-13, "{got} {want}");
    close(Law::Exponential { mean: MS(300) }.quantile(0.5), 0.3 * std::f64::consts::LN_2);
    // A gamma law of shape 1 is exponential; a Weibull law of shape 1 as well.
    for p in [1e-9, 0.1, 0.5, 0.999] {
        let want = Law::Exponential { mean: MS(300) }.quantile(p);
        let shape = 1.0;
        let scale_s = 0.3;
        close(Law::Weibull { shape, scale_s }.quantile(p), want);
        let gamma = Law::Gamma { shape, scale_s }.quantile(p);
        assert!((gamma / want - 1.0).abs() < 1e-11);
    }
    let pareto = Law::Pareto { min_s: 0.1, shape: 2.0 };
    close(pareto.quantile(0.75), 0.2);
    let lognormal = Law::LogNormal { median_s: 0.3, sigma: 0.8 };
    close(lognormal.quantile(0.5), 0.3);
    let heavy = Law::Pareto { min_s: 0.1, shape: 1.0 };
    assert_eq!(heavy.mean(), f64::INFINITY);
    assert_eq!(heavy.quantile(1.0), f64::INFINITY);
    let heavier = Law::Pareto { min_s: 1.0, shape: 0.01 };
    assert_eq!(heavier.sample(u64::MAX), LONGEST);
    assert_eq!(Law::Exponential { mean: MS(0) }.sample(u64::MAX), MS(0));
}

#[test]
fn laws_by_what_people_know() {
    let close = |got: f64, want: f64| assert!((got / want - 1.0).abs() < 1e-9, "{got} {want}");
    let law = Law::lognormal_by_p99(MS(300), MS(2000)).unwrap();
    close(law.quantile(0.5), 0.3);
    close(law.quantile(0.99), 2.0);
    let law = Law::lognormal_by_sd(MS(300), MS(400)).unwrap();
    close(law.mean(), 0.3);
    let Law::LogNormal { sigma, .. } = law else { panic!("{law:?} is not lognormal") };
    close(0.3 * libm::sqrt(libm::expm1(sigma * sigma)), 0.4);
    let law = Law::gamma_by_sd(MS(300), MS(150)).unwrap();
    let Law::Gamma { shape, scale_s } = law else { panic!("{law:?} is not gamma") };
    close(shape, 4.0);
    close(scale_s, 0.075);
    assert_eq!(Law::gamma_by_shape(MS(300), 4.0).unwrap().mean(), 0.3);
}

#[test]
fn what_is_no_law_is_refused_with_its_value() {
    let refused = |law: Law| law.validate().unwrap_err().to_string();
    let uniform = Law::Uniform { min: MS(2), max: MS(1) };
    let histogram = |edges_s: &[f64], weights: &[f64]| Law::Histogram {
        edges_s: edges_s.to_vec(),
        weights: weights.to_vec(),
    };
    let empirical = |values_s: &[f64]| Law::Empirical { values_s: values_s.to_vec() };
    let nan = f64::NAN;
    let pareto = |min_s, shape| Law::Pareto { min_s, shape };
    let lognormal = |median_s, sigma| Law::LogNormal { median_s, sigma };
    let gamma = |shape, scale_s| Law::Gamma { shape, scale_s };
    let mixed = |weight, law| Law::Mixture(vec![(1.0, Law::Constant(MS(1))), (weight, law)]);
    let cases = [
        (uniform.clone(), "minimum 2ms must not be above maximum 1ms"),
        (pareto(0.0, 1.0), "minimum 0 must be positive and finite"),
        (pareto(1.0, nan), "shape NaN must be positive and finite"),
        (lognormal(1.0, -1.0), "sigma -1 must be zero or more, and finite"),
        (gamma(1.0, f64::INFINITY), "scale inf must be positive and finite"),
        (
            gamma(2e6, 1.0),
            "shape 2000000 must be at most 1000000; a normal or constant law would do",
        ),
        (histogram(&[0.0], &[]), "at least one bin is needed"),
        (histogram(&[0.0, 1.0], &[1.0, 1.0]), "2 edges need 1 weights, not 2"),
        (histogram(&[1.0, 1.0], &[1.0]), "edge 1 must not follow 1: they must rise"),
        (histogram(&[0.0, 1.0], &[0.0]), "at least one bin must have a weight above zero"),
        (empirical(&[]), "at least one observation is needed"),
        (empirical(&[2.0, 1.0]), "observation 1 must not follow 2: they must rise"),
        (empirical(&[-2.0]), "observation -2 must be zero or more, and finite"),
        (Law::Mixture(vec![]), "at least one part is needed"),
        (mixed(-1.0, Law::Constant(MS(1))), "weight -1 must be zero or more, and finite"),
        (mixed(1.0, uniform), "minimum 2ms must not be above maximum 1ms"),
        (
            Law::Constant(Duration::MAX),
            "value 18446744073709551615.999999999s must be at most 100 years",
        ),
    ];
    for (law, message) in cases {
        assert_eq!(refused(law), message);
    }
    assert!(Law::lognormal_by_p99(MS(2), MS(1)).is_err());
    assert!(Law::lognormal_by_p99(MS(0), MS(1)).is_err());
    assert!(Law::gamma_by_sd(MS(1), MS(0)).is_err());
}

#[test]
fn poisson_counts_have_their_mean_and_variance() {
    let stream = Seed::new(1, 0).stream("poisson");
    for mean in [0.3, 4.0, 90.0] {
        let n = 40_000;
        let counts: Vec<_> =
            (0..n).map(|i| poisson(mean, stream.draw(i, 0, 0, 0)) as f64).collect();
        let average = counts.iter().sum::<f64>() / n as f64;
        let variance = counts.iter().map(|c| (c - mean).powi(2)).sum::<f64>() / n as f64;
        // Four standard errors: √(λ/n), and √((2λ² + λ)/n).
        assert!((average - mean).abs() < 4.0 * (mean / n as f64).sqrt(), "{average}");
        let error = ((2.0 * mean * mean + mean) / n as f64).sqrt();
        assert!((variance - mean).abs() < 4.0 * error, "{variance}");
    }
}
