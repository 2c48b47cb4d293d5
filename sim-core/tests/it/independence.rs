//! What has nothing to do with a client changes none of its outcomes.

use std::time::Duration;

use sim_core::config::*;
use sim_core::record::Loss;

use crate::support::{Records, cluster, ms, rollout, run};

fn base() -> Config {
    let mut config = cluster(20, 5, Law::Exponential { mean: ms(400) });
    config.kubelet.start = Law::Uniform { min: ms(500), max: ms(2000) };
    rollout(&mut config);
    config
}

/// Returns what became of the requests of client `front`, Pod addresses aside.
fn outcomes(records: &Records) -> Vec<Loss> {
    let front = records.losses.iter().filter(|loss| &*loss.client == "front");
    // The endpoint's chain is named after its address.
    front.map(|loss| Loss { window: None, ..loss.clone() }).collect()
}

#[track_caller]
fn check(changed: &Config) {
    let (before, after) = (run(&base(), 1, 0), run(changed, 1, 0));
    assert!(before.losses.len() > 100, "the test needs losses, not {}", before.losses.len());
    assert_eq!(outcomes(&before), outcomes(&after));
}

#[test]
fn an_unrelated_service_changes_nothing() {
    let mut config = base();
    let mut service = config.services[0].clone();
    service.name.name = "other".into();
    service.selector = [("app".to_owned(), "other".to_owned())].into();
    config.services.insert(0, service);
    check(&config);
}

#[test]
fn an_unrelated_deployment_that_moves_no_address_changes_nothing() {
    let mut config = base();
    let mut deployment = config.deployments[0].clone();
    deployment.name.name = "other".into();
    deployment.template.labels = [("app".to_owned(), "other".to_owned())].into();
    config.deployments.push(deployment);
    check(&config);
}

#[test]
fn a_node_label_changes_nothing() {
    let mut config = base();
    let labels = [("zone".to_owned(), "a".to_owned())].into();
    config.cluster.node_labels.insert(3, labels);
    check(&config);
}

#[test]
fn an_unrelated_client_changes_nothing() {
    let mut config = base();
    let mut client = config.clients[0].clone();
    client.name = "batch".into();
    client.arrivals = Arrivals::Constant;
    client.timeout = Duration::from_millis(200);
    config.clients.insert(0, client);
    check(&config);
}
