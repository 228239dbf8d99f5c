//! A data directory from a backup.
//!
//! In this order: the backup is read and checked against `backup.json`; the
//! target, empty and locked, gets a `backup.json` that says so, which makes a start
//! refuse it; every file is written and synced; the manifest is written; all of it
//! is read back and checked; the `backup.json` goes. Killed before the last step,
//! it leaves a directory that no start takes for one.
//!
//! The manifest is the backup's but for one number: blocks of incarnations are
//! skipped. The server that was backed up may have gone on, and have been started
//! again, since; the tokens that it gave to streams then must not be given to
//! others.

use std::{
    fmt, fs,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use bytesize::ByteSize;

use super::{
    BackupError,
    contents::{Contents, Entry},
    copy::{self, Way},
    interrupt::Interrupts,
    take::{check_target, parent, sync_all, sync_dir},
};
use crate::{
    protocol::incarnation::BLOCKS_MAX,
    server::progress::Progress,
    storage::{
        StorageError,
        data_dir::{self, BACKUP_NAME, LOCK_NAME, Mark},
        manifest::{self, Manifest},
    },
};

/// Blocks of incarnations skipped. As many starts, divided by the number of shards, may have come
/// between the backup and the loss of what was backed up; five hundred restores use them up.
const BLOCKS_SKIPPED: u64 = 4096;

const _: () = assert!(BLOCKS_SKIPPED * 512 <= BLOCKS_MAX);

/// A directory that was restored.
#[derive(Debug)]
pub(super) struct Restored {
    from: PathBuf,
    to: PathBuf,
    made_at: String,
    files: usize,
    bytes: u64,
    took: Duration,
}

impl fmt::Display for Restored {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let to = self.to.display();
        write!(
            f,
            "restored {to} from {}, taken at {}: {} files, {}, in {:.1?}; `thalweg serve --data-dir \
             {to}` serves it",
            self.from.display(),
            self.made_at,
            self.files,
            ByteSize(self.bytes),
            self.took
        )
    }
}

/// Restores `to` from the backup in `from`.
pub(super) fn restore(from: &Path, to: &Path) -> Result<Restored, BackupError> {
    let started = Instant::now();
    let contents = Contents::load(from)?;
    if let Some(holder) = data_dir::holder(to)? {
        return Err(BackupError::TargetInUse {
            path: to.to_owned(),
            pid: holder.pid,
        });
    }
    if let Some(mark @ Mark::Restoring) = Mark::of(to)? {
        let dir = to.to_owned();
        return Err(StorageError::Backup { dir, mark }.into());
    }
    check_target(to)?;
    let bytes = contents.bytes();
    check(&contents, from, "checking the backup", bytes)?;
    let was_there = to.exists();
    let interrupts = Interrupts::catch().map_err(BackupError::io("catch signals for", to))?;
    fs::create_dir_all(to).map_err(BackupError::io("create", to))?;
    let lock = match data_dir::lock(to) {
        Err(StorageError::Locked { dir, pid }) => {
            return Err(BackupError::TargetInUse { path: dir, pid });
        }
        locked => locked?,
    };
    // Somebody may have been faster than the lock.
    check_locked(to)?;
    let made = fill(&contents, from, to, bytes, &interrupts);
    if made.is_err() {
        empty(to, was_there);
    }
    drop(lock);
    made?;
    Ok(Restored {
        from: from.to_owned(),
        to: to.to_owned(),
        made_at: contents.made_at.clone(),
        files: contents.files.len(),
        bytes,
        took: started.elapsed(),
    })
}

/// Reads every file in `dir` against its length and digest.
fn check(
    contents: &Contents,
    dir: &Path,
    what: &'static str,
    bytes: u64,
) -> Result<(), BackupError> {
    let progress = Progress::new(what, bytes);
    for entry in &contents.files {
        let path = place(entry, dir)?;
        let found = copy::digest(&path, &mut |bytes| {
            progress.add(bytes);
            Ok(())
        })?;
        let what = match found {
            None => String::from("it is missing"),
            Some((bytes, digest)) if entry.is_of(bytes, digest) => continue,
            Some((bytes, _)) if bytes != entry.bytes => {
                format!("it has {bytes} bytes where {} were written", entry.bytes)
            }
            Some(_) => String::from("its digest is not that of what was written"),
        };
        return Err(BackupError::Damaged { path, what });
    }
    progress.finish();
    Ok(())
}

fn place(entry: &Entry, dir: &Path) -> Result<PathBuf, BackupError> {
    entry.below(dir).ok_or_else(|| BackupError::Damaged {
        path: dir.join(BACKUP_NAME),
        what: String::from("it names a file outside"),
    })
}

fn fill(
    contents: &Contents,
    from: &Path,
    to: &Path,
    bytes: u64,
    interrupts: &Interrupts,
) -> Result<(), BackupError> {
    Contents::mark_restoring(to)?;
    sync_dir(to)?;
    let progress = Progress::new("restoring", bytes);
    let own = manifest::path(to);
    for entry in &contents.files {
        let (source, target) = (place(entry, from)?, place(entry, to)?);
        if target == own {
            continue;
        }
        let dir = parent(&target);
        fs::create_dir_all(dir).map_err(BackupError::io("create", dir))?;
        // The space of journal files is taken beforehand, so that a full disk is noticed in time.
        let is_journal = target.extension().is_some_and(|end| end == "journal");
        let way = Way {
            sparse: !is_journal,
            ..Way::SPARSE
        };
        let copied = copy::copy(&source, &target, way, &mut |bytes| {
            progress.add(bytes);
            interrupts.check()
        })?;
        if !copied.is_some_and(|(bytes, digest)| entry.is_of(bytes, digest)) {
            return Err(BackupError::Damaged {
                path: source,
                what: String::from("it has changed since it was checked"),
            });
        }
    }
    progress.finish();
    sync_all(to)?;
    let written = Progress::new("reading it back", bytes);
    for entry in &contents.files {
        let path = place(entry, to)?;
        if path == own {
            continue;
        }
        let found = copy::digest(&path, &mut |bytes| {
            written.add(bytes);
            interrupts.check()
        })?;
        if !found.is_some_and(|(bytes, digest)| entry.is_of(bytes, digest)) {
            return Err(BackupError::Miswritten { path });
        }
    }
    written.finish();
    let mut manifest = Manifest::load(from)?.ok_or_else(|| BackupError::NotABackup {
        path: manifest::path(from),
    })?;
    let skipped = manifest.incarnation_blocks.saturating_add(BLOCKS_SKIPPED);
    manifest.incarnation_blocks = skipped.min(BLOCKS_MAX.max(manifest.incarnation_blocks));
    manifest.store(to)?;
    let mark = to.join(BACKUP_NAME);
    fs::remove_file(&mark).map_err(BackupError::io("remove", &mark))?;
    sync_dir(to)?;
    sync_dir(parent(to))
}

/// Refuses a locked target that has more in it than the lock.
fn check_locked(to: &Path) -> Result<(), BackupError> {
    for entry in fs::read_dir(to).map_err(BackupError::io("list", to))? {
        let entry = entry.map_err(BackupError::io("list", to))?;
        if entry.file_name() != LOCK_NAME {
            return Err(BackupError::NotEmpty {
                path: to.to_owned(),
            });
        }
    }
    Ok(())
}

/// Takes back what was made; the mark goes last.
fn empty(to: &Path, was_there: bool) {
    let remove = || -> std::io::Result<()> {
        let mut last = Vec::new();
        for entry in fs::read_dir(to)? {
            let entry = entry?;
            let name = entry.file_name();
            if name == BACKUP_NAME || name == LOCK_NAME {
                last.push(entry.path());
            } else if entry.file_type()?.is_dir() {
                fs::remove_dir_all(entry.path())?;
            } else {
                fs::remove_file(entry.path())?;
            }
        }
        last.iter().try_for_each(fs::remove_file)?;
        if was_there {
            return Ok(());
        }
        fs::remove_dir(to)
    };
    if let Err(error) = remove() {
        let to = to.display();
        eprintln!("thalweg: what was restored so far is left in {to} ({error}): remove it");
    }
}
