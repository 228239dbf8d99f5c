//! Lives of a shard: recovery, what must be there then, and the crash at the end.

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, HashSet, VecDeque};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;

use futures_lite::future::{block_on, or};

use thalweg::base::limits::Limits;
use thalweg::base::rng::Rng;
use thalweg::base::time::{Clock, ManualClock};
use thalweg::protocol::fork::ForkOrigin;
use thalweg::protocol::incarnation::{Allocator, Incarnation};
use thalweg::shard::checkpoint::Restore;
use thalweg::shard::hold::Hold;
use thalweg::shard::keeper::{Keeper, KeeperOptions, KeeperStats};
use thalweg::shard::live::Watch;
use thalweg::shard::owner::{Peers, Shard};
use thalweg::shard::record::Record;
use thalweg::shard::recovery::{self, Recovery, recover};
use thalweg::shard::request::{Reply, Request};
use thalweg::shard::tables::Tables;
use thalweg::storage::StorageError;
use thalweg::storage::blob::Graveyard;
use thalweg::storage::checkpoint::Identity;
use thalweg::storage::disk::{Crash, Disk, Fault, FaultPlan, Operation, SimulatedDisk};
use thalweg::storage::journal::{
    BatchNumber, Durability, Extent, Health, Journal, Options, Position, Purpose, Stage,
    StageError, SyncMethod,
};
use thalweg::storage::segment::{
    self, BlockReader, Segment, SegmentGraveyard, SegmentId, SegmentWriter, WriterOptions,
};

use super::model::Model;
use super::script::{script, verify};

pub const DIR: &str = "/shard";
pub const JOURNAL_DIR: &str = "/shard/journal";
pub const SEGMENTS_DIR: &str = "/segments";
pub const DISK_BYTES: u64 = 64 << 20;
pub const SEED: u64 = 0x0bad_cafe;
const START_MS: u64 = 1_800_000_000_000;

macro_rules! totals {
    ($($name:ident),* $(,)?) => {
        /// What happened, over all histories.
        #[derive(Clone, Debug, Default, PartialEq, Eq)]
        pub struct Totals { $(pub $name: u64),* }

        impl Totals {
            pub fn add(&mut self, other: &Self) {
                $(self.$name += other.$name;)*
            }
        }
    };
}

totals!(
    histories,
    lives,
    records,
    acknowledged,
    halted_recoveries,
    failed_recoveries,
    latched,
    stopped,
    refused_for_space,
    refused_for_memory,
    cut_unacknowledged,
    kept_unacknowledged,
    reads,
    cold_reads,
    inherited_reads,
    failed_reads,
    cold_decisions,
    cold_snapshots,
    snapshots,
    commits,
    retains,
    forks,
    repeats,
    expiries,
    deletions,
    purges,
    checkpoints,
    keeper_failures,
    compacted_bytes,
    punched_bytes,
    segment_written_bytes,
    quiet_moments,
    recovered_blocks,
    read_only,
    bootstraps,
    old_parts,
    copies,
    broken_copies,
);

pub struct History {
    rng: Rng,
    disk: SimulatedDisk,
    options: Options,
    settings: Settings,
    clock: ManualClock,
    /// What was shown, or acknowledged.
    visible: Model,
    /// Records in `visible`.
    kept: u64,
    /// Staged after that, oldest first.
    pending: VecDeque<Vec<u8>>,
    totals: Totals,
}

/// Bounds, as small as they come.
#[derive(Clone, Debug)]
pub struct Settings {
    pub memory_bytes: u64,
    pub body_bytes: u64,
    checkpoint_bytes: u64,
    pub segment_bytes: u64,
    reserve_bytes: u64,
    open_files: usize,
    /// Names in use.
    pub names: u64,
    /// Most operations of a life.
    pub operations: u64,
    /// Streams are forked, retained and deleted more often.
    pub churns: bool,
}

/// The journal, with an ear on what is staged.
pub struct Recorder {
    journal: Journal<SimulatedDisk>,
    pub staged: RefCell<Model>,
    /// Not durable yet.
    pending: RefCell<VecDeque<(BatchNumber, Vec<u8>)>>,
    /// The records of the running request.
    pub fresh: RefCell<Vec<Vec<u8>>>,
    /// How many records were staged in this life.
    pub count: Cell<u64>,
    /// A client deletes a stream at this very moment.
    pub deleting: Cell<bool>,
    clock: ManualClock,
}

impl Recorder {
    /// A life ends when a client says so, when it is over, with its bucket, or with the last fork.
    fn check_end(&self, record: &[u8]) {
        let Ok(Record::Delete { incarnation, .. }) = Record::decode(record) else {
            return;
        };
        let staged = self.staged.borrow();
        let stream = staged.streams.get(&incarnation.0).expect("it is there");
        let may_end = self.deleting.get()
            || stream.soft_deleted
            || stream.may_be_over(self.clock.now_ms())
            || staged.is_fenced(&stream.key);
        assert!(may_end, "{} ends", stream.key);
    }
}

impl Stage for Recorder {
    fn stage_for(&self, purpose: Purpose, parts: &[&[u8]]) -> Result<BatchNumber, StageError> {
        let batch = self.journal.stage_for(purpose, parts)?;
        let record = parts.concat();
        self.check_end(&record);
        self.staged.borrow_mut().apply(&record);
        self.fresh.borrow_mut().push(record.clone());
        self.pending.borrow_mut().push_back((batch, record));
        self.count.set(self.count.get() + 1);
        Ok(batch)
    }

    fn next_position(&self) -> Position {
        self.journal.next_position()
    }

    fn staged(&self) -> BatchNumber {
        self.journal.staged()
    }

    fn durable(&self) -> BatchNumber {
        self.journal.durable()
    }

    fn health(&self) -> Health {
        self.journal.health()
    }

    fn extent(&self, from: Position) -> Extent {
        self.journal.extent(from)
    }
}

#[derive(Default)]
pub struct Releases(pub RefCell<Vec<(ForkOrigin, Incarnation)>>);

impl Peers for Releases {
    fn wake_readers(&self, watch: &Arc<Watch>) {
        watch.wake_arrived();
    }

    fn release_source(&self, origin: &ForkOrigin, fork: Incarnation) {
        self.0.borrow_mut().push((origin.clone(), fork));
    }
}

/// A shard that lives.
pub struct Life {
    pub shard: Rc<Shard>,
    pub recorder: Rc<Recorder>,
    pub journal: Journal<SimulatedDisk>,
    pub reader: BlockReader<SimulatedDisk>,
    pub releases: Rc<Releases>,
    pub disk: SimulatedDisk,
    pub clock: ManualClock,
    pub settings: Settings,
    pub options: Options,
    pub identity: Identity,
    pub hold: Arc<Hold>,
    pub visible: RefCell<Model>,
    /// Records that became durable in this life.
    durable: Cell<u64>,
    pub failed: Cell<bool>,
    /// Reads may fail: the plan has faults.
    pub faulty: Cell<bool>,
    pub totals: RefCell<Totals>,
    pub keeper: Rc<Cell<KeeperStats>>,
}

impl History {
    pub fn new(seed: u64) -> Self {
        let mut rng = Rng::from_seed(seed ^ 0x5bad_0000_0000);
        let disk = SimulatedDisk::new(rng.next_u64(), DISK_BYTES);
        let body_bytes = [300, 3_000, 20_000, 120_000][rng.below(4) as usize];
        let record_bytes_max = (body_bytes as usize).max(6_000) + 1_000;
        let file_bytes = (record_bytes_max as u64 + 84).next_multiple_of(4096) + 4096;
        let options = Options {
            epoch: 0,
            journal_id: 0x1234_5678_9abc_def0,
            create: true,
            replay_from: Position(0),
            durability: Durability::Sync,
            sync_method: if rng.below(4) == 0 {
                SyncMethod::Dsync
            } else {
                SyncMethod::Fdatasync
            },
            in_flight_max: 1 + rng.below(4) as usize,
            file_bytes: file_bytes.max(64 << 10) + 4096 * rng.below(8),
            record_bytes_max,
            batch_bytes_max: 4096 << rng.below(5),
            reserve_bytes: [0, 64 << 10][rng.below(2) as usize],
            freeing_bytes: [0, 4096][rng.below(2) as usize],
            ahead_bytes: 4096 << rng.below(5),
        };
        let memory = if body_bytes > 100_000 {
            [1 << 20, 6 << 20]
        } else {
            [40 << 10, 200 << 10]
        };
        let settings = Settings {
            memory_bytes: memory[rng.below(2) as usize],
            body_bytes,
            checkpoint_bytes: (8 << 10) << rng.below(6),
            segment_bytes: (32 << 10) << rng.below(4),
            reserve_bytes: [0, 64 << 10][rng.below(2) as usize],
            open_files: 1 + rng.below(4) as usize,
            names: 2 + rng.below(7),
            operations: [30, 120, 120, 400][rng.below(4) as usize],
            churns: rng.below(3) == 0,
        };
        Self {
            rng,
            disk,
            options,
            settings,
            clock: ManualClock::new(START_MS),
            visible: Model::default(),
            kept: 0,
            pending: VecDeque::new(),
            totals: Totals::default(),
        }
    }

    pub fn run(mut self) -> Totals {
        self.totals.histories = 1;
        block_on(async {
            for dir in [DIR, JOURNAL_DIR, SEGMENTS_DIR] {
                let made = self.disk.create_dir(Path::new(dir)).await;
                made.expect("a directory");
            }
        });
        for _ in 0..2 + self.rng.below(6) {
            self.live();
        }
        self.disk.set_capacity(DISK_BYTES);
        let (life, keeper) = self.recover();
        self.drive(life, keeper, true);
        self.totals
    }

    /// One life, up to and including its crash.
    fn live(&mut self) {
        self.totals.lives += 1;
        let (life, keeper) = self.recover();
        let crash = self.random_crash();
        self.drive(life, keeper, false);
        self.disk.crash(crash);
        self.disk.set_capacity(DISK_BYTES);
    }

    fn random_crash(&mut self) -> Crash {
        match self.rng.below(2) {
            0 => Crash::Process,
            _ => Crash::Power,
        }
    }

    fn random_plan(&mut self) -> FaultPlan {
        let mut plan = FaultPlan {
            delay_turns_max: if self.rng.below(6) == 0 {
                30
            } else {
                self.rng.below(6)
            },
            ..FaultPlan::default()
        };
        match self.rng.below(11) {
            0 | 1 => {}
            2 => {
                let fault = [
                    Fault::Error(libc::EIO),
                    Fault::Short,
                    Fault::Error(libc::ENOSPC),
                ][self.rng.below(3) as usize];
                let nth = 1 + self.rng.below(60);
                plan.faults.push((Operation::Write, nth, fault));
            }
            3 => {
                let nth = 1 + self.rng.below(40);
                let kinds = [Operation::Sync, Operation::SyncDir];
                let kind = kinds[self.rng.below(2) as usize];
                plan.faults.push((kind, nth, Fault::Error(libc::EIO)));
            }
            4 | 5 => {
                let kinds = [
                    Operation::Allocate,
                    Operation::Rename,
                    Operation::Open,
                    Operation::Punch,
                    Operation::Truncate,
                    Operation::Remove,
                    Operation::List,
                    Operation::Read,
                ];
                let kind = kinds[self.rng.below(8) as usize];
                let error = [libc::ENOSPC, libc::EIO][self.rng.below(2) as usize];
                let nth = 1 + self.rng.below(8);
                plan.faults.push((kind, nth, Fault::Error(error)));
            }
            6 => {
                let nth = 1 + self.rng.below(20);
                plan.faults.push((Operation::Read, nth, Fault::Short));
            }
            _ => plan.halt_after = Some(self.rng.below(400)),
        }
        plan
    }

    /// Recovers the shard, through crashes of the recovery itself, and checks what it came to.
    fn recover(&mut self) -> (Life, Keeper<SimulatedDisk>) {
        for attempt in 0.. {
            self.options.epoch += 1;
            let mut plan = FaultPlan {
                delay_turns_max: self.rng.below(3),
                ..FaultPlan::default()
            };
            let disturb = if attempt < 4 { self.rng.below(12) } else { 11 };
            match disturb {
                0..4 => plan.halt_after = Some(self.rng.below(60)),
                4 => {
                    let kinds = [
                        Operation::Open,
                        Operation::Write,
                        Operation::Sync,
                        Operation::Truncate,
                        Operation::Remove,
                    ];
                    let kind = kinds[self.rng.below(5) as usize];
                    let nth = 1 + self.rng.below(4);
                    plan.faults.push((kind, nth, Fault::Error(libc::EIO)));
                }
                5 => {
                    let nth = 1 + self.rng.below(6);
                    plan.faults.push((Operation::Read, nth, Fault::Short));
                }
                _ => {}
            }
            self.disk.plan(plan);
            if self.rng.below(4) == 0 {
                self.read_only(disturb);
            }
            let opened = block_on(or(async { Some(self.start().await) }, async {
                self.disk.halted().await;
                None
            }));
            match opened {
                Some(Ok(started)) => {
                    self.disk.plan(FaultPlan::default());
                    return self.check(started);
                }
                Some(Err(error)) => {
                    assert!(disturb == 4 || disturb == 5, "refused: {error}");
                    self.totals.failed_recoveries += 1;
                }
                None => self.totals.halted_recoveries += 1,
            }
            let crash = self.random_crash();
            self.disk.crash(crash);
        }
        unreachable!("the fifth attempt is left in peace")
    }

    /// A read-only pass finds what the model allows and changes nothing.
    fn read_only(&mut self, disturb: u64) {
        let identity = self.identity();
        let graveyard = SegmentGraveyard::default();
        let mut known: HashMap<SegmentId, Arc<Segment>> = HashMap::new();
        let mut find = |id| segment::intern(&mut known, id, &graveyard);
        let allocator = Allocator::new([3; 16], 0);
        let tables = Tables::new(allocator, Graveyard::default());
        let mut restore = Restore::new(tables, &mut find);
        let read = block_on(or(
            async {
                let dir = Path::new(JOURNAL_DIR);
                Some(recovery::read(&self.disk, dir, &identity, &mut restore).await)
            },
            async {
                self.disk.halted().await;
                None
            },
        ));
        match read {
            None => return,
            Some(Err(error)) => {
                assert!(disturb == 4 || disturb == 5, "refused to a reader: {error}");
                return;
            }
            Some(Ok(_)) => {}
        }
        // How many records that was is not said: one of the states that may be.
        let tables = restore.finish();
        let mut model = self.visible.clone();
        let streams = |tables: &Tables| tables.all_streams().count();
        let mut found = model.matches(&tables);
        for record in &self.pending {
            if found {
                break;
            }
            model.apply(record);
            found = model.matches(&tables);
        }
        assert!(
            found,
            "a reader finds {} streams, and not as they were",
            streams(&tables)
        );
        self.totals.read_only += 1;
    }

    fn identity(&self) -> Identity {
        Identity {
            dir: PathBuf::from(DIR),
            journal_id: self.options.journal_id,
            shard: 7,
        }
    }

    /// Starts a shard as a core does.
    async fn start(&self) -> Result<Started, StorageError> {
        let identity = self.identity();
        let segments_dir = PathBuf::from(SEGMENTS_DIR);
        let allocator = Allocator::new([3; 16], self.options.epoch);
        let tables = Tables::new(allocator, Graveyard::default());
        let graveyard = SegmentGraveyard::default();
        let mut known: HashMap<SegmentId, Arc<Segment>> = HashMap::new();
        let mut find = |id| segment::intern(&mut known, id, &graveyard);
        let recovery = recover(
            &self.disk,
            Path::new(JOURNAL_DIR),
            &identity,
            self.options.clone(),
            tables,
            &mut find,
        )
        .await?;
        let ends = recovery.tables.segment_ends();
        segment::reconcile(&self.disk, &segments_dir, &ends, &known).await?;
        let (files, unknown) = segment::list(&self.disk, &segments_dir).await?;
        assert!(unknown.is_empty(), "{unknown:?}");
        let files: HashSet<SegmentId> = files.into_iter().collect();
        assert_eq!(files, ends.keys().copied().collect(), "files and names");
        drop(known);
        Ok(Started {
            recovery,
            identity,
            graveyard,
            blocks: ends.len() as u64,
        })
    }

    /// Checks what a recovery found, and puts the shard together.
    fn check(&mut self, started: Started) -> (Life, Keeper<SimulatedDisk>) {
        let Started {
            recovery,
            identity,
            graveyard,
            blocks,
        } = started;
        let Recovery {
            journal,
            report,
            tables,
            current,
        } = recovery;
        self.options.create = false;
        let staged = self.kept + self.pending.len() as u64;
        let found = journal.next_position().0;
        assert!(
            found >= self.kept,
            "{found} records, {} acknowledged or shown: {report:?}",
            self.kept
        );
        assert!(found <= staged, "{found} records, {staged} staged");
        self.totals.kept_unacknowledged += found - self.kept;
        self.totals.cut_unacknowledged += staged - found;
        self.totals.recovered_blocks += blocks;
        for record in self.pending.drain(..).take((found - self.kept) as usize) {
            self.visible.apply(&record);
        }
        self.kept = found;
        self.visible.check_tables(&tables);

        let forks: HashSet<Incarnation> = tables.forks().into_iter().map(|(id, _)| id).collect();
        let origins = tables.forks();
        let (references, orphans) = (tables.references(), tables.orphans());
        let recorder = Rc::new(Recorder {
            journal: journal.clone(),
            staged: RefCell::new(self.visible.clone()),
            pending: RefCell::default(),
            fresh: RefCell::default(),
            count: Cell::new(0),
            deleting: Cell::new(false),
            clock: self.clock.clone(),
        });
        let releases = Rc::new(Releases::default());
        let hold: Arc<Hold> = Arc::default();
        let settings = self.settings.clone();
        let shard = Rc::new(Shard::new(
            7,
            tables,
            recorder.clone(),
            Rc::new(self.clock.clone()),
            Limits::default(),
            settings.memory_bytes,
            releases.clone(),
        ));
        for (source, fork) in references {
            if !forks.contains(&fork) {
                let _ = shard.execute(Request::Release { source, fork });
            }
        }
        for orphan in orphans {
            shard.remove_orphan(orphan);
        }
        for (fork, origin) in origins {
            let reply = shard.execute(Request::Inherit {
                source: origin.incarnation,
                start: origin.start,
                end: origin.offset,
            });
            let whole = matches!(reply.outcome, Ok(Reply::Inherited(Some(_))));
            assert!(whole, "{fork:?}: its source lacks what it inherits");
        }
        let segments_dir = PathBuf::from(SEGMENTS_DIR);
        let reader = BlockReader::new(
            self.disk.clone(),
            segments_dir.clone(),
            SEED,
            settings.open_files,
        );
        let writer = SegmentWriter::new(
            self.disk.clone(),
            segments_dir.clone(),
            WriterOptions {
                epoch: self.options.epoch,
                shard: 7,
                seed: SEED,
                segment_bytes: settings.segment_bytes,
                reserve_bytes: settings.reserve_bytes,
            },
            graveyard.clone(),
        );
        let keeper = Keeper::new(
            shard.clone(),
            journal.clone(),
            self.disk.clone(),
            writer,
            reader.clone(),
            graveyard,
            KeeperOptions {
                identity: identity.clone(),
                segments_dir,
                current,
                journal_bytes: report.bytes,
                checkpoint_bytes: settings.checkpoint_bytes,
                reserve_bytes: settings.reserve_bytes,
                hold: hold.clone(),
            },
        );
        let life = Life {
            options: self.options.clone(),
            identity,
            hold,
            shard,
            recorder,
            journal,
            reader,
            releases,
            disk: self.disk.clone(),
            clock: self.clock.clone(),
            settings,
            visible: RefCell::new(self.visible.clone()),
            durable: Cell::new(0),
            failed: Cell::new(false),
            faulty: Cell::new(false),
            totals: RefCell::default(),
            keeper: keeper.stats(),
        };
        (life, keeper)
    }

    /// Works until the plan halts the machine or the script ends.
    fn drive(&mut self, life: Life, keeper: Keeper<SimulatedDisk>, last: bool) {
        // What a recovery shows is looked at before anything else happens.
        block_on(verify(&life));
        let plan = if last {
            FaultPlan::default()
        } else {
            self.random_plan()
        };
        life.faulty.set(!plan.faults.is_empty());
        self.disk.plan(plan);
        let on_durable = |batch: BatchNumber| {
            assert!(!life.failed.get(), "acknowledged after a failure");
            life.shard.on_durable(batch);
            let mut pending = life.recorder.pending.borrow_mut();
            while pending.front().is_some_and(|(number, _)| *number <= batch) {
                if let Some((_, record)) = pending.pop_front() {
                    life.visible.borrow_mut().apply(&record);
                    life.durable.set(life.durable.get() + 1);
                }
            }
        };
        let on_failed = |error: &StorageError| {
            assert!(life.faulty.get(), "failed without a fault: {error}");
            assert!(!life.failed.replace(true), "failed once");
            life.shard.on_failed();
        };
        let background = async {
            or(life.journal.run(on_durable, on_failed), async {
                keeper.run().await;
                std::future::pending().await
            })
            .await;
            std::future::pending().await
        };
        let work = async {
            script(&mut self.rng, &life).await;
            if last {
                verify(&life).await;
            }
        };
        block_on(or(or(background, work), self.disk.halted()));

        let mut totals = life.totals.borrow().clone();
        let kept = life.keeper.get();
        totals.checkpoints += kept.checkpoints;
        totals.keeper_failures += kept.failures;
        totals.compacted_bytes += kept.compacted_bytes;
        totals.punched_bytes += kept.punched_bytes;
        totals.segment_written_bytes += kept.segment_written_bytes;
        totals.latched += u64::from(life.failed.get());
        totals.records += life.recorder.count.get();
        totals.acknowledged += life.durable.get();
        self.totals.add(&totals);
        self.kept += life.durable.get();
        self.visible = life.visible.borrow().clone();
        let pending = life
            .recorder
            .pending
            .borrow_mut()
            .drain(..)
            .collect::<Vec<_>>();
        self.pending = pending.into_iter().map(|(_, record)| record).collect();
    }
}

/// What a start came to.
struct Started {
    recovery: Recovery<SimulatedDisk>,
    identity: Identity,
    graveyard: SegmentGraveyard,
    blocks: u64,
}
