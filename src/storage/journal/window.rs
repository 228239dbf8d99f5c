//! A journal file as a sequence of whole batches, read ahead.

use super::file::JournalFile;
use super::format::{BATCH_HEADER_BYTES, BatchHeader};
use crate::base::limits::{DISK_ALIGN, DISK_IO_BYTES_MAX};
use crate::storage::disk::{Disk, DiskFile};
use crate::storage::error::StorageError;

/// Bytes of a file from some offset on, read ahead in large aligned pieces.
pub(super) struct Window<'a, D: Disk> {
    file: &'a JournalFile<D>,
    start: u64,
    bytes: Vec<u8>,
}

impl<'a, D: Disk> Window<'a, D> {
    pub(super) fn new(file: &'a JournalFile<D>) -> Self {
        Self {
            file,
            start: 0,
            bytes: Vec::new(),
        }
    }

    /// The `len` bytes at `offset`, a multiple of 4 KiB, within the file's nominal size. What a
    /// file lost at its end reads as zeros.
    #[expect(
        clippy::arithmetic_side_effects,
        clippy::indexing_slicing,
        reason = "the window lies in the file, and `offset` in the window or at its start"
    )]
    pub(super) async fn at(&mut self, offset: u64, len: usize) -> Result<&[u8], StorageError> {
        let held = self.start..=self.start + self.bytes.len() as u64;
        if !held.contains(&offset) {
            self.bytes.clear();
            self.start = offset;
        }
        let mut at = (offset - self.start) as usize;
        if at + len > self.bytes.len() {
            self.bytes.drain(..at);
            self.start = offset;
            at = 0;
            while self.bytes.len() < len {
                self.read_more().await?;
            }
        }
        Ok(&self.bytes[at..at + len])
    }

    #[expect(
        clippy::arithmetic_side_effects,
        clippy::indexing_slicing,
        reason = "the window lies in the file, and what is cut off a piece is cut to its length"
    )]
    async fn read_more(&mut self) -> Result<(), StorageError> {
        let offset = self.start + self.bytes.len() as u64;
        let want = self.file.room_at(offset).min(DISK_IO_BYTES_MAX as u64) as usize;
        let read = |error| StorageError::io_at("read", &self.file.path, offset)(error);
        let piece = self.file.file.read_at(offset, want).await.map_err(read)?;
        let there = self.file.len.saturating_sub(offset).min(want as u64) as usize;
        if piece.len() >= there {
            self.bytes.extend_from_slice(&piece[..there]);
            self.bytes.resize((offset - self.start) as usize + want, 0);
            return Ok(());
        }
        // Only whole blocks: the next read begins where this one ended.
        let whole = piece.len() / DISK_ALIGN * DISK_ALIGN;
        if whole == 0 {
            let path = self.file.path.clone();
            return Err(StorageError::ShortRead {
                path,
                offset,
                expected: there,
            });
        }
        self.bytes.extend_from_slice(&piece[..whole]);
        Ok(())
    }

    /// The header of the batch at `offset`, if `accept` takes it and its body verifies.
    pub(super) async fn whole_batch(
        &mut self,
        offset: u64,
        accept: impl Fn(&BatchHeader) -> bool,
    ) -> Result<Option<BatchHeader>, StorageError> {
        let file = self.file.header;
        if offset >= file.file_bytes {
            return Ok(None);
        }
        let block = self.at(offset, DISK_ALIGN).await?;
        let Some(header) = BatchHeader::decode(block, &file, offset).filter(accept) else {
            return Ok(None);
        };
        let body = self.body(&header).await?;
        Ok(header.verifies(body).then_some(header))
    }

    /// The body of a batch of this file.
    pub(super) async fn body(&mut self, header: &BatchHeader) -> Result<&[u8], StorageError> {
        let len = BATCH_HEADER_BYTES.saturating_add(header.body_bytes as usize);
        let batch = self.at(header.offset, len).await?;
        Ok(batch.split_at(BATCH_HEADER_BYTES).1)
    }
}
