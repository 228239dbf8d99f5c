//! Retention, as the owner carries it out (decided by `protocol::retention`).

use crate::{
    protocol::{
        append::check_incarnation,
        error::Refusal,
        incarnation::Incarnation,
        retention::{self, RetentionDecision},
    },
    shard::{
        owner::{Found, Shard},
        record::Record,
        request::{BatchNumber, Staged, Target},
        tables::Effect,
    },
};

impl Shard {
    /// Moves the retained offset; answers with the one in force.
    pub(super) fn retain(&self, target: &Target, offset: u64) -> Staged<(u64, Incarnation)> {
        let slot = match self.writable(target) {
            Ok(slot) => slot,
            Err(refused) => return refused,
        };
        let now_ms = self.now_ms();
        let (decision, incarnation, changed_in, retained) = {
            let mut tables = self.tables.borrow_mut();
            let decision = {
                let Some(stream) = tables.streams.get(slot) else {
                    return Staged::now(Err(Refusal::Internal));
                };
                let look = self.look_at(&tables, stream);
                retention::decide(&stream.staged, offset, |at| look.is_boundary(at))
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
            let state = &stream.staged;
            (
                decision,
                state.incarnation,
                stream.changed_in,
                state.retained,
            )
        };
        match decision {
            Err(refusal) => Staged::after(changed_in, Err(refusal)),
            Ok(RetentionDecision::Unchanged) => {
                Staged::after(changed_in, Ok((retained, incarnation)))
            }
            Ok(RetentionDecision::Advance) => {
                match self.stage_retain(slot, incarnation, now_ms, offset) {
                    Ok(batch) => Staged::after(batch, Ok((offset, incarnation))),
                    Err(refusal) => Staged::after(changed_in, Err(refusal)),
                }
            }
        }
    }

    fn stage_retain(
        &self,
        slot: usize,
        incarnation: Incarnation,
        at_ms: u64,
        offset: u64,
    ) -> Result<BatchNumber, Refusal> {
        let batch = self.stage(&Record::Retain {
            incarnation,
            at_ms,
            offset,
        })?;
        let mut tables = self.tables.borrow_mut();
        if let Some(stream) = tables.streams.get_mut(slot) {
            stream.staged.retained = offset;
            stream.changed_in = batch;
        }
        tables.note(batch, Effect::Retain { slot, offset });
        Ok(batch)
    }

    /// The stream that a write of a subresource meets, after existence and incarnation.
    pub(super) fn writable<T>(&self, target: &Target) -> Result<usize, Staged<T>> {
        let slot = match self.find_staged(&target.key) {
            Ok(Found::Slot(slot)) => slot,
            Ok(Found::Missing(batch)) => {
                return Err(Staged::after(batch, Err(Refusal::StreamNotFound)));
            }
            Err(refusal) => return Err(Staged::now(Err(refusal))),
        };
        let tables = self.tables.borrow();
        let Some(stream) = tables.streams.get(slot) else {
            return Err(Staged::now(Err(Refusal::Internal)));
        };
        let check = match check_incarnation(&stream.staged, target.precondition) {
            _ if stream.staged.soft_deleted => Err(Refusal::SoftDeleted),
            other => other,
        };
        match check {
            Ok(()) => Ok(slot),
            Err(refusal) => Err(Staged::after(stream.changed_in, Err(refusal))),
        }
    }
}
