//! The real disk: io_uring through glommio.
//!
//! Reads, writes, syncs and space reservation go through the ring. Everything
//! that works on names (and `truncate`) goes to the executor's blocking
//! thread, off its core. A directory is synced with a true `fsync`: glommio's
//! own directory sync is `fdatasync`, which a file system may take to mean
//! that new names are not included.
//!
//! Direct I/O is used where the probe (`probe.rs`) says that it works. Elsewhere
//! files are buffered: syncs still make data durable, but reads may come from
//! the page cache, so data whose sync failed can look intact after a restart.
//! That is said once, as a warning, when the disk is opened.
//!
//! glommio asks for the file system by the path once more when it has opened a
//! file, and panics if that path is gone by then, as when somebody moves the
//! data directory away. So a file is opened first by its path and then, by
//! glommio, through the descriptor's own name in `/proc`, which cannot go.
//!
//! glommio asks once per device and executor whether reads can be polled for,
//! by reading from the first file that is opened. From an empty file that read
//! succeeds whatever the device can do, and every later read then fails with
//! `EOPNOTSUPP`: so the first file opened here is the probe's, which is not
//! empty.

use std::fs;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::Duration;

use glommio::GlommioError;
use glommio::io::{BufferedFile, DmaFile, OpenOptions};

use super::probe::{self, DirectIo, ProbeFile};
use super::{Access, AlignedBuf, Disk, DiskFile, ReadBuf, sorted_names};

/// Files on the operating system's file systems. Usable inside a glommio executor only.
#[derive(Clone, Copy, Debug)]
pub struct GlommioDisk {
    direct: bool,
}

/// A file of a [`GlommioDisk`].
#[derive(Debug)]
pub struct GlommioFile(Kind);

#[derive(Debug)]
enum Kind {
    Direct(DmaFile),
    Buffered(BufferedFile),
}

impl GlommioDisk {
    /// A disk for files at and below `dir`, which exists and lies on one file system. Each
    /// executor makes its own; making one blocks for a few small I/Os.
    ///
    /// # Errors
    /// No file can be made in `dir`.
    pub async fn new(dir: &Path) -> io::Result<Self> {
        let probe = ProbeFile::create(dir)?;
        let direct = probe.answer == DirectIo::Works;
        if direct {
            let first = DmaFile::open(&probe.path).await.map_err(plain)?;
            first.close().await.map_err(plain)?;
        } else {
            tracing::warn!(
                dir = %dir.display(),
                answer = ?probe.answer,
                "no direct I/O here: using buffered I/O, which is slower; choose a data directory \
                 on ext4 or XFS for full speed"
            );
        }
        Ok(Self { direct })
    }

    /// A disk that uses buffered I/O whatever the file system can do.
    pub fn buffered() -> Self {
        Self { direct: false }
    }

    /// True if files are opened with `O_DIRECT`.
    pub fn is_direct(&self) -> bool {
        self.direct
    }
}

/// The system's error inside glommio's, with its errno.
fn plain(error: GlommioError<()>) -> io::Error {
    match error {
        GlommioError::IoError(source) | GlommioError::EnhancedIoError { source, .. } => source,
        other => io::Error::other(other.to_string()),
    }
}

/// The name that an open file has as long as it is open, whatever becomes of its path.
fn own_name(file: &impl AsRawFd) -> String {
    format!("/proc/self/fd/{}", file.as_raw_fd())
}

/// Runs a blocking system call on the executor's blocking thread.
async fn blocking<T: Send + 'static>(
    call: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    glommio::executor().spawn_blocking(call).await
}

impl Disk for GlommioDisk {
    type File = GlommioFile;

    async fn open(&self, path: &Path, access: Access) -> io::Result<GlommioFile> {
        let mut options = OpenOptions::new();
        options.read(true).mode(0o644);
        options.write(access != Access::Read);
        if access == Access::WriteDurable {
            options.custom_flags(libc::O_DSYNC);
        }
        if !self.direct {
            options.create_new(access == Access::Create);
            let file = options.buffered_open(path).await.map_err(plain)?;
            return Ok(GlommioFile(Kind::Buffered(file)));
        }
        let by_path = path.to_owned();
        let held = blocking(move || {
            let mut options = fs::OpenOptions::new();
            options.read(true).write(access != Access::Read);
            options.create_new(access == Access::Create).mode(0o644);
            options.open(by_path)
        });
        let held = held.await?;
        let name = own_name(&held);
        let file = match options.dma_open(name).await.map_err(plain) {
            // There is no /proc here.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                options.dma_open(path).await.map_err(plain)
            }
            file => file,
        };
        Ok(GlommioFile(Kind::Direct(file?)))
    }

    fn buffer(&self, len: usize) -> AlignedBuf {
        AlignedBuf(glommio::allocate_dma_buffer(len))
    }

    async fn list_dir(&self, dir: &Path) -> io::Result<Vec<String>> {
        let dir = dir.to_owned();
        blocking(move || sorted_names(&dir)).await
    }

    async fn create_dir(&self, dir: &Path) -> io::Result<()> {
        let dir = dir.to_owned();
        blocking(move || fs::create_dir_all(dir)).await
    }

    async fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let (from, to) = (from.to_owned(), to.to_owned());
        blocking(move || fs::rename(from, to)).await
    }

    async fn remove(&self, path: &Path) -> io::Result<()> {
        let path = path.to_owned();
        blocking(move || fs::remove_file(path)).await
    }

    async fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        let dir = dir.to_owned();
        blocking(move || fs::File::open(dir)?.sync_all()).await
    }

    async fn free_space(&self, dir: &Path) -> io::Result<u64> {
        let dir = dir.to_owned();
        blocking(move || probe::free_space(&dir)).await
    }

    async fn sleep(&self, duration: Duration) {
        glommio::timer::sleep(duration).await;
    }
}

impl DiskFile for GlommioFile {
    async fn read_at(&self, offset: u64, len: usize) -> io::Result<ReadBuf> {
        let bytes = match &self.0 {
            Kind::Direct(file) => file.read_at_aligned(offset, len).await,
            Kind::Buffered(file) => file.read_at(offset, len).await,
        };
        Ok(bytes.map_err(plain)?.into())
    }

    async fn write_at(&self, buf: AlignedBuf, offset: u64) -> io::Result<usize> {
        match &self.0 {
            Kind::Direct(file) => file.write_at(buf.0, offset).await,
            Kind::Buffered(file) => file.write_at(buf.as_slice().to_vec(), offset).await,
        }
        .map_err(plain)
    }

    async fn sync_data(&self) -> io::Result<()> {
        match &self.0 {
            Kind::Direct(file) => file.fdatasync().await,
            Kind::Buffered(file) => file.fdatasync().await,
        }
        .map_err(plain)
    }

    async fn truncate(&self, len: u64) -> io::Result<()> {
        match &self.0 {
            Kind::Direct(file) => file.truncate(len).await,
            Kind::Buffered(file) => file.truncate(len).await,
        }
        .map_err(plain)
    }

    async fn allocate(&self, len: u64) -> io::Result<()> {
        match &self.0 {
            Kind::Direct(file) => file.pre_allocate(len, false).await,
            Kind::Buffered(file) => file.pre_allocate(len, false).await,
        }
        .map_err(plain)
    }

    async fn punch(&self, offset: u64, len: u64) -> io::Result<()> {
        match &self.0 {
            Kind::Direct(file) => file.deallocate(offset, len).await,
            Kind::Buffered(file) => file.deallocate(offset, len).await,
        }
        .map_err(plain)
    }

    async fn len(&self) -> io::Result<u64> {
        match &self.0 {
            Kind::Direct(file) => {
                // glommio would ask by the name that it opened it by.
                let name = own_name(file);
                match blocking(move || fs::metadata(name)).await {
                    Ok(metadata) => return Ok(metadata.len()),
                    Err(_) => file.file_size().await,
                }
            }
            Kind::Buffered(file) => file.file_size().await,
        }
        .map_err(plain)
    }

    async fn close(self) -> io::Result<()> {
        match self.0 {
            Kind::Direct(file) => file.close().await,
            Kind::Buffered(file) => file.close().await,
        }
        .map_err(plain)
    }
}
