//! How many nanoseconds does the latency profile add to an append?
//!
//! A durable append at the aim of some 40,000 a second and core leaves 25 µs for everything; the
//! aim for what is measured of it is 2 %, 500 ns. `clock` is the six readings of the clock alone,
//! `still` the same path with a clock that costs nothing, `whole` both. All this is of a request that
//! is timed: above 10,000 a second and core most are not.

use std::rc::Rc;

use divan::{Bencher, black_box};
use futures_lite::future::{block_on, poll_fn};
use thalweg::base::time::{Clock, ManualClock, SystemClock};
use thalweg::http::parse::Method;
use thalweg::server::latency::sample::Arrival;
use thalweg::server::latency::shelf::Shelf;
use thalweg::server::latency::slow::Slow;
use thalweg::server::latency::stopwatch::Stage;
use thalweg::server::latency::{Latency, profile::Series};
use thalweg::storage::journal::BatchTimes;

fn main() {
    divan::main();
}

/// One connection's appends, each in a batch of its own.
fn append(latency: &Latency, clock: &dyn Clock) {
    let arrival = Arrival {
        at_ns: clock.monotonic_ns(),
        stands_for: 1,
    };
    let target = black_box(b"/v1/stream/demo/hello");
    let mut watch = latency.start(arrival, Method::Post, target);
    latency.lap(&mut watch, Stage::Body);
    let decided = latency.within(&mut watch, || latency.decided());
    let trip = decided.committed(BatchTimes {
        issued_ns: decided.decided_ns + 10,
        durable_ns: decided.decided_ns + 20,
    });
    let mut polls = 0;
    let pending = poll_fn(|cx| {
        polls += 1;
        if polls == 1 {
            cx.waker().wake_by_ref();
            return std::task::Poll::Pending;
        }
        latency.follow(&trip, true);
        std::task::Poll::Ready(())
    });
    block_on(latency.scope(&mut watch, pending));
    latency.written(&mut vec![watch]);
}

fn bench(bencher: Bencher<'_, '_>, clock: Rc<dyn Clock>) {
    let latency = Latency::new(clock.clone(), Slow::new(0, 10));
    let mut appends = 0;
    bencher.bench_local(|| {
        append(&latency, &*clock);
        appends += 1;
    });
    let shelf = Shelf::default();
    let ticket = shelf.ask(false);
    latency.serve(&shelf);
    let profile = shelf.take(ticket).expect("it was just laid out");
    let recorded = |wanted| {
        let found = profile.iter().find(|(series, _)| *series == wanted);
        found.map(|(_, times)| times.histogram.len())
    };
    for series in [Series::Request, Series::Stage(Stage::Journal)] {
        assert_eq!(recorded(series), Some(appends), "{}", series.name());
    }
}

#[divan::bench]
fn whole(bencher: Bencher<'_, '_>) {
    bench(bencher, Rc::new(SystemClock));
}

#[divan::bench]
fn still(bencher: Bencher<'_, '_>) {
    let clock = ManualClock::new(0);
    clock.advance(std::time::Duration::from_secs(1));
    bench(bencher, Rc::new(clock));
}

#[divan::bench]
fn clock(bencher: Bencher<'_, '_>) {
    let clock: Rc<dyn Clock> = Rc::new(SystemClock);
    bencher.bench_local(|| (0..6).fold(0, |sum: u64, _| sum ^ black_box(&clock).monotonic_ns()));
}

/// What only the wake-up and the poll cost, which an append has anyway.
#[divan::bench]
fn nothing() {
    let mut polls = 0;
    block_on(poll_fn(|cx| {
        polls += 1;
        if black_box(polls) == 1 {
            cx.waker().wake_by_ref();
            return std::task::Poll::Pending;
        }
        std::task::Poll::Ready(())
    }));
}
