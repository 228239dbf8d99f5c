//! How the threads' tallies become one run: each sends its counts once an interval, one collector adds them up.

use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

use crate::histogram::{Measured, Op};

/// One thread's counts of one interval.
#[derive(Debug)]
pub struct Sample {
    /// Number of the interval, from the start of measurement.
    pub interval: usize,
    /// Counts by operation.
    pub ops: Vec<(Op, Measured)>,
    /// Errors so far of this thread, for display.
    pub errors: u64,
    /// The thread that sent it.
    pub thread: usize,
}

/// One interval of the run, all threads together.
#[derive(Clone, Debug, Default)]
pub struct Interval {
    /// Counts by operation.
    pub ops: Vec<(Op, Measured)>,
}

/// All intervals of the run, and their sum.
#[derive(Clone, Debug, Default)]
pub struct Collected {
    /// By number.
    pub intervals: Vec<Interval>,
    /// Over all of them.
    pub totals: Vec<(Op, Measured)>,
}

impl Collected {
    /// The total of one operation.
    pub fn total(&self, op: Op) -> Option<&Measured> {
        self.totals
            .iter()
            .find(|entry| entry.0 == op)
            .map(|entry| &entry.1)
    }

    fn add(&mut self, sample: &Sample) {
        for (op, measured) in &sample.ops {
            while self.intervals.len() <= sample.interval {
                self.intervals.push(Interval::default());
            }
            merge_into(&mut self.intervals[sample.interval].ops, *op, measured);
            merge_into(&mut self.totals, *op, measured);
        }
    }
}

/// Receives samples until every thread has gone; calls `on_sample` with each and at least every `tick`.
pub fn collect(
    from: &Receiver<Sample>,
    tick: Duration,
    mut on_sample: impl FnMut(Option<&Sample>),
) -> Collected {
    let mut collected = Collected::default();
    loop {
        match from.recv_timeout(tick) {
            Ok(sample) => {
                collected.add(&sample);
                on_sample(Some(&sample));
            }
            Err(RecvTimeoutError::Timeout) => on_sample(None),
            Err(RecvTimeoutError::Disconnected) => break,
        }
    }
    collected.totals.sort_by_key(|entry| entry.0 as usize);
    collected
}

fn merge_into(ops: &mut Vec<(Op, Measured)>, op: Op, measured: &Measured) {
    match ops.iter_mut().find(|entry| entry.0 == op) {
        Some(entry) => entry.1.merge(measured),
        None => ops.push((op, measured.clone())),
    }
}
