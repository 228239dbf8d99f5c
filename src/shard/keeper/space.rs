//! Gives space back: moves what lives out of segments that are mostly dead,
//! punches what is dead and removes what is empty; nothing while a copy is made.

use bytes::Bytes;
use futures_lite::future;

use super::{Keeper, Trouble};
use crate::{
    base::limits::DISK_IO_BYTES_MAX,
    shard::compaction::KnownBlobs,
    storage::{
        disk::Disk,
        segment::{NewBlock, bury, punch, reads},
    },
};

/// Blocks moved in one turn.
const MOVED_BLOCKS_MAX: usize = 2048;
/// Ranges punched, and files removed, in one turn.
const RECLAIM_MAX: usize = 64;

impl<D: Disk> Keeper<D> {
    /// Empties one segment that is mostly dead, if there is one.
    pub(super) async fn compact(&mut self) -> Result<(), Trouble> {
        let Some(id) = self.shard.wasteful_segment(&self.emptied) else {
            return Ok(());
        };
        let mut live = Vec::new();
        let shard = &self.shard;
        let mut blobs = KnownBlobs::default();
        self.reader
            .scan(id, |place, key, _| {
                if shard.has_block(place, key, &mut blobs) {
                    live.push((place, key));
                }
            })
            .await?;
        let groups = reads(&live, DISK_IO_BYTES_MAX, |(place, _)| *place);
        for group in groups.flat_map(|group| group.chunks(MOVED_BLOCKS_MAX)) {
            if self.shard.keeper.stop.get() {
                return Err(Trouble::Stopped);
            }
            let bytes = self.reader.read(group).await?;
            let blocks: Vec<NewBlock> = group
                .iter()
                .zip(&bytes)
                .map(|((_, key), bytes)| NewBlock {
                    key: *key,
                    pieces: vec![Bytes::copy_from_slice(bytes)],
                })
                .collect();
            let placed = self.writer.write(&blocks).await?;
            self.shard.move_blocks(group, &placed);
            let moved: u64 = group.iter().map(|(place, _)| place.bytes()).sum();
            self.count(|stats| {
                stats.compacted_bytes = stats.compacted_bytes.saturating_add(moved);
            });
            future::yield_now().await;
        }
        self.emptied.insert(id);
        Ok(())
    }

    /// Gives space back.
    pub(super) async fn reclaim(&mut self) -> Result<(), Trouble> {
        while self.shard.release_leftover() {
            future::yield_now().await;
        }
        if self.options.hold.is_held() {
            return Ok(());
        }
        for (id, range) in self.shard.take_punchable(RECLAIM_MAX) {
            let bytes = range.end.saturating_sub(range.start);
            punch(&self.disk, &self.options.segments_dir, id, range).await?;
            self.count(|stats| stats.punched_bytes = stats.punched_bytes.saturating_add(bytes));
        }
        let (dir, graveyard) = (&self.options.segments_dir, &self.graveyard);
        for _ in 0..RECLAIM_MAX {
            // One at a time: a hold may have begun, and a copy need what has become free since.
            if self.options.hold.is_held() {
                break;
            }
            bury(&self.disk, dir, graveyard, &self.reader, 1).await;
        }
        Ok(())
    }
}
