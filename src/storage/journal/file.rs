//! Journal files as files: names, making one, opening one.
//!
//! A file gets its name last. It is made as `….preparing`, reserved, zeroed,
//! given its header and synced; then it is renamed to `….journal` and the
//! directory is synced. A crash before the rename leaves a file that the next
//! start removes; a crash after it leaves a whole one. So a `….journal` file
//! always has its full size, written blocks and a header, and anything else is
//! damage.

use std::path::{Path, PathBuf};
use std::rc::Rc;

use super::format::{FILE_HEADER_BYTES, FORMAT, FileHeader, NUMBER_MAX};
use crate::base::limits::DISK_IO_BYTES_MAX;
use crate::storage::disk::{Access, Disk, DiskFile, write_whole};
use crate::storage::error::StorageError;

/// Which journal this is and where it lies.
#[derive(Clone, Debug)]
pub(super) struct Home {
    pub(super) dir: PathBuf,
    pub(super) journal_id: u64,
    pub(super) shard: u32,
}

/// One file of the journal, open.
#[derive(Debug)]
pub(super) struct JournalFile<D: Disk> {
    pub(super) file: D::File,
    pub(super) path: PathBuf,
    pub(super) header: FileHeader,
    /// Length when it was opened, in bytes; equals `header.file_bytes` unless someone changed it.
    pub(super) len: u64,
}

/// What a name in a journal's directory stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Name {
    /// A file of the journal.
    File(u64),
    /// A file that was being made; its number.
    Preparing(u64),
    /// Not ours.
    Unknown,
}

impl Name {
    pub(super) fn parse(name: &str) -> Self {
        let number = |digits: &str| {
            match digits.len() {
                20 if digits.bytes().all(|byte| byte.is_ascii_digit()) => digits.parse().ok(),
                _ => None,
            }
            .filter(|number| *number < NUMBER_MAX)
        };
        match name.split_once('.') {
            Some((digits, "journal")) => number(digits).map_or(Self::Unknown, Self::File),
            Some((digits, "preparing")) => number(digits).map_or(Self::Unknown, Self::Preparing),
            _ => Self::Unknown,
        }
    }
}

/// Path of file `number`.
pub fn file_path(dir: &Path, number: u64) -> PathBuf {
    dir.join(format!("{number:020}.journal"))
}

/// Path of file `number` while it is made.
pub(super) fn preparing_path(dir: &Path, number: u64) -> PathBuf {
    dir.join(format!("{number:020}.preparing"))
}

impl<D: Disk> JournalFile<D> {
    pub(super) fn number(&self) -> u64 {
        self.header.file_number
    }

    /// Whether it has lost its end.
    pub(super) fn is_short(&self) -> bool {
        self.len < self.header.file_bytes
    }

    /// Bytes from `offset` to the end.
    pub(super) fn room_at(&self, offset: u64) -> u64 {
        self.header.file_bytes.saturating_sub(offset)
    }

    /// Opens file `number` and checks its header against its name.
    pub(super) async fn open(
        disk: &D,
        dir: &Path,
        number: u64,
        access: Access,
    ) -> Result<Self, StorageError> {
        let path = file_path(dir, number);
        let file = disk
            .open(&path, access)
            .await
            .map_err(StorageError::io("open", &path))?;
        let block = file
            .read_at(0, FILE_HEADER_BYTES as usize)
            .await
            .map_err(StorageError::io_at("read", &path, 0))?;
        let header = match FileHeader::decode(&block) {
            Ok(header) => header,
            Err(error) => return Err(error.of(path, FORMAT)),
        };
        if header.file_number != number {
            return Err(StorageError::ForeignFile { path });
        }
        let len = file.len().await.map_err(StorageError::io("stat", &path))?;
        Ok(Self {
            file,
            path,
            header,
            len,
        })
    }
}

/// What making a file needs to know.
#[derive(Clone, Copy, Debug)]
pub(super) struct NewFile {
    pub(super) number: u64,
    pub(super) bytes: u64,
    /// How the finished file is opened.
    pub(super) access: Access,
}

/// Makes a file, whole and durable; see the head of this module. What a failure leaves behind
/// is removed as far as the disk allows.
pub(super) async fn make_file<D: Disk>(
    disk: &D,
    home: &Home,
    new: NewFile,
) -> Result<Rc<JournalFile<D>>, StorageError> {
    let preparing = preparing_path(&home.dir, new.number);
    let made = fill_file(disk, home, new, &preparing).await;
    if let Err(error) = made {
        if let Err(left) = disk.remove(&preparing).await {
            tracing::debug!(path = %preparing.display(), %left, "an unfinished file stays behind");
        }
        return Err(error);
    }
    let path = file_path(&home.dir, new.number);
    disk.rename(&preparing, &path)
        .await
        .map_err(StorageError::io("rename", &preparing))?;
    disk.sync_dir(&home.dir)
        .await
        .map_err(StorageError::io("sync", &home.dir))?;
    JournalFile::open(disk, &home.dir, new.number, new.access)
        .await
        .map(Rc::new)
}

async fn fill_file<D: Disk>(
    disk: &D,
    home: &Home,
    new: NewFile,
    path: &Path,
) -> Result<(), StorageError> {
    let file = disk
        .open(path, Access::Create)
        .await
        .map_err(StorageError::io("create", path))?;
    match file.allocate(new.bytes).await {
        Ok(()) => {}
        Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => {
            // Zeros written below take the space just as well, in more pieces.
            tracing::warn!(path = %path.display(), "the file system does not reserve space");
        }
        Err(error) => return Err(StorageError::io("allocate", path)(error)),
    }
    let header = FileHeader {
        journal_id: home.journal_id,
        file_number: new.number,
        file_bytes: new.bytes,
        shard: home.shard,
    };
    for offset in (0..new.bytes).step_by(DISK_IO_BYTES_MAX) {
        let left = new.bytes.saturating_sub(offset);
        let len = left.min(DISK_IO_BYTES_MAX as u64) as usize;
        let mut buf = disk.buffer(len);
        buf.as_mut_slice().fill(0);
        if offset == 0 {
            header.encode(buf.as_mut_slice());
        }
        write_whole(&file, path, buf, offset).await?;
    }
    file.sync_data()
        .await
        .map_err(StorageError::io("sync", path))?;
    file.close().await.map_err(StorageError::io("close", path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names() {
        assert_eq!(Name::parse("00000000000000000012.journal"), Name::File(12));
        assert_eq!(
            Name::parse("00000000000000000012.preparing"),
            Name::Preparing(12)
        );
        for other in [
            "12.journal",
            "00000000000000000012",
            "00000000000000000012.journal.bak",
            "+0000000000000000012.journal",
            "99999999999999999999.journal",
            "lost+found",
            "",
        ] {
            assert_eq!(Name::parse(other), Name::Unknown, "{other}");
        }
        let path = file_path(Path::new("d"), 12);
        assert_eq!(
            path.file_name()
                .and_then(|name| name.to_str())
                .map(Name::parse),
            Some(Name::File(12))
        );
    }
}
