//! `current`: the one small file that says which checkpoint rules.
//!
//! ```text
//!  0  magic        8  "THALWEGK"
//!  8  format       4
//! 12  checksum     4  CRC32C of bytes 16..4096
//! 16  journal_id   8
//! 24  number       8  of the checkpoint
//! 32  replay_from  8  position of the first record that is not in it
//! 40  entries      8
//! 48  bytes        8  of the checkpoint's file
//! 56  shard        4
//! 60  zeros
//! ```
//!
//! One block, replaced as a whole: written beside as `current.new`, synced,
//! renamed over the old one, directory synced. A crash before the rename leaves
//! the old one, a crash after it the new one.

use std::path::Path;

use super::format::FORMAT;
use super::{FIRST_WRITTEN, Identity, numbers};
use crate::base::checksum::Checksum;
use crate::base::limits::DISK_ALIGN;
use crate::storage::disk::{Access, Disk, DiskFile, open_if_there, remove_if_there, write_whole};
use crate::storage::error::StorageError;
use crate::storage::fields::{front, u32_at, u64_at};
use crate::storage::journal::Position;

const MAGIC: [u8; 8] = *b"THALWEGK";

/// The checkpoint that rules, and what its file must hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Current {
    /// Number of the checkpoint.
    pub number: u64,
    /// Position of the first record that the checkpoint does not contain.
    pub replay_from: Position,
    /// Entries in it.
    pub entries: u64,
    /// Bytes of its file.
    pub bytes: u64,
}

impl Current {
    /// Reads the shard's `current`; `None` if there is no such file.
    ///
    /// # Errors
    /// [`StorageError::MissingFile`] if there must be one ([`FIRST_WRITTEN`]),
    /// [`StorageError::DamagedCurrent`] if it does not verify, [`StorageError::ForeignFile`] if it
    /// is another shard's, [`StorageError::UnsupportedFormat`], [`StorageError::Io`].
    pub async fn load<D: Disk>(
        disk: &D,
        identity: &Identity,
    ) -> Result<Option<Self>, StorageError> {
        let path = identity.current_path();
        let Some(file) = open_if_there(disk, &path, Access::Read).await? else {
            let newest = numbers(disk, identity).await?.pop();
            return match newest.is_some_and(|number| number >= FIRST_WRITTEN) {
                true => Err(StorageError::MissingFile { path }),
                false => Ok(None),
            };
        };
        let len = file.len().await.map_err(StorageError::io("stat", &path))?;
        let block = file
            .read_at(0, DISK_ALIGN)
            .await
            .map_err(StorageError::io_at("read", &path, 0))?;
        // A failure to close a file that was only read loses nothing.
        let _ = file.close().await;
        if len != DISK_ALIGN as u64 {
            return Err(StorageError::DamagedCurrent { path });
        }
        Self::decode(&block, identity, &path).map(Some)
    }

    /// Makes this the checkpoint that rules; durable when it returns.
    ///
    /// # Errors
    /// [`StorageError`]. After one, either the old or the new `current` may rule, also after
    /// the next start: neither checkpoint may be removed, nor the journal released.
    pub async fn store<D: Disk>(&self, disk: &D, identity: &Identity) -> Result<(), StorageError> {
        let (path, new) = (identity.current_path(), identity.current_new_path());
        remove_if_there(disk, &new).await?;
        let file = disk
            .open(&new, Access::Create)
            .await
            .map_err(StorageError::io("create", &new))?;
        let mut block = disk.buffer(DISK_ALIGN);
        self.encode(identity, block.as_mut_slice());
        write_whole(&file, &new, block, 0).await?;
        file.sync_data()
            .await
            .map_err(StorageError::io("sync", &new))?;
        file.close()
            .await
            .map_err(StorageError::io("close", &new))?;
        disk.rename(&new, &path)
            .await
            .map_err(StorageError::io("rename", &new))?;
        disk.sync_dir(&identity.dir)
            .await
            .map_err(StorageError::io("sync", &identity.dir))
    }

    /// What the shard's `current` must hold for this to rule.
    #[must_use]
    pub fn to_bytes(&self, identity: &Identity) -> Vec<u8> {
        let mut block = vec![0; DISK_ALIGN];
        self.encode(identity, &mut block);
        block
    }

    /// Fills a block.
    fn encode(&self, identity: &Identity, block: &mut [u8]) {
        let block: &mut [u8; DISK_ALIGN] = front(block);
        block.fill(0);
        block[0..8].copy_from_slice(&MAGIC);
        block[8..12].copy_from_slice(&FORMAT.to_le_bytes());
        block[16..24].copy_from_slice(&identity.journal_id.to_le_bytes());
        block[24..32].copy_from_slice(&self.number.to_le_bytes());
        block[32..40].copy_from_slice(&self.replay_from.0.to_le_bytes());
        block[40..48].copy_from_slice(&self.entries.to_le_bytes());
        block[48..56].copy_from_slice(&self.bytes.to_le_bytes());
        block[56..60].copy_from_slice(&identity.shard.to_le_bytes());
        let checksum = Checksum::seeded(0).with(&block[16..]).value();
        block[12..16].copy_from_slice(&checksum.to_le_bytes());
    }

    fn decode(block: &[u8], identity: &Identity, path: &Path) -> Result<Self, StorageError> {
        let path = path.to_owned();
        let Ok(bytes) = <&[u8; DISK_ALIGN]>::try_from(block) else {
            return Err(StorageError::DamagedCurrent { path });
        };
        if bytes[0..8] != MAGIC {
            return Err(StorageError::DamagedCurrent { path });
        }
        let found = u32_at(bytes, 8);
        if found != FORMAT {
            return Err(StorageError::UnsupportedFormat {
                path,
                found,
                supported: FORMAT,
            });
        }
        if Checksum::seeded(0).with(&bytes[16..]).value() != u32_at(bytes, 12) {
            return Err(StorageError::DamagedCurrent { path });
        }
        if (u64_at(bytes, 16), u32_at(bytes, 56)) != (identity.journal_id, identity.shard) {
            return Err(StorageError::ForeignFile { path });
        }
        Ok(Self {
            number: u64_at(bytes, 24),
            replay_from: Position(u64_at(bytes, 32)),
            entries: u64_at(bytes, 40),
            bytes: u64_at(bytes, 48),
        })
    }
}
