//! GET of a stream, catch-up, long-poll and SSE: answers out (base protocol
//! 5.6 to 5.8; extensions 9; decisions, Two surfaces).

use std::collections::VecDeque;

use crate::{
    base::{limits::PIECE_BYTES, time::Clock},
    http::{
        answer::{Body, Envelope, Shared, Source},
        encode::ResponseHead,
    },
    json::array_view::{ArrayView, array_view_len},
    protocol::{
        caching,
        content_type::{ContentType, Kind},
        incarnation::Incarnation,
        read::{Extent, Window},
        sse::Framing,
        stream_key::Surface,
    },
    shard::request::ReadReply,
};

/// A stored HTML document must not run on our origin (decisions, Live reads, lifetimes,
/// browsers).
const SANDBOX: &[u8] = b"sandbox";

/// An answer with up to this many stored bytes is one write with its head, in bytes.
pub const SMALL_BYTES_MAX: u64 = PIECE_BYTES as u64 / 4;

/// How a read was asked for, as far as its answer depends on it.
#[derive(Clone, Copy)]
pub struct ReadContext<'a> {
    /// Which view.
    pub surface: Surface,
    /// `If-None-Match`.
    pub if_none_match: Option<&'a [u8]>,
    /// Whether `offset=now` was asked for: such answers have no ETag and are never stored.
    pub is_now: bool,
    /// The cursor of a long-poll's answer.
    pub cursor: Option<u64>,
    /// The time.
    pub clock: &'a dyn Clock,
}

/// Writes the head of a catch-up or long-poll answer with data (or, for a catch-up at the tail,
/// none); returns its body. `sources` have the bytes of the reply's window.
pub fn answer(
    envelope: &Envelope,
    shared: &Shared,
    reply: &ReadReply,
    sources: VecDeque<Source>,
    context: &ReadContext<'_>,
    out: &mut Vec<u8>,
) -> Body {
    let window = &reply.window;
    let etag = caching::etag(reply.incarnation, window);
    let is_match = context.if_none_match.is_some_and(|value| {
        caching::is_any(value) || (!context.is_now && caching::if_none_match(value, &etag))
    });
    let mut head = envelope.begin(shared, out, if is_match { 304 } else { 200 });
    let is_json = reply.content_type.kind() == Kind::Json;
    let content_type = match (is_json, context.surface) {
        (true, Surface::Bucket) => "application/x-ndjson",
        (true, Surface::Base) => "application/json",
        (false, _) => reply.content_type.as_str(),
    };
    head.header("Content-Type", content_type.as_bytes());
    position_fields(&mut head, reply.incarnation, window);
    if let Some(cursor) = context.cursor.filter(|_| !window.is_final()) {
        head.header_u64("Stream-Cursor", cursor);
    }
    if !context.is_now {
        head.header("ETag", &etag);
    }
    let cache_control = match context.surface {
        Surface::Base if !context.is_now => {
            // Which headers a page may read is said to requests with an Origin only.
            head.header("Vary", b"Stream-Incarnation, Origin");
            let (lifetime, renewed_ms) = reply.lifetime;
            caching::cache_control(lifetime, renewed_ms, context.clock)
        }
        _ => caching::NO_STORE.into(),
    };
    head.header("Cache-Control", cache_control.as_bytes());
    head.header("Content-Security-Policy", SANDBOX);
    if is_match {
        head.finish_no_body();
        return Body::None;
    }
    if is_json && context.surface == Surface::Base {
        head.finish_with_length(array_view_len(window.len()));
        let mut view = ArrayView::new(window.len());
        if envelope.is_head {
            return Body::None;
        }
        if window.is_empty() {
            view.finish(out);
            return Body::None;
        }
        return Body::Array(sources, view);
    }
    head.finish_with_length(window.len());
    if window.len() <= SMALL_BYTES_MAX && !envelope.is_head && is_in_memory(&sources) {
        // One write for head and body.
        for source in &sources {
            if let Source::Memory(piece) = source {
                out.extend_from_slice(piece);
            }
        }
        return Body::None;
    }
    Body::stored(envelope, sources)
}

fn is_in_memory(sources: &VecDeque<Source>) -> bool {
    let mut sources = sources.iter();
    sources.all(|source| matches!(source, Source::Memory(_)))
}

/// Writes the answer of a long-poll that has nothing to return: its time is over, or the stream is
/// closed and the reader at its end.
pub fn nothing_new(
    envelope: &Envelope,
    shared: &Shared,
    extent: &Extent,
    cursor: u64,
    out: &mut Vec<u8>,
) {
    let mut head = envelope.begin(shared, out, 204);
    head.offset("Stream-Next-Offset", extent.tail);
    head.header_u64("Stream-Incarnation", extent.incarnation.0);
    head.header("Stream-Up-To-Date", b"true");
    if extent.closed {
        head.header("Stream-Closed", b"true");
    } else {
        head.header_u64("Stream-Cursor", cursor);
    }
    head.header("Cache-Control", caching::NO_STORE.as_bytes());
    head.finish_no_body();
}

fn position_fields(head: &mut ResponseHead<'_>, incarnation: Incarnation, window: &Window) {
    head.offset("Stream-Next-Offset", window.end);
    head.header_u64("Stream-Incarnation", incarnation.0);
    if window.is_up_to_date() {
        head.header("Stream-Up-To-Date", b"true");
    }
    if window.is_final() {
        head.header("Stream-Closed", b"true");
    }
}

/// Writes the head of an SSE response. It is chunked, or ends with the connection for HTTP/1.0.
pub fn sse_head(
    envelope: &Envelope,
    shared: &Shared,
    incarnation: Incarnation,
    content_type: &ContentType,
    framing: Framing,
    out: &mut Vec<u8>,
) {
    let mut head = envelope.begin(shared, out, 200);
    head.header("Content-Type", b"text/event-stream");
    head.header("Cache-Control", b"no-cache, no-store, no-transform");
    head.header("X-Accel-Buffering", b"no");
    head.header_u64("Stream-Incarnation", incarnation.0);
    let data_type = match framing {
        Framing::Lines => "application/x-ndjson",
        Framing::JsonArray => "application/json",
        Framing::Text | Framing::Base64 => content_type.as_str(),
    };
    head.header("Stream-Data-Content-Type", data_type.as_bytes());
    if framing == Framing::Base64 {
        head.header("Stream-SSE-Data-Encoding", b"base64");
    }
    head.header("Content-Security-Policy", SANDBOX);
    if envelope.is_http10 {
        head.finish_until_close();
    } else {
        head.finish_chunked();
    }
}
