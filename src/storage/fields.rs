//! What the formats on disk share: integers at fixed places, little-endian, and why the first block
//! of a file is not accepted.

use std::path::PathBuf;

use super::error::StorageError;

/// The integer at `at`, which lies in the array: places are constants of a format.
pub(super) fn u32_at<const N: usize>(bytes: &[u8; N], at: usize) -> u32 {
    let mut field = [0; 4];
    field.copy_from_slice(&bytes[at..at + 4]);
    u32::from_le_bytes(field)
}

/// See [`u32_at`].
pub(super) fn u64_at<const N: usize>(bytes: &[u8; N], at: usize) -> u64 {
    let mut field = [0; 8];
    field.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(field)
}

/// Why a file's first block was not accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FileHeaderError {
    /// It does not verify.
    Damaged,
    /// It is of this version, which is not the one that is read.
    Format(u32),
}

impl FileHeaderError {
    /// The same of the file at `path`, where version `supported` is read.
    pub(super) fn of(self, path: PathBuf, supported: u32) -> StorageError {
        match self {
            Self::Damaged => StorageError::DamagedFileHeader { path },
            Self::Format(found) => StorageError::UnsupportedFormat {
                path,
                found,
                supported,
            },
        }
    }
}
