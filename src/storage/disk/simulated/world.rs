//! State of the simulated machine: what reads see, what is durable, what lies between.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use super::super::Access;
use super::change::{Change, SECTOR_BYTES};
use super::plan::{Crash, Fault, FaultPlan, Operation};
use crate::base::rng::Rng;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct FileId(usize);

/// A change under way, until it completes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ticket(u64);

#[derive(Debug, Default)]
struct File {
    /// What reads see.
    visible: Vec<u8>,
    /// What the medium holds for certain.
    durable: Vec<u8>,
    /// Completed, not synced; by order of completion.
    unsynced: Vec<(u64, Change)>,
    /// Submitted, not completed.
    under_way: Vec<(Ticket, Change)>,
    /// Order numbers of sectors that were written durably past a sync.
    durable_at: BTreeMap<usize, u64>,
    punched_bytes: u64,
}

#[derive(Debug, Default)]
struct Directory {
    visible: BTreeMap<String, FileId>,
    durable: BTreeMap<String, FileId>,
    /// The names after each unsynced change.
    unsynced: Vec<BTreeMap<String, FileId>>,
}

#[derive(Debug)]
pub(super) struct World {
    pub(super) capacity_bytes: u64,
    rng: Rng,
    files: Vec<File>,
    dirs: BTreeMap<PathBuf, Directory>,
    plan: FaultPlan,
    begun: [u64; Operation::KINDS],
    halted: bool,
    life: u64,
    order: u64,
    now: Duration,
    sleepers: Vec<Waker>,
    watcher: Option<Waker>,
}

fn errno(errno: i32) -> io::Error {
    io::Error::from_raw_os_error(errno)
}

fn split(path: &Path) -> io::Result<(PathBuf, String)> {
    let name = path.file_name().and_then(|name| name.to_str());
    match (path.parent(), name) {
        (Some(dir), Some(name)) => Ok((dir.to_owned(), name.to_owned())),
        _ => Err(errno(libc::EINVAL)),
    }
}

impl World {
    pub(super) fn new(seed: u64, capacity_bytes: u64) -> Self {
        Self {
            capacity_bytes,
            rng: Rng::from_seed(seed),
            files: Vec::new(),
            dirs: BTreeMap::new(),
            plan: FaultPlan::default(),
            begun: [0; Operation::KINDS],
            halted: false,
            life: 0,
            order: 0,
            now: Duration::ZERO,
            sleepers: Vec::new(),
            watcher: None,
        }
    }

    // The machine.

    pub(super) fn set_plan(&mut self, plan: FaultPlan) {
        self.plan = plan;
        self.begun = [0; Operation::KINDS];
    }

    pub(super) fn life(&self) -> u64 {
        self.life
    }

    pub(super) fn is_running(&self, life: u64) -> bool {
        !self.halted && self.life == life
    }

    /// Counts an operation; `None` if the machine does not run (any more).
    pub(super) fn begin(&mut self, operation: Operation, life: u64) -> Option<Option<Fault>> {
        if !self.is_running(life) {
            return None;
        }
        if self
            .plan
            .halt_after
            .is_some_and(|limit| self.operations() >= limit)
        {
            self.halted = true;
            if let Some(watcher) = self.watcher.take() {
                watcher.wake();
            }
            return None;
        }
        let count = &mut self.begun[operation.index()];
        *count += 1;
        Some(self.plan.fault_for(operation, *count))
    }

    pub(super) fn operations(&self) -> u64 {
        self.begun.iter().sum()
    }

    pub(super) fn count(&self, operation: Operation) -> u64 {
        self.begun[operation.index()]
    }

    pub(super) fn delay(&mut self) -> u64 {
        self.rng.below(self.plan.delay_turns_max + 1)
    }

    pub(super) fn poll_halted(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if self.halted {
            return Poll::Ready(());
        }
        self.watcher = Some(cx.waker().clone());
        Poll::Pending
    }

    pub(super) fn now(&self) -> Duration {
        self.now
    }

    pub(super) fn advance(&mut self, duration: Duration) {
        self.now += duration;
        self.sleepers.drain(..).for_each(Waker::wake);
    }

    pub(super) fn poll_clock(&mut self, until: Duration, cx: &mut Context<'_>) -> Poll<()> {
        if self.now >= until {
            return Poll::Ready(());
        }
        if !self
            .sleepers
            .iter()
            .any(|waker| waker.will_wake(cx.waker()))
        {
            self.sleepers.push(cx.waker().clone());
        }
        Poll::Pending
    }

    // Names.

    fn dir(&mut self, dir: &Path) -> io::Result<&mut Directory> {
        self.dirs.get_mut(dir).ok_or_else(|| errno(libc::ENOENT))
    }

    fn find(&self, path: &Path) -> Option<FileId> {
        let (dir, name) = split(path).ok()?;
        self.dirs.get(&dir)?.visible.get(&name).copied()
    }

    pub(super) fn open(&mut self, path: &Path, access: Access) -> io::Result<FileId> {
        match (self.find(path), access) {
            (Some(_), Access::Create) => Err(errno(libc::EEXIST)),
            (Some(id), _) => Ok(id),
            (None, Access::Create) => {
                let (dir, name) = split(path)?;
                let id = FileId(self.files.len());
                self.dir(&dir)?.change(|names| _ = names.insert(name, id));
                self.files.push(File::default());
                Ok(id)
            }
            (None, _) => Err(errno(libc::ENOENT)),
        }
    }

    pub(super) fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        let dir = self.dirs.get(dir).ok_or_else(|| errno(libc::ENOENT))?;
        Ok(dir.visible.keys().cloned().collect())
    }

    /// Directories are durable at once: what makes them syncs them before anything is in them.
    pub(super) fn create_dir(&mut self, dir: &Path) {
        self.dirs.entry(dir.to_owned()).or_default();
    }

    pub(super) fn rename(&mut self, from: &Path, to: &Path) -> io::Result<()> {
        let ((from_dir, from), (to_dir, to)) = (split(from)?, split(to)?);
        if from_dir != to_dir {
            return Err(errno(libc::EXDEV));
        }
        let dir = self.dir(&from_dir)?;
        let id = dir
            .visible
            .get(&from)
            .copied()
            .ok_or_else(|| errno(libc::ENOENT))?;
        dir.change(|names| {
            names.remove(&from);
            names.insert(to, id);
        });
        Ok(())
    }

    pub(super) fn remove(&mut self, path: &Path) -> io::Result<()> {
        let (dir, name) = split(path)?;
        let dir = self.dir(&dir)?;
        if !dir.visible.contains_key(&name) {
            return Err(errno(libc::ENOENT));
        }
        dir.change(|names| _ = names.remove(&name));
        Ok(())
    }

    pub(super) fn sync_dir(&mut self, dir: &Path) -> io::Result<()> {
        let dir = self.dir(dir)?;
        dir.durable = dir.visible.clone();
        dir.unsynced.clear();
        Ok(())
    }

    // Bytes.

    /// Bytes taken by files that have a name.
    pub(super) fn free_bytes(&self) -> u64 {
        let named = self.dirs.values().flat_map(|dir| dir.visible.values());
        let used: u64 = named.map(|id| self.files[id.0].used_bytes()).sum();
        self.capacity_bytes.saturating_sub(used)
    }

    pub(super) fn len(&self, id: FileId) -> u64 {
        self.files[id.0].visible.len() as u64
    }

    pub(super) fn read(&self, id: FileId, offset: u64, len: usize) -> Vec<u8> {
        let visible = &self.files[id.0].visible;
        let from = (offset as usize).min(visible.len());
        let to = (from + len).min(visible.len());
        visible[from..to].to_vec()
    }

    /// Notes a change that the disk may carry out, in part or whole, from now on.
    pub(super) fn submit(&mut self, id: FileId, life: u64, change: Change) -> Ticket {
        self.order += 1;
        let ticket = Ticket(self.order);
        if self.is_running(life) {
            self.files[id.0].under_way.push((ticket, change));
        }
        ticket
    }

    fn take(&mut self, id: FileId, ticket: Ticket) -> Option<Change> {
        let under_way = &mut self.files[id.0].under_way;
        let at = under_way.iter().position(|(other, _)| *other == ticket)?;
        Some(under_way.remove(at).1)
    }

    pub(super) fn complete_write(
        &mut self,
        id: FileId,
        ticket: Ticket,
        durable: bool,
    ) -> io::Result<usize> {
        let Some(change) = self.take(id, ticket) else {
            return Err(errno(libc::EIO));
        };
        let Change::Write { offset, bytes } = &change else {
            return Err(errno(libc::EINVAL));
        };
        let len = bytes.len();
        let grown = (offset + len as u64).saturating_sub(self.len(id));
        if grown > self.free_bytes() {
            return Err(errno(libc::ENOSPC));
        }
        self.order += 1;
        let order = self.order;
        let file = &mut self.files[id.0];
        change.apply(&mut file.visible);
        if durable {
            change.apply(&mut file.durable);
            let first = *offset as usize / SECTOR_BYTES;
            file.durable_at
                .extend((first..first + len / SECTOR_BYTES).map(|sector| (sector, order)));
        } else {
            file.unsynced.push((order, change));
        }
        Ok(len)
    }

    /// The first `taken` bytes of a write reach the disk.
    pub(super) fn complete_part(&mut self, id: FileId, ticket: Ticket, taken: usize) {
        if let Some(Change::Write { offset, mut bytes }) = self.take(id, ticket) {
            bytes.truncate(taken);
            self.settle(id, Change::Write { offset, bytes });
        }
    }

    /// Any sectors of a write reach the disk.
    pub(super) fn fail_write(&mut self, id: FileId, ticket: Ticket) {
        if let Some(change) = self.take(id, ticket) {
            for part in change.survivors(&mut self.rng) {
                self.settle(id, part);
            }
        }
    }

    /// A change that takes no time.
    pub(super) fn change_now(&mut self, id: FileId, change: Change) -> io::Result<()> {
        if let Change::SetLen(len) = change
            && len.saturating_sub(self.len(id)) > self.free_bytes()
        {
            return Err(errno(libc::ENOSPC));
        }
        self.settle(id, change);
        Ok(())
    }

    fn settle(&mut self, id: FileId, change: Change) {
        self.order += 1;
        let file = &mut self.files[id.0];
        change.apply(&mut file.visible);
        if let Change::Punch { len, .. } = change {
            file.punched_bytes += len;
        }
        file.unsynced.push((self.order, change));
    }

    /// Everything completed up to now is at or below this.
    pub(super) fn barrier(&self) -> u64 {
        self.order
    }

    /// Makes what was completed at the barrier durable.
    pub(super) fn sync(&mut self, id: FileId, barrier: u64) {
        let file = &mut self.files[id.0];
        let later = file
            .unsynced
            .partition_point(|(order, _)| *order <= barrier);
        for (order, change) in file.unsynced.drain(..later) {
            change.apply_unless_newer(&mut file.durable, order, &file.durable_at);
        }
    }

    /// Any sectors up to the barrier become durable; no sync will cover the others.
    pub(super) fn fail_sync(&mut self, id: FileId, barrier: u64) {
        let file = &mut self.files[id.0];
        let later = file
            .unsynced
            .partition_point(|(order, _)| *order <= barrier);
        for (order, change) in file.unsynced.drain(..later) {
            for part in change.survivors(&mut self.rng) {
                part.apply_unless_newer(&mut file.durable, order, &file.durable_at);
            }
        }
    }

    // Crashes, and hands from outside.

    pub(super) fn crash(&mut self, crash: Crash) {
        for file in &mut self.files {
            for (_, change) in std::mem::take(&mut file.under_way) {
                for part in change.survivors(&mut self.rng) {
                    part.apply(&mut file.visible);
                    self.order += 1;
                    file.unsynced.push((self.order, part));
                }
            }
            if crash == Crash::Power {
                for (order, change) in std::mem::take(&mut file.unsynced) {
                    for part in change.survivors(&mut self.rng) {
                        part.apply_unless_newer(&mut file.durable, order, &file.durable_at);
                    }
                }
                file.visible = file.durable.clone();
            }
        }
        if crash == Crash::Power {
            for dir in self.dirs.values_mut() {
                let survive = self.rng.below(dir.unsynced.len() as u64 + 1) as usize;
                if let Some(last) = survive.checked_sub(1) {
                    dir.durable = dir.unsynced.swap_remove(last);
                }
                dir.unsynced.clear();
                dir.visible = dir.durable.clone();
            }
        }
        self.life += 1;
        self.halted = false;
        self.sleepers.clear();
        self.watcher = None;
        self.set_plan(FaultPlan::default());
    }

    pub(super) fn contents(&self, path: &Path) -> Option<Vec<u8>> {
        self.find(path).map(|id| self.files[id.0].visible.clone())
    }

    pub(super) fn set_contents(&mut self, path: &Path, bytes: Vec<u8>) {
        let id = match self.find(path) {
            Some(id) => id,
            None => {
                let Ok((dir, name)) = split(path) else { return };
                let id = FileId(self.files.len());
                self.files.push(File::default());
                let dir = self.dirs.entry(dir).or_default();
                dir.change(|names| _ = names.insert(name, id));
                dir.durable = dir.visible.clone();
                dir.unsynced.clear();
                id
            }
        };
        let file = &mut self.files[id.0];
        file.unsynced.clear();
        file.durable = bytes.clone();
        file.visible = bytes;
    }

    pub(super) fn unlink(&mut self, path: &Path) {
        let Ok((dir, _)) = split(path) else { return };
        if self.remove(path).is_ok() {
            // The name was there, so the directory is too.
            let _ = self.sync_dir(&dir);
        }
    }
}

impl Directory {
    fn change(&mut self, change: impl FnOnce(&mut BTreeMap<String, FileId>)) {
        change(&mut self.visible);
        self.unsynced.push(self.visible.clone());
    }
}

impl File {
    fn used_bytes(&self) -> u64 {
        (self.visible.len() as u64).saturating_sub(self.punched_bytes)
    }
}
