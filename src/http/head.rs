//! HEAD and DELETE of a stream, and PUT of a bucket: answers out (base
//! protocol 5.4, 5.5; extensions 1.2, 2.4).

use crate::{
    http::{
        answer::{Envelope, Shared},
        create::lifetime_fields,
    },
    protocol::{caching::NO_STORE, incarnation::Incarnation},
    shard::request::StreamHead,
};

/// The end of every answer to HEAD, rendered: the request limits that it names, and the rest that
/// no stream changes.
#[derive(Clone, Debug)]
pub struct NamedLimits {
    lines: Vec<u8>,
}

impl NamedLimits {
    /// For `Ursula-Max-Request-Bytes` and `Ursula-Max-Snapshot-Bytes`.
    #[must_use]
    pub fn new(request_bytes_max: u64, snapshot_bytes_max: u64) -> Self {
        let lines = format!(
            "Ursula-Max-Request-Bytes: {request_bytes_max}\r\n\
             Ursula-Max-Snapshot-Bytes: {snapshot_bytes_max}\r\n\
             Cache-Control: {NO_STORE}\r\n"
        );
        Self {
            lines: lines.into_bytes(),
        }
    }
}

/// Writes the answer to HEAD: 304 if it was asked for only in case there is nothing.
pub fn answer(
    envelope: &Envelope,
    shared: &Shared,
    stream: &StreamHead,
    unless_any: bool,
    limits: &NamedLimits,
    out: &mut Vec<u8>,
) {
    let status = if unless_any { 304 } else { 200 };
    let mut head = envelope.begin(shared, out, status);
    head.header("Content-Type", stream.content_type.as_str().as_bytes());
    head.header_u64("Stream-Incarnation", stream.extent.incarnation.0);
    head.offset("Stream-Next-Offset", stream.extent.tail);
    head.offset("Stream-Retained-Offset", stream.extent.retained);
    // The offset that HEAD names is the tail of this moment.
    head.lines(b"Stream-Up-To-Date: true\r\n");
    if let Some(snapshot) = &stream.snapshot {
        snapshot.headers(&mut |name, value| {
            head.header(name, value);
        });
    }
    lifetime_fields(&mut head, stream.lifetime);
    if stream.extent.closed {
        head.header("Stream-Closed", b"true");
    }
    head.lines(&limits.lines);
    head.finish_no_body();
}

/// Writes an answer that has nothing to say but that it was done: 204, with the stream's token if
/// there still is a stream.
pub fn done(
    envelope: &Envelope,
    shared: &Shared,
    incarnation: Option<Incarnation>,
    out: &mut Vec<u8>,
) {
    let mut head = envelope.begin(shared, out, 204);
    if let Some(incarnation) = incarnation {
        head.header_u64("Stream-Incarnation", incarnation.0);
    }
    head.finish_no_body();
}

/// Writes the answer to PUT of a bucket.
pub fn bucket(envelope: &Envelope, shared: &Shared, out: &mut Vec<u8>) {
    envelope.begin(shared, out, 201).finish_with_length(0);
}
