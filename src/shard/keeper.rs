//! The keeper of a shard: moves what is old from memory and journal into
//! segments, writes checkpoints, gives space back. Beside the requests and in
//! slices, so that none waits for it.
//!
//! ```text
//! journal ──(records)──> memory ──flush──> blocks in segments ──compaction──> …
//!    ^                                       |
//!    └── files before the checkpoint go ── checkpoint (tables, where the blocks are)
//! ```
//!
//! What is guaranteed, and by which order:
//! - A checkpoint rules only when everything in it is durable: its blocks are
//!   synced, the records that its entries include are durable, its file is
//!   synced; then `current` is replaced. A crash before that leaves the one
//!   before, and the journal from where that one began.
//! - Journal files go, and places of blocks that were moved are released, only
//!   once a checkpoint rules that does not need them. Blocks that a record made
//!   dead are released when the record is durable: replay comes to it before
//!   anybody reads.
//! - A write that fails costs nothing: the bytes are still in memory and in the
//!   journal, and it is tried again. A failed sync of a segment stops the
//!   shard, as one of the journal does: what memory has let go of since may be
//!   in doubt.
//! - A disk that is nearly full keeps nobody from freeing space on it: what
//!   is dead is punched first, and what the reserve is kept for is this work
//!   ([`KeeperOptions::reserve_bytes`] is the part that is not for it either).
//! - While somebody copies the directory ([`Hold`]) nothing is removed that the
//!   copy needs.
//!
//! Bounds: the journal that a start reads is that since the last checkpoint,
//! about `checkpoint_bytes` or the size of the tables; one segment is
//! compacted at a time.

mod checkpoint;
mod space;

use std::{
    cell::{Cell, RefCell},
    collections::HashSet,
    path::PathBuf,
    rc::Rc,
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use futures_lite::future;

use crate::{
    base::{limits::DISK_IO_BYTES_MAX, signal::Signal},
    shard::{
        flush::{BlobFlush, Flush},
        history::into_blocks,
        hold::{Cut, Hold},
        owner::Shard,
        recovery::replay_from,
        stream::blob_key,
    },
    storage::{
        StorageError,
        checkpoint::{Current, Identity},
        disk::Disk,
        journal::{Health, Journal, Stage as _},
        segment::{BlockReader, NewBlock, SegmentGraveyard, SegmentId, SegmentWriter, reads},
    },
};

/// How often it looks for work that nobody rang for.
const INTERVAL: Duration = Duration::from_secs(1);

/// Wakes the keeper.
#[derive(Debug, Default)]
pub struct KeeperBell {
    ring: Signal,
    checkpoint: Cell<bool>,
    stop: Cell<bool>,
    /// The checkpoint that rules.
    current: RefCell<Option<Current>>,
    pinned: Cell<Option<Pinned>>,
}

/// What a copy needs of a shard.
#[derive(Clone, Copy, Debug)]
struct Pinned {
    /// For as long as this hold is in force.
    hold: u64,
    /// The checkpoint.
    checkpoint: Option<u64>,
    /// Files of the journal from this number on. The position alone would not do: while what is
    /// behind it is not durable, the file before it is the copy's last.
    first_file: u64,
}

impl KeeperBell {
    /// There is something to flush.
    pub fn ring(&self) {
        self.ring.raise();
    }

    /// A checkpoint is wanted now, however little the journal has grown.
    pub fn ask_checkpoint(&self) {
        if !self.checkpoint.replace(true) {
            self.ring.raise();
        }
    }

    /// No new work is begun.
    pub fn stop(&self) {
        self.stop.set(true);
        self.ring.raise();
    }
}

/// What a keeper needs to know.
#[derive(Clone, Debug)]
pub struct KeeperOptions {
    /// Whose checkpoints it writes.
    pub identity: Identity,
    /// The directory of segments.
    pub segments_dir: PathBuf,
    /// The checkpoint that rules.
    pub current: Option<Current>,
    /// Bytes of the journal behind it, as the start found them.
    pub journal_bytes: u64,
    /// A checkpoint is due when the journal behind the last one is longer.
    pub checkpoint_bytes: u64,
    /// Bytes of free space that are left alone.
    pub reserve_bytes: u64,
    /// Whether somebody copies the directory.
    pub hold: Arc<Hold>,
}

/// What a keeper has done; every number but the last two only grows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KeeperStats {
    /// Checkpoints that came to rule.
    pub checkpoints: u64,
    /// Bytes of their files.
    pub checkpoint_bytes: u64,
    /// Bytes of blocks written again to empty a segment.
    pub compacted_bytes: u64,
    /// Bytes written to segments.
    pub segment_written_bytes: u64,
    /// Bytes given back by punching.
    pub punched_bytes: u64,
    /// Turns that failed and are tried again.
    pub failures: u64,
    /// Bytes of the journal behind the checkpoint that rules.
    pub journal_bytes: u64,
    /// Bytes of the checkpoint that rules.
    pub current_bytes: u64,
}

/// The keeper of one shard.
pub struct Keeper<D: Disk> {
    shard: Rc<Shard>,
    journal: Journal<D>,
    disk: D,
    writer: SegmentWriter<D>,
    reader: BlockReader<D>,
    graveyard: SegmentGraveyard,
    options: KeeperOptions,
    /// Segments that were emptied since the last checkpoint: their places are not released yet.
    emptied: HashSet<SegmentId>,
    /// Number of the next checkpoint. One that could not be made to rule may rule after a crash, so
    /// its number is not used again.
    next_number: u64,
    /// Journal bytes before the last checkpoint began, as its counters have it.
    journal_mark: u64,
    /// A hold has kept what checkpoints had made superfluous.
    kept_back: bool,
    /// No checkpoint is written for want of space alone before this, by the monotonic clock.
    press_after_ns: u64,
    complained: bool,
    stats: Rc<Cell<KeeperStats>>,
}

/// Why a turn ended early.
enum Trouble {
    /// Nothing is lost; try again later.
    Later(StorageError),
    /// What is on disk is in doubt.
    Fatal(StorageError),
    /// The journal has failed.
    Stopped,
}

impl From<StorageError> for Trouble {
    fn from(error: StorageError) -> Self {
        Self::Later(error)
    }
}

impl<D: Disk> Keeper<D> {
    /// A keeper that writes with `writer` and reads with `reader`.
    #[must_use]
    pub fn new(
        shard: Rc<Shard>,
        journal: Journal<D>,
        disk: D,
        writer: SegmentWriter<D>,
        reader: BlockReader<D>,
        graveyard: SegmentGraveyard,
        options: KeeperOptions,
    ) -> Self {
        let keeper = Self {
            shard,
            journal,
            disk,
            writer,
            reader,
            graveyard,
            emptied: HashSet::new(),
            next_number: options
                .current
                .as_ref()
                .map_or(1, |current| current.number.saturating_add(1)),
            journal_mark: 0,
            kept_back: false,
            press_after_ns: 0,
            complained: false,
            stats: Rc::default(),
            options,
        };
        keeper.publish_current();
        keeper.count(|_| {});
        keeper
    }

    /// What it has done, as it goes on.
    #[must_use]
    pub fn stats(&self) -> Rc<Cell<KeeperStats>> {
        self.stats.clone()
    }

    /// Lets a copy know where it would have to begin.
    fn publish_current(&self) {
        let current = self.options.current.clone();
        *self.shard.keeper.current.borrow_mut() = current;
    }

    /// What a copy needs now.
    fn pinned(&self) -> Option<Pinned> {
        let hold = self.options.hold.holds()?;
        let pinned = self.shard.keeper.pinned.get();
        pinned.filter(|pinned| pinned.hold == hold)
    }

    /// Works until the bell says to stop, or the journal has failed.
    pub async fn run(mut self) {
        loop {
            let bell = &self.shard.keeper;
            future::or(bell.ring.wait(), self.disk.sleep(INTERVAL)).await;
            if self.shard.keeper.stop.get() || self.shard.has_failed() {
                return;
            }
            if self.journal.health() == Health::DiskPressure {
                // Writes come before the copy.
                self.options.hold.break_off();
            }
            match self.turn().await {
                Ok(()) => self.complained = false,
                Err(Trouble::Stopped) => return,
                Err(Trouble::Later(error)) => {
                    self.count(|stats| stats.failures = stats.failures.saturating_add(1));
                    if !std::mem::replace(&mut self.complained, true) {
                        tracing::warn!(
                            shard = self.shard.id,
                            "{error}; nothing is lost, it is tried again every second"
                        );
                    }
                    self.disk.sleep(INTERVAL).await;
                }
                Err(Trouble::Fatal(error)) => {
                    self.journal.fail(error);
                    return;
                }
            }
        }
    }

    /// One round of everything that is due. What cannot be done for now keeps nothing else from
    /// being done: on a full disk one step gives back what another waits for.
    async fn turn(&mut self) -> Result<(), Trouble> {
        let mut put_off = None;
        while self.shard.tidy_evictable() {
            future::yield_now().await;
        }
        later(self.reclaim().await, &mut put_off)?;
        later(self.flush_large().await, &mut put_off)?;
        if self.is_checkpoint_due() {
            later(self.checkpoint().await, &mut put_off)?;
        }
        if self.kept_back && self.pinned().is_none() {
            later(self.let_go().await, &mut put_off)?;
        }
        // What is held gives nothing back by being emptied, nor what no checkpoint can name.
        if !self.options.hold.is_held() && put_off.is_none() {
            later(self.compact().await, &mut put_off)?;
        }
        later(self.reclaim().await, &mut put_off)?;
        put_off.map_or(Ok(()), |error| Err(Trouble::Later(error)))
    }

    fn count(&self, change: impl FnOnce(&mut KeeperStats)) {
        let mut stats = self.stats.get();
        change(&mut stats);
        stats.segment_written_bytes = self.writer.stats().written_bytes;
        stats.journal_bytes = self.journal_bytes();
        stats.current_bytes = self.current_bytes();
        self.stats.set(stats);
    }

    /// Bytes of the checkpoint that rules.
    fn current_bytes(&self) -> u64 {
        let current = self.options.current.as_ref();
        current.map_or(0, |current| current.bytes)
    }

    /// Bytes of the journal behind the checkpoint that rules.
    fn journal_bytes(&self) -> u64 {
        let written = self.journal.stats().batch_bytes;
        let grown = written.saturating_sub(self.journal_mark);
        self.options.journal_bytes.saturating_add(grown)
    }

    fn is_checkpoint_due(&self) -> bool {
        let asked = self.shard.keeper.checkpoint.take() || self.would_gain_by_checkpoint();
        let threshold = self.options.checkpoint_bytes.max(self.current_bytes());
        let grown = self.journal_bytes();
        self.count(|_| {});
        asked
            || grown >= threshold
            || self.shard.unflushed_is_high()
            || self.shard.moved_bytes() >= self.options.checkpoint_bytes
    }

    /// On a disk that is nearly full: whether something has changed since the last checkpoint. Files
    /// of the journal, and blocks that were moved, go only with the next one, and no write brings it
    /// about now.
    fn would_gain_by_checkpoint(&self) -> bool {
        let now_ns = self.shard.clock.monotonic_ns();
        self.journal.health() == Health::DiskPressure
            && (self.journal_bytes() > 0 || self.shard.moved_bytes() > 0)
            && now_ns >= self.press_after_ns
    }

    /// Writes the whole blocks of streams that have many bytes in memory alone.
    async fn flush_large(&mut self) -> Result<(), Trouble> {
        while let Some(slot) = self.shard.next_flushable() {
            let flush = self.shard.begin_flush(slot, true);
            self.write(flush.into_iter().collect(), Vec::new()).await?;
            if self.shard.keeper.stop.get() {
                break;
            }
        }
        Ok(())
    }

    /// Writes blocks and takes note of where they are.
    async fn write(
        &mut self,
        flushes: Vec<Flush>,
        blobs: Vec<BlobFlush>,
    ) -> Result<(), StorageError> {
        let mut blocks = Vec::new();
        let mut counts = Vec::with_capacity(flushes.len());
        for flush in &flushes {
            let mut pieces =
                Vec::with_capacity(flush.reads.len().saturating_add(flush.pieces.len()));
            for group in reads(&flush.reads, DISK_IO_BYTES_MAX, |(place, _)| *place) {
                for bytes in self.reader.read(group).await? {
                    pieces.push(Bytes::copy_from_slice(&bytes));
                }
            }
            pieces.extend(flush.pieces.iter().cloned());
            let own = into_blocks(flush.incarnation, flush.start, pieces);
            counts.push(own.len());
            blocks.extend(own);
        }
        blocks.extend(blobs.iter().map(|blob| NewBlock {
            key: blob_key(blob.incarnation),
            pieces: vec![blob.bytes.clone()],
        }));
        if blocks.is_empty() {
            return Ok(());
        }
        let placed = self.writer.write(&blocks).await?;
        let mut placed = placed.as_slice();
        for (flush, count) in flushes.iter().zip(counts) {
            let Some((own, rest)) = placed.split_at_checked(count) else {
                return Ok(());
            };
            self.shard.end_flush(flush, own);
            placed = rest;
        }
        for (blob, place) in blobs.iter().zip(placed) {
            self.shard.end_blob_flush(blob, place);
        }
        Ok(())
    }
}

/// Keeps the first error of a step that may be tried again.
///
/// # Errors
/// The others.
fn later(outcome: Result<(), Trouble>, put_off: &mut Option<StorageError>) -> Result<(), Trouble> {
    match outcome {
        Err(Trouble::Later(error)) => {
            put_off.get_or_insert(error);
            Ok(())
        }
        outcome => outcome,
    }
}

impl Shard {
    /// Bids the keeper end.
    pub fn stop_keeper(&self) {
        self.keeper.stop();
    }

    /// Pins what a copy under hold `hold` needs of this shard, and says what that is.
    pub(super) fn cut(&self, hold: u64) -> Cut {
        let checkpoint = self.keeper.current.borrow().clone();
        let from = replay_from(checkpoint.as_ref());
        let journal = self.journal.extent(from);
        self.keeper.pinned.set(Some(Pinned {
            hold,
            checkpoint: checkpoint.as_ref().map(|current| current.number),
            first_file: journal.first_file,
        }));
        Cut {
            checkpoint,
            journal,
        }
    }

    /// Asks for a checkpoint, however little the journal has grown: what was removed leaves it.
    pub fn ask_checkpoint(&self) {
        self.keeper.ask_checkpoint();
    }
}
