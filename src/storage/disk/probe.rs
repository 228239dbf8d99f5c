//! Whether a directory takes direct I/O, asked before glommio is.
//!
//! glommio turns some refusals into panics (a `statfs` it cannot read, a block
//! device whose queue directory is not what it expects), so the question is
//! put here first, with plain system calls on a file made for it. The answer
//! decides between direct and buffered I/O for the whole directory, and
//! `thalweg doctor` prints it.

use std::ffi::CString;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::base::limits::DISK_ALIGN;

use super::AlignedBuf;

/// What a directory's file system says to direct I/O.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DirectIo {
    /// Aligned direct writes and reads work.
    Works,
    /// The file system refuses `O_DIRECT` or an aligned transfer; errno.
    Refused(i32),
    /// Direct I/O may work, but glommio cannot read this of the block device's description.
    DeviceUnreadable(PathBuf),
    /// The file system lives in memory (tmpfs, ramfs): there is nothing to be direct to.
    Memory,
}

/// Files of `/sys/dev/block/M:0/queue` that glommio reads without asking.
const QUEUE_FILES: [&str; 7] = [
    "rotational",
    "minimum_io_size",
    "optimal_io_size",
    "logical_block_size",
    "physical_block_size",
    "max_sectors_kb",
    "max_segment_size",
];

/// Names of probe files begin so; one may be left behind by a crash.
pub const PROBE_PREFIX: &str = ".direct-io-probe-";

/// Tries one aligned direct write and read on a file made in `dir` and removed again.
///
/// # Errors
/// Not even a file could be made there.
pub fn probe_direct_io(dir: &Path) -> io::Result<DirectIo> {
    ProbeFile::create(dir).map(|probe| probe.answer.clone())
}

/// A file of one block on which direct I/O was tried; removed when dropped.
pub(super) struct ProbeFile {
    pub(super) path: PathBuf,
    pub(super) answer: DirectIo,
}

impl ProbeFile {
    pub(super) fn create(dir: &Path) -> io::Result<Self> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let (pid, next) = (std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let path = dir.join(format!("{PROBE_PREFIX}{pid}-{next}"));
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(true)
            .open(&path)?;
        let mut probe = Self {
            path,
            answer: DirectIo::Memory,
        };
        probe.answer = probe_file(&probe.path, &file)?;
        Ok(probe)
    }
}

impl Drop for ProbeFile {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_file(&self.path) {
            tracing::debug!(path = %self.path.display(), %error, "a probe file stays behind");
        }
    }
}

fn probe_file(path: &Path, file: &File) -> io::Result<DirectIo> {
    let device = file.metadata()?.dev();
    let (major, minor) = (libc::major(device), libc::minor(device));
    // In-memory file systems have no device of their own: major 0, no entry in sysfs. They may
    // accept O_DIRECT (tmpfs does since Linux 6.6), which would say nothing about durability.
    if is_memory(path)? {
        return Ok(DirectIo::Memory);
    }
    if let Some(missing) = unreadable_queue_file(major) {
        tracing::debug!(major, minor, missing = %missing.display(), "block device description");
        return Ok(DirectIo::DeviceUnreadable(missing));
    }
    let direct = OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(libc::O_DIRECT)
        .open(path)
        .and_then(|direct| {
            let mut buf = AlignedBuf::global(DISK_ALIGN);
            buf.as_mut_slice().fill(0);
            direct.write_all_at(buf.as_slice(), 0)?;
            direct.read_exact_at(buf.as_mut_slice(), 0)
        });
    match direct {
        Ok(()) => Ok(DirectIo::Works),
        Err(error) if error.raw_os_error() == Some(libc::ENOSPC) => Err(error),
        Err(error) => Ok(DirectIo::Refused(error.raw_os_error().unwrap_or(libc::EIO))),
    }
}

/// True on tmpfs and ramfs.
fn is_memory(path: &Path) -> io::Result<bool> {
    const RAMFS_MAGIC: i64 = 0x8584_58f6;
    let kind = file_system_type(path)?;
    Ok(kind == libc::TMPFS_MAGIC || kind == RAMFS_MAGIC)
}

/// The first file that glommio would fail to read about a device, as it looks it up: by major
/// number, minor 0. A device without an entry is fine (it then assumes defaults).
fn unreadable_queue_file(major: u32) -> Option<PathBuf> {
    let device = fs::canonicalize(format!("/sys/dev/block/{major}:0")).ok()?;
    let queue = device.join("queue");
    let number = |name: &&str| {
        let text = fs::read_to_string(queue.join(name)).unwrap_or_default();
        text.trim_matches('\n').parse::<isize>().is_err()
    };
    if let Some(name) = QUEUE_FILES.iter().find(|name| number(name)) {
        return Some(queue.join(name));
    }
    let cache = fs::read_to_string(queue.join("write_cache")).unwrap_or_default();
    if !matches!(cache.trim_matches('\n'), "write back" | "write through") {
        return Some(queue.join("write_cache"));
    }
    let slaves = device.join("slaves");
    fs::read_dir(&slaves).is_err().then_some(slaves)
}

/// The file system's type (`f_type` of `statfs(2)`) at a path.
fn file_system_type(path: &Path) -> io::Result<i64> {
    Ok(statfs(path)?.f_type)
}

/// Bytes that this process may still take on the file system of a path.
pub(super) fn free_space(path: &Path) -> io::Result<u64> {
    let stat = statfs(path)?;
    Ok(stat.f_bavail.saturating_mul(stat.f_bsize.unsigned_abs()))
}

fn statfs(path: &Path) -> io::Result<libc::statfs> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    let mut stat = MaybeUninit::<libc::statfs>::uninit();
    // SAFETY: `path` is NUL-terminated and `stat` has the size and alignment of the structure that
    // the call fills in.
    let status = unsafe { libc::statfs(path.as_ptr(), stat.as_mut_ptr()) };
    if status != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call succeeded, so it filled in the whole structure; all bit patterns are valid.
    Ok(unsafe { stat.assume_init() })
}
