//! The directory of segments: what must be there at start, and what goes.

use std::collections::HashMap;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::format::{FILE_HEADER_BYTES, SegmentId, encode_file_header};
use super::holdings::{Segment, SegmentGraveyard};
use super::reader::BlockReader;
use crate::base::limits::DISK_ALIGN;
use crate::storage::disk::{
    Access, Disk, DiskFile, list_by, open_named, remove_if_there, write_whole,
};
use crate::storage::error::StorageError;

/// Name of the directory of segments in the data directory.
pub const DIR_NAME: &str = "segments";

/// The directory of segments below a data directory, made if it is not there.
///
/// # Errors
/// [`StorageError::Io`].
pub fn prepare_dir(data_dir: &Path) -> Result<PathBuf, StorageError> {
    crate::storage::data_dir::prepare_dir(data_dir, DIR_NAME)
}

/// The segments that have files in `dir`, and the names beside them that are not ours.
///
/// # Errors
/// [`StorageError::Io`].
pub async fn list<D: Disk>(
    disk: &D,
    dir: &Path,
) -> Result<(Vec<SegmentId>, Vec<PathBuf>), StorageError> {
    list_by(disk, dir, SegmentId::parse).await
}

/// At start: checks that every segment in `named` is there and reaches as far as its streams need
/// it, gives back what lies behind that, and removes the files that no stream needs. `segments`
/// learn what their files take.
///
/// # Errors
/// [`StorageError::MissingFile`], [`StorageError::WrongLength`], [`StorageError::Io`].
pub async fn reconcile<D: Disk>(
    disk: &D,
    dir: &Path,
    named: &HashMap<SegmentId, u64>,
    segments: &HashMap<SegmentId, Arc<Segment>>,
) -> Result<(), StorageError> {
    let (present, unknown) = list(disk, dir).await?;
    for path in unknown {
        tracing::warn!(path = %path.display(), "not ours: left alone");
    }
    let mut found = 0usize;
    for id in present {
        let path = dir.join(id.name());
        let Some(end) = named.get(&id) else {
            // A crash came before a checkpoint named it, or before it was removed.
            disk.remove(&path)
                .await
                .map_err(StorageError::io("remove", &path))?;
            continue;
        };
        found = found.saturating_add(1);
        let end = end.next_multiple_of(DISK_ALIGN as u64);
        let len = fit(disk, &path, end).await?;
        if let Some(segment) = segments.get(&id) {
            segment.set_taken_bytes(len);
        }
    }
    if found == named.len() {
        return Ok(());
    }
    for id in named.keys() {
        let path = dir.join(id.name());
        open_named(disk, &path, Access::Read).await?;
    }
    Ok(())
}

/// Cuts a file to `end` if it is longer; refuses one that is shorter. Returns its length.
async fn fit<D: Disk>(disk: &D, path: &Path, end: u64) -> Result<u64, StorageError> {
    let file = disk
        .open(path, Access::Write)
        .await
        .map_err(StorageError::io("open", path))?;
    let found = file.len().await.map_err(StorageError::io("stat", path))?;
    if found < end {
        return Err(StorageError::WrongLength {
            path: path.to_owned(),
            found,
            expected: end,
        });
    }
    if found > end {
        file.truncate(end)
            .await
            .map_err(StorageError::io("truncate", path))?;
    }
    file.close()
        .await
        .map_err(StorageError::io("close", path))?;
    Ok(end)
}

/// For a repair: writes the first block of a segment's file again, and makes the file reach to
/// `end`. What is added reads as zeros; blocks are left alone.
///
/// # Errors
/// [`StorageError`].
pub async fn mend<D: Disk>(
    disk: &D,
    dir: &Path,
    id: SegmentId,
    seed: u64,
    end: u64,
) -> Result<(), StorageError> {
    let path = dir.join(id.name());
    let file = disk
        .open(&path, Access::Write)
        .await
        .map_err(StorageError::io("open", &path))?;
    let mut block = disk.buffer(FILE_HEADER_BYTES);
    encode_file_header(id, seed, block.as_mut_slice());
    write_whole(&file, &path, block, 0).await?;
    let end = end.next_multiple_of(DISK_ALIGN as u64);
    let found = file.len().await.map_err(StorageError::io("stat", &path))?;
    if found < end {
        file.truncate(end)
            .await
            .map_err(StorageError::io("truncate", &path))?;
    }
    file.sync_data()
        .await
        .map_err(StorageError::io("sync", &path))?;
    file.close().await.map_err(StorageError::io("close", &path))
}

/// Gives the space of a range of a segment back.
///
/// # Errors
/// [`StorageError::Io`]; a file system that cannot is no error.
pub async fn punch<D: Disk>(
    disk: &D,
    dir: &Path,
    id: SegmentId,
    range: Range<u64>,
) -> Result<(), StorageError> {
    let path = dir.join(id.name());
    let file = disk
        .open(&path, Access::Write)
        .await
        .map_err(StorageError::io("open", &path))?;
    let len = range.end.saturating_sub(range.start);
    match file.punch(range.start, len).await {
        Err(error) if error.raw_os_error() != Some(libc::EOPNOTSUPP) => {
            return Err(StorageError::io_at("punch", &path, range.start)(error));
        }
        _ => {}
    }
    file.close().await.map_err(StorageError::io("close", &path))
}

/// Removes the files of segments that nobody needs, at most `count_max`.
pub async fn bury<D: Disk>(
    disk: &D,
    dir: &Path,
    graveyard: &SegmentGraveyard,
    reader: &BlockReader<D>,
    count_max: usize,
) {
    for _ in 0..count_max {
        let Some(id) = graveyard.0.pop() else {
            return;
        };
        reader.forget(id);
        let path = dir.join(id.name());
        // Another core may still have it open for its next read of something else: the space does
        // not wait for that.
        if let Ok(file) = disk.open(&path, Access::Write).await {
            let _ = file.truncate(0).await;
            let _ = file.close().await;
        }
        if let Err(error) = remove_if_there(disk, &path).await {
            tracing::warn!("{error}");
        }
    }
}
