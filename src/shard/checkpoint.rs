//! What a checkpoint holds of a shard: one entry for each stream, one for each
//! fence.
//!
//! An entry is whole: the state that staged records add up to when it is
//! written, where the blocks are, and the few bytes that no block holds yet.
//! It names the position of the first record that is *not* in it. Entries are
//! written one after the other while work goes on, so each has its own; replay
//! leaves out what an entry has already ([`Restore`]). A stream that is not in
//! the checkpoint was gone when its turn came, or came to be later: then the
//! journal tells, from the position on at which the checkpoint began.
//!
//! The checkpoint may rule only when every record that an entry includes is
//! durable; who writes it sees to that.

use std::{collections::HashMap, sync::Arc};

use crate::{
    protocol::{
        incarnation::Incarnation,
        producer::Producer,
        snapshot::{SnapshotMeta, StagedPart},
        state::{ForkReference, ProducerTuple, Rare, StreamState},
    },
    shard::{
        append::producer_charge,
        fork::reference_charge,
        history::{Block, History},
        record::{
            BlobRecord, MalformedRecord, Record,
            codec::{Reader, Writer},
        },
        replay::ReplayError,
        request::BatchNumber,
        snapshot_parts::part_charge,
        stream::{Blob, Blobs, StoredSnapshot, Stream},
        tables::Tables,
    },
    storage::{
        journal::Position,
        segment::{Segment, SegmentId},
    },
};

const STREAM: u8 = 1;
const FENCE: u8 = 2;
const CLOSED: u8 = 1;
const SOFT_DELETED: u8 = 2;

/// Appends the entry of a fence to `out`.
pub fn encode_fence(bucket: &str, out: &mut Vec<u8>) {
    let mut out = Writer(out);
    out.u8(FENCE);
    out.text(bucket);
}

/// Appends the entry of a stream to `out`; `position` is that of the next record to be staged.
pub fn encode_stream(stream: &Stream, position: Position, out: &mut Vec<u8>) {
    let state = &stream.staged;
    let mut out = Writer(out);
    out.head(STREAM, state.incarnation);
    out.u64(position.0);
    out.text(state.key.as_str());
    out.text(state.content_type.as_str());
    out.lifetime(state.lifetime);
    out.u64(state.renewed_ms);
    out.u64(state.tail);
    out.u64(state.retained);
    let closed = if state.closed { CLOSED } else { 0 };
    let soft_deleted = if state.soft_deleted { SOFT_DELETED } else { 0 };
    out.u8(closed | soft_deleted);
    out.option(state.rare.as_deref(), |out, rare| {
        encode_rare(out, rare, stream.blobs());
    });
    let blocks = stream.history.blocks();
    out.u64(stream.history.start());
    out.u32(blocks.len() as u32);
    for block in blocks {
        out.place(block.place);
    }
    let (from, to) = (stream.history.flushed_end(), state.tail);
    for piece in stream.history.memory(from, to) {
        out.0.extend_from_slice(&piece);
    }
}

fn encode_rare(out: &mut Writer<'_>, rare: &Rare, blobs: Option<&Blobs>) {
    out.u32(rare.producers.len() as u32);
    for (id, producer) in &rare.producers {
        out.text(id);
        out.u64(producer.epoch);
        out.u64(producer.seq);
        out.u64(producer.start);
        out.u64(producer.end);
        out.u8(u8::from(producer.closes));
        out.option(producer.digest.as_ref(), |out, digest| {
            out.0.extend_from_slice(digest);
        });
        out.option(producer.closed.as_ref(), |out, (epoch, seq)| {
            out.u64(*epoch);
            out.u64(*seq);
        });
    }
    out.option(rare.closed_by.as_ref(), |out, tuple| {
        out.text(&tuple.id);
        out.u64(tuple.epoch);
        out.u64(tuple.seq);
    });
    out.option(rare.last_seq.as_ref(), |out, seq| out.text(seq));
    out.option(rare.origin.as_ref(), Writer::origin);
    out.u32(rare.forks.len() as u32);
    for (fork, reference) in rare.forks.iter() {
        out.u64(fork.0);
        out.text(reference.key.as_str());
        out.u64(reference.start);
    }
    // The snapshot that is staged may not be the visible one yet; its body is.
    let snapshot = blobs.and_then(|blobs| blobs.staged.as_ref().or(blobs.snapshot.as_ref()));
    out.option(snapshot, |out, stored| {
        out.u64(stored.meta.offset);
        out.0.extend_from_slice(&stored.meta.digest);
        out.text(stored.meta.content_type.as_str());
        out.u32(stored.body.len() as u32);
        for blob in &stored.body {
            encode_blob(out, blob);
        }
    });
    let parts = blobs.map(|blobs| &blobs.parts);
    out.u32(parts.map_or(0, HashMap::len) as u32);
    for (id, blob) in parts.into_iter().flatten() {
        out.text(id);
        out.u64(rare.parts.get(id).map_or(0, |part| part.at_ms));
        encode_blob(out, blob);
    }
}

/// A blob with its length before it, since others follow.
fn encode_blob(out: &mut Writer<'_>, blob: &Blob) {
    let at = out.0.len();
    out.u32(0);
    let body = out.blob(&blob.record());
    out.0.extend_from_slice(body);
    let written = out.0.get_mut(at..).and_then(<[u8]>::split_first_chunk_mut);
    if let Some((place, blob)) = written {
        *place = (blob.len() as u32).to_le_bytes();
    }
}

/// Up to where each stream's records are in its entry.
pub type Included = HashMap<Incarnation, Position, ahash::RandomState>;

/// Puts a shard's tables together from its checkpoint and the journal behind it.
pub struct Restore<'a> {
    tables: Tables,
    /// Up to where each stream's records are in its entry.
    included: Included,
    /// Finds or opens the segment of an id; cores may share it.
    segment: &'a mut dyn FnMut(SegmentId) -> Arc<Segment>,
}

impl<'a> Restore<'a> {
    /// Begins with empty tables.
    #[must_use]
    pub fn new(tables: Tables, segment: &'a mut dyn FnMut(SegmentId) -> Arc<Segment>) -> Self {
        Self {
            tables,
            included: HashMap::default(),
            segment,
        }
    }

    /// Makes room for `streams` that are to come, so that no table has to grow for them.
    pub fn reserve(&mut self, streams: usize) {
        self.tables.reserve(streams);
        self.included.reserve(streams);
    }

    /// Takes the next entry of the checkpoint.
    ///
    /// # Errors
    /// [`ReplayError`] for an entry that no writer of this version put there.
    pub fn entry(&mut self, bytes: &[u8]) -> Result<(), ReplayError> {
        let malformed = || {
            ReplayError::Malformed(MalformedRecord {
                tag: bytes.first().copied(),
            })
        };
        let mut reader = Reader(bytes);
        match reader.u8().ok_or_else(malformed)? {
            STREAM => self.stream(&mut reader).ok_or_else(malformed)?,
            FENCE => {
                let bucket = reader.text().ok_or_else(malformed)?;
                self.tables.fenced.insert(bucket.into());
                Ok(())
            }
            _ => Err(malformed()),
        }
    }

    /// Applies a record of the journal, unless the entry of its stream includes it.
    ///
    /// # Errors
    /// [`ReplayError`] for a record that no writer of this version put there.
    pub fn record(&mut self, position: Position, bytes: &[u8]) -> Result<(), ReplayError> {
        if self.is_included(position, bytes)? {
            return Ok(());
        }
        self.tables.replay(bytes)
    }

    /// Whether the entry of a record's stream includes it.
    ///
    /// # Errors
    /// [`ReplayError::Malformed`].
    pub fn is_included(&self, position: Position, bytes: &[u8]) -> Result<bool, ReplayError> {
        if self.included.is_empty() {
            return Ok(false);
        }
        let incarnation = Record::stream_of(bytes).map_err(ReplayError::Malformed)?;
        let included = self.included.get(&incarnation);
        Ok(included.is_some_and(|included| position < *included))
    }

    /// The tables as they are so far.
    #[must_use]
    pub fn tables(&self) -> &Tables {
        &self.tables
    }

    /// The tables as they are so far, to be changed.
    pub fn tables_mut(&mut self) -> &mut Tables {
        &mut self.tables
    }

    /// The position behind the last record that an entry includes.
    #[must_use]
    pub fn reach(&self) -> Position {
        let included = self.included.values().max();
        included.copied().unwrap_or_default()
    }

    /// The tables, and up to where each stream's records are in them.
    #[must_use]
    pub fn into_parts(self) -> (Tables, Included) {
        (self.tables, self.included)
    }

    /// The tables.
    #[must_use]
    pub fn finish(mut self) -> Tables {
        self.tables.shrink();
        self.tables
    }

    fn stream(&mut self, reader: &mut Reader<'_>) -> Option<Result<(), ReplayError>> {
        let incarnation = Incarnation(reader.u64()?);
        let position = Position(reader.u64()?);
        let key = reader.key()?;
        let content_type = reader.content_type()?;
        let mut state = StreamState {
            key,
            incarnation,
            content_type,
            lifetime: reader.lifetime()?,
            renewed_ms: reader.u64()?,
            tail: reader.offset()?,
            retained: reader.offset()?,
            closed: false,
            soft_deleted: false,
            rare: None,
        };
        let flags = reader.u8()?;
        if flags & !(CLOSED | SOFT_DELETED) != 0 {
            return None;
        }
        state.closed = flags & CLOSED != 0;
        state.soft_deleted = flags & SOFT_DELETED != 0;
        let mut blobs = None;
        let mut charge = 0;
        if reader.bool()? {
            let rare = self.rare(reader, &mut blobs, &mut charge)?;
            state.rare = Some(Box::new(rare));
        }
        let history_start = reader.offset()?;
        let count = reader.u32()?;
        let mut at = history_start;
        let mut blocks = Vec::new();
        for _ in 0..count {
            let block = Block {
                start: at,
                place: reader.place()?,
            };
            at = block.end();
            blocks.push(block);
        }
        let rest = reader.rest();
        if at.checked_add(rest.len() as u64)? != state.tail {
            return None;
        }
        if self.tables.slot_of_any(incarnation).is_some() {
            return Some(Err(ReplayError::Duplicate { incarnation }));
        }
        let mut history = History::of_blocks(&blocks, at);
        history.append(bytes::Bytes::copy_from_slice(rest));
        let mut stream = Stream::created(state, history, BatchNumber(0));
        stream.visible.exists = true;
        stream.visible.soft_deleted = stream.staged.soft_deleted;
        stream.set_blobs(blobs);
        // What its retained offset has passed was let go with the record that moved it.
        stream.history.release_before(stream.staged.kept_from());
        for place in stream.places() {
            let segment = (self.segment)(place.segment);
            self.tables.held.adopt(&segment, place);
        }
        let unflushed = stream.history.unflushed();
        let slot = self.tables.insert(stream);
        self.tables.note_unflushed(slot, unflushed);
        self.tables.charge(slot, charge);
        self.included.insert(incarnation, position);
        Some(Ok(()))
    }

    fn rare(
        &mut self,
        reader: &mut Reader<'_>,
        blobs: &mut Option<Box<Blobs>>,
        charge: &mut u64,
    ) -> Option<Rare> {
        let mut rare = Rare::default();
        for _ in 0..reader.u32()? {
            let id: Box<str> = reader.text()?.into();
            let producer = Producer {
                epoch: reader.u64()?,
                seq: reader.u64()?,
                start: reader.u64()?,
                end: reader.u64()?,
                closes: reader.bool()?,
                digest: reader.option(Reader::digest)?,
                closed: reader.option(|reader| Some((reader.u64()?, reader.u64()?)))?,
            };
            *charge = charge.saturating_add(producer_charge(&id));
            rare.producers.insert(id, producer);
        }
        rare.closed_by = reader.option(|reader| {
            Some(ProducerTuple {
                id: reader.text()?.into(),
                epoch: reader.u64()?,
                seq: reader.u64()?,
            })
        })?;
        rare.last_seq = reader.option(|reader| Some(reader.text()?.into()))?;
        rare.origin = reader.option(Reader::origin)?;
        for _ in 0..reader.u32()? {
            let fork = Incarnation(reader.u64()?);
            let reference = ForkReference {
                key: reader.key()?,
                start: reader.u64()?,
            };
            *charge = charge.saturating_add(reference_charge(&reference.key));
            rare.forks.insert(fork, reference);
        }
        if reader.bool()? {
            let (offset, digest) = (reader.u64()?, reader.digest()?);
            let content_type = reader.content_type()?;
            let mut body = Vec::new();
            for _ in 0..reader.u32()? {
                body.push(self.blob(reader)?);
            }
            let meta = SnapshotMeta {
                offset,
                digest,
                content_type,
                len: Blob::len_of(&body),
            };
            rare.snapshot = Some(meta.clone());
            let stored = StoredSnapshot { meta, body };
            *charge = charge.saturating_add(stored.memory_bytes());
            blobs.get_or_insert_default().snapshot = Some(Arc::new(stored));
        }
        for _ in 0..reader.u32()? {
            let id: Box<str> = reader.text()?.into();
            let at_ms = reader.u64()?;
            let body = self.blob(reader)?;
            *charge = charge.saturating_add(part_charge(&body));
            let len = body.len();
            rare.parts.insert(id.clone(), StagedPart { len, at_ms });
            blobs.get_or_insert_default().parts.insert(id, body);
        }
        Some(rare)
    }

    fn blob(&mut self, reader: &mut Reader<'_>) -> Option<Blob> {
        let len = usize::try_from(reader.u32()?).ok()?;
        let mut own = Reader(reader.take(len)?);
        let blob: BlobRecord<'_> = own.blob()?;
        own.0.is_empty().then(|| self.tables.restore(blob))
    }
}

#[cfg(test)]
mod tests;
