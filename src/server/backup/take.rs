//! Taking a backup: what to copy, copying it, verifying it, giving it its name.

use std::{
    fmt,
    fs::{self, File, TryLockError},
    io::{self, ErrorKind},
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    sync::mpsc::{self, RecvTimeoutError},
    thread,
    time::{Duration, Instant},
};

use bytesize::ByteSize;
use futures_lite::future::block_on;

use super::{
    BackupError, BackupOptions,
    contents::{Contents, Entry},
    copy::{self, Way},
    held::HeldDirectory,
    interrupt::Interrupts,
    operator,
};
use crate::{
    base::{
        limits::Durability,
        time::{Clock as _, SystemClock, format_rfc3339},
    },
    server::{
        inspect::{self, report::Report},
        progress::Progress,
    },
    shard::hold::Cut,
    storage::{
        StorageError,
        blob::{self, BlobStore, Graveyard},
        checkpoint::{Current, Identity},
        data_dir::{self, BACKUP_NAME, Look, Mark},
        disk::ReadOnlyDisk,
        journal::{self, Extent},
        manifest, segment,
    },
};

/// How often it is asked whether a signal has come while the copy is read back.
const INTERRUPT_POLL: Duration = Duration::from_millis(50);

/// A backup that was taken.
#[derive(Debug)]
pub(super) struct Taken {
    from: PathBuf,
    to: PathBuf,
    files: usize,
    bytes: u64,
    streams: usize,
    copied_in: Duration,
    verified_in: Duration,
}

impl fmt::Display for Taken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "backed up {} to {}: {} streams, {} files, {}, copied in {:.1?}, verified in {:.1?}",
            self.from.display(),
            self.to.display(),
            self.streams,
            self.files,
            ByteSize(self.bytes),
            self.copied_in,
            self.verified_in
        )
    }
}

/// Takes a backup.
pub(super) fn take(options: &BackupOptions) -> Result<Taken, BackupError> {
    let started = Instant::now();
    check_target(&options.to)?;
    let source = Source::find(options)?;
    if is_inside(&options.to, &source.dir) {
        return Err(BackupError::Inside {
            path: options.to.clone(),
        });
    }
    let partial = Partial::begin(&options.to)?;
    let taken = fill(source, &partial, &options.to, started);
    if taken.is_err() {
        partial.abandon();
    }
    taken
}

fn fill(
    source: Source,
    partial: &Partial,
    to: &Path,
    started: Instant,
) -> Result<Taken, BackupError> {
    let (dir, from) = (&partial.path, source.dir.clone());
    let items = source.items()?;
    let total = items.iter().map(Item::bytes).sum();
    let progress = Progress::new("copying", total);
    let mut files = Vec::with_capacity(items.len());
    let check = || {
        partial.interrupts.check()?;
        source.check()
    };
    for item in items {
        check()?;
        let copied = item.copy(&from, dir, &mut |bytes| {
            progress.add(bytes);
            check()
        })?;
        files.extend(copied);
    }
    // From here on the copy stands by itself.
    source.end()?;
    progress.finish();
    let copied_in = started.elapsed();
    sync_all(dir)?;

    let verifying = Instant::now();
    let bytes = files.iter().map(|file| file.bytes).sum();
    let progress = Progress::waiting("verifying");
    let report = verify(dir, &partial.interrupts)?;
    progress.finish();
    if !report.verified {
        let problems = report.problems.iter();
        let problems = problems.map(|problem| format!("{}: {}", problem.place, problem.what));
        return Err(BackupError::Unverified {
            problems: problems.collect(),
        });
    }
    let made_at = format_rfc3339(SystemClock.now_ms());
    let count = files.len();
    Contents::new(&from, made_at, files).store(dir)?;
    sync_dir(dir)?;
    partial.interrupts.check()?;
    fs::rename(dir, to).map_err(BackupError::io("rename", dir))?;
    sync_dir(parent(to))?;
    Ok(Taken {
        from,
        to: to.to_owned(),
        files: count,
        bytes,
        streams: report.streams_total,
        copied_in,
        verified_in: verifying.elapsed(),
    })
}

/// Reads the copy as `inspect` does, until a signal says to stop: it is left to read on then, as long
/// as the process lasts.
fn verify(dir: &Path, interrupts: &Interrupts) -> Result<Report, BackupError> {
    let (done, outcome) = mpsc::channel();
    let reader = thread::Builder::new().spawn({
        let dir = dir.to_owned();
        move || {
            // Nobody listens once a signal has come.
            let _ = done.send(inspect::verify(&dir));
        }
    });
    reader.map_err(BackupError::io("read", dir))?;
    loop {
        match outcome.recv_timeout(INTERRUPT_POLL) {
            Ok(report) => return Ok(report),
            Err(RecvTimeoutError::Timeout) => interrupts.check()?,
            Err(RecvTimeoutError::Disconnected) => {
                let problem = String::from("the thread that read it ended");
                return Err(BackupError::Unverified {
                    problems: vec![problem],
                });
            }
        }
    }
}

/// A data directory that stays as it is while it is copied.
struct Source {
    dir: PathBuf,
    look: Look,
    keeper: Keeper,
}

/// What keeps it so.
enum Keeper {
    /// A server, which says what is needed of each shard.
    Server(operator::Hold, Vec<Cut>),
    /// Its lock: no server has it.
    Lock { _lock: data_dir::Lock },
}

impl Source {
    fn find(options: &BackupOptions) -> Result<Self, BackupError> {
        let Some(address) = &options.admin else {
            let dir = options.data_dir.clone().unwrap_or_default();
            data_dir::check_is_dir(&dir)?;
            match Mark::of(&dir)? {
                None => {}
                Some(Mark::Backup) => return Err(BackupError::SourceIsBackup { path: dir }),
                Some(mark) => return Err(StorageError::Backup { dir, mark }.into()),
            }
            // A directory that is none must not become one.
            data_dir::look(&dir)?;
            let lock = data_dir::lock(&dir)?;
            return Ok(Self {
                look: data_dir::look(&dir)?,
                keeper: Keeper::Lock { _lock: lock },
                dir,
            });
        };
        let (hold, held) = operator::Hold::begin(address)?;
        let dir = options.data_dir.clone().unwrap_or(held.data_dir.clone());
        let look = data_dir::look(&dir)?;
        if !is_of(&look, &held) {
            return Err(BackupError::OtherDirectory { path: dir });
        }
        let cuts = held.shards.iter().map(Cut::from).collect();
        Ok(Self {
            dir,
            look,
            keeper: Keeper::Server(hold, cuts),
        })
    }

    /// Whether it has stayed as it is.
    fn check(&self) -> Result<(), BackupError> {
        match &self.keeper {
            Keeper::Server(hold, _) => hold.check(),
            Keeper::Lock { .. } => Ok(()),
        }
    }

    /// It need not any longer; an error if it has not.
    fn end(self) -> Result<(), BackupError> {
        match self.keeper {
            Keeper::Server(hold, _) => hold.end(),
            Keeper::Lock { .. } => Ok(()),
        }
    }

    /// What is to be copied.
    fn items(&self) -> Result<Vec<Item>, BackupError> {
        let mut items = Vec::new();
        let manifest = &self.look.manifest;
        for shard in 0..self.look.layout.shards {
            let identity = Identity {
                dir: self.look.layout.shard_dir(shard),
                journal_id: manifest.journal_id(manifest.layout, shard),
                shard,
            };
            let cut = match &self.keeper {
                Keeper::Server(_, cuts) => cuts.get(shard as usize).cloned().unwrap_or_default(),
                Keeper::Lock { .. } => self.cut(shard, &identity)?,
            };
            self.shard_items(shard, &identity, &cut, &mut items)?;
        }
        let (segments, blobs) = (
            self.dir.join(segment::DIR_NAME),
            self.dir.join(blob::DIR_NAME),
        );
        if segments.exists() {
            let (ids, _) = block_on(segment::list(&ReadOnlyDisk, &segments))?;
            for id in ids {
                items.push(self.item(&segments.join(id.name()), Way::SPARSE, Presence::MayGo)?);
            }
        }
        if blobs.exists() {
            let store = BlobStore::new(ReadOnlyDisk, blobs, Durability::Sync, Graveyard::default());
            let (ids, _) = block_on(store.list())?;
            for id in ids {
                items.push(self.item(&store.path(id), Way::SPARSE, Presence::MayGo)?);
            }
        }
        items.push(self.item(&manifest::path(&self.dir), Way::SPARSE, Presence::Needed)?);
        Ok(items)
    }

    /// All of a shard that nobody changes.
    fn cut(&self, shard: u32, identity: &Identity) -> Result<Cut, BackupError> {
        let dir = self.look.layout.journal_dir(shard);
        let numbers = block_on(journal::numbers(&ReadOnlyDisk, &dir))?;
        let journal = Extent {
            first_file: numbers.first().copied().unwrap_or(1),
            last_file: numbers.last().copied().unwrap_or(0),
            end: u64::MAX,
        };
        Ok(Cut {
            checkpoint: block_on(Current::load(&ReadOnlyDisk, identity))?,
            journal,
        })
    }

    fn shard_items(
        &self,
        shard: u32,
        identity: &Identity,
        cut: &Cut,
        items: &mut Vec<Item>,
    ) -> Result<(), BackupError> {
        if let Some(current) = &cut.checkpoint {
            let path = identity.path(current.number);
            items.push(self.item(&path, Way::SPARSE, Presence::Needed)?);
            items.push(Item {
                path: self.relative(&identity.current_path()),
                what: What::Bytes(current.to_bytes(identity)),
            });
        }
        let dir = self.look.layout.journal_dir(shard);
        let Extent {
            first_file,
            last_file,
            end,
        } = cut.journal;
        for number in first_file..=last_file {
            let until = if number == last_file { end } else { u64::MAX };
            let way = Way {
                until,
                sparse: true,
            };
            items.push(self.item(&journal::file_path(&dir, number), way, Presence::Needed)?);
        }
        Ok(())
    }

    fn item(&self, path: &Path, way: Way, presence: Presence) -> Result<Item, BackupError> {
        let len = match fs::metadata(path) {
            Ok(metadata) => metadata.len(),
            // Whether it had to be there is found when it is opened.
            Err(error) if error.kind() == ErrorKind::NotFound => 0,
            Err(error) => return Err(BackupError::io("stat", path)(error)),
        };
        Ok(Item {
            path: self.relative(path),
            what: What::File(len, way, presence),
        })
    }

    fn relative(&self, path: &Path) -> PathBuf {
        path.strip_prefix(&self.dir).unwrap_or(path).to_owned()
    }
}

/// A file of the backup.
struct Item {
    /// Below both directories.
    path: PathBuf,
    what: What,
}

enum What {
    /// This.
    Bytes(Vec<u8>),
    /// A copy of the file there, which had this many bytes.
    File(u64, Way, Presence),
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Presence {
    /// It must be there.
    Needed,
    /// Its removal may have been under way when the hold began: then nothing names it. If
    /// something does, verifying finds that it is missing.
    MayGo,
}

impl Item {
    fn bytes(&self) -> u64 {
        match &self.what {
            What::Bytes(bytes) => bytes.len() as u64,
            What::File(bytes, ..) => *bytes,
        }
    }

    fn copy(
        self,
        from: &Path,
        to: &Path,
        on_piece: &mut dyn FnMut(u64) -> Result<(), BackupError>,
    ) -> Result<Option<Entry>, BackupError> {
        let (source, target) = (from.join(&self.path), to.join(&self.path));
        fs::create_dir_all(parent(&target)).map_err(BackupError::io("create", parent(&target)))?;
        match self.what {
            What::Bytes(bytes) => {
                write_durably(&target, &bytes).map_err(BackupError::io("write", &target))?;
                on_piece(bytes.len() as u64)?;
                let entry = Entry::new(&self.path, bytes.len() as u64, blake3::hash(&bytes));
                Ok(Some(entry))
            }
            What::File(_, way, presence) => match copy::copy(&source, &target, way, on_piece)? {
                Some((bytes, digest)) => Ok(Some(Entry::new(&self.path, bytes, digest))),
                None if presence == Presence::MayGo => Ok(None),
                None => Err(StorageError::MissingFile { path: source }.into()),
            },
        }
    }
}

fn write_durably(path: &Path, bytes: &[u8]) -> io::Result<()> {
    use std::io::Write as _;
    let mut file = File::create_new(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}

/// Whether what was looked at is what the server serves.
fn is_of(look: &Look, held: &HeldDirectory) -> bool {
    let manifest = &look.manifest;
    manifest.identity() == held.identity
        && (manifest.layout, manifest.boot_epoch) == (held.layout, held.epoch)
        && manifest.shards as usize == held.shards.len()
}

/// The target while it is not whole: `DIR.partial`, locked.
struct Partial {
    path: PathBuf,
    interrupts: Interrupts,
    _lock: File,
}

impl Partial {
    fn begin(to: &Path) -> Result<Self, BackupError> {
        let mut name = to.file_name().unwrap_or(to.as_os_str()).to_owned();
        name.push(".partial");
        let path = parent(to).join(name);
        if let Some(old) = open_dir(&path)? {
            lock(&old, &path)?;
            if !is_leftover(&path)? {
                return Err(BackupError::NotOurs { path });
            }
            fs::remove_dir_all(&path).map_err(BackupError::io("remove", &path))?;
        }
        let interrupts = Interrupts::catch();
        let interrupts = interrupts.map_err(BackupError::io("catch signals for", &path))?;
        fs::create_dir(&path).map_err(BackupError::io("create", &path))?;
        let dir = File::open(&path).map_err(BackupError::io("open", &path))?;
        lock(&dir, &path)?;
        let partial = Self {
            path,
            interrupts,
            _lock: dir,
        };
        if let Err(error) = Contents::mark_unfinished(&partial.path) {
            partial.abandon();
            return Err(error);
        }
        Ok(partial)
    }

    fn abandon(&self) {
        if let Err(error) = fs::remove_dir_all(&self.path) {
            let path = self.path.display();
            eprintln!("thalweg: {path} could not be removed ({error}): remove it");
        }
    }
}

fn open_dir(path: &Path) -> Result<Option<File>, BackupError> {
    match File::open(path) {
        Ok(dir) => Ok(Some(dir)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(BackupError::io("open", path)(error)),
    }
}

fn lock(dir: &File, path: &Path) -> Result<(), BackupError> {
    match dir.try_lock() {
        Ok(()) => Ok(()),
        Err(TryLockError::WouldBlock) => Err(BackupError::Running {
            path: path.to_owned(),
        }),
        Err(TryLockError::Error(error)) => Err(BackupError::io("lock", path)(error)),
    }
}

/// Whether there is nothing in `path` but what a backup writes.
fn is_leftover(path: &Path) -> Result<bool, BackupError> {
    let entries = fs::read_dir(path).map_err(BackupError::io("list", path))?;
    for entry in entries {
        let name = entry.map_err(BackupError::io("list", path))?.file_name();
        let name = name.to_string_lossy();
        let is_ours = matches!(
            &*name,
            manifest::NAME | segment::DIR_NAME | blob::DIR_NAME | BACKUP_NAME
        ) || name.starts_with("layout-");
        if !is_ours {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Refuses a target that has something in it.
pub(super) fn check_target(to: &Path) -> Result<(), BackupError> {
    data_dir::check_is_dir(to)?;
    match fs::read_dir(to) {
        Ok(mut entries) => match entries.next() {
            None => check_can_be_renamed(to),
            Some(_) => Err(BackupError::NotEmpty {
                path: to.to_owned(),
            }),
        },
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        Err(error) => Err(BackupError::io("list", to)(error)),
    }
}

/// Refuses a target that cannot get its name by a rename, as a mount point and `.` cannot, before
/// anything is written, and that beside it.
fn check_can_be_renamed(to: &Path) -> Result<(), BackupError> {
    let stat = |path: &Path| fs::metadata(path).map_err(BackupError::io("stat", path));
    let is_mount_point = stat(to)?.dev() != stat(parent(to))?.dev();
    if is_mount_point || to.file_name().is_none() {
        return Err(BackupError::MountPoint {
            path: to.to_owned(),
        });
    }
    Ok(())
}

fn is_inside(path: &Path, dir: &Path) -> bool {
    let real = |path: &Path| fs::canonicalize(path).ok();
    match (real(parent(path)), real(dir)) {
        (Some(parent), Some(dir)) => parent.starts_with(dir),
        _ => false,
    }
}

/// The directory that `path` is in.
pub(super) fn parent(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if parent.as_os_str().is_empty() => Path::new("."),
        Some(parent) => parent,
        None => path,
    }
}

/// Makes the names in `dir`, and below, durable.
pub(super) fn sync_all(dir: &Path) -> Result<(), BackupError> {
    for entry in fs::read_dir(dir).map_err(BackupError::io("list", dir))? {
        let entry = entry.map_err(BackupError::io("list", dir))?;
        let kind = entry.file_type();
        let kind = kind.map_err(BackupError::io("stat", &entry.path()))?;
        if kind.is_dir() {
            sync_all(&entry.path())?;
        }
    }
    sync_dir(dir)
}

pub(super) fn sync_dir(dir: &Path) -> Result<(), BackupError> {
    let sync = || File::open(dir)?.sync_all();
    sync().map_err(BackupError::io("sync", dir))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_that_cannot_be_renamed_to_is_refused_first() {
        let dir = tempfile::tempdir().unwrap();
        assert!(check_target(dir.path()).is_ok());
        assert!(check_target(&dir.path().join("new")).is_ok());
        for path in [Path::new("."), &dir.path().join(".."), Path::new("/")] {
            let refused = check_can_be_renamed(path);
            assert!(
                matches!(refused, Err(BackupError::MountPoint { .. })),
                "{}: {refused:?}",
                path.display()
            );
        }
    }
}
