//! Durations as people and Kubernetes write them.

use std::time::Duration;

/// Longest duration that is read; simulated time ends at 584 years.
const LONGEST: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

/// Reads a duration as Go writes it: `300ms`, `1m30s`, `1.5h`, `0s`.
///
/// # Errors
///
/// What is wrong with the text, for people.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    if text == "0" {
        return Ok(Duration::ZERO);
    }
    if text.starts_with('-') {
        return Err("a duration cannot be negative".to_owned());
    }
    let mut rest = text.strip_prefix('+').unwrap_or(text);
    if rest.is_empty() {
        return Err("an empty duration".to_owned());
    }
    let mut nanos: u128 = 0;
    while !rest.is_empty() {
        let number_end = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
        let (number, after) = rest.split_at(number_end);
        let unit_end = after.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(after.len());
        let (unit, after) = after.split_at(unit_end);
        if number.is_empty() {
            return Err(format!("a number is missing before `{unit}`"));
        }
        let unit_nanos: u128 = match unit {
            "ns" => 1,
            "us" | "µs" | "μs" => 1_000,
            "ms" => 1_000_000,
            "s" => 1_000_000_000,
            "m" => 60_000_000_000,
            "h" => 3_600_000_000_000,
            "" => return Err(format!("a unit is missing after `{number}`")),
            unit => return Err(format!("`{unit}` is not a unit of time")),
        };
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        if whole.len() > 18 || (whole.is_empty() && fraction.is_empty()) || fraction.contains('.') {
            return Err(format!("`{number}` is not a number"));
        }
        nanos += unit_nanos * whole.parse::<u128>().unwrap_or(0);
        // Digits below a nanosecond are cut, as Go does.
        let fraction = &fraction[..fraction.len().min(18)];
        let scale = 10_u128.pow(fraction.len() as u32);
        nanos += unit_nanos * fraction.parse::<u128>().unwrap_or(0) / scale;
        rest = after;
    }
    match u64::try_from(nanos).map(Duration::from_nanos) {
        Ok(duration) if duration <= LONGEST => Ok(duration),
        _ => Err("longer than 100 years".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations() {
        for (text, nanos) in [
            ("0", 0),
            ("0s", 0),
            ("300ms", 300_000_000),
            ("1m30s", 90_000_000_000),
            ("1.5h", 5_400_000_000_000),
            (".5s", 500_000_000),
            ("1.s", 1_000_000_000),
            ("2µs", 2_000),
            ("1h0m0.25s", 3_600_250_000_000),
        ] {
            assert_eq!(parse_duration(text), Ok(Duration::from_nanos(nanos)), "{text}");
        }
        for text in
            ["", "5", "s", "1x", "-1s", "1..2s", ".s", "1s2", "99999999999999999999h", "9999999h"]
        {
            assert!(parse_duration(text).is_err(), "{text}");
        }
    }
}
