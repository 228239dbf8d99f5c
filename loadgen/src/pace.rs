//! When requests are due, and how long the phases of a run are. Times are nanoseconds of the run's clock.

use crate::histogram::Window;

/// When a slot asks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Pace {
    /// Again as soon as it is answered.
    Closed,
    /// At fixed times.
    Every {
        /// Nanoseconds between them.
        interval_ns: f64,
        /// Nanoseconds from the start to the first.
        phase_ns: f64,
    },
}

/// The lengths of a run's phases, in nanoseconds.
#[derive(Clone, Copy, Debug)]
pub struct Timing {
    /// Before measurement.
    pub warmup: u64,
    /// Of measurement; `u64::MAX` for runs that end when their clients finish.
    pub duration: u64,
    /// After it.
    pub drain: u64,
    /// Of one interval of the report.
    pub interval: u64,
}

impl Timing {
    /// The window of a run that starts at `start`.
    pub fn window(&self, start: u64) -> Window {
        let measured = start.saturating_add(self.warmup);
        let end = measured.saturating_add(self.duration);
        Window {
            start,
            measured,
            end,
            drained: end.saturating_add(self.drain),
            interval: self.interval,
        }
    }
}

impl Pace {
    /// When tick `tick` is due; a closed slot's only appointment is the start.
    pub fn due(&self, start: u64, tick: u64) -> u64 {
        match self {
            Pace::Closed => start,
            Pace::Every {
                interval_ns,
                phase_ns,
            } => start.saturating_add((phase_ns + interval_ns * tick as f64) as u64),
        }
    }

    /// How many ticks, from number `tick` on, are due in `[from, to)`.
    pub fn due_between(&self, start: u64, tick: u64, from: u64, to: u64) -> u64 {
        let Pace::Every {
            interval_ns,
            phase_ns,
        } = self
        else {
            return 0;
        };
        let before = |time: u64| {
            let intervals = (time.saturating_sub(start) as f64 - phase_ns).max(0.0) / interval_ns;
            intervals.ceil() as u64
        };
        before(to).saturating_sub(before(from).max(tick))
    }
}

#[cfg(test)]
mod tests {
    use super::{Pace, Timing};

    #[test]
    fn ticks_do_not_drift_and_add_up() {
        let pace = Pace::Every {
            interval_ns: 1e9 / 3.0,
            phase_ns: 1e6,
        };
        assert_eq!(pace.due(10, 0), 1_000_010);
        assert_eq!(pace.due(0, 3_000_000), 1_000_000_001_000_000);
        let second = 1_000_000_000;
        assert_eq!(pace.due_between(0, 0, 0, 10 * second), 30);
        let halves =
            pace.due_between(0, 0, 0, 5 * second) + pace.due_between(0, 0, 5 * second, 10 * second);
        assert_eq!(halves, 30);
        assert_eq!(pace.due_between(0, 28, 0, 10 * second), 2);
        assert_eq!(Pace::Closed.due_between(0, 0, 0, second), 0);
    }

    #[test]
    fn a_run_without_end_does_not_overflow() {
        let window = Timing {
            warmup: 1,
            duration: u64::MAX,
            drain: 5,
            interval: 1,
        }
        .window(7);
        assert_eq!(
            (window.measured, window.end, window.drained),
            (8, u64::MAX, u64::MAX)
        );
    }
}
