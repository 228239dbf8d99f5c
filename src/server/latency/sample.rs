//! Which requests are timed: all while there are few; of many, some by chance,
//! each of which stands for those that are not.
//!
//! A core that answers a hundred thousand requests a second would spend one in
//! twenty of its moments on timing all of them, and learn nothing more. Whether
//! a request is timed is drawn when its bytes arrive, before anything is known
//! of it, so that slow ones are in the sample as often as they occur.

use std::cell::{Cell, RefCell};

use crate::base::rng::Rng;

/// Length of the windows in which arrivals are counted, in nanoseconds.
const WINDOW_NS: u64 = 10_000_000;
/// Arrivals in a window that are all timed; of more, at least so many and fewer than twice.
const TIMED_PER_WINDOW: u64 = 100;
/// At least one in so many is timed.
const ONE_IN_MAX: u64 = 64;

/// When the bytes of a request were there, and how many requests it stands for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Arrival {
    /// In nanoseconds of the monotonic clock.
    pub at_ns: u64,
    /// 0 when it is not timed.
    pub stands_for: u64,
}

/// One core's choice.
#[derive(Debug)]
pub struct Sample {
    /// Every request is timed, however many.
    is_whole: bool,
    one_in: Cell<u64>,
    window_ns: Cell<u64>,
    arrivals: Cell<u64>,
    rng: RefCell<Rng>,
}

impl Sample {
    /// Times all requests if `is_whole`, else as many as are needed.
    #[must_use]
    pub fn new(is_whole: bool) -> Self {
        Self {
            is_whole,
            one_in: Cell::new(1),
            window_ns: Cell::new(0),
            arrivals: Cell::new(0),
            // Nobody gains by a guess.
            rng: RefCell::new(Rng::from_seed(1)),
        }
    }

    /// Bytes of a request have come; `now_ns` is read only if it is timed.
    pub fn draw(&self, now_ns: impl FnOnce() -> u64) -> Arrival {
        let one_in = self.one_in.get();
        self.arrivals.set(self.arrivals.get().saturating_add(1));
        if one_in > 1 && self.rng.borrow_mut().next_u64() & one_in.saturating_sub(1) != 0 {
            return Arrival::default();
        }
        let at_ns = now_ns();
        let passed_ns = at_ns.saturating_sub(self.window_ns.get());
        if passed_ns >= WINDOW_NS && !self.is_whole {
            self.window_ns.set(at_ns);
            let arrivals = self.arrivals.take().saturating_mul(WINDOW_NS);
            let arrivals = arrivals.checked_div(passed_ns).unwrap_or_default();
            let stands_for = (arrivals / TIMED_PER_WINDOW).clamp(1, ONE_IN_MAX);
            self.one_in.set(1 << stands_for.ilog2());
        }
        Arrival {
            at_ns,
            stands_for: one_in,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Draws `count` arrivals, `gap_ns` apart: how many are timed, and for how many they stand.
    fn drawn(sample: &Sample, now_ns: &mut u64, count: u64, gap_ns: u64) -> (u64, u64) {
        let mut sums = (0, 0);
        for _ in 0..count {
            *now_ns += gap_ns;
            let arrival = sample.draw(|| *now_ns);
            if arrival.stands_for > 0 {
                assert_eq!(arrival.at_ns, *now_ns);
                sums.0 += 1;
                sums.1 += arrival.stands_for;
            }
        }
        sums
    }

    #[test]
    fn few_are_all_timed_and_many_are_stood_for() {
        let sample = Sample::new(false);
        let mut now_ns = 1_000_000_000;
        // Ten thousand a second.
        let every = drawn(&sample, &mut now_ns, 20_000, 100_000);
        assert_eq!(every, (20_000, 20_000));
        // A hundred thousand a second: one in eight, once that is known.
        drawn(&sample, &mut now_ns, 2_000, 10_000);
        let (timed, stood_for) = drawn(&sample, &mut now_ns, 100_000, 10_000);
        assert!((11_000..14_000).contains(&timed), "{timed}");
        assert!((90_000..110_000).contains(&stood_for), "{stood_for}");
        // Fewer again.
        drawn(&sample, &mut now_ns, 2_000, 1_000_000);
        let every = drawn(&sample, &mut now_ns, 1_000, 1_000_000);
        assert_eq!(every, (1_000, 1_000));
    }

    #[test]
    fn all_are_timed_when_the_slow_ones_are_traced() {
        let sample = Sample::new(true);
        let every = drawn(&sample, &mut 0, 50_000, 1_000);
        assert_eq!(every, (50_000, 50_000));
    }
}
