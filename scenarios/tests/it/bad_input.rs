//! Every wrong input ends with status 2 and says where, what and what to do.

use expect_test::{Expect, expect};

use crate::{Folder, GOOD, SHOP};

/// Runs [`GOOD`] and [`SHOP`] with a text replaced by another.
#[track_caller]
fn check(replace: &str, by: &str, expected: Expect) {
    let folder = Folder::new();
    assert!(GOOD.contains(replace) != SHOP.contains(replace), "{replace:?} is not in one of them");
    folder.write("s.yaml", &GOOD.replacen(replace, by, 1));
    folder.write("shop.yaml", &SHOP.replacen(replace, by, 1));
    let done = folder.run(&["sweep", "s.yaml"]).ends_with(2);
    assert_eq!(done.stdout, "");
    assert!(!folder.path("out").exists());
    expected.assert_eq(&done.stderr);
}

#[test]
fn unknown_field() {
    check(
        "nodes: 3",
        "nodes: 3, podCidr: 10.0.0.0/16",
        expect![[r#"
        error[unknown-field]: unknown field `podCidr` in this cluster
         --> s.yaml:3:22
          |
        3 | cluster: { nodes: 3, podCidr: 10.0.0.0/16 }
          |                      ^^^^^^^
          |
          = help: did you mean `podCIDR`?

        1 error; nothing was run
    "#]],
    );
}

#[test]
fn unknown_field_of_kubernetes() {
    check(
        "replicas: 3",
        "replica: 3",
        expect![[r#"
            error[unknown-field]: Kubernetes knows no field `replica` here
              --> shop.yaml:12:3
               |
            12 |   replica: 3
               |   ^^^^^^^
               |
               = note: at spec.replica
               = help: did you mean `replicas`?

            1 error; nothing was run
        "#]],
    );
}

#[test]
fn wrong_type() {
    check(
        "nodes: 3",
        "nodes: three",
        expect![[r#"
        error[wrong-type]: expected a whole number, found the text "three"
         --> s.yaml:3:19
          |
        3 | cluster: { nodes: three }
          |                   ^^^^^
          |
          = help: a whole number from 1 to 1000000

        1 error; nothing was run
    "#]],
    );
    check(
        "at: 2s",
        "at: 2",
        expect![[r#"
            error[wrong-type]: expected a duration, found the number `2`
             --> s.yaml:9:11
              |
            9 |   - { at: 2, deletePod: default/shop }
              |           ^
              |
              = help: add a unit: `2s` or `2ms`

            1 error; nothing was run
        "#]],
    );
}

#[test]
fn wrong_type_in_kubernetes() {
    check(
        "containerPort: 8080",
        "containerPort: \"8080\"",
        expect![[r#"
            error[wrong-type]: expected a whole number, found the text "8080"
              --> shop.yaml:20:48
               |
            20 |           ports: [{ name: http, containerPort: "8080" }]
               |                                                ^^^^^^
               |
               = note: at spec.template.spec.containers[0].ports[0].containerPort
               = help: Kubernetes refuses this type here

            1 error; nothing was run
        "#]],
    );
}

#[test]
fn empty_grid() {
    check(
        "cluster.nodes: [2, 3]",
        "cluster.nodes: []",
        expect![[r#"
        error[empty-grid]: `cluster.nodes` has no values
          --> s.yaml:12:20
           |
        12 |     cluster.nodes: []
           |                    ^^
           |
           = help: list at least one value, as in `[100ms, 1s]`, or remove the parameter

        1 error; nothing was run
    "#]],
    );
}

#[test]
fn zero_nodes() {
    check(
        "nodes: 3",
        "nodes: 0",
        expect![[r#"
        error[out-of-range]: 0 is out of range
         --> s.yaml:3:19
          |
        3 | cluster: { nodes: 0 }
          |                   ^
          |
          = help: a whole number from 1 to 1000000

        1 error; nothing was run
    "#]],
    );
}

#[test]
fn zero_nodes_in_the_grid() {
    check(
        "[2, 3]",
        "[2, 0]",
        expect![[r#"
        error[out-of-range]: 0 is out of range
          --> s.yaml:12:24
           |
        12 |     cluster.nodes: [2, 0]
           |                        ^
           |
           = help: a whole number from 1 to 1000000

        1 error; nothing was run
    "#]],
    );
}

#[test]
fn unknown_path_in_the_grid() {
    check(
        "cluster.nodes:",
        "cluster.node:",
        expect![[r#"
            error[unknown-field]: unknown field `node` in this cluster
              --> s.yaml:12:13
               |
            12 |     cluster.node: [2, 3]
               |             ^^^^
               |
               = help: did you mean `nodes`?

            1 error; nothing was run
        "#]],
    );
    check(
        "delay.exponential.mean:",
        "delay.exponential.mean.x:",
        expect![[r#"
            error[bad-path]: `propagation.delay.exponential.mean` is the text "300ms", which has no `x`
              --> s.yaml:13:5
               |
            13 |     propagation.delay.exponential.mean.x: [100ms, 1s]
               |     ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
               |
               = help: a path ends at a value; see `rulelag schema` for what there is

            1 error; nothing was run
        "#]],
    );
}

#[test]
fn replicas_without_capacity() {
    check(
        "replicas: 3",
        "replicas: 300",
        expect![[r#"
        error[no-capacity]: 3 nodes have room for 330 Pods, and 378 are needed
          --> shop.yaml:12:13
           |
        12 |   replicas: 300
           |             ^^^
           |
          ::: s.yaml:3:19
           |
         3 | cluster: { nodes: 3 }
           |                   - 110 Pods fit a node: maxPods
           |
           = note: 375 Pods of Deployments (maxSurge included), 3 of clients (one per node and group)
           = help: use more nodes, a larger `maxPods` or a smaller `nodeCIDRMaskSize`, or fewer replicas

        1 error; nothing was run
    "#]],
    );
}

#[test]
fn pre_stop_longer_than_the_grace_period() {
    check(
        "          ports: [{ name",
        "          lifecycle: { preStop: { sleep: { seconds: 45 } } }\n          ports: [{ name",
        expect![[r#"
            error[prestop-exceeds-grace]: a preStop sleep of 45 s does not fit the grace period of 30 s
              --> shop.yaml:20:53
               |
            20 |           lifecycle: { preStop: { sleep: { seconds: 45 } } }
               |                                                     ^^
               |
               = note: at spec.template.spec.containers[0].lifecycle.preStop.sleep.seconds
               = help: Kubernetes refuses a sleep longer than terminationGracePeriodSeconds (30 if left out): raise that, or sleep less

            1 error; nothing was run
        "#]],
    );
}

#[test]
fn missing_file() {
    check(
        "[shop.yaml]",
        "[shop.yaml, cart.yaml]",
        expect![[r#"
        error[missing-file]: cannot read cart.yaml: No such file or directory (os error 2)
         --> s.yaml:5:22
          |
        5 | objects: [shop.yaml, cart.yaml]
          |                      ^^^^^^^^^
          |
          = help: file names are relative to the scenario's folder

        1 error; nothing was run
    "#]],
    );
}

#[test]
fn missing_scenario() {
    let done = Folder::new().run(&["run", "roling-update"]).ends_with(2);
    expect![[r#"
        error[missing-file]: cannot read roling-update: No such file or directory (os error 2)
        help: did you mean the built-in scenario `rolling-update`?

        1 error; nothing was run
    "#]]
    .assert_eq(&done.stderr);
}

#[test]
fn client_to_unknown_service_or_port() {
    check(
        "service: default/shop",
        "service: default/shops",
        expect![[r#"
            error[unknown-service]: no Service default/shops
             --> s.yaml:7:29
              |
            7 |   - { name: front, service: default/shops, rate: 50/s }
              |                             ^^^^^^^^^^^^^
              |
              = help: did you mean default/shop?

            1 error; nothing was run
        "#]],
    );
    check(
        "rate: 50/s",
        "rate: 50/s, port: 8080",
        expect![[r#"
            error[unknown-port]: Service default/shop has no such port
             --> s.yaml:7:61
              |
            7 |   - { name: front, service: default/shop, rate: 50/s, port: 8080 }
              |                                                             ^^^^
              |
              = help: this is the Pods' port; the Service's is 80

            1 error; nothing was run
        "#]],
    );
}

#[test]
fn event_on_unknown_deployment() {
    check(
        "deletePod: default/shop",
        "deletePod: shop/shop",
        expect![[r#"
            error[unknown-deployment]: no Deployment shop/shop
             --> s.yaml:9:26
              |
            9 |   - { at: 2s, deletePod: shop/shop }
              |                          ^^^^^^^^^
              |
              = help: `objects:` holds default/shop

            1 error; nothing was run
        "#]],
    );
}

#[test]
fn what_needs_a_pipeline_beside_a_delay() {
    check(
        "cluster: { nodes: 3 }",
        "cluster: { nodes: 3 }\nproxy: { minSyncPeriod: 5s }",
        expect![[r#"
            error[conflicting-fields]: `minSyncPeriod` has no effect beside `propagation.delay`
             --> s.yaml:4:10
              |
            4 | proxy: { minSyncPeriod: 5s }
              |          ^^^^^^^^^^^^^
            5 | propagation: { delay: { exponential: { mean: 300ms } } }
              |                ----- this is the whole time, syncs included
              |
              = help: remove it, or use `propagation: { pipeline: {} }`

            1 error; nothing was run
        "#]],
    );
    check(
        "deletePod: default/shop",
        "restartProxy: node-7",
        expect![[r#"
        error[conflicting-fields]: `restartProxy` needs `propagation.pipeline`
         --> s.yaml:9:15
          |
        4 | propagation: { delay: { exponential: { mean: 300ms } } }
          |                ----- there are no proxies that sync behind a drawn delay
        ...
        9 |   - { at: 2s, restartProxy: node-7 }
          |               ^^^^^^^^^^^^
          |
          = help: use `propagation: { pipeline: {} }`

        error[unknown-node]: there is no node "node-7"
         --> s.yaml:9:29
          |
        9 |   - { at: 2s, restartProxy: node-7 }
          |                             ^^^^^^
          |
          = help: nodes are named node-0 to node-2

        2 errors; nothing was run
    "#]],
    );
}

#[test]
fn propagation_is_one_of_two() {
    check(
        "delay: { exponential: { mean: 300ms } }",
        "delay: { constant: 1s }, pipeline: { lock: { every: 0s, holds: 1s } }",
        expect![[r#"
            error[conflicting-fields]: both `delay` and `pipeline` are given
             --> s.yaml:4:41
              |
            4 | propagation: { delay: { constant: 1s }, pipeline: { lock: { every: 0s, holds: 1s } } }
              |                ----- given here, too    ^^^^^^^^
              |
              = help: a propagation has exactly one of delay, pipeline

            1 error; nothing was run
        "#]],
    );
    check(
        "{ delay: { exponential: { mean: 300ms } } }\n",
        "{ pipeline: { lock: { every: 0s, holds: 1s } } }\n",
        expect![[r#"
            error[conflicting-fields]: iptables-nft takes no lock, so `lock` has no effect
             --> s.yaml:4:28
              |
            4 | propagation: { pipeline: { lock: { every: 0s, holds: 1s } } }
              |                            ^^^^
              |
              = help: remove it, or add `iptablesBackend: legacy` to `proxy`

            error[out-of-range]: the lock is taken every 0 seconds
             --> s.yaml:4:34
              |
            4 | propagation: { pipeline: { lock: { every: 0s, holds: 1s } } }
              |                                  ^^^^^^^^^^^^^^^^^^^^^^^^
              |
              = help: use a duration above 0

            2 errors; nothing was run
        "#]],
    );
}

#[test]
fn yaml_syntax() {
    check(
        "{ nodes: 3 }",
        "{ nodes: 3",
        expect![[r#"
            error[yaml-syntax]: this is not YAML: while parsing a flow mapping, did not find expected ',' or '}'
             --> s.yaml:4:12
              |
            3 | cluster: { nodes: 3
              |          - opened here
            4 | propagation: { delay: { exponential: { mean: 300ms } } }
              |            ^
              |
              = help: a `[` or `{` is opened and never closed, or a comma is missing

            1 error; nothing was run
        "#]],
    );
    check(
        "question: What",
        "question: Why: what",
        expect![[r#"
        error[yaml-syntax]: this is not YAML: mapping values are not allowed in this context
         --> s.yaml:2:14
          |
        2 | question: Why: what does this lose?
          |              ^
          |
          = help: text with `: ` in it needs quotes; otherwise the line above may be indented too little

        1 error; nothing was run
    "#]],
    );
}

#[test]
fn duplicate_key() {
    check(
        "propagation:",
        "cluster: { nodes: 4 }\npropagation:",
        expect![[r#"
            error[duplicate-key]: `cluster` is set twice
             --> s.yaml:4:1
              |
            3 | cluster: { nodes: 3 }
              | ------- first set here
            4 | cluster: { nodes: 4 }
              | ^^^^^^^
              |
              = help: keep one of them: YAML readers disagree about which one wins

            1 error; nothing was run
        "#]],
    );
}

#[test]
fn tabs() {
    check(
        "cluster: { nodes: 3 }",
        "cluster:\n\tnodes: 3",
        expect![[r#"
        error[yaml-tab]: a tab indents this line
         --> s.yaml:4:1
          |
        4 |     nodes: 3
          | ^
          |
          = help: YAML is indented with spaces only: replace the tab by spaces

        1 error; nothing was run
    "#]],
    );
}

#[test]
fn wrong_expectation() {
    check(
        "sweep:",
        "expect: [\"lost{cause=\\\"refuse\\\"} == 0\"]\nsweep:",
        expect![[r#"
            error[bad-expectation]: unknown cause "refuse"
              --> s.yaml:10:10
               |
            10 | expect: ["lost{cause=\"refuse\"} == 0"]
               |          ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
               |
               = help: did you mean "refused"?

            1 error; nothing was run
        "#]],
    );
}

#[test]
fn a_kubernetes_file_as_scenario() {
    let folder = Folder::new();
    folder.write("one.yaml", SHOP.split("---").next().unwrap_or_default());
    let done = folder.run(&["run", "one.yaml"]).ends_with(2);
    expect![[r#"
        error[not-a-scenario]: this is a Kubernetes object (Service), not a scenario
         --> one.yaml:2:1
          |
        2 | kind: Service
          | ^^^^
          |
          = help: a scenario starts with `apiVersion: rulelag/v1` and names files of Kubernetes objects under `objects:`

        1 error; nothing was run
    "#]].assert_eq(&done.stderr);
}

#[test]
fn everything_at_once() {
    let folder = Folder::new();
    folder.write(
        "s.yaml",
        "\
apiVersion: rulelag/v2
quesion: Why?
cluster: { nodes: 3, podCIDR: 10.244.0.1/16 }
propagation: { delay: 300ms }
clients:
  - { name: front, service: default/shop, rate: 50 }
  - { name: front, rate: 50/s }
events:
  - { at: 2s, rolout: default/shop }
timelineBin: 0s
",
    );
    let done = folder.run(&["run", "s.yaml"]).ends_with(2);
    expect![[r#"
        error[unknown-word]: the text "rulelag/v2" is none of the known words
         --> s.yaml:1:13
          |
        1 | apiVersion: rulelag/v2
          |             ^^^^^^^^^^
          |
          = help: only `rulelag/v1` is known so far

        error[unknown-field]: unknown field `quesion` in this scenario
         --> s.yaml:2:1
          |
        2 | quesion: Why?
          | ^^^^^^^
          |
          = help: did you mean `question`?

        error[wrong-type]: "10.244.0.1/16" is not an IPv4 range: 10.244.0.1 has bits set after the prefix; did you mean `10.244.0.0/16`?
         --> s.yaml:3:31
          |
        3 | cluster: { nodes: 3, podCIDR: 10.244.0.1/16 }
          |                               ^^^^^^^^^^^^^
          |
          = help: ranges are written `10.244.0.0/16`

        error[wrong-type]: expected a law, found the text "300ms"
         --> s.yaml:4:23
          |
        4 | propagation: { delay: 300ms }
          |                       ^^^^^
          |
          = help: write which law, as in `{ constant: 1s }` or `{ exponential: { mean: 1s } }`

        error[wrong-type]: expected a rate, found the number `50`
         --> s.yaml:6:49
          |
        6 |   - { name: front, service: default/shop, rate: 50 }
          |                                                 ^^
          |
          = help: add a unit of time: `50/s`

        error[missing-field]: this client has no `service`
         --> s.yaml:7:5
          |
        7 |   - { name: front, rate: 50/s }
          |     ^^^^^^^^^^^^^^^^^^^^^^^^^^^
          |
          = help: add `service:`. The Service, as namespace/name.

        error[unknown-field]: unknown field `rolout` in this event
         --> s.yaml:9:15
          |
        9 |   - { at: 2s, rolout: default/shop }
          |               ^^^^^^
          |
          = help: did you mean `rollout`?

        7 errors; nothing was run
    "#]].assert_eq(&done.stderr);
}

#[test]
fn a_setting_on_the_command_line() {
    let folder = Folder::new();
    let done = folder.run(&["run", "s.yaml", "--set", "cluster.nodes=0"]).ends_with(2);
    expect![[r#"
        error[out-of-range]: 0 is out of range
         --> --set:1:15
          |
        1 | cluster.nodes=0
          |               ^
          |
          = help: a whole number from 1 to 1000000

        1 error; nothing was run
    "#]]
    .assert_eq(&done.stderr);
}

#[test]
fn an_unknown_path_on_the_command_line() {
    let folder = Folder::new();
    let done = folder.run(&["run", "s.yaml", "--set", "cluster.nods=3"]).ends_with(2);
    expect![[r#"
        error[unknown-field]: unknown field `nods` in this cluster
         --> --set:1:9
          |
        1 | cluster.nods=3
          |         ^^^^
          |
          = help: did you mean `nodes`?

        1 error; nothing was run
    "#]]
    .assert_eq(&done.stderr);
}

#[test]
fn a_selector_that_matches_nothing_is_a_warning() {
    let folder = Folder::new();
    folder.write(
        "shop.yaml",
        &SHOP.replacen("selector: { app: shop }", "selector: { app: shpo }", 1),
    );
    let done = folder.run(&["run", "s.yaml"]).ends_with(0);
    expect![[r#"
        warning[selector-matches-nothing]: the selector app=shpo matches no Pods
         --> shop.yaml:5:3
          |
        5 |   selector: { app: shpo }
          |   ^^^^^^^^
          |
          = note: Kubernetes accepts this silently: the Service has no endpoints, and every node rejects its traffic
          = help: did you mean app=shop?

    "#]].assert_eq(&done.stderr);
}

#[test]
fn ignored_kinds_are_named() {
    let folder = Folder::new();
    let config_map =
        "---\napiVersion: v1\nkind: ConfigMap\nmetadata: { name: shop-config }\ndata: { a: b }\n";
    folder.write("shop.yaml", &format!("{SHOP}{config_map}"));
    let done = folder.run(&["run", "s.yaml"]).ends_with(0);
    expect![[r#"
        warning[not-modelled]: ConfigMap shop-config is ignored
          --> shop.yaml:23:7
           |
        23 | kind: ConfigMap
           |       ^^^^^^^^^
           |
           = note: at kind
           = help: only Services and Deployments are modelled so far

    "#]]
    .assert_eq(&done.stderr);
}

#[test]
fn no_bytes_crash_the_reader() {
    let folder = Folder::new();
    // A small generator of its own: the texts are the same in every run.
    let mut state = 1_u64;
    let mut random = |below: usize| {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % below
    };
    for _ in 0..150 {
        let mut text: Vec<char> = GOOD.chars().collect();
        for _ in 0..=random(4) {
            let at = random(text.len());
            match random(3) {
                0 => text[at] = ['{', ':', '\t', '"', '-', '\n', 'é', '0', '&', '*'][random(10)],
                1 => text.truncate(at.max(20)),
                _ => {
                    let from = random(text.len());
                    let piece: Vec<char> = text[from..].iter().take(20).copied().collect();
                    text.splice(at..at, piece);
                }
            }
        }
        folder.write("s.yaml", &text.iter().collect::<String>());
        // No grid and no cluster as large as a mutation may make it: only reading is tested.
        let done =
            folder.run(&["run", "s.yaml", "--set", "limits.events=1", "--set", "cluster.nodes=3"]);
        assert!(matches!(done.status, Some(0..=4)), "{}\n{}", folder.read("s.yaml"), done.stderr);
    }
}

#[test]
fn affinity_where_nodes_take_turns() {
    let folder = Folder::new();
    let article = GOOD.replacen("cluster:", "proxy: { mode: article }\ncluster:", 1);
    folder.write("s.yaml", &article);
    let affinity = SHOP.replacen("spec:", "spec:\n  sessionAffinity: ClientIP", 1);
    folder.write("shop.yaml", &affinity);
    let done = folder.run(&["sweep", "s.yaml"]).ends_with(2);
    expect![[r#"
        error[conflicting-fields]: mode article has no session affinity
         --> shop.yaml:5:20
          |
        5 |   sessionAffinity: ClientIP
          |                    ^^^^^^^^
          |
          = help: its nodes take turns, whoever the client is; remove `sessionAffinity`, or use another `proxy.mode`

        1 error; nothing was run
    "#]].assert_eq(&done.stderr);
    folder.write("s.yaml", GOOD);
    folder.run(&["sweep", "s.yaml", "--replications", "2"]).ends_with(0);
}
