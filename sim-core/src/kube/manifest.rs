//! Kubernetes objects, as `kubectl` prints or applies them, to the specs of [`crate::config`].
//!
//! An object is judged as the API server would: unknown fields, wrong types and invalid values
//! are errors, all of them at once; fields that only the server writes are accepted. What is
//! valid but not modelled is a warning that says what it means for the results. This is not a
//! YAML reader: positions are paths, which the reader of the file maps to lines.
//!
//! The types of `k8s-openapi` are named in this module only.

mod deployment;
mod name;
mod object;
mod pod;
mod service;
mod strict;

use std::fmt;

use serde_json::Value;

use crate::config::{DeploymentSpec, ObjectName, ServiceSpec};

/// A Kubernetes object that was understood.
#[derive(Clone, Debug, PartialEq)]
pub struct Manifest<T = Object> {
    /// Where it stands: nothing, or its place in a `kind: List`.
    pub path: Path,
    /// What it is.
    pub object: T,
    /// What is valid but probably not as meant, or not modelled.
    pub warnings: Vec<Problem>,
}

/// What the model knows.
#[derive(Clone, Debug, PartialEq)]
pub enum Object {
    /// A Service with a ClusterIP.
    Service(ServiceSpec),
    /// A Deployment.
    Deployment(Box<DeploymentSpec>),
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
        Path(dotted.split('.').map(|key| Segment::Key(key.to_owned())).collect())
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
        read_items(value, read_object)
    }
}

/// Reads an object, or each item of a `kind: List`.
fn read_items<T>(
    value: &Value,
    read: fn(&Value, &mut Findings) -> Option<T>,
) -> Result<Vec<Manifest<T>>, Vec<Problem>> {
    let is_list = value["apiVersion"] == "v1" && value["kind"] == "List";
    if !is_list {
        return read_one(value, read).map(|manifest| vec![manifest]);
    }
    let mut manifests = Vec::new();
    let mut problems = Vec::new();
    for (index, item) in value["items"].as_array().into_iter().flatten().enumerate() {
        let place = Path::default().key("items").index(index);
        let move_in = |problem: &mut Problem| {
            let inner = std::mem::take(&mut problem.path);
            problem.path = Path(place.0.iter().cloned().chain(inner.0).collect());
        };
        match read_one(item, read) {
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
    if problems.is_empty() { Ok(manifests) } else { Err(problems) }
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
        self.errors.push(Problem { code, path, message: message.into(), help: help.into() });
    }

    fn not_modelled(&mut self, path: Path, message: impl Into<String>, help: impl Into<String>) {
        self.warnings.push(Problem {
            code: "not-modelled",
            path,
            message: message.into(),
            help: help.into(),
        });
    }

    fn wrong_version(&mut self, version: &str, kind: &str, right: &str) {
        self.error(
            Path::of("apiVersion"),
            format!("no {kind} in version `{version}`"),
            format!("a {kind} is of `apiVersion: {right}`"),
        );
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

fn read_one<T>(
    value: &Value,
    read: fn(&Value, &mut Findings) -> Option<T>,
) -> Result<Manifest<T>, Vec<Problem>> {
    let mut findings = Findings::default();
    match read(value, &mut findings) {
        Some(object) if findings.errors.is_empty() => {
            Ok(Manifest { path: Path::default(), object, warnings: findings.warnings })
        }
        _ => Err(findings.errors),
    }
}

/// Returns version and kind of an object.
fn header<'v>(value: &'v Value, findings: &mut Findings) -> Option<(&'v str, &'v str)> {
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
    Some((value["apiVersion"].as_str()?, value["kind"].as_str()?))
}

/// Returns namespace and name of an object that is not read otherwise.
fn object_name(value: &Value) -> ObjectName {
    let text = |field: &str| value["metadata"][field].as_str().map(str::to_owned);
    ObjectName {
        namespace: text("namespace").unwrap_or_else(|| "default".to_owned()),
        name: text("name").unwrap_or_default(),
    }
}

fn read_object(value: &Value, findings: &mut Findings) -> Option<Object> {
    let (version, kind) = header(value, findings)?;
    match (version, kind) {
        ("v1", "Service") => {
            let service = strict::read(value, &mut findings.errors)?;
            service::read_service(service, findings)
        }
        ("apps/v1", "Deployment") => {
            let deployment = strict::read(value, &mut findings.errors)?;
            let deployment = deployment::read_deployment(deployment, findings)?;
            Some(Object::Deployment(Box::new(deployment)))
        }
        (_, "Service" | "Deployment") => {
            let right = if kind == "Service" { "v1" } else { "apps/v1" };
            findings.wrong_version(version, kind, right);
            None
        }
        _ => {
            let name = object_name(value);
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

#[cfg(test)]
mod tests;
