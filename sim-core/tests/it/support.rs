//! Small clusters for tests, and what their runs tell.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::time::Duration;

use sim_core::config::*;
use sim_core::record::{Loss, Propagation as Live, Recorder, Run, Window};
use sim_core::time::SimTime;

pub(crate) fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

pub(crate) fn secs(seconds: f64) -> Duration {
    Duration::from_secs_f64(seconds)
}

pub(crate) fn shop() -> ObjectName {
    ObjectName { namespace: "default".into(), name: "shop".into() }
}

fn cidr(addr: [u8; 4], prefix_len: u8) -> Ipv4Cidr {
    Ipv4Cidr::new(Ipv4Addr::from(addr), prefix_len).unwrap()
}

/// Returns `nodes` nodes with a Service and a Deployment `shop` of `replicas` Pods whose
/// listeners close at SIGTERM, one client group of 1,000 connections per second, and a delay that
/// follows `law`. Everything that could blur a closed form takes no time.
pub(crate) fn cluster(nodes: u32, replicas: u32, law: Law) -> Config {
    let labels: BTreeMap<_, _> = [("app".to_owned(), "shop".to_owned())].into();
    let zero = Law::Constant(Duration::ZERO);
    Config {
        scenario: "test".into(),
        cluster: ClusterConfig {
            nodes,
            pod_cidr: cidr([10, 0, 0, 0], 8),
            node_prefix_len: 24,
            service_cidr: cidr([172, 20, 0, 0], 16),
            node_cidr: cidr([192, 168, 0, 0], 16),
            network: PodNetwork::FlannelHostGw,
            bridge_latency: Duration::from_micros(20),
            link_latency: Duration::from_micros(50),
            max_pods: 110,
            node_labels: BTreeMap::new(),
        },
        proxy: ProxyConfig {
            mode: ProxyMode::Iptables,
            masquerade_bit: 14,
            masquerade_all: false,
            profile: 30,
        },
        propagation: Propagation::Delay { law, nodes: BTreeMap::new() },
        kubelet: KubeletConfig {
            notice: zero.clone(),
            start: Law::Constant(ms(100)),
            teardown: Law::Constant(ms(500)),
        },
        services: vec![ServiceSpec {
            name: shop(),
            cluster_ip: None,
            selector: labels.clone(),
            ports: vec![ServicePortSpec {
                name: Some("http".into()),
                port: 80,
                target: TargetPort::Number(8080),
            }],
            affinity: None,
        }],
        deployments: vec![DeploymentSpec {
            name: shop(),
            replicas,
            strategy: Strategy::RollingUpdate {
                max_surge: IntOrPercent::Int(0),
                max_unavailable: IntOrPercent::Int(1),
            },
            min_ready: Duration::ZERO,
            template: PodTemplate {
                labels,
                ports: BTreeMap::new(),
                pre_stop: None,
                grace: Duration::from_secs(30),
                readiness: None,
                application: Application {
                    on_sigterm: OnSigterm::Close,
                    startup: zero.clone(),
                    service_time: zero,
                },
            },
        }],
        clients: vec![ClientSpec {
            name: "front".into(),
            service: shop(),
            port: 80,
            rate_per_s: 1000.0,
            arrivals: Arrivals::Poisson,
            timeout: Duration::from_secs(1),
            retries: 0,
            retry_backoff: Duration::ZERO,
        }],
        events: vec![EventSpec {
            at: ms(500),
            action: Action::DeletePod { deployment: shop(), count: 1 },
        }],
        duration: None,
        limits: Limits::default(),
        timeline_bin: Duration::from_secs(1),
    }
}

/// Replaces the events of `config` by one rollout.
pub(crate) fn rollout(config: &mut Config) {
    config.events = vec![EventSpec { at: ms(500), action: Action::Rollout { deployment: shop() } }];
}

/// All records of a run.
#[derive(Debug, Default, Clone, PartialEq)]
pub(crate) struct Records {
    pub(crate) attempts: Vec<SimTime>,
    pub(crate) losses: Vec<Loss>,
    pub(crate) live: Vec<Live>,
    pub(crate) windows: Vec<Window>,
    pub(crate) run: Option<Run>,
}

impl Records {
    pub(crate) fn run(&self) -> &Run {
        self.run.as_ref().expect("the run ended")
    }

    /// Returns the attempts lost to stale rules: what `expected_lost` expects.
    pub(crate) fn stale(&self) -> f64 {
        self.run().lost_first_stale.unwrap() as f64
    }

    /// Returns all lost attempts.
    pub(crate) fn lost(&self) -> u64 {
        self.run().inside.lost.total() + self.run().outside.lost.total()
    }
}

impl Recorder for Records {
    fn wants_detail(&self) -> bool {
        true
    }

    fn attempt(&mut self, at: SimTime) {
        self.attempts.push(at);
    }

    fn loss(&mut self, loss: Loss) {
        self.losses.push(loss);
    }

    fn propagation(&mut self, live: Live) {
        self.live.push(live);
    }

    fn window(&mut self, window: Window) {
        self.windows.push(window);
    }

    fn run(&mut self, run: Run) {
        self.run = Some(run);
    }
}

/// Runs `config` once.
#[track_caller]
pub(crate) fn run(config: &Config, seed: u64, replication: u32) -> Records {
    let mut records = Records::default();
    sim_core::run(config, seed, replication, &mut records).expect("the run has no error");
    records
}

/// Runs `config` `replications` times and returns mean and standard error of what `measure` says.
pub(crate) fn mean(
    config: &Config,
    replications: u32,
    measure: impl Fn(&Records) -> f64,
) -> (f64, f64) {
    let [mean] = means(config, replications, [&measure]);
    mean
}

/// Runs `config` `replications` times and returns mean and standard error of each measure.
pub(crate) fn means<const N: usize>(
    config: &Config,
    replications: u32,
    measures: [&dyn Fn(&Records) -> f64; N],
) -> [(f64, f64); N] {
    let mut values = [const { Vec::new() }; N];
    for replication in 0..replications {
        let records = run(config, 1, replication);
        for (values, measure) in values.iter_mut().zip(measures) {
            values.push(measure(&records));
        }
    }
    values.map(|values| mean_and_error(&values))
}

/// Returns mean and standard error.
pub(crate) fn mean_and_error(values: &[f64]) -> (f64, f64) {
    let n = values.len() as f64;
    let mean = values.iter().sum::<f64>() / n;
    let variance = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / (n - 1.0);
    (mean, (variance / n).sqrt())
}

/// Asserts that `expected` lies in the interval of mean ± `quantile` standard errors.
#[track_caller]
pub(crate) fn assert_within(what: &str, (mean, error): (f64, f64), expected: f64, quantile: f64) {
    assert!(
        (mean - expected).abs() <= quantile * error,
        "{what}: expected {expected}, got {mean} ± {error} (standard error)"
    );
}
