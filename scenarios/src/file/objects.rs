//! Kubernetes objects of a scenario: from the tree to specs, and what they must agree about.

use std::collections::BTreeMap;

use sim_core::config::{DeploymentSpec, Ipv4Cidr, ObjectName, ServiceSpec, TargetPort};
use sim_core::kube::manifest::{Manifest, Object, Path, Problem, Segment};

use super::diagnostic::{Diagnostic, Diagnostics, Severity, Span};
use super::tree::{Node, Value};
use crate::units::closest;

/// The objects of a scenario, with the places where they were written.
#[derive(Debug, Default)]
pub(super) struct Objects {
    /// Services, in the order written.
    pub(super) services: Vec<(ServiceSpec, Node)>,
    /// Deployments, in the order written.
    pub(super) deployments: Vec<(DeploymentSpec, Node)>,
    /// Objects that are accepted and have no effect.
    pub(super) ignored: Vec<(String, ObjectName)>,
    /// Whether some object could not be read; then a name that is not found may be its.
    pub(super) broken: bool,
}

impl Objects {
    /// Reads every object of the list.
    pub(super) fn read(list: &[Node], diagnostics: &mut Diagnostics) -> Objects {
        let mut objects = Objects::default();
        for node in list {
            if node.value == Value::Null {
                objects.broken = true; // a file that could not be read, reported as such
                continue;
            }
            match Manifest::from_json(&node.to_json()) {
                Ok(manifests) => {
                    for manifest in manifests {
                        objects.add(node, manifest, diagnostics);
                    }
                }
                Err(problems) => {
                    objects.broken = true;
                    for problem in problems {
                        diagnostics.push(place(node, problem, Severity::Error));
                    }
                }
            }
        }
        objects.refuse_duplicates(diagnostics);
        objects
    }

    fn add(&mut self, node: &Node, manifest: Manifest, diagnostics: &mut Diagnostics) {
        for warning in manifest.warnings {
            diagnostics.push(place(node, warning, Severity::Warning));
        }
        let at = find(node, &manifest.path).0.clone();
        match manifest.object {
            Object::Service(spec) => self.services.push((spec, at)),
            Object::Deployment(spec) => self.deployments.push((*spec, at)),
            Object::Ignored { kind, name } => self.ignored.push((kind, name)),
        }
    }

    fn refuse_duplicates(&mut self, diagnostics: &mut Diagnostics) {
        let services = self.services.iter().map(|(spec, node)| ("Service", &spec.name, node));
        let deployments = self.deployments.iter();
        let deployments = deployments.map(|(spec, node)| ("Deployment", &spec.name, node));
        let mut seen: BTreeMap<(&str, &ObjectName), Span> = BTreeMap::new();
        for (kind, name, node) in services.chain(deployments) {
            let span = name_span(node);
            if let Some(first) = seen.insert((kind, name), span) {
                diagnostics.push(
                    Diagnostic::error(
                        "duplicate-object",
                        span,
                        format!("{kind} {name} is given twice"),
                    )
                    .context(first, "first given here")
                    .help("applying an object again replaces it; keep the one that you mean"),
                );
            }
        }
    }

    /// Checks what the API server and a linter would say about the objects together.
    pub(super) fn check(&self, service_cidr: Ipv4Cidr, diagnostics: &mut Diagnostics) {
        let mut addresses = BTreeMap::new();
        for (service, node) in &self.services {
            if let Some(address) = service.cluster_ip {
                let span = find(node, &path(&["spec", "clusterIP"])).1;
                if !service_cidr.contains(address) {
                    let message = format!("{address} is not in the Service range {service_cidr}");
                    diagnostics.push(Diagnostic::error("invalid-object", span, message).help(
                        "leave `clusterIP` out, or set `cluster.serviceCIDR` to your cluster's",
                    ));
                } else if let Some(first) = addresses.insert(address, span) {
                    let message = format!("{address} is already allocated");
                    diagnostics.push(
                        Diagnostic::error("invalid-object", span, message)
                            .context(first, "by this Service")
                            .help("a ClusterIP belongs to one Service"),
                    );
                }
            }
            self.check_selector(service, node, diagnostics);
        }
    }

    /// Reports Services whose clients stay with their endpoints, for a proxy that has no such thing.
    pub(super) fn refuse_affinity(&self, diagnostics: &mut Diagnostics) {
        for (service, node) in &self.services {
            if service.affinity.is_some() {
                let span = find(node, &path(&["spec", "sessionAffinity"])).1;
                let message = "mode article has no session affinity";
                diagnostics.push(Diagnostic::error("conflicting-fields", span, message).help(
                    "its nodes take turns, whoever the client is; remove `sessionAffinity`, or use \
                     another `proxy.mode`",
                ));
            }
        }
    }

    fn check_selector(&self, service: &ServiceSpec, node: &Node, diagnostics: &mut Diagnostics) {
        let selector = find(node, &path(&["spec", "selector"])).1;
        if service.selector.is_empty() {
            diagnostics.push(
                Diagnostic::warning("no-endpoints", name_span(node), "a Service without selector")
                    .help(
                        "nobody writes its endpoints here, so that every node rejects its traffic",
                    ),
            );
            return;
        }
        let matches = |deployment: &DeploymentSpec| {
            deployment.name.namespace == service.name.namespace
                && service
                    .selector
                    .iter()
                    .all(|(key, value)| deployment.template.labels.get(key) == Some(value))
        };
        let chosen: Vec<&DeploymentSpec> =
            self.deployments.iter().map(|(spec, _)| spec).filter(|spec| matches(spec)).collect();
        if chosen.is_empty() {
            if !self.broken {
                diagnostics.push(self.nothing_selected(service, selector));
            }
            return;
        }
        for (index, port) in service.ports.iter().enumerate() {
            let TargetPort::Name(name) = &port.target else {
                continue;
            };
            for deployment in chosen.iter().filter(|d| !d.template.ports.contains_key(name)) {
                let mut at = path(&["spec", "ports"]);
                at.0.push(Segment::Index(index));
                at.0.push(Segment::Key("targetPort".to_owned()));
                let message = format!("{} has no TCP port named {name:?}", deployment.name);
                let ports: Vec<&str> =
                    deployment.template.ports.keys().map(String::as_str).collect();
                let help = match closest(name, ports.iter().copied()) {
                    Some(port) => format!("did you mean {port:?}?"),
                    None => "name a container port so; without it these Pods are no endpoints of this port".to_owned(),
                };
                diagnostics.push(
                    Diagnostic::warning("no-endpoints", find(node, &at).1, message).help(help),
                );
            }
        }
    }

    fn nothing_selected(&self, service: &ServiceSpec, span: Span) -> Diagnostic {
        let as_text = |(key, value): (&String, &String)| format!("{key}={value}");
        let selector: Vec<String> = service.selector.iter().map(as_text).collect();
        let selector = selector.join(",");
        let labels: Vec<String> = self
            .deployments
            .iter()
            .filter(|(spec, _)| spec.name.namespace == service.name.namespace)
            .flat_map(|(spec, _)| spec.template.labels.iter().map(as_text))
            .collect();
        let help = match closest(&selector, labels.iter().map(String::as_str)) {
            Some(label) => format!("did you mean {label}?"),
            None => format!(
                "no Deployment in namespace {} has Pods with these labels",
                service.name.namespace
            ),
        };
        let message = format!("the selector {selector} matches no Pods");
        Diagnostic::warning("selector-matches-nothing", span, message)
            .note("Kubernetes accepts this silently: the Service has no endpoints, and every node rejects its traffic")
            .help(help)
    }

    /// Returns the Service called `name`.
    pub(super) fn service(&self, name: &ObjectName) -> Option<&ServiceSpec> {
        let mut specs = self.services.iter().map(|(spec, _)| spec);
        specs.find(|spec| spec.name == *name)
    }

    /// Returns whether there is a Deployment called `name`.
    pub(super) fn has_deployment(&self, name: &ObjectName) -> bool {
        self.deployments.iter().any(|(spec, _)| spec.name == *name)
    }
}

/// Returns where an object's name was written, or the object.
pub(super) fn name_span(node: &Node) -> Span {
    find(node, &path(&["metadata", "name"])).1
}

/// Returns where `spec.replicas` was written, or the object's name.
pub(super) fn replicas_span(node: &Node) -> Span {
    let replicas = node.get("spec").and_then(|spec| spec.get("replicas"));
    replicas.map_or_else(|| name_span(node), |replicas| replicas.span)
}

fn path(keys: &[&str]) -> Path {
    Path(keys.iter().map(|&key| Segment::Key(key.to_owned())).collect())
}

/// Returns the node at `path`, or the closest one above it, and where to point: at the key of
/// what could not be entered, or at the value.
pub(super) fn find<'n>(node: &'n Node, path: &Path) -> (&'n Node, Span) {
    let mut at = node;
    let mut span = first_line_of(node);
    for segment in &path.0 {
        let next = match segment {
            Segment::Key(key) => at.entry(key).map(|entry| (&entry.value, entry.key_span)),
            Segment::Index(index) => at.items().get(*index).map(|item| (item, item.span)),
        };
        let Some((next, key_span)) = next else { break };
        at = next;
        // A mapping or a list is pointed at by its key, a scalar by itself.
        let scalar = next.items().is_empty() && next.entries().is_empty();
        span = if scalar { next.span } else { key_span };
    }
    (at, span)
}

/// Returns the first key of an object: it has no key of its own.
fn first_line_of(node: &Node) -> Span {
    node.entries().first().map_or(node.span, |entry| entry.key_span)
}

pub(super) fn place(node: &Node, problem: Problem, severity: Severity) -> Diagnostic {
    let (_, mut span) = find(node, &problem.path);
    if problem.code == "unknown-field"
        && let Some((Segment::Key(key), parents)) = problem.path.0.split_last()
        && let (parent, _) = find(node, &Path(parents.to_vec()))
        && let Some(entry) = parent.entry(key)
    {
        span = entry.key_span;
    }
    let mut diagnostic = Diagnostic::error(problem.code, span, problem.message).help(problem.help);
    diagnostic.severity = severity;
    if !problem.path.0.is_empty() {
        diagnostic = diagnostic.note(format!("at {}", problem.path));
    }
    diagnostic
}
