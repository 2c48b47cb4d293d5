//! Means, intervals and quantiles over the replications of a point.
//!
//! A point's replications are independent, its windows are not: windows of one run share clients
//! and nodes, and often overlap. So intervals are Student's t over one number for each
//! replication; quantiles describe the windows themselves.

use std::time::Duration;

use sim_core::record::{Balance, Cause, Run, Window};

/// A mean and its two-sided 95 % confidence interval.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Interval {
    /// The mean.
    pub mean: f64,
    /// The standard deviation of one replication; `None` with fewer than two.
    pub sd: Option<f64>,
    /// Lower and upper end of the interval; `None` with fewer than two replications.
    pub ci95: Option<(f64, f64)>,
    /// How many replications.
    pub n: usize,
}

impl Interval {
    /// Returns the mean of `values` and its interval, or `None` if there are no values.
    pub fn of(values: &[f64]) -> Option<Interval> {
        let mean = mean(values)?;
        let sd = sd(values);
        let n = values.len();
        let ci95 = sd.map(|sd| {
            let half = t_quantile_975(n as u64 - 1) * sd / (n as f64).sqrt();
            (mean - half, mean + half)
        });
        Some(Interval { mean, sd, ci95, n })
    }

    /// Returns half the interval's width, if there is one.
    pub fn half_width(&self) -> Option<f64> {
        self.ci95.map(|(low, high)| (high - low) / 2.0)
    }
}

/// Returns the arithmetic mean, or `None` if there are no values.
pub fn mean(values: &[f64]) -> Option<f64> {
    (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
}

/// Returns the sample standard deviation (divisor n − 1), or `None` with fewer than two values.
pub fn sd(values: &[f64]) -> Option<f64> {
    if values.len() < 2 {
        return None;
    }
    let mean = mean(values)?;
    let squares: f64 = values.iter().map(|v| (v - mean) * (v - mean)).sum();
    Some((squares / (values.len() - 1) as f64).sqrt())
}

/// Returns the `p` quantile of `values` by linear interpolation between order statistics
/// (Hyndman and Fan's type 7, the default of R and NumPy), or `None` if there are no values.
///
/// # Panics
///
/// If `p` is not within 0 and 1, or `values` are not in ascending order.
pub fn quantile(values: &[u64], p: f64) -> Option<f64> {
    assert!((0.0..=1.0).contains(&p), "quantile {p} is not within 0..1");
    assert!(values.is_sorted(), "values are not in ascending order");
    let last = values.len().checked_sub(1)?;
    let at = p * last as f64;
    let below = at.floor() as usize;
    let low = values[below] as f64;
    let high = values[(below + 1).min(last)] as f64;
    Some(low + (at - at.floor()) * (high - low))
}

/// Returns the same as [`quantile`], but `None` where `values` are too few to support it: below
/// 1 / (1 − p) values, where it would be little but the maximum.
pub fn supported_quantile(values: &[u64], p: f64) -> Option<f64> {
    // 1 - 0.9 is a little less than 0.1: 10 values do support a p90.
    if values.len() as f64 * (1.0 - p) < 1.0 - 1e-9 {
        return None;
    }
    quantile(values, p)
}

/// Returns the 0.975 quantile of Student's t with `df` degrees of freedom: the factor of a
/// two-sided 95 % interval.
///
/// # Panics
///
/// If `df` is 0.
pub fn t_quantile_975(df: u64) -> f64 {
    assert!(df > 0, "Student's t with 0 degrees of freedom");
    // Past this the finite sum is long, and two terms of the expansion at the normal quantile are
    // exact to 1e-10 (Abramowitz and Stegun 26.7.5).
    if df > 10_000 {
        let (z, n) = (1.959_963_984_540_054_f64, df as f64);
        let (z3, z5) = (z * z * z, z * z * z * z * z);
        return z + (z3 + z) / (4.0 * n) + (5.0 * z5 + 16.0 * z3 + 3.0 * z) / (96.0 * n * n);
    }
    let (mut low, mut high) = (1.9, 12.8);
    loop {
        let middle = f64::midpoint(low, high);
        if middle <= low || middle >= high {
            return middle;
        }
        if t_within(middle, df) < 0.95 {
            low = middle;
        } else {
            high = middle;
        }
    }
}

/// The probability that |T| is below `t`: Abramowitz and Stegun 26.7.3 and 26.7.4, finite for
/// whole degrees of freedom. `libm` gives the same bits on every platform.
fn t_within(t: f64, df: u64) -> f64 {
    let n = df as f64;
    let cos2 = n / (n + t * t);
    let sin = t / (n + t * t).sqrt();
    if df.is_multiple_of(2) {
        let (mut term, mut sum) = (1.0, 1.0);
        for k in (2..df).step_by(2) {
            term *= cos2 * (k - 1) as f64 / k as f64;
            sum += term;
        }
        return sin * sum;
    }
    let mut sum = 0.0;
    if df > 1 {
        let mut term = cos2.sqrt();
        sum = term;
        for k in (3..df).step_by(2) {
            term *= cos2 * (k - 1) as f64 / k as f64;
            sum += term;
        }
    }
    2.0 / std::f64::consts::PI * (libm::atan(t / n.sqrt()) + sin * sum)
}

/// Returns the probability that χ² with `freedom` degrees of freedom is above `x`: Abramowitz and
/// Stegun 26.4.4 and 26.4.5, finite for whole degrees of freedom.
///
/// # Panics
///
/// If `freedom` is 0.
pub fn chi_square_tail(x: f64, freedom: u64) -> f64 {
    assert!(freedom > 0, "χ² with 0 degrees of freedom");
    if x <= 0.0 {
        return 1.0;
    }
    let half = x / 2.0;
    // Terms are kept as logarithms: exp(-x/2) alone may be below what an f64 holds.
    let (mut sum, mut log_term, from) = if freedom.is_multiple_of(2) {
        (0.0, -half, 2.0)
    } else {
        let log_density = 0.5 * libm::log(half / std::f64::consts::PI) - half;
        (libm::erfc(half.sqrt()), log_density + std::f64::consts::LN_2, 3.0)
    };
    let terms = freedom / 2;
    for index in 0..terms {
        sum += libm::exp(log_term);
        log_term += libm::log(half / (from / 2.0 + index as f64));
    }
    sum.min(1.0)
}

/// Returns the probability of choices at least as uneven as these, if all endpoints are as likely.
pub fn balance_p(balance: &Balance) -> f64 {
    chi_square_tail(balance.chi2, balance.freedom)
}

/// One swept parameter's value at a point.
#[derive(Clone, Debug, PartialEq)]
pub struct Parameter {
    /// The path in the scenario, like `propagation.delay.exponential.mean`.
    pub path: String,
    /// The value as the scenario writes it, like `300ms`.
    pub display: String,
    /// The value as a number, if it is one; durations in seconds.
    pub value: Option<f64>,
}

/// What it takes that a run's Services work, lost attempts apart.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Upkeep {
    /// Machines that hold what tells where a Service's packets go.
    pub holders: f64,
    /// Changes of a Service times machines that had to learn of it.
    pub updates: f64,
    /// From machine to machine, by a connection's first packet.
    pub hops: Option<f64>,
    /// Rules that it passes, on all machines.
    pub rules: Option<f64>,
    /// Seconds of one sync in mean, where proxies sync.
    pub sync_s: Option<f64>,
}

impl Upkeep {
    fn of(run: &Run) -> Upkeep {
        let syncs = run.syncs.filter(|syncs| syncs.syncs > 0);
        Upkeep {
            holders: f64::from(run.holders),
            updates: run.updates as f64,
            hops: run.mean_hops(),
            rules: run.mean_rules_passed(),
            sync_s: syncs.map(|syncs| syncs.busy.as_secs_f64() / syncs.syncs as f64),
        }
    }
}

/// What a point's statistics need of one run.
#[derive(Clone, Debug, PartialEq)]
pub struct Replication {
    /// Lost attempts of each window, in order of opening.
    pub lost_of_windows: Vec<u64>,
    /// Lost attempts that belong to windows, by cause, in the order of [`Cause::ALL`].
    pub lost_by_cause: [u64; Cause::ALL.len()],
    /// Lost attempts of the whole run, those outside windows included.
    pub lost: u64,
    /// Attempts begun while some window was open, each counted once.
    pub attempts_inside: u64,
    /// Those of them that were lost.
    pub lost_inside: u64,
    /// Mean over windows of the greatest staleness of a node; `None` if no window has one.
    pub stale_max_s: Option<f64>,
    /// Mean over windows of the time from the EndpointSlice write until the last node's rules
    /// were live; `None` if no window reached it.
    pub last_node_lag_s: Option<f64>,
    /// Mean over windows of what the closed form expects; `None` unless every window has one.
    pub expected_lost: Option<f64>,
    /// Mean over windows of first attempts lost to stale rules; `None` unless every window has it.
    pub lost_first_stale: Option<f64>,
    /// What it takes besides.
    pub upkeep: Upkeep,
}

impl Replication {
    /// Takes what statistics need from a run and its windows.
    pub fn new(run: &Run, windows: &[Window]) -> Replication {
        let some = |value: fn(&Window) -> Option<f64>| -> Option<f64> {
            mean(&windows.iter().filter_map(value).collect::<Vec<_>>())
        };
        let every = |value: fn(&Window) -> Option<f64>| -> Option<f64> {
            let values: Option<Vec<f64>> = windows.iter().map(value).collect();
            mean(&values?)
        };
        Replication {
            lost_of_windows: windows.iter().map(|w| w.lost.total()).collect(),
            lost_by_cause: Cause::ALL.map(|c| windows.iter().map(|w| w.lost.get(c)).sum()),
            lost: run.inside.lost.total() + run.outside.lost.total(),
            attempts_inside: run.inside.attempts,
            lost_inside: run.inside.lost.total(),
            stale_max_s: some(|w| w.stale_max_s),
            last_node_lag_s: some(|w| {
                let lag: Duration = w.last_node?.saturating_since(w.endpoints_changed?);
                Some(lag.as_secs_f64())
            }),
            expected_lost: every(|w| w.expected_lost),
            lost_first_stale: every(|w| w.lost_first_stale.map(|n| n as f64)),
            upkeep: Upkeep::of(run),
        }
    }

    fn per_window(&self, total: u64) -> Option<f64> {
        let windows = self.lost_of_windows.len();
        (windows > 0).then(|| total as f64 / windows as f64)
    }
}

/// One point of a sweep, over its replications. A replication without windows has no part in
/// what is "per window".
#[derive(Clone, Debug, PartialEq)]
pub struct PointSummary {
    /// The point's index, in lexicographic order of the parameters.
    pub point: usize,
    /// The swept parameters' values, in the order of the sweep's axes.
    pub parameters: Vec<Parameter>,
    /// How many replications.
    pub replications: usize,
    /// How many windows, all replications together.
    pub windows: usize,
    /// Lost attempts of a window.
    pub lost_per_window: Option<Interval>,
    /// Lost attempts of a run, those outside windows included.
    pub lost_per_run: Option<Interval>,
    /// Lost among the attempts that were begun while some window was open.
    pub lost_fraction: Option<Interval>,
    /// Quantiles of `lost` over all windows; `None` where the windows are too few.
    pub lost_p50: Option<f64>,
    /// See [`lost_p50`](PointSummary::lost_p50).
    pub lost_p90: Option<f64>,
    /// See [`lost_p50`](PointSummary::lost_p50).
    pub lost_p99: Option<f64>,
    /// The greatest `lost` of a window.
    pub lost_max: Option<u64>,
    /// Mean lost attempts of a window by cause, in the order of [`Cause::ALL`]; `None` without
    /// windows.
    pub lost_by_cause: Option<[f64; Cause::ALL.len()]>,
    /// Mean of a window's greatest staleness of a node.
    pub stale_max_s: Option<f64>,
    /// Time from the EndpointSlice write until the last node's rules were live.
    pub last_node_lag_s: Option<Interval>,
    /// What a closed form says about the same, if there is one.
    pub last_node_lag_closed_form_s: Option<f64>,
    /// Mean over windows of what the closed form expects to be lost.
    pub expected_lost: Option<f64>,
    /// Mean over windows of the first attempts that were lost to stale rules.
    pub lost_first_stale: Option<f64>,
    /// Machines that hold what tells where packets go, in mean.
    pub holders: f64,
    /// Updates that they had to learn, in mean.
    pub updates: f64,
    /// From machine to machine, by a connection's first packet, in mean.
    pub hops: Option<f64>,
    /// Rules that it passes, on all machines.
    pub rules: Option<Interval>,
    /// Seconds of one sync, where proxies sync.
    pub sync_s: Option<Interval>,
}

impl PointSummary {
    /// Summarises a point's runs, in replication order.
    pub fn new(
        point: usize,
        parameters: Vec<Parameter>,
        replications: &[Replication],
        last_node_lag_closed_form_s: Option<f64>,
    ) -> PointSummary {
        let over = |value: &dyn Fn(&Replication) -> Option<f64>| -> Vec<f64> {
            replications.iter().filter_map(value).collect()
        };
        let every = |value: fn(&Replication) -> Option<f64>| -> Option<f64> {
            let with_windows = replications.iter().filter(|r| !r.lost_of_windows.is_empty());
            mean(&with_windows.map(value).collect::<Option<Vec<f64>>>()?)
        };
        let mut lost: Vec<u64> =
            replications.iter().flat_map(|r| r.lost_of_windows.iter().copied()).collect();
        lost.sort_unstable();
        let by_cause: Vec<Option<f64>> = (0..Cause::ALL.len())
            .map(|c| mean(&over(&|r| r.per_window(r.lost_by_cause[c]))))
            .collect();
        let by_cause: Option<Vec<f64>> = by_cause.into_iter().collect();
        PointSummary {
            point,
            parameters,
            replications: replications.len(),
            windows: lost.len(),
            lost_per_window: Interval::of(&over(&|r| r.per_window(r.lost_of_windows.iter().sum()))),
            lost_per_run: Interval::of(&over(&|r| Some(r.lost as f64))),
            lost_fraction: Interval::of(&over(&|r| {
                (r.attempts_inside > 0).then(|| r.lost_inside as f64 / r.attempts_inside as f64)
            })),
            lost_p50: supported_quantile(&lost, 0.5),
            lost_p90: supported_quantile(&lost, 0.9),
            lost_p99: supported_quantile(&lost, 0.99),
            lost_max: lost.last().copied(),
            lost_by_cause: by_cause.map(|v| v.try_into().expect("one for each cause")),
            stale_max_s: mean(&over(&|r| r.stale_max_s)),
            last_node_lag_s: Interval::of(&over(&|r| r.last_node_lag_s)),
            last_node_lag_closed_form_s,
            expected_lost: every(|r| r.expected_lost),
            lost_first_stale: every(|r| r.lost_first_stale),
            holders: mean(&over(&|r| Some(r.upkeep.holders))).unwrap_or_default(),
            updates: mean(&over(&|r| Some(r.upkeep.updates))).unwrap_or_default(),
            hops: mean(&over(&|r| r.upkeep.hops)),
            rules: Interval::of(&over(&|r| r.upkeep.rules)),
            sync_s: Interval::of(&over(&|r| r.upkeep.sync_s)),
        }
    }

    /// Summarises a point from whole records, in replication order.
    pub fn from_runs(
        point: usize,
        parameters: Vec<Parameter>,
        runs: &[(Run, Vec<Window>)],
        last_node_lag_closed_form_s: Option<f64>,
    ) -> PointSummary {
        let runs: Vec<Replication> =
            runs.iter().map(|(run, windows)| Replication::new(run, windows)).collect();
        PointSummary::new(point, parameters, &runs, last_node_lag_closed_form_s)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn t_quantiles_are_those_of_the_tables() {
        // Computed with mpmath to more digits than f64 holds.
        for (df, t) in [
            (1, 12.706_204_736_174_7),
            (2, 4.302_652_729_749_46),
            (3, 3.182_446_305_283_71),
            (4, 2.776_445_105_197_79),
            (5, 2.570_581_835_636_31),
            (9, 2.262_157_162_798_2),
            (10, 2.228_138_851_986_27),
            (19, 2.093_024_054_408_26),
            (29, 2.045_229_642_132_7),
            (30, 2.042_272_456_301_24),
            (99, 1.984_216_951_586_42),
            (1_000, 1.962_339_080_826_41),
        ] {
            let got = t_quantile_975(df);
            assert!((got - t).abs() < 1e-10, "df {df}: {got}, not {t}");
        }
        assert!((t_quantile_975(10_000) - t_quantile_975(10_001)).abs() < 1e-6);
        assert!(t_quantile_975(u64::MAX) - 1.959_963_984_540_05 < 1e-10);
    }

    #[test]
    fn tails_of_chi_square_are_those_of_the_tables() {
        // Quantiles of Abramowitz and Stegun, table 26.8, and closed forms.
        for (x, freedom, p) in [
            (3.841_459, 1, 0.05),
            (5.991_465, 2, 0.05),
            (7.814_728, 3, 0.05),
            (18.307_04, 10, 0.05),
            (21.666, 9, 0.01),
            (0.710_721, 4, 0.95),
            (118.498, 100, 0.1),
            (82.358_1, 100, 0.9),
        ] {
            let got = chi_square_tail(x, freedom);
            assert!((got - p).abs() < 1e-5, "{x} {freedom}: {got}, not {p}");
        }
        assert_eq!(chi_square_tail(0.0, 3), 1.0);
        assert!((chi_square_tail(20.0, 2) - (-10.0_f64).exp()).abs() < 1e-18);
        // Far out, and many degrees of freedom: near the normal distribution.
        assert_eq!(chi_square_tail(1e6, 3), 0.0);
        assert!((chi_square_tail(100_000.0, 100_000) - 0.499).abs() < 2e-3);
    }

    #[test]
    fn interval_needs_two_replications() {
        assert_eq!(Interval::of(&[]), None);
        let one = Interval::of(&[3.0]).unwrap();
        assert_eq!((one.mean, one.sd, one.ci95), (3.0, None, None));
        // sd = 1, t(2) = 4.3027: 4.3027 / sqrt(3) = 2.4841.
        let three = Interval::of(&[1.0, 2.0, 3.0]).unwrap();
        assert_eq!(three.mean, 2.0);
        assert!((three.half_width().unwrap() - 2.484_137_711_7).abs() < 1e-9);
    }

    #[test]
    fn quantiles_are_type_7() {
        let values = [1, 2, 3, 4];
        assert_eq!(quantile(&values, 0.0), Some(1.0));
        assert_eq!(quantile(&values, 0.5), Some(2.5));
        assert!((quantile(&values, 0.9).unwrap() - 3.7).abs() < 1e-12);
        assert_eq!(quantile(&values, 1.0), Some(4.0));
        assert_eq!(quantile(&[], 0.5), None);
        assert_eq!(supported_quantile(&values, 0.9), None);
        assert!(supported_quantile(&[0; 10], 0.9).is_some());
        assert!(supported_quantile(&[0; 100], 0.99).is_some());
        assert!(supported_quantile(&[0; 99], 0.99).is_none());
    }
}
