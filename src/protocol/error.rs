//! Every refusal by name, and the one match from names to status, code and
//! headers.
//!
//! Codes are those of `ursula-headers` where it has one (decisions, Errors).
//! Messages say what was wrong and what would be right, in terms of the
//! request; they never show internals.

use std::{borrow::Cow, fmt::Write as _};

use crate::{
    base::limits::{STAGED_BYTES_MAX, STAGED_PARTS_MAX},
    protocol::{
        content_type::ContentType, incarnation::Incarnation, offset, producer::ProducerRefusal,
        snapshot::SnapshotMeta,
    },
};

/// Why a request was not carried out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The request line, a header field or the framing is malformed.
    InvalidRequest(Cow<'static, str>),
    /// A header value is malformed.
    InvalidHeader(String),
    /// A query parameter is malformed or does not fit the request.
    InvalidQuery(&'static str),
    /// An offset in the path or query is malformed.
    InvalidOffset,
    /// The bucket id breaks extensions 1.1.
    InvalidBucketId(String),
    /// The stream id breaks extensions 1.1, or the base path breaks ours.
    InvalidStreamId(String),
    /// The request uses what was removed from the extensions.
    Unsupported(&'static str),
    /// The bare snapshot path: its redirect was removed (decisions, Where the sources differ).
    BareSnapshot,
    /// No route serves the path.
    NotFound,
    /// The route serves other methods only.
    MethodNotAllowed {
        /// Value of `Allow`.
        allow: &'static str,
    },
    /// The method is unknown to the whole server.
    MethodUnknown,
    /// The stream does not exist, was deleted, or expired.
    StreamNotFound,
    /// The bucket was purged; its name is fenced.
    BucketErased,
    /// The offset lies below the retained history.
    OffsetGone {
        /// Where the retained history starts.
        retained: u64,
        /// The stream's token.
        incarnation: Incarnation,
    },
    /// The stream was deleted but forks still inherit from it (base protocol 4.2).
    SoftDeleted,
    /// A create over a soft-deleted stream, or a fork from one.
    SourceDeleted,
    /// A create of a stream that exists with other settings.
    AlreadyExists,
    /// A write with a body names no content type.
    MissingContentType,
    /// The content type is malformed or too long.
    InvalidContentType,
    /// The content type is not the stream's.
    ContentTypeMismatch {
        /// What the write named.
        got: ContentType,
        /// What the stream has.
        want: ContentType,
        /// The stream's tail.
        tail: u64,
    },
    /// An append without a body that does not close.
    EmptyAppend,
    /// A JSON append of `[]`.
    EmptyJsonArray,
    /// The body is not JSON message text; the text says where and why.
    InvalidJson(String),
    /// The stream is closed.
    Closed {
        /// Its final offset.
        tail: u64,
    },
    /// `Stream-Seq` is not above the last one.
    StreamSeqConflict {
        /// The last accepted one.
        last: Box<str>,
        /// The stream's tail.
        tail: u64,
    },
    /// The producer headers are malformed.
    InvalidProducer(Cow<'static, str>),
    /// A producer rule refused the write.
    Producer(ProducerRefusal),
    /// The stream remembers as many producers as it may.
    ProducerLimit {
        /// The bound.
        limit: usize,
    },
    /// `Stream-Incarnation` does not match.
    IncarnationMismatch {
        /// The stream's token, when there is a stream.
        current: Option<Incarnation>,
    },
    /// `If-None-Match: *` on a write, and there is a stream.
    PreconditionFailed {
        /// The stream's token.
        current: Incarnation,
    },
    /// The offset lies beyond the tail.
    OffsetOutOfRange {
        /// What was asked for.
        asked: u64,
        /// The stream's tail.
        tail: u64,
        /// The stream's token.
        incarnation: Incarnation,
    },
    /// The offset lies inside a JSON message.
    NotJsonBoundary {
        /// The stream's tail.
        tail: u64,
    },
    /// The JSON boundary could not be checked just now (extensions 2.2).
    JsonBoundaryUnverified,
    /// The body is over `Ursula-Max-Request-Bytes`.
    RequestTooLarge {
        /// The bound, in bytes.
        limit: u64,
    },
    /// The assembled snapshot is over `Ursula-Max-Snapshot-Bytes`.
    SnapshotTooLarge {
        /// The bound, in bytes.
        limit: u64,
    },
    /// Another snapshot is the latest, or the offset is past the tail.
    SnapshotConflict {
        /// The latest snapshot, if that is the reason.
        latest: Option<SnapshotMeta>,
        /// The stream's tail.
        tail: u64,
    },
    /// No snapshot at that offset.
    SnapshotNotFound {
        /// The stream's token.
        incarnation: Incarnation,
    },
    /// The range starts at or past the snapshot's end.
    RangeNotSatisfiable {
        /// The snapshot.
        snapshot: SnapshotMeta,
        /// The stream's token.
        incarnation: Incarnation,
        /// Whether the snapshot is at the tail.
        up_to_date: bool,
    },
    /// A retention offset without a snapshot, or past the latest one.
    InvalidRetention,
    /// A parts commit's headers or list are malformed.
    InvalidPartsCommit(&'static str),
    /// A listed part is not staged for this stream.
    UnknownPart,
    /// The assembled digest differs from `Stream-Snapshot-Digest`.
    SnapshotDigestMismatch,
    /// A commit or discard of this stream is running.
    SnapshotCommitInProgress,
    /// Too many unused parts are staged.
    StagedPartsLimit,
    /// Too many bytes of unused parts are staged.
    StagedBytesLimit,
    /// A fork's offset or sub-offset lies outside its source.
    InvalidForkOffset(&'static str),
    /// The shard's memory for stream bytes is full.
    MemoryPressure,
    /// The budget for request bodies in flight is full.
    BodyBudget,
    /// The mailbox to the owning shard is full.
    MailboxFull,
    /// As many live reads are open as may be.
    LiveReadLimit,
    /// The disk is nearly full; nothing was applied.
    DiskPressure,
    /// A write to the disk failed earlier; the shard takes no writes until a restart.
    ApplyStopped,
    /// The write was on its way to the disk when that failed.
    OutcomeUnknown,
    /// The server is shutting down.
    ShuttingDown,
    /// The server failed; the log says how.
    Internal,
}

impl Refusal {
    /// The HTTP status.
    #[must_use]
    pub fn status(&self) -> u16 {
        use Refusal as R;
        match self {
            R::InvalidRequest(_)
            | R::InvalidHeader(_)
            | R::InvalidQuery(_)
            | R::InvalidOffset
            | R::InvalidBucketId(_)
            | R::InvalidStreamId(_)
            | R::Unsupported(_)
            | R::MissingContentType
            | R::InvalidContentType
            | R::EmptyAppend
            | R::EmptyJsonArray
            | R::InvalidJson(_)
            | R::InvalidProducer(_)
            | R::NotJsonBoundary { .. }
            | R::InvalidRetention
            | R::InvalidPartsCommit(_)
            | R::UnknownPart
            | R::SnapshotDigestMismatch
            | R::InvalidForkOffset(_) => 400,
            R::NotFound | R::StreamNotFound | R::BucketErased | R::SnapshotNotFound { .. } => 404,
            R::BareSnapshot | R::MethodNotAllowed { .. } => 405,
            R::MethodUnknown => 501,
            R::OffsetGone { .. } | R::SoftDeleted => 410,
            R::SourceDeleted
            | R::AlreadyExists
            | R::ContentTypeMismatch { .. }
            | R::Closed { .. }
            | R::StreamSeqConflict { .. }
            | R::SnapshotConflict { .. } => 409,
            R::Producer(refusal) => refusal.status(),
            R::IncarnationMismatch { .. } | R::PreconditionFailed { .. } => 412,
            R::RequestTooLarge { .. } | R::SnapshotTooLarge { .. } => 413,
            R::OffsetOutOfRange { .. } | R::RangeNotSatisfiable { .. } => 416,
            R::ProducerLimit { .. } | R::StagedPartsLimit | R::StagedBytesLimit => 429,
            R::JsonBoundaryUnverified
            | R::SnapshotCommitInProgress
            | R::MemoryPressure
            | R::BodyBudget
            | R::MailboxFull
            | R::LiveReadLimit
            | R::DiskPressure
            | R::ApplyStopped
            | R::OutcomeUnknown
            | R::ShuttingDown => 503,
            R::Internal => 500,
        }
    }

    /// The code in the error body.
    #[must_use]
    pub fn code(&self) -> &'static str {
        use Refusal as R;
        match self {
            R::InvalidRequest(_) => "INVALID_REQUEST",
            R::InvalidHeader(_) | R::InvalidContentType => "INVALID_HEADER",
            R::InvalidQuery(_) => "INVALID_QUERY",
            R::InvalidOffset | R::InvalidForkOffset(_) => "INVALID_OFFSET",
            R::InvalidBucketId(_) => "INVALID_BUCKET_ID",
            R::InvalidStreamId(_) => "INVALID_STREAM_ID",
            R::Unsupported(_) | R::BareSnapshot => "UNSUPPORTED",
            R::NotFound => "NOT_FOUND",
            R::MethodNotAllowed { .. } | R::MethodUnknown => "METHOD_NOT_ALLOWED",
            R::StreamNotFound => "STREAM_NOT_FOUND",
            R::BucketErased => "BUCKET_ERASED",
            R::OffsetGone { .. } | R::SoftDeleted => "STREAM_GONE",
            R::SourceDeleted | R::AlreadyExists => "STREAM_ALREADY_EXISTS_CONFLICT",
            R::MissingContentType => "MISSING_CONTENT_TYPE",
            R::ContentTypeMismatch { .. } => "CONTENT_TYPE_MISMATCH",
            R::EmptyAppend => "EMPTY_APPEND",
            R::EmptyJsonArray | R::InvalidJson(_) => "INVALID_RECORD_BOUNDARIES",
            R::Closed { .. } => "STREAM_CLOSED",
            R::StreamSeqConflict { .. } => "STREAM_SEQ_CONFLICT",
            R::InvalidProducer(_) => "INVALID_PRODUCER",
            R::Producer(refusal) => refusal.code(),
            R::ProducerLimit { .. } => "PRODUCER_LIMIT",
            R::IncarnationMismatch { .. } => "INCARNATION_MISMATCH",
            R::PreconditionFailed { .. } => "PRECONDITION_FAILED",
            R::OffsetOutOfRange { .. } => "OFFSET_OUT_OF_RANGE",
            R::NotJsonBoundary { .. } => "NOT_JSON_BOUNDARY",
            R::JsonBoundaryUnverified => "JSON_BOUNDARY_UNVERIFIED",
            R::RequestTooLarge { .. } => "REQUEST_TOO_LARGE",
            R::SnapshotTooLarge { .. } => "SNAPSHOT_TOO_LARGE",
            R::SnapshotConflict { .. } => "SNAPSHOT_CONFLICT",
            R::SnapshotNotFound { .. } => "SNAPSHOT_NOT_FOUND",
            R::RangeNotSatisfiable { .. } => "RANGE_NOT_SATISFIABLE",
            R::InvalidRetention => "INVALID_RETENTION",
            R::InvalidPartsCommit(_) => "INVALID_PARTS_COMMIT",
            R::UnknownPart => "UNKNOWN_PART",
            R::SnapshotDigestMismatch => "SNAPSHOT_DIGEST_MISMATCH",
            R::SnapshotCommitInProgress => "SNAPSHOT_COMMIT_IN_PROGRESS",
            R::StagedPartsLimit | R::StagedBytesLimit => "STAGED_PARTS_LIMIT",
            R::MemoryPressure => "COLD_BACKPRESSURE",
            R::BodyBudget => "INGRESS_BODY_BYTES_LIMIT_REACHED",
            R::MailboxFull => "RAFT_UNCOMMITTED_BACKPRESSURE",
            R::LiveReadLimit => "LIVE_READ_BACKPRESSURE",
            R::DiskPressure => "WAL_DISK_PRESSURE",
            R::ApplyStopped => "APPLY_STOPPED",
            R::OutcomeUnknown => "OUTCOME_UNKNOWN",
            R::ShuttingDown => "GROUP_RESTARTING",
            R::Internal => "INTERNAL",
        }
    }

    /// What was wrong and what would be right, for a person.
    #[must_use]
    pub fn message(&self) -> Cow<'_, str> {
        use Refusal as R;
        let text: &str = match self {
            R::InvalidRequest(text) => text,
            R::InvalidHeader(text)
            | R::InvalidBucketId(text)
            | R::InvalidStreamId(text)
            | R::InvalidJson(text) => text,
            R::InvalidQuery(text) | R::Unsupported(text) | R::InvalidPartsCommit(text) => text,
            R::InvalidForkOffset(text) => text,
            R::InvalidProducer(text) => text,
            R::InvalidOffset => {
                "an offset is up to 20 decimal digits that an answer named; for a read also -1 or now"
            }
            R::BareSnapshot => {
                "a snapshot is read and published at {stream}/snapshot/{offset}; HEAD names the latest in Stream-Snapshot-Offset"
            }
            R::NotFound => {
                "no route serves this path; the data plane serves /v1/stream/{path} and /{bucket}/{stream}"
            }
            R::MethodNotAllowed { .. } => {
                "the route does not serve this method; Allow names those it serves"
            }
            R::MethodUnknown => "the server does not implement this method",
            R::StreamNotFound => "the stream does not exist",
            R::BucketErased => "the bucket was erased and its name cannot be used again",
            R::OffsetGone { .. } => {
                "the offset is below the stream's retained history; bootstrap, or read from Stream-Next-Offset"
            }
            R::SoftDeleted => {
                "the stream was deleted; forks still read what they inherited from it"
            }
            R::SourceDeleted => {
                "the stream was deleted but forks still inherit from it, so its path stays taken until they are gone"
            }
            R::AlreadyExists => {
                "the stream already exists with another content type, lifetime, closure or fork origin"
            }
            R::MissingContentType => "a write with a body must name its Content-Type",
            R::InvalidContentType => {
                "Content-Type must be type/subtype with optional parameters, in at most 256 bytes of visible ASCII"
            }
            R::EmptyAppend => "an append must carry a body unless it closes the stream",
            R::EmptyJsonArray => "a JSON append must carry at least one message: [] carries none",
            R::Closed { .. } => "the stream is closed",
            R::Producer(refusal) => return refusal.message(),
            R::IncarnationMismatch { .. } => "Stream-Incarnation does not match the stream",
            R::PreconditionFailed { .. } => {
                "If-None-Match: * asks that there be no stream, and there is one"
            }
            R::NotJsonBoundary { .. } => {
                "the offset lies inside a JSON message; use a Stream-Next-Offset between messages"
            }
            R::JsonBoundaryUnverified => {
                "the JSON message boundary could not be checked just now; retry"
            }
            R::SnapshotConflict { latest: None, .. } => "the offset is beyond the stream's tail",
            R::SnapshotConflict { .. } => "another snapshot is the latest; the headers name it",
            R::SnapshotNotFound { .. } => {
                "no snapshot at that offset; HEAD names the latest in Stream-Snapshot-Offset"
            }
            R::RangeNotSatisfiable { .. } => "the range starts at or past the snapshot's end",
            R::InvalidRetention => "the retention offset must be at or before the latest snapshot",
            R::UnknownPart => "a listed part is not staged for this stream",
            R::SnapshotDigestMismatch => {
                "the assembled snapshot's digest differs from Stream-Snapshot-Digest"
            }
            R::SnapshotCommitInProgress => {
                "a commit or discard of this stream is running; send the same request again"
            }
            R::MemoryPressure => "the server's memory for stream data is full; retry later",
            R::BodyBudget => "the server's memory for request bodies in flight is full; retry",
            R::MailboxFull => "the stream's shard has as many requests waiting as it may; retry",
            R::LiveReadLimit => "the server holds as many live reads as it may; retry",
            R::DiskPressure => "the server is low on disk space; nothing was applied; retry later",
            R::ApplyStopped => {
                "the stream's shard stopped taking writes after a disk failure; the operator must act"
            }
            R::OutcomeUnknown => {
                "the write may or may not have been stored; a producer may repeat it with its key"
            }
            R::ShuttingDown => "the server is shutting down; retry",
            R::Internal => "the server failed",
            R::ContentTypeMismatch { got, want, .. } => {
                return format!(
                    "content type '{}' does not match the stream's '{}'",
                    got.as_str(),
                    want.as_str()
                )
                .into();
            }
            R::StreamSeqConflict { last, .. } => {
                return format!("Stream-Seq must be greater than the last one, '{last}'").into();
            }
            R::ProducerLimit { limit } => {
                return format!("the stream remembers {limit} producers, as many as it may").into();
            }
            R::OffsetOutOfRange { asked, tail, .. } => {
                return format!("offset {asked} is beyond the stream's tail {tail}").into();
            }
            R::RequestTooLarge { limit } => {
                return format!("the request body is above the request limit of {limit} bytes")
                    .into();
            }
            R::SnapshotTooLarge { limit } => {
                return format!("the snapshot is above the snapshot limit of {limit} bytes").into();
            }
            R::StagedPartsLimit => {
                return format!("the stream holds {STAGED_PARTS_MAX} unused staged parts; commit or discard them").into();
            }
            R::StagedBytesLimit => {
                return format!("the stream holds {STAGED_BYTES_MAX} bytes of unused staged parts; commit or discard them").into();
            }
        };
        Cow::Borrowed(text)
    }

    /// Emits the headers that the refusal carries besides its body, as `(name, value)`.
    pub fn headers(&self, emit: &mut dyn FnMut(&'static str, &[u8])) {
        use Refusal as R;
        let mut number = NumberBuffer::default();
        match self {
            R::MethodNotAllowed { allow } => emit("Allow", allow.as_bytes()),
            R::BareSnapshot => emit("Allow", b""),
            R::OffsetGone {
                retained,
                incarnation,
            } => {
                emit("Stream-Incarnation", number.write(incarnation.0));
                emit("Stream-Next-Offset", &offset::digits(*retained));
            }
            R::ContentTypeMismatch { tail, .. } | R::NotJsonBoundary { tail } => {
                emit("Stream-Next-Offset", &offset::digits(*tail));
            }
            R::Closed { tail } => {
                emit("Stream-Closed", b"true");
                emit("Stream-Next-Offset", &offset::digits(*tail));
            }
            R::StreamSeqConflict { last, tail } => {
                emit("Stream-Last-Seq", last.as_bytes());
                emit("Stream-Next-Offset", &offset::digits(*tail));
            }
            R::Producer(refusal) => refusal.headers(emit),
            R::IncarnationMismatch {
                current: Some(current),
            }
            | R::PreconditionFailed { current }
            | R::SnapshotNotFound {
                incarnation: current,
            } => {
                emit("Stream-Incarnation", number.write(current.0));
            }
            R::OffsetOutOfRange {
                tail, incarnation, ..
            } => {
                emit("Stream-Incarnation", number.write(incarnation.0));
                emit("Stream-Next-Offset", &offset::digits(*tail));
            }
            R::RequestTooLarge { limit } => {
                emit("Ursula-Max-Request-Bytes", number.write(*limit));
            }
            R::SnapshotTooLarge { limit } => {
                emit("Ursula-Max-Snapshot-Bytes", number.write(*limit));
            }
            R::SnapshotConflict { latest, tail } => {
                if let Some(latest) = latest {
                    latest.headers(emit);
                }
                emit("Stream-Next-Offset", &offset::digits(*tail));
            }
            R::RangeNotSatisfiable {
                snapshot,
                incarnation,
                up_to_date,
            } => {
                snapshot.read_headers(*incarnation, *up_to_date, emit);
                let range = format!("bytes */{}", snapshot.len);
                emit("Content-Range", range.as_bytes());
            }
            R::StagedPartsLimit => {
                emit(
                    "Ursula-Max-Staged-Parts",
                    number.write(STAGED_PARTS_MAX as u64),
                );
            }
            R::StagedBytesLimit => {
                emit("Ursula-Max-Staged-Bytes", number.write(STAGED_BYTES_MAX));
            }
            // Only a restart helps the shard that stopped.
            R::ApplyStopped | R::OutcomeUnknown => {}
            _ if self.status() == 503 => emit("Retry-After", b"1"),
            _ => {}
        }
    }

    /// The error body (decisions, Errors).
    #[must_use]
    pub fn body(&self) -> String {
        error_body(self.code(), &self.message())
    }
}

/// `{"error":{"code":…,"message":…}}`.
#[must_use]
pub fn error_body(code: &str, message: &str) -> String {
    let mut body = String::with_capacity(message.len().saturating_add(64));
    body.push_str("{\"error\":{\"code\":\"");
    body.push_str(code);
    body.push_str("\",\"message\":\"");
    for character in message.chars() {
        match character {
            '"' => body.push_str("\\\""),
            '\\' => body.push_str("\\\\"),
            control if control < ' ' => {
                // Writing to a String cannot fail.
                let _ = write!(body, "\\u{:04x}", u32::from(control));
            }
            other => body.push(other),
        }
    }
    body.push_str("\"}}");
    body
}

/// Room for one `u64` in decimal.
#[derive(Default)]
pub struct NumberBuffer {
    digits: [u8; offset::OFFSET_DIGITS],
}

impl NumberBuffer {
    /// The decimal digits of `value`, without leading zeros.
    pub fn write(&mut self, value: u64) -> &[u8] {
        self.digits = offset::digits(value);
        let zeros = self
            .digits
            .iter()
            .take_while(|digit| **digit == b'0')
            .count();
        let start = zeros.min(offset::OFFSET_DIGITS - 1);
        self.digits.get(start..).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_no_leading_zeros() {
        assert_eq!(NumberBuffer::default().write(0), b"0");
        assert_eq!(NumberBuffer::default().write(1024), b"1024");
        assert_eq!(
            NumberBuffer::default().write(u64::MAX),
            b"18446744073709551615"
        );
    }

    #[test]
    fn bodies_are_json_whatever_the_message_holds() {
        let body = error_body("X", "a \"quoted\\ \n\u{1} é");
        let parsed: serde_json::Value = serde_json::from_str(&body).unwrap();
        assert_eq!(parsed["error"]["message"], "a \"quoted\\ \n\u{1} é");
        assert_eq!(parsed["error"]["code"], "X");
    }

    #[test]
    fn codes_are_those_the_typed_parser_knows() {
        for refusal in [
            Refusal::StreamNotFound,
            Refusal::BucketErased,
            Refusal::InvalidOffset,
            Refusal::EmptyAppend,
            Refusal::Closed { tail: 1 },
            Refusal::MemoryPressure,
            Refusal::DiskPressure,
            Refusal::SnapshotCommitInProgress,
        ] {
            let code = ursula_headers::ErrorCode::from_name(refusal.code());
            assert!(
                !matches!(code, ursula_headers::ErrorCode::Unknown(_)),
                "{refusal:?}"
            );
        }
    }
}
