//! Bucket purge, as one shard carries out its part (extensions 1.2;
//! decisions, Two surfaces).
//!
//! The fence is durable on every shard before the operator is answered, and
//! with it in force no request finds a stream of the bucket. Removing the
//! streams is done in slices and resumed after a restart: replay leaves what
//! a fence covers in the table only until [`Shard::purge_slice`] has gone
//! over it.

use crate::{
    protocol::error::Refusal,
    shard::{
        owner::Shard,
        record::Record,
        request::{Reply, Staged},
    },
};

/// Streams deleted in one slice.
const SLICE_STREAMS: usize = 256;

/// Slots of the table looked at in one slice: a tenth of a millisecond, or a few when none of
/// them is in the caches.
const SLICE_SLOTS: usize = 4096;

/// What one slice came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Purged {
    /// Streams deleted.
    pub streams: u64,
    /// Bytes that forks elsewhere still inherit, in the slots this slice went over.
    pub inherited_bytes: u64,
    /// The slot to go on from; `None` when the table has no more.
    pub next: Option<usize>,
}

impl Purged {
    /// Adds what a further slice came to.
    pub fn add(&mut self, slice: Self) {
        self.streams = self.streams.saturating_add(slice.streams);
        self.inherited_bytes = self.inherited_bytes.saturating_add(slice.inherited_bytes);
        self.next = slice.next;
    }
}

impl Shard {
    /// Fences a bucket for good.
    pub(super) fn fence(&self, bucket: &str) -> Staged<()> {
        // Also when it is there already: the answer then waits for a record that certainly stands.
        match self.stage(&Record::Fence {
            bucket: bucket.into(),
        }) {
            Ok(batch) => {
                self.tables.borrow_mut().fenced.insert(bucket.into());
                Staged::after(batch, Ok(()))
            }
            Err(refusal) => Staged::now(Err(refusal)),
        }
    }

    /// Takes over a fence that a purge had set on another shard before a crash: in force at once,
    /// and journaled so that it stays. Without room for the record the next start does it again.
    pub fn adopt_fence(&self, bucket: &str) {
        let _ = self.fence(bucket).outcome;
        self.tables.borrow_mut().fenced.insert(bucket.into());
    }

    /// Goes over some slots of the table from `from` on and deletes the streams there that are in
    /// `bucket`, or, without one, in any fenced bucket. Those that forks in other buckets inherit
    /// from are soft-deleted; what those keep that were so before is counted.
    ///
    /// A fence lets no stream of its bucket come into the table, so that each slot has to be
    /// looked at once.
    pub(super) fn purge_slice(&self, bucket: Option<&str>, from: usize) -> Staged<Reply> {
        let mut slots = Vec::new();
        let (mut streams, mut inherited_bytes) = (0_u64, 0);
        let next = {
            let tables = self.tables.borrow();
            let capacity = tables.streams.capacity();
            let end = from.saturating_add(SLICE_SLOTS).min(capacity);
            let mut slot = from;
            while slot < end && slots.len() < SLICE_STREAMS {
                if let Some(stream) = tables.streams.get(slot)
                    && !stream.is_deleted()
                    && bucket.is_none_or(|bucket| stream.staged.key.bucket() == bucket)
                    && tables.is_fenced(&stream.staged.key)
                {
                    if stream.staged.soft_deleted && stream.staged.has_forks() {
                        inherited_bytes = stream.own_bytes().saturating_add(inherited_bytes);
                    } else {
                        // One that was soft-deleted has been counted.
                        streams = streams.saturating_add(u64::from(!stream.staged.soft_deleted));
                        slots.push(slot);
                    }
                }
                slot = slot.saturating_add(1);
            }
            (slot < capacity).then_some(slot)
        };
        if next.is_none() {
            // What was removed is still in the journal: it leaves with the next checkpoint.
            self.ask_checkpoint();
        }
        for slot in slots {
            match self.remove_stream(slot) {
                Ok(_) | Err(Refusal::StreamNotFound) => {}
                Err(refusal) => return Staged::after(self.staged(), Err(refusal)),
            }
        }
        // After all that is staged, not only this: with what forks that went before let go here, their
        // sources have been told before whoever purges looks again.
        Staged::after(
            self.staged(),
            Ok(Reply::Purged(Purged {
                streams,
                inherited_bytes,
                next,
            })),
        )
    }

    /// The fenced buckets.
    #[must_use]
    pub fn fenced(&self) -> Vec<Box<str>> {
        self.tables.borrow().fenced.iter().cloned().collect()
    }
}
