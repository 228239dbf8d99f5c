//! Opening a journal: read it, cut it, open a new epoch.
//!
//! What it writes, in this order, and what a crash in between leaves:
//! 1. `….preparing` files are removed, and files longer than their header says
//!    are cut to size: neither holds anything that was read.
//! 2. The last batches, which nothing proves durable, are written again in
//!    place, byte for byte, and every file that holds unproven ones is synced.
//!    They may be visible only because the process, not the machine, crashed;
//!    and a sync that failed in that process may have made the kernel forget
//!    that they are not on the medium, so that a sync alone would do nothing.
//!    The directory is synced too: a file may have got its name, but not for
//!    good, before the crash.
//! 3. Files behind the end that cannot be used are removed, the newest first,
//!    so that no gap appears.
//! 4. A batch without records opens the new epoch at the cut and is synced. It
//!    says that everything before it is durable. If it is torn, the next start
//!    finds the same end.
//!
//! Nothing is handed to clients before all four are done, so a crash in any of
//! them leaves a journal that reads the same.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use super::batch::OpenBatch;
use super::commit::commit;
use super::file::{Home, JournalFile, NewFile, file_path, make_file};
use super::format::{FILE_HEADER_BYTES, FLAG_EPOCH_OPEN};
use super::listing::{check_gaps, list, nth, open_files};
use super::observed::Observed;
use super::reader::{Cut, LogEnd, Span, read_log};
use super::tail::Tail;
use super::window::Window;
use super::{Health, IN_FLIGHT_LIMIT, Inner, Journal, JournalStats, Options, Position, Queue};
use crate::base::limits::DISK_IO_BYTES_MAX;
use crate::base::signal::Signal;
use crate::storage::disk::{Access, Disk, DiskFile, write_whole};
use crate::storage::error::{ApplyError, StorageError};

/// What opening a journal found and did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecoveryReport {
    /// Files read.
    pub files: u64,
    /// Whole batches read.
    pub batches: u64,
    /// Records in them.
    pub records: u64,
    /// Records that an earlier repair found lost; `apply` saw their positions left out.
    pub lost_records: u64,
    /// Bytes of them, headers and padding included.
    pub bytes: u64,
    /// The position behind the last record.
    pub next_position: Position,
    /// Where the log ended, unless it ended in zeros.
    pub cut: Option<Cut>,
    /// Files that were longer than they were made, and the bytes cut off.
    pub trimmed: Vec<(PathBuf, u64)>,
    /// Unknown names in the directory, left alone.
    pub unknown: Vec<PathBuf>,
    /// The journal's files, oldest first, those made ahead included.
    pub journal_files: Vec<FileReport>,
    /// Random number and shard that its files say they belong to; `None` without a file.
    pub identity: Option<(u64, u32)>,
    /// Epoch of the last batch.
    pub epoch: u64,
}

/// One file of a journal, as reading found it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileReport {
    /// The file.
    pub path: PathBuf,
    /// Its length, in bytes.
    pub bytes: u64,
    /// Batches that begin in it, those that a repair found lost included.
    pub batches: u64,
    /// Records in them.
    pub records: u64,
}

/// Reads the journal in `dir` and changes nothing: hands every record at or after `replay_from`
/// to `apply`, in order. What [`Journal::open`] would refuse is refused.
pub async fn read_journal<D: Disk>(
    disk: &D,
    dir: &Path,
    replay_from: Position,
    apply: impl FnMut(Position, &[u8]) -> Result<(), ApplyError>,
) -> Result<RecoveryReport, StorageError> {
    let listing = list(disk, dir).await?;
    check_gaps(dir, &listing)?;
    let files = open_files(disk, dir, &listing.numbers, Access::Read).await?;
    let end = read_log(&files, replay_from, apply).await?;
    check_lengths(&files)?;
    check_start(dir, &files, end.as_ref(), replay_from)?;
    let mut report = RecoveryReport {
        unknown: listing.unknown,
        ..RecoveryReport::default()
    };
    match &end {
        Some(end) => report.add(&files, end),
        None => report.list_files(&files, &[], Span::FIRST),
    }
    Ok(report)
}

/// Refuses a journal of which a file has lost its end: a file has its full length before it has its
/// name, so no crash leaves a short one, and nothing tells how much was acknowledged of what is gone.
fn check_lengths<D: Disk>(files: &[Rc<JournalFile<D>>]) -> Result<(), StorageError> {
    let short = files.iter().find(|file| file.is_short());
    short.map_or(Ok(()), |file| {
        Err(StorageError::WrongLength {
            path: file.path.clone(),
            found: file.len,
            expected: file.header.file_bytes,
        })
    })
}

/// Refuses a journal whose beginning is missing.
fn check_start<D: Disk>(
    dir: &Path,
    files: &[Rc<JournalFile<D>>],
    end: Option<&LogEnd>,
    replay_from: Position,
) -> Result<(), StorageError> {
    let oldest = match (end, files.first()) {
        (Some(end), _) => Some(end.spans.first().map_or(0, |span| span.first_record)),
        // Only a journal that was never opened to its end has no first batch, and it has
        // only its first file.
        (None, Some(first)) if first.number() > 1 => None,
        (None, _) => Some(0),
    };
    if oldest.is_none_or(|oldest| oldest > replay_from.0) {
        let (dir, needed) = (dir.to_owned(), replay_from.0);
        return Err(StorageError::MissingRecords {
            dir,
            needed,
            oldest,
        });
    }
    Ok(())
}

impl RecoveryReport {
    fn add<D: Disk>(&mut self, files: &[Rc<JournalFile<D>>], end: &LogEnd) {
        self.files = end.spans.len() as u64;
        self.batches = end.batches;
        self.records = end.records;
        self.lost_records = end.lost_records;
        self.bytes = end.bytes;
        self.next_position = Position(end.next_record);
        self.epoch = end.epoch;
        if end.tail != Tail::Clean {
            let path = nth(files, end.file).path.clone();
            self.cut = Some(Cut {
                path,
                offset: end.offset,
                tail: end.tail,
            });
        }
        let next = Span {
            first_number: end.next_number,
            first_record: end.next_record,
        };
        self.list_files(files, &end.spans, next);
    }

    /// Lists the files, of which the first begin where `spans` says and the log ends at `next`.
    fn list_files<D: Disk>(&mut self, files: &[Rc<JournalFile<D>>], spans: &[Span], next: Span) {
        let report = |(index, file): (usize, &Rc<JournalFile<D>>)| {
            let from = spans.get(index).copied().unwrap_or(next);
            let to = spans.get(index.saturating_add(1)).copied().unwrap_or(next);
            FileReport {
                path: file.path.clone(),
                bytes: file.len,
                batches: to.first_number.saturating_sub(from.first_number),
                records: to.first_record.saturating_sub(from.first_record),
            }
        };
        self.journal_files = files.iter().enumerate().map(report).collect();
        let header = files.first().map(|file| file.header);
        self.identity = header.map(|header| (header.journal_id, header.shard));
    }

    /// For those who read without opening: refuses, as [`Journal::open`] would, what belongs to
    /// another journal, and what was written in a later epoch than `epoch`.
    pub fn check_home(&self, home: (u64, u32), epoch: u64) -> Result<(), StorageError> {
        let path = || match self.journal_files.last() {
            Some(file) => file.path.clone(),
            None => PathBuf::new(),
        };
        if self.identity.is_some_and(|identity| identity != home) {
            return Err(StorageError::ForeignFile { path: path() });
        }
        if self.epoch > epoch {
            return Err(StorageError::EpochAhead {
                path: path(),
                offset: 0,
                found: self.epoch,
                current: epoch,
            });
        }
        Ok(())
    }
}

impl<D: Disk> Journal<D> {
    /// Opens the journal of `shard` in `dir`, which exists: hands every record at or after
    /// `options.replay_from` to `apply`, in order, cuts a torn tail and opens a new epoch.
    pub async fn open(
        disk: D,
        dir: &Path,
        shard: u32,
        options: Options,
        apply: impl FnMut(Position, &[u8]) -> Result<(), ApplyError>,
    ) -> Result<(Self, RecoveryReport), StorageError> {
        options.check()?;
        let in_flight_max = options.in_flight_max.clamp(1, IN_FLIGHT_LIMIT);
        let options = Options {
            in_flight_max,
            ..options
        };
        let listing = list(&disk, dir).await?;
        check_gaps(dir, &listing)?;
        for path in &listing.preparing {
            disk.remove(path)
                .await
                .map_err(StorageError::io("remove", path))?;
        }
        if listing.numbers.is_empty() && !options.create {
            return Err(StorageError::MissingFile {
                path: file_path(dir, 1),
            });
        }
        let access = options.access();
        let mut files = open_files(&disk, dir, &listing.numbers, access).await?;
        let home = Home {
            dir: dir.to_owned(),
            journal_id: options.journal_id,
            shard,
        };
        if files.is_empty() {
            let new = NewFile {
                number: 1,
                bytes: options.file_bytes,
                access,
            };
            files.push(make_file(&disk, &home, new).await?);
        }
        if let Some(first) = files.first()
            && (first.header.journal_id, first.header.shard) != (home.journal_id, shard)
        {
            return Err(StorageError::ForeignFile {
                path: first.path.clone(),
            });
        }

        let end = read_log(&files, options.replay_from, apply).await?;
        check_lengths(&files)?;
        check_start(dir, &files, end.as_ref(), options.replay_from)?;
        let mut report = RecoveryReport {
            unknown: listing.unknown,
            ..RecoveryReport::default()
        };
        match &end {
            Some(end) => {
                report.add(&files, end);
                if end.epoch >= options.epoch {
                    return Err(StorageError::EpochAhead {
                        path: nth(&files, end.file).path.clone(),
                        offset: end.offset,
                        found: end.epoch,
                        current: options.epoch,
                    });
                }
            }
            None if options.create => {}
            None => {
                return Err(StorageError::MissingFile {
                    path: file_path(dir, 1),
                });
            }
        }

        disk.sync_dir(dir)
            .await
            .map_err(StorageError::io("sync", dir))?;
        trim(&files, &mut report).await?;
        if let Some(end) = &end {
            make_durable(&disk, &files, end).await?;
        }
        let journal = Self::at_end(disk, home, options, files, end).await?;
        journal.open_epoch().await?;
        Ok((journal, report))
    }

    /// A journal that goes on behind `end`.
    async fn at_end(
        disk: D,
        home: Home,
        options: Options,
        mut files: Vec<Rc<JournalFile<D>>>,
        end: Option<LogEnd>,
    ) -> Result<Self, StorageError> {
        let (at, offset) = end
            .as_ref()
            .map_or((0, FILE_HEADER_BYTES), |end| (end.file, end.offset));
        // Files behind the end are ready for use if they are of today's size.
        let usable = |file: &Rc<JournalFile<D>>| file.header.file_bytes == options.file_bytes;
        let mut behind = files.split_off(at.saturating_add(1));
        let usable = behind.iter().take_while(|file| usable(file)).count();
        for file in behind.drain(usable..).rev() {
            disk.remove(&file.path)
                .await
                .map_err(StorageError::io("remove", &file.path))?;
            disk.sync_dir(&home.dir)
                .await
                .map_err(StorageError::io("sync", &home.dir))?;
        }
        let ready = VecDeque::from(behind);
        let numbers = files.iter().map(|file| file.number());
        let spans: VecDeque<(u64, Span)> = match &end {
            Some(end) => numbers.zip(end.spans.iter().copied()).collect(),
            None => numbers.map(|number| (number, Span::FIRST)).collect(),
        };
        let next_number = end.as_ref().map_or(1, |end| end.next_number);
        let queue = Queue {
            open: None,
            closed: VecDeque::new(),
            unplaced_bytes: 0,
            next_number,
            next_record: end.as_ref().map_or(0, |end| end.next_record),
            active: files.swap_remove(at),
            active_offset: offset,
            ready,
            spans,
        };
        Ok(Self(Rc::new(Inner {
            disk,
            home,
            options,
            queue: RefCell::new(queue),
            durable: Cell::new(next_number.saturating_sub(1)),
            // Known for good once the epoch is open.
            durable_end: Cell::default(),
            kept_from: Cell::new(u64::MAX),
            proven: Cell::new(next_number.saturating_sub(1)),
            in_flight: Cell::new(0),
            latched: Cell::new(false),
            lack: Cell::new(Health::Ok),
            closing: Cell::new(false),
            work: Signal::default(),
            roll: Signal::default(),
            ended: Cell::new(false),
            end: Signal::default(),
            stats: Cell::new(JournalStats::default()),
            broken: RefCell::new(None),
            observed: Observed::default(),
        })))
    }

    /// Writes the batch that opens the epoch, durable whatever the durability of others.
    async fn open_epoch(&self) -> Result<(), StorageError> {
        let inner = &*self.0;
        let batch = {
            let mut queue = inner.queue.borrow_mut();
            let number = queue.next_number;
            queue.next_number = number.saturating_add(1);
            OpenBatch::new(&inner.disk, 0, number, queue.next_record)
        };
        let full = {
            let queue = inner.queue.borrow();
            queue.ready.is_empty() && queue.active.room_at(queue.active_offset) < batch.padded()
        };
        if full {
            let number = inner.queue.borrow().active.number().saturating_add(1);
            let (bytes, access) = (inner.options.file_bytes, inner.options.access());
            let file = make_file(
                &inner.disk,
                &inner.home,
                NewFile {
                    number,
                    bytes,
                    access,
                },
            )
            .await?;
            inner.queue.borrow_mut().ready.push_back(file);
        }
        let place = inner.place(&mut inner.queue.borrow_mut(), &batch);
        let Some(place) = place else {
            let needed = inner.options.file_bytes;
            return Err(StorageError::DiskFull {
                dir: inner.home.dir.clone(),
                free: 0,
                needed,
            });
        };
        let number = batch.number();
        let end = place.offset.saturating_add(batch.padded());
        let end = (place.file.number(), end);
        let sealed = batch.seal(inner.header(FLAG_EPOCH_OPEN, &place));
        commit(place, sealed, true).await?;
        inner.durable.set(number);
        inner.durable_end.set(end);
        inner.proven.set(number);
        Ok(())
    }
}

/// Step 2: whatever was read is on the medium when this returns.
async fn make_durable<D: Disk>(
    disk: &D,
    files: &[Rc<JournalFile<D>>],
    end: &LogEnd,
) -> Result<(), StorageError> {
    for place in &end.unproven {
        let file = nth(files, place.file);
        let mut window = Window::new(file);
        let mut offset = place.offset;
        let batch_end = place.offset.saturating_add(place.bytes);
        while offset < batch_end {
            let len = batch_end
                .saturating_sub(offset)
                .min(DISK_IO_BYTES_MAX as u64) as usize;
            let mut buf = disk.buffer(len);
            buf.as_mut_slice()
                .copy_from_slice(window.at(offset, len).await?);
            write_whole(&file.file, &file.path, buf, offset).await?;
            offset = offset.saturating_add(len as u64);
        }
    }
    let to = end.file.saturating_add(1);
    for file in files.iter().take(to).skip(end.unproven_file()) {
        file.file
            .sync_data()
            .await
            .map_err(StorageError::io("sync", &file.path))?;
    }
    Ok(())
}

/// Cuts files to the size they were made with.
async fn trim<D: Disk>(
    files: &[Rc<JournalFile<D>>],
    report: &mut RecoveryReport,
) -> Result<(), StorageError> {
    for file in files {
        let expected = file.header.file_bytes;
        if file.len <= expected {
            continue;
        }
        report
            .trimmed
            .push((file.path.clone(), file.len.saturating_sub(expected)));
        file.file
            .truncate(expected)
            .await
            .map_err(StorageError::io("truncate", &file.path))?;
        file.file
            .sync_data()
            .await
            .map_err(StorageError::io("sync", &file.path))?;
    }
    Ok(())
}
