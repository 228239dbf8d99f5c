//! Writes a checkpoint, makes it rule, and lets go of what is superfluous then:
//! in this order, and nothing of it that a copy needs.

use std::{future::poll_fn, time::Duration};

use futures_lite::future;

use super::{Keeper, Trouble};
use crate::{
    shard::{checkpoint::encode_fence, slice::SliceStart},
    storage::{
        StorageError,
        checkpoint::{CheckpointWriter, Current, remove_others},
        disk::Disk,
        journal::{Position, Stage as _},
    },
};

/// Checkpoints for want of space alone are at least this far apart: each writes all the tables.
const PRESS_INTERVAL: Duration = Duration::from_secs(5);

/// Fences written before others have their turn.
const FENCES_PER_TURN: usize = 1024;

impl<D: Disk> Keeper<D> {
    /// Writes a checkpoint and makes it rule.
    pub(super) async fn checkpoint(&mut self) -> Result<(), Trouble> {
        self.check_space().await?;
        // If this fails nobody knows which checkpoint rules: until one does, all are kept.
        self.kept_back = false;
        let now_ns = self.shard.clock.monotonic_ns();
        self.press_after_ns = now_ns.saturating_add(PRESS_INTERVAL.as_nanos() as u64);
        let number = self.next_number;
        self.next_number = number.saturating_add(1);
        let begin = self.journal.next_position();
        let mark = self.journal.stats().batch_bytes;
        let mut moved = self.shard.begin_checkpoint();
        let emptied = std::mem::take(&mut self.emptied);
        match self.write_checkpoint(number, begin).await {
            Ok(current) => {
                let bytes = current.bytes;
                self.options.current = Some(current);
                self.publish_current();
                self.options.journal_bytes = 0;
                self.journal_mark = mark;
                while self.shard.release_moved(&mut moved) {
                    future::yield_now().await;
                }
                self.count(|stats| {
                    stats.checkpoints = stats.checkpoints.saturating_add(1);
                    stats.checkpoint_bytes = stats.checkpoint_bytes.saturating_add(bytes);
                });
            }
            Err(trouble) => {
                self.shard.keep_moved(moved);
                self.emptied.extend(emptied);
                return Err(trouble);
            }
        }
        self.let_go().await
    }

    /// Removes what the checkpoint that rules, and a copy that is made, do not need.
    pub(super) async fn let_go(&mut self) -> Result<(), Trouble> {
        let Some(current) = &self.options.current else {
            return Ok(());
        };
        let pinned = self.pinned();
        self.kept_back = pinned.is_some();
        let from = current.replay_from;
        let needed: Vec<u64> = std::iter::once(current.number)
            .chain(pinned.and_then(|pinned| pinned.checkpoint))
            .collect();
        self.journal
            .keep_files(pinned.map(|pinned| pinned.first_file));
        self.journal.release_before(from).await?;
        let unknown = remove_others(&self.disk, &self.options.identity, &needed).await?;
        for path in unknown {
            tracing::debug!(path = %path.display(), "not ours: left alone");
        }
        Ok(())
    }

    /// Whether there is room for a second checkpoint beside the one that rules.
    async fn check_space(&self) -> Result<(), StorageError> {
        let dir = &self.options.identity.dir;
        let free = self.disk.free_space(dir).await;
        let free = free.map_err(StorageError::io("statfs", dir))?;
        let needed = self
            .options
            .reserve_bytes
            .saturating_add(self.current_bytes());
        if free >= needed {
            return Ok(());
        }
        Err(StorageError::DiskFull {
            dir: dir.clone(),
            free,
            needed,
        })
    }

    async fn write_checkpoint(&mut self, number: u64, begin: Position) -> Result<Current, Trouble> {
        let identity = self.options.identity.clone();
        let mut file = CheckpointWriter::create(self.disk.clone(), identity, number).await?;
        match self.fill(&mut file).await {
            Ok(()) => {}
            Err(trouble) => {
                file.abandon().await;
                return Err(trouble);
            }
        }
        let current = file.finish(begin).await?;
        current.store(&self.disk, &self.options.identity).await?;
        Ok(current)
    }

    /// Writes every entry, and waits until everything in them is durable.
    async fn fill(&mut self, file: &mut CheckpointWriter<D>) -> Result<(), Trouble> {
        let mut entry = Vec::new();
        for (count, bucket) in (1..).zip(self.shard.fenced()) {
            entry.clear();
            encode_fence(&bucket, &mut entry);
            file.append(&entry).await?;
            if count % FENCES_PER_TURN == 0 {
                future::yield_now().await;
            }
        }
        let mut next = Some(SliceStart::default());
        while let Some(from) = next {
            // A stop does not wait for a checkpoint: the next start reads more of the journal.
            if self.shard.has_failed() || self.shard.keeper.stop.get() {
                return Err(Trouble::Stopped);
            }
            let slice = self.shard.begin_slice(from);
            next = slice.next;
            self.write(slice.flushes, slice.blobs).await?;
            for slot in from.slot..slice.end {
                entry.clear();
                if self.shard.encode_entry(slot, &mut entry) {
                    file.append(&entry).await?;
                }
            }
            future::yield_now().await;
        }
        let staged = self.journal.staged();
        self.writer.sync().await.map_err(Trouble::Fatal)?;
        let durable = poll_fn(|cx| self.shard.poll_durable(staged, cx)).await;
        durable.map_err(|_| Trouble::Stopped)
    }
}
