//! Files of Kubernetes objects, as `-f` takes them: what proxies are told.

use std::io::Read as _;
use std::path::{Path, PathBuf};

use sim_core::kube::manifest::Manifest;
use sim_core::kube::object::{Object, Service, ServiceType};
use sim_core::proxy::state::Objects;

use super::diagnostic::{Diagnostic, Severity};
use super::objects::{find, name_span, place};
use super::tree::{self, Node, Value};
use super::{Reader, read_text};

/// What files are objects, in a folder.
const EXTENSIONS: [&str; 3] = ["yaml", "yml", "json"];

impl Reader {
    /// Reads all objects of files, of the files of folders, and, for `-`, of standard input.
    /// A later object takes the place of an earlier one of its kind and name.
    pub(crate) fn cluster(&mut self, names: &[String]) -> Objects {
        let mut objects = Objects::default();
        for name in names {
            for path in self.files(name) {
                self.object_documents(&path, &mut objects);
            }
        }
        objects
    }

    /// Returns the files that an argument stands for, in order.
    fn files(&mut self, name: &str) -> Vec<PathBuf> {
        let path = Path::new(name);
        if name == "-" || !path.is_dir() {
            return vec![path.to_owned()];
        }
        let entries = match std::fs::read_dir(path) {
            Ok(entries) => entries,
            Err(error) => {
                self.missing(name, &error.to_string());
                return Vec::new();
            }
        };
        let is_object = |path: &PathBuf| {
            let extension = path.extension().and_then(|extension| extension.to_str());
            extension.is_some_and(|extension| EXTENSIONS.contains(&extension))
        };
        let mut files: Vec<PathBuf> =
            entries.flatten().map(|entry| entry.path()).filter(is_object).collect();
        files.sort();
        if files.is_empty() {
            self.missing(name, "it holds no .yaml, .yml or .json file");
        }
        files
    }

    fn missing(&mut self, name: &str, problem: &str) {
        let message = format!("cannot read {name}: {problem}");
        let diagnostic = Diagnostic::placeless("missing-file", message);
        self.diagnostics.push(diagnostic.help("give files, folders, or - for standard input"));
    }

    fn object_documents(&mut self, path: &Path, objects: &mut Objects) {
        let name = path.to_string_lossy();
        let text = if name == "-" { read_stdin() } else { read_text(path) };
        let text = match text {
            Ok(text) => text,
            Err(problem) => return self.missing(&name, &problem),
        };
        let file = self.sources.add(if name == "-" { "stdin" } else { &name }, text);
        let documents = tree::parse(self.sources.text(file), file, &mut self.diagnostics);
        // Helm and kustomize leave empty documents between others.
        for document in documents.iter().filter(|node| node.value != Value::Null) {
            match Manifest::for_proxies(&document.to_json()) {
                Ok(manifests) => {
                    for manifest in manifests {
                        self.add_object(document, manifest, objects);
                    }
                }
                Err(problems) => {
                    for problem in problems {
                        self.diagnostics.push(place(document, problem, Severity::Error));
                    }
                }
            }
        }
    }

    fn add_object(&mut self, document: &Node, manifest: Manifest<Object>, objects: &mut Objects) {
        for warning in manifest.warnings {
            self.diagnostics.push(place(document, warning, Severity::Warning));
        }
        if let Object::Service(service) = &manifest.object {
            let node = find(document, &manifest.path).0;
            for (message, help) in not_as_meant(service) {
                let warning = Diagnostic::warning("not-allocated", name_span(node), message);
                self.diagnostics.push(warning.help(help));
            }
        }
        objects.add(manifest.object);
    }
}

/// Returns what a Service lacks that the API server would have given it.
fn not_as_meant(service: &Service) -> Vec<(String, &'static str)> {
    const ALLOCATED: &str = "objects as `kubectl get -o yaml` prints them have it";
    let name = &service.name;
    let mut found = Vec::new();
    if service.kind == ServiceType::ExternalName || service.headless {
        return found;
    }
    if service.cluster_ips.is_empty() {
        found
            .push((format!("Service {name} has no clusterIP, so that it has no rules"), ALLOCATED));
    }
    let wants_node_ports = match service.kind {
        ServiceType::NodePort => true,
        ServiceType::LoadBalancer => service.allocate_load_balancer_node_ports,
        _ => false,
    };
    if wants_node_ports && service.ports.iter().any(|port| port.node_port.is_none()) {
        found.push((format!("Service {name} has a port without nodePort"), ALLOCATED));
    }
    if service.labels.contains_key("service.kubernetes.io/service-proxy-name") {
        found.push((
            format!("Service {name} is another proxy's, by its label service-proxy-name"),
            "kube-proxy does not even watch it; leave it out to see a node of the cluster",
        ));
    }
    found
}

fn read_stdin() -> Result<String, String> {
    let mut text = String::new();
    match std::io::stdin().lock().read_to_string(&mut text) {
        Ok(_) => Ok(text),
        Err(error) => Err(error.to_string()),
    }
}
