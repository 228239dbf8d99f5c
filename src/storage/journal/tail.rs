//! What lies behind the end of the log: nothing, a torn write, or proof of damage.

use std::rc::Rc;

use super::file::JournalFile;
use super::format::{BatchHeader, FILE_HEADER_BYTES};
use super::listing::nth;
use super::window::Window;
use crate::base::limits::DISK_ALIGN;
use crate::storage::disk::Disk;
use crate::storage::error::StorageError;

/// What lies behind the end of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tail {
    /// Zeros: the last write before the stop was whole.
    Clean,
    /// The header of the next batch, whose body is not whole: its number.
    Torn(u64),
    /// Bytes that belong to no batch of the log: a torn batch's, or an earlier life's.
    Stale,
}

/// Where reading stopped, and what the next batch would be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stop {
    /// Index of the file, in the files given.
    pub(super) file: usize,
    pub(super) offset: u64,
    pub(super) next_number: u64,
    /// Epoch of the last batch read.
    pub(super) epoch: u64,
}

/// A whole batch found by searching, and where.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Found {
    pub(super) file: usize,
    pub(super) header: BatchHeader,
}

/// Looks behind a stop for a whole batch that proves the missing one durable. It was issued in
/// the same epoch or a later one: an older one lies there since before a cut, and of what was
/// cut nothing was ever durable.
pub(super) async fn search_proof<D: Disk>(
    files: &[Rc<JournalFile<D>>],
    stop: Stop,
) -> Result<Result<Tail, Found>, StorageError> {
    let mut tail = Tail::Clean;
    let mut places = Places::behind(files, stop);
    while let Some((file, offset, window)) = places.next() {
        let block = window.at(offset, DISK_ALIGN).await?;
        if tail == Tail::Clean && block.iter().any(|byte| *byte != 0) {
            tail = Tail::Stale;
        }
        let Some(header) = BatchHeader::decode(block, &nth(files, file).header, offset)
            .filter(|header| header.epoch >= stop.epoch)
        else {
            continue;
        };
        if header.number == stop.next_number {
            tail = Tail::Torn(stop.next_number);
        }
        if header.durable >= stop.next_number
            && window.whole_batch(offset, |_| true).await?.is_some()
        {
            return Ok(Err(Found { file, header }));
        }
    }
    Ok(Ok(tail))
}

/// The batch with which the log goes on behind damage that `proof` proves: the first whole one
/// of the proof's epoch. Batches of one epoch lie in the log in order, and those behind a cut
/// are of another epoch than what proves them lost.
pub(super) async fn search_continuation<D: Disk>(
    files: &[Rc<JournalFile<D>>],
    stop: Stop,
    proof: Found,
) -> Result<Found, StorageError> {
    let mut places = Places::behind(files, stop);
    while let Some((file, offset, window)) = places.next() {
        let fits = |header: &BatchHeader| {
            header.epoch == proof.header.epoch && header.number > stop.next_number
        };
        if let Some(header) = window.whole_batch(offset, fits).await? {
            return Ok(Found { file, header });
        }
    }
    Ok(proof)
}

/// Every place behind a stop where a batch may begin, with a window on its file.
struct Places<'a, D: Disk> {
    files: &'a [Rc<JournalFile<D>>],
    file: usize,
    offset: u64,
    window: Option<Window<'a, D>>,
}

impl<'a, D: Disk> Places<'a, D> {
    fn behind(files: &'a [Rc<JournalFile<D>>], stop: Stop) -> Self {
        Self {
            files,
            file: stop.file,
            offset: stop.offset,
            window: None,
        }
    }

    fn next(&mut self) -> Option<(usize, u64, &mut Window<'a, D>)> {
        let mut file = self.files.get(self.file)?;
        while self.offset >= file.header.file_bytes {
            self.file = self.file.saturating_add(1);
            self.offset = FILE_HEADER_BYTES;
            self.window = None;
            file = self.files.get(self.file)?;
        }
        let offset = self.offset;
        self.offset = self.offset.saturating_add(DISK_ALIGN as u64);
        let window = self.window.get_or_insert_with(|| Window::new(file));
        Some((self.file, offset, window))
    }
}
