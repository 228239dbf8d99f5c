//! Replay: the tables of a shard from its records, in order.
//!
//! The same functions that apply a change when it happens apply it here, and
//! nothing asks the clock: what had not expired by a record is there after a
//! restart, and the sweep decides anew. Everything replayed is durable, so it
//! is visible at once.

use std::{collections::HashMap, sync::Arc};

use bytes::Bytes;

use crate::{
    protocol::{
        append::{self, AppliedAppend},
        create::{self, CreateRequest, Inherited},
        fork::ForkOrigin,
        incarnation::Incarnation,
        snapshot::SnapshotMeta,
        state::ForkReference,
        stream_key::StreamKey,
    },
    shard::{
        append::charge_of,
        fork::reference_charge,
        history::History,
        record::{BlobRecord, MalformedRecord, Record},
        request::BatchNumber,
        stream::{Blob, StoredSnapshot, Stream},
        tables::Tables,
    },
    storage::{blob::BlobId, segment::SegmentId},
};

/// Why a record cannot follow the ones before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplayError {
    /// It cannot be read.
    Malformed(MalformedRecord),
    /// An append does not start at its stream's tail.
    Gap {
        /// The stream.
        incarnation: Incarnation,
        /// Its tail.
        tail: u64,
        /// Where the append starts.
        start: u64,
    },
    /// A second stream with the same token.
    Duplicate {
        /// The token.
        incarnation: Incarnation,
    },
}

impl std::fmt::Display for ReplayError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Malformed(malformed) => malformed.fmt(f),
            Self::Gap {
                incarnation,
                tail,
                start,
            } => write!(
                f,
                "an append to stream {} starts at {start}, but the stream ends at {tail}: records \
                 between them are missing; restore the journal from a copy, or start with --repair \
                 to close that stream at {tail}",
                incarnation.0
            ),
            Self::Duplicate { incarnation } => {
                write!(f, "stream {} is created a second time", incarnation.0)
            }
        }
    }
}

impl std::error::Error for ReplayError {}

impl Tables {
    /// Applies one record.
    ///
    /// # Errors
    /// [`ReplayError`] for a record that no writer of this version put there.
    pub fn replay(&mut self, bytes: &[u8]) -> Result<(), ReplayError> {
        match Record::decode(bytes).map_err(ReplayError::Malformed)? {
            Record::Create {
                incarnation,
                at_ms,
                key,
                content_type,
                lifetime,
                closed,
                origin,
                body,
            } => {
                if self.slot_of_any(incarnation).is_some() {
                    return Err(ReplayError::Duplicate { incarnation });
                }
                let request = CreateRequest {
                    key,
                    precondition: None,
                    unless_any: false,
                    content_type: Some(content_type.clone()),
                    lifetime,
                    closed,
                    body: Bytes::copy_from_slice(body),
                    fork: None,
                    inherited: origin.map(|origin| Inherited {
                        incarnation,
                        origin,
                        content_type,
                        lifetime,
                    }),
                };
                self.replay_create(request, incarnation, at_ms);
            }
            Record::Append {
                incarnation,
                at_ms,
                start,
                close,
                producer,
                seq,
                body,
            } => {
                let Some(slot) = self.slot_of(incarnation) else {
                    return Ok(());
                };
                let Some(stream) = self.streams.get_mut(slot) else {
                    return Ok(());
                };
                if start != stream.staged.tail {
                    return Err(ReplayError::Gap {
                        incarnation,
                        tail: stream.staged.tail,
                        start,
                    });
                }
                let charge = charge_of(stream, body.len() as u64, producer.as_ref());
                let write = AppliedAppend {
                    at_ms,
                    body_len: body.len() as u64,
                    close,
                    producer: producer.as_ref(),
                    seq: seq.as_deref(),
                };
                append::apply(&mut stream.staged, &write);
                stream.history.append(Bytes::copy_from_slice(body));
                stream.visible.tail = stream.staged.tail;
                stream.visible.closed = stream.staged.closed;
                self.charge(slot, charge);
                self.note_unflushed(slot, body.len() as u64);
            }
            Record::Delete { incarnation, soft } => {
                let Some(slot) = self.slot_of(incarnation) else {
                    return Ok(());
                };
                if !soft {
                    self.remove(slot);
                } else if let Some(stream) = self.streams.get_mut(slot) {
                    stream.staged.soft_deleted = true;
                    stream.visible.soft_deleted = true;
                }
            }
            Record::Retain {
                incarnation,
                at_ms,
                offset,
            } => {
                let Some(slot) = self.slot_of(incarnation) else {
                    return Ok(());
                };
                if let Some(stream) = self.streams.get_mut(slot) {
                    stream.renew(at_ms);
                    stream.staged.retained = offset;
                    stream.visible.retained = offset;
                }
                self.release_history(slot);
            }
            Record::Publish {
                incarnation,
                at_ms,
                offset,
                digest,
                content_type,
                body,
            } => {
                let body = self.restore(body);
                let meta = SnapshotMeta {
                    offset,
                    digest,
                    content_type,
                    len: body.len(),
                };
                if let Some(slot) = self.slot_of(incarnation) {
                    self.charge(slot, body.memory_bytes());
                    self.replay_snapshot(slot, at_ms, meta, vec![body]);
                }
            }
            Record::StagePart {
                incarnation,
                at_ms,
                id,
                body,
            } => {
                if let Some(slot) = self.slot_of(incarnation) {
                    let body = self.restore(body);
                    self.insert_part(slot, id, body, at_ms);
                    if let Some(stream) = self.streams.get_mut(slot) {
                        stream.renew(at_ms);
                    }
                }
            }
            Record::CommitParts {
                incarnation,
                at_ms,
                offset,
                digest,
                content_type,
                ids,
            } => {
                if let Some(slot) = self.slot_of(incarnation) {
                    let body = self.take_parts(slot, &ids);
                    let len = Blob::len_of(&body);
                    let meta = SnapshotMeta {
                        offset,
                        digest,
                        content_type,
                        len,
                    };
                    self.replay_snapshot(slot, at_ms, meta, body);
                }
            }
            Record::DiscardParts { incarnation, ids } => {
                if let Some(slot) = self.slot_of(incarnation) {
                    let bodies = self.discard_parts(slot, &ids);
                    self.release_places(&bodies);
                }
            }
            Record::Refer {
                incarnation,
                fork,
                fork_key,
                start,
            } => {
                let Some(slot) = self.slot_of(incarnation) else {
                    return Ok(());
                };
                let charge = reference_charge(&fork_key);
                if let Some(stream) = self.streams.get_mut(slot) {
                    let reference = ForkReference {
                        key: fork_key,
                        start,
                    };
                    stream.staged.rare_mut().forks.insert(fork, reference);
                }
                self.charge(slot, charge);
            }
            Record::Release { incarnation, fork } => {
                if let Some(slot) = self.slot_of(incarnation) {
                    self.drop_reference(slot, fork);
                    self.release_history(slot);
                }
            }
            Record::Fence { bucket } => {
                self.fenced.insert(bucket);
            }
        }
        Ok(())
    }

    fn replay_create(&mut self, request: CreateRequest, incarnation: Incarnation, at_ms: u64) {
        let state = create::initial_state(&request, incarnation, at_ms);
        let own_start = state.origin().map_or(0, |origin| origin.offset);
        let mut history = History::starting_at(own_start);
        let len = request.body.len() as u64;
        history.append(request.body);
        // A stream of this name that is there already came from a checkpoint and is a later one: this
        // one was deleted before the other's entry was written, and its name is not its own.
        let takes_name = self.slot_of_key(&state.key).is_none();
        let stream = Stream::created(state, history, BatchNumber(0));
        let slot = self.insert_named(stream, takes_name);
        self.note_unflushed(slot, len);
        if let Some(stream) = self.streams.get_mut(slot) {
            stream.visible.exists = true;
            stream.set_predecessor(None);
        }
    }

    fn replay_snapshot(&mut self, slot: usize, at_ms: u64, meta: SnapshotMeta, body: Vec<Blob>) {
        let replaced = self.streams.get_mut(slot).and_then(|stream| {
            stream.renew(at_ms);
            stream.staged.rare_mut().snapshot = Some(meta.clone());
            let stored = Arc::new(StoredSnapshot { meta, body });
            stream.blobs_or_new().snapshot.replace(stored)
        });
        if let Some(replaced) = replaced {
            self.discharge(slot, replaced.memory_bytes());
            self.release_places(&replaced.body);
        }
    }

    pub(super) fn restore(&self, body: BlobRecord<'_>) -> Blob {
        match body {
            BlobRecord::Inline(bytes) => Blob::Memory(Bytes::copy_from_slice(bytes)),
            BlobRecord::File { id, len } => Blob::File(self.graveyard.refer(id, len)),
            BlobRecord::Block(place) => Blob::Block(place),
        }
    }

    /// Every stream in the table, in no order; a soft-deleted one is there while it has forks.
    pub fn all_streams(&self) -> impl Iterator<Item = &Stream> {
        self.streams.iter().map(|(_, stream)| stream)
    }

    /// Every bucket that is fenced.
    pub fn fenced_buckets(&self) -> impl Iterator<Item = &str> {
        self.fenced.iter().map(AsRef::as_ref)
    }

    /// The stream with this token.
    #[must_use]
    pub fn stream(&self, incarnation: Incarnation) -> Option<&Stream> {
        self.streams.get(self.slot_of(incarnation)?)
    }

    /// The stream with this name.
    #[must_use]
    pub fn stream_named(&self, key: &StreamKey) -> Option<&Stream> {
        self.streams.get(self.slot_of_key(key)?)
    }

    /// Every blob file that a record names, with its length.
    #[must_use]
    pub fn blob_files(&self) -> Vec<(BlobId, u64)> {
        let blobs = self
            .streams
            .iter()
            .flat_map(|(_, stream)| stream.all_blobs());
        blobs
            .filter_map(|blob| match blob {
                Blob::Memory(_) | Blob::Block(_) => None,
                Blob::File(file) => Some((file.id, file.len)),
            })
            .collect()
    }

    /// Every fork in the table, with its origin.
    #[must_use]
    pub fn forks(&self) -> Vec<(Incarnation, ForkOrigin)> {
        self.streams
            .iter()
            .filter(|(_, stream)| !stream.is_deleted())
            .filter_map(|(_, stream)| {
                Some((stream.staged.incarnation, stream.staged.origin()?.clone()))
            })
            .collect()
    }

    /// Every reference in the table: source and fork.
    #[must_use]
    pub fn references(&self) -> Vec<(Incarnation, Incarnation)> {
        let streams = self.streams.iter();
        streams
            .flat_map(|(_, stream)| {
                let forks = stream.staged.rare.iter().flat_map(|rare| rare.forks.iter());
                let source = stream.staged.incarnation;
                forks.map(move |(fork, _)| (source, fork))
            })
            .collect()
    }

    /// Soft-deleted streams without forks: a crash came between the last release and the deletion.
    #[must_use]
    pub fn orphans(&self) -> Vec<Incarnation> {
        self.streams
            .iter()
            .filter(|(_, stream)| stream.staged.soft_deleted && !stream.staged.has_forks())
            .map(|(_, stream)| stream.staged.incarnation)
            .collect()
    }

    /// How far into each segment its streams need it, in bytes.
    #[must_use]
    pub fn segment_ends(&self) -> HashMap<SegmentId, u64> {
        let mut ends = HashMap::new();
        self.note_segment_ends(&mut ends);
        ends
    }

    /// Raises `ends`, what other shards need of segments, to what these streams need.
    pub fn note_segment_ends(&self, ends: &mut HashMap<SegmentId, u64>) {
        for place in self.all_streams().flat_map(Stream::places) {
            let end = ends.entry(place.segment).or_default();
            *end = place.end().max(*end);
        }
    }
}
