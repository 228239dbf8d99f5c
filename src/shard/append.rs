//! Append and close, as the owner carries them out (decided by
//! `protocol::append`).

use crate::{
    protocol::{
        append::{self, AppendDecision, AppendRequest, AppliedAppend},
        error::Refusal,
        producer::ProducerWrite,
    },
    shard::{
        owner::{Found, Shard},
        record::Record,
        request::{Appended, Receipt, Staged},
        stream::Stream,
        tables::Effect,
    },
};

/// Memory charged for a producer that a stream did not know, in bytes, besides its id.
const PRODUCER_OVERHEAD_BYTES: u64 = 256;

impl Shard {
    /// Appends, closes, or both.
    pub fn append(&self, request: &AppendRequest) -> Staged<Appended> {
        let slot = match self.find_staged(&request.key) {
            Ok(Found::Slot(slot)) => slot,
            Ok(Found::Missing(batch)) => {
                return Staged::after(batch, Err(Refusal::StreamNotFound));
            }
            Err(refusal) => return Staged::now(Err(refusal)),
        };
        let mut tables = self.tables.borrow_mut();
        let tables = &mut *tables;
        let Some(stream) = tables.streams.get_mut(slot) else {
            return Staged::now(Err(Refusal::Internal));
        };
        let state = &stream.staged;
        let decision = append::decide(state, request, self.limits.producers_per_stream_max);
        let mut appended = Appended {
            incarnation: state.incarnation,
            start: state.tail,
            tail: state.tail,
            closed: state.closed,
            receipt: None,
        };
        let closed_epoch = match decision {
            Err(refusal) => return Staged::after(stream.changed_in, Err(refusal)),
            Ok(AppendDecision::AlreadyClosed) => {
                stream.renew(self.clock.now_ms());
                return Staged::after(stream.changed_in, Ok(appended));
            }
            Ok(AppendDecision::Repeat(repeat)) => {
                stream.renew(self.clock.now_ms());
                appended.closed = repeat.closes;
                appended.receipt = Some(Receipt::Repeated(repeat));
                return Staged::after(stream.changed_in, Ok(appended));
            }
            Ok(AppendDecision::Apply { closed_epoch }) => closed_epoch,
        };
        let changed_in = stream.changed_in;
        let len = request.body.len() as u64;
        let charge = charge_of(stream, len, request.producer.as_ref());
        if let Err(refusal) = self.check_room_in(tables, charge) {
            return Staged::after(changed_in, Err(refusal));
        }
        let at_ms = self.clock.now_ms();
        let record = Record::Append {
            incarnation: appended.incarnation,
            at_ms,
            start: appended.start,
            close: request.close,
            producer: request.producer.clone(),
            seq: request.seq.clone(),
            body: &request.body,
        };
        let batch = match self.stage(&record) {
            Ok(batch) => batch,
            Err(refusal) => return Staged::after(changed_in, Err(refusal)),
        };
        let Some(stream) = tables.streams.get_mut(slot) else {
            return Staged::now(Err(Refusal::Internal));
        };
        append::apply(
            &mut stream.staged,
            &AppliedAppend {
                at_ms,
                body_len: len,
                close: request.close,
                producer: request.producer.as_ref(),
                seq: request.seq.as_deref(),
            },
        );
        stream.history.append(request.body.clone());
        stream.changed_in = batch;
        appended.tail = stream.staged.tail;
        appended.closed = stream.staged.closed;
        appended.receipt = request.producer.as_ref().map(|write| Receipt::Applied {
            epoch: write.epoch,
            seq: write.seq,
            closed: closed_epoch,
        });
        tables.charge(slot, charge);
        if tables.note_unflushed(slot, len) {
            self.keeper.ring();
        }
        tables.note(
            batch,
            Effect::Advance {
                slot,
                tail: appended.tail,
                closed: appended.closed,
            },
        );
        Staged::after(batch, Ok(appended))
    }
}

/// What an append is charged: its bytes, and the entry of a producer that its stream did not know.
/// The same live and in replay.
pub(super) fn charge_of(stream: &Stream, body_len: u64, producer: Option<&ProducerWrite>) -> u64 {
    let new_producer = producer.filter(|write| stream.staged.producer(&write.id).is_none());
    body_len.saturating_add(new_producer.map_or(0, |write| producer_charge(&write.id)))
}

/// What a stream is charged for one producer.
pub(super) fn producer_charge(id: &str) -> u64 {
    PRODUCER_OVERHEAD_BYTES.saturating_add(id.len() as u64)
}
