//! GET of a bootstrap: answer out (extensions 3).

use bytes::Bytes;

use crate::{
    http::{
        answer::{Body, Envelope, Multipart, Shared},
        multipart::{BodyLength, Boundary, MultipartWriter},
        snapshot::slice,
    },
    protocol::content_type::ContentType,
    shard::request::BootstrapReply,
};

/// Writes the head of a bootstrap; returns its body. `updates` are the bytes of the reply's window;
/// `random` makes its boundary and must be
/// unpredictable and used once.
pub fn answer(
    envelope: &Envelope,
    shared: &Shared,
    reply: &BootstrapReply,
    updates: Vec<Bytes>,
    random: [u8; 16],
    out: &mut Vec<u8>,
) -> Body {
    let boundary = Boundary::new(random);
    let snapshot_meta = reply.snapshot.as_ref().map(|snapshot| &snapshot.meta);
    let octets = ContentType::octet_stream();
    let snapshot_type = snapshot_meta
        .map_or(&octets, |meta| &meta.content_type)
        .as_str();
    let update_type = reply.content_type.as_str();
    let per_message = reply.content_type.is_json();
    let mut length = BodyLength::default();
    length.part(
        snapshot_type.len(),
        snapshot_meta.map_or(0, |meta| meta.len),
    );
    if per_message {
        // Every message ends in an LF, and there is no other.
        let line_feeds = |piece: &Bytes| memchr::memchr_iter(b'\n', piece).count() as u64;
        let messages = updates.iter().map(line_feeds).fold(0, u64::saturating_add);
        length.parts(messages, update_type.len(), reply.window.len());
    } else if !reply.window.is_empty() {
        length.part(update_type.len(), reply.window.len());
    }

    let mut head = envelope.begin(shared, out, 200);
    head.header("Content-Type", &boundary.content_type());
    head.header_u64("Stream-Incarnation", reply.incarnation.0);
    match snapshot_meta {
        Some(meta) => head.offset("Stream-Snapshot-Offset", meta.offset),
        None => head.header("Stream-Snapshot-Offset", b"-1"),
    };
    head.offset("Stream-Next-Offset", reply.window.end);
    if reply.window.is_up_to_date() {
        head.header("Stream-Up-To-Date", b"true");
    }
    if reply.window.is_final() {
        head.header("Stream-Closed", b"true");
    }
    head.header("Cache-Control", b"no-store");
    head.header("Content-Security-Policy", b"sandbox");
    head.finish_with_length(length.total());
    if envelope.is_head {
        return Body::None;
    }
    let stream = reply.incarnation;
    let snapshot = reply.snapshot.as_ref().map(|snapshot| {
        slice(
            &snapshot.body,
            &reply.segments,
            stream,
            0,
            snapshot.meta.len,
        )
    });
    Body::Multipart(Box::new(Multipart::new(
        MultipartWriter::new(boundary),
        snapshot_type.as_bytes(),
        snapshot.unwrap_or_default(),
        update_type.as_bytes(),
        updates,
        per_message,
    )))
}
