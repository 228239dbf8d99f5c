//! Looking at stored bytes to decide: is this offset between two messages,
//! where does a message end.
//!
//! A decision is taken in one turn of the owner and cannot wait for a disk. If
//! the bytes it needs are not in memory, the lookup notes which ([`Miss`]) and
//! the decision is given up; whoever asked loads them and asks again, with the
//! bytes ([`Warm`](super::request::Warm)). The cache holds what was brought in
//! for this; it is bounded, and holds more than one decision can need.

use std::{cell::RefCell, ops::Deref};

use bytes::Bytes;
use lru::LruCache;

use crate::{
    base::limits::{BLOCK_BYTES_MAX, KIB, LOOKUP_CACHE_BYTES_MAX},
    protocol::incarnation::Incarnation,
    shard::{owner::Shard, run::Run, stream::Stream, tables::Tables},
};

/// Bytes that a decision needs and that are not in memory.
#[derive(Clone, Debug)]
pub struct Miss {
    /// The stream that is looked at.
    pub incarnation: Incarnation,
    /// The offset of the first of them.
    pub start: u64,
    /// Where they are.
    pub run: Run,
}

/// What a decision lacks.
#[derive(Clone, Debug)]
pub enum Lack {
    /// Bytes that are not in memory.
    Bytes(Miss),
    /// Nothing but time: it has had its turn, and others come first.
    Turn,
}

/// Bytes in which messages are counted in one turn: half a millisecond when they are as short as
/// can be.
const COUNTED_BYTES_MAX: u64 = 128 * KIB as u64;

/// Blocks that were brought in to be looked at, by stream and offset.
#[derive(Debug)]
pub(super) struct Cache {
    blocks: LruCache<(Incarnation, u64), Bytes, ahash::RandomState>,
    bytes: usize,
}

impl Default for Cache {
    fn default() -> Self {
        Self {
            // Bounded by its bytes.
            blocks: LruCache::unbounded_with_hasher(ahash::RandomState::default()),
            bytes: 0,
        }
    }
}

impl Cache {
    pub(super) fn insert(&mut self, incarnation: Incarnation, start: u64, bytes: Bytes) {
        self.bytes = self.bytes.saturating_add(bytes.len());
        if let Some((_, old)) = self.blocks.push((incarnation, start), bytes) {
            self.bytes = self.bytes.saturating_sub(old.len());
        }
        while self.bytes > LOOKUP_CACHE_BYTES_MAX {
            let Some((_, old)) = self.blocks.pop_lru() else {
                break;
            };
            self.bytes = self.bytes.saturating_sub(old.len());
        }
    }

    fn get(&mut self, incarnation: Incarnation, start: u64) -> Option<Bytes> {
        self.blocks.get(&(incarnation, start)).cloned()
    }
}

/// One stream, to be looked at.
pub(super) struct Lookup<'a> {
    stream: &'a Stream,
    tables: &'a Tables,
    cache: &'a RefCell<Cache>,
    lack: &'a RefCell<Option<Lack>>,
}

/// Bytes found, and the offset of the first.
enum Window<'a> {
    Memory(&'a [u8]),
    Cached(Bytes),
}

impl Deref for Window<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Memory(bytes) => bytes,
            Self::Cached(bytes) => bytes,
        }
    }
}

impl Shard {
    /// Looks at `stream`, which is in `tables`.
    pub(super) fn look_at<'a>(&'a self, tables: &'a Tables, stream: &'a Stream) -> Lookup<'a> {
        Lookup {
            stream,
            tables,
            cache: &self.cache,
            lack: &self.lack,
        }
    }

    /// Whether the last lookup lacked something: what was decided on it is void.
    pub(super) fn has_missed(&self) -> bool {
        self.lack.borrow().is_some()
    }
}

impl Lookup<'_> {
    /// The bytes around `offset`, which the stream has, with the offset of the first.
    fn window_at(&self, offset: u64) -> Option<(u64, Window<'_>)> {
        let history = &self.stream.history;
        if let Some((start, bytes)) = history.memory_at(offset) {
            return Some((start, Window::Memory(bytes)));
        }
        let incarnation = self.stream.staged.incarnation;
        let (start, end) = match (history.block_at(offset), self.stream.staged.origin()) {
            (Some(block), _) => (block.start, block.end()),
            (None, Some(origin)) if (origin.start..origin.offset).contains(&offset) => {
                const BLOCK: u64 = BLOCK_BYTES_MAX as u64;
                let start = offset.saturating_sub(offset % BLOCK);
                let end = start.saturating_add(BLOCK);
                (start.max(origin.start), end.min(origin.offset))
            }
            _ => return None,
        };
        // A block that was written again with what follows it begins where the old one began and is
        // longer, and of one that was partly in memory only the rest was brought in.
        let cached = self.cache.borrow_mut().get(incarnation, start);
        if let Some(bytes) = cached.filter(|bytes| offset < end_of(start, bytes)) {
            return Some((start, Window::Cached(bytes)));
        }
        let run = self
            .stream
            .runs(start, end, &self.tables.held)
            .into_iter()
            .next()?;
        *self.lack.borrow_mut() = Some(Lack::Bytes(Miss {
            incarnation,
            start,
            run,
        }));
        None
    }

    /// The byte at `offset`, if the stream has it.
    pub(super) fn byte_at(&self, offset: u64) -> Option<u8> {
        let (start, bytes) = self.window_at(offset)?;
        bytes.get(offset.checked_sub(start)? as usize).copied()
    }

    /// Whether `offset` lies between two messages of a JSON stream, or at its first byte
    /// (extensions, JSON Message Text).
    pub(super) fn is_boundary(&self, offset: u64) -> bool {
        let state = &self.stream.staged;
        // Appends are whole messages, so every tail there was is a boundary.
        offset == 0
            || offset == state.retained
            || offset == state.tail
            || offset == self.stream.visible.tail
            || self.byte_at(offset.saturating_sub(1)) == Some(b'\n')
    }

    /// The last message boundary (an offset after an LF) in `(from, limit]`.
    pub(super) fn boundary_at_or_before(&self, from: u64, limit: u64) -> Option<u64> {
        let mut end = limit.min(self.stream.history.end());
        while end > from {
            let (start, bytes) = self.window_at(end.saturating_sub(1))?;
            let low = from.max(start);
            let window = part(start, &bytes, low, end)?;
            if let Some(at) = memchr::memrchr(b'\n', window) {
                return Some(low.saturating_add(at as u64).saturating_add(1));
            }
            end = low;
        }
        None
    }

    /// The first message boundary after `from`, at most `end`.
    pub(super) fn boundary_after(&self, from: u64, end: u64) -> Option<u64> {
        let mut at = from;
        let end = end.min(self.stream.history.end());
        while at < end {
            let (start, bytes) = self.window_at(at)?;
            let high = end.min(end_of(start, &bytes));
            let window = part(start, &bytes, at, high)?;
            if let Some(found) = memchr::memchr(b'\n', window) {
                return Some(at.saturating_add(found as u64).saturating_add(1));
            }
            at = high;
        }
        None
    }

    /// Passes over up to `count` messages from the boundary `from`: where it came, and how many are
    /// left. Some are left when something is lacking; `None` when there are not so many before `end`.
    pub(super) fn pass_messages(&self, from: u64, count: u64, end: u64) -> Option<(u64, u64)> {
        let end = end.min(self.stream.history.end());
        let (mut boundary, mut left, mut at) = (from, count, from);
        while left > 0 {
            if at >= end {
                return None;
            }
            // A message that is longer is passed over all the same.
            let looked_at = at.saturating_sub(from);
            if looked_at >= COUNTED_BYTES_MAX && boundary > from {
                *self.lack.borrow_mut() = Some(Lack::Turn);
                break;
            }
            let Some((start, bytes)) = self.window_at(at) else {
                break;
            };
            let high = end
                .min(end_of(start, &bytes))
                .min(at.saturating_add(COUNTED_BYTES_MAX));
            for line_feed in memchr::memchr_iter(b'\n', part(start, &bytes, at, high)?) {
                boundary = at.saturating_add(line_feed as u64).saturating_add(1);
                left = left.saturating_sub(1);
                if left == 0 {
                    break;
                }
            }
            at = high;
        }
        Some((boundary, left))
    }
}

/// The offset after the last of `bytes`, the first of which is at `start`.
fn end_of(start: u64, bytes: &[u8]) -> u64 {
    start.saturating_add(bytes.len() as u64)
}

/// The part in `[from, to)` of `bytes`, the first of which is at `start`; `None` if not all of it is
/// among them.
fn part(start: u64, bytes: &[u8], from: u64, to: u64) -> Option<&[u8]> {
    let (from, to) = (from.checked_sub(start)?, to.checked_sub(start)?);
    bytes.get(from as usize..to as usize)
}
