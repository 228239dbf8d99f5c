//! Snapshots published whole, and snapshot reads, as the owner carries them
//! out (decided by `protocol::snapshot`).

use std::sync::Arc;

use crate::{
    protocol::{
        error::Refusal,
        incarnation::Incarnation,
        snapshot::{self, PublishDecision, PublishRequest, SnapshotMeta},
    },
    shard::{
        owner::Shard,
        record::Record,
        request::{BatchNumber, SnapshotReply, Staged, Target},
        stream::{Blob, StoredSnapshot},
        tables::Effect,
    },
};

impl Shard {
    /// Publishes a snapshot; it replaces any earlier one at once.
    pub(super) fn publish(
        &self,
        request: &PublishRequest,
        body: Blob,
    ) -> Staged<(SnapshotMeta, Incarnation)> {
        let target = Target {
            key: request.key.clone(),
            precondition: request.precondition,
        };
        let slot = match self.writable(&target) {
            Ok(slot) => slot,
            Err(refused) => return refused,
        };
        let meta = SnapshotMeta {
            offset: request.offset,
            digest: request.digest,
            content_type: request.content_type.clone(),
            len: body.len(),
        };
        self.publish_decided(slot, meta, |shard, incarnation, at_ms, meta| {
            shard.check_room(body.memory_bytes())?;
            let batch = shard.stage(&Record::Publish {
                incarnation,
                at_ms,
                offset: meta.offset,
                digest: meta.digest,
                content_type: meta.content_type.clone(),
                body: body.record(),
            })?;
            body.keep();
            shard.tables.borrow_mut().charge(slot, body.memory_bytes());
            Ok((batch, vec![body]))
        })
    }

    /// Decides a publish of `meta` and, when it is new, lets `stage` put its record into the
    /// batch and name the body's pieces.
    pub(super) fn publish_decided(
        &self,
        slot: usize,
        meta: SnapshotMeta,
        stage: impl FnOnce(
            &Self,
            Incarnation,
            u64,
            &SnapshotMeta,
        ) -> Result<(BatchNumber, Vec<Blob>), Refusal>,
    ) -> Staged<(SnapshotMeta, Incarnation)> {
        let now_ms = self.now_ms();
        let (decision, incarnation, changed_in) = {
            let mut tables = self.tables.borrow_mut();
            let decision = {
                let Some(stream) = tables.streams.get(slot) else {
                    return Staged::now(Err(Refusal::Internal));
                };
                let look = self.look_at(&tables, stream);
                snapshot::decide_publish(
                    &stream.staged,
                    meta.offset,
                    &meta.digest,
                    &meta.content_type,
                    |at| look.is_boundary(at),
                )
            };
            if self.has_missed() {
                return Staged::now(Err(Refusal::Internal));
            }
            let Some(stream) = tables.streams.get_mut(slot) else {
                return Staged::now(Err(Refusal::Internal));
            };
            if decision.is_ok() {
                stream.renew(now_ms);
            }
            (decision, stream.staged.incarnation, stream.changed_in)
        };
        match decision {
            Err(refusal) => return Staged::after(changed_in, Err(refusal)),
            Ok(PublishDecision::Repeat) => {
                return Staged::after(changed_in, Ok((meta, incarnation)));
            }
            Ok(PublishDecision::Publish) => {}
        }
        let (batch, body) = match stage(self, incarnation, now_ms, &meta) {
            Ok(staged) => staged,
            Err(refusal) => return Staged::after(changed_in, Err(refusal)),
        };
        let stored = Arc::new(StoredSnapshot {
            meta: meta.clone(),
            body,
        });
        let mut tables = self.tables.borrow_mut();
        if let Some(stream) = tables.streams.get_mut(slot) {
            stream.staged.rare_mut().snapshot = Some(meta.clone());
            stream.blobs_or_new().staged = Some(stored.clone());
            stream.changed_in = batch;
        }
        tables.note(
            batch,
            Effect::Snapshot {
                slot,
                snapshot: stored,
            },
        );
        Staged::after(batch, Ok((meta, incarnation)))
    }

    /// The latest snapshot, if it is the one at `offset` (extensions 2.5).
    pub(super) fn read_snapshot(&self, target: &Target, offset: u64) -> Staged<SnapshotReply> {
        let now_ms = self.now_ms();
        Staged::now(self.find_visible(&target.key).and_then(|slot| {
            let mut tables = self.tables.borrow_mut();
            let stream = tables.streams.get_mut(slot).ok_or(Refusal::Internal)?;
            let incarnation = stream.staged.incarnation;
            let snapshot = stream
                .snapshot()
                .filter(|snapshot| snapshot.meta.offset == offset)
                .cloned()
                .ok_or(Refusal::SnapshotNotFound { incarnation })?;
            stream.renew(now_ms);
            // The precondition comes after an unsatisfiable range, which only the caller knows; it
            // compares `incarnation`, which is of the state that serves the read.
            let up_to_date = stream.visible.tail == offset;
            Ok(SnapshotReply {
                up_to_date,
                incarnation,
                segments: tables.segments_of(snapshot.body.iter()),
                snapshot,
            })
        }))
    }
}
