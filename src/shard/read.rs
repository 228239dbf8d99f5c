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
        self.begin_read(request, |stream, start| {
            let extent = stream.extent();
            let at_tail = start == extent.tail;
            if let (true, false, Live::LongPoll, Some(watch)) =
                (at_tail, extent.closed, request.live, watch)
            {
                return Ok(Reply::Watching(register(stream, start, watch)));
            }
            let end = cut(stream, start, request.bytes_max, request.surface);
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
                bytes: stream.history.read(start, end),
            }))
        })
    }

    /// Opens a live read that stays.
    pub(super) fn tail(&self, request: &ReadRequest, watch: Arc<Watch>) -> Staged<Watching> {
        self.begin_read(request, |stream, start| Ok(register(stream, start, watch)))
    }

    /// Finds the stream and where the read starts, and renews the stream's lifetime.
    fn begin_read<T>(
        &self,
        request: &ReadRequest,
        read: impl FnOnce(&mut Stream, u64) -> Result<T, Refusal>,
    ) -> Staged<T> {
        Staged::now(self.find_visible(&request.key).and_then(|slot| {
            let now_ms = self.now_ms();
            let mut tables = self.tables.borrow_mut();
            let stream = tables.streams.get_mut(slot).ok_or(Refusal::Internal)?;
            let start = start_of_read(stream, request)?;
            stream.renew(now_ms);
            read(stream, start)
        }))
    }

    /// The stored bytes of an open SSE response's next event.
    pub(super) fn event(&self, request: &EventRequest) -> Staged<EventReply> {
        let tables = self.tables.borrow();
        let slot = tables.by_incarnation.get(&request.incarnation);
        let stream = slot.and_then(|slot| tables.streams.get(*slot));
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
                let kind = stream.staged.content_type.kind();
                let bytes_max = request.bytes_max.min(EVENT_BYTES_MAX);
                let mut end = cut(stream, start, bytes_max, request.surface);
                let mut bytes = stream.history.read(start, end);
                let is_last = extent.closed && end == extent.tail;
                if kind == Kind::Text && !is_last {
                    end -= incomplete_character(&mut bytes);
                }
                Ok(EventReply {
                    window: Window {
                        start,
                        end,
                        tail: extent.tail,
                        closed: extent.closed,
                    },
                    after_cr: kind == Kind::Text
                        && start > 0
                        && stream.history.byte_at(start - 1) == Some(b'\r'),
                    bytes,
                })
            },
        ))
    }

    /// A live reader has gone; its stream's sliding window restarts.
    pub(super) fn leave(&self, incarnation: Incarnation, core: usize) {
        let now_ms = self.now_ms();
        let mut tables = self.tables.borrow_mut();
        let slot = tables.by_incarnation.get(&incarnation).copied();
        if let Some(stream) = slot.and_then(|slot| tables.streams.get_mut(slot)) {
            stream.watchers.unregister(core);
            stream.renew(now_ms);
        }
    }
}

fn start_of_read(stream: &Stream, request: &ReadRequest) -> Result<u64, Refusal> {
    let extent = stream.extent();
    let start = read::resolve_start(&extent, request)?;
    let inside_message = stream.staged.content_type.is_json()
        && request.surface == Surface::Base
        && !stream.is_boundary(start);
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
        watch: stream.watchers.register(watch, extent.incarnation, state),
        content_type: stream.staged.content_type.clone(),
        extent,
        start,
    }
}

/// Where a response that starts at `start` ends: at the tail or after `bytes_max`; on the base
/// surface a JSON stream is cut between messages, after at least one (decisions, Two surfaces).
fn cut(stream: &Stream, start: u64, bytes_max: u64, surface: Surface) -> u64 {
    let tail = stream.visible.tail;
    let limit = start.saturating_add(bytes_max);
    if limit >= tail {
        return tail;
    }
    if surface == Surface::Bucket || !stream.staged.content_type.is_json() {
        return limit;
    }
    stream
        .history
        .boundary_at_or_before(start, limit)
        .or_else(|| stream.history.boundary_after(limit, tail))
        .unwrap_or(tail)
}

/// Takes an incomplete character off the end; returns its length.
fn incomplete_character(pieces: &mut Vec<bytes::Bytes>) -> u64 {
    // A character may straddle pieces: look at the last four bytes together.
    let mut last = Vec::with_capacity(4);
    for piece in pieces.iter().rev() {
        for byte in piece.iter().rev() {
            if last.len() == 4 {
                break;
            }
            last.push(*byte);
        }
    }
    last.reverse();
    let mut excess = last.len() - sse::whole_characters(&last);
    let cut = excess as u64;
    while excess > 0 {
        let Some(piece) = pieces.last_mut() else {
            break;
        };
        let off = excess.min(piece.len());
        piece.truncate(piece.len() - off);
        excess -= off;
        if piece.is_empty() {
            pieces.pop();
        }
    }
    cut
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;

    #[test]
    fn an_incomplete_character_is_taken_off_across_pieces() {
        let euro = "€".as_bytes();
        let mut pieces = vec![
            Bytes::from_static(b"a"),
            Bytes::copy_from_slice(&euro[..1]),
            Bytes::copy_from_slice(&euro[1..2]),
        ];
        assert_eq!(incomplete_character(&mut pieces), 2);
        assert_eq!(pieces, vec![Bytes::from_static(b"a")]);
        let mut whole = vec![Bytes::copy_from_slice(euro)];
        assert_eq!(incomplete_character(&mut whole), 0);
        assert_eq!(incomplete_character(&mut Vec::new()), 0);
    }
}
