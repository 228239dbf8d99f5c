//! A journal's directory: which files there are, and that none is missing between them.

use std::path::{Path, PathBuf};
use std::rc::Rc;

use super::file::{JournalFile, Name, file_path};
use crate::storage::disk::{Access, Disk};
use crate::storage::error::StorageError;

/// What is in a journal's directory.
pub(super) struct Listing {
    pub(super) numbers: Vec<u64>,
    pub(super) preparing: Vec<PathBuf>,
    pub(super) unknown: Vec<PathBuf>,
}

pub(super) async fn list<D: Disk>(disk: &D, dir: &Path) -> Result<Listing, StorageError> {
    let names = disk
        .list_dir(dir)
        .await
        .map_err(StorageError::io("list", dir))?;
    let mut listing = Listing {
        numbers: Vec::new(),
        preparing: Vec::new(),
        unknown: Vec::new(),
    };
    for name in names {
        match Name::parse(&name) {
            Name::File(number) => listing.numbers.push(number),
            Name::Preparing(_) => listing.preparing.push(dir.join(name)),
            Name::Unknown => listing.unknown.push(dir.join(name)),
        }
    }
    listing.numbers.sort_unstable();
    Ok(listing)
}

/// Numbers of the files in a journal's directory, in order.
///
/// # Errors
/// [`StorageError::Io`], [`StorageError::MissingFile`] when there is a gap.
pub async fn numbers<D: Disk>(disk: &D, dir: &Path) -> Result<Vec<u64>, StorageError> {
    let listing = list(disk, dir).await?;
    check_gaps(dir, &listing)?;
    Ok(listing.numbers)
}

/// Refuses a directory in which a file of the sequence is missing.
pub(super) fn check_gaps(dir: &Path, listing: &Listing) -> Result<(), StorageError> {
    for (number, next) in listing.numbers.iter().zip(listing.numbers.iter().skip(1)) {
        let expected = number.saturating_add(1);
        if *next != expected {
            return Err(StorageError::MissingFile {
                path: file_path(dir, expected),
            });
        }
    }
    Ok(())
}

/// The file of this index.
#[expect(
    clippy::indexing_slicing,
    reason = "an index comes from a pass over the same list"
)]
pub(super) fn nth<D: Disk>(files: &[Rc<JournalFile<D>>], index: usize) -> &Rc<JournalFile<D>> {
    &files[index]
}

/// Opens all files; they belong to one journal of one shard.
pub(super) async fn open_files<D: Disk>(
    disk: &D,
    dir: &Path,
    numbers: &[u64],
    access: Access,
) -> Result<Vec<Rc<JournalFile<D>>>, StorageError> {
    let mut files: Vec<Rc<JournalFile<D>>> = Vec::with_capacity(numbers.len());
    for &number in numbers {
        let file = JournalFile::open(disk, dir, number, access).await?;
        if let Some(first) = files.first()
            && (first.header.journal_id, first.header.shard)
                != (file.header.journal_id, file.header.shard)
        {
            return Err(StorageError::ForeignFile { path: file.path });
        }
        files.push(Rc::new(file));
    }
    Ok(files)
}
