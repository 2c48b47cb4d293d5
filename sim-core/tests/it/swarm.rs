//! Whole small clusters drawn at random, and what must hold in every one of them.

use std::time::Duration;

use sim_core::config::*;
use sim_core::engine::rng::{Seed, below};
use sim_core::record::Ended;

use crate::support::{Records, cluster, ms, shop};

/// A run of small choices.
struct Choices(sim_core::engine::rng::Cursor);

impl Choices {
    fn below(&mut self, n: u64) -> u64 {
        below(self.0.next_u64(), n)
    }

    fn one_of<T: Clone>(&mut self, items: &[T]) -> T {
        items[self.below(items.len() as u64) as usize].clone()
    }

    fn law(&mut self) -> Law {
        match self.below(4) {
            0 => Law::Constant(Duration::ZERO),
            1 => Law::Constant(ms(500 * self.below(5))),
            2 => Law::Exponential { mean: ms(300) },
            _ => Law::Uniform { min: ms(100), max: ms(2000) },
        }
    }

    fn strategy(&mut self) -> Strategy {
        use IntOrPercent::{Int, Percent};
        let rolling =
            |max_surge, max_unavailable| Strategy::RollingUpdate { max_surge, max_unavailable };
        match self.below(4) {
            0 => Strategy::Recreate,
            1 => rolling(Percent(25), Percent(25)),
            2 => rolling(Int(self.below(3) as u32), Int(self.below(3) as u32)),
            _ => rolling(Percent(0), Percent(100)),
        }
    }

    fn action(&mut self) -> Action {
        let deployment = shop();
        match self.below(4) {
            0 => Action::Rollout { deployment },
            1 => Action::Scale { deployment, replicas: self.below(6) as u32 },
            _ => Action::DeletePod { deployment, count: 1 + self.below(3) as u32 },
        }
    }

    fn pipeline(&mut self) -> Pipeline {
        let legacy = self.below(2) == 0;
        Pipeline {
            watch: self.law(),
            nodes: Default::default(),
            min_sync_period: self.one_of(&[None, Some(ms(500)), Some(ms(3000))]),
            sync_period: Some(ms(1000 * (1 + self.below(5)))),
            iptables_backend: match legacy {
                true => IptablesBackend::Legacy,
                false => IptablesBackend::Nft,
            },
            cost: SyncCostConfig {
                base: self.one_of(&[None, Some(ms(500)), Some(ms(2000))]),
                scale: self.one_of(&[0.0, 1.0, 1.0]),
                ..SyncCostConfig::default()
            },
            failure: self.one_of(&[0.0, 0.0, 0.3]),
            contender: (legacy && self.below(2) == 0)
                // No period of retries (a second to five, after a wait of five) divides this one.
                .then(|| ContenderConfig { every: ms(9700), holds: ms(6000) }),
            others: OtherServices { count: self.one_of(&[0, 0, 5_000]), endpoints: 3 },
        }
    }

    /// Times are round on purpose: much happens at one instant.
    fn config(&mut self) -> Config {
        let law = self.law();
        let mut config = cluster(1 + self.below(4) as u32, self.below(6) as u32, law);
        config.kubelet =
            KubeletConfig { notice: self.law(), start: self.law(), teardown: self.law() };
        let deployment = &mut config.deployments[0];
        deployment.min_ready = ms(500 * self.below(4));
        deployment.strategy = self.strategy();
        let template = &mut deployment.template;
        template.pre_stop = self.one_of(&[None, Some(ms(500)), Some(ms(2500))]);
        template.grace = ms(1000 * self.below(6));
        template.readiness = (self.below(2) == 0).then(|| Probe {
            initial_delay: ms(500 * self.below(3)),
            period: ms(500 + 500 * self.below(3)),
            success_threshold: 1 + self.below(2) as u32,
            failure_threshold: 1 + self.below(3) as u32,
        });
        template.application = Application {
            on_sigterm: self.one_of(&[OnSigterm::Close, OnSigterm::Drain, OnSigterm::Ignore]),
            startup: self.law(),
            service_time: self.one_of(&[Law::Constant(ms(0)), Law::Exponential { mean: ms(100) }]),
        };
        let client = &mut config.clients[0];
        client.rate_per_s = self.one_of(&[0.0, 0.05, 50.0, 50.0, 50.0]);
        client.retries = self.below(3) as u32;
        client.retry_backoff = ms(100 * self.below(3));
        client.timeout = ms(self.one_of(&[50, 1000, 4000]));
        if self.below(3) == 0 {
            // A second Service with a port of another name on the same Pods, and its own client.
            let mut service = config.services[0].clone();
            service.name.name = "again".into();
            service.ports[0].port = 81;
            let mut client = config.clients[0].clone();
            client.name = "other".into();
            client.service = service.name.clone();
            client.port = 81;
            config.services.push(service);
            config.clients.push(client);
        }
        if self.below(8) == 0 {
            config.cluster.link_latency = ms(400);
        }
        let count = 1 + self.below(4);
        config.events = (0..count)
            .map(|_| EventSpec { at: ms(500 * (1 + self.below(10))), action: self.action() })
            .collect();
        if self.below(8) == 0 {
            config.duration = Some(ms(500 * self.below(10)));
        }
        if self.below(3) == 0 {
            let pipeline = self.pipeline();
            config.propagation = Propagation::Pipeline(Box::new(pipeline));
            config.proxy.profile = self.one_of(&[30, 34]);
            config.proxy.mode = self.one_of(&[ProxyMode::Iptables, ProxyMode::Nftables]);
            let node = 0;
            let action = match self.below(4) {
                0 => Some(Action::RestartProxy { node, takes: ms(500 * self.below(8)) }),
                1 => Some(Action::FlushRules { node }),
                _ => None,
            };
            let at = ms(500 * (1 + self.below(10)));
            config.events.extend(action.map(|action| EventSpec { at, action }));
        }
        // What has not settled by then never will.
        config.limits.simulated = Duration::from_secs(300);
        config
    }
}

fn check(case: u64, config: &Config, records: &Records) {
    let losses = |window| {
        let of = records.losses.iter().filter(|loss| loss.window == window);
        of.count() as u64
    };
    let run = records.run();
    assert_eq!(records.losses.len() as u64, records.lost(), "case {case}");
    for window in &records.windows {
        let lost = window.lost.total();
        assert_eq!(losses(Some(window.window)), lost, "case {case}, {window:?}");
        if run.ended == Ended::Complete {
            assert!(window.closed.is_some(), "case {case}, {window:?}");
        }
        if let (Some(stale), Some(expected)) = (window.lost_first_stale, window.expected_lost) {
            let off = (stale as f64 - expected).abs();
            // Hundreds of Poisson counts: six standard deviations, and room for small means.
            assert!(off <= 6.0 * expected.sqrt() + 6.0, "case {case}: {window:?}\n{config:?}");
        }
    }
    for loss in &records.losses {
        assert!(
            loss.window.is_some() || loss.stale_for.is_none(),
            "case {case}: a stale loss outside all windows: {loss:?}"
        );
    }
    let expects = records.windows.iter().filter_map(|window| window.expected_lost).sum::<f64>();
    assert!((run.expected_lost.unwrap_or(expects) - expects).abs() < 1e-6, "case {case}");
}

#[test]
fn every_small_cluster_settles_and_its_books_agree() {
    for case in 0..400 {
        let mut choices = Choices(Seed::new(20_261_130, 0).stream("swarm").cursor(case));
        let config = choices.config();
        let mut records = Records::default();
        match sim_core::run(&config, 1, 0, &mut records) {
            Ok(()) => check(case, &config, &records),
            Err(error) => panic!("case {case}: {error}\n{config:?}"),
        }
    }
}
