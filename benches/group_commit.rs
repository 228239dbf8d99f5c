//! How many durable records per second, and after how long, does one journal give?
//!
//! `W` writers on one executor each stage a record, wait until it is durable
//! and then a random while, as a client and its network would, again and again:
//! what connections do, without HTTP. Without that pause all writers move in
//! step and every batch holds one record of each, which hides what more than
//! one batch in flight is worth. For each
//! number of writers, every way to sync (`fdatasync`, `O_DSYNC`, none) is
//! measured with one, two and three batches in flight, in turn, several times,
//! because the disk drifts; the medians are printed. Each journal is opened
//! again afterwards and must hold exactly what was acknowledged.
//!
//! `cargo bench --bench group_commit -- [SECONDS] [DIR] [CORE]`; without
//! arguments (as in `cargo test`) a fraction of a second each.
//!
//! 30 November 2026, 2 shared cores (busy with other work), ext4 on virtio,
//! records per second and p99: 64 writers 60,000 and 7.1 ms with `fdatasync`
//! and one batch in flight, 59,000 and 5.2 with two, 62,000 and 5.1 with three;
//! 512 writers 276,000 (10.1), 412,000 (4.6) and 463,000 (5.2). `O_DSYNC`:
//! 64,000, 169,000 and 205,000. What follows from it stands at the defaults in
//! `storage::journal`.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::task::{Poll, Waker};
use std::time::{Duration, Instant};

use glommio::{LocalExecutorBuilder, Placement};
use thalweg::base::rng::Rng;
use thalweg::storage::disk::GlommioDisk;
use thalweg::storage::journal::{
    Durability, Journal, JournalStats, Options, Position, Stage, StageError, SyncMethod,
};

const RECORD_BYTES: usize = 256;
const ROUNDS: usize = 3;
/// Longest pause of a writer, in microseconds.
const PAUSE_US_MAX: u64 = 400;

#[derive(Clone, Copy)]
struct Variant {
    name: &'static str,
    durability: Durability,
    sync_method: SyncMethod,
    in_flight_max: usize,
}

#[derive(Clone, Copy, Default)]
struct Sample {
    per_second: f64,
    p50_us: f64,
    p99_us: f64,
    records_per_batch: f64,
    cpu_us_per_record: f64,
}

fn main() {
    let arguments: Vec<String> = std::env::args()
        .skip(1)
        .filter(|arg| arg != "--bench")
        .collect();
    let seconds: f64 = arguments
        .first()
        .map_or(0.05, |text| text.parse().expect("seconds"));
    let dir = arguments
        .get(1)
        .map_or_else(std::env::temp_dir, PathBuf::from);
    let core: usize = arguments
        .get(2)
        .map_or(0, |text| text.parse().expect("a core"));
    let dir = dir.join(format!("thalweg-group-commit-{}", std::process::id()));

    let mut variants = Vec::new();
    for in_flight_max in 1..=3 {
        let sync = (Durability::Sync, SyncMethod::Fdatasync);
        let dsync = (Durability::Sync, SyncMethod::Dsync);
        let os = (Durability::Os, SyncMethod::Fdatasync);
        for (name, (durability, sync_method)) in
            [("fdatasync", sync), ("O_DSYNC", dsync), ("none", os)]
        {
            variants.push(Variant {
                name,
                durability,
                sync_method,
                in_flight_max,
            });
        }
    }
    let rounds = if arguments.is_empty() { 1 } else { ROUNDS };
    println!(
        "writers  sync       in flight   records/s   p50 us   p99 us  per batch  CPU us/record"
    );
    for writers in [1, 64, 512] {
        let mut samples = vec![Vec::new(); variants.len()];
        for _ in 0..rounds {
            for (variant, samples) in variants.iter().zip(&mut samples) {
                samples.push(measure(&dir, core, *variant, writers, seconds));
            }
        }
        for (variant, samples) in variants.iter().zip(samples) {
            let median = |field: fn(&Sample) -> f64| {
                let mut values: Vec<f64> = samples.iter().map(field).collect();
                values.sort_by(f64::total_cmp);
                values[values.len() / 2]
            };
            println!(
                "{writers:>7}  {:<9}  {:>9}  {:>10.0}  {:>7.0}  {:>7.0}  {:>9.1}  {:>13.2}",
                variant.name,
                variant.in_flight_max,
                median(|sample| sample.per_second),
                median(|sample| sample.p50_us),
                median(|sample| sample.p99_us),
                median(|sample| sample.records_per_batch),
                median(|sample| sample.cpu_us_per_record),
            );
        }
    }
}

/// One journal, one run; then the journal is read again.
fn measure(dir: &Path, core: usize, variant: Variant, writers: usize, seconds: f64) -> Sample {
    std::fs::create_dir_all(dir).expect("a directory to write in");
    let path = dir.to_owned();
    let (sample, staged) = LocalExecutorBuilder::new(Placement::Fixed(core))
        .ring_depth(4096)
        .io_memory(16 << 20)
        .spawn(move || async move { run(&path, variant, writers, seconds).await })
        .expect("an executor")
        .join()
        .expect("a result");
    let path = dir.to_owned();
    let found = LocalExecutorBuilder::new(Placement::Fixed(core))
        .spawn(move || async move {
            let disk = GlommioDisk::new(&path).await.expect("a disk");
            let mut found = 0;
            let count = |_: Position, record: &[u8]| {
                assert_eq!(record.len(), RECORD_BYTES);
                found += 1;
                Ok(())
            };
            let options = options(variant, 2);
            Journal::open(disk, &path, 0, options, count)
                .await
                .expect("a whole journal");
            found
        })
        .expect("an executor")
        .join()
        .expect("a result");
    assert_eq!(found, staged, "what was acknowledged is there");
    std::fs::remove_dir_all(dir).expect("to clean up");
    sample
}

fn options(variant: Variant, epoch: u64) -> Options {
    Options {
        epoch,
        journal_id: 1,
        create: true,
        replay_from: Position(0),
        durability: variant.durability,
        sync_method: variant.sync_method,
        in_flight_max: variant.in_flight_max,
        file_bytes: 64 << 20,
        record_bytes_max: 8 << 20,
        batch_bytes_max: 4 << 20,
        reserve_bytes: 256 << 20,
        freeing_bytes: 0,
        ahead_bytes: 64 << 20,
    }
}

/// Writers and what they wait for.
#[derive(Default)]
struct Waiters {
    queue: RefCell<VecDeque<(u64, Waker)>>,
    durable: Cell<u64>,
}

async fn run(dir: &Path, variant: Variant, writers: usize, seconds: f64) -> (Sample, u64) {
    let disk = GlommioDisk::new(dir).await.expect("a disk");
    let nothing = |_: Position, _: &[u8]| Ok(());
    let options = options(variant, 1);
    let (journal, _) = Journal::open(disk, dir, 0, options, nothing)
        .await
        .expect("a journal");
    let waiters = Rc::new(Waiters::default());
    let commits = glommio::spawn_local({
        let (journal, waiters) = (journal.clone(), waiters.clone());
        async move {
            let wake = |number: thalweg::storage::journal::BatchNumber| {
                waiters.durable.set(number.0);
                let mut queue = waiters.queue.borrow_mut();
                while queue
                    .front()
                    .is_some_and(|(waits_for, _)| *waits_for <= number.0)
                {
                    if let Some((_, waker)) = queue.pop_front() {
                        waker.wake();
                    }
                }
            };
            journal.run(wake, |error| panic!("{error}")).await;
        }
    });
    // The files ahead are made now, not while it counts.
    glommio::timer::sleep(Duration::from_millis(150)).await;

    let (before, cpu_before, start) = (journal.stats(), cpu_time(), Instant::now());
    let end = start + Duration::from_secs_f64(seconds);
    let tasks: Vec<_> = (0..writers)
        .map(|seed| {
            let rng = Rng::from_seed(seed as u64);
            glommio::spawn_local(write(journal.clone(), waiters.clone(), rng, end))
        })
        .collect();
    let mut latencies = Vec::new();
    for task in tasks {
        latencies.extend(task.await);
    }
    let (elapsed, cpu) = (start.elapsed().as_secs_f64(), cpu_time() - cpu_before);
    let after = journal.stats();
    journal.close().await;
    commits.await;

    latencies.sort_unstable();
    let quantile = |q: f64| latencies[((latencies.len() - 1) as f64 * q) as usize] as f64 / 1e3;
    let since = |field: fn(&JournalStats) -> u64| (field(&after) - field(&before)) as f64;
    let records = since(|stats| stats.records);
    let sample = Sample {
        per_second: records / elapsed,
        p50_us: quantile(0.5),
        p99_us: quantile(0.99),
        records_per_batch: records / since(|stats| stats.batches),
        cpu_us_per_record: cpu * 1e6 / records,
    };
    (sample, after.records)
}

/// One writer: the latencies of its records, in nanoseconds.
async fn write(
    journal: Journal<GlommioDisk>,
    waiters: Rc<Waiters>,
    mut rng: Rng,
    end: Instant,
) -> Vec<u64> {
    let record = [7; RECORD_BYTES];
    let mut latencies = Vec::new();
    let mut now = Instant::now();
    while now < end {
        let number = match journal.stage(&[&record[..100], &record[100..]]) {
            Ok(number) => number.0,
            Err(StageError::DiskPressure) => {
                glommio::timer::sleep(Duration::from_millis(1)).await;
                continue;
            }
            Err(error) => panic!("{error:?}"),
        };
        let mut queued = false;
        poll_fn(|cx| {
            if waiters.durable.get() >= number {
                return Poll::Ready(());
            }
            if !std::mem::replace(&mut queued, true) {
                waiters
                    .queue
                    .borrow_mut()
                    .push_back((number, cx.waker().clone()));
            }
            Poll::Pending
        })
        .await;
        let done = Instant::now();
        latencies.push((done - now).as_nanos() as u64);
        glommio::timer::sleep(Duration::from_micros(rng.below(PAUSE_US_MAX))).await;
        now = Instant::now();
    }
    latencies
}

/// Processor time of this process, in seconds.
fn cpu_time() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").expect("procfs");
    let fields = stat
        .rsplit(')')
        .next()
        .unwrap_or_default()
        .split_whitespace();
    let ticks: u64 = fields
        .skip(11)
        .take(2)
        .filter_map(|field| field.parse::<u64>().ok())
        .sum();
    ticks as f64 / 100.0
}
