//! POST of a stream: request in, answer out (base protocol 5.2, 5.3).

use bytes::Bytes;

use crate::{
    http::{
        answer::{Envelope, Shared},
        headers::{Field, Headers},
    },
    protocol::{
        append::AppendRequest, error::Refusal, producer::ProducerWrite, stream_key::StreamKey,
    },
    shard::request::{Appended, Receipt},
};

/// Reads an append's head.
///
/// # Errors
/// The refusals of its header fields.
pub fn request(key: StreamKey, headers: &Headers<'_>) -> Result<AppendRequest, Refusal> {
    let producer = ProducerWrite::parse(
        headers.once(Field::ProducerId)?,
        headers.once(Field::ProducerEpoch)?,
        headers.once(Field::ProducerSeq)?,
        headers.once(Field::ProducerDigest)?,
    )?;
    // A body-less close must not be refused for its type (base protocol 5.2).
    let (content_type, malformed_type) = match headers.content_type() {
        Err(Refusal::InvalidContentType) => (None, true),
        other => (other?, false),
    };
    Ok(AppendRequest {
        key,
        precondition: headers.incarnation()?,
        content_type,
        malformed_type,
        body: Bytes::new(),
        close: headers.stream_closed()?,
        producer,
        seq: headers.stream_seq()?,
    })
}

/// Checks what only the whole body shows.
///
/// # Errors
/// [`Refusal::EmptyAppend`], [`Refusal::MissingContentType`], [`Refusal::InvalidContentType`].
pub fn check(request: &AppendRequest, body_len: u64) -> Result<(), Refusal> {
    if body_len == 0 && !request.close {
        return Err(Refusal::EmptyAppend);
    }
    if body_len > 0 && request.content_type.is_none() {
        return Err(if request.malformed_type {
            Refusal::InvalidContentType
        } else {
            Refusal::MissingContentType
        });
    }
    Ok(())
}

/// Writes the answer to an append: 204, or 200 for a producer's new data.
pub fn answer(envelope: &Envelope, shared: &Shared, appended: &Appended, out: &mut Vec<u8>) {
    let is_applied = matches!(appended.receipt, Some(Receipt::Applied { .. }));
    let is_new_data = is_applied && appended.tail > appended.start;
    let mut head = envelope.begin(shared, out, if is_new_data { 200 } else { 204 });
    head.header_u64("Stream-Incarnation", appended.incarnation.0);
    match &appended.receipt {
        None => {
            head.offset("Stream-Next-Offset", appended.tail);
        }
        Some(Receipt::Applied { epoch, seq, closed }) => {
            head.header_u64("Producer-Epoch", *epoch);
            head.header_u64("Producer-Seq", *seq);
            closed_epoch(&mut head, *closed);
            head.offset("Stream-Offset", appended.start);
            head.offset("Stream-Next-Offset", appended.tail);
        }
        Some(Receipt::Repeated(repeat)) => {
            head.header_u64("Producer-Epoch", repeat.epoch);
            head.header_u64("Producer-Seq", repeat.seq);
            match repeat.range {
                Some((start, end)) => {
                    closed_epoch(&mut head, repeat.closed);
                    head.offset("Stream-Offset", start);
                    head.offset("Stream-Next-Offset", end);
                }
                None => {
                    closed_epoch(&mut head, repeat.closed);
                    head.header("Producer-Outcome", b"receipt-evicted");
                }
            }
        }
    }
    if appended.closed {
        head.header("Stream-Closed", b"true");
    }
    if is_new_data {
        head.finish_with_length(0);
    } else {
        head.finish_no_body();
    }
}

fn closed_epoch(head: &mut crate::http::encode::ResponseHead<'_>, closed: Option<(u64, u64)>) {
    if let Some((epoch, seq)) = closed {
        head.header_u64("Producer-Closed-Epoch", epoch);
        head.header_u64("Producer-Closed-Seq", seq);
    }
}
