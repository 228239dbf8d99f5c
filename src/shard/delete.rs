//! Delete and HEAD, as the owner carries them out.

use crate::{
    protocol::{append::check_incarnation, error::Refusal, incarnation::Incarnation},
    shard::{
        owner::{Found, Shard},
        request::{Staged, StreamHead, Target},
    },
};

impl Shard {
    /// Deletes a stream; one that forks inherit from is soft-deleted (base protocol 5.4).
    pub(super) fn delete(&self, target: &Target) -> Staged<Incarnation> {
        let slot = match self.find_staged(&target.key) {
            Ok(Found::Slot(slot)) => slot,
            Ok(Found::Missing(batch)) => {
                return Staged::after(batch, Err(Refusal::StreamNotFound));
            }
            Err(refusal) => return Staged::now(Err(refusal)),
        };
        let (incarnation, changed_in, refused) = {
            let tables = self.tables.borrow();
            let Some(stream) = tables.streams.get(slot) else {
                return Staged::now(Err(Refusal::Internal));
            };
            let refused = match check_incarnation(&stream.staged, target.precondition) {
                _ if stream.staged.soft_deleted => Err(Refusal::SoftDeleted),
                other => other,
            };
            (stream.staged.incarnation, stream.changed_in, refused)
        };
        // A delete needs no memory and may run while the budget is full: it frees some.
        match refused.and_then(|()| self.remove_stream(slot)) {
            Ok(batch) => Staged::after(batch, Ok(incarnation)),
            Err(refusal) => Staged::after(changed_in, Err(refusal)),
        }
    }

    /// What HEAD says; it renews nothing.
    pub(super) fn head(&self, target: &Target) -> Staged<StreamHead> {
        Staged::now(self.find_visible(&target.key).and_then(|slot| {
            let tables = self.tables.borrow();
            let stream = tables.streams.get(slot).ok_or(Refusal::Internal)?;
            check_incarnation(&stream.staged, target.precondition)?;
            Ok(StreamHead {
                extent: stream.extent(),
                content_type: stream.staged.content_type.clone(),
                lifetime: stream.staged.lifetime,
                snapshot: stream
                    .snapshot()
                    .map(|snapshot| Box::new(snapshot.meta.clone())),
            })
        }))
    }
}
