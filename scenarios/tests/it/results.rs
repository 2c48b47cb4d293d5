//! What lies in the folder of results, and when it does not.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::Folder;

/// Returns the bytes of every file in a folder.
fn bytes(folder: &Folder, out: &str) -> Vec<(String, Vec<u8>)> {
    let names = folder.names(out).into_iter();
    names
        .map(|name| {
            let bytes = fs::read(folder.path(Path::new(out).join(&name))).expect("a file");
            (name, bytes)
        })
        .collect()
}

#[test]
fn a_run_leaves_its_files() {
    let folder = Folder::new();
    let done = folder.run(&["run", "s.yaml"]).ends_with(0);
    assert!(done.stdout.starts_with("What does this lose?"), "{}", done.stdout);
    assert_eq!(done.stderr, "");
    assert_eq!(
        folder.names("out"),
        [
            "losses.csv",
            "manifest.json",
            "propagation.csv",
            "runs.csv",
            "timeline.csv",
            "timeline.png",
            "timeline.svg",
            "windows.csv",
            "windows.png",
            "windows.svg",
        ]
    );
    assert!(folder.read("out/windows.csv").starts_with(
        "scenario,point,run,seed,window,opened_by,service,pod,node,opened_s,endpoints_changed_s,"
    ));
}

#[test]
fn a_pipeline_tells_of_its_syncs() {
    let folder = Folder::new();
    folder.run(&["run", "s.yaml", "--out", "drawn"]).ends_with(0);
    let delay = "{ delay: { exponential: { mean: 300ms } } }";
    let piped = "{ pipeline: { watch: { constant: 20ms }, syncCost: { base: 100ms } } }";
    let text = crate::GOOD.split("sweep:").next().unwrap().replace(delay, piped);
    folder.write("p.yaml", &format!("{text}  - {{ at: 30s, restartProxy: node-1, takes: 5s }}\n"));
    folder.run(&["run", "p.yaml", "--out", "piped"]).ends_with(0);
    let column = |file: &str, name: &str| {
        let text = folder.read(file);
        let at = text.lines().next().unwrap().split(',').position(|column| column == name);
        let row = text.lines().nth(1).unwrap().split(',').nth(at.expect(name));
        row.unwrap().to_owned()
    };
    for name in ["syncs", "full_syncs", "failed_syncs", "sync_s", "lock_wait_s"] {
        assert_eq!(column("drawn/runs.csv", name), "", "{name}");
    }
    // Three nodes sync when the Pod goes and when its replacement comes; one restarts.
    assert_eq!(column("piped/runs.csv", "syncs"), "7");
    assert_eq!(column("piped/runs.csv", "full_syncs"), "1");
    assert!(column("piped/runs.csv", "sync_s").starts_with("0.7"));
    assert_eq!(column("drawn/propagation.csv", "informed_s"), "");
    assert_eq!(column("piped/propagation.csv", "informed_s"), "2.02");
    assert_eq!(column("piped/propagation.csv", "sync_start_s"), "2.02");
}

#[test]
fn a_sweep_leaves_its_files_whatever_the_number_of_jobs() {
    let folder = Folder::new();
    folder.run(&["sweep", "s.yaml", "--jobs", "1", "--out", "a"]).ends_with(0);
    folder.run(&["sweep", "s.yaml", "--jobs", "3", "--out", "b"]).ends_with(0);
    assert_eq!(bytes(&folder, "a"), bytes(&folder, "b"));
    let names = folder.names("a");
    for name in ["manifest.json", "runs.csv", "sweep.csv", "windows.csv"] {
        assert!(names.iter().any(|known| known == name), "{name}: {names:?}");
    }
    assert!(!names.iter().any(|name| name == "losses.csv"));
    // Four points, two replications, and the header.
    assert_eq!(folder.read("a/runs.csv").lines().count(), 9);

    let detail = |jobs, out| {
        folder.run(&["sweep", "s.yaml", "--detail", "--jobs", jobs, "--out", out]).ends_with(0);
        bytes(&folder, out)
    };
    assert_eq!(detail("1", "c"), detail("2", "d"));
    let same = |name: &str| folder.read(&format!("a/{name}")) == folder.read(&format!("c/{name}"));
    assert!(same("windows.csv") && same("runs.csv") && same("sweep.csv"));
    assert!(folder.read("c/timeline.csv").lines().count() > 9);
}

#[test]
fn a_run_of_a_sweep_can_be_repeated_alone() {
    let folder = Folder::new();
    folder.run(&["sweep", "s.yaml", "--out", "sweep"]).ends_with(0);
    let args = [
        "run",
        "s.yaml",
        "--out",
        "run",
        "--replication",
        "1",
        "--set",
        "cluster.nodes=3",
        "--set",
        "propagation.delay.exponential.mean=1s",
    ];
    folder.run(&args).ends_with(0);
    let rows = |file: &str, start: &str| -> Vec<String> {
        let text = folder.read(file);
        // Without scenario, point, run and seed.
        let rows = text.lines().filter(|row| row.starts_with(start));
        rows.map(|row| row.splitn(5, ',').last().unwrap_or_default().to_owned()).collect()
    };
    let swept = rows("sweep/windows.csv", "s,3,1,");
    assert!(!swept.is_empty());
    assert_eq!(swept, rows("run/windows.csv", "s,0,1,"));
}

#[test]
fn the_manifest_says_what_was_run_and_nothing_of_the_machine() {
    let folder = Folder::new();
    folder.run(&["sweep", "s.yaml", "--seed", "7", "--jobs", "2"]).ends_with(0);
    let text = folder.read("out/manifest.json");
    let manifest: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!(manifest["seed"], 7);
    assert_eq!(manifest["replications"], 2);
    let scenario = &manifest["scenario"];
    assert_eq!(scenario["name"], "s");
    assert_eq!(scenario["cluster"]["maxPods"], 110, "defaults are filled in");
    assert_eq!(scenario["objects"][1]["kind"], "Deployment", "files are, too");
    assert!(!text.contains(folder.path("").to_str().expect("a plain path")));
    let other = Folder::new();
    other.run(&["sweep", "s.yaml", "--seed", "7", "--jobs", "1"]).ends_with(0);
    assert_eq!(text, other.read("out/manifest.json"));
}

#[test]
fn what_is_not_a_result_is_refused() {
    let folder = Folder::new();
    fs::create_dir(folder.path("out")).expect("a folder");
    folder.write("out/notes.txt", "mine");
    let done = folder.run(&["run", "s.yaml"]).ends_with(4);
    assert!(done.stderr.contains("out holds `notes.txt`"), "{}", done.stderr);
    assert_eq!(folder.names("out"), ["notes.txt"]);
}

#[test]
fn an_out_that_cannot_be_written_is_status_4() {
    let folder = Folder::new();
    folder.write("file", "mine");
    for out in ["file", "file/out", "/proc/rulelag-out"] {
        let done = folder.run(&["run", "s.yaml", "--out", out]).ends_with(4);
        assert!(done.stderr.contains(&format!("cannot write {out}")), "{}", done.stderr);
        assert_eq!(done.stdout, "");
    }
    assert_eq!(folder.read("file"), "mine");
}

#[test]
fn a_failed_run_leaves_the_result_before_it() {
    let folder = Folder::new();
    folder.run(&["run", "s.yaml"]).ends_with(0);
    let before = bytes(&folder, "out");
    folder.run(&["run", "s.yaml", "--set", "limits.events=1"]).ends_with(3);
    folder.run(&["sweep", "s.yaml", "--set", "limits.events=1"]).ends_with(3);
    folder.run(&["run", "s.yaml", "--set", "cluster.nodes=0"]).ends_with(2);
    assert_eq!(bytes(&folder, "out"), before);
    folder.run(&["sweep", "s.yaml"]).ends_with(0);
    assert!(folder.names("out").contains(&"sweep.csv".to_owned()));
    assert!(!folder.names("out").contains(&"losses.csv".to_owned()), "the run's files are gone");
}

#[test]
fn a_full_disk_loses_nothing() {
    let folder = Folder::new();
    let out = folder.path("disk");
    fs::create_dir(&out).expect("a folder");
    let mount = Command::new("mount")
        .args(["-t", "tmpfs", "-o", "size=32k", "tmpfs"])
        .arg(&out)
        .stderr(Stdio::null())
        .status();
    if !mount.is_ok_and(|status| status.success()) {
        println!("skipped: a small tmpfs could not be mounted (it needs root)");
        return;
    }
    folder.write("disk/windows.csv", "the result before\n");
    folder.write("disk/manifest.json", "{\"rulelag\": \"0.0.0\", \"files\": [\"windows.csv\"]}");
    let done = folder.run(&["run", "s.yaml", "--out", "disk"]);
    let names = folder.names("disk");
    let before = folder.read("disk/windows.csv");
    let unmounted = Command::new("umount").arg(&out).status();
    assert!(unmounted.is_ok_and(|status| status.success()));
    let done = done.ends_with(4);
    assert!(done.stderr.contains("No space left on device"), "{}", done.stderr);
    assert_eq!(names, ["manifest.json", "windows.csv"]);
    assert_eq!(before, "the result before\n");
}

#[test]
#[cfg(unix)]
fn an_interruption_leaves_nothing_behind() {
    interrupted(Stdio::null());
}

/// As when the program that read standard error has gone.
#[test]
#[cfg(unix)]
fn an_interruption_that_nobody_hears_of_ends_the_program() {
    let (reader, writer) = std::io::pipe().expect("a pipe");
    drop(reader);
    interrupted(writer.into());
}

#[cfg(unix)]
fn interrupted(stderr: Stdio) {
    let folder = Folder::new();
    let args = ["sweep", "rolling-update", "--replications", "1000", "--jobs", "2"];
    let mut child =
        folder.command(&args).stdout(Stdio::null()).stderr(stderr).spawn().expect("the binary");
    while !folder.path("out/.rulelag-partial").exists() {
        assert!(child.try_wait().expect("a child").is_none(), "it ended by itself");
        std::thread::yield_now();
    }
    let kill = Command::new("kill").args(["-INT", &child.id().to_string()]).status();
    assert!(kill.is_ok_and(|status| status.success()));
    assert_eq!(child.wait().expect("a child").code(), Some(3));
    assert!(!folder.path("out").exists());
}
