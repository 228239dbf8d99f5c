//! What tells a backup, whole or not, and a restore that did not end from a data
//! directory: `backup.json`.

use std::fs::File;
use std::io::{ErrorKind, Read};
use std::path::Path;

use crate::storage::error::StorageError;

/// Name of the file that lists what a backup consists of; see `server::backup`.
pub const BACKUP_NAME: &str = "backup.json";
/// What it holds while the backup is made.
pub const BACKUP_UNFINISHED: &[u8] = b"";
/// What it holds in a directory that is being restored.
pub const BACKUP_RESTORING: &[u8] = b"restoring\n";

/// Why a directory is no data directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mark {
    /// It is a backup.
    Backup,
    /// It is a backup that is being made, or was never finished.
    Unfinished,
    /// It is being restored, or its restore did not end.
    Restoring,
}

impl Mark {
    /// That of `dir`; `None` if it has none, also when there is no such directory.
    ///
    /// # Errors
    /// [`StorageError::Io`] when that cannot be found out.
    pub fn of(dir: &Path) -> Result<Option<Self>, StorageError> {
        let path = dir.join(BACKUP_NAME);
        let file = match File::open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(StorageError::io("open", &path)(error)),
        };
        let mut start = Vec::new();
        // One byte more, so that no longer file is taken for either.
        let most = (BACKUP_RESTORING.len() as u64).saturating_add(1);
        let read = file.take(most).read_to_end(&mut start);
        read.map_err(StorageError::io("read", &path))?;
        Ok(Some(match start.as_slice() {
            BACKUP_UNFINISHED => Self::Unfinished,
            BACKUP_RESTORING => Self::Restoring,
            _ => Self::Backup,
        }))
    }
}

/// Refuses what is there and is no directory; what is not there may become one.
///
/// # Errors
/// [`StorageError::NotADirectory`].
pub fn check_is_dir(path: &Path) -> Result<(), StorageError> {
    // What cannot be looked at is refused by whoever uses it, with the reason.
    match path.metadata() {
        Ok(metadata) if !metadata.is_dir() => Err(StorageError::NotADirectory {
            path: path.to_owned(),
        }),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn every_mark_is_told_from_the_others() {
        let dir = tempfile::tempdir().unwrap();
        let mark = || Mark::of(dir.path()).unwrap();
        assert_eq!(mark(), None);
        for (text, expected) in [
            (BACKUP_UNFINISHED, Mark::Unfinished),
            (BACKUP_RESTORING, Mark::Restoring),
            (b"restoring\n\n", Mark::Backup),
            (b"restoring", Mark::Backup),
            (b"{}", Mark::Backup),
        ] {
            fs::write(dir.path().join(BACKUP_NAME), text).unwrap();
            assert_eq!(mark(), Some(expected));
        }
        assert_eq!(Mark::of(&dir.path().join("none")).unwrap(), None);
    }

    #[test]
    fn a_file_is_no_directory() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        fs::write(&file, b"x").unwrap();
        assert!(check_is_dir(dir.path()).is_ok());
        assert!(check_is_dir(&dir.path().join("none")).is_ok());
        let refused = check_is_dir(&file);
        assert!(matches!(refused, Err(StorageError::NotADirectory { .. })));
    }
}
