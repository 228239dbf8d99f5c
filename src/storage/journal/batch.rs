//! The batch that fills while others are on their way.
//!
//! Records are copied once, straight into memory that direct I/O takes, in
//! pieces of at most 1 MiB so that each piece is one write. The header's place
//! is kept free at the front and filled in last, when the batch is issued and
//! its number, place and durable mark are known.

use super::format::{BATCH_HEADER_BYTES, BatchHeader, RECORD_HEADER_BYTES, padded};
use crate::base::checksum::Checksum;
use crate::base::limits::{DISK_ALIGN, DISK_IO_BYTES_MAX};
use crate::storage::disk::{AlignedBuf, Disk};

/// A batch that still takes records.
#[derive(Debug)]
pub(super) struct OpenBatch {
    pieces: Vec<AlignedBuf>,
    /// Size of each piece, in bytes: a multiple of 4 KiB, at most 1 MiB.
    piece_bytes: usize,
    /// Bytes used, header included.
    bytes: usize,
    records: u32,
    number: u64,
    first_record: u64,
}

/// A batch with its header, padded: what goes to the disk.
#[derive(Debug)]
pub(super) struct SealedBatch {
    pub(super) header: BatchHeader,
    /// Aligned writes, one after the other, each at most 1 MiB.
    pub(super) pieces: Vec<AlignedBuf>,
}

impl OpenBatch {
    /// An empty batch that is expected to stay within `bytes`, and may grow beyond.
    pub(super) fn new<D: Disk>(disk: &D, bytes: u64, number: u64, first_record: u64) -> Self {
        let piece_bytes = padded(bytes).clamp(DISK_ALIGN as u64, DISK_IO_BYTES_MAX as u64) as usize;
        Self {
            pieces: vec![disk.buffer(piece_bytes)],
            piece_bytes,
            bytes: BATCH_HEADER_BYTES,
            records: 0,
            number,
            first_record,
        }
    }

    pub(super) fn number(&self) -> u64 {
        self.number
    }

    pub(super) fn first_record(&self) -> u64 {
        self.first_record
    }

    /// Bytes on disk of a batch that holds one record of `payload` bytes.
    pub(super) fn padded_alone(payload: usize) -> u64 {
        const HEADERS: usize = BATCH_HEADER_BYTES + RECORD_HEADER_BYTES;
        padded(HEADERS.saturating_add(payload) as u64)
    }

    /// Bytes on disk if a record of `payload` bytes is added.
    pub(super) fn padded_with(&self, payload: usize) -> u64 {
        let bytes = self.bytes.saturating_add(RECORD_HEADER_BYTES);
        padded(bytes.saturating_add(payload) as u64)
    }

    /// Bytes on disk as it is.
    pub(super) fn padded(&self) -> u64 {
        padded(self.bytes as u64)
    }

    /// Copies one record in. The caller has checked its length.
    pub(super) fn push<D: Disk>(&mut self, disk: &D, parts: &[&[u8]], payload: u32) {
        self.copy(disk, &payload.to_le_bytes());
        for part in parts {
            self.copy(disk, part);
        }
        self.records = self.records.saturating_add(1);
    }

    #[expect(
        clippy::arithmetic_side_effects,
        clippy::indexing_slicing,
        reason = "`bytes` are those in `pieces`, each of `piece_bytes`, which are at least a block"
    )]
    fn copy<D: Disk>(&mut self, disk: &D, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let (piece, at) = (self.bytes / self.piece_bytes, self.bytes % self.piece_bytes);
            if piece == self.pieces.len() {
                self.pieces.push(disk.buffer(self.piece_bytes));
            }
            let now = bytes.len().min(self.piece_bytes - at);
            let (head, tail) = bytes.split_at(now);
            self.pieces[piece].as_mut_slice()[at..at + now].copy_from_slice(head);
            self.bytes += now;
            bytes = tail;
        }
    }

    /// Completes the batch. `header` brings what the batch does not know itself; its number,
    /// first record, counts and checksums are filled in.
    #[expect(
        clippy::arithmetic_side_effects,
        clippy::indexing_slicing,
        reason = "`bytes` are those in `pieces`, and the header's place is always among them"
    )]
    pub(super) fn seal(mut self, header: BatchHeader) -> SealedBatch {
        let pieces_used = self.bytes.div_ceil(self.piece_bytes);
        debug_assert_eq!(pieces_used, self.pieces.len());
        let end = self.bytes - (pieces_used - 1) * self.piece_bytes;
        let padded_end = end.next_multiple_of(DISK_ALIGN);
        if let Some(last) = self.pieces.last_mut() {
            last.as_mut_slice()[end..padded_end].fill(0);
            last.truncate(padded_end);
        }

        let mut checksum = Checksum::seeded(header.epoch);
        let mut left = self.bytes;
        for (index, piece) in self.pieces.iter().enumerate() {
            let from = if index == 0 { BATCH_HEADER_BYTES } else { 0 };
            let to = left.min(self.piece_bytes);
            checksum = checksum.with(&piece.as_slice()[from..to]);
            left -= to;
        }
        let header = BatchHeader {
            number: self.number,
            first_record: self.first_record,
            body_bytes: (self.bytes - BATCH_HEADER_BYTES) as u32,
            record_count: self.records,
            body_checksum: checksum.value(),
            ..header
        };
        header.encode(self.pieces[0].as_mut_slice());
        SealedBatch {
            header,
            pieces: self.pieces,
        }
    }
}
