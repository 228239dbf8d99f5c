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
        request::{BatchNumber, Reply, Staged},
    },
};

/// Streams deleted in one slice.
const SLICE_STREAMS: usize = 256;

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

    /// Deletes some of a fenced bucket's streams. Those that forks in other buckets inherit from
    /// are soft-deleted, and what they keep is counted.
    pub(super) fn purge_slice(&self, bucket: &str) -> Staged<Reply> {
        let (slots, inherited_bytes) = {
            let tables = self.tables.borrow();
            let mut slots = Vec::new();
            let mut inherited_bytes = 0;
            for (slot, stream) in &tables.streams {
                if stream.staged.key.bucket() != bucket || stream.is_deleted() {
                    continue;
                }
                if stream.staged.soft_deleted && stream.staged.has_forks() {
                    inherited_bytes = stream.own_bytes().saturating_add(inherited_bytes);
                } else if slots.len() < SLICE_STREAMS {
                    slots.push(slot);
                }
            }
            (slots, inherited_bytes)
        };
        if slots.is_empty() {
            // What was removed is still in the journal: it leaves with the next checkpoint.
            self.ask_checkpoint();
        }
        let mut last = BatchNumber(0);
        let streams = slots.len() as u64;
        for slot in slots {
            match self.remove_stream(slot) {
                Ok(batch) => last = last.max(batch),
                Err(Refusal::StreamNotFound) => {}
                Err(refusal) => return Staged::after(last, Err(refusal)),
            }
        }
        Staged::after(
            last,
            Ok(Reply::Purged {
                streams,
                inherited_bytes,
            }),
        )
    }

    /// The fenced buckets.
    #[must_use]
    pub fn fenced(&self) -> Vec<Box<str>> {
        self.tables.borrow().fenced.iter().cloned().collect()
    }
}
