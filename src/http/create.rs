//! PUT of a stream: request in, answer out (base protocol 5.1).

use bytes::Bytes;

use crate::{
    base::time::{format_rfc3339, parse_rfc3339},
    http::{
        answer::{Envelope, Shared},
        encode::ResponseHead,
        headers::{Field, Headers},
        route::fork_source,
    },
    protocol::{
        content_type::ContentType,
        create::CreateRequest,
        error::Refusal,
        expiry::{Lifetime, parse_ttl},
        fork::{self, ForkRequest},
        stream_key::StreamKey,
    },
    shard::request::Created,
};

/// Reads a create's head.
///
/// # Errors
/// The refusals of its header fields.
pub fn request(key: StreamKey, headers: &Headers<'_>) -> Result<CreateRequest, Refusal> {
    let has_producer = [
        Field::ProducerId,
        Field::ProducerEpoch,
        Field::ProducerSeq,
        Field::ProducerDigest,
    ]
    .into_iter()
    .any(|field| headers.has(field));
    if has_producer {
        return Err(Refusal::InvalidProducer(
            "a create carries no producer headers: create the stream, then append".into(),
        ));
    }
    Ok(CreateRequest {
        key,
        precondition: headers.incarnation()?,
        unless_any: headers.unless_any(),
        content_type: content_type(headers)?,
        lifetime: lifetime(headers)?,
        closed: headers.stream_closed()?,
        body: Bytes::new(),
        fork: fork_request(headers)?,
        inherited: None,
    })
}

/// The content type asked for; one that is no media type counts as absent, as at the reference
/// server: a create without a usable type makes a stream of octets.
fn content_type(headers: &Headers<'_>) -> Result<Option<ContentType>, Refusal> {
    match headers.content_type() {
        Err(Refusal::InvalidContentType) => Ok(None),
        other => other,
    }
}

fn lifetime(headers: &Headers<'_>) -> Result<Lifetime, Refusal> {
    let ttl = headers.once(Field::StreamTtl)?;
    let expires_at = headers.once(Field::StreamExpiresAt)?;
    match (ttl, expires_at) {
        (Some(_), Some(_)) => Err(Refusal::InvalidHeader(
            "Stream-TTL and Stream-Expires-At cannot be given together".into(),
        )),
        (Some(ttl), None) => Ok(Lifetime::Ttl {
            seconds: parse_ttl(ttl)?,
        }),
        (None, Some(at)) => std::str::from_utf8(at)
            .ok()
            .and_then(parse_rfc3339)
            .map(|unix_ms| Lifetime::ExpiresAt { unix_ms })
            .ok_or(Refusal::InvalidHeader(
                "Stream-Expires-At must be an RFC 3339 timestamp, such as 2099-01-02T03:04:05Z"
                    .into(),
            )),
        (None, None) => Ok(Lifetime::Unlimited),
    }
}

fn fork_request(headers: &Headers<'_>) -> Result<Option<ForkRequest>, Refusal> {
    let source = headers.once(Field::StreamForkedFrom)?;
    let offset = headers.once(Field::StreamForkOffset)?;
    let sub_offset = headers.once(Field::StreamForkSubOffset)?;
    let Some(source) = source else {
        return match (offset, sub_offset) {
            (None, None) => Ok(None),
            _ => Err(Refusal::InvalidHeader(
                "Stream-Fork-Offset and Stream-Fork-Sub-Offset require Stream-Forked-From".into(),
            )),
        };
    };
    Ok(Some(ForkRequest {
        source: fork_source(source)?,
        offset: offset.map(fork::parse_offset).transpose()?,
        sub_offset: sub_offset.map_or(Ok(0), fork::parse_sub_offset)?,
    }))
}

/// Writes the answer to a create. `path` is the stream's path as sent, `host` whom the client
/// addressed: `Location` is absolute.
pub fn answer(
    envelope: &Envelope,
    shared: &Shared,
    created: &Created,
    host: Option<&str>,
    path: &[u8],
    out: &mut Vec<u8>,
) {
    let mut head = envelope.begin(shared, out, if created.is_new { 201 } else { 200 });
    head.header("Content-Type", created.content_type.as_str().as_bytes());
    head.offset("Stream-Next-Offset", created.tail);
    head.header_u64("Stream-Incarnation", created.incarnation.0);
    lifetime_fields(&mut head, created.lifetime);
    if created.closed {
        head.header("Stream-Closed", b"true");
    }
    match host {
        Some(host) => head.header("Location", &[b"http://", host.as_bytes(), path].concat()),
        None => head.header("Location", path),
    };
    head.header("Cache-Control", b"no-store");
    head.finish_with_length(0);
}

/// `Stream-TTL` or `Stream-Expires-At`, as create and HEAD report them.
pub fn lifetime_fields(head: &mut ResponseHead<'_>, lifetime: Lifetime) {
    match lifetime {
        Lifetime::Unlimited => {}
        Lifetime::Ttl { seconds } => {
            head.header_u64("Stream-TTL", seconds);
        }
        Lifetime::ExpiresAt { unix_ms } => {
            head.header("Stream-Expires-At", format_rfc3339(unix_ms).as_bytes());
        }
    }
}
