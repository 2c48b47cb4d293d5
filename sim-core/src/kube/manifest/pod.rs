//! Pod templates: containers, probes and hooks.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use k8s_openapi::api::core::v1 as core;

use super::name::{DNS_LABEL, PORT_NAME, is_dns_label, is_port_name, port_number};
use super::{Findings, Path};
use crate::config::{Application, Law, OnSigterm, PodTemplate, Probe};

pub(super) fn read_pod(
    pod: &core::PodSpec,
    labels: BTreeMap<String, String>,
    at: &Path,
    findings: &mut Findings,
) -> PodTemplate {
    let grace_s = pod.termination_grace_period_seconds.unwrap_or(30);
    let grace_at = at.key("terminationGracePeriodSeconds");
    let grace = seconds(grace_s, 0, grace_at, findings);
    match pod.restart_policy.as_deref() {
        None | Some("Always") => {}
        Some(other) => findings.error(
            at.key("restartPolicy"),
            format!("restartPolicy {other:?} in a Deployment"),
            "a Deployment's Pods have `restartPolicy: Always`",
        ),
    }
    if pod.host_network == Some(true) {
        findings.not_modelled(
            at.key("hostNetwork"),
            "hostNetwork is not modelled yet",
            "the Pods get addresses of their own here",
        );
    }
    if pod.containers.is_empty() {
        findings.missing(at.clone(), "containers");
    }
    let mut names = BTreeSet::new();
    let mut ports = BTreeMap::new();
    let mut pre_stop: Option<Duration> = None;
    let mut readiness: Option<Probe> = None;
    for (index, container) in pod.containers.iter().enumerate() {
        let at = at.key("containers").index(index);
        check_container_name(container, &mut names, &at, findings);
        read_container_ports(container, &mut ports, &at, findings);
        if let Some(probe) = &container.readiness_probe {
            let probe = read_probe(probe, &at.key("readinessProbe"), findings);
            if readiness.is_none() {
                readiness = probe;
            } else {
                findings.not_modelled(
                    at.key("readinessProbe"),
                    "only the first readiness probe of a Pod is modelled",
                    "the Pod is ready here when the first container's probe succeeds",
                );
            }
        }
        if container.startup_probe.is_some() {
            findings.not_modelled(
                at.key("startupProbe"),
                "startup probes are not modelled yet",
                "readiness is probed here from the container's start",
            );
        }
        let lifecycle = container.lifecycle.as_ref();
        if let Some(hook) = lifecycle.and_then(|lifecycle| lifecycle.pre_stop.as_ref()) {
            let at = at.key("lifecycle").key("preStop");
            // All containers' hooks run side by side.
            pre_stop = pre_stop.max(read_pre_stop(hook, grace_s, &at, findings));
        }
    }
    PodTemplate {
        labels,
        ports,
        pre_stop,
        grace,
        readiness,
        application: Application {
            on_sigterm: OnSigterm::Close,
            startup: Law::Constant(Duration::ZERO),
            service_time: Law::Constant(Duration::ZERO),
        },
    }
}

fn check_container_name<'c>(
    container: &'c core::Container,
    names: &mut BTreeSet<&'c str>,
    at: &Path,
    findings: &mut Findings,
) {
    if container.name.is_empty() {
        findings.missing(at.clone(), "name");
    } else if !is_dns_label(&container.name) {
        let message = format!("{:?} is not a valid container name", container.name);
        findings.error(at.key("name"), message, DNS_LABEL);
    } else if !names.insert(&container.name) {
        let message = format!("container name {:?} is used twice", container.name);
        let help = "container names are unique within a Pod";
        findings.error(at.key("name"), message, help);
    }
    if container.image.as_deref().unwrap_or_default().is_empty() {
        findings.missing(at.clone(), "image");
    }
}

fn read_container_ports(
    container: &core::Container,
    ports: &mut BTreeMap<String, u16>,
    at: &Path,
    findings: &mut Findings,
) {
    for (index, port) in container.ports.iter().flatten().enumerate() {
        let at = at.key("ports").index(index);
        let number = port_number(port.container_port, at.key("containerPort"), findings);
        let Some(name) = &port.name else { continue };
        if !is_port_name(name) {
            let message = format!("{name:?} is not a valid port name");
            findings.error(at.key("name"), message, PORT_NAME);
        } else if ports.contains_key(name) {
            findings.error(
                at.key("name"),
                format!("port name {name:?} is used twice"),
                "port names are unique within a Pod",
            );
        } else if let Some(number) = number
            && port.protocol.as_deref().unwrap_or("TCP") == "TCP"
        {
            ports.insert(name.clone(), number);
        }
    }
}

fn read_probe(probe: &core::Probe, at: &Path, findings: &mut Findings) -> Option<Probe> {
    let handlers = [
        probe.exec.is_some(),
        probe.grpc.is_some(),
        probe.http_get.is_some(),
        probe.tcp_socket.is_some(),
    ];
    match handlers.iter().filter(|&&given| given).count() {
        1 => {}
        0 => findings.missing(at.clone(), "httpGet, tcpSocket, grpc or exec"),
        _ => findings.error(
            at.clone(),
            "more than one kind of check",
            "a probe has exactly one of httpGet, tcpSocket, grpc and exec",
        ),
    }
    let mut number = |value: Option<i32>, default: i32, field: &str| {
        // Kubernetes: defaults.go, SetDefaults_Probe: 0 means the default.
        let value = value.filter(|&value| value != 0).unwrap_or(default);
        u32::try_from(value).unwrap_or_else(|_| {
            findings.error(
                at.key(field),
                format!("{field} cannot be negative"),
                format!("the default is {default}"),
            );
            0
        })
    };
    let initial_delay = number(probe.initial_delay_seconds, 0, "initialDelaySeconds");
    let period = number(probe.period_seconds, 10, "periodSeconds");
    let success_threshold = number(probe.success_threshold, 1, "successThreshold");
    let failure_threshold = number(probe.failure_threshold, 3, "failureThreshold");
    number(probe.timeout_seconds, 1, "timeoutSeconds");
    Some(Probe {
        initial_delay: Duration::from_secs(initial_delay.into()),
        period: Duration::from_secs(period.into()),
        success_threshold,
        failure_threshold,
    })
}

/// Returns how long the hook holds back SIGTERM.
fn read_pre_stop(
    hook: &core::LifecycleHandler,
    grace_s: i64,
    at: &Path,
    findings: &mut Findings,
) -> Option<Duration> {
    let handlers = [
        hook.exec.is_some(),
        hook.http_get.is_some(),
        hook.sleep.is_some(),
        hook.tcp_socket.is_some(),
    ];
    match handlers.iter().filter(|&&given| given).count() {
        1 => {}
        0 => {
            findings.missing(at.clone(), "exec, httpGet or sleep");
            return None;
        }
        _ => {
            findings.error(
                at.clone(),
                "more than one kind of hook",
                "a hook has exactly one of exec, httpGet and sleep",
            );
            return None;
        }
    }
    if let Some(sleep) = &hook.sleep {
        let at = at.key("sleep").key("seconds");
        // Kubernetes: validation.go, validateSleepAction.
        if sleep.seconds < 0 || sleep.seconds > grace_s {
            findings.coded(
                "prestop-exceeds-grace",
                at,
                format!(
                    "a preStop sleep of {} s does not fit the grace period of {grace_s} s",
                    sleep.seconds
                ),
                "Kubernetes refuses a sleep longer than terminationGracePeriodSeconds (30 if left \
                 out): raise that, or sleep less",
            );
            return None;
        }
        return Some(Duration::from_secs(sleep.seconds.unsigned_abs()));
    }
    if let Some(exec) = &hook.exec {
        let command = exec.command.as_deref().unwrap_or_default();
        let at = at.key("exec").key("command");
        return match exec_sleep(command) {
            Some((slept, rest)) => {
                if !rest.is_empty() {
                    findings.not_modelled(
                        at,
                        format!("of this hook only the sleep is modelled, not `{rest}`"),
                        "say what the program does at SIGTERM under `applications:`",
                    );
                }
                Some(slept)
            }
            None => {
                findings.not_modelled(
                    at,
                    "this preStop command is not modelled: it takes no time here",
                    "a sleep is recognised: `sleep: { seconds: 5 }`, `[\"sleep\", \"1.2\"]` or \
                     `[\"sh\", \"-c\", \"sleep 5\"]`",
                );
                None
            }
        };
    }
    findings.not_modelled(
        at.clone(),
        "this preStop hook is not modelled: it takes no time here",
        "a sleep is recognised: `sleep: { seconds: 5 }` or `exec: { command: [\"sleep\", \
         \"1.2\"] }`",
    );
    None
}

/// Recognises a command that sleeps, directly or through a shell; returns how long, and what the
/// shell runs after it.
pub(super) fn exec_sleep(command: &[String]) -> Option<(Duration, String)> {
    let program = |path: &str| path.rsplit('/').next().unwrap_or(path).to_owned();
    match command {
        [sleep, amounts @ ..] if program(sleep) == "sleep" => {
            Some((sleep_amount(amounts.iter().map(String::as_str))?, String::new()))
        }
        [shell, flag, script]
            if ["sh", "bash", "ash", "dash"].contains(&program(shell).as_str())
                && flag.starts_with('-')
                && flag.ends_with('c') =>
        {
            let end = script.find([';', '&', '|', '\n']).unwrap_or(script.len());
            let (first, rest) = script.split_at(end);
            let mut words = first.split_whitespace();
            let sleep = words.next().map(program)?;
            if sleep != "sleep" || rest.trim_start_matches('&').len() + 1 == rest.len() {
                return None; // another program, or a sleep in the background
            }
            let rest = rest.trim_matches(|c: char| c.is_whitespace() || ";&|".contains(c));
            Some((sleep_amount(words)?, rest.to_owned()))
        }
        _ => None,
    }
}

/// Adds up what coreutils' `sleep` would: numbers with a unit of s (the default), m, h or d.
fn sleep_amount<'w>(words: impl Iterator<Item = &'w str>) -> Option<Duration> {
    let mut total = None;
    for word in words {
        let (number, unit_s) = match word.char_indices().last()? {
            (at, 's') => (&word[..at], 1.0),
            (at, 'm') => (&word[..at], 60.0),
            (at, 'h') => (&word[..at], 3_600.0),
            (at, 'd') => (&word[..at], 86_400.0),
            _ => (word, 1.0),
        };
        let number: f64 = number.parse().ok()?;
        let amount = Duration::try_from_secs_f64(number * unit_s).ok()?;
        total = Some(amount.checked_add(total.unwrap_or_default())?);
    }
    total.filter(|&total| total <= Duration::from_secs(365 * 86_400))
}

pub(super) fn seconds(value: i64, least: i64, at: Path, findings: &mut Findings) -> Duration {
    match u64::try_from(value) {
        Ok(value) if value <= u64::from(u32::MAX) => Duration::from_secs(value),
        _ => {
            findings.error(
                at,
                format!("{value} is out of range"),
                format!("a whole number of seconds, at least {least}"),
            );
            Duration::ZERO
        }
    }
}
