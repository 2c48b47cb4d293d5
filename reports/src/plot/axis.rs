//! From values to places: scales and their ticks.

/// A map from values to a span of the drawing.
#[derive(Clone, Copy, Debug)]
pub(super) struct Scale {
    log: bool,
    min: f64,
    max: f64,
    from: f64,
    to: f64,
}

/// A place on an axis and what is written there.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Tick {
    pub(super) at: f64,
    pub(super) label: String,
}

impl Scale {
    /// A scale from `min` to `max`, drawn between `from` and `to`.
    pub(super) fn linear((min, max): (f64, f64), (from, to): (f64, f64)) -> Scale {
        let max = if max > min { max } else { min + 1.0 };
        Scale { log: false, min, max, from, to }
    }

    /// A logarithmic scale; both ends are above 0.
    pub(super) fn log((min, max): (f64, f64), (from, to): (f64, f64)) -> Scale {
        assert!(min > 0.0, "a logarithmic scale from {min}");
        let (min, max) = if max > min { (min, max) } else { (min / 2.0, min * 2.0) };
        Scale { log: true, min: libm::log10(min), max: libm::log10(max), from, to }
    }

    /// A linear scale from 0 to a round number that `max` fits below, for about `count` ticks.
    pub(super) fn from_zero(max: f64, count: usize, span: (f64, f64)) -> Scale {
        if max <= 0.0 || !max.is_finite() {
            return Scale::linear((0.0, 1.0), span);
        }
        let step = step(max, count);
        Scale::linear((0.0, (max / step - 1e-9).ceil() * step), span)
    }

    /// Returns the same scale, drawn `by` further along.
    pub(super) fn moved(self, by: f64) -> Scale {
        Scale { from: self.from + by, to: self.to + by, ..self }
    }

    pub(super) fn is_log(&self) -> bool {
        self.log
    }

    /// Returns where `value` is drawn; values outside lie at the ends.
    pub(super) fn at(&self, value: f64) -> f64 {
        let value = if !self.log {
            value
        } else if value > 0.0 {
            libm::log10(value)
        } else {
            self.min
        };
        let share = ((value - self.min) / (self.max - self.min)).clamp(0.0, 1.0);
        self.from + share * (self.to - self.from)
    }

    /// Returns about `count` round ticks.
    pub(super) fn ticks(&self, count: usize) -> Vec<Tick> {
        let values = if self.log { self.log_ticks(count) } else { self.linear_ticks(count) };
        values.into_iter().map(|value| Tick { at: self.at(value), label: plain(value) }).collect()
    }

    fn linear_ticks(&self, count: usize) -> Vec<f64> {
        let step = step(self.max - self.min, count);
        let first = (self.min / step - 1e-9).ceil() as i64;
        let last = (self.max / step + 1e-9).floor() as i64;
        (first..=last).map(|i| i as f64 * step).collect()
    }

    fn log_ticks(&self, count: usize) -> Vec<f64> {
        let decades = self.max - self.min;
        let digits: &[f64] = if decades < 1.5 {
            &[1.0, 2.0, 3.0, 5.0, 7.0]
        } else if decades < 2.6 {
            &[1.0, 2.0, 5.0]
        } else if decades < 3.5 {
            &[1.0, 3.0]
        } else {
            &[1.0]
        };
        let every = (decades / count.max(1) as f64).ceil().max(1.0) as i32;
        let (first, last) = (self.min.floor() as i32, self.max.ceil() as i32);
        (first..=last)
            .filter(|power| digits.len() > 1 || power.rem_euclid(every) == 0)
            .flat_map(|power| digits.iter().map(move |d| d * libm::pow(10.0, f64::from(power))))
            .filter(|v| {
                let at = libm::log10(*v);
                at >= self.min - 1e-9 && at <= self.max + 1e-9
            })
            .collect()
    }
}

/// Returns a round step that divides `span` into about `count` parts.
fn step(span: f64, count: usize) -> f64 {
    let rough = span / count.max(1) as f64;
    let power = libm::pow(10.0, libm::log10(rough).floor());
    let digit = rough / power;
    power
        * if digit <= 1.0 {
            1.0
        } else if digit <= 2.0 {
            2.0
        } else if digit <= 5.0 {
            5.0
        } else {
            10.0
        }
}

/// Returns a tick's value without the dust of its computation.
fn plain(value: f64) -> String {
    let text = format!("{:.*}", if value.abs() < 1e-3 { 9 } else { 6 }, value);
    let text = text.trim_end_matches('0').trim_end_matches('.');
    grouped(if text == "-0" { "0" } else { text })
}

/// Returns a measure with three significant digits, thousands grouped.
pub(crate) fn number(value: f64) -> String {
    let size = value.abs();
    if size == 0.0 {
        return "0".to_owned();
    }
    if size < 0.000_05 {
        return "<0.0001".to_owned();
    }
    let decimals = match size {
        _ if size >= 99.95 => 0,
        _ if size >= 9.995 => 1,
        _ if size >= 0.9995 => 2,
        _ if size >= 0.0995 => 3,
        _ => 4,
    };
    grouped(&format!("{value:.decimals$}"))
}

/// Returns a mean and half the width of its interval: two significant digits of the half, the
/// mean to the same place; at least one decimal for means below 100.
pub(crate) fn mean_and_half(mean: f64, half: f64) -> (String, String) {
    let decimals = match half.abs() {
        half if half < 0.000_1 => return (number(mean), number(half)),
        half if half >= 9.95 && mean.abs() >= 99.95 => 0,
        half if half >= 0.995 => 1,
        half if half >= 0.0995 => 2,
        half if half >= 0.00995 => 3,
        _ => 4,
    };
    (grouped(&format!("{mean:.decimals$}")), grouped(&format!("{half:.decimals$}")))
}

pub(crate) fn grouped(text: &str) -> String {
    let (whole, rest) = text.split_once('.').map_or((text, None), |(w, r)| (w, Some(r)));
    let (sign, digits) = whole.strip_prefix('-').map_or(("", whole), |d| ("-", d));
    let mut out = sign.to_owned();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    if let Some(rest) = rest {
        out.push('.');
        out.push_str(rest);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(scale: Scale, count: usize) -> String {
        scale.ticks(count).into_iter().map(|t| t.label).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn ticks_are_round() {
        assert_eq!(labels(Scale::from_zero(78.3, 4, (0.0, 1.0)), 4), "0 20 40 60 80");
        assert_eq!(labels(Scale::from_zero(0.0, 4, (0.0, 1.0)), 1), "0 1");
        assert_eq!(labels(Scale::from_zero(1e6, 4, (0.0, 1.0)), 2), "0 500,000 1,000,000");
        assert_eq!(labels(Scale::log((0.1, 3.0), (0.0, 1.0)), 5), "0.1 0.2 0.3 0.5 0.7 1 2 3");
        assert_eq!(
            labels(Scale::log((1.0, 1e9), (0.0, 1.0)), 5),
            "1 100 10,000 1,000,000 100,000,000"
        );
    }

    #[test]
    fn numbers_have_three_digits() {
        for (value, text) in [
            (0.0, "0"),
            (0.16, "0.160"),
            (3.25159, "3.25"),
            (76.0, "76.0"),
            (78.34, "78.3"),
            (100.0, "100"),
            (1234.5, "1,234"),
            (0.0004, "0.0004"),
            (1e-9, "<0.0001"),
            (-1234567.0, "-1,234,567"),
        ] {
            assert_eq!(number(value), text);
        }
    }

    #[test]
    fn intervals_have_two_digits() {
        let text = |mean, half| {
            let (mean, half) = mean_and_half(mean, half);
            format!("{mean} ± {half}")
        };
        assert_eq!(text(78.34, 2.13), "78.3 ± 2.1");
        assert_eq!(text(1753.7, 13.1), "1,754 ± 13");
        assert_eq!(text(25.123, 0.47), "25.12 ± 0.47");
        assert_eq!(text(3.2, 20.0), "3.2 ± 20.0");
        assert_eq!(text(12.0, 0.0), "12.0 ± 0");
        assert_eq!(text(0.0, 0.0), "0 ± 0");
    }

    #[test]
    fn values_beyond_the_scale_stay_on_it() {
        let scale = Scale::log((1.0, 10.0), (0.0, 100.0));
        assert_eq!(scale.at(0.0), 0.0);
        assert_eq!(scale.at(100.0), 100.0);
        assert_eq!(Scale::linear((2.0, 2.0), (0.0, 10.0)).at(2.0), 0.0);
    }
}
