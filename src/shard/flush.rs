//! How a stream's bytes get from memory into blocks, as the owner sees it: what
//! is to be written is taken out by reference in one turn, and what was written
//! is taken note of in a later one. Appends, deletions and retention may come
//! between.
//!
//! A small block at the end of a stream is written again with what follows it,
//! unless it is several times as large: a stream of small appends has few
//! blocks, and each byte is written a bounded number of times. The old block
//! stays on disk until a checkpoint rules that does not name it.

use std::sync::Arc;

use bytes::Bytes;

use crate::{
    base::limits::{BLOB_BLOCK_BYTES_MIN, BLOCK_BYTES_MAX, FLUSH_BYTES},
    protocol::incarnation::Incarnation,
    shard::{
        history::Block,
        owner::Shard,
        stream::{Blob, StoredSnapshot, Stream},
        tables::Tables,
    },
    storage::segment::{BlockKey, Place, Segment},
};

/// A block at the end of a stream is written again unless it is this many times as large as what
/// follows it.
const MERGE_RATIO: u64 = 4;

/// Bytes of one stream on their way into blocks.
pub(super) struct Flush {
    slot: usize,
    pub(super) incarnation: Incarnation,
    /// The offset of the first byte.
    pub(super) start: u64,
    /// Blocks to be written again that must be read first; they come before `pieces`.
    pub(super) reads: Vec<(Place, BlockKey)>,
    /// What is in memory.
    pub(super) pieces: Vec<Bytes>,
}

/// A small snapshot body, or part, on its way into a block.
pub(super) struct BlobFlush {
    slot: usize,
    pub(super) incarnation: Incarnation,
    whose: BlobPlace,
    pub(super) bytes: Bytes,
}

/// Which blob of a stream.
enum BlobPlace {
    /// The piece of this number of this snapshot.
    Snapshot(Arc<StoredSnapshot>, usize),
    /// The part of this id.
    Part(Box<str>),
}

/// Room for small bodies in one turn.
pub(super) struct BlobRoom {
    pub(super) blobs: usize,
    pub(super) bytes: u64,
}

impl BlobRoom {
    /// Takes room for one of `bytes`; it may be larger than what is left.
    fn take(&mut self, bytes: u64) -> bool {
        let has_room = self.blobs > 0 && self.bytes > 0;
        if has_room {
            self.blobs = self.blobs.saturating_sub(1);
            self.bytes = self.bytes.saturating_sub(bytes);
        }
        has_room
    }
}

impl Flush {
    /// Bytes in it.
    pub(super) fn len(&self) -> u64 {
        let reads = self.reads.iter().map(|(place, _)| u64::from(place.len));
        let pieces = self.pieces.iter().map(|piece| piece.len() as u64);
        reads.chain(pieces).sum()
    }
}

impl Shard {
    /// A stream with enough bytes for whole blocks.
    pub(super) fn next_flushable(&self) -> Option<usize> {
        let mut tables = self.tables.borrow_mut();
        while let Some((slot, incarnation)) = tables.flushable.pop_front() {
            let stream = tables.streams.get(slot);
            if stream.is_some_and(|stream| stream.staged.incarnation == incarnation) {
                return Some(slot);
            }
        }
        None
    }

    /// What of a stream is in memory alone; with `whole_blocks` without what would not fill one.
    pub(super) fn begin_flush(&self, slot: usize, whole_blocks: bool) -> Option<Flush> {
        let mut tables = self.tables.borrow_mut();
        let stream = tables.streams.get_mut(slot)?;
        if stream.is_deleted() || stream.history.unflushed() == 0 {
            return None;
        }
        let pieces = stream.history.unflushed_pieces(whole_blocks);
        let mut len: u64 = pieces.iter().map(|piece| piece.len() as u64).sum();
        if len == 0 {
            return None;
        }
        let incarnation = stream.staged.incarnation;
        let mut flush = Flush {
            slot,
            incarnation,
            start: stream.history.flushed_end(),
            reads: Vec::new(),
            pieces,
        };
        let end = flush.start.saturating_add(len);
        for block in stream.history.blocks().iter().rev() {
            let block_len = u64::from(block.place.len);
            if block_len > len.saturating_mul(MERGE_RATIO) || block_len > BLOCK_BYTES_MAX as u64 / 2
            {
                break;
            }
            flush.reads.push((block.place, block.key(incarnation)));
            flush.start = block.start;
            len = len.saturating_add(block_len);
        }
        flush.reads.reverse();
        if stream.history.memory_start() <= flush.start {
            flush.reads.clear();
            flush.pieces = stream.history.memory(flush.start, end);
        }
        Some(flush)
    }

    /// Takes note of where the bytes of a flush are now.
    pub(super) fn end_flush(&self, flush: &Flush, placed: &[(Arc<Segment>, Place)]) {
        let mut tables = self.tables.borrow_mut();
        let tables = &mut *tables;
        tables.adopt(placed);
        let mut blocks = Vec::with_capacity(placed.len());
        let mut at = flush.start;
        for (_, place) in placed {
            let block = Block {
                start: at,
                place: *place,
            };
            at = block.end();
            blocks.push(block);
        }
        let Some(stream) = owned(tables, flush.slot, flush.incarnation) else {
            tables.disown(placed);
            return;
        };
        let before = stream.history.unflushed();
        let replaced = stream.history.install(blocks);
        let left = stream.history.unflushed();
        let flushed = before.saturating_sub(left);
        tables.unflushed_bytes = tables.unflushed_bytes.saturating_sub(flushed);
        if left >= FLUSH_BYTES {
            // More came while these were written.
            tables.flushable.push_back((flush.slot, flush.incarnation));
        }
        replaced
            .into_iter()
            .for_each(|place| tables.moved.push(place));
        tables.note_evictable(flush.slot, at);
        // Retention may have passed them meanwhile.
        tables.release_history(flush.slot);
    }

    /// The small bodies of a stream that are in memory, as long as there is `room`; false if there was
    /// not enough for all.
    pub(super) fn begin_blob_flush(
        &self,
        slot: usize,
        room: &mut BlobRoom,
        flushes: &mut Vec<BlobFlush>,
    ) -> bool {
        let tables = self.tables.borrow();
        let stream = tables.streams.get(slot);
        let Some(stream) = stream.filter(|stream| !stream.is_deleted()) else {
            return true;
        };
        let Some(blobs) = stream.blobs() else {
            return true;
        };
        let incarnation = stream.staged.incarnation;
        let mut add = |whose: &dyn Fn() -> BlobPlace, blob: &Blob| {
            let Blob::Memory(bytes) = blob else {
                return true;
            };
            if bytes.len() < BLOB_BLOCK_BYTES_MIN {
                return true;
            }
            let fits = room.take(bytes.len() as u64);
            if fits {
                flushes.push(BlobFlush {
                    slot,
                    incarnation,
                    whose: whose(),
                    bytes: bytes.clone(),
                });
            }
            fits
        };
        if let Some(snapshot) = &blobs.snapshot {
            let mut pieces = snapshot.body.iter().enumerate();
            let whose = |index| BlobPlace::Snapshot(snapshot.clone(), index);
            if !pieces.all(|(index, blob)| add(&|| whose(index), blob)) {
                return false;
            }
        }
        let running = stream.staged.rare.as_ref();
        if running.is_some_and(|rare| rare.parts.commit_running) {
            return true;
        }
        let mut parts = blobs.parts.iter();
        parts.all(|(id, blob)| add(&|| BlobPlace::Part(id.clone()), blob))
    }

    /// Takes note of where a small body is now.
    pub(super) fn end_blob_flush(&self, flush: &BlobFlush, placed: &(Arc<Segment>, Place)) {
        let mut tables = self.tables.borrow_mut();
        let tables = &mut *tables;
        let placed = std::slice::from_ref(placed);
        tables.adopt(placed);
        let stream = owned(tables, flush.slot, flush.incarnation);
        let blob = placed.first().map(|(_, place)| Blob::Block(*place));
        let replaced = stream
            .zip(blob)
            .is_some_and(|(stream, blob)| replace_blob(stream, flush, blob));
        if replaced {
            tables.discharge(flush.slot, flush.bytes.len() as u64);
        } else {
            tables.disown(placed);
        }
    }
}

/// Puts `blob` where `flush` was taken from, if what is there is still what was flushed.
fn replace_blob(stream: &mut Stream, flush: &BlobFlush, blob: Blob) -> bool {
    let Some(blobs) = stream.blobs_mut() else {
        return false;
    };
    match &flush.whose {
        BlobPlace::Part(id) => {
            let part = blobs.parts.get_mut(id);
            // It may have been discarded or committed meanwhile, and another staged under its id.
            // The flush shares the bytes that it wrote, so no others can have their address.
            let same = part.filter(|part| {
                matches!(part, Blob::Memory(bytes) if bytes.as_ptr() == flush.bytes.as_ptr())
            });
            same.map(|part| *part = blob).is_some()
        }
        BlobPlace::Snapshot(flushed, index) => {
            let latest = blobs.snapshot.as_mut();
            // Readers share it: it is replaced, not changed, unless there are none. The pieces of one
            // snapshot follow one another, so the one that is there has the same meaning, and more of
            // it in blocks.
            let Some(latest) = latest.filter(|latest| latest.meta == flushed.meta) else {
                return false;
            };
            match latest.body.get(*index) {
                Some(Blob::Memory(_)) => {}
                _ => return false,
            }
            let piece = Arc::make_mut(latest).body.get_mut(*index);
            piece.map(|piece| *piece = blob).is_some()
        }
    }
}

/// The stream in `slot`, if it is still the one of `incarnation`.
fn owned(tables: &mut Tables, slot: usize, incarnation: Incarnation) -> Option<&mut Stream> {
    let stream = tables.streams.get_mut(slot)?;
    (stream.staged.incarnation == incarnation).then_some(stream)
}

impl Tables {
    /// Blocks were written: they are ours.
    pub(super) fn adopt(&mut self, placed: &[(Arc<Segment>, Place)]) {
        for (segment, place) in placed {
            self.held.adopt(segment, *place);
        }
    }

    /// Blocks were written for what is gone meanwhile.
    pub(super) fn disown(&mut self, placed: &[(Arc<Segment>, Place)]) {
        for (_, place) in placed {
            self.held.release(*place);
        }
    }
}
