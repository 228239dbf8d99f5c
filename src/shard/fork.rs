//! Forks, as the source's owner sees them (decided by `protocol::fork`).
//!
//! A fork is made in two durable steps: a reference at the source's owner,
//! then the stream at its own. A crash between them leaves a reference whose
//! fork never came to be; those are dropped at start, before listening. The
//! reference keeps the source's bytes: retention, expiry and deletion of the
//! source never free what a fork inherited.

use crate::{
    protocol::{
        content_type::Kind,
        create::Inherited,
        error::Refusal,
        fork::{self, ForkOrigin},
        incarnation::Incarnation,
        state::ForkReference,
        stream_key::StreamKey,
    },
    shard::{
        lookup::Lookup,
        owner::{Found, Shard},
        record::Record,
        request::{ReferRequest, Staged},
        run::Run,
        stream::Stream,
        tables::{Effect, Tables},
    },
};

/// Memory charged to a source for one fork's reference, in bytes, besides the fork's name.
const REFERENCE_OVERHEAD_BYTES: u64 = 128;

impl Shard {
    /// Gives a fork a durable reference on its source, and says what it inherits.
    pub(super) fn refer(&self, request: &ReferRequest) -> Staged<Inherited> {
        let slot = match self.find_staged(&request.fork.source) {
            Ok(Found::Slot(slot)) => slot,
            Ok(Found::Missing(batch)) => {
                return Staged::after(batch, Err(Refusal::StreamNotFound));
            }
            Err(refusal) => return Staged::now(Err(refusal)),
        };
        let now_ms = self.now_ms();
        let (changed_in, inherited) = {
            let mut tables = self.tables.borrow_mut();
            let divergence = {
                let Some(stream) = tables.streams.get(slot) else {
                    return Staged::now(Err(Refusal::Internal));
                };
                divergence(stream, &self.look_at(&tables, stream), request)
            };
            if self.has_missed() {
                return Staged::now(Err(Refusal::Internal));
            }
            let Some(stream) = tables.streams.get_mut(slot) else {
                return Staged::now(Err(Refusal::Internal));
            };
            let inherited = divergence.map(|offset| {
                stream.renew(now_ms);
                let state = &stream.staged;
                Inherited {
                    incarnation: request.incarnation,
                    origin: ForkOrigin {
                        source: request.fork.source.clone(),
                        incarnation: state.incarnation,
                        start: state.retained,
                        offset,
                        requested: request.fork.offset,
                        sub_offset: request.fork.sub_offset,
                    },
                    content_type: state.content_type.clone(),
                    lifetime: state.lifetime,
                }
            });
            (stream.changed_in, inherited)
        };
        let charge = reference_charge(&request.key);
        let staged = inherited.and_then(|inherited| {
            self.check_room(charge)?;
            let batch = self.stage(&Record::Refer {
                incarnation: inherited.origin.incarnation,
                fork: request.incarnation,
                fork_key: request.key.clone(),
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
                key: request.key.clone(),
                start: inherited.origin.start,
            };
            let forks = &mut stream.staged.rare_mut().forks;
            forks.insert(request.incarnation, reference);
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
                rare.is_some_and(|rare| rare.forks.contains(fork))
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
            tables.note(batch, Effect::Release { slot });
            tables.streams.get_mut(slot).is_some_and(|stream| {
                stream.begin_release();
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

    /// Where the bytes are that a fork inherits; `None` if the source lacks some. Who inherits
    /// nothing needs no source: after a repair it may be gone.
    pub(super) fn inherit(&self, source: Incarnation, start: u64, end: u64) -> Option<Vec<Run>> {
        if start >= end {
            return Some(Vec::new());
        }
        let tables = self.tables.borrow();
        let stream = tables.streams.get(tables.slot_of(source)?)?;
        let state = &stream.staged;
        let whole = state.kept_from() <= start && state.tail >= end;
        whole.then(|| stream.runs(start, end, &tables.held))
    }
}

/// What a source is charged for one reference.
pub(super) fn reference_charge(fork_key: &StreamKey) -> u64 {
    REFERENCE_OVERHEAD_BYTES.saturating_add(fork_key.as_str().len() as u64)
}

impl Tables {
    /// Takes a fork's reference out. What only it kept is for [`Self::release_history`], once that is
    /// durable.
    pub(super) fn drop_reference(&mut self, slot: usize, fork: Incarnation) {
        let reference = self
            .streams
            .get_mut(slot)
            .and_then(|stream| stream.staged.rare_mut().forks.remove(fork));
        if let Some(reference) = reference {
            self.discharge(slot, reference_charge(&reference.key));
        }
    }
}

/// The divergence point: anchor plus sub-offset, in bytes, or in messages for JSON.
fn divergence(stream: &Stream, look: &Lookup<'_>, request: &ReferRequest) -> Result<u64, Refusal> {
    let state = &stream.staged;
    let anchor = fork::anchor(state, &request.fork)?;
    let sub_offset = request.fork.sub_offset;
    let past_tail = Refusal::InvalidForkOffset(
        "Stream-Fork-Sub-Offset names a position past the source stream's tail",
    );
    if state.content_type.kind() != Kind::Json {
        let offset = anchor.checked_add(sub_offset);
        return offset
            .filter(|offset| *offset <= state.tail)
            .ok_or(past_tail);
    }
    if !look.is_boundary(anchor) {
        return Err(Refusal::NotJsonBoundary { tail: state.tail });
    }
    // What was counted before the request came back is not counted again.
    let counted = request.counted.get();
    let counted = counted.filter(|(source, ..)| *source == state.incarnation);
    let (at, left) = counted.map_or((anchor, sub_offset), |(_, at, left)| (at, left));
    let passed = look.pass_messages(at, left, state.tail);
    let (at, left) = passed.ok_or(past_tail)?;
    request.counted.set(Some((state.incarnation, at, left)));
    Ok(at)
}
