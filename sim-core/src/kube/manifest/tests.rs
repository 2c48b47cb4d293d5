use serde_json::json;

use std::collections::BTreeMap;
use std::time::Duration;

use super::pod::exec_sleep;
use super::*;
use crate::config::{IntOrPercent, Probe, ServicePortSpec, Strategy, TargetPort};

fn service(change: impl Fn(&mut Value)) -> Value {
    let mut value = json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": { "name": "nginx" },
        "spec": {
            "ports": [{ "name": "http", "port": 8080, "protocol": "TCP", "targetPort": 80 }],
            "selector": { "app": "nginx" },
            "type": "NodePort",
        },
    });
    change(&mut value);
    value
}

fn deployment(change: impl Fn(&mut Value)) -> Value {
    let mut value = json!({
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": { "name": "nginx", "labels": { "app": "nginx" } },
        "spec": {
            "replicas": 10,
            "selector": { "matchLabels": { "app": "nginx" } },
            "template": {
                "metadata": { "labels": { "app": "nginx" } },
                "spec": { "containers": [{
                    "name": "nginx",
                    "image": "nginx:1.29",
                    "ports": [{ "name": "web", "containerPort": 80 }],
                    "resources": { "limits": { "cpu": 1, "memory": "64Mi" } },
                    "readinessProbe": { "httpGet": { "path": "/", "port": 80 } },
                }] },
            },
        },
    });
    change(&mut value);
    value
}

fn read(value: &Value) -> Manifest {
    Manifest::from_json(value).expect("valid").remove(0)
}

fn read_deployment(value: &Value) -> DeploymentSpec {
    match read(value).object {
        Object::Deployment(spec) => *spec,
        other => panic!("{other:?}"),
    }
}

/// Returns the problems, a line each.
fn problems(value: &Value) -> Vec<String> {
    let problems = Manifest::from_json(value).expect_err("invalid");
    problems
        .iter()
        .map(|problem| format!("{} {problem} ({})", problem.code, problem.help))
        .collect()
}

#[test]
fn the_service_of_an_nginx_tutorial() {
    let manifest = read(&service(|_| {}));
    assert_eq!(
        manifest.object,
        Object::Service(ServiceSpec {
            name: ObjectName { namespace: "default".into(), name: "nginx".into() },
            cluster_ip: None,
            selector: BTreeMap::from([("app".into(), "nginx".into())]),
            ports: vec![ServicePortSpec {
                name: Some("http".into()),
                port: 8080,
                target: TargetPort::Number(80)
            }],
            affinity: None,
        })
    );
    assert_eq!(manifest.warnings.len(), 1, "NodePort is not modelled");
}

#[test]
fn clients_stay_for_three_hours_unless_told_otherwise() {
    let affinity = |config: Value| {
        let manifest = read(&service(|value| {
            value["spec"]["type"] = json!("ClusterIP");
            value["spec"]["sessionAffinity"] = json!("ClientIP");
            value["spec"]["sessionAffinityConfig"] = config.clone();
        }));
        assert_eq!(manifest.warnings, []);
        match manifest.object {
            Object::Service(spec) => spec.affinity.map(|timeout| timeout.as_secs()),
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(affinity(Value::Null), Some(10_800));
    assert_eq!(affinity(json!({ "clientIP": { "timeoutSeconds": 180 } })), Some(180));
}

#[test]
fn a_deployment_gets_the_defaults_of_kubernetes() {
    let spec = read_deployment(&deployment(|_| {}));
    assert_eq!(spec.replicas, 10);
    assert_eq!(
        spec.strategy,
        Strategy::RollingUpdate {
            max_surge: IntOrPercent::Percent(25),
            max_unavailable: IntOrPercent::Percent(25)
        }
    );
    assert_eq!(spec.template.grace, Duration::from_secs(30));
    assert_eq!(spec.template.ports, BTreeMap::from([("web".into(), 80)]));
    assert_eq!(
        spec.template.readiness,
        Some(Probe {
            initial_delay: Duration::ZERO,
            period: Duration::from_secs(10),
            success_threshold: 1,
            failure_threshold: 3
        })
    );
}

#[test]
fn what_the_server_writes_is_accepted() {
    read(&service(|value| {
        value["metadata"]["uid"] = json!("7b0c");
        value["metadata"]["resourceVersion"] = json!("12");
        value["metadata"]["creationTimestamp"] = json!("2024-01-01T00:00:00Z");
        value["metadata"]["managedFields"] =
            json!([{ "manager": "kubectl", "fieldsV1": { "f:spec": {} } }]);
        value["spec"]["clusterIP"] = json!("10.103.213.221");
        value["spec"]["clusterIPs"] = json!(["10.103.213.221"]);
        value["spec"]["sessionAffinity"] = json!("None");
        value["spec"]["ports"][0]["nodePort"] = json!(30109);
        value["status"] = json!({ "loadBalancer": {} });
    }));
    read(&deployment(|value| {
        value["metadata"]["creationTimestamp"] = Value::Null;
        value["status"] = json!({ "replicas": 10, "conditions": [] });
    }));
}

#[test]
fn all_problems_at_once_with_their_places() {
    let found = problems(&deployment(|value| {
        value["spec"]["replica"] = json!(3);
        value["spec"]["replicas"] = json!("10");
        let container = &mut value["spec"]["template"]["spec"]["containers"][0];
        container["ports"][0]["containerPort"] = json!("80");
        container["readinesProbe"] = json!({});
    }));
    assert_eq!(found.len(), 4, "{found:#?}");
    for expected in [
        "unknown-field spec.replica: Kubernetes knows no field `replica` here (did you mean `replicas`?)",
        "wrong-type spec.replicas: expected a whole number, found the text \"10\"",
        "wrong-type spec.template.spec.containers[0].ports[0].containerPort: expected a whole number",
        "unknown-field spec.template.spec.containers[0].readinesProbe: Kubernetes knows no field \
         `readinesProbe` here (did you mean `readinessProbe`?)",
    ] {
        assert!(found.iter().any(|line| line.starts_with(expected)), "{expected}\n{found:#?}");
    }
}

#[test]
fn validation_as_the_api_server_judges() {
    type Change = fn(&mut Value);
    let deployments: &[(Change, &str)] = &[
        (
            |v| v["metadata"]["name"] = json!("Nginx"),
            "metadata.name: \"Nginx\" is not a valid name",
        ),
        (|v| v["spec"]["replicas"] = json!(-1), "spec.replicas: replicas cannot be negative"),
        (
            |v| v["spec"]["selector"]["matchLabels"]["app"] = json!("web"),
            "spec.selector.matchLabels.app: `app: web` is not among",
        ),
        (|v| v["spec"]["selector"] = json!({}), "spec: the Deployment has no selector"),
        (
            |v| {
                v["spec"]["strategy"] =
                    json!({ "rollingUpdate": { "maxSurge": 0, "maxUnavailable": "0%" } })
            },
            "spec.strategy.rollingUpdate.maxUnavailable: maxSurge and maxUnavailable are both 0",
        ),
        (
            |v| v["spec"]["strategy"] = json!({ "rollingUpdate": { "maxSurge": "a lot" } }),
            "spec.strategy.rollingUpdate.maxSurge: \"a lot\" is neither",
        ),
        (
            |v| v["spec"]["template"]["spec"]["containers"] = json!([]),
            "spec.template.spec: `containers` is missing",
        ),
        (
            |v| {
                v["spec"]["template"]["spec"]["containers"][0]["lifecycle"] =
                    json!({ "preStop": { "sleep": { "seconds": 31 } } });
            },
            "spec.template.spec.containers[0].lifecycle.preStop.sleep.seconds: a preStop sleep of 31 s",
        ),
        (
            |v| {
                v["spec"]["template"]["spec"]["containers"][0]["readinessProbe"]["periodSeconds"] =
                    json!(-1)
            },
            "spec.template.spec.containers[0].readinessProbe.periodSeconds: periodSeconds cannot",
        ),
        (|v| v["apiVersion"] = json!("extensions/v1beta1"), "apiVersion: no Deployment in version"),
    ];
    for (change, expected) in deployments {
        let found = problems(&deployment(change));
        assert!(found.iter().any(|line| line.contains(expected)), "{expected}\n{found:#?}");
    }
    let services: &[(Change, &str)] = &[
        (|v| v["metadata"]["name"] = json!("1nginx"), "metadata.name"),
        (|v| v["spec"]["ports"] = json!([]), "spec: `ports` is missing"),
        (|v| v["spec"]["ports"][0]["port"] = json!(0), "spec.ports[0].port: 0 is not a port"),
        (
            |v| v["spec"]["ports"] = json!([{ "port": 80 }, { "port": 81 }]),
            "spec.ports[1]: a port without a name",
        ),
        (
            |v| {
                v["spec"]["ports"] =
                    json!([{ "port": 80, "name": "a" }, { "port": 80, "name": "a" }])
            },
            "spec.ports[1].name: port name \"a\" is used twice",
        ),
        (|v| v["spec"]["type"] = json!("NodePorts"), "spec.type: unknown Service type"),
        (|v| v["spec"]["clusterIP"] = json!("10.0.0"), "spec.clusterIP: \"10.0.0\" is not"),
        (|v| v["spec"]["selector"]["app"] = json!("a b"), "spec.selector.app: \"a b\" is not"),
    ];
    for (change, expected) in services {
        let found = problems(&service(change));
        assert!(found.iter().any(|line| line.contains(expected)), "{expected}\n{found:#?}");
    }
    assert!(problems(&json!("nginx"))[0].contains("not a Kubernetes object"));
    assert!(problems(&json!({ "kind": "Service" }))[0].contains("`apiVersion` is missing"));
}

#[test]
fn sleeps_are_recognised() {
    let sleep = |command: &[&str]| {
        let command: Vec<String> = command.iter().map(|&word| word.to_owned()).collect();
        exec_sleep(&command).map(|(slept, rest)| (slept.as_secs_f64(), rest))
    };
    for (command, expected) in [
        (&["sleep", "1.2"][..], Some((1.2, ""))),
        (&["/bin/sleep", "1m", "5s"], Some((65.0, ""))),
        (&["sh", "-c", "sleep 5"], Some((5.0, ""))),
        (&["/bin/sh", "-ec", "sleep 5; nginx -s quit"], Some((5.0, "nginx -s quit"))),
        (&["sh", "-c", "sleep 5 && nginx -s quit"], Some((5.0, "nginx -s quit"))),
        (&["sh", "-c", "sleep 5 &"], None),
        (&["sh", "-c", "nginx -s quit"], None),
        (&["sleep"], None),
        (&["sleep", "-1"], None),
        (&["sleep", "nan"], None),
        (&["sleep", "1e300"], None),
        (&[], None),
    ] {
        let expected = expected.map(|(slept, rest)| (slept, rest.to_owned()));
        assert_eq!(sleep(command), expected, "{command:?}");
    }
    let spec = read_deployment(&deployment(|value| {
        let container = &mut value["spec"]["template"]["spec"]["containers"][0];
        // Longer than the grace period: Kubernetes does not look into commands.
        container["lifecycle"] = json!({ "preStop": { "exec": { "command": ["sleep", "60"] } } });
    }));
    assert_eq!(spec.template.pre_stop, Some(Duration::from_secs(60)));
}

#[test]
fn lists_keep_the_places_of_their_items() {
    let good = json!({ "apiVersion": "v1", "kind": "List", "items": [
        service(|_| {}),
        { "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": "c" } },
    ] });
    let manifests = Manifest::from_json(&good).expect("valid");
    assert_eq!(manifests[1].path.to_string(), "items[1]");
    assert_eq!(manifests[1].warnings[0].path.to_string(), "items[1].kind");
    let bad = json!({ "apiVersion": "v1", "kind": "List", "items": [
        service(|_| {}),
        service(|value| value["spec"]["port"] = json!(1)),
    ] });
    assert!(problems(&bad)[0].contains("items[1].spec.port"), "{:?}", problems(&bad));
}
