//! What the compiler does not see: the order of modules, and claims that need a row in the docs.

use std::fs;
use std::path::{Path, PathBuf};

/// The order of modules: one may name those in earlier groups and its own, not its neighbours.
const LAYERS: [&[&str]; 8] = [
    &["ids", "record", "config"],
    &["engine"],
    &["kube", "net"],
    &["propagation"],
    &["proxy"],
    &["traffic"],
    &["event", "window"],
    &["world"],
];

fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace").to_owned()
}

fn sources(dir: &Path, found: &mut Vec<PathBuf>) {
    let mut entries: Vec<PathBuf> =
        fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).collect();
    entries.sort();
    for path in entries {
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

fn layer(module: &str) -> Option<usize> {
    LAYERS.iter().position(|group| group.contains(&module))
}

#[test]
fn no_module_names_one_above_it() {
    let src = workspace().join("sim-core/src");
    let mut files = Vec::new();
    sources(&src, &mut files);
    let mut wrong = Vec::new();
    for file in files {
        let relative = file.strip_prefix(&src).unwrap();
        let module = relative.components().next().unwrap().as_os_str().to_str().unwrap();
        let module = module.trim_end_matches(".rs");
        if module == "lib" {
            continue;
        }
        let own = layer(module).unwrap_or_else(|| panic!("{module} has no layer"));
        let text = fs::read_to_string(&file).unwrap();
        // Tests may build what they need from anywhere.
        let text = text.split("#[cfg(test)]").next().unwrap();
        for (at, _) in text.match_indices("crate::") {
            let rest = &text[at + "crate::".len()..];
            let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
            let named = &rest[..end];
            // A braced list names several; `time` is netfilter-model's.
            let allowed = match layer(named) {
                Some(other) => other < own || named == module,
                None => named == "time" || named.is_empty(),
            };
            if !allowed {
                wrong.push(format!("{} names crate::{named}", relative.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn every_simplification_has_its_row() {
    let root = workspace();
    let rows = fs::read_to_string(root.join("docs/fidelity.md")).unwrap();
    let rows: String = rows.split_whitespace().collect::<Vec<_>>().join(" ");
    let mut missing = Vec::new();
    for name in ["netfilter-model", "sim-core", "reports", "scenarios"] {
        let mut files = Vec::new();
        sources(&root.join(name).join("src"), &mut files);
        for file in files {
            let text = fs::read_to_string(&file).unwrap();
            for (at, tag) in text.match_indices("Simplified: ") {
                let comment = text[at + tag.len()..].replace("//!", " ").replace("//", " ");
                let words: Vec<&str> = comment.split_whitespace().take(5).collect();
                let words = words.join(" ").replace('/', "").trim().to_owned();
                if !rows.contains(&words) {
                    missing.push(format!("{}: {words}", file.display()));
                }
            }
        }
    }
    assert!(missing.is_empty(), "docs/fidelity.md has no row for {missing:#?}");
}
