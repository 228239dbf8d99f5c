//! Forks: streams that start as a prefix of another (base protocol 4.2;
//! decisions, Forks).
//!
//! A fork holds a durable reference on its source, and the source keeps what
//! it inherited for as long as the reference stands. Both share one offset
//! space up to the divergence point.

use crate::protocol::{
    error::Refusal,
    incarnation::Incarnation,
    offset::{self, decimal},
    state::StreamState,
    stream_key::StreamKey,
};

/// The fork headers of a PUT.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ForkRequest {
    /// `Stream-Forked-From`.
    pub source: StreamKey,
    /// `Stream-Fork-Offset`.
    pub offset: Option<u64>,
    /// `Stream-Fork-Sub-Offset`; 0 when absent.
    pub sub_offset: u64,
}

/// Where a fork came from, as it remembers it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ForkOrigin {
    /// The source's name.
    pub source: StreamKey,
    /// The source's token.
    pub incarnation: Incarnation,
    /// The first inherited offset.
    pub start: u64,
    /// The divergence point, exclusive.
    pub offset: u64,
    /// The offset the create named: what a repeated create compares.
    pub requested: Option<u64>,
    /// The sub-offset the create named.
    pub sub_offset: u64,
}

impl ForkOrigin {
    /// Whether a repeated create asks for this very fork (absent equals absent).
    #[must_use]
    pub fn is_asked_by(&self, request: &ForkRequest) -> bool {
        self.source == request.source
            && self.requested == request.offset
            && self.sub_offset == request.sub_offset
    }
}

/// Reads `Stream-Fork-Offset`: an offset, or the suite's `0000000000000000_0000000000000000`,
/// which alone of its form is accepted, as 0 (decisions, Tokens).
///
/// # Errors
/// [`Refusal::InvalidOffset`] for anything else.
pub fn parse_offset(text: &[u8]) -> Result<u64, Refusal> {
    if text == b"0000000000000000_0000000000000000" {
        return Ok(0);
    }
    offset::parse(text)
}

/// Reads `Stream-Fork-Sub-Offset`: decimal without leading zeros.
///
/// # Errors
/// [`Refusal::InvalidForkOffset`] for anything else.
pub fn parse_sub_offset(text: &[u8]) -> Result<u64, Refusal> {
    let canonical = text == b"0" || text.first().is_some_and(|first| *first != b'0');
    decimal(text)
        .filter(|_| canonical)
        .ok_or(Refusal::InvalidForkOffset(
            "Stream-Fork-Sub-Offset must be a non-negative decimal integer without leading zeros",
        ))
}

/// The offset from which a fork's sub-offset counts, checked against its source.
///
/// # Errors
/// [`Refusal::SourceDeleted`] for a soft-deleted source, [`Refusal::InvalidForkOffset`] past the
/// tail or for a sub-offset without an offset, [`Refusal::OffsetGone`] before the retained offset.
pub fn anchor(source: &StreamState, request: &ForkRequest) -> Result<u64, Refusal> {
    if source.soft_deleted {
        return Err(Refusal::SourceDeleted);
    }
    let anchor = request.offset.unwrap_or(source.tail);
    if anchor > source.tail {
        return Err(Refusal::InvalidForkOffset(
            "Stream-Fork-Offset is beyond the source stream's tail",
        ));
    }
    if anchor < source.retained {
        return Err(Refusal::OffsetGone {
            retained: source.retained,
            incarnation: source.incarnation,
        });
    }
    Ok(anchor)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_zero_may_have_the_suites_form() {
        assert_eq!(parse_offset(b"0000000000000000_0000000000000000"), Ok(0));
        assert!(parse_offset(b"9999999999999999_9999999999999999").is_err());
        assert_eq!(parse_offset(b"00000000000000000007"), Ok(7));
    }

    #[test]
    fn sub_offsets_are_canonical_decimal() {
        assert_eq!(parse_sub_offset(b"0"), Ok(0));
        assert_eq!(parse_sub_offset(b"12"), Ok(12));
        for bad in [&b""[..], b"-1", b"+1", b"01", b"1.0", b"abc", b"1e2", b" 1"] {
            assert!(parse_sub_offset(bad).is_err(), "{bad:?}");
        }
    }
}
