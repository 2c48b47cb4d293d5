//! Cases of several hosts: the model against stored results, and against the running kernel.

use std::fmt::Write;
use std::path::{Path, PathBuf};

use expect_test::expect_file;
use serde_json::Value;

use crate::cluster::Cluster;
use crate::lab::{Tool, skip};

#[path = "../../examples/conformance/case/mod.rs"]
mod case;

fn data() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/cases")
}

/// Returns the cases by name.
fn cases() -> Vec<(String, Value)> {
    let mut cases = Vec::new();
    for entry in std::fs::read_dir(data()).expect("cases are there") {
        let path = entry.expect("a file").path();
        let file = path.file_name().and_then(|name| name.to_str()).expect("a name");
        let Some(name) = file.strip_suffix(".json").filter(|name| !name.ends_with(".expected"))
        else {
            continue;
        };
        let text = std::fs::read_to_string(&path).expect("a text");
        let case = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{name}: {error}"));
        cases.push((name.to_owned(), case));
    }
    cases.sort_by(|(a, _), (b, _)| a.cmp(b));
    assert!(cases.len() >= 6, "{} cases", cases.len());
    cases
}

fn run(name: &str, case: &Value) -> Value {
    let ran = case::run(case).unwrap_or_else(|problem| panic!("{name}: {problem}"));
    assert_eq!(ran.remarks, [""; 0], "{name}");
    ran.result
}

#[test]
fn the_model_gives_what_it_gave() {
    for (name, case) in cases() {
        let result = run(&name, &case);
        let mut text = format!("{{\"case\": \"{name}\", \"format\": 1, \"steps\": [\n");
        let steps = result["steps"].as_array().expect("steps");
        for (at, step) in steps.iter().enumerate() {
            let comma = if at + 1 < steps.len() { "," } else { "" };
            let _ = writeln!(text, "  {step}{comma}");
        }
        text.push_str("]}\n");
        expect_file![data().join(format!("{name}.expected.json"))].assert_eq(&text);
    }
}

#[test]
fn two_runs_are_one() {
    for (name, case) in cases() {
        assert_eq!(run(&name, &case), run(&name, &case), "{name}");
    }
}

/// What a program learns of a flow, of what the model says. Its sockets are connected: they hear
/// nobody else.
fn told(step: &Value, result: &Value) -> String {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    match result["outcome"].as_str() {
        Some("answered") if result["reply"]["src"] == step["dst"] => {
            let at = &result["at"][0];
            let port = if at["sport"] == "changed" { "changed" } else { "kept" };
            format!("{} sees {} {port}", text(&result["reply"]["by"]), text(&at["src"]))
        }
        _ => match result["error"]["kind"].as_str() {
            Some("rst") => "ConnectionRefused".to_owned(),
            Some("errno") => match result["error"]["name"].as_str() {
                Some("ENETUNREACH") => "NetworkUnreachable".to_owned(),
                Some("EHOSTUNREACH") => "HostUnreachable".to_owned(),
                Some("EPERM" | "EACCES") => "PermissionDenied".to_owned(),
                other => format!("{other:?}"),
            },
            Some("icmp") => {
                let error = (result["error"]["type"].as_u64(), result["error"]["code"].as_u64());
                // Kernel: icmp.c, icmp_err_convert; icmpv6.c, icmpv6_err_convert
                match error {
                    (Some(3), Some(0 | 6 | 9 | 11)) | (Some(1), Some(0)) => "NetworkUnreachable",
                    (Some(3), Some(1 | 10 | 12 | 13)) | (Some(1), Some(3)) => "HostUnreachable",
                    (Some(3), Some(3)) | (Some(1), Some(4)) => "ConnectionRefused",
                    _ => "another error",
                }
                .to_owned()
            }
            _ => "silence".to_owned(),
        },
    }
}

#[test]
fn programs_learn_from_the_kernel_what_the_model_says() {
    for tool in [Tool::Legacy, Tool::Nft] {
        for (name, case) in cases() {
            let steps = case["steps"].as_array().expect("steps");
            let of_programs = |step: &Value| {
                step["do"] == "flow" && (step["proto"] == "tcp" || step["proto"] == "udp")
            };
            if !steps.iter().any(of_programs) {
                continue;
            }
            let cluster = match Cluster::try_new(tool, &case) {
                Ok(cluster) => cluster,
                Err(reason) => {
                    return skip("programs_learn_from_the_kernel_what_the_model_says", &reason);
                }
            };
            let result = run(&name, &case);
            for (at, step) in steps.iter().enumerate() {
                if of_programs(step) {
                    let seen = cluster.flow(step).unwrap_or_else(|error| panic!("{error}"));
                    let of_model = &result["steps"][at]["results"][0];
                    let said = told(step, of_model);
                    // Kernel: tcp_ipv6.c, tcp_v6_err: an ICMP error that comes while `connect` still
                    // holds the socket is a soft one.
                    let ipv6 = step["dst"].as_str().is_some_and(|dst| dst.contains(':'));
                    let error = of_model["error"]["kind"] == "icmp" && step["proto"] == "tcp";
                    let soft = error && ipv6;
                    if soft && seen == "silence" {
                        continue;
                    }
                    assert_eq!(seen, said, "{name}, {tool:?}, step {}: {step}", at + 1);
                } else if let Err(problem) = cluster.change(step) {
                    panic!("{name}, step {}: {problem}", at + 1);
                }
            }
        }
    }
}
