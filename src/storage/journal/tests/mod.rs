//! The journal on the simulated disk: what commits, what fails, what recovery makes of it.

mod commit;
mod on_glommio;
mod recovery_table;
mod repair;

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::path::{Path, PathBuf};

use futures_lite::future::{block_on, or, yield_now};

use super::file::file_path;
use super::{
    BatchNumber, Durability, Health, Journal, Options, Position, Purpose, RecoveryReport, Stage,
    StageError, SyncMethod,
};
use crate::storage::disk::{Crash, Disk, FaultPlan, SimulatedDisk};
use crate::storage::error::StorageError;

const DIR: &str = "/shard-0/journal";
const SHARD: u32 = 3;
const BLOCK: u64 = 4096;

/// A disk with one journal on it, and how the journal is opened.
struct Rig {
    disk: SimulatedDisk,
    options: Options,
}

/// What an opening handed out.
struct Opened {
    journal: Journal<SimulatedDisk>,
    report: RecoveryReport,
    records: Vec<Vec<u8>>,
}

impl Rig {
    /// Files of 16 blocks: a header and up to 15 small batches.
    fn new() -> Self {
        let disk = SimulatedDisk::new(1, 64 << 20);
        block_on(disk.create_dir(Path::new(DIR))).expect("a directory");
        let options = Options {
            epoch: 0,
            journal_id: 77,
            create: true,
            replay_from: Position(0),
            durability: Durability::Sync,
            sync_method: SyncMethod::Fdatasync,
            in_flight_max: 2,
            file_bytes: 16 * BLOCK,
            record_bytes_max: 40_000,
            batch_bytes_max: 8 * BLOCK as usize,
            reserve_bytes: 0,
            freeing_bytes: 0,
            ahead_bytes: BLOCK,
        };
        Self { disk, options }
    }

    fn path(number: u64) -> PathBuf {
        file_path(Path::new(DIR), number)
    }

    /// Opens in a new epoch.
    fn try_open(&mut self) -> Result<Opened, StorageError> {
        self.options.epoch += 1;
        let mut records = Vec::new();
        let keep = |_: Position, record: &[u8]| {
            records.push(record.to_vec());
            Ok(())
        };
        let (disk, options) = (self.disk.clone(), self.options.clone());
        let (journal, report) =
            block_on(Journal::open(disk, Path::new(DIR), SHARD, options, keep))?;
        self.options.create = false;
        Ok(Opened {
            journal,
            report,
            records,
        })
    }

    fn open(&mut self) -> Opened {
        self.try_open().expect("a journal that opens")
    }

    /// Opens, commits each record in a batch of its own, and crashes.
    fn live(&mut self, records: &[&[u8]], crash: Crash) -> Opened {
        let opened = self.open();
        run(&opened.journal, async {
            for record in records {
                commit(&opened.journal, record).await;
            }
        });
        self.disk.crash(crash);
        opened
    }

    fn contents(&self, number: u64) -> Vec<u8> {
        self.disk.contents(&Self::path(number)).expect("a file")
    }

    fn edit(&self, number: u64, edit: impl FnOnce(&mut Vec<u8>)) {
        let mut bytes = self.contents(number);
        edit(&mut bytes);
        self.disk.set_contents(&Self::path(number), bytes);
    }
}

/// Runs a script beside the journal's commit loop, which must not fail.
fn run<T>(journal: &Journal<SimulatedDisk>, script: impl Future<Output = T>) -> T {
    let result = RefCell::new(None);
    block_on(or(journal.run(|_| {}, |error| panic!("{error}")), async {
        *result.borrow_mut() = Some(script.await)
    }));
    result.take().expect("the script ended first")
}

/// Stages a record and waits until it is durable.
async fn commit(journal: &Journal<SimulatedDisk>, record: &[u8]) -> BatchNumber {
    let number = loop {
        match journal.stage(&[record]) {
            Ok(number) => break number,
            // The files ahead are being made.
            Err(StageError::DiskPressure) => yield_now().await,
            Err(error) => panic!("{error:?}"),
        }
    };
    durable(journal, number).await;
    number
}

async fn durable(journal: &Journal<SimulatedDisk>, number: BatchNumber) {
    while journal.durable() < number {
        yield_now().await;
    }
}
