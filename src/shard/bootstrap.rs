//! Bootstrap, as the owner carries it out (decided by `protocol::bootstrap`).

use crate::{
    protocol::{
        append::check_incarnation,
        bootstrap::{self, BootstrapRequest},
        error::Refusal,
        read::Window,
    },
    shard::{
        owner::Shard,
        request::{BootstrapReply, Staged},
    },
};

impl Shard {
    /// The latest snapshot and the updates after it, from one durable state.
    pub(super) fn bootstrap(&self, request: &BootstrapRequest) -> Staged<BootstrapReply> {
        let now_ms = self.now_ms();
        Staged::now(self.find_visible(&request.key).and_then(|slot| {
            let mut tables = self.tables.borrow_mut();
            let stream = tables.streams.get_mut(slot).ok_or(Refusal::Internal)?;
            check_incarnation(&stream.staged, request.precondition)?;
            stream.renew(now_ms);
            let extent = stream.extent();
            let snapshot = stream.snapshot().cloned();
            let start = snapshot
                .as_ref()
                .map_or(extent.retained, |snapshot| snapshot.meta.offset);
            let history = &stream.history;
            let end = bootstrap::updates_end(
                start,
                extent.tail,
                stream.staged.content_type.is_json(),
                |limit| history.boundary_at_or_before(start, limit),
                |from| history.boundary_after(from, extent.tail),
            );
            Ok(BootstrapReply {
                incarnation: extent.incarnation,
                content_type: stream.staged.content_type.clone(),
                snapshot,
                window: Window {
                    start,
                    end,
                    tail: extent.tail,
                    closed: extent.closed,
                },
                bytes: history.read(start, end),
            })
        }))
    }
}
