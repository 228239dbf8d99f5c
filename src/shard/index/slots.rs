//! A hash table that grows a little at a time (linear hashing): one more entry
//! moves at most a few hundred others, however many there are. One table would
//! move all of a million when it doubles, and a core would do nothing else for
//! 0.2 seconds.
//!
//! ```text
//! parts  0 1 2 3 | 4 5        split = 2: the parts before it were split, and their
//!        ^^^     | ^^^        other halves are behind `low`, the parts there were
//!        split   | low = 4    when this round of splits began
//! ```

use hashbrown::HashTable;

/// A part is split when there are more entries than this for each; the fullest have twice as many.
const PART_ENTRIES: usize = 256;

/// Slots, by hashes that the caller knows.
#[derive(Debug)]
pub(super) struct Slots {
    parts: Vec<HashTable<u32>>,
    /// Parts when this round began; a power of two.
    low: usize,
    /// The part that is split next; below `low`.
    split: usize,
    len: usize,
    /// Entries moved by splits.
    #[cfg(test)]
    moved: usize,
}

impl Default for Slots {
    fn default() -> Self {
        Self {
            parts: vec![HashTable::new()],
            low: 1,
            split: 0,
            len: 0,
            #[cfg(test)]
            moved: 0,
        }
    }
}

impl Slots {
    /// The part for `hash`. A part's own table goes by the lowest bits and the highest seven, so these
    /// are others.
    fn part_of(&self, hash: u64) -> usize {
        let hash = (hash >> 32) as usize;
        let part = hash & self.low.saturating_sub(1);
        if part < self.split {
            hash & self.low.saturating_mul(2).saturating_sub(1)
        } else {
            part
        }
    }

    pub(super) fn find(&self, hash: u64, is_it: impl FnMut(&u32) -> bool) -> Option<&u32> {
        self.parts.get(self.part_of(hash))?.find(hash, is_it)
    }

    pub(super) fn find_mut(
        &mut self,
        hash: u64,
        is_it: impl FnMut(&u32) -> bool,
    ) -> Option<&mut u32> {
        let part = self.part_of(hash);
        self.parts.get_mut(part)?.find_mut(hash, is_it)
    }

    /// Adds a slot that is not there; `hash_of` knows the hashes of all that are.
    pub(super) fn insert(&mut self, hash: u64, slot: u32, hash_of: impl Fn(&u32) -> u64) {
        let part = self.part_of(hash);
        if let Some(part) = self.parts.get_mut(part) {
            part.insert_unique(hash, slot, &hash_of);
            self.len = self.len.saturating_add(1);
        }
        if self.len > self.parts.len().saturating_mul(PART_ENTRIES) {
            self.split(hash_of);
        }
    }

    fn split(&mut self, hash_of: impl Fn(&u32) -> u64) {
        let whole = self.parts.get_mut(self.split).map(std::mem::take);
        self.parts.push(HashTable::new());
        self.split = self.split.saturating_add(1);
        if self.split == self.low {
            (self.low, self.split) = (self.low.saturating_mul(2), 0);
        }
        for slot in whole.into_iter().flatten() {
            let hash = hash_of(&slot);
            let part = self.part_of(hash);
            if let Some(part) = self.parts.get_mut(part) {
                part.insert_unique(hash, slot, &hash_of);
            }
            #[cfg(test)]
            {
                self.moved += 1;
            }
        }
    }

    pub(super) fn remove(&mut self, hash: u64, is_it: impl FnMut(&u32) -> bool) {
        let part = self.part_of(hash);
        if let Some(part) = self.parts.get_mut(part)
            && let Ok(entry) = part.find_entry(hash, is_it)
        {
            entry.remove();
            self.len = self.len.saturating_sub(1);
        }
    }

    /// Makes room for `entries` if there are none.
    pub(super) fn reserve(&mut self, entries: usize) {
        if self.len > 0 {
            return;
        }
        let parts = entries.div_ceil(PART_ENTRIES).max(1);
        // One that is there already is small; the others grow no more.
        let part = || HashTable::with_capacity(PART_ENTRIES);
        self.parts.resize_with(parts, part);
        self.low = 1 << parts.ilog2();
        self.split = parts.saturating_sub(self.low);
    }

    /// Gives memory back that growing took and nothing needs.
    pub(super) fn shrink_to_fit(&mut self, hash_of: impl Fn(&u32) -> u64) {
        for part in &mut self.parts {
            part.shrink_to_fit(&hash_of);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hash(slot: u32) -> u64 {
        ahash::RandomState::with_seeds(1, 2, 3, 4).hash_one(slot)
    }

    fn find(slots: &Slots, slot: u32) -> Option<u32> {
        slots.find(hash(slot), |known| *known == slot).copied()
    }

    #[test]
    fn one_more_moves_few_and_all_are_found() {
        let mut slots = Slots::default();
        let mut most = 0;
        for slot in 0..200_000 {
            let before = slots.moved;
            slots.insert(hash(slot), slot, |slot| hash(*slot));
            most = most.max(slots.moved - before);
        }
        assert!(most <= 3 * PART_ENTRIES, "{most} moved at once");
        assert!(slots.moved < 4 * 200_000);
        let fullest = slots.parts.iter().map(HashTable::len).max();
        assert!(fullest < Some(3 * PART_ENTRIES), "{fullest:?}");
        assert!((0..200_000).all(|slot| find(&slots, slot) == Some(slot)));
        for slot in (0..200_000).step_by(2) {
            slots.remove(hash(slot), |known| *known == slot);
        }
        assert!((0..200_000).all(|slot| find(&slots, slot).is_some() == (slot % 2 == 1)));
        assert_eq!(slots.len, 100_000);
        slots.shrink_to_fit(|slot| hash(*slot));
        assert!((0..200_000).all(|slot| find(&slots, slot).is_some() == (slot % 2 == 1)));
    }

    #[test]
    fn with_room_made_before_none_is_moved() {
        for entries in [1, 255, 256, 257, 3 * 256, 5 * 256 + 1, 100_000] {
            let mut slots = Slots::default();
            slots.reserve(entries as usize);
            for slot in 0..entries {
                slots.insert(hash(slot), slot, |slot| hash(*slot));
            }
            assert_eq!(slots.moved, 0);
            assert!((0..entries).all(|slot| find(&slots, slot) == Some(slot)));
            // And it grows from there.
            for slot in entries..2 * entries + 1000 {
                slots.insert(hash(slot), slot, |slot| hash(*slot));
            }
            assert!((0..2 * entries + 1000).all(|slot| find(&slots, slot) == Some(slot)));
        }
    }
}
