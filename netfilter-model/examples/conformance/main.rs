//! Runs cases of one JSON form in the model, several hosts and all, and prints what came of them
//! in another: the forms of a tool that puts the same cases to a running kernel.
//!
//! ```text
//! cargo run -p netfilter-model --example conformance -- CASE.json
//! cargo run -p netfilter-model --example conformance -- --out DIR CASE.json …
//! ```
//!
//! One result goes to the standard output, or each to `DIR/<case>.json`. Files that end in
//! `.expected.json` are passed over, so that `cases/*.json` may be given as it is.

mod case;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use serde_json::Value;

fn main() -> ExitCode {
    let mut out: Option<PathBuf> = None;
    let mut files = Vec::new();
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--out" => out = args.next().map(PathBuf::from),
            "-h" | "--help" => {
                println!("usage: conformance [--out DIR] CASE.json …");
                return ExitCode::SUCCESS;
            }
            file if file.ends_with(".expected.json") => {}
            file => files.push(file.to_owned()),
        }
    }
    if files.is_empty() {
        eprintln!("usage: conformance [--out DIR] CASE.json …");
        return ExitCode::from(2);
    }
    let mut failed = false;
    for file in &files {
        if let Err(problem) = one(Path::new(file), out.as_deref()) {
            eprintln!("{file}: {problem}");
            failed = true;
        }
    }
    if failed { ExitCode::from(2) } else { ExitCode::SUCCESS }
}

fn one(file: &Path, out: Option<&Path>) -> Result<(), String> {
    let text = std::fs::read_to_string(file).map_err(|error| error.to_string())?;
    let case: Value = serde_json::from_str(&text).map_err(|error| error.to_string())?;
    let ran = case::run(&case)?;
    for remark in &ran.remarks {
        eprintln!("{}: {remark}", file.display());
    }
    let text = serde_json::to_string_pretty(&ran.result).map_err(|error| error.to_string())?;
    match out {
        None => println!("{text}"),
        Some(dir) => {
            std::fs::create_dir_all(dir).map_err(|error| error.to_string())?;
            let name = case.get("name").and_then(Value::as_str).unwrap_or("case");
            std::fs::write(dir.join(format!("{name}.json")), text + "\n")
                .map_err(|error| error.to_string())?;
        }
    }
    Ok(())
}
