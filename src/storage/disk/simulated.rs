//! A disk in memory that misbehaves as disks may, the same way for the same seed.
//!
//! Operations take a random number of turns, so they finish in any order. What
//! a crash leaves depends on its kind:
//! - [`Crash::Process`]: completed writes stay, those under way survive in any
//!   subset of their 512-byte sectors. Nothing becomes more durable than it was.
//! - [`Crash::Power`]: of everything not synced, any subset of sectors
//!   survives; of unsynced name changes in a directory, any first few do.
//!
//! A [`FaultPlan`] says which operations fail and when the machine halts: from
//! then on no operation completes, and the test, which waits for
//! [`SimulatedDisk::halted`], calls [`SimulatedDisk::crash`] and starts anew.
//! A failed sync leaves its writes in doubt for good: a later sync does not
//! cover them.
//!
//! Time stands still unless [`SimulatedDisk::advance`] moves it. Works on any
//! single-threaded executor, `futures_lite::future::block_on` included.

mod change;
mod plan;
mod world;

use std::cell::RefCell;
use std::future::{Future, pending, poll_fn};
use std::io;
use std::path::Path;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use self::change::Change;
use self::world::{FileId, World};
use super::{Access, AlignedBuf, Disk, DiskFile, ReadBuf};
use crate::base::limits::{DISK_ALIGN, DISK_IO_BYTES_MAX};

pub use self::plan::{Crash, Fault, FaultPlan, Operation};

/// A simulated disk; clones are the same disk.
#[derive(Clone, Debug)]
pub struct SimulatedDisk(Rc<RefCell<World>>);

/// A file of a [`SimulatedDisk`].
#[derive(Debug)]
pub struct SimulatedFile {
    disk: SimulatedDisk,
    id: FileId,
    /// The machine's life in which it was opened; no operation outlives it.
    life: u64,
    access: Access,
}

impl SimulatedDisk {
    /// An empty disk with room for `capacity_bytes`.
    pub fn new(seed: u64, capacity_bytes: u64) -> Self {
        Self(Rc::new(RefCell::new(World::new(seed, capacity_bytes))))
    }

    /// Replaces the plan of faults; its counts start now.
    pub fn plan(&self, plan: FaultPlan) {
        self.0.borrow_mut().set_plan(plan);
    }

    /// Completes when the machine has halted as planned.
    pub async fn halted(&self) {
        poll_fn(|cx| self.0.borrow_mut().poll_halted(cx)).await;
    }

    /// Halts the machine if it runs, settles what survives, and starts it again without a plan.
    /// Open files of before are dead.
    pub fn crash(&self, crash: Crash) {
        self.0.borrow_mut().crash(crash);
    }

    /// Moves the clock.
    pub fn advance(&self, duration: Duration) {
        self.0.borrow_mut().advance(duration);
    }

    /// Sets how many bytes fit.
    pub fn set_capacity(&self, bytes: u64) {
        self.0.borrow_mut().capacity_bytes = bytes;
    }

    /// Operations begun since the plan was set.
    pub fn operations(&self) -> u64 {
        self.0.borrow().operations()
    }

    /// Operations of one kind begun since the plan was set.
    pub fn count(&self, operation: Operation) -> u64 {
        self.0.borrow().count(operation)
    }

    /// A file's bytes as reads see them, from outside the simulation.
    pub fn contents(&self, path: &Path) -> Option<Vec<u8>> {
        self.0.borrow().contents(path)
    }

    /// Replaces a file's bytes from outside, durable: what an operator, or decay, may do.
    pub fn set_contents(&self, path: &Path, bytes: Vec<u8>) {
        self.0.borrow_mut().set_contents(path, bytes);
    }

    /// Removes a name from outside, durable.
    pub fn unlink(&self, path: &Path) {
        self.0.borrow_mut().unlink(path);
    }

    /// Begins an operation: waits some turns, then says what the plan has for it. Never completes
    /// once the machine has halted or restarted.
    async fn begin(&self, operation: Operation, life: u64) -> Option<Fault> {
        let begun = self.0.borrow_mut().begin(operation, life);
        let Some(fault) = begun else {
            return pending().await;
        };
        let mut turns = self.0.borrow_mut().delay();
        poll_fn(|cx| {
            if !self.0.borrow().is_running(life) {
                return Poll::Pending;
            }
            if turns == 0 {
                return Poll::Ready(());
            }
            turns -= 1;
            cx.waker().wake_by_ref();
            Poll::Pending
        })
        .await;
        fault
    }

    /// An operation on names: its effect is atomic and visible when it completes.
    async fn on_names<T>(
        &self,
        operation: Operation,
        act: impl FnOnce(&mut World) -> io::Result<T>,
    ) -> io::Result<T> {
        let life = self.0.borrow().life();
        match self.begin(operation, life).await {
            Some(fault) => Err(fault.error()),
            None => act(&mut self.0.borrow_mut()),
        }
    }
}

impl Disk for SimulatedDisk {
    type File = SimulatedFile;

    async fn open(&self, path: &Path, access: Access) -> io::Result<SimulatedFile> {
        let open = |world: &mut World| world.open(path, access);
        let id = self.on_names(Operation::Open, open).await?;
        let life = self.0.borrow().life();
        Ok(SimulatedFile {
            disk: self.clone(),
            id,
            life,
            access,
        })
    }

    fn buffer(&self, len: usize) -> AlignedBuf {
        let mut buf = AlignedBuf::global(len);
        // Not zeros: what is not written must not be relied upon.
        buf.as_mut_slice().fill(0xa5);
        buf
    }

    async fn list_dir(&self, dir: &Path) -> io::Result<Vec<String>> {
        self.on_names(Operation::List, |world| world.list(dir))
            .await
    }

    async fn create_dir(&self, dir: &Path) -> io::Result<()> {
        self.on_names(Operation::CreateDir, |world| {
            world.create_dir(dir);
            Ok(())
        })
        .await
    }

    async fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.on_names(Operation::Rename, |world| world.rename(from, to))
            .await
    }

    async fn remove(&self, path: &Path) -> io::Result<()> {
        self.on_names(Operation::Remove, |world| world.remove(path))
            .await
    }

    async fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        self.on_names(Operation::SyncDir, |world| world.sync_dir(dir))
            .await
    }

    async fn free_space(&self, _dir: &Path) -> io::Result<u64> {
        Ok(self.0.borrow().free_bytes())
    }

    async fn sleep(&self, duration: Duration) {
        let until = self.0.borrow().now() + duration;
        poll_fn(|cx| self.0.borrow_mut().poll_clock(until, cx)).await;
    }
}

impl SimulatedFile {
    fn world(&self) -> std::cell::RefMut<'_, World> {
        self.disk.0.borrow_mut()
    }

    fn begin(&self, operation: Operation) -> impl Future<Output = Option<Fault>> {
        self.disk.begin(operation, self.life)
    }

    fn check_writable(&self) -> io::Result<()> {
        match self.access {
            Access::Read => Err(io::Error::from_raw_os_error(libc::EBADF)),
            Access::Write | Access::Create | Access::WriteDurable => Ok(()),
        }
    }
}

fn check_aligned(offset: u64, len: usize) -> io::Result<()> {
    let aligned = offset.is_multiple_of(DISK_ALIGN as u64) && len.is_multiple_of(DISK_ALIGN);
    if aligned && len <= DISK_IO_BYTES_MAX {
        Ok(())
    } else {
        Err(io::Error::from_raw_os_error(libc::EINVAL))
    }
}

impl DiskFile for SimulatedFile {
    async fn read_at(&self, offset: u64, len: usize) -> io::Result<ReadBuf> {
        check_aligned(offset, len)?;
        let fault = self.begin(Operation::Read).await;
        let mut bytes = self.world().read(self.id, offset, len);
        match fault {
            None => {}
            Some(Fault::Error(errno)) => return Err(io::Error::from_raw_os_error(errno)),
            Some(Fault::Short) => {
                bytes.truncate((bytes.len() / 2 / DISK_ALIGN * DISK_ALIGN).max(DISK_ALIGN));
            }
        }
        Ok(bytes.into())
    }

    async fn write_at(&self, buf: AlignedBuf, offset: u64) -> io::Result<usize> {
        check_aligned(offset, buf.len())?;
        self.check_writable()?;
        let change = Change::Write {
            offset,
            bytes: buf.as_slice().to_vec(),
        };
        let ticket = self.world().submit(self.id, self.life, change);
        let fault = self.begin(Operation::Write).await;
        let durable = self.access == Access::WriteDurable;
        match fault {
            None => self.world().complete_write(self.id, ticket, durable),
            Some(Fault::Short) => {
                let taken = buf.len() / 2 / DISK_ALIGN * DISK_ALIGN;
                self.world().complete_part(self.id, ticket, taken);
                Ok(taken)
            }
            Some(fault) => {
                self.world().fail_write(self.id, ticket);
                Err(fault.error())
            }
        }
    }

    async fn sync_data(&self) -> io::Result<()> {
        let barrier = self.world().barrier();
        match self.begin(Operation::Sync).await {
            None => {
                self.world().sync(self.id, barrier);
                Ok(())
            }
            Some(fault) => {
                self.world().fail_sync(self.id, barrier);
                Err(fault.error())
            }
        }
    }

    async fn truncate(&self, len: u64) -> io::Result<()> {
        self.check_writable()?;
        match self.begin(Operation::Truncate).await {
            None => self.world().change_now(self.id, Change::SetLen(len)),
            Some(fault) => Err(fault.error()),
        }
    }

    async fn allocate(&self, len: u64) -> io::Result<()> {
        self.check_writable()?;
        match self.begin(Operation::Allocate).await {
            None => {
                let len = len.max(self.world().len(self.id));
                self.world().change_now(self.id, Change::SetLen(len))
            }
            Some(fault) => Err(fault.error()),
        }
    }

    async fn punch(&self, offset: u64, len: u64) -> io::Result<()> {
        self.check_writable()?;
        match self.begin(Operation::Punch).await {
            None => self
                .world()
                .change_now(self.id, Change::Punch { offset, len }),
            Some(fault) => Err(fault.error()),
        }
    }

    async fn len(&self) -> io::Result<u64> {
        Ok(self.world().len(self.id))
    }

    async fn close(self) -> io::Result<()> {
        Ok(())
    }
}
