//! What a stream is: the state that records on disk add up to.
//!
//! [`StreamState`] holds only what a decision needs; bytes are kept by the
//! shard. What most streams never have sits behind one pointer, so that an
//! idle stream stays small.

use std::collections::BTreeMap;

use crate::protocol::{
    content_type::ContentType,
    expiry::Lifetime,
    fork::ForkOrigin,
    incarnation::Incarnation,
    producer::{Producer, Producers},
    snapshot::{SnapshotMeta, StagedParts},
    stream_key::StreamKey,
};

/// One stream.
#[derive(Clone, Debug)]
pub struct StreamState {
    /// Its name.
    pub key: StreamKey,
    /// Its token.
    pub incarnation: Incarnation,
    /// What it was created with.
    pub content_type: ContentType,
    /// How long it lives.
    pub lifetime: Lifetime,
    /// When a read or write last restarted its sliding window, in Unix milliseconds.
    pub renewed_ms: u64,
    /// The offset after its last byte.
    pub tail: u64,
    /// The earliest offset that can be read.
    pub retained: u64,
    /// Whether it takes no more appends.
    pub closed: bool,
    /// Whether it was deleted while forks still inherit from it.
    pub soft_deleted: bool,
    /// What most streams never have.
    pub rare: Option<Box<Rare>>,
}

/// The parts of a stream's state that most streams never have.
#[derive(Clone, Debug, Default)]
pub struct Rare {
    /// Idempotent producers.
    pub producers: Producers,
    /// The key of the write that closed the stream, if a producer's did.
    pub closed_by: Option<ProducerTuple>,
    /// The last `Stream-Seq`.
    pub last_seq: Option<Box<str>>,
    /// The latest snapshot.
    pub snapshot: Option<SnapshotMeta>,
    /// Staged snapshot parts.
    pub parts: StagedParts,
    /// Where the stream was forked from.
    pub origin: Option<ForkOrigin>,
    /// Forks that inherit from this stream: their token, and the first offset they inherit.
    pub forks: BTreeMap<Incarnation, ForkReference>,
}

/// A durable reference that a fork holds on its source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ForkReference {
    /// The fork's name.
    pub key: StreamKey,
    /// The first inherited offset: the source's retained offset when the fork was made.
    pub start: u64,
}

/// A producer's idempotency key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProducerTuple {
    /// `Producer-Id`.
    pub id: Box<str>,
    /// `Producer-Epoch`.
    pub epoch: u64,
    /// `Producer-Seq`.
    pub seq: u64,
}

impl StreamState {
    /// The latest snapshot.
    #[must_use]
    pub fn snapshot(&self) -> Option<&SnapshotMeta> {
        self.rare.as_ref()?.snapshot.as_ref()
    }

    /// What is remembered of a producer.
    #[must_use]
    pub fn producer(&self, id: &str) -> Option<&Producer> {
        self.rare.as_ref()?.producers.get(id)
    }

    /// Where the stream was forked from.
    #[must_use]
    pub fn origin(&self) -> Option<&ForkOrigin> {
        self.rare.as_ref()?.origin.as_ref()
    }

    /// Whether forks inherit from this stream.
    #[must_use]
    pub fn has_forks(&self) -> bool {
        self.rare
            .as_ref()
            .is_some_and(|rare| !rare.forks.is_empty())
    }

    /// The rare part, made on first use.
    pub fn rare_mut(&mut self) -> &mut Rare {
        self.rare.get_or_insert_default()
    }

    /// The lowest offset whose bytes must be kept: the retained offset, or what a fork inherits
    /// from below it (decisions, Forks).
    #[must_use]
    pub fn kept_from(&self) -> u64 {
        let forks = self.rare.iter().flat_map(|rare| rare.forks.values());
        forks.map(|fork| fork.start).fold(self.retained, u64::min)
    }

    /// Whether the stream's life is over at `now_ms`.
    #[must_use]
    pub fn is_over(&self, now_ms: u64) -> bool {
        self.lifetime.is_over(self.renewed_ms, now_ms)
    }
}
