//! Scenario files.
//!
//! ```text
//! text ─tree─▶ tree ─objects' files, path: assignments─▶ tree ─raw─▶ checked, filled ─resolve─▶ Config
//! ```
//!
//! Reading depends on nothing but the files. Every problem is reported at once, with its place.

mod cluster;
pub(crate) mod diagnostic;
mod fields;
mod law;
mod objects;
mod path;
mod propagation;
pub(crate) mod raw;
mod resolve;
pub(crate) mod schema;
pub(crate) mod tree;

use std::path::{Path, PathBuf};

use reports::stats::Parameter;
use sim_core::config::Config;

use crate::expect::Expectation;
use crate::library;
use crate::units::{parse_duration, parse_rate};
use diagnostic::{Diagnostic, Diagnostics, FileId, Sources, Span};
use fields::SCENARIO;
use raw::Kind;
use tree::{Node, Value};

/// Most points of a grid.
const MAX_POINTS: usize = 1_000_000;

/// A scenario that can be run.
#[derive(Debug)]
pub(crate) struct Scenario {
    /// Its name.
    pub(crate) name: String,
    /// What it is to answer.
    pub(crate) question: Option<String>,
    /// What must hold.
    pub(crate) expectations: Vec<Expectation>,
    /// What `run` runs.
    pub(crate) config: Config,
    /// The scenario with every default filled in and every object in its place.
    pub(crate) resolved: serde_json::Value,
    sweep: Option<Sweep>,
    root: Node,
}

/// A grid of points.
#[derive(Debug)]
struct Sweep {
    parameters: Vec<GridParameter>,
    replications: u32,
    span: Span,
}

#[derive(Debug)]
struct GridParameter {
    path: String,
    span: Span,
    values: Vec<Node>,
}

/// A cell of a sweep's grid.
#[derive(Clone, Debug)]
pub(crate) struct Point {
    /// The value of each swept parameter.
    pub(crate) parameters: Vec<Parameter>,
    /// What its runs depend on.
    pub(crate) config: Config,
}

/// Reads scenarios and keeps what was found wrong with them.
#[derive(Debug, Default)]
pub(crate) struct Reader {
    sources: Sources,
    diagnostics: Diagnostics,
    built_in: Option<FileId>,
}

impl Reader {
    /// Prints what was found, and returns whether one of it was an error.
    pub(crate) fn finish(&mut self) -> bool {
        // Nobody can mend a built-in scenario, and its comments say what its warnings would.
        if let Some(file) = self.built_in {
            self.diagnostics.forget_warnings_of(file);
        }
        self.diagnostics.print(&self.sources);
        self.diagnostics.has_errors()
    }

    /// Reads a scenario: a file, or a built-in one by its name. `settings` are `path=value`.
    pub(crate) fn scenario(&mut self, name: &str, settings: &[String]) -> Option<Scenario> {
        let (file, stem, folder) = self.source(name)?;
        let documents = tree::parse(self.sources.text(file), file, &mut self.diagnostics);
        let mut root = match &documents[..] {
            [document] => document.clone(),
            [] if self.diagnostics.has_errors() => return None,
            [] => {
                let span = Span::new(file, 0, 0);
                self.diagnostics.push(
                    Diagnostic::error("missing-field", span, "this file holds no scenario")
                        .help("`rulelag scenarios show rolling-update` prints one to start from"),
                );
                return None;
            }
            [_, second, ..] => {
                self.diagnostics.push(
                    Diagnostic::error("many-documents", second.span, "a second document").help(
                        "a file holds one scenario; objects of other documents go under `objects:`",
                    ),
                );
                return None;
            }
        };
        if let Some(diagnostic) = not_a_scenario(&root) {
            self.diagnostics.push(diagnostic);
            return None;
        }
        self.load_objects(&mut root, folder.as_deref());
        for setting in settings {
            self.set(&mut root, setting);
        }
        self.resolve(root, &stem)
    }

    /// Returns the text of a file or a built-in scenario, its stem, and its folder.
    fn source(&mut self, name: &str) -> Option<(FileId, String, Option<PathBuf>)> {
        if let Some(text) = library::get(name)
            && !Path::new(name).exists()
        {
            let file = self.sources.add(&format!("{name}.yaml (built in)"), text.to_owned());
            self.built_in = Some(file);
            return Some((file, name.to_owned(), None));
        }
        let path = Path::new(name);
        match read_text(path) {
            Ok(text) => {
                let file = self.sources.add(name, text);
                let stem = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
                let folder = path.parent().unwrap_or(Path::new("")).to_owned();
                Some((file, stem, Some(folder)))
            }
            Err(problem) => {
                let names = library::names().collect::<Vec<_>>();
                let help = match crate::units::closest(name, names.iter().copied()) {
                    Some(close) => format!("did you mean the built-in scenario `{close}`?"),
                    None => format!("give a file, or a built-in scenario: {}", names.join(", ")),
                };
                let message = format!("cannot read {name}: {problem}");
                self.diagnostics.push(Diagnostic::placeless("missing-file", message).help(help));
                None
            }
        }
    }

    /// Replaces each file name under `objects:` by the objects in that file, and each `List` by
    /// its items.
    fn load_objects(&mut self, root: &mut Node, folder: Option<&Path>) {
        let Value::Map(entries) = &mut root.value else {
            return;
        };
        let Some(entry) = entries.iter_mut().find(|entry| entry.key == "objects") else {
            return;
        };
        let Value::List(items) = &mut entry.value.value else {
            return;
        };
        let mut loaded = Vec::new();
        for item in std::mem::take(items) {
            let objects = match item.text().map(str::to_owned) {
                // What cannot be read leaves a hole, so that nobody looks for its names in vain.
                Some(name) => self
                    .object_file(&name, item.span, folder)
                    .unwrap_or_else(|| vec![Node { value: Value::Null, span: item.span }]),
                None if item.value == Value::Null => {
                    self.diagnostics.push(
                        Diagnostic::error("wrong-type", item.span, "an empty object")
                            .help("remove the `-`, or write an object or a file's name after it"),
                    );
                    vec![item]
                }
                None => vec![item],
            };
            for object in objects {
                let is = |key: &str, word: &str| object.get(key).and_then(Node::text) == Some(word);
                if is("kind", "List") && is("apiVersion", "v1") {
                    loaded.extend(object.get("items").map_or(&[][..], Node::items).iter().cloned());
                } else {
                    loaded.push(object);
                }
            }
        }
        *items = loaded;
    }

    fn object_file(&mut self, name: &str, span: Span, folder: Option<&Path>) -> Option<Vec<Node>> {
        let Some(folder) = folder else {
            self.diagnostics.push(
                Diagnostic::error("missing-file", span, "a built-in scenario has no files")
                    .help("write the objects inline"),
            );
            return None;
        };
        let path = folder.join(name);
        match read_text(&path) {
            Ok(text) => {
                let file = self.sources.add(&path.to_string_lossy(), text);
                let documents = tree::parse(self.sources.text(file), file, &mut self.diagnostics);
                if documents.is_empty() {
                    return None;
                }
                // Helm and kustomize leave empty documents between others.
                Some(documents.into_iter().filter(|node| node.value != Value::Null).collect())
            }
            Err(problem) => {
                let message = format!("cannot read {}: {problem}", path.display());
                self.diagnostics.push(
                    Diagnostic::error("missing-file", span, message)
                        .help("file names are relative to the scenario's folder"),
                );
                None
            }
        }
    }

    /// Sets what `path=value` on the command line says.
    fn set(&mut self, root: &mut Node, setting: &str) {
        let file = self.sources.add("--set", setting.to_owned());
        let Some((path, value)) = setting.split_once('=') else {
            self.diagnostics.push(
                Diagnostic::error(
                    "bad-path",
                    Span::new(file, 0, setting.len()),
                    "no `=` in this setting",
                )
                .help("write `--set cluster.nodes=100`"),
            );
            return;
        };
        let span = Span::new(file, 0, path.len());
        let place = Span::new(file, path.len() + 1, setting.len());
        let documents = tree::parse(value, file, &mut self.diagnostics);
        let null = Node { value: Value::Null, span: place };
        let value = documents.first().unwrap_or(&null).at(place);
        if let Err(diagnostic) = path::assign(root, path, span, value) {
            self.diagnostics.push(*diagnostic);
        }
    }

    fn resolve(&mut self, root: Node, stem: &str) -> Option<Scenario> {
        let filled = raw::check(&root, Kind::Table(&SCENARIO), &mut self.diagnostics)?;
        let name = filled.get("name").and_then(Node::text).unwrap_or(stem).to_owned();
        let expectations = resolve::expectations(&filled, &mut self.diagnostics);
        let sweep = self.sweep(&filled);
        let config = resolve::config(&filled, &name, &mut self.diagnostics);
        if self.diagnostics.has_errors() {
            return None;
        }
        let mut resolved = filled.to_json();
        resolved["name"] = name.clone().into();
        Some(Scenario {
            question: filled.get("question").and_then(Node::text).map(str::to_owned),
            name,
            expectations,
            config: config?,
            resolved,
            sweep,
            root,
        })
    }

    fn sweep(&mut self, filled: &Node) -> Option<Sweep> {
        let entry = filled.entry("sweep")?;
        let grid = entry.value.entry("grid")?;
        let mut points: usize = 1;
        let mut parameters = Vec::new();
        for parameter in grid.value.entries() {
            let values = parameter.value.items().to_vec();
            if values.is_empty() {
                let message = format!("`{}` has no values", parameter.key);
                self.diagnostics.push(
                    Diagnostic::error("empty-grid", parameter.value.span, message).help(
                        "list at least one value, as in `[100ms, 1s]`, or remove the parameter",
                    ),
                );
            }
            for (i, value) in values.iter().enumerate() {
                if values[..i].iter().any(|earlier| earlier.to_json() == value.to_json()) {
                    self.diagnostics.push(
                        Diagnostic::error(
                            "duplicate-value",
                            value.span,
                            "this value is listed twice",
                        )
                        .help("each value is a row of the grid: list it once"),
                    );
                }
            }
            points = points.saturating_mul(values.len());
            parameters.push(GridParameter {
                path: parameter.key.clone(),
                span: parameter.key_span,
                values,
            });
        }
        if parameters.is_empty() {
            self.diagnostics.push(
                Diagnostic::error("empty-grid", grid.key_span, "the grid has no parameters")
                    .help("add one, as in `cluster.nodes: [10, 100, 1000]`"),
            );
        }
        if points > MAX_POINTS {
            let message = format!("the grid has {points} points");
            let help = format!("at most {MAX_POINTS} are run");
            self.diagnostics
                .push(Diagnostic::error("too-many-points", grid.key_span, message).help(help));
            return None;
        }
        Some(Sweep {
            parameters,
            replications: entry.value.get("replications")?.int()?.try_into().ok()?,
            span: entry.key_span,
        })
    }

    /// Returns the points of a scenario's sweep, the last parameter moving fastest, and how often
    /// each is run. Nothing is returned if there is none or one of them is in error.
    pub(crate) fn points(&mut self, scenario: &Scenario) -> Option<(Vec<Point>, u32)> {
        let Some(sweep) = &scenario.sweep else {
            let span = Span::new(scenario.root.span.file, 0, 0);
            self.diagnostics.push(
                Diagnostic::error("missing-field", span, "this scenario has no `sweep:`").help(
                    "add `sweep: { grid: { cluster.nodes: [10, 100] } }`, or use `rulelag run`",
                ),
            );
            return None;
        };
        let total = sweep.parameters.iter().map(|parameter| parameter.values.len()).product();
        let mut points = Vec::with_capacity(total);
        for index in 0..total {
            let mut root = scenario.root.clone();
            let mut parameters = Vec::new();
            let mut rest = index;
            for parameter in sweep.parameters.iter().rev() {
                let value = &parameter.values[rest % parameter.values.len()];
                rest /= parameter.values.len();
                if let Err(diagnostic) =
                    path::assign(&mut root, &parameter.path, parameter.span, value.clone())
                {
                    self.diagnostics.push(*diagnostic);
                }
                parameters.push(as_parameter(&parameter.path, value));
            }
            parameters.reverse();
            let mut found = Diagnostics::default();
            let config = raw::check(&root, Kind::Table(&SCENARIO), &mut found)
                .and_then(|filled| resolve::config(&filled, &scenario.name, &mut found));
            if found.has_errors() {
                self.explain_point(found, &parameters, sweep.span);
            } else {
                self.diagnostics.extend(found);
                points.extend(config.map(|config| Point { parameters, config }));
            }
        }
        (!self.diagnostics.has_errors()).then_some((points, sweep.replications))
    }

    /// Adds the problems of a point, with the point's parameters.
    fn explain_point(&mut self, found: Diagnostics, parameters: &[Parameter], grid: Span) {
        let at: Vec<String> = parameters
            .iter()
            .map(|parameter| format!("{} = {}", parameter.path, parameter.display))
            .collect();
        let mut explained = Diagnostics::default();
        for diagnostic in found.sorted() {
            let mut diagnostic = diagnostic.clone();
            if diagnostic.span.is_some_and(|span| span < grid) {
                diagnostic = diagnostic.note(format!("at the point {}", at.join(", ")));
            }
            explained.push(diagnostic);
        }
        self.diagnostics.extend(explained);
    }
}

fn as_parameter(path: &str, node: &Node) -> Parameter {
    let display = match &node.value {
        Value::Text(text) => text.clone(),
        _ => node.to_json().to_string(),
    };
    let unit = || {
        let text = node.text()?;
        let duration = parse_duration(text).map(|duration| duration.as_secs_f64());
        duration.or_else(|_| parse_rate(text)).ok()
    };
    Parameter { path: path.to_owned(), value: node.number().or_else(unit), display }
}

/// Recognises a Kubernetes object, or something else that is no scenario at all.
fn not_a_scenario(root: &Node) -> Option<Diagnostic> {
    let version = root.entry("apiVersion")?;
    let kind = root.entry("kind")?;
    if version.value.text() == Some("rulelag/v1") {
        return None; // `kind` will be an unknown field
    }
    let what = kind.value.text().unwrap_or("something else");
    let message = format!("this is a Kubernetes object ({what}), not a scenario");
    Some(
        Diagnostic::error("not-a-scenario", kind.key_span, message).help(
            "a scenario starts with `apiVersion: rulelag/v1` and names files of Kubernetes objects under \
             `objects:`",
        ),
    )
}

fn read_text(path: &Path) -> Result<String, String> {
    let bytes = std::fs::read(path).map_err(|error| error.to_string())?;
    let text = String::from_utf8(bytes).map_err(|_| "it is not UTF-8 text".to_owned())?;
    Ok(text.strip_prefix('\u{feff}').map(str::to_owned).unwrap_or(text))
}
