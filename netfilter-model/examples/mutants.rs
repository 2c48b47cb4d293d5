//! Checks the checks: breaks single rules of the model, one at a time, and sees whether the tests
//! notice.
//!
//! ```text
//! cargo run -p netfilter-model --example mutants [-- NAME…]
//! ```
//!
//! Works on a copy of the crate in a temporary folder. A mutant that no test catches is printed,
//! and the exit status is 1. Takes a build and a test run for each mutant, about ten minutes for
//! all.

use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::{env, fs, io};

/// A single change to the model.
struct Mutant {
    name: &'static str,
    file: &'static str,
    /// A text that the file holds once.
    from: &'static str,
    to: &'static str,
}

#[path = "mutants/list.rs"]
mod list;

/// What became of a mutant.
#[derive(PartialEq)]
enum Fate {
    /// A test failed.
    Caught,
    /// It does not even compile: no check of the tests.
    DoesNotCompile,
    /// All tests pass.
    Survived,
}

fn main() -> ExitCode {
    match run() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::from(2)
        }
    }
}

fn run() -> Result<bool, Box<dyn Error>> {
    let wanted: Vec<String> = env::args().skip(1).collect();
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().ok_or("the crate has a workspace")?;
    let scratch = env::temp_dir().join(format!("rulelag-mutants-{}", std::process::id()));
    let copied = copy(root, &scratch).map_err(|error| format!("cannot copy the sources: {error}"));
    let result = copied.and_then(|()| check_all(&scratch, &wanted));
    fs::remove_dir_all(&scratch)?;
    Ok(result?)
}

fn check_all(scratch: &Path, wanted: &[String]) -> Result<bool, String> {
    if test(scratch)? != Fate::Survived {
        return Err("the tests fail without any mutant".to_owned());
    }
    let mut all_caught = true;
    for mutant in list::MUTANTS {
        if !wanted.is_empty() && !wanted.iter().any(|name| name == mutant.name) {
            continue;
        }
        let path = scratch.join("netfilter-model").join(mutant.file);
        let text = fs::read_to_string(&path).map_err(|e| format!("{}: {e}", path.display()))?;
        let found = text.matches(mutant.from).count();
        if found != 1 {
            let (name, file, from) = (mutant.name, mutant.file, mutant.from);
            return Err(format!("{name}: {file} holds {from:?} {found} times, not once"));
        }
        let write = |text: &str| fs::write(&path, text).map_err(|e| e.to_string());
        write(&text.replace(mutant.from, mutant.to))?;
        let fate = test(scratch)?;
        write(&text)?;
        let verdict = match fate {
            Fate::Caught => "caught",
            Fate::DoesNotCompile => "DOES NOT COMPILE",
            Fate::Survived => "SURVIVED",
        };
        println!("{verdict:<16}  {}", mutant.name);
        all_caught &= fate == Fate::Caught;
    }
    Ok(all_caught)
}

fn test(scratch: &Path) -> Result<Fate, String> {
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let run = |args: &[&str]| {
        let mut command = Command::new(&cargo);
        command.args(["test", "--quiet", "-p", "netfilter-model", "--lib", "--test", "it"]);
        command.args(args).current_dir(scratch).env("CARGO_TARGET_DIR", scratch.join("target"));
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command.status().map(|status| status.success()).map_err(|error| error.to_string())
    };
    if !run(&["--no-run"])? {
        return Ok(Fate::DoesNotCompile);
    }
    Ok(if run(&[])? { Fate::Survived } else { Fate::Caught })
}

/// Copies the workspace's sources, without what builds and version control leave there.
fn copy(from: &Path, to: &Path) -> io::Result<()> {
    fs::create_dir_all(to)?;
    let entries: Vec<PathBuf> =
        fs::read_dir(from)?.map(|entry| entry.map(|e| e.path())).collect::<io::Result<_>>()?;
    for path in entries {
        let name = path.file_name().expect("an entry has a name");
        if name == "target" || name == ".git" {
            continue;
        }
        let target = to.join(name);
        if path.is_dir() {
            copy(&path, &target)?;
        } else {
            fs::copy(&path, &target)?;
        }
    }
    Ok(())
}
