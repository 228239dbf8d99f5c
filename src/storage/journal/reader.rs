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
use std::fmt;
use std::path::PathBuf;
use std::rc::Rc;

use super::file::JournalFile;
use super::format::{BatchHeader, FILE_HEADER_BYTES, FLAG_EPOCH_OPEN, FLAG_FILLER, FLAGS, Records};
use super::listing::nth;
use super::tail::{Found, Stop, Tail, search_proof};
use super::window::Window;
use super::{IN_FLIGHT_LIMIT, Position};
use crate::storage::disk::Disk;
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
    /// Records that fillers stand for.
    pub(super) lost_records: u64,
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

impl Span {
    /// Where a journal's first file begins.
    pub(super) const FIRST: Self = Self {
        first_number: 1,
        first_record: 0,
    };
}

impl LogEnd {
    /// Index of the first file that holds a batch nothing proves durable.
    pub(super) fn unproven_file(&self) -> usize {
        let proven = self
            .spans
            .partition_point(|span| span.first_number <= self.durable.saturating_add(1));
        proven.saturating_sub(1)
    }
}

/// What a pass over the log found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Scan {
    /// `None` if not even a first batch is there.
    pub(super) end: Option<LogEnd>,
    pub(super) stop: Stop,
    /// A batch behind the stop that proves the one at the stop durable.
    pub(super) proof: Option<Found>,
}

/// Reads the log in `files`, which are consecutive; `apply` gets every record at or after
/// `replay_from`. Refuses if acknowledged data is damaged.
pub(super) async fn read_log<D: Disk>(
    files: &[Rc<JournalFile<D>>],
    replay_from: Position,
    apply: impl FnMut(Position, &[u8]) -> Result<(), ApplyError>,
) -> Result<Option<LogEnd>, StorageError> {
    let Scan { end, stop, proof } = scan_log(files, replay_from, apply).await?;
    match proof {
        None => Ok(end),
        Some(proof) => Err(StorageError::DamagedBatch {
            path: nth(files, stop.file).path.clone(),
            offset: stop.offset,
            batch: stop.next_number,
            proof: proof.header.number,
        }),
    }
}

/// As [`read_log`], but reports damage instead of refusing.
pub(super) async fn scan_log<D: Disk>(
    files: &[Rc<JournalFile<D>>],
    replay_from: Position,
    mut apply: impl FnMut(Position, &[u8]) -> Result<(), ApplyError>,
) -> Result<Scan, StorageError> {
    let mut end: Option<LogEnd> = None;
    let mut stop = Stop {
        file: 0,
        offset: FILE_HEADER_BYTES,
        next_number: 1,
        epoch: 0,
    };
    for (index, file) in files.iter().enumerate() {
        let mut window = Window::new(file);
        let mut offset = FILE_HEADER_BYTES;
        while let Some(header) = window
            .whole_batch(offset, |header| continues(&end, header))
            .await?
        {
            let body = window.body(&header).await?;
            apply_batch(file, &header, body, replay_from, &mut apply)?;
            advance(&mut end, &header, index);
            offset = offset.saturating_add(header.batch_bytes());
        }
        // Where this file has no room left the next goes on: its first batch tells.
        if offset == FILE_HEADER_BYTES {
            break;
        }
        let (next_number, epoch) = end
            .as_ref()
            .map_or((1, 0), |end| (end.next_number, end.epoch));
        stop = Stop {
            file: index,
            offset,
            next_number,
            epoch,
        };
    }
    match (search_proof(files, stop).await?, end) {
        (Ok(tail), end) => {
            let end = end.map(|end| LogEnd { tail, ..end });
            Ok(Scan {
                end,
                stop,
                proof: None,
            })
        }
        (Err(proof), end) => Ok(Scan {
            end,
            stop,
            proof: Some(proof),
        }),
    }
}

fn apply_batch<D: Disk>(
    file: &JournalFile<D>,
    header: &BatchHeader,
    body: &[u8],
    replay_from: Position,
    apply: &mut impl FnMut(Position, &[u8]) -> Result<(), ApplyError>,
) -> Result<(), StorageError> {
    let path = || file.path.clone();
    let (offset, batch) = (header.offset, header.number);
    if header.flags & !FLAGS != 0 {
        return Err(StorageError::MalformedBatch {
            path: path(),
            offset,
            batch,
        });
    }
    if header.flags & FLAG_FILLER != 0 {
        return Ok(());
    }
    for (position, record) in (header.first_record..).zip(Records::new(header, body)) {
        let Some(record) = record else {
            return Err(StorageError::MalformedBatch {
                path: path(),
                offset,
                batch,
            });
        };
        if position >= replay_from.0 {
            let refused = |source| StorageError::Apply {
                path: path(),
                offset,
                position,
                source,
            };
            apply(Position(position), record).map_err(refused)?;
        }
    }
    Ok(())
}

/// True if the batch follows what was read so far.
fn continues(end: &Option<LogEnd>, header: &BatchHeader) -> bool {
    let Some(end) = end else {
        return header.epoch > 0;
    };
    let filler = header.flags & FLAG_FILLER != 0;
    let follows = header.number == end.next_number || (filler && header.number > end.next_number);
    let opens = header.flags & (FLAG_EPOCH_OPEN | FLAG_FILLER) != 0;
    follows
        && header.first_record == end.next_record
        && (header.epoch == end.epoch || (opens && header.epoch > end.epoch))
}

/// Takes one more batch into the log.
#[expect(
    clippy::arithmetic_side_effects,
    reason = "numbers and offsets are in range where a header is decoded; the rest counts batches"
)]
fn advance(end: &mut Option<LogEnd>, header: &BatchHeader, file: usize) {
    let end = end.get_or_insert_with(|| LogEnd {
        file,
        offset: 0,
        next_number: 0,
        next_record: 0,
        epoch: 0,
        durable: 0,
        spans: Vec::new(),
        unproven: VecDeque::new(),
        tail: Tail::Clean,
        batches: 0,
        records: 0,
        lost_records: 0,
        bytes: 0,
    });
    let (number, offset, bytes) = (header.number, header.offset, header.batch_bytes());
    if offset == FILE_HEADER_BYTES {
        end.spans.push(Span {
            first_number: number,
            first_record: header.first_record,
        });
    }
    end.file = file;
    end.offset = offset + bytes;
    end.next_number = number + 1;
    end.next_record = header.first_record + u64::from(header.record_count);
    end.epoch = header.epoch;
    end.durable = end.durable.max(header.durable);
    end.batches += 1;
    if header.flags & FLAG_FILLER == 0 {
        end.records += u64::from(header.record_count);
    } else {
        end.lost_records += u64::from(header.record_count);
    }
    end.bytes += bytes;
    end.unproven.push_back(BatchPlace {
        number,
        file,
        offset,
        bytes,
    });
    while let Some(oldest) = end.unproven.front()
        && (oldest.number <= end.durable || end.unproven.len() > IN_FLIGHT_LIMIT)
    {
        end.unproven.pop_front();
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

impl fmt::Display for Cut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (path, offset) = (self.path.display(), self.offset);
        match self.tail {
            Tail::Clean => write!(f, "{path} ends at byte {offset}"),
            Tail::Torn(batch) => write!(
                f,
                "{path} was cut at byte {offset}: batch {batch} there was not written whole, and \
                 nothing says that it was acknowledged"
            ),
            Tail::Stale => write!(
                f,
                "{path} was cut at byte {offset}: what lies behind is of no batch of this log, \
                 torn or from before an earlier cut"
            ),
        }
    }
}
