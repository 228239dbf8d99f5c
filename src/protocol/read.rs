//! Reads: which bytes a GET returns, and what it may claim about them
//! (base protocol 5.6 to 5.8; extensions 9; decisions, Order of checks).

use crate::{
    base::limits::RESPONSE_BYTES_MAX,
    protocol::{
        content_type::Kind,
        error::Refusal,
        incarnation::Incarnation,
        offset::StartOffset,
        stream_key::{StreamKey, Surface},
    },
};

/// How long a read stays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Live {
    /// Answers with what there is.
    No,
    /// Waits for data at the tail, then answers once.
    LongPoll,
    /// Stays open.
    Sse,
}

/// A GET of a stream.
#[derive(Clone, Debug)]
pub struct ReadRequest {
    /// Which stream.
    pub key: StreamKey,
    /// `Stream-Incarnation`.
    pub precondition: Option<Incarnation>,
    /// Which view of it.
    pub surface: Surface,
    /// `offset`.
    pub start: StartOffset,
    /// Most stored bytes wanted, already clamped by [`max_bytes`].
    pub bytes_max: u64,
    /// `live`.
    pub live: Live,
}

/// What readers may know of a stream: its durable state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Its token.
    pub incarnation: Incarnation,
    /// The earliest offset that can be read.
    pub retained: u64,
    /// The offset after the last durable byte.
    pub tail: u64,
    /// Whether it is durably closed.
    pub closed: bool,
}

/// `max_bytes` as it applies: clamped to the cap; 0 counts as 1, or as 4 on SSE of text so that
/// an event can hold a character (extensions 9.3; decisions). `None` for an absent or unparseable
/// value.
#[must_use]
pub fn max_bytes(asked: Option<u64>, live: Live, kind: Kind) -> u64 {
    let least = match (live, kind) {
        (Live::Sse, Kind::Text) => 4,
        _ => 1,
    };
    asked
        .unwrap_or(RESPONSE_BYTES_MAX)
        .clamp(least, RESPONSE_BYTES_MAX)
}

/// The offset at which `request` starts, after the checks 416/410 and 412 in that order.
///
/// # Errors
/// [`Refusal::OffsetOutOfRange`], [`Refusal::OffsetGone`], [`Refusal::IncarnationMismatch`].
pub fn resolve_start(extent: &Extent, request: &ReadRequest) -> Result<u64, Refusal> {
    let start = match request.start {
        StartOffset::Beginning => 0,
        StartOffset::Now => extent.tail,
        StartOffset::At(offset) => offset,
    };
    if start > extent.tail {
        return Err(Refusal::OffsetOutOfRange {
            asked: start,
            tail: extent.tail,
            incarnation: extent.incarnation,
        });
    }
    if start < extent.retained {
        return Err(Refusal::OffsetGone {
            retained: extent.retained,
            incarnation: extent.incarnation,
        });
    }
    match request.precondition {
        Some(expected) if expected != extent.incarnation => Err(Refusal::IncarnationMismatch {
            current: Some(extent.incarnation),
        }),
        _ => Ok(start),
    }
}

/// A contiguous range of a stream that a response or event carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// Its first byte.
    pub start: u64,
    /// The offset after its last byte.
    pub end: u64,
    /// The tail when it was cut.
    pub tail: u64,
    /// Whether the stream was closed then.
    pub closed: bool,
}

impl Window {
    /// Stored bytes in it.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.end.saturating_sub(self.start)
    }

    /// Whether it carries no byte.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether it reaches the tail: only then may a response say `Stream-Up-To-Date: true`
    /// (extensions 9.3).
    #[must_use]
    pub fn is_up_to_date(&self) -> bool {
        self.end == self.tail
    }

    /// Whether the reader is at the end for good.
    #[must_use]
    pub fn is_final(&self) -> bool {
        self.closed && self.is_up_to_date()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(start: StartOffset, precondition: Option<u64>) -> ReadRequest {
        ReadRequest {
            key: StreamKey::restored("demo/a"),
            precondition: precondition.map(Incarnation),
            surface: Surface::Bucket,
            start,
            bytes_max: RESPONSE_BYTES_MAX,
            live: Live::No,
        }
    }

    #[test]
    fn range_comes_before_the_precondition() {
        let extent = Extent {
            incarnation: Incarnation(5),
            retained: 4,
            tail: 10,
            closed: false,
        };
        let resolve = |start, token| resolve_start(&extent, &request(start, token));
        assert_eq!(resolve(StartOffset::At(4), Some(5)), Ok(4));
        assert_eq!(resolve(StartOffset::Now, None), Ok(10));
        assert!(matches!(
            resolve(StartOffset::At(11), Some(6)),
            Err(Refusal::OffsetOutOfRange {
                asked: 11,
                tail: 10,
                ..
            })
        ));
        assert!(matches!(
            resolve(StartOffset::Beginning, Some(6)),
            Err(Refusal::OffsetGone { retained: 4, .. })
        ));
        assert!(matches!(
            resolve(StartOffset::At(7), Some(6)),
            Err(Refusal::IncarnationMismatch {
                current: Some(Incarnation(5))
            })
        ));
    }

    #[test]
    fn max_bytes_is_clamped_at_both_ends() {
        assert_eq!(max_bytes(None, Live::No, Kind::Json), RESPONSE_BYTES_MAX);
        assert_eq!(
            max_bytes(Some(u64::MAX), Live::No, Kind::Json),
            RESPONSE_BYTES_MAX
        );
        assert_eq!(max_bytes(Some(0), Live::No, Kind::Text), 1);
        assert_eq!(max_bytes(Some(0), Live::Sse, Kind::Text), 4);
        assert_eq!(max_bytes(Some(0), Live::Sse, Kind::Binary), 1);
    }
}
