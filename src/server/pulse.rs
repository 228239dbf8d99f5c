//! A pulse for the executors: what bounds a sleep from which glommio is not
//! woken.
//!
//! Measured here with glommio 0.9.0 on kernel 6.18, two executors to a core:
//! one start in ten slept in `io_uring_enter` for ever, its timers due, its
//! blocking thread idle, every completion queue empty; neither its event
//! counter nor a foreign waker woke it, a signal did. A thread that serves is
//! woken by the next packet, one that starts is not. So the main thread sends
//! each executor a signal that does nothing but end its sleep.

use std::{
    io,
    sync::{Arc, OnceLock, atomic::AtomicBool},
    thread,
    time::Duration,
};

use nix::sys::{
    pthread::{Pthread, pthread_kill},
    signal::Signal,
};
use signal_hook::consts::SIGURG;

/// Time between two pulses while the server starts.
pub const STARTING: Duration = Duration::from_millis(10);
/// Time between two pulses while it serves.
pub const SERVING: Duration = Duration::from_millis(250);

/// Gives the signal a handler, without which it would be dropped before it interrupts anything.
///
/// # Errors
/// What the system says.
pub fn prepare() -> io::Result<()> {
    // The flag is never read: the interruption is the point.
    signal_hook::flag::register(SIGURG, Arc::new(AtomicBool::new(false))).map(drop)
}

/// Sleeps for `interval`, then ends the sleep of every executor.
pub fn rouse(threads: &[OnceLock<Pthread>], interval: Duration) {
    thread::sleep(interval);
    for thread in threads.iter().filter_map(OnceLock::get) {
        // A thread that has ended needs no rousing.
        let _ = pthread_kill(*thread, Signal::SIGURG);
    }
}
