use super::*;
use crate::config::ObjectName;
use crate::kube::object;
use netfilter_model::tuple::Protocol;

const HERE: &str = "here";

fn locality(profile: Profile) -> Locality<'static> {
    Locality { node: HERE, zone: Some("a"), profile }
}

fn name() -> ServicePortName {
    let service = ObjectName { namespace: "shop".into(), name: "web".into() };
    ServicePortName::new(&service, Some("http"), Protocol::TCP)
}

fn port(internal_local: bool, external_local: bool) -> ServicePort {
    ServicePort {
        name: name(),
        cluster_ip: "10.96.0.1".parse().unwrap(),
        port: 80,
        node_port: external_local.then_some(30080),
        external_ips: Vec::new(),
        load_balancer_vips: Vec::new(),
        load_balancer_source_ranges: Vec::new(),
        affinity: None,
        health_check_node_port: None,
        internal_local,
        external_local,
        hints_annotated: true,
    }
}

/// Reads endpoints: a letter each for `r`eady, `t`erminating and serving, `g`one (terminating and
/// not serving), `u`nready; `@` makes it local; then zone hints, or node hints behind `n`.
fn endpoints(text: &str) -> Vec<Endpoint> {
    let shared = |text: &str| -> Arc<[Arc<str>]> {
        text.chars().map(|c| if c == 'h' { HERE.into() } else { c.to_string().into() }).collect()
    };
    let read = |(item, word): (u32, &str)| {
        let (state, hints) = word.split_at(1);
        let (local, hints) = match hints.strip_prefix('@') {
            Some(hints) => (true, hints),
            None => (false, hints),
        };
        let (zones, nodes) = hints.split_once('n').unwrap_or((hints, ""));
        Endpoint {
            addr: IpAddr::from([10, 0, 0, item as u8]),
            port: 8080,
            text: format!("10.0.0.{item}:8080").into(),
            ready: state == "r",
            serving: matches!(state, "r" | "t"),
            terminating: matches!(state, "t" | "g"),
            local,
            zone_hints: shared(zones),
            node_hints: shared(nodes),
            item,
        }
    };
    (0..).zip(text.split_whitespace()).map(read).collect()
}

#[track_caller]
fn check(list: &str, port: &ServicePort, profile: Profile, expected: &str) {
    let endpoints = endpoints(list);
    let chosen = categorize(&endpoints, port, locality(profile));
    let items = |list: &[&Endpoint]| {
        let items = list.iter().map(|endpoint| endpoint.item.to_string());
        items.collect::<String>()
    };
    let Categorized { cluster, local, reachable, any } = &chosen;
    let got = format!("{}/{}/{} {any}", items(cluster), items(local), items(reachable));
    assert_eq!(got, expected, "{list}");
}

#[test]
fn endpoints_of_both_policies() {
    let v30 = Profile::V1_30;
    let both = port(false, true);
    let inside = port(true, false);
    let plain = port(false, false);
    for (list, port, expected) in [
        ("", &plain, "// false"),
        ("u g", &plain, "// false"),
        ("r t u g", &plain, "0//0 true"),
        ("t t u", &plain, "01//01 true"),
        ("r@ r", &plain, "01//01 true"),
        // Local traffic only: reachable is local, others count for the verdict alone.
        ("r@ r", &inside, "/0/0 true"),
        ("r t@", &inside, "/1/1 true"),
        ("r g@", &inside, "// true"),
        ("t", &inside, "// true"),
        ("g@ u@", &inside, "// false"),
        // Both: a terminating endpoint of this node is reached beside the ready ones.
        ("r@ r", &both, "01/0/01 true"),
        ("r r", &both, "01//01 true"),
        ("t@ r", &both, "1/0/01 true"),
        ("t@ t", &both, "01/0/01 true"),
        ("g@ t", &both, "1//1 true"),
        ("u@", &both, "// false"),
    ] {
        check(list, port, v30, expected);
    }
}

#[test]
fn hints_of_zones() {
    let plain = port(false, false);
    let unannotated = ServicePort { hints_annotated: false, ..plain.clone() };
    for (list, expected) in [
        ("ra rb", "0//0 true"),
        ("rab rb", "0//0 true"),
        ("rb rb", "01//01 true"),
        ("ra r", "01//01 true"),
        // Hints of endpoints that are not ready say nothing.
        ("ta rb", "1//1 true"),
        ("ra u", "0//0 true"),
        ("ta tb", "01//01 true"),
    ] {
        for profile in [Profile::V1_30, Profile::CURRENT] {
            check(list, &plain, profile, expected);
        }
        check(list, &unannotated, Profile::CURRENT, expected);
    }
    check("ra rb", &unannotated, Profile::V1_30, "01//01 true");
    // Local traffic ignores hints, so both lists are reached.
    check("r@b ra", &port(false, true), Profile::V1_30, "1/0/01 true");
}

#[test]
fn hints_of_nodes_come_before_those_of_zones() {
    let plain = port(false, false);
    for (list, now, before) in [
        ("rah rah", "01//01 true", "01//01 true"),
        ("ranh ranx rbnx", "0//0 true", "01//01 true"),
        ("ranx rbnx", "0//0 true", "0//0 true"),
        ("ranh ra", "01//01 true", "01//01 true"),
    ] {
        check(list, &plain, Profile::CURRENT, now);
        check(list, &plain, Profile::V1_30, before);
    }
}

fn slice(name: &str, ports: &[(&str, u16)], endpoints: &[(&str, &str, bool)]) -> EndpointSlice {
    let port = |&(name, port): &(&str, u16)| object::EndpointPort {
        name: name.into(),
        protocol: Protocol::TCP,
        port: (port != 0).then_some(port),
    };
    let endpoint = |&(address, node, terminating): &(&str, &str, bool)| object::Endpoint {
        address: address.parse().unwrap(),
        text: address.into(),
        ready: !terminating,
        serving: true,
        terminating,
        node: Some(node.into()),
        zone: None,
        zone_hints: [].into(),
        node_hints: [].into(),
        pod: None,
    };
    EndpointSlice {
        name: ObjectName { namespace: "shop".into(), name: name.into() },
        service: Some("web".into()),
        address_type: AddressType::Ip(Family::V4),
        ports: ports.iter().map(port).collect(),
        endpoints: endpoints.iter().map(endpoint).collect(),
    }
}

#[test]
fn slices_are_joined_in_the_order_of_their_texts() {
    let slices = [
        slice("one", &[("http", 80), ("other", 9)], &[("10.0.0.10", HERE, false)]),
        slice("two", &[("http", 0)], &[("10.0.0.3", HERE, false)]),
        slice(
            "three",
            &[("http", 80)],
            &[("10.0.0.100", "x", false), ("10.0.0.1", "x", false), ("10.0.0.2", HERE, false)],
        ),
    ];
    let found = Endpoint::of(&slices, &name(), Family::V4, locality(Profile::V1_30));
    let texts: Vec<&str> = found.iter().map(|endpoint| &*endpoint.text).collect();
    assert_eq!(texts, ["10.0.0.100:80", "10.0.0.10:80", "10.0.0.1:80", "10.0.0.2:80"]);
    let local: Vec<bool> = found.iter().map(|endpoint| endpoint.local).collect();
    assert_eq!(local, [false, true, false, true]);
    assert!(Endpoint::of(&slices, &name(), Family::V6, locality(Profile::V1_30)).is_empty());
}

#[test]
fn of_two_endpoints_with_one_address_one_counts() {
    let slices = [
        slice("one", &[("http", 80)], &[("10.0.0.1", "x", false)]),
        slice("two", &[("http", 80)], &[("10.0.0.1", HERE, true)]),
        slice("three", &[("http", 80)], &[("10.0.0.1", "y", true)]),
    ];
    let found = |profile| Endpoint::of(&slices, &name(), Family::V4, locality(profile));
    let [old] = &found(Profile::V1_30)[..] else { panic!("one") };
    assert!(old.local && old.terminating);
    let [new] = &found(Profile::CURRENT)[..] else { panic!("one") };
    assert!(!new.local && new.ready);
}
