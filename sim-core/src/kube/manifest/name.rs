//! Names, labels and ports, as Kubernetes allows them.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1 as meta;

use super::{Findings, Path};
use crate::config::ObjectName;

pub(super) fn read_name(
    metadata: &meta::ObjectMeta,
    is_valid: fn(&str) -> bool,
    rule: &str,
    findings: &mut Findings,
) -> ObjectName {
    let name = metadata.name.clone().unwrap_or_default();
    if name.is_empty() {
        findings.missing(Path::of("metadata"), "name");
    } else if !is_valid(&name) {
        let message = format!("{name:?} is not a valid name");
        findings.error(Path::of("metadata.name"), message, rule);
    }
    let namespace = metadata.namespace.clone().unwrap_or("default".to_owned());
    if !is_dns_label(&namespace) {
        let message = format!("{namespace:?} is not a valid namespace");
        findings.error(Path::of("metadata.namespace"), message, DNS_LABEL);
    }
    check_labels(metadata.labels.as_ref(), &Path::of("metadata.labels"), findings);
    ObjectName { namespace, name }
}

pub(super) fn port_number(value: i32, at: Path, findings: &mut Findings) -> Option<u16> {
    let number = u16::try_from(value).ok().filter(|&number| number > 0);
    if number.is_none() {
        let message = format!("{value} is not a port");
        findings.error(at, message, "ports are 1 to 65535");
    }
    number
}

pub(super) fn check_labels(
    labels: Option<&BTreeMap<String, String>>,
    at: &Path,
    findings: &mut Findings,
) {
    for (key, value) in labels.into_iter().flatten() {
        let name = key.split_once('/').map_or(key.as_str(), |(_, name)| name);
        if !is_label_text(name) || name.is_empty() {
            findings.error(at.key(key), format!("{key:?} is not a valid label key"), LABEL_TEXT);
        }
        if !is_label_text(value) {
            findings.error(
                at.key(key),
                format!("{value:?} is not a valid label value"),
                LABEL_TEXT,
            );
        }
    }
}

pub(super) const DNS_LABEL: &str =
    "use at most 63 lower-case letters, digits and `-`, with a letter or digit at both ends";
pub(super) const DNS_1035_LABEL: &str =
    "use at most 63 lower-case letters, digits and `-`, with a letter first and no `-` last";
pub(super) const DNS_SUBDOMAIN: &str =
    "use at most 253 lower-case letters, digits, `-` and `.`, with a letter or digit at both ends";
pub(super) const PORT_NAME: &str =
    "use at most 15 lower-case letters, digits and `-`, with at least one letter and no `--`";
const LABEL_TEXT: &str =
    "use at most 63 letters, digits, `-`, `_` and `.`, with a letter or digit at both ends";

pub(super) fn is_dns_label(text: &str) -> bool {
    let ends_well = |byte: Option<u8>| byte.is_some_and(|byte| byte != b'-');
    text.len() <= 63
        && text
            .bytes()
            .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-')
        && ends_well(text.bytes().next())
        && ends_well(text.bytes().last())
}

pub(super) fn is_dns_1035_label(text: &str) -> bool {
    is_dns_label(text) && text.starts_with(|c: char| c.is_ascii_lowercase())
}

pub(super) fn is_dns_subdomain(text: &str) -> bool {
    let is_part = |part: &str| {
        !part.is_empty()
            && !part.starts_with('-')
            && !part.ends_with('-')
            && part
                .bytes()
                .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-')
    };
    text.len() <= 253 && text.split('.').all(is_part)
}

pub(super) fn is_port_name(text: &str) -> bool {
    text.len() <= 15
        && is_dns_label(text)
        && !text.contains("--")
        && text.bytes().any(|byte| byte.is_ascii_lowercase())
}

fn is_label_text(text: &str) -> bool {
    let is_end = |byte: Option<u8>| byte.is_none_or(|byte| byte.is_ascii_alphanumeric());
    text.len() <= 63
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte))
        && is_end(text.bytes().next())
        && is_end(text.bytes().last())
}
