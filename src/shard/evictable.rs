//! What may leave memory, oldest first: streams with bytes in memory that are in
//! blocks, too. A stream is in it once, however often it was flushed since, and
//! its history says by which [`Ticket`]; one that is gone stays in it only until
//! the next pass ([`Evictable::tidy`]), which is due when most may be of that kind.

use std::num::NonZeroU64;

use crate::{
    base::queue::Queue,
    shard::{streams::Streams, tables::Tables},
};

/// Passes are not worth their while below this many entries.
const TIDY_ENTRIES_MIN: usize = 1024;

/// Which entry of [`Evictable`] is a stream's.
pub type Ticket = NonZeroU64;

#[derive(Clone, Copy, Debug)]
struct Entry {
    slot: u32,
    ticket: Ticket,
    /// Up to which offset.
    end: u64,
}

impl Entry {
    fn is_live(&self, streams: &Streams) -> bool {
        let stream = streams.get(self.slot as usize);
        stream.is_some_and(|stream| stream.history.ticket() == Some(self.ticket))
    }
}

/// Streams with bytes that may leave memory.
#[derive(Debug, Default)]
pub(super) struct Evictable {
    entries: Queue<Entry>,
    /// Older ones, which the present pass has kept.
    kept: Queue<Entry>,
    is_tidied: bool,
    /// Entries that the last pass kept.
    kept_last: usize,
    tickets: u64,
}

impl Evictable {
    fn pop_front(&mut self) -> Option<Entry> {
        self.kept.pop_front().or_else(|| self.entries.pop_front())
    }

    fn len(&self) -> usize {
        self.entries.len().saturating_add(self.kept.len())
    }

    /// Looks at `entries_max` entries at most, if there are twice as many as the last pass kept: those
    /// of streams that are gone go. True when more are to be looked at.
    fn tidy(&mut self, streams: &Streams, entries_max: usize) -> bool {
        if !self.is_tidied {
            let due = self.kept_last.saturating_mul(2).max(TIDY_ENTRIES_MIN);
            if self.len() <= due {
                return false;
            }
            self.is_tidied = true;
        }
        for _ in 0..entries_max {
            let Some(entry) = self.entries.pop_front() else {
                self.entries = std::mem::take(&mut self.kept);
                self.kept_last = self.entries.len();
                self.is_tidied = false;
                return false;
            };
            if entry.is_live(streams) {
                self.kept.push_back(entry);
            }
        }
        true
    }
}

impl Tables {
    /// Takes note that a stream's bytes before `end` are in blocks.
    pub(super) fn note_evictable(&mut self, slot: usize, end: u64) {
        let Some(history) = self.streams.get_mut(slot).map(|stream| &mut stream.history) else {
            return;
        };
        if history.ticket().is_some() {
            return;
        }
        let evictable = &mut self.evictable;
        let number = evictable.tickets.saturating_add(1);
        let (Some(ticket), Ok(slot)) = (Ticket::new(number), u32::try_from(slot)) else {
            return;
        };
        if history.set_ticket(Some(ticket)) {
            evictable.tickets = number;
            evictable.entries.push_back(Entry { slot, ticket, end });
        }
    }

    /// Lets bytes that are in blocks leave memory, oldest first, until no more than `bytes_max` are
    /// charged or none is left.
    pub(super) fn evict_to(&mut self, bytes_max: u64) {
        while self.memory_bytes > bytes_max {
            let Some(entry) = self.evictable.pop_front() else {
                return;
            };
            if !entry.is_live(&self.streams) {
                continue;
            }
            let slot = entry.slot as usize;
            let Some(stream) = self.streams.get_mut(slot) else {
                continue;
            };
            let history = &mut stream.history;
            let flushed_end = history.flushed_end();
            let mut freed = history.evict_before(entry.end);
            if freed == 0 {
                freed = history.evict_before(flushed_end);
            }
            // What was written to blocks since then comes after what others had there before it.
            let has_more = freed > 0 && history.memory_start() < flushed_end;
            if has_more {
                let end = flushed_end;
                self.evictable.entries.push_back(Entry { end, ..entry });
            } else {
                history.set_ticket(None);
            }
            self.discharge(slot, freed);
        }
    }

    /// A step of what keeps the list of what may leave memory as short as what is in memory; true when
    /// more is due.
    pub(super) fn tidy_evictable(&mut self, entries_max: usize) -> bool {
        self.evictable.tidy(&self.streams, entries_max)
    }

    /// Entries in that list.
    #[cfg(test)]
    pub(super) fn evictable_len(&self) -> usize {
        self.evictable.len()
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::{
        protocol::incarnation::Allocator,
        shard::{history::Block, streams::tests::stream},
        storage::{
            blob::Graveyard,
            segment::{Place, SegmentId},
        },
    };

    const BYTES: u64 = 3;

    fn tables() -> Tables {
        Tables::new(Allocator::new([0; 16], 0), Graveyard::default())
    }

    fn insert(tables: &mut Tables, number: u64) -> usize {
        tables.insert(stream(number))
    }

    /// A little more of it is written to blocks.
    fn flush(tables: &mut Tables, slot: usize) {
        let history = &mut tables.streams.get_mut(slot).unwrap().history;
        history.append(Bytes::from_static(b"abc"));
        let place = Place {
            segment: SegmentId(1),
            offset: 4096,
            len: history.end() as u32,
        };
        history.install(vec![Block { start: 0, place }]);
        let end = history.end();
        tables.charge(slot, BYTES);
        tables.note_evictable(slot, end);
    }

    #[test]
    fn a_stream_is_in_it_once_and_leaves_memory_whole() {
        let mut tables = tables();
        let slots: Vec<usize> = (0..10).map(|number| insert(&mut tables, number)).collect();
        let idle = tables.memory_bytes;
        for _ in 0..100 {
            slots.iter().for_each(|slot| flush(&mut tables, *slot));
        }
        assert_eq!(tables.evictable_len(), slots.len());
        // The oldest first, and of each what was there first.
        let full = tables.memory_bytes;
        tables.evict_to(full - 1);
        assert_eq!(tables.memory_bytes, full - BYTES);
        assert_eq!(tables.evictable_len(), slots.len());
        let first =
            |tables: &Tables, slot| tables.streams.get(slot).unwrap().history.memory_start();
        assert_eq!((first(&tables, slots[0]), first(&tables, slots[1])), (3, 0));
        tables.evict_to(0);
        assert_eq!(tables.memory_bytes, idle);
        assert_eq!(tables.evictable_len(), 0);
        flush(&mut tables, slots[3]);
        assert_eq!(tables.evictable_len(), 1);
    }

    #[test]
    fn what_is_gone_leaves_it_in_steps() {
        const STREAMS: u64 = 10 * TIDY_ENTRIES_MIN as u64;
        let mut tables = tables();
        for round in 0..3 {
            for number in 0..STREAMS {
                let slot = insert(&mut tables, round * STREAMS + number);
                flush(&mut tables, slot);
                if number > 0 {
                    tables.remove(slot);
                }
            }
            let mut steps = 0;
            while tables.tidy_evictable(256) {
                steps += 1;
            }
            assert_eq!(steps, STREAMS / 256, "nothing is looked at twice");
            assert_eq!(tables.evictable_len() as u64, round + 1);
        }
        assert!(!tables.tidy_evictable(256), "none is due");
        let idle = 3 * crate::shard::stream::STREAM_OVERHEAD_BYTES;
        tables.evict_to(0);
        assert_eq!(tables.memory_bytes, idle);
    }
}
