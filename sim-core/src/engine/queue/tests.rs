use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use proptest::prelude::*;

use super::*;

/// Time, sequence, event, and the timer if it is one.
type Scheduled = (u64, u64, u32, Option<TimerId>);

/// The contract, spelled out: a heap by time and sequence, and a table of the valid timers.
#[derive(Default)]
struct Reference {
    now: u64,
    scheduled: u64,
    heap: BinaryHeap<Reverse<Scheduled>>,
    timers: BTreeMap<TimerId, u64>,
    fired_only: usize,
}

impl Reference {
    fn at(&mut self, time: u64, event: u32) {
        self.scheduled += 1;
        self.fired_only += 1;
        self.heap.push(Reverse((time, self.scheduled, event, None)));
    }

    fn set_timer(&mut self, timer: TimerId, time: u64, event: u32) {
        self.scheduled += 1;
        self.timers.insert(timer, self.scheduled);
        let entry = (time, self.scheduled, event, Some(timer));
        self.heap.push(Reverse(entry));
    }

    fn clear_timer(&mut self, timer: TimerId) -> bool {
        self.timers.remove(&timer).is_some()
    }

    fn drop_cleared(&mut self) {
        while let Some(Reverse((_, seq, _, Some(timer)))) = self.heap.peek() {
            if self.timers.get(timer) == Some(seq) {
                break;
            }
            self.heap.pop();
        }
    }

    fn peek_time(&mut self) -> Option<u64> {
        self.drop_cleared();
        self.heap.peek().map(|Reverse((time, ..))| *time)
    }

    fn pop_until(&mut self, limit: u64) -> Option<(u64, u32)> {
        if self.peek_time().is_none_or(|time| time > limit) {
            self.now = limit;
            return None;
        }
        let Reverse((time, _, event, timer)) = self.heap.pop().unwrap();
        match timer {
            Some(timer) => drop(self.timers.remove(&timer)),
            None => self.fired_only -= 1,
        }
        self.now = time;
        Some((time, event))
    }
}

#[derive(Clone, Debug)]
enum Step {
    After(u64),
    /// This many events, each this long after the one before.
    Burst(u32, u64),
    SetTimer(u32, u64),
    ClearTimer(u32),
    Pop(u32),
    /// Pops what is left up to this long from now.
    PopUntil(u64),
    Peek,
}

/// Delays of all sizes, with many ties, and many just around the edges of buckets.
fn delay() -> impl Strategy<Value = u64> {
    prop_oneof![
        3 => Just(0_u64),
        3 => 0..4_u64,
        2 => 90_000..110_000_u64,
        2 => Just(100_000_u64),
        2 => 0..2_000_000_000_u64,
        1 => (0..60_u32, -1..=1_i64).prop_map(|(bits, off)| (1_u64 << bits).wrapping_add_signed(off)),
        1 => 0..1_u64 << 60,
    ]
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => delay().prop_map(Step::After),
        1 => (1..200_u32, prop_oneof![Just(0), Just(1), Just(1000), Just(1 << 20)])
            .prop_map(|(count, gap)| Step::Burst(count, gap)),
        2 => (0..8_u32, delay()).prop_map(|(timer, delay)| Step::SetTimer(timer, delay)),
        1 => (0..8_u32).prop_map(Step::ClearTimer),
        4 => (1..60_u32).prop_map(Step::Pop),
        1 => delay().prop_map(Step::PopUntil),
        1 => Just(Step::Peek),
    ]
}

/// Where clocks of property tests stop, so that adding a delay does not overflow.
const FAR: u64 = 1 << 62;

fn check(steps: &[Step]) {
    let mut queue = EventQueue::new();
    let mut reference = Reference::default();
    let mut event = 0;
    for step in steps {
        let mut schedule = |delay: u64, timer: Option<TimerId>| {
            let time = reference.now + delay;
            let at = SimTime::from_nanos(time);
            event += 1;
            match timer {
                None => {
                    queue.at(at, event);
                    reference.at(time, event);
                }
                Some(timer) => {
                    queue.set_timer(timer, at, event);
                    reference.set_timer(timer, time, event);
                }
            }
        };
        match *step {
            Step::After(delay) => schedule(delay, None),
            Step::Burst(count, gap) => (0..count).for_each(|i| schedule(u64::from(i) * gap, None)),
            Step::SetTimer(timer, delay) => schedule(delay, Some(TimerId::new(3, timer))),
            Step::ClearTimer(timer) => {
                let timer = TimerId::new(3, timer);
                assert_eq!(queue.clear_timer(timer), reference.clear_timer(timer));
            }
            Step::Pop(count) => {
                for _ in 0..count {
                    if reference.peek_time().is_none_or(|time| time > FAR) {
                        break;
                    }
                    let (time, event) = queue.pop().unwrap();
                    assert_eq!(reference.pop_until(FAR), Some((time.as_nanos(), event)));
                }
            }
            Step::PopUntil(delay) => {
                let limit = (reference.now + delay).min(FAR).max(reference.now);
                loop {
                    let popped = queue.pop_until(SimTime::from_nanos(limit));
                    let expected = reference.pop_until(limit);
                    assert_eq!(popped.map(|(time, event)| (time.as_nanos(), event)), expected);
                    if expected.is_none() {
                        break;
                    }
                }
            }
            Step::Peek => {}
        }
        assert_eq!(queue.now().as_nanos(), reference.now);
        assert_eq!(queue.len(), reference.fired_only + reference.timers.len());
        let first = queue.peek_time().map(SimTime::as_nanos);
        assert_eq!(first, reference.peek_time());
    }
    while let Some((time, event)) = queue.pop() {
        assert_eq!(reference.pop_until(u64::MAX), Some((time.as_nanos(), event)));
    }
    assert_eq!(reference.peek_time(), None);
    assert!(queue.is_empty());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn leaves_in_the_order_of_a_heap(steps in prop::collection::vec(step(), 1..120)) {
        check(&steps);
    }
}

#[test]
fn many_events_leave_in_the_order_of_a_heap() {
    let steps: Vec<_> = (0..30_000_u64)
        .flat_map(|i| {
            let scattered = scramble(i) % 3_000_000_000;
            let delay = if i % 4 == 0 { 100_000 } else { scattered };
            let pops = if i < 10_000 { 0 } else { 2 };
            [Step::After(delay), Step::After(delay / 1000), Step::Pop(pops)]
        })
        .collect();
    // `check` peeks after every step, which looks at whole buckets: in pieces.
    for piece in steps.chunks(6000) {
        check(piece);
    }
}

#[test]
fn events_of_one_instant_leave_in_order_of_scheduling() {
    let mut queue = EventQueue::new();
    for event in 0..100_000_u32 {
        queue.at(SimTime::from_nanos(1_234_567), event);
    }
    for event in 0..50_000 {
        assert_eq!(queue.pop().unwrap().1, event);
        queue.after(Duration::ZERO, 100_000 + event);
    }
    for event in 50_000..150_000 {
        assert_eq!(queue.pop().unwrap().1, event);
    }
    assert_eq!(queue.pop(), None);
}

#[test]
fn the_end_of_time_is_a_time() {
    let mut queue = EventQueue::new();
    queue.at(SimTime::MAX, 'b');
    queue.set_timer(TimerId::new(0, 0), SimTime::MAX, 'c');
    queue.at(SimTime::ZERO, 'a');
    assert_eq!(queue.pop(), Some((SimTime::ZERO, 'a')));
    assert_eq!(queue.pop(), Some((SimTime::MAX, 'b')));
    queue.at(SimTime::MAX, 'd');
    assert_eq!(queue.pop(), Some((SimTime::MAX, 'c')));
    assert_eq!(queue.pop(), Some((SimTime::MAX, 'd')));
    assert_eq!(queue.pop(), None);
}

#[test]
fn a_moved_timer_goes_behind_what_is_scheduled() {
    let mut queue = EventQueue::new();
    let (timer, at) = (TimerId::new(1, 1), SimTime::from_nanos(10));
    queue.set_timer(timer, at, 'x');
    queue.at(at, 'a');
    queue.set_timer(timer, at, 't');
    queue.at(at, 'b');
    assert_eq!(queue.len(), 3);
    let order: String = std::iter::from_fn(|| queue.pop()).map(|(_, e)| e).collect();
    assert_eq!(order, "atb");
    assert!(!queue.clear_timer(timer), "a timer that has fired is not set");
}

#[test]
fn an_event_may_come_before_a_bucket_that_was_entered() {
    let mut queue = EventQueue::new();
    queue.at(SimTime::from_nanos(5_000_000_000), 'c');
    queue.set_timer(TimerId::new(0, 0), SimTime::from_nanos(3_000_000_000), 'a');
    assert_eq!(queue.pop_until(SimTime::from_nanos(1_000_000_000)), None);
    queue.after(Duration::from_nanos(2_000_000_001), 'b');
    let order: String = std::iter::from_fn(|| queue.pop()).map(|(_, e)| e).collect();
    assert_eq!(order, "abc");
}

#[test]
fn shuffling_permutes_simultaneous_events_only() {
    let order = |seed| {
        let mut queue = EventQueue::with_shuffled_ties(seed);
        for event in 0..200_u32 {
            queue.at(SimTime::from_nanos(u64::from(event / 50)), event);
        }
        let mut order = Vec::new();
        while let Some((time, event)) = queue.pop() {
            assert_eq!(time.as_nanos(), u64::from(event / 50));
            order.push(event);
        }
        order
    };
    let (one, other) = (order(1), order(2));
    assert_ne!(one, other);
    assert_eq!(one, order(1));
    let mut sorted = one.clone();
    sorted.sort_unstable();
    assert_eq!(sorted, (0..200).collect::<Vec<_>>());
}

#[test]
#[should_panic(expected = "scheduled for 0.000000001s, but it is 0.000000002s already")]
fn the_past_is_refused() {
    let mut queue = EventQueue::new();
    queue.at(SimTime::from_nanos(2), ());
    queue.pop();
    queue.at(SimTime::from_nanos(1), ());
}

#[test]
fn components_see_their_own_events_only() {
    #[derive(Clone, Copy, Debug, PartialEq)]
    struct Probe(u8);
    #[derive(Clone, Copy, Debug, PartialEq)]
    enum Root {
        Probe(Probe),
    }
    impl From<Probe> for Root {
        fn from(probe: Probe) -> Root {
            Root::Probe(probe)
        }
    }
    fn component(events: &mut impl Schedule<Probe>) {
        let now = events.now();
        events.after(Duration::from_nanos(2), Probe(2));
        events.at(now + Duration::from_nanos(1), Probe(1));
        events.set_timer(TimerId::new(0, 0), now, Probe(0));
        assert!(events.clear_timer(TimerId::new(0, 0)));
    }
    let mut queue = EventQueue::<Root>::new();
    component(&mut queue);
    let order: Vec<_> = std::iter::from_fn(|| queue.pop()).map(|(_, e)| e).collect();
    assert_eq!(order, [Root::Probe(Probe(1)), Root::Probe(Probe(2))]);
}
