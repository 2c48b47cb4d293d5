//! Durations, rates and ranges as people write them.

use std::net::Ipv4Addr;
use std::time::Duration;

use sim_core::config::Ipv4Cidr;

/// Longest duration that is read; simulated time ends at 584 years.
const LONGEST: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

/// Reads a duration as Go writes it: `300ms`, `1m30s`, `1.5h`, `0s`.
pub(crate) fn parse_duration(text: &str) -> Result<Duration, String> {
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

/// Reads a rate: `1000/s`, `60/m`, `0.5/h`. Returns events per second.
pub(crate) fn parse_rate(text: &str) -> Result<f64, String> {
    let Some((number, unit)) = text.split_once('/') else {
        return Err("a rate needs a unit of time".to_owned());
    };
    let seconds = match unit.trim() {
        "s" => 1.0,
        "m" => 60.0,
        "h" => 3600.0,
        unit => return Err(format!("`{unit}` is not a unit of a rate")),
    };
    match number.trim().replace('_', "").parse::<f64>() {
        Ok(number) if number.is_finite() && number > 0.0 && number <= 1e9 => Ok(number / seconds),
        Ok(_) => Err("a rate is above 0 and at most 1e9".to_owned()),
        Err(_) => Err(format!("`{}` is not a number", number.trim())),
    }
}

/// Reads an IPv4 range, whose host bits must be zero.
pub(crate) fn parse_cidr(text: &str) -> Result<Ipv4Cidr, String> {
    let Some((address, length)) = text.split_once('/') else {
        return Err("a range needs a prefix length, as in `10.244.0.0/16`".to_owned());
    };
    let address: Ipv4Addr =
        address.parse().map_err(|_| format!("`{address}` is not an IPv4 address"))?;
    let cidr = length
        .parse::<u8>()
        .ok()
        .and_then(|length| Ipv4Cidr::new(address, length))
        .ok_or_else(|| format!("`{length}` is not a prefix length from 0 to 32"))?;
    if cidr.base() == address {
        Ok(cidr)
    } else {
        Err(format!("{address} has bits set after the prefix; did you mean `{cidr}`?"))
    }
}

/// Returns the candidate that `word` was probably meant to be.
pub(crate) fn closest<'c>(
    word: &str,
    candidates: impl IntoIterator<Item = &'c str>,
) -> Option<&'c str> {
    let score = |candidate: &str| {
        strsim::normalized_damerau_levenshtein(&word.to_lowercase(), &candidate.to_lowercase())
    };
    candidates
        .into_iter()
        .map(|candidate| (score(candidate), candidate))
        .filter(|&(score, _)| score >= 0.55)
        .max_by(|(a, _), (b, _)| a.total_cmp(b))
        .map(|(_, candidate)| candidate)
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

    #[test]
    fn rates() {
        assert_eq!(parse_rate("1000/s"), Ok(1000.0));
        assert_eq!(parse_rate("60/m"), Ok(1.0));
        for text in ["1000", "0/s", "x/s", "1/d", "-1/s", "inf/s", "nan/s"] {
            assert!(parse_rate(text).is_err(), "{text}");
        }
    }

    #[test]
    fn ranges() {
        assert_eq!(parse_cidr("10.244.0.0/16").unwrap().to_string(), "10.244.0.0/16");
        for text in ["10.244.0.0", "10.244.0.1/16", "10.0.0.0/33", "a/8", "10.0.0.0/x", "/"] {
            assert!(parse_cidr(text).is_err(), "{text}");
        }
    }

    #[test]
    fn suggestions() {
        assert_eq!(closest("node", ["nodes", "name"]), Some("nodes"));
        assert_eq!(closest("podCidr", ["podCIDR", "serviceCIDR"]), Some("podCIDR"));
        assert_eq!(closest("xyz", ["nodes", "name"]), None);
    }
}
