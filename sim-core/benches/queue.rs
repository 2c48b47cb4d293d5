//! The event queue beside std's binary heap, on the same events.
//!
//! `hold` pops an event and schedules another, again and again, at a constant number pending.
//! Increments come from a table drawn beforehand, so that the queue is what is measured; both
//! sides read the same table. Only ratios within one run mean something.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;
use std::hint::black_box;
use std::ops::ControlFlow;
use std::time::Duration;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use sim_core::config::{Law, Limits};
use sim_core::engine::{self, EventQueue, Kind, Seed, TimerId};
use sim_core::time::SimTime;

const PENDING: [usize; 3] = [100, 10_000, 1_000_000];

/// Sixteen bytes, like the events of the simulator.
#[derive(Clone, Copy)]
enum Event {
    Packet { request: u64, hop: u32 },
    Timeout { entity: u32, generation: u32 },
}

impl Event {
    /// What a handler would look at, at the least.
    fn tag(self) -> u64 {
        match self {
            Event::Packet { request, hop } => request ^ u64::from(hop),
            Event::Timeout { entity, .. } => entity.into(),
        }
    }
}

impl Kind for Event {
    const KINDS: &'static [&'static str] = &["packet", "timeout"];

    fn kind(&self) -> usize {
        match self {
            Event::Packet { .. } => 0,
            Event::Timeout { .. } => 1,
        }
    }
}

/// What both queues can do.
trait Queue {
    fn now(&self) -> SimTime;
    fn push(&mut self, time: SimTime, event: Event);
    fn pop(&mut self) -> Event;
}

impl Queue for EventQueue<Event> {
    fn now(&self) -> SimTime {
        self.now()
    }

    fn push(&mut self, time: SimTime, event: Event) {
        self.at(time, event);
    }

    fn pop(&mut self) -> Event {
        self.pop().expect("the queue is held").1
    }
}

/// The usual queue: a binary heap by time and sequence, in one number.
#[derive(Default)]
struct Heap {
    entries: BinaryHeap<Reverse<HeapEntry>>,
    now: SimTime,
    scheduled: u64,
}

struct HeapEntry {
    key: u128,
    event: Event,
}

impl Ord for HeapEntry {
    fn cmp(&self, other: &Self) -> Ordering {
        self.key.cmp(&other.key)
    }
}

impl PartialOrd for HeapEntry {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for HeapEntry {
    fn eq(&self, other: &Self) -> bool {
        self.key == other.key
    }
}

impl Eq for HeapEntry {}

impl Queue for Heap {
    fn now(&self) -> SimTime {
        self.now
    }

    fn push(&mut self, time: SimTime, event: Event) {
        self.scheduled += 1;
        let key = (u128::from(time.as_nanos()) << 64) | u128::from(self.scheduled);
        self.entries.push(Reverse(HeapEntry { key, event }));
    }

    fn pop(&mut self) -> Event {
        let Reverse(entry) = self.entries.pop().expect("the heap is held");
        self.now = SimTime::from_nanos((entry.key >> 64) as u64);
        entry.event
    }
}

/// Durations drawn beforehand, and read in a circle.
struct Increments {
    table: Vec<Duration>,
    next: usize,
}

impl Increments {
    fn new(law: &Law) -> Increments {
        let mut cursor = Seed::new(1, 0).stream("increments").cursor(0);
        Increments { table: (0..1 << 16).map(|_| law.sample(cursor.next_u64())).collect(), next: 0 }
    }

    #[inline]
    fn next(&mut self) -> Duration {
        self.next = (self.next + 1) % (1 << 16);
        self.table[self.next]
    }
}

fn exponential(mean: Duration) -> Law {
    Law::Exponential { mean }
}

/// Fills a queue and runs it until its events are spread as they stay.
fn filled<Q: Queue>(mut queue: Q, pending: usize, law: &Law) -> (Q, Increments) {
    let mut increments = Increments::new(law);
    for request in 0..pending as u64 {
        let time = queue.now() + increments.next();
        queue.push(time, Event::Packet { request, hop: 0 });
    }
    for _ in 0..5 * pending {
        hold(&mut queue, &mut increments);
    }
    (queue, increments)
}

#[inline]
fn hold<Q: Queue>(queue: &mut Q, increments: &mut Increments) -> u64 {
    let event = queue.pop();
    let time = queue.now() + increments.next();
    queue.push(time, event);
    event.tag()
}

fn hold_model(c: &mut Criterion, name: &str, law: &Law, pending: &[usize]) {
    let mut group = c.benchmark_group(name);
    group.throughput(Throughput::Elements(1));
    for &pending in pending {
        // Criterion calls the closures many times.
        let (mut ladder, mut heap) = (None, None);
        group.bench_function(BenchmarkId::new("ladder", pending), |b| {
            let (queue, increments) =
                ladder.get_or_insert_with(|| filled(EventQueue::new(), pending, law));
            b.iter(|| hold(queue, increments));
        });
        group.bench_function(BenchmarkId::new("heap", pending), |b| {
            let (queue, increments) =
                heap.get_or_insert_with(|| filled(Heap::default(), pending, law));
            b.iter(|| hold(queue, increments));
        });
    }
    group.finish();
}

fn holds(c: &mut Criterion) {
    hold_model(c, "hold", &exponential(Duration::from_secs(1)), &PENDING);
    // The ladder's widths are fixed: show that no mean is bad for them.
    for mean_us in [10, 100, 300, 1_000, 3_000, 10_000, 100_000] {
        let law = exponential(Duration::from_micros(mean_us));
        hold_model(c, &format!("hold-{mean_us}us"), &law, &[100, 10_000]);
    }
    // Packet hops beside timeouts.
    let bimodal = Law::Mixture(vec![
        (0.9, exponential(Duration::from_micros(100))),
        (0.1, Law::Constant(Duration::from_secs(1))),
    ]);
    hold_model(c, "hold-bimodal", &bimodal, &PENDING);
    // A few latencies, each always the same: every event ties with others.
    let ties = Law::Mixture(vec![
        (0.5, Law::Constant(Duration::from_micros(50))),
        (0.4, Law::Constant(Duration::from_micros(250))),
        (0.1, Law::Constant(Duration::from_secs(1))),
    ]);
    hold_model(c, "hold-ties", &ties, &PENDING);
}

/// Timeouts of which 30 % are cancelled: the entity's generation has moved on when they fire.
struct Timeouts<Q> {
    queue: Q,
    increments: Increments,
    generations: Vec<u32>,
}

impl<Q: Queue> Timeouts<Q> {
    fn new(mut queue: Q, pending: usize, law: &Law) -> Timeouts<Q> {
        let mut increments = Increments::new(law);
        for entity in 0..pending as u32 {
            let time = queue.now() + increments.next();
            queue.push(time, Event::Timeout { entity, generation: 0 });
        }
        let mut timeouts = Timeouts { queue, increments, generations: vec![0; pending] };
        for _ in 0..5 * pending {
            timeouts.turn();
        }
        timeouts
    }

    /// Takes a timeout, dead or alive; schedules the entity's next, and cancels 30 % of them.
    fn turn(&mut self) -> bool {
        let Event::Timeout { entity, generation } = self.queue.pop() else {
            return false;
        };
        let current = &mut self.generations[entity as usize];
        let live = generation == *current;
        let event = Event::Timeout { entity, generation: *current };
        let increment = self.increments.next();
        *current += u32::from(increment.subsec_nanos() % 10 < 3);
        let time = self.queue.now() + increment;
        self.queue.push(time, event);
        live
    }
}

fn cancel_by_generation(c: &mut Criterion) {
    let law = exponential(Duration::from_secs(1));
    let mut group = c.benchmark_group("cancel-30%");
    group.throughput(Throughput::Elements(1));
    for pending in PENDING {
        let (mut ladder, mut heap) = (None, None);
        group.bench_function(BenchmarkId::new("ladder", pending), |b| {
            let timeouts =
                ladder.get_or_insert_with(|| Timeouts::new(EventQueue::new(), pending, &law));
            b.iter(|| timeouts.turn());
        });
        group.bench_function(BenchmarkId::new("heap", pending), |b| {
            let timeouts =
                heap.get_or_insert_with(|| Timeouts::new(Heap::default(), pending, &law));
            b.iter(|| timeouts.turn());
        });
    }
    group.finish();
}

/// Named timers beside fired events: each turn holds one event, and three turns in ten move a
/// timer, or clear it and set it again.
fn named_timers(c: &mut Criterion) {
    let law = exponential(Duration::from_secs(1));
    let mut group = c.benchmark_group("named-timers");
    group.throughput(Throughput::Elements(1));
    for timers in [100, 1_000, 10_000_u32] {
        group.bench_function(BenchmarkId::from_parameter(timers), |b| {
            let (mut queue, mut increments) = filled(EventQueue::new(), 10_000, &law);
            let set = |queue: &mut EventQueue<Event>, entity: u32, delay: Duration| {
                let at = queue.now() + delay;
                let event = Event::Timeout { entity, generation: 0 };
                queue.set_timer(TimerId::new(1, entity), at, event);
            };
            for entity in 0..timers {
                set(&mut queue, entity, increments.next());
            }
            b.iter(|| {
                let event = queue.pop().expect("the queue is held").1;
                let delay = increments.next();
                match event {
                    Event::Timeout { entity, .. } => set(&mut queue, entity, delay),
                    Event::Packet { .. } => queue.after(delay, event),
                }
                let entity = delay.subsec_nanos() % timers;
                match delay.subsec_micros() % 10 {
                    0 | 1 => set(&mut queue, entity, delay),
                    2 => {
                        queue.clear_timer(TimerId::new(1, entity));
                        set(&mut queue, entity, delay);
                    }
                    _ => {}
                }
                event.tag()
            });
        });
    }
    group.finish();
}

/// PHOLD: logical processes send each other messages with exponential delays, one each at first.
fn phold(c: &mut Criterion) {
    const PROCESSES: u32 = 1024;
    const EVENTS: u64 = 1 << 20;
    let law = exponential(Duration::from_secs(1));
    let mut group = c.benchmark_group("phold");
    group.throughput(Throughput::Elements(EVENTS));
    group.bench_function("1024x1", |b| {
        let mut increments = Increments::new(&law);
        let mut queue = EventQueue::new();
        for hop in 0..PROCESSES {
            queue.after(increments.next(), Event::Packet { request: 0, hop });
        }
        let mut received = vec![0_u64; PROCESSES as usize];
        b.iter(|| {
            let mut left = EVENTS;
            let limits = Limits { simulated: Duration::from_secs(1 << 33), ..Limits::default() };
            let stats = engine::run(&mut queue, &limits, None, |queue, _, event| {
                let Event::Packet { request, hop } = event else {
                    return ControlFlow::Break(());
                };
                received[hop as usize] += 1;
                let delay = increments.next();
                let hop = delay.subsec_nanos() % PROCESSES;
                queue.after(delay, Event::Packet { request: request + 1, hop });
                left -= 1;
                if left == 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            });
            black_box(stats)
        });
    });
    group.finish();
}

criterion_group! {
    name = benches;
    config = Criterion::default()
        .sample_size(20)
        .warm_up_time(Duration::from_millis(500))
        .measurement_time(Duration::from_secs(2));
    targets = holds, cancel_by_generation, named_timers, phold
}
criterion_main!(benches);
