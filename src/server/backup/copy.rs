//! Files, copied and read, a piece at a time: memory does not grow with them.
//!
//! Reads are direct where the file system takes that ([`ReadOnlyDisk`]): they
//! are of the medium, and leave what others have in the page cache there.

use std::{fs::File, io::ErrorKind, os::unix::fs::FileExt as _, path::Path};

use futures_lite::future::block_on;

use super::BackupError;
use crate::{
    base::limits::DISK_IO_BYTES_MAX,
    storage::disk::{Access, Disk as _, DiskFile as _, ReadOnlyDisk, ReadOnlyFile},
};

/// Zeros are left out by this many bytes at a time.
const HOLE_BYTES: usize = 64 << 10;

const _: () = assert!(DISK_IO_BYTES_MAX.is_multiple_of(HOLE_BYTES));

/// How to copy a file.
#[derive(Clone, Copy, Debug)]
pub(super) struct Way {
    /// Of what lies behind this byte only the length counts: zeros are written for it.
    pub(super) until: u64,
    /// Zeros need take no space.
    pub(super) sparse: bool,
}

impl Way {
    /// All of it, its holes kept.
    pub(super) const SPARSE: Self = Self {
        until: u64::MAX,
        sparse: true,
    };
}

/// Copies `from` to `to`, which must not exist, durably but for its name. `on_piece` hears of the
/// bytes of each piece, and may stop it. Length and digest of the copy; `None` if `from` is not there.
///
/// A file may grow meanwhile: it is copied as long as it was. One that is cut to what it holds ends
/// where it ends.
pub(super) fn copy(
    from: &Path,
    to: &Path,
    way: Way,
    on_piece: &mut dyn FnMut(u64) -> Result<(), BackupError>,
) -> Result<Option<(u64, blake3::Hash)>, BackupError> {
    let Some(source) = Source::open(from)? else {
        return Ok(None);
    };
    let target = File::create_new(to).map_err(BackupError::io("create", to))?;
    let zeros = vec![0; DISK_IO_BYTES_MAX];
    let mut hasher = blake3::Hasher::new();
    let mut at = 0;
    while at < source.len {
        let want = source.len.saturating_sub(at).min(DISK_IO_BYTES_MAX as u64) as usize;
        let mut piece = if at < way.until {
            source.read(at, want)?
        } else {
            zeros.get(..want).unwrap_or_default().to_vec()
        };
        if piece.is_empty() {
            break;
        }
        let keep = usize::try_from(way.until.saturating_sub(at)).unwrap_or(usize::MAX);
        if let Some(behind) = piece.get_mut(keep..) {
            behind.fill(0);
        }
        hasher.update(&piece);
        let mut write_at = at;
        for part in piece.chunks(HOLE_BYTES) {
            if !way.sparse || part.iter().any(|byte| *byte != 0) {
                let written = target.write_all_at(part, write_at);
                written.map_err(BackupError::io("write", to))?;
            }
            write_at = write_at.saturating_add(part.len() as u64);
        }
        at = at.saturating_add(piece.len() as u64);
        on_piece(piece.len() as u64)?;
    }
    target.set_len(at).map_err(BackupError::io("write", to))?;
    target.sync_all().map_err(BackupError::io("sync", to))?;
    Ok(Some((at, hasher.finalize())))
}

/// Length and digest of `path`; `None` if it is not there.
pub(super) fn digest(
    path: &Path,
    on_piece: &mut dyn FnMut(u64) -> Result<(), BackupError>,
) -> Result<Option<(u64, blake3::Hash)>, BackupError> {
    let Some(source) = Source::open(path)? else {
        return Ok(None);
    };
    let mut hasher = blake3::Hasher::new();
    let mut at = 0;
    while at < source.len {
        let want = source.len.saturating_sub(at).min(DISK_IO_BYTES_MAX as u64) as usize;
        let piece = source.read(at, want)?;
        if piece.is_empty() {
            break;
        }
        hasher.update(&piece);
        at = at.saturating_add(piece.len() as u64);
        on_piece(piece.len() as u64)?;
    }
    Ok(Some((at, hasher.finalize())))
}

struct Source<'a> {
    path: &'a Path,
    file: ReadOnlyFile,
    /// When it was opened.
    len: u64,
}

impl<'a> Source<'a> {
    fn open(path: &'a Path) -> Result<Option<Self>, BackupError> {
        let opened = block_on(async {
            let file = ReadOnlyDisk.open(path, Access::Read).await?;
            let len = file.len().await?;
            Ok((file, len))
        });
        match opened {
            Ok((file, len)) => Ok(Some(Self { path, file, len })),
            Err(error) if std::io::Error::kind(&error) == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(BackupError::io("open", path)(error)),
        }
    }

    /// `want` bytes from `at` on, which is a multiple of it; fewer at the end of the file.
    fn read(&self, at: u64, want: usize) -> Result<Vec<u8>, BackupError> {
        let mut piece = Vec::with_capacity(want);
        // Whole blocks: a direct read takes nothing else.
        let read = block_on(self.file.read_at(at, DISK_IO_BYTES_MAX));
        let read = read.map_err(BackupError::io("read", self.path))?;
        piece.extend_from_slice(read.get(..want.min(read.len())).unwrap_or_default());
        Ok(piece)
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::MetadataExt as _};

    use super::*;

    fn count(counted: &mut u64) -> impl FnMut(u64) -> Result<(), BackupError> {
        |bytes| {
            *counted += bytes;
            Ok(())
        }
    }

    #[test]
    fn a_copy_has_every_byte_and_its_digest() {
        let dir = tempfile::tempdir().expect("a directory");
        let (from, to) = (dir.path().join("from"), dir.path().join("to"));
        for len in [0, 1, 4095, 4096, 1 << 20, (1 << 20) + 1, (3 << 20) - 5] {
            let bytes: Vec<u8> = (0..len).map(|at: u32| (at >> 3) as u8 | 1).collect();
            fs::write(&from, &bytes).expect("writable");
            let mut counted = 0;
            let copied = copy(&from, &to, Way::SPARSE, &mut count(&mut counted));
            let expected = (u64::from(len), blake3::hash(&bytes));
            assert_eq!(copied.expect("copied"), Some(expected));
            assert_eq!(counted, u64::from(len));
            assert_eq!(fs::read(&to).ok(), Some(bytes));
            let read = digest(&to, &mut |_| Ok(())).expect("readable");
            assert_eq!(read, Some(expected));
            fs::remove_file(&to).expect("it is there");
        }
    }

    #[test]
    fn what_lies_behind_is_zeros_and_holes_stay_holes() {
        let dir = tempfile::tempdir().expect("a directory");
        let (from, to) = (dir.path().join("from"), dir.path().join("to"));
        let len = 4 << 20;
        fs::write(&from, vec![7; len]).expect("writable");
        let until = (1 << 20) + 4096;
        let mut expected = vec![0; len];
        expected[..until].fill(7);
        for sparse in [true, false] {
            let until = until as u64;
            let way = Way { until, sparse };
            let copied = copy(&from, &to, way, &mut |_| Ok(())).expect("copied");
            assert_eq!(copied, Some((len as u64, blake3::hash(&expected))));
            assert!(fs::read(&to).expect("readable") == expected);
            let taken = fs::metadata(&to).expect("it is there").blocks() * 512;
            assert_eq!(taken < len as u64 / 2, sparse, "{taken} bytes taken");
            fs::remove_file(&to).expect("it is there");
        }
    }

    #[test]
    fn nothing_is_overwritten_and_what_is_not_there_is_none() {
        let dir = tempfile::tempdir().expect("a directory");
        let (from, to) = (dir.path().join("from"), dir.path().join("to"));
        let gone = copy(&from, &to, Way::SPARSE, &mut |_| Ok(()));
        assert_eq!(gone.expect("no error"), None);
        assert!(!to.exists());
        fs::write(&from, b"new").expect("writable");
        fs::write(&to, b"old").expect("writable");
        assert!(copy(&from, &to, Way::SPARSE, &mut |_| Ok(())).is_err());
        assert_eq!(fs::read(&to).ok().as_deref(), Some(&b"old"[..]));
    }
}
