//! What a journal notes for whoever profiles and operates it: when recent
//! batches were issued and became durable, and how much space the disk had.
//!
//! Two clock readings a batch, none a record. Nothing here decides anything: a
//! journal without a clock works the same and knows no times.

use std::cell::{Cell, OnceCell, RefCell};
use std::rc::Rc;

use super::BatchNumber;
use crate::base::time::Clock;

/// Batches whose times are remembered. Whoever waits for a batch asks within a few batches of its
/// landing; one that comes later finds nothing and must say so.
const RECENT: usize = 64;

/// When a batch was on its way, in nanoseconds of [`Clock::monotonic_ns`]; 0 for not known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BatchTimes {
    /// When its write was issued: it took no more records.
    pub issued_ns: u64,
    /// When it was seen to be durable.
    pub durable_ns: u64,
}

/// What one journal has noted.
pub(super) struct Observed {
    clock: OnceCell<Rc<dyn Clock>>,
    recent: RefCell<[(u64, BatchTimes); RECENT]>,
    /// Free bytes of the file system when it was last asked; 0 before that.
    pub(super) free_bytes: Cell<u64>,
}

impl Default for Observed {
    fn default() -> Self {
        Self {
            clock: OnceCell::new(),
            recent: RefCell::new([(0, BatchTimes::default()); RECENT]),
            free_bytes: Cell::new(0),
        }
    }
}

impl Observed {
    /// From now on batches are timed. The first clock stays.
    pub(super) fn keep_time(&self, clock: Rc<dyn Clock>) {
        let _ = self.clock.set(clock);
    }

    /// Batch `number` is on its way.
    pub(super) fn issued(&self, number: u64) {
        let Some(clock) = self.clock.get() else {
            return;
        };
        let times = BatchTimes {
            issued_ns: clock.monotonic_ns(),
            durable_ns: 0,
        };
        if let Some(place) = self.recent.borrow_mut().get_mut(place(number)) {
            *place = (number, times);
        }
    }

    /// Batch `number` is durable.
    pub(super) fn landed(&self, number: u64) {
        let Some(clock) = self.clock.get() else {
            return;
        };
        if let Some((of, times)) = self.recent.borrow_mut().get_mut(place(number))
            && *of == number
        {
            times.durable_ns = clock.monotonic_ns();
        }
    }

    /// The times of a recent batch.
    pub(super) fn times(&self, batch: BatchNumber) -> BatchTimes {
        match self.recent.borrow().get(place(batch.0)) {
            Some((of, times)) if *of == batch.0 => *times,
            _ => BatchTimes::default(),
        }
    }
}

#[expect(clippy::arithmetic_side_effects, reason = "`RECENT` is not 0")]
fn place(number: u64) -> usize {
    (number % RECENT as u64) as usize
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::time::ManualClock;
    use std::time::Duration;

    #[test]
    fn a_batch_is_timed_until_others_take_its_place() {
        let observed = Observed::default();
        observed.issued(1);
        assert_eq!(observed.times(BatchNumber(1)), BatchTimes::default());
        let clock = ManualClock::new(0);
        observed.keep_time(Rc::new(clock.clone()));
        clock.advance(Duration::from_nanos(5));
        observed.issued(2);
        clock.advance(Duration::from_nanos(7));
        observed.landed(2);
        observed.landed(3);
        let times = BatchTimes {
            issued_ns: 5,
            durable_ns: 12,
        };
        assert_eq!(observed.times(BatchNumber(2)), times);
        assert_eq!(observed.times(BatchNumber(3)), BatchTimes::default());
        observed.issued(2 + RECENT as u64);
        assert_eq!(observed.times(BatchNumber(2)), BatchTimes::default());
    }
}
