//! The data directory: who may use it, what rules in it, what is left alone.
//!
//! ```text
//! LOCK                        locked while a process uses the directory; its pid
//! manifest                    see `manifest`
//! layout-<n>/shard-<k>/journal/…
//! segments/                   see `segment`
//! blobs/                      see `blob`
//! quarantine/<epoch>/…        what `--repair` has set aside; never read, never removed
//! backup.json                 this is a backup, or a restore that has not ended: refused
//! ```
//!
//! - One process at a time: the lock (`flock`) is taken before anything is
//!   read and goes with the process, however it ends.
//! - The manifest rules. A layout that it does not name is one that was being
//!   made, or one that was being removed: it is removed at start. So a crash
//!   anywhere in [`DataDir::begin_layout`] … [`DataDir::switch_layout`] leaves
//!   either the whole old layout or the whole new one.
//! - Every start has its own epoch, durable before anything is written in it.
//! - Names that are not ours are reported and never touched.
//!
//! Blocking system calls: for the start of the process, before executors run.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, Write};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use super::blob;
use super::disk::PROBE_PREFIX;
use super::error::StorageError;
use super::manifest::{self, Manifest, sync_dir};
use super::segment;

mod look;
mod mark;

pub use self::look::{Holder, Look, holder, look};
pub use self::mark::{BACKUP_NAME, BACKUP_RESTORING, BACKUP_UNFINISHED, Mark, check_is_dir};

/// Name of the lock file.
pub const LOCK_NAME: &str = "LOCK";
const QUARANTINE_NAME: &str = "quarantine";
/// A lock that is held is asked for again, this often and after this long: it may be someone who
/// only looks (see [`holder`]).
const LOCK_ATTEMPTS: u32 = 5;
const LOCK_INTERVAL: Duration = Duration::from_millis(20);

/// A data directory, locked by this process until dropped.
#[derive(Debug)]
pub struct DataDir {
    path: PathBuf,
    manifest: Manifest,
    unknown: Vec<PathBuf>,
    _lock: Lock,
}

/// The lock of a data directory, this process's until dropped.
#[derive(Debug)]
pub struct Lock {
    _file: File,
}

/// Locks the data directory at `path`, which exists, and does nothing else to it.
///
/// # Errors
/// [`StorageError::Locked`], [`StorageError::Io`].
pub fn lock(path: &Path) -> Result<Lock, StorageError> {
    take_lock(path).map(|file| Lock { _file: file })
}

/// A set of shards on disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Its number; the manifest names the one that rules.
    pub number: u64,
    /// How many shards it has.
    pub shards: u32,
    root: PathBuf,
}

impl Layout {
    fn new(data_dir: &Path, number: u64, shards: u32) -> Self {
        Self {
            number,
            shards,
            root: data_dir.join(format!("layout-{number}")),
        }
    }

    /// Directory of a shard.
    pub fn shard_dir(&self, shard: u32) -> PathBuf {
        self.root.join(format!("shard-{shard}"))
    }

    /// Directory of a shard's journal.
    pub fn journal_dir(&self, shard: u32) -> PathBuf {
        self.shard_dir(shard).join("journal")
    }

    /// Makes the directories, durable.
    fn create(&self) -> Result<(), StorageError> {
        for shard in 0..self.shards {
            create_dir(&self.journal_dir(shard))?;
            sync_dir(&self.shard_dir(shard))?;
        }
        sync_dir(&self.root)
    }
}

impl DataDir {
    /// Opens the data directory at `path` for this process and begins a new epoch. A directory
    /// that is new, or empty, is made one with `shards` shards; one that exists keeps its number
    /// ([`Self::layout`] tells).
    pub fn open(path: &Path, shards: u32) -> Result<Self, StorageError> {
        let path = std::path::absolute(path).map_err(StorageError::io("resolve", path))?;
        check_is_dir(&path)?;
        create_dir(&path)?;
        if let Some(parent) = path.parent() {
            sync_dir(parent)?;
        }
        if let Some(mark) = Mark::of(&path)? {
            return Err(StorageError::Backup { dir: path, mark });
        }
        let lock = lock(&path)?;
        let found = survey(&path)?;
        let mut manifest = match Manifest::load(&path)? {
            Some(manifest) => manifest,
            None => create(&path, shards, &found)?,
        };
        for (number, dir) in &found.layouts {
            if *number != manifest.layout {
                tracing::info!(dir = %dir.display(), "removing a layout that does not rule");
                remove_dir(dir)?;
            }
        }
        remove_probes(&path, &Layout::new(&path, manifest.layout, manifest.shards))?;
        manifest.boot_epoch = manifest.boot_epoch.saturating_add(1);
        // What an earlier version wrote is read; what is written from now on, it could not read.
        manifest.format_version = manifest::FORMAT_VERSION;
        manifest.store(&path)?;
        for unknown in &found.unknown {
            tracing::warn!(path = %unknown.display(), "not ours: left alone");
        }
        Ok(Self {
            path,
            manifest,
            unknown: found.unknown,
            _lock: lock,
        })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What the manifest says now.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// Names found at start that are not ours.
    pub fn unknown(&self) -> &[PathBuf] {
        &self.unknown
    }

    /// Where a repair in this start puts what it sets aside; it need not exist.
    pub fn quarantine(&self) -> PathBuf {
        let epoch = self.manifest.boot_epoch.to_string();
        self.path.join(QUARANTINE_NAME).join(epoch)
    }

    /// The layout that rules.
    pub fn layout(&self) -> Layout {
        Layout::new(&self.path, self.manifest.layout, self.manifest.shards)
    }

    /// Changes the manifest; durable when it returns. If it fails, nothing has changed as far as
    /// this process can tell, and the start should be given up.
    pub fn update(&mut self, change: impl FnOnce(&mut Manifest)) -> Result<(), StorageError> {
        let mut manifest = self.manifest.clone();
        change(&mut manifest);
        manifest.store(&self.path)?;
        self.manifest = manifest;
        Ok(())
    }

    /// Notes that every journal of the layout exists: an empty one is a loss from now on. Call it
    /// when all are open and before anything is acknowledged.
    pub fn mark_started(&mut self) -> Result<(), StorageError> {
        if self.manifest.started {
            return Ok(());
        }
        self.update(|manifest| manifest.started = true)
    }

    /// Makes the directories of a new layout with `shards` shards beside the one that rules.
    /// Fill its journals and sync them, then call [`Self::switch_layout`].
    pub fn begin_layout(&self, shards: u32) -> Result<Layout, StorageError> {
        let number = self.manifest.layout.saturating_add(1);
        let layout = Layout::new(&self.path, number, shards);
        if layout.root.exists() {
            remove_dir(&layout.root)?;
        }
        layout.create()?;
        sync_dir(&self.path)?;
        Ok(layout)
    }

    /// Makes `layout` rule, by one rename of the manifest, and removes the old one.
    pub fn switch_layout(&mut self, layout: &Layout) -> Result<(), StorageError> {
        let old = self.layout();
        self.update(|manifest| {
            manifest.layout = layout.number;
            manifest.shards = layout.shards;
            manifest.started = true;
        })?;
        if old.number != layout.number {
            remove_dir(&old.root)?;
        }
        Ok(())
    }
}

/// What a data directory holds, by name.
#[derive(Debug, Default)]
struct Survey {
    layouts: Vec<(u64, PathBuf)>,
    quarantine: Option<PathBuf>,
    unknown: Vec<PathBuf>,
}

fn survey(path: &Path) -> Result<Survey, StorageError> {
    let mut found = Survey::default();
    for entry in fs::read_dir(path).map_err(StorageError::io("list", path))? {
        let entry = entry.map_err(StorageError::io("list", path))?;
        let name = entry.file_name();
        let name = name.to_string_lossy();
        let layout = name
            .strip_prefix("layout-")
            .and_then(|number| number.parse().ok());
        match (layout, &*name) {
            (Some(number), _) => found.layouts.push((number, entry.path())),
            (
                None,
                LOCK_NAME
                | BACKUP_NAME
                | manifest::NAME
                | manifest::NAME_NEW
                | blob::DIR_NAME
                | segment::DIR_NAME,
            ) => {}
            (None, QUARANTINE_NAME) => found.quarantine = Some(entry.path()),
            // The next start removes it.
            (None, probe) if probe.starts_with(PROBE_PREFIX) => {}
            (None, _) => found.unknown.push(entry.path()),
        }
    }
    found.unknown.sort_unstable();
    Ok(found)
}

/// Removes what probes for direct I/O left behind that were killed, wherever one may have been made.
fn remove_probes(path: &Path, layout: &Layout) -> Result<(), StorageError> {
    let shards = (0..layout.shards).map(|shard| layout.journal_dir(shard));
    let shared = [
        path.to_owned(),
        path.join(segment::DIR_NAME),
        path.join(blob::DIR_NAME),
    ];
    for dir in shards.chain(shared) {
        let entries = match fs::read_dir(&dir) {
            Ok(entries) => entries,
            // Missing directories are found by who needs them.
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(StorageError::io("list", &dir)(error)),
        };
        for entry in entries {
            let entry = entry.map_err(StorageError::io("list", &dir))?;
            if entry
                .file_name()
                .to_string_lossy()
                .starts_with(PROBE_PREFIX)
            {
                let path = entry.path();
                fs::remove_file(&path).map_err(StorageError::io("remove", &path))?;
            }
        }
    }
    Ok(())
}

/// Makes a new data directory: the layout first, the manifest last. Without a manifest, layouts
/// that hold files are someone's data; layouts of empty directories are an earlier attempt.
fn create(path: &Path, shards: u32, found: &Survey) -> Result<Manifest, StorageError> {
    for (_, dir) in &found.layouts {
        if holds_files(dir)? {
            return Err(StorageError::MissingManifest {
                path: manifest::path(path),
            });
        }
        remove_dir(dir)?;
    }
    let mut secret = [0; 16];
    getrandom::fill(&mut secret)
        .map_err(|error| io::Error::other(error.to_string()))
        .map_err(StorageError::io("read random numbers for", path))?;
    let manifest = Manifest::new(shards, secret);
    Layout::new(path, manifest.layout, shards).create()?;
    sync_dir(path)?;
    manifest.store(path)?;
    Ok(manifest)
}

/// The directory `name` below a data directory, made, durable, if it is not there.
///
/// # Errors
/// [`StorageError::Io`].
pub fn prepare_dir(data_dir: &Path, name: &str) -> Result<PathBuf, StorageError> {
    let dir = data_dir.join(name);
    create_dir(&dir)?;
    sync_dir(data_dir)?;
    Ok(dir)
}

fn holds_files(dir: &Path) -> Result<bool, StorageError> {
    for entry in fs::read_dir(dir).map_err(StorageError::io("list", dir))? {
        let entry = entry.map_err(StorageError::io("list", dir))?;
        let is_dir = entry
            .file_type()
            .map_err(StorageError::io("stat", &entry.path()))?
            .is_dir();
        if !is_dir || holds_files(&entry.path())? {
            return Ok(true);
        }
    }
    Ok(false)
}

fn create_dir(path: &Path) -> Result<(), StorageError> {
    fs::create_dir_all(path).map_err(StorageError::io("create", path))
}

fn remove_dir(path: &Path) -> Result<(), StorageError> {
    fs::remove_dir_all(path).map_err(StorageError::io("remove", path))?;
    path.parent().map_or(Ok(()), sync_dir)
}

/// Locks the directory and writes this process's pid into the lock file.
fn take_lock(dir: &Path) -> Result<File, StorageError> {
    let path = dir.join(LOCK_NAME);
    let mut file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .open(&path)
        .map_err(StorageError::io("open", &path))?;
    let mut locked = file.try_lock();
    for _ in 1..LOCK_ATTEMPTS {
        if !matches!(locked, Err(TryLockError::WouldBlock)) {
            break;
        }
        thread::sleep(LOCK_INTERVAL);
        locked = file.try_lock();
    }
    match locked {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            let mut text = String::new();
            let pid = file
                .read_to_string(&mut text)
                .ok()
                .and_then(|_| text.trim().parse().ok());
            return Err(StorageError::Locked {
                dir: dir.to_owned(),
                pid,
            });
        }
        Err(TryLockError::Error(error)) => return Err(StorageError::io("lock", &path)(error)),
    }
    let mut write_pid = || -> io::Result<()> {
        file.set_len(0)?;
        file.rewind()?;
        writeln!(file, "{}", std::process::id())
    };
    write_pid().map_err(StorageError::io("write", &path))?;
    Ok(file)
}

#[cfg(test)]
mod tests;
