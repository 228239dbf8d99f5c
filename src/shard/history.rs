//! The bytes of one stream that are in memory.
//!
//! Appends are copied into an open piece until it is full; then it is sealed
//! and never changes again, so that readers share it by reference. An append
//! as large as a piece becomes one without a copy, and so do the bytes a fork
//! inherits. Offsets are the stream's own.

use std::collections::VecDeque;

use bytes::Bytes;

use crate::base::limits::PIECE_BYTES;

/// A stream's bytes from [`start`](Self::start) to [`end`](Self::end).
#[derive(Debug, Default)]
pub struct History {
    sealed: VecDeque<Piece>,
    open: Vec<u8>,
    open_start: u64,
}

#[derive(Clone, Debug)]
struct Piece {
    start: u64,
    bytes: Bytes,
}

impl Piece {
    fn end(&self) -> u64 {
        self.start + self.bytes.len() as u64
    }
}

impl History {
    /// An empty history whose first byte will be at `start`.
    #[must_use]
    pub fn starting_at(start: u64) -> Self {
        Self {
            sealed: VecDeque::new(),
            open: Vec::new(),
            open_start: start,
        }
    }

    /// The offset of the first byte kept.
    #[must_use]
    pub fn start(&self) -> u64 {
        self.sealed
            .front()
            .map_or(self.open_start, |piece| piece.start)
    }

    /// The offset after the last byte.
    #[must_use]
    pub fn end(&self) -> u64 {
        self.open_start + self.open.len() as u64
    }

    /// Appends `bytes` at the end. Copies small ones, shares those of a piece's size.
    pub fn append(&mut self, bytes: Bytes) {
        if bytes.len() >= PIECE_BYTES {
            self.share(bytes);
            return;
        }
        if self.open.len() + bytes.len() > PIECE_BYTES {
            self.seal();
        }
        self.open.extend_from_slice(&bytes);
    }

    /// Appends `bytes` at the end by reference, as a sealed piece of its own.
    pub fn share(&mut self, bytes: Bytes) {
        if bytes.is_empty() {
            return;
        }
        self.seal();
        let start = self.open_start;
        self.open_start += bytes.len() as u64;
        self.sealed.push_back(Piece { start, bytes });
    }

    fn seal(&mut self) {
        if self.open.is_empty() {
            return;
        }
        let bytes = Bytes::from(std::mem::take(&mut self.open));
        let start = self.open_start;
        self.open_start += bytes.len() as u64;
        self.sealed.push_back(Piece { start, bytes });
    }

    /// The pieces of `[start, end)`, clamped to what is kept. Sealed bytes are shared, those of
    /// the open piece copied (at most [`PIECE_BYTES`]).
    #[must_use]
    pub fn read(&self, start: u64, end: u64) -> Vec<Bytes> {
        let start = start.max(self.start());
        let end = end.min(self.end());
        let mut pieces = Vec::new();
        if start >= end {
            return pieces;
        }
        let first = self.sealed.partition_point(|piece| piece.end() <= start);
        for piece in self.sealed.range(first..) {
            if piece.start >= end {
                break;
            }
            let from = start.saturating_sub(piece.start) as usize;
            let to = (end.min(piece.end()) - piece.start) as usize;
            pieces.push(piece.bytes.slice(from..to));
        }
        if end > self.open_start {
            let from = start.saturating_sub(self.open_start) as usize;
            let to = (end - self.open_start) as usize;
            pieces.push(Bytes::copy_from_slice(
                self.open.get(from..to).unwrap_or_default(),
            ));
        }
        pieces
    }

    /// The byte at `offset`, if it is kept.
    #[must_use]
    pub fn byte_at(&self, offset: u64) -> Option<u8> {
        let (start, bytes) = self.piece_at(offset)?;
        bytes.get((offset - start) as usize).copied()
    }

    /// The piece that holds `offset`, with the offset of its first byte.
    fn piece_at(&self, offset: u64) -> Option<(u64, &[u8])> {
        if offset < self.start() || offset >= self.end() {
            return None;
        }
        if offset >= self.open_start {
            return Some((self.open_start, &self.open));
        }
        let index = self.sealed.partition_point(|piece| piece.end() <= offset);
        self.sealed
            .get(index)
            .map(|piece| (piece.start, &piece.bytes[..]))
    }

    /// The last message boundary (an offset after an LF) in `(from, limit]`.
    #[must_use]
    pub fn boundary_at_or_before(&self, from: u64, limit: u64) -> Option<u64> {
        let mut end = limit.min(self.end());
        while end > from {
            let (start, bytes) = self.piece_at(end - 1)?;
            let low = from.max(start);
            let window = bytes.get((low - start) as usize..(end - start) as usize)?;
            if let Some(at) = memchr::memrchr(b'\n', window) {
                return Some(low + at as u64 + 1);
            }
            end = low;
        }
        None
    }

    /// The first message boundary after `from`, at most `end`.
    #[must_use]
    pub fn boundary_after(&self, from: u64, end: u64) -> Option<u64> {
        let mut at = from;
        let end = end.min(self.end());
        while at < end {
            let (start, bytes) = self.piece_at(at)?;
            let high = end.min(start + bytes.len() as u64);
            let window = bytes.get((at - start) as usize..(high - start) as usize)?;
            if let Some(found) = memchr::memchr(b'\n', window) {
                return Some(at + found as u64 + 1);
            }
            at = high;
        }
        None
    }

    /// The offset after the `count`th LF from `from`, at most `end`; `None` if there are fewer.
    #[must_use]
    pub fn boundary_after_messages(&self, from: u64, end: u64, count: u64) -> Option<u64> {
        let mut at = from;
        for _ in 0..count {
            at = self.boundary_after(at, end)?;
        }
        Some(at)
    }

    /// Lets go of what lies wholly before `offset`; returns how many bytes that was.
    pub fn release_before(&mut self, offset: u64) -> u64 {
        let before = self.start();
        while self
            .sealed
            .front()
            .is_some_and(|piece| piece.end() <= offset)
        {
            self.sealed.pop_front();
        }
        if let Some(front) = self.sealed.front_mut() {
            if front.start < offset {
                // The rest of the piece stays in memory until its last byte goes.
                front.bytes = front.bytes.slice((offset - front.start) as usize..);
                front.start = offset;
            }
        } else if self.open_start < offset {
            let cut = (offset.min(self.end()) - self.open_start) as usize;
            self.open.drain(..cut);
            self.open_start += cut as u64;
        }
        self.start() - before
    }

    /// Bytes kept.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.end() - self.start()
    }

    /// Whether nothing is kept.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gather(pieces: &[Bytes]) -> Vec<u8> {
        pieces.concat()
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
                let got = gather(&history.read(100 + from as u64, 100 + to as u64));
                assert_eq!(got, model.get(from..to).unwrap_or_default(), "{from}..{to}");
            }
            assert_eq!(history.byte_at(100 + from as u64), model.get(from).copied());
        }
    }

    #[test]
    fn boundaries_are_found_both_ways_across_pieces() {
        let mut history = History::starting_at(0);
        history.share(Bytes::from_static(b"aa\nb"));
        history.share(Bytes::from_static(b"b"));
        history.share(Bytes::from_static(b"b\ncc\n"));
        assert_eq!(history.boundary_at_or_before(0, 6), Some(3));
        assert_eq!(history.boundary_at_or_before(0, 7), Some(7));
        assert_eq!(history.boundary_at_or_before(3, 6), None);
        assert_eq!(history.boundary_after(3, 100), Some(7));
        assert_eq!(history.boundary_after(10, 100), None);
        assert_eq!(history.boundary_after_messages(0, 100, 2), Some(7));
        assert_eq!(history.boundary_after_messages(0, 100, 4), None);
        assert_eq!(history.boundary_after_messages(3, 100, 0), Some(3));
    }

    #[test]
    fn released_bytes_are_gone_and_the_rest_stays() {
        let mut history = History::starting_at(0);
        history.share(Bytes::from_static(b"0123"));
        history.append(Bytes::from_static(b"4567"));
        assert_eq!(history.release_before(2), 2);
        assert_eq!(gather(&history.read(0, 99)), b"234567");
        assert_eq!(history.release_before(6), 4);
        assert_eq!(gather(&history.read(0, 99)), b"67");
        assert_eq!(history.byte_at(5), None);
        assert_eq!(history.release_before(99), 2);
        assert_eq!((history.start(), history.end()), (8, 8));
    }
}
