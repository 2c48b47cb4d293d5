//! Positioned draws, laws, and the fingerprint.

use std::hint::black_box;
use std::time::Duration;

use criterion::{Criterion, criterion_group, criterion_main};
use sim_core::config::Law;
use sim_core::engine::distribution::poisson;
use sim_core::engine::{Fingerprint, Seed};
use sim_core::time::SimTime;

fn draws(c: &mut Criterion) {
    let stream = Seed::new(1, 0).stream("client/web-0");
    let mut group = c.benchmark_group("draw");
    let mut request = 0;
    group.bench_function("one, at any position", |b| {
        b.iter(|| {
            request += 1;
            stream.draw(request, 1, 2, 3)
        });
    });
    group.bench_function("an attempt's eight", |b| {
        b.iter(|| {
            request += 1;
            stream.attempt(request, 1)
        });
    });
    let mut requests = stream.requests();
    group.bench_function("a request's eight, requests in order", |b| {
        b.iter(|| {
            request += 1;
            requests.get(request)
        });
    });
    group.bench_function("a cursor's first sixteen", |b| {
        b.iter(|| {
            request += 1;
            let mut cursor = stream.cursor(request);
            (0..16).fold(0, |all, _| all ^ cursor.next_u64())
        });
    });
    let mut cursor = stream.cursor(0);
    group.bench_function("a cursor's next", |b| b.iter(|| cursor.next_u64()));
    group.bench_function("a stream by name", |b| {
        b.iter(|| Seed::new(1, 0).stream(black_box("node-17/default/shop/3")));
    });
    group.finish();
}

fn laws(c: &mut Criterion) {
    let ms = Duration::from_millis;
    let gamma = Law::Gamma { shape: 2.5, scale_s: 0.1 };
    let exponential = Law::Exponential { mean: ms(300) };
    let laws = [
        ("constant", Law::Constant(ms(5))),
        ("uniform", Law::Uniform { min: ms(5), max: ms(50) }),
        ("exponential", exponential.clone()),
        ("lognormal", Law::LogNormal { median_s: 0.3, sigma: 1.0 }),
        ("weibull", Law::Weibull { shape: 1.5, scale_s: 0.3 }),
        ("pareto", Law::Pareto { min_s: 0.1, shape: 2.0 }),
        ("gamma", gamma.clone()),
        ("mixture", Law::Mixture(vec![(0.9, exponential), (0.1, gamma)])),
    ];
    let mut cursor = Seed::new(1, 0).stream("laws").cursor(0);
    let words: Vec<u64> = (0..4096).map(|_| cursor.next_u64()).collect();
    let mut next = 0;
    let mut word = move || {
        next = (next + 1) % 4096;
        words[next]
    };
    let mut group = c.benchmark_group("law");
    for (name, law) in &laws {
        group.bench_function(*name, |b| b.iter(|| law.sample(word())));
    }
    group.bench_function("poisson of mean 100", |b| b.iter(|| poisson(100.0, word())));
    group.finish();
}

fn fingerprint(c: &mut Criterion) {
    let mut fingerprint = Fingerprint::new();
    let mut time = 0;
    c.bench_function("fingerprint of an event", |b| {
        b.iter(|| {
            time += 1000;
            fingerprint.add(SimTime::from_nanos(time), 3, time);
        });
    });
    black_box(fingerprint.value());
}

criterion_group! {
    name = benches;
    config = Criterion::default()
        .sample_size(20)
        .warm_up_time(Duration::from_millis(300))
        .measurement_time(Duration::from_secs(1));
    targets = draws, laws, fingerprint
}
criterion_main!(benches);
