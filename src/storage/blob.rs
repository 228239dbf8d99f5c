//! Snapshot bodies and staged parts: one file each, named by an id that is
//! never used again.
//!
//! ```text
//! body arrives ──> file written, synced, its name synced ──> record that names it
//! last record that names it is superseded, durably, and no reader is left ──> removed
//! ```
//!
//! What is guaranteed: a record never names a file that is not whole and
//! durable; a file is never removed while a durable record names it or a
//! response reads it. A crash between the steps leaves a file that no record
//! names: the next start removes it. A file that a record names and that is
//! not there refuses the start.
//!
//! The files lie beside the layouts, so that a change of the number of shards
//! copies none of them.

use std::{
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use crossbeam::queue::SegQueue;

use super::{
    disk::{Access, Disk, DiskFile, align_down, list_by, open_named, remove_if_there, write_whole},
    error::StorageError,
};
use crate::base::limits::{DISK_ALIGN, DISK_IO_BYTES_MAX, Durability};

/// Name of the directory of blobs in the data directory.
pub const DIR_NAME: &str = "blobs";

/// Identity of a blob: random, so that it is never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BlobId(pub [u8; 16]);

impl BlobId {
    /// Its file's name: 32 hex digits.
    #[must_use]
    pub fn name(self) -> String {
        use std::fmt::Write as _;
        self.0
            .iter()
            .fold(String::with_capacity(32), |mut name, byte| {
                // Writing to a String cannot fail.
                let _ = write!(name, "{byte:02x}");
                name
            })
    }

    /// The identity that a file's name says; `None` for a file that is no blob.
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        let canonical = name.len() == 32 && name.bytes().all(|byte| !byte.is_ascii_uppercase());
        let value = u128::from_str_radix(name, 16).ok().filter(|_| canonical)?;
        Some(Self(value.to_be_bytes()))
    }
}

/// A blob that something refers to. When the last reference to a doomed one goes, its file is
/// removed.
#[derive(Debug)]
pub struct BlobFile {
    /// Its identity.
    pub id: BlobId,
    /// Bytes in it.
    pub len: u64,
    doomed: AtomicBool,
    graveyard: Graveyard,
}

impl BlobFile {
    /// A record that names it is durable, or on its way: its file stays.
    pub fn keep(&self) {
        self.doomed.store(false, Ordering::Release);
    }

    /// No durable record names it any more.
    pub fn doom(&self) {
        self.doomed.store(true, Ordering::Release);
    }
}

impl Drop for BlobFile {
    fn drop(&mut self) {
        if *self.doomed.get_mut() {
            self.graveyard.0.push(self.id);
        }
    }
}

/// Blobs whose files are to be removed.
#[derive(Clone, Debug, Default)]
pub struct Graveyard(Arc<SegQueue<BlobId>>);

impl Graveyard {
    /// A reference to the blob `id` of `len` bytes.
    #[must_use]
    pub fn refer(&self, id: BlobId, len: u64) -> Arc<BlobFile> {
        Arc::new(BlobFile {
            id,
            len,
            doomed: AtomicBool::new(false),
            graveyard: self.clone(),
        })
    }
}

/// The blobs of a data directory.
#[derive(Clone, Debug)]
pub struct BlobStore<D: Disk> {
    disk: D,
    dir: PathBuf,
    durability: Durability,
    graveyard: Graveyard,
}

impl<D: Disk> BlobStore<D> {
    /// The store in `dir`, which exists.
    #[must_use]
    pub fn new(disk: D, dir: PathBuf, durability: Durability, graveyard: Graveyard) -> Self {
        Self {
            disk,
            dir,
            durability,
            graveyard,
        }
    }

    /// Writes a blob. It is durable when this returns, and doomed until a record names it.
    ///
    /// # Errors
    /// [`StorageError`]; what was written is removed by the next start.
    pub async fn write(&self, id: BlobId, body: &[u8]) -> Result<Arc<BlobFile>, StorageError> {
        let path = self.path(id);
        let blob = self.graveyard.refer(id, body.len() as u64);
        blob.doom();
        let file = self
            .disk
            .open(&path, Access::Create)
            .await
            .map_err(StorageError::io("create", &path))?;
        let offsets = (0u64..).step_by(DISK_IO_BYTES_MAX);
        for (piece, offset) in body.chunks(DISK_IO_BYTES_MAX).zip(offsets) {
            let mut buffer = self.disk.buffer(piece.len().next_multiple_of(DISK_ALIGN));
            let (head, padding) = buffer.as_mut_slice().split_at_mut(piece.len());
            head.copy_from_slice(piece);
            padding.fill(0);
            write_whole(&file, &path, buffer, offset).await?;
        }
        file.truncate(body.len() as u64)
            .await
            .map_err(StorageError::io("truncate", &path))?;
        if self.durability == Durability::Sync {
            file.sync_data()
                .await
                .map_err(StorageError::io("sync", &path))?;
        }
        file.close()
            .await
            .map_err(StorageError::io("close", &path))?;
        if self.durability == Durability::Sync {
            self.disk
                .sync_dir(&self.dir)
                .await
                .map_err(StorageError::io("sync", &self.dir))?;
        }
        Ok(blob)
    }

    /// Opens a blob to be read.
    ///
    /// # Errors
    /// [`StorageError`].
    pub async fn open(&self, blob: Arc<BlobFile>) -> Result<BlobReader<D>, StorageError> {
        let path = self.path(blob.id);
        let file = self
            .disk
            .open(&path, Access::Read)
            .await
            .map_err(StorageError::io("open", &path))?;
        Ok(BlobReader { file, blob, path })
    }

    /// Removes the files of blobs that are doomed and no longer read, at most `count_max`.
    pub async fn bury(&self, count_max: usize) {
        for _ in 0..count_max {
            let Some(id) = self.graveyard.0.pop() else {
                return;
            };
            let path = self.path(id);
            if let Err(error) = remove_if_there(&self.disk, &path).await {
                tracing::warn!("{error}");
            }
        }
    }

    /// Checks that the file of a blob is there and has the length its record says.
    ///
    /// # Errors
    /// [`StorageError::MissingFile`], [`StorageError::WrongLength`], [`StorageError::Io`].
    pub async fn check(&self, id: BlobId, len: u64) -> Result<(), StorageError> {
        let path = self.path(id);
        let file = open_named(&self.disk, &path, Access::Read).await?;
        let found = file.len().await.map_err(StorageError::io("stat", &path))?;
        // A failure to close a file that was only looked at loses nothing.
        let _ = file.close().await;
        if found != len {
            return Err(StorageError::WrongLength {
                path,
                found,
                expected: len,
            });
        }
        Ok(())
    }

    /// The blobs that have files, and the names beside them that are not ours.
    ///
    /// # Errors
    /// [`StorageError::Io`].
    pub async fn list(&self) -> Result<(Vec<BlobId>, Vec<PathBuf>), StorageError> {
        list_by(&self.disk, &self.dir, BlobId::parse).await
    }

    /// Checks that every blob in `named` has a file, and removes the files that no record names: a
    /// crash came before their record.
    ///
    /// # Errors
    /// [`StorageError::MissingFile`] for a blob that a record names and that is not there.
    pub async fn reconcile(
        &self,
        named: &std::collections::HashMap<BlobId, u64>,
    ) -> Result<(), StorageError> {
        let (blobs, unknown) = self.list().await?;
        let (found, left): (Vec<BlobId>, Vec<BlobId>) =
            blobs.into_iter().partition(|id| named.contains_key(id));
        for id in left {
            self.graveyard.0.push(id);
        }
        for path in unknown {
            tracing::warn!(path = %path.display(), "not ours: left alone");
        }
        if found.len() == named.len() {
            return Ok(());
        }
        for id in named.keys() {
            let path = self.path(*id);
            self.disk
                .open(&path, Access::Read)
                .await
                .map_err(|_| StorageError::MissingFile { path })?;
        }
        Ok(())
    }

    /// Where a blob's file is.
    #[must_use]
    pub fn path(&self, id: BlobId) -> PathBuf {
        self.dir.join(id.name())
    }
}

/// An open blob; it pins the file.
#[derive(Debug)]
pub struct BlobReader<D: Disk> {
    file: D::File,
    blob: Arc<BlobFile>,
    path: PathBuf,
}

impl<D: Disk> BlobReader<D> {
    /// Reads from `start` up to `end`, at most about `bytes_max`, into `out`; returns how many
    /// bytes came. There is always at least one before the end.
    ///
    /// # Errors
    /// [`StorageError`], [`StorageError::ShortRead`] when the file is shorter than its record says.
    pub async fn read(
        &self,
        start: u64,
        end: u64,
        bytes_max: usize,
        out: &mut Vec<u8>,
    ) -> Result<u64, StorageError> {
        let end = end.min(self.blob.len);
        let align = DISK_ALIGN as u64;
        let from = align_down(start);
        let want = end
            .saturating_sub(from)
            .min(bytes_max.min(DISK_IO_BYTES_MAX) as u64);
        let len = want.next_multiple_of(align) as usize;
        let bytes = self
            .file
            .read_at(from, len.min(DISK_IO_BYTES_MAX))
            .await
            .map_err(StorageError::io_at("read", &self.path, from))?;
        let skip = start.saturating_sub(from) as usize;
        let take = end.saturating_sub(start) as usize;
        let piece = bytes.get(skip..).unwrap_or_default();
        let piece = piece.get(..take.min(piece.len())).unwrap_or_default();
        if piece.is_empty() && start < end {
            return Err(StorageError::ShortRead {
                path: self.path.clone(),
                offset: start,
                expected: take,
            });
        }
        out.extend_from_slice(piece);
        Ok(piece.len() as u64)
    }
}

/// The directory of blobs below a data directory, made if it is not there.
///
/// # Errors
/// [`StorageError::Io`].
pub fn prepare_dir(data_dir: &Path) -> Result<PathBuf, StorageError> {
    super::data_dir::prepare_dir(data_dir, DIR_NAME)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_read_back_and_nothing_else_does() {
        let id = BlobId([0xab; 16]);
        assert_eq!(BlobId::parse(&id.name()), Some(id));
        for bad in [
            "",
            "ab",
            &"AB".repeat(16),
            &"zz".repeat(16),
            "+abababababababababababababababa",
        ] {
            assert_ne!(BlobId::parse(bad), Some(id), "{bad}");
        }
    }

    #[test]
    fn a_file_is_buried_only_when_doomed_and_unread() {
        let graveyard = Graveyard::default();
        let kept = graveyard.refer(BlobId([1; 16]), 5);
        drop(kept);
        assert!(graveyard.0.is_empty());
        let blob = graveyard.refer(BlobId([2; 16]), 5);
        let reader = blob.clone();
        blob.doom();
        drop(blob);
        assert!(graveyard.0.is_empty());
        drop(reader);
        assert_eq!(graveyard.0.pop(), Some(BlobId([2; 16])));
    }
}
