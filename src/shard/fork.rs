//! Forks, as the source's owner sees them (decided by `protocol::fork`).
//!
//! A fork is made in two durable steps: a reference at the source's owner,
//! then the stream at its own. A crash between them leaves a reference whose
//! fork never came to be; those are dropped at start, before listening. The
//! reference keeps the source's bytes: retention, expiry and deletion of the
//! source never free what a fork inherited.

use bytes::Bytes;

use crate::{
    protocol::{
        content_type::Kind,
        create::Inherited,
        error::Refusal,
        fork::{self, ForkOrigin, ForkRequest},
        incarnation::Incarnation,
        state::ForkReference,
        stream_key::StreamKey,
    },
    shard::{
        owner::{Found, Shard},
        record::Record,
        request::Staged,
        stream::Stream,
        tables::Tables,
    },
};

/// Memory charged to a source for one fork's reference, in bytes, besides the fork's name.
const REFERENCE_OVERHEAD_BYTES: u64 = 128;

impl Shard {
    /// Gives a fork a durable reference on its source, and the bytes it inherits.
    pub(super) fn refer(
        &self,
        request: &ForkRequest,
        fork_key: &StreamKey,
        fork: Incarnation,
    ) -> Staged<Inherited> {
        let slot = match self.find_staged(&request.source) {
            Ok(Found::Slot(slot)) => slot,
            Ok(Found::Missing(batch)) => {
                return Staged::after(batch, Err(Refusal::StreamNotFound));
            }
            Err(refusal) => return Staged::now(Err(refusal)),
        };
        let now_ms = self.now_ms();
        let (changed_in, inherited) = {
            let mut tables = self.tables.borrow_mut();
            let Some(stream) = tables.streams.get_mut(slot) else {
                return Staged::now(Err(Refusal::Internal));
            };
            let inherited = divergence(stream, request).map(|offset| {
                stream.renew(now_ms);
                let state = &stream.staged;
                Inherited {
                    incarnation: fork,
                    origin: ForkOrigin {
                        source: request.source.clone(),
                        incarnation: state.incarnation,
                        start: state.retained,
                        offset,
                        requested: request.offset,
                        sub_offset: request.sub_offset,
                    },
                    content_type: state.content_type.clone(),
                    lifetime: state.lifetime,
                    bytes: stream.history.read(state.retained, offset),
                }
            });
            (stream.changed_in, inherited)
        };
        let charge = reference_charge(fork_key);
        let staged = inherited.and_then(|inherited| {
            self.check_room(charge)?;
            let batch = self.stage(&Record::Refer {
                incarnation: inherited.origin.incarnation,
                fork,
                fork_key: fork_key.clone(),
                start: inherited.origin.start,
            })?;
            Ok((batch, inherited))
        });
        let (batch, inherited) = match staged {
            Ok(staged) => staged,
            Err(refusal) => return Staged::after(changed_in, Err(refusal)),
        };
        let mut tables = self.tables.borrow_mut();
        if let Some(stream) = tables.streams.get_mut(slot) {
            let reference = ForkReference {
                key: fork_key.clone(),
                start: inherited.origin.start,
            };
            stream.staged.rare_mut().forks.insert(fork, reference);
            stream.changed_in = batch;
        }
        tables.charge(slot, charge);
        Staged::after(batch, Ok(inherited))
    }

    /// A fork lets its reference go. A soft-deleted source without forks is deleted for good.
    pub(super) fn release(&self, source: Incarnation, fork: Incarnation) -> Staged<Incarnation> {
        let slot = {
            let tables = self.tables.borrow();
            let slot = tables.slot_of(source);
            slot.filter(|slot| {
                let stream = tables.streams.get(*slot);
                let rare = stream.and_then(|stream| stream.staged.rare.as_ref());
                rare.is_some_and(|rare| rare.forks.contains_key(&fork))
            })
        };
        let Some(slot) = slot else {
            return Staged::now(Ok(source));
        };
        let record = Record::Release {
            incarnation: source,
            fork,
        };
        let batch = match self.stage(&record) {
            Ok(batch) => batch,
            Err(refusal) => return Staged::now(Err(refusal)),
        };
        let is_over = {
            let mut tables = self.tables.borrow_mut();
            tables.drop_reference(slot, fork);
            tables.streams.get_mut(slot).is_some_and(|stream| {
                stream.changed_in = batch;
                !stream.staged.has_forks() && stream.staged.soft_deleted
            })
        };
        if !is_over {
            return Staged::after(batch, Ok(source));
        }
        match self.remove_stream(slot) {
            Ok(batch) => Staged::after(batch, Ok(source)),
            // The reference is gone; the next start finishes the deletion.
            Err(_) => Staged::after(batch, Ok(source)),
        }
    }

    /// Finishes the deletion of a soft-deleted stream whose last fork is gone.
    pub fn remove_orphan(&self, incarnation: Incarnation) {
        let slot = self.tables.borrow().slot_of(incarnation);
        if let Some(slot) = slot {
            // Without room for the record the next start tries again.
            let _ = self.remove_stream(slot);
        }
    }

    /// Puts the bytes that a fork inherits in front of its own, at start.
    pub fn graft(&self, fork: Incarnation, inherited: Vec<Bytes>) {
        self.tables.borrow_mut().graft(fork, inherited);
    }

    /// The bytes that a fork inherits, for a fork that is being put together at start; `None`
    /// while the source lacks some itself. Who inherits nothing needs no source: after a repair it
    /// may be gone.
    pub(super) fn inherit(&self, source: Incarnation, start: u64, end: u64) -> Option<Vec<Bytes>> {
        if start >= end {
            return Some(Vec::new());
        }
        let tables = self.tables.borrow();
        let stream = tables.streams.get(tables.slot_of(source)?)?;
        let whole = stream.history.start() <= start && stream.history.end() >= end;
        whole.then(|| stream.history.read(start, end))
    }
}

/// What a source is charged for one reference.
pub(super) fn reference_charge(fork_key: &StreamKey) -> u64 {
    REFERENCE_OVERHEAD_BYTES + fork_key.as_str().len() as u64
}

impl Tables {
    /// Takes a fork's reference out and lets go of what only it kept; live and in replay.
    pub(super) fn drop_reference(&mut self, slot: usize, fork: Incarnation) {
        let reference = self
            .streams
            .get_mut(slot)
            .and_then(|stream| stream.staged.rare_mut().forks.remove(&fork));
        if let Some(reference) = reference {
            self.discharge(slot, reference_charge(&reference.key));
            self.release_history(slot);
        }
    }
}

/// The divergence point: anchor plus sub-offset, in bytes, or in messages for JSON.
fn divergence(stream: &Stream, request: &ForkRequest) -> Result<u64, Refusal> {
    let state = &stream.staged;
    let anchor = fork::anchor(state, request)?;
    let past_tail = Refusal::InvalidForkOffset(
        "Stream-Fork-Sub-Offset names a position past the source stream's tail",
    );
    if state.content_type.kind() != Kind::Json {
        let offset = anchor.checked_add(request.sub_offset);
        return offset
            .filter(|offset| *offset <= state.tail)
            .ok_or(past_tail);
    }
    if !stream.is_boundary(anchor) {
        return Err(Refusal::NotJsonBoundary { tail: state.tail });
    }
    stream
        .history
        .boundary_after_messages(anchor, state.tail, request.sub_offset)
        .ok_or(past_tail)
}
