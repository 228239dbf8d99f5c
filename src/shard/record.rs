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

use crate::{
    protocol::{
        content_type::ContentType,
        expiry::Lifetime,
        fork::ForkOrigin,
        incarnation::Incarnation,
        producer::{Digest, ProducerWrite},
        stream_key::StreamKey,
    },
    storage::blob::BlobId,
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
                start: reader.u64()?,
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
                offset: reader.u64()?,
            },
            PUBLISH => Record::Publish {
                incarnation,
                at_ms: reader.u64()?,
                offset: reader.u64()?,
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
                offset: reader.u64()?,
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
                start: reader.u64()?,
            },
            RELEASE => Record::Release {
                incarnation,
                fork: Incarnation(reader.u64()?),
            },
            FENCE => Record::Fence {
                bucket: reader.text()?.into(),
            },
            _ => return None,
        };
        reader.0.is_empty().then_some(record)
    }
}

struct Writer<'a>(&'a mut Vec<u8>);

impl Writer<'_> {
    fn head(&mut self, tag: u8, incarnation: Incarnation) {
        self.u8(tag);
        self.u64(incarnation.0);
    }

    fn u8(&mut self, value: u8) {
        self.0.push(value);
    }

    fn u64(&mut self, value: u64) {
        self.0.extend_from_slice(&value.to_le_bytes());
    }

    /// Texts are bounded far below 4 GiB by `base::limits`.
    fn text(&mut self, text: &str) {
        self.0.extend_from_slice(&(text.len() as u32).to_le_bytes());
        self.0.extend_from_slice(text.as_bytes());
    }

    fn texts(&mut self, texts: &[Box<str>]) {
        self.0
            .extend_from_slice(&(texts.len() as u32).to_le_bytes());
        for text in texts {
            self.text(text);
        }
    }

    fn option<T>(&mut self, value: Option<&T>, write: impl FnOnce(&mut Self, &T)) {
        self.u8(u8::from(value.is_some()));
        if let Some(value) = value {
            write(self, value);
        }
    }

    /// Writes where a body is, and returns it if it belongs into the record.
    fn blob<'b>(&mut self, blob: &BlobRecord<'b>) -> &'b [u8] {
        match blob {
            BlobRecord::Inline(body) => {
                self.u8(0);
                body
            }
            BlobRecord::File { id, len } => {
                self.u8(1);
                self.0.extend_from_slice(&id.0);
                self.u64(*len);
                &[]
            }
        }
    }

    fn lifetime(&mut self, lifetime: Lifetime) {
        let (kind, value) = match lifetime {
            Lifetime::Unlimited => (0, 0),
            Lifetime::Ttl { seconds } => (1, seconds),
            Lifetime::ExpiresAt { unix_ms } => (2, unix_ms),
        };
        self.u8(kind);
        self.u64(value);
    }

    fn origin(&mut self, origin: &ForkOrigin) {
        self.text(origin.source.as_str());
        self.u64(origin.incarnation.0);
        self.u64(origin.start);
        self.u64(origin.offset);
        self.option(origin.requested.as_ref(), |out, offset| out.u64(*offset));
        self.u64(origin.sub_offset);
    }
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(taken)
    }

    fn rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.0)
    }

    fn u8(&mut self) -> Option<u8> {
        self.take(1)?.first().copied()
    }

    fn bool(&mut self) -> Option<bool> {
        match self.u8()? {
            0 => Some(false),
            1 => Some(true),
            _ => None,
        }
    }

    fn u32(&mut self) -> Option<u32> {
        Some(u32::from_le_bytes(self.take(4)?.try_into().ok()?))
    }

    fn u64(&mut self) -> Option<u64> {
        Some(u64::from_le_bytes(self.take(8)?.try_into().ok()?))
    }

    fn text(&mut self) -> Option<&'a str> {
        let len = usize::try_from(self.u32()?).ok()?;
        std::str::from_utf8(self.take(len)?).ok()
    }

    fn texts(&mut self) -> Option<Vec<Box<str>>> {
        let count = self.u32()?;
        // No allocation ahead of what the bytes can hold.
        let mut texts = Vec::new();
        for _ in 0..count {
            texts.push(self.text()?.into());
        }
        Some(texts)
    }

    fn option<T>(&mut self, read: impl FnOnce(&mut Self) -> Option<T>) -> Option<Option<T>> {
        match self.bool()? {
            false => Some(None),
            true => read(self).map(Some),
        }
    }

    fn blob(&mut self) -> Option<BlobRecord<'a>> {
        match self.u8()? {
            0 => Some(BlobRecord::Inline(self.rest())),
            1 => Some(BlobRecord::File {
                id: BlobId(self.take(16)?.try_into().ok()?),
                len: self.u64()?,
            }),
            _ => None,
        }
    }

    fn digest(&mut self) -> Option<Digest> {
        self.take(32)?.try_into().ok()
    }

    fn key(&mut self) -> Option<StreamKey> {
        self.text().map(StreamKey::restored)
    }

    fn content_type(&mut self) -> Option<ContentType> {
        ContentType::parse(self.text()?.as_bytes())
    }

    fn lifetime(&mut self) -> Option<Lifetime> {
        let kind = self.u8()?;
        let value = self.u64()?;
        match kind {
            0 => Some(Lifetime::Unlimited),
            1 => Some(Lifetime::Ttl { seconds: value }),
            2 => Some(Lifetime::ExpiresAt { unix_ms: value }),
            _ => None,
        }
    }

    fn origin(&mut self) -> Option<ForkOrigin> {
        Some(ForkOrigin {
            source: self.key()?,
            incarnation: Incarnation(self.u64()?),
            start: self.u64()?,
            offset: self.u64()?,
            requested: self.option(Reader::u64)?,
            sub_offset: self.u64()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples() -> Vec<Record<'static>> {
        let incarnation = Incarnation(77);
        let key = StreamKey::restored("demo/é");
        let content_type = ContentType::parse(b"text/plain; charset=utf-8").unwrap();
        vec![
            Record::Create {
                incarnation,
                at_ms: 5,
                key: key.clone(),
                content_type: content_type.clone(),
                lifetime: Lifetime::Ttl { seconds: 9 },
                closed: true,
                origin: Some(ForkOrigin {
                    source: key.clone(),
                    incarnation: Incarnation(3),
                    start: 1,
                    offset: 4,
                    requested: Some(2),
                    sub_offset: 2,
                }),
                body: b"hello",
            },
            Record::Append {
                incarnation,
                at_ms: 6,
                start: 5,
                close: false,
                producer: Some(ProducerWrite {
                    id: "w".into(),
                    epoch: 1,
                    seq: 2,
                    digest: Some([9; 32]),
                }),
                seq: Some("0001".into()),
                body: b"x",
            },
            Record::Delete {
                incarnation,
                soft: true,
            },
            Record::Retain {
                incarnation,
                at_ms: 7,
                offset: 8,
            },
            Record::Publish {
                incarnation,
                at_ms: 8,
                offset: 3,
                digest: [1; 32],
                content_type: content_type.clone(),
                body: BlobRecord::Inline(b"snap"),
            },
            Record::StagePart {
                incarnation,
                at_ms: 9,
                id: "p1".into(),
                body: BlobRecord::File {
                    id: BlobId([7; 16]),
                    len: 9,
                },
            },
            Record::CommitParts {
                incarnation,
                at_ms: 10,
                offset: 3,
                digest: [2; 32],
                content_type,
                ids: vec!["p1".into(), "p2".into()],
            },
            Record::DiscardParts {
                incarnation,
                ids: vec![],
            },
            Record::Refer {
                incarnation,
                fork: Incarnation(4),
                fork_key: key,
                start: 0,
            },
            Record::Release {
                incarnation,
                fork: Incarnation(4),
            },
            Record::Fence {
                bucket: "demo".into(),
            },
        ]
    }

    fn bytes_of(record: &Record<'static>) -> Vec<u8> {
        let mut bytes = Vec::new();
        let body = record.encode(&mut bytes);
        bytes.extend_from_slice(body);
        bytes
    }

    #[test]
    fn every_record_reads_back_as_written() {
        for record in samples() {
            let bytes = bytes_of(&record);
            let again = Record::decode(&bytes).expect("decodes");
            assert_eq!(format!("{again:?}"), format!("{record:?}"));
        }
    }

    #[test]
    fn damaged_records_are_errors_not_panics() {
        for record in samples() {
            let bytes = bytes_of(&record);
            for cut in 0..bytes.len() {
                let _ = Record::decode(&bytes[..cut]);
            }
            for at in 0..bytes.len() {
                for flip in [1, 0x80, 0xff] {
                    let mut damaged = bytes.clone();
                    damaged[at] ^= flip;
                    let _ = Record::decode(&damaged);
                }
            }
        }
        assert!(Record::decode(&[]).is_err());
        assert!(Record::decode(&[99, 0, 0, 0, 0, 0, 0, 0, 0]).is_err());
        let mut trailing = bytes_of(&Record::Release {
            incarnation: Incarnation(1),
            fork: Incarnation(2),
        });
        trailing.push(0);
        assert!(Record::decode(&trailing).is_err());
    }
}
