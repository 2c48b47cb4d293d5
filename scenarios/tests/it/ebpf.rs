//! Scenarios without kube-proxy.

use expect_test::expect;

use crate::Folder;

/// The manifests of [`crate::SHOP`], unchanged, under each data plane.
const QUIET: &str = "\
apiVersion: rulelag/v1
cluster: { nodes: 3 }
objects: [shop.yaml]
clients:
  - { name: front, service: default/shop, rate: 50/s }
duration: 3s
";

/// Returns a cell of the only row of `runs.csv`.
fn cell(folder: &Folder, out: &str, column: &str) -> u64 {
    let text = folder.read(&format!("{out}/runs.csv"));
    let mut lines = text.lines().map(|line| line.split(',').collect::<Vec<_>>());
    let (header, row) = (lines.next().unwrap(), lines.next().unwrap());
    let at = header.iter().position(|name| *name == column);
    row[at.unwrap_or_else(|| panic!("no {column} in {header:?}"))].parse().unwrap()
}

#[test]
fn s3_27_the_same_objects_are_answered_whatever_the_data_plane() {
    let folder = Folder::new();
    folder.write("quiet.yaml", QUIET);
    let modes = ["iptables", "nftables", "userspace", "ebpf", "central"];
    let mut requests = modes.map(|mode| {
        let set = format!("proxy.mode={mode}");
        folder.run(&["run", "quiet.yaml", "--set", &set, "--out", mode]).ends_with(0);
        assert_eq!(cell(&folder, mode, "requests_lost"), 0, "{mode}");
        cell(&folder, mode, "requests")
    });
    requests.sort_unstable();
    assert!(requests[0] > 100 && requests[0] == requests[4], "{requests:?}");
    let maglev = ["--set", "proxy={mode: ebpf, selection: maglev}", "--out", "maglev"];
    folder.run(&[&["run", "quiet.yaml"], &maglev[..]].concat()).ends_with(0);
    assert_eq!(cell(&folder, "maglev", "requests_lost"), 0);
    assert_eq!(cell(&folder, "maglev", "requests"), requests[0]);
}

#[test]
fn a_selection_without_mode_ebpf() {
    let folder = Folder::new();
    folder.write("s.yaml", &format!("{QUIET}proxy: {{ selection: maglev }}\n"));
    let done = folder.run(&["run", "s.yaml"]).ends_with(2);
    expect![[r#"
        error[conflicting-fields]: a selection belongs to mode ebpf, not to iptables
         --> s.yaml:7:10
          |
        7 | proxy: { selection: maglev }
          |          ^^^^^^^^^
          |
          = help: remove it, or use `mode: ebpf`

        1 error; nothing was run
    "#]]
    .assert_eq(&done.stderr);
}

#[test]
fn no_rule_of_a_node_explains_a_translated_socket() {
    let folder = Folder::new();
    folder.write("s.yaml", &format!("{QUIET}proxy: {{ mode: ebpf }}\n"));
    let packet = "tcp 10.244.0.5:40000 > 10.96.0.10:80";
    let arguments = ["explain", "s.yaml", "--node", "node-0", "--in", "cni0", "--packet", packet];
    let done = folder.run(&arguments).ends_with(2);
    expect![[r#"
        error[no-node]: in mode ebpf, connections are translated at their Pods: no rule of a node sees a Service's address
        help: `rulelag rules --mode ebpf` lists the maps that decide

        1 error; nothing was run
    "#]]
    .assert_eq(&done.stderr);
}
