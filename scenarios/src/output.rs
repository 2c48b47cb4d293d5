//! The folder where results go.
//!
//! Work in progress lies in `DIR/.rulelag-partial/`, under names that no reader of results looks
//! for. A complete result is moved in by renames, the manifest last; if one of them fails, those
//! before it are taken back. So a folder holds one whole result or the one before, and a full disk
//! or an interruption loses nothing. What other programs put there is never touched.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The folder of work in progress, in the folder of results.
const PARTIAL: &str = ".rulelag-partial";
/// What makes a folder a result.
const MANIFEST: &str = "manifest.json";

/// What to remove when the program is interrupted. Held while a result is moved in.
static IN_PROGRESS: Mutex<Option<InProgress>> = Mutex::new(None);

#[derive(Debug)]
struct InProgress {
    partial: PathBuf,
    /// The folder of results, if it was made for this result.
    created: Option<PathBuf>,
}

impl InProgress {
    fn remove(&self) {
        // A worker may be writing a file at this moment: try again.
        for _ in 0..10 {
            if fs::remove_dir_all(&self.partial).is_ok() || !self.partial.exists() {
                break;
            }
        }
        if let Some(created) = &self.created {
            let _ = fs::remove_dir(created);
        }
    }
}

fn in_progress() -> MutexGuard<'static, Option<InProgress>> {
    IN_PROGRESS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Removes work in progress and ends the program with `status`; waits for a result that is being
/// moved in.
pub(crate) fn abandon_and_exit(status: i32) -> ! {
    let guard = in_progress();
    if let Some(work) = guard.as_ref() {
        work.remove();
    }
    std::process::exit(status)
}

/// Results could not be written.
#[derive(Debug, thiserror::Error)]
pub(crate) enum OutputError {
    /// The operating system refused.
    #[error("cannot write {}: {error}", path.display())]
    Io {
        /// What was to be written.
        path: PathBuf,
        /// Why it was refused.
        error: io::Error,
    },
    /// There is something else in the folder.
    #[error(
        "{} holds `{entry}`, which is not part of a result of rulelag; choose another folder with \
         --out, or move it away",
        dir.display()
    )]
    Foreign {
        /// The folder.
        dir: PathBuf,
        /// The first thing that is not rulelag's.
        entry: String,
    },
    /// A chart could not be drawn, or a table not be formed.
    #[error("cannot make {name}: {error}")]
    Form {
        /// The file.
        name: String,
        /// Why not.
        error: String,
    },
}

fn io_at(path: &Path) -> impl FnOnce(io::Error) -> OutputError {
    move |error| OutputError::Io { path: path.to_owned(), error }
}

/// A result that is being made.
#[derive(Debug)]
pub(crate) struct Output {
    dir: PathBuf,
    new: PathBuf,
    files: BTreeSet<String>,
}

impl Output {
    /// Makes the folder ready, before anything is computed.
    pub(crate) fn open(dir: &Path) -> Result<Output, OutputError> {
        let created = !dir.exists();
        fs::create_dir_all(dir).map_err(io_at(dir))?;
        let partial = dir.join(PARTIAL);
        if let Err(error) = recover(dir, &partial).and_then(|()| check_foreign(dir)) {
            if created {
                let _ = fs::remove_dir(dir);
            }
            return Err(error);
        }
        *in_progress() =
            Some(InProgress { partial: partial.clone(), created: created.then(|| dir.to_owned()) });
        let output =
            Output { dir: dir.to_owned(), new: partial.join("new"), files: BTreeSet::new() };
        fs::create_dir_all(&output.new).map_err(io_at(dir))?;
        Ok(output)
    }

    /// Writes a file of the result.
    pub(crate) fn file(
        &mut self,
        name: &str,
        write: impl FnOnce(&mut BufWriter<File>) -> io::Result<()>,
    ) -> Result<(), OutputError> {
        let shown = self.dir.join(name);
        let part = self.part(name);
        let result = (|| {
            let mut out = BufWriter::new(File::create(&part)?);
            write(&mut out)?;
            // A full disk may show only when the data is written out.
            out.into_inner().map_err(io::IntoInnerError::into_error)?.sync_all()
        })();
        result.map_err(io_at(&shown))?;
        self.files.insert(name.to_owned());
        Ok(())
    }

    /// Returns a place for a file that is not part of the result.
    pub(crate) fn scratch(&self, name: &str) -> PathBuf {
        self.part(name)
    }

    /// Returns the error of writing to a place of [`Output::scratch`].
    pub(crate) fn scratch_error(&self, name: &str, error: io::Error) -> OutputError {
        io_at(&self.part(name))(error)
    }

    fn part(&self, name: &str) -> PathBuf {
        self.new.join(format!("{name}.part"))
    }

    /// Adds the manifest and moves the result in, replacing the one that was there.
    pub(crate) fn commit(mut self, mut manifest: serde_json::Value) -> Result<(), OutputError> {
        manifest["files"] = self.files.iter().cloned().collect();
        self.file(MANIFEST, |out| {
            serde_json::to_writer_pretty(&mut *out, &manifest)?;
            out.write_all(b"\n")
        })?;
        let mut guard = in_progress();
        let old = self.new.with_file_name("old");
        fs::create_dir_all(&old).map_err(io_at(&self.dir))?;
        let mut moves = Moves::default();
        let result = (|| {
            let mut before = result_files(&self.dir);
            // The manifest goes first and comes last: without it, a folder holds no result.
            before.sort_by_key(|name| name != MANIFEST);
            for name in before {
                moves.rename(&self.dir.join(&name), &old.join(&name))?;
            }
            let last = [MANIFEST.to_owned()];
            for name in self.files.iter().filter(|&name| name != MANIFEST).chain(&last) {
                moves.rename(&self.part(name), &self.dir.join(name))?;
            }
            Ok(())
        })();
        if result.is_err() {
            moves.take_back();
        } else if let Some(work) = guard.as_mut() {
            work.created = None;
        }
        result
    }
}

impl Drop for Output {
    fn drop(&mut self) {
        if let Some(work) = in_progress().take() {
            work.remove();
        }
    }
}

#[derive(Default)]
struct Moves(Vec<(PathBuf, PathBuf)>);

impl Moves {
    fn rename(&mut self, from: &Path, to: &Path) -> Result<(), OutputError> {
        fs::rename(from, to).map_err(io_at(to))?;
        self.0.push((from.to_owned(), to.to_owned()));
        Ok(())
    }

    fn take_back(self) {
        for (from, to) in self.0.into_iter().rev() {
            let _ = fs::rename(to, from);
        }
    }
}

/// Cleans up after a program that was killed: if it was moving a result in, the one before it
/// comes back, unless the new one was complete.
fn recover(dir: &Path, partial: &Path) -> Result<(), OutputError> {
    if !partial.exists() {
        return Ok(());
    }
    let old = partial.join("old");
    let unfinished = partial.join("new").join(format!("{MANIFEST}.part"));
    if old.exists() && unfinished.exists() && !dir.join(MANIFEST).exists() {
        for name in listed_files(&unfinished) {
            let _ = fs::remove_file(dir.join(name));
        }
        for entry in fs::read_dir(&old).map_err(io_at(&old))?.flatten() {
            let to = dir.join(entry.file_name());
            fs::rename(entry.path(), &to).map_err(io_at(&to))?;
        }
    }
    fs::remove_dir_all(partial).map_err(io_at(partial))
}

fn check_foreign(dir: &Path) -> Result<(), OutputError> {
    let ours: BTreeSet<String> = result_files(dir).into_iter().collect();
    let mut entries: Vec<String> = fs::read_dir(dir)
        .map_err(io_at(dir))?
        .flatten()
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .filter(|name| name != PARTIAL && !ours.contains(name))
        .collect();
    entries.sort();
    match entries.into_iter().next() {
        None => Ok(()),
        Some(entry) => Err(OutputError::Foreign { dir: dir.to_owned(), entry }),
    }
}

/// Returns the files of the result in a folder, its manifest included; nothing if it holds none.
fn result_files(dir: &Path) -> Vec<String> {
    let manifest = dir.join(MANIFEST);
    let mut files: Vec<String> =
        listed_files(&manifest).into_iter().filter(|name| dir.join(name).is_file()).collect();
    if is_manifest(&manifest) {
        files.push(MANIFEST.to_owned());
    }
    files
}

fn read_manifest(path: &Path) -> Option<serde_json::Value> {
    let manifest: serde_json::Value = serde_json::from_slice(&fs::read(path).ok()?).ok()?;
    manifest.get("rulelag").is_some().then_some(manifest)
}

fn is_manifest(path: &Path) -> bool {
    read_manifest(path).is_some()
}

/// Returns the files that a manifest lists: plain names only, whoever wrote it.
fn listed_files(manifest: &Path) -> Vec<String> {
    let manifest = read_manifest(manifest).unwrap_or_default();
    let names = manifest["files"].as_array().into_iter().flatten();
    names
        .filter_map(|name| name.as_str())
        .filter(|name| Path::new(name).file_name() == Some((*name).as_ref()) && *name != MANIFEST)
        .map(str::to_owned)
        .collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// The tests share [`IN_PROGRESS`]: one at a time.
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

    fn names(dir: &Path) -> Vec<String> {
        let entries = fs::read_dir(dir).unwrap().flatten();
        let mut names: Vec<String> =
            entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
        names.sort();
        names
    }

    fn result(dir: &Path, files: &[(&str, &str)]) -> Result<(), OutputError> {
        let mut output = Output::open(dir)?;
        for (name, text) in files {
            output.file(name, |out| out.write_all(text.as_bytes()))?;
        }
        output.commit(json!({ "rulelag": "0" }))
    }

    #[test]
    fn a_result_replaces_the_one_before() {
        let _guard = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
        let root = tempfile::tempdir().unwrap();
        let dir = root.path().join("a/out");
        result(&dir, &[("windows.csv", "1"), ("timeline.csv", "1")]).unwrap();
        result(&dir, &[("windows.csv", "2")]).unwrap();
        assert_eq!(names(&dir), ["manifest.json", "windows.csv"]);
        assert_eq!(fs::read_to_string(dir.join("windows.csv")).unwrap(), "2");
    }

    #[test]
    fn other_files_are_refused_and_kept() {
        let _guard = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
        let root = tempfile::tempdir().unwrap();
        let dir = root.path().join("out");
        result(&dir, &[("windows.csv", "1")]).unwrap();
        fs::write(dir.join("thesis.tex"), "x").unwrap();
        let error = result(&dir, &[("windows.csv", "2")]).unwrap_err();
        assert!(error.to_string().contains("thesis.tex"), "{error}");
        assert_eq!(names(&dir), ["manifest.json", "thesis.tex", "windows.csv"]);
        assert_eq!(fs::read_to_string(dir.join("windows.csv")).unwrap(), "1");
    }

    #[test]
    fn what_is_not_finished_leaves_no_trace() {
        let _guard = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
        let root = tempfile::tempdir().unwrap();
        let dir = root.path().join("out");
        let mut output = Output::open(&dir).unwrap();
        output.file("windows.csv", |out| out.write_all(b"1")).unwrap();
        let partial: Vec<String> = names(&dir.join(PARTIAL).join("new"));
        assert_eq!(partial, ["windows.csv.part"]);
        drop(output);
        assert!(!dir.exists());
    }

    #[test]
    fn a_kill_in_the_middle_of_the_move_is_undone() {
        let _guard = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
        let root = tempfile::tempdir().unwrap();
        let dir = root.path().join("out");
        result(&dir, &[("windows.csv", "1")]).unwrap();
        let (old, new) = (dir.join(PARTIAL).join("old"), dir.join(PARTIAL).join("new"));
        fs::create_dir_all(&old).unwrap();
        fs::create_dir_all(&new).unwrap();
        fs::rename(dir.join("manifest.json"), old.join("manifest.json")).unwrap();
        fs::rename(dir.join("windows.csv"), old.join("windows.csv")).unwrap();
        fs::write(dir.join("sweep.csv"), "2").unwrap();
        let manifest = json!({ "rulelag": "0", "files": ["sweep.csv", "windows.csv"] });
        fs::write(new.join("manifest.json.part"), manifest.to_string()).unwrap();
        drop(Output::open(&dir).unwrap());
        assert_eq!(names(&dir), ["manifest.json", "windows.csv"]);
        assert_eq!(fs::read_to_string(dir.join("windows.csv")).unwrap(), "1");
    }
}
