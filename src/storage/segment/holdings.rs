//! Who has what in which segment: counts that say which space can go.
//!
//! A segment is shared by whoever refers to it, over cores; its counts are
//! atomic, and nothing is behind a lock. What one shard has in it is counted by
//! that shard ([`Holdings`]).

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use crossbeam::queue::SegQueue;

use super::format::{FILE_HEADER_BYTES, Place, SegmentId};
use crate::base::limits::DISK_ALIGN;
use crate::storage::disk::align_down;

/// Smallest dead range that is worth a hole, in bytes.
const PUNCH_BYTES_MIN: u64 = 32 << 10;
/// A segment is emptied when more than one part in this many of what it takes is dead.
const DEAD_PARTS: u64 = 5;

/// A segment that somebody refers to. Whoever holds it keeps its file.
#[derive(Debug)]
pub struct Segment {
    /// Its identity.
    pub id: SegmentId,
    live_bytes: AtomicU64,
    /// Length of the file.
    file_bytes: AtomicU64,
    /// Bytes that the file takes on disk: its length without its holes.
    taken_bytes: AtomicU64,
    /// Shards that have live blocks in it.
    holders: AtomicUsize,
    /// Nothing is written to it any more.
    sealed: AtomicBool,
    graveyard: SegmentGraveyard,
}

impl Segment {
    /// A segment that is being written.
    #[must_use]
    pub fn open(id: SegmentId, graveyard: &SegmentGraveyard) -> Arc<Self> {
        Self::new(id, false, graveyard)
    }

    fn new(id: SegmentId, sealed: bool, graveyard: &SegmentGraveyard) -> Arc<Self> {
        Arc::new(Self {
            id,
            live_bytes: AtomicU64::new(0),
            file_bytes: AtomicU64::new(0),
            taken_bytes: AtomicU64::new(0),
            holders: AtomicUsize::new(0),
            sealed: AtomicBool::new(sealed),
            graveyard: graveyard.clone(),
        })
    }

    /// Bytes of live blocks in it, headers included.
    #[must_use]
    pub fn live_bytes(&self) -> u64 {
        self.live_bytes.load(Ordering::Relaxed)
    }

    /// Bytes that its file takes on disk.
    #[must_use]
    pub fn taken_bytes(&self) -> u64 {
        self.taken_bytes.load(Ordering::Relaxed)
    }

    /// Says how long the file is; holes are taken off by [`Holdings::take_punchable`].
    pub fn set_taken_bytes(&self, bytes: u64) {
        self.file_bytes.store(bytes, Ordering::Relaxed);
        self.taken_bytes.store(bytes, Ordering::Relaxed);
    }

    /// A hole of `bytes` was made.
    fn give_back(&self, bytes: u64) {
        let less = |taken: u64| Some(taken.saturating_sub(bytes));
        // It always succeeds: `less` is never `None`.
        let _ = self
            .taken_bytes
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
    }

    /// Nothing is written to it any more: it goes with its last live block.
    pub fn seal(&self) {
        self.sealed.store(true, Ordering::Release);
    }

    /// Whether a response, or anybody else but its holders, reads it.
    fn is_pinned(self: &Arc<Self>) -> bool {
        Arc::strong_count(self) > self.holders.load(Ordering::Relaxed)
    }
}

impl Drop for Segment {
    fn drop(&mut self) {
        if *self.sealed.get_mut() && *self.live_bytes.get_mut() == 0 {
            self.graveyard.0.push(self.id);
        }
    }
}

/// Segments whose files are to be removed.
#[derive(Clone, Debug, Default)]
pub struct SegmentGraveyard(pub(super) Arc<SegQueue<SegmentId>>);

/// The segment `id` of an earlier start, for all shards that refer to it.
pub fn intern(
    known: &mut HashMap<SegmentId, Arc<Segment>>,
    id: SegmentId,
    graveyard: &SegmentGraveyard,
) -> Arc<Segment> {
    known
        .entry(id)
        .or_insert_with(|| Segment::new(id, true, graveyard))
        .clone()
}

/// What one shard has in segments.
#[derive(Debug, Default)]
pub struct Holdings {
    segments: HashMap<SegmentId, Holding, ahash::RandomState>,
    live_bytes: u64,
}

#[derive(Debug)]
struct Holding {
    segment: Arc<Segment>,
    /// Bytes of our live blocks in it.
    live_bytes: u64,
    dead: Dead,
}

/// Dead ranges that were ours and still take space. Those that are too short for a hole, of which
/// there may be a hundred thousand, are not looked at for one.
#[derive(Debug, Default)]
struct Dead {
    /// Start to end.
    ranges: BTreeMap<u64, u64>,
    /// Starts of those that may be worth a hole.
    worth: BTreeSet<u64>,
    /// Ranges looked at for holes.
    #[cfg(test)]
    looked_at: usize,
}

/// The whole pages of a range.
fn pages(start: u64, end: u64) -> Range<u64> {
    start.next_multiple_of(DISK_ALIGN as u64)..align_down(end)
}

/// Whether they are worth a hole.
fn is_worth(pages: &Range<u64>) -> bool {
    pages.end.saturating_sub(pages.start) >= PUNCH_BYTES_MIN
}

impl Dead {
    /// Adds a range that touches none of the others, or some at its ends.
    fn add(&mut self, range: Range<u64>) {
        let (mut start, mut end) = (range.start, range.end);
        if let Some((&before, &before_end)) = self.ranges.range(..=start).next_back()
            && before_end == start
        {
            self.remove(before);
            start = before;
        }
        if let Some(after_end) = self.remove(end) {
            end = after_end;
        }
        self.insert(start, end);
    }

    fn insert(&mut self, start: u64, end: u64) {
        self.ranges.insert(start, end);
        if is_worth(&pages(start, end)) {
            self.worth.insert(start);
        }
    }

    fn remove(&mut self, start: u64) -> Option<u64> {
        self.worth.remove(&start);
        self.ranges.remove(&start)
    }

    /// Takes out whole pages that are worth a hole, at most `count_max` ranges, in a file of
    /// `file_end` bytes.
    fn take(&mut self, count_max: usize, file_end: u64) -> Vec<Range<u64>> {
        let mut found = Vec::new();
        while found.len() < count_max
            && let Some(start) = self.worth.pop_first()
        {
            #[cfg(test)]
            {
                self.looked_at += 1;
            }
            let Some(end) = self.ranges.get(&start).copied() else {
                continue;
            };
            // A start cuts a file behind its last live block: what died there takes no space.
            let range = pages(start, end.min(file_end));
            if !is_worth(&range) {
                continue;
            }
            self.ranges.remove(&start);
            // What is left at both ends is less than a page: it may merge with what dies next.
            if start < range.start {
                self.insert(start, range.start);
            }
            if range.end < end {
                self.insert(range.end, end);
            }
            found.push(range);
        }
        found
    }
}

impl Holdings {
    /// Nothing yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// One more block of ours is live.
    pub fn adopt(&mut self, segment: &Arc<Segment>, place: Place) {
        let holding = self.segments.entry(segment.id).or_insert_with(|| {
            segment.holders.fetch_add(1, Ordering::Relaxed);
            Holding {
                segment: segment.clone(),
                live_bytes: 0,
                dead: Dead::default(),
            }
        });
        holding.live_bytes = holding.live_bytes.saturating_add(place.bytes());
        segment
            .live_bytes
            .fetch_add(place.bytes(), Ordering::Relaxed);
        self.live_bytes = self.live_bytes.saturating_add(place.bytes());
    }

    /// A block of ours is dead, and nothing that survives a crash leads to it: its space may go.
    pub fn release(&mut self, place: Place) {
        let Some(holding) = self.segments.get_mut(&place.segment) else {
            return;
        };
        let bytes = place.bytes().min(holding.live_bytes);
        holding.live_bytes = holding.live_bytes.saturating_sub(bytes);
        let segment = &holding.segment;
        segment.live_bytes.fetch_sub(bytes, Ordering::Relaxed);
        self.live_bytes = self.live_bytes.saturating_sub(bytes);
        if holding.live_bytes == 0 {
            segment.holders.fetch_sub(1, Ordering::Relaxed);
            self.segments.remove(&place.segment);
            return;
        }
        holding.dead.add(u64::from(place.offset)..place.end());
    }

    /// The segment `id`, if we have something in it.
    #[must_use]
    pub fn segment(&self, id: SegmentId) -> Option<&Arc<Segment>> {
        self.segments.get(&id).map(|holding| &holding.segment)
    }

    /// Bytes of our live blocks.
    #[must_use]
    pub fn live_bytes(&self) -> u64 {
        self.live_bytes
    }

    /// Segments that we have something in.
    #[must_use]
    pub fn segments(&self) -> usize {
        self.segments.len()
    }

    /// Bytes on disk of the segments that we have something in. Those that several shards share are
    /// counted by each.
    #[must_use]
    pub fn taken_bytes(&self) -> u64 {
        let segments = self.segments.values();
        segments.map(|holding| holding.segment.taken_bytes()).sum()
    }

    /// The segment with the most to gain by moving our blocks out of it, if more than a fifth of
    /// what it takes is dead; none of `except`.
    #[must_use]
    pub fn wasteful(&self, except: &HashSet<SegmentId>) -> Option<SegmentId> {
        let candidates = self.segments.values().filter_map(|holding| {
            let segment = &holding.segment;
            let (taken, live) = (segment.taken_bytes(), segment.live_bytes());
            let dead = taken
                .saturating_sub(live)
                .saturating_sub(FILE_HEADER_BYTES as u64);
            let is_wasteful = segment.sealed.load(Ordering::Acquire)
                && dead > taken / DEAD_PARTS
                && dead > PUNCH_BYTES_MIN
                && !except.contains(&segment.id);
            is_wasteful.then_some((dead, segment.id))
        });
        candidates.max().map(|(_, id)| id)
    }

    /// Dead ranges of whole pages, at most `count_max`, that nobody reads: to be punched. They
    /// count as given back from now on.
    pub fn take_punchable(&mut self, count_max: usize) -> Vec<(SegmentId, Range<u64>)> {
        let mut ranges = Vec::new();
        for holding in self.segments.values_mut() {
            if ranges.len() >= count_max {
                break;
            }
            let segment = &holding.segment;
            if !segment.sealed.load(Ordering::Acquire)
                || segment.is_pinned()
                || holding.dead.worth.is_empty()
            {
                continue;
            }
            let file_end = segment.file_bytes.load(Ordering::Relaxed);
            let left = count_max.saturating_sub(ranges.len());
            for range in holding.dead.take(left, file_end) {
                let bytes = range.end.saturating_sub(range.start);
                segment.give_back(bytes);
                ranges.push((segment.id, range));
            }
        }
        ranges
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::rng::Rng;

    fn place(offset: u32, len: u32) -> Place {
        Place {
            segment: SegmentId(1),
            offset,
            len,
        }
    }

    #[test]
    fn a_file_goes_with_its_last_block_and_its_last_reader() {
        let graveyard = SegmentGraveyard::default();
        let segment = Segment::open(SegmentId(1), &graveyard);
        let mut held = Holdings::new();
        held.adopt(&segment, place(4096, 100));
        held.release(place(4096, 100));
        let reader = segment.clone();
        segment.seal();
        drop(segment);
        assert!(graveyard.0.is_empty());
        drop(reader);
        assert_eq!(graveyard.0.pop(), Some(SegmentId(1)));
        // A file that is still written, or that has live blocks, stays when the process ends.
        let open = Segment::open(SegmentId(2), &graveyard);
        drop(open);
        let mut known = HashMap::new();
        let live = intern(&mut known, SegmentId(3), &graveyard);
        held.adopt(
            &live,
            Place {
                segment: SegmentId(3),
                ..place(4096, 5)
            },
        );
        drop((live, known, held));
        assert!(graveyard.0.is_empty());
    }

    #[test]
    fn holes_cover_dead_bytes_only_and_all_counts_add_up() {
        for seed in 0..50 {
            let mut rng = Rng::from_seed(seed);
            let graveyard = SegmentGraveyard::default();
            let segment = Segment::open(SegmentId(1), &graveyard);
            let mut held = Holdings::new();
            let mut live = Vec::new();
            let mut end = 4096u32;
            for _ in 0..200 {
                let len = 1 + rng.below(64 << 10) as u32;
                let block = place(end, len);
                end = block.end() as u32;
                held.adopt(&segment, block);
                live.push(block);
            }
            segment.set_taken_bytes(u64::from(end));
            segment.seal();
            drop(segment);
            let mut holes = 0;
            while live.len() > 1 {
                let block = live.swap_remove(rng.below(live.len() as u64) as usize);
                held.release(block);
                for (_, hole) in held.take_punchable(3) {
                    holes += hole.end - hole.start;
                    assert!(hole.start % 4096 == 0 && hole.end % 4096 == 0);
                    for block in &live {
                        let apart =
                            block.end() <= hole.start || u64::from(block.offset) >= hole.end;
                        assert!(apart, "seed {seed}: {hole:?} covers {block:?}");
                    }
                }
                let sum: u64 = live.iter().map(|block| block.bytes()).sum();
                assert_eq!(held.live_bytes(), sum);
                assert_eq!(held.taken_bytes(), u64::from(end) - holes);
            }
            assert!(holes > u64::from(end) / 2, "seed {seed}");
        }
    }

    /// Seed 13052 of the shard's simulation: more was given back than the file had.
    #[test]
    fn what_a_start_has_cut_off_is_not_given_back_again() {
        let graveyard = SegmentGraveyard::default();
        let mut known = HashMap::new();
        let segment = intern(&mut known, SegmentId(1), &graveyard);
        let mut held = Holdings::new();
        let (live, dead) = (place(4096, 10), place(8192, 65536));
        held.adopt(&segment, live);
        held.adopt(&segment, dead);
        held.release(dead);
        segment.set_taken_bytes(8192);
        drop((segment, known));
        assert_eq!(held.take_punchable(9), vec![]);
        assert_eq!(held.taken_bytes(), 8192);
    }

    /// Every other one of very many small blocks is dead.
    #[test]
    fn ranges_that_are_too_short_are_not_looked_at_for_holes() {
        let graveyard = SegmentGraveyard::default();
        let segment = Segment::open(SegmentId(1), &graveyard);
        let mut held = Holdings::new();
        let mut end = 4096;
        let mut next = |len| {
            let block = place(end, len);
            end = block.end() as u32;
            block
        };
        let small: Vec<Place> = (0..10_000).map(|_| next(40)).collect();
        let (large, last) = (next(65536), next(40));
        for block in small.iter().chain([&large, &last]) {
            held.adopt(&segment, *block);
        }
        segment.set_taken_bytes(u64::from(end));
        segment.seal();
        drop(segment);
        small
            .iter()
            .step_by(2)
            .for_each(|block| held.release(*block));
        held.release(large);
        assert_eq!(held.take_punchable(9).len(), 1);
        assert_eq!(held.take_punchable(9).len(), 0);
        let looked_at = |held: &Holdings| held.segments.values().next().unwrap().dead.looked_at;
        assert_eq!(looked_at(&held), 1);
        small
            .iter()
            .skip(1)
            .step_by(2)
            .for_each(|block| held.release(*block));
        assert_eq!(held.take_punchable(9).len(), 1);
        assert_eq!(looked_at(&held), 2);
    }

    #[test]
    fn what_is_read_is_not_punched() {
        let graveyard = SegmentGraveyard::default();
        let segment = Segment::open(SegmentId(1), &graveyard);
        let mut held = Holdings::new();
        let (dead, live) = (place(4096, 65536), place(4096 + 65584, 10));
        held.adopt(&segment, dead);
        held.adopt(&segment, live);
        segment.set_taken_bytes(200_000);
        segment.seal();
        held.release(dead);
        assert_eq!(held.take_punchable(9), vec![]);
        drop(segment);
        assert_eq!(held.take_punchable(9), vec![(SegmentId(1), 4096..69632)]);
        assert_eq!(held.take_punchable(9), vec![]);
    }
}
