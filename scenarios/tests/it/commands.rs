//! The commands that print, and the command line itself.

use expect_test::expect;

use crate::{Folder, GOOD};

#[test]
fn scenarios_are_listed_and_shown() {
    let folder = Folder::new();
    let done = folder.run(&["scenarios"]).ends_with(0);
    assert!(done.stderr.contains("rulelag scenarios show NAME"), "{}", done.stderr);
    let list = done.stdout;
    expect![[r#"
        rolling-update  How many requests does a rolling update lose when nodes learn of it late?
        delete-pod      What does deleting a single Pod cost, and does anything outside its window get lost?
        prestop         How long must preStop sleep until a rolling update loses nothing?
        scale-to-zero   What do clients see when the last Pod of a Service goes away?
        proxy-modes     What does the same Pod deletion cost under each kind of proxy?
        sync-cost       How does the time a change takes grow with the Services that a cluster already has?
    "#]].assert_eq(&list);
    assert_eq!(list, folder.run(&["scenarios", "list"]).ends_with(0).stdout);
    for line in list.lines() {
        let name = line.split_whitespace().next().expect("a name");
        let text = folder.run(&["scenarios", "show", name]).ends_with(0).stdout;
        assert!(text.contains("apiVersion: rulelag/v1"), "{name}");
    }
    let unknown = folder.run(&["scenarios", "show", "rolling"]).ends_with(2).stderr;
    expect![[r#"
        error: there is no built-in scenario "rolling"
        help: there are rolling-update, delete-pod, prestop, scale-to-zero, proxy-modes, sync-cost
    "#]]
    .assert_eq(&unknown);
}

#[test]
fn a_shown_scenario_is_a_file_to_start_from() {
    let folder = Folder::new();
    let text = folder.run(&["scenarios", "show", "delete-pod"]).ends_with(0).stdout;
    folder.write("mine.yaml", &text);
    let args = ["run", "mine.yaml", "--set", "limits.events=1"];
    // One event is too few for anything: status 3 says that all of the file was accepted.
    folder.run(&args).ends_with(3);
}

#[test]
fn the_schema_is_json() {
    let text = Folder::new().run(&["schema"]).ends_with(0).stdout;
    let schema: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!(schema["properties"]["apiVersion"]["enum"][0], "rulelag/v1");
    assert_eq!(schema["additionalProperties"], false);
}

#[test]
fn completions_for_every_shell() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = Folder::new().run(&["completions", shell]).ends_with(0).stdout;
        assert!(script.contains("rulelag"), "{shell}");
    }
}

#[test]
fn a_wrong_command_line_is_bad_input() {
    let folder = Folder::new();
    for args in [
        &["frobnicate"][..],
        &["run"],
        &["run", "s.yaml", "--sed", "1"],
        &["run", "s.yaml", "--seed", "-1"],
        &["sweep", "--jobs", "0"],
        &["sweep", "--replications", "0"],
        &[],
    ] {
        let done = folder.run(args).ends_with(2);
        assert!(!done.stderr.is_empty(), "{args:?}");
    }
}

#[test]
fn help_leads_to_everything() {
    let help = Folder::new().run(&["--help"]).ends_with(0).stdout;
    expect![[r#"
        Simulates Kubernetes Services whose rules arrive late, packet by packet, and counts what is lost

        Usage: rulelag <COMMAND>

        Commands:
          run          Runs a scenario once: CSV, charts, summary; judges its expectations
          sweep        Runs the grid of a scenario's `sweep:`, many runs side by side
          explain      Traces one packet through a node's rules: every way, and the exact probability of each
          rules        Prints the rules that a node's proxy holds for Kubernetes objects
          matrix       Prints who reaches what: kinds of clients, a Service's addresses, modes of the proxy
          prove        Compares the packet model with the kernel of this machine on random cases (root, Linux)
          scenarios    Lists the built-in scenarios, or shows one
          schema       Prints the JSON Schema of scenario files
          completions  Prints a completion script for a shell

        Options:
          -h, --help     Print help
          -V, --version  Print version

        Exit status: 0 done, every judged expectation held; 1 some did not; 2 bad input;
        3 a limit was hit, or interrupted; 4 results could not be written.
    "#]].assert_eq(&help);
}

#[test]
fn status_follows_the_expectations() {
    let folder = Folder::new();
    for (expectation, run, sweep) in [
        ("attempts > 0", 0, 0),
        ("attempts == 0", 1, 0),
        ("{ expr: attempts > 0, over: sweep }", 0, 0),
        ("{ expr: attempts == 0, over: sweep }", 1, 1),
    ] {
        folder.write("s.yaml", &format!("{GOOD}expect:\n  - {expectation}\n"));
        folder.run(&["run", "s.yaml"]).ends_with(run);
        folder.run(&["sweep", "s.yaml"]).ends_with(sweep);
    }
}

#[test]
fn a_limit_is_status_3_and_no_result() {
    let folder = Folder::new();
    for command in ["run", "sweep"] {
        let done = folder.run(&[command, "s.yaml", "--set", "limits.events=1"]).ends_with(3);
        assert!(done.stderr.contains("limits"), "{}", done.stderr);
        assert!(!folder.path("out").exists());
    }
}

#[test]
fn the_version_is_that_of_rulelag() {
    let version = Folder::new().run(&["--version"]).ends_with(0).stdout;
    assert_eq!(version, format!("rulelag {}\n", env!("CARGO_PKG_VERSION")));
}

#[test]
fn a_short_o_leads_to_out() {
    let done = Folder::new().run(&["run", "s.yaml", "-o", "x"]).ends_with(2);
    expect![[r#"
        error: unexpected argument '-o' found

          tip: a similar argument exists: '--out <DIR>'

        Usage: rulelag run [OPTIONS] <SCENARIO>

        For more information, try '--help'.
    "#]]
    .assert_eq(&done.stderr);
}

#[test]
fn a_sweep_tells_each_expectation_once() {
    let folder = Folder::new();
    let expect =
        "expect:\n  - windows == 1\n  - attempts == 0\n  - { expr: attempts > 0, over: sweep }\n";
    folder.write("s.yaml", &format!("{GOOD}{expect}"));
    let text = folder.run(&["sweep", "s.yaml"]).ends_with(0).stdout;
    let block = text.split("\n\n").find(|block| block.contains("observed")).expect("a table");
    expect![[r#"
        1 of 1 expectation held, 2 not judged
         expected                             observed
        ──────────────────────────────────────────────────────────
         windows == 1          (not judged)   held in 8 of 8 runs
         attempts == 0         (not judged)   held in 0 of 8 runs
           at 2 nodes, 100ms                  0 of 2
           at 2 nodes, 1s                     0 of 2
           at 3 nodes, 100ms                  0 of 2
           at 3 nodes, 1s                     0 of 2
         attempts > 0          held           held in 8 of 8 runs"#]]
    .assert_eq(block);
    assert_eq!(text.matches("attempts == 0").count(), 1);
}
