//! A data directory as it lies, looked at and left alone.
//!
//! For tools that read what may be in use. Nothing is made, removed or
//! written. The lock is not kept: whether a process has it is found by asking
//! for it in a way that lets others share it, and giving it back at once (a
//! start that runs into that moment asks again, see
//! [`take_lock`](super::take_lock)). The kernel's list in `/proc/locks` would
//! not show a holder in another container.

use std::fs::{self, File, TryLockError};
use std::path::{Path, PathBuf};

use super::{LOCK_NAME, Layout, check_is_dir, survey};
use crate::storage::error::StorageError;
use crate::storage::manifest::{self, Manifest};

/// A process that uses the data directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Holder {
    /// Its pid, if the lock file says.
    pub pid: Option<u32>,
}

/// What a data directory says it is.
#[derive(Clone, Debug)]
pub struct Look {
    /// The manifest.
    pub manifest: Manifest,
    /// The layout that rules.
    pub layout: Layout,
    /// Layouts that do not: the next start removes them.
    pub other_layouts: Vec<PathBuf>,
    /// What repairs have set aside, if there is any.
    pub quarantine: Option<PathBuf>,
    /// Names that are not ours.
    pub unknown: Vec<PathBuf>,
}

/// Looks at the data directory at `path`.
///
/// # Errors
/// [`StorageError::MissingManifest`] when there is no manifest, [`StorageError::NotADirectory`], and
/// what reading a manifest may find.
pub fn look(path: &Path) -> Result<Look, StorageError> {
    check_is_dir(path)?;
    let manifest = Manifest::load(path)?.ok_or_else(|| StorageError::MissingManifest {
        path: manifest::path(path),
    })?;
    let found = survey(path)?;
    let others = found.layouts.into_iter();
    Ok(Look {
        layout: Layout::new(path, manifest.layout, manifest.shards),
        other_layouts: others
            .filter(|(number, _)| *number != manifest.layout)
            .map(|(_, dir)| dir)
            .collect(),
        quarantine: found.quarantine,
        unknown: found.unknown,
        manifest,
    })
}

/// The process that uses the data directory at `path` now.
///
/// # Errors
/// [`StorageError::NotADirectory`]; [`StorageError::Io`] when that cannot be found out.
pub fn holder(path: &Path) -> Result<Option<Holder>, StorageError> {
    check_is_dir(path)?;
    let path = path.join(LOCK_NAME);
    let lock = match File::open(&path) {
        Ok(lock) => lock,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(StorageError::io("open", &path)(error)),
    };
    match lock.try_lock_shared() {
        // Given back when `lock` is closed, at the end of this function.
        Ok(()) => Ok(None),
        Err(TryLockError::WouldBlock) => {
            let text = fs::read_to_string(&path).unwrap_or_default();
            let pid = text.trim().parse().ok();
            Ok(Some(Holder { pid }))
        }
        Err(TryLockError::Error(error)) => Err(StorageError::io("lock", &path)(error)),
    }
}
