//! The bytes of one stream: the older ones in blocks on disk, the recent ones
//! in memory.
//!
//! ```text
//! start            memory_start      flushed_end            end
//!   |-- blocks ----------|---- both ------|---- memory only ---|
//! ```
//!
//! Appends are copied into an open piece until it is full; then it is sealed
//! and never changes again, so that readers share it by reference, and the next
//! has room for as much again, up to [`PIECE_BYTES`]: nothing is copied again to
//! make room, and no more room is idle than was used since the last flush. An append as large as a
//! piece becomes one without a copy. A small open piece stays open when it is
//! written to a block: what a stream has to have beside a few bytes in memory
//! is small, too. Bytes that were written to blocks may stay in memory for as
//! long as there is room; those that were not never leave it. There is one index
//! entry for a block, not for an append.
//!
//! Offsets are the stream's own. What a fork inherits is not in here: its
//! history begins where it left its source.

use std::collections::VecDeque;

use bytes::Bytes;
use smallvec::SmallVec;

use crate::{
    base::limits::{BLOCK_BYTES_MAX, KIB, MIB, PIECE_BYTES},
    protocol::incarnation::Incarnation,
    shard::{
        evictable::Ticket,
        run::{BlockRun, Run},
    },
    storage::segment::{BlockKey, BlockKind, Holdings, NewBlock, Place},
};

/// Most bytes that are taken at once to be written to blocks, in whole blocks: to copy them, and to
/// take their checksums, is one turn of the core.
const FLUSHED_BYTES_MAX: u64 = 2 * MIB as u64;

/// An open piece grows in place up to this many bytes: copying them costs less than one piece more.
const GROWN_BYTES_MAX: usize = 4 * KIB;

/// A stream's bytes from [`start`](Self::start) to [`end`](Self::end).
#[derive(Debug, Default)]
pub struct History {
    /// Most streams have one or none.
    blocks: SmallVec<[Block; 1]>,
    /// `None` while every byte is in blocks only: most streams are idle.
    recent: Option<Box<Recent>>,
    end: u64,
}

/// A block, and the offset of its first byte. Blocks follow one another without gaps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block {
    /// The offset of its first byte.
    pub start: u64,
    /// Where it is.
    pub place: Place,
}

impl Block {
    /// The offset after its last byte.
    #[must_use]
    pub fn end(&self) -> u64 {
        self.start.saturating_add(u64::from(self.place.len))
    }

    /// What its header says.
    #[must_use]
    pub fn key(&self, owner: Incarnation) -> BlockKey {
        BlockKey {
            kind: BlockKind::Data,
            owner: owner.0,
            start: self.start,
        }
    }
}

/// What is in memory: sealed pieces, then the open one.
#[derive(Debug, Default)]
struct Recent {
    sealed: VecDeque<Piece>,
    open: Vec<u8>,
    open_start: u64,
    /// What was appended since this offset decides how large the next piece is.
    grown_from: u64,
    /// Its place among what may leave memory.
    ticket: Option<Ticket>,
}

#[derive(Clone, Debug)]
struct Piece {
    start: u64,
    bytes: Bytes,
}

impl Piece {
    fn end(&self) -> u64 {
        self.start.saturating_add(self.bytes.len() as u64)
    }
}

impl Recent {
    fn start(&self) -> u64 {
        self.sealed
            .front()
            .map_or(self.open_start, |piece| piece.start)
    }

    fn seal(&mut self) {
        if self.open.is_empty() {
            return;
        }
        let mut open = std::mem::take(&mut self.open);
        // A piece may stay for long: what was only room to grow is given back.
        open.shrink_to_fit();
        self.push(Bytes::from(open));
    }

    /// Makes room for `len` bytes, fewer than [`PIECE_BYTES`], in the open piece: in this one, or in
    /// another.
    fn make_room(&mut self, len: usize) {
        let filled = self.open.len();
        let wanted = filled.saturating_add(len);
        if wanted <= self.open.capacity().max(GROWN_BYTES_MAX) {
            return;
        }
        self.seal();
        let grown = self.open_start.saturating_sub(self.grown_from);
        let room = grown.min(PIECE_BYTES as u64).max(len as u64);
        self.open.reserve_exact(room as usize);
    }

    /// Lets go of what the open piece has before `offset`.
    fn cut_open(&mut self, offset: u64) {
        let cut = offset.saturating_sub(self.open_start) as usize;
        let cut = cut.min(self.open.len());
        self.open.drain(..cut);
        self.open_start = self.open_start.saturating_add(cut as u64);
    }

    fn push(&mut self, bytes: Bytes) {
        let start = self.open_start;
        self.open_start = start.saturating_add(bytes.len() as u64);
        self.sealed.push_back(Piece { start, bytes });
    }
}

impl History {
    /// An empty history whose first byte will be at `start`.
    #[must_use]
    pub fn starting_at(start: u64) -> Self {
        Self {
            blocks: SmallVec::new(),
            recent: None,
            end: start,
        }
    }

    /// A history that is in `blocks`, which follow one another and end at `end`.
    #[must_use]
    pub fn of_blocks(blocks: &[Block], end: u64) -> Self {
        Self {
            blocks: SmallVec::from_slice(blocks),
            recent: None,
            end,
        }
    }

    /// The offset of the first byte kept.
    #[must_use]
    pub fn start(&self) -> u64 {
        self.blocks
            .first()
            .map_or_else(|| self.memory_start(), |block| block.start)
    }

    /// The offset of the first byte in memory; [`end`](Self::end) if there is none.
    #[must_use]
    pub fn memory_start(&self) -> u64 {
        self.recent
            .as_ref()
            .map_or(self.end, |recent| recent.start())
    }

    /// The offset after the last byte that is in a block.
    #[must_use]
    pub fn flushed_end(&self) -> u64 {
        self.blocks
            .last()
            .map_or_else(|| self.memory_start(), Block::end)
    }

    /// The offset after the last byte.
    #[must_use]
    pub fn end(&self) -> u64 {
        self.end
    }

    /// Bytes that are in memory alone.
    #[must_use]
    pub fn unflushed(&self) -> u64 {
        self.end.saturating_sub(self.flushed_end())
    }

    /// Bytes in memory.
    #[must_use]
    pub fn memory_bytes(&self) -> u64 {
        self.end.saturating_sub(self.memory_start())
    }

    /// The blocks, in order.
    #[must_use]
    pub fn blocks(&self) -> &[Block] {
        &self.blocks
    }

    /// Appends `bytes` at the end. Copies small ones, shares those of a piece's size.
    pub fn append(&mut self, bytes: Bytes) {
        if bytes.is_empty() {
            return;
        }
        let end = self.end;
        self.end = end.saturating_add(bytes.len() as u64);
        let recent = self.recent.get_or_insert_with(|| {
            Box::new(Recent {
                open_start: end,
                grown_from: end,
                ..Recent::default()
            })
        });
        if bytes.len() >= PIECE_BYTES {
            recent.seal();
            recent.push(bytes);
            return;
        }
        recent.make_room(bytes.len());
        recent.open.extend_from_slice(&bytes);
    }

    /// Where the bytes of `[start, end)` are, clamped to what is kept. Sealed pieces are shared,
    /// what is in the open one is copied (at most [`PIECE_BYTES`]). Memory comes before blocks.
    #[must_use]
    pub fn runs(&self, owner: Incarnation, start: u64, end: u64, held: &Holdings) -> Vec<Run> {
        let start = start.max(self.start());
        let end = end.min(self.end);
        let mut runs = Vec::new();
        let memory_start = self.memory_start();
        let cold_end = end.min(memory_start);
        if start < cold_end {
            let first = self.blocks.partition_point(|block| block.end() <= start);
            for block in self.blocks.iter().skip(first) {
                if block.start >= cold_end {
                    break;
                }
                // Every block that an index names was adopted by the holdings.
                let Some(segment) = held.segment(block.place.segment) else {
                    continue;
                };
                runs.push(Run::Block(BlockRun {
                    segment: segment.clone(),
                    place: block.place,
                    key: block.key(owner),
                    from: start.saturating_sub(block.start) as u32,
                    to: cold_end.min(block.end()).saturating_sub(block.start) as u32,
                }));
            }
        }
        let pieces = self.memory(start.max(memory_start), end);
        runs.extend(pieces.into_iter().map(Run::Memory));
        runs
    }

    /// The pieces of `[start, end)` that are in memory.
    #[must_use]
    pub fn memory(&self, start: u64, end: u64) -> Vec<Bytes> {
        let mut pieces = Vec::new();
        let Some(recent) = &self.recent else {
            return pieces;
        };
        let start = start.max(recent.start());
        let end = end.min(self.end);
        if start >= end {
            return pieces;
        }
        let first = recent.sealed.partition_point(|piece| piece.end() <= start);
        for piece in recent.sealed.range(first..) {
            if piece.start >= end {
                break;
            }
            let from = start.saturating_sub(piece.start) as usize;
            let to = end.min(piece.end()).saturating_sub(piece.start) as usize;
            pieces.push(piece.bytes.slice(from..to));
        }
        if end > recent.open_start {
            let from = start.saturating_sub(recent.open_start) as usize;
            let to = end.saturating_sub(recent.open_start) as usize;
            pieces.push(Bytes::copy_from_slice(
                recent.open.get(from..to).unwrap_or_default(),
            ));
        }
        pieces
    }

    /// The bytes in memory around `offset`, with the offset of the first; `None` if it is not in
    /// memory.
    #[must_use]
    pub fn memory_at(&self, offset: u64) -> Option<(u64, &[u8])> {
        let recent = self.recent.as_ref()?;
        if offset < recent.start() || offset >= self.end {
            return None;
        }
        if offset >= recent.open_start {
            return Some((recent.open_start, &recent.open));
        }
        let index = recent.sealed.partition_point(|piece| piece.end() <= offset);
        recent
            .sealed
            .get(index)
            .map(|piece| (piece.start, &piece.bytes[..]))
    }

    /// The block that holds `offset`.
    #[must_use]
    pub fn block_at(&self, offset: u64) -> Option<&Block> {
        let index = self.blocks.partition_point(|block| block.end() <= offset);
        self.blocks.get(index).filter(|block| block.start <= offset)
    }

    /// The bytes that no block holds yet, by reference, at most [`FLUSHED_BYTES_MAX`] of them: the open
    /// piece is sealed for it, unless it is small. With `whole_blocks` the last ones stay that would not fill a block.
    pub fn unflushed_pieces(&mut self, whole_blocks: bool) -> Vec<Bytes> {
        let start = self.flushed_end();
        let mut end = self.end.min(start.saturating_add(FLUSHED_BYTES_MAX));
        if whole_blocks {
            const BLOCK: u64 = BLOCK_BYTES_MAX as u64;
            let rest = end.saturating_sub(start) % BLOCK;
            end = end.saturating_sub(rest);
        }
        let Some(recent) = &mut self.recent else {
            return Vec::new();
        };
        if end > recent.open_start {
            // A small one is copied instead: sealed, it would cost more memory than its bytes.
            if recent.open.capacity() > GROWN_BYTES_MAX {
                recent.seal();
            }
            recent.grown_from = recent.open_start;
        }
        self.memory(start, end)
    }

    /// Takes note that the bytes up to the end of `blocks` are in them now. They replace the blocks
    /// from the first one's start on, which are returned.
    pub fn install(&mut self, blocks: Vec<Block>) -> Vec<Place> {
        let Some(first) = blocks.first() else {
            return Vec::new();
        };
        let keep = self
            .blocks
            .partition_point(|block| block.start < first.start);
        let replaced = self.blocks.drain(keep..).map(|block| block.place).collect();
        self.blocks.extend(blocks);
        replaced
    }

    /// Moves the block that starts at `start` from `from` to `to`; false if it is not there.
    pub fn relocate(&mut self, start: u64, from: Place, to: Place) -> bool {
        let found = self
            .blocks
            .binary_search_by_key(&start, |block| block.start)
            .ok()
            .and_then(|index| self.blocks.get_mut(index))
            .filter(|block| block.place == from);
        found.map(|block| block.place = to).is_some()
    }

    /// Its place among what may leave memory.
    #[must_use]
    pub fn ticket(&self) -> Option<Ticket> {
        self.recent.as_ref()?.ticket
    }

    /// Gives it another; false if it has nothing in memory.
    pub fn set_ticket(&mut self, ticket: Option<Ticket>) -> bool {
        let recent = self.recent.as_mut();
        recent.map(|recent| recent.ticket = ticket).is_some()
    }

    /// Lets go, in memory, of what lies before `offset` and is in blocks: in whole pieces that are
    /// sealed, to the byte in the open one. Returns how many bytes that was.
    pub fn evict_before(&mut self, offset: u64) -> u64 {
        let before = self.memory_start();
        let offset = offset.min(self.flushed_end());
        let Some(recent) = &mut self.recent else {
            return 0;
        };
        while recent
            .sealed
            .front()
            .is_some_and(|piece| piece.end() <= offset)
        {
            recent.sealed.pop_front();
        }
        if recent.sealed.is_empty() {
            recent.cut_open(offset);
        }
        if recent.sealed.is_empty() && recent.open.is_empty() {
            self.recent = None;
        }
        self.memory_start().saturating_sub(before)
    }

    /// Lets go of what lies before `offset`: in memory to the byte, on disk in whole blocks. Returns
    /// how many bytes of memory that was, and the blocks.
    pub fn release_before(&mut self, offset: u64) -> (u64, Vec<Place>) {
        let gone = self.blocks.partition_point(|block| block.end() <= offset);
        let places = self.blocks.drain(..gone).map(|block| block.place).collect();
        let before = self.memory_start();
        let Some(recent) = &mut self.recent else {
            return (0, places);
        };
        while recent
            .sealed
            .front()
            .is_some_and(|piece| piece.end() <= offset)
        {
            recent.sealed.pop_front();
        }
        if let Some(front) = recent.sealed.front_mut() {
            if front.start < offset {
                // The rest of the piece stays in memory until its last byte goes.
                let gone = offset.saturating_sub(front.start);
                front.bytes = front.bytes.slice(gone as usize..);
                front.start = offset;
            }
        } else {
            recent.cut_open(offset);
        }
        (self.memory_start().saturating_sub(before), places)
    }

    /// Bytes kept.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.end.saturating_sub(self.start())
    }

    /// Whether nothing is kept.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Cuts the bytes that begin at `start` into blocks of `owner`.
#[must_use]
pub fn into_blocks(owner: Incarnation, start: u64, pieces: Vec<Bytes>) -> Vec<NewBlock> {
    let mut blocks: Vec<NewBlock> = Vec::new();
    let mut at = start;
    let mut room = 0;
    for mut piece in pieces {
        while !piece.is_empty() {
            if room == 0 {
                room = BLOCK_BYTES_MAX;
                let key = BlockKey {
                    kind: BlockKind::Data,
                    owner: owner.0,
                    start: at,
                };
                blocks.push(NewBlock {
                    key,
                    pieces: Vec::new(),
                });
            }
            let part = piece.split_to(piece.len().min(room));
            room = room.saturating_sub(part.len());
            at = at.saturating_add(part.len() as u64);
            if let Some(block) = blocks.last_mut() {
                block.pieces.push(part);
            }
        }
    }
    blocks
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::segment::SegmentId;

    const OWNER: Incarnation = Incarnation(7);

    fn gather(pieces: &[Bytes]) -> Vec<u8> {
        pieces.concat()
    }

    fn byte_at(history: &History, offset: u64) -> Option<u8> {
        let (start, bytes) = history.memory_at(offset)?;
        bytes.get((offset - start) as usize).copied()
    }

    fn block(start: u64, len: u32) -> Block {
        let place = Place {
            segment: SegmentId(1),
            offset: 4096 + start as u32,
            len,
        };
        Block { start, place }
    }

    /// What a million idle streams have in memory beside their few bytes is what counts.
    #[test]
    fn a_small_open_piece_stays_open_when_it_is_flushed_and_leaves_memory_to_the_byte() {
        let mut history = History::starting_at(0);
        history.append(Bytes::from_static(b"first"));
        assert_eq!(gather(&history.unflushed_pieces(false)), b"first");
        history.append(Bytes::from_static(b"second"));
        history.install(vec![block(0, 5)]);
        let recent = history.recent.as_ref().unwrap();
        assert_eq!(
            (recent.sealed.len(), &recent.open[..]),
            (0, &b"firstsecond"[..])
        );
        assert_eq!(history.evict_before(11), 5, "no block has the rest");
        assert_eq!(gather(&history.memory(0, 11)), b"second");
        assert_eq!((history.memory_start(), history.unflushed()), (5, 6));
        assert_eq!(gather(&history.unflushed_pieces(false)), b"second");
        history.install(vec![block(0, 11)]);
        assert_eq!(history.evict_before(11), 6);
        assert!(history.recent.is_none());
        assert_eq!((history.start(), history.end()), (0, 11));
    }

    #[test]
    fn reads_are_exact_across_pieces() {
        let mut history = History::starting_at(100);
        let mut model = Vec::new();
        for (index, len) in [10, PIECE_BYTES - 5, 7, PIECE_BYTES, 3, PIECE_BYTES * 2, 1]
            .iter()
            .enumerate()
        {
            let bytes = vec![index as u8 + 1; *len];
            model.extend_from_slice(&bytes);
            history.append(bytes.into());
        }
        assert_eq!(
            (history.start(), history.end()),
            (100, 100 + model.len() as u64)
        );
        let marks = [
            0,
            1,
            9,
            10,
            11,
            PIECE_BYTES,
            PIECE_BYTES + 5,
            PIECE_BYTES + 12,
            model.len() - 1,
            model.len(),
        ];
        for &from in &marks {
            for &to in &marks {
                let got = gather(&history.memory(100 + from as u64, 100 + to as u64));
                assert_eq!(got, model.get(from..to).unwrap_or_default(), "{from}..{to}");
            }
            assert_eq!(
                byte_at(&history, 100 + from as u64),
                model.get(from).copied()
            );
        }
    }

    #[test]
    fn room_is_made_without_copying_and_no_more_is_idle_than_is_used() {
        for len in [1, 100, 256, 4000, 5000, 100_000, PIECE_BYTES - 1] {
            let mut history = History::starting_at(0);
            let mut written = 0;
            while written < 4 * PIECE_BYTES {
                history.append(Bytes::from(vec![7; len]));
                written += len;
                let recent = history.recent.as_ref().unwrap();
                let (used, room) = (recent.open.len(), recent.open.capacity());
                assert!(room <= PIECE_BYTES, "{len}: room for {room}");
                assert!(room - used <= written.max(8), "{len}: {used} of {room}");
            }
            let recent = history.recent.as_ref().unwrap();
            assert!(recent.sealed.len() <= 4 * PIECE_BYTES / len + 1);
            if len <= GROWN_BYTES_MAX {
                assert!(recent.sealed.len() <= 12, "{len}: {}", recent.sealed.len());
            }
            // Only the first may have moved while it grew.
            let second = recent.sealed.get(1).unwrap().bytes.as_ptr();
            let pieces = history.memory(0, history.end());
            assert_eq!(pieces[1].as_ptr(), second);
            assert_eq!(gather(&pieces), vec![7; written]);
        }
    }

    #[test]
    fn released_bytes_are_gone_and_the_rest_stays() {
        let mut history = History::starting_at(0);
        history.append(Bytes::from(vec![b'x'; PIECE_BYTES]));
        history.append(Bytes::from_static(b"4567"));
        let piece = PIECE_BYTES as u64;
        assert_eq!(history.release_before(2), (2, vec![]));
        assert_eq!(history.memory(0, u64::MAX).concat().len(), PIECE_BYTES + 2);
        assert_eq!(history.release_before(piece + 2), (piece, vec![]));
        assert_eq!(gather(&history.memory(0, u64::MAX)), b"67");
        assert_eq!(byte_at(&history, piece + 1), None);
        assert_eq!(history.release_before(u64::MAX), (2, vec![]));
        assert_eq!((history.start(), history.end()), (piece + 4, piece + 4));
    }

    #[test]
    fn what_is_in_blocks_may_leave_memory_and_what_is_not_never_does() {
        let mut history = History::starting_at(0);
        history.append(Bytes::from_static(b"0123456789"));
        assert_eq!(history.evict_before(10), 0);
        assert_eq!(gather(&history.unflushed_pieces(false)), b"0123456789");
        assert_eq!(history.install(vec![block(0, 4), block(4, 6)]), vec![]);
        history.append(Bytes::from_static(b"abc"));
        assert_eq!((history.flushed_end(), history.unflushed()), (10, 3));
        assert_eq!(gather(&history.unflushed_pieces(false)), b"abc");
        assert_eq!(history.evict_before(13), 10);
        assert_eq!((history.memory_start(), history.memory_bytes()), (10, 3));
        assert_eq!(history.block_at(3), Some(&block(0, 4)));
        assert_eq!(history.block_at(4), Some(&block(4, 6)));
        assert_eq!(history.block_at(10), None);
        // A block is let go with its last byte.
        assert_eq!(history.release_before(7), (0, vec![block(0, 4).place]));
        assert_eq!(history.start(), 4);
    }

    #[test]
    fn small_blocks_at_the_end_are_replaced() {
        let mut history = History::of_blocks(&[block(0, 4), block(4, 6)], 10);
        history.append(Bytes::from_static(b"abc"));
        let replaced = history.install(vec![block(4, 9)]);
        assert_eq!(replaced, vec![block(4, 6).place]);
        assert_eq!(history.blocks(), &[block(0, 4), block(4, 9)]);
        assert_eq!(history.unflushed(), 0);
        let moved = Place {
            segment: SegmentId(2),
            ..block(4, 9).place
        };
        assert!(!history.relocate(4, block(4, 6).place, moved));
        assert!(history.relocate(4, block(4, 9).place, moved));
        assert_eq!(history.block_at(12).map(|block| block.place), Some(moved));
    }

    #[test]
    fn whole_blocks_leave_the_rest_in_memory() {
        let mut history = History::starting_at(0);
        history.append(Bytes::from(vec![1; BLOCK_BYTES_MAX + 5]));
        let pieces = history.unflushed_pieces(true);
        assert_eq!(gather(&pieces).len(), BLOCK_BYTES_MAX);
        let blocks = into_blocks(OWNER, 0, history.unflushed_pieces(false));
        let lens: Vec<usize> = blocks
            .iter()
            .map(|block| block.pieces.iter().map(Bytes::len).sum())
            .collect();
        assert_eq!(lens, [BLOCK_BYTES_MAX, 5]);
        assert_eq!(blocks[1].key.start, BLOCK_BYTES_MAX as u64);
    }
}
