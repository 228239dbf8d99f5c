//! The latency profile: how long requests take, and in which stage.
//!
//! ```text
//!  bytes arrive   routed   body in   decided   issued   durable   task runs   written
//!       ├── head ───┼─ body ──┼─ decide ─┼ staging ─┼ journal ─┼── wake ───┼── write ──┤
//!                        (mailbox before decide and before wake, if the owner is another core)
//! ```
//!
//! Each request that is timed ([`sample`]) carries a
//! [`Stopwatch`](stopwatch::Stopwatch), read once at the end of each stage; the
//! moments in between come from the
//! [`Trip`] of its answer and from the journal, which reads the clock twice a
//! batch. When the answer is written the core that has the connection adds the
//! request to its own [`Profile`](profile::Profile): no lock, nothing shared.
//! The operator gets copies through the [`Shelf`](shelf::Shelf).
//!
//! What runs inside [`Latency::scope`] is timed on the stopwatch it was given:
//! every answer that is awaited there ends a stage of that request, however
//! deep the call. Outside of it answers are timed on a watch nobody reads.

pub mod profile;
pub mod report;
pub mod sample;
pub mod shelf;
pub mod slow;
pub mod stopwatch;

use std::{
    cell::{Cell, RefCell},
    future::Future,
    mem,
    pin::Pin,
    rc::Rc,
    task::{Context, Poll},
};

use crate::{
    base::time::Clock,
    http::parse::Method,
    server::latency::{
        profile::{Profile, Series},
        sample::{Arrival, Sample},
        shelf::Shelf,
        slow::Slow,
        stopwatch::{Stage, Stopwatch},
    },
    shard::trip::Trip,
    storage::journal::BatchTimes,
};

/// Requests whose times are gathered before they go into histograms: together each histogram is
/// fetched into the cache once for all of them.
const GATHERED_MAX: usize = 32;

/// One core's profile and what it takes to measure.
pub struct Latency {
    clock: Rc<dyn Clock>,
    /// The watch of the request whose future is being polled.
    current: RefCell<Timed>,
    gathered: RefCell<Gathered>,
    resets: Cell<u64>,
    sample: Sample,
    slow: Slow,
}

/// What is measured, and the watches on their way there and back.
#[expect(
    clippy::vec_box,
    reason = "watches are handed on as they are, not copied"
)]
struct Gathered {
    profile: Profile,
    /// Of requests that are over.
    over: Vec<Box<Stopwatch>>,
    /// To be used again; at most [`GATHERED_MAX`].
    unused: Vec<Box<Stopwatch>>,
}

impl Gathered {
    fn add(&mut self, watch: Box<Stopwatch>) {
        self.over.push(watch);
        if self.over.len() >= GATHERED_MAX {
            self.record();
        }
    }

    fn record(&mut self) {
        self.profile.requests(&self.over);
        self.unused.append(&mut self.over);
        self.unused.truncate(GATHERED_MAX);
    }
}

/// A request's watch, where there is one: moved about with what it times, and small.
#[derive(Debug, Default)]
pub struct Timed(Option<Box<Stopwatch>>);

impl Timed {
    /// That of a request that came with this one: it is there when this one's last stage ends.
    #[must_use]
    pub fn next_arrival(&self) -> Arrival {
        self.0
            .as_ref()
            .map_or_else(Arrival::default, |watch| Arrival {
                at_ns: watch.last_ns(),
                stands_for: watch.stands_for,
            })
    }

    /// Whether there is one.
    #[must_use]
    pub fn is_some(&self) -> bool {
        self.0.is_some()
    }

    /// Its body is there.
    pub fn set_body_bytes(&mut self, bytes: u64) {
        if let Some(watch) = &mut self.0 {
            watch.body_bytes = bytes;
        }
    }

    /// Its answer's head begins `text`.
    pub fn answered(&mut self, text: &[u8]) {
        if let Some(watch) = &mut self.0 {
            watch.status = status_of(text);
        }
    }
}

impl Latency {
    /// A profile of nothing yet.
    #[must_use]
    pub fn new(clock: Rc<dyn Clock>, slow: Slow) -> Self {
        Self {
            gathered: RefCell::new(Gathered {
                profile: Profile::new(clock.now_ms()),
                over: Vec::with_capacity(GATHERED_MAX),
                unused: Vec::with_capacity(2 * GATHERED_MAX),
            }),
            current: RefCell::default(),
            resets: Cell::new(0),
            sample: Sample::new(slow.is_on()),
            clock,
            slow,
        }
    }

    fn now_ns(&self) -> u64 {
        self.clock.monotonic_ns()
    }

    /// Bytes of a request have come.
    #[must_use]
    pub fn arrival(&self) -> Arrival {
        self.sample.draw(|| self.now_ns())
    }

    /// What was just decided without leaving this core.
    #[must_use]
    pub fn decided(&self) -> Trip {
        if self.current.borrow().is_some() {
            Trip::local(self.now_ns())
        } else {
            Trip::default()
        }
    }

    /// The watch of a request that came at `arrival` and is now known by name, if it is timed.
    pub fn start(&self, arrival: Arrival, method: Method, target: &[u8]) -> Timed {
        if arrival.stands_for == 0 {
            return Timed(None);
        }
        let unused = self.gathered.borrow_mut().unused.pop();
        let mut watch = unused.unwrap_or_default();
        *watch = Stopwatch::started(arrival);
        self.slow.name(&mut watch, method, target);
        watch.lap(Stage::Head, self.clock.monotonic_ns());
        Timed(Some(watch))
    }

    /// `stage` has just ended.
    pub fn lap(&self, watch: &mut Timed, stage: Stage) {
        if let Some(watch) = &mut watch.0 {
            watch.lap(stage, self.clock.monotonic_ns());
        }
    }

    /// Times on `watch` what `call` does at once.
    pub fn within<T>(&self, watch: &mut Timed, call: impl FnOnce() -> T) -> T {
        mem::swap(&mut *self.current.borrow_mut(), watch);
        let done = call();
        mem::swap(&mut *self.current.borrow_mut(), watch);
        done
    }

    /// Times on `watch` what `future` waits for.
    pub fn scope<'a, F: Future + Unpin>(&'a self, watch: &'a mut Timed, future: F) -> Scope<'a, F> {
        Scope {
            latency: self,
            watch,
            future,
        }
    }

    /// An outcome was taken up that came by `trip`. Whether it had to be waited for decides if
    /// there was a wake-up to time.
    pub fn follow(&self, trip: &Trip, waited: bool) {
        if let Some(watch) = &mut self.current.borrow_mut().0 {
            let now_ns = if waited { self.now_ns() } else { 0 };
            watch.follow(trip, now_ns);
        }
    }

    /// A long-poll has waited; until `published_ns` if what woke it is data, readable since then.
    pub fn parked(&self, published_ns: Option<u64>) {
        let Some(watch) = &mut self.current.borrow_mut().0 else {
            return;
        };
        let now_ns = self.now_ns();
        // A moment from before the wait is that of an earlier change: this one's is not known yet.
        let published_ns = published_ns.filter(|&published_ns| published_ns > watch.last_ns());
        watch.lap(Stage::Wait, published_ns.unwrap_or(now_ns));
        if let Some(published_ns) = published_ns {
            watch.published_ns = published_ns;
            watch.lap(Stage::Wake, now_ns);
        }
    }

    /// An event is written whose data became readable at `published_ns`. `seen_ns` is what was
    /// delivered last to this reader: a change is counted once, with the first event of it.
    pub fn delivered(&self, published_ns: u64, seen_ns: &mut u64) {
        if published_ns > *seen_ns {
            *seen_ns = published_ns;
            let ns = self.now_ns().saturating_sub(published_ns);
            let profile = &mut self.gathered.borrow_mut().profile;
            profile.record(Series::SseDelivery, ns);
        }
    }

    /// Requests are over: their answers are written.
    pub fn written(&self, watches: &mut Vec<Timed>) {
        if watches.is_empty() {
            return;
        }
        let now_ns = self.now_ns();
        let mut gathered = self.gathered.borrow_mut();
        for mut watch in watches.drain(..).filter_map(|watch| watch.0) {
            watch.lap(Stage::Write, now_ns);
            self.slow.consider(&watch);
            gathered.add(watch);
        }
    }

    /// A request is over whose answer goes on for long: an event stream has begun.
    pub fn opened(&self, watch: &mut Timed) {
        if let Some(mut watch) = watch.0.take() {
            watch.status = 200;
            self.slow.consider(&watch);
            self.gathered.borrow_mut().add(watch);
        }
    }

    /// A batch of this core's journal is durable.
    pub fn batch(&self, times: BatchTimes) {
        self.gathered.borrow_mut().profile.batch(times);
    }

    /// Lays a copy out if the operator has asked for one.
    pub fn serve(&self, shelf: &Shelf) {
        let Some(asked) = shelf.asked() else { return };
        let gathered = &mut *self.gathered.borrow_mut();
        gathered.record();
        if self.resets.replace(asked.resets) != asked.resets {
            gathered.profile.reset(self.clock.now_ms());
        }
        shelf.give(asked, gathered.profile.clone());
    }
}

/// A future that is timed on a stopwatch.
pub struct Scope<'a, F> {
    latency: &'a Latency,
    watch: &'a mut Timed,
    future: F,
}

impl<F: Future + Unpin> Future for Scope<'_, F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let this = &mut *self;
        let future = Pin::new(&mut this.future);
        this.latency.within(this.watch, || future.poll(cx))
    }
}

/// The status of an answer, from its head; 0 if this is none.
fn status_of(head: &[u8]) -> u16 {
    #[expect(clippy::arithmetic_side_effects, reason = "three digits")]
    match head.get(8..12) {
        Some(&[b' ', a @ b'1'..=b'9', b @ b'0'..=b'9', c @ b'0'..=b'9']) => [a, b, c]
            .iter()
            .fold(0, |status, digit| status * 10 + u16::from(digit - b'0')),
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::time::ManualClock;
    use futures_lite::future::{block_on, poll_fn};
    use std::time::Duration;

    fn at(at_ns: u64) -> Arrival {
        let stands_for = 1;
        Arrival { at_ns, stands_for }
    }

    fn measured(latency: &Latency) -> Vec<(&'static str, u64)> {
        let gathered = &mut *latency.gathered.borrow_mut();
        gathered.record();
        let series = gathered
            .profile
            .iter()
            .filter(|(_, times)| times.sum_ns > 0);
        series
            .map(|(of, times)| (of.name(), times.sum_ns))
            .collect()
    }

    #[test]
    fn a_request_and_its_stages() {
        let clock = ManualClock::new(0);
        let latency = Latency::new(Rc::new(clock.clone()), Slow::new(0, 0));
        let pass = |ns| {
            clock.advance(Duration::from_nanos(ns));
            clock.monotonic_ns()
        };
        let arrived_ns = pass(100);
        let arrival = latency.arrival();
        pass(5);
        let mut watch = latency.start(arrival, Method::Post, b"/b/s");
        pass(6);
        latency.lap(&mut watch, Stage::Body);
        // Two calls to owners inside one future, the second of which waits.
        let mut polls = 0;
        let calls = poll_fn(|cx| {
            polls += 1;
            if polls == 1 {
                latency.follow(&Trip::local(pass(7)), false);
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            let committed = Trip::local(pass(8)).committed(BatchTimes {
                issued_ns: pass(9),
                durable_ns: pass(10),
            });
            pass(11);
            latency.follow(&committed, true);
            Poll::Ready(())
        });
        block_on(latency.scope(&mut watch, calls));
        // Nobody's: a call outside of a scope.
        latency.follow(&Trip::local(pass(1)), true);
        pass(11);
        latency.written(&mut vec![watch]);
        assert_eq!(
            measured(&latency),
            [
                ("head", 5),
                ("body", 6),
                ("decide", 15),
                ("staging", 9),
                ("journal", 10),
                ("wake", 11),
                ("write", 12),
                ("request", 68),
            ]
        );
        assert_eq!(clock.monotonic_ns() - arrived_ns, 68);
    }

    #[test]
    fn a_request_stands_for_others_and_those_leave_nothing() {
        let clock = ManualClock::new(0);
        let latency = Latency::new(Rc::new(clock.clone()), Slow::new(0, 0));
        let untimed = latency.start(Arrival::default(), Method::Get, b"/");
        assert_eq!(untimed.next_arrival(), Arrival::default());
        let arrival = Arrival {
            at_ns: 0,
            stands_for: 8,
        };
        clock.advance(Duration::from_nanos(5));
        let mut timed = latency.start(arrival, Method::Get, b"/");
        assert_eq!(timed.next_arrival().stands_for, 8);
        clock.advance(Duration::from_nanos(2));
        assert_eq!(latency.decided(), Trip::default());
        let decided = latency.within(&mut timed, || latency.decided());
        assert_eq!(decided, Trip::local(7));
        latency.written(&mut vec![timed, untimed]);
        assert_eq!(
            measured(&latency),
            [("head", 40), ("write", 16), ("request", 56)]
        );
        let gathered = latency.gathered.borrow();
        let counts = gathered
            .profile
            .iter()
            .map(|(_, times)| times.histogram.len());
        assert_eq!(counts.sum::<u64>(), 24);
    }

    #[test]
    fn deliveries_are_measured_from_the_publication() {
        let clock = ManualClock::new(0);
        let latency = Latency::new(Rc::new(clock.clone()), Slow::new(0, 0));
        clock.advance(Duration::from_nanos(1_000));
        let mut watch = latency.start(at(900), Method::Get, b"/b/s");
        clock.advance(Duration::from_nanos(50));
        mem::swap(&mut *latency.current.borrow_mut(), &mut watch);
        latency.parked(Some(1_030));
        mem::swap(&mut *latency.current.borrow_mut(), &mut watch);
        clock.advance(Duration::from_nanos(3));
        latency.written(&mut vec![watch]);
        let mut seen_ns = 1_000;
        latency.delivered(1_000, &mut seen_ns);
        latency.delivered(1_053, &mut seen_ns);
        latency.delivered(1_052, &mut seen_ns);
        clock.advance(Duration::from_nanos(7));
        latency.delivered(1_056, &mut seen_ns);
        assert_eq!(
            measured(&latency),
            [
                ("head", 100),
                ("wake", 20),
                ("write", 3),
                ("wait", 30),
                ("request", 123),
                ("long_poll_delivery", 23),
                ("sse_delivery", 4),
            ]
        );
    }

    #[test]
    fn the_operator_gets_a_copy_and_a_reset_empties_the_next() {
        let latency = Latency::new(Rc::new(ManualClock::new(3)), Slow::new(0, 0));
        let shelf = Shelf::default();
        let count = |ticket| {
            latency.serve(&shelf);
            let copy = shelf.take(ticket).unwrap();
            copy.iter()
                .map(|(_, times)| times.histogram.len())
                .sum::<u64>()
        };
        latency.written(&mut vec![latency.start(at(0), Method::Get, b"/")]);
        // Head, write and the request.
        assert_eq!(count(shelf.ask(false)), 3);
        assert_eq!(count(shelf.ask(true)), 0);
        latency.written(&mut vec![latency.start(at(0), Method::Get, b"/")]);
        assert_eq!(count(shelf.ask(false)), 3);
    }

    #[test]
    fn statuses() {
        assert_eq!(status_of(b"HTTP/1.1 204 No Content\r\n"), 204);
        assert_eq!(status_of(b"HTTP/1.1 2"), 0);
        assert_eq!(status_of(b""), 0);
    }
}
