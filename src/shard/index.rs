//! Where a stream is in the table, by name and by token. The index holds slots
//! only, and compares with the streams in them: a stream costs it some ten
//! bytes for each.

mod slots;

use self::slots::Slots;
use crate::{
    protocol::{incarnation::Incarnation, stream_key::StreamKey},
    shard::streams::Streams,
};

/// Slots by name and by token.
#[derive(Debug, Default)]
pub(super) struct Index {
    by_key: Slots,
    by_incarnation: Slots,
    hasher: ahash::RandomState,
}

impl Index {
    /// The newest stream of this name.
    pub(super) fn by_key(&self, streams: &Streams, key: &StreamKey) -> Option<usize> {
        let is_it = |slot: &u32| key_at(streams, *slot).is_some_and(|known| known == key);
        let slot = self.by_key.find(self.hasher.hash_one(key), is_it)?;
        Some(*slot as usize)
    }

    /// The stream with this token.
    pub(super) fn by_incarnation(
        &self,
        streams: &Streams,
        incarnation: Incarnation,
    ) -> Option<usize> {
        let is_it = |slot: &u32| incarnation_at(streams, *slot) == Some(incarnation);
        let hash = self.hasher.hash_one(incarnation);
        let slot = self.by_incarnation.find(hash, is_it)?;
        Some(*slot as usize)
    }

    /// Adds the stream in `slot`; with `takes_name` it is the newest of its name from now on.
    pub(super) fn insert(&mut self, streams: &Streams, slot: usize, takes_name: bool) {
        // A slot is an index into memory that is there: 2^32 streams would not fit.
        let (Some(stream), Ok(place)) = (streams.get(slot), u32::try_from(slot)) else {
            return;
        };
        let hasher = &self.hasher;
        let key = &stream.staged.key;
        let hash = hasher.hash_one(key);
        let is_it = |slot: &u32| key_at(streams, *slot).is_some_and(|known| known == key);
        match self.by_key.find_mut(hash, is_it) {
            _ if !takes_name => {}
            Some(known) => *known = place,
            None => {
                self.by_key
                    .insert(hash, place, |slot| hash_key(hasher, streams, *slot));
            }
        }
        let hash = hasher.hash_one(stream.staged.incarnation);
        self.by_incarnation
            .insert(hash, place, |slot| hash_incarnation(hasher, streams, *slot));
    }

    /// Forgets `stream`, which was in `slot`; its name only if none newer has it. Call it while
    /// the stream is still in its slot.
    pub(super) fn remove(&mut self, streams: &Streams, slot: usize) {
        let Some(stream) = streams.get(slot) else {
            return;
        };
        let is_it = |known: &u32| *known as usize == slot;
        let hash = self.hasher.hash_one(stream.staged.incarnation);
        self.by_incarnation.remove(hash, is_it);
        let hash = self.hasher.hash_one(&stream.staged.key);
        self.by_key.remove(hash, is_it);
    }

    /// Makes room for `streams` in an index that is empty.
    pub(super) fn reserve(&mut self, streams: usize) {
        self.by_key.reserve(streams);
        self.by_incarnation.reserve(streams);
    }

    /// Gives memory back that growing took and nothing needs.
    pub(super) fn shrink(&mut self, streams: &Streams) {
        let hasher = &self.hasher;
        self.by_key
            .shrink_to_fit(|slot| hash_key(hasher, streams, *slot));
        self.by_incarnation
            .shrink_to_fit(|slot| hash_incarnation(hasher, streams, *slot));
    }
}

fn key_at(streams: &Streams, slot: u32) -> Option<&StreamKey> {
    streams.get(slot as usize).map(|stream| &stream.staged.key)
}

fn incarnation_at(streams: &Streams, slot: u32) -> Option<Incarnation> {
    streams
        .get(slot as usize)
        .map(|stream| stream.staged.incarnation)
}

/// The hash of a name that is in the index: its slot has a stream.
fn hash_key(hasher: &ahash::RandomState, streams: &Streams, slot: u32) -> u64 {
    key_at(streams, slot).map_or(0, |key| hasher.hash_one(key))
}

fn hash_incarnation(hasher: &ahash::RandomState, streams: &Streams, slot: u32) -> u64 {
    incarnation_at(streams, slot).map_or(0, |incarnation| hasher.hash_one(incarnation))
}
