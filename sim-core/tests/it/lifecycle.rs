//! A Pod's end, step by step, and what clients see of it.

use sim_core::config::*;
use sim_core::record::{Cause, Ended, OpenedBy, Symptom};

use crate::support::{Records, cluster, ms, rollout, run, secs, shop};

fn one_deletion(law: Law) -> Config {
    cluster(5, 3, law)
}

fn causes(records: &Records) -> Vec<(Cause, u64)> {
    let mut lost = records.run().inside.lost;
    lost.merge(&records.run().outside.lost);
    let counts = Cause::ALL.into_iter().map(|cause| (cause, lost.get(cause)));
    counts.filter(|(_, count)| *count > 0).collect()
}

#[test]
fn a_window_has_the_times_of_the_pods_end() {
    let mut config = one_deletion(Law::Constant(ms(1500)));
    config.kubelet.notice = Law::Constant(ms(100));
    config.deployments[0].template.pre_stop = Some(ms(1000));
    let records = run(&config, 1, 0);
    let [window] = records.windows.as_slice() else { panic!("{:?}", records.windows) };
    let since_opened = |time: Option<sim_core::time::SimTime>| time.unwrap() - window.opened;
    assert_eq!(window.opened_by, OpenedBy::Delete);
    assert_eq!(window.opened.as_nanos(), 500_000_000);
    assert_eq!(since_opened(window.endpoints_changed), ms(0));
    assert_eq!(since_opened(window.stopped_accepting), ms(1100));
    assert_eq!(since_opened(window.ip_released), ms(1600));
    assert_eq!(since_opened(window.first_node), ms(1500));
    assert_eq!(since_opened(window.last_node), ms(1500));
    assert!(since_opened(window.closed) >= ms(1500));
    assert_eq!(window.stale_max_s, Some(0.4));
    assert!(window.attempts_to_pod < window.attempts);
    assert_eq!(records.run().ended, Ended::Complete);
}

/// A ReplicaSet counts no Pod that is terminating, so its replacement is made at once, long before
/// its address is free.
#[test]
fn a_replacement_does_not_wait_for_the_end_of_the_pod_before_it() {
    let mut config = one_deletion(Law::Constant(ms(50)));
    config.kubelet.start = Law::Constant(ms(1000));
    config.deployments[0].template.pre_stop = Some(secs(20.0));
    config.deployments[0].template.readiness = None;
    rollout(&mut config);
    let records = run(&config, 1, 0);
    let opened: Vec<_> = records.windows.iter().map(|window| window.opened).collect();
    assert_eq!(opened.len(), 3);
    for pair in opened.windows(2) {
        assert!(pair[1] - pair[0] < ms(2000), "{opened:?}");
    }
}

#[test]
fn a_closed_port_refuses_and_a_released_address_times_out() {
    let records = run(&one_deletion(Law::Constant(ms(2000))), 1, 0);
    let [window] = records.windows.as_slice() else { panic!("one window") };
    let released = window.ip_released.unwrap();
    let mut seen = Vec::new();
    for loss in &records.losses {
        let expected = match (loss.sent < released, loss.symptom) {
            // The path is shorter than this: the SYN reached the Pod, or its empty address.
            (true, _) if released - loss.sent < ms(1) => continue,
            (true, _) => (Cause::Refused, Symptom::Refused),
            // A node that has been asking for the address for a while gives up within a second.
            (false, Symptom::HostUnreachable) => (Cause::Unreachable, Symptom::HostUnreachable),
            (false, _) => (Cause::Blackholed, Symptom::Timeout),
        };
        if loss.cause != Cause::Reset {
            assert_eq!((loss.cause, loss.symptom), expected, "{loss:?}");
            seen.push(loss.cause);
        }
    }
    assert!(seen.contains(&Cause::Refused) && seen.contains(&Cause::Blackholed));
}

#[test]
fn a_patient_client_hears_that_the_host_is_unreachable() {
    let mut config = one_deletion(Law::Constant(secs(4.0)));
    config.clients[0].timeout = secs(5.0);
    config.clients[0].rate_per_s = 5.0;
    let records = run(&config, 1, 0);
    let released = records.windows[0].ip_released.unwrap();
    let late = records.losses.iter().filter(|loss| loss.sent > released);
    let first = late.clone().min_by_key(|loss| loss.sent);
    let first = first.expect("some attempt goes to the released address");
    assert_eq!((first.cause, first.symptom), (Cause::Unreachable, Symptom::HostUnreachable));
    // The node asks three times, a second apart; a later packet joins the wait and its end.
    assert!((first.ended - first.sent).abs_diff(secs(3.0)) < ms(1), "{first:?}");
    for loss in late {
        assert_eq!(loss.symptom, Symptom::HostUnreachable, "{loss:?}");
        assert!(loss.ended - loss.sent <= secs(3.001), "{loss:?}");
    }
}

#[test]
fn a_drained_pod_finishes_what_it_has() {
    let mut config = one_deletion(Law::Constant(ms(0)));
    config.deployments[0].template.application.service_time = Law::Constant(ms(300));
    let closed = run(&config, 1, 0);
    assert_eq!(causes(&closed).first().map(|cause| cause.0), Some(Cause::Reset));
    config.deployments[0].template.application.on_sigterm = OnSigterm::Drain;
    let drained = run(&config, 1, 0);
    assert!(drained.lost() <= 1, "{:?}", causes(&drained));
    let window = &drained.windows[0];
    let drain = window.ip_released.unwrap() - window.opened - ms(500);
    assert!(drain > ms(250) && drain < ms(301), "{drain:?}");
}

#[test]
fn a_pod_that_does_not_drain_in_time_is_killed() {
    let mut config = one_deletion(Law::Constant(ms(0)));
    let template = &mut config.deployments[0].template;
    template.application.on_sigterm = OnSigterm::Drain;
    template.application.service_time = Law::Constant(secs(60.0));
    template.grace = secs(10.0);
    config.clients[0].timeout = secs(100.0);
    config.clients[0].rate_per_s = 10.0;
    let records = run(&config, 1, 0);
    let window = &records.windows[0];
    assert_eq!(window.ip_released.unwrap() - window.opened, secs(10.5));
    assert!(causes(&records).iter().all(|(cause, _)| *cause == Cause::Reset));
}

#[test]
fn a_pre_stop_longer_than_the_grace_period_is_cut_off() {
    let mut config = one_deletion(Law::Constant(ms(0)));
    let template = &mut config.deployments[0].template;
    template.pre_stop = Some(secs(20.0));
    template.grace = secs(5.0);
    let window = &run(&config, 1, 0).windows[0];
    assert_eq!(window.stopped_accepting.unwrap() - window.opened, secs(5.0));
}

#[test]
fn a_service_without_endpoints_rejects() {
    let mut config = one_deletion(Law::Constant(ms(100)));
    let scale = |at, replicas| EventSpec {
        at: ms(at),
        action: Action::Scale { deployment: shop(), replicas },
    };
    config.events = vec![scale(500, 0), scale(3000, 3)];
    let records = run(&config, 1, 0);
    assert_eq!(records.windows.len(), 3);
    let empty = 600_000_000..3_000_000_000;
    let late = records.losses.iter().filter(|loss| empty.contains(&loss.sent.as_nanos()));
    let told = |symptom| late.clone().filter(|loss| loss.symptom == symptom).count();
    for loss in late.clone() {
        assert_eq!((loss.cause, loss.window), (Cause::Rejected, None), "{loss:?}");
        assert!(loss.symptom == Symptom::Timeout || loss.ended - loss.sent < ms(1), "{loss:?}");
    }
    // Each of 5 clients is told six times at once and then once a second; the other attempts hear
    // nothing. The kernel limits ICMP errors so.
    let refused = told(Symptom::Refused);
    assert!((5 * 6..=5 * 10).contains(&refused), "{refused}");
    assert!(told(Symptom::Timeout) > 2000);
}

#[test]
fn terminating_pods_serve_on_while_there_are_no_others() {
    let mut config = one_deletion(Law::Constant(ms(100)));
    config.deployments[0].template.pre_stop = Some(secs(1.0));
    config.events =
        vec![EventSpec { at: ms(500), action: Action::Scale { deployment: shop(), replicas: 0 } }];
    config.duration = Some(secs(1.5));
    assert_eq!(causes(&run(&config, 1, 0)), []);
}

#[test]
fn recreate_leaves_a_gap_that_rejects() {
    let mut config = one_deletion(Law::Constant(ms(100)));
    config.deployments[0].strategy = Strategy::Recreate;
    rollout(&mut config);
    let records = run(&config, 1, 0);
    assert_eq!(records.windows.len(), 3);
    assert!(records.losses.iter().any(|loss| loss.cause == Cause::Rejected));
}

#[test]
fn retries_save_requests_and_attempts_are_counted_apart() {
    let mut config = one_deletion(Law::Constant(ms(1000)));
    let alone = run(&config, 1, 0);
    config.clients[0].retries = 3;
    let retried = run(&config, 1, 0);
    assert_eq!(alone.run().requests_lost, alone.lost());
    assert!(retried.run().requests_lost < alone.run().requests_lost / 10);
    let attempts = retried.run().inside.attempts + retried.run().outside.attempts;
    assert_eq!(attempts - retried.run().requests, retried.lost() - retried.run().requests_lost);
    assert!(retried.losses.iter().any(|loss| loss.attempt == 1));
    let stale = |records: &Records| records.run().lost_first_stale;
    assert_eq!(stale(&alone), stale(&retried), "first attempts are the same");
}

#[test]
fn a_scaled_down_deployment_opens_a_window_for_each_pod() {
    let mut config = cluster(5, 5, Law::Constant(ms(300)));
    config.events =
        vec![EventSpec { at: ms(500), action: Action::Scale { deployment: shop(), replicas: 2 } }];
    let records = run(&config, 1, 0);
    assert_eq!(records.windows.len(), 3);
    assert!(records.windows.iter().all(|window| window.opened_by == OpenedBy::Scale));
    // All three are gone in one change.
    assert!(records.live.iter().all(|live| live.change == 1));
}

#[test]
fn probes_decide_when_a_pod_counts() {
    let mut config = one_deletion(Law::Constant(ms(0)));
    config.deployments[0].template.readiness = Some(Probe {
        initial_delay: ms(2000),
        period: ms(1000),
        success_threshold: 2,
        failure_threshold: 3,
    });
    config.deployments[0].template.application.startup = Law::Constant(ms(2500));
    let records = run(&config, 1, 0);
    // Deleted at 0.5 s; the new container runs at 0.6 s and listens at 3.1 s; probes are at 2.6 s
    // (too early), 3.6 s and 4.6 s.
    let added = records.live.iter().find(|live| live.change == 2).expect("a second change");
    assert_eq!(added.endpoints_changed.as_nanos(), 4_600_000_000);
}

#[test]
fn a_run_without_events_lasts_for_its_duration() {
    let mut config = one_deletion(Law::Constant(ms(0)));
    config.events.clear();
    config.duration = Some(secs(2.0));
    let records = run(&config, 1, 0);
    assert_eq!((records.windows.len(), records.lost()), (0, 0));
    assert_eq!(records.run().end.as_nanos(), 2_000_000_000);
    assert_eq!(records.run().ended, Ended::Duration);
    assert!((records.attempts.len() as f64 - 2000.0).abs() < 4.9 * 2000f64.sqrt());
}

#[test]
fn slow_clients_wait_for_their_first_block() {
    for rate in [0.0, 1.0 / 3600.0, 1.0 / 60.0, 0.1] {
        let mut config = one_deletion(Law::Constant(ms(0)));
        config.clients[0].rate_per_s = rate;
        config.events[0].at = secs(100.0);
        for seed in 0..5 {
            let records = run(&config, seed, 0);
            let mean = 100.0 * rate;
            assert!(records.attempts.len() as f64 <= mean + 6.0 * mean.sqrt() + 3.0, "{rate}");
            assert_eq!(records.windows.len(), 1);
        }
    }
}

#[test]
fn two_services_of_one_pod_close_their_windows_each() {
    let mut config = one_deletion(Law::Exponential { mean: ms(500) });
    let mut service = config.services[0].clone();
    service.name.name = "again".into();
    let mut client = config.clients[0].clone();
    client.name = "other".into();
    client.service = service.name.clone();
    config.services.push(service);
    config.clients.push(client);
    for replication in 0..10 {
        let records = run(&config, 1, replication);
        assert_eq!(records.windows.len(), 2);
        assert_eq!(records.run().ended, Ended::Complete);
    }
}

#[test]
fn a_pod_deleted_as_it_becomes_available_does_not_keep_the_run_open() {
    let mut config = cluster(2, 1, Law::Constant(ms(0)));
    config.deployments[0].min_ready = secs(1.0);
    let delete =
        |at| EventSpec { at: ms(at), action: Action::DeletePod { deployment: shop(), count: 1 } };
    // The new Pod runs 100 ms after the first deletion, and is available a second later.
    config.events = vec![delete(500), delete(1600)];
    assert_eq!(run(&config, 1, 0).run().ended, Ended::Complete);
}

#[test]
fn the_last_free_address_is_found_on_whatever_node() {
    let mut config = cluster(2, 9, Law::Constant(ms(0)));
    // A /29 has room for five Pods, one of them the client's.
    config.cluster.node_prefix_len = 29;
    config.deployments[0].replicas = 7;
    let mut other = config.deployments[0].clone();
    other.name.name = "other".into();
    other.template.labels = [("app".to_owned(), "other".to_owned())].into();
    other.replicas = 1;
    config.deployments.push(other);
    assert_eq!(run(&config, 1, 0).windows.len(), 1);
    config.deployments[1].replicas = 2;
    assert!(sim_core::check(&config).is_err(), "there are eight addresses beside the clients'");
}

#[test]
fn a_terminating_pod_that_serves_for_want_of_others_is_in_its_window_again() {
    let mut config = cluster(3, 2, Law::Constant(secs(4.0)));
    config.deployments[0].template.pre_stop = Some(secs(20.0));
    config.kubelet.start = Law::Constant(secs(30.0));
    let delete = |at, count| EventSpec {
        at: secs(at),
        action: Action::DeletePod { deployment: shop(), count },
    };
    config.events = vec![delete(1.0, 1), delete(8.0, 2)];
    let records = run(&config, 1, 0);
    let window = &records.windows[0];
    assert!(window.closed > window.stopped_accepting, "{window:?}");
    let (stale, expected) = (window.lost_first_stale.unwrap(), window.expected_lost.unwrap());
    assert!(expected > 100.0 && (stale as f64 - expected).abs() < 5.0 * expected.sqrt());
}

#[test]
fn a_window_that_was_cut_or_whose_address_was_reused_has_no_expectation() {
    let mut config = one_deletion(Law::Constant(secs(5.0)));
    config.duration = Some(secs(2.4));
    assert_eq!(run(&config, 1, 0).windows[0].expected_lost, None);
    // Two /29 have eight addresses beside the clients': a rollout of seven Pods comes round.
    let mut config = cluster(2, 7, Law::Constant(secs(3.0)));
    config.cluster.node_prefix_len = 29;
    rollout(&mut config);
    let records = run(&config, 1, 0);
    assert!(records.windows.iter().any(|window| window.expected_lost.is_none()));
}

#[test]
fn the_api_servers_own_service_has_the_first_address() {
    let mut config = one_deletion(Law::Constant(ms(0)));
    let mut service = config.services[0].clone();
    service.name.name = "kubernetes".into();
    service.selector.clear();
    service.cluster_ip = Some([172, 20, 0, 1].into());
    config.services.push(service);
    assert_eq!(sim_core::check(&config), Ok(()));
    config.services[1].name.name = "mine".into();
    assert!(sim_core::check(&config).is_err());
}

#[test]
fn names_are_unique_and_there_is_a_node() {
    let mut config = one_deletion(Law::Constant(ms(0)));
    config.clients.push(config.clients[0].clone());
    let error = sim_core::check(&config).unwrap_err().to_string();
    assert_eq!(error, "two clients are named front");
    config.clients.pop();
    config.cluster.nodes = 0;
    assert!(sim_core::check(&config).is_err());
}
