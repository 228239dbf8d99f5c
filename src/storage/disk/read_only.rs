//! A disk that changes nothing, for looking at data that may be someone else's.
//!
//! Plain system calls, so that a data directory can be examined where there is
//! no io_uring, and without the probe file that a real start makes. Whatever
//! would change the disk is refused with `EROFS`. Reads are direct where the
//! file system takes that: they are of the medium, not of what the page cache
//! remembers of it.

use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::time::Duration;

use crate::base::limits::DISK_ALIGN;

use super::probe;
use super::{Access, AlignedBuf, Disk, DiskFile, ReadBuf, sorted_names};

/// The operating system's file systems, to be read only. Blocks; needs no executor.
#[derive(Clone, Copy, Debug, Default)]
pub struct ReadOnlyDisk;

/// A file of a [`ReadOnlyDisk`].
#[derive(Debug)]
pub struct ReadOnlyFile(File);

fn refused<T>() -> io::Result<T> {
    Err(io::Error::from_raw_os_error(libc::EROFS))
}

fn read(file: &File, offset: u64, len: usize) -> io::Result<Vec<u8>> {
    let mut buf = AlignedBuf::global(len);
    loop {
        match file.read_at(buf.as_mut_slice(), offset) {
            Ok(read) => return Ok(buf.as_slice().iter().take(read).copied().collect()),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// The file for direct reads; `None` where the file system refuses one of them.
fn open_direct(path: &Path) -> Option<File> {
    let mut options = OpenOptions::new();
    let options = options.read(true).custom_flags(libc::O_DIRECT);
    let file = options.open(path).ok()?;
    match read(&file, 0, DISK_ALIGN) {
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => None,
        // Any other failure is for the caller's own reads to find.
        _ => Some(file),
    }
}

impl Disk for ReadOnlyDisk {
    type File = ReadOnlyFile;

    async fn open(&self, path: &Path, access: Access) -> io::Result<ReadOnlyFile> {
        if access != Access::Read {
            return refused();
        }
        match open_direct(path) {
            Some(file) => Ok(ReadOnlyFile(file)),
            None => File::open(path).map(ReadOnlyFile),
        }
    }

    fn buffer(&self, len: usize) -> AlignedBuf {
        AlignedBuf::global(len)
    }

    async fn list_dir(&self, dir: &Path) -> io::Result<Vec<String>> {
        sorted_names(dir)
    }

    async fn create_dir(&self, _: &Path) -> io::Result<()> {
        refused()
    }

    async fn rename(&self, _: &Path, _: &Path) -> io::Result<()> {
        refused()
    }

    async fn remove(&self, _: &Path) -> io::Result<()> {
        refused()
    }

    async fn sync_dir(&self, _: &Path) -> io::Result<()> {
        refused()
    }

    async fn free_space(&self, dir: &Path) -> io::Result<u64> {
        probe::free_space(dir)
    }

    async fn sleep(&self, duration: Duration) {
        std::thread::sleep(duration);
    }
}

impl DiskFile for ReadOnlyFile {
    async fn read_at(&self, offset: u64, len: usize) -> io::Result<ReadBuf> {
        read(&self.0, offset, len).map(ReadBuf::from)
    }

    async fn write_at(&self, _: AlignedBuf, _: u64) -> io::Result<usize> {
        refused()
    }

    async fn sync_data(&self) -> io::Result<()> {
        refused()
    }

    async fn truncate(&self, _: u64) -> io::Result<()> {
        refused()
    }

    async fn allocate(&self, _: u64) -> io::Result<()> {
        refused()
    }

    async fn punch(&self, _: u64, _: u64) -> io::Result<()> {
        refused()
    }

    async fn len(&self) -> io::Result<u64> {
        Ok(self.0.metadata()?.len())
    }

    async fn close(self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use futures_lite::future::block_on;

    use super::*;

    #[test]
    fn reads_and_refuses_everything_else() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("file");
        let content: Vec<u8> = (0..10_000u32).map(|number| number as u8).collect();
        fs::write(&path, &content).expect("a file");
        block_on(async {
            let disk = ReadOnlyDisk;
            let file = disk.open(&path, Access::Read).await.expect("it is there");
            assert_eq!(file.len().await.ok(), Some(10_000));
            let block = file.read_at(4096, 4096).await.expect("readable");
            assert_eq!(&block[..], &content[4096..8192]);
            let end = file.read_at(8192, 4096).await.expect("readable");
            assert_eq!(&end[..], &content[8192..]);
            let write = file.write_at(disk.buffer(4096), 0).await;
            assert_eq!(write.unwrap_err().raw_os_error(), Some(libc::EROFS));
            assert!(file.truncate(0).await.is_err());
            for access in [Access::Write, Access::Create, Access::WriteDurable] {
                assert!(disk.open(&path, access).await.is_err());
            }
            assert!(disk.remove(&path).await.is_err());
        });
        assert_eq!(fs::read(&path).ok(), Some(content));
    }
}
