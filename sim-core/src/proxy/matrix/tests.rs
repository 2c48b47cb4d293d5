use super::*;
use crate::kube::manifest::Manifest;

/// Two nodes, whose Pods come in by a bridge of another name; one endpoint is the node itself.
const OBJECTS: &str = r#"{ "apiVersion": "v1", "kind": "List", "items": [
  { "apiVersion": "kubeproxy.config.k8s.io/v1alpha1", "kind": "KubeProxyConfiguration",
    "detectLocalMode": "BridgeInterface", "detectLocal": { "bridgeInterface": "br-pods" } },
  { "apiVersion": "v1", "kind": "Node", "metadata": { "name": "n1" },
    "spec": { "podCIDR": "10.5.1.0/24" },
    "status": { "addresses": [{ "type": "InternalIP", "address": "192.0.2.1" }] } },
  { "apiVersion": "v1", "kind": "Node", "metadata": { "name": "n2" },
    "spec": { "podCIDR": "10.5.2.0/24" },
    "status": { "addresses": [{ "type": "InternalIP", "address": "192.0.2.2" }] } },
  { "apiVersion": "v1", "kind": "Service", "metadata": { "name": "s" },
    "spec": { "type": "LoadBalancer", "clusterIP": "10.6.0.1",
      "ports": [{ "port": 80, "nodePort": 30080 }] },
    "status": { "loadBalancer": { "ingress": [{ "ip": "203.0.113.5", "ipMode": "Proxy" }] } } },
  { "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
    "metadata": { "name": "s-1", "labels": { "kubernetes.io/service-name": "s" } },
    "addressType": "IPv4", "ports": [{ "name": "", "port": 8080 }],
    "endpoints": [
      { "addresses": ["192.0.2.2"], "nodeName": "n2" },
      { "addresses": ["10.5.1.9"], "nodeName": "n1" } ] } ] }"#;

fn ask(node: Option<&str>) -> Result<Matrix, MatrixError> {
    let mut objects = Objects::default();
    let value = serde_json::from_str(OBJECTS).expect("JSON");
    for manifest in Manifest::for_proxies(&value).expect("valid objects") {
        objects.add(manifest.object);
    }
    let question = Question {
        family: Family::V4,
        profile: Profile::V1_30,
        modes: Mode::RULES.to_vec(),
        node: node.map(str::to_owned),
        services: Vec::new(),
        external: None,
    };
    Matrix::of(&objects, &question)
}

/// Returns the ends of a cell as `verdict endpoint source`, one for both modes.
fn ends(matrix: &Matrix, client: Client, target: Target) -> Vec<String> {
    let [part] = &matrix.ports[..] else { panic!("one port") };
    let is = |cell: &&Cell| (cell.client, cell.target) == (client, target);
    let ends: Vec<Vec<String>> = part
        .cells
        .iter()
        .filter(is)
        .map(|cell| {
            let end = |outcome: &Outcome| {
                let endpoint = outcome.endpoint.map(|(addr, _)| addr.to_string());
                let source = outcome.source.map(|source| source.of.name());
                let parts = [endpoint, source.map(str::to_owned)].into_iter().flatten();
                let parts: Vec<String> = parts.collect();
                format!("{} {}", outcome.verdict.name(), parts.join(" "))
            };
            cell.outcomes.iter().map(end).collect()
        })
        .collect();
    assert_eq!(ends.len(), 2, "{client:?} {target:?}");
    assert_eq!(ends[0], ends[1], "{client:?} {target:?}");
    ends[0].clone()
}

#[test]
fn pods_are_told_by_the_bridge_that_they_come_in_by() {
    let matrix = ask(None).expect("answers");
    let own = ["ok 10.5.1.9 own", "ok 192.0.2.2 own"];
    assert_eq!(ends(&matrix, Client::Pod, Target::ClusterIp), own);
    // Not by the bridge: it is masqueraded, behind the bridge's address for what is behind it.
    let node = ends(&matrix, Client::Node, Target::ClusterIp);
    assert_eq!(node, ["ok 10.5.1.9 node", "ok 192.0.2.2 own"]);
    let outside = ends(&matrix, Client::External, Target::NodePort);
    assert_eq!(outside, ["ok 10.5.1.9 node", "ok 192.0.2.2 node"]);
}

#[test]
fn a_node_that_is_an_endpoint_is_not_the_client_itself() {
    let matrix = ask(Some("n2")).expect("answers");
    let itself = ends(&matrix, Client::Itself, Target::ClusterIp);
    // The Pod is on n1, which is the other node here.
    assert_eq!(itself, ["ok 10.5.1.9 other-node", "ok 192.0.2.2 own"]);
}

#[test]
fn what_is_left_out_is_said() {
    let matrix = ask(None).expect("answers");
    assert_eq!(
        matrix.notes,
        ["default/s: 203.0.113.5 is the load balancer's own: nodes do not catch it (ipMode Proxy)"]
    );
    assert_eq!(ask(Some("n3")).unwrap_err(), WorldError::NoNode("n3".to_owned()).into());
}
