//! Create: what a PUT on a stream's URL does (base protocol 5.1; decisions,
//! Order of checks).

use bytes::Bytes;

use crate::{
    json::normalise,
    protocol::{
        content_type::ContentType,
        error::Refusal,
        expiry::Lifetime,
        fork::{ForkOrigin, ForkRequest},
        incarnation::Incarnation,
        state::StreamState,
        stream_key::StreamKey,
    },
};

/// A PUT, its body in stored form, as far as the type is known: see [`stored_body`].
#[derive(Clone, Debug)]
pub struct CreateRequest {
    /// Which stream.
    pub key: StreamKey,
    /// `Stream-Incarnation`.
    pub precondition: Option<Incarnation>,
    /// `If-None-Match: *`: a stream that is there already will not do (RFC 9110 13.1.2).
    pub unless_any: bool,
    /// `Content-Type`; a fork may leave it to its source, others default to octets.
    pub content_type: Option<ContentType>,
    /// `Stream-TTL` or `Stream-Expires-At`.
    pub lifetime: Lifetime,
    /// `Stream-Closed: true`.
    pub closed: bool,
    /// Initial content.
    pub body: Bytes,
    /// The fork headers.
    pub fork: Option<ForkRequest>,
    /// What the source's owner answered, once a fork's reference is held there.
    pub inherited: Option<Inherited>,
}

/// What a fork takes from its source.
#[derive(Clone, Debug)]
pub struct Inherited {
    /// The token under which the source holds the reference: the fork's own.
    pub incarnation: Incarnation,
    /// The origin, to be remembered by the fork.
    pub origin: ForkOrigin,
    /// The source's content type.
    pub content_type: ContentType,
    /// The source's lifetime.
    pub lifetime: Lifetime,
}

/// What a create over an existing stream comes to: its configuration matches.
///
/// # Errors
/// [`Refusal::SourceDeleted`] over a soft-deleted stream, [`Refusal::IncarnationMismatch`],
/// [`Refusal::AlreadyExists`] when content type, lifetime, closure or fork origin differ, and
/// [`Refusal::PreconditionFailed`] when it was not to exist.
pub fn decide_existing(state: &StreamState, request: &CreateRequest) -> Result<(), Refusal> {
    if state.soft_deleted {
        return Err(Refusal::SourceDeleted);
    }
    super::append::check_incarnation(state, request.precondition)?;
    let type_matches = match (&request.content_type, &request.fork) {
        (Some(asked), _) => state.content_type.matches(asked),
        // A fork without a type asks for its source's, which it then has.
        (None, Some(_)) => true,
        (None, None) => state.content_type.matches(&ContentType::octet_stream()),
    };
    let (lifetime_matches, origin_matches) = match (&request.fork, state.origin()) {
        (None, None) => (request.lifetime == state.lifetime, true),
        (Some(asked), Some(origin)) => (
            request.lifetime == Lifetime::Unlimited || request.lifetime == state.lifetime,
            origin.is_asked_by(asked),
        ),
        _ => (true, false),
    };
    if !type_matches || !lifetime_matches || !origin_matches || request.closed != state.closed {
        return Err(Refusal::AlreadyExists);
    }
    match request.unless_any {
        true => Err(Refusal::PreconditionFailed {
            current: state.incarnation,
        }),
        false => Ok(()),
    }
}

/// The body of `request` in stored form, for a stream of `content_type`.
///
/// A fork may leave its type to its source (base protocol 4.2), so that its body came as octets: for a
/// JSON stream it is still to be read as JSON (extensions, JSON Message Text: "the body of a creating
/// PUT").
///
/// # Errors
/// [`Refusal::InvalidJson`].
pub fn stored_body(request: &CreateRequest, content_type: &ContentType) -> Result<Bytes, Refusal> {
    if request.content_type.is_some() || request.body.is_empty() || !content_type.is_json() {
        return Ok(request.body.clone());
    }
    let mut text = Vec::new();
    normalise(&request.body, &mut text).map_err(|error| Refusal::InvalidJson(error.to_string()))?;
    Ok(text.into())
}

/// The state of a stream that `request` creates at `now_ms`.
#[must_use]
pub fn initial_state(
    request: &CreateRequest,
    incarnation: Incarnation,
    now_ms: u64,
) -> StreamState {
    let inherited = request.inherited.as_ref();
    let content_type = match (&request.content_type, inherited) {
        (Some(asked), _) => asked.clone(),
        (None, Some(inherited)) => inherited.content_type.clone(),
        (None, None) => ContentType::octet_stream(),
    };
    let lifetime = inherited.map_or(request.lifetime, |inherited| {
        request.lifetime.for_fork(inherited.lifetime)
    });
    let start = inherited.map_or(0, |inherited| inherited.origin.start);
    let fork_offset = inherited.map_or(0, |inherited| inherited.origin.offset);
    let mut state = StreamState {
        key: request.key.clone(),
        incarnation,
        content_type,
        lifetime,
        renewed_ms: now_ms,
        tail: fork_offset.saturating_add(request.body.len() as u64),
        retained: start,
        closed: request.closed,
        soft_deleted: false,
        rare: None,
    };
    if let Some(inherited) = inherited {
        state.rare_mut().origin = Some(inherited.origin.clone());
    }
    state
}
