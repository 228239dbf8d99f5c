//! What does the journal itself cost per record, and how many records share a sync, when the disk costs nothing?
//!
//! The journal of `group_commit`, on the simulated disk: an operation takes up to
//! eight turns of the executor and no time, so what is left is staging, batches,
//! checksums and the order of completion (and the simulation's own bookkeeping,
//! which grows with the bytes). `W` writers stage a record, wait until it is
//! durable and then up to eight turns, as in `group_commit` and for its reason. Records per batch do not depend on the machine: the same seed
//! gives the same number, and two runs are compared.
//!
//! `cargo bench --bench group_commit_simulated`; under `cargo test` a few records
//! each. After every run power fails, and the journal must hold all that was
//! acknowledged, in order.
//!
//! Faster of two, 30 November 2026, 2 shared cores of a virtual
//! machine with AVX-512, rustc 1.95 without `target-cpu`:
//! records per batch, and ns per record:
//!
//! | batches in flight | 1 writer | 64 writers | 512 writers |
//! |---|---|---|---|
//! | 1 | 1.0, 25,300 | 29.5, 1,110 | 242, 340 |
//! | 2 | 1.0, 22,200 | 17.9, 2,000 | 149, 460 |
//! | 3 | 1.0, 22,600 | 13.4, 2,810 | 111, 520 |
//!
//! So the cost is that of the batch, some 20 to 30 µs with the simulation's own,
//! and hardly that of the record.

use std::cell::{Cell, RefCell};
use std::path::Path;
use std::time::{Duration, Instant};

use futures_lite::future::{block_on, or, yield_now};
use thalweg::base::rng::Rng;
use thalweg::storage::disk::{Crash, Disk, FaultPlan, SimulatedDisk};
use thalweg::storage::journal::{
    BatchNumber, Durability, Journal, Options, Position, Stage, StageError, SyncMethod,
};

const DIR: &str = "/journal";
const RECORD_BYTES: usize = 256;
const DISK_BYTES: u64 = 256 << 20;
const SEED: u64 = 42;
const TURNS_MAX: u64 = 8;

/// What one run came to.
struct Outcome {
    records: u64,
    batches: u64,
    elapsed: Duration,
}

fn main() {
    let full = std::env::args().any(|arg| arg == "--bench");
    let records = if full { 20_000 } else { 400 };
    println!("writers  in flight  records per batch  ns per record");
    for writers in [1, 64, 512] {
        for in_flight_max in 1..=3 {
            let first = run(writers, in_flight_max, records);
            let second = run(writers, in_flight_max, records);
            assert_eq!(
                (first.records, first.batches),
                (second.records, second.batches),
                "a seed repeats its run"
            );
            let fastest = first.elapsed.min(second.elapsed);
            println!(
                "{writers:>7}  {in_flight_max:>9}  {:>17.1}  {:>13.0}",
                first.records as f64 / first.batches as f64,
                fastest.as_nanos() as f64 / first.records as f64
            );
        }
    }
}

fn options(in_flight_max: usize, epoch: u64) -> Options {
    Options {
        epoch,
        journal_id: 1,
        create: epoch == 1,
        replay_from: Position(0),
        durability: Durability::Sync,
        sync_method: SyncMethod::Fdatasync,
        in_flight_max,
        file_bytes: 2 << 20,
        record_bytes_max: 4096,
        batch_bytes_max: 1 << 20,
        reserve_bytes: 0,
        freeing_bytes: 0,
        ahead_bytes: 2 << 20,
    }
}

/// At least so many records by so many writers, a failure of power, and what is found then.
fn run(writers: usize, in_flight_max: usize, records: u64) -> Outcome {
    let disk = SimulatedDisk::new(SEED, DISK_BYTES);
    let dir = Path::new(DIR);
    let outcome = block_on(async {
        disk.create_dir(dir).await.expect("a directory");
        let nothing = |_: Position, _: &[u8]| Ok(());
        let (journal, _) = Journal::open(disk.clone(), dir, 0, options(in_flight_max, 1), nothing)
            .await
            .expect("a journal");
        disk.plan(FaultPlan {
            delay_turns_max: TURNS_MAX,
            ..FaultPlan::default()
        });
        let durable = Cell::new(0);
        let before = journal.stats();
        let start = Instant::now();
        let commits = async {
            let wake = |number: BatchNumber| durable.set(number.0);
            journal.run(wake, |error| panic!("{error}")).await;
        };
        or(commits, write(&journal, &durable, writers, records)).await;
        let (elapsed, after) = (start.elapsed(), journal.stats());
        Outcome {
            records: after.records - before.records,
            batches: after.batches - before.batches,
            elapsed,
        }
    });
    disk.crash(Crash::Power);
    let found = RefCell::new(0u64);
    block_on(async {
        let count = |_: Position, record: &[u8]| {
            assert_eq!(record, body(*found.borrow()), "in order");
            *found.borrow_mut() += 1;
            Ok(())
        };
        Journal::open(disk.clone(), dir, 0, options(in_flight_max, 2), count)
            .await
            .expect("a whole journal");
    });
    assert_eq!(found.into_inner(), outcome.records, "what was acknowledged");
    outcome
}

/// A writer: the batch that holds its record, and the turn from which it stages again.
#[derive(Clone, Copy, Default)]
struct Writer {
    batch: u64,
    not_before: u64,
}

/// Drives the writers until so many records are staged and all are durable.
async fn write(
    journal: &Journal<SimulatedDisk>,
    durable: &Cell<u64>,
    writers: usize,
    records: u64,
) {
    let mut rng = Rng::from_seed(SEED);
    let mut all = vec![Writer::default(); writers];
    let (mut staged, mut turn) = (0, 0);
    while staged < records {
        turn += 1;
        for writer in &mut all {
            if writer.batch > durable.get() {
                // From the turn in which it learns of it, the pause runs.
                writer.not_before = turn + rng.below(TURNS_MAX);
                continue;
            }
            if writer.not_before > turn {
                continue;
            }
            match journal.stage(&[&body(staged)]) {
                Ok(number) => {
                    writer.batch = number.0;
                    staged += 1;
                }
                // The next file is being made.
                Err(StageError::DiskPressure) => {}
                Err(error) => panic!("{error:?}"),
            }
        }
        yield_now().await;
    }
    while all.iter().any(|writer| writer.batch > durable.get()) {
        yield_now().await;
    }
}

/// A record that says which one it is.
fn body(number: u64) -> [u8; RECORD_BYTES] {
    let mut body = [7; RECORD_BYTES];
    body[..8].copy_from_slice(&number.to_le_bytes());
    body
}
