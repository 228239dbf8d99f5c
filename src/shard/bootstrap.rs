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
            let stream = tables.streams.get(slot).ok_or(Refusal::Internal)?;
            let extent = stream.extent();
            let snapshot = stream.snapshot().cloned();
            let start = snapshot
                .as_ref()
                .map_or(extent.retained, |snapshot| snapshot.meta.offset);
            let look = self.look_at(&tables, stream);
            let end = bootstrap::updates_end(
                start,
                extent.tail,
                stream.staged.content_type.is_json(),
                |limit| look.boundary_at_or_before(start, limit),
                |from| look.boundary_after(from, extent.tail),
            );
            let body = snapshot.iter().flat_map(|snapshot| &snapshot.body);
            let segments = tables.segments_of(body);
            Ok(BootstrapReply {
                incarnation: extent.incarnation,
                content_type: stream.staged.content_type.clone(),
                window: Window {
                    start,
                    end,
                    tail: extent.tail,
                    closed: extent.closed,
                },
                runs: stream.runs(start, end, &tables.held),
                segments,
                snapshot,
            })
        }))
    }
}
