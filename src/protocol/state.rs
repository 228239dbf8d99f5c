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
    pub forks: Forks,
}

/// The references of a stream's forks. Which is the lowest offset that one inherits is known without
/// looking at all of them.
#[derive(Clone, Debug, Default)]
pub struct Forks {
    references: BTreeMap<Incarnation, ForkReference>,
    /// How many inherit from which offset on.
    starts: BTreeMap<u64, usize>,
}

impl Forks {
    /// Adds the reference of `fork`.
    pub fn insert(&mut self, fork: Incarnation, reference: ForkReference) {
        let forks = self.starts.entry(reference.start).or_default();
        *forks = forks.saturating_add(1);
        if let Some(before) = self.references.insert(fork, reference) {
            self.forget_start(before.start);
        }
    }

    /// Takes the reference of `fork` out.
    pub fn remove(&mut self, fork: Incarnation) -> Option<ForkReference> {
        let reference = self.references.remove(&fork)?;
        self.forget_start(reference.start);
        Some(reference)
    }

    fn forget_start(&mut self, start: u64) {
        if let Some(forks) = self.starts.get_mut(&start) {
            *forks = forks.saturating_sub(1);
            if *forks == 0 {
                self.starts.remove(&start);
            }
        }
    }

    /// Whether `fork` has one.
    #[must_use]
    pub fn contains(&self, fork: Incarnation) -> bool {
        self.references.contains_key(&fork)
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.references.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.references.is_empty()
    }

    /// All of them, by token.
    pub fn iter(&self) -> impl Iterator<Item = (Incarnation, &ForkReference)> {
        self.references
            .iter()
            .map(|(fork, reference)| (*fork, reference))
    }

    /// The first offset that any of them inherits.
    #[must_use]
    pub fn lowest_start(&self) -> Option<u64> {
        self.starts.keys().next().copied()
    }
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
        let lowest = self
            .rare
            .as_ref()
            .and_then(|rare| rare.forks.lowest_start());
        lowest.map_or(self.retained, |start| start.min(self.retained))
    }

    /// Whether the stream's life is over at `now_ms`.
    #[must_use]
    pub fn is_over(&self, now_ms: u64) -> bool {
        self.lifetime.is_over(self.renewed_ms, now_ms)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::rng::Rng;

    #[test]
    fn the_lowest_start_is_that_of_the_forks_there_are() {
        let mut rng = Rng::from_seed(1);
        let (mut forks, mut model) = (Forks::default(), BTreeMap::new());
        for _ in 0..10_000 {
            let fork = Incarnation(rng.below(50));
            if rng.below(2) == 0 {
                let start = rng.below(20);
                let key = StreamKey::restored("f");
                forks.insert(fork, ForkReference { key, start });
                model.insert(fork, start);
            } else {
                let removed = forks.remove(fork).map(|reference| reference.start);
                assert_eq!(removed, model.remove(&fork));
            }
            assert_eq!(forks.lowest_start(), model.values().min().copied());
            assert_eq!(
                (forks.len(), forks.is_empty()),
                (model.len(), model.is_empty())
            );
            assert!(forks.starts.len() <= model.len());
        }
    }
}
