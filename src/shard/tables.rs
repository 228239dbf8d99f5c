//! What one shard knows: its streams by place, by name and by token, what
//! they are charged, and what becomes visible with which batch.
//!
//! A stream whose deletion is staged stays in its place until that is durable;
//! a new one of the same name is its successor meanwhile. What a stream is
//! charged is given back exactly, whatever happened to it.
//!
//! A block of a segment is live for as long as a stream here names it, and a
//! while longer when it was moved: until a checkpoint rules that knows the new
//! place ([`Tables::moved`]).

use std::{
    collections::{BTreeSet, HashSet, VecDeque},
    sync::Arc,
};

use crate::{
    base::{limits::FLUSH_BYTES, queue::Queue},
    protocol::{
        content_type::ContentType,
        incarnation::{Allocator, Incarnation},
        stream_key::StreamKey,
    },
    shard::{
        evictable::Evictable,
        index::Index,
        moved::Moved,
        request::BatchNumber,
        stream::{Blob, STREAM_OVERHEAD_BYTES, StoredSnapshot, Stream},
        streams::Streams,
    },
    storage::{
        blob::Graveyard,
        segment::{Holdings, Place, Segment},
    },
};

/// Content types that streams share the text of; a client may use one of its own for each stream.
const SHARED_TYPES_MAX: usize = 1024;

/// What a shard knows.
#[derive(Debug)]
pub struct Tables {
    pub(super) streams: Streams,
    pub(super) index: Index,
    /// Content types in use, so that streams of one type share its text.
    types: HashSet<ContentType, ahash::RandomState>,
    pub(super) fenced: HashSet<Box<str>>,
    pub(super) memory_bytes: u64,
    /// When a stream may be over, in Unix milliseconds. A stream has one entry here or in
    /// [`Self::overdue`].
    pub(super) expiries: BTreeSet<(u64, Incarnation)>,
    /// Streams that were over and could not be deleted, and when to look again, in nanoseconds of
    /// the monotonic clock; the first first.
    pub(super) overdue: Queue<(u64, Incarnation)>,
    effects: Queue<(BatchNumber, Effect)>,
    allocator: Allocator,
    pub(super) graveyard: Graveyard,
    /// What it has in segments.
    pub(super) held: Holdings,
    /// Places that were given up for others; released with the next checkpoint that rules.
    pub(super) moved: Moved,
    /// Places of blocks that nobody needs any more and that are yet to be released.
    leftover: Queue<Place>,
    /// Places released in one turn.
    releases_max: usize,
    /// Streams with enough bytes for whole blocks.
    pub(super) flushable: VecDeque<(usize, Incarnation)>,
    /// What may leave memory.
    pub(super) evictable: Evictable,
    /// Bytes of streams that are in memory alone.
    pub(super) unflushed_bytes: u64,
}

/// What becomes visible with a batch.
#[derive(Debug)]
pub(super) enum Effect {
    Create {
        slot: usize,
    },
    Advance {
        slot: usize,
        tail: u64,
        closed: bool,
    },
    Retain {
        slot: usize,
        offset: u64,
    },
    /// A fork's reference is gone.
    Release {
        slot: usize,
    },
    Snapshot {
        slot: usize,
        snapshot: Arc<StoredSnapshot>,
    },
    Doom {
        blobs: Vec<Blob>,
    },
    SoftDelete {
        slot: usize,
    },
    Delete {
        slot: usize,
    },
}

impl Tables {
    /// Empty tables with an allocator of incarnations.
    #[must_use]
    pub fn new(allocator: Allocator, graveyard: Graveyard) -> Self {
        Self {
            streams: Streams::default(),
            index: Index::default(),
            types: HashSet::default(),
            fenced: HashSet::new(),
            memory_bytes: 0,
            expiries: BTreeSet::new(),
            overdue: Queue::default(),
            effects: Queue::default(),
            allocator,
            graveyard,
            held: Holdings::new(),
            moved: Moved::default(),
            leftover: Queue::default(),
            releases_max: usize::MAX,
            flushable: VecDeque::new(),
            evictable: Evictable::default(),
            unflushed_bytes: 0,
        }
    }

    /// Adds a stream whose creation has been staged; it succeeds one of the same name whose
    /// deletion is not durable yet.
    pub(super) fn insert(&mut self, stream: Stream) -> usize {
        self.insert_named(stream, true)
    }

    /// The same; one that does not take its name is known by its token alone.
    pub(super) fn insert_named(&mut self, mut stream: Stream, takes_name: bool) -> usize {
        let incarnation = stream.staged.incarnation;
        let predecessor = self.index.by_key(&self.streams, &stream.staged.key);
        stream.set_predecessor(predecessor.and_then(|slot| u32::try_from(slot).ok()));
        self.share_type(&mut stream);
        stream.charged = STREAM_OVERHEAD_BYTES.saturating_add(stream.history.memory_bytes());
        self.memory_bytes = self.memory_bytes.saturating_add(stream.charged);
        if let Some(end_ms) = stream.staged.lifetime.expires_ms(stream.staged.renewed_ms) {
            self.expiries.insert((end_ms, incarnation));
        }
        let slot = self.streams.insert(stream);
        self.index.insert(&self.streams, slot, takes_name);
        slot
    }

    /// Lets a stream share its content type's text with others.
    fn share_type(&mut self, stream: &mut Stream) {
        let content_type = &mut stream.staged.content_type;
        if let Some(known) = self.types.get(content_type) {
            *content_type = known.clone();
        } else if self.types.len() < SHARED_TYPES_MAX {
            self.types.insert(content_type.clone());
        }
    }

    /// Takes a stream out for good.
    pub(super) fn remove(&mut self, slot: usize) -> Option<Stream> {
        self.index.remove(&self.streams, slot);
        let stream = self.streams.try_remove(slot)?;
        self.memory_bytes = self.memory_bytes.saturating_sub(stream.charged);
        self.unflushed_bytes = self
            .unflushed_bytes
            .saturating_sub(stream.history.unflushed());
        self.release(stream.places());
        let newer = self.index.by_key(&self.streams, &stream.staged.key);
        if let Some(successor) = newer.and_then(|newer| self.streams.get_mut(newer))
            && successor.predecessor() == u32::try_from(slot).ok()
        {
            successor.set_predecessor(stream.predecessor());
        }
        Some(stream)
    }

    /// Makes room for `streams` more.
    pub(super) fn reserve(&mut self, streams: usize) {
        self.index.reserve(streams);
    }

    /// Gives memory back that growing took and nothing needs.
    pub(super) fn shrink(&mut self) {
        self.streams.shrink_to_fit();
        self.index.shrink(&self.streams);
    }

    /// Whether the bucket of this name was purged. Hardly any ever is: the name is not even split.
    pub(super) fn is_fenced(&self, key: &StreamKey) -> bool {
        !self.fenced.is_empty() && self.fenced.contains(key.bucket())
    }

    /// The newest stream of this name.
    pub(super) fn slot_of_key(&self, key: &StreamKey) -> Option<usize> {
        self.index.by_key(&self.streams, key)
    }

    /// The stream with this token, even if its deletion is staged.
    pub(super) fn slot_of_any(&self, incarnation: Incarnation) -> Option<usize> {
        self.index.by_incarnation(&self.streams, incarnation)
    }

    /// A token for a new stream, or `None` once the shard's block is used up.
    pub(super) fn allocate(&mut self) -> Option<Incarnation> {
        self.allocator.allocate()
    }

    /// What becomes visible next, if `durable` covers it.
    pub(super) fn next_effect(&mut self, durable: BatchNumber) -> Option<Effect> {
        match self.effects.front() {
            Some((batch, _)) if *batch <= durable => {
                self.effects.pop_front().map(|(_, effect)| effect)
            }
            _ => None,
        }
    }

    /// Notes what becomes visible with `batch`.
    pub(super) fn note(&mut self, batch: BatchNumber, effect: Effect) {
        self.effects.push_back((batch, effect));
    }

    /// Charges a stream for `bytes` more.
    pub(super) fn charge(&mut self, slot: usize, bytes: u64) {
        if let Some(stream) = self.streams.get_mut(slot) {
            stream.charged = stream.charged.saturating_add(bytes);
            self.memory_bytes = self.memory_bytes.saturating_add(bytes);
        }
    }

    /// Takes `bytes` off a stream's charge.
    pub(super) fn discharge(&mut self, slot: usize, bytes: u64) {
        if let Some(stream) = self.streams.get_mut(slot) {
            let bytes = bytes.min(stream.charged);
            stream.charged = stream.charged.saturating_sub(bytes);
            self.memory_bytes = self.memory_bytes.saturating_sub(bytes);
        }
    }

    /// Lets go of the bytes that neither readers nor forks can ask for any more.
    pub(super) fn release_history(&mut self, slot: usize) {
        let Some(stream) = self.streams.get_mut(slot) else {
            return;
        };
        if stream.is_releasing() {
            return;
        }
        let kept_from = stream.staged.kept_from().min(stream.visible.retained);
        let before = stream.history.unflushed();
        let (freed, places) = stream.history.release_before(kept_from);
        let unflushed = before.saturating_sub(stream.history.unflushed());
        self.unflushed_bytes = self.unflushed_bytes.saturating_sub(unflushed);
        self.release(places);
        self.discharge(slot, freed);
    }

    /// Takes note that `len` bytes were added to a stream's history, and are in memory alone. True
    /// if it has enough for whole blocks now.
    pub(super) fn note_unflushed(&mut self, slot: usize, len: u64) -> bool {
        self.unflushed_bytes = self.unflushed_bytes.saturating_add(len);
        let Some(stream) = self.streams.get(slot) else {
            return false;
        };
        let unflushed = stream.history.unflushed();
        let is_enough = unflushed >= FLUSH_BYTES && unflushed.saturating_sub(len) < FLUSH_BYTES;
        if is_enough {
            self.flushable.push_back((slot, stream.staged.incarnation));
        }
        is_enough
    }

    /// The segments that blocks of these bodies are in.
    pub(super) fn segments_of<'a>(
        &self,
        body: impl Iterator<Item = &'a Blob>,
    ) -> Vec<Arc<Segment>> {
        let mut segments: Vec<Arc<Segment>> = Vec::new();
        let mut known = HashSet::new();
        for place in body.filter_map(Blob::place) {
            if known.insert(place.segment) {
                segments.extend(self.held.segment(place.segment).cloned());
            }
        }
        segments
    }

    /// No durable record names these bodies any more: their space goes, once nobody reads them.
    pub(super) fn bury(&mut self, blobs: &[Blob]) {
        for blob in blobs {
            blob.doom();
        }
        self.release_places(blobs);
    }

    /// The blocks of these bodies are nobody's any more. Files are another matter: while records
    /// are replayed, those that none of them names go at the end of the start.
    pub(super) fn release_places(&mut self, blobs: &[Blob]) {
        self.release(blobs.iter().filter_map(Blob::place));
    }

    /// Nobody needs these blocks any more. What does not go now goes with [`Self::release_leftover`].
    fn release(&mut self, places: impl IntoIterator<Item = Place>) {
        let mut left = self.releases_max;
        for place in places {
            match left.checked_sub(1) {
                Some(less) => {
                    left = less;
                    self.held.release(place);
                }
                None => self.leftover.push_back(place),
            }
        }
    }

    /// From now on others wait: no more than `releases_max` places are released in one turn.
    pub(super) fn set_releases_max(&mut self, releases_max: usize) {
        self.releases_max = releases_max;
    }

    /// Releases some of the places that were left over; true when more are.
    pub(super) fn release_leftover(&mut self) -> bool {
        for _ in 0..self.releases_max {
            let Some(place) = self.leftover.pop_front() else {
                return false;
            };
            self.held.release(place);
        }
        !self.leftover.is_empty()
    }

    /// Whether places are left over.
    pub(super) fn has_leftover(&self) -> bool {
        !self.leftover.is_empty()
    }

    /// The stream with this token, unless its deletion is staged.
    pub(super) fn slot_of(&self, incarnation: Incarnation) -> Option<usize> {
        let slot = self.slot_of_any(incarnation)?;
        self.streams
            .get(slot)
            .filter(|stream| !stream.is_deleted())?;
        Some(slot)
    }
}
