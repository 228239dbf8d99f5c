//! Rounds of an executor's ready tasks, for whoever has work for many of them:
//! crowds of new connections, of those that wait at the turnstile, of those
//! whose time is up. They do one thing in each, and between them the executor
//! looks at its sockets and disks often enough for everybody else.

use std::{
    cell::Cell,
    thread,
    time::{Duration, Instant},
};

use futures_lite::future;
use glommio::timer::Timer;

/// Longest time between two looks at sockets and disks while a crowd is served. For everybody always,
/// instead of 1 ms, it would cost 4 to 8 % of the appends a second.
const LOOK_INTERVAL_MAX: Duration = Duration::from_micros(250);
/// The same while a commit is under way, which waits for four of them, from its write to the last
/// answer. A look costs about 10 µs.
const COMMIT_LOOK_INTERVAL_MAX: Duration = Duration::from_micros(60);
/// In no time, but not at once.
const SOON: Duration = Duration::from_nanos(500);

/// Those of one executor.
#[derive(Debug)]
pub struct Rounds {
    looked: Cell<Instant>,
}

impl Default for Rounds {
    fn default() -> Self {
        Self {
            looked: Cell::new(Instant::now()),
        }
    }
}

impl Rounds {
    /// Waits until the executor has been round its ready tasks, and until it has looked at its
    /// sockets and disks if it has not for [`LOOK_INTERVAL_MAX`], or [`COMMIT_LOOK_INTERVAL_MAX`] if it
    /// `is_committing` then.
    pub async fn next(&self, is_committing: impl Fn() -> bool) {
        future::yield_now().await;
        let interval = match is_committing() {
            true => COMMIT_LOOK_INTERVAL_MAX,
            false => LOOK_INTERVAL_MAX,
        };
        if self.looked.get().elapsed() >= interval {
            // Timers are looked at together with those.
            Timer::new(SOON).await;
            self.looked.set(Instant::now());
        }
        // Lets the kernel's threads run that complete writes and syncs: on a core that never sleeps
        // a commit takes up to two ticks of the scheduler (4 ms each) more.
        thread::yield_now();
    }
}
