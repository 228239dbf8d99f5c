//! Retention: how a stream's history is let go (extensions 2.2, Retention
//! Effect; decisions, Where the sources differ).

use crate::protocol::{error::Refusal, state::StreamState};

/// What a retention request comes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RetentionDecision {
    /// The retained offset moves to the one asked for.
    Advance,
    /// It is at or past it already: nothing changes.
    Unchanged,
}

/// Decides a retention request for `offset`.
///
/// `is_boundary` says whether an offset of a JSON stream lies between two messages.
///
/// # Errors
/// [`Refusal::InvalidRetention`] without a snapshot or past the latest one,
/// [`Refusal::NotJsonBoundary`] inside a message.
pub fn decide(
    state: &StreamState,
    offset: u64,
    is_boundary: impl FnOnce(u64) -> bool,
) -> Result<RetentionDecision, Refusal> {
    if offset <= state.retained {
        return Ok(RetentionDecision::Unchanged);
    }
    if state.snapshot().is_none_or(|latest| offset > latest.offset) {
        return Err(Refusal::InvalidRetention);
    }
    if state.content_type.is_json() && !is_boundary(offset) {
        return Err(Refusal::NotJsonBoundary { tail: state.tail });
    }
    Ok(RetentionDecision::Advance)
}
