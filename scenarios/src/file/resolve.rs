//! A checked scenario to the [`Config`] of a run, and what must agree in it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use sim_core::config::{
    Action, Application, Arrivals, ClientSpec, ClusterConfig, Config, EventSpec, IntOrPercent,
    Ipv4Cidr, IpvsScheduler, KubeletConfig, Limits, LoadBalancer, Machine, ObjectName, OnSigterm,
    PodNetwork, ProxyConfig, ProxyMode, Selection, Strategy, TargetPort,
};
use sim_core::proxy::profile::Profile;

use super::diagnostic::{Diagnostic, Diagnostics, FileId, Span};
use super::fields::APPLICATION;
use super::law;
use super::objects::{Objects, replicas_span};
use super::propagation;
use super::raw::{self, Kind};
use super::tree::{Entry, Node, Value};
use crate::expect::{Expectation, Over};
use crate::units::{closest, parse_cidr, parse_duration, parse_rate};

/// Makes a run's configuration of a scenario that [`super::raw::check`] has accepted and filled.
/// Everything that is wrong goes to `diagnostics`; a configuration made in spite of errors is not
/// to be run.
pub(super) fn config(root: &Node, name: &str, diagnostics: &mut Diagnostics) -> Option<Config> {
    let objects = Objects::read(root.get("objects")?.items(), diagnostics);
    let cluster_node = root.get("cluster")?;
    let cluster = cluster(cluster_node, diagnostics)?;
    objects.check(cluster.service_cidr, diagnostics);
    let propagation = propagation::resolve(root, cluster.nodes, diagnostics);
    let kubelet = kubelet(root.get("kubelet")?, diagnostics);
    let applications = applications(root.get("applications")?, &objects, diagnostics);
    let clients = clients(root.get("clients")?, &objects, diagnostics);
    let events = events(root, &objects, cluster.nodes, diagnostics);
    check_capacity(cluster_node, &cluster, &objects, &clients, &events, diagnostics);
    check_end(root, &events, diagnostics);
    let proxy = proxy(root.get("proxy")?, diagnostics)?;
    if let ProxyMode::Article(_) = proxy.mode {
        objects.refuse_affinity(diagnostics);
    }
    let mut deployments = Vec::new();
    for (mut deployment, _) in objects.deployments {
        let written = applications.get(&deployment.name).cloned();
        deployment.template.application = written.or_else(default_application)?;
        deployments.push(deployment);
    }
    let limits = root.get("limits")?;
    Some(Config {
        scenario: name.to_owned(),
        cluster,
        proxy,
        propagation: propagation?,
        kubelet: kubelet?,
        services: objects.services.into_iter().map(|(spec, _)| spec).collect(),
        deployments,
        clients,
        events,
        duration: root.get("duration").and_then(as_duration),
        limits: Limits {
            events: whole(limits.get("events")?)?,
            events_at_one_instant: whole(limits.get("eventsAtOneInstant")?)?,
            simulated: as_duration(limits.get("simulated")?)?,
        },
        timeline_bin: timeline_bin(root.get("timelineBin")?, diagnostics)?,
    })
}

/// Reads the expectations of a checked scenario.
pub(super) fn expectations(root: &Node, diagnostics: &mut Diagnostics) -> Vec<Expectation> {
    let mut expectations = Vec::new();
    for node in root.get("expect").map_or(&[][..], Node::items) {
        let over = match node.get("over").and_then(Node::text) {
            Some("sweep") => Over::Sweep,
            _ => Over::Run,
        };
        let expression = node.get("expr").unwrap_or(node);
        match Expectation::parse(expression.text().unwrap_or_default(), over) {
            Ok(expectation) => expectations.push(expectation),
            Err(error) => diagnostics.push(
                Diagnostic::error("bad-expectation", expression.span, error.message)
                    .help(error.help),
            ),
        }
    }
    expectations
}

fn cluster(node: &Node, diagnostics: &mut Diagnostics) -> Option<ClusterConfig> {
    let duration = |name: &str| node.get(name).and_then(as_duration);
    let cidr = |name: &str| parse_cidr(node.get(name)?.text()?).ok();
    let nodes: u32 = whole(node.get("nodes")?)?;
    let config = ClusterConfig {
        nodes,
        pod_cidr: cidr("podCIDR")?,
        node_prefix_len: whole(node.get("nodeCIDRMaskSize")?)?,
        service_cidr: cidr("serviceCIDR")?,
        node_cidr: cidr("nodeCIDR")?,
        network: PodNetwork::FlannelHostGw,
        bridge_latency: duration("bridgeLatency")?,
        link_latency: duration("linkLatency")?,
        max_pods: whole(node.get("maxPods")?)?,
        node_labels: node_labels(node.get("nodeLabels")?, nodes, diagnostics),
    };
    check_ranges(node, &config, diagnostics);
    Some(config)
}

fn node_labels(
    node: &Node,
    nodes: u32,
    diagnostics: &mut Diagnostics,
) -> BTreeMap<u32, BTreeMap<String, String>> {
    let mut all = BTreeMap::new();
    for entry in node.entries() {
        let labels = entry.value.entries().iter();
        let labels =
            labels.filter_map(|label| Some((label.key.clone(), label.value.text()?.to_owned())));
        if let Some(index) = node_index(&entry.key, entry.key_span, nodes, diagnostics) {
            all.insert(index, labels.collect());
        }
    }
    all
}

/// Reads `node-7` as 7, if there is such a node.
pub(super) fn node_index(
    name: &str,
    span: Span,
    nodes: u32,
    diagnostics: &mut Diagnostics,
) -> Option<u32> {
    let index = name.strip_prefix("node-").and_then(|number| number.parse::<u32>().ok());
    match index {
        Some(index) if index < nodes && name == format!("node-{index}") => Some(index),
        _ => {
            let last = nodes.saturating_sub(1);
            diagnostics.push(
                Diagnostic::error("unknown-node", span, format!("there is no node {name:?}"))
                    .help(format!("nodes are named node-0 to node-{last}")),
            );
            None
        }
    }
}

fn check_ranges(node: &Node, config: &ClusterConfig, diagnostics: &mut Diagnostics) {
    let span = |name: &str| node.get(name).map_or(node.span, |value| value.span);
    let nodes = u64::from(config.nodes);
    let pod_bits = config.node_prefix_len.checked_sub(config.pod_cidr.prefix_len());
    match pod_bits {
        None => diagnostics.push(
            Diagnostic::error(
                "bad-range",
                span("nodeCIDRMaskSize"),
                format!(
                    "a node's /{} does not fit into podCIDR {}",
                    config.node_prefix_len, config.pod_cidr
                ),
            )
            .help("nodeCIDRMaskSize is at least the prefix length of podCIDR"),
        ),
        Some(bits) if bits < 32 && nodes > 1 << bits => diagnostics.push(
            Diagnostic::error(
                "bad-range",
                span("nodes"),
                format!(
                    "podCIDR {} has room for {} nodes of a /{} each, not for {nodes}",
                    config.pod_cidr,
                    1_u64 << bits,
                    config.node_prefix_len
                ),
            )
            .context(span("podCIDR"), "all Pods' addresses")
            .help("use a wider `podCIDR`, such as 10.128.0.0/9, or a longer `nodeCIDRMaskSize`"),
        ),
        Some(_) => {}
    }
    // Network, gateway and broadcast address are not for nodes.
    if nodes > config.node_cidr.size().saturating_sub(3) {
        diagnostics.push(
            Diagnostic::error(
                "bad-range",
                span("nodes"),
                format!("nodeCIDR {} has no room for {nodes} nodes", config.node_cidr),
            )
            .help("use a wider `nodeCIDR`, such as 172.16.0.0/12"),
        );
    }
    let ranges = [
        ("podCIDR", config.pod_cidr),
        ("serviceCIDR", config.service_cidr),
        ("nodeCIDR", config.node_cidr),
    ];
    for (i, (name, range)) in ranges.into_iter().enumerate() {
        for (other_name, other) in ranges.into_iter().take(i) {
            if range.contains(other.base()) || other.contains(range.base()) {
                diagnostics.push(
                    Diagnostic::error(
                        "bad-range",
                        span(name),
                        format!("{name} {range} overlaps {other_name} {other}"),
                    )
                    .help("the ranges of Pods, Services and nodes are disjoint"),
                );
            }
        }
    }
}

fn proxy(node: &Node, diagnostics: &mut Diagnostics) -> Option<ProxyConfig> {
    let mode = node.get("mode")?.text()?;
    let balancer = node.entry("loadBalancer");
    if let Some(entry) = balancer.filter(|_| mode != "central") {
        let message = format!("a load balancer belongs to mode central, not to {mode}");
        let help = "remove it, or use `mode: central`";
        diagnostics
            .push(Diagnostic::error("conflicting-fields", entry.key_span, message).help(help));
    }
    let balancer = balancer.map(|entry| &entry.value);
    let clock = node.get("clock")?;
    let logical = clock.text()? == "logical";
    if logical && mode != "article" {
        let message = format!("mode {mode} has no logical clock");
        let help = "remove it, or use `mode: article`";
        diagnostics.push(Diagnostic::error("conflicting-fields", clock.span, message).help(help));
    }
    let scheduler = node.entry("scheduler");
    if let Some(entry) = scheduler.filter(|_| mode != "ipvs") {
        let message = format!("a scheduler belongs to mode ipvs, not to {mode}");
        let help = "remove it, or use `mode: ipvs`";
        diagnostics
            .push(Diagnostic::error("conflicting-fields", entry.key_span, message).help(help));
    }
    let scheduler = scheduler.and_then(|entry| IpvsScheduler::named(entry.value.text()?));
    let selection = node.entry("selection");
    if let Some(entry) = selection.filter(|_| mode != "ebpf") {
        let message = format!("a selection belongs to mode ebpf, not to {mode}");
        let help = "remove it, or use `mode: ebpf`";
        diagnostics
            .push(Diagnostic::error("conflicting-fields", entry.key_span, message).help(help));
    }
    let selection = selection.map(|entry| &entry.value);
    Some(ProxyConfig {
        mode: match mode {
            "nftables" => ProxyMode::Nftables,
            "ipvs" => ProxyMode::Ipvs(scheduler.unwrap_or_default()),
            "userspace" => ProxyMode::Userspace,
            "article" => ProxyMode::Article(Duration::from_secs(u64::from(logical))),
            "ebpf" => ProxyMode::Ebpf(match selection.and_then(|node| node.text()) {
                Some("maglev") => Selection::Maglev,
                _ => Selection::Random,
            }),
            "central" => ProxyMode::Central(LoadBalancer {
                per_packet: balancer
                    .and_then(|node| {
                        node.get("capacity")?.text().and_then(|rate| parse_rate(rate).ok())
                    })
                    .filter(|per_s| *per_s > 0.0)
                    .map_or(Duration::ZERO, |per_s| Duration::from_secs_f64(1.0 / per_s)),
                queue: balancer.and_then(|node| whole(node.get("queue")?)).unwrap_or(1000),
            }),
            _ => ProxyMode::Iptables,
        },
        profile: Profile::parse(node.get("profile")?.text()?)?.minor(),
        masquerade_bit: whole(node.get("masqueradeBit")?)?,
        masquerade_all: node.get("masqueradeAll")?.bool()?,
    })
}

fn kubelet(node: &Node, diagnostics: &mut Diagnostics) -> Option<KubeletConfig> {
    let mut law = |name: &str| law::resolve(node.get(name)?, diagnostics);
    let (notice, start, teardown) = (law("notice"), law("start"), law("teardown"));
    Some(KubeletConfig { notice: notice?, start: start?, teardown: teardown? })
}

fn applications(
    list: &Node,
    objects: &Objects,
    diagnostics: &mut Diagnostics,
) -> BTreeMap<ObjectName, Application> {
    let mut applications = BTreeMap::new();
    for node in list.items() {
        let Some(name_node) = node.get("deployment") else {
            continue;
        };
        let name = deployment(name_node, objects, diagnostics);
        let application = application(node, diagnostics);
        if let Some((name, application)) = name.zip(application)
            && applications.insert(name.clone(), application).is_some()
        {
            diagnostics.push(
                Diagnostic::error(
                    "duplicate-object",
                    name_node.span,
                    format!("the application of Deployment {name} is described twice"),
                )
                .help("keep one of them"),
            );
        }
    }
    applications
}

fn application(node: &Node, diagnostics: &mut Diagnostics) -> Option<Application> {
    let mut law = |name: &str| law::resolve(node.get(name)?, diagnostics);
    let (startup, service_time) = (law("startup"), law("serviceTime"));
    Some(Application {
        on_sigterm: match node.get("onSigterm")?.text()? {
            "drain" => OnSigterm::Drain,
            "ignore" => OnSigterm::Ignore,
            _ => OnSigterm::Close,
        },
        startup: startup?,
        service_time: service_time?,
    })
}

/// Returns the application of a Deployment that is not listed: every default.
fn default_application() -> Option<Application> {
    let span = Span::new(FileId::FIRST, 0, 0);
    let name = Entry {
        key: "deployment".to_owned(),
        key_span: span,
        value: Node { value: Value::Text(String::new()), span },
    };
    let written = Node { value: Value::Map(vec![name]), span };
    let mut diagnostics = Diagnostics::default();
    let node = raw::check(&written, Kind::Table(&APPLICATION), &mut diagnostics)?;
    application(&node, &mut diagnostics)
}

fn clients(list: &Node, objects: &Objects, diagnostics: &mut Diagnostics) -> Vec<ClientSpec> {
    let mut names = BTreeSet::new();
    let mut clients = Vec::new();
    for node in list.items() {
        let name = node.get("name").and_then(Node::text).unwrap_or_default();
        let name_at = node.get("name").map_or(node.span, |name| name.span);
        let well_formed = !name.is_empty()
            && name.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c));
        if !well_formed {
            let message = format!("{name:?} is not a name for a group of clients");
            let help = "use letters, digits, `-`, `_` and `.`";
            diagnostics.push(Diagnostic::error("bad-name", name_at, message).help(help));
        } else if !names.insert(name) {
            let message = format!("two groups of clients are called {name:?}");
            let help = "names are unique: random numbers and results are kept by them";
            diagnostics.push(Diagnostic::error("bad-name", name_at, message).help(help));
        }
        clients.extend(client(node, name, objects, diagnostics));
    }
    clients
}

fn client(
    node: &Node,
    name: &str,
    objects: &Objects,
    diagnostics: &mut Diagnostics,
) -> Option<ClientSpec> {
    let service_node = node.get("service")?;
    let service = object_name(service_node, diagnostics)?;
    let port = client_port(node, service_node, &service, objects, diagnostics);
    let timeout = node.get("timeout")?;
    if as_duration(timeout) == Some(Duration::ZERO) {
        diagnostics.push(
            Diagnostic::error("out-of-range", timeout.span, "a timeout of 0")
                .help("every attempt would time out at once: use a duration above 0"),
        );
    }
    Some(ClientSpec {
        name: name.to_owned(),
        service,
        port: port?,
        rate_per_s: parse_rate(node.get("rate")?.text()?).ok()?,
        arrivals: match node.get("arrivals")?.text()? {
            "constant" => Arrivals::Constant,
            _ => Arrivals::Poisson,
        },
        timeout: as_duration(timeout)?,
        retries: whole(node.get("retries")?)?,
        retry_backoff: as_duration(node.get("retryBackoff")?)?,
    })
}

fn client_port(
    node: &Node,
    service_node: &Node,
    name: &ObjectName,
    objects: &Objects,
    diagnostics: &mut Diagnostics,
) -> Option<u16> {
    let Some(service) = objects.service(name) else {
        if !objects.broken {
            let known = objects.services.iter().map(|(spec, _)| spec.name.to_string());
            let ignored = objects.ignored.iter();
            let mut ignored = ignored.filter(|(kind, other)| kind == "Service" && other == name);
            let help = match ignored.next() {
                Some(_) => {
                    "this Service has no ClusterIP that is modelled; see the warning".to_owned()
                }
                None => help_known("Service", name, known.collect()),
            };
            diagnostics.push(
                Diagnostic::error(
                    "unknown-service",
                    service_node.span,
                    format!("no Service {name}"),
                )
                .help(help),
            );
        }
        return None;
    };
    let list = || {
        let ports = service.ports.iter();
        let ports = ports.map(|port| match &port.name {
            Some(name) => format!("{} ({name})", port.port),
            None => port.port.to_string(),
        });
        ports.collect::<Vec<_>>().join(", ")
    };
    let Some(port) = node.get("port") else {
        return match &service.ports[..] {
            [port] => Some(port.port),
            _ => {
                let message = format!("which port of {name}?");
                let help = format!("add `port:`; there are {}", list());
                diagnostics.push(
                    Diagnostic::error("missing-field", service_node.span, message).help(help),
                );
                None
            }
        };
    };
    let found = service.ports.iter().find(|candidate| match port.int() {
        Some(number) => i64::from(candidate.port) == number,
        None => candidate.name.as_deref() == port.text(),
    });
    if found.is_none() {
        let message = format!("Service {name} has no such port");
        let number = port.int();
        let target = service.ports.iter().any(|candidate| match &candidate.target {
            TargetPort::Number(target) => Some(i64::from(*target)) == number,
            TargetPort::Name(target) => objects.deployments.iter().any(|(deployment, _)| {
                let target = deployment.template.ports.get(target);
                target.is_some() && target.copied().map(i64::from) == number
            }),
        });
        let help = if target {
            format!("this is the Pods' port; the Service's is {}", list())
        } else {
            format!("it has {}", list())
        };
        diagnostics.push(Diagnostic::error("unknown-port", port.span, message).help(help));
    }
    found.map(|port| port.port)
}

fn events(
    root: &Node,
    objects: &Objects,
    count: u32,
    diagnostics: &mut Diagnostics,
) -> Vec<EventSpec> {
    let mut events = Vec::new();
    for node in root.get("events").map_or(&[][..], Node::items) {
        let kinds = ["rollout", "deletePod", "scale", "fail", "restartProxy", "flushRules"];
        let Some(entry) = kinds.into_iter().find_map(|kind| node.entry(kind)) else {
            continue;
        };
        let fields = [
            ("count", "deletePod"),
            ("replicas", "scale"),
            ("for", "fail"),
            ("takes", "restartProxy"),
        ];
        for (field, kind) in fields {
            if let Some(misplaced) = node.entry(field).filter(|_| entry.key != kind) {
                let message = format!("`{field}` belongs to `{kind}`, not to `{}`", entry.key);
                let help = format!("remove it, or use `{kind}:`");
                diagnostics.push(
                    Diagnostic::error("conflicting-fields", misplaced.key_span, message).help(help),
                );
            }
        }
        let at = node.get("at").and_then(as_duration);
        if entry.key == "fail" {
            let lasting = node.get("for").and_then(as_duration);
            let machine = machine(root, &entry.value, diagnostics);
            let action = machine.map(|machine| Action::Fail { machine, lasting });
            events.extend(at.zip(action).map(|(at, action)| EventSpec { at, action }));
            continue;
        }
        if matches!(entry.key.as_str(), "restartProxy" | "flushRules") {
            let action = propagation::event(root, node, entry, count, diagnostics);
            events.extend(at.zip(action).map(|(at, action)| EventSpec { at, action }));
            continue;
        }
        let Some(deployment) = deployment(&entry.value, objects, diagnostics) else {
            continue;
        };
        let action = match entry.key.as_str() {
            "rollout" => Action::Rollout { deployment },
            "deletePod" => Action::DeletePod {
                deployment,
                count: node.get("count").and_then(whole).unwrap_or(1),
            },
            _ => {
                let Some(replicas) = node.get("replicas").and_then(whole) else {
                    let message = "this event does not say how many replicas";
                    let help = "add `replicas:`, the new size";
                    diagnostics.push(
                        Diagnostic::error("missing-field", entry.key_span, message).help(help),
                    );
                    continue;
                };
                Action::Scale { deployment, replicas }
            }
        };
        events.extend(at.map(|at| EventSpec { at, action }));
    }
    events.sort_by_key(|event| event.at); // stable: as written at one time
    events
}

/// Reads the name of a machine.
fn machine(root: &Node, node: &Node, diagnostics: &mut Diagnostics) -> Option<Machine> {
    let nodes: u32 = root.get("cluster")?.get("nodes").and_then(whole)?;
    let name = node.text()?;
    if name != "load-balancer" {
        return node_index(name, node.span, nodes, diagnostics).map(Machine::Node);
    }
    let mode = root.get("proxy")?.get("mode")?.text()?;
    if mode != "central" {
        let message = format!("proxy mode {mode} has no load balancer");
        let help = "name a node, as in `fail: node-0`, or use `proxy: { mode: central }`";
        diagnostics.push(Diagnostic::error("no-load-balancer", node.span, message).help(help));
        return None;
    }
    Some(Machine::LoadBalancer)
}

/// Reads a Deployment's name and looks it up.
fn deployment(node: &Node, objects: &Objects, diagnostics: &mut Diagnostics) -> Option<ObjectName> {
    let name = object_name(node, diagnostics)?;
    if objects.has_deployment(&name) {
        return Some(name);
    }
    if !objects.broken {
        let known = objects.deployments.iter().map(|(spec, _)| spec.name.to_string());
        diagnostics.push(
            Diagnostic::error("unknown-deployment", node.span, format!("no Deployment {name}"))
                .help(help_known("Deployment", &name, known.collect())),
        );
    }
    None
}

fn help_known(kind: &str, name: &ObjectName, known: Vec<String>) -> String {
    let wanted = name.to_string();
    if let Some(close) = closest(&wanted, known.iter().map(String::as_str)) {
        return format!("did you mean {close}?");
    }
    match known.len() {
        0 => format!("`objects:` holds no {kind}"),
        1..=8 => format!("`objects:` holds {}", known.join(", ")),
        count => format!("`objects:` holds {count} others"),
    }
}

/// Reads `namespace/name`, or a name in the default namespace.
fn object_name(node: &Node, diagnostics: &mut Diagnostics) -> Option<ObjectName> {
    let text = node.text()?;
    let (namespace, name) = text.split_once('/').unwrap_or(("default", text));
    if namespace.is_empty() || name.is_empty() || name.contains('/') {
        diagnostics.push(
            Diagnostic::error("bad-name", node.span, format!("{text:?} is not an object's name"))
                .help("write `namespace/name`, as in `default/nginx`"),
        );
        return None;
    }
    Some(ObjectName { namespace: namespace.to_owned(), name: name.to_owned() })
}

/// Checks that all Pods fit: those of the Deployments with their surge, and a client Pod per node
/// and group.
fn check_capacity(
    node: &Node,
    cluster: &ClusterConfig,
    objects: &Objects,
    clients: &[ClientSpec],
    events: &[EventSpec],
    diagnostics: &mut Diagnostics,
) {
    let addresses = pod_addresses(cluster.node_prefix_len);
    let per_node = addresses.min(cluster.max_pods.into());
    let room = u64::from(cluster.nodes) * per_node;
    let client_pods = u64::from(cluster.nodes) * clients.len() as u64;
    let mut pods = 0;
    let mut largest: Option<(u64, Span)> = None;
    for (deployment, at) in &objects.deployments {
        let scaled = events.iter().filter_map(|event| match &event.action {
            Action::Scale { deployment: name, replicas } if *name == deployment.name => {
                Some(*replicas)
            }
            _ => None,
        });
        let most = scaled.chain([deployment.replicas]).max().unwrap_or(0);
        let needed = u64::from(most) + surge(&deployment.strategy, most);
        pods += needed;
        if largest.is_none_or(|(size, _)| needed > size) {
            largest = Some((needed, replicas_span(at)));
        }
    }
    let Some((_, span)) = largest.filter(|_| pods + client_pods > room) else {
        return;
    };
    let limit = if addresses < u64::from(cluster.max_pods) {
        format!("addresses of a node's /{}", cluster.node_prefix_len)
    } else {
        "maxPods".to_owned()
    };
    let nodes_at = node.get("nodes").map_or(node.span, |nodes| nodes.span);
    diagnostics.push(
        Diagnostic::error(
            "no-capacity",
            span,
            format!("{} nodes have room for {room} Pods, and {} are needed", cluster.nodes, pods + client_pods),
        )
        .context(nodes_at, format!("{per_node} Pods fit a node: {limit}"))
        .note(format!(
            "{pods} Pods of Deployments (maxSurge included), {client_pods} of clients (one per node and group)"
        ))
        .help("use more nodes, a larger `maxPods` or a smaller `nodeCIDRMaskSize`, or fewer replicas"),
    );
}

/// Returns how many Pods get an address of a node's range: network, bridge and broadcast do not.
fn pod_addresses(prefix_len: u8) -> u64 {
    let range = Ipv4Cidr::new(std::net::Ipv4Addr::UNSPECIFIED, prefix_len);
    range.map_or(0, |range| range.size().saturating_sub(3))
}

fn surge(strategy: &Strategy, replicas: u32) -> u64 {
    match strategy {
        Strategy::Recreate => 0,
        Strategy::RollingUpdate { max_surge: IntOrPercent::Int(pods), .. } => (*pods).into(),
        Strategy::RollingUpdate { max_surge: IntOrPercent::Percent(percent), .. } => {
            (u64::from(replicas) * u64::from(*percent)).div_ceil(100)
        }
    }
}

/// Checks that a run can end, and that nothing is planned for after its end.
fn check_end(root: &Node, events: &[EventSpec], diagnostics: &mut Diagnostics) {
    let Some(duration) = root.get("duration") else {
        if events.is_empty()
            && !diagnostics.has_errors()
            && !root.get("clients").is_none_or(|c| c.items().is_empty())
        {
            let span = root.entry("clients").map_or(root.span, |entry| entry.key_span);
            diagnostics.push(
                Diagnostic::error("nothing-happens", span, "nothing happens in this scenario")
                    .help("add `events:`, or a `duration:`"),
            );
        }
        return;
    };
    let end = as_duration(duration).unwrap_or_default();
    for node in root.get("events").map_or(&[][..], Node::items) {
        let Some(at) = node.get("at") else { continue };
        if as_duration(at).is_some_and(|at| at >= end) {
            diagnostics.push(
                Diagnostic::warning("never-happens", at.span, "this is after the end of the run")
                    .context(duration.span, "the run ends here")
                    .help("raise `duration`, or leave it out to run until everything has ended"),
            );
        }
    }
}

fn timeline_bin(node: &Node, diagnostics: &mut Diagnostics) -> Option<Duration> {
    let bin = as_duration(node)?;
    if bin.is_zero() {
        diagnostics.push(
            Diagnostic::error("out-of-range", node.span, "bins without width")
                .help("use a duration above 0; 100ms is the default"),
        );
    }
    Some(bin)
}

pub(super) fn as_duration(node: &Node) -> Option<Duration> {
    parse_duration(node.text()?).ok()
}

pub(super) fn whole<N: TryFrom<i64>>(node: &Node) -> Option<N> {
    N::try_from(node.int()?).ok()
}
