//! What `matrix` prints, for Services of every kind of address and policy on two nodes.

use std::collections::BTreeSet;

use expect_test::{Expect, expect, expect_file};

use super::Folder;

const OBJECTS: &str = include_str!("../data/matrix.yaml");
const BARE: &str = include_str!("../data/matrix.bare.yaml");

fn printed(arguments: &str, status: i32) -> String {
    let folder = Folder::new();
    folder.write("matrix.yaml", OBJECTS);
    let arguments: Vec<&str> = arguments.split(' ').collect();
    let done = folder.run(&arguments).ends_with(status);
    [done.stdout, done.stderr].concat()
}

#[track_caller]
fn check(arguments: &str, status: i32, expected: &Expect) {
    expected.assert_eq(&printed(arguments, status));
}

#[test]
fn every_kind_of_address_for_people() {
    let text = printed("matrix -f matrix.yaml --service tea", 0);
    expect_file!["../data/matrix.tea.txt"].assert_eq(&text);
    assert!(text.lines().all(|line| line.chars().count() <= 100), "{text}");
}

#[test]
fn both_policies_local_without_an_endpoint_there() {
    let text = printed("matrix -f matrix.yaml --service far", 0);
    expect_file!["../data/matrix.far.txt"].assert_eq(&text);
}

#[test]
fn all_cells_of_both_families_as_csv() {
    for family in ["4", "6"] {
        let text = printed(&format!("matrix -f matrix.yaml -o csv --family {family}"), 0);
        let file = format!("../data/matrix.{family}.csv");
        expect_file![file].assert_eq(&text);
    }
}

/// A cell's rows are all that can happen, and the fraction is what the number is near to.
#[test]
fn probabilities_of_a_cell_sum_to_one() {
    let text = printed("matrix -f matrix.yaml -o csv", 0);
    let mut sums: std::collections::BTreeMap<String, f64> = Default::default();
    for row in csv::Reader::from_reader(text.as_bytes()).records() {
        let row = row.expect("a row");
        let key: Vec<&str> = [0, 1, 4, 6, 7, 9].iter().map(|at| &row[*at]).collect();
        let exact: Vec<f64> = row[15].split('/').map(|part| part.parse().unwrap()).collect();
        let near: f64 = row[14].parse().unwrap();
        assert!((exact[0] / exact[1] - near).abs() < 1e-15, "{row:?}");
        *sums.entry(key.join(" ")).or_default() += near;
    }
    assert!(sums.len() > 190, "{}", sums.len());
    assert!(sums.values().all(|sum| (sum - 1.0).abs() < 1e-15), "{sums:?}");
}

#[test]
fn the_node_that_is_asked_about_decides() {
    let of = |node: &str| {
        let arguments = format!("matrix -f matrix.yaml -o csv --service far --node {node}");
        let text = printed(&arguments, 0);
        let rows = text.lines().filter(|line| line.contains(",external,"));
        let rows = rows.filter(|line| line.contains("node-port") && line.contains("iptables"));
        rows.map(str::to_owned).collect::<Vec<_>>().join("\n")
    };
    expect!["default/far,http,tcp,alpha,external,198.18.0.10,node-port,192.0.2.1,30081,iptables,timeout,,,,1,1/1,,,dropped by a rule in INPUT on alpha"].assert_eq(&of("alpha"));
    expect!["default/far,http,tcp,beta,external,198.18.0.10,node-port,192.0.2.2,30081,iptables,ok,10.32.2.9,8081,beta,1,1/1,198.18.0.10,own,"].assert_eq(&of("beta"));
}

#[test]
fn a_client_out_of_range_is_not_let_in() {
    let of = |external: &str| {
        let arguments = format!("matrix -f matrix.yaml -o csv --service tea --external {external}");
        let text = printed(&arguments, 0);
        let rows = text.lines().filter(|line| line.contains(",external,"));
        let rows = rows.filter(|line| line.contains("load-balancer"));
        rows.filter_map(|row| row.split(',').nth(10)).map(str::to_owned).collect::<BTreeSet<_>>()
    };
    assert_eq!(of("198.18.0.77"), BTreeSet::from(["ok".to_owned()]));
    assert_eq!(of("198.18.1.77"), BTreeSet::from(["timeout".to_owned()]));
}

#[test]
fn a_folder_holds_the_table_and_a_drawing_of_each_port() {
    let folder = Folder::new();
    folder.write("matrix.yaml", OBJECTS);
    folder.run(&["matrix", "-f", "matrix.yaml", "--out", "out"]).ends_with(0);
    expect![[r#"
        [
            "manifest.json",
            "matrix-default-empty-http-tcp.png",
            "matrix-default-empty-http-tcp.svg",
            "matrix-default-far-http-tcp.png",
            "matrix-default-far-http-tcp.svg",
            "matrix-default-near-dns-udp.png",
            "matrix-default-near-dns-udp.svg",
            "matrix-default-tea-http-tcp.png",
            "matrix-default-tea-http-tcp.svg",
            "matrix.csv",
        ]
    "#]]
    .assert_debug_eq(&folder.names("out"));
    let svg = folder.run(&["matrix", "-f", "matrix.yaml", "--service", "tea", "-o", "svg"]);
    let svg = svg.ends_with(0).stdout;
    assert_eq!(svg, folder.read("out/matrix-default-tea-http-tcp.svg"));
    expect_file!["../data/matrix.tea.svg"].assert_eq(&svg);
}

/// Objects as they are often at hand: no Nodes, one range for the Pods of all nodes, an endpoint
/// that is no Pod.
#[test]
fn objects_without_nodes() {
    let folder = Folder::new();
    folder.write("bare.yaml", BARE);
    let done = folder.run(&["matrix", "-f", "bare.yaml", "--mode", "iptables"]).ends_with(0);
    expect_file!["../data/matrix.bare.txt"].assert_eq(&done.stdout);
}

/// Virtual servers, maps and a process, for the same objects.
#[test]
fn modes_that_are_more_than_rules() {
    for service in ["tea", "far"] {
        let modes = "--mode ipvs ebpf userspace";
        let text = printed(&format!("matrix -f matrix.yaml --service {service} {modes}"), 0);
        expect_file![format!("../data/matrix.{service}.modes.txt")].assert_eq(&text);
        assert!(text.lines().all(|line| line.chars().count() <= 100), "{text}");
    }
}

#[test]
fn what_is_asked_for_wrongly() {
    check(
        "matrix -f matrix.yaml --node gamma",
        2,
        &expect![[r#"
        error: no object names a node gamma
        help: Nodes, or `nodeName` of endpoints, say which
    "#]],
    );
    check(
        "matrix -f matrix.yaml --service tae",
        2,
        &expect![[r#"
            error: no object is a Service tae
            help: did you mean default/tea?
        "#]],
    );
    check(
        "matrix -f matrix.yaml --external 10.33.0.9",
        2,
        &expect![[r#"
        error: 10.33.0.9 cannot be the address of a client outside
        help: give an address of the family that nobody has, as in `--external 203.0.113.7`
    "#]],
    );
    check(
        "matrix -f matrix.yaml -o svg",
        2,
        &expect![[r#"
        error: a drawing shows one service port, and here are 4
        help: choose one by `--service`, or draw all by `--out DIR`
    "#]],
    );
    check(
        "matrix -f shop.yaml",
        2,
        &expect![[r#"
        warning[not-allocated]: Service default/shop has no clusterIP, so that it has no rules
         --> shop.yaml:3:19
          |
        3 | metadata: { name: shop }
          |                   ^^^^
          |
          = help: objects as `kubectl get -o yaml` prints them have it

        error: no Service has a clusterIP
        help: give Services as `kubectl get -o yaml` prints them, with their EndpointSlices
    "#]],
    );
}
