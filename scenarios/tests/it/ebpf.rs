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

/// What a place where all packets pass costs, and what rules on every node cost, beside each other:
/// the share that one failure hits, and how late the last machine is.
#[test]
fn s0_50_one_report_has_both_costs() {
    let folder = Folder::new();
    let grid = "sweep={grid: {proxy.mode: [iptables, central]}, replications: 2}";
    let done = folder.run(&["sweep", "proxy-modes", "--set", grid]).ends_with(0);
    let mut table = done.stdout.lines().skip_while(|line| !line.contains("if one fails"));
    let header = table.next().expect("what proxies take").to_owned();
    assert!(header.contains("last node"), "{header}");
    let rows: Vec<&str> = table.skip(1).take(2).collect();
    let of = |mode: &str| rows.iter().find(|row| row.contains(mode)).expect("a row");
    assert!(of("iptables").contains(" 10 %") && of("central").contains(" 100 %"), "{rows:?}");
    let sweep = folder.read("out/sweep.csv");
    let mut lines = sweep.lines();
    let names: Vec<&str> = lines.next().expect("a header").split(',').collect();
    let at = |name: &str| names.iter().position(|known| *known == name).expect(name);
    let cells = |name: &str| -> Vec<f64> {
        let at = at(name);
        sweep
            .lines()
            .skip(1)
            .map(|line| line.split(',').nth(at).unwrap().parse().unwrap())
            .collect()
    };
    assert_eq!(cells("rule_holders_mean"), [10.0, 1.0]);
    let late = cells("last_node_lag_s_mean");
    assert!(late[0] > late[1], "the last of ten is later than one: {late:?}");
}

/// The article's simplifications are settings: endpoints by name and in turns (`mode: article`), its
/// clock (`clock: logical`). Each alone gives its numbers back, and without them nodes do as
/// kube-proxy's do.
#[test]
fn s0_51_the_articles_simplifications_are_settings() {
    let folder = Folder::new();
    let lag = "propagation={delay: {constant: 1500ms}}";
    let last = |out: &str, sets: &[&str]| -> f64 {
        let mut args = vec!["run", "delete-pod", "--out", out, "--set", lag];
        sets.iter().for_each(|set| args.extend(["--set", set]));
        folder.run(&args).ends_with(0);
        let windows = folder.read(&format!("{out}/windows.csv"));
        let mut lines = windows.lines();
        let header = lines.next().expect("a header");
        let at = header.split(',').position(|name| name == "last_node_s").expect("a column");
        lines.next().expect("a window").split(',').nth(at).unwrap().parse().unwrap()
    };
    let logical = last("a", &["proxy={mode: article, clock: logical}"]);
    let article = last("b", &["proxy={mode: article}"]);
    let rules = last("c", &[]);
    assert_eq!(article, rules, "the same lag without the clock");
    assert_eq!(logical, article.ceil(), "the next tick with it");
    assert_ne!(logical, article);
    let p = |out: &str| {
        let runs = folder.read(&format!("{out}/runs.csv"));
        let mut lines = runs.lines();
        let at = lines.next().unwrap().split(',').position(|name| name == "balance_p").unwrap();
        lines.next().unwrap().split(',').nth(at).unwrap().parse::<f64>().unwrap()
    };
    assert!(p("b") > 0.999, "in turn, endpoints are chosen alike often");
    assert!(p("c") < 0.999, "at random, about so");
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
