//! The streams of a shard, each in a slot that is its own while it lives.
//!
//! They lie in chunks that never move: one more stream costs the same however
//! many there are.

use slab::Slab;

use crate::shard::stream::Stream;

/// Streams in one chunk.
const CHUNK: usize = 256;

/// Streams by slot.
#[derive(Debug, Default)]
pub(super) struct Streams {
    chunks: Vec<Slab<Stream>>,
    /// Chunks with room, each once; the last is filled first.
    open: Vec<u32>,
    len: usize,
}

impl Streams {
    /// Streams in it.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Every slot is below this.
    pub(super) fn capacity(&self) -> usize {
        self.chunks.len().saturating_mul(CHUNK)
    }

    pub(super) fn get(&self, slot: usize) -> Option<&Stream> {
        self.chunks.get(slot / CHUNK)?.get(slot % CHUNK)
    }

    pub(super) fn get_mut(&mut self, slot: usize) -> Option<&mut Stream> {
        self.chunks.get_mut(slot / CHUNK)?.get_mut(slot % CHUNK)
    }

    /// Adds a stream; its slot.
    pub(super) fn insert(&mut self, stream: Stream) -> usize {
        self.len = self.len.saturating_add(1);
        let open = self.open.last().map(|chunk| *chunk as usize);
        if let Some(number) = open
            && let Some(chunk) = self.chunks.get_mut(number)
        {
            let place = chunk.insert(stream);
            if chunk.len() == CHUNK {
                self.open.pop();
            }
            return number.saturating_mul(CHUNK).saturating_add(place);
        }
        let number = self.chunks.len();
        // The first grows: most shards that have few streams have very few.
        let mut chunk = match number {
            0 => Slab::new(),
            _ => Slab::with_capacity(CHUNK),
        };
        let place = chunk.insert(stream);
        self.chunks.push(chunk);
        // A slot is an index into memory that is there: 2^32 streams would not fit.
        self.open.extend(u32::try_from(number).ok());
        number.saturating_mul(CHUNK).saturating_add(place)
    }

    /// Takes the stream in `slot` out.
    pub(super) fn try_remove(&mut self, slot: usize) -> Option<Stream> {
        let number = slot / CHUNK;
        let chunk = self.chunks.get_mut(number)?;
        let was_full = chunk.len() == CHUNK;
        let stream = chunk.try_remove(slot % CHUNK)?;
        self.len = self.len.saturating_sub(1);
        if was_full {
            self.open.extend(u32::try_from(number).ok());
        }
        Some(stream)
    }

    /// All of them, with their slots.
    pub(super) fn iter(&self) -> impl Iterator<Item = (usize, &Stream)> {
        self.chunks.iter().enumerate().flat_map(|(number, chunk)| {
            let first = number.saturating_mul(CHUNK);
            let slot_of = move |place: usize| first.saturating_add(place);
            chunk
                .iter()
                .map(move |(place, stream)| (slot_of(place), stream))
        })
    }

    /// Gives memory back that growing took and nothing needs.
    pub(super) fn shrink_to_fit(&mut self) {
        if let Some(last) = self.chunks.last_mut() {
            last.shrink_to_fit();
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::{
        base::rng::Rng,
        protocol::{
            content_type::ContentType, expiry::Lifetime, incarnation::Incarnation,
            state::StreamState, stream_key::StreamKey,
        },
        shard::{history::History, request::BatchNumber},
    };

    /// An empty stream of that name and token.
    pub(in crate::shard) fn stream(number: u64) -> Stream {
        let state = StreamState {
            key: StreamKey::restored(&format!("s{number}")),
            incarnation: Incarnation(number),
            content_type: ContentType::octet_stream(),
            lifetime: Lifetime::Unlimited,
            renewed_ms: 0,
            tail: 0,
            retained: 0,
            closed: false,
            soft_deleted: false,
            rare: None,
        };
        Stream::created(state, History::starting_at(0), BatchNumber(0))
    }

    #[test]
    fn slots_are_used_again_and_streams_stay_where_they_are() {
        let mut rng = Rng::from_seed(1);
        let mut streams = Streams::default();
        let mut known: Vec<(usize, u64)> = Vec::new();
        for number in 0..20_000 {
            if rng.below(3) == 0 && !known.is_empty() {
                let at = rng.below(known.len() as u64) as usize;
                let (slot, number) = known.swap_remove(at);
                let gone = streams.try_remove(slot).unwrap();
                assert_eq!(gone.staged.incarnation.0, number);
                assert!(streams.try_remove(slot).is_none());
            } else {
                known.push((streams.insert(stream(number)), number));
            }
        }
        assert_eq!(streams.len(), known.len());
        assert!(streams.capacity() < known.len() + 2 * CHUNK);
        for (slot, number) in &known {
            let stream = streams.get(*slot).unwrap();
            assert_eq!(stream.staged.incarnation.0, *number);
        }
        let mut found: Vec<_> = streams
            .iter()
            .map(|(slot, stream)| (slot, stream.staged.incarnation.0))
            .collect();
        found.sort_unstable();
        known.sort_unstable();
        assert_eq!(found, known);
    }

    #[test]
    fn one_more_moves_none_of_the_others() {
        let mut streams = Streams::default();
        let first: Vec<usize> = (0..CHUNK as u64)
            .map(|n| streams.insert(stream(n)))
            .collect();
        let at = |streams: &Streams, slot: usize| std::ptr::from_ref(streams.get(slot).unwrap());
        let before: Vec<_> = first.iter().map(|slot| at(&streams, *slot)).collect();
        for number in 0..100_000 {
            streams.insert(stream(number));
        }
        let after: Vec<_> = first.iter().map(|slot| at(&streams, *slot)).collect();
        assert_eq!(before, after);
    }
}
