//! Space for the journal: files made ahead, and a flag when the disk is nearly full.
//!
//! Part of [`Journal::run`](super::Journal::run), beside the commits and never
//! in their way: one slice of one file at a time. It wakes when a file is
//! taken into use and once a second; then it asks the file system for its free
//! space, makes what is missing, and says what is lacking.
//!
//! A directory that is not there keeps writes out, too: files that are open would
//! take more batches, but nobody would find them again.
//!
//! Free space below the reserve, or no file ready and none to be had, is
//! pressure. A file is made ahead only if the reserve stays whole. For batches
//! that were staged before space ran short, and for those that free space, the
//! reserve may be used: that is what it is for, and it bounds how much may be
//! staged without a place.
//!
//! Nothing that fails here is a failure of the journal: no batch is involved.

use std::convert::Infallible;
use std::time::Duration;

use super::file::{NewFile, make_file};
use super::{Health, Inner, SyncMethod};
use crate::storage::disk::{Access, Disk};
use crate::storage::error::StorageError;

/// How often free space is asked for when nothing happens.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

impl<D: Disk> Inner<D> {
    pub(super) async fn keep_space(&self) -> Infallible {
        loop {
            let outcome = self.make_ahead().await;
            if let Ok(free) | Err(StorageError::DiskFull { free, .. }) = &outcome {
                self.observed.free_bytes.set(*free);
            }
            let is_below = match &outcome {
                Ok(free) | Err(StorageError::DiskFull { free, .. })
                    if *free < self.options.reserve_bytes =>
                {
                    true
                }
                Ok(_) => false,
                Err(_) => self.queue.borrow().ready.is_empty(),
            };
            let lack = match &outcome {
                Err(error) if error.is_missing() => Health::DirectoryGone,
                _ if is_below => Health::DiskPressure,
                _ => Health::Ok,
            };
            self.set_lack(lack, outcome.err());
            self.work.raise();
            futures_lite::future::or(self.roll.wait(), self.disk.sleep(POLL_INTERVAL)).await;
        }
    }

    /// Makes files until enough are ready; the free space that is left.
    async fn make_ahead(&self) -> Result<u64, StorageError> {
        loop {
            let dir = &self.home.dir;
            let free = self
                .disk
                .free_space(dir)
                .await
                .map_err(StorageError::io("statfs", dir))?;
            let bytes = self.options.file_bytes;
            let (number, wanted, needed) = {
                let queue = self.queue.borrow();
                let newest = queue.ready.back().unwrap_or(&queue.active);
                let wanted = queue.ready.len() < self.options.files_ahead();
                let reserve = if queue.unplaced_bytes > 0 {
                    0
                } else {
                    self.options.reserve_bytes
                };
                (
                    newest.number().saturating_add(1),
                    wanted,
                    bytes.saturating_add(reserve),
                )
            };
            if !wanted {
                return Ok(free);
            }
            if free < needed {
                return Err(StorageError::DiskFull {
                    dir: dir.clone(),
                    free,
                    needed,
                });
            }
            let new = NewFile {
                number,
                bytes,
                access: self.options.access(),
            };
            let file = make_file(&self.disk, &self.home, new).await?;
            self.queue.borrow_mut().ready.push_back(file);
            self.work.raise();
        }
    }

    fn set_lack(&self, lack: Health, error: Option<StorageError>) {
        let before = self.lack.replace(lack);
        let (shard, dir) = (self.home.shard, self.home.dir.display());
        match (before, lack, error) {
            (Health::Ok | Health::DiskPressure, Health::DirectoryGone, _) => tracing::error!(
                shard,
                "{dir} is gone: it was removed, or its file system is not mounted. Writes are \
                 refused until it is back. If it was removed, stop the server and restore a backup"
            ),
            (Health::DirectoryGone, Health::Ok | Health::DiskPressure, _) => {
                tracing::info!(shard, "{dir} is back");
            }
            (Health::Ok, Health::DiskPressure, Some(error)) => tracing::warn!(
                shard,
                %error,
                "no space for the journal: writes are refused until space returns"
            ),
            (Health::Ok, Health::DiskPressure, None) => tracing::warn!(
                shard,
                reserve_bytes = self.options.reserve_bytes,
                "free space is below the reserve: writes are refused until space returns"
            ),
            (Health::DiskPressure, Health::Ok, _) => {
                tracing::info!(shard, "space has returned: writes are taken again");
            }
            (_, _, Some(error)) => tracing::debug!(shard, %error, "no file could be made ahead"),
            _ => {}
        }
    }
}

impl super::Options {
    /// How files that are written are opened.
    pub(super) fn access(&self) -> Access {
        match (self.durability, self.sync_method) {
            (super::Durability::Sync, SyncMethod::Dsync) => Access::WriteDurable,
            _ => Access::Write,
        }
    }
}
