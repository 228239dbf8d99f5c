//! Reads, as the owner carries them out (decided by `protocol::read`): on
//! durable state, in the turn in which a live reader is registered.

use std::sync::Arc;

use crate::{
    base::limits::PIECE_BYTES,
    protocol::{
        content_type::Kind,
        error::Refusal,
        incarnation::Incarnation,
        read::{self, Live, ReadRequest, Window},
        sse,
        stream_key::Surface,
    },
    shard::{
        live::{Watch, Watched},
        lookup::Lookup,
        owner::Shard,
        request::{EventReply, EventRequest, ReadReply, Reply, Staged, Watching},
        stream::Stream,
    },
};

/// Most stored bytes of one SSE event, unless a JSON message on the base surface is larger: a
/// reader that is behind gets many appends in one event, and memory for it stays bounded.
const EVENT_BYTES_MAX: u64 = PIECE_BYTES as u64;

impl Shard {
    /// Reads what there is; a long-poll at the tail of an open stream is told what to wait on.
    pub(super) fn read(&self, request: &ReadRequest, watch: Option<Arc<Watch>>) -> Staged<Reply> {
        Staged::now(self.begin_read(request).and_then(|(slot, start)| {
            let mut tables = self.tables.borrow_mut();
            let stream = tables.streams.get_mut(slot).ok_or(Refusal::Internal)?;
            let extent = stream.extent();
            let at_tail = start == extent.tail;
            if let (true, false, Live::LongPoll, Some(watch)) =
                (at_tail, extent.closed, request.live, watch)
            {
                return Ok(Reply::Watching(register(stream, start, watch)));
            }
            let stream = tables.streams.get(slot).ok_or(Refusal::Internal)?;
            let look = self.look_at(&tables, stream);
            let end = cut(stream, &look, start, request.bytes_max, request.surface);
            Ok(Reply::Read(ReadReply {
                incarnation: extent.incarnation,
                content_type: stream.staged.content_type.clone(),
                lifetime: (stream.staged.lifetime, stream.staged.renewed_ms),
                window: Window {
                    start,
                    end,
                    tail: extent.tail,
                    closed: extent.closed,
                },
                runs: stream.runs(start, end, &tables.held),
            }))
        }))
    }

    /// Opens a live read that stays.
    pub(super) fn tail(&self, request: &ReadRequest, watch: Arc<Watch>) -> Staged<Watching> {
        Staged::now(self.begin_read(request).and_then(|(slot, start)| {
            let mut tables = self.tables.borrow_mut();
            let stream = tables.streams.get_mut(slot).ok_or(Refusal::Internal)?;
            Ok(register(stream, start, watch))
        }))
    }

    /// Finds the stream and where the read starts, and renews the stream's lifetime.
    fn begin_read(&self, request: &ReadRequest) -> Result<(usize, u64), Refusal> {
        let slot = self.find_visible(&request.key)?;
        let now_ms = self.now_ms();
        let mut tables = self.tables.borrow_mut();
        let stream = tables.streams.get(slot).ok_or(Refusal::Internal)?;
        let start = start_of_read(stream, &self.look_at(&tables, stream), request);
        // Whatever came out rests on bytes that were not there: the request comes back.
        if self.has_missed() {
            return Err(Refusal::Internal);
        }
        let start = start?;
        let stream = tables.streams.get_mut(slot).ok_or(Refusal::Internal)?;
        stream.renew(now_ms);
        Ok((slot, start))
    }

    /// The stored bytes of an open SSE response's next event.
    pub(super) fn event(&self, request: &EventRequest) -> Staged<EventReply> {
        let tables = self.tables.borrow();
        let slot = tables.slot_of_any(request.incarnation);
        let stream = slot.and_then(|slot| tables.streams.get(slot));
        Staged::now(stream.filter(|stream| !stream.visible.soft_deleted).map_or(
            Err(Refusal::StreamNotFound),
            |stream| {
                let extent = stream.extent();
                let start = request.start;
                if start < extent.retained {
                    return Err(Refusal::OffsetGone {
                        retained: extent.retained,
                        incarnation: extent.incarnation,
                    });
                }
                let look = self.look_at(&tables, stream);
                let kind = stream.staged.content_type.kind();
                let bytes_max = request.bytes_max.min(EVENT_BYTES_MAX);
                let mut end = cut(stream, &look, start, bytes_max, request.surface);
                let is_last = extent.closed && end == extent.tail;
                if kind == Kind::Text && !is_last {
                    end = end.saturating_sub(incomplete_character(&look, start, end));
                }
                Ok(EventReply {
                    window: Window {
                        start,
                        end,
                        tail: extent.tail,
                        closed: extent.closed,
                    },
                    after_cr: kind == Kind::Text
                        && start > extent.retained
                        && look.byte_at(start.saturating_sub(1)) == Some(b'\r'),
                    runs: stream.runs(start, end, &tables.held),
                })
            },
        ))
    }

    /// A live reader has gone; its stream's sliding window restarts.
    pub(super) fn leave(&self, incarnation: Incarnation, core: usize) {
        let now_ms = self.now_ms();
        let mut tables = self.tables.borrow_mut();
        let slot = tables.slot_of_any(incarnation);
        if let Some(stream) = slot.and_then(|slot| tables.streams.get_mut(slot)) {
            stream.unwatch(core);
            stream.renew(now_ms);
        }
    }
}

fn start_of_read(
    stream: &Stream,
    look: &Lookup<'_>,
    request: &ReadRequest,
) -> Result<u64, Refusal> {
    let extent = stream.extent();
    let start = read::resolve_start(&extent, request)?;
    let inside_message = stream.staged.content_type.is_json()
        && request.surface == Surface::Base
        && !look.is_boundary(start);
    if inside_message {
        return Err(Refusal::NotJsonBoundary { tail: extent.tail });
    }
    Ok(start)
}

/// Registers a reader in the turn that read the tail for it, so no append falls between.
fn register(stream: &mut Stream, start: u64, watch: Arc<Watch>) -> Watching {
    let extent = stream.extent();
    let state = if extent.closed {
        Watched::Closed { tail: extent.tail }
    } else {
        Watched::Open { tail: extent.tail }
    };
    Watching {
        watch: stream.watch(watch, state),
        content_type: stream.staged.content_type.clone(),
        extent,
        start,
    }
}

/// Where a response that starts at `start` ends: at the tail or after `bytes_max`; on the base
/// surface a JSON stream is cut between messages, after at least one (decisions, Two surfaces).
fn cut(stream: &Stream, look: &Lookup<'_>, start: u64, bytes_max: u64, surface: Surface) -> u64 {
    let tail = stream.visible.tail;
    let limit = start.saturating_add(bytes_max);
    if limit >= tail {
        return tail;
    }
    if surface == Surface::Bucket || !stream.staged.content_type.is_json() {
        return limit;
    }
    look.boundary_at_or_before(start, limit)
        .or_else(|| look.boundary_after(limit, tail))
        .unwrap_or(tail)
}

/// The length of the incomplete character at the end of `[start, end)`.
fn incomplete_character(look: &Lookup<'_>, start: u64, end: u64) -> u64 {
    let from = end.saturating_sub(4).max(start);
    let last: Vec<u8> = (from..end).filter_map(|at| look.byte_at(at)).collect();
    last.len().saturating_sub(sse::whole_characters(&last)) as u64
}
