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
        let mut in_message = 0u64;
        for piece in &updates {
            let mut start = 0;
            for end in memchr::memchr_iter(b'\n', piece) {
                let next = end.saturating_add(1);
                let here = next.saturating_sub(start) as u64;
                length.part(update_type.len(), in_message.saturating_add(here));
                in_message = 0;
                start = next;
            }
            let rest = piece.len().saturating_sub(start) as u64;
            in_message = in_message.saturating_add(rest);
        }
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
