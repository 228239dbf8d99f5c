//! Reading the log: from its oldest file to where it ends, and why it ends there.
//!
//! The log is the longest run of whole batches that continue one another:
//! consecutive numbers and record positions, an epoch that rises only at a
//! batch that opens one. Where the run stops, everything behind it is searched
//! for a whole batch that says it was issued when the missing one was already
//! durable. If there is one, acknowledged data is damaged, and the reader
//! refuses. If there is none, this is the end: a batch torn by the crash,
//! zeros never written, or bytes of an earlier life. With several batches in
//! flight a later batch may be whole while an earlier one is torn; it was
//! issued before the earlier one was durable, says so, and proves nothing.
//!
//! What cannot be known: damage to the last batches, those behind which no
//! proof was written, looks like a torn write and is cut.
//!
//! Reading changes nothing on disk, however often it is done.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::rc::Rc;

use super::file::JournalFile;
use super::format::{
    BATCH_HEADER_BYTES, BatchHeader, FILE_HEADER_BYTES, FLAG_EPOCH_OPEN, FLAG_FILLER, Records,
};
use super::{IN_FLIGHT_LIMIT, Position};
use crate::base::limits::{DISK_ALIGN, DISK_IO_BYTES_MAX};
use crate::storage::disk::{Disk, DiskFile};
use crate::storage::error::{ApplyError, StorageError};

/// Where the log ends and what was read up to there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct LogEnd {
    /// Index, in the files given, of the file in which the log ends.
    pub(super) file: usize,
    /// Offset of the end in that file, in bytes.
    pub(super) offset: u64,
    pub(super) next_number: u64,
    pub(super) next_record: u64,
    /// Epoch of the last batch.
    pub(super) epoch: u64,
    /// Highest number that a batch in the log says was durable.
    pub(super) durable: u64,
    /// Where each file begins, up to the one in which the log ends.
    pub(super) spans: Vec<Span>,
    /// The newest batches that nothing proves durable, oldest first, at most
    /// [`IN_FLIGHT_LIMIT`](super::IN_FLIGHT_LIMIT).
    pub(super) unproven: VecDeque<BatchPlace>,
    pub(super) tail: Tail,
    pub(super) batches: u64,
    pub(super) records: u64,
    pub(super) bytes: u64,
}

/// Where a whole batch lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BatchPlace {
    pub(super) number: u64,
    /// Index of its file, in the files given.
    pub(super) file: usize,
    pub(super) offset: u64,
    /// Bytes of header, body and padding.
    pub(super) bytes: u64,
}

/// Where a file begins in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Span {
    pub(super) first_number: u64,
    pub(super) first_record: u64,
}

impl LogEnd {
    /// Index of the first file that holds a batch nothing proves durable.
    pub(super) fn unproven_file(&self) -> usize {
        let proven = self
            .spans
            .partition_point(|span| span.first_number <= self.durable + 1);
        proven.saturating_sub(1)
    }
}

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

/// Reads the log in `files`, which are consecutive; `apply` gets every record at or after
/// `replay_from`. `None` if not even a first batch is there.
pub(super) async fn read_log<D: Disk>(
    files: &[Rc<JournalFile<D>>],
    replay_from: Position,
    mut apply: impl FnMut(Position, &[u8]) -> Result<(), ApplyError>,
) -> Result<Option<LogEnd>, StorageError> {
    let mut end: Option<LogEnd> = None;
    let mut tail_from = (0, FILE_HEADER_BYTES);
    for (index, file) in files.iter().enumerate() {
        let mut window = Window::new(file);
        let mut offset = FILE_HEADER_BYTES;
        let mut continued = false;
        while let Some(header) = window
            .whole_batch(offset, |header| continues(&end, header))
            .await?
        {
            let len = header.body_bytes as usize;
            let body = &window.at(offset, BATCH_HEADER_BYTES + len).await?[BATCH_HEADER_BYTES..];
            for (position, record) in (header.first_record..).zip(Records::new(&header, body)) {
                let Some(record) = record else {
                    let (path, batch) = (file.path.clone(), header.number);
                    return Err(StorageError::MalformedBatch {
                        path,
                        offset,
                        batch,
                    });
                };
                if position >= replay_from.0 {
                    apply(Position(position), record).map_err(|source| StorageError::Apply {
                        path: file.path.clone(),
                        offset,
                        position,
                        source,
                    })?;
                }
            }
            let (number, bytes) = (header.number, header.batch_bytes());
            advance(
                &mut end,
                &header,
                !continued,
                BatchPlace {
                    number,
                    file: index,
                    offset,
                    bytes,
                },
            );
            offset += bytes;
            continued = true;
        }
        // A later file may go on where this one has no room left: its first batch tells.
        if continued {
            tail_from = (index, offset);
        } else {
            break;
        }
    }
    let next_number = end.as_ref().map_or(1, |end| end.next_number);
    let epoch = end.as_ref().map_or(0, |end| end.epoch);
    let tail = search_tail(files, tail_from, next_number, epoch).await?;
    Ok(end.map(|end| LogEnd { tail, ..end }))
}

/// True if the batch follows what was read so far.
fn continues(end: &Option<LogEnd>, header: &BatchHeader) -> bool {
    let Some(end) = end else {
        return header.epoch > 0 && header.durable < header.number;
    };
    let filler = header.flags & FLAG_FILLER != 0 && header.record_count == 0;
    let follows = if filler {
        header.number >= end.next_number && header.first_record >= end.next_record
    } else {
        header.number == end.next_number && header.first_record == end.next_record
    };
    let opens = header.flags & (FLAG_EPOCH_OPEN | FLAG_FILLER) != 0;
    follows
        && header.durable < header.number
        && (header.epoch == end.epoch || (opens && header.epoch > end.epoch))
}

fn advance(end: &mut Option<LogEnd>, header: &BatchHeader, first_in_file: bool, place: BatchPlace) {
    let end = end.get_or_insert_with(|| LogEnd {
        file: place.file,
        offset: place.offset,
        next_number: header.number,
        next_record: header.first_record,
        epoch: header.epoch,
        durable: 0,
        spans: Vec::new(),
        unproven: VecDeque::new(),
        tail: Tail::Clean,
        batches: 0,
        records: 0,
        bytes: 0,
    });
    if first_in_file {
        let (first_number, first_record) = (header.number, header.first_record);
        end.spans.push(Span {
            first_number,
            first_record,
        });
    }
    end.file = place.file;
    end.offset = place.offset + place.bytes;
    end.next_number = header.number + 1;
    end.next_record = header.first_record + u64::from(header.record_count);
    end.epoch = header.epoch;
    end.durable = end.durable.max(header.durable);
    end.batches += 1;
    end.records += u64::from(header.record_count);
    end.bytes += place.bytes;
    end.unproven.push_back(place);
    while let Some(oldest) = end.unproven.front()
        && (oldest.number <= end.durable || end.unproven.len() > IN_FLIGHT_LIMIT)
    {
        end.unproven.pop_front();
    }
}

/// Looks behind the end of the log for a whole batch that proves batch `next_number` durable.
async fn search_tail<D: Disk>(
    files: &[Rc<JournalFile<D>>],
    from: (usize, u64),
    next_number: u64,
    epoch: u64,
) -> Result<Tail, StorageError> {
    let mut tail = Tail::Clean;
    for (index, file) in files.iter().enumerate().skip(from.0) {
        let mut window = Window::new(file);
        let mut offset = if index == from.0 {
            from.1
        } else {
            FILE_HEADER_BYTES
        };
        while offset < file.header.file_bytes {
            let block = window.at(offset, DISK_ALIGN).await?;
            if tail == Tail::Clean && block.iter().any(|byte| *byte != 0) {
                tail = Tail::Stale;
            }
            if let Some(header) = BatchHeader::decode(block, &file.header, offset)
                && header.epoch >= epoch
            {
                if header.number == next_number {
                    tail = Tail::Torn(next_number);
                }
                let proof = header.number >= next_number && header.durable >= next_number;
                if proof && window.whole_batch(offset, |_| true).await?.is_some() {
                    let damaged = &files[from.0];
                    return Err(StorageError::DamagedBatch {
                        path: damaged.path.clone(),
                        offset: from.1,
                        batch: next_number,
                        proof: header.number,
                    });
                }
            }
            offset += DISK_ALIGN as u64;
        }
    }
    Ok(tail)
}

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
    async fn whole_batch(
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
        let bytes = self
            .at(offset, BATCH_HEADER_BYTES + header.body_bytes as usize)
            .await?;
        Ok(header
            .verifies(&bytes[BATCH_HEADER_BYTES..])
            .then_some(header))
    }
}

/// Where a recovered journal was cut, for the log and for operators.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cut {
    /// The file in which the log ended.
    pub path: PathBuf,
    /// Where it ended, in bytes.
    pub offset: u64,
    /// What lay behind.
    pub tail: Tail,
}
