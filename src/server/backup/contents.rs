//! `backup.json`: what a backup consists of. Written last; without it there is
//! no backup.
//!
//! ```text
//! {"blake3": digest of `contents` as it is serialised here,
//!  "contents": {"format": 1, "made_by", "made_at", "from",
//!               "files": [{"path", "bytes", "blake3"}, …]}}
//! ```
//!
//! It reads back only if it is, byte for byte, what this module would write. It
//! takes some 150 bytes of memory for each file: of those, only the blobs
//! (snapshots of 64 KiB and more) can be many.

use std::{
    fs::{self, File},
    io::{ErrorKind, Write as _},
    path::{Component, Path, PathBuf},
};

use serde::{Deserialize, Serialize};

use super::BackupError;
use crate::storage::{
    StorageError,
    data_dir::{BACKUP_NAME, BACKUP_RESTORING, BACKUP_UNFINISHED, Mark, check_is_dir},
};

/// Version of the format.
const FORMAT: u32 = 1;

/// What a backup consists of.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Contents {
    format: u32,
    /// The program and its version.
    made_by: String,
    /// When, in RFC 3339.
    pub made_at: String,
    /// The data directory that was copied.
    from: String,
    /// Every file of it.
    pub files: Vec<Entry>,
}

/// One file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Entry {
    /// Its path in the backup, and in the data directory.
    path: String,
    /// Its length, in bytes.
    pub bytes: u64,
    /// Its digest, in hex.
    pub blake3: String,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Sealed {
    blake3: String,
    contents: Contents,
}

impl Entry {
    /// An entry for the file at `path`, which is relative, of `bytes` bytes.
    #[must_use]
    pub fn new(path: &Path, bytes: u64, digest: blake3::Hash) -> Self {
        Self {
            // Every name in a data directory is ASCII.
            path: path.to_string_lossy().into_owned(),
            bytes,
            blake3: in_hex(digest),
        }
    }

    /// Its place below `dir`; `None` for a path that would lead out of it.
    #[must_use]
    pub fn below(&self, dir: &Path) -> Option<PathBuf> {
        let path = Path::new(&self.path);
        let mut parts = path.components();
        let stays = parts.all(|part| matches!(part, Component::Normal(_)));
        (stays && !self.path.is_empty()).then(|| dir.join(path))
    }

    /// Whether a file has this length and this digest.
    #[must_use]
    pub fn is_of(&self, bytes: u64, digest: blake3::Hash) -> bool {
        (self.bytes, &self.blake3) == (bytes, &in_hex(digest))
    }
}

impl Contents {
    /// What a backup of `from`, made at `made_at` (RFC 3339), consists of.
    #[must_use]
    pub fn new(from: &Path, made_at: String, files: Vec<Entry>) -> Self {
        Self {
            format: FORMAT,
            made_by: format!("thalweg {}", env!("CARGO_PKG_VERSION")),
            made_at,
            from: from.to_string_lossy().into_owned(),
            files,
        }
    }

    /// Writes it into `dir`; its name is durable once the directory is synced.
    pub(super) fn store(&self, dir: &Path) -> Result<(), BackupError> {
        write(dir, &self.to_bytes())
    }

    /// Marks `dir` as a backup that is not whole: no start takes it for a data directory, and no
    /// restore for a backup.
    pub(super) fn mark_unfinished(dir: &Path) -> Result<(), BackupError> {
        write(dir, BACKUP_UNFINISHED)
    }

    /// The same of a directory that is being restored.
    pub(super) fn mark_restoring(dir: &Path) -> Result<(), BackupError> {
        write(dir, BACKUP_RESTORING)
    }

    /// Reads that of the backup in `dir`.
    pub(super) fn load(dir: &Path) -> Result<Self, BackupError> {
        check_is_dir(dir)?;
        if let Some(mark @ (Mark::Unfinished | Mark::Restoring)) = Mark::of(dir)? {
            let dir = dir.to_owned();
            return Err(StorageError::Backup { dir, mark }.into());
        }
        let path = dir.join(BACKUP_NAME);
        let bytes = match fs::read(&path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == ErrorKind::NotFound => {
                return Err(BackupError::NotABackup { path });
            }
            Err(error) => return Err(BackupError::io("read", &path)(error)),
        };
        Self::parse(&bytes).map_err(|what| BackupError::Damaged { path, what })
    }

    /// Bytes of all files together. What was forged may say that they have more than 2^64.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        let bytes = self.files.iter().map(|file| file.bytes);
        bytes.fold(0, u64::saturating_add)
    }

    /// Reads `backup.json`.
    ///
    /// # Errors
    /// What is wrong with it, in words for the operator.
    pub fn parse(bytes: &[u8]) -> Result<Self, String> {
        let sealed: Sealed = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
        let contents = sealed.contents;
        if contents.format != FORMAT {
            return Err(format!(
                "its format is {}, and this program reads {FORMAT}",
                contents.format
            ));
        }
        if contents.to_bytes() != bytes {
            return Err(String::from("it is not as it was written"));
        }
        Ok(contents)
    }

    /// What `backup.json` holds.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let contents = serde_json::to_vec(self).unwrap_or_default();
        let sealed = Sealed {
            blake3: in_hex(blake3::hash(&contents)),
            contents: self.clone(),
        };
        let mut bytes = serde_json::to_vec_pretty(&sealed).unwrap_or_default();
        bytes.push(b'\n');
        bytes
    }
}

fn write(dir: &Path, bytes: &[u8]) -> Result<(), BackupError> {
    let path = dir.join(BACKUP_NAME);
    let mut file = File::create(&path).map_err(BackupError::io("create", &path))?;
    file.write_all(bytes)
        .map_err(BackupError::io("write", &path))?;
    file.sync_all().map_err(BackupError::io("sync", &path))
}

fn in_hex(digest: blake3::Hash) -> String {
    digest.to_hex().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn contents() -> Contents {
        let files = vec![Entry::new(
            Path::new("layout-1/shard-0/current"),
            4096,
            blake3::hash(b"x"),
        )];
        let made_at = String::from("2026-11-30T00:00:00.000Z");
        Contents::new(Path::new("/data"), made_at, files)
    }

    #[test]
    fn it_reads_back_and_no_byte_may_differ() {
        let bytes = contents().to_bytes();
        assert_eq!(Contents::parse(&bytes), Ok(contents()));
        for at in 0..bytes.len() {
            for change in [1, 0x20, 0x80] {
                let mut bytes = bytes.clone();
                bytes[at] ^= change;
                assert!(Contents::parse(&bytes).is_err(), "byte {at} ^ {change}");
            }
            assert!(Contents::parse(&bytes[..at]).is_err(), "cut at {at}");
        }
    }

    #[test]
    fn lengths_that_were_forged_add_up_without_overflow() {
        let entry = |bytes| Entry::new(Path::new("a"), bytes, blake3::hash(b""));
        let files = vec![entry(u64::MAX), entry(1)];
        let forged = Contents::new(Path::new("/data"), String::new(), files);
        let parsed = Contents::parse(&forged.to_bytes());
        assert_eq!(parsed.map(|contents| contents.bytes()), Ok(u64::MAX));
    }

    #[test]
    fn no_path_leads_out() {
        let dir = Path::new("/to");
        let below = |path: &str| {
            let entry = Entry::new(Path::new(path), 0, blake3::hash(b""));
            entry.below(dir)
        };
        assert_eq!(below("a/b"), Some(PathBuf::from("/to/a/b")));
        for bad in ["", "/etc/passwd", "../x", "a/../../x", "."] {
            assert_eq!(below(bad), None, "{bad}");
        }
    }
}
