//! Tests of the `rulelag` binary, as a user runs it: in a folder of its own, judged by its exit
//! status, its output and the files that it leaves.

mod bad_input;
mod commands;
mod ebpf;
mod explain;
mod explain_kernel;
mod matrix;
mod matrix_kernel;
mod results;
mod rules;
mod sweeps;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use tempfile::TempDir;

/// A small scenario that can be run; tests change it.
const GOOD: &str = "\
apiVersion: rulelag/v1
question: What does this lose?
cluster: { nodes: 3 }
propagation: { delay: { exponential: { mean: 300ms } } }
objects: [shop.yaml]
clients:
  - { name: front, service: default/shop, rate: 50/s }
events:
  - { at: 2s, deletePod: default/shop }
sweep:
  grid:
    cluster.nodes: [2, 3]
    propagation.delay.exponential.mean: [100ms, 1s]
  replications: 2
";

/// Its objects.
const SHOP: &str = "\
apiVersion: v1
kind: Service
metadata: { name: shop }
spec:
  selector: { app: shop }
  ports: [{ port: 80, targetPort: http }]
---
apiVersion: apps/v1
kind: Deployment
metadata: { name: shop }
spec:
  replicas: 3
  selector: { matchLabels: { app: shop } }
  template:
    metadata: { labels: { app: shop } }
    spec:
      containers:
        - name: shop
          image: registry.example/shop:1
          ports: [{ name: http, containerPort: 8080 }]
";

/// A folder to run in, with a scenario and its objects.
struct Folder(TempDir);

impl Folder {
    /// Makes a folder with [`GOOD`] as `s.yaml` and [`SHOP`] as `shop.yaml`.
    fn new() -> Folder {
        let folder = Folder(TempDir::new().expect("a temporary folder"));
        folder.write("s.yaml", GOOD);
        folder.write("shop.yaml", SHOP);
        folder
    }

    fn path(&self, name: impl AsRef<Path>) -> PathBuf {
        self.0.path().join(name)
    }

    fn write(&self, name: &str, text: &str) {
        fs::write(self.path(name), text).expect("a writable folder");
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_rulelag"));
        command.args(args).current_dir(&self.0);
        command
    }

    fn run(&self, args: &[&str]) -> Done {
        Done::from(self.command(args).output().expect("the binary"))
    }

    /// Returns the names in a folder, sorted.
    fn names(&self, folder: &str) -> Vec<String> {
        let mut names: Vec<String> = fs::read_dir(self.path(folder))
            .unwrap_or_else(|error| panic!("{folder}: {error}"))
            .map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned())
            .collect();
        names.sort();
        names
    }
}

/// What came of running the binary.
#[derive(Debug)]
struct Done {
    status: Option<i32>,
    stdout: String,
    stderr: String,
}

impl From<Output> for Done {
    fn from(output: Output) -> Done {
        Done {
            status: output.status.code(),
            stdout: String::from_utf8(output.stdout).expect("text"),
            stderr: String::from_utf8(output.stderr).expect("text"),
        }
    }
}

impl Done {
    #[track_caller]
    fn ends_with(self, status: i32) -> Done {
        assert_eq!(self.status, Some(status), "{}\n{}", self.stdout, self.stderr);
        self
    }
}
