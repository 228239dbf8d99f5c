//! `--repair`: keeps what verifies, sets the rest aside, and says what is lost.
//!
//! For damage that makes a start refuse. It works on the journal as it lies
//! and leaves one that opens:
//! - a file that is missing is made anew, one that has lost its end is given its
//!   length again, and a first block that is damaged is
//!   written again from the file's name and length;
//! - where a batch is damaged, everything up to the next whole batch of the log
//!   is copied to the quarantine directory and overwritten with a *filler*: a
//!   batch without records that takes the numbers of the lost batches and the
//!   positions of their records. Positions behind it stay what they were, so
//!   whoever applies them sees the gap.
//!
//! Copies are synced before anything is overwritten, and a copy is never
//! replaced by a later one: repair may crash and be run again. A torn filler
//! does not verify and is filled again.
//!
//! Damage to the last batches, those behind which no proof was written, cannot
//! be told from a torn write: opening cuts there, with or without repair.

use std::path::{Path, PathBuf};
use std::rc::Rc;

use super::file::{Home, JournalFile, NewFile, file_path, make_file};
use super::format::{BATCH_HEADER_BYTES, BatchHeader, FILE_HEADER_BYTES, FLAG_FILLER, FileHeader};
use super::listing::{list, nth, open_files};
use super::reader::scan_log;
use super::tail::{Found, Stop, search_continuation};
use super::window::Window;
use super::{Options, Position};
use crate::base::checksum::Checksum;
use crate::base::limits::{DISK_ALIGN, DISK_IO_BYTES_MAX};
use crate::storage::disk::{Access, Disk, DiskFile, align_down, write_whole};
use crate::storage::error::StorageError;

/// What repair did to one journal.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RepairReport {
    /// Files that were missing.
    pub made: Vec<PathBuf>,
    /// Files whose first block was damaged.
    pub headers: Vec<PathBuf>,
    /// Files that had lost their ends, and where they ended, in bytes.
    pub lengthened: Vec<(PathBuf, u64)>,
    /// Batches lost, by range.
    pub lost: Vec<LostBatches>,
    /// Copies of what was overwritten.
    pub quarantined: Vec<PathBuf>,
}

/// A range of batches that is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LostBatches {
    /// Number of the first.
    pub first: u64,
    /// Number of the last.
    pub last: u64,
    /// Records that were in them.
    pub records: u64,
}

/// Mends the journal in `dir`; what is overwritten goes to `quarantine` first. The journal must
/// not be open.
pub async fn repair<D: Disk>(
    disk: &D,
    dir: &Path,
    shard: u32,
    quarantine: &Path,
    options: &Options,
) -> Result<RepairReport, StorageError> {
    disk.create_dir(quarantine)
        .await
        .map_err(StorageError::io("create", quarantine))?;
    let home = Home {
        dir: dir.to_owned(),
        journal_id: options.journal_id,
        shard,
    };
    let mut repair = Repair {
        disk,
        home,
        quarantine,
        report: RepairReport::default(),
    };
    let numbers = repair.mend_files(options).await?;
    let files = open_files(disk, dir, &numbers, Access::Write).await?;
    if let Some(first) = files.first()
        && (first.header.journal_id, first.header.shard) != (options.journal_id, shard)
    {
        let path = first.path.clone();
        return Err(StorageError::ForeignFile { path });
    }
    while repair.mend_first_damage(&files).await? {}
    Ok(repair.report)
}

/// Whether the journal's first file is there: then nothing before what it holds is missing.
#[must_use]
pub fn begins(dir: &Path) -> bool {
    file_path(dir, 1).exists()
}

struct Repair<'a, D: Disk> {
    disk: &'a D,
    home: Home,
    quarantine: &'a Path,
    report: RepairReport,
}

/// A range of a file that a filler is to cover.
struct Slot {
    file: usize,
    from: u64,
    to: u64,
}

impl<D: Disk> Repair<'_, D> {
    /// Makes missing files and mends first blocks; the numbers of all files.
    async fn mend_files(&mut self, options: &Options) -> Result<Vec<u64>, StorageError> {
        let dir = self.home.dir.clone();
        let present = list(self.disk, &dir).await?.numbers;
        let (Some(&first), Some(&last)) = (present.first(), present.last()) else {
            return Ok(present);
        };
        // A file before the first takes the place of all that recovery needs and misses.
        let missing = first > 1 && self.starts_after(first, options.replay_from).await?;
        self.check_space(first, last, present.len(), options)
            .await?;
        let numbers: Vec<u64> = (first.saturating_sub(u64::from(missing))..=last).collect();
        for &number in &numbers {
            if !present.contains(&number) {
                let (bytes, access) = (options.file_bytes, Access::Write);
                make_file(
                    self.disk,
                    &self.home,
                    NewFile {
                        number,
                        bytes,
                        access,
                    },
                )
                .await?;
                self.report.made.push(file_path(&dir, number));
                continue;
            }
            match JournalFile::open(self.disk, &dir, number, Access::Read).await {
                Ok(file) if file.is_short() => self.lengthen(&file).await?,
                Ok(_) => {}
                Err(StorageError::DamagedFileHeader { path }) => {
                    self.mend_header(number, path).await?;
                }
                Err(error) => return Err(error),
            }
        }
        Ok(numbers)
    }

    /// Whether the files that are missing between `first` and `last` can be made: a file whose name
    /// was damaged must not fill the disk.
    async fn check_space(
        &self,
        first: u64,
        last: u64,
        present: usize,
        options: &Options,
    ) -> Result<(), StorageError> {
        let dir = &self.home.dir;
        let free = self.disk.free_space(dir).await;
        let free = free.map_err(StorageError::io("statfs", dir))?;
        let missing = last
            .saturating_sub(first)
            .saturating_add(1)
            .saturating_sub(present as u64);
        let needed = missing.saturating_mul(options.file_bytes);
        if needed <= free {
            return Ok(());
        }
        Err(StorageError::DiskFull {
            dir: dir.clone(),
            free,
            needed,
        })
    }

    /// True if the file begins after `position`; also if what it begins with does not verify.
    async fn starts_after(&self, number: u64, position: Position) -> Result<bool, StorageError> {
        match JournalFile::open(self.disk, &self.home.dir, number, Access::Read).await {
            Ok(file) => {
                let first = Window::new(&file)
                    .whole_batch(FILE_HEADER_BYTES, |_| true)
                    .await?;
                Ok(first.is_none_or(|header| header.first_record > position.0))
            }
            Err(StorageError::DamagedFileHeader { .. }) => Ok(true),
            Err(error) => Err(error),
        }
    }

    /// Gives a file that has lost its end its length again; what was there reads as zeros.
    async fn lengthen(&mut self, short: &JournalFile<D>) -> Result<(), StorageError> {
        let (path, io) = (&short.path, StorageError::io);
        let file = self.disk.open(path, Access::Write).await;
        let file = file.map_err(io("open", path))?;
        let lengthened = file.truncate(short.header.file_bytes).await;
        lengthened.map_err(io("truncate", path))?;
        file.sync_data().await.map_err(io("sync", path))?;
        self.report.lengthened.push((path.clone(), short.len));
        Ok(())
    }

    /// Writes a file's first block again. Its size is what whole blocks it has.
    async fn mend_header(&mut self, number: u64, path: PathBuf) -> Result<(), StorageError> {
        let io = StorageError::io;
        let file = self
            .disk
            .open(&path, Access::Write)
            .await
            .map_err(io("open", &path))?;
        let len = file.len().await.map_err(io("stat", &path))?;
        let file_bytes = align_down(len).max(2 * FILE_HEADER_BYTES);
        let (journal_id, shard) = (self.home.journal_id, self.home.shard);
        let header = FileHeader {
            journal_id,
            file_number: number,
            file_bytes,
            shard,
        };
        let file = JournalFile {
            file,
            path: path.clone(),
            header,
            len,
        };
        self.set_aside(&file, 0, FILE_HEADER_BYTES).await?;
        let mut block = self.disk.buffer(FILE_HEADER_BYTES as usize);
        header.encode(block.as_mut_slice());
        let file = Rc::new(file);
        write_whole(&file.file, &file.path, block, 0).await?;
        file.file.sync_data().await.map_err(io("sync", &path))?;
        self.report.headers.push(path);
        Ok(())
    }

    /// Fills the first damaged range; false if there is none.
    #[expect(
        clippy::arithmetic_side_effects,
        reason = "what is lost lies between two batches, so `first` is at most `last`, each slot \
                  stands for one batch of them, and numbers are in range where they are decoded"
    )]
    async fn mend_first_damage(
        &mut self,
        files: &[Rc<JournalFile<D>>],
    ) -> Result<bool, StorageError> {
        let scan = scan_log(files, Position(u64::MAX), |_, _| Ok(())).await?;
        let Some(proof) = scan.proof else {
            return Ok(false);
        };
        let next_record = scan.end.as_ref().map_or(0, |end| end.next_record);
        let next = search_continuation(files, scan.stop, proof).await?;
        let lost = LostBatches {
            first: scan.stop.next_number,
            last: next.header.number - 1,
            records: next.header.first_record.saturating_sub(next_record),
        };
        let mut slots = slots(files, scan.stop, next);
        // A header could be forged so that there is nothing to fill, or too much for a filler to
        // say: neither would ever verify.
        let Some(lost_records) = u32::try_from(lost.records)
            .ok()
            .filter(|_| !slots.is_empty())
        else {
            return Err(StorageError::DamagedBatch {
                path: nth(files, scan.stop.file).path.clone(),
                offset: scan.stop.offset,
                batch: lost.first,
                proof: next.header.number,
            });
        };
        // Each slot held at least one of the lost batches, except perhaps the first: the log
        // may just have had no room left in that file.
        while slots.len() as u64 > lost.last - lost.first + 1 {
            slots.remove(0);
        }
        // The last first: until it verifies, the damage is found again at the same place.
        let count = slots.len() as u64;
        for (index, slot) in slots.iter().enumerate().rev() {
            let first = index == 0;
            let filler = BatchHeader {
                flags: FLAG_FILLER,
                number: lost.last + 1 - (count - index as u64),
                durable: lost.first - 1,
                // The first stands for all lost records.
                first_record: if first {
                    next_record
                } else {
                    next.header.first_record
                },
                record_count: if first { lost_records } else { 0 },
                ..next.header
            };
            self.fill(nth(files, slot.file), slot, filler).await?;
        }
        self.report.lost.push(lost);
        Ok(true)
    }

    /// Overwrites a range with a filler, having set it aside.
    async fn fill(
        &mut self,
        file: &Rc<JournalFile<D>>,
        slot: &Slot,
        filler: BatchHeader,
    ) -> Result<(), StorageError> {
        self.set_aside(file, slot.from, slot.to).await?;
        let bytes = slot.to.saturating_sub(slot.from);
        let body_bytes = bytes.saturating_sub(BATCH_HEADER_BYTES as u64);
        // Zeros up to the end: the rest of the header's block, and whole blocks.
        let mut checksum =
            Checksum::seeded(filler.epoch).with(&[0; DISK_ALIGN - BATCH_HEADER_BYTES]);
        for _ in (DISK_ALIGN as u64..bytes).step_by(DISK_ALIGN) {
            checksum = checksum.with(&[0; DISK_ALIGN]);
        }
        let header = BatchHeader {
            file_number: file.number(),
            offset: slot.from,
            body_bytes: body_bytes as u32,
            body_checksum: checksum.value(),
            ..filler
        };
        let mut offset = slot.from;
        while offset < slot.to {
            let len = slot.to.saturating_sub(offset).min(DISK_IO_BYTES_MAX as u64) as usize;
            let mut piece = self.disk.buffer(len);
            piece.as_mut_slice().fill(0);
            if offset == slot.from {
                header.encode(piece.as_mut_slice());
            }
            write_whole(&file.file, &file.path, piece, offset).await?;
            offset = offset.saturating_add(len as u64);
        }
        file.file
            .sync_data()
            .await
            .map_err(StorageError::io("sync", &file.path))
    }

    /// Copies a range of a file to the quarantine, durable, under a name of its own.
    async fn set_aside(
        &mut self,
        file: &JournalFile<D>,
        from: u64,
        to: u64,
    ) -> Result<(), StorageError> {
        let (copy, path) = self.new_copy(file.number(), from).await?;
        let mut window = Window::new(file);
        let mut offset = from;
        while offset < to {
            let len = to.saturating_sub(offset).min(DISK_IO_BYTES_MAX as u64) as usize;
            let mut piece = self.disk.buffer(len);
            piece
                .as_mut_slice()
                .copy_from_slice(window.at(offset, len).await?);
            write_whole(&copy, &path, piece, offset.saturating_sub(from)).await?;
            offset = offset.saturating_add(len as u64);
        }
        copy.sync_data()
            .await
            .map_err(StorageError::io("sync", &path))?;
        let dir = self.quarantine;
        self.disk
            .sync_dir(dir)
            .await
            .map_err(StorageError::io("sync", dir))?;
        self.report.quarantined.push(path);
        Ok(())
    }

    /// Creates a file in the quarantine whose name no earlier copy has.
    async fn new_copy(&self, number: u64, from: u64) -> Result<(D::File, PathBuf), StorageError> {
        let mut attempt = 0u32;
        loop {
            let path = self
                .quarantine
                .join(format!("{number:020}-{from}.{attempt}"));
            match self.disk.open(&path, Access::Create).await {
                Ok(copy) => return Ok((copy, path)),
                Err(error) if error.raw_os_error() == Some(libc::EEXIST) => {
                    attempt = attempt.saturating_add(1);
                }
                Err(error) => return Err(StorageError::io("create", &path)(error)),
            }
        }
    }
}

/// The ranges between a stop and the batch with which the log goes on.
fn slots<D: Disk>(files: &[Rc<JournalFile<D>>], stop: Stop, next: Found) -> Vec<Slot> {
    let mut slots = Vec::new();
    for (file, open) in files
        .iter()
        .enumerate()
        .take(next.file.saturating_add(1))
        .skip(stop.file)
    {
        let from = if file == stop.file {
            stop.offset
        } else {
            FILE_HEADER_BYTES
        };
        let to = if file == next.file {
            next.header.offset
        } else {
            open.header.file_bytes
        };
        if from < to {
            slots.push(Slot { file, from, to });
        }
    }
    slots
}
