//! Draws every chart and summary from made-up records, extreme ones included, for a look at them.
//!
//! `cargo run -p reports --example gallery -- DIR`

use std::path::{Path, PathBuf};
use std::time::Duration;

use reports::collect::{Collector, Detail, RunRecords};
use reports::csv::write_sweep;
use reports::plot::{Axis, Chart, RunView, SweepView, bin_width, run_charts, sweep_charts};
use reports::stats::{Parameter, PointSummary, Replication, Upkeep};
use reports::summary;
use sim_core::record::{
    Cause, Counts, Ended, Loss, LostByCause, Name, OpenedBy, Propagation, Recorder, Run, Symptom,
    Window,
};
use sim_core::time::SimTime;

/// A generator that is good enough for pictures.
struct Dice(u64);

impl Dice {
    fn unit(&mut self) -> f64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 33) as f64 + 0.5) / f64::from(1_u32 << 31)
    }

    fn exponential(&mut self, mean: f64) -> f64 {
        -mean * self.unit().ln()
    }
}

fn at(s: f64) -> SimTime {
    SimTime::from_nanos((s * 1e9) as u64)
}

fn point(
    index: usize,
    parameters: Vec<Parameter>,
    delay: f64,
    nodes: f64,
    dice: &mut Dice,
) -> PointSummary {
    let harmonic = nodes.ln() + 0.577 + 0.5 / nodes;
    let replications: Vec<Replication> = (0..20)
        .map(|_| {
            let rate = 1000.0 / 4.0;
            let lost: Vec<u64> = (0..10)
                .map(|_| (rate * delay * (0.75 + 0.5 * dice.unit())).round() as u64)
                .collect();
            let total: u64 = lost.iter().sum();
            let black = (total as f64 * (0.08 + 0.05 * (delay - 0.1))) as u64;
            let mut by_cause = [0; 10];
            by_cause[0] = total - black;
            by_cause[3] = black;
            Replication {
                lost_of_windows: lost,
                lost_by_cause: by_cause,
                lost: total,
                attempts_inside: 60_000,
                lost_inside: total,
                stale_max_s: Some(delay * harmonic),
                last_node_lag_s: Some(delay * (harmonic + 0.5 * (dice.unit() - 0.5))),
                expected_lost: Some(rate * delay),
                lost_first_stale: Some(total as f64 / 10.0),
                upkeep: Upkeep {
                    holders: nodes,
                    updates: 2.0 * nodes,
                    hops: Some(1.0 - 1.0 / nodes),
                    rules: Some(45.0),
                    sync_s: None,
                },
            }
        })
        .collect();
    let closed = (delay > 0.0).then_some(delay * harmonic);
    PointSummary::new(index, parameters, &replications, closed)
}

fn parameter(path: &str, display: &str, value: Option<f64>) -> Parameter {
    Parameter { path: path.to_owned(), display: display.to_owned(), value }
}

const DELAY: &str = "propagation.delay.exponential.mean";
const NODES: &str = "cluster.nodes";

fn grid(delays: &[(&str, f64)], nodes: &[u32], loss: f64) -> (Vec<Axis>, Vec<PointSummary>) {
    let mut dice = Dice(1);
    let mut points = Vec::new();
    for &(text, delay) in delays {
        for &n in nodes {
            let parameters = vec![
                parameter(DELAY, text, Some(delay)),
                parameter(NODES, &n.to_string(), Some(f64::from(n))),
            ];
            points.push(point(points.len(), parameters, delay * loss, f64::from(n), &mut dice));
        }
    }
    (vec![Axis::from_path(DELAY), Axis::from_path(NODES)], points)
}

fn categories(count: usize) -> (Vec<Axis>, Vec<PointSummary>) {
    let mut dice = Dice(2);
    let modes = ["iptables", "nftables", "ipvs", "ebpf"];
    let points = (0..count)
        .map(|i| {
            let name = if i < 4 { modes[i].to_owned() } else { format!("a-rather-long-name-{i}") };
            let parameters = vec![parameter("proxy.mode", &name, None)];
            point(i, parameters, 0.1 * (i + 1) as f64, 100.0, &mut dice)
        })
        .collect();
    (vec![Axis::from_path("proxy.mode")], points)
}

/// A rolling update of so many Pods; `preStop` in seconds.
fn rollout(
    pods: u32,
    nodes: u32,
    every: f64,
    delay: f64,
    pre_stop: f64,
    closes: bool,
) -> RunRecords {
    let mut dice = Dice(u64::from(pods) + 1);
    let service: Name = "default/shop:http".into();
    let end = 10.0 + every * f64::from(pods) + 5.0;
    let mut out = Collector::new(Detail::Timeline(bin_width(Duration::from_secs_f64(end))));
    let rate = 1000.0;
    let mut attempts = 0;
    let mut t = 0.0;
    while t < end {
        out.attempt(at(t));
        attempts += 1;
        t += dice.exponential(1.0 / rate);
    }
    let mut all = LostByCause::default();
    for w in 0..pods {
        let opened = 10.0 + every * f64::from(w);
        let changed = opened + 0.02 + 0.03 * dice.unit();
        let stopped = opened + pre_stop + 0.15;
        let lives: Vec<f64> = (0..nodes).map(|_| changed + dice.exponential(delay)).collect();
        let last = lives.iter().copied().fold(0.0, f64::max);
        let first = lives.iter().copied().fold(f64::MAX, f64::min);
        for (n, &live) in lives.iter().enumerate() {
            out.propagation(Propagation {
                service: service.clone(),
                change: w + 1,
                node: format!("node-{n}").into(),
                endpoints_changed: at(changed),
                live: at(live),
                stages: None,
            });
        }
        let mut sent = stopped;
        let mut mine = LostByCause::default();
        while sent < last {
            sent += dice.exponential(8.0 / rate);
            let stale = lives.iter().filter(|&&l| l > sent).count() as f64 / f64::from(nodes);
            if dice.unit() > stale {
                continue;
            }
            let cause = if sent < stopped + 0.3 { Cause::Refused } else { Cause::Blackholed };
            mine.add(cause);
            out.loss(Loss {
                request: u64::from(w) * 1000,
                attempt: 0,
                sent: at(sent),
                ended: at(sent + 0.001),
                client: "front".into(),
                client_pod: "front-0".into(),
                node: "node-1".into(),
                service: service.clone(),
                rule: None,
                endpoint: Some("10.244.1.7:8080".into()),
                cause,
                symptom: Symptom::Refused,
                window: Some(w),
                stale_for: None,
            });
        }
        all.merge(&mine);
        let stale = |l: f64| (l - stopped).max(0.0);
        let closed = last.max(stopped) + 0.05;
        out.window(Window {
            window: w,
            opened_by: OpenedBy::Rollout,
            service: service.clone(),
            pod: format!("shop-7d9c5b8f6d-{:05x}", 0xa1b2c + w * 7919).into(),
            node: format!("node-{}", w % nodes).into(),
            opened: at(opened),
            endpoints_changed: Some(at(changed)),
            stopped_accepting: Some(at(stopped)),
            ip_released: Some(at(stopped + 0.1)),
            first_node: Some(at(first)),
            last_node: (closes || w % 3 > 0).then(|| at(last)),
            closed: (closes || w % 3 > 0).then(|| at(closed)),
            stale_mean_s: Some(lives.iter().map(|&l| stale(l)).sum::<f64>() / f64::from(nodes)),
            stale_max_s: Some(stale(last)),
            attempts: ((closed - opened) * rate) as u64,
            attempts_to_pod: 40,
            lost: mine,
            misdelivered: 0,
            lost_first_stale: Some(mine.total()),
            expected_lost: Some(mine.total() as f64 * 1.02 + 0.3),
        });
    }
    out.run(Run {
        ended: Ended::Complete,
        end: at(end),
        events: 1_234_567,
        packets: 345_678,
        requests: attempts,
        requests_lost: all.total(),
        requests_unfinished: 0,
        inside: Counts { attempts: attempts / 2, lost: all, misdelivered: 0 },
        outside: Counts { attempts: attempts - attempts / 2, ..Counts::default() },
        unfinished: 0,
        windows: u64::from(pods),
        lost_first_stale: Some(all.total()),
        expected_lost: Some(all.total() as f64 * 1.02 + 0.3 * f64::from(pods)),
        fingerprint: 0x00d1_ce5e_ed00_cafe,
        holders: 0,
        updates: 0,
        accepted: 0,
        hops: 0,
        rules_passed: 0.0,
        syncs: None,
        balance: None,
    });
    out.into_records()
}

fn save(dir: &Path, charts: &[Chart]) -> Result<(), Box<dyn std::error::Error>> {
    std::fs::create_dir_all(dir)?;
    for chart in charts {
        std::fs::write(dir.join(format!("{}.svg", chart.name())), chart.svg()?)?;
        std::fs::write(dir.join(format!("{}.png", chart.name())), chart.png()?)?;
    }
    Ok(())
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let dir: PathBuf = std::env::args_os().nth(1).ok_or("usage: gallery DIR")?.into();
    let delays = [("100ms", 0.1), ("300ms", 0.3), ("1s", 1.0), ("3s", 3.0)];
    let many: Vec<(String, f64)> =
        (1..=12).map(|i| (format!("{}ms", i * 100), f64::from(i) * 0.1)).collect();
    let many: Vec<(&str, f64)> = many.iter().map(|(t, d)| (t.as_str(), *d)).collect();
    let sweeps = [
        ("sweep", grid(&delays, &[10, 100, 1000, 5000], 1.0)),
        ("sweep-zero", grid(&delays, &[10, 100, 1000, 5000], 0.0)),
        ("sweep-one-axis", grid(&delays, &[100], 1.0)),
        ("sweep-one-point", grid(&delays[1..2], &[100], 1.0)),
        ("sweep-large", grid(&many, &[1, 3, 10, 30, 100, 300, 1000, 3000], 1.0)),
        ("sweep-modes", categories(4)),
        ("sweep-many-modes", categories(60)),
        ("sweep-none", (vec![], vec![])),
    ];
    for (name, (axes, points)) in &sweeps {
        let long =
            "a-scenario-with-a-very-long-name-that-somebody-thought-was-a-good-idea-".repeat(2);
        let scenario = if *name == "sweep-many-modes" { long.as_str() } else { "rolling-update" };
        let view = SweepView { scenario, seed: 7, axes, points };
        save(&dir.join(name), &sweep_charts(&view))?;
        let text = summary::sweep(&summary::SweepSummary {
            question: "How many requests does a rolling update lose when nodes learn late?",
            expectations: &[],
            axes,
            points,
            seed: 7,
            version: "0.1.0",
        });
        println!("== {name}\n{text}");
    }
    std::fs::write(dir.join("sweep.csv"), write_sweep(Vec::new(), &sweeps[0].1.1)?)?;
    let runs = [
        ("run", rollout(6, 20, 3.0, 0.8, 0.0, true)),
        ("run-zero", rollout(6, 20, 3.0, 0.3, 5.0, true)),
        ("run-one", rollout(1, 100, 3.0, 0.5, 0.0, true)),
        ("run-many", rollout(40, 20, 2.0, 0.8, 0.0, true)),
        ("run-more", rollout(120, 20, 2.0, 0.8, 0.5, false)),
        ("run-none", rollout(0, 20, 2.0, 0.8, 0.5, true)),
    ];
    for (name, records) in &runs {
        let view = RunView { scenario: "rolling-update", seed: 7, run: 0, records };
        save(&dir.join(name), &run_charts(&view))?;
        let expectations = [
            summary::Expectation {
                text: "lost <= 10".to_owned(),
                verdict: summary::Verdict::Failed,
                observed: records.run.inside.lost.total().to_string(),
            },
            summary::Expectation {
                text: "windows.stale_max < 5s".to_owned(),
                verdict: summary::Verdict::Held,
                observed: "3.2s".to_owned(),
            },
        ];
        let text = summary::run(&summary::RunSummary {
            question: "How many requests does a rolling update lose when nodes learn late?",
            expectations: &expectations,
            records,
            seed: 7,
            version: "0.1.0",
        });
        println!("== {name}\n{text}");
    }
    Ok(())
}
