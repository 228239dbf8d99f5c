//! What the keeper asks of the owner of a shard: a slice of a checkpoint, and
//! what of the shard is where. Each in one turn, with no wait in it: what a
//! slice needs is taken out by reference, and requests may come between two.

use std::{collections::HashSet, ops::Range};

use crate::{
    base::limits::DISK_IO_BYTES_MAX,
    shard::{
        checkpoint::encode_stream,
        flush::{BlobFlush, BlobRoom, Flush},
        moved::Moved,
        owner::Shard,
    },
    storage::segment::SegmentId,
};

/// Streams of one slice of a checkpoint.
const SLICE_STREAMS: usize = 256;
/// Places, and what may leave memory, looked at in one turn.
pub(super) const SLICE_PLACES: usize = 256;
/// Bytes written in one slice.
const SLICE_BYTES: u64 = DISK_IO_BYTES_MAX as u64;

/// What of a shard is where.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Held {
    /// Bytes of streams that are in memory, and in the journal, alone.
    pub unflushed_bytes: u64,
    /// Segments with live blocks.
    pub segments: u64,
    /// Bytes of those blocks.
    pub segment_live_bytes: u64,
    /// Bytes of those segments on disk.
    pub segment_taken_bytes: u64,
}

/// A slice of a checkpoint: some streams, and what of them must be written to blocks first.
pub(super) struct Slice {
    pub(super) flushes: Vec<Flush>,
    pub(super) blobs: Vec<BlobFlush>,
    /// The slot after the last.
    pub(super) end: usize,
    /// Where the next slice begins, unless this is the last.
    pub(super) next: Option<SliceStart>,
}

/// Where a slice begins.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct SliceStart {
    /// The first slot.
    pub(super) slot: usize,
    /// Of that one's bytes, those before this offset are yet to be written to blocks, and were too
    /// many for the slice before.
    flush_to: Option<u64>,
}

impl Shard {
    pub(super) fn begin_slice(&self, from: SliceStart) -> Slice {
        let capacity = self.tables.borrow().streams.capacity();
        let (mut flushes, mut blobs, mut bytes) = (Vec::new(), Vec::new(), 0u64);
        let (mut end, mut flush_to) = (from.slot, from.flush_to);
        // Of its own: however much is appended to a stream, its blobs have their turn.
        let mut room = BlobRoom {
            blobs: SLICE_PLACES,
            bytes: SLICE_BYTES,
        };
        let last = end.saturating_add(SLICE_STREAMS).min(capacity);
        while end < last && bytes < SLICE_BYTES {
            // What is appended while it is written, without end perhaps, is not waited for.
            let goal = flush_to.take().or_else(|| self.end_of(end));
            if let Some(flush) = self.begin_flush(end, false) {
                bytes = bytes.saturating_add(flush.len());
                let flushed_to = flush.start.saturating_add(flush.len());
                flushes.push(flush);
                flush_to = goal.filter(|goal| flushed_to < *goal);
                if flush_to.is_some() {
                    break;
                }
            }
            if !self.begin_blob_flush(end, &mut room, &mut blobs) {
                // What is written now is not in memory alone the next time.
                break;
            }
            end = end.saturating_add(1);
        }
        Slice {
            flushes,
            blobs,
            end,
            next: (end < capacity).then_some(SliceStart {
                slot: end,
                flush_to,
            }),
        }
    }

    fn end_of(&self, slot: usize) -> Option<u64> {
        let tables = self.tables.borrow();
        Some(tables.streams.get(slot)?.history.end())
    }

    /// The entry of the stream in `slot`; false if there is none, or none after what is staged.
    pub(super) fn encode_entry(&self, slot: usize, entry: &mut Vec<u8>) -> bool {
        let tables = self.tables.borrow();
        let Some(stream) = tables
            .streams
            .get(slot)
            .filter(|stream| !stream.is_deleted())
        else {
            return false;
        };
        encode_stream(stream, self.journal.next_position(), entry);
        true
    }

    /// A checkpoint begins: the places given up until now go when it rules.
    pub(super) fn begin_checkpoint(&self) -> Moved {
        std::mem::take(&mut self.tables.borrow_mut().moved)
    }

    /// It rules: some of them go. True when more are left.
    pub(super) fn release_moved(&self, moved: &mut Moved) -> bool {
        let mut tables = self.tables.borrow_mut();
        for _ in 0..SLICE_PLACES {
            let Some(place) = moved.pop() else {
                return false;
            };
            tables.held.release(place);
        }
        true
    }

    /// It came to nothing: they wait for the next one.
    pub(super) fn keep_moved(&self, moved: Moved) {
        self.tables.borrow_mut().moved.put_back(moved);
    }

    /// Releases some of the places that nobody needs and that are left over; true when more are.
    pub(super) fn release_leftover(&self) -> bool {
        self.tables.borrow_mut().release_leftover()
    }

    /// A step of the tidying of what may leave memory; true when more is due.
    pub(super) fn tidy_evictable(&self) -> bool {
        self.tables.borrow_mut().tidy_evictable(SLICE_PLACES)
    }

    /// What of the shard is where.
    #[must_use]
    pub fn held(&self) -> Held {
        let tables = self.tables.borrow();
        Held {
            unflushed_bytes: tables.unflushed_bytes,
            segments: tables.held.segments() as u64,
            segment_live_bytes: tables.held.live_bytes(),
            segment_taken_bytes: tables.held.taken_bytes(),
        }
    }

    /// Bytes of places given up since the last checkpoint began.
    pub(super) fn moved_bytes(&self) -> u64 {
        self.tables.borrow().moved.bytes()
    }

    /// Whether a good part of the memory holds what only a checkpoint can let leave it.
    pub(super) fn unflushed_is_high(&self) -> bool {
        self.tables.borrow().unflushed_bytes > self.memory().1 / 4
    }

    pub(super) fn wasteful_segment(&self, except: &HashSet<SegmentId>) -> Option<SegmentId> {
        self.tables.borrow().held.wasteful(except)
    }

    pub(super) fn take_punchable(&self, count_max: usize) -> Vec<(SegmentId, Range<u64>)> {
        self.tables.borrow_mut().held.take_punchable(count_max)
    }
}
