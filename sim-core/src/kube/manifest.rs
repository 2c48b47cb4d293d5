//! Kubernetes objects, as `kubectl` prints or applies them, to the specs of [`crate::config`].
//!
//! An object is judged as the API server would: unknown fields, wrong types and invalid values
//! are errors, all of them at once; fields that only the server writes are accepted. What is
//! valid but not modelled is a warning that says what it means for the results. This is not a
//! YAML reader: positions are paths, which the reader of the file maps to lines.
//!
//! The types of `k8s-openapi` are named in this module only.

mod strict;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::Ipv4Addr;
use std::time::Duration;

use k8s_openapi::api::apps::v1 as apps;
use k8s_openapi::api::core::v1 as core;
use k8s_openapi::apimachinery::pkg::apis::meta::v1 as meta;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use serde_json::Value;

use crate::config::{
    Application, DeploymentSpec, IntOrPercent, Law, ObjectName, OnSigterm, PodTemplate, Probe,
    ServicePortSpec, ServiceSpec, Strategy, TargetPort,
};

/// A Kubernetes object that was understood.
#[derive(Clone, Debug, PartialEq)]
pub struct Manifest {
    /// Where it stands: nothing, or its place in a `kind: List`.
    pub path: Path,
    /// What it is.
    pub object: Object,
    /// What is valid but probably not as meant, or not modelled.
    pub warnings: Vec<Problem>,
}

/// What the model knows.
#[derive(Clone, Debug, PartialEq)]
pub enum Object {
    /// A Service with a ClusterIP.
    Service(ServiceSpec),
    /// A Deployment.
    Deployment(DeploymentSpec),
    /// A kind that has no effect on the model.
    Ignored {
        /// The kind.
        kind: String,
        /// Namespace and name.
        name: ObjectName,
    },
}

/// Something wrong with an object.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{path}: {message}")]
pub struct Problem {
    /// What kind of problem, for searching.
    pub code: &'static str,
    /// Where in the object.
    pub path: Path,
    /// What is wrong.
    pub message: String,
    /// A sentence about what to do.
    pub help: String,
}

/// A place in an object.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Path(pub Vec<Segment>);

/// A step of a [`Path`].
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Segment {
    /// Into a mapping.
    Key(String),
    /// Into a list.
    Index(usize),
}

impl Path {
    fn join(&self, segment: Segment) -> Path {
        let mut segments = self.0.clone();
        segments.push(segment);
        Path(segments)
    }

    fn key(&self, key: &str) -> Path {
        self.join(Segment::Key(key.to_owned()))
    }

    fn index(&self, index: usize) -> Path {
        self.join(Segment::Index(index))
    }

    /// Returns the place `spec.template` …, given with points.
    fn of(dotted: &str) -> Path {
        Path(
            dotted
                .split('.')
                .map(|key| Segment::Key(key.to_owned()))
                .collect(),
        )
    }
}

impl fmt::Display for Path {
    /// Prints as kubectl does: `spec.ports[0].port`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, segment) in self.0.iter().enumerate() {
            match segment {
                Segment::Key(key) if at == 0 => write!(f, "{key}")?,
                Segment::Key(key) => write!(f, ".{key}")?,
                Segment::Index(index) => write!(f, "[{index}]")?,
            }
        }
        Ok(())
    }
}

impl Manifest {
    /// Reads an object, or each item of a `kind: List`.
    ///
    /// # Errors
    ///
    /// Everything that the API server would refuse, in the order of the file.
    pub fn from_json(value: &Value) -> Result<Vec<Manifest>, Vec<Problem>> {
        let is_list = value["apiVersion"] == "v1" && value["kind"] == "List";
        if !is_list {
            return read_one(value).map(|manifest| vec![manifest]);
        }
        let mut manifests = Vec::new();
        let mut problems = Vec::new();
        for (index, item) in value["items"].as_array().into_iter().flatten().enumerate() {
            let place = Path::default().key("items").index(index);
            let move_in = |problem: &mut Problem| {
                let inner = std::mem::take(&mut problem.path);
                problem.path = Path(place.0.iter().cloned().chain(inner.0).collect());
            };
            match read_one(item) {
                Ok(mut manifest) => {
                    manifest.path = place.clone();
                    manifest.warnings.iter_mut().for_each(move_in);
                    manifests.push(manifest);
                }
                Err(mut found) => {
                    found.iter_mut().for_each(move_in);
                    problems.append(&mut found);
                }
            }
        }
        if problems.is_empty() {
            Ok(manifests)
        } else {
            Err(problems)
        }
    }
}

/// What was found about one object.
#[derive(Default)]
struct Findings {
    errors: Vec<Problem>,
    warnings: Vec<Problem>,
}

impl Findings {
    fn error(&mut self, path: Path, message: impl Into<String>, help: impl Into<String>) {
        self.coded("invalid-object", path, message, help);
    }

    fn coded(
        &mut self,
        code: &'static str,
        path: Path,
        message: impl Into<String>,
        help: impl Into<String>,
    ) {
        self.errors.push(Problem {
            code,
            path,
            message: message.into(),
            help: help.into(),
        });
    }

    fn not_modelled(&mut self, path: Path, message: impl Into<String>, help: impl Into<String>) {
        self.warnings.push(Problem {
            code: "not-modelled",
            path,
            message: message.into(),
            help: help.into(),
        });
    }

    fn missing(&mut self, path: Path, field: &str) {
        self.coded(
            "missing-field",
            path,
            format!("`{field}` is missing"),
            format!("Kubernetes requires `{field}` here"),
        );
    }
}

fn read_one(value: &Value) -> Result<Manifest, Vec<Problem>> {
    let mut findings = Findings::default();
    let object = read_object(value, &mut findings);
    match object {
        Some(object) if findings.errors.is_empty() => Ok(Manifest {
            path: Path::default(),
            object,
            warnings: findings.warnings,
        }),
        _ => Err(findings.errors),
    }
}

fn read_object(value: &Value, findings: &mut Findings) -> Option<Object> {
    if !value.is_object() {
        findings.coded(
            "wrong-type",
            Path::default(),
            "this is not a Kubernetes object",
            "an object is a mapping with `apiVersion`, `kind` and `metadata`",
        );
        return None;
    }
    for field in ["apiVersion", "kind"] {
        if !value[field].is_string() {
            findings.missing(Path::default(), field);
        }
    }
    let (Some(version), Some(kind)) = (value["apiVersion"].as_str(), value["kind"].as_str()) else {
        return None;
    };
    match (version, kind) {
        ("v1", "Service") => {
            let service = strict::read(value, &mut findings.errors)?;
            read_service(service, findings)
        }
        ("apps/v1", "Deployment") => {
            let deployment = strict::read(value, &mut findings.errors)?;
            read_deployment(deployment, findings).map(Object::Deployment)
        }
        (_, "Service" | "Deployment") => {
            let right = if kind == "Service" { "v1" } else { "apps/v1" };
            findings.error(
                Path::of("apiVersion"),
                format!("no {kind} in version `{version}`"),
                format!("a {kind} is of `apiVersion: {right}`"),
            );
            None
        }
        _ => {
            let text = |field: &str| value["metadata"][field].as_str().map(str::to_owned);
            let name = ObjectName {
                namespace: text("namespace").unwrap_or_else(|| "default".to_owned()),
                name: text("name").unwrap_or_default(),
            };
            let sends = matches!(
                kind,
                "Pod" | "ReplicaSet" | "StatefulSet" | "DaemonSet" | "ReplicationController"
            );
            findings.not_modelled(
                Path::of("kind"),
                format!("{kind} {} is ignored", name.name),
                if sends {
                    "only Deployments run Pods so far; endpoints of this object are missing"
                } else {
                    "only Services and Deployments are modelled so far"
                },
            );
            let kind = kind.to_owned();
            Some(Object::Ignored { kind, name })
        }
    }
}

fn read_name(
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
    check_labels(
        metadata.labels.as_ref(),
        &Path::of("metadata.labels"),
        findings,
    );
    ObjectName { namespace, name }
}

fn read_service(service: core::Service, findings: &mut Findings) -> Option<Object> {
    let name = read_name(
        &service.metadata,
        is_dns_1035_label,
        DNS_1035_LABEL,
        findings,
    );
    let Some(spec) = service.spec else {
        findings.missing(Path::default(), "spec");
        return None;
    };
    let at = Path::of("spec");
    let ignored = Object::Ignored {
        kind: "Service".to_owned(),
        name: name.clone(),
    };
    let kind = spec.type_.as_deref().unwrap_or("ClusterIP");
    match kind {
        "ClusterIP" => {}
        "NodePort" => findings.not_modelled(
            at.key("type"),
            "NodePort traffic is not modelled yet",
            "the Service's ClusterIP is; clients reach it there",
        ),
        "LoadBalancer" => findings.not_modelled(
            at.key("type"),
            "load balancers and NodePort traffic are not modelled yet",
            "the Service's ClusterIP is; clients reach it there",
        ),
        "ExternalName" => {
            findings.not_modelled(
                at.key("type"),
                format!("ExternalName Service {} is ignored", name.name),
                "it is a DNS alias and has no rules on any node",
            );
            return Some(ignored);
        }
        other => findings.error(
            at.key("type"),
            format!("unknown Service type {other:?}"),
            "known are ClusterIP, NodePort, LoadBalancer and ExternalName",
        ),
    }
    if spec.cluster_ip.as_deref() == Some("None") {
        findings.not_modelled(
            at.key("clusterIP"),
            format!("headless Service {} is ignored", name.name),
            "it has no ClusterIP and no rules on any node; its clients resolve Pods by DNS, which \
             is not modelled yet",
        );
        return Some(ignored);
    }
    let cluster_ip = match spec.cluster_ip.as_deref() {
        None | Some("") => None,
        Some(text) => match text.parse::<Ipv4Addr>() {
            Ok(address) => Some(address),
            Err(_) => {
                findings.error(
                    at.key("clusterIP"),
                    format!("{text:?} is not an IPv4 address"),
                    "leave it out to have one allocated, or give one of the Service range",
                );
                None
            }
        },
    };
    warn_unmodelled_service(&spec, &at, findings);
    check_labels(spec.selector.as_ref(), &at.key("selector"), findings);
    let ports = read_service_ports(spec.ports.as_deref().unwrap_or_default(), &at, findings);
    if ports.is_empty() && findings.errors.is_empty() {
        return Some(ignored); // only UDP or SCTP; said above
    }
    Some(Object::Service(ServiceSpec {
        name,
        cluster_ip,
        selector: spec.selector.unwrap_or_default(),
        ports,
    }))
}

/// Warns of fields that change where packets go and that the model does not follow.
fn warn_unmodelled_service(spec: &core::ServiceSpec, at: &Path, findings: &mut Findings) {
    if spec.session_affinity.as_deref() == Some("ClientIP") {
        findings.not_modelled(
            at.key("sessionAffinity"),
            "session affinity is not modelled yet",
            "every connection chooses its endpoint anew here; with affinity, a client that \
             sticks to a deleted Pod loses more",
        );
    }
    if spec.internal_traffic_policy.as_deref() == Some("Local") {
        findings.not_modelled(
            at.key("internalTrafficPolicy"),
            "internalTrafficPolicy Local is not modelled yet",
            "traffic is spread over all endpoints here, as under Cluster",
        );
    }
    if spec.publish_not_ready_addresses == Some(true) {
        findings.not_modelled(
            at.key("publishNotReadyAddresses"),
            "publishNotReadyAddresses is not modelled yet",
            "only ready endpoints are used here",
        );
    }
    if let Some(preference) = &spec.traffic_distribution {
        findings.not_modelled(
            at.key("trafficDistribution"),
            format!("trafficDistribution {preference} is not modelled yet"),
            "traffic is spread over all endpoints here",
        );
    }
    if spec
        .external_ips
        .as_ref()
        .is_some_and(|ips| !ips.is_empty())
    {
        findings.not_modelled(
            at.key("externalIPs"),
            "externalIPs are not modelled yet",
            "the Service's ClusterIP is; clients reach it there",
        );
    }
}

fn read_service_ports(
    ports: &[core::ServicePort],
    at: &Path,
    findings: &mut Findings,
) -> Vec<ServicePortSpec> {
    if ports.is_empty() {
        findings.missing(at.clone(), "ports");
    }
    let at = at.key("ports");
    let mut names = BTreeSet::new();
    let mut numbers = BTreeSet::new();
    let mut specs = Vec::new();
    for (index, port) in ports.iter().enumerate() {
        let at = at.index(index);
        let protocol = port.protocol.as_deref().unwrap_or("TCP");
        if !["TCP", "UDP", "SCTP"].contains(&protocol) {
            findings.error(
                at.key("protocol"),
                format!("unknown protocol {protocol:?}"),
                "known are TCP, UDP and SCTP",
            );
        }
        match &port.name {
            None if ports.len() > 1 => findings.coded(
                "missing-field",
                at.clone(),
                "a port without a name",
                "a Service with more than one port names each of them",
            ),
            None => {}
            Some(name) if !is_dns_label(name) => findings.error(
                at.key("name"),
                format!("{name:?} is not a valid port name"),
                DNS_LABEL,
            ),
            Some(name) if !names.insert(name.as_str()) => findings.error(
                at.key("name"),
                format!("port name {name:?} is used twice"),
                "port names are unique within a Service",
            ),
            Some(_) => {}
        }
        let Some(number) = port_number(port.port, at.key("port"), findings) else {
            continue;
        };
        if !numbers.insert((protocol, number)) {
            findings.error(
                at.key("port"),
                format!("port {number}/{protocol} is used twice"),
                "protocol and port are unique within a Service",
            );
        }
        let target_at = at.key("targetPort");
        let target = match &port.target_port {
            None => Some(TargetPort::Number(number)),
            Some(IntOrString::Int(0)) => Some(TargetPort::Number(number)),
            Some(IntOrString::Int(target)) => {
                port_number(*target, target_at, findings).map(TargetPort::Number)
            }
            Some(IntOrString::String(name)) => {
                if !is_port_name(name) {
                    let message = format!("{name:?} is not a valid port name");
                    findings.error(target_at, message, PORT_NAME);
                }
                Some(TargetPort::Name(name.clone()))
            }
        };
        if protocol != "TCP" {
            findings.not_modelled(
                at,
                format!("port {number}/{protocol} is ignored"),
                "only TCP is modelled so far",
            );
            continue;
        }
        specs.extend(target.map(|target| ServicePortSpec {
            name: port.name.clone(),
            port: number,
            target,
        }));
    }
    specs
}

fn read_deployment(
    deployment: apps::Deployment,
    findings: &mut Findings,
) -> Option<DeploymentSpec> {
    let name = read_name(
        &deployment.metadata,
        is_dns_subdomain,
        DNS_SUBDOMAIN,
        findings,
    );
    let spec = deployment.spec;
    if spec == apps::DeploymentSpec::default() {
        findings.missing(Path::default(), "spec");
        return None;
    }
    let at = Path::of("spec");
    let replicas = match u32::try_from(spec.replicas.unwrap_or(1)) {
        Ok(replicas) => replicas,
        Err(_) => {
            findings.error(
                at.key("replicas"),
                "replicas cannot be negative",
                "use 0 or more",
            );
            0
        }
    };
    let min_ready = seconds(
        spec.min_ready_seconds.unwrap_or(0).into(),
        0,
        at.key("minReadySeconds"),
        findings,
    );
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
    check_labels(
        Some(&labels),
        &template_at.key("metadata").key("labels"),
        findings,
    );
    check_selector(&spec.selector, &labels, &at, findings);
    let strategy = read_strategy(spec.strategy.as_ref(), &at.key("strategy"), findings);
    let Some(pod) = spec.template.spec else {
        findings.missing(template_at, "spec");
        return None;
    };
    let template = read_pod(&pod, labels, &template_at.key("spec"), findings);
    Some(DeploymentSpec {
        name,
        replicas,
        strategy,
        min_ready,
        template,
    })
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
    let max_unavailable = read(
        rolling.and_then(|r| r.max_unavailable.as_ref()),
        "maxUnavailable",
    );
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
    Strategy::RollingUpdate {
        max_surge,
        max_unavailable,
    }
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

fn read_pod(
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
fn exec_sleep(command: &[String]) -> Option<(Duration, String)> {
    let program = |path: &str| path.rsplit('/').next().unwrap_or(path).to_owned();
    match command {
        [sleep, amounts @ ..] if program(sleep) == "sleep" => Some((
            sleep_amount(amounts.iter().map(String::as_str))?,
            String::new(),
        )),
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

fn seconds(value: i64, least: i64, at: Path, findings: &mut Findings) -> Duration {
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

fn port_number(value: i32, at: Path, findings: &mut Findings) -> Option<u16> {
    let number = u16::try_from(value).ok().filter(|&number| number > 0);
    if number.is_none() {
        let message = format!("{value} is not a port");
        findings.error(at, message, "ports are 1 to 65535");
    }
    number
}

fn check_labels(labels: Option<&BTreeMap<String, String>>, at: &Path, findings: &mut Findings) {
    for (key, value) in labels.into_iter().flatten() {
        let name = key.split_once('/').map_or(key.as_str(), |(_, name)| name);
        if !is_label_text(name) || name.is_empty() {
            findings.error(
                at.key(key),
                format!("{key:?} is not a valid label key"),
                LABEL_TEXT,
            );
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

const DNS_LABEL: &str =
    "use at most 63 lower-case letters, digits and `-`, with a letter or digit at both ends";
const DNS_1035_LABEL: &str =
    "use at most 63 lower-case letters, digits and `-`, with a letter first and no `-` last";
const DNS_SUBDOMAIN: &str =
    "use at most 253 lower-case letters, digits, `-` and `.`, with a letter or digit at both ends";
const PORT_NAME: &str =
    "use at most 15 lower-case letters, digits and `-`, with at least one letter and no `--`";
const LABEL_TEXT: &str =
    "use at most 63 letters, digits, `-`, `_` and `.`, with a letter or digit at both ends";

fn is_dns_label(text: &str) -> bool {
    let ends_well = |byte: Option<u8>| byte.is_some_and(|byte| byte != b'-');
    text.len() <= 63
        && text
            .bytes()
            .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-')
        && ends_well(text.bytes().next())
        && ends_well(text.bytes().last())
}

fn is_dns_1035_label(text: &str) -> bool {
    is_dns_label(text) && text.starts_with(|c: char| c.is_ascii_lowercase())
}

fn is_dns_subdomain(text: &str) -> bool {
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

fn is_port_name(text: &str) -> bool {
    text.len() <= 15
        && is_dns_label(text)
        && !text.contains("--")
        && text.bytes().any(|byte| byte.is_ascii_lowercase())
}

fn is_label_text(text: &str) -> bool {
    let is_end = |byte: Option<u8>| byte.is_none_or(|byte| byte.is_ascii_alphanumeric());
    text.len() <= 63
        && text
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte))
        && is_end(text.bytes().next())
        && is_end(text.bytes().last())
}

#[cfg(test)]
mod tests;
