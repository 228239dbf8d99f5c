//! A request's head as an operation: everything it asks for, checked as far
//! as a head shows it, owned and ready for its body.

use crate::{
    http::{
        append, create,
        headers::{Field, Headers},
        query::{ReadQuery, check_bootstrap},
        route::{Route, Routed, SnapshotMethod, StreamMethod},
        snapshot,
        stored_body::StoredBody,
    },
    protocol::{
        append::AppendRequest,
        bootstrap::BootstrapRequest,
        content_type::ContentType,
        create::CreateRequest,
        error::Refusal,
        producer::Digest,
        stream_key::{StreamKey, Surface},
    },
    shard::request::Target,
};

/// What a request asks for.
#[derive(Clone, Debug)]
pub enum Operation {
    /// OPTIONS.
    Preflight,
    /// PUT of a bucket.
    PutBucket,
    /// PUT of a stream.
    Create {
        /// Without its body.
        request: CreateRequest,
        /// Whom the client addressed.
        host: Option<Box<str>>,
        /// The path as sent.
        path: Box<[u8]>,
    },
    /// POST of a stream, without its body.
    Append(AppendRequest),
    /// DELETE of a stream.
    Delete(Target),
    /// A write of a stream that is to be carried out only if there is none, which can then do
    /// nothing (`If-None-Match: *`; RFC 9110 13.1.2).
    Unless(Target),
    /// HEAD of a stream.
    Head {
        /// Which stream.
        target: Target,
        /// `If-None-Match: *`.
        unless_any: bool,
    },
    /// GET of a stream.
    Read(ReadOperation),
    /// PUT of a whole snapshot.
    Publish {
        /// Which stream.
        target: Target,
        /// At which offset.
        offset: u64,
        /// Of which type.
        content_type: ContentType,
    },
    /// PUT of a snapshot from parts.
    Commit {
        /// Which stream.
        target: Target,
        /// At which offset.
        offset: u64,
        /// Of which type.
        content_type: ContentType,
        /// What its digest must be.
        digest: Digest,
        /// `Stream-Snapshot-Parts`, as sent.
        count: Box<[u8]>,
    },
    /// POST of a part.
    StagePart(Target),
    /// DELETE of the staged parts.
    DiscardParts(Target),
    /// GET or HEAD of a snapshot.
    ReadSnapshot {
        /// Which stream; the precondition is checked after the range.
        key: StreamKey,
        /// `Stream-Incarnation`.
        precondition: Option<crate::protocol::incarnation::Incarnation>,
        /// At which offset.
        offset: u64,
        /// `Range`, unless `If-Range` came with it.
        range: Option<Box<[u8]>>,
        /// `If-None-Match`.
        if_none_match: Option<Box<[u8]>>,
    },
    /// PUT of a retention offset.
    Retain(Target, u64),
    /// GET or HEAD of a bootstrap.
    Bootstrap(BootstrapRequest),
}

/// A GET of a stream.
#[derive(Clone, Debug)]
pub struct ReadOperation {
    /// Which stream.
    pub target: Target,
    /// Which view.
    pub surface: Surface,
    /// The query.
    pub query: ReadQuery,
    /// `If-None-Match`.
    pub if_none_match: Option<Box<[u8]>>,
}

impl Operation {
    /// The operation of a routed request.
    ///
    /// # Errors
    /// The refusals of its header fields and query.
    pub fn new(routed: Routed<'_>, headers: &Headers<'_>) -> Result<Self, Refusal> {
        let target = |key: StreamKey| {
            Ok(Target {
                key,
                precondition: headers.incarnation()?,
            })
        };
        Ok(match routed.route {
            Route::Preflight => Self::Preflight,
            Route::PutBucket => Self::PutBucket,
            Route::Stream(key, surface, method) => match method {
                StreamMethod::Create => Self::Create {
                    request: create::request(key, headers)?,
                    host: headers
                        .host(routed.authority)
                        .map(|host| host.as_ref().into()),
                    path: routed.path.into(),
                },
                StreamMethod::Append | StreamMethod::Delete if headers.unless_any() => {
                    Self::Unless(target(key)?)
                }
                StreamMethod::Append => Self::Append(append::request(key, headers)?),
                StreamMethod::Delete => Self::Delete(target(key)?),
                StreamMethod::Head => Self::Head {
                    target: target(key)?,
                    unless_any: headers.unless_any(),
                },
                StreamMethod::Read => Self::Read(ReadOperation {
                    target: target(key)?,
                    surface,
                    query: ReadQuery::parse(routed.query)?,
                    if_none_match: headers.if_none_match(),
                }),
            },
            Route::Snapshot(key, offset, SnapshotMethod::Publish) => {
                let target = target(key)?;
                let content_type = snapshot::content_type(headers)?;
                match snapshot::commit_headers(headers)? {
                    None => Self::Publish {
                        target,
                        offset,
                        content_type,
                    },
                    Some((count, digest)) => Self::Commit {
                        target,
                        offset,
                        content_type,
                        digest,
                        count: count.into(),
                    },
                }
            }
            Route::Snapshot(key, offset, SnapshotMethod::Read) => {
                let if_range = headers.has(Field::IfRange);
                let range = headers.single(Field::Range).filter(|_| !if_range);
                Self::ReadSnapshot {
                    key,
                    precondition: headers.incarnation()?,
                    offset,
                    range: range.map(Into::into),
                    if_none_match: headers.if_none_match(),
                }
            }
            Route::StagePart(key) => Self::StagePart(target(key)?),
            Route::DiscardParts(key) => Self::DiscardParts(target(key)?),
            Route::Retention(key, offset) => Self::Retain(target(key)?, offset),
            Route::Bootstrap(key) => {
                check_bootstrap(routed.query)?;
                Self::Bootstrap(BootstrapRequest {
                    key,
                    precondition: headers.incarnation()?,
                })
            }
        })
    }

    /// The collector of the body, when the operation takes one.
    #[must_use]
    pub fn body(&self) -> Option<StoredBody> {
        let by_type = |content_type: Option<&ContentType>| {
            if content_type.is_some_and(ContentType::is_json) {
                StoredBody::json()
            } else {
                StoredBody::octets()
            }
        };
        match self {
            Self::Create { request, .. } => Some(by_type(request.content_type.as_ref())),
            Self::Append(request) => {
                let body = by_type(request.content_type.as_ref());
                let wants_digest = request
                    .producer
                    .as_ref()
                    .is_some_and(|producer| producer.digest.is_some());
                Some(if wants_digest {
                    body.with_digest()
                } else {
                    body
                })
            }
            Self::Publish { .. } | Self::Commit { .. } | Self::StagePart(_) => {
                Some(StoredBody::octets())
            }
            _ => None,
        }
    }

    /// The digest that the body must have.
    #[must_use]
    pub fn digest(&self) -> Option<&Digest> {
        match self {
            Self::Append(request) => request.producer.as_ref()?.digest.as_ref(),
            _ => None,
        }
    }

    /// The stream that a write with a body goes to, for a look before a client that waits for a
    /// 100 is told to send it (cases/http.md 5).
    #[must_use]
    pub fn written_stream(&self) -> Option<Target> {
        match self {
            Self::Append(request) => Some(Target {
                key: request.key.clone(),
                precondition: request.precondition,
            }),
            Self::Publish { target, .. }
            | Self::Commit { target, .. }
            | Self::StagePart(target) => Some(target.clone()),
            _ => None,
        }
    }
}
