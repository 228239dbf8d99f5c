//! What can go wrong with bytes on disk: one enum, a variant per cause.
//!
//! Every message says what happened, where, and what to do next: it is what an
//! operator reads when a start is refused or a shard stops. Nothing a file
//! contains leads to a panic; it leads here.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use bytesize::ByteSize;

use super::data_dir::Mark;
use crate::base::amount::Amount;

/// Why a record could not be applied at replay; the layer above defines it.
pub type ApplyError = Box<dyn std::error::Error + Send + Sync>;

/// A failure of the storage layer.
#[derive(Debug)]
#[non_exhaustive]
pub enum StorageError {
    /// A system call failed.
    Io {
        /// What was being done, as a verb: "write", "sync".
        operation: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// Where in the file, in bytes, for reads and writes.
        offset: Option<u64>,
        /// What the system said.
        source: io::Error,
    },
    /// A write took fewer bytes than it was given.
    ShortWrite {
        /// The file.
        path: PathBuf,
        /// Where the write began, in bytes.
        offset: u64,
        /// Bytes the disk took.
        written: usize,
        /// Bytes it was given.
        expected: usize,
    },
    /// A read inside the file returned nothing.
    ShortRead {
        /// The file.
        path: PathBuf,
        /// Where the read began, in bytes.
        offset: u64,
        /// Bytes that should be there.
        expected: usize,
    },
    /// A batch that was acknowledged does not verify: something later proves that it was durable.
    DamagedBatch {
        /// The file.
        path: PathBuf,
        /// Where the batch begins, in bytes.
        offset: u64,
        /// The batch's number.
        batch: u64,
        /// The number of the whole later batch that proves it.
        proof: u64,
    },
    /// A batch verifies, but a record or a flag in it makes no sense: a mistake of the program that
    /// wrote it, or a later version.
    MalformedBatch {
        /// The file.
        path: PathBuf,
        /// Where the batch begins, in bytes.
        offset: u64,
        /// The batch's number.
        batch: u64,
    },
    /// A block of a segment is not whole, or is not the one that should be there.
    DamagedBlock {
        /// The file.
        path: PathBuf,
        /// Where the block begins, in bytes.
        offset: u64,
        /// How long it is, in bytes.
        bytes: u64,
        /// The incarnation of the stream that it belongs to.
        stream: u64,
        /// The offset of its first byte in the stream.
        start: u64,
    },
    /// The first block of a journal file or a segment does not verify.
    DamagedFileHeader {
        /// The file.
        path: PathBuf,
    },
    /// A journal file belongs to another journal, shard or place in the sequence.
    ForeignFile {
        /// The file.
        path: PathBuf,
    },
    /// A file of the sequence is not there.
    MissingFile {
        /// The file that should be there.
        path: PathBuf,
    },
    /// A file is longer or shorter than what names it, or its own beginning, says.
    WrongLength {
        /// The file.
        path: PathBuf,
        /// Its length, in bytes.
        found: u64,
        /// What it should be.
        expected: u64,
    },
    /// The journal starts after the position that recovery needs.
    MissingRecords {
        /// The journal's directory.
        dir: PathBuf,
        /// The position needed.
        needed: u64,
        /// The oldest position there is; `None` if there is none.
        oldest: Option<u64>,
    },
    /// The journal ends before what the checkpoint contains of it.
    ShortJournal {
        /// The journal's directory.
        dir: PathBuf,
        /// The position behind its last record.
        end: u64,
        /// The position behind the last record that the checkpoint contains.
        included: u64,
    },
    /// The journal was written by a later start than the manifest knows of.
    EpochAhead {
        /// The file.
        path: PathBuf,
        /// Where the batch begins, in bytes.
        offset: u64,
        /// The epoch found.
        found: u64,
        /// The epoch of this start.
        current: u64,
    },
    /// Written in a format that this program does not read.
    UnsupportedFormat {
        /// The file.
        path: PathBuf,
        /// The version found.
        found: u32,
        /// The version this program reads and writes.
        supported: u32,
    },
    /// The manifest does not verify.
    DamagedManifest {
        /// The file.
        path: PathBuf,
    },
    /// The directory holds data but no manifest.
    MissingManifest {
        /// The file that should be there.
        path: PathBuf,
    },
    /// The directory is a backup, or a restore into it has not ended.
    Backup {
        /// The directory.
        dir: PathBuf,
        /// What it is.
        mark: Mark,
    },
    /// A file where a directory should be.
    NotADirectory {
        /// The file.
        path: PathBuf,
    },
    /// Another process uses the data directory.
    Locked {
        /// The data directory.
        dir: PathBuf,
        /// That process, if the lock file says.
        pid: Option<u32>,
    },
    /// The layer above refused a record at replay.
    Apply {
        /// The file.
        path: PathBuf,
        /// Where the record's batch begins, in bytes.
        offset: u64,
        /// The record's position.
        position: u64,
        /// Why.
        source: ApplyError,
    },
    /// A checkpoint does not verify, or is not as long as it was written.
    DamagedCheckpoint {
        /// The file.
        path: PathBuf,
        /// Where the chunk that does not verify begins, in bytes.
        offset: u64,
        /// What is wrong with it, as a clause.
        what: &'static str,
    },
    /// The file that names a shard's checkpoint does not verify.
    DamagedCurrent {
        /// The file.
        path: PathBuf,
    },
    /// The layer above refused an entry of a checkpoint.
    ApplyEntry {
        /// The file.
        path: PathBuf,
        /// Where the entry's chunk begins, in bytes.
        offset: u64,
        /// The number of entries before it.
        entry: u64,
        /// Why.
        source: ApplyError,
    },
    /// An entry is too large for a checkpoint.
    EntryTooLarge {
        /// The file it was meant for.
        path: PathBuf,
        /// Its size, in bytes.
        bytes: u64,
        /// The most there may be.
        bytes_max: u64,
    },
    /// A checkpoint was to be continued after a write of it had failed.
    CheckpointStopped {
        /// The unfinished file.
        path: PathBuf,
    },
    /// The largest record does not fit a journal file.
    FileTooSmall {
        /// Configured size of a journal file, in bytes.
        file_bytes: u64,
        /// Bytes it needs for the largest record.
        needed: u64,
    },
    /// The file system has less room than a new journal file needs.
    DiskFull {
        /// The directory.
        dir: PathBuf,
        /// Bytes free.
        free: u64,
        /// Bytes needed, reserve included.
        needed: u64,
    },
}

impl StorageError {
    /// For `map_err`: adds what was done and where to an `io::Error`.
    pub fn io(operation: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Io {
            operation,
            path,
            offset: None,
            source,
        }
    }

    /// As [`Self::io`], at an offset.
    pub(super) fn io_at(
        operation: &'static str,
        path: &Path,
        offset: u64,
    ) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Io {
            operation,
            path,
            offset: Some(offset),
            source,
        }
    }

    /// True if the cause is a full file system or quota.
    pub fn is_full(&self) -> bool {
        let errno = match self {
            Self::Io { source, .. } => source.raw_os_error(),
            Self::DiskFull { .. } => return true,
            _ => None,
        };
        matches!(errno, Some(libc::ENOSPC | libc::EDQUOT))
    }

    /// True if a file or directory that was asked for is not there.
    pub fn is_missing(&self) -> bool {
        matches!(self, Self::Io { source, .. } if source.kind() == io::ErrorKind::NotFound)
    }
}

impl fmt::Display for StorageError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io {
                operation,
                path,
                offset: Some(offset),
                source,
            } => {
                write!(
                    f,
                    "{operation} at byte {offset} of {} failed: {source}",
                    path.display()
                )?;
                advise(f, source)
            }
            Self::Io {
                operation,
                path,
                offset: None,
                source,
            } => {
                write!(f, "{operation} of {} failed: {source}", path.display())?;
                advise(f, source)
            }
            Self::ShortWrite {
                path,
                offset,
                written,
                expected,
            } => write!(
                f,
                "write at byte {offset} of {} took {written} of {expected} bytes: the disk is \
                 likely full or failing; check it, then restart",
                path.display()
            ),
            Self::ShortRead {
                path,
                offset,
                expected,
            } => write!(
                f,
                "read at byte {offset} of {} returned nothing where {expected} bytes should be: \
                 the file was cut or the disk is failing; restore it, or start with --repair",
                path.display()
            ),
            Self::DamagedBatch {
                path,
                offset,
                batch,
                proof,
            } => write!(
                f,
                "batch {batch} at byte {offset} of {} is damaged, and batch {proof} after it \
                 proves that it was durable: acknowledged data would be lost; restore the file \
                 from a copy, or start with --repair to keep what verifies",
                path.display()
            ),
            Self::MalformedBatch {
                path,
                offset,
                batch,
            } => write!(
                f,
                "batch {batch} at byte {offset} of {} verifies but makes no sense: it was written \
                 by another version of this program, or a faulty one; keep the file and report it",
                path.display()
            ),
            Self::DamagedBlock {
                path,
                offset,
                bytes,
                stream,
                start,
            } => write!(
                f,
                "the block of {bytes} bytes at byte {offset} of {}, with the bytes of stream \
                 {stream} from {start} on, is damaged: restore the file from a copy, or start with \
                 --repair to go on without them",
                path.display()
            ),
            Self::DamagedFileHeader { path } => write!(
                f,
                "the first block of {} is damaged: restore the file from a copy, or start with \
                 --repair",
                path.display()
            ),
            Self::ForeignFile { path } => write!(
                f,
                "{} belongs to another journal or another place in this one: move it back to \
                 where it came from",
                path.display()
            ),
            Self::MissingFile { path } => write!(
                f,
                "{} is missing: restore it from a copy, or start with --repair to keep what the \
                 other files hold",
                path.display()
            ),
            Self::WrongLength {
                path,
                found,
                expected,
            } => write!(
                f,
                "{} has {found} bytes where {expected} were written: restore it from a copy, or \
                 start with --repair to go on without what is lost",
                path.display()
            ),
            Self::MissingRecords {
                dir,
                needed,
                oldest,
            } => {
                let dir = dir.display();
                write!(f, "the journal in {dir} ")?;
                match oldest {
                    Some(oldest) => write!(f, "begins at record {oldest}")?,
                    None => write!(f, "holds no record")?,
                }
                write!(
                    f,
                    ", but recovery needs record {needed}: its first files are missing; restore \
                     them from a copy, or start with --repair"
                )
            }
            Self::ShortJournal { dir, end, included } => write!(
                f,
                "the journal in {} ends at record {end}, but the checkpoint beside it contains \
                 records up to {included}: its last batches are lost; restore it from a copy, or \
                 start with --repair to go on without them",
                dir.display()
            ),
            Self::EpochAhead {
                path,
                offset,
                found,
                current,
            } => write!(
                f,
                "the batch at byte {offset} of {} was written in epoch {found}, later than this \
                 start (epoch {current}): the manifest is older than the journal; restore both \
                 from the same copy",
                path.display()
            ),
            Self::UnsupportedFormat {
                path,
                found,
                supported,
            } => write!(
                f,
                "{} has format {found}; this program reads format {supported}: start the version \
                 that wrote it",
                path.display()
            ),
            Self::DamagedManifest { path } => write!(
                f,
                "{} is damaged: nothing can be started without it; restore it from a copy of the \
                 same moment as the data",
                path.display()
            ),
            Self::MissingManifest { path } => write!(
                f,
                "{} is missing: if this is a data directory restore it from a copy of the same \
                 moment; if not name the right one, or an empty one for a new server",
                path.display()
            ),
            Self::Backup {
                dir,
                mark: Mark::Backup,
            } => write!(
                f,
                "{} is a backup, not a data directory: restore it into an empty directory \
                 (`thalweg restore`), and use that",
                dir.display()
            ),
            Self::Backup {
                dir,
                mark: Mark::Unfinished,
            } => write!(
                f,
                "{} is a backup that was not finished: take another, and remove this one",
                dir.display()
            ),
            Self::Backup {
                dir,
                mark: Mark::Restoring,
            } => write!(
                f,
                "{} is being restored, or its restore did not end: if no `thalweg restore` is at \
                 work there, remove it and restore the backup again",
                dir.display()
            ),
            Self::NotADirectory { path } => write!(
                f,
                "{} is a file, not a directory: name the directory",
                path.display()
            ),
            Self::Locked {
                dir,
                pid: Some(pid),
            } => write!(
                f,
                "{} is in use by process {pid}: stop it first, or choose another data directory",
                dir.display()
            ),
            Self::Locked { dir, pid: None } => write!(
                f,
                "{} is in use by another process: stop it first, or choose another data directory",
                dir.display()
            ),
            Self::Apply {
                path,
                offset,
                position,
                source,
            } => write!(
                f,
                "record {position}, in the batch at byte {offset} of {}, cannot be applied: \
                 {source}",
                path.display()
            ),
            Self::DamagedCheckpoint { path, offset, what } => write!(
                f,
                "the checkpoint {} is damaged at byte {offset}: {what}; restore it from a copy, \
                 or start with --repair to keep what verifies",
                path.display()
            ),
            Self::DamagedCurrent { path } => write!(
                f,
                "{} is damaged, and it says which checkpoint the shard starts from: restore it \
                 from a copy, or start with --repair",
                path.display()
            ),
            Self::ApplyEntry {
                path,
                offset,
                entry,
                source,
            } => write!(
                f,
                "entry {entry}, in the chunk at byte {offset} of the checkpoint {}, cannot be \
                 applied: {source}; it was written by a faulty or another program: keep the file \
                 and report it",
                path.display()
            ),
            Self::EntryTooLarge {
                path,
                bytes,
                bytes_max,
            } => write!(
                f,
                "an entry of {bytes} bytes does not fit the checkpoint {}, which takes \
                 {bytes_max}: no checkpoint is made and the journal is kept; report it",
                path.display()
            ),
            Self::CheckpointStopped { path } => write!(
                f,
                "the checkpoint {} stopped at an earlier failure and is not finished: the one \
                 before it still rules; see the error before this one",
                path.display()
            ),
            Self::FileTooSmall { file_bytes, needed } => write!(
                f,
                "a journal file of {} cannot hold the largest record, which needs {}: raise \
                 --journal-file-bytes or lower --request-bytes-max",
                Amount::Bytes(*file_bytes),
                Amount::Bytes(*needed)
            ),
            Self::DiskFull { dir, free, needed } => write!(
                f,
                "{} has {} free, and {} are needed: free space, or lower --disk-reserve-bytes",
                dir.display(),
                ByteSize(*free).display().iec(),
                ByteSize(*needed).display().iec()
            ),
        }
    }
}

/// What to do about an error of the system.
fn advise(f: &mut fmt::Formatter<'_>, source: &io::Error) -> fmt::Result {
    let advice = match source.raw_os_error() {
        Some(libc::ENOSPC | libc::EDQUOT) => "free space on the file system, then restart",
        Some(libc::EIO) => "check the disk (dmesg, smartctl), then restart",
        Some(libc::EROFS) => "the file system is read-only: remount it writable, then restart",
        Some(libc::EACCES | libc::EPERM) => "check who owns the data directory",
        Some(libc::EMFILE | libc::ENFILE) => "raise the limit on open files",
        Some(libc::ENOENT) => "it was removed or its file system is not mounted",
        Some(libc::ENOTDIR) => "part of that path is a file, not a directory",
        _ => return Ok(()),
    };
    write!(f, "; {advice}")
}

impl std::error::Error for StorageError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Io { source, .. } => Some(source),
            Self::Apply { source, .. } | Self::ApplyEntry { source, .. } => Some(&**source),
            _ => None,
        }
    }
}
