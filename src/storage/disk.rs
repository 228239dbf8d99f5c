//! What storage asks of a disk, and the buffers it asks with.
//!
//! The journal and everything else in `storage` are written against [`Disk`]
//! and [`DiskFile`]; which disk it is decides what a crash can do:
//! - [`GlommioDisk`]: io_uring through glommio, direct I/O where the file
//!   system takes it and buffered I/O where it does not;
//! - [`ReadOnlyDisk`]: plain system calls, no executor, and nothing that writes;
//! - [`SimulatedDisk`]: memory, a seed and a plan of faults. It loses, tears
//!   and reorders what was not synced, runs full, fails and corrupts.
//!
//! The contract is the kernel's, no stronger:
//! - a write that completed is visible to reads at once, and survives a crash
//!   of the process, but survives a loss of power only after a
//!   [`sync_data`](DiskFile::sync_data) that *started after it completed*;
//! - of writes not yet synced, any subset of 512-byte sectors may survive;
//! - a name survives only after [`sync_dir`](Disk::sync_dir) of its directory;
//! - a write or read may return fewer bytes than were asked for: callers check
//!   counts, not only errors;
//! - after a failed sync nothing is known about the writes before it, and
//!   syncing again does not help.
//!
//! Everything here runs on one thread: futures are not `Send`. Errors are
//! plain `io::Error`s; callers know the path and add it.

mod glommio_disk;
mod probe;
mod read_only;
mod ring_setup;
#[allow(
    clippy::arithmetic_side_effects,
    clippy::indexing_slicing,
    reason = "only tests use it: its own faults should end them"
)]
mod simulated;

use std::fs;
use std::future::{Future, poll_fn};
use std::io;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::task::Poll;
use std::time::Duration;

use glommio::io::{DmaBuffer, ReadResult};

use crate::base::limits::DISK_ALIGN;
use crate::storage::error::StorageError;

pub use glommio_disk::{GlommioDisk, GlommioFile};
pub use probe::{DirectIo, PROBE_PREFIX, probe_direct_io};
pub use read_only::{ReadOnlyDisk, ReadOnlyFile};
pub use simulated::{Crash, Fault, FaultPlan, Operation, SimulatedDisk, SimulatedFile};

/// How a file is opened. Every file may be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// An existing file, to be read.
    Read,
    /// An existing file, to be read and written.
    Write,
    /// A new file, to be read and written; refused if the name is taken.
    Create,
    /// As [`Access::Write`], and each write is durable when it completes (`O_DSYNC`).
    WriteDurable,
}

/// An open file: positioned I/O only, no cursor.
///
/// Offsets and lengths of reads and writes are multiples of
/// [`DISK_ALIGN`](crate::base::limits::DISK_ALIGN), and a length is at most
/// [`DISK_IO_BYTES_MAX`](crate::base::limits::DISK_IO_BYTES_MAX).
#[allow(clippy::len_without_is_empty)]
pub trait DiskFile: 'static {
    /// Reads up to `len` bytes; fewer only at the end of the file, or on a device's whim.
    fn read_at(&self, offset: u64, len: usize) -> impl Future<Output = io::Result<ReadBuf>>;

    /// Writes the buffer and says how many bytes the disk took.
    fn write_at(&self, buf: AlignedBuf, offset: u64) -> impl Future<Output = io::Result<usize>>;

    /// Makes every write that has completed durable, and the file's length with it.
    fn sync_data(&self) -> impl Future<Output = io::Result<()>>;

    /// Sets the length; what is added reads as zeros.
    fn truncate(&self, len: u64) -> impl Future<Output = io::Result<()>>;

    /// Reserves space for the first `len` bytes and makes the file that long.
    /// Bytes never written read as zeros.
    fn allocate(&self, len: u64) -> impl Future<Output = io::Result<()>>;

    /// Gives the space of a range back; the range reads as zeros.
    fn punch(&self, offset: u64, len: u64) -> impl Future<Output = io::Result<()>>;

    /// Length of the file, in bytes.
    fn len(&self) -> impl Future<Output = io::Result<u64>>;

    /// Closes the file. Dropping it closes it too, at some later turn.
    fn close(self) -> impl Future<Output = io::Result<()>>;
}

/// A place for files. Cloning gives another handle to the same disk.
pub trait Disk: Clone + 'static {
    /// An open file of this disk.
    type File: DiskFile;

    /// Opens or creates one file.
    fn open(&self, path: &Path, access: Access) -> impl Future<Output = io::Result<Self::File>>;

    /// A buffer of `len` bytes, aligned for this disk, with any content.
    fn buffer(&self, len: usize) -> AlignedBuf;

    /// Names in a directory, sorted.
    fn list_dir(&self, dir: &Path) -> impl Future<Output = io::Result<Vec<String>>>;

    /// Makes a directory and those above it; one that exists is fine.
    fn create_dir(&self, dir: &Path) -> impl Future<Output = io::Result<()>>;

    /// Renames a file, replacing what bears the new name.
    fn rename(&self, from: &Path, to: &Path) -> impl Future<Output = io::Result<()>>;

    /// Removes a file's name; its space returns when it is closed everywhere.
    fn remove(&self, path: &Path) -> impl Future<Output = io::Result<()>>;

    /// Makes the names in a directory durable as they are now.
    fn sync_dir(&self, dir: &Path) -> impl Future<Output = io::Result<()>>;

    /// Bytes that this process may still take on the file system of `dir`.
    fn free_space(&self, dir: &Path) -> impl Future<Output = io::Result<u64>>;

    /// Completes after `duration` by this disk's clock.
    fn sleep(&self, duration: Duration) -> impl Future<Output = ()>;
}

/// Writes the buffer at `offset` of the file that is called `path`.
///
/// # Errors
/// [`StorageError`], also when the disk took fewer bytes than there are.
pub async fn write_whole<F: DiskFile>(
    file: &F,
    path: &Path,
    buf: AlignedBuf,
    offset: u64,
) -> Result<(), StorageError> {
    let expected = buf.len();
    let written = file
        .write_at(buf, offset)
        .await
        .map_err(StorageError::io_at("write", path, offset))?;
    if written == expected {
        return Ok(());
    }
    Err(StorageError::ShortWrite {
        path: path.to_owned(),
        offset,
        written,
        expected,
    })
}

/// Opens the file `path`; `None` if there is none.
///
/// # Errors
/// [`StorageError::Io`].
pub async fn open_if_there<D: Disk>(
    disk: &D,
    path: &Path,
    access: Access,
) -> Result<Option<D::File>, StorageError> {
    match disk.open(path, access).await {
        Ok(file) => Ok(Some(file)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(StorageError::io("open", path)(error)),
    }
}

/// Opens the file `path`, which something names.
///
/// # Errors
/// [`StorageError::MissingFile`], [`StorageError::Io`].
pub async fn open_named<D: Disk>(
    disk: &D,
    path: &Path,
    access: Access,
) -> Result<D::File, StorageError> {
    let file = open_if_there(disk, path, access).await?;
    file.ok_or_else(|| StorageError::MissingFile {
        path: path.to_owned(),
    })
}

/// What the names in a directory stand for, in the order of the names, and the names that stand for
/// nothing.
///
/// # Errors
/// [`StorageError::Io`].
pub async fn list_by<D: Disk, T>(
    disk: &D,
    dir: &Path,
    parse: impl Fn(&str) -> Option<T>,
) -> Result<(Vec<T>, Vec<PathBuf>), StorageError> {
    let names = disk.list_dir(dir).await;
    let names = names.map_err(StorageError::io("list", dir))?;
    let (mut known, mut unknown) = (Vec::new(), Vec::new());
    for name in names {
        match parse(&name) {
            Some(parsed) => known.push(parsed),
            None => unknown.push(dir.join(name)),
        }
    }
    Ok((known, unknown))
}

/// Removes a file; one that is not there is fine.
///
/// # Errors
/// [`StorageError::Io`].
pub async fn remove_if_there<D: Disk>(disk: &D, path: &Path) -> Result<(), StorageError> {
    match disk.remove(path).await {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(StorageError::io("remove", path)(error))
        }
        _ => Ok(()),
    }
}

/// The last multiple of [`DISK_ALIGN`] at or before `offset`, in bytes.
#[must_use]
pub fn align_down(offset: u64) -> u64 {
    const BELOW: u64 = DISK_ALIGN as u64 - 1;
    offset & !BELOW
}

/// Writes buffers one behind the other from `offset` on, all of them on their way together.
///
/// # Errors
/// [`StorageError`] of the first that failed, when all have come back.
pub async fn write_all_at<F: DiskFile>(
    file: &F,
    path: &Path,
    buffers: Vec<AlignedBuf>,
    offset: u64,
) -> Result<(), StorageError> {
    if buffers.len() <= 1 {
        // The usual case needs no list.
        return match buffers.into_iter().next() {
            Some(only) => write_whole(file, path, only, offset).await,
            None => Ok(()),
        };
    }
    let mut at = offset;
    let mut writes = Vec::with_capacity(buffers.len());
    for buffer in buffers {
        let len = buffer.len() as u64;
        writes.push(Some(Box::pin(write_whole(file, path, buffer, at))));
        at = at.saturating_add(len);
    }
    let mut outcome = Ok(());
    poll_fn(|cx| {
        let mut pending = false;
        for write in &mut writes {
            let Some(running) = write else { continue };
            match running.as_mut().poll(cx) {
                Poll::Ready(result) => {
                    *write = None;
                    outcome = std::mem::replace(&mut outcome, Ok(())).and(result);
                }
                Poll::Pending => pending = true,
            }
        }
        if pending {
            Poll::Pending
        } else {
            Poll::Ready(())
        }
    })
    .await;
    outcome
}

/// The names in a directory, sorted: what [`Disk::list_dir`] asks of a real one.
fn sorted_names(dir: &Path) -> io::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(dir)? {
        names.push(entry?.file_name().to_string_lossy().into_owned());
    }
    names.sort_unstable();
    Ok(names)
}

/// Memory that direct I/O accepts: its address is a multiple of 4 KiB.
///
/// Its content is whatever was there before: write before you send.
#[derive(Debug)]
pub struct AlignedBuf(DmaBuffer);

impl AlignedBuf {
    /// A buffer from the general allocator: needs no executor.
    pub fn global(len: usize) -> Self {
        Self(glommio::allocate_dma_buffer_global(len))
    }

    /// Bytes in the buffer.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Shortens the buffer; `len` is at most its length.
    pub fn truncate(&mut self, len: usize) {
        self.0.trim_to_size(len);
    }

    /// The bytes.
    pub fn as_slice(&self) -> &[u8] {
        self.0.as_bytes()
    }

    /// The bytes, to be written.
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        self.0.as_bytes_mut()
    }
}

/// Bytes that a read returned. Cloning is cheap.
#[derive(Clone, Debug)]
pub struct ReadBuf(ReadBytes);

#[derive(Clone, Debug)]
enum ReadBytes {
    Ring(ReadResult),
    Heap(std::rc::Rc<[u8]>),
}

impl Deref for ReadBuf {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.0 {
            ReadBytes::Ring(bytes) => bytes,
            ReadBytes::Heap(bytes) => bytes,
        }
    }
}

impl From<ReadResult> for ReadBuf {
    fn from(bytes: ReadResult) -> Self {
        Self(ReadBytes::Ring(bytes))
    }
}

impl From<Vec<u8>> for ReadBuf {
    fn from(bytes: Vec<u8>) -> Self {
        Self(ReadBytes::Heap(bytes.into()))
    }
}
