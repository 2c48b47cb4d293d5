//! What `rules` prints, for a Service with an endpoint on each of two nodes.

use expect_test::{Expect, expect};

use super::Folder;

const CLUSTER: &str = "\
apiVersion: v1
kind: Node
metadata: { name: alpha }
spec: { podCIDR: 10.32.1.0/24 }
status: { addresses: [{ type: InternalIP, address: 192.0.2.1 }] }
---
apiVersion: v1
kind: Node
metadata: { name: beta }
spec: { podCIDR: 10.32.2.0/24 }
status: { addresses: [{ type: InternalIP, address: 192.0.2.2 }] }
---
apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
clusterCIDR: 10.32.0.0/16
---
apiVersion: v1
kind: Service
metadata: { name: tea }
spec:
  clusterIP: 10.33.0.9
  internalTrafficPolicy: Local
  ports: [{ port: 80, targetPort: 8080 }]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: { name: tea-1, labels: { kubernetes.io/service-name: tea } }
addressType: IPv4
ports: [{ name: '', port: 8080 }]
endpoints:
  - { addresses: [10.32.1.7], nodeName: alpha, conditions: { ready: true } }
";

#[track_caller]
fn check(arguments: &str, status: i32, expected: &Expect) {
    let folder = Folder::new();
    folder.write("tea.yaml", CLUSTER);
    let arguments: Vec<&str> = arguments.split(' ').collect();
    let done = folder.run(&arguments).ends_with(status);
    expected.assert_eq(&[done.stdout, done.stderr].concat());
}

#[test]
fn one_table_as_the_kernel_holds_it() {
    check(
        "rules -f tea.yaml --node alpha -t nat",
        0,
        &expect![[r#"
        *nat
        :PREROUTING ACCEPT [0:0]
        :INPUT ACCEPT [0:0]
        :OUTPUT ACCEPT [0:0]
        :POSTROUTING ACCEPT [0:0]
        :KUBE-MARK-MASQ - [0:0]
        :KUBE-NODEPORTS - [0:0]
        :KUBE-POSTROUTING - [0:0]
        :KUBE-SEP-3JN7MKLKTDJGUPWN - [0:0]
        :KUBE-SERVICES - [0:0]
        :KUBE-SVL-QBY6SWL4ZOFPDFMH - [0:0]
        -A PREROUTING -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
        -A OUTPUT -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
        -A POSTROUTING -m comment --comment "kubernetes postrouting rules" -j KUBE-POSTROUTING
        -A KUBE-MARK-MASQ -j MARK --set-xmark 0x4000/0x4000
        -A KUBE-POSTROUTING -m mark ! --mark 0x4000/0x4000 -j RETURN
        -A KUBE-POSTROUTING -j MARK --set-xmark 0x4000/0x0
        -A KUBE-POSTROUTING -m comment --comment "kubernetes service traffic requiring SNAT" -j MASQUERADE --random-fully
        -A KUBE-SEP-3JN7MKLKTDJGUPWN -s 10.32.1.7/32 -m comment --comment "default/tea" -j KUBE-MARK-MASQ
        -A KUBE-SEP-3JN7MKLKTDJGUPWN -p tcp -m comment --comment "default/tea" -m tcp -j DNAT --to-destination 10.32.1.7:8080
        -A KUBE-SERVICES -d 10.33.0.9/32 -p tcp -m comment --comment "default/tea cluster IP" -m tcp --dport 80 -j KUBE-SVL-QBY6SWL4ZOFPDFMH
        -A KUBE-SERVICES -m comment --comment "kubernetes service nodeports; NOTE: this must be the last rule in this chain" -m addrtype --dst-type LOCAL -j KUBE-NODEPORTS
        -A KUBE-SVL-QBY6SWL4ZOFPDFMH ! -s 10.32.0.0/16 -d 10.33.0.9/32 -p tcp -m comment --comment "default/tea cluster IP" -m tcp --dport 80 -j KUBE-MARK-MASQ
        -A KUBE-SVL-QBY6SWL4ZOFPDFMH -m comment --comment "default/tea -> 10.32.1.7:8080" -j KUBE-SEP-3JN7MKLKTDJGUPWN
        COMMIT
    "#]],
    );
}

#[test]
fn two_nodes_differ_where_policy_is_local() {
    check(
        "rules diff -f tea.yaml --node alpha --to-node beta",
        1,
        &expect![[r#"
        *filter
        +-A KUBE-SERVICES -d 10.33.0.9/32 -p tcp -m comment --comment "default/tea has no local endpoints" -m tcp --dport 80 -j DROP
        *nat
        -:KUBE-SEP-3JN7MKLKTDJGUPWN - [0:0]
        --A KUBE-SEP-3JN7MKLKTDJGUPWN -s 10.32.1.7/32 -m comment --comment "default/tea" -j KUBE-MARK-MASQ
        --A KUBE-SEP-3JN7MKLKTDJGUPWN -p tcp -m comment --comment "default/tea" -m tcp -j DNAT --to-destination 10.32.1.7:8080
        --A KUBE-SERVICES -d 10.33.0.9/32 -p tcp -m comment --comment "default/tea cluster IP" -m tcp --dport 80 -j KUBE-SVL-QBY6SWL4ZOFPDFMH
        -:KUBE-SVL-QBY6SWL4ZOFPDFMH - [0:0]
        --A KUBE-SVL-QBY6SWL4ZOFPDFMH ! -s 10.32.0.0/16 -d 10.33.0.9/32 -p tcp -m comment --comment "default/tea cluster IP" -m tcp --dport 80 -j KUBE-MARK-MASQ
        --A KUBE-SVL-QBY6SWL4ZOFPDFMH -m comment --comment "default/tea -> 10.32.1.7:8080" -j KUBE-SEP-3JN7MKLKTDJGUPWN
    "#]],
    );
}

#[test]
fn a_node_does_not_differ_from_itself() {
    check("rules diff -f tea.yaml --node alpha --to-node alpha", 0, &expect![]);
}

#[test]
fn counts_of_both_modes() {
    check(
        "rules -f tea.yaml --node alpha -o summary",
        0,
        &expect![[r#"
        node                  alpha
        mode                  iptables
        profile               1.30
        services              1
        service ports         1
        endpoints             1
        large cluster         no
        filter rules          15
        nat rules             13
        chains of services    2
        bytes to restore      1854
    "#]],
    );
    check(
        "rules -f tea.yaml --node alpha -o summary --mode nftables",
        0,
        &expect![[r#"
        node                  alpha
        mode                  nftables
        profile               1.30
        services              1
        service ports         1
        endpoints             1
        chains                18
        rules                 26
        sets                  2
        maps                  5
        elements              3
        bytes to restore      4675
    "#]],
    );
}

#[test]
fn virtual_servers_and_what_surrounds_them() {
    check(
        "rules -f tea.yaml --node alpha --mode ipvs",
        0,
        &expect![[r#"
        IP Virtual Server version 1.2.1 (size=4096)
        Prot LocalAddress:Port Scheduler Flags
          -> RemoteAddress:Port           Forward Weight ActiveConn InActConn
        TCP  10.33.0.9:80 rr
          -> 10.32.1.7:8080               Masq    1      0          0
    "#]],
    );
    check(
        "rules -f tea.yaml --node alpha --mode ipvs -o summary",
        0,
        &expect![[r#"
        node                  alpha
        mode                  ipvs
        profile               1.30
        services              1
        service ports         1
        endpoints             1
        virtual servers       1
        real servers          1
        addresses             1
        elements of ipsets    3
        iptables rules        20
        net/ipv4/vs/conntrack 1
        net/ipv4/vs/expire_nodest_conn 1
        net/ipv4/vs/expire_quiescent_template 1
        net/ipv4/ip_forward 1
    "#]],
    );
    check(
        "rules -f tea.yaml --node alpha --mode ipvs -o S -t filter",
        0,
        &expect![[r#"
        -P INPUT ACCEPT
        -P FORWARD ACCEPT
        -P OUTPUT ACCEPT
        -N KUBE-FORWARD
        -N KUBE-IPVS-FILTER
        -N KUBE-IPVS-OUT-FILTER
        -N KUBE-NODE-PORT
        -N KUBE-PROXY-FIREWALL
        -N KUBE-SOURCE-RANGES-FIREWALL
        -A INPUT -m comment --comment "kubernetes ipvs access filter" -j KUBE-IPVS-FILTER
        -A INPUT -m comment --comment "kube-proxy firewall rules" -j KUBE-PROXY-FIREWALL
        -A INPUT -m comment --comment "kubernetes health check rules" -j KUBE-NODE-PORT
        -A FORWARD -m comment --comment "kube-proxy firewall rules" -j KUBE-PROXY-FIREWALL
        -A FORWARD -m comment --comment "kubernetes forwarding rules" -j KUBE-FORWARD
        -A OUTPUT -m comment --comment "kubernetes ipvs access filter" -j KUBE-IPVS-OUT-FILTER
        -A KUBE-FORWARD -m comment --comment "kubernetes forwarding rules" -m mark --mark 0x4000/0x4000 -j ACCEPT
        -A KUBE-FORWARD -m comment --comment "kubernetes forwarding conntrack rule" -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
        -A KUBE-IPVS-FILTER -m set --match-set KUBE-LOAD-BALANCER dst,dst -j RETURN
        -A KUBE-IPVS-FILTER -m set --match-set KUBE-CLUSTER-IP dst,dst -j RETURN
        -A KUBE-IPVS-FILTER -m set --match-set KUBE-EXTERNAL-IP dst,dst -j RETURN
        -A KUBE-IPVS-FILTER -m set --match-set KUBE-EXTERNAL-IP-LOCAL dst,dst -j RETURN
        -A KUBE-IPVS-FILTER -m set --match-set KUBE-HEALTH-CHECK-NODE-PORT dst -j RETURN
        -A KUBE-IPVS-FILTER -m conntrack --ctstate NEW -m set --match-set KUBE-IPVS-IPS dst -j REJECT --reject-with icmp-port-unreachable
        -A KUBE-NODE-PORT -m comment --comment "Kubernetes health check node port" -m set --match-set KUBE-HEALTH-CHECK-NODE-PORT dst -j ACCEPT
        -A KUBE-SOURCE-RANGES-FIREWALL -j DROP
    "#]],
    );
    check(
        "rules -f tea.yaml --node alpha --mode ipvs -o nft",
        2,
        &expect![[r#"
        error: rules of IPVS mode have no such form
        help: give one of restore, save, S, L, ipvsadm, summary
    "#]],
    );
    check(
        "rules -f tea.yaml --node alpha --mode ipvs -o restore -t nat",
        2,
        &expect![[r#"
        error: `--table` is about rules of iptables
        help: give `-o save`, `-o S` or `-o L` with it
    "#]],
    );
}

#[test]
fn two_nodes_in_nftables_mode() {
    let arguments = "rules diff -f tea.yaml --node alpha --to-node beta --mode nftables";
    check(
        arguments,
        1,
        &expect![[r#"
        table ip kube-proxy {
        -	chain endpoint-RVB4GUDO-default/tea/tcp/__10.32.1.7/8080 {
        -		ip saddr 10.32.1.7 jump mark-for-masquerade
        -		meta l4proto tcp dnat to 10.32.1.7:8080
        -	}
        -	chain local-ETHP2MNJ-default/tea/tcp/ {
        -		ip daddr 10.33.0.9 tcp dport 80 ip saddr != 10.32.0.0/16 jump mark-for-masquerade
        -		numgen random mod 1 vmap { 0 : goto endpoint-RVB4GUDO-default/tea/tcp/__10.32.1.7/8080 }
        -	}
         	map no-endpoint-services {
        +		elements = { 10.33.0.9 . tcp . 80 comment "default/tea" : drop }
         	map service-ips {
        -		elements = { 10.33.0.9 . tcp . 80 : goto local-ETHP2MNJ-default/tea/tcp/ }
         	set nodeport-ips {
        -		elements = { 192.0.2.1 }
        +		elements = { 192.0.2.2 }
    "#]],
    );
}

#[test]
fn what_is_asked_for_wrongly() {
    check(
        "rules -f tea.yaml",
        2,
        &expect![[r#"
        error: which node?
        help: give `--node` one of alpha, beta
    "#]],
    );
    check(
        "rules -f tea.yaml --node alpa",
        2,
        &expect![[r#"
        error: no object names a node alpa
        help: did you mean alpha?
    "#]],
    );
    check(
        "rules -f tea.yaml --node alpha -o nft",
        2,
        &expect![[r#"
        error: rules of iptables mode have no such form
        help: give one of save, restore, S, L, summary
    "#]],
    );
    check(
        "rules -f tea.yaml --node alpha -o S --mode nftables",
        2,
        &expect![[r#"
        error: rules of nftables mode have no such form
        help: give one of restore, nft, summary
    "#]],
    );
    check(
        "rules -f coffee.yaml --node alpha",
        2,
        &expect![[r#"
        error[missing-file]: cannot read coffee.yaml: No such file or directory (os error 2)
        help: give files, folders, or - for standard input

        1 error; nothing was run
    "#]],
    );
    check(
        "rules -f tea.yaml --node alpha --profile 2.0",
        2,
        &expect![[r#"
        error: no such version of Kubernetes: 2.0
        help: 1.28 to 1.36, or `current`
    "#]],
    );
    check(
        "rules --node alpha",
        2,
        &expect![[r#"
        error: no files of objects are given
        help: as in `rulelag rules -f objects.yaml --node node-1`
    "#]],
    );
}

/// What a cluster without kube-proxy has from the start. `hubble-peer` takes number 2, and the
/// ports of `kube-dns` the numbers 3 and 4.
const NO_KUBE_PROXY: &str = "\
apiVersion: v1
kind: Node
metadata: { name: worker-1 }
status: { addresses: [{ type: InternalIP, address: 10.0.0.131 }] }
---
apiVersion: v1
kind: Service
metadata: { name: kubernetes, namespace: default }
spec: { clusterIP: 10.96.0.1, ports: [{ name: https, port: 443, targetPort: 6443 }] }
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: { name: kubernetes, namespace: default, labels: { kubernetes.io/service-name: kubernetes } }
addressType: IPv4
ports: [{ name: https, port: 6443 }]
endpoints: [{ addresses: [10.0.0.120] }]
---
apiVersion: v1
kind: Service
metadata: { name: hubble-peer, namespace: kube-system }
spec: { clusterIP: 10.96.0.9, ports: [{ name: peer-service, port: 443, targetPort: 4244 }] }
---
apiVersion: v1
kind: Service
metadata: { name: kube-dns, namespace: kube-system }
spec:
  clusterIP: 10.96.0.10
  ports:
    - { name: dns, port: 53, protocol: UDP }
    - { name: dns-tcp, port: 53, protocol: TCP }
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: { name: kube-dns-1, namespace: kube-system, labels: { kubernetes.io/service-name: kube-dns } }
addressType: IPv4
ports: [{ name: dns, port: 53, protocol: UDP }, { name: dns-tcp, port: 53, protocol: TCP }]
endpoints: [{ addresses: [10.244.0.150], nodeName: worker-1 }]
";

fn without_kube_proxy(arguments: &str) -> String {
    let folder = Folder::new();
    folder.write("cluster.yaml", NO_KUBE_PROXY);
    let arguments: Vec<&str> = arguments.split(' ').collect();
    folder.run(&arguments).ends_with(0).stdout
}

#[test]
fn s3_26_the_map_listing_has_the_lines_of_the_article() {
    let listing = without_kube_proxy("rules -f cluster.yaml --mode ebpf -o ebpf");
    for expected in [
        "SERVICE ADDRESS        BACKEND ADDRESS (REVNAT_ID) (SLOT)",
        "10.96.0.10:53/TCP (1)  10.244.0.150:53/TCP (4) (1)",
        "10.96.0.1:443/TCP (1)  10.0.0.120:6443/TCP (1) (1)",
    ] {
        assert!(listing.lines().any(|line| line == expected), "{listing}");
    }
    assert_eq!(without_kube_proxy("rules -f cluster.yaml --mode ebpf"), listing, "the default");
}

#[test]
fn s3_24_no_kube_proxy_pod_and_no_kube_chain() {
    let summary = without_kube_proxy("rules -f cluster.yaml --mode ebpf -o summary");
    expect![[r#"
        node                  worker-1
        mode                  ebpf
        services              3
        service ports         4
        endpoints             3
        kube-proxy Pods       0
        KUBE- chains          0
        service entries       7 of 65536
        backend entries       3
        rev-NAT entries       4
        affinity entries      0
        source ranges         0
    "#]]
    .assert_eq(&summary);
    for form in ["save", "S", "L"] {
        let rules = without_kube_proxy(&format!("rules -f cluster.yaml --mode ebpf -o {form}"));
        assert!(rules.contains("PREROUTING") && !rules.contains("KUBE-"), "{form}\n{rules}");
        let rules = without_kube_proxy(&format!("rules -f cluster.yaml --mode iptables -o {form}"));
        assert!(rules.contains("KUBE-SERVICES"), "{form}\n{rules}");
    }
}

/// The manifest is not changed by one character between the modes.
#[test]
fn s3_27_one_manifest_serves_every_mode() {
    let listed = ["iptables", "nftables", "ipvs", "ebpf"]
        .map(|mode| without_kube_proxy(&format!("rules -f cluster.yaml --mode {mode}")));
    for text in &listed {
        for part in ["10.96.0.10", "10.244.0.150", "10.0.0.120", "6443"] {
            assert!(text.contains(part), "{part} is not in\n{text}");
        }
    }
}

#[test]
fn two_nodes_in_mode_ebpf() {
    check(
        "rules diff -f tea.yaml --node alpha --to-node beta --mode ebpf",
        1,
        &expect![[r#"
        -10.33.0.9:80/TCP (1) 10.32.1.7:8080/TCP (1) (1)
    "#]],
    );
}

#[test]
fn forms_that_maps_do_not_have() {
    check(
        "rules -f tea.yaml --node alpha --mode ebpf -o nft",
        2,
        &expect![[r#"
        error: rules of ebpf mode have no such form
        help: give one of ebpf, save, S, L, summary
    "#]],
    );
    check(
        "rules -f tea.yaml --node alpha --mode ebpf -t nat",
        2,
        &expect![[r#"
        error: `--table` and `--since` are about iptables mode
        help: mode ebpf keeps maps; `rulelag rules diff` shows what changed
    "#]],
    );
    check(
        "rules -f tea.yaml --node alpha -o ebpf",
        2,
        &expect![[r#"
        error: rules of iptables mode have no such form
        help: give one of save, restore, S, L, summary
    "#]],
    );
}

/// A scenario's node before, within and after the change: `rules diff` between two times shows the
/// endpoint that went, in every mode.
#[test]
fn a_scenarios_node_at_a_time() {
    let folder = Folder::new();
    for mode in ["iptables", "nftables", "ipvs", "ebpf"] {
        let at = |time: &str| {
            let args =
                ["rules", "-f", "delete-pod", "--at", time, "--node", "node-3", "--mode", mode];
            let done = folder.run(&args);
            assert_eq!((done.status, done.stderr.as_str()), (Some(0), ""), "{mode}");
            done.stdout
        };
        let (first, later, last) = (at("0s"), at("5s"), at("1m"));
        assert_eq!(first, later, "{mode}: nothing has happened yet");
        assert_ne!(first, last, "{mode}: a Pod has another address");
        let args = ["rules", "diff", "-f", "delete-pod", "--at", "0s", "--to-at", "1m", "--node"];
        let done = folder.run(&[&args[..], &["node-3", "--mode", mode]].concat());
        assert_eq!(done.status, Some(1), "{mode} {}", done.stderr);
        assert!(done.stdout.lines().any(|line| line.starts_with('-')), "{mode}");
        assert!(done.stdout.lines().any(|line| line.starts_with('+')), "{mode}");
    }
    let done = folder.run(&["rules", "-f", "delete-pod", "--at", "soon", "--node", "node-3"]);
    assert_eq!(done.status, Some(2));
    assert!(done.stderr.contains("soon is not a time"), "{}", done.stderr);
    let done = folder.run(&["rules", "-f", "delete-pod", "--at", "1s", "--node", "node-999"]);
    assert_eq!(done.status, Some(2));
    assert!(done.stderr.contains("node-0 to node-"), "{}", done.stderr);
}

/// Userspace mode's rules name Services and the process's ports, never endpoints.
#[test]
fn userspace_mode_leads_to_a_process() {
    let folder = Folder::new();
    let args =
        ["rules", "-f", "delete-pod", "--at", "0s", "--node", "node-3", "--mode", "userspace"];
    let done = folder.run(&args);
    assert_eq!(done.status, Some(0), "{}", done.stderr);
    let rule = |start: &str| done.stdout.lines().find(|line| line.starts_with(start)).unwrap();
    let container = rule("-A KUBE-PORTALS-CONTAINER");
    assert!(container.ends_with("-j REDIRECT --to-ports 20000"), "{container}");
    let host = rule("-A KUBE-PORTALS-HOST");
    assert!(host.contains("-j DNAT --to-destination ") && host.ends_with(":20000"), "{host}");
    assert!(!done.stdout.contains("KUBE-SEP-"));
}

/// What an article about a managed cluster shows of `iptables -t nat -L -n`: two Services with node
/// ports, one of them with 74 endpoints, on nodes without a range for Pods (S4-10 … S4-26).
#[test]
fn s4_10_a_listing_reads_as_on_a_node_of_a_managed_cluster() {
    let service = |name: &str, ip: &str, port: u16, node_port: u16| {
        format!(
            "apiVersion: v1\nkind: Service\nmetadata: {{ name: {name}, namespace: garden }}\n\
             spec:\n  type: NodePort\n  clusterIP: {ip}\n  ports: [{{ port: {port}, nodePort: {node_port} }}]\n\
             ---\n"
        )
    };
    let slice = |name: &str, port: u16, hosts: &[u8]| {
        let mut text = format!(
            "apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata:\n  name: {name}-1\n  \
             namespace: garden\n  labels: {{ kubernetes.io/service-name: {name} }}\n\
             addressType: IPv4\nports: [{{ name: '', port: {port} }}]\nendpoints:\n"
        );
        for host in hosts {
            text.push_str(&format!("  - {{ addresses: [10.80.7.{host}], nodeName: far }}\n"));
        }
        text + "---\n"
    };
    let folder = Folder::new();
    let many: Vec<u8> = (101..=174).rev().collect();
    let objects = [
        service("beans", "172.20.8.15", 8080, 31017),
        service("peas", "172.20.9.16", 8081, 31018),
        slice("beans", 8080, &many),
        slice("peas", 8081, &[200]),
    ];
    folder.write("garden.yaml", &objects.concat());
    let done = folder.run(&["rules", "-f", "garden.yaml", "--node", "far", "-o", "L", "-t", "nat"]);
    let text = done.ends_with(0).stdout;
    // Hashes stand for names, which they are numbered for in order of appearance here.
    let mut known: Vec<String> = Vec::new();
    let mut blocks: Vec<Vec<String>> = Vec::new();
    let order = ["PREROUTING", "KUBE-SERVICES", "KUBE-NODEPORTS"];
    let mut shown: Vec<&str> = text.split("\n\n").collect();
    let rank = |block: &&str| {
        let name = block.split(' ').nth(1).unwrap_or_default();
        let by_name = order.iter().position(|known| *known == name);
        let by_kind = ["KUBE-EXT-", "KUBE-SVC-", "KUBE-SEP-"];
        let by_kind = by_kind.iter().position(|kind| name.starts_with(kind));
        by_name.or(by_kind.map(|kind| kind + order.len()))
    };
    shown.retain(|block| rank(block).is_some());
    // Of peas, only how it is reached from outside; of beans, its chain and its first endpoint's.
    let pod = "to:10.80.7.101:8080";
    shown.retain(|block| match rank(block) {
        Some(3) => block.contains("garden/peas"),
        Some(4) => block.contains("garden/beans"),
        Some(5) => block.contains(pod),
        _ => true,
    });
    shown.sort_by_key(rank);
    for block in shown {
        let lines = block.lines().map(|line| {
            let words = line.split_whitespace().map(|word| match word.rsplit_once('-') {
                Some((kind, hash)) if kind.starts_with("KUBE-") && hash.len() == 16 => {
                    assert!(hash.chars().all(|c| matches!(c, 'A'..='Z' | '2'..='7')), "{hash}");
                    let at = known.iter().position(|name| name == word).unwrap_or_else(|| {
                        known.push(word.to_owned());
                        known.len() - 1
                    });
                    format!("{kind}-#{}", at + 1)
                }
                _ => word.to_owned(),
            });
            words.collect::<Vec<_>>().join(" ")
        });
        blocks.push(lines.collect());
    }
    let chain = &blocks[4];
    assert_eq!(chain.len(), 2 + 74, "a rule for each endpoint");
    let last = chain.last().expect("it has rules");
    assert!(!last.contains("statistic") && last.contains("10.80.7.174:8080"), "{last}");
    blocks[4].truncate(5);
    let shown: Vec<String> = blocks.iter().map(|block| block.join("\n") + "\n").collect();
    expect![[r#"
        Chain PREROUTING (policy ACCEPT)
        target prot opt source destination
        KUBE-SERVICES all -- 0.0.0.0/0 0.0.0.0/0 /* kubernetes service portals */
        Chain KUBE-SERVICES (2 references)
        target prot opt source destination
        KUBE-SVC-#1 tcp -- 0.0.0.0/0 172.20.8.15 /* garden/beans cluster IP */ tcp dpt:8080
        KUBE-SVC-#2 tcp -- 0.0.0.0/0 172.20.9.16 /* garden/peas cluster IP */ tcp dpt:8081
        KUBE-NODEPORTS all -- 0.0.0.0/0 0.0.0.0/0 /* kubernetes service nodeports; NOTE: this must be the last rule in this chain */ ADDRTYPE match dst-type LOCAL
        Chain KUBE-NODEPORTS (1 references)
        target prot opt source destination
        KUBE-EXT-#3 tcp -- 0.0.0.0/0 0.0.0.0/0 /* garden/beans */ tcp dpt:31017
        KUBE-EXT-#4 tcp -- 0.0.0.0/0 0.0.0.0/0 /* garden/peas */ tcp dpt:31018
        Chain KUBE-EXT-#4 (1 references)
        target prot opt source destination
        KUBE-MARK-MASQ all -- 0.0.0.0/0 0.0.0.0/0 /* masquerade traffic for garden/peas external destinations */
        KUBE-SVC-#2 all -- 0.0.0.0/0 0.0.0.0/0
        Chain KUBE-SVC-#1 (2 references)
        target prot opt source destination
        KUBE-SEP-#5 all -- 0.0.0.0/0 0.0.0.0/0 /* garden/beans -> 10.80.7.101:8080 */ statistic mode random probability 0.01351351338
        KUBE-SEP-#6 all -- 0.0.0.0/0 0.0.0.0/0 /* garden/beans -> 10.80.7.102:8080 */ statistic mode random probability 0.01369863003
        KUBE-SEP-#7 all -- 0.0.0.0/0 0.0.0.0/0 /* garden/beans -> 10.80.7.103:8080 */ statistic mode random probability 0.01388888899
        Chain KUBE-SEP-#5 (1 references)
        target prot opt source destination
        KUBE-MARK-MASQ all -- 10.80.7.101 0.0.0.0/0 /* garden/beans */
        DNAT tcp -- 0.0.0.0/0 0.0.0.0/0 /* garden/beans */ tcp to:10.80.7.101:8080
    "#]].assert_eq(&shown.concat());
}
