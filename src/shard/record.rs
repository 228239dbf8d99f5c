//! What the journal holds of streams: one record per change.
//!
//! A record is a change that was decided, with everything replay needs and
//! nothing that depends on when it is replayed: replay never asks the clock.
//! Data, producer state and closure of one append are one record, so they
//! survive or vanish together.
//!
//! ```text
//! record = tag u8 | incarnation u64 | fields in the order of the variant
//! text   = len u32 | bytes          option = 0 u8, or 1 u8 and the value
//! ```
//! Integers are little-endian. Bodies come last and take the rest.

pub(super) mod codec;
#[cfg(test)]
mod tests;

use self::codec::{Reader, Writer};
use crate::{
    protocol::{
        content_type::ContentType,
        expiry::Lifetime,
        fork::ForkOrigin,
        incarnation::Incarnation,
        producer::{Digest, ProducerWrite},
        stream_key::StreamKey,
    },
    storage::{blob::BlobId, segment::Place},
};

/// A change of one stream, or of the shard.
#[derive(Clone, Debug)]
pub enum Record<'a> {
    /// A stream came to be.
    Create {
        /// Its token.
        incarnation: Incarnation,
        /// When, in Unix milliseconds.
        at_ms: u64,
        /// Its name.
        key: StreamKey,
        /// Its content type.
        content_type: ContentType,
        /// Its lifetime.
        lifetime: Lifetime,
        /// Whether it was created closed.
        closed: bool,
        /// What it was forked from.
        origin: Option<ForkOrigin>,
        /// Its initial content.
        body: &'a [u8],
    },
    /// Bytes were appended, or the stream was closed, or both.
    Append {
        /// Which stream.
        incarnation: Incarnation,
        /// When, in Unix milliseconds.
        at_ms: u64,
        /// Where the bytes start: the tail before it.
        start: u64,
        /// Whether it closed the stream.
        close: bool,
        /// Its producer.
        producer: Option<ProducerWrite>,
        /// Its `Stream-Seq`.
        seq: Option<Box<str>>,
        /// The bytes.
        body: &'a [u8],
    },
    /// The stream was deleted or had expired.
    Delete {
        /// Which stream.
        incarnation: Incarnation,
        /// Its bytes stay for the forks that inherit them.
        soft: bool,
    },
    /// The retained offset moved.
    Retain {
        /// Which stream.
        incarnation: Incarnation,
        /// When, in Unix milliseconds.
        at_ms: u64,
        /// The new retained offset.
        offset: u64,
    },
    /// A snapshot was published whole.
    Publish {
        /// Which stream.
        incarnation: Incarnation,
        /// When, in Unix milliseconds.
        at_ms: u64,
        /// Its offset.
        offset: u64,
        /// Its digest.
        digest: Digest,
        /// Its content type.
        content_type: ContentType,
        /// Its body.
        body: BlobRecord<'a>,
    },
    /// A snapshot part was staged.
    StagePart {
        /// Which stream.
        incarnation: Incarnation,
        /// When, in Unix milliseconds.
        at_ms: u64,
        /// Its id.
        id: Box<str>,
        /// Its body.
        body: BlobRecord<'a>,
    },
    /// A snapshot was published from staged parts.
    CommitParts {
        /// Which stream.
        incarnation: Incarnation,
        /// When, in Unix milliseconds.
        at_ms: u64,
        /// Its offset.
        offset: u64,
        /// Its digest.
        digest: Digest,
        /// Its content type.
        content_type: ContentType,
        /// The parts, in order.
        ids: Vec<Box<str>>,
    },
    /// Staged parts were discarded.
    DiscardParts {
        /// Which stream.
        incarnation: Incarnation,
        /// Which parts; all of them when empty.
        ids: Vec<Box<str>>,
    },
    /// A fork holds a reference on this stream.
    Refer {
        /// The source.
        incarnation: Incarnation,
        /// The fork's token.
        fork: Incarnation,
        /// The fork's name.
        fork_key: StreamKey,
        /// The first offset it inherits.
        start: u64,
    },
    /// A fork let its reference go.
    Release {
        /// The source.
        incarnation: Incarnation,
        /// The fork's token.
        fork: Incarnation,
    },
    /// A bucket was fenced.
    Fence {
        /// Its id.
        bucket: Box<str>,
    },
}

/// Where a snapshot's or a part's body is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlobRecord<'a> {
    /// In the record.
    Inline(&'a [u8]),
    /// In a file of its own.
    File {
        /// Which.
        id: BlobId,
        /// Its bytes.
        len: u64,
    },
    /// In a block of a segment; in checkpoints only.
    Block(Place),
}

/// A record that no writer of this version wrote.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MalformedRecord {
    /// The record's tag, if it has one.
    pub tag: Option<u8>,
}

impl std::fmt::Display for MalformedRecord {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.tag {
            Some(tag) => write!(
                f,
                "a record with tag {tag} is malformed or of a newer version"
            ),
            None => write!(f, "a record is empty"),
        }
    }
}

impl std::error::Error for MalformedRecord {}

const CREATE: u8 = 1;
const APPEND: u8 = 2;
const DELETE: u8 = 3;
const RETAIN: u8 = 4;
const PUBLISH: u8 = 5;
const STAGE_PART: u8 = 6;
const COMMIT_PARTS: u8 = 7;
const DISCARD_PARTS: u8 = 8;
const REFER: u8 = 9;
const RELEASE: u8 = 10;
const FENCE: u8 = 11;

impl<'a> Record<'a> {
    /// Whether it stores nothing and lets go of something: such a record is taken also when the disk
    /// is nearly full.
    #[must_use]
    pub fn only_frees(&self) -> bool {
        match self {
            Record::Delete { .. }
            | Record::Retain { .. }
            | Record::DiscardParts { .. }
            | Record::Release { .. }
            | Record::Fence { .. } => true,
            Record::Create { .. }
            | Record::Append { .. }
            | Record::Publish { .. }
            | Record::StagePart { .. }
            | Record::CommitParts { .. }
            | Record::Refer { .. } => false,
        }
    }

    /// Writes everything but the body, which the journal takes as a second slice, so that bodies
    /// are copied once. Returns that body.
    pub fn encode(&self, out: &mut Vec<u8>) -> &'a [u8] {
        let mut out = Writer(out);
        match self {
            Record::Create {
                incarnation,
                at_ms,
                key,
                content_type,
                lifetime,
                closed,
                origin,
                body,
            } => {
                out.head(CREATE, *incarnation);
                out.u64(*at_ms);
                out.text(key.as_str());
                out.text(content_type.as_str());
                out.lifetime(*lifetime);
                out.u8(u8::from(*closed));
                out.option(origin.as_ref(), Writer::origin);
                body
            }
            Record::Append {
                incarnation,
                at_ms,
                start,
                close,
                producer,
                seq,
                body,
            } => {
                out.head(APPEND, *incarnation);
                out.u64(*at_ms);
                out.u64(*start);
                out.u8(u8::from(*close));
                out.option(producer.as_ref(), |out, write| {
                    out.text(&write.id);
                    out.u64(write.epoch);
                    out.u64(write.seq);
                    out.option(write.digest.as_ref(), |out, digest| {
                        out.0.extend_from_slice(digest)
                    });
                });
                out.option(seq.as_ref(), |out, seq| out.text(seq));
                body
            }
            Record::Delete { incarnation, soft } => {
                out.head(DELETE, *incarnation);
                out.u8(u8::from(*soft));
                &[]
            }
            Record::Retain {
                incarnation,
                at_ms,
                offset,
            } => {
                out.head(RETAIN, *incarnation);
                out.u64(*at_ms);
                out.u64(*offset);
                &[]
            }
            Record::Publish {
                incarnation,
                at_ms,
                offset,
                digest,
                content_type,
                body,
            } => {
                out.head(PUBLISH, *incarnation);
                out.u64(*at_ms);
                out.u64(*offset);
                out.0.extend_from_slice(digest);
                out.text(content_type.as_str());
                out.blob(body)
            }
            Record::StagePart {
                incarnation,
                at_ms,
                id,
                body,
            } => {
                out.head(STAGE_PART, *incarnation);
                out.u64(*at_ms);
                out.text(id);
                out.blob(body)
            }
            Record::CommitParts {
                incarnation,
                at_ms,
                offset,
                digest,
                content_type,
                ids,
            } => {
                out.head(COMMIT_PARTS, *incarnation);
                out.u64(*at_ms);
                out.u64(*offset);
                out.0.extend_from_slice(digest);
                out.text(content_type.as_str());
                out.texts(ids);
                &[]
            }
            Record::DiscardParts { incarnation, ids } => {
                out.head(DISCARD_PARTS, *incarnation);
                out.texts(ids);
                &[]
            }
            Record::Refer {
                incarnation,
                fork,
                fork_key,
                start,
            } => {
                out.head(REFER, *incarnation);
                out.u64(fork.0);
                out.text(fork_key.as_str());
                out.u64(*start);
                &[]
            }
            Record::Release { incarnation, fork } => {
                out.head(RELEASE, *incarnation);
                out.u64(fork.0);
                &[]
            }
            Record::Fence { bucket } => {
                out.head(FENCE, Incarnation(0));
                out.text(bucket);
                &[]
            }
        }
    }

    /// The stream it changes; 0 for a record of the whole shard.
    #[must_use]
    pub fn incarnation(&self) -> Incarnation {
        match self {
            Record::Create { incarnation, .. }
            | Record::Append { incarnation, .. }
            | Record::Delete { incarnation, .. }
            | Record::Retain { incarnation, .. }
            | Record::Publish { incarnation, .. }
            | Record::StagePart { incarnation, .. }
            | Record::CommitParts { incarnation, .. }
            | Record::DiscardParts { incarnation, .. }
            | Record::Refer { incarnation, .. }
            | Record::Release { incarnation, .. } => *incarnation,
            Record::Fence { .. } => Incarnation(0),
        }
    }

    /// The stream that an encoded record changes, without reading the rest of it.
    ///
    /// # Errors
    /// [`MalformedRecord`] for what is too short to be a record.
    pub fn stream_of(bytes: &[u8]) -> Result<Incarnation, MalformedRecord> {
        let mut reader = Reader(bytes);
        let tag = reader.u8();
        reader.u64().map(Incarnation).ok_or(MalformedRecord { tag })
    }

    /// Reads a record back.
    ///
    /// # Errors
    /// [`MalformedRecord`] for anything that [`encode`](Self::encode) does not write.
    pub fn decode(bytes: &'a [u8]) -> Result<Self, MalformedRecord> {
        let mut reader = Reader(bytes);
        let tag = reader.u8().ok_or(MalformedRecord { tag: None })?;
        Self::decode_tagged(tag, &mut reader).ok_or(MalformedRecord { tag: Some(tag) })
    }

    fn decode_tagged(tag: u8, reader: &mut Reader<'a>) -> Option<Self> {
        let incarnation = Incarnation(reader.u64()?);
        let record = match tag {
            CREATE => Record::Create {
                incarnation,
                at_ms: reader.u64()?,
                key: reader.key()?,
                content_type: reader.content_type()?,
                lifetime: reader.lifetime()?,
                closed: reader.bool()?,
                origin: reader.option(Reader::origin)?,
                body: reader.rest(),
            },
            APPEND => Record::Append {
                incarnation,
                at_ms: reader.u64()?,
                start: reader.offset()?,
                close: reader.bool()?,
                producer: reader.option(|reader| {
                    Some(ProducerWrite {
                        id: reader.text()?.into(),
                        epoch: reader.u64()?,
                        seq: reader.u64()?,
                        digest: reader.option(Reader::digest)?,
                    })
                })?,
                seq: reader.option(|reader| Some(reader.text()?.into()))?,
                body: reader.rest(),
            },
            DELETE => Record::Delete {
                incarnation,
                soft: reader.bool()?,
            },
            RETAIN => Record::Retain {
                incarnation,
                at_ms: reader.u64()?,
                offset: reader.offset()?,
            },
            PUBLISH => Record::Publish {
                incarnation,
                at_ms: reader.u64()?,
                offset: reader.offset()?,
                digest: reader.digest()?,
                content_type: reader.content_type()?,
                body: reader.blob()?,
            },
            STAGE_PART => Record::StagePart {
                incarnation,
                at_ms: reader.u64()?,
                id: reader.text()?.into(),
                body: reader.blob()?,
            },
            COMMIT_PARTS => Record::CommitParts {
                incarnation,
                at_ms: reader.u64()?,
                offset: reader.offset()?,
                digest: reader.digest()?,
                content_type: reader.content_type()?,
                ids: reader.texts()?,
            },
            DISCARD_PARTS => Record::DiscardParts {
                incarnation,
                ids: reader.texts()?,
            },
            REFER => Record::Refer {
                incarnation,
                fork: Incarnation(reader.u64()?),
                fork_key: reader.key()?,
                start: reader.offset()?,
            },
            RELEASE => Record::Release {
                incarnation,
                fork: Incarnation(reader.u64()?),
            },
            FENCE if incarnation.0 == 0 => Record::Fence {
                bucket: reader.text()?.into(),
            },
            _ => return None,
        };
        reader.0.is_empty().then_some(record)
    }
}
