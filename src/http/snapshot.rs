//! Snapshot publish, parts and reads: requests in, answers out (extensions
//! 2.2, 2.5; source 1).

use std::{collections::VecDeque, sync::Arc};

use crate::{
    http::{
        answer::{Body, Envelope, Shared, Source},
        headers::{Field, Headers},
    },
    protocol::{
        byte_range::{self, ByteRange},
        caching,
        content_type::ContentType,
        error::Refusal,
        incarnation::Incarnation,
        producer::{Digest, parse_digest},
        snapshot::{SnapshotMeta, parse_parts_count},
    },
    shard::{
        request::SnapshotReply,
        run::BlockRun,
        stream::{Blob, blob_key},
    },
    storage::segment::Segment,
};

/// The content type of a snapshot to publish; octets when it names none.
///
/// # Errors
/// [`Refusal::InvalidContentType`] or [`Refusal::InvalidHeader`].
pub fn content_type(headers: &Headers<'_>) -> Result<ContentType, Refusal> {
    if headers.has(Field::StreamSnapshotMatch) {
        return Err(Refusal::Unsupported(
            "Stream-Snapshot-Match is not supported",
        ));
    }
    Ok(headers
        .content_type()?
        .unwrap_or_else(ContentType::octet_stream))
}

/// Whether a publish comes from parts, and then their number as sent and the digest.
///
/// # Errors
/// [`Refusal::InvalidPartsCommit`] when only one of the two headers is usable.
pub fn commit_headers<'b>(headers: &Headers<'b>) -> Result<Option<(&'b [u8], Digest)>, Refusal> {
    let Some(count) = headers.once(Field::StreamSnapshotParts)? else {
        return Ok(None);
    };
    // What is wrong here is refused before the body is read.
    let digest = headers
        .once(Field::StreamSnapshotDigest)?
        .and_then(parse_digest)
        .ok_or(Refusal::InvalidPartsCommit(
            "Stream-Snapshot-Digest must be 64 lowercase hex digits",
        ))?;
    parse_parts_count(count)?;
    Ok(Some((count, digest)))
}

/// Writes the answer to a publish or commit.
pub fn published(
    envelope: &Envelope,
    shared: &Shared,
    meta: &SnapshotMeta,
    incarnation: Incarnation,
    out: &mut Vec<u8>,
) {
    let mut head = envelope.begin(shared, out, 204);
    meta.headers(&mut |name, value| {
        head.header(name, value);
    });
    head.header_u64("Stream-Incarnation", incarnation.0);
    head.finish_no_body();
}

/// Writes the answer to a staged part.
pub fn staged(
    envelope: &Envelope,
    shared: &Shared,
    id: &str,
    incarnation: Incarnation,
    out: &mut Vec<u8>,
) {
    let mut head = envelope.begin(shared, out, 201);
    head.header("Stream-Snapshot-Part", id.as_bytes());
    head.header_u64("Stream-Incarnation", incarnation.0);
    head.finish_with_length(0);
}

/// How a snapshot read was asked for.
#[derive(Clone, Copy, Debug)]
pub struct SnapshotContext<'a> {
    /// `Stream-Incarnation`.
    pub precondition: Option<Incarnation>,
    /// `Range`, unless `If-Range` came with it: then the answer is whole.
    pub range: Option<&'a [u8]>,
    /// `If-None-Match`.
    pub if_none_match: Option<&'a [u8]>,
}

/// Writes the head of a snapshot read; returns its body.
///
/// # Errors
/// [`Refusal::RangeNotSatisfiable`], then [`Refusal::IncarnationMismatch`], before a 304
/// (decisions, Order of checks).
pub fn read(
    envelope: &Envelope,
    shared: &Shared,
    reply: &SnapshotReply,
    context: &SnapshotContext<'_>,
    out: &mut Vec<u8>,
) -> Result<Body, Refusal> {
    let meta = &reply.snapshot.meta;
    let is_match = context
        .if_none_match
        .is_some_and(|value| caching::if_none_match(value, meta.etag().as_bytes()));
    let range = match context.range.and_then(byte_range::parse) {
        // The last bytes of an empty body are the whole of it (RFC 9110 14.1.1).
        Some(ByteRange::Last(1..)) if meta.len == 0 => None,
        Some(range) if !is_match => {
            let resolved = range.resolve(meta.len);
            Some(resolved.ok_or_else(|| Refusal::RangeNotSatisfiable {
                snapshot: meta.clone(),
                incarnation: reply.incarnation,
                up_to_date: reply.up_to_date,
            })?)
        }
        _ => None,
    };
    if context
        .precondition
        .is_some_and(|expected| expected != reply.incarnation)
    {
        return Err(Refusal::IncarnationMismatch {
            current: Some(reply.incarnation),
        });
    }
    let status = match (is_match, range) {
        (true, _) => 304,
        (false, Some(_)) => 206,
        (false, None) => 200,
    };
    let mut head = envelope.begin(shared, out, status);
    head.header("Content-Type", meta.content_type.as_str().as_bytes());
    meta.read_headers(reply.incarnation, reply.up_to_date, &mut |name, value| {
        head.header(name, value);
    });
    head.header("Cache-Control", b"no-store");
    head.header("Content-Security-Policy", b"sandbox");
    if is_match {
        head.finish_no_body();
        return Ok(Body::None);
    }
    let (start, end) = range.unwrap_or((0, meta.len));
    if range.is_some() {
        let value = format!("bytes {start}-{}/{}", end.saturating_sub(1), meta.len);
        head.header("Content-Range", value.as_bytes());
    }
    head.finish_with_length(end.saturating_sub(start));
    if envelope.is_head {
        return Ok(Body::None);
    }
    let stream = reply.incarnation;
    let body = &reply.snapshot.body;
    Ok(Body::Stored(slice(
        body,
        &reply.segments,
        stream,
        start,
        end,
    )))
}

/// The sources of `[start, end)` of a body of `stream` in pieces, some of them in `segments`.
pub(super) fn slice(
    blobs: &[Blob],
    segments: &[Arc<Segment>],
    stream: Incarnation,
    start: u64,
    end: u64,
) -> VecDeque<Source> {
    let mut at = 0u64;
    let mut sources = VecDeque::new();
    for blob in blobs {
        let len = blob.len();
        let from = start.saturating_sub(at).min(len);
        let to = end.saturating_sub(at).min(len);
        if from < to {
            match blob {
                Blob::Memory(bytes) => {
                    let part = bytes.slice(from as usize..to as usize);
                    sources.push_back(Source::Memory(part));
                }
                Blob::File(file) => sources.push_back(Source::File(file.clone(), from, to)),
                Blob::Block(place) => {
                    let segment = segments.iter().find(|known| known.id == place.segment);
                    sources.extend(segment.map(|segment| {
                        Source::Block(BlockRun {
                            segment: segment.clone(),
                            place: *place,
                            key: blob_key(stream),
                            from: from as u32,
                            to: to as u32,
                        })
                    }));
                }
            }
        }
        at = at.saturating_add(len);
    }
    sources
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::blob::{BlobId, Graveyard};
    use bytes::Bytes;

    #[test]
    fn slices_are_exact_across_pieces_in_memory_and_in_files() {
        let file = Graveyard::default().refer(BlobId([1; 16]), 2);
        let blobs = [
            Blob::Memory(Bytes::from_static(b"abc")),
            Blob::Memory(Bytes::new()),
            Blob::File(file),
            Blob::Memory(Bytes::from_static(b"fg")),
        ];
        let gather = |start, end| {
            let mut text = Vec::new();
            for source in slice(&blobs, &[], Incarnation(1), start, end) {
                match source {
                    Source::Memory(bytes) => text.extend_from_slice(&bytes),
                    Source::File(_, from, to) => {
                        text.extend_from_slice(&b"de"[from as usize..to as usize]);
                    }
                    Source::Block(_) => panic!("there is none"),
                }
            }
            text
        };
        for start in 0..=7u64 {
            for end in start..=7 {
                assert_eq!(
                    gather(start, end),
                    &b"abcdefg"[start as usize..end as usize]
                );
            }
        }
    }
}
