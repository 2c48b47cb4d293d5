use std::time::Duration;

use super::*;

#[derive(Clone, Copy)]
enum Event {
    Ping,
    Pong,
    Wait,
}

impl Kind for Event {
    const KINDS: &'static [&'static str] = &["ping", "pong", "wait"];

    fn kind(&self) -> usize {
        *self as usize
    }
}

const LIMITS: Limits =
    Limits { events: 1000, events_at_one_instant: 100, simulated: Duration::from_secs(10) };

const NEVER_STOP: ControlFlow<()> = ControlFlow::Continue(());

fn start() -> EventQueue<Event> {
    let mut queue = EventQueue::new();
    queue.after(Duration::from_secs(1), Event::Wait);
    queue
}

#[test]
fn counts_by_kind_until_drained() {
    let mut queue = start();
    let stats = run(&mut queue, &LIMITS, None, |queue, _, event| {
        if matches!(event, Event::Wait) {
            queue.after(Duration::from_secs(1), Event::Ping);
            queue.after(Duration::from_secs(2), Event::Ping);
        }
        NEVER_STOP
    });
    let want = Stats {
        events: 3,
        end: SimTime::from_nanos(3_000_000_000),
        outcome: Outcome::Drained,
        by_kind: vec![("ping", 2), ("pong", 0), ("wait", 1)],
    };
    assert_eq!(stats, Ok(want));
}

#[test]
fn stops_at_a_time_or_when_told() {
    let until = SimTime::from_nanos(1_500_000_000);
    let again = |queue: &mut EventQueue<Event>, _, _| {
        queue.after(Duration::from_secs(1), Event::Wait);
        NEVER_STOP
    };
    let mut queue = start();
    let stats = run(&mut queue, &LIMITS, Some(until), again).unwrap();
    assert_eq!((stats.events, stats.end), (1, until));
    assert_eq!(stats.outcome, Outcome::Reached);

    // From there it goes on, and an event at the very end still counts.
    let until = SimTime::from_nanos(3_000_000_000);
    let stats = run(&mut queue, &LIMITS, Some(until), again).unwrap();
    assert_eq!((stats.events, stats.end), (2, until));

    let stats = run(&mut queue, &LIMITS, None, |_, _, _| ControlFlow::Break(())).unwrap();
    assert_eq!((stats.events, stats.outcome), (1, Outcome::Stopped));
}

#[test]
fn passing_the_limit_on_events_names_the_busiest_kind() {
    let error = run(&mut start(), &LIMITS, None, |queue, _, _| {
        queue.after(Duration::from_nanos(5), Event::Pong);
        NEVER_STOP
    })
    .unwrap_err();
    assert_eq!(
        error.to_string(),
        "more than 1000 events by 1.000005000s: 1000 of them pong; raise the limit on events or \
         simulate less"
    );
}

#[test]
fn passing_the_limit_at_one_instant_names_the_kind_that_repeats() {
    let error = run(&mut start(), &LIMITS, None, |queue, now, event| {
        match event {
            Event::Wait if now == SimTime::from_nanos(1_000_000_000) => {
                // Many events, but not at one instant.
                for i in 1..=90 {
                    queue.after(Duration::from_nanos(i), Event::Pong);
                }
                queue.after(Duration::from_secs(1), Event::Ping);
            }
            Event::Ping => queue.after(Duration::ZERO, Event::Ping),
            _ => {}
        }
        NEVER_STOP
    })
    .unwrap_err();
    assert_eq!(
        error.to_string(),
        "more than 100 events at the one instant 2.000000000s: 51 of the last 51 are ping"
    );
}

#[test]
fn passing_the_limit_on_simulated_time_is_an_error() {
    let error = run(&mut start(), &LIMITS, None, |queue, _, _| {
        queue.after(Duration::from_secs(3), Event::Wait);
        NEVER_STOP
    })
    .unwrap_err();
    assert_eq!(
        error.to_string(),
        "events are left at 10.000000000s, the limit on simulated time, after 4 events, 4 of \
         them wait"
    );
}
