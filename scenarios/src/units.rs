//! Durations, rates and ranges as people write them.

use std::net::Ipv4Addr;

use sim_core::config::Ipv4Cidr;
pub(crate) use sim_core::config::parse_duration;

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
