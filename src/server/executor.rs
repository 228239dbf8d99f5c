//! Executors, each on a thread of its own, and the pulse that bounds a sleep
//! from which glommio is not woken.
//!
//! Measured here with glommio 0.9.0 on kernel 6.18, two executors to a core:
//! one start in ten slept in `io_uring_enter` for ever, its timers due, its
//! blocking thread idle, every completion queue empty; neither its event
//! counter nor a foreign waker woke it, a signal did. It may happen before the
//! first task runs. A thread that serves is woken by the next packet, one that
//! starts or stops is not. So whoever waits for executors sends each a signal
//! that does nothing but end its sleep.

use std::{
    io,
    sync::{Arc, OnceLock, atomic::AtomicBool},
    thread::{self, JoinHandle},
    time::Duration,
};

use glommio::LocalExecutorBuilder;
use nix::sys::{
    pthread::{Pthread, pthread_kill, pthread_self},
    signal::Signal,
};
use signal_hook::consts::SIGURG;

use super::error::StartError;

/// Time between two pulses while somebody waits for executors to start or end.
pub const WAITING: Duration = Duration::from_millis(10);
/// Time between two pulses while they serve.
pub const SERVING: Duration = Duration::from_millis(250);

/// Gives the signal a handler, without which it would be dropped before it interrupts anything.
///
/// # Errors
/// What the system says.
pub fn prepare() -> io::Result<()> {
    // The flag is never read: the interruption is the point.
    signal_hook::flag::register(SIGURG, Arc::new(AtomicBool::new(false))).map(drop)
}

/// An executor on its thread.
pub struct Worker<T> {
    shard: usize,
    thread: JoinHandle<Result<T, StartError>>,
    /// Set once the executor is made: a pulse could interrupt the system calls that make it.
    made: Arc<OnceLock<Pthread>>,
}

/// Runs `work` on an executor as `builder` describes it, for `shard`.
///
/// # Errors
/// [`StartError::Executor`] when there is no thread for it. When there is no executor,
/// [`Worker::join`] says so.
pub fn spawn<T, F>(
    shard: usize,
    builder: LocalExecutorBuilder,
    work: impl FnOnce() -> F + Send + 'static,
) -> Result<Worker<T>, StartError>
where
    T: Send + 'static,
    F: Future<Output = Result<T, StartError>> + 'static,
{
    let made = Arc::new(OnceLock::new());
    let making = made.clone();
    let run = move || {
        let executor = builder.make().map_err(|error| failed(shard, error))?;
        // Set once: this is the only thread that does.
        let _ = making.set(pthread_self());
        executor.run(async {
            let outcome = work().await;
            // What was given to the blocking thread and is waited for no longer ends first, in order:
            // it panics when there is nobody to tell.
            glommio::executor().spawn_blocking(|| ()).await;
            outcome
        })
    };
    let thread = thread::Builder::new().name(format!("shard-{shard}"));
    let thread = thread.spawn(run).map_err(|error| failed(shard, error))?;
    Ok(Worker {
        shard,
        thread,
        made,
    })
}

fn failed(shard: usize, reason: impl ToString) -> StartError {
    StartError::Executor {
        shard,
        reason: reason.to_string(),
    }
}

impl<T> Worker<T> {
    /// Whether its work is done or has failed.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.thread.is_finished()
    }

    /// Waits for the end of its work.
    ///
    /// # Errors
    /// [`StartError`] of the work, or [`StartError::Executor`] when it was not run or panicked.
    pub fn join(self) -> Result<T, StartError> {
        rouse_until(std::slice::from_ref(&self), WAITING, || self.has_ended());
        let outcome = self.thread.join();
        outcome.unwrap_or_else(|_| Err(failed(self.shard, "its thread panicked")))
    }
}

/// Ends the sleep of every worker, every `interval`, until `is_over`.
pub fn rouse_until<T>(workers: &[Worker<T>], interval: Duration, is_over: impl Fn() -> bool) {
    while !is_over() {
        thread::sleep(interval);
        for thread in workers.iter().filter_map(|worker| worker.made.get()) {
            // A thread that has ended needs no rousing; its handle is valid until it is joined.
            let _ = pthread_kill(*thread, Signal::SIGURG);
        }
    }
}

#[cfg(test)]
mod tests {
    use glommio::{LocalExecutorBuilder, Placement};

    use super::{Worker, prepare, spawn};
    use crate::server::error::StartError;

    fn run<T: Send + 'static>(
        placement: Placement,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, StartError> {
        prepare().expect("a signal handler");
        spawn(3, LocalExecutorBuilder::new(placement), move || async {
            Ok(work())
        })
        .and_then(Worker::join)
    }

    #[test]
    fn what_work_returns_is_joined() {
        assert_eq!(run(Placement::Unbound, || 7).ok(), Some(7));
    }

    #[test]
    fn an_executor_that_cannot_be_made_is_an_error_of_its_shard() {
        let outcome = run(Placement::Fixed(usize::MAX), || ());
        assert!(matches!(
            outcome,
            Err(StartError::Executor { shard: 3, .. })
        ));
    }

    #[test]
    fn a_panic_is_an_error_of_its_shard() {
        let outcome = run(Placement::Unbound, || panic!("on purpose"));
        assert!(matches!(
            outcome,
            Err::<(), _>(StartError::Executor { shard: 3, .. })
        ));
    }
}
