//! The journal of one shard: records in, durable in order.
//!
//! ```text
//! stage ──> open batch ──> issued: write, sync ──> durable ──> on_durable
//!           (fills while    (up to `in_flight_max`   (in batch order,
//!            others are      at once, in any order    whatever order the
//!            on their way)   on the disk)             disk finished in)
//! ```
//!
//! What is guaranteed:
//! - A record is durable once [`Stage::durable`] has reached the batch that
//!   [`Stage::stage`] named for it. Batches become durable in order, so what a
//!   crash leaves is always a prefix of what was staged, and it contains
//!   everything that was durable.
//! - A batch is all or nothing.
//! - What recovery has handed out is durable before [`Journal::open`] returns:
//!   the files it read from are synced, and a batch that opens the new epoch
//!   is written and synced at the cut. Nothing handed out vanishes later, and
//!   bytes behind the cut never return.
//! - A write or sync that fails, or takes fewer bytes than it was given, stops
//!   the journal for good (it *latches*): after it nobody knows what the disk
//!   holds, so nothing more is acknowledged and nothing is tried again. The
//!   next start finds out by reading.
//! - A full disk is noticed before it hurts: files are made ahead, whole, so
//!   that a batch is written into space that exists; when there is none, and
//!   when the file system's free space falls below the reserve, staging is
//!   refused ([`StageError::DiskPressure`]) until space returns. Records that
//!   free space ([`Purpose::Free`]) are taken all the while, as long as there
//!   is a place for them: some of the prepared space is kept for them, and the
//!   reserve is theirs.
//!
//! Crashes, step by step: while a file is made (it has no name yet, see
//! `file`); between write and sync (the batch is whole, torn or absent, and
//! was not acknowledged); between sync and acknowledgement (whole, and
//! recovered); during recovery (it only reads until the cut is known, and what
//! it writes then, it writes again the same way, see `recovery`).
//!
//! One thread; a [`Journal`] is a handle and clones are the same journal.

mod batch;
mod commit;
mod extent;
mod file;
mod format;
mod listing;
mod observed;
mod reader;
mod recovery;
mod repair;
mod space;
mod tail;
mod window;
mod writer;

#[cfg(test)]
mod tests;

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::path::PathBuf;
use std::rc::Rc;

use self::batch::OpenBatch;
use self::file::{Home, JournalFile};
use self::observed::Observed;
use self::reader::Span;
use super::data_dir::Layout;
use super::disk::Disk;
use super::error::StorageError;
use super::manifest::Manifest;
use crate::base::limits::{DISK_ALIGN, JOURNAL_FREEING_BYTES, JOURNAL_SLACK_BYTES, Limits};
use crate::base::signal::Signal;
use crate::base::time::Clock;

pub use self::extent::Extent;
pub use self::file::file_path;
pub use self::listing::numbers;
pub use self::observed::BatchTimes;
pub use self::reader::Cut;
pub use self::recovery::{FileReport, RecoveryReport, read_journal};
pub use self::repair::{LostBatches, RepairReport, begins, repair};
pub use self::tail::Tail;
pub use crate::base::limits::Durability;

/// Number of a batch: from 1, without gaps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BatchNumber(pub u64);

/// Place of a record in the journal: the number of records before it, ever.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Position(pub u64);

/// Whether the journal takes records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Health {
    /// It does.
    Ok,
    /// Not now: the disk is nearly full. Clears by itself when space returns.
    DiskPressure,
    /// Not now: its directory is not there, so what is written may be lost with it. Clears by itself
    /// when it is back, as after a mount.
    DirectoryGone,
    /// Not any more: a write or sync failed. Only a restart helps.
    Failed,
}

/// Why a record was not staged. Nothing of it was kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StageError {
    /// A write or sync failed earlier, or the journal is closed.
    Latched,
    /// There is no prepared space for it: try again later.
    DiskPressure,
    /// It is longer than [`Options::record_bytes_max`].
    TooLarge,
}

/// What a record is for, which decides how much space must be left for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// It stores something.
    Store,
    /// It only lets go of what is stored.
    Free,
}

/// The face of a journal that deciding code uses.
pub trait Stage {
    /// Copies one record, given in parts, into the open batch; it becomes durable with the batch
    /// returned. Never waits.
    fn stage_for(&self, purpose: Purpose, parts: &[&[u8]]) -> Result<BatchNumber, StageError>;

    /// The same for a record that stores something.
    fn stage(&self, parts: &[&[u8]]) -> Result<BatchNumber, StageError> {
        self.stage_for(Purpose::Store, parts)
    }

    /// Position that the next staged record gets.
    fn next_position(&self) -> Position;

    /// The newest batch that a record was staged for; 0 if none ever was.
    fn staged(&self) -> BatchNumber;

    /// The newest durable batch; all before it are durable too.
    fn durable(&self) -> BatchNumber;

    /// Whether records are taken.
    fn health(&self) -> Health;

    /// When a recent batch was issued and became durable, for a profile.
    fn times(&self, _batch: BatchNumber) -> BatchTimes {
        BatchTimes::default()
    }

    /// Which files hold what is durable from `from` on; `from` is not behind it.
    fn extent(&self, _from: Position) -> Extent {
        Extent::default()
    }
}

/// How a batch gets to the medium.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SyncMethod {
    /// Writes, then one `fdatasync`. The default: where both cores are busy, `O_DSYNC` completes
    /// only at a scheduler tick (4 ms) unless several batches are in flight, and gains little
    /// where they are not.
    Fdatasync,
    /// Writes that return when they are durable (`O_DSYNC`).
    Dsync,
}

/// How a journal is opened and run.
#[derive(Clone, Debug)]
pub struct Options {
    /// Epoch of this start; larger than that of every start before.
    pub epoch: u64,
    /// Random number that nobody outside knows, the same for every start of this journal:
    /// [`Manifest::journal_id`](super::manifest::Manifest::journal_id).
    pub journal_id: u64,
    /// An empty directory is a new journal. Otherwise it is one that was lost.
    pub create: bool,
    /// Records before this are not needed: they need not be there and are not handed out.
    pub replay_from: Position,
    /// When a batch counts as durable.
    pub durability: Durability,
    /// How it gets there.
    pub sync_method: SyncMethod,
    /// Batches on their way at once, from 1 to [`IN_FLIGHT_LIMIT`].
    pub in_flight_max: usize,
    /// Size of a file, in bytes; a multiple of 4 KiB.
    pub file_bytes: u64,
    /// Longest record, in bytes.
    pub record_bytes_max: usize,
    /// A batch of this many bytes takes no more records.
    pub batch_bytes_max: usize,
    /// Bytes of free space below which staging is refused.
    pub reserve_bytes: u64,
    /// Prepared space that only records which free space may take, in bytes.
    pub freeing_bytes: u64,
    /// Space to be ready behind the file in use, in bytes, in whole files, at least one.
    pub ahead_bytes: u64,
}

/// Largest journal file, in bytes: lengths inside it are 32 bits.
pub const FILE_BYTES_MAX: u64 = 1 << 31;

/// Most batches that may ever be on their way at once: what recovery must take to be in doubt.
pub const IN_FLIGHT_LIMIT: usize = 16;

/// Batches on their way at once, by default. Measured with `benches/group_commit.rs`, and under
/// HTTP against a bare program with one (30 November 2026, 2 shared cores, ext4): with two, 512
/// writers get 1.5 times the records per second of one and half its p99, 256 connections 1.16
/// times; with one connection or 64 on a quiet machine nothing changes; three bring no more.
const IN_FLIGHT_MAX: usize = 2;
/// Bytes of a record beside the body of the request that caused it: what the limits set aside for
/// it, less headers and padding.
const RECORD_OVERHEAD_BYTES: usize = JOURNAL_SLACK_BYTES as usize - 3 * DISK_ALIGN;
/// Default of [`Options::batch_bytes_max`].
const BATCH_BYTES_MAX: usize = 4 << 20;

impl Options {
    /// Options for one shard's journal, of the layout that rules or of one being made, in this
    /// start and under the operator's limits.
    pub fn new(limits: &Limits, manifest: &Manifest, layout: &Layout, shard: u32) -> Self {
        let started = manifest.started && layout.number == manifest.layout;
        Self {
            epoch: manifest.boot_epoch,
            journal_id: manifest.journal_id(layout.number, shard),
            create: !started,
            replay_from: Position(0),
            durability: Durability::Sync,
            sync_method: SyncMethod::Fdatasync,
            in_flight_max: IN_FLIGHT_MAX,
            file_bytes: limits.journal_file_bytes,
            record_bytes_max: (limits.request_bytes_max as usize)
                .saturating_add(RECORD_OVERHEAD_BYTES),
            batch_bytes_max: BATCH_BYTES_MAX,
            reserve_bytes: limits.disk_reserve_bytes,
            freeing_bytes: JOURNAL_FREEING_BYTES,
            ahead_bytes: limits.journal_file_bytes.max(4 << 20),
        }
    }

    /// Bytes of the smallest file that holds the largest record.
    fn file_bytes_min(&self) -> u64 {
        const HEADERS: u64 = (format::BATCH_HEADER_BYTES + format::RECORD_HEADER_BYTES) as u64;
        let batch = format::padded(HEADERS.saturating_add(self.record_bytes_max as u64));
        format::FILE_HEADER_BYTES.saturating_add(batch)
    }

    /// True if the largest record fits a file, and all else is in range.
    pub fn check(&self) -> Result<(), StorageError> {
        let needed = self.file_bytes_min();
        let whole = self.file_bytes.is_multiple_of(format::FILE_HEADER_BYTES);
        if self.file_bytes < needed || self.file_bytes > FILE_BYTES_MAX || !whole {
            return Err(StorageError::FileTooSmall {
                file_bytes: self.file_bytes,
                needed,
            });
        }
        Ok(())
    }

    /// Bytes that a batch may reach on disk: what was asked for, or what a file holds.
    fn batch_limit(&self) -> u64 {
        let file = self.file_bytes.saturating_sub(format::FILE_HEADER_BYTES);
        file.min(self.batch_bytes_max as u64)
    }

    /// Files to keep ready behind the one in use.
    fn files_ahead(&self) -> usize {
        self.ahead_bytes.div_ceil(self.file_bytes).max(1) as usize
    }
}

/// What a journal has done since it was opened; every number only grows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct JournalStats {
    /// Records staged.
    pub records: u64,
    /// Bytes of records staged.
    pub record_bytes: u64,
    /// Batches that became durable.
    pub batches: u64,
    /// Bytes of batches written, headers and padding included.
    pub batch_bytes: u64,
    /// Write calls issued for batches.
    pub writes: u64,
    /// Sync calls issued for batches.
    pub syncs: u64,
    /// Times the journal went on to the next file.
    pub rolls: u64,
    /// Records refused for want of space.
    pub refused: u64,
}

/// The journal of one shard.
pub struct Journal<D: Disk>(Rc<Inner<D>>);

impl<D: Disk> Clone for Journal<D> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

struct Inner<D: Disk> {
    disk: D,
    home: Home,
    options: Options,
    queue: RefCell<Queue<D>>,
    /// Newest durable batch.
    durable: Cell<u64>,
    /// Where it ends: number of the file, and bytes.
    durable_end: Cell<(u64, u64)>,
    /// Files from this number on are not released.
    kept_from: Cell<u64>,
    /// Highest number that batches may carry as proven; stands still without syncs.
    proven: Cell<u64>,
    in_flight: Cell<usize>,
    latched: Cell<bool>,
    /// What keeps writes out for now, if anything does; never [`Health::Failed`].
    lack: Cell<Health>,
    closing: Cell<bool>,
    /// Something to issue, or the journal is closing.
    work: Signal,
    /// A file was taken into use, or a batch has no place.
    roll: Signal,
    /// `run` has returned.
    ended: Cell<bool>,
    end: Signal,
    stats: Cell<JournalStats>,
    /// Why it must stop, if something else than itself found that out.
    broken: RefCell<Option<StorageError>>,
    observed: Observed,
}

/// Batches that are not issued, and the space they will go to.
struct Queue<D: Disk> {
    open: Option<OpenBatch>,
    /// Batches that take no more records, oldest first.
    closed: VecDeque<ClosedBatch<D>>,
    /// Bytes of those closed batches that have no place yet.
    unplaced_bytes: u64,
    next_number: u64,
    next_record: u64,
    /// The file in use, and where its unused part begins.
    active: Rc<JournalFile<D>>,
    active_offset: u64,
    /// Files behind the active one, empty.
    ready: VecDeque<Rc<JournalFile<D>>>,
    /// The files before the ready ones, oldest first: number, first record.
    spans: VecDeque<(u64, Span)>,
}

struct ClosedBatch<D: Disk> {
    batch: OpenBatch,
    place: Option<Place<D>>,
}

struct Place<D: Disk> {
    file: Rc<JournalFile<D>>,
    offset: u64,
}

impl<D: Disk> Inner<D> {
    /// Number of the first file that stays: something at or behind `position` is in it, or what is
    /// behind it has no durable batch, or it is kept.
    fn first_to_stay(&self, position: Position) -> u64 {
        let (queue, durable) = (self.queue.borrow(), self.durable.get());
        let passed = |span: &Span| span.first_record <= position.0 && span.first_number <= durable;
        let oldest = queue.spans.front().map_or(0, |(number, _)| *number);
        let behind = queue.spans.iter().skip(1);
        let first = behind
            .take_while(|(_, span)| passed(span))
            .fold(oldest, |_, (number, _)| *number);
        first.min(self.kept_from.get())
    }

    /// The oldest file, if its number is below `first`.
    fn oldest_before(&self, first: u64) -> Option<PathBuf> {
        let queue = self.queue.borrow();
        let (number, _) = queue.spans.front()?;
        (*number < first).then(|| file_path(&self.home.dir, *number))
    }
}

impl<D: Disk> Stage for Journal<D> {
    fn stage_for(&self, purpose: Purpose, parts: &[&[u8]]) -> Result<BatchNumber, StageError> {
        self.0.stage(purpose, parts)
    }

    fn next_position(&self) -> Position {
        Position(self.0.queue.borrow().next_record)
    }

    fn staged(&self) -> BatchNumber {
        BatchNumber(self.0.queue.borrow().next_number.saturating_sub(1))
    }

    fn durable(&self) -> BatchNumber {
        BatchNumber(self.0.durable.get())
    }

    fn health(&self) -> Health {
        if self.0.latched.get() {
            Health::Failed
        } else {
            self.0.lack.get()
        }
    }

    fn times(&self, batch: BatchNumber) -> BatchTimes {
        self.0.observed.times(batch)
    }

    fn extent(&self, from: Position) -> Extent {
        self.0.extent(from)
    }
}

impl<D: Disk> Journal<D> {
    /// What it has done so far.
    pub fn stats(&self) -> JournalStats {
        self.0.stats.get()
    }

    /// From now on [`Stage::times`] knows the times of batches.
    pub fn keep_time(&self, clock: Rc<dyn Clock>) {
        self.0.observed.keep_time(clock);
    }

    /// Free bytes of the file system when it was last asked, about once a second; 0 before that.
    pub fn free_bytes(&self) -> u64 {
        self.0.observed.free_bytes.get()
    }

    /// From now on [`Self::release_before`] leaves file `first` and those behind it, or with `None`
    /// none for this reason.
    pub fn keep_files(&self, first: Option<u64>) {
        self.0.kept_from.set(first.unwrap_or(u64::MAX));
    }

    /// Removes the files whose records all lie before `position`: nothing will ask for them again.
    /// The oldest go first, so that what a crash leaves has no gap. How many went. Which do is
    /// settled when it is called: not those that become superfluous while others go.
    pub async fn release_before(&self, position: Position) -> Result<u64, StorageError> {
        let inner = &*self.0;
        let mut released = 0u64;
        let first = inner.first_to_stay(position);
        while let Some(path) = inner.oldest_before(first) {
            let remove = inner.disk.remove(&path).await;
            remove.map_err(StorageError::io("remove", &path))?;
            inner.queue.borrow_mut().spans.pop_front();
            released = released.saturating_add(1);
        }
        if released > 0 {
            let dir = &inner.home.dir;
            inner
                .disk
                .sync_dir(dir)
                .await
                .map_err(StorageError::io("sync", dir))?;
        }
        Ok(released)
    }

    /// Stops the journal for good, as if a sync of its own had failed: what it holds may be the only
    /// copy of what `error` says is in doubt.
    pub fn fail(&self, error: StorageError) {
        *self.0.broken.borrow_mut() = Some(error);
        self.0.work.raise();
    }

    /// Takes no more records, lets those staged become durable, and stops [`Self::run`].
    /// Returns when `run` has returned; at once if it never ran.
    pub async fn close(&self) {
        self.0.closing.set(true);
        self.0.work.raise();
        if !self.0.ended.get() {
            self.0.end.wait().await;
        }
    }
}
