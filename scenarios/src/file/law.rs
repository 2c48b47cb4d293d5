//! A distribution as written, to the distribution that a run draws from.

use std::time::Duration;

use sim_core::config::Law;

use super::diagnostic::{Diagnostic, Diagnostics};
use super::tree::{Entry, Node};
use crate::units::parse_duration;

/// Makes a law of a value that [`super::fields::LAW`] accepts. What is wrong with its numbers goes
/// to `diagnostics`.
pub(super) fn resolve(node: &Node, diagnostics: &mut Diagnostics) -> Option<Law> {
    // A mixture's component has its weight beside the law.
    let entry = node.entries().iter().find(|entry| entry.key != "weight")?;
    let checked = law(entry, diagnostics).and_then(|law| match law {
        Some(law) => match law.validate() {
            Ok(()) => Ok(Some(law)),
            Err(error) => Err(bad(&entry.value, error.to_string(), "choose other numbers")),
        },
        None => Ok(None),
    });
    match checked {
        Ok(law) => law,
        Err(problem) => {
            diagnostics.push(*problem);
            None
        }
    }
}

fn law(entry: &Entry, diagnostics: &mut Diagnostics) -> Result<Option<Law>, Box<Diagnostic>> {
    let node = &entry.value;
    let duration = |name: &str| node.get(name).and_then(as_duration);
    let seconds = |name: &str| duration(name).map(|duration| duration.as_secs_f64());
    let number = |name: &str| node.get(name).and_then(Node::number);
    Ok(match entry.key.as_str() {
        "constant" => as_duration(node).map(Law::Constant),
        "uniform" => {
            let (Some(min), Some(max)) = (duration("min"), duration("max")) else {
                return Ok(None);
            };
            if max < min {
                return Err(bad_at(node, "max", "`max` is below `min`", "swap them"));
            }
            Some(Law::Uniform { min, max })
        }
        "exponential" => duration("mean").map(|mean| Law::Exponential { mean }),
        "lognormal" => Some(lognormal(node)?),
        "gamma" => Some(gamma(node)?),
        "weibull" => {
            positive(node, "scale")?;
            let (shape, scale) = (number("shape"), seconds("scale"));
            shape.zip(scale).map(|(shape, scale_s)| Law::Weibull { shape, scale_s })
        }
        "pareto" => {
            positive(node, "min")?;
            let (shape, min) = (number("shape"), seconds("min"));
            shape.zip(min).map(|(shape, min_s)| Law::Pareto { min_s, shape })
        }
        "histogram" => Some(histogram(node)?),
        "empirical" => {
            let mut values_s: Vec<f64> = node
                .items()
                .iter()
                .filter_map(as_duration)
                .map(|value| value.as_secs_f64())
                .collect();
            if values_s.is_empty() {
                return Err(bad(node, "no observations", "list at least one duration"));
            }
            values_s.sort_by(f64::total_cmp);
            Some(Law::Empirical { values_s })
        }
        "mixture" => {
            let mut laws = Vec::new();
            for item in node.items() {
                let weight = item.get("weight").and_then(Node::number);
                laws.extend(weight.zip(resolve(item, diagnostics)));
            }
            if laws.iter().all(|&(weight, _)| weight == 0.0) {
                return Err(bad(
                    node,
                    "a mixture without any weight",
                    "list at least one law with a weight above 0",
                ));
            }
            Some(Law::Mixture(laws))
        }
        _ => None,
    })
}

fn lognormal(node: &Node) -> Result<Law, Box<Diagnostic>> {
    let duration = |name: &str| node.get(name).and_then(as_duration);
    let law = match ["median", "p99", "mean", "sd"].map(duration) {
        [Some(median), Some(p99), None, None] => {
            positive(node, "median")?;
            if p99 < median {
                let help = "the 99th percentile is at least the median";
                return Err(bad_at(node, "p99", "`p99` is below `median`", help));
            }
            Law::lognormal_by_p99(median, p99)
        }
        [None, None, Some(mean), Some(sd)] => {
            positive(node, "mean")?;
            Law::lognormal_by_sd(mean, sd)
        }
        _ => {
            return Err(bad(
                node,
                "a lognormal law needs `median` and `p99`, or `mean` and `sd`",
                "for example `lognormal: { median: 300ms, p99: 2s }`",
            ));
        }
    };
    law.map_err(|error| bad(node, error.to_string(), "choose other numbers"))
}

fn gamma(node: &Node) -> Result<Law, Box<Diagnostic>> {
    positive(node, "mean")?;
    let duration = |name: &str| node.get(name).and_then(as_duration);
    let shape = node.get("shape").and_then(Node::number);
    let law = match (shape, duration("mean"), duration("sd")) {
        (Some(shape), Some(mean), None) => Law::gamma_by_shape(mean, shape),
        (None, Some(mean), Some(sd)) => {
            positive(node, "sd")?;
            Law::gamma_by_sd(mean, sd)
        }
        _ => {
            return Err(bad(
                node,
                "a gamma law needs `mean` and one of `shape` and `sd`",
                "for example `gamma: { shape: 2, mean: 300ms }`",
            ));
        }
    };
    law.map_err(|error| bad(node, error.to_string(), "choose other numbers"))
}

fn histogram(node: &Node) -> Result<Law, Box<Diagnostic>> {
    let items = |name: &str| node.get(name).map_or(&[][..], Node::items);
    let edges_s: Vec<f64> =
        items("edges").iter().filter_map(as_duration).map(|edge| edge.as_secs_f64()).collect();
    let weights: Vec<f64> = items("weights").iter().filter_map(Node::number).collect();
    if edges_s.len() != items("edges").len() || weights.len() != items("weights").len() {
        return Err(bad(node, "a histogram with edges or weights left out", "correct them"));
    }
    if weights.is_empty() || edges_s.len() != weights.len() + 1 {
        let message = format!("{} edges for {} weights", edges_s.len(), weights.len());
        let help = "each bin has a weight, so there is one more edge than weights";
        return Err(bad_at(node, "edges", message, help));
    }
    if !edges_s.is_sorted_by(|a, b| a < b) {
        return Err(bad_at(node, "edges", "the edges do not rise", "sort them"));
    }
    if weights.iter().all(|&weight| weight == 0.0) {
        let help = "at least one bin has a weight above 0";
        return Err(bad_at(node, "weights", "every weight is 0", help));
    }
    Ok(Law::Histogram { edges_s, weights })
}

fn as_duration(node: &Node) -> Option<Duration> {
    parse_duration(node.text()?).ok()
}

fn positive(node: &Node, name: &str) -> Result<(), Box<Diagnostic>> {
    match node.get(name).and_then(as_duration) {
        Some(Duration::ZERO) => {
            let message = format!("`{name}` is 0");
            let help = "use a duration above 0, or `constant: 0s` for no delay";
            Err(bad_at(node, name, message, help))
        }
        _ => Ok(()),
    }
}

fn bad(node: &Node, message: impl Into<String>, help: &str) -> Box<Diagnostic> {
    Box::new(Diagnostic::error("bad-law", node.span, message).help(help))
}

fn bad_at(node: &Node, name: &str, message: impl Into<String>, help: &str) -> Box<Diagnostic> {
    bad(node.get(name).unwrap_or(node), message, help)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::file::diagnostic::FileId;
    use crate::file::fields::LAW;
    use crate::file::raw::{Kind, check};
    use crate::file::tree::parse;

    fn read(text: &str) -> Result<Law, Vec<String>> {
        let mut diagnostics = Diagnostics::default();
        let node = parse(text, FileId::FIRST, &mut diagnostics).remove(0);
        let law = check(&node, Kind::Table(&LAW), &mut diagnostics)
            .and_then(|node| resolve(&node, &mut diagnostics));
        match law {
            Some(law) if !diagnostics.has_errors() => Ok(law),
            _ => Err(diagnostics.sorted().iter().map(|d| d.message.clone()).collect()),
        }
    }

    #[test]
    fn parameters_are_converted() {
        let Ok(Law::LogNormal { median_s, sigma }) = read("lognormal: { mean: 2s, sd: 1s }") else {
            panic!()
        };
        // The mean and variance of exp(μ + σZ), from the converted parameters.
        let mean = median_s * libm::exp(sigma * sigma / 2.0);
        assert!((mean - 2.0).abs() < 1e-12, "{mean}");
        let variance = mean * mean * (libm::exp(sigma * sigma) - 1.0);
        assert!((variance - 1.0).abs() < 1e-12, "{variance}");

        let Ok(Law::LogNormal { median_s, sigma }) = read("lognormal: { median: 1s, p99: 4s }")
        else {
            panic!()
        };
        assert!((median_s * libm::exp(sigma * 2.326_347_874_040_84) - 4.0).abs() < 1e-12);

        assert_eq!(
            read("gamma: { mean: 2s, sd: 1s }"),
            Ok(Law::Gamma { shape: 4.0, scale_s: 0.5 })
        );
        assert_eq!(read("gamma: { mean: 2s, shape: 4 }"), read("gamma: { mean: 2s, sd: 1s }"));
        assert_eq!(read("empirical: [2s, 1s]"), Ok(Law::Empirical { values_s: vec![1.0, 2.0] }));
        assert_eq!(
            read(
                "mixture: [{ weight: 1, constant: 1s }, { weight: 3, exponential: { mean: 2s } }]"
            ),
            Ok(Law::Mixture(vec![
                (1.0, Law::Constant(Duration::from_secs(1))),
                (3.0, Law::Exponential { mean: Duration::from_secs(2) })
            ]))
        );
    }

    #[test]
    fn wrong_numbers_are_refused() {
        for (text, message) in [
            ("uniform: { min: 2s, max: 1s }", "`max` is below `min`"),
            ("lognormal: { median: 2s, p99: 1s }", "`p99` is below `median`"),
            ("lognormal: { median: 2s, sd: 1s }", "a lognormal law needs"),
            ("lognormal: { median: 0s, p99: 1s }", "`median` is 0"),
            ("gamma: { mean: 1s }", "a gamma law needs"),
            ("gamma: { mean: 1s, sd: 0s }", "`sd` is 0"),
            ("pareto: { min: 0s, shape: 2 }", "`min` is 0"),
            ("weibull: { scale: 1s, shape: 0 }", "0 is out of range"),
            ("histogram: { edges: [1s, 2s], weights: [1, 2] }", "2 edges for 2 weights"),
            ("histogram: { edges: [2s, 1s], weights: [1] }", "the edges do not rise"),
            ("histogram: { edges: [1s, 2s], weights: [0] }", "every weight is 0"),
            ("empirical: []", "no observations"),
            ("mixture: []", "a mixture without any weight"),
            ("constant: 5", "expected a duration, found the number `5`"),
            ("{}", "this law does not say which kind it is"),
            ("{ constant: 1s, uniform: { min: 0s, max: 1s } }", "both `constant` and `uniform`"),
        ] {
            let found = read(text).expect_err(text);
            assert!(found.iter().any(|m| m.starts_with(message)), "{text}: {found:?}");
        }
    }
}
