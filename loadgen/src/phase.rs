//! One phase of a run: clients spread over threads, started together, their counts collected.

use std::io;
use std::net::SocketAddr;
use std::sync::mpsc;
use std::time::Duration;

use hdrhistogram::Histogram;
use rustix::thread::{CpuSet, sched_setaffinity};

use crate::client::{Clock, Evidence};
use crate::collect::{self, Collected, Sample};
use crate::engine::{self, Shared};
use crate::error::Errors;
use crate::histogram::{self, Tally, Window};
use crate::pace::Timing;
use crate::slot::SlotPlan;

/// How often the collector looks up when nothing arrives.
const TICK: Duration = Duration::from_millis(50);

/// How a phase is run.
#[derive(Clone, Debug)]
pub struct PhaseOptions {
    /// Where to connect.
    pub address: SocketAddr,
    /// The run's clock.
    pub clock: Clock,
    /// Its parts.
    pub timing: Timing,
    /// Threads, at least 1.
    pub threads: usize,
    /// CPUs to pin threads to, in turn; none pins nothing.
    pub cpus: Vec<usize>,
    /// Requests after which drivers reconnect; 0 is never.
    pub churn: u64,
    /// Time limit of a request, in nanoseconds.
    pub timeout_ns: u64,
}

/// What came of a phase.
#[derive(Debug)]
pub struct PhaseResult {
    /// Latencies and throughput.
    pub collected: Collected,
    /// Errors by kind.
    pub errors: Errors,
    /// Messages read and checked.
    pub verified: u64,
    /// The generator's own lateness.
    pub lag: Histogram<u64>,
    /// What the clients know.
    pub evidence: Evidence,
    /// Share of a core each thread used, 0 to 1.
    pub cpu_shares: Vec<f64>,
    /// Requests the schedule held inside the window.
    pub planned: u64,
    /// Those of them that were never sent.
    pub unsent: u64,
    /// The window.
    pub window: Window,
}

/// Runs the clients to the end. `on_sample` is called with every sample, and now and then without one, with the start time
/// once it is known.
pub fn run(
    options: &PhaseOptions,
    slots: Vec<SlotPlan>,
    mut on_sample: impl FnMut(Option<&Sample>, Option<u64>),
) -> io::Result<PhaseResult> {
    let threads = options.threads.max(1);
    let drivers = slots.iter().filter(|slot| !slot.client.follows()).count();
    let mut shared = Shared::new(
        options.address,
        options.clock,
        options.timing,
        threads,
        drivers,
    );
    shared.churn = options.churn;
    shared.timeout_ns = options.timeout_ns;
    let mut shares: Vec<Vec<SlotPlan>> = (0..threads).map(|_| Vec::new()).collect();
    for (index, slot) in slots.into_iter().enumerate() {
        shares[index % threads].push(slot);
    }
    let (to, from) = mpsc::channel();
    let shared = &shared;
    let (collected, results) = std::thread::scope(|scope| {
        let workers: Vec<_> = shares
            .into_iter()
            .enumerate()
            .map(|(index, share)| {
                let to = (options.timing.duration < u64::MAX).then(|| to.clone());
                let cpu =
                    (!options.cpus.is_empty()).then(|| options.cpus[index % options.cpus.len()]);
                scope.spawn(move || {
                    let tally = Tally::new(options.timing.window(u64::MAX), index, to);
                    pin(cpu);
                    engine::run_thread(shared, share, tally)
                })
            })
            .collect();
        drop(to);
        let collected = collect::collect(&from, TICK, |sample| {
            on_sample(sample, shared.start.get().copied())
        });
        let results: io::Result<Vec<_>> = workers
            .into_iter()
            .map(|worker| {
                worker
                    .join()
                    .unwrap_or_else(|_| Err(io::Error::other("a load thread panicked")))
            })
            .collect();
        (collected, results)
    });
    let mut result = PhaseResult {
        collected,
        errors: Errors::default(),
        verified: 0,
        lag: histogram::new_histogram(),
        evidence: Evidence::default(),
        cpu_shares: Vec::new(),
        planned: 0,
        unsent: 0,
        window: options
            .timing
            .window(shared.start.get().copied().unwrap_or(0)),
    };
    for thread in results? {
        for (kind, count) in thread.errors.iter() {
            result.errors.add(kind, count);
        }
        result.verified += thread.verified;
        let _ = result.lag.add(&thread.lag);
        result.evidence.written.extend(thread.evidence.written);
        result.evidence.seen.extend(thread.evidence.seen);
        result.evidence.undelivered += thread.evidence.undelivered;
        result.cpu_shares.push(thread.cpu_share);
        result.planned += thread.planned;
        result.unsent += thread.unsent;
    }
    Ok(result)
}

/// Best effort: the plan has checked that the process may use the CPU.
fn pin(cpu: Option<usize>) {
    if let Some(cpu) = cpu {
        let mut set = CpuSet::new();
        set.set(cpu);
        let _ = sched_setaffinity(None, &set);
    }
}
