//! Deployments.

use std::collections::BTreeMap;

use k8s_openapi::api::apps::v1 as apps;
use k8s_openapi::apimachinery::pkg::apis::meta::v1 as meta;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use super::name::{DNS_SUBDOMAIN, check_labels, is_dns_subdomain, read_name};
use super::pod::{read_pod, seconds};
use super::{Findings, Path};
use crate::config::{DeploymentSpec, IntOrPercent, Strategy};

pub(super) fn read_deployment(
    deployment: apps::Deployment,
    findings: &mut Findings,
) -> Option<DeploymentSpec> {
    let name = read_name(&deployment.metadata, is_dns_subdomain, DNS_SUBDOMAIN, findings);
    let spec = deployment.spec;
    if spec == apps::DeploymentSpec::default() {
        findings.missing(Path::default(), "spec");
        return None;
    }
    let at = Path::of("spec");
    let replicas = match u32::try_from(spec.replicas.unwrap_or(1)) {
        Ok(replicas) => replicas,
        Err(_) => {
            findings.error(at.key("replicas"), "replicas cannot be negative", "use 0 or more");
            0
        }
    };
    let min_ready =
        seconds(spec.min_ready_seconds.unwrap_or(0).into(), 0, at.key("minReadySeconds"), findings);
    if spec.paused == Some(true) {
        findings.not_modelled(
            at.key("paused"),
            "a paused Deployment is not modelled",
            "it rolls out here as if `paused` were false",
        );
    }
    let template_at = at.key("template");
    let labels = spec
        .template
        .metadata
        .as_ref()
        .and_then(|metadata| metadata.labels.clone())
        .unwrap_or_default();
    check_labels(Some(&labels), &template_at.key("metadata").key("labels"), findings);
    check_selector(&spec.selector, &labels, &at, findings);
    let strategy = read_strategy(spec.strategy.as_ref(), &at.key("strategy"), findings);
    let Some(pod) = spec.template.spec else {
        findings.missing(template_at, "spec");
        return None;
    };
    let template = read_pod(&pod, labels, &template_at.key("spec"), findings);
    Some(DeploymentSpec { name, replicas, strategy, min_ready, template })
}

/// Checks that a Deployment's selector matches the labels of its own Pods.
fn check_selector(
    selector: &meta::LabelSelector,
    labels: &BTreeMap<String, String>,
    at: &Path,
    findings: &mut Findings,
) {
    let match_labels = selector.match_labels.clone().unwrap_or_default();
    let expressions = selector.match_expressions.as_deref().unwrap_or_default();
    if match_labels.is_empty() && expressions.is_empty() {
        findings.coded(
            "missing-field",
            at.clone(),
            "the Deployment has no selector",
            "add `selector: { matchLabels: … }` with labels of the template",
        );
        return;
    }
    let at = at.key("selector");
    for (key, value) in &match_labels {
        if labels.get(key) != Some(value) {
            findings.error(
                at.key("matchLabels").key(key),
                format!("`{key}: {value}` is not among the labels of the template"),
                "the selector must match the Deployment's own Pods: `template.metadata.labels`",
            );
        }
    }
    for (index, expression) in expressions.iter().enumerate() {
        let value = labels.get(&expression.key);
        let values = expression.values.as_deref().unwrap_or_default();
        let matches = match expression.operator.as_str() {
            "In" => value.is_some_and(|value| values.contains(value)),
            "NotIn" => value.is_none_or(|value| !values.contains(value)),
            "Exists" => value.is_some(),
            "DoesNotExist" => value.is_none(),
            other => {
                findings.error(
                    at.key("matchExpressions").index(index).key("operator"),
                    format!("unknown operator {other:?}"),
                    "known are In, NotIn, Exists and DoesNotExist",
                );
                continue;
            }
        };
        if !matches {
            findings.error(
                at.key("matchExpressions").index(index),
                "the template's labels do not match this",
                "the selector must match the Deployment's own Pods: `template.metadata.labels`",
            );
        }
    }
}

fn read_strategy(
    strategy: Option<&apps::DeploymentStrategy>,
    at: &Path,
    findings: &mut Findings,
) -> Strategy {
    let quarter = || IntOrPercent::Percent(25);
    let rolling = strategy.and_then(|strategy| strategy.rolling_update.as_ref());
    let kind = strategy.and_then(|strategy| strategy.type_.as_deref());
    match kind {
        None | Some("RollingUpdate") => {}
        Some("Recreate") => {
            if rolling.is_some() {
                findings.error(
                    at.key("rollingUpdate"),
                    "`rollingUpdate` is given, but the strategy is Recreate",
                    "remove `rollingUpdate`, or use `type: RollingUpdate`",
                );
            }
            return Strategy::Recreate;
        }
        Some(other) => findings.error(
            at.key("type"),
            format!("unknown strategy {other:?}"),
            "known are RollingUpdate and Recreate",
        ),
    }
    let at = at.key("rollingUpdate");
    let mut read = |value: Option<&IntOrString>, field: &str| match value {
        None => quarter(),
        Some(value) => int_or_percent(value, at.key(field), findings).unwrap_or_else(quarter),
    };
    let max_surge = read(rolling.and_then(|r| r.max_surge.as_ref()), "maxSurge");
    let max_unavailable = read(rolling.and_then(|r| r.max_unavailable.as_ref()), "maxUnavailable");
    let is_zero = |n| matches!(n, IntOrPercent::Int(0) | IntOrPercent::Percent(0));
    if is_zero(max_surge) && is_zero(max_unavailable) {
        findings.error(
            at.key("maxUnavailable"),
            "maxSurge and maxUnavailable are both 0",
            "one of them must be above 0, or the rollout could not move",
        );
    }
    if let IntOrPercent::Percent(101..) = max_unavailable {
        findings.error(
            at.key("maxUnavailable"),
            "maxUnavailable is above 100%",
            "at most all Pods can be unavailable",
        );
    }
    Strategy::RollingUpdate { max_surge, max_unavailable }
}

fn int_or_percent(value: &IntOrString, at: Path, findings: &mut Findings) -> Option<IntOrPercent> {
    let parsed = match value {
        IntOrString::Int(number) => u32::try_from(*number).ok().map(IntOrPercent::Int),
        IntOrString::String(text) => text
            .strip_suffix('%')
            .filter(|digits| digits.bytes().all(|byte| byte.is_ascii_digit()))
            .and_then(|digits| digits.parse().ok())
            .map(IntOrPercent::Percent),
    };
    if parsed.is_none() {
        let written = match value {
            IntOrString::Int(number) => number.to_string(),
            IntOrString::String(text) => format!("{text:?}"),
        };
        findings.error(
            at,
            format!("{written} is neither a number of Pods nor a percentage"),
            "write `1` or `25%`",
        );
    }
    parsed
}
