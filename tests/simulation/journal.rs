//! The real journal on a simulated disk, against a plain list of records.
//!
//! A history is a series of lives: open, stage, commit, meet faults, crash.
//! After every crash, whatever its moment (recovery included) and its kind,
//! - everything acknowledged is there, once, in order;
//! - what is there is a prefix of what was staged;
//! - what an earlier recovery handed out is still there.

use std::cell::{Cell, RefCell};
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use futures_lite::future::{block_on, or, yield_now};

use thalweg::base::rng::Rng;
use thalweg::storage::StorageError;
use thalweg::storage::disk::{Crash, Fault, FaultPlan, Operation, SimulatedDisk};
use thalweg::storage::journal::{
    BatchNumber, Durability, Health, Journal, Options, Position, RecoveryReport, Stage, StageError,
    SyncMethod, read_journal,
};

use super::setting;

const DIR: &str = "/journal";
const DISK_BYTES: u64 = 8 << 20;

/// Histories per run, unless `THALWEG_HISTORIES` says otherwise.
const HISTORIES: u64 = 2_000;

#[test]
fn nothing_acknowledged_is_lost_and_nothing_shown_vanishes() {
    let first = setting("THALWEG_SEED", 1);
    let mut totals = Totals::default();
    for seed in first..first + setting("THALWEG_HISTORIES", HISTORIES) {
        let run = std::panic::catch_unwind(|| History::new(seed).run());
        match run {
            Ok(history) => totals.add(&history),
            Err(cause) => {
                eprintln!("THALWEG_SEED={seed} THALWEG_HISTORIES=1 repeats this");
                std::panic::resume_unwind(cause);
            }
        }
    }
    println!("{totals:?}");
    // The simulation is worth little if it does not get to the rare places.
    if totals.histories >= HISTORIES {
        assert!(totals.lives > 3 * totals.histories, "{totals:?}");
        assert!(totals.halted_recoveries > 100, "{totals:?}");
        assert!(totals.latched > 100, "{totals:?}");
        assert!(totals.refused_for_space > 100, "{totals:?}");
        assert!(totals.cut_unacknowledged > 100, "{totals:?}");
        assert!(totals.kept_unacknowledged > 100, "{totals:?}");
        assert!(totals.rolls > totals.histories, "{totals:?}");
    }
}

#[test]
fn a_seed_repeats_its_history() {
    let totals = |seed| {
        let mut totals = Totals::default();
        totals.add(&History::new(seed).run());
        totals
    };
    for seed in 1..20 {
        assert_eq!(totals(seed), totals(seed), "seed {seed}");
    }
}

/// What happened, over all histories.
#[derive(Debug, Default, PartialEq, Eq)]
struct Totals {
    histories: u64,
    lives: u64,
    records: u64,
    acknowledged: u64,
    halted_recoveries: u64,
    latched: u64,
    refused_for_space: u64,
    cut_unacknowledged: u64,
    kept_unacknowledged: u64,
    rolls: u64,
}

impl Totals {
    fn add(&mut self, history: &History) {
        let other = &history.totals;
        self.histories += 1;
        self.lives += other.lives;
        self.records += other.records;
        self.acknowledged += other.acknowledged;
        self.halted_recoveries += other.halted_recoveries;
        self.latched += other.latched;
        self.refused_for_space += other.refused_for_space;
        self.cut_unacknowledged += other.cut_unacknowledged;
        self.kept_unacknowledged += other.kept_unacknowledged;
        self.rolls += other.rolls;
    }
}

struct History {
    rng: Rng,
    disk: SimulatedDisk,
    options: Options,
    /// The model: every record staged in the log as it stands, oldest first.
    staged: Vec<Vec<u8>>,
    /// How many of them were acknowledged, or handed out by a recovery.
    kept: usize,
    /// In `Durability::Os`, a loss of power may take what was acknowledged since the last start.
    kept_by_power: usize,
    totals: Totals,
}

/// What one life left behind.
#[derive(Default)]
struct Life {
    staged: RefCell<Vec<(BatchNumber, Vec<u8>)>>,
    durable: Cell<u64>,
    failed: Cell<bool>,
    refused: Cell<u64>,
}

impl History {
    fn new(seed: u64) -> Self {
        let mut rng = Rng::from_seed(seed);
        let disk = SimulatedDisk::new(rng.next_u64(), DISK_BYTES);
        let record_bytes_max = [200, 6_000, 20_000][rng.below(3) as usize];
        let file_bytes = (record_bytes_max as u64 + 84).next_multiple_of(4096) + 4096;
        let options = Options {
            epoch: 0,
            journal_id: 0x1234_5678_9abc_def0,
            create: true,
            replay_from: Position(0),
            durability: if rng.below(8) == 0 {
                Durability::Os
            } else {
                Durability::Sync
            },
            sync_method: if rng.below(4) == 0 {
                SyncMethod::Dsync
            } else {
                SyncMethod::Fdatasync
            },
            in_flight_max: 1 + rng.below(4) as usize,
            file_bytes: file_bytes + 4096 * rng.below(8),
            record_bytes_max,
            batch_bytes_max: 4096 << rng.below(4),
            reserve_bytes: [0, 64 << 10][rng.below(2) as usize],
            freeing_bytes: [0, 4096][rng.below(2) as usize],
            ahead_bytes: 4096 << rng.below(5),
        };
        Self {
            rng,
            disk,
            options,
            staged: Vec::new(),
            kept: 0,
            kept_by_power: 0,
            totals: Totals::default(),
        }
    }

    fn run(mut self) -> Self {
        let dir = Path::new(DIR);
        block_on(async {
            use thalweg::storage::disk::Disk;
            self.disk.create_dir(dir).await.expect("a directory");
        });
        for _ in 0..2 + self.rng.below(6) {
            self.live();
        }
        self.disk.set_capacity(DISK_BYTES);
        self.disk.plan(FaultPlan::default());
        drop(self.recover());
        self
    }

    /// One life, up to and including its crash.
    fn live(&mut self) {
        self.totals.lives += 1;
        let journal = self.recover();
        let crash = if self.rng.below(2) == 0 {
            Crash::Process
        } else {
            Crash::Power
        };
        let plan = self.random_plan();
        self.disk.plan(plan);
        let life = self.drive(&journal);
        self.totals.rolls += journal.stats().rolls;
        self.totals.refused_for_space += life.refused.get();
        self.totals.latched += u64::from(life.failed.get());

        let durable = life.durable.get();
        let before = self.staged.len();
        for (number, record) in life.staged.into_inner() {
            self.staged.push(record);
            if number.0 <= durable {
                self.kept = self.staged.len();
            }
        }
        self.totals.records += (self.staged.len() - before) as u64;
        self.totals.acknowledged += (self.kept - before) as u64;
        drop(journal);
        self.disk.crash(crash);
        if crash == Crash::Power && self.options.durability == Durability::Os {
            self.kept = self.kept_by_power;
        }
        self.disk.set_capacity(DISK_BYTES);
    }

    fn random_plan(&mut self) -> FaultPlan {
        let mut plan = FaultPlan {
            delay_turns_max: self.rng.below(6),
            ..FaultPlan::default()
        };
        match self.rng.below(8) {
            0 => {}
            1 => {
                let fault = [
                    Fault::Error(libc::EIO),
                    Fault::Short,
                    Fault::Error(libc::ENOSPC),
                ][self.rng.below(3) as usize];
                plan.faults
                    .push((Operation::Write, 1 + self.rng.below(30), fault));
            }
            2 => {
                let nth = 1 + self.rng.below(15);
                plan.faults
                    .push((Operation::Sync, nth, Fault::Error(libc::EIO)));
            }
            3 => {
                let kinds = [Operation::Allocate, Operation::Rename, Operation::Open];
                let kind = kinds[self.rng.below(3) as usize];
                let nth = 1 + self.rng.below(3);
                plan.faults.push((kind, nth, Fault::Error(libc::ENOSPC)));
            }
            _ => plan.halt_after = Some(self.rng.below(120)),
        }
        plan
    }

    /// Opens the journal, through crashes of the recovery itself, and checks what it hands out.
    fn recover(&mut self) -> Journal<SimulatedDisk> {
        for attempt in 0.. {
            self.options.epoch += 1;
            let halt = attempt < 4 && self.rng.below(3) == 0;
            let halt_after = halt.then(|| self.rng.below(40));
            let delay_turns_max = self.rng.below(3);
            self.disk.plan(FaultPlan {
                halt_after,
                delay_turns_max,
                ..FaultPlan::default()
            });
            if self.rng.below(4) == 0 {
                self.read_only();
            }
            let mut recovered = Vec::new();
            let opened = block_on(or(
                async { Some(open(&self.disk, &self.options, &mut recovered).await) },
                async {
                    self.disk.halted().await;
                    None
                },
            ));
            match opened {
                Some(Ok((journal, report))) => {
                    self.options.create = false;
                    self.check(&recovered, &report);
                    assert_eq!(journal.next_position(), Position(recovered.len() as u64));
                    return journal;
                }
                Some(Err(error)) => panic!("refused: {error}; {:?}", self.options),
                None => {
                    self.totals.halted_recoveries += 1;
                    let crash = if self.rng.below(2) == 0 {
                        Crash::Process
                    } else {
                        Crash::Power
                    };
                    self.disk.crash(crash);
                    if crash == Crash::Power && self.options.durability == Durability::Os {
                        self.kept = self.kept_by_power;
                    }
                }
            }
        }
        unreachable!("the fifth attempt is left in peace")
    }

    /// A read-only pass finds what the model allows and changes nothing.
    fn read_only(&mut self) {
        let mut recovered = Vec::new();
        let read = block_on(or(
            async {
                let keep = |_: Position, record: &[u8]| {
                    recovered.push(record.to_vec());
                    Ok(())
                };
                Some(read_journal(&self.disk, Path::new(DIR), Position(0), keep).await)
            },
            async {
                self.disk.halted().await;
                None
            },
        ));
        if let Some(read) = read {
            read.expect("what open accepts, reading accepts");
            assert!(recovered.len() >= self.kept);
            assert!(self.staged.starts_with(&recovered));
        }
    }

    fn check(&mut self, recovered: &[Vec<u8>], report: &RecoveryReport) {
        let (staged, kept) = (self.staged.len(), self.kept);
        assert!(
            recovered.len() >= kept,
            "{} records recovered, {kept} acknowledged or shown, {staged} staged: {report:?}",
            recovered.len()
        );
        for (index, record) in recovered.iter().enumerate() {
            assert_eq!(Some(record), self.staged.get(index), "record {index}");
        }
        assert_eq!(report.records, recovered.len() as u64);
        self.totals.cut_unacknowledged += (staged - recovered.len()) as u64;
        self.totals.kept_unacknowledged += (recovered.len() - kept) as u64;
        self.staged.truncate(recovered.len());
        self.kept = recovered.len();
        self.kept_by_power = recovered.len();
    }

    /// Stages and commits until the plan halts the machine or the script ends.
    fn drive(&mut self, journal: &Journal<SimulatedDisk>) -> Life {
        let life = Life::default();
        life.durable.set(journal.durable().0);
        let on_durable = |number: BatchNumber| {
            assert!(!life.failed.get(), "acknowledged after a failure");
            assert_eq!(number.0, life.durable.get() + 1, "acknowledged in order");
            assert_eq!(journal.durable(), number);
            life.durable.set(number.0);
        };
        let on_failed = |_: &StorageError| {
            assert!(!life.failed.replace(true), "failed once");
        };
        let ended = Rc::new(Cell::new(false));
        block_on(or(
            async {
                or(
                    async {
                        journal.run(on_durable, on_failed).await;
                        std::future::pending().await
                    },
                    script(&mut self.rng, &self.disk, &self.options, journal, &life),
                )
                .await;
                ended.set(true);
            },
            self.disk.halted(),
        ));
        if life.failed.get() {
            assert_eq!(journal.health(), Health::Failed);
            assert_eq!(journal.stage(&[b"no"]), Err(StageError::Latched));
        }
        life
    }
}

async fn open(
    disk: &SimulatedDisk,
    options: &Options,
    recovered: &mut Vec<Vec<u8>>,
) -> Result<(Journal<SimulatedDisk>, RecoveryReport), StorageError> {
    let keep = |position: Position, record: &[u8]| {
        assert_eq!(position.0, recovered.len() as u64);
        recovered.push(record.to_vec());
        Ok(())
    };
    Journal::open(disk.clone(), Path::new(DIR), 7, options.clone(), keep).await
}

/// What the layer above might do in one life.
async fn script(
    rng: &mut Rng,
    disk: &SimulatedDisk,
    options: &Options,
    journal: &Journal<SimulatedDisk>,
    life: &Life,
) {
    for _ in 0..rng.below(40) {
        match rng.below(12) {
            0..6 => {
                for _ in 0..1 + rng.below(4) {
                    stage(rng, options, journal, life);
                }
            }
            6..9 => {
                for _ in 0..rng.below(20) {
                    yield_now().await;
                }
            }
            9 => wait_durable(journal, life).await,
            10 => disk.advance(Duration::from_secs(1)),
            _ => {
                let bytes = if rng.below(2) == 0 { 0 } else { DISK_BYTES };
                disk.set_capacity(bytes);
                disk.advance(Duration::from_secs(1));
            }
        }
    }
    if rng.below(4) == 0 {
        disk.set_capacity(DISK_BYTES);
        or(journal.close(), async {
            loop {
                disk.advance(Duration::from_secs(1));
                yield_now().await;
            }
        })
        .await;
        if !life.failed.get() {
            let last = life
                .staged
                .borrow()
                .last()
                .map_or(0, |(number, _)| number.0);
            assert!(
                life.durable.get() >= last,
                "closed with something not durable"
            );
        }
    }
}

fn stage(rng: &mut Rng, options: &Options, journal: &Journal<SimulatedDisk>, life: &Life) {
    let max = options.record_bytes_max as u64;
    let len = if rng.below(4) == 0 {
        rng.below(max + 1)
    } else {
        rng.below(max.min(300) + 1)
    };
    let mut record = vec![0; len as usize];
    let fill = rng.next_u64().to_le_bytes();
    for (index, byte) in record.iter_mut().enumerate() {
        *byte = fill[index % 8];
    }
    let (head, tail) = record.split_at(rng.below(len + 1) as usize);
    match journal.stage(&[head, tail]) {
        Ok(number) => {
            assert!(number.0 > life.durable.get());
            life.staged.borrow_mut().push((number, record));
        }
        Err(StageError::DiskPressure) => life.refused.set(life.refused.get() + 1),
        Err(StageError::Latched) => assert!(life.failed.get()),
        Err(StageError::TooLarge) => panic!("{len} is not too large"),
    }
}

/// Waits until everything staged is durable or the journal has failed; gives up after a while,
/// since space may be missing.
async fn wait_durable(journal: &Journal<SimulatedDisk>, life: &Life) {
    let last = life
        .staged
        .borrow()
        .last()
        .map_or(0, |(number, _)| number.0);
    for _ in 0..200 {
        if journal.durable().0 >= last || life.failed.get() {
            return;
        }
        yield_now().await;
    }
}
