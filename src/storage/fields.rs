//! What the formats on disk share: integers at fixed places, little-endian, and why the first block
//! of a file is not accepted.

use std::path::PathBuf;

use super::error::StorageError;

/// The first `N` bytes of a buffer, of which the caller has made it as long.
#[expect(
    clippy::expect_used,
    reason = "buffers are ours, of whole blocks, and headers are shorter than a block"
)]
pub(super) fn front<const N: usize>(buffer: &mut [u8]) -> &mut [u8; N] {
    buffer.first_chunk_mut().expect("a buffer of whole blocks")
}

/// The integer at `at`, which lies in the array: places are constants of a format.
pub(super) fn u32_at<const N: usize>(bytes: &[u8; N], at: usize) -> u32 {
    u32::from_le_bytes(field_at(bytes, at))
}

/// See [`u32_at`].
pub(super) fn u64_at<const N: usize>(bytes: &[u8; N], at: usize) -> u64 {
    u64::from_le_bytes(field_at(bytes, at))
}

#[expect(
    clippy::arithmetic_side_effects,
    reason = "every place is a constant of a format, and every test of a format reads all of them"
)]
fn field_at<const N: usize, const LEN: usize>(bytes: &[u8; N], at: usize) -> [u8; LEN] {
    let mut field = [0; LEN];
    field.copy_from_slice(&bytes[at..at + LEN]);
    field
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
