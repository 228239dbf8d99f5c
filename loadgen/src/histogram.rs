//! Counting: what one thread tallies.
//!
//! Latencies go into HDR histograms with three significant digits (an error of at most 0.1 %), from 1 µs to 10 minutes, in
//! nanoseconds. A latency belongs to the measurement if its request was *meant* to start inside the window; throughput counts
//! what completed inside the window. Warm-up and drain are thus left out of both. Errors are counted by kind, over the whole
//! run, and never as latencies.
//!
//! Each thread sends its histograms to the collector once an interval and keeps nothing shared, so that recording one request
//! costs an array increment.

use std::sync::mpsc::Sender;

use hdrhistogram::Histogram;

use crate::collect::Sample;
use crate::error::{ErrorKind, Errors};
use crate::verify::Fault;

/// Latencies below are recorded as this, in nanoseconds.
const LATENCY_NS_MIN: u64 = 1_000;
/// Latencies above are recorded as this, in nanoseconds.
const LATENCY_NS_MAX: u64 = 600_000_000_000;
const SIGNIFICANT_DIGITS: u8 = 3;

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// Creation of a stream.
    Create,
    /// One append, until its answer.
    Append,
    /// One catch-up response, until its last byte.
    Read,
    /// A whole stream, from its start until up to date.
    WholeRead,
    /// From the intended send time of a message until a live reader has it.
    Delivery,
    /// One bootstrap response.
    Bootstrap,
    /// A snapshot published in one request.
    Publish,
    /// One part of a snapshot staged.
    Stage,
    /// A snapshot published from its parts.
    Commit,
    /// One snapshot read whole.
    SnapshotRead,
}

impl Op {
    /// All of them, in the order of reports.
    pub const ALL: [Op; 10] = [
        Op::Create,
        Op::Append,
        Op::Read,
        Op::WholeRead,
        Op::Delivery,
        Op::Bootstrap,
        Op::Publish,
        Op::Stage,
        Op::Commit,
        Op::SnapshotRead,
    ];

    /// The name used in reports.
    pub fn name(self) -> &'static str {
        match self {
            Op::Create => "create",
            Op::Append => "append",
            Op::Read => "read",
            Op::WholeRead => "whole_read",
            Op::Delivery => "delivery",
            Op::Bootstrap => "bootstrap",
            Op::Publish => "snapshot_publish",
            Op::Stage => "snapshot_stage",
            Op::Commit => "snapshot_commit",
            Op::SnapshotRead => "snapshot_read",
        }
    }
}

/// The measurement window, in nanoseconds of the run's clock.
#[derive(Clone, Copy, Debug)]
pub struct Window {
    /// Requests start, unmeasured.
    pub start: u64,
    /// Measurement starts.
    pub measured: u64,
    /// Measurement ends and no more requests start.
    pub end: u64,
    /// What is still due by then is given up.
    pub drained: u64,
    /// Length of one interval of the report.
    pub interval: u64,
}

/// What one operation did, in one interval or in all.
#[derive(Clone, Debug)]
pub struct Measured {
    /// Latencies, in nanoseconds, of requests meant to start inside the window.
    pub latency: Histogram<u64>,
    /// Requests completed inside the window.
    pub completed: u64,
    /// Payload bytes of those.
    pub bytes: u64,
}

impl Default for Measured {
    fn default() -> Measured {
        Measured {
            latency: new_histogram(),
            completed: 0,
            bytes: 0,
        }
    }
}

impl Measured {
    /// Adds another's counts.
    pub fn merge(&mut self, other: &Measured) {
        // Same bounds on both sides, so this cannot fail.
        let _ = self.latency.add(&other.latency);
        self.completed += other.completed;
        self.bytes += other.bytes;
    }

    fn is_empty(&self) -> bool {
        self.completed == 0 && self.latency.is_empty()
    }

    fn clear(&mut self) {
        self.latency.reset();
        self.completed = 0;
        self.bytes = 0;
    }
}

/// A histogram with the bounds all of ours share.
pub fn new_histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(LATENCY_NS_MIN, LATENCY_NS_MAX, SIGNIFICANT_DIGITS)
        .expect("constant bounds are valid")
}

/// One thread's counts.
#[derive(Debug)]
pub struct Tally {
    window: Window,
    thread: usize,
    interval: usize,
    interval_ends: u64,
    ops: Vec<Option<Box<Measured>>>,
    errors: Errors,
    verified: u64,
    lag: Histogram<u64>,
    to: Option<Sender<Sample>>,
}

impl Tally {
    /// An empty tally that sends its intervals to `to`.
    pub fn new(window: Window, thread: usize, to: Option<Sender<Sample>>) -> Tally {
        Tally {
            window,
            thread,
            interval: 0,
            interval_ends: window.measured.saturating_add(window.interval),
            ops: Op::ALL.iter().map(|_| None).collect(),
            errors: Errors::default(),
            verified: 0,
            lag: new_histogram(),
            to,
        }
    }

    /// Sets the window, once the start is known. What was counted before stays.
    pub fn begin(&mut self, window: Window) {
        self.window = window;
        self.interval_ends = window.measured.saturating_add(window.interval);
    }

    /// A request of `bytes` payload bytes, meant to start at `intended`, completed at `now`.
    #[inline]
    pub fn record(&mut self, op: Op, intended: u64, now: u64, bytes: u64) {
        let window = self.window;
        let meant_inside = intended >= window.measured && intended < window.end;
        let completed_inside = now >= window.measured && now < window.end;
        if !meant_inside && !completed_inside {
            return;
        }
        let measured = self.ops[op as usize].get_or_insert_with(Box::default);
        if meant_inside {
            measured
                .latency
                .saturating_record(now.saturating_sub(intended));
        }
        if completed_inside {
            measured.completed += 1;
            measured.bytes += bytes;
        }
    }

    /// A request that was due at `intended` on an idle connection started at `now`: the generator's own lateness.
    #[inline]
    pub fn record_lag(&mut self, intended: u64, now: u64) {
        if intended >= self.window.measured && intended < self.window.end {
            self.lag.saturating_record(now.saturating_sub(intended));
        }
    }

    /// One error.
    pub fn error(&mut self, kind: ErrorKind) {
        self.errors.add(kind, 1);
    }

    /// One fault.
    pub fn fault(&mut self, fault: Fault) {
        self.errors.add(ErrorKind::Fault(fault), 1);
    }

    /// Messages that were read and checked.
    pub fn verified(&mut self, messages: u64) {
        self.verified += messages;
    }

    /// When [`Tally::flush`] is next due.
    #[inline]
    pub fn interval_ends(&self) -> u64 {
        self.interval_ends
    }

    /// Closes the interval that ended by `now` and sends its counts.
    pub fn flush(&mut self, now: u64) {
        let Some(to) = &self.to else {
            self.interval_ends = u64::MAX;
            return;
        };
        let mut ops = Vec::new();
        for op in Op::ALL {
            if let Some(measured) = &mut self.ops[op as usize]
                && !measured.is_empty()
            {
                ops.push((op, measured.as_ref().clone()));
                measured.clear();
            }
        }
        let sample = Sample {
            interval: self.interval,
            ops,
            errors: self.errors.total(),
            thread: self.thread,
        };
        // The collector outlives the threads; if it is gone the run has been given up.
        let _ = to.send(sample);
        let passed = now.saturating_sub(self.window.measured) / self.window.interval.max(1);
        self.interval = usize::try_from(passed).unwrap_or(usize::MAX);
        self.interval_ends = self.window.measured.saturating_add(
            passed
                .saturating_add(1)
                .saturating_mul(self.window.interval),
        );
    }

    /// Sends what is left and gives up the counts that are not sent: errors, messages verified, lag.
    pub fn finish(&mut self, now: u64) -> (Errors, u64, Histogram<u64>) {
        self.flush(now);
        self.to = None;
        (
            std::mem::take(&mut self.errors),
            self.verified,
            self.lag.clone(),
        )
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Duration;

    use super::{Op, Tally, Window};
    use crate::collect::collect;
    use crate::error::ErrorKind;

    const MS: u64 = 1_000_000;

    fn window() -> Window {
        Window {
            start: 0,
            measured: 100 * MS,
            end: 300 * MS,
            drained: 400 * MS,
            interval: 100 * MS,
        }
    }

    #[test]
    fn warm_up_and_drain_are_left_out() {
        let (to, from) = mpsc::channel();
        let mut tally = Tally::new(window(), 0, Some(to));
        tally.record(Op::Append, 50 * MS, 60 * MS, 1); // warm-up
        tally.record(Op::Append, 90 * MS, 110 * MS, 10); // completed inside, not meant inside
        tally.record(Op::Append, 150 * MS, 160 * MS, 100);
        tally.flush(200 * MS);
        tally.record(Op::Append, 290 * MS, 390 * MS, 1000); // meant inside, completed in the drain
        tally.error(ErrorKind::Status(503));
        let (errors, ..) = tally.finish(400 * MS);
        let collected = collect(&from, Duration::from_millis(1), |_| {});
        let total = collected.total(Op::Append).expect("appends");
        assert_eq!(
            (total.completed, total.bytes, total.latency.len()),
            (2, 110, 2)
        );
        assert!(total.latency.equivalent(total.latency.max(), 100 * MS));
        assert_eq!(errors.total(), 1);
        assert_eq!(collected.intervals.len(), 2);
    }
}
