//! Staged snapshot parts and their commit, as the owner carries them out.
//!
//! A commit takes two turns of the owner. The first reserves: it answers from
//! an earlier commit if there was one, checks that every part is there, marks
//! the commit as running and hands the parts out by reference. Hashing them
//! happens elsewhere, in slices, while appends go on. The second decides as a
//! publish of the whole would and moves the parts into the snapshot. A commit
//! that never comes back (its client or core is gone) is ended by its guard.

use crate::{
    protocol::{
        error::Refusal,
        incarnation::Incarnation,
        snapshot::{self, SnapshotMeta, StagedPart},
    },
    shard::{
        owner::Shard,
        record::Record,
        request::{BatchNumber, CommitRequest, Reply, Staged, Target},
        stream::{Blob, Stream},
        tables::{Effect, Tables},
    },
};

/// Memory charged for a part besides its body, in bytes.
const PART_OVERHEAD_BYTES: u64 = 256;

impl Shard {
    /// Stages a part; readers see nothing of it.
    pub(super) fn stage_part(
        &self,
        target: &Target,
        id: Box<str>,
        body: Blob,
    ) -> Staged<Incarnation> {
        let slot = match self.writable(target) {
            Ok(slot) => slot,
            Err(refused) => return refused,
        };
        let len = body.len();
        let at_ms = self.now_ms();
        let (incarnation, changed_in, room) = {
            let mut tables = self.tables.borrow_mut();
            let Some(stream) = tables.streams.get_mut(slot) else {
                return Staged::now(Err(Refusal::Internal));
            };
            let room = match &stream.staged.rare {
                Some(rare) => rare.parts.check_room(len),
                None => Ok(()),
            };
            (stream.staged.incarnation, stream.changed_in, room)
        };
        let staged = room
            .and_then(|()| self.check_room(part_charge(&body)))
            .and_then(|()| {
                self.stage(&Record::StagePart {
                    incarnation,
                    at_ms,
                    id: id.clone(),
                    body: body.record(),
                })
            });
        let batch = match staged {
            Ok(batch) => batch,
            Err(refusal) => return Staged::after(changed_in, Err(refusal)),
        };
        body.keep();
        let mut tables = self.tables.borrow_mut();
        tables.insert_part(slot, id, body, at_ms);
        if let Some(stream) = tables.streams.get_mut(slot) {
            stream.renew(at_ms);
            stream.changed_in = batch;
        }
        Staged::after(batch, Ok(incarnation))
    }

    /// First step of a commit: reserve the parts and hand them out.
    pub(super) fn begin_commit(&self, request: &CommitRequest) -> Staged<Reply> {
        let slot = match self.writable(&request.target) {
            Ok(slot) => slot,
            Err(refused) => return refused,
        };
        let mut tables = self.tables.borrow_mut();
        let Some(stream) = tables.streams.get_mut(slot) else {
            return Staged::now(Err(Refusal::Internal));
        };
        let changed_in = stream.changed_in;
        let incarnation = stream.staged.incarnation;
        // A commit sent again answers as a publish sent again does, though its parts are gone.
        if let Some(latest) = stream.staged.snapshot()
            && request.offset <= latest.offset
        {
            // At or before the latest one, no boundary is looked for.
            let decided = snapshot::decide_publish(
                &stream.staged,
                request.offset,
                &request.digest,
                &request.content_type,
                |_| false,
            );
            let reply = decided.map(|_| Reply::Published(latest.clone(), incarnation));
            return Staged::after(changed_in, reply);
        }
        let reply = reserve(stream, request).map(|parts| {
            let segments = tables.segments_of(parts.iter());
            Reply::Parts(parts, segments, incarnation)
        });
        Staged::after(changed_in, reply)
    }

    /// Second step: publish the parts as one snapshot, or give them back.
    pub(super) fn end_commit(
        &self,
        request: &CommitRequest,
        matches: bool,
    ) -> Staged<(SnapshotMeta, Incarnation)> {
        let slot = match self.writable(&request.target) {
            Ok(slot) => slot,
            Err(refused) => return refused,
        };
        let (changed_in, len) = {
            let mut tables = self.tables.borrow_mut();
            let Some(stream) = tables.streams.get_mut(slot) else {
                return Staged::now(Err(Refusal::Internal));
            };
            let rare = stream.staged.rare_mut();
            rare.parts.commit_running = false;
            let len = total_len(&rare.parts, &request.ids);
            (stream.changed_in, len)
        };
        let len = match (matches, len) {
            (false, _) => return Staged::after(changed_in, Err(Refusal::SnapshotDigestMismatch)),
            (true, Err(refusal)) => return Staged::after(changed_in, Err(refusal)),
            (true, Ok(len)) => len,
        };
        let meta = SnapshotMeta {
            offset: request.offset,
            digest: request.digest,
            content_type: request.content_type.clone(),
            len,
        };
        self.publish_decided(slot, meta, |shard, incarnation, at_ms, meta| {
            let batch = shard.stage(&Record::CommitParts {
                incarnation,
                at_ms,
                offset: meta.offset,
                digest: meta.digest,
                content_type: meta.content_type.clone(),
                ids: request.ids.to_vec(),
            })?;
            let mut tables = shard.tables.borrow_mut();
            Ok((batch, tables.take_parts(slot, &request.ids)))
        })
    }

    /// Discards every staged part.
    pub(super) fn discard_parts(&self, target: &Target) -> Staged<Incarnation> {
        let slot = match self.writable(target) {
            Ok(slot) => slot,
            Err(refused) => return refused,
        };
        let (incarnation, changed_in, running, empty) = {
            let tables = self.tables.borrow();
            let Some(stream) = tables.streams.get(slot) else {
                return Staged::now(Err(Refusal::Internal));
            };
            let parts = stream.staged.rare.as_ref().map(|rare| &rare.parts);
            (
                stream.staged.incarnation,
                stream.changed_in,
                parts.is_some_and(|parts| parts.commit_running),
                parts.is_none_or(|parts| parts.is_empty()),
            )
        };
        if running {
            return Staged::after(changed_in, Err(Refusal::SnapshotCommitInProgress));
        }
        if empty {
            return Staged::after(changed_in, Ok(incarnation));
        }
        match self.stage_discard(slot, incarnation, Vec::new()) {
            Ok(batch) => Staged::after(batch, Ok(incarnation)),
            Err(refusal) => Staged::after(changed_in, Err(refusal)),
        }
    }

    /// Discards the parts `ids`, or all of them when it is empty.
    pub(super) fn stage_discard(
        &self,
        slot: usize,
        incarnation: Incarnation,
        ids: Vec<Box<str>>,
    ) -> Result<BatchNumber, Refusal> {
        let batch = self.stage(&Record::DiscardParts {
            incarnation,
            ids: ids.clone(),
        })?;
        let mut tables = self.tables.borrow_mut();
        let blobs = tables.discard_parts(slot, &ids);
        tables.note(batch, Effect::Doom { blobs });
        if let Some(stream) = tables.streams.get_mut(slot) {
            stream.changed_in = batch;
        }
        Ok(batch)
    }
}

/// What a stream is charged for a part.
pub(super) fn part_charge(body: &Blob) -> u64 {
    body.memory_bytes().saturating_add(PART_OVERHEAD_BYTES)
}

impl Tables {
    /// Adds a part, live and in replay.
    pub(super) fn insert_part(&mut self, slot: usize, id: Box<str>, body: Blob, at_ms: u64) {
        let len = body.len();
        let charge = part_charge(&body);
        if let Some(stream) = self.streams.get_mut(slot) {
            let part = StagedPart { len, at_ms };
            stream.staged.rare_mut().parts.insert(id.clone(), part);
            stream.blobs_or_new().parts.insert(id, body);
        }
        self.charge(slot, charge);
    }

    /// Takes parts out for a snapshot; their bytes stay charged, as its body.
    pub(super) fn take_parts(&mut self, slot: usize, ids: &[Box<str>]) -> Vec<Blob> {
        let mut body = Vec::with_capacity(ids.len());
        if let Some(stream) = self.streams.get_mut(slot) {
            for id in ids {
                stream.staged.rare_mut().parts.remove(id);
                let blobs = stream.blobs_or_new();
                body.extend(blobs.parts.remove(id));
            }
        }
        self.discharge(slot, (ids.len() as u64).saturating_mul(PART_OVERHEAD_BYTES));
        body
    }

    /// Drops the parts `ids`, or all of them when it is empty; live and in replay. Returns their
    /// bodies.
    pub(super) fn discard_parts(&mut self, slot: usize, ids: &[Box<str>]) -> Vec<Blob> {
        let mut freed = 0;
        let mut bodies = Vec::new();
        if let Some(stream) = self.streams.get_mut(slot) {
            let all: Vec<Box<str>>;
            let ids = if ids.is_empty() {
                let parts = &stream.staged.rare_mut().parts;
                all = parts.ids().map(Into::into).collect();
                &all
            } else {
                ids
            };
            for id in ids {
                stream.staged.rare_mut().parts.remove(id);
                let blobs = stream.blobs_or_new();
                if let Some(body) = blobs.parts.remove(id) {
                    freed = part_charge(&body).saturating_add(freed);
                    bodies.push(body);
                }
            }
        }
        self.discharge(slot, freed);
        bodies
    }
}

/// Checks a commit against its stream and marks it as running.
fn reserve(stream: &mut Stream, request: &CommitRequest) -> Result<Vec<Blob>, Refusal> {
    let tail = stream.staged.tail;
    let parts = &mut stream.staged.rare_mut().parts;
    if parts.commit_running {
        return Err(Refusal::SnapshotCommitInProgress);
    }
    let len = total_len(parts, &request.ids)?;
    if len > request.bytes_max {
        return Err(Refusal::SnapshotTooLarge {
            limit: request.bytes_max,
        });
    }
    if request.offset > tail {
        return Err(Refusal::SnapshotConflict { latest: None, tail });
    }
    let bodies: Option<Vec<Blob>> = request
        .ids
        .iter()
        .map(|id| stream.blobs()?.parts.get(id).cloned())
        .collect();
    let bodies = bodies.ok_or(Refusal::UnknownPart)?;
    stream.staged.rare_mut().parts.commit_running = true;
    Ok(bodies)
}

fn total_len(parts: &snapshot::StagedParts, ids: &[Box<str>]) -> Result<u64, Refusal> {
    ids.iter().try_fold(0u64, |total, id| {
        let part = parts.get(id).ok_or(Refusal::UnknownPart)?;
        Ok(total.saturating_add(part.len))
    })
}
